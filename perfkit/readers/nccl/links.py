"""Over which rings, trees and transports do the ranks communicate, and which of these are slower than need be?"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from perfkit.readers.nccl.lines import Said

_VIA = re.compile(
    r"(?:Channel|Ring) (\d{1,6})(?:/\d+)? : (\d{1,6})(?:\[\w+\])? -> (\d{1,6})(?:\[\w+\])? (?:\[(send|receive)\] )?"
    r"via ((?:P2P|SHM|NET|COLLNET)/[\w/ ().+-]+?(?:\[\w+\][\w/]*)?)(?: comm 0x\w+ nRanks \d+)?"
)
_RING = re.compile(r"Channel (\d{1,6})/\d+ :((?: +\d{1,6})+)")
_NEIGHBOURS = re.compile(r"Ring (\d{1,6}) : (\d{1,6}) -> (\d{1,6}) -> (\d{1,6})")
_TREES = re.compile(r"\[(\d{1,6})\] ((?:-?\d{1,6}/)*-?\d{1,6})->(\d{1,6})->(-?\d{1,6})")
_TREE = re.compile(r"Tree (\d{1,6}) : (-?\d{1,6}) -> (\d{1,6}) -> ((?:-?\d{1,6}/)*-?\d{1,6})")
_ABOUT = ("Channel ", "Ring ", "Trees ", "Tree ")

Edge = tuple[str, int, int, int]  # kind, channel, from, to


@dataclass
class Links:
    """The edges with their transport, None where it is not said, and lines about them that are not whole."""

    edges: dict[Edge, str | None] = field(default_factory=dict)
    without_gdrdma: dict[Edge, None] = field(default_factory=dict)
    damaged: int = 0


def links(said: Iterable[Said]) -> Links:
    """Return every edge once, though both of its ends may have been logged; the transport is then the sender's."""
    found = Links()
    for line in said:
        if line.level == "INFO" and line.text.startswith(_ABOUT):
            _take(found, line.text)
    return found


def _take(found: Links, text: str) -> None:
    if via := _VIA.fullmatch(text):
        edge = ("connection", int(via[1]), int(via[2]), int(via[3]))
        if edge not in found.edges or via[4] == "send":
            found.edges[edge] = via[5]
        if via[5].startswith("NET/") and "/GDRDMA" not in via[5]:
            found.without_gdrdma[edge] = None
    elif ring := _RING.fullmatch(text):
        _around(found, int(ring[1]), [int(rank) for rank in ring[2].split()])
    elif around := _NEIGHBOURS.fullmatch(text):
        before, rank, after = (int(around[i]) for i in (2, 3, 4))
        found.edges[("ring", int(around[1]), before, rank)] = None
        found.edges[("ring", int(around[1]), rank, after)] = None
    elif tree := _TREE.fullmatch(text):
        _branches(found, int(tree[1]), tree[4], int(tree[3]), int(tree[2]))
    elif text.startswith("Trees ") and (trees := _TREES.findall(text)):
        for channel, children, rank, parent in trees:
            _branches(found, int(channel), children, int(rank), int(parent))
    elif text.startswith("Channel "):
        found.damaged += 1


def _around(found: Links, channel: int, ranks: list[int]) -> None:
    """Add the ring through all ranks; one that misses a rank is not whole."""
    if sorted(ranks) != list(range(len(ranks))):
        found.damaged += 1
        return
    for sender, receiver in zip(ranks, ranks[1:] + ranks[:1], strict=True):
        found.edges[("ring", channel, sender, receiver)] = None


def _branches(found: Links, channel: int, children: str, rank: int, parent: int) -> None:
    above = [(int(child), rank) for child in children.split("/")] + [(rank, parent)]
    found.edges.update({("tree", channel, low, high): None for low, high in above if low >= 0 and high >= 0})


def remarks(found: Links) -> list[str]:
    """Return what the transports cost: host memory in the way, or TCP."""
    via = [transport for transport in found.edges.values() if transport]
    network, shared = (sum(t.startswith(kind) for t in via) for kind in ("NET/", "SHM/"))
    socket = sum(t.startswith("NET/Socket") for t in via)
    said = []
    if found.without_gdrdma:
        said.append(
            f"{len(found.without_gdrdma)} of {network} connections over the network work without GPUDirect RDMA, by "
            "way of host memory: check NCCL_NET_GDR_LEVEL and that nvidia-peermem or DMA-BUF is there"
        )
    if socket:
        said.append(f"{socket} of {network} connections over the network are TCP (Socket), not InfiniBand or RoCE")
    if shared:
        said.append(
            f"{shared} connections between GPUs of a node go through host memory (SHM), not peer to peer: "
            "check `nvidia-smi topo -m` and NCCL_P2P_LEVEL"
        )
    return said

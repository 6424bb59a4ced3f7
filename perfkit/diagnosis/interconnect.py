"""How fast do the GPUs communicate, and over what: the figures of a benchmark's or NCCL's log.

Bandwidths are held against the line rate (`diagnosis.machine.line_rate`) and against the best in the same log.
Thresholds: NCCL's ring reaches 0.82 of NVLink's line rate on eight H100 (370 of 450 GB/s, NVIDIA/nccl-tests issue
212), and operations of published logs of eight A100 or H100 at least 0.75; below 0.6 something is wrong, and below 0.4,
half of what a ring reaches, severely (conventions).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from perfkit.analysis import communication
from perfkit.diagnosis.finding import Figure
from perfkit.diagnosis.rules.network import LOW_RATE, OF_A_RATE
from perfkit.format import percent, size
from perfkit.selection import Selection

STILL_GROWING = 0.1  # of the next smaller messages; a plateau is flatter (convention)
# What a reader who does not know NCCL learns from the first part of a transport's name.
WAYS = {
    "NET": "go through the network transport",
    "P2P": "go from GPU to GPU in a node",
    "SHM": "go through the CPU's memory",
}


@dataclass(frozen=True)
class LineRate:
    """What the links of a GPU carry in one direction, None if it is not known; and where that comes from, or why."""

    bytes_per_s: float | None
    why: str


def figures(view: Selection, limit: LineRate) -> Iterator[Figure]:
    """Yield the bandwidth of each operation, the connections over the network, and the network cards."""
    yield from _bandwidths(view, limit)
    yield from _network(view)
    yield from _cards(view)


def _bandwidths(view: Selection, limit: LineRate) -> Iterator[Figure]:
    """Yield the plateau of each operation, of the placement that is slower, on the most ranks."""
    crossing = communication.plateau(view.collectives)
    crossing = crossing[crossing["bus_bytes_per_s"] > 0].sort_values(
        "bus_bytes_per_s", kind="stable"
    )
    every = communication.bandwidth(view.collectives)
    most = crossing.groupby("operation", observed=True)["ranks"].transform("max")
    slower = crossing[crossing["ranks"].eq(most)].drop_duplicates("operation")
    for row in slower.sort_values("bus_bytes_per_s", ascending=False, kind="stable").to_dict(
        "records"
    ):
        label = str(row["operation"]).replace("_", "-").capitalize()
        placement = (
            ""
            if pd.isna(row["placement"])
            else f", {str(row['placement']).replace('_', ' ')} (the slower)"
        )
        definition = f"bus bandwidth of messages larger than half the largest size, {row['ranks']} ranks{placement}"
        name = f"baseline_{row['operation']}"
        value = float(row["bus_bytes_per_s"])
        source = "communication.plateau"
        rate = f"{name}_bytes_per_s"
        yield Figure(rate, f"{label} bandwidth", value, "bytes/s", definition, source)
        if limit.bytes_per_s:
            definition = f"bus bandwidth over {size(limit.bytes_per_s)}/s: {limit.why}. Switches can exceed it"
            yield Figure(
                f"{name}_ratio",
                f"{label} over line rate",
                value / limit.bytes_per_s,
                "1",
                definition,
                source,
                kind=OF_A_RATE,
                subject="the line rate of the links",
                amount=rate,
            )
        rows = every["operation"].eq(row["operation"]) & every["ranks"].eq(row["ranks"])
        best = float(every.loc[rows, "bus_bytes_per_s"].max())
        if value < LOW_RATE * best:
            fastest = every.loc[rows].nlargest(1, "bus_bytes_per_s")["bytes"].item()
            definition = f"bus bandwidth over {size(best)}/s, the best of this operation in the log, with messages "
            definition += f"of {size(fastest)}"
            yield Figure(
                f"{name}_best_ratio",
                f"{label} over the best",
                value / best,
                "1",
                definition,
                source,
                kind=OF_A_RATE,
                subject="the best in the same log",
                amount=rate,
            )


def _in_nodes(via: pd.Series) -> Iterator[Figure]:
    """Yield how many of the connections between GPUs of a node go through the CPU's memory."""
    inside = via[via.str.match("(?:P2P|SHM)/")]
    by_cpu = inside.str.startswith("SHM/")
    if by_cpu.any():
        definition = f"{by_cpu.sum():,} of the {len(inside):,} connections inside a node are SHM"
        label = "Connections through the CPU's memory"
        yield Figure("baseline_shm_frac", label, float(by_cpu.mean()), "1", definition, "LINKS")


def _network(view: Selection) -> Iterator[Figure]:
    """Yield how many of NCCL's connections over the network are TCP, and go by way of host memory.

    Inside one node no connection needs the network: the cards are not to blame then.
    """
    via = view.run.links["transport"].dropna().astype("string")
    yield from _in_nodes(via)
    via = via[via.str.startswith("NET/")]
    if is_one_node(view.run.links):
        yield from _inside_by_network(via, len(view.run.links["transport"].dropna()))
        return
    tcp = via.str.match("NET/(?:Fast)?Socket")  # FastSocket is Google's plugin for TCP
    by_host, source = ~via.str.contains("/GDRDMA", regex=False) & ~tcp, "LINKS"
    of = f"of the {len(via):,} connections over the network that NCCL set up"
    if tcp.any():
        definition = f"{tcp.sum():,} {of} are TCP (Socket)"
        yield Figure(
            "baseline_tcp_frac", "Connections over TCP", float(tcp.mean()), "1", definition, source
        )
    if by_host.any():
        definition = f"{by_host.sum():,} {of} go through CPU memory, without GPUDirect RDMA"
        yield Figure(
            "baseline_by_host_frac",
            "Connections without GPUDirect",
            float(by_host.mean()),
            "1",
            definition,
            source,
        )


def _inside_by_network(via: pd.Series, count: int) -> Iterator[Figure]:
    """Yield how many of the connections inside the only node use the network's transport."""
    if len(via):
        definition = f"{len(via):,} of the {count:,} connections inside the only node are NET"
        label, value = "Connections over the network in a node", len(via) / count
        yield Figure("baseline_net_inside_frac", label, value, "1", definition, "LINKS")


def is_one_node(links: pd.DataFrame) -> bool:
    """Tell whether a log says that all ranks are on one node."""
    return bool(links["nodes"].eq(1).any()) and bool(links["nodes"].dropna().eq(1).all())


def _cards(view: Selection) -> Iterator[Figure]:
    """Yield how many GPUs of a node share a network card, where ranks of several nodes communicate."""
    counts = view.samples.loc[view.samples["metric"].eq("network_card_count"), "value"]
    gpus = len(view.devices[["rank", "gpu"]].drop_duplicates())
    if counts.empty or not gpus or not is_between_nodes(view):
        return
    cards = int(counts.min())
    definition = f"GPUs of a node over the network cards that NCCL uses there: {gpus} over {cards}"
    yield Figure(
        "baseline_gpus_per_card_count",
        "GPUs per network card",
        gpus / cards,
        "count",
        definition,
        "SAMPLES, DEVICES",
    )


def is_between_nodes(view: Selection) -> bool:
    """Tell whether ranks of several nodes communicate: more than a node has GPUs, or over a network."""
    gpus = len(view.devices[["rank", "gpu"]].drop_duplicates())
    ranks = view.collectives["ranks"].max()
    if is_one_node(view.run.links):
        return False
    via = view.run.links["transport"].dropna().astype("string")
    return bool(via.str.startswith("NET/").any()) or (gpus > 0 and pd.notna(ranks) and ranks > gpus)


def growing(view: Selection) -> str:
    """Return why the largest messages may not show what the links carry, empty if they do: the curve is not flat."""
    crossing = communication.plateau(view.collectives)
    crossing = crossing[crossing["bus_bytes_per_s"] > 0]
    growth = crossing.loc[crossing["ranks"].eq(crossing["ranks"].max()), "growth_frac"]
    every = communication.bandwidth(view.collectives)
    if crossing["bus_bytes_per_s"].max() < LOW_RATE * every["bus_bytes_per_s"].max():
        return ""  # smaller messages are faster: larger ones do not reach more
    if growth.isna().all():
        return "the log has only one message size: perhaps larger messages reach more"
    if growth.max() < STILL_GROWING:
        return ""
    return f"the bandwidth still grows by {percent(float(growth.max()))} up to the largest messages"


def ranks_connected(links: pd.DataFrame) -> str:
    """Return how many ranks LINKS connect: at least as many as the largest number that an excerpt names."""
    seen = {*links["from_rank"].tolist(), *links["to_rank"].tolist()}
    largest = max(seen) + 1
    return str(largest) if len(seen) == largest else f"at least {largest}"


def transports(view: Selection) -> pd.Series:
    """Return how many connections use each transport, the most used first."""
    return (
        view.run.links["transport"]
        .dropna()
        .astype("string")
        .str.split("/")
        .str[:2]
        .str.join("/")
        .value_counts()
    )


def explained(transport: str) -> str:
    """Return where a connection with one of NCCL's transports runs.

    >>> explained("NET/IB"), explained("P2P/CUMEM"), explained("NVLS")
    ('go through the network transport (NET/IB)', 'go from GPU to GPU in a node (P2P/CUMEM)', 'use NVLS')
    """
    way = WAYS.get(transport.partition("/")[0])
    return f"{way} ({transport})" if way else f"use {transport}"

"""Rules about the network between GPUs: its bandwidth, and the way that data take."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from perfkit.diagnosis.finding import Figure, Finding, Gain, Objection
from perfkit.diagnosis.rules.longest_moments import longest_collective
from perfkit.diagnosis.rules.rule import LINKS, Fact, Known, Rule, later, now, soon, tell
from perfkit.selection import Selection

SHOW_NCCL = """\
NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,NET torchrun --nproc-per-node=8 train.py 2> nccl.log"""
# Of the line rate, or of the best operation in the same log; see `perfkit.diagnosis.interconnect`.
LOW_RATE = 0.6
POOR_RATE = 0.4
OF_A_RATE = "baseline_ratio"  # the kind of the figures that hold a bandwidth against a rate
FEW_CARDS = 4  # GPUs for each network card, from which on they share too little (convention)
OF_LINKS = "a benchmark shows the speed of the links, but not how much time a program communicates"


def _slow_operations(_: Selection, known: Known) -> Iterator[Finding]:
    """One finding for all operations that are far below the line rate, the slowest first."""
    rates = [figure for figure in known.values() if figure.kind == OF_A_RATE]
    low = [figure for figure in rates if figure.value < LOW_RATE]
    low.sort(key=lambda figure: figure.value)
    if not low:
        return
    slowest = low[0]
    reached = [known[figure.amount] for figure in low]
    title = f"{reached[0].label} is {slowest.text} of {slowest.subject}"
    listed = ", ".join(f"{figure.label} {figure.text}" for figure in reached[:5])
    more = len(rates) - len(low)
    others = f"; {more} other operations reach more" if more else ""
    text = f"Bus bandwidth of the largest messages: {listed}{others}. "
    text += f"{slowest.label}: {slowest.definition}."
    level = "high" if slowest.value < POOR_RATE else "medium"
    evidence = dict.fromkeys(figure for pair in zip(low, reached, strict=True) for figure in pair)
    gain = Gain(1.0, math.inf, OF_LINKS)
    yield tell(BUS_BANDWIDTH, title, text, tuple(evidence), gain, level=level)


def _over_tcp(_: Selection, known: Known) -> Iterator[Finding]:
    how = "over TCP instead of InfiniBand or RoCE"
    yield from _connected(NETWORK_TCP, known.get("baseline_tcp_frac"), how, "high")


def _by_host(_: Selection, known: Known) -> Iterator[Finding]:
    how = "by way of host memory (no GPUDirect RDMA)"
    yield from _connected(NETWORK_BY_HOST, known.get("baseline_by_host_frac"), how, "medium")


def _by_cpu(_: Selection, known: Known) -> Iterator[Finding]:
    share = known.get("baseline_shm_frac")
    if share is not None:
        title = f"NCCL runs {share.text} of its connections inside a node through the CPU's memory"
        text = f"{share.label}: {share.definition}. GPUs that reach each other directly use P2P."
        gain = Gain(1.0, math.inf, OF_LINKS)
        yield tell(NETWORK_SHM, title, text, (share,), gain, level="medium")


def _net_inside(_: Selection, known: Known) -> Iterator[Finding]:
    share = known.get("baseline_net_inside_frac")
    if share is not None:
        title = f"NCCL runs {share.text} of its connections inside a node over the network"
        text = (
            f"{share.label}: {share.definition}. NCCL uses it where GPUs of a node can use neither "
            "P2P nor shared memory (SHM)."
        )
        gain = Gain(1.0, math.inf, OF_LINKS)
        yield tell(NETWORK_INSIDE, title, text, (share,), gain, level="high")


def _connected(rule: Rule, share: Figure | None, how: str, level: str) -> Iterator[Finding]:
    """Yield which share of NCCL's connections takes a slow way, if some do."""
    if share is not None:
        title = f"NCCL runs {share.text} of its network connections {how}"
        text = f"{share.label}: {share.definition}."
        yield tell(rule, title, text, (share,), Gain(1.0, math.inf, OF_LINKS), level=level)


def _few_cards(_: Selection, known: Known) -> Iterator[Finding]:
    shared = known.get("baseline_gpus_per_card_count")
    if shared is None or shared.value < FEW_CARDS:
        return
    title = f"{shared.text} GPUs share one network card"
    text = f"{shared.label}: {shared.definition}. All traffic between nodes goes through it."
    yield tell(NETWORK_CARDS, title, text, (shared,), Gain(1.0, math.inf, OF_LINKS), level="medium")


# What all rules about the network share.
OF_A_NETWORK: Mapping[str, Any] = {"moment": longest_collective, "notebook": LINKS}

BUS_BANDWIDTH = Rule(
    name="bus_bandwidth",
    question="Are collectives far below the line rate of the links?",
    **OF_A_NETWORK,
    needs=("COLLECTIVES",),
    evidence=("baseline_*_ratio", "baseline_*_bytes_per_s"),
    target="above 75 %",
    threshold=(
        "Under 60 % of the line rate, or of the same operation elsewhere in the log; severe under "
        "40 % (conventions). NCCL's ring reaches 82 % of NVLink on eight H100 (NVIDIA/nccl-tests "
        "issue 212)"
    ),
    find=_slow_operations,
    advice=(
        now(
            (
                "Test the network between the nodes: all_reduce_perf on two nodes at a time, and "
                "the counters of the network cards for drops and pauses"
            ),
            when=Fact.BETWEEN_NODES,
        ),
        now(
            (
                "Compare the protocols (NCCL_PROTO=Simple, LL128) and algorithms (NCCL_ALGO=Ring, "
                "Tree) at the sizes that are slow"
            ),
            when=Fact.BETWEEN_NODES,
        ),
        now(
            "Check the links with nvidia-smi nvlink --status and nvidia-smi topo -m", when=~Fact.AMD
        ),
        now("Check the links with amd-smi xgmi and amd-smi topology", when=Fact.AMD),
        now(
            (
                "Check the transports in a log with NCCL_DEBUG=INFO: inside a node they should be "
                "P2P, not SHM or NET"
            ),
            when=~Fact.LINKS,
            code=SHOW_NCCL,
        ),
        now(
            "Unset NCCL_P2P_DISABLE, NCCL_P2P_LEVEL, NCCL_TOPO_FILE, NCCL_MAX_NCHANNELS, "
            "NCCL_ALGO and NCCL_PROTO"
        ),
        soon(
            "Run all_reduce_perf -b 1M -e 16G -f 2 on every node before a training, and "
            "exclude slower nodes"
        ),
        soon(
            "Disable ACS on the PCIe switches, and load nvidia-peermem if the GPUs communicate "
            "over a network"
        ),
        later("Run the ranks that communicate most on nodes whose GPUs share a switch (NVSwitch)"),
    ),
    next=(
        "Test the same GPUs again and log the transports: NCCL_DEBUG=INFO all_reduce_perf -b 8 -e "
        "16G -f 2 -g 8"
    ),
    objections=(Objection.STILL_GROWING,),
)

NETWORK_TCP = Rule(
    name="network_tcp",
    question="Does NCCL use TCP between nodes?",
    **OF_A_NETWORK,
    needs=("LINKS",),
    evidence=("baseline_tcp_frac",),
    target="0 %",
    threshold="One connection over TCP: a ring is as slow as its slowest connection (convention)",
    find=_over_tcp,
    advice=(
        now("Unset NCCL_IB_DISABLE and NCCL_NET, and check NCCL_IB_HCA and NCCL_SOCKET_IFNAME"),
        now(
            "Give the container access to the network cards (/dev/infiniband, "
            "--cap-add=IPC_LOCK), and look for NET/IB in the log"
        ),
        soon(
            "Load the network's NCCL plugin (NCCL_NET_PLUGIN), such as aws-ofi-nccl, if the "
            "cloud needs one"
        ),
    ),
    next=(
        "Check which network cards NCCL finds: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET, and "
        "ibv_devinfo on each node"
    ),
    indirect="the log does not say whether the nodes have cards for InfiniBand or RoCE",
)

NETWORK_SHM = Rule(
    name="network_shm",
    question="Do GPUs of a node exchange data through the CPU's memory?",
    **OF_A_NETWORK,
    needs=("LINKS",),
    evidence=("baseline_shm_frac",),
    target="0 %",
    threshold="One connection by SHM: a ring is as slow as its slowest connection (convention)",
    find=_by_cpu,
    advice=(
        now("Unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL, and look for P2P in the log"),
        now("Check how the GPUs are connected ({gpu_links})"),
        soon("Disable ACS on the PCIe switches (lspci -vvv shows ACSCtl)"),
        later("Use GPUs with NVLink or with peer access: GeForce RTX 40 and 50 have neither"),
    ),
    next="Measure with and without: NCCL_P2P_DISABLE=1 all_reduce_perf -b 1M -e 4G -f 2 -g 8",
    indirect="the log does not say whether the GPUs can reach each other directly",
)

NETWORK_INSIDE = Rule(
    name="network_inside",
    question="Do GPUs of one node communicate over the network?",
    **OF_A_NETWORK,
    needs=("LINKS",),
    evidence=("baseline_net_inside_frac",),
    target="0 %",
    threshold="One connection over the network in a log that names one node (convention)",
    find=_net_inside,
    advice=(
        now("Unset NCCL_P2P_DISABLE, NCCL_P2P_LEVEL and NCCL_SHM_DISABLE"),
        now("Give the container shared memory (--ipc=host, or --shm-size=1g)"),
        now("Check how the GPUs are connected ({gpu_links})"),
        soon("Disable ACS on the PCIe switches (lspci -vvv shows ACSCtl)"),
    ),
    next=(
        "Record why NCCL uses neither P2P nor SHM: NCCL_DEBUG=INFO "
        "NCCL_DEBUG_SUBSYS=INIT,GRAPH,P2P,SHM"
    ),
    indirect="the log does not say why P2P and SHM are not used",
)

NETWORK_BY_HOST = Rule(
    name="network_by_host",
    question="Do the network cards reach the GPUs only through CPU memory?",
    **OF_A_NETWORK,
    needs=("LINKS",),
    evidence=("baseline_by_host_frac",),
    target="0 %",
    threshold=(
        "One connection without GPUDirect RDMA: a ring is as slow as its slowest connection "
        "(convention)"
    ),
    find=_by_host,
    advice=(
        now(
            "Load nvidia-peermem (modprobe nvidia-peermem), or use a driver and a Linux kernel "
            "with DMA-BUF"
        ),
        now(
            "Try a higher NCCL_NET_GDR_LEVEL (PHB, then SYS), because the card is far from the GPU",
            when=Fact.FAR_CARD,
        ),
        now(
            "Check the distance between GPU and card ({gpu_links}) and NCCL_NET_GDR_LEVEL",
            when=~Fact.FAR_CARD,
        ),
        soon("Disable ACS on the PCIe switches between GPU and card (lspci -vvv shows ACSCtl)"),
    ),
    next=(
        "Measure the bandwidth with and without GPUDirect RDMA: NCCL_NET_GDR_LEVEL=SYS "
        "all_reduce_perf -b 1M -e 16G -f 2"
    ),
    indirect="the log shows how the data move, but not how much data",
)

NETWORK_CARDS = Rule(
    name="network_cards",
    question="Do many GPUs share one network card?",
    **OF_A_NETWORK,
    needs=("SAMPLES", "LINKS"),
    evidence=("baseline_gpus_per_card_count",),
    target="1 or 2",
    threshold="Four GPUs for each card that NCCL uses (convention)",
    find=_few_cards,
    advice=(
        now("Unset NCCL_IB_HCA, or name all cards of the node in it (ibv_devinfo lists them)"),
        now(
            "Check in the log (NET/IB : Using) that NCCL then uses all of them, and give a "
            "container access to all"
        ),
        later("Run jobs of several nodes where each GPU, or each two, have a card of their own"),
    ),
    next="List the cards of the node, and the GPUs near to each: ibv_devinfo, {gpu_links}",
    indirect="the log does not say how many cards the node has",
)

"""Rules about what a launch gives the GPU to do: too few blocks, too few threads in a block, and SMs for collectives.

A kernel with fewer blocks than the GPU has SMs leaves SMs without work; one whose blocks have a few
threads leaves lanes of its warps without. Kernels under 10 µs are left out, since their launch
costs more; so are communication kernels, which need few SMs, and time in which other kernels run at
the same time. Three tenths of the time in such kernels, and a tenth lost, are told (conventions).
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis import limiters, warps
from perfkit.analysis.causes import covered
from perfkit.analysis.grouping import largest
from perfkit.analysis.intervals import cut, devices, ends, subtract, total, union
from perfkit.diagnosis.finding import Figure, Finding, kept, removing, severity
from perfkit.diagnosis.recording import of_the_time
from perfkit.diagnosis.rules.kernels import FEW_BLOCKS, SLOWED_KERNELS
from perfkit.diagnosis.rules.limits import SMALL_BLOCKS
from perfkit.diagnosis.rules.rule import tell
from perfkit.diagnosis.timeline import busy, named
from perfkit.format import duration, printable
from perfkit.selection import Selection

NOTABLE = 0.1
TAKEN = 0.3
SHORT_NS = 10_000
HALF_COVERED = 0.5  # of a kernel's time (convention)
MANY = 5  # kernels of a kind (convention)
MOST_OF = 0.9  # of the kernels of a kind (convention)
LITTLE = 0.05  # of the time (convention)
Bool = NDArray[np.bool_]


class Idle(NamedTuple):
    """Kernels whose blocks have a few threads, on the GPU where they run longest alone, and the longest of them."""

    name: str
    alone_ns: int
    span_ns: int
    longest: str
    threads: int
    blocks: int


class Few(NamedTuple):
    """Kernels with fewer blocks than SMs on the GPU where they cost most: how long they run alone, and the longest."""

    name: str
    alone_ns: int
    lost_ns: float
    span_ns: int
    longest: str
    longest_ns: int
    blocks: int
    sms: int


class Slowed(NamedTuple):
    """How many times as long kernels of a GPU take while collectives run beside them, and what that costs."""

    name: str
    ratio: float
    lost_ns: float
    span_ns: int


def findings(view: Selection) -> Iterator[Finding]:
    """Yield what launches leave unused, and what collectives take from kernels beside them."""
    yield from _small_blocks(view)
    yield from _few_blocks(view)
    yield from _slowed_kernels(view)


@kept
def small(view: Selection) -> Idle | None:
    """Return the GPU on which kernels of a few threads per block run longest alone.

    None without such kernels.
    """
    kernels = view.all_kernels
    start, end = ends(kernels, view.window)
    index, (device,) = devices(kernels)
    is_small = (
        _has_few_threads(kernels) & (kernels["dur_ns"].to_numpy() >= SHORT_NS) & (end > start)
    )
    if not is_small.any():
        return None
    alone, rest = (union(start, np.where(of, end, start), device) for of in (is_small, ~is_small))
    alone_ns = total(subtract(alone, rest), len(index))
    spans = index.merge(busy(view), on=["rank", "gpu"], how="left")["span_ns"].to_numpy()
    at = int(np.argmax(alone_ns / spans))
    mine = kernels[is_small & (device == at)]
    if mine.empty:
        return None
    longest = largest(mine, "dur_ns")
    name = named(index.iloc[at], index)
    blocks = 0 if pd.isna(longest["grid_blocks"]) else int(longest["grid_blocks"])
    threads = int(longest["block_threads"])
    return Idle(name, int(alone_ns[at]), int(spans[at]), str(longest["full_name"]), threads, blocks)


def _has_few_threads(kernels: pd.DataFrame) -> Bool:
    """Tell which kernels leave half of the lanes of their warps idle, or more."""
    return kernels["block_threads"].to_numpy("float64", na_value=np.nan) <= limiters.FEW_THREADS


def _small_blocks(view: Selection) -> Iterator[Finding]:
    found = None if len(view.launches) else small(view)  # counters tell more of the same kernels
    if found is None or found.alone_ns < TAKEN * found.span_ns:
        return
    share = found.alone_ns / found.span_ns
    part = Figure(
        "small_blocks_frac",
        "Time of small blocks",
        share,
        "1",
        (
            f"share of the span of {found.name} during which only kernels with blocks of a few threads "
            "ran"
        ),
        "KERNELS, DEVICES",
    )
    threads = Figure(
        "small_blocks_count",
        "Threads per block",
        found.threads,
        "count",
        "threads of a block of the longest of these kernels",
        "KERNELS",
    )
    text = f"The longest is “{printable(found.longest, 80)}”: {_counted(found.blocks, 'block')} of "
    text += f"{_counted(found.threads, 'thread')}. {small_blocks_text(found.threads)}"
    title = small_blocks_title(found.threads, part.text, "the time")
    most = share * (1 - found.threads / warps.WARP)
    gain = removing(
        most, "best case: all lanes of a warp work; with more blocks the rest gets shorter too"
    )
    yield tell(SMALL_BLOCKS, title, severity(most), text, (part, threads), gain)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def small_blocks_title(threads: int, share: str, whole: str) -> str:
    """Return what kernels of small blocks cost, as a sentence without its end."""
    counted = "one thread" if threads == 1 else f"{threads} threads"
    if threads < warps.WARP:
        idle = f"{warps.WARP - threads} of the {warps.WARP} lanes of a warp idle"
        return f"Kernels whose blocks have {counted}, and leave {idle}, take {share} of {whole}"
    return f"Kernels whose blocks have {counted}, one warp, take {share} of {whole}"


def small_blocks_text(threads: int, residency: str = "") -> str:
    """Return why small blocks are slow: the lanes of a warp, or the blocks that fit on an SM (`residency`)."""
    if threads < warps.WARP:
        return (
            f"A warp executes each instruction for {warps.WARP} threads; here it has work for only "
            f"{threads} of them."
        )
    return f"An SM holds at most 32 blocks (16 or 24 on some GPUs), here of one warp each. {residency}".strip()


@kept
def few(view: Selection) -> Few | None:
    """Return the GPU that loses most in kernels of few blocks, None without such kernels or a number of SMs."""
    known = view.devices.dropna(subset=["sm_count"])[["rank", "gpu", "sm_count"]].astype("int64")
    kernels = view.all_kernels
    start, end = ends(kernels, view.window)
    index, (device,) = devices(kernels)
    sms = index.merge(known, on=["rank", "gpu"], how="left")["sm_count"].to_numpy(float)
    blocks = kernels["grid_blocks"].to_numpy("float64", na_value=np.nan)
    is_few = (blocks < sms[device]) & (kernels["dur_ns"].to_numpy() >= SHORT_NS) & (end > start)
    is_few &= (kernels["family"] != "communication").to_numpy() & ~_has_few_threads(kernels)
    if not is_few.any():
        return None
    alone, rest = (union(start, np.where(of, end, start), device) for of in (is_few, ~is_few))
    alone_ns = total(subtract(alone, rest), len(index))
    taken = total(alone, len(index))
    made = []
    spans = index.merge(busy(view), on=["rank", "gpu"], how="left")["span_ns"]
    for at in np.unique(device[is_few]).tolist():
        mine = is_few & (device == at)
        length = (end - start)[mine]
        # Several at once fill more.
        filled = float((length * blocks[mine]).sum()) / (int(taken[at]) * sms[at])
        of = kernels.loc[mine, kind := ["full_name", "grid_blocks"]].assign(length=length)
        of = of.groupby(kind, observed=True)["length"].sum()
        longest, least = of.idxmax()
        lost = float(alone_ns[at]) * max(1 - filled, 0.0)
        name = named(index.iloc[at], index)
        span = int(spans[at])
        made.append(
            Few(
                name,
                int(alone_ns[at]),
                lost,
                span,
                str(longest),
                int(of.max()),
                int(least),
                int(sms[at]),
            )
        )
    return max(made, key=lambda one: one.lost_ns / one.span_ns)


def _few_blocks(view: Selection) -> Iterator[Finding]:
    found = few(view)
    if (
        found is None
        or found.alone_ns < TAKEN * found.span_ns
        or found.lost_ns < NOTABLE * found.span_ns
    ):
        return
    share = found.alone_ns / found.span_ns
    lost = found.lost_ns / found.span_ns
    taken = Figure(
        "few_blocks_frac",
        "Kernels of few blocks",
        share,
        "1",
        (
            f"share of the span of {found.name} during which only kernels with fewer blocks than SMs "
            "ran"
        ),
        "KERNELS, DEVICES",
    )
    part = Figure(
        "few_blocks_sm_frac",
        "SMs it can use",
        found.blocks / found.sms,
        "1",
        ("share of the GPU's SMs that can work: blocks of the longest of these kernels per SM"),
        "KERNELS, DEVICES",
    )
    text = (
        f"The longest is “{printable(found.longest, 80)}”: {found.blocks:,} blocks for {found.sms} "
        "SMs. It runs "
    )
    text += f"for {duration(found.longest_ns)}, while at most {part.text} of the SMs work."
    title = f"Kernels with fewer blocks than SMs take {taken.text} {of_the_time(view)}"
    gain = removing(
        lost,
        "best case: their work spreads evenly over all SMs; blocks that fill an SM better save more",
    )
    yield tell(FEW_BLOCKS, title, severity(lost), text, (taken, part), gain)


@kept
def slowed_beside(view: Selection) -> Slowed | None:
    """Return the GPU whose kernels take most longer while collectives run beside them.

    None where none is known. Kernels of one name and grid after the same kernel are compared:
    collectives cover some of them for half of their time or more, and none of the others.
    """
    kernels = cut(view.all_kernels, view.window)
    start, end = ends(kernels, None)
    index, (device,) = devices(kernels)
    is_collective = kernels["family"].eq("communication").to_numpy()
    if not is_collective.any():
        return None
    spans = index.merge(busy(view), on=["rank", "gpu"], how="left")["span_ns"].to_numpy()
    found = []
    for at in np.unique(device[is_collective]).tolist():
        here = device == at
        cover = union(start[is_collective & here], end[is_collective & here])
        mine = np.flatnonzero(here & ~is_collective & (end - start >= SHORT_NS))
        inside = covered(cover, start[mine], end[mine]) / (end[mine] - start[mine])
        frame = kernels.iloc[mine][["full_name", "grid_blocks", "dur_ns"]].assign(
            before=_before(kernels.iloc[mine]), beside=inside >= HALF_COVERED, alone=inside == 0
        )
        ratio, lost = _slower(frame.assign(grid_blocks=frame["grid_blocks"].fillna(-1)))
        name = named(index.iloc[at], index)
        found.append(Slowed(name, ratio, lost, int(spans[at])))
    return max(found, key=lambda one: one.lost_ns / one.span_ns, default=None)


def _before(kernels: pd.DataFrame) -> pd.Series:
    """Return the code of the kernel's name that ran before each of them on its stream; -1 without one."""
    in_order = kernels.sort_values("start_ns", kind="stable")
    names = in_order["full_name"].cat.codes
    return names.groupby(in_order["stream"]).shift(fill_value=-1).reindex(kernels.index)


def _slower(kernels: pd.DataFrame) -> tuple[float, float]:
    """Return how many times as long the same kernels take beside collectives, and how much that costs, ns.

    One name may stand for work on other data. So each side of a kind needs MANY kernels, and counts
    only if nine of ten beside collectives take longer than nine of ten without them.
    """
    beside = _of_kinds(kernels[kernels["beside"]], 1 - MOST_OF)
    alone = _of_kinds(kernels[kernels["alone"]], MOST_OF)
    both = beside.join(alone, how="inner", rsuffix="_alone")
    is_known = (both["size"] >= MANY) & (both["size_alone"] >= MANY)
    both = both[is_known & (both["edge"] > both["edge_alone"])]
    usual = float((both["median_alone"] * both["size"]).sum())
    taken = float((both["median"] * both["size"]).sum())
    return (taken / usual, taken - usual) if usual else (1.0, 0.0)


def _of_kinds(kernels: pd.DataFrame, part: float) -> pd.DataFrame:
    """Return how long the kernels of each kind take, ns: `median`, `edge` (of this part), and their number `size`."""
    kind = ["full_name", "grid_blocks", "before"]
    lasted = kernels.groupby(kind, observed=True)["dur_ns"]
    return lasted.agg(["median", "size"]).assign(edge=lasted.quantile(part))


def _slowed_kernels(view: Selection) -> Iterator[Finding]:
    found = slowed_beside(view)
    if found is None or found.ratio < 1 + NOTABLE or found.lost_ns < LITTLE * found.span_ns:
        return
    lost = found.lost_ns / found.span_ns
    ratio = Figure(
        "slowed_kernel_ratio",
        "Same kernels, collectives",
        found.ratio,
        "1",
        (
            "ratio of the same kernels' median durations (name, grid): beside collectives to without "
            "them"
        ),
        "KERNELS",
    )
    part = Figure(
        "slowed_kernels_frac",
        "Time lost beside collectives",
        lost,
        "1",
        (
            f"share of the span of {found.name} that kernels take longer while collectives run beside "
            "them"
        ),
        "KERNELS",
    )
    times = f"{found.ratio:.2f} times"
    title = (
        f"Communication slows computation: the same kernels take {times} as long beside collectives"
    )
    text = (
        f"On {found.name} this costs {part.text} of the time. Collectives take SMs, and bandwidth "
        "of the memory."
    )
    gain = removing(lost, "best case: kernels run as fast beside collectives as without them")
    yield tell(SLOWED_KERNELS, title, severity(lost), text, (part, ratio), gain)

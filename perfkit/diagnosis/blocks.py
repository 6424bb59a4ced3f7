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
from perfkit.analysis.causes import covered_by
from perfkit.analysis.grouping import largest
from perfkit.analysis.intervals import cut, devices, ends, subtract, total, union
from perfkit.diagnosis.finding import Figure, Finding, removing
from perfkit.diagnosis.recording import of_the_time
from perfkit.diagnosis.rules.kernels import FEW_BLOCKS, SLOWED_KERNELS
from perfkit.diagnosis.rules.limits import SMALL_BLOCKS
from perfkit.diagnosis.rules.rule import tell
from perfkit.diagnosis.stored import kept
from perfkit.diagnosis.timeline import busy, named
from perfkit.format import duration, printable
from perfkit.selection import Selection

GPU = ["rank", "gpu"]
NOTABLE = 0.1
TAKEN = 0.3
SHORT_NS = 10_000
HALF_COVERED = 0.5  # of a kernel's time (convention)
MANY = 5  # kernels of a kind (convention)
MOST_OF = 0.9  # of the kernels of a kind (convention)
LITTLE = 0.05  # of the time (convention)
Bool = NDArray[np.bool_]


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


def _is_long(view: Selection) -> Bool:
    """Tell which kernels run in the window for longer than launching them takes."""
    start, end = ends(view.all_kernels, view.window)
    return (view.all_kernels["dur_ns"].to_numpy() >= SHORT_NS) & (end > start)


def _has_few_threads(kernels: pd.DataFrame) -> Bool:
    """Tell which kernels leave half of the lanes of their warps idle, or more."""
    return kernels["block_threads"].to_numpy("float64", na_value=np.nan) <= limiters.FEW_THREADS


def _alone(view: Selection, chosen: Bool) -> pd.DataFrame:
    """Return the GPUs with how long they run one of these kernels (`taken_ns`), and none but these (`alone_ns`)."""
    start, end = ends(view.all_kernels, view.window)
    index, (device,) = devices(view.all_kernels)
    mine, rest = (union(start, np.where(of, end, start), device) for of in (chosen, ~chosen))
    times = {
        "taken_ns": total(mine, len(index)),
        "alone_ns": total(subtract(mine, rest), len(index)),
    }
    return index.merge(busy(view), on=GPU, how="left").assign(**times)


def _small_blocks(view: Selection) -> Iterator[Finding]:
    kernels = view.all_kernels
    is_small = _has_few_threads(kernels) & _is_long(view)
    if len(view.launches) or not is_small.any():  # counters tell more of the same kernels
        return
    gpus = _alone(view, is_small)
    shares = gpus["alone_ns"] / gpus["span_ns"]
    at = int(shares.to_numpy().argmax())
    mine = kernels[is_small & (devices(kernels)[1][0] == at)]
    share = float(shares.iloc[at])
    if mine.empty or share < TAKEN:
        return
    longest = largest(mine, "dur_ns")
    count = int(longest["block_threads"])
    part = Figure(
        "small_blocks_frac",
        "Time of small blocks",
        share,
        "1",
        f"share of the span of {named(gpus.iloc[at], gpus)} during which only kernels with blocks of a few threads ran",
        "KERNELS, DEVICES",
    )
    threads = Figure(
        "small_blocks_count",
        "Threads per block",
        count,
        "count",
        "threads of a block of the longest of these kernels",
        "KERNELS",
    )
    grid = 0 if pd.isna(longest["grid_blocks"]) else int(longest["grid_blocks"])
    text = (
        f"The longest is “{printable(longest['full_name'], 80)}”: {_counted(grid, 'block')} of "
        f"{_counted(count, 'thread')}. {small_blocks_text(count)}"
    )
    title = small_blocks_title(count, part.text, "the time")
    gain = removing(
        share * (1 - count / warps.WARP),
        "best case: all lanes of a warp work; with more blocks the rest gets shorter too",
    )
    yield tell(SMALL_BLOCKS, title, text, (part, threads), gain)


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
def few(view: Selection) -> pd.Series | None:
    """Return the GPU that loses most in kernels of few blocks, None without such kernels or a number of SMs.

    Its times as of `_alone`, `lost_ns`, `sm_count`, and of the kernels with most time of these `full_name`,
    `grid_blocks` and `length_ns`.
    """
    kernels = view.all_kernels
    index, (device,) = devices(kernels)
    known = view.devices[[*GPU, "sm_count"]]
    sms = index.merge(known, on=GPU, how="left")["sm_count"].to_numpy(float, na_value=np.nan)
    blocks = kernels["grid_blocks"].to_numpy("float64", na_value=np.nan)
    is_few = _is_long(view) & (blocks < sms[device]) & ~_has_few_threads(kernels)
    is_few &= (kernels["family"] != "communication").to_numpy()
    if not is_few.any():
        return None
    start, end = ends(kernels, view.window)
    lasted = np.where(is_few, end - start, 0)
    gpus = _alone(view, is_few).assign(sm_count=sms)
    # Several at once fill more.
    filled = np.bincount(device, lasted * np.nan_to_num(blocks)) / (gpus["taken_ns"] * sms)
    gpus["lost_ns"] = gpus["alone_ns"] * (1 - filled).clip(lower=0)
    at = int((gpus["lost_ns"] / gpus["span_ns"]).to_numpy().argmax())
    kind = ["full_name", "grid_blocks"]
    mine = kernels[kind].assign(length_ns=lasted)[is_few & (device == at)]
    by_kind = mine.groupby(kind, observed=True, as_index=False).sum()
    longest: pd.Series = largest(by_kind, "length_ns")
    found: pd.Series = pd.concat([gpus.iloc[at], longest])
    return found


def _few_blocks(view: Selection) -> Iterator[Finding]:
    found = few(view)
    if found is None:
        return
    share, lost = (float(found[name] / found["span_ns"]) for name in ("alone_ns", "lost_ns"))
    if share < TAKEN or lost < NOTABLE:
        return
    name = named(found, view.all_kernels)
    blocks, sms = int(found["grid_blocks"]), int(found["sm_count"])
    taken = Figure(
        "few_blocks_frac",
        "Kernels of few blocks",
        share,
        "1",
        (f"share of the span of {name} during which only kernels with fewer blocks than SMs ran"),
        "KERNELS, DEVICES",
    )
    part = Figure(
        "few_blocks_sm_frac",
        "SMs it can use",
        blocks / sms,
        "1",
        ("share of the GPU's SMs that can work: blocks of the longest of these kernels per SM"),
        "KERNELS, DEVICES",
    )
    text = (
        f"The longest is “{printable(found['full_name'], 80)}”: {blocks:,} blocks for {sms} "
        "SMs. It runs "
    )
    text += f"for {duration(found['length_ns'])}, while at most {part.text} of the SMs work."
    title = f"Kernels with fewer blocks than SMs take {taken.text} {of_the_time(view)}"
    gain = removing(
        lost,
        "best case: their work spreads evenly over all SMs; blocks that fill an SM better save more",
    )
    yield tell(FEW_BLOCKS, title, text, (taken, part), gain)


@kept
def slowed_beside(view: Selection) -> Slowed | None:
    """Return the GPU whose kernels take most longer while collectives run beside them.

    None where none is known. Kernels of one name and grid after the same kernel are compared:
    collectives cover some of them for half of their time or more, and none of the others.
    """
    kernels = cut(view.all_kernels, view.window)
    is_collective = kernels["family"].eq("communication")
    rest = kernels[~is_collective & kernels["dur_ns"].ge(SHORT_NS)]
    if not is_collective.any() or rest.empty:
        return None
    inside = covered_by(rest, kernels[is_collective], GPU) / rest["dur_ns"]
    rest = rest.assign(
        before=_before(rest),
        beside=inside >= HALF_COVERED,
        alone=inside == 0,
        grid_blocks=rest["grid_blocks"].fillna(-1),
    )
    found = []
    for _, gpu in busy(view).iterrows():
        ratio, lost = _slower(rest[rest["rank"].eq(gpu["rank"]) & rest["gpu"].eq(gpu["gpu"])])
        found.append(Slowed(named(gpu, view.all_kernels), ratio, lost, int(gpu["span_ns"])))
    return max(found, key=lambda one: one.lost_ns / one.span_ns)


def _before(kernels: pd.DataFrame) -> pd.Series:
    """Return the code of the kernel's name that ran before each of them on its stream; -1 without one."""
    in_order = kernels.sort_values("start_ns", kind="stable")
    names = in_order["full_name"].cat.codes
    streams = [in_order[key] for key in (*GPU, "stream")]
    return names.groupby(streams).shift(fill_value=-1).reindex(kernels.index)


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
    yield tell(SLOWED_KERNELS, title, text, (part, ratio), gain)

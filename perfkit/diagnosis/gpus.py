"""Rules that compare the GPUs of a run: one is slower, has more work, comes late to collectives, or does nothing.

A GPU here is one of a rank: four processes in one file with a GPU each are compared as four files of a rank each. GPUs
are compared over the time in which all of them were recorded. A GPU that is busy for under a tenth of the time of the
busiest one of its rank is unused: only its own rule tells of it.

A GPU is slower where the same kernels (name, grid and block) last at least a tenth longer there than on the others, and
these kernels are half of its computing time. Otherwise a longer computing time is more work. The shortest time that a
GPU spends in the same number of communication kernels is the transfer; what others spend above it is waiting
(`perfkit.analysis.communication`). What neither a slow GPU, nor uneven work, nor a checkpoint explains of this waiting
is told of the GPU that waits least: it comes late. All thresholds are conventions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pandas as pd

from perfkit.analysis import communication, timeline
from perfkit.analysis.intervals import Window, cut
from perfkit.diagnosis import launching
from perfkit.diagnosis.finding import Figure, Finding, Gain, kept, removing, severity
from perfkit.diagnosis.rules import tell
from perfkit.diagnosis.system import CAUSES
from perfkit.diagnosis.timeline import breakdown, busy, idle_gaps, idle_parts, span_ns, unrecorded
from perfkit.format import number, percent, printable
from perfkit.selection import Selection

GPU = ["rank", "gpu"]
SAME_KERNEL = ["full_name", "grid_blocks", "block_threads"]
NOTABLE, HALF = 0.1, 0.5
UNUSED = 0.1  # of the busy time of the busiest GPU
SLOWER = 0.1  # by how much the same kernels last longer
SAME_COUNT = 0.02  # by how much the numbers of communication kernels may differ, for those that a window cuts off
WAITING = ("other", "kernel_wait")  # causes of idle time under which a wait for another GPU is counted


class Slow(NamedTuple):
    """The GPU that computes longest, where its kernels last longer than the same kernels elsewhere.

    `ratio` is against the median of the other GPUs. `lost_ns` is what the fastest of them would save, out of `span_ns`.
    """

    name: str
    ratio: float
    least_ratio: float
    most_ratio: float
    share_frac: float
    lost_ns: float
    span_ns: int
    longest: str


class Spread(NamedTuple):
    """How much longer GPUs communicate, nothing hiding it, than the one that does so least; shares of the span.

    `first_frac` is the part of `most_frac` that lies in the first communication kernel.
    """

    mean_frac: float
    most_frac: float
    first_frac: float
    rank: int
    gpu: int


def named(rank: int, gpu: int, ranks: int) -> str:
    """Return what a GPU is called, with its rank where there are several.

    >>> named(0, 2, 1), named(1, 0, 4)
    ('GPU 2', 'GPU 0 of rank 1')
    """
    return f"GPU {gpu}" if ranks == 1 else f"GPU {gpu} of rank {rank}"


@kept
def unused(view: Selection) -> pd.DataFrame:
    """Return `timeline.busy` of the GPUs that are hardly busy beside another one of their rank, over one window.

    Added are `most_ns`, the busy time of the busiest of them, and `count`, how many GPUs the rank uses. A GPU that
    another rank keeps busy is not unused.
    """
    found = busy(view)
    start = found.groupby("rank")["start_ns"].transform("min")
    end = (found["start_ns"] + found["span_ns"]).groupby(found["rank"]).transform("max")
    of_rank = found.groupby("rank")["device_busy_ns"]
    found = found.assign(span_ns=end - start, most_ns=of_rank.transform("max"), count=of_rank.transform("size"))
    idle = found["device_busy_ns"] < UNUSED * found["most_ns"]
    return found[idle & ~found["gpu"].isin(found.loc[~idle, "gpu"])]


@kept
def compared(view: Selection) -> pd.DataFrame:
    """Return `timeline.breakdown` of the GPUs that are used, over the time in which all were recorded; maybe none."""
    window = common_window(view)
    if window is None:
        return breakdown(view).iloc[:0]
    parts = timeline.breakdown(view.kernels, view.copies, window=window, others=view.other_kernels)
    return _used(view, parts)


def _used(view: Selection, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of GPUs that compute at least a tenth of what the busiest one of their rank does."""
    parts = busy(view).assign(most_ns=busy(view).groupby("rank")["device_busy_ns"].transform("max"))
    used = parts.loc[parts["device_busy_ns"] >= UNUSED * parts["most_ns"], GPU]
    return frame.merge(used, on=GPU)


def common_window(view: Selection) -> Window | None:
    """Return the window, else the time in which all used GPUs were recorded; None if none, or no common clock."""
    if not view.run.is_on_one_clock:
        return None
    if view.window is not None:
        return view.window
    found = _used(view, busy(view))
    first, last = found["start_ns"].max(), (found["start_ns"] + found["span_ns"]).min()
    return (int(first), int(last)) if first < last else None


def figures(view: Selection) -> Iterator[Figure]:
    """Yield how much longer the slowest rank computes than the mean; nothing for one rank."""
    view = view.framework
    if unrecorded(view):
        return
    by_rank = compared(view).groupby("rank", as_index=False)[["computation_ns"]].sum()
    if len(by_rank) > 1 and by_rank["computation_ns"].sum():
        row = communication.imbalance(by_rank, value="computation_ns").iloc[0]
        definition = (
            f"largest computing time of a rank (rank {int(row['max_rank'])}) over the mean, less 1, in the time that "
            "all ranks recorded"
        )
        value = float(row["imbalance_frac"])
        yield Figure("rank_imbalance_frac", "Imbalance of ranks", value, "1", definition, "communication.imbalance")


@kept
def excess(view: Selection) -> float:
    """Return what the GPU that computes longest does above the mean, as a share of the time; 0 where all are even."""
    view = view.framework
    found = pd.DataFrame() if unrecorded(view) else compared(view)
    if len(found) < 2:
        return 0.0
    longest, mean = _longest(found), found["computation_ns"].mean()
    above = float(longest["computation_ns"] - mean)
    return above / float(longest["span_ns"]) if above >= NOTABLE * mean else 0.0


def _longest(found: pd.DataFrame) -> pd.Series:
    return found.iloc[int(found["computation_ns"].to_numpy().argmax())]


@kept
def slow(view: Selection) -> Slow | None:
    """Return the GPU that computes longest if the same kernels last longer there than on the other GPUs."""
    view = view.framework
    found = pd.DataFrame() if unrecorded(view) else compared(view)
    if len(found) < 2 or not excess(view):
        return None
    of = _longest(found)
    kernels = cut(view.kernels, common_window(view))
    kernels = kernels[kernels["family"].ne("communication") & kernels["grid_blocks"].notna()]
    by = kernels.groupby([*SAME_KERNEL, *GPU], observed=True)["dur_ns"].agg(["count", "sum"])
    means = (by["sum"] / by["count"]).rename("mean").reset_index()
    mean = means.pivot_table(values="mean", index=SAME_KERNEL, columns=GPU, observed=True)
    if (of["rank"], of["gpu"]) not in mean.columns:
        return None
    mine = by.xs((of["rank"], of["gpu"]), level=GPU)
    others = mean.drop(columns=[(of["rank"], of["gpu"])]).loc[mine.index].dropna(how="all")
    mine = mine.loc[others.index]
    usual, least = ((of_others * mine["count"]).sum() for of_others in (others.median(axis=1), others.min(axis=1)))
    total = float(mine["sum"].sum())
    if not usual or total < HALF * of["computation_ns"] or total < (1 + SLOWER) * usual:
        return None
    longest = mine.take((-mine["sum"].to_numpy()).argsort(kind="stable")[:10])
    ratios = longest["sum"] / longest["count"] / others.loc[longest.index].median(axis=1)
    name = named(int(of["rank"]), int(of["gpu"]), found["rank"].nunique())
    inside, span = min(1.0, float(total / of["computation_ns"])), int(of["span_ns"])
    lost = min(total - least, of["computation_ns"] - found["computation_ns"].min())
    first = str(longest.index[0][0])
    return Slow(name, float(total / usual), float(ratios.min()), float(ratios.max()), inside, float(lost), span, first)


@kept
def spread(view: Selection) -> Spread | None:
    """Return how long GPUs wait in communication for the one that waits least; None where they do not communicate."""
    inside = cut(view.kernels, view.window)
    of_gpu = inside[inside["family"] == "communication"].groupby(GPU)
    counts = of_gpu.size()
    if len(counts) < 2 or unrecorded(view) or counts.max() - counts.min() > SAME_COUNT * counts.max():
        return None
    parts = breakdown(view).merge(counts.rename("count").reset_index(), on=GPU)
    share = parts["exposed_communication_ns"] / parts["span_ns"].mean()
    least, most = (parts.iloc[at] for at in (int(share.to_numpy().argmin()), int(share.to_numpy().argmax())))
    above = float((share - share.min()).sum() / len(share) * parts["span_ns"].sum() / span_ns(view))
    first = of_gpu["dur_ns"].first()
    longer = int(first[(most["rank"], most["gpu"])]) - int(first[(least["rank"], least["gpu"])])
    widest = most["exposed_communication_ns"] - least["exposed_communication_ns"]
    part = min(max(float(longer / widest), 0.0), 1.0) if widest else 0.0
    return Spread(above, float(share.max() - share.min()), part, int(least["rank"]), int(least["gpu"]))


def waiting(view: Selection) -> float:
    """Return the share of the time in which GPUs communicate, unhidden, while they wait for another GPU."""
    found = spread(view)
    return max(excess(view) + launching.waiting(view), found.mean_frac if found else 0.0)


def idle_causes(view: Selection) -> dict[str, float]:
    """Return the share of the span, by cause of idle time, that GPUs with less work wait for the one with most."""
    gaps = idle_gaps(view)
    if gaps is None or not excess(view):
        return {}
    found = compared(view.framework)
    shorter = _longest(found)["computation_ns"] - found.set_index(GPU)["computation_ns"]
    idle = idle_parts(gaps)[list(WAITING)].groupby([gaps[key] for key in GPU]).sum()
    told = idle.sum(axis=1).clip(upper=shorter.reindex(idle.index, fill_value=0))
    part = told / idle.sum(axis=1).where(idle.sum(axis=1) > 0)
    return {cause: float((idle[cause] * part).sum() / span_ns(view)) for cause in WAITING}


def findings(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Yield what is told of single GPUs: slower, more work, late, unused."""
    if unrecorded(view):
        return
    found = slow(view)
    if found is not None and found.lost_ns >= NOTABLE * found.span_ns:
        yield _slow(found)
    elif share := excess(view):
        yield _uneven(view, known, share)
    yield from _late(view)
    yield from _unused(view)


def _slow(found: Slow) -> Finding:
    share = found.lost_ns / found.span_ns
    definition = "time of its kernels over the median of the same kernels (name, grid, block) on the other GPUs"
    longer = Figure("slow_gpu_ratio", "Same kernels, slowest GPU", found.ratio, "1", definition, "KERNELS")
    definition = "what the slowest GPU's kernels take above the fastest GPU's same kernels, over the span of that GPU"
    lost = Figure("slow_gpu_lost_frac", "Lost on the slowest GPU", share, "1", definition, "KERNELS")
    text = (
        f"Kernels with the same name, grid and block last {number(found.ratio)} times as long on {found.name} as on "
        f"the other GPUs. These kernels are {percent(found.share_frac)} of its computing time; the longest ones last "
        f"{number(found.least_ratio)} to {number(found.most_ratio)} times as long. The longest is "
        f"“{printable(found.longest, 60)}”. GPUs that meet in collectives wait for the slowest."
    )
    title = f"{found.name} is slower than the others: the same kernels last {number(found.ratio)} times as long"
    gain = removing(share, "at most all GPUs take the time of the fastest, if they wait for each other")
    return tell("slow_gpu", title, severity(share), text, (longer, lost), gain)


def _uneven(view: Selection, known: Mapping[str, Figure], share: float) -> Finding:
    found = compared(view.framework)
    of, ranks = _longest(found), found["rank"].nunique()
    value = float(of["computation_ns"] / found["computation_ns"].mean() - 1)
    uneven = known.get("rank_imbalance_frac")
    whose = "rank"
    if uneven is None or len(found) > ranks:
        whose = "GPU"
        of_gpu = named(int(of["rank"]), int(of["gpu"]), ranks)
        definition = f"largest computing time of a GPU ({of_gpu}) over the mean, less 1, in the time that all recorded"
        uneven = Figure("gpu_imbalance_frac", "Imbalance of GPUs", value, "1", definition, "timeline.breakdown")
    title = f"The slowest {whose} computes {percent(value)} longer than the mean"
    text = f"{uneven.label}: {uneven.definition}. {whose[0].upper()}{whose[1:]}s that meet wait for the slowest."
    gain = removing(share, f"at most all {whose}s take the mean time, if they wait for each other")
    return tell("ranks", title, severity(share), text, (uneven,), gain)


def _late(view: Selection) -> Iterator[Finding]:
    """One GPU comes last to the collectives, though it computes no longer than the others."""
    found = spread(view)
    if found is None or found.mean_frac - excess(view) - launching.waiting(view) < NOTABLE:
        return
    parts = breakdown(view)
    idle = (parts["idle_ns"] + parts["exposed_copy_ns"]) / parts["span_ns"]
    mine = parts["rank"].eq(found.rank) & parts["gpu"].eq(found.gpu)
    more = float(idle[mine].iloc[0] - idle[~mine].min())
    if more < HALF * found.most_frac:  # it is not idle either: what holds it up is not known
        return
    name = named(found.rank, found.gpu, parts["rank"].nunique())
    definition = "communication that nothing hides of the GPU with the most of it, less that of the GPU with the least"
    definition, source = f"{definition}, over the span", "timeline.breakdown"
    wait = Figure("late_gpu_frac", "Waiting for the late GPU", found.most_frac, "1", definition, source)
    definition = f"time in which {name} runs no kernel, over its span"
    own = Figure("late_gpu_idle_frac", "Late GPU idle", float(idle[mine].iloc[0]), "1", definition, source)
    text = (
        f"{name} is idle or copies for {own.text} of the time, {percent(more)} more than another GPU. The others meet "
        f"it in the same communication kernels and wait there.{_why(view, found)}"
    )
    title = f"{name} comes late: another GPU waits for it in communication {wait.text} of the time"
    gain = removing(found.most_frac, "at most the others never wait for it; at least something else holds them up then")
    yield tell("late_gpu", title, severity(found.most_frac), text, (wait, own), gain)


def _why(view: Selection, found: Spread) -> str:
    """Say in which cause of idle time the late GPU spends most."""
    gaps = idle_gaps(view)
    if gaps is None:
        return ""
    of_gpu = idle_parts(gaps)[(gaps["rank"].eq(found.rank) & gaps["gpu"].eq(found.gpu)).to_numpy()].sum()
    return f" It is idle mostly because {CAUSES[str(of_gpu.idxmax())]}." if of_gpu.sum() else ""


def _unused(view: Selection) -> Iterator[Finding]:
    found = unused(view)
    if found.empty:
        return
    ranks, of = view.all_kernels["rank"].nunique(), found.iloc[int(found["most_ns"].to_numpy().argmax())]
    if of["most_ns"] < HALF * of["span_ns"]:
        return
    names = [named(int(rank), int(gpu), ranks) for rank, gpu in found[GPU].itertuples(index=False)]
    listed = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    value = 1 - float(found["device_busy_ns"].sum() / found["span_ns"].sum())
    total = int(found["span_ns"].sum() + busy(view)["span_ns"].max() * (len(busy(view)) - len(found)))
    share = float((found["span_ns"] - found["device_busy_ns"]).sum() / total)
    definition = f"time in which {listed} ran no kernel, copy or memset, over the span of all GPUs of the rank"
    figure = Figure("unused_gpu_idle_frac", "Unused GPUs idle", value, "1", definition, "timeline.busy")
    most = float(of["most_ns"] / of["span_ns"])
    definition = "time in which the busiest GPU of the rank ran a kernel, copy or memset, over the same span"
    beside = Figure("busiest_gpu_frac", "Busiest GPU", most, "1", definition, "timeline.busy")
    text = f"{listed} worked for under a tenth of the time of the busiest GPU, which is busy for {beside.text}."
    verb = "is" if len(names) == 1 else "are"
    title = f"{listed} {verb} idle {figure.text} of the time while another GPU works"
    gain = Gain(1.0, 1 / (1 - share), "at most the work divides evenly over all GPUs", share)
    yield tell("gpu_unused", title, severity(share), text, (figure, beside), gain)

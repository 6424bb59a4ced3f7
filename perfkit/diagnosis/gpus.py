"""Rules that compare the GPUs of a run: one is slower, has more work, comes late to collectives, or does nothing.

A GPU here is one of a rank: four processes in one file with a GPU each are compared as four files
of a rank each. GPUs are compared over the time in which all of them were recorded. A GPU that is
busy for under a tenth of the time of the busiest one of its rank is unused: only its own rule tells
of it. A GPU that the recording lists and on which nothing ran is never used, if the ranks do not
communicate: else another rank, which was not recorded, may use it.

A GPU is slower where the same kernels (name, grid and block) last at least a tenth longer there
than on the others, and these kernels are half of its computing time. Otherwise a longer computing
time is more work. The k-th communication kernel of a name is the same collective on all GPUs, if
each GPU has as many of each name. Its shortest duration is the transfer, and the rest is waiting.
Where GPUs only send and receive, as the stages of a pipeline do, the shortest kernel of a name is
the transfer. A stage has nothing to compute before its data arrive, so nothing hides that wait.
If the numbers differ a little, the totals of the GPUs are compared instead. What neither a slow
GPU, nor uneven work, nor a checkpoint explains of this waiting is told of the GPU that waits least:
it comes late. All thresholds are conventions.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pandas as pd

from perfkit.analysis import communication, timeline
from perfkit.analysis.grouping import largest
from perfkit.analysis.intervals import Window, cut, devices, spans
from perfkit.diagnosis import launching
from perfkit.diagnosis.finding import Figure, Finding, removing
from perfkit.diagnosis.program import communicates_by
from perfkit.diagnosis.recording import of_the_time
from perfkit.diagnosis.replayed import with_others
from perfkit.diagnosis.rules.collectives import (
    LATE_GPU,
    LATE_IN_TURN,
    RANKS,
    RECEIVE_WAIT,
    SLOW_GPU,
)
from perfkit.diagnosis.rules.rule import tell
from perfkit.diagnosis.stored import kept
from perfkit.diagnosis.timeline import (
    breakdown,
    busy,
    idle_gaps,
    idle_of_gpus,
    named,
    span_ns,
    unrecorded,
)
from perfkit.diagnosis.words import words
from perfkit.format import number, percent, printable, several
from perfkit.selection import Selection

GPU = ["rank", "gpu"]
SAME_KERNEL = ["full_name", "grid_blocks", "block_threads"]
NOTABLE = 0.1
HALF = 0.5
UNUSED = 0.1  # of the busy time of the busiest GPU
SLOWER = 0.1  # by how much the same kernels last longer
SAME_COUNT = 0.02  # by how much the numbers of communication kernels may differ, because a window cuts some off
# Of the waiting for the GPU that causes most of it; collectives, and GPUs that are named
# (conventions).
MOST_IN_TURN = 0.6
FEWEST_MET = 5
SHOWN = 4
# Causes of idle time under which a wait for another GPU is counted.
WAITING = (
    "other",
    "kernel_wait",
)


class Slow(NamedTuple):
    """The GPU that computes longest, where its kernels last longer than the same kernels elsewhere.

    `ratio` is against the median of the other GPUs. `lost_ns` is what the fastest of them would
    save, out of `span_ns`.
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
    """How long GPUs wait in communication that nothing hides.

    `mean_frac` is the share of the span of all GPUs. `most_frac` is what one GPU communicates above
    the GPU (`rank`, `gpu`) that does so least, over the span of that one GPU, where it is largest.
    `first_frac` is the part of `most_frac` that lies in the first communication kernel.
    """

    mean_frac: float
    most_frac: float
    first_frac: float
    rank: int
    gpu: int


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
    """Return the time in which all used GPUs were recorded, inside the window if there is one.

    None if none, or no common clock. Ranks with as many steps, and GPUs with as many collectives,
    do the same work: all of it counts, also what one of them begins late. Another GPU that works in
    a part of the window alone, such as in the second of two solves, is compared in that part.
    """
    if not view.run.is_on_one_clock:
        return None
    frames = [view.kernels, view.copies, view.other_kernels]
    index, groups = devices(*frames)
    start, end = spans(frames, groups, len(index), None, own=True)
    found = _used(view, index.assign(first=start, last=end))
    if found.empty:
        return None
    if _meet(view):
        first, last = int(found["first"].min()), int(found["last"].max())
    else:
        first, last = int(found["first"].max()), int(found["last"].min())
    if view.window is not None:
        first = max(first, view.window[0])
        last = min(last, view.window[1])
    return (first, last) if first < last else None


def _meet(view: Selection) -> bool:
    """Tell whether several ranks have as many steps, or several GPUs as many collectives."""
    collectives = cut(view.all_kernels, view.window)
    collectives = collectives[collectives["family"] == "communication"]
    counts = view.steps.value_counts("rank"), collectives.value_counts(GPU)
    return any(len(n) > 1 and n.max() - n.min() <= SAME_COUNT * n.max() for n in counts)


def figures(view: Selection) -> Iterator[Figure]:
    """Yield how much longer the slowest rank computes than the mean; nothing for one rank."""
    view = view.framework
    if unrecorded(view):
        return
    by_rank = compared(view).groupby("rank")["computation_ns"].sum()
    if len(by_rank) > 1 and by_rank.sum():
        definition = (
            f"excess of the longest computing time (rank {by_rank.idxmax()}) over the average, in the time that "
            "all ranks recorded"
        )
        yield Figure(
            "rank_imbalance_frac",
            "Imbalance of ranks",
            communication.imbalance(by_rank),
            "1",
            definition,
            "communication.imbalance",
        )


@kept
def excess(view: Selection) -> float:
    """Return what the GPU that computes longest does above the mean, as a share of the time.

    0 where all are even.
    """
    view = view.framework
    found = pd.DataFrame() if unrecorded(view) else compared(view)
    if len(found) < 2:
        return 0.0
    longest = _longest(found)
    mean = found["computation_ns"].mean()
    above = float(longest["computation_ns"] - mean)
    return above / float(busy(view)["span_ns"].max()) if above >= NOTABLE * mean else 0.0


def _longest(found: pd.DataFrame) -> pd.Series:
    return largest(found, "computation_ns")


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
    usual, least = (
        (of_others * mine["count"]).sum()
        for of_others in (others.median(axis=1), others.min(axis=1))
    )
    total = float(mine["sum"].sum())
    if not usual or total < HALF * of["computation_ns"] or total < (1 + SLOWER) * usual:
        return None
    longest = mine.take((-mine["sum"].to_numpy()).argsort(kind="stable")[:10])
    ratios = longest["sum"] / longest["count"] / others.loc[longest.index].median(axis=1)
    name = named(of, found)
    inside = min(1.0, float(total / of["computation_ns"]))
    span = int(of["span_ns"])
    lost = min(total - least, of["computation_ns"] - found["computation_ns"].min())
    first = str(longest.index[0][0])
    return Slow(
        name,
        float(total / usual),
        float(ratios.min()),
        float(ratios.max()),
        inside,
        float(lost),
        span,
        first,
    )


@kept
def spread(view: Selection) -> Spread | None:
    """Return how long GPUs wait in communication for the one that waits least.

    None where they do not communicate.
    """
    inside = cut(view.kernels, view.window)
    of_gpu = inside.loc[inside["family"] == "communication", [*GPU, "dur_ns"]].groupby(GPU)
    counts = of_gpu.size()
    if (
        len(counts) < 2
        or unrecorded(view)
        or counts.max() - counts.min() > SAME_COUNT * counts.max()
    ):
        return None
    parts = breakdown(view).merge(counts.rename("count").reset_index(), on=GPU)
    alone = parts["exposed_communication_ns"]
    above = alone - alone.min()
    waited = above
    if (waits := _waits(view)) is not None:
        of_waits = timeline.breakdown(
            waits, view.copies, window=view.measured, others=view.other_kernels
        )
        waited = of_waits["exposed_communication_ns"]
    least, most = (
        parts.iloc[int(at)]
        for at in (alone.to_numpy().argmin(), (above / parts["span_ns"]).argmax())
    )
    first = of_gpu["dur_ns"].first()
    longer = int(first[(most["rank"], most["gpu"])]) - int(first[(least["rank"], least["gpu"])])
    widest = most["exposed_communication_ns"] - least["exposed_communication_ns"]
    part = min(max(float(longer / widest), 0.0), 1.0) if widest else 0.0
    mean = float(waited.sum() / span_ns(view))
    share = float(widest / most["span_ns"])
    return Spread(mean, share, part, int(least["rank"]), int(least["gpu"]))


def _waits(view: Selection) -> pd.DataFrame | None:
    """Return the kernels, each collective only as long as its waiting.

    None if GPUs have different ones.
    """
    kernels = view.kernels
    communicates = view.kernels["family"].eq("communication")
    each = kernels.loc[communicates, [*GPU, "full_name", "dur_ns"]]
    of_gpu = each.groupby([*GPU, "full_name"], observed=True)
    of_name = of_gpu.size().groupby(level="full_name", observed=True)
    if of_name.nunique().gt(1).any() or of_name.size().ne(each.groupby(GPU).ngroups).any():
        return None
    each = each.assign(place=of_gpu.cumcount())
    transfer = each.groupby(["full_name", "place"], observed=True)["dur_ns"].transform("min")
    dur = kernels["dur_ns"].to_numpy().copy()
    dur[communicates.to_numpy()] -= transfer.fillna(0).to_numpy("int64")
    waits = kernels.copy(deep=False)
    waits["dur_ns"] = dur
    return waits


def waiting(view: Selection) -> float:
    """Return the share of the time in which GPUs communicate, unhidden, while they wait for another GPU.

    Only what another finding tells of counts.
    """
    told = excess(view) + launching.waiting(view)
    late = _of_late(view)
    found = spread(view)
    if not late:
        return told
    if late[0].rule == RECEIVE_WAIT.name:
        return max(told, receiving(view))
    return max(told, found.mean_frac if found else 0.0)


@kept
def receiving(view: Selection) -> float:
    """Return the share of the time in which GPUs wait, unhidden, for what another GPU sends.

    That is the time in sends and receives beyond the shortest of the same name; 0 where GPUs
    communicate by anything else.
    """
    kernels = view.kernels
    communicates = kernels["family"].eq("communication").to_numpy()
    sent = kernels[communicates]
    if communicates_by(view) != "send" or unrecorded(view):
        return 0.0
    shortest = sent.groupby("full_name", observed=True)["dur_ns"].transform("min")
    dur = kernels["dur_ns"].to_numpy().copy()
    dur[communicates] -= shortest.to_numpy()
    waits = kernels.assign(dur_ns=dur)
    window = view.measured
    parts = timeline.breakdown(waits, view.copies, window=window, others=view.other_kernels)
    return float(parts["exposed_communication_ns"].sum() / span_ns(view))


def idle_causes(view: Selection) -> dict[str, float]:
    """Return the share of the span, by cause of idle time, that GPUs with less work wait for the one with most."""
    if idle_gaps(view) is None or not excess(view):
        return {}
    found = compared(view.framework)
    shorter = _longest(found)["computation_ns"] - found.set_index(GPU)["computation_ns"]
    idle = idle_of_gpus(view)[list(WAITING)]
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
    yield from _of_late(view)


@kept
def _of_late(view: Selection) -> list[Finding]:
    """Return the finding on one GPU that is late always, on GPUs late in turn, or on GPUs that wait for sends."""
    if unrecorded(view):
        return []
    return [*_late(view)] or [*_in_turn(view)] or [*_of_stages(view)]


def _slow(found: Slow) -> Finding:
    share = found.lost_ns / found.span_ns
    longer = Figure(
        "slow_gpu_ratio",
        "Same kernels, slowest GPU",
        found.ratio,
        "1",
        (
            "ratio of its kernels' time to the median of the same kernels (name, grid, block) on the "
            "other GPUs"
        ),
        "KERNELS",
    )
    lost = Figure(
        "slow_gpu_lost_frac",
        "Lost on the slowest GPU",
        share,
        "1",
        (
            "share of the slowest GPU's span: extra time of its kernels over the same kernels on the "
            "fastest GPU"
        ),
        "KERNELS",
    )
    ratios = number(found.least_ratio), number(found.most_ratio)
    reach = " to ".join(dict.fromkeys(ratios))
    text = (
        f"Kernels with the same name, grid and block take {number(found.ratio)} times as long on {found.name} as on "
        f"the other GPUs. These kernels are {percent(found.share_frac)} of its computing time; the longest ones take "
        f"{reach} times as long. The longest is "
        f"“{printable(found.longest, 60)}”. In collectives, all GPUs wait for the slowest."
    )
    title = (
        f"{found.name} is slower than the others: the same kernels last {number(found.ratio)} times "
        "as long"
    )
    gain = removing(
        share, "best case: all GPUs take the time of the fastest, if they wait for each other"
    )
    return tell(SLOW_GPU, title, text, (longer, lost), gain)


def _uneven(view: Selection, known: Mapping[str, Figure], share: float) -> Finding:
    found = compared(view.framework)
    of = _longest(found)
    ranks = found["rank"].nunique()
    value = float(of["computation_ns"] / found["computation_ns"].mean() - 1)
    uneven = known.get("rank_imbalance_frac")
    whose = "rank"
    if uneven is None or len(found) > ranks:
        whose = "GPU"
        of_gpu = named(of, found)
        uneven = Figure(
            "gpu_imbalance_frac",
            "Imbalance of GPUs",
            value,
            "1",
            (
                f"excess of the longest computing time ({of_gpu}) over the average, in the time that "
                "all GPUs recorded"
            ),
            "timeline.breakdown",
        )
    title = f"The slowest {whose} computes {percent(value)} longer than the average"
    meet = view.all_kernels["family"].eq("communication").any()
    waits = f" All {whose}s wait for the slowest in collectives." if meet else ""
    text = f"{uneven.label}: {uneven.definition}.{waits}"
    gain = removing(
        share, f"best case: all {whose}s take the average time, if they wait for each other"
    )
    return tell(RANKS, title, text, (uneven,), gain)


def _late(view: Selection) -> Iterator[Finding]:
    """One GPU comes last to the collectives, though it computes no longer than the others."""
    found = spread(view)
    if (
        found is None
        or found.mean_frac - excess(view) - launching.waiting(view) < NOTABLE
        or found.most_frac < NOTABLE
    ):
        return
    parts = breakdown(view)
    idle = (parts["idle_ns"] + parts["exposed_copy_ns"]) / parts["span_ns"]
    mine = parts["rank"].eq(found.rank) & parts["gpu"].eq(found.gpu)
    more = float(idle[mine].iloc[0] - idle[~mine].min())
    if more < HALF * found.most_frac:  # it is not idle either: what holds it up is not known
        return
    name = named(parts[mine].iloc[0], parts)
    definition = "difference in exposed communication between the GPUs with the most and the least"
    definition = f"share of the span of the GPU with the most: {definition}"
    source = "timeline.breakdown"
    wait = Figure(
        "late_gpu_frac", "Waiting for the late GPU", found.most_frac, "1", definition, source
    )
    own = Figure(
        "late_gpu_idle_frac",
        "Late GPU idle",
        float(idle[mine].iloc[0]),
        "1",
        f"share of the span of {name} during which it runs no kernel",
        source,
    )
    text = (
        f"{name} is idle or copies for {own.text} of the time, {percent(more)} more than another GPU. The others meet "
        f"it in the same communication kernels and wait there.{_why(view, found)}"
    )
    title = f"{name} comes late to collectives: another GPU waits for it {wait.text} {of_the_time(view)}"
    gain = removing(
        found.most_frac,
        "best case: the others never wait for it",
        worst="worst case: they then wait for something else",
    )
    yield tell(LATE_GPU, title, text, (wait, own), gain)


def _of_stages(view: Selection) -> Iterator[Finding]:
    """GPUs wait for what others send: the bubble of a pipeline."""
    share = receiving(view) - excess(view) - launching.waiting(view)
    if share < NOTABLE:
        return
    definition = (
        "share of the span of all GPUs: time in sends and receives beyond the shortest of the same "
        "name, which nothing hides"
    )
    label = "Waiting for sends"
    wait = Figure("receive_wait_frac", label, share, "1", definition, "communication.overlap")
    text = (
        "These GPUs exchange data by sends and receives alone, as the stages of a pipeline do. A "
        "receive lasts until the other GPU has computed its part and sent it. A stage of a pipeline "
        "has nothing to compute before its data arrive, so no computation hides that wait."
    )
    gain = removing(
        share,
        "best case: each stage has a micro-batch to compute at all times, and none waits",
        worst="worst case: none, because each part needs the one before it",
    )
    several = len(breakdown(view)) > 1
    subject = "GPUs wait" if several else "The GPU waits"
    title = f"{subject} for what another GPU sends {wait.text} {of_the_time(view)}"
    yield tell(RECEIVE_WAIT, title, text, (wait,), gain, is_mean=several)


def _in_turn(view: Selection) -> Iterator[Finding]:
    """Another GPU comes last to each collective, so that none of them is late on the whole."""
    found = spread(view)
    last = latest(view)
    if found is None or last.empty or unrecorded(view):
        return
    share = found.mean_frac - excess(view) - launching.waiting(view)
    most = float(last["wait_ns"].max() / last["wait_ns"].sum())
    if share < NOTABLE or most > MOST_IN_TURN or last["count"].sum() < FEWEST_MET:
        return
    definition = (
        "share of the span of all GPUs: time in communication kernels beyond the shortest of the "
        "same"
    )
    definition += " collective, which nothing hides"
    source = "communication.overlap"
    wait = Figure("in_turn_frac", "Waiting in turn", share, "1", definition, source)
    alike = Figure(
        "in_turn_most_frac",
        "For one GPU",
        most,
        "1",
        "share of this waiting for the GPU that causes most of it",
        source,
    )
    each = [
        f"{named(row, view.all_kernels)} to {int(row['count']):,}"
        for _, row in last.nlargest(SHOWN, "count").iterrows()
    ]
    text = (
        "The GPU that the others wait for changes from collective to collective: of "
        f"{int(last['count'].sum()):,}, "
    )
    text += (
        f"{several(each, SHOWN)} came last. No GPU causes more than {alike.text} of the waiting."
    )
    title = (
        f"GPUs wait for each other in turn {wait.text} {of_the_time(view)}: their work is uneven in each "
        "step"
    )
    gain = removing(
        share, "best case: each GPU gets the same work before each collective, and none waits"
    )
    # What is computed beside the waits then begins earlier, too.
    gain = with_others(gain, {"collective": float(last["wait_ns"].sum()) / span_ns(view) - share})
    yield tell(LATE_IN_TURN, title, text, (wait, alike), gain)


@kept
def latest(view: Selection) -> pd.DataFrame:
    """Return how often each GPU came last to a collective and what the others waited for it: count, wait_ns.

    The shortest of the kernels of one collective belongs to the GPU that came last. Empty where
    GPUs have different collectives.
    """
    waits = _waits(view)
    if waits is None:
        return pd.DataFrame(columns=[*GPU, "count", "wait_ns"])
    communicates = waits["family"].eq("communication")
    each = waits.loc[communicates, [*GPU, "full_name", "start_ns", "dur_ns"]]
    each = cut(each.rename(columns={"dur_ns": "wait_ns"}).assign(dur_ns=1), view.window)
    place = each.groupby([*GPU, "full_name"], observed=True).cumcount()
    each = each.assign(place=place).sort_values(["full_name", "place", "wait_ns"], kind="stable")
    of = each.groupby(["full_name", "place"], observed=True)
    of_all = of["wait_ns"].sum().reset_index(drop=True)
    last = of[GPU].first().reset_index(drop=True).assign(count=1, wait_ns=of_all)
    last = last[last["wait_ns"] > 0]
    return last.groupby(GPU, as_index=False)[["count", "wait_ns"]].sum()


def _why(view: Selection, found: Spread) -> str:
    if idle_gaps(view) is None or (found.rank, found.gpu) not in idle_of_gpus(view).index:
        return ""
    of_gpu = idle_of_gpus(view).loc[[(found.rank, found.gpu)]].sum()
    return (
        f" {words('causes')[str(of_gpu.idxmax())]} it idle for the largest part of that."
        if of_gpu.sum()
        else ""
    )

"""What the timeline of a run shows: busy and idle time, steps, gaps and their owners.

Without a window the span of a rank's GPUs lasts from the first to the last operation of any of
them, or as long as the marked steps where these last clearly longer (`Selection.measured`).
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis import causes as analysis_causes
from perfkit.analysis import (
    completeness,
    gaps,
    owners,
    steps,
    timeline,
)
from perfkit.analysis.intervals import ends
from perfkit.diagnosis import little, phases, recording
from perfkit.diagnosis.doubt import Kind, spans
from perfkit.diagnosis.finding import Figure
from perfkit.diagnosis.recording import of_the_time
from perfkit.diagnosis.stored import kept
from perfkit.format import percent
from perfkit.selection import Selection
from perfkit.tables import RANGES

APART = 0.1  # shares of GPUs that differ by this much are not averaged (convention)
# what gets faster where they are less than this share of the span
STEADY = "the steady steps"
MOST_STEADY = 0.9
AHEAD = 1.1  # GPU time of a step over its CPU time, from which on the CPU runs ahead (convention)
HALF = 0.5  # of the steps: the GPU's step is known if so many launch kernels (convention)


def too_few(view: Selection) -> str:
    """Return how little work of the GPU the recording holds, if that is too little to judge a program; or nothing."""
    return next(
        (doubt.seen for doubt in recording.doubts(view) if doubt.kind is Kind.TOO_LITTLE), ""
    )


def doubted(view: Selection, figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """Return figures; where a tenth of the time or more is unknown, each that rests on times has a doubt."""
    why = [doubt.seen for doubt in recording.doubts(view) if doubt.spoils_figures]
    if not why:
        return dict(figures)
    of_times = {id for id, f in figures.items() if f.is_of_kernel_times}
    of_times.discard("unknown_frac")
    return {id: replace(f, doubt=why[0]) if id in of_times else f for id, f in figures.items()}


def ahead_ns(view: Selection, phase: pd.DataFrame) -> float:
    """Return what the GPU takes for the median step of a phase (STEPS), ns, where the CPU runs ahead; else NaN.

    The CPU runs ahead if the GPU takes clearly longer, in at least half of the steps.
    """
    if phase.empty or phase["how"].eq("kernel sequence").any() or view.api_calls.empty:
        return math.nan
    found = detected(view)
    lasted = steps.on_gpu(found, view.all_kernels, view.api_calls)
    of_gpu = without_pauses(view, found, lasted)[found["start_ns"].isin(phase["start_ns"])]
    if not of_gpu.notna().mean() >= HALF:
        return math.nan
    median = float(of_gpu.median())
    return median if median > AHEAD * phase["dur_ns"].median() else math.nan


def without_pauses(view: Selection, found: pd.DataFrame, lasted: pd.Series) -> pd.Series:
    """Return how long steps last (`lasted`, ns) without the pauses that happen once and lie in them."""
    once = phases.pauses(view).drop_duplicates(["rank", "start_ns"])
    start, end = ends(found)
    rest = lasted.copy()
    for rank, first, dur in once[["rank", "start_ns", "dur_ns"]].itertuples(index=False, name=None):
        meets = (found["rank"] == rank).to_numpy() & (start < first + dur) & (end > first)
        rest -= dur * (meets & (rest >= dur))
    return rest


def named(place: pd.Series, among: pd.DataFrame) -> str:
    """Return what the GPU of a row is called, with its rank where a table has several.

    >>> [named(pd.Series({"rank": 1, "gpu": 2}), pd.DataFrame({"rank": r})) for r in ([1], [0, 1])]
    ['GPU 2', 'GPU 2 of rank 1']
    """
    gpu = f"GPU {int(place['gpu'])}"
    return f"{gpu} of rank {int(place['rank'])}" if len(among["rank"].unique()) > 1 else gpu


def extremes(gpus: pd.DataFrame, values: pd.Series) -> tuple[tuple[str, float], tuple[str, float]]:
    """Return the name and the value of the GPU with the least, and of that with the most."""
    numbers = values.to_numpy()
    rows = (gpus.iloc[at] for at in (int(numbers.argmin()), int(numbers.argmax())))
    names = [named(row, gpus) for row in rows]
    return (names[0], float(numbers.min())), (names[1], float(numbers.max()))


def among(gpus: pd.DataFrame, shares: pd.Series) -> str:
    """Return from which to which share the GPUs reach, as the end of a definition.

    Empty for one GPU.
    """
    if len(gpus) < 2:
        return ""
    (least_of, least), (most_of, most) = extremes(gpus, shares)
    if percent(least) == percent(most):
        return f"; average of {len(gpus)} GPUs"
    return (
        f"; average of {len(gpus)} GPUs, from {percent(least)} ({least_of}) to {percent(most)} "
        f"({most_of})"
    )


def on_gpus(view: Selection, share: float, gpus: pd.DataFrame, shares: pd.Series) -> str:
    """Return a share of the time in words, of several GPUs from which to which, or the most if far apart."""
    whole = of_the_time(view)
    if len(gpus) < 2:
        return f"{percent(share)} {whole}"
    (least_of, least), (most_of, most) = extremes(gpus, shares)
    if most - least < APART:
        reach = " to ".join(dict.fromkeys((percent(least), percent(most))))
        return f"{reach} {whole} on {len(gpus)} GPUs"
    return f"{percent(most)} {whole} on {most_of} ({least_of}: {percent(least)})"


def whose_idle(view: Selection, cause: str, share: float, *, verb: str = "") -> str:
    """Return which GPU is idle for a cause and how long, as the end of a sentence.

    Of several GPUs it is the idlest one, or all of them where they agree. `share` is that of all
    GPUs that no other finding tells of, `verb` what stands before "idle".
    """
    gpus = busy(view)
    whole = of_the_time(view)
    if len(gpus) < 2:
        return f"the GPU{verb} idle {percent(share)} {whole}"
    every = idle_shares(view, cause)
    average = float(np.average(every, weights=gpus["span_ns"]))
    if percent(share) != percent(average):  # other findings tell of a part
        return f"{len(gpus)} GPUs{verb} idle {percent(share)} {whole} on average"
    (least_of, least), (most_of, most) = extremes(gpus, every)
    if most - least < APART:
        reach = " to ".join(dict.fromkeys((percent(least), percent(most))))
        return f"each of {len(gpus)} GPUs{verb} idle {reach} {whole}"
    return f"{most_of}{verb} idle {percent(most)} {whole} ({least_of}: {percent(least)})"


def summed(gpus: pd.DataFrame) -> str:
    """Say that a time is a sum over GPUs, as the end of a definition; empty for one GPU."""
    return f", summed over {len(gpus)} GPUs" if len(gpus) > 1 else ""


@kept
def left_out(view: Selection) -> pd.DataFrame:
    """Return the stretches of each GPU that no figure counts: what is unknown, and pauses that happen once."""
    once = completeness.within(phases.pauses(view), spans(view))
    parts = [part for part in (recording.unknown(view), once) if len(part)]
    if len(parts) < 2:
        return parts[0] if parts else completeness.STRETCHES.empty()
    return completeness.within(pd.concat(parts, ignore_index=True), spans(view))


@kept
def busy(view: Selection) -> pd.DataFrame:
    """Return `timeline.busy` of a selection.

    `span_ns` and the shares are those of the known time.
    """
    unknown = left_out(view)
    operations = view.kernels, view.copies
    return timeline.busy(
        *operations, window=view.measured, others=view.other_kernels, unknown=unknown
    )


def span_ns(view: Selection) -> int:
    """Return the known GPU time that is looked at, ns, of all GPUs.

    It is the window, or lasts from the first to the last operation, without what is unknown.
    """
    return int(busy(view)["span_ns"].sum())


@kept
def breakdown(view: Selection) -> pd.DataFrame:
    """Return `timeline.breakdown` of a selection; `span_ns` is the known time."""
    unknown = left_out(view)
    operations = view.kernels, view.copies
    return timeline.breakdown(
        *operations, window=view.measured, others=view.other_kernels, unknown=unknown
    )


def unrecorded(view: Selection) -> str:
    """Return why it is not known when the GPU worked, empty if it is."""
    unseen = [doubt.seen for doubt in recording.doubts(view) if doubt.kind is Kind.UNSEEN]
    return f"{unseen[0][0].lower()}{unseen[0][1:]}" if unseen else ""


def is_judged(view: Selection) -> bool:
    """Tell whether rules may judge the time between the first and the last operation of the GPUs."""
    return not unrecorded(view) and not little.start_up_only(view)


@kept
def detected(view: Selection) -> pd.DataFrame:
    """Return the steps of a selection."""
    return view.steps


@kept
def of_steps(view: Selection) -> Selection | None:
    """Return the view cut to its steady steps.

    None where there are none, or hardly anything else was recorded.
    """
    found = steps.steady(detected(view))
    seen = busy(view)
    if found.empty:
        return None
    first = int(found["start_ns"].min())
    last = int((found["start_ns"] + found["dur_ns"]).max())
    if last - first >= MOST_STEADY * (seen["end_ns"] - seen["start_ns"]).max():
        return None
    return Selection(view.run, view.ranks, view.gpus, (first, last), view.pattern, view.families)


@kept
def explained(view: Selection) -> analysis_causes.Determinable:
    """Return whether the causes of idle time are known, and why not."""
    return analysis_causes.determinable(view.all_kernels, view.copies, view.api_calls)


def idle_gaps(view: Selection) -> pd.DataFrame | None:
    """Return `every_gap` of a selection; None where the causes are unknown."""
    return every_gap(view) if explained(view).yes else None


@kept
def every_gap(view: Selection) -> pd.DataFrame:
    """Return `gaps.idle_gaps` of a selection; what is left out is no gap."""
    operations = (view.all_kernels, view.copies, view.api_calls)
    ranges = named_work(view)
    found = gaps.idle_gaps(
        *operations,
        window=view.measured,
        ranges=ranges,
        os_calls=view.os_calls,
        stepped=view.stepped,
    )
    return completeness.cut_gaps(found, left_out(view))


@kept
def named_work(view: Selection) -> pd.DataFrame:
    """Return RANGES with the Python functions that load data, where no range says when that happens."""
    loads = analysis_causes.DATA_LOADING.search
    if view.framework is not view or analysis_causes.where(view.ranges["name"], loads).any():
        return view.ranges
    loaders = view.python_calls[analysis_causes.where(view.python_calls["name"], loads)]
    if loaders.empty:
        return view.ranges
    columns = ["rank", "process", "thread", "start_ns", "dur_ns", "name", "depth"]
    named_by_stacks = loaders[columns].assign(domain="", kind="push_pop")
    given = [view.ranges] if len(view.ranges) else []  # pandas warns where one is empty
    return RANGES.make(pd.concat([*given, named_by_stacks]).astype({"name": object}))


@kept
def owned(view: Selection) -> pd.DataFrame:
    """Return `owners.owned` of `every_gap`: who owns each moment of idle time."""
    return owners_of(view, every_gap(view))


def owners_of(view: Selection, found: pd.DataFrame) -> pd.DataFrame:
    """Return `owners.owned` of gaps that were found in a selection."""
    return owners.owned(
        found,
        api_calls=view.api_calls,
        ranges=view.ranges,
        os_calls=view.os_calls,
        stacks=view.stacks,
        frames=view.frames,
        schedule=view.schedule,
        overhead=view.overhead,
        python_calls=view.python_calls if view.framework is view else None,
    )


def idle_by_cause(view: Selection) -> pd.DataFrame:
    """Return `gaps.idle_by_cause` of the idle time, empty where the recording cannot tell causes."""
    found = None if unrecorded(view) else idle_gaps(view)
    return gaps.idle_by_cause(gaps.GAPS.empty() if found is None else found)


def idle_shares(view: Selection, cause: str) -> pd.Series:
    """Return the share of each GPU's span that is idle for a cause, in the order of `busy`.

    All of it for none.
    """
    gpus = busy(view)
    if not cause:
        return (gpus["span_ns"] - gpus["device_busy_ns"]) / gpus["span_ns"]
    idle = idle_of_gpus(view)[cause].reindex(
        pd.MultiIndex.from_frame(gpus[["rank", "gpu"]]), fill_value=0
    )
    return pd.Series(idle.to_numpy() / gpus["span_ns"].to_numpy(), gpus.index)


def follows(gaps: pd.DataFrame, rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Tell which gaps begin where one of these operations of their GPU ends."""
    return _places(gaps, gaps["start_ns"]).isin(_places(rows, rows["start_ns"] + rows["dur_ns"]))


def precedes(gaps: pd.DataFrame, rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Tell which gaps end where one of these operations of their GPU begins."""
    return _places(gaps, gaps["start_ns"] + gaps["dur_ns"]).isin(_places(rows, rows["start_ns"]))


def _places(rows: pd.DataFrame, moment: pd.Series) -> pd.MultiIndex:
    return pd.MultiIndex.from_arrays([rows["rank"], rows["gpu"], moment])


def idle_parts(found: pd.DataFrame) -> pd.DataFrame:
    """Return what each cause has of each gap, ns: a column per detail of a wait for the host, and per other cause."""
    parts = {part.removesuffix("_ns"): found[part] for part in analysis_causes.PARTS}
    whole = {
        cause: found["dur_ns"].where(found["cause"].eq(cause), 0)
        for cause in ("unattributed", "edge")
    }
    return pd.DataFrame({**parts, **whole}, copy=False)


@kept
def idle_of_gpus(view: Selection) -> pd.DataFrame:
    """Return the sums of `idle_parts`, ns, of each rank and gpu with gaps.

    The causes must be known.
    """
    found = idle_gaps(view)
    assert found is not None
    return idle_parts(found).groupby([found["rank"], found["gpu"]]).sum()


def sampled(view: Selection) -> pd.DataFrame:
    """Return `timeline.samples_mean` over the window, or over the time from the first to the last operation.

    The other figures speak of that time too; readings before the program used the GPU would dilute
    it.
    """
    window = view.window
    found = busy(view)
    if window is None and len(found):
        window = int(found["start_ns"].min()), int(found["end_ns"].max()) + 1
    return timeline.samples_mean(view.samples, window=window)

"""Can the recording be believed? The first question of a diagnosis: what is lost, broken, distorted
or of another time.

A `Doubt` says what was seen, how many rows it concerns, which stretches of which GPU it makes
unknown, and what to do. An unknown stretch is neither busy nor idle: shares are shares of the known
time (`unknown`), and no verdict rests on it. A doubt that touches a tenth of the time or of the
launches stands first in the verdict (`leading`).
"""

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from perfkit.analysis import clocks, completeness, host, steps, timeline
from perfkit.analysis.causes import LACKING_LIMIT_FRAC
from perfkit.analysis.ranks import reach
from perfkit.diagnosis import little, lost, profiling
from perfkit.diagnosis.doubt import (
    DOUBTS,
    NOTABLE,
    Doubt,
    Kind,
    is_chosen,
    is_elsewhere,
    of_ranks,
    operations,
    spans,
    touched,
)
from perfkit.diagnosis.stored import kept
from perfkit.format import duration, percent, printable
from perfkit.impossible import Reason
from perfkit.profile import Missing
from perfkit.run import Recorded, Run
from perfkit.selection import Selection, covers, select

__all__ = ["DOUBTS", "NOTABLE", "Doubt", "Kind", "doubts", "leading", "missing", "notes"]
__all__ += [
    "holds_no_gpu_work",
    "is_mostly_unknown",
    "table",
    "unknown",
    "unknown_frac",
]

HALF = 0.5  # of the time: if more is unknown, the rest tells no cause (convention)
NOT_KNOWN = "When the GPU worked is not known, so perfkit tells no idle time"
OF_GRAPHS = (
    "Record every node of the graphs, with a current profiler, or the program without graphs"
)
TOGETHER = "Record all ranks at the same time"
GOES_ON = ("RANGES", "OPS", "PYTHON_CALLS", "API_CALLS", "OS_CALLS")  # what a program does
LONGEST_NAME = 60  # characters of what goes on
BROKEN_TABLES = {
    "KERNELS": "kernels",
    "COPIES": "copies",
    "API_CALLS": "CUDA calls",
    "OPS": "operators",
}


def doubts(run: Run | Selection) -> list[Doubt]:
    """Return why parts of a run, or of a selection of one, cannot be believed; the one that touches
    most first.
    """
    return list(_doubts(run if isinstance(run, Selection) else select(run)))


@kept
def _doubts(view: Selection) -> list[Doubt]:
    found = [
        *little.doubts(view),
        *_unseen(view),
        *lost.doubts(view),
        *_empty_steps(view),
        *_beyond_work(view),
        *_queued_before(view),
        *_ends_early(view),
        *_broken_times(view),
        *_not_recorded(view),
        *profiling.messages(view),
        *profiling.collector(view),
        *profiling.distorted(view),
        *_elsewhere(view),
        *_clocks(view),
    ]
    return sorted(found, key=lambda doubt: -doubt.touched_frac)


@kept
def unknown(view: Selection) -> pd.DataFrame:
    """Return when it is unknown whether the GPUs worked: disjoint STRETCHES within the time that is
    looked at.

    Columns rank, gpu, start_ns and dur_ns. The time in which the profiler itself worked while a GPU
    was idle is among them: the program would have done something else.
    """
    every = [doubt.stretches for doubt in doubts(view) if len(doubt.stretches)]
    if not every:
        return completeness.STRETCHES.empty()
    return completeness.within(pd.concat(every, ignore_index=True), spans(view))


def unknown_frac(view: Selection) -> float:
    """Return the share of the GPUs' time that is unknown, 0 without GPUs."""
    whole = int(spans(view)["span_ns"].sum())
    return completeness.length_ns(unknown(view)) / whole if whole else 0.0


def of_the_time(view: Selection) -> str:
    """Return what shares of the GPUs' time are shares of: of what is known, where a tenth of it or more is not."""
    return "of the known time" if unknown_frac(view) >= NOTABLE else "of the time"


def leading(view: Selection) -> list[Doubt]:
    """Return the doubts in the verdict: each touches a tenth of the time or of the launches."""
    return [doubt for doubt in doubts(view) if doubt.is_leading]


def holds_no_gpu_work(view: Selection) -> bool:
    """Tell whether a run holds no operation, call path or counter of a GPU."""
    tables = (view.run.kernels, view.run.copies, view.run.calltree, view.launches)
    return all(frame.empty for frame in tables)


def missing(run: Run | Selection) -> tuple[Missing, ...]:
    """Return what no profile of a run recorded; where it was recorded and lost, with what to do
    about the loss.
    """
    view = run if isinstance(run, Selection) else select(run)
    first = next(iter(leading(view)), None)
    if first is None or not holds_no_gpu_work(view):
        return view.run.missing
    lost = ("KERNELS", "COPIES", "API_CALLS")
    return tuple(
        replace(one, record=first.remedy) if one.table in lost else one for one in view.run.missing
    )


def is_mostly_unknown(view: Selection) -> bool:
    """Tell whether less than half of the GPUs' time is known: no cause is certain then."""
    return unknown_frac(view) >= HALF


def table(run: Run | Selection) -> pd.DataFrame:
    """Return the doubts as a table: DOUBTS, the one that touches most first."""
    rows = [
        {
            "kind": doubt.kind.value,
            "seen": doubt.seen,
            "count": doubt.count,
            "unit": doubt.unit,
            "touched_frac": doubt.touched_frac,
            "unknown_ns": completeness.length_ns(doubt.stretches),
            "remedy": doubt.remedy,
        }
        for doubt in doubts(run)
    ]
    return DOUBTS.make(pd.DataFrame(rows, columns=DOUBTS.column_names))


def notes(run: Run | Selection) -> tuple[str, ...]:
    """Return the notes on the files of a run, then those on its doubts that the files' notes do not
    give.
    """
    view = run if isinstance(run, Selection) else select(run)
    return (
        *view.run.notes,
        *(doubt.text for doubt in doubts(view) if doubt.kind is not Kind.BROKEN_TIMES),
    )


def _unseen(view: Selection) -> Iterator[Doubt]:
    """Yield why it is not known when the GPU worked: the timeline does not cover the window, or
    lacks operations of graphs.

    A graph launch does not say on which GPU: all GPUs of the run are looked at, whichever were
    chosen.
    """
    run = view.run
    if view.window is not None and not covers(_timelines(run), view.window):
        seen = "No timeline of the GPU was recorded during all of the window"
        remedy = "Choose a window in which the GPU was recorded"
        yield Doubt(Kind.UNSEEN, seen, 1, 1, "windows", NOT_KNOWN, remedy, 1.0)
        return
    found = host.recorded(run.kernels, run.copies, run.api_calls, window=view.window)
    launched, empty, idle = found[["launch_count", "empty_count", "idle_ns"]].sum()
    seen = ""
    if empty > LACKING_LIMIT_FRAC * launched:
        seen = f"{empty:,} of {launched:,} graph launches have no operation in the recording"
    elif idle:
        span = timeline.busy(run.kernels, run.copies, window=view.window)["span_ns"].sum()
        if idle > NOTABLE * span:
            share = percent(idle / span)
            seen = f"Graphs were recorded in part: inside them nothing runs for {share} of the time"
    if seen:
        yield Doubt(
            Kind.UNSEEN, seen, int(empty), int(launched), "graphs", NOT_KNOWN, OF_GRAPHS, 1.0
        )


def _timelines(run: Run) -> list[Recorded]:
    """Return from when to when operations of GPUs were recorded."""
    traced = {p.path.name for p in run.profiles if {"KERNELS", "COPIES"} & set(p.loaders)}
    return [span for span in run.recorded if span.name in traced]


def _empty_steps(view: Selection) -> Iterator[Doubt]:
    """Yield that steps lack the work on the GPU which steps of their kind have."""
    kernels, copies, calls = (of_ranks(view, name) for name in ("KERNELS", "COPIES", "API_CALLS"))
    marked = steps.of_program(of_ranks(view, "RANGES"), kernels, calls)
    found = steps.detect(marked, kernels.iloc[:0])
    if found.empty:
        return
    empty = completeness.empty_steps(found, kernels, copies, calls, of_ranks(view, "OPS"))
    inside, share = touched(view, completeness.on_all_gpus(empty, spans(view)))
    if empty.empty or is_elsewhere(view, inside):
        return
    yield Doubt(
        Kind.LOST,
        f"{len(empty):,} of {len(found):,} steps launch nothing on the GPU, though they do the work of the others",
        len(empty),
        len(found),
        "steps",
        "The work of these steps was lost, so perfkit judges only the others",
        "Record fewer steps",
        share,
        share,
        inside,
    )


def _beyond_work(view: Selection) -> Iterator[Doubt]:
    """Yield that the CPU waited for work of the GPU that was not recorded."""
    kernels, copies = operations(view)
    calls = of_ranks(view, "API_CALLS")
    waits = completeness.beyond_work(kernels, copies, calls, of_ranks(view, "OVERHEAD"))
    if waits.empty:
        return
    inside, share = touched(view, completeness.free(waits, kernels, copies))
    if inside.empty:
        return
    longest = int(waits["dur_ns"].max())
    several = len(waits) > 1
    yield Doubt(
        Kind.BEYOND_WORK,
        f"{len(waits):,} {'waits' if several else 'wait'} of the CPU for the GPU {'end' if several else 'ends'} "
        f"{'up to ' if several else ''}{duration(longest)} after the last recorded operation",
        len(waits),
        len(waits),
        "waits",
        "The GPU worked on something that was not recorded, so this time is neither busy nor idle",
        OF_GRAPHS,
        share,
        share,
        inside,
    )


def _queued_before(view: Selection) -> Iterator[Doubt]:
    """Yield that a GPU did what was launched before the recording began."""
    kernels, copies = operations(view)
    waits = completeness.queued_before(kernels, copies, of_ranks(view, "API_CALLS"))
    inside, share = touched(view, waits)
    if inside.empty:
        return
    longest = duration(int(inside["dur_ns"].max()))
    yield Doubt(
        Kind.LOST,
        f"The first operation of a stream waits {longest} for work that was not recorded",
        len(inside),
        len(inside),
        "streams",
        "Of this work nothing was recorded, so this time is neither busy nor idle",
        "Synchronise with the GPU before the recording begins",
        share,
        share,
        inside,
    )


def _ends_early(view: Selection) -> Iterator[Doubt]:
    """Yield that something goes on after the last recorded event; of a chosen window nobody asks that."""
    if is_chosen(view):
        return
    calls = [of_ranks(view, name) for name in GOES_ON]
    moments = [completeness.last_starts(of_ranks(view, name)) for name in ("STACKS", "SCHEDULE")]
    work = operations(view)
    ends = completeness.open_ends(*work, calls, moments)
    shares = ends["dur_ns"] / (ends["start_ns"] + ends["dur_ns"] - ends["first_ns"])
    is_early = (shares >= NOTABLE) & (ends["dur_ns"] > completeness.BEYOND_NS)
    early = ends[is_early]
    if early.empty:
        return
    longest = early.sort_values("dur_ns", kind="stable").iloc[-1]
    name = printable(str(longest["name"]), LONGEST_NAME)
    count = len(early)
    yield Doubt(
        Kind.ENDS_EARLY,
        f"Nothing was recorded in the last {duration(int(longest['dur_ns']))} of “{name}”",
        count,
        len(ends),
        "ranks",
        "What the program did then is unknown, so perfkit judges only what came before",
        "Record until the program ends, or stop the profiler between two steps",
        float(shares[is_early].max()),
    )


def _broken_times(view: Selection) -> Iterator[Doubt]:
    """Yield which rows were left out because their times cannot be."""
    for name, what in BROKEN_TABLES.items():
        left_out = view.run.left_out(name)
        left_out = left_out[left_out["rank"].isin(view.ranks)] if view.ranks else left_out
        if len(left_out):
            yield from _of_table(view, what, left_out, len(of_ranks(view, name)) + len(left_out))


def _of_table(view: Selection, what: str, left_out: pd.DataFrame, total: int) -> Iterator[Doubt]:
    inside, share = completeness.STRETCHES.empty(), 0.0
    if "gpu" in left_out:
        stretches = left_out.assign(dur_ns=left_out["at_most_ns"])
        work = operations(view)
        inside, share = touched(view, completeness.free(stretches, *work))
    reasons = list(left_out["reason"].unique())
    if Reason.SAME_TIME not in reasons and is_elsewhere(view, inside):
        return
    why = ", or ".join(reason.value for reason in reasons)
    yield Doubt(
        Kind.BROKEN_TIMES,
        f"{len(left_out):,} of {total:,} {what} have times that cannot be: they {why}",
        len(left_out),
        total,
        what,
        "perfkit leaves them out",
        "Record again with a current profiler",
        max(share, len(left_out) / total),
        share,
        inside,
    )


def _not_recorded(view: Selection) -> Iterator[Doubt]:
    """Yield which quantities of kernels and copies the profiler wrote as 0 or not at all."""
    kernels, copies = operations(view)
    has_no_grid = kernels["grid_blocks"].fillna(0) == 0
    has_no_registers = kernels["registers"].eq(0).fillna(False)
    has_no_size = copies["bytes"] == 0
    for rows, column, unit, is_rare in (
        (has_no_grid, "grid", "kernels", True),
        (has_no_registers, "number of registers", "kernels", False),
        (has_no_size, "size", "copies", True),
    ):
        count = int(rows.sum())
        if count and (is_rare or count == len(rows)):
            yield Doubt(
                Kind.NOT_RECORDED,
                f"The {column} of {count:,} of {len(rows):,} {unit} was not recorded",
                count,
                len(rows),
                unit,
                "It is missing, not 0, and no finding rests on it",
                "Record with a profiler that writes it",
            )


def _elsewhere(view: Selection) -> Iterator[Doubt]:
    """Yield which readings of a log lie outside the timeline."""
    count = len(view.readings_elsewhere)
    if count:
        total = count + len(view.samples)
        yield Doubt(
            Kind.ELSEWHERE,
            f"{count:,} of {total:,} readings lie outside the timeline",
            count,
            total,
            "readings",
            "perfkit leaves them out",
            "Start the log with the program",
        )


def _clocks(view: Selection) -> Iterator[Doubt]:
    """Yield that ranks have no common clock: their files, their collectives or their work show it."""
    if not view.run.is_on_one_clock:
        profiles = len(view.run.profiles)
        yield Doubt(
            Kind.ELSEWHERE,
            "The recordings were made at different times, or have no common clock",
            profiles,
            profiles,
            "recordings",
            "Equal times are not the same moment, so perfkit measures each recording over its own time",
            TOGETHER,
        )
        return
    kernels = of_ranks(view, "KERNELS")
    worked = reach((kernels, of_ranks(view, "COPIES"))).sort_values("first", kind="stable")
    if len(worked) < 2:
        return
    met = clocks.of_ranks(of_ranks(view, "COLLECTIVES"), kernels)
    found = clocks.offsets(met)
    apart = found.loc[found["moved"], "offset_ns"].abs()
    share = apart.max() / (worked["last"].max() - worked["first"].min())
    if share >= NOTABLE:
        yield Doubt(
            Kind.ELSEWHERE,
            f"The clocks of the ranks differ by up to {duration(int(apart.max()))}, as their collectives show",
            len(apart),
            len(found),
            "ranks",
            "Equal times are not the same moment, so idle time before the first and after the last work of a rank "
            "may be none",
            "Record on nodes with synchronised clocks",
            min(float(share), 1.0),
        )
    ended = worked["last"].cummax().shift(1)
    if (worked["first"] > ended).any():
        yield Doubt(
            Kind.ELSEWHERE,
            "The GPUs of the ranks never work at the same time",
            len(worked),
            len(worked),
            "ranks",
            "Either the ranks run one after the other, or their clocks differ",
            TOGETHER,
            1.0,
        )

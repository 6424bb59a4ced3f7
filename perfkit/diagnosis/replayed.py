"""How much would mending a finding gain? The run is replayed with the change, which says what it gains at least.

The analytic bound (Amdahl) of a finding lets all of its time disappear, or none. The replay times the run again with
streams, launches and waits as they are, so that it knows what else bounds it: the range lasts from what the replay
gains to the bound. It ends higher only where other time gets shorter too, and then names these lines of the ledger.
Where the replay refuses, the bound stays and its reason says
so. Of a run of very many kernels a stretch of steady steps is replayed that stands for the others
(`whatif.stretch`); the reason says which, and why.

The constants here are fitted to the adversary's seed 1 (tests/adversary) and to every second archive of data, and
judged by what they were not fitted to: `python -m tests.gains` prints each range beside its truth.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from perfkit.analysis import steps, whatif
from perfkit.analysis.causes import is_kernel_launch, on_one_axis, started_by, stopped, where
from perfkit.analysis.intervals import Window, ends
from perfkit.analysis.whatif import Prepared, Replay
from perfkit.analysis.whatif.changes import Change as Replayed
from perfkit.analysis.whatif.replay import Stretch
from perfkit.diagnosis.finding import Gain
from perfkit.diagnosis.framework import synchronisations
from perfkit.diagnosis.kernel_loading import loaded_before, loading
from perfkit.diagnosis.phases import stops
from perfkit.diagnosis.program import exchanges
from perfkit.diagnosis.programs import own
from perfkit.diagnosis.recording import NOTABLE, unknown_frac
from perfkit.diagnosis.rules.changes import ALL, GRAPHS, HIDDEN_LOADING, Change, Freed
from perfkit.diagnosis.slowing import FASTER, LITTLE, slowed, unprofiled
from perfkit.diagnosis.stored import kept
from perfkit.diagnosis.timeline import (
    busy,
    detected,
    follows,
    idle_gaps,
    idle_parts,
    named_work,
)
from perfkit.errors import PerfkitError
from perfkit.format import duration, percent, printable
from perfkit.names.parts import IDLE
from perfkit.schema import unique
from perfkit.selection import Selection

# Loading ahead, as slow as now, by so many processes as a machine has to spare (convention).
TWO_WORKERS = whatif.Host(workers=2)
LINES = {
    "collective": "collectives",
    "copy": "copies that run beside kernels then",
}  # how a reason calls a line
FEW = 4  # places in a step that wait or copy, such as its ends and the loss (convention)
BLOCKED = "launches wait for their kernels"  # what then follows may be gone without that
# Of what a replay saves by overlapping, this is saved at least: the last copy or collective of a step has no work
# beside it. The adversary's programs save 0.73 to 0.97 of it.
OVERLAPPED = 0.7
HALF = 0.5  # of a run is not replayed: then nothing is (convention)
NOTABLE_ERROR = 0.01  # of a replay without a change
MOST_KERNELS = 500_000  # a replay of more takes longer than people wait for a finding
STRETCH_KERNELS = 200_000  # of the steps that are replayed in place of more: a second's work


def saving(view: Selection, change: Change) -> float | None:
    """Return the share of the run's time that a replay with a change saves at most; None where it refuses."""
    replay = _replayed(view, changes=(change.replayed,))
    if isinstance(replay, str) or not replay.measured_ns:
        return None
    return max(1 - replay.low_ns / replay.measured_ns, 0.0)


@kept
def uncapturable(view: Selection) -> str:
    """Return which calls no CUDA graph can contain, empty where they leave the launches of a step nearly together.

    Waits and copies between the same two launches count once: those of input and output lie at the ends of a step.
    """
    found, of_ops = steps.steady(detected(view)), view.framework
    calls, copies = of_ops.api_calls, of_ops.copies
    if found.empty or calls.empty:
        return ""
    staged = started_by(
        copies[copies["direction"].eq("H2D") & copies["src_memory"].eq("pageable")], calls
    )
    launches = calls[where(calls["name"], is_kernel_launch)]
    first, last = found["start_ns"].min(), (found["start_ns"] + found["dur_ns"]).max()
    inside = [synchronisations(of_ops), calls.take(staged[staged >= 0])]
    inside = [each[each["start_ns"].between(first, last)] for each in inside]
    (begun, _), *at = on_one_axis([launches, *inside], ["rank"])
    waits, copied = (
        len(unique(np.searchsorted(np.sort(begun), start))) / len(found) for start, _ in at
    )
    most = inside[0]["outermost"].value_counts()
    by = f" (most by {printable(most.index[0], 60)})" if most.sum() else ""
    parts = ((waits, f"waits for the GPU{by}"), (copied, "copies of pageable memory"))
    told = " and ".join(f"{count:.0f} {what}" for count, what in parts if count > FEW)
    return f"a CUDA graph cannot contain the {told} of each step: remove them first" if told else ""


def within(
    view: Selection,
    bound: Gain,
    changes: tuple[Replayed, ...],
    words: str,
    change: Change | None = None,
) -> Gain:
    """Return the part of the bound that the replay leaves; `change`: that of the finding that has the bound."""
    replay = _replayed(view, changes=changes)
    if isinstance(replay, str):
        return replace(bound, further=(*bound.further, replay))
    if not replay.low_ns:
        return bound
    if any(isinstance(change, whatif.Kernels) for change in changes):
        return _of_shorter_kernels(view, bound, replay, changes, words)
    _, _, most = _factors(view, replay)
    extended = _extended(view, bound, changes, change) if most > bound.high else bound
    # Only what the CPU does in named ranges is taken out of a replay whole; other changes leave some of their cost.
    is_whole = most < bound.high and all(isinstance(change, whatif.Host) for change in changes)
    high = min(most, extended.high) if is_whole or extended.high > bound.high else bound.high
    low, doubts = _likely(view, replay, changes)
    if any(isinstance(change, whatif.Launches) for change in changes):
        shorter = high * unprofiled(view)[1]
        # What a step takes that no graph contains yet is not known: the bound of the share stays.
        high = max(shorter, bound.high) if _obstacles(view, changes) else shorter
    high = max(high, 1.0)
    gain = replace(extended, low=min(max(1.0, low), high), high=high)
    return _simulated(view, gain, replay, words, doubts)


def _likely(view: Selection, replay: Replay, changes: tuple[Replayed, ...]) -> tuple[float, str]:
    """Return how many times as fast a run is at least that has the changes, and what a reader should know of it."""
    low, usual, _ = _factors(view, replay)
    doubts = ""
    if any(isinstance(change, whatif.Copies | whatif.Communication) for change in changes):
        low, doubt = _if_overlapped(view, low, usual, changes)
        doubts += doubt
    if HIDDEN_LOADING.replayed in changes:
        low, doubt = _if_loaded_ahead(view, low, replay, changes)
        doubts += doubt
    if any(isinstance(change, whatif.Launches) for change in changes):
        low, doubt = _if_in_graphs(view, low, changes)
        doubts += doubt
    return low, doubts


def _if_overlapped(
    view: Selection, low: float, usual: float, changes: tuple[Replayed, ...]
) -> tuple[float, str]:
    """Return what copies or collectives gain at least that run beside kernels, and why it is no more."""
    if any(isinstance(change, whatif.Communication) for change in changes) and exchanges(view):
        return low, " (less if the next kernels need what is exchanged)"
    to_host = view.copies[view.copies["direction"].eq("D2H")]
    if idle_after(view, to_host).get("host_code", 0.0) >= NOTABLE:
        return low, " (less if the CPU must wait for what is copied to it)"
    likely = 1 / (1 - OVERLAPPED * (1 - 1 / usual))
    return max(low, likely), f" (at least {percent(OVERLAPPED)} of this is likely)"


def _if_loaded_ahead(
    view: Selection, low: float, replay: Replay, changes: tuple[Replayed, ...]
) -> tuple[float, str]:
    """Return what loading gains at least that overlaps with the steps, but still takes its time."""
    hidden = HIDDEN_LOADING.replayed
    slower = _replayed(
        view, changes=tuple(TWO_WORKERS if change == hidden else change for change in changes)
    )
    if isinstance(slower, str):
        return 1.0, ""
    low = min(low, _factors(view, slower)[0])
    if slower.high_ns <= replay.high_ns:
        return low, ""
    return low, f", or {duration(slower.high_ns)} where two workers load ahead, as slowly as now"


def _if_in_graphs(view: Selection, low: float, changes: tuple[Replayed, ...]) -> tuple[float, str]:
    """Return what graphs gain at least without the profiler, in which kernels of one stream need not overlap."""
    why = _obstacles(view, changes)
    if why:
        return 1.0, f" ({why})"
    gpus = busy(view)
    worked, span = int(gpus["device_busy_ns"].sum()), int(gpus["span_ns"].sum())
    low = min(low, span / max(worked, 1)) * unprofiled(view)[0]
    return low, f"; {FASTER}" if slowed(view) > 1 else ""


def _obstacles(view: Selection, changes: tuple[Replayed, ...]) -> str:
    """Return what no graph can contain and no other change removes."""
    return "" if whatif.Synchronisations() in changes else uncapturable(view)


def idle_after(view: Selection, copies: pd.DataFrame) -> dict[str, float]:
    """Return the share of the time in which the GPU is idle after one of these copies, by cause."""
    gaps = idle_gaps(view)
    if gaps is None or gaps.empty or copies.empty:
        return {}
    shares = idle_parts(gaps[follows(gaps, copies)]).sum() / busy(view)["span_ns"].sum()
    return {str(cause): float(share) for cause, share in shares.items()}


def _of_shorter_kernels(
    view: Selection, bound: Gain, replay: Replay, changes: tuple[Replayed, ...], words: str
) -> Gain:
    """Return what shorter kernels gain at most: no kernel becomes shorter than the bound lets it.

    A profiler makes launching slower, up to twice: the launches count half.
    """
    graphs = _replayed(view, changes=(*changes, GRAPHS.replayed))
    at_least = replay.low_ns if isinstance(graphs, str) else (replay.low_ns + graphs.low_ns) // 2
    replay = replace(replay, low_ns=min(at_least, replay.low_ns))
    high = max(min(_factors(view, replay)[2], bound.high), 1.0)
    return _simulated(view, replace(bound, low=1.0, high=high), replay, words)


def _simulated(view: Selection, gain: Gain, replay: Replay, words: str, doubts: str = "") -> Gain:
    """Return a gain that says what was simulated, of which steps, and how far off that is."""
    ends = dict.fromkeys(duration(end) for end in (replay.low_ns, replay.high_ns))
    times = " to ".join(ends)
    model = f"a simulation with {words} takes {times} instead of {duration(replay.measured_ns)}"
    reason = f"{model}{_limits(view, replay)}{doubts}; {gain.reason}"
    return replace(gain, reason=reason, simulated=times)


def _limits(view: Selection, replay: Replay) -> str:
    """Return how far off a replay is without a change, and which steps it covers, if not all."""
    error = abs(replay.unchanged_ns / replay.measured_ns - 1)
    said = ""
    if error >= NOTABLE_ERROR:
        said = f" (without the change it is off by {percent(error)})"
    part = _part(view)
    if not isinstance(part, Stretch):
        return said
    return (
        f"{said}. It covers only steps {part.first:,} to {part.last:,} of {part.of_steps:,} steady "
        "steps: their length and their time in each kind of kernel and copy differ by at most "
        f"{percent(part.apart_frac)} of a step, and steady steps are {percent(part.share_frac)} of "
        "the time"
    )


def _extended(
    view: Selection, bound: Gain, changes: tuple[Replayed, ...], change: Change | None
) -> Gain:
    """Return the bound with the time of other lines of the ledger that get shorter in the replay, and their names."""
    freed = shortened(view, changes=changes)
    if bound.share is None or not freed:
        return bound
    claimed = change.claimed if change else ()
    lines = change.freed if change else ALL
    freed = {line: part for line, part in freed.items() if line in lines}
    own = {line: part for line, part in freed.items() if line in claimed}
    if own:  # what the finding claims itself is no other time
        most = max(own, key=lambda line: own[line])
        freed = {**freed, **dict.fromkeys(own, 0.0), most: sum(own.values()) - bound.share}
    return with_others(bound, freed)


def with_others(bound: Gain, freed: Mapping[str, float]) -> Gain:
    """Return a bound with other lines of the ledger that get shorter, as shares of the time, if they matter."""
    shorter = {line: part for line, part in freed.items() if part > 0}
    total = sum(shorter.values())
    if bound.share is None or total < LITTLE:
        return bound
    left = max(1 - bound.share - total, 0.0)
    high = 1 / left if left else math.inf
    if bound.beyond and high <= bound.high:  # it names other time already
        return bound
    most = max(shorter.values())
    others = [line for line, part in shorter.items() if part >= min(LITTLE, most)]
    names = ", ".join(LINES.get(line, IDLE.get(line, line.replace("_", " "))) for line in others)
    further = (*bound.further, f"Other time gets shorter too, {percent(total)} in all: {names}")
    beyond = tuple(dict.fromkeys((*bound.beyond, *others)))
    return replace(bound, high=max(bound.high, high), further=further, beyond=beyond)


def at_best(view: Selection, gain: Gain, freed_by: Freed) -> Gain:
    """Return the bound of a cause that no change removes, with the other time that goes with it in a replay."""
    changes = (freed_by.replayed,)
    replay = _replayed(view, changes=changes)
    if isinstance(replay, str) or not replay.low_ns:
        return gain
    freed = shortened(view, changes=changes, promised=whatif.MID)
    _, _, most = _factors(view, replay)
    extended = with_others(gain, {line: freed.get(line, 0.0) for line in freed_by.lines})
    return replace(extended, high=min(extended.high, most)) if most > gain.high else gain


@kept
def shortened(
    view: Selection, *, changes: tuple[Replayed, ...], promised: int = whatif.HIGH
) -> dict[str, float]:
    """Return which lines of the ledger get shorter in a replay, by how much of the time; empty without one.

    `promised` is the view of the replay, by default the one that promises least.

    These are the causes of idle time, "collective" and "copy". What a change saves of a gap is shared among the causes
    of the gap by their parts of it. What GPUs save beyond gaps and collectives is copies that run beside kernels then.
    """
    run = _prepared(_whole(view))
    gaps = idle_gaps(view)
    if isinstance(run, str) or gaps is None or gaps.empty:
        return {}
    keys = ["rank", "gpu", "end_ns"]
    saved = whatif.saved(run, changes, view=promised).rename(columns={"start_ns": "end_ns"})
    at_end = saved.groupby(keys, as_index=False)["idle_ns"].sum()
    ended = gaps[["rank", "gpu"]].assign(end_ns=stopped(stops(_whole(view)), ends(gaps)[1]))
    by_gap = ended.merge(at_end, how="left", on=keys)["idle_ns"].fillna(0).to_numpy()
    length = gaps["dur_ns"].to_numpy()
    part = np.minimum(by_gap, length) / length
    total = idle_parts(gaps).mul(part, axis=0).sum().to_dict()
    total["collective"] = saved.loc[saved["family"].eq("communication"), "dur_ns"].sum()
    gpus = len(busy(view))
    total["copy"] = max(gpus * _saved_ns(view, changes, promised) - sum(total.values()), 0)
    span = int(run.measured[-1]) * gpus
    return {str(line): float(ns) / span for line, ns in total.items()}


def _saved_ns(view: Selection, changes: tuple[Replayed, ...], promised: int) -> int:
    """Return how much shorter the span is in one view of a replay, ns; 0 without one."""
    replay = _replayed(view, changes=changes)
    if isinstance(replay, str):
        return 0
    spans = {whatif.LOW: replay.low_ns, whatif.MID: replay.span_ns, whatif.HIGH: replay.high_ns}
    return replay.measured_ns - spans[promised]


def _factors(view: Selection, told: Replay) -> tuple[float, float, float]:
    """Return how many times as fast the run would be, at least, usually and at most.

    A replay is trusted to LIMIT_FRAC; that of a part of the steps besides to how far that stands for all. What is no
    steady step may stay as it is, or change alike; so may what steps hold before and after the work of the GPUs.
    """
    part = _part(view)
    of_part = part if isinstance(part, Stretch) else None
    doubt = whatif.LIMIT_FRAC + (of_part.doubt_frac if of_part else 0.0)
    low = told.measured_ns / (told.high_ns * (1 + doubt))
    usual = told.measured_ns / told.span_ns
    high = told.measured_ns / (told.low_ns * (1 - doubt))
    share = of_part.share_frac if of_part else _in_steps(view, told.measured_ns)
    if share == 1:
        return low, usual, high
    low, usual = (min(factor, 1 / (1 - share + share / factor)) for factor in (low, usual))
    return low, usual, max(high, 1 / (1 - share + share / high))


def _whole(view: Selection) -> Selection:
    """Return all GPUs of the program, without the choice of kernels: its host works for all of them."""
    return _widened(view) if view.gpus or view.filtered else view


@kept
def _widened(view: Selection) -> Selection:
    return own(Selection(view.run, view.ranks, (), view.window, ""))


@kept
def _part(view: Selection) -> Stretch | PerfkitError | None:
    """Return the stretch that is replayed in place of a large run, why there is none, or None if all of it is."""
    whole = _whole(view)
    start = whole.all_kernels["start_ns"].to_numpy()
    first, last = view.window or (None, None)
    inside = len(start) if first is None else int(((start >= first) & (start < last)).sum())
    if inside <= MOST_KERNELS:
        return None
    tables = (whole.repeated, whole.all_kernels, whole.copies)
    try:
        return whatif.stretch(*tables, aim=STRETCH_KERNELS, most=MOST_KERNELS, window=view.window)
    except PerfkitError as e:
        return e


@kept
def _replayed(view: Selection, *, changes: tuple[Replayed, ...]) -> Replay | str:
    run = _prepared(_whole(view))
    if isinstance(run, str):
        return run
    try:
        return whatif.changed(run, changes)
    except PerfkitError as e:
        return _refused(e)


@kept
def _prepared(whole: Selection) -> Prepared | str:
    """Return what is replayed, of a stretch or a window their part of the tables, or why nothing is."""
    lost = unknown_frac(whole)
    if lost >= NOTABLE:
        return f"perfkit did not simulate the run: {percent(lost)} of the GPUs' time is unknown"
    part = _part(whole)
    if isinstance(part, PerfkitError):
        return f"perfkit did not simulate the run: more than {MOST_KERNELS:,} kernels; {part}"
    window = part.window if part else whole.window or _launched(whole)
    tables = whole.all_kernels, whole.copies, whole.api_calls, named_work(whole)
    kernels, copies, api_calls, ranges = whatif.around(*tables, window) if window else tables
    api_calls = loaded_before(loading(whole), kernels, api_calls)
    kernels, copies = _without_pauses(whole, kernels), _without_pauses(whole, copies)
    api_calls, ranges = _without_pauses(whole, api_calls), _without_pauses(whole, ranges)
    if window:
        first, last = stopped(stops(whole), np.array(window)).tolist()
        window = first, last
    try:
        run = whatif.prepared(kernels, copies, api_calls, window=window, ranges=ranges)
    except PerfkitError as e:
        return _refused(e)
    # A replay lasts from the first to the last operation; a window or a step may begin and end with a gap.
    lasted = int(run.measured[-1])
    if part:
        return run
    edges = 1 - _in_steps(whole, lasted)
    if whole.window and window:
        edges = 1 - lasted / (window[1] - window[0])
    if edges < (NOTABLE if whole.window else HALF):
        return run
    what = "window" if whole.window else "run"
    return f"perfkit did not simulate the {what}: no operation runs in {percent(edges)} of it at its begin and end"


def _in_steps(view: Selection, lasted_ns: int) -> float:
    """Return which share a replay is of the steps of a rank, where these last clearly longer; else 1."""
    whole = _whole(view)
    if whole.window or not whole.stepped:
        return 1.0
    steps_ns = np.diff(stopped(stops(whole), np.array(list(whole.stepped.values()))), axis=1)
    return min(lasted_ns / int(steps_ns.max()), 1.0)


def _without_pauses(whole: Selection, table: pd.DataFrame) -> pd.DataFrame:
    """Return a table on a clock that stands still while all ranks pause: pauses are not judged."""
    paused = stops(whole)
    if not len(paused.start):
        return table
    start, end = (stopped(paused, times) for times in ends(table))
    return table.assign(start_ns=start, dur_ns=end - start)


def _launched(whole: Selection) -> Window | None:
    """Return from when on all launches are recorded, where a profiler recorded the first kernels without theirs."""
    operations = [whole.all_kernels, whole.copies]
    start = np.concatenate([each["start_ns"] for each in operations])
    lost = start[np.concatenate([started_by(each, whole.api_calls) for each in operations]) < 0]
    later = start[start > lost.max(initial=-1)]
    return (
        (int(later.min()), int(start.max()) + 1)
        if len(lost) and 2 * len(later) > len(start)
        else None
    )


def _refused(why: PerfkitError) -> str:
    return f"perfkit could not simulate the run: {str(why).partition('. ')[0]}"

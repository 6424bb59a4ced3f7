"""Which part of a recording is judged, and what is outside of it?

The verdict speaks of the loop where one is found, else of the whole recording without its pauses (`analysis.phases`).
Of a program that does several kinds of work in turn, such as a prefill and then decoding, it speaks of the one that
takes most of the time. What is outside is told in one sentence each with its share.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit import analysis
from perfkit.analysis import completeness
from perfkit.analysis.causes import covered
from perfkit.analysis.intervals import Intervals, Window, ends, intersect, union
from perfkit.diagnosis import programs, recording
from perfkit.diagnosis.repeating import phases
from perfkit.diagnosis.stored import kept
from perfkit.format import TIME, duration, number, printable, unit
from perfkit.selection import Selection

JUDGED = ("loop", "whole")
NOTABLE = 0.01  # share of the span from which on what is outside is told (convention)
FEWEST_REPETITIONS = 2  # of a loop that is judged
BASE = (
    0.1  # of the span outside, from which on a reader is told of what the shares are (convention)
)
LONGEST_NAME = 60  # characters of what other work runs
TABULAR = 120_000_000_000  # ns, from which on `duration` gives minutes


class Judged(NamedTuple):
    """The windows of each rank that are judged, ns, by start, and what is outside of them: empty if that is little."""

    windows: Mapping[int, tuple[Window, ...]]
    outside: str


def outside(view: Selection, *, told: str = "") -> str:
    """Say what is outside of the judged part, a sentence each; nothing of the phase that the verdict tells of.

    Where no loop is chosen, all is judged but for pauses.
    """
    if view.outside == "":
        return ""
    found = phases(recorded(view))
    is_outside = ~_is_judged(found)
    if view.outside is None:
        is_outside &= found["phase"].eq("pause")
    apart = _apart(found, view.window) if view.outside else ""
    return f"{_outside(found, is_outside, told)} {apart} {programs.sentence(view)}".strip()


@kept
def judged(view: Selection) -> Judged:
    """Return what is judged of each rank; all of the window where it holds neither a loop nor a whole recording."""
    found = phases(view)
    windows: dict[int, tuple[Window, ...]] = {}
    is_judged = _is_judged(found)
    for rank, mine in found.groupby("rank"):
        rows = mine[is_judged[mine.index]]
        rows = rows if len(rows) else mine
        starts, lengths = rows["start_ns"].tolist(), rows["dur_ns"].tolist()
        pairs = zip(starts, lengths, strict=True)
        windows[int(str(rank))] = tuple((start, start + length) for start, length in pairs)
    outside = _outside(found, ~is_judged)
    return Judged(windows, f"{outside} {programs.sentence(view)}".strip())


def _is_judged(found: pd.DataFrame) -> pd.Series:
    """Tell which rows of PHASES are judged: the whole, or the work that takes most of the time of all ranks.

    Checkpoints that recur are a part of the loop: they cost time for as long as the program runs.
    """
    is_main = _work(found) == _main(found)
    is_saving = found["phase"].eq("pause") & found["name"].eq(analysis.phases.CHECKPOINT)
    recurs = is_saving & (is_saving.groupby(found["rank"]).transform("sum") > 1)
    return recurs | (found["phase"].isin(JUDGED) & (found["phase"].ne("loop") | is_main))


def _work(found: pd.DataFrame) -> pd.Series:
    """Return what each row of PHASES does: "" in the loop, the longest kernel where other kernels run."""
    is_other = found["kind"].eq(analysis.phases.OTHER).fillna(False).astype(bool)
    return found["name"].astype(object).where(is_other, "")


def _main(found: pd.DataFrame) -> str:
    """Return the `_work` that takes most of the time of all ranks.

    Other work counts for the time in which the GPU works: what follows it until the loop belongs to neither.
    """
    loops = found[found["phase"] == "loop"]
    work = _work(loops)
    lasted = loops["dur_ns"].where(work == "", loops["busy_ns"]).groupby(work).sum()
    return str(lasted.idxmax()) if len(lasted) else ""


def booked(view: Selection) -> pd.DataFrame:
    """Return PHASES as the ledger books them: checkpoints that recur are time of the loop."""
    found = phases(view)
    recurs = found["phase"].eq("pause") & _is_judged(found)
    return found.assign(phase=found["phase"].astype(object).where(~recurs, "loop"))


def selection(view: Selection) -> Selection:
    """Return the part of a selection that is judged: its loop, where no window was chosen and a loop is found.

    Of several ranks on one clock it is the time in which all of them do the same repetitions. Ranks
    without a common clock are judged whole, for one window means another time on each. So is a
    recording with a doubt that touches a tenth of it: what is lost may make a loop of what was none.
    """
    mine = programs.own(view)
    return _loop(mine) or mine


@kept
def _loop(view: Selection) -> Selection | None:
    """Return the loop of a selection; None where all of it is judged."""
    if view.outside is not None or _is_part(view):
        return None
    if any(doubt.may_hide_a_loop for doubt in recording.leading(view)):
        return None
    found = phases(view)
    repeating = found[found["phase"].eq("loop") & (_work(found) == "")]
    repeated = repeating.groupby("rank")["repetitions"].sum()
    loops = _longest_round(found)
    ranks = found["rank"].nunique()
    if loops["rank"].nunique() < ranks:
        return None
    if len(repeated) < max(ranks, 1) or repeated.min() < FEWEST_REPETITIONS:
        return None
    if ranks > 1 and not view.run.is_on_one_clock:
        return None
    window = _same_repetitions(view, loops)
    if window[1] <= window[0] or _is_nearly_all(found, window):
        return None
    outside = f"{judged(view).outside} {_apart(found, window)}".strip()
    traced = None if view.framework is view else selection(view.framework).window
    return Selection(
        view.run, view.ranks, view.gpus, window, view.pattern, view.families, outside, traced
    )


def _same_repetitions(view: Selection, loops: pd.DataFrame) -> Window:
    """Return the time in which all ranks do the same repetitions of their loops.

    A rank that is late in each step begins and ends its loop late, so the others then wait for it: the time lasts from
    the first that begins to the last that ends, if all were recorded then. Otherwise the ranks are together from the
    latest begin to the earliest end. Where some rank has more steps in that time, it lasts a step less: from a step of
    the latest rank to its last one, so that each rank is in it for as many steps.
    """
    of_rank = loops.assign(end_ns=loops["start_ns"] + loops["dur_ns"]).groupby("rank")
    start, end = of_rank["start_ns"].min(), of_rank["end_ns"].max()
    period = float(((end - start) / of_rank["repetitions"].sum()).median())
    first, last = int(start.min()), int(end.max())
    latest, earliest = int(start.max()), int(end.min())
    spans = view.measured if isinstance(view.measured, dict) else {}
    is_recorded = all(begin <= first and last <= until for begin, until in spans.values())
    if is_recorded and latest - first < period and last - earliest < period:
        return first, last
    begun = view.steps[view.steps["start_ns"].between(latest, earliest, inclusive="left")]
    of_latest = begun.loc[begun["rank"] == start.idxmax(), "start_ns"]
    if begun["rank"].value_counts().nunique() < 2 or of_latest.empty:
        return latest, earliest
    return latest, int(of_latest.max())


def _apart(found: pd.DataFrame, window: Window | None) -> str:
    """Say which rank cuts the loop of another one by a tenth or more, as it was recorded for a shorter time."""
    loops = found[_is_judged(found)]
    of_rank = loops.assign(end_ns=loops["start_ns"] + loops["dur_ns"]).groupby("rank")
    start, end = of_rank["start_ns"].min(), of_rank["end_ns"].max()
    if window is None or len(start) < 2:
        return ""
    before, after = window[0] - start.min(), end.max() - window[1]
    if max(before, after) < BASE * (end.max() - start.min()):
        return ""
    if before > after:
        apart = f"Rank {start.idxmax()} begins its loop only at {duration(int(start.max()))}."
    else:
        apart = f"Rank {end.idxmin()} ends its loop at {duration(int(end.min()))} already."
    lasts = duration(window[1] - window[0])
    return f"{apart} Shares and gains are of the {lasts} in which all ranks do the same steps."


def _longest_round(found: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of PHASES that are the judged loop. Other work may part a loop: then its longest part."""
    is_judged = _is_judged(found)
    parts = found["phase"].eq("loop") & ~is_judged
    number = parts.groupby(found["rank"]).cumsum()
    loops = found[is_judged & found["phase"].ne("whole")]
    if loops.empty:
        return loops
    lasted = loops["dur_ns"].groupby(number).sum()
    return loops[number[loops.index] == lasted.idxmax()]


def _is_part(view: Selection) -> bool:
    """Tell whether a window leaves out some operation: one that leaves out none chooses nothing."""
    if view.window is None:
        return False
    low, high = view.window
    operations = pd.concat(
        [table[["start_ns", "dur_ns"]] for table in (view.all_kernels, view.copies)]
    )
    start, end = ends(operations)
    return bool((start < low).any() or (end > high).any())


def recorded(view: Selection) -> Selection:
    """Return the recording of which a selection is the judged loop, or the selection itself if it is none."""
    if not view.outside:
        return view
    return Selection(view.run, view.ranks, view.gpus, None, view.pattern, view.families)


def unpaused_ns(view: Selection) -> int:
    """Return the time of a recording outside of its pauses, of the rank that pauses longest."""
    once = paused(view)
    found = phases(recorded(view))
    mine = found[found["rank"].eq(once["rank"].iloc[0])] if len(once) else found
    return int(mine["dur_ns"].sum() - once.loc[once["rank"].isin(mine["rank"]), "dur_ns"].sum())


def paused(view: Selection) -> pd.DataFrame:
    """Return the rows of PHASES of a recording that are pauses which are not judged, the longest first."""
    once = _unjudged_pauses(recorded(view)) if view.outside != "" else phases(view).iloc[:0]
    return once.sort_values("dur_ns", ascending=False, kind="stable", ignore_index=True)


def _unjudged_pauses(view: Selection) -> pd.DataFrame:
    """Return the rows of PHASES that are pauses which are not judged; what is unknown is none."""
    found = phases(view)
    pauses = found[found["phase"].eq("pause") & ~_is_judged(found)]
    unknown = recording.unknown(view)
    hidden = np.zeros(len(pauses), np.int64)
    for rank in unknown["rank"].unique():
        mine = (pauses["rank"] == rank).to_numpy()
        lost = union(*ends(unknown[unknown["rank"] == rank]))
        hidden[mine] = covered(lost, *ends(pauses[mine]))
    return pauses[2 * hidden < pauses["dur_ns"]]


def whole(view: Selection) -> Selection:
    """Return the same selection, of which all is judged: start-up, pauses and the end count too."""
    return Selection(view.run, view.ranks, view.gpus, view.window, view.pattern, view.families, "")


def _is_nearly_all(found: pd.DataFrame, window: Window) -> bool:
    """Tell whether a window leaves out less than a hundredth of each rank's time without pauses: nothing, then."""
    active = found[found["phase"] != "pause"].groupby("rank")["dur_ns"].sum()
    end = found["start_ns"] + found["dur_ns"]
    outside = (window[0] - found["start_ns"].groupby(found["rank"]).min()).clip(lower=0)
    outside += (end.groupby(found["rank"]).max() - window[1]).clip(lower=0)
    return bool((outside < NOTABLE * active).all())


@kept
def pauses(view: Selection) -> pd.DataFrame:
    """Return the stretches of each GPU (rank, gpu, start_ns, dur_ns) that are a pause, which is not judged."""
    if view.outside == "":
        return completeness.STRETCHES.empty()
    once = _unjudged_pauses(view)
    operations = pd.concat([table[["rank", "gpu"]] for table in (view.all_kernels, view.copies)])
    devices = operations.drop_duplicates()
    return devices.merge(once[["rank", "start_ns", "dur_ns"]], on="rank")


@kept
def stops(view: Selection) -> Intervals:
    """Return when all ranks pause at once: the judged part is as long as if its clock stood still then."""
    once = pauses(view)
    common: Intervals | None = None
    for rank in phases(view)["rank"].unique():
        mine = union(*ends(once[once["rank"] == rank]))
        common = mine if common is None else intersect(common, mine)
    return union(*ends(once)) if common is None else common


def _outside(found: pd.DataFrame, is_outside: pd.Series, told: str = "") -> str:
    """Say what is outside, but not in the phase `told`, on the rank where that takes the largest share of the span."""
    if found.empty or not found["phase"].isin(JUDGED).any():
        return ""
    lost = found["dur_ns"].where(is_outside, 0).groupby(found["rank"]).sum()
    share = lost / found.groupby("rank")["dur_ns"].sum()
    rank = share.idxmax()
    mine = found[found["rank"] == rank]
    is_outside = is_outside[mine.index]
    span, rest = int(mine["dur_ns"].sum()), int(mine.loc[~is_outside, "dur_ns"].sum())
    sentences = [text for phase, text in _sentences(mine[is_outside], span) if phase != told]
    sentences += _other_work(mine, is_outside)
    if rest <= (1 - BASE) * span and not told:  # else the verdict is of the whole recording
        sentences.append(f"Shares and gains are of the other {duration(rest)}.")
    text = " ".join(sentences)
    return f"On rank {rank}: {text}" if text and len(share) > 1 else text


def _sentences(mine: pd.DataFrame, span: int) -> Iterator[tuple[str, str]]:
    """Yield each phase outside that takes a hundredth of the span of its rank, ns, and a sentence about it."""
    lasted = mine["dur_ns"].groupby(mine["phase"], observed=True).sum()
    long = lasted[lasted >= NOTABLE * span]
    if "start_up" in long:
        begin = mine[mine["phase"] == "start_up"]
        slow = begin["name"].dropna().astype(str).tolist()
        warm_up = f", with {slow[0]}" if slow else ""
        yield (
            "start_up",
            f"Start-up takes {_of(long['start_up'], span)}, once per process{warm_up}.",
        )
    if "pause" in long:
        yield "pause", _paused(mine[mine["phase"] == "pause"], span)
    if "end" in long:
        yield "end", f"What follows the last repetition takes {_of(long['end'], span)}, once."


def _paused(pauses: pd.DataFrame, span: int) -> str:
    """Say how many pauses there are, and how long and where the longest is."""
    longest = pauses.iloc[int(pauses["dur_ns"].to_numpy().argmax())]
    at = duration(int(longest["start_ns"]))
    length = duration(int(longest["dur_ns"]))
    if len(pauses) == 1:
        saves = " to save state" if longest["name"] == analysis.phases.CHECKPOINT else ""
        return f"There is one pause{saves}, of {length} at {at}."
    lasted = _of(int(pauses["dur_ns"].sum()), span)
    return f"There are {len(pauses):,} pauses, {lasted} in all; the longest takes {length} at {at}."


def _other_work(mine: pd.DataFrame, is_outside: pd.Series) -> Iterator[str]:
    """Yield a sentence for the other work of a rank, which is not judged, if it takes a hundredth of the span."""
    others = mine[is_outside & mine["phase"].eq("loop")]
    lasted = int(others["dur_ns"].sum())
    span = int(mine["dur_ns"].sum())
    if lasted < NOTABLE * span:
        return
    judged_from = mine.loc[~is_outside & mine["phase"].eq("loop"), "start_ns"].min()
    is_before = others["start_ns"] < judged_from
    places = {"before": is_before.any(), "after": not is_before.all()}
    place = " and ".join(name for name, there in places.items() if there)
    longest = others.iloc[int(others["dur_ns"].to_numpy().argmax())]
    what = f"other kernels take {_of(lasted, span)}"
    name = printable(str(longest["name"]), LONGEST_NAME)
    yield f"The program has several phases: {place} the one that is judged, {what} ({name})."


def _of(part: int, whole: int) -> str:
    """Return a part of a time and the whole in one unit.

    >>> _of(16_000_000, 18_600_000), _of(86_000_000, 7_610_000_000)
    ('16.0 of 18.6 ms', '86.0 ms of 7.61 s')
    """
    scale = unit(whole, TIME)
    if whole >= TABULAR or part < scale.size:
        return f"{duration(part)} of {duration(whole)}"
    return f"{number(part / scale.size)} of {number(whole / scale.size)} {scale.symbol}"

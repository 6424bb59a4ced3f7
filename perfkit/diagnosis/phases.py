"""Which part of a recording is judged?

The verdict speaks of the loop where one is found, else of the whole recording without its pauses (`analysis.phases`).
Of a program that does several kinds of work in turn, such as a prefill and then decoding, it speaks of the one that
takes most of the time. `perfkit.diagnosis.outside` tells what is outside.
"""

import numpy as np
import pandas as pd

from perfkit import analysis
from perfkit.analysis import completeness
from perfkit.analysis.causes import covered
from perfkit.analysis.intervals import Intervals, Window, ends, intersect, union
from perfkit.diagnosis import programs, recording
from perfkit.diagnosis.repeating import phases
from perfkit.diagnosis.stored import kept
from perfkit.selection import Part, Selection

JUDGED = ("loop", "whole")
NOTABLE = 0.01  # share of the span from which on what is outside is told (convention)
FEWEST_REPETITIONS = 2  # of a loop that is judged


def is_judged(found: pd.DataFrame) -> pd.Series:
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
    recurs = found["phase"].eq("pause") & is_judged(found)
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
    if view.part is not Part.CHOICE or _is_part(view):
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
    traced = None if view.framework is view else selection(view.framework).window
    return Selection(
        view.run, view.ranks, view.gpus, window, view.pattern, view.families, Part.LOOP, traced
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


def _longest_round(found: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of PHASES that are the judged loop. Other work may part a loop: then its longest part."""
    is_chosen = is_judged(found)
    parts = found["phase"].eq("loop") & ~is_chosen
    number = parts.groupby(found["rank"]).cumsum()
    loops = found[is_chosen & found["phase"].ne("whole")]
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
    if not view.is_loop:
        return view
    return Selection(view.run, view.ranks, view.gpus, None, view.pattern, view.families)


def paused(view: Selection) -> pd.DataFrame:
    """Return the rows of PHASES of a recording that are pauses which are not judged, the longest first."""
    once = (
        _unjudged_pauses(recorded(view)) if view.part is not Part.WHOLE else phases(view).iloc[:0]
    )
    return once.sort_values("dur_ns", ascending=False, kind="stable", ignore_index=True)


def _unjudged_pauses(view: Selection) -> pd.DataFrame:
    """Return the rows of PHASES that are pauses which are not judged; what is unknown is none."""
    found = phases(view)
    pauses = found[found["phase"].eq("pause") & ~is_judged(found)]
    unknown = recording.unknown(view)
    hidden = np.zeros(len(pauses), np.int64)
    for rank in unknown["rank"].unique():
        mine = (pauses["rank"] == rank).to_numpy()
        lost = union(*ends(unknown[unknown["rank"] == rank]))
        hidden[mine] = covered(lost, *ends(pauses[mine]))
    return pauses[2 * hidden < pauses["dur_ns"]]


def whole(view: Selection) -> Selection:
    """Return the same selection, of which all is judged: start-up, pauses and the end count too."""
    return Selection(
        view.run, view.ranks, view.gpus, view.window, view.pattern, view.families, Part.WHOLE
    )


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
    if view.part is Part.WHOLE:
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

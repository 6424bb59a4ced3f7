"""Which phases does a recording have: a start-up, a loop, pauses, an end?"""

import pandas as pd

from perfkit import analysis
from perfkit.analysis import completeness
from perfkit.analysis.intervals import cut
from perfkit.analysis.phases import PHASES
from perfkit.diagnosis.stored import kept
from perfkit.run import Run
from perfkit.selection import Selection

FEWEST = 20  # operations of a rank from which on a gap may be a pause (convention)


@kept
def phases(view: Selection) -> pd.DataFrame:
    """Return `analysis.phases.phases` of a selection: found in the whole recording, then cut at the window.

    A part of a loop that the window cuts keeps the number of its repetitions in the recording. A rank
    without a loop and with fewer than FEWEST operations is one whole: nobody knows which gap is usual.
    """
    found = _of_recording(view.run, ranks=view.ranks, gpus=view.gpus)
    if view.window is None:
        return found
    inside = cut(found, view.window)
    operations = [
        table[["rank", "gpu", "start_ns", "dur_ns"]] for table in (view.all_kernels, view.copies)
    ]
    return inside.assign(busy_ns=analysis.phases.busy(inside, pd.concat(operations)))


@kept
def _of_recording(run: Run, *, ranks: tuple[int, ...], gpus: tuple[int, ...]) -> pd.DataFrame:
    """Return the phases of these ranks and GPUs: windows and kernels that are chosen change nothing in them."""
    every = Selection(run, ranks, gpus, None, "")
    operations = every.all_kernels, every.copies
    own = completeness.collecting(every.overhead, *operations)
    found = analysis.phases.phases(
        *operations,
        ranges=every.ranges,
        ops=every.ops,
        python_calls=every.python_calls,
        api_calls=every.api_calls,
        os_calls=every.os_calls,
        collecting=completeness.free(own, *operations),
        stepped=every.stepped,
    )
    return _without_unknown_pauses(every, found)


def _without_unknown_pauses(view: Selection, found: pd.DataFrame) -> pd.DataFrame:
    """Return PHASES in which a rank without a loop and with few operations has no pauses."""
    operations = pd.concat([view.all_kernels["rank"], view.copies["rank"]])
    counts = found["rank"].map(operations.value_counts())
    has_loop = found["phase"].eq("loop").groupby(found["rank"]).transform("any")
    is_one = (counts < FEWEST) & ~has_loop
    first = ~found["rank"].duplicated()
    of_rank = found.groupby("rank")[["dur_ns", "busy_ns"]].transform("sum")
    whole = found[is_one & first].assign(**of_rank[is_one & first])
    return PHASES.make(pd.concat([found[~is_one], whole]))

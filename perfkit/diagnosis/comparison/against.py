"""A choice of a run against an earlier run, worked out once: a view has several parts, and an explorer many choices.

Functions
---------
earlier   an earlier run as a choice looks at it
against   the comparison of a choice with an earlier run
"""

from __future__ import annotations

from weakref import WeakValueDictionary

from perfkit.diagnosis.comparison.pairing import Comparison, nothing
from perfkit.diagnosis.comparison.told import QUESTION, alike, attempted
from perfkit.diagnosis.finding import Refusal
from perfkit.diagnosis.kept import kept
from perfkit.run import Run
from perfkit.selection import Selection

# By the run's id and the choice: whoever holds an earlier selection while only the window moves keeps its figures.
_SEEN: WeakValueDictionary[tuple[int, str], Selection] = WeakValueDictionary()


def earlier(baseline: Run | Selection | None, view: Selection) -> Selection | None:
    """Return an earlier run with the ranks, GPUs, kernels and families of a choice, as `alike` does.

    Parameters
    ----------
    baseline
        The earlier run; a Selection of it is taken as it is; None where there is none.
    view
        A choice of the later run.

    Returns
    -------
    Selection or None
        The same object while somebody holds it and nothing but the window of `view` differs.
    """
    if not isinstance(baseline, Run):
        return baseline
    made = alike(baseline, view)
    return _SEEN.setdefault((id(baseline), made.description), made)


@kept
def against(view: Selection, *, baseline: Run | Selection | None = None, peaks: str = "") -> Comparison:
    """Return the comparison of a choice with an earlier run, seen alike; empty with a refusal where there is none.

    Parameters
    ----------
    view
        A choice of the later run.
    baseline
        As in `earlier`.
    peaks
        As in `diagnosis.figures`.

    Returns
    -------
    Comparison
        As from `attempted`; the same object for the same arguments, so that callers change nothing in it.

    Examples
    --------
    >>> from perfkit.selection import select
    >>> against(select(Run([]))).refusals[0].reason
    'no baseline was given'
    """
    before = earlier(baseline, view)
    if before is not None and _is_missed(before, view):
        reason = f"the earlier run has no kernel of what is chosen ({before.description})"
        return nothing(Refusal(QUESTION, reason, "a choice of kernels, ranks and GPUs that both runs have"))
    return attempted(before, view, peaks=peaks)


def _is_missed(before: Selection, view: Selection) -> bool:
    """Say whether an earlier run has kernels, and the later one chosen ones, of which the earlier has none."""
    has_chosen = len(view.kernels) + len(view.launches)
    has_any = len(before.run.kernels) + len(before.run.launches)
    return bool(has_chosen and has_any and before.kernels.empty and before.launches.empty)

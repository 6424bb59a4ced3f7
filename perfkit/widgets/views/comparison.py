"""The view of two runs: what changed from one to the other, as a whole or one part of it."""

from __future__ import annotations

from functools import partial
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from perfkit.diagnosis import comparison
from perfkit.diagnosis.comparison import Comparison
from perfkit.errors import PerfkitError
from perfkit.run import Run
from perfkit.selection import Selection
from perfkit.widgets.later import Later, Pending
from perfkit.widgets.showing import Live, Part, Shown, shown
from perfkit.widgets.views import differences

if TYPE_CHECKING:
    from perfkit.widgets.explorer import Explorer

VERDICT, RUNS = "verdict", "runs"
COMPARING = "The two runs are being compared. What changed follows here."
MOVED_ON = "Another choice was made before the two runs were compared."
_ONE = Lock()
_LATER: WeakKeyDictionary[Selection, dict[tuple[Run | Selection | None, str], Later[Comparison]]] = WeakKeyDictionary()


def compare(
    source: Selection | Explorer, *, baseline: Run | Selection | None = None, part: str = "", peaks: str = ""
) -> Shown | Live:
    """Show what changed from an earlier run to this one: the verdict, and where it comes from.

    Ranks, GPUs, kernels and families are chosen in both runs, the window in this one alone.

    Parameters
    ----------
    source
        A choice of the later run, or the controls that make one.
    baseline
        The earlier run; a Selection of it is taken as it is. Without one, a sentence.
    part
        What to show: ``verdict``, ``runs``, ``steps``, ``families``, ``kernels``, ``launches`` (kernels under
        counters), ``paths``, ``samples`` or ``figures``; everything that both runs hold when empty.
    peaks
        A CSV file of peaks, see `perfkit.hardware.load_peaks`; empty for the GPU's data sheet or the report itself.

    Raises
    ------
    ValueError
        If there is no such part.

    Examples
    --------
    >>> from perfkit.selection import select
    >>> compare(select(Run([])))
    Did the change help? Not told: no baseline was given. What would tell: perfkit report RUN --baseline EARLIER.
    """
    known = [VERDICT, RUNS, *differences.PARTS]
    if part and part not in known:
        raise ValueError(f"part: {part!r} is no part of a comparison. Choose from {', '.join(known)}.")
    return shown(source, _Comparing(source, baseline, part, peaks))


class _Comparing:
    """Makes the parts; holds the earlier run as it was last looked at, whose figures are then worked out once."""

    def __init__(self, source: Selection | Explorer, baseline: Run | Selection | None, part: str, peaks: str) -> None:
        self._source, self._baseline, self._part, self._peaks = source, baseline, part, peaks
        self._earlier: Selection | None = None

    def __call__(self, view: Selection) -> list[Part]:
        self._earlier = comparison.earlier(self._baseline, view)
        found = self._found(view)
        if self._part == VERDICT or (not self._part and found.figures.empty):
            return [_verdict(found)]
        runs = [differences.overview(self._earlier, view), differences.uncompared(found)]
        if self._part:
            return runs if self._part == RUNS else differences.made(self._part, found)
        parts = [one for name in differences.held(found) for one in differences.made(name, found)]
        return [_verdict(found), *parts, *runs]

    def _found(self, view: Selection) -> Comparison:
        """Return the comparison; in an explorer it is made beside all else, which Pending says meanwhile."""
        if isinstance(self._source, Selection) or self._earlier is None:
            return comparison.against(view, baseline=self._baseline, peaks=self._peaks)
        key = self._baseline, self._peaks
        later = _LATER.setdefault(view, {}).setdefault(key, Later(partial(self._compared, view)))
        found = later.soon()
        if later.failed:
            raise later.failed
        if found is None:
            raise Pending(later, COMPARING)
        return found

    def _compared(self, view: Selection) -> Comparison:
        """Compare one choice at a time, and none that was left while another was compared."""
        with _ONE:
            if self._source.selection is not view:
                raise PerfkitError(MOVED_ON)
            return comparison.against(view, baseline=self._baseline, peaks=self._peaks)


def _verdict(found: Comparison) -> str:
    return comparison.sentence(found) or "Neither run holds figures to compare."

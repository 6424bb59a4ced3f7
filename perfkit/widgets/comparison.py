"""The view of two runs: what changed from one to the other, as a whole or one part of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import pandas as pd

from perfkit import charts
from perfkit.diagnosis import comparison, verdict
from perfkit.diagnosis.comparison import Comparison
from perfkit.errors import PerfkitError
from perfkit.run import Run
from perfkit.selection import Selection
from perfkit.widgets.live import Later, Live, Part, Pending, Shown, shown

if TYPE_CHECKING:
    from perfkit.widgets.choice import Explorer


NAMED = {"status": "status", "name": "name"}
COUNTS = {"count_before": "count before", "count_after": "count after"}
TIMES = {"difference_ns": "difference", "total_before_ns": "time before", "total_after_ns": "time after"}
MEDIANS = {"median_ratio": "ratio of medians", "median_before_ns": "median before", "median_after_ns": "median after"}
PATHS = ["status", "name", "unit", "before", "after", "difference", "ratio", "path"]
FIGURES = ["figure", "before", "after", "ratio", "better", "verdict"]
STEP_TITLE = "Step time after the change, over that before"
ALL_COMPARED = "Both runs recorded the same kinds of data, and all of it is compared."


@dataclass(frozen=True)
class Told:
    """A part: the frame of the Comparison that it shows, what that holds, who refuses it, and how it is shown."""

    frame: str
    what: str
    question: str
    make: Callable[[Comparison], list[Part]]


def _steps(both: Comparison) -> list[Part]:
    picture = charts.comparison.intervals(both.steps, label="statistic", title=STEP_TITLE)
    table = charts.tables.show(both.steps, caption="Steady steps: warm-up is left out on both sides")
    parts = charts.tables.show(both.parts, caption="Parts of a step on a GPU: they add up to its time")
    return [picture, table, *([parts] if len(both.parts) else [])]


def _families(both: Comparison) -> list[Part]:
    ratios = charts.comparison.intervals(both.families, label="family")
    return [charts.comparison.families(both.families, per=_per(both)), ratios]


def _kernels(both: Comparison) -> list[Part]:
    caption = f"Kernels by the time that moved, per {_per(both)}"
    return [charts.tables.searchable(both.kernels, columns={**NAMED, **TIMES, **COUNTS}, caption=caption)]


def _launches(both: Comparison) -> list[Part]:
    caption = "Measured kernels by the time that moved"
    return [charts.tables.searchable(both.launches, columns={**NAMED, **MEDIANS, **COUNTS}, caption=caption)]


def _paths(both: Comparison) -> list[Part]:
    caption = f"Call paths by what moved ({both.paths_metric})"
    return [charts.tables.searchable(both.paths, columns=PATHS, caption=caption)]


def _samples(both: Comparison) -> list[Part]:
    return [charts.tables.show(verdict.sample_rows(both), caption="Sampled metrics of both runs")]


def _figures(both: Comparison) -> list[Part]:
    return [charts.tables.searchable(verdict.side_rows(both), columns=FIGURES, caption="Figures before and after")]


def _per(both: Comparison) -> str:
    """Return what kernel times are of."""
    return "step" if len(both.steps) else "run"


TIMELINE = comparison.question("kernels")
PARTS = {
    "steps": Told("steps", "step times", comparison.STEPS.question, _steps),
    "families": Told("families", "families of kernels", TIMELINE, _families),
    "kernels": Told("kernels", "kernels", TIMELINE, _kernels),
    "launches": Told("launches", "kernels under counters", comparison.question("launches"), _launches),
    "paths": Told("paths", "call paths", comparison.question("calltree"), _paths),
    "samples": Told("samples", "sampled metrics", comparison.question("samples"), _samples),
    "figures": Told("figures", "figures", verdict.QUESTION, _figures),
}
VERDICT, RUNS = "verdict", "runs"
COMPARING = "The two runs are being compared. What changed follows here."
MOVED_ON = "Another choice was made before the two runs were compared."
_ONE = Lock()
_LATER: WeakKeyDictionary[Selection, dict[tuple[Run | Selection | None, str], Later[Comparison]]] = WeakKeyDictionary()


class _Comparing:
    """Makes the parts; holds the earlier run as it was last looked at, whose figures are then worked out once."""

    def __init__(self, source: Selection | Explorer, baseline: Run | Selection | None, part: str, peaks: str) -> None:
        self._source, self._baseline, self._part, self._peaks = source, baseline, part, peaks
        self._earlier: Selection | None = None

    def __call__(self, view: Selection) -> list[Part]:
        self._earlier = verdict.earlier(self._baseline, view)
        found = self._found(view)
        if self._part == VERDICT or (not self._part and found.figures.empty):
            return [_verdict(found)]
        runs = [overview(self._earlier, view), uncompared(found)]
        if self._part:
            return runs if self._part == RUNS else made(self._part, found)
        parts = [one for name in held(found) for one in made(name, found)]
        return [_verdict(found), *parts, *runs]

    def _found(self, view: Selection) -> Comparison:
        """Return the comparison; in an explorer it is made beside all else, which Pending says meanwhile."""
        if isinstance(self._source, Selection) or self._earlier is None:
            return verdict.against(view, baseline=self._baseline, peaks=self._peaks)
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
            return verdict.against(view, baseline=self._baseline, peaks=self._peaks)


def compare(
    source: Selection | Explorer, *, baseline: Run | Selection | None = None, part: str = "", peaks: str = ""
) -> Shown | Live:
    """Show what changed from an earlier run to this one: the verdict, and where it comes from.

    Ranks, GPUs, kernels and families are chosen in both runs, the window in this one alone.
    Raises ValueError if there is no such part.

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
    """
    known = [VERDICT, RUNS, *PARTS]
    if part and part not in known:
        raise ValueError(f"part: {part!r} is no part of a comparison. Choose from {', '.join(known)}.")
    return shown(source, _Comparing(source, baseline, part, peaks))


def _verdict(found: Comparison) -> str:
    return verdict.sentence(found) or "Neither run holds figures to compare."


def made(name: str, found: Comparison) -> list[Part]:
    """Return a part of `PARTS`, or the sentence why there is nothing in it."""
    part = PARTS[name]
    return [_nothing(part, found)] if getattr(found, part.frame).empty else part.make(found)


def held(found: Comparison) -> list[str]:
    """Return the names of the parts in which there is something, in their order."""
    return [name for name, part in PARTS.items() if len(getattr(found, part.frame))]


def overview(before: Selection | None, view: Selection) -> Part:
    """Return a table of the two runs: files, tools, GPUs, length, and what was chosen of them."""
    return charts.tables.show(verdict.overview(before, view), caption="The two runs")


def uncompared(found: Comparison) -> Part:
    """Return a table of the questions that stay open, or a sentence."""
    if not found.refusals:
        return ALL_COMPARED
    rows = [(refusal.question, refusal.reason, refusal.record) for refusal in found.refusals]
    table = pd.DataFrame(rows, columns=["question", "why it is open", "what would tell"])
    return charts.tables.show(table, caption="What is not compared")


def _nothing(part: Told, found: Comparison) -> str:
    """Say why there is nothing to compare, in the words of the refusal that is about it, or about everything."""
    about = (part.question, verdict.QUESTION)
    why = next((refusal.reason for refusal in found.refusals if refusal.question in about), "neither run has any")
    return f"No {part.what} to compare: {why}."

"""The view of two runs: what changed from one to the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfkit import charts, diagnosis
from perfkit.run import Run
from perfkit.selection import Selection, select
from perfkit.widgets.showing import Live, Part, Shown, shown

if TYPE_CHECKING:
    from perfkit.widgets.explorer import Explorer

COLUMNS = {"figure": "figure", "before": "before", "after": "after", "ratio": "after over before"}


def compare(source: Selection | Explorer, *, baseline: Run | Selection, peaks: str = "") -> Shown | Live:
    """Show the figures of an earlier run beside those of this one: shares, rates, means and medians, no totals.

    Parameters
    ----------
    source
        A choice of the later run, or the controls that make one.
    baseline
        The earlier run, or a choice of it.
    peaks
        A CSV file of peaks, see `perfkit.hardware.load_peaks`; empty for the GPU's data sheet or the report itself.

    Examples
    --------
    >>> from perfkit.run import Run
    >>> compare(select(Run([])), baseline=Run([]))
    Neither run holds figures to compare.
    """
    earlier = diagnosis.figures(baseline if isinstance(baseline, Selection) else select(baseline), peaks=peaks)

    def make(view: Selection) -> list[Part]:
        rows = diagnosis.changes(earlier, diagnosis.figures(view, peaks=peaks))
        if rows.empty:
            return ["Neither run holds figures to compare."]
        return [charts.searchable.show(rows, columns=COLUMNS, caption="Before and after")]

    return shown(source, make)

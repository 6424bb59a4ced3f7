"""The view of hardware counters: how near kernels come to what the hardware allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfkit import charts, diagnosis
from perfkit.selection import Selection
from perfkit.widgets.showing import Live, Part, Shown, shown
from perfkit.widgets.views.absent import some

if TYPE_CHECKING:
    from perfkit.widgets.explorer import Explorer

PLACES = ["launch", "name", "precision", "flops", "dram_bytes", "dur_ns", "flops_per_s", "roof_share_frac"]
VERDICTS = ["launch", "name", "bound", "reason"]


def roofline(source: Selection | Explorer, *, peaks: str = "") -> Shown | Live:
    """Show where the measured launches lie under the roofs of their GPU, and what bounds them.

    Parameters
    ----------
    source
        A choice, or the controls that make one. A window does not apply: counters are measured in runs of their own.
    peaks
        A CSV file of peaks, see `perfkit.hardware.load_peaks`; empty for the GPU's data sheet or the report itself.

    Examples
    --------
    >>> import perfkit
    >>> roofline(perfkit.select(perfkit.run.Run([])))  # doctest: +ELLIPSIS
    No launches with counters were recorded. What records them: ncu --set full ...
    """
    return shown(source, lambda view: _roofline(view, peaks))


def _roofline(view: Selection, peaks: str) -> list[Part]:
    some(view.launches, view, "LAUNCHES", "launches with counters")
    roof = diagnosis.roof(view, peaks=peaks)
    picture = charts.roofline.roofline(roof.points, roof.ceilings) if roof.ceilings is not None else roof.source
    source = f"; roofs: {roof.source}" if roof.ceilings is not None else ""
    return [
        picture,
        charts.searchable.show(roof.points, columns=PLACES, caption=f"Place of each launch{source}"),
        charts.searchable.show(roof.points, columns=VERDICTS, caption="What bounds each launch, and why"),
    ]

"""The views of dumps, one call each, as those of `perfkit.widgets.views`."""

import altair as alt

from perfkit.charts import tables
from perfkit.dumps import charts, hang_diagnosis, held, memory_diagnosis
from perfkit.selection import Selection
from perfkit.widgets.live import Part, follows
from perfkit.widgets.needs import some


def picture(view: Selection) -> alt.LayerChart | None:
    """Return the picture of the first page: what fills the memory, or what each rank does; None without a dump."""
    if len(view.run.allocations):
        return charts.peak(memory_diagnosis.at_peak(view))
    return charts.ranks(hang_diagnosis.ranks(view)) if len(view.run.groups) else None


@follows
def ranks(view: Selection) -> list[Part]:
    """Show how far each rank of a job that hangs came, which rank it waits for, and its last line."""
    some(view.run.groups, view, "GROUPS", "process groups of a flight recorder")
    found = hang_diagnosis.ranks(view)
    shown = found[found["last"].ne("") | found["waited_by"].ne("")]
    return [
        tables.searchable(shown, caption="How far each rank came, and for which ranks it waits")
    ]


@follows
def memory(view: Selection) -> list[Part]:
    """Show what holds the memory of each GPU over the recording, and the lines and modules with most at the peak."""
    some(view.run.allocations, view, "ALLOCATIONS", "allocations of a memory snapshot")
    drawn = charts.over_time(held.over_time(view.run.allocations))
    rows = memory_diagnosis.at_peak(view)
    lines = tables.searchable(
        held.places(rows), caption="Memory at the peak by the line that asked for it"
    )
    modules = held.modules(rows)
    if modules.empty:
        return [drawn, lines]
    caption = "Memory at the peak by the module whose forward pass asked for it, with all below it"
    return [drawn, lines, tables.searchable(modules, caption=caption)]

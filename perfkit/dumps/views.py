"""The views of dumps, one call each, as those of `perfkit.widgets.views`."""

from perfkit.charts import tables
from perfkit.dumps import hang_diagnosis, held, memory_diagnosis
from perfkit.dumps.charts import over_time
from perfkit.selection import Selection
from perfkit.widgets.live import Part, follows
from perfkit.widgets.needs import some


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
    drawn = over_time(held.over_time(view.run.allocations))
    rows = memory_diagnosis.at_peak(view)
    lines = tables.searchable(
        held.places(rows), caption="Memory at the peak by the line that asked for it"
    )
    modules = held.modules(rows)
    if modules.empty:
        return [drawn, lines]
    caption = "Memory at the peak by the module whose forward pass asked for it, with all below it"
    return [drawn, lines, tables.searchable(modules, caption=caption)]

"""The views of dumps, one call each, as those of `perfkit.widgets.views`."""

import altair as alt

from perfkit.charts import tables
from perfkit.dumps import charts, hang_diagnosis, held, memory_diagnosis
from perfkit.selection import Selection
from perfkit.widgets.live import Part, follows
from perfkit.widgets.needs import some

MODULES = "Memory at the peak by the module whose forward pass asked for it, with all below it"


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
    """Show what holds the memory of each GPU over the recording, its peaks, and what is free."""
    some(view.run.allocations, view, "ALLOCATIONS", "allocations of a memory snapshot")
    run = view.run
    rows = memory_diagnosis.at_peak(view)
    shown = {
        "Most memory that is held in each stage": held.stages(run.allocations),
        "Memory at the peak by the line that asked for it": held.places(rows),
        MODULES: held.modules(rows),
        "Largest allocations, each with the count of equal ones": held.largest(run.allocations),
        "Let go by the program, and used by another stream for longer": held.late(run.allocations),
        "Least memory that is held in each step": held.steps(run.allocations),
        "Memory of the allocator at the end of the recording": held.at_the_end(run.segments),
    }
    parts = [tables.searchable(table, caption=name) for name, table in shown.items() if len(table)]
    return [charts.over_time(held.over_time(run.allocations)), *parts]

"""The views of logs, one call each, as those of `perfkit.widgets.views`: still of a choice, live of an explorer."""

from perfkit.analysis import alignment
from perfkit.analysis.readings import BUSY
from perfkit.charts import tables
from perfkit.logs import monitoring
from perfkit.logs.charts import monitor as pictures
from perfkit.logs.charts.states import states as drawn_states
from perfkit.logs.nccl_inspector import charts as inspector
from perfkit.logs.nccl_inspector.diagnosis import transfers as inspected
from perfkit.logs.nccl_inspector.transfers import waits
from perfkit.selection import Selection
from perfkit.widgets.live import Part, follows
from perfkit.widgets.needs import some


@follows
def monitor(view: Selection) -> list[Part]:
    """Show the metrics of each GPU over time and the verdicts on utilisation, memory, power, throttling and traffic."""
    drawn = view.samples["metric"].isin([*pictures.DRAWN_METRICS, *pictures.BESIDE])
    bins = alignment.bins(view.samples[drawn], window=view.window)
    is_recorded = bool(view.run.samples["metric"].isin(pictures.DRAWN_METRICS).any())
    some(bins, view, "SAMPLES", "readings of the GPUs", recorded=is_recorded)
    limits = monitoring.at_limit(view.samples, view.devices, window=view.window)
    checks = monitoring.checks(view.samples, view.devices, window=view.window)
    several = ["rank"] if len(set(checks["rank"])) > 1 else []
    columns = [*several, "gpu", "check", "verdict", "reason"]
    table = tables.searchable(checks, columns=columns, caption="Verdict per GPU and check")
    return [pictures.dashboard(bins, limits=limits), table]


@follows
def states(view: Selection) -> list[Part]:
    """Show how long each GPU of a log worked, waited, was throttled, capped, idle or unused."""
    found = monitoring.ledger(view.samples, view.devices, window=view.window)
    is_recorded = bool(view.run.samples["metric"].isin(BUSY).any())
    some(found, view, "SAMPLES", "readings of the utilisation", recorded=is_recorded)
    shown = found.drop(columns="ns")
    table = tables.searchable(shown, caption="Time of each GPU by state, with its clock and power")
    return [drawn_states(found), table]


@follows
def utilisation(view: Selection) -> list[Part]:
    """Show how much each GPU was used, in four meanings of the word."""
    used = monitoring.utilisation(view.samples, window=view.window)
    return [tables.show(used, rows=16, caption="Utilisation of each GPU, in its four meanings")]


@follows
def limits(view: Selection) -> list[Part]:
    """Show power, memory and temperature of each GPU against their limits."""
    found = monitoring.at_limit(view.samples, view.devices, window=view.window)
    caption = "Power, memory and temperature against their limits"
    return [tables.show(found, rows=32, caption=caption)]


@follows
def throttling(view: Selection) -> list[Part]:
    """Show for which share of the time the clock of each GPU was lowered, by cause."""
    found = monitoring.throttling(view.samples, window=view.window)
    recorded = found.dropna(subset="throttled_frac")
    caption = "Share of the time with a lowered clock, by cause"
    return [tables.show(recorded, rows=16, caption=caption)]


@follows
def dips(view: Selection) -> list[Part]:
    """Show the longest dips in utilisation; a click on a row leads to it."""
    found = monitoring.dips(view.samples, window=view.window)
    longest = found.sort_values("dur_ns", ascending=False, kind="stable")
    caption = "The longest dips in utilisation; click a row to see it"
    return [tables.searchable(longest, caption=caption)]


@follows
def imbalance(view: Selection) -> list[Part]:
    """Show the GPUs that differ most from the others."""
    found = monitoring.imbalance(view.samples, window=view.window)
    return [tables.show(found, rows=10, caption="GPUs that differ most")]


@follows
def statistics(view: Selection) -> list[Part]:
    """Show mean, median and extremes of every metric."""
    found = monitoring.summary(view.samples, window=view.window)
    return [tables.show(found, rows=60, caption="Statistics of every metric")]


@follows
def transfers(view: Selection) -> list[Part]:
    """Show how fast each kind of collective crosses the links, without the wait for a late rank."""
    found = inspected(view) if len(view.run.inspected) else view.run.inspected
    some(found, view, "INSPECTED", "collectives of NCCL Inspector")
    caption = "Transfers without the wait for the last rank, and that rank"
    return [inspector.bandwidth(found), tables.searchable(found, caption=caption)]


@follows
def waiting(view: Selection) -> list[Part]:
    """Show how much of its time in collectives each rank waits for the last one."""
    found = waits(view.run.inspected) if len(view.run.inspected) else view.run.inspected
    some(found, view, "INSPECTED", "collectives of NCCL Inspector")
    caption = "Time of each rank in collectives that all ranks recorded"
    return [inspector.waiting(found), tables.searchable(found, caption=caption)]

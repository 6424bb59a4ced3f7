"""The views of logs, one call each, as those of `perfkit.widgets.views`: still of a choice, live of an explorer."""

from perfkit.analysis import alignment
from perfkit.analysis.readings import BUSY
from perfkit.charts import tables
from perfkit.logs import monitoring
from perfkit.logs.charts import monitor as pictures
from perfkit.logs.charts.states import states as drawn_states
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
    shown = found.rename(columns={"ns": "dur_ns"})
    table = tables.searchable(shown, caption="Time of each GPU by state, with its clock and power")
    return [drawn_states(found), table]

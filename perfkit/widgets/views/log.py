"""The view of a log of the GPUs: metrics over time, and five checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfkit import analysis, charts
from perfkit.selection import Selection
from perfkit.widgets.showing import Live, Part, Shown, shown
from perfkit.widgets.views.absent import some

if TYPE_CHECKING:
    from perfkit.widgets.explorer import Explorer


def monitor(source: Selection | Explorer) -> Shown | Live:
    """Show the metrics of each GPU over time, and the verdicts on utilisation, memory, power, throttling and traffic.

    Parameters
    ----------
    source
        A choice, or the controls that make one.

    Examples
    --------
    >>> import perfkit
    >>> monitor(perfkit.select(perfkit.run.Run([])))  # doctest: +ELLIPSIS
    No readings of the GPUs were recorded. What records them: nvidia-smi --query-gpu=timestamp,...
    """
    return shown(source, _monitor)


def _monitor(view: Selection) -> list[Part]:
    # The allocator's memory is not drawn, and may have been recorded at another time: it would stretch the bins.
    drawn = view.samples["metric"].isin([*charts.monitor.METRICS, *charts.monitor.BESIDE])
    bins = analysis.sampling.bins(view.samples[drawn], window=view.window)
    some(bins, view, "SAMPLES", "readings of the GPUs", recorded=_is_read(view))
    limits = analysis.monitoring.at_limit(view.samples, view.devices, window=view.window)
    checks = analysis.monitoring.checks(view.samples, view.devices, window=view.window)
    several = ["rank"] if len(set(checks["rank"])) > 1 else []
    columns = [*several, "gpu", "check", "verdict", "reason"]
    table = charts.searchable.show(checks, columns=columns, caption="Verdict per GPU and check")
    return [charts.monitor.dashboard(bins, limits=limits), table]


def _is_read(view: Selection) -> bool:
    """Say whether the run holds a metric that is drawn."""
    return bool(view.run.samples["metric"].isin(charts.monitor.METRICS).any())

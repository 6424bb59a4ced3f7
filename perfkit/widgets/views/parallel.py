"""The view of a run of several ranks: how they differ, who waits for whom, and what collectives cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfkit import analysis, charts, clocks
from perfkit.errors import PerfkitError
from perfkit.run import Run
from perfkit.selection import Selection
from perfkit.widgets.showing import Live, Part, Shown, shown
from perfkit.widgets.views.absent import RECORD, some

if TYPE_CHECKING:
    import pandas as pd

    from perfkit.widgets.explorer import Explorer

ALONE = f"The run has one rank and no collective. To compare ranks, record every rank: {RECORD['COLLECTIVES']}."
UNMATCHED = (
    "Who waits for whom cannot be told: it takes collectives of several ranks, recorded over the same steps with their "
    "message sizes. Choose all ranks, or record them."
)


def ranks(source: Selection | Explorer) -> Shown | Live:
    """Show where the time of each rank goes, who comes last to collectives, and their bandwidth.

    Parameters
    ----------
    source
        A choice, or the controls that make one.

    Examples
    --------
    >>> import perfkit
    >>> ranks(perfkit.select(perfkit.run.Run([])))  # doctest: +ELLIPSIS
    The run has one rank and no collective. To compare ranks, record every rank: ...
    """
    return shown(source, _ranks)


def _ranks(view: Selection) -> list[Part]:
    if len(set(view.run.capture["rank"])) < 2 and view.run.collectives.empty:
        return [ALONE]
    traced = view.framework
    seen = (traced.kernels, traced.copies)
    parts = analysis.timeline.breakdown(*seen, window=traced.window, others=traced.other_kernels)
    held = _collectives(traced)
    rates = analysis.communication.summary(held)
    some(parts if len(parts) else rates, view, "KERNELS", "kernels")
    made: list[Part] = [charts.ranks.parts(parts)] if len(parts) else []
    if len(rates):
        caption = "Collectives: algorithm and bus bandwidth as in nccl-tests"
        made += [_waits(held, traced.run), *_bandwidth(rates), charts.searchable.show(rates, caption=caption)]
    return made


def _collectives(view: Selection) -> pd.DataFrame:
    """Return the collectives that began in the window; a benchmark, whose have no time of day, is in none."""
    rows = view.collectives
    if view.window is None:
        return rows
    return rows[rows["start_ns"].between(*view.window, inclusive="left").fillna(False).astype(bool)]


def _waits(held: pd.DataFrame, run: Run) -> Part:
    if not run.is_on_one_clock:
        return f"Who waits for whom cannot be told: {'; '.join(clocks.distant(run.profiles))}."
    try:
        late = analysis.communication.stragglers(held)
    except PerfkitError as e:  # the clocks of the ranks do not agree
        return f"Who waits for whom cannot be told: {e}"
    return charts.ranks.waits(late) if late["count"].any() else UNMATCHED


def _bandwidth(rates: pd.DataFrame) -> list[Part]:
    known = rates["bus_bytes_per_s"].notna() & rates["bytes"].gt(0)
    return [charts.collectives.bandwidth(rates)] if known.any() else []

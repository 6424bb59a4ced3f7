"""The charts of the notebooks that need no table beside them, one call each, as in `perfkit.widgets.views`."""

from perfkit import charts, diagnosis
from perfkit.analysis import host, kernels, timeline, warps
from perfkit.selection import Selection
from perfkit.widgets.asides import follows_later
from perfkit.widgets.live import Part, follows


@follows
def parts(view: Selection) -> list[Part]:
    """Show which part of its time each GPU computes, communicates, copies and is idle."""
    time = timeline.breakdown(
        view.kernels, view.copies, window=view.measured, others=view.other_kernels
    )
    return [charts.shares.parts(time)]


@follows
def phases(view: Selection) -> list[Part]:
    """Show when start-up, loop, pauses and end are: of the judged loop, where it lies in the recording."""
    recorded = diagnosis.phases.recorded(view)
    return [charts.timeline.phases(diagnosis.repeating.phases(recorded))]


@follows
def ledger(view: Selection) -> list[Part]:
    """Show where the time of the GPUs goes, each nanosecond booked once, and who owns the part that is clicked."""
    return [charts.owners.by_owner(diagnosis.ledger.judged(view))]


@follows
def stalls(view: Selection) -> list[Part]:
    """Show what the warps of the measured launches wait for."""
    return [charts.kernels.stalls(warps.stall_shares(view.stalls), view.launches)]


@follows_later
def input_wait(view: Selection) -> Part:
    """Show how long each step waits for its input."""
    return charts.operators.steps(host.input_wait(view.ranges, view.steps, view.copies))


@follows
def formats(view: Selection) -> list[Part]:
    """Show in which formats of numbers operators compute, by GPU time."""
    time = kernels.precision(view.ops, view.kernels, view.api_calls, window=view.window)
    return [charts.kernels.formats(time)]


@follows_later
def operator_roofline(view: Selection, *, peaks: str = "") -> Part:
    """Show how fast operators are for the operations that their shapes make necessary."""
    return charts.roofline.roofline(*diagnosis.shape_roofline(view, peaks=peaks))

"""Views of a framework's trace: its operators, and the memory of its allocator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfkit import analysis, charts
from perfkit.selection import Selection
from perfkit.widgets import indexed
from perfkit.widgets.showing import Live, Part, Shown, shown
from perfkit.widgets.views.absent import some

if TYPE_CHECKING:
    from perfkit.widgets.explorer import Explorer

OPERATOR_COLUMNS = ["name", "count", "cpu_self_ns", "gpu_self_ns", "gpu_total_ns", "kernel_count", "gpu_share_frac"]


def operators(source: Selection | Explorer, *, by: str = "name", top: int = 12) -> Shown | Live:
    """Show where the time goes by operator: CPU and GPU time as bars, all operators in a table.

    Parameters
    ----------
    source
        A choice, or the controls that make one.
    by
        What the table has rows of: ``name``, or ``shapes`` for each name and shapes of inputs.
    top
        Most bars, at least 1.

    Raises
    ------
    ValueError
        If `by` is neither.

    Examples
    --------
    >>> import perfkit
    >>> operators(perfkit.select(perfkit.run.Run([])))  # doctest: +ELLIPSIS
    No operators were recorded. What records them: torch.profiler.profile, ...
    """
    if by not in ("name", "shapes"):
        raise ValueError(f"by: {by!r} is neither 'name' nor 'shapes'")
    return shown(source, lambda view: _operators(source, view, by, top))


def memory(source: Selection | Explorer) -> Shown | Live:
    """Show how much memory tensors occupied and the framework's allocator held, over time.

    Parameters
    ----------
    source
        As in `operators`.
    """
    return shown(source, lambda view: _memory(view.framework))


def _operators(source: Selection | Explorer, view: Selection, by: str, top: int) -> list[Part]:
    some(view.framework.run.ops, view, "OPS", "operators")
    summary = some(indexed.operators(source, view, by="name"), view, "OPS", "operators")
    time = "GPU time" if summary["gpu_total_ns"].any() else "CPU time of their own"
    columns, rows, caption = OPERATOR_COLUMNS, summary, f"Operators by {time}, with what they call"
    if by == "shapes":
        columns = ["name", "shapes", *OPERATOR_COLUMNS[1:]]
        rows = indexed.operators(source, view, by=("name", "shapes"))
        caption = f"Operators and shapes of their inputs by {time}, with what they call"
    table = charts.searchable.show(rows, columns=columns, caption=caption)
    return [charts.operators.bars(summary, top=top), table]


def _memory(view: Selection) -> list[Part]:
    readings = analysis.memory.timeline(view.samples, window=view.window)
    held = analysis.memory.timeline(view.run.samples)
    some(readings, view, "SAMPLES.memory", "readings of the allocator's memory", recorded=bool(len(held)))
    peaks = analysis.memory.peak(view.samples, window=view.window)
    return [charts.memory.timeline(analysis.memory.bins(readings), peaks)]

"""Views of the timeline: what ran when, which kernels take the time, when the GPU was idle, what copies cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfkit import analysis, charts, diagnosis
from perfkit.analysis.window import cut
from perfkit.format import Shown as Table
from perfkit.selection import Selection
from perfkit.widgets import indexed
from perfkit.widgets.showing import Live, Part, Shown, shown
from perfkit.widgets.views.absent import some

if TYPE_CHECKING:
    import ipywidgets
    import pandas as pd

    from perfkit.analysis.causes import Determinable
    from perfkit.widgets.explorer import Explorer

STILL_BINS = 320
KERNEL_COLUMNS = ["name", "family", "count", "total_ns", "share_frac", "mean_ns", "median_ns", "min_ns", "max_ns"]
GAP_COLUMNS = ["rank", "gpu", "start_ns", "dur_ns", "cause", "detail", "api", "range"]
COPY_COLUMNS = ["direction", "src_memory", "dst_memory", "count", "bytes", "total_ns", "bytes_per_s", "median_bytes"]


def timeline(source: Selection | Explorer) -> Shown | Live | ipywidgets.DOMWidget:
    """Show what ran when: streams as lanes, steps above; in an explorer with levels of detail.

    Parameters
    ----------
    source
        A choice, or the controls that make one.

    Examples
    --------
    >>> import perfkit
    >>> timeline(perfkit.select(perfkit.run.Run([])))
    No kernels and copies were recorded. What records them: nsys profile --trace=cuda,nvtx PROGRAM.
    """
    if isinstance(source, Selection):
        return shown(source, _timeline)
    from perfkit.widgets.timeline import zoomable

    return zoomable(source)


def kernels(source: Selection | Explorer, *, top: int = 15) -> Shown | Live:
    """Show which kernels take the time: the longest as bars, all of them in a table.

    Parameters
    ----------
    source
        As in `timeline`.
    top
        Most bars, at least 1.
    """
    return shown(source, lambda view: _kernels(view, top))


def gaps(source: Selection | Explorer) -> Shown | Live:
    """Show how long the GPU was idle by cause, in gaps of what length, and the longest gaps.

    Parameters
    ----------
    source
        As in `timeline`. Which kernels are chosen does not matter: the others keep the GPU busy all the same.
    """
    return shown(source, lambda view: _gaps(view, *indexed.gaps(source, view)))


def transfers(source: Selection | Explorer) -> Shown | Live:
    """Show copies by direction and memory, the small ones, and those that wait because their memory is pageable.

    Parameters
    ----------
    source
        As in `timeline`.
    """
    return shown(source, _transfers)


def _timeline(view: Selection) -> list[Part]:
    bins = analysis.timeline.bins(view.kernels, view.copies, bins=STILL_BINS, window=view.window)
    some(bins, view, "KERNELS", "kernels and copies", recorded=_used(view))
    steps = analysis.steps.detect(view.ranges, view.all_kernels, window=view.window)
    return [charts.timeline.lanes(bins, steps=steps)]


def _kernels(view: Selection, top: int) -> list[Part]:
    summary = some(analysis.kernels.summary(view.kernels, window=view.window), view, "KERNELS", "kernels")
    table = charts.searchable.show(summary, columns=KERNEL_COLUMNS, caption="Kernels by total time")
    return [charts.kernels.bars(summary, top=top), table]


def _gaps(view: Selection, found: pd.DataFrame, known: Determinable) -> list[Part]:
    if not len(found) and _used(view):
        return [f"No GPU was idle in what is chosen ({view.description})."]
    some(found, view, "KERNELS", "operations of a GPU")
    why = diagnosis.unrecorded(view)
    if why:
        return [f"When the GPU was idle cannot be told: {why}."]
    by_cause = analysis.gaps.idle_by_cause(found)
    causes = charts.gaps.causes(by_cause) if known.yes else f"Why the GPU was idle cannot be told: {known.why}."
    longest = analysis.gaps.longest(found, charts.searchable.MOST)
    caption = "Idle gaps, the longest first, and the range and call they fall in"
    table = charts.searchable.show(longest, columns=GAP_COLUMNS, caption=caption, total=len(found))
    return [causes, charts.gaps.histogram(analysis.gaps.histogram(found)), table]


def _transfers(view: Selection) -> list[Part]:
    every = some(analysis.transfers.summary(view.copies, window=view.window), view, "COPIES", "copies")
    small = analysis.transfers.small_copies(view.copies, window=view.window)
    pageable = analysis.transfers.pageable_async(cut(view.copies, view.window), view.api_calls)
    waiting = "Asynchronous copies that wait because their memory is pageable"
    return [
        charts.tables.show(every, columns=COPY_COLUMNS, caption="Copies by direction and memory"),
        _or_none(small[small["count"] > 0], "Copies of at most 64 KiB", "No copy is of 64 KiB or less."),
        charts.searchable.show(pageable, caption=waiting)
        if len(pageable)
        else "No asynchronous copy has to wait because its memory is pageable.",
    ]


def _or_none(rows: pd.DataFrame, caption: str, none: str) -> Table | str:
    return charts.tables.show(rows, caption=caption) if len(rows) else none


def _used(view: Selection) -> bool:
    """Say whether anything ran on a GPU in the run, chosen or not."""
    return not (view.run.kernels.empty and view.run.copies.empty)

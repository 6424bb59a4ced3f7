"""The view of call paths: which calls lead to the time of the GPU and of the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from perfkit import analysis, charts, diagnosis
from perfkit.run import Run
from perfkit.selection import Selection
from perfkit.widgets.showing import Live, Part, Shown, shown
from perfkit.widgets.views.absent import some

if TYPE_CHECKING:
    from perfkit.widgets.explorer import Explorer

PATH_COLUMNS = ["depth", "name", "kind", "inclusive", "unit", "share_frac"]
NO_GPU = "No GPU operation was recorded. What records them: hpcrun -e gpu=nvidia,pc."
NO_HOST = "No CPU time was recorded. What records it: hpcrun -e CPUTIME."
FUNCTION_COLUMNS = ["name", "kind", "count", "exclusive", "unit", "share_frac"]
_MADE: WeakKeyDictionary[Run, list[Part]] = WeakKeyDictionary()


def call_paths(source: Selection | Explorer) -> Shown | Live:
    """Show the hot path, the tree of GPU time and that of CPU time, and functions by their own time.

    Path and functions are of the GPU's time, or of the CPU's where no GPU was recorded.

    Parameters
    ----------
    source
        A choice, or the controls that make one. Call paths are sums over the whole run: choices do not apply to them.

    Examples
    --------
    >>> import perfkit
    >>> call_paths(perfkit.select(perfkit.run.Run([])))  # doctest: +ELLIPSIS
    No call paths were recorded. What records them: hpcrun -e CPUTIME ...
    """
    return shown(source, _of_run)


def _of_run(view: Selection) -> list[Part]:
    """Make the parts once per run: what is chosen of it changes nothing."""
    if view.run not in _MADE:
        _MADE[view.run] = _call_paths(view)
    return _MADE[view.run]


def _call_paths(view: Selection) -> list[Part]:
    tree, metrics = some(view.run.calltree, view, "CALLTREE", "call paths"), view.run.call_metrics
    followed, host = diagnosis.path_metric(view), analysis.calltree.host_metric(metrics)
    if not followed:
        return ["Neither GPU operations nor CPU time were recorded: hpcrun -e CPUTIME -e gpu=nvidia,pc -t PROGRAM."]
    path = analysis.calltree.hot_path(tree, metrics, metric=followed)
    known = path[~path["kind"].eq("line") | path["line"].gt(0)]
    functions = analysis.calltree.exclusive(tree, metrics, metric=followed)
    caption = "Functions by their own time, without what they call"
    drawn = [metric for metric in dict.fromkeys((followed, host)) if metric]
    return [
        charts.tables.show(known, columns=PATH_COLUMNS, rows=60, caption="The hot path"),
        *(charts.icicle.tree(tree, metrics, metric=metric) for metric in drawn),
        *([NO_GPU] if followed == host else []),
        *([] if host else [NO_HOST]),
        charts.searchable.show(functions, columns=FUNCTION_COLUMNS, caption=caption),
    ]

"""Call paths as Hatchet's users know them: a GraphFrame that holds every entry point and every metric.

Importing this module imports Hatchet, so it is imported inside functions only.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pandas as pd
from hatchet import GraphFrame
from hatchet.frame import Frame
from hatchet.graph import Graph
from hatchet.node import Node
from numpy.typing import NDArray

from perfkit.errors import PerfkitError
from perfkit.tables import CALL_METRICS, CALLTREE

FIRST = ("CPUTIME", "GPUOP")  # what a call path is looked at by, where it was measured
NS_PER_S = 1_000_000_000
# What separates frames and stacks of a flame graph
AS_FRAME = str.maketrans({";": ":", "\n": " ", "\r": " "})


class CallGraph(GraphFrame):  # type: ignore[misc]
    """A hatchet.GraphFrame whose methods work at their defaults on the call paths of a whole GPU program.

    What Hatchet 2026.2 does otherwise: `filter` starts a process per core that cannot send back
    what it found (it waits for ever) and sets Python's recursion limit to 1000; arithmetic on two
    frames that share a graph changes the first of them; `squash` needs minutes where there are
    several roots or many metrics; `to_flamegraph` needs minutes to hours, and rounds seconds to
    whole ones. Hatchet follows call paths by recursion: from about 900 levels on, its traversals,
    `deepcopy`, `squash`, queries, `tree` (unless its `depth` is less) and arithmetic need
    ``sys.setrecursionlimit(6 * levels)`` before.
    """

    def copy(self) -> CallGraph:
        """Return a copy that shares the graph and not, as Hatchet's does, the values."""
        return _own(self)

    def deepcopy(self) -> CallGraph:
        """Return a copy with a graph of its own."""
        return _own(super().deepcopy())

    def filter(
        self,
        filter_obj: Any,
        squash: bool = True,
        update_inc_cols: bool = True,
        num_procs: int = 1,
        rec_limit: int | None = None,
        multi_index_mode: str = "off",
    ) -> CallGraph:
        """Return the contexts that a function of a row, or a query, keeps; as Hatchet's, in this process.

        Inclusive values are added up anew of what is left, unless ``update_inc_cols=False`` keeps
        them as measured.
        """
        limit = rec_limit or sys.getrecursionlimit()
        kept = _own(super().filter(filter_obj, False, False, num_procs, limit, multi_index_mode))
        return kept.squash(update_inc_cols) if squash else kept

    def squash(self, update_inc_cols: bool = True) -> CallGraph:
        """Return a graph of the contexts in the rows alone; as Hatchet's, which leaves no frame when it fails."""
        squashed = _own(GraphFrame.squash(_own(self), update_inc_cols=False))
        if update_inc_cols:
            squashed.update_inclusive_columns()
        return squashed

    def subgraph_sum(
        self, columns: list[str], out_columns: list[str] | None = None, function: Any = None
    ) -> None:
        """Let `out_columns` hold the sum of `columns` over a context and all below it; as Hatchet's, in one pass."""
        nodes = self.dataframe.index
        if (
            function is not None
            or nodes.nlevels > 1
            or any(len(node.parents) > 1 for node in nodes)
        ):
            super().subgraph_sum(columns, out_columns, *([function] if function else []))
            return
        sums = self.dataframe[columns].fillna(0.0).to_numpy(float, copy=True)
        place = {node: i for i, node in enumerate(nodes)}
        for node in sorted(nodes, key=lambda node: node._depth, reverse=True):
            if node.parents:
                sums[place[node.parents[0]]] += sums[place[node]]
        self.dataframe[out_columns or columns] = sums

    def groupby_aggregate(self, groupby_function: Any, agg_function: Any) -> GraphFrame:
        """Return Hatchet's graph of groups, without the warning that it calls pandas in an old way."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The provided callable <function mean", FutureWarning)
            return super().groupby_aggregate(groupby_function, agg_function)

    def to_flamegraph(self, metric: str | None = None, name: str = "name", **_: Any) -> str:
        """Return folded stacks of exclusive values, of the default metric if none is given; seconds as nanoseconds."""
        metric = metric or self.default_metric.removesuffix(" (inc)")
        scale = NS_PER_S if self.metadata.get("units", {}).get(metric) == "s" else 1
        values = (self.dataframe[metric].fillna(0.0) * scale).round().astype("int64").to_dict()
        names = self.dataframe[name].to_dict()
        waiting = [(root, "") for root in self.graph.roots]
        lines = []
        while waiting:
            node, above = waiting.pop()
            stack = above + str(names[node]).translate(AS_FRAME)
            if values[node]:
                lines.append(f"{stack} {values[node]}\n")
            waiting += [(child, f"{stack}; ") for child in node.children]
        return "".join(lines)


def graph_frame(calltree: pd.DataFrame, call_metrics: pd.DataFrame) -> CallGraph:
    """Return call paths as a hatchet.GraphFrame: a node per context of `calltree`, which is whole.

    Hatchet holds contexts for the same that have the same name and type below the same parent (and,
    of several ranks, the same rank): `squash` adds them up, arithmetic on two frames pairs them. A
    value that was not measured is 0: the metrics are sums of events, of which a context without a
    value had none, and on NaN Hatchet's difference keeps the wrong operand, `to_dot` drops the node
    with all below it and `to_flamegraph` fails.

    ``dataframe`` is indexed by node and has ``name``, ``type`` (CALLTREE's kind), ``file`` and
    ``module`` ("" where unknown, which a query can match), ``line`` (int64, 0 where unknown),
    ``entry_point``, ``rank`` (int64, if there are several), and per metric X ``X (inc)`` and ``X``:
    inclusive and exclusive, float64, never NaN, in the unit of ``metadata["units"]``.
    ``default_metric`` is "CPUTIME (inc)", else "GPUOP (inc)", else the first. PerfkitError if there
    is no metric, or a parent or a metric's context is not in `calltree`. Source: Bhatele et al.
    (2019), Hatchet: Pruning the overgrowth in parallel profiles, SC '19,
    https://doi.org/10.1145/3295500.3356219.
    """
    CALLTREE.check(calltree)
    CALL_METRICS.check(call_metrics)
    if call_metrics.empty:
        raise PerfkitError(
            "call_metrics: no call path has a metric. Record one: `hpcrun -e CPUTIME`."
        )
    several = bool(calltree["rank"].min() != calltree["rank"].max())
    nodes, roots = _nodes(calltree, several)
    # Each metric's two columns, in the order of `calltree`, and each metric's unit.
    places = _places(calltree, call_metrics["rank"], call_metrics["node"])
    _check_known(places, "call_metrics: the context of {} rows is not in the call tree.")
    columns, units = {}, {}
    for metric, rows in call_metrics.groupby("metric", observed=True).indices.items():
        units[str(metric)] = str(call_metrics["unit"].iloc[rows[0]])
        for column, source in ((f"{metric} (inc)", "inclusive"), (str(metric), "exclusive")):
            columns[column] = np.zeros(len(calltree))
            columns[column][places[rows]] = call_metrics[source].to_numpy()[rows]
    frame = pd.DataFrame({**_told(calltree, several), **columns}).set_axis(
        pd.Index(nodes, name="node")
    )
    first = next((metric for metric in FIRST if metric in units), next(iter(units)))
    return CallGraph(
        Graph(roots),
        frame.take(np.argsort([node._hatchet_nid for node in nodes])),
        exc_metrics=list(units),
        inc_metrics=[f"{metric} (inc)" for metric in units],
        default_metric=f"{first} (inc)",
        metadata={
            "units": {**units, **{f"{metric} (inc)": unit for metric, unit in units.items()}}
        },
    )


def _own(graph_frame: GraphFrame) -> CallGraph:
    """Return a GraphFrame as a CallGraph with values of its own."""
    return CallGraph(
        graph_frame.graph,
        graph_frame.dataframe.copy(),
        list(graph_frame.exc_metrics),
        list(graph_frame.inc_metrics),
        graph_frame.default_metric,
        dict(graph_frame.metadata),
    )


def _nodes(calltree: pd.DataFrame, several: bool) -> tuple[list[Node], list[Node]]:
    """Return a node per row and the roots, numbered as Hatchet does, in pre-order, but without its recursion."""
    named = zip(
        calltree["rank"], calltree["name"], calltree["kind"], calltree["depth"], strict=True
    )
    nodes = [
        Node(
            Frame({"name": name, "type": kind, **({"rank": rank} if several else {})}), depth=depth
        )
        for rank, name, kind, depth in named
    ]
    is_root = calltree["parent"].isna().to_numpy()
    above = _places(calltree, calltree["rank"], calltree["parent"].fillna(-1).astype("int64"))
    _check_known(above[~is_root], "calltree: the parent of {} contexts is not in the table.")
    for place in np.flatnonzero(~is_root):
        nodes[place].add_parent(nodes[above[place]])
        nodes[above[place]].add_child(nodes[place])
    roots = [nodes[place] for place in np.flatnonzero(is_root)]
    waiting = _from_last(roots)
    for number in range(len(nodes)):
        node = waiting.pop()
        node._hatchet_nid = number
        waiting += _from_last(node.children)
    return nodes, roots


def _from_last(siblings: list[Node]) -> list[Node]:
    return sorted(siblings, key=lambda node: node.frame)[::-1]


def _places(calltree: pd.DataFrame, rank: pd.Series, node: pd.Series) -> NDArray[np.intp]:
    """Return the row of `calltree` of each context; -1 where there is none."""
    return pd.MultiIndex.from_frame(calltree[["rank", "node"]]).get_indexer(
        pd.MultiIndex.from_arrays([rank, node])
    )


def _check_known(places: NDArray[np.intp], message: str) -> None:
    unknown = int((places < 0).sum())
    if unknown:
        raise PerfkitError(
            f"{message.format(unknown)} Pass both tables whole, and filter the frame they make."
        )


def _told(calltree: pd.DataFrame, several: bool) -> dict[str, pd.Series]:
    text = calltree[["name", "kind", "file", "module", "entry"]].astype(object).fillna("")
    return {
        "name": text["name"],
        "type": text["kind"],
        "file": text["file"],
        "line": calltree["line"].fillna(0).astype("int64"),
        "module": text["module"],
        "entry_point": text["entry"],
        **({"rank": calltree["rank"].astype("int64")} if several else {}),
    }

"""Call paths as a hatchet.GraphFrame: whole, and Hatchet's own methods work on it at their defaults."""

from pathlib import Path
from typing import Any

import callpaths
import hatchet
import numpy as np
import pandas as pd
import pytest
from callpaths import MAIN, WORKER
from real import truth_of

import perfkit
from perfkit.errors import PerfkitError, SchemaError
from perfkit.readers.hpctoolkit.contexts import measured
from perfkit.readers.hpctoolkit.graph import CallGraph, graph_frame
from perfkit.run import Run
from perfkit.tables import CALL_METRICS, CALLTREE

DATABASES = ["cpi", "ping-pong", "leo-nvidia", "dlrm-gpu", "dlrm-cpu"]
CPU, GPU = "CPUTIME (inc)", "GPUOP (inc)"
HOSTILE = [
    "operator<<(a&, b*)",
    "größe::测试()",
    'label="x"',
    "a; b 7",
    "\x1b[31mred",
    "two\nlines",
    "k" * 900,
]


def toy() -> CallGraph:
    return graph_frame(callpaths.toy_tree(), callpaths.toy_metrics())


def chain(names: list[str]) -> CallGraph:
    """A call path of these names below an entry point, each with 1 s of its own."""
    rows = [
        {"node": 0, "name": MAIN},
        *({"node": n, "parent": n - 1, "name": x} for n, x in enumerate(names, 1)),
    ]
    count = len(rows)
    metrics = [(n, "CPUTIME", "s", float(count - n), 1.0) for n in range(count)]
    return graph_frame(callpaths.calltree(*rows), callpaths.call_metrics(*metrics))


def named(graph: hatchet.GraphFrame) -> pd.DataFrame:
    """The rows by entry point and name; the toy program has each name once below an entry point."""
    return graph.dataframe.reset_index(drop=True).set_index(["entry_point", "name"])


def at_roots(graph: hatchet.GraphFrame) -> pd.Series:
    return graph.dataframe.loc[graph.graph.roots, sorted(graph.inc_metrics)].sum()


def test_nodes_and_columns() -> None:
    # Hatchet's reader drops the worker and cuts names; here are both roots and all 11 contexts, in pre-order.
    graph, tree = toy(), callpaths.toy_tree()
    assert isinstance(graph, hatchet.GraphFrame)
    nodes = list(graph.graph.traverse())
    assert [WORKER, MAIN] == [root.frame["name"] for root in nodes if not root.parents]
    assert nodes == list(graph.dataframe.index)
    assert list(range(11)) == [node._hatchet_nid for node in nodes]
    name = {**tree.set_index("node")["name"], None: None}
    parents = [name[None if pd.isna(parent) else parent] for parent in tree["parent"]]
    expected = dict(zip(zip(tree["name"], tree["depth"], strict=True), parents, strict=True))
    above = {node: node.parents[0].frame["name"] if node.parents else None for node in nodes}
    assert expected == {(node.frame["name"], node._depth): parent for node, parent in above.items()}
    # Unknown files and modules are "", unknown lines 0: Hatchet's queries compare texts and numbers only.
    frame = toy().dataframe
    columns = ["name", "type", "file", "line", "module", "entry_point"]
    assert columns == list(frame.columns[:6])
    step = frame.loc[frame["line"] == 12, columns].iloc[0]
    assert ["train.py:12", "line", "/job/train.py", 12, "", MAIN] == step.tolist()
    kernels = frame.loc[frame["name"] == "<gpu kernel>", columns[1:5]]
    assert {("gpu_operation", "", 0, "")} == set(kernels.itertuples(index=False, name=None))
    assert [object, object, object, np.int64] == [frame[column].dtype for column in columns[:4]]


def test_metrics_and_their_default() -> None:
    graph = toy()
    row = named(graph).loc[(MAIN, "at::mm(at::Tensor)")]
    assert (2.0, 2.0, 0.002, 0.0) == tuple(row[[CPU, "CPUTIME", GPU, "GPUOP"]])
    metrics = ["CPUTIME", "GKER", "GKER:COUNT", "GPUOP", "GXCOPY", "GXCOPY:COUNT", "GXCOPY:H2D"]
    assert metrics == sorted(graph.exc_metrics)
    assert [f"{metric} (inc)" for metric in graph.exc_metrics] == graph.inc_metrics
    units = graph.metadata["units"]
    assert ("s", "s", "bytes", "count") == (
        units[CPU],
        units["GPUOP"],
        units["GXCOPY:H2D"],
        units["GKER:COUNT (inc)"],
    )
    assert set(units) == {*graph.exc_metrics, *graph.inc_metrics}
    # What was not measured is 0, which Hatchet adds, compares, draws and rounds.
    assert 0.0 == named(graph).loc[(WORKER, "<gpu kernel>"), CPU]
    assert not graph.dataframe[graph.exc_metrics + graph.inc_metrics].isna().any(axis=None)
    # CPU time, else GPU time, else the first by name.
    for metrics, expected in [
        (["GPUOP", "CPUTIME", "A"], CPU),
        (["GPUOP", "A"], GPU),
        (["B", "A"], "A (inc)"),
    ]:
        tree = callpaths.calltree({"node": 1, "name": MAIN})
        rows = [(1, metric, "s", 1.0, 1.0) for metric in metrics]
        assert expected == graph_frame(tree, callpaths.call_metrics(*rows)).default_metric


def test_ranks_are_told_apart_and_arguments_stay() -> None:
    tree, metrics = callpaths.toy_tree(), callpaths.toy_metrics()
    copies = tree.copy(), metrics.copy()
    twice = [
        part.make(pd.concat([one, one.assign(rank=1)]))
        for part, one in ((CALLTREE, tree), (CALL_METRICS, metrics))
    ]
    graph = graph_frame(*twice)
    assert 4 == len(graph.graph.roots)
    assert {0: 11, 1: 11} == graph.dataframe["rank"].value_counts().to_dict()
    assert 22 == len(graph.squash().dataframe)  # ranks with the same contexts are not added up
    pd.testing.assert_series_equal(at_roots(graph), 2 * at_roots(toy()))
    assert "rank" not in toy().dataframe
    graph_frame(tree, metrics).dataframe[CPU] = 7.0
    pd.testing.assert_frame_equal(copies[0], tree)
    pd.testing.assert_frame_equal(copies[1], metrics)


def test_tables_that_do_not_belong_together_are_refused() -> None:
    """A context without its parent would silently become an entry point, a metric without its context vanish."""
    tree, metrics = callpaths.toy_tree(), callpaths.toy_metrics()
    with pytest.raises(
        PerfkitError, match=r"calltree: the parent of 2 contexts is not in the table\. Pass both"
    ):
        graph_frame(tree[tree["node"] != 4], metrics[metrics["node"] != 4])
    with pytest.raises(
        PerfkitError,
        match=r"call_metrics: the context of 4 rows is not in the call tree\. Pass both",
    ):
        graph_frame(tree[tree["node"] != 7], metrics)
    with pytest.raises(PerfkitError, match=r"call_metrics: no call path has a metric\. Record one"):
        graph_frame(tree, CALL_METRICS.empty())
    with pytest.raises(SchemaError, match="CALLTREE"):
        graph_frame(metrics, tree)
    with pytest.raises(
        PerfkitError, match=r"run: no profile has call paths\. Record them with `hpcrun .*hpcprof`"
    ):
        _ = Run([]).call_graph


def test_flame_graphs_groups_and_other_outputs() -> None:
    graph = chain(HOSTILE)
    shown = graph.tree(expand_name=True)
    assert all(name in shown for name in HOSTILE)
    assert [f"{8 - n}.000" for n in range(8)] == [
        word for word in shown.split() if word.endswith(".000")
    ]
    # A name does not end its frame or its stack, which semicolons and lines do.
    lines = graph.to_flamegraph().splitlines()
    assert list(range(8)) == sorted(line.count("; ") for line in lines)
    assert all(line.endswith(" 1000000000") for line in lines)
    train = f"{MAIN}; train; train.py:12"
    stacks = {train: 1000000000, f"{train}; at::mm(at::Tensor)": 2000000000}
    stacks |= {WORKER: 250000000, f"{WORKER}; backward()": 750000000}
    graph = toy()
    assert sorted(f"{stack} {ns}" for stack, ns in stacks.items()) == sorted(
        graph.to_flamegraph().splitlines()
    )
    # Bytes stay bytes; inclusive values on demand, as Hatchet.
    copied = f"{train}; at::mm(at::Tensor); <gpu copyin>"
    assert f"{copied} 8000000\n" == graph.to_flamegraph("GXCOPY:H2D")
    assert f"{MAIN} 3000000000" in graph.to_flamegraph(CPU).splitlines()


def test_filter() -> None:
    # Of the main thread's 3 s nothing is left without lines and functions of torch, of 2 ms on the GPU all.
    graph = toy()
    kept = graph.filter(lambda row: row["type"] in ("entry", "gpu_operation"))
    assert isinstance(kept, CallGraph)
    rows = named(kept)
    assert {MAIN: 0.0, WORKER: 0.25} == {
        entry: rows.loc[(entry, entry), CPU] for entry in (MAIN, WORKER)
    }
    assert 0.002 == pytest.approx(rows.loc[(MAIN, MAIN), GPU], rel=1e-12)
    assert {"<gpu kernel>", "<gpu copyin>", MAIN, WORKER} == set(kept.dataframe["name"])
    # With update_inc_cols=False the contexts left have the values they had.
    kept = graph.filter(lambda row: row["type"] == "entry", update_inc_cols=False)
    pd.testing.assert_series_equal(at_roots(graph), at_roots(kept))
    assert 2 == len(kept.dataframe)


def test_queries_sums_and_squash() -> None:
    cypher = (
        'MATCH (".", p)->("*")->(".", q) WHERE p."type" = "entry" AND q."name" = "<gpu kernel>"'
    )
    for query in ([{"type": "entry"}, "*", {"name": "<gpu kernel>"}], cypher):
        paths = toy().filter(query)
        assert {MAIN: 5, WORKER: 3} == paths.dataframe["entry_point"].value_counts().to_dict()
        assert [0.001, 0.001] == paths.dataframe.loc[paths.graph.roots, GPU].tolist()
    # A missing text or number would end such a query with an exception.
    for condition in ({"file": ".*train.py"}, {"module": ""}, {"line": 12}, {"line": "> 0"}):
        assert "train.py:12" in toy().filter([condition]).dataframe["name"].tolist()
    # In one pass what Hatchet adds up context by context, also for some columns into others.
    ours = toy()
    ours.dataframe[ours.inc_metrics] = -1.0
    theirs = hatchet.GraphFrame(
        ours.graph, ours.dataframe.copy(), ours.exc_metrics, ours.inc_metrics
    )
    for graph in (ours, theirs):
        graph.update_inclusive_columns()
        graph.subgraph_sum(["GKER", "CPUTIME"], ["kernels below", "CPU below"])
    pd.testing.assert_frame_equal(theirs.dataframe, ours.dataframe, rtol=1e-12)
    pd.testing.assert_series_equal(at_roots(toy()), at_roots(ours))
    # Contexts of one name and type below one parent are the same to Hatchet.
    tree = callpaths.calltree(
        {"node": 1, "name": MAIN}, *({"node": n, "parent": 1, "name": "f"} for n in (2, 3))
    )
    rows = [
        (1, "CPUTIME", "s", 3.0, 0.0),
        (2, "CPUTIME", "s", 1.0, 1.0),
        (3, "CPUTIME", "s", 2.0, 2.0),
    ]
    graph = graph_frame(tree, callpaths.call_metrics(*rows))
    assert 3 == len(graph.dataframe)
    assert [3.0, 3.0] == graph.squash().dataframe[CPU].tolist()


def test_arithmetic_and_copies() -> None:
    # Frames that share a graph too, where Hatchet's difference is 0 in the frame it was taken from.
    graph = toy()
    before = at_roots(graph)
    for other in (graph, graph.copy(), graph.deepcopy(), toy()):
        assert 0.0 == at_roots(graph - other).abs().max()
        pd.testing.assert_series_equal(2 * before, at_roots(graph + other))
        pd.testing.assert_series_equal(before, at_roots(graph))
        pd.testing.assert_series_equal(before, at_roots(other))
    # 0 - 2 s is -2 s; Hatchet keeps NaN - 2 as NaN.
    tree = callpaths.calltree({"node": 1, "name": MAIN}, {"node": 2, "parent": 1, "name": "f"})
    idle = graph_frame(tree, callpaths.call_metrics((1, "CPUTIME", "s", 3.0, 3.0)))
    busy = graph_frame(
        tree, callpaths.call_metrics((1, "CPUTIME", "s", 3.0, 1.0), (2, "CPUTIME", "s", 2.0, 2.0))
    )
    assert {"f": -2.0, MAIN: 0.0} == (idle - busy).dataframe.set_index("name")[CPU].to_dict()


def test_deep_call_paths_are_held() -> None:
    """Building, copying, filtering, summing, the top of the tree, differences and flame graphs do not recurse."""
    deep = chain([f"f{n}" for n in range(5000)])
    assert 5001.0 == at_roots(deep)[CPU]
    kept = deep.filter(lambda row: row[CPU] > 5.0, squash=False)
    assert 4996 == len(kept.dataframe)
    again = deep.copy()
    again.update_inclusive_columns()
    assert 5001.0 == at_roots(again)[CPU]
    assert 10 == deep.tree(depth=10, render_header=False).count("\n")
    assert 0.0 == at_roots(deep - again)[CPU]
    assert 5001 == deep.to_flamegraph().count("\n")


def loaded(profiles: Path, name: str) -> tuple[Run, dict[str, Any]]:
    full = f"hpctoolkit-{name}-database"
    return perfkit.load(profiles / "hpctoolkit" / full), truth_of(profiles, "hpctoolkit", full)


@pytest.mark.parametrize("name", DATABASES)
def test_real_totals_equal_the_reference(name: str, profiles: Path) -> None:
    run, truth = loaded(profiles, name)
    graph = run.call_graph
    assert graph is run.call_graph
    totals = truth.get("total") or {"CPUTIME (usec)": truth["total_inclusive_at_roots"]}
    expected = {f"{(m := measured(text))[0]} (inc)": value * m[2] for text, value in totals.items()}
    assert expected == pytest.approx(at_roots(graph).to_dict(), rel=1e-9)
    own = graph.dataframe[graph.exc_metrics].sum()
    assert expected == pytest.approx(
        {f"{metric} (inc)": value for metric, value in own.items()}, rel=1e-9
    )
    assert truth.get("n_contexts", 34) == len(graph.dataframe) == len(graph.graph)

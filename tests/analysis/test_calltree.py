"""Totals, functions, hot path and threads of a call tree, on the toy program of `callpaths`."""

from __future__ import annotations

import pandas as pd
import pytest
from callpaths import MAIN, PYTHON, WORKER, call_metrics, calltree, thread_metrics, threads, toy_metrics, toy_tree

from perfkit.analysis import calltree as paths
from perfkit.errors import SchemaError
from perfkit.tables import CALL_METRICS, CALLTREE, THREAD_METRICS, THREADS

TREE, METRICS = toy_tree(), toy_metrics()


def values(frame: pd.DataFrame, *columns: str) -> list[tuple[object, ...]]:
    """The rows of some columns as tuples."""
    return list(frame[[*columns]].itertuples(index=False, name=None))


def two_ranks(frame: pd.DataFrame) -> pd.DataFrame:
    """The table twice, as ranks 0 and 1."""
    table = CALLTREE if "parent" in frame else CALL_METRICS
    return table.make(pd.concat([frame, frame.assign(rank=frame["rank"] + 1)], ignore_index=True))


def test_totals_by_hand() -> None:
    """CPU time is 3 s below the main thread and 1 below the other: 0.75 and 0.25; only one of them copies."""
    found = paths.inclusive(TREE, METRICS).set_index("metric")
    assert [(WORKER, "s", 1.0, 0.25), (MAIN, "s", 3.0, 0.75)] == values(
        found.loc["CPUTIME"], "entry", "unit", "inclusive", "share_frac"
    )
    assert [(MAIN, "bytes", 8e6, 1.0)] == values(found.loc[["GXCOPY:H2D"]], "entry", "unit", "inclusive", "share_frac")


def test_entries_of_one_name_are_summed() -> None:
    """Two roots called application thread make one row of 1 + 2 = 3 s."""
    tree = calltree({"node": 1, "name": WORKER}, {"node": 2, "name": WORKER})
    found = paths.inclusive(tree, call_metrics((1, "CPUTIME", "s", 1.0, 1.0), (2, "CPUTIME", "s", 2.0, 2.0)))
    assert [(WORKER, 3.0, 1.0)] == values(found, "entry", "inclusive", "share_frac")


def test_functions_by_hand() -> None:
    """mm takes 2 s itself, the line in train 1 s (which is train's), backward 0.75 and the worker's root 0.25: 4 s."""
    found = paths.exclusive(TREE, METRICS, metric="CPUTIME")
    assert [("at::mm(at::Tensor)", 2.0, 0.5, 1), ("train", 1.0, 0.25, 1), ("backward()", 0.75, 0.1875, 1)] == values(
        found, "name", "exclusive", "share_frac", "count"
    )[:3]
    assert (WORKER, "entry", 0.25) == values(found, "name", "kind", "exclusive")[3]
    assert {PYTHON, "/lib/libtorch.so"} == set(found["module"].dropna())


def test_lines_loops_and_instructions_belong_to_their_function() -> None:
    """2 s on a line, 3 s in a loop and 4 s at an instruction of f are 9 s of f; a kernel's placeholder stands alone."""
    tree = calltree(
        {"node": 1, "name": MAIN},
        {"node": 2, "parent": 1, "name": "f", "file": "f.c", "line": 1},
        {"node": 3, "parent": 2, "name": "loop at f.c:3", "kind": "loop", "file": "f.c", "line": 3},
        {"node": 4, "parent": 3, "name": "g.h:9", "kind": "line", "file": "g.h", "line": 9},
        {"node": 5, "parent": 4, "name": "f@0x1", "kind": "instruction"},
        {"node": 6, "parent": 5, "name": "<gpu copy>", "kind": "gpu_operation"},
    )
    own = {3: 3.0, 4: 2.0, 5: 4.0, 6: 1.0}
    below = {1: 10.0, 2: 10.0, 3: 10.0, 4: 7.0, 5: 5.0, 6: 1.0}
    metrics = call_metrics(*((node, "GPUOP", "s", below[node], own.get(node, 0.0)) for node in below))
    found = paths.exclusive(tree, metrics, metric="GPUOP")
    assert [("f", 9.0, 3), ("<gpu copy>", 1.0, 1)] == values(found, "name", "exclusive", "count")
    by_file = paths.exclusive(tree, metrics, metric="GPUOP", by="file")
    assert [("f.c", 7.0), ("g.h", 2.0), (pd.NA, 1.0)] == values(by_file, "name", "exclusive")
    by_kind = paths.exclusive(tree, metrics, metric="GPUOP", by="kind")
    assert [("instruction", 4.0), ("loop", 3.0), ("line", 2.0), ("gpu_operation", 1.0)] == values(
        by_kind, "name", "exclusive"
    )


def test_functions_of_one_name_in_two_places_stay_apart() -> None:
    """`forward` of two classes in one file is two functions; of one class, called from two places, it is one."""
    place = {"name": "forward", "module": PYTHON, "file": "net.py"}
    tree = calltree(
        {"node": 1, "name": MAIN},
        *({"node": node, "parent": 1, "line": line, **place} for node, line in ((2, 10), (3, 10), (4, 90))),
    )
    metrics = call_metrics((1, "CPUTIME", "s", 6.0, 0.0), *((n, "CPUTIME", "s", 2.0, 2.0) for n in (2, 3, 4)))
    found = paths.exclusive(tree, metrics, metric="CPUTIME")
    assert [(10, 4.0, 2), (90, 2.0, 1)] == values(found, "line", "exclusive", "count")


@pytest.mark.parametrize("by", ["function", "module", "file", "kind"])
@pytest.mark.parametrize("metric", ["CPUTIME", "GPUOP", "GKER", "GXCOPY:H2D"])
def test_exclusive_values_add_up_to_the_roots(metric: str, by: str) -> None:
    """However they are grouped, exclusive values add up to the total of the roots, and their shares to 1."""
    totals = paths.inclusive(TREE, METRICS)
    found = paths.exclusive(TREE, METRICS, metric=metric, by=by)
    assert (
        pytest.approx(totals.loc[totals["metric"] == metric, "inclusive"].sum(), rel=1e-12) == found["exclusive"].sum()
    )
    assert pytest.approx(1.0, rel=1e-12) == found["share_frac"].sum()


def test_hot_path_by_hand() -> None:
    """2 of the GPU's 3 ms are below main > train > mm; its kernel and its copy have half each: the first is taken."""
    found = paths.hot_path(TREE, METRICS, metric="GPUOP")
    assert [1, 2, 3, 4, 5] == found["node"].tolist()
    assert [1.0, 1.0, 1.0, 1.0, 0.5] == found["share_frac"].tolist()
    assert [(0, "entry", MAIN), (1, "function", "train"), (2, "line", "train.py:12")] == values(
        found, "depth", "kind", "name"
    )[:3]
    assert {"s"} == set(found["unit"])


def test_hot_path_ends_where_the_value_is_spread() -> None:
    """No child of mm has 0.6 of its 2 ms; with nothing demanded the path goes down to the last context."""
    assert [1, 2, 3, 4] == paths.hot_path(TREE, METRICS, metric="GPUOP", at_least=0.6)["node"].tolist()
    assert [1, 2, 3, 4, 5] == paths.hot_path(TREE, METRICS, metric="GPUOP", at_least=0.0)["node"].tolist()
    assert [1, 2, 3, 4] == paths.hot_path(TREE, METRICS, metric="CPUTIME")["node"].tolist()


def test_hot_path_of_an_entry() -> None:
    """From the worker's root it goes to its own kernel, though the main thread has more."""
    assert [10, 11, 12] == paths.hot_path(TREE, METRICS, metric="GKER", entry=WORKER)["node"].tolist()


def test_threads_by_hand() -> None:
    """Values 6 and 2: shares 0.75 and 0.25, mean 4, so 1.5 times the mean is the imbalance; the idle one counts not."""
    who = threads((1, "cpu", "thread 0"), (2, "cpu", "thread 1"), (3, "cpu", "thread 2"))
    did = thread_metrics(
        (1, WORKER, "CPUTIME", "s", 2.0), (2, MAIN, "CPUTIME", "s", 5.0), (2, WORKER, "CPUTIME", "s", 1.0)
    )
    found = paths.threads(who, did, metric="CPUTIME")
    assert [(2, MAIN, 6.0, 0.75, 1.5), (1, WORKER, 2.0, 0.25, 0.5)] == values(
        found, "thread", "entry", "value", "share_frac", "times_mean"
    )[:2]
    assert [3, 0.0, 0.0] == found.loc[2, ["thread", "value", "times_mean"]].tolist()
    per_entry = paths.threads(who, did, metric="CPUTIME", by="entry").set_index(["entry", "thread"])
    assert 1.0 == per_entry.loc[(MAIN, 2), "times_mean"]
    assert 2 / 1.5 == per_entry.loc[(WORKER, 1), "times_mean"]


def test_a_second_rank_changes_nothing_in_the_first() -> None:
    """The same nodes in two ranks are two programs: each rank's figures are those of one alone."""
    tree, metrics = two_ranks(TREE), two_ranks(METRICS)
    for once, twice in (
        (paths.inclusive(TREE, METRICS), paths.inclusive(tree, metrics)),
        (paths.exclusive(TREE, METRICS, metric="GPUOP"), paths.exclusive(tree, metrics, metric="GPUOP")),
        (paths.gpu_summary(TREE, METRICS), paths.gpu_summary(tree, metrics)),
    ):
        for rank in (0, 1):
            one = twice[twice["rank"] == rank].assign(rank=0).astype({"rank": "int32"}).reset_index(drop=True)
            pd.testing.assert_frame_equal(once, one, check_categorical=False)


def test_arguments_are_not_changed() -> None:
    """The analyses leave the tables as they were."""
    tree, metrics = TREE.copy(deep=True), METRICS.copy(deep=True)
    paths.exclusive(tree, metrics, metric="GPUOP")
    paths.kernels(tree, metrics)
    pd.testing.assert_frame_equal(TREE, tree)
    pd.testing.assert_frame_equal(METRICS, metrics)


def test_empty_tables() -> None:
    """Nothing gives no rows, with the columns and dtypes of a full answer."""
    nothing = CALLTREE.empty(), CALL_METRICS.empty()
    for full, empty in (
        (paths.inclusive(TREE, METRICS), paths.inclusive(*nothing)),
        (paths.exclusive(TREE, METRICS, metric="GKER"), paths.exclusive(*nothing, metric="GKER")),
        (paths.hot_path(TREE, METRICS, metric="GKER"), paths.hot_path(*nothing, metric="GKER")),
        (paths.hot_path(TREE, METRICS, metric="GKER"), paths.hot_path(TREE, CALL_METRICS.empty(), metric="GKER")),
        (
            paths.threads(threads((1, "cpu", "a")), thread_metrics((1, MAIN, "GKER", "s", 1.0)), metric="GKER"),
            paths.threads(THREADS.empty(), THREAD_METRICS.empty(), metric="GKER"),
        ),
    ):
        assert (0, full.dtypes.astype(str).to_dict()) == (len(empty), empty.dtypes.astype(str).to_dict())


def test_threads_without_metrics_did_nothing() -> None:
    """A thread of a profile without metrics has the value 0 and no share."""
    found = paths.threads(threads((1, "cpu", "a")), THREAD_METRICS.empty(), metric="GKER")
    assert [0.0] == found["value"].tolist()
    assert found[["share_frac", "times_mean"]].isna().all(axis=None)


def test_wrong_arguments() -> None:
    """What is not one of the legal values is refused with them."""
    with pytest.raises(ValueError, match=r"metric: 'time' is not one of .'CPUTIME', 'GKER'"):
        paths.exclusive(TREE, METRICS, metric="time")
    with pytest.raises(ValueError, match=r"by: 'node' is not one of .'function', 'module', 'file', 'kind'"):
        paths.exclusive(TREE, METRICS, metric="GKER", by="node")
    with pytest.raises(ValueError, match=r"entry: 'main' is not one of .'application thread', 'main thread'"):
        paths.hot_path(TREE, METRICS, metric="GKER", entry="main")
    with pytest.raises(ValueError, match="at_least: 50 is not within 0 to 1"):
        paths.hot_path(TREE, METRICS, metric="GKER", at_least=50)
    with pytest.raises(ValueError, match=r"by: 'rank' is not one of .'thread', 'entry'"):
        paths.threads(THREADS.empty(), THREAD_METRICS.empty(), metric="GKER", by="rank")


def test_wrong_tables() -> None:
    """Frames that are other tables are refused by name."""
    with pytest.raises(SchemaError, match="CALLTREE"):
        paths.inclusive(METRICS, METRICS)
    with pytest.raises(SchemaError, match="CALL_METRICS"):
        paths.exclusive(TREE, TREE, metric="GKER")
    with pytest.raises(SchemaError, match="CALL_METRICS"):
        paths.hot_path(TREE, TREE, metric="GKER")
    with pytest.raises(SchemaError, match="THREADS"):
        paths.threads(TREE, THREAD_METRICS.empty(), metric="GKER")
    with pytest.raises(SchemaError, match="THREAD_METRICS"):
        paths.threads(THREADS.empty(), METRICS, metric="GKER")

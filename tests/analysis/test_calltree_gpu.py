"""What the GPU did, what its launches cost, and figures summed over rows of the tree beside the true ones."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from callpaths import MAIN, WORKER, call_metrics, calltree, toy_metrics, toy_tree

from perfkit.analysis import calltree as paths
from perfkit.analysis.calltree import ASSUMED_LAUNCH_S
from perfkit.errors import SchemaError
from perfkit.tables import CALL_METRICS, CALLTREE

TREE, METRICS = toy_tree(), toy_metrics()


def test_whole_program_by_hand() -> None:
    """Kernels 1 + 1 ms in 100 + 100 launches: 10 us in the mean; a copy of 1 ms is 1/3 of kernels and copies."""
    (row,) = paths.gpu_summary(TREE, METRICS).to_dict("records")
    assert (2e6, 1e6, 3e6, 200.0, 1.0) == tuple(
        row[name] for name in ("kernel_ns", "copy_ns", "operation_ns", "launch_count", "copy_count")
    )
    assert (10_000.0, 8e6, 4e9) == (row["kernel_mean_ns"], row["h2d_bytes"], row["host_ns"])
    assert pytest.approx(1 / 3, rel=1e-12) == row["copy_frac"]


def test_entries_by_hand() -> None:
    """Only the main thread copies: the other one has a copy time of 0, not an unknown one."""
    found = paths.gpu_summary(TREE, METRICS, by="entry").set_index("entry")
    assert [0.0, 1e6] == found.loc[[WORKER, MAIN], "copy_ns"].tolist()
    assert [0.0, 0.5] == found.loc[[WORKER, MAIN], "copy_frac"].tolist()
    assert [1e9, 3e9] == found.loc[[WORKER, MAIN], "host_ns"].tolist()


def test_what_was_not_recorded_is_unknown() -> None:
    """Without a metric its figure is NaN, and so are those made of it."""
    (row,) = paths.gpu_summary(TREE, METRICS).to_dict("records")
    absent = ("implicit_copy_ns", "memset_ns", "synchronisation_ns", "d2h_bytes", "sample_count", "coverage_frac")
    assert all(np.isnan(row[name]) for name in absent)
    host_only = call_metrics((1, "CPUTIME", "s", 3.0, 3.0))
    (row,) = paths.gpu_summary(TREE, host_only).to_dict("records")
    assert (3e9, True) == (row["host_ns"], np.isnan(row["kernel_mean_ns"]))


def test_a_rank_without_a_gpu_does_not_get_one() -> None:
    """Rank 1 recorded only CPU time: its kernel time is unknown although rank 0 has one."""
    tree = CALLTREE.make(pd.concat([TREE, TREE.assign(rank=np.int32(1))], ignore_index=True))
    host = METRICS[METRICS["metric"] == "CPUTIME"].assign(rank=np.int32(1))
    metrics = CALL_METRICS.make(pd.concat([METRICS, host], ignore_index=True))
    assert [2e6, np.nan] == pytest.approx(paths.gpu_summary(tree, metrics)["kernel_ns"].tolist(), nan_ok=True)
    assert [4e9, 4e9] == paths.gpu_summary(tree, metrics)["host_ns"].tolist()


def test_sample_coverage_by_hand() -> None:
    """60 samples taken of 80 expected, 5 dropped: 0.75."""
    tree = calltree({"node": 1, "name": MAIN})
    taken = {"GSAMP:TOT": 60.0, "GSAMP:EXP": 80.0, "GSAMP:DRP": 5.0}
    (row,) = paths.gpu_summary(
        tree, call_metrics(*((1, metric, "samples", value, value) for metric, value in taken.items()))
    ).to_dict("records")
    assert (60.0, 80.0, 5.0, 0.75) == tuple(
        row[name] for name in ("sample_count", "expected_sample_count", "dropped_sample_count", "coverage_frac")
    )


def test_cpu_time_and_real_time_are_never_added() -> None:
    """Of CPUTIME 3 s and REALTIME 5 s the host's time is the first; alone, the second is."""
    tree = calltree({"node": 1, "name": MAIN})
    cpu, real = (1, "CPUTIME", "s", 3.0, 3.0), (1, "REALTIME", "s", 5.0, 5.0)
    for rows, seconds, metric in (((cpu, real), 3.0, "CPUTIME"), ((real,), 5.0, "REALTIME")):
        assert [seconds * 1e9] == paths.gpu_summary(tree, call_metrics(*rows))["host_ns"].tolist()
        assert metric == paths.host_metric(call_metrics(*rows))
    assert "" == paths.host_metric(CALL_METRICS.empty())


def test_launch_cost_by_hand() -> None:
    """200 launches of 5 to 10 us are 1 to 2 ms, 0.1 to 0.2 of 10 ms; per entry half of that."""
    found = paths.launch_cost(paths.gpu_summary(TREE, METRICS), wall_ns=1e7)
    assert [0, 200.0, 1e6, 2e6, 0.1, 0.2] == found.loc[0].tolist()
    per_entry = paths.launch_cost(paths.gpu_summary(TREE, METRICS, by="entry"), wall_ns=1e7)
    assert [(WORKER, 0.05), (MAIN, 0.05)] == list(per_entry[["entry", "low_frac"]].itertuples(index=False, name=None))


def test_sums_over_rows_by_hand() -> None:
    """GKER stands with 1 ms in five rows of the main thread's tree: 5 ms, where its root has 1 and all have 2."""
    found = paths.tree_sums(TREE, METRICS).set_index("figure")[["tree_sum", "main_thread", "all_threads"]]
    assert pytest.approx([0.005, 0.001, 0.002], rel=1e-12) == found.loc["kernel_time"].tolist()
    assert [500.0, 100.0, 200.0] == found.loc["launches"].tolist()
    assert pytest.approx([0.5, 0.5, 1 / 3], rel=1e-12) == found.loc["copy_share"].tolist()
    assert pytest.approx([11.0, 3.0, 4.0], rel=1e-12) == found.loc["host_time"].tolist()
    assert pytest.approx([0.01 / 11.01, 0.002 / 3.002, 0.003 / 4.003], rel=1e-12) == found.loc["gpu_share"].tolist()
    assert pytest.approx([500 * ASSUMED_LAUNCH_S / 0.005] * 3, rel=1e-12) == found.loc["launch_overhead"].tolist()


@pytest.mark.parametrize("prefix", ["GINS:STL_", "GCYCLES:STL:"])
def test_stalls_by_old_and_new_names(prefix: str) -> None:
    """3 + 1 of gmem and idep are 0.75 and 0.25; a total beside them is not added."""
    tree = calltree({"node": 1, "name": MAIN})
    own = {f"{prefix}IDEP": 1.0, f"{prefix}GMEM": 3.0, "GINS:STL_ANY": 4.0, "GCYCLES:STL": 4.0}
    metrics = call_metrics(*((1, metric, "count", value, value) for metric, value in own.items()))
    found = paths.tree_sums(tree, metrics)
    assert [("stall_gmem", "frac", 0.75), ("stall_idep", "frac", 0.25)] == list(
        found[["figure", "unit", "all_threads"]].itertuples(index=False, name=None)
    )


def test_without_a_main_thread_the_method_has_no_answer() -> None:
    """Of a program whose only entry is another thread the main thread's figures are unknown."""
    tree = calltree({"node": 1, "name": WORKER})
    found = paths.tree_sums(tree, call_metrics((1, "CPUTIME", "s", 1.0, 1.0)))
    assert ["host_time", 1.0] == found.loc[0, ["figure", "all_threads"]].tolist()
    assert found[["tree_sum", "main_thread"]].isna().all(axis=None)


def test_empty_tables() -> None:
    """Nothing gives no rows, with the columns and dtypes of a full answer."""
    nothing = CALLTREE.empty(), CALL_METRICS.empty()
    summary = paths.gpu_summary(TREE, METRICS, by="entry")
    for full, empty in (
        (paths.gpu_summary(TREE, METRICS), paths.gpu_summary(*nothing)),
        (summary, paths.gpu_summary(*nothing, by="entry")),
        (paths.launch_cost(summary, wall_ns=1), paths.launch_cost(paths.gpu_summary(*nothing, by="entry"), wall_ns=1)),
        (paths.tree_sums(TREE, METRICS), paths.tree_sums(*nothing)),
    ):
        assert (0, full.dtypes.astype(str).to_dict()) == (len(empty), empty.dtypes.astype(str).to_dict())


def test_wrong_arguments_and_tables() -> None:
    """Other tables and values that are not legal are refused."""
    with pytest.raises(ValueError, match=r"by: 'thread' is not one of .'rank', 'entry'"):
        paths.gpu_summary(TREE, METRICS, by="thread")
    with pytest.raises(ValueError, match="wall_ns: 0 is not above 0"):
        paths.launch_cost(paths.gpu_summary(TREE, METRICS), wall_ns=0)
    with pytest.raises(ValueError, match="column launch_count is missing"):
        paths.launch_cost(TREE, wall_ns=1)
    with pytest.raises(SchemaError, match="CALL_METRICS"):
        paths.gpu_summary(TREE, TREE)
    with pytest.raises(SchemaError, match="CALLTREE"):
        paths.tree_sums(METRICS, METRICS)
    with pytest.raises(SchemaError, match="CALL_METRICS"):
        paths.host_metric(TREE)

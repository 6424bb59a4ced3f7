"""What the GPU did, what its launches cost, how long it was busy; and real databases against their own totals."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from callpaths import MAIN, WORKER, call_metrics, calltree, threads, toy_metrics, toy_tree, trace
from frames import known, tuples
from real import truth_of

import perfkit
from perfkit.analysis import calltree as paths
from perfkit.analysis.calltree import utilisation
from perfkit.analysis.calltree.paths import launched
from perfkit.analysis.warps import stall_shares
from perfkit.errors import PerfkitError, SchemaError
from perfkit.tables import CALL_METRICS, CALLTREE, TRACE

TREE, METRICS = TOY = toy_tree(), toy_metrics()
HOST = call_metrics((1, "CPUTIME", "s", 1.0, 1.0))
MS = 1_000_000
STREAMS = threads(
    (1, "cpu", "thread 0"),
    (7, "gpu", "GPU context 1 stream 7"),
    (8, "gpu", "GPU context 1 stream 8"),
)
GPU, CPU = "hpctoolkit-dlrm-gpu-database", "hpctoolkit-dlrm-cpu-database"
TIMES = {
    "kernel": "kernel",
    "copy": "copy",
    "operation": "gpu_op",
    "synchronisation": "sync",
    "allocation": "alloc",
}
TIMES |= {"memset": "memset", "host": "cpu"}
FIGURES = {f"{ours}_ns": (f"{key}_time_s", 1e9) for ours, key in TIMES.items()}
FIGURES |= {"launch_count": ("kernel_launches", 1), "copy_count": ("copies", 1)}
FIGURES |= {
    "copy_frac": ("copy_share_of_kernel_plus_copy", 1),
    "kernel_mean_ns": ("mean_kernel_us", 1e3),
}


def test_summary_by_hand() -> None:
    (row,) = paths.gpu_summary(TREE, METRICS).to_dict("records")
    times = {"kernel_ns": 2e6, "copy_ns": 1e6, "operation_ns": 3e6, "host_ns": 4e9}
    counts = {"launch_count": 200.0, "copy_count": 1.0, "h2d_bytes": 8e6}
    expected = {**times, **counts, "kernel_mean_ns": 10_000.0}
    assert expected == {name: row[name] for name in expected}
    absent = ("implicit_copy_ns", "memset_ns", "synchronisation_ns")
    absent += ("d2h_bytes", "sample_count", "coverage_frac")
    assert pytest.approx(1 / 3, rel=1e-12) == row["copy_frac"]
    assert all(np.isnan(row[name]) for name in absent)


def test_without_a_kernel_its_mean_is_unknown() -> None:
    found = paths.gpu_summary(TREE, call_metrics((1, "CPUTIME", "s", 3.0, 3.0)))
    assert [(3e9, None)] == known(found, "host_ns", "kernel_mean_ns")


def test_an_entry_that_copies_nothing_has_a_copy_time_of_0() -> None:
    """Only the main thread copies."""
    found = paths.gpu_summary(TREE, METRICS, by="entry")
    expected = [(WORKER, 0.0, 0.0, 1e9), (MAIN, 1e6, 0.5, 3e9)]
    assert expected == tuples(found, "entry", "copy_ns", "copy_frac", "host_ns")


def test_a_rank_that_recorded_no_kernel_has_no_kernel_time() -> None:
    """Rank 1 recorded only CPU time, rank 0 both."""
    tree = CALLTREE.make(pd.concat([TREE, TREE.assign(rank=np.int32(1))], ignore_index=True))
    host = METRICS[METRICS["metric"] == "CPUTIME"].assign(rank=np.int32(1))
    found = paths.gpu_summary(
        tree, CALL_METRICS.make(pd.concat([METRICS, host], ignore_index=True))
    )
    assert [(2e6, 4e9), (None, 4e9)] == known(found, "kernel_ns", "host_ns")


@pytest.mark.parametrize(("by", "bounds"), [("rank", (0.1, 0.2)), ("entry", (0.05, 0.1))])
def test_launches_cost_5_to_10_us_each(by: str, bounds: tuple[float, float]) -> None:
    cost = paths.launch_cost(paths.gpu_summary(TREE, METRICS, by=by), wall_ns=1e7)
    assert {bounds} == {*tuples(cost, "low_frac", "high_frac")}


def test_cpu_time_and_real_time_are_never_added() -> None:
    tree = calltree({"node": 1, "name": MAIN})
    cpu, real = (1, "CPUTIME", "s", 3.0, 3.0), (1, "REALTIME", "s", 5.0, 5.0)
    clock = (1, "perf::task-clock", "count", 7e9, 7e9)
    for rows, seconds in (((cpu, real), 3.0), ((real, clock), 5.0), ((clock,), 7.0)):
        assert [seconds * 1e9] == paths.gpu_summary(tree, call_metrics(*rows))["host_ns"].tolist()
        assert rows[0][1] == paths.host_metric(call_metrics(*rows))
    assert "" == paths.host_metric(CALL_METRICS.empty())


def test_coverage_of_samples() -> None:
    """60 samples taken of 80 expected, 5 dropped: 0.75."""
    taken = {"GSAMP:TOT": 60.0, "GSAMP:EXP": 80.0, "GSAMP:DRP": 5.0}
    metrics = call_metrics(*((1, of, "samples", value, value) for of, value in taken.items()))
    found = paths.gpu_summary(calltree({"node": 1, "name": MAIN}), metrics)
    columns = ["sample_count", "expected_sample_count", "dropped_sample_count", "coverage_frac"]
    assert [(60.0, 80.0, 5.0, 0.75)] == tuples(found, *columns)


def test_stalls_by_old_and_new_names() -> None:
    tree = calltree({"node": 1, "name": MAIN})
    for prefix in ("GINS:STL_", "GCYCLES:STL:"):
        own = {f"{prefix}IDEP": 1.0, f"{prefix}GMEM": 3.0, "GINS:STL_ANY": 4.0, "GCYCLES:STL": 4.0}
        metrics = call_metrics(
            *((1, metric, "count", value, value) for metric, value in own.items())
        )
        found = tuples(paths.tree_sums(tree, metrics), "figure", "unit", "all_threads")
        assert [("stall_gmem", "frac", 0.75), ("stall_idep", "frac", 0.25)] == found


def test_without_a_main_thread_its_figures_are_unknown() -> None:
    tree = calltree({"node": 1, "name": WORKER})
    found = paths.tree_sums(tree, call_metrics((1, "CPUTIME", "s", 1.0, 1.0)))
    assert ["host_time", 1.0] == found.loc[0, ["figure", "all_threads"]].tolist()
    assert found[["tree_sum", "main_thread"]].isna().all(axis=None)


# Kernels [0, 1) and [2, 3) ms in one stream, the copy [0.5, 1.5) in the other; the CPU thread is sampled up to 10 ms.
CERTAIN = trace(
    (1, 0, 10 * MS, 4, True),
    (7, 0, MS, 6, True),
    (7, 2 * MS, MS, 13, True),
    (8, MS // 2, MS, 7, True),
)


def bounds(*given: pd.DataFrame, **more: Any) -> tuple[float, float]:
    (row,) = utilisation(*given, **more).to_dict("records")
    return row["low_ns"] / MS, row["high_ns"] / MS


def test_union_of_two_streams_by_hand() -> None:
    found = utilisation(TREE, METRICS, CERTAIN, STREAMS)
    assert (2.5, 2.5) == bounds(TREE, METRICS, CERTAIN, STREAMS)
    columns = ["wall_ns", "gpus", "denominator_ns", "operation_ns", "low_frac", "high_frac"]
    assert [(1e7, 1, 1e7, 3e6, 0.25, 0.25)] == tuples(found, *columns)


def test_only_lengths_count_not_when_the_program_ran() -> None:
    later = TRACE.make(CERTAIN.assign(start_ns=CERTAIN["start_ns"] + 10**15))
    found = utilisation(TREE, METRICS, CERTAIN, STREAMS)
    pd.testing.assert_frame_equal(found, utilisation(TREE, METRICS, later, STREAMS))


def test_without_a_trace_the_sum_of_the_operations_is_the_most() -> None:
    found = utilisation(TREE, METRICS, threads=STREAMS, wall_ns=1e7)
    assert [(None, 3e6, 0.3)] == known(found, "low_ns", "high_ns", "high_frac")


def test_synchronising_is_no_work() -> None:
    kept = [
        {k: v for k, v in row.items() if pd.notna(v)}
        for row in TREE.astype(object).to_dict("records")
    ]
    tree = calltree(*kept, {"node": 20, "parent": 4, "name": "<gpu sync>", "kind": "gpu_operation"})
    waited = TRACE.make(
        pd.concat([CERTAIN, trace((8, 4 * MS, 5 * MS, 20, True))], ignore_index=True)
    )
    assert (2.5, 2.5) == bounds(tree, METRICS, waited, STREAMS)


def test_a_context_is_a_gpu() -> None:
    """The same two milliseconds on two of them are 2 of 2 x 10 ms."""
    two = threads((7, "gpu", "GPU context 1 stream 7"), (8, "gpu", "GPU context 2 stream 7"))
    found = utilisation(
        TREE, METRICS, trace((7, 0, MS, 6, True), (8, 0, MS, 13, True)), two, wall_ns=1e7
    )
    columns = ["low_ns", "high_ns", "gpus", "denominator_ns", "low_frac"]
    assert [(2 * MS, 2 * MS, 2, 2e7, 0.1)] == tuples(found, *columns)


def test_what_starts_1_ns_after_its_predecessor_was_moved_there_and_is_of_unknown_length() -> None:
    first = (7, 0, MS, 6, True)
    doubtful = trace((7, 0, 2 * MS, 6, False), (7, 2 * MS, MS, 13, True), (8, MS // 2, MS, 7, True))
    for ran, expected in (
        (doubtful, (1.0, 3.0)),
        (trace(first, (7, MS + 1, 8 * MS, 13, True)), (1.0, 3.0)),
        (trace(first, (7, MS + 2, MS, 13, True)), (2.0, 2.0)),
    ):
        assert expected == bounds(TREE, METRICS, ran, STREAMS, wall_ns=1e7)


SUMMED = paths.gpu_summary(TREE, METRICS)
GKER, LONG = {"metric": "GKER"}, trace((7, 0, 8 * MS, 6, True))


@pytest.mark.parametrize(
    ("of", "given", "more", "why"),
    [
        (
            paths.exclusive,
            TOY,
            {"metric": "time"},
            r"metric: 'time' is not one of .'CPUTIME', 'GKER'",
        ),
        (
            paths.hot_path,
            TOY,
            {**GKER, "entry": "main"},
            r"entry: 'main' is not one of .'application thread',",
        ),
        (paths.launch_cost, (SUMMED,), {"wall_ns": 0}, "wall_ns: 0 is not above 0"),
        (paths.host_metric, (TREE,), {}, "'CALL_METRICS'"),
        # Unknown denominators and contradictions.
        (utilisation, (TREE, HOST), {"wall_ns": 1e7}, "no GPU operations were measured"),
        (
            utilisation,
            TOY,
            {"threads": STREAMS},
            r"wall_ns: the length of the run is not known, found None\. Record a trace",
        ),
        (utilisation, TOY, {"wall_ns": 1e7}, r"gpus: 0 GPUs are known\. Record a trace"),
        (
            utilisation,
            TOY,
            {"wall_ns": 2e6, "threads": STREAMS},
            r"gpus: .*3e\+06 ns do not fit into 1 x 2e\+06 ns.*streams",
        ),
        (
            utilisation,
            (*TOY, CERTAIN, STREAMS),
            {"wall_ns": 2e6},
            r"2\.5e\+06 ns do not fit into 1 x 2e\+06 ns",
        ),
        (
            utilisation,
            (*TOY, LONG, STREAMS),
            {"wall_ns": 1e7},
            r"trace: .*rank 0 were busy for 8e\+06 ns.* 3e\+06 ns",
        ),
    ],
)
def test_what_cannot_be_asked_is_refused(
    of: Any, given: Any, more: dict[str, Any], why: str
) -> None:
    with pytest.raises((ValueError, SchemaError, PerfkitError), match=why):
        of(*given, **more)


DATABASES = [GPU, CPU, LEO := "hpctoolkit-leo-nvidia-database", "hpctoolkit-ping-pong-database"]


@functools.cache
def opened(profiles: Path, name: str) -> tuple[perfkit.Run, dict[str, Any]]:
    return perfkit.load(profiles / "hpctoolkit" / name), truth_of(profiles, "hpctoolkit", name)


def check(row: dict[str, Any], truth: dict[str, Any]) -> None:
    """Compare a row of gpu_summary with truth.json's figures; null there is not recorded, or 0 of one entry."""
    for figure, (key, factor) in FIGURES.items():
        if truth.get(key) is not None:
            assert pytest.approx(truth[key] * factor, rel=1e-9) == row[figure], figure
        else:
            assert not row[figure] > 0, figure
    for direction, amount in (truth["bytes"] or {}).items():
        assert amount == row[f"{direction.lower()}_bytes"]
    samples = truth.get("pc_samples", {})
    for key, name in (("total", "sample_count"), ("expected", "expected_sample_count")):
        assert (samples.get(key) or 0) == np.nan_to_num(row[name])


@pytest.mark.parametrize("name", DATABASES)
def test_totals_are_the_databases_own(profiles: Path, name: str) -> None:
    # Exclusive values by function are the total again, for every metric of the database.
    run, truth = opened(profiles, name)
    found = paths.inclusive(run.calltree, run.call_metrics)
    found_at = truth["by_entry"].items()
    stored = {
        (m.partition(" (")[0], entry): value for m, of in found_at for entry, value in of.items()
    }
    ours = {(row.metric, row.entry): row.inclusive for row in found.itertuples() if row.inclusive}
    assert pytest.approx(stored, rel=1e-9) == ours
    (row,) = paths.gpu_summary(run.calltree, run.call_metrics).to_dict("records")
    check(row, truth["derived_all_threads"])
    entries = paths.gpu_summary(run.calltree, run.call_metrics, by="entry").set_index("entry")
    check(entries.loc[truth["main_entry"]].to_dict(), truth["derived_main_thread_only"])
    for metric, total in truth["total"].items():
        found = paths.exclusive(run.calltree, run.call_metrics, metric=metric.partition(" (")[0])
        assert pytest.approx(total, rel=1e-9) == found["exclusive"].sum(), metric


@pytest.mark.parametrize("name", [GPU, LEO])
def test_kernels_are_the_databases_own(profiles: Path, name: str) -> None:
    # Shares of the stall reasons of all threads are a sum over the contexts.
    run, truth = opened(profiles, name)
    found = paths.kernels(run.calltree, run.call_metrics, run.stalls)
    known = truth["kernels"]
    assert known["distinct"] == len(found)
    assert pytest.approx(known["time_sum"] * 1e9, rel=1e-9) == found["total_ns"].sum()
    top = found.head(len(known["top5"]))
    assert [(k["name"], k["launches"]) for k in known["top5"]] == tuples(
        top, "full_name", "launch_count"
    )
    assert (
        pytest.approx([k["time_s"] * 1e9 for k in known["top5"]], rel=1e-9)
        == top["total_ns"].tolist()
    )
    sites = (
        launched(run.calltree, run.call_metrics)
        .groupby("full_name")[["launch_count", "total_ns"]]
        .sum()
    )
    by_name = found.set_index("full_name")
    assert pytest.approx(by_name["total_ns"].to_dict(), rel=1e-9) == sites["total_ns"].to_dict()
    assert by_name["launch_count"].to_dict() == sites["launch_count"].to_dict()
    waits = (
        stall_shares(run.stalls, by="node")
        .astype({"reason": "string"})
        .groupby("reason")["value"]
        .sum()
    )
    shares = {
        reason.lower(): share
        for reason, share in truth["derived_all_threads"]["stall_shares"].items()
    }
    assert pytest.approx(shares, rel=1e-9) == (waits / waits.sum()).to_dict()
    assert truth["derived_all_threads"]["stall_total"] == waits.sum()


def test_the_published_method(profiles: Path) -> None:
    """Sums over the main thread's rows: 151,700 launches, 0.8296 s, copies 78.0 %, gmem 55.2 %, overhead 91.4 %."""
    run, _ = opened(profiles, GPU)
    found = paths.tree_sums(run.calltree, run.call_metrics).set_index("figure")
    methods = ["tree_sum", "main_thread", "all_threads"]
    assert [151_700, 3_300, 7_400] == found.loc["launches", methods].tolist()
    known = {
        "kernel_time": ([0.8296, 0.0176953, 0.0658960], 5e-5),
        "copy_time": ([2.94406, 0.0734366, 0.0739128], 5e-5),
        "gpu_time": ([3.77367, 0.0911320, 0.1398088], 5e-5),
        "copy_share": ([0.780, 0.806, 0.5287], 5e-4),
        "stall_gmem": ([0.552, 0.5595, 0.4379], 5e-4),
        "launch_overhead": ([0.914, 0.932, 0.5615], 5e-4),
    }
    for figure, (expected, half_a_digit) in known.items():
        assert pytest.approx(expected, abs=half_a_digit) == found.loc[figure, methods].tolist(), (
            figure
        )
    assert "host_time" not in found.index


def test_utilisation_of_the_dlrm_run(profiles: Path) -> None:
    # The trace alone says 0.1705 s: 13 rows stand right behind others, 6 of them not `ended` and 7 moved there, with
    # 0.0309 s between them; leaving out only what is not `ended` gives 0.1535 s, more than the operations' sum. 7,400
    # launches of 5 to 10 us are 37 to 74 ms: 0.05 to 0.1 % of the run, not 56 % of anything.
    run, _ = opened(profiles, GPU)
    wall = int(run.capture["dur_ns"].iloc[0])
    (row,) = paths.utilisation(
        run.calltree, run.call_metrics, run.trace, run.threads, wall_ns=wall
    ).to_dict("records")
    assert (80_648_000_620, 1, 139_615_289) == (row["wall_ns"], row["gpus"], row["low_ns"])
    assert pytest.approx(139_808_821, abs=1) == row["high_ns"] == row["operation_ns"]
    assert pytest.approx([0.001731, 0.001734], abs=5e-7) == [row["low_frac"], row["high_frac"]]
    streams = run.trace[
        run.trace["thread"].isin(run.threads.loc[run.threads["kind"] == "gpu", "thread"])
    ]
    assert [170_527_350, 153_516_677] == [
        streams["dur_ns"].sum(),
        streams.loc[streams["ended"], "dur_ns"].sum(),
    ]
    found = paths.launch_cost(paths.gpu_summary(run.calltree, run.call_metrics), wall_ns=wall).loc[
        0
    ]
    assert [37e6, 74e6] == found[["low_ns", "high_ns"]].tolist()
    assert (
        pytest.approx([0.000459, 0.000918], abs=5e-7) == found[["low_frac", "high_frac"]].tolist()
    )

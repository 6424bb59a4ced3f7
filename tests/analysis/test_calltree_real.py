"""Call-tree analyses on real HPCToolkit databases: the values of truth.json, made by other code from the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import perfkit
from perfkit.analysis import calltree as paths
from perfkit.analysis.dossier import call_paths
from perfkit.analysis.warps import stall_shares

GPU, CPU = "hpctoolkit-dlrm-gpu-database", "hpctoolkit-dlrm-cpu-database"
DATABASES = [GPU, CPU, "hpctoolkit-leo-nvidia-database", "hpctoolkit-ping-pong-database"]
WITH_KERNELS = [GPU, "hpctoolkit-leo-nvidia-database"]
FIGURES = {
    "kernel_ns": ("kernel_time_s", 1e9),
    "copy_ns": ("copy_time_s", 1e9),
    "launch_count": ("kernel_launches", 1),
    "copy_count": ("copies", 1),
    "operation_ns": ("gpu_op_time_s", 1e9),
    "synchronisation_ns": ("sync_time_s", 1e9),
    "allocation_ns": ("alloc_time_s", 1e9),
    "memset_ns": ("memset_time_s", 1e9),
    "host_ns": ("cpu_time_s", 1e9),
    "copy_frac": ("copy_share_of_kernel_plus_copy", 1),
    "kernel_mean_ns": ("mean_kernel_us", 1e3),
}


def opened(profiles: Path, name: str) -> tuple[perfkit.Run, dict[str, Any]]:
    """The database and what is known of it."""
    truth = json.loads((profiles / "golden" / "hpctoolkit" / f"{name}.truth.json").read_text())
    return perfkit.load(profiles / "hpctoolkit" / name), truth


def check(row: dict[str, Any], known: dict[str, Any]) -> None:
    """Compare a row of gpu_summary with truth.json's figures; null there is not recorded, or 0 of one entry."""
    for figure, (key, factor) in FIGURES.items():
        if known.get(key) is not None:
            assert pytest.approx(known[key] * factor, rel=1e-9) == row[figure], figure
        else:
            assert not row[figure] > 0, figure
    for direction, amount in (known["bytes"] or {}).items():
        assert amount == row[f"{direction.lower()}_bytes"]
    samples = known.get("pc_samples", {})
    assert [samples.get("total") or 0, samples.get("expected") or 0] == [
        np.nan_to_num(row[name]) for name in ("sample_count", "expected_sample_count")
    ]


@pytest.mark.parametrize("name", DATABASES)
def test_totals_are_the_databases_own(profiles: Path, name: str) -> None:
    """Every metric's total per entry point, and the figures made of them, of all threads and of the main thread."""
    run, truth = opened(profiles, name)
    found = paths.inclusive(run.calltree, run.call_metrics)
    stored = {
        (metric.partition(" (")[0], entry): value
        for metric, of in truth["by_entry"].items()
        for entry, value in of.items()
    }
    ours = {(row.metric, row.entry): row.inclusive for row in found.itertuples() if row.inclusive}
    assert pytest.approx(stored, rel=1e-9) == ours
    (row,) = paths.gpu_summary(run.calltree, run.call_metrics).to_dict("records")
    check(row, truth["derived_all_threads"])
    entries = paths.gpu_summary(run.calltree, run.call_metrics, by="entry").set_index("entry")
    check(entries.loc[truth["main_entry"]].to_dict(), truth["derived_main_thread_only"])


@pytest.mark.parametrize("name", DATABASES)
@pytest.mark.parametrize("by", ["function", "module", "file", "kind"])
def test_functions_add_up_to_the_roots(profiles: Path, name: str, by: str) -> None:
    """Exclusive values by function are the total again, for every metric of the database."""
    run, truth = opened(profiles, name)
    for metric, total in truth["total"].items():
        found = paths.exclusive(run.calltree, run.call_metrics, metric=metric.partition(" (")[0], by=by)
        assert pytest.approx(total, rel=1e-9) == found["exclusive"].sum(), metric


@pytest.mark.parametrize("name", WITH_KERNELS)
def test_kernels_are_the_databases_own(profiles: Path, name: str) -> None:
    """As many kernels as truth.json has, its times and launches, and sites that add up to them."""
    run, truth = opened(profiles, name)
    found = paths.kernels(run.calltree, run.call_metrics, run.stalls)
    known = truth["kernels"]
    assert known["distinct"] == len(found)
    assert pytest.approx(known["time_sum"] * 1e9, rel=1e-9) == found["total_ns"].sum()
    top = found.head(len(known["top5"]))
    assert [(k["name"], k["launches"]) for k in known["top5"]] == list(
        zip(top["full_name"], top["launch_count"], strict=True)
    )
    assert pytest.approx([k["time_s"] * 1e9 for k in known["top5"]], rel=1e-9) == top["total_ns"].tolist()
    sites = paths.launch_sites(run.calltree, run.call_metrics).groupby("full_name")[["launch_count", "total_ns"]].sum()
    by_name = found.set_index("full_name")
    assert pytest.approx(by_name["total_ns"].to_dict(), rel=1e-9) == sites["total_ns"].to_dict()
    assert by_name["launch_count"].to_dict() == sites["launch_count"].to_dict()


@pytest.mark.parametrize("name", WITH_KERNELS)
def test_stalls_are_the_databases_own(profiles: Path, name: str) -> None:
    """Shares of the stall reasons of all threads and of the main thread; they agree with a sum over the contexts."""
    run, truth = opened(profiles, name)
    found = paths.stall_shares(run.calltree, run.stalls)
    known = {reason.lower(): share for reason, share in truth["derived_all_threads"]["stall_shares"].items()}
    assert pytest.approx(known, rel=1e-9) == dict(zip(found["reason"], found["share_frac"], strict=True))
    assert (
        truth["derived_all_threads"]["stall_total"]
        == found["value"].sum()
        == stall_shares(run.stalls, by="node")["value"].sum()
    )
    by_entry = paths.stall_shares(run.calltree, run.stalls, by="entry")
    main = by_entry[by_entry["entry"] == truth["main_entry"]]
    known = {reason.lower(): share for reason, share in truth["derived_main_thread_only"]["stall_shares"].items()}
    assert pytest.approx(known, rel=1e-9) == dict(zip(main["reason"], main["share_frac"], strict=True))


def test_where_the_gpus_time_comes_from(profiles: Path) -> None:
    """DLRM: the largest kernel is a backward GEMM of an autograd thread; the optimiser's additions come from sgd.py.

    Of 32 kernels one has no operator and no function above it but Python's: an index expression.
    """
    run, _ = opened(profiles, GPU)
    found = paths.kernels(run.calltree, run.call_metrics, run.stalls).set_index("name")
    largest = found.iloc[0]
    assert ("at::_ops::mm", "ifet") == (largest["site"], largest["main_stall"])
    assert largest["path"].startswith("application thread > ")
    assert "::AddmmBackward0::apply > " in largest["path"]
    assert pd.isna(largest["python"])
    added = found.loc["vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>"]
    assert ("sgd.py:446 _multi_tensor_sgd", "at::_ops::add__Tensor") == (added["python"], added["site"])
    unknown = found[found["site"].isna()]
    assert ["dlrm_s_pytorch.py:314 interact_features"] == unknown["python"].tolist()
    assert found["path"].to_dict() == call_paths(run.calltree, run.call_metrics).to_dict()


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
        assert pytest.approx(expected, abs=half_a_digit) == found.loc[figure, methods].tolist(), figure
    assert "host_time" not in found.index


def test_utilisation_of_the_dlrm_run(profiles: Path) -> None:
    """Busy for 0.1731 to 0.1734 % of 80.648 s: operations of 0.139809 s, of which the trace is sure of 0.139615 s.

    The trace alone says 0.1705 s: 13 rows stand right behind others, 6 of them not `ended` and 7 moved there, with
    0.0309 s between them; leaving out only what is not `ended` gives 0.1535 s, more than the operations' sum.
    """
    run, _ = opened(profiles, GPU)
    wall = int(run.capture["dur_ns"].iloc[0])
    (row,) = paths.utilisation(run.calltree, run.call_metrics, run.trace, run.threads, wall_ns=wall).to_dict("records")
    assert (80_648_000_620, 1) == (row["wall_ns"], row["gpus"])
    assert 139_615_289 == row["low_ns"]
    assert pytest.approx(139_808_821, abs=1) == row["high_ns"] == row["operation_ns"]
    assert pytest.approx([0.001731, 0.001734], abs=5e-7) == [row["low_frac"], row["high_frac"]]
    streams = run.trace[run.trace["thread"].isin(run.threads.loc[run.threads["kind"] == "gpu", "thread"])]
    assert [170_527_350, 153_516_677] == [streams["dur_ns"].sum(), streams.loc[streams["ended"], "dur_ns"].sum()]


def test_launches_cost_the_host_little(profiles: Path) -> None:
    """7,400 launches of 5 to 10 us are 37 to 74 ms: 0.05 to 0.1 % of the run, not 56 % of anything."""
    run, _ = opened(profiles, GPU)
    summary = paths.gpu_summary(run.calltree, run.call_metrics)
    found = paths.launch_cost(summary, wall_ns=int(run.capture["dur_ns"].iloc[0]))
    assert [37e6, 74e6] == found.loc[0, ["low_ns", "high_ns"]].tolist()
    assert pytest.approx([0.000459, 0.000918], abs=5e-7) == found.loc[0, ["low_frac", "high_frac"]].tolist()


def test_threads_of_the_cpu_run(profiles: Path) -> None:
    """222 of 223 threads share 500.2 s of CPU time; the main one has 45.3 s, 20 times their mean."""
    run, truth = opened(profiles, CPU)
    found = paths.threads(run.threads, run.thread_metrics, metric="CPUTIME")
    assert truth["profiles"]["NODE/THREAD"] == len(found)
    assert pytest.approx(truth["total"]["CPUTIME (sec)"], rel=1e-9) == found["value"].sum()
    assert ("main thread", "thread 0") == tuple(found.loc[0, ["entry", "name"]])
    assert 222 == (found["value"] > 0).sum()
    assert pytest.approx(222 * found.loc[0, "share_frac"], rel=1e-9) == found.loc[0, "times_mean"]
    assert pytest.approx(20.1, abs=0.05) == found.loc[0, "times_mean"]


def test_hot_path_of_the_cpu_run(profiles: Path) -> None:
    """The worker threads have most; each step below the main thread has at least half of the one above."""
    run, _ = opened(profiles, CPU)
    assert "application thread" == paths.hot_path(run.calltree, run.call_metrics, metric="CPUTIME")["name"].iloc[0]
    found = paths.hot_path(run.calltree, run.call_metrics, metric="CPUTIME", entry="main thread")
    assert pytest.approx(45.225747, rel=1e-9) == found.loc[0, "inclusive"]
    assert (found["inclusive"].iloc[1:].to_numpy() >= 0.5 * found["inclusive"].iloc[:-1].to_numpy()).all()
    parent = run.calltree.set_index("node")["parent"]
    assert found["node"].iloc[:-1].tolist() == parent.loc[found["node"].iloc[1:]].tolist()

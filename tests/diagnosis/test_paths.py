"""Figures and findings of call paths: of the toy program, and of the real DLRM runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from callpaths import thread_metrics, threads, toy_metrics, toy_tree, trace

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis.finding import Figure
from perfkit.profile import Profile
from perfkit.run import Run
from perfkit.tables import CAPTURE

GPU = "hpctoolkit/hpctoolkit-dlrm-gpu-database"


def run(wall_ns: int = 0, **others: pd.DataFrame) -> Run:
    """The toy program as a run; with a trace where its length is given."""
    frames = {"CALLTREE": toy_tree(), "CALL_METRICS": toy_metrics(), **others}
    if wall_ns:
        frames |= {
            "THREADS": threads((1, "cpu", "thread 0"), (2, "gpu", "GPU context 1 stream 7")),
            "THREAD_METRICS": thread_metrics((1, "main thread", "CPUTIME", "s", 3.0)),
            "TRACE": trace((1, 0, wall_ns, 4, True), (2, 0, 3_000_000, 6, True)),
        }
    row = {"rank": 0, "tool": "HPCToolkit", "tool_version": "", "path": "p", "t0_unix_ns": 0, "dur_ns": wall_ns}
    loaders: dict[str, Callable[[], pd.DataFrame]] = {name: lambda f=frame: f for name, frame in frames.items()}
    return Run([Profile("hpctoolkit", Path("toy"), CAPTURE.make(pd.DataFrame([row])), loaders)])


def test_totals_count_every_kernel_once() -> None:
    """Two entry points with 1 ms of kernels in 100 launches each, 1 ms of copies: 2 ms, 200, 10 us, a third copies."""
    figures = diagnosis.figures(run())
    values = {i: figures[f"paths_{i}"].value for i in ("kernel_ns", "launch_count", "kernel_mean_ns", "host_ns")}
    assert {"kernel_ns": 2e6, "launch_count": 200, "kernel_mean_ns": 1e4, "host_ns": 4e9} == pytest.approx(values)
    assert 1 / 3 == pytest.approx(figures["paths_copy_frac"].value)
    assert 0.5 == pytest.approx(figures["paths_main_thread_kernel_frac"].value)


def test_no_utilisation_without_the_length_of_the_run() -> None:
    """CPU time is thread time: without a trace there is no wall time to divide by."""
    assert not {"paths_wall_ns", "paths_gpu_busy_frac", "paths_launch_low_frac"} & set(diagnosis.figures(run()))


def test_utilisation_is_of_the_wall_time() -> None:
    """3 ms of GPU operations in 1 s on one GPU: 0.3 %; at most 1 / 0.003 = 333x if all else disappeared."""
    toy = run(wall_ns=1_000_000_000)
    assert 0.003 == pytest.approx(diagnosis.figures(toy)["paths_gpu_busy_frac"].value)
    (idle,) = (f for f in diagnosis.findings(toy) if f.rule == "paths_gpu_idle")
    assert ("high", pytest.approx(1 / 0.003)) == (idle.severity, idle.gain.high)


def test_copies_gain_little_for_a_gpu_that_hardly_works() -> None:
    """1 ms of copies in 1 s: a third of the GPU's time, 0.1 % of the run, so at most 1 / 0.999 and of low severity."""
    (copies,) = (f for f in diagnosis.findings(run(wall_ns=1_000_000_000)) if f.rule == "paths_copies")
    assert ("low", pytest.approx(1 / 0.999)) == (copies.severity, copies.gain.high)


def test_without_a_trace_gains_are_of_the_gpus_time() -> None:
    """1 of 3 ms of GPU operations: at most 1.5x of the GPU's time, and no share of the run."""
    (copies,) = (f for f in diagnosis.findings(run()) if f.rule == "paths_copies")
    assert (pytest.approx(1.5), None) == (copies.gain.high, copies.gain.share)
    assert "of the GPU's time" in copies.gain.reason


def test_the_hottest_python_function_is_named() -> None:
    """All 3 s of the main thread lie below `train`, its only Python function."""
    (host,) = (f for f in diagnosis.findings(run()) if f.rule == "paths_host")
    assert "100 %" in host.title
    assert "train" in host.title


def test_all_together_is_bounded_by_the_kernels() -> None:
    """Kernels take 2 ms of 1 s: whatever else disappears, at most 500x, where the product of gains has no bound."""
    toy = run(wall_ns=1_000_000_000)
    together = diagnosis.together(diagnosis.findings(toy), diagnosis.figures(toy))
    assert together is not None
    assert 500 == pytest.approx(together.high)


def test_one_finding_needs_no_row_for_all() -> None:
    """A bound for all findings says nothing new where there is one."""
    share = Figure("x", "", 0.5, "1", "", "")
    (copies,) = (f for f in diagnosis.findings(run()) if f.rule == "paths_copies")
    assert diagnosis.together([copies], {"x": share}) is None


def test_real_dlrm_figures(profiles: Path) -> None:
    """The public database of the published summary: truth.json, not the sums over its tree."""
    truth = json.loads((profiles / "golden" / f"{GPU}.truth.json").read_text())["derived_all_threads"]
    figures = {i: f.value for i, f in diagnosis.figures(perfkit.load(profiles / GPU)).items()}
    expected = {
        "paths_kernel_ns": truth["kernel_time_s"] * 1e9,
        "paths_copy_ns": truth["copy_time_s"] * 1e9,
        "paths_launch_count": truth["kernel_launches"],
        "paths_copy_frac": truth["copy_share_of_kernel_plus_copy"],
        "paths_main_stall_frac": truth["stall_shares"]["GMEM"],
        "paths_coverage_frac": truth["pc_samples"]["total"] / truth["pc_samples"]["expected"],
    }
    assert expected == pytest.approx({i: figures[i] for i in expected}, rel=1e-12)


def test_real_dlrm_findings(profiles: Path) -> None:
    """0.139809 s of GPU work in 80.648 s: the idle GPU first, and nothing on the GPU can gain more than 1.002x."""
    found = diagnosis.findings(perfkit.load(profiles / GPU))
    assert ["paths_gpu_idle", *sorted(f.rule for f in found[1:])] == [
        *("paths_gpu_idle", "paths_copies", "paths_launches", "paths_stall"),
    ]
    assert 80.6480006 / 0.1398088 == pytest.approx(found[0].gain.high, rel=1e-6)
    assert all(f.gain.high < 1.002 for f in found[1:])

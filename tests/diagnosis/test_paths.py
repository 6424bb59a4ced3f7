"""Figures and findings of call paths: of the toy program, and of the real DLRM runs."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from callpaths import call_metrics, calltree, thread_metrics, threads, toy_metrics, toy_tree, trace

import perfkit
from perfkit import diagnosis
from perfkit.analysis.calltree import mpi_calls
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
        *("paths_gpu_idle", "paths_copies", "paths_launches", "paths_stall")
    ]
    assert 80.6480006 / 0.1398088 == pytest.approx(found[0].gain.high, rel=1e-6)
    assert all(f.gain.high < 1.002 for f in found[1:])


def _by_hand(folder: Path) -> tuple[dict[str, float], float]:
    """CPU time in us of each MPI call of an old database, and of all: its XML, and the doubles of its metric-db files.

    A file has 32 bytes in front, then for each number of the XML the inclusive and the exclusive value.
    """
    tree = ET.parse(folder / "experiment.xml").getroot()
    names = {procedure.get("i"): procedure.get("n", "") for procedure in tree.iter("Procedure")}
    files = [path.read_bytes()[32:] for path in sorted(folder.glob("*.metric-db"))]
    inclusive = np.sum([np.frombuffer(data, ">f8").reshape(-1, 2)[:, 0] for data in files], axis=0)
    (root,) = tree.iter("SecCallPathProfileData")
    total = sum(inclusive[int(frame.get("i", 0)) - 1] for frame in root.findall("PF"))
    calls: dict[str, float] = {}
    below = list(root)
    while below:
        frame = below.pop()
        name = names.get(frame.get("n"), "") if frame.tag in ("PF", "Pr") else ""
        if name.startswith(("MPI_", "PMPI_")):
            name = name.removeprefix("P")
            calls[name] = calls.get(name, 0.0) + inclusive[int(frame.get("i", 0)) - 1]
        else:
            below += list(frame)
    return {name: value for name, value in calls.items() if value}, float(total)


@pytest.mark.parametrize("name", ["allgather", "cpi"])
def test_mpi_calls_of_real_databases_equal_the_files(name: str, profiles: Path) -> None:
    """Every MPI call has the CPU time that a walk over the database's own files finds."""
    folder = profiles / f"hpctoolkit/hpctoolkit-{name}-database"
    calls, total = _by_hand(folder)
    loaded = perfkit.load(folder)
    found = mpi_calls(loaded.calltree, loaded.call_metrics, metric="CPUTIME").set_index("name")
    assert {call: value / 1e6 for call, value in calls.items()} == pytest.approx(found["inclusive"].to_dict())
    assert {call: value / total for call, value in calls.items()} == pytest.approx(found["share_frac"].to_dict())


def test_the_allgather_of_the_database_is_told(profiles: Path) -> None:
    """PMPI_Allgather has 14.677 of 26.158 s: 56.1 %, called in the loop at line 95; no other MPI call comes near."""
    found = {f.rule: f for f in diagnosis.findings(perfkit.load(profiles / "hpctoolkit/hpctoolkit-allgather-database"))}
    assert {"mpi_time", "paths_host"} == set(found)
    assert "MPI calls take 99.5 % of the CPU time; MPI_Allgather alone takes 56.1 %" == found["mpi_time"].title
    assert "main > MPI_Allgather, at loop at osu_allgather.c:95" in found["mpi_time"].explanation
    assert "the loop at osu_allgather.c:95 of main" in found["paths_host"].title
    assert not [step for steps in found["paths_host"].advice.values() for step in steps if "functools" in step]


def test_advice_on_mpi_asks_what_the_calls_are(profiles: Path) -> None:
    """All time of cpi is MPI_Finalize: a longer recording, no overlap. A ping-pong sends and receives: overlap."""
    steps = {}
    for name in ("cpi", "ping-pong"):
        found = diagnosis.findings(perfkit.load(profiles / f"hpctoolkit/hpctoolkit-{name}-database"))
        (mpi,) = (f for f in found if f.rule == "mpi_time")
        steps[name] = " ".join(step for texts in mpi.advice.values() for step in texts)
    assert ("MPI_Init" in steps["cpi"], "MPI_Isend" in steps["cpi"]) == (True, False)
    assert ("MPI_Init" in steps["ping-pong"], "MPI_Isend" in steps["ping-pong"]) == (False, True)


def test_the_clock_of_perf_is_time_of_the_host(profiles: Path) -> None:
    """loops-perf counts perf::task-clock: 3.6e9 ns, 7 of 9 samples of the main thread in the loop of line 1011."""
    database = perfkit.load(profiles / "hpctoolkit/yuninxia__HPCToolkit__loops-perf-database")
    figures = diagnosis.figures(database)
    assert 3.6e9 == figures["paths_host_ns"].value
    (host,) = diagnosis.findings(database)
    assert ("paths_host", True) == (host.rule, "loops.c:1011" in host.title)
    own = dict(zip(["share", "all"], (host.evidence[1].value, host.evidence[2].value), strict=True))
    assert {"share": 1.2 / 3.6, "all": 3.6e9} == pytest.approx(own)
    assert not [r for r in diagnosis.refusals(database) if "CPU time" in r.question]


def test_launches_that_nobody_counted_cost_an_unknown_time(profiles: Path) -> None:
    """loops-hip-amd has the time of kernels and no number of launches: no figure, where it once was 0 %."""
    database = perfkit.load(profiles / "hpctoolkit/yuninxia__HPCToolkit__loops-hip-amd-t-database")
    assert {"GKER", "GPUOP"} == set(database.call_metrics["metric"])
    figures = diagnosis.figures(database)
    assert figures["paths_kernel_ns"].value > 0
    assert [] == [name for name in figures if "launch" in name]


def test_a_call_inside_a_call_counts_once() -> None:
    """MPI_Bcast calls PMPI_Send: 3 of 4 s are MPI, all of them of the broadcast; MPIR_Send of a library is no call."""
    tree = calltree(
        {"node": 1, "name": "main thread"},
        {"node": 2, "parent": 1, "name": "solve.c:7", "kind": "line", "file": "solve.c", "line": 7},
        {"node": 3, "parent": 2, "name": "MPI_Bcast"},
        {"node": 4, "parent": 3, "name": "PMPI_Send"},
        {"node": 5, "parent": 1, "name": "MPIR_Send"},
    )
    values = [(1, 4.0, 0.0), (2, 3.0, 0.0), (3, 3.0, 1.0), (4, 2.0, 2.0), (5, 1.0, 1.0)]
    metrics = call_metrics(*((node, "CPUTIME", "s", inside, own) for node, inside, own in values))
    (row,) = mpi_calls(tree, metrics, metric="CPUTIME").to_dict("records")
    assert ("MPI_Bcast", 3.0, 0.75, "solve.c:7") == (row["name"], row["inclusive"], row["share_frac"], row["at"])
    assert "main thread > MPI_Bcast" == row["path"]


def test_allocation_on_a_gpu_of_amd_is_told(profiles: Path) -> None:
    """0.2896 of 1.4024 s of GPU operations are allocations, as truth.json has them: 20.6 %; DLRM has none."""
    name = "hpctoolkit/hpctoolkit-leo-amd-database"
    truth = json.loads((profiles / "golden" / f"{name}.truth.json").read_text())["derived_all_threads"]
    (finding,) = (f for f in diagnosis.findings(perfkit.load(profiles / name)) if f.rule == "paths_allocation")
    share = truth["alloc_time_s"] / truth["gpu_op_time_s"]
    expected = [share, truth["alloc_time_s"] * 1e9, truth["gpu_op_time_s"] * 1e9]
    assert expected == pytest.approx([figure.value for figure in finding.evidence])
    assert ("20.6 %" in finding.title, "medium", "high") == (True, finding.severity, finding.confidence)
    assert (1 / (1 - share), None) == (pytest.approx(finding.gain.high), finding.gain.share)
    assert "paths_allocation" not in {f.rule for f in diagnosis.findings(perfkit.load(profiles / GPU))}

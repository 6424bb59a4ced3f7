"""The ledgers that the first page draws of call paths and counters, and what they say in words."""

from dataclasses import replace
from pathlib import Path

import pytest
from callpaths import thread_metrics, threads, toy_metrics, toy_tree, trace
from frames import profile

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis import counter_ledger, path_ledger, path_verdict, picture, potential
from perfkit.run import Run
from perfkit.selection import Selection

DLRM = "hpctoolkit/hpctoolkit-dlrm-gpu-database"
WALL_NS = 1_000_000_000


def selected(profiles: Path, name: str) -> Selection:
    return perfkit.select(perfkit.load(profiles / name))


def toy(*, with_cpu: bool = True) -> Selection:
    """The toy program in a second of wall time: 3 ms of GPU operations, and 3 s of CPU time if it was recorded."""
    metrics = toy_metrics()
    if not with_cpu:
        metrics = metrics[metrics["metric"].ne("CPUTIME")].reset_index(drop=True)
    frames = {
        "CALLTREE": toy_tree(),
        "CALL_METRICS": metrics,
        "THREADS": threads((1, "cpu", "thread 0"), (2, "gpu", "GPU context 1 stream 7")),
        "THREAD_METRICS": thread_metrics((1, "main thread", "GPUOP", "s", 0.002)),
        "TRACE": trace((1, 0, WALL_NS, 4, True), (2, 0, 3_000_000, 6, True)),
    }
    made = profile("hpctoolkit", "toy", 0, WALL_NS, **frames)
    return perfkit.select(Run([replace(made, capture=made.capture.assign(tool="HPCToolkit"))]))


def test_the_wall_time_of_dlrm_is_its_kernels_its_copies_and_an_unknown_rest(
    profiles: Path,
) -> None:
    """GKER 65,896,045 ns and GXCOPY 73,912,776 ns of the database; the trace lasts 80,648,000,620 ns."""
    found = path_ledger.ledger(selected(profiles, DLRM))
    times = dict(zip(found["cause"].astype(str), found["ns"], strict=True))
    expected = {"kernel": 65_896_045, "copy": 73_912_776, "cpu_not_recorded": 80_508_191_799}
    assert expected == times


def test_the_place_of_dlrm_is_the_line_that_copies_to_the_gpu(profiles: Path) -> None:
    """GPUOP below dlrm_s_pytorch.py:898 is 77.2 % of that of the main thread; the path ends in <gpu copyin>."""
    said = path_verdict.place(selected(profiles, DLRM))
    assert (
        "77.2 % of the main thread's GPU time begins at dlrm_s_pytorch.py:898: copies to the GPU."
        == said
    )


def test_the_bounds_of_dlrm(profiles: Path) -> None:
    """1 / (1 - 73.9 ms / 80.648 s) = 1.00092, of kernels 1.00082, of 7,400 launches of 10 us 1.00092; the rest 577."""
    view = selected(profiles, DLRM)
    rows = potential.rows(view, diagnosis.figures(view))
    bounds = [
        text.partition(";")[0].removeprefix("at most ") for text in rows["if all of it went away"]
    ]
    assert ["577x", "1.0009x", "1.0008x", "1.0009x", "1.0027x"] == bounds


def test_the_cpu_of_the_toy_is_all_of_the_time_without_gpu_work() -> None:
    """3 s of CPU time in 1 s of wall time are scaled to the 997 ms in which the GPU does nothing."""
    shares = picture.shares(toy()).round(6)
    known = {"computation_ns": 0.002, "exposed_copy_ns": 0.001, "host_code": 0.997}
    assert known == shares[shares > 0].to_dict()


def test_cpu_time_that_nobody_recorded_is_said_so() -> None:
    view = toy(with_cpu=False)
    said = path_verdict.verdict(view, diagnosis.figures(view))
    assert "The GPU works 0.30 % of the 1.00 s wall time." in said
    assert "The cause of the other 99.7 % is unknown: CPU time was not recorded." in said


def test_the_verdict_names_the_largest_path_of_the_cpu() -> None:
    view = toy()
    said = path_verdict.verdict(view, diagnosis.figures(view))
    assert "Most of the rest is idle: CPU code (99.7 %), most of it at at::mm" in said


def test_the_launches_of_a_report_add_up_to_their_time(profiles: Path) -> None:
    view = selected(profiles, "ncu/bautista-garcia__heat_sim__profile.ncu-rep")
    found = counter_ledger.ledger(view)
    assert pytest.approx(view.launches["dur_ns"].sum(), abs=len(found)) == found["ns"].sum()


def test_memory_alone_limits_no_launch_whose_levels_were_measured(profiles: Path) -> None:
    view = selected(profiles, "ncu/kulnaman__lammps__kripke_output.ncu-rep")
    assert ["dram"] == counter_ledger.ledger(view)["cause"].astype(str).tolist()


def test_a_run_without_launches_has_no_ledger_of_them() -> None:
    assert counter_ledger.ledger(toy()).empty

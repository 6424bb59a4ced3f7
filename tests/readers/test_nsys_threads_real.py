"""Stacks, scheduling, waits, overhead and messages of real captures, against what SQL found in their exports.

``golden/nsys_more/*.truth.json`` was made without this reader.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from real import HOST_ONLY, SQLITE

from perfkit.analysis import memory
from perfkit.profile import Profile
from perfkit.readers import nsys

NO_TRUTH = ("GindaChen__nsys-ai__healthy_1pct.sqlite",)
MORE = [
    "IkerCanut__fire_spread__report1.sqlite",
    "Qcompiler__MIXQ__src_report1.sqlite",
    "StellaWava__benchmarking-n-profiling-__report1.sqlite",
    "annikola__cuda_bitonic_sort__report1.sqlite",
    "florianmattana__CUDA-Kernels__prof.sqlite",
    "forestmgy__miniGEMM__report1.sqlite",
    "mamedov__parallel_course_2__report4.sqlite",
    "unschlagbar__neural-networks__prof.sqlite",
]
CAPTURES = [name for name in (*SQLITE, *HOST_ONLY, *MORE) if name not in NO_TRUTH]
SAMPLED = [
    "D-W-Chiang__JACC.jl__cg_trace.sqlite",
    "NTHU-SC__ISC25-ICON-C__gpu.sqlite",
    "extra-p__extrap__ex-gpu.s10.sqlite",
    "hpcgroup__pipit__perlmutter-cloverleaf-cuda.sqlite",
    "hpcgroup__pipit__saxpy-mpi-cuda_nsys_perlmutter0.sqlite",
    "mjmorano__Spin-tracking-New__report2.sqlite",
    "openhackathons-org__AI-Profiler__baseline_nvtx.sqlite",
    "openhackathons-org__nways_accelerated_programming__jacobi_report.sqlite",
    "StellaWava__benchmarking-n-profiling-__report1.sqlite",
    "forestmgy__miniGEMM__report1.sqlite",
    "unschlagbar__neural-networks__prof.sqlite",
]
OF_THREADS = [  # worked in nsys-more: time on a core in the gaps of the launching thread
    "NTHU-SC__ISC25-ICON-C__gpu.sqlite",
    "hpcgroup__pipit__perlmutter-cloverleaf-cuda.sqlite",
    "hpcgroup__pipit__saxpy-mpi-cuda_nsys_perlmutter0.sqlite",
    "openhackathons-org__AI-Profiler__baseline_nvtx.sqlite",
    "openhackathons-org__AI-Profiler__secondOptimization.window5.0-7.0s.sqlite",
    "openhackathons-org__nways_accelerated_programming__jacobi_report.sqlite",
    "unschlagbar__neural-networks__prof.sqlite",
    "NVIDIA__Fuser__report1_2025.1.sqlite",
]
SEVERITIES = {"1": "info", "2": "warning", "3": "error"}

read = cache(nsys.read)
every_capture = pytest.mark.parametrize("name", CAPTURES)
every_sampled = pytest.mark.parametrize("name", SAMPLED)


@pytest.fixture
def capture(name: str, profiles: Path) -> Profile:
    return read(profiles / "nsys" / name)


@pytest.fixture
def truth(name: str, profiles: Path) -> dict[str, Any]:
    path = profiles / "golden" / "nsys_more" / f"{name.removesuffix('.sqlite')}.truth.json"
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return content


def samples(capture: Profile) -> pd.DataFrame:
    stacks = capture.table("STACKS")
    return stacks[stacks["kind"] == "sample"]


def count(frame: pd.DataFrame, column: str, value: str) -> int:
    return int((frame[column].astype(str) == value).sum())


@every_capture
def test_all_rows_are_read(capture: Profile, truth: dict[str, Any]) -> None:
    rows = truth["rows"]
    overhead = rows.get("PROFILER_OVERHEAD", 0) + rows.get("CUPTI_ACTIVITY_KIND_OVERHEAD", 0)
    expected = {
        "WAITS": rows.get("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", 0),
        "OVERHEAD": overhead,
        "DIAGNOSTICS": rows.get("DIAGNOSTIC_EVENT", 0),
    }
    assert expected == {name: len(capture.table(name)) for name in expected}


@every_capture
def test_stacks_are_those_of_samples_and_long_calls(
    capture: Profile, truth: dict[str, Any]
) -> None:
    with_stack = {"sample": truth["rows"].get("COMPOSITE_EVENTS", 0)}
    if "osrt_with_callchain" in truth:
        with_stack["os_call"] = truth["osrt_with_callchain"][-1]
    if "cuda_with_callchain" in truth:
        with_stack["cuda_call"] = truth["cuda_with_callchain"][-1]
    stacks = capture.table("STACKS")
    assert with_stack == {kind: count(stacks, "kind", kind) for kind in with_stack}


@every_sampled
def test_chains_have_all_their_frames(capture: Profile, truth: dict[str, Any]) -> None:
    frames = capture.table("FRAMES").groupby("stack").size()
    assert truth["rows"]["SAMPLING_CALLCHAINS"] == samples(capture)["stack"].map(frames).sum()


@every_sampled
def test_chains_of_one_frame_are_as_many(capture: Profile, truth: dict[str, Any]) -> None:
    frames = capture.table("FRAMES").groupby("stack").size()
    assert truth["samples"]["one_frame_only"] == (samples(capture)["stack"].map(frames) == 1).sum()


@every_sampled
def test_leaves_without_a_name_are_as_many(capture: Profile, truth: dict[str, Any]) -> None:
    frames = capture.table("FRAMES")
    leaf = frames[frames["depth"] == 0].set_index("stack")["resolved"]
    assert (
        truth["samples"]["leaf_unresolved"]
        == (~samples(capture)["stack"].map(leaf).astype(bool)).sum()
    )


@every_sampled
@pytest.mark.parametrize(
    ("marker", "key"), [("[Broken backtraces]", "broken"), ("[Max depth]", "max_depth")]
)
def test_stacks_that_are_cut_are_as_many(
    capture: Profile, truth: dict[str, Any], marker: str, key: str
) -> None:
    frames = capture.table("FRAMES")
    cut = frames.loc[frames["function"].astype(str) == marker, "stack"]
    assert truth["samples"][key] == samples(capture)["stack"].isin(cut).sum()


@pytest.mark.parametrize("name", OF_THREADS)
def test_the_launching_thread_is_on_a_core_in_the_gaps_as_long(
    capture: Profile, truth: dict[str, Any]
) -> None:
    schedule = capture.table("SCHEDULE")
    own = schedule[schedule["thread"] == truth["gpu"]["launching_tid"]]
    start = own["start_ns"].to_numpy()
    end = start + own["dur_ns"].to_numpy()
    on_core = 0
    for first, last in gaps(capture):
        on_core += int((np.minimum(end, last) - np.maximum(start, first)).clip(0).sum())
    assert truth["sched"]["on_cpu_in_gaps_ns"] == on_core


def gaps(capture: Profile) -> list[tuple[int, int]]:
    """When the GPU of the most operations did nothing between two of them."""
    columns = ["process", "gpu", "start_ns", "dur_ns"]
    work = pd.concat([capture.table(name)[columns] for name in ("KERNELS", "COPIES")])
    devices = work.groupby(["process", "gpu"])
    own = devices.get_group(devices.size().idxmax()).sort_values("start_ns")
    start = own["start_ns"].to_numpy()
    reached = np.maximum.accumulate(start + own["dur_ns"].to_numpy())
    pairs = zip(reached[:-1].tolist(), start[1:].tolist(), strict=True)
    return [(first, last) for first, last in pairs if first < last]


@every_capture
def test_the_time_of_waits_is_that_of_the_export(capture: Profile, truth: dict[str, Any]) -> None:
    expected = sum(of_type["sum_ns"] for of_type in truth.get("synchronization", {}).values())
    assert expected == capture.table("WAITS")["dur_ns"].sum()


@every_capture
def test_messages_have_the_severity_of_the_export(capture: Profile, truth: dict[str, Any]) -> None:
    expected = {
        SEVERITIES[key]: number for key, number in truth.get("diagnostics_by_severity", {}).items()
    }
    found = capture.table("DIAGNOSTICS")["severity"].astype(str).value_counts()
    assert expected == {str(key): int(number) for key, number in found.items()}


@pytest.mark.parametrize("name", ["GindaChen__nsys-ai__h100_2gpu_1s.sqlite"])
def test_a_full_queue_is_no_time_of_the_profiler(capture: Profile, truth: dict[str, Any]) -> None:
    full = capture.table("OVERHEAD")
    assert {"queue_full"} == set(full["kind"])
    assert sum(ns for *_, ns in truth["cupti_overhead"]) == full["dur_ns"].sum()


@pytest.mark.parametrize("name", ["extra-p__extrap__profile1.sqlite"])
def test_memory_of_a_real_capture_peaks_at_20_mb_and_is_released(capture: Profile) -> None:
    table = memory.taken(capture.table("MEMORY_EVENTS")).set_index("memory")
    for kind in ("device", "pinned"):
        assert [20_000_000, 0] == table.loc[kind, ["peak_bytes", "kept_bytes"]].tolist()


@pytest.mark.parametrize("name", ["openhackathons-org__AI-Profiler__baseline_nvtx.sqlite"])
def test_the_loader_waits_below_enumerate(capture: Profile) -> None:
    """The launching thread's stacks of `poll`: 60 of 71 lead through the iteration of a loader."""
    stacks, frames = capture.table("STACKS"), capture.table("FRAMES")
    through = {
        f: set(frames.loc[frames["function"].astype(str) == f, "stack"])
        for f in ("select_poll_poll", "enum_next")
    }
    of_calls = stacks[stacks["kind"] == "os_call"]
    calls = capture.table("OS_CALLS")
    polls = calls[calls["name"] == "poll"][["thread", "start_ns"]]
    launching = capture.table("API_CALLS")["thread"].value_counts().idxmax()
    own = of_calls.merge(polls[polls["thread"] == launching], on=["thread", "start_ns"])
    assert [71, 60] == [
        int(own["stack"].isin(through[f]).sum()) for f in ("select_poll_poll", "enum_next")
    ]


SAID = {
    "GindaChen__nsys-ai__h100_2gpu_1s.sqlite": (
        "cuda,nvtx",
        "",
        "linux",
    ),  # PROCESS_0:COLLECT_CUDA_TRACE is false
    "NTHU-SC__ISC25-ICON-C__gpu.sqlite": ("cuda,nvtx,osrt", "schedule,stacks", "linux"),
    "extra-p__extrap__profile1.sqlite": ("", "", "windows"),
    "florianmattana__CUDA-Kernels__prof.sqlite": ("cpucycles,cuda", "schedule,stacks", "windows"),
    "forestmgy__miniGEMM__report1.sqlite": ("cuda,graphics,nvtx,osrt", "schedule,stacks", "wsl"),
    "mjmorano__Spin-tracking-New__report2.sqlite": ("", "", "wsl"),
}


@pytest.mark.parametrize("name", SAID)
def test_real_captures_say_what_was_asked_for(name: str, capture: Profile) -> None:
    assert SAID[name] == tuple(capture.capture[["traced", "sampled", "platform"]].iloc[0])

"""Who kept the GPU idle in real Nsight Systems captures, against counts that SQL found without perfkit.

The truth counts samples of the thread that launches most, in the gaps between two operations of a GPU.
"""

from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from analysis.spans import loaded
from real import MFU, SQLITE, truth_of

import perfkit
from perfkit import diagnosis
from perfkit.analysis.gaps import idle_gaps
from perfkit.analysis.owners import elsewhere, owned, samples_in, summary
from perfkit.analysis.stacks import functions

ICON = "NTHU-SC__ISC25-ICON-C__gpu.sqlite"
WEIGHTS = "unschlagbar__neural-networks__prof.sqlite"
LOADER = "openhackathons-org__AI-Profiler__baseline_nvtx.sqlite"
SAXPY = "hpcgroup__pipit__saxpy-mpi-cuda_nsys_perlmutter0.sqlite"
LEAVES = "hpcgroup__pipit__perlmutter-cloverleaf-cuda.sqlite"
JACOBI = "openhackathons-org__nways_accelerated_programming__jacobi_report.sqlite"
EX_GPU = "extra-p__extrap__ex-gpu.s10.sqlite"
WINDOW = "openhackathons-org__AI-Profiler__secondOptimization.window5.0-7.0s.sqlite"
SAMPLED = [ICON, WEIGHTS, LOADER, SAXPY, LEAVES, JACOBI, EX_GPU, WINDOW]
ENOUGH = 10  # samples in gaps
# Owner of most of the idle time, in ms, its samples and all samples in gaps.
LARGEST = {
    ICON: ("os_call", "pwrite64", "H5Dwrite", 61.134),
    WEIGHTS: (
        "function",
        "neural_networks::tensor::Tensor::random::h652293993c8bd851",
        None,
        210.874,
    ),
    LOADER: ("os_call", "poll", "enum_next", 11_619.307),
    SAXPY: ("function", "main", None, 545.661),
    LEAVES: ("os_call", "write", "hydro(global_variables&, parallel_&)", 12.246),
    JACOBI: ("cuda_call", "cudaMemcpy", None, 14.605),
    EX_GPU: ("cuda_call", "cudaLaunchKernel", None, 3.003),
    WINDOW: ("os_call", "sem_timedwait", "lock_PyThread_acquire_lock", 1_577.361),
}


def run_of(profiles: Path, capture: str) -> perfkit.Run:
    return loaded(profiles / "nsys" / capture)


@cache
def gaps_of(profiles: Path, capture: str) -> pd.DataFrame:
    run = run_of(profiles, capture)
    more = {"ranges": run.ranges, "os_calls": run.os_calls}
    return idle_gaps(run.kernels, run.copies, run.api_calls, **more)


@cache
def owned_of(profiles: Path, capture: str) -> pd.DataFrame:
    names = ("api_calls", "ranges", "os_calls", "stacks", "frames", "schedule", "overhead")
    tables = {name: run_of(profiles, capture).table(name.upper()) for name in names}
    return owned(gaps_of(profiles, capture), **tables)


def launching(profiles: Path, capture: str) -> pd.DataFrame:
    """The samples in gaps of the thread that launches most, as the truth counts them."""
    run, gaps = run_of(profiles, capture), gaps_of(profiles, capture)
    thread = truth_of(profiles, "nsys_more", capture)["gpu"]["launching_tid"]
    calls = run.api_calls[run.api_calls["thread"] == thread]
    no_launch = gaps.assign(cause="edge", process=-1, thread=-1)  # no launch decides
    return samples_in(no_launch, calls, run.stacks)


@pytest.mark.parametrize("capture", [*SQLITE, WEIGHTS])
def test_the_stretches_of_each_gap_add_up_to_it(capture: str, profiles: Path) -> None:
    gaps, found = gaps_of(profiles, capture), owned_of(profiles, capture)
    by_gap = found.groupby("gap")["dur_ns"].sum().reindex(range(len(gaps)), fill_value=0)
    assert gaps["dur_ns"].tolist() == by_gap.tolist()


@pytest.mark.parametrize("capture", [*SQLITE, WEIGHTS])
def test_the_stretches_of_each_detail_add_up_to_that_part_of_the_gaps(
    capture: str, profiles: Path
) -> None:
    gaps = gaps_of(profiles, capture)
    by_detail = owned_of(profiles, capture).groupby("detail", observed=False)["dur_ns"].sum()
    assert {detail: gaps[f"{detail}_ns"].sum() for detail in by_detail.index} == by_detail.to_dict()


@pytest.mark.parametrize("capture", SAMPLED)
def test_the_largest_owner_of_idle_time(capture: str, profiles: Path) -> None:
    first = summary(owned_of(profiles, capture)).iloc[0]
    kind, owner, caller, ms = LARGEST[capture]
    assert (kind, owner) == (first["owner_kind"], first["owner"])
    assert caller == (first["caller"] if pd.notna(first["caller"]) else None)
    assert ms == pytest.approx(first["total_ns"] / 1e6, abs=0.0006)


@pytest.mark.parametrize("capture", SAMPLED)
def test_nearly_all_idle_time_with_samples_has_an_owner(capture: str, profiles: Path) -> None:
    found = owned_of(profiles, capture)
    if found["of_samples"].sum() < ENOUGH:
        pytest.skip("fewer than ten samples lie in gaps")
    known = found.loc[found["owner_kind"] != "unknown", "dur_ns"].sum()
    assert known >= 0.9 * found["dur_ns"].sum()


@pytest.mark.parametrize("capture", [name for name in SAMPLED if name != WINDOW])
def test_as_many_samples_of_the_launching_thread_lie_in_gaps_as_sql_counts(
    capture: str, profiles: Path
) -> None:
    truth = truth_of(profiles, "nsys_more", capture)
    assert truth["samples"]["launching_in_gaps"] == len(launching(profiles, capture))


@pytest.mark.parametrize("capture", [name for name in SAMPLED if name != WINDOW])
def test_the_functions_of_these_samples_are_those_of_sql(capture: str, profiles: Path) -> None:
    truth = truth_of(profiles, "nsys_more", capture)
    taken = functions(launching(profiles, capture), run_of(profiles, capture).frames)
    counts = taken.set_index("function")["inclusive_count"]
    expected = {
        name: count
        for name, count in truth["samples"]["in_gaps_top_any_frame"]
        if name in counts.index
    }
    assert expected
    assert expected == counts[[*expected]].to_dict()


def test_the_innermost_named_functions_are_those_of_sql(profiles: Path) -> None:
    counts = functions(launching(profiles, SAXPY), run_of(profiles, SAXPY).frames)
    most = counts.set_index("function")["innermost_count"].nlargest(3)
    assert {"main": 2390, "std::abs(double)": 389, "cxip_cq_progress": 188} == most.to_dict()


def test_the_workers_of_a_loader_ran_while_the_launching_thread_waited(profiles: Path) -> None:
    ran = elsewhere(gaps_of(profiles, LOADER), run_of(profiles, LOADER).stacks)
    by_process = ran.groupby("process")["samples"].sum()
    assert (12_173, 2_184) == (by_process[751197], by_process[751791])


def test_a_flush_of_the_collector_owns_idle_time(profiles: Path) -> None:
    table = summary(owned_of(profiles, MFU))
    flushed = table[(table["owner_kind"] == "collector") & (table["gpu"] == 0)]
    assert 1.58 == pytest.approx(flushed["total_ns"].sum() / 1e6, abs=0.01)


def findings_of(profiles: Path, capture: str) -> dict[str, diagnosis.Finding]:
    found = diagnosis.findings(perfkit.select(run_of(profiles, capture)))
    return {finding.rule: finding for finding in found if isinstance(finding, diagnosis.Finding)}


def test_a_program_that_writes_files_is_told_by_its_call_and_its_function(profiles: Path) -> None:
    # SQL: 61.1 of 84.6 ms idle in pwrite64; 13 of the 16 samples in gaps hold io_muphys::output_vector.
    found = findings_of(profiles, ICON)["idle_system"]
    assert "pwrite64" == found.owner
    assert "13 of the 16 samples" in found.explanation
    assert "io_muphys::output_vector" in found.explanation


def test_a_program_that_fills_weights_is_told_by_its_function(profiles: Path) -> None:
    # SQL: 239 of the 260 samples in gaps hold Tensor::random.
    found = findings_of(profiles, WEIGHTS)["idle_host_code"]
    assert "neural_networks::tensor::Tensor::random" == found.owner
    assert "239 of the 260 samples" in found.explanation


@pytest.mark.parametrize("capture", [ICON, WEIGHTS])
def test_nobody_is_asked_for_call_stacks_that_are_recorded(capture: str, profiles: Path) -> None:
    for finding in findings_of(profiles, capture).values():
        steps = [step for steps in finding.advice.values() for step in steps]
        assert not [
            text for text in (*steps, finding.next) if "call stacks" in text or "--sample=" in text
        ]

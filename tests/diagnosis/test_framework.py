"""Figures of the framework on planted tables, each by hand; what was not recorded is absent."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from diagnosis.traces import BF16, MS, US, collectives, healthy, of_tables, run, samples, steps, waiting_for_input, work
from frames import ranges
from ops import op, ops

import perfkit
from perfkit import diagnosis
from perfkit.profile import Profile
from perfkit.report.notebooks import sample
from perfkit.run import Run
from perfkit.tables import CAPTURE


def values(of: Run | perfkit.Selection, **options: Any) -> dict[str, float]:
    """The figures' values by id."""
    return {i: figure.value for i, figure in diagnosis.figures(of, **options).items()}


def of_framework(of: Run) -> set[str]:
    """The ids of the framework's figures that a run has."""
    kinds = ("op_", "sync_", "reduced", "unknown_p", "input_", "memory_", "model_", "shape_", "bus_", "rank_")
    return {i for i in diagnosis.figures(of) if i.startswith(kinds)}


def test_share_of_kernels_with_operator() -> None:
    """30 us of kernels launched in an operator and 10 us outside of all: 0.75; two operators."""
    outside = {key: part for key, part in work("x", 70 * US, 80 * US, 10 * US).items() if key != "op"}
    found = values(run(work("a", US, 10 * US, 20 * US), work("b", 40 * US, 50 * US, 10 * US), outside))
    assert (2, 0.75) == (found["op_count"], found["op_kernel_frac"])


def syncs(*waits: tuple[int, int, str]) -> Run:
    """Kernels of 10 us that start at 0, 40, 80 and 120 us, and waits of given start, length in us and name."""
    works = [work(f"aten::op{i}", max(i * 40 - 5, 1) * US, i * 40 * US, 10 * US) for i in range(4)]
    calls = [{"start_ns": start * US, "dur_ns": length * US, "name": name} for start, length, name in waits]
    return run(*works, calls=calls)


def test_idle_after_waits_is_no_longer_than_the_waits() -> None:
    """Span 130 us. Waits [2, 10) and [44, 50): idle [10, 40) and [50, 80) follow, 60 us, but the waits lasted 14."""
    found = values(syncs((2, 8, "cudaStreamSynchronize"), (44, 6, "cudaStreamSynchronize")))
    assert (2, 14 / 130) == (found["sync_count"], pytest.approx(found["sync_idle_frac"]))


def test_long_waits_cost_the_idle_time_that_follows() -> None:
    """A wait [2, 35) begins 33 us before the next operation can be launched: idle from 10 to 40, 30 of 130 us."""
    assert 30 / 130 == pytest.approx(values(syncs((2, 33, "cudaDeviceSynchronize")))["sync_idle_frac"])


def test_freeing_memory_is_no_wait_for_a_result() -> None:
    """cudaFree waits for the GPU and counts, but its idle time is that of memory: one wait, no idle figure."""
    found = values(syncs((2, 33, "cudaFree")))
    assert 1 == found["sync_count"]
    assert "sync_idle_frac" not in found


def test_no_waits_are_told_without_calls() -> None:
    """Without CUDA calls nobody knows whether there were waits: absent, not 0."""
    frames = {"OPS": ops(op("a", 0, 5)), "KERNELS": healthy().kernels}
    assert {"sync_count", "sync_idle_frac"}.isdisjoint(values(of_tables(**frames)))
    assert 0 == values(healthy())["sync_count"]


def test_idle_time_after_the_last_operation_is_not_known() -> None:
    """A wait after the last kernel is one, but what it costs was not recorded: absent."""
    assert "sync_idle_frac" not in values(syncs((200, 5, "cudaDeviceSynchronize")))


def test_reduced_precision() -> None:
    """Products of 30 us in bf16, 10 us in float32 and 10 us that nothing says: 0.6, 0.2 of it unknown."""
    found = values(
        run(
            work("aten::mm", US, 10 * US, 30 * US, family="gemm", kernel="k", dtypes=BF16),
            work("aten::mm", 5 * US, 50 * US, 10 * US, family="gemm", kernel="k", dtypes='["float","float"]'),
            work("aten::mm", 9 * US, 70 * US, 10 * US, family="gemm", kernel="k"),
            work("aten::add", 20 * US, 90 * US, 99 * US, family="elementwise"),
        )
    )
    assert (0.6, 0.2) == (found["reduced_precision_frac"], found["unknown_precision_frac"])


def test_input_wait() -> None:
    """40 ms in the loader of each step of 100 ms: 0.4."""
    assert 0.4 == pytest.approx(values(waiting_for_input())["input_wait_frac"])


def test_no_input_wait_without_a_loader() -> None:
    """Steps without a range of a loader say nothing of the input: absent."""
    works = [work("a", i * 100 * MS + US, i * 100 * MS + MS, MS) for i in range(5)]
    assert "input_wait_frac" not in values(run(*works, ranges=ranges(*steps())))


def test_the_rate_of_the_input_is_that_of_the_raw_trace() -> None:
    """The sample's file: bytes of the copies to the GPU that start in the six steady steps, over their time."""
    path = sample("mlp_a100") / "mlp_a100.pt.trace.json.gz"
    events = [e for e in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if e.get("ph") == "X"]
    steps = {e["name"]: e for e in events if e["name"].startswith("ProfilerStep#") and e["cat"] == "user_annotation"}
    steady = [(float(e["ts"]), float(e["ts"]) + float(e["dur"])) for e in list(steps.values())[2:]]
    sent = [(float(e["ts"]), e["args"]["bytes"]) for e in events if "HtoD" in e["name"]]
    moved = sum(size for at, size in sent if any(begin <= at < end for begin, end in steady))
    figure = diagnosis.figures(perfkit.load(path))["input_bytes_per_s"]
    assert len(steady) == 6
    assert moved / sum(end - begin for begin, end in steady) * 1e6 == pytest.approx(figure.value, rel=1e-6)


def test_memory() -> None:
    """Levels 2 of 10, 8 of 10, 4 of 20 bytes: peak 8, reserved 20, unused at the peak (10 - 8) / 10."""
    found = values(of_tables(SAMPLES=samples((0, 2, 10), (10, 8, 10), (40, 4, 20))))
    expected = {"memory_peak_bytes": 8, "memory_reserved_bytes": 20, "memory_unused_frac": 0.2}
    assert expected == pytest.approx(found)


def test_memory_without_reserved() -> None:
    """Where only allocated memory was recorded, reserved and unused are absent; memory of the host is no figure."""
    assert {"memory_peak_bytes": 8} == values(of_tables(SAMPLES=samples((0, 8, None))))
    assert {} == values(of_tables(SAMPLES=samples((0, 8, 9), gpu=-1)))


def test_nothing_reserved_is_no_share() -> None:
    """Of 0 reserved bytes no share is unused: absent, not NaN."""
    assert {"memory_peak_bytes", "memory_reserved_bytes"} == set(values(of_tables(SAMPLES=samples((0, 0, 0)))))


def test_bus_bandwidth_of_the_largest_message() -> None:
    """1 GB over 8 ranks in 10 and 20 ms: median of 100 and 50 GB/s times 2 * 7 / 8; the small message says nothing."""
    rows = [{"start_ns": MS * i, "bytes": 10**9, "dur_ns": 10e6 * (i + 1), "group": "0"} for i in range(2)]
    small = {"start_ns": 0, "bytes": 1000, "dur_ns": 1e6, "group": "0"}
    found = diagnosis.figures(of_tables(COLLECTIVES=collectives(*rows, small)))["bus_bytes_per_s"]
    assert 75e9 * 1.75 == pytest.approx(found.value)
    assert "2 all_reduce of 1,000,000,000 B" in found.definition


def test_one_rank_has_no_bus() -> None:
    """An all-reduce of a single rank crosses no bus: absent, not 0 B/s."""
    alone = {"start_ns": 0, "bytes": 10**9, "dur_ns": 1e6, "ranks": 1}
    assert {} == values(of_tables(COLLECTIVES=collectives(alone)))


def test_bus_bandwidth_in_a_window() -> None:
    """Only collectives that start in the window count: the second, 50 GB/s times 1.75."""
    rows = [{"start_ns": 10 * MS * i, "bytes": 10**9, "dur_ns": 10e6 * (i + 1)} for i in range(2)]
    view = perfkit.select(of_tables(COLLECTIVES=collectives(*rows)), window=(5 * MS, 900 * MS))
    assert 50e9 * 1.75 == pytest.approx(values(view)["bus_bytes_per_s"])


def two_ranks(*computing: int, late: int = 0) -> Run:
    """Ranks that compute for so many ms of the 100 ms between two short kernels; the last starts `late` ms later."""
    works = []
    for rank, length in enumerate(computing):
        begin = late * MS if rank == len(computing) - 1 else 0
        for i, (at, dur) in enumerate(((0, MS), (2, length * MS), (100, MS))):
            start = begin + at * MS + 5 * US
            works.append(work(f"aten::op{i}", start - 3 * US, start, dur, rank=rank))
    return run(*works)


def test_imbalance_of_ranks() -> None:
    """28 and 58 ms besides twice 1 ms: 60 over the mean of 45, less 1."""
    found = diagnosis.figures(two_ranks(28, 58))["rank_imbalance_frac"]
    assert 60 / 45 - 1 == pytest.approx(found.value)
    assert "rank 1)" in found.definition


def test_imbalance_is_of_the_time_that_all_ranks_recorded() -> None:
    """With the second rank 50 ms later, [50, 101) has 10 + 1 ms of the first and 1 + 49 of the second: 50 / 30.5 - 1.

    (The first computes from 2 to 60 ms and ends at 101; the second from 52 to 110.)
    """
    found = values(two_ranks(58, 58, late=50))["rank_imbalance_frac"]
    assert 50 / 30.5 - 1 == pytest.approx(found, rel=1e-12)


def test_ranks_recorded_at_different_times_are_not_compared() -> None:
    """Recordings that have no moment in common, and a rank alone, have no imbalance."""
    assert "rank_imbalance_frac" not in values(two_ranks(10, 50, late=500))
    assert "rank_imbalance_frac" not in values(two_ranks(10))


def test_nothing_recorded_is_nothing_told() -> None:
    """Operators alone are counted, and nothing else of the framework is a figure; without them nothing is."""
    assert {"op_count"} == of_framework(of_tables(OPS=ops(op("a", 0, 5))))
    assert set() == of_framework(of_tables())


def test_the_frameworks_figures_are_of_its_own_execution() -> None:
    """With a capture of another tool beside, operators are held against the kernels of the framework's profiler."""
    own, other = healthy(), run(work("x", US, 2 * US, 500 * MS), reader="nsys")
    nsys = Profile("nsys", Path("n"), CAPTURE.make(other.capture), {"KERNELS": lambda: other.kernels})
    both = Run([*own.profiles, nsys])
    assert 500 * MS == values(both)["kernel_sum_ns"]
    assert values(own)["op_kernel_frac"] == values(both)["op_kernel_frac"]


def test_real_figures(profiles: Path) -> None:
    """XDiT on MI300X, 27,354 operators: the shares that hold for any trace, and what it did not record is absent."""
    found = values(perfkit.load(profiles / "torch" / "TraceLens__xdit_sd_3.5__profile_trace_rank_0.json.gz"))
    assert 27_354 == found["op_count"]
    assert all(0 <= value <= 1 for i, value in found.items() if i.endswith("_frac"))
    assert {"memory_peak_bytes", "input_wait_frac", "bus_bytes_per_s", "rank_imbalance_frac"}.isdisjoint(found)


def test_figures_do_not_change_their_tables() -> None:
    """Tables of a run are as they were after all figures and findings were taken."""
    one = healthy()
    before = {name: getattr(one, name).copy() for name in ("kernels", "ops", "api_calls", "ranges")}
    diagnosis.findings(one)
    for name, frame in before.items():
        pd.testing.assert_frame_equal(frame, getattr(one, name))

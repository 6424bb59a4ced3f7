"""Figures of the framework on planted tables, each by hand; what was not recorded is absent."""

from pathlib import Path

import pandas as pd
import pytest
from diagnosis import traces
from diagnosis.traces import GEMM, MS, US, all_of, of_tables, run, values, work
from frames import collectives, ranges
from ops import op, ops
from sampled import allocated, devices

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis.headline import headline
from perfkit.profile import Profile
from perfkit.report.notebooks import sample
from perfkit.run import Run
from perfkit.tables import CAPTURE

BUSY = {
    f"{part}_{unit}"
    for part in ("kernel_busy", "device_busy", "computation", "idle")
    for unit in ("ns", "frac")
}
A100 = "NVIDIA A100-SXM4-80GB"
MATRIX = {**GEMM, "shapes": "[[8192,8192],[8192,8192]]"}  # 2 * 8192^3 FLOP


def test_shares_of_the_kernels() -> None:
    outside = {
        key: part for key, part in work("x", 70 * US, 80 * US, 10 * US).items() if key != "op"
    }
    found = values(
        run(work("a", US, 10 * US, 20 * US), work("b", 40 * US, 50 * US, 10 * US), outside)
    )
    assert (2, 0.75) == (found["op_count"], found["op_kernel_frac"])
    gemm = {"family": "gemm", "kernel": "k"}
    products = [
        work("aten::mm", US, 10 * US, 30 * US, dtypes=traces.BF16, **gemm),
        work("aten::mm", 5 * US, 50 * US, 10 * US, dtypes='["float","float"]', **gemm),
        work("aten::mm", 9 * US, 70 * US, 10 * US, **gemm),
    ]
    found = values(
        run(*products, work("aten::add", 20 * US, 90 * US, 99 * US, family="elementwise"))
    )
    assert (0.6, 0.2) == (found["reduced_precision_frac"], found["unknown_precision_frac"])


STREAM, DEVICE = "cudaStreamSynchronize", "cudaDeviceSynchronize"


@pytest.mark.parametrize(
    ("waits", "idle"),
    [
        # Idle [10, 40) and [50, 80) follow, 60 us, but the waits lasted 14.
        ([(2, 8, STREAM), (44, 6, STREAM)], 14 / 130),
        pytest.param(
            [(2, 33, DEVICE)], 30 / 130, id="begins before the next operation can be launched"
        ),
        pytest.param([(2, 33, "cudaFree")], None, id="counts, but its idle time is that of memory"),
        pytest.param(
            [(200, 5, DEVICE)], None, id="what a wait after the last operation costs is not known"
        ),
    ],
)
def test_idle_after_waits_is_no_longer_than_the_waits(
    waits: list[tuple[int, int, str]], idle: float | None
) -> None:
    """Kernels of 10 us that start at 0, 40, 80 and 120 us, and waits of given start, length in us and name."""
    works = [work(f"aten::op{i}", max(i * 40 - 5, 1) * US, i * 40 * US, 10 * US) for i in range(4)]
    calls = [
        {"start_ns": start * US, "dur_ns": length * US, "name": name}
        for start, length, name in waits
    ]
    found = values(run(*works, calls=calls))
    assert len(waits) == found["sync_count"]
    assert (idle if idle is None else pytest.approx(idle)) == found.get("sync_idle_frac")


def test_what_was_not_recorded_is_absent() -> None:
    alone = of_tables(
        OPS=ops(op("a", 0, 5)), KERNELS=traces.healthy().kernels
    )  # nobody knows whether there were waits
    assert {"sync_count", "sync_idle_frac"}.isdisjoint(values(alone))
    assert 0 == values(traces.healthy())["sync_count"]
    works = [work("a", i * 100 * MS + US, i * 100 * MS + MS, MS) for i in range(5)]
    assert "input_wait_frac" not in values(
        run(*works, ranges=ranges(*traces.steps()))
    )  # no range of a loader
    kinds = (
        "op_",
        "sync_",
        "reduced",
        "unknown_p",
        "input_",
        "memory_",
        "model_",
        "shape_",
        "bus_",
        "rank_",
    )
    assert {"op_count"} == {
        i for i in values(of_tables(OPS=ops(op("a", 0, 5)))) if i.startswith(kinds)
    }
    assert not [i for i in values(of_tables()) if i.startswith(kinds)]


def test_the_rate_of_the_input() -> None:
    """By the sample's file copies of 2,414,592 B to the GPU start in its six steady steps, of 99.3143 ms."""
    found = values(perfkit.load(sample("mlp_a100") / "mlp_a100.pt.trace.json.gz"))
    assert 2_414_592 / 0.0993143056640625 == pytest.approx(found["input_bytes_per_s"], rel=1e-6)
    assert 0.4 == pytest.approx(
        values(traces.waiting_for_input())["input_wait_frac"]
    )  # 40 ms of each step of 100 ms


def test_memory() -> None:
    found = values(of_tables(SAMPLES=allocated((0, 2, 10), (10, 8, 10), (40, 4, 20))))
    expected = {"memory_peak_bytes": 8, "memory_reserved_bytes": 20, "memory_unused_frac": 0.2}
    assert expected == pytest.approx(found)
    assert {"memory_peak_bytes": 8} == values(of_tables(SAMPLES=allocated((0, 8, None))))
    assert {} == values(of_tables(SAMPLES=allocated((0, 8, 9), gpu=-1)))  # memory of the host
    nothing = values(
        of_tables(SAMPLES=allocated((0, 0, 0)))
    )  # of 0 reserved bytes no share is unused
    assert {"memory_peak_bytes", "memory_reserved_bytes"} == set(nothing)


def test_bus_bandwidth_of_the_largest_message() -> None:
    """1 GB over 8 ranks in 10 and 20 ms: median of 100 and 50 GB/s times 2 * 7 / 8; the small message says nothing."""
    rows = [
        {"start_ns": 10 * MS * i, "bytes": 10**9, "dur_ns": 10e6 * (i + 1), "group": "0"}
        for i in range(2)
    ]
    both = of_tables(
        COLLECTIVES=collectives(*rows, {"start_ns": 0, "bytes": 1000, "dur_ns": 1e6, "group": "0"})
    )
    found = diagnosis.figures(both)["bus_bytes_per_s"]
    assert 75e9 * 1.75 == pytest.approx(found.value)
    assert "2 all_reduce of 1,000,000,000 B" in found.definition
    late = perfkit.select(
        both, window=(5 * MS, 900 * MS)
    )  # only collectives that start in the window
    assert 50e9 * 1.75 == pytest.approx(values(late)["bus_bytes_per_s"])
    assert {} == values(
        of_tables(COLLECTIVES=collectives({**rows[0], "ranks": 1}))
    )  # crosses no bus


def two_ranks(*computing: int, late: int = 0) -> Run:
    """Ranks that compute for so many ms of the 100 ms between two short kernels; the last starts `late` ms later."""
    works = []
    for rank, length in enumerate(computing):
        begin = late * MS if rank == len(computing) - 1 else 0
        for i, (at, dur) in enumerate(((0, MS), (2, length * MS), (100, MS))):
            start = begin + at * MS + 5 * US
            works.append(work(f"aten::op{i}", start - 3 * US, start, dur, rank=rank))
    return run(*works)


def test_imbalance_is_of_the_time_that_all_ranks_recorded() -> None:
    """28 and 58 ms besides twice 1 ms: 60 over the mean of 45, less 1.

    With the second rank 50 ms later, [50, 101) has 10 + 1 ms of the first and 1 + 49 of the second: 50 / 30.5 - 1.
    (The first computes from 2 to 60 ms and ends at 101; the second from 52 to 110.)
    """
    found = diagnosis.figures(two_ranks(28, 58))["rank_imbalance_frac"]
    assert 60 / 45 - 1 == pytest.approx(found.value)
    assert "rank 1)" in found.definition
    assert 50 / 30.5 - 1 == pytest.approx(
        values(two_ranks(58, 58, late=50))["rank_imbalance_frac"], rel=1e-12
    )
    for apart in (
        two_ranks(10, 50, late=500),
        two_ranks(10),
    ):  # no moment in common, and a rank alone
        assert "rank_imbalance_frac" not in values(apart)


def test_the_figures_are_of_the_frameworks_own_execution_and_leave_its_tables() -> None:
    own, other = traces.healthy(), run(work("x", US, 2 * US, 500 * MS), reader="nsys")
    nsys = Profile(
        "nsys", Path("n"), CAPTURE.make(other.capture), {"KERNELS": lambda: other.kernels}
    )
    both = Run([*own.profiles, nsys])
    assert 500 * MS == values(both)["kernel_sum_ns"]
    assert values(own)["op_kernel_frac"] == values(both)["op_kernel_frac"]
    one = traces.healthy()
    before = {name: getattr(one, name).copy() for name in ("kernels", "ops", "api_calls", "ranges")}
    diagnosis.findings(one)
    for name, frame in before.items():
        pd.testing.assert_frame_equal(frame, getattr(one, name))


def test_real_figures_and_graphs(profiles: Path) -> None:
    """HTA's trace of graphs: 70 launches, none empty, 616.067 of 1,231.461 ms silent inside; vLLM's is whole."""
    found = values(
        perfkit.load(profiles / "torch" / "TraceLens__xdit_sd_3.5__profile_trace_rank_0.json.gz")
    )
    assert 27_354 == found["op_count"]
    assert all(0 <= value <= 1 for i, value in found.items() if i.endswith("_frac"))
    assert {
        "memory_peak_bytes",
        "input_wait_frac",
        "bus_bytes_per_s",
        "rank_imbalance_frac",
    }.isdisjoint(found)
    traces = profiles / "torch"
    parts = all_of(perfkit.load(traces / "HTA__negative_queue_length_values_check__rank0.json.gz"))
    assert "idle_frac" not in diagnosis.figures(parts)
    (found,) = (r for r in diagnosis.refusals(parts) if "idle" in r.question)
    assert "50.0 % of the time" in found.reason
    whole = all_of(perfkit.load(traces / "TraceLens__vllm_decode_full__graph_execution.json.gz"))
    assert 0.003 > diagnosis.figures(whole)["idle_frac"].value


def one_product(name: str) -> Run:
    """A product of two matrices of 8192 x 8192 in bf16, in 10 ms, and 10 ms of elementwise work."""
    rest = work("aten::add", 5 * US, 10 * MS + 10 * US, 10 * MS, family="elementwise")
    return run(work("aten::mm", US, 10 * US, 10 * MS, **MATRIX), rest, devices=devices(name))


def test_arithmetic_from_shapes() -> None:
    """2 * 8192^3 FLOP of 20 ms, half of them modelled; over 312e12 FLOP/s of an A100's data sheet: 0.176.

    In a window of 15 ms from the product's start it has 10 ms and the rest 5: two thirds.
    """
    found = values(one_product(A100))
    assert (2 * 8192**3, 0.5) == (found["model_flops"], found["model_coverage_frac"])
    assert 2 * 8192**3 / (0.02 * 312e12) == pytest.approx(found["shape_flops_frac"], rel=1e-12)
    part = values(perfkit.select(one_product("x"), window=(10 * US, 15 * MS + 10 * US)))
    assert 2 / 3 == pytest.approx(part["model_coverage_frac"])
    assert "model_flops" not in values(perfkit.select(one_product("x"), window=(15 * MS, 20 * MS)))


@pytest.mark.parametrize("tflops", ["100", "40", ""])
def test_peaks_of_ones_own(tmp_path: Path, tflops: str) -> None:
    """55 TFLOP/s are more than a peak of 40, which is then not that of what ran; and an empty cell is no peak."""
    path = tmp_path / "peaks.csv"
    path.write_text(f"name_nvidia_smi,bf16_tensor_tflops,fp32_tflops\nmine,{tflops},500\n")
    expected = pytest.approx(2 * 8192**3 / (0.02 * 100e12), rel=1e-12) if tflops == "100" else None
    assert expected == values(one_product("mine"), peaks=str(path)).get("shape_flops_frac")
    assert "shape_flops_frac" not in values(one_product("mine"))


def test_utilisation_needs_most_of_the_matrix_work_and_one_peak() -> None:
    """10 ms of products have shapes, 30 ms have none: the bound would say nothing, while the operations are counted.

    Of two ranks one is done in 10 ms, the other in 30: 2 * 2 * 8192^3 FLOP over 40 ms of an A100.
    """
    unknown = work("aten::mm", 5 * US, 11 * MS, 30 * MS, **GEMM)
    found = values(
        run(work("aten::mm", US, 10 * US, 10 * MS, **MATRIX), unknown, devices=devices(A100))
    )
    assert (0.25, None) == (found["model_coverage_frac"], found.get("shape_flops_frac"))
    works = [
        work("aten::mm", US, 10 * US, (10 + 20 * rank) * MS, rank=rank, **MATRIX) for rank in (0, 1)
    ]
    both = devices(A100, A100, rank=(0, 1))
    assert 4 * 8192**3 / (0.04 * 312e12) == pytest.approx(
        values(run(*works, devices=both))["shape_flops_frac"]
    )
    assert "shape_flops_frac" not in values(
        run(*works, devices=both.assign(name=[A100, "Tesla T4"]))
    )


@pytest.mark.parametrize("whole", [traces.replays(0), traces.replays(2)])
def test_graphs_recorded_whole_leave_the_figures(whole: Run) -> None:
    assert values(whole).keys() >= BUSY | {"sync_idle_frac"}


@pytest.mark.parametrize("incomplete", [traces.replays(3), traces.replays(0, pause=150 * US)])
def test_graphs_recorded_in_part_hide_how_busy_the_gpu_is(incomplete: Run) -> None:
    found = values(incomplete)
    assert BUSY.isdisjoint(found)
    assert not any(i.startswith(("sync_idle", "idle_", "exposed_", "overlap_")) for i in found)
    assert {"span_ns", "kernel_sum_ns", "kernel_count", "op_kernel_frac", "sync_count"} <= set(
        found
    )


def test_the_verdict_begins_with_lost_graphs() -> None:
    chosen = all_of(traces.replays(4))
    verdict = headline(chosen, diagnosis.figures(chosen), diagnosis.findings(chosen)).verdict
    assert verdict.startswith("4 of 10 graph launches have no operation in the recording. ")


@pytest.mark.parametrize("reader", ["nsys", "torch_trace"])
def test_what_to_record_for_graphs(reader: str) -> None:
    (found,) = (
        r
        for r in diagnosis.refusals(all_of(traces.replays(4, reader=reader)))
        if "idle" in r.question
    )
    assert "4 of 10 graph launches have no operation in the recording" == found.reason
    assert "--cuda-graph-trace=node" in found.record
    assert ("torch.profiler" in found.record) == (reader == "torch_trace")
    assert not [r for r in diagnosis.refusals(all_of(traces.replays(0))) if "idle" in r.question]


def test_graphs_of_another_gpu_are_not_missing() -> None:
    frames = {
        name: getattr(traces.replays(0), name.lower()) for name in ("KERNELS", "API_CALLS", "OPS")
    }
    moved = frames["KERNELS"].assign(gpu=(frames["KERNELS"]["start_ns"] >= 5 * MS).astype("int32"))
    one = perfkit.select(of_tables(**{**frames, "KERNELS": moved}), gpus=(0,))
    assert "idle_frac" in diagnosis.figures(one)

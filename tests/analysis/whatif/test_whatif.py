"""Replays of programs with and without changes: by hand, of real runs, and the longest path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import api_calls, kernels
from readers.torch_real import DLRM_V100, TRANSFORMER_H100
from real import WITH_KERNELS

import perfkit
from perfkit.analysis.whatif import Chains, Replay, changed, inside, prepared, replay, runs
from perfkit.analysis.whatif.changes import Change, Host, Kernels, Synchronisations
from perfkit.analysis.whatif.program import NONE, recorded
from perfkit.analysis.whatif.replay import Edges, meetings, moments
from perfkit.errors import PerfkitError, SchemaError
from perfkit.tables import API_CALLS, COPIES, KERNELS

US = 1_000
SPANS = ["measured_ns", "unchanged_ns", "span_ns", "low_ns", "high_ns"]
NO_CALL = "have no launch call"
REPLAYED = [
    "HTA__alexnet__benchmark_result_2869224_1695835535_trace.json.gz",
    "HTA__amd_trace__mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "HTA__call_stack__backward_thread.json",
    "HTA__cuda_event_sync__event_sync_trace.json.gz",
    "HTA__nccl_parser_config__nccl_data.json.gz",
    "HTA__ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    "HTA__trace_file_list__inference_rank_1.json.gz",
    "HTA__trace_filter__sampled_rank-0.json.gz",
    "HTA__trace_filter__sampled_rank-1.json.gz",
    "HTA__with_gpu_user_annotation__step_based_trace_2543932.json.gz",
    "TraceLens__b200__eager_trace.json.gz",
    "TraceLens__h100__facebook_timesformer-base-finetuned-k400__1016002.json.gz",
    "TraceLens__h100__gaunernst_bert-small-uncased__1016001.json.gz",
    "TraceLens__mi300__gaunernst_bert-small-uncased__1016001.json.gz",
    "TraceLens__perf_model__normalization__normalization_layer_test.json.gz",
    "TraceLens__sglang_decode__CAPTURE_bs_32_rank0.json.gz",
    "TraceLens__sglang_decode__sglang_Qwen3-8B_decode.json.gz",
    "TraceLens__torch_compile_triton__trace.json.gz",
    "TraceLens__vllm_decode_full__graph_execution.json.gz",
    "TraceLens__xdit_sd_3.5__profile_trace_rank_0.json.gz",
    "kineto__before_fix_trace.json",
    "kineto__gpu_metrics_input.json",
    "kineto__resnet50_autograd_api_num_workers_0__worker0.pt.trace.json.gz",
    "kineto__resnet50_autograd_api_num_workers_4__worker0.pt.trace.json.gz",
    "kineto__resnet50_num_workers_0__worker0.1623143566756.pt.trace.json.gz",
    "kineto__resnet50_num_workers_4__worker0.1623213129365.pt.trace.json.gz",
]
FOLDERS = [*DLRM_V100, *TRANSFORMER_H100]
RANKS = [f"HTA__trace_filter__sampled_rank-{rank}.json.gz" for rank in (0, 1)]
CLOVERLEAF = "hpcgroup__pipit__perlmutter-cloverleaf-cuda.sqlite"
JACOBI = "openhackathons-org__nways_accelerated_programming__jacobi_report.sqlite"
MPI = "openhackathons-org__gpubootcamp__mpi_report1.sqlite"
VLLM = "TraceLens__vllm_decode_full__graph_execution.json.gz"
FULL_QUEUE = "HTA__ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz"
BASELINE = "openhackathons-org__AI-Profiler__baseline.sqlite"


def row(start_us: int, end_us: int, correlation: int = -1, **more: Any) -> dict[str, Any]:
    """An interval in us."""
    return {"start_ns": start_us * US, "dur_ns": (end_us - start_us) * US, "correlation": correlation, **more}


WORK = kernels(row(10, 110, 1, name="a"), row(112, 162, 2, name="b"), row(190, 200, 3, name="c"))
CALLS = api_calls(row(0, 5, 1), row(8, 13, 2), row(15, 170, name="cudaStreamSynchronize"), row(180, 185, 3))


def us(found: Replay) -> tuple[float, ...]:
    """All spans of the run, us."""
    return tuple(getattr(found, span) / US for span in SPANS)


def span_us(*changes: Change) -> float:
    """Span of the program above under changes, us."""
    return replay(WORK, COPIES.empty(), CALLS, changes=changes).span_ns / US


def test_unchanged() -> None:
    """From 10 to 200 us: every wait is explained, so that all five spans are 190 us."""
    assert (190, 190, 190, 190, 190) == us(replay(WORK, COPIES.empty(), CALLS))


@pytest.mark.parametrize(
    ("changes", "expected_us"),
    [
        # a [10, 210), b 2 us behind it [212, 312); the call returns 8 us later at 320; c is called 10 us later, starts
        # 10 us after that at 340, and ends at 360.
        ((Kernels(2),), 350),
        ((Kernels(1),), 190),
        # a [10, 60), b [62, 112), return at 120, c called at 130 [140, 150).
        ((Kernels(0.5, pattern="^a$"),), 140),
        # a takes no time; b starts 10 us after its call at 8 [18, 68), return at 76, c called at 86 [96, 106).
        ((Kernels(0, pattern="^a$"),), 96),
        # The call takes no time at 15; c, called at 25, waits for its stream: [164, 174).
        ((Synchronisations(),), 164),
        # As before with a [10, 210), b [212, 312), c [314, 334).
        ((Synchronisations(), Kernels(2)), 324),
        ((Kernels(2), Synchronisations()), 324),
    ],
)
def test_changed(changes: tuple[Change, ...], expected_us: int) -> None:
    """Two kernels, a synchronisation and a third kernel, timed by hand in the comment of each case."""
    assert expected_us == span_us(*changes)


def test_touched() -> None:
    """Each change tells how many kernels or calls it concerns."""
    changes: list[Change] = [Kernels(0.5, pattern="a|b"), Kernels(0.5, family="gemm"), Synchronisations()]
    changes.append(Synchronisations("Device"))
    assert (2, 0, 1, 0) == replay(WORK, COPIES.empty(), CALLS, changes=changes).touched


def test_low_and_high() -> None:
    """A fourth kernel comes 100 us late for no reason: 2 of 1002 us. Low leaves 100 out, high keeps them.

    It is called at 205, could start at 215 and does at 315; a sync waits for its end at 10,315 and c comes 30 later.
    """
    late = kernels(*WORK[["start_ns", "dur_ns", "correlation"]].to_dict("records"), row(315, 10_315, 4))
    calls = api_calls(*CALLS[["start_ns", "dur_ns", "correlation", "name"]].to_dict("records"), row(205, 210, 4))
    found = replay(late, COPIES.empty(), calls)
    assert (10_305, 10_205, 10_205, 10_205, 10_305) == us(found)


def test_a_delay_that_nothing_explains_is_refused() -> None:
    """The third kernel starts 9 us of 199 later than its call allows by more than the GPU's own 30 us: 40 of 230."""
    late = kernels(row(10, 110, 1), row(112, 162, 2), row(230, 240, 3))
    with pytest.raises(
        PerfkitError, match=r"takes 190,000 ns in the model, 230,000 ns in the capture.*Record all GPUs"
    ):
        replay(late, COPIES.empty(), CALLS)


def test_the_gpu_has_delays_of_its_own() -> None:
    """Up to 30 us after its release an operation is merely slow to start, and remains so."""
    late = kernels(row(10, 110, 1), row(112, 162, 2), row(218, 228, 3))
    assert (218, 218, 218) == us(replay(late, COPIES.empty(), CALLS))[:3]


def test_another_stream_explains_a_delay() -> None:
    """The kernel on stream 8 starts 5 us after a of stream 7 ended, 95 after its call allows: it waited for a."""
    work = kernels(row(10, 110, 1), row(115, 165, 2, stream=8))
    calls = api_calls(row(0, 5, 1), row(8, 13, 2))
    # With a twice as long it starts at 215; low knows of no wait, and has it where it was as its stream's first.
    assert (155, 155, 255) == us(replay(work, COPIES.empty(), calls, changes=[Kernels(2, rows=[0])]))[:3]


def test_threads_pass_a_baton() -> None:
    """Thread 2 begins when thread 1 has called three times, and thread 1 goes on when thread 2 has.

    Work of 6 us lies between any two calls, and none of it is 36 us long. Without it there are 9 calls of 4 us, the
    last one at 32 us, and 5 us until its kernel starts: [37, 40), the first one at 5.
    """
    first = [row(10 * i, 10 * i + 4, i + 1) for i in range(3)]
    second = [row(30 + 10 * i, 34 + 10 * i, i + 4, thread=2) for i in range(3)]
    third = [row(60 + 10 * i, 64 + 10 * i, i + 7) for i in range(3)]
    calls = api_calls(*first, *second, *third)
    work = kernels(*(row(10 * i + 5, 10 * i + 8, i + 1) for i in range(9)))
    found = replay(work, COPIES.empty(), calls)
    assert 83 == found.span_ns / US
    work_less = replay(work, COPIES.empty(), calls, changes=[Host(0, pattern="")])
    assert 35 == work_less.span_ns / US


def test_a_collective_waits_for_the_last_rank() -> None:
    """Rank 0 comes at 10, rank 1 at 60, both leave at 100; if rank 1 came 50 us sooner, both would leave at 50."""
    communicates = {"name": "ncclKernel", "family": "communication"}
    work = kernels(
        row(10, 100, 1, **communicates),
        row(10, 60, 1, rank=1, stream=7),
        row(60, 100, 2, rank=1, stream=7, **communicates),
    )
    calls = api_calls(row(0, 5, 1), row(0, 5, 1, rank=1), row(5, 10, 2, rank=1))
    found = replay(work, COPIES.empty(), calls, changes=[Kernels(0, family="other")])
    assert [90, 90] == (found.ranks["unchanged_ns"] / US).tolist()
    # Its call is at 5, and the least latency seen is 10: it comes at 15, and takes the 40 us it took.
    assert [45, 45] == (found.ranks["span_ns"] / US).tolist()


def test_an_operation_in_the_window() -> None:
    """From 100 to 300 us the program starts b and c: 88 us."""
    assert (88, 88, 88) == us(replay(WORK, COPIES.empty(), CALLS, window=(100 * US, 300 * US)))[:3]


def test_answers_of_a_prepared_run_do_not_meet() -> None:
    """Each is that of a replay of its own, timed by hand above, whatever was asked before; unchanged it stays 190."""
    run = prepared(WORK, COPIES.empty(), CALLS)
    asked: list[tuple[Change, ...]] = [(Kernels(2),), (Synchronisations(),), (Synchronisations(), Kernels(2)), ()]
    assert [350, 164, 324, 190] == [changed(run, changes).span_ns / US for changes in asked]
    assert us(replay(WORK, COPIES.empty(), CALLS, changes=asked[0])) == us(changed(run, asked[0]))


@pytest.mark.parametrize("calls", [API_CALLS.empty(), CALLS])
def test_empty(calls: pd.DataFrame) -> None:
    """Nothing was run: no rank, and spans of 0."""
    found = replay(KERNELS.empty(), COPIES.empty(), calls, changes=[Kernels(2), Synchronisations()])
    assert (0, 0, 0, 0, 0) == us(found)
    assert ["rank", *SPANS] == found.ranks.columns.tolist()
    assert ["int32", *["int64"] * 5] == found.ranks.dtypes.astype(str).tolist()
    assert found.ranks.empty


def test_no_calls() -> None:
    """Kernels without any call, and those most of which have none of their own, are refused, with what to record."""
    with pytest.raises(PerfkitError, match=r"holds no CUDA call.*nsys profile --trace=cuda"):
        replay(WORK, COPIES.empty(), API_CALLS.empty())
    with pytest.raises(PerfkitError, match=r"2 of 3 operations have no launch call"):
        replay(WORK, COPIES.empty(), CALLS.head(1))


def test_graphs_in_part() -> None:
    """The GPU worked in a graph from 50 to 150 us, and no operation tells of it."""
    work = kernels(row(10, 50, 1), row(150, 200, 1))
    with pytest.raises(PerfkitError, match=r"100,000 ns of 190,000 ns lie inside CUDA graphs.*--cuda-graph-trace=node"):
        replay(work, COPIES.empty(), api_calls(row(0, 5, 1, name="cudaGraphLaunch")))


def test_wrong_arguments() -> None:
    """A table in the wrong place is named, a window must end after it starts; the tables are the same afterwards."""
    before = WORK.copy(deep=True), CALLS.copy(deep=True)
    replay(WORK, COPIES.empty(), CALLS, changes=[Kernels(3), Synchronisations()])
    pd.testing.assert_frame_equal(before[0], WORK)
    pd.testing.assert_frame_equal(before[1], CALLS)
    with pytest.raises(SchemaError, match="KERNELS"):
        replay(CALLS, COPIES.empty(), CALLS)
    with pytest.raises(SchemaError, match="COPIES"):
        replay(WORK, CALLS, CALLS)
    with pytest.raises(SchemaError, match="API_CALLS"):
        replay(WORK, COPIES.empty(), WORK)
    with pytest.raises(SchemaError, match="RANGES"):
        replay(WORK, COPIES.empty(), CALLS, ranges=WORK)
    with pytest.raises(ValueError, match="does not end after it starts"):
        replay(WORK, COPIES.empty(), CALLS, window=(5, 5))


def edges(*triples: tuple[int, int, int]) -> Edges:
    """Edges from (to, source, lag)."""
    return Edges(*(np.array(column, np.int64) for column in zip(*triples, strict=True)))


def test_the_latest_decides() -> None:
    """Node 2 is 5 after node 0 at 10, or 1 after node 1 at 20: at 21; node 1 has no edge and stays."""
    assert [10, 20, 21] == moments(np.array([10, 20, 30]), np.zeros(3, int), [edges((2, 0, 5), (2, 1, 1))]).tolist()


def test_what_points_back_is_left_out() -> None:
    """Node 0 was before node 1, and cannot wait for it."""
    assert [10, 15] == moments(np.array([10, 20]), np.zeros(2, int), [edges((0, 1, 5), (1, 0, 5))]).tolist()


def test_at_one_time_the_sort_decides() -> None:
    """Of two nodes at 10 the one of lower sort comes first."""
    both = [edges((0, 1, 5)), edges((1, 0, 7))]
    assert [15, 10] == moments(np.array([10, 10]), np.array([1, 0]), both).tolist()
    assert [10, 17] == moments(np.array([10, 10]), np.array([0, 1]), both).tolist()


def test_no_lag_is_no_edge() -> None:
    """A node whose only edge has the lag NONE stays where it was."""
    assert [10, 20] == moments(np.array([10, 20]), np.zeros(2, int), [edges((1, 0, NONE))]).tolist()


def test_random_graphs() -> None:
    """Relaxing all edges until nothing changes gives the same, with edges in any order."""
    rng = np.random.default_rng(4)
    for _ in range(20):
        to, source = rng.integers(0, 30, (2, 80))
        lag = rng.integers(-5, 50, 80)
        forward = source < to
        expected = np.where(np.isin(np.arange(30), to[forward]), NONE, np.arange(30) * 10)
        for _ in range(30):
            np.maximum.at(expected, to[forward], expected[source[forward]] + lag[forward])
        assert expected.tolist() == moments(np.arange(30) * 10, np.zeros(30, int), [Edges(to, source, lag)]).tolist()


@pytest.mark.parametrize("seed", range(10))
def test_runs_are_the_same_as_one_by_one(seed: int) -> None:
    """Three streams, four heads, and operations that wait for others beside: a loop gives the same ends.

    Nodes 0 to 59 are operations, 60 to 63 heads, which stay where they are.
    """
    rng = np.random.default_rng(seed)
    stream = np.sort(rng.integers(0, 3, 60))
    begins = np.diff(stream, prepend=-1) != 0
    after = np.where(begins, 0, rng.integers(1, 30, 60))
    chains = Chains(np.arange(60), stream, after, np.sort(rng.integers(60, 64, 60)), rng.integers(1, 2_000, 60))
    other = edges(*((int(b), int(a), 40) for a, b in np.sort(rng.choice(60, (6, 2), replace=False), axis=1)))
    measured = np.r_[np.arange(60) * 10 + 1_000, np.arange(4) * 200]
    found = runs(chains, np.arange(64), np.isin(np.arange(60), np.r_[other.to, other.source]))
    time = moments(measured, np.zeros(64, int), [other, *found.edges])
    expected = measured.copy()
    for op in range(60):
        launched = expected[chains.head[op]] + chains.launch[op]
        behind = NONE if begins[op] else expected[op - 1] + after[op]
        expected[op] = max(launched, behind, *(expected[other.source[other.to == op]] + 40), NONE)
    assert expected[:60].tolist() == inside(chains, found, time).tolist()
    assert len(found.edges[0].to) < 60


REFUSED = {
    "HTA__large_integer_trace__rank-70.Mar_25_20_48_12.2861.pt.trace.json.gz": "holds no CUDA call",
    "HTA__negative_queue_length_values_check__rank0.json.gz": "lie inside CUDA graphs",
    "GindaChen__nsys-ai__h100_2gpu_1s.sqlite": NO_CALL,  # cut out of a longer capture
    "NTHU-SC__ISC25-ICON-C__gpu.sqlite": NO_CALL,  # 5,510 of 5,511 copies
    "TraceLens__h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": NO_CALL,
    "TraceLens__mi300__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": NO_CALL,
    "TraceLens__mi300__resnet_act_checkpoint.json.gz": NO_CALL,
}


LOADING_ALONE, LOADING_BY_FOUR = REPLAYED[-2:]


def folder(capture: str) -> str:
    """The folder of a capture in PERFKIT_PROFILES."""
    return "nsys" if capture in WITH_KERNELS else "torch"


def replayed(profiles: Path, capture: str, *changes: Host | Kernels) -> Replay:
    """The replay of a capture under changes."""
    run = perfkit.load(profiles / folder(capture) / capture)
    return replay(run.kernels, run.copies, run.api_calls, ranges=run.ranges, changes=changes)


@pytest.mark.parametrize("capture", [*sorted({*WITH_KERNELS} - {*REFUSED}), *REPLAYED, *FOLDERS])
def test_real_runs_unchanged(profiles: Path, capture: str) -> None:
    """The model takes as long as was measured, within 2 % for every rank, without and with a change by factor 1."""
    found = replayed(profiles, capture, Kernels(1))
    assert found.measured_ns == pytest.approx(found.unchanged_ns, rel=0.02)
    assert (found.unchanged_ns, found.unchanged_ns) == (found.span_ns, max(found.low_ns, found.span_ns))


@pytest.mark.parametrize("capture", REFUSED)
def test_refused(profiles: Path, capture: str) -> None:
    """A capture without the launches of its kernels, or without those of its graphs, is refused."""
    with pytest.raises(PerfkitError, match=REFUSED[capture]):
        replayed(profiles, capture)


def test_every_torch_trace_with_kernels_is_listed(profiles: Path) -> None:
    """What is neither replayed nor refused holds no operation of a GPU, or is no trace."""
    files = (path for path in (profiles / "torch").rglob("*") if path.is_file())
    names = {str(path.relative_to(profiles / "torch")) for path in files} - {*REPLAYED, *FOLDERS, *REFUSED}
    for name in sorted(names - {"TraceLens__tracediff_test__cpu_op_map.json"}):
        run = perfkit.load(profiles / "torch" / name)
        assert 0 == len(run.kernels) + len(run.copies), name


@pytest.mark.parametrize("capture", [CLOVERLEAF, JACOBI, MPI])
def test_kernels_that_are_waited_for(profiles: Path, capture: str) -> None:
    """These programs wait for every kernel: twice the kernels' time is that much more, half of it that much less.

    1 % of the span is left for what the CPU does meanwhile.
    """
    run = perfkit.load(profiles / "nsys" / capture)
    kernel_ns = int(run.kernels["dur_ns"].sum())
    for factor in (2, 0.5):
        found = replayed(profiles, capture, Kernels(factor))
        more = (found.span_ns - found.measured_ns) / found.measured_ns
        assert (factor - 1) * kernel_ns / found.measured_ns == pytest.approx(more, abs=0.01)
    assert kernel_ns > 0.7 * found.measured_ns


def test_a_graph_is_as_long_as_its_kernels(profiles: Path) -> None:
    """421 of 425 kernels are one graph launched ahead, 99.8 % of the time: a tenth of them is a tenth of the span."""
    found = replayed(profiles, VLLM, Kernels(0.1))
    assert 0.1 == pytest.approx(found.span_ns / found.measured_ns, abs=0.01)


def test_a_full_queue_does_not_make_a_slow_host(profiles: Path) -> None:
    """Half of the time the CPU is inside launches, as 1,022 kernels are in the queue; the GPU is busy for 98 %.

    With kernels twice as fast launches would be quicker, and the run takes about half as long.
    """
    found = replayed(profiles, FULL_QUEUE, Kernels(0.5))
    assert 0.51 == pytest.approx(found.span_ns / found.measured_ns, abs=0.02)


def test_a_slow_host_does_not_gain_by_faster_kernels(profiles: Path) -> None:
    """The GPU of the AI-Profiler baseline is busy for 4 % of the time, next to a slow loader."""
    found = replayed(profiles, BASELINE, Kernels(0.1))
    assert 0.99 * found.measured_ns < found.low_ns


def test_the_loader_of_resnet50(profiles: Path) -> None:
    """The same job was recorded with the loader in the program and with four workers: 876 and 728 ms.

    The prediction from the first capture alone is 711 ms.
    """
    found = replayed(profiles, LOADING_ALONE, Host(workers=4))
    measured = replayed(profiles, LOADING_BY_FOUR)
    assert 876_066_000 == found.measured_ns
    assert 728_481_000 == measured.measured_ns
    assert measured.measured_ns == pytest.approx(found.span_ns, rel=0.03)


def test_two_ranks_that_meet(profiles: Path) -> None:
    """Ranks 0 and 1 of one training, of which Holistic Trace Analysis kept samples, meet in four collectives.

    Those end within 1 ms of each other on both. Together they are replayed within 2 %. With the computation of rank 1
    made so long that it decides, rank 0 waits for it where they meet, and both are late by the same 6.8 s.
    """
    run = perfkit.load([profiles / "torch" / name for name in RANKS])
    kernels = run.kernels
    ops = recorded(kernels, run.copies, run.api_calls).ops
    op, meeting = meetings(ops, np.isin(ops.row, np.flatnonzero(kernels["family"] == "communication")))
    met = pd.DataFrame({"rank": ops.rank[op], "end": ops.end[op]}).groupby(meeting)
    assert [2] * 4 == met["rank"].nunique().tolist()
    assert (met["end"].max() - met["end"].min() < 1_000_000).all()
    work = np.flatnonzero((kernels["rank"] == 1) & (kernels["family"] != "communication"))
    found = replay(kernels, run.copies, run.api_calls, ranges=run.ranges, changes=[Kernels(30, rows=work)])
    assert found.ranks["measured_ns"].tolist() == pytest.approx(found.ranks["unchanged_ns"].tolist(), rel=0.02)
    more = (found.ranks["span_ns"] - found.ranks["measured_ns"]).to_numpy()
    assert more[0] == pytest.approx(more[1], rel=0.01)
    added = 29 * int(kernels["dur_ns"].to_numpy()[work].sum())
    assert added - found.measured_ns < more[1] < added  # idle time of rank 1 takes up the rest

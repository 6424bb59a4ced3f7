"""Real captures: the unchanged replay is within 2 %, or there is a reason for which it is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from readers.torch_real import DLRM_V100, TRANSFORMER_H100
from real import WITH_KERNELS

import perfkit
from perfkit.analysis.whatif import Replay, replay
from perfkit.analysis.whatif.changes import Host, Kernels
from perfkit.analysis.whatif.plan import meetings
from perfkit.analysis.whatif.program import recorded
from perfkit.errors import PerfkitError

NO_CALL = "have no launch call"
REFUSED = {
    "HTA__large_integer_trace__rank-70.Mar_25_20_48_12.2861.pt.trace.json.gz": "holds no CUDA call",
    "HTA__negative_queue_length_values_check__rank0.json.gz": "lie inside CUDA graphs",
    "GindaChen__nsys-ai__h100_2gpu_1s.sqlite": NO_CALL,  # cut out of a longer capture
    "NTHU-SC__ISC25-ICON-C__gpu.sqlite": NO_CALL,  # 5,510 of 5,511 copies
    "TraceLens__h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": NO_CALL,
    "TraceLens__mi300__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": NO_CALL,
    "TraceLens__mi300__resnet_act_checkpoint.json.gz": NO_CALL,
}
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
LOADING_ALONE, LOADING_BY_FOUR = REPLAYED[-2:]
FOLDERS = [*DLRM_V100, *TRANSFORMER_H100]
RANKS = [f"HTA__trace_filter__sampled_rank-{rank}.json.gz" for rank in (0, 1)]
CLOVERLEAF = "hpcgroup__pipit__perlmutter-cloverleaf-cuda.sqlite"
JACOBI = "openhackathons-org__nways_accelerated_programming__jacobi_report.sqlite"
MPI = "openhackathons-org__gpubootcamp__mpi_report1.sqlite"
VLLM = "TraceLens__vllm_decode_full__graph_execution.json.gz"
FULL_QUEUE = "HTA__ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz"
BASELINE = "openhackathons-org__AI-Profiler__baseline.sqlite"


def folder(capture: str) -> str:
    """The folder of a capture in PERFKIT_PROFILES."""
    return "nsys" if capture in WITH_KERNELS else "torch"


def replayed(profiles: Path, capture: str, *changes: Host | Kernels) -> Replay:
    """The replay of a capture under changes."""
    run = perfkit.load(profiles / folder(capture) / capture)
    return replay(run.kernels, run.copies, run.api_calls, ranges=run.ranges, changes=changes)


@pytest.mark.parametrize("capture", [*sorted({*WITH_KERNELS} - {*REFUSED}), *REPLAYED, *FOLDERS])
def test_unchanged(profiles: Path, capture: str) -> None:
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

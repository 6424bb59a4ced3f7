"""The real PyTorch profiler traces by what they hold; files in the folder ``torch`` of PERFKIT_PROFILES."""

import gzip
import json
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from perfkit.profile import Profile
from perfkit.readers import torch_trace

V100_BEFORE = "kineto__resnet50_num_workers_0__worker0.1623143566756.pt.trace.json.gz"
V100_AFTER = "kineto__resnet50_num_workers_4__worker0.1623213129365.pt.trace.json.gz"
EARLY_2021 = "kineto__gpu_metrics_input.json"
JANUARY_2021 = "kineto__resnet50_autograd_api_num_workers_0__worker0.pt.trace.json.gz"
GRAPHS_A100 = "HTA__negative_queue_length_values_check__rank0.json.gz"
NCCL_A100 = "HTA__nccl_parser_config__nccl_data.json.gz"
EPOCH_DECIMALS = "HTA__ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz"
B200 = "TraceLens__b200__eager_trace.json.gz"
DLRM_V100 = [  # the eight ranks of one job
    f"facebookresearch__param__dlrm_kineto/worker{rank}_step_12.{time}.pt.trace.json"
    for rank, time in enumerate(
        1694128201_000 + ms for ms in (545, 556, 554, 557, 547, 549, 553, 553)
    )
]
TRANSFORMER_H100 = [  # two runs, two recordings of each
    f"sidnb13__torch-profiling-tutorial__transformer/{recording}.pt.trace.json"
    for recording in (
        "dc3b0e7228dd_851.1752215573993169006",
        "dc3b0e7228dd_851.1752215574025896717",
        "dcb0aa1a78e7_4399.1752181589589738346",
        "dcb0aa1a78e7_4399.1752181589621105859",
    )
]
GP100 = "HTA__with_gpu_user_annotation__step_based_trace_2543932.json.gz"
BERT_H100 = "TraceLens__h100__gaunernst_bert-small-uncased__1016001.json.gz"
RESNET_MI300 = "TraceLens__mi300__resnet_act_checkpoint.json.gz"
SGLANG_MI300 = "TraceLens__sglang_decode__sglang_Qwen3-8B_decode.json.gz"
XDIT_MI300 = "TraceLens__xdit_sd_3.5__profile_trace_rank_0.json.gz"
TRACES = [
    "CodingPlatelets__SwitchTransformers__trace_8batch.json.gz",
    "HTA__alexnet__benchmark_result_2869224_1695835535_trace.json.gz",
    "HTA__amd_trace__mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "HTA__call_stack__backward_thread.json",
    "HTA__cpu_only__rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz",
    "HTA__cuda_event_sync__event_sync_trace.json.gz",
    "HTA__cupti_profiler__benchmark_result_924719_1679055439_trace.json.gz",
    "HTA__distributed_info_unavailable__distributed_info_not_found.json.gz",
    "HTA__large_integer_trace__rank-70.Mar_25_20_48_12.2861.pt.trace.json.gz",
    NCCL_A100,
    GRAPHS_A100,
    EPOCH_DECIMALS,
    "HTA__rank_non_gpu__rank_non_gpu.json.gz",
    "HTA__trace_compare__base.json.gz",
    "HTA__trace_file_list__inference_rank_1.json.gz",
    "HTA__trace_filter__sampled_rank-0.json.gz",
    "HTA__trace_filter__sampled_rank-1.json.gz",
    GP100,
    "HazyResearch__zoology__trace.json.gz",
    "JeremyMorlier__GPUModel__trace2.json",
    B200,
    "TraceLens__evals_mi300__elem_01_add_poor_bw.json.gz",
    "TraceLens__evals_mi300__gemm_01_compute_few_tiles.json.gz",
    "TraceLens__evals_mi300__sdpa_03_short_seq_overhead.json.gz",
    "TraceLens__h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "TraceLens__h100__facebook_timesformer-base-finetuned-k400__1016002.json.gz",
    BERT_H100,
    "TraceLens__mi300__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "TraceLens__mi300__gaunernst_bert-small-uncased__1016001.json.gz",
    RESNET_MI300,
    "TraceLens__perf_model__normalization__normalization_layer_test.json.gz",
    "TraceLens__sglang_decode__CAPTURE_bs_32_rank0.json.gz",
    SGLANG_MI300,
    "TraceLens__torch_compile_triton__trace.json.gz",
    "TraceLens__vllm_decode_full__graph_execution.json.gz",
    XDIT_MI300,
    "kineto__before_fix_trace.json",
    EARLY_2021,
    JANUARY_2021,
    "kineto__resnet50_autograd_api_num_workers_4__worker0.pt.trace.json.gz",
    V100_BEFORE,
    V100_AFTER,
    "marcalph__kernelforge__t4_matmul.pt.trace.json.gz",
    *DLRM_V100,
    *TRANSFORMER_H100,
]
# Of these the truth took times for float64 microseconds: its starts are off by 1 ns and by up to 248 ns, and what it
# computed from them (spans, idle time, gaps, delays, steps) is off too. All other truth is exact.
ROUNDED_TRUTH = {NCCL_A100, EPOCH_DECIMALS}


read = cache(torch_trace.read)


def zero(capture: Profile, truth: dict[str, Any]) -> int:
    """Time 0 of the tables on the trace's own clock, ns; the test trace without a clock starts at 100 us."""
    started = capture.capture["t0_unix_ns"].iloc[0]
    return 100_000 if pd.isna(started) else int(started) - (truth["baseTimeNanoseconds"] or 0)


def as_in_the_truth(capture: Profile, table: str, truth: dict[str, Any]) -> pd.DataFrame:
    """A table of the trace; where the truth is rounded, with starts as a reading in float64 has them."""
    frame, begun = capture.table(table), zero(capture, truth)
    if capture.path.name not in ROUNDED_TRUTH:
        return frame
    starts = [
        round(float(Decimal(start + begun) / 1000) * 1000) - begun
        for start in frame["start_ns"].tolist()
    ]
    return frame.assign(start_ns=np.array(starts, np.int64))


def events_of(path: Path) -> list[dict[str, Any]]:
    raw = path.read_bytes()
    text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    events: list[dict[str, Any]] = json.loads(text, parse_float=Decimal)["traceEvents"]
    return events

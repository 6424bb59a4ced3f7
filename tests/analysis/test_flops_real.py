"""Operations of real PyTorch traces, against the layers of the published models and the peaks of the GPUs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from perfkit.analysis.flops import GPU_TIME, coverage, mfu, operators, roofline
from perfkit.analysis.operators.totals import kernels_of
from perfkit.hardware import peaks
from perfkit.readers import torch_trace
from perfkit.tables import OPS

QWEN = "TraceLens__{}__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
RESNET = "TraceLens__mi300__resnet_act_checkpoint.json.gz"
OLD_RESNET = "kineto__resnet50_num_workers_4__worker0.1623213129365.pt.trace.json.gz"

# Of one image of 224 x 224 pixels, after He et al., "Deep residual learning" (2015), table 1, in multiplications:
# the first convolution, then of each stage the 3 x 3 filters, the ones that halve the image, and the 1 x 1 beside them.
STEM = 112 * 112 * 64 * 3 * 49
RESNET_18 = (
    STEM
    + 4 * 56 * 56 * 64 * 64 * 9
    + sum(
        size * size * (out * out * 9 * 3 + out * out // 2 * (9 + 1)) for size, out in ((28, 128), (14, 256), (7, 512))
    )
)


def read(path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """OPS with `concrete`, and GPU_TIME by the id that kernels and operators share, read without perfkit."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    calls = [event for event in events if event.get("cat") in ("cpu_op", "Operator")]
    calls.sort(key=lambda event: (str(event["pid"]), str(event["tid"]), event["ts"], -event["dur"]))
    rows: list[dict[str, Any]] = []
    running: list[tuple[float, int, object]] = []
    for op, event in enumerate(calls):
        while running and (running[-1][2] != event["tid"] or running[-1][0] <= event["ts"]):
            running.pop()
        rows.append(
            {"op": op, "parent": running[-1][1] if running else -1, "name": event["name"], **told(event["args"])}
        )
        running.append((event["ts"] + event["dur"], op, event["tid"]))
    by_id = {event["args"].get("External id"): op for op, event in enumerate(calls)}
    spent = [
        {"rank": 0, "op": by_id.get(event["args"].get("External id"), -1), "gpu_ns": round(event["dur"] * 1000)}
        for event in events
        if event.get("cat") in ("kernel", "Kernel")
    ]
    rest = {"rank": 0, "process": 1, "thread": 1, "start_ns": 0, "dur_ns": 0, "self_ns": 0, "strides": None}
    frame = pd.DataFrame(rows).assign(**rest, sequence=-1)
    types = {column.name: column.dtype for column in OPS.columns} | {"concrete": "category"}
    return frame.astype(types), GPU_TIME.make(pd.DataFrame(spent))


def told(args: dict[str, Any]) -> dict[str, str | None]:
    """Shapes, types and other arguments as JSON text."""
    keys = {"shapes": "Input Dims", "dtypes": "Input type", "concrete": "Concrete Inputs"}
    return {name: json.dumps(args[key]) if key in args else None for name, key in keys.items()}


@pytest.mark.parametrize("gpu", ["h100", "mi300"])
def test_a_forward_pass_of_qwen(profiles: Path, gpu: str) -> None:
    """2 x parameters x tokens: 24 layers of 4 x 1024^2 + 3 x 1024 x 2816 weights, 16 x 559 tokens; causal attention.

    5,514,536,681,472 + 24 x 2 x 16 x 16 x 559^2 x 64 FLOP, on GPUs of two vendors; the matrix that turns the last
    layer into words was not run, and a product of 2 x 32 x 559 makes the positions.
    """
    ops, gpu_time = read(profiles / "torch" / QWEN.format(gpu))
    found = roofline(ops, gpu_time).groupby(["model", "dtype"], observed=True)["flops"].sum()
    weights = 24 * (4 * 1024**2 + 3 * 1024 * 2816)
    assert 2 * weights * 16 * 559 == found["gemm", "bf16"]
    assert 24 * 2 * 16 * 16 * 559**2 * 64 == found["causal_attention", "bf16"]
    assert 2 * 32 * 559 == found["gemm", "fp32"]


def test_no_rate_lies_above_what_the_gpu_can_do(profiles: Path) -> None:
    """Qwen on an H100: products at 0.63 of 989 TFLOP/s, elementwise at up to 0.78 of 3.35 TB/s, nothing above."""
    h100 = peaks("NVIDIA H100 80GB HBM3")
    assert h100 is not None
    ops, gpu_time = read(profiles / "torch" / QWEN.format("h100"))
    found = roofline(ops, gpu_time)
    compute = found.groupby("model", observed=True)[["flops", "gpu_ns"]].sum().loc["gemm"]
    assert 0.6292 == round(compute["flops"] / compute["gpu_ns"] * 1e9 / h100.flops("bf16_tensor"), 4)
    assert found["flops_per_s"].max() < h100.flops("bf16_tensor")
    assert 0.7802 == round(found["bytes_per_s"].max() / h100.bandwidth(), 4)


def test_the_share_of_the_peak_of_a_forward_pass(profiles: Path) -> None:
    """Of all kernel time 25.5 % computes with a model; over it 5.760 TFLOP are 12.8 % of the peak."""
    ops, gpu_time = read(profiles / "torch" / QWEN.format("h100"))
    covered = coverage(ops, gpu_time)
    span = int(gpu_time["gpu_ns"].sum())
    found = mfu(roofline(ops, gpu_time), covered, peak_flops_per_s=989.4e12, span_ns=span).iloc[0]
    assert (0.2549, 0.6095) == tuple(covered[["flops_frac", "bytes_frac"]].iloc[0].round(4))
    assert (0.1281, 0.2549) == tuple(found[["mfu_frac", "coverage_frac"]].astype(float).round(4))
    assert found["mfu_frac"] == found["hfu_frac"]


def test_resnet_18_is_computed_twice_under_checkpointing(profiles: Path) -> None:
    """3 steps of 10 images: 20 convolutions each, of which 19 run again for the gradients.

    The gradient of the pixels is not wanted, so that the gradients cost two forward passes less the first
    convolution, and the forward passes, once and once again without it, cost the same.
    """
    ops, gpu_time = read(profiles / "torch" / RESNET)
    found = roofline(ops, gpu_time).set_index("model")
    once = 2 * 30 * RESNET_18
    assert 1_813_561_344 == RESNET_18
    assert [117, 60] == found.loc[["convolution", "convolution_backward"], "count"].tolist()
    assert [2 * once - 2 * 30 * STEM] * 2 == found.loc[["convolution", "convolution_backward"], "flops"].tolist()
    total = found["flops"].sum()
    shares = mfu(
        roofline(ops, gpu_time),
        coverage(ops, gpu_time),
        peak_flops_per_s=1307.4e12,
        span_ns=97_255_826,
        recomputed_flops=once - 2 * 30 * STEM,
    ).iloc[0]
    assert (total - (once - 2 * 30 * STEM)) / total == pytest.approx(shares["mfu_frac"] / shares["hfu_frac"], rel=1e-12)


def test_the_reader_and_the_launch_calls_give_the_same(profiles: Path) -> None:
    """Operators as perfkit reads them, kernels found by their launch calls: the points of the ids in the file."""
    path = profiles / "torch" / QWEN.format("h100")
    trace = torch_trace.read(path)
    kernels = trace.table("KERNELS")
    launched = kernels_of(trace.table("OPS"), kernels, trace.table("API_CALLS")).assign(gpu_ns=kernels["dur_ns"])
    by_hand, gpu_time = read(path)
    found = [
        roofline(ops.assign(concrete=pd.Categorical([None] * len(ops))), spent)
        for ops, spent in ((by_hand, gpu_time), (trace.table("OPS"), launched))
    ]
    pd.testing.assert_frame_equal(*found)


def test_old_traces_lack_what_a_convolution_needs(profiles: Path) -> None:
    """ResNet-50 of 2021: 318 convolutions without stride and padding have no model, the last layer has: 3 x 6 products.

    2 x 32 x 2048 x 1000 FLOP each, forward and for both gradients.
    """
    ops, _ = read(profiles / "torch" / OLD_RESNET)
    found = operators(ops).dropna(subset="flops")
    assert {"aten::addmm": 6, "aten::mm": 12} == found["name"].astype(str).value_counts().to_dict()
    assert {2 * 32 * 2048 * 1000} == set(found["flops"])

"""FLOP, bytes, rates and utilisation of operators, by hand and in real traces."""

import functools
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from frames import tuples

from perfkit.analysis.flops import (
    GPU_TIME,
    OPERATOR_POINTS,
    counted,
    coverage,
    fusible,
    mfu,
    roofline,
)
from perfkit.analysis.operators.totals import kernels_of
from perfkit.errors import PerfkitError, SchemaError
from perfkit.readers import torch_trace
from perfkit.tables import OPS

BF16 = "c10::BFloat16"
PLAIN = {
    "rank": 0,
    "process": 1,
    "thread": 1,
    "parent": -1,
    "dur_ns": 10,
    "self_ns": 10,
    "sequence": -1,
}
MM = {"name": "aten::mm", "given": [[4, 3], [3, 5]]}
LINEAR = (
    {"name": "aten::linear", "given": [[4, 3], [5, 3], [5]]},
    {"name": "aten::t", "given": [[5, 3]], "parent": 0},
    {"name": "aten::addmm", "given": [[5], [4, 3], [3, 5]], "parent": 0},
    {"name": "aten::copy_", "given": [[4, 5], [5]], "parent": 2},
)
QWEN = "TraceLens__{}__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
RESNET = "TraceLens__mi300__resnet_act_checkpoint.json.gz"
# Of one image of 224 x 224 pixels, after He et al., "Deep residual learning" (2015), table 1, in multiplications:
# the first convolution, then of each stage the 3 x 3 filters, the ones that halve the image, and the 1 x 1 beside them.
STEM = 112 * 112 * 64 * 3 * 49


def ops(*rows: dict[str, Any]) -> pd.DataFrame:
    """OPS from name, given (shapes), dtype or dtypes, parent and concrete; each row's op is its position."""
    whole = []
    for op, row in enumerate(rows):
        shapes, dtypes = (
            row.get("given"),
            row.get("dtypes", [row.get("dtype", "float")] * len(row.get("given") or [])),
        )
        texts = {
            "shapes": shapes,
            "dtypes": dtypes if shapes else None,
            "concrete": row.get("concrete"),
        }
        recorded = {
            name: None if text is None else json.dumps(text) for name, text in texts.items()
        }
        plain = {**PLAIN, "op": op, "start_ns": op, "strides": None, **recorded}
        whole.append(
            plain | {name: row[name] for name in row.keys() & {"name", "rank", "parent", "op"}}
        )
    return OPS.make(pd.DataFrame(whole, columns=OPS.column_names))


def gpu_time(*rows: tuple[int, int, int]) -> pd.DataFrame:
    return GPU_TIME.make(pd.DataFrame(rows, columns=["rank", "op", "gpu_ns"]))


def operators(of: pd.DataFrame) -> pd.DataFrame:
    """The work of each operator that counts."""
    return counted(of)[2].sort_values(["rank", "op"], ignore_index=True)


def test_only_the_innermost_that_computes_counts() -> None:
    # Where the called operator cannot be told, the calling one can: the work is counted all the same. 2^52 elements
    # times 2^52 is more than any GPU does in a year: the shapes are not what was run.
    assert [[0, 2, "aten::addmm", "gemm", "fp32", 120.0, 208.0]] == operators(
        ops(*LINEAR)
    ).to_numpy().tolist()
    silent = {"name": "aten::addmm", "parent": 0}
    assert ["aten::linear"] == operators(ops(LINEAR[0], silent))["name"].tolist()
    huge = {"name": "aten::mm", "given": [[1 << 52, 1], [1, 1 << 52]]}
    assert [1] == operators(ops(huge, MM))["op"].tolist()


def test_operators_beside_each_other_count_each() -> None:
    given = ("bmm", [2, 4, 3], [2, 3, 4]), ("mul", [2, 4, 4]), ("bmm", [2, 4, 4], [2, 4, 3])
    outer = {"name": "aten::scaled_dot_product_attention", "given": [[1, 2, 4, 3]] * 3}
    found = operators(
        ops(outer, *({"name": f"aten::{name}", "given": of, "parent": 0} for name, *of in given))
    )
    assert [1, 2, 3] == found["op"].tolist()
    assert 4 * 2 * 4 * 4 * 3 == found["flops"].sum()
    assert [False, True, False] == found["flops"].isna().tolist()
    # The other arguments, a causal mask and the strides, are used where they are recorded.
    flag, sized = (
        ["", "", "", "0.", "True", "False", ""],
        ["", "", "", "[1]", "[0]", "[1]", "False", "[0]", "1"],
    )
    frame = ops(
        {
            "name": "aten::_scaled_dot_product_flash_attention",
            "given": [[1, 2, 4, 3]] * 3,
            "concrete": flag,
        },
        {"name": "aten::convolution", "given": [[1, 3, 8], [5, 3, 3]], "concrete": sized},
    )
    assert [192.0, 2 * 5 * 6 * 9.0] == operators(frame)["flops"].tolist()
    frame["concrete"] = pd.Categorical([None, None])
    assert [384.0] == operators(frame)["flops"].tolist()


def test_types_of_the_operands() -> None:
    fp8 = {"dtype": "c10::Float8_e4m3fn"}
    other = MM | {"dtype": BF16}, MM | fp8, MM | {"dtypes": []}
    found = operators(ops(*other, {**MM, **fp8, "name": "aten::_scaled_mm"}))
    assert ["bf16", "fp8", "missing", "fp8"] == found["dtype"].astype(object).fillna(
        "missing"
    ).tolist()
    assert [94.0, 47.0, "NaN", "NaN"] == found["bytes"].astype(object).fillna("NaN").tolist()


def test_points_of_a_name_and_type() -> None:
    # Of rank 0 30 of 100 ns computes, 50 have bytes; of rank 1 nothing has a model; an operator -1 counts in full.
    add = {"name": "aten::add", "given": [[4], [4]]}
    frame = ops(MM, MM, MM, MM | {"dtype": BF16}, add)
    found = roofline(
        frame, gpu_time((0, 0, 60), (0, 0, 40), (0, 1, 50), (0, 3, 30), (0, 4, 48), (0, -1, 500))
    )
    rows = found.set_index(["name", "dtype"])
    product, addition = rows.loc[("aten::mm", "fp32")], rows.loc[("aten::add", "fp32")]
    assert [2, 1, 240.0, 376.0, 150] == product[
        ["count", "untimed_count", "flops", "bytes", "gpu_ns"]
    ].tolist()
    assert (1.6e9, 240 / 376) == pytest.approx(
        (product["flops_per_s"], product["intensity"]), rel=1e-12
    )
    assert addition[["flops", "flops_per_s", "intensity"]].isna().all()
    speeds = addition["bytes_per_s"], rows.loc[("aten::mm", "bf16"), "flops_per_s"]
    assert (1e9, 4e9) == pytest.approx(speeds, rel=1e-12)
    frame = ops(MM, add, {"name": "aten::sort"}, MM | {"rank": 1, "given": None})
    found = coverage(frame, gpu_time((0, 0, 30), (0, 1, 20), (0, 2, 10), (0, -1, 40), (1, 3, 5)))
    assert [[0, 100, 30, 50, 0.3, 0.5], [1, 5, 0, 0, 0.0, 0.0]] == found.to_numpy().tolist()


POINTS = roofline(ops(MM), gpu_time((0, 0, 60)))
COVERED = coverage(ops(MM), gpu_time((0, 0, 60), (0, -1, 40)))


def test_fusing_saves_the_intermediate_results() -> None:
    a, b = [4, 5], [5, 4]
    chain = (
        ("mul", [a, a]),
        ("gelu", [a]),
        ("add", [a, a]),
        ("mm", [a, b]),
        ("relu", [[4, 4]]),
        ("tanh", [b]),
    )
    alone = {"name": "aten::relu", "given": [b], "rank": 1}
    frame = ops(*({"name": f"aten::{name}", "given": given} for name, given in chain), alone, alone)
    times = gpu_time(*[(0, op, 7) for op in range(6)], (1, 6, 7))  # the last one launched no kernel
    found = tuples(fusible(frame, times), "rank", "name", "count", "gpu_ns", "bytes", "saved_bytes")
    assert [
        (0, "aten::mul > aten::gelu > aten::add", 1, 21, 80 * 3 + 80 * 2 + 80 * 3, 2 * 80 * 2)
    ] == found
    assert fusible(frame, gpu_time()).empty


def test_share_of_the_peak() -> None:
    assert 0.12 == pytest.approx(mfu(POINTS, peak_flops_per_s=1e9, span_ns=1000), rel=1e-12)
    # 6 x 70e9 x 16384 FLOP in 8.5 s of 989e12 FLOP/s is the example of the definitions.
    assert 0.8186 == round(mfu(EXAMPLE, peak_flops_per_s=989e12, span_ns=8_500_000_000), 4)


EXAMPLE = POINTS.assign(flops=6 * 70e9 * 16384)
NOTHING = r"mfu: no operator has both .* Record with `record_shapes=True`"
IMPOSSIBLE = r"mfu: 2\.783 of the peak is impossible, .* that the peak is that of"


@pytest.mark.parametrize(
    ("points", "error", "why"),
    [
        (OPERATOR_POINTS.empty(), PerfkitError, NOTHING),
        (roofline(ops(MM), gpu_time()), PerfkitError, NOTHING),
        (EXAMPLE, PerfkitError, IMPOSSIBLE),
        (COVERED, SchemaError, "table 'OPERATOR_POINTS' does not match"),
    ],
)
def test_what_cannot_be_has_no_share(points: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        mfu(points, peak_flops_per_s=989e12, span_ns=2_500_000_000)


SIZES = (28, 128), (14, 256), (7, 512)
RESNET_18 = STEM + 4 * 56 * 56 * 64 * 64 * 9
RESNET_18 += sum(
    size * size * (out * out * 9 * 3 + out * out // 2 * (9 + 1)) for size, out in SIZES
)


@functools.cache
def read(path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    trace = torch_trace.read(path)
    ops, kernels, calls = (trace.table(name) for name in ("OPS", "KERNELS", "API_CALLS"))
    return ops, kernels_of(ops, kernels, calls).assign(gpu_ns=kernels["dur_ns"])


@pytest.mark.parametrize("gpu", ["h100", "mi300"])
def test_a_forward_pass_of_qwen(profiles: Path, gpu: str) -> None:
    # 2 x parameters x tokens, on two vendors' GPUs: 24 layers of 4 x 1024^2 + 3 x 1024 x 2816 weights, 16 x 559 tokens;
    # the matrix that turns the last layer into words was not run, and a product of 2 x 32 x 559 makes the positions.
    found = roofline(*read(profiles / "torch" / QWEN.format(gpu)))
    found = found.groupby(["model", "dtype"], observed=True)["flops"].sum()
    weights = 24 * (4 * 1024**2 + 3 * 1024 * 2816)
    assert 2 * weights * 16 * 559 == found["gemm", "bf16"]
    assert 24 * 2 * 16 * 16 * 559**2 * 64 == found["causal_attention", "bf16"]
    assert 2 * 32 * 559 == found["gemm", "fp32"]


def test_resnet_18_is_computed_twice_under_checkpointing(profiles: Path) -> None:
    # The gradient of the pixels is not wanted, so that the gradients cost two forward passes less the first
    # convolution, and the forward passes, once and once again without it, cost the same.
    given = read(profiles / "torch" / RESNET)
    points = roofline(*given)
    found = points.set_index("model").loc[["convolution", "convolution_backward"]]
    assert 1_813_561_344 == RESNET_18
    assert [117, 60] == found["count"].tolist()
    assert [2 * 2 * 30 * RESNET_18 - 2 * 30 * STEM] * 2 == found["flops"].tolist()


def test_fusing_the_norm_of_a_real_model(profiles: Path) -> None:
    # 24 layers with two RMS norms, and one at the end, of 16 x 559 x 1024 elements: add and rsqrt write a number per
    # row in 4 bytes, mul each element in 4 bytes, the copy each in 2: what a fused kernel neither writes nor reads.
    norm = fusible(*read(profiles / "torch" / QWEN.format("h100"))).iloc[0]
    assert "aten::add > aten::rsqrt > aten::mul > aten::copy_ > aten::mul" == norm["name"]
    rows = 16 * 559
    assert (2 * 24 + 1, 49 * 2 * rows * (4 + 4 + 1024 * (4 + 2))) == (
        norm["count"],
        norm["saved_bytes"],
    )

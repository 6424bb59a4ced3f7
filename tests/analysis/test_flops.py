"""Which operators count, and what rates and shares follow from the time of their kernels."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import kernels

from perfkit.analysis.flops import GPU_TIME, OPERATOR_POINTS, coverage, mfu, operators, roofline
from perfkit.errors import PerfkitError, SchemaError
from perfkit.tables import OPS

BF16 = "c10::BFloat16"
PLAIN = {"rank": 0, "process": 1, "thread": 1, "parent": -1, "dur_ns": 10, "self_ns": 10, "sequence": -1}


def ops(*rows: dict[str, Any]) -> pd.DataFrame:
    """OPS from name, given (shapes), dtype or dtypes, parent and concrete; each row's op is its position."""
    whole = []
    for op, row in enumerate(rows):
        shapes, dtypes = row.get("given"), row.get("dtypes", [row.get("dtype", "float")] * len(row.get("given") or []))
        texts = {"shapes": shapes, "dtypes": dtypes if shapes else None, "concrete": row.get("concrete")}
        recorded = {name: None if text is None else json.dumps(text) for name, text in texts.items()}
        plain = {**PLAIN, "op": op, "start_ns": op, "strides": None, **recorded}
        whole.append(plain | {name: row[name] for name in row.keys() & {"name", "rank", "parent", "op"}})
    return OPS.make(pd.DataFrame(whole, columns=OPS.column_names))


def gpu_time(*rows: tuple[int, int, int]) -> pd.DataFrame:
    """GPU_TIME from (rank, op, gpu_ns)."""
    return GPU_TIME.make(pd.DataFrame(rows, columns=["rank", "op", "gpu_ns"]))


MM = {"name": "aten::mm", "given": [[4, 3], [3, 5]]}
LINEAR = (
    {"name": "aten::linear", "given": [[4, 3], [5, 3], [5]]},
    {"name": "aten::t", "given": [[5, 3]], "parent": 0},
    {"name": "aten::addmm", "given": [[5], [4, 3], [3, 5]], "parent": 0},
    {"name": "aten::copy_", "given": [[4, 5], [5]], "parent": 2},
)


def test_only_the_innermost_that_computes_counts() -> None:
    """aten::linear calls aten::addmm, which copies its bias: 2 x 4 x 3 x 5 = 120 FLOP once, 47 + 5 elements."""
    found = operators(ops(*LINEAR))
    assert [[0, 2, "aten::addmm", "gemm", "fp32", 120.0, 208.0]] == found.to_numpy().tolist()


def test_what_has_no_shapes_leaves_the_count_to_what_calls_it() -> None:
    """Where the called operator cannot be told, the calling one can: the work is counted all the same."""
    silent = {"name": "aten::addmm", "parent": 0}
    assert ["aten::linear"] == operators(ops(LINEAR[0], silent))["name"].tolist()


def test_operators_beside_each_other_count_each() -> None:
    """The two products of attention written out, and what copies between them; nothing for the call around them."""
    outer = {"name": "aten::scaled_dot_product_attention", "given": [[1, 2, 4, 3]] * 3}
    inner = [
        {"name": "aten::bmm", "given": [[2, 4, 3], [2, 3, 4]], "parent": 0},
        {"name": "aten::mul", "given": [[2, 4, 4]], "parent": 0},
        {"name": "aten::bmm", "given": [[2, 4, 4], [2, 4, 3]], "parent": 0},
    ]
    found = operators(ops(outer, *inner))
    assert [1, 2, 3] == found["op"].tolist()
    assert 4 * 2 * 4 * 4 * 3 == found["flops"].sum()
    assert [False, True, False] == found["flops"].isna().tolist()


def test_the_other_arguments_are_used_where_they_are_recorded() -> None:
    """A causal mask halves; without the column `concrete` none is known, and a convolution has no model."""
    flag = ["", "", "", "0.", "True", "False", ""]
    sized = ["", "", "", "[1]", "[0]", "[1]", "False", "[0]", "1"]
    frame = ops(
        {"name": "aten::_scaled_dot_product_flash_attention", "given": [[1, 2, 4, 3]] * 3, "concrete": flag},
        {"name": "aten::convolution", "given": [[1, 3, 8], [5, 3, 3]], "concrete": sized},
    )
    assert [192.0, 2 * 5 * 6 * 9.0] == operators(frame)["flops"].tolist()
    frame["concrete"] = pd.Categorical([None, None])
    assert [384.0] == operators(frame)["flops"].tolist()


def test_types_of_the_operands() -> None:
    """The usual name where it is known, the recorded one where it is not, missing where none was."""
    rows = [MM | {"dtype": BF16}, MM | {"dtype": "c10::Float8_e4m3fn"}, MM | {"dtypes": []}]
    found = operators(ops(*rows, {"name": "aten::_scaled_mm", "given": MM["given"], "dtype": "c10::Float8_e4m3fn"}))
    assert ["bf16", "fp8", "missing", "fp8"] == found["dtype"].astype(object).fillna("missing").tolist()
    assert [94.0, 47.0, "NaN", "NaN"] == found["bytes"].astype(object).fillna("NaN").tolist()


def test_an_operator_that_cannot_have_run() -> None:
    """2^52 elements times 2^52 is more than any GPU does in a year: the shapes are not what was run."""
    huge = {"name": "aten::mm", "given": [[1 << 52, 1], [1, 1 << 52]]}
    assert [1] == operators(ops(huge, MM))["op"].tolist()


def test_points_of_a_name_and_type() -> None:
    """Two products of 120 FLOP and 188 bytes in 100 + 50 ns: 1.6 GFLOP/s; the third never reached the GPU."""
    frame = ops(MM, MM, MM, MM | {"dtype": BF16}, {"name": "aten::add", "given": [[4], [4]]})
    found = roofline(frame, gpu_time((0, 0, 60), (0, 0, 40), (0, 1, 50), (0, 3, 30), (0, 4, 48), (0, -1, 500)))
    rows = found.set_index(["name", "dtype"])
    product = rows.loc[("aten::mm", "fp32")]
    assert (2, 1, 240.0, 376.0, 150) == tuple(product[["count", "untimed_count", "flops", "bytes", "gpu_ns"]])
    assert (1.6e9, 240 / 376) == pytest.approx((product["flops_per_s"], product["intensity"]), rel=1e-12)
    addition = rows.loc[("aten::add", "fp32")]
    assert 1e9 == pytest.approx(addition["bytes_per_s"], rel=1e-12)
    assert addition[["flops", "flops_per_s", "intensity"]].isna().all()
    assert 4e9 == pytest.approx(rows.loc[("aten::mm", "bf16"), "flops_per_s"], rel=1e-12)


def test_kernels_of_called_operators_belong_to_what_counts() -> None:
    """The copy of the bias is part of the product that asked for it; what lies around the product is not."""
    found = roofline(ops(*LINEAR), gpu_time((0, 3, 7), (0, 2, 20), (0, 1, 100), (0, 0, 1000)))
    assert [27] == found["gpu_ns"].tolist()


def test_nothing_ran_on_the_gpu() -> None:
    """Operators without kernels, as on the CPU: their work is no part of any rate."""
    found = roofline(ops(MM, MM), gpu_time())
    assert [0, 2, 0] == found[["count", "untimed_count", "gpu_ns"]].iloc[0].tolist()
    assert found[["flops", "bytes", "flops_per_s", "bytes_per_s", "intensity"]].isna().all(axis=None)


def test_coverage_per_rank() -> None:
    """Rank 0: 30 of 100 ns computes, 50 have bytes; of rank 1 nothing has a model; an operator -1 counts in full."""
    frame = ops(MM, {"name": "aten::add", "given": [[4], [4]]}, {"name": "aten::sort"}, MM | {"rank": 1, "given": None})
    found = coverage(frame, gpu_time((0, 0, 30), (0, 1, 20), (0, 2, 10), (0, -1, 40), (1, 3, 5)))
    assert [[0, 100, 30, 50, 0.3, 0.5], [1, 5, 0, 0, 0.0, 0.0]] == found.to_numpy().tolist()


def calls_product(op: int, rows: list[dict[str, Any]]) -> bool:
    """Whether a product lies anywhere below an operator."""
    below = [at for at, row in enumerate(rows) if row["parent"] == op]
    return any(rows[at]["name"] == "aten::mm" or calls_product(at, rows) for at in below)


@pytest.mark.parametrize("seed", range(4))
def test_against_walking_up_the_calls(seed: int) -> None:
    """Random calls in two ranks: each kernel goes to the nearest operator above it that computes, once."""
    random = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for op in range(120):
        parent = int(random.choice([-1, *range(op % 2, op, 2)][-3:]))
        rows.append({"rank": op % 2, "parent": parent} | ({"name": "aten::view"} if op % 3 else MM))
    counted = [row["name"] == "aten::mm" and not calls_product(op, rows) for op, row in enumerate(rows)]
    spent = [(op % 2, op, int(random.integers(1, 9))) for op in range(120)]
    expected = {0: 0, 1: 0}
    for rank, op, gpu_ns in spent:
        at = op
        while at >= 0 and not counted[at]:
            at = rows[at]["parent"]
        expected[rank] += gpu_ns if at >= 0 else 0
    found = roofline(ops(*rows), gpu_time(*spent)).set_index("rank")["gpu_ns"].to_dict()
    assert expected == found


def test_the_order_of_rows_and_the_numbers_do_not_matter() -> None:
    """Reversed, and with numbers far apart: the same points."""
    frame = ops(*LINEAR)
    far = frame.assign(**{c: frame[c].where(frame[c] < 0, frame[c] * 10**6 + 5) for c in ("op", "parent")})
    found = [
        roofline(frame, gpu_time((0, 3, 7))),
        roofline(frame[::-1], gpu_time((0, 3, 7))),
        roofline(far, gpu_time((0, 3 * 10**6 + 5, 7))),
    ]
    for other in found[1:]:
        pd.testing.assert_frame_equal(found[0], other)


POINTS = roofline(ops(MM), gpu_time((0, 0, 60)))
COVERED = coverage(ops(MM), gpu_time((0, 0, 60), (0, -1, 40)))


def test_share_of_the_peak() -> None:
    """120 FLOP in 1 us on 2 GPUs of 1 GFLOP/s: 6 %; of 30 recomputed 4.5 %; 60 of 100 ns have a model."""
    found = mfu(POINTS, COVERED, peak_flops_per_s=1e9, span_ns=1000, gpus=2, recomputed_flops=30).iloc[0]
    given = {"flops": 120, "span_ns": 1000, "gpus": 2, "peak_flops_per_s": 1e9}
    shares = {"mfu_frac": 0.045, "hfu_frac": 0.06, "coverage_frac": 0.6}
    assert "" == found["note"]
    assert given | shares == pytest.approx(found.drop("note").to_dict(), rel=1e-12)


def test_the_example_of_the_definitions_is_refused() -> None:
    """6 x 70e9 x 16384 FLOP in 2.5 s of 989e12 is 2.783 of the peak; in 8.5 s 0.8186, which is flagged."""
    points = POINTS.assign(flops=6 * 70e9 * 16384)
    with pytest.raises(PerfkitError, match=r"mfu: 2\.783 of the peak is impossible, .* that the peak is that of"):
        mfu(points, COVERED, peak_flops_per_s=989e12, span_ns=2_500_000_000)
    found = mfu(points, COVERED, peak_flops_per_s=989e12, span_ns=8_500_000_000)
    assert 0.8186 == round(found["mfu_frac"].iloc[0], 4)
    assert found["note"].iloc[0].startswith("above 70 % of the peak")


@pytest.mark.parametrize("peak", [None, 0.0, float("nan"), float("inf"), -1.0])
def test_without_a_peak_there_is_no_share(peak: float | None) -> None:
    """No default: what is not known is refused."""
    with pytest.raises(PerfkitError, match=r"mfu: no peak is known\. Pass the dense peak"):
        mfu(POINTS, COVERED, peak_flops_per_s=peak, span_ns=1000)


def test_without_operations_there_is_no_share() -> None:
    """Nothing with FLOP and GPU time: unknown, not 0."""
    for points in (OPERATOR_POINTS.empty(), roofline(ops(MM), gpu_time())):
        with pytest.raises(PerfkitError, match=r"mfu: no operator has both .* Record with `record_shapes=True`"):
            mfu(points, COVERED, peak_flops_per_s=1e9, span_ns=1000)


def test_arguments_that_cannot_be() -> None:
    """No time, no GPU, more recomputed than computed."""
    for wrong in ({"span_ns": 0}, {"gpus": 0}):
        with pytest.raises(ValueError, match=r"span_ns, gpus: .* are not a positive time and at least one GPU"):
            mfu(POINTS, COVERED, **({"peak_flops_per_s": 1e9, "span_ns": 1000} | wrong))
    with pytest.raises(ValueError, match=r"recomputed_flops: 121 is not within 0 and the operations, 120\.0"):
        mfu(POINTS, COVERED, peak_flops_per_s=1e9, span_ns=1000, recomputed_flops=121)


def test_empty_tables() -> None:
    """No operators, no kernels: no rows, with the columns and types of a full answer."""
    nothing = OPS.empty()
    for found, full in (
        (operators(nothing), operators(ops(MM))),
        (roofline(nothing, gpu_time()), POINTS),
        (coverage(nothing, gpu_time()), COVERED),
    ):
        assert 0 == len(found)
        assert full.dtypes.astype(str).tolist() == found.dtypes.astype(str).tolist()


def test_wrong_tables() -> None:
    """KERNELS in place of OPS, OPS in place of the kernels' times."""
    with pytest.raises(SchemaError, match="table 'OPS' does not match"):
        operators(kernels())
    for of in (roofline, coverage):
        with pytest.raises(SchemaError, match="table 'GPU_TIME' does not match"):
            of(ops(MM), ops(MM))
    with pytest.raises(SchemaError, match="table 'OPERATOR_POINTS' does not match"):
        mfu(COVERED, COVERED, peak_flops_per_s=1e9, span_ns=1000)


def test_arguments_stay_as_they_are() -> None:
    """Nothing is written into the tables that were given."""
    frame, times = ops(*LINEAR), gpu_time((0, 3, 7))
    before = frame.copy(deep=True), times.copy(deep=True)
    roofline(frame, times)
    coverage(frame, times)
    pd.testing.assert_frame_equal(before[0], frame)
    pd.testing.assert_frame_equal(before[1], times)

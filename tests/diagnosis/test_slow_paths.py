"""Settings, formats and operators that make a program slow: runs with planted causes, each beside its mended form."""

import pytest
from diagnosis.traces import BF16, MS, US, run, told, work
from frames import copies
from ops import op, ops

from perfkit.diagnosis.headline import ranked
from perfkit.run import Run


def debugged(after_us: int = 2, count: int = 60) -> Run:
    """Kernels of 9 us every 40 us; each launch begins 5 us before its kernel and returns so long after its end."""
    works = [work("aten::mul", (40 * i + 2) * US, (40 * i + 7) * US, 9 * US) for i in range(count)]
    for each in works:
        each["call"]["dur_ns"] = (14 + after_us) * US
        each["op"]["dur_ns"] = 25 * US
    return run(*works)


def test_launches_that_wait_for_their_kernels_come_first() -> None:
    found = told(debugged())
    of, small = found["launch_blocking"], found["small_operators"]
    assert "CUDA_LAUNCH_BLOCKING" in of.advice["immediate"][0]
    assert [1.0, pytest.approx(60 * 16 / 2369)] == [figure.value for figure in of.evidence]
    # Outside of the calls the CPU is faster without the profiler, and no run is shorter than its kernels.
    assert of.gain.high == pytest.approx((960 + 1409 / 2.7) / 540)
    assert ranked(found.values())[0] is of
    assert ("medium", "medium", 1.0) == (small.severity, small.confidence, small.gain.low)
    assert not {"idle_launch"} & {*found}, "no second finding on the same calls"
    assert "launch_blocking" not in told(debugged(after_us=-1)), "an ordinary short kernel"
    assert "launch_blocking" not in told(debugged(count=49)), "too few"


@pytest.mark.parametrize(("way", "first"), [("D2H", "Compute on the GPU what"), ("H2D", "Set pin_memory=True")])
def test_advice_on_copies_follows_their_direction(way: str, first: str) -> None:
    memory = ("device", "pageable") if way == "D2H" else ("pageable", "device")
    copied = {"start_ns": 11 * MS, "dur_ns": 60 * MS, "bytes": 6_000_000, "direction": way}
    copied |= dict(zip(("src_memory", "dst_memory"), memory, strict=True))
    of = told(run(work("aten::mm", US, MS, 10 * MS), copies=copies(copied)))["copies_pageable"]
    assert of.advice["immediate"][0].startswith(first)
    assert ("from the GPU to the CPU" in of.explanation) is (way == "D2H")
    assert ("the next batch" in str(of.advice)) is (way == "H2D")


def converting(of: str = "[[64,4096],[512,4096],[]]", to: str = "c10::BFloat16") -> Run:
    """Ten products of 1 ms under autocast: in each, 2 ms convert a tensor of 512 x 4096, inside of aten::linear."""
    works = []
    for at in range(0, 30, 3):
        cast = {"shapes": "[[512,4096],[512,4096],[]]", "dtypes": f'["{to}","float","Scalar"]', "family": "copy"}
        works += [work("aten::copy_", (30 * at + 5) * US, (at + 1) * MS, 2 * MS, **cast)]
        works += [work("aten::mm", (30 * at + 15) * US, (at + 3) * MS, MS, family="gemm", dtypes=BF16)]
    linear = [op("aten::linear", 30 * at * US, (30 * at + 25) * US, shapes=of) for at in range(0, 30, 3)]
    inner = [each["op"] for each in works]
    return run(*works, ops=ops(*linear, *inner))


def test_casts_of_weights_inside_of_other_operators_are_no_moves() -> None:
    found = told(converting())
    assert "layout" not in found
    assert (
        "aten::linear 66.7 %. They convert their weights to another type, 10 times in all" in found["casts"].explanation
    )
    assert found["casts"].gain.high == pytest.approx(3.0)
    assert "model.to(torch.bfloat16)" in found["casts"].advice["immediate"][0]
    assert not {"layout", "casts"} & {*told(converting("[[512,4096],[64,4096],[]]"))}, "autocast converts inputs anyway"
    assert {"layout", "casts"} & {*told(converting(to="float"))} == {"layout"}


def padded(size: int = 50_257, *, aligned: bool = True) -> Run:
    """Ten products with a dimension of this size, 8 ms each; between them one of 0.1 ms at 687 TFLOP/s, or none."""
    works, more = [], {"family": "gemm", "dtypes": BF16}
    for at in range(10):
        of = {"shapes": f"[[8192,1024],[1024,{size}]]", "strides": "[[1024,1],[1,1024]]"}
        works += [work("aten::mm", (30 * at + 5) * US, (10 * at + 1) * MS, 8 * MS, **of, **more)]
        of = {"shapes": "[[8192,1024],[1024,4096]]", "strides": "[[1024,1],[1,1024]]"}
        works += [work("aten::mm", (30 * at + 15) * US, (10 * at + 9) * MS, MS // 10, **of, **more)] if aligned else []
    return run(*works)


def test_products_with_unaligned_rows_name_the_size_that_is_padded() -> None:
    of = told(padded())["unaligned_products"]
    assert of.advice["immediate"][0] == "Pad the dimension of 50257 to 50304, a multiple of 64"
    rate, fast = (2 * 8192 * 1024 * size / seconds for size, seconds in ((50_257, 8e-3), (4096, 1e-4)))
    assert [pytest.approx(rate), pytest.approx(fast)] == [figure.value for figure in of.evidence[1:]]
    assert of.gain.share == pytest.approx(80 / 98.1 * (1 - rate / fast), rel=0.01)
    assert "unaligned_products" in told(padded(aligned=False))
    assert "unaligned_products" not in told(padded(50_304))

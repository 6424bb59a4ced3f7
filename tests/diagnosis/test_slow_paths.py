"""Settings, formats and operators that make a program slow: runs with planted causes, each beside its mended form."""

import pytest
from diagnosis.traces import MS, US, run, told, work
from frames import copies

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

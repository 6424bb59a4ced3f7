"""A clock that falls and kernels of few blocks: small runs with known times, and real captures."""

from typing import Any

import pytest
from diagnosis.test_gpus import kernel
from diagnosis.traces import MS, told, view
from frames import copies, kernels
from sampled import devices, samples

import perfkit
from perfkit import diagnosis


def clocked(
    *, low_ms: int = 2, first_hz: float = 1.4e9, then_hz: float = 0.7e9
) -> perfkit.Selection:
    """Kernels of 1 ms for 20 ms, then of `low_ms` for 20 ms; the clock is read each ms."""
    rows = [kernel(0, at, 1) for at in range(20)] + [
        kernel(0, at, low_ms) for at in range(20, 40, low_ms)
    ]
    return view(
        kernels=kernels(*rows),
        samples=samples(every=MS, gpc_clock_hz=[first_hz] * 20 + [then_hz] * 20),
    )


def gridded(*rows: dict[str, int], name: str = "scan") -> perfkit.Selection:
    """Kernels on a GPU of 100 SMs: (start, length) in ms and blocks."""
    return view(
        kernels=kernels(*({"name": name, **row} for row in rows)),
        devices=devices("a GPU", sm_count=100),
    )


def few(name: str = "scan") -> perfkit.Selection:
    """A kernel of 10 blocks for 40 of 100 ms, one of 1000 for the others."""
    scan = {"start_ns": 0, "dur_ns": 40 * MS, "grid_blocks": 10}
    return gridded(
        scan,
        {"start_ns": 40 * MS, "dur_ns": 60 * MS, "grid_blocks": 1000, "name": "wide"},
        name=name,
    )


def migrating(**more: Any) -> perfkit.Selection:
    """A kernel from 40 to 100 ms, pages that move from 20 to 60 ms, without a call."""
    page = {"start_ns": 20 * MS, "dur_ns": 40 * MS, "bytes": 2_000_000, "src_memory": "managed"}
    page |= {"dst_memory": "managed", "correlation": 0, **more}
    begin = {"start_ns": 0, "dur_ns": 20 * MS}
    return view(
        kernels=kernels(begin, {"start_ns": 40 * MS, "dur_ns": 60 * MS}), copies=copies(page)
    )


def test_a_falling_clock_is_told() -> None:
    of = told(clocked())["clock_lowered"]
    assert of.title == "The clock falls from 1,400 to 700 MHz for 50.0 % of the kernel time"
    assert [0.5, 0.5, 2.0] == pytest.approx([figure.value for figure in of.evidence])
    assert ("medium", "high", 0.25) == (of.severity, of.confidence, pytest.approx(of.gain.share))
    assert 4 / 3 == pytest.approx(of.gain.high)


def test_clocks_that_cost_nothing_are_doubted_or_not_told() -> None:
    of = told(clocked(low_ms=1))[
        "clock_lowered"
    ]  # the clock halves, but the kernels last 1 ms all the same
    assert of.against == ("the same kernels take only 1.00 times as long at the low clock",)
    assert "medium" == of.confidence
    for first, then in (
        (0.7e9, 1.4e9),
        (1.4e9, 1.3e9),
        (1.4e9, 1.4e9),
    ):  # wakes up, loses 7 %, keeps its clock
        assert "clock_lowered" not in told(clocked(low_ms=1, first_hz=first, then_hz=then))
    # What --gpu-metrics-devices of nsys samples answers whether the clock was lowered.
    asked = [refusal.question for refusal in diagnosis.refusals(clocked())]
    assert "Was the clock lowered by power or heat while kernels ran?" not in asked


def test_kernels_of_few_blocks_are_told() -> None:
    of = told(few())["few_blocks"]
    assert of.title == "Kernels with fewer blocks than SMs take 40.0 % of the time"
    assert [0.4, 0.1] == pytest.approx([figure.value for figure in of.evidence])
    assert ("high", "high", 0.36) == (of.severity, of.confidence, pytest.approx(of.gain.share))
    assert "“scan”: 10 blocks for 100 SMs" in of.explanation
    own, library = (
        told(few(name))["few_blocks"].advice["immediate"][0]
        for name in ("scan", "ampere_sgemm_32x32_nn")
    )
    assert "gridDim.x" in own
    assert "cublasGemmStridedBatchedEx" in library  # nobody sets the grid of a kernel of cuBLAS


@pytest.mark.parametrize(
    "rows",
    [
        [
            {"start_ns": 0, "dur_ns": 40 * MS, "grid_blocks": 10, "stream": stream}
            for stream in range(10)
        ],
        [{"start_ns": i * 6_000, "dur_ns": 5_000, "grid_blocks": 1} for i in range(100)],
        [{"start_ns": 0, "dur_ns": 40 * MS, "grid_blocks": 95}],
        [
            {"start_ns": 0, "dur_ns": 40 * MS, "grid_blocks": blocks, "name": str(blocks)}
            for blocks in (10, 1000)
        ],
    ],
    ids=["ten at once fill the SMs", "kernels of 5 us", "95 of 100 SMs", "beside a large one"],
)
def test_what_leaves_few_sms_idle_is_not_told(rows: list[dict[str, int]]) -> None:
    assert "few_blocks" not in told(gridded(*rows))


def test_migrations_of_pages_are_told() -> None:
    found = told(migrating())
    of = found["unified_memory"]
    assert of.title == "Page migrations of unified memory take 40.0 % of the time"
    assert [0.2, 0.2] == pytest.approx([figure.value for figure in of.evidence])
    assert ("high", "medium", 0.4) == (of.severity, of.confidence, pytest.approx(of.gain.share))
    assert not [rule for rule in found if rule.startswith(("copies_", "exposed_copy"))]
    for more in (
        {"correlation": 5},
        {"src_memory": "pinned"},
    ):  # a call started the copy, or no managed memory
        found = told(migrating(**more))
        assert ("unified_memory" in found, "copies_serial" in found) == (False, True)

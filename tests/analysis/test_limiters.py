"""What limits a launch, worked by hand: counters of one launch, and the unit that they name."""

import counted
import pytest

from perfkit.analysis import limiters

L1, L2 = (
    "l1tex__throughput.avg.pct_of_peak_sustained_elapsed",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed",
)
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
LSU = "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_active"
WAVES, SMS = "launch__waves_per_multiprocessor", "launch__sm_count"
PLAIN = {"name": "k", "dur_ns": 1e6, "grid_blocks": 1_000, "block_threads": 256}


def limit(metrics: dict[str, float], **launch: float) -> str:
    """The limit of one launch of 1,000 blocks of 256 threads with these counters."""
    ran = counted.launches({**PLAIN, **launch})
    found = limiters.limiters(ran, counted.counters(metrics))
    return str(found["limit"].iloc[0])


@pytest.mark.parametrize(
    ("metrics", "launch", "expected"),
    [
        pytest.param(
            {L1: 84, L2: 69},
            {"sm_frac": 0.4, "memory_frac": 0.84, "dram_frac": 0.01},
            "l1",
            id="L1",
        ),
        pytest.param(
            {L1: 40, L2: 72},
            {"sm_frac": 0.1, "memory_frac": 0.72, "dram_frac": 0.25},
            "l2",
            id="L2",
        ),
        pytest.param(
            {L1: 38, L2: 86},
            {"sm_frac": 0.4, "memory_frac": 0.70, "dram_frac": 0.70},
            "dram",
            id="what streams from DRAM passes L2",
        ),
        pytest.param(
            {L1: 98, TENSOR: 97},
            {"sm_frac": 0.93, "memory_frac": 0.94, "dram_frac": 0.3},
            "tensor",
            id="of equals the tensor pipe",
        ),
        pytest.param(
            {L1: 83, LSU: 84},
            {"sm_frac": 0.83, "memory_frac": 0.83, "dram_frac": 0.1},
            "lsu",
            id="load/store",
        ),
        pytest.param(
            {},
            {"sm_frac": 0.1, "memory_frac": 0.8, "dram_frac": 0.2},
            "cache",
            id="no DRAM, level unknown",
        ),
        pytest.param({}, {"sm_frac": 0.97}, "sm", id="no memory is busier than full SMs"),
        pytest.param({}, {"sm_frac": 0.89}, "sm", id="SMs leave little to anything else"),
        pytest.param({}, {"sm_frac": 0.79}, "not measured", id="a memory may be busier"),
        pytest.param(
            {WAVES: 2},
            {"sm_frac": 0.3, "memory_frac": 0.5, "dram_frac": 0.5},
            "latency",
            id="none is busy",
        ),
        pytest.param(
            {SMS: 132},
            {"sm_frac": 0.1, "memory_frac": 0.1, "grid_blocks": 16},
            "small grid",
            id="16 blocks",
        ),
        pytest.param(
            {WAVES: 133 / 132},
            {"sm_frac": 0.5, "memory_frac": 0.2},
            "last wave",
            id="one block too many",
        ),
        pytest.param(
            {},
            {"sm_frac": 0.1, "memory_frac": 0.5, "block_threads": 1},
            "few threads",
            id="one thread",
        ),
        pytest.param({}, {"memory_frac": 0.9}, "not measured", id="half of the throughputs"),
    ],
)
def test_the_limit_is_named_in_the_order_of_the_hardware(
    metrics: dict[str, float], launch: dict[str, float], expected: str
) -> None:
    assert expected == limit(metrics, **launch)

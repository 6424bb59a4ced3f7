"""Occupancy, its limits, waves and tail."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from counted import counters, launches

from perfkit.analysis.warps import Sm, occupancy, resident_blocks
from perfkit.errors import SchemaError
from perfkit.tables import COUNTERS, LAUNCHES

A100 = Sm(warps=64, registers=65536, shared_bytes=164 * 1024, slots=32, sms=108, compute_capability=8)
WORKED = {
    "launch__registers_per_thread": 64,
    "launch__shared_mem_per_block_static": 16 * 1024,
    "launch__shared_mem_per_block_dynamic": 32 * 1024,
}
ATTRIBUTES = {
    "device__attribute_max_warps_per_multiprocessor": 64,
    "device__attribute_max_registers_per_multiprocessor": 65536,
    "device__attribute_max_shared_memory_per_multiprocessor": 164 * 1024,
    "device__attribute_max_blocks_per_multiprocessor": 32,
    "device__attribute_multiprocessor_count": 108,
    "device__attribute_compute_capability_major": 8,
}
GRID = {"grid_blocks": 1000, "block_threads": 256}


@pytest.mark.parametrize(("extra", "sm"), [({}, A100), (ATTRIBUTES, Sm())], ids=["keyword", "attributes"])
def test_worked_example(extra: dict[str, float], sm: Sm) -> None:
    """A100, 256 threads, 64 registers, 48 KiB: 8, 4, 3 and 32 blocks; 3 x 8 / 64 = 37.5 %; 1000 / (3 x 108) waves."""
    found = occupancy(launches(GRID), counters(WORKED | extra), sm=sm).iloc[0]
    assert [8, 4, 3, 32] == [found[f"{name}_blocks"] for name in ("warps", "registers", "shared_memory", "slots")]
    assert (3, 0.375, "shared memory") == tuple(
        found[["resident_blocks", "theoretical_occupancy_frac", "limiter"]].tolist()
    )
    assert pytest.approx(1000 / 324, rel=1e-12) == found["waves"]
    assert "3.086" == f"{found['waves']:.3f}"
    assert pytest.approx(4 - 1000 / 324, rel=1e-12) == found["tail_frac"]


def test_measured_limits_come_first() -> None:
    """Where the report holds the limits they are taken, and its theoretical occupancy too."""
    measured = {f"launch__occupancy_limit_{name}": n for name, n in (("warps", 8), ("registers", 2), ("blocks", 32))}
    said = {**WORKED, **measured, "launch__occupancy_limit_shared_mem": 2, "launch__occupancy_limit_barriers": 16}
    found = occupancy(launches(GRID | {"theoretical_occupancy_frac": 0.26}), counters(said), sm=A100).iloc[0]
    assert "registers, shared memory" == found["limiter"]
    assert (0.26, 2, 16) == (found["theoretical_occupancy_frac"], found["resident_blocks"], found["barriers_blocks"])


def test_barriers_limit_when_they_are_scarcest() -> None:
    """Reports from 2024 on also count barriers."""
    found = occupancy(launches(GRID), counters(WORKED | {"launch__occupancy_limit_barriers": 1}), sm=A100)
    assert ["barriers"] == found["limiter"].tolist()


def test_without_the_gpu_nothing_is_assumed() -> None:
    """Without limits of the SM nothing is computed: there is no default GPU."""
    found = occupancy(launches(GRID | {"achieved_occupancy_frac": 0.5}), counters(WORKED)).iloc[0]
    unknown = ["theoretical_occupancy_frac", "resident_blocks", "waves", "tail_frac", "limiter", "slots_blocks"]
    assert found[unknown].isna().all()
    assert 0.5 == found["achieved_occupancy_frac"]


def test_one_unknown_limit_leaves_the_smallest_unknown() -> None:
    """Three limits known, shared memory not: the smallest of three may not be the limiter."""
    found = occupancy(launches(GRID), counters({"launch__registers_per_thread": 64}), sm=A100).iloc[0]
    assert 4 == found["registers_blocks"]
    assert pd.isna(found["resident_blocks"])
    assert pd.isna(found["limiter"])


@pytest.mark.parametrize(
    ("grid", "printed", "waves"),
    [(1000, 3.09, 1000 / 324), (1000, 1.5, 1.5), (1, 0.0, 1 / 324)],
    ids=["rounded", "clusters decide", "far below one"],
)
def test_waves_keep_their_digits(grid: int, printed: float, waves: float) -> None:
    """A printed 3.09 is 3.0864; a value that the rule does not give is the report's own."""
    said = counters(WORKED | {"launch__waves_per_multiprocessor": printed})
    found = occupancy(launches(GRID | {"grid_blocks": grid}), said, sm=A100)["waves"]
    assert [pytest.approx(waves, rel=1e-12)] == found.tolist()


def test_a_printed_zero_is_no_answer() -> None:
    """0.00 waves means below 0.005: without the number of SMs neither waves nor tail are known."""
    found = occupancy(launches(GRID), counters({"launch__waves_per_multiprocessor": 0.0})).iloc[0]
    assert found[["waves", "tail_frac"]].isna().all()


def test_whole_waves_have_no_tail() -> None:
    """648 blocks are two waves of 324: no place stays empty."""
    found = occupancy(launches(GRID | {"grid_blocks": 648}), counters(WORKED), sm=A100).iloc[0]
    assert (2.0, 0.0) == (found["waves"], found["tail_frac"])


def test_registers_are_given_out_by_quarters() -> None:
    """42 registers: 1536 per warp, 16384 // 1536 = 10 warps a quarter, 40 an SM: 20 blocks of 2 warps, not 21."""
    found = resident_blocks(np.array([64.0]), np.array([42.0]), np.array([0.0]), sm=A100)
    assert [20] == found["registers"].tolist()


def test_before_ampere_no_shared_memory_is_kept() -> None:
    """Turing: 65536 / 16384 = 4 blocks; Ampere keeps 1 KiB per block: 3. No shared memory at all: the slots."""
    shared = np.array([16384.0, 0.0])
    by_capability = {
        cc: resident_blocks(
            np.full(2, 128.0), np.full(2, 32.0), shared, sm=Sm(32, 65536, 65536, 16, 34, compute_capability=cc)
        )["shared_memory"].tolist()
        for cc in (7.5, 8.0)
    }
    assert {7.5: [4, 16], 8.0: [3, 64]} == by_capability


def test_limits_equal_a_loop() -> None:
    """On random launches the smallest limit is that of a plain loop over the rules."""
    rng = np.random.default_rng(5)
    threads, registers = rng.integers(1, 1025, 200), rng.integers(16, 65, 200)
    shared = rng.integers(0, 160, 200) * 1024
    found = resident_blocks(threads.astype(float), registers.astype(float), shared.astype(float), sm=A100)
    for i in range(200):
        warps = -(-int(threads[i]) // 32)
        per_warp = -(-int(registers[i]) * 32 // 256) * 256
        expected = [64 // warps, 16384 // per_warp * 4 // warps, 167936 // (int(shared[i]) + 1024), 32]
        assert expected == found.loc[i].tolist()


def test_empty_tables() -> None:
    """No launches give no rows, with the columns and dtypes of a full answer."""
    full, empty = occupancy(launches(GRID), counters(WORKED), sm=A100), occupancy(LAUNCHES.empty(), COUNTERS.empty())
    assert 0 == len(empty)
    assert full.dtypes.drop("name").to_dict() == empty.dtypes.drop("name").to_dict()


def test_wrong_tables() -> None:
    """Frames that are other tables are refused."""
    with pytest.raises(SchemaError, match="LAUNCHES"):
        occupancy(COUNTERS.empty(), COUNTERS.empty())
    with pytest.raises(SchemaError, match="COUNTERS"):
        occupancy(LAUNCHES.empty(), LAUNCHES.empty())

"""Occupancy, its limits and waves, and shares and meaning of stall reasons."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from counted import counters, launches, stalls
from frames import tuples

import perfkit
from perfkit.analysis.kernels import wide
from perfkit.analysis.warps import (
    _ATTRIBUTES,
    main_stall,
    occupancy,
    resident_blocks,
    stall_shares,
    stall_words,
)
from perfkit.errors import PerfkitError
from perfkit.tables import COUNTERS, STALLS

WORKED = {"launch__registers_per_thread": 64, "launch__shared_mem_per_block_static": 16 * 1024}
WORKED |= {"launch__shared_mem_per_block_dynamic": 32 * 1024}


def attributes(sm: dict[str, float]) -> dict[str, float]:
    """The counters that say what an SM offers."""
    return {metric: sm[name] for name, (metric, *_) in _ATTRIBUTES.items() if name in sm}


def sm(warps: int, shared_bytes: int, slots: int, capability: float) -> dict[str, float]:
    rest = {"registers": 65536, "compute_capability": capability}
    return {"warps": warps, "shared_bytes": shared_bytes, "slots": slots, **rest}


A100 = attributes(sm(64, 164 * 1024, 32, 8) | {"sms": 108})
GRID = {"grid_blocks": 1000, "block_threads": 256}


def test_worked_example() -> None:
    # 256 threads, 64 registers, 48 KiB: 8, 4, 3 and 32 blocks; 3 x 8 / 64 = 37.5 %; 1000 / (3 x 108) waves.
    found = occupancy(launches(GRID), counters(WORKED | A100)).iloc[0]
    assert [8, 4, 3, 32] == [
        found[f"{name}_blocks"] for name in ("warps", "registers", "shared_memory", "slots")
    ]
    figures = found[["resident_blocks", "theoretical_occupancy_frac", "limiter"]].tolist()
    assert [3, 0.375, "shared memory"] == figures
    assert pytest.approx([1000 / 324, 4 - 1000 / 324], rel=1e-12) == [
        found["waves"],
        found["tail_frac"],
    ]


def test_measured_limits_come_first() -> None:
    measured = {
        f"launch__occupancy_limit_{name}": n
        for name, n in (("warps", 8), ("registers", 2), ("blocks", 32))
    }
    said = {
        **WORKED,
        **measured,
        "launch__occupancy_limit_shared_mem": 2,
        "launch__occupancy_limit_barriers": 16,
    }
    found = occupancy(
        launches(GRID | {"theoretical_occupancy_frac": 0.26}), counters(said | A100)
    ).iloc[0]
    assert "registers, shared memory" == found["limiter"]
    assert (0.26, 2, 16) == (
        found["theoretical_occupancy_frac"],
        found["resident_blocks"],
        found["barriers_blocks"],
    )
    found = occupancy(
        launches(GRID), counters(WORKED | A100 | {"launch__occupancy_limit_barriers": 1})
    )
    assert ["barriers"] == found["limiter"].tolist()


def test_without_the_gpu_nothing_is_assumed() -> None:
    found = occupancy(launches(GRID | {"achieved_occupancy_frac": 0.5}), counters(WORKED)).iloc[0]
    unknown = [
        "theoretical_occupancy_frac",
        "resident_blocks",
        "waves",
        "tail_frac",
        "limiter",
        "slots_blocks",
    ]
    assert found[unknown].isna().all()
    assert 0.5 == found["achieved_occupancy_frac"]
    # One unknown limit leaves the smallest unknown; a printed zero is no answer.
    found = occupancy(launches(GRID), counters(A100 | {"launch__registers_per_thread": 64})).iloc[0]
    assert 4 == found["registers_blocks"]
    assert found[["resident_blocks", "limiter"]].isna().all()
    found = occupancy(launches(GRID), counters({"launch__waves_per_multiprocessor": 0.0})).iloc[0]
    assert found[["waves", "tail_frac"]].isna().all()


def test_waves_keep_their_digits() -> None:
    # Rounded by the report; where clusters decide it is right; far below one; whole waves have no tail.
    for grid, printed, waves in (
        (1000, 3.09, 1000 / 324),
        (1000, 1.5, 1.5),
        (1, 0.0, 1 / 324),
        (648, 2.0, 2.0),
    ):
        said = counters(WORKED | A100 | {"launch__waves_per_multiprocessor": printed})
        found = occupancy(launches(GRID | {"grid_blocks": grid}), said).iloc[0]
        assert pytest.approx([waves, -waves % 1], rel=1e-12) == [found["waves"], found["tail_frac"]]


def each(offered: dict[str, float], launches: int) -> pd.DataFrame:
    return pd.DataFrame([offered] * launches)


def test_before_ampere_no_shared_memory_is_kept() -> None:
    # Turing: 65536 / 16384 = 4 blocks; Ampere keeps 1 KiB per block: 3. No shared memory at all: the slots.
    given = np.full(2, 128.0), np.full(2, 32.0), np.array([16384.0, 0.0])
    for capability, blocks in ((7.5, [4, 16]), (8.0, [3, 64])):
        offered = sm(32, 65536, 16, capability)
        assert blocks == resident_blocks(*given, each(offered, 2))["shared_memory"].tolist()


HOPPER, BLACKWELL = sm(64, 233472, 32, 9), sm(64, 233472, 32, 10)
GA100, GA10X = sm(64, 167936, 32, 8), sm(48, 102400, 16, 8.6)
TURING = sm(32, 65536, 16, 7.5)
REPORTS = {
    "golden/ncu/AlpriElse__cs599k__rms-norm-pytorch.raw_base.csv": HOPPER,
    "golden/ncu/extra-p__extrap__ex-gpu.s10.raw_base.csv": GA100,
    "golden/ncu/thedavidchu__speedy_scan__profile.raw_base.csv": GA10X,
    "golden/ncu/NVIDIA__nsight-training__manual_nvtx.raw_base.csv": GA10X,
    "golden/ncu/amitadate__GPU_Power_Model__PS1_10_profile.raw_base.csv": TURING,
    "ncu/meinie0826__Roofline-Analysis__flashinfer_paged_decode__gqa_bf16_b1_ctx4k_p64.ncu.csv": BLACKWELL,
}


@pytest.mark.parametrize(
    ("report", "offered"), REPORTS.items(), ids=[Path(name).name[:20] for name in REPORTS]
)
def test_rules_give_the_vendors_limits_and_occupancy(
    profiles: Path, report: str, offered: dict[str, float]
) -> None:
    run = perfkit.load(profiles / report)
    names = [f"launch__occupancy_limit_{name}" for name in ("warps", "registers", "blocks")]
    said = wide(run.launches, run.counters, [*names, "launch__registers_per_thread"])
    threads = run.launches["block_threads"].to_numpy("float64")
    registers = said["launch__registers_per_thread"].to_numpy()
    found = resident_blocks(threads, registers, np.zeros(len(said)), each(offered, len(said)))
    assert (
        said.iloc[:, :3].to_numpy().tolist()
        == found[["warps", "registers", "slots"]].to_numpy().tolist()
    )
    measured = run.launches["theoretical_occupancy_frac"]
    keys = run.launches[["rank", "launch"]]
    added = [
        keys.assign(metric=metric, value=value) for metric, value in attributes(offered).items()
    ]
    said = pd.concat([run.counters, *(rows.assign(unit="") for rows in added)], ignore_index=True)
    said = COUNTERS.make(said.drop_duplicates(["rank", "launch", "metric"]))
    found = occupancy(run.launches.assign(theoretical_occupancy_frac=np.nan), said)
    assert (
        pytest.approx(measured.to_numpy(), abs=1e-4)
        == found["theoretical_occupancy_frac"].to_numpy()
    )


NCU = (
    "barrier branch_resolving dispatch_stall drain gmma imc_miss lg_throttle long_scoreboard math_pipe_throttle "
    "membar mio_throttle misc no_instruction no_instructions not_selected selected short_scoreboard sleeping "
    "tex_throttle wait"
)


def test_shares_by_hand() -> None:
    found = stall_shares(stalls({"selected": 1.0, "long_scoreboard": 6.0, "wait": 3.0}))
    columns = "reason", "share_frac", "place"
    # What issued counts in the sum and has no place.
    assert [("long_scoreboard", 0.6, 1), ("wait", 0.3, 2), ("selected", 0.1, pd.NA)] == tuples(
        found, *columns
    )
    # A total is left out however it is spelled.
    found = stall_shares(
        stalls({"stl_any": 40, "stl_gmem": 30, "stl_sync": 10}, {"GINS:STL_ANY": 8, "gmem": 8})
    )
    assert [("stl_gmem", 0.75), ("stl_sync", 0.25), ("gmem", 1.0)] == tuples(
        found, "reason", "share_frac"
    )
    # Each launch and each node has its own sum; ties are in order of the reason.
    both = pd.concat(
        [stalls({"wait": 4, "drain": 4}, {"wait": 9}), stalls({"wait": 1, "drain": 3}, nodes=True)]
    )
    assert [0.5, 0.5, 1.0] == stall_shares(STALLS.make(both))["share_frac"].tolist()
    of_nodes = stall_shares(STALLS.make(both), by="node")
    assert [("drain", 0.75), ("wait", 0.25)] == tuples(of_nodes, "reason", "share_frac")
    ties = stall_shares(stalls({"wait": 1, "barrier": 1, "drain": 1}))
    assert ["barrier", "drain", "wait"] == ties["reason"].tolist()
    # Nothing waited, or was not measured.
    nothing = stalls({"wait": 0, "drain": 0})
    assert stall_shares(nothing)["share_frac"].isna().all()
    assert main_stall(nothing).empty
    found = stall_shares(stalls({"wait": np.nan, "drain": 2.0})).set_index("reason")
    assert (1.0, 1) == (found.loc["drain", "share_frac"], found.loc["drain", "place"])
    assert found.loc["wait", ["share_frac", "place"]].isna().all()
    with pytest.raises(ValueError, match=r"by: 'kernel' is not one of \['launch', 'node'\]"):
        stall_shares(STALLS.empty(), by="kernel")
    with pytest.raises(PerfkitError, match="-2, below 0"):
        stall_shares(stalls({"wait": -2.0}))


def test_main_stall_says_what_it_means() -> None:
    found = main_stall(stalls({"selected": 9.0, "barrier": 2.0, "wait": 1.0}, {"unheard_of": 1.0}))
    barrier = stall_words["barrier"]
    expected = [("barrier", barrier.means, barrier.helps), ("unheard_of", "", "")]
    assert expected == tuples(found, "reason", "means", "helps")
    assert [] == [reason for reason in NCU.split() if reason not in stall_words]
    assert all(text.endswith(".") for said in stall_words.values() for text in said)
    assert stall_words["no_instruction"] == stall_words["no_instructions"]

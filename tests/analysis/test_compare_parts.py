"""The parts of the steps' time, before and after."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from frames import copies, kernels

import perfkit
from perfkit.analysis import compare, steps, timeline
from perfkit.analysis.compare import PARTS, STEP_PARTS, in_parts, parts
from perfkit.analysis.steps import STEPS
from perfkit.errors import SchemaError

COLUMNS = ["computation_ns", "exposed_communication_ns", "other_kernels_ns", "exposed_copy_ns", "idle_ns"]


def stepped(*spans: tuple[int, int], rank: int = 0) -> pd.DataFrame:
    """Steady steps from (start, duration)."""
    start, dur = (np.array(column) for column in zip(*spans, strict=True))
    frame = {"rank": rank, "step": np.arange(len(spans)), "start_ns": start, "dur_ns": dur}
    return STEPS.make(pd.DataFrame({**frame, "name": "step", "how": "nvtx", "steady": True}))


def of_idle(*idle_ns: float, computation_ns: float = 100.0) -> pd.DataFrame:
    """STEP_PARTS of steps that compute as long and are idle for these times."""
    zeros = dict.fromkeys(COLUMNS, 0.0)
    rows = {"step": range(len(idle_ns)), **zeros, "computation_ns": computation_ns, "idle_ns": idle_ns}
    return STEP_PARTS.make(pd.DataFrame(rows))


def test_worked_by_hand() -> None:
    """Steps 0-100 and 100-200: compute 10-40 and 90-120, nccl 30-60, a copy 50-70, a memset 150-160, another 195-250.

    Step 0: computing 30 + 10, nccl 20 beyond it, copy 10 beyond that, idle 30. Step 1: 20 + 10 + 5, idle 65.
    """
    found = in_parts(
        kernels(
            {"start_ns": 10, "dur_ns": 30},
            {"start_ns": 30, "dur_ns": 30, "family": "communication"},
            {"start_ns": 90, "dur_ns": 30},
            {"start_ns": 195, "dur_ns": 55},
        ),
        copies({"start_ns": 50, "dur_ns": 20}, {"start_ns": 150, "dur_ns": 10, "direction": "memset"}),
        stepped((0, 100), (100, 100)),
    )
    assert [[40, 20, 0, 10, 30], [35, 0, 0, 0, 65]] == found[COLUMNS].to_numpy().tolist()


def test_the_mean_over_the_gpus_of_all_ranks() -> None:
    """Rank 0 has two GPUs, busy for 20 and 40 of 100 ns, rank 1 one, busy all the time: 53 1/3 in the mean."""
    found = in_parts(
        kernels(
            {"start_ns": 0, "dur_ns": 20},
            {"gpu": 1, "start_ns": 60, "dur_ns": 40},
            {"rank": 1, "start_ns": 0, "dur_ns": 100},
        ),
        copies(),
        STEPS.make(
            pd.concat([stepped((0, 100), rank=rank) for rank in (0, 1)]).astype({"name": object, "how": object})
        ),
    )
    assert [160 / 3, 140 / 3] == pytest.approx(found.loc[0, ["computation_ns", "idle_ns"]].tolist())


def test_empty() -> None:
    """Without steps, or without GPUs, there is no row; nor is there one where a side has no steps."""
    some = kernels({"start_ns": 0, "dur_ns": 20})
    assert in_parts(some, copies(), STEPS.empty()).equals(STEP_PARTS.empty())
    assert in_parts(kernels(), copies(), stepped((0, 9))).equals(STEP_PARTS.empty())
    for pair in ((of_idle(1), STEP_PARTS.empty()), (STEP_PARTS.empty(), of_idle(1)), ([], [])):
        pd.testing.assert_frame_equal(PARTS.empty(), parts(*pair))


def test_wrong_tables() -> None:
    """Foreign frames are refused by name."""
    with pytest.raises(SchemaError, match="'STEP_PARTS' does not match"):
        parts(of_idle(1), of_idle(1).drop(columns="idle_ns"))
    with pytest.raises(SchemaError, match="'STEPS' does not match"):
        in_parts(kernels(), copies(), kernels())


def test_less_idle_time_is_better_and_its_neighbours_do_not_change() -> None:
    """Idle 100 -> 50 beside 100 of computing: idle is better, computing is not, though its share rose to two thirds."""
    found = parts(of_idle(*[99, 101] * 6), of_idle(*[49, 51] * 6)).set_index("part")
    assert {"computation": "no difference seen", "idle": "better"} == found["verdict"].astype(str).to_dict()
    assert [100, 50, -50, 0.5] == found.loc["idle", ["before_ns", "after_ns", "difference_ns", "ratio"]].tolist()


def test_a_part_that_hardly_moves_the_step_is_no_difference() -> None:
    """Idle 1 -> 2 ns of a step of 1 us is twice as much and 0.1 % of the step; of a step of 12 ns it is worse."""
    for computing, said in ((1000.0, "no difference seen"), (11.0, "worse")):
        pair = (of_idle(*[idle] * 9, computation_ns=computing) for idle in (1, 2))
        assert said == parts(*pair).set_index("part").loc["idle", "verdict"]


def test_random_halves_of_one_run_do_not_differ(profiles: Path) -> None:
    """Of 100 random splits of the steps of a real training into halves, at least 95 differ in no part."""
    run = perfkit.load(profiles / "nsys/openhackathons-org__AI-Profiler__baseline_nvtx.sqlite")
    whole = in_parts(run.kernels, run.copies, steps.detect(run.ranges, run.kernels))
    random, seen = np.random.default_rng(0), 0
    for seed in range(100):
        half = random.permuted(np.arange(len(whole)) < len(whole) // 2)
        pair = (STEP_PARTS.make(whole[rows]) for rows in (half, ~half))
        seen += not set(parts(*pair, resamples=200, seed=seed)["verdict"]) <= {"no difference seen"}
    assert seen <= 5


@pytest.mark.parametrize(
    "name",
    [
        "nsys/openhackathons-org__AI-Profiler__baseline_nvtx.sqlite",
        "nsys/GindaChen__nsys-ai__mfu_2gpu_before.sqlite",
        "torch/TraceLens__b200__eager_trace.json.gz",
    ],
)
def test_each_step_is_the_breakdown_of_its_window(name: str, profiles: Path) -> None:
    """In real captures the parts of a step are those that `timeline.breakdown` finds in a window of the step."""
    run = perfkit.load(profiles / name)
    found = steps.detect(run.ranges, run.kernels)
    table = in_parts(run.kernels, run.copies, found).set_index("step")
    steady = found[found["steady"] & (found["rank"] == 0)]
    for row in steady.iloc[:: max(len(steady) // 5, 1)].itertuples():
        window = (int(row.start_ns), int(row.start_ns + row.dur_ns))
        whole = timeline.breakdown(run.kernels, run.copies, window=window)
        assert whole[COLUMNS].mean().tolist() == pytest.approx(table.loc[row.step, COLUMNS].tolist())


def test_parts_add_up_to_the_step(profiles: Path) -> None:
    """The differences of the parts sum to that of the mean step, before and after a real optimisation on one GPU."""
    names = ("baseline_nvtx", "secondOptimization.window5.0-7.0s")
    runs = [perfkit.load(profiles / f"nsys/openhackathons-org__AI-Profiler__{name}.sqlite") for name in names]
    found = [steps.detect(run.ranges, run.kernels) for run in runs]
    pair = [in_parts(run.kernels, run.copies, each) for run, each in zip(runs, found, strict=True)]
    mean = compare.steps(*found).set_index("statistic").loc["mean", "difference_ns"]
    assert mean == pytest.approx(parts(*pair)["difference_ns"].sum())

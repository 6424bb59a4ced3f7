"""Figures, step times, parts of the steps and samples of two runs; two runs of one program do not differ."""

import functools
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import copies, kernels, lasting, tuples

import perfkit
from perfkit.analysis import compare
from perfkit.analysis.compare import series
from perfkit.analysis.compare.resampling import (
    Resampling,
    direction,
    interval,
    of_interval,
    of_values,
    ratio,
)
from perfkit.analysis.steps import STEPS, detect
from perfkit.analysis.timeline import PARTS
from perfkit.errors import SchemaError

BASELINE = "nsys/openhackathons-org__AI-Profiler__baseline_nvtx.sqlite"
OPTIMISED = "nsys/openhackathons-org__AI-Profiler__secondOptimization.window5.0-7.0s.sqlite"
SAME = "no difference seen"


@functools.cache
def stepped(path: Path) -> tuple[perfkit.Run, pd.DataFrame]:
    run = perfkit.load(path)
    return run, detect(run.ranges, run.kernels)


def table(*rows: tuple[str, float, str]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["id", "value", "unit"])
    return compare.FIGURES.make(
        frame.assign(label=frame["id"].str.upper(), definition="what", source="where")
    )


def test_figures_by_hand() -> None:
    shares = [("device_busy_frac", value, "1") for value in (0.5, 0.4)]
    before = table(
        ("step_median_ns", 100, "ns"),
        shares[0],
        ("kernel_count", 7, "count"),
        ("h2d_count", 3, "count"),
    )
    after = table(
        ("kernel_count", 9, "count"), ("step_median_ns", 80, "ns"), shares[1], ("mfu", 0.4, "1")
    )
    found = compare.figures(before, after).set_index("id")
    assert [*["changed, not tested"] * 2, "changed", "gone", "new"] == found["verdict"].tolist()
    expected = {"before": 100, "after": 80, "difference": -20, "ratio": 0.8}
    expected |= {"label": "STEP_MEDIAN_NS", "unit": "ns", "definition": "what", "source": "where"}
    assert expected == found.loc["step_median_ns", [*expected]].to_dict()
    assert found.loc[["h2d_count", "mfu"], "ratio"].isna().all()


def said(before: pd.DataFrame, after: pd.DataFrame, **more: Any) -> list[str]:
    return compare.figures(before, after, **more)["verdict"].tolist()


def test_an_interval_decides() -> None:
    # Twice 1 us, with a narrow interval, is worse; not where less than 5 us does not matter.
    pair = table(("step_median_ns", 100, "ns")), table(("step_median_ns", 80, "ns"))
    for ends, verdict in (
        ((0.6, 1.1), SAME),
        ((0.75, 0.85), "better"),
        ((math.nan, math.nan), "cannot tell"),
    ):
        assert [verdict] == said(*pair, intervals={"step_median_ns": ends})
    pair, known = (
        [table(("part_idle_ns", ns, "ns")) for ns in (1000, 2000)],
        {"part_idle_ns": (1.9, 2.1)},
    )
    for least, verdict in ((0.0, "worse"), (5000.0, "too small to matter")):
        assert [verdict] == said(*pair, intervals=known, least={"part_idle_ns": least})


def test_single_values_change_and_are_neither_better_nor_worse() -> None:
    before = table(("bus_bytes_per_s", 100, "bytes/s"), ("idle_sync_frac", 0.001, "1"))
    after = table(("bus_bytes_per_s", 104, "bytes/s"), ("idle_sync_frac", 0.003, "1"))
    assert [SAME] * 2 == said(before, after)
    assert "changed, not tested" == said(before, after, tolerance=0.03)[0]
    assert ["better", "worse"] == [of_values(100, value, better="higher") for value in (110, 90)]
    ids = ("device_busy_frac", "idle_frac", "h2d_bytes_per_s", "step_median_ns", "kernel_count")
    before, after = (table(*((name, value, "1") for name in ids)) for value in (0.2, 0.8))
    assert {"changed", "changed, not tested"} == {*said(before, after), *said(after, before)}


def test_directions_and_intervals() -> None:
    expected = {
        "lower": "step_median_ns idle_data_loading_frac family_gemm_ns part_exposed_copy_ns paths_wall_ns",
        "higher": "device_busy_frac h2d_bytes_per_s sample_tensor_active_frac",
        "": "kernel_sum_ns kernel_median_ns main_stall_frac anything",
    }
    for better, names in expected.items():
        assert dict.fromkeys(names.split(), better) == {
            name: direction(name) for name in names.split()
        }
    # The whole interval must lie beyond 1 % of 1, or of what else is said to matter.
    cases = [(1.011, 1.2), (1.0, 1.2), (0.9, 0.98), (0.9, 0.995), (math.nan, 1.0)]
    assert ["worse", SAME, "better", SAME, "cannot tell"] == [of_interval(*ends) for ends in cases]
    assert ["changed", "better"] == [of_interval(1.1, 1.2, better=way) for way in ("", "higher")]
    assert "worse" == of_interval(0.8, 0.9, better="higher")
    assert SAME == of_interval(1.011, 1.2, matters=0.05)
    assert "cannot tell" == of_values(math.nan, math.nan, better="lower")


def run(*durations: float, rank: int = 0, unsteady: int = 0) -> pd.DataFrame:
    whole = np.array(durations).round().astype("int64")
    number = np.arange(len(whole))
    frame = {"rank": rank, "step": number, "start_ns": np.cumsum(whole) - whole, "dur_ns": whole}
    return STEPS.make(
        pd.DataFrame({**frame, "name": "step", "how": "nvtx", "steady": number >= unsteady})
    )


def alike(
    random: np.random.Generator, count: int, alike: float, spread: float = 0.05
) -> np.ndarray:
    """Step times around 1 ms, each like the one before: a first-order autoregressive series."""
    level = random.normal(size=count + 50) * np.sqrt(1 - alike**2)
    level[0] = 0
    for i in range(1, count + 50):
        level[i] += alike * level[i - 1]
    return np.asarray(1e6 * np.exp(spread * level[50:]))


def verdicts(
    before: Sequence[np.ndarray], after: Sequence[np.ndarray], statistic: str = "median"
) -> Counter[str]:
    pairs = enumerate(zip(before, after, strict=True))
    found = [ratio([a], [b], Resampling(statistic, resamples=300, seed=i)) for i, (a, b) in pairs]
    return Counter(of_interval(each.low, each.high) for each in found)


def test_steps_by_hand() -> None:
    found = compare.steps(run(*[9000, 10000, 11000] * 4), run(*[20000] * 8))
    assert ["median", "mean"] == found["statistic"].tolist()
    assert [[12, 8, 10000.0, 20000.0, 10000.0, 2.0]] * 2 == found.iloc[:, 1:7].to_numpy().tolist()
    assert ["worse", "worse"] == found["verdict"].tolist()
    assert (found["ratio_low"] < 2).all()
    assert (found["ratio_high"] > 2).all()
    # The seed decides; of swapped runs the ratios are reciprocal.
    random = np.random.default_rng(1)
    pair = run(*alike(random, 40, 0)), run(*(0.8 * alike(random, 40, 0)))
    first, again, other, swapped = (
        *(compare.steps(*pair, how=Resampling(seed=seed)) for seed in (1, 1, 2)),
        compare.steps(*pair[::-1]),
    )
    assert first.equals(again)
    assert first.loc[0, "ratio_low"] != other.loc[0, "ratio_low"]
    assert (1 / first["ratio"]).tolist() == pytest.approx(swapped["ratio"].tolist())
    assert (["better"] * 2, ["worse"] * 2) == (
        first["verdict"].tolist(),
        swapped["verdict"].tolist(),
    )


def test_only_steady_steps_count_and_last_as_long_as_on_the_slowest_rank() -> None:
    # Steps in any order of rows give the same series. Steps that never vary: 2 over 1 is 2 to 2.
    steady = [1000, 1010, 990, 1005, 995, 1002, 1001]
    first = run(10**9, *steady, unsteady=1)
    assert compare.steps(first, run(*steady)).equals(compare.steps(run(*steady), run(*steady)))
    two = STEPS.make(
        pd.concat([run(*[1000] * 7), run(*[1500] * 7, rank=1)]).astype(
            {"name": object, "how": object}
        )
    )
    found = compare.steps(two, run(*[1500] * 7))
    assert [7, 7, 1500.0, 1500.0] == found.loc[
        0, ["before_count", "after_count", "before_ns", "after_ns"]
    ].tolist()
    some = run(*range(1000, 1020))
    assert compare.steps(some, some).equals(
        compare.steps(some.iloc[[*range(10, 20), *range(10)]], some)
    )
    found = compare.steps(run(*[1000] * 9), run(*[2000] * 9))
    assert [[2.0, 2.0, 2.0]] * 2 == found[["ratio", "ratio_low", "ratio_high"]].to_numpy().tolist()


def test_no_and_few_steps_tell_nothing() -> None:
    for empty in (STEPS.empty(), run(1000, unsteady=1), []):
        for pair in ((empty, run(*[1000] * 7)), (run(*[1000] * 7), empty)):
            pd.testing.assert_frame_equal(compare.COMPARED_STEPS.empty(), compare.steps(*pair))
    found = compare.steps(run(*[1000] * 5), run(*[2000] * 50))
    assert [2.0, "cannot tell"] == found.loc[0, ["ratio", "verdict"]].tolist()
    assert found[["ratio_low", "ratio_high"]].isna().all(axis=None)


def test_every_resample_of_a_mean() -> None:
    # Before is constant; the interval of the mean without widening is the 2.5th and 97.5th percentile.
    values = np.array([90.0, 95, 100, 104, 99, 97, 108])
    sums = np.zeros(1)
    for _ in values:
        sums = (sums[:, None] + values).ravel()
    deviation = np.log1p((sums / 7 - values.mean()) * np.sqrt(7 / 6) / values.mean())
    student = 2.447  # of 6 degrees of freedom
    expected = np.exp(np.quantile(deviation, [0.025, 0.975]) * student / 1.96) * values.mean() / 100
    found = ratio([np.full(50, 100.0)], [values], Resampling("mean", resamples=40_000))
    assert expected.tolist() == pytest.approx([found.low, found.high], abs=0.0015)


@pytest.mark.parametrize(
    ("statistic", "correlation"), [("median", 0), ("mean", 0), ("median", 0.6), ("median", -0.6)]
)
def test_two_runs_of_one_program_do_not_differ(statistic: str, correlation: float) -> None:
    # Nor do random halves of one run; where neighbours are alike, single steps resampled would find differences.
    random = np.random.default_rng(4)
    runs = [alike(random, 60, correlation) for _ in range(200)]
    halves = [random.permuted(np.arange(60) < 30) for _ in range(100)]
    assert verdicts(runs[::2], runs[1::2], statistic)[SAME] >= 95
    assert (
        verdicts(
            [runs[0][half] for half in halves], [runs[0][~half] for half in halves], statistic
        )[SAME]
        >= 95
    )
    if correlation > 0:
        shuffled = [[random.permutation(one) for one in side] for side in (runs[::2], runs[1::2])]
        assert verdicts(*shuffled)[SAME] < 95


def test_a_slowdown_of_five_percent_is_found() -> None:
    random = np.random.default_rng(6)
    runs = [alike(random, 40, 0, 0.02) for _ in range(200)]
    assert verdicts(runs[::2], [1.05 * one for one in runs[1::2]])["worse"] >= 95
    pair = run(*[100_000] * 9), run(*[100_500] * 9)
    assert [SAME] * 2 == compare.steps(*pair)["verdict"].tolist()
    assert ["worse"] * 2 == compare.steps(*pair, matters=0.001)["verdict"].tolist()


def test_repeats_are_what_varies() -> None:
    # Pooled, 100 steps on each side would show a difference of the means that is that of the repeats drawn. Two repeats
    # do not say how repeats vary: their steps are resampled, and six of each are enough.
    levels = [1.0, 1.1, 0.9, 1.05, 0.95], [1.08, 1.0, 1.12, 0.98, 1.04]
    before, after = ([run(*[level * 1e6] * 20) for level in side] for side in levels)
    found = compare.steps(before, after).loc[1]
    assert [100, 100, 1e6, SAME] == found[
        ["before_count", "after_count", "before_ns", "verdict"]
    ].tolist()
    assert (
        "worse"
        == compare.steps(before, [run(*[1.4e6 * level] * 20) for level in levels[0]]).loc[
            1, "verdict"
        ]
    )
    assert (
        "worse"
        == compare.steps([run(*[1000, 1010] * 3)] * 2, [run(*[2000, 2010] * 3)] * 2).loc[
            0, "verdict"
        ]
    )
    assert (
        "cannot tell"
        == compare.steps([run(*[1000] * 5)] * 2, [run(*[2000] * 5)] * 2).loc[0, "verdict"]
    )


def test_interval_of_one_run() -> None:
    # Where resamples can be 0 nothing is known; where all before is 0 there is no ratio.
    values = [alike(np.random.default_rng(7), 50, 0.3)]
    median, low, high = interval(values, Resampling())
    _, lower, higher = interval(values, Resampling(confidence=0.99))
    assert lower < low < median < high < higher
    assert np.median(values[0]) == median
    rare, some = [np.array([0.0] * 9 + [1.0])], [np.ones(10)]
    assert (0.1, 0.0, np.inf) == pytest.approx(interval(rare, Resampling("mean")))
    assert np.isnan(ratio([np.zeros(9)], some, Resampling()).ratio)
    assert (0.0, np.inf) == ratio(rare, some, Resampling("mean"))[3:]


def test_ledger_by_hand() -> None:
    series = {
        "baseline": run(*[40_000] * 8),
        "bf16": run(*[30_000] * 8),
        "workers": run(*[15_000] * 8),
    }
    found = compare.ledger(series, utilisation={"baseline": 0.65, "bf16": 0.78})
    assert ["baseline", "bf16", "workers"] == found["label"].tolist()
    assert [(40_000, 1.0), (30_000, 0.75), (15_000, 0.375)] == tuples(
        found, "step_ns", "cumulative_ratio"
    )
    assert [(-10_000, 0.75, "better"), (-15_000, 0.5, "better")] == tuples(
        found[1:], "change_ns", "ratio", "verdict"
    )
    assert [1.0, 40 / 30, 40 / 15] == pytest.approx(found["speedup"].tolist())
    assert found.loc[0, ["change_ns", "ratio", "verdict"]].isna().all()
    assert [0.65, 0.78] == found["utilisation_frac"].tolist()[:2]
    assert found["step_low_ns"].le(found["step_ns"]).all()


def test_ledger_compares_with_the_last_and_the_first_run_that_have_steps() -> None:
    found = compare.ledger({"a": run(*[400] * 8), "b": STEPS.empty(), "c": run(*[200] * 8)})
    assert found.loc[1, ["step_ns", "change_ns", "cumulative_ratio", "speedup"]].isna().all()
    assert [0.5, 0.5] == found.loc[2, ["ratio", "cumulative_ratio"]].tolist()
    pd.testing.assert_frame_equal(compare.LEDGER.empty(), compare.ledger({}))
    random = np.random.default_rng(8)
    runs = {
        name: run(*(scale * alike(random, 30, 0)))
        for name, scale in (("a", 1.0), ("b", 0.9), ("c", 0.7))
    }
    found, direct = compare.ledger(runs).loc[2], compare.steps(runs["a"], runs["c"]).loc[0]
    ends = ["cumulative_ratio", "cumulative_low", "cumulative_high"]
    assert direct[["ratio", "ratio_low", "ratio_high"]].tolist() == found[ends].tolist()


def test_wrong_steps() -> None:
    some, one = run(*[1000] * 8), [np.ones(9)]
    kept, mode = some.copy(), r"statistic: 'mode' is not one of \['median', 'mean'\]"
    for of, given, more, error, why in (
        (
            compare.steps,
            (some, some),
            {"how": Resampling(confidence=1.0)},
            ValueError,
            "confidence: 1.0",
        ),
        (
            compare.steps,
            (some, some),
            {"how": Resampling(resamples=99)},
            ValueError,
            "resamples: 99",
        ),
        (ratio, (one, one, Resampling("mode")), {}, ValueError, mode),
        (
            compare.ledger,
            ({"a": some},),
            {"utilisation": {"b": 0.5}},
            ValueError,
            r"\['b'\] are not among \['a'\]",
        ),
        (
            compare.ledger,
            ({"a": some},),
            {"utilisation": {"a": 65.0}},
            ValueError,
            "not between 0 and 1",
        ),
        (
            compare.steps,
            (some.drop(columns="steady"), some),
            {},
            SchemaError,
            "'STEPS' does not match",
        ),
    ):
        with pytest.raises(error, match=why):
            of(*given, **more)
    pd.testing.assert_frame_equal(kept, some)


def of_idle(*idle_ns: float, computation_ns: float = 100.0) -> pd.DataFrame:
    zeros = dict.fromkeys(PARTS, 0.0)
    rows = {
        "step": range(len(idle_ns)),
        **zeros,
        "computation_ns": computation_ns,
        "idle_ns": idle_ns,
    }
    return compare.STEP_PARTS.make(pd.DataFrame(rows))


def test_parts_by_hand() -> None:
    # Step 0: computing 30 + 10, nccl 20 beyond it, copy 10 beyond that, idle 30. Step 1: 20 + 10 + 5, idle 65.
    spans = ((10, 30, "other"), (30, 30, "communication"), (90, 30, "other"), (195, 55, "other"))
    work = kernels(*(lasting(at, of, family=family) for at, of, family in spans))
    moved = copies(lasting(50, 20), lasting(150, 10, direction="memset"))
    found = compare.in_parts(work, moved, run(100, 100))
    assert [[40, 20, 0, 10, 30], [35, 0, 0, 0, 65]] == found[PARTS].to_numpy().tolist()
    # The mean is over the GPUs of all ranks: rank 0 has two, busy for 20 and 40 of 100 ns, rank 1 one, always busy.
    places = ({}, 0, 20), ({"gpu": 1}, 60, 40), ({"rank": 1}, 0, 100)
    work = kernels(*(lasting(at, of, **place) for place, at, of in places))
    both = pd.concat([run(100, rank=rank) for rank in (0, 1)]).astype(
        {"name": object, "how": object}
    )
    found = compare.in_parts(work, copies(), STEPS.make(both))
    assert [160 / 3, 140 / 3] == pytest.approx(found.loc[0, ["computation_ns", "idle_ns"]].tolist())


def test_less_idle_time_is_better_and_its_neighbours_do_not_change() -> None:
    # Idle 1 -> 2 ns of a step of 1 us is twice as much and 0.1 % of the step; of a step of 12 ns it is worse.
    found = compare.parts(of_idle(*[99, 101] * 6), of_idle(*[49, 51] * 6)).set_index("part")
    assert {"computation": SAME, "idle": "better"} == found["verdict"].astype(str).to_dict()
    assert [100, 50, -50, 0.5] == found.loc[
        "idle", ["before_ns", "after_ns", "difference_ns", "ratio"]
    ].tolist()
    for computing, said in ((1000.0, "too small to matter"), (11.0, "worse")):
        pair = (of_idle(*[idle] * 9, computation_ns=computing) for idle in (1, 2))
        assert said == compare.parts(*pair).set_index("part").loc["idle", "verdict"]


def test_parts_add_up_to_the_step(profiles: Path) -> None:
    runs = [stepped(profiles / name) for name in (BASELINE, OPTIMISED)]
    pair = [compare.in_parts(run.kernels, run.copies, found) for run, found in runs]
    mean = (
        compare.steps(*(found for _, found in runs))
        .set_index("statistic")
        .loc["mean", "difference_ns"]
    )
    assert mean == pytest.approx(compare.parts(*pair)["difference_ns"].sum())


@pytest.mark.parametrize("name", [BASELINE])
def test_random_halves_do_not_differ(name: str, profiles: Path) -> None:
    (whole,) = series(stepped(profiles / name)[1])
    random = np.random.default_rng(0)
    for statistic in ("median", "mean"):
        halves = [random.permuted(np.arange(len(whole)) < len(whole) // 2) for _ in range(100)]
        assert (
            verdicts(
                [whole[half] for half in halves], [whole[~half] for half in halves], statistic
            )[SAME]
            >= 95
        )


def test_a_job_before_and_after(profiles: Path) -> None:
    # Every step has the same 155 launches: the optimisation changed the host, not the kernels. The step times after
    # alternate between 7 and 338 ms in the 2 s that were kept: no difference can be told.
    runs = [stepped(profiles / name) for name in (BASELINE, OPTIMISED)]
    inside = [compare.in_steps(run.kernels, found, api_calls=run.api_calls) for run, found in runs]
    assert [[155], [155]] == [frame.groupby("step").size().unique().tolist() for frame in inside]
    assert {"same"} == set(compare.kernels(*inside)["status"])
    assert {SAME} == set(compare.families(*inside)["verdict"])
    assert [SAME] * 2 == compare.steps(*(found for _, found in runs))["verdict"].tolist()
    # With every convolution of the job before 5 % longer, convolution is worse and no other family is.
    odd = inside[0]["step"] % 2 == 1
    slower = inside[0][odd].copy()
    chosen = slower["family"] == "convolution"
    slower.loc[chosen, "dur_ns"] = (slower.loc[chosen, "dur_ns"] * 1.05).round().astype("int64")
    verdicts = compare.families(inside[0][~odd], slower).set_index("family")["verdict"]
    assert "worse" == verdicts.pop("convolution")
    assert {SAME} == set(verdicts)

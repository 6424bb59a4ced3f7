"""Step times of two runs and of a series: ratios, intervals, verdicts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from perfkit.analysis.compare import COMPARED_STEPS, LEDGER, ledger, steps
from perfkit.analysis.compare.resampling import Resampling, interval, of_interval, ratio
from perfkit.analysis.steps import STEPS
from perfkit.errors import SchemaError


def run(*durations: float, rank: int = 0, unsteady: int = 0) -> pd.DataFrame:
    """Steps of these durations, ns, one behind the other; the first `unsteady` ones are not steady."""
    whole = np.array(durations).round().astype("int64")
    number = np.arange(len(whole))
    frame = {"rank": rank, "step": number, "start_ns": np.append(0, np.cumsum(whole))[:-1], "dur_ns": whole}
    return STEPS.make(pd.DataFrame({**frame, "name": "step", "how": "nvtx", "steady": number >= unsteady}))


def alike(random: np.random.Generator, count: int, alike: float, spread: float = 0.05) -> np.ndarray:
    """Step times around 1 ms, each like the one before: a first-order autoregressive series."""
    noise = random.normal(size=count + 50) * np.sqrt(1 - alike**2)
    level = np.zeros(count + 50)
    for i in range(1, count + 50):
        level[i] = alike * level[i - 1] + noise[i]
    return np.asarray(1e6 * np.exp(spread * level[50:]))


def false_alarms(before: Sequence[np.ndarray], after: Sequence[np.ndarray], statistic: str = "median") -> int:
    """How often two runs of one program differ."""
    pairs = enumerate(zip(before, after, strict=True))
    found = [ratio([a], [b], Resampling(statistic, resamples=300, seed=i)) for i, (a, b) in pairs]
    return sum(of_interval(each.low, each.high) != "no difference seen" for each in found)


def test_worked_by_hand() -> None:
    """Before 9, 10, 11 us over and over: median 10, mean 10. After all 20 us: difference 10, ratio 2, worse."""
    found = steps(run(*[9000, 10000, 11000] * 4, unsteady=0), run(*[20000] * 8))
    assert ["median", "mean"] == found["statistic"].tolist()
    assert [[12, 8, 10000.0, 20000.0, 10000.0, 2.0]] * 2 == found.iloc[:, 1:7].to_numpy().tolist()
    assert ["worse", "worse"] == found["verdict"].tolist()
    assert (found["ratio_low"] < 2).all()
    assert (found["ratio_high"] > 2).all()


def test_equal_steps_have_an_interval_of_no_width() -> None:
    """Steps that never vary: 2 over 1 is 2 to 2."""
    found = steps(run(*[1000] * 9), run(*[2000] * 9))
    assert [[2.0, 2.0, 2.0]] * 2 == found[["ratio", "ratio_low", "ratio_high"]].to_numpy().tolist()


def test_warm_up_is_left_out() -> None:
    """A first step of 1 s that is not steady changes nothing."""
    steady = [1000, 1010, 990, 1005, 995, 1002, 1001]
    assert steps(run(10**9, *steady, unsteady=1), run(*steady)).equals(steps(run(*steady), run(*steady)))


def test_a_step_lasts_as_long_as_on_the_slowest_rank() -> None:
    """Rank 1 takes 1,500 ns where rank 0 takes 1,000: the step takes 1,500."""
    two = STEPS.make(pd.concat([run(*[1000] * 7), run(*[1500] * 7, rank=1)]).astype({"name": object, "how": object}))
    found = steps(two, run(*[1500] * 7))
    assert [7, 7, 1500.0, 1500.0] == found.loc[0, ["before_count", "after_count", "before_ns", "after_ns"]].tolist()


@pytest.mark.parametrize("empty", [STEPS.empty(), run(1000, unsteady=1), []])
def test_empty(empty: pd.DataFrame) -> None:
    """Without steady steps on a side there is no row, and the same columns."""
    some = run(*[1000] * 7)
    for found in (steps(empty, some), steps(some, empty)):
        pd.testing.assert_frame_equal(COMPARED_STEPS.empty(), found)


def test_few_steps_tell_nothing() -> None:
    """Five steps twice as long give a ratio, no interval and no verdict."""
    found = steps(run(*[1000] * 5), run(*[2000] * 50))
    assert [2.0, "cannot tell"] == found.loc[0, ["ratio", "verdict"]].tolist()
    assert found[["ratio_low", "ratio_high"]].isna().all(axis=None)


def test_the_seed_decides() -> None:
    """One seed gives one interval, another seed another."""
    random = np.random.default_rng(1)
    pair = run(*alike(random, 30, 0)), run(*alike(random, 30, 0))
    first, again, other = (steps(*pair, seed=seed) for seed in (1, 1, 2))
    assert first.equals(again)
    assert first.loc[0, "ratio_low"] != other.loc[0, "ratio_low"]


def test_swapping_the_runs_turns_the_ratio_over() -> None:
    """Ratios are reciprocal and better becomes worse."""
    random = np.random.default_rng(2)
    pair = run(*alike(random, 40, 0)), run(*(0.8 * alike(random, 40, 0)))
    found, swapped = steps(*pair), steps(*pair[::-1])
    assert (1 / found["ratio"]).tolist() == pytest.approx(swapped["ratio"].tolist())
    assert (["better"] * 2, ["worse"] * 2) == (found["verdict"].tolist(), swapped["verdict"].tolist())


def test_every_resample_of_a_mean() -> None:
    """All 7**7 resamples of seven values, drawn out: their spread is the interval's, to sampling error.

    Before is constant; the interval of the mean without widening is the 2.5th and 97.5th percentile.
    """
    values = np.array([90.0, 95, 100, 104, 99, 97, 108])
    sums = np.zeros(1)
    for _ in values:
        sums = (sums[:, None] + values).ravel()
    deviation = np.log1p((sums / 7 - values.mean()) * np.sqrt(7 / 6) / values.mean())
    student = 2.447  # of 6 degrees of freedom
    expected = np.exp(np.quantile(deviation, [0.025, 0.975]) * student / 1.96) * values.mean() / 100
    found = ratio([np.full(50, 100.0)], [values], Resampling("mean", resamples=40_000))
    assert expected.tolist() == pytest.approx([found.low, found.high], abs=0.0015)


@pytest.mark.parametrize("statistic", ["median", "mean"])
def test_two_runs_of_one_program_do_not_differ(statistic: str) -> None:
    """Of 100 pairs of independent runs of 40 steps with 5 % spread, at least 95 show no difference."""
    random = np.random.default_rng(3)
    pairs = [(alike(random, 40, 0), alike(random, 40, 0)) for _ in range(100)]
    before, after = zip(*pairs, strict=True)
    assert false_alarms(before, after, statistic) <= 5


def test_neighbours_that_are_alike_do_not_differ() -> None:
    """The same for steps with an autocorrelation of 0.6, where single steps resampled would find differences."""
    random = np.random.default_rng(4)
    pairs = [(alike(random, 60, 0.6), alike(random, 60, 0.6)) for _ in range(100)]
    before, after = zip(*pairs, strict=True)
    assert false_alarms(before, after) <= 5
    shuffled = [[random.permutation(one) for one in side] for side in (before, after)]
    assert false_alarms(*shuffled) > 5


@pytest.mark.parametrize("correlation", [0.0, 0.6, -0.6])
def test_random_halves_of_a_steady_run_do_not_differ(correlation: float) -> None:
    """Of 100 random splits of one run of 60 steps into halves, at least 95 show no difference."""
    random = np.random.default_rng(5)
    whole = alike(random, 60, correlation)
    halves = [random.permuted(np.arange(60) < 30) for _ in range(100)]
    assert false_alarms([whole[half] for half in halves], [whole[~half] for half in halves]) <= 5


def test_a_slowdown_of_five_percent_is_found() -> None:
    """Steps with 2 % spread that become 5 % longer are worse in at least 95 of 100 pairs of runs of 40 steps."""
    random = np.random.default_rng(6)
    pairs = [(alike(random, 40, 0, 0.02), 1.05 * alike(random, 40, 0, 0.02)) for _ in range(100)]
    found = [steps(run(*a), run(*b), resamples=300).loc[0, "verdict"] for a, b in pairs]
    assert found.count("worse") >= 95


def test_what_does_not_matter_is_not_seen() -> None:
    """0.5 % longer, without any spread, is no difference; it is one where less is said to matter."""
    pair = run(*[100_000] * 9), run(*[100_500] * 9)
    assert ["no difference seen"] * 2 == steps(*pair)["verdict"].tolist()
    assert ["worse"] * 2 == steps(*pair, matters=0.001)["verdict"].tolist()


def test_repeats_are_what_varies() -> None:
    """Five repeats whose steps are alike within each, and 10 % apart between them, do not differ from five others.

    Pooled, 100 steps on each side would show a difference of the means that is that of the repeats drawn.
    """
    levels = [1.0, 1.1, 0.9, 1.05, 0.95], [1.08, 1.0, 1.12, 0.98, 1.04]
    before, after = ([run(*[level * 1e6] * 20) for level in side] for side in levels)
    found = steps(before, after).loc[1]
    assert [100, 100, 1e6] == found[["before_count", "after_count", "before_ns"]].tolist()
    assert "no difference seen" == found["verdict"]
    assert "worse" == steps(before, [run(*[1.4e6 * level] * 20) for level in levels[0]]).loc[1, "verdict"]


def test_two_repeats_are_resampled_step_by_step() -> None:
    """Two repeats do not say how repeats vary: their steps are resampled, and six of each are enough."""
    found = steps([run(*[1000, 1010] * 3)] * 2, [run(*[2000, 2010] * 3)] * 2)
    assert "worse" == found.loc[0, "verdict"]
    assert "cannot tell" == steps([run(*[1000] * 5)] * 2, [run(*[2000] * 5)] * 2).loc[0, "verdict"]


def test_interval_of_one_run() -> None:
    """The value lies in its interval, which is wider the more the confidence."""
    values = [alike(np.random.default_rng(7), 50, 0.3)]
    median, low, high = interval(values, Resampling())
    _, lower, higher = interval(values, Resampling(confidence=0.99))
    assert lower < low < median < high < higher
    assert [np.median(values[0])] * 1 == [median]


def test_values_of_zero() -> None:
    """Where resamples can be 0 nothing is known; where all before is 0 there is no ratio."""
    rare, some = [np.array([0.0] * 9 + [1.0])], [np.ones(10)]
    assert (0.1, 0.0, np.inf) == pytest.approx(interval(rare, Resampling("mean")))
    assert np.isnan(ratio([np.zeros(9)], some, Resampling()).ratio)
    assert (0.0, np.inf) == ratio(rare, some, Resampling("mean"))[3:]


def test_ledger_by_hand() -> None:
    """Steps of 40, 30 and 15 us: 10 and 15 less than the run before, 0.75 and 0.5 times; 0.375 of the first, 2.67x."""
    series = {"baseline": run(*[40_000] * 8), "bf16": run(*[30_000] * 8), "workers": run(*[15_000] * 8)}
    found = ledger(series, utilisation={"baseline": 0.65, "bf16": 0.78})
    assert ["baseline", "bf16", "workers"] == found["label"].tolist()
    assert [40_000, 30_000, 15_000] == found["step_ns"].tolist()
    assert [-10_000, -15_000] == found["change_ns"].tolist()[1:]
    assert [0.75, 0.5] == found["ratio"].tolist()[1:]
    assert [1.0, 0.75, 0.375] == found["cumulative_ratio"].tolist()
    assert [1.0, 40 / 30, 40 / 15] == pytest.approx(found["speedup"].tolist())
    assert ["better", "better"] == found["verdict"].tolist()[1:]
    assert found.loc[0, ["change_ns", "ratio", "verdict"]].isna().all()
    assert [0.65, 0.78] == found["utilisation_frac"].tolist()[:2]
    assert found["step_low_ns"].le(found["step_ns"]).all()


def test_ledger_of_a_run_without_steps() -> None:
    """A run without steps has no figures; the next one is compared with the last that has some."""
    found = ledger({"a": run(*[400] * 8), "b": STEPS.empty(), "c": run(*[200] * 8)})
    assert found.loc[1, ["step_ns", "change_ns", "cumulative_ratio", "speedup"]].isna().all()
    assert [0.5, 0.5] == found.loc[2, ["ratio", "cumulative_ratio"]].tolist()
    pd.testing.assert_frame_equal(LEDGER.empty(), ledger({}))


def test_cumulative_changes_are_compared_with_the_first_run() -> None:
    """The cumulative interval is that of the two runs, not a product of single ones."""
    random = np.random.default_rng(8)
    runs = {name: run(*(scale * alike(random, 30, 0))) for name, scale in (("a", 1.0), ("b", 0.9), ("c", 0.7))}
    found, direct = ledger(runs).loc[2], steps(runs["a"], runs["c"]).loc[0]
    ends = ["ratio", "ratio_low", "ratio_high"]
    assert direct[ends].tolist() == found[["cumulative_ratio", "cumulative_low", "cumulative_high"]].tolist()


def test_wrong_arguments() -> None:
    """Foreign tables, confidences, numbers of resamples and utilisations are refused; inputs stay as they are."""
    some = run(*[1000] * 8)
    kept = some.copy()
    for wrong, match in (({"confidence": 1.0}, "confidence: 1.0"), ({"resamples": 99}, "resamples: 99")):
        with pytest.raises(ValueError, match=match):
            steps(some, some, **wrong)
    with pytest.raises(ValueError, match=r"statistic: 'mode' is not one of \['median', 'mean'\]"):
        ratio([np.ones(9)], [np.ones(9)], Resampling("mode"))
    for shares, match in (({"b": 0.5}, r"\['b'\] are not among \['a'\]"), ({"a": 65.0}, "not between 0 and 1")):
        with pytest.raises(ValueError, match=match):
            ledger({"a": some}, utilisation=shares)
    with pytest.raises(SchemaError, match="'STEPS' does not match"):
        steps(some.drop(columns="steady"), some)
    pd.testing.assert_frame_equal(kept, some)


def test_order_of_steps_in_a_frame_is_that_of_their_numbers() -> None:
    """Steps in any order of rows give the same series."""
    some = run(*range(1000, 1020))
    mixed = some.iloc[list(itertools.chain(range(10, 20), range(10)))]
    assert steps(some, some).equals(steps(mixed, some))

"""The SM clock and throttling while kernels ran."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from frames import kernels
from sampled import samples, together

from perfkit.analysis.monitoring.alignment import clock_drops, clock_under_kernels, throttled_kernels
from perfkit.errors import PerfkitError, SchemaError
from perfkit.tables import KERNELS, SAMPLES

# Kernels from 10 to 30 and 40 to 90; clocks at 0, 10, ..., 90.
RAN = kernels({"start_ns": 10, "dur_ns": 20, "name": "a"}, {"start_ns": 40, "dur_ns": 50, "name": "b"})
CLOCKS = [300, 1900, 1200, 300, 1900, 1000, 1100, 1900, 1800, 300]
TOP = {"sm_clock_hz": CLOCKS, "sm_max_clock_hz": [2000] + [None] * 9}


def test_the_clock_counts_where_a_kernel_runs() -> None:
    """At 10, 20, 40 to 80: 1900, 1200, 1900, 1000, 1100, 1900, 1800, mean 10800 / 7; three are below 1800."""
    found = clock_under_kernels(samples(every=10, **TOP), RAN).iloc[0]
    assert (7, 1000, 2000, "sm_max_clock_hz") == tuple(
        found[["count", "lowest_clock_hz", "max_clock_hz", "max_source"]]
    )
    assert found["mean_clock_hz"] == pytest.approx(10800 / 7, rel=1e-15)
    assert found["low_frac"] == pytest.approx(3 / 7, rel=1e-15)


def test_without_a_recorded_maximum_it_is_the_highest_reading() -> None:
    """1900 of the whole log, also outside the window, and it says so; below 1710 are three of four."""
    found = clock_under_kernels(samples(every=10, sm_clock_hz=CLOCKS), RAN, window=(50, 90)).iloc[0]
    assert (1900, "sm_clock_hz", 4, 0.5) == tuple(found[["max_clock_hz", "max_source", "count", "low_frac"]])


def test_drops_by_hand() -> None:
    """20 to 30, under a, and 50 to 70, under b, down to 1000; at 0, 30 and 90 no kernel ran."""
    found = clock_drops(samples(every=10, **TOP), RAN)
    assert [20, 50] == found["start_ns"].tolist()
    assert [10, 20] == found["dur_ns"].tolist()
    assert [1200, 1000] == found["lowest_clock_hz"].tolist()
    assert ["a", "b"] == found["name"].tolist()
    assert [10, 20] == found["kernel_busy_ns"].tolist() == found["kernel_ns"].tolist()


def test_the_kernel_with_the_most_time_in_the_stretch() -> None:
    """In [20, 40) a runs 12 ns, three short b 6 each, 4 of them at once with a: b has more; 20 ns are busy."""
    short = ({"start_ns": start, "dur_ns": 6, "name": "b"} for start in (28, 32, 34))
    ran = kernels({"start_ns": 0, "dur_ns": 32, "name": "a"}, *short)
    found = clock_drops(samples(every=10, sm_clock_hz=[100, 100, 50, 50, 100]), ran).iloc[0]
    assert (20, 20, "b", 18) == tuple(found[["start_ns", "dur_ns", "name", "kernel_ns"]])
    assert 20 == found["kernel_busy_ns"]


@pytest.mark.parametrize("seed", range(3))
def test_drops_against_every_nanosecond(seed: int) -> None:
    """Oracle: at each ns the kernels that run; two GPUs, kernels in any order and over each other."""
    random = np.random.default_rng(seed)
    spans = [
        {"gpu": int(gpu), "start_ns": int(start), "dur_ns": int(length), "name": str(name)}
        for gpu, start, length, name in zip(
            random.integers(0, 2, 60),
            random.integers(0, 380, 60),
            random.integers(0, 25, 60),
            random.choice([*"abc"], 60),
            strict=True,
        )
    ]
    ran = kernels(*spans)
    drawn = together(*(samples(gpu=g, every=10, sm_clock_hz=random.integers(1, 9, 40).tolist()) for g in (0, 1)))
    found = clock_drops(drawn, ran.sample(frac=1, random_state=seed))
    assert len(found)
    for row in found.itertuples():
        within = np.arange(row.start_ns, row.start_ns + row.dur_ns)
        own = ran[ran["gpu"] == row.gpu]
        runs = [(within >= k.start_ns) & (within < k.start_ns + k.dur_ns) for k in own.itertuples()]
        spent = pd.Series([r.sum() for r in runs], own["name"].astype(str).to_numpy()).groupby(level=0).sum()
        assert np.any(runs, axis=0).sum() == row.kernel_busy_ns
        assert spent.max() == row.kernel_ns == spent[row.name]
        assert all(any(r[t - row.start_ns] for r in runs) for t in within[within % 10 == 0])


def test_time_of_kernels_under_throttling() -> None:
    """Power from 20 to 50, heat from 40 to 60, of 70 ns busy: 10 + 10, 20 and, together, 30 ns."""
    reasons = {
        "throttled_power_frac": [0, 0, 1, 1, 1, 0, 0, 0, 0, 0],
        "thermal_violation_frac": [0, 0, 0, 0, 1, 1, 0, 0, 0, 0],
    }
    found = throttled_kernels(samples(every=10, **reasons), RAN).iloc[0]
    parts = ["kernel_busy_ns", "power_ns", "thermal_ns", "other_ns", "throttled_ns"]
    assert [70, 20, 20, 0, 30] == found[parts].tolist()
    assert found["throttled_frac"] == 30 / 70
    cut = throttled_kernels(samples(every=10, **reasons), RAN, window=(40, 60)).iloc[0]
    assert [20, 10, 20, 0, 20] == cut[parts].tolist()


@pytest.mark.parametrize("of", [clock_under_kernels, throttled_kernels])
def test_only_devices_with_both_have_a_row(of: object) -> None:
    """GPU 0 has kernels alone, GPU 2 readings alone."""
    both = {"sm_clock_hz": [1, 1], "throttled_power_frac": [0, 0]}
    drawn = together(samples(gpu=1, every=10, **both), samples(gpu=2, every=10, **both))
    ran = kernels({"start_ns": 0, "dur_ns": 20}, {"gpu": 1, "start_ns": 0, "dur_ns": 20})
    assert [1] == of(drawn, ran)["gpu"].tolist()


@pytest.mark.parametrize("of", [clock_under_kernels, clock_drops, throttled_kernels])
def test_clocks_that_do_not_meet_are_refused(of: object) -> None:
    """A log that is an hour late, as from another time zone, or of another device, has nothing to say."""
    hour = 3600 * 10**9
    both = {"sm_clock_hz": [1, 1], "throttled_power_frac": [0, 0]}
    late = samples(at=[hour, hour + 10], **both)
    with pytest.raises(
        PerfkitError, match=r"\(rank 0 gpu 0\) has readings .* 1 h 0 min after the first kernel\. Check"
    ):
        of(late, kernels({"start_ns": 0, "dur_ns": 20}))
    with pytest.raises(PerfkitError, match=r"no device \(rank 0 gpu 0\) .* rank and gpu of both name the same devices"):
        of(samples(every=10, **both), kernels({"gpu": 3, "start_ns": 0, "dur_ns": 20}))


@pytest.mark.parametrize("of", [clock_under_kernels, clock_drops, throttled_kernels])
def test_empty_and_wrong_tables(of: object) -> None:
    """Without readings or kernels there is no row, with the types of a full answer; other tables are refused."""
    drawn = samples(every=10, **TOP, throttled_power_frac=[1] * 10)
    full = of(drawn, RAN)
    assert 0 < len(full)
    for nothing in (of(SAMPLES.empty(), RAN), of(drawn, KERNELS.empty()), of(SAMPLES.empty(), KERNELS.empty())):
        assert 0 == len(nothing)
        assert full.dtypes.astype(str).to_dict() == nothing.dtypes.astype(str).to_dict()
    with pytest.raises(SchemaError, match="table 'SAMPLES' does not match"):
        of(RAN, RAN)
    with pytest.raises(SchemaError, match="table 'KERNELS' does not match"):
        of(drawn, drawn)


@pytest.mark.parametrize("of", [clock_under_kernels, clock_drops])
def test_the_share_of_the_maximum_is_a_share(of: object) -> None:
    """Above 0 and at most 1."""
    with pytest.raises(ValueError, match="below: 0 is not within 0 and 1"):
        of(SAMPLES.empty(), KERNELS.empty(), below=0)

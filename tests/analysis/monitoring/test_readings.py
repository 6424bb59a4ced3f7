"""Throttling by cause, and power, memory and temperature against their limits."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sampled import SECOND, devices, samples, together

from perfkit.analysis.monitoring.readings import at_limit, throttling
from perfkit.tables import DEVICES

NO_DEVICES = DEVICES.empty()


def limit(drawn: pd.DataFrame, quantity: str, known: pd.DataFrame = NO_DEVICES) -> pd.Series:
    """The row of a quantity of the only device."""
    found = at_limit(drawn, known)
    return found[found["quantity"] == quantity].iloc[0]


def test_throttling_by_hand() -> None:
    """Power lowers the clock from 1 to 3 s, heat from 2 to 4, of 5: 0.4 each, 3 of 5 together."""
    drawn = samples(
        throttled_power_frac=[0, 1, 1, 0, 0], throttled_thermal_frac=[0, 0, 1, 1, 0], throttled_other_frac=[0] * 5
    )
    found = throttling(drawn).iloc[0]
    assert [0.4, 0.4, 0.0, 0.6] == found[["power_frac", "thermal_frac", "other_frac", "throttled_frac"]].tolist()
    assert "throttled_other_frac, throttled_power_frac, throttled_thermal_frac" == found["source"]


def test_event_reasons_and_violation_counters_count_once() -> None:
    """Both tell of power: at 0 to 1 s the one, at 0 to 2 s the other; 2 of 4 s."""
    drawn = samples(throttled_power_frac=[1, 0, 0, 0], power_violation_frac=[0.01, 0.3, 0, 0])
    found = throttling(drawn).iloc[0]
    assert (0.5, 0.5) == tuple(found[["power_frac", "throttled_frac"]])


def test_sources_may_be_read_at_different_times() -> None:
    """Reasons at 0 and 4 s for 4 s each, counters every second: 4 to 8 s by the one, 3 to 5 s by the other, 5 of 8."""
    drawn = together(
        samples(every=4 * SECOND, throttled_power_frac=[0, 1]), samples(power_violation_frac=[0, 0, 0, 1, 1, 0, 0, 0])
    )
    assert 0.625 == throttling(drawn)["power_frac"].item()


def test_a_temperature_does_not_throttle() -> None:
    """83 degrees without reasons or counters say nothing, for every device of the log."""
    found = throttling(together(samples(temperature_c=[83, 84]), samples(gpu=1, thermal_violation_frac=[0, 0])))
    assert found.loc[0, ["power_frac", "thermal_frac", "other_frac", "throttled_frac"]].isna().all()
    assert 0 == found.loc[1, "throttled_frac"]
    assert np.isnan(found.loc[1, "power_frac"])
    assert ["", "thermal_violation_frac"] == found["source"].tolist()


def test_idleness_is_no_throttling() -> None:
    """The event reason that the GPU idles lowers the clock and is nobody's fault."""
    assert np.isnan(throttling(samples(idle_frac=[1, 1]))["throttled_frac"].item())
    assert 0 == throttling(samples(idle_frac=[1, 1], throttled_other_frac=[0, 0]))["throttled_frac"].item()


def test_a_snapshot_can_throttle() -> None:
    """One reading has no length and is all there is."""
    assert 1 == throttling(samples(throttled_thermal_frac=[1]))["thermal_frac"].item()


def test_counters_tell_where_reasons_do_not() -> None:
    """Power lowered the clock for 1 of the first 2 s and 2 of the next 2, 3 of 4 in all; heat for 1: 0.75 and 0.25."""
    drawn = samples(every=2 * SECOND, power_violation_ns=[7e9, 8e9, 10e9], thermal_violation_ns=[0, 0, 1e9])
    found = throttling(drawn).iloc[0]
    assert [0.75, 0.25, 0.75] == found[["power_frac", "thermal_frac", "throttled_frac"]].tolist()
    assert np.isnan(found["other_frac"])
    assert "power_violation_ns, thermal_violation_ns" == found["source"]


def test_reasons_precede_counters_cause_by_cause() -> None:
    """Reasons say 0.5 for power, whose counter says 1; only its counter, 0.25, tells of heat."""
    drawn = samples(
        throttled_power_frac=[1, 0, 1, 0, 0, 0],
        power_violation_ns=[n * SECOND for n in range(6)],
        thermal_violation_ns=[0, 0, 0, 0, 1.25e9, 1.25e9],
    )
    found = throttling(drawn).iloc[0]
    assert found[["power_frac", "thermal_frac", "throttled_frac"]].tolist() == pytest.approx([2 / 6, 0.25, 2 / 6])
    assert "throttled_power_frac, thermal_violation_ns" == found["source"]


def test_counters_of_reasons_precede_their_readings() -> None:
    """Read at six moments, power lowers the clock at none of them, but for 3 of the 5 s between; heat for 1 and 2 of 5.

    Another reason was active at three of six readings, and has no counter: 0.6 is the greatest share.
    """
    drawn = samples(
        throttled_power_frac=[0] * 6,
        throttled_thermal_frac=[1] * 6,
        throttled_other_frac=[1, 0, 1, 0, 1, 0],
        throttled_sw_power_ns=[7e9, 8e9, 9e9, 10e9, 10e9, 10e9],
        throttled_power_brake_ns=[0] * 6,
        throttled_sw_thermal_ns=[0, 1e9, 1e9, 1e9, 1e9, 1e9],
        throttled_hw_thermal_ns=[3e9, 3e9, 3e9, 3e9, 4e9, 5e9],
        power_violation_ns=[n * SECOND for n in range(6)],
    )
    found = throttling(drawn).iloc[0]
    shares = found[["power_frac", "thermal_frac", "other_frac", "throttled_frac"]].tolist()
    assert [0.6, 0.4, 0.5, 0.6] == pytest.approx(shares)
    counters = [f"throttled_{name}_ns" for name in ("sw_power", "power_brake", "sw_thermal", "hw_thermal")]
    assert ", ".join(["throttled_other_frac", *counters]) == found["source"]


def test_one_reading_of_a_counter_leaves_the_reasons() -> None:
    """What a counter has counted since the driver was loaded says nothing of this run: the reasons do."""
    found = throttling(samples(throttled_power_frac=[1], throttled_sw_power_ns=[5e9])).iloc[0]
    assert (1, "throttled_power_frac") == (found["power_frac"], found["source"])


def test_a_counter_of_one_reading_says_nothing() -> None:
    """A scrape has the time since the driver was loaded, which is none of the run; nor have two of one time."""
    for drawn in (samples(power_violation_ns=[5e9]), samples(at=[3, 3], power_violation_ns=[5e9, 6e9])):
        found = throttling(drawn).iloc[0]
        assert found[["power_frac", "throttled_frac"]].isna().all()
        assert "" == found["source"]


def test_a_counter_that_was_reset_counts_on_either_side() -> None:
    """1 s of 1, then the driver is loaded anew, then 0.5 s of 1: 1.5 of 2 s."""
    assert 0.75 == throttling(samples(power_violation_ns=[8e9, 9e9, 0, 0.5e9]))["power_frac"].item()


def test_a_counter_that_is_read_late_counts_at_most_the_time() -> None:
    """Collected every 2 s, read every second: it grows by 4 s in 4 s, though by none or 2 s in one; 4.5 s are 1 too."""
    assert 1 == throttling(samples(power_violation_ns=[0, 0, 2e9, 2e9, 4e9]))["power_frac"].item()
    assert 1 == throttling(samples(power_violation_ns=[0, 0, 2e9, 2e9, 4.5e9]))["power_frac"].item()


def test_a_counter_that_outruns_the_clock_is_no_share() -> None:
    """More than an interval above the time that passed cannot be: nothing is said."""
    found = throttling(samples(power_violation_ns=[0, 1e9, 2e9, 4.1e9])).iloc[0]
    assert np.isnan(found["power_frac"])
    assert "" == found["source"]


def test_counters_of_each_device_are_its_own() -> None:
    """GPU 0 throttles all the time, GPU 1 never, GPU 2 is said nothing of; a window takes the readings in it."""
    drawn = together(
        samples(power_violation_ns=[0, 1e9, 2e9, 2e9]),
        samples(gpu=1, power_violation_ns=[9e9, 9e9, 9e9]),
        samples(gpu=2, temperature_c=[83, 84, 85]),
    )
    found = throttling(drawn, window=(0, 3 * SECOND))["power_frac"]
    assert [1, 0] == found[:2].tolist()
    assert np.isnan(found[2])


def test_counters_against_a_sum_over_pairs() -> None:
    """Shares of made-up counters with resets are those that a loop over pairs of readings finds."""
    random = np.random.default_rng(0)
    for _ in range(20):
        times = np.cumsum(random.integers(1, 2 * SECOND, 50)).tolist()
        grown = np.append(0, np.cumsum(np.diff(times) * random.random(49)))
        grown[30:] -= grown[30]
        found = throttling(samples(at=times, thermal_violation_ns=grown.tolist()))["thermal_frac"].item()
        pairs = [(b - a, t - s) for a, b, s, t in zip(grown, grown[1:], times, times[1:], strict=False) if b >= a]
        assert sum(gain for gain, _ in pairs) / sum(step for _, step in pairs) == pytest.approx(found, rel=1e-12)


def test_power_against_its_enforced_limit() -> None:
    """350 and 680 of 700 W: 515 W on average, 0.7357; at 95 %, 665 W, for half of the time."""
    found = limit(samples(power_w=[350, 680], power_limit_w=[700, 700]), "power", devices("NVIDIA H100 80GB HBM3"))
    assert (515, 680, 700, 0.5) == tuple(found[["mean", "worst", "limit", "at_limit_frac"]])
    assert found["mean_frac"] == pytest.approx(515 / 700, rel=1e-15)
    assert found["worst_frac"] == pytest.approx(680 / 700, rel=1e-15)
    assert "recorded limit" == found["source"]


def test_the_examples_of_the_definitions() -> None:
    """650 of 700 W are 0.9286, 72 of 80 GB 0.90."""
    drawn = samples(power_w=[650], power_limit_w=[700], memory_used_bytes=[72e9], memory_total_bytes=[80e9])
    assert limit(drawn, "power")["mean_frac"] == pytest.approx(0.9286, abs=5e-5)
    assert 0.9 == limit(drawn, "memory")["mean_frac"]


def test_a_limit_that_is_lowered_counts_from_then_on() -> None:
    """380 W are half of 760 for 2 s and 95 % of 400 for 2 s: at the limit for half of the time."""
    drawn = samples(power_w=[380, 380, 380, 380], power_limit_w=[760, None, 400, None])
    found = limit(drawn, "power")
    assert found["mean_frac"] == pytest.approx((0.5 + 0.95) / 2, rel=1e-12)
    assert (400, 0.5) == tuple(found[["limit", "at_limit_frac"]])


def test_a_limit_may_be_read_once_and_outside_the_window() -> None:
    """A limit holds until the next one, and before the first one."""
    drawn = samples(power_w=[100, 200, 300], power_limit_w=[400, None, None])
    found = at_limit(drawn, NO_DEVICES, window=(SECOND, 2 * SECOND)).iloc[0]
    assert (200, 0.5) == tuple(found[["mean", "mean_frac"]])


def test_the_data_sheet_stands_in_for_the_known_name_only() -> None:
    """280 of the 450 W of an RTX 4090; a mere H100 is not in the table: no row, no default."""
    drawn = samples(power_w=[280, 280])
    found = limit(drawn, "power", devices("NVIDIA GeForce RTX 4090"))
    assert (280 / 450, "data sheet of the GPU") == tuple(found[["mean_frac", "source"]])
    for known in (devices("NVIDIA H100"), NO_DEVICES):
        assert 0 == len(at_limit(drawn, known))


def test_power_above_the_data_sheet_is_of_another_gpu() -> None:
    """A T4 is limited to 70 W: 77 W may be read (1.1 times), 77.1 W not, and then no share of 70 W is told."""
    t4 = devices("Tesla T4")
    assert 1.1 == pytest.approx(limit(samples(power_w=[60, 77]), "power", t4)["worst_frac"])
    found = limit(samples(power_w=[60, 77.1]), "power", t4)
    assert found[["mean_frac", "worst_frac", "at_limit_frac"]].isna().all()
    assert (77.1, 70) == tuple(found[["worst", "limit"]])
    own = limit(samples(power_w=[60, 77.1], power_limit_w=[70, None]), "power", t4)  # a recorded limit is the GPU's own
    assert 77.1 / 70 == pytest.approx(own["worst_frac"])


def test_memory_there_is() -> None:
    """Recorded, else used + free + reserved, else that of the device; of 0 bytes there is no share."""
    used = {"memory_used_bytes": [30, 60]}
    known = devices("mine", memory_bytes=120)
    parts = samples(**used, memory_free_bytes=[65, 35], driver_reserved_bytes=[5, 5])
    for drawn, whole, source in (
        (samples(**used, memory_total_bytes=[80, 80]), 80, "recorded total"),
        (parts, 100, "used, free and reserved"),
        (samples(**used, memory_free_bytes=[70, 40]), 100, "used, free and reserved"),
        (samples(**used), 120, "device"),
    ):
        found = limit(drawn, "memory", known)
        assert (45, 60, whole, 60 / whole, source) == tuple(found[["mean", "worst", "limit", "worst_frac", "source"]])
    assert 0 == len(at_limit(samples(**used, memory_total_bytes=[0, 0]), NO_DEVICES))


def test_temperature_against_the_recorded_slowdown() -> None:
    """Slowdown at 89: 84 is within 5 degrees, 83 is not; without a recorded threshold there is no row."""
    hot = {"temperature_c": [83, 84, 85, 60]}
    found = limit(samples(**hot, temperature_slowdown_c=[89, None, None, None]), "temperature")
    assert (78, 85, 89, 0.5) == tuple(found[["mean", "worst", "limit", "at_limit_frac"]])
    assert found[["mean_frac", "worst_frac"]].isna().all()
    assert 0 == len(at_limit(samples(**hot), NO_DEVICES))


def test_a_margin_is_worst_where_it_is_lowest() -> None:
    """T.Limit 26, 5 and -2 degrees: at the limit from 5 on, for two thirds of the time."""
    found = limit(samples(temperature_margin_c=[26, 5, -2]), "temperature_margin")
    assert (-2, 0) == tuple(found[["worst", "limit"]])
    assert found["at_limit_frac"] == pytest.approx(2 / 3, rel=1e-15)


def test_devices_keep_their_own_limits() -> None:
    """Two GPUs and two nodes, in the order of rank, gpu and quantity."""
    drawn = together(
        samples(power_w=[100], power_limit_w=[200], memory_used_bytes=[1], memory_total_bytes=[4]),
        samples(gpu=1, power_w=[100], power_limit_w=[400]),
        samples(rank=1, power_w=[100], power_limit_w=[100]),
    )
    found = at_limit(drawn, NO_DEVICES)
    places = [(0, 0, "power"), (0, 0, "memory"), (0, 1, "power"), (1, 0, "power")]
    assert places == list(zip(found["rank"], found["gpu"], found["quantity"], strict=True))
    assert [0.5, 0.25, 0.25, 1.0] == found["mean_frac"].tolist()

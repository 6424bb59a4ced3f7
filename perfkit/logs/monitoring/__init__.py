"""What does the log of the GPUs say: were they busy, full, throttled, and evenly so?

`samples` is SAMPLES, in any order. `window` selects the readings in it. A result has one row per
rank and gpu that has what is asked for, ascending.

A reading counts for the time until the next one of the same metric and device, the last one for the
usual interval: means, percentiles and shares of time are weighted so, because a log's interval
varies, most of all where the machine is busy. What is missing in the log (no row, or NaN) counts
for nothing.

"GPU utilisation" has four meanings, which are four columns: the time in which a kernel ran, the SMs
with work, the warps resident on them, the arithmetic pipes that work. Throttling is decided from
the clock's event reasons and violation counters, never from a temperature; a temperature is held
against a recorded threshold only.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pandas as pd

from perfkit.analysis import readings
from perfkit.analysis.causes import where
from perfkit.analysis.intervals import Window
from perfkit.analysis.readings import summary, throttling
from perfkit.format import number, percent, size
from perfkit.logs.monitoring import levels
from perfkit.logs.monitoring.levels import at_limit, dips, idle, imbalance, utilisation
from perfkit.logs.monitoring.states import ledger
from perfkit.schema import stretches
from perfkit.tables import SAMPLES

HIGH = 0.8  # of the time; convention of this project
LINKS = {
    "pcie_rx_bytes_per_s": "PCIe to the GPU",
    "pcie_tx_bytes_per_s": "PCIe from the GPU",
    "nvlink_rx_bytes_per_s": "NVLink to the GPU",
    "nvlink_tx_bytes_per_s": "NVLink from the GPU",
    "nvlink_bytes_per_s": "NVLink, both ways",
}
# A GPU that was monitored has one of these, whatever else the samples hold.
OF_A_DEVICE = (
    *readings.BUSY,
    *(metric for metrics in readings.CAUSES.values() for metric in metrics),
    *readings.COUNTED,
    *LINKS,
    *("power_w", "memory_used_bytes", "temperature_c", "temperature_margin_c", "sm_clock_hz"),
    *("sm_active_frac", "tensor_active_frac", "dram_active_frac"),
)
_OF_LIMIT = ["mean", "worst", "limit", "mean_frac", "worst_frac", "at_limit_frac", "source"]
_BY = {"power": "the power limit", "thermal": "heat", "other": "another reason than idleness"}
_CAUSES = ["power_frac", "thermal_frac", "other_frac", "throttled_frac"]
# Conventions of this project: for how much of the time high utilisation is consistent, from which
# share on memory is full, below which it has room and power is low, and how much throttling does
# not matter.
CONSISTENT, FULL_MEMORY, ROOM, LOW_POWER, THROTTLED = 0.9, 0.95, 0.5, 0.5, 0.01
FEWEST = 3
Facts = Mapping[Any, Any]


class Answer(NamedTuple):
    """A verdict (ok, attention, cannot tell) with its figure, its threshold, their unit, and why."""

    verdict: str
    value: float
    threshold: float
    unit: str
    reason: str


def _utilisation(fact: Facts) -> Answer:
    high, count = fact["busy_high_frac"], fact["busy_count"]
    if not count >= FEWEST:
        what: str = (
            "no utilisation is recorded"
            if pd.isna(count)
            else f"too few readings ({count:.0f}) to tell"
        )
        reason = f"{what}: record it for a minute, with `nvidia-smi dmon -s pucvmet -o DT`"
        return Answer("cannot tell", high, CONSISTENT, "frac", reason)
    reason = (
        f"a kernel ran in at least {percent(HIGH)} of the period for {percent(high)} of the time; "
        f"the median is {percent(fact['busy_median'])}, and nothing ran for "
        f"{percent(fact['busy_idle_frac'])} of the time"
    )
    return Answer(_judged(high < CONSISTENT), high, CONSISTENT, "frac", reason)


def _memory(fact: Facts) -> Answer:
    share = fact["memory_worst_frac"]
    if pd.isna(share):
        used = fact["memory_used_bytes"]
        use = "used memory is" if pd.isna(used) else f"{size(used)} are in use, of how much is"
        reason = f"{use} not recorded: `nvidia-smi --query-gpu=memory.used,memory.total`"
        return Answer("cannot tell", math.nan, FULL_MEMORY, "frac", reason)
    reason = (
        f"at most {size(fact['memory_worst'])} of {size(fact['memory_limit'])} "
        f"({fact['memory_source']}) are in use, {percent(fact['memory_mean_frac'])} on average"
    )
    full = share >= FULL_MEMORY
    advice = ": there is room for more" if share < ROOM else ""
    if full:
        advice = ": the next allocation may fail"
    return Answer(_judged(full), share, FULL_MEMORY, "frac", reason + advice)


def _power(fact: Facts) -> Answer:
    share = fact["power_mean_frac"]
    if pd.isna(share) and not pd.isna(fact["power_limit"]):
        reason = (
            f"up to {number(fact['power_worst'])} W are more than the "
            f"{number(fact['power_limit'])} W of the {fact['power_source']}: the log is of another "
            "GPU, or its limit was raised. Record enforced.power.limit"
        )
        return Answer("cannot tell", math.nan, LOW_POWER, "frac", reason)
    if pd.isna(share):
        power = fact["power_w"]
        draw = "power is" if pd.isna(power) else f"{number(power)} W on average, of how much is"
        reason = f"{draw} not recorded: `nvidia-smi --query-gpu=power.draw,enforced.power.limit`"
        return Answer("cannot tell", math.nan, LOW_POWER, "frac", reason)
    reason = (
        f"{number(fact['power_mean'])} W of {number(fact['power_limit'])} W "
        f"({fact['power_source']}) on average, at "
        f"the limit for {percent(fact['power_at_limit_frac'])} of the time"
    )
    low = share < LOW_POWER
    return Answer(
        _judged(low), share, LOW_POWER, "frac", reason + (": the GPU does little" if low else "")
    )


def _throttling(fact: Facts) -> Answer:
    share = fact["throttling_throttled_frac"]
    near = _near_slowdown(fact)
    fracs = {cause: frac for cause in _BY if not pd.isna(frac := fact[f"throttling_{cause}_frac"])}
    shares = ", ".join(f"by {_BY[cause]} {percent(frac)}" for cause, frac in fracs.items())
    parts = [f"the clock was lowered for this share of the time: {shares}"] if fracs else []
    unknown = [_BY[cause] for cause in ("power", "thermal") if cause not in fracs]
    if unknown:
        asked = "`nvidia-smi dmon -s pucvmet`, or `--query-gpu=clocks_event_reasons.active`"
        parts.append(f"whether {' or '.join(unknown)} lowers the clock is not recorded: {asked}")
    reason = "; ".join([*parts, *near])
    if near or share >= THROTTLED:
        return Answer("attention", share, THROTTLED, "frac", reason)
    return Answer("cannot tell" if unknown else "ok", share, THROTTLED, "frac", reason)


def _near_slowdown(fact: Facts) -> list[str]:
    """Return a warning where the temperature came near to the slowdown."""
    found: list[str] = []
    if fact["temperature_at_limit_frac"] > 0:
        found.append(
            f"{number(fact['temperature_worst'])} degrees Celsius are within "
            f"{levels.NEAR_TEMPERATURE_C:.0f} of "
            f"the slowdown at {number(fact['temperature_limit'])}"
        )
    if fact["temperature_margin_at_limit_frac"] > 0:
        found.append(
            f"the margin to the slowdown fell to {number(fact['temperature_margin_worst'])} degrees"
        )
    return found


def _traffic_answer(fact: Facts) -> Answer:
    rates = {metric: float(fact[metric]) for metric in LINKS if not pd.isna(fact[metric])}
    if not rates:
        reason = "no traffic is recorded: `nvidia-smi dmon -s t`, or DCGM fields 1009 to 1012"
        return Answer("cannot tell", math.nan, math.nan, "bytes_per_s", reason)
    busiest = ", ".join(f"{LINKS[metric]} {size(rate)}/s" for metric, rate in rates.items())
    reason = (
        f"95 % of the time at most {busiest}; "
        "without the links' peaks there is nothing to compare with"
    )
    return Answer("cannot tell", max(rates.values()), math.nan, "bytes_per_s", reason)


def _judged(wrong: bool) -> str:
    return "attention" if wrong else "ok"


_CHECKS: Mapping[str, Callable[[Facts], Answer]] = {
    "utilisation": _utilisation,
    "memory": _memory,
    "power": _power,
    "throttling": _throttling,
    "traffic": _traffic_answer,
}
CHECKS = tuple(_CHECKS)
VERDICTS = ("ok", "attention", "cannot tell")
__all__ = ["at_limit", "checks", "dips", "idle", "imbalance", "ledger", "summary", "throttling"]
__all__ += ["utilisation"]


def facts(
    samples: pd.DataFrame, devices: pd.DataFrame, *, window: Window | None = None
) -> pd.DataFrame:
    """Return one row per monitored rank and gpu of 0 and up (the index) with what is known, NaN where it is not.

    Columns are those of `at_limit` after the quantity and an underscore, of `throttling` after
    "throttling_", the 95th percentile of each metric of LINKS and the mean of power_w and
    memory_used_bytes under their names, and `busy_...`.
    """
    lowered = (
        throttling(samples, window=window)
        .set_index(readings.DEVICE)[_CAUSES]
        .add_prefix("throttling_")
    )
    limits = at_limit(samples, devices, window=window)
    of_quantity = [
        limits[limits["quantity"] == quantity]
        .set_index(readings.DEVICE)[_OF_LIMIT]
        .add_prefix(f"{quantity}_")
        for quantity in levels.QUANTITIES
    ]
    drawn = readings.readings(samples, "power_w", "memory_used_bytes", window=window)
    means_of = readings.wide(drawn, readings.means(drawn), ("power_w", "memory_used_bytes"))
    rates = readings.readings(samples, *LINKS, window=window)
    traffic = readings.wide(rates, readings.percentiles(rates, {"p95": 0.95})["p95"], tuple(LINKS))
    found = readings.readings(samples, *readings.BUSY, window=window)
    busy = found.series[readings.DEVICE].assign(
        busy_count=found.count,
        busy_median=readings.percentiles(found, {"p50": 0.5})["p50"],
        busy_idle_frac=readings.means(found, found.value == 0),
        busy_high_frac=readings.means(found, found.value >= HIGH),
    )
    busy = busy.drop_duplicates(readings.DEVICE).set_index(readings.DEVICE)
    table = pd.concat([lowered, *of_quantity, means_of, busy, traffic], axis=1)
    # The devices of 0 and up with any of OF_A_DEVICE. Readings of a series follow each other: few
    # rows tell all.
    columns = (
        samples["rank"].to_numpy(),
        samples["gpu"].to_numpy(),
        samples["metric"].cat.codes.to_numpy(),
    )
    series = samples.take(stretches(columns, len(samples)))
    series = series[(series["gpu"] >= 0) & where(series["metric"], OF_A_DEVICE.__contains__)]
    keys = series[readings.DEVICE].drop_duplicates().sort_values(readings.DEVICE)
    return table.reindex(pd.MultiIndex.from_frame(keys))


def checks(
    samples: pd.DataFrame, devices: pd.DataFrame, *, window: Window | None = None
) -> pd.DataFrame:
    """Return a verdict per device and check, each with its figure, its threshold and a reason.

    utilisation: share of the time with a utilisation of at least 0.8; attention below 0.9. It is
    that in which any kernel counts, and does not say that the GPU is used well. memory: the most in
    use over what there is; attention from 0.95 on. power: mean over the limit; attention below 0.5,
    since power near the limit is a sign of work. throttling: share of the time with a lowered
    clock, from event reasons and violation counters alone; attention from 0.01 on, or where the
    temperature came within 5 degrees of the recorded slowdown, or its margin to 5. traffic: the
    95th percentile of the busiest direction of a link, bytes/s, without a verdict: no log holds the
    links' peaks. What was not recorded is "cannot tell", and the reason says how to record it.

    One row per rank, gpu (0 and up) and check (category: CHECKS) of every GPU that was monitored,
    in this order: `verdict` category: ok, attention or cannot tell; `value`, `threshold` float64,
    NaN where there is none; `unit` category: frac or bytes_per_s; `reason` string.
    """
    of_device = facts(SAMPLES.check(samples), devices, window=window).sort_index()
    rows = [
        (*device, check, *answer(fact))
        for device, fact in zip(of_device.index, of_device.to_dict("records"), strict=True)
        for check, answer in _CHECKS.items()
    ]
    table = pd.DataFrame(rows, columns=[*readings.DEVICE, "check", *Answer._fields])
    choices = {"check": CHECKS, "verdict": VERDICTS, "unit": ("frac", "bytes_per_s")}
    kinds = {
        "rank": "int32",
        "gpu": "int32",
        "value": "float64",
        "threshold": "float64",
        "reason": "string",
    }
    return table.assign(
        **{name: pd.Categorical(table[name], of) for name, of in choices.items()}
    ).astype(kinds)

"""What each check says of a device, given its facts.

Functions
---------
answers    one answer per check, in the order of CHECKS
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pandas as pd

from perfkit.analysis.monitoring.facts import HIGH, LINKS
from perfkit.analysis.monitoring.limits import NEAR_TEMPERATURE_C
from perfkit.format import number, percent, size

# Conventions of this project: for how much of the time high utilisation is consistent, from which shares on memory and
# links are full, below which share power is low, and how much throttling does not matter.
CONSISTENT, FULL_MEMORY, LOW_POWER, THROTTLED, FULL_LINK = 0.9, 0.95, 0.5, 0.01, 0.8
FEWEST = 3

Facts = Mapping[Any, Any]
Peaks = Mapping[str, float | None]


class Answer(NamedTuple):
    """A verdict (ok, attention, cannot tell) with its figure, its threshold, their unit, and why."""

    verdict: str
    value: float
    threshold: float
    unit: str
    reason: str


def answers(fact: Facts, peaks: Peaks) -> dict[str, Answer]:
    """Return the answer of each check for the facts of a device; `peaks` of one direction of "pcie" and "nvlink"."""
    return {check: answer(fact, peaks) for check, answer in _CHECKS.items()}


def _utilisation(fact: Facts, _: Peaks) -> Answer:
    high, count = fact["busy_high_frac"], fact["busy_count"]
    if not count >= FEWEST:
        what: str = "no utilisation is recorded" if pd.isna(count) else f"too few readings ({count:.0f}) to tell"
        reason = f"{what}: record it for a minute, with `nvidia-smi dmon -s pucvmet -o DT`"
        return Answer("cannot tell", high, CONSISTENT, "frac", reason)
    reason = (
        f"a kernel ran in at least {percent(HIGH)} of the period for {percent(high)} of the time; the median is "
        f"{percent(fact['busy_median'])}, and nothing ran for {percent(fact['busy_idle_frac'])} of the time"
    )
    return Answer(_judged(high < CONSISTENT), high, CONSISTENT, "frac", reason)


def _memory(fact: Facts, _: Peaks) -> Answer:
    share = fact["memory_worst_frac"]
    if pd.isna(share):
        used = fact["memory_used_bytes"]
        found = (
            "used memory is not recorded" if pd.isna(used) else f"{size(used)} are in use, of how much is not recorded"
        )
        reason = f"{found}: `nvidia-smi --query-gpu=memory.used,memory.total`"
        return Answer("cannot tell", math.nan, FULL_MEMORY, "frac", reason)
    reason = (
        f"at most {size(fact['memory_worst'])} of {size(fact['memory_limit'])} ({fact['memory_source']}) are in use, "
        f"{percent(fact['memory_mean_frac'])} on average"
    )
    full = share >= FULL_MEMORY
    advice = ": the next allocation may fail" if full else "" if share >= LOW_POWER else ": there is room for more"
    return Answer(_judged(full), share, FULL_MEMORY, "frac", reason + advice)


def _power(fact: Facts, _: Peaks) -> Answer:
    share = fact["power_mean_frac"]
    if pd.isna(share):
        power = fact["power_w"]
        found = (
            "power is not recorded" if pd.isna(power) else f"{number(power)} W on average, of how much is not recorded"
        )
        reason = f"{found}: `nvidia-smi --query-gpu=power.draw,enforced.power.limit`"
        return Answer("cannot tell", math.nan, LOW_POWER, "frac", reason)
    reason = (
        f"{number(fact['power_mean'])} W of {number(fact['power_limit'])} W ({fact['power_source']}) on average, at "
        f"the limit for {percent(fact['power_at_limit_frac'])} of the time"
    )
    low = share < LOW_POWER
    return Answer(_judged(low), share, LOW_POWER, "frac", reason + (": the GPU does little" if low else ""))


def _throttling(fact: Facts, _: Peaks) -> Answer:
    share = fact["throttling_throttled_frac"]
    near = _near_slowdown(fact)
    said = {cause: fact[f"throttling_{cause}_frac"] for cause in ("power", "thermal", "other")}
    known = {cause: frac for cause, frac in said.items() if not pd.isna(frac)}
    shares = ", ".join(f"by {_BY[cause]} {percent(frac)}" for cause, frac in known.items())
    parts = [f"the clock was lowered for this share of the time: {shares}"] if known else []
    unknown = [_BY[cause] for cause in ("power", "thermal") if cause not in known]
    if unknown:
        asked = "`nvidia-smi dmon -s pucvmet`, or `--query-gpu=clocks_event_reasons.active`"
        parts.append(f"whether {' or '.join(unknown)} lowers the clock is not recorded: {asked}")
    reason = "; ".join([*parts, *near])
    if near or share >= THROTTLED:
        return Answer("attention", share, THROTTLED, "frac", reason)
    return Answer("cannot tell" if unknown else "ok", share, THROTTLED, "frac", reason)


_BY = {"power": "the power limit", "thermal": "heat", "other": "another reason than idleness"}


def _near_slowdown(fact: Facts) -> list[str]:
    """Return a warning where the temperature came near to the slowdown."""
    found: list[str] = []
    if fact["temperature_at_limit_frac"] > 0:
        found.append(
            f"{number(fact['temperature_worst'])} degrees Celsius are within {NEAR_TEMPERATURE_C:.0f} of the slowdown "
            f"at {number(fact['temperature_limit'])}"
        )
    if fact["temperature_margin_at_limit_frac"] > 0:
        found.append(f"the margin to the slowdown fell to {number(fact['temperature_margin_worst'])} degrees")
    return found


def _traffic(fact: Facts, peaks: Peaks) -> Answer:
    rates = {metric: float(fact[metric]) for metric in LINKS if not pd.isna(fact[metric])}
    if not rates:
        reason = "no traffic is recorded: `nvidia-smi dmon -s t`, or DCGM fields 1009 to 1012"
        return Answer("cannot tell", math.nan, math.nan, "bytes_per_s", reason)
    said = ", ".join(f"{LINKS[metric][0]} {size(rate)}/s" for metric, rate in rates.items())
    shares = {m: rate / (LINKS[m][2] * peak) for m, rate in rates.items() if (peak := peaks[LINKS[m][1]]) is not None}
    if not shares:
        reason = f"95 % of the time at most {said}; without the links' peaks there is nothing to compare with"
        return Answer("cannot tell", max(rates.values()), math.nan, "bytes_per_s", reason)
    most = max(shares, key=lambda metric: shares[metric])
    reason = f"95 % of the time at most {said}; {LINKS[most][0]} is nearest to its peak"
    return Answer(_judged(shares[most] >= FULL_LINK), shares[most], FULL_LINK, "frac", reason)


def _judged(wrong: bool) -> str:
    return "attention" if wrong else "ok"


_CHECKS: Mapping[str, Callable[[Facts, Peaks], Answer]] = {
    "utilisation": _utilisation,
    "memory": _memory,
    "power": _power,
    "throttling": _throttling,
    "traffic": _traffic,
}
CHECKS = tuple(_CHECKS)

"""The values of one field of one GPU, and SAMPLES and DEVICES made of many.

Conventions: hosts become ranks in the order of their names, numbers in names counted as numbers; their names go no
further. Values of MIG instances are relative to the instance: beside values of whole GPUs they are left out, and where
there are no others the instances are numbered and read as GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit import tables
from perfkit.readers.dcgm.fields import ORDER, REASONS, Field
from perfkit.readers.dcgm.values import EXACT, Values, reasons, scaled, without_blanks

Points = tuple[NDArray[np.int64], Values]

DIGITS = 4  # of the number of a GPU on its node
NEVER = np.iinfo(np.int64).min  # stands for a time that is none
LATEST_NS = 2**62  # in the year 2116: differences of such times fit int64
TEN_YEARS_NS = 10 * 366 * 86_400 * 10**9


@dataclass(frozen=True)
class Series:
    """The values of one field, NaN where there is none, of one GPU or of an instance of it."""

    field: Field
    host: str
    gpu: int
    times_ns: NDArray[np.int64]
    values: Values
    instance: str = ""


@dataclass(frozen=True)
class Device:
    """What a log says a GPU is."""

    host: str
    gpu: int
    name: str
    compute_capability: str = ""


@dataclass(frozen=True)
class Reading:
    """A log as read; times are ns since 1970 if ``timed``, else since its first sample."""

    tool: str
    series: Sequence[Series]
    timed: bool
    version: str = ""
    devices: Sequence[Device] = ()
    notes: list[str] = field(default_factory=list)


def by_number(name: str) -> list[tuple[int, str]]:
    """Sort key under which node10 comes after node2."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", name)]


def index(text: str) -> int | None:
    """Return the number of a GPU on its node, None if `text` is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= DIGITS else None


def whole_gpus(series: Sequence[Series], notes: list[str]) -> list[Series]:
    """Return the series of whole GPUs; where there are none, those of MIG instances, numbered on each host."""
    whole = [s for s in series if not s.instance]
    parts = [s for s in series if s.instance]
    if not parts:
        return whole
    if whole:
        left = sum(len(s.values) for s in parts)
        notes.append(
            f"values of MIG instances are left out ({left}): they are relative to the instance, not to the GPU"
        )
        return whole
    notes.append("there are values of MIG instances only: gpu numbers the instances, values are relative to one")
    known = sorted({(s.host, s.gpu, s.instance) for s in parts}, key=lambda i: (i[0], i[1], by_number(i[2])))
    hosts = [host for host, _, _ in known]
    numbers = {instance: i - hosts.index(instance[0]) for i, instance in enumerate(known)}
    return [replace(s, gpu=numbers[s.host, s.gpu, s.instance], instance="") for s in parts]


def ranks(hosts: set[str], notes: list[str]) -> dict[str, int]:
    """Return the rank of each host."""
    ordered = sorted(hosts, key=by_number)
    if len(ordered) > 1:
        notes.append(f"{len(ordered)} hosts, which are ranks in the order of their names")
    return {host: rank for rank, host in enumerate(ordered)}


def samples(series: Sequence[Series], rank: dict[str, int], notes: list[str]) -> pd.DataFrame:
    """Return SAMPLES with the times of the series; of fields that give one metric, the first that has a value."""
    found: dict[tuple[int, int, str], list[Points]] = {}
    every = 0
    series = _in_time(series, notes)
    for known in sorted({s.field for s in series}, key=ORDER.__getitem__):
        of_field = [s for s in series if s.field == known]
        for metric, parts in _in_units(known, [s.values for s in of_field], notes).items():
            for one, values in zip(of_field, parts, strict=True):
                known_at = ~np.isnan(values)
                every += len(values)
                points = one.times_ns[known_at], values[known_at]
                found.setdefault((rank[one.host], one.gpu, metric), []).append(points)
    missing = every - sum(len(times) for parts in found.values() for times, _ in parts)
    notes += [f"{missing} of {every} values are missing (N/A, blank or impossible)"] if missing else []
    there = {key: points for key, points in sorted(found.items()) if any(len(times) for times, _ in points)}
    return _table({key: _once(points) for key, points in there.items()}, notes)


def _in_time(series: Sequence[Series], notes: list[str]) -> Sequence[Series]:
    """Leave out points without a time, and those more than ten years from most others: their clock was not set."""
    ends = [(int(s.times_ns.min()), int(s.times_ns.max())) for s in series if len(s.times_ns)]
    if not ends or max(last for _, last in ends) - min(first for first, _ in ends) <= TEN_YEARS_NS:
        return series
    times = np.concatenate([s.times_ns for s in series])
    usual = int(np.median(times[times != NEVER])) if (times != NEVER).any() else 0
    inside = (times != NEVER) & (np.abs(times - usual) <= TEN_YEARS_NS)
    left = int((~inside).sum())
    notes.append(f"values without a time, or more than ten years before or after most others, are left out ({left})")
    parts = np.split(inside, np.cumsum([len(s.times_ns) for s in series])[:-1])
    return [replace(s, times_ns=s.times_ns[part], values=s.values[part]) for s, part in zip(series, parts, strict=True)]


def _in_units(known: Field, values: Sequence[Values], notes: list[str]) -> dict[str, list[Values]]:
    """Return the metrics of one field, each with one array per series."""
    together = np.concatenate(values)
    together = without_blanks(together) if known.number else together
    if known.metric == REASONS:
        metrics = reasons(together)
    else:
        made, note = scaled(together, known)
        notes += [note] if note else []
        metrics = {known.metric: made}
    ends = np.cumsum([len(part) for part in values])[:-1]
    return {metric: np.split(made, ends) for metric, made in metrics.items()}


def _once(points: Sequence[Points]) -> tuple[Points, int]:
    """Return points in the order of time, the first of each time, and how many others differ from it."""
    times, values = (np.concatenate(part) for part in zip(*points, strict=True))
    if (np.diff(times) > 0).all():
        return (times, values), 0
    order = np.argsort(times, kind="stable")
    times, values = times[order], values[order]
    first = np.append(True, np.diff(times) > 0)[: len(times)]
    kept = np.flatnonzero(first)[np.cumsum(first) - 1]
    return (times[first], values[first]), int((values != values[kept]).sum())


def _table(found: dict[tuple[int, int, str], tuple[Points, int]], notes: list[str]) -> pd.DataFrame:
    """Return SAMPLES of what is in its order already."""
    differing = sum(count for _, count in found.values())
    notes += [f"second values of one metric at one time are left out ({differing})"] if differing else []
    metrics = sorted({metric for _, _, metric in found})
    codes = [metrics.index(metric) for _, _, metric in found]
    lengths = [len(times) for (times, _), _ in found.values()]
    none: Points = (np.zeros(0, np.int64), np.zeros(0))
    times, values = (np.concatenate(part) for part in zip(none, *(points for points, _ in found.values()), strict=True))
    frame = {
        "rank": np.repeat(np.array([rank for rank, _, _ in found], np.int32), lengths),
        "gpu": np.repeat(np.array([gpu for _, gpu, _ in found], np.int32), lengths),
        "time_ns": times,
        "metric": pd.Categorical.from_codes(
            np.repeat(codes, lengths).astype(np.int16), pd.Index(metrics, dtype=object)
        ),
        "value": values,
    }
    return tables.SAMPLES.make(pd.DataFrame(frame, copy=False))


def devices(said: Sequence[Device], frame: pd.DataFrame, rank: dict[str, int]) -> pd.DataFrame:
    """Return DEVICES of the GPUs that the log names, with the memory and highest clock that it sampled."""
    named = {(rank[d.host], d.gpu): d for d in said if d.host in rank}
    sampled = frame[frame["metric"].isin(["memory_total_bytes", "sm_max_clock_hz"])].astype({"metric": str})
    first = sampled.groupby(["rank", "gpu", "metric"])["value"].first().to_dict()
    rows = [
        {
            "rank": key[0],
            "gpu": key[1],
            "name": device.name,
            "compute_capability": device.compute_capability,
            "sm_count": pd.NA,
            "memory_bytes": _whole(first.get((*key, "memory_total_bytes"), np.nan)),
            "memory_bytes_per_s": np.nan,
            "clock_hz": first.get((*key, "sm_max_clock_hz"), np.nan),
        }
        for key, device in named.items()
    ]
    return tables.DEVICES.make(pd.DataFrame(rows, columns=tables.DEVICES.column_names))


def _whole(size: float) -> int | None:
    """Return a size in bytes as a whole number, None where there is none or it is too large to be exact."""
    return round(size) if abs(size) < EXACT else None

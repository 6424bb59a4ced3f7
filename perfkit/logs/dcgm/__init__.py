"""NVIDIA DCGM: ``dcgmi dmon`` logs, scrapes of dcgm-exporter or nvidia_gpu_exporter, a Prometheus server's answers.

Record with ``dcgmi dmon -e 203,155,150,252,1002,1003,1004,1005 -d 1000 > dmon.txt`` (field 1002 is
SM activity, 1003 SM occupancy, 1004 tensor cores, 1005 device memory), ``curl HOST:9400/metrics >
scrape.prom`` or ``perfkit record prometheus URL --out gpus.json``, which is
`perfkit.logs.prometheus`. Tried with logs of DCGM 3, dcgm-exporter 2 to 4, and Prometheus 2.42.

Hosts become ranks in the order of their names, numbers in names counted as numbers; their names go
no further. Values of MIG instances are relative to the instance: with values of whole GPUs each is
a metric of its own (``mig_gi_1_sm_active_frac``), so that nothing adds them; without those the
instances are numbered and read as GPUs. NaN is missing; nothing is clipped.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from perfkit import tables
from perfkit.analysis.intervals import Int
from perfkit.errors import ReadError
from perfkit.format import number
from perfkit.logs import text
from perfkit.logs.dcgm import fields, forms
from perfkit.logs.text import Asked, samples_table, unanswered
from perfkit.profile import Missing, Profile, node_of
from perfkit.readers.text import by_number, capture_table, content, head

VERSION = 5
KIND = "monitor"
LARGEST = 4 * 10**9
READS = (
    "a log of `dcgmi dmon`, a scrape of dcgm-exporter, or what `perfkit record prometheus` wrote"
)
DIAGNOSIS = "perfkit.logs.diagnosis"
RECORDER = ("prometheus", "perfkit.logs.prometheus")
RANKED = ("SAMPLES", "DEVICES")  # tables in which hosts of one file are ranks of their own
HEAD = 1 << 16
FORMS = (
    (forms.is_dmon, forms.read_dmon),
    (forms.is_exposition, forms.read_exposition),
    (forms.is_answer, forms.read_answer),
)
DMON = "dcgmi dmon -e 112,155,164,203,250,252,1002,1003,1004,1005"
ASKED = (
    Asked(("gpu_busy_frac", "graphics_active_frac"), "How busy was each GPU?", DMON),
    Asked(("sm_active_frac",), "How busy were the SMs?", DMON),
    Asked(("tensor_active_frac",), "How busy were the tensor cores?", DMON),
    Asked(("dram_active_frac",), "How busy was the GPU memory?", DMON),
    Asked(("memory_used_bytes",), "How much GPU memory was in use?", DMON),
    Asked(("power_w",), "How much power did each GPU draw?", DMON),
    Asked(("power_limit_w",), "Which power limit did each GPU have?", DMON),
    Asked(("throttled_power_frac", "power_violation_ns"), "Was the clock lowered?", DMON),
)
# dcgm_structs.h: a blank value, and not found, not supported, no permission above it.
BLANKS = [*range(2147483632, 2147483636), *range(140737488355328, 140737488355332)]
BLANK_INT64 = 9223372036854775792.0
OVERSHOOT = 1.1  # a ratio of two counters that are not read at the same time: NVIDIA/DCGM issue 152
Points = tuple[Int, fields.Values]


def sniff(path: Path) -> bool:
    """Say whether `path` is one of the logs, by the first 64 KB."""
    start = head(path, HEAD)
    return any(claims(start) for claims, _ in FORMS)


def read(path: Path) -> Profile:
    """Read a log; hosts are ranks by name, and without time stamps time 0 is the first tick or the only scrape."""
    beginning = content(path)[:HEAD]
    log = next((form for claims, form in FORMS if claims(beginning)), forms.read_exposition)(path)
    notes = list(log.notes)
    series = whole_gpus(log.series, notes)
    rank = ranks({s.host for s in series}, notes)
    frame = samples(series, rank, notes)
    if frame.empty:
        raise ReadError(
            f"{path}: none of its values is there (N/A, blank or impossible). "
            "DCGM needs root and no other profiler for fields from 1001 on: `dcgmi profile "
            "--resume`, and record again."
        )
    start = int(frame["time_ns"].min()) if log.timed else 0
    frame = frame.assign(time_ns=frame["time_ns"] - start)
    named = devices(log.devices, frame, rank)
    frames = {"SAMPLES": frame, **({"DEVICES": named} if len(named) else {})}
    metrics = set(frame["metric"].cat.categories)
    lacking = unanswered(ASKED, metrics)
    if named.empty:
        lacking.append(Missing("DEVICES", "Which GPUs were used?", "nvidia-smi -q -x -f gpus.xml"))
    return Profile(
        reader="dcgm",
        path=path,
        capture=capture_table(
            path, log.tool, log.version, start if log.timed else None, frame["time_ns"].max()
        ),
        loaders={name: partial(frames.__getitem__, name) for name in frames},
        missing=tuple(lacking),
        notes=tuple(notes),
        node=node_of(next(iter(rank))) if len(rank) == 1 else "",
    )


def whole_gpus(series: Sequence[fields.Series], notes: list[str]) -> list[fields.Series]:
    """Return the series of whole GPUs and of their MIG instances; of instances alone each is numbered as a GPU."""
    whole = [s for s in series if not s.instance]
    parts = [s for s in series if s.instance]
    if not parts:
        return whole
    if whole:
        known = [s for s in parts if s.gpu >= 0]
        if known:
            notes.append(
                f"values of MIG instances ({sum(len(s.values) for s in known)}) are metrics of "
                "their own (mig_...): they are relative to the instance, not to the GPU"
            )
        if left := sum(len(s.values) for s in parts if s.gpu < 0):
            notes.append(
                f"values of MIG instances are left out ({left}): the log does not say of which GPU "
                "they are"
            )
        return [*whole, *known]
    notes.append(
        "there are values of MIG instances only: gpu numbers the instances, values are relative to "
        "one"
    )
    instances = sorted(
        {(s.host, s.gpu, s.instance) for s in parts}, key=lambda i: (i[0], i[1], by_number(i[2]))
    )
    hosts = [host for host, _, _ in instances]
    numbers = {instance: i - hosts.index(instance[0]) for i, instance in enumerate(instances)}
    return [replace(s, gpu=numbers[s.host, s.gpu, s.instance], instance="") for s in parts]


def ranks(hosts: set[str], notes: list[str]) -> dict[str, int]:
    """Return the rank of each host."""
    ordered = sorted(hosts, key=by_number)
    if len(ordered) > 1:
        notes.append(f"{len(ordered)} hosts, which are ranks in the order of their names")
    return {host: rank for rank, host in enumerate(ordered)}


def samples(
    series: Sequence[fields.Series], rank: dict[str, int], notes: list[str]
) -> pd.DataFrame:
    """Return SAMPLES with the times of the series; of fields that give one metric, the first that has a value."""
    points_of: dict[tuple[int, int, str], list[Points]] = {}
    every = 0
    series = _in_time(series, notes)
    for field in sorted({s.field for s in series}, key=fields.ORDER.__getitem__):
        of_field = [s for s in series if s.field == field]
        for metric, parts in _in_units(field, [s.values for s in of_field], notes).items():
            for one, values in zip(of_field, parts, strict=True):
                known_at = ~np.isnan(values)
                every += len(values)
                points = one.times_ns[known_at], values[known_at]
                part = f"mig_{'_'.join(one.instance.lower().split())}_" if one.instance else ""
                points_of.setdefault((rank[one.host], one.gpu, part + metric), []).append(points)
    missing = every - sum(len(times) for parts in points_of.values() for times, _ in parts)
    notes += (
        [f"{missing} of {every} values are missing (N/A, blank or impossible)"] if missing else []
    )
    there = {
        key: points
        for key, points in sorted(points_of.items())
        if any(len(times) for times, _ in points)
    }
    once = {key: _once(points) for key, points in there.items()}
    differing = sum(count for _, count in once.values())
    notes += (
        [f"second values of one metric at one time are left out ({differing})"] if differing else []
    )
    return samples_table({key: points for key, (points, _) in once.items()})


def _in_time(series: Sequence[fields.Series], notes: list[str]) -> Sequence[fields.Series]:
    """Leave out points without a time, and those more than ten years from most others: their clock was not set."""
    ends = [(int(s.times_ns.min()), int(s.times_ns.max())) for s in series if len(s.times_ns)]
    if (
        not ends
        or max(last for _, last in ends) - min(first for first, _ in ends) <= text.TEN_YEARS_NS
    ):
        return series
    times = np.concatenate([s.times_ns for s in series])
    usual = int(np.median(times[times != fields.NEVER])) if (times != fields.NEVER).any() else 0
    inside = (times != fields.NEVER) & (np.abs(times - usual) <= text.TEN_YEARS_NS)
    left = int((~inside).sum())
    notes.append(
        "values without a time, or more than ten years before or after most others, are left out "
        f"({left})"
    )
    parts = np.split(inside, np.cumsum([len(s.times_ns) for s in series])[:-1])
    return [
        replace(s, times_ns=s.times_ns[part], values=s.values[part])
        for s, part in zip(series, parts, strict=True)
    ]


def _in_units(
    field: fields.Field, values: Sequence[fields.Values], notes: list[str]
) -> dict[str, list[fields.Values]]:
    """Return the metrics of one field, each with one array per series."""
    together = np.concatenate(values)
    together = without_blanks(together) if field.number else together
    if field.metric == fields.REASONS:
        metrics = reasons(together)
    else:
        made, note = scaled(together, field)
        notes += [note] if note else []
        metrics = {field.metric: made}
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


def devices(
    listed: Sequence[fields.Device], frame: pd.DataFrame, rank: dict[str, int]
) -> pd.DataFrame:
    """Return DEVICES of the GPUs that the log names, with the memory and highest clock that it sampled."""
    named = {(rank[d.host], d.gpu): d for d in listed if d.host in rank}
    sampled = frame[frame["metric"].isin(["memory_total_bytes", "sm_max_clock_hz"])].astype(
        {"metric": str}
    )
    first = sampled.groupby(["rank", "gpu", "metric"])["value"].first().to_dict()
    sizes = [first.get((*key, "memory_total_bytes"), np.nan) for key in named]
    columns = {
        "rank": [rank for rank, _ in named],
        "gpu": [gpu for _, gpu in named],
        "name": [device.name for device in named.values()],
        "compute_capability": [device.compute_capability for device in named.values()],
        "memory_bytes": pd.array(
            [round(size) if abs(size) < text.EXACT else None for size in sizes], dtype="Int64"
        ),
        "clock_hz": [first.get((*key, "sm_max_clock_hz"), np.nan) for key in named],
    }
    return tables.DEVICES.make(pd.DataFrame(columns))


def without_blanks(values: fields.Values) -> fields.Values:
    """Return `values` with NaN for what DCGM writes where there is no value."""
    return np.where(
        np.isin(values, BLANKS) | (values >= BLANK_INT64) | np.isinf(values), np.nan, values
    )


def scaled(values: fields.Values, field: fields.Field) -> tuple[fields.Values, str]:
    """Return the values of a field in the unit of its metric, and a note if they were not what the field promises.

    A percentage outside 0..100 is missing (NVIDIA/DCGM issue 199). Fields 1001 to 1008 are ratios
    of 0..1; where most of the values above 0 are greater than 1 they were written as percent, and
    where they are neither one nor the other none is believed.
    """
    if field.scale == fields.PERCENT and field.metric != "fan_frac":
        return _within(values / 100, 1.0, field)
    if field.number not in fields.RATIOS:
        return values * field.scale, ""
    possible, note = _within(values, 100.0, field)
    above = possible > 1
    if not above.any():
        return possible, note
    if above.sum() > (possible > 0).sum() / 2:
        return (
            possible / 100,
            f"{field.metric}: written as percent (up to {number(float(np.nanmax(possible)))})",
        )
    if np.nanmax(possible) > OVERSHOOT:
        wrong = number(float(np.nanmax(possible)))
        return np.full_like(
            values, np.nan
        ), f"{field.metric}: left out, it should be at most 1 and is up to {wrong}"
    return _within(values, 1.0, field)


def _within(values: fields.Values, most: float, field: fields.Field) -> tuple[fields.Values, str]:
    impossible = (values < 0) | (values > most)
    if not impossible.any():
        return values, ""
    example = number(float(values[impossible][0]))
    note = (
        f"{field.metric}: values that cannot be are left out ({int(impossible.sum())}, such as "
        f"{example})"
    )
    return np.where(impossible, np.nan, values), note


def reasons(values: fields.Values) -> dict[str, fields.Values]:
    """Return the metrics that a mask of event reasons says, each 1 or 0; its bits are NVML's (dcgm_fields.h)."""
    # False for NaN and for what is no mask
    is_mask = (values >= 0) & (values < text.EXACT) & (np.floor(values) == values)
    return text.lowered(
        np.where(is_mask, values, 0).astype(np.int64), np.where(is_mask, text.EVERY, 0)
    )

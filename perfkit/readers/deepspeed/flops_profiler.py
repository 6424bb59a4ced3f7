"""What does a report of DeepSpeed's Flops Profiler say of the whole model?

Its lines are ``label:   value unit``; labels and units differ between versions. Modules are not read: rates of short
ones exceed what the GPU can do, since their operations are estimated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

TITLE = re.compile(r"-{5,} DeepSpeed Flops Profiler -{5,}")
_END = re.compile(r"-{5,} (?:Aggregated|Detailed) Profile")
_LINE = re.compile(r"\s*(\S.*?):\s+(-?\d{1,18}(?:\.\d{1,9})?(?:e[+-]?\d\d?)?)(?: (\w+))?\s*", re.IGNORECASE)
_POWERS = {"": 0, "K": 3, "k": 3, "M": 6, "G": 9, "B": 9, "T": 12, "P": 15, "m": -3, "u": -6, "n": -9}
_NANO = 9
# Labels up to "=", in lower case: of reports since 0.4, and of those before.
VALUES = {
    "world size": "world_size_count",
    "batch size per gpu": "batch_size_count",
    "params per gpu": "model_parameters_count",
    "number of parameters": "model_parameters_count",
    "params of model": "model_parameters_count",
    "fwd flops per gpu": "forward_flops",
    "number of floating point operations (": "forward_flops",
    "fwd latency": "forward_ns",
    "latency": "forward_ns",
    "bwd latency": "backward_ns",
    "step latency": "step_ns",
    "iter latency": "iteration_ns",
    "samples/second": "samples_per_s",
    "floating point operations per second(flops)": "forward_flops_per_s",
}
RATES = {  # labels that divide by a time after their "="
    "fwd flops per gpu": "forward_flops_per_s",
    "bwd flops per gpu": "backward_flops_per_s",
    "fwd+bwd flops per gpu": "training_flops_per_s",
}


@dataclass
class Report:
    """The figures of a report, in the metrics' units; what was left out; whether its summary is whole."""

    figures: dict[str, float] = field(default_factory=dict)
    impossible: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    whole: bool = False


def titles(lines: Sequence[str]) -> list[int]:
    """Return the numbers of the lines that begin a report."""
    return [number for number, line in enumerate(lines) if "Flops Profiler" in line and TITLE.search(line)]


def report(lines: Sequence[str]) -> Report:
    """Return what the report that begins with the first of these lines says."""
    title = TITLE.search(lines[0])
    before = lines[0][: title.start()] if title else ""
    found = Report()
    for label, value in _pairs(lines[1:], before, found):
        metric = _metric(label)
        if metric is None:
            continue
        if value < 0 or (value == 0 and not metric.endswith("_count")):
            found.impossible.append(label)
        elif value or metric not in found.figures:  # the model has 0 parameters where there is no engine to tell
            found.figures[metric] = float(value.scaleb(_NANO) if metric.endswith("_ns") else value)
    return found


def _pairs(lines: Iterable[str], before: str, found: Report) -> Iterable[tuple[str, Decimal]]:
    """Yield label and value in base units, up to the end of the summary."""
    prefix = re.compile(re.sub(r"\d+", r"\\d+", re.escape(before)))
    for line in lines:
        if _END.search(line) or TITLE.search(line):
            found.whole = True
            return
        start = prefix.match(line)
        begin = start.end() if start else 0
        pair = _LINE.fullmatch(line, begin)
        value = _value(pair[2], pair[3] or "") if pair else None
        if pair and value is not None:
            yield pair[1], value
        elif ":" in line:
            label = line[begin:].partition(":")[0].strip()
            found.unreadable += [label] if _metric(label) else []


def _value(number: str, unit: str) -> Decimal | None:
    """Return a number times its unit's power of ten, None for another unit."""
    power = re.sub(r"(?:FLOPS|FLOPs|MACs|s)$", "", unit)
    return Decimal(number).scaleb(_POWERS[power]) if power in _POWERS else None


def _metric(label: str) -> str | None:
    name, _, formula = label.partition("=")
    name = name.strip().lower()
    return RATES.get(name) if "/" in formula else VALUES.get(name)

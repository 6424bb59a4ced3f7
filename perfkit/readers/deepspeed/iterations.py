"""What do the iteration lines of Megatron's log say?

They are ``iteration 1/ 5 | consumed samples: 2048 | elapsed time per iteration (ms): 76015.3 | ... | TFLOPs: 147.61 |``
with more or fewer fields, some with a time stamp; the settings stand before them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

LINE = re.compile(
    r"(?:\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)\]\s+)?\biteration +(\d{1,12})/ *\w+ \|"
    r"(.*elapsed time per iteration \(ms\):.*)"
)
_FIELD = re.compile(r"([^|:]+): *(-?\d{1,18}(?:\.\d{1,9})?(?:e[+-]?\d\d?)?)", re.IGNORECASE)
_SETTINGS = {
    "world_size": re.compile(r"\busing world size: (\d{1,9})"),
    "seq_length": re.compile(r"\bseq_length \.{3,} (\d{1,9})"),
}
RATES = ("TFLOPs", "throughput per GPU (TFLOP/s/GPU)")  # both per GPU: megatron/training.py divides by the world size
LONGEST_MS = 10**9  # eleven days, well within int64 ns
_SECOND = 10**9

Row = tuple[int, str, float]  # time_ns, metric, value


@dataclass(frozen=True)
class Iteration:
    """One line: its number and fields, and when it was printed, ns since 1970, if it says so."""

    number: int
    stamp_ns: int | None
    fields: dict[str, Decimal]

    @property
    def dur_ns(self) -> int:
        """Time of an iteration, the mean since the line before."""
        return int(self.fields["elapsed time per iteration (ms)"] * 10**6)


@dataclass
class Training:
    """The iterations of a log, and the settings that it prints."""

    iterations: list[Iteration]
    settings: dict[str, int]

    @property
    def start_ns(self) -> int | None:
        """When the first line was printed, None unless all lines say it."""
        stamps = [iteration.stamp_ns for iteration in self.iterations]
        return stamps[0] if stamps and None not in stamps else None


def is_line(text: str) -> bool:
    """Say whether a text holds an iteration line."""
    return any(LINE.search(line) for line in text.splitlines() if "elapsed time per iteration" in line)


def training(lines: Sequence[str]) -> Training:
    """Return the iteration lines, each once though several ranks may print it."""
    found: dict[tuple[str, str], Iteration] = {}
    settings: dict[str, int] = {}
    for line in lines:
        if "elapsed time per iteration" in line and (match := LINE.search(line)):
            fields = {name.strip(): Decimal(value) for name, value in _FIELD.findall(match[3])}
            if 0 < fields.get("elapsed time per iteration (ms)", 0) < LONGEST_MS:
                found[match[2], match[3]] = Iteration(int(match[2]), _stamp(match[1]), fields)
        elif "world size" in line or "seq_length" in line:
            settings.update({name: int(told[1]) for name, said in _SETTINGS.items() if (told := said.search(line))})
    return Training(list(found.values()), settings)


def _stamp(printed: str | None) -> int | None:
    if printed is None:
        return None
    try:
        stamp = datetime.fromisoformat(printed).replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(stamp.timestamp()) * _SECOND + stamp.microsecond * 1000


def times(told: Training) -> list[int]:
    """Return when each line was printed, ns since the first: by its stamp, else by the time its iterations took."""
    start = told.start_ns
    if start is not None:
        return [(iteration.stamp_ns or start) - start for iteration in told.iterations]
    passed, now = [], 0
    for before, iteration in zip([None, *told.iterations], told.iterations, strict=False):
        steps = 0 if before is None else max(iteration.number - before.number, 1)
        now += steps * iteration.dur_ns
        passed.append(now)
    return passed


def rows(told: Training) -> list[Row]:
    """Return the metrics of every line, and the number of GPUs at its first."""
    found: list[Row] = []
    for time_ns, iteration in zip(times(told), told.iterations, strict=True):
        found += [(time_ns, metric, float(value)) for metric, value in _metrics(iteration, told.settings).items()]
    if found and "world_size" in told.settings:
        found.append((0, "world_size_count", float(told.settings["world_size"])))
    return found


def _metrics(iteration: Iteration, settings: dict[str, int]) -> dict[str, Decimal]:
    """Return what a line says; samples/s is the global batch over the time of an iteration, as Megatron prints it."""
    fields = iteration.fields
    metrics = {"iteration_ns": Decimal(iteration.dur_ns)}
    batch = fields.get("global batch size")
    samples = fields.get("samples per second", batch * _SECOND / iteration.dur_ns if batch else None)
    if samples is not None:
        metrics["samples_per_s"] = samples
        length = fields.get("actual seqlen", settings.get("seq_length"))
        if length is not None:
            metrics["tokens_per_s"] = samples * length
    rate = next((fields[name] for name in RATES if name in fields), None)
    if rate is not None:
        metrics["training_flops_per_s"] = rate.scaleb(12)
    return metrics

"""What do the iteration lines of Megatron's log say?

They are ``iteration 1/ 5 | consumed samples: 2048 | elapsed time per iteration (ms): 76015.3 | ... | TFLOPs: 147.61 |``
with more or fewer fields, some with a time stamp; the settings stand before them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from statistics import median

LINE = re.compile(
    r"(?:\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)\]\s+)?\biteration +(\d{1,12})/ *(\w+) \|"
    r"(.*elapsed time per iteration \(ms\):.*)"
)
_FIELD = re.compile(r"([^|:]{1,100}): *(-?\d{1,18}(?:\.\d{1,9})?(?:e[+-]?\d\d?)?)", re.IGNORECASE)
_SETTINGS = {
    "world_size": re.compile(r"\busing world size: (\d{1,9})"),
    "seq_length": re.compile(r"\bseq_length \.{3,} (\d{1,9})"),
}
_SIGN = "elapsed time per iteration"
_BEGIN = re.compile(r"\biteration +\d{1,12}/ *\w+ \|")
_DIGITS = 12
RATES = ("TFLOPs", "throughput per GPU (TFLOP/s/GPU)")  # both per GPU: megatron/training.py divides by the world size
LONGEST_MS = 10**9  # eleven days, well within int64 ns
TEN_YEARS_NS = 10 * 366 * 86_400 * 10**9
LATEST_NS = 2**62  # in the year 2116
_SECOND = 10**9

Row = tuple[int, str, float]  # time_ns, metric, value


@dataclass(frozen=True)
class Iteration:
    """One line: its iteration of how many, its place and fields, and when it was printed, ns since 1970."""

    number: int
    of: int | None
    line: int
    stamp_ns: int | None
    fields: dict[str, Decimal]

    @property
    def dur_ns(self) -> int:
        """Time of an iteration, the mean since the line before."""
        return int(self.fields["elapsed time per iteration (ms)"] * 10**6)


@dataclass
class Training:
    """The iterations of a log, the settings that it prints, and which of its lines are damaged or misdated."""

    iterations: list[Iteration]
    settings: dict[str, int]
    damaged: list[int] = field(default_factory=list)
    misdated: list[int] = field(default_factory=list)

    @property
    def start_ns(self) -> int | None:
        """When the first line was printed, None unless all lines say it."""
        stamps = [iteration.stamp_ns for iteration in self.iterations]
        return stamps[0] if stamps and None not in stamps and not self.misdated else None


def is_line(text: str) -> bool:
    """Say whether a text holds an iteration line."""
    return any(LINE.search(line) for line in text.splitlines() if "elapsed time per iteration" in line)


def training(lines: Sequence[str]) -> Training:
    """Return the iteration lines, each once though several ranks may print it."""
    found: dict[tuple[str, str], Iteration] = {}
    read = Training([], {})
    for number, line in enumerate(lines, 1):
        if "iteration" in line and (_SIGN in line or _BEGIN.search(line)):
            match = LINE.search(line)
            iteration = _iteration(match, number) if match else None
            if match and iteration:
                found[match[2], match[4]] = iteration
                read.misdated += [number] if match[1] and iteration.stamp_ns is None else []
            else:
                read.damaged.append(number)
        elif "world size" in line or "seq_length" in line:
            settings = {name: int(told[1]) for name, said in _SETTINGS.items() if (told := said.search(line))}
            read.settings.update(settings)
    read.iterations = list(found.values())
    read.misdated += _far(read.iterations)
    return read


def _iteration(match: re.Match[str], line: int) -> Iteration | None:
    """Return what a line says, None if its numbers cannot be."""
    number, of = int(match[2]), int(match[3]) if match[3].isdecimal() and len(match[3]) <= _DIGITS else None
    fields = {name.strip(): Decimal(value) for name, value in _FIELD.findall(match[4])}
    iteration = Iteration(number, of, line, _stamp(match[1]), fields)
    elapsed = fields.get("elapsed time per iteration (ms)", 0)
    return iteration if 0 < elapsed < LONGEST_MS and iteration.dur_ns and number <= (of or number) else None


def _stamp(printed: str | None) -> int | None:
    if printed is None:
        return None
    try:
        stamp = datetime.fromisoformat(printed).replace(tzinfo=UTC)
    except ValueError:
        return None
    ns = int(stamp.timestamp()) * _SECOND + stamp.microsecond * 1000
    return ns if abs(ns) < LATEST_NS else None


def _far(iterations: Sequence[Iteration]) -> list[int]:
    """Return the lines whose stamp is years from the others: that clock was not set."""
    stamps = [iteration.stamp_ns for iteration in iterations if iteration.stamp_ns is not None]
    usual = median(stamps) if stamps else 0
    far = (i for i in iterations if i.stamp_ns is not None and abs(i.stamp_ns - usual) > TEN_YEARS_NS)
    return [iteration.line for iteration in far]


def notes(told: Training) -> list[str]:
    """Return what a reader should know of lines that are damaged, misdated or not there."""
    found = []
    if told.start_ns is not None:
        found.append("its time stamps are local time without a zone, taken as UTC")
    if told.damaged:
        where = f"{len(told.damaged)}, first in line {told.damaged[0]}"
        found.append(f"iteration lines that are not whole, or whose numbers cannot be, are left out ({where})")
    if told.misdated:
        where = f"{len(told.misdated)}, first in line {min(told.misdated)}"
        found.append(f"time stamps that cannot be ({where}): times are the sums of the iterations instead")
    return found + _lacking(told.iterations)


def _lacking(iterations: Sequence[Iteration]) -> list[str]:
    """Return notes on iterations that should be in the log: its lines come every n-th iteration, up to the last."""
    pairs = list(pairwise(iterations))
    steps = Counter(after.number - before.number for before, after in pairs if after.number > before.number)
    usual = steps.most_common(1)[0][0] if steps else 1
    found = []
    if steps and steps[usual] > 1:
        gaps = [(before, after) for before, after in pairs if after.number - before.number > usual]
        if gaps:
            count = sum((after.number - before.number - 1) // usual for before, after in gaps)
            where = f"{count}, first between {gaps[0][0].number} and {gaps[0][1].number}, line {gaps[0][1].line}"
            found.append(f"lines of iterations are missing ({where})")
    last = iterations[-1] if iterations else None
    if last and last.of and last.of - last.number >= usual:
        found.append(f"the log ends at iteration {last.number} of {last.of}")
    return found


def times(told: Training) -> list[int]:
    """Return when each line was printed, ns since the first: by its stamp, else by the time its iterations took."""
    start = told.start_ns
    if start is not None:
        return [(iteration.stamp_ns or start) - start for iteration in told.iterations]
    passed, now = [], 0
    for before, iteration in zip([None, *told.iterations], told.iterations, strict=False):
        steps = 0 if before is None else max(iteration.number - before.number, 1)
        longer = steps * iteration.dur_ns
        # No run takes ten years: then the number of this iteration is not to be trusted.
        now = min(now + (longer if now + longer < TEN_YEARS_NS else iteration.dur_ns), TEN_YEARS_NS)
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

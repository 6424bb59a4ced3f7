"""Training throughput: the report of DeepSpeed's Flops Profiler, and the iteration lines of Megatron's log.

Set ``"flops_profiler": {"enabled": true, "profile_step": 10}, "wall_clock_breakdown": true`` in
DeepSpeed's configuration and keep what the program prints (or set ``"output_file"``); Megatron
prints an iteration line every ``--log-interval`` steps, with the rate for ``--log-throughput``.
Tried with reports of DeepSpeed 0.3 to 0.16 and lines of Megatron-DeepSpeed and Megatron-LM. All
figures but samples and tokens per second are per GPU.

A report has lines ``label:   value unit``; labels and units differ between versions. The tree of modules below them
holds ``(name): Class(`` with ``1.05 M = 0.31% Params, 10.74 GMACs = 0.34% MACs, 182.39 us = 0.24% latency``, in
older versions with commas. Rates of modules are not read: those of short ones exceed what the GPU can do, since the
profiler estimates their operations. Iteration lines are ``iteration 1/ 5 |
consumed samples: 2048 | elapsed time per iteration (ms): 76015.3 | ... | TFLOPs: 147.61 |`` with more or fewer fields,
some with a time stamp; the settings stand before them.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from statistics import median

import pandas as pd

from perfkit import tables
from perfkit.errors import ReadError
from perfkit.logs.text import LATEST_NS, TEN_YEARS_NS, lines
from perfkit.profile import Missing, Profile
from perfkit.readers.text import capture_table, content, csv_rows, head

VERSION = 5
KIND = "training"
LARGEST = 4 * 10**9
READS = "a report of DeepSpeed's Flops Profiler, a Megatron log"
SHARES = True
LOOKED_AT = (
    200_000  # bytes at the start and at the end: programs print much before their first iteration
)
NO_BACKWARD = Missing(
    "SAMPLES.backward_ns",
    "How long did the backward pass, the step and the iteration take?",
    '"wall_clock_breakdown": true for DeepSpeed',
)

# Reports of the Flops Profiler
TITLE = re.compile(r"-{5,} DeepSpeed Flops Profiler -{5,}")
SUMMARY_END = re.compile(r"-{5,} (?:Aggregated|Detailed) Profile")
LABELLED = re.compile(
    r"\s*(\S.*?):\s+(-?\d{1,18}(?:\.\d{1,9})?(?:e[+-]?\d\d?)?)(?:\s+(\w+))?\s*",
    re.IGNORECASE,
)
POWERS = {
    "": 0,
    "K": 3,
    "k": 3,
    "M": 6,
    "G": 9,
    "B": 9,
    "T": 12,
    "P": 15,
    "m": -3,
    "u": -6,
    "n": -9,
}
NANO = 9
# Labels up to "=", in lower case: of reports since 0.4, and of those before.
VALUES = {row["name"]: row["metric"] for row in csv_rows(__file__, "deepspeed.csv")}
RATES = {  # labels that divide by a time after their "="
    "fwd flops per gpu": "forward_flops_per_s",
    "bwd flops per gpu": "backward_flops_per_s",
    "fwd+bwd flops per gpu": "training_flops_per_s",
}

# A module: its indentation, attribute and class; what follows begins with its figures, or they
# stand on the next line.
MODULE = re.compile(r"( *)(?:\(([^()]{1,200})\): +)?([A-Za-z_]\w{0,200})\((.*)")
OF_MODULE = re.compile(
    r"\s*(\d{1,15}(?:\.\d{1,9})?) *([KkMGBT]?)(?:,| +=) +\S+% +Params, +"
    r"(\d{1,15}(?:\.\d{1,9})?) *([KkMGTP]?)MACs(?:,| +=) +\S+% +MACs, +"
    r"(\d{1,6}(?:\.\d{1,9})?) *([mun]?)s(?:,| +=) +\S+% +latency,"
)
FIGURES = re.compile(r"% +(?:Params|latency)\b")  # in each line with the figures of a module

# Lines of Megatron
ITERATION = re.compile(
    r"(?:\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)\]\s+)?\biteration +(\d{1,12})/ *(\w+) \|"
    r"(.*elapsed time per iteration \(ms\):.*)"
)
# "hip mem usage/free/total/usage_ratio: 153.81GB/102.17GB/255.98GB/60.09%" of Primus, per GPU.
MEMORY = re.compile(
    r"\bmem usage/free/total/usage_ratio: *"
    r"(\d{1,9}(?:\.\d{1,9})?)GB/[\d.]{1,20}GB/(\d{1,9}(?:\.\d{1,9})?)GB/"
)
MEMORY_METRICS = ("memory_used_bytes", "memory_total_bytes")
PER_GPU = "tokens per GPU (tokens/s/GPU)"
FIELD = re.compile(r"([^|:]{1,100}): *(-?\d{1,18}(?:\.\d{1,9})?(?:e[+-]?\d\d?)?)", re.IGNORECASE)
SETTINGS = {
    "world_size": re.compile(r"\busing world size: (\d{1,9})"),
    "seq_length": re.compile(r"\bseq_length \.{3,} (\d{1,9})"),
}
OF_RANKS = re.compile(r"\[rank-\d{1,9}/(\d{1,9})\]")  # what Primus writes before each line
SIGN = "elapsed time per iteration"
BEGIN = re.compile(r"\biteration +\d{1,12}/ *\w+ \|")
DIGITS = 12
# Both per GPU: megatron/training.py divides by the world size.
TRAINING_RATES = ("TFLOPs", "throughput per GPU (TFLOP/s/GPU)")
LONGEST_MS = 10**9  # eleven days, well within int64 ns
SECOND = 10**9

Row = tuple[int, str, float]  # time_ns, metric, value


def sniff(path: Path) -> bool:
    """Say whether `path` holds a report or iteration lines, near its start or its end."""
    try:
        if not path.is_file():
            return False
        ends = [head(path, LOOKED_AT)]
        with path.open("rb") as file:
            file.seek(max(LOOKED_AT, path.stat().st_size - LOOKED_AT))
            ends.append(file.read(LOOKED_AT))
    except OSError:
        return False
    texts = [end.decode("utf-8", errors="replace") for end in ends]
    iterations = (line for text in texts for line in text.splitlines() if SIGN in line)
    return any(TITLE.search(text) for text in texts) or any(
        ITERATION.search(line) for line in iterations
    )


def read(path: Path) -> Profile:
    """Open a report or a log.

    SAMPLES with gpu -1: per iteration line `iteration_ns`, `samples_per_s`, `tokens_per_s` where
    the sequence length is known or the line says them, `training_flops_per_s` and the memory of a
    GPU, at the line's time stamp or, where lines have none, at the time their iterations took since
    the first line; at time 0 what the last report says beside these. MODULES are those of the last
    report.
    """
    text = content(path).decode(errors="replace")
    printed, notes = lines(text, path, is_whole=lambda line: line.rstrip().endswith("|"))
    training = _training(printed)
    # The metrics of every line, and the number of GPUs at its first.
    rows: list[Row] = []
    for time_ns, iteration in zip(_times(training), training.iterations, strict=True):
        rows += [
            (time_ns, metric, float(value))
            for metric, value in _figures(iteration, training.settings).items()
        ]
    if rows and "world_size" in training.settings:
        rows.append((0, "world_size_count", float(training.settings["world_size"])))
    timed = {metric for _, metric, _ in rows}
    titles = [
        number
        for number, line in enumerate(printed)
        if "Flops Profiler" in line and TITLE.search(line)
    ]
    rows += (
        [row for row in _report_rows(printed, titles, notes) if row[1] not in timed]
        if titles
        else []
    )
    if not rows:
        raise ReadError(
            f"{path}: a title of DeepSpeed's Flops Profiler and no figure after it. "
            "Let the program run past the step that is profiled."
        )
    frame = pd.DataFrame(rows, columns=["time_ns", "metric", "value"])
    samples = tables.SAMPLES.make(frame.assign(rank=0, gpu=-1))
    modules = _modules(printed, titles[-1], notes) if titles else tables.MODULES.empty()
    notes += _training_notes(training)
    missing = (NO_BACKWARD,) if titles and not samples["metric"].eq("backward_ns").any() else ()
    tool = "DeepSpeed" if titles else "Megatron"
    capture = capture_table(
        path, tool, t0_unix_ns=training.start_ns, dur_ns=samples["time_ns"].max()
    )
    loaders = {"SAMPLES": samples.copy, **({"MODULES": modules.copy} if len(modules) else {})}
    return Profile("deepspeed", path, capture, loaders, missing, tuple(notes))


def _report_rows(printed: list[str], titles: list[int], notes: list[str]) -> list[Row]:
    """Return the figures of the last report, at time 0; reports begin with the lines of these numbers."""
    report = _last_report(printed[titles[-1] :])
    if len(titles) > 1:
        notes.append(f"{len(titles)} reports of the Flops Profiler: the last one is read")
    if report.impossible:
        notes.append(f"left out as impossible (0 or negative): {', '.join(report.impossible)}")
    if report.unreadable:
        notes.append(
            f"left out, their value is no number with a unit: {', '.join(report.unreadable)}"
        )
    if not report.whole:
        notes.append("the report ends within its summary")
    return [(0, metric, value) for metric, value in report.figures.items()]


@dataclass
class Report:
    """The figures of a report, in the metrics' units; what was left out; whether its summary is whole."""

    figures: dict[str, float] = field(default_factory=dict)
    impossible: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    whole: bool = False


def _last_report(printed: Sequence[str]) -> Report:
    """Return what the report that begins with the first of these lines says."""
    report = Report()
    for label, value in _pairs(printed[1:], _prefix(printed[0]), report):
        metric = _metric(label)
        if metric is None:
            continue
        if value < 0 or (value == 0 and not metric.endswith("_count")):
            report.impossible.append(label)
        elif (
            value or metric not in report.figures
        ):  # the model has 0 parameters where there is no engine to tell
            report.figures[metric] = float(value.scaleb(NANO) if metric.endswith("_ns") else value)
    return report


def _prefix(title: str) -> re.Pattern[str]:
    """Return what a launcher writes before each line, by the line of the title; its numbers may change."""
    found = TITLE.search(title)
    return re.compile(re.sub(r"\d+", r"\\d+", re.escape(title[: found.start()] if found else "")))


def _pairs(
    printed: Iterable[str], prefix: re.Pattern[str], report: Report
) -> Iterable[tuple[str, Decimal]]:
    """Yield label and value in base units, up to the end of the summary."""
    for line in printed:
        if SUMMARY_END.search(line) or TITLE.search(line):
            report.whole = True
            return
        start = prefix.match(line)
        begin = start.end() if start else 0
        pair = LABELLED.fullmatch(line, begin)
        power = re.sub(r"(?:FLOPS|FLOPs|MACs|s)$", "", pair[3] or "") if pair else ""
        if pair and power in POWERS:
            yield pair[1], Decimal(pair[2]).scaleb(POWERS[power])
        elif ":" in line:
            label = line[begin:].partition(":")[0].strip()
            report.unreadable += [label] if _metric(label) else []


def _tree(printed: Sequence[str], title: int) -> list[tuple[int, str]]:
    """Return the lines of the report whose title stands there, with their numbers, without blank ones and tabs."""
    prefix = _prefix(printed[title])
    lines = []
    for number, line in enumerate(printed[title:], title + 1):
        begin = prefix.match(line)
        text = line[begin.end() :].expandtabs() if begin else ""
        if text.strip():
            lines.append((number, text))
    return lines


def _modules(printed: Sequence[str], title: int, notes: list[str]) -> pd.DataFrame:
    """Return the modules of the report whose title stands there, MODULES; those without figures have no row."""
    rows: list[dict[str, object]] = []
    around: list[tuple[int, int, str]] = []  # indentation, number and name of the modules around
    tree = _tree(printed, title)
    torn = {number for number, text in tree if FIGURES.search(text)}
    for (number, text), (next_number, below) in pairwise([*tree, (0, "")]):
        found = MODULE.fullmatch(text)
        if not found or (rows and not found[2]):  # the first one alone has no name
            continue
        while around and around[-1][0] >= len(found[1]):
            around.pop()
        parent, outer = around[-1][1:] if around else (-1, "")
        name = ".".join(filter(None, (outer, found[2])))
        inside = OF_MODULE.match(found[4])
        figures = inside or OF_MODULE.match(below)
        around.append((len(found[1]), len(rows) if figures else parent, name))
        if figures:
            torn.discard(number if inside else next_number)
            count, macs, time = (
                Decimal(figures[i]).scaleb(POWERS[figures[i + 1]]) for i in (1, 3, 5)
            )
            place = {
                "rank": 0,
                "module": len(rows),
                "parent": parent,
                "name": name,
                "kind": found[3],
            }
            work = {"parameters_count": float(count), "forward_flops": float(2 * macs)}
            rows.append({**place, **work, "forward_ns": int(time.scaleb(NANO))})
    if torn:
        where = f"{len(torn)} lines, first line {min(torn)}"
        notes.append(f"figures of modules in lines that are not whole are left out ({where})")
    return tables.MODULES.make(pd.DataFrame(rows, columns=tables.MODULES.column_names))


def _metric(label: str) -> str | None:
    name, _, formula = label.partition("=")
    name = name.strip().lower()
    return RATES.get(name) if "/" in formula else VALUES.get(name)


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


def _training(printed: Sequence[str]) -> Training:
    """Return the iteration lines, each once though several ranks may print it."""
    iterations: dict[tuple[str, str], Iteration] = {}
    training = Training([], {})
    for number, line in enumerate(printed, 1):
        if "iteration" in line and (SIGN in line or BEGIN.search(line)):
            match = ITERATION.search(line)
            iteration = _iteration(match, number) if match else None
            if match and iteration:
                iterations[match[2], match[4]] = iteration
                ranks = OF_RANKS.search(line, 0, match.start())
                if ranks:
                    training.settings.setdefault("world_size", int(ranks[1]))
                training.misdated += [number] if match[1] and iteration.stamp_ns is None else []
            else:
                training.damaged.append(number)
        elif "world size" in line or "seq_length" in line:
            settings = {
                name: int(value[1])
                for name, pattern in SETTINGS.items()
                if (value := pattern.search(line))
            }
            training.settings.update(settings)
    training.iterations = list(iterations.values())
    # The lines whose stamp is years from the others: that clock was not set.
    stamps = [
        iteration.stamp_ns for iteration in training.iterations if iteration.stamp_ns is not None
    ]
    usual = median(stamps) if stamps else 0
    far = (
        i
        for i in training.iterations
        if i.stamp_ns is not None and abs(i.stamp_ns - usual) > TEN_YEARS_NS
    )
    training.misdated += [iteration.line for iteration in far]
    return training


def _iteration(match: re.Match[str], line: int) -> Iteration | None:
    """Return what a line says, None if its numbers cannot be."""
    number, of = (
        int(match[2]),
        int(match[3]) if match[3].isdecimal() and len(match[3]) <= DIGITS else None,
    )
    fields = {name.strip(): Decimal(value) for name, value in FIELD.findall(match[4])}
    memory = MEMORY.search(match[4])
    if memory:
        fields |= {
            name: Decimal(value).scaleb(9)
            for name, value in zip(MEMORY_METRICS, memory.groups(), strict=True)
        }
    iteration = Iteration(number, of, line, _stamp(match[1]), fields)
    elapsed = fields.get("elapsed time per iteration (ms)", 0)
    return (
        iteration
        if 0 < elapsed < LONGEST_MS and iteration.dur_ns and number <= (of or number)
        else None
    )


def _stamp(printed: str | None) -> int | None:
    if printed is None:
        return None
    try:
        stamp = datetime.fromisoformat(printed).replace(tzinfo=UTC)
    except ValueError:
        return None
    ns = int(stamp.timestamp()) * SECOND + stamp.microsecond * 1000
    return ns if abs(ns) < LATEST_NS else None


def _training_notes(training: Training) -> list[str]:
    """Return what a reader should know of lines that are damaged, misdated or not there."""
    notes = []
    if training.start_ns is not None:
        notes.append("its time stamps are local time without a zone, taken as UTC")
    if training.damaged:
        where = f"{len(training.damaged)}, first in line {training.damaged[0]}"
        notes.append(
            "iteration lines that are not whole, or whose numbers cannot be, are left out "
            f"({where})"
        )
    if training.misdated:
        where = f"{len(training.misdated)}, first in line {min(training.misdated)}"
        notes.append(
            f"time stamps that cannot be ({where}): times are the sums of the iterations instead"
        )
    return notes + _lacking(training.iterations)


def _lacking(iterations: Sequence[Iteration]) -> list[str]:
    """Return notes on iterations that should be in the log: its lines come every n-th iteration, up to the last."""
    pairs = list(pairwise(iterations))
    steps = Counter(
        after.number - before.number for before, after in pairs if after.number > before.number
    )
    usual = steps.most_common(1)[0][0] if steps else 1
    notes = []
    if steps and steps[usual] > 1:
        gaps = [(before, after) for before, after in pairs if after.number - before.number > usual]
        if gaps:
            count = sum((after.number - before.number - 1) // usual for before, after in gaps)
            where = (
                f"{count}, first between {gaps[0][0].number} and {gaps[0][1].number}, line "
                f"{gaps[0][1].line}"
            )
            notes.append(f"lines of iterations are missing ({where})")
    last = iterations[-1] if iterations else None
    if last and last.of and last.of - last.number >= usual:
        notes.append(f"the log ends at iteration {last.number} of {last.of}")
    return notes


def _times(training: Training) -> list[int]:
    """Return when each line was printed, ns since the first: by its stamp, else by the time its iterations took."""
    start = training.start_ns
    if start is not None:
        return [(iteration.stamp_ns or start) - start for iteration in training.iterations]
    times, now = [], 0
    for before, iteration in zip([None, *training.iterations], training.iterations, strict=False):
        steps = 0 if before is None else max(iteration.number - before.number, 1)
        longer = steps * iteration.dur_ns
        # No run takes ten years: then the number of this iteration is not to be trusted.
        now = min(now + (longer if now + longer < TEN_YEARS_NS else iteration.dur_ns), TEN_YEARS_NS)
        times.append(now)
    return times


def _figures(iteration: Iteration, settings: dict[str, int]) -> dict[str, Decimal]:
    """Return what a line says; samples/s is the global batch over the time of an iteration, as Megatron prints it."""
    fields = iteration.fields
    metrics = {"iteration_ns": Decimal(iteration.dur_ns)}
    batch = fields.get("global batch size")
    samples = fields.get("samples per second", batch * SECOND / iteration.dur_ns if batch else None)
    if samples is not None:
        metrics["samples_per_s"] = samples
        length = fields.get("actual seqlen", settings.get("seq_length"))
        if length is not None:
            metrics["tokens_per_s"] = samples * length
    if "tokens_per_s" not in metrics and PER_GPU in fields and "world_size" in settings:
        metrics["tokens_per_s"] = fields[PER_GPU] * settings["world_size"]
    metrics |= {name: fields[name] for name in MEMORY_METRICS if name in fields}
    rate = next((fields[name] for name in TRAINING_RATES if name in fields), None)
    if rate is not None:
        metrics["training_flops_per_s"] = rate.scaleb(12)
    return metrics

"""A comparison of runs as text, JSON and a page, and one of published figures with those of a run."""

import json
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from perfkit import charts
from perfkit.analysis import compare
from perfkit.analysis.compare.resampling import UNKNOWN
from perfkit.analysis.grouping import speedup_bounds
from perfkit.diagnosis import comparison, explained, figures, verdict
from perfkit.diagnosis.comparison import Comparison
from perfkit.diagnosis.finding import Finding
from perfkit.diagnosis.predicted import Outcome, calibration, outcome
from perfkit.diagnosis.sides import Side, any_ahead, clocked, other_steps, side
from perfkit.errors import PerfkitError
from perfkit.format import Shown, duration, elided, number, percent, printable
from perfkit.report import html, markdown, output
from perfkit.report.blocks import note, refusals
from perfkit.report.machine import Machine, named
from perfkit.report.output import TEXT
from perfkit.run import Run
from perfkit.selection import Selection
from perfkit.settings import finite, json_object

MOST_LINES, MOST_CAUTIONS = 8, 5  # in a text or in Markdown
# What the analysis behind the published DLRM summary calls each figure, what to divide its value by, and its name.
PUBLISHED = {
    "host_time": ("cpu_time", 1, "CPU time"),
    "gpu_time": ("gpu_time", 1, "GPU operations"),
    "kernel_time": ("kernel_time", 1, "Kernel time"),
    "copy_time": ("copy_time", 1, "Copy time"),
    "launches": ("total_kernels", 1, "Kernel launches"),
    "copies": ("total_transfers", 1, "Copies"),
    "gpu_share": (
        "gpu_utilization_pct",
        100,
        "GPU time over CPU thread time plus GPU time (no utilisation)",
    ),
    "copy_share": ("copy_percentage", 100, "Copies in kernel and copy time"),
    "mean_kernel_time": ("avg_kernel_time_us", 1_000_000, "Mean kernel"),
    "launch_overhead": (
        "kernel_overhead_pct",
        100,
        "5 µs per launch over kernel time (no overhead)",
    ),
}
COLUMNS = {
    "tree_sum": "sum over the tree",
    "main_thread": "main thread only",
    "all_threads": "true: all threads",
}
PERCENT = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*%")
FACTOR = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*x\s*$", re.IGNORECASE)
LONGEST = 60  # characters of a label or figure's name in a terminal
LONGEST_TITLE = 160  # characters of a finding's title
LONGEST_SENTENCE = 1000  # characters of the verdict
SCHEMA = 1  # of its content: goes up when a key goes, or means something else
MADE_BY = "perfkit compare"  # in the marker of the folder
MARKDOWN = f"<!-- {MADE_BY} -->"  # what such a file begins with
# Rows in Markdown, which has at most 40 lines.
MOST_RUNS, MOST_FINDINGS = 4, 3
LEDGER_HEAD = (
    "run",
    "steps",
    "median step",
    "interval",
    "against the run before",
    "speed-up over the first",
)
TITLE = "Did the changes help?"
Note = Callable[[str], None]


@dataclass(frozen=True)
class Series:
    """Runs by their labels in the order of the changes, their ledger, and the last compared with the first.

    `lines` explain what the last step takes longer than the first, line by line of the ledger. `outcomes` say of each
    run but the first which findings came or went, and whether the prediction for the ones that went came true.
    """

    runs: Mapping[str, Sequence[Selection]]
    ledger: pd.DataFrame
    whole: Comparison
    lines: pd.DataFrame  # EXPLAINED
    outcomes: tuple[Outcome, ...]


def series(runs: Mapping[str, Sequence[Run | Selection]], *, peaks: str = "") -> Series:
    """Compare runs, by label with repeats, in the order of the changes; PerfkitError if the ends share nothing."""
    if len(runs) < 2:
        raise PerfkitError(
            f"compare: there is one run or label, {', '.join(map(_safe, runs))}. Give two, such as before and after."
        )
    views = {label: side(label, repeats).views for label, repeats in runs.items()}
    is_on_gpu = any_ahead(view for repeats in views.values() for view in repeats)
    by_label = {
        label: [clocked(view, is_on_gpu) for view in repeats] for label, repeats in views.items()
    }
    first, *_, last = views.values()
    whole = comparison.compared(first, last, peaks=peaks)
    utilisation = {}
    for label, repeats in views.items():  # the mean, where it is known of every repeat
        busy = [figures(view).get("device_busy_frac") for view in repeats]
        shares = [figure.value for figure in busy if figure]
        if len(shares) == len(busy):
            utilisation[label] = sum(shares) / len(shares)
    ledger = compare.ledger(by_label, utilisation=utilisation, noise=compare.NOISE)
    outcomes = tuple(_outcomes(list(views.values()), whole, peaks))
    lines = explained.lines(first, last)
    return Series(views, _untold(ledger, by_label), whole, lines, outcomes)


def _outcomes(
    views: Sequence[Sequence[Selection]], whole: Comparison, peaks: str
) -> Iterator[Outcome]:
    """Yield what came of the findings of each run in the next one; `whole` compares the ends."""
    for before, after in pairwise(views):
        is_whole = len(views) == 2
        found = whole if is_whole else verdict.attempted(before, after, peaks=peaks)
        yield outcome(before, after, found)


def _untold(ledger: pd.DataFrame, by_label: Mapping[str, Sequence[pd.DataFrame]]) -> pd.DataFrame:
    """Return a ledger with "cannot tell" where the steps of a run and of the one before it are not the same thing."""
    verdict, earlier = ledger["verdict"].astype("string"), Side([])
    for row, frames in enumerate(by_label.values()):
        if compare.series(frames):
            now = Side([], list(frames))
            if earlier.steps and any(other_steps(earlier, now)):
                verdict.iloc[row] = UNKNOWN
            earlier = now
    return compare.LEDGER.make(ledger.assign(verdict=verdict.astype("category")))


def text(series: Series) -> str:
    """Return a comparison for people: the verdict, the ledger of more than two runs, families and figures."""
    lines = [_line_of(label, _names(views)) for label, views in series.runs.items()]
    lines += ["", printable(verdict.sentence(series.whole), LONGEST_SENTENCE)]
    if len(series.runs) > 2:
        ledger = [_ledger_row(row) for row in series.ledger.to_dict("records")]
        lines += ["", *_aligned(LEDGER_HEAD, ledger)]
        first, last = (list(series.runs)[at] for at in (0, -1))
        lines += ["", f"{_safe(last)} against {_safe(first)}:"]
    moved = []
    for row in series.whole.families.to_dict("records"):
        ends = verdict.spoken_ratio(row["ratio"], row["ratio_low"], row["ratio_high"])
        moved.append(
            (
                row["family"],
                duration(row["before_ns"]),
                duration(row["after_ns"]),
                ends,
                row["verdict"],
            )
        )
    unit = "per step" if len(series.whole.steps) else "in all"
    if moved:
        lines += [
            "",
            *_aligned((f"kernel time {unit}", "before", "after", "ratio", "verdict"), moved),
        ]
    if len(series.lines):
        head = (f"time of a GPU per {series.whole.unit}", "before", "after", "difference")
        lines += ["", *_aligned(head, explained_rows(series.lines))]
    lines += _with_gap(_told(series))
    rows = verdict.side_rows(series.whole)[["figure", "before", "after", "ratio", "verdict"]]
    if len(rows):
        lines += ["", *_aligned(tuple(rows.columns), rows.itertuples(index=False))]
    missing = [
        f"unknown: {r.question} {r.reason}; record: {r.record}" for r in series.whole.refusals
    ]
    return "\n".join([*lines, "", *(printable(line, 500) for line in missing)]).rstrip()


def _line_of(label: str, names: Iterable[str]) -> str:
    """Return the line that says which runs a label stands for; a run's own name stands once."""
    shown = _safe(label)
    runs = ", ".join(names)
    return shown if runs == shown else f"{shown}: {runs}"


def _ledger_row(row: Mapping[Any, Any]) -> tuple[str, ...]:
    """Return a row of LEDGER as text, under LEDGER_HEAD."""
    against = f"{number(row['ratio'])} {row['verdict']}" if pd.notna(row["ratio"]) else ""
    ends = [row["step_low_ns"], row["step_high_ns"]]
    between = " to ".join(map(duration, ends)) if pd.notna(ends[0]) else "none"
    count, step = f"{row['count']:,}", duration(row["step_ns"])
    return str(row["label"]), count, step, between, against, number(row["speedup"])


def _with_gap(lines: list[str]) -> list[str]:
    return ["", *lines] if lines else []


def _told(series: Series) -> list[str]:
    """Return which findings came or went from run to run, and what came true of their predictions."""
    lines = [*_moved(series), *_promised(series)]
    return [*lines, calibration(series.outcomes)] if lines else []


def _moved(series: Series) -> Iterator[str]:
    """Yield a line for each finding that came or went."""
    for label, one in zip(list(series.runs)[1:], series.outcomes, strict=True):
        for word, findings in (("went", one.went), ("came", one.came)):
            for finding in findings:
                gain = f" (predicted: {finding.gain.text})" if word == "went" else ""
                yield f"{_safe(label)}: {word}: {_safe_title(finding.title)}{gain}"


def _promised(series: Series) -> Iterator[str]:
    """Yield a line for each run whose earlier one predicted a gain."""
    for label, one in zip(list(series.runs)[1:], series.outcomes, strict=True):
        if one.text:
            yield f"{_safe(label)}: {one.text}"


def _safe_title(title: str) -> str:
    return printable(title, LONGEST_TITLE)


def explained_rows(lines: pd.DataFrame) -> list[tuple[str, str, str, str]]:
    """Return EXPLAINED as text: the lines that moved most, all others as one, and the sum, which is the mean step."""
    values = ["before_ns", "after_ns", "difference_ns"]
    first, rest = lines.iloc[:MOST_LINES], lines.iloc[MOST_LINES:]
    rows = [(_line_name(row), *(row[name] for name in values)) for row in first.to_dict("records")]
    if len(rest):
        rows.append((f"{len(rest):,} other lines", *rest[values].sum()))
    rows.append(("in all", *lines[values].sum()))
    return [(name, duration(old), duration(new), _signed(moved)) for name, old, new, moved in rows]


def _line_name(row: Mapping[Any, Any]) -> str:
    """Return what a line of the ledger is called: kind, cause and owner."""
    parts = [str(row[name]).replace("_", " ") for name in ("kind", "cause")]
    return ", ".join([*parts, *([str(row["owner"])] if row["owner"] else [])])


def _signed(ns: float) -> str:
    return f"{'-' if ns < 0 else '+'}{duration(abs(ns))}"


def _names(views: Sequence[Selection]) -> Iterator[str]:
    for view in views:
        yield ", ".join(_safe(str(path).rpartition("/")[2]) for path in view.run.capture["path"])


def _aligned(head: tuple[str, ...], rows: Iterator[Any] | Sequence[Any]) -> list[str]:
    """Return rows of text under their head, in columns."""
    lines = [head, *(tuple(map(_safe, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def as_json(series: Series) -> str:
    """Return labels, verdict, ledger and all frames of the comparison as JSON; numbers that are none are null."""
    whole = series.whole
    frames = {
        name: getattr(whole, name)
        for name in ("steps", "families", "kernels", "launches", "paths", "samples")
    }
    content = {
        "schema": SCHEMA,
        "labels": list(series.runs),
        "verdict": verdict.sentence(whole),
        "confidence": whole.confidence,
        "cautions": list(whole.cautions),
        "refusals": [asdict(refusal) for refusal in whole.refusals],
        "ledger": _records(series.ledger),
        "unit": whole.unit,
        "lines": _records(series.lines),
        "findings": [_outcome_record(one) for one in series.outcomes],
        "figures": _records(whole.figures),
        **{name: _records(frame) for name, frame in frames.items()},
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def _outcome_record(one: Outcome) -> dict[str, Any]:
    """Return what came of the findings of one run in the next one."""
    ends = {"predicted": one.predicted, "speedup_interval": one.ends}
    known = {name: None if math.isnan(pair[0]) else list(pair) for name, pair in ends.items()}
    return {
        "went": [_finding_record(finding) for finding in one.went],
        "came": [_finding_record(finding) for finding in one.came],
        "speedup": None if math.isnan(one.speedup) else one.speedup,
        **known,
        "held": one.held,
    }


def _finding_record(finding: Finding) -> dict[str, Any]:
    gain = {"low": finding.gain.low, "high": finding.gain.high, "is_known": finding.gain.is_known}
    if not math.isfinite(finding.gain.high):
        gain["high"] = None  # type: ignore[assignment]
    return {"rule": finding.rule, "title": finding.title, "gain": gain}


def as_markdown(series: Series) -> str:
    """Return a comparison as Markdown for the comment of a pull request, at most 40 lines."""
    whole = series.whole
    first, *_, last = series.runs
    title = markdown.escaped(f"{last} against {first}")
    made = [MARKDOWN, f"### perfkit compare: {title}", "", _sentence(whole)]
    if len(series.runs) > 2:
        rows = [_ledger_row(row) for row in series.ledger.tail(MOST_RUNS).to_dict("records")]
        made += ["", *markdown.table(LEDGER_HEAD, rows)]
    if len(series.lines):
        head = (f"time of a GPU per {whole.unit}", "before", "after", "difference")
        made += ["", *markdown.table(head, explained_rows(series.lines))]
    moved, promised = list(_moved(series)), list(_promised(series))
    told = [*_shortened(moved), *promised[-MOST_FINDINGS:]]
    if told:
        told.append(calibration(series.outcomes))
    cautions = whole.cautions[:MOST_CAUTIONS]
    made += ["", *(f"- {markdown.escaped(line)}" for line in (*told, *cautions))]
    return "\n".join(made).rstrip() + "\n"


def _sentence(whole: Comparison) -> str:
    return markdown.escaped(verdict.sentence(whole), LONGEST_SENTENCE)


def _shortened(lines: list[str]) -> list[str]:
    """Return the first lines, and how many more there are."""
    most = 2 * MOST_FINDINGS
    more = len(lines) - most
    return [*lines[:most], *([f"and {more:,} more findings came or went"] if more > 0 else [])]


def _records(frame: pd.DataFrame) -> Any:
    return json.loads(frame.to_json(orient="records", double_precision=15))


def write(
    series: Series, out: Path, *, inputs: Iterable[Path] = (), note: Note = warnings.warn
) -> Path:
    """Write a page that needs no network, and a JSON file, to a new or earlier folder; return the page."""
    runs = [view.run for views in series.runs.values() for view in views]
    every = [*inputs, *(each.path for run in runs for each in run.profiles)]
    with output.replacing(out, MADE_BY, inputs=every, note=note) as made:
        hosts = {each.node for run in runs for each in run.profiles if each.node}
        paths = {str(number): path for number, path in enumerate(every, start=1)}
        machine = named(out, paths, hosts)
        (made / "comparison.json").write_text(machine.text(as_json(series)), **TEXT)
        (made / "index.html").write_text(_page(series, machine), **TEXT)
    return out / "index.html"


def _page(series: Series, machine: Machine) -> str:
    from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

    cells = [new_markdown_cell(f"# {TITLE}")]
    for heading, shown in _parts(series):
        cells += [new_markdown_cell(f"## {heading}")] if heading else []
        # What a notebook would store of a chart, or of something that is HTML.
        in_kinds = getattr(shown, "_repr_mimebundle_", None)
        bundle = in_kinds() if in_kinds else {"text/html": shown._repr_html_()}
        data = dict(bundle[0] if isinstance(bundle, tuple) else bundle)
        cells += [new_code_cell("", outputs=[new_output("display_data", data=data)])]
    first, *_, last = series.runs
    notebook = machine.value(new_notebook(cells=cells))
    return html.page(notebook, title=machine.text(f"{_safe(last)} against {_safe(first)}"))


def _parts(series: Series) -> Iterator[tuple[str, Shown | Any]]:
    """Yield what is on the page, under a heading where a new part begins."""
    whole, ledger = series.whole, series.ledger
    runs = pd.DataFrame([(label, ", ".join(_names(views))) for label, views in series.runs.items()])
    yield "", note(verdict.sentence(whole))
    yield "", charts.tables.show(runs.set_axis(["label", "run"], axis=1), caption="The runs")
    if ledger["step_ns"].notna().any():
        yield "Step time, one change at a time", charts.comparison.steps(ledger)
        columns = ["label", "count", "step_ns", "change_ns", "ratio", "verdict", "speedup"]
        yield (
            "",
            charts.tables.show(
                ledger, columns=columns, caption="The ledger: each run against the one before it"
            ),
        )
    if ledger["utilisation_frac"].notna().any():
        yield "GPU busy, one change at a time", charts.comparison.utilisation(ledger, of="GPU busy")
    if len(whole.families):
        per = "step" if len(whole.steps) else "run"
        yield (
            "Where kernel time moved, from the first to the last",
            charts.comparison.families(whole.families, per=per),
        )
        yield "", charts.comparison.intervals(whole.families, label="family")
    columns = ["figure", "before", "after", "ratio", "better", "verdict"]
    for place, line in enumerate(_told(series)):
        yield "" if place else "Findings that came or went, and what came true", note(line)
    rows = verdict.side_rows(whole)
    yield (
        "Figures of the first and the last",
        charts.tables.show(rows, columns=columns, rows=100, caption="Figures"),
    )
    yield "What was not answered", refusals(whole.refusals)


def _safe(label: object) -> str:
    """Return foreign text on one line, without characters that a terminal cannot take."""
    return elided(label, LONGEST)


NO_GAINS = "The published figures come without gains."


class Promise(NamedTuple):
    """A published gain: the share before and after, 0..1, and the factor it was said to give."""

    before: float
    after: float
    factor: float


def against_published(sums: pd.DataFrame, path: str = "") -> pd.DataFrame:
    """Return the figures of `analysis.calltree.tree_sums` as text, beside published ones if a file is given.

    `path`: a JSON file: an object of the figures' names in `sums` and their values (s, counts, fractions), or the
    ``metrics_data.json`` of the published DLRM analysis; empty for none. Raises PerfkitError if it holds none of them.
    """
    stall = "Stall {}, share of stalled samples"
    names = [
        PUBLISHED[n][2] if n in PUBLISHED else stall.format(n.removeprefix("stall_"))
        for n in sums["figure"]
    ]
    table = pd.DataFrame({"figure": names})
    if path:
        figures = published(Path(path))
        values = [figures.get(name, math.nan) for name in sums["figure"]]
        table["published"] = [
            _spoken(v, unit) for v, unit in zip(values, sums["unit"], strict=True)
        ]
    for column, heading in COLUMNS.items():
        table[heading] = [
            _spoken(v, unit) for v, unit in zip(sums[column], sums["unit"], strict=True)
        ]
    return table


def published(path: Path) -> dict[str, float]:
    """Return published figures by the names of `analysis.calltree.tree_sums`, from a JSON file; see there."""
    stored = json_object(path)
    metrics = stored.get("global_metrics", stored)
    source = metrics if isinstance(metrics, dict) else {}
    numbers = {
        name: number for name, value in source.items() if (number := finite(value)) is not None
    }
    found = {
        name: value
        for name, value in numbers.items()
        if name in PUBLISHED or name.startswith("stall_")
    }
    found |= {
        name: numbers[key] / per for name, (key, per, _) in PUBLISHED.items() if key in numbers
    }
    if "dominant_stall_pct" in numbers:
        found[f"stall_{source.get('dominant_stall_type')}"] = numbers["dominant_stall_pct"] / 100
    if not found:
        raise PerfkitError(
            f"{path}: holds none of the figures {', '.join(PUBLISHED)}. Name at least one of them."
        )
    return found


def _spoken(value: float, unit: str) -> str:
    if math.isnan(value):
        return "-"
    if unit == "s":
        return duration(value * 1e9)
    return (
        percent(value) if unit == "frac" else f"{value:,.0f}" if unit == "count" else number(value)
    )


def against_promised(path: str = "") -> Shown | None:
    """Return why the published gains cannot be multiplied, and what their shares allow; None without a file.

    `path`: a JSON file with `optimization_recommendations`: objects with `current` and `target` (text that begins with
    a percentage) and `potential_speedup` (such as 1.9x); empty for none. Raises PerfkitError if
    unreadable.
    """
    if not path:
        return None
    gains = promises(Path(path))
    if len(gains) > 1:
        return note(_judged(gains))
    return note("The published figures come with one gain." if gains else NO_GAINS)


def promises(path: Path) -> list[Promise]:
    """Return the published gains of a file; what does not read as one is left out."""
    items, gains = json_object(path).get("optimization_recommendations", {}), []
    for row in items.values() if isinstance(items, dict) else ():
        texts = (
            [str(row.get(k)) for k in ("current", "target", "potential_speedup")]
            if isinstance(row, dict)
            else []
        )
        read = [
            pattern.match(text)
            for pattern, text in zip((PERCENT, PERCENT, FACTOR), texts, strict=False)
        ]
        before, after, factor = [float(m[1]) if m else math.nan for m in read] or [math.nan] * 3
        if before <= 100 and after <= 100 and factor > 0:
            gains.append(Promise(before / 100, after / 100, factor))
    return gains


def _judged(gains: list[Promise]) -> str:
    factors = ", ".join(f"{number(gain.factor)}x" for gain in gains)
    product = math.prod(gain.factor for gain in gains)
    wrong = f"multiplied to {product:.1f}x, which is wrong: gains share the same time."
    sentences = [f"Published were gains of {factors}, {wrong}"]
    shares = [gain for gain in gains if gain.after < gain.before]
    if outcomes := len(gains) - len(shares):
        sentences.append(
            f"{outcomes} of them is utilisation, a result of the others: it counts them twice."
        )
    if shares:
        at_most = speedup_bounds(
            [g.before for g in shares], [1 - g.after / g.before for g in shares]
        ).high
        total = sum(gain.before for gain in shares)
        listed = " and ".join(percent(gain.before) for gain in shares)
        overlap = f", so that they overlap by {percent(total - 1)} at least" if total > 1 else ""
        allowed = f"together they allow {at_most:.2f}x at most"
        sentences.append(
            f"Shares of {listed} of the same time add up to {percent(total)}{overlap}; {allowed}."
        )
    return " ".join(sentences)

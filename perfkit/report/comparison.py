"""A comparison of runs as text, JSON and a page, and one of published figures with those of a run."""

import json
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pandas as pd

from perfkit import charts
from perfkit.analysis import compare
from perfkit.analysis.compare.resampling import UNKNOWN
from perfkit.analysis.grouping import speedup_bounds
from perfkit.diagnosis import comparison, explained, figures, verdict
from perfkit.diagnosis.check import BASELINE, BUDGET, ERROR, FAIL, PASS, Checked, Verdict
from perfkit.diagnosis.comparison import Comparison
from perfkit.diagnosis.sides import Side, other_steps
from perfkit.errors import PerfkitError
from perfkit.format import Shown, duration, elided, number, percent, printable
from perfkit.report import html, output
from perfkit.report.blocks import note, refusals
from perfkit.report.machine import Machine, named
from perfkit.report.output import TEXT
from perfkit.run import Run
from perfkit.selection import Selection, select
from perfkit.settings import finite, json_object

LONGEST_REASON = 200  # characters of a name or a reason
OUTCOMES = {PASS: "pass", FAIL: "fail", ERROR: "cannot tell"}  # as people read them
MARKS = OUTCOMES | {FAIL: "FAIL", ERROR: "CANNOT TELL"}
# What is judged, what it is where it fails, and where none does.
BAD = {BASELINE: ("figures", "worse", "none worse"), BUDGET: ("limits", "not kept", "all kept")}
MADE_BY_CHECK = "perfkit check"
CHECK_SCHEMA = 1  # of the JSON: goes up when a key goes, or means something else
# What the files begin with, by which an earlier one is known.
JSON = f'{{\n "made_by": "{MADE_BY_CHECK}",'
MARKDOWN = f"<!-- {MADE_BY_CHECK} -->"
# Rows of the tables in Markdown: together at most 40 lines.
MOST_VERDICTS, MOST_LINES, MOST_CAUTIONS = 12, 8, 5
MARKUP = re.compile(r"[<>&|`*_\[\]\\#@~!]")
JUNIT = f"<?xml version='1.0' encoding='utf-8'?>\n<testsuites name=\"{MADE_BY_CHECK}\""
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
_KINDS = (("failure", FAIL), ("error", ERROR))
LONGEST = 60  # characters of a label or figure's name in a terminal
SCHEMA = 1  # of its content: goes up when a key goes, or means something else
MADE_BY = "perfkit compare"  # in the marker of the folder
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

    `lines` explain what the last step takes longer than the first, line by line of the ledger.
    """

    runs: Mapping[str, Sequence[Selection]]
    ledger: pd.DataFrame
    whole: Comparison
    lines: pd.DataFrame  # EXPLAINED


def series(runs: Mapping[str, Sequence[Run]], *, peaks: str = "") -> Series:
    """Compare runs, by label with repeats, in the order of the changes; PerfkitError if the ends share nothing."""
    if len(runs) < 2:
        raise PerfkitError(
            f"compare: there is one run or label, {', '.join(map(_safe, runs))}. Give two, such as before and after."
        )
    views = {label: [select(run) for run in repeats] for label, repeats in runs.items()}
    by_label = {label: [view.steps for view in repeats] for label, repeats in views.items()}
    first, *_, last = views.values()
    whole = comparison.compared(first, last, peaks=peaks)
    utilisation = {}
    for label, repeats in views.items():  # the mean, where it is known of every repeat
        busy = [figures(view).get("device_busy_frac") for view in repeats]
        shares = [figure.value for figure in busy if figure]
        if len(shares) == len(busy):
            utilisation[label] = sum(shares) / len(shares)
    ledger = compare.ledger(by_label, utilisation=utilisation, noise=compare.NOISE)
    return Series(views, _untold(ledger, by_label), whole, explained.lines(first, last))


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
    lines = [f"{_safe(label)}: {', '.join(_names(views))}" for label, views in series.runs.items()]
    lines += ["", printable(verdict.sentence(series.whole), 1000)]
    if len(series.runs) > 2:
        ledger = []
        for row in series.ledger.to_dict("records"):
            against = f"{number(row['ratio'])} {row['verdict']}" if pd.notna(row["ratio"]) else ""
            low_high = [row["step_low_ns"], row["step_high_ns"]]
            between = " to ".join(map(duration, low_high)) if pd.notna(low_high[0]) else "none"
            count, step = f"{row['count']:,}", duration(row["step_ns"])
            ledger.append((row["label"], count, step, between, against, number(row["speedup"])))
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
    lines += (
        ["", *_aligned((f"kernel time {unit}", "before", "after", "ratio", "verdict"), moved)]
        if moved
        else []
    )
    if len(series.lines):
        head = (f"time of a GPU per {series.whole.unit}", "before", "after", "difference")
        lines += ["", *_aligned(head, _explained(series.lines))]
    rows = verdict.side_rows(series.whole)[["figure", "before", "after", "ratio", "verdict"]]
    lines += ["", *_aligned(tuple(rows.columns), rows.itertuples(index=False))] if len(rows) else []
    missing = [
        f"unknown: {r.question} {r.reason}; record: {r.record}" for r in series.whole.refusals
    ]
    return "\n".join([*lines, "", *(printable(line, 500) for line in missing)]).rstrip()


def _explained(lines: pd.DataFrame) -> list[tuple[str, str, str, str]]:
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
        "figures": _records(whole.figures),
        **{name: _records(frame) for name, frame in frames.items()},
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


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
    rows = verdict.side_rows(whole)
    yield (
        "Figures of the first and the last",
        charts.tables.show(rows, columns=columns, rows=100, caption="Figures"),
    )
    yield "What was not answered", refusals(whole.refusals)


def _safe(label: object) -> str:
    """Return foreign text on one line, without characters that a terminal cannot take."""
    return elided(label, LONGEST)


def check_text(checked: Checked) -> str:
    """Return the verdicts for people, a line each, the failed ones first."""
    # The outcome of all in one line counts the lines below it: of the baseline and of the budget.
    parts = [
        _counted(checked, against)
        for against in BAD
        if any(v.against == against for v in checked.verdicts)
    ]
    headline = f"{OUTCOMES[checked.outcome].upper()}: {'; '.join(parts)} (confidence: {checked.confidence})"
    lines = [
        headline if parts else "CANNOT TELL: nothing was judged",
        *map(_line, checked.verdicts),
    ]
    return "\n".join([*lines, *(f"caution: {_plain(caution)}" for caution in checked.cautions)])


def _counted(checked: Checked, against: str) -> str:
    """Return how many figures failed, and of how many the outcome is unknown, against the baseline or the budget."""
    outcomes = [verdict.outcome for verdict in checked.verdicts if verdict.against == against]
    things, bad, good = BAD[against]
    what = f"{len(outcomes)} {things if len(outcomes) != 1 else things[:-1]}"
    counts = ((outcomes.count(FAIL), bad), (outcomes.count(ERROR), "undecided"))
    parts = [f"{count} {words}" for count, words in counts if count]
    return f"{against}: of {what} {' and '.join(parts) or good}"


def _line(verdict: Verdict) -> str:
    ratio = "" if math.isnan(verdict.ratio) else f", ratio {number(verdict.ratio)}"
    limit = f"{verdict.against}: {_plain(verdict.limit)}"
    mark = f"{MARKS[verdict.outcome]:<11}"
    return f"  {mark} {_plain(verdict.label)}: {verdict.values}{ratio}; {limit}; {_plain(verdict.reason)}"


def check_markdown(checked: Checked, lines: pd.DataFrame) -> str:
    """Return the verdicts as Markdown for the comment of a pull request, at most 40 lines.

    `lines`: EXPLAINED of baseline and run, empty where there is none.
    """
    outcome = OUTCOMES[checked.outcome]
    made = [f"{MARKDOWN}", f"### perfkit check: {outcome} (confidence: {checked.confidence})", ""]
    verdicts = checked.verdicts[:MOST_VERDICTS]
    rows = [
        (MARKS[one.outcome], one.label, one.values, number(one.ratio), one.limit, one.reason)
        for one in verdicts
    ]
    made += _table(("outcome", "figure", "values", "ratio", "limit", "why"), rows)
    if len(checked.verdicts) > len(verdicts):
        made.append(f"\nand {len(checked.verdicts) - len(verdicts):,} more figures")
    if len(lines):
        made += [
            "",
            *_table(
                ("time of a GPU, per step or unit", "before", "after", "difference"),
                _explained(lines),
            ),
        ]
    made += ["", *(f"- {_in_markdown(caution)}" for caution in checked.cautions[:MOST_CAUTIONS])]
    return "\n".join(made).rstrip() + "\n"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return rows of foreign text as a table in Markdown."""
    lines = [head, ("---",) * len(head), *(tuple(map(_in_markdown, row)) for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def _in_markdown(text: str) -> str:
    """Return foreign text so that Markdown shows it as it is."""
    return MARKUP.sub(lambda found: f"&#{ord(found[0])};", _plain(text))


def check_json(checked: Checked) -> str:
    """Return the outcome, the exit status and all verdicts as JSON; numbers that are none are null."""
    content = {
        "made_by": MADE_BY_CHECK,
        "schema": CHECK_SCHEMA,
        "outcome": checked.outcome,
        "exit_code": checked.exit_code,
        "confidence": checked.confidence,
        "cautions": list(checked.cautions),
        "verdicts": [
            {
                k: None if isinstance(v, float) and not math.isfinite(v) else v
                for k, v in asdict(one).items()
            }
            for one in checked.verdicts
        ],
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def junit(checked: Checked, *, suite: str = MADE_BY_CHECK) -> str:
    """Return the verdicts as JUnit XML (Jenkins' junit-10.xsd): a test case per figure, with failure or error."""
    counts = {
        f"{word}s": str(sum(v.outcome == kind for v in checked.verdicts)) for word, kind in _KINDS
    }
    whole = {"name": _plain(suite), "tests": str(len(checked.verdicts)), **counts}
    root = ElementTree.Element("testsuites", whole)
    cases = ElementTree.SubElement(root, "testsuite", whole)
    for one in checked.verdicts:
        case = ElementTree.SubElement(
            cases,
            "testcase",
            {"classname": _plain(suite), "name": _plain(f"{one.id}, {one.against}: {one.limit}")},
        )
        for word, kind in _KINDS:
            if one.outcome == kind:
                ElementTree.SubElement(case, word, {"message": _plain(one.reason)}).text = _line(
                    one
                ).strip()
    if checked.cautions:
        ElementTree.SubElement(cases, "system-out").text = "\n".join(map(_plain, checked.cautions))
    ElementTree.indent(root, " ")
    written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return written.decode("utf-8") + "\n"


def _plain(text: str) -> str:
    """Return foreign text on one line, without characters that a terminal or XML cannot take."""
    return printable(text, LONGEST_REASON)


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


def against_promised(path: str = "") -> Shown:
    """Return why the published gains cannot be multiplied, and what their shares allow; a sentence if there are none.

    `path`: a JSON file with `optimization_recommendations`: objects with `current` and `target` (text that begins with
    a percentage) and `potential_speedup` (such as 1.9x); empty for none. Raises PerfkitError if unreadable.
    """
    gains = promises(Path(path)) if path else []
    return note(_judged(gains) if len(gains) > 1 else "The published figures come without gains.")


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

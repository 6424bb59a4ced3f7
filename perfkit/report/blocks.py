"""Findings, advice and remarks as HTML for a notebook; everything from outside is escaped."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from perfkit.analysis.grouping import speedup_bounds
from perfkit.diagnosis import verdict
from perfkit.diagnosis.comparison import Comparison
from perfkit.diagnosis.finding import HORIZONS, Figure, Finding, Refusal
from perfkit.diagnosis.replayed import together
from perfkit.errors import PerfkitError
from perfkit.format import Shown, duration, number, percent, printable
from perfkit.names.families import Decoded
from perfkit.report import links
from perfkit.selection import Selection

# What the analysis behind the published DLRM summary calls its figures, and what to divide their values by.
GLOBAL_METRICS = {
    "cpu_time": ("host_time", 1),
    "gpu_time": ("gpu_time", 1),
    "kernel_time": ("kernel_time", 1),
    "copy_time": ("copy_time", 1),
    "total_kernels": ("launches", 1),
    "total_transfers": ("copies", 1),
    "gpu_utilization_pct": ("gpu_share", 100),
    "copy_percentage": ("copy_share", 100),
    "avg_kernel_time_us": ("mean_kernel_time", 1_000_000),
    "kernel_overhead_pct": ("launch_overhead", 100),
}
WORDS = {
    "host_time": "CPU time",
    "gpu_time": "GPU operations",
    "kernel_time": "Kernel time",
    "copy_time": "Copy time",
    "launches": "Kernel launches",
    "copies": "Copies",
    "gpu_share": "GPU time over CPU thread time plus GPU time (no utilisation)",
    "copy_share": "Copies in kernel and copy time",
    "mean_kernel_time": "Mean kernel",
    "launch_overhead": "5 µs per launch over kernel time (no overhead)",
}
COLUMNS = {"tree_sum": "sum over the tree", "main_thread": "main thread only", "all_threads": "true: all threads"}
NOTHING_COSTS = "Nothing that was recorded costs more than a tenth of the time."
NOTHING_IN_THE_LOG = "No check of the GPUs' log calls for attention; what a log cannot tell stands at the end."
MEASURED = "These are measurements of a machine or a training; for causes it takes a recording of the program."
NO_GPU = "No GPU activity was recorded, so nothing can be said of the GPU; what to record stands at the end."
QUIET = "font-size:.87em;line-height:1.4;opacity:.75;margin:.15em 0 .5em"
LIMIT = 400  # characters of a text from outside
PERCENT = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*%")
FACTOR = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*x\s*$", re.IGNORECASE)


class Promise(NamedTuple):
    """A published gain: the share before and after, 0..1, and the factor it was said to give."""

    before: float
    after: float
    factor: float


def note(text: str) -> Shown:
    """Return a sentence for the reader."""
    text = text[:1].upper() + text[1:]
    return Shown(f"<p>{_safe(text)}</p>", text)


def name(path: str) -> str:
    """Return what to call a profile: the last part of its path."""
    return Path(path).name


def about(view: Selection) -> Shown:
    """Return what was read: files, tools, GPUs, the part that is looked at, and remarks."""
    lines = [
        ("Run", ", ".join(name(path) for path in view.run.capture["path"])),
        (
            "Recorded with",
            ", ".join(sorted({f"{c.tool} {c.tool_version}".strip() for c in view.run.capture.itertuples()})),
        ),
        ("Recorded for", ", ".join(duration(ns) for ns in view.run.capture["dur_ns"] if ns) or "not recorded"),
        ("GPUs", ", ".join(f"GPU {d.gpu}: {d.name}" for d in view.devices.itertuples()) or "not recorded"),
        ("Seen here", view.description),
        ("Report made", f"{datetime.now():%Y-%m-%d %H:%M} by perfkit {version('perfkit')}"),
        *(("Note", text) for text in remarks(view.run.notes)),
    ]
    rows = "".join(
        f'<dt style="width:auto">{_safe(term)}</dt><dd style="margin:0">{_safe(text)}</dd>' for term, text in lines
    )
    style = "display:grid;grid-template-columns:max-content 1fr;gap:.2em 1.5em;margin:0"
    return Shown(f'<dl style="{style}">{rows}</dl>', "\n".join(f"{term}: {text}" for term, text in lines))


def remarks(notes: Iterable[str]) -> list[str]:
    """Return remarks, "file: what is to be said", with the files of which the same is to be said in one.

    >>> remarks(["a.csv: simulated", "b.csv: simulated", "two clocks"])
    ['a.csv, b.csv: simulated', 'two clocks']
    """
    files: dict[str, dict[str, None]] = {}
    for text in notes:
        about, colon, what = text.partition(": ")
        files.setdefault(what if colon else text, {}).update({about: None} if colon else {})
    return [f"{', '.join(of)}: {what}" if of else what for what, of in files.items()]


def nothing_found(figures: Collection[str]) -> str:
    """Return why there is no finding: nothing costs much, or what was recorded cannot show what does."""
    if "span_ns" in figures or "measured_count" in figures:
        return NOTHING_COSTS
    if any(name.startswith("log_") for name in figures):
        return NOTHING_IN_THE_LOG
    return MEASURED if any(name.startswith("baseline_") for name in figures) else NO_GPU


def key_findings(findings: Iterable[Finding], figures: dict[str, Figure]) -> Shown:
    """Return findings as a list: title, severity, confidence, evidence (links to cells), and what speaks against."""
    shown = list(findings)
    items = "".join(
        f"<li><strong>{_title(f)}</strong> <em>({_safe(f.severity)}, {_safe(f.confidence)} confidence)</em><br>"
        f"{_safe(f.explanation)}{_grounds(f)}</li>"
        for f in shown
    )
    text = "\n".join(f.title for f in shown)
    return Shown(f'<ol class="perfkit-findings">{items}</ol>', text) if shown else note(nothing_found(figures))


def _title(finding: Finding) -> str:
    """Return a finding's title, in which the figure that it names first in its evidence is a link."""
    title = _safe(finding.title)
    for figure in finding.evidence[:1]:
        before, number, after = title.partition(_safe(figure.text))
        is_part = before.endswith((".", ",")) or before[-1:].isalnum() or after[:1].isalnum()
        title = f"{before}{links.figure(figure).html}{after}" if number and not is_part else title
    return title


def _grounds(finding: Finding) -> str:
    """Return what speaks against a finding, and more quietly what it rests on and what to measure next."""
    doubts = f" Against it: {_safe('; '.join(finding.against))}." if finding.against else ""
    evidence = ", ".join(f"{_safe(figure.label)} {links.figure(figure).html}" for figure in finding.evidence)
    parts = (("Evidence", evidence), ("Threshold", _safe(finding.threshold)), ("Measure next", _safe(finding.next)))
    lines = "<br>".join(f"{term}: {text}" for term, text in parts if text)
    return doubts + (f'<div style="{QUIET}">{lines}</div>' if lines else "")


def recommendations(findings: Iterable[Finding]) -> Shown:
    """Return what to do, by horizon; each step names the finding it comes from."""
    parts, findings = [], list(findings)
    for horizon in HORIZONS:
        steps = dict.fromkeys((step, f.rule) for f in findings for step in f.advice.get(horizon, ()))
        themes = [(step, rule.removeprefix("paths_").replace("_", " ")) for step, rule in steps]
        items = "".join(f"<li>{_safe(step)} <em>({_safe(theme)})</em></li>" for step, theme in themes)
        parts.append(f"<h4>{horizon.capitalize()}</h4><ul>{items}</ul>" if items else "")
    return Shown("".join(parts) or note("No recommendation without a finding.").html, f"{len(findings)} findings")


def refusals(items: Iterable[Refusal]) -> Shown:
    """Return the questions that are not answered, why, and what to record."""
    rows = "".join(
        f"<li><strong>{_safe(r.question)}</strong>: {_safe(r.reason)}. Record: <code>{_safe(r.record)}</code></li>"
        for r in items
    )
    return Shown(f"<ul>{rows}</ul>" if rows else note("Every question was answered.").html, "not answered")


def sentences(decoded: Iterable[Decoded]) -> Shown:
    """Return kernels' names with what each says, as a list."""
    items = [f"<li><code>{_safe(d.name)}</code>: {_safe(d.sentence)}</li>" for d in decoded]
    return Shown(f"<ul>{''.join(items)}</ul>" if items else note("No kernel was measured.").html, f"{len(items)} names")


def figure_table(figures: dict[str, Figure], ids: Iterable[str] = ()) -> pd.DataFrame:
    """Return the figures of `ids`, or all, as rows: figure, value (a link, with its unit), definition, source."""
    chosen = [figures[i] for i in (ids or figures) if i in figures]
    rows = [(f.label, links.figure(f), f.definition, links.tables(f)) for f in chosen]
    return pd.DataFrame(rows, columns=["figure", "value", "definition", "source"])


def comparison_table(found: Comparison) -> pd.DataFrame:
    """Return the few figures that tell whether a program got faster, and where, as rows of text with links."""
    rows = verdict.main_rows(found)
    sources = found.figures.set_index("id")["source"].astype(str)
    own = [
        source if source.startswith("compare.") else "compare.figures"
        for source in map(sources.__getitem__, rows["id"])
    ]
    for column in ("before", "after", "ratio"):
        of = zip(rows["id"], rows["figure"], own, rows[column], strict=True)
        linked = [links.figure(Figure(f"{i}, {column}", label, 0.0, "1", "", s), text=text) for i, label, s, text in of]
        rows[column] = pd.Series(linked, rows.index, dtype=object)
    return rows.drop(columns="id")


def opportunities(
    findings: Iterable[Finding], figures: Mapping[str, Figure], view: Selection | None = None
) -> pd.DataFrame:
    """Return findings as rows: direction, current (a link), target, gain, why a range; last all, by one replay."""
    findings = list(findings)
    rows: list[tuple[str | Shown, ...]] = [
        (f.title, links.figure(f.evidence[0]), f.target, f.gain.text, f.gain.reason) for f in findings
    ]
    combined = together(findings, figures, view)
    rows += [("All of these together", "", "", combined.text, combined.reason)] if combined else []
    return pd.DataFrame(rows, columns=["direction", "current", "target", "gain", "why a range"])


def metrics(means: pd.DataFrame) -> pd.DataFrame:
    """Return `timeline.samples_mean` as text in each metric's unit; metrics that stayed at zero are left out."""
    rows = []
    for row in means[means["max"] != 0].to_dict("records"):
        name, _, unit = str(row["metric"]).rpartition("_")
        values = [_in_unit(float(row[statistic]), unit) for statistic in ("mean", "p50", "p95", "max")]
        rows.append((row["rank"], row["gpu"], name.replace("_", " "), row["count"], *values))
    return pd.DataFrame(rows, columns=["rank", "gpu", "metric", "samples", "mean", "median", "p95", "max"])


def _in_unit(value: float, unit: str) -> str:
    if unit == "frac":
        return percent(value)
    return f"{number(value / 1e6)} MHz" if unit == "hz" else f"{number(value)} {unit}"


def _safe(text: str) -> str:
    return escape(printable(text, LIMIT))


def against_published(sums: pd.DataFrame, path: str = "") -> pd.DataFrame:
    """Return the figures of `analysis.calltree.tree_sums` as text, beside published ones if a file is given.

    `path`: a JSON file: an object of the figures' names in `sums` and their values (s, counts, fractions), or the
    ``metrics_data.json`` of the published DLRM analysis; empty for none. Raises PerfkitError if it holds none of them.
    """
    words = [WORDS.get(n) or f"Stall {n.removeprefix('stall_')}, share of stalled samples" for n in sums["figure"]]
    table = pd.DataFrame({"figure": words})
    if path:
        figures = published(Path(path))
        values = [figures.get(name, math.nan) for name in sums["figure"]]
        table["published"] = [_spoken(v, unit) for v, unit in zip(values, sums["unit"], strict=True)]
    for column, heading in COLUMNS.items():
        table[heading] = [_spoken(v, unit) for v, unit in zip(sums[column], sums["unit"], strict=True)]
    return table


def published(path: Path) -> dict[str, float]:
    """Return published figures by the names of `analysis.calltree.tree_sums`, from a JSON file; see there."""
    stored = content(path)
    metrics = stored.get("global_metrics", stored)
    source = metrics if isinstance(metrics, dict) else {}
    numbers = {k: float(v) for k, v in source.items() if isinstance(v, int | float) and abs(v) <= sys.float_info.max}
    found = {name: value for name, value in numbers.items() if name in WORDS or name.startswith("stall_")}
    found |= {name: numbers[key] / per for key, (name, per) in GLOBAL_METRICS.items() if key in numbers}
    if "dominant_stall_pct" in numbers:
        found[f"stall_{source.get('dominant_stall_type')}"] = numbers["dominant_stall_pct"] / 100
    if not found:
        raise PerfkitError(f"{path}: holds none of the figures {', '.join(WORDS)}. Name at least one of them.")
    return found


def content(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, an empty one if it holds anything else."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise PerfkitError(f"{path}: the published figures cannot be read ({e.strerror}). Check the path.") from e
    except (ValueError, RecursionError) as e:
        raise PerfkitError(f"{path}: the published figures are not JSON ({e}). Give an object of numbers.") from e
    return stored if isinstance(stored, dict) else {}


def _spoken(value: float, unit: str) -> str:
    if math.isnan(value):
        return "-"
    if unit == "s":
        return duration(value * 1e9)
    return percent(value) if unit == "frac" else f"{value:,.0f}" if unit == "count" else number(value)


def against_promised(path: str = "") -> Shown:
    """Return why the published gains cannot be multiplied, and what their shares allow; a sentence if there are none.

    `path`: a JSON file with `optimization_recommendations`: objects with `current` and `target` (text that begins with
    a percentage) and `potential_speedup` (such as 1.9x); empty for none. Raises PerfkitError if unreadable.
    """
    gains = promises(Path(path)) if path else []
    return note(_judged(gains) if len(gains) > 1 else "No gains were published beside the figures.")


def promises(path: Path) -> list[Promise]:
    """Return the published gains of a file; what does not read as one is left out."""
    items = content(path).get("optimization_recommendations", {})
    gains = []
    for row in items.values() if isinstance(items, dict) else ():
        texts = [str(row.get(k)) for k in ("current", "target", "potential_speedup")] if isinstance(row, dict) else []
        read = [pattern.match(text) for pattern, text in zip((PERCENT, PERCENT, FACTOR), texts, strict=False)]
        before, after, factor = [float(m[1]) if m else math.nan for m in read] or [math.nan] * 3
        if before <= 100 and after <= 100 and factor > 0:
            gains.append(Promise(before / 100, after / 100, factor))
    return gains


def _judged(gains: list[Promise]) -> str:
    factors = ", ".join(f"{number(gain.factor)}x" for gain in gains)
    product = math.prod(gain.factor for gain in gains)
    sentences = [f"Published were gains of {factors}, multiplied to {product:.1f}x, which cannot be."]
    shares = [gain for gain in gains if gain.after < gain.before]
    if outcomes := len(gains) - len(shares):
        sentences.append(
            f"{outcomes} of them is an outcome, utilisation, which the others raise: it counts them twice."
        )
    if shares:
        at_most = speedup_bounds([g.before for g in shares], [1 - g.after / g.before for g in shares]).high
        total = sum(gain.before for gain in shares)
        listed = " and ".join(percent(gain.before) for gain in shares)
        overlap = f", so that they overlap by {percent(total - 1)} at least" if total > 1 else ""
        allowed = f"together they allow {at_most:.2f}x at most"
        sentences.append(f"Shares of {listed} of one time make {percent(total)} of it{overlap}; {allowed}.")
    return " ".join(sentences)

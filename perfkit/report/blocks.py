"""Findings, advice and remarks as HTML for a notebook; everything from outside is escaped."""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatch
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from perfkit.analysis.grouping import speedup_bounds
from perfkit.diagnosis import headline, verdict
from perfkit.diagnosis.comparison import Comparison
from perfkit.diagnosis.finding import HORIZONS, LEAST, Figure, Finding, Refusal
from perfkit.diagnosis.replayed import together
from perfkit.diagnosis.rules import rules, snippets
from perfkit.errors import PerfkitError
from perfkit.format import Shown, duration, number, percent, printable, several
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
WEEKS = {
    "immediate": "In the next 1 to 2 weeks",
    "medium-term": "In 1 to 2 months",
    "long-term": "In 3 to 6 months",
}
TILES = """
.perfkit-verdict { font-size: 1.35rem; line-height: 1.35; font-weight: 600; margin: .3em 0 .7em; max-width: 62ch; }
.perfkit-tiles { display: flex; flex-wrap: wrap; gap: .6rem; }
.perfkit-tile { flex: 1 1 150px; border: 1px solid rgba(128, 128, 128, .4); border-radius: 8px; padding: .5rem .8rem;
  max-width: 22rem; } .perfkit-tile > * { display: block; }
.perfkit-tile b { font-size: 1.35rem; line-height: 1.3; } .perfkit-tile a.perfkit-figure { white-space: normal; }
.perfkit-tile :is(span, small) { font-size: .82rem; line-height: 1.3; opacity: .8; }
"""
LEADS = (  # in a view that follows an explorer
    ".perfkit-leads [data-leads]{cursor:pointer}"
    ".perfkit-leads [data-leads]>em:first-of-type::after{content:' · click: see the longest one in the timeline'}"
)
FIRST = {"immediate": 4, "medium-term": 3, "long-term": 2}  # steps that the first page shows
QUIET = "font-size:.87em;line-height:1.4;opacity:.75;margin:.15em 0 .5em;overflow-wrap:anywhere"
LIMIT = 400  # characters of a text from outside
PERCENT = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*%")
FACTOR = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*x\s*$", re.IGNORECASE)


class Advised(NamedTuple):
    """Something to do: the step, what it is for and what that gains, where, and code that shows how."""

    text: str
    reason: str
    place: str
    code: str


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


def about(view: Selection, *, folded: bool = False) -> Shown:
    """Return what was read: files, tools, GPUs, the part that is looked at, and remarks; `folded` under one line."""
    lines = [
        ("Run", several(name(path) for path in view.run.capture["path"])),
        (
            "Recorded with",
            ", ".join(sorted({f"{c.tool} {c.tool_version}".strip() for c in view.run.capture.itertuples()})),
        ),
        ("Recorded for", several(duration(ns) for ns in view.run.capture["dur_ns"] if ns) or "not recorded"),
        ("GPUs", several(f"GPU {d.gpu}: {d.name}" for d in view.devices.itertuples()) or "not recorded"),
        ("Selection", view.description),
        ("Report made", f"{datetime.now():%Y-%m-%d %H:%M} by perfkit {version('perfkit')}"),
        *(("Note", text) for text in remarks(view.run.notes)),
    ]
    rows = "".join(
        f'<dt style="width:auto">{_safe(term)}</dt><dd style="margin:0">{_safe(text)}</dd>' for term, text in lines
    )
    style = "display:grid;grid-template-columns:max-content 1fr;gap:.2em 1.5em;margin:0"
    listed = f'<dl style="{style}">{rows}</dl>'
    if folded:
        listed = f"<details><summary>About this recording</summary>{listed}</details>"
    return Shown(listed, "\n".join(f"{term}: {text}" for term, text in lines))


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


def first_screen(view: Selection, figures: Mapping[str, Figure], findings: Sequence[Finding]) -> Shown:
    """Return the verdict of a run and its most important numbers, which lead to the cells that show them."""
    found = headline.headline(view, figures, findings)
    tiles = "".join(
        f'<div class="perfkit-tile"><span>{_safe(t.label)}</span>'
        f"<b>{links.figure(t.figure, text=t.value).html if t.figure else _safe(t.value)}</b>"
        f"<small>{_safe(t.note)}</small></div>"
        for t in found.tiles
    )
    html = f'<style>{TILES}</style><p class="perfkit-verdict">{_safe(found.verdict)}</p>'
    text = "\n".join([found.verdict, *(f"{t.label}: {t.value} {t.note}".strip() for t in found.tiles)])
    return Shown(f'{html}<div class="perfkit-tiles">{tiles}</div>' if tiles else html, text)


def first_steps(
    findings: Iterable[Finding], figures: Collection[str], view: Selection | None = None, *, most: int = 3
) -> Shown:
    """Return the findings with the largest achievable gain: what, how much, the first thing to do, and why."""
    shown = headline.leading(findings)[:most]
    failed = note(headline.AFTER_A_FAILURE) if view is not None and headline.failure(view) else None
    if failed and not shown:
        return failed
    items = (
        f"<strong>{_title(f)}.</strong> {_safe(_spoken_gain(f))}<br>{_action(f)} "
        f"<em>({_safe(f.confidence)} confidence{': ' * bool(f.against)}{_safe('; '.join(f.against))})</em> {_why(f)}"
        for f in shown
    )
    steps = _listed(shown, items, figures)
    return Shown(failed.html + steps.html, f"{failed.text}\n{steps.text}") if failed else steps


def _listed(findings: Sequence[Finding], items: Iterable[str], figures: Collection[str]) -> Shown:
    """Return findings as a list of `items`, HTML; a sentence where there is none."""
    leads = [
        f' data-leads=\'{{"start_ns":{f.seen_at[0]},"dur_ns":{f.seen_at[1]}}}\'' if f.seen_at else "" for f in findings
    ]
    rows = "".join(f"<li{lead}>{item}</li>" for lead, item in zip(leads, items, strict=True))
    html = f'<style>{LEADS}</style><ol class="perfkit-findings">{rows}</ol>'
    return Shown(html, "\n".join(f.title for f in findings)) if findings else note(headline.nothing_found(figures))


def summary(view: Selection, figures: Mapping[str, Figure], findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the first page as values of JSON: verdict, tiles, ranking of the findings, gains, recommendations."""
    found = headline.headline(view, figures, findings)
    tiles = [
        {"label": t.label, "value": t.value, "note": t.note, "figure": t.figure.id if t.figure else None}
        for t in found.tiles
    ]
    told = [{"horizon": h, **step._asdict()} for h, steps in plan(findings).items() for step in steps]
    first = [
        {
            "rule": f.rule,
            "title": f.title,
            "gain": _spoken_gain(f),
            "action": _first_action(f),
            "confidence": f.confidence,
            "doubt": "; ".join(f.against),
        }
        for f in headline.leading(findings)
    ]
    rows = gains(findings, figures, view).rename(columns=lambda name: name.replace(" ", "_")).to_dict("records")
    return {"verdict": found.verdict, "tiles": tiles, "ranking": first, "gains": rows, "recommendations": told}


def _first_action(finding: Finding) -> str:
    return next((step for horizon in HORIZONS for step in finding.advice.get(horizon, ())), "")


def _action(finding: Finding) -> str:
    step = _first_action(finding)
    return f"Do first: {_safe(step)}." if step else ""


def _spoken_gain(finding: Finding) -> str:
    return headline.speaking(finding.gain) if math.isfinite(finding.gain.high) else ""


def _why(finding: Finding) -> str:
    """Return the link to the cell behind the finding's first figure."""
    return "".join(links.figure(figure, text="why").html for figure in finding.evidence[:1])


def key_findings(findings: Iterable[Finding], figures: dict[str, Figure]) -> Shown:
    """Return findings as a list: title, severity, confidence, evidence (links to cells), and what speaks against."""
    shown = list(findings)
    items = (
        f"<strong>{_title(f)}</strong> <em>({_safe(f.severity)}, {_safe(f.confidence)} confidence)</em><br>"
        f"{_safe(f.explanation)}{_grounds(f)}"
        for f in shown
    )
    return _listed(shown, items, figures)


def _title(finding: Finding) -> str:
    """Return a finding's title, in which the figure that it names first in its evidence is a link."""
    title = _safe(finding.title)
    for figure in finding.evidence[:1]:
        before, number, after = title.partition(_safe(figure.text))
        is_part = before.endswith((".", ",")) or before[-1:].isalnum() or after[:1].isalnum()
        title = f"{before}{links.figure(figure).html}{after}" if number and not is_part else title
    return title


def _grounds(finding: Finding) -> str:
    """Return what speaks against a finding, and more quietly what it rests on, all its steps and what to measure."""
    doubts = f" Against it: {_safe('; '.join(finding.against))}." if finding.against else ""
    evidence = ", ".join(f"{_safe(figure.label)} {links.figure(figure).html}" for figure in finding.evidence)
    steps = "; ".join(_safe(step) for horizon in HORIZONS for step in finding.advice.get(horizon, ()))
    parts = {"Evidence": evidence, "Threshold": _safe(finding.threshold), "To do": steps}
    parts["Measure next"] = _safe(finding.next)
    lines = "<br>".join(f"{term}: {text}" for term, text in parts.items() if text)
    return doubts + (f'<div style="{QUIET}">{lines}</div>' if lines else "")


def recommendations(findings: Iterable[Finding]) -> Shown:
    """Return the first steps to do: by horizon, in each by the gain of the finding, with code where it helps."""
    parts, steps = [], plan(findings)
    for horizon, listed in steps.items():
        items = "".join(
            f"<li>{_safe(s.text)} <em>({_safe(s.reason)})</em>"
            + (f' <span style="{QUIET}">at {_safe(s.place)}</span>' if s.place else "")
            + (f"<details><summary>Example</summary><pre>{escape(s.code)}</pre></details>" if s.code else "")
            + "</li>"
            for s in listed[: FIRST[horizon]]
        )
        parts.append(f"<h3>{WEEKS[horizon]}</h3><ol>{items}</ol>")
    if not parts:
        return note("No finding asks for a change.")
    left = note(more_steps(horizon for horizon, listed in steps.items() for _ in listed))
    return Shown("".join(parts) + (left.html if left.text else ""), f"{sum(map(len, steps.values()))} steps")


def more_steps(horizons: Iterable[str]) -> str:
    """Return where to find the steps that the first page leaves out; `horizons`: that of each step.

    >>> more_steps(["immediate"] * 6 + ["long-term"] * 3), more_steps(["immediate"] * 4)
    ('The pages of the steps list 3 more recommendations, each with its finding.', '')
    """
    left = sum(max(count - FIRST[horizon], 0) for horizon, count in Counter(horizons).items())
    more = f"{left} more recommendation{'s' * (left > 1)}"
    return f"The pages of the steps list {more}, each with its finding." if left else ""


def plan(findings: Iterable[Finding]) -> dict[str, list[Advised]]:
    """Return each step once, by horizon, those of the largest gain first; nothing that gains less than 1 %."""
    ordered = [f for f in headline.ranked(findings) if not 1 < f.gain.high < LEAST]
    told: dict[str, list[Advised]] = {}
    seen: set[str] = set()
    for horizon in HORIZONS:
        for finding, step in ((f, step) for f in ordered for step in f.advice.get(horizon, ())):
            if step not in seen:
                seen.add(step)
                is_told = finding.gain.is_known and finding.gain.high >= LEAST
                reason = headline.theme(finding.rule) + (f", {finding.gain.text}" if is_told else "")
                told.setdefault(horizon, []).append(Advised(step, reason, finding.place, snippets().get(step, "")))
    return told


def refusals(items: Iterable[Refusal]) -> Shown:
    """Return the questions that are not answered, why (unless nothing was recorded), and what to record."""
    reasons = ((r, "" if r.reason == r.absent else f" {_safe(r.reason[:1].upper() + r.reason[1:])}.") for r in items)
    rows = "".join(
        f"<li><strong>{_safe(r.question)}</strong>{reason} Record: <code>{_safe(r.record)}</code></li>"
        for r, reason in reasons
    )
    return Shown(f"<ul>{rows}</ul>" if rows else note("Every question was answered.").html, "not answered")


def sentences(decoded: Iterable[Decoded]) -> Shown:
    """Return kernels' names with what each says, as a list."""
    items = [f"<li><code>{_safe(d.name)}</code>: {_safe(d.sentence)}</li>" for d in decoded]
    return Shown(f"<ul>{''.join(items)}</ul>" if items else note("No kernel was measured.").html, f"{len(items)} names")


def figure_table(figures: dict[str, Figure], ids: Iterable[str] = (), *, cell: str = "") -> pd.DataFrame:
    """Return figures as rows: figure, value (a link, with its unit), definition, source.

    Those of `ids`, or that the metadata of the notebooks' `cell` lists (its id); all when neither is given.
    """
    ids = ids or next((one.listed for one in links.stored() if cell and one.id == cell), ())
    chosen = [figures[i] for i in (ids or figures) if i in figures]
    rows = [(f.label, links.figure(f), f.definition, links.tables(f)) for f in chosen]
    return pd.DataFrame(rows, columns=["figure", "value", "definition", "source"])


def decisions(figures: Mapping[str, Figure], findings: Iterable[Finding], *tables: str) -> pd.DataFrame:
    """Return each rule whose first table is one of `tables` and whose figure is known: what it says, and what to do."""
    told, rows = {f.rule: f for f in findings}, []
    for rule in rules().values():
        known = next((f for each in rule.evidence for i, f in figures.items() if fnmatch(i, each)), None)
        if known and rule.needs[0].split("|")[0] in tables:
            finding = told.get(rule.name)
            meaning = finding.title if finding else f"Target: {rule.target}"
            steps = [step for steps in finding.advice.values() for step in steps] if finding else []
            rows.append((rule.question, links.figure(known), rule.threshold, meaning, steps[0] if steps else ""))
    return pd.DataFrame(rows, columns=["question", "figure", "threshold", "what it means", "next step"])


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


def gains(findings: Iterable[Finding], figures: Mapping[str, Figure], view: Selection | None = None) -> pd.DataFrame:
    """Return what can be gained, a row per finding above 1 %, the largest first; last all together, by one replay.

    Columns: finding, likely and best case as factors, time saved (of a step where steps are known, else of the run),
    and the first reason why it is a range; summary.json and the steps' pages have all of them.
    """
    findings = headline.ranked(findings)
    rows: list[tuple[str, ...]] = [
        (f.title, f.gain.likely, f.gain.best, headline.saved(f.gain, figures), _shortly(f.gain.reason))
        for f in findings
        if f.gain.low >= LEAST or (f.gain.is_known and f.gain.high >= LEAST)
    ]
    combined = together(findings, figures, view) if len(rows) > 1 else None
    if combined:
        both = combined.likely, combined.best
        rows.append(("All together", *both, headline.saved(combined, figures), _shortly(combined.reason)))
    return pd.DataFrame(rows, columns=["finding", "likely", "best case", "time saved", "why a range"])


def _shortly(reason: str) -> str:
    """Return the first reason of a range; of a simulation how long the run takes in it.

    >>> _shortly("a simulation with copies hidden takes 2.16 s instead of 9.92 s (60 % of this is likely); worst case")
    'Simulated run: 2.16 s'
    """
    first = reason.partition("; ")[0].partition(" (")[0]
    first = re.sub(r"^a simulation with .*? takes (.*?) instead of \S+ \w+", r"simulated run: \1", first)
    return first[:1].upper() + first[1:]


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
    return note(_judged(gains) if len(gains) > 1 else "The published figures come without gains.")


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
    sentences = [
        f"Published were gains of {factors}, multiplied to {product:.1f}x, which is wrong: gains share the same time."
    ]
    shares = [gain for gain in gains if gain.after < gain.before]
    if outcomes := len(gains) - len(shares):
        sentences.append(f"{outcomes} of them is utilisation, a result of the others: it counts them twice.")
    if shares:
        at_most = speedup_bounds([g.before for g in shares], [1 - g.after / g.before for g in shares]).high
        total = sum(gain.before for gain in shares)
        listed = " and ".join(percent(gain.before) for gain in shares)
        overlap = f", so that they overlap by {percent(total - 1)} at least" if total > 1 else ""
        allowed = f"together they allow {at_most:.2f}x at most"
        sentences.append(f"Shares of {listed} of the same time add up to {percent(total)}{overlap}; {allowed}.")
    return " ".join(sentences)

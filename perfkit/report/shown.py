"""Findings, advice and remarks as HTML for a notebook; everything from outside is escaped."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from html import escape
from importlib.metadata import version
from pathlib import Path

import pandas as pd

from perfkit.diagnosis import HORIZONS, Figure, Finding, Refusal, comparison, together
from perfkit.diagnosis.comparison import Comparison
from perfkit.format import Shown, duration, number, percent, printable
from perfkit.names import Decoded
from perfkit.report import links
from perfkit.selection import Selection

NOTHING_COSTS = "Nothing that was recorded costs more than a tenth of the time."
NOTHING_IN_THE_LOG = "No check of the GPUs' log calls for attention; what a log cannot tell stands at the end."
MEASURED = "These are measurements of a machine or a training; for causes it takes a recording of the program."
NO_GPU = "No GPU activity was recorded, so nothing can be said of the GPU; what to record stands at the end."
QUIET = "font-size:.87em;line-height:1.4;opacity:.75;margin:.15em 0 .5em"
LIMIT = 400  # characters of a text from outside


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

    Examples
    --------
    >>> remarks(["a.csv: simulated", "b.csv: simulated", "two clocks"])
    ['a.csv, b.csv: simulated', 'two clocks']
    """
    said: dict[str, dict[str, None]] = {}
    for text in notes:
        about, colon, what = text.partition(": ")
        said.setdefault(what if colon else text, {}).update({about: None} if colon else {})
    return [f"{', '.join(of)}: {what}" if of else what for what, of in said.items()]


def nothing_found(figures: Collection[str]) -> str:
    """Return why there is no finding: nothing costs much, or what was recorded cannot show what does."""
    if "span_ns" in figures or "measured_count" in figures:
        return NOTHING_COSTS
    if any(name.startswith("log_") for name in figures):
        return NOTHING_IN_THE_LOG
    return MEASURED if any(name.startswith("baseline_") for name in figures) else NO_GPU


def key_findings(findings: Iterable[Finding], figures: dict[str, Figure]) -> Shown:
    """Return findings as a list: the title, how severe and how sure it is, the evidence, and what speaks against.

    Figures are links to the cells that show them.
    """
    found = list(findings)
    if not found:
        return note(nothing_found(figures))
    items = "".join(
        f"<li><strong>{_title(f)}</strong> <em>({_safe(f.severity)}, {_safe(f.confidence)} confidence)</em><br>"
        f"{_safe(f.explanation)}{_doubts(f)}{_grounds(f)}</li>"
        for f in found
    )
    return Shown(f'<ol class="perfkit-findings">{items}</ol>', "\n".join(f.title for f in found))


def _title(finding: Finding) -> str:
    """Return a finding's title, in which the figure that it names first in its evidence is a link."""
    title = _safe(finding.title)
    for figure in finding.evidence[:1]:
        before, number, after = title.partition(_safe(figure.text))
        is_part = before.endswith((".", ",")) or before[-1:].isalnum() or after[:1].isalnum()
        title = f"{before}{_linked(figure)}{after}" if number and not is_part else title
    return title


def _doubts(finding: Finding) -> str:
    return f" Against it: {_safe('; '.join(finding.against))}." if finding.against else ""


def _grounds(finding: Finding) -> str:
    """Return what a finding rests on, more quietly: figures, each a link, the threshold, and what to measure next."""
    told = ", ".join(f"{_safe(figure.label)} {_linked(figure)}" for figure in finding.evidence)
    said = (("Evidence", told), ("Threshold", _safe(finding.threshold)), ("Measure next", _safe(finding.next)))
    lines = "<br>".join(f"{term}: {text}" for term, text in said if text)
    return f'<div style="{QUIET}">{lines}</div>' if lines else ""


def _linked(figure: Figure) -> str:
    return links.figure(figure).html


def recommendations(findings: Iterable[Finding]) -> Shown:
    """Return what to do, by horizon; each step names the finding it comes from."""
    found = list(findings)
    parts = []
    for horizon in HORIZONS:
        steps = dict.fromkeys((step, f.rule) for f in found for step in f.advice.get(horizon, ()))
        items = "".join(f"<li>{_safe(step)} <em>({_safe(_theme(rule))})</em></li>" for step, rule in steps)
        parts.append(f"<h4>{horizon.capitalize()}</h4><ul>{items}</ul>" if items else "")
    return Shown("".join(parts) or note("No recommendation without a finding.").html, f"{len(found)} findings")


def _theme(rule: str) -> str:
    return rule.removeprefix("paths_").replace("_", " ")


def refusals(items: Iterable[Refusal]) -> Shown:
    """Return the questions that are not answered, why, and what to record."""
    rows = "".join(
        f"<li><strong>{_safe(r.question)}</strong>: {_safe(r.reason)}. Record: <code>{_safe(r.record)}</code></li>"
        for r in items
    )
    return Shown(f"<ul>{rows}</ul>" if rows else note("Every question was answered.").html, "not answered")


def sentences(decoded: Iterable[Decoded]) -> Shown:
    """Return kernels' names with what each says, as a list."""
    found = list(decoded)
    items = "".join(f"<li><code>{_safe(d.name)}</code>: {_safe(d.sentence)}</li>" for d in found)
    return Shown(f"<ul>{items}</ul>" if found else note("No kernel was measured.").html, f"{len(found)} names")


def figure_table(figures: dict[str, Figure], ids: Iterable[str] = ()) -> pd.DataFrame:
    """Return figures as rows: figure, value (text with unit), definition, source; those of `ids` that exist, or all.

    A value is a link to the cell that shows it; a source names its tables, which are links where a report has them.
    """
    chosen = [figures[i] for i in (ids or figures) if i in figures]
    rows = [(f.label, links.figure(f), f.definition, links.tables(f)) for f in chosen]
    return pd.DataFrame(rows, columns=["figure", "value", "definition", "source"])


def comparison_table(found: Comparison) -> pd.DataFrame:
    """Return the few figures that tell whether a program got faster, and where, as rows of text.

    Returns
    -------
    pandas.DataFrame
        Columns figure, before, after, ratio, better and verdict, as of `comparison.main_rows`; the numbers are links
        to the cells of the comparison.
    """
    rows = comparison.main_rows(found)
    source = found.figures.set_index("id")["source"].astype(str)
    for column in ("before", "after", "ratio"):
        about = zip(rows["id"], rows["figure"], rows[column], strict=True)
        linked = [_compared(f"{id}, {column}", label, source[id], text) for id, label, text in about]
        rows[column] = pd.Series(linked, rows.index, dtype=object)
    return rows.drop(columns="id")


def _compared(id: str, label: str, source: str, text: str) -> Shown:
    """Return a number of a comparison as a link: to the comparison of its own, or to that of all figures."""
    own = source if source.startswith("compare.") else "compare.figures"
    return links.figure(Figure(id, label, 0.0, "1", "", own), text=text)


def opportunities(
    findings: Iterable[Finding], figures: Mapping[str, Figure], view: Selection | None = None
) -> pd.DataFrame:
    """Return findings as rows of the improvement table: direction, current (a link), target, gain, why a range.

    The last row says what mending all of them together could gain, by one replay of `view` where it is given.
    """
    found = list(findings)
    now = [links.figure(f.evidence[0]) for f in found]
    rows: list[tuple[str | Shown, ...]] = [
        (f.title, current, f.target, f.gain.text, f.gain.reason) for f, current in zip(found, now, strict=True)
    ]
    combined = together(found, figures, view)
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

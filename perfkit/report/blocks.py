"""Findings, advice and remarks for a notebook, as HTML by `blocks.html.j2`, which escapes everything from outside."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatch
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from markupsafe import Markup

from perfkit.diagnosis import headline, recording, verdict
from perfkit.diagnosis.comparison import Comparison
from perfkit.diagnosis.finding import HORIZONS, LEAST, Figure, Finding, Gain, Refusal
from perfkit.diagnosis.gain import together
from perfkit.diagnosis.rules import rule_of, rules, snippets
from perfkit.format import Shown, coded, duration, printable, several
from perfkit.names import decode
from perfkit.report import links
from perfkit.report.html import template
from perfkit.selection import Selection
from perfkit.workloads.running import TIMINGS

PROFILERS = (
    "nsys ",
    "ncu ",
    "rocprofv3 ",
    "rocprof-compute ",
    "hpcrun ",
)  # how a command begins that a step ends with
WEEKS = {
    "today": "Today",
    "immediate": "In the next 1 to 2 weeks",
    "medium-term": "In 1 to 2 months",
    "long-term": "In 3 to 6 months",
}
MEASURED = re.compile(r"(?<=\d) (?=(?:%|[nµm]?s|[kMGT]?B(?:/s)?|TFLOP/s)(?!\w))")  # the space
MOST_FILES = 4  # that the page names
MOST_NAMES = 5  # of kernels that are decoded
FIRST = {
    "today": 3,
    "immediate": 3,
    "medium-term": 3,
    "long-term": 2,
}  # steps that the first page shows
LIMIT = 400  # characters of a text from outside
SLOWED, MOST_BYTES = (
    1.25,
    1 << 24,
)  # times as long, from which a profiler is worth a word; of a file with timings


class Advised(NamedTuple):
    """Something to do: the step, what it is for and what that gains, where, and code that shows how."""

    text: str
    reason: str
    place: str
    code: str


def note(text: str) -> Shown:
    """Return a sentence for the reader."""
    text = text[:1].upper() + text[1:]
    return Shown(f"<p>{_safe(text)}</p>", text)


def name(path: str) -> str:
    """Return what to call a profile: the last part of its path."""
    return Path(path).name


def about(view: Selection, *, folded: bool = False) -> Shown:
    """Return what was read: files, tools, GPUs, the part that is looked at, and remarks; `folded` under one line."""
    tools = sorted(
        {
            f"{capture.tool} {capture.tool_version}".strip()
            for capture in view.run.capture.itertuples()
        }
    )
    lines = [
        ("Run", several((name(path) for path in view.run.capture["path"]), MOST_FILES)),
        ("Recorded with", ", ".join(tools)),
        ("Recorded for", _lengths(view) or "not recorded"),
        ("GPUs", several(_counted_names(view.devices["name"])) or "not recorded"),
        ("Selection", view.description),
        ("Report made", f"{datetime.now():%Y-%m-%d %H:%M} by perfkit {version('perfkit')}"),
        *(("Note", text) for text in _further_notes(view)),
    ]
    listed = block("about", lines, folded)
    return Shown(listed, "\n".join(f"{term}: {text}" for term, text in lines))


def block(name: str, *given: object) -> str:
    """Return a block as HTML, by the macro of this name in `blocks.html.j2`."""
    return str(getattr(_macros(), name)(*given))


@cache
def _macros() -> Any:
    filters: dict[str, Callable[..., object]] = {
        "every_step": _every_step,
        "example": lambda step: snippets().get(step, ""),
        "first_action": first_action,
        "gain": _spoken_gain,
        "html": Markup,
        "link": lambda figure, text="": Markup(links.figure(figure, text=text).html),
        "said": lambda text, longest=LIMIT: Markup(_safe(text, longest)),
        "title": lambda finding: Markup(_title(finding)),
        "unbroken": _unbroken,
        "with_command": with_command,
    }
    return template("blocks.html.j2", filters, autoescape=True).module


def _further_notes(view: Selection) -> list[str]:
    """Return the notes on a run but those of leading doubts, which the verdict and the remarks below it tell."""
    told = {doubt.text for doubt in recording.leading(view)}
    return [note for note in recording.notes(view) if note not in told]


def _lengths(view: Selection) -> str:
    """Return how long was recorded, of several files the shortest and the longest time; empty if not known."""
    known = [ns for ns in view.run.capture["dur_ns"] if ns]
    ends = [duration(end) for end in (min(known), max(known))] if known else []
    return " to ".join(dict.fromkeys(ends))


def _counted_names(names: Iterable[str]) -> list[str]:
    """Return each name once, with how often it comes.

    >>> _counted_names(["A100", "A100", "T4"])
    ['2 x A100', 'T4']
    """
    counts = Counter(map(str, names))
    return [f"{count} x {name}" if count > 1 else name for name, count in counts.items()]


def first_screen(
    view: Selection, figures: Mapping[str, Figure], findings: Sequence[Finding]
) -> Shown:
    """Return the verdict of a run and its most important numbers, which lead to the cells that show them."""
    found = headline.headline(view, figures, findings)
    slow = slowed(view, figures)
    html = block("first_screen", found.verdict, found.tiles, slow)
    tiles = [f"{t.label}: {t.value} {t.note}".strip() for t in found.tiles]
    text = "\n".join([found.verdict, *tiles])
    return Shown(html, f"{text}\n{slow}".strip())


def slowed(view: Selection, figures: Mapping[str, Figure]) -> str:
    """Say by how much the profiler lengthens a step, where `perfkit.workloads` timed the steps without it; else ""."""
    file, step = (
        Path(view.run.capture["path"].iloc[0]).parent / TIMINGS,
        figures.get("step_median_ns"),
    )
    try:
        row = (
            json.loads(file.read_text(encoding="utf-8"))["rows"][-1]
            if file.stat().st_size < MOST_BYTES
            else {}
        )
        alone = float(row["wall_ns"]) / float(row["steps_count"])
    except (OSError, ValueError, LookupError, TypeError, ZeroDivisionError, RecursionError):
        return ""  # no such file, or not one of perfkit's
    if step is None or not 0 < SLOWED * alone < step.value:
        return ""
    words = f"A step takes {duration(alone)} without the profiler ({TIMINGS}), and {duration(step.value)} here."
    return words + " So the GPU waits less for the CPU than this page says." * (
        len(view.kernels) > 0
    )


def first_steps(
    findings: Iterable[Finding],
    figures: Collection[str],
    view: Selection | None = None,
    *,
    most: int = 3,
) -> Shown:
    """Return the findings with the largest achievable gain: what, how much, the first thing to do, and why."""
    shown = headline.leading(findings)[:most]
    failed = note(headline.AFTER_A_FAILURE) if view is not None and headline.failure(view) else None
    if failed and not shown:
        return failed
    steps = _listed(shown, figures, "first_steps")
    return Shown(failed.html + steps.html, f"{failed.text}\n{steps.text}") if failed else steps


def _listed(findings: Sequence[Finding], figures: Collection[str], macro: str) -> Shown:
    """Return findings as a block; a sentence where there is none."""
    if not findings:
        return note(headline.nothing_found(figures))
    return Shown(block(macro, findings), "\n".join(f.title for f in findings))


def summary(
    view: Selection, figures: Mapping[str, Figure], findings: Sequence[Finding]
) -> dict[str, Any]:
    """Return the first page as values of JSON: verdict, tiles, ranking of the findings, gains, recommendations."""
    found = headline.headline(view, figures, findings)
    tiles = [tile.told() for tile in found.tiles]
    told = [
        {"horizon": h, **step._asdict()} for h, steps in plan(findings).items() for step in steps
    ]
    first = [
        {
            "rule": f.rule,
            "title": f.title,
            "gain": _spoken_gain(f),
            "action": first_action(f),
            "confidence": f.confidence,
            "doubt": "; ".join(f.against),
        }
        for f in headline.leading(findings)
    ]
    rows = (
        gains(findings, figures, view)
        .rename(columns=lambda name: name.replace(" ", "_"))
        .to_dict("records")
    )
    return {
        "verdict": found.verdict,
        "tiles": tiles,
        "ranking": first,
        "gains": rows,
        "recommendations": told,
    }


def first_action(finding: Finding) -> str:
    """Return the first step of a finding; empty if it has none."""
    return next((step for horizon in HORIZONS for step in finding.advice.get(horizon, ())), "")


def _every_step(finding: Finding) -> list[str]:
    """Return the steps of a finding, the soonest first."""
    return [step for horizon in HORIZONS for step in finding.advice.get(horizon, ())]


def with_command(step: str) -> tuple[str, str]:
    """Return a step without the profiler's command at its end, and that command.

    >>> with_command("Measure the longest kernels: ncu --set full -o report PROGRAM")
    ('Measure the longest kernels', 'ncu --set full -o report PROGRAM')
    >>> with_command("Set pin_memory=True")
    ('Set pin_memory=True', '')
    """
    said, _, command = step.partition(": ")
    is_one = command.startswith(PROFILERS) and ", or " not in command
    return (said, command) if is_one else (step, "")


def _spoken_gain(finding: Finding) -> str:
    return headline.speaking(finding.gain) if math.isfinite(finding.gain.high) else ""


def key_findings(findings: Iterable[Finding], figures: dict[str, Figure]) -> Shown:
    """Return findings as a list: title, severity, confidence, evidence (links to cells), and what speaks against."""
    return _listed(list(findings), figures, "key_findings")


def _title(finding: Finding) -> str:
    """Return a finding's title, in which the figure that it names first in its evidence is a link."""
    title = _safe(finding.title)
    for figure in finding.evidence[:1]:
        before, number, after = title.partition(_safe(figure.text))
        is_part = before.endswith((".", ",")) or before[-1:].isalnum() or after[:1].isalnum()
        title = f"{before}{links.figure(figure).html}{after}" if number and not is_part else title
    return title


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
                reason = rule_of(finding).about + (f", {finding.gain.text}" if is_told else "")
                told.setdefault(horizon, []).append(
                    Advised(step, reason, finding.place, snippets().get(step, ""))
                )
    return told


def refusals(items: Iterable[Refusal]) -> Shown:
    """Return the questions that are not answered, why (unless nothing was recorded), and what to record."""
    rows = by_command((r.question, r.reason, r.record) for r in items)
    if not rows:
        return Shown(note("Every question was answered.").html, "not answered")
    return Shown(block("questions", rows), "not answered")


def by_command(items: Iterable[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Return questions, reason as a sentence (empty if nothing was recorded), command: one row per reason and command.

    >>> by_command([("How hot?", Refusal.absent, "nvidia-smi"), ("How full?", Refusal.absent, "nvidia-smi")])
    [('How hot? How full?', '', 'nvidia-smi')]
    """
    rows: dict[tuple[str, str], list[str]] = {}
    for question, reason, record in items:
        why = "" if reason == Refusal.absent else f"{reason[:1].upper()}{reason[1:]}."
        rows.setdefault((why, record), []).append(question)
    return [(" ".join(questions), why, record) for (why, record), questions in rows.items()]


def kernel_names(view: Selection) -> Shown:
    """Return the names of the longest measured kernels with what each says, as a list."""
    longest = view.launches.sort_values("dur_ns", ascending=False, kind="stable")
    return sentences(longest["full_name"].astype(str).unique()[:MOST_NAMES])


def sentences(full_names: Iterable[str]) -> Shown:
    """Return names of kernels with what each says, as a list."""
    decoded = [decode(name) for name in full_names]
    if not decoded:
        return note("No kernel was measured.")
    return Shown(block("kernel_names", decoded), f"{len(decoded)} names")


def figure_table(
    figures: dict[str, Figure], ids: Iterable[str] = (), *, group: str = ""
) -> pd.DataFrame:
    """Return figures as rows: figure, value (a link, with its unit), definition, source.

    `ids` names the figures, or `group` does: the metadata of its cell lists them. Without either all are returned.
    """
    if group:
        ids = next(cell.listed for cell in links.stored() if cell.group == group)
    chosen = [figures[i] for i in (ids or figures) if i in figures]
    rows = [(f.label, links.figure(f), f.definition, links.tables(f)) for f in chosen]
    return pd.DataFrame(rows, columns=["figure", "value", "definition", "source"])


def decisions(
    figures: Mapping[str, Figure], findings: Iterable[Finding], *tables: str
) -> pd.DataFrame:
    """Return each rule whose first table is one of `tables` and whose figure is known: what it says, and what to do.

    The figure is the first of the evidence, which question, threshold and target are about.
    """
    told, rows = {f.rule: f for f in findings}, []
    for rule in (rule for rule in rules().values() if rule.needs[0].split("|")[0] in tables):
        finding = told.get(rule.name)
        own = (figure for i, figure in figures.items() if fnmatch(i, rule.evidence[0]))
        if known := next(iter(finding.evidence if finding else ()), None) or next(own, None):
            meaning = finding.title if finding else f"Target: {rule.target}"
            steps = [step for steps in finding.advice.values() for step in steps] if finding else []
            rows.append(
                (
                    rule.question,
                    links.figure(known),
                    rule.threshold,
                    meaning,
                    steps[0] if steps else "",
                )
            )
    return pd.DataFrame(
        rows, columns=["question", "figure", "threshold", "what it means", "next step"]
    )


def comparison_table(found: Comparison) -> pd.DataFrame:
    """Return the few figures that tell whether a program got faster, and where, as rows of text with links."""
    rows = verdict.main_rows(found)
    sources = found.figures.set_index("id")["source"].astype(str)
    own = [
        s if s.startswith("compare.") else "compare.figures"
        for s in map(sources.__getitem__, rows["id"])
    ]
    for column in ("before", "after", "ratio"):
        of = zip(rows["id"], rows["figure"], own, rows[column], strict=True)
        linked = [
            links.figure(Figure(f"{i}, {column}", label, 0.0, "1", "", s), text=text)
            for i, label, s, text in of
        ]
        rows[column] = pd.Series(linked, rows.index, dtype=object)
    return rows.drop(columns="id")


def gains(
    findings: Iterable[Finding], figures: Mapping[str, Figure], view: Selection | None = None
) -> pd.DataFrame:
    """Return what can be gained, a row per finding above 1 %, the largest first; last all together, by one replay.

    What happened once gains nothing: no later run is faster without it.

    Columns: finding (with what gets faster where that is not the run), likely and best case as factors, time saved (of
    a step where steps are known, else of the run), and the first reason why it is a range; summary.json and the steps'
    pages have all of them.
    """
    known = [
        f
        for f in headline.ranked(findings)
        if not f.gain.is_once
        if f.gain.low >= LEAST or (f.gain.is_known and f.gain.high >= LEAST)
    ]
    gained = [(f.title, f.gain) for f in known]
    if len(known) > 1 and (combined := together(findings, figures, view)):
        gained.append(("All together", combined))
    rows = [
        (
            f"{title} (gain of {gain.whole})" if gain.whole != Gain.whole else title,
            *(gain.likely, gain.best, headline.saved(gain, figures), _shortly(gain)),
        )
        for title, gain in gained
    ]
    return pd.DataFrame(
        rows, columns=["finding", "likely", "best case", "time saved", "why a range"]
    )


def _shortly(gain: Gain) -> str:
    """Return why a gain is a range; of a simulation how long the run takes in it.

    >>> _shortly(Gain(1.0, 2.0, "a simulation with copies hidden takes 2.16 s", simulated="2.16 s"))
    'Simulated run: 2.16 s'
    """
    first = f"simulated run: {gain.simulated}" if gain.simulated else gain.reason
    return first[:1].upper() + first[1:]


def _unbroken(html: Markup) -> Markup:
    """Return a sentence in which no line ends between a number and its unit.

    >>> _unbroken(Markup("idle 45.4 % of 5 steps"))
    Markup('idle 45.4\\xa0% of 5 steps')
    """
    return Markup(MEASURED.sub("\N{NO-BREAK SPACE}", str(html)))


def _safe(text: str, longest: int = LIMIT) -> str:
    """Return foreign text as HTML, with what stands between backquotes as code."""
    return coded(printable(text, longest))

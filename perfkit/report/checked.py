"""The verdicts of `perfkit check` as text, Markdown, JSON and JUnit XML."""

import json
import math
from dataclasses import asdict
from xml.etree import ElementTree

import pandas as pd

from perfkit.diagnosis.check import BASELINE, BUDGET, ERROR, FAIL, PASS, Checked, Verdict
from perfkit.format import number
from perfkit.report import markdown
from perfkit.report.comparison import MOST_CAUTIONS, explained_rows

OUTCOMES = {PASS: "pass", FAIL: "fail", ERROR: "cannot tell"}  # as people read them
MARKS = OUTCOMES | {FAIL: "FAIL", ERROR: "CANNOT TELL"}
# What is judged, what it is where it fails, and where none does.
BAD = {BASELINE: ("figures", "worse", "none worse"), BUDGET: ("limits", "not kept", "all kept")}
MADE_BY = "perfkit check"
SCHEMA = 1  # of the JSON: goes up when a key goes, or means something else
# What the files begin with, by which an earlier one is known.
JSON = f'{{\n "made_by": "{MADE_BY}",'
MARKDOWN = f"<!-- {MADE_BY} -->"
MOST_VERDICTS = 12  # rows of the table in Markdown, which has at most 40 lines
JUNIT = f"<?xml version='1.0' encoding='utf-8'?>\n<testsuites name=\"{MADE_BY}\""
_KINDS = (("failure", FAIL), ("error", ERROR))


def text(checked: Checked) -> str:
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
    return "\n".join(
        [*lines, *(f"caution: {markdown.plain(caution)}" for caution in checked.cautions)]
    )


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
    limit = f"{verdict.against}: {markdown.plain(verdict.limit)}"
    mark = f"{MARKS[verdict.outcome]:<11}"
    label = markdown.plain(verdict.label)
    return f"  {mark} {label}: {verdict.values}{ratio}; {limit}; {markdown.plain(verdict.reason)}"


def as_markdown(checked: Checked, lines: pd.DataFrame) -> str:
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
    made += markdown.table(("outcome", "figure", "values", "ratio", "limit", "why"), rows)
    if len(checked.verdicts) > len(verdicts):
        made.append(f"\nand {len(checked.verdicts) - len(verdicts):,} more figures")
    if len(lines):
        made += [
            "",
            *markdown.table(
                ("time of a GPU, per step or unit", "before", "after", "difference"),
                explained_rows(lines),
            ),
        ]
    made += [
        "",
        *(f"- {markdown.escaped(caution)}" for caution in checked.cautions[:MOST_CAUTIONS]),
    ]
    return "\n".join(made).rstrip() + "\n"


def as_json(checked: Checked) -> str:
    """Return the outcome, the exit status and all verdicts as JSON; numbers that are none are null."""
    content = {
        "made_by": MADE_BY,
        "schema": SCHEMA,
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


def junit(checked: Checked, *, suite: str = MADE_BY) -> str:
    """Return the verdicts as JUnit XML (Jenkins' junit-10.xsd): a test case per figure, with failure or error."""
    counts = {
        f"{word}s": str(sum(v.outcome == kind for v in checked.verdicts)) for word, kind in _KINDS
    }
    whole = {"name": markdown.plain(suite), "tests": str(len(checked.verdicts)), **counts}
    root = ElementTree.Element("testsuites", whole)
    cases = ElementTree.SubElement(root, "testsuite", whole)
    for one in checked.verdicts:
        case = ElementTree.SubElement(
            cases,
            "testcase",
            {
                "classname": markdown.plain(suite),
                "name": markdown.plain(f"{one.id}, {one.against}: {one.limit}"),
            },
        )
        for word, kind in _KINDS:
            if one.outcome == kind:
                ElementTree.SubElement(
                    case, word, {"message": markdown.plain(one.reason)}
                ).text = _line(one).strip()
    if checked.cautions:
        cautions = "\n".join(map(markdown.plain, checked.cautions))
        ElementTree.SubElement(cases, "system-out").text = cautions
    ElementTree.indent(root, " ")
    written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return written.decode("utf-8") + "\n"

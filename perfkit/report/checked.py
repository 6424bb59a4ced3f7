"""The verdicts of a check as text, JSON and JUnit XML.

Functions
---------
text        for a terminal
as_json     for a program
junit       for continuous integration, which shows each figure as a test
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from xml.etree import ElementTree

from perfkit.diagnosis.check import ERROR, FAIL, Checked, Verdict
from perfkit.format import number, printable

LONGEST = 200  # characters of a name or a reason
MARKS = {FAIL: "FAIL ", ERROR: "ERROR"}
MADE_BY = "perfkit check"
SCHEMA = 1  # of the JSON: goes up when a key goes, or means something else
# What the files begin with, by which an earlier one is known.
JSON = f'{{\n "made_by": "{MADE_BY}",'
JUNIT = f"<?xml version='1.0' encoding='utf-8'?>\n<testsuites name=\"{MADE_BY}\""


def text(checked: Checked) -> str:
    """Return the verdicts for people, a line each, the failed ones first.

    Examples
    --------
    >>> text(Checked((), ("different GPUs: A before, B after",)))
    'ERROR: nothing was judged\\ncaution: different GPUs: A before, B after'
    """
    lines = [_headline(checked), *map(_line, checked.verdicts)]
    return "\n".join([*lines, *(f"caution: {_safe(caution)}" for caution in checked.cautions)])


def _headline(checked: Checked) -> str:
    """Return the outcome of all in one line."""
    counts = {word: sum(v.outcome == word for v in checked.verdicts) for word in (FAIL, ERROR)}
    total = len(checked.verdicts)
    if not total:
        return "ERROR: nothing was judged"
    told = [f"{counts[FAIL]} of {total} worse"] if counts[FAIL] else []
    told += [f"{counts[ERROR]} of {total} could not be judged"] if counts[ERROR] else []
    said = ", ".join(told) or f"none of {total} figures is worse"
    return f"{checked.outcome.upper()}: {said} (confidence: {checked.confidence})"


def _line(verdict: Verdict) -> str:
    ratio = "" if math.isnan(verdict.ratio) else f", ratio {number(verdict.ratio)}"
    mark = MARKS.get(verdict.outcome, "pass ")
    return f"  {mark} {_safe(verdict.label)}: {verdict.values}{ratio}; {_safe(verdict.limit)}; {_safe(verdict.reason)}"


def as_json(checked: Checked) -> str:
    """Return the outcome, the exit status and all verdicts as JSON; numbers that are none are null.

    Examples
    --------
    >>> json.loads(as_json(Checked(())))["exit_code"]
    2
    """
    content = {
        "made_by": MADE_BY,
        "schema": SCHEMA,
        "outcome": checked.outcome,
        "exit_code": checked.exit_code,
        "confidence": checked.confidence,
        "cautions": list(checked.cautions),
        "verdicts": [{key: _finite(value) for key, value in asdict(v).items()} for v in checked.verdicts],
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def junit(checked: Checked, *, suite: str = MADE_BY) -> str:
    """Return the verdicts as JUnit XML: a test case per figure, with failure or error.

    References
    ----------
    The schema of Jenkins' xUnit plugin (junit-10.xsd), which GitHub's and GitLab's readers take.

    Examples
    --------
    >>> junit(Checked(())).splitlines()[0]
    "<?xml version='1.0' encoding='utf-8'?>"
    """
    counts = {f"{word}s": str(sum(v.outcome == kind for v in checked.verdicts)) for word, kind in _KINDS}
    whole = {"name": _safe(suite), "tests": str(len(checked.verdicts)), **counts}
    root = ElementTree.Element("testsuites", whole)
    cases = ElementTree.SubElement(root, "testsuite", whole)
    for verdict in checked.verdicts:
        case = ElementTree.SubElement(cases, "testcase", {"classname": _safe(suite), "name": _case(verdict)})
        for word, kind in _KINDS:
            if verdict.outcome == kind:
                ElementTree.SubElement(case, word, {"message": _safe(verdict.reason)}).text = _line(verdict).strip()
    if checked.cautions:
        ElementTree.SubElement(cases, "system-out").text = "\n".join(map(_safe, checked.cautions))
    ElementTree.indent(root, " ")
    written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return written.decode("utf-8") + "\n"


_KINDS = (("failure", FAIL), ("error", ERROR))


def _case(verdict: Verdict) -> str:
    return _safe(f"{verdict.id}: {verdict.limit}")


def _safe(text: str) -> str:
    """Return foreign text on one line, without characters that a terminal or XML cannot take."""
    return printable(text, LONGEST)

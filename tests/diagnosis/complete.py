"""What every finding must have, of whatever run it is told."""

import re
from fnmatch import fnmatchcase

import pandas as pd

from perfkit import diagnosis
from perfkit.diagnosis.finding import CONFIDENCES, HORIZONS, SEVERITIES, UNITS, Finding
from perfkit.diagnosis.rules import rules
from perfkit.selection import Selection

ENDINGS = {
    "1": "_frac|_ratio|log_check_.*",
    "bytes/s": "_bytes_per_s|log_check_.*",
    "1/s": "_per_s",
}
# A setting, a function, a command: something that can be looked up or typed.
CONCRETE = re.compile(
    r"\w+_\w+|\w\(|\w=\w|--\w|[a-z][A-Z]\w|nsys |ncu |rocprof|perfkit |nvidia-smi|NCCL|torch\.|#pragma"
)


def complete(view: Selection, peaks: str = "") -> list[Finding]:
    """Return what is told of a selection; AssertionError if a finding lacks a part, or comes twice."""
    found, known = diagnosis.findings(view, peaks=peaks), diagnosis.figures(view, peaks=peaks)
    assert len(found) == len({finding.rule for finding in found})
    for finding in found:
        _check(finding, known)
    return found


def _check(finding: Finding, known: dict[str, diagnosis.Figure]) -> None:
    assert finding.severity in SEVERITIES
    assert finding.confidence in CONFIDENCES
    assert finding.evidence
    assert len(finding.evidence) == len({figure.id for figure in finding.evidence})
    for figure in finding.evidence:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", figure.id)
        assert re.search(f"(?:{ENDINGS.get(figure.unit, '.*')})(?:_\\d+)?$", figure.id)
        assert figure.unit in UNITS
        assert not pd.isna(figure.value)
        assert all((figure.label, figure.definition, figure.source, figure.text))
        assert figure.id not in known or known[figure.id].value == figure.value, (
            "one id, two values"
        )
    assert all((finding.title, finding.explanation, finding.target, finding.gain.why, finding.next))
    rule = rules()[finding.rule]
    assert finding.threshold == rule.threshold
    assert all(
        any(fnmatchcase(figure.id, of) for of in rule.evidence) for figure in finding.evidence
    )
    assert 1.0 <= finding.gain.low <= finding.gain.high
    assert set(finding.advice) <= set(HORIZONS)
    assert all(finding.advice.values())
    steps = [step for texts in finding.advice.values() for step in texts]
    assert not [text for text in (*steps, finding.next) if "{" in text.replace("%q{RANK}", "")]
    assert any(CONCRETE.search(step) for step in steps), "a setting, a function or a command"

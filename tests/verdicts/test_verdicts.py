"""perfkit's diagnosis of real captures against what an expert concluded from the raw data alone.

Each Markdown file here holds one expert's reading of one capture: a fenced toml block with the expert's conclusion, and
the sections "What the raw data say", "What perfkit says" and "Verdict". Keys of the block:

    capture = "nsys/NAME.sqlite"  # path below PERFKIT_PROFILES
    first = "idle_launch"  # the finding that must come first; "" if the run has no fault worth a first place
    told = ["idle_launch"]  # findings that perfkit must tell
    not_told = ["precision"]  # findings that would be wrong
    disagree = "why"  # only where perfkit is known to be wrong: the comparison must then fail
    why = "..."  # only where a tolerance is above 2 %: why the raw data cannot say it more exactly
    [figures]  # id = [value from the raw data, relative tolerance], in the unit of perfkit's figure
    [gains]  # finding = the most that can truly be gained, as a factor

The experts read whole recordings, so all of each is judged here. What is judged of a loop is in tests/cases.
"""

import math
import re
import tomllib
from pathlib import Path
from typing import Any

import extras
import pytest
from diagnosis.complete import complete

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis.rules import rules
from perfkit.report.notebooks import sample

FILES = sorted(Path(__file__).parent.glob("*.md"))
SECTIONS = ["What the raw data say", "What perfkit says", "Verdict"]
KEYS = {"capture", "first", "told", "not_told", "disagree", "why", "figures", "gains"}
LARGEST_TOLERANCE = 0.02
ROUNDING = 0.005  # a gain is written with two or three digits


def conclusion(file: Path) -> dict[str, Any]:
    blocks = re.findall(
        r"^```toml\n(.*?)^```$", file.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert len(blocks) == 1, f"{file.name}: {len(blocks)} toml blocks, not one"
    return tomllib.loads(blocks[0])


def compared(file: Path) -> Any:
    """One file as a parameter of a test, which must fail where the expert disagrees with perfkit."""
    reason = conclusion(file).get("disagree")
    marks = [pytest.mark.xfail(reason=reason, strict=True, raises=AssertionError)] if reason else []
    return pytest.param(file, id=file.stem, marks=marks)


def differences(expert: dict[str, Any], run: perfkit.Selection) -> list[str]:
    """Everything in which perfkit's diagnosis differs from the expert's conclusion, in words."""
    found, figures = diagnosis.findings(run), diagnosis.figures(run)
    by_rule = {finding.rule: finding for finding in reversed(found)}  # the most urgent of each rule
    told = list(dict.fromkeys(finding.rule for finding in found))
    wrong = []
    if expert["first"] and told[:1] != [expert["first"]]:
        wrong.append(f"first comes {told[:1]}, not {expert['first']}")
    wrong += [f"{rule} is not told" for rule in expert["told"] if rule not in by_rule]
    wrong += [
        f"{rule} is told: {by_rule[rule].title}" for rule in expert["not_told"] if rule in by_rule
    ]
    for name, (value, tolerance) in expert.get("figures", {}).items():
        known = figures[name].value if name in figures else None
        if known is None or known != pytest.approx(value, rel=tolerance, abs=0):
            wrong.append(f"{name} is {known}, the raw data say {value}")
    for rule, most in expert.get("gains", {}).items():
        promise = by_rule[rule].gain.high if rule in by_rule else None
        if (
            promise is None or most * (1 + ROUNDING) < promise < math.inf
        ):  # one that is not known promises nothing
            wrong.append(f"{rule} promises up to {promise}, at most {most} can be gained")
    return wrong


def misquoted(text: str, run: perfkit.Selection) -> list[str]:
    """The texts in double quotes under "What perfkit says" that no finding of the run says."""
    section = text.split(f"## {SECTIONS[1]}\n")[1].split(f"## {SECTIONS[2]}\n")[0]
    said = (
        (f.title, f.explanation, f.gain.why, *f.against, *f.evidence)
        for f in diagnosis.findings(run)
    )
    every = "\n".join(
        part if isinstance(part, str) else part.definition for parts in said for part in parts
    )
    return [
        quote
        for quote in (" ".join(q.split()) for q in re.findall(r'"([^"]+)"', section))
        if quote not in every
    ]


@pytest.mark.parametrize("file", [compared(file) for file in FILES])
def test_perfkit_agrees_with_the_expert(file: Path, profiles: Path) -> None:
    expert = conclusion(file)
    extras.require_reader(expert["capture"])
    run = diagnosis.phases.whole(perfkit.select(perfkit.load(profiles / expert["capture"])))
    assert [] == differences(expert, run)
    complete(run)
    assert [] == misquoted(file.read_text(encoding="utf-8"), run)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_file_is_complete(file: Path) -> None:
    text, expert = file.read_text(encoding="utf-8"), conclusion(file)
    assert text.startswith("# ")
    assert f"`{expert['capture']}`" in text.split("```toml")[0], (
        "the text above the block names the capture"
    )
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    raw = text.split(f"## {SECTIONS[0]}\n")[1].split(f"## {SECTIONS[1]}\n")[0]
    assert re.search(r"^```(sql|python|sh)\n", raw, re.MULTILINE), (
        "the raw data's section shows how they were read"
    )
    assert not set(expert) - KEYS
    named = {
        *expert["told"],
        *expert["not_told"],
        *expert.get("gains", {}),
        *filter(None, [expert["first"]]),
    }
    assert named <= set(rules())
    assert not set(expert["told"]) & set(expert["not_told"])
    assert expert["told"] or expert["not_told"]
    loose = [
        name
        for name, (_, tolerance) in expert.get("figures", {}).items()
        if tolerance > LARGEST_TOLERANCE
    ]
    assert not loose or expert.get("why"), f"{loose}: a tolerance above 2 % needs a reason"


def test_no_capture_is_read_twice_and_a_wrong_conclusion_is_noticed() -> None:
    captures = [conclusion(file)["capture"] for file in FILES]
    assert sorted(set(captures)) == sorted(captures)
    run = diagnosis.phases.whole(
        perfkit.select(perfkit.load(sample() / "mlp_a100.pt.trace.json.gz"))
    )
    found = diagnosis.findings(run)
    rules_told = {finding.rule for finding in found}
    missing = next(rule for rule in rules() if rule not in rules_told)
    expert = {
        "first": missing,
        "told": [missing],
        "not_told": [found[0].rule],
        "figures": {"kernel_busy_frac": [2.0, 0.02], "no_such_figure": [1.0, 0.02]},
        "gains": {missing: 1.5, found[0].rule: 0.5},
    }
    assert len(differences(expert, run)) == 7
    quotes = f'## {SECTIONS[1]}\n"{found[0].title}" and "Nobody says this"\n## {SECTIONS[2]}\n'
    assert ["Nobody says this"] == misquoted(quotes, run)
    agreeing = {"first": found[0].rule, "told": sorted(rules_told), "not_told": [missing]}
    assert [] == differences(agreeing, run)

"""Verdicts as text, JSON and JUnit XML."""

import json
import math
from dataclasses import replace
from random import Random
from xml.etree import ElementTree

import pytest
from diagnosis.test_check import training

from perfkit.diagnosis.check import Checked, Verdict
from perfkit.diagnosis.finding import Finding, Gain
from perfkit.diagnosis.predicted import Outcome
from perfkit.report import comparison
from perfkit.report.checked import as_json, junit, text

WORSE = Verdict(
    "step_median_ns",
    "Median step",
    "ns",
    1e6,
    1.2e6,
    1.2,
    1.1,
    1.3,
    "at most 1.05 times the baseline",
    "fail",
    "slow",
)
FINE = Verdict(
    "family_gemm_ns", "gemm per step", "ns", 5e5, 5e5, 1.0, 0.99, 1.01, "at most 1.05", "pass", "ok"
)
NAN = math.nan
HOSTILE = Verdict(
    "<a>\x00",
    "\x1b[31m</x>",
    "",
    NAN,
    NAN,
    NAN,
    NAN,
    NAN,
    "min & 1",
    "error",
    "]]>\ud800 no such figure",
    "budget",
)
ALL = Checked((HOSTILE, WORSE, FINE), ("different GPUs: A before, B\x07 after",), "low")


def test_text() -> None:
    lines = text(ALL).splitlines()
    head = "FAIL: baseline: of 2 figures 1 worse; budget: of 1 limit 1 undecided (confidence: low)"
    assert head == lines[0]
    assert lines[1].startswith("  CANNOT TELL ")
    said = "Median step: 1.00 ms -> 1.20 ms, ratio 1.20; baseline: at most 1.05 times the baseline; slow"
    assert f"  FAIL        {said}" == lines[2]
    assert "caution: different GPUs: A before, B� after" == lines[-1]
    assert text(Checked((FINE,))).startswith(
        "PASS: baseline: of 1 figure none worse (confidence: high)\n  pass "
    )
    kept = replace(FINE, against="budget")
    head = "PASS: baseline: of 1 figure none worse; budget: of 2 limits all kept (confidence: high)\n  pass "
    assert text(Checked((kept, kept, FINE))).startswith(head)
    assert "�[31m</x>" in text(ALL)
    assert text(ALL).replace("\n", "").isprintable()


@pytest.mark.parametrize("seed", range(5))
def test_the_headline_counts_the_lines(seed: int) -> None:
    random = Random(seed)
    outcomes, sides = ("pass", "fail", "error"), ("baseline", "budget")
    drawn = ((random.choice(outcomes), random.choice(sides)) for _ in range(20))
    verdicts = tuple(replace(FINE, outcome=outcome, against=against) for outcome, against in drawn)
    head, *lines = text(Checked(verdicts)).splitlines()
    for against, bad in (("baseline", "worse"), ("budget", "not kept")):
        own = [line for line in lines if f"; {against}: " in line]
        counts = [
            sum(line.startswith(f"  {mark} ") for line in own) for mark in ("FAIL", "CANNOT TELL")
        ]
        things = "figures" if against == "baseline" else "limits"
        assert (
            f"{against}: of {len(own)} {things} {counts[0]} {bad} and {counts[1]} undecided" in head
        )


def test_json() -> None:
    content = json.loads(as_json(ALL))
    assert ("fail", 1, "low") == (content["outcome"], content["exit_code"], content["confidence"])
    assert [None, 1.2, 1.0] == [verdict["ratio"] for verdict in content["verdicts"]]
    assert "step_median_ns" == content["verdicts"][1]["id"]
    assert ["budget", "baseline", "baseline"] == [
        verdict["against"] for verdict in content["verdicts"]
    ]
    assert 1 == content["schema"]
    assert as_json(ALL).encode("utf-8")


def test_junit() -> None:
    root = ElementTree.fromstring(junit(ALL))
    suite = root[0]
    assert ("testsuites", "testsuite") == (root.tag, suite.tag)
    assert ("3", "1", "1") == tuple(suite.attrib[key] for key in ("tests", "failures", "errors"))
    cases = suite.findall("testcase")
    assert [["error"], ["failure"], []] == [[child.tag for child in case] for case in cases]
    assert "slow" == cases[1][0].attrib["message"]
    assert "step_median_ns, baseline: at most 1.05 times the baseline" == cases[1].attrib["name"]
    assert "different GPUs: A before, B� after" == suite.findtext("system-out")
    case = ElementTree.fromstring(junit(ALL, suite="<s>"))[0][0]
    assert ("<s>", "<a>�, budget: min & 1") == (case.attrib["classname"], case.attrib["name"])
    assert "]]>� no such figure" == case[0].attrib["message"]


def test_nothing_was_judged() -> None:
    none = Checked(())
    assert ("CANNOT TELL: nothing was judged", 2) == (
        text(none),
        json.loads(as_json(none))["exit_code"],
    )
    assert "0" == ElementTree.fromstring(junit(none))[0].attrib["tests"]


HARMFUL = "<b>|x`_y_\x1b[31m"


def finding(number: int) -> Finding:
    gain = Gain(1.2, math.inf if number % 2 else 4.7, "")
    return Finding(f"rule {number}", f"{HARMFUL} {number}", "warning", "", (), "", gain, {})


@pytest.fixture(scope="module")
def series() -> comparison.Series:
    """Seven runs, of which each mended five findings of the one before and has five new ones."""
    runs = {f"{HARMFUL} {number}": [training(10 - number, seed=number)] for number in range(7)}
    made = comparison.series(runs)
    moved = tuple(map(finding, range(5)))
    one = Outcome(moved, moved, (1.2, 4.7), 2.0, (1.9, 2.1))
    return replace(made, outcomes=(one,) * 6)


def test_a_comparison_in_markdown_has_at_most_40_lines(series: comparison.Series) -> None:
    lines = comparison.as_markdown(series).splitlines()
    assert "<!-- perfkit compare -->" == lines[0]
    assert 25 < len(lines) <= 40


def test_a_comparison_in_markdown_escapes_names(series: comparison.Series) -> None:
    text = comparison.as_markdown(series).partition("\n")[2]
    assert "&#60;b&#62;&#124;x&#96;&#95;y&#95;" in text
    assert "<" not in text
    assert text.replace("\n", "").isprintable()


def test_a_comparison_says_how_many_findings_it_left_out(series: comparison.Series) -> None:
    assert "- and 54 more findings came or went" in comparison.as_markdown(series)


def test_a_series_ends_with_how_many_predictions_held(series: comparison.Series) -> None:
    assert "calibration: 6 of 6 predicted ranges held" in comparison.text(series)


def test_the_text_names_each_finding_that_went_with_its_prediction(
    series: comparison.Series,
) -> None:
    assert " 1: went: <b>|x`_y_�[31m 0 (predicted: 1.2x to 4.7x)\n" in comparison.text(series)


def test_the_json_has_what_came_of_each_prediction(series: comparison.Series) -> None:
    first = json.loads(comparison.as_json(series))["findings"][0]
    assert [1.2, 4.7] == first["predicted"]
    assert [1.9, 2.1] == first["speedup_interval"]
    assert first["held"] is True
    assert {"low": 1.2, "high": None, "is_known": False} == first["went"][1]["gain"]


def test_a_series_of_three_runs_compares_each_with_the_one_before() -> None:
    runs = {f"{length} ms": [training(length)] for length in (20.0, 10.0, 5.0)}
    outcomes = comparison.series(runs).outcomes
    assert [pytest.approx(2, rel=0.05)] * 2 == [one.speedup for one in outcomes]

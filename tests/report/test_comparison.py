"""Verdicts as text, JSON and JUnit XML."""

import json
import math
from dataclasses import replace
from random import Random
from xml.etree import ElementTree

import pytest

from perfkit.diagnosis.check import Checked, Verdict
from perfkit.report.comparison import check_json, check_text, junit

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
    lines = check_text(ALL).splitlines()
    head = "FAIL: baseline: of 2 figures 1 worse; budget: of 1 limit 1 undecided (confidence: low)"
    assert head == lines[0]
    assert lines[1].startswith("  CANNOT TELL ")
    said = "Median step: 1.00 ms -> 1.20 ms, ratio 1.20; baseline: at most 1.05 times the baseline; slow"
    assert f"  FAIL        {said}" == lines[2]
    assert "caution: different GPUs: A before, B� after" == lines[-1]
    assert check_text(Checked((FINE,))).startswith(
        "PASS: baseline: of 1 figure none worse (confidence: high)\n  pass "
    )
    kept = replace(FINE, against="budget")
    head = "PASS: baseline: of 1 figure none worse; budget: of 2 limits all kept (confidence: high)\n  pass "
    assert check_text(Checked((kept, kept, FINE))).startswith(head)
    assert "�[31m</x>" in check_text(ALL)
    assert check_text(ALL).replace("\n", "").isprintable()


@pytest.mark.parametrize("seed", range(5))
def test_the_headline_counts_the_lines(seed: int) -> None:
    random = Random(seed)
    outcomes, sides = ("pass", "fail", "error"), ("baseline", "budget")
    drawn = ((random.choice(outcomes), random.choice(sides)) for _ in range(20))
    verdicts = tuple(replace(FINE, outcome=outcome, against=against) for outcome, against in drawn)
    head, *lines = check_text(Checked(verdicts)).splitlines()
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
    content = json.loads(check_json(ALL))
    assert ("fail", 1, "low") == (content["outcome"], content["exit_code"], content["confidence"])
    assert [None, 1.2, 1.0] == [verdict["ratio"] for verdict in content["verdicts"]]
    assert "step_median_ns" == content["verdicts"][1]["id"]
    assert ["budget", "baseline", "baseline"] == [
        verdict["against"] for verdict in content["verdicts"]
    ]
    assert 1 == content["schema"]
    assert check_json(ALL).encode("utf-8")


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
        check_text(none),
        json.loads(check_json(none))["exit_code"],
    )
    assert "0" == ElementTree.fromstring(junit(none))[0].attrib["tests"]

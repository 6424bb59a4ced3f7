"""How a finding is shown: with how sure it is, what speaks against it, and what to measure next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfkit.diagnosis.finding import Figure, Finding, Gain, plain
from perfkit.report import pages
from perfkit.report.blocks import key_findings, nothing_found

SURE = Finding(
    "rule", "The <b>GPU</b> waits", "high", "For data.", (), "none", Gain(1.0, 2.0, "why"), {}, next="A log."
)
DOUBTED = replace(SURE, confidence="low", against=("it is <i>busy</i>", "it was never idle"))


def test_what_speaks_against_a_finding_is_shown() -> None:
    """Confidence stands beside severity, what speaks against it and what to measure next below; texts are escaped."""
    html = key_findings([DOUBTED], {}).html
    assert "(high, low confidence)" in html
    assert "Against it: it is &lt;i&gt;busy&lt;/i&gt;; it was never idle." in html
    assert "Measure next: A log." in html


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ((), "No GPU activity was recorded"),
        (("log_idle_frac",), "No check of the GPUs"),
        (("baseline_ridge",), "measurements of a machine or a training"),
        (("log_idle_frac", "span_ns"), "costs more than a tenth"),
    ],
)
def test_why_there_is_no_finding(figures: tuple[str, ...], said: str) -> None:
    """A log of GPUs and a benchmark are recordings, of which nothing is said that they cannot show."""
    assert said in nothing_found(figures)


def test_the_first_figure_of_a_finding_is_a_link_in_its_title() -> None:
    """The whole number is, never a part of one: 5 % does not stand in 15 %."""
    idle = Figure("idle_frac", "GPU idle", 0.05, "1", "what", "KERNELS, COPIES; timeline.breakdown")
    told, other = (replace(SURE, title=title, evidence=(idle,)) for title in ("Idle 5.0 %", "Idle 15.0 %"))
    assert 2 == key_findings([told], {}).html.count('href="3_system.ipynb#cell-id=')
    assert 1 == key_findings([other], {}).html.count('href="3_system.ipynb#cell-id=')


def test_nothing_against_a_finding_is_not_mentioned() -> None:
    """A finding without doubts says nothing of them."""
    html = key_findings([SURE], {}).html
    assert ("(high, high confidence)" in html, "Against" in html) == (True, False)


def test_the_record_holds_confidence_and_doubts() -> None:
    """`summary.json` has the three fields of each finding, and Markdown says the doubts in words."""
    found = plain(DOUBTED)
    assert ("low", ("it is <i>busy</i>", "it was never idle"), "A log.") == tuple(
        found[name] for name in ("confidence", "against", "next")
    )
    content = {
        "inputs": {"captures": [], "parameters": {"profile": "run"}, "devices": [], "selection": "all", "notes": []}
        | {"perfkit_version": "0"},
        "figures": {},
        "findings": [found],
        "refusals": [],
    }
    assert "(high, low confidence). For data. Against it: it is &lt;i&gt;busy" in pages.markdown(content)

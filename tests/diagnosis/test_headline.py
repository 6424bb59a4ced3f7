"""The order of findings: what the verdict names first."""

import math
from typing import Any

import pytest

from perfkit.diagnosis.finding import Figure, Finding, Gain
from perfkit.diagnosis.headline import ranked


def finding(rule: str, source: str, **more: Any) -> Finding:
    figure = Figure("share_frac", "Share", 0.3, "1", "a share", source)
    return Finding(rule, "", "medium", "", (figure,), "", advice={}, **more)


UNSURE = finding("idle_host_code", "timeline.busy", gain=Gain(1.0, 1.4, "", 0.3), confidence="low")
BUSY_IN_LOG = finding("log_utilisation", "SAMPLES", gain=Gain(1.0, math.inf, ""))
THROTTLED = finding("log_throttling", "SAMPLES", gain=Gain(1.0, math.inf, ""))


def test_an_unsure_cause_of_a_timeline_comes_before_what_a_log_shows_of_it() -> None:
    assert ranked([BUSY_IN_LOG, UNSURE]) == [UNSURE, BUSY_IN_LOG]


def test_a_cause_that_a_log_shows_comes_before_an_unsure_one() -> None:
    assert ranked([UNSURE, THROTTLED]) == [THROTTLED, UNSURE]


def test_of_a_log_alone_what_is_sure_comes_first() -> None:
    unsure = finding("log_unused", "SAMPLES", gain=Gain(1.0, 2.0, "", 0.5), confidence="low")
    assert ranked([unsure, BUSY_IN_LOG]) == [BUSY_IN_LOG, unsure]


@pytest.mark.parametrize("source", ["communication.imbalance", "communication.summary"])
def test_a_finding_on_ranks_rests_on_the_times_of_the_timeline(source: str) -> None:
    assert finding("ranks", source, gain=Gain(1.0, 1.1, "", 0.1)).rests_on_times

"""What a real program's start is: an H200 recorded a transformer from its construction through twelve training steps.

A step takes 10.6 ms without a profiler (`times.json` of data/h200_start_up.zip). The recording begins with the
program, so that its first launches, allocations and copies of weights are in it.
"""

import json
import zipfile
from pathlib import Path

import pytest

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis.headline import headline

ARCHIVE = Path(__file__).parents[2] / "data" / "h200_start_up.zip"


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> perfkit.Selection:
    """The recording; the wheel does not hold it."""
    if not ARCHIVE.exists():
        pytest.skip("data/h200_start_up.zip is not here: it is in the repository")
    folder = tmp_path_factory.mktemp("start_up")
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(folder)
    return perfkit.select(perfkit.load(folder / "growing.pt.trace.json"))


def test_the_steps_are_the_loop_and_the_rest_is_start_up(started: perfkit.Selection) -> None:
    phases = diagnosis.repeating.phases(started)

    assert phases["phase"].tolist() == ["start_up", "loop", "end"]
    assert phases["repetitions"].iloc[1] == 11


def test_no_finding_of_the_loop_tells_of_the_start(started: perfkit.Selection) -> None:
    told = {finding.rule for finding in diagnosis.findings(started)}

    assert not {"warm_up", "start_up", "idle_memory", "copies_pageable"} & told


def test_the_verdict_tells_the_start_once(started: perfkit.Selection) -> None:
    verdict = headline(started, diagnosis.figures(started), diagnosis.findings(started)).verdict

    assert verdict.count("Start-up takes") == 1
    assert "Start-up takes 448 of 642 ms, once per process" in verdict


def test_a_step_in_the_recording_is_at_least_as_long_as_without_the_profiler(
    started: perfkit.Selection,
) -> None:
    with zipfile.ZipFile(ARCHIVE) as archive:
        alone_ns = json.loads(archive.read("times.json"))["step_s"] * 1e9

    assert alone_ns <= diagnosis.figures(started)["step_median_ns"].value <= 2 * alone_ns

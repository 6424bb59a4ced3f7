"""Kernel-level figures of the lab's inference: the numbers the lab should have found."""

from __future__ import annotations

from pathlib import Path

import pytest

import perfkit
from perfkit import diagnosis
from perfkit.report.notebooks import sample


@pytest.fixture
def view() -> perfkit.Selection:
    """The sample run: timeline and counters."""
    return perfkit.select(perfkit.load(sample()))


def test_lab_figures(view: perfkit.Selection) -> None:
    """763,904 + 772,096 + 2 x 15,484,032 = 32,504,064 FLOP; / 57.58 us = 0.5645 TFLOP/s; / 2,481,024 B = 13.10.

    The lab added the clocks of eight launches and got 7.2 us and 4.5 TFLOP/s.
    """
    figures = diagnosis.figures(view)
    assert 32_504_064 == figures["measured_flops"].value
    assert 2_481_024 == figures["measured_dram_bytes"].value
    assert 57_582 == pytest.approx(figures["measured_dur_ns"].value, abs=1)
    assert 0.5645e12 == pytest.approx(figures["measured_flops_per_s"].value, rel=1e-3)
    assert 13.101 == pytest.approx(figures["measured_intensity"].value, abs=1e-3)


def test_lab_is_bound_by_latency(view: perfkit.Selection) -> None:
    """At 3 % of the roof and less than a wave of blocks the verdict is latency, not memory, as the lab concluded."""
    (finding,) = (f for f in diagnosis.findings(view) if f.rule.endswith("_bound"))
    assert "latency_bound" == finding.rule
    assert "low" == finding.severity


def test_roof_is_the_data_sheet_of_the_recorded_gpu(view: perfkit.Selection) -> None:
    """The A100 PCIe's FP32 ridge is 19.5 TFLOP/s over 1.935 TB/s = 10.08 FLOP/byte."""
    roof = diagnosis.roof(view)
    assert roof.ceilings is not None
    ridge = roof.ceilings[roof.ceilings["roof"] == "fp32"]["ridge"].iloc[0]
    assert 10.08 == pytest.approx(ridge, abs=0.01)


def test_question_of_counters_is_not_refused_when_they_are_there(view: perfkit.Selection) -> None:
    """With counters the main stall is a figure and no longer among what was not answered."""
    assert "Main stall: long scoreboard" == diagnosis.figures(view)["main_stall_frac"].label
    assert [] == [r for r in diagnosis.refusals(view) if "stall" in r.question]


def test_counters_without_a_timeline_say_so() -> None:
    """Launches alone do not tell whether the GPU is idle: a timeline is what to record."""
    alone = perfkit.select(perfkit.load(sample() / "mlp_a100.inference.ncu.csv"))
    assert "Is the GPU idle, and why?" in [r.question for r in diagnosis.refusals(alone)]
    assert "span_ns" not in diagnosis.figures(alone)


def test_a_launch_without_a_number_was_not_measured(profiles: Path) -> None:
    """The report has five launches; of the last, which was cut, every counter is NaN: four were measured."""
    run = perfkit.load(profiles / "ncu" / "flyinglandlord__sglang__profile.ncu-rep")
    lasted = run.launches.set_index("launch")["dur_ns"]
    assert (5, [4]) == (len(lasted), lasted.index[lasted.isna()].tolist())
    figures = diagnosis.figures(run)
    assert 4 == figures["measured_count"].value
    assert 16_448 + 3_232 + 33_504 + 33_952 == figures["measured_dur_ns"].value

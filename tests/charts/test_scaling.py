"""Throughput by the number of GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import altair as alt
import pandas as pd
import pytest

from perfkit.analysis.scaling import scaling
from perfkit.charts.machine import scaling_efficiency
from perfkit.errors import SchemaError

Check = Callable[[alt.TopLevelMixin], dict[str, Any]]


def table(*runs: tuple[int, float]) -> pd.DataFrame:
    """What the analysis says of runs of (GPUs, throughput)."""
    return scaling(pd.DataFrame(runs, columns=["gpus", "throughput_per_s"]))


GUIDE = table((1, 1000.0), (8, 7200.0), (64, 48000.0), (512, 320000.0))


def test_runs_beside_the_ideal(checked: Check) -> None:
    """The guide's table: 90, 75 and 62.5 % of 1,000 tokens/s for each GPU, on logarithmic axes."""
    spec = checked(scaling_efficiency(GUIDE, work="tokens"))
    ideal, _, line, point, words = spec["layer"]
    assert [1000, 8000, 64000, 512000] == [row["ideal"] for row in ideal["rows"]]
    assert "ideal" == ideal["encoding"]["y"]["field"]
    assert [1000, 7200, 48000, 320000] == [row["throughput"] for row in line["rows"]]
    assert ["100 %", "90.0 %", "75.0 %", "62.5 %"] == [row["words"] for row in words["rows"]]
    assert ("log", 2) == tuple(point["encoding"]["x"]["scale"][key] for key in ("type", "base"))
    assert [1, 8, 64, 512] == point["encoding"]["x"]["axis"]["values"]
    assert "throughput (tokens/s, logarithmic)" == point["encoding"]["y"]["title"]
    assert "512 GPUs reach 62.5 % of the ideal throughput" == spec["title"]["text"]
    assert "Dashed: the ideal, 1,000 tokens/s for each GPU as on 1 GPU" in spec["title"]["subtitle"][0]


def test_everything_lies_inside_the_picture(checked: Check) -> None:
    """Runs and ideal lie between the ends of both axes, with room to the right for the last figure."""
    encoding = checked(scaling_efficiency(GUIDE))["layer"][3]["encoding"]
    (left, right), (low, high) = (encoding[axis]["scale"]["domain"] for axis in ("x", "y"))
    assert left < 1 < 512 * 1.5 < right
    assert low < 1000 < 512000 < high


def test_a_baseline_of_several_gpus(checked: Check) -> None:
    """From 8 GPUs on: 100 samples/s each; a title of the user stays."""
    spec = checked(scaling_efficiency(table((8, 800.0), (16, 1200.0)), work="samples", title="ResNet"))
    assert "ResNet" == spec["title"]["text"]
    assert "100 samples/s for each GPU as on 8 GPUs" in spec["title"]["subtitle"][0]


def test_several_runs_on_one_number_of_gpus(checked: Check) -> None:
    """Two runs on 4 GPUs, 75 and 50 %: both are drawn, their figures stand once, at the slower one."""
    spec = checked(scaling_efficiency(table((4, 300.0), (1, 100.0), (4, 200.0))))
    rows = [(row["gpus"], row["throughput"], row["words"]) for row in spec["layer"][-1]["rows"]]
    assert [(1, 100, "100 %"), (4, 200, "50.0 % to 75.0 %"), (4, 300, "")] == rows
    assert "4 GPUs reach 50.0 % to 75.0 % of the ideal throughput" == spec["title"]["text"]


def test_more_than_ideal_is_flagged(checked: Check) -> None:
    """110 % of the ideal is drawn inside the picture, with a word on what to check."""
    spec = checked(scaling_efficiency(table((1, 100.0), (2, 220.0))))
    assert "Above 100 %: check that all runs do the same work per step" in spec["title"]["subtitle"][1]
    assert spec["layer"][3]["encoding"]["y"]["scale"]["domain"][1] > 220
    assert 1 == len(checked(scaling_efficiency(GUIDE))["title"]["subtitle"])


def test_many_numbers_of_gpus_share_a_few_ticks(checked: Check) -> None:
    """Of 1 to 30 GPUs the doubles of the smallest have a tick, and the largest."""
    point = checked(scaling_efficiency(table(*((n, 10.0 * n) for n in range(1, 31)))))["layer"][3]
    assert [1, 2, 4, 8, 16, 30] == point["encoding"]["x"]["axis"]["values"]


def test_what_is_counted_is_text(checked: Check) -> None:
    """The words for the work are on one line and cut."""
    title = checked(scaling_efficiency(GUIDE, work="a\nb" + "x" * 99))["layer"][3]["encoding"]["y"]["title"]
    assert title.startswith("throughput (a bxxx")
    assert len("throughput (/s, logarithmic)") + 30 == len(title)


def test_one_number_of_gpus_is_nothing_to_compare(checked: Check) -> None:
    """No run, and runs on one number of GPUs, are a sentence."""
    for frame in (GUIDE.iloc[:0], table((8, 1.0), (8, 2.0))):
        assert "at least two" in checked(scaling_efficiency(frame))["title"]["subtitle"][0]


def test_wrong_frames_are_refused() -> None:
    """A missing column, a throughput of 0 and a missing efficiency are refused."""
    with pytest.raises(SchemaError, match="efficiency_frac"):
        scaling_efficiency(GUIDE.drop(columns="efficiency_frac"))
    with pytest.raises(ValueError, match=r"throughput_per_s: 0.0 is not above 0"):
        scaling_efficiency(GUIDE.assign(throughput_per_s=0.0))
    with pytest.raises(ValueError, match=r"efficiency_frac: .* is not above 0"):
        scaling_efficiency(GUIDE.assign(efficiency_frac=float("nan")))

"""Typical operations on the roof of a machine, iterations of a training, and throughput by the number of GPUs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import altair as alt
import pandas as pd
import pytest

from perfkit.analysis import llm_operations
from perfkit.analysis.scaling import scaling
from perfkit.charts.machine import LINE, iterations, phases, roofline, scaling_efficiency
from perfkit.charts.roofline import HEIGHT
from perfkit.errors import SchemaError
from perfkit.hardware import Peaks

Check = Callable[[alt.TopLevelMixin], dict[str, Any]]
GPU = Peaks("made up", {"bf16_tensor": 100e12}, memory_bytes_per_s=1e12)
OWN = Peaks("made up", {"bf16_tensor": 80e12}, memory_bytes_per_s=9e11)


def drawn(sheet: Peaks | None = GPU, own: Peaks | None = None, **more: Any) -> alt.LayerChart:
    """The picture of the typical operations; on the measured roof where there is one."""
    peaks = own or sheet
    assert peaks is not None
    placed = llm_operations.attainable(llm_operations.work(), peaks=peaks, precision="bf16_tensor")
    return roofline(placed, llm_operations.ceilings(peaks=sheet, measured=own), roof="bf16_tensor", **more)


def rows(spec: dict[str, Any], mark: str) -> list[dict[str, Any]]:
    """The rows of the last layer with this kind of mark."""
    return [view["rows"] for view in spec["layer"] if view["mark"]["type"] == mark][-1]


def test_operations_lie_on_the_roof(checked: Check) -> None:
    """100 TFLOP/s and 1 TB/s: each point at the lower of both, and the look-up, which computes nothing, is named."""
    spec = checked(drawn())
    points = rows(spec, "point")
    assert 8 == len(points)
    assert [min(100e12, p["intensity"] * 1e12) for p in points] == [p["performance"] for p in points]
    assert "Memory limits 6 of 8 typical operations" == spec["title"]["text"]
    assert "computes nothing: embedding." in spec["title"]["subtitle"][0]


def test_words_stand_below_each_other(checked: Check) -> None:
    """From word to word at least a line of text down, each below and right of its point, all inside the picture."""
    spec = checked(drawn())
    points = rows(spec, "point")
    low, high = spec["layer"][-1]["encoding"]["y"]["scale"]["domain"]
    lines = [point["word_y"] for point in points]
    step = (high / low) ** (LINE / HEIGHT)
    assert all(above / below >= step * (1 - 1e-9) for above, below in pairwise(lines))
    assert all(p["word_x"] > p["intensity"] and p["word_y"] < p["performance"] for p in points)
    assert min(lines) > low


def test_measured_roofs_are_dashed(checked: Check) -> None:
    """With both, two strokes and a legend; the words are the data sheet's, the points lie on what was measured."""
    spec = checked(drawn(own=OWN))
    dash = spec["layer"][0]["encoding"]["strokeDash"]
    assert {"data sheet": [1, 0], "measured": [5, 4]} == dict(zip(*dash["scale"].values(), strict=True))
    assert {"data sheet", "measured"} == {row["source"] for row in spec["layer"][0]["rows"]}
    assert {"memory 1.00 TB/s", "BF16 tensor 100 TFLOP/s"} == {row["label"] for row in spec["layer"][1]["rows"]}
    assert 80e12 == max(point["performance"] for point in rows(spec, "point"))


@pytest.mark.parametrize(("sheet", "own"), [(GPU, None), (None, OWN)])
def test_a_single_roof_is_solid_and_needs_no_legend(checked: Check, sheet: Peaks | None, own: Peaks | None) -> None:
    """Whether of the data sheet or measured: it is the only one."""
    dash = checked(drawn(sheet, own))["layer"][0]["encoding"]["strokeDash"]
    assert [[1, 0]] == dash["scale"]["range"]
    assert dash["legend"] is None


def test_what_is_not_known_is_a_sentence(checked: Check) -> None:
    """Without a bandwidth there is no slope, without operations no point: the chart says what to measure."""
    placed = llm_operations.attainable(llm_operations.work(), peaks=GPU, precision="bf16_tensor")
    flat = llm_operations.ceilings(peaks=Peaks("made up", {"bf16_tensor": 1e12}))
    for chart in (
        roofline(placed, flat, roof="bf16_tensor"),
        roofline(placed, llm_operations.ceilings(peaks=GPU), roof="fp32"),
        roofline(placed.iloc[:0], llm_operations.ceilings(peaks=GPU), roof="bf16_tensor"),
    ):
        assert "perfkit baseline gemm" in checked(chart)["title"]["subtitle"][0]


def test_wrong_arguments_are_refused() -> None:
    """A family without a colour and a missing column are errors that say so."""
    placed = llm_operations.attainable(llm_operations.work(), peaks=GPU, precision="bf16_tensor")
    roofs = llm_operations.ceilings(peaks=GPU)
    with pytest.raises(ValueError, match=r"family: \['magic'\] are not among"):
        roofline(placed.assign(family="magic"), roofs, roof="bf16_tensor")
    with pytest.raises(SchemaError, match="measured_bytes_per_s"):
        roofline(placed, roofs.drop(columns="measured_bytes_per_s"), roof="bf16_tensor")


MS, SECOND = 1e6, 1_000_000_000


def log(*lengths: float, rank: int = 0, chosen: int = 0, count: int = 1) -> pd.DataFrame:
    """Iterations of so many ms, a line each second, chosen from the one of this number on."""
    rows = [
        {"rank": rank, "time_ns": n * SECOND, "count": count, "chosen": n >= chosen}
        | {"median_ns": ms * MS, "least_ns": (ms - count + 1) * MS, "most_ns": (ms + count - 1) * MS}
        for n, ms in enumerate(lengths)
    ]
    return pd.DataFrame(rows)


def points(spec: dict[str, Any]) -> dict[str, Any]:
    """The layer of points."""
    return next(view for view in spec["layer"] if view["mark"]["type"] == "point")


def test_points_in_time_and_their_median(checked: Check) -> None:
    """900 ms, then 300 and 310: the median is 310, the first 900; time in s, from the first line on."""
    spec = checked(iterations(log(900, 300, 310)))
    rows = points(spec)["rows"]
    assert [(0, 900), (1, 300), (2, 310)] == [(row["time"], row["median"]) for row in rows]
    assert spec["title"]["text"] == "The median iteration takes 310 ms, the first 900 ms"
    assert "(ms)" in points(spec)["encoding"]["y"]["title"]
    assert "(s)" in points(spec)["encoding"]["x"]["title"]


def test_phases_share_an_iteration(checked: Check) -> None:
    """Of 400 ms the forward pass takes 100 and the backward pass 300; a phase of no time has no part."""
    frame = pd.DataFrame({"rank": 0, "phase": ["forward pass", "backward pass", "optimizer step"]})
    spec = checked(phases(frame.assign(median_ns=[100 * MS, 300 * MS, 0.0])))
    drawn = [(row["phase"], row["begin"], row["end"], row["told"]) for row in spec["layer"][0]["rows"]]
    assert [("forward pass", 0, 0.25, "100 ms"), ("backward pass", 0.25, 1, "300 ms")] == drawn
    assert "The backward pass takes 75.0 % of the iteration" == spec["title"]["text"]
    two = pd.concat([frame.assign(median_ns=1.0), frame.assign(rank=1, median_ns=[1.0, 1.0, 8.0])])
    assert "The optimizer step takes 80.0 % of the iteration of log 1" == checked(phases(two))["title"]["text"]


def test_iterations_outside_the_window_are_fainter(checked: Check) -> None:
    """The title speaks of the chosen ones, and the others are counted."""
    spec = checked(iterations(log(900, 300, 320, chosen=1)))
    assert [0.3, 1.0, 1.0] == [row["shade"] for row in points(spec)["rows"]]
    assert spec["title"]["text"] == "The median iteration takes 310 ms, the first 900 ms"
    assert "1 of 3 iterations lie outside the window" in spec["title"]["subtitle"][1]


def test_neighbours_of_a_long_log(checked: Check) -> None:
    """Groups of three show how far their iterations lie apart."""
    spec = checked(iterations(log(300, 310, count=3)))
    assert [(298, 302), (308, 312)] == [(row["least"], row["most"]) for row in points(spec)["rows"]]
    assert spec["title"]["subtitle"] == [
        "Points: medians of neighbouring iterations; bars: from the least to the most."
    ]


def test_logs_are_told_apart(checked: Check) -> None:
    """Of ten logs the first eight are drawn, each in a colour of its own."""
    spec = checked(iterations(pd.concat([log(100 + rank, 100 + rank, rank=rank) for rank in range(10)])))
    scale = points(spec)["encoding"]["color"]["scale"]
    assert [f"log {rank}" for rank in range(8)] == scale["domain"]
    assert 8 == len({*scale["range"]})
    assert spec["title"]["text"] == "The median iteration takes 100 ms to 107 ms, by log"
    assert "These are the first 8 of 10 logs." in spec["title"]["subtitle"]


def test_without_iterations_the_chart_says_so() -> None:
    """Nothing is drawn."""
    assert "No iterations" == iterations(log(1).iloc[:0]).to_dict()["title"]["text"]


def test_a_missing_column_is_named() -> None:
    """The chart says what it lacks."""
    with pytest.raises(SchemaError, match="chosen"):
        iterations(log(1).drop(columns="chosen"))


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

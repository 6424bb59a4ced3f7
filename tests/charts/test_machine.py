"""The picture of typical operations on the roof of a machine."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import altair as alt
import pytest

from perfkit.analysis import llm_operations
from perfkit.charts.machine import LINE, roofline
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

"""The picture of points under roofs."""

from typing import Any

import altair as alt
import pandas as pd
import pytest
from charts.checking import Spec, checked, drawn, subtitle, title
from counted import launches

from perfkit.analysis import roofline as places
from perfkit.charts.roofline import roofline
from perfkit.hardware import Peaks

GPU = Peaks(
    "made up", {"fp32": 10e12, "fp64": 5e12, "fp16_tensor": 100e12}, memory_bytes_per_s=1e12
)
FP32 = {"name": "sgemm", "dur_ns": 1e3, "fp32_flops": 8e6, "dram_bytes": 1e5}


def picture(*rows: dict[str, Any], bound: bool = True, **more: Any) -> alt.LayerChart:
    """These launches on a GPU of 10 and 5 TFLOP/s and 1 TB/s."""
    table = launches(*rows)
    roofs = places.ceilings(table, peaks=GPU)
    points = places.points(table)
    return roofline(places.bound(points, roofs) if bound else points, roofs, **more)


def texts(spec: Spec) -> set[str]:
    """Everything written next to roofs and ridges."""
    return {
        row["label"]
        for view in spec["layer"]
        if view["mark"]["type"] == "text"
        for row in view["rows"]
    }


def test_a_point_under_its_roofs() -> None:
    """8 MFLOP, 0.1 MB in 1 us: 80 FLOP/byte and 8 TFLOP/s under 10; the ridge lies at 10, FP64 is not drawn."""
    spec = checked(picture(FP32))
    point = drawn(spec["layer"][-1], "intensity", "performance", "group", "share")
    assert [(80, 8e12, "compute", "80.0 %")] == point
    low, high = spec["layer"][-1]["encoding"]["y"]["scale"]["domain"]
    assert low < 8e12 < 10e12 < high
    assert {"DRAM 1.00 TB/s", "FP32 10.0 TFLOP/s", "ridge 10.0 FLOP/byte"} == texts(spec)
    assert "sgemm does 8.00 TFLOP/s, 80.0 % of its roof" == title(spec)
    ridge = next(view for view in spec["layer"] if view["mark"].get("shape") == "diamond")
    assert (10, 10e12) == drawn(ridge, "intensity", "performance")[0]
    rows = pd.DataFrame(spec["layer"][0]["rows"])
    slope, height = (rows[rows["line"] == line] for line in (0, 1))
    assert (slope["intensity"] * 1e12).tolist() == pytest.approx(slope["performance"].tolist())
    assert (10, 10e12) == pytest.approx((slope["intensity"].max(), slope["performance"].max()))
    assert (10, {10e12}) == (height["intensity"].min(), set(height["performance"]))
    assert 5 == len(rows) == len(checked(picture(FP32, {**FP32, "gpu": 1}))["layer"][0]["rows"])


def test_what_has_no_place_or_a_hostile_name() -> None:
    spec = checked(picture(FP32, {"dur_ns": 1e3}, {**FP32, "fp32_flops": 9e9}))
    assert 1 == len(spec["layer"][-1]["rows"])
    said = "Not drawn: 1 without FLOP or bytes; 1 refused, above 110 % of the roof."
    assert [said] == subtitle(spec)
    assert "No launch was measured." == subtitle(picture())[0]
    assert "1 without FLOP" in subtitle(picture({"dur_ns": 1.0}))[0]
    alone = checked(roofline(places.points(launches(FP32)), places.CEILINGS.empty()))
    assert (1, True) == (len(alone["layer"]), "roofs unknown" in alone["description"])
    spec = checked(picture({**FP32, "name": "<script>alert(1)</script>" + "x" * 9_000}))
    ((name,),) = drawn(spec["layer"][-1], "name")
    assert (400, "<script>") == (len(name), name[:8])

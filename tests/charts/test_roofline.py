"""The picture of points under roofs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import altair as alt
import pandas as pd
import pytest
from counted import counters, launches

from perfkit.analysis import roofline as places
from perfkit.charts.roofline import BOUND_COLOURS
from perfkit.charts.roofline import roofline as roofline_roofline
from perfkit.errors import SchemaError
from perfkit.hardware import Peaks

Check = Callable[[alt.TopLevelMixin], dict[str, Any]]

GPU = Peaks("made up", {"fp32": 10e12, "fp64": 5e12, "fp16_tensor": 100e12}, memory_bytes_per_s=1e12)
FP32 = {"name": "sgemm", "dur_ns": 1e3, "fp32_flops": 8e6, "dram_bytes": 1e5}


def drawn(*rows: dict[str, Any], bound: bool = True, **more: Any) -> alt.LayerChart:
    """The picture of these launches on a GPU of 10 and 5 TFLOP/s and 1 TB/s."""
    table = launches(*rows)
    roofs = places.ceilings(table, peaks=GPU)
    points = places.points(table)
    return roofline_roofline(places.bound(points, roofs) if bound else points, roofs, **more)


def texts(spec: dict[str, Any]) -> set[str]:
    """Everything written next to roofs and ridges."""
    marks = [view for view in spec["layer"] if view["mark"]["type"] == "text"]
    return {row["label"] for view in marks for row in view["rows"]}


def test_a_point_under_its_roofs(checked: Check) -> None:
    """8 MFLOP, 0.1 MB in 1 us: 80 FLOP/byte and 8 TFLOP/s under 10; the ridge lies at 10, FP64 is not drawn."""
    spec = checked(drawn(FP32))
    point = spec["layer"][-1]["rows"][0]
    assert (80, 8e12, "compute", "80.0 %") == tuple(point[k] for k in ("intensity", "performance", "group", "share"))
    assert {"DRAM 1.00 TB/s", "FP32 10.0 TFLOP/s", "ridge 10.0 FLOP/byte"} == texts(spec)
    assert "sgemm does 8.00 TFLOP/s, 80.0 % of its roof" == spec["title"]["text"]
    ridge = next(view for view in spec["layer"] if view["mark"].get("shape") == "diamond")["rows"][0]
    assert (10, 10e12) == (ridge["intensity"], ridge["performance"])


def test_lines_meet_at_the_ridge_and_keep_their_slope(checked: Check) -> None:
    """The slope runs up to the ridge with performance = intensity x 1 TB/s, the height from there on at 10 TFLOP/s."""
    rows = pd.DataFrame(checked(drawn(FP32))["layer"][0]["rows"])
    slope, height = (rows[rows["line"] == line] for line in (0, 1))
    assert (slope["intensity"] * 1e12).tolist() == pytest.approx(slope["performance"].tolist())
    assert (10, 10e12) == pytest.approx((slope["intensity"].max(), slope["performance"].max()))
    assert (10, {10e12}) == (height["intensity"].min(), set(height["performance"]))


def test_axes_are_logarithmic_and_say_their_unit(checked: Check) -> None:
    """FLOP per byte across, FLOP/s up, both logarithmic and wide enough for every point."""
    encoding = checked(drawn(FP32, {**FP32, "fp32_flops": 1e2}))["layer"][-1]["encoding"]
    assert {"log"} == {encoding[axis]["scale"]["type"] for axis in ("x", "y")}
    assert "arithmetic intensity (FLOP per byte of DRAM traffic)" == encoding["x"]["title"]
    assert "performance (FLOP/s)" == encoding["y"]["title"]
    low, high = encoding["y"]["scale"]["domain"]
    assert low < 1e2 / 1e-6 < 10e12 < high


def test_what_has_no_place_is_counted(checked: Check) -> None:
    """A launch without FLOP counters and one above its roof are left out, and the chart says so."""
    spec = checked(drawn(FP32, {"dur_ns": 1e3}, {**FP32, "fp32_flops": 9e9}))
    assert 1 == len(spec["layer"][-1]["rows"])
    said = "Not drawn: 1 without FLOP or bytes; 1 refused, above 110 % of the roof."
    assert [said] == spec["title"]["subtitle"]


def test_colours_say_the_bound_or_the_family(checked: Check) -> None:
    """With verdicts the legend names them, without it names families."""
    with_verdicts = checked(drawn(FP32))["layer"][-1]["encoding"]["color"]["scale"]
    assert {"domain": ["compute"], "range": [BOUND_COLOURS["compute"]]} == with_verdicts
    assert ["gemm"] == checked(drawn(FP32, bound=False))["layer"][-1]["encoding"]["color"]["scale"]["domain"]


def test_shapes_say_the_precision_where_there_are_several(checked: Check) -> None:
    """Two precisions have two shapes and two roofs; one has no legend of shapes."""
    spec = checked(drawn({**FP32, "fp64_flops": 1e6}))
    assert "precision" == spec["layer"][-1]["encoding"]["shape"]["field"]
    assert {"FP64 5.00 TFLOP/s", "FP32 10.0 TFLOP/s"} < texts(spec)
    assert "shape" not in checked(drawn(FP32))["layer"][-1]["encoding"]


def test_the_level_chooses_intensity_and_slope(checked: Check) -> None:
    """At level l2 a point lies at FLOP per L2 byte, and the slope is the L2 bandwidth, here 32 x 48 GB/s."""
    recorded = counters(
        {
            "sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained": 5_888,
            "sm__cycles_elapsed.avg.per_second": 1e9,
            "dram__bytes.sum.peak_sustained": 64,
            "dram__cycles_elapsed.avg.per_second": 7e9,
            "lts__lts2xbar_cycles_active.sum.peak_sustained": 48,
            "lts__cycles_elapsed.avg.per_second": 1e9,
        }
    )
    table = launches({**FP32, "l2_bytes": 4e5})
    chart = roofline_roofline(places.points(table), places.ceilings(table, recorded), level="l2")
    spec = checked(chart)
    assert 20 == spec["layer"][-1]["rows"][0]["intensity"]
    assert "L2 1.54 TB/s" in texts(spec)
    assert "L2 traffic" in spec["layer"][-1]["encoding"]["x"]["title"]


def test_without_roofs_the_points_stay(checked: Check) -> None:
    """No ceilings: the points alone, and a description that says so."""
    table = launches(FP32)
    spec = checked(roofline_roofline(places.points(table), places.CEILINGS.empty()))
    assert 1 == len(spec["layer"])
    assert "roofs unknown" in spec["description"]


def test_several_gpus_share_a_roof(checked: Check) -> None:
    """Two GPUs of one kind have each roof once."""
    assert 5 == len(checked(drawn(FP32, {**FP32, "gpu": 1}))["layer"][0]["rows"])


def test_hostile_names_stay_text(checked: Check) -> None:
    """Markup in a kernel's name is data, and long names are cut."""
    row = checked(drawn({**FP32, "name": "<script>alert(1)</script>" + "x" * 9_000}))["layer"][-1]["rows"][0]
    assert row["name"].startswith("<script>")
    assert 400 == len(row["name"])


def test_nothing_to_draw(checked: Check) -> None:
    """No launches, and launches without FLOP, are a sentence."""
    assert "No launch was measured." == checked(drawn())["title"]["subtitle"][0]
    assert "1 without FLOP" in checked(drawn({"dur_ns": 1.0}))["title"]["subtitle"][0]


def test_every_verdict_has_a_colour_of_its_own() -> None:
    """All verdicts of the analysis but refused, which is not drawn, have a colour, and no two the same."""
    assert {*places.BOUNDS} - {"refused"} == set(BOUND_COLOURS)
    assert len(BOUND_COLOURS) == len(set(BOUND_COLOURS.values()))


def test_wrong_arguments_are_refused() -> None:
    """An unknown level or bound and a missing column are errors that say so."""
    with pytest.raises(ValueError, match=r"level: 'l3' is not one of \['dram'"):
        drawn(FP32, level="l3")
    table = launches(FP32)
    with pytest.raises(ValueError, match=r"bound: \['magic'\] are not among"):
        roofline_roofline(places.points(table).assign(bound="magic"), places.CEILINGS.empty())
    with pytest.raises(SchemaError, match="dram_intensity"):
        roofline_roofline(places.points(table).drop(columns="dram_intensity"), places.CEILINGS.empty())

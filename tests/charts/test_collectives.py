"""Bus bandwidth by message size."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import pytest
from charts.test_theme import SIGHT, _contrast, _lab, _linear

import perfkit
from perfkit.analysis import communication
from perfkit.charts.ranks import OPERATION_COLOURS, SHAPES, bandwidth
from perfkit.errors import SchemaError
from perfkit.tables import COLLECTIVES

Check = Callable[[alt.TopLevelMixin], dict[str, Any]]
NAN = float("nan")
A100 = "HTA__nccl_parser_config__nccl_data.json.gz"


def summary(
    *rows: tuple[str, int, float], group: str = "0", ranks: int = 8, placement: str | None = None
) -> pd.DataFrame:
    """Bandwidths from operation, bytes and median in GB/s; the least is half of it, the most the double."""
    frame = pd.DataFrame(rows, columns=["operation", "bytes", "bus_bytes_per_s"])
    bus = frame["bus_bytes_per_s"] * 1e9
    frame = frame.assign(bus_bytes_per_s=bus, min_bus_bytes_per_s=bus / 2, max_bus_bytes_per_s=bus * 2, count=3)
    return frame.assign(
        operation=frame["operation"].astype("category"),
        group=pd.Categorical([group] * len(frame)),
        ranks=pd.array([ranks] * len(frame), dtype="Int64"),
        placement=pd.Categorical([placement] * len(frame), ["in_place", "out_of_place"]),
    )


def views(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The layers by their kind of mark; of several the last."""
    return {view["mark"]["type"]: view for view in spec["layer"]}


def test_points_lines_and_spread_in_one_unit(checked: Check) -> None:
    """100 GB/s at 1 MB and 200 at 1 GB: a line, points, and bars from half to double, all in GB/s."""
    spec = checked(bandwidth(summary(("all_reduce", 10**6, 100.0), ("all_reduce", 10**9, 200.0))))
    rows = [(r["bytes"], r["rate"], r["least"], r["most"]) for r in views(spec)["point"]["rows"]]
    assert [(10**6, 100.0, 50.0, 200.0), (10**9, 200.0, 100.0, 400.0)] == rows
    assert {"line", "rule", "point"} == set(views(spec))
    assert "log" == views(spec)["point"]["encoding"]["x"]["scale"]["type"]
    assert "bus bandwidth (GB/s)" == views(spec)["point"]["encoding"]["y"]["title"]
    assert "All-reduce reaches 200 GB/s at 1.00 GB" == spec["title"]["text"]
    assert "group 0, 8 ranks" in spec["title"]["subtitle"][0]
    assert "lower bounds" in spec["title"]["subtitle"][1]


def test_a_line_rate_to_compare_with(checked: Check) -> None:
    """200 of 400 GB/s are half of the line rate; its line bears its figure and fits the axis."""
    spec = checked(bandwidth(summary(("all_gather", 10**9, 200.0)), line_rate_bytes_per_s=4e11))
    assert "All-gather reaches 200 GB/s at 1.00 GB, 50.0 % of the line rate" == spec["title"]["text"]
    assert [(400.0, "line rate 400 GB/s")] == [(r["rate"], r["said"]) for r in views(spec)["text"]["rows"]]
    assert spec["layer"][-1]["encoding"]["y"]["scale"]["domain"][1] > 400
    assert not [line for line in spec["title"]["subtitle"] if "NVLS" in line]


def test_more_than_the_line_rate_is_explained(checked: Check) -> None:
    """Reduction in the switch exceeds the links' speed: drawn as it is, with a word on why."""
    spec = checked(bandwidth(summary(("all_reduce", 10**9, 480.0)), line_rate_bytes_per_s=4.5e11))
    assert "106.7 % of the line rate" in spec["title"]["text"]
    assert "NVLS" in spec["title"]["subtitle"][2]


def test_operations_differ_in_shape_too(checked: Check) -> None:
    """Colour and shape say the same, in one legend; every operation has a shape of its own."""
    spec = checked(bandwidth(summary(("broadcast", 10, 1.0), ("all_reduce", 10, 2.0))))
    encoding = views(spec)["point"]["encoding"]
    assert ["all-reduce", "broadcast"] == encoding["color"]["scale"]["domain"] == encoding["shape"]["scale"]["domain"]
    assert ["circle", "cross"] == encoding["shape"]["scale"]["range"]
    assert list(OPERATION_COLOURS) == list(SHAPES)
    assert len(SHAPES) == len(set(SHAPES.values()))


def test_dashes_tell_process_groups_apart(checked: Check) -> None:
    """Two groups have two dashes, a legend and no word in the subtitle; nine are too many for dashes."""
    row = ("all_reduce", 10**6, 1.0)
    unknown = {"group": pd.Categorical(["g0", None]), "ranks": pd.array([2, None], dtype="Int64")}
    spec = checked(bandwidth(summary(row, row).assign(**unknown)))
    assert "kind" == views(spec)["line"]["encoding"]["strokeDash"]["field"]
    assert {"group g0, 2 ranks", "unknown group"} == {row["kind"] for row in views(spec)["line"]["rows"]}
    assert "group" not in spec["title"]["subtitle"][0]
    groups = pd.Categorical([f"g{n}" for n in range(9)])
    many = views(checked(bandwidth(summary(*[row] * 9).assign(group=groups))))["line"]["encoding"]
    assert "strokeDash" not in many
    assert "kind" == many["detail"]["field"]


def test_dashes_tell_placements_apart(checked: Check) -> None:
    """In place and out of place are two lines; a benchmark has no wait for ranks in it, and once each no bars."""
    placed = [summary(("all_reduce", 10**6, 1.0), placement=p).assign(count=1) for p in ("in_place", "out_of_place")]
    both = pd.concat([part.assign(group=pd.Categorical([None])) for part in placed])
    spec = checked(bandwidth(both))
    assert {"8 ranks, in place", "8 ranks, out of place"} == {row["kind"] for row in views(spec)["line"]["rows"]}
    assert "kind" == views(spec)["line"]["encoding"]["strokeDash"]["field"]
    assert ["Points: bus bandwidth."] == spec["title"]["subtitle"]


def test_group_names_stay_text(checked: Check) -> None:
    """A process group's name comes from a profile: on one line, printable, cut."""
    spec = checked(bandwidth(summary(("all_reduce", 10**6, 1.0), group="<b>\n\u202e" + "x" * 10_000)))
    kind = views(spec)["point"]["rows"][0]["kind"]
    assert kind.startswith("group <b> �x")
    assert len("group , 8 ranks") + 40 == len(kind)


def test_what_has_no_bandwidth_is_counted(checked: Check) -> None:
    """A barrier moves nothing, a broadcast of 0 bytes has no place on a logarithmic axis."""
    frame = summary(("all_reduce", 8, 1.0), ("barrier", 0, NAN), ("broadcast", 0, 1.0))
    spec = checked(bandwidth(frame))
    assert 1 == len(views(spec)["point"]["rows"])
    assert "Not drawn: 2 without size or bandwidth." == spec["title"]["subtitle"][-1]


def test_nothing_over_the_bus(checked: Check) -> None:
    """The all-reduce of a single rank has a bus bandwidth of 0."""
    assert "reaches 0 B/s at 8 B" in checked(bandwidth(summary(("all_reduce", 8, 0.0))))["title"]["text"]


def test_without_collectives_the_chart_says_so(checked: Check) -> None:
    """No known bandwidth is a sentence that says what measures it."""
    for frame in (summary(), summary(("barrier", 0, NAN))):
        assert "nccl-tests" in checked(bandwidth(frame))["title"]["subtitle"][0]


def test_wrong_arguments_are_refused() -> None:
    """A line rate of 0, an operation without colour and a missing column are errors that say so."""
    with pytest.raises(ValueError, match=r"line_rate_bytes_per_s: 0 is not above 0"):
        bandwidth(summary(("all_reduce", 8, 1.0)), line_rate_bytes_per_s=0)
    with pytest.raises(ValueError, match=r"operation: \['magic'\] are not among"):
        bandwidth(summary(("magic", 8, 1.0)))
    with pytest.raises(SchemaError, match="bus_bytes_per_s"):
        bandwidth(summary().drop(columns="bus_bytes_per_s"))


def test_operations_stay_apart() -> None:
    """Any two colours differ by 15 or more for every sight and show on light and dark pages."""
    palette = list(OPERATION_COLOURS.values())
    for sight in SIGHT.values():
        seen = [_lab(np.array(sight) @ _linear(colour)) for colour in palette]
        assert min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2)) >= 15
    assert min(_contrast(colour, page) for colour in palette for page in ("#FFFFFF", "#16181C")) >= 1.6


def test_the_chart_takes_what_the_analysis_returns(checked: Check) -> None:
    """Every operation with a bus bandwidth has a colour; and nothing at all."""
    plain = {"rank": 0, "gpu": 0, "bytes": 10**6, "dur_ns": 1e6, "ranks": 2, "source": "trace"}
    rows = [{**plain, "operation": operation} for operation in [*OPERATION_COLOURS, "barrier"]]
    table = COLLECTIVES.make(pd.DataFrame(rows).reindex(columns=COLLECTIVES.column_names))
    found = communication.summary(table)
    assert len(OPERATION_COLOURS) == found["bus_bytes_per_s"].notna().sum()
    assert len(OPERATION_COLOURS) == len(views(checked(bandwidth(found)))["point"]["rows"])
    empty = communication.summary(COLLECTIVES.empty())
    assert "Nothing to draw" in checked(bandwidth(empty))["description"]


def test_the_real_capture(profiles: Path, checked: Check) -> None:
    """Two A100s, 31,502,336 B in 2,673,916 ns, the median of three: 11.8 GB/s, the factor of two ranks being 1."""
    run = perfkit.load(profiles / "torch" / A100)
    spec = checked(bandwidth(communication.summary(run.collectives)))
    assert f"All-reduce reaches {31_502_336 / 2_673_916:.1f} GB/s at 31.5 MB" == spec["title"]["text"]
    assert "group 0, 2 ranks" in spec["title"]["subtitle"][0]


def test_the_legend_chooses_operations(checked: Check) -> None:
    """What is not chosen in the legend fades in all layers; with one operation there is nothing to choose."""
    spec = checked(bandwidth(summary(("broadcast", 10, 1.0), ("all_reduce", 10, 2.0))))
    (chosen,) = spec["params"]
    assert ("legend", ["operation"]) == (chosen["bind"], chosen["select"]["fields"])
    drawn = views(spec)
    assert {chosen["name"]} == {drawn[mark]["encoding"]["opacity"]["condition"]["param"] for mark in drawn}
    assert "Click an operation" in " ".join(spec["title"]["subtitle"])
    alone = checked(bandwidth(summary(("broadcast", 10, 1.0))))
    assert "Click" not in " ".join(alone["title"]["subtitle"])

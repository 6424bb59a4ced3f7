"""Figures of each rank, and the bandwidth of collectives."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import pytest
from analysis.test_communication import THREE_RANKS as TOY
from frames import copies, kernels

import perfkit
from perfkit import analysis
from perfkit.analysis import communication
from perfkit.charts.ranks import OPERATION_COLOURS, SHAPES, bandwidth, bars, connections, parts, step_times, waits
from perfkit.errors import SchemaError
from perfkit.tables import COLLECTIVES

Check = Callable[[alt.TopLevelMixin], dict[str, Any]]
PARTS = ["computation_ns", "exposed_communication_ns", "other_kernels_ns", "exposed_copy_ns", "idle_ns"]
STRAGGLERS = ["rank", "gpu", "count", "last_count", "last_frac", "wait_ns", "apart_count", "unmatched_count"]
SAMPLED = "HTA__trace_filter__sampled_rank-{}.json.gz"


def split(*rows: tuple[int, ...]) -> pd.DataFrame:
    """A breakdown from rank, gpu and the parts in ms; the span is their sum."""
    whole = [(*row[:2], *(part * 10**6 for part in (sum(row[2:]), *row[2:]))) for row in rows]
    return pd.DataFrame(whole, columns=["rank", "gpu", "span_ns", *PARTS])


def late(*rows: tuple[int, int, int], count: int = 10, apart: int = 0) -> pd.DataFrame:
    """Stragglers from rank, collectives to which it came last of `count`, and wait in ms."""
    whole = [(r, r, count, last, last / count if count else None, ms * 10**6, apart, 0) for r, last, ms in rows]
    return pd.DataFrame(whole, columns=STRAGGLERS)


def drawn(view: dict[str, Any], *fields: str) -> list[tuple[Any, ...]]:
    """The given fields of a view's rows."""
    return [tuple(row[field] for field in fields) for row in view["rows"]]


def test_a_column_for_each_rank_and_the_mean(checked: Check) -> None:
    """30 and 10 ms on ranks 0 and 1: columns in the order of the ranks, mean 20."""
    spec = checked(bars(split((1, 0, 10, 0, 0, 0, 0), (0, 0, 30, 0, 0, 0, 0)), value="computation_ns"))
    columns, _, mean = spec["layer"]
    assert [("0", "rank 0", 30.0, "30.0 ms"), ("1", "rank 1", 10.0, "10.0 ms")] == drawn(
        columns, "place", "name", "figure", "said"
    )
    assert [(20.0, "← mean 20.0 ms")] == drawn(mean, "figure", "said")
    assert "computation (ms)" == columns["encoding"]["y"]["title"]
    assert "Computation is 10.0 ms to 30.0 ms, most on rank 0" == spec["title"]["text"]


def test_a_map_of_steps_shows_who_is_behind(checked: Check) -> None:
    """Steps of 10 ms; rank 2 takes 15 ms in step 1, half over the median rank. Many steps are drawn as their mean."""
    rows = [(rank, step, 15e6 if (rank, step) == (2, 1) else 10e6) for rank in range(3) for step in range(2)]
    spec = checked(step_times(pd.DataFrame(rows, columns=["rank", "step", "dur_ns"])))
    assert spec["title"]["text"] == "Rank 2 is furthest behind: 50.0 % over the median in step 1"
    assert [(2, 1)] == [cell[:2] for cell in drawn(spec["layer"][0], "rank", "step", "apart") if cell[2]]
    many = pd.DataFrame(
        [(rank, step, 1e6 + step) for rank in range(5) for step in range(1600)], columns=["rank", "step", "dur_ns"]
    )
    spec = checked(step_times(many))
    cells = drawn(spec["layer"][0], "rank", "step")
    assert (5 * 800, {"A cell is the average of 2 steps."}) == (len(cells), {*spec["title"]["subtitle"]})
    assert spec["title"]["text"] == "All ranks take each step in the same time, within 1.0 %"


def test_the_legend_of_a_map_tells_its_ends_apart(checked: Check) -> None:
    """Of ranks that differ by a thousandth and by a half the three labels differ, and an even run is grey."""
    for dur_ns, label in ((10.01e6, 5), (15e6, 50)):
        rows = [(rank, step, dur_ns if rank == 2 else 10e6) for rank in range(5) for step in range(2)]
        spec = checked(step_times(pd.DataFrame(rows, columns=["rank", "step", "dur_ns"])))
        colour = spec["layer"][0]["encoding"]["color"]
        assert [-label, 0, label] == [round(100 * value) for value in colour["legend"]["values"]]
        assert colour["scale"]["domain"] == colour["legend"]["values"]
        assert 1 == len(spec["layer"])


def test_a_map_of_steps_shows_which_ranks_were_cut(checked: Check) -> None:
    """Ranks 1 and 2 of 4 end after steps 0 and 1 of 3: three dark cells, and a sentence that names both."""
    rows = [(rank, step, 10e6) for rank in range(4) for step in range(3) if rank not in (1, 2) or step < rank]
    spec = checked(step_times(pd.DataFrame(rows, columns=["rank", "step", "dur_ns"])))
    assert [(1, 1), (1, 2), (2, 2)] == drawn(spec["layer"][1], "rank", "step")
    assert {"not recorded"} == {what for (what,) in drawn(spec["layer"][1], "what")}
    assert ["2 of 4 ranks lack steps that other ranks recorded: 1, 2."] == spec["title"]["subtitle"]


def test_a_map_of_a_thousand_ranks_keeps_the_one_that_is_behind(checked: Check) -> None:
    """Five ranks share a row, drawn as the slowest of them; rank 503 is cut, which its row shows."""
    slow, cut = (42, 3), (503, 5)
    cells = [(r, s) for r in range(1000) for s in range(10) if r != cut[0] or s < cut[1]]
    rows = [(*cell, 20e6 if cell == slow else 10e6) for cell in cells]
    spec = checked(step_times(pd.DataFrame(rows, columns=["rank", "step", "dur_ns"])))
    assert [(40, 42, 3, 1.0)] == [cell for cell in drawn(spec["layer"][0], "row", "rank", "step", "apart") if cell[3]]
    assert [(500, step) for step in range(5, 10)] == drawn(spec["layer"][1], "row", "step")
    assert (200, 2000) == (len({*drawn(spec["layer"][0], "row")}), len(spec["layer"][0]["rows"]))
    assert spec["title"]["subtitle"] == [
        "A cell is the rank furthest from the median of 5 neighbours.",
        "1 of 1,000 ranks lack steps that other ranks recorded: 503.",
    ]


@pytest.mark.parametrize(
    ("value", "figure", "said"),
    [
        ("kernel_busy_frac", 0.25, "25.0 %"),
        ("peak_bytes", 2.5e9, "2.50 GB"),
        ("bus_bytes_per_s", 4.5e11, "450 GB/s"),
        ("achieved_flops_per_s", 3e14, "300 TFLOP/s"),
        ("kernel_count", 12, "12.0 count"),
        ("power_w", 350, "350 W"),
    ],
)
def test_the_suffix_is_the_unit(value: str, figure: float, said: str, checked: Check) -> None:
    """A fraction is shown in percent, bytes and rates in the unit they fill."""
    spec = checked(bars(pd.DataFrame({"rank": [0], "gpu": [0], value: [figure]}), value=value))
    assert [(said,)] == drawn(spec["layer"][0], "said")
    assert said.split()[1] in spec["layer"][0]["encoding"]["y"]["title"]
    assert 2 == len(spec["layer"])  # one rank has no mean


def test_columns_are_named_by_what_tells_them_apart(checked: Check) -> None:
    """By rank, by GPU of the only rank, or by both; an unknown GPU is a question mark."""
    named = {"rank": [(0, 0), (1, 1)], "GPU": [(0, 0), (0, 1)], "rank · GPU": [(0, 0), (0, -1), (1, 0)]}
    for what, places in named.items():
        axis = checked(parts(split(*((*place, 1, 0, 0, 0, 1) for place in places))))["layer"][0]["encoding"]["x"]
        assert what == axis["title"]
    assert ["0 · ?", "0 · 0", "1 · 0"] == axis["sort"]


def test_sixty_four_ranks_fit(checked: Check) -> None:
    """64 columns stand in the width of every chart; a line is at the mean, figures have no room."""
    frame = split(*((rank, rank % 8, 50 + rank, 0, 0, 0, 50) for rank in range(64)))
    spec = checked(bars(frame, value="computation_ns"))
    assert ["bar", "rule", "text"] == [view["mark"]["type"] for view in spec["layer"]]
    assert 640 == spec["width"] == checked(parts(frame))["width"]
    assert 64 == len(spec["layer"][0]["rows"])


def test_ranks_without_a_figure_are_counted(checked: Check) -> None:
    """A missing figure has no column; the chart says so, also where all are missing."""
    frame = pd.DataFrame({"rank": [0, 1], "gpu": 0, "mean_frac": [0.5, None]})
    spec = checked(bars(frame, value="mean_frac"))
    assert "Not drawn: 1 without a value." == spec["title"]["subtitle"][0]
    assert "Mean is 50.0 %" == spec["title"]["text"]
    for empty in (frame.iloc[1:], frame.iloc[:0]):
        assert "No rank has this figure" in checked(bars(empty, value="mean_frac"))["title"]["subtitle"][0]


def test_parts_stand_on_one_another(checked: Check) -> None:
    """50 + 20 + 30 ms and 40 + 20 + 40: from the bottom up; computation and idle differ by 10, computation is named."""
    spec = checked(parts(split((0, 0, 50, 20, 0, 0, 30), (1, 1, 40, 20, 0, 0, 40))))
    assert [
        ("0", "computation", 0.0, 50.0, "50.0 %"),
        ("1", "computation", 0.0, 40.0, "40.0 %"),
        ("0", "communication", 50.0, 70.0, "20.0 %"),
        ("1", "communication", 40.0, 60.0, "20.0 %"),
        ("0", "idle", 70.0, 100.0, "30.0 %"),
        ("1", "idle", 60.0, 100.0, "40.0 %"),
    ] == drawn(spec["layer"][0], "place", "part", "begin", "end", "share")
    assert "Computation time differs most: 40.0 ms on rank 1, 50.0 ms on rank 0" == spec["title"]["text"]


def test_ranks_that_do_not_differ(checked: Check) -> None:
    """The title says so; a single one is compared with none."""
    same = split((0, 0, 1, 0, 0, 0, 1), (1, 1, 1, 0, 0, 0, 1))
    assert "All ranks spend their time alike" == checked(parts(same))["title"]["text"]
    assert "Where the time of rank 0 goes" == checked(parts(same.iloc[:1]))["title"]["text"]


def test_parts_without_work_say_so(checked: Check) -> None:
    """No device, or devices without a span, is a sentence."""
    for frame in (split(), split((0, 0, 0, 0, 0, 0, 0))):
        assert "No kernel or copy ran" in checked(parts(frame))["title"]["subtitle"][0]


def test_who_comes_last_and_who_waits(checked: Check) -> None:
    """Rank 1 comes last to 8 of 10 and waits 1 ms; two panels, the ranks in their order in both."""
    spec = checked(waits(late((1, 8, 1), (0, 2, 30), apart=3)))
    last, wait = spec["vconcat"]
    assert [("0", 20.0, "20.0 %"), ("1", 80.0, "80.0 %")] == drawn(last["layer"][0], "place", "figure", "said")
    assert [("0", 30.0, "30.0 ms"), ("1", 1.0, "1.00 ms")] == drawn(wait["layer"][0], "place", "figure", "said")
    assert "Rank 1 comes last to 80.0 % of 10 collectives" == spec["title"]["text"]
    assert "Left out: 6 kernels" in spec["title"]["subtitle"][1]


def test_nobody_comes_last(checked: Check) -> None:
    """Where all come at once the title accuses nobody."""
    spec = checked(waits(late((0, 0, 0), (1, 0, 0))))
    assert "All ranks come to every collective at once" == spec["title"]["text"]
    assert 1 == len(spec["title"]["subtitle"])


def test_without_meetings_the_chart_says_so(checked: Check) -> None:
    """A single rank, or collectives that never held all ranks at once, say nothing about who was late."""
    for frame in (late(), late((0, 0, 0), count=0)):
        assert "collectives of several ranks" in checked(waits(frame))["title"]["subtitle"][0]


def test_wrong_arguments_are_refused() -> None:
    """A figure without a unit, parts that do not add up, a share above 1 and missing columns are errors."""
    with pytest.raises(ValueError, match=r"value: 'name' does not end in one of \['_bytes_per_s'"):
        bars(split(), value="name")
    with pytest.raises(SchemaError, match="busy_frac"):
        bars(split(), value="busy_frac")
    with pytest.raises(ValueError, match="do not sum to span_ns"):
        parts(split((0, 0, 1, 2, 3, 4, 5)).assign(span_ns=16))
    with pytest.raises(SchemaError, match="idle_ns"):
        parts(split().drop(columns="idle_ns"))
    with pytest.raises(ValueError, match=r"last_frac: 1\.1 is not a fraction"):
        waits(late((0, 11, 1)))
    with pytest.raises(SchemaError, match="wait_ns"):
        waits(late().drop(columns="wait_ns"))


def test_the_charts_take_what_the_analyses_return(checked: Check) -> None:
    """Two ranks with a kernel each, three with two collectives; and nothing at all."""
    kernel = kernels({"start_ns": 0, "dur_ns": 400}, {"start_ns": 0, "dur_ns": 200, "rank": 1})
    found = analysis.timeline.breakdown(kernel, copies(), window=(0, 1000))
    assert "200 ns on rank 1, 400 ns on rank 0" in checked(parts(found))["title"]["text"]
    assert "most on rank 1" in checked(bars(found, value="idle_ns"))["title"]["text"]
    stragglers = checked(waits(analysis.communication.stragglers(TOY)))
    assert "Rank 0 comes last to 50.0 % of 2 collectives" == stragglers["title"]["text"]
    assert "Nothing to draw" in checked(waits(analysis.communication.stragglers(COLLECTIVES.empty())))["description"]
    assert "Nothing to draw" in checked(parts(analysis.timeline.breakdown(kernels(), copies())))["description"]


def test_two_real_ranks(profiles: Path, checked: Check) -> None:
    """Two ranks of one run: the span of each and its parts are the columns; computation differs by 62 ms."""
    run = perfkit.load([profiles / "torch" / SAMPLED.format(rank) for rank in (0, 1)])
    found = analysis.timeline.breakdown(run.kernels, run.copies)
    spec = checked(parts(found))
    tops = pd.DataFrame(spec["layer"][0]["rows"]).groupby("place")["end"].max()
    assert tops.tolist() == pytest.approx((found["span_ns"] / 1e9).tolist(), rel=1e-12)
    assert "Computation time differs most: 210 ms on rank 0, 272 ms on rank 1" == spec["title"]["text"]


NAN = float("nan")
A100 = "HTA__nccl_parser_config__nccl_data.json.gz"


def test_connections_are_squares_in_the_colour_of_their_way(profiles: Path, checked: Check) -> None:
    """Counted by another pattern in the log's whole lines (two are cut); rings and trees name no transport."""
    path = profiles / "monitor/nccl_log__alcf_resnet50_results_2025-06-26-13-13-06_with_aws.log"
    whole = r"^\S+ \[\d\] NCCL INFO Channel (\d+)/0 : (\d+)\[\d\] -> (\d+)\[\d\] (?:\[\w+\] )?via ([\w/ ]+)$"
    lines = re.findall(whole, path.read_text(), re.MULTILINE)
    by_pair = {(int(first), int(second)): via for _, first, second, via in lines}
    view = checked(connections(perfkit.load(path).links))
    squares = drawn(view["layer"][0], "from_rank", "to_rank", "way")
    near, far = "from GPU to GPU in the node", "over the network, straight from GPU memory"
    assert sorted(squares) == sorted((*pair, near if via.startswith("P2P") else far) for pair, via in by_pair.items())
    channels = {line[:3] for line in lines if line[3].startswith("P2P")}
    assert view["title"]["text"] == f"{len(channels)} of {len({line[:3] for line in lines})} connections go {near}"


def test_a_pair_without_a_transport_is_grey(checked: Check) -> None:
    """Two of three channels go by CPU memory, and a ring repeats their pair; nothing says how 1 reaches 2."""
    ways = ["SHM/direct/direct", "SHM/direct/direct", "NET/Socket/0", None]
    links = pd.DataFrame({"from_rank": 0, "to_rank": 1, "transport": ways})
    links.loc[4] = [1, 2, None]
    view = checked(connections(links))
    near, unknown = "through CPU memory in the node", "a way that the log does not name"
    assert drawn(view["layer"][0], "from_rank", "to_rank", "count", "way") == [(0, 1, 3, near), (1, 2, 1, unknown)]
    assert view["title"]["text"] == f"2 of 4 connections go {near}"
    assert "No connections" in checked(connections(links.iloc[:0]))["title"]["text"]


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
    assert "All-reduce reaches up to 200 GB/s at 1.00 GB" == spec["title"]["text"]
    assert "group 0, 8 ranks" in spec["title"]["subtitle"][0]
    assert "lower bounds" in spec["title"]["subtitle"][1]


def test_a_line_rate_to_compare_with(checked: Check) -> None:
    """200 of 400 GB/s are half of the line rate; its line bears its figure and fits the axis."""
    spec = checked(bandwidth(summary(("all_gather", 10**9, 200.0)), line_rate_bytes_per_s=4e11))
    assert "All-gather reaches up to 200 GB/s at 1.00 GB, 50.0 % of the line rate" == spec["title"]["text"]
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
    assert "reaches up to 0 B/s at 8 B" in checked(bandwidth(summary(("all_reduce", 8, 0.0))))["title"]["text"]


def test_without_collectives_the_chart_says_so(checked: Check) -> None:
    """No known bandwidth is a sentence that says what measures it."""
    for frame in (summary(), summary(("barrier", 0, NAN))):
        assert "nccl-tests" in checked(bandwidth(frame))["title"]["subtitle"][0]


def test_bandwidth_refuses_wrong_arguments() -> None:
    """A line rate of 0, an operation without colour and a missing column are errors that say so."""
    with pytest.raises(ValueError, match=r"line_rate_bytes_per_s: 0 is not above 0"):
        bandwidth(summary(("all_reduce", 8, 1.0)), line_rate_bytes_per_s=0)
    with pytest.raises(ValueError, match=r"operation: \['magic'\] are not among"):
        bandwidth(summary(("magic", 8, 1.0)))
    with pytest.raises(SchemaError, match="bus_bytes_per_s"):
        bandwidth(summary().drop(columns="bus_bytes_per_s"))


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
    assert f"All-reduce reaches up to {31_502_336 / 2_673_916:.1f} GB/s at 31.5 MB" == spec["title"]["text"]
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

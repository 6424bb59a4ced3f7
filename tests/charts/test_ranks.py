"""Figures of each rank, and the bandwidth of collectives."""

import re
from pathlib import Path

import pandas as pd
from charts.checking import Spec, checked, drawn, subtitle, title
from frames import copies, kernels

import perfkit
from perfkit import analysis
from perfkit.analysis import communication
from perfkit.analysis.timeline import PARTS
from perfkit.charts.ranks import (
    bandwidth,
    bars,
    connections,
    lateness,
    parts,
    step_times,
    waits,
)
from perfkit.tables import COLLECTIVES

STRAGGLERS = [
    "rank",
    "gpu",
    "count",
    "last_count",
    "last_frac",
    "wait_ns",
    "apart_count",
    "unmatched_count",
]
NAN = float("nan")


def split(*rows: tuple[int, ...]) -> pd.DataFrame:
    """A breakdown from rank, gpu and the parts in ms; the span is their sum."""
    whole = [(*row[:2], *(part * 10**6 for part in (sum(row[2:]), *row[2:]))) for row in rows]
    return pd.DataFrame(whole, columns=["rank", "gpu", "span_ns", *PARTS])


def late(*rows: tuple[int, int, int], count: int = 10, apart: int = 0) -> pd.DataFrame:
    """Stragglers from rank, collectives to which it came last of `count`, and wait in ms."""
    whole = [
        (r, r, count, last, last / count if count else None, ms * 10**6, apart, 0)
        for r, last, ms in rows
    ]
    return pd.DataFrame(whole, columns=STRAGGLERS)


def stepped(*rows: tuple[int, int, float]) -> Spec:
    return checked(step_times(pd.DataFrame(rows, columns=["rank", "step", "dur_ns"])))


def test_a_column_for_each_rank_and_the_mean() -> None:
    spec = checked(
        bars(split((1, 0, 10, 0, 0, 0, 0), (0, 0, 30, 0, 0, 0, 0)), value="computation_ns")
    )
    columns = drawn(spec, "place", "name", "figure", "said")
    assert [("0", "rank 0", 30.0, "30.0 ms"), ("1", "rank 1", 10.0, "10.0 ms")] == columns
    assert [(20.0, "← mean 20.0 ms")] == drawn(spec["layer"][2], "figure", "said")
    assert "Computation is 10.0 ms to 30.0 ms, most on rank 0" == title(spec)


def test_a_map_of_steps_shows_who_is_behind() -> None:
    spec = stepped(
        *((r, step, 15e6 if (r, step) == (2, 1) else 10e6) for r in range(3) for step in range(2))
    )
    assert title(spec) == "Rank 2 is furthest behind: 50.0 % over the median in step 1"
    assert [(2, 1)] == [cell[:2] for cell in drawn(spec, "rank", "step", "apart") if cell[2]]


def test_a_map_of_many_steps_averages_them() -> None:
    spec = stepped(*((rank, step, 1e6 + step) for rank in range(5) for step in range(1600)))
    colour = spec["layer"][0]["encoding"]["color"]
    assert ([-5, 0, 5], 1) == (
        [round(100 * value) for value in colour["legend"]["values"]],
        len(spec["layer"]),
    )
    assert 5 * 800 == len(spec["layer"][0]["rows"])
    assert ["A cell is the average of 2 steps."] == subtitle(spec)
    assert title(spec) == "All ranks take each step in the same time, within 1.0 %"


def test_a_map_of_steps_shows_who_was_cut() -> None:
    spec = stepped(*((r, s, 10e6) for r in range(4) for s in range(3) if r not in (1, 2) or s < r))
    assert [(1, 1), (1, 2), (2, 2)] == drawn(spec["layer"][1], "rank", "step")
    assert ["2 of 4 ranks lack steps that other ranks recorded: 1, 2."] == subtitle(spec)


def test_a_map_of_many_ranks_draws_the_furthest_of_neighbours() -> None:
    """Of 1,000 ranks five share a row, drawn as the slowest of them; rank 503 is cut, which its row shows."""
    cells = [(r, s) for r in range(1000) for s in range(10) if r != 503 or s < 5]
    spec = stepped(*((*cell, 20e6 if cell == (42, 3) else 10e6) for cell in cells))
    assert [(40, 42, 3, 1.0)] == [
        cell for cell in drawn(spec, "row", "rank", "step", "apart") if cell[3]
    ]
    assert [(500, step) for step in range(5, 10)] == drawn(spec["layer"][1], "row", "step")
    assert (200, 2000) == (len({*drawn(spec, "row")}), len(spec["layer"][0]["rows"]))
    assert subtitle(spec) == [
        "A cell is the rank furthest from the median of 5 neighbours.",
        "1 of 1,000 ranks lack steps that other ranks recorded: 503.",
    ]


def test_parts_stand_on_one_another() -> None:
    spec = checked(parts(split((0, 0, 50, 20, 0, 0, 30), (1, 1, 40, 20, 0, 0, 40))))
    assert [
        ("0", "computation", 0.0, 50.0, "50.0 %"),
        ("1", "computation", 0.0, 40.0, "40.0 %"),
        ("0", "communication", 50.0, 70.0, "20.0 %"),
        ("1", "communication", 40.0, 60.0, "20.0 %"),
        ("0", "idle", 70.0, 100.0, "30.0 %"),
        ("1", "idle", 60.0, 100.0, "40.0 %"),
    ] == drawn(spec, "place", "part", "begin", "end", "share")
    assert "Computation time differs most: 40.0 ms on rank 1, 50.0 ms on rank 0" == title(spec)
    same = split((0, 0, 1, 0, 0, 0, 1), (1, 1, 1, 0, 0, 0, 1))
    assert "All ranks spend their time alike" == title(parts(same))
    assert "Where the time of rank 0 goes" == title(parts(same.iloc[:1]))


def test_who_comes_last_and_who_waits() -> None:
    spec = checked(waits(late((1, 8, 1), (0, 2, 30), apart=3)))
    last, wait = spec["vconcat"]
    assert [("0", 20.0, "20.0 %"), ("1", 80.0, "80.0 %")] == drawn(last, "place", "figure", "said")
    assert [("0", 30.0, "30.0 ms"), ("1", 1.0, "1.00 ms")] == drawn(wait, "place", "figure", "said")
    assert "Rank 1 comes last to 80.0 % of 10 collectives" == title(spec)
    assert "Left out: 6 kernels" in subtitle(spec)[1]
    spec = checked(waits(late((0, 0, 0), (1, 0, 0))))
    assert "All ranks come to every collective at once" == title(spec)
    assert 1 == len(subtitle(spec))


def test_without_figures_the_charts_say_so() -> None:
    frame = pd.DataFrame({"rank": [0, 1], "gpu": 0, "mean_frac": [0.5, None]})
    assert "Not drawn: 1 without a value." == subtitle(bars(frame, value="mean_frac"))[0]
    assert "Mean is 50.0 %" == title(bars(frame, value="mean_frac"))
    some = bandwidth(summary(("all_reduce", 8, 1.0), ("barrier", 0, NAN), ("broadcast", 0, 1.0)))
    assert "Not drawn: 2 without size or bandwidth." == subtitle(some)[-1]
    for empty in (frame.iloc[1:], frame.iloc[:0]):
        assert "No rank has this figure" in subtitle(bars(empty, value="mean_frac"))[0]
    for empty in (
        split(),
        split((0, 0, 0, 0, 0, 0, 0)),
        analysis.timeline.breakdown(kernels(), copies()),
    ):
        assert "No kernel or copy ran" in subtitle(parts(empty))[0]
    for empty in (late(), late((0, 0, 0), count=0), communication.stragglers(COLLECTIVES.empty())):
        assert "collectives of several ranks" in subtitle(waits(empty))[0]
    for empty in (
        summary(),
        summary(("barrier", 0, NAN)),
        communication.summary(COLLECTIVES.empty()),
    ):
        assert "nccl-tests" in subtitle(bandwidth(empty))[0]


def met(*waits: tuple[int, int, int]) -> pd.DataFrame:
    """MATCHED from collective, rank and what it waits for the last one, in µs."""
    frame = pd.DataFrame(waits, columns=["collective", "rank", "wait_ns"])
    return frame.assign(wait_ns=frame["wait_ns"] * 1000, together=True)


def test_a_map_of_collectives_shows_by_how_much_a_rank_is_late() -> None:
    chart = lateness(met((0, 0, 30), (0, 1, 0), (1, 0, 0), (1, 1, 10)))
    cells = drawn(checked(chart), "rank", "first", "told")
    assert [(0, 0, "0 ns"), (0, 1, "10.0 µs"), (1, 0, "30.0 µs"), (1, 1, "0 ns")] == cells
    assert "Rank 1 comes 15.0 µs after the first, on average" == title(chart)


def test_a_map_of_collectives_that_no_ranks_were_in_together_is_a_sentence() -> None:
    apart = met((0, 0, 30), (0, 1, 0)).assign(together=False)
    assert "collectives of several ranks" in subtitle(lateness(apart))[0]


def test_connections_are_squares_in_the_colour_of_their_way(profiles: Path) -> None:
    """Counted by another pattern in the log's whole lines (two are cut); rings and trees name no transport."""
    path = profiles / "monitor/nccl_log__alcf_resnet50_results_2025-06-26-13-13-06_with_aws.log"
    whole = r"^\S+ \[\d\] NCCL INFO Channel (\d+)/0 : (\d+)\[\d\] -> (\d+)\[\d\] (?:\[\w+\] )?via ([\w/ ]+)$"
    lines = re.findall(whole, path.read_text(), re.MULTILINE)
    by_pair = {(int(first), int(second)): via for _, first, second, via in lines}
    view = checked(connections(perfkit.load(path).links))
    squares = drawn(view, "from_rank", "to_rank", "way")
    near, far = "from GPU to GPU in the node", "over the network, straight from GPU memory"
    assert sorted(squares) == sorted(
        (*pair, near if via.startswith("P2P") else far) for pair, via in by_pair.items()
    )
    channels = {line[:3] for line in lines if line[3].startswith("P2P")}
    assert (
        title(view)
        == f"{len(channels)} of {len({line[:3] for line in lines})} connections go {near}"
    )


def summary(
    *rows: tuple[str, int, float], group: str = "0", placement: str | None = None
) -> pd.DataFrame:
    """Bandwidths of 8 ranks from operation, bytes and median in GB/s; the least is half of it, the most the double."""
    frame = pd.DataFrame(rows, columns=["operation", "bytes", "bus_bytes_per_s"])
    bus = frame["bus_bytes_per_s"] * 1e9
    frame = frame.assign(
        bus_bytes_per_s=bus, min_bus_bytes_per_s=bus / 2, max_bus_bytes_per_s=bus * 2, count=3
    )
    return frame.assign(
        operation=frame["operation"].astype("category"),
        group=pd.Categorical([group] * len(frame)),
        ranks=pd.array([8] * len(frame), dtype="Int64"),
        placement=pd.Categorical([placement] * len(frame), ["in_place", "out_of_place"]),
    )


def views(spec: Spec) -> dict[str, Spec]:
    return {view["mark"]["type"]: view for view in spec["layer"]}


def test_points_lines_and_spread_in_one_unit() -> None:
    spec = checked(bandwidth(summary(("all_reduce", 10**6, 100.0), ("all_reduce", 10**9, 200.0))))
    rows = [(10**6, 100.0, 50.0, 200.0), (10**9, 200.0, 100.0, 400.0)]
    assert rows == drawn(views(spec)["point"], "bytes", "rate", "least", "most")
    assert "All-reduce reaches up to 200 GB/s at 1.00 GB" == title(spec)
    assert "group 0, 8 ranks" in subtitle(spec)[0]
    assert "lower bounds" in subtitle(spec)[1]
    assert "reaches up to 0 B/s at 8 B" in title(
        bandwidth(summary(("all_reduce", 8, 0.0)))
    )  # a single rank


def test_a_line_rate_to_compare_with() -> None:
    spec = checked(bandwidth(summary(("all_gather", 10**9, 200.0)), line_rate_bytes_per_s=4e11))
    assert "All-gather reaches up to 200 GB/s at 1.00 GB" == title(spec)
    assert [(400.0, "line rate 400 GB/s")] == drawn(views(spec)["text"], "rate", "said")
    assert spec["layer"][-1]["encoding"]["y"]["scale"]["domain"][1] > 400
    assert not [line for line in subtitle(spec) if "NVLS" in line]
    above = checked(bandwidth(summary(("all_reduce", 10**9, 480.0)), line_rate_bytes_per_s=4.5e11))[
        "title"
    ]
    assert "All-reduce reaches up to 480 GB/s at 1.00 GB" == above["text"]
    assert "NVLS" in above["subtitle"][2]


def test_dashes_tell_process_groups_and_placements_apart() -> None:
    row = ("all_reduce", 10**6, 1.0)
    unknown = {"group": pd.Categorical(["g0", None]), "ranks": pd.array([2, None], dtype="Int64")}
    spec = checked(bandwidth(summary(row, row).assign(**unknown)))
    assert "kind" == views(spec)["line"]["encoding"]["strokeDash"]["field"]
    assert {("group g0, 2 ranks",), ("unknown group",)} == {*drawn(views(spec)["line"], "kind")}
    assert "group" not in subtitle(spec)[0]
    groups = pd.Categorical([f"g{n}" for n in range(9)])  # too many for dashes
    many = views(checked(bandwidth(summary(*[row] * 9).assign(group=groups))))["line"]["encoding"]
    assert ("kind", False) == (many["detail"]["field"], "strokeDash" in many)
    hostile = checked(bandwidth(summary(row, group="<b>\n\u202e" + "x" * 10_000)))
    kind = views(hostile)["point"]["rows"][0]["kind"]
    assert kind.startswith("group <b> �x")
    assert len("group , 8 ranks") + 40 == len(kind)

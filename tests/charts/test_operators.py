"""Operators, steps that wait for data, latency by batch size, and memory over time."""

import altair as alt
import pandas as pd
import pytest
import sampled
from charts.checking import checked, drawn, subtitle, title

from perfkit import analysis
from perfkit.analysis import memory as analysis_memory
from perfkit.analysis.steps import STEPS
from perfkit.charts.operators import bars, latency, memory, steps
from perfkit.tables import API_CALLS, KERNELS, OPS, RANGES, SAMPLES


def summary(*rows: tuple[str | None, int, int]) -> pd.DataFrame:
    """Operators from name, GPU and CPU self time in µs."""
    frame = pd.DataFrame(rows, columns=["name", "gpu_self_ns", "cpu_self_ns"])
    times = frame[["gpu_self_ns", "cpu_self_ns"]] * 1000
    return frame.assign(**times, name=frame["name"].astype("category"), count=2, kernel_count=3)


def waits(*rows: tuple[int, int, int | None], rank: int = 0) -> pd.DataFrame:
    """Steps of a rank from number, duration and wait in ms; None was not recorded."""
    frame = pd.DataFrame(rows, columns=["step", "dur_ns", "wait_ns"]).astype({"wait_ns": "Int64"})
    frame = frame.assign(
        rank=rank, dur_ns=frame["dur_ns"] * 10**6, wait_ns=frame["wait_ns"] * 10**6
    )
    return frame.assign(wait_frac=(frame["wait_ns"] / frame["dur_ns"]).astype("float64"))


def test_gpu_and_cpu_stand_beside_each_other() -> None:
    spec = checked(bars(summary(("a", 30, 40), ("b", 60, 5), (None, 10, 0))))
    assert [
        ("1. b", "GPU time of its kernels", "GPU", 60.0, "60.0 µs · 60.0 %"),
        ("2. a", "GPU time of its kernels", "GPU", 30.0, "30.0 µs · 30.0 %"),
        ("1. b", "CPU time", "CPU", 5.0, "5.00 µs"),
        ("2. a", "CPU time", "CPU", 40.0, "40.0 µs"),
        ("no operator recorded", "GPU time, no operator recorded", "GPU", 10.0, "10.0 µs · 10.0 %"),
    ] == drawn(spec, "label", "series", "slot", "time", "said")
    assert "b launches 60.0 % of the GPU time; 10.0 % has no operator recorded" == title(spec)
    assert "100 µs of kernels, 45.0 µs on the CPU meanwhile" in subtitle(spec)[0]
    encoding = checked(bars(summary((None, 90, 0), ("a", 10, 1))))["layer"][0]["encoding"]
    assert ["1. a", "no operator recorded"] == encoding["y"]["sort"]  # however long it is


def test_what_was_not_recorded_of_operators_is_said() -> None:
    spec = checked(bars(summary(("a", 0, 1), ("b", 0, 3))))
    assert [("1. b", "CPU", 3.0), ("2. a", "CPU", 1.0)] == drawn(spec, "label", "slot", "time")
    assert "b takes 75.0 % of the CPU time" == title(spec)
    assert "kernels" not in subtitle(spec)[0]
    for frame in (
        summary((None, 90, 0), ("a", 0, 1)),
        summary((None, 9, 0)),
    ):  # all kernels in a replayed graph
        assert "No operator was recorded for any kernel" == title(bars(frame))
    empty = analysis.operators.totals.summary(OPS.empty(), KERNELS.empty(), API_CALLS.empty())
    for frame in (summary(), summary(("a", 0, 0)), empty):
        assert "No operator took time" in subtitle(bars(frame))[0]
    for frame in (
        waits(),
        waits((0, 100, None)),
        analysis.host.input_wait(RANGES.empty(), STEPS.empty()),
    ):
        assert "record_function" in subtitle(steps(frame))[0]


def test_hostile_names_stay_text_and_keep_their_bars() -> None:
    names = ["<b>x</b>\n\u202e", *("x" * 5_000 + middle + "x" * 5_000 for middle in "ab")]
    rows = checked(bars(summary(*((name, 9 - n, 1) for n, name in enumerate(names)))))["layer"][0][
        "rows"
    ]
    assert "1. <b>x</b> �" == rows[0]["label"]
    assert (3, 400) == (len({row["label"] for row in rows}), len(rows[1]["name"]))


def test_steps_split_into_wait_and_rest() -> None:
    spec = checked(steps(waits((0, 100, 40), (1, 100, 10))))
    assert [
        (0, "waiting for data", 0, 40.0, "40.0 ms"),
        (1, "waiting for data", 0, 10.0, "10.0 ms"),
        (0, "the rest of the step", 40.0, 100.0, "60.0 ms"),
        (1, "the rest of the step", 10.0, 100.0, "90.0 ms"),
    ] == drawn(spec, "step", "part", "begin", "end", "time")
    assert [(100.0, "40.0 %"), (100.0, "10.0 %")] == drawn(spec["layer"][1], "end", "share")
    assert "Waiting for data takes 25.0 % of the steps' time" == title(spec)
    assert "200 ms in 2 steps" in subtitle(spec)[0]


def test_each_rank_that_waits_has_a_panel_up_to_eight() -> None:
    frame = pd.concat([waits((0, 10, 1)), waits((0, 20, 2), rank=1), waits((0, 90, None), rank=2)])
    spec = checked(steps(frame))
    assert ["rank 0", "rank 1"] == [title(panel) for panel in spec["vconcat"]]
    assert 1 == len({str(panel["layer"][0]["encoding"]["y"]["scale"]) for panel in spec["vconcat"]})
    assert "30.0 ms in 2 steps of 2 ranks" in subtitle(spec)[0]
    spec = checked(steps(pd.concat([waits((0, 10, rank), rank=rank) for rank in range(9)])))
    assert [f"rank {rank}" for rank in range(1, 9)] == [title(panel) for panel in spec["vconcat"]]
    assert "Drawn are the 8 ranks that wait most." == subtitle(spec)[1]
    assert "Waiting for data takes 40.0 % of the steps' time" == title(spec)
    long = checked(steps(waits(*((n, 10, 1) for n in range(201)))))
    assert "Drawn are the first 200 steps." == subtitle(long)[1]
    assert (400, 1) == (len(long["layer"][0]["rows"]), len(long["layer"]))  # no room for shares


TIMES = pd.DataFrame({"batch_count": [32, 1, 8], "latency_ns": [50e6, 9e6, 20e6]})


def test_points_and_their_line() -> None:
    """By hand: 5 ms + 1.5 ms per sample are 53 ms at 32, 3 ms above the point there; 32 in 50 ms are 640 per second."""
    spec = checked(latency(TIMES, intercept_ns=5e6, slope_ns=1.5e6))
    line, points, words = spec["layer"]
    assert [(0.0, 5.0), (37.76, 61.64)] == [
        pytest.approx(row) for row in drawn(line, "batch", "ms")
    ]
    assert [
        (1, 9.0, "above by 2.50 ms", "111"),
        (8, 20.0, "above by 3.00 ms", "400"),
        (32, 50.0, "below by 3.00 ms", "640"),
    ] == drawn(points, "batch", "ms", "off", "rate")
    assert [("9.00 ms",), ("20.0 ms",), ("50.0 ms",)] == drawn(words, "words")
    assert "A batch takes 5.00 ms and 1.50 ms for each sample" in title(spec)
    for first in (5e6, -4e6):  # a line that begins below 0 is seen, too
        encoding = checked(latency(TIMES, intercept_ns=first, slope_ns=1.5e6))["layer"][1][
            "encoding"
        ]
        (left, right), (low, high) = (encoding[axis]["scale"]["domain"] for axis in ("x", "y"))
        assert (0, min(first / 1e6, 0)) == (left, low)
        assert right > 32
        assert high > max(50, first / 1e6 + 1.5 * right - 0.001)
    assert "at least two" in subtitle(latency(TIMES.iloc[:1], intercept_ns=0, slope_ns=0))[0]


def samples(*levels: tuple[int, int, int | None], gpu: int = 0, rank: int = 0) -> pd.DataFrame:
    """SAMPLES of (time in ms, allocated, reserved in MB) of a device; reserved None is not recorded."""
    scaled = [
        tuple(value if value is None else value * 10**6 for value in level) for level in levels
    ]
    return sampled.allocated(*scaled, rank=rank, gpu=gpu)


def chart(*tables: pd.DataFrame, bins: int = 500) -> alt.LayerChart | alt.VConcatChart:
    """The picture of what the analyses say of these samples."""
    table = sampled.together(*tables)
    binned = analysis_memory.bins(analysis_memory.timeline(table), bins=bins)
    return memory(binned, analysis_memory.peak(table))


LEVELS = (0, 2, 10), (10, 8, 10), (40, 4, 10), (50, 4, 20)


def test_levels_in_one_unit_and_the_peak() -> None:
    spec = checked(chart(samples(*LEVELS), bins=2))
    least, _, _, strips, _, point, words = spec["layer"]
    assert [(2, 8, 10), (4, 8, 20), (4, 8, 20)] == drawn(least, "least", "most", "reserved")
    assert [(10.0, 8.0, "peak 8.00 MB")] == drawn(words, "time", "most", "said")
    assert point["rows"] == words["rows"]
    assert [("2.00 MB to 8.00 MB",), ("4.00 MB to 8.00 MB",)] == drawn(strips, "allocated")
    assert "At most 8.00 MB allocated on GPU 0, at most 20.0 MB reserved" == title(spec)
    assert "within each 25.0 ms" in subtitle(spec)[0]
    early, late = chart(samples((0, 9, 9), (10, 1, 9))), chart(samples((0, 1, 9), (10, 9, 9)))
    assert ["left", "right"] == [
        checked(one)["layer"][-1]["mark"]["align"] for one in (early, late)
    ]


def test_the_host_only_where_no_gpu_is_and_nothing_without_samples() -> None:
    host = samples((0, 7, None), (5, 3, None), gpu=-1)
    assert "GPU 0" in title(chart(host, samples(*LEVELS)))
    spec = checked(chart(host))
    assert "At most 7.00 MB allocated on host memory" == title(spec)
    assert "Reserved memory was not recorded." in subtitle(spec)[0]
    assert ["allocated"] == spec["layer"][0]["encoding"]["color"]["scale"]["domain"]
    assert not [view for view in spec["layer"] if view["mark"]["type"] == "line"]
    assert "At most 0 B allocated" in title(chart(samples((0, 0, 0))))
    none = chart(SAMPLES.empty())
    assert "No memory was recorded" == title(none)
    assert "profile_memory=True" in subtitle(none)[0]

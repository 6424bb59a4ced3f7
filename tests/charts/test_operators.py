"""Operators, steps that wait for data, latency by batch size, and memory over time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import pytest
from frames import ranges
from ops import launch, launched, op, ops

import perfkit
from perfkit import analysis
from perfkit.analysis import memory as analysis_memory
from perfkit.analysis.steps import STEPS
from perfkit.charts.operators import bars, latency, memory, steps
from perfkit.errors import SchemaError
from perfkit.tables import API_CALLS, KERNELS, OPS, RANGES, SAMPLES

Check = Callable[[alt.TopLevelMixin], dict[str, Any]]
QWEN = "TraceLens__h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
RESNET = "kineto__resnet50_num_workers_0__worker0.1623143566756.pt.trace.json.gz"


def summary(*rows: tuple[str | None, int, int]) -> pd.DataFrame:
    """Operators from name, GPU and CPU self time in µs."""
    frame = pd.DataFrame(rows, columns=["name", "gpu_self_ns", "cpu_self_ns"])
    times = frame[["gpu_self_ns", "cpu_self_ns"]] * 1000
    return frame.assign(**times, name=frame["name"].astype("category"), count=2, kernel_count=3)


def waits(*rows: tuple[int, int, int | None], rank: int = 0) -> pd.DataFrame:
    """Steps of a rank from number, duration and wait in ms; None was not recorded."""
    frame = pd.DataFrame(rows, columns=["step", "dur_ns", "wait_ns"]).astype({"wait_ns": "Int64"})
    frame = frame.assign(rank=rank, dur_ns=frame["dur_ns"] * 10**6, wait_ns=frame["wait_ns"] * 10**6)
    return frame.assign(wait_frac=(frame["wait_ns"] / frame["dur_ns"]).astype("float64"))


def drawn(view: dict[str, Any], *fields: str) -> list[tuple[Any, ...]]:
    """The given fields of a view's rows."""
    return [tuple(row[field] for field in fields) for row in view["rows"]]


def test_gpu_and_cpu_stand_beside_each_other(checked: Check) -> None:
    """b launches 60 of 100 µs of kernels and takes 5 µs itself; a 30 and 40; 10 have no operator."""
    spec = checked(bars(summary(("a", 30, 40), ("b", 60, 5), (None, 10, 0))))
    assert [
        ("1. b", "GPU time of its kernels", "GPU", 60.0, "60.0 µs · 60.0 %"),
        ("2. a", "GPU time of its kernels", "GPU", 30.0, "30.0 µs · 30.0 %"),
        ("1. b", "CPU time", "CPU", 5.0, "5.00 µs"),
        ("2. a", "CPU time", "CPU", 40.0, "40.0 µs"),
        ("no operator recorded", "GPU time, no operator recorded", "GPU", 10.0, "10.0 µs · 10.0 %"),
    ] == drawn(spec["layer"][0], "label", "series", "slot", "time", "said")
    assert "b launches 60.0 % of the GPU time; 10.0 % has no operator recorded" == spec["title"]["text"]
    assert "100 µs of kernels, 45.0 µs on the CPU meanwhile" in spec["title"]["subtitle"][0]
    assert "self time (µs)" == spec["layer"][0]["encoding"]["x"]["title"]


def test_what_has_no_operator_is_grey_and_last(checked: Check) -> None:
    """However long it is, it stands below all operators."""
    encoding = checked(bars(summary((None, 90, 0), ("a", 10, 1))))["layer"][0]["encoding"]
    assert ["1. a", "no operator recorded"] == encoding["y"]["sort"]
    assert "#9A9A9A" == encoding["fill"]["scale"]["range"][-1]


def test_the_rest_is_one_bar(checked: Check) -> None:
    """Two of four have bars of their own; d, that launches nothing, counts among the others."""
    spec = checked(bars(summary(("a", 4, 1), ("b", 3, 1), ("c", 2, 1), ("d", 0, 9)), top=2))
    assert ["1. a", "2. b", "2 other operators"] == spec["layer"][0]["encoding"]["y"]["sort"]
    others = [row for row in spec["layer"][0]["rows"] if row["label"] == "2 other operators"]
    assert [("GPU", 2.0, 4), ("CPU", 10.0, 4)] == [(row["slot"], row["time"], row["count"]) for row in others]
    only = checked(bars(summary(("a", 4, 1), ("b", 3, 1)), top=1))["layer"][0]["encoding"]["y"]["sort"]
    assert ["1. a", "1 other operator"] == only


def test_without_kernels_cpu_time_decides(checked: Check) -> None:
    """A trace of the CPU alone shows what takes its time; it says nothing of a GPU."""
    spec = checked(bars(summary(("a", 0, 1), ("b", 0, 3))))
    assert [("1. b", "CPU", 3.0), ("2. a", "CPU", 1.0)] == drawn(spec["layer"][0], "label", "slot", "time")
    assert "b takes 75.0 % of the CPU time" == spec["title"]["text"]
    assert "kernels" not in spec["title"]["subtitle"][0]


def test_no_operator_for_any_kernel(checked: Check) -> None:
    """All kernels in a replayed graph: the title does not name an operator that launched nothing."""
    spec = checked(bars(summary((None, 90, 0), ("a", 0, 1))))
    assert "No operator was recorded for any kernel" == spec["title"]["text"]
    assert "No operator was recorded for any kernel" == checked(bars(summary((None, 9, 0))))["title"]["text"]


def test_hostile_names_stay_text(checked: Check) -> None:
    """Markup, line breaks and 10,000 characters are data on one line; names cut to the same text keep their bars."""
    names = ["<b>x</b>\n\u202e", *("x" * 5_000 + middle + "x" * 5_000 for middle in "ab")]
    rows = checked(bars(summary(*((name, 9 - n, 1) for n, name in enumerate(names)))))["layer"][0]["rows"]
    assert "1. <b>x</b> �" == rows[0]["label"]
    assert 3 == len({row["label"] for row in rows})
    assert 400 == len(rows[1]["name"])


def test_without_operators_the_chart_says_so(checked: Check) -> None:
    """Nothing recorded, or nothing that took time, is a sentence."""
    for frame in (summary(), summary(("a", 0, 0))):
        assert "No operator took time" in checked(bars(frame))["title"]["subtitle"][0]


def test_steps_split_into_wait_and_rest(checked: Check) -> None:
    """40 of 100 ms and 10 of 100: waiting lies below, its share stands above; together 50 of 200."""
    spec = checked(steps(waits((0, 100, 40), (1, 100, 10))))
    assert [
        (0, "waiting for data", 0, 40.0, "40.0 ms"),
        (1, "waiting for data", 0, 10.0, "10.0 ms"),
        (0, "the rest of the step", 40.0, 100.0, "60.0 ms"),
        (1, "the rest of the step", 10.0, 100.0, "90.0 ms"),
    ] == drawn(spec["layer"][0], "step", "part", "begin", "end", "time")
    assert [(100.0, "40.0 %"), (100.0, "10.0 %")] == drawn(spec["layer"][1], "end", "share")
    assert "Waiting for data takes 25.0 % of the steps' time" == spec["title"]["text"]
    assert "200 ms in 2 steps" in spec["title"]["subtitle"][0]


def test_a_panel_for_each_rank(checked: Check) -> None:
    """Two ranks have a panel each on one axis of time; a third, that records no loader, has none."""
    frame = pd.concat([waits((0, 10, 1)), waits((0, 20, 2), rank=1), waits((0, 90, None), rank=2)])
    spec = checked(steps(frame))
    assert ["rank 0", "rank 1"] == [panel["title"]["text"] for panel in spec["vconcat"]]
    assert 1 == len({str(panel["layer"][0]["encoding"]["y"]["scale"]) for panel in spec["vconcat"]})
    assert "30.0 ms in 2 steps of 2 ranks" in spec["title"]["subtitle"][0]


def test_what_is_not_drawn_is_said(checked: Check) -> None:
    """Of 9 ranks the 8 that wait most, of 201 steps the first 200; the share is that of all of them."""
    many = pd.concat([waits((0, 10, rank), rank=rank) for rank in range(9)])
    spec = checked(steps(many))
    assert [f"rank {rank}" for rank in range(1, 9)] == [panel["title"]["text"] for panel in spec["vconcat"]]
    assert "Drawn are the 8 ranks that wait most." == spec["title"]["subtitle"][1]
    assert "Waiting for data takes 40.0 % of the steps' time" == spec["title"]["text"]
    long = checked(steps(waits(*((n, 10, 1) for n in range(201)))))
    assert "Drawn are the first 200 steps." == long["title"]["subtitle"][1]
    assert 400 == len(long["layer"][0]["rows"])
    assert 1 == len(long["layer"])  # no room for shares


def test_without_a_loader_the_chart_says_so(checked: Check) -> None:
    """Steps of a rank that records no data loading say nothing about it, and how to name a loader."""
    for frame in (waits(), waits((0, 100, None))):
        assert "record_function" in checked(steps(frame))["title"]["subtitle"][0]


def test_wrong_arguments_are_refused() -> None:
    """No bars, a share above 1 and a missing column are errors that say so."""
    with pytest.raises(ValueError, match="top: 0 is not at least 1"):
        bars(summary(("a", 1, 1)), top=0)
    with pytest.raises(SchemaError, match="kernel_count"):
        bars(summary().drop(columns="kernel_count"))
    with pytest.raises(ValueError, match=r"wait_frac: 1\.5 is not a fraction"):
        steps(waits((0, 10, 15)))
    with pytest.raises(SchemaError, match="wait_frac"):
        steps(waits().drop(columns="wait_frac"))


def test_the_charts_take_what_the_analyses_return(checked: Check) -> None:
    """Two operators that launch kernels, a kernel without; a step of 10 ns, 4 of them in the loader; nothing at all."""
    kernels, calls = launched(launch(2, 20, 30), launch(12, 60, 60, "b"), launch(90, 200, 10))
    table = ops(op("aten::a", 0, 10), op("aten::b", 10, 20))
    spec = checked(bars(analysis.operators.totals.summary(table, kernels, calls)))
    assert "aten::b launches 60.0 % of the GPU time; 10.0 % has no operator recorded" == spec["title"]["text"]
    empty = analysis.operators.totals.summary(OPS.empty(), KERNELS.empty(), API_CALLS.empty())
    assert "Nothing to draw" in checked(bars(empty))["description"]
    spans = ranges(
        {"start_ns": 0, "dur_ns": 10, "name": "ProfilerStep#1", "kind": "step"},
        {"start_ns": 1, "dur_ns": 4, "name": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"},
    )
    found = analysis.steps.detect(spans, KERNELS.empty())
    assert "Waiting for data takes 40.0 %" in checked(steps(analysis.host.input_wait(spans, found)))["title"]["text"]
    none = analysis.host.input_wait(RANGES.empty(), STEPS.empty())
    assert "Nothing to draw" in checked(steps(none))["description"]


def test_real_operators(profiles: Path, checked: Check) -> None:
    """A language model on an H100: kernels take 45,432,698 ns, as the trace's truth says; aten::mul leads."""
    truth = json.loads((profiles / "golden" / "torch" / f"{QWEN}.truth.json").read_text())
    assert 45_432_698 == truth["devices"]["0"]["kernel_time_sum"]
    run = perfkit.load(profiles / "torch" / QWEN)
    spec = checked(bars(analysis.operators.totals.summary(run.ops, run.kernels, run.api_calls)))
    assert "45.4 ms of kernels" in spec["title"]["subtitle"][0]
    assert "aten::mul launches 14.9 % of the GPU time; 30.1 % has no operator recorded" == spec["title"]["text"]


def test_real_steps(profiles: Path, checked: Check) -> None:
    """ResNet-50 without workers: 272,769 us in the loader's ranges of 917,731 us in the steps, as in the trace."""
    run = perfkit.load(profiles / "torch" / RESNET)
    found = analysis.host.input_wait(run.ranges, analysis.steps.detect(run.ranges, run.kernels))
    spec = checked(steps(found))
    assert f"Waiting for data takes {100 * 272_769 / 917_731:.1f} % of the steps' time" == spec["title"]["text"]


TIMES = pd.DataFrame({"batch_count": [32, 1, 8], "latency_ns": [50e6, 9e6, 20e6]})


def test_points_and_their_line(checked: Check) -> None:
    """By hand: 5 ms + 1.5 ms per sample are 53 ms at 32, 3 ms above the point there; 32 in 50 ms are 640 per second."""
    line, points, words = checked(latency(TIMES, intercept_ns=5e6, slope_ns=1.5e6))["layer"]
    assert [(0.0, 5.0), (37.76, 61.64)] == [(row["batch"], pytest.approx(row["ms"])) for row in line["rows"]]
    assert [(1, 9.0), (8, 20.0), (32, 50.0)] == [(row["batch"], row["ms"]) for row in points["rows"]]
    assert ["above by 2.50 ms", "above by 3.00 ms", "below by 3.00 ms"] == [row["off"] for row in points["rows"]]
    assert ["111", "400", "640"] == [row["rate"] for row in points["rows"]]
    assert ["9.00 ms", "20.0 ms", "50.0 ms"] == [row["words"] for row in words["rows"]]


def test_everything_lies_inside_the_picture(checked: Check) -> None:
    """Both axes begin at 0 and end beyond points and line; a line that begins below 0 is seen, too."""
    for first in (5e6, -4e6):
        chart = checked(latency(TIMES, intercept_ns=first, slope_ns=1.5e6))
        encoding = chart["layer"][1]["encoding"]
        (left, right), (low, high) = (encoding[axis]["scale"]["domain"] for axis in ("x", "y"))
        assert (0, min(first / 1e6, 0)) == (left, low)
        assert right > 32
        assert high > max(50, first / 1e6 + 1.5 * right - 0.001)
    title = checked(latency(TIMES, intercept_ns=5e6, slope_ns=1.5e6))["title"]["text"]
    assert "A batch takes 5.00 ms and 1.50 ms for each sample" in title


def test_one_batch_size_is_no_line(checked: Check) -> None:
    """It says what is missing; without a column it is refused."""
    spec = checked(latency(TIMES.iloc[:1], intercept_ns=0, slope_ns=0))
    assert "at least two" in spec["title"]["subtitle"][0]
    with pytest.raises(SchemaError, match="latency_ns"):
        latency(TIMES[["batch_count"]], intercept_ns=0, slope_ns=0)


MB = 10**6


def samples(*levels: tuple[int, int, int | None], gpu: int = 0, rank: int = 0) -> pd.DataFrame:
    """SAMPLES of (time in ms, allocated, reserved in MB) of a device; reserved None is not recorded."""
    rows: list[dict[str, Any]] = []
    for time, *values in levels:
        for name, value in zip(("allocated", "reserved"), values, strict=True):
            if value is not None:
                what = {"metric": f"memory_{name}_bytes", "value": float(value * MB)}
                rows.append({"rank": rank, "gpu": gpu, "time_ns": time * 10**6, **what})
    return SAMPLES.make(pd.DataFrame(rows, columns=SAMPLES.column_names))


def chart(*tables: pd.DataFrame, bins: int = 500, title: str = "") -> alt.LayerChart | alt.VConcatChart:
    """The picture of what the analyses say of these samples."""
    table = SAMPLES.make(pd.concat(tables))
    return memory(
        analysis_memory.bins(analysis_memory.timeline(table), bins=bins), analysis_memory.peak(table), title=title
    )


LEVELS = (0, 2, 10), (10, 8, 10), (40, 4, 10), (50, 4, 20)


def test_levels_in_one_unit_and_the_peak(checked: Check) -> None:
    """8 of 20 MB at 10 ms: filled from 0 to the least, fainter to the most of a bin, a line for what is reserved."""
    spec = checked(chart(samples(*LEVELS), bins=2))
    least, most, line, strips, _, point, words = spec["layer"]
    assert ["least", "least", "reserved"] == [view["encoding"]["y"]["field"] for view in (least, most, line)]
    assert "most" == most["encoding"]["y2"]["field"]
    assert [(2, 8, 10), (4, 8, 20), (4, 8, 20)] == [(r["least"], r["most"], r["reserved"]) for r in least["rows"]]
    assert [(10.0, 8.0, "peak 8.00 MB")] == [(r["time"], r["most"], r["said"]) for r in words["rows"]]
    assert point["rows"] == words["rows"]
    assert ["2.00 MB to 8.00 MB", "4.00 MB to 8.00 MB"] == [row["allocated"] for row in strips["rows"]]
    assert "memory (MB)" == least["encoding"]["y"]["title"]
    assert "At most 8.00 MB allocated on GPU 0, at most 20.0 MB reserved" == spec["title"]["text"]
    assert "within each 25.0 ms" in spec["title"]["subtitle"][0]


def test_the_words_of_the_peak_stay_inside(checked: Check) -> None:
    """In the first half they run to the right, in the second to the left."""
    early = checked(chart(samples((0, 9, 9), (10, 1, 9))))
    late = checked(chart(samples((0, 1, 9), (10, 9, 9))))
    assert ["left", "right"] == [spec["layer"][-1]["mark"]["align"] for spec in (early, late)]


def test_a_panel_for_each_gpu(checked: Check) -> None:
    """Two GPUs of a rank share both axes; the title names the higher peak, a description says what is seen."""
    spec = checked(chart(samples(*LEVELS), samples((0, 1, 2), (90, 9, 9), gpu=1)))
    assert ["GPU 0", "GPU 1"] == [panel["title"]["text"] for panel in spec["vconcat"]]
    for channel in ("x", "y"):
        scales = {str(panel["layer"][0]["encoding"][channel]["scale"]) for panel in spec["vconcat"]}
        assert 1 == len(scales)
    assert "At most 9.00 MB allocated on GPU 1, at most 9.00 MB reserved" == spec["title"]["text"]
    assert "2 panels" in spec["description"]


def test_of_many_gpus_the_highest_peaks_are_drawn(checked: Check) -> None:
    """Nine ranks, the first with the lowest peak: it is left out, which the chart says."""
    spec = checked(chart(*(samples((0, 1 + rank, 20), rank=rank) for rank in range(9))))
    assert [f"rank {rank} · GPU 0" for rank in range(1, 9)] == [panel["title"]["text"] for panel in spec["vconcat"]]
    assert "These are the highest 8 of 9 peaks." == spec["title"]["subtitle"][1]


def test_the_host_only_where_no_gpu_is(checked: Check) -> None:
    """Host memory beside a GPU is not drawn; alone it is, without a line for what is never reserved."""
    host = samples((0, 7, None), (5, 3, None), gpu=-1)
    assert "GPU 0" in checked(chart(host, samples(*LEVELS)))["title"]["text"]
    spec = checked(chart(host))
    assert "At most 7.00 MB allocated on host memory" == spec["title"]["text"]
    assert "Reserved memory was not recorded." in spec["title"]["subtitle"][0]
    assert ["allocated"] == spec["layer"][0]["encoding"]["color"]["scale"]["domain"]
    assert not [view for view in spec["layer"] if view["mark"]["type"] == "line"]


def test_nothing_allocated(checked: Check) -> None:
    """A level of 0 bytes is drawn as such."""
    assert "At most 0 B allocated" in checked(chart(samples((0, 0, 0)), title=""))["title"]["text"]


def test_without_samples_the_chart_says_so(checked: Check) -> None:
    """No memory recorded is a sentence that says what records it; a title stays."""
    spec = checked(chart(SAMPLES.empty(), title="Memory of rank 3"))
    assert "Memory of rank 3" == spec["title"]["text"]
    assert "profile_memory=True" in spec["title"]["subtitle"][0]


def test_wrong_frames_are_refused() -> None:
    """A missing column of either frame is named."""
    table = samples(*LEVELS)
    bins, peaks = analysis_memory.bins(analysis_memory.timeline(table)), analysis_memory.peak(table)
    with pytest.raises(SchemaError, match="max_reserved_bytes"):
        memory(bins.drop(columns="max_reserved_bytes"), peaks)
    with pytest.raises(SchemaError, match="time_ns"):
        memory(bins, peaks.drop(columns="time_ns"))


def test_the_real_capture(profiles: Path, checked: Check) -> None:
    """A language model on an H100: the peak is that of the trace's own running total, and the picture has it."""
    truth = json.loads((profiles / "golden" / "torch" / f"{QWEN}.truth.json").read_text())["memory_events"]
    samples = perfkit.load(profiles / "torch" / QWEN).samples
    spec = checked(memory(analysis_memory.bins(analysis_memory.timeline(samples)), analysis_memory.peak(samples)))
    highest = truth["peak_total_allocated"]["(1, 0)"]
    assert highest == round(max(row["most"] for row in spec["layer"][0]["rows"]) * 1e9)
    assert f"At most {highest / 1e9:.2f} GB allocated on GPU 0, at most 2.63 GB reserved" == spec["title"]["text"]
    assert 501 == len(spec["layer"][0]["rows"])

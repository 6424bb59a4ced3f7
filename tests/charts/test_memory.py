"""Memory over time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import pytest

import perfkit
from perfkit.analysis import memory as analysis_memory
from perfkit.charts.operators import memory
from perfkit.errors import SchemaError
from perfkit.tables import SAMPLES

Check = Callable[[alt.TopLevelMixin], dict[str, Any]]
QWEN = "TraceLens__h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
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

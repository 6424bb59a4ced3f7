"""Metrics of the GPUs while a log moves on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import altair as alt
import pandas as pd
import pytest
from sampled import SECOND, samples, together

from perfkit.analysis.monitoring.alignment import bins
from perfkit.charts.monitor_lines import NAMES, strips
from perfkit.errors import SchemaError
from perfkit.tables import METRICS

Check = Callable[[alt.TopLevelMixin], dict[str, Any]]


def drawn(*tables: pd.DataFrame, until: int = 4) -> dict[str, Any]:
    """The picture of the first seconds of these samples."""
    table = together(*tables)
    tops = {str(metric): float(top) for metric, top in table.groupby("metric", observed=True)["value"].max().items()}
    window = 0, until * SECOND
    return strips(bins(table, bins=10, window=window), window=window, tops=tops)


def test_is_a_chart_like_all_others(checked: Check) -> None:
    """It matches Vega-Lite's schema, its fields exist, its axes have units."""
    spec = drawn(samples(gpu_busy_frac=[0, 1], power_w=[300, 700], sm_clock_hz=[1e9, 2e9], memory_used_bytes=[0, 4e10]))
    panels = checked(alt.VConcatChart.from_dict(spec))["vconcat"]
    assert ["GPU busy", "memory used", "power", "SM clock"] == [panel["title"]["text"] for panel in panels]
    assert ["(%)", "(GB)", "(W)", "(MHz)"] == [panel["encoding"]["y"]["title"] for panel in panels]
    assert [False] * 3 + [None] == [panel["encoding"]["x"]["axis"].get("labels") for panel in panels]


def test_draws_each_reading_until_the_next() -> None:
    """25 % for a second, then 75 % for another, at which the line ends."""
    (found,) = drawn(samples(gpu_busy_frac=[0.25, 0.75]))["datasets"].values()
    rows = [(row["time"], row["value"], row["gpu"]) for row in found]
    assert [(0, 25, "GPU 0"), (1, 75, "GPU 0"), (2, 75, "GPU 0")] == rows


def test_axes_are_those_of_the_whole_log() -> None:
    """Time reaches over the window, fractions up to 100 %, other metrics 5 % beyond their highest."""
    busy, power = drawn(samples(gpu_busy_frac=[0.25], power_w=[200]), until=60)["vconcat"]
    assert [0, 60] == busy["encoding"]["x"]["scale"]["domain"]
    assert [0, 100] == busy["encoding"]["y"]["scale"]["domain"]
    assert [0, 210] == power["encoding"]["y"]["scale"]["domain"]


def test_a_metric_that_is_always_zero_has_an_axis() -> None:
    """A scale from 0 to 0 would put the line in the middle."""
    (panel,) = drawn(samples(pcie_rx_bytes_per_s=[0, 0]))["vconcat"]
    assert [0, 1] == panel["encoding"]["y"]["scale"]["domain"]


def test_gpus_have_colours_and_the_first_eight_are_drawn(checked: Check) -> None:
    """Of 10 GPUs 8 have a line and a colour each, which the title says."""
    spec = drawn(*[samples(gpu=gpu, gpu_busy_frac=[0.5]) for gpu in range(10)])
    checked(alt.VConcatChart.from_dict(spec))
    (panel,) = spec["vconcat"]
    gpus = [f"GPU {gpu}" for gpu in range(8)]
    assert gpus == panel["encoding"]["color"]["scale"]["domain"]
    assert set(gpus) == {row["gpu"] for row in spec["datasets"]["gpu_busy_frac"]}
    assert 8 == len(set(panel["encoding"]["color"]["scale"]["range"]))
    assert spec["title"]["text"].endswith("GPU 7 of 10 GPUs")


def test_nothing_was_read(checked: Check) -> None:
    """Without readings, or with those of other metrics, it says that there are none."""
    for table in (samples(gpu_busy_frac=[]), samples(fan_frac=[1])):
        spec = drawn(table)
        assert "No readings" == checked(alt.LayerChart.from_dict(spec))["title"]["text"]


def test_names_are_those_of_metrics() -> None:
    """Every metric that is drawn is one that a reader can find."""
    assert set(NAMES) <= set(METRICS)


def test_other_frames_are_refused() -> None:
    """A frame without bins is named, and more rows than a browser draws."""
    with pytest.raises(SchemaError, match="start_ns"):
        strips(pd.DataFrame({"rank": [], "gpu": [], "metric": []}), window=(0, 1), tops={})
    table = bins(samples(power_w=[1.0, 2.0]), bins=2)
    many = pd.concat([table] * 10_001)
    with pytest.raises(ValueError, match="20002 rows are more than 20000"):
        strips(many, window=(0, 1), tops={"power_w": 2})

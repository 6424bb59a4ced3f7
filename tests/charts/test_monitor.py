"""What the log of the GPUs says over time, still and as it grows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import pytest
from sampled import SECOND, together
from sampled import samples as readings

import perfkit
from perfkit import tables
from perfkit.analysis import monitoring
from perfkit.analysis.monitoring import alignment
from perfkit.analysis.monitoring.alignment import bins as sampled_bins
from perfkit.charts import monitor
from perfkit.charts.monitor import BESIDE, DRAWN_METRICS, dashboard
from perfkit.charts.monitor_lines import NAMES, strips
from perfkit.errors import SchemaError
from perfkit.tables import METRICS, SAMPLES

Check = Callable[[alt.TopLevelMixin], dict[str, Any]]
S = 10**9
RUN = "smi_query__rtx4090_training_run.csv"


def samples(metric: str, *values: float, gpu: int = 0, rank: int = 0) -> pd.DataFrame:
    """SAMPLES of a metric, read every second from 0 on."""
    times = [number * S for number in range(len(values))]
    frame = pd.DataFrame({"time_ns": times, "value": [float(value) for value in values]})
    return SAMPLES.make(frame.assign(metric=metric, gpu=gpu, rank=rank))


def bins(*tables: pd.DataFrame, number: int = 300) -> pd.DataFrame:
    """The bins of several metrics or devices."""
    return alignment.bins(SAMPLES.make(pd.concat(tables)), bins=number)


def limits(quantity: str, limit: float, at_limit: float, gpu: int = 0) -> pd.DataFrame:
    """A row as `monitoring.at_limit` returns it."""
    row = {"rank": 0, "gpu": gpu, "quantity": quantity, "mean": 0.0, "limit": limit, "at_limit_frac": at_limit}
    return pd.DataFrame([row])


def panel(spec: dict[str, Any], words: str) -> list[dict[str, Any]]:
    """The layers of the panel whose name holds these words."""
    return next(one["layer"] for one in spec["vconcat"] if words in one["title"]["text"])


def names(spec: dict[str, Any]) -> list[str]:
    """What the panels are called, without their meaning."""
    return [one["title"]["text"].split(":")[0].split(";")[0] for one in spec["vconcat"]]


def view(layers: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The last layer of a kind of mark."""
    return [layer for layer in layers if layer["mark"]["type"] == kind][-1]


BUSY = samples("gpu_busy_frac", 0.5, 1.0, 0.0, 0.5)


def test_levels_are_steps_in_the_unit_of_the_axis(checked: Check) -> None:
    """Four readings a second apart: means in %, from the start of each bin; a last row ends the last bin."""
    spec = checked(dashboard(bins(BUSY)))
    line = view(panel(spec, "GPU busy"), "line")
    assert "step-after" == line["mark"]["interpolate"]
    assert [(0, 50), (1, 100), (2, 0), (3, 50), (4, 50)] == [(row["time"], row["value"]) for row in line["rows"]]
    assert "(%)" == line["encoding"]["y"]["title"]
    assert "time since the start of the capture (s)" == line["encoding"]["x"]["title"]


def test_a_band_from_the_least_to_the_most(checked: Check) -> None:
    """Two bins of two readings: means of 75 % and 25 % within 50..100 % and 0..50 %, told by a strip over each bin."""
    layers = panel(checked(dashboard(bins(BUSY, number=2))), "GPU busy")
    rows = [(row["least"], row["value"], row["most"]) for row in view(layers, "area")["rows"]]
    assert [(50, 75, 100), (0, 25, 50), (0, 25, 50)] == rows
    strip = view(layers, "rect")
    assert [0, 2] == [row["time"] for row in strip["rows"]]
    titles = [one["title"] for one in strip["encoding"]["tooltip"]]
    assert ["bin starts at (s)", "GPU 0 (%)", "GPU 0, least (%)", "GPU 0, most (%)"] == titles


def test_the_title_says_how_busy_and_how_long_at_the_limit(checked: Check) -> None:
    """(50 + 100 + 0 + 50) / 4 = 50 %; the share at the power limit is the analysis' own."""
    title = checked(dashboard(bins(BUSY), limits=limits("power", 300, 0.12)))["title"]
    assert "GPU 0 is busy 50.0 % of the time, power at its limit for 12.0 %" == title["text"]
    assert title["subtitle"][0].startswith("4 readings of 1 metric over 4.00 s. Lines: mean of each 1.00 s; band")
    assert "GPU 0 is busy 50.0 % of the time" == checked(dashboard(bins(BUSY)))["title"]["text"]
    assert "Node 3" == checked(dashboard(bins(BUSY), title="Node 3"))["title"]["text"]


def test_the_title_says_what_was_recorded(checked: Check) -> None:
    """Without utilisation the SMs or the power are told, without these nothing is."""
    sm, power = samples("sm_active_frac", 0.2, 0.4), samples("power_w", 100, 300)
    heat = samples("temperature_c", 50, 60)
    assert "GPU 0 has 30.0 % of its SMs active" == checked(dashboard(bins(sm, power)))["title"]["text"]
    assert "GPU 0 draws 200 W on average" == checked(dashboard(bins(power, heat)))["title"]["text"]
    assert "Metrics of GPU 0 over time" == checked(dashboard(bins(heat)))["title"]["text"]


def test_several_gpus_are_told_by_their_ends(checked: Check) -> None:
    """50 % and 100 % busy, 200 W each: from the lowest to the highest, or the one figure they share."""
    second = samples("gpu_busy_frac", 1, 1, 1, 1, gpu=1)
    both = [limits("power", 300, 0.5), limits("power", 300, 0.25, gpu=1)]
    title = checked(dashboard(bins(BUSY, second), limits=pd.concat(both)))["title"]["text"]
    assert "2 GPUs are busy 50.0 % to 100 % of the time, power at its limit for up to 50.0 %" == title
    power = bins(samples("power_w", 200, 200), samples("power_w", 200, 200, gpu=1))
    assert "2 GPUs draw 200 W each on average" == checked(dashboard(power))["title"]["text"]


def test_the_meanings_of_utilisation_have_panels_of_their_own(checked: Check) -> None:
    """Four meanings, four panels in the order of the pipe, each with its definition; the strip to zoom in is last."""
    meanings = ("gpu_busy_frac", "sm_active_frac", "sm_occupancy_frac", "tensor_active_frac")
    spec = checked(dashboard(bins(*(samples(metric, 0.1, 0.2) for metric in reversed(meanings)))))
    assert ["GPU busy", "SMs active", "SM occupancy", "Tensor pipes active"] == names(spec)[:-1]
    for one, metric in zip(spec["vconcat"], meanings, strict=False):
        assert tables.METRICS[metric] in one["title"]["text"]
    assert "drag here to zoom" in spec["vconcat"][-1]["title"]["text"]


@pytest.mark.parametrize(
    ("metric", "value", "shown", "symbol"),
    [
        ("memory_used_bytes", 20e9, 20, "(GB)"),
        ("power_w", 250, 250, "(W)"),
        ("temperature_c", 61, 61, "(°C)"),
        ("sm_clock_hz", 1.98e9, 1980, "(MHz)"),
        ("pcie_rx_bytes_per_s", 3e6, 3, "(MB/s)"),
        ("sm_occupancy_frac", 0.25, 25, "(%)"),
    ],
)
def test_each_quantity_has_its_unit(metric: str, value: float, shown: float, symbol: str, checked: Check) -> None:
    """The axis is in the unit people use, from 0 on, shares up to 100 %."""
    line = view(checked(dashboard(bins(samples(metric, value, value))))["vconcat"][0]["layer"], "line")
    assert shown == line["rows"][0]["value"]
    encoding = line["encoding"]["y"]
    assert symbol == encoding["title"]
    low, high = encoding["scale"]["domain"]
    assert 0 == low < shown <= high
    assert high == 100 or symbol != "(%)"


def test_what_cannot_be_is_drawn_as_it_is(checked: Check) -> None:
    """A share of 120 % from a wrong log stays inside the picture."""
    line = view(checked(dashboard(bins(samples("sm_active_frac", 1.2, 0.5))))["vconcat"][0]["layer"], "line")
    assert 120 == line["rows"][0]["value"] < line["encoding"]["y"]["scale"]["domain"][1]


def test_the_order_of_the_bins_does_not_matter() -> None:
    """Rows from last to first give the same picture."""
    table = bins(BUSY, samples("gpu_busy_frac", 1, 1, 0, gpu=1), samples("power_w", 1, 2))
    assert dashboard(table).to_dict() == dashboard(table.iloc[::-1]).to_dict()


def test_every_metric_of_a_panel_is_canonical_and_has_a_unit(checked: Check) -> None:
    """All that the dashboard draws, or draws with it, are metrics that readers give; each can be drawn."""
    assert not set(DRAWN_METRICS + BESIDE) - set(tables.METRICS)
    spec = checked(dashboard(bins(*(samples(metric, 0.5, 1) for metric in DRAWN_METRICS))))
    assert 14 == len(spec["vconcat"])


def test_a_metric_without_a_panel_is_left_out(checked: Check) -> None:
    """Power and memory are drawn, the fan is not."""
    table = bins(samples("power_w", 1, 2), samples("memory_used_bytes", 1, 2), samples("fan_frac", 0, 1))
    both = ["Device memory in use, of all processes", "Power drawn by the board"]
    assert both == names(checked(dashboard(table)))[:-1]


def test_a_recorded_limit_is_drawn_over_time(checked: Check) -> None:
    """A limit that was lowered from 300 to 200 W half-way is two steps, and both are told; the table's is not drawn."""
    table = bins(samples("power_w", 290, 180), samples("power_limit_w", 300, 200))
    spec = checked(dashboard(table, limits=limits("power", 250, 0.5)))
    layers = panel(spec, "Power")
    assert [(0, 300), (1, 200), (2, 200)] == [(row["time"], row["value"]) for row in layers[0]["rows"]]
    assert layers[0]["mark"]["strokeDash"]
    assert "limit 200 to 300 W" in spec["vconcat"][0]["title"]["text"]
    assert 1 == names(spec).count("Power drawn by the board")


def test_a_limit_that_was_not_recorded_is_the_table_s(checked: Check) -> None:
    """The data sheet's 450 W over the whole time; the axis reaches it. One GPU of two has none."""
    table = bins(samples("power_w", 290, 180), samples("power_w", 200, 180, gpu=1))
    spec = checked(dashboard(table, limits=limits("power", 450, 0)))
    layers = panel(spec, "Power")
    assert [(0, 450, "GPU 0"), (2, 450, "GPU 0")] == [(r["time"], r["value"], r["gpu"]) for r in layers[0]["rows"]]
    assert layers[0]["encoding"]["y"]["scale"]["domain"][1] > 450
    assert "Power drawn by the board; dashed: limit 450 W" == spec["vconcat"][0]["title"]["text"]


def test_the_same_limit_of_several_gpus_is_one_line(checked: Check) -> None:
    """Two GPUs with 300 W each are one dashed line."""
    both = [samples(metric, 300, 300, gpu=gpu) for metric in ("power_w", "power_limit_w") for gpu in (0, 1)]
    assert {"GPU 0"} == {row["gpu"] for row in panel(checked(dashboard(bins(*both))), "Power")[0]["rows"]}


def test_traffic_both_ways_in_one_panel(checked: Check) -> None:
    """PCIe to and from the GPU differ in their dashes, and a strip tells both; of one way there are no dashes."""
    there, back = samples("pcie_rx_bytes_per_s", 2e9, 3e9), samples("pcie_tx_bytes_per_s", 1e9, 1e9)
    layers = panel(checked(dashboard(bins(there, back))), "PCIe traffic")
    line = view(layers, "line")
    assert ["to the GPU", "from the GPU"] == line["encoding"]["strokeDash"]["scale"]["domain"]
    assert {("to the GPU", 2), ("to the GPU", 3), ("from the GPU", 1)} == {(r["way"], r["value"]) for r in line["rows"]}
    told = [one["title"] for one in view(layers, "rect")["encoding"]["tooltip"]][1:]
    assert ["GPU 0, to the GPU (GB/s)", "GPU 0, from the GPU (GB/s)"] == told
    alone = view(panel(checked(dashboard(bins(there))), "PCIe traffic: PCIe traffic to the GPU"), "line")
    assert "strokeDash" not in alone["encoding"]


def test_up_to_eight_gpus_have_a_colour_each(checked: Check) -> None:
    """Eight GPUs: eight colours in one legend, and a strip that tells all eight figures."""
    layers = panel(checked(dashboard(bins(*(samples("power_w", 1, 2, gpu=gpu) for gpu in range(8))))), "Power")
    scale = view(layers, "line")["encoding"]["color"]["scale"]
    assert [f"GPU {gpu}" for gpu in range(8)] == scale["domain"]
    assert 8 == len(set(scale["range"]))
    assert not [layer for layer in layers if layer["mark"]["type"] == "area"]
    assert 9 == len(view(layers, "rect")["encoding"]["tooltip"])


def test_more_gpus_are_faint_lines_in_a_band(checked: Check) -> None:
    """Nine GPUs: a line each, no colours, and a band from the lowest to the highest."""
    spec = checked(dashboard(bins(*(samples("power_w", gpu, gpu, rank=gpu) for gpu in range(9)))))
    layers = panel(spec, "Power")
    line, band = view(layers, "line"), view(layers, "area")["encoding"]
    assert "color" not in line["encoding"]
    assert {f"rank {rank} · GPU 0" for rank in range(9)} == {row["gpu"] for row in line["rows"]}
    assert ("min", "max") == (band["y"]["aggregate"], band["y2"]["aggregate"])
    assert "band: from the lowest to the highest GPU" in spec["title"]["subtitle"][0]


def test_of_too_many_gpus_the_lowest_are_drawn(checked: Check) -> None:
    """Eighteen GPUs, the first two busiest: these are left out, which is said; the title counts all."""
    tables = [samples("gpu_busy_frac", *[1 - gpu / 20] * 2, gpu=gpu) for gpu in range(18)]
    spec = checked(dashboard(bins(*tables)))
    drawn = {row["gpu"] for row in view(panel(spec, "GPU busy"), "line")["rows"]}
    assert {f"GPU {gpu}" for gpu in range(2, 18)} == drawn
    assert "18 GPUs are busy 15.0 % to 100 % of the time" == spec["title"]["text"]
    assert "Drawn are the 16 of 18 GPUs that are lowest in the first panel." == spec["title"]["subtitle"][-1]


POWER, HEAT = samples("throttled_power_frac", 0, 1, 0, 0), samples("thermal_violation_frac", 0, 0, 0, 1)


def test_a_lowered_clock_is_shaded_and_has_a_lane(checked: Check) -> None:
    """Power in the second second, heat in the fourth: shades over the panels of one GPU, and a lane by cause."""
    spec = checked(dashboard(bins(BUSY, samples("power_w", 1, 2, 3, 4), POWER, HEAT)))
    lane = panel(spec, "Clock lowered")[0]
    when = [(row["time"], row["end"], row["cause"], row["told"]) for row in lane["rows"]]
    assert [(1, 2, "power", "100 %"), (3, 4, "heat", "100 %")] == when
    assert lane["rows"] == panel(spec, "Power")[0]["rows"]
    assert "rect" == panel(spec, "Power")[0]["mark"]["type"]
    assert ["power", "heat"] == lane["encoding"]["fill"]["scale"]["domain"]
    assert "The clock was lowered because of power in 1, heat in 1 of 4 bins." == spec["title"]["subtitle"][1]
    assert "area" == panel(spec, "GPU busy")[0]["mark"]["type"]


def test_several_metrics_of_a_cause_are_one_stretch(checked: Check) -> None:
    """An event reason for the whole second and a violation of a half of it: the larger share."""
    half = samples("power_violation_frac", 0, 0.5, 0.25, 0)
    lane = panel(checked(dashboard(bins(BUSY, POWER, half))), "Clock lowered")[0]
    assert [(1, "100 %"), (2, "25.0 %")] == [(row["time"], row["told"]) for row in lane["rows"]]


def test_each_throttled_gpu_has_a_lane(checked: Check) -> None:
    """Of two GPUs the second was throttled: one lane, and no shades, which could not tell whose they are."""
    second = [samples(metric, 0, 1, 0, 0, gpu=1) for metric in ("power_w", "throttled_power_frac")]
    spec = checked(dashboard(bins(samples("power_w", 1, 2, 3, 4), *second)))
    lane = panel(spec, "Clock lowered")[0]
    assert ["GPU 1"] == lane["encoding"]["y"]["scale"]["domain"]
    assert [layer["mark"]["type"] for layer in panel(spec, "Power")] == ["line", "rect"]


def test_a_clock_that_was_never_lowered_is_said(checked: Check) -> None:
    """Recorded and always 0 is a sentence without a lane; not recorded is another, with the option that records it."""
    zero = (samples(metric, 0, 0) for metric in ("throttled_power_frac", "thermal_violation_frac"))
    never = checked(dashboard(bins(BUSY, *zero)))
    assert "The clock was never lowered because of power or heat." == never["title"]["subtitle"][1]
    assert "Clock lowered" not in names(never)
    unknown = checked(dashboard(bins(BUSY)))["title"]["subtitle"][1]
    assert "clocks_event_reasons.active" in unknown


def test_one_axis_of_time_that_the_overview_zooms(checked: Check) -> None:
    """All panels end where the choice in the strip says, without one at the first and the last time."""
    spec = checked(dashboard(bins(BUSY, samples("power_w", 1, 2, 3))))
    *panels, strip = spec["vconcat"]
    scales = {str(layer["encoding"]["x"]["scale"]) for one in panels for layer in one["layer"]}
    assert 1 == len(scales)
    assert "'left'" in next(iter(scales))
    params = {param["name"]: param for param in spec["params"]}
    assert "interval" == params["zoom"]["select"]["type"]
    assert ["zoom.time ? zoom.time[0] : 0.0", "zoom.time ? zoom.time[1] : 4.0"] == [
        params[name]["expr"] for name in ("left", "right")
    ]
    assert [0, 4] == strip["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert strip["layer"][0]["name"] == params["zoom"]["views"][0]


def test_without_a_course_over_time_the_chart_says_so(checked: Check) -> None:
    """No metric, and metrics that were read once, are sentences that say what to record; a title stays."""
    none = checked(dashboard(bins(samples("fan_frac", 0, 1)), title="Node 3"))
    assert "Node 3" == none["title"]["text"]
    assert "nvidia-smi dmon" in none["title"]["subtitle"][0]
    assert "read once" in checked(dashboard(bins(samples("power_w", 300))))["title"]["subtitle"][0]
    assert "nvidia-smi dmon" in checked(dashboard(alignment.bins(SAMPLES.empty())))["title"]["subtitle"][0]


def test_wrong_frames_are_refused() -> None:
    """A missing column of any frame is named."""
    table = bins(BUSY)
    with pytest.raises(SchemaError, match="covered_ns"):
        dashboard(table.drop(columns="covered_ns"))
    with pytest.raises(SchemaError, match="at_limit_frac"):
        dashboard(table, limits=limits("power", 1, 1).drop(columns="at_limit_frac"))


def test_causes_are_those_of_the_analysis() -> None:
    """Every metric that the analysis of throttling counts has a cause here, and no other."""
    from perfkit.analysis.monitoring.readings import CAUSES

    assert set(monitor.CAUSES) == {metric for of_cause in CAUSES.values() for metric in of_cause}


def test_the_real_log(profiles: Path, checked: Check) -> None:
    """A training run on an RTX 4090: the title has the mean that the analysis finds, the limit is the data sheet's."""
    run = perfkit.load(profiles / "monitor" / RUN)
    table = alignment.bins(run.samples)
    spec = checked(dashboard(table, limits=monitoring.at_limit(run.samples, run.devices)))
    summary = monitoring.summary(run.samples).set_index("metric")
    assert f"GPU 0 is busy {summary.loc['gpu_busy_frac', 'mean']:.1%}".replace("%", " %") in spec["title"]["text"]
    assert "10,476 readings of 4 metrics" in spec["title"]["subtitle"][0]
    assert "limit 450 W" in str([one["title"]["text"] for one in spec["vconcat"]])
    most = max(row["most"] for row in view(panel(spec, "Power"), "area")["rows"])
    assert summary.loc["power_w", "max"] == pytest.approx(most, abs=0.005)  # figures are drawn to two decimals


def drawn(*tables: pd.DataFrame, until: int = 4) -> dict[str, Any]:
    """The picture of the first seconds of these samples."""
    table = together(*tables)
    tops = {str(metric): float(top) for metric, top in table.groupby("metric", observed=True)["value"].max().items()}
    window = 0, until * SECOND
    return strips(sampled_bins(table, bins=10, window=window), window=window, tops=tops)


def test_is_a_chart_like_all_others(checked: Check) -> None:
    """It matches Vega-Lite's schema, its fields exist, its axes have units."""
    spec = drawn(
        readings(gpu_busy_frac=[0, 1], power_w=[300, 700], sm_clock_hz=[1e9, 2e9], memory_used_bytes=[0, 4e10])
    )
    panels = checked(alt.VConcatChart.from_dict(spec))["vconcat"]
    assert ["GPU busy", "memory used", "power", "SM clock"] == [panel["title"]["text"] for panel in panels]
    assert ["(%)", "(GB)", "(W)", "(MHz)"] == [panel["encoding"]["y"]["title"] for panel in panels]
    assert [False] * 3 + [None] == [panel["encoding"]["x"]["axis"].get("labels") for panel in panels]


def test_draws_each_reading_until_the_next() -> None:
    """25 % for a second, then 75 % for another, at which the line ends."""
    (found,) = drawn(readings(gpu_busy_frac=[0.25, 0.75]))["datasets"].values()
    rows = [(row["time"], row["value"], row["gpu"]) for row in found]
    assert [(0, 25, "GPU 0"), (1, 75, "GPU 0"), (2, 75, "GPU 0")] == rows


def test_axes_are_those_of_the_whole_log() -> None:
    """Time reaches over the window, fractions up to 100 %, other metrics 5 % beyond their highest."""
    busy, power = drawn(readings(gpu_busy_frac=[0.25], power_w=[200]), until=60)["vconcat"]
    assert [0, 60] == busy["encoding"]["x"]["scale"]["domain"]
    assert [0, 100] == busy["encoding"]["y"]["scale"]["domain"]
    assert [0, 210] == power["encoding"]["y"]["scale"]["domain"]


def test_a_metric_that_is_always_zero_has_an_axis() -> None:
    """A scale from 0 to 0 would put the line in the middle."""
    (panel,) = drawn(readings(pcie_rx_bytes_per_s=[0, 0]))["vconcat"]
    assert [0, 1] == panel["encoding"]["y"]["scale"]["domain"]


def test_gpus_have_colours_and_the_first_eight_are_drawn(checked: Check) -> None:
    """Of 10 GPUs 8 have a line and a colour each, which the title says."""
    spec = drawn(*[readings(gpu=gpu, gpu_busy_frac=[0.5]) for gpu in range(10)])
    checked(alt.VConcatChart.from_dict(spec))
    (panel,) = spec["vconcat"]
    gpus = [f"GPU {gpu}" for gpu in range(8)]
    assert gpus == panel["encoding"]["color"]["scale"]["domain"]
    assert set(gpus) == {row["gpu"] for row in spec["datasets"]["gpu_busy_frac"]}
    assert 8 == len(set(panel["encoding"]["color"]["scale"]["range"]))
    assert spec["title"]["text"].endswith("GPU 7 of 10 GPUs")


def test_nothing_was_read(checked: Check) -> None:
    """Without readings, or with those of other metrics, it says that there are none."""
    for table in (readings(gpu_busy_frac=[]), readings(fan_frac=[1])):
        spec = drawn(table)
        assert "No readings" == checked(alt.LayerChart.from_dict(spec))["title"]["text"]


def test_names_are_those_of_metrics() -> None:
    """Every metric that is drawn is one that a reader can find."""
    assert set(NAMES) <= set(METRICS)


def test_other_frames_are_refused() -> None:
    """A frame without bins is named, and more rows than a browser draws."""
    with pytest.raises(SchemaError, match="start_ns"):
        strips(pd.DataFrame({"rank": [], "gpu": [], "metric": []}), window=(0, 1), tops={})
    table = sampled_bins(readings(power_w=[1.0, 2.0]), bins=2)
    many = pd.concat([table] * 10_001)
    with pytest.raises(ValueError, match="20002 rows are more than 20000"):
        strips(many, window=(0, 1), tops={"power_w": 2})

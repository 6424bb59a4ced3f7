"""What the log of the GPUs says over time, still and as it grows."""

from typing import Any

import altair as alt
import pandas as pd
import pytest
from charts.checking import Spec, checked, drawn, subtitle, title
from sampled import samples, together

from perfkit.analysis import alignment
from perfkit.analysis.readings import CAUSES
from perfkit.charts.theme import STRIP_NAMES as NAMES
from perfkit.logs.charts import monitor
from perfkit.logs.charts.monitor import BESIDE, DRAWN_METRICS
from perfkit.tables import METRICS, SAMPLES

BUSY = samples(gpu_busy_frac=[0.5, 1.0, 0.0, 0.5])
POWER, HEAT = (
    samples(throttled_power_frac=[0, 1, 0, 0]),
    samples(thermal_violation_frac=[0, 0, 0, 1]),
)


def bins(*tables: pd.DataFrame, number: int = 300) -> pd.DataFrame:
    return alignment.bins(together(*tables), bins=number)


def dashboard(*tables: pd.DataFrame, number: int = 300, **options: Any) -> alt.TopLevelMixin:
    """The picture of readings of several metrics or devices."""
    return monitor.dashboard(bins(*tables, number=number), **options)


def limits(quantity: str, limit: float, at_limit: float, gpu: int = 0) -> pd.DataFrame:
    """A row as `monitoring.at_limit` returns it."""
    row = {
        "rank": 0,
        "gpu": gpu,
        "quantity": quantity,
        "mean": 0.0,
        "limit": limit,
        "at_limit_frac": at_limit,
    }
    return pd.DataFrame([row])


def panel(spec: Spec, words: str) -> list[Spec]:
    """The layers of the panel whose name holds these words."""
    return next(one["layer"] for one in spec["vconcat"] if words in title(one))


def names(spec: Spec) -> list[str]:
    return [title(one).split(":")[0].split(";")[0] for one in spec["vconcat"]]


def view(layers: list[Spec], kind: str) -> Spec:
    return [layer for layer in layers if layer["mark"]["type"] == kind][-1]


def test_levels_are_steps_within_a_band() -> None:
    line = view(panel(checked(dashboard(BUSY)), "GPU busy"), "line")
    assert "step-after" == line["mark"]["interpolate"]
    assert [(0, 50), (1, 100), (2, 0), (3, 50), (4, 50)] == drawn(line, "time", "value")
    layers = panel(checked(dashboard(BUSY, number=2)), "GPU busy")
    assert [(50, 75, 100), (0, 25, 50), (0, 25, 50)] == drawn(
        view(layers, "area"), "least", "value", "most"
    )
    strip = view(layers, "rect")
    assert [(0,), (2,)] == drawn(strip, "time")
    titles = [one["title"] for one in strip["encoding"]["tooltip"]]
    assert ["bin starts at (s)", "GPU 0 (%)", "GPU 0, least (%)", "GPU 0, most (%)"] == titles


def test_the_title_says_how_busy_and_how_long_at_the_limit() -> None:
    spec = checked(dashboard(BUSY, limits=limits("power", 300, 0.12)))["title"]
    assert "GPU 0 is busy 50.0 % of the time, power at its limit for 12.0 %" == spec["text"]
    assert spec["subtitle"][0].startswith(
        "4 readings of 1 metric over 4.00 s. Lines: mean of each 1.00 s; band"
    )
    assert "GPU 0 is busy 50.0 % of the time" == title(dashboard(BUSY))


def test_the_title_of_several_gpus_has_the_ends_and_the_most() -> None:
    both = pd.concat([limits("power", 300, 0.5), limits("power", 300, 0.25, gpu=1)])
    ends = title(dashboard(BUSY, samples(gpu_busy_frac=[1] * 4, gpu=1), limits=both))
    assert (
        "2 GPUs are busy 50.0 % to 100 % of the time, power at its limit for up to 50.0 %" == ends
    )


def test_the_meanings_of_utilisation_have_panels_of_their_own() -> None:
    meanings = ("gpu_busy_frac", "sm_active_frac", "sm_occupancy_frac", "tensor_active_frac")
    spec = checked(dashboard(samples(**{key: [0.1, 0.2] for key in reversed(meanings)})))
    assert ["GPU busy", "SMs active", "SM occupancy", "Tensor pipes active"] == names(spec)[:-1]
    for one, metric in zip(spec["vconcat"], meanings, strict=False):
        assert METRICS[metric] in title(one)
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
        pytest.param(
            "sm_active_frac", 1.2, 120, "(%)", id="a share of 120 % stays inside the picture"
        ),
    ],
)
def test_each_quantity_has_its_unit(metric: str, value: float, shown: float, symbol: str) -> None:
    line = view(
        checked(dashboard(samples(**{metric: [value, value]})))["vconcat"][0]["layer"], "line"
    )
    assert shown == line["rows"][0]["value"]
    encoding = line["encoding"]["y"]
    assert symbol == encoding["title"]
    low, high = encoding["scale"]["domain"]
    assert 0 == low < shown <= high
    assert (high == 100) == (symbol == "(%)" and shown < 100)


def test_metrics_are_those_of_the_tables_and_the_analysis() -> None:
    assert not {*DRAWN_METRICS, *BESIDE, *NAMES} - set(METRICS)
    assert set(monitor.CAUSES) == {metric for of_cause in CAUSES.values() for metric in of_cause}


def test_a_limit_is_drawn_over_time() -> None:
    lowered = samples(power_w=[290, 180], power_limit_w=[300, 200])
    spec = checked(dashboard(lowered, limits=limits("power", 250, 0.5)))  # the table's is not drawn
    first = panel(spec, "Power")[0]
    assert [(0, 300), (1, 200), (2, 200)] == drawn(first, "time", "value")
    assert first["mark"]["strokeDash"]
    assert "limit 200 to 300 W" in spec["vconcat"][0]["title"]["text"]
    assert 1 == names(spec).count("Power drawn by the board")


def test_a_limit_of_one_gpu_is_drawn_over_all_the_time() -> None:
    two = samples(power_w=[290, 180]), samples(power_w=[200, 180], gpu=1)
    spec = checked(dashboard(*two, limits=limits("power", 450, 0)))
    first = panel(spec, "Power")[0]
    assert [(0, 450, "GPU 0"), (2, 450, "GPU 0")] == drawn(first, "time", "value", "gpu")
    assert first["encoding"]["y"]["scale"]["domain"][1] > 450
    assert "Power drawn by the board; dashed: limit 450 W" == spec["vconcat"][0]["title"]["text"]


def test_equal_limits_are_drawn_once() -> None:
    same = [samples(power_w=[300, 300], power_limit_w=[300, 300], gpu=gpu) for gpu in (0, 1)]
    assert {("GPU 0",)} == {*drawn(panel(checked(dashboard(*same)), "Power")[0], "gpu")}


def test_traffic_both_ways_in_one_panel() -> None:
    there, back = samples(pcie_rx_bytes_per_s=[2e9, 3e9]), samples(pcie_tx_bytes_per_s=[1e9, 1e9])
    layers = panel(checked(dashboard(there, back)), "PCIe traffic")
    line = view(layers, "line")
    assert ["to the GPU", "from the GPU"] == line["encoding"]["strokeDash"]["scale"]["domain"]
    assert {("to the GPU", 2), ("to the GPU", 3), ("from the GPU", 1)} == {
        *drawn(line, "way", "value")
    }
    told = [one["title"] for one in view(layers, "rect")["encoding"]["tooltip"]][1:]
    assert ["GPU 0, to the GPU (GB/s)", "GPU 0, from the GPU (GB/s)"] == told
    alone = view(panel(checked(dashboard(there)), "PCIe traffic: PCIe traffic to the GPU"), "line")
    assert "strokeDash" not in alone["encoding"]


def test_eight_gpus_have_a_colour_each() -> None:
    layers = panel(
        checked(dashboard(*(samples(power_w=[1, 2], gpu=gpu) for gpu in range(8)))), "Power"
    )
    scale = view(layers, "line")["encoding"]["color"]["scale"]
    assert [f"GPU {gpu}" for gpu in range(8)] == scale["domain"]
    assert 8 == len(set(scale["range"]))
    assert 9 == len(view(layers, "rect")["encoding"]["tooltip"])


def test_more_than_eight_gpus_are_faint_lines_in_a_band() -> None:
    spec = checked(dashboard(*(samples(power_w=[gpu, gpu], rank=gpu) for gpu in range(9))))
    layers = panel(spec, "Power")
    line, band = view(layers, "line"), view(layers, "area")["encoding"]
    assert "color" not in line["encoding"]
    assert {(f"rank {rank} · GPU 0",) for rank in range(9)} == {*drawn(line, "gpu")}
    assert ("min", "max") == (band["y"]["aggregate"], band["y2"]["aggregate"])
    assert "band: from the lowest to the highest GPU" in subtitle(spec)[0]


def test_of_many_gpus_the_lowest_are_drawn() -> None:
    spec = checked(
        dashboard(*(samples(gpu_busy_frac=[1 - gpu / 20] * 2, gpu=gpu) for gpu in range(18)))
    )
    assert {(f"GPU {gpu}",) for gpu in range(2, 18)} == {
        *drawn(view(panel(spec, "GPU busy"), "line"), "gpu")
    }
    assert "18 GPUs are busy 15.0 % to 100 % of the time" == title(spec)
    assert "Drawn are the 16 of 18 GPUs that are lowest in the first panel." == subtitle(spec)[-1]


def test_a_lowered_clock_is_shaded_and_has_a_lane() -> None:
    spec = checked(dashboard(BUSY, samples(power_w=[1, 2, 3, 4]), POWER, HEAT))
    lane, shade = panel(spec, "Clock lowered")[0], panel(spec, "Power")[0]
    assert [(1, 2, "power", "100 %"), (3, 4, "heat", "100 %")] == drawn(
        lane, "time", "end", "cause", "told"
    )
    assert ("rect", lane["rows"]) == (shade["mark"]["type"], shade["rows"])
    assert ["power", "heat"] == lane["encoding"]["fill"]["scale"]["domain"]
    assert "The clock was lowered because of power in 1, heat in 1 of 4 bins." == subtitle(spec)[1]


def test_a_clock_that_was_never_lowered_is_said() -> None:
    never = checked(
        dashboard(BUSY, samples(throttled_power_frac=[0, 0], thermal_violation_frac=[0, 0]))
    )
    assert "The clock was never lowered because of power or heat." == subtitle(never)[1]
    assert "Clock lowered" not in names(never)
    assert "clocks_event_reasons.active" in subtitle(dashboard(BUSY))[1]


def test_one_axis_of_time_that_the_overview_zooms() -> None:
    spec = checked(dashboard(BUSY, samples(power_w=[1, 2, 3])))
    *panels, strip = spec["vconcat"]
    (scale,) = {str(layer["encoding"]["x"]["scale"]) for one in panels for layer in one["layer"]}
    assert "'left'" in scale
    params = {param["name"]: param for param in spec["params"]}
    ends = [params[name]["expr"] for name in ("left", "right")]
    assert ["zoom.time ? zoom.time[0] : 0.0", "zoom.time ? zoom.time[1] : 4.0"] == ends
    assert [0, 4] == strip["layer"][0]["encoding"]["x"]["scale"]["domain"]


def test_without_a_course_over_time_the_chart_says_so() -> None:
    none = dashboard(samples(fan_frac=[0, 1]))
    assert "No metrics over time" == title(none)
    assert "nvidia-smi dmon" in subtitle(none)[0]
    assert "read once" in subtitle(dashboard(samples(power_w=[300])))[0]
    assert "nvidia-smi dmon" in subtitle(dashboard(SAMPLES.empty()))[0]

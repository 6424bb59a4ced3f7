"""Pictures of what the log of the GPUs says over time, a panel for each quantity.

Memory is in decimal units (1 GB = 1e9 B), clocks in MHz. Rows are those of
`perfkit.analysis.alignment.bins` with `label`, the name of the GPU. The ends of the shared axis are
the parameters `left` and `right` that the overview sets. The share of a bin is the part of its time
with the clock lowered, of several metrics of a cause the larger.
"""

from collections.abc import Iterable
from typing import NamedTuple

import altair as alt
import pandas as pd

from perfkit.charts import theme
from perfkit.charts.checks import need
from perfkit.charts.ranks import STRIP_UNITS
from perfkit.charts.theme import CAUSE_COLOURS, LINE_COLOURS, WIDTH, devices, hover, inline, nothing
from perfkit.format import TIME, Unit, duration, number, percent, unit
from perfkit.logs.charts import lines
from perfkit.logs.charts.lines import GREY, Axes, Frame, when
from perfkit.tables import METRICS

HEIGHT, STRIP = 64, 26  # pixels
PICTURE = "Lines over time, one for each GPU"
WHOLE = "The whole time: drag here to zoom into a part of it, click to see all again"


class Quantity(NamedTuple):
    """What a panel shows; the limit is a metric or, where that was not recorded, one of `monitoring.at_limit`."""

    name: str  # said before the meaning of a single metric, or instead of those of several
    metrics: tuple[str, ...]
    limit: str = ""
    limited: str = ""


QUANTITIES = (
    Quantity("GPU busy", ("gpu_busy_frac",)),
    Quantity("Engine active", ("graphics_active_frac",)),
    Quantity("SMs active", ("sm_active_frac",)),
    Quantity("SM occupancy", ("sm_occupancy_frac",)),
    Quantity("Tensor pipes active", ("tensor_active_frac",)),
    Quantity("Memory active", ("dram_active_frac",)),
    Quantity("Memory busy", ("memory_busy_frac",)),
    Quantity("", ("memory_used_bytes",), "memory_total_bytes", "memory"),
    Quantity("", ("power_w",), "power_limit_w", "power"),
    Quantity("", ("temperature_c",), "temperature_slowdown_c", "temperature"),
    Quantity("", ("sm_clock_hz",), "sm_max_clock_hz"),
    Quantity("PCIe traffic", ("pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s")),
    Quantity(
        "NVLink traffic", ("nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s", "nvlink_bytes_per_s")
    ),
)


class Panel(NamedTuple):
    """A quantity, its rows (one at least), and its limit over time (label, start_ns, dur_ns, mean; may be empty)."""

    quantity: Quantity
    rows: pd.DataFrame
    limit: pd.DataFrame

    @property
    def top(self) -> float:
        """What the axis must reach."""
        return float(pd.concat([self.rows["max"], self.limit["mean"]]).max())

    @property
    def scale(self) -> Unit:
        """The unit of the axis."""
        metric = str(self.rows["metric"].iloc[0])
        return unit(
            self.top,
            next(ladder for suffix, ladder in STRIP_UNITS.items() if metric.endswith(suffix)),
        )

    def up(self, axis: alt.Axis | None) -> alt.Y:
        """Return the upward axis, for a share to 100 % or to what cannot be."""
        top = (
            100 if self.scale.symbol == "%" and self.top <= 1 else 1.05 * self.top / self.scale.size
        )
        room = alt.Scale(domain=[0, top or 1], nice=False)
        return alt.Y("value:Q", title=f"({self.scale.symbol})", scale=room, axis=axis)


CAUSES = {
    "throttled_power_frac": "power",
    "power_violation_frac": "power",
    "throttled_thermal_frac": "heat",
    "thermal_violation_frac": "heat",
    "throttled_other_frac": "another reason",
}
THROTTLED_COLOURS = {
    "power": CAUSE_COLOURS["kernel_wait"],
    "heat": "#C8283C",
    "another reason": CAUSE_COLOURS["unattributed"],
}
LANE = 7  # pixels of a cause
NOT_RECORDED = (
    "Whether the clock was lowered is not recorded: add "
    "clocks_event_reasons.active to --query-gpu, or v to dmon's -s."
)
# What a GPU does and several do, by the metric that says it; the first that was recorded counts.
DOES = {
    "gpu_busy_frac": ("is busy {} of the time", "are busy {} of the time"),
    "graphics_active_frac": (
        "has its engine active {} of the time",
        "have their engines active {} of the time",
    ),
    "sm_active_frac": ("has {} of its SMs active", "have {} of their SMs active"),
    "power_w": ("draws {} on average", "draw {} each on average"),
}
DRAWN_METRICS = tuple(metric for quantity in QUANTITIES for metric in quantity.metrics)
BESIDE = (*(quantity.limit for quantity in QUANTITIES if quantity.limit), *CAUSES)
DEVICE = ["rank", "gpu"]
LIMIT = ["label", "start_ns", "dur_ns", "mean"]
STATISTICS = ["start_ns", "dur_ns", "covered_ns", "count", "mean", "min", "max"]
THROTTLED = {"power_w", "temperature_c", "sm_clock_hz"}  # where a lowered clock is shaded
MOST_GPUS = 16
DASHBOARD_PICTURE = "Metrics of the GPUs over time, a panel for each"
NO_SAMPLES = (
    "No metric of a GPU was recorded. Record with `nvidia-smi dmon -s pucvmt -o DT > log.txt`."
)
ONE_READING = (
    "Each metric was read once, which is no course over time. Record for as long as the program "
    "runs."
)


def dashboard(
    bins: pd.DataFrame, *, limits: pd.DataFrame | None = None
) -> alt.VConcatChart | alt.LayerChart:
    """Draw the metrics of all GPUs over time, a panel for each quantity, and when their clock was lowered.

    Up to 8 GPUs have a colour each, up to 16 a faint line within the band of all; of more the 16
    that are lowest in the first panel are drawn, which the chart says. Dragging over the strip at
    the bottom zooms all panels.
    `bins`: columns rank, gpu, metric, start_ns, dur_ns, covered_ns, count, mean, min, max, as from
    `analysis.alignment.bins`, about 300, or 100 for 16 GPUs. Limits (power_limit_w, ...) and causes
    of a lowered clock (throttled_power_frac, power_violation_frac, ...) among the metrics are drawn
    too. `limits`: columns rank, gpu, quantity, limit, at_limit_frac, as from `monitoring.at_limit`:
    drawn where no limit over time was recorded, and told in the title. Raises ValueError if there
    are more rows than a browser draws.
    """
    need(bins, *DEVICE, "metric", *STATISTICS)
    if limits is not None:
        need(limits, *DEVICE, "quantity", "limit", "at_limit_frac")
    drawn = bins[bins["metric"].isin(DRAWN_METRICS)]
    if drawn["start_ns"].nunique() < 2:
        return nothing("No metrics over time", NO_SAMPLES if drawn.empty else ONE_READING)
    places = drawn[DEVICE].drop_duplicates().sort_values(DEVICE)
    rows = pd.concat([drawn, bins[bins["metric"].isin(BESIDE)]]).sort_values(
        "start_ns", kind="stable"
    )
    rows = places.assign(label=devices(places)).merge(rows, on=DEVICE)
    first, last = int(drawn["start_ns"].min()), int((drawn["start_ns"] + drawn["dur_ns"]).max())
    frame = Frame(first, last, unit(last - first, TIME), _chosen(rows))
    shown = rows[rows["label"].isin(frame.gpus)]
    recorded = [
        (quantity, shown[shown["metric"].isin(quantity.metrics)]) for quantity in QUANTITIES
    ]
    quantities = [
        Panel(one, rows, _limit(one, shown, limits, frame)) for one, rows in recorded if len(rows)
    ]
    pictures = _pictures(quantities, stretches(shown), frame)
    panels = theme.together(
        pictures, title_of(rows, limits), explained(rows, frame), picture=DASHBOARD_PICTURE
    )
    apart: alt.VConcatChart = panels.resolve_scale(strokeDash="independent")
    return apart


def _chosen(rows: pd.DataFrame) -> list[str]:
    """Return the GPUs that are drawn: of too many the lowest ones in the first panel."""
    gpus = rows["label"].drop_duplicates()
    if len(gpus) <= MOST_GPUS:
        return gpus.tolist()
    mean = means(rows, next(metric for metric in DRAWN_METRICS if (rows["metric"] == metric).any()))
    return gpus[gpus.isin(mean.nsmallest(MOST_GPUS).index)].tolist()


def _limit(
    quantity: Quantity, shown: pd.DataFrame, limits: pd.DataFrame | None, frame: Frame
) -> pd.DataFrame:
    """Return the limit of each GPU over time, a constant one where none was recorded."""
    recorded = shown.loc[shown["metric"] == quantity.limit, LIMIT]
    if limits is None or not quantity.limited:
        return recorded
    labels = shown[[*DEVICE, "label"]].drop_duplicates()
    held = (limits["quantity"] == quantity.limited) & limits["at_limit_frac"].notna()
    constant = limits.loc[held, [*DEVICE, "limit"]].merge(labels, on=DEVICE)
    constant = constant[~constant["label"].isin(recorded["label"])].rename(
        columns={"limit": "mean"}
    )
    span = {"start_ns": frame.first, "dur_ns": frame.last - frame.first}
    return pd.concat([recorded, constant.assign(**span)[LIMIT]], ignore_index=True)


def _pictures(drawn: list[Panel], lowered: pd.DataFrame, frame: Frame) -> list[alt.LayerChart]:
    """Return the panels, the lanes of a lowered clock if it ever was, and the strip in which to zoom."""
    pictures = []
    for place, one in enumerate(drawn, start=1):
        x = across(frame, labels=place == len(drawn) and lowered.empty)
        shaded = (
            len(frame.gpus) == 1 and len(lowered) and THROTTLED.intersection(one.quantity.metrics)
        )
        behind = shades(lowered, frame, x) if shaded else []
        pictures.append(panel(one, frame, x, behind=behind))
    lanes = [throttled_lanes(lowered, frame, across(frame, labels=True))] if len(lowered) else []
    return [*pictures, *lanes, overview(drawn[0], frame)]


def across(frame: Frame, *, labels: bool) -> alt.X:
    """Return the axis of time of a panel, with labels or without."""
    title = f"time since the start of the capture ({frame.time.symbol})"
    room = alt.Scale(
        domainMin=alt.ExprRef("left"), domainMax=alt.ExprRef("right"), nice=False, zero=False
    )
    axis = (
        alt.Axis(tickCount=8)
        if labels
        else alt.Axis(tickCount=8, labels=False, ticks=False, title=None)
    )
    return alt.X("time:Q", title=title, scale=room, axis=axis)


def panel(
    shown: Panel, frame: Frame, x: alt.X, *, behind: Iterable[alt.Chart] = ()
) -> alt.LayerChart:
    """Return one quantity over time with its limit, in front of the marks `behind`."""
    axes, scale = Axes(x, shown.up(alt.Axis(tickCount=3))), shown.scale
    drawn = lines.levels(shown.rows, scale, frame)
    layers = [
        *behind,
        *lines.limits(shown.limit, scale, frame, axes),
        *lines.lines(drawn, frame.gpus, axes),
        lines.numbers(drawn, scale, frame, x),
    ]
    return framed(layers, _said(shown), HEIGHT)


def framed(layers: Iterable[alt.Chart], name: str, height: int) -> alt.LayerChart:
    """Return layers as a picture among others, its name above the left end of its axis of time."""
    chart = theme.panel(layers, name, picture=PICTURE, size=(WIDTH, height))
    chart.title = alt.TitleParams(
        text=name, fontSize=12, fontWeight="normal", frame="group", offset=4
    )
    return chart


def _said(shown: Panel) -> str:
    name, present = shown.quantity.name, shown.rows["metric"].unique()
    meaning = METRICS[present[0]] if len(present) == 1 else ""
    meaning = (
        f"{name}: {meaning}" if name and meaning else name or meaning[:1].upper() + meaning[1:]
    )
    if shown.limit.empty:
        return meaning
    low, high = (
        number(value / shown.scale.size) for value in shown.limit["mean"].agg(["min", "max"])
    )
    return (
        f"{meaning}; dashed: limit {low if low == high else f'{low} to {high}'} "
        f"{shown.scale.symbol}"
    )


def overview(shown: Panel, frame: Frame) -> alt.LayerChart:
    """Return the whole time of a panel in a strip; the part that is chosen in it is what all panels show."""
    ends = [frame.first / frame.time.size, frame.last / frame.time.size]
    title, axis = (
        f"time since the start of the capture ({frame.time.symbol})",
        alt.Axis(title=None, tickCount=8),
    )
    x = alt.X(
        "time:Q", title=title, scale=alt.Scale(domain=ends, nice=False, zero=False), axis=axis
    )
    # What lies between the lines must be hit too.
    ground = alt.Chart(inline(pd.DataFrame({"time": ends[:1], "end": ends[1:]})))
    ground = ground.mark_rect(color=GREY, opacity=0.08, cursor="crosshair", tooltip=False)
    ground = ground.encode(x, alt.X2("end"), y=alt.value(0), y2=alt.value("height")).properties(
        name="whole"
    )
    chosen = ground.add_params(
        alt.selection_interval(name="zoom", encodings=["x"], zoom=False),
        alt.param(name="left", expr=f"zoom.time ? zoom.time[0] : {ends[0]!r}"),
        alt.param(name="right", expr=f"zoom.time ? zoom.time[1] : {ends[1]!r}"),
    )
    drawn = lines.levels(shown.rows, shown.scale, frame)
    return framed([chosen, *lines.lines(drawn, frame.gpus, Axes(x, shown.up(None)))], WHOLE, STRIP)


def means(rows: pd.DataFrame, metric: str) -> pd.Series:
    """Return the mean of a metric of each GPU (index: its label), weighted by the time for which readings count."""
    of_metric = rows[rows["metric"] == metric]
    parts = of_metric.assign(whole=of_metric["mean"] * of_metric["covered_ns"]).groupby(
        "label", sort=False
    )
    return parts["whole"].sum() / parts["covered_ns"].sum()


def title_of(rows: pd.DataFrame, limits: pd.DataFrame | None) -> str:
    """Return what is seen: how busy the GPUs are, and for how long their power is at its limit."""
    gpus = rows["label"].unique()
    who, several = (f"{len(gpus)} GPUs", 1) if len(gpus) > 1 else (gpus[0], 0)
    metric = next((metric for metric in DOES if (rows["metric"] == metric).any()), None)
    if metric is None:
        return f"Metrics of {who} over time"
    mean = means(rows, metric)
    low, high = (
        percent(end) if metric.endswith("_frac") else f"{number(end)} W"
        for end in (mean.min(), mean.max())
    )
    does = DOES[metric][several].format(low if low == high else f"{low} to {high}")
    return f"{who} {does}{_at_limit(limits)}"


def _at_limit(limits: pd.DataFrame | None) -> str:
    power = (
        pd.Series(dtype=float)
        if limits is None
        else limits.loc[limits["quantity"] == "power", "at_limit_frac"]
    )
    if not power.gt(0).any():
        return ""
    return f", power at its limit for {'up to ' if len(power) > 1 else ''}{percent(power.max())}"


def explained(rows: pd.DataFrame, frame: Frame) -> list[str]:
    """Return how to read the picture, whether the clock was lowered, and how many GPUs are not drawn."""
    drawn = rows[rows["label"].isin(frame.gpus)]
    readings, metrics = int(drawn["count"].sum()), drawn["metric"].nunique()
    span = duration(frame.last - frame.first)
    counted = f"{readings:,} readings of {metrics} metric{'s' * (metrics > 1)} over {span}"
    band = {1: "; band: from the least to the most"}.get(len(frame.gpus), "")
    band = (
        "; band: from the lowest to the highest GPU"
        if len(frame.gpus) > len(LINE_COLOURS)
        else band
    )
    notes = [
        f"{counted}. Lines: mean of each {duration(float(drawn['dur_ns'].max()))}{band}.",
        throttled_words(drawn),
    ]
    gpus = rows["label"].nunique()
    limit = f"Drawn are the {len(frame.gpus)} of {gpus} GPUs that are lowest in the first panel."
    return [*notes, limit] if gpus > len(frame.gpus) else notes


def stretches(rows: pd.DataFrame) -> pd.DataFrame:
    """Return label, cause, start_ns, dur_ns and mean (above 0) of the bins in which the clock was lowered."""
    cause = rows["metric"].astype("string").map(CAUSES)
    lowered = rows.assign(cause=cause)[cause.notna() & (rows["mean"] > 0)].sort_values(
        "mean", ascending=False, kind="stable"
    )
    return lowered.drop_duplicates(["label", "cause", "start_ns"]).sort_values(
        ["label", "start_ns"]
    )


def throttled_lanes(lowered: pd.DataFrame, frame: Frame, x: alt.X) -> alt.LayerChart:
    """Return a lane for each GPU that was throttled, with a part for each cause, the denser the longer."""
    gpus, causes = [gpu for gpu in frame.gpus if (lowered["label"] == gpu).any()], _causes(lowered)
    place = alt.Y("gpu:N", title=None, sort=gpus, scale=alt.Scale(domain=gpus, paddingInner=0.2))
    part = alt.YOffset("cause:N", sort=causes, scale=alt.Scale(domain=causes, paddingInner=0))
    density = alt.FillOpacity(
        "share:Q", scale=alt.Scale(domain=[0, 1], range=[0.3, 1]), legend=None
    )
    shown = hover(
        ("gpu", "clock lowered on"), ("cause", "because of"), ("told", "share of the bin")
    )
    shown += hover(("time", f"bin starts at ({frame.time.symbol})", ",.6~g"))
    channels = (x, alt.X2("end"), place, part, _fill(causes), density, shown)
    bars = theme.marked(_drawn(lowered, frame), "bar", *channels, clip=True)
    return framed(
        [bars],
        "Clock lowered: the denser, the more of the time",
        LANE * len(gpus) * (1 + len(causes)),
    )


def shades(lowered: pd.DataFrame, frame: Frame, x: alt.X) -> list[alt.Chart]:
    """Return pale rectangles over the height of a panel."""
    marks = alt.Chart(inline(_drawn(lowered, frame))).mark_rect(
        clip=True, tooltip=False, opacity=0.25
    )
    return [
        marks.encode(
            x, alt.X2("end"), _fill(_causes(lowered)), y=alt.value(0), y2=alt.value("height")
        )
    ]


def _causes(lowered: pd.DataFrame) -> list[str]:
    return [cause for cause in THROTTLED_COLOURS if (lowered["cause"] == cause).any()]


def _drawn(lowered: pd.DataFrame, frame: Frame) -> pd.DataFrame:
    return when(lowered, frame).assign(
        gpu=lowered["label"],
        cause=lowered["cause"],
        share=lowered["mean"].round(4),
        told=lowered["mean"].map(percent),
    )


def _fill(causes: list[str]) -> alt.Fill:
    scale = alt.Scale(domain=causes, range=[THROTTLED_COLOURS[cause] for cause in causes])
    legend = alt.Legend(labelExpr="'clock lowered: ' + datum.label", symbolOpacity=1)
    return alt.Fill("cause:N", scale=scale, title=None, legend=legend)


def throttled_words(rows: pd.DataFrame) -> str:
    """Return in how many bins the clock was lowered, and because of what."""
    cause = rows["metric"].astype("string").map(CAUSES)
    recorded = [name for name in THROTTLED_COLOURS if (cause == name).any()]
    if not recorded:
        return NOT_RECORDED
    lowered = stretches(rows)
    bins = len(rows[cause.notna()].drop_duplicates(["label", "start_ns"]))
    counts = {name: int((lowered["cause"] == name).sum()) for name in recorded}
    parts = [f"{name} in {count:,}" for name, count in counts.items() if count]
    if not parts:
        return f"The clock was never lowered because of {' or '.join(recorded)}."
    return f"The clock was lowered because of {', '.join(parts)} of {bins:,} bins."

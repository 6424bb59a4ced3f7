"""When and why the clock of the GPUs was lowered, as a part of `perfkit.charts.monitor`.

Conventions
-----------
Causes are those of `perfkit.analysis.monitoring.throttling`: event reasons and violation counters, never a temperature.
A bin's share is the part of its time with the clock lowered, of several metrics of a cause the larger.

Functions
---------
stretches   the bins in which the clock was lowered, by cause
lanes       a lane for each GPU
shades      the same over the height of a panel of one GPU
said        in words
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from perfkit.charts.data import inline
from perfkit.charts.monitor_lines import Frame, when
from perfkit.charts.monitor_panels import framed
from perfkit.charts.theme import CAUSE_COLOURS
from perfkit.format import percent

CAUSES = {
    "throttled_power_frac": "power",
    "power_violation_frac": "power",
    "throttled_thermal_frac": "heat",
    "thermal_violation_frac": "heat",
    "throttled_other_frac": "another reason",
}
COLOURS = {
    "power": CAUSE_COLOURS["kernel_wait"],
    "heat": "#C8283C",
    "another reason": CAUSE_COLOURS["unattributed"],
}
LANE = 7  # pixels of a cause
NOT_RECORDED = (
    "Whether the clock was lowered is not recorded: add clocks_event_reasons.active to --query-gpu, or v to dmon's -s."
)


def stretches(rows: pd.DataFrame) -> pd.DataFrame:
    """Return label, cause, start_ns, dur_ns and mean (above 0) of the bins in which the clock was lowered."""
    cause = rows["metric"].astype("string").map(CAUSES)
    lowered = rows.assign(cause=cause)[cause.notna() & (rows["mean"] > 0)].sort_values("mean", ascending=False)
    return lowered.drop_duplicates(["label", "cause", "start_ns"]).sort_values(["label", "start_ns"])


def lanes(lowered: pd.DataFrame, frame: Frame, x: alt.X) -> alt.LayerChart:
    """Return a lane for each GPU that was throttled, with a part for each cause, the denser the longer."""
    gpus, causes = [gpu for gpu in frame.gpus if (lowered["label"] == gpu).any()], _causes(lowered)
    place = alt.Y("gpu:N", title=None, sort=gpus, scale=alt.Scale(domain=gpus, paddingInner=0.2))
    part = alt.YOffset("cause:N", sort=causes, scale=alt.Scale(domain=causes, paddingInner=0))
    density = alt.FillOpacity("share:Q", scale=alt.Scale(domain=[0, 1], range=[0.3, 1]), legend=None)
    shown = [
        alt.Tooltip("gpu:N", title="clock lowered on"),
        alt.Tooltip("cause:N", title="because of"),
        alt.Tooltip("told:N", title="share of the bin"),
        alt.Tooltip("time:Q", title=f"bin starts at ({frame.time.symbol})", format=",.6~g"),
    ]
    bars = alt.Chart(inline(_drawn(lowered, frame))).mark_bar(clip=True)
    bars = bars.encode(x, alt.X2("end"), place, part, _fill(causes), density, shown)
    return framed([bars], "Clock lowered: the denser, the more of the time", LANE * len(gpus) * (1 + len(causes)))


def shades(lowered: pd.DataFrame, frame: Frame, x: alt.X) -> list[alt.Chart]:
    """Return pale rectangles over the height of a panel."""
    marks = alt.Chart(inline(_drawn(lowered, frame))).mark_rect(clip=True, tooltip=False, opacity=0.25)
    return [marks.encode(x, alt.X2("end"), _fill(_causes(lowered)), y=alt.value(0), y2=alt.value("height"))]


def _causes(lowered: pd.DataFrame) -> list[str]:
    return [cause for cause in COLOURS if (lowered["cause"] == cause).any()]


def _drawn(lowered: pd.DataFrame, frame: Frame) -> pd.DataFrame:
    return when(lowered, frame).assign(
        gpu=lowered["label"], cause=lowered["cause"], share=lowered["mean"].round(4), told=lowered["mean"].map(percent)
    )


def _fill(causes: list[str]) -> alt.Fill:
    scale = alt.Scale(domain=causes, range=[COLOURS[cause] for cause in causes])
    legend = alt.Legend(labelExpr="'clock lowered: ' + datum.label", symbolOpacity=1)
    return alt.Fill("cause:N", scale=scale, title=None, legend=legend)


def said(rows: pd.DataFrame) -> str:
    """Return in how many bins the clock was lowered, and because of what."""
    cause = rows["metric"].astype("string").map(CAUSES)
    recorded = [name for name in COLOURS if (cause == name).any()]
    if not recorded:
        return NOT_RECORDED
    lowered = stretches(rows)
    bins = len(rows[cause.notna()].drop_duplicates(["label", "start_ns"]))
    found = [(name, int((lowered["cause"] == name).sum())) for name in recorded]
    parts = [f"{name} in {count:,}" for name, count in found if count]
    if not parts:
        return f"The clock was never lowered because of {' or '.join(recorded)}."
    return f"The clock was lowered because of {', '.join(parts)} of {bins:,} bins."

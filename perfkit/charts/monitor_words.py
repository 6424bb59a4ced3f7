"""What the pictures of `perfkit.charts.monitor` say in words.

Conventions
-----------
Rows are those of `perfkit.analysis.sampling.bins` with `label`, the name of the GPU.

Functions
---------
means       mean of a metric of each GPU
title       how busy the GPUs are, and for how long their power is at its limit
explained   how to read the picture, and what is not in it
"""

from __future__ import annotations

import pandas as pd

from perfkit.charts import throttled
from perfkit.charts.monitor_lines import COLOURS, Frame
from perfkit.format import duration, number, percent

# What a GPU does and several do, by the metric that says it; the first that was recorded counts.
DOES = {
    "gpu_busy_frac": ("is busy {} of the time", "are busy {} of the time"),
    "graphics_active_frac": ("has its engine active {} of the time", "have their engines active {} of the time"),
    "sm_active_frac": ("has {} of its SMs active", "have {} of their SMs active"),
    "power_w": ("draws {} on average", "draw {} each on average"),
}


def means(rows: pd.DataFrame, metric: str) -> pd.Series:
    """Return the mean of a metric of each GPU (index: its label), weighted by the time for which readings count."""
    of_metric = rows[rows["metric"] == metric]
    parts = of_metric.assign(whole=of_metric["mean"] * of_metric["covered_ns"]).groupby("label", sort=False)
    return parts["whole"].sum() / parts["covered_ns"].sum()


def title(rows: pd.DataFrame, limits: pd.DataFrame | None) -> str:
    """Return what is seen: how busy the GPUs are, and for how long their power is at its limit."""
    gpus = rows["label"].unique()
    who, several = (f"{len(gpus)} GPUs", 1) if len(gpus) > 1 else (gpus[0], 0)
    metric = next((metric for metric in DOES if (rows["metric"] == metric).any()), None)
    if metric is None:
        return f"Metrics of {who} over time"
    mean = means(rows, metric)
    low, high = (percent(end) if metric.endswith("_frac") else f"{number(end)} W" for end in (mean.min(), mean.max()))
    does = DOES[metric][several].format(low if low == high else f"{low} to {high}")
    return f"{who} {does}{_at_limit(limits)}"


def _at_limit(limits: pd.DataFrame | None) -> str:
    power = pd.Series(dtype=float) if limits is None else limits.loc[limits["quantity"] == "power", "at_limit_frac"]
    if not power.gt(0).any():
        return ""
    return f", power at its limit for {'up to ' if len(power) > 1 else ''}{percent(power.max())}"


def explained(rows: pd.DataFrame, frame: Frame) -> list[str]:
    """Return how to read the picture, whether the clock was lowered, and how many GPUs are not drawn."""
    drawn = rows[rows["label"].isin(frame.gpus)]
    readings, metrics = int(drawn["count"].sum()), drawn["metric"].nunique()
    counted = (
        f"{readings:,} readings of {metrics} metric{'s' * (metrics > 1)} over {duration(frame.last - frame.first)}"
    )
    band = {1: "; band: from the least to the most"}.get(len(frame.gpus), "")
    band = "; band: from the lowest to the highest GPU" if len(frame.gpus) > len(COLOURS) else band
    said = [f"{counted}. Lines: mean of each {duration(float(drawn['dur_ns'].max()))}{band}.", throttled.said(drawn)]
    known = rows["label"].nunique()
    if known > len(frame.gpus):
        said.append(f"Drawn are the {len(frame.gpus)} of {known} GPUs that are lowest in the first panel.")
    return said

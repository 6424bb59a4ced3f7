"""Pictures of what the log of the GPUs says over time.

Conventions
-----------
Frames are those of `perfkit.analysis.sampling` and `perfkit.analysis.monitoring`. The meanings of "GPU utilisation" are
panels of their own. Memory is in decimal units (1 GB = 1e9 B), clocks in MHz.

Functions
---------
dashboard   the metrics of all GPUs below each other over one axis of time
"""

from __future__ import annotations

from collections.abc import Iterator

import altair as alt
import pandas as pd

from perfkit.charts import monitor_words, panels, throttled
from perfkit.charts.data import inline, known, need
from perfkit.charts.labels import devices
from perfkit.charts.monitor_lines import GREY, Frame
from perfkit.charts.monitor_panels import HEIGHT, QUANTITIES, Panel, Quantity, across, overview, panel
from perfkit.charts.theme import ink, nothing, register
from perfkit.format import TIME, printable, unit

METRICS = tuple(metric for quantity in QUANTITIES for metric in quantity.metrics)
BESIDE = (*(quantity.limit for quantity in QUANTITIES if quantity.limit), *throttled.CAUSES)
DEVICE = ["rank", "gpu"]
LIMIT = ["label", "start_ns", "dur_ns", "mean"]
FIGURES = ["start_ns", "dur_ns", "covered_ns", "count", "mean", "min", "max"]
THROTTLED = {"power_w", "temperature_c", "sm_clock_hz"}  # where a lowered clock is shaded
MOST_GPUS, MOST_EVENTS, MOST_WORDS, LONGEST_EVENT = 16, 100, 8, 24
PICTURE = "Metrics of the GPUs over time, a panel for each"
NO_SAMPLES = "No metric of a GPU was recorded. Record with `nvidia-smi dmon -s pucvmt -o DT > log.txt`."
ONE_READING = "Each metric was read once, which is no course over time. Record for as long as the program runs."


def dashboard(
    bins: pd.DataFrame,
    *,
    metrics: tuple[str, ...] = METRICS,
    limits: pd.DataFrame | None = None,
    events: pd.DataFrame | None = None,
    title: str = "",
) -> alt.VConcatChart | alt.LayerChart:
    """Draw the metrics of all GPUs over time, a panel for each quantity, and when their clock was lowered.

    Up to 8 GPUs have a colour each, up to 16 a faint line each within the band of all; of more the 16 that are lowest
    in the first panel are drawn, which the chart says. Dragging over the strip at the bottom zooms all panels.

    Parameters
    ----------
    bins
        Columns rank, gpu, metric, start_ns, dur_ns, covered_ns, count, mean, min, max: one row per metric, GPU and bin,
        as from `analysis.sampling.bins`; may be empty. Limits (power_limit_w, ...) and causes of a lowered clock
        (throttled_power_frac, power_violation_frac, ...) among the metrics are drawn too. The width can show about
        300 bins; 100 do for 16 GPUs.
    metrics
        Metrics that are drawn, of `METRICS`.
    limits
        Columns rank, gpu, quantity, limit, at_limit_frac, as from `analysis.monitoring.at_limit`: drawn where no
        limit over time was recorded, and told in the title; none when omitted.
    events
        Columns start_ns, label: ruled over all panels; the first 100 in the picture are drawn.
    title
        What is seen; how busy the GPUs are when empty.

    Returns
    -------
    altair.VConcatChart or altair.LayerChart
        The latter where there is nothing to draw.

    Raises
    ------
    SchemaError
        If a column is missing.
    ValueError
        If a metric has no panel, or there are more rows than a browser draws.
    """
    need(bins, *DEVICE, "metric", *FIGURES)
    known(pd.DataFrame({"metrics": list(metrics)}), "metrics", METRICS)
    if limits is not None:
        need(limits, *DEVICE, "quantity", "limit", "at_limit_frac")
    drawn = bins[bins["metric"].isin(metrics)]
    if drawn["start_ns"].nunique() < 2:
        return nothing(title or "No metrics over time", NO_SAMPLES if drawn.empty else ONE_READING)
    register()
    rows = _labelled(drawn, bins[bins["metric"].isin(BESIDE)])
    first, last = int(drawn["start_ns"].min()), int((drawn["start_ns"] + drawn["dur_ns"]).max())
    frame = Frame(first, last, unit(last - first, TIME), _chosen(rows))
    shown = rows[rows["label"].isin(frame.gpus)]
    inside = _inside(events, frame)
    said = monitor_words.explained(rows, frame)
    said += [f"The first {MOST_EVENTS} of {len(inside)} events are drawn."] if len(inside) > MOST_EVENTS else []
    pictures = _pictures([*_panels(shown, limits, frame)], throttled.stretches(shown), inside, frame)
    whole = panels.together(pictures, title or monitor_words.title(rows, limits), said, picture=PICTURE)
    apart: alt.VConcatChart = whole.resolve_scale(strokeDash="independent")
    return apart


def _labelled(drawn: pd.DataFrame, beside: pd.DataFrame) -> pd.DataFrame:
    """Return what is drawn and what stands beside it with the name of the GPU, by rank and GPU."""
    places = drawn[DEVICE].drop_duplicates().sort_values(DEVICE)
    rows = pd.concat([drawn, beside]).sort_values("start_ns", kind="stable")
    return places.assign(label=devices(places)).merge(rows, on=DEVICE)


def _chosen(rows: pd.DataFrame) -> list[str]:
    """Return the GPUs that are drawn: of too many those that are lowest in the first panel."""
    gpus = rows["label"].drop_duplicates()
    if len(gpus) <= MOST_GPUS:
        return gpus.tolist()
    mean = monitor_words.means(rows, next(metric for metric in METRICS if (rows["metric"] == metric).any()))
    return gpus[gpus.isin(mean.nsmallest(MOST_GPUS).index)].tolist()


def _panels(shown: pd.DataFrame, limits: pd.DataFrame | None, frame: Frame) -> Iterator[Panel]:
    """Yield the quantities of which anything was recorded."""
    for quantity in QUANTITIES:
        rows = shown[shown["metric"].isin(quantity.metrics)]
        if len(rows):
            yield Panel(quantity, rows, _limit(quantity, shown, limits, frame))


def _limit(quantity: Quantity, shown: pd.DataFrame, limits: pd.DataFrame | None, frame: Frame) -> pd.DataFrame:
    """Return the limit of each GPU over time, a constant one where none was recorded."""
    recorded = shown.loc[shown["metric"] == quantity.limit, LIMIT]
    if limits is None or not quantity.limited:
        return recorded
    labels = shown[[*DEVICE, "label"]].drop_duplicates()
    constant = limits.loc[limits["quantity"] == quantity.limited, [*DEVICE, "limit"]].merge(labels, on=DEVICE)
    constant = constant[~constant["label"].isin(recorded["label"])].rename(columns={"limit": "mean"})
    span = {"start_ns": frame.first, "dur_ns": frame.last - frame.first}
    return pd.concat([recorded, constant.assign(**span)[LIMIT]], ignore_index=True)


def _pictures(drawn: list[Panel], lowered: pd.DataFrame, events: pd.DataFrame, frame: Frame) -> list[alt.LayerChart]:
    """Return the panels, the lanes of a lowered clock if it ever was, and the strip in which to zoom."""
    pictures = []
    for number, one in enumerate(drawn, start=1):
        x = across(frame, labels=number == len(drawn) and lowered.empty)
        shaded = len(frame.gpus) == 1 and len(lowered) and THROTTLED.intersection(one.quantity.metrics)
        behind = throttled.shades(lowered, frame, x) if shaded else []
        pictures.append(panel(one, frame, x, behind=[*behind, *_rules(events, frame, x, words=number == 1)]))
    lanes = [throttled.lanes(lowered, frame, across(frame, labels=True))] if len(lowered) else []
    return [*pictures, *lanes, overview(drawn[0], frame)]


def _inside(events: pd.DataFrame | None, frame: Frame) -> pd.DataFrame:
    """Return the events in the picture, in their order."""
    if events is None:
        return pd.DataFrame({"start_ns": [], "label": []})
    need(events, "start_ns", "label")
    return events[events["start_ns"].between(frame.first, frame.last)].sort_values("start_ns", kind="stable")


def _rules(events: pd.DataFrame, frame: Frame, x: alt.X, *, words: bool) -> list[alt.Chart]:
    """Return a rule for each event, with words in the first panel if they are few."""
    if events.empty:
        return []
    said = [printable(label, LONGEST_EVENT) for label in events["label"]]
    data = inline(pd.DataFrame({"time": events["start_ns"] / frame.time.size, "said": said}).head(MOST_EVENTS))
    rule = alt.Chart(data).mark_rule(color=GREY, strokeDash=[2, 2], clip=True, tooltip=False).encode(x)
    if not words or len(events) > MOST_WORDS:
        return [rule]
    text: alt.Chart = ink(data, dx=3).encode(x, alt.Text("said:N"), y=alt.value(HEIGHT - 8))
    text.mark.clip = True
    return [rule, text]

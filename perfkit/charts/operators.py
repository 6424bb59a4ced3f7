"""Pictures of which framework operators take the time, and of how long the steps wait for data.

Frames are those of `perfkit.analysis.operators` and `perfkit.analysis.host`. Self time is without that of the operators
called inside; an operator's GPU time is the sum over the kernels it launched itself. CPU and GPU work at the same time:
their times do not add up to wall time. `latency` has both axes from 0: a time in proportion to the batch is a line
through the corner, and the height at which a line begins is what a batch of any size costs.
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from perfkit.charts import theme
from perfkit.charts.theme import KIND_COLOURS, WIDTH, colours, fraction, hover, ink, inline, layered, need, nothing
from perfkit.format import TIME, Unit, duration, elided, number, percent, printable, unit

MEASURED, GREY = KIND_COLOURS["computation"], "#808080"
HEIGHT = 300
ROOM = 1.18  # beyond the largest batch and the longest time, for the words
LATENCY_PICTURE = "Points, one for each batch size, beside a straight line"
TOO_FEW = "A line needs two batch sizes. Time the same model on at least two, better on four."
MOST_STEPS, MOST_PANELS = 200, 8
STEPS_PICTURE = "Columns of step time with the wait for data at the bottom and its share above"
WIDEST_STEP = 50  # pixels; the share stands above columns of this width
PARTS = {"waiting for data": theme.DETAIL_COLOURS["data_loading"], "the rest of the step": "#9A9A9A"}
NO_LOADER = (
    "No data loading was recorded. PyTorch records the loader of `torch.utils.data`; name another one with "
    '`torch.profiler.record_function("dataloader")`.'
)
GPU, CPU, UNKNOWN = "GPU time of its kernels", "CPU time", "GPU time, no operator recorded"
SERIES_COLOURS = {GPU: KIND_COLOURS["computation"], CPU: theme.CAUSE_COLOURS["host_wait"], UNKNOWN: "#9A9A9A"}
COLUMNS = {GPU: "gpu_self_ns", CPU: "cpu_self_ns"}
FIGURES = ["count", "kernel_count", "gpu_self_ns", "cpu_self_ns"]
LONGEST_LABEL, LONGEST_NAME = 44, 400  # characters
LABEL_WIDTH = 300  # pixels


def bars(summary: pd.DataFrame, *, top: int = 12, title: str = "") -> alt.LayerChart:
    """Draw GPU and CPU self time of the operators that take most GPU time, and of all others together.

    Without any GPU time those that take most CPU time are drawn. Kernels without an operator have a grey bar of
    their own, at the bottom.
    `summary`: columns name (missing for kernels without an operator), count, cpu_self_ns, gpu_self_ns, kernel_count:
    one row per operator, in any order; may be empty.
    `top`: number of operators with bars of their own, at least 1. Raises ValueError if `top` is below 1.
    """
    need(summary, "name", *FIGURES)
    if top < 1:
        raise ValueError(f"top: {top} is not at least 1")
    by = "gpu_self_ns" if summary["gpu_self_ns"].any() else "cpu_self_ns"
    if not summary[by].any():
        return nothing(title or "No operators", "No operator took time in this window.")
    named = summary[summary["name"].notna()].sort_values(by, ascending=False, kind="stable")
    drawn = _series(_longest(named, by, top), summary)
    scale = unit(float(drawn["time"].max()), TIME)
    return layered(
        _lengths(drawn.assign(time=drawn["time"] / scale.size), scale),
        title or _operators_title(named.iloc[:1], by, summary),
        _explained(float(summary["cpu_self_ns"].sum()), float(summary["gpu_self_ns"].sum())),
        picture=f"Bars of GPU and CPU time of {', '.join(drawn['label'].unique()[:8])}",
        size=(WIDTH - 160, alt.Step(13)),
    )


def _operators_title(first: pd.DataFrame, by: str, summary: pd.DataFrame) -> str:
    total, lost = summary[by].sum(), summary.loc[summary["name"].isna(), by].sum()
    if not first[by].any():
        return "No operator was recorded for any kernel"
    name, share = printable(first["name"].iloc[0], LONGEST_LABEL), percent(first[by].iloc[0] / total)
    beside = f"; {percent(lost / total)} has no operator recorded" if lost else ""
    return f"{name} {'launches' if by == COLUMNS[GPU] else 'takes'} {share} of the {by[:3].upper()} time{beside}"


def _explained(cpu: float, gpu: float) -> str:
    kernels = f"{duration(gpu)} of kernels, {duration(cpu)} on the CPU meanwhile"
    return f"Self time, without operators called inside: {kernels if gpu else f'{duration(cpu)} on the CPU'}."


def _longest(named: pd.DataFrame, by: str, top: int) -> pd.DataFrame:
    """Return the first `top` operators that have time, and one row that sums the rest."""
    shown = named[named[by] > 0].head(top)
    rows = shown[FIGURES].assign(
        label=[f"{number}. {elided(name, LONGEST_LABEL)}" for number, name in enumerate(shown["name"], start=1)],
        name=[printable(name, LONGEST_NAME) for name in shown["name"]],
    )
    rest = named.iloc[len(shown) :]
    if rest.empty:
        return rows
    label = f"{len(rest)} other operators" if len(rest) > 1 else "1 other operator"
    return pd.concat([rows, rest[FIGURES].sum().to_frame().T.assign(label=label, name=label)], ignore_index=True)


def _series(rows: pd.DataFrame, summary: pd.DataFrame) -> pd.DataFrame:
    """Return one row per bar, in ns: GPU and CPU of each operator, and kernels without an operator last."""
    lost = summary[summary["name"].isna()][FIGURES].sum()
    label = "no operator recorded"
    lacking = lost.to_frame().T.assign(label=label, name=label, series=UNKNOWN, time=lost["gpu_self_ns"])
    both = [rows.assign(series=series, time=rows[column]) for series, column in COLUMNS.items()]
    drawn = pd.concat([*both, lacking], ignore_index=True)
    drawn = drawn[drawn["time"] > 0]
    share = (drawn["gpu_self_ns"] / (summary["gpu_self_ns"].sum() or 1)).map(percent)
    told = drawn["time"].map(duration)
    on_cpu = drawn["series"] == CPU
    return drawn[["label", "name", "series", "time", "count", "kernel_count"]].assign(
        slot=on_cpu.map({False: "GPU", True: "CPU"}), said=told.where(on_cpu, told + " · " + share)
    )


def _lengths(drawn: pd.DataFrame, scale: Unit) -> list[alt.Chart]:
    """Return bars and their times; the outline keeps a bar visible that is too short beside the others."""
    room = alt.Scale(domain=[0, 1.3 * float(drawn["time"].max())], nice=False)
    shades = colours(SERIES_COLOURS, {}, drawn["series"])
    length = alt.X("time:Q", title=f"self time ({scale.symbol})", scale=room)
    labels = drawn["label"].drop_duplicates().tolist()
    place = alt.Y("label:N", title=None, sort=labels, axis=alt.Axis(labelLimit=LABEL_WIDTH, labelFontSize=11))
    beside = alt.YOffset("slot:N", sort=["GPU", "CPU"])
    shown = hover(
        ("name", "operator"),
        ("series", "what"),
        ("said", "time"),
        ("count", "calls", ","),
        ("kernel_count", "kernels launched", ","),
    )
    fill, stroke = (kind("series:N", scale=shades, title=None) for kind in (alt.Fill, alt.Stroke))
    marks = theme.marked(drawn, "bar", length, place, beside, fill, stroke, shown, strokeWidth=1)
    return [marks, theme.words(drawn, length, place, beside, alt.Text("said:N"), dx=5)]


def steps(input_wait: pd.DataFrame, *, title: str = "") -> alt.LayerChart | alt.VConcatChart:
    """Draw the time of each step and how much of it the training thread waits for data.

    The first 200 steps are drawn, and of more than 8 ranks those that wait most, which the chart says.
    `input_wait`: columns rank, step, dur_ns, wait_ns, wait_frac (0..1): one row per step; the last two are missing
    where the rank records no data loading, and such rows are left out; may be empty. Raises ValueError if a share is no
    fraction.
    """
    need(input_wait, "rank", "step", "dur_ns", "wait_ns", "wait_frac")
    fraction(input_wait, "wait_frac")
    known = input_wait[input_wait["wait_frac"].notna()]
    if known.empty:
        return nothing(title or "No wait for data was recorded", NO_LOADER)
    waiting = known.groupby("rank")["wait_ns"].sum().sort_values(ascending=False, kind="stable")
    ranks = sorted(waiting.index[:MOST_PANELS])
    drawn = known[known["rank"].isin(ranks)].sort_values("step", kind="stable").groupby("rank").head(MOST_STEPS)
    scale = unit(float(drawn["dur_ns"].max()), TIME)
    longest, height = float(drawn["dur_ns"].max()), 150 if len(ranks) == 1 else 90
    pictures = [_panel(drawn[drawn["rank"] == rank], rank, scale, longest, height) for rank in ranks]
    notes = [f"Time of the training thread in the data loader, in % of each step; {_counted(known)}."]
    return theme.together(
        pictures, title or _steps_title(known), [*notes, *_limits(drawn, known)], picture=STEPS_PICTURE
    )


def _steps_title(known: pd.DataFrame) -> str:
    """Say what share of the time of all steps is spent waiting."""
    waiting, total = float(known["wait_ns"].sum()), float(known["dur_ns"].sum())
    return f"Waiting for data takes {percent(waiting / total if total else 0.0)} of the steps' time"


def _counted(known: pd.DataFrame) -> str:
    ranks = known["rank"].nunique()
    of_ranks = f" of {ranks} ranks" if ranks > 1 else ""
    return f"{duration(float(known['dur_ns'].sum()))} in {len(known):,} step{'s' * (len(known) > 1)}{of_ranks}"


def _limits(drawn: pd.DataFrame, known: pd.DataFrame) -> list[str]:
    """Say what is not drawn."""
    ranks = drawn["rank"].nunique()
    said = [f"the {ranks} ranks that wait most"] if ranks < known["rank"].nunique() else []
    if known.groupby("rank").size().max() > MOST_STEPS:
        said = [f"the first {MOST_STEPS} steps", *said]
    return [f"Drawn are {' of '.join(said)}."] if said else []


def _panel(rows: pd.DataFrame, rank: int, scale: Unit, longest: float, height: int) -> alt.LayerChart:
    width = WIDEST_STEP * len(rows)
    layers = [_columns(rows, scale, longest), *([_shares(rows, scale)] if width <= WIDTH else [])]
    return theme.panel(layers, f"rank {rank}", picture=STEPS_PICTURE, size=(min(width, WIDTH), height))


def _columns(rows: pd.DataFrame, scale: Unit, longest: float) -> alt.Chart:
    """Return two rectangles per step, the wait below."""
    drawn = pd.DataFrame({"step": rows["step"], "share": rows["wait_frac"].map(percent)})
    wait = rows["wait_ns"]
    ends = [
        drawn.assign(part=part, begin=begin / scale.size, end=end / scale.size, time=(end - begin).map(duration))
        for part, begin, end in zip(PARTS, (0 * wait, wait), (wait, rows["dur_ns"]), strict=True)
    ]
    shown = hover("step:O", "part", "time", ("share", "share waiting"))
    room = alt.Scale(domain=[0, 1.2 * longest / scale.size], nice=False)
    height = alt.Y("begin:Q", title=f"time ({scale.symbol})", scale=room, axis=alt.Axis(tickCount=4))
    channels = (
        _place(),
        height,
        alt.Y2("end"),
        alt.Color("part:N", scale=colours(PARTS, {}, PARTS), title=None),
        shown,
    )
    return theme.marked(pd.concat(ends), "bar", *channels, width=alt.RelativeBandSize(band=0.8))


def _shares(rows: pd.DataFrame, scale: Unit) -> alt.Chart:
    """Return the waiting share of each step above its column."""
    columns = {"step": rows["step"], "end": rows["dur_ns"] / scale.size, "share": rows["wait_frac"].map(percent)}
    return theme.words(pd.DataFrame(columns), _place(), alt.Y("end:Q"), alt.Text("share:N"), align="center", dy=-7)


def _place() -> alt.X:
    return alt.X("step:O", title="step", axis=alt.Axis(labelAngle=0, labelOverlap=True, ticks=False))


def latency(times: pd.DataFrame, *, intercept_ns: float, slope_ns: float, title: str = "") -> alt.LayerChart:
    """Draw latencies against the batch size, and the line intercept + slope x batch.

    `times`: columns batch_count and latency_ns: one row per batch size, above 0; may be empty.
    `intercept_ns`, `slope_ns`: the line: ns at batch 0, and ns more for each sample.
    """
    need(times, "batch_count", "latency_ns")
    if times["batch_count"].nunique() < 2:
        return nothing(title or "No line to draw", TOO_FEW)
    ends = [0.0, ROOM * float(times["batch_count"].max())]
    line = pd.DataFrame({"batch": ends, "ms": [(intercept_ns + slope_ns * end) / 1e6 for end in ends]})
    return layered(
        _layers(_latency_rows(times, intercept_ns, slope_ns), line),
        title or f"A batch takes {duration(intercept_ns)} and {duration(slope_ns)} for each sample",
        "Line: intercept and slope; dots: measured, with their distance from the line in the tooltip.",
        picture=LATENCY_PICTURE,
        size=(WIDTH, HEIGHT),
    )


def _latency_rows(times: pd.DataFrame, intercept: float, slope: float) -> pd.DataFrame:
    rows = times.sort_values("batch_count", ignore_index=True)
    off = rows["latency_ns"] - (intercept + slope * rows["batch_count"])
    return pd.DataFrame(
        {
            "batch": rows["batch_count"].astype(int),
            "ms": rows["latency_ns"] / 1e6,
            "words": rows["latency_ns"].map(duration),
            "off": [f"{'above' if each > 0 else 'below'} by {duration(abs(each))}" for each in off],
            "rate": [number(b / (t / 1e9)) for b, t in zip(rows["batch_count"], rows["latency_ns"], strict=True)],
        }
    )


def _layers(drawn: pd.DataFrame, line: pd.DataFrame) -> list[alt.Chart]:
    right, top = float(line["batch"].max()), ROOM * max(float(drawn["ms"].max()), float(line["ms"].max()) / ROOM)
    x = alt.X(
        "batch:Q",
        title="batch size (count)",
        scale=alt.Scale(domain=[0, right], nice=False),
        axis=alt.Axis(values=sorted(set(drawn["batch"])), gridOpacity=0.2),
    )
    low = min(0.0, float(line["ms"].min()))
    scale = alt.Scale(domain=[low, top], nice=False)
    y = alt.Y("ms:Q", title="latency of a batch (ms)", scale=scale, axis=alt.Axis(gridOpacity=0.2))
    shown = hover(("batch:Q", "batch size"), ("words", "latency"), ("rate", "samples/s"), ("off", "from the line"))
    data = inline(drawn)
    straight = alt.Chart(inline(line)).mark_line(color=GREY, strokeDash=[5, 4], tooltip=False).encode(x=x, y=y)
    points = alt.Chart(data).mark_point(color=MEASURED, filled=True, size=80, opacity=1).encode(x=x, y=y, tooltip=shown)
    return [straight, points, ink(data, dx=9, dy=9).encode(x, y, alt.Text("words:N"))]

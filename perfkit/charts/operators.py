"""Pictures of a program of a framework: its operators, steps that wait for data, latency by batch size, and memory.

Self time is without that of the operators called inside; an operator's GPU time is the sum over the kernels it launched
itself. CPU and GPU work at the same time: their times do not add up to wall time. Allocated memory is what tensors
occupy, reserved what the caching allocator has taken from the driver.
"""

import math
from collections.abc import Hashable
from typing import Any, NamedTuple

import altair as alt
import pandas as pd

from perfkit.charts import checks, theme
from perfkit.charts.theme import (
    KIND_COLOURS,
    WIDTH,
    colours,
    devices,
    hover,
    ink,
    inline,
    layered,
    nothing,
)
from perfkit.format import (
    BYTES,
    TIME,
    Unit,
    duration,
    elided,
    number,
    percent,
    printable,
    size,
    unit,
)

DEVICE = ["rank", "gpu"]
LEVELS = ["min_allocated_bytes", "max_allocated_bytes", "max_reserved_bytes"]
HOST = -1  # the gpu of memory that is on none
MEMORY_PICTURE = "Allocated and reserved memory over time"
MEMORY_COLOURS = {
    "allocated": KIND_COLOURS["computation"],
    "reserved": KIND_COLOURS["communication"],
}
NO_MEMORY = "No allocation was recorded. Record with `torch.profiler.profile(profile_memory=True)`."


class _Frame(NamedTuple):
    """What the axes of all panels span, in ns and bytes, and their units."""

    first: int
    last: int
    most: float
    time: Unit
    memory: Unit


MEASURED, GREY, HEIGHT = KIND_COLOURS["computation"], "#808080", 300
ROOM = 1.18  # beyond the largest batch and the longest time, for the words
TOO_FEW = "A line needs two batch sizes. Time the same model on at least two, better on four."
MOST_STEPS, MOST_PANELS = 200, 8
STEPS_PICTURE = "Columns of step time with the wait for data at the bottom and its share above"
WIDEST_STEP = 50  # pixels; the share stands above columns of this width
PARTS = {
    "waiting for data": theme.DETAIL_COLOURS["data_loading"],
    "the rest of the step": "#9A9A9A",
}
NO_LOADER = (
    "No data loading was recorded. PyTorch records the loader of `torch.utils.data`; name another one with "
    '`torch.profiler.record_function("dataloader")`.'
)
GPU, CPU, UNKNOWN = "GPU time of its kernels", "CPU time", "GPU time, no operator recorded"
SERIES_COLOURS = {
    GPU: KIND_COLOURS["computation"],
    CPU: theme.CAUSE_COLOURS["host_wait"],
    UNKNOWN: "#9A9A9A",
}
COLUMNS = {GPU: "gpu_self_ns", CPU: "cpu_self_ns"}
FIGURES = ["count", "kernel_count", "gpu_self_ns", "cpu_self_ns"]
LONGEST_LABEL, LONGEST_NAME = 44, 400  # characters
LABEL_WIDTH = 300  # pixels


def bars(summary: pd.DataFrame, *, top: int = 12) -> alt.LayerChart:
    """Draw GPU and CPU self time of the operators that take most GPU time, and of all others together.

    Without GPU time, the operators with most CPU time are drawn. Kernels without an operator have a grey bar at the
    bottom. `summary`: columns name (missing for kernels without an operator), count, cpu_self_ns, gpu_self_ns,
    kernel_count: one row per operator, in any order. `top`: number of operators with bars of their own, at least 1.
    """
    checks.need(summary, "name", *FIGURES)
    if top < 1:
        raise ValueError(f"top: {top} is not at least 1")
    by = "gpu_self_ns" if summary["gpu_self_ns"].any() else "cpu_self_ns"
    if not summary[by].any():
        return nothing("No operators", "No operator took time in this window.")
    named = summary[summary["name"].notna()].sort_values(by, ascending=False, kind="stable")
    drawn = _series(_longest(named, by, top), summary)
    scale = unit(float(drawn["time"].max()), TIME)
    cpu, gpu = duration(float(summary["cpu_self_ns"].sum())), float(summary["gpu_self_ns"].sum())
    kernels = (
        f"{duration(gpu)} of kernels, {cpu} on the CPU meanwhile" if gpu else f"{cpu} on the CPU"
    )
    return layered(
        _lengths(drawn.assign(time=drawn["time"] / scale.size), scale),
        _operators_title(named.iloc[:1], by, summary),
        f"Self time, without operators called inside: {kernels}.",
        picture=f"Bars of GPU and CPU time of {', '.join(drawn['label'].unique()[:8])}",
        size=(WIDTH - 160, alt.Step(13)),
    )


def _operators_title(first: pd.DataFrame, by: str, summary: pd.DataFrame) -> str:
    total, lost = summary[by].sum(), summary.loc[summary["name"].isna(), by].sum()
    if not first[by].any():
        return "No operator was recorded for any kernel"
    name, share = (
        printable(first["name"].iloc[0], LONGEST_LABEL),
        percent(first[by].iloc[0] / total),
    )
    beside = f"; {percent(lost / total)} has no operator recorded" if lost else ""
    return f"{name} {'launches' if by == COLUMNS[GPU] else 'takes'} {share} of the {by[:3].upper()} time{beside}"


def _longest(named: pd.DataFrame, by: str, top: int) -> pd.DataFrame:
    """Return the first `top` operators that have time, and one row that sums the rest."""
    shown = named[named[by] > 0].head(top)
    rows = shown[FIGURES].assign(
        label=[
            f"{number}. {elided(name, LONGEST_LABEL)}"
            for number, name in enumerate(shown["name"], start=1)
        ],
        name=[printable(name, LONGEST_NAME) for name in shown["name"]],
    )
    rest = named.iloc[len(shown) :]
    if rest.empty:
        return rows
    label = f"{len(rest)} other operators" if len(rest) > 1 else "1 other operator"
    return pd.concat(
        [rows, rest[FIGURES].sum().to_frame().T.assign(label=label, name=label)], ignore_index=True
    )


def _series(rows: pd.DataFrame, summary: pd.DataFrame) -> pd.DataFrame:
    """Return one row per bar, in ns: GPU and CPU of each operator, and kernels without an operator last."""
    lost = summary[summary["name"].isna()][FIGURES].sum()
    label = "no operator recorded"
    lacking = lost.to_frame().T.assign(
        label=label, name=label, series=UNKNOWN, time=lost["gpu_self_ns"]
    )
    both = [rows.assign(series=series, time=rows[column]) for series, column in COLUMNS.items()]
    drawn = pd.concat([*both, lacking], ignore_index=True)
    drawn = drawn[drawn["time"] > 0]
    share = (drawn["gpu_self_ns"] / (summary["gpu_self_ns"].sum() or 1)).map(percent)
    time = drawn["time"].map(duration)
    on_cpu = drawn["series"] == CPU
    return drawn[["label", "name", "series", "time", "count", "kernel_count"]].assign(
        slot=on_cpu.map({False: "GPU", True: "CPU"}), said=time.where(on_cpu, time + " · " + share)
    )


def _lengths(drawn: pd.DataFrame, scale: Unit) -> list[alt.Chart]:
    """Return bars and their times; the outline keeps a bar visible that is too short beside the others."""
    room = alt.Scale(domain=[0, 1.3 * float(drawn["time"].max())], nice=False)
    shades = colours(SERIES_COLOURS, {}, drawn["series"])
    length = alt.X("time:Q", title=f"self time ({scale.symbol})", scale=room)
    labels = drawn["label"].drop_duplicates().tolist()
    place = alt.Y(
        "label:N", title=None, sort=labels, axis=alt.Axis(labelLimit=LABEL_WIDTH, labelFontSize=11)
    )
    beside = alt.YOffset("slot:N", sort=["GPU", "CPU"])
    shown = hover(
        ("name", "operator"), ("series", "kind of time"), ("said", "time"), ("count", "calls", ",")
    )
    shown += hover(("kernel_count", "kernels launched", ","))
    fill, stroke = (kind("series:N", scale=shades, title=None) for kind in (alt.Fill, alt.Stroke))
    marks = theme.marked(drawn, "bar", length, place, beside, fill, stroke, shown, strokeWidth=1)
    return [marks, theme.words(drawn, length, place, beside, alt.Text("said:N"), dx=5)]


def steps(input_wait: pd.DataFrame) -> alt.LayerChart | alt.VConcatChart:
    """Draw the time of each step and how much of it the training thread waits for data.

    `input_wait`: columns rank, step, dur_ns, wait_ns, wait_frac (0..1), one row per step; steps without a wait are left
    out. At most 200 steps and 8 ranks (the ones that wait most) are drawn; the chart says what is left out. Where there
    is a column input_bytes, it also says how many bytes per second copies bring to the GPU.
    """
    checks.need(input_wait, "rank", "step", "dur_ns", "wait_ns", "wait_frac")
    checks.fraction(input_wait, "wait_frac")
    measured = input_wait[input_wait["wait_frac"].notna()]
    if measured.empty:
        return nothing("No wait for data was recorded", NO_LOADER)
    waiting = measured.groupby("rank")["wait_ns"].sum().sort_values(ascending=False, kind="stable")
    ranks = sorted(waiting.index[:MOST_PANELS])
    drawn = (
        measured[measured["rank"].isin(ranks)]
        .sort_values("step", kind="stable")
        .groupby("rank")
        .head(MOST_STEPS)
    )
    scale = unit(float(drawn["dur_ns"].max()), TIME)
    longest, height = float(drawn["dur_ns"].max()), 150 if len(ranks) == 1 else 90
    pictures = []
    for rank in ranks:
        rows = drawn[drawn["rank"] == rank]
        width = WIDEST_STEP * len(rows)
        layers = [
            _columns(rows, scale, longest),
            *([_shares(rows, scale)] if width <= WIDTH else []),
        ]
        pictures.append(
            theme.panel(
                layers, f"rank {rank}", picture=STEPS_PICTURE, size=(min(width, WIDTH), height)
            )
        )
    total = float(measured["dur_ns"].sum())
    share = percent(float(measured["wait_ns"].sum()) / total if total else 0.0)
    title = f"Waiting for data takes {share} of the steps' time"
    return theme.together(pictures, title, _steps_notes(drawn, measured), picture=STEPS_PICTURE)


def _steps_notes(drawn: pd.DataFrame, measured: pd.DataFrame) -> list[str]:
    every, ranks = measured["rank"].nunique(), drawn["rank"].nunique()
    steps = f"{duration(float(measured['dur_ns'].sum()))} in {len(measured):,} step{'s' * (len(measured) > 1)}"
    of_ranks = f" of {every} ranks" if every > 1 else ""
    limits = (
        [f"the first {MOST_STEPS} steps"]
        if measured.groupby("rank").size().max() > MOST_STEPS
        else []
    )
    if ranks < every:
        limits.append(f"the {ranks} ranks that wait most")
    notes = [
        f"Time of the training thread in the data loader, in % of each step; {steps}{of_ranks}."
    ]
    if (
        rate := measured.get("input_bytes", pd.Series(0)).sum()
        / (measured["dur_ns"].sum() or math.inf)
        * 1e9
    ):
        notes.append(
            f"Copies bring {size(rate)}/s from the CPU to the {'GPUs of each rank' if every > 1 else 'GPU'}."
        )
    return [*notes, f"Drawn are {' of '.join(limits)}."] if limits else notes


def _columns(rows: pd.DataFrame, scale: Unit, longest: float) -> alt.Chart:
    drawn = pd.DataFrame({"step": rows["step"], "share": rows["wait_frac"].map(percent)})
    wait = rows["wait_ns"]
    ends = [
        drawn.assign(
            part=part,
            begin=begin / scale.size,
            end=end / scale.size,
            time=(end - begin).map(duration),
        )
        for part, begin, end in zip(PARTS, (0 * wait, wait), (wait, rows["dur_ns"]), strict=True)
    ]
    shown = hover("step:O", "part", "time", ("share", "share waiting"))
    room = alt.Scale(domain=[0, 1.2 * longest / scale.size], nice=False)
    height = alt.Y(
        "begin:Q", title=f"time ({scale.symbol})", scale=room, axis=alt.Axis(tickCount=4)
    )
    colour = alt.Color("part:N", scale=colours(PARTS, {}, PARTS), title=None)
    channels = (_place(), height, alt.Y2("end"), colour, shown)
    return theme.marked(pd.concat(ends), "bar", *channels, width=alt.RelativeBandSize(band=0.8))


def _shares(rows: pd.DataFrame, scale: Unit) -> alt.Chart:
    columns = {
        "step": rows["step"],
        "end": rows["dur_ns"] / scale.size,
        "share": rows["wait_frac"].map(percent),
    }
    return theme.words(
        pd.DataFrame(columns), _place(), alt.Y("end:Q"), alt.Text("share:N"), align="center", dy=-7
    )


def _place() -> alt.X:
    return alt.X(
        "step:O", title="step", axis=alt.Axis(labelAngle=0, labelOverlap=True, ticks=False)
    )


def latency(times: pd.DataFrame, *, intercept_ns: float, slope_ns: float) -> alt.LayerChart:
    """Draw latencies against the batch size, and the line intercept + slope x batch; both axes begin at 0.

    `times`: columns batch_count and latency_ns, above 0. The line: ns at batch 0, and ns more for each sample.
    """
    checks.need(times, "batch_count", "latency_ns")
    if times["batch_count"].nunique() < 2:
        return nothing("No line to draw", TOO_FEW)
    ends = [0.0, ROOM * float(times["batch_count"].max())]
    line = pd.DataFrame(
        {"batch": ends, "ms": [(intercept_ns + slope_ns * end) / 1e6 for end in ends]}
    )
    rows = times.sort_values("batch_count", kind="stable", ignore_index=True)
    off = rows["latency_ns"] - (intercept_ns + slope_ns * rows["batch_count"])
    columns = {
        "batch": rows["batch_count"].astype(int),
        "ms": rows["latency_ns"] / 1e6,
        "words": rows["latency_ns"].map(duration),
        "off": [f"{'above' if gap > 0 else 'below'} by {duration(abs(gap))}" for gap in off],
        "rate": [
            number(b / (t / 1e9))
            for b, t in zip(rows["batch_count"], rows["latency_ns"], strict=True)
        ],
    }
    return layered(
        _layers(pd.DataFrame(columns), line),
        f"A batch takes {duration(intercept_ns)} and {duration(slope_ns)} for each sample",
        "Line: intercept and slope; dots: measured, with their distance from the line in the tooltip.",
        picture="Points, one for each batch size, beside a straight line",
        size=(WIDTH, HEIGHT),
    )


def _layers(drawn: pd.DataFrame, line: pd.DataFrame) -> list[alt.Chart]:
    right, top = (
        float(line["batch"].max()),
        ROOM * max(float(drawn["ms"].max()), float(line["ms"].max()) / ROOM),
    )
    sizes = alt.Axis(values=sorted(set(drawn["batch"])), gridOpacity=0.2)
    x = alt.X(
        "batch:Q",
        title="batch size (count)",
        scale=alt.Scale(domain=[0, right], nice=False),
        axis=sizes,
    )
    scale = alt.Scale(domain=[min(0.0, float(line["ms"].min())), top], nice=False)
    y = alt.Y("ms:Q", title="latency of a batch (ms)", scale=scale, axis=alt.Axis(gridOpacity=0.2))
    shown = hover(
        ("batch:Q", "batch size"),
        ("words", "latency"),
        ("rate", "samples/s"),
        ("off", "from the line"),
    )
    data = inline(drawn)
    straight = (
        alt.Chart(inline(line))
        .mark_line(color=GREY, strokeDash=[5, 4], tooltip=False)
        .encode(x=x, y=y)
    )
    points = (
        alt.Chart(data)
        .mark_point(color=MEASURED, filled=True, size=80, opacity=1)
        .encode(x=x, y=y, tooltip=shown)
    )
    return [straight, points, ink(data, dx=9, dy=9).encode(x, y, alt.Text("words:N"))]


def memory(bins: pd.DataFrame, peaks: pd.DataFrame) -> alt.LayerChart | alt.VConcatChart:
    """Draw the allocated and the reserved memory of each GPU over time, and mark where most is allocated.

    Of more than 8 GPUs those with the highest peaks are shown, which the chart says; the host's memory where no GPU's
    is.
    `bins`: columns rank, gpu, start_ns, dur_ns, min_allocated_bytes, max_allocated_bytes, max_reserved_bytes (missing
    where not recorded), as from `analysis.memory.bins`, about 500 of them. `peaks`: columns rank, gpu, allocated_bytes,
    time_ns, max_reserved_bytes: one row per device, of the same window.
    """
    checks.need(bins, *DEVICE, "start_ns", "dur_ns", *LEVELS)
    checks.need(peaks, *DEVICE, "allocated_bytes", "time_ns", "max_reserved_bytes")
    seen = bins[bins["gpu"] != HOST] if (bins["gpu"] != HOST).any() else bins
    highest = peaks.merge(seen[DEVICE].drop_duplicates(), on=DEVICE)
    if highest.empty:
        return nothing("No memory was recorded", NO_MEMORY)
    highest = highest.assign(label=devices(highest).str.replace("unknown GPU", "host memory"))
    highest = highest.sort_values("allocated_bytes", ascending=False, kind="stable")
    shown = highest.head(MOST_PANELS).sort_values(DEVICE)
    rows = seen.merge(shown[[*DEVICE, "label"]], on=DEVICE)
    begin, end = int(rows["start_ns"].min()), int((rows["start_ns"] + rows["dur_ns"]).max())
    most = float(rows[LEVELS].max().max())
    frame = _Frame(begin, end, most, unit(end - begin, TIME), unit(most, BYTES))
    height = 240 if len(shown) == 1 else 90
    pictures = []
    for peak in shown.to_dict("records"):
        layers = [
            *_levels(_memory_rows(rows[rows["label"] == peak["label"]], frame), frame),
            *_peak_marks(peak, frame),
        ]
        pictures.append(
            theme.panel(layers, str(peak["label"]), picture=MEMORY_PICTURE, size=(WIDTH, height))
        )
    is_lacking = rows["max_reserved_bytes"].isna().all()
    line = (
        "Reserved memory was not recorded."
        if is_lacking
        else "Line: reserved by the caching allocator."
    )
    length = duration(float(rows["dur_ns"].max()))
    notes = [f"Filled: held by tensors, fainter up to the most within each {length}. {line}"]
    if len(shown) < len(highest):
        notes.append(f"These are the highest {len(shown)} of {len(highest)} peaks.")
    first, reserved = highest.iloc[0], highest["max_reserved_bytes"].iloc[0]
    beside = "" if pd.isna(reserved) else f", at most {size(reserved)} reserved"
    title = f"At most {size(first['allocated_bytes'])} allocated on {first['label']}{beside}"
    return theme.together(pictures, title, notes, picture=MEMORY_PICTURE)


def _memory_rows(rows: pd.DataFrame, frame: _Frame) -> pd.DataFrame:
    """Return the levels in the units of the axes; a last row ends the last bin."""
    low, high, reserved = (rows[column] for column in LEVELS)
    end = (rows["start_ns"] + rows["dur_ns"]) / frame.time.size
    columns = {
        "time": rows["start_ns"] / frame.time.size,
        "end": end,
        "least": low / frame.memory.size,
        "most": high / frame.memory.size,
        "reserved": reserved / frame.memory.size,
        "allocated": low.map(size).where(low == high, low.map(size) + " to " + high.map(size)),
        "held": reserved.map(size),
        "filled": "allocated",
        "line": "reserved",
    }
    drawn = pd.DataFrame(columns)
    return pd.concat([drawn, drawn.iloc[-1:].assign(time=end.iloc[-1])], ignore_index=True)


def _memory_time(frame: _Frame) -> alt.X:
    ends = alt.Scale(
        domain=[frame.first / frame.time.size, frame.last / frame.time.size], nice=False, zero=False
    )
    return alt.X(
        "time:Q", title=f"time since the start of the capture ({frame.time.symbol})", scale=ends
    )


def _memory_axis(field: str, frame: _Frame) -> alt.Y:
    """An axis of memory, with room for words above the levels."""
    room = alt.Scale(domain=[0, 1.25 * frame.most / frame.memory.size or 1], nice=False)
    return alt.Y(
        f"{field}:Q",
        title=f"memory ({frame.memory.symbol})",
        scale=room,
        axis=alt.Axis(tickCount=4),
    )


def _levels(drawn: pd.DataFrame, frame: _Frame) -> list[alt.Chart]:
    """Return the filled levels, the line, and over each bin what tells its numbers."""
    data, x = inline(drawn), _memory_time(frame)
    shown = list(MEMORY_COLOURS) if drawn["reserved"].notna().any() else ["allocated"]
    shades = alt.Scale(domain=shown, range=[MEMORY_COLOURS[series] for series in shown])
    filled, line = (alt.Color(f"{name}:N", scale=shades, title=None) for name in ("filled", "line"))
    area = alt.Chart(data).mark_area(
        interpolate="step-after", line=False, tooltip=False, opacity=0.85
    )
    paler = alt.Chart(data).mark_area(
        interpolate="step-after", line=False, tooltip=False, opacity=0.4
    )
    steps = alt.Chart(data).mark_line(interpolate="step-after", strokeWidth=2, tooltip=False)
    strips = alt.Chart(inline(drawn.iloc[:-1])).mark_rect(opacity=0)
    tips = hover(
        ("time", f"bin starts at ({frame.time.symbol})", ",.6~g"),
        "allocated",
        ("held", "reserved, at most"),
    )
    reserved = [steps.encode(x, _memory_axis("reserved", frame), line)] if len(shown) > 1 else []
    return [
        area.encode(x, _memory_axis("least", frame), filled),
        paler.encode(x, _memory_axis("least", frame), alt.Y2("most"), filled),
        *reserved,
        strips.encode(x, alt.X2("end"), tips, y=alt.value(0), y2=alt.value("height")),
    ]


def _peak_marks(peak: dict[Hashable, Any], frame: _Frame) -> list[alt.Chart]:
    """Return a point where most is allocated, and words above it that stay inside the picture."""
    at = int(peak["time_ns"])
    side = "left" if at - frame.first < (frame.last - frame.first) / 2 else "right"
    place = {"time": at / frame.time.size, "most": peak["allocated_bytes"] / frame.memory.size}
    rows = pd.DataFrame([{**place, "said": f"peak {size(peak['allocated_bytes'])}"}])
    point = alt.Chart(inline(rows)).mark_point(
        filled=True, size=40, opacity=1, color="#808080", tooltip=False
    )
    rule = alt.Chart(inline(rows)).mark_rule(color="#808080", strokeDash=[3, 3], tooltip=False)
    words = ink(inline(rows), dx=4 if side == "left" else -4, align=side)
    x, y = _memory_time(frame), _memory_axis("most", frame)
    return [
        rule.encode(x, y, y2=alt.value(0)),
        point.encode(x, y),
        words.encode(x, alt.Text("said:N"), y=alt.value(7)),
    ]

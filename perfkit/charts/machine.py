"""Pictures of what a machine can do with typical operations, of a training's iterations, and of how it scales.

A solid roof is that of the data sheet, a dashed one what was measured. Each operation of `roofline` lies on its roof:
as fast as it can be, not as fast as it was. Both axes of `scaling_efficiency` are logarithmic, so that the ideal is
straight.
"""

import math

import altair as alt
import numpy as np
import pandas as pd

from perfkit.charts import roofline as charts_roofline
from perfkit.charts import shares, theme
from perfkit.charts.checks import known, need
from perfkit.charts.roofline import (
    BYTES,
    FLOPS,
    HEIGHT,
    LEVELS,
    ROOF_COLOUR,
    Frame,
    axes_of,
    precision,
    rate,
)
from perfkit.charts.theme import (
    FAMILY_COLOURS,
    LINE_COLOURS,
    WIDTH,
    colours,
    hover,
    ink,
    inline,
    layered,
    nothing,
)
from perfkit.format import TIME, Unit, duration, number, percent, printable, size, unit

PHASE_COLOURS = {
    "forward pass": theme.KIND_COLOURS["computation"],
    "backward pass": FAMILY_COLOURS["convolution"],
    "optimizer step": FAMILY_COLOURS["optimizer"],
    "rest of the iteration": theme.KIND_COLOURS["idle"],
}
SHEET, MEASURED = "data sheet", "measured"
OPERATIONS = (
    "operation",
    "family",
    "intensity",
    "flops",
    "bytes",
    "attainable_flops_per_s",
    "peak_frac",
    "bound",
)
NO_MACHINE = (
    "Peak and memory bandwidth of the GPU are not known. Measure them with `perfkit baseline gemm` and "
    "`perfkit baseline copy`, and give the CSV file as --peaks."
)
LINE = 15  # pixels between two words
NEAR = 10  # pixels between a point and its word
SLOPE_WORDS = 0.75  # of the way up the slope, where few operations lie
MEASURED_COLOUR, GREY = theme.KIND_COLOURS["computation"], "#808080"
LONGEST_WORK = 30  # characters
MOST_TICKS = 12
FIGURES = ["gpus", "throughput_per_s", "baseline_gpus", "efficiency_frac"]
ONE_SIZE = (
    "Scaling compares runs on different numbers of GPUs. Measure the same training on at least two."
)
MOST_LOGS = len(LINE_COLOURS)
NO_ITERATION = "The log of a training has a line for each iteration, with the time that it took."
COLUMNS = ("rank", "time_ns", "count", "median_ns", "least_ns", "most_ns", "chosen")


def roofline(operations: pd.DataFrame, ceilings: pd.DataFrame, *, roof: str) -> alt.LayerChart:
    """Draw typical operations on the roof of a machine, each with its name.

    `operations`: columns of `operations.attainable`; those without FLOP are left out, which the chart says. `ceilings`:
    columns roof, flops_per_s, measured_flops_per_s, bytes_per_s, measured_bytes_per_s, as from
    `llm_operations.ceilings`. `roof`: the precision whose peak is drawn, such as "bf16_tensor".
    """
    need(operations, *OPERATIONS)
    rates = ("flops_per_s", "measured_flops_per_s", "bytes_per_s", "measured_bytes_per_s")
    need(ceilings, "roof", *rates)
    known(operations, "family", FAMILY_COLOURS)
    placed = operations[operations["intensity"] > 0].sort_values(
        "intensity", ascending=False, kind="stable", ignore_index=True
    )
    roofs = {kind: both for kind, both in _roofs(ceilings, roof).items() if len(both) == 2}
    if placed.empty or not roofs:
        return nothing("No machine to compare with", NO_MACHINE)
    first = next(iter(roofs.values()))
    ridges = charts_roofline.ridge_layers(first)
    columns = {
        "operation": placed["operation"],
        "family": placed["family"].astype("string"),
        "intensity": placed["intensity"],
        "performance": placed["attainable_flops_per_s"],
        "rate": placed["attainable_flops_per_s"].map(lambda value: rate(value, FLOPS)),
        "share": placed["peak_frac"].map(percent),
        "bound": placed["bound"].astype("string"),
        "bytes": placed["bytes"].map(size),
        "flops": placed["flops"],
    }
    drawn = pd.DataFrame(columns)
    frame = charts_roofline.frame_of(drawn, first, ridges)
    frame = frame._replace(bottom=frame.bottom / 15)  # room for words below the lowest points
    drawn = drawn.assign(**_words(drawn, frame))
    axes = axes_of(frame, LEVELS["dram"])
    memory = int((placed["bound"] == "memory").sum())
    without = operations["operation"][~(operations["intensity"] > 0)]
    moved = (
        f"Without a place, because it computes nothing: {', '.join(without)}."
        if len(without)
        else ""
    )
    ridge = charts_roofline.ridge_marks(ridges, axes)
    return layered(
        [*_lines(roofs, frame, axes), *ridge, *_operations(drawn, axes)],
        f"Memory limits {memory} of {len(placed)} typical operations",
        f"As fast as the roof allows, each tensor moved once. {moved}".strip(),
        picture="Roofline on logarithmic axes, a point for each typical operation",
        size=(WIDTH, HEIGHT),
    )


def _roofs(ceilings: pd.DataFrame, roof: str) -> dict[str, pd.DataFrame]:
    """Return slope and height of the data sheet's roof and of the measured one, as far as they are known."""
    roofs = {}
    for kind, prefix in ((SHEET, ""), (MEASURED, "measured_")):
        slopes = ceilings.loc[ceilings["roof"].eq("dram"), f"{prefix}bytes_per_s"].dropna()
        heights = ceilings.loc[ceilings["roof"].eq(roof), f"{prefix}flops_per_s"].dropna()
        rows = [(slope, np.nan, f"memory {rate(slope, BYTES)}", kind) for slope in slopes]
        rows += [
            (np.nan, height, f"{precision(roof)} {rate(height, FLOPS)}", kind) for height in heights
        ]
        roofs[kind] = pd.DataFrame(rows, columns=["slope", "height", "label", "source"])
    return roofs


def _words(drawn: pd.DataFrame, frame: Frame) -> dict[str, pd.Series]:
    """Return the places of the words: right of and below each point, below each other, by falling intensity."""
    up = HEIGHT / np.log10(frame.top / frame.bottom)
    across = WIDTH / np.log10(frame.right / frame.left)
    below = np.log10(drawn["performance"].to_numpy("float64")) - NEAR / up
    steps = np.arange(len(drawn)) * LINE / up
    height = np.minimum.accumulate(below + steps) - steps
    return {
        "word_x": drawn["intensity"] * 10 ** (2 * NEAR / across),
        "word_y": pd.Series(10**height, drawn.index),
    }


def _lines(
    roofs: dict[str, pd.DataFrame], frame: Frame, axes: tuple[alt.X, alt.Y]
) -> list[alt.Chart]:
    """Return the roofs and the words of the first; a legend tells them apart where there are two."""
    ends = [charts_roofline.lines(both, frame) for both in roofs.values()]
    ends = [part.assign(line=part["source"] + part["line"].astype(str)) for part in ends]
    rows = pd.concat(ends)
    dashes = alt.Scale(domain=list(roofs), range=[[1, 0], [5, 4]][: len(roofs)])
    legend = (
        alt.Legend(symbolType="stroke", symbolStrokeColor=ROOF_COLOUR) if len(roofs) > 1 else None
    )
    strokes = alt.Chart(inline(rows.drop(columns="label"))).mark_line(
        color=ROOF_COLOUR, strokeWidth=1.5
    )
    shown = hover("roof", ("source", "from"))
    kind = alt.StrokeDash("source:N", scale=dashes, title=None, legend=legend)
    drawn = strokes.encode(*axes, alt.Detail("line:N"), alt.Order("intensity:Q"), kind, shown)
    # The name of the slope stands in its upper half, that of the height at its right end.
    named, of_first = next(iter(roofs.values())), ends[0]
    slope, height = (named.loc[named[part].notna()].iloc[0] for part in ("slope", "height"))
    first, last = (
        of_first.loc[of_first["roof"] == slope["label"], "intensity"].agg(end)
        for end in ("min", "max")
    )
    at = first * (last / first) ** SLOPE_WORDS
    places = [(at, at * slope["slope"], slope["label"])]
    places += [(of_first["intensity"].max(), height["height"], height["label"])]
    named = pd.DataFrame(places, columns=["intensity", "performance", "label"])
    return [drawn, charts_roofline.text(named, axes, 4)]


def _operations(drawn: pd.DataFrame, axes: tuple[alt.X, alt.Y]) -> list[alt.Chart]:
    data, (x, y) = inline(drawn), axes
    colour = alt.Color("family:N", scale=colours(FAMILY_COLOURS, {}, drawn["family"]), title=None)
    shown = hover(
        "operation",
        ("intensity", "FLOP/byte", ",.4~g"),
        ("rate", "at most"),
        ("share", "of the peak"),
    )
    shown += hover(("bound", "limited by"), ("flops", "FLOP", ".3~s"), ("bytes", "bytes"))
    word_x, word_y = x.copy(), y.copy()
    word_x.shorthand, word_y.shorthand = "word_x:Q", "word_y:Q"
    lead = alt.Chart(data).mark_rule(
        color=ROOF_COLOUR, strokeWidth=0.75, opacity=0.7, tooltip=False
    )
    point = alt.Chart(data).mark_point(filled=True, size=75, opacity=1)
    words = ink(data, dx=3, baseline="middle").encode(word_x, word_y, alt.Text("operation:N"))
    return [
        lead.encode(x, y, alt.X2("word_x"), alt.Y2("word_y")),
        point.encode(x, y, colour, shown),
        words,
    ]


def iterations(frame: pd.DataFrame) -> alt.LayerChart | alt.VConcatChart:
    """Draw how long iterations took over the course of a log; iterations outside the choice are fainter.

    `frame`: columns rank, time_ns, count, median_ns, least_ns, most_ns and chosen, as from
    `diagnosis.machine.iterations`. Of more than 8 logs the first 8 are drawn, which the chart says.
    """
    need(frame, *COLUMNS)
    if frame.empty:
        return nothing("No iterations", NO_ITERATION)
    ranks = sorted(set(frame["rank"]))
    rows = frame[frame["rank"].isin(ranks[:MOST_LOGS])]
    length = unit(float(rows["most_ns"].max()), TIME)
    left_out, every = int(rows.loc[~rows["chosen"], "count"].sum()), int(rows["count"].sum())
    groups = "Points: medians of neighbouring iterations; bars: from the least to the most."
    notes = [
        groups
        if (rows["count"] > 1).any()
        else "Points: iterations, at the time when their line was written."
    ]
    if left_out:
        notes.append(f"Fainter: {left_out:,} of {every:,} iterations lie outside the window.")
    if len(ranks) > MOST_LOGS:
        notes.append(f"These are the first {MOST_LOGS} of {len(ranks)} logs.")
    time = unit(float(rows["time_ns"].max()), TIME)
    columns = {
        **{name: rows[f"{name}_ns"] / length.size for name in ("median", "least", "most")},
        "log": "log " + rows["rank"].astype(str),
        "time": rows["time_ns"] / time.size,
        "symbol": time.symbol,
        "count": rows["count"],
        "told": rows["median_ns"].map(duration),
        "shade": rows["chosen"].map({True: 1.0, False: 0.3}),
    }
    return layered(
        _iteration_layers(pd.DataFrame(columns), length),
        _iterations_title(rows),
        notes,
        picture="Points for the times of iterations over the time of the log",
        size=(WIDTH, 200),
    )


def phases(frame: pd.DataFrame) -> alt.LayerChart:
    """Draw how an iteration of each log splits into its phases.

    `frame`: columns rank, phase (as in PHASE_COLOURS) and median_ns, as from `diagnosis.machine.phases`.
    """
    need(frame, "rank", "phase", "median_ns")
    known(frame, "phase", PHASE_COLOURS)
    rows = frame[frame["median_ns"] > 0]
    if rows.empty:
        return nothing("No phases", "The log prints no time of a forward or backward pass.")
    rows = rows.sort_values("rank", kind="stable", ignore_index=True)
    share = rows["median_ns"] / rows.groupby("rank")["median_ns"].transform("sum")
    begin, end = shares.ends(share, rows["rank"])
    told = {"share": share.map(percent), "told": rows["median_ns"].map(duration)}
    label = "log " + rows["rank"].astype(str) if len(set(rows["rank"])) > 1 else "iteration"
    drawn = pd.DataFrame(
        {"label": label, "phase": rows["phase"], "begin": begin, "end": end, **told}
    )
    most = drawn.iloc[share.argmax()]
    shades = colours(PHASE_COLOURS, {}, drawn["phase"])
    tips = hover("label", "phase", "share", ("told", "time"))
    return layered(
        [
            shares.bars(drawn, "phase", shades, axis="share of the iteration", shown=tips),
            shares.figures(drawn, "phase", ["forward pass"]),
        ],
        f"The {most['phase']} takes {most['share']} of the {most['label'].replace('log', 'iteration of log')}",
        "Medians over the iterations of the log.",
        picture=f"Stacked bar of {', '.join(drawn['phase'].unique())}",
        size=(WIDTH, alt.Step(34)),
    )


def _iterations_title(rows: pd.DataFrame) -> str:
    """Say what an iteration takes in each log, or from least to most where there are several."""
    chosen = rows[rows["chosen"]]
    medians = (chosen if len(chosen) else rows).groupby("rank")["median_ns"].median()
    if len(medians) > 1:
        return f"The median iteration takes {duration(medians.min())} to {duration(medians.max())}, by log"
    return f"The median iteration takes {duration(medians.iloc[0])}, the first {duration(rows['median_ns'].iloc[0])}"


def _iteration_layers(drawn: pd.DataFrame, length: Unit) -> list[alt.Chart]:
    data, logs = inline(drawn.drop(columns="symbol")), drawn["log"].unique().tolist()
    since = f"time since the first line of the log ({drawn['symbol'].iloc[0]})"
    x = alt.X("time:Q", title=since, scale=alt.Scale(nice=False), axis=alt.Axis(tickCount=8))
    y = alt.Y(
        "median:Q", title=f"time of an iteration ({length.symbol})", scale=alt.Scale(zero=True)
    )
    shades = alt.Scale(domain=logs, range=list(LINE_COLOURS[: len(logs)]))
    colour = alt.Color(
        "log:N",
        title=None,
        scale=shades,
        legend=alt.Legend(symbolOpacity=1) if len(logs) > 1 else None,
    )
    shade = alt.Opacity("shade:Q", scale=None, legend=None)
    shown = hover("log", ("told", "time"), ("count", "iterations", ","))
    span = alt.Chart(data).mark_rule(strokeWidth=1.5, tooltip=False)
    point = alt.Chart(data).mark_point(filled=True, size=45)
    return [
        span.encode(x, alt.Y("least:Q"), alt.Y2("most"), colour, shade),
        point.encode(x, y, colour, shade, shown),
    ]


def scaling_efficiency(scaling: pd.DataFrame, *, work: str = "work") -> alt.LayerChart:
    """Draw the throughput against the number of GPUs, the ideal, and what share of it each run reaches.

    `scaling`: columns gpus, throughput_per_s, baseline_gpus, efficiency_frac, all above 0, one row per run, as from
    `analysis.efficiency.scaling`. `work`: what the throughput counts: tokens, samples, steps.
    """
    need(scaling, *FIGURES)
    for column in FIGURES:
        if not (scaling[column] > 0).all():
            raise ValueError(f"{column}: {scaling[column].min()} is not above 0")
    if scaling["gpus"].nunique() < 2:
        return nothing("Nothing to compare", ONE_SIZE)
    runs = scaling.sort_values(["gpus", "throughput_per_s"], kind="stable", ignore_index=True)
    drawn, what = _scaling_rows(runs), f"{printable(work, LONGEST_WORK)}/s"
    most = runs["gpus"].max()
    reached = _shares(runs.loc[runs["gpus"] == most, "efficiency_frac"])
    return layered(
        _scaling_layers(drawn, what),
        f"{most:,} GPUs reach {reached} of the ideal throughput",
        _scaling_notes(runs, what),
        picture="Points on logarithmic axes, one for each run, beside the ideal line",
        size=(WIDTH, 320),
    )


def _shares(efficiency: pd.Series) -> str:
    low, high = percent(efficiency.min()), percent(efficiency.max())
    return low if low == high else f"{low} to {high}"


def _scaling_notes(runs: pd.DataFrame, what: str) -> list[str]:
    first = runs.iloc[0]
    base, share = (
        first["baseline_gpus"],
        first["throughput_per_s"] / first["efficiency_frac"] / first["gpus"],
    )
    smallest = f"{base:,} GPUs" if base > 1 else "1 GPU"
    note = f"Dashed: the ideal, {number(share)} {what} for each GPU as on {smallest}; figures: share of the ideal."
    above = "Above 100 %: check that all runs do the same work per step, and that nothing slowed the smallest."
    return [note, above] if (runs["efficiency_frac"] > 1).any() else [note]


def _scaling_rows(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs; `words` stand at the slowest on each number of GPUs, which is the first of them."""
    ideal = runs["throughput_per_s"] / runs["efficiency_frac"]
    words = runs["gpus"].map(runs.groupby("gpus")["efficiency_frac"].agg(_shares))
    columns = {
        "gpus": runs["gpus"],
        "throughput": runs["throughput_per_s"],
        "ideal": ideal,
        "share": runs["efficiency_frac"].map(percent),
        "told": runs["throughput_per_s"].map(number),
        "best": ideal.map(number),
        "words": words.mask(runs["gpus"].duplicated(), ""),
    }
    return pd.DataFrame(columns)


def _axes(drawn: pd.DataFrame, what: str) -> tuple[alt.X, alt.Y]:
    few, most = int(drawn["gpus"].min()), int(drawn["gpus"].max())
    across = alt.Scale(
        type="log", base=2, domain=[few / 1.2, most * (most / few) ** 0.12], nice=False
    )
    ticks = sorted(set(drawn["gpus"]))
    if len(ticks) > MOST_TICKS:  # the smallest, its doubles and the largest
        ticks = sorted({*(few * 2**step for step in range(int(math.log2(most / few)) + 1)), most})
    counts = alt.Axis(values=ticks, format=",", gridOpacity=0.2)
    x = alt.X("gpus:Q", title="GPUs (count, logarithmic)", scale=across, axis=counts)
    ends = (
        drawn[["throughput", "ideal"]]
        .agg(["min", "max"])
        .agg({"throughput": "min", "ideal": "max"})
    )
    room = alt.Scale(type="log", domain=[ends["throughput"] / 1.4, ends["ideal"] * 1.2], nice=False)
    rates = alt.Axis(format="~s", tickCount=6, gridOpacity=0.2)
    return x, alt.Y(
        "throughput:Q", title=f"throughput ({what}, logarithmic)", scale=room, axis=rates
    )


def _scaling_layers(drawn: pd.DataFrame, what: str) -> list[alt.Chart]:
    """Return the ideal, what is lost, the runs, and their figures."""
    data, (x, y) = inline(drawn), _axes(drawn, what)
    ideal = y.copy()
    ideal.shorthand = "ideal:Q"
    shown = hover(
        ("gpus", "GPUs", ","), ("told", f"throughput ({what})"), ("best", f"ideal ({what})")
    )
    shown += hover(("share", "share of the ideal"))
    rows = alt.Chart(data)
    return [
        rows.mark_line(color=GREY, strokeDash=[5, 4], strokeWidth=1.5, tooltip=False).encode(
            x, ideal
        ),
        rows.mark_rule(color=MEASURED_COLOUR, opacity=0.35, tooltip=False).encode(
            x, y, alt.Y2("ideal")
        ),
        rows.mark_line(color=MEASURED_COLOUR, strokeWidth=1.5, tooltip=False).encode(x, y),
        rows.mark_point(color=MEASURED_COLOUR, filled=True, size=70, opacity=1).encode(x, y, shown),
        ink(data, dx=9, dy=9).encode(x, y, alt.Text("words:N")),
    ]

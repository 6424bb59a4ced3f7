"""Pictures of which kernels take the time; no share is of the wall clock.

In `formats` a part is filled if it runs on tensor cores, pale if not, dashed if unknown.
"""

from math import pi
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from perfkit.charts import shares, theme
from perfkit.charts.checks import fraction, known, need
from perfkit.charts.theme import FAMILY_COLOURS, WIDTH, colours, hover, inline, layered, nothing
from perfkit.charts.timeline import TICK
from perfkit.format import TIME, Unit, duration, elided, percent, printable, unit
from perfkit.names.parts import STALLS

FORMAT_COLOURS = theme.COLOURS["format"]
FORMAT_NAMES = {**{key: key.upper() for key in FORMAT_COLOURS}, "unknown": "unknown"}
TENSOR_CORES = {
    "yes": "on tensor cores",
    "no": "not on tensor cores",
    "unknown": "tensor cores unknown",
}
FAMILIES = {"gemm": "GEMM", "convolution": "convolution", "attention": "attention"}
SOURCES = {"name": "the kernel's name", "operands": "the operator's inputs", "none": "nothing"}
DARK = ["fp64", "fp32", "bf16", "fp8"]  # formats on which white text reads better
DASHES = [[1, 0], [1, 0], [4, 3]]
LOOKS = {"yes": "yes (filled)", "no": "no (pale)", "unknown": "unknown (dashed)"}
LEGAL = {
    "family": FAMILIES,
    "format": FORMAT_COLOURS,
    "tensor_cores": TENSOR_CORES,
    "source": SOURCES,
}
ROOM, SMALLEST_LABEL = (
    0.17,
    0.08,
)  # of the longest bar: what all words of a part take, and the format with its share
LONGEST_LABEL, LABEL_WIDTH = 62, 360  # characters and pixels in front of a bar
LONGEST_NAME = 400  # characters in a tooltip
# Okabe and Ito's colours, told apart by colour-blind readers; grey for the rest, as idle elsewhere.
SHADES = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999"]
ISSUING, OTHER_REASONS = "selected", "other reasons"
LONGEST_STALLED, LONGEST_LEGEND = 46, 20  # characters
MEANINGS = STALLS  # HPCToolkit's reasons for people
NO_LAUNCH = "No launch was recorded. Record with `hpcrun -e gpu=nvidia` (amd, level0)."
# Host time of one launch, ns: a range of what NVIDIA's guide and measurements of cudaLaunchKernel name, 2 to 20 µs.
COST = (5_000, 10_000)
MOST_LABELS, LONGEST_BAR_LABEL = 4, 34  # kernels with a name, and its characters
AREA = (14, 1_400)  # square pixels
COLUMNS = 40  # of a histogram


def bars(summary: pd.DataFrame, *, top: int = 15) -> alt.LayerChart:
    """Draw the GPU time of the kernels that take most of it, and of all others together.

    `summary`: columns name, family, count, total_ns, share_frac (0..1, of the frame's total): one row per kernel, in
    any order. `top`: number of kernels with a bar of their own, at least 1.
    """
    need(summary, "name", "family", "count", "total_ns", "share_frac")
    known(summary, "family", FAMILY_COLOURS)
    if top < 1:
        raise ValueError(f"top: {top} is not at least 1")
    if summary.empty:
        return nothing("No kernels", "No kernel ran in this window.")
    drawn = _rows(summary.sort_values("total_ns", ascending=False, kind="stable"), top)
    scale = unit(float(drawn["total_ns"].max()), TIME)
    drawn = drawn.assign(time=drawn["total_ns"] / scale.size).drop(columns="total_ns")
    labels = alt.Axis(labelLimit=LABEL_WIDTH, labelFontSize=11)
    place = alt.Y("label:N", title=None, sort=drawn["label"].tolist(), axis=labels)
    room = alt.Scale(domain=[0, 1.28 * float(drawn["time"].max()) or 1], nice=False)
    length_tip = ("time", f"GPU time ({scale.symbol})", ",.4~g")
    shown = hover(("name", "kernel"), "family", ("count", "launches", ","), length_tip, "share")
    colour = alt.Color("family:N", scale=colours(FAMILY_COLOURS, {}, drawn["family"]), title=None)
    length = alt.X("time:Q", title=f"GPU time ({scale.symbol})", scale=room)
    bars = theme.marked(
        drawn, "bar", length, place, colour, shown, height=alt.RelativeBandSize(band=0.76)
    )
    return layered(
        [bars, theme.words(drawn, alt.X("time:Q"), place, alt.Text("share:N"), dx=4)],
        f"{drawn['label'].iloc[0]} takes {drawn['share'].iloc[0]} of GPU kernel time",
        f"Of {duration(float(summary['total_ns'].sum()))} in all; what overlaps counts in full.",
        picture=f"Bars of GPU time, {len(drawn)} rows, coloured by kind of kernel",
        size=(WIDTH - 180, alt.Step(22)),
    )


def durations(kernels: pd.DataFrame) -> alt.LayerChart:
    """Draw how long the launches of the kernel that takes most time last, as a histogram.

    `kernels`: columns name, dur_ns: one row per launch.
    """
    need(kernels, "name", "dur_ns")
    if kernels.empty:
        return nothing("No kernels", "No kernel ran in this window.")
    total = kernels.groupby("name", observed=True)["dur_ns"].sum()
    name = str(total.idxmax())
    lengths = kernels.loc[kernels["name"] == name, "dur_ns"].to_numpy(np.float64)
    # The length of a launch: the mean of the middle two lies between two hills, where none is.
    middle = float(np.quantile(lengths, 0.5, method="lower"))
    longest = float(lengths.max())
    scale = unit(longest, TIME)
    count, edges = np.histogram(lengths / scale.size, bins=COLUMNS)
    drawn = pd.DataFrame({"lower": edges[:-1], "upper": edges[1:], "launches": count})
    length = alt.X("lower:Q", title=f"duration ({scale.symbol})", scale=alt.Scale(zero=False))
    height = alt.Y("launches:Q", title="launches (count)")
    tips = (("lower", "from", ",.4~g"), ("upper", "to", ",.4~g"), ("launches", "launches", ","))
    # From the axis up: beside a length that begins and ends, Vega-Lite draws a height as a line.
    channels = (length, alt.X2("upper"), height, alt.Y2Datum(0), hover(*tips))
    drawn_as = {"color": theme.KIND_COLOURS["computation"], "stroke": "#808080", "strokeWidth": 0.4}
    half = f"half of its {len(lengths):,} launches take up to {duration(middle)}"
    return layered(
        [theme.marked(drawn, "rect", *channels, **drawn_as)],
        f"{elided(name, LONGEST_BAR_LABEL)}: {half}, the longest {duration(longest)}",
        "The kernel with the most time of those chosen; a second hill is other work, or another clock.",
        picture="Histogram of the durations of one kernel",
        size=(WIDTH, 160),
    )


def _rows(ordered: pd.DataFrame, top: int) -> pd.DataFrame:
    """Return what is drawn: the first `top` kernels, and one row that sums the rest."""
    shown, rest = ordered.head(top), ordered.iloc[top:]
    columns = {
        "label": _unique([elided(name, LONGEST_LABEL) for name in shown["name"]]),
        "name": [printable(name, LONGEST_NAME) for name in shown["name"]],
        "family": shown["family"].astype("string").fillna("other"),
        "count": shown["count"],
        "total_ns": shown["total_ns"],
        "share": shown["share_frac"].map(percent),
    }
    rows = pd.DataFrame(columns)
    if rest.empty:
        return rows
    label = f"{len(rest)} other kernels" if len(rest) > 1 else "1 other kernel"
    others = {
        "label": label,
        "name": label,
        "family": "other",
        "count": rest["count"].sum(),
        "total_ns": rest["total_ns"].sum(),
        "share": percent(rest["share_frac"].sum()),
    }
    return pd.concat([rows, pd.DataFrame([others])], ignore_index=True)


def _unique(labels: list[str]) -> list[str]:
    """Number labels that became equal by shortening: equal labels would share one bar."""
    seen: dict[str, int] = {}
    numbered = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        numbered.append(label if seen[label] == 1 else f"({seen[label]}) {label}")
    return numbered


def formats(shares: pd.DataFrame) -> alt.LayerChart:
    """Draw how the time of GEMMs, convolutions and attention splits by number format, on tensor cores or not.

    `shares`: columns family (gemm, convolution or attention), format, tensor_cores (yes, no or unknown), source (name,
    operands or none), count, total_ns, share_frac (0..1, of the time of all rows); in any order.
    """
    need(shares, "family", "format", "tensor_cores", "source", "count", "total_ns", "share_frac")
    for column, legal in LEGAL.items():
        known(shares, column, legal)
    fraction(shares, "share_frac")
    timed = shares[shares["total_ns"] > 0].astype(dict.fromkeys(LEGAL, str))
    if timed.empty:
        return nothing(
            "No matrix work",
            "No GEMM, convolution or attention kernel ran in this window.",
        )
    scale = unit(float(timed.groupby("family")["total_ns"].sum().max()), TIME)
    drawn = _format_segments(timed, scale)
    time = timed.groupby("tensor_cores")["total_ns"].sum()
    cores = [
        f"{percent(time[key] / time.sum())} {words}" for key, words in LOOKS.items() if key in time
    ]
    return layered(
        [_format_bars(drawn, scale), *_words(drawn)],
        _title(timed),
        f"Tensor cores: {', '.join(cores)}; of {duration(float(time.sum()))} in {int(timed['count'].sum()):,} kernels.",
        picture=f"Stacked bars of {', '.join(drawn['format'].unique())} for {', '.join(drawn['family'].unique())}",
        size=(WIDTH - 60, alt.Step(58)),
    )


def _title(timed: pd.DataFrame) -> str:
    per_format = timed.groupby("format")["share_frac"].sum()
    first = str(per_format.idxmax())
    share = percent(min(float(per_format[first]), 1.0))
    if first == "unknown":
        return f"The number format of {share} of the matrix work is unknown"
    return f"{share} of the time of the matrix work is in {FORMAT_NAMES[first]}"


def _format_segments(timed: pd.DataFrame, scale: Unit) -> pd.DataFrame:
    """Return one row per part, end to end within its family; the family with most time first."""
    place = timed["format"].map(list(FORMAT_COLOURS).index) * len(LOOKS) + timed[
        "tensor_cores"
    ].map(list(LOOKS).index)
    whole = timed.groupby("family")["total_ns"].transform("sum")
    order = timed.assign(place=place, whole=whole).sort_values(
        ["whole", "family", "place"], ascending=[False, True, True], kind="stable"
    )
    end = order.groupby("family", sort=False)["total_ns"].cumsum()
    columns = {
        "family": order["family"].map(FAMILIES),
        "key": order["format"],
        "format": order["format"].map(FORMAT_NAMES),
        "cores": order["tensor_cores"].map(TENSOR_CORES),
        "filled": order["tensor_cores"].map({"yes": 1.0, "no": 0.55, "unknown": 0.2}),
        "source": order["source"].map(SOURCES),
        "begin": (end - order["total_ns"]) / scale.size,
        "end": end / scale.size,
        "count": order["count"],
        "time": order["total_ns"].map(duration),
        "share": order["share_frac"].map(percent),
    }
    return pd.DataFrame(columns)


def _format_bars(drawn: pd.DataFrame, scale: Unit) -> alt.Chart:
    dashed = alt.Scale(domain=list(TENSOR_CORES.values()), range=DASHES)
    shades = colours(FORMAT_COLOURS, FORMAT_NAMES, drawn["key"])
    shown = hover(
        "family", "format", ("cores", "tensor cores"), "time", ("share", "share of the matrix work")
    )
    shown += hover(("count", "kernels", ","), ("source", "format said by"))
    fill, stroke = (kind("format:N", scale=shades, title=None) for kind in (alt.Fill, alt.Stroke))
    faint, dash = (
        alt.FillOpacity("filled:Q", scale=None),
        alt.StrokeDash("cores:N", scale=dashed, legend=None),
    )
    place = (alt.X("begin:Q", title=f"time ({scale.symbol})"), alt.X2("end"), _format_place(drawn))
    look = {"height": alt.RelativeBandSize(band=0.72), "strokeWidth": 1.5}
    return theme.marked(
        drawn.drop(columns="key"), "bar", *place, fill, stroke, faint, dash, shown, **look
    )


def _words(drawn: pd.DataFrame) -> list[alt.Chart]:
    """Return what the parts are, in two lines where there is room: on a pale part in the colour of the page's text."""
    width = (drawn["end"] - drawn["begin"]) / drawn["end"].max()
    wide = drawn.assign(
        middle=(drawn["begin"] + drawn["end"]) / 2,
        first=(drawn["format"] + " · " + drawn["share"]).where(width >= ROOM, drawn["format"]),
        second=drawn["cores"].where(width >= ROOM, drawn["share"]),
    )[width >= SMALLEST_LABEL]
    filled = wide["cores"] == TENSOR_CORES["yes"]
    on_dark = filled & wide["key"].isin(DARK)
    layers = []
    for rows, colour in (
        (wide[on_dark], "#FFFFFF"),
        (wide[filled & ~on_dark], "#000000"),
        (wide[~filled], ""),
    ):
        for field, down in (("first", -7), ("second", 8)) if len(rows) else ():
            fits = f"(datum.end - datum.begin) / {drawn['end'].max()} * width < 5.5 * length(datum.{field}) ? 0 : 1"
            look: dict[str, Any] = {"align": "center", "dy": down, "opacity": alt.ExprRef(fits)}
            marks = theme.words(
                rows, alt.X("middle:Q"), _format_place(drawn), alt.Text(f"{field}:N"), **look
            )
            if colour:
                marks.mark.filled, marks.mark.stroke, marks.mark.color = True, alt.Undefined, colour
            layers.append(marks)
    return layers


def _format_place(drawn: pd.DataFrame) -> alt.Y:
    return alt.Y("family:N", title=None, sort=drawn["family"].drop_duplicates().tolist())


def stalls(shares: pd.DataFrame, launches: pd.DataFrame, *, top: int = 8) -> alt.LayerChart:
    """Draw the stall reasons of the launches that took longest, one bar each.

    `shares`: columns rank, launch, reason, share_frac (0..1), as from `analysis.warps.stall_shares`. `launches`:
    LAUNCHES: their names and durations. `top`: number of launches with a bar, at least 1.
    """
    need(shares, "rank", "launch", "reason", "share_frac")
    need(launches, "rank", "launch", "name", "dur_ns")
    fraction(shares, "share_frac")
    if top < 1:
        raise ValueError(f"top: {top} is not at least 1")
    measured = shares[shares["share_frac"] > 0]
    longest = launches.merge(measured[["rank", "launch"]].drop_duplicates(), on=["rank", "launch"])
    longest = longest.sort_values("dur_ns", ascending=False, kind="stable").head(top)
    if longest.empty:
        return nothing("No stall reasons", "No launch was measured with --section WarpStateStats.")
    names = [
        f"{number}. {elided(name, LONGEST_STALLED)}"
        for number, name in enumerate(longest["name"], start=1)
    ]
    return _drawn(
        _stall_segments(
            longest[["rank", "launch"]].assign(label=names).merge(measured, on=["rank", "launch"])
        ),
        "The longest launches first; waiting warps cost nothing while another one can issue.",
        whole="warp time",
        what="launch",
    )


def stalled_kernels(shares: pd.DataFrame, *, top: int = 8) -> alt.LayerChart:
    """Draw the stall reasons of all kernels together, and of those with most stall samples, one bar each.

    `shares`: columns name, reason, share_frac (0..1, of the kernel's stalls) and value (of the reason in the kernel:
    samples or cycles, not negative): one row per kernel and reason. `top`: number of kernels with a bar, at least 1.
    """
    need(shares, "name", "reason", "share_frac", "value")
    fraction(shares, "share_frac")
    if top < 1:
        raise ValueError(f"top: {top} is not at least 1")
    if (shares["value"] < 0).any():
        raise ValueError(f"value: {shares['value'].min()} is negative")
    sampled = shares[shares["value"] > 0].astype({"name": str, "reason": str})
    if sampled.empty:
        return nothing(
            "No stall reasons",
            "No kernel was sampled. Record with `hpcrun -e gpu=nvidia,pc`.",
        )
    sums = sampled.groupby("name")["value"].sum().sort_values(ascending=False, kind="stable")
    longest = enumerate(sums.index[:top], start=1)
    labels = {name: f"{number}. {elided(name, LONGEST_STALLED)}" for number, name in longest}
    rows = sampled[sampled["name"].isin(labels)]
    rows = rows.assign(label=rows["name"].map(labels), order=rows["name"].map(list(labels).index))
    reasons = sampled.groupby("reason")["value"].sum()
    whole = pd.DataFrame(
        {"label": f"All {len(sums)} kernels", "share_frac": reasons / reasons.sum()}
    ).reset_index()
    together = [whole] if len(sums) > 1 else []
    rows = pd.concat([*together, rows.sort_values("order", kind="stable")], ignore_index=True)
    meanings = [
        f"{MEANINGS[r]} ({r})" if r in MEANINGS else printable(r, LONGEST_STALLED)
        for r in rows["reason"]
    ]
    return _drawn(
        _stall_segments(rows.assign(reason=meanings)),
        "Shares of stall samples, not of time: waiting warps cost nothing while another one can issue.",
        whole="stalls",
        what="kernel",
    )


def _drawn(drawn: pd.DataFrame, explanation: str, *, whole: str, what: str) -> alt.LayerChart:
    """Return the picture of the segments; its title is the largest stall of the first bar."""
    first = drawn[drawn["label"] == drawn["label"].iloc[0]]
    stalls = first[first["reason"] != ISSUING]
    worst = first.loc[(first if stalls.empty else stalls).eval("end - begin").idxmax()]
    reasons = drawn.drop_duplicates("reason").sort_values("place", kind="stable")["reason"].tolist()
    segments = shares.bars(
        drawn.drop(columns="place"),
        "reason",
        alt.Scale(domain=reasons, range=SHADES[: len(reasons)]),
        axis=f"share of {whole}",
        shown=hover(("label", what), "reason", "share"),
        columns=5 if drawn["reason"].str.len().max() < LONGEST_LEGEND else 3,
    )
    return layered(
        [segments],
        f"{worst['label']}: {worst['reason']} is {worst['share']} of {whole}",
        explanation,
        picture=f"Stacked bars of stall reasons, {len(drawn['label'].unique())} bars",
        size=(WIDTH - 120, alt.Step(26)),
    )


def _stall_segments(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per label and reason, placed end to end from 0 to 1; rare reasons are drawn as one."""
    labels = rows["label"].drop_duplicates().tolist()
    rows = rows.assign(reason=rows["reason"].astype(str).str.replace("_", " "))
    totals = rows[rows["reason"] != ISSUING].groupby("reason")["share_frac"].sum()
    totals = totals.sort_values(ascending=False, kind="stable")
    reasons = [*totals.index[: len(SHADES) - 2], ISSUING]
    rows["reason"] = rows["reason"].where(rows["reason"].isin(reasons), OTHER_REASONS)
    rows["place"] = rows["reason"].map([*reasons, OTHER_REASONS].index)
    summed = rows.groupby(["label", "place", "reason"], sort=False, as_index=False)[
        "share_frac"
    ].sum()
    summed = summed.assign(order=summed["label"].map(labels.index)).sort_values(
        ["order", "place"], kind="stable"
    )
    begin, end = shares.ends(summed["share_frac"], summed["order"])
    drawn: pd.DataFrame = summed.assign(
        begin=begin, end=end, share=summed["share_frac"].map(percent)
    )
    return drawn.drop(columns=["order", "share_frac"]).reset_index(drop=True)


def launch_efficiency(kernels: pd.DataFrame) -> alt.LayerChart:
    """Draw the mean duration of kernels against the number of their launches, as large as their time.

    `kernels`: columns name, family, launch_count, total_ns, mean_ns: one row per kernel; NaN where not recorded; rows
    without launches or time are left out; may be empty. Raises ValueError if a family has no colour.
    """
    need(kernels, "name", "family", "launch_count", "total_ns", "mean_ns")
    known(kernels, "family", FAMILY_COLOURS)
    seen = kernels[(kernels["launch_count"] > 0) & (kernels["mean_ns"] > 0)]
    if seen.empty:
        return nothing("No kernels", NO_LAUNCH)
    drawn = _launch_rows(seen.sort_values("total_ns", ascending=False, kind="stable"))
    across = (min(drawn["mean"].min(), COST[0]) / 2, max(drawn["mean"].max(), COST[1]) * 2)
    up = (drawn["count"].min() / 2, drawn["count"].max() * 3)
    wide, high = (alt.Scale(type="log", domain=list(ends), nice=False) for ends in (across, up))
    times = alt.Axis(labelExpr=TICK, values=_round(*across), gridOpacity=0.2)
    counts = alt.Axis(values=_round(*up), format="~s", gridOpacity=0.2)
    x = alt.X(
        "mean:Q", title="mean duration (logarithmic, unit at each tick)", scale=wide, axis=times
    )
    y = alt.Y("count:Q", title="launches (count, logarithmic)", scale=high, axis=counts)
    rows = inline(
        pd.DataFrame({"mean": [COST[0]], "end": [COST[1]], "label": ["cost of a launch"]})
    )
    strip = alt.Chart(rows).mark_rect(color="#808080", opacity=0.18, tooltip=False)
    text = theme.ink(rows, dx=3).encode(x, alt.Text("label:N"), y=alt.value(10))
    return layered(
        [
            strip.encode(x, alt.X2("end"), y=alt.value(0), y2=alt.value("height")),
            text,
            _points(drawn, x, y),
            _names(drawn.head(MOST_LABELS), x, y, middle=(across[0] * across[1]) ** 0.5),
        ],
        _launches_title(seen),
        "A launch costs the host 5 to 10 µs (an order of magnitude; measured calls say it exactly): the GPU may "
        "wait for shorter kernels.",
        picture=f"Points on logarithmic axes, one for each of {len(drawn)} kernels, their area the kernel's time",
        size=(WIDTH, 340),
    )


def _launches_title(seen: pd.DataFrame) -> str:
    """Say how many launches are of kernels shorter than what a launch costs at most."""
    launches = float(seen["launch_count"].sum())
    short = float(seen.loc[seen["mean_ns"] < COST[1], "launch_count"].sum())
    limit = duration(COST[1]).replace(".0", "")
    if not short:
        return f"All {launches:,.0f} launches are of kernels that run {limit} or longer on average"
    share = percent(short / launches)
    return f"{short:,.0f} of {launches:,.0f} launches ({share}) are of kernels shorter than {limit} on average"


def _launch_rows(kernels: pd.DataFrame) -> pd.DataFrame:
    columns = {
        "label": [elided(name, LONGEST_BAR_LABEL) for name in kernels["name"]],
        "name": [printable(name, LONGEST_NAME) for name in kernels["name"]],
        "family": kernels["family"].astype("string").fillna("other"),
        "count": kernels["launch_count"],
        "mean": kernels["mean_ns"],
        "time": kernels["total_ns"].fillna(0),
        "length": kernels["mean_ns"].map(duration),
        "told": kernels["total_ns"].map(duration),
    }
    return pd.DataFrame(columns)


def _round(low: float, high: float) -> list[int]:
    """Return the powers of ten within an axis, with their double and their half if they are few."""
    several = [1, 2, 5] if high / low < 1e4 else [1]
    return [
        step * 10**power
        for power in range(19)
        for step in several
        if low <= step * 10**power <= high
    ]


def _points(drawn: pd.DataFrame, x: alt.X, y: alt.Y) -> alt.Chart:
    colour = alt.Color("family:N", scale=colours(FAMILY_COLOURS, {}, drawn["family"]), title=None)
    largest = float(drawn["time"].max()) or 1.0
    area = alt.Size("time:Q", scale=alt.Scale(domain=[0, largest], range=list(AREA)), legend=None)
    shown = hover(
        ("name", "kernel"), "family", ("count", "launches", ","), ("length", "mean duration")
    )
    shown += hover(("told", "time of all launches"))
    return theme.marked(drawn, "circle", x, y, colour, area, shown, opacity=0.85)


def _names(drawn: pd.DataFrame, x: alt.X, y: alt.Y, *, middle: float) -> alt.Chart:
    """Return the names of the kernels with most time, above their points, towards the `middle` of a wide picture."""
    area = AREA[0] + (AREA[1] - AREA[0]) * drawn["time"] / (drawn["time"].max() or 1.0)
    side = drawn["mean"].lt(middle).map({True: "left", False: "right"})
    rows = drawn.assign(lift=-((area / pi) ** 0.5 + 6).round(1), side=side)
    look = {"dy": "datum.lift", "align": "datum.side", "opacity": "width < 400 ? 0 : 1"}
    return theme.words(
        rows, x, y, alt.Text("label:N"), **{key: alt.ExprRef(text) for key, text in look.items()}
    )

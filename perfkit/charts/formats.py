"""Pictures of the number formats in which the matrix work runs.

Conventions
-----------
Frames are those of `perfkit.analysis.precision`. A part is filled if it runs on tensor cores, pale if it does not, and
pale in a dashed outline if that is unknown; the words in it say the same.

Functions
---------
bars   time of GEMMs, convolutions and attention by number format
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from perfkit.charts.data import fraction, inline, known, need
from perfkit.charts.theme import WIDTH, colours, ink, layered, nothing, register
from perfkit.format import TIME, Unit, duration, percent, unit

FORMAT_COLOURS = {
    "fp64": "#5D4E45",
    "fp32": "#D55E00",
    "tf32": "#E0A010",
    "fp16": "#90B7FA",
    "bf16": "#1F77D4",
    "fp8": "#744FEA",
    "int8": "#00B878",
    "unknown": "#9A9A9A",
}
FORMAT_NAMES = {**{key: key.upper() for key in FORMAT_COLOURS}, "unknown": "unknown"}
TENSOR_CORES = {"yes": "on tensor cores", "no": "not on tensor cores", "unknown": "tensor cores unknown"}
FAMILIES = {"gemm": "GEMM", "convolution": "convolution", "attention": "attention"}
SOURCES = {"name": "the kernel's name", "operands": "the operator's inputs", "none": "nothing"}
DARK = ["fp64", "fp32", "bf16", "fp8"]  # formats on which white text reads better
OPACITY = {"yes": 1.0, "no": 0.55, "unknown": 0.2}
DASHES = [[1, 0], [1, 0], [4, 3]]
LOOKS = {"yes": "yes (filled)", "no": "no (pale)", "unknown": "unknown (dashed)"}
LEGAL = {"family": FAMILIES, "format": FORMAT_COLOURS, "tensor_cores": TENSOR_CORES, "source": SOURCES}
ROOM, SMALLEST_LABEL = 0.17, 0.08  # of the longest bar: what all words of a part take, and the format with its share


def bars(shares: pd.DataFrame, *, title: str = "") -> alt.LayerChart:
    """Draw how the time of GEMMs, convolutions and attention splits by number format, on tensor cores or not.

    Parameters
    ----------
    shares
        Columns family (gemm, convolution or attention), format, tensor_cores (yes, no or unknown), source (name,
        operands or none), count, total_ns, share_frac (0..1, of the time of all rows); in any order; may be empty.
    title
        What is seen; the format with most time when empty.

    Returns
    -------
    altair.LayerChart

    Raises
    ------
    SchemaError
        If a column is missing.
    ValueError
        If a family, format, answer or source is unknown, or a share no fraction.
    """
    need(shares, "family", "format", "tensor_cores", "source", "count", "total_ns", "share_frac")
    for column, legal in LEGAL.items():
        known(shares, column, legal)
    fraction(shares, "share_frac")
    timed = shares[shares["total_ns"] > 0].astype(dict.fromkeys(LEGAL, str))
    if timed.empty:
        return nothing(title or "No matrix work", "No GEMM, convolution or attention kernel ran in this window.")
    register()
    scale = unit(float(timed.groupby("family")["total_ns"].sum().max()), TIME)
    drawn = _segments(timed, scale)
    return layered(
        [_bars(drawn, scale), *_words(drawn)],
        title or _title(timed),
        _explained(timed),
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


def _explained(timed: pd.DataFrame) -> str:
    """Say what ran on tensor cores, and how that looks."""
    time = timed.groupby("tensor_cores")["total_ns"].sum()
    parts = [f"{percent(time[key] / time.sum())} {words}" for key, words in LOOKS.items() if key in time]
    return (
        f"Tensor cores: {', '.join(parts)}; of {duration(float(time.sum()))} in {int(timed['count'].sum()):,} kernels."
    )


def _segments(timed: pd.DataFrame, scale: Unit) -> pd.DataFrame:
    """Return one row per part, end to end within its family; the family with most time first."""
    place = timed["format"].map(list(FORMAT_COLOURS).index) * len(LOOKS) + timed["tensor_cores"].map(list(LOOKS).index)
    whole = timed.groupby("family")["total_ns"].transform("sum")
    order = timed.assign(place=place, whole=whole).sort_values(
        ["whole", "family", "place"], ascending=[False, True, True], kind="stable"
    )
    end = order.groupby("family", sort=False)["total_ns"].cumsum()
    return pd.DataFrame(
        {
            "family": order["family"].map(FAMILIES),
            "key": order["format"],
            "format": order["format"].map(FORMAT_NAMES),
            "cores": order["tensor_cores"].map(TENSOR_CORES),
            "filled": order["tensor_cores"].map(OPACITY),
            "source": order["source"].map(SOURCES),
            "begin": (end - order["total_ns"]) / scale.size,
            "end": end / scale.size,
            "count": order["count"],
            "time": order["total_ns"].map(duration),
            "share": order["share_frac"].map(percent),
        }
    )


def _bars(drawn: pd.DataFrame, scale: Unit) -> alt.Chart:
    dashed = alt.Scale(domain=list(TENSOR_CORES.values()), range=DASHES)
    shades = colours(FORMAT_COLOURS, FORMAT_NAMES, drawn["key"])
    shown = [
        alt.Tooltip("family:N"),
        alt.Tooltip("format:N"),
        alt.Tooltip("cores:N", title="tensor cores"),
        alt.Tooltip("time:N"),
        alt.Tooltip("share:N", title="share of the matrix work"),
        alt.Tooltip("count:Q", title="kernels", format=","),
        alt.Tooltip("source:N", title="format said by"),
    ]
    marks: alt.Chart = (
        alt.Chart(inline(drawn.drop(columns="key")))
        .mark_bar(height=alt.RelativeBandSize(band=0.72), strokeWidth=1.5)
        .encode(
            alt.X("begin:Q", title=f"time ({scale.symbol})"),
            alt.X2("end"),
            _place(drawn),
            alt.Fill("format:N", scale=shades, title=None),
            alt.Stroke("format:N", scale=shades, title=None),
            alt.FillOpacity("filled:Q", scale=None),
            alt.StrokeDash("cores:N", scale=dashed, legend=None),
            shown,
        )
    )
    return marks


def _words(drawn: pd.DataFrame) -> list[alt.Chart]:
    """Return what the parts are, in two lines: on a pale part in the colour of the page's text."""
    width = (drawn["end"] - drawn["begin"]) / drawn["end"].max()
    wide = drawn.assign(
        middle=(drawn["begin"] + drawn["end"]) / 2,
        first=(drawn["format"] + " · " + drawn["share"]).where(width >= ROOM, drawn["format"]),
        second=drawn["cores"].where(width >= ROOM, drawn["share"]),
    )[width >= SMALLEST_LABEL]
    filled = wide["cores"] == TENSOR_CORES["yes"]
    on_dark = filled & wide["key"].isin(DARK)
    layers = []
    for rows, colour in ((wide[on_dark], "#FFFFFF"), (wide[filled & ~on_dark], "#000000"), (wide[~filled], "")):
        for field, down in (("first:N", -7), ("second:N", 8)) if len(rows) else ():
            marks: alt.Chart = ink(inline(rows)).encode(alt.X("middle:Q"), _place(drawn), alt.Text(field))
            marks.mark.align, marks.mark.dy = "center", down
            if colour:
                marks.mark.filled, marks.mark.stroke, marks.mark.color = True, alt.Undefined, colour
            layers.append(marks)
    return layers


def _place(drawn: pd.DataFrame) -> alt.Y:
    return alt.Y("family:N", title=None, sort=drawn["family"].drop_duplicates().tolist())

"""Picture of what a machine can do with typical operations.

Conventions
-----------
Frames are those of `perfkit.analysis.operations`. Both axes are logarithmic. The solid roof is that of the data sheet,
the dashed one what was measured; where there is one of them only, it is drawn solid. Each operation lies on the roof
that its performance was computed from: as fast as it can be, not as fast as it was.

Functions
---------
roofline   typical operations on the roof of a machine
"""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from perfkit.charts import roof_lines
from perfkit.charts.data import inline, known, need
from perfkit.charts.roof_lines import BYTES, FLOPS, LEVELS, Frame, precision, rate
from perfkit.charts.roofline import HEIGHT, ROOF_COLOUR, axes_of
from perfkit.charts.theme import FAMILY_COLOURS, WIDTH, colours, ink, layered, nothing, register
from perfkit.format import percent, size

SHEET, MEASURED = "data sheet", "measured"
PICTURE = "Roofline on logarithmic axes, a point for each typical operation"
NO_MACHINE = (
    "Peak and memory bandwidth of the GPU are not known. Measure them with `perfkit baseline gemm` and "
    "`perfkit baseline copy`, and give the CSV file as --peaks."
)
LINE = 15  # pixels between two words
NEAR = 10  # pixels between a point and its word
SLOPE_WORDS = 0.75  # of the way up the slope, where few operations lie


def roofline(operations: pd.DataFrame, ceilings: pd.DataFrame, *, roof: str, title: str = "") -> alt.LayerChart:
    """Draw typical operations on the roof of a machine, each with its name.

    Parameters
    ----------
    operations
        Columns of `operations.attainable`; those without FLOP have no place on a logarithmic axis, which the chart
        says; may be empty.
    ceilings
        Columns roof, flops_per_s, measured_flops_per_s, bytes_per_s, measured_bytes_per_s, as from
        `operations.ceilings`.
    roof
        The precision whose peak is drawn, such as "bf16_tensor".
    title
        What is seen; how many of the operations memory limits when empty.

    Returns
    -------
    altair.LayerChart

    Raises
    ------
    SchemaError
        If a column is missing.
    ValueError
        If a family has no colour.
    """
    need(
        operations, "operation", "family", "intensity", "flops", "bytes", "attainable_flops_per_s", "peak_frac", "bound"
    )
    rates = ("flops_per_s", "measured_flops_per_s", "bytes_per_s", "measured_bytes_per_s")
    need(ceilings, "roof", *rates)
    known(operations, "family", FAMILY_COLOURS)
    placed = operations[operations["intensity"] > 0].sort_values("intensity", ascending=False, ignore_index=True)
    roofs = {kind: found for kind, found in _roofs(ceilings, roof).items() if len(found) == 2}
    if placed.empty or not roofs:
        return nothing(title or "No machine to compare with", NO_MACHINE)
    register()
    first = next(iter(roofs.values()))
    ridges = roof_lines.ridges(first)
    drawn = _rows(placed)
    frame = _frame(drawn, first, ridges)
    drawn = drawn.assign(**_words(drawn, frame))
    axes = axes_of(frame, LEVELS["dram"])
    layers = [*_lines(roofs, frame, axes), *_ridge(ridges, axes), *_operations(drawn, axes)]
    return layered(layers, title or _title(placed), _left_out(operations), picture=PICTURE, size=(WIDTH, HEIGHT))


def _roofs(ceilings: pd.DataFrame, roof: str) -> dict[str, pd.DataFrame]:
    """Return slope and height of the data sheet's roof and of the measured one, as far as they are known."""
    found = {}
    for kind, prefix in ((SHEET, ""), (MEASURED, "measured_")):
        slopes = ceilings.loc[ceilings["roof"].eq("dram"), f"{prefix}bytes_per_s"].dropna()
        heights = ceilings.loc[ceilings["roof"].eq(roof), f"{prefix}flops_per_s"].dropna()
        rows = [(slope, np.nan, f"memory {rate(slope, BYTES)}", kind) for slope in slopes]
        rows += [(np.nan, height, f"{precision(roof)} {rate(height, FLOPS)}", kind) for height in heights]
        found[kind] = pd.DataFrame(rows, columns=["slope", "height", "label", "source"])
    return found


def _title(placed: pd.DataFrame) -> str:
    memory = int((placed["bound"] == "memory").sum())
    return f"Memory limits {memory} of {len(placed)} typical operations"


def _left_out(operations: pd.DataFrame) -> str:
    without = operations["operation"][~(operations["intensity"] > 0)]
    moved = f"Without a place, because it computes nothing: {', '.join(without)}." if len(without) else ""
    return f"As fast as the roof allows, each tensor moved once. {moved}".strip()


def _rows(placed: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
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
    )


def _frame(drawn: pd.DataFrame, roofs: pd.DataFrame, ridges: pd.DataFrame) -> Frame:
    """Return corners with room below the lowest points for their words."""
    frame = roof_lines.frame(drawn, roofs, ridges)
    return frame._replace(bottom=frame.bottom / 15)


def _words(drawn: pd.DataFrame, frame: Frame) -> dict[str, pd.Series]:
    """Return the places of the words: right of and below each point, below each other, by falling intensity."""
    up = HEIGHT / np.log10(frame.top / frame.bottom)
    across = WIDTH / np.log10(frame.right / frame.left)
    below = np.log10(drawn["performance"].to_numpy("float64")) - NEAR / up
    steps = np.arange(len(drawn)) * LINE / up
    height = np.minimum.accumulate(below + steps) - steps
    return {"word_x": drawn["intensity"] * 10 ** (2 * NEAR / across), "word_y": pd.Series(10**height, drawn.index)}


def _lines(roofs: dict[str, pd.DataFrame], frame: Frame, axes: tuple[alt.X, alt.Y]) -> list[alt.Chart]:
    """Return the roofs and the words of the first; a legend tells them apart where there are two."""
    ends = [roof_lines.lines(found, frame) for found in roofs.values()]
    ends = [part.assign(line=part["source"] + part["line"].astype(str)) for part in ends]
    rows = pd.concat(ends)
    dashes = alt.Scale(domain=list(roofs), range=[[1, 0], [5, 4]][: len(roofs)])
    legend = alt.Legend(symbolType="stroke", symbolStrokeColor=ROOF_COLOUR) if len(roofs) > 1 else None
    strokes = alt.Chart(inline(rows.drop(columns="label"))).mark_line(color=ROOF_COLOUR, strokeWidth=1.5)
    shown = [alt.Tooltip("roof:N"), alt.Tooltip("source:N", title="from")]
    kind = alt.StrokeDash("source:N", scale=dashes, title=None, legend=legend)
    drawn = strokes.encode(*axes, alt.Detail("line:N"), alt.Order("intensity:Q"), kind, shown)
    return [drawn, _text(_labels(ends[0], next(iter(roofs.values()))), axes)]


def _labels(ends: pd.DataFrame, roofs: pd.DataFrame) -> pd.DataFrame:
    """Return where the names of the roofs stand: the slope's in its upper half, the height's at its right end."""
    slope = roofs.loc[roofs["slope"].notna()].iloc[0]
    height = roofs.loc[roofs["height"].notna()].iloc[0]
    first, last = (ends.loc[ends["roof"] == slope["label"], "intensity"].agg(end) for end in ("min", "max"))
    at = first * (last / first) ** SLOPE_WORDS
    right = ends["intensity"].max()
    rows = [(at, at * slope["slope"], slope["label"]), (right, height["height"], height["label"])]
    return pd.DataFrame(rows, columns=["intensity", "performance", "label"])


def _ridge(ridges: pd.DataFrame, axes: tuple[alt.X, alt.Y]) -> list[alt.Chart]:
    marks = alt.Chart(inline(ridges)).mark_point(shape="diamond", filled=True, size=45, color=ROOF_COLOUR, opacity=1)
    return [marks.encode(*axes, [alt.Tooltip("label:N", title="roofs meet")]), _text(ridges, axes)]


def _text(rows: pd.DataFrame, axes: tuple[alt.X, alt.Y]) -> alt.Chart:
    """Return text above and left of its place."""
    marks: alt.Chart = ink(inline(rows), dx=-4).encode(*axes, alt.Text("label:N"))
    marks.mark.dy, marks.mark.align = -8, "right"
    return marks


def _operations(drawn: pd.DataFrame, axes: tuple[alt.X, alt.Y]) -> list[alt.Chart]:
    """Return the points, their names, and a line from each to its name."""
    data, (x, y) = inline(drawn), axes
    colour = alt.Color("family:N", scale=colours(FAMILY_COLOURS, {}, drawn["family"]), title=None)
    shown = [
        alt.Tooltip("operation:N"),
        alt.Tooltip("intensity:Q", title="FLOP/byte", format=",.4~g"),
        alt.Tooltip("rate:N", title="at most"),
        alt.Tooltip("share:N", title="of the peak"),
        alt.Tooltip("bound:N", title="limited by"),
        alt.Tooltip("flops:Q", title="FLOP", format=".3~s"),
        alt.Tooltip("bytes:N", title="bytes"),
    ]
    word_x, word_y = x.copy(), y.copy()
    word_x.shorthand, word_y.shorthand = "word_x:Q", "word_y:Q"
    lead = alt.Chart(data).mark_rule(color=ROOF_COLOUR, strokeWidth=0.75, opacity=0.7, tooltip=False)
    point = alt.Chart(data).mark_point(filled=True, size=75, opacity=1)
    words: alt.Chart = ink(data, dx=3).encode(word_x, word_y, alt.Text("operation:N"))
    words.mark.baseline = "middle"
    return [lead.encode(x, y, alt.X2("word_x"), alt.Y2("word_y")), point.encode(x, y, colour, shown), words]

"""Picture of how far kernels are from what the GPU can do.

Frames are those of `perfkit.analysis.roofline`. Both axes are logarithmic. A sloping line is the bandwidth of a memory
level, a level one the peak of a precision, and the mark where they meet its ridge: left of it memory is the roof, right
of it arithmetic. A roof has either a slope, bytes/s, or a height, FLOP/s; the other is NaN. Intensities are FLOP/byte.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import pandas as pd

from perfkit.charts import theme
from perfkit.charts.checks import known, need
from perfkit.charts.theme import (
    FAMILY_COLOURS,
    KIND_COLOURS,
    WIDTH,
    hover,
    inline,
    layered,
    nothing,
)
from perfkit.format import MISSING, Unit, duration, number, percent, printable, size, unit

FLOPS = tuple(
    Unit(f"{prefix}FLOP/s", 1000.0**power)
    for power, prefix in enumerate(("", "k", "M", "G", "T", "P"))
)
BYTES = tuple(
    Unit(f"{prefix}B/s", 1000.0**power) for power, prefix in enumerate(("", "k", "M", "G", "T"))
)
LEVELS = {"dram": "DRAM", "l2": "L2", "l1": "L1"}
_WORDS = {"acc16": "(FP16 accumulation)", "sparse": "(sparse)"}


class Frame(NamedTuple):
    """The corners of the picture: intensities and performances."""

    left: float
    right: float
    bottom: float
    top: float


BOUND_COLOURS = {
    "compute": KIND_COLOURS["computation"],
    "memory": KIND_COLOURS["copy"],
    "balanced": "#394B74",
    "latency": "#E0A010",
    "small_grid": "#B83CA0",
    "not measured": "#9A9A9A",
}
BOUND_NAMES = {"small_grid": "latency: grid too small"}
ROOF_COLOUR = "#808080"
LONGEST_NAME, HEIGHT = 400, 360  # characters, pixels
NARROW = 420  # pixels of a picture in which the names of a roof and of its ridge would touch


def roofline(
    points: pd.DataFrame, ceilings: pd.DataFrame, *, level: str = "dram"
) -> alt.LayerChart:
    """Draw each point at its intensity and performance, below the roofs of its GPU.

    `points`: columns of `roofline.points`, coloured by family, or of `roofline.bound`, by what limits them. Rows
    without FLOP or bytes and refused ones are not drawn but counted. `ceilings`: columns of `roofline.ceilings`; only
    roofs of precisions that occur are drawn. `level`: "dram", "l2" or "l1": the memory level of the intensity and of
    the sloping roof.
    """
    if level not in LEVELS:
        raise ValueError(f"level: {level!r} is not one of {list(LEVELS)}")
    need(
        points,
        "name",
        "family",
        "precision",
        "count",
        "dur_ns",
        "flops",
        "flops_per_s",
        f"{level}_intensity",
    )
    need(ceilings, "roof", "flops_per_s", "bytes_per_s", "source")
    known(points, "family", FAMILY_COLOURS)
    if "bound" in points:
        known(points, "bound", [*BOUND_COLOURS, "refused"])
    shown = pd.Series(True, points.index)
    for column in (f"{level}_intensity", "flops_per_s"):
        shown &= points[column].gt(0) & points[column].lt(np.inf)
    placed = points[shown & points["bound"].ne("refused")] if "bound" in points else points[shown]
    if placed.empty:
        return nothing("No kernel has a place on the roofline", _left_out(points, placed))
    drawn = _rows(placed, level)
    roofs = roof_layers(ceilings, set(placed["precision"].astype(str)), level)
    ridges = ridge_layers(roofs)
    frame = frame_of(drawn, roofs, ridges)
    axes = axes_of(frame, LEVELS[level])
    first = placed.iloc[placed["flops"].argmax()]
    reach = f"{printable(first['name'], 60)} does {rate(first['flops_per_s'], FLOPS)}"
    if pd.notna(share := first.get("roof_share_frac")):
        reach += f", {percent(share)} of its roof"
    return layered(
        [*_roofs(lines(roofs, frame), ridges, axes), _points(drawn, axes)],
        reach,
        _left_out(points, placed),
        picture=f"Roofline on logarithmic axes, {len(drawn)} points, roofs {', '.join(roofs['label']) or 'unknown'}",
        size=(WIDTH, HEIGHT),
    )


def _left_out(points: pd.DataFrame, placed: pd.DataFrame) -> str:
    refused = int((points["bound"] == "refused").sum()) if "bound" in points else 0
    rest = len(points) - len(placed) - refused
    reasons = [f"{rest} without FLOP or bytes"] if rest else []
    if refused:
        reasons.append(f"{refused} refused, above 110 % of the roof")
    if reasons:
        return f"Not drawn: {'; '.join(reasons)}."
    return "" if len(points) else "No launch was measured."


def _rows(placed: pd.DataFrame, level: str) -> pd.DataFrame:
    by_bound = "bound" in placed
    group = placed["bound" if by_bound else "family"].astype("string")
    lacking = pd.Series(np.nan, placed.index)
    columns = {
        "intensity": placed[f"{level}_intensity"],
        "performance": placed["flops_per_s"],
        "name": [printable(name, LONGEST_NAME) for name in placed["name"]],
        "launch": placed.get("launch", lacking),
        "precision": [precision(str(name)) for name in placed["precision"]],
        "key": group.fillna("other"),
        "group": group.replace(BOUND_NAMES) if by_bound else group.fillna("other"),
        "count": placed["count"],
        "time": placed["dur_ns"].map(duration),
        "flops": placed["flops"],
        "bytes": (placed["flops"] / placed[f"{level}_intensity"]).map(size),
        "rate": placed["flops_per_s"].map(lambda value: rate(value, FLOPS)),
        "share": placed.get("roof_share_frac", lacking).map(percent),
        "reason": placed.get("reason", MISSING),
    }
    return pd.DataFrame(columns)


def axes_of(frame: Frame, memory: str) -> tuple[alt.X, alt.Y]:
    """Return logarithmic axes with a label at every power of ten."""
    x, y = (
        alt.Scale(type="log", domain=[low, high], nice=False, clamp=True)
        for low, high in ((frame.left, frame.right), (frame.bottom, frame.top))
    )
    across = alt.Axis(values=_powers(frame.left, frame.right), format="~g", gridOpacity=0.2)
    up = alt.Axis(values=_powers(frame.bottom, frame.top), format="~s", gridOpacity=0.2)
    return (
        alt.X(
            "intensity:Q",
            title=f"arithmetic intensity (FLOP per byte of {memory} traffic)",
            scale=x,
            axis=across,
        ),
        alt.Y("performance:Q", title="performance (FLOP/s)", scale=y, axis=up),
    )


def _powers(low: float, high: float) -> list[float]:
    return [
        float(f"1e{power}")
        for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    ]


def _roofs(lines: pd.DataFrame, ridges: pd.DataFrame, axes: tuple[alt.X, alt.Y]) -> list[alt.Chart]:
    """Return lines and ridge marks with their texts; the text of a height stands at its right end."""
    if lines.empty:
        return []
    shown = hover("roof", "source")
    strokes = alt.Chart(inline(lines)).mark_line(color=ROOF_COLOUR, strokeWidth=1.5)
    layers: list[alt.Chart] = [
        strokes.encode(*axes, alt.Detail("line:N"), alt.Order("intensity:Q"), shown)
    ]
    texts = lines[lines["label"] != ""]
    level = texts["intensity"] == lines["intensity"].max()
    for part, apart in ((texts[~level], 9), (texts[level], 2)):
        if len(part):
            layers.append(text(part, axes, apart))
    return [*layers, *ridge_marks(ridges, axes)] if len(ridges) else layers


def ridge_marks(ridges: pd.DataFrame, axes: tuple[alt.X, alt.Y]) -> list[alt.Chart]:
    """Return marks where roofs meet, with their names where the picture has room for them."""
    look = {"shape": "diamond", "filled": True, "size": 45, "color": ROOF_COLOUR, "opacity": 1}
    marks = theme.marked(ridges, "point", *axes, hover(("label", "roofs meet")), **look)
    has_room = alt.ExprRef(f"width < {NARROW} ? 0 : 1")
    return [marks, text(ridges, axes, opacity=has_room)]


def text(rows: pd.DataFrame, axes: tuple[alt.X, alt.Y], apart: int = 2, **look: Any) -> alt.Chart:
    """Return text above and left of its place, where no point lies, `apart` pixels from it."""
    return theme.words(rows, *axes, alt.Text("label:N"), dx=-apart, dy=-8, align="right", **look)


def _points(drawn: pd.DataFrame, axes: tuple[alt.X, alt.Y]) -> alt.Chart:
    """Return the points; shapes tell precisions apart where there are several."""
    palette = BOUND_COLOURS if drawn["key"].isin(list(BOUND_COLOURS)).all() else FAMILY_COLOURS
    colour = alt.Color(
        "group:N", scale=theme.colours(palette, BOUND_NAMES, drawn["key"]), title=None
    )
    shown = hover(
        ("name", "kernel"),
        "launch:Q",
        ("count", "launches", ","),
        "precision",
        ("rate", "performance"),
    )
    shown += hover(
        ("intensity", "FLOP/byte", ",.4~g"),
        ("flops", "FLOP", ".3~s"),
        ("bytes", "bytes"),
        ("time", "time"),
    )
    shown += hover(("share", "share of the roof"), "reason")
    shape = [alt.Shape("precision:N", title=None)] if len(drawn["precision"].unique()) > 1 else []
    channels = (*axes, colour, shown, *shape)
    return theme.marked(
        drawn.drop(columns="key"), "point", *channels, filled=True, size=75, opacity=0.85
    )


def precision(name: str) -> str:
    """Return the name of a precision as people write it.

    >>> precision("fp32"), precision("bf16_tensor"), precision("fp16_tensor_acc16")
    ('FP32', 'BF16 tensor', 'FP16 tensor (FP16 accumulation)')
    """
    kind, *more = name.split("_")
    return " ".join(
        [kind if kind == "tensor" else kind.upper(), *(_WORDS.get(word, word) for word in more)]
    )


def rate(value: float, ladder: tuple[Unit, ...]) -> str:
    """Return a rate in the largest unit it fills.

    >>> rate(19.5e12, FLOPS), rate(1.935e12, BYTES)
    ('19.5 TFLOP/s', '1.94 TB/s')
    """
    chosen = unit(value, ladder)
    return f"{number(value / chosen.size)} {chosen.symbol}"


def roof_layers(ceilings: pd.DataFrame, used: set[str], level: str) -> pd.DataFrame:
    """Return slope, height, label and source of each distinct roof; precisions of one height share it."""
    slopes = ceilings[ceilings["roof"] == level].drop_duplicates("bytes_per_s")
    wanted = used | {name.removesuffix("_acc16") for name in used}
    rows = [
        (float(speed), np.nan, f"{LEVELS[level]} {rate(float(speed), BYTES)}", source)
        for speed, source in zip(slopes["bytes_per_s"], slopes["source"], strict=True)
    ]
    for height, same in ceilings[ceilings["roof"].isin(wanted)].groupby("flops_per_s"):
        who = ", ".join(dict.fromkeys(precision(str(name)) for name in same["roof"]))
        rows.append(
            (
                np.nan,
                float(str(height)),
                f"{who} {rate(float(str(height)), FLOPS)}",
                same["source"].iloc[0],
            )
        )
    return pd.DataFrame(rows, columns=["slope", "height", "label", "source"]).astype(
        {"slope": float, "height": float}
    )


def ridge_layers(roofs: pd.DataFrame) -> pd.DataFrame:
    """Return intensity, performance and label of each point where a slope meets a height."""
    slopes, heights = (
        roofs.loc[roofs["slope"].notna(), ["slope"]],
        roofs.loc[roofs["height"].notna(), ["height"]],
    )
    met = slopes.merge(heights, how="cross")
    met = pd.DataFrame({"intensity": met["height"] / met["slope"], "performance": met["height"]})
    return met.assign(label=[f"ridge {number(at)} FLOP/byte" for at in met["intensity"]])


def frame_of(drawn: pd.DataFrame, roofs: pd.DataFrame, ridges: pd.DataFrame) -> Frame:
    """Return corners that hold all points and ridges, with room on the right for labels."""
    x = pd.concat([drawn["intensity"], ridges["intensity"]])
    y = pd.concat([drawn["performance"], roofs["height"].dropna()])
    return Frame(x.min() / 6, x.max() * 30, y.min() / 3, y.max() * 3)


def lines(roofs: pd.DataFrame, frame: Frame) -> pd.DataFrame:
    """Return the ends of each roof, and, with `label`, the place of its text."""
    every = enumerate(roofs.to_dict("records"))
    rows = [(n, *end, roof["source"]) for n, roof in every for end in _ends(roof, roofs, frame)]
    return pd.DataFrame(
        rows, columns=["line", "intensity", "performance", "roof", "label", "source"]
    )


def _ends(
    roof: dict[Any, Any], roofs: pd.DataFrame, frame: Frame
) -> Iterator[tuple[float, float, str, str]]:
    """Return intensity, performance, name and, at one of the ends, label of a roof."""
    if pd.isna(roof["height"]):
        highest = (
            min(frame.top, roofs["height"].max()) if roofs["height"].notna().any() else frame.top
        )
        first = max(frame.left, frame.bottom / roof["slope"])
        last = max(first, min(frame.right, highest / roof["slope"]))
        for at, text in ((first, ""), (first * (last / first) ** 0.6, roof["label"]), (last, "")):
            yield at, roof["slope"] * at, roof["label"], text
        return
    steepest = roofs["slope"].max()
    first = frame.left if pd.isna(steepest) else max(frame.left, roof["height"] / steepest)
    for at, text in ((first, ""), (frame.right, roof["label"])):
        yield at, roof["height"], roof["label"], text

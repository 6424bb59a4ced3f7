"""How every chart looks, and how it reaches the notebook: colours, names for people, theme, renderer.

A colour means the same thing in every chart. Within each palette, colours stay apart for normal sight and three kinds
of colour blindness (tests/charts/test_theme.py computes it). The theme sets sizes and places only: text keeps the
page's colour, light or dark. Chart modules name the fields, never the data. A chart holds its values and needs no file
and no network.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from textwrap import wrap
from typing import Any

import altair as alt
import pandas as pd
from altair.utils import schemapi

from perfkit.charts.vega import MIME
from perfkit.format import EMPTY, MISSING
from perfkit.names.parts import CAUSE

with Path(__file__).with_name("words.toml").open("rb") as _file:
    WORDS: dict[str, dict[str, str]] = tomllib.load(_file)
with Path(__file__).with_name("colours.toml").open("rb") as _file:
    COLOURS: dict[str, dict[str, Any]] = tomllib.load(_file)

WIDTH = 640
LABEL_WIDTH = 260
KIND_COLOURS: dict[str, str] = COLOURS["kind"]
KIND_NAMES: dict[str, str] = {kind: kind.replace("_", " ") for kind in KIND_COLOURS}
FAMILY_COLOURS: dict[str, str] = {
    key: KIND_COLOURS.get(shade, shade) for key, shade in COLOURS["family"].items()
}
CAUSE_COLOURS: dict[str, str] = COLOURS["cause"]
CAUSE_NAMES = {key: CAUSE[key] for key in CAUSE_COLOURS}
DETAIL_COLOURS: dict[str, str] = COLOURS["detail"]
DETAIL_NAMES = {key: CAUSE[key] for key in DETAIL_COLOURS}
STATE_COLOURS, STATE_NAMES = (
    {key: row[at] for key, row in COLOURS["state"].items()} for at in (0, 1)
)
PHASE_COLOURS, PHASE_NAMES = (
    {key: row[at] for key, row in COLOURS["phase"].items()} for at in (0, 1)
)
# Of lines, one for each GPU: those of `perfkit.charts.ranks`, which stay apart for every sight.
LINE_COLOURS = (
    "#1F77D4",
    "#D55E00",
    "#00B878",
    "#744FEA",
    "#E0A010",
    "#884421",
    "#CB8BC4",
    "#276B71",
)
STRIP_NAMES = WORDS["strips"]  # of metrics, in their order
Size = tuple[int, int | alt.Step]  # width and height, pixels
Chart = alt.TopLevelMixin  # of one picture or of several
WIDEST = 60  # pixels of a column
MOST_ROWS = 20_000
LEAST, ROOM, LOOK_MS = (
    400,
    500,
    400,
)  # a chart that follows its cell, and a narrow cell, pixels; between two looks
CELL = ".jp-RenderedVegaCommon5 :is(.vega-embed, .vega-embed .chart-wrapper)"
WIDE = "containerSize()[0] > 100 ? containerSize()[0] : "
NUMBERS, NAMES = (
    70,
    LABEL_WIDTH + 25,
)  # left of several pictures: what an axis of numbers takes, of names; pixels
RESIZED = {"source": "window", "type": "resize"}


@cache
def register() -> None:
    """Register and enable perfkit's renderer and theme in Altair, once: one that the user enables later stays."""
    alt.renderers.register("perfkit", _bundle)
    alt.renderers.enable("perfkit")
    alt.theme.register("perfkit", enable=True)(_theme)


def follow_cells() -> str:
    """Let charts shown from now on take the width of their notebook cell, and follow it; return the style they need.

    A renderer that the user enabled stays, as `register` promises.
    """
    register()
    if alt.renderers.active == "perfkit":
        alt.renderers.enable("perfkit", follow=True)
    return f"<style>{CELL}{{display:block;width:100%}}</style>"


def _bundle(spec: dict[str, Any], follow: bool = False, **_: object) -> dict[str, Any]:
    words = f"chart: {spec.get('description', 'no description')}"
    return {MIME: following(spec) if follow else spec, "text/plain": words}


def following(spec: dict[str, Any]) -> dict[str, Any]:
    """Return pictures as wide as their cell, with titles and legends in lines that fit; these change in place.

    These are a single one, and several of the same width below each other; others stay as they are.
    """
    panels = spec.get("vconcat", [spec])
    if not _has_one_width(spec, panels):
        return spec
    encodings = [layer.get("encoding", {}) for one in panels for layer in one.get("layer", [one])]
    columns = _columns(encodings, spec.get("datasets", {}))
    several = "vconcat" in spec
    upward = {encoding.get("y", {}).get("type") for encoding in encodings}
    room = NAMES if {"nominal", "ordinal"} & upward else NUMBERS
    config = spec.get("config", {})
    look = {
        **spec,
        "config": {**config, "legend": {**config.get("legend", {}), "columns": columns}},
        "usermeta": {"embedOptions": {"patch": measured(True, room if several else None)}},
        "title": _broken(spec.get("title"), 52, 76),
    }
    if not several:
        return {**look, "width": "container"}
    # The parameter is there so that there are signals, to which the patch adds.
    widths = [*spec.get("params", []), {"name": "panels", "value": panels[0].get("width", WIDTH)}]
    for one in panels:
        if "title" in one:
            one["title"] = _broken(one["title"], 76, 76)
    return {**look, "params": widths}


def _has_one_width(spec: dict[str, Any], panels: Sequence[dict[str, Any]]) -> bool:
    """Return whether a picture can be widened: one alone, or several of the same width below each other."""
    beside = {"hconcat", "concat", "facet", "repeat", "row", "column"}
    widths = {one.get("width", WIDTH) for one in panels}
    is_wide = all(isinstance(width, int) and width >= LEAST for width in widths)
    return is_wide and len(widths) == 1 and not beside & {*spec, *spec.get("encoding", {})}


def _columns(encodings: Sequence[dict[str, Any]], datasets: Mapping[str, Any]) -> int:
    """Return how many columns of a legend fit a narrow cell; a legend of more columns is changed in place."""
    colours = [encoding.get("color", {}) for encoding in encodings]
    names = [name for each in colours for name in (each.get("scale") or {}).get("domain", [])]
    if not names:  # a chart of one's own: what stands in its data
        fields = {str(each.get("field")) for each in colours if each.get("type") == "nominal"}
        rows = [row for rows in datasets.values() for row in rows if isinstance(row, dict)]
        names = [row.get(field) for row in rows for field in fields]
    longest = max((len(str(name)) for name in names), default=0)
    columns = min(max(ROOM // (7 * longest + 30), 1), 5)
    for legend in (each.get("legend") or {} for each in colours):
        legend["columns"] = min(legend.get("columns", columns), columns)
    return columns


def _broken(given: Any, longest: int, longest_below: int) -> dict[str, Any]:
    """Return a title with its text and what stands below it in lines of so many letters."""
    title: dict[str, Any] = dict(given) if isinstance(given, dict) else {"text": given or ""}
    for part, most in (("text", longest), ("subtitle", longest_below)):
        told = title.get(part) or []
        title[part] = [
            line
            for text in ([told] if isinstance(told, str) else told)
            for line in wrap(text, most)
        ]
    return title


def measured(looks: bool, labels: int | None = None) -> list[dict[str, Any]]:
    """Return what lets a chart whose width is "container" follow it, for Vega-Embed; hidden, it keeps its width.

    JupyterLab draws a chart before it is on the page, when its cell has no width yet, and tells it nothing of a new
    width. So it `looks` again and again, unless something tells it by a resize of the window. The chart's own width is
    what its axes leave of that: set at each look, it would draw the whole chart again. Vega-Lite knows no container of
    several pictures: theirs is the width without the `labels`, pixels.
    """
    events = [RESIZED, {"type": "timer", "throttle": LOOK_MS}] if looks else [RESIZED]
    init, seen = f"{WIDE}{WIDTH + LABEL_WIDTH}", "container_width"
    inner = seen if labels is None else f"max({seen} - {labels}, 120)"
    width = {
        "name": "width",
        "init": inner.replace(seen, f"({init})"),
        "on": [{"events": {"signal": seen}, "update": inner}],
    }
    container = {"name": seen, "init": init, "on": [{"events": events, "update": f"{WIDE}{seen}"}]}
    add = {"op": "add", "path": "/signals/-"}
    first = {"op": "replace", "path": "/signals/0"} if labels is None else add
    return [{**first, "value": width}, {**add, "value": container}]


def _theme() -> alt.theme.ThemeConfig:
    return {
        "config": {
            "padding": {"left": 0, "top": 5, "right": 5, "bottom": 5},
            "font": "system-ui, sans-serif",
            "view": {"stroke": None, "continuousWidth": WIDTH, "continuousHeight": 260},
            "title": {
                "anchor": "start",
                "frame": "bounds",
                "fontSize": 15,
                "fontWeight": 600,
                "subtitleFontSize": 12,
                "subtitlePadding": 4,
                "offset": 10,
            },
            "axis": {
                "labelFontSize": 12,
                "titleFontSize": 12,
                "titleFontWeight": "normal",
                "titlePadding": 8,
                "labelLimit": LABEL_WIDTH,
                "labelSeparation": 6,
                "maxExtent": LABEL_WIDTH
                + 20,  # of labels, beyond which the title stands; Vega's is less
                "gridOpacity": 0.35,
                "domainOpacity": 0.5,
                "tickOpacity": 0.5,
            },
            "legend": {
                "orient": "top",
                "direction": "horizontal",
                "title": None,
                "labelFontSize": 12,
                "labelLimit": 320,
                "columns": 5,
                "symbolType": "square",
                "columnPadding": 14,
            },
        }
    }


def layered(
    layers: Iterable[alt.Chart],
    title: str,
    explanation: str | Sequence[str],
    *,
    picture: str,
    size: Size,
) -> alt.LayerChart:
    """Return the layers, drawn in this order, as one chart with the description that screen readers speak.

    `title` is what is seen, `explanation` how to read it (lines under the title; may be empty), `picture` the kind of
    picture for the description, and `size` width and height of the drawing without its labels, pixels.
    """
    notes = [
        note for note in ([explanation] if isinstance(explanation, str) else explanation) if note
    ]
    register()
    chart: alt.LayerChart = alt.LayerChart(layer=list(layers)).properties(
        width=size[0],
        height=size[1],
        title=alt.TitleParams(text=title, subtitle=notes),
        description=" ".join(f"{text.rstrip('.')}." for text in (title, picture, *notes) if text),
    )
    return chart


def hover(*fields: str | tuple[str, ...]) -> list[alt.Tooltip]:
    """Return what the mouse shows of a row: each a field, with its title, and for a number its format.

    >>> [str(tip.shorthand) for tip in hover("cause", ("time", "idle time"), ("count", "gaps", ","), "launch:Q")]
    ['cause:N', 'time:N', 'count:Q', 'launch:Q']
    """
    tips = []
    for field in fields:
        name, *words = (field,) if isinstance(field, str) else field
        shorthand = name if ":" in name else f"{name}:{'Q' if len(words) > 1 else 'N'}"
        options: dict[str, Any] = dict(zip(("title", "format"), words, strict=False))
        tips.append(alt.Tooltip(shorthand, **options))
    return tips


def marked(rows: pd.DataFrame, kind: str, *channels: Any, **look: Any) -> alt.Chart:
    """Return the rows as marks of a kind (bar, rect, line, ...) with this look and these channels."""
    told = inline(_told(rows, channels))
    marks: alt.Chart = getattr(alt.Chart(told), f"mark_{kind}")(**look).encode(*channels)
    return marks


def _told(rows: pd.DataFrame, channels: Sequence[Any]) -> pd.DataFrame:
    """Return the rows with n/a for what is missing in the texts of a tooltip: a page would show null."""
    tips = (tip for channel in channels if isinstance(channel, list) for tip in channel)
    texts = {str(tip.shorthand).removesuffix(":N") for tip in tips}
    lacking = [name for name in rows if name in texts and rows[name].isna().any()]
    filled = {
        name: rows[name].astype(object).where(rows[name].notna(), MISSING) for name in lacking
    }
    return rows.assign(**filled)


def ink(data: alt.InlineData, *, dx: float = 0, **look: Any) -> alt.Chart:
    """Return text marks in the colour of axis labels: unfilled, else Vega-Lite paints them black."""
    look = {
        "style": "guide-label",
        "filled": False,
        "stroke": "transparent",
        "align": "left",
        "fontSize": 11,
        **look,
    }
    marks: alt.Chart = alt.Chart(data).mark_text(dx=dx, tooltip=False, **look)
    return marks


def words(rows: pd.DataFrame, *channels: Any, **look: Any) -> alt.Chart:
    """Return text of the rows in the page's colour, as `ink` draws it, with these channels."""
    marks: alt.Chart = ink(inline(rows), **look).encode(*channels)
    return marks


def colours(
    palette: Mapping[str, str], names: Mapping[str, str], present: Iterable[str]
) -> alt.Scale:
    """Return the colour scale of the keys that are present, in the palette's order, under their names."""
    keys = set(present)
    shown = [key for key in palette if key in keys]
    return alt.Scale(
        domain=[names.get(key, key) for key in shown], range=[palette[key] for key in shown]
    )


def nothing(title: str, why: str) -> alt.LayerChart:
    """Return a chart without marks that states under `title` why there is nothing to draw."""
    blank: alt.Chart = alt.Chart(alt.InlineData(values=[{}])).mark_point(opacity=0, tooltip=False)
    chart = layered(
        [blank], title, why.replace("`", ""), picture="Nothing to draw", size=(WIDTH, 1)
    )
    chart.name = EMPTY
    return chart


def devices(frame: pd.DataFrame) -> pd.Series:
    """Return a label per row from rank, gpu and, if there, stream; the rank only if there are several.

    >>> devices(pd.DataFrame({"rank": [0, 1], "gpu": [0, -1], "stream": [7, -1]})).tolist()
    ['rank 0 · GPU 0 · stream 7', 'rank 1 · unknown GPU · unknown stream']
    """
    label = _numbered(frame["gpu"], "GPU")
    if len(frame["rank"].unique()) > 1:
        label = "rank " + frame["rank"].astype(str) + " · " + label
    return label + " · " + _numbered(frame["stream"], "stream") if "stream" in frame else label


def _numbered(values: pd.Series, what: str) -> pd.Series:
    """`what` and its number; -1 stands for one that was not recorded."""
    return (f"{what} " + values.astype(str)).where(values != -1, f"unknown {what}")


def inline(frame: pd.DataFrame) -> alt.InlineData:
    """Return the rows of `frame` as data of a chart, missing values as null; ValueError above 20,000 rows."""
    if len(frame) > MOST_ROWS:
        raise ValueError(
            f"chart data: {len(frame)} rows are more than {MOST_ROWS}. Use fewer bins, GPUs or kernels."
        )
    values = frame.astype(object)
    rows = values.where(values.notna(), None).to_dict("records")
    # Altair checks every value against its schema, which takes a second for a thousand rows; these are scalars. A chart
    # copies lists and all that is in them again and again, tuples not.
    with schemapi.debug_mode(False):
        return alt.InlineData(
            values=tuple({str(name): value for name, value in row.items()} for row in rows)
        )


def placed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows by rank and gpu with `place`, the words below their column, and `name`.

    >>> placed(pd.DataFrame({"rank": [1, 0], "gpu": [1, 0]}))[["place", "name"]].to_numpy().tolist()
    [['0', 'rank 0'], ['1', 'rank 1']]
    """
    rows = frame.sort_values(["rank", "gpu"], kind="stable", ignore_index=True)
    rank, gpu, counted = (
        rows["rank"].astype(str),
        rows["gpu"].astype(str).where(rows["gpu"] != -1, "?"),
        _counted(rows),
    )
    place = {"rank": rank, "GPU": gpu}.get(counted, rank + " · " + gpu)
    return rows.assign(place=place, name="rank " + rank if counted == "rank" else devices(rows))


def across(rows: pd.DataFrame) -> alt.X:
    """Return the axis below the columns of what `placed` returned; labels that would overlap are left out."""
    axis = alt.Axis(labelAngle=0, labelOverlap=True, ticks=False)
    return alt.X(
        "place:N", title=_counted(rows), sort=rows["place"].drop_duplicates().tolist(), axis=axis
    )


def width(rows: pd.DataFrame) -> int:
    """Return the width of the picture, pixels."""
    return min(WIDEST * rows["place"].nunique(), WIDTH)


def _counted(rows: pd.DataFrame) -> str:
    if not rows["rank"].duplicated().any():
        return "rank"
    return "rank · GPU" if (rows["rank"] != rows["rank"].iloc[0]).any() else "GPU"


def panel(layers: Iterable[alt.Chart], name: str, *, picture: str, size: Size) -> alt.LayerChart:
    """Return the layers as one picture of several, named above it; the other arguments are those of `layered`."""
    chart = layered(layers, name, "", picture=picture, size=size)
    chart.title = alt.TitleParams(text=name, fontSize=12)
    return chart


def together(
    panels: Sequence[alt.LayerChart], title: str, explanation: Sequence[str], *, picture: str
) -> alt.LayerChart | alt.VConcatChart:
    """Return the panels below each other under title and explanation; a single one loses its title."""
    several = f"{picture}, {len(panels)} panels" if len(panels) > 1 else picture
    frame = {
        "title": alt.TitleParams(text=title, subtitle=list(explanation)),
        "description": " ".join(
            [f"{text.rstrip('.')}." for text in (title, several, *explanation)]
        ),
    }
    if len(panels) == 1:
        return panels[0].properties(**frame)
    chart: alt.VConcatChart = alt.VConcatChart(vconcat=list(panels), spacing=10).properties(**frame)
    return chart

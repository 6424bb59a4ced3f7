"""The timeline that a person zooms into: busy shares of bins where there is much, operations one by one where not.

It is drawn again at every gesture, and a chart of Altair takes a third of a second to make: this one is Vega-Lite
itself. Signals of Vega, patched in, report a brush when it is let go, since replacing the picture earlier would end the
gesture. Times are ns since the start of the window. CSV holds numbers alone: no name of a kernel can end a row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.charts import theme
from perfkit.charts.theme import DETAIL_COLOURS, FAMILY_COLOURS, KIND_COLOURS, KIND_NAMES, MOST_ROWS, WIDTH, known, need
from perfkit.format import TIME, Unit, elided, unit

BRUSH, CHOSEN, CLICKED, RESET = "brush", "chosen", "clicked", "reset"
SIGNALS: dict[str, tuple[str, str]] = {
    CHOSEN: ("window:pointerup", f"{BRUSH}_start ? [{BRUSH}_start[0], {BRUSH}_start[1]] : {CHOSEN}"),
    CLICKED: ("click", f"datum && isValid(datum.id) ? datum.id : {CLICKED}"),
    RESET: ("dblclick", "now()"),
}


class Canvas(alt.JupyterChart):
    """Shows a specification, `draw`, and calls who `listen`s.

    The signals: `CHOSEN`, the ends of the brush on the axis when it is let go; `CLICKED`, the ``id`` of the row that is
    clicked; `RESET`, a double click. The brush is an interval named `BRUSH` along ``x``, of the field ``start``.
    """

    def draw(self, spec: dict[str, Any]) -> None:
        """Show a specification; gestures made in the one before are forgotten."""
        self.spec = spec

    def listen(self, signal: str, heard: Callable[[Any], None]) -> None:
        """Call `heard` with the value of a signal each time that a person changes it."""
        self.params.observe(lambda change: None if change["new"] is None else heard(change["new"]), [signal])


GREY = "#6B757E"  # white words on it have a contrast of 4.8
BESIDE_COLOURS: dict[str, str] = {
    "copied": KIND_COLOURS["copy"],
    "launch": DETAIL_COLOURS["launch"],
    "sync": DETAIL_COLOURS["sync"],
    "memory": DETAIL_COLOURS["memory"],
    "call": DETAIL_COLOURS["host_code"],
    "range": GREY,
    "step": GREY,
}
BESIDE_NAMES: dict[str, str] = {
    "copied": KIND_NAMES["copy"],
    "launch": "launching call",
    "sync": "synchronising call",
    "memory": "memory call",
    "call": "other call",
    "range": "NVTX range",
    "step": "step",
}
COLOURS: dict[str, str] = {**KIND_COLOURS, **FAMILY_COLOURS, **BESIDE_COLOURS}
del COLOURS["idle"]
NAMES: dict[str, str] = {**KIND_NAMES, **{family: family for family in FAMILY_COLOURS}, **BESIDE_NAMES}
BINS = ("lane", "kind", "start_ns", "dur_ns", "busy_frac")
_CALL = ("correlation", "call", "call_start_ns", "call_dur_ns")
SPANS = ("lane", "level", "levels", "kind", "name", "start_ns", "dur_ns", *_CALL, "id")
FILL = 0.86  # of a lane's height
LONGEST = 50  # characters of a name
LETTER, LINE = 6.0, 9.0  # pixels across and down, at the size of the words
SHORTEST, MOST_WORDS = 4, 120  # characters that tell something; words that can be read
MILLI = 1000  # heights, and shares of bins, travel as thousandths
_PLACE = ("s", "d", "k", "low", "high")
COLUMNS: dict[str, tuple[str, ...]] = {
    "bins": (*_PLACE, "busy"),
    "operations": (*_PLACE, "n", "c", "a", "t", "u", "id"),
    "others": (*_PLACE, "n"),
}
_NUMBERS = NDArray[np.int64]


class _Names:
    """Texts, each of which travels once, by number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def of(self, texts: pd.Series, *, kinds: bool = False) -> _NUMBERS:
        """Return the number of each text, or of the name of each of the `kinds`; -1 of a missing one."""
        codes, distinct = pd.factorize(texts)
        words = [NAMES[text] if kinds else _short(text) for text in distinct]
        return np.array([*(self.numbers.setdefault(word, len(self.numbers)) for word in words), -1], np.int64)[codes]


Spec = dict[str, Any]
EDGE = 0.07  # of a lane's height, above and below, so that neighbours stay apart
APART = 4  # pixels of a bar from which on an edge parts it from the next
PAPER = "#808080"
FULL, LEAST, MOST = 320, 16, 64  # height of the picture and of a lane, pixels
INK = "currentColor"  # the page's own: dark on light, light on dark
MOST_TICKS = 8  # numbers of seven digits stay apart


def timeline(
    labels: Sequence[str],
    bins: pd.DataFrame,
    spans: pd.DataFrame,
    *,
    window: tuple[int, int],
    title: str,
    explanation: Sequence[str] = (),
) -> Spec:
    """Return the Vega-Lite specification of lanes over a window with its data; empty lanes without a row.

    `labels`: the lanes' names from the top down, of numbers and words of perfkit, never of names from a profile.
    `bins`: columns lane (number), kind (of `COLOURS`), start_ns, dur_ns, busy_frac (0..1): bins with busy time.
    `spans`: columns lane, level (from 0), levels (that its lane has), kind, name, start_ns, dur_ns, correlation (-1
    none), call (name of the launching call), call_start_ns, call_dur_ns (Int64), id (Int64; what a click reports): NA
    where there is none.
    `window`: (start_ns, end_ns) of the axis. `title`, `explanation`: what is seen, and lines on how to read it. Raises
    ValueError if there are more rows than a browser draws.
    """
    need(bins, *BINS)
    need(spans, *SPANS)
    for frame in (bins, spans):
        known(frame, "kind", COLOURS)
    theme.fraction(bins, "busy_frac")
    if len(bins) + len(spans) > MOST_ROWS:
        raise ValueError(f"chart data: {len(bins) + len(spans)} rows are more than {MOST_ROWS}. Use fewer bins.")
    scale = unit(window[1] - window[0], TIME)
    ends = {"domain": [edge / scale.size for edge in window], "nice": False, "zero": False}
    since, axis = f"time since the start of the capture ({scale.symbol})", {"tickCount": MOST_TICKS, "gridOpacity": 0.4}
    across = {"field": "start", "type": "quantitative", "title": since, "scale": ends, "axis": axis}
    place = {"x": across, "y": _lane_axis(labels)}
    shades = _shades([*bins["kind"].unique(), *spans["kind"].unique()])
    # with what the axis shows to those who see it
    first, last = (f"{edge / 1e9:.9f} s" for edge in window)
    spoken = (f"{title}, from {first} to {last}", "Timeline", *explanation)
    lane = min(max(FULL / max(len(labels), 1), LEAST), MOST)
    return {
        "$schema": alt.SCHEMA_URL,
        "config": _config(),
        "background": "transparent",
        "width": WIDTH,
        "height": round(lane * max(len(labels), 1)),
        "title": {"text": title, "subtitle": list(explanation)},
        "description": " ".join(f"{text.rstrip('.')}." for text in spoken),
        "datasets": datasets(labels, bins, spans, window=window, size=(WIDTH, lane)),
        "layer": [
            backdrop_layers(place),
            bin_layers(place, shades, window[0], scale),
            *span_layers(place, shades, window, scale),
            word_layers(place, window[0], scale),
        ],
    }


def _config() -> Spec:
    """Return the theme with inks that follow the page: outside of a notebook's own viewer nothing else sets them."""
    config = theme.config()
    inks: dict[str, Spec] = {
        "title": {"color": INK, "subtitleColor": INK},
        "axis": {"labelColor": INK, "titleColor": INK, "domainColor": PAPER, "tickColor": PAPER},
        "legend": {"labelColor": INK},
    }
    return {**config, **{part: {**config.get(part, {}), **ink} for part, ink in inks.items()}}


def _lane_axis(labels: Sequence[str]) -> Spec:
    ticks = [number + 0.5 for number in range(len(labels))]
    look = {"labelOverlap": False, "labelFontSize": 11, "labelPadding": 6, "grid": False, "ticks": False}
    axis = {"values": ticks, "labelExpr": f"{json.dumps(list(labels))}[floor(datum.value)]", **look, "domain": False}
    limits = {"domain": [max(len(labels), 1), 0], "nice": False}
    return {"field": "low", "type": "quantitative", "title": None, "axis": axis, "scale": limits}


def _shades(kinds: Iterable[str]) -> Spec:
    """Return the encoding of the colours, with a legend of the kinds that are there; one name stands once."""
    present = set(kinds)
    shown = {NAMES[kind]: COLOURS[kind] for kind in COLOURS if kind in present}
    return {
        "field": "what",
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(shown), "range": list(shown.values())},
        "legend": {} if shown else None,
    }


def canvas() -> Canvas:
    """Return a canvas that needs no network; the first of a process takes seconds, which its script is bundled in."""
    alt.JupyterChart.enable_offline()
    blank = alt.Chart(alt.InlineData(values=[])).mark_point(tooltip=False)
    signals = [
        {"name": name, "value": None, "on": [{"events": events, "update": update}]}
        for name, (events, update) in SIGNALS.items()
    ]
    patch = [{"op": "add", "path": "/signals/-", "value": signal} for signal in signals]
    options = {"actions": False, "renderer": "svg", "patch": patch}  # SVG takes the colour of its text from the page
    drawn = Canvas(blank.add_params(*(alt.param(name=signal, value=None) for signal in SIGNALS)), embed_options=options)
    drawn.draw({})
    return drawn


def backdrop_layers(place: Spec) -> Spec:
    """Return the lanes, grey where nothing runs."""
    return {
        "data": {"name": "lanes"},
        "transform": [
            {"calculate": f"datum.lane + {1 - EDGE}", "as": "low"},
            {"calculate": f"datum.lane + {EDGE}", "as": "high"},
        ],
        "mark": {"type": "rect", "color": PAPER, "opacity": 0.12, "tooltip": False},
        "encoding": {"y": place["y"], "y2": {"field": "high"}, "x": {"value": 0}, "x2": {"value": "width"}},
    }


def _placed(first: int, scale: Unit) -> list[Spec]:
    """Return the transforms from nanoseconds since the start of the window, and numbers of names, to what is shown."""
    return [
        {"calculate": f"(datum.s + {first}) / {scale.size:.0f}", "as": "start"},
        {"calculate": f"(datum.s + datum.d + {first}) / {scale.size:.0f}", "as": "end"},
        _named("k", "what"),
        {"calculate": f"datum.low / {MILLI}", "as": "low"},
        {"calculate": f"datum.high / {MILLI}", "as": "high"},
        {"calculate": "floor(datum.high)", "as": "lane"},
        {"lookup": "lane", "from": {"data": {"name": "lanes"}, "key": "lane", "fields": ["label"]}},
    ]


def _named(number: str, field: str) -> Spec:
    source = {"data": {"name": "names"}, "key": "i", "fields": ["text"]}
    return {"lookup": number, "from": source, "as": [field], "default": "not recorded"}


def _rect(place: Spec, shades: Spec, stroke: Spec, **more: Any) -> Spec:
    """Return mark and channels of rectangles."""
    return {
        "mark": {"type": "rect", "clip": True, "strokeWidth": 0.7, **more},
        "encoding": {**place, "x2": {"field": "end"}, "y2": {"field": "high"}, "fill": shades, "stroke": stroke},
    }


def _csv(name: str) -> Spec:
    parse = {column: "string" if column == "id" else "number" for column in COLUMNS[name]}
    return {"name": name, "format": {"type": "csv", "parse": parse}}


def bin_layers(place: Spec, shades: Spec, first: int, scale: Unit) -> Spec:
    """Return how busy the lanes were; the brush is this layer's, which is there also without a row."""
    drawn = _rect(place, shades, shades)
    drawn["encoding"]["tooltip"] = [
        {"field": "label", "type": "nominal", "title": "lane"},
        {"field": "what", "type": "nominal", "title": "kind"},
        {"field": "start", "type": "quantitative", "title": f"bin starts at ({scale.symbol})", "format": ",.9~f"},
        {"field": "busy", "type": "quantitative", "title": "busy share of the bin (%)", "format": ".1%"},
    ]
    brush = {"name": BRUSH, "select": {"type": "interval", "encodings": ["x"], "translate": False, "zoom": False}}
    share = {"calculate": f"datum.busy / {MILLI}", "as": "busy"}
    return {"data": _csv("bins"), "params": [brush], "transform": [*_placed(first, scale), share], **drawn}


def span_layers(place: Spec, shades: Spec, window: tuple[int, int], scale: Unit) -> list[Spec]:
    """Return operations of the GPU and of the CPU; the outline keeps visible what is narrower than a pixel."""
    first, wide = window[0], (window[1] - window[0]) * APART // WIDTH
    stroke = {**shades, "condition": {"test": f"datum.d > {wide}", "value": "white"}}
    shown = [("name", "name"), ("label", "lane"), ("what", "kind"), ("time", f"starts at ({scale.symbol})")]
    shown += [("length", "duration")]
    launch = [("c", "correlation"), ("call", "launched by"), ("called", f"call starts at ({scale.symbol})")]
    launch += [("took", "call lasts")]
    placed = [
        *_placed(first, scale),
        _named("n", "name"),
        _named("a", "call"),
        {"calculate": "datum.c < 0 ? 'none' : datum.c", "as": "c"},
        {"calculate": "format(datum.start, ',.9~f')", "as": "time"},
        {"calculate": _length("datum.d"), "as": "length"},
        {
            "calculate": f"isValid(datum.t) ? format((datum.t + {first}) / {scale.size:.0f}, ',.9~f') : 'n/a'",
            "as": "called",
        },
        {"calculate": f"isValid(datum.u) ? {_length('datum.u')} : 'n/a'", "as": "took"},
    ]
    layers = []
    for name, lines in {"operations": [*shown, *launch], "others": shown}.items():
        drawn = _rect(place, shades, stroke, cursor="pointer" if name == "operations" else "crosshair")
        drawn["encoding"]["tooltip"] = [{"field": field, "type": "nominal", "title": title} for field, title in lines]
        layers.append({"data": _csv(name), "transform": placed, **drawn})
    return layers


def _length(value: str) -> str:
    """Return the expression of a time in ns as people read it."""
    text = f"format({value} / {TIME[-1].size:.0f}, '.4~r') + ' {TIME[-1].symbol}'"
    for step, above in zip(reversed(TIME[:-1]), reversed(TIME[1:]), strict=True):
        text = f"{value} < {above.size:.0f} ? format({value} / {step.size:.0f}, '.4~r') + ' {step.symbol}' : {text}"
    return f"({text})"


def word_layers(place: Spec, first: int, scale: Unit) -> Spec:
    """Return the names that fit into their bars, in white on the greys and purples of what ran on the CPU."""
    return {
        "data": {"name": "words"},
        "transform": [{"calculate": f"(datum.s + {first}) / {scale.size:.0f}", "as": "start"}],
        "mark": {"type": "text", "align": "left", "dx": 3, "fontSize": 10, "color": "white", "tooltip": False},
        "encoding": {**place, "text": {"field": "text", "type": "nominal"}},
    }


def datasets(
    labels: Sequence[str],
    bins: pd.DataFrame,
    spans: pd.DataFrame,
    *,
    window: tuple[int, int],
    size: tuple[float, float],
) -> dict[str, Any]:
    """Return the data that the layers of `timeline` name, for a picture of this width and height of a lane."""
    names = _Names()
    is_beside = spans["kind"].isin(list(BESIDE_COLOURS))
    return {
        "lanes": [{"lane": number, "label": label} for number, label in enumerate(labels)],
        "bins": _text("bins", _stacked(bins, window[0], names)),
        "operations": _text("operations", _spans(spans[~is_beside], window[0], names)),
        "others": _text("others", _spans(spans[is_beside], window[0], names)),
        "words": _words(spans[is_beside & (spans["kind"] != "copied")], window, *size),
        "names": [{"i": number, "text": text} for text, number in names.numbers.items()],
    }


@lru_cache(maxsize=20_000)
def _short(text: str) -> str:
    """Return a name for a tooltip: the same few thousand are shown again and again."""
    return elided(text, LONGEST)


def _text(name: str, columns: dict[str, Any]) -> str:
    """Return the columns as CSV: integers, and nothing where one is missing."""
    rows = zip(*(columns[column].tolist() for column in COLUMNS[name]), strict=True)
    return "\n".join([",".join(COLUMNS[name]), *(",".join(map(str, row)) for row in rows)])


def _milli(values: NDArray[np.float64]) -> _NUMBERS:
    return np.rint(values * MILLI).astype(np.int64)


def _stacked(bins: pd.DataFrame, first: int, names: _Names) -> dict[str, Any]:
    """Return the bins as rectangles stacked in a lane one unit high, scaled where operations overlap."""
    codes, kinds = pd.factorize(bins["kind"])
    places = np.array([*(list(NAMES).index(kind) for kind in kinds), 0])[codes]
    order = np.lexsort([places, *(bins[c].to_numpy(np.int64) for c in ("start_ns", "lane"))])
    lane, start, dur = (bins[c].to_numpy(np.int64)[order] for c in ("lane", "start_ns", "dur_ns"))
    part = bins["busy_frac"].to_numpy(np.float64)[order]
    above = np.append(True, (np.diff(lane) != 0) | (np.diff(start) != 0))[: len(lane)]
    sums = np.cumsum(part)
    top = sums - np.maximum.accumulate(np.where(above, sums - part, 0))
    full = max(1.0, float(top.max(initial=0)))
    floor = lane + 1 - (1 - FILL) / 2
    return {
        "s": start - first,
        "d": dur,
        "k": names.of(bins["kind"], kinds=True)[order],
        "low": _milli(floor - FILL * (top - part) / full),
        "high": _milli(floor - FILL * top / full),
        "busy": _milli(part),
    }


def _spans(spans: pd.DataFrame, first: int, names: _Names) -> dict[str, Any]:
    """Return the operations as rectangles; nested ones lie below the one around them."""
    height = FILL / spans["levels"].to_numpy(np.float64)
    high = spans["lane"].to_numpy(np.int64) + (1 - FILL) / 2 + height * spans["level"].to_numpy(np.int64)
    call = spans["call_start_ns"].to_numpy(np.int64, na_value=0) - first
    unknown = spans["call_start_ns"].isna().to_numpy()
    return {
        "s": spans["start_ns"].to_numpy(np.int64) - first,
        "d": spans["dur_ns"].to_numpy(np.int64),
        "k": names.of(spans["kind"], kinds=True),
        "low": _milli(high + height),
        "high": _milli(high),
        "n": names.of(spans["name"]),
        "c": spans["correlation"].to_numpy(np.int64),
        "a": names.of(spans["call"]),
        "t": np.where(unknown, "", call.astype(object)),
        "u": np.where(unknown, "", spans["call_dur_ns"].to_numpy(object)),
        "id": spans["id"].to_numpy(object, na_value=""),
    }


def _words(spans: pd.DataFrame, window: tuple[int, int], width: float, height: float) -> list[dict[str, Any]]:
    """Return the names that fit into their bars, of the longest bars."""
    start, dur, lane, level, levels = (
        spans[column].to_numpy(np.int64) for column in ("start_ns", "dur_ns", "lane", "level", "levels")
    )
    begin = np.maximum(start, window[0])
    seen = np.minimum(start + dur, window[1]) - begin
    letters = (seen / (window[1] - window[0]) * width / LETTER).astype(np.int64) - 1
    middle = lane + (1 - FILL) / 2 + FILL / levels * (level + 0.5)
    letters[height * FILL / levels < LINE] = 0
    rows = np.argsort(-letters, kind="stable")[:MOST_WORDS]
    texts = spans["name"].to_numpy(object)
    return [
        {"s": int(begin[row] - window[0]), "low": float(middle[row]), "text": elided(texts[row], int(letters[row]))}
        for row in rows[letters[rows] >= SHORTEST]
    ]

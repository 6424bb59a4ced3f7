"""The layers of the timeline: lanes, bins, intervals, and the words in them.

Functions
---------
backdrop    the lanes, where nothing runs
bins        how busy they were, with the brush
spans       what ran in them, one by one
words       names that fit into their bars
"""

from __future__ import annotations

from typing import Any

from perfkit.charts.detail.canvas import BRUSH
from perfkit.charts.detail.rows import COLUMNS, MILLI
from perfkit.charts.theme import WIDTH
from perfkit.format import TIME, Unit

Spec = dict[str, Any]
EDGE = 0.07  # of a lane's height, above and below, so that neighbours stay apart
APART = 4  # pixels of a bar from which on an edge parts it from the next
PAPER = "#808080"


def backdrop(place: Spec) -> Spec:
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


def bins(place: Spec, shades: Spec, first: int, scale: Unit) -> Spec:
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


def spans(place: Spec, shades: Spec, window: tuple[int, int], scale: Unit) -> list[Spec]:
    """Return operations of the GPU, whose tooltip names the call that launched them, and what ran on the CPU.

    The outline keeps visible what is narrower than a pixel, and apart what is wider than some.
    """
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
        drawn["encoding"]["tooltip"] = [{"field": field, "type": "nominal", "title": said} for field, said in lines]
        layers.append({"data": _csv(name), "transform": placed, **drawn})
    return layers


def _length(value: str) -> str:
    """Return the expression of a time in ns as people read it."""
    text = f"format({value} / {TIME[-1].size:.0f}, '.4~r') + ' {TIME[-1].symbol}'"
    for step, above in zip(reversed(TIME[:-1]), reversed(TIME[1:]), strict=True):
        text = f"{value} < {above.size:.0f} ? format({value} / {step.size:.0f}, '.4~r') + ' {step.symbol}' : {text}"
    return f"({text})"


def words(place: Spec, first: int, scale: Unit) -> Spec:
    """Return the names that fit into their bars, in white on the greys and purples of what ran on the CPU."""
    return {
        "data": {"name": "words"},
        "transform": [{"calculate": f"(datum.s + {first}) / {scale.size:.0f}", "as": "start"}],
        "mark": {"type": "text", "align": "left", "dx": 3, "fontSize": 10, "color": "white", "tooltip": False},
        "encoding": {**place, "text": {"field": "text", "type": "nominal"}},
    }

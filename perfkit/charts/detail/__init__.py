"""The timeline that a person zooms into: busy shares of bins where there is much, operations one by one where not.

Conventions
-----------
It is drawn again at every gesture, and a chart of Altair takes a third of a second to make: this one is written as
Vega-Lite itself. Lanes are numbered from 0 at the top; bins have the colours of kinds, operations those of families.

Functions
---------
timeline     the picture as a Vega-Lite specification
canvas       the widget that shows it and tells Python what a person does in it
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import altair as alt
import pandas as pd

from perfkit.charts.data import MOST_ROWS, fraction, known, need
from perfkit.charts.detail import layers
from perfkit.charts.detail.canvas import CHOSEN, CLICKED, RESET, Canvas, canvas
from perfkit.charts.detail.rows import BINS, SPANS, datasets
from perfkit.charts.detail.words import COLOURS, NAMES
from perfkit.charts.theme import WIDTH, register
from perfkit.format import TIME, Unit, unit

__all__ = ["BINS", "CHOSEN", "CLICKED", "RESET", "SPANS", "Canvas", "canvas", "timeline"]

Spec = layers.Spec
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
    """Return the Vega-Lite specification of lanes over a window.

    Parameters
    ----------
    labels
        The lanes' names from the top down, made of numbers and words of perfkit, never of names from a profile.
    bins
        Columns lane (number), kind (of `words.COLOURS`), start_ns, dur_ns, busy_frac (0..1): bins with busy time; may
        be empty.
    spans
        Columns lane, level (from 0), levels (that its lane has), kind, name, start_ns, dur_ns, correlation (-1 none),
        call (name of the launching call), call_start_ns, call_dur_ns (Int64), id (Int64; what a click on it reports):
        NA where there is none; may be empty.
    window
        (start_ns, end_ns) of the axis.
    title, explanation
        What is seen, and lines on how to read it.

    Returns
    -------
    dict
        The specification with its data; without a row in either frame, empty lanes.

    Raises
    ------
    SchemaError
        If a column is missing.
    ValueError
        If a kind has no colour, a fraction lies outside 0..1, or there are more rows than a browser draws.
    """
    need(bins, *BINS)
    need(spans, *SPANS)
    for frame in (bins, spans):
        known(frame, "kind", COLOURS)
    fraction(bins, "busy_frac")
    if len(bins) + len(spans) > MOST_ROWS:
        raise ValueError(f"chart data: {len(bins) + len(spans)} rows are more than {MOST_ROWS}. Use fewer bins.")
    register()
    scale = unit(window[1] - window[0], TIME)
    place = {"x": _time_axis(window, scale), "y": _lane_axis(labels)}
    shades = _shades([*bins["kind"].unique(), *spans["kind"].unique()])
    lane = min(max(FULL / max(len(labels), 1), LEAST), MOST)
    return {
        "$schema": alt.SCHEMA_URL,
        "config": _config(),
        "background": "transparent",
        "width": WIDTH,
        "height": round(lane * max(len(labels), 1)),
        "title": {"text": title, "subtitle": list(explanation)},
        "description": " ".join(f"{text.rstrip('.')}." for text in (_spoken(title, window), "Timeline", *explanation)),
        "datasets": datasets(labels, bins, spans, window=window, size=(WIDTH, lane)),
        "layer": [
            layers.backdrop(place),
            layers.bins(place, shades, window[0], scale),
            *layers.spans(place, shades, window, scale),
            layers.words(place, window[0], scale),
        ],
    }


def _spoken(title: str, window: tuple[int, int]) -> str:
    """Return the title with what the axis shows to those who see it."""
    first, last = (f"{edge / 1e9:.9f} s" for edge in window)
    return f"{title}, from {first} to {last}"


def _config() -> Spec:
    """Return the theme with inks that follow the page: outside of a notebook's own viewer nothing else sets them."""
    theme = alt.theme.get()
    config: Spec = dict(theme()["config"]) if theme else {}
    inks: dict[str, Spec] = {
        "title": {"color": INK, "subtitleColor": INK},
        "axis": {"labelColor": INK, "titleColor": INK, "domainColor": layers.PAPER, "tickColor": layers.PAPER},
        "legend": {"labelColor": INK},
    }
    return {**config, **{part: {**config.get(part, {}), **ink} for part, ink in inks.items()}}


def _time_axis(window: tuple[int, int], scale: Unit) -> Spec:
    ends = [edge / scale.size for edge in window]
    title = f"time since the start of the capture ({scale.symbol})"
    limits = {"domain": ends, "nice": False, "zero": False}
    axis = {"tickCount": MOST_TICKS, "gridOpacity": 0.4}
    return {"field": "start", "type": "quantitative", "title": title, "scale": limits, "axis": axis}


def _lane_axis(labels: Sequence[str]) -> Spec:
    axis = {
        "values": [number + 0.5 for number in range(len(labels))],
        "labelExpr": f"{json.dumps(list(labels))}[floor(datum.value)]",
        "labelOverlap": False,
        "labelFontSize": 11,
        "labelPadding": 6,
        "grid": False,
        "ticks": False,
        "domain": False,
    }
    limits = {"domain": [max(len(labels), 1), 0], "nice": False}
    return {"field": "low", "type": "quantitative", "title": None, "axis": axis, "scale": limits}


def _shades(kinds: Iterable[str]) -> Spec:
    """Return the encoding of the colours, with a legend of the kinds that are there; one name stands once."""
    found = set(kinds)
    shown = {NAMES[kind]: COLOURS[kind] for kind in COLOURS if kind in found}
    return {
        "field": "what",
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(shown), "range": list(shown.values())},
        "legend": {} if shown else None,
    }

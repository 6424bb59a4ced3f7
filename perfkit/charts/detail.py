"""The timeline that a person zooms into: busy shares of bins where there is much, operations one by one where not.

`timeline` turns lanes into numbers, and `detail.js` draws them on a canvas: moving and zooming within what is loaded
asks nobody. Times travel as offsets from the start of the window, so that a double holds them to the nanosecond; texts
travel once each, by number, and are drawn as text, never as HTML.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import anywidget
import numpy as np
import pandas as pd
import traitlets
from numpy.typing import NDArray

from perfkit.charts import checks
from perfkit.charts.theme import (
    DETAIL_COLOURS,
    FAMILY_COLOURS,
    KIND_COLOURS,
    KIND_NAMES,
    MOST_ROWS,
    PHASE_COLOURS,
    PHASE_NAMES,
)
from perfkit.format import elided

CLICKED, FILTER, FIND, LOOKED, SEARCH = (
    "click",
    "filter",
    "find",
    "look",
    "search",
)  # kinds of gestures
GPU, GROUP, FLAME, LINE = "gpu", "group", "flame", "line"  # types of lanes


class Canvas(anywidget.AnyWidget):
    """Shows what `timeline` returns, and calls who `listen`s; needs no network.

    `drawing`, `found` and `chosen` go to the page: lanes, matches of a search, and the operation that was clicked.
    `arranged` comes from it: labels of lanes that are `hidden`, `closed`, `pinned`, and, of several streams, `opened`.
    """

    _esm = Path(__file__).with_suffix(".js")
    drawing: Any = traitlets.Dict().tag(sync=True)
    found: Any = traitlets.Dict().tag(sync=True)
    chosen: Any = traitlets.Dict().tag(sync=True)
    arranged: Any = traitlets.Dict().tag(sync=True)

    def listen(self, heard: Callable[[dict[str, Any]], None]) -> None:
        """Call `heard` with each gesture: its `kind`, and what belongs to it.

        `LOOKED` has first and last (ns since `origin`) and its number, `CLICKED` lane (label) and id, `SEARCH` and
        `FILTER` text, `FIND` step (1 or -1) and at (ns since `origin`).
        """
        self.on_msg(lambda _, content, __: heard(content))


GREY = "#6B757E"  # white words on it have a contrast of 4.8
BESIDE: dict[str, tuple[str, str]] = {  # the colour and the name of each
    "copied": (KIND_COLOURS["copy"], KIND_NAMES["copy"]),
    "launch": (DETAIL_COLOURS["launch"], "launching call"),
    "sync": (DETAIL_COLOURS["sync"], "synchronising call"),
    "memory": (DETAIL_COLOURS["memory"], "memory call"),
    "call": (DETAIL_COLOURS["host_code"], "other call"),
    "os_call": (DETAIL_COLOURS["system"], "call of the operating system"),
    "range": (GREY, "range on the CPU"),
    "projected": ("#8A5A00", "range on the GPU"),
    "operator": ("#394B74", "operator"),
    "python": ("#5D4E45", "Python function"),
    "collective": (KIND_COLOURS["communication"], "collective"),
    "step": (GREY, "step"),
    "sampled": ("#7A5C8E", "function that the CPU's samples met"),
    "scheduled": ("#276B71", "on a core"),
    "profiler": ("#9A9A9A", "the profiler's own time"),
    "unknown": ("#F04848", "unknown: not recorded, or not to be believed"),
    **{phase: (PHASE_COLOURS[phase], name) for phase, name in PHASE_NAMES.items()},
}
HATCHED = ("profiler", "unknown")  # time of which nobody knows what the program did
BESIDE_COLOURS, BESIDE_NAMES = ({key: row[at] for key, row in BESIDE.items()} for at in (0, 1))
COLOURS: dict[str, str] = {**KIND_COLOURS, **FAMILY_COLOURS, **BESIDE_COLOURS}
del COLOURS["idle"]
NAMES: dict[str, str] = {
    **KIND_NAMES,
    **{family: family for family in FAMILY_COLOURS},
    **BESIDE_NAMES,
}
BINS = ("lane", "kind", "start_ns", "dur_ns", "busy_frac")
_CALL = ("correlation", "call", "call_start_ns", "call_dur_ns")
SPANS = ("lane", "level", "levels", "kind", "name", "start_ns", "dur_ns", *_CALL, "id")
LINES = ("lane", "start_ns", "mean", "min", "max")
FILL = 0.86  # of a lane's height
LONGEST = 120  # characters of a name
MILLI = 1000  # heights, and shares of bins, travel as thousandths
_NUMBERS = NDArray[np.int64]
Drawing = dict[str, Any]


class _Names:
    """Texts, each of which travels once, by number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def of(self, texts: pd.Series, *, kinds: bool = False) -> _NUMBERS:
        """Return the number of each text, or of the name of each of the `kinds`; -1 of a missing one."""
        codes, distinct = pd.factorize(texts)
        words = [NAMES[text] if kinds else _short(text) for text in distinct]
        return np.array(
            [*(self.numbers.setdefault(word, len(self.numbers)) for word in words), -1], np.int64
        )[codes]


def timeline(
    labels: Sequence[str],
    bins: pd.DataFrame,
    spans: pd.DataFrame,
    *,
    window: tuple[int, int],
    title: str,
    explanation: Sequence[str] = (),
    whole: tuple[int, int] | None = None,
    lines: pd.DataFrame | None = None,
    types: Sequence[str] = (),
    answers: int = 0,
) -> Drawing:
    """Return lanes over a window as `Canvas` draws them; empty lanes without a row.

    `labels`: the lanes' names from the top down, of numbers and words of perfkit, never of names from a profile.
    `bins`: columns lane (number), kind (of `COLOURS`), start_ns, dur_ns, busy_frac (0..1): bins with busy time.
    `spans`: columns lane, level (from 0), levels (that its lane has), kind, name, start_ns, dur_ns, correlation (-1
    none), call (name of the launching call), call_start_ns, call_dur_ns (Int64), id (Int64; what a click reports): NA
    where there is none. `lines`: columns lane, start_ns, mean, min, max (any unit): metrics over time.
    `types`: of each lane, `GPU` (the default), `GROUP` (of several streams), `FLAME` (nested) or `LINE`.
    `window`: (start_ns, end_ns) that is seen, of the `whole`. `title`, `explanation`: what is seen, and lines on how to
    read it. `answers`: the number of the `LOOKED` that is answered; a page that sent a later one does not move. Raises
    ValueError if there are more rows than a browser draws.
    """
    checks.need(bins, *BINS)
    checks.need(spans, *SPANS)
    for frame in (bins, spans):
        checks.known(frame, "kind", COLOURS)
    checks.fraction(bins, "busy_frac")
    lines = pd.DataFrame(columns=[*LINES]) if lines is None else lines
    if len(bins) + len(spans) + len(lines) > MOST_ROWS:
        raise ValueError(
            f"chart data: {len(bins) + len(spans)} rows are more than {MOST_ROWS}. Use fewer bins."
        )
    names, (origin, end) = _Names(), whole or window
    # with what the axis shows to those who see it
    first, last = (f"{edge / 1e9:.9f} s" for edge in window)
    spoken = (f"{title}, from {first} to {last}", "Timeline", *explanation)
    present = {*bins["kind"].unique(), *spans["kind"].unique()}
    levels = spans.groupby("lane")["levels"].max().to_dict()
    return {
        "title": title,
        "explanation": list(explanation),
        "spoken": " ".join(f"{text.rstrip('.')}." for text in spoken),
        "origin": str(origin),
        "whole": int(end - origin),
        "answers": answers,
        "window": [int(edge - origin) for edge in window],
        "lanes": [
            {"label": label, "type": kind, "levels": int(levels.get(n, 1))}
            for n, (label, kind) in enumerate(
                zip(labels, types or [GPU] * len(labels), strict=True)
            )
        ],
        "bins": _packed(_stacked(bins, window[0], names)),
        "spans": _packed(_spans(spans, window[0], names)),
        "lines": [
            _line(lane, lines[lines["lane"] == lane], window[0])
            for lane in lines["lane"].unique().tolist()
        ],
        "names": [*names.numbers],
        "colours": {NAMES[kind]: COLOURS[kind] for kind in COLOURS if kind in present},
        "hatched": [NAMES[kind] for kind in HATCHED if kind in present],
    }


@lru_cache(maxsize=20_000)
def _short(text: str) -> str:
    """Return a name for a tooltip: the same few thousand are shown again and again."""
    return elided(text, LONGEST)


def _packed(columns: dict[str, Any]) -> Drawing:
    """Return columns of one length as doubles, one column after the other; NaN where one is missing."""
    return {
        "columns": [*columns],
        "data": np.concatenate([np.asarray(c, np.float64) for c in columns.values()]).tobytes(),
    }


def _milli(values: NDArray[np.float64]) -> _NUMBERS:
    return np.rint(values * MILLI).astype(np.int64)


def _line(lane: int, rows: pd.DataFrame, first: int) -> Drawing:
    columns = {
        "s": rows["start_ns"] - first,
        "low": rows["min"],
        "mean": rows["mean"],
        "high": rows["max"],
    }
    return {"lane": lane, "top": float(rows["max"].max()), "points": _packed(columns)}


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
    floor = 1 - (1 - FILL) / 2
    return {
        "s": start - first,
        "d": dur,
        "k": names.of(bins["kind"], kinds=True)[order],
        "lane": lane,
        "low": _milli(floor - FILL * (top - part) / full),
        "high": _milli(floor - FILL * top / full),
        "busy": _milli(part),
    }


def _spans(spans: pd.DataFrame, first: int, names: _Names) -> dict[str, Any]:
    return {
        "s": spans["start_ns"].to_numpy(np.int64) - first,
        "d": spans["dur_ns"].to_numpy(np.int64),
        "k": names.of(spans["kind"], kinds=True),
        "lane": spans["lane"].to_numpy(np.int64),
        "level": spans["level"].to_numpy(np.int64),
        "n": names.of(spans["name"]),
        "c": spans["correlation"].to_numpy(np.int64),
        "a": names.of(spans["call"]),
        "t": (spans["call_start_ns"] - first).to_numpy(np.float64, na_value=np.nan),
        "u": spans["call_dur_ns"].to_numpy(np.float64, na_value=np.nan),
        "id": spans["id"].to_numpy(np.float64, na_value=np.nan),
    }

"""The rows of the timeline as they travel: numbers as CSV, a fifth of their size as objects; texts as JSON beside them.

Conventions
-----------
Times are nanoseconds since the start of the window, so that they are short and exact. CSV holds numbers alone: whatever
a profile calls its kernels, it cannot end a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.charts.detail.words import BESIDE_COLOURS, NAMES
from perfkit.format import elided

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


def datasets(
    labels: Sequence[str],
    bins: pd.DataFrame,
    spans: pd.DataFrame,
    *,
    window: tuple[int, int],
    size: tuple[float, float],
) -> dict[str, Any]:
    """Return the data that the layers of `detail.timeline` name, for a picture of this width and height of a lane."""
    names = _Names()
    is_beside = spans["kind"].isin(list(BESIDE_COLOURS))
    worded = is_beside & (spans["kind"] != "copied")
    return {
        "lanes": [{"lane": number, "label": label} for number, label in enumerate(labels)],
        "bins": _text("bins", _stacked(bins, window[0], names)),
        "operations": _text("operations", _spans(spans[~is_beside], window[0], names)),
        "others": _text("others", _spans(spans[is_beside], window[0], names)),
        "words": _words(spans[worded], window, *size),
        "names": [{"i": number, "text": text} for text, number in names.numbers.items()],
    }


@lru_cache(maxsize=20_000)
def _short(text: str) -> str:
    """Return a name for a tooltip: the same few thousand are shown again and again."""
    return elided(text, LONGEST)


class _Names:
    """Texts, each of which travels once, by number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def of(self, texts: pd.Series) -> _NUMBERS:
        """Return the number of each text, -1 of a missing one."""
        codes, found = pd.factorize(texts)
        numbers = [self.numbers.setdefault(_short(text), len(self.numbers)) for text in found]
        return np.array([*numbers, -1], np.int64)[codes]

    def of_kinds(self, kinds: pd.Series) -> _NUMBERS:
        """Return the number of each kind's name."""
        codes, found = pd.factorize(kinds)
        numbers = [self.numbers.setdefault(NAMES[kind], len(self.numbers)) for kind in found]
        return np.array([*numbers, -1], np.int64)[codes]


def _text(name: str, columns: dict[str, Any]) -> str:
    """Return the columns as CSV: integers, and nothing where one is missing."""
    rows = zip(*(columns[column].tolist() for column in COLUMNS[name]), strict=True)
    return "\n".join([",".join(COLUMNS[name]), *(",".join(map(str, row)) for row in rows)])


def _milli(values: NDArray[np.float64]) -> _NUMBERS:
    return np.rint(values * MILLI).astype(np.int64)


def _stacked(bins: pd.DataFrame, first: int, names: _Names) -> dict[str, Any]:
    """Return the bins as rectangles: kinds that share a bin stand on one another, in a lane one unit high.

    They can add up to more than 1 only where operations of one stream overlap; such a lane is scaled to its top.
    """
    order = np.lexsort([_order_of(bins["kind"]), *(bins[c].to_numpy(np.int64) for c in ("start_ns", "lane"))])
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
        "k": names.of_kinds(bins["kind"])[order],
        "low": _milli(floor - FILL * (top - part) / full),
        "high": _milli(floor - FILL * top / full),
        "busy": _milli(part),
    }


def _order_of(kinds: pd.Series) -> _NUMBERS:
    codes, found = pd.factorize(kinds)
    return np.array([*(list(NAMES).index(kind) for kind in found), 0])[codes]


def _spans(spans: pd.DataFrame, first: int, names: _Names) -> dict[str, Any]:
    """Return the operations as rectangles; nested ones lie below the one around them."""
    height = FILL / spans["levels"].to_numpy(np.float64)
    high = spans["lane"].to_numpy(np.int64) + (1 - FILL) / 2 + height * spans["level"].to_numpy(np.int64)
    call = spans["call_start_ns"].to_numpy(np.int64, na_value=0) - first
    unknown = spans["call_start_ns"].isna().to_numpy()
    return {
        "s": spans["start_ns"].to_numpy(np.int64) - first,
        "d": spans["dur_ns"].to_numpy(np.int64),
        "k": names.of_kinds(spans["kind"]),
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

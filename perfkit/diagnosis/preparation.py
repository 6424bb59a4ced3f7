"""How long does the CPU prepare data: tokenise, decode, augment, collate?"""

from __future__ import annotations

import re

import pandas as pd

from perfkit.analysis import intervals, timeline
from perfkit.analysis.calls import where
from perfkit.diagnosis.finding import Figure
from perfkit.format import printable
from perfkit.selection import Selection

WORDS = re.compile(r"tokeni[sz]|preprocess|collate|augment|imdecode|jpeg|image\.open|transforms?[/\\.]", re.IGNORECASE)


def preparing(view: Selection) -> Figure | None:
    """Return the share of the span in which a thread was in a function or range that prepares data; None if in none.

    Functions, ranges and operators are known by their names: the words for tokenising, decoding, augmenting and
    collating. Time that several threads spend at once counts once.
    """
    busy = timeline.busy(view.all_kernels, view.copies, window=view.window)
    parts = [_named(frame) for frame in (view.ranges, view.python_calls, view.ops)]
    named = pd.concat([part for part in parts if len(part)]) if any(map(len, parts)) else pd.DataFrame()
    if named.empty or not busy["span_ns"].sum():
        return None
    first, last = int(busy["start_ns"].min()), int((busy["start_ns"] + busy["span_ns"]).max())
    start = named["start_ns"].clip(first, last).to_numpy()
    end = (named["start_ns"] + named["dur_ns"]).clip(first, last).to_numpy()
    total = int(intervals.total(intervals.union(start, end), 1)[0])
    definition = "time in which a thread tokenises, decodes, augments or collates, by the names of functions and ranges"
    name = str(named.groupby(named["name"].astype("string"))["dur_ns"].sum().idxmax())
    label = f"Preparing data ({printable(name, 60)})"
    return Figure("preparing_frac", label, total / (last - first), "1", definition, "RANGES, PYTHON_CALLS, OPS")


def _named(frame: pd.DataFrame) -> pd.DataFrame:
    found = frame[where(frame["name"], WORDS.search)]
    return found[["start_ns", "dur_ns", "name"]].astype({"name": "string"})

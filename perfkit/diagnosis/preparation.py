"""How long does the GPU do nothing while the CPU waits for data, or prepares them: tokenises, decodes, collates?

Conventions
-----------
Functions, ranges and operators are known by their names. One that launches kernels is more than preparation, such as a
script whose name speaks of tokens, and does not count; nor does what a data loader does inside its own range, which is
waiting for input. Only idle time of the GPU counts: data that is prepared while it works cost nothing.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis import timeline
from perfkit.analysis.calls import COPY_CALL, is_launch, numbered_together, where
from perfkit.analysis.causes import DATA_LOADING
from perfkit.analysis.gaps import idle_gaps
from perfkit.analysis.intervals import Intervals, intersect, subtract, total, union
from perfkit.analysis.waits import Axis
from perfkit.analysis.window import devices
from perfkit.diagnosis.finding import Figure
from perfkit.format import printable
from perfkit.selection import Selection
from perfkit.tables import API_CALLS

WORDS = re.compile(r"tokeni[sz]|preprocess|collate|augment|imdecode|jpeg|image\.open|transforms?[/\\.]", re.IGNORECASE)
PLACE = ["rank", "process", "thread"]


def loading(view: Selection) -> float | None:
    """Return the share of the span in which a thread is in a data loader and the GPU idle; None without a GPU."""
    return _idle_frac(view, _loaders(view), _loaders(view).iloc[:0])


def preparing(view: Selection) -> Figure | None:
    """Return the share of the span in which the GPU is idle while a thread prepares data; None if none does.

    Time that several threads spend at once counts once.
    """
    parts = [_named(frame) for frame in (view.ranges, view.python_calls, view.ops)]
    named = pd.concat([part for part in parts if len(part)]) if any(map(len, parts)) else parts[0]
    named = named[~_launching(named, view.api_calls)]
    share = _idle_frac(view, named, _loaders(view))
    if named.empty or share is None:
        return None
    definition = (
        "time in which the GPU is idle and a thread tokenises, decodes, augments or collates, by the names of "
        "functions and ranges, outside of data loaders, over the span"
    )
    longest = str(named.groupby("name")["dur_ns"].sum().idxmax())
    label = f"Idle while preparing data ({printable(longest, 60)})"
    return Figure("preparing_idle_frac", label, share, "1", definition, "RANGES, PYTHON_CALLS, OPS; gaps.idle_gaps")


def _named(frame: pd.DataFrame) -> pd.DataFrame:
    found = frame[where(frame["name"], WORDS.search)]
    return found[[*PLACE, "start_ns", "dur_ns", "name"]].astype({"name": "string"})


def _loaders(view: Selection) -> pd.DataFrame:
    return view.ranges[where(view.ranges["name"], DATA_LOADING.search)]


def _launching(named: pd.DataFrame, api_calls: pd.DataFrame) -> NDArray[np.bool_]:
    """Tell in which of the functions or ranges their thread launches a kernel."""
    kernel = where(api_calls["name"], lambda name: is_launch(name) and not COPY_CALL.match(name))
    launches = api_calls[kernel]
    of_named, of_launch = numbered_together([named, launches], PLACE)
    begin, at = named["start_ns"].to_numpy(), launches["start_ns"].to_numpy()
    end = begin + named["dur_ns"].to_numpy()
    axis = Axis.over(1 + int(max(of_named.max(initial=0), of_launch.max(initial=0))), begin, end, at)
    moments = np.sort(axis.at(of_launch, at))
    first, last = (np.searchsorted(moments, axis.at(of_named, edge)) for edge in (begin, end))
    return np.asarray(first < last)


def _idle_frac(view: Selection, spans: pd.DataFrame, without: pd.DataFrame) -> float | None:
    """Return the idle time of the GPUs that lies in spans of their rank and not in others, over the time looked at."""
    busy = timeline.busy(view.all_kernels, view.copies, window=view.window)
    if not busy["span_ns"].sum():
        return None
    idle = idle_gaps(view.all_kernels, view.copies, API_CALLS.empty(), window=view.window)
    _, (gpu, of_gap) = devices(busy, idle)
    gpus = busy[["rank"]].assign(device=gpu)
    wanted = subtract(_per_gpu(spans, gpus), _per_gpu(without, gpus))
    start = idle["start_ns"].to_numpy()
    both = intersect(wanted, union(start, start + idle["dur_ns"].to_numpy(), of_gap))
    return float(total(both, len(busy)).sum() / busy["span_ns"].sum())


def _per_gpu(spans: pd.DataFrame, gpus: pd.DataFrame) -> Intervals:
    """Return the time that the spans cover, once for each GPU of their rank."""
    of = spans[["rank", "start_ns", "dur_ns"]].merge(gpus, on="rank")
    start = of["start_ns"].to_numpy()
    return union(start, start + of["dur_ns"].to_numpy(), of["device"].to_numpy())

"""When CPU threads ran on a core."""

from typing import Any

import numpy as np
import pandas as pd

from perfkit import tables
from perfkit.readers.nsys import sources
from perfkit.readers.nsys.sources import column
from perfkit.readers.text import category
from perfkit.schema import order_of

SWITCHES = "SCHED_EVENTS"
MAP: sources.Reads = {  # one event that puts a thread on a core or takes it off
    "time": column("start", missing=sources.NEVER),
    "on": column("isSchedIn", missing=0),
    "thread": column("globalTid"),
    "cpu": column("cpu", by=sources.in_32_bits),
    "state": column("threadState", missing=0),
    "block": column("threadBlock", missing=0),
}
STATES, REASONS = (
    "ENUM_SAMPLING_THREAD_STATE",
    "ENUM_SCHEDULING_THREAD_BLOCK",
)  # what the numbers mean
EXPLAINS = 2  # numbers below mean unknown, running or not blocked


def schedule(source: sources.Source) -> pd.DataFrame:
    """Return SCHEDULE: a stretch from each time a thread was put on a core to its next event.

    A thread whose first event takes it off a core was on it since the first event of any thread;
    one that was put on a core last stayed there to the last event of any thread. What came before
    and after was not recorded.
    """
    columns = sources.read(source, SWITCHES, MAP, ("start", "isSchedIn", "globalTid"))
    is_in = columns["on"] != 0
    order = order_of([columns["thread"], columns["time"], is_in])
    time, thread, is_in = columns["time"][order], columns["thread"][order], is_in[order]
    first, last = _extent(time)
    is_first = np.ones(len(thread), bool)
    is_first[1:] = thread[1:] != thread[:-1]
    is_last = np.append(is_first[1:], True)
    began = np.flatnonzero(is_in)
    off = np.flatnonzero(is_first & ~is_in)  # on a core before their first event
    # The row that ends each stretch, -1 none.
    ends = np.append(np.where(is_last[began], -1, began + 1), off)
    start = np.append(time[began], np.full(len(off), first))
    end = np.where(ends < 0, last, time[ends])
    rows = np.append(began, off)
    taken_off = np.where((ends < 0) | is_in[ends], -1, order[ends])  # among the rows as stored
    stretches: dict[str, Any] = {
        "process": sources.process_of(thread[rows]),
        "thread": sources.thread_of(thread[rows]),
        "start_ns": start,
        "dur_ns": sources.difference(end, start),
        "cpu": columns["cpu"][order[rows]],
        "stopped": _reasons(source, columns["state"], columns["block"], taken_off),
    }
    return sources.framed(tables.SCHEDULE, stretches)


def _extent(times: sources.Int) -> tuple[int, int]:
    """Return the first and last time that can be."""
    known = times[(times >= -sources.LONGEST) & (times <= sources.LONGEST)]
    return (int(known.min()), int(known.max())) if len(known) else (0, 0)


def _reasons(
    source: sources.Source, states: sources.Int, blocks: sources.Int, ends: sources.Int
) -> pd.Categorical:
    """Return why each stretch ended, from the row that ends it; missing where that row does not say, or is -1."""
    state = np.where(ends < 0, 0, states[ends])
    block = np.where(ends < 0, 0, blocks[ends])
    state_codes, state_numbers = pd.factorize(state)
    block_codes, block_numbers = pd.factorize(block)
    labels = [
        *_labels(source, STATES, "thread state", state_numbers),
        *_labels(source, REASONS, "thread block", block_numbers),
    ]
    codes = np.where(block >= EXPLAINS, block_codes + len(state_numbers), state_codes)
    return category(codes, labels)


def _labels(
    source: sources.Source, table: str, what: str, numbers: sources.Int
) -> list[str | None]:
    """Return the word of each number, in lower case; None where the number explains nothing."""
    rows = source.rows(table, ("id", "label")) if (numbers >= EXPLAINS).any() else []
    words = {row["id"]: row["label"].lower() for row in rows if isinstance(row["label"], str)}
    return [words.get(int(n), f"{what} {n}") if n >= EXPLAINS else None for n in numbers]

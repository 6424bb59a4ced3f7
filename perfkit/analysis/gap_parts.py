"""What is each part of a gap made of? The calls, ranges and calls of the system of the thread that decides it say so.

The causes, their order and the parts are those of `perfkit.analysis.causes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis.causes import (
    CAUSES,
    CONDITIONS,
    COPY_CALL,
    DETAILS,
    KERNEL_WAIT_NS,
    PARTS,
    THREAD,
    answered,
    covered,
    innermost,
    longest,
    numbered_together,
    placed,
    where,
)
from perfkit.analysis.intervals import Axis, Bool, Int, Intervals, Window, ends, merge, union
from perfkit.schema import stretches

ALIKE = 2  # factor within which waits of one kind have one cause (convention)
WAITS = 1 << 17  # explained at once, so that of millions of calls only those around them are sorted


class Host:
    """What the threads of the CPU did, thread by thread: asked what a GPU waited for in any stretch of time."""

    def __init__(
        self, api_calls: pd.DataFrame, ranges: pd.DataFrame, os_calls: pd.DataFrame
    ) -> None:
        tables = (api_calls, ranges, os_calls)
        self.call_names, self.range_names = (table["name"].cat.categories for table in tables[:2])
        self._answers = [
            answered(tables[number]["name"], fulfils) for number, fulfils in CONDITIONS
        ]
        numbers = numbered_together(tables, THREAD)
        self._threads = _keys(tables, numbers)
        self._tables = [
            _Sorted.of(*pair, len(self._threads)) for pair in zip(tables, numbers, strict=True)
        ]

    def threads(self, rows: pd.DataFrame) -> Int:
        """Return the number of the thread of each row with rank, process and thread; -1 where it did nothing."""
        of_rows, of_threads = numbered_together([rows, self._threads], THREAD)
        number = np.full(
            1 + int(max(of_rows.max(initial=-1), of_threads.max(initial=-1))), -1, np.int64
        )
        number[of_threads] = np.arange(len(of_threads))
        return number[of_rows]

    def explained(self, thread: Int, start: Int, called: Int, returned: Int) -> tuple[Int, Int]:
        """Return what each wait [start, called) of a thread's number is made of, by detail, ns: a row per detail.

        Then the codes of the call and the range of [start, returned), -1 where there is none.
        """
        parts, why = np.zeros((len(DETAILS), len(start)), np.int64), np.full((2, len(start)), -1)
        asked = np.flatnonzero(returned > start)
        asked = asked[np.argsort(thread[asked], kind="stable")]
        for first in range(0, len(asked), WAITS):
            part = asked[first : first + WAITS]
            low, high = int(thread[part].min()), int(thread[part].max())
            near = int(start[part].min()), int(returned[part].max())
            around = [table.between(low, high, near) for table in self._tables]
            times = start[part], called[part], returned[part]
            parts[:, part], why[:, part] = _explained(
                *times, thread[part] - low, around, self._answers
            )
        return parts, why


class _Sorted(NamedTuple):
    """The rows of a table by thread: those of thread i are bounds[i] to bounds[i + 1]."""

    table: pd.DataFrame
    bounds: Int

    @classmethod
    def of(cls, table: pd.DataFrame, thread: Int, threads: int) -> _Sorted:
        """Return a table by the number of its rows' threads; one that lies so already is not copied."""
        columns = table[["start_ns", "dur_ns", "name"]]
        if not (thread[1:] >= thread[:-1]).all():
            order = np.argsort(thread, kind="stable")
            columns, thread = columns.iloc[order], thread[order]
        return cls(columns, np.searchsorted(thread, np.arange(threads + 1)))

    def between(self, low: int, high: int, near: Window) -> tuple[pd.DataFrame, Int]:
        """Return the rows of threads low .. high that overlap a window, and their threads from 0 on."""
        part = slice(int(self.bounds[low]), int(self.bounds[high + 1]))
        columns = {name: self.table[name].array[part] for name in self.table}
        start, dur = (np.asarray(columns[name]) for name in ("start_ns", "dur_ns"))
        rows = np.flatnonzero((start < near[1]) & (start + dur > near[0]))
        thread = np.searchsorted(self.bounds, part.start + rows, side="right") - 1 - low
        return pd.DataFrame({name: column.take(rows) for name, column in columns.items()}), thread


def _keys(tables: Sequence[pd.DataFrame], numbers: Sequence[Int]) -> pd.DataFrame:
    """Return rank, process and thread of each number that `numbered_together` gave the rows of several tables."""
    rows = []
    for table, number in zip(tables, numbers, strict=True):
        heads = stretches([number], len(number))
        rows.append(table[THREAD].iloc[heads].assign(number=number[heads]))
    return (
        pd.concat(rows)
        .drop_duplicates("number")
        .sort_values("number", kind="stable")[THREAD]
        .reset_index(drop=True)
    )


def attributed(
    start: Int,
    end: Int,
    edge: Bool,
    call: Int,
    touched: Bool,
    api_calls: pd.DataFrame,
    host: Host,
    device: Int,
    usual_waits: pd.Series,
) -> dict[str, pd.Categorical[Any] | Int]:
    """Return why the `device` did nothing in each of the gaps [start, end), int64 ns.

    `edge` tells whether a gap lies before the first or after the last operation of the device.
    `call` is the row of the launch call in `api_calls`; -1 where none is recorded, and at an edge.
    `touched`: no call but the host's access to a page ends the gap, in the thread of `call`, which
    came before. `usual_waits`: the usual time from the return of a launch call to the end of the
    gap, ns, by device and code of the call.

    Columns: cause (of CAUSES); detail (of DETAILS), missing unless the cause is host_wait; api and
    range (names of the tables), missing where the thread was in none; process and thread of the
    call, int64, -1 without one; launch, its name; before_ns and inside_ns, the parts of the gap
    before and inside it; PARTS, int64 ns, which add up to the gap, all 0 of an edge or an
    unattributed gap.
    """
    limits = (np.where(touched, end, np.append(times, 0)[call]) for times in ends(api_calls))
    called, returned = (np.clip(times, start, end) for times in limits)
    known = ~edge & (call >= 0)
    called, returned = np.where(known, called, end), np.where(known, returned, end)
    copying = known & np.append(where(api_calls["name"], COPY_CALL.match), False)[call]
    why = np.full((2, len(start)), -1)
    parts = np.zeros((len(PARTS), len(start)), np.int64)
    rows = np.flatnonzero(known)
    thread = host.threads(api_calls[THREAD].take(call[rows]))
    parts[: len(DETAILS), rows], why[:, rows] = host.explained(
        thread, start[rows], called[rows], returned[rows]
    )
    names = np.append(api_calls["name"].cat.codes.to_numpy(), -1)[call]
    after = end - returned
    _add_inside(parts, returned - called, copying)
    usual = usual_waits.reindex(pd.MultiIndex.from_arrays([device, names])).to_numpy()
    is_usual = (after >= usual / ALIKE) & (after <= usual * ALIKE)
    short = np.where(is_usual, usual, after) < KERNEL_WAIT_NS
    parts[-2] = after * short
    parts[-1] = after * ~short
    main = _largest(parts)
    of_cause = np.r_[np.zeros(len(DETAILS), np.int64), 1, 2]
    return {
        "cause": pd.Categorical.from_codes(
            np.select([edge, call < 0], [4, 3], of_cause[main]), pd.Index(CAUSES)
        ),
        "detail": pd.Categorical.from_codes(
            np.where(known & (main < len(DETAILS)), main, -1), pd.Index(DETAILS)
        ),
        "api": pd.Categorical.from_codes(why[0], host.call_names),
        "range": pd.Categorical.from_codes(why[1], host.range_names),
        "process": np.append(api_calls["process"].to_numpy(), -1)[call],
        "thread": np.append(api_calls["thread"].to_numpy(), -1)[call],
        "launch": pd.Categorical.from_codes(np.where(known & ~touched, names, -1), host.call_names),
        "before_ns": called - start,
        "inside_ns": returned - called,
        **dict(zip(PARTS, parts, strict=True)),
    }


def _add_inside(parts: Int, inside: Int, copying: Bool) -> None:
    """Add the time inside the launch call to its detail."""
    parts[DETAILS.index("cuda_call")] += inside * copying
    parts[DETAILS.index("launch")] += inside * ~copying


def _largest(parts: Int) -> Int:
    """Return the row of the largest value of each column, the first of equals."""
    main, most = np.zeros(parts.shape[1], np.int64), parts[0].copy()
    for number, times in enumerate(parts[1:], 1):  # `argmax` is slow over few rows
        main[times > most] = number
        np.maximum(most, times, out=most)
    return main


def cut_off(gaps: pd.DataFrame, first: Int, last: Int, host: Host) -> pd.DataFrame:
    """Return the parts of gaps that lie in their windows [first, last), int64 ns: a row per gap, the same columns.

    `gaps` are whole, and each overlaps its window. They keep their cause, detail, call and range;
    the PARTS are what lies in the window. What comes after the launch call keeps its kind, however
    little of it is left.
    """
    start, end = ends(gaps)
    beyond = np.flatnonzero((start < first) | (end > last))
    if not len(beyond):
        return gaps
    called = start + gaps["before_ns"].to_numpy()
    returned = called + gaps["inside_ns"].to_numpy()
    short = gaps["kernel_wait_ns"].to_numpy() > 0
    begin, finish = np.maximum(start, first), np.minimum(end, last)
    called, returned = np.clip(called, begin, finish), np.clip(returned, begin, finish)
    columns: dict[str, Any] = {str(name): gaps[name].array for name in gaps}
    columns |= {"start_ns": begin, "dur_ns": finish - begin}
    columns |= {"before_ns": called - begin, "inside_ns": returned - called}
    known = beyond[~gaps["cause"].iloc[beyond].isin(["unattributed", "edge"]).to_numpy()]
    whole = gaps.iloc[known]
    parts = np.zeros((len(PARTS), len(known)), np.int64)
    parts[: len(DETAILS)], _ = host.explained(
        host.threads(whole), begin[known], called[known], returned[known]
    )
    copying = where(whole["launch"], COPY_CALL.match)
    _add_inside(parts, columns["inside_ns"][known], copying)
    after = (finish - returned)[known]
    parts[-2], parts[-1] = after * short[known], after * ~short[known]
    for name, values in zip(PARTS, parts, strict=True):
        columns[name] = gaps[name].to_numpy(copy=True)
        columns[name][known] = values
    return pd.DataFrame(columns, copy=False)


def _explained(
    start: Int,
    called: Int,
    returned: Int,
    of_wait: Int,
    around: list[tuple[pd.DataFrame, Int]],
    answers: list[Bool],
) -> tuple[Int, Int]:
    """Return the ns of each detail in [start, called), and the codes of the call and range of [start, returned).

    `of_wait` is the thread of each wait; `around` has the rows of API_CALLS, RANGES and OS_CALLS
    with theirs, `answers` which categories fulfil each of CONDITIONS.
    """
    tables, groups = zip(*around, strict=True)
    threads = 1 + int(max(of_wait.max(), *(group.max(initial=0) for group in groups)))
    axis = Axis.over(threads, start, returned, *chain(*map(ends, tables)))
    on_cpu, named, in_system = (
        placed(*(axis.at(group, times) for times in ends(frame)))
        for frame, group in zip(tables, groups, strict=True)
    )
    first, last, until = (
        axis.at(of_wait, start),
        axis.at(of_wait, called),
        axis.at(of_wait, returned),
    )
    # What is inside the first, the first or second, the first to third, ... of the details.
    cover, inside = Intervals(*[np.zeros(0, np.int64)] * 3), [np.zeros(len(start), np.int64)]
    calls = np.zeros(len(on_cpu.row), bool)
    of_tables, codes = (
        (on_cpu, named, in_system),
        [table["name"].cat.codes.to_numpy() for table in tables],
    )
    for (number, _), answer in zip(CONDITIONS, answers, strict=True):
        intervals = of_tables[number]
        keep = answer[codes[number]][intervals.row]
        if intervals is on_cpu:
            keep &= ~calls
            calls |= keep
        if keep.any():
            every = calls if intervals is on_cpu else keep
            of_detail = union(intervals.start[every], intervals.end[every])
            cover = of_detail if intervals is on_cpu else merge(cover, of_detail)
        inside.append(covered(cover, first, last) if keep.any() else inside[-1])
    parts = np.diff(np.vstack([*inside, called - start]), axis=0)
    of_api, of_range = (np.append(code, -1) for code in codes[:2])
    return parts, np.vstack(
        [of_api[longest(on_cpu, first, until)], of_range[innermost(named, first, until)]]
    )

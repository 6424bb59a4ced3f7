"""trace.db: when which thread or stream was in which context."""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfkit import tables
from perfkit.readers.hpctoolkit.layout import File, Ints, Records

TRACES = 0  # section of trace.db
PARTS = {"profile": ("<u4", 0), "start": ("<u8", 8), "end": ("<u8", 16)}
ELEMENT_BYTES, ELEMENT = 12, {"time": ("<u8", 0), "node": ("<u4", 8)}
IDLE = 0  # the context that stands for not running
LATEST = 2**63


class Traces:
    """The traces of a database: one per thread and stream that was seen running."""

    def __init__(self, file: File, profiles: int) -> None:
        self._file = file
        at = file.sections[TRACES][0]
        first, count, stride, self.start, self.end = file.fields(at, "QIBxxxQQ", "the traces")
        self._lines = file.records(first, count, stride, PARTS, "the traces")
        if count and not self.start <= self.end < LATEST:
            raise file.damaged(f"the traces last from {self.start} to {self.end} ns")
        beyond = self._lines["profile"][self._lines["profile"] >= profiles]
        if len(beyond):
            raise file.damaged(f"a trace is of profile {beyond[0]}, the database has {profiles}")

    @property
    def exist(self) -> bool:
        """Whether any thread was seen running; of two successive elements at least one is not idle."""
        return any((self._elements(line, 2)["node"] != IDLE).any() for line in self._lines)

    def _elements(self, line: Records, at_most: int | None = None) -> Records:
        start, end = int(line["start"]), int(line["end"])
        count, rest = divmod(end - start, ELEMENT_BYTES)
        if count < 0 or rest:
            raise self._file.damaged(f"a trace would be from byte {start} to {end}")
        count = count if at_most is None else min(count, at_most)
        return self._file.records(start, count, ELEMENT_BYTES, ELEMENT, "a trace")

    def table(self) -> pd.DataFrame:
        """Return TRACE; being idle is no row."""
        lines = [(int(line["profile"]), self._elements(line)) for line in self._lines]
        thread = np.repeat([thread for thread, _ in lines], [len(e) for _, e in lines]).astype(np.int64)
        time = np.concatenate([e["time"] for _, e in lines])
        node = np.concatenate([e["node"] for _, e in lines])
        if ((time < self.start) | (time > self.end)).any():
            raise self._file.damaged("an element of a trace is before the first or after the last of them")
        last = np.cumsum([len(e) for _, e in lines if len(e)]) - 1
        dur = self._durations(time.astype(np.int64), last)
        ended = np.append(node[1:] == IDLE, False)
        ended[last] = False
        seen = node != IDLE
        frame = {
            "rank": np.zeros(np.count_nonzero(seen), np.int32),
            "thread": thread[seen],
            "start_ns": time[seen].astype(np.int64) - self.start,
            "dur_ns": dur[seen],
            "node": node[seen].astype(np.int64),
            "ended": ended[seen],
        }
        return tables.TRACE.make(pd.DataFrame(frame, copy=False))

    def _durations(self, time: Ints, last: Ints) -> Ints:
        """Return the time to the next element of the same trace, 0 for the last of each."""
        dur = np.diff(time, append=0)
        dur[last] = 0
        if (dur < 0).any():
            raise self._file.damaged("the elements of a trace are not in order of time")
        return dur

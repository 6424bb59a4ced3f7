"""A machine that threads, streams and ranks share, simulated event by event.

Threads do one thing after another and sleep until what they wait for is done; streams take their work in order; an
event is handled when its time has come, and nothing is known in advance. Times are int64 ns.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import numpy as np

# Least and mean excess of what no program sets: launch latency, and distance in a stream.
LAUNCH_LATENCY_NS, SPACE_NS = (4_000, 2_000), (800, 300)


@dataclass(eq=False)
class Work:
    """Something that will be done: an operation of a stream, or a batch. What meets ends at one time on all ranks."""

    dur: int = 0
    row: dict[str, Any] = field(default_factory=dict)
    needs: tuple[Work, ...] = ()
    meeting: list[Line] | None = None
    released: bool = False
    start: int = -1
    done: bool = False
    wakes: list[Callable[[], None]] = field(default_factory=list)


Line = deque[Work]
Thread = Generator["int | list[Work]", None, None]


class Machine:
    """Clock, streams and sleeping threads."""

    def __init__(self, ranks: int, seed: int) -> None:
        self.now = 0
        self.ranks = ranks
        self._rng = np.random.default_rng(seed)
        kinds = ("kernels", "copies", "calls", "ranges", "os_calls")
        self.rows: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
        self._moments: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self._lines: dict[tuple[int, int], Line] = {}

    def some(self, least_and_excess: tuple[int, int]) -> int:
        """Return a random length, ns."""
        least, excess = least_and_excess
        return least + int(self._rng.exponential(excess))

    def at(self, delay: int, action: Callable[[], None]) -> None:
        """Do something when the delay has passed."""
        heapq.heappush(self._moments, (self.now + delay, next(self._numbers), action))

    def run(self) -> None:
        """Let time pass until nothing is left to do."""
        while self._moments:
            self.now, _, action = heapq.heappop(self._moments)
            action()

    def resume(self, thread: Thread) -> None:
        """Let a thread go on until it sleeps for some time or waits for work."""
        asked = next(thread, None)
        if isinstance(asked, int):
            self.at(asked, partial(self.resume, thread))
        elif asked is not None:
            self._when_done(asked, partial(self.resume, thread))

    def _when_done(self, works: list[Work], action: Callable[[], None]) -> None:
        left = [work for work in works if not work.done]
        if left:
            left[0].wakes.append(partial(self._when_done, left, action))
        else:
            self.at(0, action)

    def finish(self, work: Work) -> None:
        """Wake whatever waits for this work."""
        work.done = True
        for wake in work.wakes:
            wake()

    def submit(self, rank: int, stream: int, work: Work) -> None:
        """Put work at the end of a stream; it can start when the latency has passed."""
        line = self._lines.setdefault((rank, stream), deque())
        line.append(work)
        self.at(self.some(LAUNCH_LATENCY_NS), partial(self._release, work, line))

    def _release(self, work: Work, line: Line) -> None:
        work.released = True
        self._advance(line)

    def _advance(self, line: Line) -> None:
        """Start the first work of a stream, if that has not started yet and can."""
        if not line or line[0].start >= 0 or not line[0].released:
            return
        work = line[0]
        if waiting := [need for need in work.needs if not need.done]:
            waiting[0].wakes.append(partial(self._advance, line))
            return
        work.start = self.now
        lines = [line] if work.meeting is None else [*work.meeting, line]
        if work.meeting is not None:
            work.meeting.append(line)
        for ready in lines if work.meeting is None or len(lines) == self.ranks else []:
            self.at(work.dur, partial(self._end, ready))

    def _end(self, line: Line) -> None:
        work = line.popleft()
        table = "copies" if "direction" in work.row else "kernels"
        self.rows[table].append({**work.row, "start_ns": work.start, "dur_ns": self.now - work.start})
        self.finish(work)
        self.at(self.some(SPACE_NS), partial(self._advance, line))

"""Sample the Python stacks of a thread, as a trace that perfkit reads.

A second thread looks at the stack every few milliseconds. Frames that neighbouring samples share
become one call, from the first sample that shows it to the first that does not. So a call that is
shorter than the distance of two samples is seen by chance, and two calls one after the other can
become one. The trace has the form of PyTorch's profiler: Python functions alone.
"""

import gzip
import json
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

EVERY_S = 0.005
RUNS_CELL = "run_code"  # IPython's function that runs a cell: what it calls is the cell


class Call(NamedTuple):
    """A function on the stack, and when a sample first showed it, ns."""

    name: str
    start_ns: int


class Sampler:
    """Samples of one thread, from `start` to `stop`."""

    def __init__(self) -> None:
        self._thread_id = threading.get_ident()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._stack: list[Call] = []
        self._events: list[dict[str, Any]] = []
        self._begun_ns = time.time_ns()

    def start(self) -> None:
        """Begin to sample the thread that made this object."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._over.set()
        self._thread.join()
        self._take([], time.perf_counter_ns())

    def write(self, path: Path) -> None:
        """Write the trace."""
        content = {
            "schemaVersion": 1,
            "recordedBy": "perfkit's sampling of Python",
            "baseTimeNanoseconds": self._begun_ns - time.perf_counter_ns(),
            "traceEvents": self._events,
        }
        with gzip.open(path, "wt", encoding="utf-8") as file:
            json.dump(content, file)

    def _look(self) -> None:
        while not self._over.wait(EVERY_S):
            frame = sys._current_frames().get(self._thread_id)
            self._take(names(frame), time.perf_counter_ns())

    def _take(self, stack: list[str], now_ns: int) -> None:
        """Close the calls that are not on the stack any more, and open the new ones."""
        shared = 0
        for call, name in zip(self._stack, stack, strict=False):
            if call.name != name:
                break
            shared += 1
        for call in self._stack[shared:]:
            self._events.append(_event(call, now_ns, self._thread_id))
        opened = [Call(name, now_ns) for name in stack[shared:]]
        self._stack = self._stack[:shared] + opened


def names(frame: FrameType | None) -> list[str]:
    """Return the functions of a cell on a stack, the outermost first; none while no cell runs.

    The outermost function of a cell has a name such as <module>. Those of IPython, such as what
    shows an exception, have none.
    """
    found: list[str] = []
    while frame is not None and frame.f_code.co_name != RUNS_CELL:
        code = frame.f_code
        line = frame.f_lineno if code.co_name == "<module>" else code.co_firstlineno
        found.append(f"{code.co_filename}({line}): {code.co_name}")
        frame = frame.f_back
    is_cell = frame is not None and bool(found) and is_whole(found[-1])
    return found[::-1] if is_cell else []


def is_whole(name: str) -> bool:
    """Tell whether a function is the whole code of a cell or module."""
    return name.endswith(">") and ": <" in name


def _event(call: Call, end_ns: int, thread: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "python_function",
        "name": call.name,
        "pid": os.getpid(),
        "tid": thread % 2**31,
        "ts": call.start_ns / 1000,
        "dur": (end_ns - call.start_ns) / 1000,
    }

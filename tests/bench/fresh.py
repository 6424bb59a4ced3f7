"""How long does something take in a process of its own, and how much memory at most?

Functions
---------
command    run a program
call       call a function of a module of this folder; starting Python and importing are not counted
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024  # the unit of ru_maxrss


class Measured(NamedTuple):
    """What a process took, and what it answered."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    answer: Any


def command(program: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> Measured:
    """Run a program from its start to its end; the answer is what it wrote to standard output.

    Raises
    ------
    RuntimeError
        If it fails; the message ends with its last words.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as said:
        began = time.perf_counter()
        process = subprocess.Popen(list(map(str, program)), stdout=out, stderr=said, env={**os.environ, **(env or {})})
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        said.seek(0)
        if process.returncode:
            words = said.read().decode(errors="replace")[-2000:]
            raise RuntimeError(f"{program[0]}: exit status {process.returncode}. {words}")
        cpu_s = usage.ru_utime + usage.ru_stime
        return Measured(wall_s, cpu_s, usage.ru_maxrss * MAXRSS_BYTES, out.read().decode(errors="replace"))


def call(function: Callable[..., Any], *arguments: object, cache: Path | None = None) -> Measured:
    """Call a function with text arguments in a new process; its answer comes back as JSON."""
    child = [sys.executable, "-m", "tests.bench.fresh", function.__module__, function.__name__, *map(str, arguments)]
    done = command(child, env={"PERFKIT_CACHE": str(cache or "off")})
    wall_s, cpu_s, answer = json.loads(done.answer)
    return Measured(wall_s, cpu_s, done.peak_bytes, answer)


def _called(module: str, function: str, *arguments: str) -> None:
    from importlib import import_module

    work = getattr(import_module(module), function)
    began, busy = time.perf_counter(), time.process_time()
    answer = work(*arguments)
    json.dump([time.perf_counter() - began, time.process_time() - busy, answer], sys.stdout)


if __name__ == "__main__":
    _called(*sys.argv[1:])

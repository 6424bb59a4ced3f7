"""How long does something take in a process of its own, and how much memory at most?"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

PERFKIT = [sys.executable, "-m", "perfkit"]
PAUSE_S = 0.1  # between two looks at the memory of a family
MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024  # the unit of ru_maxrss


class Measured(NamedTuple):
    """What a process took, and what it answered."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    answer: Any


def family(program: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> Measured:
    """Run a program; the peak is of the memory that it and all it started held at once, looked at now and then.

    Pages that processes share count once per process. Where there is no /proc, it is the largest process's peak.
    """
    done = threading.Event()
    seen = [0]

    def look() -> None:
        while not done.wait(PAUSE_S):
            seen.append(sum(_held(pid) for pid in _descendants(os.getpid())))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        measured = command(program, env=env)
    finally:
        done.set()
        watcher.join()
    return measured._replace(peak_bytes=max(measured.peak_bytes, *seen))


def _descendants(pid: int) -> Iterator[int]:
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, children.read_text().split()):
                yield child
                yield from _descendants(child)


def _held(pid: int) -> int:
    """Return the bytes a process has in memory; none if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def peak_bytes() -> int:
    """Return the most memory that this process has held, since it was last forgotten where there is /proc."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_BYTES
    return next(
        int(line.split()[1]) * 1024
        for line in status.read_text().splitlines()
        if line.startswith("VmHWM")
    )


def command(program: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> Measured:
    """Run a program from its start to its end; the answer is what it wrote to standard output.

    Raises
    ------
    RuntimeError
        If it fails; the message ends with its last words.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as said:
        began = time.perf_counter()
        process = subprocess.Popen(
            list(map(str, program)), stdout=out, stderr=said, env={**os.environ, **(env or {})}
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        said.seek(0)
        if process.returncode:
            words = said.read().decode(errors="replace")[-2000:]
            raise RuntimeError(f"{program[0]}: exit status {process.returncode}. {words}")
        cpu_s = usage.ru_utime + usage.ru_stime
        return Measured(
            wall_s, cpu_s, usage.ru_maxrss * MAXRSS_BYTES, out.read().decode(errors="replace")
        )


def call(function: Callable[..., Any], *arguments: object, cache: Path | None = None) -> Measured:
    """Call a function with text arguments in a new process; its answer comes back as JSON."""
    child = [
        sys.executable,
        "-m",
        "tests.bench.fresh",
        function.__module__,
        function.__name__,
        *map(str, arguments),
    ]
    done = command(child, env={"PERFKIT_CACHE": str(cache or "off")})
    wall_s, cpu_s, answer = json.loads(done.answer)
    return Measured(wall_s, cpu_s, done.peak_bytes, answer)


def timed(work: Callable[[], Any]) -> Measured:
    """Return the seconds of work in this process, and its peak so far."""
    began, busy = time.perf_counter(), time.process_time()
    answer = work()
    return Measured(time.perf_counter() - began, time.process_time() - busy, peak_bytes(), answer)


def _called(module: str, function: str, *arguments: str) -> None:
    from importlib import import_module

    work = getattr(import_module(module), function)
    wall_s, cpu_s, _, answer = timed(lambda: work(*arguments))
    json.dump([wall_s, cpu_s, answer], sys.stdout)


if __name__ == "__main__":
    _called(*sys.argv[1:])

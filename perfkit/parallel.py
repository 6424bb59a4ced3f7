"""Read many sources one by one, in processes of this machine, or on a cluster by Dask: the same result bit by bit.

Each source is read and reduced in one worker, so no worker ever holds two. Only what `reduce` returns travels. The
reductions are merged in a tree whose shape depends on the order of the sources alone: neither the engine, the number
of workers nor the order in which they finish changes a figure. A source that cannot be read, or whose worker was
killed, is named in the result; all others are merged.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any, Generic, TypeVar

from perfkit.errors import PerfkitError
from perfkit.format import elided, printable

Source = TypeVar("Source")
Read = TypeVar("Read")
Part = TypeVar("Part")
LOCAL = "local"  # instead of the address of a scheduler: one is started here
ASK_S, PATIENCE_S = 5, 60  # between two looks at a cluster's workers, and how long it may have none
AHEAD = 2  # sources handed out per worker, so that none waits for the next
LONGEST = 300  # characters of a reason
KILLED = "its worker was killed, perhaps for its memory. Use fewer --workers, or a machine with more memory"
NOT_BEGUN = (
    "its worker ended while it started: it was killed, or a script calls perfkit outside of "
    '`if __name__ == "__main__":`, which the worker runs again'
)
NO_PROCESS = (
    "no process can be started ({}). Raise the limit on them (`ulimit -u`), or use --workers 1."
)


@dataclass(frozen=True)
class Refused(Generic[Source]):
    """A source that is not in the result, and why."""

    source: Source
    reason: str


@dataclass(frozen=True)
class Result(Generic[Source, Part]):
    """The merged reductions (None if there is none), and the sources that are not among them, in order."""

    value: Part | None
    refused: tuple[Refused[Source], ...]


def map_reduce(
    sources: Sequence[Source],
    read: Callable[[Source], Read],
    reduce: Callable[[Read], Part],
    merge: Callable[[Part, Part], Part],
    *,
    workers: int = 1,
    dask: str = "",
    done: Callable[[int], object] = lambda number: None,
) -> Result[Source, Part]:
    """Read and reduce each source, and merge the reductions.

    With one worker all is done in this process, with more in processes, with `dask` on the scheduler at that address
    (``local`` starts one with so many workers). Functions and sources must be of a kind that pickle can send. `done`
    hears after each source how many are done. PerfkitError if Dask is missing or its scheduler is lost.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(NOT_BEGUN)  # this is a worker that runs the script which started it
    tree = _Tree(len(sources), merge)
    refused: dict[int, Refused[Source]] = {}
    work = partial(_reduced, read, reduce)
    if dask:
        answers = _by_dask(work, sources, dask, workers)
    else:
        # Processes cannot read a program from standard input, which serves itself alone.
        program = getattr(sys.modules["__main__"], "__file__", None)
        several = workers > 1 and (program is None or Path(program).exists())
        answers = (
            _in_processes(work, sources, workers, _home(read))
            if several
            else enumerate(map(work, sources))
        )
    for number, (index, (part, reason)) in enumerate(answers, start=1):
        if reason:
            refused[index] = Refused(sources[index], reason)
        tree.add(index, part)
        done(number)
    return Result(tree.value, tuple(refused[index] for index in sorted(refused)))


def workers_for(need_bytes: int, workers: int = 0) -> int:
    """Return how many workers this machine can hold that need so much memory each: at most `workers`, or one a core."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, min(workers or cores, _free_bytes() // max(need_bytes, 1)))


def _free_bytes() -> int:
    """Return the memory that is free, also in the control group of a job; a lot where nothing tells."""
    free = [1 << 62]
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        free.append(int(lines["MemAvailable"].split()[0]) * 1024)
    group = Path("/sys/fs/cgroup")
    limit, used = group / "memory.max", group / "memory.current"
    if limit.exists() and used.exists() and limit.read_text().strip().isdigit():
        free.append(max(0, int(limit.read_text()) - int(used.read_text())))
    return min(free)


class _Tree(Generic[Part]):
    """Merges parts pairwise by their position, as soon as both of a pair are there."""

    def __init__(self, count: int, merge: Callable[[Part, Part], Part]) -> None:
        self.value: Part | None = None
        self._count, self._merge = count, merge
        self._waiting: dict[tuple[int, int], Part | None] = {}

    def add(self, index: int, part: Part | None) -> None:
        """Take the part of one source, None if it has none."""
        level, count = 0, self._count
        while count > 1:
            other = index ^ 1
            if other < count:
                if (level, other) not in self._waiting:
                    self._waiting[level, index] = part
                    return
                beside = self._waiting.pop((level, other))
                first, second = (part, beside) if index < other else (beside, part)
                if first is not None and second is not None:
                    part = self._merge(first, second)
                else:
                    part = second if first is None else first
            level, index, count = level + 1, index // 2, (count + 1) // 2
        self.value = part


def _reduced(
    read: Callable[[Source], Read], reduce: Callable[[Read], Part], source: Source
) -> tuple[Part | None, str]:
    """Return the reduction of a source, or why there is none."""
    try:
        return reduce(read(source)), ""
    except Exception as e:  # noqa: BLE001  whatever one source raises is named, and the others are still read
        text = str(e) if isinstance(e, PerfkitError) else f"{type(e).__name__}: {e}"
        return None, elided(printable(text, LONGEST), LONGEST)


def _home(read: Callable[[Source], object]) -> str:
    """Return the module of perfkit in which a function stands; a user's script is not run for it."""
    module = str(getattr(read, "__module__", ""))
    return module if module.startswith("perfkit.") else "perfkit"


_Answer = tuple[int, tuple[Any, str]]


def _in_processes(
    work: Callable[[Source], Any], sources: Sequence[Source], workers: int, home: str
) -> Iterator[_Answer]:
    """Yield index and answer of each source; one whose process dies twice, the second time alone, is refused.

    `home`: the module of `work`, which processes that are forked have from the start.
    PerfkitError if no process can be started.
    """
    left = list(range(len(sources)))[::-1]
    while left:
        running: dict[Future[Any], int] = {}
        suspects: list[int] = []
        with _pool(workers, home) as (pool, _):
            while (left or running) and not suspects:
                try:
                    while left and len(running) < workers * AHEAD:
                        running[_submitted(pool, work, sources[left[-1]])] = left[-1]
                        left.pop()
                except BrokenProcessPool:
                    pass  # the futures that are running tell which sources were in it
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    index = running.pop(future)
                    if isinstance(future.exception(), BrokenProcessPool):
                        suspects.append(index)
                    else:
                        yield index, future.result()
            suspects += running.values()
        for index in suspects:
            with _pool(1, home) as (alone, begun):
                try:
                    answer = _submitted(alone, work, sources[index]).result()
                except BrokenProcessPool:
                    answer = None, KILLED if begun.poll() else NOT_BEGUN
            yield index, answer


@contextmanager
def _pool(workers: int, home: str) -> Iterator[tuple[ProcessPoolExecutor, Connection]]:
    """Start processes that share nothing with this one, whose threads a fork would break; drop them on an error.

    They end with this process, however it ends. The connection holds a message once the first of them has begun.
    """
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    vars(sys.modules["__main__"]).setdefault(
        "__spec__", None
    )  # multiprocessing asks; embedded interpreters have none
    if method == "forkserver":
        context.set_forkserver_preload([home])
    followed, alive = context.Pipe(duplex=False)
    begun, begin = context.Pipe(duplex=False)
    with followed, alive, begun, begin:
        pool = ProcessPoolExecutor(workers, context, _follow, (followed, begin))
        try:
            yield pool, begun
        finally:
            pool.shutdown(cancel_futures=True)


def _submitted(pool: ProcessPoolExecutor, work: Callable[[Source], Any], source: Source) -> Any:
    """Hand a source to a pool, which starts a process for it; PerfkitError if none can be started."""
    try:
        return pool.submit(work, source)
    except BrokenProcessPool:
        raise
    except (OSError, EOFError, RuntimeError) as e:  # of the system, the fork server, a thread
        raise PerfkitError(NO_PROCESS.format(str(e) or "the fork server ended")) from e


def _follow(alive: Connection, begin: Connection) -> None:
    """Tell that this worker has begun, and end it when the process that started it has ended."""
    begin.send_bytes(b"begun")
    Thread(target=_end_after, args=(alive,), daemon=True).start()


def _end_after(alive: Connection) -> None:
    with suppress(EOFError, OSError):
        alive.recv_bytes()  # nothing is sent: this ends when the other end is closed
    os._exit(1)


def _by_dask(
    work: Callable[[Source], Any], sources: Sequence[Source], address: str, workers: int
) -> Iterator[_Answer]:
    """Yield index and answer of each source as the workers of a Dask scheduler finish them."""
    if not find_spec("distributed"):
        raise PerfkitError("--dask: the package distributed is missing. Install perfkit[dask].")
    from distributed import Client, LocalCluster, wait
    from distributed.scheduler import KilledWorker

    here = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
    try:
        cluster = LocalCluster(**here) if address == LOCAL else None
        client = Client(cluster or address)
    except (OSError, ValueError) as e:
        raise PerfkitError(
            f"--dask {address}: no scheduler answers ({e}). Start one with `dask scheduler`."
        ) from e
    lost = f"--dask {address}: the scheduler was lost. Run again: what is done is kept."
    try:
        left = dict(zip(client.map(work, sources, pure=False), range(len(sources)), strict=True))
        worked_at = monotonic()
        while left:
            with suppress(TimeoutError):
                wait(list(left), timeout=ASK_S, return_when="FIRST_COMPLETED")
            for future in [future for future in left if future.status != "pending"]:
                index = left.pop(future)
                if future.status == "finished":
                    yield index, future.result()
                elif future.status == "error" and isinstance(future.exception(), KilledWorker):
                    yield index, (None, KILLED)
                else:
                    raise PerfkitError(lost)
            if client.scheduler_info(n_workers=1)["workers"]:
                worked_at = monotonic()
            elif left and monotonic() - worked_at > PATIENCE_S:
                problem = f"no worker for {PATIENCE_S} s, and {len(left):,} of {len(sources):,} files are not read"
                raise PerfkitError(
                    f"--dask {address}: {problem}. Start workers, and run again: what is done is kept."
                )
    except (OSError, CancelledError) as e:  # of distributed: CommClosedError, FutureCancelledError
        raise PerfkitError(lost) from e
    finally:
        client.close()
        if cluster:
            cluster.close()

"""Mutants made, loaded by perfkit in worker processes with limits, and judged."""

from __future__ import annotations

import faulthandler
import gzip
import math
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from fuzz import families, mutators
from fuzz.families import SUMMED, Seed

LIMITS = {"cpu": 20.0, "memory": 2 * 2**30}  # seconds and bytes, of one mutant
WALL_SECONDS = 120  # also for what a child process of perfkit does
RESERVED_BYTES = 3 * 2**30  # of addresses: allocators reserve more than they use
SERVED = 4000  # mutants by one worker
EVERY_TABLE = 10  # every n-th mutant also touches the tables that its file does not have

TEN_YEARS_NS = 3660 * 86400 * 10**9
UNITS = ("_ns", "_bytes", "_hz", "_w", "_c", "_j", "_frac", "_flops", "_per_s", "_count")
BELOW_ZERO = re.compile(r"_c$|_margin_c$|_frac$")  # of SAMPLES: temperatures; fractions have a check of their own
QUANTITIES = re.compile(
    r"(^|_)bytes$|_(hz|w|flops|per_s|count|blocks|threads)$|^(registers|sm_count|depth|line|ranks|rank|self_ns)$"
)
SQLITE_TABLES = (
    *("CUPTI_ACTIVITY_KIND_KERNEL",) * 4,
    *("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_RUNTIME") * 2,
    *("NVTX_EVENTS", "OSRT_API", "GPU_METRICS", "TARGET_INFO_GPU_METRICS", "StringIds", "TARGET_INFO_GPU") * 2,
    *("TARGET_INFO_SESSION_START_TIME", "ANALYSIS_DETAILS", "META_DATA_EXPORT", "EXPORT_META_DATA", "PROCESSES"),
    *("TARGET_INFO_CUDA_CONTEXT_INFO", "TARGET_INFO_CUDA_DEVICE", "META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV"),
    *("CUDA_GPU_MEMORY_USAGE_EVENTS", "DIAGNOSTIC_EVENT", "ThreadNames", "TARGET_INFO_NIC_INFO"),
)


@dataclass
class Outcome:
    """What became of a mutant: refused or loaded, and the groups of its defects with their details."""

    family: str
    number: int
    mutation: str = ""
    seed: str = ""
    status: str = "loaded"
    refusal: str = ""
    notes: tuple[str, ...] = ()
    defects: dict[str, str] = field(default_factory=dict)
    oracle: str = "abstained"
    seconds: float = 0.0


# Making a mutant


def make(family: str, number: int, folder: Path) -> tuple[Path, Seed, str]:
    """Write mutant `number` of a family into `folder`; return the path to load, its seed and the mutations."""
    rng = random.Random(f"{family}/{number}")
    made = families.seeds(family)
    seed = rng.choice(made)
    kinds = families.FAMILIES[family].kinds
    kind = rng.choices(list(kinds), list(kinds.values()))[0]
    path = seed.write(folder)
    if kind == "sql":
        return path, seed, mutators.sql(rng, path, SQLITE_TABLES)
    target, other = rng.choice(_weighted(seed)), rng.choice(made)
    if kind == "unlink":
        (folder / target).unlink()
        return path, seed, f"unlink:{Path(target).name}"
    done = [f"{Path(target).name}:"] if len(seed.files) > 1 else []
    data = seed.files[target]
    if kind == "columns":
        name, data = _recolumned(rng, target, data)
        done.append(name)
    else:
        borrowed = other.files[rng.choice(sorted(other.files))]
        for _time in range(rng.choice((1, 1, 1, 1, 2, 3))):
            name, data = _changed(rng, kind, target, data, borrowed)
            done.append(name)
        if path.is_dir():
            (path / ".damaged").touch()
    (folder / target).write_bytes(data)
    return path, seed, "+".join(done)


def _weighted(seed: Seed) -> list[str]:
    important = re.compile(r"KERNEL|MEMCPY|RUNTIME|NVTX_EVENTS|GPU_METRICS|StringIds|TARGET_INFO_GPU\.|metric-db")
    return [name for name in sorted(seed.files) for _ in range(4 if important.search(name) else 1)]


def _changed(rng: random.Random, kind: str, name: str, data: bytes, other: bytes) -> tuple[str, bytes]:
    """Apply a mutator to a file; text inside a gzip file is changed and packed again."""
    mutator = {"binary": mutators.binary, "text": mutators.text, "json": mutators.jsons}[kind]
    if name.endswith(".gz") and kind != "binary":
        try:
            inner = gzip.decompress(data)
        except (OSError, EOFError, ValueError):
            return mutators.binary(rng, data, other)
        done, inner = mutator(rng, inner, b"")
        return done, gzip.compress(inner, 1, mtime=0)
    return mutator(rng, data, other)


def _recolumned(rng: random.Random, name: str, data: bytes) -> tuple[str, bytes]:
    form = "parquet" if name.endswith(".parquet") else "arrow" if data.startswith(b"ARROW1") else "stream"
    if form == "parquet":
        table = pq.read_table(pa.BufferReader(data))
    else:
        table = {"arrow": pa.ipc.open_file, "stream": pa.ipc.open_stream}[form](data).read_all()
    done, table = mutators.columns(rng, table)
    try:
        return done, families.written(table, form)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return "c_unwritable", data


# Judging


class Slow(BaseException):
    """The mutant took more CPU time than it may."""


def judge(family: str, number: int, folder: Path) -> Outcome:
    outcome = Outcome(family, number)
    try:
        path, seed, outcome.mutation = make(family, number, folder)
    except Exception as e:  # noqa: BLE001 - a fault of this harness is shown as one
        outcome.status, outcome.defects = "unmade", {f"harness {type(e).__name__}": _text(e)}
        return outcome
    outcome.seed = seed.name
    start = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, LIMITS["cpu"])
    try:
        read = load(path, outcome, is_whole=number % EVERY_TABLE == 0)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        outcome.seconds = time.process_time() - start
    if read and not outcome.defects:
        compare(family, path, seed, read, outcome)
    return outcome


@dataclass
class Read:
    tables: dict[str, pd.DataFrame]
    notes: tuple[str, ...]
    missing: tuple[Any, ...]


def load(path: Path, outcome: Outcome, is_whole: bool = True) -> Read | None:
    import perfkit
    from perfkit.tables import TABLES

    tables: dict[str, pd.DataFrame] = {}
    run = _guarded(path, outcome, lambda: perfkit.load(path))
    if run is None:
        return None
    with_rows = {name for profile in run.profiles for name in profile.loaders}
    for name in TABLES if is_whole else [name for name in TABLES if name in with_rows or name == "CAPTURE"]:
        frame = _guarded(path, outcome, lambda name=name: TABLES[name].check(run.table(name)))
        if frame is not None:
            tables[name] = frame
    if len(tables.get("CALLTREE", ())):
        _guarded(path, outcome, lambda: run.call_graph, must_name=False)
    notes = _guarded(path, outcome, lambda: run.notes)
    missing = _guarded(path, outcome, lambda: run.missing)
    if outcome.status == "loaded" and notes is not None:
        for group, detail in impossible(tables, notes):
            outcome.defects.setdefault(group, detail)
    return Read(tables, notes or (), missing or ()) if outcome.status == "loaded" else None


def _guarded(path: Path, outcome: Outcome, action: Any, must_name: bool = True) -> Any:
    from perfkit.errors import PerfkitError, SchemaError

    try:
        return action()
    except MemoryError as e:
        outcome.defects[f"memory {_place(e)}"] = _text(e)
    except Slow as e:
        outcome.defects[f"slow {_place(e)}"] = _text(e)
    except SchemaError as e:
        outcome.defects[f"SchemaError {_place(e)}"] = _text(e)
    except PerfkitError as e:
        outcome.status, outcome.refusal = "refused", str(e)
        if must_name and str(path) not in str(e) and path.name not in str(e):
            outcome.defects[f"unnamed {_place(e)}"] = _text(e)
        if len(str(e)) > 4000:
            outcome.defects[f"endless {_place(e)}"] = _text(e)
    except Exception as e:  # noqa: BLE001 - whatever else perfkit lets through is what this looks for
        outcome.defects[f"{type(e).__name__} {_place(e)}"] = _text(e)
    return None


def _place(error: BaseException) -> str:
    """The innermost line of perfkit in a traceback, that of the schema aside."""
    package = Path(sys.modules["perfkit"].__file__ or "").parent
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(package)
    ]
    inner = [frame for frame in frames if not frame.filename.endswith("schema.py")] or frames
    if not inner:
        return "outside perfkit"
    return f"perfkit/{Path(inner[-1].filename).relative_to(package)}:{inner[-1].name}:{inner[-1].lineno}"


def _text(error: BaseException) -> str:
    lines = traceback.format_exception(error)
    whole = "".join(lines)
    return whole if len(whole) < 8000 else f"{whole[:2000]}\n...\n{whole[-6000:]}"


def impossible(tables: dict[str, pd.DataFrame], notes: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield what no correct table holds: (group, detail)."""
    for name, frame in tables.items():
        for column in frame:
            values = frame[column]
            if not len(values) or isinstance(values.dtype, pd.CategoricalDtype) or values.dtype.kind not in "iuf":
                continue
            numbers = values.to_numpy("float64", na_value=math.nan)
            for what in _wrong(name, str(column), numbers, notes):
                least, most = np.nanmin(numbers), np.nanmax(numbers)
                yield f"inv-{name}.{column} {what}", f"{name}.{column} {what}: {least} .. {most}"
    yield from _impossible_samples(tables.get("SAMPLES"))


def _wrong(table: str, column: str, numbers: np.ndarray, notes: Iterable[str]) -> Iterator[str]:
    if np.isinf(numbers).any():
        yield "infinite"
    if column.endswith(("dur_ns", "self_ns")):
        if (numbers < 0).any():
            yield "negative"
        if (numbers > TEN_YEARS_NS).any():
            yield "beyond 10 years"
    if column in ("start_ns", "time_ns") and (np.abs(numbers) > TEN_YEARS_NS).any():
        yield "beyond 10 years"
    if QUANTITIES.search(column) and (numbers < 0).any():
        yield "negative"
    if column == "t0_unix_ns" and (numbers < 0).any():
        yield "negative"
    if column in ("gpu", "peer_gpu", "stream", "channel", "node", "parent", "launch") and (numbers < -1).any():
        yield "below -1"
    if column.endswith("_frac"):
        most = 1.1 if table == "LAUNCHES" and any(column in note for note in notes) else 1.0
        if (numbers < 0).any() or (numbers > most * (1 + 1e-9)).any():
            yield "outside 0..1"


def _impossible_samples(samples: pd.DataFrame | None) -> Iterator[tuple[str, str]]:
    if samples is None or samples.empty:
        return
    for metric, values in samples.groupby("metric", observed=True)["value"]:
        name, least, most = str(metric), values.min(), values.max()
        kind = next((unit for unit in UNITS if name.endswith(unit)), None)
        if kind is None:
            yield "inv-SAMPLES.metric without unit", f"{name[:200]}: its suffix is none of {UNITS}"
        elif kind == "_frac" and (least < 0 or most > 1 + 1e-9):
            yield "inv-SAMPLES *_frac outside 0..1", f"{name}: {least} .. {most}"
        elif kind not in ("_frac", "_c") and least < 0:
            yield "inv-SAMPLES quantity negative", f"{name}: {least} .. {most}"


# The oracle


def actual(tables: dict[str, pd.DataFrame], key: str) -> tuple[int, float]:
    """Rows of a table, or of one metric of SAMPLES, and the sum of its column in SUMMED."""
    table, _, metric = key.partition("/")
    frame = tables.get(table)
    if frame is None:
        return 0, 0.0
    if metric:
        frame = frame[frame["metric"] == metric]
    column = SUMMED.get(table)
    return len(frame), float(frame[column].sum()) if column else 0.0


@cache
def pristine(family: str, name: str) -> tuple[Read, families.Counts]:
    """Return what perfkit reads of an unchanged seed, and the counts in which the oracle agrees."""
    seed = next(seed for seed in families.seeds(family) if seed.name == name)
    with tempfile.TemporaryDirectory() as folder:
        path = seed.write(Path(folder))
        outcome = Outcome(family, -1)
        read = load(path, outcome) or Read({}, (), ())
        expected = families.counts(family, path) or {}
    return read, {key: (rows, total) for key, (rows, total) in expected.items() if actual(read.tables, key)[0] == rows}


def compare(family: str, path: Path, seed: Seed, read: Read, outcome: Outcome) -> None:
    """Compare the rows that perfkit returns with those the file states; nothing may go without a word."""
    before, judged = pristine(family, seed.name)
    is_noted = bool(set(read.notes) - set(before.notes) or set(read.missing) - set(before.missing))
    _compare_cut(family, path, seed, read, before, is_noted, outcome)
    stated = families.counts(family, path)
    if not stated or not judged:
        return
    outcome.oracle = "agreed"
    for key in judged.keys() & stated.keys():
        rows, total = actual(read.tables, key)
        expected, summed = stated[key]
        if rows < expected:
            outcome.oracle = "noted"
            if not is_noted:
                outcome.defects[f"oracle {key} rows lost, no note"] = f"{rows} of {expected} rows, no note"
        elif rows > expected:
            outcome.defects[f"oracle {key} rows too many"] = f"{rows} rows, the file states {expected}"
        elif summed is not None and not is_noted and not math.isclose(total, summed, rel_tol=1e-6, abs_tol=rows + 1):
            outcome.defects[f"oracle {key} other sum"] = f"sum {total!r} of {rows} rows, the file states {summed!r}"


def _compare_cut(
    family: str, path: Path, seed: Seed, read: Read, before: Read, is_noted: bool, outcome: Outcome
) -> None:
    """A text that ends within a line, or a folder that lacks a file, is noted where rows are fewer than before."""
    fewer = [
        name
        for name, frame in before.tables.items()
        if name != "CAPTURE" and len(read.tables.get(name, ())) < len(frame)
    ]
    if is_noted or not fewer:
        return
    if outcome.mutation.startswith("unlink:") and family.startswith("hpct"):  # nsys writes no table without rows
        outcome.defects["oracle file gone, rows fewer, no note"] = f"fewer rows in {', '.join(fewer)}"
    data = path.read_bytes() if path.is_file() else b""
    old = seed.files.get(seed.entry, b"")
    if outcome.mutation == "b_cut" and old.endswith(b"\n") and data and not data.endswith(b"\n"):
        count = {name: (len(read.tables.get(name, ())), len(before.tables[name])) for name in fewer}
        outcome.defects["oracle silent cut"] = f"cut within a line, no note; rows now and before: {count}"


# Workers


def serve(connection: Connection, log: str, limits: dict[str, float]) -> None:
    os.setsid()
    LIMITS.update(limits)
    with open(log, "w", buffering=1) as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
        faulthandler.enable(file)
        faulthandler.register(signal.SIGUSR1, file, all_threads=True)
        os.environ["PERFKIT_CACHE"] = "off"
        warnings.simplefilter("ignore")
        signal.signal(signal.SIGPROF, _too_slow)
        import perfkit.readers

        for name in perfkit.readers.READERS:
            perfkit.readers.reader(name)
        connection.send("ready")
        for task in iter(connection.recv, None):
            connection.send(_served(*task))


def _served(family: str, number: int) -> Outcome:
    before, highest = _memory(os.getpid()), _highest()
    _limit_addresses()
    folder = Path(tempfile.mkdtemp(prefix="perfkit-fuzz-"))
    try:
        outcome = judge(family, number, folder) if family in families.FAMILIES else _judged_path(family)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    peak = _highest()
    if peak > highest and peak - before > LIMITS["memory"]:
        outcome.defects.setdefault("memory peak", f"peak of {(peak - before) / 2**30:.1f} GiB above the base")
    return outcome


def _judged_path(named: str) -> Outcome:
    """Judge a file or folder that is no mutant; ``fault:...`` tries the limits of the worker itself."""
    kind, _, rest = named.partition(":")
    outcome = Outcome(named, 0)
    signal.setitimer(signal.ITIMER_PROF, LIMITS["cpu"])
    try:
        if kind == "fault":
            _guarded(Path(rest), outcome, FAULTS[rest])
            return outcome
        read = load(Path(rest), outcome)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    outcome.notes = read.notes if read else ()
    return outcome


def _spin() -> None:
    while True:
        pass


# What a reader must not do, to show that a worker notices it.
FAULTS: dict[str, Any] = {
    "abort": os.abort,
    "spin": _spin,
    "grow": lambda: bytearray(4 * 2**30),
    "peak": lambda: len(b"x" * int(LIMITS["memory"] + 2**26)),
    "raise": lambda: {}["key"],
}


def _too_slow(*_: object) -> None:
    raise Slow(f"more than {LIMITS['cpu']} s of CPU")


def _limit_addresses() -> None:
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + RESERVED_BYTES, resource.RLIM_INFINITY))


def _highest() -> int:
    """The most memory of this process so far; ru_maxrss begins at that of the process which started it."""
    (line,) = (one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def _memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def _tree(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *(inner for child in children for inner in _tree(int(child)))]


def _used(pid: int) -> tuple[float, int]:
    seconds, memory = 0.0, 0
    for one in _tree(pid):
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            memory += _memory(one)
        except OSError:
            continue
        seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return seconds, memory


class Worker:
    def __init__(self, limits: dict[str, float]) -> None:
        self.limits = limits
        self.log = tempfile.NamedTemporaryFile(prefix="perfkit-fuzz-", suffix=".log")  # noqa: SIM115 - lives as long
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, self.log.name, limits), daemon=False)
        self.process.start()
        other.close()
        self.task: tuple[str, int] | None = None
        self.base = (0.0, 0)
        self.started = 0.0
        self.served = 0

    def give(self, task: tuple[str, int]) -> None:
        self.task, self.started, self.served = task, time.monotonic(), self.served + 1
        if self.served == 1:
            self.connection.recv()  # it has imported everything
            self.started = time.monotonic()
        self.base = _used(self.process.pid or 0)
        self.connection.send(task)

    def answer(self) -> Outcome | None:
        """Return the outcome of its mutant if there is one; a dead or endless worker is one."""
        assert self.task
        if self.connection.poll():
            try:
                outcome: Outcome = self.connection.recv()
            except (EOFError, ConnectionResetError):
                return self._dead()
            self.task = None
            return outcome
        if not self.process.is_alive():
            return self._dead()
        return self._over_limit()

    def _dead(self) -> Outcome:
        self.process.join(5)
        code = self.process.exitcode or 0
        what = f"died-signal{-code}" if code < 0 else f"died-exit{code}"
        return self._failed(what)

    def _over_limit(self) -> Outcome | None:
        if time.monotonic() - self.started < 1:
            return None
        seconds, memory = (now - before for now, before in zip(_used(self.process.pid or 0), self.base, strict=True))
        over = "memory" if memory > self.limits["memory"] * 1.25 else ""
        over = over or (
            "slow" if seconds > self.limits["cpu"] * 1.25 or time.monotonic() - self.started > WALL_SECONDS else ""
        )
        if not over:
            return None
        os.kill(self.process.pid or 0, signal.SIGUSR1)  # writes where it is into the log
        time.sleep(0.5)
        return self._failed(over)

    def _failed(self, what: str) -> Outcome:
        assert self.task
        told = Path(self.log.name).read_text("utf-8", "replace")[-20_000:]
        frames = re.findall(r'File "[^"]*/(perfkit/(?!tests/)[^"]+)", line (\d+) in (\S+)', told)
        place = "{0}:{2}:{1}".format(*frames[0]) if frames else "outside perfkit"
        outcome = Outcome(*self.task, defects={f"{what} {place}": told[-6000:]})
        outcome.status = "died"
        self.task = None
        return outcome

    def stop(self) -> None:
        if self.process.is_alive() and self.process.pid:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                self.process.kill()
        self.process.join(10)
        self.connection.close()
        self.log.close()


class Pool:
    """Workers that judge mutants; one that died is replaced."""

    def __init__(self, workers: int = 1, **limits: float) -> None:
        self._limits = LIMITS | limits
        self._workers = [self._new() for _ in range(workers)]

    def _new(self) -> Worker:
        return Worker(self._limits)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.stop()

    def outcomes(self, tasks: Iterable[tuple[str, int]]) -> Iterator[Outcome]:
        waiting = iter(tasks)
        while self._hand_out(waiting):
            wait([worker.connection for worker in self._workers if worker.task], 0.1)
            for i, worker in enumerate(self._workers):
                outcome = worker.answer() if worker.task else None
                if outcome and outcome.status == "died":
                    worker.stop()
                    self._workers[i] = self._new()
                    yield self._confirmed(i, outcome)
                elif outcome:
                    if any(group.startswith("memory") for group in outcome.defects):
                        worker.served = SERVED  # its peak hides those of the next
                    yield outcome

    def _hand_out(self, waiting: Iterator[tuple[str, int]]) -> bool:
        for i, worker in enumerate(self._workers):
            if not worker.task:
                task = next(waiting, None)
                if task is None:
                    break
                if worker.served >= SERVED:
                    worker.stop()
                    self._workers[i] = self._new()
                self._workers[i].give(task)
        return any(worker.task for worker in self._workers)

    def _confirmed(self, i: int, died: Outcome) -> Outcome:
        """Judge a mutant of which a worker died in a fresh one: it may have died of an earlier mutant's work."""
        worker, again = self._workers[i], None
        worker.give((died.family, died.number))
        while again is None:
            wait([worker.connection], 0.1)
            again = worker.answer()
        if again.status == "died":
            worker.stop()
            self._workers[i] = self._new()
            return again
        died.defects = {f"not alone: {group}": detail for group, detail in died.defects.items()}
        return died


def tasks(names: Iterable[str], first: int = 0) -> Iterator[tuple[str, int]]:
    """Mutants of these families without end, each family as often as its share says."""
    done = dict.fromkeys(names, 0.0)
    while True:
        name = min(done, key=lambda name: (done[name], name))
        share = families.FAMILIES[name].share
        yield name, first + round(done[name] * share)
        done[name] += 1 / share

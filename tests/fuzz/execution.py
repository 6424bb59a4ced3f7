"""Mutants made, loaded by perfkit in processes with limits, and judged."""

from __future__ import annotations

import faulthandler
import gzip
import math
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from fuzz import families, mutators
from fuzz.families import SUMMED, Seed

LIMITS = {"cpu": 20.0, "memory": 2 * 2**30}  # seconds and bytes, of one mutant
WALL_SECONDS = 120  # also for what a child process of perfkit does
RESERVED_BYTES = 3 * 2**30  # of addresses: allocators reserve more than they use
EVERY_TABLE = 10  # every n-th mutant also touches the tables that its file does not have

TEN_YEARS_NS = 3660 * 86400 * 10**9
UNITS = ("_ns", "_bytes", "_hz", "_w", "_c", "_j", "_frac", "_flops", "_per_s", "_count")
QUANTITIES = re.compile(
    r"(^|_)bytes$|_(hz|w|flops|per_s|count|blocks|threads)$|^(registers|sm_count|depth|line|ranks|rank|self_ns)$"
)
SQLITE_TABLES = (
    *("CUPTI_ACTIVITY_KIND_KERNEL",) * 4,
    *("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_RUNTIME")
    * 2,
    *(
        "NVTX_EVENTS",
        "OSRT_API",
        "GPU_METRICS",
        "TARGET_INFO_GPU_METRICS",
        "StringIds",
        "TARGET_INFO_GPU",
    )
    * 2,
    *(
        "TARGET_INFO_SESSION_START_TIME",
        "ANALYSIS_DETAILS",
        "META_DATA_EXPORT",
        "EXPORT_META_DATA",
        "PROCESSES",
    ),
    *(
        "TARGET_INFO_CUDA_CONTEXT_INFO",
        "TARGET_INFO_CUDA_DEVICE",
        "META_DATA_CAPTURE",
        "TARGET_INFO_SYSTEM_ENV",
    ),
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
    important = re.compile(
        r"KERNEL|MEMCPY|RUNTIME|NVTX_EVENTS|GPU_METRICS|StringIds|TARGET_INFO_GPU\.|metric-db"
    )
    return [name for name in sorted(seed.files) for _ in range(4 if important.search(name) else 1)]


def _changed(
    rng: random.Random, kind: str, name: str, data: bytes, other: bytes
) -> tuple[str, bytes]:
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
    form = (
        "parquet"
        if name.endswith(".parquet")
        else "arrow"
        if data.startswith(b"ARROW1")
        else "stream"
    )
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
    for name in (
        TABLES if is_whole else [name for name in TABLES if name in with_rows or name == "CAPTURE"]
    ):
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
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(package)
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
            if (
                not len(values)
                or isinstance(values.dtype, pd.CategoricalDtype)
                or values.dtype.kind not in "iuf"
            ):
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
    if (
        column in ("gpu", "peer_gpu", "stream", "channel", "node", "parent", "launch")
        and (numbers < -1).any()
    ):
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


def actual(tables: dict[str, pd.DataFrame], name: str) -> tuple[int, float]:
    """Rows of a table, and the sum of its column in SUMMED."""
    frame, column = tables.get(name), SUMMED.get(name)
    if frame is None:
        return 0, 0.0
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
    return read, {
        key: (rows, total)
        for key, (rows, total) in expected.items()
        if actual(read.tables, key)[0] == rows
    }


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
                outcome.defects[f"oracle {key} rows lost, no note"] = (
                    f"{rows} of {expected} rows, no note"
                )
        elif rows > expected:
            outcome.defects[f"oracle {key} rows too many"] = (
                f"{rows} rows, the file states {expected}"
            )
        elif (
            summed is not None
            and not is_noted
            and not math.isclose(total, summed, rel_tol=1e-6, abs_tol=rows + 1)
        ):
            outcome.defects[f"oracle {key} other sum"] = (
                f"sum {total!r} of {rows} rows, the file states {summed!r}"
            )


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
    if outcome.mutation.startswith("unlink:") and family.startswith(
        "hpct"
    ):  # nsys writes no table without rows
        outcome.defects["oracle file gone, rows fewer, no note"] = (
            f"fewer rows in {', '.join(fewer)}"
        )
    data = path.read_bytes() if path.is_file() else b""
    old = seed.files.get(seed.entry, b"")
    if outcome.mutation == "b_cut" and old.endswith(b"\n") and data and not data.endswith(b"\n"):
        count = {name: (len(read.tables.get(name, ())), len(before.tables[name])) for name in fewer}
        outcome.defects["oracle silent cut"] = (
            f"cut within a line, no note; rows now and before: {count}"
        )


# Processes


def _prepare(limits: dict[str, float]) -> None:
    """Import in a process of the pool what its children need."""
    LIMITS.update(limits)
    os.environ["PERFKIT_CACHE"] = "off"
    warnings.simplefilter("ignore")
    import perfkit.readers

    for name in perfkit.readers.every_name():
        perfkit.readers.reader(name)


def _alone(family: str, number: int) -> Outcome:
    """Judge a mutant in a child process, so that it may die; the log of the child tells where it was."""
    if family in families.FAMILIES:
        for seed in families.seeds(family):
            pristine(family, seed.name)
    receiving, sending = multiprocessing.Pipe(duplex=False)
    with (
        tempfile.TemporaryFile() as log,
        tempfile.TemporaryDirectory(prefix="perfkit-fuzz-") as folder,
    ):
        child = os.fork()
        if not child:
            try:
                sending.send(_judged(family, number, Path(folder), log))
            finally:
                os._exit(1)
        sending.close()
        outcome, what = None, "slow"
        try:
            if receiving.poll(WALL_SECONDS):
                outcome = receiving.recv()
            else:
                os.kill(child, signal.SIGUSR1)  # it writes into the log where it is
                time.sleep(0.5)
        except EOFError:
            what = "died"
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if outcome:
            return outcome
        log.seek(0)
        told = log.read().decode("utf-8", "replace")[-20_000:]
    frames = re.findall(r'File "[^"]*/(perfkit/(?!tests/)[^"]+)", line (\d+) in (\S+)', told)
    place = "{0}:{2}:{1}".format(*frames[0]) if frames else "outside perfkit"
    what = what if what == "slow" else f"died-signal{-code}" if code < 0 else f"died-exit{code}"
    return Outcome(family, number, status="died", defects={f"{what} {place}": told[-6000:]})


def _judged(family: str, number: int, folder: Path, log: IO[bytes]) -> Outcome:
    """Judge under limits of memory and time, with what is printed in the log."""
    os.setsid()
    for stream in (1, 2):
        os.dup2(log.fileno(), stream)
    faulthandler.enable(log)
    faulthandler.register(signal.SIGUSR1, log, all_threads=True)
    signal.signal(signal.SIGPROF, _too_slow)
    resource.setrlimit(resource.RLIMIT_CPU, (int(LIMITS["cpu"] * 1.25) + 1, resource.RLIM_INFINITY))
    addresses, before = (
        int(n) * resource.getpagesize() for n in Path("/proc/self/statm").read_text().split()[:2]
    )
    resource.setrlimit(resource.RLIMIT_AS, (addresses + RESERVED_BYTES, resource.RLIM_INFINITY))
    outcome = judge(family, number, folder) if family in families.FAMILIES else _judged_path(family)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if peak - before > LIMITS["memory"]:
        outcome.defects.setdefault(
            "memory peak", f"peak of {(peak - before) / 2**30:.1f} GiB above the base"
        )
    return outcome


def _judged_path(named: str) -> Outcome:
    """Judge a file or folder that is no mutant; ``fault:...`` tries the limits themselves."""
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


# What a reader must not do, to show that it is noticed.
FAULTS: dict[str, Any] = {
    "abort": os.abort,
    "spin": _spin,
    "grow": lambda: bytearray(4 * 2**30),
    "peak": lambda: len(b"x" * int(LIMITS["memory"] + 2**26)),
    "raise": lambda: {}["key"],
}


def _too_slow(*_: object) -> None:
    raise Slow(f"more than {LIMITS['cpu']} s of CPU")


class Pool:
    """Processes that judge mutants, each in a child of its own."""

    def __init__(self, workers: int = 1, **limits: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._executor = ProcessPoolExecutor(workers, context, _prepare, (LIMITS | limits,))
        self._ahead = 2 * workers

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(cancel_futures=True)

    def outcomes(self, tasks: Iterable[tuple[str, int]]) -> Iterator[Outcome]:
        given: deque[Future[Outcome]] = deque()
        for task in tasks:
            given.append(self._executor.submit(_alone, *task))
            if len(given) > self._ahead:
                yield given.popleft().result()
        for future in given:
            yield future.result()


def tasks(names: Iterable[str], first: int = 0) -> Iterator[tuple[str, int]]:
    """Mutants of these families without end, each family as often as its share says."""
    done = dict.fromkeys(names, 0.0)
    while True:
        name = min(done, key=lambda name: (done[name], name))
        share = families.FAMILIES[name].share
        yield name, first + round(done[name] * share)
        done[name] += 1 / share

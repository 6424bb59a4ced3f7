"""What is a database, and how are its files written?

Functions
---------
write    the database's files
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from make.hpctoolkit.layout import WORD, Form, Int, header, header_size, packed, replacing
from make.hpctoolkit.meta import KINDS, meta_db
from make.hpctoolkit.metrics import Metric
from make.hpctoolkit.tree import Tree
from make.hpctoolkit.values import ProfileWriter, Rows, rows, write_contexts

TRACE_FOOTER = b"trace.db"
PHYSICAL = ("NODE", "CORE")  # kinds of identity whose number is a machine's own
NOT_RUNNING = -1

_ELEMENT = np.dtype([("time", "<u8"), ("context", "<u4")])
_NONE = np.zeros(0, np.int64)


class Values(NamedTuple):
    """What was measured: amount by amount the context and metric (positions) it belongs to; equal ones add up."""

    context: Int = _NONE
    metric: Int = _NONE
    amount: Int = _NONE


class Trace(NamedTuple):
    """Which context a thread was seen in, ns after `Database.t0_unix_ns`, or NOT_RUNNING, each until the next."""

    time: Int = _NONE
    context: Int = _NONE


class Thread(NamedTuple):
    """A CPU thread or GPU stream: who it is from the outside in, such as (("NODE", 7), ("THREAD", 0))."""

    identity: tuple[tuple[str, int], ...]
    values: Values = Values()
    trace: Trace = Trace()


@dataclass(frozen=True)
class Database:
    """A program's profile.

    Parameters
    ----------
    tree, metrics, threads
        Calling contexts, what was measured, and by whom.
    title, description
        What the database says about itself.
    t0_unix_ns
        Where the traces' time 0 lies; None if nothing was traced, and there is no `trace.db`.
    unaccounted
        Amounts by metric that context 0 of the summary has beyond the sum of its entry points, as only a damaged
        database has.
    """

    tree: Tree
    metrics: Sequence[Metric]
    threads: Sequence[Thread]
    title: str = "program"
    description: str = ""
    t0_unix_ns: int | None = None
    unaccounted: Mapping[str, int] = field(default_factory=dict)


def write(folder: Path, database: Database, *, form: Form | None = None) -> Path:
    """Write the files of a database into `folder` and return it; older files of their names are replaced.

    Parameters
    ----------
    folder
        Made if it does not exist.
    database
        What to write.
    form
        What differs from version 4.0, if anything.

    Returns
    -------
    Path
        `folder`.

    References
    ----------
    FORMATS.md, which HPCToolkit puts into each of its databases.
    """
    form = form or Form()
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "meta.db") as file:
        file.write(meta_db(database.tree, database.metrics, database.title, database.description, form))
    threads = _write_profiles(folder / "profile.db", database, form)
    with replacing(folder / "cct.db") as file:
        write_contexts(file, int(database.tree.ids.max(initial=0)) + 1, threads, form)
    if database.t0_unix_ns is not None:
        with replacing(folder / "trace.db") as file:
            file.write(_trace_db(database, database.t0_unix_ns, form))
    return folder


def _write_profiles(path: Path, database: Database, form: Form) -> list[Rows]:
    """Write `profile.db`; return the values of each thread."""
    tree, metrics = database.tree, database.metrics
    nothing = np.zeros(len(metrics), np.int64)
    total = np.zeros((len(tree), len(metrics)), np.int64)
    threads = []
    with replacing(path) as file:
        machines = sorted({each for thread in database.threads for each in thread.identity if each[0] in PHYSICAL})
        writer = ProfileWriter(file, [_levels(thread, machines) for thread in database.threads], form)
        for i, thread in enumerate(database.threads):
            points = np.zeros_like(total)
            np.add.at(points, thread.values[:2], thread.values.amount)
            total += points
            threads.append(rows(tree, metrics, points, nothing))
            writer.add(i + 1, threads[-1])
        unaccounted = np.array([database.unaccounted.get(metric.name, 0) for metric in metrics], np.int64)
        writer.add(0, rows(tree, metrics, total, unaccounted))
        writer.finish()
    return threads


def _levels(thread: Thread, machines: Sequence[tuple[str, int]]) -> list[tuple[int, int, int, int]]:
    """An identity as the file has it; a physical number also gets a small one, by order of size."""
    levels = []
    for kind, number in thread.identity:
        known = [n for k, n in machines if k == kind]
        levels.append((KINDS.index(kind), int(bool(known)), known.index(number) if known else number, number))
    return levels


def _trace_db(database: Database, t0_unix_ns: int, form: Form) -> bytes:
    infos, traces = header_size(1), [thread.trace for thread in database.threads]
    words = np.zeros((len(traces), 3 + form.spare_words), "<u8")
    numbers = np.concatenate([database.tree.ids, [0]])
    at = infos + 4 * WORD + words.nbytes
    lines = []
    for i, trace in enumerate(traces):
        line = np.empty(len(trace.time), _ELEMENT)
        line["time"], line["context"] = t0_unix_ns + trace.time, numbers[trace.context]
        words[i, :3] = i + 1, at, at + line.nbytes
        lines.append(line.tobytes() + bytes(-line.nbytes % WORD))
        at += len(lines[-1])
    times = [t0_unix_ns + int(time) for trace in traces if len(trace.time) for time in trace.time[[0, -1]]]
    span = [min(times, default=0), max(times, default=0)]
    head = [infos + 4 * WORD, packed("<IB", len(traces), words.itemsize * words.shape[1]), *span]
    opened = header(b"trce", [(4 * WORD + words.nbytes, infos)], form) + np.array(head, "<u8").tobytes()
    return opened + words.tobytes() + b"".join(lines) + TRACE_FOOTER

"""What is a database of HPCToolkit, and how does a random one of any size look?

A random tree: every context hangs below one that was drawn before it, functions and their lines or loops taking turns
from depth to depth. Everything is drawn at random from the seed; amounts are small integers. Without `levels` the
depth grows with the logarithm of the number of contexts, to some 40 at a million.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from make.hpctoolkit.files import (
    KINDS,
    NVIDIA,
    WORD,
    Form,
    Int,
    Metric,
    ProfileWriter,
    Rows,
    header,
    header_size,
    meta_db,
    packed,
    replacing,
    rows,
    write_contexts,
)
from make.hpctoolkit.tree import (
    CALLED,
    ENCLOSED,
    ENTRY,
    ENTRY_POINTS,
    FUNCTION,
    LINE,
    LOOP,
    File,
    Function,
    Tree,
    depths,
)

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
    """A program's profile; `title` and `description` are what the database says about itself.

    `t0_unix_ns` is where the traces' time 0 lies, None if nothing was traced: there is no `trace.db` then.
    `unaccounted` are amounts by metric that context 0 of the summary has beyond the sum of its entry points, as only a
    damaged database has.
    """

    tree: Tree
    metrics: Sequence[Metric]
    threads: Sequence[Thread]
    title: str = "program"
    description: str = ""
    t0_unix_ns: int | None = None
    unaccounted: Mapping[str, int] = field(default_factory=dict)


def write(folder: Path, database: Database, *, form: Form | None = None) -> Path:
    """Write the files of a database into `folder` and return it; older files of their names are replaced."""
    form = form or Form()
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "meta.db") as file:
        file.write(
            meta_db(database.tree, database.metrics, database.title, database.description, form)
        )
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
        machines = sorted(
            {each for thread in database.threads for each in thread.identity if each[0] in PHYSICAL}
        )
        writer = ProfileWriter(
            file, [_levels(thread, machines) for thread in database.threads], form
        )
        for i, thread in enumerate(database.threads):
            points = np.zeros_like(total)
            np.add.at(points, thread.values[:2], thread.values.amount)
            total += points
            threads.append(rows(tree, metrics, points, nothing))
            writer.add(i + 1, threads[-1])
        unaccounted = np.array(
            [database.unaccounted.get(metric.name, 0) for metric in metrics], np.int64
        )
        writer.add(0, rows(tree, metrics, total, unaccounted))
        writer.finish()
    return threads


def _levels(thread: Thread, machines: Sequence[tuple[str, int]]) -> list[tuple[int, int, int, int]]:
    """An identity as the file has it; a physical number also gets a small one, by order of size."""
    levels = []
    for kind, number in thread.identity:
        known = [n for k, n in machines if k == kind]
        levels.append(
            (KINDS.index(kind), int(bool(known)), known.index(number) if known else number, number)
        )
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
    times = [
        t0_unix_ns + int(time)
        for trace in traces
        if len(trace.time)
        for time in trace.time[[0, -1]]
    ]
    span = [min(times, default=0), max(times, default=0)]
    head = [infos + 4 * WORD, packed("<IB", len(traces), words.itemsize * words.shape[1]), *span]
    opened = (
        header(b"trce", [(4 * WORD + words.nbytes, infos)], form) + np.array(head, "<u8").tobytes()
    )
    return opened + words.tobytes() + b"".join(lines) + TRACE_FOOTER


LABEL = "SIMULATED make.hpctoolkit.contexts: a random tree; no program ran"
NODE = 0x51A7ED
MOST = 1_000_000
LOOPS = 0.15

_ENTRIES = (1, 2, 0)  # main thread, application thread, unknown entry


def contexts(
    folder: Path,
    *,
    contexts: int = 1_000_000,
    metrics: Sequence[Metric] = NVIDIA[:4],
    threads: int = 2,
    ranks: int = 0,
    levels: int = 0,
    word: str = "work",
    unaccounted: Mapping[str, int] | None = None,
    form: Form | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Write a database of a random tree into `folder` and return what is true of it.

    Each of the `contexts` below the entry points has one of the `metrics`, in one thread; `threads` are those of each
    of `ranks`, if there are any, which identities then name. The tree begins with a straight path of `levels` below the
    main thread. `word`, of any characters but NUL, is part of all names of functions, files and modules; `unaccounted`
    and `form` are as in `Database` and `write`. The same arguments give the same bytes. ValueError if there are fewer
    contexts than entry points and levels.

    Returned are ``contexts``, ``depth`` (of the deepest), ``entries`` (number of contexts by entry point, itself
    included), ``totals`` (by metric), ``by_entry`` (by metric and entry point), ``threads`` (by metric, one value per
    thread); values in the metrics' units, names as in the file.
    """
    if contexts < len(_ENTRIES) + levels:
        raise ValueError(
            f"contexts: {contexts} is not {len(_ENTRIES) + levels}, the entry points and levels, or more"
        )
    rng = np.random.default_rng(seed)
    tree = _tree(_parents(contexts, levels, rng), word, rng)
    count = threads * max(ranks, 1)
    measured = np.arange(len(_ENTRIES), contexts)
    metric, owner = (
        rng.integers(len(metrics), size=measured.size),
        rng.integers(count, size=measured.size),
    )
    amount = rng.integers(1, MOST, measured.size)
    crew = []
    for i in range(count):
        identity = (
            ("NODE", NODE),
            *([("RANK", i // threads)] if ranks else []),
            ("THREAD", i % threads),
        )
        mine = owner == i
        crew.append(Thread(identity, Values(measured[mine], metric[mine], amount[mine])))
    database = Database(tree, metrics, crew, "random", LABEL, unaccounted=unaccounted or {})
    write(folder, database, form=form)
    root = _roots(tree)
    sums = np.zeros((len(metrics), len(_ENTRIES), count), np.int64)
    np.add.at(sums, (metric, root[measured], owner), amount)
    return {"contexts": contexts, "depth": int(tree.depth.max()), **_truth(metrics, sums, root)}


def _parents(contexts: int, levels: int, rng: np.random.Generator) -> Int:
    """Entry points first, then the path, then contexts below any earlier one."""
    entries = len(_ENTRIES)
    parent = (rng.random(contexts) * np.arange(contexts)).astype(np.int64)
    parent[:entries] = -1
    path = np.arange(entries, entries + levels)
    parent[path] = path - 1
    parent[path[:1]] = 0
    return parent


def _tree(parent: Int, word: str, rng: np.random.Generator) -> Tree:
    count, entries = len(parent), len(_ENTRIES)
    some = max(count // 200, 1)
    modules = [f"/lib/lib{word}{i}.so" for i in range(max(some // 50, 1))]
    files = [File(f"src/job/{word}/{word}_{i}.cc", copied=True) for i in range(max(some // 5, 1))]
    functions = [
        Function(f"{word}::f<{i}>(int) [lib{word}.so]", i % len(modules), 16 * i, i % len(files), i)
        for i in range(some)
    ]
    called = depths(parent) % 2 == 1
    lexical = np.where(called, FUNCTION, np.where(rng.random(count) < LOOPS, LOOP, LINE))
    what = rng.integers(np.where(called, some, len(files)))
    lexical[:entries], what[:entries] = ENTRY, _ENTRIES
    loop = lexical == LOOP
    return Tree(
        parent=parent,
        lexical=lexical,
        relation=np.where(called | (parent < 0), CALLED, ENCLOSED),
        what=what,
        line=np.where(called, 0, rng.integers(1, 2_000, count)),
        module=np.where(loop, 0, -1),
        offset=np.where(loop, 64 * np.arange(count), 0),
        hidden=np.zeros(count, bool),
        ids=rng.permutation(count) + 1,
        modules=modules,
        files=files,
        functions=functions,
    )


def _roots(tree: Tree) -> Int:
    """The entry point each context is below, found by jumping twice as far in each round."""
    root = np.where(tree.parent >= 0, tree.parent, np.arange(len(tree)))
    while not np.array_equal(further := root[root], root):
        root = further
    return root


def _truth(metrics: Sequence[Metric], sums: Int, root: Int) -> dict[str, Any]:
    """Sums by (metric, entry point, thread) in the metrics' units."""
    entries = [ENTRY_POINTS[kind] for kind in _ENTRIES]
    by_entry, by_thread = sums.sum(axis=2), sums.sum(axis=1)
    return {
        "entries": dict(zip(entries, np.bincount(root).tolist(), strict=True)),
        "totals": {m.name: int(by_entry[i].sum()) / m.per_unit for i, m in enumerate(metrics)},
        "by_entry": {
            m.name: {
                name: value / m.per_unit
                for name, value in zip(entries, by_entry[i].tolist(), strict=True)
            }
            for i, m in enumerate(metrics)
        },
        "threads": {
            m.name: [value / m.per_unit for value in by_thread[i].tolist()]
            for i, m in enumerate(metrics)
        },
    }

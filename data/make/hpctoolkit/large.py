"""How does a database of any size look, from a few contexts to millions?

Conventions
-----------
A random tree: every context hangs below one that was drawn before it, functions and their lines or loops taking turns
from depth to depth. Everything is drawn at random from the seed; amounts are small integers. Without `levels` the
depth grows with the logarithm of the number of contexts, to some 40 at a million.

Functions
---------
contexts    write a database and return what is true of it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from make.hpctoolkit.database import Database, Thread, Values, write
from make.hpctoolkit.layout import Form, Int
from make.hpctoolkit.metrics import NVIDIA, Metric
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

    Parameters
    ----------
    folder
        Made if it does not exist.
    contexts
        Contexts of the tree, with the three entry points.
    metrics
        What was measured; each context below the entry points has one of them, in one thread.
    threads, ranks
        Threads, of each MPI rank if there are any; identities name the rank then.
    levels
        Contexts of a straight path that the tree begins with, below the main thread.
    word
        Part of all names of functions, files and modules; any characters but NUL.
    unaccounted, form
        As in `Database` and `write`.
    seed
        The same seed and arguments give the same bytes.

    Returns
    -------
    dict
        ``contexts``, ``depth`` (of the deepest), ``entries`` (number of contexts by entry point, itself included),
        ``totals`` (by metric), ``by_entry`` (by metric and entry point), ``threads`` (by metric, one value per
        thread); values in the metrics' units, names as in the file.

    Raises
    ------
    ValueError
        If there are fewer contexts than entry points and levels.
    """
    if contexts < len(_ENTRIES) + levels:
        raise ValueError(f"contexts: {contexts} is not {len(_ENTRIES) + levels}, the entry points and levels, or more")
    rng = np.random.default_rng(seed)
    tree = _tree(_parents(contexts, levels, rng), word, rng)
    count = threads * max(ranks, 1)
    measured = np.arange(len(_ENTRIES), contexts)
    metric, owner = rng.integers(len(metrics), size=measured.size), rng.integers(count, size=measured.size)
    amount = rng.integers(1, MOST, measured.size)
    crew = []
    for i in range(count):
        identity = (("NODE", NODE), *([("RANK", i // threads)] if ranks else []), ("THREAD", i % threads))
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
            m.name: {name: value / m.per_unit for name, value in zip(entries, by_entry[i].tolist(), strict=True)}
            for i, m in enumerate(metrics)
        },
        "threads": {m.name: [value / m.per_unit for value in by_thread[i].tolist()] for i, m in enumerate(metrics)},
    }

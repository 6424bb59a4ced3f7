"""CALLTREE: the contexts with what they are called and where they are, sorted by number."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit import tables
from perfkit.readers.columns import category, nullable
from perfkit.readers.hpctoolkit import names, tree
from perfkit.readers.hpctoolkit.layout import File, Ints
from perfkit.readers.hpctoolkit.names import Functions, Listed
from perfkit.readers.hpctoolkit.tree import FUNCTION, INSTRUCTION, LOOP, Contexts, Entry, Walked

KINDS = ["function", "loop", "line", "instruction", "gpu_operation", "entry"]
GPU_OPERATION, ENTRY = 4, 5
OPERATION = "<gpu "  # what the function that stands for an operation of the GPU is called, such as <gpu kernel>
BY_FUNCTION, BY_PLACE, BY_POINT, BY_NOTHING = range(4)  # what a context is called by


def calltree(meta: File, entries: list[Entry]) -> pd.DataFrame:
    """Return CALLTREE."""
    walked = tree.walk(meta, entries)
    modules, files = names.modules(meta), names.files(meta)
    functions = names.functions(meta, modules, files)
    found = tree.contexts(meta, walked.at, functions, files, modules)
    file, line, module = _where(found, functions, np.array([_is_source(f) for f in files.texts], bool))
    kind, (called, labels) = _kind(found, functions), _called(found, file, functions, files, modules)
    node = np.r_[[e.node for e in entries], found.node].astype(np.int64)
    order = _order(meta, node)
    roots = np.arange(len(entries))

    def placed(of_roots: Ints | int, values: Ints) -> Ints:
        of_all: Ints = np.r_[np.broadcast_to(of_roots, roots.shape), values].astype(np.int64)
        return of_all[order]

    parent, number = placed(-1, _parents(walked, node, len(entries))), placed(-1, line)
    frame = {
        "rank": np.zeros(len(node), np.int32),
        "node": node[order],
        "parent": nullable(parent, parent < 0),
        "depth": placed(0, walked.depth).astype(np.int32),
        "entry": category(placed(roots, walked.entry), [e.name for e in entries]),
        "kind": category(placed(ENTRY, kind), KINDS),
        "name": category(placed(len(labels) + roots, called), [*labels, *(e.name for e in entries)]),
        "file": category(placed(-1, file), files.texts),
        "line": nullable(number, number < 0),
        "module": category(placed(-1, module), modules.texts),
    }
    return tables.CALLTREE.make(pd.DataFrame(frame, copy=False))


def _parents(walked: Walked, node: Ints, roots: int) -> Ints:
    """Return the number of what encloses each context; the first of the numbers are those of the entry points."""
    numbers: Ints = np.r_[node[:roots][::-1], node[roots:]]  # entry point i is position -1 - i in `above`
    return numbers[walked.above + roots]


def _order(meta: File, node: Ints) -> Ints:
    """Return the order by number; a number that is there twice, or that of the whole program, is damage."""
    order = np.argsort(node, kind="stable")
    wrong = np.diff(node[order], prepend=0) == 0
    if wrong.any():
        raise meta.damaged(f"the context {node[order][wrong][0]} is there more than once")
    return order


def _is_source(file: str) -> bool:
    """Say whether a file is one: code without line information is said to be in ``[module]``."""
    return bool(file) and not (file.startswith("[") and file.endswith("]"))


def _where(found: Contexts, functions: Functions, is_source: NDArray[np.bool_]) -> tuple[Ints, Ints, Ints]:
    """Return file, line and module per context, -1 if unknown; a function is where it is defined."""
    defined = found.function >= 0
    file = np.where(defined, _of(functions.file, found.function), found.file)
    file = np.where(np.append(is_source, False)[file], file, -1)
    line = np.where(defined, _of(functions.line, found.function), found.line)
    line[(file < 0) | (line == 0)] = -1
    return file, line, np.where(defined, _of(functions.module, found.function), found.module)


def _of(values: Ints, position: Ints) -> Ints:
    """Return what stands at each position, -1 at position -1."""
    known: Ints = np.append(values, -1)
    return known[position]


def _kind(found: Contexts, functions: Functions) -> Ints:
    """Return the position in KINDS of each context."""
    operation = np.array([*(name.startswith(OPERATION) for name in functions.listed.texts), False])
    return np.where((found.kind == FUNCTION) & operation[found.function], GPU_OPERATION, found.kind)


def _called(
    found: Contexts, file: Ints, functions: Functions, files: Listed, modules: Listed
) -> tuple[Ints, list[str]]:
    """Return the number of a label per context, and the labels.

    A function goes by its name, lines and loops by their place, instructions by their address, and so does a loop
    whose line is not known.
    """
    placed, pointed, loop = found.file >= 0, found.module >= 0, found.kind == LOOP
    unknown = (file < 0) | (found.line == 0)
    by_point = pointed & ((found.kind == INSTRUCTION) | loop & unknown | ~placed)
    by = np.select([found.kind == FUNCTION, by_point, placed], [BY_FUNCTION, BY_POINT, BY_PLACE], BY_NOTHING)
    first = np.choose(by, [found.function, found.file, found.module, -1])
    second, offsets = pd.factorize(np.where(by_point, found.offset, (found.line * (by == BY_PLACE)).astype(np.uint64)))
    widths = (BY_NOTHING + 1, 2, int(first.max(initial=0)) + 2, len(offsets))
    called, distinct = pd.factorize(np.ravel_multi_index((by, loop, first + 1, second), widths))
    keys = zip(*(part.tolist() for part in np.unravel_index(distinct, widths)), strict=True)

    def label(by: int, first: int, second: int) -> str:
        if by == BY_FUNCTION:
            return functions.listed.texts[first] if first >= 0 else names.UNKNOWN
        if by == BY_POINT:
            return names.address(modules.texts[first], second)
        return names.place(files.texts[first], second) if by == BY_PLACE else "<unknown>"

    whole = offsets.tolist()
    return called, [("loop at " if loop else "") + label(by, i - 1, whole[j]) for by, loop, i, j in keys]

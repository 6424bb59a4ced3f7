"""The calling contexts of a database: what meta.db names (metrics, modules, files, functions), and CALLTREE."""

import re
import struct
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit import tables
from perfkit.readers.hpctoolkit.files import File, Ints
from perfkit.readers.text import category, nullable

GENERAL, IDENTITIES, METRICS, MODULES, FILES, FUNCTIONS = 0, 1, 2, 5, 6, 7  # sections of meta.db
EXECUTION = 2  # a scope that adds up all that is called from a context
SUM, AS_IT_IS = 0, "$$"  # how a summary combines the threads, and what it does to each value before
COPIED = 1
UNKNOWN = "<unknown function>"
_PREFIXES = {"": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
UNITS = {
    f"{prefix}{name}": ("s", factor)
    for prefix, factor in _PREFIXES.items()
    for name in ("sec", "s")
}
UNITS |= {"b": ("bytes", 1.0), "bytes": ("bytes", 1.0), "cyc": ("cycles", 1.0)}
COUNTED = (
    (r"GINS\b", "instructions"),
    (r"GCYCLES\b", "cycles"),
    (r"GSAMP:(TOT|EXP|DRP)$", "samples"),
)


@dataclass(frozen=True)
class Measure:
    """What a metric is called, and its `unit`, into which `factor` brings what is stored."""

    name: str
    unit: str
    factor: float


@dataclass(frozen=True)
class Metric(Measure):
    """A metric and its numbers in profile.db, as ``summary`` of threads and of a ``thread``."""

    summary: int
    thread: int


@dataclass(frozen=True)
class Listed:
    """An array of meta.db that contexts point into: where it starts, the distance of its entries and their texts."""

    first: int
    stride: int
    texts: list[str]


@dataclass(frozen=True)
class Functions:
    """The functions: a name each, and where it is, -1 or 0 if unknown."""

    listed: Listed
    module: Ints
    file: Ints
    line: Ints


CONTEXT = 3  # section of meta.db
# Of a context: size and place of its children, words of its flexible part
HEAD = struct.Struct("<QQ7xB")
HEAD_BYTES, WORD = 32, 8
HAS_FUNCTION, HAS_PLACE, HAS_POINT = 1, 2, 4
FUNCTION, LOOP, LINE, INSTRUCTION = range(4)


@dataclass(frozen=True)
class Entry:
    """An entry point: its context, its name and where its children are."""

    node: int
    name: str
    first: int
    size: int


@dataclass(frozen=True)
class Walked:
    """The contexts in the order of the walk; ``above`` is the enclosing one's place, -1 - i below entry point i."""

    at: Ints
    above: Ints
    depth: Ints
    entry: Ints


@dataclass(frozen=True)
class Contexts:
    """What contexts are: a lexical type, and positions of a function, file and module, -1 where there is none."""

    node: Ints
    kind: Ints
    function: Ints
    file: Ints
    line: Ints
    module: Ints
    offset: NDArray[np.uint64]


KINDS = ["function", "loop", "line", "instruction", "gpu_operation", "entry"]
GPU_OPERATION, ENTRY = 4, 5
# what the function that stands for an operation of the GPU is called, such as <gpu kernel>
OPERATION = "<gpu "
BY_FUNCTION, BY_PLACE, BY_POINT, BY_NOTHING = range(4)  # what a context is called by


def metrics(meta: File) -> list[Metric]:
    """Return the metrics that are stored inclusive and summed over the threads, in order of their names."""
    at = meta.sections[METRICS][0]
    first, count, size, inst_size, sum_size, scopes, n_scopes, scope_size = meta.fields(
        at, "QIBBBxQHB", "the metrics"
    )
    scope = meta.records(scopes, n_scopes, scope_size, {"type": ("u1", 8)}, "the scopes")
    inclusive = [scopes + int(i) * scope_size for i in np.flatnonzero(scope["type"] == EXECUTION)]
    parts = {
        "name": ("<u8", 0),
        "insts": ("<u8", 8),
        "sums": ("<u8", 16),
        "n": ("<u2", 24),
        "n_sums": ("<u2", 26),
    }
    of_summary = {
        "scope": ("<u8", 0),
        "formula": ("<u8", 8),
        "combine": ("u1", 16),
        "metric": ("<u2", 18),
    }
    metrics_of: dict[str, Metric] = {}
    for row in meta.records(first, count, size, parts, "the metrics"):
        pointer, insts, sums, n, n_sums = map(int, row)
        rows = meta.records(
            insts,
            n,
            inst_size,
            {"scope": ("<u8", 0), "metric": ("<u2", 8)},
            "the scopes of a metric",
        )
        thread = next((int(row["metric"]) for row in rows if int(row["scope"]) in inclusive), None)
        rows = meta.records(sums, n_sums, sum_size, of_summary, "the summaries of a metric")
        summed = (r for r in rows[rows["combine"] == SUM] if int(r["scope"]) in inclusive)
        plain = (r for r in summed if meta.text(int(r["formula"])) == AS_IT_IS)
        summary = next((int(row["metric"]) for row in plain), None)
        if thread is None or summary is None:
            continue
        text = meta.text(pointer)
        name, unit, factor = measured(text)
        # Two metrics may differ in their unit only.
        name, unit, factor = (text, "count", 1.0) if name in metrics_of else (name, unit, factor)
        metrics_of[name] = Metric(name, unit, factor, summary, thread)
    return [metrics_of[name] for name in sorted(metrics_of)]


def measured(text: str) -> tuple[str, str, float]:
    """Return a metric's name without its unit, the canonical unit and the factor into it.

    >>> measured("CPUTIME (usec)"), measured("GXCOPY:H2D (B)"), measured("GINS:STL_GMEM")
    (('CPUTIME', 's', 1e-06), ('GXCOPY:H2D', 'bytes', 1.0), ('GINS:STL_GMEM', 'instructions', 1.0))
    """
    split = re.fullmatch(r"(.*\S)\s*\(([^()]*)\)", text, re.DOTALL)
    if split and split[2].strip().casefold() in UNITS:
        return split[1], *UNITS[split[2].strip().casefold()]
    unit = next(
        (unit for pattern, unit in COUNTED if re.match(pattern, text, re.IGNORECASE)), "count"
    )
    return text, unit, 1.0


def identities(meta: File) -> list[str]:
    """Return the names of the kinds of identity, such as RANK, THREAD or GPUSTREAM."""
    first, count = meta.fields(meta.sections[IDENTITIES][0], "QB", "the kinds of identity")
    return [meta.text(at) for at in meta.fields(first, f"{count}Q", "the kinds of identity")]


def file_names(meta: File) -> Listed:
    """Return the paths of the source files; of those copied into the database, where they were copied from."""
    first, count, stride = meta.fields(meta.sections[FILES][0], "QIH", "the source files")
    rows = meta.records(
        first, count, stride, {"flags": ("<u4", 0), "path": ("<u8", 8)}, "the source files"
    )
    paths = [(meta.text(at), flags & COPIED) for flags, at in rows.tolist()]
    return Listed(
        first,
        stride,
        [p.removeprefix("src") if copied and p[:4] == "src/" else p for p, copied in paths],
    )


def function_names(meta: File, module: Listed, file: Listed) -> Functions:
    """Return the functions; one without a name is called by its address, or else by where it is defined."""
    first, count, stride = meta.fields(meta.sections[FUNCTIONS][0], "QIH", "the functions")
    parts = {
        "name": ("<u8", 0),
        "module": ("<u8", 8),
        "offset": ("<u8", 16),
        "file": ("<u8", 24),
        "line": ("<u4", 32),
    }
    rows = meta.records(first, count, stride, parts, "the functions")
    in_module = meta.numbered(
        rows["module"], module.first, module.stride, len(module.texts), "a module"
    )
    in_file = meta.numbered(rows["file"], file.first, file.stride, len(file.texts), "a source file")
    names = []
    for row, m, f in zip(rows.tolist(), in_module.tolist(), in_file.tolist(), strict=True):
        name = UNKNOWN
        if m >= 0:
            name = address(module.texts[m], row[2])
        elif f >= 0:
            name = place(file.texts[f], row[4])
        names.append(meta.text(row[0]) or name)
    return Functions(
        Listed(first, stride, names), in_module, in_file, rows["line"].astype(np.int64)
    )


def address(module: str, offset: int) -> str:
    """Return what an instruction is called."""
    return f"{module.rpartition('/')[2]}@{offset:#x}"


def place(file: str, line: int) -> str:
    """Return what a source line is called; for code without sources ``file`` is ``[module]``, and there is no line."""
    return f"{file.rpartition('/')[2]}:{line}" if line else file.rpartition("/")[2]


def calltree(meta: File, entries: list[Entry]) -> pd.DataFrame:
    """Return CALLTREE."""
    walked = walk(meta, entries)
    # The paths of the load modules.
    first, count, stride = meta.fields(meta.sections[MODULES][0], "QIH", "the modules")
    rows = meta.records(first, count, stride, {"path": ("<u8", 8)}, "the modules")
    modules, files = (
        Listed(first, stride, [meta.text(at) for at in rows["path"].tolist()]),
        file_names(meta),
    )
    functions = function_names(meta, modules, files)
    context = contexts(meta, walked.at, functions, files, modules)
    # Code without line information is said to be in the file [module].
    is_source = [bool(f) and not (f.startswith("[") and f.endswith("]")) for f in files.texts]
    # File, line and module per context, -1 if unknown; a function is where it is defined.
    defined = context.function >= 0
    file = np.where(defined, _of(functions.file, context.function), context.file)
    file = np.where(np.array([*is_source, False], bool)[file], file, -1)
    line = np.where(defined, _of(functions.line, context.function), context.line)
    line[(file < 0) | (line == 0)] = -1
    module = np.where(defined, _of(functions.module, context.function), context.module)
    operation = np.array([*(name.startswith(OPERATION) for name in functions.listed.texts), False])
    kind = np.where(
        (context.kind == FUNCTION) & operation[context.function], GPU_OPERATION, context.kind
    )
    called, labels = _called(context, file, functions, files, modules)
    node = np.r_[[e.node for e in entries], context.node].astype(np.int64)
    order = np.argsort(node, kind="stable")
    # It is there twice, or has the number of the whole program
    wrong = np.diff(node[order], prepend=0) == 0
    if wrong.any():
        raise meta.damaged(f"the context {node[order][wrong][0]} is there more than once")
    roots = np.arange(len(entries))

    def placed(of_roots: Ints | int, values: Ints) -> Ints:
        of_all: Ints = np.r_[np.broadcast_to(of_roots, roots.shape), values].astype(np.int64)
        return of_all[order]

    # Entry point i is position -1 - i in `above`
    numbers: Ints = np.r_[node[: len(roots)][::-1], node[len(roots) :]]
    parent, number = placed(-1, numbers[walked.above + len(roots)]), placed(-1, line)
    frame = {
        "rank": np.zeros(len(node), np.int32),
        "node": node[order],
        "parent": nullable(parent, parent < 0),
        "depth": placed(0, walked.depth).astype(np.int32),
        "entry": category(placed(roots, walked.entry), [e.name for e in entries]),
        "kind": category(placed(ENTRY, kind), KINDS),
        "name": category(
            placed(len(labels) + roots, called), [*labels, *(e.name for e in entries)]
        ),
        "file": category(placed(-1, file), files.texts),
        "line": nullable(number, number < 0),
        "module": category(placed(-1, module), modules.texts),
    }
    return tables.CALLTREE.make(pd.DataFrame(frame, copy=False))


def _of(values: Ints, position: Ints) -> Ints:
    """Return what stands at each position, -1 at position -1."""
    padded: Ints = np.append(values, -1)
    return padded[position]


def _called(
    context: Contexts, file: Ints, functions: Functions, files: Listed, modules: Listed
) -> tuple[Ints, list[str]]:
    """Return each context's label, and the labels: a name, place or address (of instructions, loops without line)."""
    placed, pointed, loop = context.file >= 0, context.module >= 0, context.kind == LOOP
    unknown = (file < 0) | (context.line == 0)
    by_point = pointed & ((context.kind == INSTRUCTION) | loop & unknown | ~placed)
    by = np.select(
        [context.kind == FUNCTION, by_point, placed], [BY_FUNCTION, BY_POINT, BY_PLACE], BY_NOTHING
    )
    first = np.choose(by, [context.function, context.file, context.module, -1])
    lines = (context.line * (by == BY_PLACE)).astype(np.uint64)
    second, offsets = pd.factorize(np.where(by_point, context.offset, lines))
    widths = (BY_NOTHING + 1, 2, int(first.max(initial=0)) + 2, len(offsets))
    called, distinct = pd.factorize(np.ravel_multi_index((by, loop, first + 1, second), widths))
    keys = zip(*(part.tolist() for part in np.unravel_index(distinct, widths)), strict=True)

    def label(by: int, first: int, second: int) -> str:
        if by == BY_FUNCTION:
            return functions.listed.texts[first] if first >= 0 else UNKNOWN
        if by == BY_POINT:
            return address(modules.texts[first], second)
        return place(files.texts[first], second) if by == BY_PLACE else "<unknown>"

    whole = offsets.tolist()
    return called, [
        ("loop at " if loop else "") + label(by, i - 1, whole[j]) for by, loop, i, j in keys
    ]


def entries(meta: File) -> list[Entry]:
    """Return the entry points, the roots of the tree."""
    first, count, stride = meta.fields(meta.sections[CONTEXT][0], "QHB", "the entry points")
    parts = {"size": ("<u8", 0), "first": ("<u8", 8), "node": ("<u4", 16), "name": ("<u8", 24)}
    rows = meta.records(first, count, stride, parts, "the entry points")
    return [
        Entry(node, meta.text(name) or "unknown entry", at, size)
        for size, at, node, name in rows.tolist()
    ]


def walk(meta: File, roots: list[Entry]) -> Walked:
    """Find all contexts; what points outside the section or at contexts that were there before is damage."""
    content, unpack = meta.keep(), HEAD.unpack_from
    low, high = meta.sections[CONTEXT]
    left = high - low
    at: list[int] = []
    arrays: list[tuple[int, int, int, int]] = []
    stack = [(root.first, root.size, -1 - i, 1, i) for i, root in enumerate(roots) if root.size]
    while stack:
        begin, size, above, depth, entry = stack.pop()
        end, before = begin + size, len(at)
        left -= size
        if left < 0 or not low <= begin <= end <= high or begin % WORD:
            raise meta.damaged(
                f"the contexts at byte {begin} do not fit into their section, or are there twice"
            )
        last = end - HEAD_BYTES
        while begin <= last:
            children, first, words = unpack(content, begin)
            if children:
                stack.append((first, children, len(at), depth + 1, entry))
            at.append(begin)
            begin += HEAD_BYTES + WORD * words
        if begin != end:
            raise meta.damaged(
                f"the context before byte {begin} does not end with its array at byte {end}"
            )
        arrays.append((above, depth, entry, len(at) - before))
    columns = np.array(arrays, np.int64).reshape(-1, 4)
    return Walked(
        np.array(at, np.int64), *(np.repeat(columns[:, i], columns[:, 3]) for i in range(3))
    )


def contexts(
    meta: File, at: Ints, functions: Functions, files: Listed, modules: Listed
) -> Contexts:
    """Return what the contexts at these offsets are; a lexical type of a later version by what the context has."""
    words = np.frombuffer(meta.keep(), "<u8", meta.size // WORD)
    heads = words[at // WORD + 2]
    flags, kind = (
        (heads >> np.uint64(shift) & np.uint64(0xFF)).astype(np.int64) for shift in (32, 48)
    )
    length = (heads >> np.uint64(56)).astype(np.int64)
    has_function, has_place, has_point = (
        (flags & bit) != 0 for bit in (HAS_FUNCTION, HAS_PLACE, HAS_POINT)
    )
    place = at // WORD + HEAD_BYTES // WORD + has_function
    point = place + 2 * has_place
    if (point + 2 * has_point - at // WORD - HEAD_BYTES // WORD > length).any():
        raise meta.damaged("a context is shorter than its flags say")

    def word(position: Ints, where: NDArray[np.bool_]) -> NDArray[np.uint64]:
        return np.where(where, words[np.where(where, position, 0)], np.uint64(0))

    new = kind > INSTRUCTION
    kind[new] = np.select(
        [has_function[new], has_place[new], has_point[new]], [FUNCTION, LINE, INSTRUCTION], FUNCTION
    )
    of, listed = meta.numbered, functions.listed
    return Contexts(
        (heads & np.uint64(0xFFFFFFFF)).astype(np.int64),
        kind,
        of(
            word(place - 1, has_function),
            listed.first,
            listed.stride,
            len(listed.texts),
            "a function",
        ),
        of(word(place, has_place), files.first, files.stride, len(files.texts), "a source file"),
        (word(place + 1, has_place) & np.uint64(0xFFFFFFFF)).astype(np.int64),
        of(word(point, has_point), modules.first, modules.stride, len(modules.texts), "a module"),
        word(point + 1, has_point),
    )

"""What meta.db names: metrics, kinds of identity, load modules, source files and functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfkit.readers.hpctoolkit.layout import File, Ints

GENERAL, IDENTITIES, METRICS, MODULES, FILES, FUNCTIONS = 0, 1, 2, 5, 6, 7  # sections of meta.db
EXECUTION = 2  # a scope that adds up all that is called from a context
SUM, AS_IT_IS = 0, "$$"  # how a summary combines the threads, and what it does to each value before
COPIED = 1
UNKNOWN = "<unknown function>"
UNITS = {
    "sec": ("s", 1.0),
    "s": ("s", 1.0),
    "msec": ("s", 1e-3),
    "ms": ("s", 1e-3),
    "usec": ("s", 1e-6),
    "us": ("s", 1e-6),
    "nsec": ("s", 1e-9),
    "ns": ("s", 1e-9),
    "b": ("bytes", 1.0),
    "bytes": ("bytes", 1.0),
    "cyc": ("cycles", 1.0),
}
COUNTED = ((r"GINS\b", "instructions"), (r"GCYCLES\b", "cycles"), (r"GSAMP:(TOT|EXP|DRP)$", "samples"))


@dataclass(frozen=True)
class Metric:
    """A metric under its name without unit; stored values times `factor` are in `unit`.

    ``summary`` and ``thread`` are the numbers under which profile.db stores its inclusive value: summed over all
    threads, and of one thread.
    """

    name: str
    unit: str
    factor: float
    summary: int
    thread: int


def metrics(meta: File) -> list[Metric]:
    """Return the metrics that are stored inclusive and summed over the threads, in order of their names."""
    at = meta.sections[METRICS][0]
    first, count, size, inst_size, sum_size, scopes, n_scopes, scope_size = meta.fields(at, "QIBBBxQHB", "the metrics")
    scope = meta.records(scopes, n_scopes, scope_size, {"type": ("u1", 8)}, "the scopes")
    inclusive = [scopes + int(i) * scope_size for i in np.flatnonzero(scope["type"] == EXECUTION)]
    parts = {"name": ("<u8", 0), "insts": ("<u8", 8), "sums": ("<u8", 16), "n": ("<u2", 24), "n_sums": ("<u2", 26)}
    found: dict[str, Metric] = {}
    for row in meta.records(first, count, size, parts, "the metrics"):
        pointer, insts, sums, n, n_sums = map(int, row)
        thread = _instance(meta, insts, n, inst_size, inclusive)
        summary = _summary(meta, sums, n_sums, sum_size, inclusive)
        if thread is None or summary is None:
            continue
        text = meta.text(pointer)
        name, unit, factor = measured(text)
        # Two metrics may differ in their unit only.
        name, unit, factor = (text, "count", 1.0) if name in found else (name, unit, factor)
        found[name] = Metric(name, unit, factor, summary, thread)
    return [found[name] for name in sorted(found)]


def _instance(meta: File, at: int, count: int, size: int, scopes: Sequence[int]) -> int | None:
    parts = {"scope": ("<u8", 0), "metric": ("<u2", 8)}
    rows = meta.records(at, count, size, parts, "the scopes of a metric")
    return next((int(row["metric"]) for row in rows if int(row["scope"]) in scopes), None)


def _summary(meta: File, at: int, count: int, size: int, scopes: Sequence[int]) -> int | None:
    parts = {"scope": ("<u8", 0), "formula": ("<u8", 8), "combine": ("u1", 16), "metric": ("<u2", 18)}
    rows = meta.records(at, count, size, parts, "the summaries of a metric")
    rows = rows[rows["combine"] == SUM]
    plain = (r for r in rows if int(r["scope"]) in scopes and meta.text(int(r["formula"])) == AS_IT_IS)
    return next((int(row["metric"]) for row in plain), None)


def measured(text: str) -> tuple[str, str, float]:
    """Return a metric's name without its unit, the canonical unit and the factor into it.

    Examples
    --------
    >>> measured("CPUTIME (usec)"), measured("GXCOPY:H2D (B)"), measured("GINS:STL_GMEM")
    (('CPUTIME', 's', 1e-06), ('GXCOPY:H2D', 'bytes', 1.0), ('GINS:STL_GMEM', 'instructions', 1.0))
    """
    split = re.fullmatch(r"(.*\S)\s*\(([^()]*)\)", text, re.DOTALL)
    if split and split[2].strip().casefold() in UNITS:
        return split[1], *UNITS[split[2].strip().casefold()]
    unit = next((unit for pattern, unit in COUNTED if re.match(pattern, text, re.IGNORECASE)), "count")
    return text, unit, 1.0


def description(meta: File) -> str:
    """Return what the database says of itself."""
    _, text = meta.fields(meta.sections[GENERAL][0], "QQ", "the description")
    return meta.text(text)


def identities(meta: File) -> list[str]:
    """Return the names of the kinds of identity, such as RANK, THREAD or GPUSTREAM."""
    first, count = meta.fields(meta.sections[IDENTITIES][0], "QB", "the kinds of identity")
    return [meta.text(at) for at in meta.fields(first, f"{count}Q", "the kinds of identity")]


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


def modules(meta: File) -> Listed:
    """Return the paths of the load modules."""
    first, count, stride = meta.fields(meta.sections[MODULES][0], "QIH", "the modules")
    rows = meta.records(first, count, stride, {"path": ("<u8", 8)}, "the modules")
    return Listed(first, stride, [meta.text(at) for at in rows["path"].tolist()])


def files(meta: File) -> Listed:
    """Return the paths of the source files; of those copied into the database, where they were copied from."""
    first, count, stride = meta.fields(meta.sections[FILES][0], "QIH", "the source files")
    rows = meta.records(first, count, stride, {"flags": ("<u4", 0), "path": ("<u8", 8)}, "the source files")
    paths = [(meta.text(at), flags & COPIED) for flags, at in rows.tolist()]
    return Listed(first, stride, [p.removeprefix("src") if copied and p[:4] == "src/" else p for p, copied in paths])


def functions(meta: File, module: Listed, file: Listed) -> Functions:
    """Return the functions; one without a name is called by its address, or else by where it is defined."""
    first, count, stride = meta.fields(meta.sections[FUNCTIONS][0], "QIH", "the functions")
    parts = {"name": ("<u8", 0), "module": ("<u8", 8), "offset": ("<u8", 16), "file": ("<u8", 24), "line": ("<u4", 32)}
    rows = meta.records(first, count, stride, parts, "the functions")
    in_module = meta.numbered(rows["module"], module.first, module.stride, len(module.texts), "a module")
    in_file = meta.numbered(rows["file"], file.first, file.stride, len(file.texts), "a source file")
    names = [
        meta.text(row[0])
        or (address(module.texts[m], row[2]) if m >= 0 else place(file.texts[f], row[4]) if f >= 0 else UNKNOWN)
        for row, m, f in zip(rows.tolist(), in_module.tolist(), in_file.tolist(), strict=True)
    ]
    return Functions(Listed(first, stride, names), in_module, in_file, rows["line"].astype(np.int64))


def address(module: str, offset: int) -> str:
    """Return what an instruction is called."""
    return f"{module.rpartition('/')[2]}@{offset:#x}"


def place(file: str, line: int) -> str:
    """Return what a source line is called; for code without sources ``file`` is ``[module]``, and there is no line."""
    return f"{file.rpartition('/')[2]}:{line}" if line else file.rpartition("/")[2]

"""Databases of HPCToolkit made by hand, byte by byte."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perfkit.profile import Profile
from perfkit.readers import hpctoolkit

KINDS = ("SUMMARY", "NODE", "RANK", "THREAD", "GPUDEVICE", "GPUCONTEXT", "GPUSTREAM", "CORE")
SCOPES = (("point", 1), ("function", 3), ("lex_aware", 0), ("execution", 2))
FUNCTION, LOOP, LINE, INSTRUCTION = range(4)
T0 = 1_700_000_000_000_000_000

Values = Mapping[tuple[int, str], float]
Identity = tuple[tuple[str, int], ...]
Names = Sequence[str]
Ways = Sequence[tuple[int, str]]  # how threads are combined, and the formula
Roots = Sequence["Context"]


@dataclass(frozen=True)
class Context:
    node: int
    kind: int = FUNCTION
    name: str | None = None
    file: str = ""
    line: int = 0
    module: str = ""
    offset: int | None = None
    copied: bool = False
    children: tuple[Context, ...] = ()
    at_entry: int | None = None
    relation: int = 0


@dataclass(frozen=True)
class Thread:
    """A thread or stream: its identity, its inclusive values by (node, metric) and its trace of (time, node)."""

    identity: Identity = (("NODE", 0), ("THREAD", 0))
    values: Values = field(default_factory=dict)
    trace: Sequence[tuple[int, int]] = ()


class Bytes:
    def __init__(self, form: bytes, sections: int, major: int = 4, minor: int = 0) -> None:
        self.data = bytearray(b"HPCTOOLKIT" + form + bytes([major, minor]) + bytes(16 * sections))

    def put(self, raw: bytes, align: int = 8) -> int:
        self.data += bytes(-len(self.data) % align)
        self.data += raw
        return len(self.data) - len(raw)

    def texts(self, *texts: str) -> list[int]:
        return [
            self.put(text.encode("utf-8", errors="surrogateescape") + b"\0", 1) for text in texts
        ]

    def section(self, number: int, start: int, end: int | None = None) -> None:
        struct.pack_into("<QQ", self.data, 16 + 16 * number, (end or len(self.data)) - start, start)

    def write(self, path: Path, footer: bytes) -> None:
        path.write_bytes(bytes(self.data) + footer)


def meta(
    path: Path, roots: Roots, metrics: Names, combine: Ways, description: str, minor: int, pad: int
) -> None:
    out = Bytes(b"meta", 8, minor=minor)
    start = out.put(bytes(16))
    title, text = out.texts("toy", description)
    struct.pack_into("<QQ", out.data, start, title, text)
    out.section(0, start)
    start = out.put(bytes(16))
    names = out.put(struct.pack(f"<{len(KINDS)}Q", *out.texts(*KINDS)))
    struct.pack_into("<QB", out.data, start, names, len(KINDS))
    out.section(1, start)
    _metrics(out, metrics, combine, pad)
    listed = _Lists(out, every(roots), pad)
    _contexts(out, roots, listed, pad)
    out.write(path, b"_meta.db")


def _metrics(out: Bytes, metrics: Names, combine: Ways, pad: int) -> None:
    gap = bytes(pad)
    start = out.put(bytes(32))
    at = dict(zip(texts := [name for name, _ in SCOPES], out.texts(*texts), strict=True))
    scope_size = 16 + pad
    scopes = out.put(
        b"".join(
            struct.pack("<QBB6x", at[n], kind, 0 if kind == 3 else 255) + gap for n, kind in SCOPES
        )
    )
    rows = []
    for i, name in enumerate(metrics):
        (text,) = out.texts(name)
        of = [scopes + j * scope_size for j in range(len(SCOPES))]
        insts = out.put(
            b"".join(struct.pack("<QH6x", s, 4 * i + j) + gap for j, s in enumerate(of))
        )
        sums = b""
        for k, (how, formula) in enumerate(combine):
            (written,) = out.texts(formula)
            stats = [_stat(i, j, k, len(combine)) for j in range(len(of))]
            packed = (
                struct.pack("<QQBxH4x", s, written, how, stat)
                for s, stat in zip(of, stats, strict=True)
            )
            sums += b"".join(one + gap for one in packed)
        rows.append(struct.pack("<QQQHH4x", text, insts, out.put(sums), 4, 4 * len(combine)) + gap)
    first = out.put(b"".join(rows))
    sizes = (32 + pad, 16 + pad, 24 + pad)
    struct.pack_into(
        "<QIBBBxQHB", out.data, start, first, len(metrics), *sizes, scopes, len(SCOPES), scope_size
    )
    out.section(2, start)


def _stat(metric: int, scope: int, way: int, ways: int) -> int:
    """Number of a metric's summary: counted from behind, so that it is not the number in threads."""
    return 60_000 - (4 * ways * metric + 4 * way + scope)


def every(roots: Roots) -> list[Context]:
    found = list(roots)
    for context in found:
        found.extend(context.children)
    return found


class _Lists:
    def __init__(self, out: Bytes, contexts: Sequence[Context], pad: int) -> None:
        real = [c for c in contexts if c.at_entry is None]
        start = len(out.data)
        texts = {t for c in contexts for t in (c.name, c.file, c.module) if t}
        self.text = dict(zip(sorted(texts), out.texts(*sorted(texts)), strict=True))
        out.section(4, start)
        gap = bytes(pad)
        modules = {
            m: struct.pack("<IxxxxQ", 0, self.text[m]) + gap for c in real if (m := c.module)
        }
        files = {
            f: struct.pack("<IxxxxQ", c.copied, self.text[f]) + gap for c in real if (f := c.file)
        }
        self.module, self.file = (
            self._array(out, 5 + i, 16 + pad, rows) for i, rows in enumerate((modules, files))
        )
        functions = {
            self.key(c): self._function(c) + gap
            for c in real
            if c.kind == FUNCTION and c.name is not None
        }
        self.function = self._array(out, 7, 40 + pad, functions)

    @staticmethod
    def key(c: Context) -> tuple[Any, ...]:
        return (c.name, c.module, c.file, c.line, c.offset)

    def _function(self, c: Context) -> bytes:
        text, module, file = (
            self.text.get(c.name or "", 0),
            self.module.get(c.module, 0),
            self.file.get(c.file, 0),
        )
        return struct.pack("<QQQQII", text, module, c.offset or 0, file, c.line, 0)

    @staticmethod
    def _array(out: Bytes, section: int, size: int, rows: Mapping[Any, bytes]) -> dict[Any, int]:
        start = out.put(bytes(16))
        first = out.put(b"".join(rows.values()))
        struct.pack_into("<QIH", out.data, start, first, len(rows), size)
        out.section(section, start)
        return {key: first + i * size for i, key in enumerate(rows)}


def _contexts(out: Bytes, roots: Roots, listed: _Lists, pad: int) -> None:
    start = out.put(bytes(16))
    arrays: dict[int, tuple[int, int]] = {}
    for context in reversed(every(roots)):
        raw = b"".join(_context(c, *arrays[id(c)], listed) for c in context.children)
        arrays[id(context)] = (len(raw), out.put(raw) if raw else 0)
    ends = [(r.node, r.at_entry or 0, listed.text[r.name or ""]) for r in roots]
    packed = (
        struct.pack("<QQIHxxQ", *arrays[id(r)], *end) for r, end in zip(roots, ends, strict=True)
    )
    rows = b"".join(one + bytes(pad) for one in packed)
    struct.pack_into("<QHB", out.data, start, out.put(rows), len(roots), 32 + pad)
    out.section(3, start)


def _context(c: Context, size: int, first: int, listed: _Lists) -> bytes:
    flags, flex = 0, b""
    if c.kind == FUNCTION and c.name is not None:
        flags, flex = 1, struct.pack("<Q", listed.function[listed.key(c)])
    elif c.kind != FUNCTION and c.file:
        flags, flex = 2, struct.pack("<QIxxxx", listed.file[c.file], c.line)
    if c.kind != FUNCTION and c.module:
        flags, flex = flags | 4, flex + struct.pack("<QQ", listed.module[c.module], c.offset or 0)
    head = struct.pack(
        "<QQIBBBBH6x", size, first, c.node, flags, c.relation, c.kind, len(flex) // 8, 0
    )
    return head + flex


def profiles(
    path: Path,
    values: Sequence[Values],
    identities: Sequence[Identity],
    metrics: Names,
    ways: int,
    minor: int,
    pad: int,
) -> None:
    out = Bytes(b"prof", 2, minor=minor)
    start = out.put(bytes(16))
    first = out.put(bytes((48 + pad) * len(values)))
    struct.pack_into("<QIB", out.data, start, first, len(values), 48 + pad)
    out.section(0, start)
    begin, tuples = len(out.data), [0]
    for identity in identities:
        ids = b"".join(
            struct.pack("<BxHIQ", KINDS.index(k), 0, number, number) for k, number in identity
        )
        tuples.append(out.put(struct.pack("<H6x", len(identity)) + ids))
    out.section(1, begin)
    for i, (stored, identity) in enumerate(zip(values, tuples, strict=True)):
        numbers = {m: _stat(j, 3, 0, ways) if i == 0 else 4 * j + 3 for j, m in enumerate(metrics)}
        rows = sorted((node, numbers[metric], value) for (node, metric), value in stored.items())
        p_values = out.put(b"".join(struct.pack("<Hd", m, v) for _, m, v in rows), 2)
        starts = {node: j for j, (node, _, _) in reversed(list(enumerate(rows)))}
        index = out.put(
            b"".join(struct.pack("<IQ", node, starts[node]) for node in sorted(starts)), 4
        )
        info = struct.pack("<QQIxxxxQQI", len(rows), p_values, len(starts), index, identity, i == 0)
        struct.pack_into(f"<{len(info)}s", out.data, first + i * (48 + pad), info)
    out.write(path, b"_prof.db")


def cct(path: Path, minor: int) -> None:
    """Write the values by context, which perfkit leaves unread: a section of zeros stands for them."""
    out = Bytes(b"ctxt", 1, minor=minor)
    out.section(0, out.put(bytes(160)))
    out.write(path, b"__ctx.db")


def traces(path: Path, traces: Sequence[Sequence[tuple[int, int]]], minor: int, pad: int) -> None:
    out = Bytes(b"trce", 1, minor=minor)
    start = out.put(bytes(32))
    first = out.put(bytes((24 + pad) * len(traces)))
    times = [time for trace in traces for time, _ in trace]
    ends = (T0 + min(times), T0 + max(times)) if times else (2**63 - 1, 2**63)
    struct.pack_into("<QIBxxxQQ", out.data, start, first, len(traces), 24 + pad, *ends)
    out.section(0, start)
    for i, trace in enumerate(traces):
        at = out.put(b"".join(struct.pack("<QI", T0 + time, node) for time, node in trace), 4)
        struct.pack_into(
            "<IxxxxQQ", out.data, first + i * (24 + pad), i + 1, at, at + 12 * len(trace)
        )
    out.write(path, b"trace.db")


def entry(node: int, name: str, *children: Context, point: int = 1) -> Context:
    return Context(node, name=name, children=children, at_entry=point)


def function(node: int, name: str, *children: Context, **where: Any) -> Context:
    return Context(node, FUNCTION, name, children=children, relation=1, **where)


def line(node: int, file: str, number: int, *children: Context, **where: Any) -> Context:
    return Context(node, LINE, file=file, line=number, children=children, **where)


def loop(node: int, file: str, number: int, *children: Context, **where: Any) -> Context:
    return Context(node, LOOP, file=file, line=number, children=children, **where)


def instruction(node: int, module: str, offset: int, *children: Context) -> Context:
    return Context(node, INSTRUCTION, module=module, offset=offset, children=children)


def database(
    folder: Path,
    roots: Roots,
    metrics: Names = ("CPUTIME (sec)",),
    threads: Sequence[Thread] = (Thread(),),
    *,
    summary: Values | None = None,
    description: str = "a made database",
    combine: Ways = ((0, "$$"),),
    minor: int = 0,
    pad: int = 0,
) -> Path:
    """Write a database; `pad` bytes follow each entry of an array, as later minor versions may append fields."""
    folder.mkdir(parents=True, exist_ok=True)
    meta(folder / "meta.db", roots, metrics, combine, description, minor, pad)
    totals = dict(summary) if summary is not None else _summed(threads)
    stored = [_with_whole(v, roots) for v in (totals, *(t.values for t in threads))]
    profiles(
        folder / "profile.db",
        stored,
        [t.identity for t in threads],
        metrics,
        len(combine),
        minor,
        pad,
    )
    cct(folder / "cct.db", minor)
    if any(t.trace for t in threads):
        traces(folder / "trace.db", [t.trace for t in threads], minor, pad)
    return folder


def _summed(threads: Sequence[Thread]) -> dict[tuple[int, str], float]:
    totals: dict[tuple[int, str], float] = {}
    for thread in threads:
        for key, value in thread.values.items():
            totals[key] = totals.get(key, 0.0) + value
    return totals


def _with_whole(values: Values, roots: Roots) -> Values:
    nodes = {root.node for root in roots}
    whole: dict[tuple[int, str], float] = {}
    for (node, metric), value in values.items():
        if node in nodes:
            whole[0, metric] = whole.get((0, metric), 0.0) + value
    return {**whole, **values}


def toy() -> tuple[Context, ...]:
    """Main thread: train.py:12 calls mm, which runs a kernel and copies; a worker runs the same kernel."""
    launched = function(5, "<gpu kernel>", function(6, "sgemm(float*)", module="gpubins/a.gpubin"))
    mm = function(
        4, "at::mm(at::Tensor)", launched, function(7, "<gpu copyin>"), module="/lib/libtorch.so"
    )
    step = line(3, "src/job/train.py", 12, mm, copied=True)
    train = function(
        2, "train", step, module="<logical python>", file="src/job/train.py", line=10, copied=True
    )
    kernel = function(12, "<gpu kernel>", function(13, "sgemm(float*)", module="gpubins/a.gpubin"))
    backward = function(11, "backward()", kernel, module="/lib/libtorch.so")
    return entry(1, "main thread", train), entry(10, "application thread", backward, point=2)


TOY_METRICS = ("CPUTIME (sec)", "GKER (sec)", "GINS:STL_GMEM", "GINS:STL_ANY", "GXCOPY:H2D (B)")


def toy_threads() -> tuple[Thread, ...]:
    cpu, gker, gmem, any_stall, h2d = TOY_METRICS
    path, back = (1, 2, 3, 4), (10, 11)
    main = {(node, cpu): 3.0 for node in path}
    main |= {
        (node, metric): v
        for node in (*path, 5)
        for metric, v in ((gker, 0.001), (gmem, 8.0), (any_stall, 8.0))
    }
    main |= {(6, gmem): 8.0, (6, any_stall): 8.0} | {(node, h2d): 8e6 for node in (*path, 7)}
    worker = {(node, cpu): 1.0 for node in back}
    worker |= {
        (n, metric): v
        for n in (*back, 12)
        for metric, v in ((gker, 0.001), (gmem, 4.0), (any_stall, 4.0))
    }
    worker |= {(13, gmem): 4.0, (13, any_stall): 4.0}
    return (
        Thread((("NODE", 7), ("THREAD", 0)), main, ((0, 3), (1000, 4), (3000, 0), (4000, 4))),
        Thread((("NODE", 7), ("THREAD", 1)), worker, ((500, 11), (2500, 0))),
        Thread((("NODE", 7), ("GPUCONTEXT", 1), ("GPUSTREAM", 7)), {}, ((1500, 5), (2500, 0))),
    )


def sample(folder: Path, **changes: Any) -> Path:
    return database(folder, toy(), TOY_METRICS, changes.pop("threads", toy_threads()), **changes)


def chain(levels: int) -> Context:
    below: tuple[Context, ...] = ()
    for node in range(levels + 1, 1, -1):
        below = (function(node, f"f{node}", *below),)
    return replace(entry(1, "main thread"), children=below)


def read(folder: Path, *roots: Context, **rest: Any) -> Profile:
    path = database(folder, roots, **rest)
    assert hpctoolkit.sniff(path)
    return hpctoolkit.read(path)

"""HPCToolkit databases read field by field with struct, after FORMATS.md and not after perfkit's reader or writer.

Slow and plain; every stride is the one the file states.
"""

import struct
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

FOOTERS = {"meta": b"_meta.db", "prof": b"_prof.db", "ctxt": b"__ctx.db", "trce": b"trace.db"}
FILES = {"meta.db": ("meta", 8), "profile.db": ("prof", 2), "cct.db": ("ctxt", 1), "trace.db": ("trce", 1)}
LEXICAL = ("function", "loop", "line", "instruction")


class Metric(NamedTuple):
    """A metric: ids of its scopes in threads' profiles, and in summaries."""

    name: str
    ids: dict[str, int]
    statistics: dict[str, int]


class Context(NamedTuple):
    """A context as `meta.db` lists it; its name is a function's, its file a line's or loop's."""

    parent: int
    kind: str
    name: str | None = None
    file: str | None = None
    line: int = 0
    module: str | None = None
    offset: int = 0
    relation: int = 0
    propagation: int = 0
    function_module: str | None = None


class Profile(NamedTuple):
    """Who was measured, and {context: {metric id: value}}."""

    identity: tuple[tuple[str, int, int, int], ...]
    is_summary: bool
    values: dict[int, dict[int, float]]


class Database:
    """A database's four files, read whole."""

    def __init__(self, folder: Path) -> None:
        self.files = {name: (folder / name).read_bytes() for name in FILES if (folder / name).exists()}
        self.sections = {name: self._sections(name) for name in self.files}
        self.metrics = list(self._metrics())
        self.contexts: dict[int, Context] = {}
        self._walk()
        self.profiles = list(self._profiles())

    def at(self, file: str, fmt: str, offset: int) -> tuple[Any, ...]:
        return struct.unpack_from("<" + fmt, self.files[file], offset)

    def string(self, offset: int) -> str | None:
        """The text at an offset of `meta.db`; None at 0."""
        raw = self.files["meta.db"]
        return raw[offset : raw.index(b"\0", offset)].decode() if offset else None

    def pointed(self, offset: int) -> str | None:
        """The text that a field of `meta.db` points at."""
        return self.string(self.at("meta.db", "Q", offset)[0])

    def _sections(self, name: str) -> list[tuple[int, int]]:
        raw, (kind, count) = self.files[name], FILES[name]
        assert raw[:15] == b"HPCTOOLKIT" + kind.encode() + b"\x04"
        assert raw[-8:] == FOOTERS[kind]
        sections = [struct.unpack_from("<QQ", raw, 16 + 16 * i) for i in range(count)]
        assert all(at % 8 == 0 and at + size <= len(raw) - 8 for size, at in sections)
        return sections

    @property
    def kinds(self) -> list[str | None]:
        names, count = self.at("meta.db", "QB", self.sections["meta.db"][1][1])
        return [self.pointed(names + 8 * i) for i in range(count)]

    def _metrics(self) -> Iterator[Metric]:
        head = self.at("meta.db", "QIBBBxQHB", self.sections["meta.db"][2][1])
        first, count, size, instance_size, summary_size, *_ = head
        for i in range(count):
            name, instances, summaries, n, m = self.at("meta.db", "QQQHH", first + size * i)
            ids, statistics = {}, {}
            for j in range(n):
                scope, number = self.at("meta.db", "QH", instances + instance_size * j)
                ids[self.pointed(scope)] = number
            for j in range(m):
                scope, formula, combine, number = self.at("meta.db", "QQBxH", summaries + summary_size * j)
                assert (self.string(formula), combine) == ("$$", 0)
                statistics[self.pointed(scope)] = number
            yield Metric(str(self.string(name)), ids, statistics)

    def _walk(self) -> None:
        first, count, size = self.at("meta.db", "QHB", self.sections["meta.db"][3][1])
        todo = []
        for i in range(count):
            length, children, number, kind, name = self.at("meta.db", "QQIH2xQ", first + size * i)
            self.contexts[number] = Context(0, "entry", self.string(name), offset=kind)
            todo.append((children, length, number))
        while todo:
            at, length, parent = todo.pop()
            end = at + length
            while at < end:
                size, children, number, *_, words, _ = self.at("meta.db", "QQIBBBBH", at)
                assert number not in self.contexts
                self.contexts[number] = self._context(at, parent)
                todo.append((children, size, number))
                at += 32 + 8 * words

    def _context(self, at: int, parent: int) -> Context:
        flags, relation, lexical, words, propagation = self.at("meta.db", "BBBBH", at + 20)
        found: dict[str, Any] = {"relation": relation, "propagation": propagation}
        at += 32
        end = at + 8 * words
        if flags & 1:
            name, module, offset, file, line = self.at("meta.db", "QQQQI", self.at("meta.db", "Q", at)[0])
            found |= {"name": self.string(name), "file": file and self.pointed(file + 8), "line": line}
            found |= {"offset": offset, "function_module": module and self.pointed(module + 8)}
            at += 8
        if flags & 2:
            file, line = self.at("meta.db", "QI", at)
            found |= {"file": self.pointed(file + 8), "line": line}
            at += 16
        if flags & 4:
            module, offset = self.at("meta.db", "QQ", at)
            found |= {"module": self.pointed(module + 8), "offset": offset}
            at += 16
        assert at == end
        return Context(parent, LEXICAL[lexical], **found)

    def _profiles(self) -> Iterator[Profile]:
        first, count, size = self.at("profile.db", "QIB", self.sections["profile.db"][0][1])
        for i in range(count):
            total, values, contexts, indices, identity, flags = self.at("profile.db", "QQI4xQQI", first + size * i)
            starts = [self.at("profile.db", "IQ", indices + 12 * j) for j in range(contexts)] + [(0, total)]
            assert [c for c, _ in starts[:-1]] == sorted({c for c, _ in starts[:-1]})
            found = {}
            for (context, start), (_, end) in pairwise(starts):
                pairs = [self.at("profile.db", "Hd", values + 10 * j) for j in range(start, end)]
                assert pairs == sorted(dict(pairs).items())
                found[context] = dict(pairs)
            yield Profile(self._identity(identity), bool(flags & 1), found)

    def _identity(self, at: int) -> tuple[tuple[str, int, int, int], ...]:
        if not at:
            return ()
        levels = [self.at("profile.db", "BxHIQ", at + 8 + 16 * i) for i in range(self.at("profile.db", "H", at)[0])]
        return tuple((str(self.kinds[kind]), *rest) for kind, *rest in levels)

    def by_context(self) -> dict[tuple[int, int, int], float]:
        """Values of `cct.db` by (profile, context, metric id)."""
        first, count, size = self.at("cct.db", "QIB", self.sections["cct.db"][0][1])
        found = {}
        for context in range(count):
            total, values, metrics, indices = self.at("cct.db", "QQH6xQ", first + size * context)
            starts = [self.at("cct.db", "HQ", indices + 10 * j) for j in range(metrics)] + [(0, total)]
            for (metric, start), (_, end) in pairwise(starts):
                for j in range(start, end):
                    profile, value = self.at("cct.db", "Id", values + 12 * j)
                    found[profile, context, metric] = value
        return found

    def traces(self) -> dict[int, list[tuple[int, int]]]:
        """Elements of each profile's trace: time in ns since the epoch, context."""
        first, count, size, *_ = self.at("trace.db", "QIB3xQQ", self.sections["trace.db"][0][1])
        found = {}
        for i in range(count):
            profile, start, end = self.at("trace.db", "I4xQQ", first + size * i)
            found[profile] = [self.at("trace.db", "QI", at) for at in range(start, end, 12)]
        return found

    def inclusive(self, metric: str, profile: int = 0) -> dict[int, float]:
        """A metric's execution values by context; of the summary if no other profile is named."""
        (found,) = (m for m in self.metrics if m.name == metric)
        ids = found.statistics if self.profiles[profile].is_summary else found.ids
        values = {context: of.get(ids["execution"], 0.0) for context, of in self.profiles[profile].values.items()}
        return defaultdict(float, values)

    def entries(self) -> dict[str, int]:
        return {str(c.name): number for number, c in self.contexts.items() if c.kind == "entry"}

"""How are the files of an HPCToolkit database written, byte by byte?

A file starts with magic, format and version, then size and absolute offset of each section; it ends with a footer of
eight bytes. Structures are words of eight bytes; a pointer is the absolute offset in the file, 0 for none. What others
point at comes first. A metric's name carries its unit in parentheses; amounts are integers, ns for times, and are
divided by `per_unit` when written. The names of 2025 have units in seconds and bytes, ``(sec)`` and ``(B)``; those of
2026 have ``(s)`` and ``(b)`` and count cycles.

Only values other than zero are stored. By thread they are sorted by context and metric, by context by metric and
thread. Context 0 is the one around all entry points; it has the execution scope alone. Profile 0 is the summary: the
sum over all threads.
"""

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from make.hpctoolkit.tree import ENTRY, ENTRY_POINTS, FUNCTION, LOOP, SCOPES, Function, Tree

Int = NDArray[np.int64]
Words = NDArray[np.uint64]

MAGIC = b"HPCTOOLKIT"
MAJOR = 4
WORD = 8
SECTION = struct.Struct("<QQ")


class Form(NamedTuple):
    """What may differ in later minor versions of the format; the default is what version 4.0 writes.

    Every structure that may grow has `spare_words` of eight bytes more than in version 4.0. The ids of statistics in
    summary profiles start at `first_statistic`, those of other profiles' metrics at 0.
    """

    minor: int = 0
    spare_words: int = 0
    first_statistic: int = 0


class Strings:
    """Texts that end with a NUL, one behind the other; each is there once."""

    def __init__(self, texts: Iterable[str]) -> None:
        encoded = {text: text.encode() + b"\0" for text in texts}
        ends = np.cumsum([len(raw) for raw in encoded.values()], dtype=np.int64)
        self._at = dict(
            zip(encoded, (ends - [len(raw) for raw in encoded.values()]).tolist(), strict=True)
        )
        self.bytes = b"".join(encoded.values())

    def at(self, text: str | None, base: int) -> int:
        """Return where a text is if the first one is at `base`; 0 for None."""
        return 0 if text is None else base + self._at[text]


def header(kind: bytes, sections: Sequence[tuple[int, int]], form: Form) -> bytes:
    """Return the first bytes of a file whose sections have these sizes and offsets."""
    return (
        MAGIC
        + kind
        + bytes([MAJOR, form.minor])
        + b"".join(SECTION.pack(*section) for section in sections)
    )


def header_size(sections: int) -> int:
    """Return the size of a header with so many sections."""
    return len(MAGIC) + 6 + SECTION.size * sections


def packed(fmt: str, *fields: int) -> int:
    """Return small fields as one word."""
    return int.from_bytes(struct.pack(fmt, *fields), "little")


def padded(raw: bytes, size: int = WORD) -> bytes:
    """Return bytes with zeros behind them up to the next multiple of `size`."""
    return raw + bytes(-len(raw) % size)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes its name, and the place of an older one, when the block ends well."""
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        yield file
    os.replace(part, path)


NS = 1_000_000_000


class Metric(NamedTuple):
    """A metric: its name in the file, and how many of what it is measured in are one of its unit."""

    name: str
    per_unit: int = 1


def named(names: str) -> tuple[Metric, ...]:
    """Return metrics of names separated by commas."""
    each = (name.strip() for name in names.split(","))
    return tuple(
        Metric(name, NS if name.lower().endswith(("(s)", "(sec)")) else 1) for name in each
    )


NVIDIA = named(
    "CPUTIME (sec), GPUOP (sec), GKER (sec), GKER:COUNT, GKER:BLKS_ACUMU, GKER:BLK_THR_ACUMU, GKER:BLK_SM_ACUMU, "
    "GKER:THR_REG_ACUMU, GKER:FGP_ACT_ACUMU, GKER:FGP_MAX_ACUMU, GKER:STMEM_ACUMU (B), GKER:DYMEM_ACUMU (B), "
    "GXCOPY (sec), GXCOPY:COUNT, GXCOPY:H2D (B), GXCOPY:D2H (B), GXCOPY:D2D (B), GSYNC (sec), GSYNC:COUNT, "
    "GSYNC:STR (sec), GMEM (sec), GMEM:COUNT, GMEM:DEV (B), GMSET (sec), GMSET:COUNT, GMSET:DEV (B), "
    "GSAMP:TOT, GSAMP:EXP, GSAMP:DRP, GSAMP:PER (cyc), GINS, GINS:STL_ANY, GINS:STL_IFET, GINS:STL_IDEP, "
    "GINS:STL_GMEM, GINS:STL_SYNC, GINS:STL_CMEM, GINS:STL_PIPE, GINS:STL_MTHR, GINS:STL_OTHR"
)
NVIDIA_2026 = named(
    "CPUTIME (s), GPUOP (s), GKER (s), GKER:COUNT, GKER:BLKS_AVG_ACUMU, GKER:WARP_ACT_ACUMU, GKER:STMEM_ACUMU (b), "
    "GXCOPY (s), GXCOPY:COUNT, GXCOPY:H2D (b), GXCOPY:D2H (b), GSYNC (s), GPAGE:UMPCNT (bytes), "
    "GSAMP:TOT, GSAMP:EXP, GSAMP:PER (cyc), GCYCLES, GCYCLES:ISU, GCYCLES:ISU:UNK, GCYCLES:STL, "
    "GCYCLES:STL:IFET, GCYCLES:STL:IDEP, GCYCLES:STL:GMEM, GCYCLES:STL:PIPE, GCYCLES:STL:HID"
)
AMD = named(
    "GPUOP (s), GKER (s), GKER:COUNT, GKER:THR_VREG_ACUMU, GXCOPY (s), GXCOPY:COUNT, GXCOPY:H2D (b), GXCOPY:D2H (b), "
    "GMEM:UNK (b), GCYCLES, GCYCLES:ISU, GCYCLES:ISU:VEC, GCYCLES:ISU:MESG, GCYCLES:STL, GCYCLES:STL:MEM, "
    "GCYCLES:STL:SLP, GCYCLES:WAVE_IN_GRP, GCYCLES:THR_ACT, GPIPE:ISU:MATR, GPIPE:STL:LDS, GPIPE:STL:VEC"
)
INTEL = named(
    "GPUOP (s), GKER (s), GKER:COUNT, GSCR (s), GXCOPY (s), GXCOPY:COUNT, GXCOPY:H2D (b), GXCOPY:D2H (b), "
    "GPAGE:FLTSZ (b), GCYCLES, GCYCLES:ISU, GCYCLES:ISU:MATR, GCYCLES:STL, GCYCLES:STL:TMEM, GCYCLES:STL:SYNC, GINS:LAT"
)


KINDS = ("SUMMARY", "NODE", "RANK", "THREAD", "GPUDEVICE", "GPUCONTEXT", "GPUSTREAM", "CORE")
FOOTER = b"_meta.db"

# type and propagation index of each scope; those that have no index write 255
_SCOPE_FIELDS = {
    "point": (1, 255),
    "function": (3, 0),
    "lex_aware": (0, 255),
    "execution": (2, 255),
}
_HAS_FUNCTION, _HAS_LINE, _HAS_POINT = 1, 2, 4
_FLAGS = np.array(
    [_HAS_FUNCTION, _HAS_LINE | _HAS_POINT, _HAS_LINE, _HAS_POINT]
)  # of function, loop, line, instruction
_FLEX_WORDS = np.array([1, 4, 2, 2])
_CONTEXT_WORDS = 4


class _Places(NamedTuple):
    """Offset of the first element of each array that contexts refer to, and the size of an element."""

    modules: tuple[int, int]
    files: tuple[int, int]
    functions: tuple[int, int]


class _Sections:
    """The file as far as it is written: sections one behind the other."""

    def __init__(self, form: Form) -> None:
        self.at = header_size(8)
        self.spans: list[tuple[int, int]] = []
        self.parts: list[bytes] = []
        self._form = form

    def add(self, section: bytes) -> int:
        """Add a section and return where it stands."""
        at = self.at
        self.spans.append((len(section), at))
        self.parts.append(padded(section))
        self.at += len(self.parts[-1])
        return at

    def add_array(self, rows: list[list[int]], width: int) -> tuple[int, int]:
        """Add a section that is one array; return the offset of its first element, and the size of one."""
        first, size = self.at + 2 * WORD, WORD * (width + self._form.spare_words)
        head = np.array([first, packed("<IH", len(rows), size)], "<u8")
        self.add(head.tobytes() + _rows(np.array(rows, np.int64).reshape(-1, width), self._form))
        return first, size


def meta_db(
    tree: Tree, metrics: Sequence[Metric], title: str, description: str, form: Form
) -> bytes:
    """Return the bytes of `meta.db`."""
    names = [function.name for function in tree.functions if function.name is not None]
    strings = Strings([*tree.modules, *(file.path for file in tree.files), *names, *ENTRY_POINTS])
    file = _Sections(form)
    file.add(_texts(file.at, title, description))
    file.add(_kinds(file.at))
    file.add(_metrics(file.at, metrics, form))
    base = file.add(strings.bytes)
    modules = file.add_array([[0, strings.at(path, base)] for path in tree.modules], 2)
    files = file.add_array(
        [[known.copied, strings.at(known.path, base)] for known in tree.files], 2
    )
    functions = file.add_array(
        [_function(f, strings.at(f.name, base), modules, files) for f in tree.functions], 5
    )
    entry_names = np.array([strings.at(name, base) for name in ENTRY_POINTS])
    file.add(_contexts(file.at, tree, _Places(modules, files, functions), entry_names, form))
    *others, text, listed_modules, listed_files, listed_functions, contexts = file.spans
    spans = [*others, contexts, text, listed_modules, listed_files, listed_functions]
    return header(b"meta", spans, form) + b"".join(file.parts) + FOOTER


def _texts(at: int, *texts: str) -> bytes:
    strings = Strings(texts)
    return (
        np.array([strings.at(text, at + WORD * len(texts)) for text in texts], "<u8").tobytes()
        + strings.bytes
    )


def _kinds(at: int) -> bytes:
    strings = Strings(KINDS)
    names = at + 2 * WORD
    words = [names, len(KINDS), *(strings.at(name, names + WORD * len(KINDS)) for name in KINDS)]
    return np.array(words, "<u8").tobytes() + strings.bytes


def _metrics(at: int, metrics: Sequence[Metric], form: Form) -> bytes:
    """Scopes, metrics, and each metric's four scopes and four sums, with their names."""
    strings = Strings([*SCOPES, "$$", *(m.name for m in metrics)])
    widths = {"scope": 2, "metric": 4, "instance": 2, "summary": 3}
    scope, metric, instance, summary = (
        WORD * (words + form.spare_words) for words in widths.values()
    )
    scopes = at + 4 * WORD
    listed = scopes + scope * len(SCOPES)
    instances = listed + metric * len(metrics)
    summaries = instances + instance * len(SCOPES) * len(metrics)
    texts = summaries + summary * len(SCOPES) * len(metrics)
    ids = np.arange(len(SCOPES) * len(metrics))
    owners = scopes + scope * (ids % len(SCOPES))
    words = [
        np.array(
            [[strings.at(name, texts), packed("<BB", *_SCOPE_FIELDS[name])] for name in SCOPES]
        ),
        np.array(
            [
                [
                    strings.at(m.name, texts),
                    instances + 4 * i * instance,
                    summaries + 4 * i * summary,
                    packed("<HH", 4, 4),
                ]
                for i, m in enumerate(metrics)
            ]
        ).reshape(-1, 4),
        np.column_stack([owners, ids]),
        np.column_stack(
            [owners, np.full_like(ids, strings.at("$$", texts)), (ids + form.first_statistic) << 16]
        ),
    ]
    head = [
        listed,
        packed("<IBBB", len(metrics), metric, instance, summary),
        scopes,
        packed("<HB", len(SCOPES), scope),
    ]
    return np.array(head, "<u8").tobytes() + b"".join(_rows(w, form) for w in words) + strings.bytes


def _function(
    function: Function, name: int, modules: tuple[int, int], files: tuple[int, int]
) -> list[int]:
    places = (_place(modules, function.module), function.offset, _place(files, function.file))
    return [name, *places, function.line]


def _place(array: tuple[int, int], number: int) -> int:
    """Where an element of an array stands; 0 for none."""
    return array[0] + array[1] * number if number >= 0 else 0


def _places(array: tuple[int, int], numbers: Int) -> Int:
    return np.where(numbers >= 0, array[0] + array[1] * numbers, 0)


def _rows(words: NDArray[np.int64], form: Form) -> bytes:
    return np.pad(words, ((0, 0), (0, form.spare_words))).astype("<u8").tobytes()


def _contexts(at: int, tree: Tree, places: _Places, names: Int, form: Form) -> bytes:
    """Entry points, then contexts with those of one parent together."""
    entries = np.flatnonzero(tree.lexical == ENTRY)
    listed = np.flatnonzero((tree.lexical != ENTRY) & ~tree.hidden)
    listed = listed[np.argsort(tree.parent[listed], kind="stable")]
    flex = np.where(
        (tree.lexical[listed] == FUNCTION) & (tree.what[listed] < 0),
        0,
        _FLEX_WORDS[tree.lexical[listed]],
    )
    lengths = _CONTEXT_WORDS + flex
    ends = np.cumsum(lengths)
    first = at + 2 * WORD + WORD * (4 + form.spare_words) * len(entries)
    parents, heads = np.unique(tree.parent[listed], return_index=True)
    sizes, children = np.zeros((2, len(tree)), np.int64)
    sizes[parents] = WORD * np.add.reduceat(lengths, heads) if len(listed) else 0
    children[parents] = first + WORD * (ends - lengths)[heads]
    rows = [
        sizes[entries],
        children[entries],
        tree.ids[entries] | tree.what[entries] << 32,
        names[tree.what[entries]],
    ]
    head = [at + 2 * WORD, packed("<HB", len(entries), WORD * (4 + form.spare_words))]
    words = _context_words(tree, listed, ends - lengths, flex, places)
    words[ends - lengths], words[ends - lengths + 1] = sizes[listed], children[listed]
    return np.array(head, "<u8").tobytes() + _rows(np.column_stack(rows), form) + words.tobytes()


def _context_words(tree: Tree, listed: Int, at: Int, flex: Int, places: _Places) -> Words:
    """All contexts, each at its place; sizes and places of their children are left open."""
    kind = tree.lexical[listed]
    words = np.zeros(int(flex.sum()) + _CONTEXT_WORDS * len(listed), "<u8")
    flags = np.where(flex > 0, _FLAGS[kind], 0)
    words[at + 2] = (
        tree.ids[listed] | flags << 32 | tree.relation[listed] << 40 | kind << 48 | flex << 56
    )
    words[at + 3] = tree.within[listed]
    function, line, point = (
        np.flatnonzero(flags & flag) for flag in (_HAS_FUNCTION, _HAS_LINE, _HAS_POINT)
    )
    words[at[function] + 4] = _places(places.functions, tree.what[listed[function]])
    words[at[line] + 4] = _places(places.files, tree.what[listed[line]])
    words[at[line] + 5] = tree.line[listed[line]]
    after = at[point] + np.where(kind[point] == LOOP, 6, 4)
    words[after] = _places(places.modules, tree.module[listed[point]])
    words[after + 1] = tree.offset[listed[point]]
    return words


PROFILE_FOOTER, CONTEXT_FOOTER = b"_prof.db", b"__ctx.db"
SUMMARY = 1

_BY_PROFILE = (
    np.dtype([("metric", "<u2"), ("value", "<f8")]),
    np.dtype([("context", "<u4"), ("start", "<u8")]),
)
_BY_CONTEXT = (
    np.dtype([("profile", "<u4"), ("value", "<f8")]),
    np.dtype([("metric", "<u2"), ("start", "<u8")]),
)
_PROFILE_WORDS, _values_CONTEXT_WORDS = 6, 4
_HALF = 2  # both kinds of array are aligned to two bytes at least, so that they can be placed by half words


class Rows(NamedTuple):
    """Values with the id of their context and of their metric in its scope, sorted by both."""

    context: NDArray[np.uint32]
    metric: NDArray[np.uint16]
    value: NDArray[np.float64]


_NO_ROWS = Rows(np.zeros(0, np.uint32), np.zeros(0, np.uint16), np.zeros(0))


def rows(tree: Tree, metrics: Sequence[Metric], points: Int, unaccounted: Int) -> Rows:
    """Return what is stored of values measured at (context, metric)."""
    scopes = np.stack((points, *tree.scopes(points)), axis=-1)
    whole = np.zeros((1, *scopes.shape[1:]), np.int64)
    whole[0, :, -1] = scopes[tree.parent < 0, :, -1].sum(axis=0) + unaccounted
    by_id = np.argsort(tree.ids)
    scopes = np.concatenate([whole, scopes[by_id]]).reshape(len(tree) + 1, -1)
    ids = np.concatenate([[0], tree.ids[by_id]])
    at, metric = np.nonzero(scopes)
    per_unit = np.repeat([m.per_unit for m in metrics], len(SCOPES))[metric]
    return Rows(ids[at].astype(np.uint32), metric.astype(np.uint16), scopes[at, metric] / per_unit)


class ProfileWriter:
    """`profile.db` while it is written; threads come in their order, the summary last."""

    def __init__(
        self, file: BinaryIO, identities: Sequence[Sequence[tuple[int, int, int, int]]], form: Form
    ) -> None:
        self._file, self._form = file, form
        self._infos = header_size(2)
        self._size = 2 * WORD + WORD * (_PROFILE_WORDS + form.spare_words) * (len(identities) + 1)
        self._words = np.zeros((len(identities) + 1, _PROFILE_WORDS + form.spare_words), "<u8")
        tuples = [_identity(identity) for identity in identities]
        starts = self._infos + self._size + np.cumsum([0, *map(len, tuples)])
        self._words[1:, 4] = starts[:-1]
        self._tuples = b"".join(tuples)
        self._at = int(starts[-1])
        file.write(bytes(self._infos + self._size) + self._tuples)

    def add(self, profile: int, rows: Rows) -> None:
        """Write the values of a profile; 0 is the summary, thread i is i + 1."""
        values, index = _BY_PROFILE
        shift = self._form.first_statistic if profile == 0 else 0
        contexts, starts = np.unique(rows.context, return_index=True)
        block = _structured(values, metric=rows.metric + shift, value=rows.value).tobytes()
        gap = -(self._at + len(block)) % 4
        index_at = self._at + len(block) + gap
        indices = _structured(index, context=contexts, start=starts).tobytes()
        self._words[profile, :4] = len(rows.value), self._at, len(contexts), index_at
        self._file.write(block + bytes(gap) + indices)
        self._at = index_at + len(indices)

    def finish(self) -> None:
        """Write the list of profiles, which stands before their values, and the end of the file."""
        self._words[0, 5] = SUMMARY
        self._file.write(bytes(-self._at % WORD) + PROFILE_FOOTER)
        spans = [(self._size, self._infos), (len(self._tuples), self._infos + self._size)]
        head = [
            self._infos + 2 * WORD,
            packed("<IB", len(self._words), self._words.itemsize * self._words.shape[1]),
        ]
        self._file.seek(0)
        self._file.write(
            header(b"prof", spans, self._form)
            + np.array(head, "<u8").tobytes()
            + self._words.tobytes()
        )


def write_contexts(file: BinaryIO, contexts: int, threads: Sequence[Rows], form: Form) -> None:
    """Write `cct.db`."""
    context, metric, profile, value = _joined(threads)
    new = np.flatnonzero(np.diff(context.astype(np.int64) << 16 | metric, prepend=-1))
    values, metrics = (np.bincount(of, minlength=contexts) for of in (context, context[new]))
    size_value, size_index = (dtype.itemsize for dtype in _BY_CONTEXT)
    infos = header_size(1)
    words = np.zeros((contexts, _values_CONTEXT_WORDS + form.spare_words), "<u8")
    first = infos + 2 * WORD + words.nbytes
    sizes = size_value * values + size_index * metrics
    sizes += -sizes % 4
    ends = first + np.cumsum(sizes)
    words[:, 0], words[:, 1], words[:, 2] = values, ends - sizes, metrics
    words[:, 3] = words[:, 1] + (size_value * values).astype(np.uint64)
    began, index_began = (np.cumsum(count) - count for count in (values, metrics))
    blocks = np.zeros((int(ends[-1]) - first) // _HALF, "<u2")
    at = (ends - sizes - first)[context] + size_value * (np.arange(len(value)) - began[context])
    _values_place(blocks, at, _structured(_BY_CONTEXT[0], profile=profile, value=value))
    owner = context[new]
    at = (ends - sizes - first + size_value * values)[owner] + size_index * (
        np.arange(len(new)) - index_began[owner]
    )
    _values_place(
        blocks, at, _structured(_BY_CONTEXT[1], metric=metric[new], start=new - began[owner])
    )
    head = [infos + 2 * WORD, packed("<IB", contexts, words.itemsize * words.shape[1])]
    file.write(
        header(b"ctxt", [(2 * WORD + words.nbytes, infos)], form) + np.array(head, "<u8").tobytes()
    )
    file.write(words.tobytes())
    file.write(blocks.tobytes())
    file.write(bytes(-int(ends[-1]) % WORD) + CONTEXT_FOOTER)


def _identity(identity: Sequence[tuple[int, int, int, int]]) -> bytes:
    ids = [
        [packed("<BxHI", kind, physical, logical), number]
        for kind, physical, logical, number in identity
    ]
    return np.array([len(ids), *np.ravel(ids)], "<u8").tobytes()


def _joined(threads: Sequence[Rows]) -> tuple[NDArray[Any], ...]:
    """Values of all threads sorted by context, metric and thread; those of a thread already are."""
    context, metric, value = (
        np.concatenate([part[i] for part in (_NO_ROWS, *threads)]) for i in range(3)
    )
    profile = np.repeat(
        np.arange(1, len(threads) + 1, dtype=np.uint32), [len(part.value) for part in threads]
    )
    order = np.argsort(context.astype(np.int64) << 16 | metric, kind="stable")
    return context[order], metric[order], profile[order], value[order]


def _structured(dtype: np.dtype[Any], **columns: NDArray[Any]) -> NDArray[Any]:
    made = np.empty(len(next(iter(columns.values()))), dtype)
    for name, column in columns.items():
        made[name] = column
    return made


def _values_place(blocks: NDArray[np.uint16], at: Int, records: NDArray[Any]) -> None:
    """Put each record at its byte."""
    halves = records.view("<u2").reshape(len(records), records.itemsize // _HALF)
    for i in range(halves.shape[1]):
        blocks[at // _HALF + i] = halves[:, i]

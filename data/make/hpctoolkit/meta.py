"""How does `meta.db` list metrics, and calling contexts with what they refer to?

Conventions
-----------
Sections stand in the order of their pointers: what others point at comes first. Every section is built for the place
it will have in the file.

Functions
---------
meta_db    the file's bytes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from make.hpctoolkit.layout import WORD, Form, Int, Strings, Words, header, header_size, packed, padded
from make.hpctoolkit.metrics import Metric
from make.hpctoolkit.tree import ENTRY, ENTRY_POINTS, FUNCTION, LOOP, SCOPES, Function, Tree

KINDS = ("SUMMARY", "NODE", "RANK", "THREAD", "GPUDEVICE", "GPUCONTEXT", "GPUSTREAM", "CORE")
FOOTER = b"_meta.db"

# type and propagation index of each scope; those that have no index write 255
_SCOPE_FIELDS = {"point": (1, 255), "function": (3, 0), "lex_aware": (0, 255), "execution": (2, 255)}
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


def meta_db(tree: Tree, metrics: Sequence[Metric], title: str, description: str, form: Form) -> bytes:
    """Return the bytes of `meta.db`.

    Parameters
    ----------
    tree, metrics
        What to list; the ids of a metric's four scopes are four times its position and the three after.
    title, description
        Texts about the database.
    form
        How to list it.

    Returns
    -------
    bytes
        The file.
    """
    names = [function.name for function in tree.functions if function.name is not None]
    strings = Strings([*tree.modules, *(file.path for file in tree.files), *names, *ENTRY_POINTS])
    file = _Sections(form)
    file.add(_texts(file.at, title, description))
    file.add(_kinds(file.at))
    file.add(_metrics(file.at, metrics, form))
    base = file.add(strings.bytes)
    modules = file.add_array([[0, strings.at(path, base)] for path in tree.modules], 2)
    files = file.add_array([[known.copied, strings.at(known.path, base)] for known in tree.files], 2)
    functions = file.add_array([_function(f, strings.at(f.name, base), modules, files) for f in tree.functions], 5)
    entry_names = np.array([strings.at(name, base) for name in ENTRY_POINTS])
    file.add(_contexts(file.at, tree, _Places(modules, files, functions), entry_names, form))
    *others, text, listed_modules, listed_files, listed_functions, contexts = file.spans
    spans = [*others, contexts, text, listed_modules, listed_files, listed_functions]
    return header(b"meta", spans, form) + b"".join(file.parts) + FOOTER


def _texts(at: int, *texts: str) -> bytes:
    strings = Strings(texts)
    return np.array([strings.at(text, at + WORD * len(texts)) for text in texts], "<u8").tobytes() + strings.bytes


def _kinds(at: int) -> bytes:
    strings = Strings(KINDS)
    names = at + 2 * WORD
    words = [names, len(KINDS), *(strings.at(name, names + WORD * len(KINDS)) for name in KINDS)]
    return np.array(words, "<u8").tobytes() + strings.bytes


def _metrics(at: int, metrics: Sequence[Metric], form: Form) -> bytes:
    """Scopes, metrics, and each metric's four scopes and four sums, with their names."""
    strings = Strings([*SCOPES, "$$", *(m.name for m in metrics)])
    widths = {"scope": 2, "metric": 4, "instance": 2, "summary": 3}
    scope, metric, instance, summary = (WORD * (words + form.spare_words) for words in widths.values())
    scopes = at + 4 * WORD
    listed = scopes + scope * len(SCOPES)
    instances = listed + metric * len(metrics)
    summaries = instances + instance * len(SCOPES) * len(metrics)
    texts = summaries + summary * len(SCOPES) * len(metrics)
    ids = np.arange(len(SCOPES) * len(metrics))
    owners = scopes + scope * (ids % len(SCOPES))
    words = [
        np.array([[strings.at(name, texts), packed("<BB", *_SCOPE_FIELDS[name])] for name in SCOPES]),
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
        np.column_stack([owners, np.full_like(ids, strings.at("$$", texts)), (ids + form.first_statistic) << 16]),
    ]
    head = [listed, packed("<IBBB", len(metrics), metric, instance, summary), scopes, packed("<HB", len(SCOPES), scope)]
    return np.array(head, "<u8").tobytes() + b"".join(_rows(w, form) for w in words) + strings.bytes


def _function(function: Function, name: int, modules: tuple[int, int], files: tuple[int, int]) -> list[int]:
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
    flex = np.where((tree.lexical[listed] == FUNCTION) & (tree.what[listed] < 0), 0, _FLEX_WORDS[tree.lexical[listed]])
    lengths = _CONTEXT_WORDS + flex
    ends = np.cumsum(lengths)
    first = at + 2 * WORD + WORD * (4 + form.spare_words) * len(entries)
    parents, heads = np.unique(tree.parent[listed], return_index=True)
    sizes, children = np.zeros((2, len(tree)), np.int64)
    sizes[parents] = WORD * np.add.reduceat(lengths, heads) if len(listed) else 0
    children[parents] = first + WORD * (ends - lengths)[heads]
    rows = [sizes[entries], children[entries], tree.ids[entries] | tree.what[entries] << 32, names[tree.what[entries]]]
    head = [at + 2 * WORD, packed("<HB", len(entries), WORD * (4 + form.spare_words))]
    words = _context_words(tree, listed, ends - lengths, flex, places)
    words[ends - lengths], words[ends - lengths + 1] = sizes[listed], children[listed]
    return np.array(head, "<u8").tobytes() + _rows(np.column_stack(rows), form) + words.tobytes()


def _context_words(tree: Tree, listed: Int, at: Int, flex: Int, places: _Places) -> Words:
    """All contexts, each at its place; sizes and places of their children are left open."""
    kind = tree.lexical[listed]
    words = np.zeros(int(flex.sum()) + _CONTEXT_WORDS * len(listed), "<u8")
    flags = np.where(flex > 0, _FLAGS[kind], 0)
    words[at + 2] = tree.ids[listed] | flags << 32 | tree.relation[listed] << 40 | kind << 48 | flex << 56
    words[at + 3] = tree.within[listed]
    function, line, point = (np.flatnonzero(flags & flag) for flag in (_HAS_FUNCTION, _HAS_LINE, _HAS_POINT))
    words[at[function] + 4] = _places(places.functions, tree.what[listed[function]])
    words[at[line] + 4] = _places(places.files, tree.what[listed[line]])
    words[at[line] + 5] = tree.line[listed[line]]
    after = at[point] + np.where(kind[point] == LOOP, 6, 4)
    words[after] = _places(places.modules, tree.module[listed[point]])
    words[after + 1] = tree.offset[listed[point]]
    return words

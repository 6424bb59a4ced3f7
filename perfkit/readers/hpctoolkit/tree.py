"""The calling contexts of meta.db: the walk over them, and what each of them is."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfkit.readers.hpctoolkit.layout import File, Ints
from perfkit.readers.hpctoolkit.names import Functions, Listed

CONTEXT = 3  # section of meta.db
HEAD = struct.Struct("<QQ7xB")  # of a context: size and place of its children, words of its flexible part
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


def entries(meta: File) -> list[Entry]:
    """Return the entry points, the roots of the tree."""
    first, count, stride = meta.fields(meta.sections[CONTEXT][0], "QHB", "the entry points")
    parts = {"size": ("<u8", 0), "first": ("<u8", 8), "node": ("<u4", 16), "name": ("<u8", 24)}
    rows = meta.records(first, count, stride, parts, "the entry points")
    return [Entry(node, meta.text(name) or "unknown entry", at, size) for size, at, node, name in rows.tolist()]


@dataclass(frozen=True)
class Walked:
    """The contexts below the entry points in the order of the walk: every one after the one that encloses it.

    ``above`` is the position of the enclosing context, or -1 - i below the entry point i.
    """

    at: Ints
    above: Ints
    depth: Ints
    entry: Ints


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
            raise meta.damaged(f"the contexts at byte {begin} do not fit into their section, or are there twice")
        last = end - HEAD_BYTES
        while begin <= last:
            children, first, words = unpack(content, begin)
            if children:
                stack.append((first, children, len(at), depth + 1, entry))
            at.append(begin)
            begin += HEAD_BYTES + WORD * words
        if begin != end:
            raise meta.damaged(f"the context before byte {begin} does not end with its array at byte {end}")
        arrays.append((above, depth, entry, len(at) - before))
    told = np.array(arrays, np.int64).reshape(-1, 4)
    return Walked(np.array(at, np.int64), *(np.repeat(told[:, i], told[:, 3]) for i in range(3)))


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


def contexts(meta: File, at: Ints, functions: Functions, files: Listed, modules: Listed) -> Contexts:
    """Return what the contexts at these offsets are.

    A lexical type that a later minor version added is taken for what the context has: a function, a source line
    or an instruction.
    """
    words = np.frombuffer(meta.keep(), "<u8", meta.size // WORD)
    told = words[at // WORD + 2]
    flags, kind = ((told >> np.uint64(shift) & np.uint64(0xFF)).astype(np.int64) for shift in (32, 48))
    length = (told >> np.uint64(56)).astype(np.int64)
    has_function, has_place, has_point = ((flags & bit) != 0 for bit in (HAS_FUNCTION, HAS_PLACE, HAS_POINT))
    place = at // WORD + HEAD_BYTES // WORD + has_function
    point = place + 2 * has_place
    if (point + 2 * has_point - at // WORD - HEAD_BYTES // WORD > length).any():
        raise meta.damaged("a context is shorter than its flags say")

    def word(position: Ints, where: NDArray[np.bool_]) -> NDArray[np.uint64]:
        return np.where(where, words[np.where(where, position, 0)], np.uint64(0))

    new = kind > INSTRUCTION
    kind[new] = np.select([has_function[new], has_place[new], has_point[new]], [FUNCTION, LINE, INSTRUCTION], FUNCTION)
    of, known = meta.numbered, functions.listed
    return Contexts(
        (told & np.uint64(0xFFFFFFFF)).astype(np.int64),
        kind,
        of(word(place - 1, has_function), known.first, known.stride, len(known.texts), "a function"),
        of(word(place, has_place), files.first, files.stride, len(files.texts), "a source file"),
        (word(place + 1, has_place) & np.uint64(0xFFFFFFFF)).astype(np.int64),
        of(word(point, has_point), modules.first, modules.stride, len(modules.texts), "a module"),
        word(point + 1, has_point),
    )

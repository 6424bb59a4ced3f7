"""How is a tree of calling contexts built, path by path?

Conventions
-----------
A context is named by what it is and where it hangs: adding one twice gives the same position. Paths of files below
``src/`` are those of files that HPCToolkit copied into the database.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

import numpy as np

from make.hpctoolkit.layout import Int
from make.hpctoolkit.tree import (
    CALLED,
    ENCLOSED,
    ENTRY,
    ENTRY_POINTS,
    FUNCTION,
    INLINED,
    INSTRUCTION,
    LINE,
    LOOP,
    File,
    Function,
    Tree,
)

T = TypeVar("T", bound=Hashable)


class Paths:
    """A tree that grows; each method returns the position of a context, which may have been there."""

    def __init__(self) -> None:
        self._modules: dict[str, int] = {}
        self._files: dict[File, int] = {}
        self._functions: dict[Function, int] = {}
        self._contexts: dict[tuple[int, ...], int] = {}

    def entry(self, name: str) -> int:
        """Add an entry point, one of ENTRY_POINTS."""
        return self._add(-1, ENTRY, CALLED, ENTRY_POINTS.index(name))

    def function(
        self,
        parent: int,
        name: str | None,
        module: str = "",
        *,
        offset: int = 0,
        file: str = "",
        line: int = 0,
        inlined: bool = False,
        again: bool = False,
    ) -> int:
        """Add a function that was called from a context; without module or file where they are not known.

        HPCToolkit has some contexts twice below one parent, such as a GPU kernel's for values and for traces; the
        second one is `again`.
        """
        known = Function(name, self._module(module), offset, self._file(file), line)
        what = _number(self._functions, known)
        return self._add(parent, FUNCTION, INLINED if inlined else CALLED, what, 0, -1, 0, 0, int(again))

    def line(self, parent: int, file: str, line: int = 0, *, called: bool = False) -> int:
        """Add a source line; it is called where the function around it is not known."""
        return self._add(parent, LINE, CALLED if called else ENCLOSED, self._file(file), line)

    def loop(self, parent: int, file: str, line: int, module: str, offset: int) -> int:
        """Add a loop, known by its first line and its place in the load module."""
        return self._add(parent, LOOP, ENCLOSED, self._file(file), line, self._module(module), offset)

    def instruction(self, parent: int, module: str, offset: int, *, called: bool = False, hidden: bool = False) -> int:
        """Add an instruction; a hidden one is measured and not listed."""
        relation = CALLED if called else ENCLOSED
        return self._add(parent, INSTRUCTION, relation, -1, 0, self._module(module), offset, int(hidden))

    def tree(self, ids: Int | None = None) -> Tree:
        """Return the tree so far; contexts are numbered in the order they were added if there are no other `ids`."""
        columns = np.array(list(self._contexts), dtype=np.int64).reshape(-1, 9).T
        parent, lexical, relation, what, line, module, offset, hidden, _ = columns
        return Tree(
            parent=parent,
            lexical=lexical,
            relation=relation,
            what=what,
            line=line,
            module=module,
            offset=offset,
            hidden=hidden.astype(np.bool_),
            ids=np.arange(1, len(self._contexts) + 1) if ids is None else ids,
            modules=list(self._modules),
            files=list(self._files),
            functions=list(self._functions),
        )

    def _add(self, *context: int) -> int:
        return _number(self._contexts, context + (0, -1, 0, 0, 0)[len(context) - 4 :])

    def _module(self, path: str) -> int:
        return _number(self._modules, path) if path else -1

    def _file(self, path: str) -> int:
        return _number(self._files, File(path, path.startswith("src/"))) if path else -1


def _number(known: dict[T, int], key: T) -> int:
    return known.setdefault(key, len(known))

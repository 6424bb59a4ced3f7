"""What is a tree of calling contexts, and how is it built path by path?

A context is its position in the columns; its parent stands before it. An entry point has no parent (-1). The scopes of
a value are HPCToolkit's: point (measured right there), function (with what is below without a call in between),
lex_aware (the same, but a loop leaves out the loops in it) and execution (with everything below).

A context is named by what it is and where it hangs: adding one twice gives the same position. Paths of files below
``src/`` are those of files that HPCToolkit copied into the database.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from make.timeline import Int

FUNCTION, LOOP, LINE, INSTRUCTION, ENTRY = range(5)
ENCLOSED, CALLED, INLINED = range(3)
ENTRY_POINTS = ("unknown entry", "main thread", "application thread")
SCOPES = ("point", "function", "lex_aware", "execution")


class File(NamedTuple):
    """A source file; a copied one has a path inside the database, below `src`."""

    path: str
    copied: bool = False


class Function(NamedTuple):
    """A function; one without a name is known by where it is. Module and file are positions, -1 for none."""

    name: str | None
    module: int = -1
    offset: int = 0
    file: int = -1
    line: int = 0


class Level(NamedTuple):
    """Contexts of one depth in order of their parents, where each parent's first one stands, and those parents."""

    rows: Int
    firsts: Int
    parents: Int


def depths(parent: Int) -> Int:
    """Return each context's distance from its entry point, found by jumping twice as far in each round."""
    depth, above = (parent >= 0).astype(np.int64), parent.copy()
    while (has := np.flatnonzero(above >= 0)).size:
        depth[has], above[has] = depth[has] + depth[above[has]], above[above[has]]
    return depth


@dataclass(frozen=True)
class Tree:
    """Calling contexts: one value per context in each of the columns, and what their numbers refer to.

    `parent` is the position of the context around it, or that it was called from, -1 for an entry point; `lexical` what
    it is, `relation` how its parent reached it; `what` the function of a function (-1: unknown), the file of a line or
    loop, the kind of an entry point; `line` that of a line or loop; `module` and `offset` those of an instruction or
    loop, -1 and 0 where there is none. `hidden` contexts are left out of `meta.db`, and so must be their descendants.
    `ids` are their numbers in the files, from 1; 0 is the context around all entry points.
    """

    parent: Int
    lexical: Int
    relation: Int
    what: Int
    line: Int
    module: Int
    offset: Int
    hidden: NDArray[np.bool_]
    ids: Int
    modules: Sequence[str]
    files: Sequence[File]
    functions: Sequence[Function]

    def __len__(self) -> int:
        return len(self.parent)

    @property
    def within(self) -> NDArray[np.bool_]:
        """Whether no call separates a context from its parent."""
        return np.asarray((self.relation == ENCLOSED) & (self.parent >= 0))

    @cached_property
    def depth(self) -> Int:
        """Distance from the entry point."""
        return depths(self.parent)

    @cached_property
    def levels(self) -> list[Level]:
        """Contexts below the entry points, depth by depth, the deepest first."""
        rows = np.lexsort((self.parent, self.depth))
        ends = np.cumsum(np.bincount(self.depth))
        levels = []
        for start, end in reversed(list(pairwise(ends))):
            level = rows[start:end]
            parents, firsts = np.unique(self.parent[level], return_index=True)
            levels.append(Level(level, firsts, parents))
        return levels

    def scopes(self, points: Int) -> tuple[Int, Int, Int]:
        """Return the function, lex_aware and execution values of values measured at (context, metric)."""
        execution, function = points.copy(), points.copy()
        within = self.within[:, None]
        for rows, firsts, parents in self.levels:
            execution[parents] += np.add.reduceat(execution[rows], firsts)
            function[parents] += np.add.reduceat(function[rows] * within[rows], firsts)
        nested = np.flatnonzero(self.within & (self.lexical == LOOP))
        nested = nested[self.lexical[self.parent[nested]] == LOOP]
        lex_aware = function.copy()
        np.subtract.at(lex_aware, self.parent[nested], function[nested])
        return function, lex_aware, execution


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
        return self._add(
            parent, FUNCTION, INLINED if inlined else CALLED, what, 0, -1, 0, 0, int(again)
        )

    def line(self, parent: int, file: str, line: int = 0, *, called: bool = False) -> int:
        """Add a source line; it is called where the function around it is not known."""
        return self._add(parent, LINE, CALLED if called else ENCLOSED, self._file(file), line)

    def loop(self, parent: int, file: str, line: int, module: str, offset: int) -> int:
        """Add a loop, known by its first line and its place in the load module."""
        return self._add(
            parent, LOOP, ENCLOSED, self._file(file), line, self._module(module), offset
        )

    def instruction(
        self, parent: int, module: str, offset: int, *, called: bool = False, hidden: bool = False
    ) -> int:
        """Add an instruction; a hidden one is measured and not listed."""
        relation = CALLED if called else ENCLOSED
        return self._add(
            parent, INSTRUCTION, relation, -1, 0, self._module(module), offset, int(hidden)
        )

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

"""What is a tree of calling contexts, in columns, and how are values added up along it?

Conventions
-----------
A context is its position in the columns; its parent stands before it. An entry point has no parent (-1). The scopes of
a value are HPCToolkit's: point (measured right there), function (with what is below without a call in between),
lex_aware (the same, but a loop leaves out the loops in it) and execution (with everything below).

Data
----
FUNCTION, LOOP, LINE, INSTRUCTION, ENTRY    values of `Tree.lexical`; all but the last as in the file
ENCLOSED, CALLED, INLINED                   values of `Tree.relation`, as in the file
ENTRY_POINTS                                names of the kinds of entry point
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from make.hpctoolkit.layout import Int

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

    Parameters
    ----------
    parent
        Position of the context around it, or that it was called from; -1 for an entry point.
    lexical, relation
        What it is, and how its parent reached it.
    what
        The function of a function (-1: unknown), the file of a line or loop; the kind of an entry point.
    line
        Source line of a line or loop.
    module, offset
        Load module and offset of an instruction or loop; -1 and 0 where there is none.
    hidden
        Whether it is left out of `meta.db`; its descendants must be, too.
    ids
        The number it has in the files, from 1; 0 is the context around all entry points.
    modules, files, functions
        What `module` and `what` refer to.
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

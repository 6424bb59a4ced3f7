"""How do the contexts of a call tree lie below one another?

Conventions
-----------
A context is meant by its row in CALLTREE, counted from 0; -1 is none. Nothing here recurses, and a chain of contexts
costs its length once, or the logarithm of it per context.

Functions
---------
rows_of      the rows of contexts named by rank and node
parents      the row of the context that encloses each
nearest      the row of the nearest context, from each one upwards, that is wanted
of_kind      whether each context is of one of some kinds
text         the text of a column at some rows
within       the row of the function, entry or GPU operation that each context belongs to
described    the path of calls to a context, as text
called       a host function's name without its arguments
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from itertools import groupby

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.intervals import Int
from perfkit.names.parsing import qualified

Bool = NDArray[np.bool_]

PYTHON = "<logical python>"  # the module HPCToolkit gives to frames of the Python interpreter's own stack
SEPARATOR = " > "
_SPREAD, _ROOM = 16, 2**20  # contexts numbered more sparsely are looked up by hashing, which is slower
# HPCToolkit's marks of functions without line information and without a name.
_LIBRARY = re.compile(r"(?<=\S) (\[[^\[\]]*\.so[^\[\]]*\])\Z")
_UNKNOWN = "<unknown procedure>"


def rows_of(calltree: pd.DataFrame, rank: Int, node: Int) -> Int:
    """Return the row of each context (`rank`, `node`) in the CALLTREE; -1 for one that is not in it.

    Examples
    --------
    >>> tree = pd.DataFrame({"rank": [0, 0, 1], "node": [3, 8, 3]})
    >>> rows_of(tree, np.array([1, 0, 0]), np.array([3, 8, 9])).tolist()
    [2, 1, -1]
    """
    ranks, nodes = (calltree[key].to_numpy(np.int64) for key in ("rank", "node"))
    if not len(nodes):
        return np.full(len(node), -1, np.int64)
    lowest, low, span = ranks.min(), nodes.min(), int(nodes.max() - nodes.min()) + 1
    keys = (ranks - lowest) * span + (nodes - low)
    inside = (rank >= lowest) & (rank <= ranks.max()) & (node >= low) & (node - low < span)
    wanted = np.where(inside, (rank - lowest) * span + (node - low), -1)
    if (slots := int(keys.max()) + 1) > _SPREAD * len(keys) + _ROOM:
        return np.asarray(pd.Index(keys).get_indexer(wanted), np.int64)
    at = np.full(slots + 1, -1, np.int64)  # the last one answers for what is not in the tree
    at[keys] = np.arange(len(keys))
    return np.asarray(at[wanted])


def parents(calltree: pd.DataFrame) -> Int:
    """Return the row of each context's parent; -1 for a root, and where the parent is not in the table.

    Examples
    --------
    >>> tree = pd.DataFrame({"rank": 0, "node": [3, 8], "parent": pd.array([8, None], "Int64")})
    >>> parents(tree).tolist()
    [1, -1]
    """
    above = calltree["parent"].fillna(-1).to_numpy(np.int64)
    return rows_of(calltree, calltree["rank"].to_numpy(np.int64), above)


def nearest(parent: Int, wanted: Bool) -> Int:
    """Return the row of the first wanted context on the way from each context, itself included, to its root.

    Every step doubles the stretch that is looked at, so a chain of 5,000 contexts takes 13 steps.

    Examples
    --------
    >>> nearest(np.array([-1, 0, 1, 2]), np.array([False, True, False, False])).tolist()
    [-1, 1, 1, 1]
    """
    at = np.append(np.where(wanted, np.arange(len(parent)), parent), -1)  # the last one stands for "none"
    for _ in range(len(parent).bit_length()):
        above = at[at]
        if np.array_equal(above, at):
            break
        at = above
    # Contexts that enclose each other, of which no file should speak, have none.
    return np.where(np.append(wanted, False)[at[:-1]], at[:-1], -1)


def of_kind(calltree: pd.DataFrame, *kinds: str) -> Bool:
    """Whether each context is of one of the `kinds`.

    Examples
    --------
    >>> of_kind(pd.DataFrame({"kind": pd.Categorical(["line", "loop"])}), "loop", "entry").tolist()
    [False, True]
    """
    return labelled(calltree["kind"], [kind in kinds for kind in calltree["kind"].cat.categories])


def labelled(column: pd.Series, which: Iterable[bool]) -> Bool:
    """Whether the category of each row is one of those that `which` marks; a missing one never is."""
    return np.array([*which, False], bool)[column.cat.codes.to_numpy()]


def text(column: pd.Series, at: Int) -> pd.Series:
    """Return the text of the rows `at`, NA where that is -1."""
    codes = np.append(column.cat.codes.to_numpy(), -1)[at]
    return pd.Series(pd.Categorical.from_codes(codes, categories=column.cat.categories)).astype("string")


def within(calltree: pd.DataFrame, parent: Int) -> Int:
    """Return the row of the function, GPU operation or entry point that each context is or belongs to."""
    return nearest(parent, of_kind(calltree, "function", "gpu_operation", "entry"))


def described(calltree: pd.DataFrame, parent: Int, rows: Int, own: Iterable[str]) -> list[str]:
    """Return the path to each of `rows`: entry point and functions from the root down, joined by " > ".

    The last step is the row's text in `own`. Lines, loops, instructions and GPU placeholders are left out, and of
    equal steps that follow each other all but one.

    Examples
    --------
    >>> columns = {"name": pd.Categorical(["main", "f(int)"]), "kind": pd.Categorical(["entry", "function"])}
    >>> described(pd.DataFrame(columns), np.array([-1, 0]), np.array([1]), ["f"])
    ['main > f']
    """
    shown = of_kind(calltree, "function", "entry")
    codes, categories = calltree["name"].cat.codes.to_numpy(), calltree["name"].cat.categories
    spoken = cache(lambda code: called(str(categories[code])))
    texts = []
    for row, last in zip(rows.tolist(), own, strict=True):
        steps, at = [last], int(parent[row])
        for _ in range(len(parent)):
            if at < 0:
                break
            if shown[at] and codes[at] >= 0:
                steps.append(spoken(int(codes[at])))
            at = int(parent[at])
        texts.append(SEPARATOR.join(step for step, _ in groupby(reversed(steps))))
    return texts


def called(name: str) -> str:
    """Return a host function's name without template arguments, parameters and library; the library if that is all.

    Examples
    --------
    >>> called("at::native::add<float>(at::Tensor&) [libtorch_cuda.so]")
    'at::native::add'
    >>> called("<unknown procedure> 0x98fa80 [libcublas.so.12]")
    '[libcublas.so.12]'
    """
    library = _LIBRARY.search(name)
    if name.startswith(_UNKNOWN):
        return library.group(1) if library else name
    bare = name[: library.start()] if library else name
    return "::".join(part.name for part in qualified(bare)) or name

"""The distinct works of a run, by which its operations are counted and chosen.

Conventions
-----------
A work is a name of KERNELS with its full name and family. Works are numbered as the categories of the column `name`;
after these come what differs from that: further full names or families of a name, kernels without a name, and last
the directions of COPIES.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.intervals import Int
from perfkit.analysis.lanes.lane import Bool, Numbers, blocks
from perfkit.names import FAMILIES
from perfkit.names.matching import matching

UNSEEN = -2  # a missing text has code -1
COLUMNS = ("name", "full_name", "family")


class Works:
    """The works of a run, and the number of the work of each row of KERNELS and COPIES."""

    def __init__(self, kernels: pd.DataFrame, copies: pd.DataFrame) -> None:
        codes = [np.asarray(kernels[column].cat.codes) for column in COLUMNS]
        self._texts = [[str(text) for text in kernels[column].cat.categories] for column in COLUMNS]
        self._directions = [str(text) for text in copies["direction"].cat.categories]
        number, (self._name, self._full_name, self._family) = _numbered(codes, len(self._texts[0]))
        direction = np.asarray(copies["direction"].cat.codes, np.int64)
        # A copy without a direction is the one after the last.
        of_copies = np.where(direction < 0, len(self._directions), direction) + self.kernels
        self.of_rows = tuple(rows.astype(np.min_scalar_type(self.count), copy=False) for rows in (number, of_copies))

    @property
    def kernels(self) -> int:
        """Number of works of kernels; the copies' come after."""
        return len(self._name)

    @property
    def count(self) -> int:
        """Number of works of kernels and copies."""
        return self.kernels + len(self._directions) + 1

    def matching(self, pattern: str, families: Sequence[str]) -> Bool:
        """Say which works of kernels have a short or full name that matches, and one of the families."""
        unknown = [one for one in families if one not in FAMILIES]
        if unknown:
            raise ValueError(f"families: {', '.join(map(repr, unknown))} is not one of {list(FAMILIES)}")
        name, full_name, family = self._texts
        chosen = np.ones(self.kernels, bool)
        if pattern:
            chosen &= _matches(name, pattern)[self._name] | _matches(full_name, pattern)[self._full_name]
        if families:
            chosen &= np.array([*(text in families for text in family), False], bool)[self._family]
        return chosen

    def mask(self, names: NDArray[np.bool_] | None) -> Bool | None:
        """Return which works, copies too, a choice by name keeps; None if it keeps all."""
        if names is None:
            return None
        chosen = np.asarray(names)
        categories = len(self._texts[0])
        if chosen.dtype != bool or chosen.shape not in ((categories,), (self.kernels,)):
            raise ValueError(
                f"names: {chosen.dtype} of shape {chosen.shape} is not a bool for each of the {categories} names"
            )
        if len(chosen) != self.kernels:
            chosen = np.append(chosen, False)[self._name]
        return None if chosen.all() else np.append(chosen, np.ones(self.count - self.kernels, bool))

    def by_name(self, per_work: Int) -> Int:
        """Add up, per name, what was counted per work; what has no name comes last."""
        found = np.zeros(len(self._texts[0]) + 1, np.int64)
        np.add.at(found, self._name, per_work[: self.kernels])
        return found

    def names(self, chosen: Int) -> pd.DataFrame:
        """Return name and family (missing where kernels of several families share it) of names by their number."""
        several = np.full(len(self._texts[0]) + 1, -2)
        several[self._name] = self._family
        mixed = self._name[several[self._name] != self._family]
        several[mixed] = -1
        name = np.where(chosen < len(self._texts[0]), chosen, -1)
        return pd.DataFrame(
            {
                "name": pd.Categorical.from_codes(name, pd.Index(self._texts[0])),
                "family": pd.Categorical.from_codes(several[chosen], pd.Index(self._texts[2])),
            }
        )

    def described(self, work: Numbers) -> pd.DataFrame:
        """Return name, or direction of a copy, and family of works by their number."""
        distinct, place = np.unique(work, return_inverse=True)
        texts = np.array([self._text(one) for one in distinct.tolist()], object)
        family = np.append(self._family, np.full(self.count - self.kernels, -1))[work]
        return pd.DataFrame(
            {
                "name": pd.Categorical(texts[place]),
                "family": pd.Categorical.from_codes(family, pd.Index(self._texts[2])),
            }
        )

    def _text(self, work: int) -> str | None:
        of_kernel = work < self.kernels
        texts, code = (self._texts[0], self._name[work]) if of_kernel else (self._directions, work - self.kernels)
        return texts[code] if 0 <= code < len(texts) else None


def _matches(texts: list[str], pattern: str) -> Bool:
    """Say which texts match; the answer for a missing one is the last."""
    return np.array([*matching(texts, pattern), False], bool)


def _numbered(codes: list[Numbers], names: int) -> tuple[Numbers, list[Int]]:
    """Return the work of each kernel, and the codes of name, full name and family of each work."""
    name = codes[0]
    known = [np.full(names + 1, UNSEEN) for _ in COLUMNS[1:]]
    found = [_others(codes, known, rows) for rows in blocks(len(name))]
    other = np.concatenate([np.zeros(0, np.int64), *found])
    keys = pd.DataFrame({column: code[other] for column, code in zip(COLUMNS, codes, strict=True)})
    extra = keys.drop_duplicates().sort_values([*COLUMNS])
    number = name.astype(np.int64) if len(other) else name
    if len(other):
        number[other] = names + keys.groupby([*COLUMNS], sort=True).ngroup().to_numpy()
    usual = [np.arange(names), *(np.maximum(of_name[:names], -1) for of_name in known)]
    return number, [np.append(a, extra[c]).astype(np.int64) for a, c in zip(usual, COLUMNS, strict=True)]


def _others(codes: list[Numbers], known: list[Int], rows: slice) -> Int:
    """Return the rows without a name, and those whose full name or family differ from what is known of the name.

    Of a name that is seen for the first time they become known.
    """
    name = codes[0][rows].astype(np.intp)
    other = name < 0
    for of_name, code in zip(known, codes[1:], strict=True):
        differs = of_name.take(name) != code[rows]
        if differs.any():
            new = np.flatnonzero(differs & (of_name.take(name) == UNSEEN))
            of_name[name[new]] = code[rows][new]
            differs = of_name.take(name) != code[rows]
        other |= differs
    return np.asarray(rows.start + np.flatnonzero(other), np.int64)

"""profile.db: whose values are stored, and the values, sparse by thread, context and metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perfkit.readers.hpctoolkit.layout import File, Ints, Records

PROFILES = 0  # section of profile.db
SUMMARY = 0  # the first profile adds up all threads
IS_SUMMARY = 1
PARTS = {
    "values": ("<u8", 0),
    "p_values": ("<u8", 8),
    "contexts": ("<u4", 16),
    "p_contexts": ("<u8", 24),
    "identity": ("<u8", 32),
    "flags": ("<u4", 40),
}
VALUE_BYTES, VALUE = 10, {"metric": ("<u2", 0), "value": ("<f8", 2)}
INDEX_BYTES, INDEX = 12, {"context": ("<u4", 0), "start": ("<u8", 4)}
IDENTITY_BYTES, IDENTITY = 16, {"kind": ("u1", 0), "number": ("<u4", 4)}


@dataclass(frozen=True)
class Values:
    """Stored values: the context, the metric's number and the value of each, contexts ascending."""

    context: Ints
    metric: NDArray[np.uint16]
    value: NDArray[np.float64]


class Profiles:
    """The profiles of a database: position 0 is the sum over all threads, most others are one thread or stream."""

    def __init__(self, file: File) -> None:
        self.file = file

    @cached_property
    def _infos(self) -> Records:
        first, count, stride = self.file.fields(self.file.sections[PROFILES][0], "QIB", "the profiles")
        infos = self.file.records(first, count, stride, PARTS, "the profiles")
        if not count or not infos["flags"][SUMMARY] & IS_SUMMARY:
            raise self.file.damaged(f"the first of {count} profiles is not the sum over all threads")
        return infos

    def __len__(self) -> int:
        return len(self._infos)

    @cached_property
    def threads(self) -> list[int]:
        """Positions of the profiles that are one thread or stream."""
        return np.flatnonzero(self._infos["flags"] & IS_SUMMARY == 0).tolist()

    def identity(self, position: int) -> list[tuple[int, int]]:
        """Return what tells a thread from the others: (kind of identity, number), the widest first."""
        at = int(self._infos["identity"][position])
        if not at:
            return []
        (count,) = self.file.fields(at, "H", "an identity")
        rows = self.file.records(at + 8, count, IDENTITY_BYTES, IDENTITY, "an identity")
        return [(kind, number) for kind, number in rows.tolist()]

    def all(self, position: int = SUMMARY) -> Values:
        """Return every stored value of a profile."""
        context, bounds = self._index(position)
        return self._values(position, context, bounds)

    def of(self, contexts: Ints, position: int = SUMMARY) -> Values:
        """Return the stored values of a few contexts, without reading those of the others."""
        context, bounds = self._index(position)
        found = np.flatnonzero(np.isin(context, contexts))
        parts = [self._values(position, context[i : i + 1], bounds[i : i + 2]) for i in found]
        nothing = Values(np.zeros(0, np.int64), np.zeros(0, np.uint16), np.zeros(0))
        return _joined([nothing, *parts])

    def _index(self, position: int) -> tuple[Ints, Ints]:
        """Return the contexts that have values, and between which positions their values are."""
        info, what = self._infos[position], f"the contexts of profile {position}"
        rows = self.file.records(int(info["p_contexts"]), int(info["contexts"]), INDEX_BYTES, INDEX, what)
        context = rows["context"].astype(np.int64)
        bounds = np.append(rows["start"], info["values"])
        if (np.diff(context) <= 0).any() or (bounds[1:] < bounds[:-1]).any():
            raise self.file.damaged(f"{what} are not in order")
        return context, bounds.astype(np.int64)

    def _values(self, position: int, context: Ints, bounds: Ints) -> Values:
        """Return the values that lie between consecutive bounds."""
        at = int(self._infos["p_values"][position]) + VALUE_BYTES * int(bounds[0])
        count, what = int(bounds[-1] - bounds[0]), f"the values of profile {position}"
        rows = self.file.records(at, count, VALUE_BYTES, VALUE, what)
        if not np.isfinite(rows["value"]).all():
            raise self.file.damaged(f"{what} are not all numbers")
        return Values(np.repeat(context, np.diff(bounds)), rows["metric"], rows["value"])


def _joined(parts: Sequence[Values]) -> Values:
    context, metric, value = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("context", "metric", "value")
    )
    return Values(context, metric, value)

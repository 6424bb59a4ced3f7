"""A log as columns: what every form of nvidia-smi's output is brought to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Column:
    """A column: its distinct texts, which of them stands in each row, and the unit that the header names."""

    codes: NDArray[np.int32]
    texts: Sequence[str]
    unit: str = ""

    @classmethod
    def of(cls, cells: Sequence[str]) -> Column:
        """Make a column of the text of each row."""
        texts = list(dict.fromkeys(cells))
        numbered = {text: i for i, text in enumerate(texts)}
        return cls(np.array([numbered[cell] for cell in cells], np.int32), texts)


class Unreadable(ValueError):
    """A cell that its column does not allow."""

    def __init__(self, name: str, column: Column, code: int) -> None:
        self.row = int(np.flatnonzero(column.codes == code)[0])
        self.text = column.texts[code]
        self.name = name
        super().__init__(name, self.text)


@dataclass(frozen=True)
class Log:
    """Rows of one GPU and one moment each; columns go by the names of ``--query-gpu``.

    ``names`` says what the file itself calls a column, if it is not that, ``where`` where a row stands in it, and
    ``unread`` which columns of the file are none of these.
    """

    path: Path
    tool: str
    columns: Mapping[str, Column]
    gpu: NDArray[np.int32]
    time_ns: NDArray[np.int64]
    t0_unix_ns: int | None
    where: Callable[[int], str]
    names: Mapping[str, str]
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

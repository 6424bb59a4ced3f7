"""What readers share: the bytes and lines of a log, and the columns and small tables (CAPTURE, DEVICES) they make."""

import csv
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit import tables
from perfkit.errors import ReadError
from perfkit.format import utf8


def csv_rows(module: str, name: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file that lies beside a module."""
    with Path(module).with_name(name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def content(path: Path) -> bytes:
    """Return the text of a file as UTF-8, without a byte order mark."""
    try:
        return utf8(path.read_bytes())
    except OSError as e:
        raise ReadError(
            f"{path}: the file cannot be opened ({e.strerror}). Check its permissions."
        ) from e


def head(path: Path, size: int) -> bytes:
    """Return the first `size` bytes of a file, text as `content` does; none if it cannot be opened."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return utf8(file.read(size))
    except OSError:
        return b""


def category(codes: NDArray[np.integer[Any]], labels: Sequence[str | None]) -> pd.Categorical:
    """Return the label of each code, missing for code -1 and label None.

    Equal labels become one category; the categories are sorted, and labels without a code are left
    out.

    >>> category(np.array([2, 0, -1, 1]), ["b", None, "b"])
    ['b', 'b', NaN, NaN]
    Categories (1, object): ['b']
    """
    counts = np.bincount(codes[codes >= 0], minlength=len(labels))
    used = {i: label for i in np.flatnonzero(counts).tolist() if (label := labels[i]) is not None}
    distinct = sorted(set(used.values()))
    number = {label: i for i, label in enumerate(distinct)}
    # The last is what code -1 takes; as wide as a categorical of so many stores its codes.
    of_code = np.full(len(labels) + 1, -1, np.int16 if len(distinct) < 1 << 15 else np.int32)
    of_code[list(used)] = [number[label] for label in used.values()]
    made: pd.Categorical = pd.Categorical.from_codes(
        of_code[codes], pd.Index(distinct, dtype=object), validate=False
    )
    return made


def nullable(values: NDArray[np.int64], absent: NDArray[np.bool_]) -> pd.arrays.IntegerArray:
    """Return whole numbers, missing where `absent` says so; shared where none is."""
    return pd.arrays.IntegerArray(np.where(absent, 0, values) if absent.any() else values, absent)


def capture_table(
    path: Path,
    tool: str,
    version: str = "",
    t0_unix_ns: int | None = None,
    dur_ns: int = 0,
    **asked: str,
) -> pd.DataFrame:
    """Return CAPTURE of one file or folder, with an unknown wall clock if `t0_unix_ns` is None.

    `asked` says what was recorded, where the file does: `traced`, `sampled`, `platform`.
    """
    row = {"tool": tool, "tool_version": version, "path": str(path), "dur_ns": dur_ns}
    (made,) = captures([{**row, "t0_unix_ns": t0_unix_ns, **asked}])
    return made


def captures(rows: Sequence[Mapping[str, Any]]) -> Iterator[pd.DataFrame]:
    """Yield CAPTURE of each file, made as one table; rows as `capture_table` says, all with the same keys."""
    if not rows:
        return
    starts = pd.array([row["t0_unix_ns"] for row in rows], dtype="Int64")
    # Rows keep their order, as they are sorted by rank; in a file of its own each is rank 0.
    numbered = pd.DataFrame(rows).assign(t0_unix_ns=starts, rank=range(len(rows)))
    made = tables.CAPTURE.make(numbered).assign(rank=np.int32(0))
    for place in range(len(made)):
        yield made.iloc[place : place + 1].reset_index(drop=True)


# What the names of CUPTI's and Nsight Systems' overheads contain, and the kind in OVERHEAD that
# they are.
OVERHEADS = {
    "flush": "flush",
    "dlopen": "loading",  # the program's own loading of libraries
    "dlclose": "loading",
    "function loading": "loading",
    "module loading": "loading",
    "compiler": "compiling",
    "buffer full": "queue_full",
}


def overhead_kind(name: str) -> str:
    """Return the kind of overhead that a name tells; empty if it tells none.

    >>> overhead_kind("CUPTI: Buffer flush"), overhead_kind("Lazy Function Loading"), overhead_kind("TLS allocation")
    ('flush', 'loading', '')
    """
    return next((kind for word, kind in OVERHEADS.items() if word in name.casefold()), "")


def by_number(name: str) -> list[tuple[int, str]]:
    """Sort key under which node10 comes after node2."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part)
        for part in re.split(r"(\d{1,18})", name)
    ]


def put(target: Path, content: bytes) -> None:
    """Write a file that is whole or absent."""
    with tempfile.NamedTemporaryFile(dir=target.parent, suffix=".partial", delete=False) as file:
        partial = Path(file.name)
        try:
            file.write(content)
            file.close()
            partial.replace(target)
        except OSError:
            partial.unlink(missing_ok=True)
            raise

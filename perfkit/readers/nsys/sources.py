"""What the parts of the reader ask of an export, whichever form it was written in.

An export comes from outside: any cell of it can hold anything. What is read is checked here, in one
place: a column of numbers is int64 (`integers`) before any part of the reader sees it, and a single
value is a `whole` number or a `text`, or not recorded. Arithmetic on them does not wrap around
(`difference`, `product`, `total`).
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial, reduce
from threading import Lock
from typing import Any, Protocol, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from perfkit.errors import ReadError, SchemaError
from perfkit.readers.text import nullable
from perfkit.schema import Table

Columns = dict[str, NDArray[Any]]


class Stack:
    """Columns with `rows` rows, made when the first part is put."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.columns: Columns = {}
        self._lock = Lock()

    def put(self, place: int, part: Mapping[str, NDArray[Any]]) -> None:
        """Write a part, which has the same columns as every other, from row `place` on."""
        with self._lock:
            for name, values in part.items():
                if name not in self.columns:
                    self.columns[name] = np.empty(self._rows, values.dtype)
        for name, values in part.items():
            self.columns[name][place : place + len(values)] = values


Int = NDArray[np.int64]
Texts = tuple[
    NDArray[np.int32], list[str]
]  # a code per row, -1 for none, and the text of each code
Made = TypeVar("Made")
# Tables that only Nsight Systems writes; every export has at least one of them.
MARKERS = (
    "CUPTI_ACTIVITY_KIND_",
    "TARGET_INFO_",
    "META_DATA_EXPORT",
    "EXPORT_META_DATA",
    "ANALYSIS_DETAILS",
)
TIMES = ("start", "end", "timestamp")  # columns of times
FLAGS = (
    "isSchedIn",
    "unresolved",
)  # columns of 0 and 1, which Parquet and Arrow exports write as true and false
NEVER = np.iinfo(
    np.int64
).min  # a time that is NULL or does not fit: no time of a capture lies there
# Ns: no capture lasts longer, no event lies farther from its start
LONGEST = 10 * 365 * 86_400 * 10**9
EXACT = 2**53  # up to here a float is the number that was stored


@dataclass(frozen=True)
class Combined:
    """A column made of others while reading, so that fewer are carried: the first of `columns` that is not null."""

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Read:
    """How one column of ours is made: by a function of columns of the export, whole numbers each.

    A cell that is null is `missing`, as is the whole column where the export lacks it, unless
    `lacking` says otherwise.
    """

    values: Callable[..., NDArray[Any]]
    stored: tuple[str | Combined, ...]
    missing: int = -1
    lacking: int | None = None

    def of(self, numbers: Callable[[str, int, int], Int]) -> NDArray[Any]:
        """Return the column, given what returns a column of the export by name, missing and lacking value."""
        lacking = self.missing if self.lacking is None else self.lacking
        return self.values(*(numbers(label(each), self.missing, lacking) for each in self.stored))


Reads = Mapping[str, Read]  # the column map of a table: our column <- columns of the export


def _as_it_is(numbers: Int) -> Int:
    return numbers


def column(
    *names: str | Combined,
    by: Callable[..., NDArray[Any]] = _as_it_is,
    missing: int = -1,
    lacking: int | None = None,
) -> Read:
    """Return how to read one column: that of the export as it is, or what a function makes of several."""
    return Read(by, names, missing, lacking)


def quantity(*names: str, by: Callable[[list[Int]], Int]) -> Read:
    """Return how to read counts as one; NEVER where the export lacks one of them, as `framed` expects."""

    def values(*counts: Int) -> Int:
        is_missing = reduce(np.logical_or, [count == NEVER for count in counts])
        if not is_missing.any():
            return by(list(counts))
        known = [np.where(is_missing, 0, count) for count in counts]
        return np.where(is_missing, NEVER, by(known))

    return Read(values, names, NEVER)


def read(source: "Source", table: str, reads: Reads, required: Iterable[str] = ()) -> Columns:
    """Return the columns of a map; no rows for an absent table. ReadError without a `required` column."""
    require(source, table, required)
    return source.stacked(table, asked(reads), lambda rows: values(rows, reads))


def each_part(
    source: "Source", table: str, reads: Reads, make: Callable[[Columns], Made]
) -> list[Made]:
    """Return what `make` returns for the columns of a map, part by part; an empty list for an absent table."""
    return source.convert(table, asked(reads), lambda rows: make(values(rows, reads)))


def asked(reads: Reads) -> list[str | Combined]:
    """Return the columns of the export that a map is made of, each once."""
    return list(dict.fromkeys(name for each in reads.values() for name in each.stored))


def values(rows: pa.Table, reads: Reads) -> Columns:
    """Return the columns of a map for some rows of the export; what several of ours need is taken once."""
    numbers = cache(partial(ints, rows))
    return {name: each.of(numbers) for name, each in reads.items()}


def framed(table: Table, columns: dict[str, Any]) -> pd.DataFrame:
    """Return a table of rank 0 of columns, which are taken out of `columns`: held twice they would fill the memory.

    NEVER in a quantity is a missing value. SchemaError names the table and the columns that no map
    reads.
    """
    absent = [name for name in table.column_names if name not in columns and name != "rank"]
    if absent:
        raise SchemaError(f"table {table.name!r}: no map of Nsight Systems reads its {absent}")
    return table.make(_taken(table, columns))


def _taken(table: Table, columns: dict[str, Any]) -> pd.DataFrame:
    quantities = [c.name for c in table.columns if c.dtype == "Int64"]
    for name in quantities:
        numbers = columns[name]
        columns[name] = nullable(numbers, numbers == NEVER)
    rank = np.zeros(len(next(iter(columns.values()))), np.int32)
    frame = pd.DataFrame({"rank": rank, **columns}, copy=False)
    columns.clear()
    return frame


class Source(Protocol):
    """An export: tables of named columns. An absent table has no columns and no rows."""

    def damage(self, table: str, finding: str) -> ReadError:
        """Return the error that says what is wrong with `table`, with the path of its file."""

    def columns(self, table: str) -> Collection[str]:
        """Names of the columns of `table`; empty if there is no such table."""

    def has_rows(self, table: str) -> bool:
        """Whether `table` exists and holds at least one row."""

    def holds(self, table: str, column: str, values: Collection[int]) -> bool:
        """Whether a column of `table` exists and holds at least one of `values`."""

    def convert(
        self, table: str, columns: Sequence[str | Combined], make: Callable[[pa.Table], Made]
    ) -> list[Made]:
        """Apply `make` to consecutive parts of those numeric `columns` that exist, int64, on several threads."""

    def stacked(
        self, table: str, columns: Sequence[str | Combined], make: Callable[[pa.Table], Columns]
    ) -> Columns:
        """Return what `make` returns for the parts, all parts together; for an absent table, for no rows."""

    def rows(self, table: str, columns: Iterable[str]) -> list[dict[str, Any]]:
        """Return a small table as dictionaries; absent columns are None, present ones hold anything."""

    def text(self, table: str, column: str) -> Texts:
        """Return a text column in the order of `convert`; no texts if it is absent or all null."""

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the texts of these StringIds; ids that are unknown, or that two texts have, are left out."""

    def nameless(self) -> str:
        """Say which values of StringIds are no text; empty if all are."""


def product(factors: list[Int]) -> Int:
    """Return the product of counts, -1 where one is negative or the product does not fit.

    >>> product([np.array([2, -2, 2**40]), np.array([3, -3, 2**40])]).tolist()
    [6, -1, -1]
    """
    return _reduced(np.multiply, factors, fits=math.prod(map(_highest, factors)) < 2**63)


def _reduced(operation: np.ufunc, counts: list[Int], *, fits: bool) -> Int:
    """Return columns of counts reduced to one; unless it `fits` for sure, what does not is looked for."""
    made = counts[0].copy()
    for count in counts[1:]:
        # In place: a column more is memory that the system must clear first
        operation(made, count, out=made)
    if not fits or _lowest(counts) < 0:
        size = reduce(operation, [count.astype(float) for count in counts])
        made[(size >= 2.0**62) | reduce(np.logical_or, [count < 0 for count in counts])] = -1
    return made


def _lowest(columns: list[Int]) -> int:
    return min(int(column.min(initial=0)) for column in columns)


def _highest(column: Int) -> int:
    return int(column.max(initial=0))


def label(column: str | Combined) -> str:
    """Return the name of a column in what is read."""
    return column.name if isinstance(column, Combined) else column


def stored(columns: Sequence[str | Combined]) -> list[str]:
    """Return the names of what columns are made of, each once."""
    return list(
        dict.fromkeys(s for c in columns for s in (c.columns if isinstance(c, Combined) else (c,)))
    )


def damaged(file: object, kind: str, finding: str) -> ReadError:
    """Return the error about a file, a `kind` of thing such as "database", that is not as nsys writes it."""
    line = "".join(c if c.isprintable() else "?" for c in " ".join(finding.split()))
    short = line if len(line) <= 300 else f"{line[:300]} ..."
    return ReadError(f"{file}: the {kind} is damaged ({short}). Export the report again.")


def require(source: Source, table: str, columns: Iterable[str]) -> None:
    """Raise ReadError if `table` is there without columns that every version of nsys writes."""
    present = source.columns(table)
    lacking = [column for column in columns if column not in present] if present else []
    if lacking:
        raise source.damage(table, f"{table} has no column {lacking[0]!r}")


def available(columns: Sequence[str | Combined], present: Collection[str]) -> list[str | Combined]:
    """Return those of `columns` for which the table has what they are made of."""
    narrowed = [
        Combined(c.name, tuple(s for s in c.columns if s in present))
        if isinstance(c, Combined)
        else c
        for c in columns
    ]
    return [c for c in narrowed if (c.columns if isinstance(c, Combined) else c in present)]


def are_of_nsys(names: Iterable[str]) -> bool:
    """Say whether one of these names of tables is one that only Nsight Systems writes, in any case."""
    return any(name.upper().startswith(MARKERS) for name in names)


def resolve(table: str, names: Collection[str]) -> str | None:
    """Return the name under which `table` is stored: itself, or its newest ``_V2``, ``_V3`` form, in any case.

    >>> resolve("StringIds", ["STRINGIDS", "stringids"]), resolve("NVTX", ["nvtx", "nvtx_v2", "NVTX_EVENTS"])
    ('stringids', 'nvtx_v2')
    """
    spelled = re.compile(rf"{re.escape(table)}(_V\d+)?", re.IGNORECASE)
    versions = [name for name in names if spelled.fullmatch(name)]
    return max(versions, key=lambda name: (len(name), name == table, name), default=None)


def integers(
    column: pa.ChunkedArray, name: str, damage: Callable[[str], ReadError]
) -> pa.ChunkedArray:
    """Return a column of numbers as int64; anything but whole numbers raises the error of `damage`."""
    kind = column.type
    if pa.types.is_uint64(kind):
        # Parquet exports write ids unsigned; all bits set is "none" there and becomes -1 here.
        signed = pc.cast(column, pa.int64(), safe=False)
        return pc.if_else(pc.less(signed, 0), NEVER, signed) if name in TIMES else signed
    is_flag = pa.types.is_boolean(kind) and name in FLAGS
    if pa.types.is_integer(kind) or pa.types.is_null(kind) or is_flag:
        return pc.cast(column, pa.int64())
    if not pa.types.is_floating(kind):
        raise damage(f"{name} holds values of type {kind}, not whole numbers")
    numbers = pc.cast(column, pa.float64())
    exact = pc.and_(
        pc.equal(pc.trunc(numbers), numbers), pc.less_equal(pc.abs(numbers), float(EXACT))
    )
    others = numbers.filter(pc.invert(exact))
    if len(others):
        raise damage(f"{name} holds {others[0].as_py()}, not a whole number up to 2**53")
    return pc.cast(numbers, pa.int64())


def ints(rows: pa.Table, name: str, missing: int = -1, lacking: int = -1) -> Int:
    """Return a column as int64, `missing` where it is null, `lacking` where the export does not have it at all."""
    if name not in rows.column_names:
        return np.full(rows.num_rows, lacking, np.int64)
    column = rows.column(name)
    return np.ascontiguousarray(
        (pc.fill_null(column, missing) if column.null_count else column).to_numpy()
    )


def in_32_bits(numbers: Int) -> Int:
    """Return numbers of devices or cores; an impossible one becomes what none has, because all must fit int32."""
    fits = np.iinfo(np.int32)
    if numbers.min(initial=0) >= -1 and numbers.max(initial=0) <= fits.max:
        return numbers
    return np.where((numbers < -1) | (numbers > fits.max), np.int64(fits.min), numbers)


def or_none(correlation: Int) -> Int:
    """Return the numbers that calls share with what they started, -1 for the 0 of what no call started."""
    return np.where(correlation == 0, np.int64(-1), correlation)


def difference(end: Int, start: Int) -> Int:
    """Return end - start, -1 where one of them is NEVER or the difference does not fit.

    >>> difference(np.array([9, 9, 2**62, NEVER]), np.array([7, NEVER, -(2**62), 0])).tolist()
    [2, -1, -1, -1]
    """
    length: Int = end - start
    if _lowest([end, start]) < -EXACT or max(_highest(end), _highest(start)) > EXACT:
        wraps = ((end ^ start) & (end ^ length)) < 0
        length[wraps | (end == NEVER) | (start == NEVER)] = -1
    return length


def total(counts: list[Int]) -> Int:
    """Return the sum of counts, -1 where one is negative or the sum does not fit.

    >>> total([np.array([2, -2, 2**62]), np.array([3, 3, 2**62])]).tolist()
    [5, -1, -1]
    """
    return _reduced(np.add, counts, fits=sum(map(_highest, counts)) < 2**63)


def encoded(column: pa.ChunkedArray) -> Texts:
    """Return the texts of a column, in which each is decoded once; bytes that are no UTF-8 are replaced."""
    whole = column.dictionary_encode().unify_dictionaries().combine_chunks()
    distinct = whole.dictionary.cast(pa.binary()).to_pylist()
    codes = pc.fill_null(whole.indices, -1).to_numpy()
    return codes, [text.decode("utf-8", errors="replace") for text in distinct]


def texts(source: Source, ids: Int) -> tuple[NDArray[Any], list[str]]:
    """Return a code per row and the text of each code for a column of StringIds."""
    require(source, "StringIds", ("id", "value"))
    codes, distinct = pd.factorize(ids)
    names = source.strings(int(i) for i in distinct)
    return codes, [
        names.get(int(i), f"unnamed (string {i})" if i != -1 else "unnamed") for i in distinct
    ]


def unambiguous(pairs: Iterable[tuple[int, object]]) -> dict[int, str]:
    """Return the text of each id that has one text; what is no text is left out.

    >>> unambiguous([(1, "a"), (2, "b"), (2, "c"), (3, None), (4, b"d")])
    {1: 'a'}
    """
    texts: dict[int, set[str]] = {}
    for number, value in pairs:
        if isinstance(value, str):
            texts.setdefault(number, set()).add(value)
    return {number: values.pop() for number, values in texts.items() if len(values) == 1}


def process_of(global_id: Int) -> Int:
    """Return the process id in a globalPid or globalTid (bits 24 to 47); -1 stays -1."""
    process: Int = global_id >> 24
    process &= 0xFFFFFF
    if _lowest([global_id]) < 0:
        process[global_id < 0] = -1
    return process


def thread_of(global_tid: Int) -> Int:
    """Return the thread id in a globalTid (bits 0 to 23); -1 stays -1."""
    return np.where(global_tid < 0, np.int64(-1), global_tid & 0xFFFFFF)


def whole(value: object, name: str, notes: list[str], most: int = 2**63 - 1) -> int | None:
    """Return a value as a whole number from 0 to `most`; None, with a note, for anything but that and null.

    >>> notes = []
    >>> whole(108, "SMs", notes), whole(None, "SMs", notes), whole("many", "SMs", notes)
    (108, None, None)
    >>> notes
    ["SMs: 'many' is not a whole number of this quantity: read as not recorded"]
    """
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= most:
        return number
    if value is not None:
        notes.append(
            f"{name}: {shown(value)} is not a whole number of this quantity: read as not recorded"
        )
    return None


def text(value: object, name: str, notes: list[str]) -> str:
    """Return a value as text; the empty text, with a note, for anything but that and null."""
    if isinstance(value, str):
        return value
    if value is not None:
        notes.append(f"{name}: {shown(value)} is not text: read as not recorded")
    return ""


def shown(value: object) -> str:
    """Return a value from outside as a message may hold it: short, and without control characters."""
    written = ascii(value[:40] if isinstance(value, (str, bytes)) else value)
    return written if len(written) <= 60 else f"{written[:60]} ..."


# What the maps of many tables share.
INTERVAL: Reads = {
    "start_ns": column("start", missing=NEVER),
    "dur_ns": column("end", "start", by=difference, missing=NEVER),
}
THREAD: Reads = {
    "process": column("globalTid", by=process_of),
    "thread": column("globalTid", by=thread_of),
}

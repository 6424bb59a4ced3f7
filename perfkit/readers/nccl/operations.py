"""The collective that a name or a table of nccl-tests stands for, as COLLECTIVES spells it, and element types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

# In this order: the letters of a test's or a call's name that tell the operation.
NAMES = {
    "reducescatter": "reduce_scatter",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "gather": "gather",
    "scatter": "scatter",
    "reduce": "reduce",
}
# ncclDataType_t in its order, as nccl-tests spells it, with the bytes of an element (nccl.h; src/common.cu there).
DTYPES = (
    *(("int8", 1), ("uint8", 1), ("int32", 4), ("uint32", 4), ("int64", 8), ("uint64", 8)),
    *(("half", 2), ("float", 4), ("double", 8), ("bfloat16", 2), ("f8e4m3", 1), ("f8e5m2", 1)),
)
ELEMENT_BYTES = {**dict(DTYPES), "char": 1, "int": 4, "fp8_e4m3": 1, "fp8_e5m2": 1}
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")  # NCCL_ALGO_*, in order
PROTOCOLS = ("LL", "LL128", "Simple")
PARTED = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")  # count is a rank's part of the message


@dataclass(frozen=True)
class Timing:
    """One half of a row: out of place or in place; `wrong` is None where the result was not checked."""

    placement: str
    dur_ns: float
    algbw: float
    busbw: float
    wrong: float | None


@dataclass(frozen=True)
class Row:
    """A message size of a benchmark."""

    bytes: int
    count: int
    dtype: str
    redop: str
    root: int
    timings: tuple[Timing, ...]
    algorithm: str | None = None
    protocol: str | None = None


@cache
def operation(name: str) -> str | None:
    """Return the collective that a name tells, None if it is none of them.

    >>> [operation(name) for name in ("alltoall_perf", "ReduceScatter", "Recv", "hypercube_perf")]
    ['all_to_all', 'reduce_scatter', 'send_recv', None]
    """
    letters = re.sub(r"[^a-z]", "", name.lower())
    if letters in ("send", "recv"):
        return "send_recv"
    return next((canonical for part, canonical in NAMES.items() if part in letters), None)


def algorithm(word: str) -> str | None:
    """Return an algorithm, given by name or number, as COLLECTIVES spells it."""
    return _named(word, ALGORITHMS)


def protocol(word: str) -> str | None:
    """Return a protocol, given by name or number, as COLLECTIVES spells it."""
    return _named(word, PROTOCOLS)


def _named(word: str, names: tuple[str, ...]) -> str | None:
    if word.isdecimal():
        return names[int(word)] if int(word) < len(names) else None
    return next((name for name in names if name.replace("_", "") == word or name.upper() == word.upper()), None)


def candidates(rows: Sequence[Row], ranks: int | None) -> list[str]:
    """Return the collectives that a table can be of: by reduction, root, size per count, checks and bandwidths.

    References
    ----------
    NVIDIA/nccl-tests, src/*.cu: which of them reduce, have a root, count a rank's part of the message, and check the
    results in place; doc/PERFORMANCE.md for the factor between the bandwidths.
    """
    row = max(rows, key=lambda r: r.bytes)
    if row.dtype not in ELEMENT_BYTES or not row.bytes:
        return []
    reduces, rooted = row.redop not in ("", "none"), row.root >= 0
    parted = row.bytes > row.count * ELEMENT_BYTES[row.dtype]
    if rooted:
        return ["gather", "scatter"] if parted else ["reduce" if reduces else "broadcast"]
    if parted and reduces:
        return ["reduce_scatter"]
    both = ["all_gather", "all_to_all"] if parted else ["all_reduce", "send_recv"] if reduces else []
    checked = _checked_in_place(row)
    if both and checked is not None:
        return [both[0] if checked else both[1]]
    if both and reduces and ranks is not None and ranks > 2:
        best = max(row.timings, key=lambda t: t.busbw)
        return [both[0] if best.busbw > 1.15 * best.algbw else both[1]]  # at least 4/3 from three ranks on, or 1
    return both


def _checked_in_place(row: Row) -> bool | None:
    """Return whether results in place were checked; None where those out of place were not either."""
    wrong = {timing.placement: timing.wrong for timing in row.timings}
    if wrong.get("out_of_place") is None or "in_place" not in wrong:
        return None
    return wrong["in_place"] is not None

"""COLLECTIVES of a trace: kernels that say what they sent."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np
import pandas as pd

from perfkit import tables
from perfkit.readers.columns import category
from perfkit.readers.torch_trace.events import LARGEST, Columns, Event, Int, Spans, integers

# c10::ScalarType as PyTorch spells it: the name of the dtype and the bytes of an element.
ELEMENTS = {
    "Byte": ("uint8", 1),
    "Char": ("int8", 1),
    "Bool": ("bool", 1),
    "Short": ("int16", 2),
    "Int": ("int32", 4),
    "Long": ("int64", 8),
    "Half": ("float16", 2),
    "BFloat16": ("bfloat16", 2),
    "Float": ("float32", 4),
    "Double": ("float64", 8),
    "ComplexHalf": ("complex32", 4),
    "ComplexFloat": ("complex64", 8),
    "ComplexDouble": ("complex128", 16),
    "Float8_e4m3fn": ("float8_e4m3fn", 1),
    "Float8_e4m3fnuz": ("float8_e4m3fnuz", 1),
    "Float8_e5m2": ("float8_e5m2", 1),
    "Float8_e5m2fnuz": ("float8_e5m2fnuz", 1),
}
# In this order: the letters of ProcessGroupNCCL's names, without their underscores, that tell the operation.
OPERATIONS = {
    "reducescatter": "reduce_scatter",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "send": "send_recv",
    "recv": "send_recv",
    "gather": "gather",
    "scatter": "scatter",
    "reduce": "reduce",
}


class Collective(msgspec.Struct, gc=False):
    """What a kernel of NCCL or RCCL says about its message, since PyTorch 2.4."""

    collective: str | None = msgspec.field(default=None, name="Collective name")
    sent: int | None = msgspec.field(default=None, name="In msg nelems")
    received: int | None = msgspec.field(default=None, name="Out msg nelems")
    dtype: str | None = None
    ranks: int | None = msgspec.field(default=None, name="Group size")
    group: str | int | None = msgspec.field(default=None, name="Process Group Name")


def operation(name: str) -> str | None:
    """Return the collective in the one spelling of COLLECTIVES, None if it is none of them.

    Examples
    --------
    >>> [operation(name) for name in ("_allgather_base", "allreduce_coalesced", "all_to_allv", "wait")]
    ['all_gather', 'all_reduce', 'all_to_all', None]
    """
    letters = re.sub(r"[^a-z]", "", name.lower())
    return next((canonical for part, canonical in OPERATIONS.items() if part in letters), None)


def message_bytes(told: Collective) -> int | None:
    """Return the message size as nccl-tests defines it: what the largest buffer of a rank holds, of all ranks together.

    Of a gather or scatter only the root has the large buffer; elsewhere it is the rank's part times the
    number of ranks. None if not recorded.

    References
    ----------
    NVIDIA/nccl-tests, doc/PERFORMANCE.md and the ``size`` column of src/common.cu (the larger of both buffers).
    """
    known = [elements for elements in (told.sent, told.received) if elements is not None]
    if not known or told.dtype not in ELEMENTS:
        return None
    elements = max(known)
    if operation(told.collective or "") in ("gather", "scatter") and told.ranks:
        part = told.sent if operation(told.collective or "") == "gather" else told.received
        elements = max(elements, (part or 0) * told.ranks)
    size = elements * ELEMENTS[told.dtype][1]
    return size if 0 <= size <= LARGEST else None


def add_collectives(collectives: Spans, events: list[Event], told: Sequence[Collective], gpu: Int) -> None:
    """Append the kernels that tell a message size."""
    sizes = [message_bytes(t) if t.collective else None for t in told]
    rows = [row for row, size in enumerate(sizes) if size is not None]
    if not rows:
        return
    known = [told[row] for row in rows]
    collectives.add(
        [events[row] for row in rows],
        gpu=gpu[rows],
        bytes=integers(sizes[row] for row in rows),
        operation=collectives.codes("operation", [t.collective for t in known]),
        dtype=collectives.codes("dtype", [t.dtype for t in known]),
        group=collectives.codes("group", [None if t.group is None else str(t.group) for t in known]),
        ranks=integers(t.ranks for t in known),
    )


def collectives(spans: Spans, columns: Columns) -> pd.DataFrame:
    """Return COLLECTIVES: one row per kernel.

    A kernel's name ends in an algorithm and a protocol, but NCCL builds one kernel per collective and type that
    calls the others' code too, so that RING_LL in a name does not say what ran: both are missing.
    """
    rows = len(columns["start_ns"])
    nothing = category(np.full(rows, -1), [])
    dtypes = [ELEMENTS[dtype][0] for dtype in spans.values("dtype")]
    ranks = columns["ranks"]
    frame = {
        "rank": np.zeros(rows, "int32"),
        "gpu": columns["gpu"],
        "start_ns": pd.array(columns["start_ns"], dtype="Int64"),
        "operation": category(columns["operation"], [operation(name) for name in spans.values("operation")]),
        "bytes": columns["bytes"],
        "dtype": category(columns["dtype"], dtypes),
        "ranks": pd.arrays.IntegerArray(np.maximum(ranks, 0), ranks < 0),
        "dur_ns": columns["dur_ns"].astype(float),
        "algorithm": nothing,
        "protocol": nothing,
        "placement": nothing,
        "group": category(columns["group"], spans.values("group")),
        "source": category(np.zeros(rows, np.int64), ["trace"]),
    }
    return tables.COLLECTIVES.make(pd.DataFrame(frame, copy=False))

"""SAMPLES of a trace: what PyTorch's allocators held when they gave or took memory."""

from __future__ import annotations

import msgspec
import numpy as np
import pandas as pd

from perfkit import tables
from perfkit.readers.columns import category
from perfkit.readers.torch_trace.events import (
    UNKNOWN,
    Columns,
    Event,
    Spans,
    decoded,
    integers,
    quantities,
)
from perfkit.readers.torch_trace.header import Small

CPU = 0  # c10::DeviceType; CUDA is 1, HIP 6
METRICS = ["memory_allocated_bytes", "memory_reserved_bytes"]


class MemoryArguments(msgspec.Struct, gc=False):
    """What is read of a memory event's arguments."""

    device: Small | None = msgspec.field(default=None, name="Device Id")
    kind: int | None = msgspec.field(default=None, name="Device Type")
    allocated: int | None = msgspec.field(default=None, name="Total Allocated")
    reserved: int | None = msgspec.field(default=None, name="Total Reserved")


def add_memory(memory: Spans, events: list[Event]) -> None:
    """Append memory events, with totals or (in 2021) without."""
    arguments = decoded(events, MemoryArguments)
    memory.add(
        events,
        gpu=integers(-1 if a.kind == CPU or a.device is None else a.device for a in arguments),
        allocated=quantities(a.allocated for a in arguments),
        # The CPU allocator reserves nothing and reports 0.
        reserved=quantities(None if a.kind == CPU else a.reserved for a in arguments),
    )


def samples(columns: Columns) -> pd.DataFrame:
    """Return SAMPLES: bytes allocated and reserved on each device after every change, of the CPU as gpu -1."""
    value = np.concatenate([columns["allocated"], columns["reserved"]])
    known = value != UNKNOWN
    metric = np.repeat([0, 1], len(columns["allocated"]))[known]
    frame = {
        "rank": np.zeros(len(metric), "int32"),
        "gpu": np.tile(columns["gpu"], 2)[known],
        "time_ns": np.tile(columns["start_ns"], 2)[known],
        "metric": category(metric, METRICS),
        "value": value[known].astype(float),
    }
    return tables.SAMPLES.make(pd.DataFrame(frame, copy=False))

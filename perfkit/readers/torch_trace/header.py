"""CAPTURE and DEVICES from the header of a trace, SAMPLES of its memory, and COLLECTIVES of its kernels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pandas as pd

from perfkit import tables
from perfkit.readers.columns import capture_table, category, devices_table
from perfkit.readers.torch_trace.events import (
    LARGEST,
    UNKNOWN,
    Columns,
    Event,
    Int,
    Spans,
    decoded,
    integers,
    quantities,
)

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


Small = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Large = Annotated[int, msgspec.Meta(ge=0, le=2**62 - 1)]
AMD_WARP = 64  # threads; NVIDIA's is 32
WALL_CLOCK = 10**18  # ns since 1970 (the year 2001); less is not a wall clock but the machine's uptime or a test's


class Device(msgspec.Struct):
    """An entry of deviceProperties, or of computeProperties in traces of early 2021."""

    id: Small = 0
    name: str = ""
    memory: Large | None = msgspec.field(default=None, name="totalGlobalMem")
    major: int | None = msgspec.field(default=None, name="computeMajor")
    minor: int | None = msgspec.field(default=None, name="computeMinor")
    old_major: int | None = msgspec.field(default=None, name="major")
    old_minor: int | None = msgspec.field(default=None, name="minor")
    sms: Small | None = msgspec.field(default=None, name="numSms")
    old_sms: Small | None = msgspec.field(default=None, name="multiProcessorCount")
    warp: int | None = msgspec.field(default=None, name="warpSize")


class Distributed(msgspec.Struct):
    """Where the process stood among those of its job."""

    rank: Small | None = None


class Header(msgspec.Struct):
    """The keys of a trace that are used."""

    base: Large = msgspec.field(default=0, name="baseTimeNanoseconds")
    distributed: Distributed = msgspec.field(default_factory=Distributed, name="distributedInfo")
    devices: list[Device] = msgspec.field(default_factory=list, name="deviceProperties")
    old_devices: list[Device] = msgspec.field(default_factory=list, name="computeProperties")
    cuda: int | None = msgspec.field(default=None, name="cuda_runtime_version")
    hip: int | None = msgspec.field(default=None, name="hip_runtime_version")

    @property
    def rank(self) -> int | None:
        """The rank of the process, None if the trace has none or one that cannot be."""
        stated = self.distributed.rank
        return None if stated is None or stated < 0 else stated

    @property
    def version(self) -> str:
        """The version of the GPU's runtime, empty if not recorded: the trace does not hold that of PyTorch."""
        if self.cuda:
            return f"CUDA {self.cuda // 1000}.{self.cuda % 1000 // 10}"
        return f"HIP {self.hip // 10**7}.{self.hip // 10**5 % 100}" if self.hip else ""

    @property
    def amd(self) -> bool:
        """Whether the GPUs are AMD's."""
        return self.hip is not None or any(device.warp == AMD_WARP for device in self.devices)


CPU = 0  # c10::DeviceType; CUDA is 1, HIP 6
METRICS = ["memory_allocated_bytes", "memory_reserved_bytes"]


class MemoryArguments(msgspec.Struct, gc=False):
    """What is read of a memory event's arguments."""

    device: Small | None = msgspec.field(default=None, name="Device Id")
    kind: int | None = msgspec.field(default=None, name="Device Type")
    allocated: int | None = msgspec.field(default=None, name="Total Allocated")
    reserved: int | None = msgspec.field(default=None, name="Total Reserved")


def operation(name: str) -> str | None:
    """Return the collective in the one spelling of COLLECTIVES, None if it is none of them.

    >>> [operation(name) for name in ("_allgather_base", "allreduce_coalesced", "all_to_allv", "wait")]
    ['all_gather', 'all_reduce', 'all_to_all', None]
    """
    letters = re.sub(r"[^a-z]", "", name.lower())
    return next((canonical for part, canonical in OPERATIONS.items() if part in letters), None)


def message_bytes(told: Collective) -> int | None:
    """Return the message size as nccl-tests defines it: what the largest buffer of a rank holds, of all ranks together.

    Of a gather or scatter only the root has the large buffer; elsewhere it is the rank's part times the
    number of ranks. None if not recorded.

    Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md and the ``size`` column of src/common.cu (the larger of both buffers).
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


def header(keys: dict[str, Any]) -> Header:
    """Check the types of the keys that are used."""
    return msgspec.convert({key: value for key, value in keys.items() if value is not None}, Header)


def capture(told: Header, path: Path, first: int, last: int) -> pd.DataFrame:
    """Return CAPTURE: zero is the first event, on the wall clock if the trace's clock is one."""
    started = told.base + first
    t0 = started if started >= WALL_CLOCK else None
    return capture_table(path, "PyTorch profiler", told.version, t0, last - first)


def devices(told: Header) -> pd.DataFrame:
    """Return DEVICES: what the trace lists, which is every GPU the process could see."""
    listed = told.devices or told.old_devices
    said = {
        "gpu": [device.id for device in listed],
        "name": pd.array([device.name for device in listed], dtype="string"),
        "compute_capability": pd.array([_capability(device) for device in listed], dtype="string"),
        "sm_count": pd.array([device.sms or device.old_sms for device in listed], dtype="Int64"),
        "memory_bytes": pd.array([device.memory for device in listed], dtype="Int64"),
    }
    return devices_table(said, len(listed))


def _capability(device: Device) -> str:
    """Return CUDA's compute capability; AMD's numbers under the same keys mean another thing."""
    major = device.old_major if device.major is None else device.major
    minor = device.old_minor if device.minor is None else device.minor
    return "" if major is None or device.warp == AMD_WARP else f"{major}.{minor or 0}"


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

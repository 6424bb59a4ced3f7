"""What a trace says beside its events: rank, clock, versions, devices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pandas as pd

from perfkit import tables

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


def header(keys: dict[str, Any]) -> Header:
    """Check the types of the keys that are used."""
    return msgspec.convert({key: value for key, value in keys.items() if value is not None}, Header)


def capture(told: Header, path: Path, first: int, last: int) -> pd.DataFrame:
    """Return CAPTURE: zero is the first event, on the wall clock if the trace's clock is one."""
    started = told.base + first
    frame = pd.DataFrame(
        {
            "rank": [0],
            "tool": ["PyTorch profiler"],
            "tool_version": [told.version],
            "path": [str(path)],
            "t0_unix_ns": pd.array([started if started >= WALL_CLOCK else None], dtype="Int64"),
            "dur_ns": [last - first],
        }
    )
    return tables.CAPTURE.make(frame)


def devices(told: Header) -> pd.DataFrame:
    """Return DEVICES: what the trace lists, which is every GPU the process could see."""
    listed = told.devices or told.old_devices
    nothing = np.full(len(listed), np.nan)
    frame = pd.DataFrame(
        {
            "rank": pd.array([0] * len(listed), dtype="int32"),
            "gpu": [device.id for device in listed],
            "name": pd.array([device.name for device in listed], dtype="string"),
            "compute_capability": pd.array([_capability(device) for device in listed], dtype="string"),
            "sm_count": pd.array([device.sms or device.old_sms for device in listed], dtype="Int64"),
            "memory_bytes": pd.array([device.memory for device in listed], dtype="Int64"),
            "memory_bytes_per_s": nothing,
            "clock_hz": nothing,
        }
    )
    return tables.DEVICES.make(frame)


def _capability(device: Device) -> str:
    """Return CUDA's compute capability; AMD's numbers under the same keys mean another thing."""
    major = device.old_major if device.major is None else device.major
    minor = device.old_minor if device.minor is None else device.minor
    return "" if major is None or device.warp == AMD_WARP else f"{major}.{minor or 0}"

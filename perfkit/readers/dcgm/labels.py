"""Which host, GPU and MIG instance the labels of a Prometheus series name.

dcgm-exporter says ``gpu``, ``Hostname`` and, of a MIG instance, ``GPU_I_ID``; nvidia_gpu_exporter says ``uuid`` and in
its metrics ``gpu_info`` and ``index`` which GPU that is. A Prometheus server adds ``instance``, the address that it
scraped. Pods, containers and addresses go no further.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfkit.format import printable
from perfkit.readers.dcgm.fields import INDEX, INFO, METRICS, SMI
from perfkit.readers.dcgm.series import DIGITS, Device, Series, index
from perfkit.readers.dcgm.values import Values

Labels = Mapping[str, str]
PREFIXES = ("dcgm_", SMI)
# What the reader needs of a series; the rest (pods, containers, jobs) need not be kept.
NEEDED = (
    *("__name__", "gpu", "device", "UUID", "uuid", "modelName", "Hostname", "instance"),
    *("GPU_I_ID", "GPU_I_PROFILE", "DCGM_FI_DRIVER_VERSION", "index", "name", "compute_cap", "driver_version"),
)


class Raw(NamedTuple):
    """A Prometheus series."""

    name: str
    labels: Labels
    times_ns: NDArray[np.int64]
    values: Values


@dataclass
class Numbers:
    """The number of each GPU whose labels hold its UUID alone: the recorded index, else by order of appearance."""

    recorded: dict[str, int]
    given: dict[tuple[str, str], int] = field(default_factory=dict)

    def of(self, labels: Labels) -> int | None:
        """Return the number of the GPU with these labels, None if they say one that no GPU has."""
        gpu, device = labels.get("gpu", ""), labels.get("device", "").removeprefix("nvidia")
        if gpu or device.isdecimal():
            return index(gpu or device)
        uuid = labels.get("UUID") or labels.get("uuid", "")
        if uuid in self.recorded:
            return self.recorded[uuid]
        beside = sum(1 for host, _ in self.given if host == host_of(labels))
        return self.given.setdefault((host_of(labels), uuid), beside)


def host_of(labels: Labels) -> str:
    """Return the name that tells this node from others, empty if the labels do not say."""
    return labels.get("Hostname") or labels.get("instance", "")


def gathered(found: Sequence[Raw], notes: list[str]) -> tuple[list[Series], list[Device]]:
    """Return the series of known metrics and what the labels say the GPUs are."""
    numbers = Numbers(_recorded(found))
    series = []
    impossible: list[str] = []
    devices: dict[tuple[str, int], Device] = {}
    for one in found:
        labels = one.labels
        name = labels.get("name" if one.name == INFO else "modelName", "")
        if one.name not in METRICS and one.name != INFO:
            continue
        host, gpu, instance = host_of(labels), numbers.of(labels), labels.get("GPU_I_ID", "")
        if gpu is None:
            impossible.append(labels.get("gpu") or labels["device"])
            continue
        if name and not instance:
            devices[host, gpu] = Device(host, gpu, name, labels.get("compute_cap", ""))
        if one.name != INFO:
            series.append(Series(METRICS[one.name], host, gpu, one.times_ns, one.values, instance))
    if impossible:
        example = printable(impossible[0], 20)
        notes.append(f"series of GPUs with a number that cannot be are left out ({len(impossible)}, such as {example})")
    return series, list(devices.values())


def _recorded(found: Sequence[Raw]) -> dict[str, int]:
    """Return the index of each UUID that nvidia_gpu_exporter names."""
    recorded: dict[str, int] = {}
    for one in found:
        uuid = one.labels.get("uuid", "")
        named = index(one.labels.get("index", "")) if one.name == INFO else None
        if named is not None:
            recorded[uuid] = named
        elif one.name == INDEX and len(one.values) and 0 <= one.values[0] < 10**DIGITS:
            recorded.setdefault(uuid, int(one.values[0]))
    return recorded


def driver(found: Sequence[Raw]) -> str:
    """Return the driver's version, empty if no label says it."""
    said = (one.labels.get("DCGM_FI_DRIVER_VERSION") or one.labels.get("driver_version") for one in found)
    return next((version for version in said if version), "")


def unknown(names: Iterable[str]) -> str:
    """Name the GPU metrics that are not read, in a few words."""
    ours = {name for name in names if name.casefold().startswith(PREFIXES)}
    left = sorted(ours - set(METRICS) - {INFO, INDEX})
    return ", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")

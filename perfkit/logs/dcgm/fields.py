"""What a log of DCGM says: its fields, and the host, GPU and MIG instance that a series names.

Sources: ``dcgmlib/dcgm_fields.h`` and ``dcgm_fields.cpp`` of NVIDIA/DCGM for numbers, names, units
and the columns of ``dcgmi dmon``; DCGM 4.6 renamed many fields and keeps the old names as aliases
(its ``GPU_UTIL_RATIO`` is still a percentage). dcgm-exporter's metrics carry the fields' names;
version 1 had names of its own (``pkg/dcgm/legacy_fields.csv`` of NVIDIA/go-dcgm).

dcgm-exporter says ``gpu``, ``Hostname`` and, of a MIG instance, ``GPU_I_ID``; nvidia_gpu_exporter
says ``uuid`` and in its metrics ``gpu_info`` and ``index`` which GPU that is. A Prometheus server
adds ``instance``, the address that it scraped. Pods, containers and addresses go no further.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import numpy as np

from perfkit.analysis.intervals import Float, Int
from perfkit.format import printable, several
from perfkit.readers.text import csv_rows

PERCENT = 0.01
# stands for the four metrics that `perfkit.logs.dcgm.reasons` makes of one mask
REASONS = "event reasons"

RATIOS = frozenset(range(1001, 1009))

SMI = "nvidia_smi_"

INFO, INDEX = f"{SMI}gpu_info", f"{SMI}index"  # which GPU a UUID is, and what it is called

Labels = Mapping[str, str]

PREFIXES = ("dcgm_", SMI)

# What the reader needs of a series; the rest (pods, containers, jobs) need not be kept.
NEEDED = (
    *("__name__", "gpu", "device", "UUID", "uuid", "modelName", "Hostname", "instance"),
    *(
        "GPU_I_ID",
        "GPU_I_PROFILE",
        "DCGM_FI_DRIVER_VERSION",
        "index",
        "name",
        "compute_cap",
        "driver_version",
    ),
)

Values = Float

DIGITS = 4  # of the number of a GPU on its node
NEVER = np.iinfo(np.int64).min  # stands for a time that is none


class Field(NamedTuple):
    """A quantity as a tool calls it; ``short`` is its column in ``dcgmi dmon``, empty where it is not known."""

    number: int
    short: str
    names: tuple[str, ...]
    metric: str
    scale: float = 1.0


# In fields.csv: where two fields give one metric, the first that was recorded is read. The limit
# that was asked for (160) is the enforced one unless something lower applies. DCGM divides NVLink's
# difference in KiB by seconds and by 1000 (ReadAndCacheNvLinkBandwidth in DcgmCacheManager.cpp).
# Last are the metrics of utkuozdemir/nvidia_gpu_exporter: what `nvidia-smi --query-gpu` says, in
# base units.
FIELDS = tuple(
    Field(
        int(row["number"] or 0),
        row["dmon"],
        tuple(row["names"].split()),
        row["metric"],
        float(row["scale"] or 1),
    )
    for row in csv_rows(__file__, "fields.csv")
)
METRICS: Mapping[str, Field] = {
    name: field for field in FIELDS for name in field.names
}  # by Prometheus metric
BY_COLUMN: Mapping[str, Field] = {field.short: field for field in FIELDS if field.short}
ORDER: Mapping[Field, int] = {field: i for i, field in enumerate(FIELDS)}


@dataclass(frozen=True)
class Series:
    """The values of one field, NaN where there is none, of one GPU or of an instance of it."""

    field: Field
    host: str
    gpu: int
    times_ns: Int
    values: Values
    instance: str = ""


@dataclass(frozen=True)
class Device:
    """What a log says a GPU is."""

    host: str
    gpu: int
    name: str
    compute_capability: str = ""


@dataclass(frozen=True)
class Reading:
    """A log as read; times are ns since 1970 if ``timed``, else since its first sample."""

    tool: str
    series: Sequence[Series]
    timed: bool
    version: str = ""
    devices: Sequence[Device] = ()
    notes: list[str] = field(default_factory=list)


def index(text: str) -> int | None:
    """Return the number of a GPU on its node, None if `text` is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= DIGITS else None


def decimal(text: str) -> float | None:
    """Return the number that a tool printed, None if it is none: Python would read ``1_000`` and foreign digits too."""
    if "_" in text or not text.isascii():
        return None
    try:
        return float(text)
    except ValueError:
        return None


class Raw(NamedTuple):
    """A Prometheus series."""

    name: str
    labels: Labels
    times_ns: Int
    values: Values


@dataclass
class Numbers:
    """The number of each GPU: the one that its labels say, else that of its UUID, else the first that is free."""

    of_uuid: dict[str, int]
    taken: set[tuple[str, int]]
    given: dict[tuple[str, str], int] = field(default_factory=dict)

    def of(self, labels: Labels) -> int | None:
        """Return the number of the GPU with these labels, None if they say one that no GPU has."""
        if number_in(labels):
            return index(number_in(labels))
        host, uuid = host_of(labels), uuid_of(labels)
        if uuid in self.of_uuid:
            return self.of_uuid[uuid]
        if (host, uuid) not in self.given:
            used = self.taken if uuid else set()
            self.given[host, uuid] = next(n for n in count() if (host, n) not in used)
            self.taken.add((host, self.given[host, uuid]))
        return self.given[host, uuid]


def number_in(labels: Labels) -> str:
    """Return the number of the GPU as labels say it, empty if they do not."""
    device = labels.get("device", "").removeprefix("nvidia")
    return labels.get("gpu", "") or (device if device.isdecimal() else "")


def uuid_of(labels: Labels) -> str:
    """Return the UUID of the GPU, empty if the labels do not say it."""
    return labels.get("UUID") or labels.get("uuid", "")


def host_of(labels: Labels) -> str:
    """Return the name that tells this node from others, empty if the labels do not say."""
    return labels.get("Hostname") or labels.get("instance", "")


def gathered(listed: Sequence[Raw], notes: list[str]) -> tuple[list[Series], list[Device]]:
    """Return the series of known metrics and what the labels say the GPUs are."""
    numbers = _numbers(listed)
    series = []
    impossible: list[str] = []
    devices: dict[tuple[str, int], Device] = {}
    owners: dict[tuple[str, int], set[str]] = {}
    for one in listed:
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
            if uuid_of(labels) and not instance:
                owners.setdefault((host, gpu), set()).add(
                    uuid_of(labels).casefold().removeprefix("gpu-")
                )
            series.append(Series(METRICS[one.name], host, gpu, one.times_ns, one.values, instance))
    if impossible:
        example = printable(impossible[0], 20)
        notes.append(
            f"series of GPUs with a number that cannot be are left out ({len(impossible)}, such as "
            f"{example})"
        )
    notes += _numbered_twice(owners)
    return series, list(devices.values())


def _numbered_twice(owners: Mapping[tuple[str, int], set[str]]) -> list[str]:
    """Note GPUs of several UUIDs that claim one number of one host."""
    twice = [(gpu, len(uuids)) for (_, gpu), uuids in owners.items() if len(uuids) > 1]
    if not twice:
        return []
    gpu, count = twice[0]
    others = f"; so are those of {len(twice) - 1} other numbers" if len(twice) > 1 else ""
    gpus = "two" if count == 2 else count
    return [
        f"{gpus} GPUs are numbered {gpu} on one host: their values are read as those of one "
        f"GPU{others}"
    ]


def _numbers(series: Sequence[Raw]) -> Numbers:
    """Return the numbers that the series of a log state: beside a UUID, or in what nvidia_gpu_exporter says of it."""
    of_uuid: dict[str, int] = {}
    for one in series:
        uuid = one.labels.get("uuid", "")
        named = index(one.labels.get("index", "")) if one.name == INFO else None
        if named is not None:
            of_uuid[uuid] = named
        elif one.name == INDEX and len(one.values) and 0 <= one.values[0] < 10**DIGITS:
            of_uuid.setdefault(uuid, int(one.values[0]))
    taken: set[tuple[str, int]] = set()
    for one in series:
        uuid, number = uuid_of(one.labels), index(number_in(one.labels))
        if number is not None and uuid:
            of_uuid.setdefault(uuid, number)
        if number is not None or uuid in of_uuid:
            taken.add((host_of(one.labels), of_uuid[uuid] if number is None else number))
    return Numbers(of_uuid, taken)


def driver(listed: Sequence[Raw]) -> str:
    """Return the driver's version, empty if no label says it."""
    versions = (
        one.labels.get("DCGM_FI_DRIVER_VERSION") or one.labels.get("driver_version")
        for one in listed
    )
    return next((version for version in versions if version), "")


def unknown(names: Iterable[str]) -> str:
    """Name the GPU metrics that are not read, in a few words."""
    left = sorted(
        {name for name in names if name.casefold().startswith(PREFIXES)}
        - set(METRICS)
        - {INFO, INDEX}
    )
    return several(left, 3)

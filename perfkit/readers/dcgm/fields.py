"""What a log of DCGM says: its fields, and the host, GPU and MIG instance that a series names.

Sources: ``dcgmlib/dcgm_fields.h`` and ``dcgm_fields.cpp`` of NVIDIA/DCGM for numbers, names, units and the columns of
``dcgmi dmon``; DCGM 4.6 renamed many fields and keeps the old names as aliases (its ``GPU_UTIL_RATIO`` is still a
percentage). dcgm-exporter's metrics carry the fields' names; version 1 had names of its own
(``pkg/dcgm/legacy_fields.csv`` of NVIDIA/go-dcgm).

dcgm-exporter says ``gpu``, ``Hostname`` and, of a MIG instance, ``GPU_I_ID``; nvidia_gpu_exporter says ``uuid`` and in
its metrics ``gpu_info`` and ``index`` which GPU that is. A Prometheus server adds ``instance``, the address that it
scraped. Pods, containers and addresses go no further.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfkit.format import printable

MIB = 2**20
PERCENT = 0.01
# DCGM divides a difference in KiB by seconds and by 1000 (ReadAndCacheNvLinkBandwidth in DcgmCacheManager.cpp).
NVLINK = 1000 * 1024
REASONS = "event reasons"  # stands for the four metrics that `perfkit.readers.dcgm.reasons` makes of one mask

RATIOS = frozenset(range(1001, 1009))

# Names of dcgm-exporter 1, without dcgm_.
LEGACY = {
    "gpu_utilization": 203,
    "mem_copy_utilization": 204,
    "enc_utilization": 206,
    "dec_utilization": 207,
    "gpu_temp": 150,
    "memory_temp": 140,
    "sm_clock": 100,
    "memory_clock": 101,
    "power_usage": 155,
    "total_energy_consumption": 156,
    "power_violation": 240,
    "thermal_violation": 241,
    "fb_free": 251,
    "fb_used": 252,
    "xid_errors": 230,
    "pcie_replay_counter": 202,
    "pcie_tx_throughput": 200,
    "pcie_rx_throughput": 201,
    "nvlink_bandwidth_total": 449,
    "ecc_sbe_volatile_total": 310,
    "ecc_dbe_volatile_total": 311,
    "ecc_sbe_aggregate_total": 312,
    "ecc_dbe_aggregate_total": 313,
}

SMI = "nvidia_smi_"

INFO, INDEX = f"{SMI}gpu_info", f"{SMI}index"  # which GPU a UUID is, and what it is called

Labels = Mapping[str, str]

PREFIXES = ("dcgm_", SMI)

# What the reader needs of a series; the rest (pods, containers, jobs) need not be kept.
NEEDED = (
    *("__name__", "gpu", "device", "UUID", "uuid", "modelName", "Hostname", "instance"),
    *("GPU_I_ID", "GPU_I_PROFILE", "DCGM_FI_DRIVER_VERSION", "index", "name", "compute_cap", "driver_version"),
)

Values = NDArray[np.float64]

DIGITS = 4  # of the number of a GPU on its node
NEVER = np.iinfo(np.int64).min  # stands for a time that is none
LATEST_NS = 2**62  # in the year 2116: differences of such times fit int64


class Field(NamedTuple):
    """A quantity as a tool calls it; ``short`` is its column in ``dcgmi dmon``, empty where it is not known."""

    number: int
    short: str
    names: tuple[str, ...]
    metric: str
    scale: float = 1.0


# Where two fields give one metric, the first that was recorded is read. The limit that was asked for (160) is the
# enforced one unless something lower applies.
DCGM = (
    Field(92, "B1USE", ("DEV_BAR1_USED",), "bar1_used_bytes", MIB),
    Field(1601, "", ("DEV_BAR1_USED_BYTES",), "bar1_used_bytes"),
    Field(100, "SMCLK", ("DEV_SM_CLOCK",), "sm_clock_hz", 1e6),
    Field(1603, "", ("DEV_SM_CLOCK_HERTZ",), "sm_clock_hz"),
    Field(101, "MMCLK", ("DEV_MEM_CLOCK",), "memory_clock_hz", 1e6),
    Field(1604, "", ("DEV_MEMORY_CLOCK_HERTZ",), "memory_clock_hz"),
    Field(112, "DVCCTR", ("DEV_CLOCKS_EVENT_REASONS", "DEV_CLOCK_THROTTLE_REASONS"), REASONS),
    Field(113, "SMMAX", ("DEV_MAX_SM_CLOCK",), "sm_max_clock_hz", 1e6),
    Field(1608, "", ("DEV_SM_MAX_CLOCK_HERTZ",), "sm_max_clock_hz"),
    Field(140, "MMTMP", ("DEV_MEMORY_TEMP", "DEV_MEMORY_TEMP_CELSIUS"), "memory_temperature_c"),
    Field(150, "TMPTR", ("DEV_GPU_TEMP", "DEV_GPU_TEMP_CELSIUS"), "temperature_c"),
    Field(152, "GGMOT", ("DEV_GPU_MAX_OP_TEMP", "DEV_GPU_MAX_OP_TEMP_CELSIUS"), "temperature_max_c"),
    Field(153, "GTLIMIT", ("DEV_GPU_TEMP_LIMIT", "DEV_GPU_TEMP_MARGIN_CELSIUS"), "temperature_margin_c"),
    Field(155, "POWER", ("DEV_POWER_USAGE", "DEV_BOARD_POWER_WATTS"), "power_w"),
    Field(156, "TOTEC", ("DEV_TOTAL_ENERGY_CONSUMPTION",), "energy_j", 1e-3),
    Field(1611, "", ("DEV_GPU_ENERGY_JOULES_TOTAL",), "energy_j"),
    Field(158, "SDTMP", ("DEV_SLOWDOWN_TEMP", "DEV_GPU_TEMP_SLOWDOWN_CELSIUS"), "temperature_slowdown_c"),
    Field(159, "SHTMP", ("DEV_SHUTDOWN_TEMP", "DEV_GPU_TEMP_SHUTDOWN_CELSIUS"), "temperature_shutdown_c"),
    Field(164, "EPLMT", ("DEV_ENFORCED_POWER_LIMIT", "DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS"), "power_limit_w"),
    Field(160, "PMLMT", ("DEV_POWER_MGMT_LIMIT", "DEV_BOARD_POWER_LIMIT_REQUESTED_WATTS"), "power_limit_w"),
    Field(191, "FANSP", ("DEV_FAN_SPEED",), "fan_frac", PERCENT),
    Field(1612, "", ("DEV_FAN_SPEED_RATIO",), "fan_frac"),
    Field(202, "RPCTR", ("DEV_PCIE_REPLAY_COUNTER", "DEV_PCIE_REPLAY_TOTAL"), "pcie_replay_count"),
    Field(203, "GPUTL", ("DEV_GPU_UTIL", "DEV_GPU_UTIL_RATIO"), "gpu_busy_frac", PERCENT),
    Field(204, "MCUTL", ("DEV_MEM_COPY_UTIL",), "memory_busy_frac", PERCENT),
    Field(206, "ECUTL", ("DEV_ENC_UTIL",), "encoder_busy_frac", PERCENT),
    Field(207, "DCUTL", ("DEV_DEC_UTIL",), "decoder_busy_frac", PERCENT),
    Field(230, "XIDER", ("DEV_XID_ERRORS", "DEV_XID_ERROR"), "xid_count"),
    Field(240, "PVIOL", ("DEV_POWER_VIOLATION", "DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS"), "power_violation_ns"),
    Field(241, "TVIOL", ("DEV_THERMAL_VIOLATION",), "thermal_violation_ns"),
    Field(250, "FBTTL", ("DEV_FB_TOTAL",), "memory_total_bytes", MIB),
    Field(251, "FBFRE", ("DEV_FB_FREE",), "memory_free_bytes", MIB),
    Field(252, "FBUSD", ("DEV_FB_USED",), "memory_used_bytes", MIB),
    Field(253, "", ("DEV_FB_RESERVED",), "driver_reserved_bytes", MIB),
    Field(310, "ESVTL", ("DEV_ECC_SBE_VOL_TOTAL",), "ecc_corrected_count"),
    Field(311, "EDVTL", ("DEV_ECC_DBE_VOL_TOTAL",), "ecc_uncorrected_count"),
    Field(312, "ESATL", ("DEV_ECC_SBE_AGG_TOTAL",), "ecc_corrected_lifetime_count"),
    Field(313, "EDATL", ("DEV_ECC_DBE_AGG_TOTAL",), "ecc_uncorrected_lifetime_count"),
    Field(449, "NBWLT", ("DEV_NVLINK_BANDWIDTH_TOTAL", "DEV_NVLINK_THROUGHPUT_TOTAL"), "nvlink_bytes_per_s", NVLINK),
    Field(1001, "GRACT", ("PROF_GR_ENGINE_ACTIVE", "PROF_GR_ENGINE_UTIL_RATIO"), "graphics_active_frac"),
    Field(1002, "SMACT", ("PROF_SM_ACTIVE", "PROF_SM_UTIL_RATIO"), "sm_active_frac"),
    Field(1003, "SMOCC", ("PROF_SM_OCCUPANCY", "PROF_SM_OCCUPANCY_RATIO"), "sm_occupancy_frac"),
    Field(1004, "TENSO", ("PROF_PIPE_TENSOR_ACTIVE", "PROF_TENSOR_UTIL_RATIO"), "tensor_active_frac"),
    Field(1005, "DRAMA", ("PROF_DRAM_ACTIVE", "PROF_DRAM_UTIL_RATIO"), "dram_active_frac"),
    Field(1006, "FP64A", ("PROF_PIPE_FP64_ACTIVE", "PROF_FP64_UTIL_RATIO"), "fp64_active_frac"),
    Field(1007, "FP32A", ("PROF_PIPE_FP32_ACTIVE", "PROF_FP32_UTIL_RATIO"), "fp32_active_frac"),
    Field(1008, "FP16A", ("PROF_PIPE_FP16_ACTIVE", "PROF_FP16_UTIL_RATIO"), "fp16_active_frac"),
    Field(1009, "PCITX", ("PROF_PCIE_TX_BYTES",), "pcie_tx_bytes_per_s"),
    Field(1010, "PCIRX", ("PROF_PCIE_RX_BYTES",), "pcie_rx_bytes_per_s"),
    Field(200, "TXTPT", ("DEV_PCIE_TX_THROUGHPUT",), "pcie_tx_bytes_per_s", 1000),
    Field(201, "RXTPT", ("DEV_PCIE_RX_THROUGHPUT",), "pcie_rx_bytes_per_s", 1000),
    Field(1011, "NVLTX", ("PROF_NVLINK_TX_BYTES",), "nvlink_tx_bytes_per_s"),
    Field(1012, "NVLRX", ("PROF_NVLINK_RX_BYTES",), "nvlink_rx_bytes_per_s"),
)


# utkuozdemir/nvidia_gpu_exporter: what `nvidia-smi --query-gpu` says, in base units.
EXPORTED = (
    Field(0, "", ("utilization_gpu_ratio",), "gpu_busy_frac"),
    Field(0, "", ("utilization_memory_ratio",), "memory_busy_frac"),
    Field(0, "", ("utilization_encoder_ratio",), "encoder_busy_frac"),
    Field(0, "", ("utilization_decoder_ratio",), "decoder_busy_frac"),
    Field(0, "", ("utilization_jpeg_ratio",), "jpeg_busy_frac"),
    Field(0, "", ("utilization_ofa_ratio",), "ofa_busy_frac"),
    Field(0, "", ("power_draw_watts",), "power_w"),
    Field(0, "", ("enforced_power_limit_watts",), "power_limit_w"),
    Field(0, "", ("power_limit_watts",), "power_limit_w"),
    Field(0, "", ("temperature_gpu",), "temperature_c"),
    Field(0, "", ("temperature_memory",), "memory_temperature_c"),
    Field(0, "", ("temperature_gpu_tlimit",), "temperature_margin_c"),
    Field(0, "", ("fan_speed_ratio",), "fan_frac"),
    Field(0, "", ("clocks_current_sm_clock_hz",), "sm_clock_hz"),
    Field(0, "", ("clocks_max_sm_clock_hz",), "sm_max_clock_hz"),
    Field(0, "", ("clocks_current_memory_clock_hz",), "memory_clock_hz"),
    Field(0, "", ("memory_used_bytes",), "memory_used_bytes"),
    Field(0, "", ("memory_free_bytes",), "memory_free_bytes"),
    Field(0, "", ("memory_total_bytes",), "memory_total_bytes"),
    Field(0, "", ("memory_reserved_bytes",), "driver_reserved_bytes"),
    Field(0, "", ("clocks_event_reasons_active", "clocks_throttle_reasons_active"), REASONS),
    Field(0, "", ("ecc_errors_corrected_volatile_total",), "ecc_corrected_count"),
    Field(0, "", ("ecc_errors_uncorrected_volatile_total",), "ecc_uncorrected_count"),
    Field(0, "", ("ecc_errors_corrected_aggregate_total",), "ecc_corrected_lifetime_count"),
    Field(0, "", ("ecc_errors_uncorrected_aggregate_total",), "ecc_uncorrected_lifetime_count"),
)


def _metrics() -> dict[str, Field]:
    numbered = {field.number: field for field in DCGM}
    return {
        **{f"DCGM_FI_{name}": field for field in DCGM for name in field.names},
        **{f"dcgm_{name}": numbered[number] for name, number in LEGACY.items()},
        **{f"{SMI}{name}": field for field in EXPORTED for name in field.names},
    }


METRICS: Mapping[str, Field] = _metrics()  # by the name of the Prometheus metric
BY_COLUMN: Mapping[str, Field] = {field.short: field for field in DCGM if field.short}
ORDER: Mapping[Field, int] = {field: i for i, field in enumerate((*DCGM, *EXPORTED))}


@dataclass(frozen=True)
class Series:
    """The values of one field, NaN where there is none, of one GPU or of an instance of it."""

    field: Field
    host: str
    gpu: int
    times_ns: NDArray[np.int64]
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
    times_ns: NDArray[np.int64]
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
                owners.setdefault((host, gpu), set()).add(uuid_of(labels).casefold().removeprefix("gpu-"))
            series.append(Series(METRICS[one.name], host, gpu, one.times_ns, one.values, instance))
    if impossible:
        example = printable(impossible[0], 20)
        notes.append(f"series of GPUs with a number that cannot be are left out ({len(impossible)}, such as {example})")
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
    return [f"{gpus} GPUs are numbered {gpu} on one host: their values are read as those of one GPU{others}"]


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
    versions = (one.labels.get("DCGM_FI_DRIVER_VERSION") or one.labels.get("driver_version") for one in listed)
    return next((version for version in versions if version), "")


def unknown(names: Iterable[str]) -> str:
    """Name the GPU metrics that are not read, in a few words."""
    left = sorted({name for name in names if name.casefold().startswith(PREFIXES)} - set(METRICS) - {INFO, INDEX})
    return ", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")

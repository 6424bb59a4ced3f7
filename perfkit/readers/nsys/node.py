"""CAPTURE, DEVICES and SAMPLES of an Nsight Systems export, and what it did not record."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from perfkit import tables
from perfkit.profile import Missing
from perfkit.readers.columns import capture_table, category, devices_table
from perfkit.readers.nsys.sources import LONGEST, NEVER, Columns, Int, Source, absent, ints, require, shown, text, whole

ACTIVITY = {
    "KERNELS": ("CUPTI_ACTIVITY_KIND_KERNEL",),
    "COPIES": ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"),
    "API_CALLS": ("CUPTI_ACTIVITY_KIND_RUNTIME",),
    "OS_CALLS": ("OSRT_API",),
    "RANGES": ("NVTX_EVENTS",),
    "SAMPLES": ("GPU_METRICS",),
    "DEVICES": ("TARGET_INFO_GPU", "TARGET_INFO_CUDA_GPU"),
}
REMEDIES = {
    "KERNELS": ("no CUDA kernels", "nsys profile --trace=cuda"),
    "COPIES": ("no copies between host and device", "nsys profile --trace=cuda"),
    "API_CALLS": ("no CUDA calls of the CPU, so idle time has no cause", "nsys profile --trace=cuda"),
    "RANGES": (
        "no NVTX ranges, so no phases of the program",
        "nsys profile --trace=cuda,nvtx, and NVTX in the program",
    ),
    "SAMPLES": ("no GPU metrics (SM activity, DRAM bandwidth)", "nsys profile --gpu-metrics-devices=all"),
    "DEVICES": ("no description of the GPUs, so no peaks", "nsys export of the original report, which holds it"),
}
NEWEST_SCHEMA = 3
HOST = "Hostname"  # in TARGET_INFO_SYSTEM_ENV, of whose other entries nothing is kept
MARK, PUSH_POP, START_END = 34, 59, 60  # ENUM_NSYS_EVENT_TYPE
VERSION, SCHEMA = "EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION"  # entries of META_DATA_EXPORT
GPU_INFO = (
    *("id", "deviceId", "cuDevice", "name", "computeMajor", "computeMinor", "smCount"),
    *("totalMemory", "memoryBandwidth", "clockRate"),
)
RATES = ("memory_bytes_per_s", "clock_hz")
INT32 = 2**31 - 1
LATEST = 7_258_118_400 * 10**9  # the year 2200, ns since 1970
LONGEST_NAME = 200  # characters of a metric's name that are read

CANONICAL = {
    "dram read throughput": "dram_read_frac",
    "dram write throughput": "dram_write_frac",
    "gpc clock frequency": "gpc_clock_hz",
    "sys clock frequency": "sys_clock_hz",
    "pcie rx throughput": "pcie_rx_frac",
    "pcie tx throughput": "pcie_tx_frac",
}


@dataclass(frozen=True)
class Ordinals:
    """How a process's device number and a metric set's GPU number become the node's CUDA ordinal."""

    by_process: dict[tuple[int, int], int]
    by_id: dict[int, int]

    def of_process(self, process: Int, device: Int) -> Int:
        """Return the ordinal per row; a device that is not listed keeps the process's own number."""
        gpu = device.copy()
        for (pid, number), ordinal in self.by_process.items():
            if ordinal != number:
                gpu[(process == pid) & (device == number)] = ordinal
        return gpu


def ordinals(source: Source, gpus: list[Gpu], notes: list[str]) -> Ordinals:
    """Read the numbering: deviceId is the ordinal in the process, TARGET_INFO_CUDA_DEVICE maps it to a GPU."""
    table = "TARGET_INFO_CUDA_DEVICE"
    by_id = {gpu.number: gpu.ordinal for gpu in gpus}
    by_process = {}
    for row in source.rows(table, ("gpuId", "cudaId", "pid")):
        gpu, device, pid = (whole(value, f"{table}.{name}", notes, most=INT32) for name, value in row.items())
        if device is not None and pid is not None:
            by_process[pid, device] = device if gpu is None else by_id.get(gpu, device)
    return Ordinals(by_process, by_id)


@dataclass(frozen=True)
class Gpu:
    """A CUDA device as the export lists it; what it does not say is None or empty."""

    number: int
    ordinal: int
    numbered: bool  # whether the export states the ordinal
    name: str
    capability: str
    sm_count: int | None
    memory_bytes: int | None
    memory_bytes_per_s: int | None
    clock_hz: int | None


def gpus(source: Source, notes: list[str]) -> list[Gpu]:
    """Return the CUDA devices listed, each with its ordinal; graphics adapters without SMs are left out."""
    table = "TARGET_INFO_GPU" if source.has_rows("TARGET_INFO_GPU") else "TARGET_INFO_CUDA_GPU"
    listed = (_gpu(row, table, notes) for row in source.rows(table, GPU_INFO))
    found = [gpu for gpu in listed if gpu is not None]
    distinct = len({gpu.ordinal for gpu in found}) == len(found)
    return found if distinct else [replace(gpu, ordinal=gpu.number) for gpu in found]


def _gpu(row: dict[str, Any], table: str, notes: list[str]) -> Gpu | None:
    """Return a CUDA device as listed; None for what is none, or has no number."""

    def number(name: str, least: int = 0, most: int = INT32) -> int | None:
        return whole(row[name], f"{table}.{name}", notes, least, most)

    sm_count = number("smCount")
    if sm_count == 0:
        return None
    given = number("id") if row["id"] is not None else number("deviceId")
    if given is None:
        if row["id"] is not None or row["deviceId"] is not None:
            notes.append(f"{table}: a GPU without a number is left out")
        return None
    ordinal = number("cuDevice")
    major, minor = number("computeMajor", most=99), number("computeMinor", most=99)
    return Gpu(
        number=given,
        ordinal=given if ordinal is None else ordinal,
        numbered=ordinal is not None,
        name=text(row["name"], f"{table}.name", notes),
        capability=f"{major}.{minor}" if major and minor is not None else "",
        sm_count=sm_count,
        memory_bytes=number("totalMemory", most=2**63 - 1),
        memory_bytes_per_s=number("memoryBandwidth", most=2**63 - 1),
        clock_hz=number("clockRate", most=2**63 - 1),
    )


def devices(listed: list[Gpu]) -> pd.DataFrame:
    """Return DEVICES: the CUDA devices of the node."""
    rates = {rate: np.array([getattr(g, rate) or np.nan for g in listed], float) for rate in RATES}
    said = {
        "gpu": pd.array([g.ordinal for g in listed], dtype="int32"),
        "name": pd.array([g.name for g in listed], dtype="string"),
        "compute_capability": pd.array([g.capability for g in listed], dtype="string"),
        "sm_count": pd.array([g.sm_count for g in listed], dtype="Int64"),
        "memory_bytes": pd.array([g.memory_bytes for g in listed], dtype="Int64"),
        **rates,
    }
    return devices_table(said, len(listed))


def capture(source: Source, path: Path, notes: list[str]) -> pd.DataFrame:
    """Return CAPTURE: one row that says which nsys exported the file, when it starts and how long it is."""
    (started,) = source.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))[:1] or [{"utcEpochNs": None}]
    (lasted,) = source.rows("ANALYSIS_DETAILS", ("duration",))[:1] or [{"duration": None}]
    t0 = whole(started["utcEpochNs"], "TARGET_INFO_SESSION_START_TIME.utcEpochNs", notes, most=LATEST)
    duration = whole(lasted["duration"], "ANALYSIS_DETAILS.duration", notes, most=LONGEST)
    version = text(_meta(source, VERSION), VERSION, notes)
    return capture_table(path, "Nsight Systems", version, t0, _last_end(source) if duration is None else duration)


def _meta(source: Source, name: str) -> object:
    """Return an entry of what the file says of itself; None if it has none."""
    tables = ("META_DATA_EXPORT", "EXPORT_META_DATA", "META_DATA_CAPTURE")
    rows = [r for t in tables for r in source.rows(t, ("name", "value"))]
    return next((r["value"] for r in rows if r["name"] == name), None)


def host(source: Source) -> str:
    """Return the name of the host that was recorded; empty if the export does not say, or names several."""
    entries = source.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value"))
    names = {row["value"] for row in entries if row["name"] == HOST and isinstance(row["value"], str)}
    return names.pop() if len(names) == 1 else ""


def _last_end(source: Source) -> int:
    """Return the end of the last event: exports cut down do not say how long the recording was."""

    def last(rows: pa.Table) -> int:
        ends = ints(rows, "end", 0)
        return int(ends[ends <= LONGEST].max(initial=0))

    stored = [name for table in ("KERNELS", "COPIES", "API_CALLS", "RANGES") for name in ACTIVITY[table]]
    return max((end for name in stored for end in source.convert(name, ["end"], last)), default=0)


def samples(source: Source, numbering: Ordinals) -> pd.DataFrame:
    """Return SAMPLES: GPU_METRICS under canonical names, percents as fractions, clocks in Hz."""

    def part(rows: pa.Table) -> Columns:
        return {
            "timestamp": ints(rows, "timestamp", NEVER),
            "typeId": ints(rows, "typeId"),
            "metricId": ints(rows, "metricId"),
            "value": np.where(absent(rows, "value"), np.nan, ints(rows, "value", 0)),
        }

    names = ("timestamp", "typeId", "metricId", "value")
    require(source, "GPU_METRICS", names)
    columns = source.stacked("GPU_METRICS", names, part)
    sets, types = pd.factorize(columns["typeId"])
    metrics, numbers = pd.factorize(columns["metricId"])
    codes, pairs = pd.factorize(sets.astype(np.int64) * len(numbers) + metrics)
    keys = [(int(types[pair // len(numbers)]), int(numbers[pair % len(numbers)])) for pair in pairs]
    spelled = _metric_names(source)
    labels = [canonical(spelled.get(key, f"metric {key[1]} [unlisted]")) for key in keys]
    kinds = [kind & 0xFF if kind >= 0 else -1 for kind, _ in keys]
    frame = {
        "rank": np.zeros(len(codes), "int32"),
        "gpu": np.array([*(numbering.by_id.get(kind, kind) for kind in kinds), -1], np.int64)[codes],
        "time_ns": columns["timestamp"],
        "metric": category(codes, labels),
        "value": _in_unit(columns["value"], codes, labels),
    }
    return tables.SAMPLES.make(pd.DataFrame(frame))


def _metric_names(source: Source) -> dict[tuple[int, int], str]:
    """Return the spelling of each metric by its set and number; what is not a number and a name names nothing."""
    listed = source.rows("TARGET_INFO_GPU_METRICS", ("typeId", "metricId", "metricName"))
    named = (r for r in listed if isinstance(r["metricName"], str))
    whole_ids = (r for r in named if isinstance(r["typeId"], int) and isinstance(r["metricId"], int))
    return {(r["typeId"], r["metricId"]): r["metricName"][:LONGEST_NAME] for r in whole_ids}


def canonical(spelling: str) -> str:
    """Return the metric's canonical name with its unit, whichever version of nsys spelled it.

    >>> canonical("SMs Active [Throughput %]"), canonical("SM Active"), canonical("GPC Clock Frequency [MHz]")
    ('sm_active_frac', 'sm_active_frac', 'gpc_clock_hz')
    >>> canonical("Compute Warps in Flight [Avg]")
    'compute_warps_in_flight_avg_count'
    >>> canonical("?")
    'unnamed_frac'
    """
    text, _, unit = spelling.casefold().partition(" [")
    plain = text.replace("sms ", "sm ").replace("bandwidth", "throughput")
    words = re.findall(r"[a-z0-9]+", plain) or ["unnamed"]
    if "clock frequency" in plain:
        return CANONICAL.get(plain, "_".join([*words, "hz"]))
    if not unit or "%" in unit:
        return CANONICAL.get(plain, "_".join([*words, "frac"]))
    # One quantity is listed in several units (Avg, Avg Warps per Cycle), which must not become one metric.
    return "_".join([*words, *re.findall(r"[a-z0-9]+", unit), "count"])


def _in_unit(values: NDArray[np.float64], codes: NDArray[Any], metrics: list[str]) -> NDArray[np.float64]:
    """Return percents as fractions; clocks, which wrap at 2**31, in Hz, also where they are given in MHz."""
    is_share = np.array([*(m.endswith("_frac") for m in metrics), False])[codes]
    is_clock = np.array([*(m.endswith("_hz") for m in metrics), False])[codes]
    scaled = np.where(is_share, values / 100, values)
    clocks = scaled[is_clock]
    unwrapped = np.where(clocks < 0, clocks + 2.0**32, clocks)
    scaled[is_clock] = np.where(unwrapped < 1e5, unwrapped * 1e6, unwrapped)
    return scaled


def recorded(source: Source) -> set[str]:
    """Return the names of the tables the export can fill with at least one row."""
    present = {name for name, stored in ACTIVITY.items() if any(source.has_rows(t) for t in stored)}
    # NVTX_EVENTS also holds the names of threads and domains.
    return present if source.holds("NVTX_EVENTS", "eventType", (MARK, PUSH_POP, START_END)) else present - {"RANGES"}


def missing(present: set[str]) -> tuple[Missing, ...]:
    """Return what the capture did not record of what most questions need, with the option that records it."""
    return tuple(Missing(name, *remedy) for name, remedy in REMEDIES.items() if name not in present)


def notes(source: Source, listed: list[Gpu]) -> tuple[str, ...]:
    """Return what a reader of the figures should know about this export."""
    said: list[str] = []
    simulated = text(_meta(source, "SIMULATED"), "SIMULATED", said)
    if simulated:
        said.append(f"simulated, not measured: {simulated}")
    schema = text(_meta(source, SCHEMA), SCHEMA, said)
    version = re.match(r"(\d{1,9})(\.[\d.]*)?$", schema)
    if schema and not version:
        said.append(f"{SCHEMA}: {shown(schema)} is no version: read as not recorded")
    if version and int(version[1]) > NEWEST_SCHEMA:
        said.append(f"schema {schema} is newer than those tried ({NEWEST_SCHEMA}.x): columns may have changed meaning")
    if source.has_rows("CUPTI_ACTIVITY_KIND_KERNEL") and "globalPid" not in source.columns(
        "CUPTI_ACTIVITY_KIND_KERNEL"
    ):
        said.append("kernels carry no process: they are taken to belong to the one process that made CUDA calls")
    if source.has_rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE"):
        said.append("CUDA graphs were recorded as a whole: record with --cuda-graph-trace=node to see their kernels")
    if len({gpu.name for gpu in listed if not gpu.numbered}) > 1:
        said.append("the export does not say which listed GPU is which CUDA device: their listing order is used")
    nameless = source.nameless()
    if nameless:
        said.append(f"{nameless}: what they name is called unnamed, with the number of the string")
    return tuple(said)

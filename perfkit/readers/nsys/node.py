"""CAPTURE, DEVICES and SAMPLES of an Nsight Systems export, and what it did not record."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from perfkit import tables
from perfkit.profile import Missing
from perfkit.readers.nsys.source import Int, Source, categorical, ints
from perfkit.readers.nsys.stack import Columns

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
GPU_INFO = ("id", "deviceId", "cuDevice", "name", "computeMajor", "computeMinor", "smCount")
GPU_RATES = ("totalMemory", "memoryBandwidth", "clockRate")

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


def ordinals(source: Source) -> Ordinals:
    """Read the numbering: deviceId is the ordinal in the process, TARGET_INFO_CUDA_DEVICE maps it to a GPU."""
    by_id = {g["id"]: g["gpu"] for g in _gpus(source)}
    visible = source.rows("TARGET_INFO_CUDA_DEVICE", ("gpuId", "cudaId", "pid"))
    by_process = {(v["pid"], v["cudaId"]): by_id.get(v["gpuId"], v["cudaId"]) for v in visible}
    return Ordinals(by_process, by_id)


def _gpus(source: Source) -> list[dict[str, Any]]:
    """Return the CUDA devices listed, each with its ordinal; graphics adapters without SMs are left out."""
    table = "TARGET_INFO_GPU" if source.has_rows("TARGET_INFO_GPU") else "TARGET_INFO_CUDA_GPU"
    rows = source.rows(table, GPU_INFO + GPU_RATES)
    found = []
    for row in rows:
        number = row["id"] if row["id"] is not None else row["deviceId"]
        if number is None or row["smCount"] == 0:
            continue
        found.append({**row, "id": number, "gpu": number if row["cuDevice"] is None else row["cuDevice"]})
    distinct = len({g["gpu"] for g in found}) == len(found)
    return found if distinct else [{**g, "gpu": g["id"]} for g in found]


def devices(source: Source, numbering: Ordinals) -> pd.DataFrame:
    """Return DEVICES: the CUDA devices of the node."""
    gpus = _gpus(source)
    capability = [f"{g['computeMajor']}.{g['computeMinor']}" if g["computeMajor"] else "" for g in gpus]
    frame = pd.DataFrame(
        {
            "rank": pd.array([0] * len(gpus), dtype="int32"),
            "gpu": [numbering.by_id[g["id"]] for g in gpus],
            "name": pd.array([g["name"] or "" for g in gpus], dtype="string"),
            "compute_capability": pd.array(capability, dtype="string"),
            "sm_count": pd.array([g["smCount"] for g in gpus], dtype="Int64"),
            "memory_bytes": pd.array([g["totalMemory"] for g in gpus], dtype="Int64"),
            "memory_bytes_per_s": np.array([g["memoryBandwidth"] or np.nan for g in gpus], float),
            "clock_hz": np.array([g["clockRate"] or np.nan for g in gpus], float),
        }
    )
    return tables.DEVICES.make(frame)


def capture(source: Source, path: Path) -> pd.DataFrame:
    """Return CAPTURE: one row that says which nsys exported the file, when it starts and how long it is."""
    started = source.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))
    lasted = [row["duration"] for row in source.rows("ANALYSIS_DETAILS", ("duration",))]
    frame = pd.DataFrame(
        {
            "rank": [0],
            "tool": ["Nsight Systems"],
            "tool_version": [_meta(source, "EXPORT_PRODUCT_VERSION")],
            "path": [str(path)],
            "t0_unix_ns": pd.array([started[0]["utcEpochNs"] if started else None], dtype="Int64"),
            "dur_ns": [int(lasted[0]) if lasted and lasted[0] is not None else _last_end(source)],
        }
    )
    return tables.CAPTURE.make(frame)


def _meta(source: Source, name: str) -> str:
    """Return an entry of what the file says of itself; empty if it has none."""
    tables = ("META_DATA_EXPORT", "EXPORT_META_DATA", "META_DATA_CAPTURE")
    rows = [r for t in tables for r in source.rows(t, ("name", "value"))]
    return next((str(r["value"]) for r in rows if r["name"] == name), "")


def host(source: Source) -> str:
    """Return the name of the host that was recorded; empty if the export does not say, or names several."""
    said = source.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value"))
    names = {str(row["value"]) for row in said if row["name"] == HOST}
    return names.pop() if len(names) == 1 else ""


def _last_end(source: Source) -> int:
    """Return the end of the last event: exports cut down do not say how long the recording was."""
    last = 0
    for table in ("KERNELS", "COPIES", "API_CALLS", "RANGES"):
        for name in ACTIVITY[table]:
            ends = source.convert(name, ["end"], lambda rows: ints(rows, "end", 0).max(initial=0))
            last = max(last, *map(int, ends)) if ends else last
    return last


def samples(source: Source, numbering: Ordinals) -> pd.DataFrame:
    """Return SAMPLES: GPU_METRICS under canonical names, percents as fractions, clocks in Hz."""

    def part(rows: pa.Table) -> Columns:
        names = ("timestamp", "typeId", "metricId", "value")
        return dict(zip(names, (ints(rows, name, 0) for name in names), strict=True))

    listed = source.rows("TARGET_INFO_GPU_METRICS", ("typeId", "metricId", "metricName"))
    spelled = {(r["typeId"], r["metricId"]): str(r["metricName"]) for r in listed}
    columns = source.stacked("GPU_METRICS", ("timestamp", "typeId", "metricId", "value"), part)
    sets, types = pd.factorize(columns["typeId"])
    codes, pairs = pd.factorize((sets.astype(np.int64) << 32) | columns["metricId"])
    keys = [(int(types[pair >> 32]), int(pair & 0xFFFFFFFF)) for pair in pairs]
    metrics = [canonical(spelled.get(key, f"metric {key[1]} [unlisted]")) for key in keys]
    gpus = [numbering.by_id.get(kind & 0xFF, kind & 0xFF) for kind, _ in keys]
    value = columns["value"].astype(float)
    for code, metric in enumerate(metrics):
        if metric.endswith(("_hz", "_frac")):
            value[codes == code] = _in_unit(metric, value[codes == code])
    frame = {
        "rank": np.zeros(len(codes), "int32"),
        "gpu": np.array([*gpus, -1], np.int64)[codes],
        "time_ns": columns["timestamp"],
        "metric": categorical(codes, metrics),
        "value": value,
    }
    return tables.SAMPLES.make(pd.DataFrame(frame))


def canonical(spelling: str) -> str:
    """Return the metric's canonical name with its unit, whichever version of nsys spelled it.

    Examples
    --------
    >>> canonical("SMs Active [Throughput %]"), canonical("SM Active"), canonical("GPC Clock Frequency [MHz]")
    ('sm_active_frac', 'sm_active_frac', 'gpc_clock_hz')
    >>> canonical("Compute Warps in Flight [Avg]")
    'compute_warps_in_flight_avg_count'
    """
    text, _, unit = spelling.casefold().partition(" [")
    plain = text.replace("sms ", "sm ").replace("bandwidth", "throughput")
    words = re.findall(r"[a-z0-9]+", plain)
    if "clock frequency" in plain:
        return CANONICAL.get(plain, "_".join([*words, "hz"]))
    if not unit or "%" in unit:
        return CANONICAL.get(plain, "_".join([*words, "frac"]))
    # One quantity is listed in several units (Avg, Avg Warps per Cycle), which must not become one metric.
    return "_".join([*words, *re.findall(r"[a-z0-9]+", unit), "count"])


def _in_unit(metric: str, value: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return percents as fractions; clocks, which wrap at 2**31, in Hz, also where they are given in MHz."""
    if metric.endswith("_frac"):
        return value / 100
    unwrapped = np.where(value < 0, value + 2.0**32, value)
    return np.where(unwrapped < 1e5, unwrapped * 1e6, unwrapped)


def recorded(source: Source) -> set[str]:
    """Return the names of the tables the export can fill with at least one row."""
    present = {name for name, stored in ACTIVITY.items() if any(source.has_rows(t) for t in stored)}
    # NVTX_EVENTS also holds the names of threads and domains.
    return present if source.holds("NVTX_EVENTS", "eventType", (MARK, PUSH_POP, START_END)) else present - {"RANGES"}


def missing(present: set[str]) -> tuple[Missing, ...]:
    """Return what the capture did not record of what most questions need, with the option that records it."""
    return tuple(Missing(name, *remedy) for name, remedy in REMEDIES.items() if name not in present)


def notes(source: Source) -> tuple[str, ...]:
    """Return what a reader of the figures should know about this export."""
    simulated = _meta(source, "SIMULATED")
    said = [f"simulated, not measured: {simulated}"] if simulated else []
    schema = _meta(source, "EXPORT_SCHEMA_VERSION")
    if int(schema.partition(".")[0] or 0) > NEWEST_SCHEMA:
        said.append(f"schema {schema} is newer than those tried ({NEWEST_SCHEMA}.x): columns may have changed meaning")
    if source.has_rows("CUPTI_ACTIVITY_KIND_KERNEL") and "globalPid" not in source.columns(
        "CUPTI_ACTIVITY_KIND_KERNEL"
    ):
        said.append("kernels carry no process: they are taken to belong to the one process that made CUDA calls")
    if source.has_rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE"):
        said.append("CUDA graphs were recorded as a whole: record with --cuda-graph-trace=node to see their kernels")
    unnumbered = [g["name"] for g in _gpus(source) if g["cuDevice"] is None]
    if len(set(unnumbered)) > 1:
        said.append("the export does not say which listed GPU is which CUDA device: their listing order is used")
    return tuple(said)

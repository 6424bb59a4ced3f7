"""Nsight Systems: what `nsys export` wrote, or a report when `nsys` is on PATH.

Export with ``nsys export -t sqlite REPORT.nsys-rep`` (or ``-t parquetdir``, ``-t arrowdir``). Tried with
schemas 2.9 to 3.25, that is nsys 2022.1 to 2026.2; other versions differ in tables and columns that
are looked up by name, and a column an export lacks is read as not recorded.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pandas as pd
import pyarrow as pa

from perfkit.profile import Missing, Profile, node_of
from perfkit.readers.nsys import tables
from perfkit.readers.nsys.folder import FolderSource, is_export_folder
from perfkit.readers.nsys.sources import LONGEST, Source, ints, shown, text, whole
from perfkit.readers.nsys.sqlite import MAGIC, SqliteSource, exported, is_export
from perfkit.readers.text import capture_table

__all__ = ["KIND", "VERSION", "read", "sniff"]
VERSION = 3
KIND = "timeline"
ACTIVITY = {
    "KERNELS": (tables.KERNEL,),
    "COPIES": (tables.MEMCPY, tables.MEMSET),
    "API_CALLS": (tables.RUNTIME,),
    "OS_CALLS": (tables.SYSTEM,),
    "RANGES": (tables.NVTX,),
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
VERSION_ENTRY, SCHEMA_ENTRY = "EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION"  # entries of META_DATA_EXPORT
LATEST = 7_258_118_400 * 10**9  # the year 2200, ns since 1970


def sniff(path: Path) -> bool:
    """Say whether `path` is an Nsight Systems export or report, by its first bytes and table names."""
    try:
        if not path.is_file():
            return path.is_dir() and is_export_folder(path)
        with path.open("rb") as file:
            head = file.read(100)
    except OSError:
        return False
    return head.startswith(MAGIC) or (head.startswith(b"SQLite format 3\0") and is_export(path))


def read(path: Path) -> Profile:
    """Open an export; its tables are read when asked for, and ``missing`` names the option that records others."""
    source = _open(path)
    doubts: list[str] = []
    gpus = tables.gpus(source, doubts)
    ordinals = tables.ordinals(source, gpus, doubts)
    summary = capture(source, path, doubts)
    makers = {
        "KERNELS": partial(tables.kernels, source, ordinals),
        "COPIES": partial(tables.copies, source, ordinals),
        "API_CALLS": partial(tables.api_calls, source),
        "OS_CALLS": partial(tables.os_calls, source),
        "RANGES": partial(tables.ranges, source, int(summary["dur_ns"].iloc[0])),
        "SAMPLES": partial(tables.samples, source, ordinals),
        "DEVICES": partial(tables.devices, gpus),
    }
    present = recorded(source)
    return Profile(
        reader="nsys",
        path=path,
        capture=summary,
        loaders={name: make for name, make in makers.items() if name in present},
        missing=missing(present),
        notes=(*notes(source, gpus), *dict.fromkeys(doubts)),
        node=node_of(host(source)),
    )


def _open(path: Path) -> Source:
    if path.is_dir():
        return FolderSource(path)
    with path.open("rb") as file:
        report = file.read(len(MAGIC)) == MAGIC
    return exported(path) if report else SqliteSource(path)


def capture(source: Source, path: Path, notes: list[str]) -> pd.DataFrame:
    """Return CAPTURE: one row that says which nsys exported the file, when it starts and how long it is."""
    (started,) = source.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))[:1] or [{"utcEpochNs": None}]
    (lasted,) = source.rows("ANALYSIS_DETAILS", ("duration",))[:1] or [{"duration": None}]
    t0 = whole(started["utcEpochNs"], "TARGET_INFO_SESSION_START_TIME.utcEpochNs", notes, most=LATEST)
    duration = whole(lasted["duration"], "ANALYSIS_DETAILS.duration", notes, most=LONGEST)
    version = text(_meta(source, VERSION_ENTRY), VERSION_ENTRY, notes)
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


def recorded(source: Source) -> set[str]:
    """Return the names of the tables the export can fill with at least one row."""
    present = {name for name, stored in ACTIVITY.items() if any(source.has_rows(t) for t in stored)}
    # NVTX_EVENTS also holds the names of threads and domains.
    return present if source.holds(tables.NVTX, "eventType", tables.KINDS) else present - {"RANGES"}


def missing(present: set[str]) -> tuple[Missing, ...]:
    """Return what the capture did not record of what most questions need, with the option that records it."""
    return tuple(Missing(name, *remedy) for name, remedy in REMEDIES.items() if name not in present)


def notes(source: Source, listed: list[tables.Gpu]) -> tuple[str, ...]:
    """Return what a reader of the figures should know about this export."""
    lines: list[str] = []
    if simulated := text(_meta(source, "SIMULATED"), "SIMULATED", lines):
        lines.append(f"simulated, not measured: {simulated}")
    schema = text(_meta(source, SCHEMA_ENTRY), SCHEMA_ENTRY, lines)
    version = re.match(r"(\d{1,9})(\.[\d.]*)?$", schema)
    if schema and not version:
        lines.append(f"{SCHEMA_ENTRY}: {shown(schema)} is no version: read as not recorded")
    if version and int(version[1]) > NEWEST_SCHEMA:
        lines.append(f"schema {schema} is newer than those tried ({NEWEST_SCHEMA}.x): columns may have changed meaning")
    if source.has_rows(tables.KERNEL) and "globalPid" not in source.columns(tables.KERNEL):
        lines.append("kernels carry no process: they are taken to belong to the one process that made CUDA calls")
    if source.has_rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE"):
        lines.append("CUDA graphs were recorded as a whole: record with --cuda-graph-trace=node to see their kernels")
    if len({gpu.name for gpu in listed if not gpu.numbered}) > 1:
        lines.append("the export does not say which listed GPU is which CUDA device: their listing order is used")
    if nameless := source.nameless():
        lines.append(f"{nameless}: what they name is called unnamed, with the number of the string")
    return tuple(lines)

"""What the profiler says of its own recording: its time, its messages, and what it was asked to record."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit import tables
from perfkit.readers.nsys import sources
from perfkit.readers.nsys.sources import column
from perfkit.readers.text import category, overhead_kind

OWN, OF_CUDA = "PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD"
OVERHEAD_MAP: sources.Reads = {
    **sources.THREAD,
    **sources.INTERVAL,
    "name": column("nameId"),
    "correlation": column("correlationId", by=sources.or_none),
    "type": column("overheadType"),
}
KINDS = ("profiler", "flush", "loading", "compiling", "queue_full", "other")
# What overheadType means since schema 3.24; before it was not recorded (-1), and names tell.
TYPES = {
    -1: "profiler",
    0: "profiler",
    1: "profiler",
    2: "compiling",
    3: "flush",
    4: "profiler",
    5: "profiler",
}
TYPES |= {6: "loading", 7: "loading", 8: "queue_full"}
MESSAGES = "DIAGNOSTIC_EVENT"
SEVERITIES = {1: "info", 2: "warning", 3: "error", 4: "info"}  # 4 is verbose
ASKED = "META_DATA_CAPTURE"
TRACES = {
    "NvtxEvents": "nvtx",
    "OSRuntime": "osrt",
}  # words of nsys's own options; others are only put in lower case
SAMPLED = {
    "LINUX_PERF_OPTIONS:COLLECT_IP_BACKTRACE_SAMPLES": "stacks",
    "LINUX_PERF_OPTIONS:COLLECT_CPU_CTXSW_TRACE": "schedule",
    "WINDOWS_PERF_OPTIONS:COLLECT_THREAD_BACKTRACE": "stacks",
    "WINDOWS_PERF_OPTIONS:COLLECT_THREAD_ACTVITY": "schedule",  # so it is spelled
}
SYSTEM = "TARGET_INFO_SYSTEM_ENV"
PLATFORMS = {"Unix": "linux", "L4X": "linux", "L4A": "linux", "Windows": "windows"}


def overhead(source: sources.Source) -> pd.DataFrame:
    """Return OVERHEAD: the time of the profiler, and what CUDA took for loading, compiling and a full queue."""
    parts = [
        sources.read(source, table, OVERHEAD_MAP, ("start", "end"))
        for table in (OWN, OF_CUDA)
        if source.has_rows(table)
    ]
    if not parts:
        return tables.OVERHEAD.empty()
    columns: dict[str, Any] = parts[0]
    if len(parts) > 1:
        columns = {name: np.concatenate([part[name] for part in parts]) for name in OVERHEAD_MAP}
    codes, labels = sources.texts(source, columns["name"])
    columns["name"] = category(codes, labels)
    columns["kind"] = category(_kinds(columns.pop("type"), codes, labels), KINDS)
    return sources.framed(tables.OVERHEAD, columns)


def _kinds(types: sources.Int, codes: NDArray[Any], labels: list[str]) -> NDArray[np.int8]:
    """Return the place in KINDS of each row: by its name where that tells, else by its type."""
    least, most = min(TYPES), max(TYPES)
    # The last is of all other numbers
    kinds = [TYPES.get(number, "other") for number in range(least, most + 2)]
    places = np.where((types < least) | (types > most), most + 1, types) - least
    by_type = np.array([KINDS.index(kind) for kind in kinds], np.int8)[places]
    told = [overhead_kind(label) for label in labels]
    by_name = np.array([KINDS.index(kind) if kind else -1 for kind in told], np.int8)[codes]
    places_of_rows: NDArray[np.int8] = np.where(by_name >= 0, by_name, by_type)
    return places_of_rows


def diagnostics(source: sources.Source) -> pd.DataFrame:
    """Return DIAGNOSTICS: the messages of the profiler."""

    columns: dict[str, Any] = sources.read(source, MESSAGES, MESSAGE_MAP, ("timestamp", "text"))
    places, texts = source.text(MESSAGES, "text")
    if len(places) != len(columns["time_ns"]):
        raise source.damage(
            MESSAGES, f"{MESSAGES} has {len(columns['time_ns'])} rows and {len(places)} texts"
        )
    codes, numbers = pd.factorize(columns["severity"])
    columns["severity"] = category(codes, [SEVERITIES.get(int(number)) for number in numbers])
    columns["text"] = pd.array([*texts, ""], dtype="string").take(places)
    return sources.framed(tables.DIAGNOSTICS, columns)


def _process(global_pid: sources.Int) -> sources.Int:
    """Return the process of a message, -1 for 0, which stands for the whole node."""
    process = sources.process_of(global_pid)
    return np.where(process == 0, np.int64(-1), process)


MESSAGE_MAP: sources.Reads = {
    "time_ns": column("timestamp", missing=sources.NEVER),
    "severity": column("severity"),
    "process": column("globalPid", by=_process),
}


def asked(source: sources.Source) -> dict[str, str]:
    """Return the columns of CAPTURE that say what was asked for: traced, sampled, platform; empty where not recorded.

    PROCESS_0:COLLECT_CUDA_TRACE is no answer: it is false since schema 3.24 also where CUDA was
    traced.
    """
    entries = [
        row for row in source.rows(ASKED, ("name", "value")) if isinstance(row["value"], str)
    ]
    traced = {_trace(row["value"]) for row in entries if row["name"] == "CAPTURE_EVENT_TYPE"}
    sampled = {
        SAMPLED[row["name"]] for row in entries if row["name"] in SAMPLED and row["value"] == "true"
    }
    return {
        "traced": _joined(traced),
        "sampled": _joined(sampled),
        "platform": _platform(source, entries),
    }


def _trace(value: str) -> str:
    return TRACES.get(value, value.lower())


def _joined(words: set[str]) -> str:
    return ",".join(sorted(words))


def _platform(source: sources.Source, entries: list[dict[str, Any]]) -> str:
    """Return linux, windows or wsl; empty if the export does not say."""
    system = {row["name"]: row["value"] for row in source.rows(SYSTEM, ("name", "value"))}
    kernel = str(system.get("SoftwareReleaseVersion") or "").casefold()
    described = str(system.get("OsDescription") or "").casefold()
    if any(word in text for text in (kernel, described) for word in ("microsoft", "wsl")):
        return "wsl"
    device = next((row["value"] for row in entries if row["name"] == "DEVICE_TYPE"), None)
    stated = device or system.get("SoftwarePlatform")
    return PLATFORMS.get(stated, "") if isinstance(stated, str) else ""

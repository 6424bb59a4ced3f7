"""The tables of an Nsight Systems export: what the GPUs and the CPU did, GPU metrics, and the GPUs themselves."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import union_categoricals

from perfkit import names, tables
from perfkit.readers.nsys import sources
from perfkit.readers.nsys.sources import NEVER, column, quantity, text
from perfkit.readers.text import category
from perfkit.schema import order_of, stretches

MARK, PUSH_POP, START_END = 34, 59, 60  # ENUM_NSYS_EVENT_TYPE
SYSTEM = "OSRT_API"
NVTX = "NVTX_EVENTS"
MPI = tuple(f"MPI_{kind}_EVENTS" for kind in ("OTHER", "P2P", "COLLECTIVES", "START_WAIT"))
KINDS = {PUSH_POP: "push_pop", START_END: "start_end", MARK: "mark"}
DOMAIN_CREATE = 75
OWN_MARKS = tuple(f"OS runtime libraries profiling {what}" for what in ("started", "finished"))
SUFFIX = re.compile(r"(_pt[sd][sz])?(_v\d+)?(_pt[sd][sz])?$")  # cudaLaunchKernel_ptsz_v7000
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
GRID = ("gridX", "gridY", "gridZ")
BLOCK = ("blockX", "blockY", "blockZ")
SHARED = ("staticSharedMemory", "dynamicSharedMemory")
# CUpti_ActivityMemcpyKind; arrays and unified-memory migrations are named after where the bytes go.
DIRECTIONS = [
    "unknown",
    "H2D",
    "D2H",
    "H2D",
    "D2H",
    "D2D",
    "D2D",
    "D2D",
    "D2D",
    "H2H",
    "P2P",
    "H2D",
    "D2H",
    "D2D",
]
PEER, UNIFIED = 10, (11, 12, 13)
MEMSET_KIND = len(DIRECTIONS)  # stands for a memset among the kinds of copies
# CUpti_ActivityMemoryKind
MEMORIES = [
    "pageable",
    "pinned",
    "device",
    "array",
    "managed",
    "device static",
    "managed static",
    "unknown",
]
GPU_INFO = (
    *("id", "deviceId", "cuDevice", "name", "computeMajor", "computeMinor", "smCount"),
    *("totalMemory", "memoryBandwidth", "clockRate"),
)
RATES = ("memory_bytes_per_s", "clock_hz")
MEMORY_EVENT = "CUDA_GPU_MEMORY_USAGE_EVENTS"
OPERATIONS = ("allocation", "release")
NO_NODE = 1 - 2**63  # no node of a CUDA graph has this number, and 0 is one
NEEDED = ("start", "end")  # what every version of nsys writes
# What tables are made of: our column <- columns of the export; names are numbers of StringIds.
CALL_MAP: sources.Reads = {**sources.THREAD, **sources.INTERVAL, "name": column("nameId")}
API_CALL_MAP: sources.Reads = {**CALL_MAP, "correlation": column("correlationId")}
SAMPLE_MAP: sources.Reads = {
    "time_ns": column("timestamp", missing=NEVER),
    "type": column("typeId"),
    "metric": column("metricId"),
    "value": column("value", missing=NEVER),
}
INT32 = 2**31 - 1
LONGEST_NAME = 200  # characters of a metric's name that are read
THROUGHPUTS = ("dram read", "dram write", "pcie rx", "pcie tx")
CANONICAL = {f"{rate} throughput": f"{rate.replace(' ', '_')}_frac" for rate in THROUGHPUTS}
CANONICAL |= {f"{clock} clock frequency": f"{clock}_clock_hz" for clock in ("gpc", "sys")}


def kernels(source: sources.Source, ordinals: Ordinals) -> pd.DataFrame:
    """Return KERNELS: one row per kernel execution, named by the demangled name."""
    columns: dict[str, Any] = sources.read(source, KERNEL, kernel_map(ordinals), NEEDED)
    columns["process"] = _processes(source, columns["process"])
    codes, labels = sources.texts(source, columns["full_name"])
    named = names.table(labels).set_index("full_name").loc[labels]
    columns["full_name"] = category(codes, labels)
    columns["name"] = category(codes, named["name"].tolist())
    columns["family"] = category(codes, named["family"].tolist())
    del codes  # what is kept here while rows are sorted is memory beside them
    return sources.framed(tables.KERNELS, columns)


def kernel_map(ordinals: Ordinals) -> sources.Reads:
    """Return what KERNELS is made of; `kernels` makes the texts of `full_name`."""
    return {
        **_operation_map(ordinals),
        "full_name": column(sources.Combined("full_name", ("demangledName", "shortName"))),
        "grid_blocks": quantity(*GRID, by=sources.product),
        "block_threads": quantity(*BLOCK, by=sources.product),
        "shared_bytes": quantity(*SHARED, by=sources.total),
        "registers": quantity("registersPerThread", by=sources.product),
        "in_graph": column("graphNodeId", by=_is_in_graph, missing=NO_NODE),
    }


def _operation_map(ordinals: Ordinals) -> sources.Reads:
    """Return what the columns are made of that say when and where an operation ran."""
    return {
        **sources.INTERVAL,
        "process": column("globalPid", by=sources.process_of),
        "gpu": column("globalPid", "deviceId", by=ordinals.gpus),
        "stream": column("streamId"),
        "correlation": column("correlationId"),
    }


def _is_in_graph(node: sources.Int) -> NDArray[np.bool_]:
    is_node: NDArray[np.bool_] = node != NO_NODE
    return is_node


def copies(source: sources.Source, ordinals: Ordinals) -> pd.DataFrame:
    """Return COPIES: copies and memsets."""
    copied = sources.read(source, MEMCPY, copy_map(ordinals), NEEDED)
    filled = sources.read(source, MEMSET, memset_map(ordinals), NEEDED)
    nothing = np.full(len(filled["bytes"]), -1, np.int64)
    filled |= {"src_memory": nothing, "peer_gpu": nothing}
    filled["direction"] = np.full(len(nothing), MEMSET_KIND, np.int64)
    columns: dict[str, Any] = {
        name: np.concatenate([copied[name], filled[name]]) for name in copied
    }
    columns["process"] = _processes(source, columns["process"])
    kinds, distinct = pd.factorize(columns["direction"])
    columns["direction"] = category(kinds, [[*DIRECTIONS, "memset"][kind] for kind in distinct])
    for side in ("src_memory", "dst_memory"):
        columns[side] = _memory(columns[side])
    return sources.framed(tables.COPIES, columns)


def copy_map(ordinals: Ordinals) -> sources.Reads:
    """Return what COPIES is made of where it is a copy; directions and memories are numbers."""
    sides = ("srcDeviceId", "dstDeviceId")
    return {
        **_operation_map(ordinals),
        "bytes": column("bytes", lacking=0),  # -1, which cannot be, only where it is null
        "direction": column("copyKind", by=_direction),
        "src_memory": column("copyKind", "srcKind", by=_side),
        "dst_memory": column("copyKind", "dstKind", by=_side),
        "peer_gpu": column("copyKind", "globalPid", "deviceId", *sides, by=ordinals.peers),
    }


def memset_map(ordinals: Ordinals) -> sources.Reads:
    """Return what COPIES is made of where it is a memset; the memory is a number."""
    return {
        **_operation_map(ordinals),
        "bytes": column("bytes", lacking=0),
        "dst_memory": column("memKind"),
    }


def _direction(kind: sources.Int) -> sources.Int:
    """Return the position in DIRECTIONS of a kind of copy."""
    return np.where((kind < 0) | (kind >= MEMSET_KIND), 0, kind)


def _side(kind: sources.Int, memory: sources.Int) -> sources.Int:
    """Return the position in MEMORIES of one side of a copy; a migration is of managed memory."""
    return np.where(np.isin(kind, UNIFIED), MEMORIES.index("managed"), memory)


def _processes(source: sources.Source, processes: sources.Int) -> sources.Int:
    """Return the process of each operation: where the export names none, the one that made CUDA calls, if any."""
    if not (processes < 0).all():
        return processes
    calling = {"process": sources.THREAD["process"]}
    parts = sources.each_part(source, RUNTIME, calling, lambda calls: np.unique(calls["process"]))
    named = {int(process) for part in parts for process in part}
    return np.full(len(processes), named.pop() if len(named) == 1 else -1)


def _memory(kinds: sources.Int) -> pd.Categorical:
    return category(
        np.where((kinds < -1) | (kinds >= len(MEMORIES)), len(MEMORIES) - 1, kinds), MEMORIES
    )


def api_calls(source: sources.Source) -> pd.DataFrame:
    """Return API_CALLS: runtime and driver calls, named without version and stream-mode suffix."""
    columns: dict[str, Any] = sources.read(source, RUNTIME, API_CALL_MAP, NEEDED)
    codes, labels = sources.texts(source, columns["name"])
    columns["name"] = category(codes, [SUFFIX.sub("", label) for label in labels])
    del codes
    return sources.framed(tables.API_CALLS, columns)


def os_calls(source: sources.Source) -> pd.DataFrame:
    """Return OS_CALLS: calls that nsys intercepts (--trace=osrt), but its own marks of when it began and ended."""
    columns: dict[str, Any] = sources.read(source, SYSTEM, CALL_MAP, NEEDED)
    columns["name"] = category(*sources.texts(source, columns["name"]))
    frame = sources.framed(tables.OS_CALLS, columns)
    return frame[~frame["name"].isin(OWN_MARKS)].reset_index(drop=True)


def memory_events(source: sources.Source, ordinals: Ordinals) -> pd.DataFrame:
    """Return MEMORY_EVENTS: memory that was allocated and released through CUDA."""
    needed = ("start", "bytes", "memoryOperationType")
    columns: dict[str, Any] = sources.read(source, MEMORY_EVENT, memory_map(ordinals), needed)
    operation = columns["operation"]
    is_known = (operation >= 0) & (operation < len(OPERATIONS))
    columns["memory"] = _memory(columns["memory"])
    columns["operation"] = category(np.where(is_known, operation, -1), OPERATIONS)
    return sources.framed(tables.MEMORY_EVENTS, columns)


def memory_map(ordinals: Ordinals) -> sources.Reads:
    """Return what MEMORY_EVENTS is made of; the memory and the operation are numbers."""
    return {
        "time_ns": column("start", missing=NEVER),
        "process": column("globalPid", by=sources.process_of),
        "gpu": column("globalPid", "deviceId", by=ordinals.gpus),
        "bytes": column("bytes"),
        "address": column("address", by=_address),
        "memory": column("memKind"),
        "operation": column("memoryOperationType"),
        "correlation": column("correlationId", by=sources.or_none),
    }


def _address(numbers: sources.Int) -> sources.Int:
    """Return addresses, NEVER for -1 (not recorded) and others below 0, which do not fit."""
    return np.where(numbers < 0, NEVER, numbers)


def ranges(source: sources.Source, end_of_capture: int) -> pd.DataFrame:
    """Return RANGES: NVTX ranges and marks, and MPI calls in domain MPI; ranges never closed end with the capture."""

    reads = range_map(end_of_capture)
    parts = [_marked(source, reads), *(_called(source, table, reads) for table in MPI)]
    parts = [part for part in parts if part]
    if not parts:
        return tables.RANGES.empty()
    joined = {name: _joined([part[name] for part in parts]) for name in parts[0]}
    depth = _depth(joined)
    return sources.framed(tables.RANGES, {**joined, "depth": depth})


def _joined(parts: list[Any]) -> Any:
    """Return the parts of a column, numbers or labels, as one."""
    if len(parts) == 1:
        return parts[0]
    is_labels = isinstance(parts[0], pd.Categorical)
    return union_categoricals(parts) if is_labels else np.concatenate(parts)


def range_map(end_of_capture: int) -> sources.Reads:
    """Return what RANGES is made of; `event` is the kind and `text` the name, as numbers."""

    def lasted(event: sources.Int, start: sources.Int, end: sources.Int) -> sources.Int:
        closing = np.where(event == MARK, start, np.maximum(start, end_of_capture))
        return sources.difference(np.where(end == NEVER, closing, end), start)

    return {
        **sources.THREAD,
        "start_ns": column("start", missing=NEVER),
        "dur_ns": column("eventType", "start", "end", by=lasted, missing=NEVER),
        "event": column("eventType"),
        "text": column("textId"),
        "domain": column("domainId", missing=0),
    }


def _marked(source: sources.Source, reads: sources.Reads) -> dict[str, Any]:
    """Return the columns of NVTX ranges and marks; none if there is none."""
    columns: dict[str, Any] = sources.read(source, NVTX, reads, ("start", "eventType"))
    event = columns.pop("event")
    if not len(event):
        return {}
    columns["name"] = _names(source, columns.pop("text"))
    columns["domain"] = _domains(columns, event == DOMAIN_CREATE)
    columns["kind"] = category(_places(event, list(KINDS)), list(KINDS.values()))
    is_range = columns["kind"].codes >= 0
    return columns if is_range.all() else {name: c[is_range] for name, c in columns.items()}


def _places(numbers: sources.Int, among: list[int]) -> sources.Int:
    """Return the place of each number in a short list, -1 where it is not there."""
    places = np.full(len(numbers), -1)
    for place, number in enumerate(among):
        places[numbers == number] = place
    return places


def _domains(columns: dict[str, Any], is_creation: NDArray[np.bool_]) -> pd.Categorical:
    """Return the name of each event's domain; the id of a domain is unique within its process only."""
    process, domain = columns["process"], columns["domain"]
    created = zip(process[is_creation], domain[is_creation], strict=True)
    named = dict(zip(created, columns["name"][is_creation].astype(str), strict=True))
    numbers, ids = pd.factorize(domain)
    codes, pairs = pd.factorize((process << 32) | numbers)
    keys = [(pair >> 32, ids[pair & 0xFFFFFFFF]) for pair in pairs]
    return category(codes, [named.get((p, d), f"domain {d}" if d else "") for p, d in keys])


def _called(source: sources.Source, table: str, reads: sources.Reads) -> dict[str, Any]:
    """Return the columns of the MPI calls of one table, as ranges; none if there is none."""
    if not source.has_rows(table):
        return {}
    columns: dict[str, Any] = sources.read(source, table, reads, ("start",))
    one = np.zeros(len(columns.pop("event")), np.int64)
    columns["name"] = category(*sources.texts(source, columns.pop("text")))
    columns["domain"] = category(one, ["MPI"])
    columns["kind"] = category(one, [KINDS[PUSH_POP]])
    return columns


def _names(source: sources.Source, ids: sources.Int) -> pd.Categorical:
    """Return COALESCE(text, StringIds[textId]) per event."""
    own, distinct = source.text(NVTX, "text")
    codes, labels = sources.texts(source, ids)
    if not distinct:
        return category(codes, labels)
    if len(own) != len(codes):
        raise source.damage(NVTX, f"{NVTX} has {len(codes)} rows and {len(own)} texts")
    return category(np.where(own >= 0, own + len(labels), codes), [*labels, *distinct])


def _depth(events: dict[str, Any]) -> sources.Int:
    """Count, for each push_pop range, those open when it starts: started before on its thread and domain, not ended."""
    depth = np.zeros(len(events["start_ns"]), np.int64)
    start, dur, kind = events["start_ns"], events["dur_ns"], events["kind"]
    is_possible = (np.abs(start) <= sources.LONGEST) & (dur >= 0) & (dur <= sources.LONGEST)
    rows = np.flatnonzero(is_possible & (kind == KINDS[PUSH_POP]))
    domain = events["domain"].codes
    lanes = [events["process"][rows], events["thread"][rows], domain[rows].astype(np.int64)]
    start, dur = start[rows], dur[rows]
    order = order_of([*lanes, start, -dur])
    start, dur, rows = start[order], dur[order], rows[order]
    bounds = stretches([lane[order] for lane in lanes], len(rows))
    for first, last in pairwise([*bounds.tolist(), len(rows)]):
        lasts = dur[first:last] > 0
        began = start[first:last]
        ends = np.sort((began + dur[first:last])[lasts], kind="stable")
        started = np.cumsum(lasts) - lasts
        depth[rows[first:last]] = started - np.searchsorted(ends, began, side="right")
    return depth


@dataclass(frozen=True)
class Ordinals:
    """How a process's device number and a metric set's GPU number become the node's CUDA ordinal."""

    by_process: dict[tuple[int, int], int]
    by_id: dict[int, int]

    def gpus(self, global_pid: sources.Int, device: sources.Int) -> sources.Int:
        """Return the ordinal per row, int32; a device that is not listed keeps the process's own number."""
        ordinal = self._of(sources.process_of(global_pid), device)
        return sources.in_32_bits(ordinal).astype(np.int32)

    def peers(
        self,
        kind: sources.Int,
        global_pid: sources.Int,
        device: sources.Int,
        source: sources.Int,
        target: sources.Int,
    ) -> sources.Int:
        """Return the other GPU of each copy between two, -1 for other copies."""
        process = sources.process_of(global_pid)
        gpu, one, other = (self._of(process, number) for number in (device, source, target))
        peer = sources.in_32_bits(np.where(one == gpu, other, one))
        return np.where(kind == PEER, peer, np.int64(-1))

    def _of(self, process: sources.Int, device: sources.Int) -> sources.Int:
        gpu = device.copy()
        for (pid, number), ordinal in self.by_process.items():
            if ordinal != number:
                gpu[(process == pid) & (device == number)] = ordinal
        return gpu


def ordinals(source: sources.Source, gpus: list[Gpu], notes: list[str]) -> Ordinals:
    """Read the numbering: deviceId is the ordinal in the process, TARGET_INFO_CUDA_DEVICE maps it to a GPU."""
    table = "TARGET_INFO_CUDA_DEVICE"
    by_id = {gpu.number: gpu.ordinal for gpu in gpus}
    by_process = {}
    for row in source.rows(table, ("gpuId", "cudaId", "pid")):
        gpu, device, pid = (
            sources.whole(value, f"{table}.{name}", notes, most=INT32)
            for name, value in row.items()
        )
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


def gpus(source: sources.Source, notes: list[str]) -> list[Gpu]:
    """Return the CUDA devices listed, each with its ordinal; graphics adapters without SMs are left out."""
    table = "TARGET_INFO_GPU" if source.has_rows("TARGET_INFO_GPU") else "TARGET_INFO_CUDA_GPU"
    listed = (_gpu(row, table, notes) for row in source.rows(table, GPU_INFO))
    gpus = [gpu for gpu in listed if gpu is not None]
    distinct = len({gpu.ordinal for gpu in gpus}) == len(gpus)
    return gpus if distinct else [replace(gpu, ordinal=gpu.number) for gpu in gpus]


def _gpu(row: dict[str, Any], table: str, notes: list[str]) -> Gpu | None:
    """Return a CUDA device as listed; None for what is none, or has no number."""

    def number(name: str, most: int = INT32) -> int | None:
        return sources.whole(row[name], f"{table}.{name}", notes, most=most)

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
    columns = {
        "gpu": pd.array([g.ordinal for g in listed], dtype="int32"),
        "name": pd.array([g.name for g in listed], dtype="string"),
        "compute_capability": pd.array([g.capability for g in listed], dtype="string"),
        "sm_count": pd.array([g.sm_count for g in listed], dtype="Int64"),
        "memory_bytes": pd.array([g.memory_bytes for g in listed], dtype="Int64"),
        **{rate: np.array([getattr(g, rate) or np.nan for g in listed], float) for rate in RATES},
    }
    columns["rank"] = np.zeros(len(listed), np.int32)
    return tables.DEVICES.make(pd.DataFrame(columns))


def samples(source: sources.Source, numbering: Ordinals) -> pd.DataFrame:
    """Return SAMPLES: GPU_METRICS under canonical names, percents as fractions, clocks in Hz."""

    columns = sources.read(
        source, "GPU_METRICS", SAMPLE_MAP, sources.stored(sources.asked(SAMPLE_MAP))
    )
    sets, types = pd.factorize(columns["type"])
    metrics, numbers = pd.factorize(columns["metric"])
    codes, pairs = pd.factorize(sets.astype(np.int64) * len(numbers) + metrics)
    keys = [(int(types[pair // len(numbers)]), int(numbers[pair % len(numbers)])) for pair in pairs]
    # The spelling of each metric by its set and number; what is not a number and a name names
    # nothing.
    listed = source.rows("TARGET_INFO_GPU_METRICS", ("typeId", "metricId", "metricName"))
    named = (r for r in listed if isinstance(r["metricName"], str))
    whole_ids = (
        r for r in named if isinstance(r["typeId"], int) and isinstance(r["metricId"], int)
    )
    spelled = {(r["typeId"], r["metricId"]): r["metricName"][:LONGEST_NAME] for r in whole_ids}
    labels = [canonical(spelled.get(key, f"metric {key[1]} [unlisted]")) for key in keys]
    # Percents as fractions; clocks, which wrap at 2**31, in Hz, also where they are given in MHz.
    is_share, is_clock = (
        np.array([m.endswith(end) for m in labels], bool)[codes] for end in ("_frac", "_hz")
    )
    value = np.where(columns["value"] == NEVER, np.nan, columns["value"])
    scaled = np.where(is_share, value / 100, value)
    unwrapped = np.where(scaled < 0, scaled + 2.0**32, scaled)[is_clock]
    scaled[is_clock] = np.where(unwrapped < 1e5, unwrapped * 1e6, unwrapped)
    kinds = [kind & 0xFF if kind >= 0 else -1 for kind, _ in keys]
    gpus = [*(numbering.by_id.get(kind, kind) for kind in kinds), -1]
    made: dict[str, Any] = {"time_ns": columns["time_ns"], "value": scaled}
    made["gpu"] = np.array(gpus, np.int64)[codes]
    made["metric"] = category(codes, labels)
    return sources.framed(tables.SAMPLES, made)


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
    # One quantity is listed in several units (Avg, Avg Warps per Cycle), which must not become one
    # metric.
    return "_".join([*words, *re.findall(r"[a-z0-9]+", unit), "count"])

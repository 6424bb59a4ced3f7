"""The tables of an Nsight Systems export: what the GPUs and the CPU did, GPU metrics, and the GPUs themselves."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals

from perfkit import names, tables
from perfkit.readers.nsys import sources
from perfkit.readers.nsys.sources import text
from perfkit.readers.text import category, devices_table, nullable
from perfkit.schema import order_of

MARK, PUSH_POP, START_END = 34, 59, 60  # ENUM_NSYS_EVENT_TYPE
SYSTEM = "OSRT_API"
NVTX = "NVTX_EVENTS"
MPI = tuple(f"MPI_{kind}_EVENTS" for kind in ("OTHER", "P2P", "COLLECTIVES", "START_WAIT"))
RANGE_COLUMNS = ("start", "end", "eventType", "globalTid", "textId", "domainId")
KINDS = {PUSH_POP: "push_pop", START_END: "start_end", MARK: "mark"}
DOMAIN_CREATE = 75
OWN_MARKS = tuple(f"OS runtime libraries profiling {what}" for what in ("started", "finished"))
SUFFIX = re.compile(r"(_pt[sd][sz])?(_v\d+)?(_pt[sd][sz])?$")  # cudaLaunchKernel_ptsz_v7000
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
PLACE = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
GRID = ("gridX", "gridY", "gridZ")
BLOCK = ("blockX", "blockY", "blockZ")
SHARED = ("staticSharedMemory", "dynamicSharedMemory")
NAME = sources.Combined("full_name", ("demangledName", "shortName"))
KERNEL_COLUMNS = (*PLACE, NAME, *GRID, *BLOCK, *SHARED, "registersPerThread", "graphNodeId")
SIDES = ("srcKind", "dstKind", "srcDeviceId", "dstDeviceId")
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
MEMORY_COLUMNS = (
    "start",
    "globalPid",
    "deviceId",
    "address",
    "bytes",
    "memKind",
    "memoryOperationType",
    "correlationId",
)
OPERATIONS = ("allocation", "release")
INT32 = 2**31 - 1
LONGEST_NAME = 200  # characters of a metric's name that are read
THROUGHPUTS = ("dram read", "dram write", "pcie rx", "pcie tx")
CANONICAL = {f"{rate} throughput": f"{rate.replace(' ', '_')}_frac" for rate in THROUGHPUTS}
CANONICAL |= {f"{clock} clock frequency": f"{clock}_clock_hz" for clock in ("gpc", "sys")}


def kernels(source: sources.Source, ordinals: Ordinals) -> pd.DataFrame:
    """Return KERNELS: one row per kernel execution, named by the demangled name."""

    def part(rows: sources.Part) -> sources.Columns:
        return {
            **_place(rows, ordinals),
            "full_name": sources.ints(rows, NAME.name),
            **sources.quantity(rows, "grid_blocks", GRID),
            **sources.quantity(rows, "block_threads", BLOCK),
            **sources.quantity(rows, "shared_bytes", SHARED, sources.total),
            **sources.quantity(rows, "registers", ("registersPerThread",)),
            "in_graph": ~sources.absent(rows, "graphNodeId"),
        }

    sources.require(source, KERNEL, ("start", "end"))
    columns = source.stacked(KERNEL, KERNEL_COLUMNS, part)
    codes, labels = sources.texts(source, columns.pop("full_name"))
    named = names.table(labels).set_index("full_name").loc[labels]
    finished = {
        "name": category(codes, named["name"].tolist()),
        "full_name": category(codes, labels),
        "family": category(codes, named["family"].tolist()),
        "in_graph": columns.pop("in_graph"),
        **{
            q: nullable(columns.pop(q), columns.pop(f"no {q}"))
            for q in ("grid_blocks", "block_threads", "registers", "shared_bytes")
        },
    }
    del codes  # what is kept here while rows are sorted is memory beside them
    return tables.KERNELS.make(_frame(columns, source, finished))


def copies(source: sources.Source, ordinals: Ordinals) -> pd.DataFrame:
    """Return COPIES: copies and memsets."""

    def copy(rows: sources.Part) -> sources.Columns:
        kind, src, dst = (
            sources.ints(rows, "copyKind", 0),
            sources.ints(rows, SIDES[0]),
            sources.ints(rows, SIDES[1]),
        )
        unified = np.isin(kind, UNIFIED)
        place = _place(rows, ordinals)
        one, other = (
            ordinals.of_process(place["process"], sources.ints(rows, name)) for name in SIDES[2:]
        )
        peer = sources.in_32_bits(np.where(one == place["gpu"], other, one))
        return {
            **place,
            "bytes": _bytes(rows),
            "direction": np.where((kind < 0) | (kind >= MEMSET_KIND), 0, kind),
            "src_memory": np.where(unified, MEMORIES.index("managed"), src),
            "dst_memory": np.where(unified, MEMORIES.index("managed"), dst),
            "peer_gpu": np.where(kind == PEER, peer, np.int64(-1)),
        }

    def memset(rows: sources.Part) -> sources.Columns:
        nothing = np.full(rows.count, -1, np.int64)
        return {
            **_place(rows, ordinals),
            "bytes": _bytes(rows),
            "direction": np.full(rows.count, MEMSET_KIND, np.int64),
            "src_memory": nothing,
            "dst_memory": sources.ints(rows, "memKind"),
            "peer_gpu": nothing,
        }

    for table in (MEMCPY, MEMSET):
        sources.require(source, table, ("start", "end"))
    copied = source.stacked(MEMCPY, (*PLACE, "bytes", "copyKind", *SIDES), copy)
    filled = source.stacked(MEMSET, (*PLACE, "bytes", "memKind"), memset)
    columns = {name: np.concatenate([copied[name], filled[name]]) for name in copied}
    kinds, distinct = pd.factorize(columns["direction"])
    labels = [[*DIRECTIONS, "memset"][kind] for kind in distinct]
    return tables.COPIES.make(
        _frame(
            columns,
            source,
            {
                "bytes": columns["bytes"],
                "direction": category(kinds, labels),
                "src_memory": _memory(columns["src_memory"]),
                "dst_memory": _memory(columns["dst_memory"]),
                "peer_gpu": columns["peer_gpu"],
            },
        )
    )


def _place(rows: sources.Part, ordinals: Ordinals) -> sources.Columns:
    """Return when and where an operation ran."""
    process = sources.process_of(sources.ints(rows, "globalPid"))
    return {
        **sources.interval(rows),
        "process": process,
        "gpu": sources.in_32_bits(
            ordinals.of_process(process, sources.ints(rows, "deviceId"))
        ).astype(np.int32),
        "stream": sources.ints(rows, "streamId"),
        "correlation": sources.ints(rows, "correlationId"),
    }


def _bytes(rows: sources.Part) -> sources.Int:
    """Return the bytes moved or set; 0 where the export does not record them, -1, which cannot be, where it is null."""
    return sources.ints(rows, "bytes", -1 if rows.has("bytes") else 0)


def _frame(
    columns: sources.Columns, source: sources.Source, finished: dict[str, Any]
) -> pd.DataFrame:
    """Return where and when operations ran, with the finished columns; both are taken from where they were."""
    place = {
        name: columns.pop(name)
        for name in ("start_ns", "dur_ns", "process", "gpu", "stream", "correlation")
    }
    if (place["process"] < 0).all():
        # Exports cut down lack globalPid: the process that made CUDA calls if there is just one.
        parts = source.convert(
            RUNTIME, ["globalTid"], lambda rows: sources.process_of(sources.ints(rows, "globalTid"))
        )
        processes = {int(process) for part in parts for process in np.unique(part)}
        place["process"] = np.full(
            len(place["process"]), processes.pop() if len(processes) == 1 else -1
        )
    return _ranked(place, finished)


def _ranked(*taken: dict[str, Any]) -> pd.DataFrame:
    """Return columns as a frame of rank 0, and keep none where they came from."""
    columns = {name: values for part in taken for name, values in part.items()}
    for part in taken:
        part.clear()
    return pd.DataFrame(
        {"rank": np.zeros(len(columns["start_ns"]), "int32"), **columns}, copy=False
    )


def _memory(kinds: sources.Int) -> pd.Categorical:
    return category(
        np.where((kinds < -1) | (kinds >= len(MEMORIES)), len(MEMORIES) - 1, kinds), MEMORIES
    )


def _call(rows: sources.Part) -> sources.Columns:
    tid = sources.ints(rows, "globalTid")
    return {
        **sources.interval(rows),
        "process": sources.process_of(tid),
        "thread": sources.thread_of(tid),
        "name": sources.ints(rows, "nameId"),
    }


def api_calls(source: sources.Source) -> pd.DataFrame:
    """Return API_CALLS: runtime and driver calls, named without version and stream-mode suffix."""

    def part(rows: sources.Part) -> sources.Columns:
        return {**_call(rows), "correlation": sources.ints(rows, "correlationId")}

    sources.require(source, RUNTIME, ("start", "end"))
    columns = source.stacked(
        RUNTIME, ("start", "end", "globalTid", "correlationId", "nameId"), part
    )
    codes, labels = sources.texts(source, columns.pop("name"))
    finished = {"name": category(codes, [SUFFIX.sub("", label) for label in labels])}
    del codes
    return tables.API_CALLS.make(_ranked(columns, finished))


def os_calls(source: sources.Source) -> pd.DataFrame:
    """Return OS_CALLS: calls that nsys intercepts (--trace=osrt), but its own marks of when it began and ended."""
    sources.require(source, SYSTEM, ("start", "end"))
    columns = source.stacked(SYSTEM, ("start", "end", "globalTid", "nameId"), _call)
    frame = _ranked(columns, {"name": category(*sources.texts(source, columns.pop("name")))})
    return tables.OS_CALLS.make(frame[~frame["name"].isin(OWN_MARKS)])


def memory_events(source: sources.Source, ordinals: Ordinals) -> pd.DataFrame:
    """Return MEMORY_EVENTS: memory that was allocated and released through CUDA."""

    def part(rows: sources.Part) -> sources.Columns:
        process = sources.process_of(sources.ints(rows, "globalPid"))
        return {
            "time_ns": sources.ints(rows, "start", sources.NEVER),
            "process": process,
            "gpu": sources.in_32_bits(ordinals.of_process(process, sources.ints(rows, "deviceId"))),
            "bytes": sources.ints(rows, "bytes"),
            "address": sources.ints(rows, "address"),
            "memory": sources.ints(rows, "memKind"),
            "operation": sources.ints(rows, "memoryOperationType"),
            "correlation": sources.correlation(rows),
        }

    sources.require(source, MEMORY_EVENT, ("start", "bytes", "memoryOperationType"))
    columns = source.stacked(MEMORY_EVENT, MEMORY_COLUMNS, part)
    address = columns.pop("address")
    operation = columns.pop("operation")
    is_known = (operation >= 0) & (operation < len(OPERATIONS))
    named = source.text(MEMORY_EVENT, "name")
    if named and len(named) != len(address):
        raise source.damage(
            MEMORY_EVENT, f"{MEMORY_EVENT} has {len(address)} rows and {len(named)} names"
        )
    frame = pd.DataFrame({"rank": np.zeros(len(address), "int32"), **columns}, copy=False)
    frame["address"] = nullable(address, address < 0)  # -1: not recorded; others do not fit
    frame["memory"] = _memory(columns["memory"])
    frame["operation"] = category(np.where(is_known, operation, -1), OPERATIONS)
    frame["name"] = pd.Categorical(named) if named else category(np.full(len(address), -1), [])
    return tables.MEMORY_EVENTS.make(frame)


def ranges(source: sources.Source, end_of_capture: int) -> pd.DataFrame:
    """Return RANGES: NVTX ranges and marks, and MPI calls in domain MPI; ranges never closed end with the capture."""

    def part(rows: sources.Part) -> sources.Columns:
        tid, start = sources.ints(rows, "globalTid"), sources.ints(rows, "start", sources.NEVER)
        event, end = sources.ints(rows, "eventType"), sources.ints(rows, "end", sources.NEVER)
        closing = np.where(event == MARK, start, np.maximum(start, end_of_capture))
        return {
            "start_ns": start,
            "dur_ns": sources.difference(np.where(end == sources.NEVER, closing, end), start),
            "event": event,
            "process": sources.process_of(tid),
            "thread": sources.thread_of(tid),
            "text": sources.ints(rows, "textId"),
            "domain": sources.ints(rows, "domainId", 0),
        }

    frames = [
        f
        for f in (_marked(source, part), *(_called(source, table, part) for table in MPI))
        if len(f)
    ]
    if not frames:
        return tables.RANGES.empty()
    kept = pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
    if len(frames) > 1:
        kept = kept.assign(
            **{c: union_categoricals([f[c] for f in frames]) for c in ("name", "kind", "domain")}
        )
    return tables.RANGES.make(kept.drop(columns="text").assign(depth=_depth(kept), rank=0))


def _marked(
    source: sources.Source, part: Callable[[sources.Part], sources.Columns]
) -> pd.DataFrame:
    """Return NVTX ranges and marks."""
    sources.require(source, NVTX, ("start", "eventType"))
    frame = pd.DataFrame(source.stacked(NVTX, RANGE_COLUMNS, part))
    if frame.empty:
        return frame
    frame["name"] = _names(source, frame["text"].to_numpy())
    kept = frame[frame["event"].isin(list(KINDS))].reset_index(drop=True)
    # Each event's domain name; a domain id is unique within its process only.
    created = frame[frame["event"] == DOMAIN_CREATE]
    domains_created = zip(created["process"], created["domain"], strict=True)
    domain_names = dict(zip(domains_created, created["name"].astype(str).tolist(), strict=True))
    domains, ids = pd.factorize(kept["domain"].to_numpy(np.int64))
    codes, pairs = pd.factorize((kept["process"].to_numpy() << 32) | domains)
    keys = [(pair >> 32, ids[pair & 0xFFFFFFFF]) for pair in pairs]
    domain = category(
        codes, [domain_names.get((p, d), f"domain {d}" if d else "") for p, d in keys]
    )
    return kept.assign(kind=kept.pop("event").map(KINDS).astype("category"), domain=domain)


def _called(
    source: sources.Source, table: str, part: Callable[[sources.Part], sources.Columns]
) -> pd.DataFrame:
    """Return the MPI calls of one table as ranges."""
    if not source.has_rows(table):
        return pd.DataFrame()
    sources.require(source, table, ("start",))
    columns = source.stacked(table, RANGE_COLUMNS, part)
    name, one = (
        category(*sources.texts(source, columns["text"])),
        np.zeros(len(columns["text"]), np.int64),
    )
    frame = pd.DataFrame(columns).drop(columns="event")
    return frame.assign(
        name=name, kind=category(one, [KINDS[PUSH_POP]]), domain=category(one, ["MPI"])
    )


def _names(source: sources.Source, ids: sources.Int) -> pd.Categorical:
    """Return COALESCE(text, StringIds[textId]) per event."""
    inline = source.text(NVTX, "text")
    codes, labels = sources.texts(source, ids)
    if not inline:
        return category(codes, labels)
    if len(inline) != len(codes):
        raise source.damage(NVTX, f"{NVTX} has {len(codes)} rows and {len(inline)} texts")
    own, distinct = pd.factorize(np.array(inline, object))
    return category(np.where(own >= 0, own + len(labels), codes), [*labels, *distinct])


def _depth(events: pd.DataFrame) -> sources.Int:
    """Count, for each push_pop range, those open when it starts: started before on its thread and domain, not ended."""
    depth = np.zeros(len(events), np.int64)
    possible = events["start_ns"].between(-sources.LONGEST, sources.LONGEST) & events[
        "dur_ns"
    ].between(0, sources.LONGEST)
    nested = events[possible & (events["kind"] == "push_pop")].reset_index(names="row")
    lane = (
        nested.groupby(["process", "thread", "domain"], observed=True, sort=False)
        .ngroup()
        .to_numpy()
    )
    start, dur = nested["start_ns"].to_numpy(), nested["dur_ns"].to_numpy()
    order = order_of([lane, start, -dur])
    lane, start, dur = lane[order], start[order], dur[order]
    lasts = dur > 0
    started: sources.Int = np.cumsum(lasts) - lasts
    # Ends and starts on one axis, by lane and time, ends before starts of the same time (the sort is stable).
    time, of = np.r_[(start + dur)[lasts], start], np.r_[lane[lasts], lane]
    is_start = order_of([of, time]) >= lasts.sum()
    ended = np.cumsum(~is_start)[is_start]
    depth[nested["row"].to_numpy()[order]] = started - ended
    return depth


@dataclass(frozen=True)
class Ordinals:
    """How a process's device number and a metric set's GPU number become the node's CUDA ordinal."""

    by_process: dict[tuple[int, int], int]
    by_id: dict[int, int]

    def of_process(self, process: sources.Int, device: sources.Int) -> sources.Int:
        """Return the ordinal per row; a device that is not listed keeps the process's own number."""
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

    def number(name: str, least: int = 0, most: int = INT32) -> int | None:
        return sources.whole(row[name], f"{table}.{name}", notes, least, most)

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
    return devices_table(columns, len(listed))


def samples(source: sources.Source, numbering: Ordinals) -> pd.DataFrame:
    """Return SAMPLES: GPU_METRICS under canonical names, percents as fractions, clocks in Hz."""

    def part(rows: sources.Part) -> sources.Columns:
        return {
            "timestamp": sources.ints(rows, "timestamp", sources.NEVER),
            "typeId": sources.ints(rows, "typeId"),
            "metricId": sources.ints(rows, "metricId"),
            "value": np.where(
                sources.absent(rows, "value"), np.nan, sources.ints(rows, "value", 0)
            ),
        }

    names = ("timestamp", "typeId", "metricId", "value")
    sources.require(source, "GPU_METRICS", names)
    columns = source.stacked("GPU_METRICS", names, part)
    sets, types = pd.factorize(columns["typeId"])
    metrics, numbers = pd.factorize(columns["metricId"])
    codes, pairs = pd.factorize(sets.astype(np.int64) * len(numbers) + metrics)
    keys = [(int(types[pair // len(numbers)]), int(numbers[pair % len(numbers)])) for pair in pairs]
    # The spelling of each metric by its set and number; what is not a number and a name names nothing.
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
    scaled = np.where(is_share, columns["value"] / 100, columns["value"])
    unwrapped = np.where(scaled < 0, scaled + 2.0**32, scaled)[is_clock]
    scaled[is_clock] = np.where(unwrapped < 1e5, unwrapped * 1e6, unwrapped)
    kinds = [kind & 0xFF if kind >= 0 else -1 for kind, _ in keys]
    frame = {
        "rank": np.zeros(len(codes), "int32"),
        "gpu": np.array([*(numbering.by_id.get(kind, kind) for kind in kinds), -1], np.int64)[
            codes
        ],
        "time_ns": columns["timestamp"],
        "metric": category(codes, labels),
        "value": scaled,
    }
    return tables.SAMPLES.make(pd.DataFrame(frame))


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

"""What the machine did, written as Nsight Systems exports it to SQLite and as PyTorch's profiler writes its traces.

The tables and their columns are those of a real export of nsys 2024 (schema 3.16), as far as anything fills them.
"""

import json
import random
import sqlite3
from pathlib import Path

from adversary.machine import Machine, Op

HOST = 1 << 48
OPERATION = "start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid "
CALL = "start! end! eventClass! globalTid "
SCHEMA = {  # integers; ! says NOT NULL, $ says text
    "StringIds": "id! value$!",
    "META_DATA_EXPORT": "name$! value$",
    "META_DATA_CAPTURE": "name$! value$!",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime$ localTime$",
    "ANALYSIS_DETAILS": "globalVid! duration! startTime! stopTime!",
    "PROCESSES": "globalPid pid name$",
    "ThreadNames": "nameId! priority globalTid",
    "TARGET_INFO_GPU": "vmId! id! name$ busLocation$ isDiscrete l2CacheSize totalMemory memoryBandwidth clockRate "
    "smCount uuid$ chipName$ cuDevice "
    "maxWarpsPerSm maxBlocksPerSm maxRegistersPerSm maxShmemPerSm threadsPerWarp computeMajor computeMinor",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId! pid!",
    "CUPTI_ACTIVITY_KIND_KERNEL": OPERATION + "demangledName! shortName! mangledName launchType cacheConfig "
    "registersPerThread! gridX! gridY! gridZ! blockX! blockY! blockZ! staticSharedMemory! dynamicSharedMemory! "
    "localMemoryPerThread! localMemoryTotal! gridId! sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig",
    "CUPTI_ACTIVITY_KIND_MEMCPY": OPERATION + "bytes! copyKind! deprecatedSrcId srcKind dstKind srcDeviceId "
    "srcContextId dstDeviceId dstContextId migrationCause graphNodeId virtualAddress",
    "CUPTI_ACTIVITY_KIND_RUNTIME": CALL + "correlationId nameId! returnValue! callchainId",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": OPERATION + "syncType! eventId!",
    "OSRT_API": CALL + "nameId! returnValue! nestingLevel callchainId!",
    "NVTX_EVENTS": "start! end eventType! rangeId category color text$ globalTid endGlobalTid textId domainId "
    "uint64Value int64Value jsonTextId jsonText$",
    "TARGET_INFO_GPU_METRICS": "typeId! sourceId! typeName$! metricId! metricName$!",
    "GPU_METRICS": "timestamp typeId! metricId! value!",
}
COPY_KINDS = {"h2d": (1, None, 2), "d2h": (2, 2, None), "p2p": (10, 2, 2)}
METRICS = {11: "SM Issue", 12: "SM Active", 13: "GR Active", 14: "GPC Clock Frequency",
           16: "Tensor Active", 19: "Compute Warps In Flight"}  # fmt: skip
GPU = {"name": "NVIDIA A100-SXM4-80GB", "sms": 108, "hz": 1_410_000_000}


def _samples(machine: Machine, gpu: int, every: int) -> list[tuple[int, int, int]]:
    """Sampled counters of a GPU: (time, metric, whole percent, or Hz of the clock)."""
    kernels = sorted((o.start, o.end, o.kernel) for o in machine.ops if o.kernel and o.stream.gpu.index == gpu)
    rows, first, end = [], 0, max(op.end for op in machine.ops)
    for time in range(every, end + every, every):
        active = warps = 0.0
        while first < len(kernels) and kernels[first][1] < time - every:
            first += 1
        for start, stop, kernel in kernels[first:]:
            if start >= time:
                break
            part = max(min(stop, time) - max(start, time - every), 0) / every
            per_sm = min(kernel.grid / GPU["sms"], 2048 // kernel.block) * kernel.block / 2048
            active += part * min(kernel.grid / GPU["sms"], 1)
            warps += part * min(per_sm, 1) * 0.85
        clock = machine.gpus[gpu].clock(time) * GPU["hz"]
        values = {11: active * 45, 12: active * 100, 13: 100 if active else 0, 16: active * 30, 19: warps * 100}
        rows += [(time, metric, min(round(value), 100)) for metric, value in values.items()]
        rows.append((time, 14, round(clock) if clock < 1 << 31 else round(clock) - (1 << 32)))
    return rows


def nsys(
    machine: Machine, path: Path, *, pids: set[int] | None = None, without: tuple[str, ...] = (), metrics: int = 0
) -> Path:
    """Write an export, of these processes only; leave out "os" calls, "nvtx" ranges, ...; sample every so many ns."""
    strings: dict[str, int] = {}
    tables: dict[str, list[dict]] = {name: [] for name in SCHEMA}

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings) + 1)

    def mine(pid: int) -> bool:
        return pids is None or pid in pids

    def of(table: str) -> list[dict]:
        return [row for row in machine.rows[table] if table not in without and mine(row["pid"])]

    for number, op in enumerate(sorted(machine.ops, key=lambda op: op.start)):
        if mine(op.pid):
            table, row = _operation(op, number, text)
            tables[table].append(row)
    for table, source, event in (("CUPTI_ACTIVITY_KIND_RUNTIME", "api", 0), ("OSRT_API", "os", 27)):
        for row in of(source):
            suffix = "_v7000" if row["name"] == "cudaLaunchKernel" else "_v3020" if source == "api" else ""
            known = {"start": row["start"], "end": row["end"], "eventClass": event, "globalTid": _tid(row)}
            known |= {"nameId": text(row["name"] + suffix), "returnValue": 0}
            more = {"correlationId": row["corr"]} if source == "api" else {"nestingLevel": 0, "callchainId": 0}
            tables[table].append(known | more)
    for row in of("sync"):
        known = {"start": row["start"], "end": row["end"], "deviceId": row["gpu"], "contextId": 1}
        known |= {"streamId": row["stream"], "correlationId": row["corr"], "globalPid": HOST | row["pid"] << 24}
        tables["CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"].append(known | {"syncType": row["kind"], "eventId": 0})
    for row in of("nvtx"):
        known = {"start": row["start"], "end": row["end"], "eventType": 59, "globalTid": _tid(row), "domainId": 0}
        tables["NVTX_EVENTS"].append(known | {"text": row["name"]})
    used = {(op.pid, op.stream.gpu.index) for op in machine.ops if mine(op.pid)}
    for gpu in machine.gpus:
        row = {"vmId": HOST, "id": gpu.index, "name": GPU["name"], "busLocation": f"0000:{gpu.index + 7:02x}:00.0"}
        row |= {"isDiscrete": 1, "totalMemory": 85_198_045_184, "memoryBandwidth": 2_039_040_000_000}
        row |= {"clockRate": GPU["hz"], "smCount": GPU["sms"], "chipName": "GA100", "cuDevice": gpu.index}
        row |= {"maxWarpsPerSm": 64, "maxBlocksPerSm": 32, "maxRegistersPerSm": 65536, "maxShmemPerSm": 167936}
        tables["TARGET_INFO_GPU"].append(row | {"threadsPerWarp": 32, "computeMajor": 8, "computeMinor": 0})
    tables["TARGET_INFO_CUDA_DEVICE"] = [{"gpuId": gpu, "cudaId": gpu, "pid": pid} for pid, gpu in sorted(used)]
    threads = [thread for thread in machine.threads if mine(thread.pid)]
    for thread in threads:
        tables["ThreadNames"].append({"nameId": text(thread.name), "priority": 20, "globalTid": _tid(vars(thread))})
    for pid in sorted({thread.pid for thread in threads}):
        tables["PROCESSES"].append({"globalPid": HOST | pid << 24, "pid": pid, "name": "python3"})
    for gpu in sorted({gpu for _, gpu in used}) if metrics else ():
        kind = (281479271677952) | gpu
        known = {"typeId": kind, "sourceId": kind, "typeName": ""}
        tables["TARGET_INFO_GPU_METRICS"] += [known | {"metricId": n, "metricName": v} for n, v in METRICS.items()]
        for time, metric, value in _samples(machine, gpu, metrics):
            tables["GPU_METRICS"].append({"timestamp": time, "typeId": kind, "metricId": metric, "value": value})
    end = machine.now
    tables["ANALYSIS_DETAILS"] = [{"globalVid": HOST, "duration": end, "startTime": 10**9, "stopTime": 10**9 + end}]
    tables["TARGET_INFO_SESSION_START_TIME"] = [{"utcEpochNs": 1_760_000_000 * 10**9, "utcTime": "", "localTime": ""}]
    version = {"PRODUCT_NAME": "NVIDIA Nsight Systems", "PRODUCT_VERSION": "2024.6.2.225", "SCHEMA_VERSION": "3.16.1"}
    version |= {"SCHEMA_VERSION_MAJOR": "3", "SCHEMA_VERSION_MINOR": "16", "SCHEMA_VERSION_MICRO": "1"}
    tables["META_DATA_EXPORT"] = [{"name": f"EXPORT_{name}", "value": value} for name, value in version.items()]
    kinds = [kind for kind, source in (("OSRuntime", "os"), ("NvtxEvents", "nvtx")) if source not in without]
    tables["META_DATA_CAPTURE"] = [{"name": "CAPTURE_EVENT_TYPE", "value": kind} for kind in ["Cuda", *kinds]]
    tables["StringIds"] = [{"id": number, "value": value} for value, number in strings.items()]
    with sqlite3.connect(path) as db:
        for name, rows in ((name, rows) for name, rows in tables.items() if rows):
            db.execute(f"CREATE TABLE {name} ({', '.join(map(_column, SCHEMA[name].split()))})")
            quoted = ", ".join(f'"{column}"' for column in rows[0])
            holes = ", ".join("?" * len(rows[0]))
            values = ([row[column] for column in rows[0]] for row in rows)
            db.executemany(f"INSERT INTO {name} ({quoted}) VALUES ({holes})", values)
    db.close()
    return path


def _column(said: str) -> str:
    kind = ("TEXT" if "$" in said else "INTEGER") + (" NOT NULL" if "!" in said else "")
    return f'"{said.strip("!$")}" {kind}'


def _tid(row: dict) -> int:
    return HOST | row["pid"] << 24 | row["tid"]


def _operation(op: Op, number: int, text) -> tuple[str, dict]:
    row = {"start": op.start, "end": op.end, "deviceId": op.stream.gpu.index, "contextId": 1}
    row |= {"streamId": op.stream.number, "correlationId": op.corr, "globalPid": HOST | op.pid << 24}
    if op.kernel:
        short = op.name.removeprefix("void ").split("<")[0].split("(")[0].split("::")[-1]
        row |= {"demangledName": text(op.name), "shortName": text(short), "launchType": 1, "cacheConfig": 0}
        row |= {"registersPerThread": op.kernel.registers, "gridX": op.kernel.grid, "gridY": 1, "gridZ": 1}
        row |= {"blockX": op.kernel.block, "blockY": 1, "blockZ": 1, "staticSharedMemory": 0}
        row |= {"dynamicSharedMemory": 0, "localMemoryPerThread": 0, "localMemoryTotal": 0, "gridId": number}
        return "CUPTI_ACTIVITY_KIND_KERNEL", row | {"graphNodeId": 1000 + number if op.graph else None}
    kind, source, target = COPY_KINDS[op.kind]
    host = 1 if op.pinned else 0
    row |= {"bytes": op.bytes, "copyKind": kind, "srcKind": host if source is None else source}
    row |= {"dstKind": host if target is None else target}
    peers = (op.stream.gpu.index, op.peer) if op.kind == "p2p" else (None, None)
    return "CUPTI_ACTIVITY_KIND_MEMCPY", row | {"srcDeviceId": peers[0], "dstDeviceId": peers[1]}


def kineto(machine: Machine, path: Path, *, pid: int, rank: int, ranks: int) -> Path:
    base = 1_760_000_000 * 10**9
    events: list[dict] = []

    def event(category: str, name: str, start: int, end: int, who: tuple, **args: object) -> None:
        times = {"ts": start / 1000, "dur": (end - start) / 1000}
        events.append({"ph": "X", "cat": category, "name": name, "pid": who[0], "tid": who[1], **times, "args": args})

    operations = {op.corr: op for op in machine.ops if op.pid == pid}
    for row in (row for row in machine.rows["nvtx"] if row["pid"] == pid):
        event("user_annotation", row["name"], row["start"], row["end"], (pid, row["tid"]))
    for number, row in enumerate(row for row in machine.rows["api"] if row["pid"] == pid):
        who, op = (pid, row["tid"]), operations.get(row["corr"])
        if op:
            name = "aten::copy_" if op.bytes else "aten::mm" if "gemm" in op.name else "aten::add"
            name = "record_param_comms" if op.meet else name
            event("cpu_op", name, row["start"] - 700, row["end"] + 300, who, **{"External id": number + 1})
        event("cuda_runtime", row["name"], row["start"], row["end"], who, cbid=211, correlation=row["corr"])
        if op:
            flow = {"id": row["corr"], "cat": "ac2g", "name": "ac2g"}
            events.append({"ph": "s", "pid": pid, "tid": row["tid"], "ts": row["start"] / 1000, **flow})
    for op in (op for op in machine.ops if op.pid == pid):
        args: dict[str, object] = {"device": op.stream.gpu.index, "context": 1, "stream": op.stream.number}
        args |= {"correlation": op.corr, "queued": 0}
        who = (op.stream.gpu.index, op.stream.number)
        if op.kernel:
            args |= {"registers per thread": op.kernel.registers, "shared memory": 0}
            args |= {"grid": [op.kernel.grid, 1, 1], "block": [op.kernel.block, 1, 1]}
            if op.meet:
                args |= {"Collective name": "allreduce", "In msg nelems": op.bytes // 4, "Group size": op.meet.ranks}
                args |= {"Out msg nelems": op.bytes // 4, "dtype": "Float", "Process Group Name": "0"}
            event("kernel", op.name, op.start, op.end, who, **args)
        else:
            host = "Pinned" if op.pinned else "Pageable"
            way = f"HtoD ({host} -> Device)" if op.kind == "h2d" else f"DtoH (Device -> {host})"
            event("gpu_memcpy", f"Memcpy {way}", op.start, op.end, who, bytes=op.bytes, **args)
        flow = {"id": op.corr, "cat": "ac2g", "name": "ac2g", "bp": "e"}
        events.append({"ph": "f", "pid": who[0], "tid": who[1], "ts": op.start / 1000, **flow})
    whole = {"ts": 0.0, "dur": machine.now / 1000, "args": {"Op count": 0}}
    whole |= {"pid": "Spans", "tid": "PyTorch Profiler"}
    events.append({"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", **whole})
    random.Random(rank).shuffle(events)
    gpu = {"id": 0, "name": GPU["name"], "totalGlobalMem": 85_198_045_184, "computeMajor": 8, "computeMinor": 0}
    gpu |= {"maxThreadsPerMultiprocessor": 2048, "regsPerMultiprocessor": 65536, "warpSize": 32, "numSms": GPU["sms"]}
    head: dict[str, object] = {"schemaVersion": 1, "cuda_runtime_version": 12040, "displayTimeUnit": "ms"}
    head |= {"deviceProperties": [gpu | {"id": each.index} for each in machine.gpus], "baseTimeNanoseconds": base}
    if ranks > 1:
        head["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": ranks}
    path.write_text(json.dumps(head | {"traceEvents": events}))
    return path

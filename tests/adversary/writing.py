"""What the machine did, written as Nsight Systems exports it to SQLite and as PyTorch's profiler writes its traces."""

import random
from collections import defaultdict
from pathlib import Path

from adversary.machine import Machine, Op
from readers import nsys_files, torch_files

T0 = 1_760_000_000 * 10**9
COPY_KINDS = {"h2d": (1, None, 2), "d2h": (2, 2, None), "p2p": (10, 2, 2)}
METRICS = {11: "SM Issue", 12: "SM Active", 13: "GR Active", 14: "GPC Clock Frequency",
           16: "Tensor Active", 19: "Compute Warps In Flight"}  # fmt: skip
GPU = {"name": "NVIDIA A100-SXM4-80GB", "sms": 108, "hz": 1_410_000_000}
SIZES = {"totalMemory": 85_198_045_184, "memoryBandwidth": 2_039_040_000_000, "maxWarpsPerSm": 64}
SIZES |= {"maxRegistersPerSm": 65536, "maxShmemPerSm": 167936, "threadsPerWarp": 32}


def _samples(machine: Machine, gpu: int, every: int) -> list[tuple[int, int, int]]:
    """Sampled counters of a GPU: (time, metric, whole percent, or Hz of the clock)."""
    kernels = sorted(
        (o.start, o.end, o.kernel) for o in machine.ops if o.kernel and o.stream.gpu.index == gpu
    )
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
        values = {
            11: active * 45,
            12: active * 100,
            13: 100 if active else 0,
            16: active * 30,
            19: warps * 100,
        }
        rows += [(time, metric, min(round(value), 100)) for metric, value in values.items()]
        rows.append((time, 14, round(clock) if clock < 1 << 31 else round(clock) - (1 << 32)))
    return rows


def nsys(
    machine: Machine,
    path: Path,
    *,
    pids: set[int] | None = None,
    without: tuple[str, ...] = (),
    metrics: int = 0,
) -> Path:
    """Write an export, of these processes only; leave out "os" calls, "nvtx" ranges, ...; sample every so many ns."""
    tables: defaultdict[str, list[nsys_files.Row]] = defaultdict(list)

    def mine(pid: int) -> bool:
        return pids is None or pid in pids

    def of(table: str) -> list[dict]:
        return [row for row in machine.rows[table] if table not in without and mine(row["pid"])]

    def place(row: dict) -> tuple:
        return row["start"], row["end"], row["name"], row["pid"], row["tid"]

    for number, op in enumerate(sorted(machine.ops, key=lambda op: op.start)):
        if mine(op.pid):
            table, row = _operation(op, number)
            tables[table].append(row)
    for row in of("api"):
        suffix = "_v7000" if row["name"] == "cudaLaunchKernel" else "_v3020"
        call = nsys_files.call(
            *place(row | {"name": row["name"] + suffix}), correlationId=row["corr"]
        )
        tables[nsys_files.RUNTIME].append(call)
    tables[nsys_files.SYSTEM] = [nsys_files.system_call(*place(row)) for row in of("os")]
    tables[nsys_files.NVTX] = [nsys_files.event(*place(row)) for row in of("nvtx")]
    for row in of("sync"):
        known = {"start": row["start"], "end": row["end"], "deviceId": row["gpu"], "contextId": 1}
        known |= {
            "streamId": row["stream"],
            "correlationId": row["corr"],
            "globalPid": nsys_files.process(row["pid"]),
        }
        tables["CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"].append(
            known | {"syncType": row["kind"], "eventId": 0}
        )
    tables["TARGET_INFO_GPU"] = [nsys_files.gpu(gpu.index, **SIZES) for gpu in machine.gpus]
    used = {(op.pid, op.stream.gpu.index) for op in machine.ops if mine(op.pid)}
    tables["TARGET_INFO_CUDA_DEVICE"] = [
        {"gpuId": gpu, "cudaId": gpu, "pid": pid} for pid, gpu in sorted(used)
    ]
    for thread in (thread for thread in machine.threads if mine(thread.pid)):
        number = nsys_files.process(thread.pid) | thread.tid
        tables["ThreadNames"].append({"nameId": thread.name, "priority": 20, "globalTid": number})
    for gpu in sorted({gpu for _, gpu in used}) if metrics else ():
        kind = 281479271677952 | gpu
        tables["TARGET_INFO_GPU_METRICS"] += [
            nsys_files.metric(name, n, kind) for n, name in METRICS.items()
        ]
        for time, metric, value in _samples(machine, gpu, metrics):
            tables["GPU_METRICS"].append(nsys_files.sample(time, value, metric, kind))
    kinds = [
        kind
        for kind, source in (("OSRuntime", "os"), ("NvtxEvents", "nvtx"))
        if source not in without
    ]
    tables["META_DATA_CAPTURE"] = [
        {"name": "CAPTURE_EVENT_TYPE", "value": kind} for kind in ["Cuda", *kinds]
    ]
    session = nsys_files.session("2024.6.2.225", T0, machine.now)
    return nsys_files.sqlite(path, session | {name: rows for name, rows in tables.items() if rows})


def _operation(op: Op, number: int) -> tuple[str, nsys_files.Row]:
    place = {
        "deviceId": op.stream.gpu.index,
        "streamId": op.stream.number,
        "correlationId": op.corr,
    }
    if op.kernel:
        short = op.name.removeprefix("void ").split("<")[0].split("(")[0].split("::")[-1]
        place |= {"shortName": short, "graphNodeId": 1000 + number if op.graph else None}
        place |= {
            "gridX": op.kernel.grid,
            "gridY": 1,
            "gridZ": 1,
            "blockX": op.kernel.block,
            "blockY": 1,
            "blockZ": 1,
        }
        place |= {
            "registersPerThread": op.kernel.registers,
            "staticSharedMemory": 0,
            "dynamicSharedMemory": 0,
        }
        return nsys_files.KERNEL, nsys_files.kernel(op.start, op.end, op.name, op.pid, **place)
    kind, *sides = COPY_KINDS[op.kind]
    place |= dict(
        zip(
            ("srcKind", "dstKind"), (int(op.pinned) if s is None else s for s in sides), strict=True
        )
    )
    peers = (op.stream.gpu.index, op.peer) if op.kind == "p2p" else (None, None)
    place |= {"bytes": op.bytes, "srcDeviceId": peers[0], "dstDeviceId": peers[1]}
    return nsys_files.MEMCPY, nsys_files.copy(op.start, op.end, kind, op.pid, **place)


def kineto(machine: Machine, path: Path, *, pid: int, rank: int, ranks: int) -> Path:
    events: list[torch_files.Event] = []

    def event(category: str, name: str, start: int, end: int, who: tuple, **args: object) -> None:
        events.append(
            torch_files.event(category, name, start / 1000, (end - start) / 1000, *who, **args)
        )

    operations = {op.corr: op for op in machine.ops if op.pid == pid}
    for row in (row for row in machine.rows["nvtx"] if row["pid"] == pid):
        event("user_annotation", row["name"], row["start"], row["end"], (pid, row["tid"]))
    for number, row in enumerate(row for row in machine.rows["api"] if row["pid"] == pid):
        who, op = (pid, row["tid"]), operations.get(row["corr"])
        if op:
            name = "aten::copy_" if op.bytes else "aten::mm" if "gemm" in op.name else "aten::add"
            name = "record_param_comms" if op.meet else name
            event(
                "cpu_op",
                name,
                row["start"] - 700,
                row["end"] + 300,
                who,
                **{"External id": number + 1},
            )
        event("cuda_runtime", row["name"], row["start"], row["end"], who, correlation=row["corr"])
    for op in operations.values():
        args: dict[str, object] = {
            "device": op.stream.gpu.index,
            "stream": op.stream.number,
            "correlation": op.corr,
        }
        who = (op.stream.gpu.index, op.stream.number)
        if op.kernel:
            args |= {"registers per thread": op.kernel.registers, "shared memory": 0}
            args |= {"grid": [op.kernel.grid, 1, 1], "block": [op.kernel.block, 1, 1]}
            if op.meet:
                args |= torch_files.message(
                    "allreduce", op.bytes // 4, op.bytes // 4, op.meet.ranks
                )
            event("kernel", op.name, op.start, op.end, who, **args)
        else:
            host = "Pinned" if op.pinned else "Pageable"
            way = f"HtoD ({host} -> Device)" if op.kind == "h2d" else f"DtoH (Device -> {host})"
            event("gpu_memcpy", f"Memcpy {way}", op.start, op.end, who, bytes=op.bytes, **args)
    event("Trace", "PyTorch Profiler (0)", 0, machine.now, ("Spans", "PyTorch Profiler"))
    random.Random(rank).shuffle(events)
    gpu = {**torch_files.DEVICE, "totalGlobalMem": SIZES["totalMemory"]}
    header: dict[str, object] = {
        "deviceProperties": [gpu | {"id": each.index} for each in machine.gpus]
    }
    header |= {"baseTimeNanoseconds": T0, "cuda_runtime_version": 12040}
    if ranks > 1:
        header["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": ranks}
    return torch_files.minified(path, torch_files.trace(*events, **header))

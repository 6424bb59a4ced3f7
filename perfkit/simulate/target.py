"""Which machine and session does a simulated capture claim, and where does it say that it is simulated?

Conventions
-----------
The machine is the lab's: NVIDIA A100 80GB PCIe, with the figures a real export of that card has. Samples of GPU
metrics carry the names of the lab's version of the tool; percentages are integers 0..100, clocks are Hz.

Functions
---------
write_session   who recorded what, and that it is simulated
write_gpus      the GPUs and their contexts
write_samples   GPU metrics
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import numpy as np

from perfkit.simulate.activity import STREAM, Worker
from perfkit.simulate.nsys import CONTEXT, VM, Database, global_id
from perfkit.simulate.timeline import Int

CARD: dict[str, int | str] = {
    "name": "NVIDIA A100 80GB PCIe",
    "isDiscrete": 1,
    "l2CacheSize": 41_943_040,
    "totalMemory": 85_174_583_296,
    "memoryBandwidth": 1_935_360_000_000,
    "clockRate": 1_410_000_000,
    "smCount": 108,
    "chipName": "GA100",
    "constantMemory": 65_536,
    "maxIPC": 4,
    "maxRegistersPerBlock": 65_536,
    "maxShmemPerBlock": 49_152,
    "maxShmemPerBlockOptin": 166_912,
    "maxShmemPerSm": 167_936,
    "maxRegistersPerSm": 65_536,
    "threadsPerWarp": 32,
    "asyncEngines": 3,
    "maxWarpsPerSm": 64,
    "maxBlocksPerSm": 32,
    "maxThreadsPerBlock": 1_024,
    "computeMajor": 8,
    "computeMinor": 0,
    "smMajor": 8,
    "smMinor": 0,
}

METRICS = (
    "GPC Clock Frequency [MHz]",
    "SYS Clock Frequency [MHz]",
    "GR Active [Throughput %]",
    "SMs Active [Throughput %]",
    "SM Issue [Throughput %]",
    "Tensor Active [Throughput %]",
    "Vertex/Tess/Geometry Warps in Flight [Throughput %]",
    "Pixel Warps in Flight [Throughput %]",
    "Compute Warps in Flight [Throughput %]",
    "Unallocated Warps in Active SMs [Throughput %]",
    "DRAM Read Bandwidth [Throughput %]",
    "DRAM Write Bandwidth [Throughput %]",
    "PCIe RX Throughput [Throughput %]",
    "PCIe TX Throughput [Throughput %]",
)


def write_session(db: Database, *, label: str, arguments: str, dur_ns: int, workers: Sequence[Worker]) -> None:
    """Write what was recorded: `label` says that it is simulated."""
    capture = [("SIMULATED", label), ("CAPTURE_EVENT_TYPE", "Cuda"), ("CAPTURE_EVENT_TYPE", "NvtxEvents")]
    capture += [("PROCESS_0:COMMAND", "python3"), ("PROCESS_0:ARGUMENTS", arguments)]
    capture += [("RUN_DURATION_MS", str(dur_ns // 1_000_000))]
    names, values = zip(*capture, strict=True)
    db.append("META_DATA_CAPTURE", name=names, value=values)
    db.append("ANALYSIS_DETAILS", globalVid=VM, duration=[dur_ns], startTime=0, stopTime=dur_ns)
    for process in dict.fromkeys(worker.process for worker in workers):
        db.append("PROCESSES", globalPid=global_id(process), pid=process, name=["python3"])
    for worker in workers:
        threads = [global_id(worker.process, thread) for thread in worker.threads]
        titles = [db.string("python3"), db.string("pt_autograd_0")]
        db.append("ThreadNames", nameId=titles, priority=20, globalTid=threads)


def write_gpus(db: Database, *, t0_unix_ns: int, gpus: int, workers: Sequence[Worker]) -> None:
    """Write the wall clock at time 0, the GPUs and each worker's context on its GPU."""
    utc = datetime.fromtimestamp(t0_unix_ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    db.append("TARGET_INFO_SESSION_START_TIME", utcEpochNs=t0_unix_ns, utcTime=[utc], localTime=[utc])
    for gpu in range(gpus):
        card = {key: [value] for key, value in CARD.items()}
        place = {"busLocation": [f"0000:{gpu + 1:02x}:00.0"], "uuid": [f"00000000-0000-0000-0000-{gpu:012d}"]}
        db.append("TARGET_INFO_GPU", vmId=VM, id=gpu, cuDevice=gpu, pwGpuId=gpu, **card, **place)
    db.append(
        "TARGET_INFO_CUDA_CONTEXT_INFO",
        nullStreamId=STREAM,
        vmId=1,
        processId=[worker.process for worker in workers],
        deviceId=[worker.gpu for worker in workers],
        contextId=CONTEXT,
        hwId=0,
    )


def write_samples(db: Database, *, gpu: int, times: Int, values: Mapping[str, Int]) -> None:
    """Write one value per metric and time; metrics without values were 0 all along."""
    gpu_type = VM | 1 << 32 | gpu
    metric = np.arange(len(METRICS))
    db.append(
        "TARGET_INFO_GPU_METRICS",
        typeId=gpu_type,
        sourceId=VM | 1 << 32,
        typeName=[""] * len(METRICS),
        metricId=metric,
        metricName=METRICS,
    )
    matrix = np.array([values.get(name, np.zeros(len(times), np.int64)) for name in METRICS])
    db.append(
        "GPU_METRICS",
        timestamp=np.repeat(times, len(METRICS)),
        typeId=gpu_type,
        metricId=np.tile(metric, len(times)),
        value=matrix.T.ravel(),
    )

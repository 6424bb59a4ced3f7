"""Small PyTorch profiler traces: events are dictionaries, so every generation and every quirk can be made.

Times are microseconds, as in the files. `write` and its siblings put the same object into a file in the forms
that occur: as Kineto prints it, without blanks, and packed.
"""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfkit.profile import Profile
from perfkit.readers import torch_trace

Event = dict[str, Any]
Trace = dict[str, Any]
Write = Callable[[Path, Trace], Path]

BASE = 1_700_000_000 * 10**9
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
DEVICE = {
    "id": 0,
    "name": "NVIDIA A100-SXM4-80GB",
    "totalGlobalMem": 84990623744,
    "warpSize": 32,
    "numSms": 108,
}
DEVICE |= {"computeMajor": 8, "computeMinor": 0}


def event(
    cat: str, name: str, ts: float, dur: float, pid: Any = 10, tid: Any = 11, **args: Any
) -> Event:
    """A complete event; arguments whose names have blanks are given as a dictionary that is unpacked."""
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def op(name: str, ts: float, dur: float, **args: Any) -> Event:
    return event("cpu_op", name, ts, dur, **args)


def call(name: str, ts: float, dur: float, correlation: int, **args: Any) -> Event:
    return event("cuda_runtime", name, ts, dur, correlation=correlation, **args)


def kernel(name: str, ts: float, dur: float, correlation: int = 0, **args: Any) -> Event:
    """A kernel on stream 7 of GPU 0: 2 x 3 x 4 blocks of 32 x 2 threads."""
    shape = {
        "grid": [2, 3, 4],
        "block": [32, 2, 1],
        "registers per thread": 40,
        "shared memory": 1040,
    }
    place = {"device": 0, "stream": 7, "correlation": correlation}
    return event("kernel", name, ts, dur, 0, 7, **{**place, **shape, **args})


def copy(name: str, ts: float, dur: float, correlation: int = 0, **args: Any) -> Event:
    """A copy or, by its name, a memset of 4096 bytes."""
    cat = "gpu_memset" if name.startswith("Memset") else "gpu_memcpy"
    place = {"device": 0, "stream": 7, "correlation": correlation, "bytes": 4096}
    return event(cat, name, ts, dur, 0, 7, **{**place, **args})


def memory(ts: float, allocated: int, device: int = 0, kind: int = 1, **args: Any) -> Event:
    """What an allocator held after a change; kind 1 is CUDA, 6 HIP, 0 the CPU."""
    held = {
        "Device Type": kind,
        "Device Id": device,
        "Bytes": 64,
        "Addr": 2**63,
        "Total Allocated": allocated,
    }
    place = {
        "ph": "i",
        "cat": "cpu_instant_event",
        "s": "t",
        "name": "[memory]",
        "pid": 10,
        "tid": 11,
        "ts": ts,
    }
    return {**place, "args": {**held, "Total Reserved": 1 << 21, **args}}


def message(
    name: str = "allreduce", sent: int = 1000, received: int = 1000, ranks: int = 2
) -> dict[str, Any]:
    """What a kernel of NCCL tells about its message of float32."""
    sizes = {"In msg nelems": sent, "Out msg nelems": received, "Group size": ranks}
    return {"Collective name": name, "dtype": "Float", "Process Group Name": "0", **sizes}


def trace(*events: Event, **header: Any) -> Trace:
    return {"schemaVersion": 1, "deviceProperties": [DEVICE], **header, "traceEvents": list(events)}


def sample() -> Trace:
    """One step of two operators, with everything a trace can hold: every table has rows."""
    shapes = {
        "Input Dims": [[8, 4], [4, 2]],
        "Input type": ["float", "float"],
        "Input Strides": [[4, 1], [2, 1]],
    }
    return trace(
        event("user_annotation", "ProfilerStep#3", 100.0, 90.5),
        event("user_annotation", "forward", 101.25, 60.0),
        op("aten::linear", 102.0, 30.0, **shapes, **{"Sequence number": 5}),
        op("aten::addmm", 103.001, 20.0, **shapes),
        call("cudaLaunchKernel", 104.0, 5.0, 1),
        call("cudaMemcpyAsync", 140.0, 5.0, 2),
        event("cuda_driver", "cuLaunchKernel", 150.0, 5.0, correlation=3),
        kernel("void gemm<float>(int)", 110.5, 20.125, 1),
        copy("Memcpy HtoD (Pinned -> Device)", 146.0, 3.0, 2),
        copy("Memset (Device)", 149.5, 0.5),
        kernel(NCCL, 156.0, 10.0, 3, **message()),
        event(
            "python_function",
            "train.py(1): main",
            99.5,
            95.0,
            **{"Python id": 1, "Python parent id": None},
        ),
        event(
            "python_function",
            "nn.Module: Linear_0",
            101.5,
            40.0,
            **{"Python id": 2, "Python parent id": 1},
        ),
        memory(105.0, 4096),
        {"ph": "s", "id": 1, "pid": 10, "tid": 11, "ts": 104.0, "cat": "ac2g", "name": "ac2g"},
        event("Trace", "PyTorch Profiler (0)", 0.0, 500.0, "Spans", "PyTorch Profiler"),
        {
            "ph": "M",
            "name": "process_name",
            "pid": 10,
            "tid": 0,
            "ts": 1.0,
            "args": {"name": "python"},
        },
        record_shapes=1,
        cuda_runtime_version=12040,
        distributedInfo={"backend": "nccl", "rank": 0, "world_size": 2},
        baseTimeNanoseconds=BASE,
    )


def printed(path: Path, made: Trace) -> Path:
    path.write_text(json.dumps(made, indent=2))
    return path


def minified(path: Path, made: Trace) -> Path:
    """Write without a blank, the events before the header."""
    path.write_text(json.dumps({"traceEvents": made["traceEvents"], **made}, separators=(",", ":")))
    return path


def packed(path: Path, made: Trace) -> Path:
    path.write_bytes(gzip.compress(json.dumps(made).encode()))
    return path


every_form = pytest.mark.parametrize("write", [printed, minified, packed])


def read(folder: Path, *events: Event, **header: Any) -> Profile:
    return torch_trace.read(printed(folder / "trace.json", trace(*events, **header)))

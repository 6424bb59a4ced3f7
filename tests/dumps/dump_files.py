"""Dumps of PyTorch, made: of the flight recorder, one per rank."""

import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MS = 1_000_000
BEGIN = 1_758_610_505 * 10**9  # ns since 1970
TRAIN = {"name": "step", "filename": "/home/me/train.py", "line": 31}
LIBRARY = {
    "name": "all_reduce",
    "filename": "/opt/python/site-packages/torch/distributed.py",
    "line": 9,
}


def entry(number: int, **changes: Any) -> dict[str, Any]:
    """One all-reduce of 4 MB in the group "0"."""
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": BEGIN + number * MS,
        "input_sizes": [[1024, 1024]],
        "input_dtypes": ["Float"],
        "output_sizes": [[1024, 1024]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "is_p2p": False,
        "frames": [LIBRARY, TRAIN],
        **changes,
    }


def dump(
    entries: Sequence[Mapping[str, Any]],
    members: Sequence[int] = (0, 1, 2),
    status: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """A dump of one rank in one group."""
    reached = status or {"last_enqueued_collective": -1, "last_completed_collective": -1}
    return {
        "version": "2.10",
        "nccl_version": "2.27.3",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": json.dumps(list(members))}},
        "pg_status": {"0": dict(reached)},
        "entries": [dict(one) for one in entries],
    }


def pickled(path: Path, content: object, protocol: int = 2) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


def as_json(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def job(folder: Path, *ranks: Sequence[Mapping[str, Any]]) -> Path:
    """The folder of dumps of a job, one rank after the other."""
    folder.mkdir(exist_ok=True)
    for rank, entries in enumerate(ranks):
        pickled(folder / f"_dump_{rank}", dump(entries, range(len(ranks))))
    return folder


# Memory snapshots
MB = 1 << 20
FORWARD = [
    {"name": "forward", "filename": "/home/me/model.py", "line": 12},
    {
        "name": "_call_impl",
        "filename": "/opt/python/site-packages/torch/nn/modules/module.py",
        "line": 5,
    },
]
BACKWARD = [{"name": "torch::autograd::Engine::thread_main", "filename": "??", "line": 0}]
OPTIMIZER = [
    {"name": "step", "filename": "/opt/python/site-packages/torch/optim/adam.py", "line": 3},
    {"name": "train", "filename": "/home/me/train.py", "line": 24},
]
BUILD = [
    {
        "name": "convert",
        "filename": "/opt/python/site-packages/torch/nn/modules/module.py",
        "line": 9,
    },
    {"name": "main", "filename": "/home/me/train.py", "line": 10},
]
LOG = [{"name": "log", "filename": "/home/me/log.py", "line": 4}]


def alloc(addr: int, size: int, frames: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"action": "alloc", "addr": addr, "size": size, "stream": 0, "frames": [*frames]}


def free(addr: int, size: int) -> dict[str, Any]:
    return {"action": "free_completed", "addr": addr, "size": size, "stream": 0, "frames": []}


def steps(count: int = 5, *, keeps: int = 0) -> list[dict[str, Any]]:
    """Steps of a training, which keep some bytes each: parameters 64 MB, activations 128 MB.

    Gradients take 32 MB and are freed after each step; the optimizer keeps 16 MB from the first step on.
    """
    events = [alloc(0, 64 * MB, BUILD)]
    for step in range(count):
        events.append(alloc(1, 128 * MB, FORWARD))
        if keeps:
            events.append(alloc(100 + step, keeps, LOG))
        events += [alloc(2, 32 * MB, BACKWARD), free(1, 128 * MB)]
        if step == 0:
            events.append(alloc(3, 16 * MB, OPTIMIZER))
        events += [alloc(4, MB, OPTIMIZER), free(4, MB), free(2, 32 * MB)]
    return events


def snapshot(
    events: Sequence[Mapping[str, Any]],
    *,
    reserved: int = 1 << 28,
    refused: int = 0,
    device_free: int = 0,
    times: bool = True,
) -> dict[str, Any]:
    """A snapshot of one GPU with one segment; the last event may be an out-of-memory error."""
    trace = [{"action": "segment_alloc", "addr": 0, "size": reserved, "stream": 0, "frames": []}]
    trace += [dict(event) for event in events]
    if refused:
        last = {"action": "oom", "size": refused, "device_free": device_free, "stream": 0}
        trace.append({**last, "frames": FORWARD})
    for number, event in enumerate(trace if times else ()):
        event["time_us"] = BEGIN // 1000 + number
    held: dict[int, int] = {}
    for event in events:
        if event["action"] == "alloc":
            held[event["addr"]] = event["size"]
        else:
            held.pop(event["addr"], None)
    blocks = [
        {
            "address": address,
            "size": size,
            "requested_size": size,
            "state": "active_allocated",
            "frames": [],
        }
        for address, size in held.items()
    ]
    inside = sum(held.values())
    rest = {"address": 1 << 40, "size": reserved - inside, "requested_size": 0, "frames": []}
    segment = {
        "device": 0,
        "address": 0,
        "total_size": reserved,
        "allocated_size": inside,
        "segment_type": "large",
        "blocks": [*blocks, {**rest, "state": "inactive"}],
    }
    return {"segments": [segment], "device_traces": [trace]}

"""Lines of NCCL Inspector, made: a file per process of one communicator."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ID = "0x5f0c2d7be1a94"


def line(rank: int, number: int, us: int, *, ranks: int = 2, **changes: Any) -> dict[str, Any]:
    """An all-reduce of 64 MiB."""
    timed = {
        "coll": "AllReduce",
        "coll_sn": number,
        "coll_msg_size_bytes": 1 << 26,
        "coll_exec_time_us": us,
        "coll_timing_source": "kernel_gpu",
    }
    header = {"id": ID, "rank": rank, "n_ranks": ranks, "nnodes": 1}
    metadata = {"inspector_output_format_version": "v4.0", "hostname": "host", "pid": 1}
    return {"header": header, "metadata": metadata, "coll_perf": {**timed, **changes}}


def process(path: Path, lines: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(one)}\n" for one in lines), encoding="utf-8")
    return path


def job(folder: Path, *times: Sequence[int], **changes: Any) -> Path:
    """The files of a job: the times in us of the all-reduces of each rank."""
    folder.mkdir(exist_ok=True)
    for rank, of_rank in enumerate(times):
        numbered = enumerate(of_rank, 1)
        lines = [line(rank, n, us, ranks=len(times), **changes) for n, us in numbered]
        process(folder / f"host-pid{rank}.log", lines)
    return folder

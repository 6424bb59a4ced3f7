"""How is a program's run written as Nsight Systems would have exported it?

Conventions
-----------
The export is that of `perfkit.simulate.nsys`, with metrics of the GPU, `SAMPLES` or fewer: while a kernel runs, the
shares that its blocks, operations and bytes take of what the GPU has; nothing else is sampled. Beside it lies what is
true of the run, counted from its rows without perfkit's analyses.

Functions
---------
write     a run into a folder
truth     what is true of it
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfkit import hardware, names
from perfkit.errors import PerfkitError
from perfkit.simulate import nsys, target
from perfkit.simulate.activity import Worker
from perfkit.simulate.experiments.kernels import GPU, SM_COUNT, THREADS
from perfkit.simulate.experiments.program import STREAM, Rows, executed
from perfkit.simulate.experiments.setup import Setup
from perfkit.simulate.experiments.transformer import step

FIRST_NS = 10_000_000  # on the capture's axis
T0_UNIX_NS = 1_750_075_200_000_000_000
SAMPLE_NS, SAMPLES = 1_000_000, 1_000  # least distance, and about the most of them
READ_FRAC = 0.6  # of a kernel's bytes; the others are written
REGISTERS, CLOCK_MHZ = 64, 1_410
WORKER = Worker(4_242)
SUFFIX = {"cudaStreamSynchronize": "_v3020", "cudaDeviceSynchronize": "_v3020", "cudaMemcpyAsync": "_v3020"}
PLAIN = dict.fromkeys(("gridY", "gridZ", "blockY", "blockZ", "launchType"), 1)
PLAIN |= dict.fromkeys(("staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread"), 0)
PLAIN |= {"localMemoryTotal": 0, "registersPerThread": REGISTERS, "blockX": THREADS}

Int = NDArray[np.int64]


def write(name: str, setup: Setup, folder: str | Path) -> Path:
    """Write the run of a setup into a folder, made if it does not exist, and return the folder.

    Raises
    ------
    PerfkitError
        If the folder cannot be written.
    """
    folder = Path(folder)
    rows = executed(setup)
    content = {"simulated": f"{name}: no GPU ran", "setup": asdict(setup), **truth(setup, rows)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with nsys.writing(folder / f"{name}.nsys.sqlite") as db:
            _write(db, name, rows)
        (folder / f"{name}.truth.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    except OSError as e:
        raise PerfkitError(f"{folder}: cannot be written ({e.strerror}). Choose another folder.") from e
    return folder


def truth(setup: Setup, rows: Rows) -> dict[str, Any]:
    """Return what is true of a run.

    Returns
    -------
    dict
        `kernels_count` of all steps; `step_flops` of the matrix products; `busy_ns`, the time of all kernels, which run
        one after another; `span_ns` from the first one's start to the last one's end; `step_ns`, mean distance of the
        steps' first kernels; `busy_frac`, 0..1, of these steps' time, without the last.
    """
    kernels = step(setup)
    start, dur = (np.array([row[key] for row in rows["kernels"]]) for key in ("start_ns", "dur_ns"))
    first, last = int(start[0]), int(start[-len(kernels)])
    whole = len(start) - len(kernels)
    return {
        "kernels_count": len(start),
        "step_flops": sum(kernel.flops for kernel in kernels),
        "busy_ns": int(dur.sum()),
        "span_ns": int(start[-1] + dur[-1] - first),
        "step_ns": (last - first) / max(setup.steps - 1, 1),
        "busy_frac": float(dur[:whole].sum() / (last - first)) if whole else 1.0,
    }


def _write(db: nsys.Database, name: str, rows: Rows) -> None:
    shift = FIRST_NS - rows["calls"][0]["start_ns"]
    calls = rows["calls"]
    end = shift + max(row["start_ns"] + row["dur_ns"] for row in calls)
    program = f"train.py --experiment {name}"
    label = f"perfkit.simulate.experiments, {name}: no GPU ran"
    target.write_session(db, label=label, arguments=program, dur_ns=end + FIRST_NS, workers=[WORKER])
    target.write_gpus(db, t0_unix_ns=T0_UNIX_NS, gpus=1, workers=[WORKER])
    _write_kernels(db, rows["kernels"], shift)
    _write_copies(db, rows["copies"], shift)
    _write_calls(db, calls, shift)
    thread = nsys.global_id(WORKER.process, WORKER.threads[0])
    spans = _times(rows["ranges"], shift)
    texts = [row["name"] for row in rows["ranges"]]
    db.append("NVTX_EVENTS", **spans, eventType=59, text=texts, globalTid=thread, domainId=0)
    every = max(SAMPLE_NS, end // SAMPLES)
    times = np.arange(every, end, every, dtype=np.int64)
    target.write_samples(db, gpu=0, times=times, values=_sampled(rows["kernels"], shift, times))


def _times(rows: Sequence[Mapping[str, Any]], shift: int) -> dict[str, Int]:
    start = np.array([row["start_ns"] for row in rows], np.int64) + shift
    return {"start": start, "end": start + np.array([row["dur_ns"] for row in rows], np.int64)}


def _work(rows: Sequence[Mapping[str, Any]], shift: int) -> dict[str, Any]:
    numbers = np.array([row["correlation"] for row in rows], np.int64)
    place = {"deviceId": 0, "contextId": nsys.CONTEXT, "globalPid": nsys.global_id(WORKER.process), "streamId": STREAM}
    return {**_times(rows, shift), "correlationId": numbers, **place}


def _write_kernels(db: nsys.Database, rows: Sequence[Mapping[str, Any]], shift: int) -> None:
    kernels = [row["kernel"] for row in rows]
    bases = {name: names.base(name) for name in {kernel.full_name for kernel in kernels}}
    db.append(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        **_work(rows, shift),
        demangledName=[db.string(kernel.full_name) for kernel in kernels],
        shortName=[db.string(bases[kernel.full_name]) for kernel in kernels],
        gridX=[kernel.grid_blocks for kernel in kernels],
        gridId=[row["correlation"] for row in rows],
        **PLAIN,
    )


def _write_copies(db: nsys.Database, rows: Sequence[Mapping[str, Any]], shift: int) -> None:
    if not rows:
        return
    ends = [(int(row["pinned"]), 2)[:: 1 if row["direction"] == "H2D" else -1] for row in rows]
    db.append(
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        **_work(rows, shift),
        bytes=[row["bytes"] for row in rows],
        copyKind=[nsys.COPY_KIND[row["direction"]] for row in rows],
        srcKind=[source for source, _ in ends],
        dstKind=[aim for _, aim in ends],
    )


def _write_calls(db: nsys.Database, rows: Sequence[Mapping[str, Any]], shift: int) -> None:
    db.append(
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        **_times(rows, shift),
        globalTid=nsys.global_id(WORKER.process, WORKER.threads[0]),
        correlationId=[row["correlation"] for row in rows],
        nameId=[db.string(row["name"] + SUFFIX.get(row["name"], "_v7000")) for row in rows],
        eventClass=0,
        returnValue=0,
    )


def _sampled(rows: Sequence[Mapping[str, Any]], shift: int, times: Int) -> dict[str, Int]:
    """Return the metrics at these times, percent of the time since the one before."""
    spans = _times(rows, shift)
    kernels = [row["kernel"] for row in rows]
    dur_s = (spans["end"] - spans["start"]) / 1e9
    sheet = hardware.peaks(GPU)
    bandwidth = sheet.bandwidth() if sheet else np.nan
    moved = np.array([kernel.bytes for kernel in kernels]) / dur_s / bandwidth
    issued = np.array([kernel.flops / kernel.peak_flops_per_s for kernel in kernels]) / dur_s
    on_tensor_cores = np.array([kernel.is_product and "sgemm" not in kernel.full_name for kernel in kernels])
    shares = {
        "GR Active [Throughput %]": np.ones(len(rows)),
        "SMs Active [Throughput %]": np.array([min(1.0, kernel.grid_blocks / SM_COUNT) for kernel in kernels]),
        "SM Issue [Throughput %]": np.where(on_tensor_cores, issued / 4, issued),
        "Tensor Active [Throughput %]": np.where(on_tensor_cores, issued, 0.0),
        "DRAM Read Bandwidth [Throughput %]": READ_FRAC * moved,
        "DRAM Write Bandwidth [Throughput %]": (1 - READ_FRAC) * moved,
    }
    values = {name: np.rint(100 * _means(share, spans, times)).astype(np.int64) for name, share in shares.items()}
    clock = np.full(len(times), CLOCK_MHZ * 1_000_000, np.int64)
    return values | {"GPC Clock Frequency [MHz]": clock, "SYS Clock Frequency [MHz]": clock}


def _means(share: NDArray[np.float64], spans: Mapping[str, Int], times: Int) -> NDArray[np.float64]:
    """Return the mean since the time before of what is `share` while its kernel runs and 0 otherwise."""
    edges = np.stack([spans["start"], spans["end"]], axis=1).ravel()
    area = np.cumsum(np.stack([np.zeros(len(share)), share * (spans["end"] - spans["start"])], axis=1).ravel())
    until = np.interp(times, edges, area)
    return np.asarray(np.diff(until, prepend=0.0) / np.diff(times, prepend=0), np.float64)

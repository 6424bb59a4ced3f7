"""Write a simulated run as Nsight Systems would have exported it: SQLite in the schema 3.7.2 of version 2023.4.4.

A table exists only if something was written to it; columns that no simulation fills stay NULL. The machine is an NVIDIA
A100 80GB PCIe, with the figures that a real export of that card has. GPU metrics are integer percentages, 0..100, and
clocks in Hz, `SAMPLES` times or fewer: the shares of the GPU that a running kernel takes. A second file holds the truth
about the run, counted without perfkit's analyses.
"""

from __future__ import annotations

import json
import os
import sqlite3
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from make.simulate.program import GPU, STREAM, THREADS, Rows, Setup, executed, peaks, step
from perfkit import names
from perfkit.errors import PerfkitError

Int = NDArray[np.int64]

FIRST_NS = 10_000_000  # on the capture's axis
T0_UNIX_NS = 1_750_075_200_000_000_000
SAMPLE_NS, SAMPLES = 1_000_000, 1_000  # least distance, and about the most of them
READ_FRAC = 0.6  # of a kernel's bytes; the others are written
REGISTERS, CLOCK_MHZ = 64, 1_410
SUFFIX = {
    "cudaStreamSynchronize": "_v3020",
    "cudaDeviceSynchronize": "_v3020",
    "cudaMemcpyAsync": "_v3020",
}
PLAIN = dict.fromkeys(("gridY", "gridZ", "blockY", "blockZ", "launchType"), 1)
PLAIN |= dict.fromkeys(("staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread"), 0)
PLAIN |= {"localMemoryTotal": 0, "registersPerThread": REGISTERS, "blockX": THREADS}
VM = 1 << 48
CONTEXT = 1
ROWS_AT_ONCE = 65_536

COPY_KIND = {"H2D": 1, "D2H": 2, "D2D": 8}

CARD: dict[str, int | str] = tomllib.loads(
    Path(__file__).with_name("card.toml").read_text(encoding="utf-8")
)

SHARES = (
    *(
        "GR Active",
        "SMs Active",
        "SM Issue",
        "Tensor Active",
        "Vertex/Tess/Geometry Warps in Flight",
    ),
    *("Pixel Warps in Flight", "Compute Warps in Flight", "Unallocated Warps in Active SMs"),
    *("DRAM Read Bandwidth", "DRAM Write Bandwidth", "PCIe RX Throughput", "PCIe TX Throughput"),
)
CLOCKS = ("GPC Clock Frequency [MHz]", "SYS Clock Frequency [MHz]")
METRICS = (*CLOCKS, *(f"{share} [Throughput %]" for share in SHARES))


STATEMENTS = (
    Path(__file__)
    .with_name("nsys.sql")
    .read_text(encoding="utf-8")
    .partition("\n")[2]
    .split(";\n")[:-1]
)
TABLES = {text.split()[2]: text for text in STATEMENTS if text.startswith("CREATE")}


class Worker(NamedTuple):
    """Who calls, and which GPU works; a process with several workers has a `lane` for each."""

    process: int
    gpu: int = 0
    lane: int = 0

    @property
    def threads(self) -> tuple[int, int]:
        """Thread ids: the one that runs the script, and the framework's for the backward pass."""
        main = self.process + 100 * self.lane
        return main, main + 61


WORKER = Worker(4_242)


def write(name: str, setup: Setup, folder: str | Path) -> Path:
    """Write the run of a setup into a folder, made if it does not exist, and return the folder."""
    folder = Path(folder)
    rows = executed(setup)
    described = {key: value for key, value in asdict(setup).items() if key != "gpu"}
    content = {"simulated": f"{name}: no GPU ran", "setup": described, **truth(setup, rows)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with writing(folder / f"{name}.nsys.sqlite") as db:
            _write(db, name, rows, setup.gpu)
        (folder / f"{name}.truth.json").write_text(
            json.dumps(content, indent=1) + "\n", encoding="utf-8"
        )
    except OSError as e:
        raise PerfkitError(
            f"{folder}: cannot be written ({e.strerror}). Choose another folder."
        ) from e
    return folder


def truth(setup: Setup, rows: Rows) -> dict[str, Any]:
    """Return what is true of a run.

    `kernels_count` of all steps; `step_flops` of the matrix products; `busy_ns`, the time of all kernels, which run one
    after another; `span_ns` from the first one's start to the last one's end; `step_ns`, average distance of the steps'
    first kernels; `busy_frac`, 0..1, of these steps' time, without the last.
    """
    kernels = step(setup)
    start, dur = (np.array([row[key] for row in rows["kernels"]]) for key in ("start_ns", "dur_ns"))
    first, last = int(start[0]), int(start[-len(kernels)])
    before_last = len(start) - len(kernels)
    return {
        "kernels_count": len(start),
        "step_flops": sum(kernel.flops for kernel in kernels),
        "busy_ns": int(dur.sum()),
        "span_ns": int(start[-1] + dur[-1] - first),
        "step_ns": (last - first) / max(setup.steps - 1, 1),
        "busy_frac": float(dur[:before_last].sum() / (last - first)) if before_last else 1.0,
    }


def _write(db: Database, name: str, rows: Rows, gpu: str) -> None:
    calls = rows["calls"]
    shift = FIRST_NS - calls[0]["start_ns"]
    end = shift + max(row["start_ns"] + row["dur_ns"] for row in calls)
    words = {
        "label": f"perfkit simulate {name}: no GPU ran",
        "arguments": f"train.py --experiment {name}",
    }
    write_session(db, **words, dur_ns=end + FIRST_NS, workers=[WORKER])
    write_gpus(db, t0_unix_ns=T0_UNIX_NS, gpus=1, workers=[WORKER], card=card(gpu))
    _write_kernels(db, rows["kernels"], shift)
    _write_copies(db, rows["copies"], shift)
    db.append(
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        **_times(calls, shift),
        globalTid=global_id(WORKER.process, WORKER.threads[0]),
        correlationId=[row["correlation"] for row in calls],
        nameId=[db.string(row["name"] + SUFFIX.get(row["name"], "_v7000")) for row in calls],
        eventClass=0,
        returnValue=0,
    )
    spans, texts = _times(rows["ranges"], shift), [row["name"] for row in rows["ranges"]]
    thread = global_id(WORKER.process, WORKER.threads[0])
    db.append("NVTX_EVENTS", **spans, eventType=59, text=texts, globalTid=thread, domainId=0)
    every = max(SAMPLE_NS, end // SAMPLES)
    times = np.arange(every, end, every, dtype=np.int64)
    write_samples(db, gpu=0, times=times, values=_sampled(rows["kernels"], shift, times, gpu))


def _times(rows: Sequence[Mapping[str, Any]], shift: int) -> dict[str, Int]:
    start = np.array([row["start_ns"] for row in rows], np.int64) + shift
    return {"start": start, "end": start + np.array([row["dur_ns"] for row in rows], np.int64)}


def _work(rows: Sequence[Mapping[str, Any]], shift: int) -> dict[str, Any]:
    numbers = np.array([row["correlation"] for row in rows], np.int64)
    place = {
        "deviceId": 0,
        "contextId": CONTEXT,
        "globalPid": global_id(WORKER.process),
        "streamId": STREAM,
    }
    return {**_times(rows, shift), "correlationId": numbers, **place}


def _write_kernels(db: Database, rows: Sequence[Mapping[str, Any]], shift: int) -> None:
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


def _write_copies(db: Database, rows: Sequence[Mapping[str, Any]], shift: int) -> None:
    ends = [(int(row["pinned"]), 2)[:: 1 if row["direction"] == "H2D" else -1] for row in rows]
    db.append(
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        **_work(rows, shift),
        bytes=[row["bytes"] for row in rows],
        copyKind=[COPY_KIND[row["direction"]] for row in rows],
        srcKind=[source for source, _ in ends],
        dstKind=[aim for _, aim in ends],
    )


def _sampled(rows: Sequence[Mapping[str, Any]], shift: int, times: Int, gpu: str) -> dict[str, Int]:
    """Return the metrics at these times, percent of the time since the one before."""
    spans = _times(rows, shift)
    kernels = [row["kernel"] for row in rows]
    dur_s = (spans["end"] - spans["start"]) / 1e9
    sheet = peaks(gpu)
    bandwidth = sheet.bandwidth()
    moved = np.array([kernel.bytes for kernel in kernels]) / dur_s / bandwidth
    issued = np.array([kernel.flops / kernel.peak_flops_per_s for kernel in kernels]) / dur_s
    on_tensor_cores = np.array(
        [kernel.is_product and "sgemm" not in kernel.full_name for kernel in kernels]
    )
    shares = {
        "GR Active": np.ones(len(rows)),
        "SMs Active": np.array(
            [min(1.0, kernel.grid_blocks / sheet.sm_count) for kernel in kernels]
        ),
        "SM Issue": np.where(on_tensor_cores, issued / 4, issued),
        "Tensor Active": np.where(on_tensor_cores, issued, 0.0),
        "DRAM Read Bandwidth": READ_FRAC * moved,
        "DRAM Write Bandwidth": (1 - READ_FRAC) * moved,
    }
    edges, means = np.stack([spans["start"], spans["end"]], axis=1).ravel(), {}
    for (
        name,
        share,
    ) in shares.items():  # its mean since the time before, of what is 0 while no kernel runs
        area = np.cumsum(
            np.stack(
                [np.zeros(len(share)), share * (spans["end"] - spans["start"])], axis=1
            ).ravel()
        )
        mean = np.diff(np.interp(times, edges, area), prepend=0.0) / np.diff(times, prepend=0)
        means[f"{name} [Throughput %]"] = np.rint(100 * mean).astype(np.int64)
    return means | dict.fromkeys(CLOCKS, np.full(len(times), CLOCK_MHZ * 1_000_000, np.int64))


class Database:
    """A file that is being written."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._made: set[str] = set()
        self._strings: dict[str, int] = {}

    def string(self, text: str) -> int:
        """Return the id of a text in the file's StringIds."""
        return self._strings.setdefault(text, len(self._strings))

    def append(self, table: str, **columns: int | Int | Sequence[object]) -> None:
        """Append rows: a column is one number for all rows, or one value per row."""
        varying = [value for value in columns.values() if not isinstance(value, int)]
        if not len(varying[0]):
            return
        self._make(table)
        marks = [str(value) if isinstance(value, int) else "?" for value in columns.values()]
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(marks)})"
        for first in range(0, len(varying[0]), ROWS_AT_ONCE):
            parts = [value[first : first + ROWS_AT_ONCE] for value in varying]
            lists = [part.tolist() if isinstance(part, np.ndarray) else part for part in parts]
            self._connection.executemany(statement, zip(*lists, strict=True))

    def _make(self, table: str) -> None:
        if table not in self._made:
            self._connection.execute(TABLES[table])
            self._made.add(table)

    def finish(self) -> None:
        """Write the tables that every export has."""
        for statement in STATEMENTS:
            table = statement.split()[2]
            if statement.startswith("INSERT"):
                self._make(table)
                self._connection.execute(statement)
        self.append("StringIds", id=list(self._strings.values()), value=list(self._strings))
        self._connection.commit()


@contextmanager
def writing(path: Path) -> Iterator[Database]:
    """Open a new file at `path`, which appears, or is replaced, when the block ends without an error."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    connection = sqlite3.connect(part)
    try:
        connection.execute("PRAGMA page_size = 4096")
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        database = Database(connection)
        yield database
        database.finish()
        connection.close()
        os.replace(part, path)
    finally:
        connection.close()
        part.unlink(missing_ok=True)


def global_id(process: int, thread: int = 0) -> int:
    """Return the vendor's global id of a process or of one of its threads."""
    return VM | process << 24 | thread


def write_session(
    db: Database, *, label: str, arguments: str, dur_ns: int, workers: Sequence[Worker]
) -> None:
    """Write what was recorded: `label` says that it is simulated."""
    capture = [
        ("SIMULATED", label),
        ("CAPTURE_EVENT_TYPE", "Cuda"),
        ("CAPTURE_EVENT_TYPE", "NvtxEvents"),
    ]
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


def card(gpu: str) -> dict[str, int | str]:
    """Return what an export says of a GPU of the Ampere generation."""
    if gpu == GPU:
        return CARD
    sheet = peaks(gpu)
    major, minor = map(int, sheet.compute_capability.split("."))
    described: dict[str, int | str] = {
        "name": gpu,
        "smCount": sheet.sm_count,
        "clockRate": round(sheet.clock_hz),
        "memoryBandwidth": round(sheet.bandwidth()),
    }
    capability = {"computeMajor": major, "computeMinor": minor, "smMajor": major, "smMinor": minor}
    return CARD | described | capability


def write_gpus(
    db: Database,
    *,
    t0_unix_ns: int,
    gpus: int,
    workers: Sequence[Worker],
    card: Mapping[str, int | str] = CARD,
) -> None:
    """Write the wall clock at time 0, the GPUs and each worker's context on its GPU."""
    utc = datetime.fromtimestamp(t0_unix_ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    db.append(
        "TARGET_INFO_SESSION_START_TIME", utcEpochNs=t0_unix_ns, utcTime=[utc], localTime=[utc]
    )
    for gpu in range(gpus):
        described = {key: [value] for key, value in card.items()}
        place = {
            "busLocation": [f"0000:{gpu + 1:02x}:00.0"],
            "uuid": [f"00000000-0000-0000-0000-{gpu:012d}"],
        }
        db.append(
            "TARGET_INFO_GPU", vmId=VM, id=gpu, cuDevice=gpu, pwGpuId=gpu, **described, **place
        )
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

"""The 29 families of files: small seeds, and the mutators that fit them; of timelines, an oracle without perfkit.

An oracle returns per table the number of rows that a file states and the sum of one column; it returns nothing where it
cannot judge.
"""

import gzip
import io
import json
import os
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from dumps import dump_files
from fuzz.oracles import Counts, Unjudged, of_nsys_folder, of_nsys_sqlite, of_torch
from readers import (
    dcgm_files,
    deepspeed_files,
    experiment_files,
    hpctoolkit_files,
    inspector_files,
    nccl_files,
    ncu_files,
    nsys_files,
    rocpd_files,
    smi_files,
    torch_files,
)

Oracle = Callable[[Path], Counts]

SUMMED = dict.fromkeys(("KERNELS", "API_CALLS", "OS_CALLS", "OPS", "PYTHON_CALLS"), "dur_ns") | {
    "COPIES": "bytes"
}
TEXT_BYTES = 24_000  # of a log; a longer one is cut at an end of a line
EVENTS = 160  # of a trace
ROWS = 120  # of a table of an nsys export


@dataclass(frozen=True)
class Seed:
    """A file, or a folder of files, as bytes by relative path; `entry` is what perfkit loads ("" is the folder)."""

    name: str
    files: dict[str, bytes]
    entry: str

    def write(self, folder: Path) -> Path:
        for name, data in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        return folder / self.entry


@dataclass(frozen=True)
class Family:
    """One format: kinds of mutators with their weights, what is made, the oracle, and its share of all mutants."""

    name: str
    kinds: dict[str, int]
    made: Callable[[Path], Iterable[Path | Seed]]
    oracle: Oracle | None = None
    share: float = 1.0


def shelf() -> Path | None:
    """Return the folder of real captures, named by PERFKIT_PROFILES, or None."""
    named = os.environ.get("PERFKIT_PROFILES")
    return Path(named) if named and Path(named).is_dir() else None


# Seeds


def _shelf_files(*patterns: str) -> Iterator[Path]:
    root = shelf()
    if root:
        for pattern in patterns:
            yield from sorted(root.glob(pattern))


def _file(path: Path, data: bytes | None = None) -> Seed:
    return Seed(path.name, {path.name: path.read_bytes() if data is None else data}, path.name)


def _folder(path: Path, names: Iterable[str] | None = None) -> Seed:
    files = [
        item
        for item in sorted(path.rglob("*"))
        if item.is_file() and (names is None or item.name in names)
    ]
    return Seed(
        path.name,
        {f"{path.name}/{item.relative_to(path)}": item.read_bytes() for item in files},
        path.name,
    )


def _short(data: bytes, size: int = TEXT_BYTES) -> bytes:
    return data if len(data) <= size else data[: data.rindex(b"\n", 0, size) + 1]


def _dcgm_prom(work: Path) -> Iterator[Path]:
    stamped = [
        f"{line} 1700000000500" if not line.startswith("#") else line for line in dcgm_files.page()
    ]
    yield dcgm_files.scrape(work / "s.prom", *dcgm_files.page())
    yield dcgm_files.scrape(work / "stamped.prom", *stamped)


def _prom_answer(work: Path) -> Iterator[Path]:
    yield dcgm_files.stored(work / "gpus.json")
    values = [40 + i % 7 for i in range(40)]
    names = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_PROF_SM_ACTIVE")
    series = [dcgm_files.series(name, *values, gpu=gpu) for name in names[:2] for gpu in range(3)]
    yield dcgm_files.answer(
        work / "more.json", *series, dcgm_files.series(names[2], 0.5, 0.25, "NaN")
    )


def _smi_dmon(work: Path) -> Iterator[Path]:
    yield smi_files.dmon(work / "dmon.txt", *smi_files.ticks(10))
    dated = [("20260101", f"00:00:{i // 2:02d}", *row) for i, row in enumerate(smi_files.ticks(10))]
    yield smi_files.dmon(work / "dated.txt", *dated, columns=("Date", "Time", *smi_files.COLUMNS))


def _smi_q_text(work: Path) -> Iterator[Path]:
    yield smi_files.text(work / "gpu.txt")
    times = ("Thu Jan  1 00:00:02 2026", "Thu Jan  1 00:00:03 2026")
    yield smi_files.text(work / "twice.txt", gpus=3, times=times)


def _smi_xml(work: Path) -> Iterator[Path]:
    yield smi_files.xml(work / "gpu.xml", smi_files.gpu(), smi_files.gpu({"uuid": "GPU-2"}))


def _rocm(work: Path) -> Iterator[Path]:
    yield smi_files.rocm(work / "gpu.json", smi_files.card(), smi_files.card({"GPU use (%)": "3"}))
    yield smi_files.rocm(work / "twice.json", smi_files.card(), times=3)
    yield smi_files.amd(work / "amd.json", [smi_files.metric(0), smi_files.metric(1)])
    yield smi_files.amd_csv(work / "amd.csv", *smi_files.AMD_ROWS)


def _nccl_tests(work: Path) -> Iterator[Path]:
    yield nccl_files.written(work / "new.log", nccl_files.table())
    yield nccl_files.written(work / "old.log", nccl_files.old_table(nccl_files.rows()))


def _nccl_json(work: Path) -> Iterator[Path]:
    yield nccl_files.reported(work / "r.json", nccl_files.report())
    told = nccl_files.report(
        version=1, results=[nccl_files.result(*row) for row in nccl_files.ROWS]
    )
    yield nccl_files.reported(work / "short.json", told)


def _megatron(work: Path) -> Iterator[Path]:
    yield nccl_files.written(work / "t.log", deepspeed_files.training())
    many = [deepspeed_files.timed(n, 1000.0 + n, actual_seqlen=1024) for n in range(1, 30)]
    yield nccl_files.written(
        work / "many.log", ["using world size: 4, data-parallel-size: 4", *many]
    )


def _ncu_csv(work: Path) -> Iterator[Path]:
    yield ncu_files.raw(work / "raw.csv", *(ncu_files.full(n) for n in range(4)), end=True)
    yield ncu_files.details(work / "details.csv", *(ncu_files.full(n) for n in range(3)), end=True)


def _exports(work: Path) -> Iterator[Path]:
    """Small SQLite exports: a made one, and real ones with few rows a table."""
    yield nsys_files.sqlite(work / "made.sqlite", _larger())
    wanted = (
        "GindaChen__nsys-ai__healthy*",
        "extra-p__extrap__profile1*",
        "*DLProf__w_Relu_nsys_profile.sqlite",
        "*mfu_2gpu*",
    )
    for path in _shelf_files(*(f"nsys/{name}" for name in wanted)):
        yield _cut_down(path, work / path.name)


def _larger() -> nsys_files.Tables:
    made = nsys_files.capture()
    for i in range(20):
        start = 10_000 * (i + 1)
        made[nsys_files.KERNEL].append(nsys_files.kernel(start, start + 900, f"k{i % 3}"))
        made[nsys_files.RUNTIME].append(nsys_files.call(start - 500, start - 400))
        made[nsys_files.NVTX].append(nsys_files.event(start - 1000, start + 1000, f"step {i}"))
        made["GPU_METRICS"].append(nsys_files.sample(200 + 100 * i, i))
    return made


def _cut_down(source: Path, target: Path) -> Path:
    """Copy an export with at most ROWS rows of each table, and the names that these rows use."""
    with (
        closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True)) as old,
        closing(sqlite3.connect(target)) as new,
    ):
        used: set[int] = set()
        old.text_factory = lambda text: text.decode("utf-8", "replace")
        tables = old.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        ).fetchall()
        for name, made in tables:
            new.execute(made)
            few = "" if name == "StringIds" else f" LIMIT {ROWS}"
            rows = old.execute(f'SELECT * FROM "{name}"{few}').fetchall()
            if name == "StringIds":
                strings = rows
                continue
            used |= {cell for row in rows for cell in row if isinstance(cell, int)}
            if rows:
                new.executemany(
                    f'INSERT INTO "{name}" VALUES ({", ".join("?" * len(rows[0]))})', rows
                )
        new.executemany(
            "INSERT INTO StringIds VALUES (?, ?)", [row for row in strings if row[0] in used]
        )
        new.commit()
        new.execute("VACUUM")
    return target


def _arrow_tables(path: Path) -> dict[str, pa.Table]:
    found = {}
    with closing(sqlite3.connect(path)) as database:
        names = [
            name
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        for name in names:
            cursor = database.execute(f'SELECT * FROM "{name}"')
            rows = cursor.fetchall()
            if rows and (not name.startswith("ENUM_")) and name != "TARGET_INFO_SYSTEM_ENV":
                columns = zip(
                    (part[0] for part in cursor.description), zip(*rows, strict=True), strict=True
                )
                found[name] = pa.table({column: _typed(list(cells)) for column, cells in columns})
    return found


def _typed(cells: list[Any]) -> pa.Array:
    kinds = {type(cell) for cell in cells if cell is not None}
    if kinds <= {int}:
        return pa.array(cells, pa.int64())
    return (
        pa.array(cells)
        if len(kinds) == 1
        else pa.array([None if c is None else str(c) for c in cells], pa.string())
    )


def written(table: pa.Table, form: str) -> bytes:
    """Return a table as a Parquet file, an Arrow file or an Arrow stream."""
    sink = io.BytesIO()
    if form == "parquet":
        pq.write_table(table, sink)
    else:
        with {"arrow": pa.ipc.new_file, "stream": pa.ipc.new_stream}[form](
            sink, table.schema
        ) as writer:
            writer.write_table(table)
    return sink.getvalue()


def _parts(work: Path, form: str) -> Iterator[Seed]:
    suffix, ending = ("_pqtdir", "parquet") if form == "parquet" else ("_arwdir", "arrow")
    for path in _exports(work):
        tables = _arrow_tables(path)
        name = f"{path.stem[-12:].strip('_')}{suffix}"
        files = {f"{name}/{t}.{ending}": written(table, form) for t, table in tables.items()}
        yield Seed(name, files, name)


def _nsys_pq(work: Path) -> Iterator[Seed]:
    yield from _parts(work, "parquet")
    for path in _shelf_files("nsys/ayush*_pqtdir"):
        parts = [
            part
            for part in sorted(path.iterdir())
            if not part.name.startswith(("ENUM_", "TARGET_INFO_SYSTEM"))
        ]
        files = {
            f"real_pqtdir/{part.name}": part.read_bytes()
            for part in parts
            if part.stat().st_size < 50_000
        }
        yield Seed("real_pqtdir", files, "real_pqtdir")


def _nsys_arrow(work: Path) -> Iterator[Seed]:
    yield from _parts(work, "arrow")
    first = next(_parts(_inside(work, "stream"), "stream"))
    yield first


def _inside(work: Path, name: str) -> Path:
    (work / name).mkdir()
    return work / name


def _hpct_v4(work: Path) -> Iterator[Seed]:
    yield _folder(hpctoolkit_files.sample(work / "toy-database"))
    names = {f"{name}.db" for name in ("meta", "profile", "cct", "trace")}
    wanted = ("hpctoolkit/hpctoolkit-ping-pong-database", "hpctoolkit/*loops-hip-amd-t-database")
    for path in _shelf_files(*wanted):
        yield _folder(path, names)


def _hpct_old(work: Path) -> Iterator[Seed]:
    yield _folder(experiment_files.sample(work / "toy"))
    for path in _shelf_files("hpctoolkit/hpctoolkit-cpi-database"):
        yield _folder(path)


def _dump() -> dict[str, Any]:
    return dump_files.dump([dump_files.entry(number) for number in range(1, 9)])


def _dumps(work: Path) -> Iterator[Path]:
    yield dump_files.pickled(work / "_dump_0", _dump())
    yield from _shelf_files("flight_recorder/*gpu_error_1st/_dump_1[24]")


def _snapshots(work: Path) -> Iterator[Path]:
    for name, protocol in (("old.pickle", 2), ("new.pickle", 4)):
        content = dump_files.snapshot(dump_files.steps(), refused=1 << 30)
        yield dump_files.pickled(work / name, content, protocol)


def _inspector(work: Path) -> Iterator[Path]:
    lines = [inspector_files.line(0, number, 300 + number, ranks=1) for number in range(1, 20)]
    yield inspector_files.process(work / "host-pid1.log", lines)


def _rocpd(work: Path) -> Iterator[Path]:
    for schema in (3, 4):
        path = work / f"schema{schema}.db"
        yield rocpd_files.rocpd(path, schema, counted=rocpd_files.COUNTED)


def _rocpd_pages(work: Path) -> Iterator[Seed]:
    """The files of a process with a trace, and those of one with counters alone."""
    for name, ends in (("trace", ()), ("counters", ("counter_collection", "agent_info"))):
        first = rocpd_files.pages(work / name, *ends)
        yield replace(_folder(first.parent), entry=f"{name}/{first.name}")


def _traces(work: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "made", torch_files.sample()
    wanted = (
        *(
            "HTA__call_stack*",
            "HTA__amd_trace*",
            "kineto__before_fix*",
            "TraceLens__torch_compile*",
            "kineto__gpu_metrics*",
        ),
        *(
            "TraceLens__h100__gaunernst*",
            "HTA__cuda_event_sync*",
            "TraceLens__vllm_decode*",
            "HTA__alexnet*",
        ),
    )
    for path in _shelf_files(*(f"torch/{name}" for name in wanted)):
        data = path.read_bytes()
        trace = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        if isinstance(trace, dict) and isinstance(trace.get("traceEvents"), list):
            yield (
                path.name.split(".")[0][:30],
                {**trace, "traceEvents": _some(trace["traceEvents"])},
            )


def _some(events: list[Any]) -> list[Any]:
    seen: Counter[str] = Counter()
    kept = []
    for event in events:
        kind = str(event.get("cat", event.get("ph"))) if isinstance(event, dict) else ""
        seen[kind] += 1
        if seen[kind] <= EVENTS // 8 and len(kept) < EVENTS:
            kept.append(event)
    return kept


def _torch_json(work: Path) -> Iterator[Seed]:
    for i, (name, trace) in enumerate(_traces(work)):
        write = (torch_files.printed, torch_files.minified)[i % 2]
        yield _file(write(work / f"{name}.json", trace))


def _torch_gz(work: Path) -> Iterator[Seed]:
    for name, trace in _traces(work):
        data = gzip.compress(json.dumps(trace).encode(), mtime=0)
        yield Seed(name, {f"{name}.json.gz": data}, f"{name}.json.gz")


def counts(family: str, path: Path) -> Counts | None:
    """Return what the family's oracle counts in a file, or None where it cannot judge."""
    oracle = FAMILIES[family].oracle
    if not oracle:
        return None
    try:
        return oracle(path)
    except (Unjudged, OSError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError):
        return None
    except (sqlite3.Error, pa.ArrowException):
        return None


TEXT = {"text": 80, "binary": 20}
JSON = {"json": 60, "text": 20, "binary": 20}
FOLDER = {"columns": 65, "binary": 30, "unlink": 5}

# The real files that are seeds beside the made ones: logs, cut if they are long, or files below a size.
REAL = {
    "dcgm_dmon": "monitor/dcgmi_dmon_*.txt",
    "dcgm_prom": "monitor/dcgm_exporter_*.prom monitor/nvidia_gpu_exporter__*h100-mig*.metrics",
    "smi_dmon": "monitor/dmon_*.txt monitor/nvidia-smi__*__load__dmon.txt",
    "smi_query": "monitor/smi_query__*.csv monitor/nvidia-smi__*h100*__load__query-gpu.csv monitor/xypp3*.csv",
    "smi_xml": "monitor/nvidia-smi_xml__*.xml",
    "rocm": "monitor/rocm-smi_json__*.json",
    "nccl_tests": "monitor/nccl_tests__*cluster00*.log monitor/nccl_tests__*polaris_nccl_2_18_n2*all_reduce* "
    "monitor/nccl_tests__*sirius* monitor/*_mpi_tagged.txt monitor/superbench__nccl_alltoall.log "
    "monitor/lessizzmore*.txt",
    "nccl_log": "monitor/nccl_debug_info_*.txt monitor/nccl_log__*_with_aws.log",
    "megatron": "monitor/superbench__megatron_deepspeed.log",
    "deepspeed": "monitor/deepspeed_flops_profiler_*.txt",
    "ncu_csv": "ncu/Olajide*.csv golden/ncu/NVIDIA*.csv golden/ncu/extra-p*.csv",
    "ncu_rep": "ncu/NVIDIA*CuVectorAddDrv.ncu-rep ncu/extra-p*.ncu-rep",
}
BELOW = {"smi_xml": 30_000, "ncu_csv": TEXT_BYTES, "rocm": 10**9, "ncu_rep": 10**9}


@cache
def seeds(family: str) -> tuple[Seed, ...]:
    with tempfile.TemporaryDirectory() as folder:
        made = [
            each if isinstance(each, Seed) else _file(each)
            for each in FAMILIES[family].made(Path(folder))
        ]
    for path in _shelf_files(*REAL.get(family, "").split()):
        if family not in BELOW:
            made.append(_file(path, _short(path.read_bytes())))
        elif path.stat().st_size < BELOW[family]:
            made.append(_file(path))
    return tuple(made)


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(
            "dcgm_dmon", TEXT, lambda w: [dcgm_files.dmon(w / "dmon.txt", *dcgm_files.ticks(8))]
        ),
        Family("dcgm_prom", TEXT, _dcgm_prom),
        Family("prom_answer", JSON, _prom_answer),
        Family("smi_dmon", TEXT, _smi_dmon),
        Family(
            "smi_query", TEXT, lambda w: [smi_files.query(w / "query.csv", *smi_files.moments(12))]
        ),
        Family("smi_q_text", TEXT, _smi_q_text),
        Family("smi_xml", TEXT, _smi_xml),
        Family("rocm", JSON, _rocm),
        Family("nccl_tests", TEXT, _nccl_tests),
        Family("nccl_json", JSON, _nccl_json),
        Family("nccl_log", TEXT, lambda w: [nccl_files.sample(w / "rank0.log")]),
        Family("megatron", TEXT, _megatron),
        Family(
            "deepspeed",
            TEXT,
            lambda w: [nccl_files.written(w / "report.txt", deepspeed_files.report())],
        ),
        Family("ncu_csv", TEXT, _ncu_csv),
        Family(
            "ncu_rep",
            {"binary": 100},
            lambda w: [ncu_files.report(w / "report.ncu-rep")],
            share=0.15,
        ),
        Family("nsys_sqlite", {"sql": 65, "binary": 35}, _exports, of_nsys_sqlite, share=1.5),
        Family("nsys_pq", FOLDER, _nsys_pq, of_nsys_folder),
        Family("nsys_arrow", FOLDER, _nsys_arrow, of_nsys_folder),
        Family("hpct_v4", {"binary": 96, "unlink": 4}, _hpct_v4),
        Family("hpct_old", {"text": 40, "binary": 50, "unlink": 10}, _hpct_old),
        Family("flight_recorder", {"binary": 100}, _dumps),
        Family(
            "flight_json",
            JSON,
            lambda w: [dump_files.as_json(w / "dump_0.json", _dump())],
        ),
        Family("memory_snapshot", {"binary": 100}, _snapshots),
        Family("nccl_inspector", TEXT, _inspector),
        Family("rocpd", {"sql": 65, "binary": 35}, _rocpd),
        Family("rocpd_json", JSON, lambda w: [rocpd_files.results(w / "42_results.json")]),
        Family("rocpd_csv", TEXT, _rocpd_pages),
        Family("torch_json", JSON, _torch_json, of_torch),
        Family("torch_gz", {"json": 40, "text": 20, "binary": 40}, _torch_gz, of_torch),
    )
}

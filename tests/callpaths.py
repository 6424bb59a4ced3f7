"""Call-path tables in a line each: contexts, their metrics, threads and traces; and a toy program of two entries."""

import pandas as pd

from perfkit.schema import Table
from perfkit.tables import CALL_METRICS, CALLTREE, THREAD_METRICS, THREADS, TRACE

MAIN, WORKER = "main thread", "application thread"
PYTHON = "<logical python>"


def calltree(*rows: dict[str, object]) -> pd.DataFrame:
    """CALLTREE from rows that name at least `node` and `name`; a row without `parent` is an entry point.

    Entry and depth follow from the parents.
    """
    known: dict[object, dict[str, object]] = {}
    for row in rows:
        above = known.get(row.get("parent"))
        own = {"entry": row["name"], "depth": 0, "kind": "entry"}
        if above:
            own = {"entry": above["entry"], "depth": above["depth"] + 1, "kind": "function"}  # type: ignore[operator]
        blank = {"rank": 0, "parent": pd.NA, "file": pd.NA, "line": pd.NA, "module": pd.NA}
        known[row["node"]] = {**blank, **own, **row}
    return CALLTREE.make(pd.DataFrame(list(known.values()), columns=CALLTREE.column_names))


def _made(
    table: Table, columns: str, rows: tuple[tuple[object, ...], ...], **more: object
) -> pd.DataFrame:
    return table.make(pd.DataFrame(rows, columns=columns.split()).assign(rank=0, **more))


def call_metrics(*rows: tuple[int, str, str, float, float]) -> pd.DataFrame:
    return _made(CALL_METRICS, "node metric unit inclusive exclusive", rows)


def threads(*rows: tuple[int, str, str]) -> pd.DataFrame:
    return _made(THREADS, "thread kind name", rows, mpi_rank=pd.NA)


def thread_metrics(*rows: tuple[int, str, str, str, float]) -> pd.DataFrame:
    return _made(THREAD_METRICS, "thread entry metric unit inclusive", rows)


def trace(*rows: tuple[int, int, int, int, bool]) -> pd.DataFrame:
    return _made(TRACE, "thread start_ns dur_ns node ended", rows)


def toy_tree() -> pd.DataFrame:
    """Main thread: train.py:12 calls mm (a kernel and a copy in); a worker's backward pass runs the same kernel."""
    return calltree(
        {"node": 1, "name": MAIN},
        {"node": 2, "parent": 1, "name": "train", "module": PYTHON},
        {
            "node": 3,
            "parent": 2,
            "name": "train.py:12",
            "kind": "line",
            "file": "/job/train.py",
            "line": 12,
        },
        {"node": 4, "parent": 3, "name": "at::mm(at::Tensor)", "module": "/lib/libtorch.so"},
        {"node": 5, "parent": 4, "name": "<gpu kernel>", "kind": "gpu_operation"},
        {"node": 6, "parent": 5, "name": "sgemm(float*)", "module": "gpubins/a.gpubin"},
        {"node": 7, "parent": 4, "name": "<gpu copyin>", "kind": "gpu_operation"},
        {"node": 10, "name": WORKER},
        {"node": 11, "parent": 10, "name": "backward()", "module": "/lib/libtorch.so"},
        {"node": 12, "parent": 11, "name": "<gpu kernel>", "kind": "gpu_operation"},
        {"node": 13, "parent": 12, "name": "sgemm(float*)", "module": "gpubins/a.gpubin"},
    )


def toy_metrics() -> pd.DataFrame:
    """CPU 4 s (3 + 1), kernels 2 ms in 200 launches (1 + 1), one copy in of 1 ms and 8 MB: GPU 3 ms."""
    chain = {"GKER": ("s", 0.001), "GKER:COUNT": ("count", 100.0)}
    copied = {"GXCOPY": ("s", 0.001), "GXCOPY:COUNT": ("count", 1.0), "GXCOPY:H2D": ("bytes", 8e6)}
    rows: list[tuple[int, str, str, float, float]] = []
    for metric, (unit, value) in chain.items():
        rows += [
            (node, metric, unit, value, value if node in (5, 12) else 0.0)
            for node in (1, 2, 3, 4, 5, 10, 11, 12)
        ]
    for metric, (unit, value) in copied.items():
        rows += [
            (node, metric, unit, value, value if node == 7 else 0.0) for node in (1, 2, 3, 4, 7)
        ]
    rows += [(node, "GPUOP", "s", 0.002, 0.0) for node in (1, 2, 3, 4)]
    rows += [(node, "GPUOP", "s", 0.001, 0.001) for node in (5, 7, 12)]
    rows += [(node, "GPUOP", "s", 0.001, 0.0) for node in (10, 11)]
    rows += [
        (1, "CPUTIME", "s", 3.0, 0.0),
        (2, "CPUTIME", "s", 3.0, 0.0),
        (3, "CPUTIME", "s", 3.0, 1.0),
    ]
    rows += [
        (4, "CPUTIME", "s", 2.0, 2.0),
        (10, "CPUTIME", "s", 1.0, 0.25),
        (11, "CPUTIME", "s", 0.75, 0.75),
    ]
    return call_metrics(*rows)

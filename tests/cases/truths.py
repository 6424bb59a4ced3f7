"""What is true of a recording, worked out from the file itself and without perfkit."""

import csv
import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path

Span = tuple[int, int]
OPERATIONS = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
)
HEAVIEST = """SELECT value, sum(end - start) AS taken FROM CUPTI_ACTIVITY_KIND_KERNEL
    JOIN StringIds ON id = shortName GROUP BY value ORDER BY taken DESC LIMIT 1"""


def rows(path: Path, query: str) -> list[tuple]:
    """The rows of a query on an export of Nsight Systems."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        return database.execute(query).fetchall()


def operations(path: Path) -> list[Span]:
    """Start and end of all kernels, copies and memsets, by start."""
    tables = {name for (name,) in rows(path, "SELECT name FROM sqlite_master")}
    queries = [f"SELECT start, end FROM {name}" for name in OPERATIONS if name in tables]
    return sorted(rows(path, " UNION ALL ".join(queries)))


def union(spans: list[Span]) -> list[Span]:
    """The same time as spans that do not touch."""
    joined: list[Span] = []
    for start, end in spans:
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def length(spans: list[Span]) -> int:
    return sum(end - start for start, end in spans)


def longest_gap(path: Path) -> Span:
    """Start and end of the longest time without an operation."""
    busy = union(operations(path))
    gaps = [(before[1], after[0]) for before, after in pairwise(busy)]
    return max(gaps, key=lambda gap: gap[1] - gap[0])


def span(path: Path) -> int:
    """The time from the first operation to the end of the last one, ns."""
    busy = union(operations(path))
    return busy[-1][1] - busy[0][0]


def busy_without_the_first_kernel(path: Path) -> float:
    """The share of the time in which an operation runs, after the second kernel and before the last.

    The first kernel takes 373 µs, and the others 5 or 6: it is loaded.
    """
    kernels = rows(path, "SELECT start, end FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY start")
    since, until = kernels[2][0], kernels[-1][0]
    busy = [each for each in union(operations(path)) if since <= each[0] < until]
    return length(busy) / (until - since)


def busy_without_the_longest_gap(path: Path) -> float:
    """The share of the time in which an operation runs, where the longest gap does not count."""
    start, end = longest_gap(path)
    return length(union(operations(path))) / (span(path) - (end - start))


def heaviest_kernel(path: Path) -> str:
    """The name of the kernel that takes the most time."""
    return rows(path, HEAVIEST)[0][0]


def utilisation(path: Path, gpu: str) -> float:
    """The mean utilisation of a GPU in a log of nvidia-smi."""
    with path.open(encoding="utf-8") as file:
        readings = list(csv.DictReader(file, skipinitialspace=True))
    used = [float(row["utilization.gpu [%]"].split()[0]) for row in readings if row["index"] == gpu]
    return sum(used) / len(used) / 100

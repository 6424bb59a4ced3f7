"""Which kernels do the programs launch? Tables that lie beside the makers as CSV files.

`mlp_kernels.csv` is Table 5 of the A100 lab report, with the names written out. In it, counts and times (ns) are the
report's, to the nanosecond. The report prints base names only; four full names are those of its section 2.3, the
others are what PyTorch and cuBLAS call the work that the counts imply: 469 training steps of SGD with momentum, 79
test batches and one forward pass more, of a network 784-256-128-10 with a ReLU after every layer. Grids, registers
and shared memory are plausible, not measured. An entry launched more than once in a step has one grid per launch; the
first is the slowest.
"""

import csv
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Grids = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Kernel:
    """A kernel: the row the report has for it, zeros where it has none, and how it is launched."""

    name: str
    full_name: str
    total_ns: int = 0
    count: int = 0
    median_ns: float = 0
    min_ns: int = 0
    max_ns: int = 0
    grids: Grids = ((1, 1),)
    block: int = 128
    registers: int = 24
    shared_bytes: int = 0
    dynamic_shared_bytes: int = 0


def table(name: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file beside the makers."""
    with Path(__file__).with_name(f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def save(path: Path, content: dict[str, Any]) -> None:
    """Write an object as JSON to `path`, which appears only when it is complete."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)


def _kernel(row: dict[str, str]) -> Kernel:
    """Return a kernel of `mlp_kernels.csv`; it has one grid, such as 8x4, for each launch in a step."""
    grids = tuple((int(x), int(y)) for x, y in (grid.split("x") for grid in row["grids"].split()))
    counted = {
        name: int(row[name])
        for name in ("total_ns", "count", "min_ns", "max_ns", "registers", "shared_bytes")
    }
    return Kernel(
        row["name"],
        row["full_name"],
        median_ns=float(row["median_ns"]),
        grids=grids,
        block=int(row["block"]),
        **counted,
    )


KERNELS = {row["key"]: _kernel(row) for row in table("mlp_kernels")}
ALL_REDUCE = KERNELS[
    "all_reduce"
]  # the report lacks it; captures of several GPUs need communication
TABLE_5 = {key: kernel for key, kernel in KERNELS.items() if kernel is not ALL_REDUCE}

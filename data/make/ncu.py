"""How would Nsight Compute of 2025 print launches and their counters as `--csv --page raw --print-units base`?

Log lines first, then a header, a row of units, and a row per launch; every field is quoted, numbers have
thousands separators, and fractional ones two decimals. Units follow from the metrics' names. A metric that a launch
lacks is an empty field. The file says in its log that it is simulated.

One launch per case: double precision, packed half (each instruction works on two values), tensor cores dense and
sparse, both Hopper instruction kinds at once, counted by their sum and by themselves. The numbers are made up so
that wrong factors and double counting show. FLOP are operations as the vendor's roofline counts them.
"""

import csv
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from make.kernels import table

Dim = tuple[int, int, int]
Value = float | str | None

HEADER = (
    *(
        "ID",
        "Process ID",
        "Process Name",
        "Host Name",
        "Kernel Name",
        "Context",
        "Stream",
        "Block Size",
        "Grid Size",
    ),
    *("Device", "CC"),
)
PROCESS = 3_799_129
PROGRAM = "python3.11"

# the first pattern found in a metric's name says its unit
_UNITS = (
    (r"stalled_.*_per_issue_active\.ratio$", "inst"),
    (r"warp_latency_per_inst_issued", "cycle"),
    (r"^launch__(block|grid)_dim|^launch__occupancy_limit_", "block"),
    (r"^launch__shared_mem_per_block", "byte/block"),
    (r"^launch__registers_per_thread", "register/thread"),
    (r"^launch__thread_count", "thread"),
    (r"^launch__sm_count", "SM"),
    (r"^launch__|^device__attribute_|^l1tex__t_requests_", ""),
    (r"\.pct|_pct$", "%"),
    (r"\.ratio$", ""),
    (r"cycles_.*\.per_second$", "hz"),
    (r"bytes.*\.per_second$", "byte/s"),
    (r"time_duration", "ns"),
    (r"cycles.*peak_sustained$|sass_thread_inst.*peak_sustained$", "inst/cycle"),
    (r"bytes.*peak_sustained$", "byte/cycle"),
    (r"cycles", "cycle"),
    (r"bytes", "byte"),
    (r"sectors", "sector"),
    (r"inst_executed|inst_issued", "inst"),
    (r"warps", "warp"),
)


@dataclass(frozen=True)
class Launch:
    """A kernel launch: demangled name, blocks in the grid and threads in a block in x, y and z."""

    name: str
    grid: Dim
    block: Dim
    stream: int = 7


def write(
    path: Path,
    launches: Sequence[Launch],
    metrics: Mapping[str, Sequence[Value]],
    *,
    label: str,
    output: Sequence[str] = (),
    capability: str = "8.0",
) -> Path:
    """Write the raw page of a report to `path` and return it; an older file is replaced when the new one is complete.

    `metrics` are values by metric name, in the order of the columns, one per launch in base units: percent, bytes, ns,
    Hz; ValueError if one has another number of values. The log says `label` of the file's making, and `output`, which
    the profiled program printed. Field order is that of reports of version 2025 (Nsight Compute CLI documentation,
    "Output and pages").
    """
    wrong = [name for name, values in metrics.items() if len(values) != len(launches)]
    if wrong:
        raise ValueError(
            f"metrics: {', '.join(wrong)} have not {len(launches)} values, one per launch"
        )
    part = path.with_name(f".{path.name}.part")
    with part.open("w", encoding="utf-8", newline="") as file:
        file.writelines(f"{line}\n" for line in _log(launches, label, output))
        rows = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        rows.writerow([*HEADER, *metrics])
        rows.writerow([*("" for _ in HEADER), *map(unit, metrics)])
        for i, launch in enumerate(launches):
            rows.writerow(
                [
                    *_launched(i, launch, capability),
                    *(_text(values[i]) for values in metrics.values()),
                ]
            )
    os.replace(part, path)
    return path


def columns(metrics: Mapping[str, Any], count: int) -> dict[str, list[Value]]:
    """Return the metrics as `write` takes them: one value per launch; a single one holds for all `count`."""
    return {
        name: v.tolist() if isinstance(v, np.ndarray) else [v] * count
        for name, v in metrics.items()
    }


def unit(metric: str) -> str:
    """Return the base unit the tool prints for a metric, empty where it prints none."""
    return next((name for pattern, name in _UNITS if re.search(pattern, metric)), "")


def _log(launches: Sequence[Launch], label: str, output: Sequence[str]) -> list[str]:
    """What the tool and the program write before the table."""
    return [
        f"==WARNING== Simulated: {label}",
        f"==PROF== Connected to process {PROCESS} (/usr/bin/{PROGRAM})",
        *output,
        *(
            f'==PROF== Profiling "{_function(launch.name)}" - {i}: 0%....50%....100% - 40 passes'
            for i, launch in enumerate(launches)
        ),
        f"==PROF== Disconnected from process {PROCESS}",
    ]


def _function(name: str) -> str:
    """The name the log prints: without return type, namespaces, template arguments and parameters."""
    before = re.split(r"[<(]", name.replace("<unnamed>::", ""))[0]
    return before.split("::")[-1].split()[-1]


def _launched(number: int, launch: Launch, capability: str) -> list[object]:
    said = [number, PROCESS, PROGRAM, "127.0.0.1", launch.name, 1, launch.stream]
    return [*said, str(launch.block), str(launch.grid), 0, capability]


def _text(value: Value) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    whole = float(value).is_integer()
    return f"{int(value):,}" if whole else f"{value:,.2f}"


CASE_CYCLES = 100_000
CASE_HZ = 1_250_000_000
CASE_NS = 80_000


def cases(path: Path) -> dict[str, dict[str, float]]:
    """Write one launch per case to `path` and return what is true of each: kernel name -> FLOP by column of LAUNCHES.

    A column that is not named was not measured. Every launch takes 80,000 ns: 100,000 cycles at 1.25 GHz.
    """
    rows = table("ncu_cases")
    names = list(dict.fromkeys(row["kernel"] for row in rows))
    launches = [Launch(name, (128, 1, 1), (256, 1, 1)) for name in names]
    metrics: dict[str, list[Value]] = {
        "gpu__time_duration.sum": [CASE_NS] * len(names),
        "sm__cycles_elapsed.avg": [CASE_CYCLES] * len(names),
        "sm__cycles_elapsed.avg.per_second": [CASE_HZ] * len(names),
    }
    for row in rows:
        metrics.setdefault(row["counter"], [None] * len(names))[names.index(row["kernel"])] = int(
            row["value"]
        )
    write(path, launches, metrics, label="perfkit's cases of every precision; no GPU ran")
    return {row["kernel"]: {row["column"]: int(row["flops"])} for row in rows}

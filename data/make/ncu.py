"""How would Nsight Compute of 2025 print launches and their counters as `--csv --page raw --print-units base`?

Conventions
-----------
Log lines first, then a header, a row of units, and a row per launch; every field is quoted, numbers have
thousands separators, and fractional ones two decimals. Units follow from the metrics' names. A metric that a launch
lacks is an empty field. The file says in its log that it is simulated.

One launch per case: double precision, packed half (each instruction works on two values), tensor cores dense and
sparse, both Hopper instruction kinds at once, counted by their sum and by themselves. The numbers are made up so
that wrong factors and double counting show. FLOP are operations as the vendor's roofline counts them.

The CUDA occupancy rules, on this one GPU: warps of 32 threads, registers given out per warp in units of 256 from
quarters of the SM, 1 KiB of shared memory per block kept for the system.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from make.kernels import Kernel
from perfkit.simulate.export import CARD

Dim = tuple[int, int, int]
Value = float | str | None

HEADER = (
    "ID",
    "Process ID",
    "Process Name",
    "Host Name",
    "Kernel Name",
    "Context",
    "Stream",
    "Block Size",
    "Grid Size",
    "Device",
    "CC",
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

    Parameters
    ----------
    path
        The CSV file.
    launches
        In the order they ran.
    metrics
        Values by metric name, in the order of the columns, one value per launch in base units: percent, bytes, ns, Hz.
    label
        What the log says about the file's making.
    output
        What the profiled program printed.
    capability
        Compute capability of the GPU.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    ValueError
        If a metric has not one value per launch.

    References
    ----------
    Nsight Compute CLI documentation, "Output and pages"; field order of reports of version 2025.
    """
    wrong = [name for name, values in metrics.items() if len(values) != len(launches)]
    if wrong:
        raise ValueError(f"metrics: {', '.join(wrong)} have not {len(launches)} values, one per launch")
    part = path.with_name(f".{path.name}.part")
    with part.open("w", encoding="utf-8", newline="") as file:
        file.writelines(f"{line}\n" for line in _log(launches, label, output))
        rows = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        rows.writerow([*HEADER, *metrics])
        rows.writerow([*("" for _ in HEADER), *map(unit, metrics)])
        for i, launch in enumerate(launches):
            rows.writerow([*_launched(i, launch, capability), *(_text(values[i]) for values in metrics.values())])
    os.replace(part, path)
    return path


def columns(metrics: Mapping[str, Any], count: int) -> dict[str, list[Value]]:
    """Return the metrics as `write` takes them: one value per launch; a single one holds for all `count`.

    Examples
    --------
    >>> columns({"a": np.array([1, 2]), "b": 0}, 2)
    {'a': [1, 2], 'b': [0, 0]}
    """
    return {name: v.tolist() if isinstance(v, np.ndarray) else [v] * count for name, v in metrics.items()}


def unit(metric: str) -> str:
    """Return the base unit the tool prints for a metric, empty where it prints none.

    Examples
    --------
    >>> unit("dram__bytes_read.sum"), unit("sm__cycles_elapsed.avg.per_second"), unit("launch__grid_size")
    ('byte', 'hz', '')
    """
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

_THREADS = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
_TENSOR = "sm__ops_path_tensor_{}.sum"

# name -> counters, and the FLOP they stand for
_CASES: dict[str, tuple[dict[str, int], dict[str, float]]] = {
    "daxpy_kernel": (
        {_THREADS.format(op): n for op, n in (("dadd", 1_000), ("dmul", 2_000), ("dfma", 1_500_000))},
        {"fp64_flops": 1_000 + 2_000 + 2 * 1_500_000},
    ),
    "half2_kernel": (
        {_THREADS.format(op): n for op, n in (("hadd", 3_000), ("hmul", 5_000), ("hfma", 700_000))},
        {"fp16_flops": 2 * 3_000 + 2 * 5_000 + 4 * 700_000},
    ),
    "dense_gemm_kernel": (
        {
            _TENSOR.format("src_fp16_dst_fp32"): 67_108_864,
            _TENSOR.format("src_fp16_dst_fp32_sparsity_off"): 67_108_864,
            _TENSOR.format("src_fp16_dst_fp32_sparsity_on"): 0,
        },
        {"tensor_flops": 67_108_864},
    ),
    "sparse_gemm_kernel": (
        {
            _TENSOR.format("src_bf16_dst_fp32"): 33_554_432,
            _TENSOR.format("src_bf16_dst_fp32_sparsity_off"): 0,
            _TENSOR.format("src_bf16_dst_fp32_sparsity_on"): 33_554_432,
        },
        {"tensor_flops": 33_554_432},
    ),
    "hopper_gemm_kernel": (
        {
            _TENSOR.format("src_bf16_dst_fp32"): 5_000_000,
            _TENSOR.format("op_hgmma_src_bf16_dst_fp32_sparsity_off"): 4_000_000,
            _TENSOR.format("op_hmma_src_bf16_dst_fp32_sparsity_off"): 1_000_000,
        },
        {"tensor_flops": 5_000_000},
    ),
}


def cases(path: Path) -> dict[str, dict[str, float]]:
    """Write one launch per case to `path` and return what is true of each: kernel name -> FLOP by column of LAUNCHES.

    A column that is not named was not measured. Every launch takes 80,000 ns: 100,000 cycles at 1.25 GHz.
    """
    launches = [Launch(name, (128, 1, 1), (256, 1, 1)) for name in _CASES]
    count = len(launches)
    metrics: dict[str, list[Value]] = {
        "gpu__time_duration.sum": [CASE_NS] * count,
        "sm__cycles_elapsed.avg": [CASE_CYCLES] * count,
        "sm__cycles_elapsed.avg.per_second": [CASE_HZ] * count,
    }
    for i, (counters, _) in enumerate(_CASES.values()):
        for name, value in counters.items():
            metrics.setdefault(name, [None] * count)[i] = value
    write(path, launches, metrics, label="perfkit's cases of every precision; no GPU ran")
    return {name: dict(truth) for name, (_, truth) in _CASES.items()}


SMS, WARPS, BLOCKS, REGISTERS, SHARED = (
    int(CARD[name]) for name in ("smCount", "maxWarpsPerSm", "maxBlocksPerSm", "maxRegistersPerSm", "maxShmemPerSm")
)


class Limits(NamedTuple):
    """Blocks per SM by each limit, as the tool names it."""

    warps_per_block: int
    warps: int
    registers: int
    shared_mem: int
    blocks: int

    @property
    def resident(self) -> int:
        """Blocks that an SM holds at once."""
        return min(self[1:])

    @property
    def occupancy(self) -> float:
        """Theoretical occupancy, 0..1."""
        return self.resident * self.warps_per_block / WARPS

    @property
    def limiter(self) -> list[str]:
        """The fields that are smallest."""
        return [name for name in self._fields[1:] if getattr(self, name) == self.resident]


def occupancy_limits(kernels: Sequence[Kernel]) -> list[Limits]:
    """Return the limits of each kernel."""
    return [_limits(kernel) for kernel in kernels]


def _limits(kernel: Kernel) -> Limits:
    warps = ceil(kernel.block / 32)
    per_warp = ceil(kernel.registers * 32 / 256) * 256
    at_once = REGISTERS // 4 // per_warp * 4
    shared = kernel.shared_bytes + kernel.dynamic_shared_bytes + 1024
    return Limits(warps, WARPS // warps, at_once // warps, SHARED // shared, BLOCKS)


def device_metrics() -> Iterator[tuple[str, int | str]]:
    """Yield what the tool says of the GPU."""
    yield "device__attribute_display_name", CARD["name"]
    yield "device__attribute_clock_rate", int(CARD["clockRate"]) // 1000
    yield "device__attribute_max_gpu_frequency_khz", int(CARD["clockRate"]) // 1000
    yield "device__attribute_multiprocessor_count", CARD["smCount"]
    yield "device__attribute_compute_capability_major", CARD["computeMajor"]
    yield "device__attribute_compute_capability_minor", CARD["computeMinor"]
    yield "device__attribute_max_warps_per_multiprocessor", CARD["maxWarpsPerSm"]
    yield "device__attribute_max_blocks_per_multiprocessor", CARD["maxBlocksPerSm"]
    yield "device__attribute_max_registers_per_multiprocessor", CARD["maxRegistersPerSm"]
    yield "device__attribute_max_shared_memory_per_multiprocessor", CARD["maxShmemPerSm"]
    yield "device__attribute_max_threads_per_multiprocessor", 2_048
    yield "device__attribute_warp_size", CARD["threadsPerWarp"]


def launch_metrics(kernels: Sequence[Kernel], slots: Sequence[int]) -> Iterator[tuple[str, Any]]:
    """Yield the metrics of launch and occupancy: name, and a value per launch or one for all."""
    grids = np.array([prod(kernel.grids[slot]) for kernel, slot in zip(kernels, slots, strict=True)])
    blocks = np.array([kernel.block for kernel in kernels])
    static = np.array([kernel.shared_bytes for kernel in kernels])
    dynamic = np.array([kernel.dynamic_shared_bytes for kernel in kernels])
    found = occupancy_limits(kernels)
    yield "launch__block_size", blocks
    yield "launch__grid_size", grids
    yield "launch__thread_count", grids * blocks
    yield "launch__registers_per_thread", np.array([kernel.registers for kernel in kernels])
    yield "launch__shared_mem_per_block_driver", 1024
    yield "launch__shared_mem_per_block_dynamic", dynamic
    yield "launch__shared_mem_per_block_static", static
    yield "launch__shared_mem_per_block", static + dynamic + 1024
    yield "launch__sm_count", SMS
    for name in ("blocks", "registers", "shared_mem", "warps"):
        yield f"launch__occupancy_limit_{name}", np.array([getattr(each, name) for each in found])
    resident = np.array([each.resident for each in found])
    yield "launch__waves_per_multiprocessor", grids / (resident * SMS)
    theoretical = np.array([100 * each.occupancy for each in found])
    yield "sm__maximum_warps_per_active_cycle_pct", theoretical
    # A grid smaller than the GPU leaves an SM with one block, however many would fit.
    warps = np.minimum(np.ceil(grids / SMS), resident) * np.ceil(blocks / 32)
    yield "sm__warps_active.avg.pct_of_peak_sustained_active", np.minimum(97.3 * warps / WARPS, theoretical)

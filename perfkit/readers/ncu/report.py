"""A report of Nsight Compute: its launches, rules and metrics, and the labels of the details page.

The details page prints labels for people, the raw page and reports the metrics' names. The pairs are those
of the section definitions stored in reports of 2020.3 to 2025.1; labels changed, metrics did not. What is not
listed stays a counter under its own name, which `--metrics` runs print anyway.

One value per launch; NaN is not measured, and a sum with one part missing is missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import prod

import numpy as np
import pandas as pd
from numpy.typing import NDArray

MOST_BLOCKS = 2**63 - 1
_SIZE = re.compile(r"[0-9]{1,10}")  # a grid has at most 2^31 blocks a side
_EXACT = 2**53  # above, float64 leaves whole numbers out
_WHOLE = {  # metrics that become integers, and the largest that fits
    **dict.fromkeys(("launch__grid_size", "launch__block_size"), _EXACT),
    **dict.fromkeys(("launch__device_id", "device__attribute_device_index"), 2**31 - 1),
    **dict.fromkeys(("device__attribute_multiprocessor_count", "device__attribute_total_memory"), _EXACT),
}


@dataclass(frozen=True)
class Launch:
    """Who was measured: what is not a counter. Unknown is -1 for ids, None for sizes, empty for text."""

    full_name: str
    gpu: int = -1
    grid_blocks: int | None = None
    block_threads: int | None = None
    capability: str = ""
    device_name: str = ""


@dataclass(frozen=True)
class Rule:
    """One message of the guided analysis; `speedup_frac` is NaN and `scope` None when it gives no estimate."""

    launch: int
    rule: str
    message: str
    speedup_frac: float = float("nan")
    scope: str | None = None


@dataclass(frozen=True)
class Report:
    """Launches in the order of the file, and their metrics in base units.

    ``values`` has one row per launch and one float64 column per metric, named as the tool names it; NaN is
    not measured. ``units`` gives the base unit of each column. Launches are numbered by position: the ids
    a page prints start again with every process.
    """

    launches: Sequence[Launch]
    values: pd.DataFrame
    units: dict[str, str]
    rules: Sequence[Rule] = ()
    version: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics that any launch may have."""
        return [str(metric) for metric in self.values.columns]

    def column(self, *metrics: str) -> NDArray[np.float64]:
        """Return the first of these metrics that a launch has; NaN where it has none."""
        found = np.full(len(self.launches), np.nan)
        for metric in metrics:
            if metric in self.values:
                found = np.where(np.isnan(found), self.values[metric].to_numpy(), found)
        return found


Values = NDArray[np.float64]
_PEAK = "avg.pct_of_peak_sustained_elapsed"
_ACTIVE = "avg.pct_of_peak_sustained_active"
LABELS = {
    # GPU Speed Of Light Throughput: 2020, 2021, later
    **dict.fromkeys(("SOL SM", "Compute (SM) [%]", "Compute (SM) Throughput"), f"sm__throughput.{_PEAK}"),
    **dict.fromkeys(("SOL Memory", "Memory [%]", "Memory Throughput"), f"gpu__compute_memory_throughput.{_PEAK}"),
    **dict.fromkeys(("SOL DRAM", "DRAM Throughput"), f"gpu__dram_throughput.{_PEAK}"),
    **dict.fromkeys(("SOL L1/TEX Cache", "L1/TEX Cache Throughput"), f"l1tex__throughput.{_ACTIVE}"),
    **dict.fromkeys(("SOL L2 Cache", "L2 Cache Throughput"), f"lts__throughput.{_PEAK}"),
    "DRAM Frequency": "dram__cycles_elapsed.avg.per_second",
    "SM Frequency": "gpc__cycles_elapsed.avg.per_second",
    "Elapsed Cycles": "gpc__cycles_elapsed.max",
    "Duration": "gpu__time_duration.sum",
    "SM Active Cycles": "sm__cycles_active.avg",
    # Compute Workload Analysis
    "Executed Ipc Active": "sm__inst_executed.avg.per_cycle_active",
    "Executed Ipc Elapsed": "sm__inst_executed.avg.per_cycle_elapsed",
    "Issued Ipc Active": "sm__inst_issued.avg.per_cycle_active",
    "Issue Slots Busy": f"sm__inst_issued.{_ACTIVE}",
    "SM Busy": f"sm__instruction_throughput.{_ACTIVE}",
    # Memory Workload Analysis
    "Mem Busy": f"gpu__compute_memory_access_throughput.{_PEAK}",
    "Max Bandwidth": f"gpu__compute_memory_request_throughput.{_PEAK}",
    "Mem Pipes Busy": f"sm__memory_throughput.{_PEAK}",
    "L1/TEX Hit Rate": "l1tex__t_sector_hit_rate.pct",
    "L2 Hit Rate": "lts__t_sector_hit_rate.pct",
    "L2 Compression Success Rate": "lts__average_gcomp_input_sector_success_rate.pct",
    "L2 Compression Ratio": "lts__average_gcomp_output_sector_compression_achieved_rate.ratio",
    # Scheduler and warp state
    "One or More Eligible": f"smsp__issue_active.{_ACTIVE}",
    "No Eligible": f"smsp__issue_inst0.{_ACTIVE}",
    "Issued Warp Per Scheduler": "smsp__issue_active.avg.per_cycle_active",
    "Active Warps Per Scheduler": "smsp__warps_active.avg.per_cycle_active",
    "Eligible Warps Per Scheduler": "smsp__warps_eligible.avg.per_cycle_active",
    "Warp Cycles Per Issued Instruction": "smsp__average_warp_latency_per_inst_issued.ratio",
    "Warp Cycles Per Executed Instruction": "smsp__average_warps_active_per_inst_executed.ratio",
    "Avg. Active Threads Per Warp": "smsp__thread_inst_executed_per_inst_executed.ratio",
    "Avg. Not Predicated Off Threads Per Warp": "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio",
    # Instruction Statistics, Source Counters
    "Executed Instructions": "smsp__inst_executed.sum",
    "Avg. Executed Instructions Per Scheduler": "smsp__inst_executed.avg",
    "Issued Instructions": "smsp__inst_issued.sum",
    "Avg. Issued Instructions Per Scheduler": "smsp__inst_issued.avg",
    "Branch Instructions": "smsp__inst_executed_op_branch.sum",
    "Branch Instructions Ratio": "derived__smsp__inst_executed_op_branch_pct",
    "Branch Efficiency": "smsp__sass_average_branch_targets_threads_uniform.pct",
    "Avg. Divergent Branches": "smsp__sass_branch_targets_threads_divergent.avg",
    # Launch Statistics
    "Block Size": "launch__block_size",
    "Grid Size": "launch__grid_size",
    "Cluster Size": "launch__cluster_size",
    "Threads": "launch__thread_count",
    "Waves Per SM": "launch__waves_per_multiprocessor",
    "Registers Per Thread": "launch__registers_per_thread",
    "Shared Memory Configuration Size": "launch__shared_mem_config_size",
    "Driver Shared Memory Per Block": "launch__shared_mem_per_block_driver",
    "Dynamic Shared Memory Per Block": "launch__shared_mem_per_block_dynamic",
    "Static Shared Memory Per Block": "launch__shared_mem_per_block_static",
    "Stack Size": "launch__stack_size",
    "Uses Green Context": "launch__uses_green_context",
    "# SMs": "launch__sm_count",
    "# TPCs": "launch__tpc_count",
    # Occupancy
    "Theoretical Occupancy": "sm__maximum_warps_per_active_cycle_pct",
    "Theoretical Active Warps per SM": "sm__maximum_warps_avg_per_active_cycle",
    "Achieved Occupancy": f"sm__warps_active.{_ACTIVE}",
    "Achieved Active Warps Per SM": "sm__warps_active.avg.per_cycle_active",
    "Block Limit SM": "launch__occupancy_limit_blocks",
    "Block Limit Registers": "launch__occupancy_limit_registers",
    "Block Limit Shared Mem": "launch__occupancy_limit_shared_mem",
    "Block Limit Warps": "launch__occupancy_limit_warps",
    "Block Limit Barriers": "launch__occupancy_limit_barriers",
    "Max Active Clusters": "launch__cluster_max_active",
    "Max Cluster Size": "launch__cluster_max_potential_size",
    "Cluster Occupancy": "launch__occupancy_cluster_pct",
    "Overall GPU Occupancy": "launch__occupancy_cluster_gpu_pct",
    # GPU and Memory Workload Distribution
    **{
        f"{statistic} {shown} {state} Cycles": f"{unit}__cycles_{state.lower()}.{form}"
        for statistic, state, form in (("Average", "Active", "avg"), ("Total", "Elapsed", "sum"))
        for shown, unit in (
            *(("SM", "sm"), ("SMSP", "smsp"), ("L1", "l1tex")),
            *(("L2", "lts"), ("DRAM", "dram"), ("MC Channel", "mcc")),
        )
    },
    # NVLink
    "Logical Links": "nvlink__count_logical",
    "Physical Links": "nvlink__count_physical",
}
# One label, two metrics: its unit tells them apart.
LABELS_BY_UNIT = {("Memory Throughput", "byte/s"): "dram__bytes.sum.per_second"}


def durations(report: Report) -> Values:
    """Return the time of each launch, ns: as measured, else its own cycles over its own clock."""
    found = report.column(*(f"gpu__time_duration.{form}" for form in ("sum", "max", "avg")))
    for unit in ("sm", "smsp", "gpc"):
        cycles = report.column(f"{unit}__cycles_elapsed.avg", f"{unit}__cycles_elapsed.max")
        clock = report.column(f"{unit}__cycles_elapsed.avg.per_second")
        found = first(found, cycles / np.where(clock > 0, clock, np.nan) * 1e9)
    return found


def count(report: Report, metric: str) -> Values:
    """Return how often something happened: the sum, else a rate times the launch's own time or cycles."""
    seconds = durations(report) / 1e9
    cycles = report.column(f"{metric.partition('__')[0]}__cycles_elapsed.avg.per_second") * seconds
    return first(
        report.column(f"{metric}.sum"),
        report.column(f"{metric}.sum.per_second") * seconds,
        report.column(f"{metric}.sum.per_cycle_elapsed") * cycles,
    )


def first(*choices: Values) -> Values:
    """Return the first of several figures that is known, launch by launch.

    >>> first(np.array([1.0, np.nan]), np.array([5.0, 6.0]))
    array([1., 6.])
    """
    return reduce(lambda known, other: np.where(np.isnan(known), other, known), choices)


def metric(label: str, unit: str) -> str:
    """Return the metric a label of the details page stands for; a metric's own name stays as it is.

    >>> metric("Duration", "ns"), metric("dram__bytes.sum", "byte")
    ('gpu__time_duration.sum', 'dram__bytes.sum')
    """
    return LABELS_BY_UNIT.get((label, unit)) or LABELS.get(label, label)


def joined(reports: Sequence[Report]) -> Report:
    """Return the parts of one file as one report, their launches numbered on."""
    if len(reports) == 1:
        return reports[0]
    rules: list[Rule] = []
    before = 0
    for report in reports:
        rules += [Rule(r.launch + before, r.rule, r.message, r.speedup_frac, r.scope) for r in report.rules]
        before += len(report.launches)
    return Report(
        [launch for report in reports for launch in report.launches],
        pd.concat([report.values for report in reports], ignore_index=True),
        {metric: unit for report in reversed(reports) for metric, unit in report.units.items()},
        rules,
        reports[0].version,
        tuple(dict.fromkeys(note for report in reports for note in report.notes)),
    )


def whole(report: Report) -> Report:
    """Return a report without ids and sizes that are no whole numbers or too large for one, counted in notes."""
    values, notes = report.values.copy(deep=False), []
    for metric, most in _WHOLE.items():
        if metric not in values:
            continue
        numbers = values[metric].to_numpy()
        wrong = ~np.isnan(numbers) & ~((numbers >= 0) & (numbers <= most) & (numbers % 1 == 0))
        if wrong.any():
            values[metric] = np.where(wrong, np.nan, numbers)
            notes.append(
                f"values of {metric} that are no whole number from 0 to {most:,} and were left out: "
                f"{np.count_nonzero(wrong):,} (first: {numbers[wrong][0]:g})"
            )
    return replace(report, values=values, notes=(*report.notes, *notes)) if notes else report


def blocks(text: str) -> int | None:
    """Return how many blocks or threads a size such as "(128, 2, 1)" holds; None if it is none.

    >>> blocks("(128, 2, 1)"), blocks("256"), blocks("")
    (256, 256, None)
    """
    sizes = [size.strip() for size in text.strip("() ").split(",")]
    if not all(_SIZE.fullmatch(size) for size in sizes):
        return None
    count = prod(int(size) for size in sizes)
    return count if count <= MOST_BLOCKS else None

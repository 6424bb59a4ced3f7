"""The metric behind each label of the details page.

The details page prints labels for people, the raw page and reports the metrics' names. The pairs are those
of the section definitions stored in reports of 2020.3 to 2025.1; labels changed, metrics did not. What is not
listed stays a counter under its own name, which `--metrics` runs print anyway.
"""

from __future__ import annotations

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


def metric(label: str, unit: str) -> str:
    """Return the metric a label of the details page stands for; a metric's own name stays as it is.

    Examples
    --------
    >>> metric("Duration", "ns"), metric("dram__bytes.sum", "byte")
    ('gpu__time_duration.sum', 'dram__bytes.sum')
    """
    return LABELS_BY_UNIT.get((label, unit)) or LABELS.get(label, label)

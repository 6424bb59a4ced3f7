"""Which options of each profiler record what perfkit's questions need.

The advice of a report prints these options, and `perfkit record` runs them.
"""

from collections.abc import Sequence

# Nsight Systems. Windows has no calls of the operating system to trace.
NSYS_TRACED = ("cuda", "nvtx", "osrt")
GPU_METRICS = "--gpu-metrics-devices=all"  # samples the counters of every GPU
GRAPH_NODES = "--cuda-graph-trace=node"  # records each kernel of a CUDA graph
CALL_STACKS = ("--sample=process-tree", "--cudabacktrace=all")

# Nsight Compute repeats a kernel for each group of counters: few launches are enough.
NCU_SET = ("--set", "full")
NCU_LAUNCHES = 50
NCU_PAGE = ("--csv", "--page", "raw", "--print-units", "base")

# HPCToolkit: CPU time, GPU operations with samples of their instructions, and a trace.
HPCRUN_CPU = ("-e", "CPUTIME")

# Power, utilization, clocks, violations, memory, errors and PCIe traffic, with date and time.
DMON = ("nvidia-smi", "dmon", "-s", "pucvmet", "-o", "DT")


def traced(names: Sequence[str]) -> str:
    """Return the option of Nsight Systems that traces these interfaces."""
    return f"--trace={','.join(names)}"


def named_kernels(functions: Sequence[str]) -> str:
    """Return the pattern of Nsight Compute's --kernel-name for kernels of these functions.

    >>> named_kernels(["gemm", "softmax"])
    'regex:^(gemm|softmax)$'
    """
    return f"regex:^({'|'.join(functions)})$"

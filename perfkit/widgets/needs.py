"""What a view needs of a run: rows of a table, or else a sentence that says what records them."""

import pandas as pd

from perfkit.errors import PerfkitError
from perfkit.profile import QUERY
from perfkit.selection import Selection

NSYS = "nsys profile --trace=cuda,nvtx -o report PROGRAM"
TORCH = "torch.profiler.profile, with the lines that `perfkit record torch` prints"
NCCL_TESTS = "all_reduce_perf -b 8 -e 8G -f 2 -g 8 of nccl-tests, or NCCL_DEBUG=INFO PROGRAM"
# What records a table where no profile in the run is of a tool that could have.
RECORD = {
    "KERNELS": NSYS,
    "COPIES": NSYS,
    "LAUNCHES": "ncu --set full --launch-count 50 -o report PROGRAM, then ncu --import report.ncu-rep --csv --page raw",
    "OPS": TORCH,
    "COLLECTIVES": f"{TORCH}, on every rank",
    "CALLTREE": "hpcrun -e CPUTIME -e gpu=nvidia,pc -t PROGRAM, then hpcstruct and hpcprof",
    "SAMPLES": f"{QUERY}, or nsys profile --gpu-metrics-devices=all -o report PROGRAM",
    "SAMPLES.memory": TORCH,
    "RANGES": f"{NSYS}, with torch.cuda.nvtx.range or nvtx.annotate around the parts of the program",
    "PYTHON_CALLS": "torch.profiler.profile(with_stack=True, with_modules=True)",
    "BENCHMARK": NCCL_TESTS,
    "INSPECTED": "NCCL_PROFILER_PLUGIN=libnccl-profiler-inspector.so NCCL_INSPECTOR_ENABLE=1 PROGRAM",
    "GROUPS": "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 PROGRAM, which hangs",
    "ALLOCATIONS": "torch.cuda.memory._record_memory_history(), then _dump_snapshot(FILE)",
    "TRAINING": "the log of DeepSpeed or Megatron, or DeepSpeed's Flops Profiler",
}


def some(
    rows: pd.DataFrame, view: Selection, table: str, what: str, *, recorded: bool | None = None
) -> pd.DataFrame:
    """Return what a view shows if there are `rows`; else raise PerfkitError: what to record, or to choose."""
    if len(rows):
        return rows
    if recorded is None:
        recorded = not view.run.table(table).empty
    if recorded:
        raise PerfkitError(
            f"No {what} in what is chosen ({view.description}). Choose more of the run."
        )
    own = [missing.record for missing in view.run.missing if missing.table == table]
    raise PerfkitError(
        f"No {what} were recorded. What records them: {(own or [RECORD[table]])[0]}."
    )

"""What a view says where there is nothing to show: that it was not recorded, and what records it, or not chosen.

Functions
---------
some   rows to show, or the sentence why there are none
"""

from __future__ import annotations

import pandas as pd

from perfkit.errors import PerfkitError
from perfkit.readers.nvidia_smi import QUERY
from perfkit.selection import Selection

NSYS = "nsys profile --trace=cuda,nvtx PROGRAM"
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
    "SAMPLES": f"{QUERY}, or nsys profile --gpu-metrics-devices=all PROGRAM",
    "SAMPLES.memory": TORCH,
    "BENCHMARK": NCCL_TESTS,
    "TRAINING": "the log of DeepSpeed or Megatron, or DeepSpeed's Flops Profiler",
}


def some(rows: pd.DataFrame, view: Selection, table: str, what: str, *, recorded: bool | None = None) -> pd.DataFrame:
    """Return `rows` if there are any.

    Parameters
    ----------
    rows
        What a view shows.
    view
        The choice they were made from.
    table
        Where they come from, a key of `RECORD`.
    what
        What they are, in the plural.
    recorded
        Whether the run holds any, chosen or not; whether the table has rows when omitted.

    Raises
    ------
    PerfkitError
        If there are none; the message says what to record, or what to choose.

    Examples
    --------
    >>> import perfkit
    >>> some(pd.DataFrame(), perfkit.select(perfkit.run.Run([])), "OPS", "operators")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    perfkit.errors.PerfkitError: No operators were recorded. What records them: torch.profiler.profile, ...
    """
    if len(rows):
        return rows
    if recorded is None:
        recorded = not view.run.table(table).empty
    if recorded:
        raise PerfkitError(f"No {what} in what is chosen ({view.description}). Choose more of the run.")
    own = [missing.record for missing in view.run.missing if missing.table == table]
    raise PerfkitError(f"No {what} were recorded. What records them: {(own or [RECORD[table]])[0]}.")

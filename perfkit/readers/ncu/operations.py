"""How many floating-point operations did each launch do, on CUDA cores and on tensor cores?

Conventions
-----------
An addition or multiplication is 1 FLOP, a fused multiply-add 2. Half-precision instructions on CUDA cores
work on two packed values: 2 and 4, as in NVIDIA's own half-precision roofline. NaN is not measured.

Functions
---------
flops             operations of one precision on CUDA cores
tensor_flops      operations on tensor cores
tensor_activity   how busy the tensor pipe was
sparse            launches with structured-sparse tensor operations
"""

from __future__ import annotations

import re
from functools import reduce

import numpy as np

from perfkit.readers.ncu.counting import Values, count, first
from perfkit.readers.ncu.report import Report

OPS = ("add", "mul", "fma")
FLOPS = {"fp64": ("d", (1, 1, 2)), "fp32": ("f", (1, 1, 2)), "fp16": ("h", (2, 2, 4))}
V100_FLOP_PER_INSTRUCTION = 512  # one HMMA.884 step; no other GPU has one number for all its tensor instructions
# Tensor operations are counted per type of operand, some also per instruction (hgmma, hmma) and by sparsity.
TENSOR = re.compile(
    r"(?:sm|smsp)__(?P<name>ops_path_tensor(?:_op_(?P<op>[a-z]+))?(?P<types>_src_\w+?)(?P<sparsity>_sparsity_(?:on|off))?)"
    r"\.sum(?:\.per_second|\.per_cycle_elapsed)?"
)
_PIPES = ("pipe_(tensor|tc)_cycles_active", r"pipe_tensor_\w+_cycles_active", r"inst_executed_pipe_tensor\w*")
TENSOR_PIPES = [
    re.compile(rf"sm__{pipe}\.avg\.pct_of_peak_sustained_{over}") for pipe in _PIPES for over in ("elapsed", "active")
]


def flops(report: Report, precision: str) -> Values:
    """Return the operations of one precision on CUDA cores."""
    letter, factors = FLOPS[precision]
    found = np.full(len(report.launches), np.nan)
    for unit in ("sm", "smsp"):  # both count every instruction once
        counts = [count(report, f"{unit}__sass_thread_inst_executed_op_{letter}{op}_pred_on") for op in OPS]
        weighted = [factor * counted for factor, counted in zip(factors, counts, strict=True)]
        found = first(found, weighted[0] + weighted[1] + weighted[2])
        if precision != "fp16":  # these count a fused multiply-add as 2; for packed halves that is not documented
            together = "_".join(f"{letter}{op}" for op in OPS)
            found = first(found, count(report, f"{unit}__sass_thread_inst_executed_ops_{together}_pred_on"))
    return found


def tensor_flops(report: Report) -> Values:
    """Return the operations on tensor cores, of all types; sparse ones as the counter counts them.

    The counters are hierarchical: per type there may be a total, its split by sparsity, and both again
    per instruction. Each type is counted once, at the highest level measured. Without these counters
    the number of instructions tells only where one factor holds for all: 512 on V100 (compute capability 7.0),
    and 0 where none ran, up to Hopper (later GPUs run most of them on another pipe).
    """
    unknown = np.full(len(report.launches), np.nan)
    counted = reduce(_added, _per_type(report), unknown)
    instructions = report.column("sm__inst_executed_pipe_tensor.sum")
    capability = np.array([launch.capability for launch in report.launches], str)
    volta = np.where(capability == "7.0", instructions * V100_FLOP_PER_INSTRUCTION, np.nan)
    one_pipe = np.array([text[:2] in ("7.", "8.", "9.") for text in capability], bool)
    return first(counted, volta, np.where(one_pipe & (instructions == 0), 0.0, np.nan))


def _per_type(report: Report) -> list[Values]:
    """Return the operations of each type, from the highest level of its counters."""
    levels: dict[str, dict[tuple[bool, bool], set[str]]] = {}
    for metric in report.metrics:
        if found := TENSOR.fullmatch(metric):
            level = (found["op"] is not None, found["sparsity"] is not None)
            levels.setdefault(found["types"], {}).setdefault(level, set()).add(found["name"])
    # Operands without a result are the sum over their results.
    whole = [types for types in levels if not any(types.startswith(f"{other}_dst_") for other in levels)]
    return [first(*(_summed(report, levels[types][level]) for level in sorted(levels[types]))) for types in whole]


def _summed(report: Report, names: set[str]) -> Values:
    """Return the sum of counters of one level; sm and smsp count the same."""
    counts = [first(count(report, f"sm__{name}"), count(report, f"smsp__{name}")) for name in sorted(names)]
    return reduce(np.add, counts)


def _added(left: Values, right: Values) -> Values:
    """Add what is known; unknown only where both are."""
    return np.where(np.isnan(left), right, left + np.nan_to_num(right))


def sparse(report: Report) -> list[int]:
    """Return the launches that ran structured-sparse tensor operations, which have a peak of their own."""
    metrics = [m for m in report.metrics if (found := TENSOR.fullmatch(m)) and found["sparsity"] == "_sparsity_on"]
    return np.flatnonzero((report.values[metrics].to_numpy() > 0).any(axis=1)).tolist()


def tensor_activity(report: Report) -> Values:
    """Return how busy the tensor pipe was over its peak: over all cycles if measured, else while the SM was active.

    The pipe as a whole, else the busiest of its parts, else by instructions issued.
    """
    found = np.full(len(report.launches), np.nan)
    for pattern in TENSOR_PIPES:
        metrics = [metric for metric in report.metrics if pattern.fullmatch(metric)]
        if metrics:
            found = first(found, report.values[metrics].max(axis=1).to_numpy() / 100)
    return found

"""What do the framework's operators cost, on the CPU and on the GPU, and which of them should not be there?

Conventions
-----------
`ops`, `kernels`, `api_calls` and the like are OPS, KERNELS, API_CALLS of one execution and may be empty; another table
raises SchemaError. `window` is (start_ns, end_ns), everything when omitted; ValueError if it does not end after it
starts. Shares are 0..1.

A kernel belongs to the innermost operator that runs on the launching thread when the launch call begins: of all
operators [start, end) of that process and thread that contain the call's start. The call is joined on (rank, process,
correlation); all nodes of a graph belong to the operator that launched the graph. Kernels without a recorded call, or
launched outside of every operator, have no operator: they are never dropped, and stand in rows of their own. *Self* is
an operator without those nested in it, *total* with them. Times of the GPU are sums of kernel durations, copies left
out; concurrent kernels add up.

References
----------
PyTorch, ``torch.profiler``; Kineto gives a kernel the same operator as its "External id".
"""

from perfkit.analysis.operators.join import HOW, kernels_of, launched
from perfkit.analysis.operators.suspects import (
    CHECKS,
    SHORT_NS,
    SYNCHRONISATIONS,
    many_small,
    synchronisation_summary,
    synchronisations,
    unexpected,
)
from perfkit.analysis.operators.totals import Operators, backward, summary

__all__ = [
    "CHECKS",
    "HOW",
    "SHORT_NS",
    "SYNCHRONISATIONS",
    "Operators",
    "backward",
    "kernels_of",
    "launched",
    "many_small",
    "summary",
    "synchronisation_summary",
    "synchronisations",
    "unexpected",
]

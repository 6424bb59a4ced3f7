"""How much arithmetic and traffic do the framework's operators ask for, and what rates does the GPU reach in them?

Analytic: everything follows from the shapes that the trace recorded, nothing is counted by hardware. A multiplication
and an addition are 2 FLOP; products, convolutions and attention have FLOP, elementwise operators and look-ups bytes
alone. Bytes are those of every tensor read or written, once: real traffic is at least that. What the shapes do not tell
has no model, and the share of the GPU time that has one is always stated. The types are those of the operands: fp32 may
have been computed in TF32. Tables may be empty; another table raises SchemaError.
"""

from perfkit.analysis.flops.totals import GPU_TIME, OPERATOR_POINTS, coverage, mfu, roofline
from perfkit.analysis.flops.work import WORK, operators

__all__ = ["GPU_TIME", "OPERATOR_POINTS", "WORK", "coverage", "mfu", "operators", "roofline"]

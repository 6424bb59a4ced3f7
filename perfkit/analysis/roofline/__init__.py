"""How far is each kernel from what the GPU can do, and what holds it back: arithmetic, memory or latency?

Conventions
-----------
A point is a launch (or all launches of a name) in one precision: FLOP over time against FLOP per byte.
Sums come before quotients: FLOP / time, FLOP / bytes; rates and ratios are never added or averaged. A roof
is a peak per precision and a bandwidth per memory level, of a data sheet or measured in the report; there
is no default. Tensor work is named by its operands' type (fp16_tensor accumulates in FP32,
fp16_tensor_acc16 in FP16) because each type has a roof of its own.

Functions
---------
ceilings   the roofs: peak FLOP/s per precision, bytes/s per memory level, ridge points
points     FLOP, bytes, time, performance and arithmetic intensity per launch and precision
bound      what limits each point, its share of the roof, and why

References
----------
Williams, Waterman, Patterson: Roofline, Communications of the ACM 52(4), 2009. Yang, Kurth, Williams:
Hierarchical roofline analysis for GPUs, Concurrency and Computation 32(20), 2020.
"""

from perfkit.analysis.roofline.places import POINTS, points
from perfkit.analysis.roofline.roofs import CEILINGS, ceilings
from perfkit.analysis.roofline.verdicts import BOUNDS, bound, speed_of_light

__all__ = ["BOUNDS", "CEILINGS", "POINTS", "bound", "ceilings", "points", "speed_of_light"]

"""The pictures and tables of the notebooks, one call each: still of a choice, live of an explorer.

Every view takes a `source`: a `perfkit.Selection`, and shows what was chosen; or the explorer of
`perfkit.widgets.explorer`, and shows what is chosen in it now. Where nothing was recorded, it says how to record it.
"""

from perfkit.widgets.views.comparison import compare
from perfkit.widgets.views.hardware import collectives, machine, monitor, roofline, training
from perfkit.widgets.views.system import call_paths, gaps, kernels, memory, operators, ranks, timeline, transfers

__all__ = [
    "call_paths",
    "collectives",
    "compare",
    "gaps",
    "kernels",
    "machine",
    "memory",
    "monitor",
    "operators",
    "ranks",
    "roofline",
    "timeline",
    "training",
    "transfers",
]

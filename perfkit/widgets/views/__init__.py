"""The pictures and tables of the notebooks, one call each: still of a choice, live of an explorer.

Every view takes a `perfkit.Selection`, and shows what was chosen; or the explorer of `perfkit.widgets.explorer`, and
shows what is chosen in it now. Where nothing was recorded, it says how to record it.

Functions
---------
timeline     what ran when
kernels      which kernels take the time
gaps         when the GPU was idle, and why
transfers    what copies cost
roofline     how near kernels come to what the hardware allows
operators    where the time goes by operator of the framework
call_paths   which calls lead to the time
memory       how much memory was held
monitor      what a log of the GPUs says
ranks        how ranks differ, and who waits for whom
compare      what changed against another run
machine      what the GPU could do
collectives  how fast GPUs communicate
training     how fast a training runs
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

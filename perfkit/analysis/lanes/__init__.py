"""What ran where in any window, answered at once: kernels and copies sorted and summed once, asked many times.

Conventions
-----------
As in `perfkit.analysis.timeline`: times are int64 ns, intervals half open, operations are cut at the window's edges,
and a lane is the operations of one kind (computation, communication, copy) of one stream. A window that is omitted
is the span of the whole run, whatever else is chosen, so that all pictures share an axis. A choice by name is of
kernels: copies and memsets stay. An operation that lasts 0 ns has time in no window.

Classes
-------
Lanes        busy time in bins, time per kernel name, number and list of the operations, of any window and choice
Spans        the same of intervals that nest or overlap: calls, ranges, steps
Launching    the calls that launched operations
Idle         the times at which devices do nothing, and why
"""

from perfkit.analysis.lanes.idle import Idle
from perfkit.analysis.lanes.index import Lanes
from perfkit.analysis.lanes.launching import Launching
from perfkit.analysis.lanes.spans import Spans

__all__ = ["Idle", "Lanes", "Launching", "Spans"]

"""How is a trace written as PyTorch's profiler exports it: Kineto's JSON, compressed?

Conventions
-----------
One trace is one process. Times are given as int64 ns since the start of the trace and written as microseconds with
three decimals since Kineto's base time, so that no nanosecond is lost. Events lie one after the other as they are
given, indented as Kineto indents them. The same events are the same text, and the same bytes with the same zlib; a
file appears under its name only when it is complete.

Classes
-------
Span, Instant, Mark, Flow, Label    what is written

Functions
---------
write         a trace
described     the labels that viewers show for processes and threads
ranks         a folder of traces of a job of any size, with what is true of it
"""

from make.kineto.events import Event, Flow, Instant, Label, Mark, Span, described
from make.kineto.file import write
from make.kineto.ranks import ranks

__all__ = ["Event", "Flow", "Instant", "Label", "Mark", "Span", "described", "ranks", "write"]

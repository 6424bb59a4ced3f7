"""How is a call-path profile written as HPCToolkit's hpcprof writes a database?

A database is a folder of `meta.db` (metrics and calling contexts), `profile.db` and `cct.db` (values by thread and by
context) and, if anything was traced, `trace.db`; version 4.0, little endian, footers and all. What was measured is
given in integers: ns, bytes, counts. They are added up along the tree as integers and divided by their metric's unit
once, so that parts sum to the whole as exactly as doubles can say. A context that was measured but is not listed
(HPCToolkit leaves out instructions below lines) has values and no place in `meta.db`. The same content is the same
bytes; a file appears under its name only when it is complete.
"""

from make.hpctoolkit.database import Database, Thread, Trace, Values, contexts, write
from make.hpctoolkit.files import AMD, INTEL, NVIDIA, NVIDIA_2026, Form, Metric
from make.hpctoolkit.tree import Paths, Tree

__all__ = [
    "AMD",
    "INTEL",
    "NVIDIA",
    "NVIDIA_2026",
    "Database",
    "Form",
    "Metric",
    "Paths",
    "Thread",
    "Trace",
    "Tree",
]
__all__ += ["Values", "contexts", "write"]

"""perfkit: find out why a GPU program is slow.

run = perfkit.load("data/mlp_a100")
run.kernels, run.copies, run.missing
"""

from perfkit.errors import PerfkitError, ReadError, SchemaError
from perfkit.run import Run, load
from perfkit.selection import Selection, select

__all__ = ["PerfkitError", "ReadError", "Run", "SchemaError", "Selection", "load", "select"]

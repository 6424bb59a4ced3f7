"""perfkit: find out why a GPU program is slow.

run = perfkit.load("data/mlp_a100")
run.kernels, run.copies, run.missing
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from perfkit.errors import PerfkitError, ReadError, SchemaError

if TYPE_CHECKING:
    from perfkit.run import Run, load
    from perfkit.selection import Selection, select

__all__ = ["PerfkitError", "ReadError", "Run", "SchemaError", "Selection", "load", "select"]
_LATER = {
    "Run": "run",
    "Selection": "selection",
    "load": "run",
    "load_ipython_extension": "recorders.cells",  # %load_ext perfkit
    "select": "selection",
}
_MODULES = {
    "cache",
    "discovery",
    "joining",
    "names",
    "profile",
    "readers",
    "run",
    "schema",
    "selection",
    "tables",
}


def __getattr__(name: str) -> Any:
    """Import what reads profiles when first asked for: the command's help needs no pandas."""
    if name in _MODULES:
        return import_module(f"perfkit.{name}")
    if name not in _LATER:
        raise AttributeError(f"module 'perfkit' has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(f"perfkit.{_LATER[name]}"), name))

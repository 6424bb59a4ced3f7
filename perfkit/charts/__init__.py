"""Pictures and tables for people: finished small frames in, Altair charts or HTML out; nothing is computed here.

A chart function takes frames of `perfkit.analysis`, which may be empty: the chart then says why nothing is drawn.
Its title names the largest figure; a few take another `title`. All raise SchemaError if a column is missing,
and ValueError if a value is outside the range that is given for it, or a family, kind, cause or verdict has no colour.
"""

import sys
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

# What jsonschema checks IRIs and durations with, and the function that it calls.
LATER = {"rfc3987_syntax": "is_valid_syntax", "isoduration": "parse_duration"}


def _import_jsonschema() -> None:
    """Import jsonschema without what takes longer to import than all of perfkit, such as the grammar of IRIs.

    altair, nbformat and papermill import jsonschema and check neither IRIs nor durations. A program that does waits
    then.
    """
    if "jsonschema" in sys.modules:
        return
    put = [name for name in LATER if name not in sys.modules and find_spec(name)]
    for name in put:
        sys.modules[name] = later = ModuleType(name)
        vars(later).update(
            {LATER[name]: partial(_later, name), "DurationParsingException": Exception}
        )
    try:
        import_module("jsonschema")
    finally:
        for name in put:
            del sys.modules[name]


def _later(name: str, *given: Any) -> Any:
    return getattr(import_module(name), LATER[name])(*given)


_import_jsonschema()  # before the modules that import altair

if TYPE_CHECKING:
    from perfkit.charts import (
        comparison,
        detail,
        icicle,
        kernels,
        limits,
        machine,
        operators,
        owners,
        ranks,
        roofline,
        shares,
        tables,
        timeline,
    )

__all__ = [
    "comparison",
    "detail",
    "icicle",
    "kernels",
    "limits",
    "machine",
    "operators",
    "owners",
    "ranks",
    "roofline",
]
__all__ += ["shares", "tables", "timeline"]


def __getattr__(name: str) -> ModuleType:
    """Import a module of charts when first asked for: a table needs no altair."""
    if name not in __all__:
        raise AttributeError(f"module 'perfkit.charts' has no attribute {name!r}")
    return import_module(f"perfkit.charts.{name}")

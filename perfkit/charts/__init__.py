"""Pictures and tables for people: finished small frames in, Altair charts or HTML out; nothing is computed here.

A chart function takes frames of `perfkit.analysis`, which may be empty: the chart then says why nothing is drawn.
`title` is what is seen; without one the chart names its largest figure. All raise SchemaError if a column is missing,
and ValueError if a value is outside the range that is given for it, or a family, kind, cause or verdict has no colour.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


def _import_jsonschema() -> None:
    """Import jsonschema without the grammar of IRIs, which takes longer to compile than all of perfkit to import.

    altair, nbformat and papermill import jsonschema and never check an IRI. A program that does waits then.
    """
    grammar = "rfc3987_syntax"
    if {grammar, "jsonschema"} & set(sys.modules) or not find_spec(grammar):
        return
    later = ModuleType(grammar)
    later.is_valid_syntax = lambda *given: import_module(grammar).is_valid_syntax(*given)  # type: ignore[attr-defined]
    sys.modules[grammar] = later
    try:
        import_module("jsonschema")
    finally:
        del sys.modules[grammar]


_import_jsonschema()  # before the modules that import altair

from perfkit.charts import (  # noqa: E402
    comparison,
    detail,
    icicle,
    kernels,
    machine,
    monitor,
    operators,
    ranks,
    roofline,
    shares,
    tables,
    timeline,
)

__all__ = ["comparison", "detail", "icicle", "kernels", "machine", "monitor", "operators", "ranks", "roofline"]
__all__ += ["shares", "tables", "timeline"]

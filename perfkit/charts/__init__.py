"""Pictures and tables for people: finished small frames in, Altair charts or HTML out; nothing is computed here.

A chart function takes frames of `perfkit.analysis`, which may be empty: the chart then says why nothing is drawn.
`title` is what is seen; without one the chart names its largest figure. All raise SchemaError if a column is missing,
and ValueError if a value is outside the range that is given for it, or a family, kind, cause or verdict has no colour.
"""

from perfkit.charts import (
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

__all__ = [
    "comparison",
    "detail",
    "icicle",
    "kernels",
    "machine",
    "monitor",
    "operators",
    "ranks",
    "roofline",
    "shares",
    "tables",
    "timeline",
]

"""Pictures and tables for people: finished small frames in, Altair charts or HTML out; nothing is computed here.

A chart function takes frames of `perfkit.analysis` and returns a chart of Altair, also where there is nothing to draw:
then it says why. `title` is what is seen; without one the chart names its largest figure. All raise SchemaError if a
column is missing.
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

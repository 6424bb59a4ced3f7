"""Pictures and tables for people: finished small frames in, Altair charts or HTML out; nothing is computed here."""

from perfkit.charts import (
    breakdown,
    collectives,
    composition,
    formats,
    gaps,
    icicle,
    kernels,
    memory,
    monitor,
    operators,
    ranks,
    roofline,
    stalls,
    tables,
    timeline,
)

__all__ = [
    "breakdown",
    "collectives",
    "composition",
    "formats",
    "gaps",
    "icicle",
    "kernels",
    "memory",
    "monitor",
    "operators",
    "ranks",
    "roofline",
    "stalls",
    "tables",
    "timeline",
]

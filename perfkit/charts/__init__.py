"""Pictures and tables for people: finished small frames in, Altair charts or HTML out; nothing is computed here."""

from perfkit.charts import (
    comparison,
    detail,
    gaps,
    icicle,
    kernels,
    launches,
    machine,
    memory,
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
    "gaps",
    "icicle",
    "kernels",
    "launches",
    "machine",
    "memory",
    "monitor",
    "operators",
    "ranks",
    "roofline",
    "shares",
    "tables",
    "timeline",
]

"""Pictures and tables for people: finished small frames in, Altair charts or HTML out; nothing is computed here."""

from perfkit.charts import (
    comparison,
    detail,
    gaps,
    icicle,
    kernels,
    machine,
    memory,
    monitor,
    monitor_lines,
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
    "machine",
    "memory",
    "monitor",
    "monitor_lines",
    "operators",
    "ranks",
    "roofline",
    "shares",
    "tables",
    "timeline",
]

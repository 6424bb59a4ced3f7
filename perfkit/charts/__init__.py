"""Pictures and tables for people: finished small frames in, Altair charts or HTML out; nothing is computed here."""

from perfkit.charts import breakdown, gaps, kernels, roofline, stalls, tables, timeline

__all__ = ["breakdown", "gaps", "kernels", "roofline", "stalls", "tables", "timeline"]

"""Pictures and tables for people: finished small frames in, Altair charts or HTML out; nothing is computed here."""

from perfkit.charts import breakdown, composition, gaps, icicle, kernels, roofline, stalls, tables, timeline

__all__ = ["breakdown", "composition", "gaps", "icicle", "kernels", "roofline", "stalls", "tables", "timeline"]

"""Questions asked of the tables: tables in, tables or numbers out; nothing is drawn or read here."""

from perfkit.analysis import communication, gaps, host, kernels, launches, steps, timeline, transfers

__all__ = ["communication", "gaps", "host", "kernels", "launches", "steps", "timeline", "transfers"]

"""Why a point has its verdict, in a sentence a person understands.

Functions
---------
speed_of_light_reason   what the throughputs say
roofline_reason         what the distance to the roof says
refusal                 why a point above its roof is not believed, and the likely cause
unmeasured              what to record
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from perfkit.analysis.roofline.roofs import RECORD
from perfkit.format import number, percent

Row = dict[Any, Any]
_UNCOUNTED = f" Its FLOP were not counted: record with {RECORD}."


def speed_of_light_reason(row: Row) -> str:
    """Return the sentence for a verdict of the vendor's rule; `row` has verdict, sm_frac, memory_frac and waves."""
    sm, memory = percent(row["sm_frac"]), percent(row["memory_frac"])
    both = f"compute throughput is {sm} and memory throughput {memory} of its peak"
    said = {
        "compute": f"Arithmetic limits it: {both}.",
        "memory": f"Memory limits it: {both}.",
        "balanced": f"Neither leads by 10 points: {both}.",
        "latency": f"It waits: {both}, both under 60 %, though the grid fills the GPU.",
        "small_grid": f"The grid has too few blocks to fill the GPU ({_waves(row['waves'])} waves): {both}.",
    }[row["verdict"]]
    if row["verdict"] == "latency" and pd.isna(row["waves"]):
        said = f"It waits: {both}, both under 60 %; whether the grid fills the GPU was not recorded."
    return said + (_UNCOUNTED if pd.isna(row["flops"]) else "")


def _waves(waves: float) -> str:
    return number(waves) if waves > 0 else "under 0.01"


def roofline_reason(row: Row) -> str:
    """Return the sentence for a verdict of the roof; `row` has verdict, shares, dram_intensity and ridge."""
    memory = percent(row["dram_share_frac"])
    if pd.isna(row["flops"]):
        reached = f"it reaches {memory} of the DRAM bandwidth; its FLOP were not counted (record with {RECORD})"
    else:
        reached = f"it reaches {percent(row['compute_share_frac'])} of the peak and {memory} of the DRAM bandwidth"
    place = ""
    if pd.notna(row["dram_intensity"]) and pd.notna(row["ridge"]):
        side = "left" if row["dram_intensity"] < row["ridge"] else "right"
        place = f", {side} of the ridge ({number(row['dram_intensity'])} and {number(row['ridge'])} FLOP/byte)"
    other = "" if row["nearest"] else "in another precision "
    return {
        "compute": f"Arithmetic {other}limits it: {reached}{place}.",
        "memory": f"Memory limits it: {reached}{place}.",
        "latency": f"It waits for neither: {reached}{place}, under 60 % of its roof.",
    }[row["verdict"]]


def refusal(row: Row) -> str:
    """Return why a launch above its roof is refused; the cause depends on the roof and on how it is known."""
    arithmetic, memory = row["compute_share_frac"], row["dram_share_frac"]
    what, share = ("peak", arithmetic) if not arithmetic < memory else ("DRAM bandwidth", memory)
    over = (
        f"Refused: it would reach {percent(share)} of the {what}" if share > 1.1 else "Refused with its other precision"
    )
    causes = ["operations counted with sparsity against a dense peak"] if "tensor" in str(row["precision"]) else []
    if row["measured"]:
        causes.append("the clock changed between the profiler's passes (record with `--clock-control base`)")
    else:
        causes.append("the peaks are another GPU's, or its clock was above the data sheet's boost clock")
    return f"{over}. Likely cause: {'; or '.join(causes)}."


def unmeasured(row: Row) -> str:
    """Return what is lacking for a verdict and how to record it."""
    if pd.isna(row["flops"]):
        return f"Not measured: neither its FLOP nor its throughputs were recorded. Record with {RECORD}."
    if pd.isna(row["dram_bytes"]):
        return f"Not measured: its DRAM bytes were not counted. Record with {RECORD}."
    precision = "its precision" if pd.isna(row["precision"]) else row["precision"]
    return f"Not measured: no roof of {precision} is known. Pass ceilings, or peaks that have one."

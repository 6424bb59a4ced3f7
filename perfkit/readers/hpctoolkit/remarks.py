"""What to know about a database: what it does not answer, what does not add up, which samples were lost.

Takes the totals of every metric, by its name: `unit`, `whole` above all entry points, `entries` added over them.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd

from perfkit.format import percent, printable
from perfkit.profile import Missing

CONSERVED = 1e-9  # how far the entry points may be from the whole, relative to it: rounding of sums
PRINTED = 1e-4  # of a total: experiment.xml has six digits of it
SHOWN = 3  # of the metrics that do not add up
LONGEST = 200  # characters of a text from the database
GPU = "hpcrun -e gpu=nvidia,pc"
NEEDED = {  # what a metric of these names answers, and what records one
    ("CPUTIME", "REALTIME", "CYCLES"): Missing(
        "CALL_METRICS.CPUTIME", "no CPU time of the call paths", "hpcrun -e CPUTIME"
    ),
    ("GPUOP", "GKER", "GXCOPY", "GSYNC", "GMEM", "GMSET"): Missing(
        "CALL_METRICS.GPUOP", "no GPU operations of the call paths", GPU
    ),
}
TABLES = (
    Missing("STALLS", "no stall reasons of the GPU code", GPU),
    Missing("TRACE", "no traces, so no timeline of threads and streams", "hpcrun -t"),
)
SIMULATED = "SIMULATED "  # what the description of a made database begins with
TAKEN, EXPECTED, DROPPED = "GSAMP:TOT", "GSAMP:EXP", "GSAMP:DRP"


def missing(totals: pd.DataFrame, recorded: Collection[str]) -> tuple[Missing, ...]:
    """Return what was not recorded, with the option of ``hpcrun`` that records it."""
    measured = {str(name).upper() for name in totals.index[totals["entries"] != 0]}
    lacking = [lack for known, lack in NEEDED.items() if measured.isdisjoint(known)]
    return (*lacking, *(table for table in TABLES if table.table not in recorded))


def simulated(description: str) -> list[str]:
    """Say that no program was measured, if the database says so."""
    is_made = description.startswith(SIMULATED)
    return [f"simulated, not measured: {printable(description.removeprefix(SIMULATED), LONGEST)}"] if is_made else []


def lost(totals: pd.DataFrame) -> list[str]:
    """Say which metrics do not add up: then the tree does not hold all that was measured."""
    tolerated = CONSERVED * np.maximum(totals["whole"].abs(), totals["entries"].abs())
    apart = totals[(totals["whole"] - totals["entries"]).abs() > tolerated]
    said = [
        f"{printable(name, LONGEST)}: the entry points have {has:.12g} {unit} together, the whole program "
        f"{whole:.12g}: the call paths do not hold all that was measured"
        for name, unit, whole, has in apart[["unit", "whole", "entries"]].itertuples()
    ]
    return said[:SHOWN] + ([f"{len(said) - SHOWN} more metrics do not add up"] if len(said) > SHOWN else [])


def incomplete(totals: pd.DataFrame, files: int) -> list[str]:
    """Say that metric files are missing: together they do not have what experiment.xml says of all threads."""
    apart = totals[(totals["stored"] - totals["stated"]).abs() > PRINTED * totals["stated"].abs()]
    return [
        f"{printable(name, LONGEST)}: the {files} metric files have {stored:.6g} {unit} together, experiment.xml says "
        f"{stated:.6g}: these are not the files of all its threads. Copy the database whole"
        for name, unit, stored, stated in apart[["unit", "stored", "stated"]].head(1).itertuples()
    ]


def unsampled(totals: pd.DataFrame) -> list[str]:
    """Say how many samples of the GPU's program counters are lacking."""
    taken, expected, dropped = (float(totals["entries"].get(name, 0.0)) for name in (TAKEN, EXPECTED, DROPPED))
    said = []
    if taken < expected:
        share = f"{percent(taken / expected)} of the expected samples of GPU instructions were taken"
        said.append(f"{share} ({taken:,.0f} of {expected:,.0f})")
    if dropped > 0:
        said.append(f"samples of GPU instructions that were dropped: {dropped:,.0f}")
    return said

"""What does a database of HPCToolkit lack? What was not recorded, and which values do not add up."""

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
    ("CPUTIME", "REALTIME", "CYCLES", "PERF::TASK-CLOCK", "PERF::CPU-CLOCK"): Missing(
        "CALL_METRICS.CPUTIME", "How much CPU time did each call path take?", "hpcrun -e CPUTIME"
    ),
    ("GPUOP", "GKER", "GXCOPY", "GSYNC", "GMEM", "GMSET"): Missing(
        "CALL_METRICS.GPUOP", "Which GPU operations did each call path start?", GPU
    ),
}
TABLES = (
    Missing("STALLS", "Why did the warps wait (stall reasons)?", GPU),
    Missing("TRACE", "When did each thread and stream work (traces)?", "hpcrun -t"),
)
TAKEN, EXPECTED, DROPPED = "GSAMP:TOT", "GSAMP:EXP", "GSAMP:DRP"


def missing(totals: pd.DataFrame, recorded: Collection[str]) -> tuple[Missing, ...]:
    """Return what was not recorded, with the option of ``hpcrun`` that records it."""
    measured = {str(name).upper() for name in totals.index[totals["entries"] != 0]}
    lacking = [lack for metrics, lack in NEEDED.items() if measured.isdisjoint(metrics)]
    return (*lacking, *(table for table in TABLES if table.table not in recorded))


def lost(totals: pd.DataFrame) -> list[str]:
    """Say which metrics do not add up: then the tree does not hold all that was measured."""
    tolerated = CONSERVED * np.maximum(totals["whole"].abs(), totals["entries"].abs())
    apart = totals[(totals["whole"] - totals["entries"]).abs() > tolerated]
    notes = [
        f"{printable(name, LONGEST)}: the entry points have {has:.12g} {unit} together, the whole "
        f"program {whole:.12g}: the call paths do not hold all that was measured"
        for name, unit, whole, has in apart[["unit", "whole", "entries"]].itertuples()
    ]
    return notes[:SHOWN] + (
        [f"{len(notes) - SHOWN} more metrics do not add up"] if len(notes) > SHOWN else []
    )


def incomplete(totals: pd.DataFrame, count: int) -> list[str]:
    """Say that metric files are missing: together they do not have what experiment.xml says of all threads."""
    apart = totals[(totals["stored"] - totals["stated"]).abs() > PRINTED * totals["stated"].abs()]
    return [
        f"{printable(name, LONGEST)}: the {count} metric files have {stored:.6g} {unit} together, "
        f"experiment.xml says {stated:.6g}: these are not the files of all its threads. Copy the "
        "database whole"
        for name, unit, stored, stated in apart[["unit", "stored", "stated"]].head(1).itertuples()
    ]


def unsampled(totals: pd.DataFrame) -> list[str]:
    """Say how many samples of the GPU's program counters are lacking."""
    taken, expected, dropped = (
        float(totals["entries"].get(name, 0.0)) for name in (TAKEN, EXPECTED, DROPPED)
    )
    notes = []
    if taken < expected:
        share = (
            f"{percent(taken / expected)} of the expected samples of GPU instructions were taken"
        )
        notes.append(f"{share} ({taken:,.0f} of {expected:,.0f})")
    if dropped > 0:
        notes.append(f"samples of GPU instructions that were dropped: {dropped:,.0f}")
    return notes

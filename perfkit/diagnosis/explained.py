"""Which lines of the ledger explain that a step of one run takes longer than a step of another?

Each nanosecond of a GPU in the steps that are compared, or in the units of equal work, is in one line of the ledger
(`diagnosis.ledger`). A line's time per step is its mean over the steps and GPUs. So the differences of all lines add up
to the difference of the mean step of a GPU.
"""

import re

import pandas as pd

from perfkit.analysis import ledger as analysis_ledger
from perfkit.analysis.steps import last_phase, steady
from perfkit.diagnosis import ledger as booking
from perfkit.diagnosis.sides import Given, Side, side, timed
from perfkit.schema import Column, Table
from perfkit.selection import Selection

EXPLAINED = Table(
    "EXPLAINED",
    "a line of the ledger in the steps of two runs",
    (
        Column(
            "kind",
            "category",
            "kind of time, as in LEDGER, or outside: no GPU had begun or all had ended",
        ),
        Column(
            "cause", "category", "family, operation, direction of a copy, or why the GPU is idle"
        ),
        Column("owner", "category", "who takes the time; empty if unknown"),
        Column("before_ns", "float64", "time before, ns of a GPU per step"),
        Column("after_ns", "float64", "time after, ns of a GPU per step"),
        Column("difference_ns", "float64", "after less before, ns"),
    ),
    (),  # the largest difference first
)
LINE = list(analysis_ledger.LINE)
NUMBER = re.compile(r"[\s_:#(\[-]*\d+[)\]]?$")


def lines(before: Given, after: Given) -> pd.DataFrame:
    """Return EXPLAINED: the lines of both runs per step, or per unit of equal work, the largest difference first.

    `before`, `after`: a run, a selection, or a sequence of repeats. Empty where the runs share neither steps nor work.
    """
    old, new = side("before", before), side("after", after)
    if not (old.has("all_kernels") and new.has("all_kernels")):
        return EXPLAINED.empty()
    old, new = timed(old, new)
    if not (old.steps and new.steps):
        return EXPLAINED.empty()
    sides = [_per_step(one).rename(name) for one, name in ((old, "before_ns"), (new, "after_ns"))]
    table = pd.concat(sides, axis=1).fillna(0.0).rename_axis(LINE).reset_index()
    table["difference_ns"] = table["after_ns"] - table["before_ns"]
    order = (-table["difference_ns"].abs()).argsort(kind="stable")
    return EXPLAINED.make(table.iloc[order].reset_index(drop=True))


def _per_step(one: Side) -> pd.Series:
    """Return the time of each line of a side, ns of a GPU per step: the mean over the repeats."""
    repeats = [_of_repeat(view, steps) for view, steps in zip(one.views, one.steps, strict=True)]
    return pd.concat(repeats, axis=1).fillna(0.0).mean(axis=1)


def _of_repeat(view: Selection, steps: pd.DataFrame) -> pd.Series:
    """Return the time of each line of a repeat; what the ledger does not cover of a step is outside."""
    chosen = last_phase(steady(steps))
    booked = booking.booked(view)
    phases = chosen[["rank", "start_ns", "dur_ns"]].assign(phase="step")
    table = analysis_ledger.ledger(booked, phases)
    devices = booked[["rank", "gpu"]].drop_duplicates()
    of_devices = devices.merge(chosen[["rank", "dur_ns"]], on="rank")["dur_ns"]
    inside = table[table["phase"] == "step"].reset_index(drop=True)
    times = inside[LINE].astype(object).fillna("").assign(ns=inside["ns"])
    times["owner"] = times["owner"].map(_unnumbered).where(times["kind"] == "idle", times["owner"])
    rest = int(of_devices.sum() - times["ns"].sum())
    outside = pd.DataFrame(
        [("outside", "outside of the recorded work", "", rest)], columns=times.columns
    )
    return pd.concat([times, outside]).groupby(LINE)["ns"].sum() / len(of_devices)


def _unnumbered(owner: str) -> str:
    """Return the name of a range without the number of the step, which differs from step to step."""
    return NUMBER.sub("", owner) or owner

"""What limits measured launches, in words: the units by name, how busy they are, and what usually helps."""

import pandas as pd

from perfkit.analysis import access
from perfkit.diagnosis.commands import commands
from perfkit.diagnosis.framework import has_tensor_cores
from perfkit.format import number, percent
from perfkit.selection import Selection

NOTABLE = 0.1  # of the time of launches, from which on a limit is named (convention)
LEVELS = {
    "l1": "L1 and shared memory",
    "l2": "L2",
    "dram": "DRAM",
    "lsu": "load/store pipe",
    "issue": "issue slots",
}
TENSOR = "tensor"  # the pipe that has a word for its name


def limits_named(rows: pd.DataFrame) -> tuple[str, float]:
    """Return the limits of launches, as the subject and verb of a sentence, and their time, ns.

    Limits with a tenth of the time or more are named; too small grids, and latency, alone.
    """
    of_limit = rows.groupby(rows["limit"].astype(object))["dur_ns"].sum()
    times = of_limit.sort_values(ascending=False, kind="stable")
    limits = [str(limit) for limit in times.index[times >= NOTABLE * times.sum()]]
    if limits[0] == "small grid":
        return "Grids that are too small to fill the GPU limit", float(times["small grid"])
    if limits[0] == "latency":
        return "Latency limits", float(times["latency"])
    names = list(dict.fromkeys(unit_name(limit) for limit in limits))
    verb = "limits" if len(names) == 1 and " and " not in names[0] else "limit"
    subject = " and ".join([names[0], *(inside(name) for name in names[1:])])
    return f"{subject} {verb}", float(times[limits].sum())


def inside(name: str) -> str:
    """Return the name of a unit as it stands inside of a sentence."""
    return name.replace("The ", "the ", 1)


def unit_name(limit: str) -> str:
    """Return a unit as the subject of a sentence.

    >>> unit_name("alu"), unit_name("dram")
    ('The ALU pipe', 'DRAM')
    """
    return access.UNITS[limit].name if limit in access.UNITS else f"The {pipe_name(limit)}"


def pipe_name(pipe: str) -> str:
    """Return a pipe inside of a sentence.

    >>> pipe_name("fma"), pipe_name("tensor")
    ('FMA pipe', 'tensor pipe')
    """
    return f"{pipe if pipe == TENSOR else pipe.upper()} pipe"


def busy_units(row: pd.Series) -> str:
    """Return how busy the units of the GPU are in a launch, and what that means, in sentences."""
    parts = {name: row[f"{unit}_frac"] for unit, name in LEVELS.items()}
    if pd.notna(row["pipe_frac"]):
        parts[pipe_name(str(row["pipe"]))] = row["pipe_frac"]
    known = {name: share for name, share in parts.items() if pd.notna(share)}
    ranked = sorted(known, key=lambda name: -known[name])[:4]
    units = ", ".join(f"{name} {percent(known[name])}" for name in ranked)
    busy = f"Its busiest units: {units} of their peak rate." if units else ""
    limit = str(row["limit"])
    if limit == "small grid":
        waves = (
            f"{number(row['waves'])} waves" if row["waves"] > 0 else f"{row['blocks']:,.0f} blocks"
        )
        return f"Its grid has too few blocks to fill the GPU ({waves}). {busy}".strip()
    if limit == "latency":
        filled = (
            "though the grid fills the GPU"
            if pd.notna(row["waves"])
            else "and how far the grid fills the GPU is unknown"
        )
        return f"It waits: no unit reaches 60 % of its peak rate, {filled}. {busy}".strip()
    name = str(row["pipe"]) if limit in ("issue", "sm") else limit
    pipe = access.PIPES.get(name)
    if pipe:
        return f"{busy} {name.upper()}: {pipe.does}."
    if limit != "sm":
        return busy
    worked = f"The SMs work at {percent(row['busy_frac'])} of their peak rate"
    return f"{worked}; which of their units limits was not recorded. {busy}".strip()


def with_these_instructions(rows: pd.DataFrame) -> str:
    """Return the bound of launches that keep their instructions, in a sentence."""
    known = rows[rows["bound_frac"].notna()]
    if known.empty:
        return ""
    busy = float((known["bound_frac"] * known["dur_ns"]).sum() / known["dur_ns"].sum())
    most = f"{1 / busy:.{1 if busy < 0.9 else 2}f} times"
    return (
        f"With the same instructions these kernels can be at most {most} as fast; others can save "
        "more."
    )


def helps_against(view: Selection, limit: str, pipe: str) -> str:
    """Return what usually helps where a unit is the limit.

    Nothing where that depends on more than the unit.
    """
    if limit == "sm" and pipe not in access.PIPES:
        return f"Record which unit of the SMs limits: {commands(view, '{ncu}')}"
    if limit in access.UNITS and limit != "issue":
        return access.UNITS[limit].helps
    if limit == "issue":
        return access.PIPES[pipe].helps if pipe in access.PIPES else access.UNITS[limit].helps
    if limit not in access.PIPES:
        return ""
    words = access.PIPES[limit]
    return (
        words.with_tensor_cores
        if words.with_tensor_cores and has_tensor_cores(view)
        else words.helps
    )

"""What a run of which call paths were recorded gains at most, row by row: current state, target, and the bound.

A bound is 1 / (1 - share of the wall time): it holds if all of this time went away. Bounds share the same wall time, so
they are never multiplied.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pandas as pd

from perfkit.diagnosis import path_ledger
from perfkit.diagnosis.finding import Figure
from perfkit.diagnosis.rules.call_paths import (
    PATHS_COPIES,
    PATHS_GPU_IDLE,
    PATHS_LAUNCHES,
    PATHS_STALL,
)
from perfkit.format import number, percent
from perfkit.names import parts as names
from perfkit.selection import Selection

COLUMNS = [
    "what",
    "share of the GPU's time",
    "share of the wall time",
    "target",
    "if all of it went away",
]
UNKNOWN = "-"
SMALL = 1.01  # factors below have four decimals


class Row(NamedTuple):
    """What costs time, its shares (0..1, of the wall time None where unknown), and where it should be."""

    what: str
    of_gpu: str
    of_wall: float | None
    target: str
    remark: str = ""


def rows(view: Selection, figures: Mapping[str, Figure]) -> pd.DataFrame:
    """Return the rows of the table, COLUMNS, as text; empty without work of a GPU on call paths."""
    table = path_ledger.ledger(view)
    if table.empty or "paths_operation_ns" not in figures:
        return pd.DataFrame(columns=COLUMNS)
    told = [*_cpu(table, figures), *_gpu(figures)]
    return pd.DataFrame([_text(row) for row in told], columns=COLUMNS)


def _cpu(table: pd.DataFrame, figures: Mapping[str, Figure]) -> Iterator[Row]:
    """Yield the parts of the wall time in which the GPU did nothing."""
    if "paths_wall_ns" not in figures:
        return
    target = f"GPU busy {PATHS_GPU_IDLE.target}"
    idle = table.loc[table["kind"] == "idle", "ns"].sum() / table["ns"].sum()
    for key, share in names.shares(table[table["kind"] == "idle"]).items():
        remark = "its cause was not recorded" if key == "cpu_not_recorded" else ""
        yield Row(f"GPU {names.TIME[str(key)]}", UNKNOWN, float(share * idle), target, remark)


def _gpu(figures: Mapping[str, Figure]) -> Iterator[Row]:
    """Yield copies, kernels with their main stall, launches, and all of them together."""
    wall = figures["paths_wall_ns"].value if "paths_wall_ns" in figures else None
    whole = figures["paths_operation_ns"].value
    sums = 0.0
    for id, what, target in (
        ("paths_copy_ns", "Copies", PATHS_COPIES.target),
        (
            "paths_kernel_ns",
            _kernels(figures),
            PATHS_STALL.target if "paths_main_stall_frac" in figures else "",
        ),
    ):
        if id in figures:
            time = figures[id].value
            sums += time
            yield Row(what, percent(time / whole), time / wall if wall else None, target)
    launches = figures.get("paths_launch_high_frac")
    if launches is not None and wall:
        sums += launches.value * wall
        what = f"{figures['paths_launch_count'].text} launches, at most 10 µs each on the CPU"
        as_long = f"as long as {percent(launches.value * wall / whole)} of it"
        yield Row(what, as_long, launches.value, PATHS_LAUNCHES.target)
    if wall:
        yield Row("All rows of the GPU and its launches", UNKNOWN, min(sums / wall, 1.0), "")


def _kernels(figures: Mapping[str, Figure]) -> str:
    """Return what kernels are called, with the reason for most of their stalls."""
    stall = figures.get("paths_main_stall_frac")
    if stall is None:
        return "Kernels"
    return f"Kernels; main stall: {names.stall(stall.subject)}, {stall.text} of the stall samples"


def _text(row: Row) -> tuple[str, ...]:
    share = UNKNOWN if row.of_wall is None else percent(row.of_wall)
    return (row.what, row.of_gpu, share, row.target, _bound(row))


def _bound(row: Row) -> str:
    """Return the most that the run gains without this time.

    >>> _bound(Row("copies", "", 0.0009, "")), _bound(Row("CPU", "", 0.5, "", "its cause was not recorded"))
    ('at most 1.0009x', 'at most 2.0x; its cause was not recorded')
    """
    if row.of_wall is None:
        return "unknown: the length of the run was not recorded"
    if row.of_wall >= 1:
        return "unknown: this is all of the time"
    factor = 1 / (1 - row.of_wall)
    text = f"{factor:.4f}" if factor < SMALL else f"{factor:.1f}" if factor < 10 else number(factor)
    return f"at most {text}x" + (f"; {row.remark}" if row.remark else "")

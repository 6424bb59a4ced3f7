"""Figures that someone published of a program, beside what its call paths say."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from perfkit.errors import PerfkitError
from perfkit.format import duration, number, percent

# What the analysis behind the published DLRM summary calls its figures, and what to divide their values by.
GLOBAL_METRICS = {
    "cpu_time": ("host_time", 1),
    "gpu_time": ("gpu_time", 1),
    "kernel_time": ("kernel_time", 1),
    "copy_time": ("copy_time", 1),
    "total_kernels": ("launches", 1),
    "total_transfers": ("copies", 1),
    "gpu_utilization_pct": ("gpu_share", 100),
    "copy_percentage": ("copy_share", 100),
    "avg_kernel_time_us": ("mean_kernel_time", 1_000_000),
    "kernel_overhead_pct": ("launch_overhead", 100),
}
WORDS = {
    "host_time": "CPU time",
    "gpu_time": "GPU operations",
    "kernel_time": "Kernel time",
    "copy_time": "Copy time",
    "launches": "Kernel launches",
    "copies": "Copies",
    "gpu_share": "GPU time over CPU thread time plus GPU time (no utilisation)",
    "copy_share": "Copies in kernel and copy time",
    "mean_kernel_time": "Mean kernel",
    "launch_overhead": "5 µs per launch over kernel time (no overhead)",
}
COLUMNS = {"tree_sum": "sum over the tree", "main_thread": "main thread only", "all_threads": "true: all threads"}


def against_published(sums: pd.DataFrame, path: str = "") -> pd.DataFrame:
    """Return the figures of `analysis.calltree.tree_sums` as text, beside published ones if a file is given.

    Parameters
    ----------
    sums
        As `analysis.calltree.tree_sums` returns them.
    path
        JSON file: an object of the figures' names in `sums` and their values (s, counts, fractions), or the
        ``metrics_data.json`` of the published DLRM analysis; empty for none.

    Raises
    ------
    PerfkitError
        If the file cannot be read or holds none of the figures.
    """
    table = pd.DataFrame({"figure": [_words(name) for name in sums["figure"]]})
    if path:
        known = published(Path(path))
        values = [known.get(name, math.nan) for name in sums["figure"]]
        table["published"] = [_spoken(v, unit) for v, unit in zip(values, sums["unit"], strict=True)]
    for column, heading in COLUMNS.items():
        table[heading] = [_spoken(v, unit) for v, unit in zip(sums[column], sums["unit"], strict=True)]
    return table


def published(path: Path) -> dict[str, float]:
    """Return published figures by the names of `analysis.calltree.tree_sums`, from a JSON file; see there."""
    told = content(path)
    metrics = told.get("global_metrics", told)
    source = metrics if isinstance(metrics, dict) else {}
    numbers = {k: float(v) for k, v in source.items() if isinstance(v, int | float) and abs(v) <= sys.float_info.max}
    found = {name: value for name, value in numbers.items() if name in WORDS or name.startswith("stall_")}
    found |= {name: numbers[key] / per for key, (name, per) in GLOBAL_METRICS.items() if key in numbers}
    if "dominant_stall_pct" in numbers:
        found[f"stall_{source.get('dominant_stall_type')}"] = numbers["dominant_stall_pct"] / 100
    if not found:
        raise PerfkitError(f"{path}: holds none of the figures {', '.join(WORDS)}. Name at least one of them.")
    return found


def content(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, an empty one if it holds anything else."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise PerfkitError(f"{path}: the published figures cannot be read ({e.strerror}). Check the path.") from e
    except (ValueError, RecursionError) as e:
        raise PerfkitError(f"{path}: the published figures are not JSON ({e}). Give an object of numbers.") from e
    return told if isinstance(told, dict) else {}


def _words(name: str) -> str:
    return WORDS.get(name) or f"Stall {name.removeprefix('stall_')}, share of stalled samples"


def _spoken(value: float, unit: str) -> str:
    if math.isnan(value):
        return "-"
    if unit == "s":
        return duration(value * 1e9)
    return percent(value) if unit == "frac" else f"{value:,.0f}" if unit == "count" else number(value)

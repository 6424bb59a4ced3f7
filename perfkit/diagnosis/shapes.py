"""The roofline that needs no counters: operations and bytes of operators, counted from the shapes of their inputs."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from perfkit import hardware
from perfkit.analysis import flops
from perfkit.analysis.roofline import CEILINGS
from perfkit.diagnosis.framework import PRECISIONS, gpu_time
from perfkit.selection import Selection


def shape_roofline(view: Selection, *, peaks: str = "") -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the points of the operators and the roofs of the GPU's data sheet, as `charts.roofline` takes them.

    Parameters
    ----------
    view
        A selection with operators.
    peaks
        A CSV file of peaks, see `hardware.load_peaks`; empty for the data sheets perfkit knows.

    Returns
    -------
    tuple of DataFrame
        Points: one row per operator, model and type with kernel time and operations: name, family, precision (that of
        the peak it is held against), count, dur_ns, flops, flops_per_s, dram_intensity. Ceilings: empty where the GPU
        or its peaks are not known; never those of another GPU.
    """
    sheet = hardware.peaks(next(iter(view.devices["name"]), ""), table=hardware.load_peaks(peaks) if peaks else None)
    points = flops.roofline(view.framework.ops, gpu_time(view))
    points = points[points["flops"].notna()]
    known = sheet.flops_per_s if sheet else {}
    precision = [_precision(str(dtype), known) for dtype in points["dtype"]]
    renamed = points.rename(columns={"model": "family", "gpu_ns": "dur_ns", "intensity": "dram_intensity"})
    family = renamed["family"].astype("string").str.extract("(gemm|convolution|attention)")[0].fillna("other")
    renamed = renamed.assign(precision=pd.Categorical(precision), family=family.astype("category"))
    if sheet is None:
        return renamed, CEILINGS.empty()
    used = [name for name in dict.fromkeys(precision) if name in known]
    rows = [(name, known[name], float("nan")) for name in used]
    if sheet.memory_bytes_per_s:
        rows.append(("dram", float("nan"), sheet.memory_bytes_per_s))
    roofs = pd.DataFrame(rows, columns=["roof", "flops_per_s", "bytes_per_s"])
    return renamed, roofs.assign(source=f"data sheet of {sheet.name}, dense peaks")


def _precision(dtype: str, known: Mapping[str, float]) -> str:
    """Return the peak that operators of a type are held against: the highest in which they may have run."""
    names = PRECISIONS.get(dtype, (dtype,))
    return next((name for name in names if name in known), names[0])

"""What would Nsight Systems record of a training before and after one change, and after a series of four?

No GPU runs. A transformer is trained on a simulated A100, event by event: the times of kernels follow from operations,
bytes and data sheet, and what the change does follows from the program. The series is that of notes on a training
whose utilisation went from 65 to 95 %; there the times are set such that the notes' figures come out.

Data
----
PAIRS      name -> settings before and after, different in one thing
SERIES     label -> settings after each change of the series

Functions
---------
write      a pair, or the series, into folders
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from perfkit.simulate.experiments.export import write as write_run
from perfkit.simulate.experiments.series import SERIES
from perfkit.simulate.experiments.setup import Setup

__all__ = ["PAIRS", "SERIES", "Setup", "write"]

_LOADING = Setup(precision="bf16", loading_ns=500_000, pinned=False)

PAIRS: Mapping[str, tuple[Setup, Setup]] = {
    "measuring": (Setup(), Setup(seed=1)),
    "tensor": (Setup(), Setup(precision="tf32")),
    "fusion": (Setup(precision="bf16"), Setup(precision="bf16", fused=True)),
    "sync": (Setup(precision="bf16", read_loss=1), Setup(precision="bf16", read_loss=50)),
    "loading": (_LOADING, replace(_LOADING, workers=4)),
    "batch": (Setup(precision="bf16", batch=4), Setup(precision="bf16", batch=32)),
    "precision": (Setup(), Setup(precision="bf16")),
}


def write(name: str, folder: str | Path) -> dict[str, Path]:
    """Write the runs of a pair, or of the series.

    Parameters
    ----------
    name
        One of PAIRS, or "case" for the series.
    folder
        Where each run gets a folder of its own, named as it is labelled.

    Returns
    -------
    dict
        The folder of each run by its label, before and after, or those of SERIES, in their order.

    Raises
    ------
    ValueError
        If there is no such pair.
    PerfkitError
        If a folder cannot be written.

    Examples
    --------
    >>> write("luck", "runs")
    Traceback (most recent call last):
    ...
    ValueError: name: 'luck' is not one of measuring, tensor, fusion, sync, loading, batch, precision, case
    """
    runs = {"case": SERIES} | {pair: dict(zip(("before", "after"), both, strict=True)) for pair, both in PAIRS.items()}
    if name not in runs:
        raise ValueError(f"name: {name!r} is not one of {', '.join([*PAIRS, 'case'])}")
    folder = Path(folder)
    return {label: write_run(label, setup, folder / label) for label, setup in runs[name].items()}

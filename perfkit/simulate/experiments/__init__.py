"""What would Nsight Systems record of a training before and after one change, and after a series of four?

No GPU runs. A transformer is trained on a simulated A100, event by event: the times of kernels follow from operations,
bytes and data sheet, and what the change does follows from the program. The series is that of notes on a training
whose utilisation went from 65 to 95 %; there the times are set such that the notes' figures come out.

Data
----
PAIRS          name -> settings before and after, different in one thing
SERIES         label -> settings after each change of the series
NAMES          of the pairs, and case, which is the series

Functions
---------
write          the runs of a pair, or the series, into folders
labels         of these runs
write_all      all of them
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from perfkit.simulate.experiments.export import write as write_run
from perfkit.simulate.experiments.series import SERIES
from perfkit.simulate.experiments.setup import Setup

__all__ = ["NAMES", "PAIRS", "SERIES", "Setup", "labels", "write", "write_all"]

_LOADING = Setup(precision="bf16", loading_ns=500_000, pinned=False)

PAIRS: Mapping[str, tuple[Setup, Setup]] = {
    "measuring": (Setup(precision="bf16"), Setup(precision="bf16", seed=1)),
    "tensor": (Setup(), Setup(precision="tf32")),
    "fusion": (Setup(precision="bf16"), Setup(precision="bf16", fused=True)),
    "sync": (Setup(precision="bf16", read_loss=1), Setup(precision="bf16", read_loss=50)),
    "loading": (_LOADING, replace(_LOADING, workers=4)),
    "batch": (Setup(precision="bf16", batch=4), Setup(precision="bf16", batch=32)),
    "precision": (Setup(), Setup(precision="bf16")),
}
CASE = "case"
NAMES = (*PAIRS, CASE)


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
    folder = Path(folder)
    return {label: write_run(label, setup, folder / label) for label, setup in _setups(name).items()}


def labels(name: str) -> list[str]:
    """Return the labels of the runs of a pair or of the series, in their order.

    Examples
    --------
    >>> labels("sync")
    ['before', 'after']
    """
    return list(_setups(name))


def write_all(folder: str | Path) -> Path:
    """Write all pairs and the series, each into a folder of its name, and return the folder that holds them."""
    for name in NAMES:
        write(name, Path(folder) / name)
    return Path(folder)


def _setups(name: str) -> Mapping[str, Setup]:
    if name not in NAMES:
        raise ValueError(f"name: {name!r} is not one of {', '.join(NAMES)}")
    return SERIES if name == CASE else dict(zip(("before", "after"), PAIRS[name], strict=True))

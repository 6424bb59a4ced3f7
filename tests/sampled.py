"""SAMPLES and DEVICES for tests, written as the readings of each metric; the rest is filled in."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from perfkit.tables import DEVICES, SAMPLES

SECOND = 10**9


def samples(
    *,
    rank: int = 0,
    gpu: int = 0,
    every: int = SECOND,
    at: Sequence[int] | None = None,
    **metrics: Sequence[float],
) -> pd.DataFrame:
    """SAMPLES of one device: each metric read `every` ns from 0 on, or at the times `at`; None is not read."""
    rows = [
        (rank, gpu, time, metric, value)
        for metric, values in metrics.items()
        for time, value in zip(at or range(0, every * len(values), every), values, strict=True)
        if value is not None
    ]
    return SAMPLES.make(pd.DataFrame(rows, columns=SAMPLES.column_names))


def together(*tables: pd.DataFrame) -> pd.DataFrame:
    """SAMPLES of several devices."""
    return SAMPLES.make(pd.concat([table.astype({"metric": object}) for table in tables]))


def allocated(*levels: tuple[int, int, int | None], rank: int = 0, gpu: int = 0) -> pd.DataFrame:
    """SAMPLES of (time, allocated, reserved) of a device; reserved None is not recorded."""
    at, *both = zip(*levels, strict=True)
    metrics = dict(zip(("memory_allocated_bytes", "memory_reserved_bytes"), both, strict=True))
    return samples(rank=rank, gpu=gpu, at=at, **metrics)


def devices(*names: str, **columns: Any) -> pd.DataFrame:
    """DEVICES with these names, of rank 0 and numbered from 0 unless the columns say otherwise."""
    unknown = {"compute_capability": "", "sm_count": None, "memory_bytes": None}
    unknown |= {"rank": 0, "memory_bytes_per_s": np.nan, "clock_hz": np.nan}
    return DEVICES.make(
        pd.DataFrame({**unknown, "gpu": range(len(names)), "name": names, **columns})
    )

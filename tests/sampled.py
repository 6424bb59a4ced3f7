"""SAMPLES and DEVICES for tests, written as the readings of each metric; the rest is filled in."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from perfkit.tables import DEVICES, SAMPLES

SECOND = 10**9


def samples(
    *, rank: int = 0, gpu: int = 0, every: int = SECOND, at: Sequence[int] | None = None, **metrics: Sequence[float]
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


def devices(*names: str, memory_bytes: int | None = None) -> pd.DataFrame:
    """DEVICES of rank 0 with these names, numbered from 0."""
    unknown = {"compute_capability": "", "sm_count": None, "memory_bytes_per_s": np.nan, "clock_hz": np.nan}
    unknown |= {"rank": 0, "memory_bytes": memory_bytes}
    rows = [{"gpu": gpu, "name": name, **unknown} for gpu, name in enumerate(names)]
    return DEVICES.make(pd.DataFrame(rows, columns=DEVICES.column_names))

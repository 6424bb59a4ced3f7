"""What runs from a start to an end, and steps, a line each."""

from functools import cache
from typing import Any

import pandas as pd
from frames import lasting

import perfkit
from perfkit.analysis.steps import STEPS

loaded = cache(perfkit.load)


def span(start: int, end: int, correlation: int = -1, **more: Any) -> dict[str, Any]:
    return lasting(start, end - start, correlation=correlation, **more)


def us(start: int, end: int, correlation: int = -1, **more: Any) -> dict[str, Any]:
    return span(start * 1000, end * 1000, correlation, **more)


def call(
    start: int, end: int, name: str = "cudaLaunchKernel", correlation: int = -1, **more: Any
) -> dict[str, Any]:
    return span(start, end, correlation, name=name, **more)


def steps(*bounds: tuple[int, int], rank: int = 0, steady: bool = True) -> pd.DataFrame:
    rows = [
        span(*ends, rank=rank, step=step, name="s", how="nvtx", steady=steady)
        for step, ends in enumerate(bounds)
    ]
    return STEPS.make(pd.DataFrame(rows, columns=STEPS.column_names))

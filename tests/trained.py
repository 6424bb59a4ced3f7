"""Runs of a training for tests of comparisons: of any tables, or of steps with two kernels."""

from functools import cache

import numpy as np
import pandas as pd
from frames import kernels, profile, ranges
from sampled import devices

import perfkit

MS = 1_000_000


def run(reader: str = "nsys", **tables: pd.DataFrame) -> perfkit.Run:
    """A run with these tables."""
    return perfkit.Run(
        [
            profile(
                reader, "p", None, 10**9, **{name.upper(): frame for name, frame in tables.items()}
            )
        ]
    )


@cache
def training(
    length: float = 10.0,
    *,
    count: int = 20,
    gpu: str = "A100",
    seed: int = 0,
    named: bool = True,
    reader: str = "nsys",
) -> perfkit.Run:
    """Steps of so many ms, each with a GEMM of a tenth and a copy kernel of 1 ms, 1 % off by chance; made once."""
    random, rows, spans, at = np.random.default_rng(seed), [], [], 0
    for step in range(count):
        whole = round(length * MS * random.normal(1, 0.01))
        rows += [{"name": "sgemm", "family": "gemm", "start_ns": at, "dur_ns": whole // 10}]
        rows += [{"name": "cat", "family": "copy", "start_ns": at + whole // 2, "dur_ns": MS}]
        spans += [{"name": f"step {step}", "start_ns": at, "dur_ns": whole}]
        at += whole
    found = ranges(*spans) if named else ranges()
    return run(reader, kernels=kernels(*rows), ranges=found, devices=devices(*[gpu] * bool(gpu)))

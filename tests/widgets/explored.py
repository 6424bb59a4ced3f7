"""A run to choose from: two ranks with two GPUs between them."""

from pathlib import Path
from typing import Any

import pandas as pd
from frames import copies, kernels, lasting, profile, ranges

import perfkit
from perfkit.widgets.choice import Explorer

MS = 1_000_000
HOSTILE = "<script>alert(1)</script>"


def kernel(start: int, name: str, family: str, **where: int) -> dict[str, Any]:
    """A kernel of 1 ms that starts at `start` ms."""
    return lasting(start * MS, MS, name, family=family, **where)


def tables() -> dict[str, pd.DataFrame]:
    """0 ms to 100 ms: gemm on both GPUs of rank 0, softmax on GPU 1 of rank 1, a hostile name; steps of 20 ms."""
    work = [kernel(0, "sgemm_tn", "gemm"), kernel(20, "sgemm_nt", "gemm", gpu=1)]
    work += [kernel(40, "softmax", "softmax", gpu=1, rank=1), kernel(60, HOSTILE, "other", rank=1)]
    moved = copies(lasting(99 * MS, MS))
    marked = [lasting(20 * n * MS, 20 * MS, f"ProfilerStep#{n}", kind="step") for n in range(5)]
    return {"KERNELS": kernels(*work), "COPIES": moved, "RANGES": ranges(*marked)}


def run_of(path: Path, found: dict[str, pd.DataFrame]) -> perfkit.Run:
    """A recording of 100 ms."""
    return perfkit.Run([profile("nsys", str(path), None, 100 * MS, **found)])


def changes(explorer: Explorer) -> list[Any]:
    seen: list[Any] = []
    explorer.observe(lambda change: seen.append(change["new"]), "selection")
    return seen

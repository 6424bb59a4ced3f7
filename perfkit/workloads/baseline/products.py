"""Matrix products in every precision of the device, from small sizes up to the plateau."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pandas as pd

from perfkit import hardware
from perfkit.schema import Column, Table
from perfkit.workloads.baseline.rates import TIMES, above_zero, peak_frac, timed
from perfkit.workloads.baseline.timing import CALLS, Device, device

GEMMS = Table(
    "GEMMS",
    "a size of matrices in a precision",
    (
        Column("precision", "category", "fp32, tf32_tensor, ... as in `hardware.PRECISIONS`; bf16 on a CPU"),
        Column("rows_count", "int64", "rows of each of the square matrices"),
        Column("flops", "int64", "FLOP of a product, 2 rows^3"),
        *TIMES,
        Column("flops_per_s", "float64", "FLOP over the median time"),
        Column("peak_frac", "float64", "of the data sheet's dense peak; NaN where that is not known"),
    ),
    ("precision", "rows_count"),
)
CEILINGS = Table(
    "MEASURED_CEILINGS",
    "a precision",
    (
        Column("precision", "category", "as in GEMMS"),
        Column("flops_per_s", "float64", "the highest rate of its sizes"),
        Column("is_plateau", "bool", "the largest size is less than 2 % faster than the best of the smaller ones"),
    ),
    ("precision",),
)
FIRST = 256  # rows
SIZES = 8  # about as many sizes share the time of a precision
RISE = 1.02  # a rate that grows by less from size to size has reached its plateau


def gemm(*, seconds: float = 2.0, most_rows: int = 16384) -> pd.DataFrame:
    """Return the rate of matrix products of this machine in each precision, from small sizes up to the plateau.

    Sizes double until two in succession are less than 2 % faster than the best before, or the next one exceeds
    `most_rows`, half of the free memory of the GPU, or what is left of `seconds`. FP32 is computed as such, TF32 with
    PyTorch's ``set_float32_matmul_precision("high")``, which is set back afterwards.

    Parameters
    ----------
    seconds
        Time for each precision, about. Clocks fall with heat and power: more of it shows a rate that lasts.
    most_rows
        Largest size.

    Returns
    -------
    pandas.DataFrame
        GEMMS, one row per precision and size: `rows_count`, `flops` and `count` int64; `median_ns`, `min_ns`, `max_ns`
        float64, ns; `flops_per_s` float64, of the median; `peak_frac` float64, its share of the data sheet's peak, NaN
        if that is not known, at most 1.1.

    Raises
    ------
    ValueError
        If `seconds` is not above 0, or `most_rows` below the first size, 256.
    PerfkitError
        If PyTorch is not installed, or a rate is above 110 % of the peak: then something else was timed.

    References
    ----------
    FLOP of a product: Golub, Van Loan: Matrix Computations, 1.1.

    Examples
    --------
    >>> gemm(seconds=0)
    Traceback (most recent call last):
    ...
    ValueError: seconds: 0 is not above 0
    """
    above_zero(seconds)
    if most_rows < FIRST:
        raise ValueError(f"most_rows: {most_rows} is below {FIRST}")
    used = device()
    rows = [
        {"precision": precision, **row}
        for precision, dtype in _precisions(used)
        for row in _sizes(used, precision, dtype, seconds, most_rows)
    ]
    return GEMMS.make(pd.DataFrame(rows))


def ceilings(gemms: pd.DataFrame) -> pd.DataFrame:
    """Return the highest rate of each precision, and whether larger matrices would not be faster.

    Parameters
    ----------
    gemms
        GEMMS; may be empty.

    Returns
    -------
    pandas.DataFrame
        One row per precision, ascending: `precision` category; `flops_per_s` float64; `is_plateau` bool, whether the
        largest size is less than 2 % faster than the best of the smaller ones.

    Raises
    ------
    SchemaError
        If `gemms` is not a GEMMS table.

    Examples
    --------
    >>> ceilings(GEMMS.empty()).empty
    True
    """
    rows = []
    for precision, sizes in GEMMS.check(gemms).groupby("precision", observed=True):
        *smaller, last = sizes.sort_values("rows_count")["flops_per_s"]
        is_plateau = bool(smaller) and last < RISE * max(smaller)
        rows.append({"precision": precision, "flops_per_s": max(*smaller, last, 0), "is_plateau": is_plateau})
    return CEILINGS.make(pd.DataFrame(rows, columns=CEILINGS.column_names))


def _precisions(used: Device) -> list[tuple[str, Any]]:
    """Return the precisions that the device computes in, as in `hardware.PRECISIONS`, with PyTorch's types.

    Tensor cores know FP16 since compute capability 7.0, BF16 and TF32 since 8.0 (CUDA C++ Programming Guide).
    """
    torch, capability = used.torch, used.capability
    if capability is None:
        return [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
    made = [("fp32", torch.float32), ("fp16_tensor" if capability >= (7, 0) else "fp16", torch.float16)]
    if capability >= (8, 0):
        made.append(("bf16_tensor", torch.bfloat16))
        if not torch.version.hip:
            made.append(("tf32_tensor", torch.float32))
    return made


def _sizes(used: Device, precision: str, dtype: Any, seconds: float, most_rows: int) -> Iterator[dict[str, Any]]:
    """Yield what was measured of each size, up to the plateau."""
    sheet = hardware.peaks(used.name)
    peak = sheet.flops_per_s.get(precision) if sheet else None
    rows, best, level = FIRST, 0.0, 0
    end = time.monotonic() + seconds
    while True:
        flops = 2 * rows**3
        row = timed(_products(used, precision, dtype, rows, seconds / SIZES), "flops_per_s", flops)
        rate = row["flops_per_s"]
        frac = peak_frac(used.name, precision, rate, peak, "FLOP/s")
        yield {"rows_count": rows, "flops": flops, **row, "peak_frac": frac}
        level = level + 1 if rate < RISE * best else 0
        best, rows = max(best, rate), 2 * rows
        is_late = time.monotonic() + CALLS * 8 * row["min_ns"] / 1e9 > end  # twice the rows are eight times the FLOP
        if level == 2 or rows > most_rows or is_late or not used.fits(3 * rows**2 * dtype.itemsize):
            return


def _products(used: Device, precision: str, dtype: Any, rows: int, seconds: float) -> list[float]:
    torch = used.torch
    random = torch.Generator(used.kind).manual_seed(0)
    first, second = (torch.randn(rows, rows, generator=random, device=used.kind).to(dtype) for _ in range(2))
    product = torch.empty_like(first)
    with _float32(torch, "high" if precision == "tf32_tensor" else "highest"):
        return used.times(lambda: torch.mm(first, second, out=product), seconds)


@contextmanager
def _float32(torch: Any, precision: str) -> Iterator[None]:
    """Let PyTorch multiply FP32 matrices in a precision."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)

"""Copies between the memories of host and GPU, and inside them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pandas as pd

from perfkit import hardware
from perfkit.errors import PerfkitError
from perfkit.schema import Column, Table
from perfkit.workloads.baseline.rates import TIMES, above_zero, peak_frac, timed
from perfkit.workloads.baseline.timing import Device, Work, device

COPY_RATES = Table(
    "COPY_RATES",
    "a direction of copies and a kind of memory",
    (
        Column("direction", "category", "H2D, D2H, D2D; H2H on a CPU"),
        Column("memory", "category", "of the host: pinned, pageable; device for D2D"),
        Column("bytes", "int64", "size of what is copied"),
        *TIMES,
        Column("bytes_per_s", "float64", "bytes moved (twice the size inside one memory) over the median time"),
        Column("peak_frac", "float64", "of the data sheet's memory bandwidth; NaN where not known, and over a link"),
    ),
    ("direction", "memory"),
)
INSIDE = ("D2D", "H2H")  # one memory, which is read and written
GPU_BYTES, CPU_BYTES = 2**28, 2**29  # more than the caches hold


def copy(*, seconds: float = 1.0, size_bytes: int | None = None) -> pd.DataFrame:
    """Return the bandwidth of copies: of a GPU with the host's pinned and pageable memory, and inside its own.

    Without a GPU it is that of copies inside the memory of the CPU. Every byte of the host's memory has been written
    before, so that none is read from a page that the system has not given out yet.

    Parameters
    ----------
    seconds
        Time for each direction and memory, about.
    size_bytes
        What is copied; 256 MiB when omitted, 512 MiB on a CPU: more than the caches hold.

    Returns
    -------
    pandas.DataFrame
        COPY_RATES, one row per direction and memory: `bytes` and `count` int64; `median_ns`, `min_ns`, `max_ns`
        float64, ns; `bytes_per_s` float64, of the median, reads and writes counted where both are of one memory;
        `peak_frac` float64, its share of the memory bandwidth of the data sheet, NaN if that is not known or the copy
        goes over a link, at most 1.1.

    Raises
    ------
    ValueError
        If `seconds` or `size_bytes` is not above 0.
    PerfkitError
        If PyTorch is not installed, the GPU lacks the memory, or a rate is above 110 % of the peak.

    Examples
    --------
    >>> copy(seconds=-1)
    Traceback (most recent call last):
    ...
    ValueError: seconds: -1 is not above 0
    """
    above_zero(seconds)
    if size_bytes is not None and size_bytes <= 0:
        raise ValueError(f"size_bytes: {size_bytes} is not above 0")
    used = device()
    size = size_bytes or (CPU_BYTES if used.capability is None else GPU_BYTES)
    sheet = hardware.peaks(used.name)
    rows = []
    for direction, memory, work in _copies(used, size):
        inside = direction in INSIDE
        row = timed(used.times(work, seconds), "bytes_per_s", size * (2 if inside else 1))
        peak = sheet.memory_bytes_per_s if sheet and inside else None
        frac = peak_frac(used.name, f"copies {direction}", row["bytes_per_s"], peak, "B/s")
        rows.append({"direction": direction, "memory": memory, "bytes": size, **row, "peak_frac": frac})
    return COPY_RATES.make(pd.DataFrame(rows))


def _copies(used: Device, size: int) -> Iterator[tuple[str, str, Work]]:
    """Yield direction, memory and work of the copies."""
    torch = used.torch

    def there(**where: Any) -> Any:
        return torch.ones(size, dtype=torch.uint8, **where)

    if used.capability is None:
        source, target = there(), there()
        yield "H2H", "pageable", partial(target.copy_, source)
        return
    if not used.fits(2 * size):
        raise PerfkitError(f"GPU memory: less than {4 * size} bytes are free. End what else runs on {used.name}.")
    near, other = there(device="cuda"), there(device="cuda")
    yield "D2D", "device", partial(other.copy_, near)
    for memory in ("pinned", "pageable"):
        host = there().pin_memory() if memory == "pinned" else there()
        yield "H2D", memory, partial(near.copy_, host, non_blocking=True)
        yield "D2H", memory, partial(host.copy_, near, non_blocking=True)

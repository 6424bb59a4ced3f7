"""Sampling the GPUs of this machine into a log, where nvidia-smi is not at hand or does not tell enough.

Conventions
-----------
The log has the layout of ``nvidia-smi --query-gpu=... --format=csv``, a line per GPU and moment, and is read as one.
Its times are UTC, which the header says where nvidia-smi has units (nvidia-smi's own times are local). GPUs have
NVML's index, in the order of the PCI bus: CUDA counts as NVML does where CUDA_DEVICE_ORDER is PCI_BUS_ID and
CUDA_VISIBLE_DEVICES hides none.

Functions
---------
gpu_log    sample until the time is over or a signal arrives
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from perfkit.errors import PerfkitError
from perfkit.workloads import nvml

SECOND = 1_000_000_000
ENDING = (signal.SIGINT, signal.SIGTERM)
TIMESTAMP = "timestamp [UTC]"
SLICE = 0.1  # s; how long a signal may go unnoticed


def gpu_log(out: str | Path, *, interval_ns: int = SECOND, dur_ns: int | None = None, gpus: Sequence[int] = ()) -> int:
    """Sample GPUs through NVML into a CSV file that `perfkit.load` reads.

    Samples are taken at multiples of the interval since the first; those that fall due while one is taken are left
    out (a sample takes at least 40 ms per GPU, in which NVML counts the PCIe traffic). SIGINT and SIGTERM end the log
    after the lines of that moment; a second signal acts as it does without perfkit. A cell that NVML cannot fill is
    ``[N/A]`` where that is not supported, otherwise NVML's reason in brackets.

    Parameters
    ----------
    out
        CSV file to make; a line is in it as soon as it is whole.
    interval_ns
        Time from sample to sample, ns, above 0.
    dur_ns
        Time in which samples are taken, ns, above 0; None until a signal.
    gpus
        NVML's indices of the GPUs; empty for all.

    Returns
    -------
    int
        Lines written, without the header.

    Raises
    ------
    ValueError
        If a time is not above 0.
    PerfkitError
        If nvidia-ml-py is not installed, NVML finds no driver or no such GPU, or the file exists or cannot be written.

    References
    ----------
    https://docs.nvidia.com/deploy/nvml-api/

    Examples
    --------
    >>> gpu_log("gpu.csv", interval_ns=0)
    Traceback (most recent call last):
    ...
    ValueError: interval_ns: 0 is not above 0
    """
    for name, value in (("interval_ns", interval_ns), ("dur_ns", dur_ns)):
        if value is not None and value <= 0:
            raise ValueError(f"{name}: {value} is not above 0")
    lines = 0
    with nvml.opened() as library, _signals() as stop:
        handles = nvml.chosen(library, gpus)
        try:
            with Path(out).open("x", encoding="utf-8", newline="\n", buffering=1) as file:
                file.write(_line([TIMESTAMP, "index", *nvml.NAMES]))
                for _ in _moments(interval_ns, dur_ns, stop):
                    lines += sum(file.write(line) > 0 for line in _lines(library, handles))
        except FileExistsError as e:
            raise PerfkitError(f"{out}: the file is there already. Choose another name, or remove it.") from e
        except OSError as e:
            raise PerfkitError(f"{out}: cannot be written ({e.strerror}). Choose another place.") from e
    return lines


def _lines(library: Any, handles: Mapping[int, Any]) -> Iterator[str]:
    for index, handle in handles.items():
        now = f"{datetime.now(UTC):%Y/%m/%d %H:%M:%S.%f}"[:-3]
        yield _line([now, str(index), *nvml.cells(library, handle)])


def _line(cells: Sequence[str]) -> str:
    return ", ".join(cells) + "\n"


def _moments(interval_ns: int, dur_ns: int | None, stop: threading.Event) -> Iterator[None]:
    """Yield at multiples of the interval since the first, until the time is over or `stop` is set."""
    start, due = time.monotonic_ns(), 0
    while not stop.is_set() and (dur_ns is None or due < dur_ns):
        yield
        due = ((time.monotonic_ns() - start) // interval_ns + 1) * interval_ns
        if dur_ns is None or due < dur_ns:
            _wait(start + due, stop)


def _wait(until_ns: int, stop: threading.Event) -> None:
    """Sleep until a time of the monotonic clock, or until `stop` is set.

    In slices: waiting for the event itself could hold its lock when the signal's handler wants to set it.
    """
    while not stop.is_set() and (left := (until_ns - time.monotonic_ns()) / SECOND) > 0:
        time.sleep(min(left, SLICE))


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """Yield an event that the first SIGINT or SIGTERM sets; Python allows that in the main thread only."""
    stop = threading.Event()
    earlier: dict[int, Any] = {}

    def restore() -> None:
        while earlier:
            signal.signal(*earlier.popitem())

    def handle(number: int, frame: FrameType | None) -> None:
        restore()
        stop.set()

    if threading.current_thread() is threading.main_thread():
        earlier |= {number: signal.signal(number, handle) or signal.SIG_DFL for number in ENDING}
    try:
        yield stop
    finally:
        restore()

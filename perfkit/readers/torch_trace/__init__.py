"""PyTorch profiler (Kineto): the JSON that ``export_chrome_trace`` or ``tensorboard_trace_handler`` wrote.

Record with ``torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])`` and
``prof.export_chrome_trace("trace.json.gz")``. Tried with traces of 2021 (PyTorch 1.8) to 2026, of NVIDIA and
AMD GPUs, plain and gzip, also as rewritten by other programs (minified, keys in another order).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pandas as pd

from perfkit import tables
from perfkit.profile import Profile
from perfkit.readers.torch_trace import collectives, cpu, gpu, header, memory, said
from perfkit.readers.torch_trace.reading import Reading, python_spans
from perfkit.readers.torch_trace.sniffing import outermost_keys, sniff

__all__ = ["KIND", "VERSION", "outermost_keys", "read", "sniff"]

VERSION = 2
KIND = "framework"


def read(path: Path) -> Profile:
    """Read a trace in one pass; its Python functions are read in another, when first asked for.

    Returns
    -------
    Profile
        CAPTURE, DEVICES, KERNELS, COPIES, API_CALLS, OPS, RANGES, PYTHON_CALLS, SAMPLES and COLLECTIVES, as far as
        recorded; what is not recorded is in ``missing`` with the option of the profiler that records it.

    Raises
    ------
    ReadError
        If the file is damaged or holds no events. One that just ends early, as a killed job leaves it, is
        read up to its last whole event, which ``notes`` says.
    """
    reading = Reading(path)
    zero = reading.first
    capture = header.capture(reading.header, path, zero, reading.last)
    frames = {name: frame for name, frame in _frames(reading).items() if len(frame)}
    loaders = {name: partial(frames.__getitem__, name) for name in frames}
    if reading.python_calls:
        loaders["PYTHON_CALLS"] = partial(_python_calls, path, zero, reading.limits)
    return Profile(
        reader="torch_trace",
        path=path,
        capture=capture,
        loaders=loaders,
        missing=said.missing(set(loaders)),
        notes=said.notes(reading, frames),
        rank=reading.header.rank,
    )


def _frames(reading: Reading) -> dict[str, pd.DataFrame]:
    """Return every table but CAPTURE and PYTHON_CALLS, some without rows."""
    spans = {table: found for table, found in reading.spans.items() if len(found)}
    columns = {table: reading.columns(table) for table in spans}
    frames = {"DEVICES": header.devices(reading.header)}
    for table, make in (("API_CALLS", cpu.api_calls), ("OPS", cpu.ops), ("RANGES", cpu.ranges)):
        if table in spans:
            frames[table] = make(spans[table], columns.pop(table))
    process = _only_process(frames)
    if "KERNELS" in spans:
        calls = frames.get("API_CALLS", tables.API_CALLS.empty())
        frames["KERNELS"] = gpu.kernels(spans["KERNELS"], columns.pop("KERNELS"), process, calls)
    if "COPIES" in spans:
        frames["COPIES"] = gpu.copies(spans["COPIES"], columns.pop("COPIES"), process)
    if "SAMPLES" in spans:
        frames["SAMPLES"] = memory.samples(columns.pop("SAMPLES"))
    if "COLLECTIVES" in spans:
        frames["COLLECTIVES"] = collectives.collectives(spans["COLLECTIVES"], columns.pop("COLLECTIVES"))
    return frames


def _only_process(frames: dict[str, pd.DataFrame]) -> int:
    """Return the process that launched the GPU's work, which GPU events do not name; -1 if there are several."""
    found = next((frames[table] for table in ("API_CALLS", "OPS", "RANGES") if table in frames), None)
    processes = [] if found is None else found["process"].unique().tolist()
    return int(processes[0]) if len(processes) == 1 else -1


def _python_calls(path: Path, zero: int, limits: tuple[int, int] | None) -> pd.DataFrame:
    spans = python_spans(path, limits)
    columns = spans.joined()
    return cpu.python_calls(spans, {**columns, "start_ns": columns["start_ns"] - zero})

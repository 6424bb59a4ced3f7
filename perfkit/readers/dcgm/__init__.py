"""NVIDIA DCGM: ``dcgmi dmon`` logs, scrapes of dcgm-exporter or nvidia_gpu_exporter, and a Prometheus server's answers.

Record with ``dcgmi dmon -e 203,155,150,252,1002,1003,1004,1005 -d 1000 > dmon.txt`` (field 1002 is SM activity, 1003
SM occupancy, 1004 tensor cores, 1005 device memory), ``curl HOST:9400/metrics > scrape.prom`` or ``perfkit record
prometheus URL --out gpus.json``. Tried with logs of DCGM 3 and dcgm-exporter 2 to 4, and with Prometheus 2.42.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pandas as pd

from perfkit import tables
from perfkit.errors import ReadError
from perfkit.profile import Missing, Profile, node_of
from perfkit.readers.dcgm import answer, dmon, exposition
from perfkit.readers.dcgm.series import Reading, devices, ranks, samples, whole_gpus
from perfkit.readers.text import content, head

__all__ = ["VERSION", "read", "sniff"]

VERSION = 3
LARGEST = 4 * 10**9
RANKED = ("SAMPLES", "DEVICES")  # tables in which hosts of one file are ranks of their own

HEAD = 1 << 16
FORMS = (
    (dmon.is_dmon, dmon.reading),
    (exposition.is_exposition, exposition.reading),
    (answer.is_answer, answer.reading),
)
DMON = "dcgmi dmon -e 112,155,164,203,250,252,1002,1003,1004,1005"
# Metrics, any of which answers, with what is missing otherwise.
ASKED = (
    (("gpu_busy_frac", "graphics_active_frac"), "no utilisation"),
    (("sm_active_frac",), "no activity of the SMs"),
    (("tensor_active_frac",), "no activity of the tensor cores"),
    (("dram_active_frac",), "no activity of the device memory"),
    (("memory_used_bytes",), "no memory in use"),
    (("power_w",), "no power"),
    (("power_limit_w",), "no power limit"),
    (("throttled_power_frac", "power_violation_ns"), "nothing that says whether the clock was lowered"),
)


def sniff(path: Path) -> bool:
    """Say whether `path` is one of the logs, by the first 64 KB."""
    start = head(path, HEAD)
    return any(claims(start) for claims, _ in FORMS)


def read(path: Path) -> Profile:
    """Read a log.

    Returns
    -------
    Profile
        CAPTURE and SAMPLES, and DEVICES where the log names the GPUs. Several hosts in one log are ranks in the order
        of their names. Without time stamps ``t0_unix_ns`` is NA and time 0 is the first tick or the only scrape.

    Raises
    ------
    ReadError
        If the file is damaged or holds no value.
    """
    beginning = content(path)[:HEAD]
    reading = next((form for claims, form in FORMS if claims(beginning)), exposition.reading)(path)
    notes = list(reading.notes)
    series = whole_gpus(reading.series, notes)
    rank = ranks({s.host for s in series}, notes)
    frame = samples(series, rank, notes)
    if frame.empty:
        raise ReadError(
            f"{path}: none of its values is there (N/A, blank or impossible). "
            "DCGM needs root and no other profiler for fields from 1001 on: `dcgmi profile --resume`, and record again."
        )
    start = int(frame["time_ns"].min()) if reading.timed else 0
    frame = frame.assign(time_ns=frame["time_ns"] - start)
    named = devices(reading.devices, frame, rank)
    found = {"SAMPLES": frame, **({"DEVICES": named} if len(named) else {})}
    return Profile(
        reader="dcgm",
        path=path,
        capture=_capture(path, reading, start, int(frame["time_ns"].max())),
        loaders={name: partial(found.__getitem__, name) for name in found},
        missing=_missing(set(frame["metric"].cat.categories), named),
        notes=tuple(notes),
        node=node_of(next(iter(rank))) if len(rank) == 1 else "",
    )


def _missing(found: set[str], named: pd.DataFrame) -> tuple[Missing, ...]:
    lacking = [Missing(f"SAMPLES.{asked[0]}", what, DMON) for asked, what in ASKED if not found & set(asked)]
    if named.empty:
        lacking.append(Missing("DEVICES", "no names of the GPUs", "nvidia-smi -q -x -f gpus.xml"))
    return tuple(lacking)


def _capture(path: Path, reading: Reading, start: int, lasted: int) -> pd.DataFrame:
    row = {
        "rank": 0,
        "tool": reading.tool,
        "tool_version": reading.version,
        "path": str(path),
        "t0_unix_ns": start if reading.timed else pd.NA,
        "dur_ns": lasted,
    }
    return tables.CAPTURE.make(pd.DataFrame([row]))

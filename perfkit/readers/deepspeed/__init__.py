"""Training throughput: the report of DeepSpeed's Flops Profiler, and the iteration lines of Megatron's log.

Set ``"flops_profiler": {"enabled": true, "profile_step": 10}, "wall_clock_breakdown": true`` in DeepSpeed's
configuration and keep what the program prints (or set ``"output_file"``); Megatron prints an iteration line every
``--log-interval`` steps, with the rate for ``--log-throughput``. Tried with reports of DeepSpeed 0.3 to 0.16 and lines
of Megatron-DeepSpeed and Megatron-LM. All figures but samples and tokens per second are per GPU.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pandas as pd

from perfkit import tables
from perfkit.errors import ReadError
from perfkit.profile import Missing, Profile
from perfkit.readers.deepspeed import flops_profiler, iterations

__all__ = ["VERSION", "read", "sniff"]

VERSION = 2
LARGEST = 4 * 10**9
NO_TEXT = re.compile(r"[\x01-\x06\x0e-\x1a\x1c-\x1f\ufffd]")  # a bar of progress has \b, colours have \x1b
LOOKED_AT = 200_000  # bytes at the start and at the end: programs print much before their first iteration
NO_BACKWARD = Missing(
    "SAMPLES.backward_ns", "no times of backward pass, step and iteration", '"wall_clock_breakdown": true for DeepSpeed'
)


def sniff(path: Path) -> bool:
    """Say whether `path` holds a report or iteration lines, near its start or its end."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            ends = [file.read(LOOKED_AT)]
            file.seek(max(LOOKED_AT, path.stat().st_size - LOOKED_AT))
            ends.append(file.read(LOOKED_AT))
    except OSError:
        return False
    texts = [end.decode("utf-8", errors="replace") for end in ends]
    return any(flops_profiler.TITLE.search(text) or iterations.is_line(text) for text in texts)


def read(path: Path) -> Profile:
    """Open a report or a log.

    Returns
    -------
    Profile
        SAMPLES with gpu -1: per iteration line `iteration_ns`, `samples_per_s`, `tokens_per_s` where the sequence
        length is known, and `training_flops_per_s`, at the line's time stamp or, where lines have none, at the time
        their iterations took since the first line; at time 0 what the last report says beside these.

    Raises
    ------
    ReadError
        If there is no figure in it, or binary data.
    """
    lines, notes = _lines(path)
    told = iterations.training(lines)
    rows = iterations.rows(told)
    lines_say = {metric for _, metric, _ in rows}
    rows += [row for row in _report(lines, notes) if row[1] not in lines_say]
    if not rows:
        raise ReadError(
            f"{path}: a title of DeepSpeed's Flops Profiler and no figure after it. "
            "Let the program run past the step that is profiled."
        )
    samples = _samples(rows)
    reported = bool(flops_profiler.titles(lines))
    notes += iterations.notes(told)
    missing = (NO_BACKWARD,) if reported and not samples["metric"].eq("backward_ns").any() else ()
    capture = _capture(path, "DeepSpeed" if reported else "Megatron", samples, told.start_ns)
    return Profile("deepspeed", path, capture, {"SAMPLES": partial(_same, samples)}, missing, tuple(notes))


def _same(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


def _lines(path: Path) -> tuple[list[str], list[str]]:
    """Return the whole lines of a file, and the note that the last one is not."""
    try:
        text = path.read_bytes().decode("utf-8-sig", errors="replace")
    except OSError as e:
        raise ReadError(f"{path}: the file cannot be opened ({e.strerror}). Check its permissions.") from e
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ReadError(f"{path}: binary data (zero bytes) in line {line}. Copy the log again or cut that part out.")
    *lines, last = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    notes = ["the file ends in the middle of a line, which is left out"] if last else []
    foreign = [n for n, line in enumerate(lines, 1) if NO_TEXT.search(line)] if NO_TEXT.search(text) else []
    if foreign:
        notes.append(f"lines hold bytes that are no text ({len(foreign)}, first in line {foreign[0]})")
    return lines, notes


def _report(lines: list[str], notes: list[str]) -> list[iterations.Row]:
    """Return the figures of the last report, at time 0."""
    titles = flops_profiler.titles(lines)
    if not titles:
        return []
    report = flops_profiler.report(lines[titles[-1] :])
    if len(titles) > 1:
        notes.append(f"{len(titles)} reports of the Flops Profiler: the last one is read")
    if report.impossible:
        notes.append(f"left out as impossible (0 or negative): {', '.join(report.impossible)}")
    if report.unreadable:
        notes.append(f"left out, their value is no number with a unit: {', '.join(report.unreadable)}")
    if not report.whole:
        notes.append("the report ends within its summary")
    return [(0, metric, value) for metric, value in report.figures.items()]


def _samples(rows: list[iterations.Row]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["time_ns", "metric", "value"])
    return tables.SAMPLES.make(frame.assign(rank=0, gpu=-1))


def _capture(path: Path, tool: str, samples: pd.DataFrame, t0_unix_ns: int | None) -> pd.DataFrame:
    frame = {"rank": 0, "tool": tool, "tool_version": "", "path": str(path), "dur_ns": samples["time_ns"].max()}
    return tables.CAPTURE.make(pd.DataFrame({**frame, "t0_unix_ns": pd.array([t0_unix_ns], dtype="Int64")}))

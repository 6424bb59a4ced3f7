"""What readers of logs share: lines and their numbers, limits of times, reasons for a low clock, and SAMPLES."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import AnyStr

import numpy as np
import pandas as pd

from perfkit import tables
from perfkit.analysis.intervals import Float, Int
from perfkit.errors import ReadError
from perfkit.profile import Missing

# A bar of progress has \b, colours have \x1b
NO_TEXT = re.compile(r"[\x01-\x06\x0e-\x1a\x1c-\x1f\ufffd]")
CUT = "the last line has no line break: it may be cut, and is left out"
CUT_CELL = "the last line has no line break: its last value may be cut, and is left out"
EXACT = 2.0**53  # up to here every whole number is a float64
TEN_YEARS_NS = 10 * 366 * 86_400 * 10**9
LATEST_NS = 2**62  # in the year 2116: differences of such times fit int64
# Masks of the reasons that lower a clock, as `perfkit.logs.nvidia_smi.fields` explains them.
IDLE, POWER, THERMAL, HARDWARE, HARDWARE_CAUSES = 0x1, 0x84, 0x60, 0x8, 0xC0
OTHER = ~(IDLE | POWER | THERMAL)
THROTTLING = {
    "throttled_power_frac": POWER,
    "throttled_thermal_frac": THERMAL,
    "throttled_other_frac": OTHER,
}
EVERY = -1  # every bit, as a mask


def lines(
    text: str, path: Path, is_whole: Callable[[str], bool] = lambda line: False
) -> tuple[list[str], list[str]]:
    """Return the whole lines of what a program printed, and notes on bytes that are no text and on a cut last line.

    `is_whole` tells of a last line without a line break that it is whole nevertheless.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    zero = text.find("\0")
    if zero >= 0:
        where = f"line {line_of(text, zero)}"
        raise ReadError(
            f"{path}: binary data (zero bytes) in {where}. Copy the log again or cut that part out."
        )
    *whole, last = text.split("\n")
    if last and is_whole(last):
        whole.append(last)
        last = ""
    foreign = (
        [n for n, line in enumerate(whole, 1) if NO_TEXT.search(line)]
        if NO_TEXT.search(text)
        else []
    )
    notes = (
        [f"lines hold bytes that are no text ({len(foreign)}, first in line {foreign[0]})"]
        if foreign
        else []
    )
    return whole, notes + [CUT] * bool(last)


@dataclass(frozen=True)
class Asked:
    """A question that any of some metrics answers, and what records them."""

    metrics: tuple[str, ...]
    question: str
    record: str


def unanswered(asked: Iterable[Asked], metrics: Collection[str]) -> list[Missing]:
    """Return what is missing where a log has none of the metrics that answer a question."""
    open_ones = [one for one in asked if not any(metric in metrics for metric in one.metrics)]
    return [Missing(f"SAMPLES.{one.metrics[0]}", one.question, one.record) for one in open_ones]


def writable(value: object) -> str:
    """Return a value as text that can be written: JSON may hold halves of characters."""
    return str(value).encode(errors="replace").decode()


def line_of(text: AnyStr, at: int) -> int:
    """Return the number of the line, from 1, in which position `at` of a text lies."""
    return text.count(b"\n" if isinstance(text, bytes) else "\n", 0, at) + 1


def samples_table(
    points: Mapping[tuple[int, int, str], tuple[Int, Float]],
) -> pd.DataFrame:
    """Return SAMPLES of times and values by rank, GPU and metric, in its order: a sort of all rows would cost more."""
    names = sorted({metric for _, _, metric in points})
    codes = [names.index(metric) for _, _, metric in points]
    lengths = [len(times) for times, _ in points.values()]
    none = (np.zeros(0, np.int64), np.zeros(0))
    times, values = (np.concatenate(part) for part in zip(none, *points.values(), strict=True))
    frame = {
        "rank": np.repeat(np.array([rank for rank, _, _ in points], np.int32), lengths),
        "gpu": np.repeat(np.array([gpu for _, gpu, _ in points], np.int32), lengths),
        "time_ns": times,
        "metric": pd.Categorical.from_codes(
            np.repeat(codes, lengths).astype(np.int16), pd.Index(names, dtype=object)
        ),
        "value": values,
    }
    return tables.SAMPLES.make(pd.DataFrame(frame, copy=False))


def lowered(active: Int, recorded: Int) -> dict[str, Float]:
    """Return the metrics of THROTTLING and ``idle_frac`` of masks of reasons: those active, and those recorded."""
    explained = active & HARDWARE_CAUSES != 0
    unexplained = (
        (active & HARDWARE != 0) & ~explained & (recorded & HARDWARE_CAUSES != HARDWARE_CAUSES)
    )
    active = np.where(explained, active & ~HARDWARE, active)
    made = {"idle_frac": np.where(recorded & IDLE != 0, (active & IDLE != 0).astype(float), np.nan)}
    for metric, bits in THROTTLING.items():
        denied = (active & bits == 0) & (unexplained if bits != OTHER else False)
        value = np.where(denied, np.nan, (active & bits != 0).astype(float))
        made[metric] = np.where(recorded & bits != 0, value, np.nan)
    return made

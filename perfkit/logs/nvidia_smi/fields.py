"""What a column of nvidia-smi is: which metric, in which unit, why the clock was lowered, and of which GPU a row is.

Columns go by the names of ``--query-gpu``; those of ``-q`` are brought to them, with a few that
only ``-q`` has. Of several columns for one metric the first in `FIELDS` that has a value is read:
``power.draw`` is a mean over 1 s since Ampere. dmon's MB of memory are MiB; its MB/s and the KB/s
of ``-q`` are taken as printed, decimal.

The bits of event reasons are those of ``nvmlClocksEventReasons`` (NVML API reference). Power is the
software power cap and the hardware power brake, heat the software and the hardware thermal
slowdown. ``hw_slowdown`` is set with either hardware cause, so it counts as another reason only
where neither is set; with the cause unrecorded, power and heat are not denied. A metric is told
where one of its reasons was recorded.

Without ``index`` GPUs are numbered in the order in which they appear, told apart by uuid, bus and
name. With nothing but a name, equal rows may be of several GPUs, which nvidia-smi prints in bursts,
milliseconds apart: the n rows of a burst are n GPUs if there are two bursts, every one has n, and
lies further from the next than twice its length. Rows that are closer than nvidia-smi can sample
one GPU and do not come in such bursts cannot be told apart: an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from perfkit import profilers
from perfkit.analysis.intervals import Float, Int
from perfkit.errors import ReadError
from perfkit.logs.text import EVERY, HARDWARE, HARDWARE_CAUSES, OTHER, THROTTLING, lowered
from perfkit.profile import QUERY
from perfkit.readers.text import csv_rows

DMON_COMMAND = f"{' '.join(profilers.DMON)} -f LOG"

# By the name of --query-gpu: the metric; the path below a GPU in the text and in the XML of -q,
# empty where there is none; dmon's column and its unit, for a log that lost the row of units. Of
# several rows of -q for a column the first that has a value counts. XML's "max" is the threshold
# that the text calls shutdown. dmon's aggregated errors are those that NVML counts over the life of
# the GPU, as nvidia-smi's manual says.
ROWS = csv_rows(__file__, "fields.csv")
METRICS = {row["column"]: row["metric"] for row in ROWS if row["metric"]}
FIELDS = {
    metric: tuple(name for name, of in METRICS.items() if of == metric)
    for metric in METRICS.values()
}
DMON = {row["dmon"]: (row["column"], row["dmon_unit"]) for row in ROWS if row["dmon"]}
PERCENT = 0.01
# By the suffix of the metric: how much one of a printed unit is; the first where none is printed.
UNITS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "_bytes_per_s": {"MB/s": 1e6, "KB/s": 1e3},
        "_bytes": {"MiB": 2**20, "MB": 2**20, "KiB": 2**10, "GiB": 2**30},
        "_frac": {"%": PERCENT, "GPM:%": PERCENT, "bool": 1},
        "_hz": {"MHz": 1e6},
        "_w": {"W": 1},
        "_c": {"C": 1},
        "_ns": {"us": 1000},
        "_count": {"": 1, "errs": 1, "errors": 1},
    }
)
NUMBER = re.compile(r"(-?\d{1,15}(?:\.\d{1,15})?)\s*(\S*)", re.ASCII)
MISSING = (
    *(
        "N/A",
        "-",
        "Not Supported",
        "Unknown Error",
        "Not Found",
        "Function Not Found",
        "Insufficient Permissions",
    ),
    "Requested functionality has been deprecated",
)

BITS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clock_setting": 0x100,
    "display_clocks_setting": 0x100,
}
PREFIXES = ("clocks_event_reasons.", "clocks_throttle_reasons.")
STATES = {"Active": 1, "Not Active": 0}

IDENTITY = ("uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id")
NAMED = ("name", "gpu_name")
MOST_GPUS = 16  # GPUs of a node
NEAR = 100_000_000  # ns from row to row of a burst
TOO_CLOSE = 10_000_000  # ns; querying one GPU takes nvidia-smi about that long
ADD = "add `index` to --query-gpu"


@dataclass(frozen=True)
class Column:
    """A column: its distinct texts, which of them stands in each row, and the unit that the header names."""

    codes: NDArray[np.int32]
    texts: Sequence[str]
    unit: str = ""

    @classmethod
    def of(cls, cells: Sequence[str]) -> Column:
        """Make a column of the text of each row."""
        texts = list(dict.fromkeys(cells))
        numbered = {text: i for i, text in enumerate(texts)}
        return cls(np.array([numbered[cell] for cell in cells], np.int32), texts)


class Unreadable(ValueError):
    """A cell that its column does not allow."""

    def __init__(self, name: str, column: Column, code: int) -> None:
        self.row = int(np.flatnonzero(column.codes == code)[0])
        self.text = column.texts[code]
        self.name = name
        super().__init__(name, self.text)


@dataclass(frozen=True)
class Log:
    """Rows of one GPU and moment; ``names`` has the file's own names, ``where`` their places, ``unread`` the rest."""

    path: Path
    tool: str
    columns: Mapping[str, Column]
    gpu: NDArray[np.int32]
    time_ns: Int
    t0_unix_ns: int | None
    where: Callable[[int], str]
    names: Mapping[str, str]
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


def unreadable(path: Path, where: Callable[[int], str], name: str, e: Unreadable) -> ReadError:
    """Return the error at a cell that is no value of the column `name`."""
    remedy = "Take the line out of the log, or record the log again."
    if name == "timestamp" and "T" in e.text:
        remedy = (
            "nvidia-smi writes times such as 2026/01/31 12:00:00.000; another program wrote this. "
            f"Record: {QUERY}"
        )
    return ReadError(f"{path}: {where(e.row)}: {name} is {e.text[:40]!r}. {remedy}")


def scale(unit: str, metric: str) -> float | None:
    """Return how much one of a printed unit is in the unit of `metric`, None if it is none of that quantity.

    >>> scale("MiB", "memory_used_bytes"), scale("", "sm_clock_hz"), scale("MiB", "power_w")
    (1048576, 1000000.0, None)
    """
    units = next(units for suffix, units in UNITS.items() if metric.endswith(suffix))
    return units.get(unit or next(iter(units)))


def amounts(texts: Sequence[str], unit: str, metric: str) -> Float:
    """Return the value of each cell in the unit of `metric`, NaN where it says that there is none.

    ValueError with the position of the first cell that is neither.

    >>> amounts(["17304 MiB", "[Not Supported]"], "MiB", "memory_used_bytes")
    array([1.81445591e+10,            nan])
    """
    values, by = np.full(len(texts), np.nan), np.ones(len(texts))
    scales: dict[str, float | None] = {}
    for i, text in enumerate(texts):
        match = NUMBER.fullmatch(text)
        printed = match[2] or unit if match else ""
        if printed not in scales:
            scales[printed] = scale(printed, metric)
        factor = scales[printed]
        if match and factor:
            values[i], by[i] = float(match[1]), factor
        elif not is_missing(text):
            raise ValueError(i)
    return np.where(by == PERCENT, values / 100, values * by)  # dividing is exact to the last digit


def is_missing(text: str) -> bool:
    """Say whether a cell says that there is no value: newer versions put brackets around the reason."""
    return text in MISSING or (text.startswith("[") and text.endswith("]"))


def throttling(columns: Mapping[str, Column]) -> tuple[dict[str, Float], list[str]]:
    """Return the metrics of THROTTLING and ``idle_frac``, 1 or 0 per row, NaN where no reason tells, and notes.

    A note names each metric that only a part of its reasons tells; Unreadable at the first cell
    that is no reason.
    """
    named = {name.removeprefix(p): name for p in PREFIXES for name in columns if name.startswith(p)}
    if "active" in named:
        active, recorded = _mask(named["active"], columns[named["active"]])
        asked = EVERY
    else:
        single = {reason: name for reason, name in named.items() if reason in BITS}
        if not single:
            return {}, []
        active, recorded = _from_singles(
            {BITS[reason]: (name, columns[name]) for reason, name in single.items()}
        )
        asked = sum({BITS[reason] for reason in single})
    metrics = lowered(active, recorded)
    return {
        metric: values for metric, values in metrics.items() if not np.isnan(values).all()
    }, _partly(asked)


def _mask(name: str, column: Column) -> tuple[Int, Int]:
    """Read the column ``active``: a mask in hexadecimal."""
    masks = np.zeros(len(column.texts), np.int64)
    recorded = np.zeros(len(column.texts), np.int64)
    for i, text in enumerate(column.texts):
        if not is_missing(text):
            try:
                masks[i], recorded[i] = int(text, 16), EVERY
            except (ValueError, OverflowError):
                raise Unreadable(name, column, i) from None
            if masks[i] < 0:
                raise Unreadable(name, column, i)
    return masks[column.codes], recorded[column.codes]


def _from_singles(
    columns: Mapping[int, tuple[str, Column]],
) -> tuple[Int, Int]:
    """Join columns of one reason each."""
    rows = len(next(iter(columns.values()))[1].codes)
    active, recorded = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    for bit, (name, column) in columns.items():
        states = np.full(len(column.texts), -1)
        for i, text in enumerate(column.texts):
            if not is_missing(text):
                if text not in STATES:
                    raise Unreadable(name, column, i)
                states[i] = STATES[text]
        state = states[column.codes]
        active |= np.where(state == 1, bit, 0)
        recorded |= np.where(state >= 0, bit, 0)
    denied = (recorded & HARDWARE != 0) & (active & HARDWARE == 0)
    return active, recorded | np.where(denied, HARDWARE_CAUSES, 0)


def _partly(asked: int) -> list[str]:
    """Name the metrics that a part of their reasons decides."""
    asked |= HARDWARE_CAUSES if asked & HARDWARE else 0
    names = {bit: name for name, bit in reversed(BITS.items())}
    notes = []
    for metric, bits in THROTTLING.items():
        lacking = [name for bit, name in names.items() if bit & bits and not bit & asked]
        if lacking and bits & asked and bits != OTHER:
            notes.append(
                f"{metric} knows nothing of {', '.join(sorted(lacking))}: query "
                "clocks_event_reasons.active"
            )
    return notes


class Mixed(ValueError):
    """Rows of several GPUs that nothing tells apart."""


def numbered(
    columns: Mapping[str, Column], times: Int | None
) -> tuple[NDArray[np.int32], list[str]]:
    """Return the GPU of each row and notes; Unreadable if an index is none, Mixed if rows of GPUs look alike."""
    if "index" in columns:
        return indices("index", columns["index"]), []
    rows = len(next(iter(columns.values())).codes)
    key = np.zeros(rows, np.int64)
    for column in (columns[name] for name in (*IDENTITY, *NAMED) if name in columns):
        key = np.unique(key * len(column.texts) + column.codes, return_inverse=True)[1]
    identified = any(name in columns for name in IDENTITY)
    if times is not None and not identified:
        # The place of each row within the burst of rows with its key.
        place = np.zeros(len(key), np.int64)
        for value in np.unique(key):
            of_key = np.flatnonzero(key == value)
            place[of_key] = np.arange(len(of_key)) % _in_burst(times[of_key])
        key = key * MOST_GPUS + place
    # Number keys in the order in which they appear.
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    number = np.empty(len(first), np.int32)
    number[np.argsort(first)] = np.arange(len(first))
    gpu = number[inverse]
    if identified:
        return gpu, [f"no index: GPUs are numbered in the order in which they appear ({ADD})"]
    count = int(gpu.max()) + 1
    return gpu, [
        f"no index: the rows are taken to be of {count} GPU{'s' * (count > 1)}, in their order "
        f"({ADD})"
    ]


def indices(name: str, column: Column) -> NDArray[np.int32]:
    """Return a column of indices as numbers; Unreadable at the first that is none."""
    for code, text in enumerate(column.texts):
        if not (text.isascii() and text.isdecimal() and len(text) < 5):
            raise Unreadable(name, column, code)
    return np.array([int(text) for text in column.texts], np.int32)[column.codes]


def _in_burst(times: Int) -> int:
    """Return how many rows come together."""
    steps = np.diff(times)
    if not len(steps) or steps.min() < 0:
        return 1
    for count in range(2, min(MOST_GPUS, len(times) // 2) + 1):
        between = np.arange(1, len(times)) % count == 0
        within = int(steps[~between].max())
        if within < NEAR and steps[between].min() > 2 * within * (count - 1):
            return count
    if steps.min() < TOO_CLOSE:
        raise Mixed
    return 1

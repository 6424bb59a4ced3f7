"""What a recording of ``rocprofv3`` holds, whichever of its formats it is in, and the tables that are made of it.

A format gives the columns that are named here, as lists: `database` reads them with SQL, `results`
from JSON and `pages` from CSV. None is what was not recorded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from perfkit import tables
from perfkit.errors import ReadError
from perfkit.names.families import family, short
from perfkit.profile import Loader, Missing, Profile
from perfkit.readers.text import capture_table, category

Columns = Mapping[str, Sequence[Any]]

AGAIN = "Record again: rocprofv3 --sys-trace --output-format rocpd -- PROGRAM."
SIZES = tuple(f"{what}_size_{axis}" for what in ("workgroup", "grid") for axis in "xyz")
# The columns of what ran: times, the link between a call and what it started, and what each kind
# has.
TIMES = ("start", "end", "link")
DISPATCH = ("gpu", "name", "registers", "group_segment_size", *SIZES)
KERNELS = (*TIMES, "process", "stream", *DISPATCH)
COPIES = (*TIMES, "process", "stream", "size", "direction", "source", "target")  # GPUs, -1 the CPU
REGIONS = (*TIMES, "process", "thread", "name", "category")
COUNTED = ("start", "end", "dispatch", "counter", "value", *DISPATCH)
# The table of each kind, what it answers, and what records it.
ASKED = {
    "kernels": ("KERNELS", "when did kernels run?", "rocprofv3 --kernel-trace"),
    "copies": ("COPIES", "what was copied?", "rocprofv3 --memory-copy-trace"),
    "regions": (
        "API_CALLS",
        "which HIP calls did the CPU make?",
        "rocprofv3 --hip-trace --marker-trace",
    ),
}
# What a copy's name says, without "MEMORY_COPY_".
DIRECTIONS = {
    "HOST_TO_DEVICE": "H2D",
    "DEVICE_TO_HOST": "D2H",
    "DEVICE_TO_DEVICE": "D2D",
    "HOST_TO_HOST": "H2H",
}
CALLS = ("HIP", "HSA")  # begin the categories of calls of the runtime; the others are ranges
# Counters of the bytes that a kernel read from the GPU's memory and wrote to it, in KiB.
MEMORY_KIB = ("FETCH_SIZE", "WRITE_SIZE")
LARGEST = 1 << 62
LONGEST_NUMBER = 400  # digits of a counter's value


class Agent(NamedTuple):
    """A device of the machine: its kind, its number among those of its kind, its name and its compute units."""

    kind: str
    number: int
    name: str
    units: int | None


@dataclass(frozen=True)
class Recording:
    """What a file holds: its extent on the machine's clock, its devices, and the columns of each kind of row.

    `rows` has a function for each of "kernels", "copies", "regions" and "counted" that has rows.
    `categories` are those of the regions.
    """

    begin: int
    end: int
    agents: Sequence[Agent]
    rows: Mapping[str, Callable[[], Columns]]
    categories: set[str] = field(default_factory=set)
    version: str = ""
    node: str = ""
    notes: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()

    def profile(self, path: Path) -> Profile:
        """Return the profile of a recording; its tables are made when asked for."""
        has_calls = {is_call(kind) for kind in self.categories}
        empty = {
            name
            for name, is_of in (("API_CALLS", True), ("RANGES", False))
            if is_of not in has_calls
        }
        loaders: dict[str, Loader] = {
            name: partial(_loaded, path, self, kind, make)
            for name, (kind, make) in MADE.items()
            if kind in self.rows and name not in empty
        }
        devices = _devices(self.agents)
        if len(devices):
            loaders["DEVICES"] = partial(pd.DataFrame.copy, devices)
        lacking = (Missing(*ASKED[kind]) for kind in ASKED if kind not in self.rows)
        length = self.end - self.begin
        if length >= LARGEST:
            raise ReadError(f"{path}: its times lie {length} ns apart, which cannot be. {AGAIN}")
        return Profile(
            reader="rocpd",
            path=path,
            capture=capture_table(path, "rocpd", self.version[:40], None, length),
            loaders=loaders,
            missing=(*lacking, *self.missing),
            notes=self.notes,
            node=self.node,
        )


def is_call(kind: str) -> bool:
    """Say whether regions of this category are calls of the runtime."""
    return kind.startswith(CALLS)


def gpus(numbers: Mapping[Any, Agent], agents: Sequence[Any]) -> list[int]:
    """Return the number among the GPUs of each agent, -1 for one that is no GPU."""
    known = {id: agent.number for id, agent in numbers.items() if agent.kind == "GPU"}
    return [known.get(id, -1) for id in agents]


def numbered(value: object) -> int:
    """Return the number of a device, -1 for what is none."""
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else -1


def units(value: object) -> int | None:
    """Return the number of compute units, None for what is none."""
    return value if isinstance(value, int) and 0 < value < 1 << 31 else None


def _loaded(
    path: Path, recording: Recording, kind: str, make: Callable[[Columns, int], pd.DataFrame]
) -> pd.DataFrame:
    try:
        return make(recording.rows[kind](), recording.begin)
    except (ValueError, TypeError, KeyError, OverflowError) as e:
        raise ReadError(
            f"{path}: the recording holds a wrong value ({str(e)[:200]}). {AGAIN}"
        ) from e


def _whole(values: Sequence[Any], absent: int = -1) -> np.ndarray:
    """Return whole numbers; ValueError for anything else."""
    taken = [absent if value is None else value for value in values]
    if any(type(value) is not int or abs(value) >= LARGEST for value in taken):
        raise ValueError("a number, a time or an id is no whole number")
    return np.array(taken, np.int64)


def _times(columns: Columns, begin: int) -> dict[str, Any]:
    start, end = _whole(columns["start"]), _whole(columns["end"])
    return {"rank": 0, "start_ns": start - begin, "dur_ns": end - start}


def _correlation(columns: Columns) -> np.ndarray:
    """Return what a call shares with what it started; 0 is none."""
    link = _whole(columns["link"])
    return np.where(link > 0, link, -1)


def _dispatched(columns: Columns) -> dict[str, Any]:
    """Return what KERNELS and LAUNCHES say of a dispatch; the size of a grid is in work-items."""
    found = columns["name"]
    names = sorted({name for name in found if name is not None})
    number = {name: code for code, name in enumerate(names)}
    codes = np.array([number.get(name, -1) for name in found], np.int64)
    group = [np.maximum(_whole(columns[f"workgroup_size_{axis}"], 1), 1) for axis in "xyz"]
    grid = [np.maximum(_whole(columns[f"grid_size_{axis}"], 1), 1) for axis in "xyz"]
    blocks = [-(-items // threads) for items, threads in zip(grid, group, strict=True)]
    return {
        "gpu": _whole(columns["gpu"]),
        "name": category(codes, [short(name) for name in names]),
        "full_name": category(codes, names),
        "family": category(codes, [family(name) for name in names]),
        "grid_blocks": blocks[0] * blocks[1] * blocks[2],
        "block_threads": group[0] * group[1] * group[2],
    }


def _kernels(columns: Columns, begin: int) -> pd.DataFrame:
    registers = _whole(columns["registers"])
    frame = {
        **_times(columns, begin),
        **_dispatched(columns),
        "process": _whole(columns["process"]),
        "stream": _whole(columns["stream"]),
        "correlation": _correlation(columns),
        "registers": pd.arrays.IntegerArray(registers, registers < 0),
        "shared_bytes": _whole(columns["group_segment_size"], 0),
        "in_graph": False,
    }
    return tables.KERNELS.make(pd.DataFrame(frame))


def _copies(columns: Columns, begin: int) -> pd.DataFrame:
    """Return COPIES, at the GPU that receives, or else at the one that sends."""
    source, target = _whole(columns["source"]), _whole(columns["target"])
    is_between = (source >= 0) & (target >= 0) & (source != target)
    named = [str(name).removeprefix("MEMORY_COPY_") for name in columns["direction"]]
    direction = [DIRECTIONS.get(name, "unknown") for name in named]
    frame = {
        **_times(columns, begin),
        "gpu": np.where(target >= 0, target, source),
        "process": _whole(columns["process"]),
        "stream": _whole(columns["stream"]),
        "direction": np.where(is_between, "P2P", np.array(direction, dtype=object)),
        "bytes": _whole(columns["size"], 0),
        "src_memory": _memory(source),
        "dst_memory": _memory(target),
        "peer_gpu": np.where(is_between, source, -1),
        "correlation": _correlation(columns),
    }
    return tables.COPIES.make(pd.DataFrame(frame))


def _memory(gpu: np.ndarray) -> list[str | None]:
    """Return where memory is: the recording does not say which kind of memory of the CPU it is."""
    return ["device" if number >= 0 else None for number in gpu]


def _regions(columns: Columns, begin: int, *, calls: bool) -> pd.DataFrame:
    """Return the calls or the ranges, with the category of each."""
    frame = pd.DataFrame(
        {
            **_times(columns, begin),
            "process": _whole(columns["process"]),
            "thread": _whole(columns["thread"]),
            "name": columns["name"],
            "correlation": _correlation(columns),
            "category": columns["category"],
        }
    )
    wanted = np.array([is_call(kind) == calls for kind in columns["category"]], bool)
    return frame[wanted].reset_index(drop=True)


def _calls(columns: Columns, begin: int) -> pd.DataFrame:
    frame = _regions(columns, begin, calls=True)
    return tables.API_CALLS.make(frame.drop(columns="category"))


def _ranges(columns: Columns, begin: int) -> pd.DataFrame:
    """Return RANGES: roctx, and calls of libraries such as RCCL, which are their domain."""
    frame = _regions(columns, begin, calls=False)
    domains = ["" if kind.startswith("MARKER") else kind for kind in frame["category"]]
    made = frame.drop(columns=["correlation", "category"])
    return tables.RANGES.make(made.assign(domain=domains, kind="push_pop", depth=_depths(frame)))


def _depths(frame: pd.DataFrame) -> np.ndarray:
    """Return how many ranges of its thread are around each range."""
    depth = np.zeros(len(frame), np.int32)
    order = frame.assign(end=-frame["dur_ns"]).sort_values(["process", "thread", "start_ns", "end"])
    open_ends: list[int] = []
    last = None
    columns = (order["process"], order["thread"], order["start_ns"], order["dur_ns"])
    for row, process, thread, start, length in zip(order.index, *columns, strict=True):
        if (process, thread) != last:
            open_ends = []
            last = process, thread
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        depth[row] = len(open_ends)
        open_ends.append(start + length)
    return depth


def _numbered(columns: Columns) -> np.ndarray:
    """Return the number of each row's dispatch; ValueError for a negative one."""
    numbers = _whole(columns["dispatch"])
    if (numbers < 0).any():
        raise ValueError("the number of a dispatch is negative, or missing")
    return numbers


def _values(columns: Columns) -> pd.DataFrame:
    """Return the value of each counter of each dispatch: the sum over the units that counted it."""
    values = [_measured(value) for value in columns["value"]]
    rows = pd.DataFrame(
        {"launch": _numbered(columns), "metric": columns["counter"], "value": values}
    )
    return rows.groupby(["launch", "metric"], as_index=False)[["value"]].sum()


def _measured(value: object) -> float:
    """Return the value of a counter; ValueError for what is no number."""
    if not isinstance(value, int | float | str) or len(str(value)) > LONGEST_NUMBER:
        raise ValueError(f"{str(value)[:40]!r} is no value of a counter")
    return float(value)


def _launches(columns: Columns, begin: int) -> pd.DataFrame:
    """Return LAUNCHES: the dispatches of which a counter was recorded."""
    rows = pd.DataFrame(_dispatched(columns)).drop(columns="family")
    length = _times(columns, begin)["dur_ns"].astype(np.float64)
    launch = _numbered(columns)
    rows = rows.assign(rank=0, launch=launch, dur_ns=np.where(length > 0, length, np.nan))
    rows = rows.drop_duplicates("launch")
    values = _values(columns)
    moved = (
        values[values["metric"].isin(MEMORY_KIB)].groupby("launch")["value"].agg(["size", "sum"])
    )
    both = moved.loc[moved["size"].eq(len(MEMORY_KIB)), "sum"]
    rows = rows.assign(dram_bytes=rows["launch"].map(both * 1024))
    absent = [name for name in tables.LAUNCHES.column_names if name not in rows]
    return tables.LAUNCHES.make(rows.assign(**dict.fromkeys(absent, np.nan)))


def _counters(columns: Columns, _: int) -> pd.DataFrame:
    return tables.COUNTERS.make(_values(columns).assign(rank=0, unit=""))


def _devices(agents: Sequence[Agent]) -> pd.DataFrame:
    of_number: dict[int, Agent] = {}
    for agent in agents:
        if agent.kind == "GPU" and agent.number >= 0:
            of_number.setdefault(agent.number, agent)
    ordered = [of_number[number] for number in sorted(of_number)]
    columns = {
        "rank": 0,
        "gpu": [agent.number for agent in ordered],
        "name": [agent.name for agent in ordered],
        "sm_count": pd.array([agent.units for agent in ordered], dtype="Int64"),
    }
    return tables.DEVICES.make(pd.DataFrame(columns))


# The tables that are made of each kind of row.
MADE = {
    "KERNELS": ("kernels", _kernels),
    "COPIES": ("copies", _copies),
    "API_CALLS": ("regions", _calls),
    "RANGES": ("regions", _ranges),
    "LAUNCHES": ("counted", _launches),
    "COUNTERS": ("counted", _counters),
}


def together(parts: Sequence[Columns], names: Sequence[str]) -> Columns:
    """Return the columns of several processes, one after the other, of which each counts its dispatches from 0."""
    joined = {name: [value for part in parts for value in part[name]] for name in names}
    if "dispatch" in joined:
        before = np.cumsum([0, *(1 + max(part["dispatch"], default=-1) for part in parts)]).tolist()
        shifts = zip(parts, before, strict=False)
        joined["dispatch"] = [own + shift for part, shift in shifts for own in part["dispatch"]]
    return joined

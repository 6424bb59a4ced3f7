"""The CSV files of ``rocprofv3 --output-format csv``: one for each kind of row, of one process.

Their names differ in the end: ``4242_kernel_trace.csv``, ``4242_hip_api_trace.csv``. The header of
a file tells its kind. One of them stands for all.
"""

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd

from perfkit.errors import ReadError
from perfkit.profile import Missing
from perfkit.readers.rocpd.recording import (
    AGAIN,
    COPIES,
    COUNTED,
    KERNELS,
    REGIONS,
    SIZES,
    Agent,
    Columns,
    Recording,
    units,
)
from perfkit.readers.text import content, head

ENDS = (
    *("kernel_trace", "counter_collection", "memory_copy_trace", "agent_info"),
    *("hip_api_trace", "hip_trace", "hsa_api_trace", "hsa_trace", "marker_api_trace"),
    *("rccl_api_trace", "rccl_trace", "rocdecode_api_trace", "rocjpeg_api_trace"),
)
END = re.compile(rf"(?:{'|'.join(ENDS)})\.csv$")
LOOKED_AT = 4096  # bytes at the start of a file
LARGEST = 256 << 20  # bytes: a file is held whole, as texts
# The columns by which a header tells the kind of a file.
HEADERS = {
    "kernels": {"Kernel_Name", "Agent_Id", "Start_Timestamp", "Workgroup_Size_X"},
    "counted": {"Counter_Name", "Counter_Value", "Dispatch_Id", "Agent_Id", "Start_Timestamp"},
    "copies": {"Direction", "Source_Agent_Id", "Destination_Agent_Id", "Start_Timestamp"},
    "regions": {"Domain", "Function", "Start_Timestamp", "Correlation_Id"},
    "agents": {"Agent_Type", "Node_Id", "Logical_Node_Id"},
}
MOST_COLUMNS = 1000  # rocprofv3 writes about 30
NUMBER = re.compile(r"-?\d{1,19}", re.ASCII)
# Our columns of numbers and those of the files, of which older versions call some otherwise.
TIMES = {"start": ("Start_Timestamp",), "end": ("End_Timestamp",)}
DISPATCH = {
    "registers": ("VGPR_Count",),
    "accumulators": ("Accum_VGPR_Count",),
    "group_segment_size": ("LDS_Block_Size", "Group_Segment_Size"),
}
LINK = {"link": ("Correlation_Id",)}
MAPS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "kernels": {
        **TIMES,
        **DISPATCH,
        **LINK,
        "stream": ("Stream_Id", "Queue_Id"),
        **{name: (name.title(),) for name in SIZES},
    },
    "copies": {**TIMES, **LINK, "stream": ("Stream_Id",)},
    "regions": {**TIMES, **LINK, "process": ("Process_Id",), "thread": ("Thread_Id",)},
    "counted": {
        **TIMES,
        **DISPATCH,
        "dispatch": ("Dispatch_Id",),
        "workgroup_size_x": ("Workgroup_Size",),
        "grid_size_x": ("Grid_Size",),
    },
}
NO_SIZE = Missing("COPIES.bytes", "how many bytes were copied?", "rocprofv3 --output-format rocpd")
NO_AGENTS = "no agent_info.csv: GPUs are numbered in the order of their agents"
CUT = "the last line has no line break: it may be cut, and is left out"

Frames = Mapping[str, pd.DataFrame]  # the rows of one recording by their kind, as texts


def sniff(path: Path) -> bool:
    """Say whether `path` is a CSV file of rocprofv3 that belongs to something that ran."""
    return _kind(path) is not None and any(kind != "agents" for kind in _beside(path))


def first(path: Path) -> Path:
    """Return the file that stands for all of a recording."""
    files = _beside(path)
    return next(files[kind][0] for kind in HEADERS if kind in files)


def read(path: Path) -> Recording:
    """Return what the files of a recording hold."""
    notes: list[str] = []
    frames = {
        kind: pd.concat([_frame(path, file, notes) for file in files], ignore_index=True).fillna("")
        for kind, files in _beside(path).items()
    }
    ran = {kind: frame for kind, frame in frames.items() if kind in MAPS and len(frame)}
    try:
        agents, gpu_of = _agents(frames, notes)
        times = [
            number for kind in ran for name in TIMES for number in _numbers(ran[kind], kind, name)
        ]
        known = [number for number in times if number is not None]
        begin, end = min(known), max(known)
    except ValueError as e:
        raise ReadError(
            f"{path}: the files hold nothing that ran, or a wrong value ({e}). {AGAIN}"
        ) from e
    makers: Mapping[str, Callable[..., Columns]] = {
        "kernels": _kernels,
        "copies": _copies,
        "regions": _regions,
        "counted": _counted,
    }
    return Recording(
        begin,
        end,
        agents,
        {kind: partial(makers[kind], ran, gpu_of) for kind in ran},
        set(ran["regions"]["Domain"]) if "regions" in ran else set(),
        "CSV",
        notes=tuple(notes),
        missing=(NO_SIZE,) if "copies" in ran else (),
    )


def _kind(path: Path) -> str | None:
    """Return the kind of rows of a CSV file, by its header; None for any other file."""
    start = head(path, LOOKED_AT).decode(errors="replace")
    try:
        columns = set(next(csv.reader([start.partition("\n")[0].strip("\r")]), []))
    except csv.Error:
        return None
    return next((kind for kind, needed in HEADERS.items() if needed <= columns), None)


def _beside(path: Path) -> dict[str, list[Path]]:
    """Return the files of the recording of a file, by the kind of their rows."""
    prefix = END.sub("", path.name)
    files = [path]
    if prefix != path.name:
        files = [path.with_name(f"{prefix}{end}.csv") for end in ENDS]
    found: dict[str, list[Path]] = {}
    for file in files:
        kind = _kind(file)
        if kind:
            found.setdefault(kind, []).append(file)
    return found


def _frame(given: Path, path: Path, notes: list[str]) -> pd.DataFrame:
    """Return the rows of a file as texts, without a last line that may be cut."""
    if path.stat().st_size > LARGEST:
        raise ReadError(
            f"{given}: {path.name} has more than {LARGEST:,} bytes: too much to read as CSV. "
            f"{AGAIN}"
        )
    text = content(path)
    columns = text.partition(b"\n")[0].count(b",") + 1
    if columns > MOST_COLUMNS:
        raise ReadError(f"{given}: {path.name} has {columns:,} columns. {AGAIN}")
    whole = text[: text.rfind(b"\n") + 1]
    if len(whole) < len(text):
        notes.append(f"{path.name}: {CUT}")
    try:
        frame = pd.read_csv(BytesIO(whole), dtype=str, keep_default_na=False, index_col=False)
    except (ValueError, pd.errors.ParserError) as e:
        what = " ".join(str(e)[:200].split())
        raise ReadError(f"{given}: the CSV {path.name} is cut or damaged ({what}). {AGAIN}") from e
    return frame


def _numbers(frame: pd.DataFrame, kind: str, name: str) -> list[int | None]:
    """Return one of our columns of whole numbers, None where it is not recorded; ValueError for anything else."""
    column = next((column for column in MAPS[kind].get(name, ()) if column in frame), None)
    if column is None:
        return [None] * len(frame)
    return [_number(text) for text in frame[column]]


def _number(text: str) -> int | None:
    if not text:
        return None
    if not NUMBER.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is no whole number")
    return int(text)


def _agents(frames: Frames, notes: list[str]) -> tuple[list[Agent], dict[str, int]]:
    """Return the devices, and the number of the GPU of each name that rows may give to its agent."""
    frame = frames.get("agents")
    if frame is None or frame.empty:
        notes.append(NO_AGENTS)
        return _guessed(frames)
    agents, gpu_of = [], {}
    gpus = frame[frame["Agent_Type"].eq("GPU")]
    for number, (_, row) in enumerate(gpus.iterrows()):
        name = row.get("Product_Name", "") or row.get("Name", "")
        agents.append(Agent("GPU", number, name, units(_number(row.get("Cu_Count", "")))))
        names = f"Agent {row['Logical_Node_Id']}", f"GPU {number}", row["Node_Id"]
        gpu_of.update(dict.fromkeys(names, number))
    return agents, gpu_of


def _guessed(frames: Frames) -> tuple[list[Agent], dict[str, int]]:
    """Return the agents that ran kernels or are the device of a copy, as GPUs in the order of their numbers."""
    names: set[str] = set()
    for kind in ("kernels", "counted"):
        names |= set(frames[kind]["Agent_Id"]) if kind in frames else set()
    if "copies" in frames:
        copies = frames["copies"]
        names |= set(
            copies.loc[copies["Direction"].str.endswith("TO_DEVICE"), "Destination_Agent_Id"]
        )
        names |= set(copies.loc[copies["Direction"].str.contains("DEVICE_TO"), "Source_Agent_Id"])
    ordered = sorted(names, key=_order)
    agents = [Agent("GPU", number, "", None) for number in range(len(ordered))]
    return agents, {name: number for number, name in enumerate(ordered)}


def _order(name: str) -> tuple[int, str]:
    """Sort key under which "Agent 10" comes after "Agent 2"."""
    digits = re.search(r"\d{1,9}$", name, re.ASCII)
    return int(digits[0]) if digits else -1, name


def _gpus(gpu_of: Mapping[str, int], names: Iterable[str]) -> list[int]:
    return [gpu_of.get(name, -1) for name in names]


def _read(ran: Frames, kind: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the columns of whole numbers of a kind of row; what is only known of calls is taken from them."""
    frame = ran[kind]
    columns: dict[str, Any] = {name: _numbers(frame, kind, name) for name in names}
    if "registers" in columns:
        pairs = zip(columns["registers"], _numbers(frame, kind, "accumulators"), strict=True)
        columns["registers"] = [None if own is None else own + (more or 0) for own, more in pairs]
    calls = ran.get("regions")
    if "link" in columns and calls is None:
        columns["link"] = [None] * len(frame)
    if "process" in columns and calls is not None and kind != "regions":
        process = _number(calls["Process_Id"].mode()[0]) if "Process_Id" in calls else None
        columns["process"] = [process] * len(frame)
    return columns


def _kernels(ran: Frames, gpu_of: Mapping[str, int]) -> Columns:
    frame = ran["kernels"]
    return {
        **_read(ran, "kernels", KERNELS),
        "gpu": _gpus(gpu_of, frame["Agent_Id"]),
        "name": _names(frame),
    }


def _names(frame: pd.DataFrame) -> list[str | None]:
    return [name.removesuffix(".kd").strip() or None for name in frame["Kernel_Name"]]


def _copies(ran: Frames, gpu_of: Mapping[str, int]) -> Columns:
    frame = ran["copies"]
    return {
        **_read(ran, "copies", COPIES),
        "direction": list(frame["Direction"]),
        "source": _gpus(gpu_of, frame["Source_Agent_Id"]),
        "target": _gpus(gpu_of, frame["Destination_Agent_Id"]),
    }


def _regions(ran: Frames, _: Mapping[str, int]) -> Columns:
    frame = ran["regions"]
    own = _read(ran, "regions", REGIONS)
    return {**own, "name": list(frame["Function"]), "category": list(frame["Domain"])}


def _counted(ran: Frames, gpu_of: Mapping[str, int]) -> Columns:
    frame = ran["counted"]
    return {
        **_read(ran, "counted", COUNTED),
        "gpu": _gpus(gpu_of, frame["Agent_Id"]),
        "name": _names(frame),
        "counter": list(frame["Counter_Name"]),
        "value": list(frame["Counter_Value"]),
    }

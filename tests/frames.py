"""Small tables for tests, written as tuples of what matters; the rest is filled in."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from perfkit.profile import Profile
from perfkit.tables import (
    API_CALLS,
    CAPTURE,
    COLLECTIVES,
    COPIES,
    KERNELS,
    OS_CALLS,
    PYTHON_CALLS,
    RANGES,
)

_PLACE = {"rank": 0, "gpu": 0, "process": 1, "stream": 7}
_KERNEL = {
    **_PLACE,
    "name": "work",
    "full_name": None,
    "family": "other",
    "correlation": -1,
    "grid_blocks": 1,
}
_KERNEL |= {"block_threads": 128, "registers": 32, "shared_bytes": 0, "in_graph": False}
_COPY = {
    **_PLACE,
    "direction": "H2D",
    "bytes": 0,
    "src_memory": "pinned",
    "dst_memory": "device",
    "peer_gpu": -1,
}
_COPY |= {"correlation": -1}
_CALL = {"rank": 0, "process": 1, "thread": 1, "name": "cudaLaunchKernel", "correlation": -1}
_OS_CALL = {"rank": 0, "process": 1, "thread": 1, "name": "read"}
_RANGE = {
    "rank": 0,
    "process": 1,
    "thread": 1,
    "name": "range",
    "domain": "",
    "kind": "push_pop",
    "depth": 0,
}
_PYTHON_CALL = {"rank": 0, "process": 1, "thread": 1, "name": "train.py(1): main", "depth": 0}
_COLLECTIVE = {
    "rank": 0,
    "gpu": 0,
    "operation": "all_reduce",
    "bytes": 8,
    "dtype": "float",
    "ranks": 8,
}
_COLLECTIVE |= {"source": "trace"}


def _rows(defaults: dict[str, Any], spans: tuple[dict[str, Any], ...]) -> pd.DataFrame:
    columns = ["start_ns", "dur_ns", *defaults]
    return pd.DataFrame([{**defaults, **span} for span in spans], columns=columns)


def lasting(start: float, dur: float, name: str | None = None, **more: Any) -> dict[str, Any]:
    """A row of what starts at a time and lasts so long."""
    named = {} if name is None else {"name": name}
    return {"start_ns": start, "dur_ns": dur, **named, **more}


def kernels(*spans: dict[str, Any]) -> pd.DataFrame:
    """KERNELS with one row per dict (at least start_ns and dur_ns); full_name defaults to name."""
    frame = _rows(_KERNEL, spans)
    frame["full_name"] = frame["full_name"].fillna(frame["name"])
    return KERNELS.make(frame)


def copies(*spans: dict[str, Any]) -> pd.DataFrame:
    return COPIES.make(_rows(_COPY, spans))


def api_calls(*spans: dict[str, Any]) -> pd.DataFrame:
    return API_CALLS.make(_rows(_CALL, spans))


def os_calls(*spans: dict[str, Any]) -> pd.DataFrame:
    return OS_CALLS.make(_rows(_OS_CALL, spans))


def ranges(*spans: dict[str, Any]) -> pd.DataFrame:
    return RANGES.make(_rows(_RANGE, spans))


def python_calls(*spans: dict[str, Any]) -> pd.DataFrame:
    return PYTHON_CALLS.make(_rows(_PYTHON_CALL, spans))


def collectives(*rows: dict[str, Any]) -> pd.DataFrame:
    """COLLECTIVES of a trace, all-reduces of 8 ranks unless said otherwise."""
    return COLLECTIVES.make(
        pd.DataFrame([{**_COLLECTIVE, **row} for row in rows], columns=COLLECTIVES.column_names)
    )


def profile(
    reader: str = "nsys",
    name: str = "",
    t0: int | None = 0,
    dur_ns: int = 0,
    about: Any = (),
    **tables: pd.DataFrame,
) -> Profile:
    """A profile as a reader returns it, of tables that are there already; `about` are its other fields."""
    path = name or f"{reader}.file"
    row = {
        "rank": 0,
        "tool": reader,
        "tool_version": "",
        "path": path,
        "t0_unix_ns": t0,
        "dur_ns": dur_ns,
    }
    row |= {"traced": "", "sampled": "", "platform": ""}
    loaders = {table: (lambda frame=frame: frame) for table, frame in tables.items()}
    return Profile(reader, Path(path), CAPTURE.make(pd.DataFrame([row])), loaders, **dict(about))


def tuples(frame: pd.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """The rows of some columns as tuples."""
    return list(frame[[*columns]].itertuples(index=False, name=None))


def types(frame: pd.DataFrame) -> dict[str, str]:
    """The type of each column."""
    return frame.dtypes.astype(str).to_dict()


def known(frame: pd.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """The same, None where a value is missing."""
    cells = frame[[*columns]].astype(object)
    return tuples(cells.where(cells.notna(), None), *columns)


def unpacked(part: dict[str, Any]) -> pd.DataFrame:
    """The columns that travel as bytes."""
    values = np.frombuffer(part["data"], np.float64).reshape(len(part["columns"]), -1)
    return pd.DataFrame(dict(zip(part["columns"], values, strict=True)))

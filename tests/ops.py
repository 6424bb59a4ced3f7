"""Operators, Python functions and launches for tests, a line each; what follows from the times is filled in."""

from typing import Any

import numpy as np
import pandas as pd
from frames import api_calls, kernels
from frames import python_calls as python_calls  # which the rows of `op` fill, too

from perfkit.tables import OPS

_WHERE = {"rank": 0, "process": 1, "thread": 1}
_OP = {**_WHERE, "shapes": None, "dtypes": None, "strides": None, "concrete": None, "sequence": -1}


def op(name: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    """An operator or Python function that runs in [start, end)."""
    return {"name": name, "start_ns": start, "dur_ns": end - start, **more}


def ops(*spans: dict[str, Any]) -> pd.DataFrame:
    """OPS with one row per `op`; number, parent and self time follow from the times."""
    rows = sorted(
        ({**_OP, **span} for span in spans), key=lambda row: (row["start_ns"], -row["dur_ns"])
    )
    for number, row in enumerate(rows):
        around = [other for other in rows[:number] if _encloses(other, row)]
        row |= {
            "op": number,
            "parent": around[-1]["op"] if around else -1,
            "self_ns": row["dur_ns"],
        }
        if around:
            around[-1]["self_ns"] -= row["dur_ns"]
    return OPS.make(pd.DataFrame(rows, columns=OPS.column_names))


def _encloses(outer: dict[str, Any], inner: dict[str, Any]) -> bool:
    same = all(outer[key] == inner[key] for key in _WHERE)
    return bool(same and outer["start_ns"] + outer["dur_ns"] >= inner["start_ns"] + inner["dur_ns"])


def launched(*launches: dict[str, Any]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """KERNELS and API_CALLS of `launch`es, joined in their order."""
    of_kernel, of_call = [], []
    for number, launch in enumerate(launches):
        of_kernel.append({"correlation": number, **launch["kernel"]})
        of_call.append({"correlation": number, **launch["call"]})
    return kernels(*of_kernel), api_calls(*of_call)


def launch(at: int, start: int, dur: int, name: str = "work", **call: Any) -> dict[str, Any]:
    """A kernel of some duration that starts at `start`, launched by a call of 1 ns that begins at `at`."""
    rank = call.get("rank", 0)
    kernel = {"start_ns": start, "dur_ns": dur, "name": name, "rank": rank, "gpu": rank}
    return {"kernel": kernel, "call": {"start_ns": at, "dur_ns": 1, **call}}


def random_operators(seed: int) -> pd.DataFrame:
    """Operators that nest at random on two threads of two ranks."""
    random = np.random.default_rng(seed)
    spans: list[dict[str, Any]] = []

    def inside(first: int, last: int, depth: int, where: dict[str, int]) -> None:
        edges = np.unique(random.integers(first, last + 1, 8)).tolist()
        for start, end in zip(edges[::2], edges[1::2], strict=False):
            spans.append(op(f"op{random.integers(4)}", start, end, **where))
            if depth and end - start > 4:
                inside(start, end, depth - 1, where)

    for rank in (0, 1):
        for thread in (1, 2):
            inside(0, 1000, 3, {"rank": rank, "thread": thread})
    return ops(*spans)


def random_launches(seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Kernels launched at random on these threads."""
    random = np.random.default_rng(seed)
    rows = random.integers(0, (2, 2, 1100, 1500, 50), (300, 5)).tolist()
    found = (
        launch(at, start, dur, f"k{start % 5}", rank=r, thread=thread + 1)
        for r, thread, at, start, dur in rows
    )
    return launched(*found)

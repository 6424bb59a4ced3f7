"""OPS, API_CALLS, RANGES and PYTHON_CALLS of a trace."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from perfkit import tables
from perfkit.readers.columns import category
from perfkit.readers.torch_trace.events import Columns, Event, Int, Spans, decoded, integers
from perfkit.readers.torch_trace.nesting import nesting

STEP = re.compile(r"ProfilerStep\s*#\s*\d+")
# Traces of 2021 give PyTorch's own annotations the category of operators.
ANNOTATION = re.compile(r"ProfilerStep\s*#|enumerate\(DataLoader\)#|Optimizer\.(step|zero_grad)#")
SUFFIX = re.compile(r"(_pt[sd][sz])?(_v\d+)?(_pt[sd][sz])?$")  # cudaLaunchKernel_ptsz_v7000
ABSENT = msgspec.Raw(b"")
RECORDED = ("shapes", "dtypes", "strides", "concrete")


class OperatorArguments(msgspec.Struct, gc=False):
    """What is read of an operator's arguments; lists stay text."""

    shapes: msgspec.Raw = msgspec.field(default=ABSENT, name="Input Dims")
    old_shapes: msgspec.Raw = msgspec.field(default=ABSENT, name="Input dims")
    dtypes: msgspec.Raw = msgspec.field(default=ABSENT, name="Input type")
    strides: msgspec.Raw = msgspec.field(default=ABSENT, name="Input Strides")
    concrete: msgspec.Raw = msgspec.field(default=ABSENT, name="Concrete Inputs")
    sequence: int | None = msgspec.field(default=-1, name="Sequence number")


class CallArguments(msgspec.Struct, gc=False):
    """What is read of a call's arguments."""

    correlation: int | None = -1


def add_operators(ops: Spans, ranges: Spans, events: list[Event]) -> None:
    """Append operators, and to the ranges those that are annotations."""
    annotations = [event for event in events if ANNOTATION.match(event.name)]
    if annotations:
        ranges.add(annotations)
        events = [event for event in events if not ANNOTATION.match(event.name)]
    arguments = decoded(events, OperatorArguments)
    ops.add(
        events,
        shapes=ops.codes("shapes", [str(a.shapes or a.old_shapes, "utf-8") for a in arguments]),
        dtypes=ops.codes("dtypes", [str(a.dtypes, "utf-8") for a in arguments]),
        strides=ops.codes("strides", [str(a.strides, "utf-8") for a in arguments]),
        concrete=ops.codes("concrete", [str(a.concrete, "utf-8") for a in arguments]),
        sequence=integers(a.sequence for a in arguments),
    )


def add_calls(calls: Spans, events: list[Event]) -> None:
    """Append calls of the runtime or driver."""
    calls.add(events, correlation=integers(a.correlation for a in decoded(events, CallArguments)))


def ops(spans: Spans, columns: Columns) -> pd.DataFrame:
    """Return OPS: numbered by process, thread and start, each with the operator that encloses it."""
    nested = nesting(*_times(columns))
    taken = {name: values[nested.order] for name, values in columns.items()}
    child = nested.parent >= 0
    # Durations are exact as float64 up to 2**53 ns, 104 days.
    children = np.bincount(nested.parent[child], taken["dur_ns"][child], len(child)).astype(np.int64)
    numbers = _numbered(taken["start_ns"])
    return tables.OPS.make(
        _frame(
            taken,
            op=numbers,
            parent=np.where(child, numbers[nested.parent], -1),
            self_ns=taken["dur_ns"] - children,
            name=category(taken["name"], spans.values("name")),
            sequence=taken["sequence"],
            **{name: category(taken[name], [_compact(v) for v in spans.values(name)]) for name in RECORDED},
        )
    )


def _numbered(start: Int) -> Int:
    """Number rows by their start; what starts together keeps its order."""
    numbers = np.empty(len(start), np.int64)
    numbers[np.argsort(start, kind="stable")] = np.arange(len(start))
    return numbers


def _compact(text: str) -> str | None:
    """Return a list without the blanks its writer put in; one that is empty was not recorded."""
    compact = msgspec.json.format(text, indent=-1) if text else ""
    return None if compact in ("", "[]", "null") else compact


def api_calls(spans: Spans, columns: Columns) -> pd.DataFrame:
    """Return API_CALLS: calls of the CUDA or HIP runtime and driver."""
    names = [SUFFIX.sub("", name) for name in spans.values("name")]
    return tables.API_CALLS.make(
        _frame(columns, name=category(columns["name"], names), correlation=columns["correlation"])
    )


def ranges(spans: Spans, columns: Columns) -> pd.DataFrame:
    """Return RANGES: profiler steps, and annotations, which nest unless one crosses the end of another."""
    listed = spans.values("name")
    is_step = np.array([bool(STEP.fullmatch(name)) for name in listed], bool)[columns["name"]]
    times = _times(columns)
    others = np.flatnonzero(~is_step)
    first = nesting(*(values[others] for values in times))
    nested = np.sort(others[first.order[~first.crossing]])
    again = nesting(*(values[nested] for values in times))
    kind, depth = np.where(is_step, 0, 1), np.zeros(len(is_step), np.int64)
    kind[nested] = 2
    depth[nested[again.order]] = again.depth
    return tables.RANGES.make(
        _frame(
            columns,
            name=category(columns["name"], listed),
            domain=category(np.zeros(len(kind), np.int64), [""]),
            kind=category(kind, ["step", "start_end", "push_pop"]),
            depth=depth,
        )
    )


def python_calls(spans: Spans, columns: Columns) -> pd.DataFrame:
    """Return PYTHON_CALLS: functions on the stacks of the threads, with the number of those around each."""
    nested = nesting(*_times(columns))
    taken = {name: values[nested.order] for name, values in columns.items()}
    return tables.PYTHON_CALLS.make(
        _frame(taken, name=category(taken["name"], spans.values("name")), depth=nested.depth)
    )


def _times(columns: Columns) -> tuple[Int, Int, Int, Int]:
    return columns["process"], columns["thread"], columns["start_ns"], columns["dur_ns"]


def _frame(columns: Columns, **finished: Any) -> pd.DataFrame:
    """Return where and when calls ran, with the finished columns."""
    place = {name: columns[name] for name in ("process", "thread", "start_ns", "dur_ns")}
    return pd.DataFrame({"rank": np.zeros(len(place["start_ns"]), "int32"), **place, **finished}, copy=False)

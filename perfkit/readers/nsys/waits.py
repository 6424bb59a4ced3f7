"""Waits of the CPU for the GPU, and of streams for events."""

from typing import Any

import numpy as np
import pandas as pd

from perfkit import tables
from perfkit.readers.nsys import sources
from perfkit.readers.text import category

WAIT, CALL = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_RUNTIME"
COLUMNS = (
    *("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid"),
    *("eventId", "eventSyncId"),
)
NONE = 2**32 - 1  # no stream, no event
UNKNOWN = "unknown"
# Parts of the names of calls, of the runtime and the driver. syncType means other things in other versions.
KINDS = {
    "EventQuery": "query",
    "StreamQuery": "query",
    "StreamWaitEvent": "stream_event",
    "EventSynchronize": "event",
    "StreamSynchronize": "stream",
    "DeviceSynchronize": "device",
    "ThreadSynchronize": "device",
    "CtxSynchronize": "device",
}


def waits(source: sources.Source, ordinals: Any) -> pd.DataFrame:
    """Return WAITS: synchronisation records, each of the kind that the name of its call tells."""

    def part(rows: sources.Part) -> sources.Columns:
        process = sources.process_of(sources.ints(rows, "globalPid"))
        return {
            **sources.interval(rows),
            "process": process,
            "gpu": sources.in_32_bits(ordinals.of_process(process, sources.ints(rows, "deviceId"))),
            "stream": _number(rows, "streamId"),
            "event": _number(rows, "eventId"),
            "record": _number(rows, "eventSyncId"),
            "context": _number(rows, "contextId"),
            "correlation": sources.ints(rows, "correlationId"),
        }

    sources.require(source, WAIT, ("start", "end"))
    columns = source.stacked(WAIT, COLUMNS, part)
    frame = pd.DataFrame({"rank": np.zeros(len(columns["gpu"]), np.int32), **columns}, copy=False)
    frame["kind"] = _kinds(source, columns["process"], columns["correlation"])
    return tables.WAITS.make(frame)


def _number(rows: sources.Part, name: str) -> sources.Int:
    """Return a column of numbers, -1 where there is none."""
    numbers = sources.ints(rows, name)
    return np.where(numbers == NONE, np.int64(-1), numbers)


def _kinds(
    source: sources.Source, process: sources.Int, correlation: sources.Int
) -> pd.Categorical:
    """Return the kind of each wait, by the name of the call of its process with its correlation."""

    def part(rows: sources.Part) -> pd.DataFrame:
        ids = sources.ints(rows, "correlationId")
        some = rows.filter(np.isin(ids, correlation))
        columns = {
            "process": sources.process_of(sources.ints(some, "globalTid")),
            "correlation": sources.ints(some, "correlationId"),
            "name": sources.ints(some, "nameId"),
        }
        return pd.DataFrame(columns)

    labels = [*dict.fromkeys(KINDS.values()), UNKNOWN]
    parts = source.convert(CALL, ("globalTid", "correlationId", "nameId"), part)
    if not parts:
        return category(np.full(len(process), labels.index(UNKNOWN)), labels)
    calls = pd.concat(parts, ignore_index=True)
    codes, names = sources.texts(source, calls.pop("name").to_numpy())
    of_name = np.array([labels.index(kind_of(name)) for name in names], np.int64)
    calls["kind"] = of_name[codes]
    # Of several calls with one number the one that is a wait counts.
    calls = calls.sort_values("kind", kind="stable").drop_duplicates(["process", "correlation"])
    waited = pd.DataFrame({"process": process, "correlation": correlation})
    kinds = waited.merge(calls, on=["process", "correlation"], how="left")["kind"]
    return category(kinds.fillna(labels.index(UNKNOWN)).to_numpy(np.int64), labels)


def kind_of(call: str) -> str:
    """Return the kind of wait that a CUDA call is.

    >>> kind_of("cudaEventQuery_v3020"), kind_of("cuStreamWaitEvent"), kind_of("cudaMemcpy")
    ('query', 'stream_event', 'unknown')
    """
    return next((kind for part, kind in KINDS.items() if part in call), UNKNOWN)

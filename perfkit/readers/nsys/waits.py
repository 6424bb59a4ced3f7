"""Waits of the CPU for the GPU, and of streams for events."""

from typing import Any

import numpy as np
import pandas as pd

from perfkit import tables
from perfkit.readers.nsys import sources
from perfkit.readers.nsys.sources import column
from perfkit.readers.text import category

WAIT, CALL = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_RUNTIME"
UNKNOWN = "unknown"
# Parts of the names of calls, of the runtime and the driver. syncType means other things in other
# versions.
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
NONE = 2**32 - 1  # no stream, no event


def _or_none(numbers: sources.Int) -> sources.Int:
    return np.where(numbers == NONE, np.int64(-1), numbers)


# What tables are made of: our column <- columns of the export.
MAP: sources.Reads = {
    **sources.INTERVAL,
    "process": column("globalPid", by=sources.process_of),
    "stream": column("streamId", by=_or_none),
    "event": column("eventId", by=_or_none),
    "record": column("eventSyncId", by=_or_none),
    "context": column("contextId", by=_or_none),
    "correlation": column("correlationId"),
}
CALL_MAP: sources.Reads = {
    "process": sources.THREAD["process"],
    "correlation": column("correlationId"),
    "name": column("nameId"),
}


def waits(source: sources.Source, ordinals: Any) -> pd.DataFrame:
    """Return WAITS: synchronisation records, each of the kind that the name of its call tells."""
    reads = {**MAP, "gpu": column("globalPid", "deviceId", by=ordinals.gpus)}
    columns: dict[str, Any] = sources.read(source, WAIT, reads, ("start", "end"))
    columns["kind"] = _kinds(source, columns["process"], columns["correlation"])
    return sources.framed(tables.WAITS, columns)


def _kinds(
    source: sources.Source, process: sources.Int, correlation: sources.Int
) -> pd.Categorical:
    """Return the kind of each wait, by the name of the call of its process with its correlation."""

    def waited_for(calls: sources.Columns) -> pd.DataFrame:
        return pd.DataFrame(calls)[np.isin(calls["correlation"], correlation)]

    labels = [*dict.fromkeys(KINDS.values()), UNKNOWN]
    unknown = labels.index(UNKNOWN)
    kinds = np.full(len(process), unknown)
    parts = sources.each_part(source, CALL, CALL_MAP, waited_for)
    if not parts:
        return category(kinds, labels)
    calls = pd.concat(parts, ignore_index=True)
    codes, names = sources.texts(source, calls.pop("name").to_numpy())
    of_name = np.array([labels.index(kind_of(name)) for name in names], np.int64)
    # Of several calls with one number the one that is a wait counts.
    calls = calls.assign(kind=of_name[codes])
    calls = calls[calls["kind"] != unknown]
    for of_process, mine in calls.groupby("process"):
        numbers, rows = np.unique(mine["correlation"].to_numpy(), return_index=True)
        waited = np.flatnonzero(process == of_process)
        place = np.minimum(np.searchsorted(numbers, correlation[waited]), len(numbers) - 1)
        is_called = numbers[place] == correlation[waited]
        kinds[waited[is_called]] = mine["kind"].to_numpy()[rows[place[is_called]]]
    return category(kinds, labels)


def kind_of(call: str) -> str:
    """Return the kind of wait that a CUDA call is.

    >>> kind_of("cudaEventQuery_v3020"), kind_of("cuStreamWaitEvent"), kind_of("cudaMemcpy")
    ('query', 'stream_event', 'unknown')
    """
    return next((kind for part, kind in KINDS.items() if part in call), UNKNOWN)

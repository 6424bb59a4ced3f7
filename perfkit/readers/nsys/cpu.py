"""API_CALLS, OS_CALLS and RANGES of an Nsight Systems export."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pyarrow as pa

from perfkit import tables
from perfkit.readers.columns import category
from perfkit.readers.nsys.node import MARK, PUSH_POP, START_END
from perfkit.readers.nsys.source import (
    LONGEST,
    NEVER,
    Int,
    Source,
    difference,
    interval,
    ints,
    process_of,
    require,
    texts,
    thread_of,
)
from perfkit.readers.nsys.stack import Columns

RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYSTEM = "OSRT_API"
NVTX = "NVTX_EVENTS"

KINDS = {PUSH_POP: "push_pop", START_END: "start_end", MARK: "mark"}
DOMAIN_CREATE = 75
OWN_MARKS = tuple(f"OS runtime libraries profiling {what}" for what in ("started", "finished"))
SUFFIX = re.compile(r"(_pt[sd][sz])?(_v\d+)?(_pt[sd][sz])?$")  # cudaLaunchKernel_ptsz_v7000


def api_calls(source: Source) -> pd.DataFrame:
    """Return API_CALLS: runtime and driver calls, named without version and stream-mode suffix."""

    def part(rows: pa.Table) -> Columns:
        tid = ints(rows, "globalTid")
        return {
            **interval(rows),
            "process": process_of(tid),
            "thread": thread_of(tid),
            "correlation": ints(rows, "correlationId"),
            "name": ints(rows, "nameId"),
        }

    require(source, RUNTIME, ("start", "end"))
    columns = source.stacked(RUNTIME, ("start", "end", "globalTid", "correlationId", "nameId"), part)
    codes, labels = texts(source, columns.pop("name"))
    name = category(codes, [SUFFIX.sub("", label) for label in labels])
    rank = np.zeros(len(codes), "int32")
    return tables.API_CALLS.make(pd.DataFrame({"rank": rank, **columns, "name": name}, copy=False))


def os_calls(source: Source) -> pd.DataFrame:
    """Return OS_CALLS: calls that nsys intercepts (--trace=osrt), but its own marks of when it began and ended."""

    def part(rows: pa.Table) -> Columns:
        tid = ints(rows, "globalTid")
        return {
            **interval(rows),
            "process": process_of(tid),
            "thread": thread_of(tid),
            "name": ints(rows, "nameId"),
        }

    require(source, SYSTEM, ("start", "end"))
    columns = source.stacked(SYSTEM, ("start", "end", "globalTid", "nameId"), part)
    name = category(*texts(source, columns.pop("name")))
    frame = pd.DataFrame({"rank": np.zeros(len(name), "int32"), **columns, "name": name}, copy=False)
    return tables.OS_CALLS.make(frame[~frame["name"].isin(OWN_MARKS)])


def ranges(source: Source, end_of_capture: int) -> pd.DataFrame:
    """Return RANGES: NVTX ranges and marks; ranges never closed end with the capture."""

    def part(rows: pa.Table) -> Columns:
        tid, start = ints(rows, "globalTid"), ints(rows, "start", NEVER)
        event, end = ints(rows, "eventType"), ints(rows, "end", NEVER)
        closing = np.where(event == MARK, start, np.maximum(start, end_of_capture))
        return {
            "start_ns": start,
            "dur_ns": difference(np.where(end == NEVER, closing, end), start),
            "event": event,
            "process": process_of(tid),
            "thread": thread_of(tid),
            "text": ints(rows, "textId"),
            "domain": ints(rows, "domainId", 0),
        }

    require(source, NVTX, ("start", "eventType"))
    columns = ("start", "end", "eventType", "globalTid", "textId", "domainId")
    frame = pd.DataFrame(source.stacked(NVTX, columns, part))
    if frame.empty:
        return tables.RANGES.empty()
    frame["name"] = _names(source, frame["text"].to_numpy())
    kept = frame[frame["event"].isin(list(KINDS))].reset_index(drop=True)
    kept["kind"] = kept.pop("event").map(KINDS).astype("category")
    kept["domain"] = _domains(kept, frame[frame["event"] == DOMAIN_CREATE])
    kept["depth"] = _depth(kept)
    kept["rank"] = 0
    return tables.RANGES.make(kept.drop(columns="text"))


def _names(source: Source, ids: Int) -> pd.Categorical:
    """Return COALESCE(text, StringIds[textId]) per event."""
    inline = source.text(NVTX, "text")
    codes, labels = texts(source, ids)
    if not inline:
        return category(codes, labels)
    if len(inline) != len(codes):
        raise source.damage(NVTX, f"{NVTX} has {len(codes)} rows and {len(inline)} texts")
    own, distinct = pd.factorize(np.array(inline, object))
    return category(np.where(own >= 0, own + len(labels), codes), [*labels, *distinct])


def _domains(events: pd.DataFrame, created: pd.DataFrame) -> pd.Categorical:
    """Return each event's domain name; a domain id is unique within its process only."""
    known = {
        (p, d): str(n)
        for p, d, n in zip(created["process"], created["domain"], created["name"].astype(str), strict=True)
    }
    domains, ids = pd.factorize(events["domain"].to_numpy(np.int64))
    codes, pairs = pd.factorize((events["process"].to_numpy() << 32) | domains)
    keys = [(pair >> 32, ids[pair & 0xFFFFFFFF]) for pair in pairs]
    return category(codes, [known.get((p, d), f"domain {d}" if d else "") for p, d in keys])


def _depth(events: pd.DataFrame) -> Int:
    """Count, for each push_pop range, those of its thread and domain that are open when it starts.

    Nesting is not exported. Ranges of one thread nest, so the number open at a start is the number
    started before minus the number ended by then; a range without length encloses nothing, nor does one of a length
    that cannot be.
    """
    depth = np.zeros(len(events), np.int64)
    possible = events["start_ns"].between(-LONGEST, LONGEST) & events["dur_ns"].between(0, LONGEST)
    nested = events[possible & (events["kind"] == "push_pop")].reset_index(names="row")
    lane = nested.groupby(["process", "thread", "domain"], observed=True, sort=False).ngroup().to_numpy()
    start, dur = nested["start_ns"].to_numpy(), nested["dur_ns"].to_numpy()
    order = np.lexsort((-dur, start, lane))
    lane, start, dur = lane[order], start[order], dur[order]
    lasts = dur > 0
    started: Int = np.cumsum(lasts) - lasts
    # Ends and starts on one axis, by lane and time, ends before starts of the same time (the sort is stable).
    time, of = np.r_[(start + dur)[lasts], start], np.r_[lane[lasts], lane]
    is_start = np.lexsort((time, of)) >= lasts.sum()
    ended = np.cumsum(~is_start)[is_start]
    depth[nested["row"].to_numpy()[order]] = started - ended
    return depth

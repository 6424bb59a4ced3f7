"""NCCL Inspector: how long each collective took on each rank, one JSON object a line.

Run the program with ``NCCL_PROFILER_PLUGIN=libnccl-profiler-inspector.so NCCL_INSPECTOR_ENABLE=1``
and ``NCCL_INSPECTOR_DUMP_DIR=DIR``; load the folder. Each process writes one file, plain or gzip.
Tried with the format versions 4.0 to 4.2 as documented. A time contains the wait for the last rank:
only the times of all ranks together tell the transfer.
"""

import gzip
import json
import re
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from perfkit import tables
from perfkit.errors import ReadError
from perfkit.logs.text import CUT
from perfkit.profile import Profile, node_of
from perfkit.readers.text import capture_table, head

VERSION = 1
KIND = "network"
LARGEST = 4 * 10**9
READS = "the lines of NCCL Inspector"
DIAGNOSIS = "perfkit.logs.nccl_inspector.diagnosis"
LOOKED_AT = 1 << 16  # bytes at the start of a file
GZIP, GZIP_WINDOW = b"\x1f\x8b", 31
BEGIN = re.compile(rb'\s*\{\s*"header"\s*:\s*\{')
PARTS = ("coll", "p2p")
WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")
# Operations of which a line gives what one rank passes, and nccl-tests counts what all ranks pass.
OF_ALL_RANKS = ("all_gather", "reduce_scatter")
ON_GPU = ("kernel_gpu", None)  # lines of old versions do not name the clock
HIGHEST = 1 << 50  # of a size in bytes, or of a time in us
RECORD = "NCCL_PROFILER_PLUGIN=libnccl-profiler-inspector.so NCCL_INSPECTOR_ENABLE=1"
AGAIN = f"Run the program again with {RECORD}."


def sniff(path: Path) -> bool:
    """Say whether the first line of `path` is one of NCCL Inspector."""
    start = head(path, LOOKED_AT)
    if start.startswith(GZIP):
        try:
            start = zlib.decompressobj(GZIP_WINDOW).decompress(start, LOOKED_AT)
        except zlib.error:
            return False
    named = b'"coll_perf"' in start or b'"p2p_perf"' in start
    return BEGIN.match(start) is not None and named


def read(path: Path) -> Profile:
    """Read the lines of one process: INSPECTED."""
    lines, notes = _lines(path)
    rows = []
    for number, line in lines:
        try:
            row = _row(line)
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise ReadError(
                f"{path}: line {number} holds a wrong value ({e!r:.80}). {AGAIN}"
            ) from e
        if row:
            rows.append(row)
    if not rows:
        raise ReadError(f"{path}: no line holds a collective. {AGAIN}")
    frame = tables.INSPECTED.make(pd.DataFrame(rows).assign(rank=0))
    first, metadata = lines[0][1]["header"], lines[0][1].get("metadata", {})
    widest = frame.iloc[int(frame["ranks"].argmax())]
    return Profile(
        reader="nccl_inspector",
        path=path,
        capture=capture_table(
            path, "NCCL Inspector", str(metadata.get("inspector_output_format_version", ""))[:20]
        ),
        loaders={"INSPECTED": partial(_same, frame)},
        notes=tuple(notes),
        rank=int(widest["member"]),
        node=node_of(str(metadata.get("hostname", ""))) if first.get("nnodes", 1) > 1 else "",
        world_size=int(widest["ranks"]),
    )


def _same(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


def _lines(path: Path) -> tuple[list[tuple[int, dict[str, Any]]], list[str]]:
    """Return the objects of a file with the numbers of their lines; a last line that is cut is left out."""
    try:
        packed = head(path, len(GZIP)) == GZIP
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            *texts, last = file.read().split(b"\n")
    except (OSError, EOFError, zlib.error) as e:
        raise ReadError(f"{path}: the file cannot be read ({e}). Copy it again.") from e
    found = []
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except (ValueError, RecursionError) as e:
            raise ReadError(f"{path}: line {number} is damaged ({e}). Copy it again.") from e
        if not isinstance(line, dict) or not isinstance(line.get("header"), dict):
            raise ReadError(f"{path}: line {number} has no header. {AGAIN}")
        found.append((number, line))
    if not found:
        raise ReadError(f"{path}: the file holds no whole line. {AGAIN}")
    return found, [CUT] if last.strip() else []


def _row(line: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a row of INSPECTED; None for a line about something else, such as dropped entries."""
    part = next((name for name in PARTS if f"{name}_perf" in line), None)
    if part is None:
        return None
    header, timed = line["header"], line[f"{part}_perf"]
    ranks = _whole(header["n_ranks"])
    operation = WORD.sub("_", str(timed[part])).lower()
    count = ranks if operation in OF_ALL_RANKS else 1
    return {
        "group": str(header["id"]),
        "member": _whole(header["rank"]),
        "number": _whole(timed[f"{part}_sn"]),
        "operation": operation,
        "bytes": _whole(timed[f"{part}_msg_size_bytes"]) * count,
        "ranks": ranks,
        "dur_ns": _whole(timed[f"{part}_exec_time_us"]) * 1000,
        "on_gpu": timed.get(f"{part}_timing_source") in ON_GPU,
        "algorithm": timed.get(f"{part}_algo"),
        "protocol": timed.get(f"{part}_proto"),
    }


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value < HIGHEST:
        raise ValueError(f"{str(value)[:40]} is no size, time or number")
    return value

"""PyTorch flight recorder: the last collectives that each rank gave to NCCL before a program hung.

Run the program with ``TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1``. NCCL's
watchdog then writes one dump per rank, to the path in ``TORCH_NCCL_DEBUG_INFO_TEMP_FILE`` with the
rank after it; load the folder. Pickles and JSON of the dump versions 2.x are read, pickles without
running them. With ``TORCH_NCCL_TRACE_CPP_STACK=0`` and stacks switched on, each operation has its
line of the program. Only the name of a file states its rank.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from perfkit import tables
from perfkit.dumps import pickled
from perfkit.dumps.frames import innermost
from perfkit.errors import ReadError
from perfkit.profile import Missing, Profile
from perfkit.readers.text import capture_table, content, head

VERSION = 2
KIND = "network"
LARGEST = 1 << 30
ALIKE = True
READS = "dumps of PyTorch's flight recorder"
DIAGNOSIS = "perfkit.dumps.hang_diagnosis"
LOOKED_AT = 1 << 16  # bytes at the start of a file
KEYS = (b"pg_config", b"collective_seq_id")  # one of these stands early in each dump
RANK = re.compile(r"(\d{1,6})(?:\.[a-z]{1,8})?$", re.IGNORECASE)
PREFIX = "nccl:"
RECORD = "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1"
AGAIN = f"Run the program again with {RECORD}."
NO_RANK = "the name of the file states no rank: end it with the number of its rank"


def sniff(path: Path) -> bool:
    """Say whether `path` is a dump: a pickle or JSON that names a key of dumps at its beginning."""
    start = head(path, LOOKED_AT)
    if not start.startswith((*pickled.BEGINS, b"{")):
        return False
    return any(key in start for key in KEYS) and b"traceEvents" not in start


def read(path: Path) -> Profile:
    """Read one dump: ENQUEUED and GROUPS of its rank."""
    dump = _dump(path)
    try:
        groups = _groups(dump)
        rows = list(_enqueued(dump))
    except (KeyError, TypeError, ValueError, OverflowError) as e:
        raise ReadError(f"{path}: {_wrong(e)}. {AGAIN}") from e
    world = max((len(json.loads(row["members"])) for row in groups), default=0)
    times = [row["time_ns"] for row in rows]
    begin = min(times, default=None)
    version = str(dump.get("nccl_version", ""))[:50]
    frames = {}
    if groups:
        frames["GROUPS"] = tables.GROUPS.make(pd.DataFrame(groups).assign(rank=0))
    if rows:
        made = pd.DataFrame(rows).assign(rank=0, time_ns=[time - begin for time in times])
        frames["ENQUEUED"] = tables.ENQUEUED.make(made)
    rank = RANK.search(path.name)
    return Profile(
        reader="flight_recorder",
        path=path,
        capture=capture_table(
            path,
            "PyTorch flight recorder",
            f"NCCL {version}",
            begin,
            max(times, default=0) - (begin or 0),
        ),
        loaders={name: partial(frames.__getitem__, name) for name in frames},
        missing=tuple(_missing(frames)),
        notes=() if rank else (NO_RANK,),
        rank=int(rank[1]) if rank else None,
        world_size=world or None,
    )


def _missing(frames: Mapping[str, pd.DataFrame]) -> Iterator[Missing]:
    if "ENQUEUED" not in frames:
        yield Missing("ENQUEUED", "which collectives did the rank give to NCCL?", RECORD)


def _dump(path: Path) -> dict[str, Any]:
    """Return the content of a dump, a pickle or JSON."""
    if head(path, 2) in pickled.BEGINS:
        dump = pickled.load(path)
    else:
        try:
            dump = json.loads(content(path))
        except (ValueError, RecursionError) as e:
            raise ReadError(f"{path}: the JSON is cut or damaged ({e}). {AGAIN}") from e
    if not isinstance(dump, dict) or not isinstance(dump.get("entries"), list):
        raise ReadError(
            f"{path}: no dump of a flight recorder: it holds no list `entries`. {AGAIN}"
        )
    return dump


def _wrong(error: Exception) -> str:
    what = (
        f"lacks the key {error}"
        if isinstance(error, KeyError)
        else f"holds a wrong value ({error})"
    )
    return f"an entry of the dump {what}"


def _groups(dump: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row of GROUPS for each group that has members; their numbers are known through entries alone."""
    number_of = {str(_named(entry)[0]): str(entry["pg_id"]) for entry in dump["entries"]}
    rows = []
    for name, group in dump.get("pg_config", {}).items():
        status = dump.get("pg_status", {}).get(number_of.get(str(name), ""), {})
        members = [int(rank) for rank in _listed(group["ranks"])]
        rows.append(
            {
                "group": str(name),
                "description": str(group.get("desc", "")),
                "members": json.dumps(members),
                "enqueued": _known(status.get("last_enqueued_collective")),
                "completed": _known(status.get("last_completed_collective")),
            }
        )
    return rows


def _listed(ranks: object) -> list[Any]:
    """Return the ranks of a group, which dumps give as a text."""
    found = json.loads(ranks) if isinstance(ranks, str) else ranks
    if not isinstance(found, list):
        raise ValueError(f"ranks {str(ranks)[:40]!r}")
    return found


def _known(number: object) -> int | None:
    return number if isinstance(number, int) and number >= 0 else None


def _named(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Return name and description of an entry's group."""
    name, description = entry["process_group"]
    return str(name), str(description)


def _enqueued(dump: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row of ENQUEUED for each entry."""
    for entry in dump["entries"]:
        frame = innermost(entry.get("frames") or ())
        yield {
            "record": int(entry["record_id"]),
            "group": _named(entry)[0],
            "number": int(entry["collective_seq_id"]),
            "operation": str(entry["profiling_name"]).removeprefix(PREFIX),
            "is_p2p": bool(entry.get("is_p2p", False)),
            "batch": int(entry.get("p2p_seq_id", 0)),
            "state": str(entry["state"]),
            "input_sizes": json.dumps(_sizes(entry["input_sizes"])),
            "output_sizes": json.dumps(_sizes(entry["output_sizes"])),
            "dtypes": json.dumps([str(dtype) for dtype in entry.get("input_dtypes", [])]),
            "time_ns": int(entry["time_created_ns"]),
            "function": frame.function,
            "file": frame.file,
            "line": frame.line,
        }


def _sizes(shapes: object) -> list[list[int]]:
    """Return shapes as lists of numbers; ValueError for anything else."""
    if not isinstance(shapes, list):
        raise ValueError(f"sizes {str(shapes)[:40]!r}")
    return [[int(size) for size in shape] for shape in shapes]

"""Nsight Systems: what `nsys export` wrote, or a report when `nsys` is on PATH.

Export with ``nsys export -t sqlite REPORT.nsys-rep`` (or ``-t parquetdir``, ``-t arrowdir``). Tried with
schemas 2.9 to 3.25, that is nsys 2022.1 to 2026.2; other versions differ in tables and columns that
are looked up by name, and a column an export lacks is read as not recorded.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from perfkit.profile import Profile, node_of
from perfkit.readers.nsys import node, tables
from perfkit.readers.nsys.folder import FolderSource, is_export_folder
from perfkit.readers.nsys.sources import Source
from perfkit.readers.nsys.sqlite import MAGIC, SqliteSource, exported, is_export

__all__ = [
    "KIND",
    "VERSION",
    "read",
    "sniff",
]

VERSION = 3
KIND = "timeline"


def sniff(path: Path) -> bool:
    """Say whether `path` is an Nsight Systems export or report, by its first bytes and table names."""
    try:
        if not path.is_file():
            return path.is_dir() and is_export_folder(path)
        with path.open("rb") as file:
            head = file.read(100)
    except OSError:
        return False
    return head.startswith(MAGIC) or (head.startswith(b"SQLite format 3\0") and is_export(path))


def read(path: Path) -> Profile:
    """Open an Nsight Systems export; its tables are read when first asked for.

    CAPTURE, DEVICES, KERNELS, COPIES, API_CALLS, OS_CALLS, RANGES and SAMPLES, as far as recorded; what is not recorded
    is in ``missing`` with the option of ``nsys profile`` that records it.
    """
    source = _open(path)
    doubts: list[str] = []
    gpus = node.gpus(source, doubts)
    ordinals = node.ordinals(source, gpus, doubts)
    capture = node.capture(source, path, doubts)
    makers = {
        "KERNELS": partial(tables.kernels, source, ordinals),
        "COPIES": partial(tables.copies, source, ordinals),
        "API_CALLS": partial(tables.api_calls, source),
        "OS_CALLS": partial(tables.os_calls, source),
        "RANGES": partial(tables.ranges, source, int(capture["dur_ns"].iloc[0])),
        "SAMPLES": partial(node.samples, source, ordinals),
        "DEVICES": partial(node.devices, gpus),
    }
    recorded = node.recorded(source)
    return Profile(
        reader="nsys",
        path=path,
        capture=capture,
        loaders={name: make for name, make in makers.items() if name in recorded},
        missing=node.missing(recorded),
        notes=(*node.notes(source, gpus), *dict.fromkeys(doubts)),
        node=node_of(node.host(source)),
    )


def _open(path: Path) -> Source:
    if path.is_dir():
        return FolderSource(path)
    with path.open("rb") as file:
        report = file.read(len(MAGIC)) == MAGIC
    return exported(path) if report else SqliteSource(path)

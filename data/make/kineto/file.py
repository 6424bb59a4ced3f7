"""How does Kineto write a trace?

Conventions
-----------
As in `make.kineto`.

Functions
---------
write    a trace, compressed
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from make.kineto.events import Event

# ns; libkineto's TimeConverter counts times from a multiple of it, so that microseconds fit a double exactly.
BASE_STEP_NS = 7_889_238_000_000_000
LEVEL = 6


def write(path: Path, events: Iterable[Event], *, t0_unix_ns: int, header: Mapping[str, Any]) -> Path:
    """Write a trace to `path` and return it; an older file is replaced when the new one is complete.

    Parameters
    ----------
    path
        The file, usually ``*.pt.trace.json.gz``.
    events
        In the order in which they are written; their times count from `t0_unix_ns`.
    t0_unix_ns
        Wall clock at time 0, ns since 1970 UTC.
    header
        Further keys of the object: SIMULATED, deviceProperties, distributedInfo, cuda_runtime_version, ...

    Returns
    -------
    Path
        `path`.

    References
    ----------
    pytorch/kineto, libkineto/src/output_json.cpp.
    """
    base = t0_unix_ns // BASE_STEP_NS * BASE_STEP_NS
    keys = {"schemaVersion": 1, **header, "displayTimeUnit": "ms", "baseTimeNanoseconds": base}
    part = path.with_name(f".{path.name}.part")
    with (
        part.open("wb") as file,
        # Without a name and a time in gzip's header the same text is the same file.
        gzip.GzipFile("", "wb", LEVEL, file, mtime=0) as packed,
        TextIOWrapper(packed, "utf-8", newline="\n") as out,
    ):
        out.write("{\n" + "".join(f'  "{key}": {json.dumps(value)},\n' for key, value in keys.items()))
        out.write('  "traceEvents": [\n')
        out.writelines(_separated(events, t0_unix_ns - base))
        out.write(f'\n  ],\n  "traceName": {json.dumps(path.name)}\n}}\n')
    os.replace(part, path)
    return path


def _separated(events: Iterable[Event], shift_ns: int) -> Iterator[str]:
    """Yield the text of the events, with a comma between two."""
    comma = ""
    for event in events:
        yield comma + event.text(shift_ns)
        comma = ",\n"

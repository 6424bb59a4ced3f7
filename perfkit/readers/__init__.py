"""Readers: one module per format, each with `sniff(path)`, `read(path)`, a VERSION and a KIND.

`READERS` is the list of their names; its order is the precedence when several claim a file and when two profiles of one
run hold the same table. Readers of other packages (`perfkit.readers.outside`) come after them: on equal claim perfkit's
own reader reads the file, and a note says so. A reader that holds its file whole says by LARGEST up to which size,
bytes. Nothing outside of readers knows a reader by its name: it asks for a KIND of `profile.KINDS`.

What cannot be read is a ReadError: a file that is damaged, cut, contradicts itself or holds no value of a table. Of a
log that was still written only the last line is left out, with a note.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from importlib import import_module
from pathlib import Path
from types import ModuleType

from perfkit.errors import ReadError
from perfkit.readers import outside

READERS = ("nsys", "ncu", "hpctoolkit", "torch_trace", "dcgm", "nvidia_smi", "rocm_smi", "nccl", "deepspeed")
LOGS = ("nccl", "deepspeed")  # read what a program printed, where one file can hold something for each of them
SUFFIXES = (".sqlite", ".nsys-rep", ".qdrep", ".ncu-rep")  # what a profiler is expected to have written something into

READABLE = (
    "an Nsight Systems export (.sqlite, parquetdir, arrowdir), "
    "an Nsight Compute report (.ncu-rep) or its page (`ncu --import REPORT --csv --page raw`), "
    "an HPCToolkit database (the folder that `hpcprof` writes), "
    "a PyTorch profiler trace (.json or .json.gz that `export_chrome_trace` wrote), "
    "a log of `dcgmi dmon`, a scrape of dcgm-exporter, or what `perfkit record prometheus` wrote, "
    "a log of `nvidia-smi dmon` or `--query-gpu`, what `nvidia-smi -q` or `rocm-smi --json` says, "
    "the output of nccl-tests (or what `-J` wrote), a log with NCCL_DEBUG=INFO, "
    "a report of DeepSpeed's Flops Profiler or a Megatron log"
)


def reader(name: str) -> ModuleType:
    """Return the reader module called `name`, perfkit's own or one from outside; LookupError if there is none."""
    return import_module(f"perfkit.readers.{name}") if name in READERS else outside.module(name)


def kind(name: str) -> str:
    """Return the kind of captures that a reader reads, one of `perfkit.profile.KINDS`.

    >>> kind("nsys"), kind("rocm_smi")
    ('timeline', 'monitor')
    """
    return str(reader(name).KIND)


def ordered(names: Iterable[str]) -> list[str]:
    """Return names of readers in the order of precedence: perfkit's own as in READERS, then others by name.

    >>> ordered(["my_format", "ncu", "another", "nsys"])
    ['nsys', 'ncu', 'another', 'my_format']
    """
    given = set(names)
    return [*(name for name in READERS if name in given), *sorted(given - set(READERS))]


def recognise(path: Path) -> str | None:
    """Return the name of the reader that claims `path` by its content, or None."""
    names = (name for several in (READERS, outside.names(READERS)) for name in several)
    return next((name for name in names if reader(name).sniff(path)), None)


def claimants(path: Path) -> tuple[str, ...]:
    """Return the names of the readers of `path`: the first that claims it, of a program's log all that claim it."""
    first = recognise(path)
    if first in LOGS:
        return tuple(name for name in LOGS if name == first or reader(name).sniff(path))
    return (first,) if first else ()


def rivals(path: Path, claimed: Sequence[str]) -> list[str]:
    """Return notes on readers from outside that claim a file too, which another reader reads."""
    others = (name for name in outside.names(READERS) if name not in claimed and reader(name).sniff(path))
    whose = "perfkit's own reader" if claimed[0] in READERS else "the reader"
    return [
        f"{path.name}: {outside.origin(name)} claims this file too; {whose} {claimed[0]} reads it" for name in others
    ]


def broken() -> tuple[str, ...]:
    """Return notes on readers from outside that do not work."""
    return outside.problems(READERS)


def unrecognised(path: Path) -> ReadError:
    """Return the error that says what a file is that no reader claims, and what to do about it."""
    unable = broken()
    return ReadError(f"{_unrecognised(path)}{' Note: ' + '; '.join(unable) + '.' if unable else ''}")


def _unrecognised(path: Path) -> ReadError:
    if path.is_dir():
        measured = next((f for f in (path, *sorted(path.iterdir())) if any(f.glob("*.hpcrun"))), None)
        if measured:
            return ReadError(
                f"{measured}: these are HPCToolkit's measurements, not yet a database. "
                f"Make one with `hpcprof -o DATABASE {measured}` and load that."
            )
        return ReadError(
            f"{path}: nothing in this folder is a profile perfkit reads. "
            f"Point at {READABLE}, or a folder that holds one."
        )
    try:
        with path.open("rb") as file:
            head = file.read(200)
            size = path.stat().st_size
    except OSError as e:
        return ReadError(f"{path}: the file cannot be opened ({e.strerror}). Check its permissions.")
    if size == 0:
        return ReadError(f"{path}: the file is empty (0 bytes). Export or copy it again.")
    if head.startswith(b"version https://git-lfs"):
        return ReadError(f"{path}: this is a git-LFS pointer, not the capture. Fetch it with `git lfs pull`.")
    if head.startswith(b"HPCTOOLKIT"):
        return ReadError(f"{path}: this is one of the files of an HPCToolkit database. Load its folder, {path.parent}.")
    if head.startswith(b"SQLite format 3\0"):
        return ReadError(
            f"{path}: an SQLite database that is not an Nsight Systems export (tables: {_tables(path)}). "
            "Export the report with `nsys export -t sqlite REPORT.nsys-rep`."
        )
    refused = reader("nvidia_smi").refused(path)
    if refused:
        return ReadError(f"{path}: {refused}")
    keys = reader("torch_trace").outermost_keys(path)
    if keys:
        return ReadError(f"{path}: {_json(keys)}. Load what torch.profiler.profile wrote with export_chrome_trace.")
    return ReadError(
        f"{path}: no reader recognises this file ({size} bytes, starts with {head[:16]!r}). "
        f"Point at {READABLE}, or a folder that holds one."
    )


def _json(keys: list[str]) -> str:
    if "nodes" in keys and "traceEvents" not in keys:
        return "a PyTorch execution trace (it has nodes, no traceEvents), which holds no times of the GPU's work"
    listed = ", ".join(repr(key[:40]) for key in keys[:5]) + (f" and {len(keys) - 5} more" if len(keys) > 5 else "")
    return f"a JSON object that is not a PyTorch profiler trace (keys: {listed})"


def _tables(path: Path) -> str:
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    except sqlite3.Error as e:
        return str(e)
    return ", ".join(sorted(names)[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") or "none"

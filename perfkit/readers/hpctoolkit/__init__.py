"""HPCToolkit: the database that `hpcprof` writes.

Record with ``hpcrun -e CPUTIME -e gpu=nvidia,pc -t PROGRAM``, then ``hpcstruct MEASUREMENTS`` and ``hpcprof
MEASUREMENTS``. Reads format 4.x (meta.db, profile.db, trace.db; since 2022), tried with what 2023 to 2026 wrote for
CPU and NVIDIA programs, and the older experiment.xml. All entry points, threads and streams are read.
"""

from __future__ import annotations

from pathlib import Path

from perfkit.profile import Profile
from perfkit.readers.hpctoolkit.database import Database
from perfkit.readers.hpctoolkit.layout import KINDS, MAGIC, META

__all__ = ["FOLDER", "KIND", "VERSION", "read", "sniff"]

VERSION = 2
KIND = "call_paths"
FOLDER = True  # a profile is a folder, also if one of its files is named


def sniff(path: Path) -> bool:
    """Say whether `path` is a database, its meta.db or its experiment.xml, by the first bytes of its files."""
    from perfkit.readers.hpctoolkit import old

    return _is_current(path) or old.sniff(path)


def _is_current(path: Path) -> bool:
    try:
        if path.is_dir():
            return any(_starts_with(path / kind.name, MAGIC) for kind in KINDS)
        return _starts_with(path, MAGIC + META.format)
    except OSError:
        return False


def _starts_with(file: Path, magic: bytes) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return opened.read(len(magic)) == magic


def read(path: Path) -> Profile:
    """Open a database; its tables are read when first asked for.

    Returns
    -------
    Profile
        CALLTREE, CALL_METRICS, STALLS, THREADS, THREAD_METRICS and TRACE, as far as recorded; what is not recorded
        is in ``missing`` with the option of ``hpcrun`` that records it.

    Raises
    ------
    ReadError
        If meta.db or profile.db is not there, a file is cut or damaged, or its format is not 4.x; of an older database
        as `old.read` says.
    """
    from perfkit.readers.hpctoolkit import old

    if not _is_current(path) and old.sniff(path):
        return old.read(path)
    database = Database(path if path.is_dir() else path.parent)
    makers = {
        "CALLTREE": lambda: database.calltree,
        "CALL_METRICS": lambda: database.call_metrics,
        "STALLS": database.stalls,
        "THREADS": database.threads,
        "THREAD_METRICS": database.thread_metrics,
        "TRACE": database.trace,
    }
    recorded = database.recorded()
    return Profile(
        reader="hpctoolkit",
        path=path,
        capture=database.capture(path),
        loaders={name: make for name, make in makers.items() if name in recorded},
        missing=database.missing(),
        notes=database.notes(),
    )

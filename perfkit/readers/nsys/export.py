"""A report (.nsys-rep): exported by the user's own `nsys`, because its format is closed."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
import weakref
from pathlib import Path

from perfkit.errors import ReadError
from perfkit.readers.nsys.sqlite import SqliteSource

MAGIC = b"NVIDIA Tegra Profiler Report"


class ExportedSource(SqliteSource):
    """A report exported to a temporary folder that goes away with this object."""

    def __init__(self, path: Path) -> None:
        weakref.finalize(self, shutil.rmtree, path.parent, ignore_errors=True)
        super().__init__(path)


def exported(report: Path) -> ExportedSource:
    """Export `report` to SQLite with the `nsys` on PATH and open it.

    Raises
    ------
    ReadError
        If there is no `nsys`, or it fails; the message holds the command and its last words.
    """
    command = shlex.join(["nsys", "export", "-t", "sqlite", "-o", f"{report.stem}.sqlite", report.name])
    program = shutil.which("nsys")
    if not program:
        raise ReadError(
            f"{report}: an Nsight Systems report, which only `nsys` itself can open, and `nsys` is not on PATH. "
            f"Export it where Nsight Systems is installed: `{command}`."
        )
    target = Path(tempfile.mkdtemp(prefix="perfkit-"), "report.sqlite")
    done = subprocess.run(
        [program, "export", "-t", "sqlite", "-o", str(target), str(report)],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode or not target.exists():
        shutil.rmtree(target.parent, ignore_errors=True)
        words = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no message"]
        raise ReadError(
            f"{report}: `{command}` failed with status {done.returncode}: {words[0]}. "
            "A report newer than the installed nsys needs the nsys it was recorded with."
        )
    return ExportedSource(target)

"""A report (.nsys-rep): exported by the user's own `nsys`, because its format is closed."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
import weakref
from contextlib import ExitStack
from pathlib import Path

from perfkit.errors import ReadError
from perfkit.readers.nsys.sqlite import SqliteSource

MAGIC = b"NVIDIA Tegra Profiler Report"
LAST_WORDS = 300  # characters of the last line that nsys printed


class ExportedSource(SqliteSource):
    """A report exported to a temporary folder that goes away with this object; errors name the report."""

    def __init__(self, path: Path, report: Path) -> None:
        super().__init__(path, report)
        weakref.finalize(self, shutil.rmtree, path.parent, ignore_errors=True)


def exported(report: Path) -> ExportedSource:
    """Export `report` to SQLite with the `nsys` on PATH and open it."""
    command = shlex.join(["nsys", "export", "-t", "sqlite", "-o", f"{report.stem}.sqlite", report.name])
    program = shutil.which("nsys")
    if not program:
        raise ReadError(
            f"{report}: an Nsight Systems report, which only `nsys` itself can open, and `nsys` is not on PATH. "
            f"Export it where Nsight Systems is installed: `{command}`."
        )
    with ExitStack() as cleanup:
        target = Path(tempfile.mkdtemp(prefix="perfkit-"), "report.sqlite")
        cleanup.callback(shutil.rmtree, target.parent, ignore_errors=True)
        _export(program, report, target, command)
        source = ExportedSource(target, report)
        cleanup.pop_all()
        return source


def _export(program: str, report: Path, target: Path, command: str) -> None:
    """Run `nsys export`; raise ReadError with its last words if it fails."""
    try:
        done = subprocess.run(
            [program, "export", "-t", "sqlite", "-o", str(target), str(report.absolute())],
            stdin=subprocess.DEVNULL,  # an nsys that asks something gets no answer instead of waiting for one
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as e:
        raise ReadError(
            f"{report}: `{command}` cannot be run ({e}). Export the report where Nsight Systems works."
        ) from e
    if done.returncode or not target.is_file():
        words = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no message"]
        last = "".join(c if c.isprintable() else "?" for c in words[0][:LAST_WORDS])
        raise ReadError(
            f"{report}: `{command}` failed with status {done.returncode}: {last}. "
            "A report newer than the installed nsys needs the nsys it was recorded with."
        )

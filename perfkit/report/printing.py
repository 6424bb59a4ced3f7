"""The report as a PDF: a browser prints one page that holds all that is to be printed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from perfkit.errors import PerfkitError
from perfkit.report.processes import end

BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "msedge",
)
LIMIT = 180  # s
DRAWING = 20_000  # ms of the page's own clock that its charts have to be drawn
QUIET = (
    "--headless",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--no-pdf-header-footer",
)
PRINTED = "print.html"  # all pages in one, until a browser has printed them


def print_report(made: Path) -> dict[str, str]:
    """Print the chosen pages to a PDF and delete what was printed; return what went wrong, if anything, by name."""
    page = made / PRINTED
    try:
        printed(page, made / "report.pdf")
    except PerfkitError as e:
        return {"report.pdf": str(e)}
    finally:
        page.unlink()
    return {}


def browser() -> str:
    """Return the browser that prints; PerfkitError if there is none on the PATH."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise PerfkitError(
            f"pdf: no browser on the PATH ({', '.join(BROWSERS)}). Install Chromium, or print index.html yourself."
        )
    return found


def printed(page: Path, target: Path) -> Path:
    """Print an HTML page to a PDF file and return that; PerfkitError, and nothing left, if no browser writes one."""
    program = browser()
    with tempfile.TemporaryDirectory(prefix="perfkit-pdf-") as folder:
        made = Path(folder, "page.pdf")
        # In containers the browser's own sandbox is not available; the page holds no scripts but perfkit's.
        options = [
            *QUIET,
            "--no-sandbox",
            f"--user-data-dir={folder}",
            f"--virtual-time-budget={DRAWING}",
        ]
        command = [program, *options, f"--print-to-pdf={made}", page.absolute().as_uri()]
        said = (_run(command).strip().splitlines() or ["nothing"])[-1]
        if not made.is_file() or made.read_bytes()[:5] != b"%PDF-":
            raise PerfkitError(
                f"pdf: {program} wrote no PDF and said: {said}. Print index.html yourself."
            )
        shutil.copyfile(made, target)
    return target


def _run(command: list[str]) -> str:
    """Run a browser and return what it printed; its own processes end with it, however this function ends."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            return process.communicate(timeout=LIMIT)[1]
        except subprocess.TimeoutExpired as e:
            raise PerfkitError(
                f"pdf: {command[0]} took more than {LIMIT} s. Print index.html yourself."
            ) from e
        finally:
            end(process)

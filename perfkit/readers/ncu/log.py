"""Where are the CSV pages in what `ncu --csv` printed, among its own log lines and the program's output?"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from perfkit.errors import ReadError

HEADER = '"ID","Process ID"'
_LOG = re.compile(r"\s*==(?:PROF|ERROR|WARNING)== ")
_ERROR = re.compile(r"^==ERROR== (.*?)\r?$", re.MULTILINE)
_SIMULATED = re.compile(r"^==WARNING== Simulated: (.*?)\r?$", re.MULTILINE)
_PROFILED = re.compile(r"^==PROF== Profiling ", re.MULTILINE)
_ROW = re.compile(r'"\d*","')
AGAIN = "Export the report again with `ncu --import REPORT --csv --page raw --print-units base`"


@dataclass
class Page:
    """A header and its rows, as printed."""

    header: list[str]
    rows: list[list[str]] = field(default_factory=list)


def decode(content: bytes) -> str:
    """Return the text of a log; PowerShell redirects in UTF-16, and programs print bytes of any encoding."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16", errors="replace")
    return content.decode("utf-8-sig", errors="replace")


def is_log(text: str) -> bool:
    """Say whether a text holds a page, or starts as the log of a run that was to print one."""
    return text.startswith(HEADER) or f"\n{HEADER}" in text or _LOG.match(text) is not None


def errors(text: str) -> tuple[str, ...]:
    """Return the ==ERROR== lines of a log, each once."""
    return tuple(dict.fromkeys(_ERROR.findall(text))) if "==ERROR==" in text else ()


def notes(text: str) -> tuple[str, ...]:
    """Return what a log says of the whole run: that it is made up, and what went wrong beside the launches."""
    simulated = _SIMULATED.findall(text) if "==WARNING== Simulated" in text else []
    made_up = [f"simulated, not measured: {said}" for said in dict.fromkeys(simulated)]
    return (*made_up, *(f"ncu reported: {error}" for error in errors(text)[:3]))


def pages(text: str, path: Path) -> list[Page]:
    """Return the pages of a log; one per header, rows as lists of cells.

    Raises
    ------
    ReadError
        If there is no page or no row, or if the file ends within a row.
    """
    found: list[Page] = []
    for cells in csv.reader(_records(text, path)):
        if cells[:2] == ["ID", "Process ID"]:
            found.append(Page(cells))
        elif found:
            found[-1].rows.append(cells)
    found = [page for page in found if any(row[0] for row in page.rows)]
    if found and text.endswith(",") and "Metric Name" not in found[-1].header:  # the raw page quotes every cell
        raise ReadError(f"{path}: the file ends within a row ({text[-60:]!r}). {AGAIN}.")
    if not found:
        raise ReadError(f"{path}: {_reason(text)}")
    return found


def _records(text: str, path: Path) -> Iterator[str]:
    """Yield the header and the rows, each with the line breaks inside its quotes."""
    record = ""
    for line in _candidates(text):
        record += line
        if record.count('"') % 2 == 0:
            yield record
            record = ""
        else:
            record += "\n"
    if record:
        raise ReadError(f"{path}: the file ends within a row ({record[:60].rstrip()!r}...). {AGAIN}.")


def _candidates(text: str) -> Iterator[str]:
    """Yield the lines that belong to a page; a text that ends within a line is not given the benefit of doubt."""
    *lines, last = text.split("\n")
    inside = False  # whether a quote of the row before is still open
    for line in lines:
        if inside or _ROW.match(line) or line.startswith(HEADER):
            inside ^= line.count('"') % 2 == 1
            yield line.rstrip("\r")
    if inside or last.startswith('"'):
        yield last.rstrip("\r")


def _reason(text: str) -> str:
    """Say why a log holds no kernels, and what to do about it."""
    said = errors(text)
    if said:
        return f"no kernels were profiled; ncu said: {' '.join(said)} Mend that and run ncu again."
    if HEADER in text:
        return "the page has a header and no rows: no kernels were profiled. Check the kernel filter (`-k`, `-c`)."
    launches = len(_PROFILED.findall(text))
    if launches:
        return f"the log lists {launches} profiled kernels and no CSV page. {AGAIN}, or run ncu with `--csv`."
    return "no kernels were profiled. Check that the program launches kernels and the kernel filter (`-k`, `-c`)."

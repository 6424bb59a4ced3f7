"""Where are the CSV pages in what `ncu --csv` printed, among its own log lines and the program's output?

A file is read line by line: what a program prints for hours costs no memory, and a quote that nothing closes costs
one pass over the rest of the file.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from perfkit.errors import ReadError

HEADER = '"ID","Process ID"'
LONGEST = 1 << 24  # characters of a line, or of a row with line breaks in it
AGAIN = "Export the report again with `ncu --import REPORT --csv --page raw --print-units base`"
_BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff")  # PowerShell redirects in UTF-16
_LOG = re.compile(r"\s*==(?:PROF|ERROR|WARNING)== ")
_SIMULATED = "==WARNING== Simulated: "
_ROW = re.compile(r'"\d*","')
_LIKE_A_ROW = re.compile(r'"*[^",\[{(]{0,40}"*,"')  # as a row whose first cell was changed


@dataclass
class Page:
    """A header and its rows, as printed."""

    header: list[str]
    rows: list[list[str]] = field(default_factory=list)

    @property
    def is_details(self) -> bool:
        """Whether a row is a metric or a rule, not a launch."""
        return "Metric Name" in self.header


@dataclass
class Log:
    """What a log holds: pages, and what ncu said in its own lines."""

    pages: list[Page] = field(default_factory=list)
    errors: dict[str, None] = field(default_factory=dict)  # each once, in their order
    simulated: dict[str, None] = field(default_factory=dict)
    profiled: int = 0
    strange: list[str] = field(default_factory=list)  # where lines stand that look like rows and are none

    @property
    def notes(self) -> tuple[str, ...]:
        """What the log says of the whole run: that it is made up, what went wrong, what is left out."""
        changed = (
            "lines that look like rows of the page, but do not begin with the number of a launch, and were left out: "
            f"{len(self.strange):,} (first: {self.strange[0]})"
            if self.strange
            else ""
        )
        return (
            *(f"simulated, not measured: {text}" for text in self.simulated),
            *(f"ncu reported: {error}" for error in [*self.errors][:3]),
            *([changed] if changed else []),
        )


def decode(content: bytes) -> str:
    """Return the text of the beginning of a log; programs print bytes of any encoding."""
    return content.decode(_encoding(content), errors="replace")


def is_log(text: str) -> bool:
    """Say whether a text holds a page, or starts as the log of a run that was to print one."""
    return text.startswith(HEADER) or f"\n{HEADER}" in text or _LOG.match(text) is not None


def clean(text: str) -> str:
    """Return at most 300 characters that a terminal shows and does not obey."""
    shown = "".join(c if c.isprintable() else "?" for c in text[:300])
    return shown + ("..." if len(text) > 300 else "")


def scan(path: Path) -> Log:
    """Return what a log holds; its pages have at least one row each.

    Raises
    ------
    ReadError
        If there is no page or no row, if a row cannot be divided into cells, or if the file ends within a row.
    """
    log = Log()
    rows = _Rows(path, log)
    number, line = 0, ""
    for number, line in enumerate(_lines(path), 1):
        if not rows.take(number, line) and line.startswith("=="):
            _listen(log, line)
    rows.end(number, line)
    log.pages = [page for page in log.pages if any(row[0] for row in page.rows)]
    if not log.pages:
        raise ReadError(f"{path}: {_reason(log, bool(rows.separators))}")
    return log


class _Rows:
    """Headers and rows among the lines of a log; a row goes on over the line breaks inside its quotes."""

    def __init__(self, path: Path, log: Log) -> None:
        self._path = path
        self._log = log
        self._open: list[str] = []  # lines of a row whose quote is still open
        self._size = 0
        self._began = self._ended = 0
        self.separators = 0  # in the header of the page

    def take(self, number: int, line: str) -> bool:
        """Take a line that belongs to a page; False if it does not."""
        if not self._open:
            cut = not line.endswith("\n") and line.startswith('"')  # no benefit of doubt for the last line
            if not line.startswith(HEADER) and not (self.separators and (cut or _ROW.match(line))):
                self._note(number, line)
                return False
            self._began, self._size = number, 0
        self._open.append(line.rstrip("\r\n"))
        self._size += len(line)
        self._ended = number
        is_odd = line.count('"') % 2 == 1  # only the first line and the last of a row over several have an odd number
        if is_odd == (len(self._open) > 1):
            record, self._open = "\n".join(self._open), []
            self._add(record)
        elif self._size > LONGEST:
            self._refuse(f"goes on for more than {LONGEST:,} characters: a quote in it is never closed")
        return True

    def end(self, number: int, line: str) -> None:
        """Refuse a last row that is cut."""
        if self._open:
            self._refuse(f"is cut, or a quote in it is never closed ({self._open[0][:60]!r}...)")
        if not self.separators or not line.endswith(",") or self._ended != number:
            return
        page = self._log.pages[-1]
        # The raw page quotes every cell; on the details page a metric stops early, after its value.
        if not page.is_details or (page.rows and not page.rows[-1][-1] and len(page.rows[-1]) <= _values(page)):
            self._refuse(f"is cut ({line[-60:]!r})")

    def _add(self, record: str) -> None:
        try:
            cells = next(csv.reader([record], strict=True))
        except csv.Error as e:
            self._refuse(f"cannot be divided into cells ({e})")
        if record.startswith(HEADER):
            self.separators = record.count('","')
            self._log.pages.append(Page(cells))
        else:
            self._log.pages[-1].rows.append(cells)

    def _note(self, number: int, line: str) -> None:
        begins = line.startswith('"') or _LIKE_A_ROW.match(line)
        if self.separators and begins and line.count('","') > self.separators // 2:
            self._log.strange.append(f"line {number:,}, {line[:40]!r}")

    def _refuse(self, finding: str) -> None:
        raise ReadError(f"{self._path}: the row that begins in line {self._began:,} {finding}. {AGAIN}.")


def _encoding(head: bytes) -> str:
    return "utf-16" if head[:2] in _BYTE_ORDER_MARKS else "utf-8-sig"


def _lines(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        encoding = _encoding(file.read(2))
    with path.open(encoding=encoding, errors="replace", newline="\n") as text:
        while line := text.readline(LONGEST):
            if len(line) == LONGEST:
                raise ReadError(
                    f"{path}: a line is longer than {LONGEST:,} characters (it begins {line[:40]!r}): "
                    f"this is no page of Nsight Compute. {AGAIN}."
                )
            yield line


def _listen(log: Log, line: str) -> None:
    """Keep what one of ncu's own lines says."""
    text = line.rstrip()
    if text.startswith("==ERROR== "):
        log.errors[clean(text.removeprefix("==ERROR== "))] = None
    elif text.startswith(_SIMULATED):
        log.simulated[clean(text.removeprefix(_SIMULATED))] = None
    log.profiled += text.startswith("==PROF== Profiling ")


def _values(page: Page) -> int:
    """Return how many cells a row of the details page has up to its value."""
    return page.header.index("Metric Value") + 1 if "Metric Value" in page.header else len(page.header)


def _reason(log: Log, has_header: bool) -> str:
    """Say why a log holds no kernels, and what to do about it."""
    if log.errors:
        return f"no kernels were profiled; ncu said: {' '.join([*log.errors][:5])} Mend that and run ncu again."
    if has_header:
        return "the page has a header and no rows: no kernels were profiled. Check the kernel filter (`-k`, `-c`)."
    if log.profiled:
        return f"the log lists {log.profiled:,} profiled kernels and no CSV page. {AGAIN}, or run ncu with `--csv`."
    return "no kernels were profiled. Check that the program launches kernels and the kernel filter (`-k`, `-c`)."

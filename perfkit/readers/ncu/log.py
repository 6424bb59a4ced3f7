"""The CSV pages in what `ncu --csv` printed, among its own log lines and the program's output, and their units.

A file is read line by line: what a program prints for hours costs no memory, and a quote that
nothing closes costs one pass over the rest of the file. Base units are those of `ncu --print-units
base`: ns for durations, byte, hz, % and plain counts; a rate is per second ("byte/s", "sector/s"),
or per cycle. Prefixes are decimal: 1 Kbyte is 1000 bytes. What is no number ("n/a", "no data",
"CachePreferNone", an empty cell) is NaN.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perfkit.errors import ReadError

HEADER = '"ID","Process ID"'
LONGEST = 1 << 24  # characters of a line, or of a row with line breaks in it
AGAIN = "Export the report again with `ncu --import REPORT --csv --page raw --print-units base`"
OPEN = "the last row has no line break, which ncu writes: rows after it may be lost"
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
    is_open: bool = False  # the last row has no line break
    # Where lines stand that look like rows and are none
    strange: list[str] = field(default_factory=list)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the log says of the whole run: that it is made up, what went wrong, what is left out."""
        changed = (
            "lines that look like rows of the page, but do not begin with the number of a launch"
        )
        return (
            *(f"simulated, not measured: {text}" for text in self.simulated),
            *(f"ncu reported: {error}" for error in [*self.errors][:3]),
            *([OPEN] if self.is_open else []),
            *(
                f"{changed}, and were left out: {len(self.strange):,} (first: {line})"
                for line in self.strange[:1]
            ),
        )


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
            # No benefit of doubt for the last line
            cut = not line.endswith("\n") and line.startswith('"')
            if not line.startswith(HEADER) and not (self.separators and (cut or _ROW.match(line))):
                begins = line.startswith('"') or _LIKE_A_ROW.match(line)
                if self.separators and begins and line.count('","') > self.separators // 2:
                    self._log.strange.append(f"line {number:,}, {line[:40]!r}")
                return False
            self._began, self._size = number, 0
        self._open.append(line.rstrip("\r\n"))
        self._size += len(line)
        self._ended = number
        # Only the first line and the last of a row over several have an odd number
        is_odd = line.count('"') % 2 == 1
        if is_odd == (len(self._open) > 1):
            record, self._open = "\n".join(self._open), []
            self._add(record)
        elif self._size > LONGEST:
            self._refuse(
                f"goes on for more than {LONGEST:,} characters: a quote in it is never closed"
            )
        return True

    def end(self, number: int, line: str) -> None:
        """Refuse a last row that is cut; note one that is whole and lacks its line break."""
        if self._open:
            self._refuse(f"is cut, or a quote in it is never closed ({self._open[0][:60]!r}...)")
        if not self.separators or self._ended != number:
            return
        self._log.is_open = not line.endswith("\n")
        if not line.endswith(","):
            return
        page = self._log.pages[-1]
        # The raw page quotes every cell; on the details page a metric stops early, after its value.
        header = page.header
        cells = header.index("Metric Value") + 1 if "Metric Value" in header else len(header)
        if not page.is_details or (
            page.rows and not page.rows[-1][-1] and len(page.rows[-1]) <= cells
        ):
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

    def _refuse(self, finding: str) -> None:
        raise ReadError(
            f"{self._path}: the row that begins in line {self._began:,} {finding}. {AGAIN}."
        )


_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_PER_SECOND = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}
_PER_SECOND |= {f"{name[:-1]}second": factor for name, factor in _PER_SECOND.items()}  # up to 2024
_AMOUNTS: dict[str, tuple[str, float]] = {
    **{
        prefix + name: ("byte", factor)
        for prefix, factor in _PREFIXES.items()
        for name in ("byte", "B")
    },
    **{
        prefix + name: ("hz", factor)
        for prefix, factor in _PREFIXES.items()
        for name in ("hz", "Hz")
    },
    **{name: ("ns", 1e9 / factor) for name, factor in _PER_SECOND.items()},
}
_SPACES = " \u00a0\u202f"  # between thousands, in any notation
_NO_SPACES = dict.fromkeys(map(ord, _SPACES))
_EXPONENT = r"(?:[eE][-+]?\d+)?"
_NOTHING = {
    "",
    "n/a",
    "no data",
    "nan",
    "-nan",
    "nan(ind)",
    "-nan(ind)",
    "inf",
    "-inf",
    "infinity",
    "-infinity",
}
_MISPRINT = re.compile(r"[-+]?[.,]?[0-9]")
# Metrics that are whole numbers: a separator in them stands between thousands.
_WHOLE = re.compile(
    r"device__attribute_\w+|launch__(?:grid|block)_size|launch__thread_count|(?:Grid|Block) Size"
    r"|Threads"
)
_THREE_DIGITS = re.compile(r"[-+]?[1-9][0-9]{0,2}[.,][0-9]{3}")


def _number(point: str, comma: str) -> re.Pattern[str]:
    """Return what a number looks like that is written with this point, and this comma between thousands."""
    grouped = rf"\d{{1,3}}(?:[{comma}{_SPACES}]\d{{3}})+"
    return re.compile(
        rf"[-+]?(?=[{point}]?\d)(?:\d+|{grouped})?(?:[{point}]\d*)?{_EXPONENT}", re.ASCII
    )


def _decisive(point: str, comma: str) -> re.Pattern[str]:
    """Return what a number looks like that cannot be written in the other notation, with thousands in threes."""
    forms = (
        rf"\d{{1,3}}(?:[{comma}{_SPACES}]\d{{3}})+[{point}]\d*",
        rf"\d{{1,3}}(?:[{comma}]\d{{3}}){{2,}}",
        rf"\d*[{point}](?:\d{{0,2}}|\d{{4,}})",
        rf"(?:0|\d{{4,}})[{point}]\d{{3}}",
    )
    either = rf"(?:{'|'.join(forms)}){_EXPONENT}|\d*[{point}]\d*[eE][-+]?\d+"
    return re.compile(rf"[-+]?(?=[{point}]?\d)(?:{either})", re.ASCII)


_NUMBERS = {False: _number(".", ","), True: _number(",", ".")}
_DECISIVE = {False: _decisive(".", ","), True: _decisive(",", ".")}


@dataclass(frozen=True)
class Notation:
    """How a page writes its numbers: the first cell of each kind as (metric, text), None where there is none.

    ``point`` and ``comma`` fit one way of writing only; 1.234 and 1,234 (``..._or_thousands``) fit
    both.
    """

    point: tuple[str, str] | None = None
    comma: tuple[str, str] | None = None
    point_or_thousands: tuple[str, str] | None = None
    comma_or_thousands: tuple[str, str] | None = None


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
    """Return what a log holds; its pages have at least one row each."""
    log = Log()
    rows = _Rows(path, log)
    number, line = 0, ""
    for number, line in enumerate(_lines(path), 1):
        if not rows.take(number, line) and line.startswith("=="):
            # Keep what one of ncu's own lines says.
            text = line.rstrip()
            if text.startswith("==ERROR== "):
                log.errors[clean(text.removeprefix("==ERROR== "))] = None
            elif text.startswith(_SIMULATED):
                log.simulated[clean(text.removeprefix(_SIMULATED))] = None
            log.profiled += text.startswith("==PROF== Profiling ")
    rows.end(number, line)
    log.pages = [page for page in log.pages if any(row[0] for row in page.rows)]
    if not log.pages:
        raise ReadError(f"{path}: {_reason(log, bool(rows.separators))}")
    return log


def _encoding(head: bytes) -> str:
    return "utf-16" if head[:2] in _BYTE_ORDER_MARKS else "utf-8-sig"


def _lines(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        encoding = _encoding(file.read(2))
    with path.open(encoding=encoding, errors="replace", newline="\n") as text:
        while line := text.readline(LONGEST):
            if len(line) == LONGEST:
                raise ReadError(
                    f"{path}: a line is longer than {LONGEST:,} characters (it begins "
                    f"{line[:40]!r}): this is no page of Nsight Compute. {AGAIN}."
                )
            yield line


def _reason(log: Log, has_header: bool) -> str:
    """Say why a log holds no kernels, and what to do about it."""
    if log.errors:
        return (
            f"no kernels were profiled; ncu said: {' '.join([*log.errors][:5])} Mend that and run "
            "ncu again."
        )
    if has_header:
        return (
            "the page has a header and no rows: no kernels were profiled. Check the kernel filter "
            "(`-k`, `-c`)."
        )
    if log.profiled:
        return (
            f"the log lists {log.profiled:,} profiled kernels and no CSV page. {AGAIN}, or run ncu "
            "with `--csv`."
        )
    return (
        "no kernels were profiled. Check that the program launches kernels and the kernel filter "
        "(`-k`, `-c`)."
    )


@cache
def base(unit: str) -> tuple[str, float]:
    """Return the base unit of a unit as any version prints it, and how many of it one is.

    >>> base("usecond"), base("Kbyte/block"), base("cycle/nsecond"), base("sector/us"), base("%")
    (('ns', 1000.0), ('byte/block', 1000.0), ('hz', 1000000000.0), ('sector/s', 1000000.0), ('%', 1.0))
    """
    amount, slash, per = unit.strip().partition("/")
    name, factor = _AMOUNTS.get(amount, (amount, 1.0))
    if not slash:
        return name, factor
    if per in _PER_SECOND:
        return ("hz" if name == "cycle" else f"{name}/s"), factor * _PER_SECOND[per]
    # ncu scales the number and writes the prefix where the byte stands, also below the line: 2234
    # %/byte becomes 2.234 %/Kbyte.
    below, prefix = _AMOUNTS.get(per, (per, 1.0))
    return f"{name}/{below}", factor * prefix


def notation(columns: Iterable[tuple[str, Iterable[str]]]) -> Notation:
    """Return how the values of metrics are written.

    ncu writes fractions with two or six digits and never with three: 5.40 tells, and so do 0.123,
    1,234.5, 12345.678 and 1,234,567. 1,234 alone does not, except in a metric that is a whole
    number, where it is 1234.

    >>> notation([("a", ["54,207", "5,40"])]).comma, notation([("launch__grid_size", ["54,207"])]).point
    (('a', '5,40'), ('launch__grid_size', '54,207'))
    """
    first: dict[str, tuple[str, str]] = {}
    kind_of = cache(_kind)  # forgotten with this call: a page has any number of cells
    for metric, cells in columns:
        for cell in cells:
            if "." not in cell and "," not in cell:
                continue
            kind = kind_of(cell)
            if kind.endswith("thousands") and _WHOLE.fullmatch(metric):
                kind = "point" if "," in cell else "comma"
            first.setdefault(kind, (metric, cell))
    first.pop("", None)
    return Notation(**first)


def _kind(cell: str) -> str:
    """Return the field of `Notation` that a cell belongs to, or "" for what is no number."""
    text = cell.partition(" (")[0]  # without its instances
    if _DECISIVE[False].fullmatch(text):
        return "point"
    if _DECISIVE[True].fullmatch(text):
        return "comma"
    if not _THREE_DIGITS.fullmatch(text):
        return ""
    return "point_or_thousands" if "." in text else "comma_or_thousands"


def numbers(texts: Sequence[str], decimal_commas: bool = False) -> NDArray[np.float64]:
    """Return the cells of a page as float64: NaN where there is no number, infinite where it is too large.

    With `decimal_commas`, which `notation` finds of the whole page, commas are decimal points.

    >>> numbers(["54,207,744", "0.28", "791 (50; 50)", "n/a", ""])
    array([5.4207744e+07, 2.8000000e-01, 7.9100000e+02,           nan,
                     nan])
    """
    try:
        values = np.array([] if decimal_commas else texts, dtype=np.float64)
    except ValueError:
        values = np.array([])
    if len(values) != len(texts):
        values = np.fromiter(
            (_value(text, decimal_commas) for text in texts), np.float64, len(texts)
        )
    for i in np.flatnonzero(np.isinf(values)).tolist():
        if not any(c.isdigit() for c in texts[i]):
            values[i] = np.nan  # "inf": the quotient of a counter and zero
    return values


def misprints(texts: Sequence[str], values: NDArray[np.float64], units: Sequence[str]) -> list[int]:
    """Return where a number should stand and none does, given what `numbers` made of the texts.

    A text that begins as a number should be one, and so should all that has a unit, except words
    for nothing.

    >>> texts = ["8x6", "1,23,4", "n/a", "all", "x7", "7"]
    >>> misprints(texts, numbers(texts), ["", "", "%", "", "%", "%"])
    [0, 1, 4]
    """
    return [
        i
        for i in np.flatnonzero(np.isnan(values)).tolist()
        if _MISPRINT.match(texts[i]) or (units[i] and texts[i].strip().lower() not in _NOTHING)
    ]


def _value(text: str, decimal_commas: bool) -> float:
    plain = text.partition(" (")[0]
    if not _NUMBERS[decimal_commas].fullmatch(plain):
        return float("nan")
    plain = plain.replace(".", "").replace(",", ".") if decimal_commas else plain.replace(",", "")
    return float(plain if plain.isascii() and " " not in plain else plain.translate(_NO_SPACES))

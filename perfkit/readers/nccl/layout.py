"""How is a table of nccl-tests or rccl-tests laid out, and what does one of its rows say?

The header names the columns, those of a measurement twice: out of place, then in place. Versions differ in the columns
before (reduction, root) and after (algorithm, protocol, channels; a time stamp), and launchers put text before a line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from perfkit.readers.nccl.operations import Row, Timing, algorithm, protocol

_HEADER = re.compile(r"#\s+size\s+count\s+type\s.*\b(?:cpu)?time\s+algbw\s+busbw\b")
_TIME = re.compile(r"\b(?:cpu)?time\b")
_NUMBER = re.compile(r"\d{1,18}(?:\.\d{0,9})?(?:e[+-]?\d\d?)?|inf|-?nan")
_TAILS = (r"", r"[A-Z]\w* [A-Z]\w* \d+|N/A N/A N/A", r"\d{4}-\d\d-\d\d [\d:]{8}")  # measured; rccl-tests -A; -S 1
LONGEST = 1000  # characters of a header, with what a launcher puts before it
FIELD = 7  # characters of a time, right-aligned under its label
LEAST = 8  # numbers of a row: size, count, and twice a time with two bandwidths
_ROW = re.compile(r"\s*\d{1,18}\s+\d{1,18}\s+[a-z]\w*(?:\s|$)")


def starts_row(text: str) -> bool:
    """Say whether a line begins as the rows of a table do: size, count, element type."""
    return _ROW.match(text) is not None


def has_row(text: str) -> bool:
    """Say whether a line that no header announces is a row all the same, by its beginning and its numbers."""
    return starts_row(text) and sum(_NUMBER.fullmatch(cell) is not None for cell in text.split()) >= LEAST


def nanoseconds(microseconds: str) -> float:
    """Return a time in ns as exactly as it was printed.

    Examples
    --------
    >>> nanoseconds("1.1"), nanoseconds("1.2e+08"), nanoseconds("N/A")
    (1100.0, 120000000000.0, nan)
    """
    return float("nan") if microseconds in ("N/A", "nan", "-nan") else float(Decimal(microseconds).scaleb(3))


@dataclass(frozen=True)
class Layout:
    """The columns of a table, and what stands before its lines."""

    prefix: re.Pattern[str]
    has_redop: bool
    has_root: bool
    width: int
    middle: int
    counts_wrong: bool
    cpu_time: bool

    def stripped(self, text: str) -> str:
        """Return a line without what the launcher put before it."""
        match = self.prefix.match(text)
        return text[match.end() :] if match else text

    def resembles(self, text: str) -> bool:
        """Say whether a line that is no row has the beginning or as many numbers as one: it is damaged then."""
        return starts_row(text) or sum(_NUMBER.fullmatch(cell) is not None for cell in text.split()) >= self.width

    def row(self, text: str) -> Row | None:
        """Return what a line without its prefix says, None if it is no whole row."""
        if not starts_row(text):
            return None
        cells = text.split()
        has_redop = self.has_redop and len(cells) > 3 and _NUMBER.fullmatch(cells[3]) is None
        before = 3 + has_redop + self.has_root
        if len(cells) <= before:
            return None
        measured, after = self._measured(cells[before:])
        root = cells[before - 1] if self.has_root else "-1"
        if not measured or after is None or re.fullmatch(r"-?\d{1,9}", root) is None:
            return None
        placements = ("out_of_place", "in_place")
        first = [word.start() for word in re.finditer(r"\S+", text)][before]
        if len(measured) == 1 and first >= self.middle:
            placements = placements[::-1]
        timings = tuple(self._timing(*half) for half in zip(placements, measured, strict=False))
        size, count, dtype = cells[:3]
        return Row(int(size), int(count), dtype, cells[3] if has_redop else "", int(root), timings, *after)

    def _measured(self, cells: list[str]) -> tuple[list[list[str]], tuple[str | None, str | None] | None]:
        """Return the one or two measurements of a row, and algorithm and protocol, None if the rest is no rest."""
        measured: list[list[str]] = []
        while len(measured) < 2 and _is_measured(cells[: self.width], self.width):
            measured.append(cells[: self.width])
            cells = cells[self.width :]
        if not any(re.fullmatch(tail, " ".join(cells)) for tail in _TAILS):
            return measured, None
        return measured, (algorithm(cells[0]), protocol(cells[1])) if len(cells) == 3 else (None, None)

    def _timing(self, placement: str, cells: list[str]) -> Timing:
        time, algbw, busbw, checked = (*cells, "N/A")[:4]  # a table without checks may lack their column
        dur_ns = float("nan") if self.cpu_time else nanoseconds(time)
        return Timing(placement, dur_ns, float(algbw), float(busbw), self._wrong(checked))

    def _wrong(self, checked: str) -> float | None:
        """Return the number of wrong elements, or 1 for an error that its asterisk says to be too large."""
        if checked == "N/A":
            return None
        return float(checked.removesuffix("*")) if self.counts_wrong else float(checked.endswith("*"))


def _is_measured(cells: list[str], width: int) -> bool:
    optional = (*cells[:1], *(cell.removesuffix("*") for cell in cells[3:4]), *cells[4:])
    return (
        len(cells) == width
        and all(_NUMBER.fullmatch(cell) or cell == "N/A" for cell in optional)
        and all(_NUMBER.fullmatch(cell) for cell in cells[1:3])
    )


def layout(text: str) -> Layout | None:
    """Return the layout that a line announces, None if it is no header of a table."""
    header = _HEADER.search(text) if len(text) <= LONGEST else None
    if header is None:
        return None
    labels = text[header.start() + 1 :].split()
    times = [i for i, label in enumerate(labels) if label in ("time", "cputime")]
    starts = [time.start() for time in _TIME.finditer(text, header.start())]
    width = times[1] - times[0] if len(times) > 1 else 4
    if width < len(("time", "algbw", "busbw")):
        return None
    any_number = re.sub(r"\d+", r"\\d+", re.escape(text[: header.start()]))
    return Layout(
        prefix=re.compile(any_number),
        has_redop="redop" in labels,
        has_root="root" in labels,
        width=width,
        middle=(starts[1] if len(starts) > 1 else len(text)) - header.start() - FIELD,
        counts_wrong="#wrong" in labels,
        cpu_time=labels[times[0]] == "cputime",
    )

"""The results of nccl-tests and rccl-tests: the tables that they print, and the report that ``-J`` writes.

The header of a table names the columns, those of a measurement twice: out of place, then in place.
Versions differ in the columns before (reduction, root) and after (algorithm, protocol, channels; a
time stamp), and launchers put text before a line. A report may be cut off by the end of the run.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from perfkit.errors import ReadError
from perfkit.format import printable
from perfkit.logs.nccl.log import PARTED, Line, Row, Timing, algorithm, protocol
from perfkit.logs.text import writable

BANNER = re.compile(
    r"# nccl-tests version (\S+)(?: nccl-headers=\d+ nccl-library=(\d{1,9}))?|# nThread:? \d+ "
    r"nGpus:? \d+ "
)
_PROGRAM = re.compile(r"\b\w+_perf\b")
_DEVICE = re.compile(
    r"#\s+Rank\s+(\d{1,9}) (?:Group\s+(\d{1,9}) )?Pid\s+\d+ on\s+(\S+) device\s+(\d{1,9}) "
    r"\[[^\]]*\] (.*\S)"
)
# The same lines where the ``#`` that begins them was taken for markup, as it is in a pasted text.
_UNMARKED = re.compile(
    r"\b(?=nThread:? \d+ nGpus:? \d+ |Using devices\s*$|Rank\s+\d+ (?:Group\s+\d+ )?Pid\s+\d+ on )"
)
_END = re.compile(r"# (?:Avg bus bandwidth|Collective test concluded)")
# What mpirun --tag-output ([1,0]<stdout>:) and mpiexec -prepend-rank ([0]) repeat at each flush of
# the output.
_TAG = re.compile(r"\[\d+(?:,\d+\]<std\w+>:|\])\s*$")
_BINARY = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\ufffd]")

_HEADER = re.compile(r"#\s+size\s+count\s+type\s.*\b(?:cpu)?time\s+algbw\s+busbw\b")
_TIME = re.compile(r"\b(?:cpu)?time\b")
_NUMBER = re.compile(r"\d{1,18}(?:\.\d{0,9})?(?:e[+-]?\d\d?)?|inf|-?nan")
_TAILS = (
    r"",
    r"[A-Z]\w* [A-Z]\w* \d+|N/A N/A N/A",
    r"\d{4}-\d\d-\d\d [\d:]{8}",
)  # measured; rccl-tests -A; -S 1
LONGEST = 1000  # characters of a header, with what a launcher puts before it
FIELD = 7  # characters of a time, right-aligned under its label
ROUNDED = 0.005  # GB/s, half of the last digit of a bandwidth
LEAST = 8  # numbers of a row: size, count, and twice a time with two bandwidths
_ROW = re.compile(r"\s*\d{1,18}\s+\d{1,18}\s+[a-z]\w*(?:\s|$)")

_AGAIN = "Run the test again, or load what it printed"
# objects at the end of a cut report that are tried for the last whole one: a result has up to five
_ENDS = 20


@dataclass(frozen=True)
class Device:
    """A GPU that took part; hosts only tell the nodes apart."""

    group: int
    host: str
    gpu: int
    name: str
    rank: int | None = None


@dataclass
class Table:
    """One benchmark: what the log says around its rows, and the rows."""

    program: str = ""
    named: str = ""
    devices: list[Device] = field(default_factory=list)
    ranks: int | None = None
    version: str = ""
    library: int = 0
    reduced_to: int | None = None
    cpu_time: bool = False
    rows: list[Row] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)
    binary: int | None = None
    out_of_bounds: int = 0
    ended: bool = False
    headed: bool = False


def read_tables(lines: Sequence[Line]) -> list[Table]:
    """Return the tables of a log, those without rows too, and those without a header as far as they have rows."""
    reading = _Reading()
    for line in lines:
        reading.take(line)
    return [table for table in reading.tables if table.headed or table.damaged]


class _Reading:
    """The table that is being read; a header begins one, its footer or the next banner ends it."""

    def __init__(self) -> None:
        self.tables = [Table()]
        self._layout: Layout | None = None
        self._begun = ""
        self._named = ""

    def take(self, line: Line) -> None:
        """Read one more line."""
        text = line.text if "#" in line.text else _UNMARKED.sub("# ", line.text)
        if "#" in text:
            self._comment(text)
        elif self._layout and not self.tables[-1].ended:
            self._inside(self._layout, line)
        else:
            self._name(line.text)
            if (
                starts_row(line.text) and numbers(line.text) >= LEAST
            ):  # a row that no header announces
                self.tables[-1].damaged.append(line.number)

    def _comment(self, text: str) -> None:
        header = layout(text)
        if header:
            self._begin(header)
            return
        if (BANNER.search(text) or "# Using devices" in text) and self.tables[-1].headed:
            self.tables.append(Table())
            self._layout = None
        self._say(text)
        if not self.tables[-1].ended:
            self._name(text)

    def _begin(self, header: Layout) -> None:
        """Begin the rows; a second table under the same devices is another one."""
        last = self.tables[-1]
        if last.headed:
            self.tables.append(
                Table(devices=last.devices, version=last.version, library=last.library)
            )
        table = self.tables[-1]
        table.headed, table.cpu_time, table.named = True, header.cpu_time, self._named
        if table.devices:
            # How many ranks the group of the first device has: its lines, or more where a line of
            # one group is lost.
            listed = sum(device.group == table.devices[0].group for device in table.devices)
            numbers = [device.rank for device in table.devices if device.rank is not None]
            is_one_group = listed == len(table.devices) == len(numbers)
            table.ranks = max(listed, max(numbers) + 1) if is_one_group else listed
        self._layout, self._begun, self._named = header, "", ""

    def _say(self, text: str) -> None:
        """Take what a line says that is no row of the test."""
        table = self.tables[-1]
        if banner := BANNER.search(text):
            table.version, table.library = (
                banner[1] or table.version,
                int(banner[2] or table.library),
            )
        if starting := re.search(r"# Collective test starting: (\w+)", text):
            table.program = starting[1]
        if device := _DEVICE.search(text):
            group, rank = int(device[2] or 0), int(device[1])
            table.devices.append(Device(group, device[3], int(device[4]), device[5], rank))
        if reduced := re.search(r"# Reducing maxBytes to (\d{1,20})", text):
            table.reduced_to = int(reduced[1])
        if bounds := re.search(r"# Out of bounds values\s*: (\d{1,18})", text):
            table.out_of_bounds = int(bounds[1])
        table.ended |= table.headed and _END.search(text) is not None

    def _name(self, text: str) -> None:
        """Keep the last program that is named before a table: its command may have been echoed."""
        program = _PROGRAM.search(text) if "_perf" in text else None
        self._named = program[0] if program else self._named

    def _inside(self, header: Layout, line: Line) -> None:
        """Read a line among the rows, which lines of NCCL may have cut in pieces."""
        table, text = self.tables[-1], header.stripped(line.text)
        whole = self._begun + text
        if _BINARY.search(text) and table.binary is None:
            table.binary = line.number
        if line.cut:
            self._begun = whole if starts_row(whole) else ""
            return
        row = header.row(whole) or header.row(text)
        if row:
            table.rows.append(row)
            self._begun = ""
        elif starts_row(text) or numbers(text) >= header.width:  # a row that is damaged
            table.damaged.append(line.number)
            self._begun = ""


def implied_ranks(rows: Sequence[Row], collective: str | None) -> int | None:
    """Return the number of ranks that bus over algorithm bandwidth tell, None where they fit none or several.

    Both are printed with two digits, so each row allows a range of numbers: what is left of all
    ranges must be one. The factor is 2 (n - 1) / n for an all-reduce, (n - 1) / n for the parted
    (NVIDIA/nccl-tests, doc/PERFORMANCE.md).
    """
    most = 1.0 if collective in PARTED else 0.0
    if collective == "all_reduce":
        most = 2.0
    low, high = 1.0, float("inf")
    for timing in (timing for row in rows for timing in row.timings if most and row.root < 0):
        algbw, busbw = timing.algbw, timing.busbw
        if not (ROUNDED < algbw < float("inf") and ROUNDED < busbw < float("inf")):
            continue
        least = (busbw - ROUNDED) / (algbw + ROUNDED) / most
        largest = (busbw + ROUNDED) / (algbw - ROUNDED) / most
        low = max(low, 1 / (1 - least) if least < 1 else float("inf"))
        high = min(high, 1 / (1 - largest) if largest < 1 else high)
    if not low <= high < float("inf"):
        return None
    return math.floor(high) if math.ceil(low) == math.floor(high) else None


def starts_row(text: str) -> bool:
    """Say whether a line begins as the rows of a table do: size, count, element type."""
    return _ROW.match(text) is not None


def numbers(text: str) -> int:
    """Count the numbers of a line."""
    return sum(_NUMBER.fullmatch(cell) is not None for cell in text.split())


def nanoseconds(microseconds: str) -> float:
    """Return a time in ns as exactly as it was printed.

    >>> nanoseconds("1.1"), nanoseconds("1.2e+08"), nanoseconds("N/A")
    (1100.0, 120000000000.0, nan)
    """
    return (
        float("nan")
        if microseconds in ("N/A", "nan", "-nan")
        else float(Decimal(microseconds).scaleb(3))
    )


@dataclass(frozen=True)
class Layout:
    """The columns of a table, and what stands before its lines."""

    prefix: re.Pattern[str]
    is_tagged: bool
    has_redop: bool
    has_root: bool
    width: int
    middle: int
    counts_wrong: bool
    cpu_time: bool

    def stripped(self, text: str) -> str:
        """Return a line without what the launcher put before it, and before each piece of it that was printed apart."""
        match = self.prefix.match(text)
        rest = text[match.end() :] if match else text
        return self.prefix.sub("", rest) if self.is_tagged else rest

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
        return Row(
            int(size), int(count), dtype, cells[3] if has_redop else "", int(root), timings, *after
        )

    def _measured(
        self, cells: list[str]
    ) -> tuple[list[list[str]], tuple[str | None, str | None] | None]:
        """Return the one or two measurements of a row, and algorithm and protocol, None if the rest is no rest."""
        measured: list[list[str]] = []
        while len(measured) < 2 and _is_measured(cells[: self.width], self.width):
            measured.append(cells[: self.width])
            cells = cells[self.width :]
        if not any(re.fullmatch(tail, " ".join(cells)) for tail in _TAILS):
            return measured, None
        return measured, (algorithm(cells[0]), protocol(cells[1])) if len(cells) == 3 else (
            None,
            None,
        )

    def _timing(self, placement: str, cells: list[str]) -> Timing:
        # A table without checks may lack their column
        time, algbw, busbw, checked = (*cells, "N/A")[:4]
        dur_ns = float("nan") if self.cpu_time else nanoseconds(time)
        wrong = None
        if (
            checked != "N/A"
        ):  # the number of wrong elements, or 1 for an error that its asterisk says to be too large
            wrong = (
                float(checked.removesuffix("*"))
                if self.counts_wrong
                else float(checked.endswith("*"))
            )
        return Timing(placement, dur_ns, float(algbw), float(busbw), wrong)


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
    before = text[: header.start()]
    return Layout(
        prefix=re.compile(re.sub(r"\d+", r"\\d+", re.escape(before))),
        is_tagged=_TAG.search(before) is not None,
        has_redop="redop" in labels,
        has_root="root" in labels,
        width=width,
        middle=(starts[1] if len(starts) > 1 else len(text)) - header.start() - FIELD,
        counts_wrong="#wrong" in labels,
        cpu_time=labels[times[0]] == "cputime",
    )


def is_report(head: str) -> bool:
    """Say whether a text begins as such a report does."""
    return head.lstrip().startswith("{") and all(
        f'"{key}":' in head for key in ("nccl_version", "version", "args")
    )


@dataclass(frozen=True)
class Report:
    """A report's benchmark, its start in ns since 1970, what went wrong, whether it is `whole`, and `repeated` keys."""

    table: Table
    t0_unix_ns: int | None
    error: str
    whole: bool
    repeated: list[str]


def read_report(text: str, path: Path) -> Report:
    """Return what a report says."""
    repeated: list[str] = []
    report, whole = _parsed(text, repeated)
    if not isinstance(report, dict) or not isinstance(report.get("results"), list):
        raise ReadError(f"{path}: the report of nccl-tests ends before its results. {_AGAIN}.")
    try:
        table = _table(report)
        for result in report["results"]:
            halves = (at for at in ("out_of_place", "in_place") if result.get(at) is not None)
            timings = tuple(_timing(at, result[at]) for at in halves)
            size, count, dtype = (
                _whole(result["size"]),
                _whole(result["count"]),
                writable(result["type"]),
            )
            table.rows.append(
                Row(size, count, dtype, str(result["redop"] or ""), int(result["root"]), timings)
            )
        errors = [
            writable(error)
            for error in report.get("errors") or ()
            if isinstance(error, str) and error
        ]
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError) as e:
        why = printable(f"{type(e).__name__}: {e}", 120)
        raise ReadError(f"{path}: not as nccl-tests writes a report ({why}). {_AGAIN}.") from e
    return Report(
        table, _start(report.get("start_time")), errors[0] if errors else "", whole, repeated
    )


def _parsed(text: str, repeated: list[str]) -> tuple[Any, bool]:
    """Return what a text holds; of one that is cut the results up to the last whole one."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Return an object with the last value of each key, and note the keys that are there again."""
        made = dict(pairs)
        if len(made) < len(pairs):
            repeated.extend(
                key for key, count in Counter(key for key, _ in pairs).items() if count > 1
            )
        return made

    try:
        return json.loads(text, parse_float=str, object_pairs_hook=once), True
    except (ValueError, RecursionError):
        end = len(text)
    for _ in range(_ENDS):
        end = text.rfind("}", 0, end)
        for closing in ("]}", "}", ""):
            try:
                return json.loads(
                    text[: end + 1] + closing, parse_float=str, object_pairs_hook=once
                ), False
            except (ValueError, RecursionError):
                continue
    return None, False


def _table(report: dict[str, Any]) -> Table:
    """Return what a report says outside its rows; of each process it lists the first GPU."""
    config = report.get("config") or {}
    listed = report.get("devices") or config.get("devices") or []
    devices = [
        Device(
            int(d.get("group", 0)),
            writable(d["hostname"]),
            _whole(d["device"], 31),
            writable(d["device_info"]),
        )
        for d in listed
    ]
    processes = sum(d.group == devices[0].group for d in devices)
    args = report.get("args") or [""]
    return Table(
        program=re.split(r"[/\\]", writable(args[0]))[-1],
        devices=devices,
        ranks=processes * _whole(config["nthreads"], 15) * _whole(config["ngpus"], 15)
        if processes
        else None,
        library=int(report["nccl_version"]),
        cpu_time=any("cpu_time" in (result.get("in_place") or {}) for result in report["results"]),
        out_of_bounds=int((report.get("out_of_bounds") or {}).get("count", 0)),
        ended="average_bus_bandwidth" in report,
        headed=True,
    )


def _whole(value: object, bits: int = 63) -> int:
    """Return a number that is an id or a size."""
    if not isinstance(value, int) or not 0 <= value < 2**bits:
        raise ValueError(f"{value!r} is no number of bytes, elements or device")
    return value


def _timing(placement: str, measured: dict[str, Any]) -> Timing:
    wrong = measured["nwrong"]
    return Timing(
        placement,
        nanoseconds(str(measured.get("time", "nan"))),
        float(measured["alg_bw"]),
        float(measured["bus_bw"]),
        None if wrong is None else float(wrong),
    )


def _start(printed: object) -> int | None:
    try:
        start = datetime.strptime(str(printed), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(start.timestamp()) * 10**9

"""What did nccl-tests or rccl-tests measure, on which GPUs, and did it finish?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from perfkit.readers.nccl.layout import Layout, has_row, layout, starts_row
from perfkit.readers.nccl.lines import Line
from perfkit.readers.nccl.operations import Row

BANNER = re.compile(
    r"# nccl-tests version (\S+)(?: nccl-headers=\d+ nccl-library=(\d{1,9}))?|# nThread:? \d+ nGpus:? \d+ "
)
_STARTING = re.compile(r"# Collective test starting: (\w+)")
_PROGRAM = re.compile(r"\b\w+_perf\b")
_DEVICES = re.compile(r"# Using devices")
_DEVICE = re.compile(r"#\s+Rank\s+\d+ (?:Group\s+(\d{1,9}) )?Pid\s+\d+ on\s+(\S+) device\s+(\d{1,9}) \[[^\]]*\] (.*\S)")
_OUT_OF_BOUNDS = re.compile(r"# Out of bounds values\s*: (\d{1,18})")
_REDUCED = re.compile(r"# Reducing maxBytes to (\d{1,20})")
_END = re.compile(r"# (?:Avg bus bandwidth|Collective test concluded)")
_BINARY = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\ufffd]")


@dataclass(frozen=True)
class Device:
    """A GPU that took part; hosts only tell the nodes apart."""

    group: int
    host: str
    gpu: int
    name: str


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


def tables(lines: Sequence[Line]) -> list[Table]:
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
        if "#" in line.text:
            self._comment(line.text)
        elif self._layout and not self.tables[-1].ended:
            self._inside(self._layout, line)
        else:
            self._name(line.text)
            if has_row(line.text):
                self.tables[-1].damaged.append(line.number)

    def _comment(self, text: str) -> None:
        found = layout(text)
        if found:
            self._begin(found)
            return
        if (BANNER.search(text) or _DEVICES.search(text)) and self.tables[-1].headed:
            self.tables.append(Table())
            self._layout = None
        self._say(text)
        if not self.tables[-1].ended:
            self._name(text)

    def _begin(self, found: Layout) -> None:
        """Begin the rows; a second table under the same devices is another one."""
        last = self.tables[-1]
        if last.headed:
            self.tables.append(Table(devices=last.devices, version=last.version, library=last.library))
        table = self.tables[-1]
        table.headed, table.cpu_time, table.named = True, found.cpu_time, self._named
        if table.devices:
            table.ranks = sum(device.group == table.devices[0].group for device in table.devices)
        self._layout, self._begun, self._named = found, "", ""

    def _say(self, text: str) -> None:
        """Take what a line of the test says beside its rows."""
        table = self.tables[-1]
        if banner := BANNER.search(text):
            table.version, table.library = banner[1] or table.version, int(banner[2] or table.library)
        if starting := _STARTING.search(text):
            table.program = starting[1]
        if device := _DEVICE.search(text):
            table.devices.append(Device(int(device[1] or 0), device[2], int(device[3]), device[4]))
        if reduced := _REDUCED.search(text):
            table.reduced_to = int(reduced[1])
        if bounds := _OUT_OF_BOUNDS.search(text):
            table.out_of_bounds = int(bounds[1])
        table.ended |= table.headed and _END.search(text) is not None

    def _name(self, text: str) -> None:
        """Keep the last program that is named before a table: its command may have been echoed."""
        program = _PROGRAM.search(text) if "_perf" in text else None
        self._named = program[0] if program else self._named

    def _inside(self, found: Layout, line: Line) -> None:
        """Read a line among the rows, which lines of NCCL may have cut in pieces."""
        table, text = self.tables[-1], found.stripped(line.text)
        whole = self._begun + text
        if _BINARY.search(text) and table.binary is None:
            table.binary = line.number
        if line.cut:
            self._begun = whole if starts_row(whole) else ""
            return
        row = found.row(whole) or found.row(text)
        if row:
            table.rows.append(row)
            self._begun = ""
        elif found.resembles(text):
            table.damaged.append(line.number)
            self._begun = ""

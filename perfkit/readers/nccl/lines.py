"""Which lines of a log did NCCL write, and what stands between them?

NCCL writes ``host:pid:tid [device] NCCL INFO text`` into the program's own output, also into the middle of a line that
the program has begun, and lines of several ranks run into each other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from perfkit.readers.text import lines

_MARK = re.compile(r"NCCL (INFO|WARN|TRACE|ABORT|CALL) ")
_WRITER = re.compile(r"([^\s:]{1,80}):(\d{1,10}):\d{1,10} \[(\d{1,4})\] (?:\S{1,120} ){0,3}$")
_REACH = 400  # characters before NCCL's mark in which its writer is looked for


class Said(NamedTuple):
    """A line of NCCL: which process wrote it, for which of its GPUs, and what."""

    host: str
    pid: int
    gpu: int
    level: str
    text: str

    @property
    def process(self) -> tuple[str, int, int]:
        """What a rank is known by: host, process and GPU."""
        return self[:3]


class Line(NamedTuple):
    """A line of the program, or, `cut`, what of it came before a line of NCCL."""

    number: int
    text: str
    cut: bool


@dataclass(frozen=True)
class Log:
    """What is in a log: lines of the program and of NCCL, how many of these are not whole, and notes on the text."""

    lines: list[Line]
    said: list[Said]
    interleaved: int
    notes: Sequence[str] = ()


def decode(text: bytes) -> str:
    """Return the text of a log; what cuts into it need not be UTF-8."""
    return text.decode("utf-8-sig", errors="replace")


def read(text: str, path: Path) -> Log:
    """Return the lines of the log at `path`, without the last one if the file ends in its middle.

    Raises
    ------
    ReadError
        If there is binary data in it.
    """
    whole, notes = lines(text, path)
    return replace(split(whole), notes=notes)


def split(printed: list[str]) -> Log:
    """Return what NCCL wrote and what the program wrote, each in its order."""
    log = Log([], [], 0)
    at: list[int] = []
    interleaved = 0
    for number, text in enumerate(printed, 1):
        found = _parted(text) if "NCCL " in text else None
        if found is None:
            interleaved += ": opCount " in text  # a call whose process cannot be read
            log.lines.append(Line(number, text, False))
            continue
        at.append(len(log.lines))
        log.lines.append(Line(number, found[0], True))
        log.said.append(found[1])
        interleaved += found[2]
    _unglue(log, at)
    return replace(log, interleaved=interleaved)


def _parted(text: str) -> tuple[str, Said, int] | None:
    """Return the program's part of a line, NCCL's, and how many lines of NCCL that one interrupts."""
    marks = []
    for mark in _MARK.finditer(text):
        writer = _WRITER.search(text, max(0, mark.start() - _REACH), mark.start())
        if writer:
            marks.append((writer, mark))
    if not marks:
        return None
    host, pid, gpu = marks[-1][0].groups()
    level, end = marks[-1][1][1], marks[-1][1].end()
    return text[: marks[0][0].start()], Said(host, int(pid), int(gpu), level, text[end:].strip()), len(marks) - 1


def _unglue(log: Log, at: list[int]) -> None:
    """Give a line back its end where that ran into the name of NCCL's host (``-1node7:...``)."""
    hosts = Counter(said.host for said in log.said)
    known = [host for host, count in hosts.items() if count > 1]
    for place, (line, said) in enumerate(zip(at, log.said, strict=True)):
        if hosts[said.host] == 1 and log.lines[line].text.strip():
            host = next((host for host in known if said.host.endswith(host)), said.host)
            glued = said.host.removesuffix(host)
            log.said[place] = said._replace(host=host)
            log.lines[line] = log.lines[line]._replace(text=log.lines[line].text + glued)

"""Which lines of a log did NCCL write, and what stands between them?

NCCL writes ``host:pid:tid [device] NCCL INFO text`` into the program's own output, also into the middle of a line that
the program has begun, and lines of several ranks run into each other.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from perfkit.errors import ReadError

_MARK = re.compile(r"NCCL (INFO|WARN|TRACE|ABORT|CALL) ")
_WRITER = re.compile(r"([^\s:]{1,80}):(\d{1,10}):\d{1,10} \[(\d{1,4})\] (?:\S{1,120} ){0,3}$")
_REACH = 400  # characters before NCCL's mark in which its writer is looked for
_NO_TEXT = re.compile(r"[\x01-\x06\x0e-\x1a\x1c-\x1f\ufffd]")  # a bar of progress has \b, colours have \x1b
_ENDS = re.compile(r"\r\n|\r|\n")


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
    """What is in a log: lines of the program and of NCCL, how many of these are not whole, and how it ends.

    `foreign` are the numbers of the lines that hold bytes which are no text.
    """

    lines: list[Line]
    said: list[Said]
    interleaved: int
    whole: bool
    foreign: list[int] = field(default_factory=list)


def content(path: Path) -> bytes:
    """Return the bytes of a file."""
    try:
        return path.read_bytes()
    except OSError as e:
        raise ReadError(f"{path}: the file cannot be opened ({e.strerror}). Check its permissions.") from e


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
    if "\0" in text:
        line = len(_ENDS.findall(text, 0, text.index("\0"))) + 1
        raise ReadError(f"{path}: binary data (zero bytes) in line {line}. Copy the log again or cut that part out.")
    *lines, last = _ENDS.split(text)
    foreign = [n for n, line in enumerate(lines, 1) if _NO_TEXT.search(line)] if _NO_TEXT.search(text) else []
    return replace(split(lines, whole=not last), foreign=foreign)


def split(lines: list[str], whole: bool) -> Log:
    """Return what NCCL wrote and what the program wrote, each in its order."""
    log = Log([], [], 0, whole)
    at: list[int] = []
    interleaved = 0
    for number, text in enumerate(lines, 1):
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
    known = [host for host, lines in hosts.items() if lines > 1]
    for place, (line, said) in enumerate(zip(at, log.said, strict=True)):
        if hosts[said.host] == 1 and log.lines[line].text.strip():
            host = next((host for host in known if said.host.endswith(host)), said.host)
            glued = said.host.removesuffix(host)
            log.said[place] = said._replace(host=host)
            log.lines[line] = log.lines[line]._replace(text=log.lines[line].text + glued)

"""Run a program under a profiler: it gets signals, leaves nothing behind, keeps its status."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from perfkit.errors import PerfkitError, handled

PATIENCE_S = 10  # for what runs beside the program to end
NOT_FOUND = 127  # the exit status of a shell for a command that is not there
SIGNALLED = 128  # the exit status of a shell for a process that a signal ended, less the signal


def run(argv: Sequence[str]) -> int:
    """Run a command in the foreground and return its exit status, as a shell would.

    The command has a group of processes of its own. A signal to perfkit goes to this group, and a
    second one kills it. Ctrl-C reaches the group from the terminal.
    """
    try:
        process = subprocess.Popen(argv, process_group=0)
    except OSError as e:
        raise PerfkitError(f"{argv[0]}: cannot be run ({os.strerror(e.errno or 0)}).") from e
    heard: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL if heard else number)
        heard.append(number)

    with handled(forward), _in_foreground(process.pid):
        status = process.wait()
    if heard:
        with suppress(ProcessLookupError):  # what the program has left behind
            os.killpg(process.pid, signal.SIGKILL)
    return status if status >= 0 else SIGNALLED - status


@contextmanager
def _in_foreground(group: int) -> Iterator[None]:
    """Let a group of processes read from the terminal, and hear its Ctrl-C, if perfkit may."""
    terminal = sys.__stdin__.fileno() if sys.__stdin__ and sys.__stdin__.isatty() else None
    if terminal is None or os.tcgetpgrp(terminal) != os.getpgrp():
        yield
        return
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # else the terminal stops perfkit
    try:
        os.tcsetpgrp(terminal, group)
        yield
    finally:
        os.tcsetpgrp(terminal, os.getpgrp())
        signal.signal(signal.SIGTTOU, before)


@contextmanager
def beside(argv: Sequence[str]) -> Iterator[None]:
    """Run a command until the block ends."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(argv, stdin=quiet, stdout=quiet, stderr=quiet, process_group=0)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

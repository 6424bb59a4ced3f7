"""What the command prints: text without control characters, and one line for each failure.

Functions
---------
say        print text that may come from outside

Classes
-------
Errors     the group of commands, which turns what fails outside perfkit into one line and status 2
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

import click

from perfkit.errors import PerfkitError
from perfkit.format import elided

LONGEST = 1500  # characters of a message
ENDING = ("SIGINT", "SIGTERM", "SIGHUP")
PATIENCE = 3.0  # s in which a second signal changes nothing: perfkit is ending its kernels


def say(text: object, *, err: bool = False) -> None:
    """Print text; a control or direction character in it, which a terminal would obey, becomes �."""
    click.echo(_clean(str(text)), err=err)


def _clean(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in text)


class Errors(click.Group):
    """Prints what perfkit refuses, and what fails outside it, as one line on standard error; the status is then 2."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; see the class."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # not all encodings know all that a file may be called
        try:
            with _signals():
                return super().invoke(ctx)
        except PerfkitError as e:
            problem = str(e)
        except click.ClickException as e:
            if e.message == _clean(e.message):
                raise
            raise click.UsageError(elided(e.format_message(), LONGEST), ctx) from e
        except KeyboardInterrupt as e:
            problem = f"stopped by {e}." if str(e) else "stopped."
        except BrokenPipeError:  # whoever reads the output has read enough
            problem = ""
        except OSError as e:
            what = os.strerror(e.errno) if e.errno else str(e)
            problem = f"{os.fsdecode(e.filename)}: {what}." if isinstance(e.filename, str | bytes) else f"{what}."
        except MemoryError as e:
            problem = f"out of memory ({e}). Choose a part of the run with --window, or a machine with more memory."
        return _fail(problem)


def _fail(problem: str) -> NoReturn:
    """Print a problem and exit with status 2."""
    with suppress(OSError):  # a terminal that is closed
        if problem:
            click.echo(f"perfkit: {elided(problem, LONGEST)}", err=True)
    try:
        if sys.stdout:  # it may have been closed before perfkit began
            sys.stdout.flush()
    except OSError:  # Python would flush once more at its end, and complain
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    gc.freeze()  # Python's last look through all objects takes a second on a busy machine
    sys.exit(2)


@contextmanager
def _signals() -> Iterator[None]:
    """Raise KeyboardInterrupt with the name of the first signal that asks perfkit to end.

    A command that ends closes what it has opened, which another signal must not interrupt. After `PATIENCE` a signal
    acts as it does without perfkit. Signals that are ignored, as those of a program under ``nohup`` are, stay so.
    """
    if threading.current_thread() is not threading.main_thread():  # Python allows no other to handle signals
        yield
        return
    began: list[float] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if not began:
            began.append(time.monotonic())
            raise KeyboardInterrupt(signal.Signals(number).name)
        if time.monotonic() - began[0] > PATIENCE:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    numbers = [getattr(signal, name) for name in ENDING if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    caught = [number for number in numbers if before[number] not in (signal.SIG_IGN, None)]
    for number in caught:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, before[number])

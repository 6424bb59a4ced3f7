"""What the `perfkit` command says on a terminal, and how it ends where something fails or a signal asks it to."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

import click

from perfkit.errors import PerfkitError, handled
from perfkit.format import elided, visible

LONGEST = 1500  # characters of a message
WITHOUT_DOCSTRINGS = (
    "Python runs without docstrings (PYTHONOPTIMIZE=2 or -OO), which the charts are made with. "
    "Run it with PYTHONOPTIMIZE=1 or less."
)
PATIENCE = 3.0  # s in which a second signal changes nothing: perfkit is ending its kernels


def say(text: object, *, err: bool = False) -> None:
    """Print text; a control or direction character in it, which a terminal would obey, becomes �."""
    click.echo(_clean(str(text)), err=err)


def _clean(text: str) -> str:
    return visible(text, keep="\n")


def say_above(text: str) -> None:
    """Print a text, if it is not empty, above a progress bar, which the next step draws anew."""
    if not text:
        return
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)
    say(text)


def say_note(text: str) -> None:
    """Print a note on standard error."""
    say(f"note: {text}", err=True)


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int, str], None]]:
    """Yield what shows how many steps are done, and the time left: a bar for a person, else a line for each step."""
    begun = time.monotonic()
    if not sys.stderr.isatty():
        yield lambda done, of, what: say(
            f"{label}: {done} of {of} done: {what} ({_left(begun, done, of)})", err=True
        )
        return
    with click.progressbar(
        length=1,
        label=label,
        file=sys.stderr,
        show_eta=True,
        item_show_func=lambda what: what or "",
    ) as bar:

        def progress(done: int, of: int, what: str) -> None:
            bar.length = of
            bar.update(done - bar.pos, what)

        yield progress


def _left(begun: float, done: int, of: int) -> str:
    passed = time.monotonic() - begun
    return (
        f"{passed:.0f} s, about {passed / done * (of - done):.0f} s left"
        if done < of
        else f"{passed:.0f} s in all"
    )


class Errors(click.Group):
    """Prints what perfkit refuses, and what fails outside it, as one line on standard error; the status is then 2."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        _open_streams()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(
                    errors="backslashreplace"
                )  # not all encodings know all that a file may be called
        try:
            if sys.flags.optimize > 1:
                raise PerfkitError(WITHOUT_DOCSTRINGS)
            with _signals():
                return super().invoke(ctx)
        except PerfkitError as e:
            problem = str(e)
        except (click.exceptions.Exit, click.Abort):  # a command has ended, or was asked to
            raise
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
            problem = (
                f"{os.fsdecode(e.filename)}: {what}."
                if isinstance(e.filename, str | bytes)
                else f"{what}."
            )
        except MemoryError as e:
            problem = f"out of memory ({e}). Choose a part of the run with --window, or a machine with more memory."
        except Exception as e:  # noqa: BLE001  status 1 would say that something got worse
            traceback.print_exc()
            name = type(e).__name__
            problem = f"a fault of perfkit ({name}: {elided(str(e), 200)}). Please report it with the lines above."
        return _fail(problem)


def _open_streams() -> None:
    """Open what the caller has closed: the next file would get its number, and what libraries print."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        opened = os.open(os.devnull, os.O_RDWR)  # the number is free, unless a library has taken it
        os.set_inheritable(opened, True)
        setattr(sys, name, open(opened, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115


def _fail(problem: str) -> NoReturn:
    with suppress(OSError):  # a terminal that is closed
        if problem:
            click.echo(f"perfkit: {elided(problem, LONGEST)}", err=True)
    try:
        sys.stdout.flush()
    except OSError:  # Python would flush once more at its end, and complain
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(2)


@contextmanager
def _signals() -> Iterator[None]:
    """Raise KeyboardInterrupt with the name of the first signal that asks perfkit to end.

    A command that ends closes what it has opened, which another signal must not interrupt. After `PATIENCE` a signal
    acts as it does without perfkit. Signals that are ignored, as those of a program under ``nohup`` are, stay so.
    """
    if (
        threading.current_thread() is not threading.main_thread()
    ):  # Python allows no other to handle signals
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

    with handled(stop):
        yield

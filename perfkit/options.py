"""Types of options of the command line: times, windows, counts and lists as people write them."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from perfkit import given
from perfkit.job import DTYPES, Job
from perfkit.paths import check

T = TypeVar("T")


class Parsed(click.ParamType[T]):
    """A text that a function reads; the words in which that refuses one, as ValueError, are click's."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        """Return what the text stands for; a default, which is no text, as it is."""
        try:
            return self._parse(value) if isinstance(value, str) else cast(T, value)
        except ValueError as e:
            self.fail(str(e), param, ctx)


def part(text: str) -> tuple[int, int]:
    """Return a part of a job array such as 3/8, from 1/8 to 8/8."""
    number, slash, of = text.partition("/")
    if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise ValueError(f"{text!r} is no part I/N, for example 3/8")
    return int(number), int(of)


def time(text: str) -> float:
    """Return a time such as 2026-01-31T10:00:00Z as seconds since 1970 UTC; its zone is never guessed."""
    with suppress(ValueError):
        return float(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time such as 2026-01-31T10:00:00Z") from None
    if when.tzinfo is None:
        raise ValueError(
            f"{text!r} has no time zone: append Z for UTC, or an offset such as +02:00"
        )
    return when.timestamp()


def count(text: str) -> float:
    """Return a count such as 7e9 or 7B.

    >>> count("7B"), count("4_096")
    (7000000000.0, 4096.0)
    """
    sizes = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
    try:
        return float(text.rstrip("KMBT")) * sizes.get(text[-1:], 1.0)
    except ValueError:
        raise ValueError(f"{text!r} is no number, for example 7e9 or 7B") from None


RUN = Parsed("path", lambda text: check(Path(text)))  # of a profile, a folder, or a report
COUNT = Parsed("count", count)
NUMBERS = Parsed("numbers", given.numbers)
WORDS = Parsed("words", given.words)
WINDOW = Parsed("start:end", given.window)
PART = Parsed("I/N", part)
TIME = Parsed("time", time)

# What only the user knows, as options of a command by the field of `Job`.
JOB = (
    click.option(
        "--params", "parameters", type=COUNT, help="Parameters of the model, for example 7e9 or 7B."
    ),
    click.option(
        "--tokens-per-step", type=COUNT, help="Tokens of one optimizer step on all GPUs together."
    ),
    click.option(
        "--samples-per-step", type=COUNT, help="Samples of one optimizer step on all GPUs together."
    ),
    click.option(
        "--total-tokens", type=COUNT, help="Tokens of the whole training, for the time it takes."
    ),
    click.option(
        "--dtype",
        type=click.Choice([*DTYPES]),
        help="Format of most of the arithmetic, for the MFU.",
    ),
    click.option(
        "--gpus-total",
        "--world-size",
        "world_size",
        type=int,
        help="GPUs of the job, if not all were recorded.",
    ),
    click.option(
        "--price-per-gpu-hour", type=float, help="Price of one GPU for an hour, in any currency."
    ),
    click.option("--hours", type=float, help="Hours that the whole job takes, for its cost."),
)


def job(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options JOB; it gets them as one argument, `job`, a dictionary of the fields of `Job`."""

    @wraps(command)
    def gathered(**options: Any) -> Any:
        said = {field.name: options.pop(field.name) for field in fields(Job)}
        return command(job=said, **options)

    for option in reversed(JOB):
        gathered = option(gathered)
    return gathered

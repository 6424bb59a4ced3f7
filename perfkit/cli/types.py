"""What is written on the command line: times, windows, lists."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "µs": 1_000, "ns": 1}


class DurationType(click.ParamType[int]):
    """A time with its unit, such as 5s or 200ms, as nanoseconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return nanoseconds."""
        text = str(value)
        number = text.rstrip("nmuµs")
        try:
            return round(float(number) * UNITS[text[len(number) :]])
        except (KeyError, ValueError, OverflowError):
            self.fail(f"{text!r} is no time with a unit of {', '.join(UNITS)}, for example 5s or 200ms", param, ctx)


class WindowType(click.ParamType[tuple[int, int]]):
    """A window such as 5s:7.5s or 200ms:900ms, as nanoseconds."""

    name = "start:end"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Return (start_ns, end_ns)."""
        first, colon, last = str(value).partition(":")
        if not colon:
            self.fail(f"{value!r} is not START:END, for example 5s:7s", param, ctx)
        time = DurationType()
        return time.convert(first, param, ctx), time.convert(last, param, ctx)


class NumbersType(click.ParamType[tuple[int, ...]]):
    """Ranks or GPUs such as 0,2 as a tuple."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the numbers."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is no list of numbers, for example 0,2", param, ctx)


class WordsType(click.ParamType[tuple[str, ...]]):
    """Words such as gemm,attention as a tuple."""

    name = "words"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Return the words."""
        return value if isinstance(value, tuple) else tuple(word.strip() for word in str(value).split(","))


class WhenType(click.ParamType[float]):
    """A time such as 2026-01-31T10:00:00Z or seconds since 1970, as the latter; its zone is never guessed."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds since 1970 UTC."""
        try:
            return float(value)
        except ValueError:
            pass
        try:
            when = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is no time such as 2026-01-31T10:00:00Z", param, ctx)
        if when.tzinfo is None:
            self.fail(f"{value!r} has no time zone: append Z for UTC, or an offset such as +02:00", param, ctx)
        return when.timestamp()

"""Files beside a run that a person wrote: `perfkit.toml`, a budget, published figures. They may hold anything."""

import codecs
import json
import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfkit.errors import ReadError
from perfkit.format import printable, size, utf8

UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
LARGEST = 1 << 20  # bytes: what a person writes is shorter


def toml(path: Path) -> dict[str, Any]:
    """Return what a TOML file holds; ReadError if it cannot be read, is larger than LARGEST, or is no TOML."""
    stored: dict[str, Any] = _parsed(path, tomllib.loads, "TOML")
    return stored


def json_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, an empty one if it holds anything else; ReadError as of `toml`."""
    stored = _parsed(path, json.loads, "JSON")
    return stored if isinstance(stored, dict) else {}


def _parsed(path: Path, parse: Callable[[str], Any], form: str) -> Any:
    try:
        if path.stat().st_size > LARGEST:
            raise ReadError(
                f"{path}: larger than {size(LARGEST)}. Give a file that a person wrote."
            )
        data = path.read_bytes()
        if data.startswith(UTF_16) and len(data) % 2:
            raise ValueError("it ends inside of a character")
        return parse(utf8(data).decode())
    except OSError as e:
        raise ReadError(
            f"{path}: cannot be read ({e.strerror}). Check the path and its permissions."
        ) from e
    except RecursionError as e:
        raise ReadError(
            f"{path}: cannot be read: its tables or lists are nested too deeply. Mend the file."
        ) from e
    except ValueError as e:
        raise ReadError(
            f"{path}: cannot be read: {printable(e, 200)}. Write it as {form}, in UTF-8."
        ) from e


def finite(value: object) -> float | None:
    """Return a value as a float if it is a number that a float can hold, else None.

    >>> finite(3), finite("3"), finite(True), finite(10**400), finite(float("nan"))
    (3.0, None, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None

"""Limits of figures, written by a person in a TOML file."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfkit.analysis.compare import TOLERANCE
from perfkit.errors import ReadError
from perfkit.format import printable

KEYS = {"tolerance": "a number of at least 0", "max": "a number", "min": "a number", "ignore": "true or false"}


@dataclass(frozen=True)
class Budget:
    """Limits: a tolerance for all figures, and what is said of single ones, by id."""

    path: str = ""
    tolerance: float = TOLERANCE
    figures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def load_budget(path: str | Path) -> Budget:
    """Read a budget.

    Raises
    ------
    ReadError
        If the file cannot be read, is no TOML, or holds an unknown key or a value that is none; the message names
        the file, the key and what it can be.
    """
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise ReadError(f"{path}: the budget cannot be read: {printable(e, 200)}. Write it as TOML.") from e
    legal = {"tolerance": KEYS["tolerance"], "figures": "tables, one per figure"}
    _known(path, "", content, legal)
    figures = content.get("figures", {})
    for name, limits in figures.items():
        _known(path, f"figures.{name}.", limits, KEYS)
    return Budget(str(path), float(content.get("tolerance", TOLERANCE)), figures)


def _known(path: str | Path, place: str, table: object, legal: Mapping[str, str]) -> None:
    """Refuse a key that has no meaning, and a value that is none for its key."""
    if not isinstance(table, dict):
        name = printable(place.rstrip("."), 80)
        raise ReadError(f"{path}: {name} is {printable(table, 40)!r}, no table. Give it {', '.join(legal)}.")
    for key, value in table.items():
        name = printable(f"{place}{key}", 80)
        if key not in legal:
            raise ReadError(f"{path}: the key {name} is unknown. Use {', '.join(legal)}.")
        plain = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        fits = {"ignore": isinstance(value, bool), "figures": isinstance(value, dict)}.get(key, plain)
        if not fits or (key == "tolerance" and value < 0):
            raise ReadError(f"{path}: {name} is {printable(value, 40)!r}. Give {legal[key]}.")

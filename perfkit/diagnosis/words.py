"""Words of figures and tiles, as data in `words.toml`."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any


@cache
def words(table: str) -> Any:
    """Return one of the tables of `words.toml`."""
    with Path(__file__).with_suffix(".toml").open("rb") as file:
        return tomllib.load(file)[table]

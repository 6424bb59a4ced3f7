"""Gains that someone published, multiplied, beside what the shares they rest on allow."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import NamedTuple

from perfkit.analysis.speedup import bounds
from perfkit.format import Shown, number, percent
from perfkit.report.published import content
from perfkit.report.shown import note

PERCENT = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*%")
FACTOR = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*x\s*$", re.IGNORECASE)


class Promise(NamedTuple):
    """A published gain: the share before and after, 0..1, and the factor it was said to give."""

    before: float
    after: float
    factor: float


def against_promised(path: str = "") -> Shown:
    """Return why the published gains cannot be multiplied, and what their shares allow; a sentence if there are none.

    Parameters
    ----------
    path
        JSON file with `optimization_recommendations`: an object of objects with `current` and `target` (text that
        begins with a percentage) and `potential_speedup` (such as 1.9x); empty for none.

    Raises
    ------
    PerfkitError
        If the file cannot be read.

    References
    ----------
    `analysis.speedup.bounds`.
    """
    found = promises(Path(path)) if path else []
    return note(_judged(found) if len(found) > 1 else "No gains were published beside the figures.")


def promises(path: Path) -> list[Promise]:
    """Return the published gains of a file; what does not read as one is left out."""
    items = content(path).get("optimization_recommendations", {})
    rows = items.values() if isinstance(items, dict) else []
    found = (_promise(row) for row in rows if isinstance(row, dict))
    return [one for one in found if one]


def _promise(row: dict[str, object]) -> Promise | None:
    texts = (row.get("current"), row.get("target"), row.get("potential_speedup"))
    read = [pattern.match(str(text)) for pattern, text in zip((PERCENT, PERCENT, FACTOR), texts, strict=True)]
    before, after, factor = (float(match[1]) if match else math.nan for match in read)
    return Promise(before / 100, after / 100, factor) if before <= 100 and after <= 100 and factor > 0 else None


def _judged(found: list[Promise]) -> str:
    product = math.prod(one.factor for one in found)
    factors = ", ".join(f"{number(one.factor)}x" for one in found)
    said = [f"Published were gains of {factors}, multiplied to {product:.1f}x, which cannot be."]
    shares = [one for one in found if one.after < one.before]
    outcomes = len(found) - len(shares)
    if outcomes:
        said.append(f"{outcomes} of them is an outcome, utilisation, which the others raise: it counts them twice.")
    if shares:
        said.append(_bounded(shares))
    return " ".join(said)


def _bounded(shares: list[Promise]) -> str:
    """Say what the shares allow, on one timeline."""
    removed = [1 - one.after / one.before for one in shares]
    at_most = bounds([one.before for one in shares], removed).high
    total = sum(one.before for one in shares)
    listed = " and ".join(percent(one.before) for one in shares)
    overlap = f", so that they overlap by {percent(total - 1)} at least" if total > 1 else ""
    allowed = f"together they allow {at_most:.2f}x at most"
    return f"Shares of {listed} of one time make {percent(total)} of it{overlap}; {allowed}."

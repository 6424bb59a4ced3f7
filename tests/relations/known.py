"""The captures on which each relation is tested, and those that break it, each with what breaks.

They stand in ``cases.toml``: a table per relation, with the list ``holds`` and the table ``broken``. A
relation that holds again fails its test until ``python -m tests.relations --mend`` has moved its line to
``holds``. ``broken_of_all`` is how many of all captures break it, as ``--count`` found; it is missing
where nobody has counted.
"""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).with_name("cases.toml")
HEAD = "# Captures on which relations are tested: `holds`, and `broken` with what breaks. See known.py.\n"
COUNT = "broken_of_all"
Cases = dict[str, dict[str, Any]]


def read() -> Cases:
    """Return the tables of the file by relation."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def parameters(cuts: bool) -> list[Any]:
    """Return relation and capture of each case, of the cuts or of the others; the broken ones must fail.

    One case of each relation is tried in any run, on another capture than that of the relation before; the
    others are of the matrix.
    """
    made = []
    for number, (relation, cases) in enumerate(read().items()):
        if relation.startswith("cut") == cuts:
            reasons = {**dict.fromkeys(cases["holds"], ""), **cases["broken"]}
            tried = [*reasons][number % len(reasons)]
            made += [_parameter(relation, *case, case[0] == tried) for case in reasons.items()]
    return made


def _parameter(relation: str, capture: str, reason: str, is_tried: bool) -> Any:
    marks = [pytest.mark.xfail(reason=reason, strict=True, raises=AssertionError)] if reason else []
    if not is_tried:
        marks.append(pytest.mark.matrix)
    return pytest.param(relation, capture, id=f"{relation}-{capture}", marks=marks)


def mended(cases: Cases, outcomes: dict[tuple[str, str], list[str]]) -> Cases:
    """Return the cases with those that hold now moved to `holds`; no case moves the other way."""
    made = {}
    for relation, before in cases.items():
        again = [name for name in before["broken"] if outcomes.get((relation, name)) == []]
        broken = {name: why for name, why in before["broken"].items() if name not in again}
        made[relation] = {**before, "holds": sorted([*before["holds"], *again]), "broken": broken}
    return made


def written(cases: Cases) -> str:
    """Return the file's text.

    >>> print(written({"cut_gpu": {"holds": ["b"], "broken": {"a": "why"}, "broken_of_all": 3}}).partition("\\n\\n")[2])
    [cut_gpu]
    broken_of_all = 3
    holds = [
        "b",
    ]
    [cut_gpu.broken]
    "a" = "why"
    <BLANKLINE>
    """
    lines = [HEAD]
    for relation, of in cases.items():
        lines.append(f"[{relation}]")
        if COUNT in of:
            lines.append(f"{COUNT} = {of[COUNT]}")
        lines.append("holds = [")
        lines += [
            *(f"    {json.dumps(name)}," for name in of["holds"]),
            "]",
            f"[{relation}.broken]",
        ]
        lines += [
            *(f"{json.dumps(name)} = {json.dumps(why)}" for name, why in of["broken"].items()),
            "",
        ]
    return "\n".join(lines)

"""A case: a recording, what is right to conclude of it, and the facts by which a test knows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from cases.facts import Test
from cases.situations import Situation


@dataclass(frozen=True)
class Fact:
    """Something that is right of a recording, and how to see it in what perfkit concludes.

    `wrong_today` quotes what perfkit says instead: the fact must then fail, until somebody mends it and takes the
    mark away.
    """

    says: str
    test: Test
    wrong_today: str = ""


@dataclass(frozen=True)
class Case:
    """A recording and the facts that are right of it.

    `source` is a capture, by its path below PERFKIT_PROFILES, or a situation that a program on a model of a machine
    brings about. `choice` are arguments of `perfkit.select`, `job` is what only the user knows.
    """

    id: str
    source: str | Situation
    facts: tuple[Fact, ...]
    choice: Mapping[str, Any] = field(default_factory=dict)
    job: Mapping[str, Any] = field(default_factory=dict)


def facts_of(*cases: Case) -> list[Any]:
    """Every fact of every case as a parameter of a test; those that perfkit gets wrong today must fail."""
    return [_parameter(case, fact) for case in cases for fact in case.facts]


def _parameter(case: Case, fact: Fact) -> Any:
    marks = []
    if fact.wrong_today:
        marks = [pytest.mark.xfail(reason=fact.wrong_today, strict=True, raises=AssertionError)]
    return pytest.param(case, fact, id=f"{case.id}: {fact.says}", marks=marks)

"""What readers bring to the diagnosis: a module that judges what they read, which nothing else in perfkit imports.

A reader names it by `DIAGNOSIS`. It has `RULES`, a module of rules; `FACTS`, a function of a selection for each fact
that it decides; `SOURCES`, tables and analysis by the text of a figure's source; and the functions below.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, cast

from perfkit.readers import offered

if TYPE_CHECKING:
    from pandas import DataFrame

    from perfkit.diagnosis.finding import Figure, Finding
    from perfkit.diagnosis.rules.rule import Fact
    from perfkit.diagnosis.sources import Source
    from perfkit.selection import Selection


class Extension(Protocol):
    """What such a module has."""

    RULES: ModuleType
    FACTS: "Mapping[Fact, Callable[[Selection], bool]]"
    SOURCES: "Mapping[str, Source]"

    def figures(self, view: "Selection") -> "Iterator[Figure]":
        """Yield figures of a selection; what it does not hold is absent."""

    def findings(self, view: "Selection") -> "Iterator[Finding]":
        """Yield what costs time."""

    def states(self, view: "Selection") -> "DataFrame":
        """Return how long GPUs were in each state: columns state, ns and more; empty where nothing says it."""


@cache
def extensions() -> tuple[Extension, ...]:
    """Return the modules that readers name, each once."""
    return tuple(cast(Extension, import_module(str(name))) for name in offered("DIAGNOSIS"))

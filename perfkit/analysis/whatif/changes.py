"""What may be changed in a program before it is replayed.

Conventions
-----------
A factor multiplies a time: 0.5 is twice as fast, 1 changes nothing. Patterns are regular expressions searched for in
names; an empty one matches every name. What a change promises is taken as given: whether it can be had is another
question.

Data
----
Kernels             kernels become faster or slower
Copies              copies become faster, run beside the kernels, or are gone
Launches            launches are fused, or put in a CUDA graph
Host                the CPU's work between calls becomes faster, or loading is done by other processes
Synchronisations    calls that wait for the GPU are gone
Communication       communication runs beside the computation
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from perfkit.analysis.causes import DATA_LOADING
from perfkit.names import FAMILIES

COPY_MEASURES = ("faster", "overlapped", "removed")
LAUNCH_MEASURES = ("fused", "graph")
DIRECTIONS = ("H2D", "D2H", "D2D", "P2P", "H2H", "memset", "unknown", "")


@dataclass(frozen=True)
class Kernels:
    """The time of kernels x factor: those whose full name matches, of the family, and among the rows if any is given.

    Attributes
    ----------
    factor
        0 and up.
    pattern, family
        Regular expression; one of `perfkit.names.FAMILIES`, or empty for all.
    rows
        Positions in KERNELS; all of them when omitted.
    """

    factor: float
    pattern: str = ""
    family: str = ""
    rows: NDArray[np.integer] | Sequence[int] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        _check_factor(self.factor)
        _check_pattern(self.pattern)
        if self.family and self.family not in FAMILIES:
            raise ValueError(f"family: {self.family!r} is not one of {', '.join(FAMILIES)}")


@dataclass(frozen=True)
class Copies:
    """Copies of a direction x factor; "overlapped": on a stream of their own with calls that do not wait; or "removed".

    Attributes
    ----------
    measure
        One of COPY_MEASURES.
    factor
        Of their time, 0 and up.
    direction
        As in COPIES, or empty for all; memsets are no copies unless named.
    """

    measure: str = "faster"
    factor: float = 1.0
    direction: str = ""

    def __post_init__(self) -> None:
        _check_one_of("measure", self.measure, COPY_MEASURES)
        _check_one_of("direction", self.direction, DIRECTIONS)
        _check_factor(self.factor)


@dataclass(frozen=True)
class Launches:
    """Launches that follow each other on a thread become one: its call, and the CPU's work before it, remain.

    A call that waits for the GPU or reserves memory, another kernel or copy, and more than `at_most_gap_ns` of work
    between two launches end a group. "graph" keeps the kernels and their distances on the GPU, as far as these are
    its own; "fused" makes one kernel of them, as long as they were together.

    Attributes
    ----------
    measure
        One of LAUNCH_MEASURES.
    pattern
        Of the full name of the kernels.
    at_most
        Launches per group; as many as follow each other when 0.
    at_most_gap_ns
        CPU work of 1 ms and more is not that of launching.
    """

    measure: str = "graph"
    pattern: str = ""
    at_most: int = 0
    at_most_gap_ns: int = 1_000_000

    def __post_init__(self) -> None:
        _check_one_of("measure", self.measure, LAUNCH_MEASURES)
        _check_pattern(self.pattern)
        _check_number("at_most", self.at_most)
        _check_number("at_most_gap_ns", self.at_most_gap_ns)


@dataclass(frozen=True)
class Host:
    """The CPU's work between calls x factor inside ranges whose name matches, or all of it for an empty pattern.

    Attributes
    ----------
    factor
        0 and up; calls keep their time.
    pattern
        Of names in RANGES; those of data loading when omitted.
    workers
        Processes that do this work in the background, ahead of the program, which waits if they are too slow; 0:
        the program does it itself.
    """

    factor: float = 1.0
    pattern: str = DATA_LOADING.pattern
    workers: int = 0

    def __post_init__(self) -> None:
        _check_factor(self.factor)
        _check_pattern(self.pattern)
        _check_number("workers", self.workers)


@dataclass(frozen=True)
class Synchronisations:
    """Calls that wait for the GPU, and whose name matches, are gone; copies that wait keep waiting (see `Copies`)."""

    pattern: str = ""

    def __post_init__(self) -> None:
        _check_pattern(self.pattern)


@dataclass(frozen=True)
class Communication:
    """Communication x factor runs on a stream of its own, after what it communicates; no kernel waits for it."""

    factor: float = 1.0

    def __post_init__(self) -> None:
        _check_factor(self.factor)


Change = Kernels | Copies | Launches | Host | Synchronisations | Communication


def _check_factor(factor: float) -> None:
    _check_number("factor", factor)


def _check_number(name: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name}: {value} is not 0 or more")


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as e:
        raise ValueError(f"pattern: {pattern!r} is not a regular expression: {e}") from e


def _check_one_of(name: str, value: str, legal: tuple[str, ...]) -> None:
    if value not in legal:
        raise ValueError(f"{name}: {value!r} is not one of {', '.join(legal)}")

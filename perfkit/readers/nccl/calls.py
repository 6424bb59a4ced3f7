"""Which collectives were called, and which algorithm and protocol did NCCL choose for them?"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from perfkit.readers.nccl.lines import Said
from perfkit.readers.nccl.log import Facts
from perfkit.readers.nccl.operations import DTYPES, PARTED, algorithm, operation, protocol

_CALL = re.compile(
    r"(\w+): opCount [0-9a-f]+ sendbuff \S+ recvbuff \S+ (?:acc \S+ )?count (\d{1,20}) datatype (\d{1,4}) "
    r"op \d+ root \d+ comm (0x[0-9a-f]+) \[nranks=(\d{1,9})\] stream"
)
_BEGIN = re.compile(r"\w+: opCount ")
# Up to 2.23 the size is that of the message; since 2.24 of what count says, which may be a rank's part (enqueue.cc).
_CHOSEN = re.compile(r"(?:(\w+): )?(\d{1,20}) Bytes -> Algo (\w+) proto (\w+) (time|channel)\b")

LARGEST = 2**63 - 1
Choice = tuple[str | None, str | None]


class Call(NamedTuple):
    """A collective that a rank called, or one that rank 0 chose an algorithm for."""

    rank: int
    operation: str | None
    bytes: int
    dtype: str | None
    ranks: int | None
    algorithm: str | None = None
    protocol: str | None = None


@dataclass
class Calls:
    """The calls of a log, or its choices, how many of both are of unknown size, and how many calls are not whole."""

    calls: list[Call]
    unsized: int
    damaged: int


def calls(said: Iterable[Said], facts: Facts) -> Calls:
    """Return a row per call and rank; where calls were not logged, one per choice of rank 0."""
    made: list[tuple[Said, re.Match[str]]] = []
    chosen: list[re.Match[str]] = []
    damaged = 0
    for line in said:
        if "opCount" in line.text:
            call = _CALL.match(line.text)
            if call:
                made.append((line, call))
            damaged += call is None and _BEGIN.match(line.text) is not None
        elif " Bytes -> Algo " in line.text and (choice := _CHOSEN.match(line.text)):
            chosen.append(choice)
    ranks = _ranks((line for line, _ in made), facts)
    rows = [_call(call, ranks[line.process]) for line, call in made]
    sized = [_sized(choice, facts) for choice in chosen]
    known, choices = ([call for call in found if call and call.bytes <= LARGEST] for found in (rows, sized))
    unsized = len(rows) + len(sized) - len(known) - len(choices)
    return Calls(_decided(known, choices) if rows else choices, unsized, damaged)


def _ranks(lines: Iterable[Said], facts: Facts) -> dict[tuple[str, int, int], int]:
    """Return the rank of each process that calls; if one is not said, they count in the order of their first calls."""
    processes = list(dict.fromkeys(line.process for line in lines))
    told = {process: facts.rank_of(process) for process in processes}
    known = {process: rank for process, rank in told.items() if rank is not None}
    return known if len(known) == len(processes) else {process: n for n, process in enumerate(processes)}


def _call(call: re.Match[str], rank: int) -> Call | None:
    """Return a call with the size of its message, None for an unknown element type."""
    if int(call[3]) >= len(DTYPES):
        return None
    name, ranks = operation(call[1]), int(call[5])
    dtype, size = DTYPES[int(call[3])]
    return Call(rank, name, int(call[2]) * size * (ranks if name in PARTED else 1), dtype, ranks)


def _sized(choice: re.Match[str], facts: Facts) -> Call | None:
    """Return a choice with the size of its message, None if that takes a number of ranks that the log does not say."""
    name = operation(choice[1]) if choice[1] else None
    parted = choice[5] == "channel" and name in PARTED
    sizes = facts.sizes
    if parted and len(sizes) != 1:
        return None
    ranks = sizes[0] if len(sizes) == 1 else None
    size = int(choice[2]) * (ranks or 1 if parted else 1)
    return Call(0, name, size, None, ranks, algorithm(choice[3]), protocol(choice[4]))


def _decided(rows: list[Call], choices: list[Call]) -> list[Call]:
    """Return calls with the algorithm and protocol chosen for their operation and size, where that is one choice."""
    found: dict[tuple[str | None, int], set[Choice]] = {}
    for choice in choices:
        found.setdefault((choice.operation, choice.bytes), set()).add((choice.algorithm, choice.protocol))
    decided = []
    for row in rows:
        options = found.get((row.operation, row.bytes)) or found.get((None, row.bytes)) or ()
        if len(options) == 1:
            chosen = next(iter(options))
            row = row._replace(algorithm=chosen[0], protocol=chosen[1])
        decided.append(row)
    return decided

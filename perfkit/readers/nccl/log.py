"""What does NCCL say of itself in its log: version, ranks, nodes, network, and what it warns of?"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from perfkit.readers.nccl.lines import Said

VERSION = re.compile(r"\b[NR]CCL version\s?:? (\d+\.\d+[\w.+-]*)")
_COMM = re.compile(
    r"comm (0x[0-9a-f]+) rank (\d{1,9}) n[rR]anks (\d{1,9})(?: nNodes (\d{1,9}) localRanks (\d{1,9}))?"
    r"(?: cudaDev \d+.*?(?: commId (0x[0-9a-f]+))? - Init (START|COMPLETE))?"
)
_NETWORK = re.compile(r"Using network (.+)")
_PATHS = re.compile(r"Pattern \d+, .*\btype (\w+)/(\w+)")


@dataclass(frozen=True)
class Member:
    """A rank's place in a communicator."""

    rank: int
    ranks: int


@dataclass
class Facts:
    """What a log of NCCL says, in the order in which it says it, each once."""

    versions: dict[str, None] = field(default_factory=dict)
    members: dict[tuple[tuple[str, int, int], str], Member] = field(default_factory=dict)
    communicators: dict[str, None] = field(default_factory=dict)
    complete: int = 0
    nodes: dict[int, None] = field(default_factory=dict)
    local_ranks: dict[int, None] = field(default_factory=dict)
    networks: dict[str, None] = field(default_factory=dict)
    paths: dict[tuple[str, str], None] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)

    @property
    def sizes(self) -> list[int]:
        """Numbers of ranks of the communicators, largest first."""
        return sorted({member.ranks for member in self.members.values()}, reverse=True)

    def rank_of(self, process: tuple[str, int, int]) -> int | None:
        """Return the rank of a process in its largest communicator, None if the log does not say it."""
        places = [member for (of, _), member in self.members.items() if of == process]
        return max(places, key=lambda m: m.ranks).rank if places else None


def facts(said: Iterable[Said], printed: Iterable[str]) -> Facts:
    """Return what the lines of NCCL say, and the version that it prints without its prefix."""
    found = Facts()
    for line in said:
        if line.level == "WARN":
            found.warnings[line.text] = None
        elif line.level == "INFO":
            _take(found, line)
    for text in printed:
        if "CCL version" in text and (version := VERSION.search(text)):
            found.versions[version[1]] = None
    return found


def _take(found: Facts, line: Said) -> None:
    text = line.text
    if "opCount" in text:
        return
    if version := VERSION.match(text):
        found.versions[version[1]] = None
    elif network := _NETWORK.match(text):
        found.networks[network[1]] = None
    elif paths := _PATHS.match(text):
        found.paths[paths[1], paths[2]] = None
    elif comm := _COMM.search(text):
        pointer, rank, ranks, nodes, local, name, done = comm.groups()
        found.members[line.process, pointer] = Member(int(rank), int(ranks))
        found.complete += done == "COMPLETE"
        if name:
            found.communicators[name] = None
        if nodes:
            found.nodes[int(nodes)] = None
            found.local_ranks[int(local)] = None

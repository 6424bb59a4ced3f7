"""The log of NCCL_DEBUG=INFO: which lines NCCL wrote, and what they say of calls, rings, trees and transports.

NCCL writes ``host:pid:tid [device] NCCL INFO text`` into the program's own output, also into the
middle of a line that the program has begun, and lines of several ranks run into each other.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from perfkit.logs.text import lines

# In this order: the letters of a test's or a call's name that tell the operation.
JOINED = ("reduce_scatter", "all_reduce", "all_gather", "all_to_all", "send_recv")
NAMES = {name.replace("_", ""): name for name in JOINED}
NAMES |= {
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "gather": "gather",
    "scatter": "scatter",
    "reduce": "reduce",
}
# ncclDataType_t in its order, as nccl-tests spells it, with the bytes of an element (nccl.h;
# src/common.cu there).
DTYPES = (
    *(("int8", 1), ("uint8", 1), ("int32", 4), ("uint32", 4), ("int64", 8), ("uint64", 8)),
    *(("half", 2), ("float", 4), ("double", 8), ("bfloat16", 2), ("f8e4m3", 1), ("f8e5m2", 1)),
)
ELEMENT_BYTES = {**dict(DTYPES), "char": 1, "int": 4, "fp8_e4m3": 1, "fp8_e5m2": 1}
ALGORITHMS = (
    "tree",
    "ring",
    "collnet_direct",
    "collnet_chain",
    "nvls",
    "nvls_tree",
    "pat",
)  # NCCL_ALGO_*, in order
PROTOCOLS = ("LL", "LL128", "Simple")
PARTED = (
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
)  # count is a rank's part of the message


@dataclass(frozen=True)
class Timing:
    """One half of a row: out of place or in place; `wrong` is None where the result was not checked."""

    placement: str
    dur_ns: float
    algbw: float
    busbw: float
    wrong: float | None


@dataclass(frozen=True)
class Row:
    """A message size of a benchmark."""

    bytes: int
    count: int
    dtype: str
    redop: str
    root: int
    timings: tuple[Timing, ...]
    algorithm: str | None = None
    protocol: str | None = None


_MARK = re.compile(r"NCCL (INFO|WARN|TRACE|ABORT|CALL) ")
_WRITER = re.compile(r"([^\s:]{1,80}):(\d{1,10}):\d{1,10} \[(\d{1,4})\] (?:\S{1,120} ){0,3}$")
# A root or a number of wrong elements, after which the test flushes its output
_GLUED = re.compile(r"-?\d+")
_REACH = 400  # characters before NCCL's mark in which its writer is looked for
VERSION = re.compile(r"\b[NR]CCL version\s?:? (\d+\.\d+[\w.+-]*)")
_COMM = re.compile(
    r"comm (0x[0-9a-f]+) rank (\d{1,9}) n[rR]anks (\d{1,9})(?: nNodes (\d{1,9}) localRanks "
    r"(\d{1,9}))?"
    r"(?: cudaDev \d+.*?(?: commId (0x[0-9a-f]+))? - Init (?:START|COMPLETE))?"
)
_NETWORK = re.compile(r"Using network (.+)")
_CARDS = re.compile(r"NET/IB : Using (.+)")
_CARD = re.compile(r"\[\d+\]\w")
_PATHS = re.compile(r"Pattern \d+, .*\btype (\w+)/(\w+)")
_CALL = re.compile(
    r"(\w+): opCount [0-9a-f]+ sendbuff \S+ recvbuff \S+ (?:acc \S+ )?count (\d{1,20}) datatype "
    r"(\d{1,4}) "
    r"op \d+ root \d+ comm (0x[0-9a-f]+) \[nranks=(\d{1,9})\] stream"
)
_BEGIN = re.compile(r"\w+: opCount ")
# Up to 2.23 the size is that of the message; since 2.24 of what count says, which may be a rank's
# part (enqueue.cc).
_CHOSEN = re.compile(r"(?:(\w+): )?(\d{1,20}) Bytes -> Algo (\w+) proto (\w+) (time|channel)\b")
LARGEST_SIZE = 2**63 - 1
Choice = tuple[str | None, str | None]
_VIA = re.compile(
    r"(?:Channel|Ring) (\d{1,6})(?:/\d+)? : (\d{1,6})(?:\[\w+\])? -> (\d{1,6})(?:\[\w+\])? "
    r"(?:\[(send|receive)\] )?"
    r"via ((?:P2P|SHM|NET|COLLNET)/[\w/ ().+=-]+?(?:\[\w+\][\w/]*)?)(?: comm 0x\w+ nRanks \d+)?"
)
_RING = re.compile(r"Channel (\d{1,6})/\d+ :((?: +\d{1,6})+)")
_NEIGHBOURS = re.compile(r"Ring (\d{1,6}) : (\d{1,6}) -> (\d{1,6}) -> (\d{1,6})")
_TREES = re.compile(r"\[(\d{1,6})\] ((?:-?\d{1,6}/)*-?\d{1,6})->(\d{1,6})->(-?\d{1,6})")
_TREE = re.compile(r"Tree (\d{1,6}) : (-?\d{1,6}) -> (\d{1,6}) -> ((?:-?\d{1,6}/)*-?\d{1,6})")
Edge = tuple[str, int, int, int]  # kind, channel, from, to


class Said(NamedTuple):
    """A line of NCCL: which process wrote it, for which of its GPUs, and what."""

    host: str
    pid: int
    gpu: int
    level: str
    text: str

    @property
    def process(self) -> tuple[str, int, int]:
        """What a rank is known by: host, process and GPU."""
        return self[:3]


class Line(NamedTuple):
    """A line of the program, or, `cut`, what of it came before a line of NCCL."""

    number: int
    text: str
    cut: bool


@dataclass(frozen=True)
class Log:
    """What is in a log: lines of the program and of NCCL, how many of these are not whole, and notes on the text."""

    lines: list[Line]
    said: list[Said]
    interleaved: int
    notes: Sequence[str] = ()


@dataclass
class Facts:
    """What a log of NCCL says, in the order in which it says it, each once; `members` are rank and number of ranks."""

    versions: dict[str, None] = field(default_factory=dict)
    members: dict[tuple[tuple[str, int, int], str], tuple[int, int]] = field(default_factory=dict)
    communicators: dict[str, None] = field(default_factory=dict)
    nodes: dict[int, None] = field(default_factory=dict)
    local_ranks: dict[int, None] = field(default_factory=dict)
    networks: dict[str, None] = field(default_factory=dict)
    cards: dict[int, None] = field(default_factory=dict)  # how many of a node NCCL uses
    paths: dict[tuple[str, str], None] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)

    @property
    def sizes(self) -> list[int]:
        """Numbers of ranks of the communicators, largest first."""
        return sorted({ranks for _, ranks in self.members.values()}, reverse=True)

    @property
    def node_count(self) -> int | None:
        """The nodes of all ranks: as stated, or one where all are on one host; None if unknown."""
        if self.nodes:
            return max(self.nodes)
        largest = max(self.sizes, default=0)
        placed = {
            (process[0], rank)
            for (process, _), (rank, ranks) in self.members.items()
            if ranks == largest
        }
        hosts = {host for host, _ in placed}
        ranks = {rank for _, rank in placed}
        return 1 if len(hosts) == 1 and len(ranks) == largest else None

    def rank_of(self, process: tuple[str, int, int]) -> int | None:
        """Return the rank of a process in its largest communicator, None if the log does not say it."""
        places = [member for (of, _), member in self.members.items() if of == process]
        return max(places, key=lambda place: place[1])[0] if places else None


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


@dataclass
class Links:
    """The edges with their transport, None where it is not said, and lines about them that are not whole."""

    edges: dict[Edge, str | None] = field(default_factory=dict)
    damaged: int = 0


def decode(text: bytes) -> str:
    """Return the text of a log; what cuts into it need not be UTF-8."""
    return text.decode(errors="replace")


def read_log(text: str, path: Path) -> Log:
    """Return what NCCL wrote and what the program wrote, each in its order, without a last line that is cut."""
    printed, notes = lines(text, path)
    log = Log([], [], 0, notes)
    at: list[int] = []
    interleaved = 0
    for number, text in enumerate(printed, 1):
        parted = _parted(text) if "NCCL " in text else None
        if parted is None:
            interleaved += ": opCount " in text  # a call whose process cannot be read
            log.lines.append(Line(number, text, False))
            continue
        at.append(len(log.lines))
        log.lines.append(Line(number, parted[0], True))
        log.said.append(parted[1])
        interleaved += parted[2]
    _unglue(log, at)
    return replace(log, interleaved=interleaved)


def _parted(text: str) -> tuple[str, Said, int] | None:
    """Return the program's part of a line, NCCL's, and how many lines of NCCL that one interrupts."""
    marks = []
    for mark in _MARK.finditer(text):
        writer = _WRITER.search(text, max(0, mark.start() - _REACH), mark.start())
        if writer:
            marks.append((writer, mark))
    if not marks:
        return None
    host, pid, gpu = marks[-1][0].groups()
    level, end = marks[-1][1][1], marks[-1][1].end()
    return (
        text[: marks[0][0].start()],
        Said(host, int(pid), int(gpu), level, text[end:].strip()),
        len(marks) - 1,
    )


def _unglue(log: Log, at: list[int]) -> None:
    """Give a line back its end where that ran into the name of NCCL's host (``-1node7:...``).

    The name that is left must be that of more lines. Where the same end ran into several names it
    is a number.
    """
    counts = Counter(line_of_nccl.host for line_of_nccl in log.said)
    inner = {}
    for host, often in counts.items():
        end = next(
            (end for end, count in counts.most_common() if count > often and host.endswith(end)),
            host,
        )
        inner[host] = end if often == 1 or _GLUED.fullmatch(host.removesuffix(end)) else host
    for place, (line, line_of_nccl) in enumerate(zip(at, log.said, strict=True)):
        host = inner[line_of_nccl.host]
        if host != line_of_nccl.host and log.lines[line].text.strip():
            glued = line_of_nccl.host.removesuffix(host)
            log.said[place] = line_of_nccl._replace(host=host)
            log.lines[line] = log.lines[line]._replace(text=log.lines[line].text + glued)


def facts_of(written: Iterable[Said], printed: Iterable[str]) -> Facts:
    """Return what the lines of NCCL say, and the version that it prints without its prefix."""
    facts = Facts()
    for line in written:
        if line.level == "WARN":
            facts.warnings[line.text] = None
        elif line.level == "INFO":
            _take(facts, line)
    for text in printed:
        version = VERSION.search(text) if "CCL version" in text else None
        if version:
            facts.versions[version[1]] = None
    return facts


def _take(facts: Facts, line: Said) -> None:
    text = line.text
    if "opCount" in text:
        return
    if version := VERSION.match(text):
        facts.versions[version[1]] = None
    elif network := _NETWORK.match(text):
        facts.networks[network[1]] = None
    elif used := _CARDS.match(text):
        facts.cards[len(_CARD.findall(used[1]))] = None
    elif paths := _PATHS.match(text):
        facts.paths[paths[1], paths[2]] = None
    elif comm := _COMM.search(text):
        pointer, rank, ranks, nodes, local, name = comm.groups()
        facts.members[line.process, pointer] = int(rank), int(ranks)
        if name:
            facts.communicators[name] = None
        if nodes:
            facts.nodes[int(nodes)] = None
            facts.local_ranks[int(local)] = None


def calls(written: Iterable[Said], facts: Facts) -> Calls:
    """Return a row per call and rank; where calls were not logged, one per choice of rank 0."""
    made: list[tuple[Said, re.Match[str]]] = []
    chosen: list[re.Match[str]] = []
    damaged = 0
    for line in written:
        if "opCount" in line.text:
            call = _CALL.match(line.text)
            if call:
                made.append((line, call))
            damaged += call is None and _BEGIN.match(line.text) is not None
        elif " Bytes -> Algo " in line.text:
            choice = _CHOSEN.match(line.text)
            chosen += [choice] if choice else []
    # The ranks of the processes that call; if one is not said, they count in the order of their
    # first calls.
    processes = list(dict.fromkeys(line.process for line, _ in made))
    stated = {
        process: rank for process in processes if (rank := facts.rank_of(process)) is not None
    }
    ranks = (
        stated
        if len(stated) == len(processes)
        else {process: n for n, process in enumerate(processes)}
    )
    rows = [_call(call, ranks[line.process]) for line, call in made]
    sized = [_sized(choice, facts) for choice in chosen]
    called, choices = (
        [call for call in every if call and call.bytes <= LARGEST_SIZE] for every in (rows, sized)
    )
    unsized = len(rows) + len(sized) - len(called) - len(choices)
    return Calls(_decided(called, choices) if rows else choices, unsized, damaged)


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
    options_of: dict[tuple[str | None, int], set[Choice]] = {}
    for choice in choices:
        options_of.setdefault((choice.operation, choice.bytes), set()).add(
            (choice.algorithm, choice.protocol)
        )
    decided = []
    for row in rows:
        options = (
            options_of.get((row.operation, row.bytes)) or options_of.get((None, row.bytes)) or ()
        )
        if len(options) == 1:
            chosen = next(iter(options))
            row = row._replace(algorithm=chosen[0], protocol=chosen[1])
        decided.append(row)
    return decided


def links(written: Iterable[Said]) -> Links:
    """Return every edge once, though both of its ends may have been logged.

    The transport is then that of the end that goes without GPUDirect RDMA, else the sender's.
    """
    network = Links()
    for line in written:
        if line.level == "INFO" and line.text.startswith(("Channel ", "Ring ", "Trees ", "Tree ")):
            _take_link(network, line.text)
    return network


def _take_link(network: Links, text: str) -> None:
    if via := _VIA.fullmatch(text):
        edge = ("connection", int(via[1]), int(via[2]), int(via[3]))
        first, known = _by_host(via[5]), network.edges.get(edge)
        if not known or first or (via[4] == "send" and not _by_host(known)):
            network.edges[edge] = via[5]
    elif ring := _RING.fullmatch(text):
        ranks = [int(rank) for rank in ring[2].split()]
        if sorted(ranks) != list(range(len(ranks))):  # a ring that misses a rank is not whole
            network.damaged += 1
            return
        for sender, receiver in zip(ranks, ranks[1:] + ranks[:1], strict=True):
            network.edges[("ring", int(ring[1]), sender, receiver)] = None
    elif around := _NEIGHBOURS.fullmatch(text):
        before, rank, after = (int(around[i]) for i in (2, 3, 4))
        network.edges[("ring", int(around[1]), before, rank)] = None
        network.edges[("ring", int(around[1]), rank, after)] = None
    elif tree := _TREE.fullmatch(text):
        _branches(network, int(tree[1]), tree[4], int(tree[3]), int(tree[2]))
    elif text.startswith("Trees ") and (trees := _TREES.findall(text)):
        for channel, children, rank, parent in trees:
            _branches(network, int(channel), children, int(rank), int(parent))
    elif text.startswith("Channel "):
        network.damaged += 1


def _by_host(transport: str) -> bool:
    """Tell whether a network card reaches the GPU by way of host memory."""
    return transport.startswith("NET/") and "/GDRDMA" not in transport


def _branches(network: Links, channel: int, children: str, rank: int, parent: int) -> None:
    above = [(int(child), rank) for child in children.split("/")] + [(rank, parent)]
    network.edges.update(
        {("tree", channel, low, high): None for low, high in above if low >= 0 and high >= 0}
    )


@cache
def operation(name: str) -> str | None:
    """Return the collective that a name tells, None if it is none of them.

    >>> [operation(name) for name in ("alltoall_perf", "ReduceScatter", "Recv", "hypercube_perf")]
    ['all_to_all', 'reduce_scatter', 'send_recv', None]
    """
    letters = re.sub(r"[^a-z]", "", name.lower())
    if letters in ("send", "recv"):
        return "send_recv"
    return next((canonical for part, canonical in NAMES.items() if part in letters), None)


def _named(word: str, names: tuple[str, ...]) -> str | None:
    """Return an algorithm or a protocol, given by name or number, as COLLECTIVES spells it."""
    if word.isdecimal():
        return names[int(word)] if int(word) < len(names) else None
    return next(
        (name for name in names if name.replace("_", "") == word or name.upper() == word.upper()),
        None,
    )


algorithm, protocol = (partial(_named, names=names) for names in (ALGORITHMS, PROTOCOLS))


def candidates(rows: Sequence[Row], ranks: int | None) -> list[str]:
    """Return the collectives that a table can be of: by reduction, root, size per count, checks and bandwidths.

    Source: NVIDIA/nccl-tests, src/*.cu; doc/PERFORMANCE.md for the factor between the bandwidths.
    """
    row = max(rows, key=lambda r: r.bytes)
    if row.dtype not in ELEMENT_BYTES or not row.bytes:
        return []
    reduces, rooted = row.redop not in ("", "none"), row.root >= 0
    parted = row.bytes > row.count * ELEMENT_BYTES[row.dtype]
    if rooted and parted:
        return ["gather", "scatter"]
    if rooted:
        return ["reduce" if reduces else "broadcast"]
    if parted and reduces:
        return ["reduce_scatter"]
    both = ["all_reduce", "send_recv"] if reduces else []
    if parted:
        both = ["all_gather", "all_to_all"]
    wrong = {timing.placement: timing.wrong for timing in row.timings}
    if both and wrong.get("out_of_place") is not None and "in_place" in wrong:
        # Whether results in place were checked too
        return [both[0] if wrong["in_place"] is not None else both[1]]
    if both and reduces and ranks is not None and ranks > 2:
        best = max(row.timings, key=lambda t: t.busbw)
        # At least 4/3 from three ranks on, or 1
        return [both[0] if best.busbw > 1.15 * best.algbw else both[1]]
    return both

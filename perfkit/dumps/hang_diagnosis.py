"""What `perfkit.diagnosis` asks of flight recorder dumps: their rules, figures and findings."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import pandas as pd

from perfkit.diagnosis.finding import Figure, Finding, Gain
from perfkit.diagnosis.rules.rule import Fact, tell
from perfkit.diagnosis.sources import Source
from perfkit.diagnosis.stored import kept
from perfkit.dumps import hang
from perfkit.dumps import hang_rules as RULES  # noqa: F401  a part of an extension
from perfkit.dumps.hang import Mismatch, Stuck
from perfkit.dumps.hang_rules import HANG_ABSENT, HANG_BEHIND, HANG_MISMATCH, HANG_RING
from perfkit.dumps.point_to_point import Wait
from perfkit.format import printable, several
from perfkit.selection import Selection

LISTED = 8  # ranks in a sentence
MOST = 3  # groups in a finding
NAME = 60  # characters of a name in a sentence
NO_GAIN = Gain(1.0, math.inf, "a hang ends the job: nothing gets faster")
STUCK, WAITS = "hang.stuck", "hang.waits"
# Label, definition and source of each count of ranks.
COUNTS = {
    "rank": ("Ranks of the job", "ranks that the groups of the dumps name", "hang.ranks"),
    "undumped": ("Ranks without a dump", "ranks of these that wrote no dump", "hang.ranks"),
    "absent": (
        "Ranks waited for",
        "ranks that others wait for in a collective, a send or a receive, and that wait for nobody",
        WAITS,
    ),
    "waiting": (
        "Ranks that wait",
        "ranks that wait for a rank that did not join a collective, a send or a receive",
        WAITS,
    ),
    "ring": ("Ranks in a ring", "ranks of which each waits for the next in a ring", "hang.ring"),
    "behind": (
        "Ranks behind",
        "ranks of which the oldest pending collective is older than that of a peer",
        STUCK,
    ),
}
SOURCES = {
    STUCK: Source(("ENQUEUED", "GROUPS"), STUCK),
    WAITS: Source(("ENQUEUED", "GROUPS"), WAITS),
    "hang.ring": Source(("ENQUEUED", "GROUPS"), "hang.ring"),
    "hang.ranks": Source(("ENQUEUED", "GROUPS"), "hang.ranks"),
    "hang.mismatches": Source(("ENQUEUED",), "hang.mismatches"),
}


def _differs(view: Selection, what: str) -> bool:
    """Tell whether the first mismatch, of which the finding tells, is one of this kind."""
    found = hang.mismatches(view.run.enqueued)
    return bool(found) and found[0].differs == what


def _ring_has_pairs(view: Selection) -> bool:
    """Tell whether a rank of the ring waits in a send or a receive."""
    circle = hang.ring(waited(view))
    return any(pair.rank in circle for pair in pairs(view))


FACTS: Mapping[Fact, Callable[[Selection], bool]] = {
    Fact.OTHER_OPERATION: lambda view: _differs(view, hang.OPERATION),
    Fact.OTHER_SIZE: lambda view: _differs(view, hang.SIZE),
    Fact.OTHER_TYPE: lambda view: _differs(view, hang.TYPE),
    Fact.OTHER_ORDER: lambda view: _differs(view, hang.ORDER),
    Fact.RING_OF_PAIRS: _ring_has_pairs,
}


def states(_: Selection) -> pd.DataFrame:
    """Return no states: dumps do not say how long GPUs were in one."""
    return pd.DataFrame()


@kept
def stuck(view: Selection) -> list[Stuck]:
    """Return `hang.stuck` of the dumps of a run."""
    return hang.stuck(view.run.groups, view.run.enqueued)


@kept
def pairs(view: Selection) -> list[Wait]:
    """Return `hang.pairs` of the dumps of a run."""
    return hang.pairs(view.run.groups, view.run.enqueued, stuck(view))


@kept
def waited(view: Selection) -> dict[int, set[int]]:
    """Return `hang.waits` of the dumps of a run."""
    return hang.waits(stuck(view), pairs(view))


@kept
def ranks(view: Selection) -> pd.DataFrame:
    """Return `hang.ranks` of the dumps of a run."""
    return hang.ranks(view.run.groups, view.run.enqueued)


def figures(view: Selection) -> Iterator[Figure]:
    """Yield what dumps say of the ranks and of their last collectives."""
    if view.run.groups.empty:
        return
    table = ranks(view)
    found = stuck(view)
    values = {
        "rank": len(table),
        "undumped": int((~table["dump"]).sum()),
        "absent": len(hang.suspects(waited(view))),
        "waiting": len(waited(view)),
        "ring": len(hang.ring(waited(view))),
        "behind": len(hang.behind(found)),
    }
    for key, (label, definition, source) in COUNTS.items():
        value = float(values[key])
        yield Figure(f"hang_{key}_count", label, value, "count", definition, source)


def findings(view: Selection) -> Iterator[Finding]:
    """Yield a mismatch, the rank that is waited for or a ring of ranks, and the GPU that is behind."""
    if view.run.groups.empty:
        return
    known = {figure.id: figure for figure in figures(view)}
    mismatches = hang.mismatches(view.run.enqueued)
    if mismatches:
        yield _mismatch(mismatches)
    found = stuck(view)
    if hang.suspects(waited(view)):
        yield _absent(view, found, known)
    elif hang.ring(waited(view)):
        yield _ring(view, known)
    if hang.behind(found):
        yield _behind(found, known)


def _mismatch(found: Sequence[Mismatch]) -> Finding:
    first = found[0]
    definition = (
        "groups of which two ranks gave another operation, size, type or order under one number"
    )
    count = Figure(
        "hang_mismatch_count",
        "Groups with a mismatch",
        float(len(found)),
        "count",
        definition,
        "hang.mismatches",
    )
    title = f"{_ranks(first.ranks)} {_difference(first)}"
    calls = []
    for rank, call, place in zip(first.ranks, first.calls, first.places, strict=True):
        calls.append(f"Rank {rank} calls {printable(call, NAME)}{_at(place)}.")
    text = f"{' '.join(calls)} All recorded calls of this group before it agree."
    place = printable(first.places[1], 2 * NAME)
    return tell(HANG_MISMATCH, title, text, (count,), NO_GAIN, level="high", place=place)


def _difference(found: Mismatch) -> str:
    """Return what two ranks did differently, as the rest of a sentence about them."""
    group = f"group {printable(found.group, NAME)}"
    operations = [printable(name, NAME) for name in found.operations]
    if found.differs == hang.OPERATION:
        return f"call different collectives as number {found.number:,} of {group}"
    if found.differs == hang.ORDER:
        both = " and ".join(dict.fromkeys(operations))
        return f"call {both} of {group} in different orders, from number {found.number:,} on"
    what = "inputs of different sizes" if found.differs == hang.SIZE else "different types"
    return f"pass {what} to {operations[0]} {found.number:,} of {group}"


def _absent(view: Selection, found: Sequence[Stuck], known: Mapping[str, Figure]) -> Finding:
    suspects = hang.suspects(waited(view))
    table = ranks(view).set_index("rank")
    hanging = [one for one in found if set(suspects) & set(one.absent)]
    if hanging:
        absent = [rank for rank in suspects if rank in hanging[0].absent]
        waiting, what = hanging[0].waiting, _collective(hanging[0])
        parts = [f"{_progress(one)}." for one in hanging[:MOST]]
    else:
        halves = [pair for pair in pairs(view) if pair.partner in suspects]
        absent, waiting = [halves[0].partner], (halves[0].rank,)
        what = _half(halves[0])
        parts = [_waits(pair) for pair in halves[:MOST]]
    verb = "waits" if len(waiting) == 1 else "wait"
    title = f"{_ranks(absent)} did not join {what}, in which {_ranks(waiting, small=True)} {verb}"
    if len(hanging) > MOST:
        parts.append(f"{len(hanging) - MOST} more groups lack them.")
    text = f"{_silence(table.loc[suspects])} {' '.join(parts)}"
    evidence = tuple(known[id] for id in HANG_ABSENT.evidence)
    place = printable(table.loc[absent[0], "place"], 2 * NAME)
    return tell(HANG_ABSENT, title, text, evidence, NO_GAIN, level="high", place=place)


def _ring(view: Selection, known: Mapping[str, Figure]) -> Finding:
    circle = hang.ring(waited(view))
    title = f"{_ranks(circle)} wait for each other in a ring"
    if not _ring_has_pairs(view):
        title += ": they use their groups in different orders"
    parts = [
        _step(view, rank, following)
        for rank, following in zip(circle, [*circle[1:], circle[0]], strict=True)
    ]
    text = f"{' '.join(parts[:LISTED])} None of them can go on."
    first = next((pair for pair in pairs(view) if pair.rank in circle), None)
    place = printable(first.place, 2 * NAME) if first else ""
    evidence = (known["hang_ring_count"],)
    return tell(HANG_RING, title, text, evidence, NO_GAIN, level="high", place=place)


def _step(view: Selection, rank: int, following: int) -> str:
    """Return in what a rank of a ring waits for the next one, as a sentence."""
    for pair in pairs(view):
        if (pair.rank, pair.partner) == (rank, following):
            return _waits(pair)
    shared = [one for one in stuck(view) if rank in one.waiting and following in one.absent]
    return f"Rank {rank} waits for rank {following} in {_collective(shared[0])}."


def _waits(pair: Wait) -> str:
    return f"Rank {pair.rank} waits for rank {pair.partner} in {_half(pair)}{_at(pair.place)}."


def _half(pair: Wait) -> str:
    return f"{printable(pair.operation, NAME)} of group {printable(pair.group, NAME)}"


def _silence(suspects: pd.DataFrame) -> str:
    """Return what the dumps of the suspects hold, in sentences."""
    said = []
    undumped = list(suspects.index[~suspects["dump"]])
    empty = list(suspects.index[suspects["dump"] & suspects["operations_count"].eq(0)])
    if undumped:
        said.append(f"{_ranks(undumped)} wrote no dump: the process ended, or a file is missing.")
    if empty:
        said.append(
            f"{_ranks(empty)} wrote a dump without an operation: "
            "the CPU thread that launches collectives is stuck."
        )
    active = suspects[suspects["operations_count"].gt(0)].head(LISTED)
    for rank, row in active.iterrows():
        said.append(f"Rank {rank} last called {printable(row['last'], NAME)}{_at(row['place'])}.")
    return " ".join(said)


def _behind(found: Sequence[Stuck], known: Mapping[str, Figure]) -> Finding:
    late = hang.behind(found)
    differing = [one for one in found if one.behind]
    first = max(differing, key=lambda one: (len(one.behind), len(one.members)))
    oldest = min(first.oldest[rank] for rank in first.behind)
    ahead = max(first.oldest.values())
    gpus = "GPU" if len(late) == 1 else "GPUs"
    named = _ranks(late, small=True)
    title = f"The {gpus} of {named} stopped finishing collectives before the others"
    of = _ranks(first.behind, small=True)
    text = (
        f"In {_named(first)}, the oldest pending collective of {of} is number {oldest:,}. "
        f"A peer finished all before number {ahead:,}."
    )
    return tell(HANG_BEHIND, title, text, (known["hang_behind_count"],), NO_GAIN, level="high")


def _progress(one: Stuck) -> str:
    """Return how far the absent ranks of a group came."""
    parts = []
    for rank in one.absent[:LISTED]:
        last = one.last[rank]
        reached = "joined none that is known" if last < 0 else f"stands at {last:,}"
        parts.append(f"rank {rank} {reached}")
    return f"In {_collective(one)}: {', '.join(parts)}"


def _collective(one: Stuck) -> str:
    return f"{printable(one.operation, NAME)} {one.number:,} of {_named(one)}"


def _named(one: Stuck) -> str:
    described = f" ({printable(one.description, NAME)})" if one.description else ""
    return f"group {printable(one.group, NAME)}{described}"


def _ranks(ranks: Sequence[int], *, small: bool = False) -> str:
    """Return ranks as the subject of a sentence.

    >>> _ranks([3]), _ranks([9, 14], small=True)
    ('Rank 3', 'ranks 9 and 14')
    """
    texts = [str(rank) for rank in ranks]
    listed = several(texts, LISTED)
    if 1 < len(texts) <= LISTED:
        listed = f"{', '.join(texts[:-1])} and {texts[-1]}"
    word = "rank" if len(texts) == 1 else "ranks"
    return f"{word if small else word.capitalize()} {listed}"


def _at(place: str) -> str:
    return f" at {printable(place, 2 * NAME)}" if place else ""

"""Which collective hangs, and which rank do the others wait for?

A collective ends when all members of its group take part. A rank waits for a member if it gave a
collective to NCCL that the member did not give. A rank that others wait for may wait itself: a
suspect waits for nobody. A rank of which the oldest pending collective is older than those of its
peers gave it in time, and its GPU did not finish. Groups are matched by name and collectives by
number; `point_to_point` compares sends and receives. Where each rank that others wait for waits
itself, ranks wait for each other in a ring. Dumps say where ranks wait, and not why.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from perfkit.dumps import point_to_point
from perfkit.dumps.frames import place
from perfkit.dumps.point_to_point import Wait
from perfkit.tables import ENQUEUED, GROUPS

# Operations of which all ranks have inputs of one size. Others pass different sizes by design.
EQUAL_SIZES = (
    "all_reduce",
    "all_gather",
    "_all_gather_base",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce",
)
# In what two calls of one number differ; in another order they are both calls of both ranks.
OPERATION, SIZE, TYPE, ORDER = "operation", "size", "type", "order"
COMPLETED = "completed"
NEVER = -1  # the number of a rank without a collective of a group


class Stuck(NamedTuple):
    """A group of which not all members gave the same collectives, or finished them.

    number and operation: the last collective that a member gave. absent: members that did not give
    it. waiting: members that did. last: number of the last collective of each member, NEVER if none
    is known. behind: members whose oldest pending collective is older than that of others. oldest:
    its number.
    """

    group: str
    description: str
    members: tuple[int, ...]
    number: int
    operation: str
    absent: tuple[int, ...]
    waiting: tuple[int, ...]
    last: Mapping[int, int]
    behind: tuple[int, ...]
    oldest: Mapping[int, int]


class Mismatch(NamedTuple):
    """The first collective of a group that two members called differently.

    differs: OPERATION, SIZE, TYPE or ORDER. operations: what each of them called.
    """

    group: str
    number: int
    differs: str
    operations: tuple[str, str]
    ranks: tuple[int, int]
    calls: tuple[str, str]
    places: tuple[str, str]


def stuck(groups: pd.DataFrame, enqueued: pd.DataFrame) -> list[Stuck]:
    """Return the groups with an absent member or one that is behind, those with the most waiting ranks first."""
    known = {str(row.group): row for row in GROUPS.check(groups).itertuples()}
    statuses = groups.dropna(subset="enqueued")
    numbers = zip(statuses["group"], statuses["rank"], statuses["enqueued"], strict=True)
    reached = {(group, rank): int(number) for group, rank, number in numbers}
    found = []
    for name, calls in _collectives(enqueued).groupby("group", observed=True):
        group = str(name)
        if group not in known:
            continue
        members = json.loads(str(known[group].members))
        last = {rank: reached.get((group, rank), NEVER) for rank in members}
        for rank, number in _by_rank(calls, "max").items():
            last[rank] = max(number, last.get(rank, NEVER))
        found.append(_stuck(group, str(known[group].description), last, calls))
    differing = [one for one in found if one.absent or one.behind]
    return sorted(differing, key=lambda one: (-len(one.waiting), -len(one.absent), one.group))


def _stuck(group: str, description: str, last: dict[int, int], calls: pd.DataFrame) -> Stuck:
    """Return how far the members of a group came; `last` is the last number of each, `calls` those of the group."""
    number = max(last.values())
    operations = calls.loc[calls["number"].eq(number), "operation"]
    oldest = _by_rank(calls[calls["state"].ne(COMPLETED)], "min")
    absent = tuple(rank for rank in last if last[rank] < number)
    waiting = [rank for rank in oldest if rank not in absent] if absent else []
    return Stuck(
        group,
        description,
        tuple(last),
        number,
        str(operations.iloc[0]) if len(operations) else "",
        absent,
        tuple(waiting),
        last,
        tuple(rank for rank, value in oldest.items() if value < max(oldest.values())),
        oldest,
    )


def _by_rank(calls: pd.DataFrame, which: str) -> dict[int, int]:
    """Return the least or the greatest number of the collectives of each rank."""
    numbers = calls.groupby("rank")["number"].agg(which)
    return dict(zip(numbers.index.tolist(), numbers.tolist(), strict=True))


def _collectives(enqueued: pd.DataFrame) -> pd.DataFrame:
    return ENQUEUED.check(enqueued)[~enqueued["is_p2p"]]


def pairs(groups: pd.DataFrame, enqueued: pd.DataFrame, found: Sequence[Stuck]) -> list[Wait]:
    """Return which rank waits for which in a send or a receive.

    Their order is looked at only where nobody is absent, and told only where it makes a ring: dumps
    on request are made at slightly different moments.
    """
    missing = point_to_point.absent(groups, enqueued)
    if missing or waits(found):
        return missing
    late = point_to_point.out_of_order(groups, enqueued)
    return late if ring(waits((), late)) else []


def waits(found: Sequence[Stuck], pairs: Sequence[Wait] = ()) -> dict[int, set[int]]:
    """Return for which ranks each rank waits, which did not give NCCL the collective, or the send or receive."""
    waited: dict[int, set[int]] = {}
    for one in found:
        for rank in one.waiting:
            waited.setdefault(rank, set()).update(one.absent)
    for pair in pairs:
        waited.setdefault(pair.rank, set()).add(pair.partner)
    return waited


def suspects(waited: Mapping[int, set[int]]) -> list[int]:
    """Return the ranks that others wait for and that wait for nobody."""
    targets = set().union(*waited.values())
    return sorted(rank for rank in targets if not waited.get(rank))


def ring(waited: Mapping[int, set[int]]) -> list[int]:
    """Return ranks of which each waits for the next, and the last for the first; empty without such a ring.

    >>> ring({0: {1}, 1: {2}, 2: {1}, 3: {0}})
    [1, 2]
    """
    left = {rank: set(targets) for rank, targets in waited.items()}
    while True:  # without members that wait for nobody that waits
        fewer = {rank: targets & left.keys() for rank, targets in left.items()}
        fewer = {rank: targets for rank, targets in fewer.items() if targets}
        if fewer == left:
            break
        left = fewer
    path = [min(left)] if left else []
    while path and min(left[path[-1]]) not in path:
        path.append(min(left[path[-1]]))
    return path[path.index(min(left[path[-1]])) :] if path else []


def behind(found: Sequence[Stuck]) -> list[int]:
    """Return the ranks that are behind their peers in finished collectives, in whichever group."""
    return sorted({rank for one in found for rank in one.behind})


def mismatches(enqueued: pd.DataFrame) -> list[Mismatch]:
    """Return the first mismatch of each group, by the name of the group."""
    calls = _collectives(enqueued).sort_values("time_ns", kind="stable")
    known = {(call.group, call.number, call.rank): _call(call) for call in calls.itertuples()}
    found: dict[str, Mismatch] = {}
    for (name, _), same in calls.groupby(["group", "number"], observed=True):
        group, numbered = str(name), int(same["number"].iloc[0])
        if group in found:
            continue
        texts = [_call(call) for call in same.itertuples()]
        other = next((i for i, text in enumerate(texts) if text != texts[0]), 0)
        if other:
            one, two = same.iloc[0], same.iloc[other]
            ranks = int(one["rank"]), int(two["rank"])
            pair = texts[0], texts[other]
            following = tuple(known.get((group, numbered + 1, rank)) for rank in ranks)
            differs = ORDER if following == pair[::-1] else _differs(one, two)
            operations = str(one["operation"]), str(two["operation"])
            places = place(one), place(two)
            found[group] = Mismatch(group, numbered, differs, operations, ranks, pair, places)
    return list(found.values())


def _differs(one: pd.Series, two: pd.Series) -> str:
    """Return in what two calls differ that must be equal."""
    if one["operation"] != two["operation"]:
        return OPERATION
    is_sized = one["operation"] in EQUAL_SIZES
    return SIZE if is_sized and one["input_sizes"] != two["input_sizes"] else TYPE


def _call(call: Any) -> str:
    """Return what must be equal on all ranks of a collective."""
    sizes = f" of {call.input_sizes}" if call.operation in EQUAL_SIZES else ""
    return f"{call.operation}{sizes} {call.dtypes}"


def ranks(groups: pd.DataFrame, enqueued: pd.DataFrame) -> pd.DataFrame:
    """Return how far each rank came: a row per rank of the job.

    `rank`; `role`: suspect, behind, ring, waits, or no difference; `dump`: whether the rank wrote
    one; `operations_count` in it; `waits_for` and `waited_by`: ranks, as text; `silent_ns`: how
    long before the last operation of all ranks it gave its last one, float64, NaN without one;
    `last`: that operation; `place`: its line in the program.
    """
    found = stuck(groups, enqueued)
    waited, late = waits(found, pairs(groups, enqueued, found)), behind(found)
    roots, circle = suspects(waited), ring(waited)
    members = {rank for text in groups["members"].cat.categories for rank in json.loads(text)}
    written = {*groups["rank"], *enqueued["rank"]}
    end = enqueued["time_ns"].max() if len(enqueued) else 0
    rows = []
    for rank in sorted(members | written):
        own = enqueued[enqueued["rank"].eq(rank)]
        by = sorted(other for other, targets in waited.items() if rank in targets)
        last = own.iloc[int(own["time_ns"].argmax())] if len(own) else None
        rows.append(
            {
                "rank": rank,
                "role": _role(rank, roots, late, circle, waited),
                "dump": rank in written,
                "operations_count": len(own),
                "waits_for": ", ".join(map(str, sorted(waited.get(rank, ())))),
                "waited_by": ", ".join(map(str, by)),
                "silent_ns": float("nan") if last is None else float(end - last["time_ns"]),
                "last": ""
                if last is None
                else f"{last['operation']} {last['number']} of group {last['group']}",
                "place": "" if last is None else place(last),
            }
        )
    return pd.DataFrame(rows)


def _role(
    rank: int,
    roots: list[int],
    late: list[int],
    circle: list[int],
    waited: Mapping[int, set[int]],
) -> str:
    if rank in roots:
        return "suspect"
    if rank in late:
        return "behind"
    if rank in circle:
        return "ring"
    return "waits" if waited.get(rank) else "no difference"

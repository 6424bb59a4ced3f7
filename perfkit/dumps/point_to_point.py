"""Which rank waits for which in sends and receives?

A rank waits for its partner if it gave NCCL a send or a receive of which the partner did not give
the other half. Ranks number these operations each for itself, so that only those from one rank to
another are compared. Where both halves are there, their order may be wrong: a rank works on the
oldest operation of a group, and waits until its partner comes to the other half. Operations that
were given together (`batch_isend_irecv`) have one number and no order.
"""

import json
import re
from typing import Any, NamedTuple

import pandas as pd

from perfkit.dumps.frames import place
from perfkit.tables import ENQUEUED, GROUPS

OPERATION = re.compile(r"(send|recv) (\d{1,6})(?:->|<-)(\d{1,6})", re.ASCII)
COMPLETED = "completed"
FIRST = 1  # a dump that begins with this number of an operation or a lower one lost none
KEYS = ["group", "rank", "partner", "is_send"]

Key = tuple[str, int, int, bool]  # values of KEYS


class Wait(NamedTuple):
    """A rank that waits for its partner, in an operation of a line of the program."""

    rank: int
    partner: int
    group: str
    operation: str
    place: str


def halves(groups: pd.DataFrame, enqueued: pd.DataFrame) -> pd.DataFrame:
    """Return the sends and receives of ENQUEUED in the order of each rank, with `partner`, a rank, and `is_send`."""
    rows = ENQUEUED.check(enqueued)
    rows = rows[rows["is_p2p"]].sort_values(["rank", "record"], kind="stable")
    known = GROUPS.check(groups).drop_duplicates("group")
    members = {str(row.group): json.loads(str(row.members)) for row in known.itertuples()}
    parts = rows["operation"].astype("string").str.extract(OPERATION)
    pairs = zip(rows["group"], parts[2], strict=True)
    partner = [_member(members.get(str(group), []), position) for group, position in pairs]
    made = rows.assign(partner=partner, is_send=parts[0].eq("send").fillna(False).astype(bool))
    return made[made["partner"].ge(0)].astype({"group": str})


def _member(members: list[int], position: object) -> int:
    """Return the rank at a position of a group, -1 where there is none."""
    number = int(position) if isinstance(position, str) else len(members)
    return members[number] if number < len(members) else -1


def absent(groups: pd.DataFrame, enqueued: pd.DataFrame) -> list[Wait]:
    """Return the oldest pending half between two ranks, where the partner did not give the other half.

    Halves that completed are compared only where neither dump lost one.
    """
    known = halves(groups, enqueued)
    pending = known[known["state"].ne(COMPLETED)]
    every, waiting = _counts(known), _counts(pending)
    begins = enqueued.groupby("rank")["record"].min().le(FIRST).to_dict()
    found = []
    for half in pending.drop_duplicates(KEYS).itertuples():
        own, other = _key(half), _other(half)
        if every.get(other, 0) == waiting.get(other, 0):
            is_absent = other not in waiting
        else:
            is_whole = begins[half.rank] and begins[half.partner]
            is_absent = is_whole and every[own] > every[other]
        if is_absent:
            found.append(_wait(half))
    return found


def _counts(rows: pd.DataFrame) -> dict[Key, int]:
    counts = rows.groupby(KEYS).size()
    return dict(zip(counts.index.tolist(), counts.tolist(), strict=True))


def _key(half: Any) -> Key:
    return half.group, half.rank, half.partner, half.is_send


def _other(half: Any) -> Key:
    """Return the key of the other half."""
    return half.group, half.partner, half.rank, not half.is_send


def _wait(half: Any) -> Wait:
    return Wait(int(half.rank), int(half.partner), half.group, str(half.operation), place(half))


def out_of_order(groups: pd.DataFrame, enqueued: pd.DataFrame) -> list[Wait]:
    """Return the oldest pending operations of each rank in a group whose partner is still at another operation."""
    known = halves(groups, enqueued)
    pending = known[known["state"].ne(COMPLETED)]
    oldest = pending.groupby(["group", "rank"])["batch"].transform("first")
    current = list(pending[pending["batch"].eq(oldest)].itertuples())
    keys = {_key(half) for half in current}
    return [_wait(half) for half in current if _other(half) not in keys]

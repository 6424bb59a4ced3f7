"""Which pauses of a recording are no part of each repetition, and why is the GPU idle in them?

A single pause is no habit of the program, and neither are several without a loop, such as those of
libraries that load. Several pauses of a loop, of which none is nearly all of them, come again for
as long as the program runs, such as when Python collects its garbage.
"""

import re
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit import analysis
from perfkit.analysis.causes import on_one_axis, where
from perfkit.diagnosis import phases, repeating, timeline
from perfkit.diagnosis.rules import by_kind, idle
from perfkit.diagnosis.rules.rule import Rule
from perfkit.diagnosis.stored import kept
from perfkit.format import duration, percent, printable
from perfkit.selection import Selection

STEP = re.compile("ProfilerStep#")
HALF = 0.5  # of the time of pauses: a cause or an owner that is told (convention)
ALONE = 0.9  # of all pauses: one this long is no habit (convention)
SHOWN = 3  # places of pauses in a sentence
LONGEST_NAME = 80  # characters of an owner


class Reason(NamedTuple):
    """Why the GPU is idle in most of the time of pauses: the rule about this cause, and whose time it is."""

    rule: Rule | None = None
    owner: str = ""


class Pauses(NamedTuple):
    """The pauses of one rank, and the words for them.

    rows: of PHASES, the longest first; share: of the recording of the rank; rest_ns: what else it holds.
    rank: its name where there are several; comes_again: whether they are a habit of the program.
    """

    rows: pd.DataFrame
    share: float
    rest_ns: int
    rank: str
    comes_again: bool
    reason: Reason

    @property
    def title(self) -> str:
        """How many there are, how long they take, and why."""
        count = len(self.rows)
        subject, verb = (f"{count:,} pauses", "take") if count > 1 else ("One pause", "takes")
        saves = self.rows["name"].eq(analysis.phases.CHECKPOINT).all()
        subject += f"{self.rank}{' to save state' if saves else ''}"
        rule = self.reason.rule
        # The rule about CPU code says that nothing else was recorded.
        because = rule.reason if rule and rule is not idle.IDLE_HOST_CODE else ""
        why = f", because {because}" if because else ""
        return f"{subject} {verb} {percent(self.share)} of the recording{why}"

    @property
    def place(self) -> str:
        """When the longest begin, how long they last, and whose time most of that is."""
        owner = printable(self.reason.owner, LONGEST_NAME)
        whose = f" Most of this time lies in {owner}." if owner else ""
        return f"{_listed(self.rows)}{whose}"

    @property
    def sentences(self) -> str:
        """All that is told of them."""
        return f"{self.title}. {self.place}"


@kept
def pauses(view: Selection) -> Pauses | None:
    """Return the pauses that are not judged, of the rank with the longest one; None where there are none."""
    every = phases.paused(view)
    if every.empty:
        return None
    rank = every["rank"].iloc[0]
    rows = every[every["rank"] == rank]
    found = repeating.phases(phases.recorded(view))
    of_rank = found[found["rank"] == rank]
    lasted, longest = int(rows["dur_ns"].sum()), int(rows["dur_ns"].iloc[0])
    span = int(of_rank["dur_ns"].sum())
    has_loop = bool(of_rank["phase"].eq("loop").any())
    name = f" of rank {rank}" if len(found["rank"].unique()) > 1 else ""
    comes_again = has_loop and longest <= ALONE * lasted
    return Pauses(rows, lasted / span, span - lasted, name, comes_again, reason(view))


def _listed(rows: pd.DataFrame) -> str:
    shown = rows.head(SHOWN)
    times = zip(shown["start_ns"].tolist(), shown["dur_ns"].tolist(), strict=True)
    if len(rows) == 1:
        start, dur = next(times)
        return f"It begins at {duration(start)} and lasts {duration(dur)}."
    told = [f"{duration(dur)} at {duration(start)}" for start, dur in times]
    subject = "The longest last" if len(rows) > len(shown) else "They last"
    return f"{subject} {', '.join(told[:-1])} and {told[-1]}."


@kept
def reason(view: Selection) -> Reason:
    """Return why the GPU is idle in at least half of the time of the pauses, as far as the recording tells."""
    rows = phases.paused(view)
    unjudged = phases.whole(phases.recorded(view))
    if rows.empty or timeline.idle_gaps(unjudged) is None:
        return Reason()
    owned = _inside(timeline.owned(unjudged), rows)
    cause = owned["detail"].astype(object).fillna(owned["cause"].astype(object))
    lasted = owned["dur_ns"].groupby(cause).sum()
    if lasted.empty or lasted.max() < HALF * lasted.sum():
        return Reason()
    longest = str(lasted.idxmax())
    rule = by_kind(idle).get(longest)
    if rule is None or not rule.reason:
        return Reason()
    mine = owned[(cause == longest).to_numpy()]
    mine = mine[~where(mine["owner"], STEP.match)]  # a profiler's mark is no place in a program
    by_owner = mine.groupby("owner", observed=True)["dur_ns"].sum()
    is_one = len(by_owner) > 0 and by_owner.max() >= HALF * lasted.max()
    return Reason(rule, str(by_owner.idxmax()) if is_one else "")


def _inside(owned: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the stretches of OWNED that begin in one of these pauses."""
    (start, end), (moment, _) = on_one_axis([rows, owned], ["rank"])
    order = np.argsort(start, kind="stable")
    place = np.searchsorted(start[order], moment, side="right") - 1
    return owned[(place >= 0) & (moment < np.append(end[order], 0)[place])]

"""Why is the GPU idle in pauses that are no part of each repetition?"""

import re
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis.causes import on_one_axis, where
from perfkit.diagnosis import phases, timeline
from perfkit.diagnosis.rules import by_kind, idle
from perfkit.diagnosis.rules.rule import Rule
from perfkit.diagnosis.stored import kept
from perfkit.selection import Selection

STEP = re.compile("ProfilerStep#")
HALF = 0.5  # of the time of pauses: a cause or an owner that is told (convention)


class Reason(NamedTuple):
    """Why the GPU is idle in most of the time of pauses: the rule about this cause, and whose time it is."""

    rule: Rule | None = None
    owner: str = ""


@kept
def reason(view: Selection) -> Reason:
    """Return why the GPU is idle in at least half of the time of the pauses, as far as the recording tells."""
    pauses = phases.paused(view)
    unjudged = phases.whole(phases.recorded(view))
    if pauses.empty or timeline.idle_gaps(unjudged) is None:
        return Reason()
    owned = _inside(timeline.owned(unjudged), pauses)
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


def _inside(owned: pd.DataFrame, pauses: pd.DataFrame) -> pd.DataFrame:
    """Return the stretches of OWNED that begin in a pause of their rank."""
    (start, end), (moment, _) = on_one_axis([pauses, owned], ["rank"])
    order = np.argsort(start, kind="stable")
    place = np.searchsorted(start[order], moment, side="right") - 1
    return owned[(place >= 0) & (moment < np.append(end[order], 0)[place])]

"""A rule about loops whose steps have two lengths: what a median of both hides, and what the long ones do besides.

A kind that comes once and does not come again is another phase of the program, which the step time
tells of. The steps of both kinds run alike but for one thing, such as memory that only some of them
free. `analysis.phases` tells the kinds apart; here the idle time of the GPUs is compared, cause by
cause, for each step of a kind.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis.phases import OTHER
from perfkit.analysis.steps import steady
from perfkit.diagnosis.finding import Figure, Finding, Gain
from perfkit.diagnosis.launching import checkpoints
from perfkit.diagnosis.repeating import phases
from perfkit.diagnosis.rules.rule import tell
from perfkit.diagnosis.rules.steps import STEP_LENGTHS
from perfkit.diagnosis.stored import kept
from perfkit.diagnosis.timeline import idle_gaps, idle_parts, unrecorded
from perfkit.format import duration
from perfkit.names.parts import IDLE
from perfkit.selection import Selection

FEWEST_CHANGES = (
    2  # from one kind to the other; after a single one the program does other work (convention)
)
PARTS = 1.5  # times as long as the long repetitions are steps of which these are parts (convention)
HALF = 0.5  # of the difference; of a cause, what the short steps may have for it to be one of the long (convention)


class Lengths(NamedTuple):
    """Steps of two lengths on a rank: how many there are of each, and how long a step takes, ns.

    `cause` is the cause of idle time that makes at least half of the difference, `cause_ns` what a
    long step has more of it; "" and 0 where no cause does.
    """

    rank: int
    short_count: int
    short_ns: float
    long_count: int
    long_ns: float
    cause: str
    cause_ns: float


@kept
def lengths(view: Selection) -> Lengths | None:
    """Return the two kinds of steps of the rank with the most steps.

    None where all steps are of one kind.
    """
    found = phases(view)
    found = found[~_shortened(found)]
    loops = found[found["phase"].eq("loop") & found["kind"].notna() & found["kind"].ne(OTHER)]
    loops = loops[loops["repetitions"] > 0]
    if loops.empty:
        return None
    rank = int(str(loops.groupby("rank")["repetitions"].sum().idxmax()))
    mine = loops[loops["rank"] == rank]
    of = mine.groupby(mine["kind"].astype(str))[["dur_ns", "repetitions"]].sum().astype("float64")
    each = (of["dur_ns"] / of["repetitions"]).sort_values(kind="stable")
    changes = int((mine["kind"].astype(str) != mine["kind"].astype(str).shift()).sum()) - 1
    if len(each) < 2 or changes < FEWEST_CHANGES:
        return None
    short = str(each.index[0])
    long = str(each.index[-1])
    cause, more = _difference(view, mine, short, long)
    is_cause = more >= HALF * (each[long] - each[short])
    if _are_parts(view, rank, float(each[long])):
        return None
    counts = of["repetitions"].astype(int)
    lasted = float(each[short]), float(each[long])
    if not is_cause:
        cause = ""
        more = 0.0
    return Lengths(rank, counts[short], lasted[0], counts[long], lasted[1], cause, more)


def _are_parts(view: Selection, rank: int, long_ns: float) -> bool:
    """Tell whether the steps of a rank are much longer than these repetitions: then they are parts of a step."""
    mine = steady(view.steps)
    lasted = mine.loc[mine["rank"] == rank, "dur_ns"]
    return len(lasted) > 0 and bool(lasted.median() >= PARTS * long_ns)


def _shortened(found: pd.DataFrame) -> pd.Series:
    """Tell which rows of PHASES are a single step after a pause, to which the idle time before its work belongs."""
    before = found.groupby("rank")["phase"].shift().astype("string").fillna("")
    return found["repetitions"].eq(1).fillna(False).astype(bool) & before.ne("loop")


def _difference(view: Selection, loops: pd.DataFrame, short: str, long: str) -> tuple[str, float]:
    """Return the cause of idle time of which a long step has most more than a short one, and how much, ns."""
    gaps = idle_gaps(view)
    if gaps is None or gaps.empty:
        return "", 0.0
    start = loops["start_ns"].to_numpy()
    place = np.searchsorted(start, gaps["start_ns"].to_numpy(), side="right") - 1
    end = start + loops["dur_ns"].to_numpy()
    is_mine = gaps["rank"].eq(loops["rank"].iloc[0]).to_numpy()
    inside = is_mine & (place >= 0) & (gaps["start_ns"].to_numpy() < end[place])
    kind = np.where(inside, loops["kind"].astype(str).to_numpy()[place], "")
    parts = idle_parts(gaps).groupby(kind).sum()
    steps = loops.groupby(loops["kind"].astype(str))["repetitions"].sum().astype("float64")
    per_step = parts.reindex(steps.index, fill_value=0).div(steps, axis=0)
    more = (per_step.loc[long] - per_step.loc[short]).drop("edge")
    return str(more.idxmax()), float(more.to_numpy().max())


def of_long_steps(view: Selection, cause: str) -> bool:
    """Tell whether a cause of idle time makes the long steps long."""
    found = lengths(view)
    return found is not None and found.cause == cause


def findings(view: Selection) -> Iterator[Finding]:
    """Yield that the steps of a loop have two lengths, and what makes some of them longer.

    Steps that save the program's state are longer for a reason of their own.
    """
    if unrecorded(view) or len(checkpoints(view)):
        return
    found = lengths(view)
    if found is None:
        return
    source = "steps.detect"
    definition = "mean length of the {} steps of rank {}"
    short = Figure(
        "short_step_ns",
        "Short step",
        found.short_ns,
        "ns",
        definition.format("short", found.rank),
        source,
    )
    long = Figure(
        "long_step_ns",
        "Long step",
        found.long_ns,
        "ns",
        definition.format("long", found.rank),
        source,
    )
    text = (
        f"The loop has two kinds of steps: {found.short_count:,} take {short.text} and "
        f"{found.long_count:,} take "
    )
    text += f"{long.text} on average. No median describes both."
    if found.cause:
        text += (
            f" In a long step the GPU is idle {duration(found.cause_ns)} longer for this reason: "
        )
        text += f"{IDLE.get(found.cause, found.cause)}."
    gain = Gain(1.0, 1.0, "two lengths are no loss by themselves: the long steps may do more work")
    title = f"Steps have two lengths: {short.text} and {long.text}"
    yield tell(STEP_LENGTHS, title, text, (short, long), gain)

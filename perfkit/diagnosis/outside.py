"""What happens outside of the judged part, and what it costs: pauses, and a warm-up before the loop.

A single pause is no habit of the program, and neither are several without a loop, such as those of
libraries that load: they lead no findings. Several pauses of a loop, of which none is
nearly all of them, come again for as long as the program runs, such as when Python collects its
garbage. They count as any other cause. What a pause costs is known: its length. A warm-up makes no
step faster; it leads where else only the GPU's work is left to tell.
"""

from collections.abc import Iterator

import pandas as pd

from perfkit.diagnosis import little, phases, repeating
from perfkit.diagnosis.evidence import advice
from perfkit.diagnosis.finding import HORIZONS, ONCE, Figure, Finding, Gain
from perfkit.diagnosis.pausing import reason
from perfkit.diagnosis.rules.idle import IDLE_HOST_CODE
from perfkit.diagnosis.rules.rule import tell
from perfkit.diagnosis.rules.steps import PAUSES, WARM_UP
from perfkit.format import duration, percent, printable
from perfkit.selection import Selection

NOTABLE = 0.1  # of the recording: a pause or a warm-up that is told (convention)
ALONE = 0.9  # of all pauses: one this long is no habit (convention)
SEVERAL = 2  # slow first repetitions that are a warm-up
SHOWN = 3  # places of pauses in a sentence
SOURCE = "phases.phases"
LENGTH = "a pause costs its length: the rest takes as long without it"


def findings(view: Selection) -> Iterator[Finding]:
    """Yield the pauses, and the warm-up before a loop, where they take a tenth of the recording or more."""
    yield from _pauses(view)
    if view.outside:
        yield from _warm_up(view)


def _pauses(view: Selection) -> Iterator[Finding]:
    rows = phases.paused(view)
    if rows.empty or little.start_up_only(view):
        return
    rank = rows["rank"].iloc[0]
    mine = rows[rows["rank"] == rank]
    every = repeating.phases(phases.recorded(view))
    share = float(mine["dur_ns"].sum() / every.loc[every["rank"] == rank, "dur_ns"].sum())
    if share < NOTABLE:
        return
    is_loop = every["phase"].eq("loop") & every["rank"].eq(rank)
    is_one = mine["dur_ns"].max() > ALONE * mine["dur_ns"].sum()
    comes_again = bool(is_loop.any()) and not is_one
    definition = "share of the recording: gaps that are no part of each repetition"
    figure = Figure("pause_frac", "Pauses", share, "1", definition, SOURCE)
    whole = Gain.whole if comes_again else ONCE
    factor = 1 / max(1 - share, 1e-9)
    gain = Gain(factor, factor, LENGTH, share, whole)
    subject = f"{len(mine):,} pauses take" if len(mine) > 1 else "One pause takes"
    title = f"{subject} {percent(share)} of the recording"
    found = reason(view)
    first = ""
    if found.rule:
        if found.rule is not IDLE_HOST_CODE:  # which says that nothing else was recorded
            title += f", because {found.rule.reason}"
        steps = advice(phases.whole(phases.recorded(view)), found.rule.advice)
        first = next((step for horizon in HORIZONS for step in steps.get(horizon, ())), "")
    whose = f" Most of this time lies in {printable(found.owner, 80)}." if found.owner else ""
    place = duration(int(mine["start_ns"].iloc[0]))
    yield tell(
        PAUSES,
        title,
        f"{_listed(mine)}{whose}",
        (figure,),
        gain,
        first=first,
        place=place,
    )


def _listed(mine: pd.DataFrame) -> str:
    shown = mine.head(SHOWN)
    starts, lengths = shown["start_ns"].tolist(), shown["dur_ns"].tolist()
    if len(mine) == 1:
        return f"It begins at {duration(starts[0])} and lasts {duration(lengths[0])}."
    told = [
        f"{duration(dur)} at {duration(start)}" for start, dur in zip(starts, lengths, strict=True)
    ]
    subject = "The longest last" if len(mine) > len(shown) else "They last"
    return f"{subject} {', '.join(told[:-1])} and {told[-1]}."


def _warm_up(view: Selection) -> Iterator[Finding]:
    """Yield that the first repetitions are slow, of the rank where that takes longest."""
    every = repeating.phases(phases.recorded(view))
    rows = every[every["phase"].eq("start_up") & (every["repetitions"].fillna(0) >= SEVERAL)]
    if rows.empty:
        return
    row = rows.iloc[int(rows["dur_ns"].to_numpy().argmax())]
    share = float(row["dur_ns"] / every.loc[every["rank"] == row["rank"], "dur_ns"].sum())
    if share < NOTABLE:
        return
    count = int(row["repetitions"])
    definition = "share of the recording: time before the first repetition that takes as long as the later ones"
    figure = Figure("warm_up_frac", "Warm-up before the loop", share, "1", definition, SOURCE)
    text = f"The first {count:,} repetitions are slower than the later ones. They are left out of all other figures."
    gain = Gain(
        1.0,
        1.0,
        "warm-up happens once: leaving it out corrects the figures, but makes no program faster",
    )
    yield tell(
        WARM_UP,
        f"Warm-up takes {figure.text} of the recording",
        text,
        (figure,),
        gain,
        level="medium",
    )

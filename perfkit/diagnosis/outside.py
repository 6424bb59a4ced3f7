"""What happens outside of the judged part, and what it costs: start-up, pauses, the end, other work.

What a pause costs is known: its length. A warm-up makes no step faster; it leads where else only
the GPU's work is left to tell.
"""

from collections.abc import Iterator

import pandas as pd

from perfkit.analysis.intervals import Window
from perfkit.diagnosis import little, pausing, phases, programs, repeating
from perfkit.diagnosis.evidence import advice
from perfkit.diagnosis.finding import HORIZONS, ONCE, Figure, Finding, Gain
from perfkit.diagnosis.rules.rule import tell
from perfkit.diagnosis.rules.steps import PAUSES, WARM_UP
from perfkit.format import TIME, duration, number, printable, unit
from perfkit.selection import Part, Selection

NOTABLE = 0.1  # of the recording: a pause or a warm-up that is a finding (convention)
SEVERAL = 2  # slow first repetitions that are a warm-up
# Of the span outside, from which on a reader is told of what the shares are (convention).
BASE = 0.1
LONGEST_NAME = 60  # characters of what other work runs
TABULAR = 120_000_000_000  # ns, from which on `duration` gives minutes
SOURCE = "phases.phases"
LENGTH = "a pause costs its length: the rest takes as long without it"


def findings(view: Selection) -> Iterator[Finding]:
    """Yield the pauses, and the warm-up before a loop, where they take a tenth of the recording or more."""
    yield from _pauses(view)
    if view.is_loop:
        yield from _warm_up(view)


def _pauses(view: Selection) -> Iterator[Finding]:
    found = pausing.pauses(view)
    if found is None or found.share < NOTABLE or little.start_up_only(view):
        return
    definition = "share of the recording: gaps that are no part of each repetition"
    figure = Figure("pause_frac", "Pauses", found.share, "1", definition, SOURCE)
    whole = Gain.whole if found.comes_again else ONCE
    factor = 1 / max(1 - found.share, 1e-9)
    gain = Gain(factor, factor, LENGTH, found.share, whole)
    rule = found.reason.rule
    steps = advice(phases.whole(phases.recorded(view)), rule.advice) if rule else {}
    first = next((step for horizon in HORIZONS for step in steps.get(horizon, ())), "")
    place = duration(int(found.rows["start_ns"].iloc[0]))
    yield tell(PAUSES, found.title, found.place, (figure,), gain, first=first, place=place)


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


def sentences(view: Selection, *, told: str = "") -> str:
    """Say what is outside of the judged part, a sentence each; nothing of the phase that the verdict tells of.

    Where no loop is chosen, all is judged but for pauses.
    """
    if view.part is Part.WHOLE:
        return ""
    found = repeating.phases(phases.recorded(view))
    is_outside = ~phases.is_judged(found)
    if not view.is_loop:
        is_outside &= found["phase"].eq("pause")
    pauses = pausing.pauses(view)
    is_notable = pauses is not None and pauses.share >= phases.NOTABLE
    texts = [pauses.sentences] if pauses and is_notable and told != "pause" else []
    texts += _of_longest(found, is_outside, told)
    if view.is_loop:
        texts.append(_apart(found, view.window))
    texts.append(programs.sentence(view))
    return " ".join(text for text in texts if text)


def _of_longest(found: pd.DataFrame, is_outside: pd.Series, told: str) -> list[str]:
    """Say what is done once, and of what the shares are, on the rank where most of the span is outside."""
    if found.empty or not found["phase"].isin(phases.JUDGED).any():
        return []
    lost = found["dur_ns"].where(is_outside, 0).groupby(found["rank"]).sum()
    share = lost / found.groupby("rank")["dur_ns"].sum()
    rank = share.idxmax()
    mine = found[found["rank"] == rank]
    is_outside = is_outside[mine.index]
    span, rest = int(mine["dur_ns"].sum()), int(mine.loc[~is_outside, "dur_ns"].sum())
    once = dict(_once(mine[is_outside], span))
    once.pop(told, None)
    texts = [*once.values(), *_other_work(mine, is_outside)]
    if rest <= (1 - BASE) * span and not told:  # else the verdict is of the whole recording
        texts.append(f"Shares and gains are of the other {duration(rest)}.")
    return [f"On rank {rank}: {texts[0]}", *texts[1:]] if texts and len(share) > 1 else texts


def _once(mine: pd.DataFrame, span: int) -> Iterator[tuple[str, str]]:
    """Yield start-up and end, if they take a hundredth of the span of their rank, ns, and a sentence about each."""
    lasted = mine["dur_ns"].groupby(mine["phase"], observed=True).sum()
    long = lasted[lasted >= phases.NOTABLE * span]
    if "start_up" in long:
        begin = mine[mine["phase"] == "start_up"]
        slow = begin["name"].dropna().astype(str).tolist()
        warm_up = f", with {slow[0]}" if slow else ""
        takes = _of(long["start_up"], span)
        yield "start_up", f"Start-up takes {takes}, once per process{warm_up}."
    if "end" in long:
        yield "end", f"What follows the last repetition takes {_of(long['end'], span)}, once."


def _other_work(mine: pd.DataFrame, is_outside: pd.Series) -> Iterator[str]:
    """Yield a sentence for the other work of a rank, which is not judged, if it takes a hundredth of the span."""
    others = mine[is_outside & mine["phase"].eq("loop")]
    lasted = int(others["dur_ns"].sum())
    span = int(mine["dur_ns"].sum())
    if lasted < phases.NOTABLE * span:
        return
    judged_from = mine.loc[~is_outside & mine["phase"].eq("loop"), "start_ns"].min()
    is_before = others["start_ns"] < judged_from
    places = {"before": is_before.any(), "after": not is_before.all()}
    place = " and ".join(name for name, there in places.items() if there)
    longest = others.iloc[int(others["dur_ns"].to_numpy().argmax())]
    what = f"other kernels take {_of(lasted, span)}"
    name = printable(str(longest["name"]), LONGEST_NAME)
    yield f"The program has several phases: {place} the one that is judged, {what} ({name})."


def _of(part: int, whole: int) -> str:
    """Return a part of a time and the whole in one unit.

    >>> _of(16_000_000, 18_600_000), _of(86_000_000, 7_610_000_000)
    ('16.0 of 18.6 ms', '86.0 ms of 7.61 s')
    """
    scale = unit(whole, TIME)
    if whole >= TABULAR or part < scale.size:
        return f"{duration(part)} of {duration(whole)}"
    return f"{number(part / scale.size)} of {number(whole / scale.size)} {scale.symbol}"


def _apart(found: pd.DataFrame, window: Window | None) -> str:
    """Say which rank cuts the loop of another one by a tenth or more, as it was recorded for a shorter time."""
    loops = found[phases.is_judged(found)]
    of_rank = loops.assign(end_ns=loops["start_ns"] + loops["dur_ns"]).groupby("rank")
    start, end = of_rank["start_ns"].min(), of_rank["end_ns"].max()
    if window is None or len(start) < 2:
        return ""
    before, after = window[0] - start.min(), end.max() - window[1]
    if max(before, after) < BASE * (end.max() - start.min()):
        return ""
    if before > after:
        apart = f"Rank {start.idxmax()} begins its loop only at {duration(int(start.max()))}."
    else:
        apart = f"Rank {end.idxmin()} ends its loop at {duration(int(end.min()))} already."
    lasts = duration(window[1] - window[0])
    return f"{apart} Shares and gains are of the {lasts} in which all ranks do the same steps."

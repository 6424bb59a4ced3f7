"""What perfkit concludes of a run, as far as a relation compares it, and what two conclusions differ in."""

import importlib
import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from importlib.util import find_spec

from relations.recordings import Recording

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis.headline import headline, leading

RECORDING = "perfkit.diagnosis.recording"  # the module that holds doubts, where it is there
PER_STEP = ("step_median_ns",)
STEP_COUNT = "step_count"
NOISE = 1e-9  # of a figure that sums the same numbers in another order
ALIKE = 0.02  # of a median over other steps of one kind


@dataclass(frozen=True)
class Judgement:
    """The verdict, the rule of the leading finding and its confidence, all findings, figures and doubts.

    `shares` are the largest share of the time of each rule, None where a gain is not one of the
    run's time. `doubts` are the rows that each kind of doubt is about, `advice` the steps of the leading finding.
    """

    verdict: str
    first: str
    confidence: str
    shares: dict[str, float | None]
    figures: dict[str, float]
    doubts: dict[str, int]
    advice: tuple[str, ...] = ()

    @property
    def rules(self) -> set[str]:
        """Return the rules of the findings."""
        return set(self.shares)


def judged(recording: Recording) -> Judgement:
    """Return what perfkit concludes of a recording."""
    view = perfkit.select(recording.run(), window=recording.window)
    figures = diagnosis.figures(view)
    findings = diagnosis.findings(view)
    first = leading(findings)[:1]
    shares: dict[str, float | None] = {}
    for finding in findings:
        known = [s for s in (shares.get(finding.rule), finding.gain.share) if s is not None]
        shares[finding.rule] = max(known, default=None)
    return Judgement(
        headline(view, figures, findings).verdict,
        first[0].rule if first else "",
        first[0].confidence if first else "",
        shares,
        {id: figure.value for id, figure in figures.items()},
        doubts(view),
        tuple(step for finding in first for steps in finding.advice.values() for step in steps),
    )


def doubts(view: perfkit.Selection) -> dict[str, int]:
    """Return how many rows each kind of doubt is about; the notes on files where perfkit has no doubts."""
    if not find_spec(RECORDING):
        return dict.fromkeys(view.run.notes, 1)
    found = importlib.import_module(RECORDING).doubts(view)
    rows: Counter[str] = Counter()
    for doubt in found:
        rows[doubt.kind.name] += doubt.count
    return dict(rows)


def new_doubts(before: Judgement, after: Judgement) -> list[str]:
    """Return the kinds of doubts that are new or about more rows."""
    return sorted(kind for kind, rows in after.doubts.items() if rows > before.doubts.get(kind, -1))


def named(judgement: Judgement) -> str:
    """Return the leading finding in words.

    >>> named(Judgement("", "idle", "high", {}, {}, {}))
    'idle (high)'
    """
    return f"{judgement.first} ({judgement.confidence})" if judgement.first else "nothing"


def other_verdict(before: Judgement, after: Judgement) -> list[str]:
    """Return what differs in the leading finding, its confidence and the doubts."""
    broken = []
    if before.first != after.first:
        broken.append(f"{named(before)} becomes {named(after)}")
    elif before.confidence != after.confidence:
        broken.append(
            f"the confidence in {before.first} turns from {before.confidence} to {after.confidence}"
        )
    broken += [
        f"new doubt: {doubt}" for doubt in sorted(after.doubts.keys() - before.doubts.keys())
    ]
    return broken + [
        f"lost doubt: {doubt}" for doubt in sorted(before.doubts.keys() - after.doubts.keys())
    ]


def other_rules(before: Judgement, after: Judgement, allowed: Collection[str] = ()) -> list[str]:
    """Return which findings appear and which disappear, but those that may."""
    appear = sorted(after.rules - before.rules - set(allowed))
    disappear = sorted(before.rules - after.rules - set(allowed))
    broken = [f"{', '.join(appear)} appears"] if appear else []
    return broken + ([f"{', '.join(disappear)} disappears"] if disappear else [])


def other_figures(
    before: Judgement, after: Judgement, ids: Collection[str] | None = None, within: float = NOISE
) -> list[str]:
    """Return which figures differ by more than a share; of all of them where no ids are given."""
    told = before.figures.keys() | after.figures.keys()
    chosen = sorted(told if ids is None else told & set(ids))
    broken = []
    for id in chosen:
        old, new = before.figures.get(id, math.nan), after.figures.get(id, math.nan)
        is_same = math.isclose(old, new, rel_tol=within, abs_tol=within)
        if not is_same and not (math.isnan(old) and math.isnan(new)):
            broken.append(f"{id} is {new:.6g}, was {old:.6g}")
    return broken

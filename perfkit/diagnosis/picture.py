"""What the picture of the first page shows: the parts of the time, by the ledger of the kind of recording.

Verdict, tile, picture and list take their shares and words from here, so that they name the same loss alike.
"""

from collections.abc import Mapping, Sequence

import pandas as pd

from perfkit.analysis.intervals import cut
from perfkit.diagnosis import counter_ledger, ledger, machine, path_ledger
from perfkit.diagnosis.extensions import extensions
from perfkit.diagnosis.finding import Finding
from perfkit.diagnosis.rules import rule_of
from perfkit.diagnosis.stored import kept
from perfkit.diagnosis.words import words
from perfkit.names import parts as names
from perfkit.selection import Selection

MEASURED: Mapping[str, list[str]] = words(
    "part_of_figure"
)  # by id of a figure, the keys of the parts that it measures
COMPUTATION = ("computation_ns",)


@kept
def shares(view: Selection) -> pd.Series:
    """Return the share of the time (0..1) of each part of the picture, by key, in its order; empty without a ledger.

    The first ledger that the run has: that of the timeline, of the call paths, of the counters, of the log of GPUs, of
    the log of a training.
    """
    for table in (_of_timeline(view), path_ledger.ledger(view)):
        if table["ns"].sum() > 0:
            return names.shares(table)
    if len(view.launches) and view.launches["dur_ns"].sum() > 0:
        return _by(counter_ledger.ledger(view), "cause", names.LIMIT)
    for part in extensions():
        states = part.states(view)
        if len(states):
            return _by(states, "state", {str(state): "" for state in states["state"]})
    passes = machine.phases(view).rename(columns={"median_ns": "ns"})
    return _by(passes, "phase", {str(phase): "" for phase in passes["phase"]})


def _of_timeline(view: Selection) -> pd.DataFrame:
    has_work = len(view.all_kernels) or len(view.copies)
    return ledger.judged(view) if has_work else pd.DataFrame({"ns": []})


def _by(table: pd.DataFrame, column: str, order: Mapping[str, str]) -> pd.Series:
    """Return the shares of the time by a column, in this order."""
    total = float(table["ns"].sum())
    if not total:
        return pd.Series(dtype="float64")
    of_part = table["ns"].groupby(table[column].astype(object)).sum() / total
    return of_part.reindex([key for key in order if key in of_part.index])


def name(key: str) -> str:
    """Return how the picture calls a part.

    >>> name("data_loading"), name("dram"), name("unused")
    ('idle: data loading', 'DRAM', 'unused')
    """
    return names.TIME.get(key, names.LIMIT.get(key, key))


def keys(view: Selection, finding: Finding) -> list[str]:
    """Return the keys of the parts of the picture that a finding tells of, those with most of the time first."""
    present = shares(view)
    told = _holding(finding, present) or own(finding) or _beneath(view, finding)
    known = present[[key for key in told if key in present.index]]
    return [str(key) for key in known.sort_values(ascending=False, kind="stable").index]


def _holding(finding: Finding, present: pd.Series) -> list[str]:
    """Return the first causes of a finding's rule that hold its share: a later one counts where these hold less."""
    causes = rule_of(finding).causes
    share = finding.gain.share
    if len(causes) < 2 or share is None:
        return []
    return _enough(causes, present, share)


def _enough(keys: Sequence[str], present: pd.Series, share: float) -> list[str]:
    """Return the first parts that hold a share of the time together, at least one."""
    held = present.reindex(list(keys)).fillna(0.0)
    before = held.cumsum() - held
    return [*keys[:1], *(str(key) for key in before.index[1:][(before + names.SMALL < share)[1:]])]


def own(finding: Finding) -> tuple[str, ...]:
    """Return the keys of the parts that are what a finding tells of; none where it is something within other parts."""
    rule = rule_of(finding)
    told = rule.causes
    for figure in finding.evidence[:1]:
        told = told or tuple(MEASURED.get(figure.kind or figure.id, ()))
    if not told and (rule.shortens_kernels or rule.is_remainder):
        return COMPUTATION
    return told


def _beneath(view: Selection, finding: Finding) -> tuple[str, ...]:
    """Return the parts in which the longest moment of a finding without a part of its own lies, such as a checkpoint.

    As few as hold the finding's share of the time.
    """
    if finding.seen_at is None or not len(_of_timeline(view)):
        return ()
    start_ns, dur_ns = finding.seen_at
    lines = cut(ledger.booked(view), (start_ns, start_ns + dur_ns))
    of_part = lines["dur_ns"].groupby(names.keys(lines)).sum()
    parts = [str(key) for key in of_part.sort_values(ascending=False, kind="stable").index]
    return tuple(_enough(parts, shares(view), finding.gain.share or 0.0))

"""How much would mending each finding gain, and all of them together?

The range of a finding lasts from what a replay gains (`diagnosis.replayed`) to its analytic bound (Amdahl). Nothing is
sure to be gained where most of the time is warm-up. A finding whose replay gains under a fifth of its share is in
doubt: what it names is not what holds the run up.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from perfkit.analysis import whatif
from perfkit.analysis.grouping import speedup_bounds
from perfkit.analysis.whatif.changes import Change as Replayed
from perfkit.diagnosis.finding import SEVERITIES, Figure, Finding, Gain, Objection, severity
from perfkit.diagnosis.replayed import at_best, saving, within
from perfkit.diagnosis.rules import rule_of
from perfkit.diagnosis.slowing import without_profiler
from perfkit.diagnosis.stored import kept
from perfkit.diagnosis.timeline import (
    STEADY,
    of_steps,
)
from perfkit.format import percent
from perfkit.selection import Selection

DOUBTFUL = (
    0.2  # of its share; a finding whose replay saves less names what does not hold the run up
)


# What remains however well everything else is hidden: the first of these that is known.
FLOORS = ("computation_frac", "paths_kernel_wall_frac")


def gains(view: Selection, findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings with the gain of each as far as a replay can predict it."""
    return [_with_gain(view, finding) for finding in findings]


def _with_gain(view: Selection, finding: Finding) -> Finding:
    rule = rule_of(finding)
    change = rule.change
    is_idle = bool(rule.causes)
    if rule.at_best:
        best = at_best(view, finding.gain, rule.at_best)
        return replace(finding, gain=without_profiler(view, best, is_idle=is_idle))
    if change is None:
        return replace(finding, gain=without_profiler(view, finding.gain, is_idle=is_idle))
    part = of_steps(view) if finding.gain.whole == STEADY else None
    gain = within(part or view, finding.gain, (change.replayed,), change.words, change)
    if not isinstance(change.replayed, whatif.Launches):
        gain = without_profiler(view, gain, is_idle=is_idle)
    if Objection.WARM_UP in finding.objections:
        gain = replace(gain, low=1.0, reason=f"{gain.reason}; warm-up happens once")
    if Objection.BLOCKED in finding.objections:
        gain = replace(
            gain, low=1.0, reason=f"{gain.reason}; it may hold what waiting launches cost"
        )
    finding = replace(finding, gain=gain)
    saved = saving(view, change)
    if saved is None or change.is_partial or saved >= DOUBTFUL * (finding.gain.share or 0.0):
        return finding
    why = f"a simulation with {change.words} saves only {percent(saved)} of the time"
    level = max(severity(saved), finding.severity, key=SEVERITIES.index)
    objections = finding.objections | {Objection.LITTLE_SAVED}
    against = (*finding.against, why)
    return replace(
        finding, confidence="low", against=against, objections=objections, severity=level
    )


def combined(view: Selection, findings: Iterable[Finding], bound: Gain) -> Gain:
    """Return the gain of mending all findings that a replay can predict at once, within their analytic bound."""
    named = [rule_of(finding).change for finding in findings]
    changes = {change.words: change.replayed for change in named if change}
    if not changes:
        return bound
    words = " and ".join(changes) if len(changes) < 3 else "all changes"
    gain = _of_all(view, bound=bound, changes=tuple(changes.values()), words=words)
    return gain if all(named) else replace(gain, high=bound.high)


@kept
def _of_all(view: Selection, *, bound: Gain, changes: tuple[Replayed, ...], words: str) -> Gain:
    """Return `within` of several changes: page and summary both tell it."""
    return within(view, bound, changes, words)


def together(
    findings: Iterable[Finding], figures: Mapping[str, Figure], view: Selection | None = None
) -> Gain | None:
    """Return the gain of mending all findings at once; None where fewer than two say what they could remove.

    The gains' shares are of the time of the run, and may overlap; the share in which the GPU computes cannot be
    removed.
    With `view` the bound (`analysis.grouping.speedup_bounds`) is narrowed by one replay with all changes.
    """
    found = [f for f in findings if f.gain.high > 1 and not f.gain.is_once]
    shares = [f.gain.share for f in found if f.gain.share]
    if len(shares) < 2:
        return None
    shorter = sum(f.gain.share or 0.0 for f in found if rule_of(f).shortens_kernels)
    floor = max(next((figures[i].value for i in FLOORS if i in figures), 0.0) - shorter, 0.0)
    high = min(
        speedup_bounds(shares, [1.0] * len(shares)).high, 1 / floor if floor else float("inf")
    )
    reason = "the findings overlap, so perfkit does not multiply their gains"
    bound = Gain(1.0, high, reason, further=("The kernels' own time remains",))
    gain = combined(view, found, bound) if view else bound
    # All together never gain less than one of them alone.
    members = [f.gain for f in found if f.gain.share]
    low = max(each.low for each in (gain, *members))
    best = max((gain, *members), key=lambda each: each.high)
    beyond = () if best is gain else best.beyond
    return replace(gain, low=low, high=best.high, beyond=beyond, saves=best.saves)

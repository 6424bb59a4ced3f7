"""How much would mending a finding gain? The run is replayed with the change, and the tighter range is told.

The analytic bound (Amdahl) of a finding lets all of its time disappear, or none. The replay times the run again with
streams, launches and waits as they are, so that it knows what else bounds it. Where the two exclude each other, or the
replay refuses, the bound stays and its reason says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from perfkit.analysis import whatif
from perfkit.analysis.whatif import Change, Replay
from perfkit.diagnosis.finding import Finding, Gain
from perfkit.diagnosis.kept import kept
from perfkit.errors import PerfkitError
from perfkit.format import duration, percent
from perfkit.selection import Selection

LOADING = whatif.Host(factor=0.0)
BESIDE = ("copies beside the kernels", whatif.Copies("overlapped"))
GRAPHS = ("launches put in graphs", whatif.Launches("graph"))
WAITS = ("waits for the GPU removed", whatif.Synchronisations())
CHANGES: dict[str, tuple[str, Change]] = {
    "idle_data_loading": ("data loading hidden", LOADING),
    "input": ("data loading hidden", LOADING),
    "idle_sync": WAITS,
    "synchronisation": WAITS,
    "idle_launch": GRAPHS,
    "launch_overhead": GRAPHS,
    "small_operators": GRAPHS,
    "exposed_copy": BESIDE,
    **{f"copies_{kind}": BESIDE for kind in ("small", "pageable", "synchronous", "serial")},
    "exposed_communication": ("communication beside the computation", whatif.Communication()),
}
MOST_KERNELS = 500_000  # a replay of more takes longer than people wait for a finding


def gains(view: Selection, findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings, the gains of those that a replay can predict made tighter."""
    return [_tighter(view, finding) if finding.rule in CHANGES else finding for finding in findings]


def combined(view: Selection, findings: Iterable[Finding], bound: Gain) -> Gain:
    """Return the gain of mending all findings that a replay can predict at once, from one replay with all changes.

    Parameters
    ----------
    view, findings
        A selection and what was found in it.
    bound
        The analytic bound of the same.
    """
    changes = dict(CHANGES[finding.rule] for finding in findings if finding.rule in CHANGES)
    if not changes:
        return bound
    return _within(view, bound, tuple(changes.values()), " and ".join(changes))


def _tighter(view: Selection, finding: Finding) -> Finding:
    words, change = CHANGES[finding.rule]
    return replace(finding, gain=_within(view, finding.gain, (change,), words))


def _within(view: Selection, bound: Gain, changes: tuple[Change, ...], words: str) -> Gain:
    """Return the part of the bound that the replay leaves."""
    told = _replayed(view, changes=changes)
    if isinstance(told, str):
        return replace(bound, reason=f"{bound.reason}; {told}")
    if not told.low_ns:
        return bound
    # A replay is trusted to LIMIT_FRAC, and so are its ends.
    low = told.measured_ns / (told.high_ns * (1 + whatif.LIMIT_FRAC))
    high = told.measured_ns / (told.low_ns * (1 - whatif.LIMIT_FRAC))
    error = percent(abs(told.unchanged_ns / told.measured_ns - 1))
    model = f"replayed with {words}: {duration(told.low_ns)} to {duration(told.high_ns)} (unchanged: off by {error})"
    if low > bound.high or high < bound.low:
        return replace(bound, reason=f"{bound.reason}; {model}, which the bound excludes")
    return replace(bound, low=max(bound.low, low), high=min(bound.high, high), reason=f"{model}; {bound.reason}")


@kept
def _replayed(view: Selection, *, changes: tuple[Change, ...]) -> Replay | str:
    """Return the replay, or why there is none: of all GPUs of the ranks, since their host works for all of them."""
    whole = Selection(view.run, view.ranks, (), view.window, "")
    tables = whole.all_kernels, whole.copies, whole.api_calls
    if len(tables[0]) > MOST_KERNELS:
        return f"not replayed: more than {MOST_KERNELS:,} kernels; choose a window of some steps"
    try:
        return whatif.replay(*tables, changes=changes, window=view.window, ranges=whole.ranges)
    except PerfkitError as e:
        return f"the replay refuses: {str(e).partition('. ')[0]}"

"""What could be gained if all findings were mended at once: one bound, never a product."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perfkit.analysis.speedup import bounds
from perfkit.diagnosis.finding import Figure, Finding, Gain
from perfkit.diagnosis.replayed import combined
from perfkit.selection import Selection

# What remains however well everything else is hidden: the first of these that is known.
FLOORS = ("computation_frac", "paths_kernel_wall_frac")


def together(findings: Iterable[Finding], figures: Mapping[str, Figure], view: Selection | None = None) -> Gain | None:
    """Return the gain of mending all findings at once; None where fewer than two say what they could remove.

    Parameters
    ----------
    findings
        Their gains' shares are of the time of the run, and may overlap.
    figures
        Figures by id; the share of the time in which the GPU computes cannot be removed.
    view
        The selection they were found in: the bound is then narrowed by one replay with all changes.

    References
    ----------
    `analysis.speedup.bounds`.
    """
    found = list(findings)
    shares = [f.gain.share for f in found if f.gain.share]
    if len(shares) < 2:
        return None
    floor = next((figures[i].value for i in FLOORS if i in figures), 0.0)
    high = min(bounds(shares, [1.0] * len(shares)).high, 1 / floor if floor else float("inf"))
    reason = "the shares overlap, so their gains are not multiplied; the kernels' own time remains"
    bound = Gain(1.0, high, reason)
    return combined(view, found, bound) if view else bound

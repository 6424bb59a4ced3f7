"""From figures to findings: what costs time, how much it could gain, and what cannot be told."""

from __future__ import annotations

from perfkit.diagnosis import system
from perfkit.diagnosis.changes import changes
from perfkit.diagnosis.figures import figures, sampled
from perfkit.diagnosis.finding import HORIZONS, SEVERITIES, Figure, Finding, Gain, Refusal, plain
from perfkit.run import Run
from perfkit.selection import Selection, select

__all__ = [
    "HORIZONS",
    "SEVERITIES",
    "Figure",
    "Finding",
    "Gain",
    "Refusal",
    "changes",
    "figures",
    "findings",
    "plain",
    "refusals",
    "sampled",
]

BEYOND = (
    Refusal(
        "Why are the longest kernels slow (stall reasons, roofline, tensor cores)?",
        "a timeline holds no hardware counters of single kernels",
        "ncu --set full --import-source no -o report PROGRAM, for the five longest kernels",
    ),
    Refusal(
        "How much of the hardware's arithmetic peak is used (MFU)?",
        "a timeline does not say how many operations the model needs",
        "tokens or samples per second of the job, and the model's parameters",
    ),
)


def findings(run: Run | Selection) -> list[Finding]:
    """Return what costs time in a run, the most severe first.

    Parameters
    ----------
    run
        A run, or a selection of one.

    Returns
    -------
    list of Finding
        Each rests on figures (value, unit, definition, source) and gives its gain as a range. Gains
        overlap: they are never multiplied or added.
    """
    view = run if isinstance(run, Selection) else select(run)
    return sorted(system.findings(view, figures(view)), key=lambda f: (SEVERITIES.index(f.severity), -f.gain.high))


def refusals(run: Run | Selection) -> list[Refusal]:
    """Return the questions the run cannot answer, each with what to record."""
    lacking = (run.run if isinstance(run, Selection) else run).missing
    return [*(Refusal(m.what[0].upper() + m.what[1:], "not recorded", m.record) for m in lacking), *BEYOND]

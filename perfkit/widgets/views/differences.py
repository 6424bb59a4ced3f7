"""The parts of a comparison of two runs, and what stands in the place of one in which there is nothing.

Functions
---------
made         a part by its name
held         the parts in which there is something
overview     what is compared
uncompared   what is not, and what would tell
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from perfkit import charts
from perfkit.diagnosis import comparison
from perfkit.diagnosis.comparison import Comparison
from perfkit.selection import Selection
from perfkit.widgets.showing import Part

NAMED = {"status": "status", "name": "name"}
COUNTS = {"count_before": "count before", "count_after": "count after"}
TIMES = {"difference_ns": "difference", "total_before_ns": "time before", "total_after_ns": "time after"}
MEDIANS = {"median_ratio": "ratio of medians", "median_before_ns": "median before", "median_after_ns": "median after"}
PATHS = ["status", "name", "unit", "before", "after", "difference", "ratio", "path"]
FIGURES = ["figure", "before", "after", "ratio", "better", "verdict"]
STEP_TITLE = "Step time after the change, over that before"
ALL_COMPARED = "Both runs recorded the same kinds of data, and all of it is compared."


@dataclass(frozen=True)
class Told:
    """A part: the frame of the Comparison that it shows, what that holds, who refuses it, and how it is shown."""

    frame: str
    what: str
    question: str
    make: Callable[[Comparison], list[Part]]


def made(name: str, found: Comparison) -> list[Part]:
    """Return a part of `PARTS`, or the sentence why there is nothing in it."""
    part = PARTS[name]
    return [_nothing(part, found)] if getattr(found, part.frame).empty else part.make(found)


def held(found: Comparison) -> list[str]:
    """Return the names of the parts in which there is something, in their order."""
    return [name for name, part in PARTS.items() if len(getattr(found, part.frame))]


def overview(before: Selection | None, view: Selection) -> Part:
    """Return a table of the two runs: files, tools, GPUs, length, and what was chosen of them."""
    return charts.tables.show(comparison.overview(before, view), caption="The two runs")


def uncompared(found: Comparison) -> Part:
    """Return a table of the questions that stay open, or a sentence."""
    if not found.refusals:
        return ALL_COMPARED
    rows = [(refusal.question, refusal.reason, refusal.record) for refusal in found.refusals]
    table = pd.DataFrame(rows, columns=["question", "why it is open", "what would tell"])
    return charts.tables.show(table, caption="What is not compared")


def _nothing(part: Told, found: Comparison) -> str:
    """Say why there is nothing to compare, in the words of the refusal that is about it, or about everything."""
    about = (part.question, comparison.QUESTION)
    why = next((refusal.reason for refusal in found.refusals if refusal.question in about), "neither run has any")
    return f"No {part.what} to compare: {why}."


def _steps(found: Comparison) -> list[Part]:
    picture = charts.comparison.intervals(found.steps, label="statistic", title=STEP_TITLE)
    table = charts.tables.show(found.steps, caption="Steady steps: warm-up is left out on both sides")
    parts = charts.tables.show(found.parts, caption="Parts of a step on a GPU: they add up to its time")
    return [picture, table, *([parts] if len(found.parts) else [])]


def _families(found: Comparison) -> list[Part]:
    ratios = charts.comparison.intervals(found.families, label="family")
    return [charts.comparison.families(found.families, per=_per(found)), ratios]


def _kernels(found: Comparison) -> list[Part]:
    caption = f"Kernels by the time that moved, per {_per(found)}"
    return [charts.searchable.show(found.kernels, columns={**NAMED, **TIMES, **COUNTS}, caption=caption)]


def _launches(found: Comparison) -> list[Part]:
    caption = "Measured kernels by the time that moved"
    return [charts.searchable.show(found.launches, columns={**NAMED, **MEDIANS, **COUNTS}, caption=caption)]


def _paths(found: Comparison) -> list[Part]:
    caption = f"Call paths by what moved ({found.paths_metric})"
    return [charts.searchable.show(found.paths, columns=PATHS, caption=caption)]


def _samples(found: Comparison) -> list[Part]:
    return [charts.tables.show(comparison.sample_rows(found), caption="Sampled metrics of both runs")]


def _figures(found: Comparison) -> list[Part]:
    rows = comparison.side_rows(found)
    return [charts.searchable.show(rows, columns=FIGURES, caption="Figures before and after")]


def _per(found: Comparison) -> str:
    """Return what kernel times are of."""
    return "step" if len(found.steps) else "run"


TIMELINE = comparison.question("kernels")
PARTS = {
    "steps": Told("steps", "step times", comparison.STEPS.question, _steps),
    "families": Told("families", "families of kernels", TIMELINE, _families),
    "kernels": Told("kernels", "kernels", TIMELINE, _kernels),
    "launches": Told("launches", "kernels under counters", comparison.question("launches"), _launches),
    "paths": Told("paths", "call paths", comparison.question("calltree"), _paths),
    "samples": Told("samples", "sampled metrics", comparison.question("samples"), _samples),
    "figures": Told("figures", "figures", comparison.QUESTION, _figures),
}

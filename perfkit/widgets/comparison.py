"""The view of two runs: what changed from one to the other, as a whole or one part of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import TYPE_CHECKING

import pandas as pd

from perfkit import charts
from perfkit.diagnosis import comparison, verdict
from perfkit.diagnosis.comparison import Comparison
from perfkit.diagnosis.sides import question
from perfkit.format import Shown as Cell
from perfkit.run import Run
from perfkit.selection import Selection
from perfkit.widgets.asides import aside
from perfkit.widgets.live import Live, Part, Shown, shown
from perfkit.widgets.parameters import neighbours

if TYPE_CHECKING:
    from perfkit.widgets.choice import Explorer


NAMED = {"status": "status", "name": "name"}
COUNTS = {"count_before": "count before", "count_after": "count after"}
TIMES = {
    "difference_ns": "difference",
    "total_before_ns": "time before",
    "total_after_ns": "time after",
}
MEDIANS = {
    "median_ratio": "ratio of medians",
    "median_before_ns": "median before",
    "median_after_ns": "median after",
}
PATHS = ["status", "name", "unit", "before", "after", "difference", "ratio", "path"]
FIGURES = ["figure", "before", "after", "ratio", "better", "verdict"]
STEP_TITLE = "Step time after the change, over that before"
ALL_COMPARED = "Both runs recorded the same kinds of data, and all of it is compared."


@dataclass(frozen=True)
class View:
    """A part: the frame of the Comparison that it shows, what that holds, who refuses it, and how it is shown."""

    frame: str
    what: str
    question: str
    make: Callable[[Comparison], list[Part]]


def _steps(both: Comparison) -> list[Part]:
    picture = charts.comparison.intervals(both.steps, label="statistic", title=STEP_TITLE)
    table = charts.tables.show(
        both.steps, caption="Steady steps: warm-up is left out on both sides"
    )
    parts = charts.tables.show(
        both.parts, caption="Parts of a step on a GPU: they add up to its time"
    )
    return [picture, table, *([parts] if len(both.parts) else [])]


def _families(both: Comparison) -> list[Part]:
    ratios = charts.comparison.intervals(both.families, label="family")
    return [charts.comparison.families(both.families, per=_per(both)), ratios]


def _kernels(both: Comparison) -> list[Part]:
    caption = f"Kernels by the time that moved, per {_per(both)}"
    return [
        charts.tables.searchable(
            both.kernels, columns={**NAMED, **TIMES, **COUNTS}, caption=caption
        )
    ]


def _launches(both: Comparison) -> list[Part]:
    caption = "Measured kernels by the time that moved"
    return [
        charts.tables.searchable(
            both.launches, columns={**NAMED, **MEDIANS, **COUNTS}, caption=caption
        )
    ]


def _paths(both: Comparison) -> list[Part]:
    caption = f"Call paths by what moved ({both.paths_metric})"
    return [charts.tables.searchable(both.paths, columns=PATHS, caption=caption)]


def _samples(both: Comparison) -> list[Part]:
    return [charts.tables.show(verdict.sample_rows(both), caption="Sampled metrics of both runs")]


def _figures(both: Comparison) -> list[Part]:
    return [
        charts.tables.searchable(
            verdict.side_rows(both), columns=FIGURES, caption="Figures before and after"
        )
    ]


def _decisions(both: Comparison) -> list[Part]:
    wrapped = verdict.decisions(both).map(
        lambda text: Cell(f'<div class="t" style="min-width:12em">{escape(text)}</div>', text)
    )
    return [charts.tables.show(wrapped, caption="Decisions")]


def _per(both: Comparison) -> str:
    """Return what kernel times are of."""
    return "step" if len(both.steps) else "run"


TIMELINE = question("kernels")
PARTS = {
    "steps": View("steps", "step times", comparison.STEPS.question, _steps),
    "families": View("families", "families of kernels", TIMELINE, _families),
    "kernels": View("kernels", "kernels", TIMELINE, _kernels),
    "launches": View("launches", "kernels under counters", question("launches"), _launches),
    "paths": View("paths", "call paths", question("calltree"), _paths),
    "samples": View("samples", "sampled metrics", question("samples"), _samples),
    "figures": View("figures", "figures", verdict.QUESTION, _figures),
    "decisions": View("figures", "decisions", verdict.QUESTION, _decisions),
}
VERDICT, RUNS = "verdict", "runs"
NEEDS_BASELINE = "This needs an earlier run: the first section says how to name one."
HOW_TO_CHOOSE = (
    "No earlier run is named. Write its path into `baseline` in the first cell and run all cells, or open the "
    "notebooks with `perfkit lab RUN --baseline EARLIER`."
)
COMPARING = "The two runs are being compared. What changed follows here."


def compare(
    source: Selection | Explorer,
    *,
    baseline: Run | Selection | None = None,
    part: str = "",
    peaks: str = "",
) -> Shown | Live:
    """Show what changed from an earlier run to this one: the verdict, and where it comes from.

    Ranks, GPUs, kernels and families are chosen in both runs, the window in this one alone. `baseline`: the earlier
    run; a Selection of it is taken as it is; without one, a sentence. `part`: ``verdict``, ``runs``, ``steps``,
    ``families``, ``kernels``, ``launches`` (kernels under counters), ``paths``, ``samples``, ``figures`` or
    ``decisions``; all when empty. `peaks`: a CSV file of peaks, see `perfkit.hardware.load_peaks`; empty for the GPU's
    data sheet or the report itself.
    """
    names = [VERDICT, RUNS, *PARTS]
    if part and part not in names:
        raise ValueError(
            f"part: {part!r} is no part of a comparison. Choose from {', '.join(names)}."
        )
    compared = partial(verdict.against, baseline=baseline, peaks=peaks)
    earlier: Selection | None = (
        None  # as it was last looked at, held so that its figures are worked out once
    )

    def parts(view: Selection) -> list[Part]:
        nonlocal earlier
        if baseline is None:
            return [how_to_choose(view.run) if part in ("", VERDICT) else NEEDS_BASELINE]
        earlier = verdict.earlier(baseline, view)
        both = (
            compared(view)
            if earlier is None
            else aside(source, view, (baseline, peaks), compared, COMPARING)
        )
        if part in PARTS:
            return made(part, both)
        runs = [
            charts.tables.show(verdict.overview(earlier, view), caption="The two runs"),
            uncompared(both),
        ]
        if part == RUNS:
            return runs
        sentence = verdict.sentence(both) or "Neither run holds figures to compare."
        if part == VERDICT or both.figures.empty:
            return [sentence]
        there = (name for name, of in PARTS.items() if len(getattr(both, of.frame)))
        return [sentence, *(one for name in there for one in made(name, both)), *runs]

    return shown(source, parts)


def how_to_choose(run: Run) -> str:
    """Return a sentence that says how to name an earlier run, and which runs lie beside this one."""
    there = ", ".join(f"`{path}`" for path in neighbours(run))
    return f"{HOW_TO_CHOOSE} Beside this run lie: {there}." if there else HOW_TO_CHOOSE


def made(name: str, both: Comparison) -> list[Part]:
    """Return a part of `PARTS`, or why nothing is in it, in the words of the refusal of it, or of everything."""
    part = PARTS[name]
    if len(getattr(both, part.frame)):
        return part.make(both)
    about = (part.question, verdict.QUESTION)
    why = next(
        (refusal.reason for refusal in both.refusals if refusal.question in about),
        "neither run has any",
    )
    return [f"No {part.what} to compare: {why}."]


def uncompared(both: Comparison) -> Part:
    """Return a table of the questions that stay open, or a sentence."""
    if not both.refusals:
        return ALL_COMPARED
    rows = [(refusal.question, refusal.reason, refusal.record) for refusal in both.refusals]
    table = pd.DataFrame(rows, columns=["question", "why it is open", "what would tell"])
    return charts.tables.show(table, caption="What is not compared")

"""The figures of a comparison itself, for the summary."""

from __future__ import annotations

import math
from collections.abc import Iterator

from perfkit.analysis.compare.verdicts import BETTER, CHANGED, GONE, NEW, UNTESTED, WORSE
from perfkit.diagnosis.comparison.pairing import Comparison
from perfkit.diagnosis.finding import Figure


def facts(found: Comparison) -> list[Figure]:
    """Return the figures of the comparison itself, for the summary; their ids begin with ``compare_``."""
    return [figure for figure in (*_of_steps(found), *_of_kernels(found), *_of_figures(found)) if _known(figure)]


def _known(figure: Figure) -> bool:
    return math.isfinite(figure.value)


def _of_steps(found: Comparison) -> Iterator[Figure]:
    """Yield the median step of both runs, and their ratio with its interval."""
    for row in found.steps.head(1).to_dict("records"):
        source, of = "RANGES, KERNELS; compare.steps", "of the steady steps"
        yield Figure(
            "compare_step_before_ns", "Median step before", row["before_ns"], "ns", f"median {of} before", source
        )
        yield Figure("compare_step_after_ns", "Median step after", row["after_ns"], "ns", f"median {of} after", source)
        ratio = f"median {of} after / before"
        yield Figure("compare_step_frac", "Median step, of that before", row["ratio"], "1", ratio, source)
        ends = (("low", "Lower", row["ratio_low"]), ("high", "Upper", row["ratio_high"]))
        for name, which, value in ends:
            definition = f"{which.lower()} end of the interval of: {ratio}"
            yield Figure(f"compare_step_{name}_frac", f"{which} end of that", value, "1", definition, source)


def _of_kernels(found: Comparison) -> Iterator[Figure]:
    """Yield kernel time per step, and how many kernels changed, are new or gone."""
    if len(found.steps) and len(found.families):
        sums = found.families[["before_ns", "after_ns"]].sum()
        for which in ("before", "after"):
            definition = f"sum of the durations of all kernels in a mean steady step {which}"
            label, source = f"Kernel time per step {which}", "KERNELS; compare.families"
            yield Figure(f"compare_kernels_{which}_ns", label, float(sums[f"{which}_ns"]), "ns", definition, source)
    for name, frame in (("kernels", found.kernels), ("launches", found.launches)):
        for status in (CHANGED, NEW, GONE) if len(frame) else ():
            definition = f"kernels by full name and grid that are {status}; changed: total or count by more than 5 %"
            label, count = f"{name.capitalize()} {status}", float(frame["status"].eq(status).sum())
            yield Figure(f"compare_{name}_{status}_count", label, count, "count", definition, f"compare.{name}")


def _of_figures(found: Comparison) -> Iterator[Figure]:
    """Yield how many figures are better and worse, and how many differ without an interval that could tell."""
    if found.figures.empty:
        return
    source, tested = "compare.figures", "figures of which the whole interval lies beyond what matters"
    for word in (BETTER, WORSE):
        count = float(found.figures["verdict"].eq(word).sum())
        yield Figure(f"compare_{word}_count", f"Figures {word}", count, "count", f"{tested}, {word}", source)
    count = float(found.figures["verdict"].eq(UNTESTED).sum())
    definition = "figures without an interval that differ by 5 %, shares by a point in a hundred as well"
    yield Figure("compare_untested_count", "Figures changed, not tested", count, "count", definition, source)

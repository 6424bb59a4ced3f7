"""A comparison for people: what was compared, the verdict in a sentence, its figures as text."""

import math
from collections.abc import Iterator
from weakref import WeakValueDictionary

import pandas as pd

from perfkit.analysis.compare.pairs import SAME
from perfkit.analysis.compare.resampling import (
    BETTER,
    CHANGED,
    GONE,
    MATTERS,
    NEW,
    SEVERAL,
    SMALL,
    TOLERANCE,
    UNKNOWN,
    UNSEEN,
    UNTESTED,
    WORSE,
)
from perfkit.diagnosis.comparison import Comparison, compared, nothing, part_ids, step_ids
from perfkit.diagnosis.finding import Figure, Refusal, spoken
from perfkit.diagnosis.sides import Given, common, lacking, side
from perfkit.diagnosis.stored import kept
from perfkit.format import duration, elided, number, spoken_ends
from perfkit.run import Run
from perfkit.selection import Selection

QUESTION = "Did the change help?"
NO_BASELINE = Refusal(QUESTION, "no baseline was given", "perfkit report RUN --baseline EARLIER")
ORDER = (WORSE, BETTER, UNTESTED, UNKNOWN, NEW, GONE, SMALL, UNSEEN)
STEP_COUNT = "step_count"
NONE, UNRECORDED = "none", "not recorded"
SIDES = ("before", "after")
TESTED = f"95 % interval {100 * MATTERS:g} % away from 1 (Politis, Romano 1992)"
NAME = 30  # characters of a kernel's in the table
DECIDED = {
    BETTER: "Keep it; look for the next bottleneck",
    WORSE: "Undo it",
    UNSEEN: "Record more steps, or undo it",
}
KERNEL = "Look at it in 3_system; with counters, in 4_kernels"
COMPARABLE = "Record runs whose steps do the same work"
PARTS = {
    "idle": "See in 3_system why the GPU waits",
    "computation": "See in 4_kernels which kernels moved",
    "exposed copy": "See the copies in 3_system",
    "exposed communication": "See collectives and ranks in 3_system",
}
ABOUT = ("run", "recorded with", "GPUs", "recorded for", "selection")
# How a sampled metric's name ends, and the unit of a figure that is; longer endings first.
SUFFIXES = {
    "_bytes_per_s": "bytes/s",
    "_flops_per_s": "FLOP/s",
    "_per_s": "1/s",
    "_frac": "1",
    "_ns": "ns",
}
SUFFIXES |= {"_bytes": "bytes", "_count": "count", "_hz": "", "_w": "", "_c": ""}
UNITS = {"_hz": "Hz", "_w": "W", "_c": "°C"}
# By the run's id and the choice: whoever holds an earlier selection while only the window moves keeps its figures.
_SEEN: WeakValueDictionary[tuple[int, str], Selection] = WeakValueDictionary()


def attempted(before: Given | None, after: Given, *, peaks: str = "") -> Comparison:
    """Return the comparison (see `compared`); an empty one with a refusal where `before` is None, or they share
    nothing.
    """
    if before is None:
        return nothing(NO_BASELINE)
    old, new = side("before", before), side("after", after)
    if not common(old, new):
        return nothing(Refusal(QUESTION, lacking(old, new), "both runs, with the same profiler"))
    return compared(before, after, peaks=peaks)


def overview(before: Given | None, after: Given) -> pd.DataFrame:
    """Return what is compared: the file, tools, GPUs and length of each run, and what was chosen of it.

    Columns `what`, `before`, `after`: text; of repeats each thing once; `before` empty where there is none.
    """
    sides = [
        side(name, given).views if given is not None else []
        for name, given in zip(SIDES, (before, after), strict=True)
    ]
    texts_of = [
        [", ".join(dict.fromkeys(texts)) for texts in zip(*map(_about, views), strict=True)]
        for views in sides
    ]
    rows = zip(ABOUT, texts_of[0] or [""] * len(ABOUT), texts_of[1], strict=True)
    return pd.DataFrame(list(rows), columns=["what", *SIDES])


def _about(view: Selection) -> tuple[str, ...]:
    """Return what a run is, in words, as ABOUT."""
    capture = view.run.capture
    return (
        ", ".join(str(path).rpartition("/")[2] for path in capture["path"]),
        ", ".join(sorted({f"{c.tool} {c.tool_version}".strip() for c in capture.itertuples()})),
        ", ".join(sorted({str(gpu) for gpu in view.devices["name"]})) or UNRECORDED,
        ", ".join(duration(ns) for ns in capture["dur_ns"] if ns) or UNRECORDED,
        view.description,
    )


def sentence(found: Comparison) -> str:
    """Return what the comparison says: the verdict on the step, or on the figures, how sure it is and why not surer."""
    if found.figures.empty:
        return " ".join(
            f"{r.question} Unknown: {r.reason}. Record: {r.record}." for r in found.refusals
        )
    doubts = f" ({'; '.join(found.cautions)})" if found.cautions else ""
    return f"{_verdict(found)}. Confidence in the comparison: {found.confidence}{doubts}."


def _verdict(found: Comparison) -> str:
    if found.steps.empty:
        table = listed(found)
        counts = (f"{int(table['verdict'].eq(word).sum())}" for word in (BETTER, WORSE, UNTESTED))
        told = "The runs share no steps. Of {} figures, {} are better, {} are worse and {} changed without a test"
        return told.format(len(table), *counts)
    median = found.steps.iloc[0]
    if found.other_steps:
        ratio = spoken_ratio(median["ratio"], math.nan, math.nan)
        took = f"took {duration(median['before_ns'])} before and {duration(median['after_ns'])} after ({ratio})"
        return f"perfkit {UNKNOWN} whether the step got faster. A median step {took}, but the steps differ in kind"
    times = f"{duration(median['after_ns'])} instead of {duration(median['before_ns'])}"
    told = f"The {median['statistic']} {found.unit} takes {times}"
    told = f"{told}: {median['verdict']} (ratio {spoken_ratio(*median[['ratio', 'ratio_low', 'ratio_high']])})"
    return f"{told}. {found.allowance.capitalize()}" if found.allowance else told


def spoken_ratio(ratio: float, low: float, high: float) -> str:
    """Return a ratio with its interval as text: "0.900, interval 0.850 to 0.950", or "0.900, no interval"."""
    if math.isnan(ratio):
        return NONE
    if math.isnan(low):
        return f"{number(ratio)}, no interval"
    return f"{number(ratio)}, interval {spoken_ends(low, high)}"


def listed(found: Comparison) -> pd.DataFrame:
    """Return the figures that `side_rows` shows, and that sentences count: one way is better, and one run has some."""
    table = found.figures
    return table[table["better"].notna() & table[["before", "after"]].fillna(0).ne(0).any(axis=1)]


def side_rows(found: Comparison) -> pd.DataFrame:
    """Return the figures that one way is better for, as text: worse first; of a verdict those with an interval first.

    Columns `id`, `figure`, `before`, `after` ("none" where that run lacks it), `ratio`, `better` and `verdict`. Totals
    depend on how long was recorded and are left out, as is what is 0 or missing in both runs.
    """
    judged = listed(found)
    place = judged["verdict"].astype(str).map(ORDER.index).astype("int64")  # also of no rows
    order = (2 * place + judged["ratio_low"].isna()).sort_values(kind="stable")
    rows = []
    for row in judged.loc[order.index].astype(object).to_dict("records"):
        values = (spoken(row["unit"], row[name]) for name in SIDES)
        ratio = spoken_ratio(row["ratio"], row["ratio_low"], row["ratio_high"])
        rows.append(
            (row["id"], row["label"], *values, ratio, f"{row['better']} is better", row["verdict"])
        )
    return pd.DataFrame(
        rows, columns=["id", "figure", "before", "after", "ratio", "better", "verdict"]
    )


def main_rows(found: Comparison, most: int = 8) -> pd.DataFrame:
    """Return the few figures that tell whether the program got faster, and where, as `side_rows`.

    First step times and their parts, whatever their verdict; then the figures that differ, tested ones first, up
    to `most` rows in all.
    """
    rows = side_rows(found)
    told = ([*step_ids(found), STEP_COUNT], part_ids(found.parts))
    first = [rows[rows["id"].isin(ids)] for ids in told]
    rest = rows.drop(index=[*first[0].index, *first[1].index])
    rest = rest[~rest["verdict"].isin([SMALL, UNSEEN, UNKNOWN])]
    return pd.concat([*first, rest.head(max(most - sum(map(len, first)), 0))], ignore_index=True)


def decisions(found: Comparison) -> pd.DataFrame:
    """Return what to decide after a change: a row of text per question that both runs can answer.

    Columns `question`, `figure`, `threshold` with its source, `what it means`, `next step`; no rows where nothing was
    compared.
    """
    rows = (
        []
        if found.figures.empty
        else [*_likeness(found), *_decided_steps(found), *_decided_kernels(found)]
    )
    return pd.DataFrame(
        rows, columns=["question", "figure", "threshold", "what it means", "next step"]
    )


def _likeness(found: Comparison) -> Iterator[tuple[str, ...]]:
    doubts = "; ".join(found.cautions)
    yield (
        "Did only the change change?",
        f"confidence {found.confidence}",
        "same GPUs, profiler and work (convention)",
        doubts or "perfkit found no other difference",
        "Record both runs with the same program, input, GPU and profiler" if doubts else "",
    )


def _decided_steps(found: Comparison) -> Iterator[tuple[str, ...]]:
    for row in found.steps.head(1).to_dict("records"):
        ratio = spoken_ratio(row["ratio"], row["ratio_low"], row["ratio_high"])
        yield (
            "Did the steps get faster?",
            ratio,
            TESTED,
            row["verdict"],
            DECIDED.get(row["verdict"], COMPARABLE),
        )
        enough = min(found.repeats) >= SEVERAL
        yield (
            "Is it more than noise between runs?",
            f"{found.repeats[0]} before, {found.repeats[1]} after",
            f"{SEVERAL} runs of each (convention)",
            "tested between runs" if enough else "not known: tested between steps",
            "" if enough else f"Record {SEVERAL} runs before and {SEVERAL} after",
        )
    for row in (
        found.parts.assign(size=found.parts["difference_ns"].abs())
        .nlargest(1, "size")
        .to_dict("records")
    ):
        moved = (
            f"{row['part']}: {duration(row['before_ns'])} before, {duration(row['after_ns'])} after"
        )
        step = PARTS.get(row["part"], "") if row["verdict"] in (BETTER, WORSE) else ""
        yield "Which part of a step changed most?", moved, TESTED, row["verdict"], step


def _decided_kernels(found: Comparison) -> Iterator[tuple[str, ...]]:
    largest = found.kernels.assign(size=found.kernels["difference_ns"].abs()).nlargest(1, "size")
    for row in largest.to_dict("records"):
        times = (
            f"{duration(row['total_before_ns'])} before, {duration(row['total_after_ns'])} after"
        )
        moved = f"{elided(row['name'], NAME)}: {times}"
        step = {GONE: "Look for the new kernel of its family", SAME: ""}.get(row["status"], KERNEL)
        threshold = f"{100 * TOLERANCE:g} % of time or count (convention)"
        yield "Which kernel changed most?", moved, threshold, row["status"], step


def sample_rows(found: Comparison) -> pd.DataFrame:
    """Return the sampled metrics that are not 0 in both runs, as text in their units.

    Columns `metric`, `before`, `after`: text, "none" where it was not sampled; `ratio` float64, after over before.
    """
    sampled = found.samples[found.samples[[*SIDES]].fillna(0).ne(0).any(axis=1)]
    metrics = [str(metric) for metric in sampled["metric"]]
    told = {side: [*map(_in_unit, metrics, sampled[side])] for side in SIDES}
    named = [metric.removesuffix(_suffix(metric)).replace("_", " ") for metric in metrics]
    return pd.DataFrame({"metric": named, **told, "ratio": sampled["ratio"].to_numpy()})


def _suffix(metric: str) -> str:
    return next((suffix for suffix in SUFFIXES if metric.endswith(suffix)), "")


def _in_unit(metric: str, value: float) -> str:
    """Return a metric's value with the unit that its name ends in."""
    if math.isnan(value):
        return NONE
    suffix = _suffix(metric)
    return (
        spoken(SUFFIXES[suffix], value)
        if SUFFIXES.get(suffix)
        else f"{number(value)} {UNITS.get(suffix, '')}".strip()
    )


def facts(found: Comparison) -> list[Figure]:
    """Return the figures of the comparison itself, for the summary; their ids begin with ``compare_``."""
    figures = (*_of_steps(found), *_of_kernels(found), *_of_figures(found))
    return [figure for figure in figures if math.isfinite(figure.value)]


def _of_steps(found: Comparison) -> Iterator[Figure]:
    """Yield the median step of both runs, and their ratio with its interval."""
    for row in found.steps.head(1).to_dict("records"):
        source, of = "RANGES, KERNELS; compare.steps", "of the steady steps"
        for which in SIDES:
            id, value, definition = (
                f"compare_step_{which}_ns",
                row[f"{which}_ns"],
                f"median {of} {which}",
            )
            yield Figure(id, f"Median step {which}", value, "ns", definition, source)
        ratio = f"median {of} after / before"
        yield Figure(
            "compare_step_frac", "Median step, after / before", row["ratio"], "1", ratio, source
        )
        ends = (("low", "Lower", row["ratio_low"]), ("high", "Upper", row["ratio_high"]))
        for name, which, value in ends:
            definition = f"{which.lower()} end of the interval of {ratio}"
            yield Figure(
                f"compare_step_{name}_frac",
                f"{which} end of the ratio",
                value,
                "1",
                definition,
                source,
            )


def _of_kernels(found: Comparison) -> Iterator[Figure]:
    """Yield kernel time per step, and how many kernels changed, are new or gone."""
    if len(found.steps) and len(found.families):
        sums = found.families[["before_ns", "after_ns"]].sum()
        for which in ("before", "after"):
            definition = f"sum of the durations of all kernels in a mean steady step {which}"
            label, source = f"Kernel time per step {which}", "KERNELS; compare.families"
            yield Figure(
                f"compare_kernels_{which}_ns",
                label,
                float(sums[f"{which}_ns"]),
                "ns",
                definition,
                source,
            )
    for name, frame in (("kernels", found.kernels), ("launches", found.launches)):
        for status in (CHANGED, NEW, GONE) if len(frame) else ():
            definition = f"kernels by full name and grid that are {status}; changed: total or count by more than 5 %"
            label, count = f"{name.capitalize()} {status}", float(frame["status"].eq(status).sum())
            yield Figure(
                f"compare_{name}_{status}_count",
                label,
                count,
                "count",
                definition,
                f"compare.{name}",
            )


def _of_figures(found: Comparison) -> Iterator[Figure]:
    """Yield how many figures are better and worse, and how many differ without an interval that could tell."""
    if found.figures.empty:
        return
    table = listed(found)
    source, tested = "compare.figures", "figures whose whole interval is beyond the tolerance"
    for word in (BETTER, WORSE):
        count = float(table["verdict"].eq(word).sum())
        yield Figure(
            f"compare_{word}_count", f"Figures {word}", count, "count", f"{tested}, {word}", source
        )
    count = float(table["verdict"].eq(UNTESTED).sum())
    definition = (
        "figures without an interval that differ by 5 %; shares also by one percentage point"
    )
    yield Figure(
        "compare_untested_count", "Figures changed, not tested", count, "count", definition, source
    )


def earlier(baseline: Run | Selection | None, view: Selection) -> Selection | None:
    """Return an earlier run with the ranks, GPUs, kernels and families of a choice, and without its window.

    What the run does not have is left empty: a kernel can be new. A Selection of it is taken as it is; None where there
    is none. It is the same object while somebody holds it and nothing but the window of `view` differs.
    """
    if not isinstance(baseline, Run):
        return baseline
    made = Selection(baseline, view.ranks, view.gpus, None, view.pattern, view.families)
    return _SEEN.setdefault((id(baseline), made.description), made)


@kept
def against(
    view: Selection, *, baseline: Run | Selection | None = None, peaks: str = ""
) -> Comparison:
    """Return the comparison of a choice with an earlier run, seen alike, as from `attempted` (`baseline` as in
    `earlier`).

    The same object for the same arguments, so that callers change nothing in it; empty with a refusal where there is no
    earlier run, or that has no kernel of what is chosen.
    """
    before = earlier(baseline, view)
    has_kernels = (
        [len(of.kernels) + len(of.launches) > 0 for of in (view, before.run, before)]
        if before
        else []
    )
    if before is not None and has_kernels == [True, True, False]:
        reason = f"the earlier run has no kernel of what is chosen ({before.description})"
        return nothing(
            Refusal(QUESTION, reason, "a choice of kernels, ranks and GPUs that both runs have")
        )
    return attempted(before, view, peaks=peaks)

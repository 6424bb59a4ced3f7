"""What stands on the first page alone: bounds of call paths, remarks, advice, open questions, published claims."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from perfkit.analysis import calltree
from perfkit.diagnosis import headline, path_verdict, potential, recording, refusals
from perfkit.diagnosis.finding import HORIZONS, LEAST, Figure, Finding, Refusal, plain
from perfkit.diagnosis.timeline import too_few
from perfkit.format import Shown, percent
from perfkit.report import blocks
from perfkit.report.comparison import against_promised, against_published, published
from perfkit.selection import Selection

MOST_FINDINGS = 3  # in "What to do first"
MOST_QUESTIONS = 4
HOURS_A_DAY, HOURS_A_MONTH = 24, 720
WORKING = {
    "device_busy_frac",
    "paths_gpu_busy_frac",
    "log_gpu_busy_frac",
}  # figures of how long GPUs work
TENTH = 0.1
PRICE = "For the cost of idle time, give --price-per-gpu-hour."
ANSWERED = "Every question that this kind of recording can answer is answered."
CHECK = "Keep what you gain: `perfkit check RUN --baseline EARLIER` in CI fails when a figure gets worse."
LISTS = (
    "tiles",
    "ranking",
    "gains",
    "recommendations",
    "bounds",
    "questions",
    "advice",
)  # of the first page
BOUND_KEYS = [
    "what",
    "of_gpu",
    "of_wall",
    "target",
    "at_most",
]  # of a row of bounds in summary.json
CLAIMED = ["claim", "published", "counted the same way here", "true here", "why they differ"]
UTILISATION = "gpu_share"  # what the published summary called utilisation
SAME = 0.01  # relative difference of two sums that needs no reason
WHY = {
    UTILISATION: "the time of all CPU threads is no wall time, so this is no utilisation",
    "launch_overhead": "kernels do not wait for 5 µs each: launches run on the CPU beside them",
}
COUNTED_AGAIN = "counted once per caller, of the main thread only"
OTHER_RECORDING = "another recording"


class Advice(NamedTuple):
    """The steps of one finding within one horizon, with what they are for."""

    horizon: str
    title: str
    gain: str
    place: str
    steps: tuple[str, ...]


def bounds(view: Selection, figures: Mapping[str, Figure]) -> pd.DataFrame:
    """Return `diagnosis.potential.rows`: what a run with call paths gains at most, row by row."""
    return potential.rows(view, figures)


def remarks(view: Selection, figures: Mapping[str, Figure]) -> Shown | None:
    """Return the remarks below the picture, a sentence or more; None without any."""
    said = remark(view, figures)
    return blocks.note(said) if said else None


def remark(view: Selection, figures: Mapping[str, Figure]) -> str:
    """Return the place of most GPU time on call paths, what follows from leading doubts, and what idle time costs."""
    doubts = recording.leading(view)
    if recording.holds_no_gpu_work(view):
        doubts = doubts[1:]  # the verdict quotes the first in full
    texts = [path_verdict.place(view)]
    texts += [f"{doubt.consequence}. {doubt.remedy}." for doubt in doubts]
    if not too_few(view) and not recording.is_mostly_unknown(view):
        texts.append(cost(figures))
    return " ".join(text for text in dict.fromkeys(texts) if text)


def cost(figures: Mapping[str, Figure]) -> str:
    """Return what the whole job costs, what idle time costs, and what a tenth less time saves; without a price how to
    give it.

    Where the hours of the job are unknown, a month has 30 days, in which the GPUs are paid all the time.
    """
    if "job_whole_cost_count" in figures:
        return _whole_cost(figures)
    idle, tenth = figures.get("job_idle_cost_per_h"), figures.get("job_tenth_cost_per_h")
    if tenth is None:
        return PRICE if WORKING & set(figures) else ""
    saved = f"A run that is 10 % shorter saves {tenth.value * HOURS_A_MONTH:,.2f} a month."
    if idle is None:
        return saved
    day, month = idle.value * HOURS_A_DAY, idle.value * HOURS_A_MONTH
    return f"Idle time costs {day:,.2f} a day and {month:,.2f} a month, in the currency of your price. {saved}"


def _whole_cost(figures: Mapping[str, Figure]) -> str:
    """Return what the whole job costs, what of that is idle time, and what a tenth less time saves."""
    whole = figures["job_whole_cost_count"].value
    idle = figures.get("job_whole_idle_cost_count")
    lost = f", {idle.value:,.2f} of it while the GPUs are idle" if idle else ""
    saved = f"A run that is 10 % shorter saves {TENTH * whole:,.2f}."
    return f"The whole job costs {whole:,.2f}{lost}, in the currency of your price. {saved}"


def advice(findings: Iterable[Finding]) -> list[Advice]:
    """Return the steps that "What to do first" does not say yet, each once, by horizon and finding.

    Findings that are known to gain less than 1 % ask for nothing.
    """
    ordered = [finding for finding in headline.ranked(findings) if not headline.is_small(finding)]
    told = set(first_actions(ordered))
    groups: list[Advice] = []
    for horizon in HORIZONS:
        left = blocks.FIRST[horizon]
        for finding in ordered:
            steps = [step for step in finding.advice.get(horizon, ()) if step not in told][:left]
            if steps:
                told.update(steps)
                left -= len(steps)
                groups.append(_advised(finding, horizon, steps, groups))
    return groups


def _advised(
    finding: Finding, horizon: str, steps: Sequence[str], earlier: Iterable[Advice]
) -> Advice:
    """Return the steps of a finding; gain and place stand at its first horizon alone."""
    if any(group.title == finding.title for group in earlier):
        return Advice(horizon, finding.title, "", "", tuple(steps))
    return Advice(horizon, finding.title, _gain(finding), finding.place, tuple(steps))


def first_actions(findings: Iterable[Finding]) -> list[str]:
    """Return the steps that "What to do first" says."""
    shown = headline.leading(findings)[:MOST_FINDINGS]
    actions = [blocks.first_action(finding) for finding in shown]
    return [action for action in actions if action]


def _gain(finding: Finding) -> str:
    gain = finding.gain
    is_told = gain.is_known and gain.high >= LEAST and not gain.is_once
    return gain.text if is_told else ""


def recommendations(findings: Sequence[Finding]) -> Shown:
    """Return the further steps by horizon: a heading for each finding, with its gain, and its steps below."""
    groups = advice(findings)
    weeks = [
        (title, [group for group in groups if group.horizon == horizon])
        for horizon, title in blocks.WEEKS.items()
    ]
    count = sum(len(group.steps) for group in groups)
    html = blocks.block("recommendations", weeks, _left(findings, groups), CHECK)
    return Shown(html, f"{count} steps")


def _left(findings: Iterable[Finding], groups: Iterable[Advice]) -> str:
    """Return where to find the steps that the page leaves out; empty where it leaves out none."""
    findings = list(findings)
    every = {step.text for steps in blocks.plan(findings).values() for step in steps}
    told = {step for group in groups for step in group.steps} | set(first_actions(findings))
    return _more(len(every - told))


def steps_left(content: Mapping[str, Any]) -> str:
    """Return the same from the `summary` of summary.json."""
    every = {step["text"] for step in content["recommendations"]}
    told = {step for group in content["advice"] for step in group["steps"]}
    told |= {finding["action"] for finding in content["ranking"][:MOST_FINDINGS]}
    return _more(len(every - told))


def _more(count: int) -> str:
    """Return where to find this many further steps.

    >>> _more(1), _more(0)
    ('The pages of the steps list 1 more recommendation, each with its finding.', '')
    """
    plural = "s" if count > 1 else ""
    return (
        f"The pages of the steps list {count} more recommendation{plural}, each with its finding."
        if count
        else ""
    )


def open_questions(items: Iterable[Refusal]) -> list[Refusal]:
    """Return the questions that this kind of recording could have answered, at most MOST_QUESTIONS."""
    return [item for item in items if not item.is_of_another_tool][:MOST_QUESTIONS]


def questions(items: Iterable[Refusal]) -> Shown:
    """Return the open questions, why they are open, and what to record."""
    asked = open_questions(items)
    return blocks.refusals(asked) if asked else blocks.note(ANSWERED)


def claims(view: Selection, figures: Mapping[str, Figure], path: str = "") -> pd.DataFrame:
    """Return published figures beside those of this recording, CLAIMED.

    `path`: as in `perfkit.report.against_published`; empty for none. Only figures that the file holds have a row.
    """
    if not path or view.run.calltree.empty:
        return pd.DataFrame(columns=CLAIMED)
    held = published(Path(path))
    sums = calltree.tree_sums(view.run.calltree, view.run.call_metrics)
    sums = sums[sums["figure"].isin(list(held))].reset_index(drop=True)
    table = against_published(sums, path)
    why = [
        _why(name, *ends)
        for name, *ends in zip(sums["figure"], sums["tree_sum"], sums["all_threads"], strict=True)
    ]
    columns = (table["figure"], table["published"], table.iloc[:, 2], table.iloc[:, -1], why)
    rows = pd.DataFrame(dict(zip(CLAIMED, columns, strict=True)))
    busy = figures.get("paths_gpu_busy_frac")
    if UTILISATION in held and UTILISATION not in set(sums["figure"]) and busy:
        first = (
            "GPU utilisation",
            percent(held[UTILISATION]),
            "-",
            f"{busy.text} of the wall time",
            WHY[UTILISATION],
        )
        rows = pd.concat([pd.DataFrame([first], columns=CLAIMED), rows], ignore_index=True)
    return rows


def _why(name: object, tree: float, true: float) -> str:
    """Return why a published figure differs from the true one."""
    reasons = [WHY[str(name)]] if name in WHY else []
    if abs(tree - true) > SAME * abs(true):
        reasons.append(COUNTED_AGAIN)
    return "; ".join([*reasons, OTHER_RECORDING])


def promise(view: Selection, figures: Mapping[str, Figure], path: str = "") -> Shown | None:
    """Return why the published gains cannot be multiplied, with the bound of this recording; None without a file."""
    said = against_promised(path)
    if said is None:
        return None
    rows = potential.rows(view, figures)
    bound = (
        f" In this recording, all of them together gain {rows.iloc[-1].to_list()[-1]}."
        if len(rows)
        else ""
    )
    return Shown(
        f"{said.html}{blocks.note(bound.strip()).html if bound else ''}", f"{said.text}{bound}"
    )


def summary(
    view: Selection, figures: Mapping[str, Figure], findings: Sequence[Finding], *, peaks: str = ""
) -> dict[str, Any]:
    """Return the first page as values of JSON."""
    rows = bounds(view, figures).rename(
        columns=dict(zip(potential.COLUMNS, BOUND_KEYS, strict=True))
    )
    return {
        **blocks.summary(view, figures, findings),
        "bounds": rows.to_dict("records"),
        "remark": remark(view, figures),
        "questions": [plain(item) for item in open_questions(refusals(view, peaks=peaks))],
        "advice": [group._asdict() | {"steps": list(group.steps)} for group in advice(findings)],
    }

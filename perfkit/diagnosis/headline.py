"""The first screen of a report: the verdict in one or two sentences, and the numbers that a reader asks for first.

The verdict is that of the finding with the largest achievable gain (`ranked`); a run without findings is described by
the number that its recording answers best.
"""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from perfkit.analysis import python_functions, stacks
from perfkit.analysis.causes import where
from perfkit.analysis.readings import DEVICE
from perfkit.diagnosis import (
    little,
    outside,
    path_verdict,
    paths,
    pausing,
    phases,
    picture,
    recording,
)
from perfkit.diagnosis.finding import (
    CONFIDENCES,
    HORIZONS,
    LEAST,
    SEVERITIES,
    WIDE,
    Figure,
    Finding,
    Gain,
)
from perfkit.diagnosis.gain import together
from perfkit.diagnosis.interconnect import explained, ranks_connected, transports
from perfkit.diagnosis.logged import is_logged
from perfkit.diagnosis.machine import PHASES
from perfkit.diagnosis.pausing import Pauses
from perfkit.diagnosis.recording import of_the_time
from perfkit.diagnosis.rules import rule_of
from perfkit.diagnosis.rules.call_paths import PATHS_GPU_IDLE
from perfkit.diagnosis.rules.rule import Hides
from perfkit.diagnosis.tiles import RATES, READ, Tile, read_in_log, readings, shares, tiles
from perfkit.diagnosis.timeline import STEADY, too_few
from perfkit.format import duration, number, percent, printable, size
from perfkit.names.parts import LIMIT, SMALL, TIME, WORK
from perfkit.selection import Selection

FAILED = "The run failed"  # how the verdict begins where a reader's note says so
TIMED = {"span_ns", "paths_wall_ns"}  # of a run whose time is known
CLOSE = 1.1  # a range this narrow is one number
NOTABLE = 0.05  # of the time
LONGEST_NAME = 80  # characters of a function
# A run is at most this many times as long as its median steps, if these show where time goes.
ALL_STEPS = 1.25
MOSTLY = 0.9  # of a recording without a loop: pauses that the verdict begins with (convention)
OF_KERNELS = (
    0.04  # counted for kernels of which nobody knows how much faster they can be (convention)
)
INSTANCE = re.compile(r"mig_\w+_graphics_active_frac")
MEMORY = re.compile(r"[- ]+(?:SXM\d?|PCIe|PCIE|NVL|\d+ ?GB|HBM\d\w*)\b.*")
# Of a run without findings: figures that a sentence needs, and the sentence.
SENTENCES: tuple[tuple[str, str], ...] = (
    (
        "device_busy_frac",
        "{who} busy {device_busy_frac} of the time. No finding costs 10 % of the time or more.",
    ),
    (
        "baseline_step_ns",
        "One training step takes {baseline_step_ns}. The log does not show what limits it.",
    ),
    *(
        (id, f"{label} reaches {{{id}}} of bus bandwidth with large messages{{of_line_rate}}.")
        for label, ids, _ in RATES
        for id in ids
    ),
    ("log_gpu_busy_frac", "{logged}"),
    ("roof_share_frac", "The measured kernels reach {roof_share_frac} of their roof."),
    ("achieved_occupancy_frac", "The measured kernels reach {achieved_occupancy_frac} occupancy."),
    (
        "log_sm_active_frac",
        "The SMs were active {log_sm_active_frac} of the time. No check of the log needs attention.",
    ),
    (
        "measured_count",
        "Measured launches: {measured_count}, {measured_dur_ns} in all. No finding follows from them.",
    ),
    (
        "paths_gpu_busy_frac",
        "The GPU worked {paths_gpu_busy_frac} of the wall time. No finding costs 10 % of it.",
    ),
    ("paths_host_ns", "The threads took {paths_host_ns} of {host_time}. No GPU work was recorded."),
)
AFTER_A_FAILURE = (
    "Find the rank that stopped first: compare the last lines that each rank printed. To see what each rank waited "
    "for, run the program again with TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1."
)
MEASURED = "perfkit found no problem in these measurements. To find causes, record a timeline of the program."
NOT_JUDGED = (
    "The recording shows how fast this runs, and not what limits it. To find causes, record a "
    "timeline of the program."
)
NO_CHECK = "No check of the log needs attention. To see what a GPU waits for, record a timeline."
NO_GPU = "perfkit found no problem in this recording. To see what a GPU does, record a timeline."


RATED = {"baseline_step_ns", *(id for _, ids, _ in RATES for id in ids)}
LINE_RATES = ("baseline_all_reduce_ratio", "baseline_all_to_all_ratio")  # as TILES names them


@dataclass(frozen=True)
class Headline:
    """The verdict in words, and the numbers next to the verdict, the most asked for first."""

    verdict: str
    tiles: tuple[Tile, ...]


def headline(
    view: Selection, figures: Mapping[str, Figure], findings: Sequence[Finding]
) -> Headline:
    """Return the verdict of a run and at most six tiles. `figures` and `findings` are those of the same selection."""
    view = phases.selection(view)
    of_run = [f.gain for f in findings if f.gain.whole == Gain.whole]
    best = together(findings, figures, view) or max(of_run, key=achievable, default=None)
    ends = [*_ends(view, figures, findings, None if too_few(view) else best)]
    verdict = (
        f"{FAILED}: {error}."
        if (error := failure(view))
        else _doubted(view, figures, findings, best)
    )
    told = "pause" if _mostly_paused(view) else _phase_told(view, findings)
    further = outside.sentences(view, told=told)
    if recording.is_mostly_unknown(view):
        ends = []
        further = ""
    return Headline(f"{verdict} {further}".strip(), tuple(tiles(view, figures, ends)))


def _phase_told(view: Selection, findings: Iterable[Finding]) -> str:
    """Return the phase that the verdict is about; empty where it is about the judged part, or about no cause."""
    first = named(view, findings)
    return rule_of(first).phase if first else ""


def named(view: Selection, findings: Iterable[Finding]) -> Finding | None:
    """Return the finding that the verdict is about; None where it is about none."""
    if failure(view) or recording.is_mostly_unknown(view) or too_few(view):
        return None
    return cause(findings)


def _doubted(
    view: Selection, figures: Mapping[str, Figure], findings: Sequence[Finding], best: Gain | None
) -> str:
    """Return the verdict on what is known, after the doubt that touches most of the recording, if it is a tenth."""
    # `_verdict` itself tells that there is too little to judge.
    told = recording.Kind.TOO_LITTLE
    doubts = [doubt for doubt in recording.leading(view) if doubt.kind is not told]
    pauses = _mostly_paused(view)
    verdict = _verdict(view, figures, findings, best)
    if pauses:
        rest = f"All else on this page is of the other {duration(pauses.rest_ns)}."
        verdict = f"{pauses.sentences} {rest} {verdict}"
    if not doubts:
        return verdict
    first = doubts[0]
    if recording.holds_no_gpu_work(view):
        return " ".join((first.text, *(f"{doubt.seen}." for doubt in doubts[1:2])))
    if recording.is_mostly_unknown(view):
        share = percent(recording.unknown_frac(view))
        return f"{first.seen}. {share} of the GPU's time is unknown, so the recording shows no cause. {first.remedy}."
    return f"{first.seen}. {verdict}"


def _mostly_paused(view: Selection) -> Pauses | None:
    """Return the pauses that take nine tenths of a recording without a loop; None elsewhere."""
    if view.is_loop or recording.is_mostly_unknown(view) or little.start_up_only(view):
        return None
    found = pausing.pauses(view)
    return found if found and found.share >= MOSTLY else None


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings by the gain that can be achieved, the middle of the time saved; low confidence comes last.

    Before all comes warm-up where it is most of what was measured, or where else only the GPU's work is left to tell,
    and launches that wait: they hide what the steps need. How much faster the kernels of a computing GPU can be is not
    known: it counts for OF_KERNELS. In the same way what limits kernels, and for what their warps wait, comes after
    the cause that counters name. What a log alone shows comes after all that a timeline tells.
    """
    findings = list(findings)
    has_timeline = any(finding.rests_on_times for finding in findings)

    def saving(finding: Finding) -> float:
        saved = achievable(finding.gain)
        if rule_of(finding).is_remainder:  # with a place it names a slow path
            saved = (finding.gain.share or 0.0) / 2 if finding.place else OF_KERNELS
        clearer = [saving(other) for other in findings if _is_clearer(other, finding)]
        return min(saved, max(clearer, default=saved))

    is_left_to_kernels = all(
        rule_of(finding).is_remainder or saving(finding) <= 0 for finding in findings
    )

    def order(finding: Finding) -> tuple[bool, bool, bool, float, int, int]:
        is_sign = has_timeline and rule_of(finding).is_sign
        doubt, vague = CONFIDENCES.index(finding.confidence), rule_of(finding).vagueness or 0
        is_of_warm_up = rule_of(finding).hides is Hides.IF_SEVERE
        hides = _hides(finding) or (is_left_to_kernels and is_of_warm_up)
        is_unsure = finding.confidence == CONFIDENCES[-1]
        return not hides, is_sign, is_unsure, -saving(finding), vague, doubt

    return sorted(findings, key=order)


def leading(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings as `ranked`, the cause that the verdict names first.

    What saves under 1 % of the time, or happened once, is never first and left out; so is what gains nothing, unless
    it is first.
    """
    order = [
        finding
        for finding in ranked(findings)
        if not is_small(finding) and not finding.gain.is_once
    ]
    if not order:
        return []
    first = _largest_cause(order)
    others = [finding for finding in order if finding is not first and finding.gain.high > 1]
    return [first, *others]


def is_small(finding: Finding) -> bool:
    """Tell whether a finding is known to save less than 1 % of the time."""
    return 1 < finding.gain.high < LEAST


def _hides(finding: Finding) -> bool:
    return rule_of(finding).hides is Hides.ALWAYS or _is_warm_up(finding)


def _is_warm_up(finding: Finding) -> bool:
    """Tell whether a finding says that most of what was measured happens once."""
    return rule_of(finding).hides is Hides.IF_SEVERE and finding.severity == SEVERITIES[0]


def _is_clearer(finding: Finding, other: Finding) -> bool:
    """Tell whether a finding says more of the same kernels than another one."""
    vagueness = rule_of(finding).vagueness
    return vagueness is not None and vagueness < (rule_of(other).vagueness or 0)


def achievable(gain: Gain) -> float:
    """Return the share of the time that a gain saves, the middle of its range; 0 where it is not known.

    >>> achievable(Gain(1.0, 2.0, "")), achievable(Gain(1.0, math.inf, ""))
    (0.25, 0.0)
    """
    best = gain.high if math.isfinite(gain.high) else gain.low
    return ((1 - 1 / gain.low) + (1 - 1 / best)) / 2


def speaking(gain: Gain) -> str:
    """Return what mending the cause gains, as a sentence.

    >>> speaking(Gain(4.5, 4.7, "")), speaking(Gain(1.0, 1.5, "")), speaking(Gain(1.0, 1.004, ""))
    ('Fixing this makes the run about 4.6 times faster.', 'Fixing this alone makes the run at most 1.5 times faster.', \
'Fixing this saves less than 1 % of the time.')
    """
    if not gain.is_known and gain.low >= LEAST:
        return f"Fixing this probably makes {gain.whole} at least {_times(gain.low)} faster."
    if not gain.is_known:
        return f"The recording does not show how much faster {gain.whole} can get."
    if gain.high < LEAST:
        return "Fixing this saves less than 1 % of the time." if gain.high > 1 else ""
    if gain.low < LEAST:
        return f"Fixing this alone makes {gain.whole} at most {_times(gain.high)} faster."
    if gain.high / gain.low < CLOSE:
        return f"Fixing this makes {gain.whole} about {_times(math.sqrt(gain.low * gain.high))} faster."
    return f"Fixing this makes {gain.whole} {gain.low:.{1 if gain.low >= CLOSE else 2}f} to {_times(gain.high)} faster."


def _times(factor: float) -> str:
    if factor < CLOSE:
        return percent(factor - 1)
    return f"{number(factor) if factor >= 10 else f'{factor:.1f}'} times"


def _verdict(
    view: Selection, figures: Mapping[str, Figure], findings: Sequence[Finding], best: Gain | None
) -> str:
    if why := too_few(view) or paths.too_few(figures):
        return f"{why}. {little.REMEDY}."
    order = leading(findings)
    if not order:
        texts = {id: figure.text for id, figure in figures.items()}
        texts |= {"who": _who(view, figures), "of_line_rate": _of_line_rate(figures)}
        if "paths_host_ns" in figures:
            texts["host_time"] = figures["paths_host_ns"].subject
        if "log_gpu_busy_frac" in figures:
            texts["logged"] = _logged(view, figures["log_gpu_busy_frac"])
        return next(
            (text.format(**texts) for id, text in SENTENCES if id in figures), _only_recorded(view)
        )
    first = order[0]
    is_of_warm_up = rule_of(first).hides is Hides.IF_SEVERE
    if is_of_warm_up and view.is_loop:  # the judged part is not told yet
        rest = [finding for finding in findings if finding is not first]
        return f"{first.title}. {_verdict(view, figures, rest, best)}"
    if first.rule == PATHS_GPU_IDLE.name:
        return path_verdict.verdict(view, figures)
    idle = figures.get("idle_frac")
    share = first.gain.share or 0.0
    if rule_of(first).reason and idle and share <= idle.value:
        said = _idle_because(view, figures, first)
    else:  # no cause of idle time, or one that holds up copies too
        said = f"{first.title}.{_states(view, first)}"
        said += (
            " Record steady steps before you optimise the program." if _is_warm_up(first) else ""
        )
    is_timed = TIMED & set(figures) or first.gain.high < WIDE
    return f"{said} {_mended(first, best) if is_timed else ''}".strip()


def _of_line_rate(figures: Mapping[str, Figure]) -> str:
    """Return which share of the links' line rate the collective of the verdict reaches; empty if not known."""
    known = [figures[id] for id in LINE_RATES if id in figures]
    return f", {known[0].text} of the line rate" if known else ""


def _idle_because(view: Selection, figures: Mapping[str, Figure], finding: Finding) -> str:
    """Return how long the GPU was idle, and how much of that was because of a finding."""
    idle = figures["idle_frac"]
    share = percent(finding.gain.share) if finding.gain.share else ""
    part = f": {share}" if share and share != idle.text else ""
    because = "probably because" if finding.confidence == CONFIDENCES[-1] else "because"
    reason = finding.because or rule_of(finding).reason
    time = f"idle {shares(view, 'idle', idle)} {of_the_time(view)}"
    return f"{_who(view, figures)} {time}{part} {because} {reason}."


def _states(view: Selection, finding: Finding) -> str:
    """Return how the GPUs of a log spent their time, where a finding tells of a state.

    Of what has no part of the picture of its own, such as checkpoints: the part in which it is. Empty for all else.
    """
    keys = picture.keys(view, finding)
    if keys and not picture.own(finding):
        parts = " and ".join(f"“{picture.name(key)}”" for key in keys)
        return f" In the picture this is part of {parts}."
    if not keys or keys[0] in TIME or keys[0] in LIMIT or keys[0] in PHASES.values():
        return ""
    notable = [
        f"{key} {percent(share)}" for key, share in picture.shares(view).items() if share >= SMALL
    ]
    return f" By state: {', '.join(notable)}." if len(notable) > 1 else ""


def cause(findings: Iterable[Finding]) -> Finding | None:
    """Return the finding that the verdict is about; None where none is worth it."""
    return next(iter(leading(findings)), None)


def _largest_cause(order: Sequence[Finding]) -> Finding:
    """Return the first finding; of causes of idle time the one with the largest share of the time.

    A cause that is less sure than the first must have over twice its share.
    """
    first = order[0]
    causes = [finding for finding in order if rule_of(finding).reason and finding.gain.share]
    if first not in causes:
        return first
    larger = [finding for finding in causes if _is_larger(finding, first)]
    return max(larger, key=_share, default=first)


def _is_larger(finding: Finding, first: Finding) -> bool:
    is_less_sure = CONFIDENCES.index(finding.confidence) > CONFIDENCES.index(first.confidence)
    return _share(finding) > (2 if is_less_sure else 1) * _share(first)


def _share(finding: Finding) -> float:
    return finding.gain.share or 0.0


def _mended(finding: Finding, best: Gain | None) -> str:
    """Return what mending a cause gains; of a GPU that computes, what all findings leave to gain."""
    if not rule_of(finding).is_remainder:
        return speaking(finding.gain)
    if finding.place:  # a known slow path
        steps = (step for horizon in HORIZONS for step in finding.advice.get(horizon, ()))
        return f"{next(steps)}."
    rest = 1 - min(finding.evidence[0].value, 1.0)
    subject = "All else" if finding.is_mean else "On average, all else"
    others = f"{subject} costs at most {percent(rest)}." if rest >= 1 - 1 / LEAST else ""
    return f"{finding.because}. {others}".strip() if finding.because else others


def nothing_found(figures: Collection[str]) -> str:
    """Return why there is no finding: nothing costs much, or what was recorded cannot show what does."""
    if "span_ns" in figures or "measured_count" in figures:
        return "No finding costs a tenth of the time or more."
    if any(name.startswith("log_") for name in figures):
        return NO_CHECK
    is_judged = any(name in figures for name in LINE_RATES)
    if not is_judged and any(name in figures for name in RATED):
        return NOT_JUDGED
    return MEASURED if any(name.startswith("baseline_") for name in figures) else NO_GPU


def _logged(view: Selection, busy: Figure) -> str:
    """Return what a log of the GPUs says in which no check needs attention."""
    when = "At the only reading, " if readings(view) == 1 else ""
    on = f" on {busy.subject}" if busy.subject else ""
    ran = f"{when}a kernel ran {busy.text} of the time{on}"
    instances = _instances(view)
    if len(instances):
        ends = dict.fromkeys(percent(share) for share in (instances.min(), instances.max()))
        ran = f"{when}instances of the GPU (MIG) were busy {' to '.join(ends)} of the time"
        ran += f", all of it {busy.text}"
    return f"{ran[0].upper()}{ran[1:]}. No check of the log needs attention."


def _instances(view: Selection) -> pd.Series:
    """Return the average utilisation of each instance of a GPU that MIG divides."""
    logged = view.samples[where(view.samples["metric"], INSTANCE.fullmatch)]
    return logged.groupby([*DEVICE, "metric"], observed=True)["value"].mean()


def failure(view: Selection) -> str:
    """Return how a run failed, in the words of its log; empty if no log says so."""
    said = (profile.failure for profile in view.run.profiles if profile.failure)
    return printable(next(said, "").rstrip("."), 240)


def _only_recorded(view: Selection) -> str:
    """Return what is known of a run that has neither a finding nor a figure that sums it up."""
    links = view.run.links
    if len(links):
        connected = ranks_connected(links)
        used = transports(view)
        listed = ", ".join(f"{count:,} {explained(str(name))}" for name, count in used.items())
        of = f": of {used.sum():,} connections with a known transport, {listed}." if listed else "."
        return f"NCCL connected {connected} ranks{of}"
    timed = view.collectives
    if len(timed):
        names = ", ".join(
            sorted({str(name).replace("_", "-") for name in timed["operation"].dropna()})
        )
        sizes = " to ".join(
            dict.fromkeys(size(end) for end in (timed["bytes"].min(), timed["bytes"].max()))
        )
        return f"The log holds {names} with messages of {sizes}, too few to judge their bandwidth."
    inspected = view.run.inspected
    if len(inspected):
        members, ranks = inspected["member"].nunique(), int(inspected["ranks"].max())
        counted = f"{len(inspected):,} operation{'s' * (len(inspected) > 1)} of NCCL"
        return (
            f"The recording holds {counted}, of {members} of {ranks} ranks. "
            "Record every rank: only the times of all ranks show the transfer without the wait."
        )
    enqueued = view.run.enqueued
    if len(enqueued):
        ranks = enqueued["rank"].nunique()
        held = f"{len(enqueued):,} operations of NCCL on {ranks} rank{'s' * (ranks > 1)}"
        return f"The dumps hold {held}. None of them shows a rank that waits for another."
    if len(view.ops):
        held = f"{len(view.ops):,} operators of the CPU"
        return f"The recording holds {held} and no work of a GPU.{_of_python(view)}"
    if len(view.run.python_calls):
        return f"The recording holds Python functions and no work of a GPU.{_of_python(view)}"
    if len(view.run.os_calls):
        return f"The recording holds {len(view.run.os_calls):,} calls of the operating system and no work of a GPU."
    if is_logged(view):
        known = next(
            (
                f" Its {t.label[0].lower()}{t.label[1:]} was {t.value}."
                for t in read_in_log(view, READ)
            ),
            "",
        )
        return f"The log does not say how busy the GPU was.{known}"
    names = ", ".join(sorted({printable(name, 60) for name in view.devices["name"]}))
    return f"The recording describes {names or 'a machine'}, but no work of a program."


def _of_python(view: Selection) -> str:
    """Say which Python function takes most time of its own; empty where none was recorded."""
    functions = python_functions.summary(view.run.python_calls, view.run.ops)
    if functions.empty:
        return ""
    first = functions.iloc[0]
    name = printable(stacks.shown(str(first["name"])), LONGEST_NAME)
    return f" The longest Python function is {name}: {percent(first['share_frac'])} of the time."


def _who(view: Selection, figures: Mapping[str, Figure]) -> str:
    """Return the GPUs of a run as the subject of a sentence about the past, with its verb.

    >>> _shorter("NVIDIA A100-SXM4-80GB"), _shorter("NVIDIA H100 80GB HBM3"), _shorter("NVIDIA GeForce RTX 4090")
    ('A100', 'H100', 'RTX 4090')
    """
    names = {_shorter(str(name)) for name in view.devices["name"]}
    count = (
        int(figures["gpu_count"].value) if "gpu_count" in figures else 1
    )  # of these GPUs, that many worked
    one = next(iter(names)) if len(names) == 1 else ""
    if count > 1:
        return f"The {count} {f'{one} ' if one else ''}GPUs were"
    return f"The {one} was" if one else "The GPU was"


def _shorter(name: str) -> str:
    return (
        printable(
            MEMORY.sub("", re.sub(r"^(?:NVIDIA|AMD|Tesla|GeForce|Radeon|\s)+", "", name)).strip(),
            40,
        )
        or "GPU"
    )


def _ends(
    view: Selection, figures: Mapping[str, Figure], findings: Sequence[Finding], gain: Gain | None
) -> Iterator[Tile]:
    """Yield the last tiles: the loss that the verdict names, unless the cost of idle time is a tile, and the gain."""
    if "job_idle_cost_per_h" not in figures:
        yield from _loss(view, findings)
    if gain and gain.is_known and gain.high >= LEAST:
        value, note = (f"up to {gain.best}", "best case, all findings fixed")
        if gain.low >= LEAST:
            value, note = gain.likely, f"likely, all findings fixed; best case {gain.best}"
        if gain.likely == gain.best:
            note = "all findings fixed"
        yield Tile("Possible gain", value, note)


def _loss(view: Selection, findings: Sequence[Finding]) -> Iterator[Tile]:
    """Yield the tile of what the verdict names, in the words and with the share of the picture."""
    first = cause(findings)
    if first is None:
        return
    parts = picture.keys(view, first)
    is_work = bool(parts) and parts[0] in WORK  # of which the finding may be about a part only
    share = None if is_work else first.gain.share
    if parts and not share:
        parts = parts[:1]  # without a share of its own it tells of the largest
    if parts:
        present = picture.shares(view)
        lost = share or float(present[parts].sum())
        value = percent(lost)
        others = present.drop([*parts, *WORK], errors="ignore")
        label = "Loss to mend first" if others.max() > lost else "Largest loss"
        label = "Largest part" if is_work else label
        named = ", ".join(picture.name(key) for key in parts)
        within = "" if picture.own(first) else f"{rule_of(first).about}, in "
        yield Tile(label, value, f"{within}{named}", first.evidence[0])
    elif first.evidence and (share or _is_warm_up(first)):
        is_outside = bool(rule_of(first).phase and outside.sentences(view))
        yield Tile(
            "Largest loss",
            percent(share or first.evidence[0].value),
            f"{rule_of(first).about}{', outside the judged part' if is_outside else ''}",
            first.evidence[0],
        )


def saved(gain: Gain, figures: Mapping[str, Figure]) -> str:
    """Return the time that a gain saves in a step, or else in the run, from the likely to the best case; or nothing."""
    step, span = figures.get("step_median_ns"), figures.get("span_ns")
    is_per_step = step is not None and _steps_are_all(step, figures)
    whole = step if is_per_step else span
    is_of_it = gain.whole == Gain.whole or (is_per_step and gain.whole == STEADY)
    if whole is None or not is_of_it or gain.high < LEAST or not gain.is_known:
        return ""
    ends = [duration(whole.value * share) for share in gain.saved_fracs]
    return f"{' to '.join(dict.fromkeys(ends))} per {'step' if is_per_step else 'run'}"


def _steps_are_all(step: Figure, figures: Mapping[str, Figure]) -> bool:
    """Tell whether so many median steps take about as long as the work of the GPU, of which a gain is a share."""
    if not {"span_ns", "step_count"} <= set(figures):
        return True
    steps = step.value * figures["step_count"].value
    return figures["span_ns"].value / ALL_STEPS <= steps <= 2 * figures["span_ns"].value

"""What `perfkit.diagnosis` asks of a log of the GPUs: its rules, facts, figures and findings, as step 2 checks them.

Means are weighted by time, and over GPUs each counts alike. The verdicts are those of
`monitoring.checks`.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from perfkit.analysis.readings import DEVICE, throttling
from perfkit.diagnosis.finding import Figure, Finding, Gain, removing, severity
from perfkit.diagnosis.logged import HARDLY, is_logged, window
from perfkit.diagnosis.rules import by_kind
from perfkit.diagnosis.rules.rule import Fact, tell
from perfkit.diagnosis.sources import Source
from perfkit.diagnosis.speed import slowed_by_clock
from perfkit.diagnosis.stored import kept
from perfkit.diagnosis.tiles import named_gpus, readings
from perfkit.diagnosis.words import words
from perfkit.format import duration, percent
from perfkit.logs import monitoring
from perfkit.logs import rules as RULES
from perfkit.logs.monitoring.levels import NEAR_POWER, SHEET
from perfkit.logs.rules import (
    LOG_CAPPED,
    LOG_LITTLE_POWER,
    LOG_NO_WORK,
    LOG_STOPPED,
    LOG_UNUSED,
    LOG_WAITED_FOR,
)
from perfkit.selection import Selection

MEANINGS = words("log")
LEDGER = "monitoring.ledger"
RUNNING = ("working", "little power", *monitoring.states.LOWERED)
HALF = 0.5  # of the time
# Shares of the memory and of the power limit that a GPU without a program stays below
# (conventions).
EMPTY, AT_REST = 0.01, 0.25
NOTABLE = 0.1  # of the time with a lowered clock, from which on it matters like any other share
# Of what the highest power and memory are a share, and whether only a data sheet says it.
LIMITS = {
    ("power", False): "of the limit",
    ("power", True): "of the limit in the data sheet",
    ("memory", False): "of what the GPU has",
    ("memory", True): "of what the GPU has",
}
UNIT_OF = {"frac": "1", "bytes_per_s": "bytes/s"}  # of a figure, by that of a check
TITLES = {
    "utilisation": "{gpu} reached 80 % utilisation for only {share} of the time",
    "memory": "The memory of {gpu} is {share} full",
    "power": "{gpu} draws only {share} of its power limit",
    "throttling": "{cause} lowered the clock of {gpu} {share} of the time",
}
LOWERING = {"power": "the power limit", "thermal": "heat"}
NEVER = {"utilisation": "{gpu} never reached 80 % utilisation"}  # where the share is 0


def figures(view: Selection) -> Iterator[Figure]:
    """Yield the figures of a log of the GPUs; what it does not hold is absent."""
    if not is_logged(view):
        return
    used = monitoring.utilisation(view.samples, window=window(view))
    for column, (label, definition) in MEANINGS.items():
        if used[column].notna().any():
            source = "monitoring.utilisation"
            value = float(used[column].mean())
            of = _read_of(view, used[used[column].notna()])
            yield Figure(f"log_{column}", label, value, "1", definition, source, subject=of)
    idle = monitoring.idle(view.samples, window=window(view)).dropna(subset=["idle_frac"])
    if len(idle):
        definition = "share of the time with readings of no kernel at all; average over the GPUs"
        value = float(idle["idle_frac"].mean())
        yield Figure(
            "log_idle_frac",
            "Readings without a kernel (log)",
            value,
            "1",
            definition,
            "monitoring.idle",
        )
    throttled = throttling(view.samples, window=window(view)).dropna(subset=["throttled_frac"])
    if len(throttled):
        definition = (
            "share of the time in which power, heat or another reason lowered the clock; average "
            "over the GPUs"
        )
        value = float(throttled["throttled_frac"].mean())
        yield Figure(
            "log_throttled_frac", "Clock lowered", value, "1", definition, "monitoring.throttling"
        )
    limits = monitoring.at_limit(view.samples, view.devices, window=window(view))
    limits = limits.dropna(subset="worst_frac")
    for quantity in ("power", "memory"):
        yield from _highest(view, limits[limits["quantity"].eq(quantity)], quantity)


def _read_of(view: Selection, rows: pd.DataFrame) -> str:
    """Return the GPUs that these rows are of; empty where they are all GPUs of the log."""
    every = view.samples[DEVICE].drop_duplicates()
    return "" if len(rows) == len(every) else named_gpus(view, rows)


def _highest(view: Selection, limits: pd.DataFrame, quantity: str) -> Iterator[Figure]:
    """Yield the highest reading of each GPU as a share of its limit, and that of the GPU which is nearest to it."""
    source = "monitoring.at_limit"
    for row in limits.to_dict("records"):
        place = f"{quantity}_{row['rank']}_{row['gpu']}"
        label = f"Highest {quantity}, GPU {row['gpu']}"
        definition = f"highest reading, as a share of the limit ({row['source']})"
        yield Figure(f"log_{place}_frac", label, float(row["worst_frac"]), "1", definition, source)
    for row in limits.nlargest(1, "worst_frac").to_dict("records"):
        of = LIMITS[quantity, str(row["source"]) == SHEET]
        if len(limits) > 1:
            of += f", GPU {row['gpu']}"
        definition = "highest reading of any GPU, as a share of its limit"
        id, value = f"log_highest_{quantity}_frac", float(row["worst_frac"])
        yield Figure(id, f"Highest {quantity}", value, "1", definition, source, subject=of)


@kept
def states(view: Selection) -> pd.DataFrame:
    """Return `monitoring.ledger` of the part of the log that is judged."""
    return monitoring.ledger(view.samples, view.devices, window=window(view))


def findings(view: Selection) -> Iterator[Finding]:
    """Yield what the ledger of the log shows, then one finding per check of step 2 that asks for attention."""
    if not is_logged(view):
        return
    if is_without_work(view):
        yield _no_work(view)
        return
    yield from _unused(view)
    yield from _stopped(view)
    yield from _waiting(view)
    yield from _capped(view)
    yield from _checked(view)


@kept
def busy_of_each(view: Selection) -> pd.Series:
    """Return the share of the time in which each GPU of the log worked: with a kernel, or else with an active SM.

    NaN where the log does not say it.
    """
    used = monitoring.utilisation(view.samples, window=window(view))
    return used["gpu_busy_frac"].fillna(used["sm_active_frac"])


def is_without_work(view: Selection) -> bool:
    """Tell whether the log shows that no GPU works, and no timeline says otherwise."""
    busy = busy_of_each(view)
    if len(view.all_kernels):
        return False
    if busy.isna().all():  # or of no GPU at all
        return is_at_rest(view)
    works = states(view)["state"].isin(RUNNING)
    return bool(busy.notna().all() and not works.any() and (busy < HARDLY).all())


@kept
def highest(view: Selection) -> pd.DataFrame:
    """Return the highest power and memory of each GPU as a share of its limit: index rank, gpu; NaN if not known."""
    limits = monitoring.at_limit(view.samples, view.devices, window=window(view))
    shares = limits.astype({"quantity": object}).pivot_table(
        index=DEVICE, columns="quantity", values="worst_frac"
    )
    every = pd.MultiIndex.from_frame(view.samples[DEVICE].drop_duplicates())
    return shares.reindex(index=every, columns=["memory", "power"])


def is_at_rest(view: Selection) -> bool:
    """Tell whether no program holds memory on any GPU, and each draws as little power as without work."""
    most = highest(view)
    return bool((most["memory"].lt(EMPTY) & most["power"].lt(AT_REST)).all())


def _no_work(view: Selection) -> Finding:
    """Return that no GPU of the log works."""
    busy = busy_of_each(view)
    if busy.isna().all():
        return _at_rest(view)
    definition = "share of the time of all GPUs of the log in which no kernel ran"
    value = float(1 - busy.mean())
    idle = Figure(
        "log_no_work_frac",
        "Time without a kernel",
        value,
        "1",
        definition,
        "monitoring.utilisation",
    )
    count = readings(view)
    during = "the only reading" if count == 1 else f"{count:,} readings"
    which = "the GPU" if len(busy) == 1 else f"any of the {len(busy)} GPUs"
    title = f"No kernel ran on {which} during {during} of the log"
    if busy.max() > 0:
        title = f"Hardly any kernel ran on {which} during {during} of the log"
    text = "A display or a monitor causes readings below 5 %: the log shows no work of a program."
    nothing = Gain(1.0, math.inf, "nothing ran that could be faster")
    return tell(LOG_NO_WORK, title, text, (idle,), nothing, level="high")


def _at_rest(view: Selection) -> Finding:
    """Return that no program uses a GPU of the log, which does not say how busy the GPUs are."""
    most, count = highest(view), len(highest(view))
    which, draws = ("the GPU", "it draws") if count == 1 else ("any GPU", "each draws at most")
    limit = "its power limit"
    title = (
        f"No program holds memory on {which}, and {draws} {percent(most['power'].max())} of {limit}"
    )
    text = "The log does not say how busy a GPU is, but a program would hold memory."
    nothing = Gain(1.0, math.inf, "nothing ran that could be faster")
    evidence = tuple(f for f in figures(view) if f.id in LOG_NO_WORK.evidence)
    return tell(LOG_NO_WORK, title, text, evidence, nothing, level="high")


def _in(view: Selection, *names: str, least: float = NOTABLE) -> pd.DataFrame:
    """Return the rows of the ledger of GPUs that are in one of some states for this share of their time or more."""
    found = states(view)
    return found[found["state"].isin(names) & (found["share_frac"] >= least)]


def _average(rows: pd.DataFrame, column: str) -> float:
    """Return the average of a column of the ledger, by time; NaN where nothing was recorded."""
    known = rows.dropna(subset=column)
    return float(np.average(known[column], weights=known["ns"])) if len(known) else math.nan


def _unused(view: Selection) -> Iterator[Finding]:
    """GPUs that do nothing while others of their rank work, and in which no program holds memory."""
    found = states(view)
    unused = _in(view, "unused", least=1.0)
    if unused.empty:
        return
    used = found[_is_in(found, found[found["state"].isin(RUNNING)])]
    gpus, count = len(found[DEVICE].drop_duplicates()), len(unused)
    busy = used[used["state"].isin(RUNNING)]["ns"].sum() / used["ns"].sum()
    definition = "share of the time of all GPUs of the log that belongs to GPUs without any work"
    value = float(unused["ns"].sum() / found["ns"].sum())
    share = Figure("log_unused_frac", "Unused GPUs", value, "1", definition, LEDGER)
    definition = "share of the time in which a kernel ran, of the GPUs that work"
    others = Figure("log_used_busy_frac", "GPUs that work", float(busy), "1", definition, LEDGER)
    verb = "is" if count == 1 else "are"
    title = f"{count} of {gpus} GPUs {verb} not used: {named_gpus(view, unused)}"
    run = "runs" if len(used[DEVICE].drop_duplicates()) == 1 else "run"
    title += f", while {named_gpus(view, used)} {run} kernels {others.text} of the time"
    text = "No kernel ran there during the whole log"
    is_known = view.samples["metric"].eq("memory_used_bytes").any()
    text += ", and no program holds memory there as on the others." if is_known else "."
    most = 1 + count / len(used[DEVICE].drop_duplicates())
    gain = Gain(1.0, most, "best case: the work divides evenly over these GPUs too", value)
    yield tell(LOG_UNUSED, title, text, (share, others), gain, level=severity(value))


def _ended(view: Selection) -> pd.DataFrame:
    """Return the rows of the ledger of GPUs that stop long before most others; empty where half of them do."""
    found = states(view)
    ended = _in(view, "ended")
    working = found[found["state"].isin(RUNNING) & ~_is_in(found, ended)]
    return ended if len(ended) <= len(working[DEVICE].drop_duplicates()) else ended.iloc[:0]


def _stopped(view: Selection) -> Iterator[Finding]:
    """GPUs that stop working while most others go on."""
    ended = _ended(view)
    if ended.empty:
        return
    last = monitoring.states.last_work(view.samples, window=window(view))
    is_stopped = _is_in(last, ended)
    stop_ns, end_ns = int(last.loc[is_stopped, "end_ns"].min()), int(last["end_ns"].max())
    value = float(ended["share_frac"].mean())
    definition = "share of the log after the last work of the GPUs that stop early; their average"
    share = Figure("log_stopped_frac", "Stopped early", value, "1", definition, LEDGER)
    others = int((~is_stopped).sum())
    work = "1 other GPU works" if others == 1 else f"{others} other GPUs work"
    when = f"at {duration(stop_ns)}" if len(ended) == 1 else f"from {duration(stop_ns)} on"
    title = f"{named_gpus(view, ended)} stopped working {when}"
    text = f"No kernel ran there for the last {share.text} of the log; {work} until {duration(end_ns)}."
    nothing = Gain(1.0, math.inf, "the log shows that a GPU stopped, but not why")
    title += f", while {work} on for {duration(end_ns - stop_ns)}"
    yield tell(LOG_STOPPED, title, text, (share,), nothing, level="high")


def _waiting(view: Selection) -> Iterator[Finding]:
    """GPUs at full utilisation that draw little power: they wait for another GPU, or nobody knows for what."""
    waiting = _in(view, "little power")
    if waiting.empty:
        return
    definition = (
        "share of the time at full utilisation with under 40 % of the power limit, of these GPUs"
    )
    value = float(waiting["share_frac"].mean())
    share = Figure(
        "log_little_power_frac", "Full, with little power", value, "1", definition, LEDGER
    )
    definition = "average power at that time, as a share of the limit"
    drawn = _average(waiting, "power_frac")
    power = Figure("log_waiting_power_frac", "Power at that time", drawn, "1", definition, LEDGER)
    nothing = Gain(
        1.0,
        math.inf,
        "the log shows that GPUs wait, but not how much work is left without the wait",
    )
    late = _in(view, "idle", least=HALF)
    late = late[~_is_in(late, waiting)]
    count = len(waiting[DEVICE].drop_duplicates())
    if len(late):
        who = named_gpus(view, late)
        several_late = len(late) > 1
        waits = "1 GPU waits" if count == 1 else f"{count} GPUs wait"
        title = (
            f"{who} {'do' if several_late else 'does'} nothing while {waits} for "
            f"{'them' if several_late else 'it'}"
        )
        title += f" at full utilisation with {power.text} of the power"
        text = (
            f"{named_gpus(view, waiting)}: a kernel runs there {share.text} of the time, but draws "
            f"only {power.text} of the power limit. Kernels of collectives (NCCL) look so while "
            "they wait: they spin."
        )
        yield tell(LOG_WAITED_FOR, title, text, (share, power), nothing, level="high")
        return
    verb = "runs" if count == 1 else "run"
    title = (
        f"{named_gpus(view, waiting)} {verb} kernels without a break, but with only {power.text} "
        "of the power"
    )
    text = (
        f"This holds {share.text} of the time. Kernels of collectives look so while they wait for "
        "another GPU or node (they spin), and so do small kernels that run one at a time."
    )
    yield tell(LOG_LITTLE_POWER, title, text, (share, power), nothing, level="medium")


def _capped(view: Selection) -> Iterator[Finding]:
    """GPUs whose power something else than their own limit holds down."""
    capped = _in(view, "capped")
    if capped.empty:
        return
    definition = (
        "share of the time of these GPUs in which the driver lowers the clock by power under 80 % "
        "of the limit"
    )
    share = Figure(
        "log_capped_frac", "Capped", float(capped["share_frac"].mean()), "1", definition, LEDGER
    )
    definition = "average power while capped, as a share of the GPU's own limit"
    power = Figure(
        "log_capped_power_frac",
        "Power, capped",
        _average(capped, "power_frac"),
        "1",
        definition,
        LEDGER,
    )
    one = len(capped) == 1
    title = (
        f"The power of {named_gpus(view, capped)} is capped at {power.text} of "
        f"{'its' if one else 'their'} limit"
    )
    evidence = [share, power]
    clock = _average(capped, "clock_frac")
    text = f"The driver gives power as the reason for a low clock for {share.text} of the time."
    if not math.isnan(clock):
        definition = "average SM clock while capped, as a share of its maximum"
        figure = Figure("log_capped_clock_frac", "Clock, capped", clock, "1", definition, LEDGER)
        evidence.append(figure)
        title += f", and {'its' if one else 'their'} clock at {figure.text} of the maximum"
    others = states(view)
    others = others[others["state"].isin(RUNNING) & ~_is_in(others, capped)]
    usual = _average(others, "clock_frac")
    if len(others):
        verb = "is" if len(others[DEVICE].drop_duplicates()) == 1 else "are"
        text += f" {named_gpus(view, others)} {verb} not capped."
    yield tell(
        LOG_CAPPED, title, text, tuple(evidence), _uncapped(share.value, clock, usual), level="high"
    )


def _uncapped(share: float, clock: float, usual: float) -> Gain:
    """Return the gain of the clock that the neighbours have, or else the maximum, in this share of the time."""
    if math.isnan(clock):
        return Gain(1.0, math.inf, "the log lacks the clock, so what the cap costs is not known")
    full = 1.0 if math.isnan(usual) else usual
    lost = share * max(1 - clock / full, 0.0)
    best = "it gets its highest clock"
    if not math.isnan(usual):
        best = "all GPUs wait for this one, and it gets the clock of the others"
    return removing(lost, f"best case: {best}")


def _is_in(rows: pd.DataFrame, of: pd.DataFrame) -> pd.Series:
    """Tell which rows are of GPUs that `of` has too."""
    known = {*of[DEVICE].itertuples(index=False, name=None)}
    return pd.Series(
        [place in known for place in rows[DEVICE].itertuples(index=False, name=None)],
        rows.index,
        bool,
    )


def _checked(view: Selection) -> Iterator[Finding]:
    """Yield one finding per check that asks for attention, over the GPUs of which no finding told already."""
    every = monitoring.checks(view.samples, view.devices, window=window(view))
    is_low = every["check"].eq("utilisation") & every["value"].lt(every["threshold"])
    found = every[every["verdict"].astype(str).eq("attention")]
    waiting = _in(view, "little power")
    late = _in(view, "idle", least=HALF) if len(waiting) else waiting
    idle = pd.concat([_in(view, "unused", least=1.0), late, _ended(view)])
    low = every[is_low]  # little power follows from it, also where too few readings judge it
    told = {
        "utilisation": idle,
        "power": pd.concat([idle, waiting, _in(view, "capped"), low]),
        "throttling": pd.concat([_in(view, "capped"), _costed(view)]),
    }
    for check, rows in found.groupby("check", observed=True, sort=False):
        left = rows[~_is_in(rows, told[str(check)])] if str(check) in told else rows
        if len(left):
            yield _of_check(view, str(check), left)


def _costed(view: Selection) -> pd.DataFrame:
    """Return the GPU whose low clock a timeline gives a cost: the finding of that tells more than the log."""
    found = slowed_by_clock(view)
    return pd.DataFrame([(found.rank, found.gpu)] if found else [], columns=DEVICE)


def _of_check(view: Selection, check: str, rows: pd.DataFrame) -> Finding:
    worst = rows.iloc[0]
    is_alike = rows["value"].eq(0) if worst["value"] == 0 else rows["value"].notna()
    others, unlike = (named_gpus(view, part) for part in (rows[is_alike].iloc[1:], rows[~is_alike]))
    gpu, reason, value = f"GPU {worst['gpu']}", str(worst["reason"]), float(worst["value"])
    label, unit = f"{check.capitalize()} check, {gpu}", UNIT_OF[worst["unit"]]
    figure = Figure(f"log_check_{check}", label, value, unit, reason, "monitoring.checks")
    evidence = [figure]
    titles = TITLES if figure.value else {**TITLES, **NEVER}
    cause = _lowering(view, rows.iloc[:1]) if check == "throttling" else ""
    title = titles[check].format(gpu=gpu, share=figure.text, cause=cause)
    level = "medium"
    if check == "throttling":
        lowered = _in(view, *monitoring.states.LOWERED, least=0.0)
        lowered = lowered[_is_in(lowered, rows.iloc[:1])]
        clock = _average(lowered, "clock_frac")
        if not math.isnan(clock):
            definition = "average SM clock while it is lowered, as a share of its maximum"
            evidence.append(
                Figure("log_lowered_clock_frac", "Lowered clock", clock, "1", definition, LEDGER)
            )
            title += f", to {evidence[-1].text} of its maximum"
        if value >= NOTABLE and not is_at_limit(view):
            level = severity(value)
    title += f" (also: {others})" if others else ""
    title += f"; {unlike} too seldom" if unlike else ""
    gain = Gain(1.0, math.inf, "the log shows the problem, but not its cost: record a timeline")
    has_target = pd.notna(worst["threshold"])
    target = f"{100 * worst['threshold']:.0f} %" if has_target else "none"
    rule = by_kind(RULES)[str(check)]
    return replace(tell(rule, title, reason, tuple(evidence), gain, level=level), target=target)


def _lowering(view: Selection, gpu: pd.DataFrame) -> str:
    """Return what lowers the clock of a GPU, as the subject of a sentence."""
    shares = throttling(view.samples, window=window(view))
    mine = shares[_is_in(shares, gpu)].iloc[0]
    known = [name for cause, name in LOWERING.items() if mine[f"{cause}_frac"] > 0]
    found = " and ".join(known) or "Another reason"
    return f"{found[0].upper()}{found[1:]}"


@kept
def is_at_limit(view: Selection) -> bool:
    """Tell whether the clock is low because busy GPUs draw as much power as they may, which is normal."""
    lowered = _in(view, *monitoring.states.LOWERED) if is_logged(view) else pd.DataFrame()
    if lowered.empty:
        return False
    by_power = lowered["state"].eq(monitoring.states.BY_CAUSE["power"])
    return bool(by_power.all() and _average(lowered, "power_frac") >= NEAR_POWER)


@kept
def is_heated(view: Selection) -> bool:
    """Tell whether heat lowers the clock of a GPU."""
    return is_logged(view) and bool(
        throttling(view.samples, window=window(view))["thermal_frac"].gt(0).any()
    )


FACTS = {Fact.AT_POWER_LIMIT: is_at_limit, Fact.HEATED: is_heated}
SOURCES = {
    "monitoring.at_limit": Source(("SAMPLES", "DEVICES"), "monitoring.at_limit"),
    "monitoring.checks": Source(("SAMPLES",), "monitoring.checks"),
    "monitoring.idle": Source(("SAMPLES",), "monitoring.idle"),
    "monitoring.ledger": Source(("SAMPLES", "DEVICES"), "monitoring.ledger"),
    "monitoring.throttling": Source(("SAMPLES",), "monitoring.throttling"),
    "monitoring.utilisation": Source(("SAMPLES",), "monitoring.utilisation"),
}

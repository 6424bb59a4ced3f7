"""What a diagnosis is made of: figures, findings that rest on them, and refusals."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from perfkit.analysis.grouping import speedup_bounds
from perfkit.diagnosis.sources import TIMELINE, source
from perfkit.format import duration, number, operations, percent, size

HORIZONS = ("today", "immediate", "medium-term", "long-term")
SEVERITIES = ("high", "medium", "low")
CONFIDENCES = ("high", "medium", "low")


@dataclass(frozen=True)
class Unit:
    """How people read the values of a unit, and whether these are counted: no duration enters them."""

    spoken: Callable[[float], str]
    is_counted: bool = False


UNITS = {
    "1": Unit(percent),
    "ns": Unit(duration),
    "bytes": Unit(size, is_counted=True),
    "FLOP": Unit(operations, is_counted=True),
    "FLOP/s": Unit(lambda rate: f"{operations(rate)}/s"),
    "FLOP/byte": Unit(lambda intensity: f"{number(intensity)} FLOP/byte"),
    "bytes/s": Unit(lambda rate: f"{size(rate)}/s"),
    "count": Unit(lambda count: f"{count:,.0f}", is_counted=True),
    "1/s": Unit(lambda rate: f"{number(rate)}/s"),
    "1/h": Unit(lambda cost: f"{cost:,.2f} per hour"),
}


def spoken(unit: str, value: float) -> str:
    """Return a value as people read it; "none" where it is NaN or has no unit."""
    return "none" if math.isnan(value) or not unit else UNITS[unit].spoken(value)


@dataclass(frozen=True)
class Figure:
    """A number that can be believed: its value with unit, what it means and where it was taken from.

    Units are 1 (a fraction), ns, bytes, bytes/s, FLOP, FLOP/s, FLOP/byte, count, 1/s and 1/h (a
    price). `doubt` says why the number cannot be relied upon, where the recording itself
    contradicts what it rests on; such a number is marked. `kind` is the id without the number of a
    log, where several logs have the figure, and `log` what a title then calls that log. `subject`
    is what the figure is about, such as the reason of a stall. `amount` is the id of the figure
    that says the same as a time or a rate.
    """

    id: str
    label: str
    value: float
    unit: str
    definition: str
    source: str
    doubt: str = ""
    kind: str = ""
    log: str = ""
    subject: str = ""
    amount: str = ""

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that it rests on."""
        return source(self.source).tables

    @property
    def analysis(self) -> str:
        """The analysis that worked it out."""
        return source(self.source).analysis

    @property
    def is_of_kernel_times(self) -> bool:
        """Whether it rests on how long kernels ran: no count or volume does."""
        return source(self.source).is_of_kernel_times and not UNITS[self.unit].is_counted

    @property
    def marked(self) -> str:
        """The value as people read it; "50.0 % (doubtful)" where it cannot be relied upon."""
        return f"{self.text} (doubtful)" if self.doubt else self.text

    @property
    def text(self) -> str:
        """The value as people read it, with its unit."""
        return UNITS[self.unit].spoken(self.value)


ONCE = "this recording"  # the `Gain.whole` of what happened once, and is no habit of the program


@dataclass(frozen=True)
class Gain:
    """A range for the speed-up if a finding is mended, and why it is no narrower.

    `share` is the fraction of the run's time that disappears at most; None where the gain is not
    one of the run. `whole` is what gets faster. `high` is at most 1 / (1 - share), but where other
    lines of the ledger get shorter too: `beyond` names them, by the cause of idle time or by the
    kind of line. `worst` is the worst case, as long as `low` gains nothing, `simulated` how long the
    run takes in a replay, and `further` are sentences on other time. `saves` is the fraction of the
    recorded time that is saved at most, where it is not that of `high`: a profiler's own time is part
    of the recorded time, and of none that could be saved.
    """

    low: float
    high: float
    reason: str
    share: float | None = None
    whole: str = "the run"
    beyond: tuple[str, ...] = ()
    worst: str = ""
    simulated: str = ""
    further: tuple[str, ...] = ()
    saves: float | None = None

    @property
    def why(self) -> str:
        """Why the range is no narrower, in full."""
        worst = f"; {self.worst}" if self.worst and self.low <= 1 else ""
        is_wide = max(WIDE, 2 * self.low) < self.high < math.inf
        wide = (WIDELY,) if is_wide else ()
        return ". ".join((f"{self.reason}{worst}", *self.further, *wide))

    @property
    def is_once(self) -> bool:
        """Whether it is of what happened once, and makes no program faster."""
        return self.whole == ONCE

    @property
    def saved_fracs(self) -> tuple[float, ...]:
        """The fractions of the recorded time that are saved, likely and at best, where they matter."""
        most = 1 - 1 / self.high if self.saves is None else self.saves
        likely = min(1 - 1 / self.low, most)
        return (likely, most) if self.low >= LEAST else (most,)

    @property
    def is_known(self) -> bool:
        """Whether the range says anything: not where its end beyond WIDE is many times its beginning."""
        return math.isfinite(self.high) and self.high <= max(WIDE, APART * self.low)

    @property
    def likely(self) -> str:
        """The speed-up that a replay of the run predicts, "not known" where nothing was replayed."""
        if self.low >= LEAST:
            return f"{_factor(self.low)}x"
        return "not known" if self.high >= LEAST else self.best

    @property
    def best(self) -> str:
        """The speed-up in the best case."""
        if not self.is_known:
            return "not known"
        if self.high >= LEAST:
            return f"{_factor(self.high)}x"
        return "below 1 %" if self.high > 1 else "none"

    @property
    def text(self) -> str:
        """The range as people read it.

        >>> [Gain(1.0, high, "").text for high in (2.5, 1.00094, 1.0, 19.8)], Gain(1.5, 1.6, "").text
        (['up to 2.5x', 'below 1 %', 'none', 'not known'], '1.5x to 1.6x')
        """
        if not self.is_known:
            return "not known" if self.low < LEAST else f"{_factor(self.low)}x or more"
        if self.low < LEAST:
            return f"up to {self.best}" if self.high >= LEAST else self.best
        return self.best if self.likely == self.best else f"{self.likely} to {self.best}"


class Objection(Enum):
    """What may speak against a finding; the value is it in a few words."""

    # Of a replay that saves far less than the finding takes.
    LITTLE_SAVED = "little saved"
    # Of the rules that name them (`perfkit.diagnosis.confidence`).
    FEW_OPERATIONS = "few operations"
    WARM_UP = "warm up"
    PROFILED = "profiled"
    BLOCKED = "blocked"
    PIPE_WORKS = "pipe works"
    OCCUPANCY_EXPLAINS = "occupancy explains"
    CLOCK_KEPT = "clock kept"
    VIDEO_ENGINE = "video engine"
    FEW_READINGS = "few readings"
    BY_DESIGN = "by design"
    ANOTHER_WORKS = "another works"
    UNLIKE = "unlike"
    SAME_SPEED = "same speed"
    BEGUN_APART = "begun apart"
    ONE_PROGRAM = "one program"
    STILL_GROWING = "still growing"
    ONE_CHECKPOINT = "one checkpoint"


@dataclass(frozen=True)
class Finding:
    """Something that costs time, the figures that show it, what mending it can gain, and what to do.

    `confidence` says how well the evidence supports it, `against` what speaks against it, in words,
    `next` what to measure next, `threshold` from which value on it is told, with the source of
    that, and `place` where in the program, in words, empty where that is not known. `seen_at` are
    start and duration (ns) of its longest moment, if it has any. `owner` is who kept the GPU idle,
    a function or a call, where the recording names it, and `because` the end of the sentence "The
    GPU was idle because", where the finding knows more than its rule. `objections` are the kinds of
    what stands in `against`. `is_mean`: the title gives a mean over all GPUs as if of one.
    """

    rule: str
    title: str
    severity: str
    explanation: str
    evidence: tuple[Figure, ...]
    target: str
    gain: Gain
    advice: dict[str, tuple[str, ...]]
    confidence: str = "high"
    against: tuple[str, ...] = ()
    next: str = ""
    threshold: str = ""
    place: str = ""
    seen_at: tuple[int, int] | None = None
    owner: str = ""
    objections: frozenset[Objection] = frozenset()
    is_mean: bool = False
    because: str = ""

    @property
    def rests_on_times(self) -> bool:
        """Whether it rests on the times of a timeline."""
        return any(TIMELINE & set(figure.tables) for figure in self.evidence)


@dataclass(frozen=True)
class Refusal:
    """A question this run cannot answer, why, and what to record so that it can.

    `is_of_another_tool`: the kind of recording cannot answer it at all, whatever its options.
    """

    question: str
    reason: str
    record: str
    is_of_another_tool: bool = False
    absent = "the recording has no such data"  # the most common reason


ONE_DECIMAL = 1.095  # factors from here on: two decimals would say 1.10
LEAST = 1.01  # gains below are not worth a number
WIDE = 10.0  # a bound above needs a reason
APART = 2.0  # times its beginning; a wider range that ends beyond WIDE says nothing (convention)
# Why a gain is no smaller and no larger, of time that is idle.
BEST = "best case: {saves} all of this time"
WORST = "worst case: none, because the GPU then waits for something else"
AT_MOST = BEST.format(saves="the run saves")
WIDELY = "Nothing recorded says how much of this time the program needs"


def _factor(value: float) -> str:
    """Return a speed-up with one decimal, two where that would say nothing."""
    if value >= 10:
        return number(value)
    return f"{value:.2f}" if LEAST <= value < ONE_DECIMAL else f"{value:.1f}"


def removing(share: float, reason: str, *, worst: str = "") -> Gain:
    """Return the gain of removing up to this share of the run's time (Amdahl), 2.0x for a half.

    At least nothing, for the reason `worst`.
    """
    high = speedup_bounds([min(share, 1.0)], [1.0]).high
    return Gain(1.0, high, reason, share, worst=worst)


def severity(share: float) -> str:
    """Return how much a share of the time matters.

    A tenth is worth a look, three tenths are severe (conventions).
    """
    if share >= 0.3:
        return "high"
    return "medium" if share >= 0.1 else "low"


def plain(item: Figure | Finding | Refusal) -> dict[str, Any]:
    """Return an item as a dictionary of JSON values, figures with the text people read."""
    values = asdict(item)
    if isinstance(item, Figure):
        for name in ("kind", "log", "subject", "amount"):  # what rules ask for
            del values[name]
        values["text"] = item.marked
    if isinstance(item, Refusal):
        del values["is_of_another_tool"]  # it decides what the first page asks
    if isinstance(item, Finding):
        del values["objections"], values["is_mean"]  # what follows from them stands in words
        values["evidence"] = [figure.id for figure in item.evidence]
        for name in ("worst", "simulated", "further"):  # which `why` tells
            del values["gain"][name]
        values["gain"] |= {"reason": item.gain.why, "text": item.gain.text}
    return values


def finite(value: Any) -> Any:
    """Replace numbers that JSON does not know by null."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""What keeps the GPU idle, cause by cause?

Idle time that another rule tells of more precisely is not told twice: only the rest of its cause is
a finding here, if it is a tenth of the time, or half of an idle time of a tenth (conventions).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.causes import THREAD, covered_by, on_one_axis, where
from perfkit.analysis.grouping import largest
from perfkit.analysis.operators import totals
from perfkit.diagnosis import timeline
from perfkit.diagnosis.finding import AT_MOST, WORST, Figure, Finding, removing
from perfkit.diagnosis.idle_owner import OWNED_CAUSES, owner_of
from perfkit.diagnosis.operator_kernels import operated
from perfkit.diagnosis.replayed import with_others
from perfkit.diagnosis.rules import by_kind
from perfkit.diagnosis.rules import idle as idle_rules
from perfkit.diagnosis.rules.idle import IDLE, IDLE_EDGE, INSIDE
from perfkit.diagnosis.rules.rule import Rule, tell
from perfkit.diagnosis.slowing import slowed
from perfkit.diagnosis.words import words
from perfkit.format import duration, percent, printable
from perfkit.selection import Selection

NOTABLE = 0.1
LOOKED_AT = 20  # longest waits, or ranges around them, that are looked at
NEXT_BATCH = re.compile("_MultiProcessingDataLoaderIter.__next__")
PASSES = (
    "Unless persistent_workers=True is set, the DataLoader ends its workers there and starts new "
    "ones."
)
PERSISTENT = (
    "Set persistent_workers=True in the DataLoader: its workers then live as long as it does"
)
COMPUTING_CODE = re.compile(r"aten::(?!empty|_?pin_memory)")  # no memory that is only allocated
LONG_NS = 100_000  # of an operator that computes on the CPU, beside the 1 to 20 µs of the others (convention)
ON_CPU = "Run this operator on the GPU: its tensors are in the memory of the CPU"
STEP = re.compile("ProfilerStep#")
NOT_REPLAYED = "It is not replayed, because nothing recorded says how much of it could go"
# What keeps a GPU idle, by the cause of a gap; the last has no cause that can be told.
CAUSES = words("causes")
HALF = 0.5


def findings(
    view: Selection,
    figures: dict[str, Figure],
    told: Mapping[str, float],
    once: Mapping[str, float],
) -> Iterator[Finding]:
    """Yield the causes of idle time, as far as they are left.

    `told`: shares of the span that other findings cover, by cause; `once`: shares that are paid
    once, which is no gain.
    """
    idle = figures.get("idle_frac")
    if idle is None or idle.value < NOTABLE:
        return
    found = timeline.idle_gaps(view)
    if found is None:
        yield from _unexplained(view, idle, idle.value - told.get("idle", 0.0))
        return
    recurring = idle.value - sum(once.values())
    for name, part in timeline.idle_parts(found).items():
        cause = str(name)
        share = figures[f"idle_{cause}_frac"]
        covered = told.get(cause, 0.0)
        loading = once.get(cause, 0.0)
        rest = share.value - covered - loading
        if rest >= NOTABLE or rest >= HALF * recurring >= HALF * NOTABLE:
            rows = found[part > 0].assign(part_ns=part)
            # The profiler's marks of steps are no place in a program.
            rows["range"] = rows["range"].mask(where(rows["range"], STEP.match))
            in_all = (
                f"In all, this cause takes {share.text} of the time:" if rest < share.value else ""
            )
            yield _of_cause(view, figures, cause, rows, rest, in_all, _elsewhere(covered, loading))


def _unexplained(view: Selection, idle: Figure, rest: float) -> Iterator[Finding]:
    """Yield the idle time of a recording that cannot tell causes."""
    if rest >= NOTABLE:
        title = f"{CAUSES['']} {timeline.whose_idle(view, '', rest)}"
        text = f"The recording does not show the cause: {timeline.explained(view).why}"
        yield _finding(IDLE, title, (idle,), text, rest)


def _elsewhere(covered: float, loading: float) -> str:
    """Say what of a cause another finding tells, and what a process does once."""
    text = f" Another finding covers {percent(covered)} of the time." if covered else ""
    if loading:
        text += f" Loading kernels, which a process does once, takes {percent(loading)}."
    return text


def _of_cause(
    view: Selection,
    figures: dict[str, Figure],
    cause: str,
    rows: pd.DataFrame,
    rest: float,
    in_all: str,
    elsewhere: str,
) -> Finding:
    """Return the finding on a cause of idle time: `rows` are its gaps, `rest` its share that is left.

    `in_all` says the share of all its gaps where less is left, `elsewhere` what tells of the others.
    """
    owner = owner_of(view, cause)
    around = _inside(view, rows)
    text = f"{in_all or 'This takes'} {_described(rows)} {around.text}"
    if cause in ("cuda_call", "system") and not owner.name:
        text += _inside_calls(view, rows, cause)
    inside = Code()
    if cause == "host_code" and slowed(view) > 1:
        inside = _inside_code(view, rows)
    text += f"{owner.text}{inside.text}{elsewhere}"
    place = around.place
    because = ""
    title = f"{CAUSES[cause]} {timeline.whose_idle(view, cause, rest)}"
    if owner.subject and cause in OWNED_CAUSES:
        whose = timeline.whose_idle(view, cause, rest, verb=" was")
        title = f"The CPU {owner.subject} while {whose}"
        because = f"the CPU {owner.subject.rstrip(',')}"
    elif place and cause == "host_code":
        because = f"the CPU ran code outside CUDA, in the {place}"
    evidence = (figures[f"idle_{cause}_frac"], figures["idle_frac"])
    made = _finding(by_kind(idle_rules)[cause], title, evidence, text, rest, first=inside.first)
    gain = made.gain
    if inside.loads_again and "idle_data_loading_frac" in figures:
        # New workers load the first batch late.
        gain = with_others(gain, {"data_loading": figures["idle_data_loading_frac"].value})
    if inside.tried:
        gain = with_others(gain, {"computation": _kernels_of(view, inside.tried)})
    further = owner.next if cause in OWNED_CAUSES else ""
    return replace(made, gain=gain, place=place, owner=owner.name, because=because, next=further)


class Inside(NamedTuple):
    """The range of the program that covers most of some idle time, and which share of it (0..1)."""

    name: str = ""
    share: float = 0.0

    @property
    def place(self) -> str:
        """The range in words, if it covers half or more; else empty."""
        return f"range “{self.name}”" if self.share >= HALF else ""

    @property
    def text(self) -> str:
        """A sentence on the range."""
        if not self.name:
            return "No NVTX range covers these gaps."
        if self.share < NOTABLE:
            return "No range of the program covers 10 % of that."
        return f"The program was inside “{self.name}” for {percent(self.share)} of that."


def _inside(view: Selection, rows: pd.DataFrame) -> Inside:
    """Return the range in which the launching threads were for most of the idle time.

    A wait names a range that covers half of it or more. Only what the range covers counts.
    """
    named = rows["part_ns"].groupby(rows["range"], observed=True).sum()
    ranges = view.run.ranges
    inside = {}
    for name in named[named > 0].nlargest(LOOKED_AT).index:
        covers = covered_by(rows, ranges[ranges["name"] == name], THREAD)
        inside[name] = int(np.minimum(covers, rows["part_ns"]).sum())
    if not inside:
        return Inside()
    longest = max(inside, key=inside.__getitem__)
    return Inside(printable(longest, 100), inside[longest] / float(rows["part_ns"].sum()))


def _described(rows: pd.DataFrame) -> str:
    """Say how many gaps there are, and how long."""
    longest = largest(rows, "part_ns")
    gaps = "one gap" if len(rows) == 1 else f"{len(rows):,} gaps"
    return (
        f"{duration(rows['part_ns'].sum())} in {gaps}. The longest part is "
        f"{duration(longest['part_ns'])}, in a gap of {duration(longest['dur_ns'])} that begins at "
        f"{longest['start_ns'] / 1e9:.3f} s."
    )


def _inside_calls(view: Selection, rows: pd.DataFrame, cause: str) -> str:
    """Say in which call the launching thread spent most of the waits.

    Of calls of the system, of the longest waits.
    """
    if cause == "cuda_call":
        by_call = rows.groupby(rows["api"].astype("string"))["part_ns"].sum()
        return (
            f" The CPU spent most of it in {printable(by_call.idxmax(), 80)}."
            if len(by_call)
            else ""
        )
    waits = rows.nlargest(LOOKED_AT, "part_ns")
    calls = view.os_calls
    keys = ["rank", "process", "thread"]
    both = waits[[*keys, "start_ns", "dur_ns"]].merge(calls, on=keys, suffixes=("", "_call"))
    last = np.minimum(
        both["start_ns"] + both["dur_ns"], both["start_ns_call"] + both["dur_ns_call"]
    )
    inside = pd.Series(last - np.maximum(both["start_ns"], both["start_ns_call"]), both.index).clip(
        lower=0
    )
    by_call = inside.groupby(both["name"].astype("string")).sum()
    which = f"the {len(waits)} longest of them" if len(waits) < len(rows) else "it"
    return (
        f" The CPU spent most of {which} in {printable(by_call.idxmax(), 80)}."
        if len(by_call)
        else ""
    )


def _kernels_of(view: Selection, operator: str) -> float:
    """Return the share of the time that kernels of an operator take."""
    kernels = operated(view.framework)
    mine = kernels["dur_ns"][kernels["operator"].eq(operator)]
    return float(mine.sum() / timeline.span_ns(view))


class Code(NamedTuple):
    """What the CPU was inside of while the GPU was idle, and what to do first.

    `loads_again`: whether it was between two passes over a DataLoader, which starts new workers.
    `tried` is the operator, if that runs kernels only to see how long they take.
    """

    text: str = ""
    first: str = ""
    loads_again: bool = False
    tried: str = ""


def _inside_code(view: Selection, rows: pd.DataFrame) -> Code:
    """Say in which operator, else in which function of Python, the CPU was in the middle of most of this time.

    And what to do first. An operator that starts nothing on the GPU computes on the CPU.
    """
    of_ops = view.framework
    middle = rows.assign(start_ns=rows["start_ns"] + rows["part_ns"] // 2)
    for calls, kind in ((of_ops.ops, "operator"), (of_ops.python_calls, "Python function")):
        row = totals.open_at(calls, middle)
        name = np.asarray(totals.named(calls, row).astype(object))
        shares = rows["part_ns"].groupby(name).sum() / rows["part_ns"].sum()
        if len(shares) and shares.max() >= HALF:
            most = str(shares.idxmax())
            known = next((each for each in INSIDE if each.code.search(most)), None)
            remedy = known.remedy if known else ""
            tried = most if known and known.tries else ""
            is_long = rows["part_ns"][name == most].mean() >= LONG_NS  # views of tensors take less
            computes = is_long and COMPUTING_CODE.match(most) is not None
            if computes and not _starts_work(of_ops, row[name == most]):
                remedy = ON_CPU
                tried = ""
            inside = f"inside the {kind} “{printable(most, 80)}”"
            share = percent(float(shares.max()))
            text = f" For {share} of it the CPU worked {inside}."
            return Code(text, remedy, tried=tried)
    between = rows["part_ns"][_between_passes(view, middle)].sum() / rows["part_ns"].sum()
    if between < HALF:
        return Code()
    share = percent(float(between))
    text = f" For {share} of it the CPU was between two passes over the DataLoader. {PASSES}"
    return Code(text, PERSISTENT, loads_again=True)


def _starts_work(view: Selection, rows: NDArray[np.int64]) -> bool:
    """Return whether one of these operators, or one inside it, starts work on the GPU."""
    started = [
        totals.launching(view.ops, work, view.api_calls)[1] for work in (view.kernels, view.copies)
    ]
    inside = np.unique(np.concatenate(started))
    levels = totals.enclosing(totals.parents(view.ops), inside[inside >= 0])
    return any(bool(np.isin(rows, found).any()) for _, found in levels)


def _between_passes(view: Selection, moments: pd.DataFrame) -> NDArray[np.bool_]:
    """Tell which moments lie before a batch of a DataLoader with workers, with no CUDA call since the batch before.

    The first batch of a recording may have none before it.
    """
    batches = view.ranges[where(view.ranges["name"], NEXT_BATCH.search)]
    if batches.empty:
        return np.zeros(len(moments), np.bool_)
    # Of some gaps the launching thread is not known.
    threads = moments[[*THREAD]].fillna(-1).astype("int64")
    frames = [
        batches,
        threads.assign(start_ns=moments["start_ns"], dur_ns=np.int64(0)),
        view.api_calls,
    ]
    (start, end), (at, _), (call, _) = on_one_axis(frames, THREAD)
    for times in (start, end, call):
        times.sort()
    before = np.searchsorted(end, at, side="right") - 1
    after = np.searchsorted(start, at)
    is_between = (after == before + 1) & (after < len(start))
    last = np.where(before >= 0, np.searchsorted(call, end[before]), 0)
    following = np.searchsorted(call, np.append(start, 0)[after])
    answer: NDArray[np.bool_] = is_between & (last == following)
    return answer


def _finding(
    rule: Rule,
    title: str,
    evidence: tuple[Figure, ...],
    text: str,
    share: float,
    *,
    first: str = "",
) -> Finding:
    """Return the finding on this share of the time, which a cause keeps the GPU idle."""
    further = () if rule.change else (NOT_REPLAYED,)
    level = "low" if rule is IDLE_EDGE else ""
    gain = replace(removing(share, AT_MOST, worst=WORST), further=further)
    return tell(rule, title, text, evidence, gain, level=level, first=first)

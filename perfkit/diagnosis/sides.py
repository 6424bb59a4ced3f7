"""The two sides of a comparison: a run or its repeats, and what of them is compared.

Timelines are compared per step where both sides have the same kind of steps. Otherwise they are compared per unit of
equal work, where both launched the same kernels (`analysis.compare.units`). Where the CPU of a run leaves its steps
before the GPU has done their work, all steps are timed on the GPU: a step of the CPU is then no step's wall time.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from perfkit.analysis import compare
from perfkit.analysis.steps import by_gpu, last_phase, steady
from perfkit.diagnosis.finding import Refusal
from perfkit.diagnosis.timeline import ahead_ns, unrecorded
from perfkit.run import Run
from perfkit.selection import Selection, select

Given = Run | Selection | Sequence[Run | Selection]
BENCHMARKS = "benchmarks"  # the collectives that a benchmark timed, not those of a program
KINDS = {  # what each kind of recording is called, and what records it
    "kernels": ("a timeline", "nsys profile --trace=cuda,nvtx -o report PROGRAM"),
    "launches": ("counters", "ncu --set full -o report PROGRAM"),
    "calltree": ("call paths", "hpcrun -e CPUTIME -e gpu=nvidia PROGRAM"),
    "samples": ("sampled metrics", "nvidia-smi dmon -s pucm -o DT, while the program runs"),
    BENCHMARKS: (
        "a benchmark of communication",
        "all_reduce_perf -b 8 -e 8G -f 2 of nccl-tests, on the same GPUs",
    ),
}
SAME_LENGTH = (
    1.1  # kernel sequences whose launches differ by less are the same sequence (convention)
)
UNALIKE = 1.5  # times as many launches in a step: the steps are hardly the same work


@dataclass(frozen=True)
class Side:
    """A run or its repeats, with their steps, the kernels of these, and the parts of their time.

    `unused` counts the steady steps of each repeat where they are not compared, since another repeat has none.
    `are_pairs`: the steps of one number do the same work on both sides. `is_on_gpu`: the marked steps are timed on the
    GPU.
    """

    views: list[Selection]
    steps: list[pd.DataFrame] = field(default_factory=list)
    kernels: list[pd.DataFrame] = field(default_factory=list)
    parts: list[pd.DataFrame] = field(default_factory=list)
    unused: tuple[int, ...] = ()
    are_pairs: bool = False
    is_on_gpu: bool = False

    def table(self, name: str) -> list[pd.DataFrame]:
        """Return a table of each repeat, as chosen."""
        if name == BENCHMARKS:
            return [rows[rows["source"].eq("benchmark")] for rows in self.table("collectives")]
        return [getattr(view if hasattr(view, name) else view.run, name) for view in self.views]

    def has(self, name: str) -> bool:
        """Say whether every repeat has rows in a table."""
        return all(len(frame) for frame in self.table(name))

    @property
    def is_in_units(self) -> bool:
        """Whether the steps of this side are units of equal work."""
        return any(frame["how"].eq(compare.units.HOW).any() for frame in self.steps)

    @property
    def is_of_host(self) -> bool:
        """Whether every repeat has ranges, which can be steps, and none has kernels: a recording of the CPU alone."""
        return self.has("ranges") and not any(map(len, self.table("kernels")))


def side(name: str, given: Given) -> Side:
    """Return a side from a run, a selection or a sequence of them; refuse an empty one."""
    runs = [given] if isinstance(given, Run | Selection) else list(given)
    if not runs:
        raise ValueError(f"{name}: there is no run")
    return Side([run if isinstance(run, Selection) else select(run) for run in runs])


def common(old: Side, new: Side) -> list[str]:
    """Return the kinds of recording that both sides have."""
    return [name for name in KINDS if old.has(name) and new.has(name)]


def question(name: str) -> str:
    """Return the question that a kind of recording answers, of `KINDS`."""
    return f"What differs in {KINDS[name][0]}?"


def lacking(old: Side, new: Side) -> str:
    """Say what each side has, where they share nothing."""
    has = [
        " and ".join(text for name, (text, _) in KINDS.items() if side.has(name))
        for side in (old, new)
    ]
    return f"the first run has {has[0] or 'nothing'}, the second has {has[1] or 'nothing'}"


def unshared(old: Side, new: Side) -> Iterator[Refusal]:
    """Yield what one side alone recorded."""
    for name, (text, record) in KINDS.items():
        if old.has(name) != new.has(name):
            which = "before" if old.has(name) else "after"
            yield Refusal(question(name), f"only the run {which} has {text}", record)


def timed(old: Side, new: Side) -> tuple[Side, Side]:
    """Return both sides with steps and the kernels in them, or with units of equal work in their place.

    Without either both sides have all kernels.
    """
    is_on_gpu = any_ahead([*old.views, *new.views])
    found = [[clocked(view, is_on_gpu) for view in one.views] for one in (old, new)]
    stepped: tuple[Side, Side] | None = None
    if all(frame["steady"].any() for frames in found for frame in frames):
        moved = [replace(one, is_on_gpu=is_on_gpu) for one in (old, new)]
        stepped = _stepped(moved[0], found[0]), _stepped(moved[1], found[1])
        if not any(other_steps(*stepped)) and _are_of_one_length(*stepped):
            return stepped
    units = compare.units.units(old.table("all_kernels"), new.table("all_kernels"))
    if units.before:
        paired = replace(old, are_pairs=units.are_pairs), replace(new, are_pairs=units.are_pairs)
        return _stepped(paired[0], units.before), _stepped(paired[1], units.after)
    if stepped:
        return stepped
    steady = [tuple(int(frame["steady"].sum()) for frame in frames) for frames in found]
    sides = zip((old, new), steady, strict=True)
    old, new = (replace(one, kernels=one.table("kernels"), unused=count) for one, count in sides)
    return old, new


def any_ahead(views: Iterable[Selection]) -> bool:
    """Say whether the CPU of any run leaves its steps clearly before the GPU does."""
    phases = ((view, last_phase(steady(view.steps))) for view in views)
    return any(ahead_ns(view, phase) > 0 for view, phase in phases)


def clocked(view: Selection, is_on_gpu: bool) -> pd.DataFrame:
    """Return the steps of a run, as the GPU takes them if `is_on_gpu` and more than kernels tells of steps."""
    if not is_on_gpu or view.steps["how"].eq("kernel sequence").any():
        return view.steps
    return by_gpu(view.steps, view.all_kernels, view.api_calls)


def _are_of_one_length(old: Side, new: Side) -> bool:
    """Say whether steps have about as many launches, where these alone tell steps: else one may be a layer."""
    if not any(frame["how"].eq("kernel sequence").any() for frame in (*old.steps, *new.steps)):
        return True
    launches = launches_in_a_step(old), launches_in_a_step(new)
    return max(launches) <= SAME_LENGTH * min(launches)


def launches_in_a_step(one: Side) -> float:
    """Return the usual number of kernels in a step, the mean over the repeats."""
    return float(
        np.mean([frame.groupby(["rank", "step"]).size().median() for frame in one.kernels])
    )


def _stepped(one: Side, steps: list[pd.DataFrame]) -> Side:
    """Return a side with its steps; no parts of their time where it is not known of a repeat when its GPUs worked."""
    pairs = list(zip(one.views, steps, strict=True))
    kernels = [
        compare.in_steps(view.kernels, frame, api_calls=None if one.is_on_gpu else view.api_calls)
        for view, frame in pairs
    ]
    known = pairs if not any(map(unrecorded, one.views)) else []
    parts = [
        compare.in_parts(v.kernels, v.copies, frame, others=v.other_kernels) for v, frame in known
    ]
    return replace(one, steps=steps, kernels=kernels, parts=parts)


def other_steps(old: Side, new: Side) -> Iterator[str]:
    """Yield why the steps of both sides are not the same thing: found another way, or far too few of one side."""
    hows = [
        {str(how) for frame in side.steps for how in frame["how"].unique()} for side in (old, new)
    ]
    if hows[0] != hows[1]:
        names = [", ".join(sorted(side)) for side in hows]
        yield f"perfkit found the steps in different ways: {names[0] or 'none'} before, {names[1] or 'none'} after"
    if any(old.unused) != any(new.unused):
        yield f"{max(old.unused)} steady steps before and {max(new.unused)} after"
    counts = [[len(run) for run in compare.series(side.steps)] for side in (old, new)]
    fewest = [min(side, default=0) for side in counts]
    if all(fewest) and min(fewest) < compare.FEWEST and max(fewest) > UNALIKE * min(fewest):
        yield f"{fewest[0]} steady steps before and {fewest[1]} after: {min(fewest)} are too few to compare"

"""One side of a comparison: a run or its repeats, what it recorded, its steps and their kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from perfkit.analysis import compare, steps
from perfkit.diagnosis.figures import unrecorded
from perfkit.run import Run
from perfkit.selection import Selection, select

Given = Run | Selection | Sequence[Run | Selection]

KINDS = {
    "kernels": "a timeline",
    "launches": "counters",
    "calltree": "call paths",
    "samples": "sampled metrics",
}


@dataclass(frozen=True)
class Side:
    """A run or its repeats, with their steps, the kernels of these, and the parts of their time."""

    views: list[Selection]
    steps: list[pd.DataFrame] = field(default_factory=list)
    kernels: list[pd.DataFrame] = field(default_factory=list)
    parts: list[pd.DataFrame] = field(default_factory=list)

    def table(self, name: str) -> list[pd.DataFrame]:
        """Return a table of each repeat, as chosen."""
        return [getattr(view if hasattr(view, name) else view.run, name) for view in self.views]

    def has(self, name: str) -> bool:
        """Say whether every repeat has rows in a table."""
        return all(len(frame) for frame in self.table(name))

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


def timed(old: Side, new: Side) -> tuple[Side, Side]:
    """Return both sides with steps and the kernels in them; with all kernels where a repeat has no steps."""
    found = [[steps.detect(v.ranges, v.all_kernels, window=v.window) for v in one.views] for one in (old, new)]
    if not all(frame["steady"].any() for frames in found for frame in frames):
        return _whole(old), _whole(new)
    return _stepped(old, found[0]), _stepped(new, found[1])


def _whole(one: Side) -> Side:
    return replace(one, kernels=one.table("kernels"))


def _stepped(one: Side, found: list[pd.DataFrame]) -> Side:
    pairs = zip(one.views, found, strict=True)
    inside = [compare.in_steps(view.kernels, frame, api_calls=view.api_calls) for view, frame in pairs]
    return replace(one, steps=found, kernels=inside, parts=_parted(one, found))


def _parted(one: Side, found: list[pd.DataFrame]) -> list[pd.DataFrame]:
    """Return the parts of the steps' time; none where it is not known of every repeat when its GPUs worked."""
    if any(map(unrecorded, one.views)):
        return []
    pairs = zip(one.views, found, strict=True)
    return [compare.in_parts(view.kernels, view.copies, frame, others=view.other_kernels) for view, frame in pairs]

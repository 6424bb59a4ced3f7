"""Which GPUs of a recording belong to the program that is judged, where several programs were recorded together?

GPUs belong to one program if one process uses both, or if they run a kernel of the same name: the processes of a
parallel program run the same code. A program on other GPUs is neither a part of this one nor what it waits for.
"""

from collections.abc import Hashable

import numpy as np
import pandas as pd

from perfkit.analysis import grouping
from perfkit.diagnosis.stored import kept
from perfkit.format import several
from perfkit.selection import Selection

DEVICE = ["rank", "gpu"]
SHOWN = 4  # GPUs of other programs that are named


@kept
def others(view: Selection) -> tuple[int, ...]:
    """Return the numbers of the GPUs on which another program runs than the one that launches most kernels.

    Whichever GPUs were chosen. Empty where the program uses GPUs of the same number on another rank.
    """
    kernels = view.run.kernels
    kernels = kernels[kernels["rank"].isin(view.ranks)] if view.ranks else kernels
    marks, group = grouping.numbered(kernels, [*DEVICE, "process", "full_name"])
    counts = marks.assign(count=np.bincount(group)).groupby(DEVICE)["count"].sum()
    if len(counts) < 2:
        return ()
    groups = _programs(marks)
    main = max(groups, key=lambda group: int(counts[list(group)].sum()))
    mine = {gpu for _, gpu in main}
    apart = {gpu for group in groups if group is not main for _, gpu in group}
    return () if mine & apart else tuple(sorted(apart))


def _programs(distinct: pd.DataFrame) -> list[set[tuple[int, int]]]:
    """Return the devices of each program, given which process runs which kernel on which device."""
    groups: list[tuple[set[tuple[int, int]], set[Hashable]]] = []
    for _, rows in distinct.groupby(DEVICE):
        rank, gpu = (int(rows[name].iloc[0]) for name in DEVICE)
        marks: set[Hashable] = set(rows["full_name"].unique())
        marks |= {("process", rank, int(process)) for process in rows["process"].unique()}
        joined = {(rank, gpu)}
        apart = []
        for group, known in groups:
            if known & marks:
                joined |= group
                marks |= known
            else:
                apart.append((group, known))
        groups = [*apart, (joined, marks)]
    return [group for group, _ in groups]


def is_chosen(view: Selection) -> bool:
    """Tell whether a user chose some GPUs: not all of one program beside another."""
    apart = others(view)
    used = set(view.run.kernels["gpu"].unique()) | set(view.run.copies["gpu"].unique())
    return bool(view.gpus) and not (apart and set(view.gpus) == used - set(apart))


def own(view: Selection) -> Selection:
    """Return a selection without the GPUs of other programs, where no GPUs were chosen."""
    return _without_others(view) or view


@kept
def _without_others(view: Selection) -> Selection | None:
    """Return the GPUs of the own program; None for all: what a selection keeps must not be itself."""
    apart = others(view)
    if not apart or view.gpus:
        return None
    frames = (view.all_kernels, view.copies)
    used = {int(gpu) for frame in frames for gpu in frame["gpu"].unique()}
    gpus = tuple(sorted(used - set(apart)))
    return Selection(view.run, view.ranks, gpus, view.window, view.pattern, view.families)


def sentence(view: Selection) -> str:
    """Say which GPUs another program uses, if they are not judged; empty if none is."""
    apart = [gpu for gpu in others(view) if view.gpus and gpu not in view.gpus]
    if not apart:
        return ""
    verb = "runs" if len(apart) == 1 else "run"
    return f"{several([f'GPU {gpu}' for gpu in apart], SHOWN)} {verb} another program, which is not judged."

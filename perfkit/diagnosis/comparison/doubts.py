"""What makes a comparison doubtful, and what cannot be compared at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from perfkit.analysis import compare
from perfkit.diagnosis.comparison.sides import KINDS, Side
from perfkit.diagnosis.finding import Refusal

RECORD = {
    "kernels": "nsys profile --trace=cuda,nvtx PROGRAM",
    "launches": "ncu --set full -o report PROGRAM",
    "calltree": "hpcrun -e CPUTIME -e gpu=nvidia PROGRAM",
    "samples": "nvidia-smi dmon -s pucm -o DT, while the program runs",
}
STEPS = Refusal(
    "Did the steps get faster?",
    "",
    "torch.profiler with prof.step(), NVTX ranges around the steps, or a timeline of at least "
    f"{compare.FEWEST} steps after warm-up",
)
UNALIKE = 1.5  # times as many launches in a step: the steps are hardly the same work


def lacking(old: Side, new: Side) -> str:
    """Say what each side has, where they share nothing."""
    told = [" and ".join(text for name, text in KINDS.items() if side.has(name)) or "nothing" for side in (old, new)]
    return f"the one has {told[0]}, the other {told[1]}"


def unshared(old: Side, new: Side) -> Iterator[Refusal]:
    """Yield what one side alone recorded."""
    for name, text in KINDS.items():
        if old.has(name) != new.has(name):
            which = "before" if old.has(name) else "after"
            yield Refusal(question(name), f"only the run {which} has {text}", RECORD[name])


def question(name: str) -> str:
    """Return the question that a kind of recording answers, of `KINDS`."""
    return f"What differs in {KINDS[name]}?"


def untimed(old: Side, new: Side, steps: pd.DataFrame) -> Iterator[Refusal]:
    """Yield why the step times do not compare, where the sides have kernels; `steps` is COMPARED_STEPS."""
    if steps.empty and (old.kernels or new.kernels):
        why = "no steady steps were found in both runs: totals depend on how long each was recorded"
        yield replace(STEPS, reason=why)
    elif len(steps) and steps["ratio_low"].isna().all():
        yield replace(STEPS, reason=f"a run has fewer than {compare.FEWEST} steady steps")


def cautions(old: Side, new: Side) -> Iterator[tuple[str, str]]:
    """Yield what makes the comparison doubtful, and how sure it leaves one: medium or low."""
    gpus = [_gpus(side) for side in (old, new)]
    if all(gpus) and gpus[0] != gpus[1]:
        yield f"different GPUs: {', '.join(gpus[0])} before, {', '.join(gpus[1])} after", "low"
    elif not all(gpus) and not (old.is_of_host and new.is_of_host):
        yield "not every run names its GPU: whether it is the same is not known", "medium"
    counts = [{len(f[["rank", "gpu"]].drop_duplicates()) for f in side.table("all_kernels")} for side in (old, new)]
    if counts[0] != counts[1]:
        yield "different numbers of GPUs with kernels", "low"
    tools = [{profile.reader for view in side.views for profile in view.run.profiles} for side in (old, new)]
    if tools[0] != tools[1]:
        told = [", ".join(sorted(side)) for side in tools]
        yield f"different profilers, which cost different time: {told[0]} before, {told[1]} after", "low"
    yield from _unlike(old, new)


def _gpus(side: Side) -> list[str]:
    """Return the names of the GPUs of a side that worked, sorted."""
    return sorted({str(name) for view in side.views for name in view.devices["name"] if str(name)})


def _unlike(old: Side, new: Side) -> Iterator[tuple[str, str]]:
    """Yield why the steps of both sides may not be the same thing."""
    found = [{str(how) for frame in side.steps for how in frame["how"].unique()} for side in (old, new)]
    if found[0] != found[1]:
        told = [", ".join(sorted(side)) for side in found]
        yield f"steps were found another way: {told[0] or 'none'} before, {told[1] or 'none'} after", "medium"
    if not (old.steps and new.steps):
        return
    launches = [np.mean([frame.groupby(["rank", "step"]).size().median() for frame in s.kernels]) for s in (old, new)]
    if max(launches) > UNALIKE * min(launches):
        yield (
            f"a step has {launches[0]:,.0f} kernels before and {launches[1]:,.0f} after: is it the same work?",
            "medium",
        )


def sureness(cautions: Sequence[tuple[str, str]], refusals: Sequence[Refusal]) -> str:
    """Return how sure a comparison is: high, medium or low."""
    levels = [level for _, level in cautions]
    if "low" in levels or levels.count("medium") > 1:
        return "low"
    return "medium" if levels or refusals else "high"

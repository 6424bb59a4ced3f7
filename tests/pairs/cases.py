"""Pairs of runs, and what `perfkit check` and `perfkit compare` say of them."""

import tempfile
from pathlib import Path
from typing import NamedTuple

from pairs.program import Change, write

import perfkit
from perfkit.diagnosis.check import check
from perfkit.diagnosis.comparison import compared as compare

NOISE = (0.005, 0.015)  # between runs of one program
WORDS = {0: "pass", 1: "FAIL", 2: "cannot tell"}  # exit statuses


class Case(NamedTuple):
    """What a run and its baseline are, and the exit statuses that are right."""

    name: str
    before: Change
    after: Change
    right: tuple[int, ...]


SAME = Change()
CASES = (
    Case("equal", SAME, SAME, (0,)),
    Case("equal, 70 steps", Change(steps=70), Change(steps=70), (0,)),
    Case("kernels 3 %", SAME, Change(kernels=0.03), (0, 2)),
    Case("kernels 8 %", SAME, Change(kernels=0.08), (1, 2)),
    Case("kernels 10 %", SAME, Change(kernels=0.10), (1,)),
    Case("kernels 30 %", SAME, Change(kernels=0.30), (1,)),
    Case("pause 3 %", SAME, Change(pause=0.03), (0, 2)),
    Case("pause 8 %", SAME, Change(pause=0.08), (1, 2)),
    Case("pause 10 %", SAME, Change(pause=0.10), (1,)),
    Case("pause 30 %", SAME, Change(pause=0.30), (1,)),
    Case("copies 8 %", SAME, Change(copies=0.08), (1, 2)),
    Case("copies 10 %", SAME, Change(copies=0.10), (1,)),
    Case("copies 30 %", SAME, Change(copies=0.30), (1,)),
    Case("one pause 30 %", SAME, Change(once=0.30), (1, 2)),
    Case("faster 10 %", Change(kernels=0.10), SAME, (0,)),
    Case("warm-up", SAME, Change(warm_up=3), (0,)),
    Case("warm-up before", Change(warm_up=3), SAME, (0,)),
    Case("start-up", SAME, Change(start_up_us=50_000), (0,)),
    Case("shifted window", SAME, Change(offset=4), (0,)),
    Case("other number of steps", SAME, Change(steps=70), (0,)),
    Case("other number, pause 10 %", SAME, Change(steps=70, pause=0.10), (1,)),
    Case("another GPU", SAME, Change(gpu="NVIDIA H100 80GB HBM3"), (2,)),
    Case("lost operations", SAME, Change(lost=0.2), (2,)),
)


def checked(case: Case, form: str, noise: float, number: int) -> int:
    """Return the exit status of `perfkit check` for one pair."""
    with tempfile.TemporaryDirectory() as folder:
        before, after = runs(case, form, noise, number, Path(folder))
        return check(after, before).exit_code


def compared(case: Case, form: str, noise: float, number: int) -> str:
    """Return the verdict of `perfkit compare` on the usual step of one pair, and how sure it is."""
    with tempfile.TemporaryDirectory() as folder:
        found = compare(*runs(case, form, noise, number, Path(folder)))
        verdict = found.steps["verdict"].iloc[0] if len(found.steps) else "no steps"
        return f"{verdict} ({found.confidence})"


def runs(
    case: Case, form: str, noise: float, number: int, folder: Path
) -> tuple[perfkit.Run, perfkit.Run]:
    """Write a pair and load it: two runs of one program, each with times of its own."""
    sides = enumerate((case.before, case.after))
    made = [
        write(
            folder / f"{place}.sqlite",
            change,
            form=form,
            noise=noise,
            seed=2 * number + place,
            program=number,
        )
        for place, change in sides
    ]
    loaded = [perfkit.load(path) for path in made]
    for run in loaded:
        for profile in run.profiles:
            for table in profile.loaders:
                profile.table(table)
    return loaded[0], loaded[1]

"""Pairs of runs, and what `perfkit check` and `perfkit compare` say of them."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from pairs.program import Change, write

import perfkit
from perfkit.analysis import compare
from perfkit.diagnosis.check import Budget, check
from perfkit.diagnosis.comparison import compared as compare_runs

NOISE = (0.005, 0.015)  # between runs of one program


class Case(NamedTuple):
    """What a run and its baseline are, the exit statuses that are right, and why where a page tells it."""

    name: str
    before: Change
    after: Change
    right: tuple[int, ...]
    why: str = ""


SAME = Change()
CASES = (
    Case("equal", SAME, SAME, (0,), "The intervals lie within the tolerance"),
    Case("equal, 70 steps", Change(steps=70), Change(steps=70), (0,)),
    Case("kernels 3 %", SAME, Change(kernels=0.03), (0, 2)),
    Case("kernels 8 %", SAME, Change(kernels=0.08), (1, 2)),
    Case("kernels 10 %", SAME, Change(kernels=0.10), (1,)),
    Case("kernels 30 %", SAME, Change(kernels=0.30), (1,)),
    Case("pause 3 %", SAME, Change(pause=0.03), (0, 2)),
    Case("pause 8 %", SAME, Change(pause=0.08), (1, 2)),
    Case("pause 10 %", SAME, Change(pause=0.10), (1,), "The wall time counts, not only kernels"),
    Case("pause 30 %", SAME, Change(pause=0.30), (1,)),
    Case("copies 3 %", SAME, Change(copies=0.03), (0, 2)),
    Case("copies 8 %", SAME, Change(copies=0.08), (1, 2)),
    Case("copies 10 %", SAME, Change(copies=0.10), (1,)),
    Case("copies 30 %", SAME, Change(copies=0.30), (1,)),
    Case(
        "one pause 30 %",
        SAME,
        Change(once=0.30),
        (1, 2),
        "The mean changes, but no habit of the program does",
    ),
    Case("faster 10 %", Change(kernels=0.10), SAME, (0,), "Faster is not worse"),
    Case("warm-up", SAME, Change(warm_up=3), (0,), "Slow first steps are left out"),
    Case("warm-up before", Change(warm_up=3), SAME, (0,), "So they are in the baseline"),
    Case("start-up", SAME, Change(start_up_us=50_000), (0,), "It is no part of a step"),
    Case(
        "shifted window",
        SAME,
        Change(offset=4),
        (0,),
        "perfkit finds the launches that both recordings share",
    ),
    Case(
        "other number of steps",
        SAME,
        Change(steps=70),
        (0,),
        "A step, or a unit of equal work, is compared, not the total",
    ),
    Case("other number, pause 10 %", SAME, Change(steps=70, pause=0.10), (1,)),
    Case(
        "another GPU",
        SAME,
        Change(gpu="NVIDIA H100 80GB HBM3"),
        (2,),
        "The difference need not be the program's",
    ),
    Case(
        "another profiler",
        SAME,
        Change(reader="torch_trace"),
        (2,),
        "Profilers cost different times",
    ),
    Case(
        "ranges around each launch",
        SAME,
        Change(ranges=True),
        (2,),
        "The ranges of one recording alone cost time of the CPU",
    ),
    Case(
        "lost operations",
        SAME,
        Change(lost=0.2),
        (2,),
        "When the lost operations ran is unknown, and they touch more than the tolerance",
    ),
)


def checked(
    case: Case, form: str, noise: float, number: int, allowed: float = compare.NOISE
) -> int:
    """Return the exit status of `perfkit check` for one pair; `allowed` is the noise of its budget."""
    with tempfile.TemporaryDirectory() as folder:
        before, after = runs(case, form, noise, number, Path(folder))
        return check(after, before, Budget(noise=allowed)).exit_code


def quickly_checked(
    case: Case, form: str, noise: float, number: int, allowed: float = compare.NOISE
) -> int:
    """Return the same without the figures of a report, which take most of the time.

    Without a budget `check` judges only the times that a comparison itself makes.
    """
    with patch("perfkit.diagnosis.comparison.figures", return_value={}):
        return checked(case, form, noise, number, allowed)


def compared(case: Case, form: str, noise: float, number: int) -> str:
    """Return the verdict of `perfkit compare` on the usual step of one pair, and how sure it is."""
    with tempfile.TemporaryDirectory() as folder:
        found = compare_runs(*runs(case, form, noise, number, Path(folder)))
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
    changes = (case.before, case.after)
    loaded = [_by_reader(run, change) for run, change in zip(loaded, changes, strict=True)]
    for run in loaded:
        for profile in run.profiles:
            for table in profile.loaders:
                profile.table(table)
    return loaded[0], loaded[1]


def _by_reader(run: perfkit.Run, change: Change) -> perfkit.Run:
    """Return a run as if another profiler had recorded it."""
    if not change.reader:
        return run
    return perfkit.Run([replace(profile, reader=change.reader) for profile in run.profiles])


def table() -> str:
    """Return the cases that a page tells as a table in Markdown."""
    lines = ["| What differs | Exit status | Why |", "|---|---|---|"]
    for case in CASES:
        if case.why:
            status = " or ".join(map(str, case.right))
            lines.append(f"| {case.name} | {status} | {case.why} |")
    return "\n".join(lines)

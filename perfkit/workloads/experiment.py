"""What is an experiment: runs that differ in one thing, and how they are recorded?

Conventions
-----------
No single run shows by how much runs of one program differ, so each is repeated. Repeats alternate: before, after,
before, after, so that whatever slows the machine down meanwhile slows both.

Data
----
BASES          device -> the plan that the runs share
REPEATS        how often each run is recorded, unless it is said

Classes
-------
Experiment     a topic with its runs

Functions
---------
record         the runs, one after another, each in a process and a folder of its own
folder_of      what the folder of a repeat is called
repeats_of     the folders of a run's repeats
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from perfkit.errors import PerfkitError
from perfkit.workloads.commands import arguments
from perfkit.workloads.plan import DEVICES, SIZES, Loader, Plan, Size

REPEATS = 3  # the fewest of which the runs, not their steps, give an interval
RESIDENT = Loader(resident=True)
# What the pairs share: BERT, of a size that takes a GPU milliseconds per step and a CPU not much longer.
BASES = MappingProxyType(
    {
        "cuda": Plan("bert", device="cuda", batches=(16,), size=Size(layers=4), loader=RESIDENT, traced=20),
        "cpu": Plan("bert", batches=(16,), size=SIZES["small"], loader=RESIDENT, traced=20),
    }
)
Changes = Mapping[str, Any]
Runs = dict[str, Changes]


@dataclass(frozen=True)
class Experiment:
    """A topic, the question, and what to run and look at to answer it.

    Attributes
    ----------
    name, topic, question
        Short name; the notes' topic; what is asked.
    claim
        What the notes on GPU utilisation say, which the runs test.
    look
        What to look at.
    runs
        By device, cuda or cpu: label of each run, in order -> what is different from the plan in BASES. A pair has the
        labels before and after, the case a label for each change; each run differs from the one before in one thing.
    """

    name: str
    topic: str
    question: str
    claim: str
    look: str
    runs: Mapping[str, Runs]

    def plans(self, device: str) -> dict[str, Plan]:
        """Return what is run, by label, on a device: cuda or cpu.

        Raises
        ------
        ValueError
            If the device is neither.
        """
        if device not in DEVICES:
            raise ValueError(f"device: {device!r} is not one of {list(DEVICES)}")
        return {label: replace(BASES[device], **changes) for label, changes in self.runs[device].items()}

    def commands(self, device: str, out: str | Path, repeats: int = 1) -> dict[tuple[str, int], list[str]]:
        """Return the command that records each repeat of each run into a folder of its own in `out`, as arguments.

        By label and number of the repeat, from 1, in the order in which they are to be run.
        """
        if repeats < 1:
            raise ValueError(f"repeats: {repeats} is below 1")
        program = [sys.executable, "-m", "perfkit.workloads"]
        place, plans = Path(out) / self.name, self.plans(device)
        return {
            (label, repeat): [*program, *arguments(plan), "--record", str(place / folder_of(label, repeat, repeats))]
            for repeat in range(1, repeats + 1)
            for label, plan in plans.items()
        }

    def lines(self, device: str, out: str | Path, repeats: int = 1) -> dict[tuple[str, int], str]:
        """Return the commands as a person types them.

        Examples
        --------
        >>> pair = {"before": {"model": "mlp"}, "after": {"model": "mlp", "compile": True}}
        >>> told = Experiment("fusion", "Fusion", "", "", "", {"cuda": pair}).lines("cuda", "runs")
        >>> print(told["after", 1].partition(" --traced")[0])
        python -m perfkit.workloads mlp --device cuda --batch 16 --compile
        """
        commands = self.commands(device, out, repeats)
        return {which: shlex.join(["python", *argv[1:]]) for which, argv in commands.items()}


def folder_of(label: str, repeat: int, repeats: int) -> str:
    """Return what the folder of a repeat is called: LABEL-1, LABEL-2 and so on; of a single run LABEL.

    Examples
    --------
    >>> folder_of("before", 2, 3), folder_of("before", 1, 1)
    ('before-2', 'before')
    """
    return label if repeats == 1 else f"{label}-{repeat}"


def repeats_of(label: str, place: Path) -> list[Path]:
    """Return the folders of a run's repeats in `place`, in their order; empty where there are none."""
    found = [
        path for path in place.iterdir() if path.is_dir() and re.fullmatch(rf"{re.escape(label)}(-\d+)?", path.name)
    ]
    return sorted(found, key=lambda path: int(path.name.removeprefix(label)[1:] or 0))


def record(experiment: Experiment, device: str, out: str | Path, repeats: int = REPEATS) -> dict[str, list[Path]]:
    """Record the runs of an experiment, one after another, each by a process of its own.

    Parameters
    ----------
    experiment
        One of EXPERIMENTS.
    device
        cuda or cpu.
    out
        Each run gets a folder in ``out/NAME``, which must be empty or new: `folder_of`.
    repeats
        How often each run is recorded, at least 1; all runs once, then all again.

    Returns
    -------
    dict
        The folders of each run's repeats by its label, in their order.

    Raises
    ------
    ValueError
        If the device is neither, or there are no repeats.
    PerfkitError
        If a run fails; those before it stay recorded.
    """
    folders: dict[str, list[Path]] = {}
    for (label, repeat), argv in experiment.commands(device, out, repeats).items():
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.strip()] or [f"status {done.returncode}"]
            raise PerfkitError(
                f"{experiment.name}, {folder_of(label, repeat, repeats)}: the run failed: {said[-1]} "
                f"Its command: {shlex.join(argv)}"
            )
        folders.setdefault(label, []).append(Path(argv[-1]))
    return folders

"""What is an experiment: runs that differ in one thing, and how they are recorded?

Data
----
BASES          device -> the plan that the runs share

Classes
-------
Experiment     a topic with its runs

Functions
---------
record         the runs, one after another, each in a process and a folder of its own
"""

from __future__ import annotations

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

    def commands(self, device: str, out: str | Path) -> dict[str, list[str]]:
        """Return the command that records each run into a folder of its own in `out`, as arguments."""
        program = [sys.executable, "-m", "perfkit.workloads"]
        place = Path(out) / self.name
        return {
            label: [*program, *arguments(plan), "--record", str(place / label)]
            for label, plan in self.plans(device).items()
        }

    def lines(self, device: str, out: str | Path) -> dict[str, str]:
        """Return the commands as a person types them.

        Examples
        --------
        >>> pair = {"before": {"model": "mlp"}, "after": {"model": "mlp", "compile": True}}
        >>> told = Experiment("fusion", "Fusion", "", "", "", {"cuda": pair}).lines("cuda", "runs")
        >>> print(told["after"].partition(" --traced")[0])
        python -m perfkit.workloads mlp --device cuda --batch 16 --compile
        """
        return {label: shlex.join(["python", *argv[1:]]) for label, argv in self.commands(device, out).items()}


def record(experiment: Experiment, device: str, out: str | Path) -> dict[str, Path]:
    """Record the runs of an experiment, one after another, each by a process of its own.

    Parameters
    ----------
    experiment
        One of EXPERIMENTS.
    device
        cuda or cpu.
    out
        Each run gets the folder ``out/NAME/LABEL``, which must be empty or new.

    Returns
    -------
    dict
        The folder of each run by its label, in their order.

    Raises
    ------
    ValueError
        If the device is neither.
    PerfkitError
        If a run fails; those before it stay recorded.
    """
    folders = {}
    for label, argv in experiment.commands(device, out).items():
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.strip()] or [f"status {done.returncode}"]
            raise PerfkitError(
                f"{experiment.name}, {label}: the run failed: {said[-1]} Its command: {shlex.join(argv)}"
            )
        folders[label] = Path(argv[-1])
    return folders

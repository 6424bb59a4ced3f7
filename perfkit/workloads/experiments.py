"""Experiments: runs that differ in one thing, and how they are recorded; the sample `experiments` has the same by name.

Each run is repeated, for no single run shows by how much runs of one program differ. Repeats alternate, before, after,
before, after, so that whatever slows the machine down meanwhile slows both.
"""

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from perfkit.errors import PerfkitError
from perfkit.workloads import DEVICES, SIZES, Loader, Plan, Size, arguments

REPEATS = 3  # the fewest of which the runs, not their steps, give an interval
RESIDENT = Loader(resident=True)
# What the pairs share: BERT, of a size that takes a GPU milliseconds per step and a CPU not much longer.
BASES = MappingProxyType(
    {
        "cuda": Plan(
            "bert", device="cuda", batches=(16,), size=Size(layers=4), loader=RESIDENT, traced=20
        ),
        "cpu": Plan("bert", batches=(16,), size=SIZES["small"], loader=RESIDENT, traced=20),
    }
)
Changes = Mapping[str, Any]
Runs = dict[str, Changes]


@dataclass(frozen=True)
class Experiment:
    """A topic of the notes, the question, what the notes claim, and what to run and look at to answer it.

    `runs` maps the device, cuda or cpu, to the label of each run, in order, and what is different from the plan in
    BASES: before and after, or a label for each change, of one thing each.
    """

    name: str
    topic: str
    question: str
    claim: str
    look: str
    runs: Mapping[str, Runs]

    def plans(self, device: str) -> dict[str, Plan]:
        """Return what is run, by label, on a device: cuda or cpu."""
        if device not in DEVICES:
            raise ValueError(f"device: {device!r} is not one of {list(DEVICES)}")
        return {
            label: replace(BASES[device], **changes) for label, changes in self.runs[device].items()
        }

    def commands(
        self, device: str, out: str | Path, repeats: int = 1
    ) -> dict[tuple[str, int], list[str]]:
        """Return the command that records each repeat, from 1, of each run into a folder of its own, in order."""
        if repeats < 1:
            raise ValueError(f"repeats: {repeats} is below 1")
        program = [sys.executable, "-m", "perfkit.workloads"]
        place, plans = Path(out) / self.name, self.plans(device)
        return {
            (label, repeat): [
                *program,
                *arguments(plan),
                "--record",
                str(place / folder_of(label, repeat, repeats)),
            ]
            for repeat in range(1, repeats + 1)
            for label, plan in plans.items()
        }

    def lines(self, device: str, out: str | Path, repeats: int = 1) -> dict[tuple[str, int], str]:
        """Return the commands as a person types them."""
        return {
            which: shlex.join(["python", *argv[1:]])
            for which, argv in self.commands(device, out, repeats).items()
        }


def folder_of(label: str, repeat: int, repeats: int) -> str:
    """Return what the folder of a repeat is called: LABEL-1, LABEL-2 and so on; of a single run LABEL."""
    return label if repeats == 1 else f"{label}-{repeat}"


def _experiments() -> Iterator[Experiment]:
    with Path(__file__).with_name("experiments.toml").open("rb") as file:
        listed = tomllib.load(file)
    for name, words in listed.items():
        for changes in (changes for runs in words["runs"].values() for changes in runs.values()):
            changes |= {"loader": Loader(**changes["loader"])} if "loader" in changes else {}
            changes |= {"batches": tuple(changes["batches"])} if "batches" in changes else {}
        yield Experiment(name, **words)


EXPERIMENTS = MappingProxyType({experiment.name: experiment for experiment in _experiments()})


def repeats_of(label: str, place: Path) -> list[Path]:
    """Return the folders of a run's repeats in `place`, in their order; empty where there are none."""
    named = re.compile(rf"{re.escape(label)}(-\d+)?")
    folders = [path for path in place.iterdir() if path.is_dir() and named.fullmatch(path.name)]
    return sorted(folders, key=lambda path: int(path.name.removeprefix(label)[1:] or 0))


def record(
    experiment: Experiment, device: str, out: str | Path, repeats: int = REPEATS
) -> dict[str, list[Path]]:
    """Record the runs of an experiment, each by a process of its own, and return the folders of each run by its label.

    All runs once, then all again, `repeats` times. A folder (`folder_of`) in ``out/NAME`` must be empty or new. If a
    run fails, a PerfkitError says so, and those before it stay recorded.
    """
    folders: dict[str, list[Path]] = {}
    for (label, repeat), argv in experiment.commands(device, out, repeats).items():
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.strip()] or [
                f"status {done.returncode}"
            ]
            raise PerfkitError(
                f"{experiment.name}, {folder_of(label, repeat, repeats)}: the run failed: {errors[-1]} "
                f"Its command: {shlex.join(argv)}"
            )
        folders.setdefault(label, []).append(Path(argv[-1]))
    return folders


def find(name: str) -> Experiment:
    """Return an experiment by its name."""
    if name not in EXPERIMENTS:
        raise ValueError(f"experiment: {name!r} is not one of {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]

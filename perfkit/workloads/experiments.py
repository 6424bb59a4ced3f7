"""Experiments: runs that differ in one thing, and how they are recorded; `perfkit.simulate` has the same by name.

Each run is repeated, for no single run shows by how much runs of one program differ. Repeats alternate, before, after,
before, after, so that whatever slows the machine down meanwhile slows both.
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
from perfkit.workloads import DEVICES, SIZES, Loader, Plan, Size, arguments

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
        return {label: replace(BASES[device], **changes) for label, changes in self.runs[device].items()}

    def commands(self, device: str, out: str | Path, repeats: int = 1) -> dict[tuple[str, int], list[str]]:
        """Return the command that records each repeat, from 1, of each run into a folder of its own, in order."""
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
        """Return the commands as a person types them."""
        return {which: shlex.join(["python", *argv[1:]]) for which, argv in self.commands(device, out, repeats).items()}


def folder_of(label: str, repeat: int, repeats: int) -> str:
    """Return what the folder of a repeat is called: LABEL-1, LABEL-2 and so on; of a single run LABEL."""
    return label if repeats == 1 else f"{label}-{repeat}"


BEFORE, AFTER = "before", "after"


def _pair(after: Changes, *, before: Changes | None = None, **shared: Any) -> Runs:
    return {BEFORE: {**shared, **(before or {})}, AFTER: {**shared, **after}}


def _series(changes: Runs, **shared: Any) -> Runs:
    """Return the runs of a series, each with one more change."""
    so_far: Changes = shared
    made = {BEFORE: so_far}
    for label, change in changes.items():
        so_far = {**so_far, **change}
        made[label] = so_far
    return made


_ALL = (
    Experiment(
        "measuring",
        "Measuring",
        "Do two runs differ in which nothing was changed but the seed?",
        "A model's share of the peak (MFU) is the true metric: a GPU can be busy all the time and do little.",
        "The interval of the ratio, which is the noise; utilisation in its meanings, and the MFU.",
        {"cuda": _pair({"seed": 1}, precision="bf16"), "cpu": _pair({"seed": 1})},
    ),
    Experiment(
        "tensor",
        "Tensor cores",
        "What do units for matrices make of the same program?",
        "10 to 20 times as fast as FP32 on CUDA cores.",
        "Kernel time of matrix products and of all others; the names of the kernels; the step.",
        {"cuda": _pair({"precision": "tf32"}), "cpu": _pair({"precision": "bf16"}, mode="inference")},
    ),
    Experiment(
        "fusion",
        "Kernel fusion",
        "What does a compiler make of what lies between the matrix products?",
        "15 to 25 % faster by torch.compile.",
        "The number of launches; the time of elementwise kernels and normalisations; products stay.",
        {"cuda": _pair({"compile": True}, precision="bf16"), "cpu": _pair({"compile": True})},
    ),
    Experiment(
        "sync",
        "Synchronisation",
        "What does it cost to read the loss after every step?",
        "Points at which CPU and GPU wait for each other are to be eliminated.",
        "Idle time and its cause; kernels take as long as before. On a CPU there is nobody to wait for.",
        {
            "cuda": _pair({"read_loss": 50}, before={"read_loss": 1}, precision="bf16"),
            "cpu": _pair({"read_loss": 50}, before={"read_loss": 1}),
        },
    ),
    Experiment(
        "loading",
        "Data loading",
        "Do four processes load batches beside the steps?",
        "35 % idle time eliminated by eight workers, pinned memory and prefetching.",
        "The wait for data; on a CPU also whether the workers take from the model what they give.",
        {
            device: _pair({"loader": Loader(workers=4)}, model="mlp", batches=(128,), loader=Loader())
            for device in DEVICES
        },
    ),
    Experiment(
        "batch",
        "Batch size",
        "Is a batch of 32 faster than one of 4?",
        "Memory is traded for throughput: find the largest batch that fits.",
        "Step time and time per sample, which can go different ways; the share of launches in a step.",
        {
            "cuda": _pair({"batches": (32,)}, before={"batches": (4,)}, precision="bf16"),
            "cpu": _pair({"batches": (32,)}, before={"batches": (4,)}),
        },
    ),
    Experiment(
        "precision",
        "Mixed precision",
        "What do 16 bits bring to training, with casts and all?",
        "Automatic mixed precision makes training faster, in BF16 without loss scaling.",
        "Products, the new casts, what stays in 32 bits; the step; the peak that an MFU is of.",
        {"cuda": _pair({"precision": "bf16"}), "cpu": _pair({"precision": "bf16"})},
    ),
    Experiment(
        "case",
        "A case",
        "Is a series of four changes, utilisation from 65 to 95 % and 3.75 times as fast, consistent?",
        "65 → 78 → 87 → 92 → 95 % by BF16, data loading, batch size and torch.compile; MFU from 22 to 58 %.",
        "The ledger by sample: what utilisation explains, and what faster kernels must have brought.",
        {
            device: _series(
                {
                    "BF16": {"precision": "bf16"},
                    workers: {"loader": loader},
                    "batch 8": {"batches": (8,)},
                    "torch.compile": {"compile": True},
                },
                batches=(4,),
                read_loss=1,
                loader=Loader(),
            )
            for device, workers, loader in (
                ("cuda", "8 workers", Loader(workers=8, pin_memory=True)),
                ("cpu", "2 workers", Loader(workers=2)),
            )
        },
    ),
)
EXPERIMENTS = MappingProxyType({experiment.name: experiment for experiment in _ALL})


def repeats_of(label: str, place: Path) -> list[Path]:
    """Return the folders of a run's repeats in `place`, in their order; empty where there are none."""
    named = re.compile(rf"{re.escape(label)}(-\d+)?")
    folders = [path for path in place.iterdir() if path.is_dir() and named.fullmatch(path.name)]
    return sorted(folders, key=lambda path: int(path.name.removeprefix(label)[1:] or 0))


def record(experiment: Experiment, device: str, out: str | Path, repeats: int = REPEATS) -> dict[str, list[Path]]:
    """Record the runs of an experiment, each by a process of its own, and return the folders of each run by its label.

    All runs once, then all again, `repeats` times. A folder (`folder_of`) in ``out/NAME`` must be empty or new. If a
    run fails, a PerfkitError says so, and those before it stay recorded.
    """
    folders: dict[str, list[Path]] = {}
    for (label, repeat), argv in experiment.commands(device, out, repeats).items():
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.strip()] or [f"status {done.returncode}"]
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

"""Make a student's own programs: four trainings with one planted cause each, and what is right to answer of them.

Everything follows from a seed and the student's name: GPU, sizes, causes and their order. The answers are counted from
what the simulated machine did, without perfkit's analyses.
"""

from __future__ import annotations

import random
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from make.simulate import TIME, export
from make.simulate.program import Rows, Setup, executed, step

GPUS = (
    "NVIDIA A100 80GB PCIe",
    "NVIDIA A100-SXM4-40GB",
    "NVIDIA A30",
    "NVIDIA A40",
    "NVIDIA A10",
)
LOADING, LAUNCHES, WAITING = "data loading", "launches", "synchronisation"
FORMAT = "number format"
CAUSES = (LOADING, LAUNCHES, WAITING, FORMAT)
COUNT = 4  # programs of a student
DIFFERENT = 3  # causes among them, at least


class Program(NamedTuple):
    """A training, and what costs most of its time."""

    setup: Setup
    cause: str


def programs(seed: str, student: str) -> dict[str, Program]:
    """Return a student's programs by their names."""
    chance = random.Random(f"{seed}\n{student}")
    causes = chance.choices(CAUSES, k=COUNT)
    while len(set(causes)) < DIFFERENT:
        causes = chance.choices(CAUSES, k=COUNT)
    return {
        f"program_{number}": Program(planted(sound(chance), cause, chance), cause)
        for number, cause in enumerate(causes, start=1)
    }


def sound(chance: random.Random) -> Setup:
    """Return a training in which nothing costs much time: the host loads and launches ahead of the GPU."""
    hidden = chance.choice((768, 1024, 1280))
    return Setup(
        batch=chance.randrange(24, 41),
        precision="bf16",
        loading_ns=chance.randrange(100_000, 200_000),
        workers=chance.randrange(3, 7),
        steps=chance.randrange(8, 17),
        seed=chance.randrange(2**31),
        sequence=chance.randrange(192, 321, 8),
        hidden=hidden,
        heads=hidden // 64,
        layers=2,
        gpu=chance.choice(GPUS),
    )


def planted(setup: Setup, cause: str, chance: random.Random) -> Setup:
    """Return the training with a cause that costs about a third of its time or more."""
    step_ns = sum(kernel.dur_ns for kernel in step(setup))
    share = chance.uniform(0.6, 1.2)
    if cause == LOADING:  # it lies beside the kernels of the step before as far as these reach
        return replace(setup, workers=0, loading_ns=round((1 + share) * step_ns / setup.batch))
    if cause == WAITING:
        return replace(setup, read_loss=1, host_ns=round(share * step_ns))
    if cause == FORMAT:
        return replace(setup, precision="fp32")
    small = {"batch": chance.randrange(1, 4), "sequence": chance.randrange(32, 65, 8)}
    return replace(setup, hidden=256, heads=4, layers=6, host_ns=100_000, **small)


def answers(program: Program) -> dict[str, Any]:
    """Return what is right to answer of a program."""
    rows = executed(program.setup)
    times: Counter[str] = Counter()
    for row in rows["kernels"]:
        times[row["kernel"].full_name] += row["dur_ns"]
    kernel, most_ns = times.most_common(1)[0]
    return {
        "gpu": program.setup.gpu,
        "steps": program.setup.steps,
        "kernel": kernel,
        "kernel_frac": most_ns / times.total(),
        "cause": program.cause,
        "idle_frac": idle_frac(rows),
    }


def idle_frac(rows: Rows) -> float:
    """Return the share of the span in which the GPU does nothing; its operations run one after another."""
    work = rows["kernels"] + rows["copies"]
    first = min(row["start_ns"] for row in work)
    last = max(row["start_ns"] + row["dur_ns"] for row in work)
    return 1 - sum(row["dur_ns"] for row in work) / (last - first)


def write(seed: str, student: str, folder: Path) -> None:
    """Write a student's captures, a folder for each program."""
    for name, program in programs(seed, student).items():
        export.write("run", program.setup, folder / name)
        (folder / name / "run.truth.json").unlink()


def archive(folder: Path) -> Path:
    """Write the sample's programs into `own_programs.zip`; return the file."""
    file = folder / "own_programs.zip"
    with TemporaryDirectory() as made, zipfile.ZipFile(file, "w") as out:
        write("sample", "sample", Path(made))
        for path in sorted(path for path in Path(made).rglob("*") if path.is_file()):
            entry = zipfile.ZipInfo(path.relative_to(made).as_posix(), TIME)
            out.writestr(entry, path.read_bytes(), zipfile.ZIP_LZMA)
    return file

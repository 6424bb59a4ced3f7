"""The runs of an experiment for a notebook: recorded on the reader's machine, or simulated.

A recorded experiment lies where ``python -m perfkit.workloads experiment NAME --out FOLDER`` puts it. Any other is
simulated and says so: it is unpacked from the sample into perfkit's cache, or into a temporary folder. Of three or more
repeats of a run the interval is between runs. Unknown names are refused with ValueError.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from perfkit import cache
from perfkit.analysis import compare, steps, timeline
from perfkit.diagnosis import comparison, sides, verdict
from perfkit.errors import PerfkitError
from perfkit.format import Shown, printable
from perfkit.report import output
from perfkit.report.notebooks import sample
from perfkit.run import Run, load
from perfkit.selection import Selection, select
from perfkit.workloads import DEVICES
from perfkit.workloads.experiments import REPEATS, find, repeats_of
from perfkit.workloads.running import TIMINGS

LEAST = {"batch_count": 1, "step_flops": 0}  # of what is read of a run's timings


@dataclass(frozen=True)
class Trial:
    """A run of an experiment with its repeats, `others`; samples of a step, and FLOP of a step by formula."""

    path: Path
    run: Run
    batch_count: int
    step_flops: int
    is_simulated: bool
    others: tuple[Trial, ...] = ()

    @property
    def every(self) -> tuple[Trial, ...]:
        """This run and its repeats."""
        return (self, *self.others)

    @cached_property
    def view(self) -> Selection:
        """All of the run."""
        return select(self.run)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """STEPS of the run, as the GPU takes them where the CPU runs ahead."""
        return sides.clocked(self.view, sides.any_ahead([self.view]))

    @property
    def step_ns(self) -> float:
        """Median steady step of the last phase, ns, of repeats the mean of their medians; NaN without steps.

        These are the steps that `compared` compares, so that both tell one time.
        """
        steady = [steps.last_phase(steps.steady(each.steps)) for each in self.every]
        return float(np.mean([frame["dur_ns"].median() for frame in steady]))

    @property
    def busy_frac(self) -> float:
        """Share of the run in which kernels ran on its first GPU, 0..1, mean of repeats; NaN without a GPU."""
        found = [
            timeline.busy(each.run.kernels, each.run.copies)["kernel_busy_frac"]
            for each in self.every
        ]
        return float(np.mean([busy.iloc[0] if len(busy) else np.nan for busy in found]))


MADE_BY = "perfkit sample"
EXPERIMENTS = "experiments"
ARCHIVE = f"{EXPERIMENTS}.zip"  # this sample is packed, for its runs are large
SAMPLES = MappingProxyType(  # what was measured goes first
    {
        "h100_copies": "measured: 320 small copies per step, and one packed copy (recommender on an H100; PyTorch)",
        "h200_launches": "measured: launch-bound, and the same in a CUDA graph (transformer on an H200; PyTorch)",
        "gpu_workloads": "measured: MLP, ResNet-18 and BERT on an H200 (PyTorch, nvidia-smi, ncu for the MLP)",
        "cpu_workloads": "measured: MLP, CNN, ResNet-18 and BERT on a CPU, training and inference (PyTorch)",
        "mlp_a100": "simulated: small kernels and a GPU that waits for data (MLP on an A100; nsys, ncu, PyTorch)",
        "resnet18_a100": "simulated: convolutions on tensor cores, training and inference (A100; nsys, ncu)",
        "bert_a100": "simulated: launch-bound at batch 1, compute-bound at 32 (BERT on an A100; nsys, ncu, PyTorch)",
        "bert_a100_optimised": "simulated: bert_a100 with a CUDA graph and TF32, to compare with it (nsys, ncu)",
        "dlrm_h100": "simulated: call paths and stalls of a GPU that is almost idle (DLRM on an H100; HPCToolkit)",
        EXPERIMENTS: "simulated: a training on an A100 before and after one change, eight topics of lab 4 (nsys)",
    }
)


def card(name: str, *, out: str = "runs") -> Shown:
    """Return an experiment's question, the claim that it tests, what to look at, and the commands that record it."""
    of = find(name)
    repeated = f"{REPEATS} times in turn, since no single run shows by how much runs differ; --repeats N changes that"
    rows = {
        "Question": of.question,
        "Claim to test": of.claim,
        "Look at": of.look,
        "Each run": repeated,
    }
    commands = {
        f"On a {device.upper()}" if device == "cpu" else "On a GPU": _command(name, device, out)
        for device in DEVICES
    }
    items = [
        f"<dt><strong>{escape(term)}</strong></dt><dd>{escape(text)}</dd>"
        for term, text in rows.items()
    ]
    items += [
        f"<dt>{term}</dt><dd><code>{escape(text)}</code></dd>" for term, text in commands.items()
    ]
    text = "\n".join(f"{term}: {text}" for term, text in {**rows, **commands}.items())
    return Shown(f"<dl>{''.join(items)}</dl>", text)


def _command(name: str, device: str, out: str) -> str:
    return f"python -m perfkit.workloads experiment {name} --device {device} --out {out}"


def trials(name: str, recorded: str | Path = "") -> dict[str, Trial]:
    """Return the runs of an experiment by their labels, with their repeats, in the order of the changes.

    `recorded` is a folder with recorded experiments; those it lacks are simulated, all of them when empty.
    Raises PerfkitError if a recorded experiment lacks one of its runs.
    """
    experiment = find(name)
    place = Path(recorded) / name
    runs = {}
    if recorded and place.is_dir():
        for label in _labels(name, place):
            rows = [(path, _last_row(path / TIMINGS)) for path in repeats_of(label, place)]
            first, *others = [
                Trial(p, load(p), r["batch_count"], r["step_flops"], is_simulated=False)
                for p, r in rows
            ]
            runs[label] = replace(first, others=tuple(others))
        return runs
    unpacked = folder(experiment.name)
    for path in (unpacked / label for label in experiment.runs["cuda"]):
        truth = _content(path / f"{path.name}.truth.json")
        runs[path.name] = Trial(
            path, load(path), truth["setup"]["batch"], truth["step_flops"], is_simulated=True
        )
    return runs


def _labels(name: str, place: Path) -> list[str]:
    """Return the labels of the runs that were recorded, on a GPU or a CPU; all of them must be there."""
    by_device = [list(find(name).runs[device]) for device in DEVICES]
    have = {label for labels in by_device for label in labels if repeats_of(label, place)}
    labels = max(by_device, key=lambda labels: len(have & set(labels)))
    if missing := [label for label in labels if label not in have]:
        raise PerfkitError(
            f"{place}: the run {missing[0]!r} is missing. Remove the folder and record all runs with "
            f"`{_command(name, 'cpu', str(place.parent))}`, on a GPU with --device cuda."
        )
    return labels


def _last_row(path: Path) -> dict[str, int]:
    """Return the last of the rows in the timings of a run: the batch size that was recorded."""
    content = _content(path)
    rows = content.get("rows") if isinstance(content, dict) else None
    row = rows[-1] if isinstance(rows, list) and rows else None
    numbers = {name: row.get(name) if isinstance(row, dict) else None for name in LEAST}
    wrong = [
        f"{name} {value!r}"
        for name, value in numbers.items()
        if type(value) is not int or value < LEAST[name]
    ]
    if wrong:
        raise PerfkitError(
            f"{path}: its last row has {printable(', '.join(wrong), 200)}. Record the run again."
        )
    return {name: int(value) for name, value in numbers.items() if value is not None}


def _content(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise PerfkitError(f"{path}: cannot be read ({e}). Record the run again.") from e


def overview(found: Mapping[str, Trial]) -> pd.DataFrame:
    """Return a row per run.

    `run`, its label; `from`; `runs_count`, it and its repeats; `batch_count`, samples of a step; `step_ns`, the median
    steady step, of repeats the mean of their medians; `sample_ns`, that by sample; `samples_per_s`; `launches_count`,
    the median number of kernels of a step of the first, and `kernel_busy_frac`, 0..1: NaN without a GPU; `flops_per_s`,
    operations by formula over the median step.
    """
    rows = [
        {
            "run": label,
            "from": "simulated" if trial.is_simulated else "recorded",
            "runs_count": len(trial.every),
            "batch_count": trial.batch_count,
            "step_ns": (step_ns := trial.step_ns),
            "sample_ns": step_ns / trial.batch_count,
            "samples_per_s": 1e9 * trial.batch_count / step_ns,
            "launches_count": float(
                compare.in_steps(trial.run.kernels, trial.steps).groupby("step").size().median()
            ),
            "kernel_busy_frac": trial.busy_frac,
            "flops_per_s": 1e9 * trial.step_flops / step_ns,
        }
        for label, trial in found.items()
    ]
    return pd.DataFrame(rows)


def compared(found: Mapping[str, Trial]) -> comparison.Comparison:
    """Return what differs between the first run and the last."""
    first, *_, last = found.values()
    before, after = ([each.view for each in trial.every] for trial in (first, last))
    return verdict.attempted(before, after)


def by_sample(found: Mapping[str, Trial]) -> pd.DataFrame:
    """Return `analysis.compare.ledger` of the runs with times by sample, so that steps of other batch sizes compare.

    The columns of steps hold times of a sample, `utilisation_frac` the share of the run in which kernels ran.
    """
    frames = {
        label: [
            t.steps.assign(dur_ns=(t.steps["dur_ns"] / t.batch_count).round().astype("int64"))
            for t in trial.every
        ]
        for label, trial in found.items()
    }
    used = {
        label: trial.busy_frac
        for label, trial in found.items()
        if trial.busy_frac == trial.busy_frac
    }
    return compare.ledger(frames, utilisation=used)


def folder(name: str) -> Path:
    """Return the folder with the simulated runs of an experiment, unpacked when it is first asked for."""
    try:
        return _made(name, _root())
    except PerfkitError:  # a cache that is full or cannot be written is none
        return _made(name, _temporary())


def _made(name: str, top: Path) -> Path:
    """Return the folder of an experiment's runs in `top`, unpacked if it is not there."""
    place = top / name
    if not place.is_dir():
        try:
            with output.replacing(place, None) as made:
                _unpack(name, made)
        except PerfkitError:
            if not place.is_dir():  # else another process was quicker, and its runs are the same
                raise
    return place


def _unpack(name: str, out: Path) -> None:
    """Write the runs of an experiment from the sample into a folder."""
    with (
        zipfile.ZipFile(sample(ARCHIVE)) as archive,
        tempfile.TemporaryDirectory(dir=out.parent) as place,
    ):
        archive.extractall(
            place, [member for member in archive.namelist() if member.startswith(f"{name}/")]
        )
        shutil.copytree(Path(place, name), out, dirs_exist_ok=True)


def _root() -> Path:
    """Return where simulated runs lie: in the cache by a digest of the sample, or a temporary folder."""
    top = cache.root()
    if top is not None:
        with suppress(OSError):  # a cache that cannot be written is none
            digest = hashlib.sha256(sample(ARCHIVE).read_bytes()).hexdigest()[:16]
            (place := top / "experiments" / digest).mkdir(parents=True, exist_ok=True)
            return place
    return _temporary()


@functools.cache
def _temporary() -> Path:
    folder = tempfile.mkdtemp(prefix="perfkit-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def copy(name: str, out: str | Path, *, note: Callable[[str], None]) -> Path:
    """Copy a sample run of SAMPLES into a new or empty folder, or over an earlier copy, and return the folder."""
    if name not in SAMPLES:
        raise PerfkitError(f"{name}: no such sample. Choose from {', '.join(SAMPLES)}.")
    source = sample(ARCHIVE if name == EXPERIMENTS else name)
    with output.replacing(out, MADE_BY, inputs=[source], note=note) as folder:
        if name == EXPERIMENTS:
            with zipfile.ZipFile(source) as archive:
                archive.extractall(folder)
        else:
            shutil.copytree(source, folder, copy_function=shutil.copyfile, dirs_exist_ok=True)
    return Path(out)

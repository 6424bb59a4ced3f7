"""The sample runs that come with perfkit: what each one shows, and how to copy one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

from perfkit import simulate
from perfkit.errors import PerfkitError
from perfkit.report import output
from perfkit.report.notebooks import sample

MADE_BY = "perfkit sample"
EXPERIMENTS = "experiments"  # the one sample that is simulated on the spot: its runs are large, and quickly made
SAMPLES = MappingProxyType(
    {
        "mlp_a100": "simulated: small kernels and a GPU that waits for data (MLP on an A100; nsys, ncu, PyTorch)",
        "resnet18_a100": "simulated: convolutions on tensor cores, training and inference (A100; nsys, ncu)",
        "bert_a100": "simulated: launch-bound at batch 1, compute-bound at 32 (BERT on an A100; nsys, ncu, PyTorch)",
        "bert_a100_optimised": "simulated: bert_a100 with a CUDA graph and TF32, to compare with it (nsys, ncu)",
        "dlrm_h100": "simulated: call paths and stalls of a GPU that is almost idle (DLRM on an H100; HPCToolkit)",
        "cpu_workloads": "recorded: MLP, CNN, ResNet-18 and BERT on a CPU, training and inference (PyTorch)",
        EXPERIMENTS: "simulated: a training on an A100 before and after one change, eight topics of lab 4 (nsys)",
    }
)


def copy(name: str, out: str | Path, *, note: Callable[[str], None]) -> Path:
    """Copy a sample run of SAMPLES into a new or empty folder, or over an earlier copy, and return the folder.

    `note` is called with a sentence for the user, such as which file of an earlier copy was kept. Raises
    PerfkitError if
    there is no such sample, or if the folder holds other files or cannot be written.
    """
    if name not in SAMPLES:
        raise PerfkitError(f"{name}: no such sample. Choose from {', '.join(SAMPLES)}.")
    inputs = [] if name == EXPERIMENTS else [sample(name)]
    with output.replacing(out, MADE_BY, inputs=inputs, note=note) as folder:
        if name == EXPERIMENTS:
            simulate.write_all(folder)
        for source in inputs:
            shutil.copytree(source, folder, copy_function=shutil.copyfile, dirs_exist_ok=True)
    return Path(out)

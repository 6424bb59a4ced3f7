"""Does a change help? Runs before and after it, which differ in that one thing, for eight topics of GPU utilisation.

The same topics, by the same names, are simulated by `perfkit.simulate`, for machines without a GPU.

Data
----
EXPERIMENTS     name -> experiment: measuring, tensor, fusion, sync, loading, batch, precision, case

Functions
---------
find            an experiment by its name
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from perfkit.workloads.experiment import Changes, Experiment, Runs
from perfkit.workloads.plan import DEVICES, Loader

BEFORE, AFTER = "before", "after"


def _pair(after: Changes, *, before: Changes | None = None, **shared: Any) -> Runs:
    """Return the runs of a pair."""
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
EXPERIMENTS = MappingProxyType({each.name: each for each in _ALL})


def find(name: str) -> Experiment:
    """Return an experiment by its name.

    Raises
    ------
    ValueError
        If there is none of that name.

    Examples
    --------
    >>> find("fusion").topic
    'Kernel fusion'
    """
    if name not in EXPERIMENTS:
        raise ValueError(f"experiment: {name!r} is not one of {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]

"""Made-up data of the right shape, through PyTorch's DataLoader or as one batch on the device.

Conventions
-----------
Samples are drawn once, from a seed, and each is prepared when it is asked for, as one of a real data set would be:
images are stored as bytes and become floats from -1 to 1; tokens are as they are. Labels are random, so a model can
only learn them by heart.

Functions
---------
batches    batches without end, on the device
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from perfkit.workloads.plan import Plan

KEPT = 256  # samples that are drawn; later ones are the same again
EPOCH = 100  # batches until the DataLoader starts again, and with it workers that do not persist
CLASSES = {"mlp": 10, "cnn": 10, "resnet18": 1000, "bert": 2}

Batch = tuple[Any, Any]


class Synthetic:
    """A data set for the DataLoader: `length` samples with their labels."""

    def __init__(self, torch: Any, plan: Plan, length: int) -> None:
        drawn = torch.Generator().manual_seed(plan.seed)
        self.samples = _samples(torch, plan, drawn)
        self.labels = torch.randint(CLASSES[plan.model], (KEPT,), generator=drawn)
        self.is_text = plan.model == "bert"
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Batch:
        if not 0 <= index < self.length:
            raise IndexError(index)
        sample, label = self.samples[index % KEPT], self.labels[index % KEPT]
        return (sample if self.is_text else sample.float().div_(127.5).sub_(1)), label


def batches(torch: Any, plan: Plan, batch: int) -> Generator[Batch]:
    """Yield batches of inputs and labels without end, on the device of the plan."""
    options = plan.loader
    loader = torch.utils.data.DataLoader(
        Synthetic(torch, plan, batch * EPOCH),
        batch_size=batch,
        num_workers=options.workers,
        pin_memory=options.pin_memory,
        prefetch_factor=options.prefetch,
        persistent_workers=options.persistent,
    )
    if options.resident:
        kept = _moved(next(iter(loader)), plan)
        while True:
            yield kept
    while True:
        for loaded in loader:
            yield _moved(loaded, plan)


def _samples(torch: Any, plan: Plan, drawn: Any) -> Any:
    if plan.model == "bert":
        return torch.randint(plan.size.vocabulary, (KEPT, plan.size.sequence), generator=drawn)
    shape = (3, plan.size.image, plan.size.image) if plan.model == "resnet18" else (1, 28, 28)
    return torch.randint(256, (KEPT, *shape), generator=drawn, dtype=torch.uint8)


def _moved(loaded: Batch, plan: Plan) -> Batch:
    """Copy a batch to the device; from pinned memory the host does not wait for it."""
    inputs, labels = (part.to(plan.device, non_blocking=plan.loader.pin_memory) for part in loaded)
    return inputs, labels

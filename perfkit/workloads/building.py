"""A model, and what one step of training or inference does with a batch.

Samples are drawn once, from a seed, and each is prepared when it is asked for, as one of a real data set would be:
images are stored as bytes and become floats from -1 to 1; tokens are as they are. Labels are random, so a model can
only learn them by heart.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from perfkit import hardware
from perfkit.errors import PerfkitError
from perfkit.workloads.baseline import Device
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


HALVES = {"fp16": "float16", "bf16": "bfloat16"}
# Compute capability from which tensor cores know the format (CUDA C++ Programming Guide, warp matrix functions).
TENSOR_SINCE = {"fp16": (7, 0), "bf16": (8, 0), "tf32": (8, 0)}
CXX, CC = ("c++", "g++", "clang++"), ("cc", "gcc", "clang")  # where CXX and CC name none


class Workload(NamedTuple):
    """A model on its device; `step` returns the loss of a batch when it trains, otherwise the logits."""

    model: Any
    step: Callable[[Batch], Any]


def model(plan: Plan) -> Any:
    """Return the model of a plan; the same seed gives the same weights."""
    import torch

    from perfkit.workloads import models

    torch.manual_seed(plan.seed)
    if plan.model in ("mlp", "cnn"):
        return models.SimpleMLP() if plan.model == "mlp" else models.SimpleCNN()
    if plan.model == "resnet18":
        return models.ResNet18(classes=CLASSES["resnet18"])
    names = ("layers", "hidden", "heads", "vocabulary")
    return models.BertClassifier(classes=CLASSES["bert"], **{name: getattr(plan.size, name) for name in names})


def workload(torch: Any, plan: Plan) -> Workload:
    """Return the model on its device and its step; compiled if asked for, PerfkitError without a compiler."""
    if plan.compile:
        _check_compiler(plan.device)
    made = model(plan).to(plan.device).train(plan.mode == "train")
    called = torch.compile(made) if plan.compile else made
    step = _training(torch, plan, made, called) if plan.mode == "train" else _inference(torch, plan, called)
    return Workload(made, step)


def _training(torch: Any, plan: Plan, made: Any, called: Any) -> Callable[[Batch], Any]:
    if plan.model == "bert":
        optimiser = torch.optim.AdamW(made.parameters(), lr=5e-5)
    else:
        optimiser = torch.optim.SGD(made.parameters(), lr=0.01, momentum=0.9)
    # Gradients of FP16 numbers are scaled up, so that small ones do not become 0.
    scaler = torch.amp.GradScaler(plan.device, enabled=plan.precision == "fp16")
    done = 0

    def step(batch: Batch) -> Any:
        nonlocal done
        done += 1
        inputs, labels = batch
        with autocast(torch, plan):
            loss = torch.nn.functional.cross_entropy(called(inputs), labels)
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
        optimiser.zero_grad()
        return loss.item() if plan.read_loss and done % plan.read_loss == 0 else loss.detach()

    return step


def _inference(torch: Any, plan: Plan, called: Any) -> Callable[[Batch], Any]:
    def step(batch: Batch) -> Any:
        with torch.inference_mode(), autocast(torch, plan):
            return called(batch[0])

    return step


def _check_compiler(device: str) -> None:
    """Refuse to compile without what PyTorch's compiler calls: Triton and a C compiler on a GPU, C++ on a CPU."""
    variable, names = ("CC", CC) if device == "cuda" else ("CXX", CXX)
    asked = os.environ.get(variable)
    if not any(shutil.which(name) for name in ((asked,) if asked else names)):
        raise PerfkitError(
            f"compile: there is no {'C' if device == 'cuda' else 'C++'} compiler ({asked or ', '.join(names)}). "
            f"Install one, set {variable} to it, or leave --compile out."
        )
    if device == "cuda" and importlib.util.find_spec("triton") is None:
        raise PerfkitError("compile: Triton is not installed. Install `triton`, or leave --compile out.")


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


@contextmanager
def computing(used: Device, plan: Plan) -> Iterator[None]:
    """Let a GPU compute with FP32 numbers as such, or in TF32; PerfkitError if it has no tensor cores for TF32.

    PyTorch alone computes convolutions in TF32 and matrix products in FP32; both are set, and set back afterwards.
    """
    if used.capability is None:
        yield
        return
    if plan.precision == "tf32" and used.capability < TENSOR_SINCE["tf32"]:
        raise PerfkitError(f"precision: {used.name} does not compute in TF32. Choose fp32 or fp16.")
    torch = used.torch
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if plan.precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = plan.precision == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def autocast(torch: Any, plan: Plan) -> Any:
    """Return a context in which products are computed in FP16 or BF16, or one that changes nothing."""
    half = HALVES.get(plan.precision)
    return torch.autocast(plan.device, dtype=getattr(torch, half or "bfloat16"), enabled=half is not None)


def peak_flops(used: Device, plan: Plan, *, table: Iterable[hardware.Peaks] | None = None) -> float | None:
    """Return the dense peak of the device in the plan's precision, FLOP/s, or None if it is not known.

    That of tensor cores where the GPU has them for the precision. A CPU has one only in a `table` of one's own (those
    of perfkit when omitted), as `perfkit baseline gemm` measures it.
    """
    sheet = hardware.peaks(used.name, table=table)
    since = TENSOR_SINCE.get(plan.precision)
    in_tensor_cores = since is not None and used.capability is not None and used.capability >= since
    name = f"{plan.precision}_tensor" if in_tensor_cores else plan.precision
    return sheet.flops_per_s.get(name) if sheet else None

"""A model, and what one step of training or inference does with a batch.

Functions
---------
model       the model of a plan, on the CPU, with random weights
workload    it on the device, with its step
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from typing import Any, NamedTuple

from perfkit.errors import PerfkitError
from perfkit.workloads.data import CLASSES, Batch
from perfkit.workloads.plan import Plan
from perfkit.workloads.precision import autocast

CXX, CC = ("c++", "g++", "clang++"), ("cc", "gcc", "clang")  # where CXX and CC name none


class Workload(NamedTuple):
    """A model on its device; `step` returns the loss of a batch when it trains, otherwise the logits."""

    model: Any
    step: Callable[[Batch], Any]


def model(plan: Plan) -> Any:
    """Return the model of a plan; the same seed gives the same weights."""
    import torch

    torch.manual_seed(plan.seed)
    if plan.model == "mlp":
        from perfkit.workloads.models.mlp import SimpleMLP

        return SimpleMLP()
    if plan.model == "cnn":
        from perfkit.workloads.models.cnn import SimpleCNN

        return SimpleCNN()
    if plan.model == "resnet18":
        from perfkit.workloads.models.resnet import ResNet18

        return ResNet18(classes=CLASSES["resnet18"])
    from perfkit.workloads.models.bert import BertClassifier

    names = ("layers", "hidden", "heads", "vocabulary")
    return BertClassifier(classes=CLASSES["bert"], **{name: getattr(plan.size, name) for name in names})


def workload(torch: Any, plan: Plan) -> Workload:
    """Return the model on its device, compiled if that is asked for, and its step.

    Raises
    ------
    PerfkitError
        If it is to be compiled and there is no compiler.
    """
    if plan.compile:
        _check_compiler(plan.device)
    made = model(plan).to(plan.device).train(plan.mode == "train")
    called = torch.compile(made) if plan.compile else made
    step = _training(torch, plan, made, called) if plan.mode == "train" else _inference(torch, plan, called)
    return Workload(made, step)


def _training(torch: Any, plan: Plan, made: Any, called: Any) -> Callable[[Batch], Any]:
    optimiser = _optimiser(torch, plan, made)
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


def _optimiser(torch: Any, plan: Plan, made: Any) -> Any:
    if plan.model == "bert":
        return torch.optim.AdamW(made.parameters(), lr=5e-5)
    return torch.optim.SGD(made.parameters(), lr=0.01, momentum=0.9)


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

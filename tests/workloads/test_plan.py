"""What can be run, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perfkit.workloads import Loader, Plan, Size


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Plan("lstm"), r"model: 'lstm' is not one of \['mlp', 'cnn', 'resnet18', 'bert'\]"),
        (lambda: Plan("mlp", mode="test"), r"mode: 'test' is not one of \['train', 'inference'\]"),
        (lambda: Plan("mlp", device="mps"), r"device: 'mps' is not one of \['cpu', 'cuda'\]"),
        (lambda: Plan("mlp", precision="fp8"), "precision: 'fp8' is not one of"),
        (lambda: Plan("mlp", precision="tf32"), "precision: 'tf32' is one of GPUs"),
        (lambda: Plan("mlp", batches=()), r"batches: \[\] is no list of sizes from 1 on"),
        (lambda: Plan("mlp", batches=(8, 0)), r"batches: \[8, 0\] is no list"),
        (lambda: Plan("mlp", steps=0), "steps: 0 is below 1"),
        (lambda: Plan("mlp", warm_up=-1), "warm_up: -1 is below 0"),
        (lambda: Plan("mlp", read_loss=-1), "read_loss: -1 is below 0"),
        (lambda: Plan("mlp", traced=0), "traced: 0 is below 1"),
        (lambda: Plan("mlp", loader=Loader(pin_memory=True)), "pin_memory: speeds up copies to a GPU"),
        (lambda: Plan("mlp", mode="inference", read_loss=True), "read_loss: inference has no loss"),
        (lambda: Loader(workers=-1), "workers: -1 is below 0"),
        (lambda: Loader(workers=1, prefetch=0), "prefetch: 0 is below 1"),
        (lambda: Loader(prefetch=2), "workers: 0, so there is nothing to prefetch"),
        (lambda: Loader(persistent=True), "workers: 0, so there is nothing to prefetch"),
        (lambda: Loader(resident=True, workers=2), "resident: the batch stays on the device"),
        (lambda: Size(image=31), "image: 31 is below 32"),
        (lambda: Size(sequence=513), "sequence: 513 tokens; BERT takes 1 to 512"),
        (lambda: Size(hidden=100, heads=12), "hidden: 100 is no multiple of 12 heads"),
        (lambda: Size(layers=0), "layers: 0 is below 1"),
    ],
)
def test_what_cannot_be_run_is_refused(make: Callable[[], Any], message: str) -> None:
    """A plan says what is wrong with it before anything is run."""
    with pytest.raises(ValueError, match=message):
        make()


def test_a_gpu_warms_up_for_longer() -> None:
    """50 steps on a GPU, 5 on a CPU, or as many as are asked for, which may be none."""
    plans = Plan("mlp", device="cuda"), Plan("mlp"), Plan("mlp", warm_up=0)
    assert [50, 5, 0] == [plan.warming for plan in plans]


def test_dimensions_are_those_of_the_model() -> None:
    """MLP and CNN have no size, ResNet that of its images, BERT five."""
    counts = [len(Plan(name).dimensions) for name in ("mlp", "cnn", "resnet18", "bert")]
    assert [0, 0, 1, 5] == counts
    assert {"image": 64} == Plan("resnet18", size=Size(image=64)).dimensions

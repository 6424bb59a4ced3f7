"""Profiles in the tools' own formats that no GPU recorded, with what is true of them.

Data
----
SIMULATIONS    name -> function that writes the simulation of that name into a folder and returns the folder

Functions
---------
dlrm           a DLRM's training on an H100, as HPCToolkit would have recorded it
mlp_a100       the training run of an A100 lab report, as Nsight Systems would have recorded it, with Nsight Compute's
               counters of its forward pass and PyTorch's profile of a few steps
resnet18_a100  some steps of the ResNet-18 of the same report, and counters of its forward pass
bert_a100      inference with the BERT of the same report, and `bert_a100_optimised`, two of its batch sizes made faster
experiments    runs before and after a change, for eight topics of GPU utilisation
capture        an Nsight Systems export of any size and `Shape`
cases          an Nsight Compute report with counters of every precision
hpctoolkit     HPCToolkit databases of any content and size
kineto         PyTorch traces of any content, and folders of them of any number of ranks and events
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from perfkit.simulate import experiments, hpctoolkit, kineto
from perfkit.simulate.bert_a100 import bert_a100, bert_a100_optimised
from perfkit.simulate.capture import capture
from perfkit.simulate.dlrm import dlrm
from perfkit.simulate.mlp_a100 import mlp_a100
from perfkit.simulate.ncu_cases import cases
from perfkit.simulate.resnet18_a100 import resnet18_a100
from perfkit.simulate.shape import Shape

__all__ = [
    "SIMULATIONS",
    "Shape",
    "bert_a100",
    "bert_a100_optimised",
    "capture",
    "cases",
    "dlrm",
    "experiments",
    "hpctoolkit",
    "kineto",
    "mlp_a100",
    "resnet18_a100",
]

SIMULATIONS: dict[str, Callable[[Path], Path]] = {
    "bert_a100": bert_a100,
    "bert_a100_optimised": bert_a100_optimised,
    "dlrm": dlrm,
    "experiments": experiments.write_all,
    "mlp_a100": mlp_a100,
    "resnet18_a100": resnet18_a100,
}

"""Makers of the sample runs in data/, and of captures of any size for tests and benchmarks.

No GPU records these profiles: each maker writes files in the tools' own formats, and beside them what is true of them.
`python -m make` in data/ runs them.

Data
----
SAMPLES        name -> function that writes the sample of that name into a folder and returns the folder

Functions
---------
dlrm_h100      a DLRM's training on an H100, as HPCToolkit would have recorded it
mlp_a100       the training run of an A100 lab report, as Nsight Systems would have recorded it, with Nsight Compute's
               counters of its forward pass and PyTorch's profile of a few steps
resnet18_a100  some steps of the ResNet-18 of the same report, and counters of its forward pass
bert_a100      inference with the BERT of the same report, and `bert_a100_optimised`, two of its batch sizes made faster
capture        an Nsight Systems export of any size and `Shape`
cases          an Nsight Compute report with counters of every precision

Packages
--------
hpctoolkit     HPCToolkit databases of any content and size
kineto         PyTorch traces of any content, and folders of them of any number of ranks and events
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from make import hpctoolkit, kineto
from make.bert import bert_a100, bert_a100_optimised
from make.captures import Shape, capture
from make.dlrm import dlrm_h100
from make.mlp import mlp_a100
from make.ncu import cases
from make.resnet import resnet18_a100

__all__ = [
    "SAMPLES",
    "Shape",
    "bert_a100",
    "bert_a100_optimised",
    "capture",
    "cases",
    "dlrm_h100",
    "hpctoolkit",
    "kineto",
    "mlp_a100",
    "resnet18_a100",
]

SAMPLES: dict[str, Callable[[Path], Path]] = {
    "bert_a100": bert_a100,
    "bert_a100_optimised": bert_a100_optimised,
    "dlrm_h100": dlrm_h100,
    "mlp_a100": mlp_a100,
    "resnet18_a100": resnet18_a100,
}

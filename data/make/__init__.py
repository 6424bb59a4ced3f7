"""Makers of the sample runs in data/, and of captures of any size for tests and benchmarks.

No GPU records these profiles: each maker writes files in the tools' own formats, and beside them what is true of them.
SAMPLES maps the name of a sample to the function that writes it into a folder; `python -m make` in data/ runs them.
`capture` writes an Nsight Systems export of any size and `Shape`, `cases` an Nsight Compute report with counters of
every precision, `hpctoolkit` databases of any content, `kineto` PyTorch traces of any number of ranks, and `archive`
the simulated experiments of lab 4.
"""

from collections.abc import Callable
from pathlib import Path

from make import hpctoolkit, kineto
from make.bert import bert_a100, bert_a100_optimised
from make.captures import Shape, capture
from make.dlrm import dlrm_h100
from make.mlp import mlp_a100
from make.ncu import cases
from make.resnet import resnet18_a100
from make.simulate import archive

__all__ = [
    "SAMPLES",
    "Shape",
    "archive",
    "bert_a100",
    "bert_a100_optimised",
    "capture",
    "cases",
    "dlrm_h100",
]
__all__ += ["hpctoolkit", "kineto", "mlp_a100", "resnet18_a100"]

_MAKERS = (bert_a100, bert_a100_optimised, dlrm_h100, mlp_a100, resnet18_a100)
SAMPLES: dict[str, Callable[[Path], Path]] = {make.__name__: make for make in _MAKERS}

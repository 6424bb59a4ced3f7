"""Which settings give the utilisation that notes on a training report after each of four changes?

Conventions
-----------
The notes: utilisation 65 % → 78 % by BF16 → 87 % by a DataLoader with eight workers and pinned memory → 92 % by a
batch of 8 in place of 4 → 95 % by torch.compile, and 12 samples/s before, 45 after. Their model is not known; here it
is a transformer whose operations per sample are 22 % of the A100's FP32 peak at 12 samples/s: the MFU of the notes.

Set such that these figures come out: the time that kernels take, all of them together, and the time in which the host
keeps the GPU waiting. Both are settings of a stage, and no effect of the change that names the stage: BF16 does not
prepare a batch eight times as fast, but a utilisation that rises with it needs just that. Throughput between the first
stage and the last, and how kernel time is split between matrix products and others, are invented.

Data
----
STAGES     what is set for each stage
SERIES     label -> settings of the program
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from perfkit.simulate.experiments.setup import Setup
from perfkit.simulate.experiments.transformer import step

MS = 1_000_000


class Stage(NamedTuple):
    """What a stage has; the kernel times are of a step.

    Attributes
    ----------
    utilisation_frac
        Of the notes, 0..1.
    setup
        The program.
    products_ns, others_ns
        Time of all matrix products of a step, and of all other kernels.
    """

    utilisation_frac: float
    setup: Setup
    products_ns: int
    others_ns: int

    @property
    def scaled(self) -> Setup:
        """The program with kernels that take these times together."""
        kernels = step(self.setup)
        products = sum(kernel.dur_ns for kernel in kernels if kernel.is_product)
        others = sum(kernel.dur_ns for kernel in kernels if not kernel.is_product)
        return replace(self.setup, product_frac=self.products_ns / products, other_frac=self.others_ns / others)


BEFORE = Setup(
    batch=4,
    read_loss=1,
    loading_ns=25_600_000,
    pinned=False,
    host_ns=14_100_000,
    steps=64,
    sequence=1018,
    hidden=1024,
    layers=4,
    heads=16,
)
IN_BF16 = replace(BEFORE, precision="bf16", loading_ns=3_200_000)
LOADED_BESIDE = replace(IN_BF16, workers=8, pinned=True)
LARGER_BATCH = replace(LOADED_BESIDE, batch=8, host_ns=15_700_000)
COMPILED = replace(LARGER_BATCH, fused=True, host_ns=8_600_000)

STAGES = {
    "before": Stage(0.65, BEFORE, 195_000_000, 21_700_000),
    "BF16": Stage(0.78, IN_BF16, 80_000_000, 16_500_000),
    "8 workers": Stage(0.87, LOADED_BESIDE, 80_000_000, 16_500_000),
    "batch 8": Stage(0.92, LARGER_BATCH, 154_200_000, 30_300_000),
    "torch.compile": Stage(0.95, COMPILED, 154_200_000, 14_600_000),
}
SERIES = {label: stage.scaled for label, stage in STAGES.items()}

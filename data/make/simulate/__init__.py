"""Write what Nsight Systems would record of a training before and after a change, and of a series of four.

No GPU runs. A transformer is trained on a simulated A100, event by event: the times of kernels follow from operations,
bytes and data sheet, and the effect of a change follows from the program. PAIRS differ in one setting.

The series is that of notes on a training: utilisation 65 % -> 78 % by BF16 -> 87 % by a DataLoader with eight workers
and pinned memory -> 92 % by a batch of 8 instead of 4 -> 95 % by torch.compile, and 12 samples/s before, 45 after. The
model is not known; here it is a transformer whose operations per sample are 22 % of the A100's FP32 peak at 12
samples/s: the MFU of the notes. Two settings of each stage make these figures come out and are no effect of the change
that names it: the time of all kernels, and that in which the host keeps the GPU waiting. Throughput between the first
stage and the last, and the split of kernel time between matrix products and others, are invented.
"""

import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from make.simulate import export
from make.simulate.program import Setup, step

__all__ = ["NAMES", "PAIRS", "SERIES", "Setup", "archive", "write"]

_LOADING = Setup(precision="bf16", loading_ns=500_000, pinned=False)

PAIRS: Mapping[str, tuple[Setup, Setup]] = {
    "measuring": (Setup(precision="bf16"), Setup(precision="bf16", seed=1)),
    "tensor": (Setup(), Setup(precision="tf32")),
    "fusion": (Setup(precision="bf16"), Setup(precision="bf16", fused=True)),
    "sync": (Setup(precision="bf16", read_loss=1), Setup(precision="bf16", read_loss=50)),
    "loading": (_LOADING, replace(_LOADING, workers=4)),
    "batch": (Setup(precision="bf16", batch=4), Setup(precision="bf16", batch=32)),
    "precision": (Setup(), Setup(precision="bf16")),
}
CASE = "case"
TIME = (2026, 1, 1, 0, 0, 0)  # of each file in the archive, so that equal runs make equal archives
NAMES = (*PAIRS, CASE)


class Stage(NamedTuple):
    """A stage: utilisation of the notes, 0..1; the program; times of a step's matrix products and other kernels."""

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
        return replace(
            self.setup, product_frac=self.products_ns / products, other_frac=self.others_ns / others
        )


NOTES: dict[str, Any] = {
    "batch": 4,
    "steps": 64,
    "sequence": 1018,
    "hidden": 1024,
    "layers": 4,
    "heads": 16,
}
BEFORE = Setup(read_loss=1, loading_ns=25_600_000, pinned=False, host_ns=14_100_000, **NOTES)
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


def write(name: str, folder: str | Path) -> dict[str, Path]:
    """Write the runs of one of PAIRS, or of "case", the series, into `folder`; return each run's by its label."""
    folder = Path(folder)
    return {
        label: export.write(label, setup, folder / label) for label, setup in _setups(name).items()
    }


def archive(folder: str | Path) -> Path:
    """Write all pairs and the series into `experiments.zip`, each in a folder of its name; return the file."""
    file = Path(folder, "experiments.zip")
    with TemporaryDirectory() as made, zipfile.ZipFile(file, "w") as out:
        for name in NAMES:
            write(name, Path(made, name))
        for path in sorted(path for path in Path(made).rglob("*") if path.is_file()):
            entry = zipfile.ZipInfo(path.relative_to(made).as_posix(), TIME)
            out.writestr(entry, path.read_bytes(), zipfile.ZIP_LZMA)
    return file


def _setups(name: str) -> Mapping[str, Setup]:
    if name not in NAMES:
        raise ValueError(f"name: {name!r} is not one of {', '.join(NAMES)}")
    return SERIES if name == CASE else dict(zip(("before", "after"), PAIRS[name], strict=True))

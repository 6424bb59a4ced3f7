"""Number formats of a workload: what PyTorch computes in, and which peak that is compared with.

Functions
---------
computing    let products of FP32 numbers be computed in FP32 or in TF32
autocast     let products be computed in FP16 or BF16
peak         the dense peak that goes with the precision
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from perfkit import hardware
from perfkit.errors import PerfkitError
from perfkit.workloads.baseline.timing import Device
from perfkit.workloads.plan import Plan

HALVES = {"fp16": "float16", "bf16": "bfloat16"}
# Compute capability from which tensor cores know the format (CUDA C++ Programming Guide, warp matrix functions).
TENSOR_SINCE = {"fp16": (7, 0), "bf16": (8, 0), "tf32": (8, 0)}


@contextmanager
def computing(used: Device, plan: Plan) -> Iterator[None]:
    """Let matrix products and convolutions of FP32 numbers be computed as such, or in TF32, on a GPU.

    PyTorch alone computes convolutions in TF32 and matrix products in FP32; both are set, and set back afterwards.

    Raises
    ------
    PerfkitError
        If the GPU has no tensor cores for TF32.
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


def peak(used: Device, plan: Plan, *, table: Iterable[hardware.Peaks] | None = None) -> float | None:
    """Return the dense peak of the device in this precision, FLOP/s, or None if it is not known.

    That of tensor cores where the GPU has them for the precision. A CPU has one only in a table of one's own, as
    `perfkit baseline gemm` measures it.

    Parameters
    ----------
    used
        The device.
    plan
        With the precision.
    table
        Peaks to look in, such as those of `hardware.load_peaks`; those of perfkit when omitted.
    """
    sheet = hardware.peaks(used.name, table=table)
    since = TENSOR_SINCE.get(plan.precision)
    in_tensor_cores = since is not None and used.capability is not None and used.capability >= since
    name = f"{plan.precision}_tensor" if in_tensor_cores else plan.precision
    return sheet.flops_per_s.get(name) if sheet else None

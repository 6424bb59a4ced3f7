"""What share of the peak do the operators use?

Functions
---------
mfu    operations per second over the peak
"""

from __future__ import annotations

import math

import pandas as pd

from perfkit.analysis.efficiency.credible import credible
from perfkit.analysis.flops.totals import OPERATOR_POINTS
from perfkit.errors import PerfkitError


def mfu(
    points: pd.DataFrame,
    coverage: pd.DataFrame,
    *,
    peak_flops_per_s: float | None,
    span_ns: int,
    gpus: int = 1,
    recomputed_flops: float = 0.0,
) -> pd.DataFrame:
    """Return the model FLOP utilisation: operations of the operators per second, over the peak of all GPUs.

    hfu = flops / (span x gpus x peak), with all that the operators executed. Where activations are computed a second
    time for the backward pass (checkpointing), that is more than the model needs: mfu leaves `recomputed_flops` out.
    Both are lower bounds as far as the coverage is below 1, since operators without a model count for nothing.

    Parameters
    ----------
    points, coverage
        Of `roofline` and `coverage`, for the same operators and kernels; may hold several ranks.
    peak_flops_per_s
        Dense peak of one GPU in the precision of the operators, FLOP/s, such as
        ``hardware.peaks(name).flops("bf16_tensor")``. There is no default: None is refused.
    span_ns
        Wall time in which the kernels ran, ns, such as that of some whole steps.
    gpus
        GPUs that the ranks of `points` used, count.
    recomputed_flops
        What of the operations the model would not need, FLOP.

    Returns
    -------
    pandas.DataFrame
        One row: `flops` float64, FLOP; `span_ns` int64; `gpus` int64; `peak_flops_per_s` float64, of one GPU;
        `mfu_frac`, `hfu_frac` float64, 0..1; `coverage_frac` float64, 0..1, share of the kernel time whose
        operators' FLOP are known; `note` string, what to check where `hfu_frac` is above 0.7, else empty.

    Raises
    ------
    PerfkitError
        If no peak is known, no operator has both FLOP and GPU time, or the result is above 1, which cannot be.
    ValueError
        If the span is not positive, there is no GPU, or more is recomputed than there is.

    References
    ----------
    Chowdhery et al.: PaLM, arXiv 2204.02311, appendix B.

    Examples
    --------
    >>> mfu(OPERATOR_POINTS.empty(), OPERATOR_POINTS.empty(), peak_flops_per_s=None, span_ns=1)
    Traceback (most recent call last):
    ...
    perfkit.errors.PerfkitError: mfu: no peak is known. Pass the dense peak of the GPU in the operators' precision.
    """
    OPERATOR_POINTS.check(points)
    flops = float(points["flops"].sum())
    _possible(flops, peak_flops_per_s, span_ns, gpus, recomputed_flops)
    hfu = flops / (span_ns / 1e9 * gpus * (peak_flops_per_s or math.nan))
    note = credible(hfu, what="mfu", gpus=gpus)
    timed, modelled = int(coverage["gpu_ns"].sum()), int(coverage["flops_ns"].sum())
    return pd.DataFrame(
        {
            "flops": [flops],
            "span_ns": [int(span_ns)],
            "gpus": [int(gpus)],
            "peak_flops_per_s": [peak_flops_per_s],
            "mfu_frac": [hfu * (1 - recomputed_flops / flops)],
            "hfu_frac": [hfu],
            "coverage_frac": [modelled / timed if timed else math.nan],
            "note": pd.array([note], "string"),
        }
    )


def _possible(flops: float, peak: float | None, span_ns: int, gpus: int, recomputed: float) -> None:
    """Raise if there is nothing to divide, or nothing to divide by."""
    if peak is None or not 0 < peak < math.inf:
        raise PerfkitError("mfu: no peak is known. Pass the dense peak of the GPU in the operators' precision.")
    if not flops > 0:
        raise PerfkitError(
            "mfu: no operator has both known operations and GPU time. Record with `record_shapes=True`, and with CUDA "
            "activities."
        )
    if not span_ns > 0 or not gpus >= 1:
        raise ValueError(f"span_ns, gpus: {span_ns} and {gpus} are not a positive time and at least one GPU")
    if not 0 <= recomputed <= flops:
        raise ValueError(f"recomputed_flops: {recomputed} is not within 0 and the operations, {flops}")

"""What share of the peak do the reports of DeepSpeed's Flops Profiler and of Megatron come to?

Functions
---------
reported_mfu    per rank, from the rates that the reports print
"""

from __future__ import annotations

import pandas as pd

from perfkit.analysis.calls import where
from perfkit.analysis.efficiency.credible import credible
from perfkit.analysis.efficiency.utilisation import peak_flops
from perfkit.hardware import Peaks
from perfkit.tables import SAMPLES

_RATES = ["forward_flops_per_s", "training_flops_per_s"]
_TIMES = ["forward_ns", "backward_ns", "iteration_ns"]


def reported_mfu(samples: pd.DataFrame, *, peaks: Peaks | None, precision: str) -> pd.DataFrame:
    """Return the share of the peak that DeepSpeed or Megatron report: printed FLOP/s of one GPU / its dense peak.

    Neither prints a utilisation of its own. DeepSpeed counts the operations of the forward pass and takes twice as
    many for the backward pass; Megatron prints the rate of the iteration, in which older versions count recomputed
    activations. Several reports of a rank (profiled steps, iterations) are averaged.

    Parameters
    ----------
    samples
        SAMPLES with `forward_flops_per_s` or `training_flops_per_s`; may be empty. Other metrics are passed over.
    peaks, precision
        Dense peaks of one GPU and the precision that ran, as in `mfu`.

    Returns
    -------
    pandas.DataFrame
        One row per rank and gpu (int32) with such a report, ascending: `peak_flops_per_s` float64, of one GPU;
        `forward_frac`, `mfu_frac`, `iteration_mfu_frac` float64, 0..1: of the forward pass, of what the report calls
        training (forward and backward pass in DeepSpeed's), and of the iteration, which ends after the optimizer's
        step; NaN where the report lacks the lines for it;
        `note` string, what to check where one of them is suspicious, else empty.

    Raises
    ------
    SchemaError
        If `samples` is not a SAMPLES table.
    PerfkitError
        If the peak is not known, or a share is above 1, which cannot be.
    ValueError
        If the precision is none.

    References
    ----------
    DeepSpeed, Flops Profiler; Chowdhery et al.: PaLM, arXiv 2204.02311, appendix B.

    Examples
    --------
    >>> reported_mfu(SAMPLES.empty(), peaks=Peaks("A100", {"fp16_tensor": 312e12}), precision="fp16_tensor").empty
    True
    """
    peak = peak_flops(peaks, precision, what="reported_mfu")
    wanted = SAMPLES.check(samples)[where(samples["metric"], {*_RATES, *_TIMES}.__contains__)]
    named = wanted.astype({"metric": "string"})
    printed = named.pivot_table(index=["rank", "gpu"], columns="metric", values="value", aggfunc="mean")
    printed = printed.reindex(columns=[*_RATES, *_TIMES]).dropna(subset=_RATES, how="all")
    passes = printed["forward_ns"] + printed["backward_ns"]
    shares = {
        "forward_frac": printed["forward_flops_per_s"] / peak,
        "mfu_frac": printed["training_flops_per_s"] / peak,
        "iteration_mfu_frac": printed["training_flops_per_s"] / peak * passes / printed["iteration_ns"],
    }
    table = pd.DataFrame({"peak_flops_per_s": peak, **shares}, index=printed.index)
    highest = table[list(shares)].max(axis=1)
    table["note"] = pd.array([credible(share, what="reported_mfu") for share in highest], "string")
    return table.reset_index().astype({"rank": "int32", "gpu": "int32", **dict.fromkeys(shares, "float64")})

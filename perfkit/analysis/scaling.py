"""How long does a training take, at least, and how does it scale over GPUs?

All times are float ns. A number that is not above 0 raises ValueError. Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md
(ring all-reduce).
"""

import math

import numpy as np
import pandas as pd

from perfkit.analysis.efficiency import positive
from perfkit.errors import PerfkitError
from perfkit.format import size
from perfkit.hardware import Peaks
from perfkit.schema import Column, Table

RUNS = Table(
    "RUNS",
    "a run of a training on a number of GPUs",
    (
        Column("gpus", "int64", "GPUs of the run"),
        Column("throughput_per_s", "float64", "tokens, samples or steps of all GPUs per second"),
    ),
    ("gpus",),
)


def training_time(*, tokens: float, tokens_per_s: float) -> float:
    """Return the time to train on a number of tokens, ns: tokens / tokens per second of all GPUs.

    The rate is measured, or a share of the peak over the FLOP per token. Interruptions are not in it.

    70e9 parameters, 2e12 tokens, 2048 H100 at 50 % of 989e12 FLOP/s, in seconds and days:

    >>> time = training_time(tokens=2e12, tokens_per_s=0.5 * 2048 * 989e12 / (6 * 70e9))
    >>> round(time / 1e9), round(time / 86400e9, 1)
    (829436, 9.6)
    """
    positive(tokens=tokens, tokens_per_s=tokens_per_s)
    return tokens / tokens_per_s * 1e9


def all_reduce_time(
    *, size_bytes: float, ranks: int, bytes_per_s: float, latency_ns: float = 0.0
) -> float:
    """Return the time of an all-reduce over a ring, ns: 2 (n - 1) / n x size / bandwidth + 2 (n - 1) x latency.

    `size_bytes` is what every rank sums: the gradients in their own type, which may be wider than the weights; `ranks`
    is n, at least 1 (nothing to exchange); `bytes_per_s` a rank's bus bandwidth, which nccl-tests prints as busbw for
    large messages, less than the line rate; `latency_ns` that of one of the 2 (n - 1) steps, not negative, 0 for large
    messages only. How much of it the training waits for depends on what overlaps with it.

    140 GB over 64 ranks at 50 and at 200 GB/s:

    >>> [round(all_reduce_time(size_bytes=140e9, ranks=64, bytes_per_s=rate) / 1e9, 2) for rate in (50e9, 200e9)]
    [5.51, 1.38]
    """
    positive(size_bytes=size_bytes, bytes_per_s=bytes_per_s)
    if not ranks >= 1:
        raise ValueError(f"ranks: {ranks} is not at least 1")
    if not 0 <= latency_ns < math.inf:
        raise ValueError(f"latency_ns: {latency_ns} is not a number of at least 0")
    return 2 * (ranks - 1) / ranks * size_bytes / bytes_per_s * 1e9 + 2 * (ranks - 1) * latency_ns


def decode_floor(
    *, weight_bytes: float, gpus: int, memory_bytes: float | None, peaks: Peaks | None
) -> float:
    """Return the least time to generate one token of a sequence, ns: weights / (GPUs x memory bandwidth).

    Every weight of a dense model is read once per token, for all sequences of a batch together, from the memory of the
    GPUs that share them. Keys and values, communication and the conversion of compressed weights come on top.
    `weight_bytes` are those in memory, spread evenly over `gpus`; `memory_bytes` is one GPU's, such as DEVICES has it,
    `peaks` such as ``hardware.peaks(name)`` gives; there is no default. PerfkitError if the weights do not fit into the
    memory of the GPUs, or memory or bandwidth are not known.

    70e9 parameters on H100, in 16 bits on two, ms; on one they do not fit:

    >>> h100 = Peaks("H100", {}, memory_bytes_per_s=3.35e12)
    >>> round(decode_floor(weight_bytes=140e9, gpus=2, memory_bytes=80e9, peaks=h100) / 1e6, 2)
    20.9
    >>> decode_floor(weight_bytes=140e9, gpus=1, memory_bytes=80e9, peaks=h100)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    perfkit.errors.PerfkitError: decode_floor: weights of 140 GB do not fit into 80.0 GB of 1 GPUs. Spread them over ...
    """
    if peaks is None or memory_bytes is None:
        raise PerfkitError(
            "decode_floor: memory or bandwidth of the GPU are not known. Pass memory_bytes, such as that of DEVICES, "
            "and peaks=hardware.peaks(name of the GPU)."
        )
    positive(weight_bytes=weight_bytes, gpus=gpus, memory_bytes=memory_bytes)
    if weight_bytes > gpus * memory_bytes:
        memory = size(gpus * memory_bytes)
        raise PerfkitError(
            f"decode_floor: weights of {size(weight_bytes)} do not fit into {memory} of {gpus} GPUs. "
            f"Spread them over at least {math.ceil(weight_bytes / memory_bytes)}, or store them in fewer bits."
        )
    return weight_bytes / (gpus * peaks.bandwidth()) * 1e9


def checkpoint_time(
    *, parameters: float, weight_bytes_each: float, optimizer_bytes_each: float, bytes_per_s: float
) -> float:
    """Return the time to write a checkpoint, ns: parameters x (bytes of weight + bytes of optimizer state) / bandwidth.

    `parameters` are all, of every expert too; `weight_bytes_each` is 2 in BF16; `optimizer_bytes_each` is 12 for Adam
    with an FP32 copy of the weights and two FP32 moments, 8 without the copy, 0 where only the weights are written;
    `bytes_per_s` is of all writers together. The training waits for it unless it is written in the background.

    70e9 parameters at 2.5 GB/s in seconds, weights alone (140 GB) and with Adam's state (980 GB):

    >>> run = {"parameters": 70e9, "weight_bytes_each": 2, "bytes_per_s": 2.5e9}
    >>> [round(checkpoint_time(**run, optimizer_bytes_each=each) / 1e9) for each in (0, 12)]
    [56, 392]
    """
    positive(parameters=parameters, weight_bytes_each=weight_bytes_each, bytes_per_s=bytes_per_s)
    if not 0 <= optimizer_bytes_each < math.inf:
        raise ValueError(
            f"optimizer_bytes_each: {optimizer_bytes_each} is not a number of at least 0"
        )
    return parameters * (weight_bytes_each + optimizer_bytes_each) / bytes_per_s * 1e9


def scaling(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the scaling efficiency of each run: T(N) / (N / n x T(n)), n being the GPUs of the smallest run.

    With the batch of a GPU held constant that is weak scaling, with the global batch held constant strong scaling.
    Several runs on the smallest number of GPUs are averaged for the baseline. The rows and columns of `runs` by `gpus`;
    `baseline_gpus` int64; `speedup`, over the baseline, and `efficiency_frac`, float64, above 0; `note` string, what to
    check where the efficiency is above 1, else empty: it can be, where a smaller share of the data fits a cache.

    >>> runs = pd.DataFrame({"gpus": [1, 8, 64, 512], "throughput_per_s": [1000.0, 7200.0, 48000.0, 320000.0]})
    >>> scaling(runs)["efficiency_frac"].tolist()
    [1.0, 0.9, 0.75, 0.625]
    """
    runs = RUNS.make(RUNS.check(runs)[RUNS.column_names])
    wrong = runs[
        (runs["gpus"] < 1) | ~runs["throughput_per_s"].between(0, np.inf, inclusive="neither")
    ]
    if len(wrong):
        row = wrong.iloc[0]
        raise ValueError(
            f"runs: {row['throughput_per_s']} per second on {row['gpus']:.0f} GPUs are not both above 0"
        )
    gpus, throughput = runs["gpus"], runs["throughput_per_s"]
    fewest = gpus.min()
    speedup = throughput / throughput[gpus == fewest].mean()
    efficiency = speedup / (gpus / fewest)
    above = "above 1: check that all runs do the same work per step, and that nothing slowed the smallest one"
    notes = pd.Series("", runs.index, dtype="string").mask(efficiency > 1, above)
    columns = {
        "baseline_gpus": fewest,
        "speedup": speedup,
        "efficiency_frac": efficiency,
        "note": notes,
    }
    return runs.assign(**columns).astype({"baseline_gpus": "int64"})

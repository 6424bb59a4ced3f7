"""How long does a training take, at least, and how does it scale over GPUs?

All times are float ns. A number that is not above 0 raises ValueError. Source: Amdahl: Validity of the single processor
approach to achieving large scale computing capabilities, 1967. NVIDIA/nccl-tests, doc/PERFORMANCE.md (ring all-reduce).
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

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
FEWEST = 3
_MODELS = {"serial": ("serial",), "communication": ("communication",), "both": ("serial", "communication")}


def training_time(*, tokens: float, tokens_per_s: float) -> float:
    """Return the time to train on a number of tokens, ns: tokens / tokens per second of all GPUs.

    The rate is measured, or of `expected_tokens_per_s` for a share of the peak. Interruptions are not in it.

    70e9 parameters, 2e12 tokens, 2048 H100 at 50 % of 989e12 FLOP/s, in seconds and days:

    >>> from perfkit.analysis.efficiency import expected_tokens_per_s
    >>> h100 = Peaks("H100", {"bf16_tensor": 989e12})
    >>> run = {"flops_per_token": 6 * 70e9, "gpus": 2048, "peaks": h100, "precision": "bf16_tensor"}
    >>> time = training_time(tokens=2e12, tokens_per_s=expected_tokens_per_s(mfu_frac=0.5, **run))
    >>> round(time / 1e9), round(time / 86400e9, 1)
    (829436, 9.6)
    """
    positive(tokens=tokens, tokens_per_s=tokens_per_s)
    return tokens / tokens_per_s * 1e9


def all_reduce_time(*, size_bytes: float, ranks: int, bytes_per_s: float, latency_ns: float = 0.0) -> float:
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


def decode_floor(*, weight_bytes: float, gpus: int, memory_bytes: float | None, peaks: Peaks | None) -> float:
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
        raise ValueError(f"optimizer_bytes_each: {optimizer_bytes_each} is not a number of at least 0")
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
    runs = _checked(runs)
    gpus, throughput = runs["gpus"], runs["throughput_per_s"]
    fewest = gpus.min()
    speedup = throughput / throughput[gpus == fewest].mean()
    efficiency = speedup / (gpus / fewest)
    above = "above 1: check that all runs do the same work per step, and that nothing slowed the smallest one"
    notes = pd.Series("", runs.index, dtype="string").mask(efficiency > 1, above)
    columns = {"baseline_gpus": fewest, "speedup": speedup, "efficiency_frac": efficiency, "note": notes}
    return runs.assign(**columns).astype({"baseline_gpus": "int64"})


def _checked(runs: pd.DataFrame) -> pd.DataFrame:
    runs = RUNS.make(RUNS.check(runs)[RUNS.column_names])
    wrong = runs[(runs["gpus"] < 1) | ~runs["throughput_per_s"].between(0, np.inf, inclusive="neither")]
    if len(wrong):
        row = wrong.iloc[0]
        raise ValueError(f"runs: {row['throughput_per_s']} per second on {row['gpus']:.0f} GPUs are not both above 0")
    return runs


def scaling_fit(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the shares that explain the throughputs best, of three models, each with its residual.

    The time N / T(N) that a GPU spends per unit of work is taken for a (1 + s (N - 1)), with the serial share s of
    Amdahl's law, a (1 + c (N - 1) / N), with a ring all-reduce that takes c times the computation on many GPUs, or the
    sum of both, which needs one run more. The coefficients are those of least squares of the relative error, none of
    them below 0. A model that would need a serial share above 1 is left out. A fit describes the runs it was made from.
    A residual as large as the efficiency that is lost says that the model does not explain it: topology that changes
    from one number of GPUs to the next, for example, is in none of them.

    A row per model, the smallest residual first: `model` category, serial, communication or both;
    `gpu_throughput_per_s` float64, 1 / a, what one GPU would do alone; `serial_frac`, the share s of one GPU's work
    that all of them wait for, 0 where the model has none; `communication_frac`, the share of the time on the largest
    number of GPUs in which they communicate and do not compute, 0 where the model has none; `residual_frac`, root mean
    square of (fitted - measured) / measured throughput; `runs_count` int64. PerfkitError if there are fewer than three
    different numbers of GPUs: two runs fit any of the models.

    >>> gpus = np.array([1, 2, 4, 8])
    >>> amdahl = pd.DataFrame({"gpus": gpus, "throughput_per_s": 100 / (0.1 + 0.9 / gpus)})
    >>> scaling_fit(amdahl)[["model", "serial_frac"]].round(9).to_numpy().tolist()[0]
    ['serial', 0.1]
    """
    runs = _checked(runs)
    distinct = runs["gpus"].nunique()
    if distinct < FEWEST:
        raise PerfkitError(
            f"scaling_fit: runs on {distinct} different numbers of GPUs explain nothing, any model fits them. Measure "
            f"at least {FEWEST}."
        )
    models = [name for name, terms in _MODELS.items() if distinct > len(terms) + 1]
    table = pd.DataFrame([_fit(runs, name) for name in models])
    table["model"] = pd.Categorical(table["model"], list(_MODELS))
    table = table[table["serial_frac"] <= 1]
    # Residuals that differ by rounding alone are equal; the simpler model comes first then.
    return table.sort_values("residual_frac", key=lambda r: r.round(9), kind="stable").reset_index(drop=True)


def _fit(runs: pd.DataFrame, model: str) -> dict[str, object]:
    gpus, throughput = (runs[name].to_numpy("float64") for name in RUNS.column_names)
    time = gpus / throughput
    curves = {"one": np.ones(len(gpus)), "serial": gpus - 1, "communication": (gpus - 1) / gpus}
    terms = ("one", *_MODELS[model])
    shares = dict(zip(terms, _least_squares(np.stack([curves[term] / time for term in terms], axis=1)), strict=True))
    fitted = gpus / sum(shares[term] * curves[term] for term in terms)
    alone, serial, ring = shares["one"], shares.get("serial", 0.0), shares.get("communication", 0.0)
    exchange, most = ring * curves["communication"].max(), gpus.max() - 1
    return {
        "model": model,
        "gpu_throughput_per_s": 1 / alone,
        "serial_frac": serial / alone,
        "communication_frac": exchange / (alone + serial * most + exchange),
        "residual_frac": float(np.sqrt(np.mean((fitted / throughput - 1) ** 2))),
        "runs_count": len(runs),
    }


def _least_squares(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the coefficients, none below 0 and the first always there, whose sum of columns is nearest to 1."""
    target = np.ones(len(columns))
    rest = range(1, columns.shape[1])
    best, least = np.zeros(columns.shape[1]), np.inf
    for used in (chosen for number in range(len(rest) + 1) for chosen in combinations(rest, number)):
        terms = [0, *used]
        scale = columns[:, terms].max(axis=0)
        coefficients = np.linalg.lstsq(columns[:, terms] / scale, target, rcond=None)[0] / scale
        error = float(np.sum((columns[:, terms] @ coefficients - target) ** 2))
        if (coefficients >= 0).all() and error < least:
            best, least = np.zeros(columns.shape[1]), error
            best[terms] = coefficients
    return best

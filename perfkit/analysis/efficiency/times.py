"""How long will it take, at least?

Functions
---------
training_time      to train on a number of tokens
all_reduce_time    to sum over all ranks of a ring
decode_floor       to generate a token, at least
checkpoint_time    to write the weights and the optimizer's state
"""

from __future__ import annotations

import math

from perfkit.analysis.efficiency.credible import positive
from perfkit.errors import PerfkitError
from perfkit.format import size
from perfkit.hardware import Peaks


def training_time(*, tokens: float, tokens_per_s: float) -> float:
    """Return the time to train on a number of tokens: tokens / tokens per second.

    Parameters
    ----------
    tokens
        Tokens of the whole training.
    tokens_per_s
        Tokens of all GPUs per second: measured, or of `expected_tokens_per_s` for a share of the peak. Nothing that
        interrupts the training is in it.

    Returns
    -------
    float
        ns.

    Raises
    ------
    ValueError
        If an argument is not above 0.

    Examples
    --------
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
    """Return the time of an all-reduce over a ring: 2 (n - 1) / n x size / bandwidth + 2 (n - 1) x latency.

    Parameters
    ----------
    size_bytes
        Bytes that every rank sums: those of the gradients in their own type, which may be wider than the weights.
    ranks
        n, at least 1; one rank has nothing to exchange.
    bytes_per_s
        Bus bandwidth of a rank, bytes/s: what nccl-tests prints as busbw for large messages, less than the line rate.
    latency_ns
        Of one of the 2 (n - 1) steps, ns; 0 leaves latency out, which suits large messages only.

    Returns
    -------
    float
        ns; how much of it the training waits for depends on what overlaps with it.

    Raises
    ------
    ValueError
        If size or bandwidth are not above 0, there is no rank, or the latency is negative.

    References
    ----------
    NVIDIA/nccl-tests, doc/PERFORMANCE.md.

    Examples
    --------
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
    """Return the least time to generate one token of a sequence: weights / (GPUs x memory bandwidth).

    Every weight of a dense model is read once per token, for all sequences of a batch together, from the memory of the
    GPUs that share them. Keys and values, communication and the conversion of compressed weights come on top.

    Parameters
    ----------
    weight_bytes
        Bytes of the weights as they lie in memory.
    gpus
        GPUs over which the weights are spread evenly.
    memory_bytes
        Memory of one GPU, bytes, such as DEVICES has it. There is no default: None is refused.
    peaks
        Peaks of one GPU, such as ``hardware.peaks(name)``; None is refused.

    Returns
    -------
    float
        ns.

    Raises
    ------
    PerfkitError
        If the weights do not fit into the memory of the GPUs, or memory or bandwidth are not known.
    ValueError
        If an argument is not above 0.

    Examples
    --------
    70e9 parameters on H100, in 16 bits on two and in 4 bits on one, ms; in 16 bits on one they do not fit:

    >>> h100 = Peaks("H100", {}, memory_bytes_per_s=3.35e12)
    >>> two = decode_floor(weight_bytes=140e9, gpus=2, memory_bytes=80e9, peaks=h100)
    >>> one = decode_floor(weight_bytes=35e9, gpus=1, memory_bytes=80e9, peaks=h100)
    >>> round(two / 1e6, 2), round(one / 1e6, 2)
    (20.9, 10.45)
    >>> decode_floor(weight_bytes=140e9, gpus=1, memory_bytes=80e9, peaks=h100)
    Traceback (most recent call last):
    ...
    perfkit.errors.PerfkitError: decode_floor: weights of 140 GB do not fit into 80.0 GB of 1 GPUs. Spread them over \
at least 2, or store them in fewer bits.
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
    """Return the time to write a checkpoint: parameters x (bytes of weight + bytes of optimizer state) / bandwidth.

    Parameters
    ----------
    parameters
        All parameters, of a mixture-of-experts model those of every expert.
    weight_bytes_each
        Bytes of a weight: 2 in BF16.
    optimizer_bytes_each
        Bytes of the optimizer's state per parameter: 12 for Adam with an FP32 copy of the weights and two FP32
        moments, 8 without the copy, 0 where only the weights are written.
    bytes_per_s
        Rate at which all writers together write to the file system, bytes/s.

    Returns
    -------
    float
        ns; the training waits for it unless it is written in the background.

    Raises
    ------
    ValueError
        If an argument is not above 0 (the optimizer's bytes may be 0).

    Examples
    --------
    70e9 parameters at 2.5 GB/s in seconds, weights alone (140 GB) and with Adam's state (980 GB):

    >>> run = {"parameters": 70e9, "weight_bytes_each": 2, "bytes_per_s": 2.5e9}
    >>> [round(checkpoint_time(**run, optimizer_bytes_each=each) / 1e9) for each in (0, 12)]
    [56, 392]
    """
    positive(parameters=parameters, weight_bytes_each=weight_bytes_each, bytes_per_s=bytes_per_s)
    if not 0 <= optimizer_bytes_each < math.inf:
        raise ValueError(f"optimizer_bytes_each: {optimizer_bytes_each} is not a number of at least 0")
    return parameters * (weight_bytes_each + optimizer_bytes_each) / bytes_per_s * 1e9

"""What can a machine do, and what limits the operations that language models are made of?

Products and attention have the FLOP of `perfkit.analysis.flops`, without the softmax; in what works
on single elements additions, comparisons, exponentials, roots and quotients are 1 each. Bytes are
those of every tensor that an operation reads or writes, once: what no cache can save. A real kernel
moves more: its intensity is at most the one here. The ceilings are a data sheet's dense peaks or
the rates measured on the machine itself; there is no default. Left of the ridge, peak over
bandwidth, memory is the limit, right of it arithmetic.

Source: Williams, Waterman, Patterson: Roofline, Communications of the ACM 52(4), 2009. Dao et al.:
FlashAttention, NeurIPS 2022.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from perfkit.errors import PerfkitError
from perfkit.hardware import Peaks
from perfkit.schema import Column, Table

MACHINE = Table(
    "MACHINE",
    "a roof of a machine: a precision, or its memory",
    (
        Column("roof", "category", "fp32, bf16_tensor, ... as in `hardware.PRECISIONS`, or dram"),
        Column(
            "flops_per_s",
            "float64",
            "dense peak of the data sheet, FLOP/s; NaN for memory, and where not known",
        ),
        Column(
            "measured_flops_per_s",
            "float64",
            "measured, FLOP/s; NaN for memory, and where not measured",
        ),
        Column(
            "bytes_per_s", "float64", "bandwidth of the data sheet, bytes/s; NaN for a precision"
        ),
        Column(
            "measured_bytes_per_s",
            "float64",
            "measured, bytes/s; NaN for a precision, and where not measured",
        ),
        Column(
            "measured_frac",
            "float64",
            "measured over data sheet, at most 1.1; NaN where one is not known",
        ),
        Column(
            "ridge", "float64", "peak over bandwidth of the data sheet, FLOP/byte; NaN for memory"
        ),
    ),
    ("roof",),
)
OPERATIONS = Table(
    "OPERATIONS",
    "a typical operation of a language model",
    (
        Column("operation", "string", "what is done"),
        Column("family", "category", "kind of work, as in KERNELS"),
        Column("flops", "float64", "operations, FLOP"),
        Column("bytes", "float64", "bytes read and written, each tensor once"),
        Column("intensity", "float64", "FLOP per byte"),
        Column(
            "formula",
            "string",
            "intensity by the sizes of the operation, e being the bytes of an element",
        ),
        Column(
            "rule_of_thumb",
            "string",
            "FLOP per byte as performance guides quote it; empty when they do not",
        ),
    ),
    ("intensity", "operation"),
)
MEMORY = "dram"
BEYOND = 1.1  # of a peak: more than boost clocks and the rounding of data sheets explain
# Sequences of a batch, their positions, and the heads of the model with their size.
BATCH, SEQUENCE, HEADS, HEAD_SIZE = 4, 4096, 64, 128
NORM, SOFTMAX, SILU = 7, 5, 4  # FLOP per element, counted in their formulas; see `work`


Row = tuple[str, str, float, float, str, str]


def ceilings(*, peaks: Peaks | None, measured: Peaks | None = None) -> pd.DataFrame:
    """Return the roofs of a machine: what its data sheet says beside what was measured on it.

    `peaks` are of the data sheet, such as ``hardware.peaks(name)``, `measured` what `perfkit
    baseline` measured, as `hardware.load_peaks` reads it; None for what is not known.

    MACHINE, one row per roof that either of them knows, peaks of integers left out, which are not
    FLOP/s. PerfkitError if a measured rate is above 110 % of the data sheet's peak: one of the two
    is of something else.

    >>> sheet = Peaks("made up", {"fp32": 10e12}, memory_bytes_per_s=1e12)
    >>> own = Peaks("made up", {"fp32": 9e12}, memory_bytes_per_s=8e11)
    >>> ceilings(peaks=sheet, measured=own)[["roof", "measured_frac", "ridge"]].astype(object).to_numpy().tolist()
    [['dram', 0.8, nan], ['fp32', 0.9, 10.0]]
    """
    listed, rates_measured = _rates(peaks), _rates(measured)
    table = pd.DataFrame({"roof": list(dict.fromkeys([*listed, *rates_measured]))}, dtype="object")
    sheet, own = (table["roof"].map(rates).astype("float64") for rates in (listed, rates_measured))
    shares = own / sheet
    if (shares > BEYOND).any():
        worst = table.loc[shares == shares.max(), "roof"].iloc[0]
        raise PerfkitError(
            f"{worst}: measured is {shares.max():.4g} of the data sheet's peak of "
            f"{peaks.name if peaks else ''}, more "
            "than it can be. Check that both are of this GPU, and that the peaks are dense ones."
        )
    memory = table["roof"] == MEMORY
    rows = table.assign(
        flops_per_s=sheet.mask(memory),
        measured_flops_per_s=own.mask(memory),
        bytes_per_s=sheet.where(memory),
        measured_bytes_per_s=own.where(memory),
        measured_frac=shares,
        ridge=sheet.mask(memory) / listed.get(MEMORY, np.nan),
    )
    return MACHINE.make(rows)


def _rates(peaks: Peaks | None) -> dict[str, float]:
    if peaks is None:
        return {}
    memory = {MEMORY: peaks.memory_bytes_per_s} if peaks.memory_bytes_per_s else {}
    return {
        **{name: rate for name, rate in peaks.flops_per_s.items() if not name.startswith("int")},
        **memory,
    }


def work(*, element_bytes: int = 2) -> pd.DataFrame:
    """Return FLOP, bytes and intensity of the operations that language models are made of: OPERATIONS by intensity.

    The matrix product is that of all tokens, batch x sequence, with a square matrix of the model's
    width, heads x head size; while text is generated it is that of a single token. Attention has a
    query for every position, or for the new one only; where it is not fused the scores of all pairs
    of positions are written and read again; fused, it is the limit of FlashAttention: each tensor
    moved once. Elements of a layer norm take 7 FLOP (sum, difference, square, sum, scale, weight,
    bias), of a softmax 5 (maximum, difference, exponential, sum, quotient), of a SiLU 4 (sign,
    exponential, sum, quotient).

    The sizes are those of a model of 70e9 parameters: BATCH, SEQUENCE, HEADS and HEAD_SIZE. An
    element has `element_bytes`: 2 for BF16 and FP16, 4 for FP32; ValueError if that is not above 0.

    A product of one row with a matrix of 8192 x 8192, and of 16384 rows with it:

    >>> found = work()
    >>> found["intensity"][found["operation"].str.startswith("matrix product")].round(4).tolist()
    [0.9998, 3276.8]
    """
    if not element_bytes > 0:
        raise ValueError(f"element_bytes: {element_bytes} is not above 0")
    made = _rows(element_bytes)
    rows = pd.DataFrame(made, columns=[c for c in OPERATIONS.column_names if c != "intensity"])
    return OPERATIONS.make(rows.assign(intensity=rows["flops"] / rows["bytes"]))


def _rows(element: int) -> Iterator[Row]:
    """Yield matrix products, attention, what touches every element once or twice, and what looks up."""
    tokens, width = BATCH * SEQUENCE, HEADS * HEAD_SIZE
    formula = "2 M N K / (e (M K + K N + M N))"
    for what, rows, guide in (("all tokens", tokens, "200 to 1000"), ("one token", 1, "1 to 10")):
        moved = element * (2 * rows * width + width**2)
        yield (
            f"matrix product, {what}",
            "gemm",
            2 * rows * width**2,
            moved,
            f"{formula}, M = {rows}",
            guide,
        )
    scores, elements = BATCH * HEADS * SEQUENCE**2, tokens * width
    flops, unfused = 4 * HEAD_SIZE * scores, 4 * element * (elements + scores)
    yield "attention, scores in memory", "attention", flops, unfused, "Q T / (e (Q + T))", "5 to 10"
    yield "attention, fused", "attention", flops, 4 * element * elements, "T / e", "50 to 100"
    one = elements / SEQUENCE
    yield (
        "attention, one new token",
        "attention",
        4 * elements,
        2 * element * (elements + one),
        "2 T / (e (T + 1))",
        "",
    )
    moved = element * (2 * elements + 2 * width)  # with weight and bias
    yield (
        "layer norm",
        "normalisation",
        NORM * elements,
        moved,
        f"{NORM} / (2 e), and its weights",
        "1 to 2",
    )
    yield (
        "softmax",
        "softmax",
        SOFTMAX * scores,
        2 * element * scores,
        f"{SOFTMAX} / (2 e)",
        "2 to 5",
    )
    yield "SiLU", "elementwise", SILU * elements, 2 * element * elements, f"{SILU} / (2 e)", "1"
    yield "embedding", "embedding", 0, 2 * element * elements, "0: rows are copied", "0"


def attainable(operations: pd.DataFrame, *, peaks: Peaks, precision: str) -> pd.DataFrame:
    """Return what the ceilings allow each operation: min(peak, intensity x bandwidth), and which of the two it is.

    `peaks` are of the data sheet, or measured ones; `precision` is a key of
    ``hardware.PRECISIONS``, such as "bf16_tensor", else ValueError; PerfkitError if the peak or the
    bandwidth is not known. The rows and columns of `operations`, then `attainable_flops_per_s`,
    FLOP/s; `peak_frac`, that over the peak; `bound` category: memory left of the ridge, compute at
    it and right of it.

    >>> made_up = Peaks("made up", {"bf16_tensor": 100e12}, memory_bytes_per_s=1e12)
    >>> found = attainable(work(), peaks=made_up, precision="bf16_tensor")
    >>> found[found["operation"] == "softmax"][["attainable_flops_per_s", "bound"]].astype(object).to_numpy().tolist()
    [[1250000000000.0, 'memory']]
    """
    peak, bandwidth = peaks.flops(precision), peaks.bandwidth()
    intensity = OPERATIONS.check(operations)["intensity"]
    reached = np.minimum(peak, intensity * bandwidth)
    limits = np.where(intensity < peak / bandwidth, "memory", "compute")
    return operations.assign(
        attainable_flops_per_s=reached,
        peak_frac=reached / peak,
        bound=pd.Categorical(limits, ["memory", "compute"]),
    )

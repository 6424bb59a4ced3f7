"""Rules at the level of the framework: input, attention, number formats, preparation.

Thresholds: a tenth of the time is worth a look and three tenths are severe (conventions). Four rules are the case
studies of the course's chapter on GPU profiling: input that is waited for (case 1; where the GPU's gaps show it, the
system's rule for idle time says so), operators that are too small (case 2, in `launching`), attention that is computed
step by step (case 3) and preparation on the CPU (case 4); each fires on its evidence alone. Gains refer to the time
that is looked at: at most the time of what is found disappears, and of what the CPU does only that in which the GPU is
idle.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis import precision, timeline
from perfkit.analysis.calls import where
from perfkit.analysis.window import cut, devices
from perfkit.diagnosis import advice
from perfkit.diagnosis.figures import span_ns, unrecorded
from perfkit.diagnosis.finding import Figure, Finding, Gain, removing, severity
from perfkit.diagnosis.framework import formats, gpu_time
from perfkit.diagnosis.preparation import loading, preparing
from perfkit.format import percent
from perfkit.selection import Selection

Bool = NDArray[np.bool_]

NOTABLE = 0.1
SOFTMAX = re.compile(r"aten::_?(?:masked_)?softmax(?:_backward(?:_data)?)?")
PRODUCT = re.compile(r"aten::(?:bmm|baddbmm)")
AT_MOST = "at most all of this time disappears; at least none, if the GPU then waits for something else"
UNSEEN = "not all operations of graphs were recorded, so their share of the time is unknown"


def findings(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    """Yield what the framework's operators show, rule by rule."""
    view = view.framework
    if view.ops.empty:
        return
    yield from _input(view, known)
    yield from _attention(view)
    yield from _precision(view, known)
    if not unrecorded(view) and _idle_frac(view) >= NOTABLE:
        yield from _preparation(view)


def _idle_frac(view: Selection) -> float:
    busy = timeline.busy(view.all_kernels, view.copies, window=view.window)
    return 1 - float(busy["device_busy_ns"].sum() / (busy["span_ns"].sum() or math.nan))


def _input(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    """Case 1: the training thread sits in the data loader."""
    wait, told = known.get("input_wait_frac"), known.get("idle_data_loading_frac")
    if wait is None or wait.value < NOTABLE or (told is not None and told.value >= NOTABLE):
        return
    text = f"{wait.label}: {wait.definition}."
    idle = None if unrecorded(view) else loading(view)
    if idle is None:
        gain = replace(removing(wait.value, f"of the steps' time: {AT_MOST}"), share=None)
    else:
        gain = removing(idle, f"the GPU is idle meanwhile for {percent(idle)} of the time: {AT_MOST}")
    level = severity(wait.value if idle is None else idle)
    title = f"Each step waits for its data for {wait.text} of its time"
    yield Finding("input", title, level, text, (wait,), "under 10 %", gain, advice.DATA_LOADING)


def _attention(view: Selection) -> Iterator[Finding]:
    """Case 3: scores, softmax and values are kernels of their own, which write and read the N x N matrix."""
    kernels = cut(view.kernels, view.window)
    spent = gpu_time(view).merge(view.ops[["rank", "op", "name"]], on=["rank", "op"], how="left")
    steps = _steps_of_attention(kernels, *(where(spent["name"], p.fullmatch) for p in (SOFTMAX, PRODUCT)))
    time, fused = spent["gpu_ns"].to_numpy(), kernels["family"].eq("attention").any()
    if fused or not steps.any() or time[steps].sum() < NOTABLE * time.sum():
        return
    share = float(time[steps].sum() / time.sum())
    definition = "kernel time of softmax and batched matrix products over all kernel time"
    figure = Figure("unfused_attention_frac", "Attention step by step", share, "1", definition, "operators.kernels_of")
    title = f"Attention is computed step by step: softmax and its products take {figure.text} of the kernel time"
    text = "No fused attention kernel ran, so that the matrix of scores is written to memory and read again."
    gain, level = _removing(view, kernels[steps], "these kernels' time disappears; a fused kernel computes the same")
    yield Finding("attention", title, level, text, (figure,), "one fused kernel", gain, advice.ATTENTION)


def _steps_of_attention(kernels: pd.DataFrame, softmax: Bool, product: Bool) -> Bool:
    """Tell which kernels lie in a stretch where a softmax comes between batched products and no other matrix work does.

    A softmax that chooses experts follows a linear layer, and the experts' products come after it.
    """
    other = kernels["family"].isin(precision.FAMILIES).to_numpy() & ~product
    seen = np.flatnonzero(softmax | product | other)
    _, (device,) = devices(kernels.take(seen))
    stretch = np.cumsum(other[seen] | (np.diff(device, prepend=0) != 0))
    place = pd.Series(np.where(product[seen], seen, np.nan))
    first, last = (place.groupby(stretch).transform(end).to_numpy() for end in ("min", "max"))
    between = softmax[seen] & (first < seen) & (seen < last)
    found = np.zeros(len(kernels), bool)
    found[seen] = np.isin(stretch, stretch[between]) & ~other[seen]
    return found


def _precision(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    shares = formats(view)
    found, kernels = precision.mixed(shares), cut(view.kernels, view.window)
    if found.active is not False or found.total_ns < NOTABLE * kernels["dur_ns"].sum():
        return
    figure = known["reduced_precision_frac"]
    told = ", ".join(shares["format"].astype(str).drop_duplicates().loc[lambda s: s != "unknown"].head(3))
    title = f"Mixed precision is not active: {figure.text} of the matrix work runs in 16 or 8 bits"
    part = percent(found.total_ns / int(kernels["dur_ns"].sum()))
    text = f"The matrix work is {part} of the kernel time, most of it in {told}."
    matrix = kernels[kernels["family"].isin(precision.FAMILIES)]
    gain, level = _removing(view, matrix, "the matrix work disappears; tensor cores leave some of it")
    yield Finding("precision", title, level, text, (figure,), "above 50 %", gain, advice.PRECISION)


def _removing(view: Selection, kernels: pd.DataFrame, what: str) -> tuple[Gain, str]:
    """Return what the run gains at most without these kernels, and how much that matters."""
    if unrecorded(view):
        return Gain(1.0, math.inf, UNSEEN), "low"
    busy = timeline.busy(kernels, view.copies.iloc[:0], window=view.window)
    share = float(busy["kernel_busy_ns"].sum() / span_ns(view))
    return removing(share, f"at most {what}"), severity(share)


def _preparation(view: Selection) -> Iterator[Finding]:
    """Case 4: the CPU prepares data (tokenises, decodes, collates) while the GPU has nothing to do."""
    found = preparing(view)
    if found is None or found.value < NOTABLE:
        return
    title = f"The GPU is idle for {found.text} of the time while the CPU prepares data"
    text = f"{found.label}: {found.definition}."
    gain = removing(found.value, AT_MOST)
    level = severity(found.value)
    yield Finding("preparation", title, level, text, (found,), "under 10 %", gain, advice.PREPARATION)

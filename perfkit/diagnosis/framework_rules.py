"""Rules at the level of the framework: input, synchronisation, small operators, attention, number formats, ranks.

Thresholds: a tenth of the time is worth a look and three tenths are severe (conventions). Four rules are the case
studies of the course's chapter on GPU profiling: input that is waited for (case 1; where the GPU's gaps show it, the
system's rule for idle time says so), operators that are too small (case 2), attention that is computed step by step
(case 3) and preparation on the CPU (case 4); each fires on its evidence alone. Gains refer to the time that is looked
at: at most the time of what is found disappears, and of what the CPU does only that in which the GPU is idle.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis import operators, precision, timeline
from perfkit.analysis.calls import where
from perfkit.analysis.window import cut, devices
from perfkit.diagnosis import advice
from perfkit.diagnosis.figures import idle_gaps, unrecorded
from perfkit.diagnosis.finding import Figure, Finding, Gain, removing
from perfkit.diagnosis.framework import avoidable, common_window, computing, gpu_time, span_ns
from perfkit.diagnosis.preparation import loading, preparing
from perfkit.format import percent, printable
from perfkit.selection import Selection

Bool = NDArray[np.bool_]

NOTABLE, SEVERE = 0.1, 0.3
SHORT_SHARE = 0.5  # of all launches, from which on kernels are too small for the GPU
PAUSE_NS = 1_000_000  # from which on a gap is no longer the cost of launching the next operator (convention)
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
    yield from _synchronisation(view, known)
    yield from _attention(view)
    yield from _precision(view, known)
    yield from _ranks(view, known)
    if not unrecorded(view) and _idle_frac(view) >= NOTABLE:
        yield from _small(view)
        yield from _preparation(view)


def _severity(share: float) -> str:
    return "high" if share >= SEVERE else "medium" if share >= NOTABLE else "low"


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
    severity = _severity(wait.value if idle is None else idle)
    title = f"Each step waits for its data for {wait.text} of its time"
    yield Finding("input", title, severity, text, (wait,), "under 10 %", gain, advice.DATA_LOADING)


def _synchronisation(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    idle, told = known.get("sync_idle_frac"), known.get("idle_sync_frac")
    if idle is None or idle.value < NOTABLE or (told is not None and told.value >= idle.value):
        return
    waits = operators.synchronisations(
        view.ops, view.all_kernels, view.copies, view.api_calls, view.python_calls, window=view.window
    )
    per_cause = operators.synchronisation_summary(avoidable(waits))
    most = per_cause.iloc[int(per_cause[["idle_ns", "total_ns"]].min(axis=1).to_numpy().argmax())]
    origin = next((str(most[c]) for c in ("outermost", "operator", "api") if pd.notna(most[c])), "a call")
    line = f" at {printable(most['line'], 120)}" if pd.notna(most["line"]) else ""
    title = f"The GPU runs dry because the CPU waits for it, for up to {idle.text} of the time"
    where_most = f"{int(most['count'])} by {printable(origin, 80)}{line}"
    text = f"{known['sync_count'].text} waits; the most costly are {where_most}."
    evidence = (idle, known["sync_count"])
    gain = removing(idle.value, AT_MOST)
    yield Finding("synchronisation", title, _severity(idle.value), text, evidence, "under 10 %", gain, advice.SYNC)


def _small(view: Selection) -> Iterator[Finding]:
    """Case 2: the model is made of operators too small for the GPU, and the GPU waits for their launches."""
    alone = view.kernels[~view.kernels["in_graph"]]
    small = operators.many_small(view.ops, alone, view.api_calls, window=view.window).dropna(subset=["name"])
    share, gaps = float(small["count_frac"].sum()), idle_gaps(view)
    if share < SHORT_SHARE or gaps is None:
        return
    pauses = gaps[(gaps["dur_ns"] < PAUSE_NS) & gaps["detail"].isin(["launch", "host_code"])]
    idle = float(pauses["dur_ns"].sum() / span_ns(view))
    if idle < NOTABLE:
        return
    definition = "idle time in gaps under 1 ms that end when the host launches the next operation, over the span"
    pause = Figure("launch_pause_frac", "Idle between launches", idle, "1", definition, "gaps.idle_gaps")
    definition = "launches by operators whose kernels last under 10 µs in the median, over all launches but of graphs"
    figure = Figure("small_op_frac", "Launches of small operators", share, "1", definition, "operators.many_small")
    names = ", ".join(printable(name, 40) for name in small["name"].head(3))
    title = f"The GPU is idle for {pause.text} of the time between the launches of small operators"
    text = f"{figure.text} of the launches are of operators whose kernels last under 10 µs, most often {names}."
    gain = removing(idle, AT_MOST)
    yield Finding("small_operators", title, _severity(idle), text, (pause, figure), "under 10 %", gain, advice.LAUNCH)


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
    gain, severity = _removing(view, kernels[steps], "these kernels' time disappears; a fused kernel computes the same")
    yield Finding("attention", title, severity, text, (figure,), "one fused kernel", gain, advice.ATTENTION)


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
    shares = precision.shares(view.ops, view.kernels, view.api_calls, window=view.window)
    found, kernels = precision.mixed(shares), cut(view.kernels, view.window)
    if found.active is not False or found.total_ns < NOTABLE * kernels["dur_ns"].sum():
        return
    figure = known["reduced_precision_frac"]
    formats = ", ".join(shares["format"].astype(str).drop_duplicates().loc[lambda s: s != "unknown"].head(3))
    title = f"Mixed precision is not active: {figure.text} of the matrix work runs in 16 or 8 bits"
    part = percent(found.total_ns / int(kernels["dur_ns"].sum()))
    text = f"The matrix work is {part} of the kernel time, most of it in {formats}."
    matrix = kernels[kernels["family"].isin(precision.FAMILIES)]
    gain, severity = _removing(view, matrix, "the matrix work disappears; tensor cores leave some of it")
    yield Finding("precision", title, severity, text, (figure,), "above 50 %", gain, advice.PRECISION)


def _removing(view: Selection, kernels: pd.DataFrame, what: str) -> tuple[Gain, str]:
    """Return what the run gains at most without these kernels, and how much that matters."""
    if unrecorded(view):
        return Gain(1.0, math.inf, UNSEEN), "low"
    busy = timeline.busy(kernels, view.copies.iloc[:0], window=view.window)
    share = float(busy["kernel_busy_ns"].sum() / span_ns(view))
    return removing(share, f"at most {what}"), _severity(share)


def _preparation(view: Selection) -> Iterator[Finding]:
    """Case 4: the CPU prepares data (tokenises, decodes, collates) while the GPU has nothing to do."""
    found = preparing(view)
    if found is None or found.value < NOTABLE:
        return
    title = f"The GPU is idle for {found.text} of the time while the CPU prepares data"
    text = f"{found.label}: {found.definition}."
    gain = removing(found.value, AT_MOST)
    severity = _severity(found.value)
    yield Finding("preparation", title, severity, text, (found,), "under 10 %", gain, advice.PREPARATION)


def _ranks(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    uneven, window = known.get("rank_imbalance_frac"), common_window(view)
    if uneven is None or uneven.value < NOTABLE or window is None:
        return
    ranks = computing(view, window)
    slowest = ranks.iloc[int(ranks["computation_ns"].to_numpy().argmax())]
    share = float((slowest["computation_ns"] - ranks["computation_ns"].mean()) / slowest["span_ns"])
    title = f"The slowest rank computes {uneven.text} longer than the mean"
    text = f"{uneven.label}: {uneven.definition}. Ranks that meet in collectives wait for the slowest."
    gain = removing(share, "at most all ranks take the mean time, if they wait for each other")
    yield Finding("ranks", title, _severity(share), text, (uneven,), "under 10 %", gain, advice.BALANCE)

"""Rules at the level of the framework: input, synchronisation, small operators, attention, number formats, ranks.

Thresholds: a tenth of the time is worth a look and three tenths are severe (conventions). Four rules are the case
studies of the course's chapter on GPU profiling: input that is waited for (case 1), operators that are too small
(case 2), attention that is computed step by step (case 3) and preparation on the CPU (case 4); each fires on its
evidence alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from perfkit.analysis import operators, precision, steps
from perfkit.analysis.window import cut
from perfkit.diagnosis import advice
from perfkit.diagnosis.finding import Figure, Finding, removing
from perfkit.diagnosis.preparation import preparing
from perfkit.format import percent, printable
from perfkit.selection import Selection

NOTABLE, SEVERE = 0.1, 0.3
SHORT_SHARE = 0.5  # of all launches, from which on kernels are too small for the GPU
SOFTMAX, PRODUCTS = r"aten::_?(?:masked_)?softmax", r"aten::(?:bmm|baddbmm)"
AT_MOST = "at most all of this time disappears; at least none, if the GPU then waits for something else"


def findings(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    """Yield what the framework's operators show, rule by rule."""
    view = view.framework
    if view.ops.empty:
        return
    yield from _input(known)
    yield from _synchronisation(view, known)
    yield from _small(view, known)
    yield from _attention(view, known)
    yield from _precision(view, known)
    yield from _preparation(view, known)
    yield from _ranks(known)


def _severity(share: float) -> str:
    return "high" if share >= SEVERE else "medium" if share >= NOTABLE else "low"


def _input(known: dict[str, Figure]) -> Iterator[Finding]:
    """Case 1: the training thread sits in the data loader."""
    wait = known.get("input_wait_frac")
    told = known.get("idle_data_loading_frac")
    if wait is None or wait.value < NOTABLE or (told is not None and told.value >= NOTABLE):
        return
    title = f"Each step waits for its data for {wait.text} of its time"
    text = f"{wait.label}: {wait.definition}."
    gain = removing(wait.value, AT_MOST)
    yield Finding("input", title, _severity(wait.value), text, (wait,), "under 10 %", gain, advice.DATA_LOADING)


def _synchronisation(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    idle = known.get("sync_idle_frac")
    if idle is None or idle.value < NOTABLE:
        return
    waits = operators.synchronisations(
        view.ops, view.all_kernels, view.copies, view.api_calls, view.python_calls, window=view.window
    )
    most = operators.synchronisation_summary(waits).sort_values("idle_ns", ascending=False).iloc[0]
    origin = next((str(most[c]) for c in ("outermost", "operator", "api") if pd.notna(most[c])), "a call")
    line = f" at {printable(most['line'], 120)}" if pd.notna(most["line"]) else ""
    title = f"The GPU idles {idle.text} of the time after the CPU waited for it"
    where = f"{int(most['count'])} of {printable(origin, 80)}{line}"
    text = f"{known['sync_count'].text} waits; most idle time follows {where}."
    gain = removing(idle.value, AT_MOST)
    evidence = (idle, known["sync_count"])
    yield Finding("synchronisation", title, _severity(idle.value), text, evidence, "under 10 %", gain, advice.SYNC)


def _small(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    """Case 2: the model is made of operators too small for the GPU, and the GPU waits for their launches."""
    idle = known.get("idle_frac")
    found = steps.detect(view.ranges, view.all_kernels, window=view.window)
    small = operators.many_small(view.ops, view.kernels, view.api_calls, steps=found, window=view.window)
    share = float(small["count_frac"].sum())
    if share < SHORT_SHARE or idle is None or idle.value < SEVERE:
        return
    definition = "launches of operators whose kernels last under 10 µs in the median, over all launches"
    figure = Figure("small_op_frac", "Launches of small operators", share, "1", definition, "operators.many_small")
    names = ", ".join(printable(name, 40) for name in small["name"].dropna().head(3))
    title = f"{figure.text} of the launches are of operators whose kernels last under 10 µs"
    text = f"Most often {names}. Meanwhile the GPU is idle for {idle.text} of the time."
    reason = "at most the idle time disappears, if launching these operators is what causes it"
    gain = removing(idle.value, reason)
    yield Finding("small_operators", title, "medium", text, (figure, idle), "under 50 %", gain, advice.LAUNCH)


def _attention(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    """Case 3: scores, softmax and values are kernels of their own, which write and read the N x N matrix."""
    spent = operators.summary(view.ops, view.kernels, view.api_calls, window=view.window)
    time = spent.set_index(spent["name"].astype("string"))["gpu_self_ns"]
    total = int(time.sum())
    softmax, products = (int(time[time.index.str.fullmatch(p, na=False)].sum()) for p in (SOFTMAX, PRODUCTS))
    fused = cut(view.kernels, view.window)["family"].eq("attention").any()
    if not total or fused or not softmax or not products or (softmax + products) / total < NOTABLE:
        return
    share = (softmax + products) / total
    definition = "kernel time of softmax and batched matrix products over all kernel time"
    figure = Figure("unfused_attention_frac", "Attention step by step", share, "1", definition, "operators.summary")
    title = f"Attention is computed step by step: softmax and its products take {figure.text} of the kernel time"
    text = "No fused attention kernel ran, so that the matrix of scores is written to memory and read again."
    busy = known["kernel_busy_frac"].value if "kernel_busy_frac" in known else 1.0
    gain = removing(min(share * busy, 1.0), "at most these kernels' time disappears; a fused kernel computes the same")
    yield Finding("attention", title, _severity(share), text, (figure,), "one fused kernel", gain, advice.ATTENTION)


def _precision(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    shares = precision.shares(view.ops, view.kernels, view.api_calls, window=view.window)
    found = precision.mixed(shares)
    if found.active is not False or "kernel_sum_ns" not in known:
        return
    of_all = min(found.total_ns / known["kernel_sum_ns"].value, 1.0)
    if of_all < NOTABLE:
        return
    figure = known["reduced_precision_frac"]
    formats = ", ".join(shares["format"].astype(str).drop_duplicates().head(3))
    title = f"Mixed precision is not active: {figure.text} of the matrix work runs in 16 or 8 bits"
    text = f"The matrix work is {percent(of_all)} of the kernel time, in {formats}."
    busy = known["kernel_busy_frac"].value if "kernel_busy_frac" in known else 1.0
    gain = removing(min(of_all * busy, 1.0), "at most the matrix work disappears; tensor cores leave some of it")
    yield Finding("precision", title, _severity(of_all * busy), text, (figure,), "above 50 %", gain, advice.PRECISION)


def _preparation(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    """Case 4: the CPU prepares data (tokenises, decodes, collates) while the GPU has nothing to do."""
    found = preparing(view)
    idle = known.get("idle_frac")
    if found is None or found.value < NOTABLE or idle is None or idle.value < NOTABLE:
        return
    title = f"The CPU prepares data for {found.text} of the time"
    text = f"{found.label}: {found.definition}. Meanwhile the GPU is idle for {idle.text} of the time."
    gain = removing(min(found.value, idle.value), "at most the part in which the GPU is idle disappears")
    yield Finding(
        "preparation", title, _severity(found.value), text, (found, idle), "under 10 %", gain, advice.PREPARATION
    )


def _ranks(known: dict[str, Figure]) -> Iterator[Finding]:
    uneven = known.get("rank_imbalance_frac")
    if uneven is None or uneven.value < NOTABLE:
        return
    title = f"The slowest rank computes {uneven.text} longer than the mean"
    text = f"{uneven.label}: {uneven.definition}. The others wait for it in collectives."
    share = uneven.value / (1 + uneven.value)
    gain = removing(share, "at most all ranks take the mean time")
    yield Finding("ranks", title, _severity(share), text, (uneven,), "under 10 %", gain, advice.BALANCE)

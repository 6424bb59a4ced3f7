"""Rules at the level of the system: idle time and its cause, computation, tensor cores, memory bandwidth.

Idle time that another rule tells of more precisely is not told twice: only the rest of its cause is a finding here, if
it is a tenth of the time, or half of an idle time of a tenth (conventions).
Samples are held against the time in which kernels run, not against the span. A tensor pipe that works for under a tenth
of the time in which matrix work runs hardly works (convention; the guide's target for matrix kernels is 85 %). The
memory bounds the kernels from 60 % of its bandwidth on (Nsight Compute, rule SOLBottleneck), and is saturated at 80 %
(the guide).
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit import hardware
from perfkit.analysis import flops
from perfkit.analysis import kernels as analysis_kernels
from perfkit.analysis.causes import THREAD, on_one_axis, where
from perfkit.analysis.flops.shapes import operands, parsed
from perfkit.analysis.grouping import numbered
from perfkit.analysis.intervals import cut
from perfkit.analysis.operators import totals
from perfkit.diagnosis import ledger, timeline
from perfkit.diagnosis.finding import HORIZONS, Figure, Finding, Gain, removing, severity
from perfkit.diagnosis.framework import AT_MOST, VOLTA, capability, formats
from perfkit.diagnosis.idle_owner import OWNED_CAUSES, owner_of, while_idle
from perfkit.diagnosis.replayed import with_others
from perfkit.diagnosis.rules import by_kind
from perfkit.diagnosis.rules import idle as idle_rules
from perfkit.diagnosis.rules.idle import IDLE, IDLE_EDGE, INSIDE
from perfkit.diagnosis.rules.kernels import COMPUTATION, MEMORY_BANDWIDTH, SLOW_PATHS, TENSOR_CORES, TOO_LITTLE
from perfkit.diagnosis.rules.operators import ATTENTION_MASK, CASTS, UNALIGNED_PRODUCTS
from perfkit.diagnosis.rules.rule import Rule, tell
from perfkit.diagnosis.slowing import slowed
from perfkit.diagnosis.speed import SHORT_NS, by_operator, casts, operated, shortening, unfused
from perfkit.diagnosis.timeline import busy, span_ns
from perfkit.diagnosis.words import words
from perfkit.format import duration, number, percent, printable, size
from perfkit.names.parsing import base
from perfkit.selection import Selection

NOTABLE, COMPUTING = 0.1, 0.6
LONGEST_NAME = 60  # characters of a kernel's name in a sentence; of a longer one its function is told
WORTH_TIMES = 1.1  # of a speed-up that is told as a factor; a smaller one is told in percent
LOOKED_AT = 20  # longest waits of which the calls of the operating system are named
NEXT_BATCH = re.compile("_MultiProcessingDataLoaderIter.__next__")
PASSES = "Unless persistent_workers=True is set, the DataLoader ends its workers there and starts new ones."
PERSISTENT = "Set persistent_workers=True in the DataLoader: its workers then live as long as it does"
COMPUTING_CODE = re.compile(r"aten::(?!empty|_?pin_memory)")  # no memory that is only allocated
LONG_NS = 100_000  # of an operator that computes on the CPU, beside the 1 to 20 µs of the others (convention)
ON_CPU = "Run this operator on the GPU: its tensors are in the memory of the CPU"
STEP = re.compile("ProfilerStep#")
NOT_REPLAYED = "; not replayed, since nothing recorded says how much of it could go"
# What keeps a GPU idle, by the cause of a gap; the last has no cause that can be told.
CAUSES = words("causes")
WEIGHTED = re.compile(r"aten::(?:linear|conv\w*)")  # operators with their weight as second argument
PRODUCT = re.compile("aten::(?:addmm|mm|bmm|baddbmm)")
ALIGNED, PADDED = 8, 64  # elements of 2 bytes: 16 bytes, and what fits the tiles of all kernels (NVIDIA's cuBLAS guide)
NOTABLE_THROUGHPUT, IDLE_PIPE, BOUND, SATURATED, HALF, THIRD = 0.1, 0.1, 0.6, 0.8, 0.5, 1 / 3


def findings(
    view: Selection, figures: dict[str, Figure], told: Mapping[str, float], once: Mapping[str, float]
) -> Iterator[Finding]:
    """Yield what the figures show, rule by rule.

    `told`: shares of the span that other findings cover, by cause; `once`: shares that are paid once, which is no gain.
    """
    yield from _idle(view, figures, told, once)
    yield from _computation(view, figures)


def too_little(view: Selection) -> Iterator[Finding]:
    """Yield that too little was recorded to judge a program, in place of what its start-up costs."""
    gpus = busy(view)
    span, worked = int(gpus["span_ns"].sum()), int(gpus["device_busy_ns"].sum())
    definition = "share of the span during which a kernel, copy or memset ran"
    working = Figure("start_up_busy_frac", "GPU busy", worked / span, "1", definition, "timeline.busy")
    count = len(view.all_kernels)
    number_of = Figure("start_up_kernel_count", "Kernels", count, "count", "number of kernel executions", "KERNELS")
    text = f"The GPU works for {duration(worked)} of {duration(span)}, and no sequence of kernels repeats. This is the "
    text += "start of a program: no step of it was recorded."
    gain = Gain(1.0, 1.0, "no step was recorded that could get faster")
    title = "The recording holds too little work of the GPU to judge the program"
    yield tell(TOO_LITTLE, title, "medium", text, (working, number_of), gain)


def _idle(
    view: Selection, figures: dict[str, Figure], told: Mapping[str, float], once: Mapping[str, float]
) -> Iterator[Finding]:
    idle = figures.get("idle_frac")
    if idle is None or idle.value < NOTABLE:
        return
    found = timeline.idle_gaps(view)
    if found is None:
        why = timeline.explained(view).why
        rest = idle.value - told.get("idle", 0.0)
        title = _who(view, "", rest)
        if rest >= NOTABLE:
            yield _finding(IDLE, title, (idle,), f"The recording does not show the cause: {why}", rest)
        return
    recurring = idle.value - sum(once.values())
    of_cause = by_kind(idle_rules)
    for cause, part in timeline.idle_parts(found).items():
        share = figures[f"idle_{cause}_frac"]
        covered, loaded = (shares.get(str(cause), 0.0) for shares in (told, once))
        rest = share.value - covered - loaded
        if rest >= NOTABLE or rest >= HALF * recurring >= HALF * NOTABLE:
            title = _who(view, str(cause), rest)
            rows = found[part > 0].assign(part_ns=part)  # the profiler's marks of steps are no place in a program
            rows["range"] = rows["range"].mask(where(rows["range"], STEP.match))
            text = _described(rows)
            owner = owner_of(view, str(cause))
            if cause in ("cuda_call", "system") and not owner.name:
                text += _inside_calls(view, rows, str(cause))
            text += owner.text
            is_owned = bool(owner.subject) and str(cause) in OWNED_CAUSES
            if is_owned:
                title = while_idle(view, str(cause), owner, rest)
            inside = first = tried = ""
            if cause == "host_code" and slowed(view) > 1:
                inside, first, tried = _inside_code(view, rows)
            text += inside
            if rest < share.value:
                text += f" In all, this cause takes {share.text} of the time."
                text += f" Another finding covers {percent(covered)} of the time." if covered else ""
                text += f" Loading kernels, which a process does once, takes {percent(loaded)}." if loaded else ""
            by_range = rows["part_ns"].groupby(rows["range"], observed=True).sum()
            is_most = len(by_range) > 0 and by_range.max() >= HALF * rows["part_ns"].sum()
            place = f"range “{printable(by_range.idxmax(), 100)}”" if is_most else ""
            because = f"the CPU {owner.subject.rstrip(',')}" if is_owned else ""
            if place and cause == "host_code" and not is_owned:
                because = f"the CPU ran code outside CUDA, in the {place}"
            made = _finding(of_cause[str(cause)], title, (share, idle), text, rest)
            gain = made.gain
            if first == PERSISTENT and "idle_data_loading_frac" in figures:  # new workers load the first batch late
                gain = with_others(gain, {"data_loading": figures["idle_data_loading_frac"].value})
            if tried:
                gain = with_others(gain, {"computation": _kernels_of(view, tried)})
            yield replace(
                made,
                gain=gain,
                place=place,
                advice={HORIZONS[0]: (first,)} if first else {},
                owner=owner.name,
                because=because,
                next=owner.next if str(cause) in OWNED_CAUSES else "",
            )


def _who(view: Selection, cause: str, rest: float) -> str:
    """Return what keeps which GPU idle, and how long; of several the idlest one, or all where they agree."""
    gpus, keeps = busy(view), CAUSES[cause]
    if len(gpus) < 2:
        return f"{keeps} the GPU idle {percent(rest)} of the time"
    (least_of, least), (most_of, most) = timeline.extremes(gpus, timeline.idle_shares(view, cause))
    if most - least < NOTABLE:
        reach = " to ".join(dict.fromkeys((percent(least), percent(most))))
        return f"{keeps} each of {len(gpus)} GPUs idle {reach} of the time"
    return f"{keeps} {most_of} idle {percent(most)} of the time ({least_of}: {percent(least)})"


def _described(rows: pd.DataFrame) -> str:
    """Say how many gaps there are, how long, and in which range of the program most of the waiting happened."""
    longest = rows.iloc[int(rows["part_ns"].to_numpy().argmax())]
    by_range = rows["part_ns"].groupby(rows["range"], observed=True).sum()
    inside = "No NVTX range covers these gaps."
    if by_range.sum():
        share = float(by_range.max() / rows["part_ns"].sum())
        inside = f"The program was inside “{printable(by_range.idxmax(), 100)}” for {percent(share)} of that."
        inside = inside if share >= NOTABLE else "No range of the program covers 10 % of that."
    return (
        f"This takes {duration(rows['part_ns'].sum())} in {len(rows):,} gaps. The longest part is "
        f"{duration(longest['part_ns'])}, in a gap of {duration(longest['dur_ns'])} that begins at "
        f"{longest['start_ns'] / 1e9:.3f} s. {inside}"
    )


def _inside_calls(view: Selection, rows: pd.DataFrame, cause: str) -> str:
    """Say in which call the launching thread spent most of the waits; of calls of the system, of the longest waits."""
    if cause == "cuda_call":
        by_call = rows.groupby(rows["api"].astype("string"))["part_ns"].sum()
        return f" The CPU spent most of it in {printable(by_call.idxmax(), 80)}." if len(by_call) else ""
    waits, calls = rows.nlargest(LOOKED_AT, "part_ns"), view.os_calls
    keys = ["rank", "process", "thread"]
    both = waits[[*keys, "start_ns", "dur_ns"]].merge(calls, on=keys, suffixes=("", "_call"))
    last = np.minimum(both["start_ns"] + both["dur_ns"], both["start_ns_call"] + both["dur_ns_call"])
    inside = pd.Series(last - np.maximum(both["start_ns"], both["start_ns_call"]), both.index).clip(lower=0)
    by_call = inside.groupby(both["name"].astype("string")).sum()
    which = f"the {len(waits)} longest of them" if len(waits) < len(rows) else "it"
    return f" The CPU spent most of {which} in {printable(by_call.idxmax(), 80)}." if len(by_call) else ""


def _kernels_of(view: Selection, operator: str) -> float:
    """Return the share of the time that kernels of an operator take."""
    kernels = operated(view.framework)
    return float(kernels["dur_ns"][kernels["operator"].eq(operator)].sum() / span_ns(view))


def _inside_code(view: Selection, rows: pd.DataFrame) -> tuple[str, str, str]:
    """Say in which operator, else in which function of Python, the CPU was in the middle of most of this time.

    And what to do first, and the operator if it tries kernels out. An operator that starts nothing on the GPU computes
    on the CPU.
    """
    of, place = view.framework, rows.assign(start_ns=rows["start_ns"] + rows["part_ns"] // 2)
    for calls, kind in ((of.ops, "operator"), (of.python_calls, "Python function")):
        at = totals.open_at(calls, place)
        name = np.asarray(totals.named(calls, at).astype(object))
        shares = rows["part_ns"].groupby(name).sum() / rows["part_ns"].sum()
        if len(shares) and shares.max() >= HALF:
            inside = str(shares.idxmax())
            known = next((each for each in INSIDE.values() if each.code.search(inside)), None)
            remedy = known.remedy if known else ""
            tried = inside if known and known.tries else ""
            is_long = rows["part_ns"][name == inside].mean() >= LONG_NS  # views of tensors take less
            if COMPUTING_CODE.match(inside) and is_long and not _starts_work(of, at[name == inside]):
                remedy, tried = ON_CPU, ""
            share = percent(float(shares.max()))
            return f" For {share} of it the CPU worked inside the {kind} “{printable(inside, 80)}”.", remedy, tried
    between = rows["part_ns"][_between_passes(view, place)].sum() / rows["part_ns"].sum()
    if between < HALF:
        return "", "", ""
    share = percent(float(between))
    return f" For {share} of it the CPU was between two passes over the DataLoader. {PASSES}", PERSISTENT, ""


def _starts_work(view: Selection, rows: NDArray[np.int64]) -> bool:
    """Return whether one of these operators, or one inside it, starts work on the GPU."""
    started = [totals.launching(view.ops, work, view.api_calls)[1] for work in (view.kernels, view.copies)]
    inside = np.unique(np.concatenate(started))
    levels = totals.enclosing(totals.parents(view.ops), inside[inside >= 0])
    return any(bool(np.isin(rows, found).any()) for _, found in levels)


def _between_passes(view: Selection, moments: pd.DataFrame) -> NDArray[np.bool_]:
    """Tell which moments lie between two batches of a DataLoader with workers without a CUDA call between the two."""
    batches = view.ranges[where(view.ranges["name"], NEXT_BATCH.search)]
    if batches.empty:
        return np.zeros(len(moments), np.bool_)
    threads = moments[[*THREAD]].fillna(-1).astype("int64")  # of some gaps the launching thread is not known
    frames = [batches, threads.assign(start_ns=moments["start_ns"], dur_ns=np.int64(0)), view.api_calls]
    (start, end), (at, _), (call, _) = on_one_axis(frames, THREAD)
    for times in (start, end, call):
        times.sort()
    before, after = np.searchsorted(end, at, side="right") - 1, np.searchsorted(start, at)
    is_between = (before >= 0) & (after == before + 1) & (after < len(start))
    last, following = np.searchsorted(call, end[before]), np.searchsorted(call, np.append(start, 0)[after])
    answer: NDArray[np.bool_] = is_between & (last == following)
    return answer


def _finding(rule: Rule, title: str, evidence: tuple[Figure, ...], text: str, share: float) -> Finding:
    """Return the finding on this share of the time, which a cause keeps the GPU idle."""
    reason = AT_MOST if rule.change else f"{AT_MOST}{NOT_REPLAYED}"
    level = "low" if rule is IDLE_EDGE else severity(share)
    return tell(rule, title, level, text, evidence, removing(share, reason))


def _computation(view: Selection, figures: dict[str, Figure]) -> Iterator[Finding]:
    computing = figures.get("computation_frac")
    if computing is None or computing.value < COMPUTING:
        return
    title, parts = f"The GPU computes {computing.text} of the time", timeline.breakdown(view)
    if len(parts) > 1:
        (_, least), (_, most) = timeline.extremes(parts, parts["computation_ns"] / parts["span_ns"])
        title = f"{len(parts)} GPUs compute {percent(least)} to {percent(most)} of the time"
    gain = Gain(1.0, math.inf, "the recording does not show how much faster the kernels can be")
    text = f"{computing.label}: {computing.definition}."
    kernels, ops, outermost = cut(view.kernels, view.window), view.framework.ops, "name"
    if slowed(view) > 1 and len(operated(view.framework)):  # shares of what the operators are known of
        kernels, outermost = operated(view.framework), "outermost"
        share = kernels["dur_ns"] / kernels["dur_ns"].sum() * figures["kernel_busy_frac"].value
        by = share.groupby(kernels["outermost"].astype("string")).sum()
        text += f" {by_operator(kernels, share)}."
        if by.max() >= THIRD * share.sum():
            of = kernels[(kernels["outermost"] == by.idxmax()).to_numpy()]
            inputs = of["dur_ns"].groupby(ops["shapes"].take(of["outer"].to_numpy()).to_numpy(object)).sum()
            shapes = printable(str(inputs.idxmax()), 120) if len(inputs) else ""
            text += f" Of the inputs of {by.idxmax()}, the shapes {shapes} take the most time." if shapes else ""
    total, first, place = float(kernels["dur_ns"].sum()), "", ""
    for path in SLOW_PATHS.values():
        is_slow = where(kernels["full_name"], path.kernels.search)
        found = kernels["dur_ns"][is_slow] / total
        if (part := float(found.sum())) >= THIRD:
            text += f" {percent(part)} of the kernel time goes into {path.what}."
            by = found.groupby(kernels[outermost][is_slow].astype("string").fillna("kernels without operator")).sum()
            first, place = path.remedy, printable(" and ".join(by.index[by >= THIRD * part]), 120)
            title += f", {percent(part)} of the kernel time in {place}"
            gain = Gain(1.0, math.inf, "the recording does not show a faster path", part * computing.value)
    evidence, level = (computing,), "medium" if first else "low"
    finding = tell(COMPUTATION, title, level, text, evidence, gain, first=first, place=place, is_mean=len(parts) == 1)
    yield replace(finding, because=_twice_as_fast(view))


def _twice_as_fast(view: Selection) -> str:
    """Say what the run gains where the kernel with the most time takes half of it (Amdahl's law)."""
    lines = ledger.judged(view)
    computing = lines[lines["kind"].eq("computation") & lines["cause"].ne("memset")]
    by_kernel = computing.groupby("owner", observed=True)["ns"].sum()
    if by_kernel.empty:
        return ""
    share = float(by_kernel.max() / lines["ns"].sum())
    name = str(by_kernel.idxmax())
    kernel = printable(name if len(name) <= LONGEST_NAME else base(name), LONGEST_NAME)
    times = 1 / (1 - share / 2)
    faster = f"{number(times)} times" if times >= WORTH_TIMES else percent(times - 1)
    return f"{kernel} takes {percent(share)} of the time; twice as fast, it makes the run {faster} faster"


def operator_findings(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Yield which operators take time for the types, shapes and masks of their tensors."""
    of_ops = view.framework
    if of_ops.ops.empty or "kernel_busy_frac" not in known or timeline.unrecorded(view):
        return
    yield from _casts(of_ops, known)
    yield from _unaligned(of_ops, known)
    yield from _masked(of_ops, known)


def _casts(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Kernels that convert weights to another type, which is needed once where the weights stay the same."""
    kernels = operated(view)
    of = kernels[casts(view) & (kernels["dur_ns"] >= SHORT_NS)]
    given, copied = (view.ops.take(of[column].to_numpy()).reset_index(drop=True) for column in ("outer", "row"))
    distinct, group = numbered(pairs := given[["name", "shapes"]].assign(copied=copied["shapes"]), [*pairs])
    is_weight = np.array([_is_weight(*each) for each in distinct.itertuples(index=False)], bool)[group]
    share = kernels["dur_ns"] / max(kernels["dur_ns"].sum(), 1) * known["kernel_busy_frac"].value
    weights = of.index[np.flatnonzero(is_weight)]
    if (found := float(share[weights].sum())) < NOTABLE:
        return
    definition = "share of the span: kernels of 10 µs or more that convert the weights of layers to another type"
    figure = Figure("weight_cast_frac", "Casts of weights", found, "1", definition, "operators.kernels_of")
    text = f"{by_operator(of.loc[weights], share)}. They convert their weights to another type, {len(weights):,} times "
    text += "in all. Weights that stay the same need this only once."
    gain = removing(found, "best case: the run saves all of this time, because the weights have the type already")
    yield tell(CASTS, f"Casts of weights take {figure.text} of the time", severity(found), text, (figure,), gain)


def _is_weight(name: str, of: str, copied: str) -> bool:
    """Tell whether what is copied in an operator has the shape of its weight."""
    given, moved = parsed(of), parsed(copied)
    copies = moved.shapes[:1] if moved and any(moved.shapes[:1]) else None
    return given is not None and given.shapes[1:2] == copies and WEIGHTED.fullmatch(name) is not None


def _unaligned(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """16-bit matrix products whose rows do not begin at multiples of 16 bytes, for which cuBLAS has slower kernels."""
    kernels, columns = operated(view), ["name", "shapes", "dtypes", "strides", "concrete"]
    of = kernels[where(kernels["operator"], PRODUCT.fullmatch) & ~unfused(view)]  # attention has another remedy
    spent = of.groupby("row")["dur_ns"].sum().loc[lambda ns: ns >= SHORT_NS]
    distinct, group = numbered(view.ops[columns].take(spent.index.to_numpy()), columns)
    made = [_product(*(str(value) for value in each)) for each in distinct.itertuples(index=False)]
    ops = pd.DataFrame(made, columns=["flops", "bytes", "length"]).take(group).set_axis(spent.index)
    ops = ops.assign(ns=spent, shape=group).dropna(subset=["flops"])
    odd, even = (ops[(ops["length"] > 0) == is_odd] for is_odd in (True, False))
    if odd.empty:
        return
    by_shape, sheet = even.groupby("shape")[["flops", "ns"]].sum(), hardware.peaks(str(view.devices["name"].max()))
    rate, fastest = odd["flops"].sum() / odd["ns"].sum() * 1e9, (by_shape["flops"] / by_shape["ns"]).max() * 1e9
    best = fastest if len(even) else sheet.flops_per_s.get("bf16_tensor", math.inf) if sheet else math.inf
    moved = odd["bytes"] / ((sheet and sheet.memory_bytes_per_s) or math.inf)
    left = min(float(np.maximum(odd["flops"] / best, moved).sum() * 1e9 / odd["ns"].sum()), 1.0)
    mine, length = of[of["row"].isin(odd.index)], int(odd["length"].to_numpy()[odd["ns"].argmax()])
    gain, level = shortening(view, known, mine, f"aligned, the products take {percent(left)} of their time", left=left)
    if (gain.share or 0.0) < NOTABLE:
        return
    share, definition = float(mine["dur_ns"].sum() / kernels["dur_ns"].sum()), "operations by shape over kernel time"
    rates = [("unaligned_flops_per_s", "Unaligned products", rate), ("aligned_flops_per_s", "Fastest aligned", fastest)]
    told = [Figure(*each, "FLOP/s", definition, "flops.roofline") for each in rates[: 1 + bool(len(even))]]
    definition = "share of the kernel time: 16-bit products with rows that are no multiple of 8 elements"
    figure = Figure("unaligned_frac", "Unaligned products", share, "1", definition, "operators.kernels_of")
    text = f"Rows of {length:,} elements do not begin at multiples of 16 bytes. cuBLAS needs slower kernels for them. "
    text += f"These products reach {told[0].text}."
    text += f" The fastest product with aligned rows reaches {told[1].text}." if len(even) else ""
    title = f"Matrix products with unaligned rows take {figure.text} of the kernel time"
    first = f"Pad the dimension of {length} to {-(-length // PADDED) * PADDED}, a multiple of {PADDED}"
    yield tell(UNALIGNED_PRODUCTS, title, level, text, (figure, *told), gain, first=first)


def _product(name: str, shapes: str, dtypes: str, strides: str, concrete: str) -> tuple[float, float, int]:
    """Return FLOP and bytes of a 16-bit product, and its longest row that is not aligned; NaN for other work.

    Rows are those of both operands as they lie in memory, and of the result. Products with a vector have none.
    """
    given, lying, first = parsed(shapes, dtypes, concrete), parsed(strides), int("add" in name)
    work = flops.MODELS[name](given) if given else None
    pair = given.shapes[first : first + 2] if given and work and work.flops and work.dtype in ("fp16", "bf16") else ()
    left, right = ((pair[0] or (1,))[-2:], (pair[1] or (1,))[-2:]) if pair else ((1,), (1,))
    if work is None or 1 in (*left, *right):
        return math.nan, math.nan, 0
    steps = [(of or ())[-2:] for of in lying.shapes[first : first + 2]] if lying else []
    # The step from row to row, or from column to column of a transposed matrix; of the result the width.
    rows = [right[-1], *(max(step) for step in steps if 1 in step)] + ([] if steps else [left[-1]])
    return float(work.flops or 0), work.bytes, max((row for row in rows if row > 1 and row % ALIGNED), default=0)


def _masked(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Attention with a mask in memory that has more bytes than query, key and value."""
    kernels, columns = operated(view), ["name", "shapes", "dtypes", "strides"]
    of = kernels[kernels["family"].eq("attention")]
    distinct, group = numbered(view.ops[columns].take(of["outer"].to_numpy()), columns)
    texts = pd.Series([_mask(*each) for each in distinct.itertuples(index=False)], dtype=object).take(group)
    mine = of[(texts != "").to_numpy()]
    if not 0 < NOTABLE * (total := kernels["dur_ns"].sum()) <= (spent := mine["dur_ns"].sum()):
        return
    definition = "share of the kernel time: attention with a mask of more bytes than query, key and value"
    label, share = "Attention with a large mask", float(spent / total)
    figure = Figure("masked_attention_frac", label, share, "1", definition, "operators.kernels_of")
    gain, level = shortening(view, known, mine, "the run saves all of the time of this attention")
    title = f"Attention with a mask larger than its input takes {figure.text} of the kernel time"
    yield tell(ATTENTION_MASK, title, level, max(texts, key=len), (figure,), gain)


def _mask(name: str, shapes: str, dtypes: str, strides: str) -> str:
    """Return how large a mask (queries x keys, not expanded) is that has more bytes than query, key and value."""
    given, lying = parsed(shapes, dtypes), parsed(strides)
    tensors = [t for t in operands(given) if len(t.shape) > 1] if given and "dot_product_att" in name else []
    if len(tensors) < 4 or (lying and any(0 in (steps or ()) for steps in lying.shapes)):
        return ""
    rest, sizes = sum(t.nbytes for t in tensors[:3]), (tensors[0].shape[-2], tensors[2].shape[-2])
    large = [t for t in tensors[3:] if t.shape[-2:] == sizes and t.nbytes > rest]
    words = "The mask has the shape {} and {}. Query, key and value have {}."
    return words.format(list(large[0].shape), size(large[0].nbytes), size(rest)) if large else ""


def throughput_findings(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Yield what the kernels leave unused or exhaust."""
    if "kernel_busy_frac" not in known or timeline.unrecorded(view):
        return
    yield from _tensor_cores(view, known)
    yield from _bandwidth(known)


def while_running(known: Mapping[str, Figure], *sampled: str) -> float | None:
    """Return the sum of sampled shares over the share of the time in which kernels run; None where not sampled."""
    busy = known["kernel_busy_frac"].value
    found = [known[f"sample_{name}"].value for name in sampled if f"sample_{name}" in known]
    return min(sum(found) / busy, 1.0) if found and busy else None


def _tensor_cores(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Matrix work on CUDA cores, by the names of the kernels or the samples of the tensor pipe."""
    times = formats(view).astype({"tensor_cores": str}).groupby("tensor_cores")["total_ns"].sum()
    total, without, named = int(times.sum()), int(times.get("no", 0)), int(times.get("yes", 0))
    pipe, span = while_running(known, "tensor_active_frac"), timeline.span_ns(view)
    idle_pipe = pipe is not None and pipe < IDLE_PIPE
    # Samples of an idle pipe say it only where the names do not say that tensor cores are used: a kernel that waits for
    # memory leaves its pipe idle too.
    unused = max(without, total if idle_pipe and named < HALF * total else 0)
    if not span or unused < NOTABLE_THROUGHPUT * span or capability(view) < VOLTA:
        return
    # Where operators are there and name full precision, the rule on number formats says it already.
    if not view.framework.ops.empty and analysis_kernels.mixed(formats(view.framework)).active is False:
        return
    share = unused / span
    definition = "share of the span: time of GEMMs, convolutions and attention that use no tensor core"
    label = "Matrix work without tensor cores"
    figure = Figure("no_tensor_core_frac", label, share, "1", definition, "kernels.precision, SAMPLES")
    evidence = (figure, *(known[i] for i in ("sample_tensor_active_frac", "reduced_precision_frac") if i in known))
    names = f"kernel names say that {percent(without / total)} of it runs on CUDA cores"
    text = f"Matrix work takes {percent(total / span)} of the time; {names}."
    if pipe is not None:
        text += f" The tensor pipe was active for {percent(pipe)} of the time in which kernels ran."
    gain = removing(
        min(share, 1.0), "best case: the run saves all of the matrix work's time; tensor cores save only a part of it"
    )
    title = f"Matrix work runs without tensor cores {percent(share)} of the time"
    yield tell(TENSOR_CORES, title, severity(share), text, evidence, gain)


def _bandwidth(known: Mapping[str, Figure]) -> Iterator[Finding]:
    """The device memory is busy while kernels run, by its sampled bandwidth."""
    used = while_running(known, "dram_read_frac", "dram_write_frac")
    busy = known["kernel_busy_frac"].value
    if used is None or used < BOUND or busy < NOTABLE_THROUGHPUT:
        return
    definition = "share of the peak bandwidth that reads and writes use while kernels run, from samples"
    figure = Figure("dram_used_frac", "Memory bandwidth while kernels run", used, "1", definition, "SAMPLES")
    level = "low" if busy < BOUND else "high" if used >= SATURATED else "medium"
    text = f"From 60 % on, memory limits the kernels. They run {percent(busy)} of the time."
    high = 1 / (1 - busy) if busy < 1 else float("inf")
    gain = Gain(1.0, high, "best case: the run saves all of the kernels' time; moving fewer bytes saves a part of it")
    evidence = (figure, known["kernel_busy_frac"])
    title = f"Kernels use {figure.text} of the bandwidth of the device memory"
    yield tell(MEMORY_BANDWIDTH, title, level, text, evidence, gain)


def matrix_frac(view: Selection) -> float | None:
    """Return the share of the kernel time that is matrix work; None without kernels."""
    kernels = cut(view.kernels, view.window)
    matrix = kernels["dur_ns"].where(kernels["family"].isin(analysis_kernels.MATRIX_FAMILIES), 0)
    return float(matrix.sum() / kernels["dur_ns"].sum()) if kernels["dur_ns"].sum() else None

"""Which operators run kernels that could be shorter or fewer?

Attention that is computed step by step is case 3 of the course's chapter on GPU profiling.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis import flops, operators, timeline, whatif
from perfkit.analysis import kernels as analysis_kernels
from perfkit.analysis.causes import on_one_axis, started_by, where
from perfkit.analysis.flops.shapes import parsed
from perfkit.analysis.intervals import cut, devices
from perfkit.analysis.operators import totals
from perfkit.diagnosis.finding import Figure, Finding, Gain, removing
from perfkit.diagnosis.framework import VOLTA, capability, data_sheet, formats, gpu_time, peak
from perfkit.diagnosis.recording import of_the_time
from perfkit.diagnosis.replayed import with_others, within
from perfkit.diagnosis.rules.operators import ATTENTION, FUSION, LAYOUT, PRECISION
from perfkit.diagnosis.rules.rule import tell
from perfkit.diagnosis.stored import kept
from perfkit.diagnosis.timeline import span_ns, unrecorded
from perfkit.format import percent, printable
from perfkit.names.families import FAMILIES
from perfkit.schema import unique
from perfkit.selection import Selection

NOTABLE = 0.1
SHORT_NS = 10_000
SOFTMAX = re.compile(r"aten::_?(?:masked_)?softmax(?:_backward(?:_data)?)?")
CAST = re.compile(r"aten::(?:to|_to_copy|type_as)")
CONVERSION = re.compile("nchwToNhwc|nhwcToNchw")
# What a compiler has fused, or cuDNN runs inside of its operators.
ALONE = re.compile(f"^triton_|{CONVERSION.pattern}")
# A softmax, a sum and a concatenation can take in their neighbours, and may last as long as before.
FUSIBLE = ("copy", "elementwise", "normalisation", "softmax", "reduction")
# Needs the mean over all of its input, so its passes remain.
BATCH = re.compile("batch_?norm|bn_[fb]w")
PASSES = 0.2  # of the time that fusing chains saves, from which on it is told (convention)
SOURCE = "operators.kernels_of"
PRODUCT = re.compile(r"aten::(?:bmm|baddbmm)")
UNSEEN = "the recording lacks some operations of graphs, so their share of the time is unknown"
Bool = NDArray[np.bool_]


def findings(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Yield which operators run kernels that could be shorter or fewer."""
    of_ops = view.framework
    if of_ops.ops.empty:
        return
    yield from _attention(of_ops, known)
    yield from _passes(of_ops, known)
    yield from _low_precision(
        of_ops, known, view if len(of_ops.all_kernels) == len(view.all_kernels) else None
    )


@kept
def operated(view: Selection) -> pd.DataFrame:
    """Return the kernels in the window whose launch is recorded, with `operator` and `outermost` aten operator.

    A profiler records launches later than kernels: those without one count as if they were like the
    others. `at_ns` is the start of the operator, of the kernel without one; `row` and `outer` are
    the rows of both in OPS, -1 without one.
    """
    spent = gpu_time(view)
    kernels = cut(view.kernels, view.window)
    row = totals.rows_of(view.ops, spent["rank"].to_numpy(np.int64), spent["op"].to_numpy(np.int64))
    outer = operators.outermost_aten(view.ops, totals.parents(view.ops), row)
    kernels = kernels.assign(
        operator=totals.named(view.ops, row),
        outermost=totals.named(view.ops, np.where(outer >= 0, outer, row)),
        at_ns=np.where(row >= 0, np.append(view.ops["start_ns"], 0)[row], kernels["start_ns"]),
        row=row,
        outer=np.where(outer >= 0, outer, row),
    )
    return kernels[spent["how"].ne("none")].reset_index(drop=True)


@kept
def casts(view: Selection) -> Bool:
    """Tell which kernels of `operated` copy a tensor into another type, inside of whatever operator."""
    kernels = operated(view)
    ops = view.ops
    copies = where(ops["name"], "aten::copy_".__eq__) & where(ops["dtypes"], _differ)
    found = np.append(copies, False)[kernels["row"]] | where(kernels["outermost"], CAST.fullmatch)
    return found & kernels["family"].eq("copy").to_numpy()


def _differ(dtypes: str) -> bool:
    given = parsed("[]", dtypes)
    return given is not None and len({*filter(None, given.dtypes[:2])}) == 2


@kept
def unfused(view: Selection) -> Bool:
    """Tell which kernels of `operated` compute attention step by step.

    None where a fused kernel does it.
    """
    kernels = operated(view)
    softmax, product = (
        where(kernels["operator"], pattern.fullmatch) for pattern in (SOFTMAX, PRODUCT)
    )
    found = _steps_of_attention(kernels, softmax, product)
    return found & ~kernels["family"].eq("attention").any()


def _passes(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Yield kernels that only move tensors, and chains of kernels that each read and write all elements again."""
    kernels = operated(view)
    busy = known.get("kernel_busy_frac")
    total = float(kernels["dur_ns"].sum())
    if (
        unrecorded(view)
        or busy is None
        or 2 * total < cut(view.kernels, view.window)["dur_ns"].sum()
    ):
        return
    # Shorter kernels are a matter of launching.
    share = (
        kernels["dur_ns"].where(kernels["dur_ns"] >= SHORT_NS, 0) / (total or math.nan) * busy.value
    )
    copy, normal = (kernels["family"].eq(name).to_numpy() for name in ("copy", "normalisation"))
    moves = copy & ~casts(view)
    if (moved := float(share[moves].sum())) >= NOTABLE:
        with_normal = min(float(share[moves | normal].sum()), busy.value)
        finding = _moving(view, kernels[moves], share[moves], moved, with_normal)
        repeated = _of_repeated(kernels, share)
        yield replace(finding, gain=with_others(finding.gain, repeated))
    yield from _chains(view, kernels, share)


def _chains(of_ops: Selection, kernels: pd.DataFrame, share: pd.Series) -> Iterator[Finding]:
    """Yield chains of kernels that each read and write all elements again."""
    chained = kernels["family"].isin(FUSIBLE).to_numpy() & ~unfused(of_ops)
    chained &= ~where(kernels["full_name"], ALONE.search) & ~kernels["in_graph"].to_numpy()
    chain = _numbered(of_ops, kernels, chained)
    counted = chained & (share > 0).to_numpy()
    batch = where(kernels["full_name"], BATCH.search)
    of_rows = kernels["family"].isin(["softmax", "reduction"]) | kernels["outermost"].eq(
        "aten::cat"
    )
    light = counted & ~(batch | of_rows.to_numpy())
    parts, stay, rest = (share[of].groupby(chain[of]) for of in (counted, counted & batch, light))
    saved = float((rest.sum() - rest.min()).sum())
    if saved < PASSES:
        return
    left = np.maximum(parts.min(), stay.sum().reindex(parts.min().index, fill_value=0))
    most = float((parts.sum() - left).sum())
    inside = share[counted][parts.transform("size") > 1]
    lengths = parts.size()[parts.size() > 1]
    definition = (
        "share of the span: elementwise kernels, copies, normalisations, softmaxes and sums of 10 "
        "µs or more, one after another"
    )
    value = float(inside.sum())
    figure = Figure("chained_frac", "Chains of kernels", value, "1", definition, SOURCE)
    text = (
        f"Number of chains: {len(lengths):,}, each of {lengths.mean():.1f} kernels on average. Each "
        "kernel reads tensors and writes them back. "
        f"{by_operator(kernels.loc[inside.index], share)}."
    )
    reason = (
        "best case: each chain becomes one kernel, as long as the shortest one of the chain; values "
        "that are needed later must still be written, which saves less"
    )
    title = f"Unfused chains of elementwise kernels take {figure.text} {of_the_time(of_ops)}"
    yield tell(FUSION, title, text, (figure,), removing(most, reason))


def _numbered(of_ops: Selection, kernels: pd.DataFrame, chained: Bool) -> NDArray[np.int64]:
    """Return the number of the chain of each kernel: it ends with the step, the device, or another kernel."""
    found = of_ops.repeated  # a step of ranges holds the launches of its kernels
    time = "start_ns" if found["how"].eq("kernel sequence").all() else "at_ns"
    moments = kernels[["rank", "dur_ns"]].assign(start_ns=kernels[time])
    (moment, _), (begin, _) = on_one_axis([moments, found], ["rank"])
    place = devices(kernels)[1][0], np.searchsorted(begin, moment, side="right")
    is_elsewhere = np.any([np.diff(at, prepend=-1) != 0 for at in place], axis=0)
    return np.cumsum(~(chained & np.r_[False, chained[:-1]]) | is_elsewhere)


def _moving(
    view: Selection, kernels: pd.DataFrame, share: pd.Series, moved: float, with_normal: float
) -> Finding:
    """Return the finding on kernels that only move tensors.

    `with_normal`: their share with that of normalisations.
    """
    is_layout = share[where(kernels["full_name"], CONVERSION.search)].sum() >= moved / 2
    what = "convert the layout of images" if is_layout else "only move tensors"
    figure = Figure(
        "moving_frac",
        "Moving tensors",
        moved,
        "1",
        (
            "share of the span: kernels of 10 µs or more that copy tensors inside the GPU's memory; no "
            "casts"
        ),
        SOURCE,
    )
    text = f"{by_operator(kernels, share)}."
    reason = (
        "best case: the run saves all of this time: the next kernel reads the tensor as it lies"
    )
    if is_layout:
        text += (
            " cuDNN computes these convolutions in the format channels_last (NHWC), and the "
            "tensors are in NCHW."
        )
        reason = (
            "best case: the run saves all of this time and that of normalisations, which are slow "
            "in NCHW"
        )
    title = f"Kernels that {what} take {figure.text} {of_the_time(view)}"
    gain = removing(moved, reason)
    if is_layout:
        gain = with_others(gain, {"normalisation": with_normal - moved})
    return tell(LAYOUT, title, text, (figure,), gain)


def _of_repeated(kernels: pd.DataFrame, share: pd.Series) -> dict[str, float]:
    """Return the share of the time in attention, where that reads keys and values that were repeated.

    Without the repetition it reads a part of the bytes.
    """
    repeats = kernels["outermost"].eq("aten::repeat_interleave")
    if share[repeats].sum() < NOTABLE:
        return {}
    return {"attention": float(share[kernels["family"].eq("attention")].sum())}


def by_operator(kernels: pd.DataFrame, share: pd.Series) -> str:
    """Return the operators that launch kernels, with their share of the time, as a sentence without its end."""
    of = (
        share.reindex(kernels.index)
        .groupby(kernels["outermost"].astype("string"))
        .sum()
        .nlargest(3)
    )
    told = ", ".join(
        f"{printable(name, 60)} {percent(part)}" for name, part in of.items() if part >= 0.01
    )
    if not told:
        return "The recording does not name the operators of these kernels"
    return f"Shares of the time by operator: {told}"


def _attention(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Case 3: scores, softmax and values are kernels of their own, which write and read the N x N matrix."""
    kernels = operated(view)
    found = kernels[unfused(view)]
    time = int(kernels["dur_ns"].sum())
    if found.empty or found["dur_ns"].sum() < NOTABLE * time:
        return
    share = float(found["dur_ns"].sum() / time)
    figure = Figure(
        "unfused_attention_frac",
        "Unfused attention",
        share,
        "1",
        (
            "share of the kernel time that softmax, batched matrix products and the kernels between "
            "them take"
        ),
        "operators.kernels_of",
    )
    title = f"Attention without a fused kernel takes {figure.text} of the kernel time"
    text = (
        "No fused attention kernel ran. So the GPU writes the matrix of scores to memory and reads "
        "it again."
    )
    points = flops.roofline(view.ops, gpu_time(view))
    points = points[where(points["name"], PRODUCT.fullmatch) & points["flops_per_s"].notna()]
    what = "a fused kernel takes far less time; how much is unknown without shapes"
    left = 0.0
    if (
        bound := peak(view, points)
    ) is not None:  # of their present time the products would take this at the peak
        products = (
            found.loc[where(found["operator"], PRODUCT.fullmatch), "dur_ns"].sum()
            / found["dur_ns"].sum()
        )
        left = min(points["flops"].sum() / points["gpu_ns"].sum() * 1e9 / bound[0], 1.0) * float(
            products
        )
        what = (
            f"a fused kernel needs {percent(left)} of their time, that of its products at the peak "
            f"({bound[1]})"
        )
    gain = shortening(view, known, found, what, left=left)
    yield tell(ATTENTION, title, text, (figure,), gain)


def _steps_of_attention(kernels: pd.DataFrame, softmax: Bool, product: Bool) -> Bool:
    """Tell which kernels lie in a stretch where a softmax lies between batched products and no other matrix work does.

    A softmax that chooses experts follows a linear layer, and the experts' products come after it.
    What runs between a softmax and a product, such as scaling and masks, belongs to them.
    """
    other = kernels["family"].isin(analysis_kernels.MATRIX_FAMILIES).to_numpy() & ~product
    seen = np.flatnonzero(softmax | product | other)
    _, (device,) = devices(kernels.take(seen))
    stretch = np.cumsum(other[seen] | (np.diff(device, prepend=0) != 0))
    place = pd.Series(np.where(product[seen], seen, np.nan))
    first, last = (place.groupby(stretch).transform(end).to_numpy() for end in ("min", "max"))
    between = softmax[seen] & (first < seen) & (seen < last)
    found = np.zeros(len(kernels), bool)
    found[seen] = np.isin(stretch, stretch[between]) & ~other[seen]
    follows = np.flatnonzero(found[seen[:-1]] & (np.diff(stretch) == 0) & np.diff(softmax[seen]))
    edges = np.zeros(len(kernels), np.int64)
    edges[seen[follows]] += 1
    edges[seen[follows + 1]] -= 1
    return found | ((np.cumsum(edges) > 0) & kernels["family"].ne("communication").to_numpy())


def _low_precision(
    view: Selection, known: Mapping[str, Figure], whole: Selection | None
) -> Iterator[Finding]:
    shares = formats(view)
    found = analysis_kernels.mixed(shares)
    kernels = cut(view.kernels, view.window)
    if (
        found.active is not False
        or found.total_ns < NOTABLE * kernels["dur_ns"].sum()
        or capability(view) < VOLTA
    ):
        return
    figure = known["reduced_precision_frac"]
    told = ", ".join(
        shares["format"].astype(str).drop_duplicates().loc[lambda s: s != "unknown"].head(3)
    )
    title = f"Mixed precision is not active: {figure.text} of the matrix work uses 16 or 8 bits"
    # The other kernels read and write half of the bytes in float32.
    double = str(shares["format"].iloc[0]) == "fp64"
    part = percent(found.total_ns / int(kernels["dur_ns"].sum()))
    text = f"Matrix work takes {part} of the kernel time, most of it in {told}."
    matrix = kernels[kernels["family"].isin(analysis_kernels.MATRIX_FAMILIES)]
    left, by = _left_on_tensor_cores(view, shares)
    what = f"the matrix work takes {percent(left)} of its present time{by}"
    what = what if left else "the run saves the time of the matrix work"
    gain = shortening(view, known, matrix, what, left=left)
    if double:
        title = f"Most of the matrix work runs in float64, {figure.text} in 16 or 8 bits"
        rest = shortening(view, known, kernels.drop(matrix.index), "", left=0.5).share or 0.0
        gain = removing(
            (gain.share or 0.0) + rest, f"best case: {what}, the other kernels half of theirs"
        )
    if whole and gain.share and _staged(whole) < NOTABLE:  # the launches remain
        of = dict.fromkeys(FAMILIES, 0.5) if double else {}
        of |= dict.fromkeys(analysis_kernels.MATRIX_FAMILIES, left)
        changes = tuple(whatif.Kernels(factor, family=family) for family, factor in of.items())
        words = f"matrix kernels at {percent(left)} of their time, launches at half or all,"
        gain = within(whole, gain, changes, words)
        gain = replace(gain, share=min(gain.share or 0.0, 1 - 1 / gain.high))
    yield tell(PRECISION, title, text, (figure,), gain)


def _staged(view: Selection) -> float:
    """Return the share of the span in calls that copy pageable memory to the GPU.

    A replay knows not why they wait.
    """
    copies = view.copies[view.copies["src_memory"].eq("pageable")]
    call = started_by(copies, view.api_calls)
    return float(view.api_calls["dur_ns"].to_numpy()[unique(call[call >= 0])].sum() / span_ns(view))


def _left_on_tensor_cores(view: Selection, shares: pd.DataFrame) -> tuple[float, str]:
    """Return the part of its time that matrix work takes on tensor cores in 16 bits, and by what, as words.

    By format it is the ratio of the data sheet's peaks, 0 where none is known. What has 16 bits
    already stays.
    """
    sheet = data_sheet(view)
    rates = sheet.flops_per_s if sheet else {}
    best = max(rates.get("bf16_tensor", 0.0), rates.get("fp16_tensor", 0.0))
    left = {
        name: min(
            rates.get("tf32_tensor" if name == "tf32" else name, 0.0) / (best or math.inf), 1.0
        )
        for name in analysis_kernels.FORMATS
    } | dict.fromkeys(analysis_kernels.REDUCED, 1.0)
    parts = shares["format"].astype(str).map(left) * shares["share_frac"]
    return float(parts.sum()), ", the ratio of the data sheet's peaks" if best else ""


def shortening(
    view: Selection,
    known: Mapping[str, Figure],
    kernels: pd.DataFrame,
    what: str,
    *,
    left: float = 0.0,
) -> Gain:
    """Return what the run gains at most where these kernels take `left` of their time.

    Where another tool recorded the timeline of the run, they are the same part of the kernels
    there. Of kernels without a recorded launch they are the same part as of the others.
    """
    if unrecorded(view):
        return Gain(1.0, math.inf, UNSEEN)
    busy = timeline.busy(kernels, view.copies.iloc[:0], window=view.window)
    every = cut(view.kernels, view.window)["dur_ns"].sum()
    seen = operated(view)["dur_ns"].sum() if "operator" in kernels else every
    share = float(busy["kernel_busy_ns"].sum() / span_ns(view) * every / seen)
    if "kernel_busy_frac" in known:
        share = min(share, float(kernels["dur_ns"].sum() / seen) * known["kernel_busy_frac"].value)
    share *= 1 - left
    return removing(share, f"best case: {what}")

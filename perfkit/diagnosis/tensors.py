"""Which operators take time for the types, shapes and masks of their tensors?"""

import math
import re
from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from perfkit import hardware
from perfkit.analysis import flops
from perfkit.analysis.causes import where
from perfkit.analysis.flops.shapes import operands, parsed
from perfkit.analysis.grouping import numbered
from perfkit.diagnosis import timeline
from perfkit.diagnosis.finding import Figure, Finding, removing
from perfkit.diagnosis.operator_kernels import (
    SHORT_NS,
    by_operator,
    casts,
    operated,
    shortening,
    unfused,
)
from perfkit.diagnosis.recording import of_the_time
from perfkit.diagnosis.rules.operators import ATTENTION_MASK, CASTS, UNALIGNED_PRODUCTS
from perfkit.diagnosis.rules.rule import tell
from perfkit.format import percent, size
from perfkit.selection import Selection

NOTABLE = 0.1
WEIGHTED = re.compile(r"aten::(?:linear|conv\w*)")  # operators with their weight as second argument
PRODUCT = re.compile("aten::(?:addmm|mm|bmm|baddbmm)")
# elements of 2 bytes: 16 bytes, and what fits the tiles of all kernels (NVIDIA's cuBLAS guide)
ALIGNED = 8
PADDED = 64


def findings(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
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
    given, copied = (
        view.ops.take(of[column].to_numpy()).reset_index(drop=True) for column in ("outer", "row")
    )
    distinct, group = numbered(
        pairs := given[["name", "shapes"]].assign(copied=copied["shapes"]), [*pairs]
    )
    is_weight = np.array([_is_weight(*each) for each in distinct.itertuples(index=False)], bool)[
        group
    ]
    share = kernels["dur_ns"] / max(kernels["dur_ns"].sum(), 1) * known["kernel_busy_frac"].value
    weights = of.index[np.flatnonzero(is_weight)]
    if (found := float(share[weights].sum())) < NOTABLE:
        return
    figure = Figure(
        "weight_cast_frac",
        "Casts of weights",
        found,
        "1",
        (
            "share of the span: kernels of 10 µs or more that convert the weights of layers to another "
            "type"
        ),
        "operators.kernels_of",
    )
    text = (
        f"{by_operator(of.loc[weights], share)}. They convert their weights to another type, "
        f"{len(weights):,} times "
    )
    text += "in all. Weights that stay the same need this only once."
    gain = removing(
        found,
        "best case: the run saves all of this time, because the weights have the type already",
    )
    yield tell(
        CASTS,
        f"Casts of weights take {figure.text} {of_the_time(view)}",
        text,
        (figure,),
        gain,
    )


def _is_weight(name: str, of: str, copied: str) -> bool:
    """Tell whether what is copied in an operator has the shape of its weight."""
    given = parsed(of)
    moved = parsed(copied)
    copies = moved.shapes[:1] if moved and any(moved.shapes[:1]) else None
    return (
        given is not None and given.shapes[1:2] == copies and WEIGHTED.fullmatch(name) is not None
    )


def _unaligned(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """16-bit matrix products whose rows do not begin at multiples of 16 bytes, for which cuBLAS has slower kernels."""
    kernels = operated(view)
    columns = ["name", "shapes", "dtypes", "strides", "concrete"]
    # Attention has another remedy.
    of = kernels[where(kernels["operator"], PRODUCT.fullmatch) & ~unfused(view)]
    spent = of.groupby("row")["dur_ns"].sum().loc[lambda ns: ns >= SHORT_NS]
    distinct, group = numbered(view.ops[columns].take(spent.index.to_numpy()), columns)
    made = [_product(*(str(value) for value in each)) for each in distinct.itertuples(index=False)]
    ops = pd.DataFrame(made, columns=["flops", "bytes", "length"]).take(group).set_axis(spent.index)
    ops = ops.assign(ns=spent, shape=group).dropna(subset=["flops"])
    odd, even = (ops[(ops["length"] > 0) == is_odd] for is_odd in (True, False))
    if odd.empty:
        return
    by_shape = even.groupby("shape")[["flops", "ns"]].sum()
    sheet = hardware.peaks(str(view.devices["name"].max()))
    rate = odd["flops"].sum() / odd["ns"].sum() * 1e9
    fastest = (by_shape["flops"] / by_shape["ns"]).max() * 1e9
    best = sheet.flops_per_s.get("bf16_tensor", math.inf) if sheet else math.inf
    if len(even):
        best = fastest
    moved = odd["bytes"] / ((sheet and sheet.memory_bytes_per_s) or math.inf)
    left = min(float(np.maximum(odd["flops"] / best, moved).sum() * 1e9 / odd["ns"].sum()), 1.0)
    mine = of[of["row"].isin(odd.index)]
    length = int(odd["length"].to_numpy()[odd["ns"].argmax()])
    gain = shortening(
        view, known, mine, f"aligned, the products take {percent(left)} of their time", left=left
    )
    if (gain.share or 0.0) < NOTABLE:
        return
    share = float(mine["dur_ns"].sum() / kernels["dur_ns"].sum())
    definition = "operations by shape over kernel time"
    rates = [
        ("unaligned_flops_per_s", "Unaligned products", rate),
        ("aligned_flops_per_s", "Fastest aligned", fastest),
    ]
    told = [
        Figure(*each, "FLOP/s", definition, "flops.roofline")
        for each in rates[: 1 + bool(len(even))]
    ]
    figure = Figure(
        "unaligned_frac",
        "Unaligned products",
        share,
        "1",
        ("share of the kernel time: 16-bit products with rows that are no multiple of 8 elements"),
        "operators.kernels_of",
    )
    text = (
        f"Rows of {length:,} elements do not begin at multiples of 16 bytes. cuBLAS needs slower "
        "kernels for them. "
    )
    text += f"These products reach {told[0].text}."
    text += f" The fastest product with aligned rows reaches {told[1].text}." if len(even) else ""
    title = f"Matrix products with unaligned rows take {figure.text} of the kernel time"
    first = (
        f"Pad the dimension of {length} to {-(-length // PADDED) * PADDED}, a multiple of {PADDED}"
    )
    yield tell(UNALIGNED_PRODUCTS, title, text, (figure, *told), gain, first=first)


def _product(
    name: str, shapes: str, dtypes: str, strides: str, concrete: str
) -> tuple[float, float, int]:
    """Return FLOP and bytes of a 16-bit product, and its longest row that is not aligned.

    NaN for other work. Rows are those of both operands as they lie in memory, and of the result.
    Products with a vector have none.
    """
    given = parsed(shapes, dtypes, concrete)
    lying = parsed(strides)
    first = int("add" in name)
    work = flops.MODELS[name](given) if given else None
    pair = (
        given.shapes[first : first + 2]
        if given and work and work.flops and work.dtype in ("fp16", "bf16")
        else ()
    )
    left, right = ((pair[0] or (1,))[-2:], (pair[1] or (1,))[-2:]) if pair else ((1,), (1,))
    if work is None or 1 in (*left, *right):
        return math.nan, math.nan, 0
    steps = [(of or ())[-2:] for of in lying.shapes[first : first + 2]] if lying else []
    # The step from row to row, or from column to column of a transposed matrix; of the result the
    # width.
    rows = [right[-1], *(max(stride) for stride in steps if 1 in stride)] + (
        [] if steps else [left[-1]]
    )
    return (
        float(work.flops or 0),
        work.bytes,
        max((row for row in rows if row > 1 and row % ALIGNED), default=0),
    )


def _masked(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Attention with a mask in memory that has more bytes than query, key and value."""
    kernels = operated(view)
    columns = ["name", "shapes", "dtypes", "strides"]
    of = kernels[kernels["family"].eq("attention")]
    distinct, group = numbered(view.ops[columns].take(of["outer"].to_numpy()), columns)
    texts = pd.Series(
        [_mask(*each) for each in distinct.itertuples(index=False)], dtype=object
    ).take(group)
    mine = of[(texts != "").to_numpy()]
    if not 0 < NOTABLE * (total := kernels["dur_ns"].sum()) <= (spent := mine["dur_ns"].sum()):
        return
    definition = (
        "share of the kernel time: attention with a mask of more bytes than query, key and value"
    )
    label = "Attention with a large mask"
    share = float(spent / total)
    figure = Figure("masked_attention_frac", label, share, "1", definition, "operators.kernels_of")
    gain = shortening(view, known, mine, "the run saves all of the time of this attention")
    title = f"Attention with a mask larger than its input takes {figure.text} of the kernel time"
    yield tell(ATTENTION_MASK, title, max(texts, key=len), (figure,), gain)


def _mask(name: str, shapes: str, dtypes: str, strides: str) -> str:
    """Return how large a mask (queries x keys, not expanded) is that has more bytes than query, key and value."""
    given = parsed(shapes, dtypes)
    lying = parsed(strides)
    tensors = (
        [t for t in operands(given) if len(t.shape) > 1]
        if given and "dot_product_att" in name
        else []
    )
    if len(tensors) < 4 or (lying and any(0 in (steps or ()) for steps in lying.shapes)):
        return ""
    rest = sum(t.nbytes for t in tensors[:3])
    sizes = (tensors[0].shape[-2], tensors[2].shape[-2])
    large = [t for t in tensors[3:] if t.shape[-2:] == sizes and t.nbytes > rest]
    words = "The mask has the shape {} and {}. Query, key and value have {}."
    return words.format(list(large[0].shape), size(large[0].nbytes), size(rest)) if large else ""

"""How many operations does attention take, from the shapes of query, key and value?

Conventions
-----------
With Q heads and T query positions per batch entry B, S key positions, head dimensions D of query and key and E of
the value: forward 2 B Q T S (D + E), which is 4 B Q T S D for D = E; backward 2 B Q T S (3 D + 2 E), 2.5 times as
much, because the scores are computed anew. A causal mask halves both, where it is known to be one and T = S;
where T and S differ there is no model. A mask given as a tensor counts as none. Sequences of several lengths in one
tensor, and sliding windows, have no model: the lengths are not in the trace.

Functions
---------
attention    operations and traffic of fused attention, forward or backward

References
----------
Dao et al.: FlashAttention, NeurIPS 2022, and FlashAttention-2, ICLR 2024, section 4.1, which also halves for a causal
mask; PyTorch's torch.utils.flop_counter gives the same without that half. Positions of the arguments: PyTorch's
native_functions.yaml, flash-attention's flash_attn_interface.py.
"""

from __future__ import annotations

from typing import NamedTuple

from perfkit.analysis.flops.models import Work
from perfkit.analysis.flops.shapes import FLOATS, Inputs, stored

_CAUSAL = {"True": True, "False": False, "0": False, "1": True, "2": True}  # numbers: kinds of mask in CUTLASS


class Form(NamedTuple):
    """Where an operator has its query, its flag or kind of mask, and what tells sequences of several lengths.

    `heads_last` is for tensors of (batch, position, head, dimension) instead of (batch, head, position, dimension).
    """

    causal: int
    query: int = 0
    heads_last: bool = False
    lengths: int | None = None
    windows: tuple[int, ...] = ()

    @property
    def backward(self) -> bool:
        """Whether it is a backward operator: these have the gradient of the output before the query."""
        return self.query == 1


FORMS = {
    "aten::scaled_dot_product_attention": Form(causal=5),
    "aten::_scaled_dot_product_flash_attention": Form(causal=4),
    "aten::_scaled_dot_product_flash_attention_for_cpu": Form(causal=4),
    "aten::_scaled_dot_product_efficient_attention": Form(causal=6),
    "aten::_scaled_dot_product_cudnn_attention": Form(causal=6),
    "aten::_cudnn_attention_forward": Form(causal=10, lengths=4),
    "aten::_flash_attention_forward": Form(causal=8, heads_last=True, lengths=3, windows=(11, 12)),
    "aten::_efficient_attention_forward": Form(causal=9, heads_last=True, lengths=4, windows=(13,)),
    "flash_attn::_flash_attn_forward": Form(causal=5, heads_last=True, windows=(6, 7)),
    "aten::_scaled_dot_product_flash_attention_backward": Form(causal=11, query=1, lengths=6),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": Form(causal=7, query=1),
    "aten::_scaled_dot_product_efficient_attention_backward": Form(causal=11, query=1),
    "aten::_scaled_dot_product_cudnn_attention_backward": Form(causal=14, query=1, lengths=9),
    "aten::_flash_attention_backward": Form(causal=11, query=1, heads_last=True, lengths=6, windows=(15, 16)),
    "aten::_efficient_attention_backward": Form(causal=14, query=1, heads_last=True, lengths=6, windows=(18,)),
    "flash_attn::_flash_attn_backward": Form(causal=11, query=1, heads_last=True, windows=(12, 13)),
}


class _Sizes(NamedTuple):
    """Batch times query heads, query and key positions, head dimensions of query and value."""

    heads: int
    queries: int
    keys: int
    query_width: int
    value_width: int


def attention(given: Inputs, form: Form) -> Work | None:
    """Return operations and traffic of an operator of that form; each tensor is read or written once.

    Examples
    --------
    >>> inputs = Inputs(((1, 2, 8, 4),) * 3, ("c10::Half",) * 3)
    >>> attention(inputs, FORMS["aten::_scaled_dot_product_flash_attention"])
    Work(model='attention', dtype='fp16', flops=2048, bytes=512)
    """
    query, key, value = (given.tensor(form.query + i) for i in range(3))
    if query is None or key is None or value is None or query.dtype not in (*FLOATS, ""):
        return None
    sizes = _sizes(*(_heads_first(t.shape, form) for t in (query, key, value)))
    causal = _causal(given, form)
    if sizes is None or causal is None or _uneven(given, form) or (causal and sizes.queries != sizes.keys):
        return None
    widths = (3, 2) if form.backward else (1, 1)
    pairs = sizes.heads * sizes.queries * sizes.keys
    flops = 2 * pairs * (widths[0] * sizes.query_width + widths[1] * sizes.value_width)
    out = stored(sizes.heads * sizes.queries * sizes.value_width, query.dtype)
    moved = (query.nbytes + key.nbytes + value.nbytes + out) * (2 if form.backward else 1)
    model = ("causal_" if causal else "") + "attention" + ("_backward" if form.backward else "")
    return Work(model, query.dtype, flops // 2 if causal else flops, moved)


def _heads_first(shape: tuple[int, ...], form: Form) -> tuple[int, ...]:
    return (shape[0], shape[2], shape[1], shape[3]) if form.heads_last and len(shape) == 4 else shape


def _sizes(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...]) -> _Sizes | None:
    """Return the sizes if the three fit together; several heads of the query may share one of key and value."""
    if not len(query) == len(key) == len(value) == 4:
        return None
    batch, heads, queries, width = query
    fits = key[0] == value[0] == batch and key[1] == value[1] and key[2] == value[2] and key[3] == width
    if not fits or not key[1] or heads % key[1]:
        return None
    return _Sizes(batch * heads, queries, key[2], width, value[3])


def _causal(given: Inputs, form: Form) -> bool | None:
    """Tell whether the mask is causal; as PyTorch's counter none where no arguments were recorded, None if unclear."""
    return _CAUSAL.get(given.text(form.causal) or "") if given.concrete else False


def _uneven(given: Inputs, form: Form) -> bool:
    """Tell whether there are sequences of several lengths, or a window of positions that see each other."""
    lengths = given.tensor(form.lengths) if form.lengths is not None else None
    several = lengths is not None and lengths.elements > 1  # an empty tensor stands for none
    return several or any(given.text(at) not in (None, "", "-1") for at in form.windows)

"""Operations and bytes of fused attention, against the products it is made of."""

from __future__ import annotations

import math

import pytest

from perfkit.analysis.flops.shapes import FORMS, Inputs, attention, gemm

FLASH = FORMS["aten::_scaled_dot_product_flash_attention"]
FLASH_BACKWARD = FORMS["aten::_scaled_dot_product_flash_attention_backward"]


def given(*shapes: tuple[int, ...], dtype: str = "float", concrete: tuple[str, ...] | None = None) -> Inputs:
    """Tensors of one type, and other arguments."""
    return Inputs(shapes, (dtype,) * len(shapes), concrete)


def arguments(positions: dict[int, object], count: int) -> tuple[str, ...]:
    """Other arguments as the profiler writes them, empty where there are tensors."""
    return tuple(str(positions.get(position, "")) for position in range(count))


@pytest.mark.parametrize(("queries", "keys", "width", "deep"), [(8, 8, 4, 4), (5, 9, 4, 6)])
def test_attention_is_its_products(queries: int, keys: int, width: int, deep: int) -> None:
    """Two products forward; five backward, of which one computes the scores anew: 2.5 times where the widths agree."""
    q, k, v = (2, 3, queries, width), (2, 3, keys, width), (2, 3, keys, deep)
    scores, out = (2, 3, queries, keys), (2, 3, queries, deep)

    def product(left: tuple[int, ...], right: tuple[int, ...]) -> int:
        work = gemm(given(left, right))
        assert work is not None
        assert work.flops is not None
        return work.flops

    def turned(shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:2], shape[3], shape[2])

    forward = product(q, turned(k)) + product(scores, v)
    of_values = product(out, turned(v)) + product(turned(scores), out)
    of_scores = product(scores, k) + product(turned(q), scores)
    found = attention(given(q, k, v), FLASH), attention(given(out, q, k, v), FLASH_BACKWARD)
    moved = 4 * sum(math.prod(shape) for shape in (q, k, v, out))
    assert ("attention", "fp32", forward, moved) == found[0]
    assert ("attention_backward", "fp32", product(q, turned(k)) + of_values + of_scores, 2 * moved) == found[1]


def test_a_causal_mask_halves_where_it_is_known() -> None:
    """Half of 4 B H T T D forward and backward; the whole where it is none or nothing was recorded."""
    shape = (2, 3, 8, 4)
    whole = 4 * 2 * 3 * 8 * 8 * 4
    causal, none = (arguments({3: "0.", 4: flag, 5: "False"}, 7) for flag in ("True", "False"))
    for recorded, flops, model in ((causal, whole // 2, "causal_attention"), (none, whole, "attention")):
        work = attention(given(shape, shape, shape, concrete=recorded), FLASH)
        assert work is not None
        assert (flops, model) == (work.flops, work.model)
    assert whole == (attention(given(shape, shape, shape), FLASH) or (0, 0, 0))[2]
    backward = attention(given(*[shape] * 4, concrete=arguments({11: "True"}, 15)), FLASH_BACKWARD)
    assert (whole * 5 // 4, "causal_attention_backward") == (backward and backward.flops, backward and backward.model)


def test_several_query_heads_may_share_keys_and_values() -> None:
    """8 heads of queries on 2 of keys: as many operations as with 8 and 8, but less to read."""
    forms = FORMS["aten::_flash_attention_forward"], FORMS["flash_attn::_flash_attn_forward"]
    for form in forms:
        shared = attention(given((1, 16, 8, 4), (1, 16, 2, 4), (1, 16, 2, 4)), form)
        own = attention(given(*[(1, 16, 8, 4)] * 3), form)
        assert shared is not None
        assert own is not None
        assert (4 * 8 * 16 * 16 * 4, own.flops) == (shared.flops, shared.flops)
        assert 4 * 2 * 16 * 6 * 4 == own.bytes - shared.bytes


@pytest.mark.parametrize(
    ("name", "shapes", "positions"),
    [
        ("aten::_scaled_dot_product_flash_attention", [(1, 2, 5, 4), (1, 2, 9, 4), (1, 2, 9, 4)], {4: "True"}),
        ("aten::_scaled_dot_product_flash_attention", [(1, 2, 5, 4), (1, 2, 5, 8), (1, 2, 5, 4)], {4: "False"}),
        ("aten::_scaled_dot_product_flash_attention", [(1, 3, 5, 4), (1, 2, 5, 4), (1, 2, 5, 4)], {4: "False"}),
        ("aten::_scaled_dot_product_flash_attention", [(1, 2, 5, 4)] * 3, {4: "0.125"}),
        ("aten::_flash_attention_forward", [(10, 2, 4)] * 3, {8: "False"}),
        ("aten::_flash_attention_forward", [(1, 5, 2, 4)] * 3, {8: "False", 11: "128"}),
        ("aten::_efficient_attention_forward", [(1, 10, 2, 4)] * 3 + [(), (3,), (3,)], {9: "0"}),
        ("aten::scaled_dot_product_attention", [(1, 2, 5, 4)] * 2, {5: "False"}),
    ],
)
def test_attention_that_the_shapes_do_not_tell(
    name: str, shapes: list[tuple[int, ...]], positions: dict[int, object]
) -> None:
    """Causal but not square, widths or heads that do not fit, no flag, packed lengths, a window, no values."""
    assert attention(given(*shapes, concrete=arguments(positions, 15)), FORMS[name]) is None


def test_kinds_of_mask_given_as_a_number() -> None:
    """CUTLASS has 0 for none, 1 and 2 for the two causal ones."""
    form = FORMS["aten::_efficient_attention_forward"]
    found = [attention(given(*[(1, 5, 2, 4)] * 3, concrete=arguments({9: kind}, 14)), form) for kind in (0, 1, 2)]
    assert ["attention", "causal_attention", "causal_attention"] == [work.model for work in found if work]

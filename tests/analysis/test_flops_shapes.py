"""What operators do, from the shapes of their operands."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from perfkit.analysis.flops.shapes import (
    FORMS,
    PLACES,
    Inputs,
    Work,
    attention,
    convolution,
    convolution_gradients,
    copied,
    elementwise,
    embedding,
    gemm,
    parsed,
)

FLASH = FORMS["aten::_scaled_dot_product_flash_attention"]
FLASH_BACKWARD = FORMS["aten::_scaled_dot_product_flash_attention_backward"]
CONVOLUTION = PLACES["aten::convolution"]


def test_text_that_holds_no_shapes() -> None:
    deep, long, endless = "[" * 10_000, '["' + "x" * 30_000 + '"]', "[" + "9" * 5_000 + "]"
    for text in (None, float("nan"), "", "{}", "[[8,4]", "7", deep, long, endless):
        found = parsed(text)
        assert found is None or found.tensor(0) is None
    # A size that is negative, broken, a truth value, text, a list, or more elements than there is memory.
    for size in ("-1", "1.5", "true", "null", '"8"', "[8]", "NaN", "1e400", "9007199254740994"):
        sized = parsed(f"[[{size},2],[4]]", '["float","float"]')
        assert sized is not None
        assert (True, False) == (sized.tensor(0) is None, sized.tensor(1) is None), size


def given(
    *shapes: tuple[int, ...], dtype: str = "float", concrete: tuple[str, ...] | None = None
) -> Inputs:
    return Inputs(shapes, (dtype,) * len(shapes), concrete)


def known(work: Work | None) -> Work:
    assert work is not None
    return work


def test_the_products_of_the_definitions() -> None:
    # MLP 784-256-128-10, batch 128: 2 x 128 x 234,752 = 60,096,512 FLOP.
    square = known(gemm(given((4096, 4096), (4096, 4096), dtype="c10::Half")))
    row = known(gemm(given((1, 4096), (4096, 4096), dtype="c10::BFloat16")))
    assert (2 * 4096**3, 1365.33) == (square.flops, round(2 * 4096**3 / square.bytes, 2))
    assert (2 * 4096**2, 0.9995) == (row.flops, round(2 * 4096**2 / row.bytes, 4))
    layers = [
        gemm(given((128, a), (b, a), (b,)), added=2, turned=True)
        for a, b in ((784, 256), (256, 128), (128, 10))
    ]
    assert 60_096_512 == sum(known(layer).flops or 0 for layer in layers)


def test_a_product_has_the_shape_that_numpy_gives_it() -> None:
    plain = ((4, 3), (3, 5)), ((3,), (3, 5)), ((4, 3), (3,)), ((3,), (3,))
    pairs = *plain, ((7, 4, 3), (7, 3, 5)), ((2, 1, 4, 3), (6, 3, 5))
    for left, right in pairs:
        out = np.matmul(np.ones(left), np.ones(right))
        moved = 4 * (math.prod(left) + math.prod(right) + out.size)
        assert ("gemm", "fp32", 2 * out.size * left[-1], moved) == gemm(given(left, right))


def test_what_is_no_product_has_no_model() -> None:
    pair = (4, 3), (3, 5)
    for inputs in (
        *(given(*shapes) for shapes in ([(4, 3), (4, 5)], [(4, 3)], [(2, 4, 3), (5, 3, 6)])),
        *(given(*pair, dtype=dtype) for dtype in ("c10::complex<float>", "long int")),
        Inputs(((), ()), ("float", "float")),
    ):
        assert gemm(inputs) is None
    # Bytes need a type.
    work = known(gemm(Inputs(pair, ())))
    assert (120, "") == (work.flops, work.dtype)
    assert math.isnan(work.bytes)
    assert math.isnan(known(gemm(given(*pair), result="unknown")).bytes)
    # (2 x 3)(3 x 4) + row of 4, which is read: 48 FLOP without the additions; 6 + 12 + 8 + 4 elements of 8 bytes.
    assert ("gemm", "fp64", 48, 240) == gemm(
        given((4,), (2, 3), (3, 4), dtype="double"), first=1, added=0
    )


def test_elementwise_operators_have_bytes_alone() -> None:
    scaled = Inputs(((12,), (), ()), ("c10::BFloat16", "double", "Scalar"))
    looked_up = Inputs(((49_408, 768), (4, 5)), ("c10::BFloat16", "long int"))
    assert ("elementwise", "fp32", None, 4 * (8 + 4 + 32)) == elementwise(given((8, 1), (4,)))
    assert ("elementwise", "bf16", None, 12 * 2 * 2) == elementwise(scaled)
    assert ("elementwise", "fp16", None, 6 * 4 + 6 * 2) == copied(
        Inputs(((2, 3), (6,)), ("c10::Half", "float"))
    )
    # 20 numbers of 8 bytes, 20 rows of 768 x 2 bytes read and written, whatever the size of the table.
    assert ("embedding", "bf16", None, 20 * 8 + 2 * 20 * 768 * 2) == embedding(looked_up)
    for inputs in (
        Inputs(((8,), (8,)), ("float", "c10::Half")),
        given((8, 2), (4,)),
        Inputs(((),), ("Scalar",)),
    ):
        assert elementwise(inputs) is None
    assert (None, None) == (copied(given((2, 3))), embedding(given((49_408, 768))))


def arguments(positions: dict[int, object], count: int) -> tuple[str, ...]:
    return tuple(str(positions.get(position, "")) for position in range(count))


@pytest.mark.parametrize(("queries", "keys", "width", "deep"), [(8, 8, 4, 4), (5, 9, 4, 6)])
def test_attention_is_its_products(queries: int, keys: int, width: int, deep: int) -> None:
    q, k, v = (2, 3, queries, width), (2, 3, keys, width), (2, 3, keys, deep)
    scores, out = (2, 3, queries, keys), (2, 3, queries, deep)

    def product(left: tuple[int, ...], right: tuple[int, ...]) -> int:
        return known(gemm(given(left, right))).flops or 0

    def turned(shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:2], shape[3], shape[2])

    forward = product(q, turned(k)) + product(scores, v)
    of_values = product(out, turned(v)) + product(turned(scores), out)
    backward = product(q, turned(k)) + of_values + product(scores, k) + product(turned(q), scores)
    moved = 4 * sum(math.prod(shape) for shape in (q, k, v, out))
    assert ("attention", "fp32", forward, moved) == attention(given(q, k, v), FLASH)
    assert ("attention_backward", "fp32", backward, 2 * moved) == attention(
        given(out, q, k, v), FLASH_BACKWARD
    )


def test_a_causal_mask_halves_where_it_is_known() -> None:
    shape, whole = (2, 3, 8, 4), 4 * 2 * 3 * 8 * 8 * 4
    causal, none = (arguments({3: "0.", 4: flag, 5: "False"}, 7) for flag in ("True", "False"))
    unmasked = [(of, whole, "attention") for of in (none, None)]
    for recorded, flops, model in ((causal, whole // 2, "causal_attention"), *unmasked):
        work = known(attention(given(shape, shape, shape, concrete=recorded), FLASH))
        assert (flops, model) == (work.flops, work.model)
    work = known(
        attention(given(*[shape] * 4, concrete=arguments({11: "True"}, 15)), FLASH_BACKWARD)
    )
    assert (whole * 5 // 4, "causal_attention_backward") == (work.flops, work.model)
    # CUTLASS has 0 for none, 1 and 2 for the two causal ones.
    form = FORMS["aten::_efficient_attention_forward"]
    found = [
        attention(given(*[(1, 5, 2, 4)] * 3, concrete=arguments({9: kind}, 14)), form)
        for kind in (0, 1, 2)
    ]
    assert ["attention", "causal_attention", "causal_attention"] == [
        known(work).model for work in found
    ]
    # Several query heads may share keys and values.
    for form in (FORMS["aten::_flash_attention_forward"], FORMS["flash_attn::_flash_attn_forward"]):
        shared = known(attention(given((1, 16, 8, 4), (1, 16, 2, 4), (1, 16, 2, 4)), form))
        own = known(attention(given(*[(1, 16, 8, 4)] * 3), form))
        assert (4 * 8 * 16 * 16 * 4, own.flops) == (shared.flops, shared.flops)
        assert 4 * 2 * 16 * 6 * 4 == own.bytes - shared.bytes


@pytest.mark.parametrize(
    ("name", "shapes", "positions"),
    [
        (
            "_scaled_dot_product_flash_attention",
            [(1, 2, 5, 4), (1, 2, 9, 4), (1, 2, 9, 4)],
            {4: "True"},
        ),
        (
            "_scaled_dot_product_flash_attention",
            [(1, 2, 5, 4), (1, 2, 5, 8), (1, 2, 5, 4)],
            {4: "False"},
        ),
        ("_scaled_dot_product_flash_attention", [(1, 2, 5, 4)] * 3, {4: "0.125"}),
        ("_flash_attention_forward", [(10, 2, 4)] * 3, {8: "False"}),
        ("_flash_attention_forward", [(1, 5, 2, 4)] * 3, {8: "False", 11: "128"}),
        ("_efficient_attention_forward", [(1, 10, 2, 4)] * 3 + [(), (3,), (3,)], {9: "0"}),
        ("scaled_dot_product_attention", [(1, 2, 5, 4)] * 2, {5: "False"}),
    ],
)
def test_attention_that_the_shapes_do_not_tell(
    name: str, shapes: Any, positions: dict[int, object]
) -> None:
    assert (
        attention(given(*shapes, concrete=arguments(positions, 15)), FORMS[f"aten::{name}"]) is None
    )


def looped(
    image: tuple[int, ...], filters: tuple[int, ...], stride: int, padding: int, dilation: int
) -> int:
    """Multiplications and additions of a two-dimensional convolution, one loop per index; padding counts."""
    count = 0
    for row in range(-padding, image[2] + padding - dilation * (filters[2] - 1), stride):
        for column in range(-padding, image[3] + padding - dilation * (filters[3] - 1), stride):
            taps = itertools.product(range(filters[2]), range(filters[3]))
            inside = [(row + dilation * r, column + dilation * s) for r, s in taps]
            assert all(r < image[2] + padding and s < image[3] + padding for r, s in inside)
            count += 2 * len(inside)
    return image[0] * filters[0] * filters[1] * count


@pytest.mark.parametrize("seed", range(12))
def test_a_convolution_against_loops(seed: int) -> None:
    random = np.random.default_rng(seed)
    batch, inner, outer, groups, stride = random.integers(1, 4, 5).tolist()
    padding, dilation, *reach = random.integers([0, 1, 1, 2], [2, 3, 3, 4]).tolist()
    image = (batch, inner * groups, *random.integers(7, 12, 2).tolist())
    filters = (outer * groups, inner, *reach)
    recorded = arguments(
        {3: [stride] * 2, 4: [padding] * 2, 5: [dilation] * 2, 6: False, 7: [0, 0], 8: groups}, 9
    )
    work = known(convolution(given(image, filters, concrete=recorded), CONVOLUTION))
    assert looped(image, filters, stride, padding, dilation) == work.flops


def test_the_first_convolution_of_resnet() -> None:
    # 7 x 7, stride 2, padding 3 on 224 x 224: 112 x 112 x 64 x 3 x 49 x 2 = 236,027,904 FLOP per image.
    images, filters = (10, 3, 224, 224), (64, 3, 7, 7)
    recorded = arguments(
        {3: "[2, 2]", 4: "[3, 3]", 5: "[1, 1]", 6: "False", 7: "[0, 0]", 8: "1"}, 9
    )
    swapped = arguments({3: "[3, 3]", 4: "[2, 2]", 5: "[1, 1]", 6: "1", 7: "False", 8: "False"}, 9)
    moved = 2 * (math.prod(images) + math.prod(filters) + 10 * 64 * 112 * 112)
    for name, order in (("aten::convolution", recorded), ("aten::miopen_convolution", swapped)):
        work = convolution(
            given(images, filters, dtype="c10::BFloat16", concrete=order), PLACES[name]
        )
        assert ("convolution", "bf16", 2_360_279_040, moved) == work
    # Transposed, per element of the input one product with (2, 4); (5 - 1) 2 - 2 + 3 + 1 + 1 = 11 outputs.
    recorded = arguments({3: "[2]", 4: "[1]", 5: "[1]", 6: "True", 7: "[1]", 8: "1"}, 9)
    work = convolution(given((1, 3, 5), (3, 2, 4), concrete=recorded), CONVOLUTION)
    assert ("convolution", "fp32", 2 * 15 * 8, 4 * (15 + 24 + 2 * 11)) == work


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("wanted", "count"), [("[True, True, False]", 2), ("[False, True, True]", 1)]
)
def test_a_gradient_costs_as_much_as_the_convolution(
    transposed: bool, wanted: str, count: int
) -> None:
    image, filters, gradient = (2, 6, 9), (6, 2, 3), (2, 6, 11 if transposed else 7)
    shared = {3: "[1]", 4: "[0]", 5: "[1]", 6: str(transposed), 7: "[0]", 8: "3"}
    forward = known(convolution(given(image, filters, concrete=arguments(shared, 9)), CONVOLUTION))
    backward = arguments({at + 1: text for at, text in shared.items()} | {10: wanted}, 11)
    work = convolution_gradients(given(gradient, image, filters, concrete=backward))
    moved = 4 * (math.prod(gradient) + count * (math.prod(image) + math.prod(filters)))
    assert ("convolution_backward", "fp32", count * (forward.flops or 0), moved) == work


def test_without_its_arguments_a_convolution_has_no_model() -> None:
    usual, both = (
        {3: "[1]", 4: "[1]", 5: "[1]", 6: "False", 7: "[0]", 8: "1"},
        ((1, 3, 8), (5, 3, 3)),
    )
    assert convolution(given(*both, concrete=arguments(usual, 9)), CONVOLUTION) is not None
    missing = {3: "[2, 2]", 5: "[1]", 6: "False", 7: "[0]", 8: "1"}
    # Too many numbers, a stride of 0, no flag, filters wider than the image, too many groups.
    odd = {4: "[1, 1]"}, {3: "[0]"}, {6: "perhaps"}, {5: "[9]"}, {8: "7"}
    for recorded in (None, *(arguments(of, 9) for of in (missing, *(usual | one for one in odd)))):
        assert convolution(given(*both, concrete=recorded), CONVOLUTION) is None, recorded
    assert convolution_gradients(given((1, 5, 8), *both)) is None
    # The bias alone is a sum over the image, and has no model; nor has what was not recorded as a list.
    for wanted in ("[False, False, True]", "perhaps"):
        recorded = arguments(
            {at + 1: text for at, text in usual.items()} | {5: "[0]", 10: wanted}, 11
        )
        assert convolution_gradients(given((1, 5, 6), *both, concrete=recorded)) is None

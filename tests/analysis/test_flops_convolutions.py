"""Operations and bytes of convolutions and their gradients, against counting loops."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from perfkit.analysis.flops.shapes import PLACES, Inputs, convolution, convolution_gradients

CONVOLUTION = PLACES["aten::convolution"]


def given(*shapes: tuple[int, ...], dtype: str = "float", concrete: tuple[str, ...] | None = None) -> Inputs:
    """Tensors of one type, and other arguments."""
    return Inputs(shapes, (dtype,) * len(shapes), concrete)


def arguments(positions: dict[int, object], count: int) -> tuple[str, ...]:
    """Other arguments as the profiler writes them, empty where there are tensors."""
    return tuple(str(positions.get(position, "")) for position in range(count))


def looped(image: tuple[int, ...], filters: tuple[int, ...], stride: int, padding: int, dilation: int) -> int:
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
    """Random sizes, strides, paddings, dilations and groups: as many operations as loops count."""
    random = np.random.default_rng(seed)
    batch, inner, outer, groups, stride = random.integers(1, 4, 5).tolist()
    padding, dilation, *reach = random.integers([0, 1, 1, 2], [2, 3, 3, 4]).tolist()
    image = (batch, inner * groups, *random.integers(7, 12, 2).tolist())
    filters = (outer * groups, inner, *reach)
    recorded = arguments({3: [stride] * 2, 4: [padding] * 2, 5: [dilation] * 2, 6: False, 7: [0, 0], 8: groups}, 9)
    work = convolution(given(image, filters, concrete=recorded), CONVOLUTION)
    assert work is not None
    assert looped(image, filters, stride, padding, dilation) == work.flops


def test_the_first_convolution_of_resnet() -> None:
    """7 x 7, stride 2, padding 3 on 224 x 224: 112 x 112 x 64 x 3 x 49 x 2 = 236,027,904 FLOP per image."""
    images, filters = (10, 3, 224, 224), (64, 3, 7, 7)
    recorded = arguments({3: "[2, 2]", 4: "[3, 3]", 5: "[1, 1]", 6: "False", 7: "[0, 0]", 8: "1"}, 9)
    moved = 2 * (math.prod(images) + math.prod(filters) + 10 * 64 * 112 * 112)
    for name, order in (("aten::convolution", recorded), ("aten::miopen_convolution", ())):
        swapped = order or arguments({3: "[3, 3]", 4: "[2, 2]", 5: "[1, 1]", 6: "1", 7: "False", 8: "False"}, 9)
        work = convolution(given(images, filters, dtype="c10::BFloat16", concrete=swapped), PLACES[name])
        assert ("convolution", "bf16", 2_360_279_040, moved) == work


def test_a_transposed_convolution() -> None:
    """Per element of the input (1, 3, 5) one product with (2, 4): 240 FLOP; (5 - 1) 2 - 2 + 3 + 1 + 1 = 11 outputs."""
    recorded = arguments({3: "[2]", 4: "[1]", 5: "[1]", 6: "True", 7: "[1]", 8: "1"}, 9)
    work = convolution(given((1, 3, 5), (3, 2, 4), concrete=recorded), CONVOLUTION)
    assert ("convolution", "fp32", 2 * 15 * 8, 4 * (15 + 24 + 2 * 11)) == work


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("wanted", "count"), [("[True, True, False]", 2), ("[False, True, True]", 1)])
def test_a_gradient_costs_as_much_as_the_convolution(transposed: bool, wanted: str, count: int) -> None:
    """Of the image and of the filters, wherever they are wanted, grouped or not."""
    image, filters, gradient = (2, 6, 9), (6, 2, 3), (2, 6, 7) if not transposed else (2, 6, 11)
    shared = {3: "[1]", 4: "[0]", 5: "[1]", 6: str(transposed), 7: "[0]", 8: "3"}
    forward = convolution(given(image, filters, concrete=arguments(shared, 9)), CONVOLUTION)
    backward = arguments({at + 1: text for at, text in shared.items()} | {10: wanted}, 11)
    work = convolution_gradients(given(gradient, image, filters, concrete=backward))
    assert forward is not None
    assert forward.flops is not None
    moved = 4 * (math.prod(gradient) + count * (math.prod(image) + math.prod(filters)))
    assert ("convolution_backward", "fp32", count * forward.flops, moved) == work


@pytest.mark.parametrize(
    "positions",
    [
        None,
        {3: "[2, 2]", 5: "[1]", 6: "False", 7: "[0]", 8: "1"},
        {3: "[1]", 4: "[1, 1]", 5: "[1]", 6: "False", 7: "[0]", 8: "1"},
        {3: "[0]", 4: "[1]", 5: "[1]", 6: "False", 7: "[0]", 8: "1"},
        {3: "[1]", 4: "[1]", 5: "[1]", 6: "perhaps", 7: "[0]", 8: "1"},
        {3: "[1]", 4: "[1]", 5: "[9]", 6: "False", 7: "[0]", 8: "1"},
        {3: "[1]", 4: "[1]", 5: "[1]", 6: "False", 7: "[0]", 8: "7"},
    ],
)
def test_without_its_arguments_a_convolution_has_no_model(positions: dict[int, object] | None) -> None:
    """None recorded, one missing, too many, a stride of 0, no flag, filters wider than the image, too many groups."""
    recorded = None if positions is None else arguments(positions, 9)
    assert convolution(given((1, 3, 8), (5, 3, 3), concrete=recorded), CONVOLUTION) is None
    assert convolution_gradients(given((1, 5, 8), (1, 3, 8), (5, 3, 3))) is None


@pytest.mark.parametrize("wanted", ["[False, False, True]", "perhaps"])
def test_gradients_that_are_not_wanted_cost_nothing(wanted: str) -> None:
    """The bias alone is a sum over the image, and has no model; nor has what was not recorded as a list."""
    recorded = arguments({4: "[1]", 5: "[0]", 6: "[1]", 7: "False", 8: "[0]", 9: "1", 10: wanted}, 11)
    assert convolution_gradients(given((1, 5, 6), (1, 3, 8), (5, 3, 3), concrete=recorded)) is None

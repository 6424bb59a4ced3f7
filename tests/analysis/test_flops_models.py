"""Operations and bytes of products and elementwise operators, against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfkit.analysis.flops.shapes import Inputs, copied, elementwise, embedding, gemm


def given(*shapes: tuple[int, ...], dtype: str = "float") -> Inputs:
    """Tensors of one type."""
    return Inputs(shapes, (dtype,) * len(shapes))


def test_the_products_of_the_definitions() -> None:
    """4096^3 in 2 bytes: 2 x 4096^3 FLOP, 1365.33 FLOP/byte; one row of it 0.9995 (definitions, section 9)."""
    square = gemm(given((4096, 4096), (4096, 4096), dtype="c10::Half"))
    row = gemm(given((1, 4096), (4096, 4096), dtype="c10::BFloat16"))
    assert square is not None
    assert row is not None
    assert (2 * 4096**3, 1365.33) == (square.flops, round(2 * 4096**3 / square.bytes, 2))
    assert (2 * 4096**2, 0.9995) == (row.flops, round(2 * 4096**2 / row.bytes, 4))


def test_the_network_of_the_definitions() -> None:
    """MLP 784-256-128-10, batch 128: 2 x 128 x 234,752 = 60,096,512 FLOP."""
    layers = [gemm(given((128, a), (b, a), (b,)), added=2, turned=True) for a, b in ((784, 256), (256, 128), (128, 10))]
    assert 60_096_512 == sum(layer.flops or 0 for layer in layers if layer)


@pytest.mark.parametrize(
    ("left", "right"),
    [((4, 3), (3, 5)), ((7, 4, 3), (7, 3, 5)), ((2, 1, 4, 3), (6, 3, 5)), ((3,), (3, 5)), ((4, 3), (3,)), ((3,), (3,))],
)
def test_a_product_has_the_shape_that_numpy_gives_it(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    """Two FLOP per element of the result and per element of the dimension summed over; all tensors move once."""
    out = np.matmul(np.ones(left), np.ones(right))
    work = gemm(given(left, right))
    assert ("gemm", "fp32", 2 * out.size * left[-1], 4 * (math.prod(left) + math.prod(right) + out.size)) == work


def test_what_is_added_to_a_product_is_read() -> None:
    """(2 x 3)(3 x 4) + row of 4: 48 FLOP without the additions; 6 + 12 + 8 + 4 elements of 8 bytes."""
    assert ("gemm", "fp64", 48, 240) == gemm(given((4,), (2, 3), (3, 4), dtype="double"), first=1, added=0)


@pytest.mark.parametrize(
    "inputs",
    [
        given((4, 3), (4, 5)),
        given((4, 3)),
        given((2, 4, 3), (5, 3, 6)),
        given((4, 3), (3, 5), dtype="c10::complex<float>"),
        given((4, 3), (3, 5), dtype="long int"),
        Inputs(((), ()), ("float", "float")),
    ],
)
def test_what_is_no_product_has_no_model(inputs: Inputs) -> None:
    """Sizes that do not fit, a missing operand, and types whose operations are not FLOP."""
    assert gemm(inputs) is None


def test_bytes_need_a_type() -> None:
    """Operations follow from the shapes alone, bytes do not; an unknown type keeps its name."""
    work = gemm(Inputs(((4, 3), (3, 5)), ()))
    assert work is not None
    assert (120, "") == (work.flops, work.dtype)
    assert math.isnan(work.bytes)
    assert math.isnan((gemm(given((4, 3), (3, 5)), result="unknown") or work).bytes)


def test_elementwise_operators_have_bytes_alone() -> None:
    """An addition of 8 x 1 and 4: 8 + 4 read and 32 written of 4 bytes; of two types none is known."""
    assert ("elementwise", "fp32", None, 176) == elementwise(given((8, 1), (4,)))
    assert ("elementwise", "bf16", None, 12 * 2 * 2) == elementwise(
        Inputs(((12,), (), ()), ("c10::BFloat16", "double", "Scalar"))
    )
    assert elementwise(Inputs(((8,), (8,)), ("float", "c10::Half"))) is None
    assert elementwise(given((8, 2), (4,))) is None
    assert elementwise(Inputs(((),), ("Scalar",))) is None


def test_a_copy_reads_one_type_and_writes_another() -> None:
    """6 elements of 4 bytes into 6 of 2."""
    assert ("elementwise", "fp16", None, 36) == copied(Inputs(((2, 3), (6,)), ("c10::Half", "float")))
    assert copied(given((2, 3))) is None


def test_a_look_up_moves_the_rows_that_are_asked_for() -> None:
    """20 numbers of 8 bytes, 20 rows of 768 x 2 bytes read and written, whatever the size of the table."""
    looked_up = embedding(Inputs(((49_408, 768), (4, 5)), ("c10::BFloat16", "long int")))
    assert ("embedding", "bf16", None, 20 * 8 + 2 * 20 * 768 * 2) == looked_up
    assert embedding(given((49_408, 768))) is None

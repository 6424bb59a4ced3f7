"""Names come from outside: cut, unbalanced, huge or no names at all."""

from __future__ import annotations

import pytest

from perfkit.names import decode
from perfkit.names.families import FAMILIES, LONGEST
from perfkit.names.parsing import base

LENGTH = 10_000


def _filled(start: str, piece: str, end: str = "") -> str:
    return start + piece * (LENGTH // len(piece)) + end


# Each of these is quadratic or worse for a parser or pattern that goes back.
NAMES = [
    *(_filled("", mark) for mark in "<>()[]{}, \n1é\ud800"),
    _filled("", "f<"),
    _filled("", "f<", ">" * (LENGTH // 2)),
    _filled("", "f(", ")" * (LENGTH // 2)),
    _filled("f<", ",", ">"),
    _filled("", "a::"),
    _filled("", "operator<"),
    _filled("", "operator ()"),
    _filled("", "const "),
    _filled("", " [clone ", "]"),
    _filled("", "[lambda("),
    _filled("[lambda(", ") (instance "),
    _filled("f<", "{lambda()#1}::", ">"),
    _filled("f<" + "a" * 39 + ">(", "T1,", ")"),
    _filled("_ZN", "1a"),
    _filled("_ZN", "9"),
    _filled("_ZN6KernelI", "La1"),
    _filled("triton_poi_fused_", "1", "x"),
    _filled("triton_poi_fused", "_cat", "!"),
    _filled("triton_red_fused_", "mean_pow_"),
    _filled("ncclKernel_X", "_NVLS"),
    _filled("flash_fwd_kernel<", "Flash_"),
    _filled("cutlass", "_cudnn", "("),
    _filled("gemm_32x32_", "stages_"),
    _filled("reduce_kernel<1, ", "at::native::ReduceOp<float, ", "x>"),
    _filled("sliced", "1", "x4"),
    _filled("softmax_warp_forward<", "4, ", "4>(int)"),
]


@pytest.mark.parametrize("full_name", NAMES, ids=lambda name: ascii(name[:20]))
def test_ten_thousand_characters(full_name: str) -> None:
    """Nothing raises or hangs, the short name stays short and the family is one of FAMILIES."""
    said = decode(full_name)

    assert 0 < len(said.name) <= LONGEST
    assert said.family in FAMILIES
    assert base(full_name)


def test_same_beginning_different_end() -> None:
    """A difference after 10,000 characters still makes another name."""
    assert decode(NAMES[0] + "a").name != decode(NAMES[0] + "b").name

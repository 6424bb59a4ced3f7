"""Attention that is computed step by step: what it is told from, what it costs, and what is none."""

from __future__ import annotations

import pytest
from diagnosis.traces import BF16, GEMM, US, in_turn, run, unfused_attention, work

from perfkit import diagnosis
from perfkit.diagnosis.finding import Finding
from perfkit.run import Run

PLAIN = {"dtypes": BF16}


def attention(of: Run) -> Finding | None:
    """What is said of attention, None if nothing is."""
    return next((finding for finding in diagnosis.findings(of) if finding.rule == "attention"), None)


def test_attention_gains_its_kernels() -> None:
    """6 of 10 ms of each layer are softmax and its products, back to back: 0.6 of the time, at most 2.5x."""
    told = attention(unfused_attention())
    assert told is not None
    assert "takes 60.0 % of the kernel time" in told.title
    assert (pytest.approx(0.6), pytest.approx(2.5)) == (told.gain.share, told.gain.high)


def test_softmax_without_products_is_no_attention() -> None:
    """A classifier's softmax after linear layers is one kernel: silent; so are products without softmax."""
    assert attention(in_turn(("aten::addmm", 5, GEMM), ("aten::_softmax", 5, PLAIN))) is None
    assert attention(in_turn(("aten::bmm", 5, GEMM), ("aten::_log_softmax", 5, PLAIN), ("aten::bmm", 5, GEMM))) is None


def test_softmax_that_chooses_experts_is_no_attention() -> None:
    """Linear layer, softmax, then the batched products of the experts, twice: no product comes before a softmax."""
    layer = ("aten::addmm", 2, GEMM), ("aten::_softmax", 3, PLAIN), *[("aten::bmm", 3, GEMM)] * 2
    assert attention(in_turn(*layer, *layer)) is None


def test_ranks_are_looked_at_alone() -> None:
    """A product on one rank, softmax and product on the next: no softmax comes between products of one GPU."""
    works = [
        work("aten::bmm", US, 10 * US, 50 * US, **GEMM),
        work("aten::_softmax", US, 10 * US, 50 * US, rank=1, **PLAIN),
        work("aten::bmm", 5 * US, 60 * US, 50 * US, rank=1, **GEMM),
    ]
    assert attention(run(*works)) is None


def test_fused_attention_is_not_step_by_step() -> None:
    """Where a fused kernel ran, products and softmax beside it are something else."""
    fused = ("aten::_flash_attention_forward", 1, {"family": "attention", "dtypes": BF16})
    parts = ("aten::bmm", 5, GEMM), ("aten::_softmax", 5, PLAIN), ("aten::baddbmm", 5, GEMM)
    assert attention(in_turn(*parts)) is not None
    assert attention(in_turn(*parts, fused)) is None


def test_backward_of_attention_counts() -> None:
    """Gradients of softmax and of its four products are steps too, the linear layer after them is not: 8 of 10 ms."""
    product, softmax = ("aten::bmm", 1, GEMM), ("aten::_softmax_backward_data", 4, PLAIN)
    told = attention(in_turn(product, product, softmax, product, product, ("aten::mm", 2, GEMM)))
    assert told is not None
    assert 0.8 == pytest.approx(told.gain.share)


def test_little_attention_is_not_told() -> None:
    """3 of 43 ms are its steps: silent."""
    steps = ("aten::bmm", 1, GEMM), ("aten::_softmax", 1, PLAIN), ("aten::bmm", 1, GEMM)
    assert attention(in_turn(*steps, ("aten::addmm", 40, GEMM))) is None

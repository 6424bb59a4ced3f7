"""Operations counted from shapes, and their share of the peak, on planted tables; each by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from diagnosis.traces import GEMM, MS, US, devices, run, work

import perfkit
from perfkit import diagnosis
from perfkit.run import Run

MATRIX = {**GEMM, "shapes": "[[8192,8192],[8192,8192]]"}


def values(of: Run | perfkit.Selection, **options: Any) -> dict[str, float]:
    """The figures' values by id."""
    return {i: figure.value for i, figure in diagnosis.figures(of, **options).items()}


def one_product(name: str) -> Run:
    """A product of two matrices of 8192 x 8192 in bf16, 2 * 8192^3 FLOP in 10 ms, and 10 ms of elementwise work."""
    rest = work("aten::add", 5 * US, 10 * MS + 10 * US, 10 * MS, family="elementwise")
    return run(work("aten::mm", US, 10 * US, 10 * MS, **MATRIX), rest, devices=devices(name))


def test_arithmetic_from_shapes() -> None:
    """2 * 8192^3 FLOP of 20 ms, half of them modelled; over 312e12 FLOP/s of an A100's data sheet: 0.176."""
    found = values(one_product("NVIDIA A100-SXM4-80GB"))
    assert (2 * 8192**3, 0.5) == (found["model_flops"], found["model_coverage_frac"])
    assert 2 * 8192**3 / (0.02 * 312e12) == pytest.approx(found["shape_flops_frac"], rel=1e-12)


def test_peaks_of_ones_own(tmp_path: Path) -> None:
    """With 100 TFLOP/s in the file for this GPU: 2 * 8192^3 / (0.02 * 100e12)."""
    path = tmp_path / "peaks.csv"
    path.write_text("name_nvidia_smi,bf16_tensor_tflops\nmine,100\n")
    found = values(one_product("mine"), peaks=str(path))
    assert 2 * 8192**3 / (0.02 * 100e12) == pytest.approx(found["shape_flops_frac"], rel=1e-12)


@pytest.mark.parametrize("tflops", ["40", ""])
def test_impossible_or_unknown_peaks_give_no_utilisation(tmp_path: Path, tflops: str) -> None:
    """55 TFLOP/s are more than a peak of 40, which is then not that of what ran; and an empty cell is no peak."""
    path = tmp_path / "peaks.csv"
    path.write_text(f"name_nvidia_smi,bf16_tensor_tflops,fp32_tflops\nmine,{tflops},500\n")
    assert "shape_flops_frac" not in values(one_product("mine"), peaks=str(path))
    assert "shape_flops_frac" not in values(one_product("mine"))


def test_utilisation_needs_most_of_the_matrix_work() -> None:
    """10 ms of products have shapes, 30 ms have none: the bound would say nothing, while the operations are counted."""
    unknown = work("aten::mm", 5 * US, 11 * MS, 30 * MS, **GEMM)
    known = work("aten::mm", US, 10 * US, 10 * MS, **MATRIX)
    found = values(run(known, unknown, devices=devices("NVIDIA A100-SXM4-80GB")))
    assert 0.25 == found["model_coverage_frac"]
    assert "shape_flops_frac" not in found


def test_different_gpus_have_no_common_peak() -> None:
    """Two ranks on two kinds of GPU: neither peak holds for both."""
    works = [work("aten::mm", US, 10 * US, 10 * MS, rank=rank, **MATRIX) for rank in (0, 1)]
    both = devices("NVIDIA A100-SXM4-80GB", ranks=2)
    mixed = both.assign(name=["NVIDIA A100-SXM4-80GB", "Tesla T4"])
    assert "shape_flops_frac" in values(run(*works, devices=both))
    assert "shape_flops_frac" not in values(run(*works, devices=mixed))


def test_utilisation_of_two_ranks_is_over_both_spans() -> None:
    """One rank is done in 10 ms, the other in 30: 2 * 2 * 8192^3 FLOP over 40 ms of an A100."""
    works = [work("aten::mm", US, 10 * US, (10 + 20 * rank) * MS, rank=rank, **MATRIX) for rank in (0, 1)]
    found = values(run(*works, devices=devices("NVIDIA A100-SXM4-80GB", ranks=2)))
    assert 4 * 8192**3 / (0.04 * 312e12) == pytest.approx(found["shape_flops_frac"], rel=1e-12)


def test_a_window_cuts_kernels() -> None:
    """In 15 ms from the product's start it has 10 ms and the rest 5: two thirds; where only the rest runs, nothing."""
    found = values(perfkit.select(one_product("x"), window=(10 * US, 15 * MS + 10 * US)))
    assert 2 / 3 == pytest.approx(found["model_coverage_frac"])
    assert "model_flops" not in values(perfkit.select(one_product("x"), window=(15 * MS, 20 * MS)))

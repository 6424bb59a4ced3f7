"""Steps of simulated captures: as many and as long as were simulated, with ranges and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import perfkit
from make import Shape, capture, mlp_a100
from perfkit.analysis.steps import detect, steady
from perfkit.tables import RANGES

SHAPES = {
    "plain": Shape(),
    "three streams with NCCL": Shape(streams=3, nccl=True),
    "CUDA graphs": Shape(graph=True),
    "20 kernels a step": Shape(kernels_per_step=20),
    "five kernels a step": Shape(kernels_per_step=5),
    "hostile names": Shape(open_ranges=True, hostile_names=("<i>", "<b>epoch</b>", "", "aten::mm")),
}


@pytest.fixture(params=SHAPES)
def simulated(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[perfkit.Run, dict[str, Any]]:
    """A capture of 40 steps, and what is true of it."""
    shape = SHAPES[request.param]
    path = tmp_path / "run.sqlite"
    truth = capture(path, kernels=40 * shape.kernels_per_step, shape=shape)
    return perfkit.load(path), truth


def test_named_steps(simulated: tuple[perfkit.Run, dict[str, Any]]) -> None:
    """Ranges called step are found, each with its length."""
    run, truth = simulated
    found = detect(run.ranges, run.kernels)
    assert found["how"].unique().tolist() == ["nvtx"]
    assert len(found) == truth["steps"]["count"]
    assert found["name"].tolist() == [f"step {i}" for i in range(len(found))]


def test_steps_from_kernels(simulated: tuple[perfkit.Run, dict[str, Any]]) -> None:
    """Without ranges as many steps are found, and each kernel step starts within the range of its step."""
    run, truth = simulated
    named = detect(run.ranges, run.kernels)
    found = detect(RANGES.empty(), run.kernels)
    assert found["how"].unique().tolist() == ["kernel sequence"]
    assert len(found) == truth["steps"]["count"]
    inside = found["start_ns"].between(named["start_ns"], named["start_ns"] + named["dur_ns"])
    assert inside.all()


def test_two_processes(tmp_path: Path) -> None:
    """Of two processes in one capture the steps of one are found."""
    path = tmp_path / "run.sqlite"
    truth = capture(path, kernels=28 * 40, shape=Shape(gpus=2, processes=2))
    run = perfkit.load(path)
    assert truth["steps"]["count"] == 40
    assert [20, 20] == [len(detect(ranges, run.kernels)) for ranges in (run.ranges, RANGES.empty())]


def test_epoch_of_training(tmp_path: Path) -> None:
    """469 training steps, of which the first two warm up; 79 test batches after them are none of them."""
    run = perfkit.load(mlp_a100(tmp_path / "mlp"))
    named = detect(run.ranges, run.kernels)
    found = detect(RANGES.empty(), run.kernels)
    assert (469, 469) == (len(named), len(found))
    assert steady(named)["step"].tolist() == list(range(2, 469))
    # A step of kernels begins with its first kernel, after the host has loaded the data.
    late = found["start_ns"] - named["start_ns"]
    assert late.between(0, named["dur_ns"]).all()
    pd.testing.assert_series_equal(found["step"], named["step"])

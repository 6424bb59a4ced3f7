"""Layers: what repeats inside one pass through the model is no step."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import api_calls, kernels, lasting, python_calls, ranges, tuples

import perfkit
from perfkit import diagnosis, select
from perfkit.analysis import steps
from perfkit.analysis.layers import are_layers, passes
from perfkit.diagnosis.headline import headline
from perfkit.tables import RANGES

LAYER = ["gemm", "softmax", "norm"]
CALL = {"process": 1, "thread": 1}


def launched(
    blocks: int, *, at: int = 0, apart: int = 100, late: int = 0
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """KERNELS of equal blocks of three kernels, `late` ns after API_CALLS that launched them, both from `at` ns on."""
    starts = [at + apart * block + 10 * i for block in range(blocks) for i in range(len(LAYER))]
    names = LAYER * blocks
    calls = [lasting(start, 3, correlation=i, **CALL) for i, start in enumerate(starts)]
    work = [
        lasting(start + 5 + late, 5, name, correlation=i, process=1)
        for i, (start, name) in enumerate(zip(starts, names, strict=True))
    ]
    return kernels(*work), api_calls(*calls)


def modules(*spans: tuple[int, int, str]) -> pd.DataFrame:
    return python_calls(*(lasting(start, dur, name, **CALL) for start, dur, name in spans))


def found(blocks: int, *, late: int = 0, spans: pd.DataFrame | None = None, **more: Any) -> int:
    work, calls = launched(blocks, late=late)
    table = RANGES.empty() if spans is None else spans
    return len(steps.detect(table, work, api_calls=calls, **more))


def test_equal_blocks_without_a_pass_around_them_are_steps() -> None:
    assert found(10) == 10


def test_blocks_inside_one_call_of_a_module_are_layers() -> None:
    assert found(10, python_calls=modules((0, 1000, "nn.Module: Model_0"))) == 0


def test_blocks_each_in_a_call_of_its_own_are_steps() -> None:
    each = modules(*((100 * i, 90, f"nn.Module: Model_{i}") for i in range(10)))
    assert found(10, python_calls=each) == 10


def test_a_module_inside_another_is_no_pass_of_its_own() -> None:
    blocks = [(100 * i + 1, 90, f"nn.Module: Block_{i}") for i in range(10)]
    assert found(10, python_calls=modules((0, 1000, "nn.Module: Model_0"), *blocks)) == 0


def test_a_python_function_around_the_loop_is_no_pass() -> None:
    assert found(10, python_calls=modules((0, 1000, "train.py(3): main"))) == 10


def test_blocks_are_layers_by_when_the_cpu_launched_them_not_by_when_they_ran() -> None:
    # The call returns at 1000 ns, the first kernel starts at 5005.
    assert found(10, late=5000, python_calls=modules((0, 1000, "nn.Module: Model_0"))) == 0


def test_replays_after_the_call_of_a_module_are_steps() -> None:
    assert found(10, python_calls=modules((0, 90, "nn.Module: Model_0"))) == 10


@pytest.mark.parametrize(
    "name",
    ["forward", "step 5", "prefill", "execute_context_1(888_788544)_generation_0(0)"],
)
def test_blocks_inside_one_range_of_a_pass_are_layers(name: str) -> None:
    assert found(10, spans=ranges(lasting(0, 1000, name, **CALL))) == 0


@pytest.mark.parametrize("name", ["main", "epoch 3", "training loop", "100 steps", "generate"])
def test_blocks_inside_one_range_of_a_loop_are_steps(name: str) -> None:
    assert found(10, spans=ranges(lasting(0, 1000, name, **CALL))) == 10


def test_ranges_of_operators_are_no_steps() -> None:
    spans = ranges(*(lasting(10 * i, 4, f"detach_, op_id = {i}") for i in range(17)))
    assert steps.iterations(spans, np.zeros(0, np.int64)).empty


def test_ranges_called_layer_are_no_steps() -> None:
    spans = ranges(*(lasting(10 * i, 9, f"layer_{i}") for i in range(17)))
    assert steps.iterations(spans, np.zeros(0, np.int64)).empty


def test_ranges_of_a_library_are_no_steps() -> None:
    spans = ranges(*(lasting(10 * i, 9, "ncclAllReduce") for i in range(17)))
    assert steps.iterations(spans, np.zeros(0, np.int64)).empty


def autograd(*names: str) -> pd.DataFrame:
    return ranges(*(lasting(100 * i, 90, f"{name}, seq = {i}") for i, name in enumerate(names)))


def test_blocks_under_operators_of_autograd_without_a_backward_pass_are_layers() -> None:
    assert found(10, spans=autograd(*["aten::mm"] * 10)) == 0


def test_blocks_under_operators_of_autograd_with_a_backward_pass_are_steps() -> None:
    assert found(10, spans=autograd(*["aten::mm", "MmBackward0"] * 5)) == 10


def test_a_hook_of_fsdp_is_no_backward_pass() -> None:
    assert found(10, spans=autograd(*["aten::mm", "RegisterPostBackwardFunction"] * 5)) == 0


def test_passes_are_told_thread_by_thread() -> None:
    name = "nn.Module: Model_0"
    first = lasting(0, 50, name)
    second = lasting(10, 90, name, thread=2)
    spans = passes(RANGES.empty(), python_calls(first, second))
    assert tuples(spans, "thread", "start_ns", "dur_ns") == [(1, 0, 50), (2, 10, 90)]


def test_two_steps_in_each_of_two_passes_are_layers() -> None:
    spans = pd.DataFrame([lasting(start, 50, **CALL) for start in (0, 100)])
    assert are_layers(np.array([10, 20, 110, 120]), spans)


def test_three_steps_in_two_passes_are_no_layers() -> None:
    spans = pd.DataFrame([lasting(start, 50, **CALL) for start in (0, 100)])
    assert not are_layers(np.array([10, 110, 120]), spans)


@cache
def view_of(profiles: Path, name: str) -> perfkit.Selection:
    return select(perfkit.load(profiles / name))


SWITCH = "torch/CodingPlatelets__SwitchTransformers__trace_8batch.json.gz"
PREFILL = "torch/TraceLens__b200__eager_trace.json.gz"
OPERATORS = "nsys/GindaChen__nsys-ai__mfu_2gpu_before.sqlite"
EIGHT_RANKS = "torch/facebookresearch__param__dlrm_kineto"
ONE_PASS = [SWITCH, PREFILL, OPERATORS]


@pytest.mark.parametrize("name", ONE_PASS)
def test_the_layers_of_one_real_pass_are_no_steps(profiles: Path, name: str) -> None:
    assert view_of(profiles, name).steps.empty


def test_one_step_on_eight_real_ranks_is_one_step(profiles: Path) -> None:
    assert diagnosis.figures(view_of(profiles, EIGHT_RANKS))["step_count"].value == 1


def test_the_first_screen_says_that_one_step_ran_on_eight_real_ranks(profiles: Path) -> None:
    view = view_of(profiles, EIGHT_RANKS)
    tiles = headline(view, diagnosis.figures(view), diagnosis.findings(view)).tiles
    assert "one step on 8 ranks" == next(tile.note for tile in tiles if tile.label == "Step time")

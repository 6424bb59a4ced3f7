"""The calls that launched operations, looked up as the join of the analyses finds them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from frames import api_calls

import perfkit
from perfkit.analysis.causes import started_by
from perfkit.analysis.lanes import Launching

SAMPLE = Path(__file__).parents[2] / "data" / "mlp_a100"


def test_launching_calls_agree_with_the_analysis() -> None:
    """The sample's kernels and copies: the call that `analysis.causes.started_by` finds, for every one."""
    run = perfkit.load(SAMPLE)
    index = Launching(run.api_calls)
    for operations in (run.kernels, run.copies):
        keys = [operations[column].to_numpy() for column in ("rank", "process", "correlation")]
        assert started_by(operations, run.api_calls).tolist() == index.rows(*keys).tolist()


def test_a_call_by_hand() -> None:
    """Id 7 of process 1 stands twice: the first counts; process 2 has its own 7; 9 is not there, and -1 is nobody's."""
    calls = api_calls(
        {"process": 1, "start_ns": 0, "dur_ns": 5, "correlation": 8, "name": "later"},
        {"process": 1, "start_ns": 10, "dur_ns": 5, "correlation": 7, "name": "first"},
        {"process": 1, "start_ns": 20, "dur_ns": 5, "correlation": 7, "name": "again"},
        {"process": 1, "start_ns": 30, "dur_ns": 5, "correlation": -1, "name": "none"},
        {"process": 2, "start_ns": 0, "dur_ns": 6, "correlation": 7, "name": "other"},
    )
    process, correlation = np.array([1, 2, 1, 1, 3]), np.array([7, 7, 9, -1, 7])
    found = Launching(calls).of(np.zeros(5, np.int32), process, correlation)
    assert ["first", "other", None, None, None] == found["call"].tolist()
    assert [10, 0] == found["call_start_ns"][:2].tolist()
    assert [5, 6] == found["call_dur_ns"][:2].tolist()
    assert found["call_start_ns"][2:].isna().all()

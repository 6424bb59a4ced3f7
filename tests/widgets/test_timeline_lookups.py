"""What the timeline looks up at once agrees with what analyses find in seconds."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import perfkit
from perfkit.analysis import dossier
from perfkit.analysis.calls import started_by
from perfkit.analysis.lanes import Lanes
from perfkit.selection import select
from perfkit.widgets.timeline.clicked import Dossiers
from perfkit.widgets.timeline.launching import Launching
from perfkit.widgets.timeline.spans import Spans

SAMPLE = Path(__file__).parents[2] / "data" / "mlp_a100"


def brute(frame: pd.DataFrame, group: Any, count: int, edges: Any) -> tuple[list[list[int]], list[list[int]]]:
    """Rows that touch each bin, and the ns in which any ran, one ns at a time."""
    ran = np.zeros((count, edges[-1]), bool)
    touched = [[0] * (len(edges) - 1) for _ in range(count)]
    for start, dur, of in zip(frame["start_ns"], frame["dur_ns"], group, strict=True):
        ran[of, start : start + dur] = True
        for at, (low, high) in enumerate(pairwise(edges)):
            touched[of][at] += start < high and (start + dur > low or start >= low)
    sums = [[int(ran[of, low:high].sum()) for low, high in pairwise(edges)] for of in range(count)]
    return touched, sums


@pytest.mark.parametrize("seed", range(5))
def test_spans_agree_with_counting(seed: int) -> None:
    """Nested and overlapping rows, some of 0 ns, in any order and an empty group: as counted ns by ns."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"start_ns": rng.integers(0, 180, 60), "dur_ns": rng.integers(0, 20, 60)})
    group, edges = rng.integers(0, 3, 60), np.array([0, 1, 50, 120, 200])
    spans = Spans(frame, group, 4)
    touched, sums = brute(frame, group, 4, edges)
    assert sums == spans.busy(edges).tolist()
    windows = list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
    assert touched == np.stack([spans.count(window) for window in windows], axis=1).tolist()
    listed = [spans.rows(window, np.ones(4, bool)) for window in windows]
    assert touched == np.stack([np.bincount(of, minlength=4) for _, of in listed], axis=1).tolist()
    assert all((group[row] == of).all() for row, of in listed)
    assert [sum(part) for part in sums] == spans.total.tolist()


def test_launching_calls_agree_with_the_analysis() -> None:
    """The sample's kernels and copies: the call that `analysis.calls.started_by` finds, for every one."""
    run = perfkit.load(SAMPLE)
    index = Launching(run.api_calls)
    for operations in (run.kernels, run.copies):
        keys = [operations[column].to_numpy() for column in ("rank", "process", "correlation")]
        assert started_by(operations, run.api_calls).tolist() == index.rows(*keys).tolist()


def test_dossiers_agree_with_the_analysis() -> None:
    """Every sixth kernel of the sample alone, counters, operator and all: its row of the dossier of all kernels."""
    run = perfkit.load(SAMPLE)
    seen, lanes = select(run), Lanes(run.kernels, run.copies)
    traced = seen.framework
    whole = dossier.kernels(
        *(seen.kernels, seen.launches, seen.stalls, traced.ops, run.calltree, run.call_metrics),
        devices=seen.devices,
        traced=traced.kernels,
        api_calls=traced.api_calls,
        python_calls=traced.python_calls,
    )
    names = whole["name"].tolist()[::6]
    one = Dossiers(run, lanes, Launching(run.api_calls))
    found = [one.of(name, seen, lanes.span) for name in names]
    kept = whole[whole["name"].isin(names)].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, pd.concat(found, ignore_index=True))

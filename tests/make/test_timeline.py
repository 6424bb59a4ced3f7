"""Laying out steps in time."""

from __future__ import annotations

import numpy as np

from make import mlp_run, timeline
from make.timeline import Op, Times, lay_out


def _times(*rows: tuple[int, int, int, int]) -> Times:
    return Times(*(np.array([column], np.int64).T for column in zip(*rows, strict=True)))


def test_queue_builds_up_worked_by_hand() -> None:
    """Calls end at 20 and 40; the GPU starts at 120, works 1000 ns and needs 900 ns to the next: 2020."""
    plan = (Op("kernel", "relu", "forward"), Op("kernel", "nll", "forward"))
    laid = lay_out(plan, _times((10, 10, 1000, 1000), (10, 10, 100, 50)))
    assert [20, 40] == laid.call_end[:, 0].tolist()
    assert [(1020, 2020), (2920, 2970)] == list(zip(laid.start[:, 0].tolist(), laid.end[:, 0].tolist(), strict=True))
    assert [40] == laid.length.tolist()


def test_copy_back_holds_the_host() -> None:
    """The copy starts half way through its call, at 960 - at the earliest 900 - and the call returns 2500 later."""
    laid = lay_out((Op("copy", "D2H", "item", size=4),), _times((950, 20, 0, 40)))
    assert (960, 1000, 3500) == (laid.start[0, 0], laid.end[0, 0], laid.call_end[0, 0])


def test_graph_nodes_follow_their_launch() -> None:
    """Nodes have no call: both start from the launch, one after the other, the first 30 after its end at 2000."""
    plan = (Op("graph", "step", "replay"), Op("node", "relu", "replay"), Op("node", "nll", "replay"))
    laid = lay_out(plan, _times((0, 2000, 0, 0), (5, 5, 30, 100), (5, 5, 30, 100)))
    assert [0, 2030, 3030] == laid.start[:, 0].tolist()
    assert [2000, 0, 0] == laid.call_end[:, 0].tolist()


def test_training_steps_keep_the_rules() -> None:
    """In random steps work starts after its call, a stream does one thing at a time, and the end is drained."""
    plan = mlp_run.training_plan(first=True)
    rng = np.random.default_rng(11)
    times = timeline.draw_times(plan, 50, timeline.QUICK, rng)
    times.work[:] = rng.integers(500, 60_000, times.work.shape)
    laid = lay_out(plan, times)
    on_gpu = [i for i, op in enumerate(plan) if op.on_gpu]
    kernels = [i for i, op in enumerate(plan) if op.kind == "kernel"]
    assert (laid.start[kernels] >= laid.call_end[kernels]).all()
    assert (laid.start[on_gpu] >= laid.call_start[on_gpu]).all()
    assert (laid.start[on_gpu][1:] >= laid.end[on_gpu][:-1]).all()
    assert (laid.call_start[1:] >= laid.call_end[:-1]).all()
    assert (laid.length >= laid.end.max(axis=0)).all()
    ends = [0, *(int(last[0]) for _, last in laid.phases.values())]
    assert ends[:-1] == [int(first[0]) for first, _ in laid.phases.values()]

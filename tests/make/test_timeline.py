"""Steps in time: how long operations take, how they are laid out, and what time they cover."""

from __future__ import annotations

import numpy as np
import pytest

from make import mlp_run, timeline
from make.kernels import TABLE_5, Kernel
from make.tally import covered, covered_until
from make.timeline import Op, Times, draw_durations, lay_out


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


@pytest.mark.parametrize("kernel", TABLE_5.values(), ids=TABLE_5.keys())
def test_all_figures_of_a_row_hold(kernel: Kernel) -> None:
    """Count, total, median, minimum and maximum are exact for every row of Table 5."""
    drawn = draw_durations(kernel, np.random.default_rng(7))
    expected = (kernel.count, kernel.total_ns, kernel.median_ns, kernel.min_ns, kernel.max_ns)
    assert expected == (len(drawn), drawn.sum(), np.median(drawn), drawn.min(), drawn.max())


def test_four_values_worked_by_hand() -> None:
    """Median 7.5 of four pins 7 and 8; with 4 and 12 at the ends the total can only be 31."""
    kernel = Kernel("k", "k", total_ns=31, count=4, median_ns=7.5, min_ns=4, max_ns=12)
    assert [12, 8, 7, 4] == draw_durations(kernel, np.random.default_rng(0)).tolist()


@pytest.mark.parametrize("total", [30, 32])
def test_impossible_total_raises(total: int) -> None:
    """No four integers have median 7.5, minimum 4, maximum 12 and another total than 31."""
    kernel = Kernel("k", "k", total_ns=total, count=4, median_ns=7.5, min_ns=4, max_ns=12)
    with pytest.raises(ValueError, match=f"k cannot have 4 launches of {total} ns in all"):
        draw_durations(kernel, np.random.default_rng(0))


def test_longest_comes_first() -> None:
    """Durations descend, so that the slowest of a step's launches can take the first ones."""
    drawn = draw_durations(TABLE_5["gemm_tn"], np.random.default_rng(3))
    assert (np.diff(drawn) <= 0).all()


def test_random_intervals_against_a_loop_over_time() -> None:
    """200 overlapping intervals cover the ns that a loop over every ns finds, up to any time."""
    rng = np.random.default_rng(5)
    start = rng.integers(0, 3000, 200)
    end = start + rng.integers(0, 12, 200)
    inside = [any(s <= t < e for s, e in zip(start, end, strict=True)) for t in range(3100)]
    times = np.sort(rng.integers(0, 3100, 50))
    assert [sum(inside[:t]) for t in times] == covered_until(start, end, times).tolist()
    first, last = covered(start, end)
    assert sum(inside) == (last - first).sum()
    assert (first[1:] >= last[:-1]).all()


def test_nothing_covers_nothing() -> None:
    """Without intervals no time is covered."""
    none = np.zeros(0, np.int64)
    assert [0, 0] == covered_until(none, none, np.array([5, 9])).tolist()

"""The longest path through a graph of lags, and runs of operations as one node, against plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from perfkit.analysis.whatif import Chains, inside, runs
from perfkit.analysis.whatif.plan import Edges, moments
from perfkit.analysis.whatif.program import NONE


def edges(*triples: tuple[int, int, int]) -> Edges:
    """Edges from (to, source, lag)."""
    return Edges(*(np.array(column, np.int64) for column in zip(*triples, strict=True)))


def test_the_latest_decides() -> None:
    """Node 2 is 5 after node 0 at 10, or 1 after node 1 at 20: at 21; node 1 has no edge and stays."""
    assert [10, 20, 21] == moments(np.array([10, 20, 30]), np.zeros(3, int), [edges((2, 0, 5), (2, 1, 1))]).tolist()


def test_what_points_back_is_left_out() -> None:
    """Node 0 was before node 1, and cannot wait for it."""
    assert [10, 15] == moments(np.array([10, 20]), np.zeros(2, int), [edges((0, 1, 5), (1, 0, 5))]).tolist()


def test_at_one_time_the_sort_decides() -> None:
    """Of two nodes at 10 the one of lower sort comes first."""
    both = [edges((0, 1, 5)), edges((1, 0, 7))]
    assert [15, 10] == moments(np.array([10, 10]), np.array([1, 0]), both).tolist()
    assert [10, 17] == moments(np.array([10, 10]), np.array([0, 1]), both).tolist()


def test_no_lag_is_no_edge() -> None:
    """A node whose only edge has the lag NONE stays where it was."""
    assert [10, 20] == moments(np.array([10, 20]), np.zeros(2, int), [edges((1, 0, NONE))]).tolist()


def test_random_graphs() -> None:
    """Relaxing all edges until nothing changes gives the same, with edges in any order."""
    rng = np.random.default_rng(4)
    for _ in range(20):
        to, source = rng.integers(0, 30, (2, 80))
        lag = rng.integers(-5, 50, 80)
        forward = source < to
        expected = np.where(np.isin(np.arange(30), to[forward]), NONE, np.arange(30) * 10)
        for _ in range(30):
            np.maximum.at(expected, to[forward], expected[source[forward]] + lag[forward])
        assert expected.tolist() == moments(np.arange(30) * 10, np.zeros(30, int), [Edges(to, source, lag)]).tolist()


@pytest.mark.parametrize("seed", range(10))
def test_runs_are_the_same_as_one_by_one(seed: int) -> None:
    """Three streams, four heads, and operations that wait for others beside: a loop gives the same ends.

    Nodes 0 to 59 are operations, 60 to 63 heads, which stay where they are.
    """
    rng = np.random.default_rng(seed)
    stream = np.sort(rng.integers(0, 3, 60))
    begins = np.diff(stream, prepend=-1) != 0
    after = np.where(begins, 0, rng.integers(1, 30, 60))
    chains = Chains(np.arange(60), stream, after, np.sort(rng.integers(60, 64, 60)), rng.integers(1, 2_000, 60))
    other = edges(*((int(b), int(a), 40) for a, b in np.sort(rng.choice(60, (6, 2), replace=False), axis=1)))
    measured = np.r_[np.arange(60) * 10 + 1_000, np.arange(4) * 200]
    found = runs(chains, np.arange(64), np.isin(np.arange(60), np.r_[other.to, other.source]))
    time = moments(measured, np.zeros(64, int), [other, *found.edges])
    expected = measured.copy()
    for op in range(60):
        launched = expected[chains.head[op]] + chains.launch[op]
        behind = NONE if begins[op] else expected[op - 1] + after[op]
        expected[op] = max(launched, behind, *(expected[other.source[other.to == op]] + 40), NONE)
    assert expected[:60].tolist() == inside(chains, found, time).tolist()
    assert len(found.edges[0].to) < 60

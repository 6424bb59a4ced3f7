"""Predictions against simulated programs that differ in one thing, or in several."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from planted.program import Settings, Simulated, simulated

from perfkit.analysis.whatif import replay
from perfkit.analysis.whatif.changes import Change, Communication, Copies, Host, Kernels, Launches, Synchronisations
from perfkit.errors import PerfkitError
from perfkit.tables import COPIES

SLOW_HOST: dict[str, Any] = {"cpu_ns": 60_000, "kernel_ns": 20_000}
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any], list[Change]]] = {
    "faster kernels": ({"kernel_ns": 100_000}, {"kernel_ns": 50_000}, [Kernels(0.5)]),
    "slower kernels": ({"cpu_ns": 30_000}, {"kernel_ns": 60_000}, [Kernels(2)]),
    "faster copies": ({"input_ns": 2_000_000}, {"input_ns": 500_000}, [Copies(factor=0.25, direction="H2D")]),
    "copies beside": ({"input_ns": 1_000_000}, {"prefetched": True}, [Copies("overlapped", direction="H2D")]),
    "graph": (SLOW_HOST, {"graph": True}, [Launches("graph")]),
    "fused": (SLOW_HOST, {"fused": 4}, [Launches("fused", at_most=4)]),
    "faster loading": ({"loading_ns": 1_500_000}, {"loading_ns": 750_000}, [Host(0.5)]),
    "hidden loading": ({"loading_ns": 1_500_000}, {"workers": 1}, [Host(workers=1)]),
    "loading remains slow": ({"loading_ns": 6_000_000}, {"workers": 1}, [Host(workers=1)]),
    "loading by four": ({"loading_ns": 6_000_000}, {"workers": 4}, [Host(workers=4)]),
    "no synchronisation": ({"sync_every": 2, "cpu_ns": 20_000}, {"synchronises": False}, [Synchronisations()]),
    "fewer synchronisations": ({"sync_every": 2, "cpu_ns": 20_000}, {"sync_every": 0}, [Synchronisations("Stream")]),
    "communication beside": ({"reduce_every": 5}, {"beside": True}, [Communication()]),
    "faster communication": (
        {"ranks": 2, "reduce_every": 5, "reduce_ns": 200_000, "slow_rank_frac": 0.3},
        {"reduce_ns": 100_000},
        [Kernels(0.5, family="communication")],
    ),
    "three at once": (
        {"loading_ns": 1_500_000, "sync_every": 2, "input_ns": 1_000_000},
        {"workers": 1, "sync_every": 0, "prefetched": True},
        [Host(workers=1), Synchronisations("Stream"), Copies("overlapped", direction="H2D")],
    ),
}


def settings(values: dict[str, Any], seed: int) -> Settings:
    """Settings of a program of 12 steps."""
    return replace(Settings(steps=12, seed=seed), **values)


def predicted_ns(run: Simulated, changes: list[Change]) -> int:
    """Span of a run under changes."""
    return replay(run.kernels, run.copies, run.api_calls, ranges=run.ranges, changes=changes).span_ns


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("pair", PAIRS)
def test_one_change(pair: str, seed: int) -> None:
    """Predicted and true span differ by less than 10 %, and the unchanged replay is within 2 %."""
    before, after, changes = PAIRS[pair]
    run = simulated(settings(before, seed))
    truth = simulated(settings(before | after, seed))
    assert run.span_ns == pytest.approx(predicted_ns(run, []), rel=0.02)
    assert truth.span_ns == pytest.approx(predicted_ns(run, changes), rel=0.1)
    assert run.span_ns != pytest.approx(truth.span_ns, rel=0.01)


def test_a_faster_rank() -> None:
    """Two ranks wait for each other: with the kernels of the slow one as fast as the other's both are faster."""
    before = Settings(ranks=2, reduce_every=5, slow_rank_frac=0.5)
    run, truth = simulated(before), simulated(replace(before, slow_rank_frac=0.0))
    slow = np.flatnonzero((run.kernels["rank"] == 1) & (run.kernels["family"] != "communication"))
    found = replay(run.kernels, run.copies, run.api_calls, changes=[Kernels(1 / 1.5, rows=slow)])
    assert truth.span_ns == pytest.approx(found.span_ns, rel=0.02)
    assert [0, 1] == found.ranks["rank"].tolist()
    assert (found.ranks["span_ns"] < 0.9 * found.ranks["measured_ns"]).all()


def test_the_change_that_does_not_matter() -> None:
    """Where the GPU decides, the CPU's work can be gone without any gain, and the other way round."""
    gpu = simulated(Settings(kernel_ns=100_000, steps=12))
    assert gpu.span_ns == pytest.approx(predicted_ns(gpu, [Host(0, pattern="")]), rel=0.02)
    host = simulated(Settings(**SLOW_HOST, steps=12))
    assert host.span_ns == pytest.approx(predicted_ns(host, [Kernels(0.5)]), rel=0.02)


def test_windows_of_whole_steps() -> None:
    """The operations between two synchronisations are a program of their own: unchanged and within 2 %."""
    run = simulated(Settings(steps=12))
    calls = run.api_calls[run.api_calls["name"] == "cudaDeviceSynchronize"]
    ends = (calls["start_ns"] + calls["dur_ns"]).tolist()
    found = replay(run.kernels, run.copies, run.api_calls, window=(ends[3], ends[7]), changes=[Kernels(1)])
    inside = run.kernels["start_ns"].between(ends[3], ends[7])
    assert (inside.sum(),) == found.touched
    assert found.measured_ns == pytest.approx(found.unchanged_ns, rel=0.02)
    assert found.measured_ns < ends[7] - ends[3]


def test_unrecorded_work_is_refused() -> None:
    """Without the rows of the copies, which the kernels wait for, kernels start late for no reason."""
    run = simulated(Settings(input_ns=2_000_000, pageable=False, steps=12))
    with pytest.raises(PerfkitError, match="something that was not recorded"):
        replay(run.kernels, COPIES.empty(), run.api_calls)

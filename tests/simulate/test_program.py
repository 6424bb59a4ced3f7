"""A simulated program: what it does in a step, and what is true of it whatever the lengths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from perfkit.simulate.program import Settings, simulated

BASE = Settings(steps=4, layers=6, loading_ns=500_000)


def test_rows() -> None:
    """Four steps of six kernels, a copy in and one out, and a call for each of them and for waiting."""
    run = simulated(BASE)
    assert (24, 8, 4) == (len(run.kernels), len(run.copies), len(run.ranges))
    assert {"cudaLaunchKernel": 24, "cudaMemcpyAsync": 8, "cudaDeviceSynchronize": 4} == (
        run.api_calls["name"].value_counts().to_dict()
    )


@pytest.mark.parametrize(
    "settings",
    [
        BASE,
        replace(BASE, prefetched=True),
        replace(BASE, graph=True),
        replace(BASE, fused=3),
        replace(BASE, ranks=3, reduce_every=2, beside=True, slow_rank_frac=0.5),
        replace(BASE, workers=2, sync_every=1),
        replace(BASE, synchronises=False),
    ],
)
def test_order(settings: Settings) -> None:
    """Operations start after their call began and after the one before in their stream; calls follow each other."""
    run = simulated(settings)
    work = pd.concat([run.kernels, run.copies]).sort_values("start_ns")
    started = work.merge(run.api_calls, on=["rank", "process", "correlation"], suffixes=("", "_call"))
    assert len(work) == len(started)
    assert (started["start_ns"] > started["start_ns_call"]).all()
    for frame, keys in ((work, ["rank", "stream"]), (run.api_calls, ["rank", "thread"])):
        for _, one in frame.groupby(keys):
            assert (one["start_ns"].to_numpy()[1:] >= (one["start_ns"] + one["dur_ns"]).to_numpy()[:-1]).all()
    assert run.span_ns == (work["start_ns"] + work["dur_ns"]).max() - work["start_ns"].min()


def test_a_synchronisation_waits() -> None:
    """When the device is synchronised, everything called before is over."""
    run = simulated(BASE)
    waits = run.api_calls[run.api_calls["name"] == "cudaDeviceSynchronize"]
    ends = (run.kernels["start_ns"] + run.kernels["dur_ns"]).to_numpy()
    for begin, end in zip(waits["start_ns"], waits["start_ns"] + waits["dur_ns"], strict=True):
        assert not ((run.kernels["start_ns"].to_numpy() < begin) & (ends > end)).any()


def test_ranks_meet() -> None:
    """A reduction ends on all ranks at one time, and lasts as long as planned on the rank that came last."""
    run = simulated(replace(BASE, ranks=2, reduce_every=2, reduce_ns=70_000, slow_rank_frac=1.0))
    reductions = run.kernels[run.kernels["family"] == "communication"]
    ends = [(one["start_ns"] + one["dur_ns"]).tolist() for _, one in reductions.groupby("rank")]
    shortest = np.min([one["dur_ns"].to_numpy() for _, one in reductions.groupby("rank")], axis=0)
    assert ends[0] == ends[1]
    assert [70_000] * 12 == shortest.tolist()


def test_one_difference() -> None:
    """The kernels are as long if something else is different, and the same settings give the same run."""
    first, again, other = simulated(BASE), simulated(BASE), simulated(replace(BASE, workers=1, prefetched=True))
    pd.testing.assert_frame_equal(first.kernels, again.kernels)
    assert first.kernels["dur_ns"].tolist() == other.kernels["dur_ns"].tolist()
    assert other.span_ns < first.span_ns

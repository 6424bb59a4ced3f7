"""A simulated program: what it does in a step, and what is true of it whatever the lengths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from planted.program import Settings, simulated

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
        replace(BASE, pageable=False, waited=True, small_copies=3),
        replace(BASE, save_every=2, saving_ns=10_000_000),
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


def test_a_copy_that_is_waited_for() -> None:
    """cudaMemcpy returns when the copy is over, from whatever memory."""
    run = simulated(replace(BASE, pageable=False, waited=True))
    calls = run.api_calls[run.api_calls["name"] == "cudaMemcpy"].merge(run.copies, on="correlation")
    assert 4 == len(calls)
    assert (calls["start_ns_x"] + calls["dur_ns_x"] > calls["start_ns_y"] + calls["dur_ns_y"]).all()


def test_small_copies() -> None:
    """Each kernel is preceded by as many copies of 4 KiB as set, in its stream."""
    run = simulated(replace(BASE, small_copies=2))
    small = run.copies[run.copies["bytes"] == 4_096]
    assert 48 == len(small)
    after = np.searchsorted(np.sort(run.kernels["start_ns"]), np.sort(small["start_ns"]))
    assert [2] * 24 == np.bincount(after).tolist()


def test_checkpoints() -> None:
    """After every second step, but the last, the weights are copied and then written: the range holds all of it."""
    run = simulated(replace(BASE, save_every=2, saved_bytes=8_000_000, saving_ns=10_000_000))
    (weights,) = (row for row in run.copies.to_dict("records") if row["bytes"] == 8_000_000)
    (saving,) = (row for row in run.ranges.to_dict("records") if row["name"] == "save_checkpoint")
    assert ("D2H", 1_000_000) == (weights["direction"], weights["dur_ns"])
    assert 10_000_000 == run.os_calls["dur_ns"].sum()
    assert run.os_calls["start_ns"].min() >= weights["start_ns"] + weights["dur_ns"] > saving["start_ns"]
    last = (run.os_calls["start_ns"] + run.os_calls["dur_ns"]).max()
    assert saving["start_ns"] + saving["dur_ns"] == last
    assert 12 == (run.kernels["start_ns"] < saving["start_ns"]).sum() == (run.kernels["start_ns"] > last).sum()


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

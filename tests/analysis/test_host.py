"""The CPU's time: CUDA calls, named ranges, and calls that wait for the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import api_calls, kernels, ranges

from perfkit.analysis.host import BLOCKING, SPAN_KEYS, calls, spans, synchronisations
from perfkit.errors import SchemaError
from perfkit.tables import API_CALLS, RANGES


def row(start: int, dur: int, name: str, **more: Any) -> dict[str, Any]:
    """A call or a range in ns."""
    return {"start_ns": start, "dur_ns": dur, "name": name, **more}


def random_calls(seed: int) -> pd.DataFrame:
    """Calls of few functions on four threads of two processes, those of a thread one after the other."""
    random = np.random.default_rng(seed)
    names = ("cudaLaunchKernel", "cudaDeviceSynchronize", "cudaMemcpy", "cuCtxSynchronize", "cudaMalloc")
    rows = [
        row(20 * i, dur, names[name], process=1 + thread % 2, thread=10 + thread)
        for i, (dur, name, thread) in enumerate(random.integers(0, (20, 5, 4), (200, 3)).tolist())
    ]
    return api_calls(*rows)


def test_calls_by_hand() -> None:
    """Launches of 10 and 30 and a copy of 60: launches total 40, mean 20, std sqrt(200), share 0.4."""
    found = calls(api_calls(row(0, 10, "launch"), row(20, 60, "copy"), row(90, 30, "launch", thread=2)))
    assert found["name"].tolist() == ["copy", "launch"]
    expected = {"count": 2, "total_ns": 40, "mean_ns": 20, "median_ns": 20, "min_ns": 10, "max_ns": 30}
    expected |= {"std_ns": 200**0.5, "share_frac": 0.4}
    assert expected == found.iloc[1].drop("name").to_dict()


def test_calls_cut_by_a_window() -> None:
    """Of calls 0..10 and 20..80 the window 5..50 holds 5 and 30 ns."""
    found = calls(api_calls(row(0, 10, "launch"), row(20, 60, "copy"), row(90, 30, "launch")), window=(5, 50))
    assert found[["name", "count", "total_ns"]].to_numpy().tolist() == [["copy", 1, 30], ["launch", 1, 5]]


def test_spans_are_inclusive_and_leave_marks_out() -> None:
    """An outer range of 100 and two inner ones of 30: totals 100 and 60, shares of their sum; the mark is no span."""
    frame = ranges(
        row(0, 100, "step"),
        row(10, 30, "load", depth=1),
        row(50, 30, "load", depth=1),
        row(60, 0, "here", kind="mark"),
    )
    found = spans(frame)
    assert found[["domain", "name", "kind", "count", "total_ns", "share_frac"]].to_numpy().tolist() == [
        ["", "step", "push_pop", 1, 100, 100 / 160],
        ["", "load", "push_pop", 2, 60, 60 / 160],
    ]


def test_spans_of_domains_and_kinds_are_told_apart() -> None:
    """One text in two domains and of two kinds makes three rows, unless the keys leave these out."""
    frame = ranges(
        row(0, 5, "x"), row(10, 6, "x", domain="NCCL"), row(20, 7, "x", kind="start_end"), row(30, 1, "x", thread=9)
    )
    assert spans(frame)["total_ns"].tolist() == [7, 6, 6]
    assert spans(frame, by=["name"])[["name", "count", "total_ns"]].to_numpy().tolist() == [["x", 4, 19]]
    assert spans(frame, by=["thread"], window=(0, 12))["total_ns"].tolist() == [7]


def test_synchronisations_by_hand() -> None:
    """A thread seen from 0 to 100 waits 20 + 30 of them for the device; its launches do not wait."""
    found = synchronisations(
        api_calls(
            row(0, 10, "cudaLaunchKernel"),
            row(20, 20, "cudaDeviceSynchronize"),
            row(50, 30, "cudaDeviceSynchronize"),
            row(90, 10, "cudaMemcpyAsync"),
        )
    )
    assert found.to_numpy().tolist() == [[0, 1, 1, "cudaDeviceSynchronize", 2, 50, 30, 0.5]]


def test_synchronisations_per_thread_and_window() -> None:
    """In 50..150 one thread waits 50 of 100 ns and the other 10; calls outside do not count."""
    frame = api_calls(
        row(0, 100, "cudaStreamSynchronize"),
        row(140, 100, "cudaMemcpy", thread=2),
        row(160, 10, "cudaMemcpy", thread=2),
    )
    found = synchronisations(frame, window=(50, 150))
    assert found[["thread", "name", "count", "total_ns", "share_frac"]].to_numpy().tolist() == [
        [1, "cudaStreamSynchronize", 1, 50, 0.5],
        [2, "cudaMemcpy", 1, 10, 0.1],
    ]


@pytest.mark.parametrize(
    "name",
    [
        "cudaDeviceSynchronize",
        "cudaStreamSynchronize_ptsz",
        "cudaEventSynchronize",
        "cuCtxSynchronize",
        "cuStreamSynchronize",
        "cuEventSynchronize",
        "hipDeviceSynchronize",
        "cudaMemcpy",
        "cudaMemcpy2D_ptds",
        "cudaMemcpyToSymbol",
        "cuMemcpyDtoH_v2",
        "cudaFree",
        "cudaFreeHost",
        "cuMemFree",
        "cudaDeviceReset",
        "cuCtxDestroy",
    ],
)
def test_blocking_calls(name: str) -> None:
    """Synchronisations, copies that are not asynchronous, frees and the end of a context wait for the GPU."""
    assert synchronisations(api_calls(row(0, 5, name)))["name"].tolist() == [name]


@pytest.mark.parametrize(
    "name",
    [
        "cudaLaunchKernel",
        "cudaMemcpyAsync",
        "cudaMemcpy2DAsync_ptsz",
        "cuMemcpyHtoDAsync_v2",
        "cudaMemcpyPeer",
        "cudaMemset",
        "cudaFreeAsync",
        "cuMemFreeAsync",
        "cudaEventQuery",
        "cudaStreamWaitEvent",
        "cudaMalloc",
        "mySynchronize",
    ],
)
def test_calls_that_do_not_block(name: str) -> None:
    """Launches, asynchronous and peer copies, memsets, queries and waits of a stream return at once."""
    assert synchronisations(api_calls(row(0, 5, name))).empty


def test_every_blocking_call_has_a_reason() -> None:
    """The list of blocking calls says of each why it blocks."""
    assert all(reason.strip() for reason in BLOCKING.values())


def test_empty() -> None:
    """No calls or ranges, no rows, the same columns and types."""
    pairs = [
        (calls(api_calls(row(0, 1, "a"))), calls(API_CALLS.empty(), window=(0, 1))),
        (spans(ranges(row(0, 1, "a"))), spans(RANGES.empty())),
        (synchronisations(api_calls(row(0, 1, "cudaFree"))), synchronisations(API_CALLS.empty())),
        (synchronisations(api_calls(row(0, 1, "cudaFree"))), synchronisations(api_calls(row(0, 1, "cudaMalloc")))),
    ]
    for some, none in pairs:
        assert (0, some.dtypes.astype(str).to_dict()) == (len(none), none.dtypes.astype(str).to_dict())


def test_nothing_lasts() -> None:
    """Where no call lasts, shares are 0 of 0: NaN."""
    frame = api_calls(row(5, 0, "cudaFree"))
    assert calls(frame)["share_frac"].isna().all()
    assert synchronisations(frame)["share_frac"].isna().all()


def test_synchronisations_by_a_loop() -> None:
    """Count, time and share are those of a loop over the calls of each thread."""
    frame = random_calls(21)
    expected = {}
    for key, own in frame.groupby(["process", "thread", "name"], observed=True):
        if key[2] in ("cudaDeviceSynchronize", "cudaMemcpy", "cuCtxSynchronize"):
            thread = frame[frame["thread"] == key[1]]
            seen = (thread["start_ns"] + thread["dur_ns"]).max() - thread["start_ns"].min()
            expected[key] = [len(own), own["dur_ns"].sum(), own["dur_ns"].max(), own["dur_ns"].sum() / seen]
    found = synchronisations(frame).set_index(["process", "thread", "name"])
    assert expected == {key: list(figures) for key, *figures in found.drop(columns="rank").itertuples()}


def test_groupings_sum_to_the_same() -> None:
    """Whatever the keys, counts and times sum to those of the table, and shares to 1."""
    frame = random_calls(22)
    assert [200, frame["dur_ns"].sum()] == calls(frame)[["count", "total_ns"]].sum().tolist()
    named = ranges(*(row(r.start_ns, r.dur_ns, r.name, thread=r.thread) for r in frame.itertuples(index=False)))
    for key in SPAN_KEYS:
        found = spans(named, by=[key])
        assert [200, frame["dur_ns"].sum()] == found[["count", "total_ns"]].sum().tolist()
        assert found["share_frac"].sum() == pytest.approx(1)


@pytest.mark.parametrize("by", [[], ["name", "stream"]])
def test_wrong_keys(by: list[str]) -> None:
    """No key and unknown keys are refused with the legal ones."""
    with pytest.raises(ValueError, match=r"is not one or more of \['domain', 'name', 'kind'"):
        spans(RANGES.empty(), by=by)


def test_wrong_tables() -> None:
    """Foreign tables are refused; the input is not changed."""
    frame = random_calls(23)
    before = frame.copy()
    foreign = kernels(row(0, 1, "a"))
    with pytest.raises(SchemaError, match="'API_CALLS' does not match"):
        calls(foreign)
    with pytest.raises(SchemaError, match="'API_CALLS' does not match"):
        synchronisations(foreign)
    with pytest.raises(SchemaError, match="'RANGES' does not match"):
        spans(foreign)
    synchronisations(frame, window=(100, 200))
    pd.testing.assert_frame_equal(before, frame)

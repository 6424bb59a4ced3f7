"""Where operations of graphs were not recorded, busy and idle time are no figures, and what to record is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from diagnosis.traces import MS, US, of_tables, replays

import perfkit
from perfkit import diagnosis
from perfkit.run import Run

BUSY = {f"{part}_{unit}" for part in ("kernel_busy", "device_busy", "computation", "idle") for unit in ("ns", "frac")}


def test_graphs_recorded_whole_leave_the_figures() -> None:
    """Ten graphs of twice 400 us in 10 ms: 8.008 ms of kernels, and a lost replay or two do not matter."""
    assert diagnosis.figures(replays(0)).keys() >= BUSY | {"sync_idle_frac"}
    assert diagnosis.figures(replays(2)).keys() >= BUSY | {"sync_idle_frac"}


@pytest.mark.parametrize("incomplete", [replays(3), replays(0, pause=150 * US)])
def test_graphs_recorded_in_part_hide_how_busy_the_gpu_is(incomplete: Run) -> None:
    """Three of ten replays lost, or 1.5 of 9.96 ms without any node inside graphs: idle is no figure, kernels are."""
    found = diagnosis.figures(incomplete)
    assert BUSY.isdisjoint(found)
    assert not any(i.startswith(("sync_idle", "idle_", "exposed_", "overlap_")) for i in found)
    assert {"span_ns", "kernel_sum_ns", "kernel_count", "op_kernel_frac", "sync_count"} <= set(found)


@pytest.mark.parametrize("reader", ["nsys", "torch_trace"])
def test_what_to_record_for_graphs(reader: str) -> None:
    """The refusal says how many graphs lack their operations, and how each tool records them."""
    (found,) = (r for r in diagnosis.refusals(replays(4, reader=reader)) if "idle" in r.question)
    assert "4 of 10 graph launches have no operation in the recording" == found.reason
    assert "--cuda-graph-trace=node" in found.record
    assert ("torch.profiler" in found.record) == (reader == "torch_trace")
    assert not [r for r in diagnosis.refusals(replays(0)) if "idle" in r.question]


def test_graphs_of_another_gpu_are_not_missing() -> None:
    """A graph launch does not say on which GPU: looking at one GPU does not make those of the other lost."""
    frames = {name: getattr(replays(0), name.lower()) for name in ("KERNELS", "API_CALLS", "OPS")}
    moved = frames["KERNELS"].assign(gpu=(frames["KERNELS"]["start_ns"] >= 5 * MS).astype("int32"))
    one = perfkit.select(of_tables(**{**frames, "KERNELS": moved}), gpus=(0,))
    assert "idle_frac" in diagnosis.figures(one)


def test_real_graphs(profiles: Path) -> None:
    """HTA's trace of graphs: 70 launches, none empty, 616.067 of 1,231.461 ms silent inside; vLLM's is whole."""
    traces = profiles / "torch"
    parts = perfkit.load(traces / "HTA__negative_queue_length_values_check__rank0.json.gz")
    assert "idle_frac" not in diagnosis.figures(parts)
    (found,) = (r for r in diagnosis.refusals(parts) if "idle" in r.question)
    assert "50.0 % of the time" in found.reason
    whole = perfkit.load(traces / "TraceLens__vllm_decode_full__graph_execution.json.gz")
    assert 0.003 > diagnosis.figures(whole)["idle_frac"].value

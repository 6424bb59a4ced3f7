"""The program with planted causes, and that each of them is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from planted.causes import CAUSES, HEALTHY, Tables, healthy, planted
from planted.program import Settings, simulated

import perfkit
from perfkit import diagnosis
from perfkit.analysis import gaps
from perfkit.diagnosis.finding import Finding
from perfkit.profile import Profile
from perfkit.run import Run
from perfkit.tables import CAPTURE

RULES = {
    "data loading": "idle_data_loading",
    "synchronisation": "synchronisation",
    "launch overhead": "launch_overhead",
    "pageable copies": "copies_pageable",
    "serial copies": "copies_serial",
    "synchronous copies": "copies_synchronous",
    "small copies": "copies_small",
    "checkpoints": "checkpointing",
    "communication": "exposed_communication",
    "imbalance": "slow_gpu",
    "throttling": "log_throttling",
    "memory bandwidth": "memory_bandwidth",
    "tensor cores": "tensor_cores",
    "warm-up": "warm_up",
    "occupancy": "low_occupancy",
    "latency": "latency_bound",
}
# The reader of each table that is not the timeline's.
READERS = {"SAMPLES": "nvidia_smi", "LAUNCHES": "ncu", "COUNTERS": "ncu"}
PAIRS = [
    ("data loading", "communication"),
    ("synchronisation", "tensor cores"),
    ("pageable copies", "throttling"),
    ("small copies", "launch overhead"),
    ("synchronous copies", "tensor cores"),
    ("checkpoints", "data loading"),
]


def run(tables: Tables) -> Run:
    """The tables as the profiles of one run: a timeline, a log of the GPUs, and counters where there are any."""
    readers = dict.fromkeys(["nsys", *(READERS.get(name, "nsys") for name in tables)])
    return Run(
        _profile(reader, {name: frame for name, frame in tables.items() if READERS.get(name, "nsys") == reader})
        for reader in readers
    )


def _profile(reader: str, tables: Tables) -> Profile:
    row = {"rank": 0, "tool": reader, "tool_version": "", "path": reader, "t0_unix_ns": 0, "dur_ns": 10**10}
    loaders = {name: (lambda frame=frame: frame) for name, frame in tables.items()}
    return Profile(reader, Path(reader), CAPTURE.make(pd.DataFrame([row])), loaders)


def told(tables: Tables) -> list[Finding]:
    """What is found in a run of these tables."""
    return diagnosis.findings(run(tables))


def test_every_cause_has_its_rule() -> None:
    """No cause is planted that no rule is held against."""
    assert set(CAUSES) == set(RULES)


def test_a_healthy_run_has_no_severe_finding() -> None:
    """Nothing is planted: the GPU computes nearly all of the time, which is told as low."""
    assert [("computation", "low")] == [(f.rule, f.severity) for f in told(healthy())]


@pytest.mark.parametrize("cause", RULES)
def test_a_planted_cause_is_told_first(cause: str) -> None:
    """The cause comes first, with high confidence, and none of the others has high confidence."""
    first, *others = told(planted(cause))
    assert (RULES[cause], "high") == (first.rule, first.confidence)
    assert [] == [f.rule for f in others if f.confidence == "high"]


@pytest.mark.parametrize("causes", PAIRS)
def test_two_planted_causes_are_told_first(causes: tuple[str, str]) -> None:
    """Both causes come first, with high confidence, and none of the others has high confidence."""
    first, second, *others = told(planted(*causes))
    assert {RULES[cause] for cause in causes} == {first.rule, second.rule}
    assert ["high", "high"] == [first.confidence, second.confidence]
    assert [] == [f.rule for f in others if f.confidence == "high"]


@pytest.mark.parametrize(
    ("without", "words", "confidence"),
    [
        ((), "Checkpoints stop the GPU", "high"),
        (("OS_CALLS",), "Checkpoints stop the GPU", "high"),
        (("save_checkpoint",), "Writing files stops the GPU", "high"),
        (
            ("OS_CALLS", "save_checkpoint"),
            "Long pauses after copies to the host, as checkpoints make them, stop the GPU",
            "medium",
        ),
        (("API_CALLS",), "Checkpoints stop the GPU", "high"),
    ],
)
def test_a_checkpoint_is_told_by_what_was_recorded(without: tuple[str, ...], words: str, confidence: str) -> None:
    """Its name, the calls that write, or only that it looks like one: the finding says which, and is the only one.

    Three times 1.07 GB and the loss in 0.134 s of copying and 0.4 s of writing, every fourth step.
    """
    tables = planted("checkpoints")
    named = tables["RANGES"]["name"] == "save_checkpoint"
    tables["RANGES"] = tables["RANGES"][~named] if "save_checkpoint" in without else tables["RANGES"]
    (finding,) = told({name: frame for name, frame in tables.items() if name not in without})
    assert ("checkpointing", confidence) == (finding.rule, finding.confidence)
    assert finding.title.startswith(words)
    known = {figure.id: figure.value for figure in finding.evidence}
    assert (3, 4, (1 << 30) + 4) == tuple(known[f"checkpoint_{part}"] for part in ("count", "steps_count", "bytes"))
    assert 0.534e9 == pytest.approx(known["checkpoint_ns"], rel=0.01)
    assert (1 << 30) / 0.534 == pytest.approx(known["checkpoint_bytes_per_s"], rel=0.01)


def test_a_checkpoint_that_is_seen_once_is_doubted() -> None:
    """How often it happens is not known from one: told, with medium confidence."""
    settings = replace(HEALTHY, steps=8, save_every=5)
    (finding,) = (f for f in told(healthy(settings)) if f.rule == "checkpointing")
    assert ("medium", 1) == (finding.confidence, len(finding.against))


def test_waiting_for_the_rank_that_saves_is_no_communication() -> None:
    """The first of two ranks saves, the other waits in a collective meanwhile: both times are the checkpoint's."""
    settings = replace(HEALTHY, steps=14, save_every=4, all_save=False, ranks=2, reduce_every=5)
    one, both = (told(healthy(s)) for s in (settings, replace(settings, all_save=True)))
    assert [["checkpointing"]] * 2 == [[f.rule for f in found] for found in (one, both)]
    assert one[0].gain.share == pytest.approx(both[0].gain.share, abs=0.02)


def test_throttling_without_a_slower_clock_is_doubted() -> None:
    """Event reasons say that power lowers the clock, which stays at its maximum: told, with medium confidence."""
    tables = planted("throttling")
    samples = tables["SAMPLES"]
    clock = samples["metric"] == "sm_clock_hz"
    flat = samples.assign(value=samples["value"].mask(clock, samples.loc[clock, "value"].max()))
    (throttling,) = (f for f in told(tables | {"SAMPLES": flat}) if f.rule == "log_throttling")
    assert ("medium", ("the clock never fell below 100 % of its maximum",)) == (
        throttling.confidence,
        throttling.against,
    )


def test_names_against_a_working_tensor_pipe_are_doubted() -> None:
    """Kernels are named after CUDA cores, but the tensor pipe was sampled at work for 60 % of their time."""
    tables = planted("tensor cores") | {"SAMPLES": healthy()["SAMPLES"]}
    (doubted,) = (f for f in told(tables) if f.rule == "tensor_cores")
    assert "medium" == doubted.confidence
    assert "samples show the tensor pipe active for 60.0 % of the time" in doubted.against[0]


def test_small_kernels_on_a_busy_gpu_are_no_finding() -> None:
    """Kernels of 3 us that are launched as one graph keep the GPU busy: their size costs nothing."""
    settings = replace(HEALTHY, kernel_ns=2_000, layers=300, input_ns=90_000, graph=True)
    assert not [f for f in told(healthy(settings)) if f.rule == "launch_overhead"]


def test_idle_time_is_told_once() -> None:
    """What launches or waits explain is no second finding of idle time: the parts together are below the idle time."""
    for cause in ("launch overhead", "synchronisation"):
        tables = planted(cause)
        shares = [f.gain.share for f in told(tables) if f.rule.startswith("idle_") or f.rule == RULES[cause]]
        assert sum(share or 0 for share in shares) <= diagnosis.figures(run(tables))["idle_frac"].value


def test_waiting_for_a_slow_rank_is_not_communication() -> None:
    """Two ranks, one of which computes twice as long: collectives last long, but the links are not to blame."""
    told_of = {f.rule for f in told(planted("imbalance"))}
    assert ("slow_gpu" in told_of, "exposed_communication" in told_of) == (True, False)


def test_every_finding_says_what_to_measure_next() -> None:
    """Confidence is one of three words, and what to measure next is never empty."""
    for causes in PAIRS:
        for finding in told(planted(*causes)):
            assert finding.confidence in diagnosis.CONFIDENCES
            assert finding.next


BASELINE, AFTER = (
    f"openhackathons-org__AI-Profiler__{name}.sqlite" for name in ("baseline_nvtx", "secondOptimization.window5.0-7.0s")
)


def test_what_the_public_optimisation_removed_is_found_before_and_not_after(profiles: Path) -> None:
    """AI-Profiler's training copies 138 batches from pageable memory before, and 26 from pinned memory after.

    Its second change is that alone: the loader still is what the GPU waits for, as the first finding of both says. Only
    the recording before holds the evaluation at the end, 2.4 s of which the training thread is inside poll(). The first
    step lasts 2.8 s, but all except 9 ms of it lie before the first operation of the GPU: it is no warm-up of it.
    """
    before, after = (diagnosis.findings(perfkit.load(profiles / "nsys" / name)) for name in (BASELINE, AFTER))
    assert {"copies_pageable", "idle_system"} == {f.rule for f in before} - {f.rule for f in after}
    assert ["idle_data_loading"] * 2 == [found[0].rule for found in (before, after)]


def test_a_launch_that_explains_little_of_a_gap_is_not_blamed(profiles: Path) -> None:
    """sglang's first graph is launched after 38 us and starts after 463 ms: what held it up is not known."""
    trace = profiles / "torch" / "TraceLens__sglang_decode__sglang_Qwen3-8B_decode.json.gz"
    first = diagnosis.findings(perfkit.load(trace))[0]
    assert ("idle_other", "medium") == (first.rule, first.confidence)


def test_figures_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures and findings of one selection find its gaps once, and leave each other's figures alone."""
    count = 0
    found = gaps.idle_gaps

    def counted(*args: Any, **options: Any) -> pd.DataFrame:
        nonlocal count
        count += 1
        return found(*args, **options)

    monkeypatch.setattr(gaps, "idle_gaps", counted)
    view = perfkit.select(run(planted("launch overhead")))
    diagnosis.figures(view).clear()
    assert diagnosis.findings(view)
    assert (1, True) == (count, "idle_frac" in diagnosis.figures(view))


def test_a_window_is_diagnosed_as_the_whole() -> None:
    """Copies are counted in the window: of a run of equal steps the middle half has the same share of them."""
    whole = run(planted("pageable copies"))
    first, last = (int(at) for at in (whole.kernels["start_ns"].min(), whole.kernels["start_ns"].max()))
    window = first + (last - first) // 4, last - (last - first) // 4
    shares = [diagnosis.transfers.exposed(perfkit.select(whole, window=chosen))["pageable"] for chosen in ((), window)]
    assert shares[0] == pytest.approx(shares[1], abs=0.1)


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

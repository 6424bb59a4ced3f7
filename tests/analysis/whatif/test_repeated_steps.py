"""Steps that stand for a long run: which are taken, when none are, and that their replay is that of the whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from analysis.spans import us
from frames import copies, kernels
from planted.program import Settings, simulated

import perfkit
from perfkit.analysis import steps
from perfkit.analysis.whatif import replay
from perfkit.analysis.whatif.changes import Change, Copies, Host, Kernels, Synchronisations
from perfkit.analysis.whatif.replay import around, stretch
from perfkit.errors import PerfkitError
from perfkit.tables import COPIES

US = 1_000


def step(number: int, start_us: int, length_us: int, *, rank: int = 0) -> dict[str, Any]:
    return us(start_us, start_us + length_us, rank=rank, step=number, name="step", how="nvtx", steady=True)


def work(lengths_us: list[int], *, rank: int = 0, family: str = "gemm", every_us: int = 100) -> list[dict[str, Any]]:
    """One kernel for each length, at the start of its step."""
    starts = range(0, every_us * len(lengths_us), every_us)
    return [us(at, at + of, rank=rank, family=family) for at, of in zip(starts, lengths_us, strict=True)]


def even(count: int, *, rank: int = 0, shift_us: int = 0) -> list[dict[str, Any]]:
    return [step(n, 100 * n + shift_us, 100, rank=rank) for n in range(count)]


def found(rows: list[dict[str, Any]], *spans: dict[str, Any], aim: int = 10, **more: Any) -> Any:
    return stretch(steps.STEPS.make(pd.DataFrame(rows)), kernels(*spans), COPIES.empty(), aim=aim, most=100, **more)


def test_the_stretch_by_hand() -> None:
    """20 steps with a kernel of 40 us, then 20 with one of 60: only the middle, 15 to 24, has 50 on average."""
    part = found(even(40), *work([40] * 20 + [60] * 20))
    assert (15, 24, 10, 40) == (part.first, part.last, part.steps, part.of_steps)
    assert (1_500 * US, 2_500 * US) == part.window
    assert (1.0, 0.0) == (part.share_frac, part.apart_frac)


def test_a_stretch_that_is_not_quite_alike_says_by_how_much() -> None:
    # One of 59 us in each eighth step: ten in a row have 1 or 2; with one, 0.25 x 9 us of 1,000 are missing.
    part = found(even(40), *work([59 if n % 8 == 0 else 50 for n in range(40)]))
    assert 0.00225 == pytest.approx(part.apart_frac)


def test_steps_that_are_unlike() -> None:
    halves = ["gemm"] * 20 + ["other"] * 20
    unlike = "the time of (gemm|other) kernels on rank 0 differs from that of all by"
    for lengths, families, message in (
        ([65] * 40, halves, unlike),
        ([10] * 20 + [90] * 20, ["communication"] * 40, "they are unlike"),
    ):
        spans = [{**row, "family": family} for row, family in zip(work(lengths), families, strict=True)]
        with pytest.raises(PerfkitError, match=message):
            found(even(40), *spans, aim=11)
    # Copies count too.
    moved = copies(*(us(100 * n, 100 * n + 60, direction="H2D") for n in range(20)))
    table = steps.STEPS.make(pd.DataFrame(even(40)))
    with pytest.raises(PerfkitError, match="the time of H2D copies on rank 0"):
        stretch(table, kernels(*work([50] * 40)), moved, aim=11, most=100)
    # Nine steps; twelve in the first 1,200 of 3,000 us; ten that hold 150 kernels with 100 at most.
    for rows, spans, why in (
        (even(9), work([50] * 9), "steps: 9 steady ones are too few"),
        (even(12), work([100] * 30), r"the steady ones are 40\.0 % of the time, less"),
        (
            [step(n, 300 * n, 300) for n in range(10)],
            *(work([15] * 150, every_us=20), "steps: 10 of them have 150 kernels, more than 100"),
        ),
    ):
        with pytest.raises(PerfkitError, match=why):
            found(rows, *spans)


def test_only_steps_that_all_ranks_have_and_that_lie_in_the_window_count() -> None:
    rows = [*even(14), *even(14, rank=1, shift_us=10)]
    rows[14]["steady"] = False
    part = found(rows, *work([50] * 14), *work([50] * 14, rank=1), aim=100, window=(0, 1_215 * US))
    assert (1, 11, 11, 11) == (part.first, part.last, part.steps, part.of_steps)
    assert (100 * US, 1_210 * US) == part.window


@pytest.mark.parametrize(
    ("settings", "change"),
    [
        (Settings(loading_ns=1_500_000), Host(factor=0.0)),
        (Settings(sync_every=2, cpu_ns=20_000), Synchronisations()),
        (Settings(input_ns=1_000_000), Copies("overlapped")),
        (Settings(kernel_ns=100_000), Kernels(0.5)),
        (Settings(ranks=2, reduce_every=5, slow_rank_frac=0.3), Kernels(0.5, family="communication")),
    ],
)
def test_a_stretch_gains_what_the_whole_does(settings: Settings, change: Change) -> None:
    run = simulated(replace(settings, steps=160))
    tables = (run.kernels, run.copies, run.api_calls, run.ranges)
    aim = len(run.kernels) // 4
    part = stretch(steps.detect(run.ranges, run.kernels), run.kernels, run.copies, aim=aim, most=len(run.kernels))
    work, moved, called, named = around(*tables, part.window)
    assert len(work) < 1.2 * aim
    ratios = []
    for frames, window in ((tables, None), ((work, moved, called, named), part.window)):
        told = replay(*frames[:3], ranges=frames[3], changes=[change], window=window)
        assert told.measured_ns == pytest.approx(told.unchanged_ns, rel=0.02)
        ratios.append(told.span_ns / told.measured_ns)
    assert ratios[0] == pytest.approx(ratios[1], rel=part.doubt_frac)
    assert 0.03 > part.doubt_frac


CAPTURES = [
    "torch/HTA__ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    "torch/kineto__resnet50_num_workers_0__worker0.1623143566756.pt.trace.json.gz",
    "nsys/openhackathons-org__AI-Profiler__baseline.sqlite",
]


@pytest.mark.parametrize("capture", CAPTURES)
def test_the_rows_around_a_window_are_all_that_a_replay_needs(profiles: Path, capture: str) -> None:
    run = perfkit.load(profiles / capture)
    tables = (run.kernels, run.copies, run.api_calls, run.ranges)
    whole = steps.detect(run.ranges, run.kernels)
    starts = whole["start_ns"].to_numpy() if len(whole) > 3 else np.linspace(*run.kernels["start_ns"].iloc[[0, -1]], 6)
    for first, last in zip(starts[1:-3].astype(int).tolist(), starts[4:].astype(int).tolist(), strict=True):
        told = []
        for frames in (tables, around(*tables, (first, last))):
            try:
                answer = replay(*frames[:3], ranges=frames[3], changes=[Host(factor=0.5)], window=(first, last))
                told.append((answer.measured_ns, answer.unchanged_ns, answer.low_ns, answer.high_ns, answer.touched))
            except PerfkitError as e:
                told.append(str(e).partition(":")[0])
        assert told[0] == told[1]

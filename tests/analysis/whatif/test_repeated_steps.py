"""Steps that stand for a long run: which are taken, when none are, and that their replay is that of the whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
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


def step(number: int, start_us: int, length_us: int, *, rank: int = 0, steady: bool = True) -> dict[str, Any]:
    """A row of STEPS."""
    times = {"start_ns": start_us * US, "dur_ns": length_us * US}
    return {"rank": rank, "step": number, **times, "name": "step", "how": "nvtx", "steady": steady}


def work(lengths_us: list[int], *, rank: int = 0, family: str = "gemm", every_us: int = 100) -> list[dict[str, Any]]:
    """One kernel for each length, at the start of its step."""
    return [
        {"start_ns": n * every_us * US, "dur_ns": length * US, "rank": rank, "family": family}
        for n, length in enumerate(lengths_us)
    ]


def even(count: int, *, rank: int = 0, shift_us: int = 0) -> list[dict[str, Any]]:
    """Steps of 100 us."""
    return [step(n, 100 * n + shift_us, 100, rank=rank) for n in range(count)]


def found(rows: list[dict[str, Any]], *spans: dict[str, Any], aim: int = 10, **more: Any) -> Any:
    """The stretch of these steps and kernels."""
    return stretch(steps.STEPS.make(pd.DataFrame(rows)), kernels(*spans), COPIES.empty(), aim=aim, most=100, **more)


def test_the_stretch_by_hand() -> None:
    """40 steps of 100 us, 20 of them with a kernel of 40 us, then 20 with one of 60: only the middle has 50 on average.

    The ten in the middle are steps 15 to 24; all 40 are 4,000 us, which the last kernel ends 40 us before.
    """
    part = found(even(40), *work([40] * 20 + [60] * 20))
    assert (15, 24, 10, 40) == (part.first, part.last, part.steps, part.of_steps)
    assert (1_500 * US, 2_500 * US) == part.window
    assert (1.0, 0.0) == (part.share_frac, part.apart_frac)


def test_a_stretch_that_is_not_quite_alike_says_by_how_much() -> None:
    """Kernels of 50 us, and one of 59 in each eighth step: in ten in a row there are 1.25 of them on average, 1 or 2.

    With one, 0.25 x 9 us of 1,000 are missing: 0.225 %.
    """
    part = found(even(40), *work([59 if n % 8 == 0 else 50 for n in range(40)]))
    assert 0.00225 == pytest.approx(part.apart_frac)


@pytest.mark.parametrize(
    ("lengths", "families", "message"),
    [
        (
            [65] * 40,
            ["gemm"] * 20 + ["other"] * 20,
            "the time of (gemm|other) kernels on rank 0 differs from that of all by",
        ),
        ([10] * 20 + [90] * 20, ["communication"] * 40, "they are unlike"),
    ],
)
def test_steps_that_are_unlike(lengths: list[int], families: list[str], message: str) -> None:
    """The second half runs other, or longer, kernels: eleven steps in a row cannot have as much of either as all."""
    spans = [{**row, "family": family} for row, family in zip(work(lengths), families, strict=True)]
    with pytest.raises(PerfkitError, match=message):
        found(even(40), *spans, aim=11)


def test_steps_that_are_too_few_or_too_small_a_part() -> None:
    """Nine steps; twelve in the first 1,200 of 3,000 us; ten that hold 150 kernels with 100 at most."""
    with pytest.raises(PerfkitError, match="steps: 9 steady ones are too few"):
        found(even(9), *work([50] * 9))
    with pytest.raises(PerfkitError, match=r"the steady ones are 40\.0 % of the time, less"):
        found(even(12), *work([100] * 30))
    with pytest.raises(PerfkitError, match="steps: 10 of them have 150 kernels, more than 100"):
        found([step(n, 300 * n, 300) for n in range(10)], *work([15] * 150, every_us=20))


def test_only_steps_that_all_ranks_have_and_that_lie_in_the_window_count() -> None:
    """Rank 1 is 10 us behind and its first step is not steady; the window leaves out the last two."""
    rows = [*even(14), *even(14, rank=1, shift_us=10)]
    rows[14]["steady"] = False
    part = found(rows, *work([50] * 14), *work([50] * 14, rank=1), aim=100, window=(0, 1_215 * US))
    assert (1, 11, 11, 11) == (part.first, part.last, part.steps, part.of_steps)
    assert (100 * US, 1_210 * US) == part.window


def test_copies_count_too() -> None:
    """The kernels are alike, but all copies are in the first half: eleven steps have five or six of them, not 5.5."""
    moved = copies(*({"start_ns": n * 100 * US, "dur_ns": 60 * US, "direction": "H2D"} for n in range(20)))
    table = steps.STEPS.make(pd.DataFrame(even(40)))
    with pytest.raises(PerfkitError, match="the time of H2D copies on rank 0"):
        stretch(table, kernels(*work([50] * 40)), moved, aim=11, most=100)


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
    """A quarter of 160 steps: unchanged within 2 %, and changed in the same ratio as the whole, within what it says."""
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
    """Windows of three steps of real captures: the same spans, or refusal, from the part of the tables as from all."""
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

"""Warm-up is told where the first steps are slow, on the GPU or on the CPU: small runs with known times."""

from itertools import accumulate
from pathlib import Path

import pandas as pd
import pytest
from diagnosis.traces import MS, all_of, told, view
from frames import api_calls, kernels, ranges

import perfkit
from perfkit.diagnosis.kernel_loading import first_launches, loaded_before
from perfkit.diagnosis.replayed import saving
from perfkit.diagnosis.rules.changes import GRAPHS
from perfkit.diagnosis.warming import _in_steps
from perfkit.report.notebooks import sample


def ahead() -> perfkit.Selection:
    """The CPU is done after 45 ms: a step of 40 ms, four of 1 ms; the GPU works from 0 to 1 and from 39 to 89 ms."""
    spans = [(0, 40), *((40 + i, 1) for i in range(4))]
    launches = [(0, 0, 1, "begin")]
    for step, (start, dur) in enumerate(spans):
        at = start + dur - 1
        launches += [(at, 39 + 10 * step, 5, "a"), (at, 44 + 10 * step, 5, "b")]
    rows = [
        {"start_ns": start * MS, "dur_ns": dur * MS, "name": name, "correlation": i}
        for i, (_, start, dur, name) in enumerate(launches)
    ]
    calls = [
        {"start_ns": at * MS, "dur_ns": 1000, "correlation": i}
        for i, (at, *_) in enumerate(launches)
    ]
    named = [
        {"start_ns": start * MS, "dur_ns": dur * MS, "name": f"step {i}"}
        for i, (start, dur) in enumerate(spans)
    ]
    return view(kernels=kernels(*rows), api_calls=api_calls(*calls), ranges=ranges(*named))


def stepped(first_ms: int) -> perfkit.Selection:
    """A first step and four of 10 ms, each a kernel that fills it, in ranges."""
    spans = [(0, first_ms), *((first_ms + 10 * i, 10) for i in range(4))]
    rows = [{"start_ns": start * MS, "dur_ns": dur * MS} for start, dur in spans]
    return view(
        kernels=kernels(*rows),
        ranges=ranges(*({**row, "name": f"step {i}"} for i, row in enumerate(rows))),
    )


def test_a_first_step_that_is_slow_on_the_cpu_alone_is_told() -> None:
    """The GPU is idle for 38 of 89 ms in the first step, which its own steps of 10 ms do not show."""
    found = told(ahead())
    of = found["warm_up"]
    assert of.title == "Warm-up takes 42.7 % of the measured time"
    assert ("high", 38 / 89) == (of.severity, pytest.approx(of.evidence[0].value))
    assert (
        "1 of 5 steps (found by nvtx) is slower: it takes 40.0 ms instead of 1.00 ms"
        in of.explanation
    )
    (idle,) = (finding for rule, finding in found.items() if rule.startswith("idle_"))
    assert "100 % of this time lies in warm-up steps" in idle.against


def unmarked(first: str) -> perfkit.Selection:
    """Kernels named by letters, without ranges: the first ones over 60 ms, then a step of 10 ms five times."""
    rows = [
        {"start_ns": 60 * MS * i // len(first), "dur_ns": MS, "name": name}
        for i, name in enumerate(first)
    ]
    for step in range(5):
        at = (60 + 10 * step) * MS
        rows += [
            {"start_ns": at + i * MS // 2, "dur_ns": MS // 4, "name": n}
            for i, n in enumerate("aaaaaaaabcdefghi")
        ]
    return view(kernels=kernels(*rows))


@pytest.mark.parametrize(
    ("first", "is_told"),
    [
        ("xaybzcdefghi", True),  # the first step tries other kernels in the place of "a"
        ("xaybzcdexyz", False),  # another phase, which shares some kernels
        ("xaybbzccddeeffgghhii", False),  # the work of two steps, not a slow one
    ],
)
def test_a_first_step_that_repeats_nothing_is_warm_up(first: str, is_told: bool) -> None:
    """It is in no repeated sequence, but runs what a step runs, once, and takes 60 ms instead of 10."""
    found = told(unmarked(first))
    assert is_told == ("warm_up" in found)
    if is_told:
        of = found["warm_up"]
        assert ("high", pytest.approx(60 / 107.75)) == (of.severity, of.evidence[0].value)
        assert (
            "1 of 6 steps (found by kernel sequence) is slower: it takes 60.0 ms" in of.explanation
        )


@pytest.mark.parametrize(("first", "is_told"), [(12, False), (15, False), (16, True), (30, True)])
def test_a_first_step_within_the_threshold_is_not_told(first: int, is_told: bool) -> None:
    assert is_told == ("warm_up" in told(stepped(first)))


def test_real_warm_up(profiles: Path) -> None:
    """In ex-gpu one first launch holds 2,969 of 3,086 µs (the export has it twice); launches in graphs save 0.1 %."""
    name = "HTA__amd_trace__mi250_minitoy_train_ROCm6_2_kineto.json.gz"
    found = told(perfkit.load(profiles / "torch" / name))
    assert "warm_up" not in found or found["warm_up"].evidence[0].value <= 1
    chosen = all_of(perfkit.load(profiles / "nsys" / "extra-p__extrap__ex-gpu.s10.sqlite"))
    saved = saving(chosen, GRAPHS)
    assert saved is not None
    assert saved < 0.01


def test_first_launches_that_load_kernels_are_those_of_the_raw_tables() -> None:
    """Of 28 kernels of the sample 27 take 1,709 ms to load, while later launches take 5.6 µs in the median (raw SQL).

    The GPU is idle all that time, 17.2 % of the span, and the warm-up steps hold it: it is told once, with them.
    """
    (export,) = sample().glob("*.sqlite")
    chosen = all_of(perfkit.load(export))
    loading = chosen.api_calls["dur_ns"].iloc[
        first_launches(chosen.all_kernels, chosen.api_calls)["row"]
    ]
    assert (27, 1_709_007_599) == (len(loading), loading.sum())
    found = told(chosen)
    assert "start_up" not in found
    evidence = {figure.id: figure.value for figure in found["warm_up"].evidence}
    assert evidence["start_up_frac"] == pytest.approx(1_709_007_599 / 9_916_211_487, rel=1e-3)
    assert (
        "Loading kernels keeps the GPU idle 17.2 % of the time: 27 calls load"
        in found["warm_up"].explanation
    )


def test_one_call_is_said_in_the_singular(profiles: Path) -> None:
    trace = profiles / "torch/HTA__alexnet__benchmark_result_2869224_1695835535_trace.json.gz"
    assert told(perfkit.load(trace))["start_up"].explanation.startswith(
        "1 call loads kernels, or compiles them"
    )


def launching(first_ns: int, *, again: int) -> perfkit.Selection:
    """Ten kernels on an idle GPU, each launched by a call of `first_ns`, and `again` times by calls of 10 µs."""
    each = [
        (f"k{i}", first_ns if lap == 0 else 10_000) for lap in range(1 + again) for i in range(10)
    ]
    starts = accumulate((length + 20_000 for _, length in each), initial=0)
    rows, calls = [], []
    for i, ((name, length), at) in enumerate(zip(each, starts, strict=False)):
        rows.append(
            {"start_ns": at + length + 1_000, "dur_ns": 5_000, "name": name, "correlation": i}
        )
        calls.append({"start_ns": at, "dur_ns": length, "correlation": i})
    return view(kernels=kernels(*rows), api_calls=api_calls(*calls))


@pytest.mark.parametrize(("first_ns", "share"), [(2_000_000, 18 / 18.185), (99_000, None)])
def test_loading_is_no_gain(first_ns: int, share: float | None) -> None:
    found = told(launching(first_ns, again=0))
    assert ("start_up" in found) == (share is not None)
    assert bool({"idle_launch", "launch_overhead"} & {*found}) == (share is None)
    if share:
        assert found["start_up"].evidence[0].value == pytest.approx(share, rel=1e-3)
        assert (1.0, 1.0) == (found["start_up"].gain.low, found["start_up"].gain.high)


def test_loading_before_a_window_and_after_the_warm_up_is_told_apart() -> None:
    twice = launching(2_000_000, again=1)
    calls, ran = twice.api_calls, twice.all_kernels
    calls = calls.assign(dur_ns=calls["dur_ns"].where(calls.index != 10, 2_000_000))
    first = first_launches(ran, calls)
    part = loaded_before(first, ran.iloc[10:], calls.iloc[10:])
    pd.testing.assert_frame_equal(calls.iloc[10:], part)
    whole = loaded_before(first, ran, calls)
    assert [10_000] * 10 + [2_000_000] + [10_000] * 9 == whole["dur_ns"].tolist()
    assert (whole["start_ns"] + whole["dur_ns"]).tolist() == (
        calls["start_ns"] + calls["dur_ns"]
    ).tolist()
    steps = pd.DataFrame({"rank": [0], "start_ns": [0], "dur_ns": [10 * MS]})
    calls = pd.DataFrame(
        {"rank": [0, 0], "start_ns": [5 * MS, 20 * MS], "dur_ns": [5 * MS, 4 * MS]}
    )
    assert _in_steps(calls, steps)
    assert not _in_steps(calls.assign(dur_ns=[4 * MS, 5 * MS]), steps)
    assert not _in_steps(calls.assign(rank=1), steps)

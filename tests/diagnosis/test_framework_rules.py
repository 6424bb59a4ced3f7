"""What the rules of the framework say of evidence that was planted, each by hand, and where they are silent."""

from __future__ import annotations

from typing import Any

import pytest
from diagnosis.traces import (
    BF16,
    GEMM,
    LOADER,
    MS,
    US,
    in_turn,
    leaking,
    micro_kernels,
    of_tables,
    reading_values,
    replays,
    run,
    steps,
    tokenising,
    waiting_for_input,
    work,
)
from frames import ranges
from ops import op, python_calls

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis.finding import Finding
from perfkit.run import Run

GRAPHS = [{"start_ns": i * 200 * US, "dur_ns": US, "name": "cudaGraphLaunch"} for i in range(10)]
FP32 = {"family": "gemm", "kernel": "sgemm", "dtypes": '["float","float"]'}


def found(of: Run) -> dict[str, Finding]:
    """The findings by their rule."""
    return {finding.rule: finding for finding in diagnosis.findings(of)}


def share(of: Run, rule: str) -> float:
    """What the run gains at most by what a rule found, as a share of its time."""
    part = found(of)[rule].gain.share
    assert part is not None
    return part


def test_memory_that_no_step_gives_back() -> None:
    """100 bytes more in each of 12 steps, of which the first is not steady: (10,000 - 2,600) / 100 more until full."""
    told = found(leaking(100))["memory_growth"]
    assert "Each step keeps 100 B more of the GPU's memory" == told.title
    assert "After about 74 more steps its memory of 10.0 kB is full." in told.explanation
    assert not told.gain.is_known
    for quiet in (leaking(0), leaking(-50), leaking(1)):
        assert "memory_growth" not in found(quiet), "nothing, less, or under 1 % of the peak in all"
    assert "memory_growth" in found(leaking(100, but=5)), "one step of ten may differ"


def test_input_is_told_once() -> None:
    """Where the gaps show their cause the system tells it; without CUDA calls the wait of the steps does.

    The GPU is idle from 100 i to 100 i + 40 ms of steps 0 to 4, in step 0 before its first kernel: 200 of 500 ms.
    """
    frames = {name: getattr(waiting_for_input(), name.lower()) for name in ("KERNELS", "OPS", "RANGES")}
    waiting = found(of_tables(**frames))["input"]
    assert "Each step waits 40.0 % of its time for data" == waiting.title
    assert ("high", pytest.approx(200 / 500, rel=1e-3)) == (waiting.severity, waiting.gain.share)
    assert "input" not in found(waiting_for_input())


def test_input_without_a_gpu_is_a_share_of_the_steps() -> None:
    """Where no GPU was recorded the gain is of the steps' time, 1 / (1 - 0.4), and no share of the run's."""
    waiting = found(of_tables(**{name: getattr(waiting_for_input(), name.lower()) for name in ("OPS", "RANGES")}))
    assert ("high", None) == (waiting["input"].severity, waiting["input"].gain.share)
    assert 1 / 0.6 == pytest.approx(waiting["input"].gain.high)


def test_waiting_beside_a_busy_gpu_costs_nothing() -> None:
    """The thread waits for half of each step, but the GPU has work for all of it: nothing to gain, low."""
    works = [work("aten::mm", i * 100 * MS + US, i * 100 * MS + 10 * US, 99 * MS, **GEMM) for i in range(5)]
    loader = (op(LOADER, i * 100 * MS + 10 * US, i * 100 * MS + 50 * MS) for i in range(5))
    waiting = found(run(*works, ranges=ranges(*steps(), *loader)))["input"]
    assert ("low", 0.0) == (waiting.severity, waiting.gain.share)


def test_synchronisation_names_who_waits() -> None:
    """Kernels end 55 us after each start of 100 us, waits of 48 us at 58; the GPU is idle for 50: 9 * 48 of 950 us.

    Without a wait all that follows it comes as much earlier as it lasted. The last wait has no operation after it and
    costs nothing that is known.
    """
    line = python_calls(op("train.py(33): log", 0, 1000 * US))
    waits = found(reading_values(58, python_calls=line))["synchronisation"]
    assert ("high", pytest.approx(9 * 48_000 / 950_000)) == (waits.severity, waits.gain.share)
    expected = "The CPU waits 10 times. The most costly waits are 9 by cudaStreamSynchronize at train.py(33): log."
    assert expected == waits.explanation


def test_short_waits_are_not_to_blame() -> None:
    """Waits of 2 us after the kernel is done cannot make 45 us of idle time: 9 * 2 of 950 us, no finding."""
    works = [work("aten::mm", i * 100 * US + US, i * 100 * US + 5 * US, 50 * US, **GEMM) for i in range(10)]
    calls = [{"start_ns": i * 100 * US + 60 * US, "dur_ns": 2 * US, "name": "cudaStreamSynchronize"} for i in range(10)]
    one = run(*works, calls=calls)
    assert 18 / 950 == pytest.approx(diagnosis.figures(one)["sync_idle_frac"].value)
    assert "synchronisation" not in found(one)


def test_what_the_system_told_of_waits_is_not_told_again() -> None:
    """Where the waits last until the next launch, the gaps have them as their cause: one finding, the system's.

    Where they last for half of the 50 us to it, the 25 us after them are worth telling, and the rule about waits tells
    of both: 50 us of each gap, and nobody else the 25 us inside the waits.
    """
    rules = {"idle_sync", "synchronisation", "idle_host_code"}
    assert {"idle_sync"} == rules & set(found(reading_values(99)))
    both = reading_values(80)
    assert 9 * 25 / 950 == pytest.approx(diagnosis.figures(both)["idle_sync_frac"].value)
    assert {"synchronisation"} == rules & set(found(both))
    assert 9 * 50 / 950 == pytest.approx(share(both, "synchronisation"), rel=1e-3)


def test_small_operators_gain_their_pauses() -> None:
    """Kernels of 3 us every 20 us: 299 gaps of 17 us in a span of 5,983 us, of which each launch arrives for 3 us."""
    small = found(micro_kernels())["small_operators"]
    assert 299 * 17_000 / 5_983_000 == pytest.approx(small.gain.share)
    assert "100 % of the launches" in small.explanation
    assert "aten::add, aten::mul, aten::native_layer_norm" in small.explanation


@pytest.mark.parametrize(("every", "dur"), [(20, 12), (2000, 3)])
def test_operators_that_are_not_the_cause(every: int, dur: int) -> None:
    """Kernels of 12 us are not small, and gaps of 2 ms are no pauses between launches."""
    works = [work("aten::add", i * every * US + US, i * every * US + 3 * US, dur * US) for i in range(100)]
    assert "small_operators" not in found(run(*works))


def test_small_operators_launched_ahead_cost_nothing() -> None:
    """Kernels of 3 us with 1 us between, launched every us before: the GPU never waits for a launch."""
    works = [work("aten::add", i * US + US, 100 * US + i * 4 * US, 3 * US) for i in range(100)]
    assert "small_operators" not in found(run(*works))


def test_kernels_without_operator_are_not_of_small_operators() -> None:
    """Two kernels in three are launched outside of operators, which nobody can name: silent."""
    works = [work("aten::add", i * 20 * US + US, i * 20 * US + 4 * US, 3 * US) for i in range(90)]
    for i in range(90):
        if i % 3:
            works[i].pop("op")
    assert "small_operators" not in found(run(*works))


def test_pauses_are_unknown_where_graphs_are_lost() -> None:
    """Micro kernels beside graphs of which nothing was recorded: the GPU may have worked in every pause."""
    works = [work("aten::add", i * 20 * US + US, i * 20 * US + 4 * US, 3 * US) for i in range(100)]
    assert "small_operators" in found(run(*works))
    assert {} == found(run(*works, calls=GRAPHS))


def test_kernels_of_graphs_are_not_launched_one_by_one() -> None:
    """The same micro kernels as nodes of graphs need no graph: only what is launched alone counts."""
    works = [work("aten::add", i * 20 * US + US, i * 20 * US + 4 * US, 3 * US, in_graph=True) for i in range(100)]
    assert "small_operators" not in found(run(*works))


def test_precision_gains_the_matrix_work() -> None:
    """8 of 10 ms of products, 7 in float32 and 1 in nobody knows what: no mixed precision; at most 5x."""
    products = ("aten::mm", 7, FP32), ("aten::mm", 1, {"family": "gemm"})
    mixed = found(in_turn(*products, ("aten::add", 2, {"family": "elementwise"})))["precision"]
    assert "0 % of the matrix work uses 16 or 8 bits" in mixed.title
    assert "80.0 % of the kernel time, most of it in fp32." in mixed.explanation
    assert ("high", pytest.approx(0.8)) == (mixed.severity, mixed.gain.share)


@pytest.mark.parametrize("dtypes", [BF16, None])
def test_precision_that_is_reduced_or_unknown(dtypes: str | None) -> None:
    """In bf16 there is nothing to say, and nothing can be said of products whose format nothing tells."""
    assert "precision" not in found(in_turn(("aten::mm", 8, {"family": "gemm", "dtypes": dtypes})))


def test_little_matrix_work_needs_no_precision() -> None:
    """Products of 0.5 of 10.5 ms: silent."""
    assert "precision" not in found(in_turn(("aten::mm", 1, FP32), ("aten::add", 20, {"family": "elementwise"})))


def test_precision_matters_little_to_an_idle_gpu() -> None:
    """1 ms of products every 100 ms: at most 6 of 501 ms to gain, low."""
    works = [work("aten::mm", i * 100 * MS + US, i * 100 * MS + 5 * US, MS, **FP32) for i in range(6)]
    mixed = found(run(*works))["precision"]
    assert ("low", pytest.approx(6 / 501)) == (mixed.severity, mixed.gain.share)


def test_streams_side_by_side_gain_their_time_once() -> None:
    """Two float32 products at once for 10 of 20 ms: 20 ms of kernels, but half of the time."""
    works = [work("aten::mm", (1 + 3 * i) * US, MS, 10 * MS, **FP32) for i in (0, 1)]
    assert 0.5 == pytest.approx(share(run(*works, work("aten::add", 9 * US, 11 * MS, 10 * MS)), "precision"))


def test_preparation_gains_the_idle_time_beside_it() -> None:
    """The first kernel starts at 60 ms; then four times 60 ms in the tokenizer of 440 ms."""
    assert 4 * 60 / 440 == pytest.approx(share(tokenising(), "preparation"), rel=1e-3)


def test_preparation_before_the_first_kernel_counts_in_a_marked_step() -> None:
    """Marked steps say that the first of five requests begins 60 ms before its kernel: five times 60 of 500 ms."""
    marked = tokenising(ranges=ranges(*steps()))
    assert 0.6 == pytest.approx(share(marked, "preparation"), rel=1e-3)
    late = perfkit.select(marked, window=(61 * MS, 500 * MS))  # a window begins where its reader wants it to
    assert 4 * 60 / 439 == pytest.approx(share(late, "preparation"), rel=1e-3)


def tokenising_in(name: str, first: int, last: int, **more: Any) -> Run:
    """Two products of 10 ms at 0 and 90 ms, and a Python function from `first` to `last` ms."""
    works = [work("aten::mm", at * MS + US, at * MS + 5 * US, 10 * MS, **GEMM) for at in (0, 90)]
    return run(*works, python_calls=python_calls(op(name, first * MS, last * MS)), **more)


def test_preparation_beside_a_busy_gpu_does_not_count() -> None:
    """Of 20 ms in the tokenizer 5 lie in the gap from 10 to 90 ms: 5 of 100 ms, silent; 60 do not stay silent."""
    assert "preparation" not in found(tokenising_in("tokenize", 0, 15))
    assert 0.5 == pytest.approx(share(tokenising_in("tokenize", 30, 80), "preparation"), rel=1e-3)


def test_a_script_with_a_telling_name_is_no_preparation() -> None:
    """`train_tokenizer.py: main` launches the kernels: its time is all of the program's, not that of preparation."""
    assert "preparation" not in found(tokenising_in("train_tokenizer.py(1): main", 0, 100))


def test_preparation_is_unknown_where_graphs_are_lost() -> None:
    """The GPU may have run graphs, of which nothing was recorded, while the CPU prepared data."""
    assert "preparation" not in found(tokenising_in("tokenize", 30, 80, calls=GRAPHS))


def test_what_a_loader_prepares_is_waiting_for_input() -> None:
    """Collating inside the loader's range is told as input; what lies outside of it still counts, 20 of 100 ms."""
    inside = ranges(op(LOADER, 10 * MS, 60 * MS))
    assert "preparation" not in found(tokenising_in("collate", 10, 60, ranges=inside))
    assert 0.2 == pytest.approx(share(tokenising_in("collate", 10, 80, ranges=inside), "preparation"), rel=1e-3)


def uneven(*computing: int) -> Run:
    """Ranks that compute for so many of 100 ms, then meet in a collective that ends at 100 ms for all."""
    works = []
    for rank, length in enumerate(computing):
        for at in range(length):  # so many kernels of 1 ms: more work, not a slower GPU
            works.append(work("aten::mm", at * MS + US, at * MS + 2 * US, MS, rank=rank, **GEMM))
        meeting = {"family": "communication", "kernel": "ncclDevKernel_AllReduce"}
        works.append(work("c10d::allreduce_", 9 * US, length * MS + 2 * US, (100 - length) * MS, rank=rank, **meeting))
    return run(*works)


def test_ranks_gain_what_the_slowest_is_above_the_mean() -> None:
    """50, 50 and 80 ms of 100: 80 over 60, less 1, is a third; with even ranks 20 of 100 ms disappear."""
    ranks = found(uneven(50, 50, 80))["ranks"]
    assert "33.3 % longer than the average" in ranks.title
    assert ("medium", pytest.approx(0.2)) == (ranks.severity, ranks.gain.share)


def test_even_ranks_are_not_told() -> None:
    """80 is 1.3 % above the mean of 78 and 80."""
    assert "ranks" not in found(uneven(78, 80))


def test_without_all_nodes_of_graphs_gains_are_unknown() -> None:
    """Idle time is no figure and no finding; the formats of what was recorded are, with a gain of which none knows."""
    told = found(replays(6))
    assert {"precision"} == set(told)
    assert ("low", None) == (told["precision"].severity, told["precision"].gain.share)

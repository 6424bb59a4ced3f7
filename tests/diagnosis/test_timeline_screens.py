"""What the first page says of small runs in which the truth can be counted: kernels, pauses, shares and advice."""

import pandas as pd
import pytest
from diagnosis.traces import MS, of_tables
from frames import api_calls, copies, kernels, lasting, ranges
from ops import launch, launched, op, ops, python_calls

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis import outside, pausing, phases
from perfkit.diagnosis.computing import _twice_as_fast
from perfkit.diagnosis.evidence import holds
from perfkit.diagnosis.finding import Finding, Gain
from perfkit.diagnosis.headline import headline
from perfkit.diagnosis.picture import _enough
from perfkit.diagnosis.rules.idle import IDLE_DATA_LOADING, IDLE_MEMORY
from perfkit.diagnosis.rules.rule import Fact
from perfkit.diagnosis.transfers import _before
from perfkit.names import parts
from perfkit.report.blocks import gains
from perfkit.run import Run
from perfkit.tables import API_CALLS

LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def of_kernels(*rows: dict[str, object]) -> perfkit.Selection:
    return phases.whole(perfkit.select(of_tables("nsys", KERNELS=kernels(*rows))))


def test_a_kernel_that_runs_alone_makes_the_run_faster_by_half_of_its_time() -> None:
    """6 of 10 ms: twice as fast saves 3 ms, 10 / 7 = 1.43 times."""
    said = _twice_as_fast(of_kernels(lasting(0, 6 * MS, "a"), lasting(6 * MS, 4 * MS, "b")))
    assert said == "a takes 60.0 % of the time; twice as fast, it makes the run 1.43 times faster"


def test_time_in_which_another_stream_computes_gets_no_shorter() -> None:
    """a runs for 10 ms, for 8 of them beside b on another stream: 2 ms alone, 1 / (1 - 0.1) = 1.11 times."""
    rows = lasting(0, 10 * MS, "a"), lasting(0, 8 * MS, "b", stream=8)
    said = _twice_as_fast(of_kernels(*rows))
    assert (
        said == "a runs alone 20.0 % of the time; twice as fast, it makes the run 1.11 times faster"
    )


def test_of_streams_that_always_overlap_no_kernel_decides() -> None:
    rows = lasting(0, 10 * MS, "a"), lasting(0, 10 * MS, "b", stream=8)
    assert "none of them alone decides" in _twice_as_fast(of_kernels(*rows))


def test_of_uneven_gpus_the_busiest_sets_the_length_of_the_run() -> None:
    """GPU 0 computes for 10 of 10 ms, GPU 1 for 2: twice as fast a kernel halves the run."""
    rows = lasting(0, 10 * MS, "a"), lasting(0, 1 * MS, "a", gpu=1), lasting(9 * MS, MS, "a", gpu=1)
    said = _twice_as_fast(of_kernels(*rows))
    assert said.startswith(
        "a takes 100 % of the time of GPU 0; twice as fast, it makes the run 2.00 times"
    )


def paused(call: str = "", loads: bool = False) -> Run:
    """Forty kernels of 1 ms, launched just before, every 2 ms; before each tenth the GPU rests for 101 ms."""
    begun = [(2 * n + 100 * (n // 10) + 1) * MS for n in range(40)]
    of_gpu, calls = launched(*(launch(at - 10_000, at, MS) for at in begun))
    rests = [lasting(begun[n] - 100 * MS, 99 * MS, call or LOADER) for n in (10, 20, 30)]
    if call:
        calls = API_CALLS.make(pd.concat([calls, api_calls(*rests)]))
    named = ranges(*rests) if loads else ranges()
    return of_tables("nsys", KERNELS=of_gpu, API_CALLS=calls, RANGES=named)


def of_pauses(run: Run) -> Finding:
    (found,) = (each for each in diagnosis.findings(perfkit.select(run)) if each.rule == "pauses")
    return found


def test_pauses_are_counted_and_no_plural_of_gpus_is_told() -> None:
    found = of_pauses(paused())
    assert found.title.startswith("3 pauses take 79.")
    said = outside.sentences(diagnosis.judged(paused()))
    assert said.startswith(f"{found.title}. ")
    assert "GPUs" not in said


def test_pauses_in_which_data_are_loaded_begin_with_the_advice_for_that() -> None:
    run = paused(loads=True)
    assert pausing.reason(perfkit.select(run)).rule is IDLE_DATA_LOADING
    found = of_pauses(run)
    assert found.title.endswith("because the CPU was loading data")
    assert found.advice["immediate"][0].startswith("Raise num_workers of the DataLoader")


def test_pauses_in_a_call_name_it_and_blame_no_garbage_collector() -> None:
    found = pausing.reason(perfkit.select(paused("cudaFree")))
    assert (found.rule, found.owner) == (IDLE_MEMORY, "cudaFree")
    assert not holds(perfkit.select(paused("cudaFree")), fact=Fact.UNOWNED_PAUSES)
    assert holds(perfkit.select(paused()), fact=Fact.UNOWNED_PAUSES)


@pytest.mark.parametrize(("unknown_ns", "word"), [(9, ""), (10, "known ")])
def test_shares_say_that_a_tenth_of_the_time_is_unknown(unknown_ns: int, word: str) -> None:
    lines = pd.DataFrame(
        {"kind": ["computation", "unknown"], "cause": "", "ns": [100 - unknown_ns, unknown_ns]}
    )
    assert parts.known(lines) == word


def test_parts_of_a_loss_are_as_many_as_hold_its_share() -> None:
    """12 % of waits, 5 % of launches and 20 % between kernels: 15 % lie in the first two, 30 % in all three."""
    present = pd.Series({"sync": 0.12, "launch": 0.05, "kernel_wait": 0.20})
    assert _enough([*present.index], present, 0.15) == ["sync", "launch"]
    assert _enough([*present.index], present, 0.30) == ["sync", "launch", "kernel_wait"]
    assert _enough([*present.index], present, 0.0) == ["sync"]


def test_without_a_loop_nothing_is_steady() -> None:
    once = of_kernels(*(lasting(n * MS, MS // 2, name) for n, name in enumerate("abcdefgh")))
    assert not holds(once, fact=Fact.STEPS)
    again = of_kernels(*(lasting(n * MS, MS // 2, "abcd"[n % 4]) for n in range(40)))
    assert holds(again, fact=Fact.STEPS)


def test_gpus_that_compute_alike_are_given_one_share() -> None:
    view = of_kernels(lasting(0, 10 * MS, "a"), lasting(0, 10 * MS, "a", gpu=1))
    found = {each.rule: each for each in diagnosis.findings(view)}["computation"]
    assert found.title == "2 GPUs compute 100 % of the time"
    assert "from" not in found.explanation.split(";")[1]


def test_a_range_of_gains_that_reads_alike_is_one_number() -> None:
    assert (Gain(1.098, 1.147, "").text, Gain(1.02, 1.147, "").text) == ("1.1x", "1.02x to 1.1x")


def test_a_verdict_on_pauses_is_of_the_whole_recording() -> None:
    view = diagnosis.judged(perfkit.select(paused()))
    assert "Shares and gains are of the other" in outside.sentences(view)
    assert "Shares and gains are of the other" not in outside.sentences(view, told="pause")


@pytest.mark.parametrize(("name", "share"), [("train.py(7): cpu_adam", 0.0), ("<built-in>", 2 / 3)])
def test_what_a_function_computes_before_a_copy_is_no_cost_of_the_copy(
    name: str, share: float
) -> None:
    """12 rounds of a kernel of 1 ms, 4 ms of Python and a copy of 1 ms: 48 of 72 ms lie before copies."""
    begun = [6 * n * MS for n in range(12)]
    works = [launch(at - 10_000, at, MS) for at in begun]
    of_gpu, calls = launched(*works)
    copied = copies(
        *(lasting(at + 5 * MS, MS, correlation=100 + n, bytes=MS) for n, at in enumerate(begun))
    )
    issued = api_calls(
        *(
            lasting(at + 5 * MS - 10_000, 5_000, "cudaMemcpyAsync", correlation=100 + n)
            for n, at in enumerate(begun)
        )
    )
    functions = python_calls(*(lasting(at + MS + 10_000, 4 * MS - 30_000, name) for at in begun))
    run = of_tables(
        KERNELS=of_gpu,
        COPIES=copied,
        API_CALLS=API_CALLS.make(pd.concat([calls, issued])),
        OPS=ops(op("aten::add_", 0, 1000)),
        PYTHON_CALLS=functions,
    )
    before = _before(phases.whole(perfkit.select(run)), run.copies)
    assert before.get("host_code", 0.0) == pytest.approx(share, abs=0.02)


def test_a_verdict_begins_with_pauses_that_take_most_of_a_recording() -> None:
    """Ten kernels of their own of 1 ms, 10 s of nothing, and ten more: 99.8 %, and 20 ms to judge."""
    starts = [n * MS + 10_000 * MS * (n // 10) for n in range(20)]
    rows = (lasting(at, MS, f"k{at}") for at in starts)
    run = perfkit.select(of_tables("nsys", KERNELS=kernels(*rows)))
    figures, findings = diagnosis.figures(run), diagnosis.findings(run)
    said = headline(run, figures, findings).verdict
    assert "pauses" in {finding.rule for finding in findings}
    assert not [title for title in gains(findings, figures, run)["finding"] if "pause" in title]
    assert said.startswith("One pause takes 99.8 % of the recording. It begins at 10.0 ms")
    assert "All else on this page is of the other 20.0 ms." in said

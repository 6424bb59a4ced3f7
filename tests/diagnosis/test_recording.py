"""Can the recording be believed? Doubts of real recordings and of small ones whose answer is known."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from diagnosis.traces import MS, US, of_tables, values, view
from frames import api_calls, collectives, kernels, lasting, profile, ranges
from ops import op, ops
from real import MFU
from sampled import samples

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis import headline, recording
from perfkit.diagnosis.check import Budget, check
from perfkit.diagnosis.recording import Doubt, Kind
from perfkit.tables import DIAGNOSTICS, OVERHEAD

REPORTS = "reports/{}/trace.json"
JACOBI = "openhackathons-org__gpubootcamp__jacobi_memcpy_nvlink_report.sqlite"
Load = Callable[[str], perfkit.Selection]


@pytest.fixture
def load(profiles: Path) -> Load:
    return lambda name: perfkit.select(perfkit.load(profiles / name))


def verdict(chosen: perfkit.Selection) -> str:
    return headline.headline(chosen, diagnosis.figures(chosen), diagnosis.findings(chosen)).verdict


def first_sentence(chosen: perfkit.Selection) -> str:
    return verdict(chosen).partition(". ")[0]


def doubt(chosen: perfkit.Selection, kind: Kind) -> Doubt:
    """The only doubt of a kind."""
    (found,) = [each for each in recording.doubts(chosen) if each.kind is kind]
    return found


# What was launched and not recorded.


def test_launches_are_called_although_no_work_of_the_gpu_was_recorded(load: Load) -> None:
    chosen = load("torch/HazyResearch__zoology__trace.json.gz")
    assert (
        "The program called 260 kernel launches and 8 copies, and the recording holds no work of a GPU"
        == (first_sentence(chosen))
    )


def test_where_cuda_was_traced_and_lost_nobody_is_told_to_trace_it(load: Load) -> None:
    refused = diagnosis.refusals(load("torch/HazyResearch__zoology__trace.json.gz"))
    kernels_of = next(refusal for refusal in refused if "kernels ran" in refusal.question)
    assert "torch.cuda.synchronize()" in kernels_of.record
    assert "ProfilerActivity.CUDA" not in kernels_of.record


def test_wsl_delivers_no_work_of_the_gpu(load: Load) -> None:
    chosen = load("nsys/forestmgy__miniGEMM__report1.sqlite")
    assert first_sentence(chosen).startswith(
        "The program called 1 kernel launch, 3 copies and 1 memset"
    )
    assert "Unified Memory cannot be traced" in verdict(chosen)


def test_a_profiler_that_does_not_support_the_driver_says_so_in_the_verdict(load: Load) -> None:
    chosen = load("nsys/StellaWava__benchmarking-n-profiling-__report1.sqlite")
    assert "driver version (13.1) is not supported" in first_sentence(chosen)
    said = [each.seen for each in recording.doubts(chosen)]
    assert any("CUPTI_ERROR_INVALID_DEVICE" in text for text in said)


def test_first_kernels_that_the_profiler_lost_stand_in_the_verdict(load: Load) -> None:
    chosen = load(REPORTS.format("first_kernels_dropped"))
    assert "20 of 50 launches have no kernel in the recording, all at the start" == first_sentence(
        chosen
    )


def test_no_finding_is_sure_where_first_kernels_were_lost(load: Load) -> None:
    found = diagnosis.findings(load(REPORTS.format("first_kernels_dropped")))
    assert found
    assert "high" not in {finding.confidence for finding in found}


def test_launches_still_queued_when_a_recording_ends_are_told(load: Load) -> None:
    chosen = load("nsys/GindaChen__nsys-ai__h100_2gpu_1s.sqlite")
    lost = next(each for each in recording.doubts(chosen) if each.unit == "launches")
    assert (1_714, 3_346) == (lost.count, lost.total)
    assert lost.seen == first_sentence(chosen)


def test_copies_still_queued_when_a_recording_ends_are_told(load: Load) -> None:
    """476 of 936 calls of cudaMemcpyAsync; the other 90 without an operation are memsets."""
    found = recording.doubts(load("nsys/GindaChen__nsys-ai__h100_2gpu_1s.sqlite"))
    assert any("476 of" in each.seen and "calls that copy" in each.seen for each in found)


def test_only_the_end_is_unknown_where_launches_were_still_queued(load: Load) -> None:
    chosen = load("nsys/GindaChen__nsys-ai__h100_2gpu_1s.sqlite")
    assert values(chosen)["unknown_frac"] < 0.001


def test_a_capture_without_losses_has_no_doubt_of_them(load: Load) -> None:
    for name in (MFU, "openhackathons-org__AI-Profiler__baseline.sqlite"):
        found = recording.doubts(load(f"nsys/{name}"))
        assert not [
            each for each in found if each.kind in (Kind.LOST, Kind.BEYOND_WORK, Kind.BROKEN_TIMES)
        ]


def test_operations_without_a_call_are_counted_and_the_cause_stays_unknown(load: Load) -> None:
    chosen = load("torch/HTA__trace_compare__base.json.gz")
    assert first_sentence(chosen).startswith("16 of 18 operations of the GPU have no call")
    assert "A cause that is unknown keeps the GPU idle 99.4 % of the time" in verdict(chosen)


# Calls that were lost.


def launching(calls: range, operators: range, **tables: pd.DataFrame) -> perfkit.Selection:
    """Twelve kernels of 1 ms, 10 ms apart, of which some have a call, or an operator around it."""
    rows = (lasting(10 * at * MS, MS, "gemm", correlation=at) for at in range(12))
    called = (lasting(10 * at * MS - US, US, LAUNCH, correlation=at) for at in calls)
    of_cpu = (op("aten::mm", 10 * at * MS - 2 * US, 10 * at * MS) for at in operators)
    tables |= {"OPS": ops(*of_cpu), "KERNELS": kernels(*rows), "API_CALLS": api_calls(*called)}
    return perfkit.select(of_tables(**tables))


LAUNCH = "cudaLaunchKernel"
ALL = range(12)


def test_a_recording_with_all_calls_and_operators_has_no_doubt() -> None:
    assert [] == recording.doubts(launching(ALL, ALL))


@pytest.mark.parametrize("calls", [range(6), range(6, 12)])
def test_half_of_the_calls_that_are_lost_lead_the_verdict(calls: range) -> None:
    chosen = launching(calls, ALL)
    assert "6 of 12 operations of the GPU have no call that launched them" == first_sentence(chosen)
    assert "high" not in {finding.confidence for finding in diagnosis.findings(chosen)}


def test_lost_calls_leave_a_check_the_times_and_not_the_causes_of_idle_time() -> None:
    whole, most = launching(ALL, ALL), launching(range(10), ALL)
    budget = {id: {"tolerance": 0.1} for id in ("idle_frac", "idle_launch_frac")}
    found = {
        each.id: each
        for each in check(most.run, whole.run, Budget(tolerance=0.1, figures=budget)).verdicts
    }
    assert "have no call" in found["idle_launch_frac"].reason
    assert "have no call" not in found["idle_frac"].reason


@pytest.mark.parametrize("operators", [range(6), range(6, 12)])
def test_half_of_the_operators_that_are_lost_are_doubted(operators: range) -> None:
    """Work is launched for 110 ms, and the operators last for 50 ms of it."""
    found = doubt(launching(ALL, operators), Kind.LOST_CALLS)
    assert pytest.approx(60 / 110, abs=0.001) == found.touched_frac


def system_calls(traced: str) -> list[str]:
    """What is doubted where no call of the operating system was recorded."""
    run = launching(ALL, range(0)).run
    (one,) = run.profiles
    asked = dataclasses.replace(one, capture=one.capture.assign(traced=traced))
    return [each.seen for each in recording.doubts(perfkit.Run([asked]))]


def test_calls_of_the_operating_system_that_were_traced_and_are_missing_are_doubted() -> None:
    (seen,) = system_calls("cuda,osrt")
    assert "Calls of the operating system were traced, and the recording holds none" == seen


def test_calls_of_the_operating_system_that_nobody_traced_are_not_missed() -> None:
    assert [] == system_calls("cuda")


# Waits beyond the work.


def test_a_wait_beyond_the_recorded_work_is_unknown_time(load: Load) -> None:
    chosen = load(REPORTS.format("sync_longer_than_work"))
    beyond = doubt(chosen, Kind.BEYOND_WORK)
    assert (12, 12 * 322 * MS // 10) == (
        beyond.count,
        pytest.approx(beyond.stretches["dur_ns"].sum(), rel=0.1),
    )
    assert (
        "12 waits of the CPU for the GPU end up to 32.2 ms after the last recorded operation"
        == (first_sentence(chosen))
    )


def test_where_most_time_is_unknown_no_gain_is_computed(load: Load) -> None:
    chosen = load(REPORTS.format("sync_longer_than_work"))
    assert "times faster" not in verdict(chosen)
    assert {"not known"} == {finding.gain.text for finding in diagnosis.findings(chosen)}


# Work from before the recording.


def test_work_that_was_queued_before_the_recording_is_unknown_and_no_pause(load: Load) -> None:
    """The first kernel of stream 3 is launched 0.13 ms after the begin, and starts at 463.4 ms."""
    chosen = load("torch/TraceLens__sglang_decode__sglang_Qwen3-8B_decode.json.gz")
    assert pytest.approx(463.25 / 473.75, abs=1e-4) == doubt(chosen, Kind.LOST).unknown_frac
    assert "pauses" not in {finding.rule for finding in diagnosis.findings(chosen)}
    assert "waits 463 ms for work that was not recorded" in first_sentence(chosen)


# Ranks on different clocks.


@pytest.mark.parametrize(("apart_ms", "doubted"), [(0, False), (3, False), (50, True)])
def test_ranks_that_never_work_at_the_same_time_are_doubted(apart_ms: int, doubted: bool) -> None:
    """Rank 0 works from 0 to 4.5 ms."""
    rows = [lasting(at * MS, MS // 2) for at in range(5)]
    later = [lasting((at + apart_ms) * MS, MS // 2, rank=1) for at in range(5)]
    found = recording.doubts(view(kernels=kernels(*rows, *later)))
    assert doubted == any("never work at the same time" in each.seen for each in found)


# Too little work.


def short(count: int, dur_ns: int = US) -> perfkit.Selection:
    """So many kernels of one name, a millisecond apart."""
    rows = (lasting(at * MS, dur_ns, "gemm", correlation=at) for at in range(count))
    calls = (lasting(at * MS, US, "cudaLaunchKernel", correlation=at) for at in range(count))
    return view(kernels=kernels(*rows), api_calls=api_calls(*calls))


def test_a_handful_of_short_operations_is_too_little_to_judge_a_program() -> None:
    found = doubt(short(9), Kind.TOO_LITTLE)
    assert "The recording holds only 9 operations of the GPU" == found.seen
    assert found.is_leading


@pytest.mark.parametrize("enough", [short(10), short(2, dur_ns=MS // 2)])
def test_ten_operations_or_a_millisecond_of_work_can_be_judged(enough: perfkit.Selection) -> None:
    assert [] == recording.doubts(enough)


def test_too_little_work_makes_each_finding_unsure_and_is_told_once() -> None:
    found = diagnosis.findings(short(9))
    assert {"low"} == {finding.confidence for finding in found}
    assert 1 == verdict(short(9)).count("only 9 operations")


def test_the_start_up_of_a_program_alone_is_too_little_to_judge_it(load: Load) -> None:
    chosen = load("nsys/Qcompiler__MIXQ__src_report1.sqlite")
    assert "holds only the start-up of a program" in doubt(chosen, Kind.TOO_LITTLE).seen


def meeting(ahead_ms: int) -> perfkit.Selection:
    """Two ranks meet in a collective of 0.1 ms every 10 ms, ten times; the clock of rank 1 is ahead."""
    times = [(rank, 10 * at + rank * ahead_ms) for rank in range(2) for at in range(10)]
    work = kernels(*(lasting((ms - 5) * MS, 5 * MS, rank=rank) for rank, ms in times))
    jitter = (7, 2, 5, 0, 9, 4, 1, 8, 3, 6)  # us by which the ends scatter
    of_both = collectives(
        *(
            lasting(ms * MS + jitter[i % 10] * rank * US, MS // 10, rank=rank, ranks=2)
            for i, (rank, ms) in enumerate(times)
        )
    )
    return view(kernels=work, collectives=of_both)


@pytest.mark.parametrize(("ahead_ms", "doubted"), [(0, False), (3, False), (33, True)])
def test_clocks_that_collectives_show_to_differ_by_a_tenth_of_the_time_are_doubted(
    ahead_ms: int, doubted: bool
) -> None:
    said = [each.seen for each in recording.doubts(meeting(ahead_ms))]
    assert doubted == (
        "The clocks of the ranks differ by up to 33.0 ms, as their collectives show" in said
    )


# Recordings that end early.


def ending(last_call_ms: int) -> perfkit.Selection:
    """A range of 20 ms with a kernel a millisecond until `last_call_ms`."""
    of_gpu = [lasting(at * MS, MS // 2, correlation=at) for at in range(last_call_ms)]
    calls = [lasting(at * MS, US, "cudaLaunchKernel", correlation=at) for at in range(last_call_ms)]
    around = ranges(lasting(0, 20 * MS, "main"))
    return view(kernels=kernels(*of_gpu), api_calls=api_calls(*calls), ranges=around)


def test_a_range_that_outlasts_all_that_was_recorded_in_it_is_doubted() -> None:
    """The last kernel ends at 9.5 ms: 10.5 of 20 ms hold nothing."""
    early = doubt(ending(10), Kind.ENDS_EARLY)
    assert "Nothing was recorded in the last 10.5 ms of “main”" == early.seen
    assert pytest.approx(10.5 / 20) == early.touched_frac


def test_a_range_that_ends_soon_after_its_last_call_is_whole() -> None:
    assert [] == recording.doubts(ending(19))


def test_a_recording_that_ends_early_is_said_first(load: Load) -> None:
    chosen = load("torch/HTA__call_stack__backward_thread.json")
    assert first_sentence(chosen).startswith("Nothing was recorded in the last 18.1 ms of")


def test_what_a_chosen_window_leaves_out_is_no_doubt() -> None:
    chosen = perfkit.select(ending(10).run, window=(0, 9 * MS))
    assert [] == recording.doubts(chosen)


# Broken times.


def test_events_at_time_0_are_left_out(load: Load) -> None:
    chosen = load(REPORTS.format("zero_timestamps"))
    assert 300 == len(chosen.kernels)
    assert "150 of 450 kernels have times that cannot be" in first_sentence(chosen)


def test_figures_are_of_the_events_with_a_time(load: Load) -> None:
    figures = values(load(REPORTS.format("zero_timestamps")))
    assert 38.96 * MS == pytest.approx(figures["span_ns"], rel=0.001)
    assert 0.692 == pytest.approx(figures["device_busy_frac"], abs=0.002)


def test_copies_that_run_over_their_stream_are_left_out(load: Load) -> None:
    chosen = load("reports/impossible_copies/trace.json.gz")
    broken = doubt(chosen, Kind.BROKEN_TIMES)
    assert (3, 40) == (broken.count, broken.total)
    assert 37 == len(chosen.copies)


def test_copies_with_impossible_lengths_cause_nothing(load: Load) -> None:
    chosen = load("reports/impossible_copies/trace.json.gz")
    figures = values(chosen)
    assert 1_096.2 * MS == pytest.approx(figures["span_ns"], rel=0.001)
    assert 0.038 == pytest.approx(figures["exposed_copy_frac"], abs=0.004)
    assert "The GPU computes 96.1 % of the time" == first_sentence(chosen)


# Steps.


def test_steps_without_gpu_work_among_steps_with_it_stand_in_the_verdict(load: Load) -> None:
    chosen = load(REPORTS.format("steps_without_gpu_work"))
    assert first_sentence(chosen).startswith("22 of 24 steps launch nothing on the GPU")
    assert 0.92 == pytest.approx(values(chosen)["unknown_frac"], abs=0.001)


def test_no_phase_is_told_where_most_of_the_time_is_unknown(load: Load) -> None:
    """The steps whose work is lost are no start-up."""
    assert "Start-up" not in verdict(load(REPORTS.format("steps_without_gpu_work")))


def test_the_median_step_is_no_longer_than_the_span_allows(load: Load) -> None:
    assert 48.2 * MS == values(load(REPORTS.format("steps_without_gpu_work")))["step_median_ns"]


# What was written as 0.


def test_a_grid_of_0_blocks_is_not_recorded(load: Load) -> None:
    chosen = load("torch/TraceLens__evals_mi300__sdpa_03_short_seq_overhead.json.gz")
    assert "The grid of 10 of 10 kernels was not recorded" == doubt(chosen, Kind.NOT_RECORDED).seen


# The profiler's own words and time.


def message(text: str, severity: str = "warning", process: int = 1) -> pd.DataFrame:
    row = {"rank": 0, "process": process, "time_ns": 0, "severity": severity, "text": text}
    return DIAGNOSTICS.make(pd.DataFrame([row]))


def quoted(*texts: str, **tables: pd.DataFrame) -> list[str]:
    """The messages of which there is a doubt."""
    told_of = pd.concat([message(text) for text in texts])
    found = recording.doubts(view(diagnostics=DIAGNOSTICS.make(told_of), **tables))
    return [each.seen for each in found if each.kind is Kind.MESSAGE]


def test_harmless_messages_are_left_out() -> None:
    assert [] == quoted(
        "No NVTX events collected. Does the process use NVTX?", "Profiling has started."
    )


def test_a_failed_start_of_cuda_profiling_is_harmless_beside_recorded_work() -> None:
    text = "CUDA profiling might have not been started correctly."
    assert [] == quoted(text, kernels=kernels({"start_ns": 0, "dur_ns": 1}))
    assert ["The profiler says: “CUDA profiling might have not been started correctly”"] == quoted(
        text
    )


def test_a_message_with_markup_is_quoted_as_text() -> None:
    (said,) = quoted("Not all CUDA events might have been collected <b>\x1b[31m")
    assert "\x1b" not in said


def collected(start: int, dur: int, kind: str) -> pd.DataFrame:
    row = {
        "rank": 0,
        "process": 1,
        "thread": 5,
        "start_ns": start,
        "dur_ns": dur,
        "kind": kind,
        "name": "flush",
    }
    return OVERHEAD.make(pd.DataFrame([{**row, "correlation": -1}]))


def two_kernels(**more: Any) -> perfkit.Selection:
    """Kernels of 10 ms at 0 and 90 ms; the second launch was called at 89 ms."""
    work = kernels(
        *({"start_ns": 90 * i * MS, "dur_ns": 10 * MS, "correlation": i + 1} for i in (0, 1))
    )
    calls = api_calls(
        *({"start_ns": 89 * i * MS, "dur_ns": US, "correlation": i + 1} for i in (0, 1))
    )
    return view(kernels=work, api_calls=calls, **more)


def test_time_of_the_profiler_is_neither_busy_nor_idle() -> None:
    """Of the 80 ms idle, 30 are the profiler's: 20 of 70 ms are busy."""
    figures = values(two_kernels(overhead=collected(20 * MS, 30 * MS, "flush")))
    assert (pytest.approx(0.3), pytest.approx(2 / 7)) == (
        figures["unknown_frac"],
        figures["device_busy_frac"],
    )
    assert pytest.approx(1.0) == figures["device_busy_frac"] + figures["idle_frac"]


def test_idle_time_beside_that_of_the_profiler_keeps_its_cause() -> None:
    figures = values(two_kernels(overhead=collected(20 * MS, 30 * MS, "flush")))
    assert figures["idle_frac"] == pytest.approx(
        sum(
            v
            for k, v in figures.items()
            if k.startswith("idle_") and k != "idle_frac" and k.endswith("_frac")
        )
    )
    assert figures["idle_host_code_frac"] > 0.6


def test_a_full_queue_is_no_time_of_the_profiler() -> None:
    assert [] == recording.doubts(two_kernels(overhead=collected(20 * MS, 30 * MS, "queue_full")))


@pytest.mark.parametrize(("name", "ms"), [(MFU, 1.582), (JACOBI, 6.584)])
def test_time_of_the_profiler_in_a_real_capture(load: Load, name: str, ms: float) -> None:
    """Of the 26 and 419 ms idle of GPU 0, by SQL; what lies beside recorded work does not count."""
    stretches = doubt(load(f"nsys/{name}"), Kind.COLLECTOR).stretches
    own = stretches.loc[stretches["gpu"] == 0, "dur_ns"].sum()
    assert ms * MS == pytest.approx(own, rel=0.001)


def test_a_full_queue_of_launches_is_no_launch_overhead_of_the_program(load: Load) -> None:
    """By SQL 912 ms of launch calls wait for a full queue, and the GPUs are idle 0.7 % of the time."""
    found = diagnosis.findings(load("nsys/GindaChen__nsys-ai__h100_2gpu_1s.sqlite"))
    assert not {"launch_overhead", "idle_launch"} & {finding.rule for finding in found}


@pytest.mark.parametrize(("logged_ms", "doubted"), [(20, True), (38, False)])
def test_a_profiled_step_that_is_longer_than_that_of_the_log_is_distorted(
    logged_ms: int, doubted: bool
) -> None:
    """Ten profiled steps of 40 ms each."""
    work = kernels(*(lasting(40 * at * MS, MS) for at in range(10)))
    marked = ranges(*(lasting(40 * at * MS, 40 * MS, kind="step") for at in range(10)))
    log = samples(at=range(5), iteration_ns=[logged_ms * MS] * 5)
    found = recording.doubts(view(kernels=work, ranges=marked, samples=log))
    said = [each.seen for each in found if each.kind is Kind.DISTORTED]
    assert (
        ["A profiled step takes 40.0 ms, and a step of the log 20.0 ms"] if doubted else []
    ) == said


def test_instruction_sampling_is_said_to_slow_a_program(load: Load) -> None:
    chosen = load("hpctoolkit/hpctoolkit-dlrm-gpu-database")
    assert "2,460,687 samples of GPU instructions, which slows a program down" in first_sentence(
        chosen
    )


# Another time.


def logged(*at_ms: int) -> perfkit.Selection:
    """A timeline of 100 ms, and a log with readings at these times, both from the same second on."""
    work = kernels({"start_ns": 0, "dur_ns": 100 * MS})
    read = samples(at=[at * MS for at in at_ms], gpu_busy_frac=[0.5] * len(at_ms))
    timeline = profile("nsys", "a", 0, 100 * MS, KERNELS=work)
    log = profile("nvidia_smi", "b", 0, 1_000 * MS, SAMPLES=read)
    return perfkit.select(perfkit.Run([timeline, log]))


def test_readings_outside_the_timeline_do_not_count() -> None:
    chosen = logged(10, 50, 400, 500, 900)
    assert [10 * MS, 50 * MS] == chosen.samples["time_ns"].tolist()
    assert "3 of 5 readings lie outside the timeline" == doubt(chosen, Kind.ELSEWHERE).seen


def test_readings_inside_the_timeline_raise_no_doubt() -> None:
    assert [] == recording.doubts(logged(10, 50))


# Consequences.


def test_a_recording_without_a_doubt_has_no_unknown_time() -> None:
    assert "unknown_frac" not in values(two_kernels())
    assert recording.unknown(two_kernels()).empty


def test_unknown_stretches_are_cut_to_the_window(load: Load) -> None:
    whole = load(REPORTS.format("sync_longer_than_work"))
    part = perfkit.select(whole.run, window=(0, 33 * MS))
    assert recording.unknown(part)["dur_ns"].sum() < 33 * MS


def test_check_cannot_tell_where_kernels_were_lost(load: Load, profiles: Path) -> None:
    name = "torch/kineto__resnet50_num_workers_0__worker0.1623143566756.pt.trace.json.gz"
    run = load(name).run
    of_gpu = run.kernels
    every_second = of_gpu[of_gpu.index % 2 == 0].reset_index(drop=True)
    one = run.profiles[0]
    tables = {**one.loaders, "KERNELS": lambda: every_second}
    cut = perfkit.Run(
        [profile("torch_trace", "cut", None, about=(), **{n: t() for n, t in tables.items()})]
    )
    found = check(cut, run)
    assert 2 == found.exit_code
    assert any("launches have no kernel in the recording" in each.reason for each in found.verdicts)


def test_the_table_has_a_row_a_doubt(load: Load) -> None:
    found = recording.table(load(REPORTS.format("first_kernels_dropped")))
    row = found[found["kind"].eq("lost operations")].iloc[0]
    assert (20, "launches", 0.4) == (row["count"], row["unit"], row["touched_frac"])


def test_notes_hold_the_text_of_each_doubt(load: Load) -> None:
    chosen = load(REPORTS.format("first_kernels_dropped"))
    assert any("20 of 50 launches have no kernel" in note for note in recording.notes(chosen))


def test_operations_that_name_their_calls_miss_them_in_a_recording_without_calls() -> None:
    rows = [{"start_ns": 10 * n, "dur_ns": 5, "correlation": n} for n in range(4)]
    found = doubt(view(kernels=kernels(*rows)), Kind.LOST_CALLS)
    assert "4 of 4 operations of the GPU have no call that launched them" == found.seen


def test_operations_that_name_no_call_miss_none() -> None:
    rows = [{"start_ns": 10 * n, "dur_ns": 5} for n in range(10)]
    assert [] == recording.doubts(view(kernels=kernels(*rows)))

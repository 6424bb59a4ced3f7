"""Figures and findings of small runs whose answer is known."""

import math
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import pandas as pd
import pytest
from diagnosis.traces import MS, told, values, view
from frames import api_calls, copies, kernels, ranges

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis.finding import removing
from perfkit.diagnosis.stored import kept
from perfkit.diagnosis.timeline import on_gpus


def _waiting_for_data() -> perfkit.Selection:
    """Two kernels of 10 ms, 80 ms apart; the host loads data from 10 to 88 ms and launches at 89 ms, for 1 us."""
    return view(
        kernels=kernels(
            *({"start_ns": 90 * i * MS, "dur_ns": 10 * MS, "correlation": i + 1} for i in (0, 1))
        ),
        api_calls=api_calls(
            *({"start_ns": 89 * i * MS, "dur_ns": 1000, "correlation": i + 1} for i in (0, 1))
        ),
        ranges=ranges({"start_ns": 10 * MS, "dur_ns": 78 * MS, "name": "enumerate(DataLoader)"}),
    )


def test_figures_are_shares_of_the_span() -> None:
    """20 ms of 100 ms busy: kernels run 0.2, idle 0.8, and 78 ms of that the host loads data.

    The other 2 ms pass after that: 1 ms before the launch call, 1 us in it, and 999 us until the kernel begins.
    """
    figures = values(_waiting_for_data())
    assert (100 * MS, pytest.approx(0.2)) == (figures["span_ns"], figures["kernel_busy_frac"])
    shares = {
        "": 0.8,
        "data_loading_": 0.78,
        "host_code_": 0.01,
        "launch_": 0.00001,
        "other_": 0.00999,
    }
    idle = {
        id: value for id, value in figures.items() if re.fullmatch(r"idle_\w*frac", id) and value
    }
    assert {f"idle_{part}frac": value for part, value in shares.items()} == pytest.approx(idle)
    parts = ("computation_ns", "exposed_communication_ns", "idle_ns")
    assert figures["span_ns"] == sum(figures[part] for part in parts)
    assert not {"exposed_copy_ns", "exposed_copy_frac"} & set(figures), "no copy was recorded"


def test_waiting_for_data_is_named_first() -> None:
    """The planted cause is the first finding, severe, with the range it fell in and a gain of at most 5x.

    100 ms, of which 78 ms are waited; the replay keeps the calls that launch, so that somewhat less than 5x is left.
    """
    first = diagnosis.findings(_waiting_for_data())[0]
    assert ("idle_data_loading", "high") == (first.rule, first.severity)
    assert "Data loading keeps the GPU idle 78.0 % of the time" in first.title
    assert "enumerate(DataLoader)" in first.explanation
    assert 1 < first.gain.low < 100 / 39, "two workers still need 39 ms for a step"
    assert 4.0 < first.gain.high < 5.0
    assert "best case: the run saves all of this time" in first.gain.why
    assert "worst case: none" not in first.gain.why, "the range begins at 4"


@pytest.mark.parametrize(
    ("inside_ms", "text"),
    [
        (40, "inside “zero_grad” for 33.1 % of that"),
        (5, "No range of the program covers 10 % of that."),
    ],
)
def test_a_range_is_named_from_a_tenth_of_the_waits_on(inside_ms: int, text: str) -> None:
    starts = (0, 90, 100 + inside_ms)
    calls = [{"start_ns": (at - 1) * MS, "dur_ns": 1000, "correlation": at} for at in starts]
    work = [
        {"start_ns": at * MS, "dur_ns": 10 * MS, "correlation": at, "name": f"k{at}"}
        for at in starts
    ]
    named = ranges({"start_ns": 100 * MS, "dur_ns": inside_ms * MS, "name": "zero_grad"})
    found = diagnosis.findings(
        view(kernels=kernels(*work), api_calls=api_calls(*calls), ranges=named)
    )
    assert "idle_host_code" == found[0].rule
    assert text in found[0].explanation


def test_only_what_a_range_covers_of_a_wait_is_inside_it() -> None:
    """A wait of 90 ms whose range lasts 50 ms is not inside it for 90 ms."""
    calls = [{"start_ns": at * MS, "dur_ns": 1000, "correlation": at} for at in (0, 99)]
    work = [
        {"start_ns": at * MS, "dur_ns": 10 * MS, "correlation": call}
        for at, call in ((0, 0), (100, 99))
    ]
    named = ranges({"start_ns": 10 * MS, "dur_ns": 50 * MS, "name": "compile"})
    (first, *_) = diagnosis.findings(
        view(kernels=kernels(*work), api_calls=api_calls(*calls), ranges=named)
    )
    assert "inside “compile” for 56." in first.explanation


def test_gains_and_shares_in_words() -> None:
    plain = removing(0.25, "at most all")
    assert (4 / 3, "at most all") == (pytest.approx(plain.high), plain.reason)
    known = view(kernels=kernels({"start_ns": 0, "dur_ns": MS}))
    gpus = pd.DataFrame({"rank": [0, 0], "gpu": [0, 3]})
    alike, apart = pd.Series([0.2, 0.25]), pd.Series([0.05, 0.4])
    assert "20.0 % to 25.0 % of the time on 2 GPUs" == on_gpus(known, 0.225, gpus, alike)
    assert "40.0 % of the time on GPU 3 (GPU 0: 5.0 %)" == on_gpus(known, 0.225, gpus, apart)
    assert "40.0 % of the time" == on_gpus(known, 0.4, gpus[:1], alike)


def test_small_runs_by_hand() -> None:
    found = told(view(kernels=kernels({"start_ns": 0, "dur_ns": 100 * MS})))
    assert [("computation", "low", math.inf)] == [
        (f.rule, f.severity, f.gain.high) for f in found.values()
    ]
    apart = {"start_ns": 0, "dur_ns": MS}, {"start_ns": 9 * MS, "dur_ns": MS}
    first, *_ = told(view(kernels=kernels(*apart))).values()  # no launch call was recorded
    assert ("idle", True) == (first.rule, "does not show the cause" in first.explanation)
    there, back = ({"start_ns": at * MS, "dur_ns": 40 * MS, "bytes": 6_000_000} for at in (0, 70))
    ran = kernels({"start_ns": 40 * MS, "dur_ns": 30 * MS})
    found = told(view(kernels=ran, copies=copies(there, back | {"direction": "D2H"})))
    assert ["copies_serial"] == [
        rule for rule in found if rule.startswith("copies_")
    ]  # streams: as short as 40 ms
    meeting = {"start_ns": 20 * MS, "dur_ns": 60 * MS, "family": "communication", "stream": 1}
    found = told(view(kernels=kernels({"start_ns": 0, "dur_ns": 30 * MS, "stream": 0}, meeting)))
    gain = found["exposed_communication"].gain
    assert (1, pytest.approx(80 / 30)) == (
        gain.low,
        gain.high,
    )  # less traffic: all of the 50 exposed ms of 80
    assert "hides no communication yet for 25.0 % of the time, and can hide no more" in gain.why


@pytest.mark.parametrize(
    ("copied", "computed", "rule"),
    [(60, 40, "copies_serial"), (60, 30, "copies_serial"), (62, 30, "copies_bound")],
)
def test_copies_that_computation_cannot_hide_are_bound_by_the_link(
    copied: int, computed: int, rule: str
) -> None:
    """From twice the time of the computation on, overlap hides less than half. Without copies none of it is left."""
    ran = kernels({"start_ns": copied * MS, "dur_ns": computed * MS})
    found = told(
        view(kernels=ran, copies=copies({"start_ns": 0, "dur_ns": copied * MS, "bytes": 6_000_000}))
    )
    assert [rule] == [each for each in found if each.startswith("copies_")]
    assert found[rule].gain.high == pytest.approx(1 / (1 - copied / (copied + computed)))


def test_a_vendor_and_an_empty_run_are_asked_for_what_is_missing(profiles: Path) -> None:
    asked = diagnosis.refusals(
        perfkit.load(profiles / "torch" / "TraceLens__torch_compile_triton__trace.json.gz")
    )
    commands = " ".join(refusal.record for refusal in asked)
    assert "rocprof-compute profile" in commands
    assert "amd-smi" in commands
    assert not re.search(r"\b(?:ncu|nsys|nvidia-smi)\b", commands)
    empty = view()
    assert ({}, []) == (diagnosis.figures(empty), diagnosis.findings(empty))
    records = [refusal.record for refusal in diagnosis.refusals(empty)]
    assert "nsys profile --gpu-metrics-devices=all -o report PROGRAM" in records


def _with_long_kernels(profiles: Path, rows: list[int]) -> perfkit.Run:
    """A capture in which some kernels last half of the span, over those after them on their stream."""
    run = perfkit.load(
        profiles
        / "torch/TraceLens__h100__facebook_timesformer-base-finetuned-k400__1016002.json.gz"
    )
    span = int(
        (run.kernels["start_ns"] + run.kernels["dur_ns"]).max() - run.kernels["start_ns"].min()
    )
    stretched = run.kernels.index.isin(rows)
    frame = run.kernels.assign(dur_ns=run.kernels["dur_ns"].mask(stretched, span // 2))
    return perfkit.Run(
        [replace(run.profiles[0], loaders={**run.profiles[0].loaders, "KERNELS": lambda: frame})]
    )


def test_a_few_kernels_that_run_over_the_next_ones_are_left_out(profiles: Path) -> None:
    changed = _with_long_kernels(profiles, [10, 50, 90, 130, 170, 210])
    assert 440 == len(changed.kernels)
    assert any(
        "KERNELS: 6 of 446 rows (75.2 % of the time) end more than 20 µs" in note
        for note in changed.notes
    )
    assert "high" == told(perfkit.select(changed))["attention"].confidence


def test_many_kernels_that_run_over_the_next_ones_make_findings_unsure(profiles: Path) -> None:
    chosen = perfkit.select(_with_long_kernels(profiles, list(range(0, 440, 6))))
    finding = told(chosen)["attention"]
    assert "low" == finding.confidence
    assert "74 of 446 kernels have times that cannot be" in finding.against[0]
    figures = diagnosis.figures(chosen)
    assert figures["kernel_sum_ns"].marked.endswith(" (doubtful)")
    assert "" == figures["kernel_count"].doubt == figures["h2d_ns"].doubt


def test_two_threads_work_it_out_once() -> None:
    asked, begun, go = [], Event(), Event()

    @kept
    def slow(view: perfkit.Selection, *, name: str = "") -> list[str]:
        asked.append(name)
        begun.set()
        assert go.wait(60)
        return [name]

    chosen = view()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(slow, chosen, name="a")
        assert begun.wait(60)
        second = pool.submit(slow, chosen, name="a")
        go.set()
        assert first.result(60) is second.result(60)
    assert (["b"], ["a", "b"]) == (slow(chosen, name="b"), asked)

"""Figures and findings of small runs whose answer is known."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from frames import api_calls, copies, kernels, ranges

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis.finding import removing
from perfkit.profile import Missing, Profile
from perfkit.tables import CAPTURE

MS = 1_000_000


def _view(**tables: pd.DataFrame) -> perfkit.Selection:
    capture = CAPTURE.make(
        pd.DataFrame(
            {"rank": [0], "tool": ["t"], "tool_version": [""], "path": ["p"], "t0_unix_ns": [None], "dur_ns": [10**9]}
        )
    )
    loaders = {name.upper(): (lambda frame=frame: frame) for name, frame in tables.items()}
    missing = (Missing("SAMPLES", "no GPU metrics", "nsys profile --gpu-metrics-devices=all"),)
    return perfkit.select(perfkit.Run([Profile("nsys", Path("p"), capture, loaders, missing)]))


def _waiting_for_data() -> perfkit.Selection:
    """Two kernels of 10 ms, 80 ms apart; the host loads data from 10 to 88 ms and launches at 89 ms, for 1 us."""
    return _view(
        kernels=kernels(
            {"start_ns": 0, "dur_ns": 10 * MS, "correlation": 1},
            {"start_ns": 90 * MS, "dur_ns": 10 * MS, "correlation": 2},
        ),
        api_calls=api_calls(
            {"start_ns": 0, "dur_ns": 1000, "correlation": 1}, {"start_ns": 89 * MS, "dur_ns": 1000, "correlation": 2}
        ),
        ranges=ranges({"start_ns": 10 * MS, "dur_ns": 78 * MS, "name": "enumerate(DataLoader)"}),
    )


def test_figures_are_shares_of_the_span() -> None:
    """20 ms of 100 ms busy: kernels run 0.2, idle 0.8, and 78 ms of that the host loads data.

    The other 2 ms pass after that: 1 ms before the launch call, 1 us in it, and 999 us until the kernel begins.
    """
    figures = diagnosis.figures(_waiting_for_data())
    assert 100 * MS == figures["span_ns"].value
    assert 0.2 == pytest.approx(figures["kernel_busy_frac"].value)
    assert 0.8 == pytest.approx(figures["idle_frac"].value)
    parts = {"idle": 0.8, "data_loading": 0.78, "host_code": 0.01, "launch": 0.00001, "other": 0.00999}
    shares = {id.removeprefix("idle_"): f.value for id, f in figures.items() if re.fullmatch(r"idle_\w*frac", id)}
    shares = {name.removesuffix("_frac"): value for name, value in shares.items() if value}
    assert {"idle" if name == "frac" else name: value for name, value in shares.items()} == pytest.approx(parts)


def test_parts_add_up_to_the_span() -> None:
    """computation, exposed communication, exposed copies and idle are all of the time."""
    figures = diagnosis.figures(_waiting_for_data())
    parts = ("computation_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns")
    assert figures["span_ns"].value == sum(figures[part].value for part in parts)


def test_waiting_for_data_is_named_first() -> None:
    """The planted cause is the first finding, severe, with the range it fell in and a gain of at most 5x.

    100 ms, of which 78 ms are waited; the replay keeps the calls that launch, so that somewhat less than 5x is left.
    """
    first = diagnosis.findings(_waiting_for_data())[0]
    assert ("idle_data_loading", "high") == (first.rule, first.severity)
    assert "Data loading keeps the GPU idle 78.0 % of the time" in first.title
    assert "enumerate(DataLoader)" in first.explanation
    assert 1 < first.gain.low < 100 / 78, "one worker still needs the 78 ms"
    assert 4.0 < first.gain.high < 5.0
    assert "best case: the run saves all of this time" in first.gain.reason
    assert "worst case: none" not in first.gain.reason, "the range begins at 4"


@pytest.mark.parametrize(
    ("inside_ms", "text"),
    [(40, "inside “zero_grad” for 33.1 % of that"), (5, "No range of the program covers 10 % of that.")],
)
def test_a_range_is_named_from_a_tenth_of_the_waits_on(inside_ms: int, text: str) -> None:
    """The host takes 79 ms before a launch outside of any range, and then 39 or 4 ms inside one."""
    starts = (0, 90, 100 + inside_ms)
    calls = [{"start_ns": (at - 1) * MS, "dur_ns": 1000, "correlation": at} for at in starts]
    work = [{"start_ns": at * MS, "dur_ns": 10 * MS, "correlation": at, "name": f"k{at}"} for at in starts]
    named = ranges({"start_ns": 100 * MS, "dur_ns": inside_ms * MS, "name": "zero_grad"})
    found = diagnosis.findings(_view(kernels=kernels(*work), api_calls=api_calls(*calls), ranges=named))
    assert "idle_host_code" == found[0].rule
    assert text in found[0].explanation


def test_a_gain_above_its_own_share_says_why() -> None:
    """Idle for 50 %, half of it for one reason: 1.35 times as much may go, and the reason names that share."""
    plain, wider = removing(0.25, "at most all"), removing(0.25, "at most all", idle=0.5)
    assert (4 / 3, "at most all") == (pytest.approx(plain.high), plain.reason)
    assert wider.high == pytest.approx(1 / (1 - 0.3375))
    assert wider.reason == "at most all. Other waits may get shorter too: up to 33.8 % of the time in all"


def test_busy_gpu_gives_no_severe_finding() -> None:
    """A GPU that computes all the time is told so, with low severity and no gain beyond 1."""
    view = _view(kernels=kernels({"start_ns": 0, "dur_ns": 100 * MS}))
    found = diagnosis.findings(view)
    assert [("computation", "low", 1.0)] == [(f.rule, f.severity, f.gain.high) for f in found]


def test_exposed_copies_are_found() -> None:
    """60 ms of pinned copies and then 40 ms of kernels: 40 ms can be hidden, so that 60 of 100 ms remain, 1.67x."""
    view = _view(
        kernels=kernels({"start_ns": 60 * MS, "dur_ns": 40 * MS}),
        copies=copies({"start_ns": 0, "dur_ns": 60 * MS, "bytes": 6_000_000}),
    )
    (finding,) = (f for f in diagnosis.findings(view) if f.rule == "copies_serial")
    assert 100 / 60 == pytest.approx(finding.gain.high)


@pytest.mark.parametrize(("copied", "computed", "rule"), [(60, 30, "copies_serial"), (62, 30, "copies_bound")])
def test_copies_that_computation_cannot_hide_are_bound_by_the_link(copied: int, computed: int, rule: str) -> None:
    """From twice the time of the computation on, overlap hides less than half: fewer copies gain more, up to 3.07x."""
    view = _view(
        kernels=kernels({"start_ns": copied * MS, "dur_ns": computed * MS}),
        copies=copies({"start_ns": 0, "dur_ns": copied * MS, "bytes": 6_000_000}),
    )
    (finding,) = (f for f in diagnosis.findings(view) if f.rule.startswith("copies_"))
    assert rule == finding.rule
    shares = {"copies_serial": computed, "copies_bound": copied}
    assert finding.gain.high == pytest.approx(1 / (1 - shares[rule] / (copied + computed)))


def test_copies_to_and_from_the_gpu_can_hide_each_other() -> None:
    """40 ms each way and 30 ms of kernels: streams make the run as short as 40 ms, so the link is no bound."""
    there, back = ({"start_ns": at * MS, "dur_ns": 40 * MS, "bytes": 6_000_000} for at in (0, 70))
    view = _view(
        kernels=kernels({"start_ns": 40 * MS, "dur_ns": 30 * MS}), copies=copies(there, back | {"direction": "D2H"})
    )
    assert ["copies_serial"] == [f.rule for f in diagnosis.findings(view) if f.rule.startswith("copies_")]


def test_idle_without_calls_has_no_cause() -> None:
    """Where no launch call was recorded, idle time is found and its cause refused."""
    view = _view(kernels=kernels({"start_ns": 0, "dur_ns": MS}, {"start_ns": 9 * MS, "dur_ns": MS}))
    first = diagnosis.findings(view)[0]
    assert "idle" == first.rule
    assert "does not show the cause" in first.explanation


def test_amd_gpus_are_recorded_with_their_own_tools(profiles: Path) -> None:
    """No NVIDIA command is given for what a trace of an MI300X does not hold."""
    asked = diagnosis.refusals(perfkit.load(profiles / "torch" / "TraceLens__torch_compile_triton__trace.json.gz"))
    commands = " ".join(refusal.record for refusal in asked)
    assert "hpcrun -e gpu=rocm,pc" in commands
    assert "rocm-smi" in commands
    assert not re.search(r"\b(?:ncu|nsys|nvidia-smi)\b", commands)


def test_empty_run_has_no_figures_and_no_findings() -> None:
    """A capture without GPU activity answers nothing, and says what to record."""
    view = _view()
    assert ({}, []) == (diagnosis.figures(view), diagnosis.findings(view))
    assert "nsys profile --gpu-metrics-devices=all" in [r.record for r in diagnosis.refusals(view)]


def test_kernels_that_contradict_each_other_lower_what_rests_on_them(profiles: Path) -> None:
    """Six of 446 kernels of a real trace, made as long as half the span, are told, and no finding is sure any more."""
    run = perfkit.load(profiles / "torch/TraceLens__h100__facebook_timesformer-base-finetuned-k400__1016002.json.gz")
    before = {finding.rule: finding.confidence for finding in diagnosis.findings(run)}
    assert "high" == before["attention"]
    span = int((run.kernels["start_ns"] + run.kernels["dur_ns"]).max() - run.kernels["start_ns"].min())
    stretched = run.kernels.index.isin([10, 50, 90, 130, 170, 210])
    frame = run.kernels.assign(dur_ns=run.kernels["dur_ns"].mask(stretched, span // 2))
    changed = perfkit.Run([replace(run.profiles[0], loaders={**run.profiles[0].loaders, "KERNELS": lambda: frame})])
    view = perfkit.select(changed)
    after = {finding.rule: finding for finding in diagnosis.findings(view)}
    assert "low" == after["attention"].confidence
    assert after["attention"].against[0].startswith("6 kernels, with 75.2 % of the kernel time, end more than 20 µs")
    assert after["attention"].evidence[0].marked.endswith(" % (doubtful)")
    figures = diagnosis.figures(view)
    assert figures["kernel_sum_ns"].marked.endswith(" (doubtful)")
    assert "" == figures["kernel_count"].doubt == figures["h2d_ns"].doubt
    assert any("KERNELS: 6 of 446 rows (75.2 % of the time) end more than 20 µs" in note for note in changed.notes)

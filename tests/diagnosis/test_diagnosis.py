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
            {"start_ns": 0, "dur_ns": 1000, "correlation": 1},
            {"start_ns": 89 * MS, "dur_ns": 1000, "correlation": 2},
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
    assert "78.0 % of the time because the host was loading data" in first.title
    assert "enumerate(DataLoader)" in first.explanation
    assert 4.0 < first.gain.low <= first.gain.high < 5.0


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


def test_idle_without_calls_has_no_cause() -> None:
    """Where no launch call was recorded, idle time is found and its cause refused."""
    view = _view(kernels=kernels({"start_ns": 0, "dur_ns": MS}, {"start_ns": 9 * MS, "dur_ns": MS}))
    first = diagnosis.findings(view)[0]
    assert "idle" == first.rule
    assert "cannot be told" in first.explanation


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

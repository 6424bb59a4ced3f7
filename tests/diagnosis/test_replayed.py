"""Gains are what the replay and the analytic bound both allow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from planted.program import Settings, simulated

import perfkit
from perfkit.analysis import whatif
from perfkit.analysis.whatif import Replay
from perfkit.diagnosis import replayed, rules
from perfkit.diagnosis.finding import Finding, Gain
from perfkit.diagnosis.warming import loaded_before, loading
from perfkit.profile import Profile
from perfkit.report.notebooks import sample
from perfkit.tables import CAPTURE

LIMIT = whatif.LIMIT_FRAC


def finding(rule: str, high: float, share: float = 0.5) -> Finding:
    """A finding with a bound."""
    return Finding(rule, rule, "high", "", (), "", Gain(1.0, high, "bound", share), {})


def told(monkeypatch: pytest.MonkeyPatch, answer: Replay | str) -> None:
    """Let the replay answer so."""
    monkeypatch.setattr(replayed, "_replayed", lambda view, changes: answer)


def replay(low_ns: int, high_ns: int) -> Replay:
    """A replay of a run of 1,000 ns."""
    return Replay(pd.DataFrame(), 1000, 1000, low_ns, low_ns, high_ns, (1,))


def gain(rule: str, high: float) -> Gain:
    """The gain of a finding with this bound."""
    (found,) = replayed.gains(perfkit.select(perfkit.Run([])), [finding(rule, high)])
    return found.gain


def test_the_replay_narrows_the_bound_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 ns become 500 to 800: 1.25 to 2 times as fast, each end within the 2 % that a replay is trusted to."""
    told(monkeypatch, replay(500, 800))
    found = gain("idle_data_loading", 4.0)
    assert (1000 / (800 * (1 + LIMIT)), 1000 / (500 * (1 - LIMIT))) == (found.low, found.high)
    assert "a simulation with data loading hidden takes 500 ns to 800 ns instead of 1.00 µs; bound" == found.reason


def test_what_lies_in_warm_up_is_sure_to_gain_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same replay of a finding that warm-up speaks against: the program pays it once, however long it runs."""
    told(monkeypatch, replay(500, 800))
    early = replace(finding("idle_launch", 4.0), against=("99.4 % of this time lies in warm-up steps",))
    (found,) = replayed.gains(perfkit.select(perfkit.Run([])), [early])
    assert (1.0, 4.0) == (found.gain.low, found.gain.high)
    assert found.gain.reason.endswith("bound; warm-up happens once")


def test_a_replay_beyond_the_bound_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a wait costs is more than the gap that begins with it: launches after it cannot run ahead.

    The adversary's case waits_in_step gains 1.41 by its own machine and by the replay, and 1.25 by the bound.
    """
    told(monkeypatch, replay(500, 800))
    assert 1000 / (500 * (1 - LIMIT)) == gain("idle_sync", 1.5).high
    assert 4.0 == gain("idle_sync", 4.0).high


def test_a_finding_whose_replay_gains_little_is_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the time is blamed on waits, and a run without them saves 1 %: low severity and confidence, and why."""
    told(monkeypatch, replay(990, 1000))
    (doubted,) = replayed.gains(perfkit.select(perfkit.Run([])), [finding("idle_sync", 2.0)])
    assert ("low", "low") == (doubted.severity, doubted.confidence)
    assert "saves only 1.0 % of the time" in doubted.against[-1]


def test_a_refusal_keeps_the_bound_and_gives_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is predicted by a model that does not reproduce the run."""
    told(monkeypatch, "the replay refuses: launches are missing")
    found = gain("idle_sync", 1.4)
    assert (1.0, 1.4, "bound; the replay refuses: launches are missing") == (found.low, found.high, found.reason)


def test_findings_without_a_change_to_replay_stay_as_they_are() -> None:
    """How much faster a kernel could be is not in the recording."""
    found = finding("tensor_cores", 2.0)
    assert [found] == replayed.gains(perfkit.select(perfkit.Run([])), [found])


def test_the_gain_is_that_of_the_replay_itself() -> None:
    """Of the sample run, as `whatif.replay` says: at least with one worker as slow as now, at best without loading."""
    view = perfkit.select(perfkit.load(sample()))
    worker, hidden = (
        whatif.replay(view.kernels, view.copies, view.api_calls, changes=[change], ranges=view.ranges)
        for change in (whatif.Host(workers=1), whatif.Host(factor=0.0))
    )
    (found,) = replayed.gains(view, [finding("idle_data_loading", 1000.0)])
    assert worker.measured_ns / (worker.high_ns * (1 + LIMIT)) == found.gain.low
    assert hidden.measured_ns / (hidden.low_ns * (1 - LIMIT)) == found.gain.high
    assert 1 < found.gain.low <= found.gain.high
    loading = view.ranges.loc[view.ranges["name"].str.contains("load", case=False), "dur_ns"].sum()
    assert worker.low_ns >= loading, "one worker needs this time, whatever the GPU does"


def test_all_changes_are_one_replay_never_a_product() -> None:
    """Hiding data loading and removing waits together gains less than the two gains multiplied."""
    view = perfkit.select(perfkit.load(sample()))
    names = ("idle_data_loading", "idle_sync", "copies_serial")
    each = replayed.gains(view, [finding(rule, 1000.0) for rule in names])
    both = replayed.combined(view, each, Gain(1.0, 1000.0, "bound"))
    assert max(one.gain.low for one in each) <= both.high
    changes = [whatif.Host(workers=1), *(replayed.CHANGES[rules.rules()[rule].change][1] for rule in names[1:])]
    calls = loaded_before(loading(view), view.kernels, view.api_calls)  # whatever changes, kernels are loaded
    asked = whatif.replay(view.kernels, view.copies, calls, changes=changes, ranges=view.ranges)
    assert asked.measured_ns / (asked.high_ns * (1 + LIMIT)) == both.low
    assert 1000.0 == both.high  # waits and copies may cost more than the replay takes out: the bound stays


def test_too_many_kernels_are_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that are 70 % of the sample run do not stand for it: the bound stays, and a window is advised."""
    monkeypatch.setattr(replayed, "MOST_KERNELS", 10)
    view = perfkit.select(perfkit.load(sample()))
    (found,) = replayed.gains(view, [finding("idle_sync", 3.0)])
    assert 3.0 == found.gain.high
    assert (
        "perfkit did not simulate the run: more than 10 kernels; steps: the steady ones are 69.8 % of the time"
        in found.gain.reason
    )
    assert found.gain.reason.endswith("Choose a window of some steps.")


def test_a_window_is_replayed_by_its_own_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts against the most kernels are those of the window that was chosen, as advised."""
    run = perfkit.load(sample())
    window = (start := int(run.kernels["start_ns"].iloc[20]), start + 2_000_000)
    monkeypatch.setattr(replayed, "MOST_KERNELS", int(run.kernels["start_ns"].between(*window).sum()))
    (found,) = replayed.gains(perfkit.select(run, window=window), [finding("idle_sync", 3.0)])
    assert "not replayed" not in found.gain.reason
    assert len(run.kernels) > replayed.MOST_KERNELS


def made(settings: Settings) -> perfkit.Selection:
    """The choice of all of a simulated program."""
    program = simulated(settings)
    tables = {name: getattr(program, name.lower()) for name in ("KERNELS", "COPIES", "API_CALLS", "RANGES")}
    capture = {"rank": [0], "tool": ["t"], "tool_version": [""], "path": ["p"], "t0_unix_ns": [None]}
    frame = CAPTURE.make(pd.DataFrame({**capture, "dur_ns": [2 * program.span_ns]}))
    loaders = {name: lambda table=table: table for name, table in tables.items()}
    return perfkit.select(perfkit.Run([Profile("nsys", Path("p"), frame, loaders)]))


def test_a_stretch_of_steps_is_replayed_in_place_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gain of a part of 60 steps is that which the simulator has for all, and the reason says which part."""
    settings = Settings(steps=60, loading_ns=1_500_000)
    monkeypatch.setattr(replayed, "MOST_KERNELS", 2000)
    monkeypatch.setattr(replayed, "STRETCH_KERNELS", 1200)
    (found,) = replayed.gains(made(settings), [finding("idle_data_loading", 1000.0)])
    truth = simulated(settings).span_ns / simulated(replace(settings, loading_ns=0)).span_ns
    assert found.gain.low < truth < found.gain.high
    assert found.gain.high < 1.2 * found.gain.low
    assert "It covers only steps" in found.gain.reason

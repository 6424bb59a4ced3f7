"""Gains are what the replay and the analytic bound both allow."""

from dataclasses import replace

import pandas as pd
import pytest
from diagnosis.traces import view
from planted.program import Settings, simulated

import perfkit
from perfkit.analysis import whatif
from perfkit.analysis.whatif import Replay
from perfkit.diagnosis import gain, replayed, slowing
from perfkit.diagnosis.finding import Finding, Gain, Objection, removing
from perfkit.diagnosis.kernel_loading import loaded_before, loading
from perfkit.diagnosis.rules import changes as ways
from perfkit.report.notebooks import sample

LIMIT = whatif.LIMIT_FRAC
REPLAY = Replay(
    pd.DataFrame(), 1000, 1000, 500, 500, 800, (1,)
)  # of a run of 1,000 ns, which becomes 500 to 800


@pytest.fixture(scope="module")
def run() -> perfkit.Selection:
    """The sample run, read once."""
    return perfkit.select(perfkit.load(sample()))


def finding(rule: str, high: float, share: float = 0.5) -> Finding:
    return Finding(rule, rule, "high", "", (), "", Gain(1.0, high, "bound", share), {})


def replayed_as(
    monkeypatch: pytest.MonkeyPatch,
    answer: Replay | str,
    rule: str,
    high: float,
    *objections: Objection,
) -> Finding:
    """What a finding with this bound becomes if the replay answers so."""
    monkeypatch.setattr(replayed, "_replayed", lambda view, changes: answer)
    (found,) = gain.gains(view(), [replace(finding(rule, high), objections=frozenset(objections))])
    return found


def test_the_replay_narrows_the_bound_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    found = replayed_as(monkeypatch, REPLAY, "idle_data_loading", 4.0).gain
    assert (1000 / (800 * (1 + LIMIT)), 1000 / (500 * (1 - LIMIT))) == (found.low, found.high)
    assert (
        "a simulation with data loading hidden takes 500 ns to 800 ns instead of 1.00 µs; bound"
        == found.reason
    )
    # The program pays warm-up once, however long it runs.
    found = replayed_as(monkeypatch, REPLAY, "idle_launch", 4.0, Objection.WARM_UP).gain
    assert (1.0, 4.0, True) == (
        found.low,
        found.high,
        found.reason.endswith("bound; warm-up happens once"),
    )
    assert 4.0 == replayed_as(monkeypatch, REPLAY, "idle_sync", 4.0).gain.high


def test_a_gain_ends_at_its_bound_where_nothing_else_gets_shorter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = replayed_as(monkeypatch, REPLAY, "idle_sync", 1.5).gain
    assert (1.5, ()) == (found.high, found.beyond)


def test_a_gain_goes_beyond_its_share_with_the_lines_that_get_shorter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a wait costs is more than the gap that begins with it: launches after it cannot run ahead.

    The adversary's case waits_in_step gains 1.41 by its own machine and by the replay, and 1.25 by the bound. Here the
    replay frees 0.7 of the time, and the finding claims 0.5 of it: 0.2 of the CPU's code go too.
    """
    freed = {"sync": 0.3, "host_code": 0.4, "edge": 0.0}
    monkeypatch.setattr(replayed, "shortened", lambda view, changes: freed)
    found = replayed_as(monkeypatch, REPLAY, "idle_sync", 2.0).gain
    assert (1000 / (500 * (1 - LIMIT)), ("host_code",)) == (found.high, found.beyond)


def test_lines_that_get_shorter_raise_a_bound_together() -> None:
    """A half of the time, and a fifth and 0.005 of it besides: 1 / (1 - 0.705)."""
    bound = Gain(1.0, 2.0, "bound", 0.5)
    gain = replayed.with_others(bound, {"launch": 0.2, "sync": 0.005, "other": -0.1})
    assert (1 / 0.295, ("launch",)) == (pytest.approx(gain.high), gain.beyond)
    assert bound == replayed.with_others(bound, {"sync": 0.005})


def test_what_the_replay_does_not_confirm_is_doubted_or_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    little = Replay(pd.DataFrame(), 1000, 1000, 990, 990, 1000, (1,))
    doubted = replayed_as(monkeypatch, little, "idle_sync", 2.0)
    assert ("low", "low") == (doubted.severity, doubted.confidence)
    assert "saves only 1.0 % of the time" in doubted.against[-1]
    refused = replayed_as(
        monkeypatch, "the replay refuses: launches are missing", "idle_sync", 1.4
    ).gain
    assert (1.0, 1.4, "bound. the replay refuses: launches are missing") == (
        refused.low,
        refused.high,
        refused.why,
    )
    plain = finding(
        "tensor_cores", 2.0
    )  # how much faster a kernel could be is not in the recording
    assert [plain] == gain.gains(view(), [plain])


def test_the_gain_is_that_of_the_replay_itself(run: perfkit.Selection) -> None:
    """At least with two workers as slow as now, at best without loading."""
    workers, hidden = (
        whatif.replay(run.kernels, run.copies, run.api_calls, changes=[change], ranges=run.ranges)
        for change in (whatif.Host(workers=2), whatif.Host(factor=0.0))
    )
    (found,) = gain.gains(run, [finding("idle_data_loading", 1000.0)])
    assert workers.measured_ns / (workers.high_ns * (1 + LIMIT)) == found.gain.low
    assert hidden.measured_ns / (hidden.low_ns * (1 - LIMIT)) == found.gain.high
    assert 1 < found.gain.low <= found.gain.high
    loading = run.ranges.loc[run.ranges["name"].str.contains("load", case=False), "dur_ns"].sum()
    assert workers.low_ns >= loading / 2, "two workers need this time, whatever the GPU does"


def test_all_changes_are_one_replay_never_a_product(run: perfkit.Selection) -> None:
    names = ("idle_data_loading", "idle_sync", "copies_serial")
    each = gain.gains(run, [finding(rule, 1000.0) for rule in names])
    both = gain.combined(run, each, Gain(1.0, 1000.0, "bound"))
    assert max(one.gain.low for one in each) <= both.high
    changes = [whatif.Host(workers=2), ways.NO_WAITS.replayed, ways.OVERLAPPED_COPIES.replayed]
    calls = loaded_before(
        loading(run), run.kernels, run.api_calls
    )  # whatever changes, kernels are loaded
    asked = whatif.replay(run.kernels, run.copies, calls, changes=changes, ranges=run.ranges)
    assert asked.measured_ns / (asked.high_ns * (1 + LIMIT)) == both.low
    assert (
        1000.0 == both.high
    )  # waits and copies may cost more than the replay takes out: the bound stays


def test_too_many_kernels_are_not_replayed(
    run: perfkit.Selection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replayed, "MOST_KERNELS", 10)
    again = perfkit.select(
        run.run, gpus=[0]
    )  # a selection of its own, for which nothing was simulated yet
    (found,) = gain.gains(again, [finding("idle_sync", 3.0)])
    assert 3.0 == found.gain.high
    said = "perfkit did not simulate the run: more than 10 kernels; steps: the steady ones are 69.8 % of the time"
    assert said in found.gain.why
    assert found.gain.why.endswith("Choose a window of some steps.")


def test_a_stretch_of_steps_is_replayed_in_place_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(steps=60, loading_ns=1_500_000)
    monkeypatch.setattr(replayed, "MOST_KERNELS", 2000)
    monkeypatch.setattr(replayed, "STRETCH_KERNELS", 1200)
    program = simulated(settings)._asdict()
    tables = {name: program[name] for name in ("kernels", "copies", "api_calls", "ranges")}
    (found,) = gain.gains(view(**tables), [finding("idle_data_loading", 1000.0)])
    truth = simulated(settings).span_ns / simulated(replace(settings, loading_ns=0)).span_ns
    assert found.gain.low < truth < found.gain.high
    assert found.gain.high < 1.2 * found.gain.low
    assert "It covers only steps" in found.gain.why


def test_overlapped_copies_gain_seven_tenths_of_what_the_replay_saves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 1,000 ns 500 are saved, if nothing that is copied is needed at once: 1 / (1 - 0.35)."""
    needed = replace(REPLAY, high_ns=1000)
    found = replayed_as(monkeypatch, needed, "copies_serial", 2.0).gain
    assert (pytest.approx(1 / 0.65), 2.0) == (found.low, found.high)


def test_what_the_profiler_may_take_of_the_rest_raises_the_best_case(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four tenths remain, of which short gaps are 0.25: 0.8 of these may be the profiler's, so 0.2 remain."""
    monkeypatch.setattr(slowing, "short_gaps", lambda view: 0.25)
    gain = slowing.without_profiler(view(), Gain(1.0, 2.5, "bound", 0.6), is_idle=False)
    assert (pytest.approx(1 + 0.6 / 0.2), ("collector",)) == (gain.high, gain.beyond)
    assert pytest.approx([0.6]) == gain.saved_fracs  # of the recorded time


def test_the_profiler_explains_nothing_where_kernels_are_most_of_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slowing, "short_gaps", lambda view: 0.15)
    gain = Gain(1.0, 2.5, "bound", 0.6)
    assert gain == slowing.without_profiler(view(), gain, is_idle=False)


def test_a_run_without_the_profiler_is_shorter_by_a_part_of_its_short_gaps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slowing, "short_gaps", lambda view: 0.5)
    assert (pytest.approx(0.6), pytest.approx(0.775)) == slowing.unprofiled(view())


def test_a_step_is_no_shorter_without_the_profiler_than_was_ever_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slowing, "short_gaps", lambda view: 0.9)
    assert 1 / slowing.STEP_SLOWED == slowing.unprofiled(view())[0]


def test_the_profiler_explains_nothing_of_gpus_that_nobody_uses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two GPUs in place of one make a program at most twice as fast, however slow the profiler is."""
    monkeypatch.setattr(slowing, "short_gaps", lambda view: 0.9)
    gain = Gain(1.0, 2.0, "bound", whole="the program on all GPUs")
    assert gain == slowing.without_profiler(view(), gain, is_idle=False)


def test_a_gain_that_names_other_time_keeps_it_when_less_is_freed_again() -> None:
    """20 % of the time, and 10 % of launches beside it: 1 / 0.7. Waits of 5 % give less, waits of 20 % give 1 / 0.6."""
    bound = replayed.with_others(removing(0.2, "it goes"), {"launch": 0.1})
    assert (1 / 0.7, ("launch",)) == (pytest.approx(bound.high), bound.beyond)
    assert bound.why.endswith("Other time gets shorter too, 10.0 % in all: launch calls")
    assert bound == replayed.with_others(bound, {"sync": 0.05})
    more = replayed.with_others(bound, {"sync": 0.2})
    assert (1 / 0.6, ("launch", "sync")) == (pytest.approx(more.high), more.beyond)

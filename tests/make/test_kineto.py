"""Traces written in Kineto's form, and folders of ranks with known truth."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import perfkit
from make.kineto import BASE_STEP_NS, Event, Flow, Instant, Mark, Span, described, ranks, write
from perfkit.analysis import communication, steps, timeline
from perfkit.analysis.communication import imbalance

T0 = 1_750_083_000_000_000_123
HOSTILE = 'a"b\\c\n</script>\u2028é'
EVENTS: list[Event] = [
    *described(5, {5: "thread 5 (python3)"}, program="python3"),
    Span("cpu_op", HOSTILE, 5, 5, 0, 4_007, {"External id": 1, "Input Dims": [[2, 3], []]}),
    Span("cuda_runtime", "cudaLaunchKernel", 5, 5, 1_001, 2_002, {"cbid": 211, "correlation": 9}),
    Flow("ac2g", 9, 5, 5, 1_001, arrives=False),
    Span("kernel", "k", 0, 7, 3_003, 1, {"device": 0, "stream": 7, "correlation": 9}),
    Flow("ac2g", 9, 0, 7, 3_003, arrives=True),
    Instant("cpu_instant_event", "[memory]", 5, 5, 2, {"Total Allocated": 512, "Device Id": 0, "Device Type": 1}),
    Mark("Record Window End", "", "", 9_000),
]


def text(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "t.pt.trace.json.gz", EVENTS, t0_unix_ns=T0, header={"SIMULATED": "by a test"})


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> tuple[perfkit.Run, dict[str, Any]]:
    """Four ranks of which rank 2 is late, and what is true of them."""
    folder = tmp_path_factory.mktemp("ranks")
    truth = ranks(folder, ranks=4, events=1_500, straggler=2)
    return perfkit.load(folder), truth


def test_the_reader_finds_every_nanosecond(trace: Path) -> None:
    run = perfkit.load(trace)
    assert [T0] == run.capture["t0_unix_ns"].tolist()
    assert [(HOSTILE, 0, 4_007)] == list(zip(run.ops["name"], run.ops["start_ns"], run.ops["dur_ns"], strict=True))
    assert [(1_001, 2_002)] == list(zip(run.api_calls["start_ns"], run.api_calls["dur_ns"], strict=True))
    assert [[3_003, 1, 9]] == run.kernels[["start_ns", "dur_ns", "correlation"]].to_numpy().tolist()
    assert ["[[2,3],[]]"] == run.ops["shapes"].tolist()
    assert [(2, 512.0)] == list(zip(run.samples["time_ns"], run.samples["value"], strict=True))
    # The base is the multiple of 7,889,238 s before the start, so that microseconds stay below 2**43.
    found = json.loads(text(trace))
    base = found["baseTimeNanoseconds"]
    assert (0, True) == (base % BASE_STEP_NS, 0 <= T0 - base < BASE_STEP_NS)
    span = next(event for event in found["traceEvents"] if event.get("cat") == "cpu_op")
    assert f"{(T0 - base) // 1000}.123" == f"{span['ts']:.3f}"


def test_the_same_events_are_the_same_bytes(trace: Path, tmp_path: Path) -> None:
    """Neither time nor name of the file is in gzip's header; a file appears under its name when it is whole."""
    before = trace.read_bytes()
    again = write(tmp_path / "t.pt.trace.json.gz", EVENTS, t0_unix_ns=T0, header={"SIMULATED": "by a test"})
    assert (before, bytes(5)) == (again.read_bytes(), before[3:8])
    with pytest.raises(TypeError, match="not JSON serializable"):
        write(trace, [Span("cpu_op", "x", 1, 1, 0, 1, {"y": object()})], t0_unix_ns=T0, header={})
    assert before == trace.read_bytes()


def test_every_rank_says_who_it_is(late: tuple[perfkit.Run, dict[str, Any]]) -> None:
    run, truth = late
    assert [0, 1, 2, 3] == [profile.rank for profile in run.profiles]
    assert [truth["kernels"]] * 4 == run.kernels.groupby("rank").size().tolist()
    assert [truth["collectives"]] * 4 == run.collectives.groupby("rank").size().tolist()
    assert {(truth["bytes"], 4)} == set(zip(run.collectives["bytes"], run.collectives["ranks"], strict=True))
    assert [truth["steps"]] * 4 == steps.detect(run.ranges, run.kernels).groupby("rank").size().tolist()


def test_computation_and_communication_are_known(late: tuple[perfkit.Run, dict[str, Any]]) -> None:
    run, truth = late
    parts = timeline.breakdown(run.kernels, run.copies)
    assert truth["computation_ns"] == parts["computation_ns"].tolist()
    assert truth["communication_ns"] == parts["exposed_communication_ns"].tolist()
    row = imbalance(parts[["rank", "computation_ns"]], value="computation_ns").iloc[0]
    mean = sum(truth["computation_ns"]) / 4
    assert (2, pytest.approx(truth["computation_ns"][2] / mean - 1)) == (row["max_rank"], row["imbalance_frac"])


def test_the_late_rank_is_known(late: tuple[perfkit.Run, dict[str, Any]]) -> None:
    """Rank 2 comes last most often; waits add up to the truth's, and the latency is the shortest stay."""
    run, truth = late
    found = communication.stragglers(run.collectives)
    assert 2 == found["rank"].iloc[0]
    by_rank = found.sort_values("rank")
    assert truth["last_count"] == by_rank["last_count"].tolist()
    assert truth["wait_ns"] == by_rank["wait_ns"].tolist()
    matched = communication.matched(run.collectives)
    of_each = matched.groupby("collective")
    assert truth["skew_ns"] == of_each["wait_ns"].max().sum()
    assert {float(truth["latency_ns"])} == set(of_each["dur_ns"].min())
    assert matched["together"].all()


def test_impossible_jobs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ranks: 1 is not 2 or more"):
        ranks(tmp_path / "x", ranks=1)
    with pytest.raises(ValueError, match="straggler: 2 is no rank from 0 to 1"):
        ranks(tmp_path / "x", ranks=2, straggler=2)
    assert not (tmp_path / "x").exists()

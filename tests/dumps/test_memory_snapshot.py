"""Memory snapshots: the peak and what holds it, what is kept, and why an allocation was refused."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from dumps.dump_files import (
    BACKWARD,
    BEGIN,
    BUILD,
    FORWARD,
    MB,
    OPTIMIZER,
    alloc,
    free,
    pickled,
    snapshot,
    steps,
)
from readers import torch_files

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis.finding import Finding
from perfkit.diagnosis.headline import headline
from perfkit.dumps import held, memory_snapshot
from perfkit.errors import ReadError

REAL = (
    "Wedsonlin__assignment2-systems__medium_1024_training",
    "cranberrii__ftcourse__memory_snapshot",
    "kkaitlyn111__cs336-a2-systems__ctx128_forward",
    "kkaitlyn111__cs336-a2-systems__ctx128_fullstep",
)
MEASURED = Path(__file__).parents[2] / "data" / "h200_memory.zip"


def real(profiles: Path, name: str) -> tuple[perfkit.Run, dict[str, Any]]:
    path = profiles / "memory" / f"{name}.pickle"
    if not path.exists():
        pytest.skip(f"PERFKIT_PROFILES has no {path.name}")
    truth = json.loads((profiles / "golden" / "memory" / f"{name}.truth.json").read_text("utf-8"))
    return perfkit.load(path), truth["devices"]["0"]


def measured(name: str, folder: Path) -> tuple[perfkit.Run, dict[str, Any]]:
    if not MEASURED.exists():
        pytest.skip("no measured snapshots beside the tests")
    with zipfile.ZipFile(MEASURED) as archive:
        path = Path(archive.extract(f"{name}.pickle", folder))
        lines = archive.read("truth.jsonl").decode("utf-8").splitlines()
    truth = {one["name"]: one for one in map(json.loads, lines)}
    return perfkit.load(path), truth[name]


def made(folder: Path, events: list[dict[str, Any]], **more: Any) -> perfkit.Run:
    return perfkit.load(pickled(folder / "run.pickle", snapshot(events, **more), 4))


def peak(run: perfkit.Run) -> dict[str, int]:
    (row,) = held.peaks(run.allocations, run.reservations).to_dict("records")
    return row


def by_kind(run: perfkit.Run) -> dict[str, int]:
    """The bytes of each kind at the peak, without those that hold none."""
    rows = held.kinds(run.allocations)
    event = peak(run)["event"]
    alive = rows[rows["event"].le(event) & rows["freed_event"].gt(event)]
    sums = alive.groupby("kind", observed=True)["bytes"].sum()
    return {str(kind): int(size) for kind, size in sums.items()}


def found(run: perfkit.Run) -> dict[str, Finding]:
    return {finding.rule: finding for finding in diagnosis.findings(run)}


def verdict(run: perfkit.Run) -> str:
    view = perfkit.select(run)
    return headline(view, diagnosis.figures(view), diagnosis.findings(view)).verdict


@pytest.mark.parametrize("name", REAL)
def test_the_peak_is_that_of_the_truth(name: str, profiles: Path) -> None:
    run, truth = real(profiles, name)
    expected = [truth[key] for key in ("peak_event", "peak_requested", "peak_reserved")]
    assert expected == [peak(run)[key] for key in ("event", "bytes", "reserved_bytes")]


@pytest.mark.parametrize("name", REAL)
def test_memory_from_before_the_recording_is_that_of_the_truth(name: str, profiles: Path) -> None:
    run, truth = real(profiles, name)
    rows = run.allocations
    assert truth["base"] == rows.loc[rows["event"].lt(0), "bytes"].sum()


@pytest.mark.parametrize("name", REAL)
def test_allocations_of_each_stage_are_those_of_the_truth(name: str, profiles: Path) -> None:
    run, truth = real(profiles, name)
    rows = run.allocations[run.allocations["event"].ge(0)]
    stage = (
        rows["stage"]
        .astype(str)
        .replace({"forward": "forward or other", "other": "forward or other"})
    )
    sums = rows.groupby(stage)["bytes"].agg(["size", "sum"])
    assert truth["by_stage"] == {name: [*row] for name, row in sums.T.to_dict("list").items()}


@pytest.mark.parametrize("name", REAL)
def test_what_is_alive_at_the_end_is_that_of_the_truth(name: str, profiles: Path) -> None:
    run, truth = real(profiles, name)
    rows = held.at_end(run.allocations)
    assert truth["alive_at_end"]["blocks"] == len(rows)
    assert truth["alive_at_end"]["bytes"] == rows["bytes"].sum()


@pytest.mark.parametrize("name", REAL)
def test_lines_at_the_peak_are_those_of_the_truth(name: str, profiles: Path) -> None:
    run, truth = real(profiles, name)
    rows = held.alive(run.allocations, 0, 0, peak(run)["event"])
    lines = held.places(rows[rows["event"].ge(0)])
    told = dict(zip(lines["place"], zip(lines["bytes"], lines["count"], strict=True), strict=True))
    for place, size, count in truth["at_peak"]["top"]:
        assert (size, count) == told[place.replace("(no Python frame)", held.NO_LINE)]


@pytest.mark.parametrize("name", REAL)
def test_the_most_of_each_stage_is_that_of_the_truth(name: str, profiles: Path) -> None:
    run, truth = real(profiles, name)
    most = dict(held.stages(run.allocations)[["stage", "bytes"]].to_numpy().tolist())
    either = max(most.pop("forward", 0), most.pop("other", 0))
    assert truth["peak_by_stage"] == {"forward or other": either, **most}


@pytest.mark.parametrize("name", REAL)
def test_the_largest_allocations_are_those_of_the_truth(name: str, profiles: Path) -> None:
    """The truth calls a line of a library one without a line of Python."""
    run, truth = real(profiles, name)
    table = held.largest(run.allocations)
    equal = table[table["bytes"].eq(table["bytes"].iloc[0])]
    expected = truth["largest_allocation"]
    assert (expected["bytes"], expected["times"]) == (table["bytes"].iloc[0], equal["count"].sum())
    own = [site for site in expected["sites"] if site[0] != "(no Python frame)"]
    counts = equal.groupby("place")["count"].sum()
    assert all(count <= counts[place] for place, count in own)


@pytest.mark.parametrize("name", REAL)
def test_memory_of_the_allocator_is_that_of_the_truth(name: str, profiles: Path) -> None:
    run, truth = real(profiles, name)
    (row,) = held.at_the_end(run.segments).to_dict("records")
    keys = ("reserved", "allocated", "bytes_of_these", "largest_inactive")
    names = ("reserved", "allocated", "returnable", "largest_free")
    assert [truth[key] for key in keys] == [row[f"{name}_bytes"] for name in names]
    assert truth["inactive"] == row["returnable_bytes"] + row["not_returnable_bytes"]


def test_gradients_that_an_optimizer_needs_are_not_to_be_freed(profiles: Path) -> None:
    """The peak is in the first step of the optimizer, which reads them."""
    told = found(real(profiles, REAL[3])[0])["memory_states"]
    assert "zero_grad" not in str(told.advice)


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        (REAL[0], "Activations hold 72.9 %"),
        (REAL[1], "Activations hold 77.0 %"),
        (REAL[2], "Memory from before the recording holds 70.4 %"),
        (REAL[3], "Optimizer state, gradients and memory from before the recording hold 99.9 %"),
    ],
)
def test_the_verdict_names_what_fills_the_memory(name: str, begin: str, profiles: Path) -> None:
    assert verdict(real(profiles, name)[0]).startswith(begin)


def test_the_optimizer_state_is_twice_the_parameters(profiles: Path) -> None:
    """291 blocks from each of two lines, and the temporary result of a third."""
    assert (
        2 * 13_627_238_400 + 204_810_240 == by_kind(real(profiles, REAL[3])[0])["optimizer state"]
    )


@pytest.mark.parametrize("name", REAL)
def test_healthy_memory_has_no_fragmentation(name: str, profiles: Path) -> None:
    assert "memory_fragmented" not in found(real(profiles, name)[0])


@pytest.mark.parametrize("name", ["plain", "checkpointed", "out_of_memory"])
def test_measured_parameters_are_those_of_the_program(name: str, tmp_path: Path) -> None:
    run, truth = measured(name, tmp_path)
    assert truth["parameters"] == by_kind(run)["parameters"]


@pytest.mark.parametrize("name", ["plain", "checkpointed", "out_of_memory"])
def test_measured_reserved_memory_is_that_of_the_counters(name: str, tmp_path: Path) -> None:
    run, truth = measured(name, tmp_path)
    assert truth["peak_reserved"] == peak(run)["reserved_bytes"]


@pytest.mark.parametrize("name", ["plain", "checkpointed", "out_of_memory"])
def test_the_measured_peak_is_that_of_the_counters_but_for_rounding(
    name: str, tmp_path: Path
) -> None:
    run, truth = measured(name, tmp_path)
    assert truth["peak_allocated"] == pytest.approx(peak(run)["bytes"], rel=0.02)


def test_checkpointing_saves_the_activations(tmp_path: Path) -> None:
    plain = by_kind(measured("plain", tmp_path)[0])["activations"]
    assert by_kind(measured("checkpointed", tmp_path)[0])["activations"] < plain / 20


def test_a_measured_error_is_explained_by_its_limit(tmp_path: Path) -> None:
    """The program set a limit of 2 % of the GPU's memory."""
    finding = found(measured("out_of_memory", tmp_path)[0])["memory_refused"]
    assert "asked for 268 MB" in finding.title
    assert "a limit of the process" in finding.explanation


def test_measured_steady_steps_do_not_grow(tmp_path: Path) -> None:
    assert "memory_grows" not in found(measured("plain", tmp_path)[0])


def test_kinds_by_hand(tmp_path: Path) -> None:
    """In the second step: parameters 64, activations 128, gradients 32 and optimizer state 16 MB."""
    expected = {
        "parameters": 64 * MB,
        "gradients": 32 * MB,
        "optimizer state": 16 * MB,
        "activations": 128 * MB,
    }
    assert expected == by_kind(made(tmp_path, steps()))


def test_an_address_that_is_used_again_is_another_allocation(tmp_path: Path) -> None:
    events = [alloc(7, 10, FORWARD), free(7, 10), alloc(7, 30, FORWARD)]
    rows = made(tmp_path, events).allocations
    assert [(1, 2, 10), (3, pd.NA, 30)] == [
        *zip(rows["event"], rows["freed_event"], rows["bytes"], strict=True)
    ]


def test_memory_that_is_freed_and_was_never_allocated_was_there_before(tmp_path: Path) -> None:
    run = made(tmp_path, [free(9, 5 * MB), alloc(7, MB, FORWARD)])
    assert 5 * MB == peak(run)["before_bytes"]


def test_growth_is_told_by_the_step(tmp_path: Path) -> None:
    finding = found(made(tmp_path, steps(keeps=16 * MB)))["memory_grows"]
    assert 16 * MB == finding.evidence[0].value
    assert "/home/me/log.py:4 log" == finding.place


@pytest.mark.parametrize(
    ("device_free", "reserved", "why"),
    [
        (1 << 31, 1 << 28, "a limit of the process"),
        (1 << 20, 1 << 32, "in pieces that were too small"),
        (1 << 20, 1 << 28, "it was full"),
    ],
)
def test_why_memory_was_refused(device_free: int, reserved: int, why: str, tmp_path: Path) -> None:
    run = made(tmp_path, steps(), refused=1 << 30, device_free=device_free, reserved=reserved)
    assert why in found(run)["memory_refused"].explanation


BLOCK = [{"name": "forward", "filename": "/home/me/block.py", "line": 4}, *FORWARD[1:], *FORWARD]


def test_modules_hold_what_those_below_them_hold(tmp_path: Path) -> None:
    run = made(tmp_path, [alloc(1, 10 * MB, FORWARD), alloc(2, 30 * MB, BLOCK)])
    table = held.modules(run.allocations)
    expected = [["model.py:12", 0, 40 * MB, 2], ["model.py:12 > block.py:4", 1, 30 * MB, 1]]
    assert expected == table[["module", "depth", "bytes", "count"]].to_numpy().tolist()


def test_the_module_that_holds_half_of_the_peak_is_named(tmp_path: Path) -> None:
    run = made(tmp_path, [alloc(1, 10 * MB, FORWARD), alloc(2, 30 * MB, BLOCK)])
    told = found(run)["memory_activations"].explanation
    assert "The forward pass at model.py:12 > block.py:4 holds 75.0 %" in told


def test_memory_of_modules_is_all_of_the_forward_passes(profiles: Path) -> None:
    """What a forward pass asked for has a module, but for what has no frame of Python."""
    rows = real(profiles, REAL[0])[0].allocations
    forward = rows[rows["stage"].eq("forward")]
    modules = held.modules(forward)
    assert forward["bytes"].sum() == modules.loc[modules["depth"].eq(0), "bytes"].sum()


def test_memory_that_is_freed_late_is_told(tmp_path: Path) -> None:
    """30 of 40 MB were let go before the peak, and became free after it."""
    let_go = {**free(1, 30 * MB), "action": "free_requested"}
    events = [alloc(1, 30 * MB, FORWARD), let_go, alloc(2, 10 * MB, FORWARD), free(1, 30 * MB)]
    run = made(tmp_path, events)
    told = found(run)["memory_activations"].explanation
    assert "The program had let go of 75.0 %, but another stream still used it." in told
    assert [30 * MB] == held.late(run.allocations)["bytes"].tolist()


def test_gradients_of_the_step_before_are_to_be_freed(tmp_path: Path) -> None:
    """They are held at the peak of a forward pass, with parameters that need more memory."""
    events = [alloc(0, 64 * MB, BUILD), alloc(1, 32 * MB, BACKWARD), alloc(2, MB, OPTIMIZER)]
    told = found(made(tmp_path, [*events, alloc(3, MB, FORWARD)]))["memory_states"]
    assert "zero_grad(set_to_none=True)" in str(told.advice)


def test_a_trace_of_the_same_run_tells_where_the_peak_is(tmp_path: Path) -> None:
    """The snapshot has an event each us; an operator runs for the first 100 us of the same clock."""
    operator = torch_files.op("aten::mm", 0, 100)
    made_trace = torch_files.trace(operator, baseTimeNanoseconds=BEGIN)
    torch_files.printed(tmp_path / "trace.json", made_trace)
    run = made(tmp_path, steps())
    both = perfkit.load([run.profiles[0].path, tmp_path / "trace.json"])
    assert "At the peak, in aten::mm:" in found(both)["memory_activations"].explanation


def test_a_snapshot_without_times_has_the_same_levels(tmp_path: Path) -> None:
    (tmp_path / "timed").mkdir()
    timed = peak(made(tmp_path / "timed", steps()))
    assert timed == peak(made(tmp_path, steps(), times=False))


@pytest.mark.parametrize(
    "change",
    [
        {"segments": 3},
        {"device_traces": [3]},
        {"segments": [{"device": -1}]},
        {"segments": [{"device": 0, "blocks": [], "total_size": 1.5}]},
        {"device_traces": [[{"action": "alloc", "addr": 2**62, "size": 1}]]},
        {"device_traces": [[{"action": "alloc", "addr": 1, "size": "x"}]]},
        {"device_traces": [[]], "more": [{"action": "alloc"}]},
        {"device_traces": [[{"action": "segment_alloc", "addr": 1, "size": 1 << 40}]]},
    ],
)
def test_a_snapshot_with_wrong_values_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    path = pickled(tmp_path / "run.pickle", {**snapshot(steps()), **change}, 4)
    with pytest.raises(ReadError, match="no snapshot of PyTorch's memory"):
        memory_snapshot.read(path)


def test_the_kinds_over_time_add_up_to_the_peak(tmp_path: Path) -> None:
    run = made(tmp_path, steps())
    drawn = held.over_time(run.allocations)
    assert peak(run)["bytes"] == drawn.groupby("event")["bytes"].sum().max()

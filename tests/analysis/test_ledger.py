"""The ledger: each nanosecond of each GPU in exactly one line, worked by hand."""

from pathlib import Path

import pandas as pd
import pytest
from frames import copies, kernels, lasting
from real import SQLITE

import perfkit
from perfkit.analysis import gaps, ledger

KERNELS = kernels(
    lasting(0, 10, "sgemm", family="gemm"),
    lasting(5, 10, "add", family="elementwise", stream=8),
    lasting(12, 8, "AllReduce", family="communication", stream=9),
)
COPIES = copies(
    lasting(18, 12, direction="H2D", src_memory="pageable", stream=10),
    lasting(40, 2, direction="memset", src_memory=None, stream=10),
)
IDLE = pd.DataFrame([lasting(30, 10, rank=0, gpu=0)])
LAYERS = [
    ledger.computation(KERNELS, COPIES),
    ledger.collectives(KERNELS),
    ledger.moved(COPIES),
    ledger.layer(IDLE, "idle", "host_code", "main"),
]
DEVICES = ledger.spans(KERNELS, COPIES)


def whole(devices: pd.DataFrame) -> pd.DataFrame:
    """Phases that call all of each rank's time one phase."""
    times = devices.assign(end_ns=devices["start_ns"] + devices["span_ns"]).groupby("rank")
    start = times["start_ns"].min()
    phases = pd.DataFrame({"start_ns": start, "dur_ns": times["end_ns"].max() - start})
    return phases.reset_index().assign(phase="whole")


def lines(booked: pd.DataFrame) -> dict[tuple[str, str, object], int]:
    """The time of each line, by kind, cause and owner."""
    table = ledger.ledger(booked, whole(DEVICES))
    owner = table["owner"].astype(object).where(table["owner"].notna(), None)
    keys = zip(table["kind"], table["cause"], owner, strict=True)
    return dict(zip(keys, table["ns"].tolist(), strict=True))


def test_what_runs_at_once_counts_once_for_the_first_layer_and_the_first_operation():
    assert lines(ledger.booked(LAYERS, DEVICES)) == {
        ("computation", "gemm", "sgemm"): 10,
        ("computation", "elementwise", "add"): 5,
        ("computation", "memset", "device"): 2,
        ("collective", "communication", "AllReduce"): 5,
        ("copy", "H2D", "pageable"): 10,
        ("idle", "host_code", "main"): 10,
    }


def test_an_unknown_stretch_comes_before_everything():
    stretch = pd.DataFrame([lasting(8, 24, rank=0, gpu=0)])
    unknown = ledger.layer(stretch, "unknown", "lost_operations", None)

    told = lines(ledger.booked([unknown, *LAYERS], DEVICES))

    assert told[("unknown", "lost_operations", None)] == 24
    assert told[("computation", "gemm", "sgemm")] == 8
    assert told[("idle", "host_code", "main")] == 8
    assert sum(told.values()) == 42


def test_time_that_no_layer_covers_is_idle_without_a_cause():
    told = lines(ledger.booked(LAYERS[:3], DEVICES))

    assert told[("idle", "unattributed", None)] == 10


def test_phases_divide_a_line_where_they_meet():
    phases = pd.DataFrame(
        [lasting(0, 4, rank=0, phase="start_up"), lasting(4, 38, rank=0, phase="loop")]
    )

    table = ledger.ledger(ledger.booked(LAYERS, DEVICES), phases)

    gemm = table[table["owner"] == "sgemm"]
    assert dict(zip(gemm["phase"], gemm["ns"], strict=True)) == {"start_up": 4, "loop": 6}


def test_time_in_no_phase_is_outside():
    phases = pd.DataFrame([lasting(0, 40, rank=0, phase="loop")])

    table = ledger.ledger(ledger.booked(LAYERS, DEVICES), phases)

    assert table.loc[table["phase"] == "outside", ["cause", "ns"]].to_numpy().tolist() == [
        ["memset", 2]
    ]
    assert table["ns"].sum() == 42


def test_nothing_recorded_makes_an_empty_ledger():
    nothing = ledger.spans(kernels(), copies())

    table = ledger.ledger(ledger.booked([], nothing), whole(nothing))

    assert table.empty
    ledger.LEDGER.check(table)


@pytest.mark.parametrize("name", SQLITE)
@pytest.mark.sampled(3)
def test_the_lines_of_a_gpu_add_up_to_its_span_in_a_real_capture(profiles: Path, name: str):
    run = perfkit.load(profiles / "nsys" / name)
    devices = ledger.spans(run.kernels, run.copies)
    idle = gaps.idle_gaps(run.kernels, run.copies, run.api_calls)
    layers = [
        ledger.computation(run.kernels, run.copies),
        ledger.collectives(run.kernels),
        ledger.moved(run.copies),
        ledger.layer(idle, "idle", idle["cause"], idle["api"]),
    ]

    booked = ledger.booked(layers, devices)

    table = ledger.ledger(booked, whole(devices))
    assert table.groupby(["rank", "gpu"])["ns"].sum().tolist() == devices["span_ns"].tolist()
    ordered = booked.sort_values(["rank", "gpu", "start_ns"])
    ends = ordered["start_ns"] + ordered["dur_ns"]
    same_device = ordered["gpu"].eq(ordered["gpu"].shift())
    assert (ordered["start_ns"] == ends.shift())[same_device].all()

"""Real traces of 2021 to 2026 against figures computed from their events with Python's json module.

``golden/torch/*.truth.json`` was made independently of this reader.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from readers.torch_real import BERT_H100, EARLY_2021, RESNET_MI300, TRACES, V100_BEFORE, as_in_the_truth, read, zero

import perfkit
from perfkit.analysis import timeline
from perfkit.profile import Profile
from perfkit.readers.torch_trace import CATEGORIES
from perfkit.tables import TABLES

NAME_LENGTH = 300  # of the names in the truth
DIRECTIONS = {"HtoD": "H2D", "DtoH": "D2H", "DtoD": "D2D"}

every_trace = pytest.mark.parametrize("name", TRACES)


@pytest.fixture
def capture(name: str, profiles: Path) -> Profile:
    """The trace as read."""
    return read(profiles / "torch" / name)


@pytest.fixture
def truth(name: str, profiles: Path) -> dict[str, Any]:
    """What the trace's own events say."""
    told: dict[str, Any] = json.loads((profiles / "golden" / "torch" / f"{name}.truth.json").read_text("utf-8"))
    return told


def operations(capture: Profile, truth: dict[str, Any]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Kernels and copies with the starts of the truth."""
    return as_in_the_truth(capture, "KERNELS", truth), as_in_the_truth(capture, "COPIES", truth)


@every_trace
def test_tables_match_their_schema(capture: Profile) -> None:
    """Whatever generation wrote the trace, every table has its columns and dtypes."""
    for table in TABLES:
        assert capture.table(table) is TABLES[table].check(capture.table(table))


@every_trace
def test_rows_are_as_many_as_events(capture: Profile, truth: dict[str, Any]) -> None:
    """No event of a category is lost or made up; in 2021 annotations are operators, so both are counted together."""
    counts: defaultdict[str, int] = defaultdict(int)
    for category, events in truth["categories"].items():
        counts[CATEGORIES.get(category, "")] += events
    assert counts["OPS"] + counts["RANGES"] == len(capture.table("OPS")) + len(capture.table("RANGES"))
    for table in ("KERNELS", "COPIES", "API_CALLS", "PYTHON_CALLS"):
        assert counts[table] == len(capture.table(table)), table
        assert (counts[table] > 0) == (table in capture.loaders)


@every_trace
def test_kernels_of_each_gpu(capture: Profile, truth: dict[str, Any]) -> None:
    """Count, total time, streams, distinct names, those that take most time and those in graphs are the trace's."""
    kernels = capture.table("KERNELS")
    with_kernels = {gpu for gpu, told in truth["devices"].items() if told["kernels"]}
    assert with_kernels == {str(gpu) for gpu in kernels["gpu"].unique()}
    for gpu, told in truth["devices"].items():
        rows = kernels[kernels["gpu"] == int(gpu)]
        assert (told["kernels"], told["kernel_time_sum"]) == (len(rows), rows["dur_ns"].sum())
        assert set(map(str, rows["stream"])) <= {stream.removeprefix("stream ") for stream in told["streams"]}
        by_name = rows.groupby("full_name", observed=True)["dur_ns"].agg(["sum", "size"])
        assert told["distinct_kernels"] == len(by_name)
        found = [(str(name)[:NAME_LENGTH], total, count) for name, total, count in by_name.itertuples()]
        assert {(top["name"], top["time"], top["count"]) for top in told["top5"]} <= set(found)
        assert told.get("launch", {}).get("kernels_in_graph_launches", 0) == rows["in_graph"].sum()


@every_trace
def test_copies_of_each_gpu(capture: Profile, truth: dict[str, Any]) -> None:
    """Count and time of copies and memsets, and bytes by direction, are the trace's."""
    copies = capture.table("COPIES")
    for gpu, told in truth["devices"].items():
        rows = copies[copies["gpu"] == int(gpu)]
        filled = rows["direction"] == "memset"
        assert (told["memcpys"], told["memcpy_time_sum"]) == ((~filled).sum(), rows.loc[~filled, "dur_ns"].sum())
        assert (told["memsets"], told["memset_time_sum"]) == (filled.sum(), rows.loc[filled, "dur_ns"].sum())
        for letters, direction in DIRECTIONS.items():
            assert told["bytes"][letters] == rows.loc[rows["direction"] == direction, "bytes"].sum()


@every_trace
def test_busy_time_and_its_parts_to_the_nanosecond(capture: Profile, truth: dict[str, Any]) -> None:
    """First and last operation, busy unions and the additive split are the truth's, on the truth's clock."""
    kernels, copies = operations(capture, truth)
    busy = timeline.busy(kernels, copies).set_index("gpu")
    parts = timeline.breakdown(kernels, copies).set_index("gpu")
    assert set(truth["devices"]) == set(map(str, busy.index))
    for gpu, told in truth["devices"].items():
        split = parts.loc[int(gpu)]
        start = busy["start_ns"][int(gpu)] + zero(capture, truth)
        assert (told["first"], told["last"]) == (start, start + busy["span_ns"][int(gpu)])
        assert told["kernel_union"] == busy["kernel_busy_ns"][int(gpu)]
        assert told["busy_union"] == busy["device_busy_ns"][int(gpu)]
        expected = told["split_memset_as_computation"]
        assert expected["computation"] == split["computation_ns"]
        assert expected["exposed_communication"] == split["exposed_communication_ns"]
        assert expected["exposed_memcpy"] == split["exposed_copy_ns"]
        assert expected["idle"] == split["idle_ns"]


@every_trace
def test_the_parts_of_the_exact_times_sum_to_the_span(capture: Profile) -> None:
    """With the times as the file has them the four parts are the span, to the nanosecond."""
    kernels, copies = capture.table("KERNELS"), capture.table("COPIES")
    parts = timeline.breakdown(kernels, copies)
    pd.testing.assert_series_equal(
        parts[[*timeline.PARTS]].sum(axis=1), timeline.busy(kernels, copies)["span_ns"], check_names=False
    )


@every_trace
def test_kernels_find_their_launch(capture: Profile, truth: dict[str, Any]) -> None:
    """Joined on process and correlation, as many kernels have a call as the trace says, and none has two."""
    calls = capture.table("API_CALLS")[["process", "correlation"]].drop_duplicates()
    found = capture.table("KERNELS").merge(calls, on=["process", "correlation"], how="left", indicator=True)
    launches = [told["launch"] for told in truth["devices"].values() if "launch" in told]
    assert sum(told["kernels_linked"] for told in launches) == (found["_merge"] == "both").sum()
    if launches:
        assert sum(told["kernels_unlinked"] for told in launches) == (found["_merge"] == "left_only").sum()


@every_trace
def test_steps(capture: Profile, truth: dict[str, Any]) -> None:
    """Every step is there, the last one too, with its start (on the truth's clock) and duration."""
    ranges = as_in_the_truth(capture, "RANGES", truth)
    steps = ranges[ranges["kind"] == "step"]
    told = sorted((step["start"], step["name"], step["duration"]) for step in truth["steps"]["list"])
    assert truth["steps"]["count"] == len(steps)
    starts = steps["start_ns"] + zero(capture, truth)
    assert told == sorted(zip(starts, steps["name"].astype(str), steps["dur_ns"], strict=True))[: len(told)]


@every_trace
def test_devices_and_rank(capture: Profile, truth: dict[str, Any]) -> None:
    """The GPUs listed, in the trace's numbers, and the rank it states, if it does.

    The truth knows one spelling of the list; the other, of early 2021, has a test of its own.
    """
    devices = capture.table("DEVICES")
    expected = {gpu["id"]: (gpu["name"], gpu["sms"]) for gpu in truth["gpus"]}
    listed = zip(devices["gpu"], devices["name"], devices["sm_count"], strict=True)
    assert capture.path.name == EARLY_2021 or expected == {gpu: (name, sms) for gpu, name, sms in listed}
    assert truth["distributedInfo"].get("rank") == capture.rank


@every_trace
def test_no_event_lies_outside_the_recording(capture: Profile) -> None:
    """Time 0 is the first event, and the length of the recording reaches to the end of the last."""
    tables = ("KERNELS", "COPIES", "API_CALLS", "OPS", "RANGES", "PYTHON_CALLS")
    spans = pd.concat([capture.table(table)[["start_ns", "dur_ns"]] for table in tables])
    samples = capture.table("SAMPLES")["time_ns"].tolist()
    assert 0 == min([*spans["start_ns"], *samples])
    assert capture.capture["dur_ns"].iloc[0] == max([*(spans["start_ns"] + spans["dur_ns"]), *samples])


@pytest.mark.parametrize("name", [V100_BEFORE, RESNET_MI300, BERT_H100])
def test_the_cache_gives_the_same(capture: Profile) -> None:
    """A trace loaded from its copies is the trace as read."""
    for _ in range(2):
        run = perfkit.load(capture.path)
        for table in set(TABLES) - {"CAPTURE"}:
            pd.testing.assert_frame_equal(
                capture.table(table).drop(columns="rank"), run.table(table).drop(columns="rank"), check_exact=True
            )

"""Real PyTorch traces of 2021 to 2026 against totals computed independently, and against brute force."""

import math
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from frames import tuples as rows
from readers import torch_real as real
from readers.torch_real import (
    BERT_H100,
    EARLY_2021,
    RESNET_MI300,
    TRACES,
    V100_BEFORE,
    as_in_the_truth,
    events_of,
    read,
)
from real import truth_of

import perfkit
from perfkit.analysis import timeline
from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers import torch_trace
from perfkit.readers.torch_trace.events import FORMS
from perfkit.tables import TABLES

NAME_LENGTH = 300  # of the names in the truth
DIRECTIONS = {"HtoD": "H2D", "DtoH": "D2H", "DtoD": "D2D"}
TABLE = {category: table for category, (table, _) in FORMS.items()} | {"[memory]": "SAMPLES"}
every_trace = pytest.mark.parametrize("name", TRACES)


@pytest.fixture
def capture(name: str, profiles: Path) -> Profile:
    return read(profiles / "torch" / name)


@pytest.fixture
def truth(name: str, profiles: Path) -> dict[str, Any]:
    return truth_of(profiles, "torch", name)


@every_trace
def test_rows_kernels_and_copies_of_each_gpu(capture: Profile, truth: dict[str, Any]) -> None:
    for table in TABLES:
        assert capture.table(table) is TABLES[table].check(capture.table(table))
    counts: defaultdict[str, int] = defaultdict(int)
    for category, events in truth["categories"].items():
        counts[TABLE.get(category, "")] += events
    # In 2021 annotations are operators, so both are counted together.
    assert counts["OPS"] + counts["RANGES"] == len(capture.table("OPS")) + len(
        capture.table("RANGES")
    )
    for table in ("KERNELS", "COPIES", "API_CALLS", "PYTHON_CALLS"):
        assert counts[table] == len(capture.table(table)), table
        assert (counts[table] > 0) == (table in capture.loaders)
    kernels, copies = capture.table("KERNELS"), capture.table("COPIES")
    with_kernels = {gpu for gpu, told in truth["devices"].items() if told["kernels"]}
    assert with_kernels == {str(gpu) for gpu in kernels["gpu"].unique()}
    for gpu, told in truth["devices"].items():
        rows = kernels[kernels["gpu"] == int(gpu)]
        assert (told["kernels"], told["kernel_time_sum"]) == (len(rows), rows["dur_ns"].sum())
        assert set(map(str, rows["stream"])) <= {
            stream.removeprefix("stream ") for stream in told["streams"]
        }
        by_name = rows.groupby("full_name", observed=True)["dur_ns"].agg(["sum", "size"])
        assert told["distinct_kernels"] == len(by_name)
        found = [
            (str(name)[:NAME_LENGTH], total, count) for name, total, count in by_name.itertuples()
        ]
        assert {(top["name"], top["time"], top["count"]) for top in told["top5"]} <= set(found)
        assert told.get("launch", {}).get("kernels_in_graph_launches", 0) == rows["in_graph"].sum()
        rows = copies[copies["gpu"] == int(gpu)]
        filled = rows["direction"] == "memset"
        assert (told["memcpys"], told["memcpy_time_sum"]) == (
            (~filled).sum(),
            rows.loc[~filled, "dur_ns"].sum(),
        )
        assert (told["memsets"], told["memset_time_sum"]) == (
            filled.sum(),
            rows.loc[filled, "dur_ns"].sum(),
        )
        for letters, direction in DIRECTIONS.items():
            assert told["bytes"][letters] == rows.loc[rows["direction"] == direction, "bytes"].sum()


@every_trace
def test_busy_time_and_its_parts_to_the_nanosecond(capture: Profile, truth: dict[str, Any]) -> None:
    kernels, copies = (as_in_the_truth(capture, table, truth) for table in ("KERNELS", "COPIES"))
    busy = timeline.busy(kernels, copies).set_index("gpu")
    parts = timeline.breakdown(kernels, copies).set_index("gpu")
    assert set(truth["devices"]) == set(map(str, busy.index))
    for gpu, told in truth["devices"].items():
        split = parts.loc[int(gpu)]
        start = busy["start_ns"][int(gpu)] + real.zero(capture, truth)
        assert (told["first"], told["last"]) == (start, start + busy["span_ns"][int(gpu)])
        assert told["kernel_union"] == busy["kernel_busy_ns"][int(gpu)]
        assert told["busy_union"] == busy["device_busy_ns"][int(gpu)]
        expected = told["split_memset_as_computation"]
        assert expected["computation"] == split["computation_ns"]
        assert expected["exposed_communication"] == split["exposed_communication_ns"]
        assert expected["exposed_memcpy"] == split["exposed_copy_ns"]
        assert expected["idle"] == split["idle_ns"]
    # With the times as the file has them, too, the four parts are the span.
    kernels, copies = capture.table("KERNELS"), capture.table("COPIES")
    summed = timeline.breakdown(kernels, copies)[[*timeline.PARTS]].sum(axis=1)
    pd.testing.assert_series_equal(
        summed, timeline.busy(kernels, copies)["span_ns"], check_names=False
    )


@every_trace
def test_launches_steps_devices_and_recording(capture: Profile, truth: dict[str, Any]) -> None:
    calls = capture.table("API_CALLS")[["process", "correlation"]].drop_duplicates()
    calls = calls[calls["correlation"] >= 0]  # -1: the trace states none
    found = capture.table("KERNELS").merge(
        calls, on=["process", "correlation"], how="left", indicator=True
    )
    launches = [told["launch"] for told in truth["devices"].values() if "launch" in told]
    assert sum(told["kernels_linked"] for told in launches) == (found["_merge"] == "both").sum()
    if launches:
        assert (
            sum(told["kernels_unlinked"] for told in launches)
            == (found["_merge"] == "left_only").sum()
        )
    ranges = as_in_the_truth(capture, "RANGES", truth)
    steps = ranges[ranges["kind"] == "step"]
    told = sorted(
        (step["start"], step["name"], step["duration"]) for step in truth["steps"]["list"]
    )
    assert truth["steps"]["count"] == len(steps)
    starts = steps["start_ns"] + real.zero(capture, truth)
    assert (
        told
        == sorted(zip(starts, steps["name"].astype(str), steps["dur_ns"], strict=True))[: len(told)]
    )
    # The truth knows one spelling of the list of GPUs; the other, of early 2021, has a test of its own.
    expected = [(gpu["id"], gpu["name"], gpu["sms"]) for gpu in truth["gpus"]]
    listed = rows(capture.table("DEVICES"), "gpu", "name", "sm_count")
    assert capture.path.name == EARLY_2021 or sorted(expected) == sorted(listed)
    assert truth["distributedInfo"].get("rank") == capture.rank
    # Time 0 is the first event, and the length of the recording reaches to the end of the last.
    tables = ("KERNELS", "COPIES", "API_CALLS", "OPS", "RANGES", "PYTHON_CALLS")
    spans = pd.concat([capture.table(table)[["start_ns", "dur_ns"]] for table in tables])
    samples = capture.table("SAMPLES")["time_ns"].tolist()
    assert 0 == min([*spans["start_ns"], *samples])
    assert capture.capture["dur_ns"].iloc[0] == max(
        [*(spans["start_ns"] + spans["dur_ns"]), *samples]
    )


@pytest.mark.parametrize("name", sorted(real.ROUNDED_TRUTH))
def test_times_are_the_decimals_of_the_events(capture: Profile, truth: dict[str, Any]) -> None:
    """Where the truth is rounded: start and duration of every operation, call, operator and range, to the ns."""
    tables = ("KERNELS", "COPIES", "API_CALLS", "OPS", "RANGES")
    expected: dict[str, list[tuple[Decimal, Decimal]]] = {table: [] for table in tables}
    for event in events_of(capture.path):
        table = TABLE.get(event.get("cat", ""), "") if event["ph"] == "X" else ""
        if table in tables:
            expected[table].append((Decimal(event["ts"]) * 1000, Decimal(event["dur"]) * 1000))
    for table, times in expected.items():
        frame = capture.table(table)
        starts = (frame["start_ns"] + real.zero(capture, truth)).tolist()
        assert sorted(times) == sorted(zip(starts, frame["dur_ns"].tolist(), strict=True)), table
        assert len(times) > 0, table


def test_devices_ranks_and_other_json(profiles: Path) -> None:
    # computeProperties with major, minor and multiProcessorCount are read as deviceProperties are.
    devices = read(profiles / "torch" / EARLY_2021).table("DEVICES")
    expected = [("Tesla V100-DGXS-32GB", "7.0", 80)] * 4
    assert expected == rows(devices, "name", "compute_capability", "sm_count")
    # An MI300X says 9.4 under the keys of CUDA's compute capability, which means gfx94x.
    devices = read(profiles / "torch" / RESNET_MI300).table("DEVICES")
    assert [("", 304)] * 8 == rows(devices, "compute_capability", "sm_count")
    path = profiles / "torch" / "TraceLens__tracediff_test__cpu_op_map.json"
    assert torch_trace.sniff(path) is False
    with pytest.raises(
        ReadError, match=f"{path.name}: a JSON object that is not .*'aten::_softmax', .* and 8 more"
    ):
        perfkit.load(path)
    # Rank 1's kernels ran on GPU 1 of the node.
    found = [
        read(profiles / "torch" / f"HTA__trace_filter__sampled_rank-{rank}.json.gz")
        for rank in (0, 1)
    ]
    assert [0, 1] == [capture.rank for capture in found]
    assert [{0}, {1}] == [set(capture.table("KERNELS")["gpu"]) for capture in found]


def test_collectives_of_real_traces(profiles: Path) -> None:
    # Three steps of five all-reduces and two broadcasts of float32 and int64, 4 and 8 bytes an element.
    frame = read(profiles / "torch" / real.NCCL_A100).table("COLLECTIVES")
    counts = frame.groupby(["operation", "bytes", "dtype"], observed=True).size()
    elements = {"all_reduce": (2049000, 2431040, 6563840, 6637568, 7875584), "broadcast": (53120,)}
    expected = {(name, 4 * n, "float32"): 3 for name, listed in elements.items() for n in listed}
    assert {**expected, ("broadcast", 8 * 53, "int64"): 3} == counts.to_dict()
    assert {2} == set(frame["ranks"])
    # On B200, 73 of 74 collective kernels are PyTorch's own all-reduce over multicast memory.
    capture = read(profiles / "torch" / real.B200)
    kernels = capture.table("KERNELS")
    collective = kernels[kernels["family"] == "communication"]
    assert [73, 1] == collective["full_name"].astype(str).str.contains(
        "nccl"
    ).value_counts().tolist()
    assert any("73 of 74 collective kernels tell no message size" in note for note in capture.notes)
    # The other is an all-gather: 25,136 elements of bfloat16 from each of 8 ranks are 402,176 bytes.
    gathered = [("all_gather", 25136 * 8 * 2, "bfloat16", 8)]
    assert gathered == rows(capture.table("COLLECTIVES"), "operation", "bytes", "dtype", "ranks")
    # RCCL's kernels are all called Generic: 6 all-reduces and 6 broadcasts are told apart by their arguments.
    capture = read(profiles / "torch" / RESNET_MI300)
    assert {"all_reduce": 6, "broadcast": 6} == capture.table("COLLECTIVES")[
        "operation"
    ].value_counts().to_dict()
    assert any("5 of 17 collective kernels tell no message size" in note for note in capture.notes)
    # 757 kernels and 211 copies of ROCm's own have no call.
    assert any("968 of 3653 GPU operations (26.5%) have no call" in note for note in capture.notes)


def test_memory_of_2021_and_of_the_allocators(profiles: Path) -> None:
    frame = read(profiles / "torch" / BERT_H100).table("SAMPLES")
    expected = {
        (gpu, "memory_allocated_bytes"): count for gpu, count in ((-1, 18), (0, 218))
    }  # -1: the CPU's
    expected[0, "memory_reserved_bytes"] = 218
    assert expected == frame.groupby(["gpu", "metric"], observed=True).size().to_dict()
    assert 121634816 == frame.loc[frame["metric"] == "memory_reserved_bytes", "value"].max()
    # 12,838 memory events that say a change only, which is not what was allocated.
    capture = read(profiles / "torch" / V100_BEFORE)
    assert "SAMPLES" not in capture.loaders
    assert "SAMPLES" in {missing.table for missing in capture.missing}
    # Steps, the data loader and the optimiser had the category of operators.
    names = capture.table("RANGES")["name"].astype(str).str.partition("#")[0]
    annotations = ("ProfilerStep", "enumerate(DataLoader)", "Optimizer.step", "Optimizer.zero_grad")
    assert dict.fromkeys(annotations, 6) == names.value_counts().to_dict()


def test_grids_of_amd_are_in_blocks(profiles: Path) -> None:
    """hipExtModuleLaunchKernel's grid is in threads: all 3,273 such grids are multiples of their blocks."""
    path = profiles / "torch" / real.XDIT_MI300
    events = [e for e in events_of(path) if e.get("cat") in ("kernel", "cuda_runtime")]
    launch = {e["args"]["correlation"]: e["name"] for e in events if e["cat"] == "cuda_runtime"}
    kernels = [e["args"] for e in events if e["cat"] == "kernel"]
    told = [a for a in kernels if launch.get(a["correlation"]) == "hipExtModuleLaunchKernel"]
    assert (
        3273
        == len(told)
        == sum(all(g % b == 0 for g, b in zip(a["grid"], a["block"], strict=True)) for a in told)
    )
    frame = (
        read(path)
        .table("KERNELS")
        .drop_duplicates("correlation")
        .set_index("correlation")["grid_blocks"]
    )
    for a in kernels:
        threads = launch.get(a["correlation"]) == "hipExtModuleLaunchKernel"
        assert frame[a["correlation"]] == math.prod(a["grid"]) // (
            math.prod(a["block"]) if threads else 1
        )

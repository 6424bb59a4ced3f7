"""Tables of Nsight Systems exports, one quirk a test (made files)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from readers import nsys_files as made
from readers.nsys_files import HOST, Write, every_form

from perfkit.readers import nsys
from perfkit.readers.nsys.tables import canonical


@every_form
def test_kernels_are_read_with_launch_shape(write: Write, tmp_path: Path) -> None:
    """2 x 3 x 4 blocks of 32 x 2 x 1 threads, 16 + 1024 bytes of shared memory, 40 registers."""
    kernel = nsys.read(write(tmp_path / "run", {made.KERNEL: [made.kernel(-5, 20)]})).table("KERNELS").iloc[0]
    assert (-5, 25, 24, 64, 1040, 40) == tuple(
        kernel[["start_ns", "dur_ns", "grid_blocks", "block_threads", "shared_bytes", "registers"]]
    )


def test_kernels_of_one_short_name_stay_apart(tmp_path: Path) -> None:
    """Every CUTLASS kernel has the short name Kernel: the demangled name tells them apart."""
    full = [
        f"void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_{t}_nn_align4>(T1::Params)" for t in ("64x64", "128x64")
    ]
    frame = made.read(tmp_path, {made.KERNEL: [made.kernel(i, i + 1, n) for i, n in enumerate(full)]}).table("KERNELS")
    assert full == frame["full_name"].tolist()
    assert 2 == frame["name"].nunique()
    assert ["gemm", "gemm"] == frame["family"].tolist()


def test_a_kernel_without_a_demangled_name_has_its_short_one(tmp_path: Path) -> None:
    """Where one name is NULL the other is taken."""
    frame = made.read(tmp_path, {made.KERNEL: [made.kernel(0, 1, demangledName=None, shortName="plain")]}).table(
        "KERNELS"
    )
    assert ["plain"] == frame["full_name"].tolist()


@every_form
def test_a_name_that_is_not_stored_keeps_its_row(write: Write, tmp_path: Path) -> None:
    """An id without text in StringIds loses no kernel: the name says which string is absent."""
    names = ({"demangledName": 77}, {"demangledName": 78}, {"demangledName": None, "shortName": None})
    strings = [{"id": 77, "value": None}, {"id": 79, "value": "other"}]
    tables = {made.KERNEL: [made.kernel(i, i + 1, **name) for i, name in enumerate(names)], "StringIds": strings}
    frame = nsys.read(write(tmp_path / "run", tables)).table("KERNELS")
    assert ["unnamed (string 77)", "unnamed (string 78)", "unnamed"] == frame["full_name"].tolist()


@every_form
def test_an_id_that_names_nothing_certain_is_unnamed(write: Write, tmp_path: Path) -> None:
    """An id with two texts, or a negative one, keeps its number as a name; twice the same text is one name."""
    strings = [{"id": i, "value": v} for i, v in ((1, "a"), (1, "b"), (2, "c"), (2, "c"), (None, "d"), (-5, "e"))]
    rows = [made.kernel(i, i + 1, demangledName=i) for i in (1, 2)] + [made.kernel(9, 10, demangledName=4)]
    calls = [{**made.call(0, 1), "nameId": 2}, {**made.call(1, 2), "nameId": 1}]
    tables = {made.KERNEL: rows, made.RUNTIME: calls, "StringIds": strings}
    profile = nsys.read(write(tmp_path / "run", tables))
    assert ["unnamed (string 1)", "c", "unnamed (string 4)"] == profile.table("KERNELS")["full_name"].tolist()
    assert ["c", "unnamed (string 1)"] == profile.table("API_CALLS")["name"].tolist()


@pytest.mark.parametrize("value", [7, 1.5, b"\xff\x00"])
@every_form
def test_a_name_that_is_no_text_is_unnamed_and_noted(write: Write, value: object, tmp_path: Path) -> None:
    """StringIds may hold numbers and bytes: what they name is unnamed, and a note says why."""
    tables = {made.KERNEL: [made.kernel(0, 1, demangledName=1)], "StringIds": [{"id": 1, "value": value}]}
    profile = nsys.read(write(tmp_path / "run", tables))
    assert ["unnamed (string 1)"] == profile.table("KERNELS")["full_name"].tolist()
    assert any("StringIds" in note and "called unnamed" in note for note in profile.notes)


def test_two_ids_of_one_name_are_one_kernel(tmp_path: Path) -> None:
    """StringIds may hold a text twice; rows are grouped by the text."""
    strings = [{"id": i, "value": "work"} for i in (1, 2)]
    rows = [made.kernel(i, i + 1, demangledName=i) for i in (1, 2)]
    frame = made.read(tmp_path, {made.KERNEL: rows, "StringIds": strings}).table("KERNELS")
    assert ["work", "work"] == frame["name"].tolist()
    assert ["work"] == frame["full_name"].cat.categories.tolist()


def test_text_that_is_not_utf8_is_replaced(tmp_path: Path) -> None:
    """User names in other encodings occur; the rest of the name is kept."""
    strings = [{"id": 1, "value": b"caf\xe9_kernel"}, {"id": 2, "value": "fine"}]
    path = made.read(tmp_path, {made.KERNEL: [made.kernel(0, 1, demangledName=1)], "StringIds": strings}).path
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE StringIds SET value = CAST(value AS TEXT)")
    assert ["caf�_kernel"] == nsys.read(path).table("KERNELS")["full_name"].tolist()


@every_form
def test_process_and_thread_ids_are_exact(write: Write, tmp_path: Path) -> None:
    """Global ids beyond 2**53, where float64 is not exact, give process and thread ids to the last bit."""
    high, pid, tid = 1 << 56, 0xFFFFFD, 0xFFFFFB
    rows = {
        made.KERNEL: [made.kernel(0, 1, globalPid=high | pid << 24), made.kernel(1, 2, globalPid=None)],
        made.RUNTIME: [made.call(0, 1, globalTid=high | pid << 24 | tid)],
    }
    profile = nsys.read(write(tmp_path / "run", rows))
    assert [pid, -1] == profile.table("KERNELS")["process"].tolist()
    assert [[pid, tid]] == profile.table("API_CALLS")[["process", "thread"]].to_numpy().tolist()


@pytest.mark.parametrize(("callers", "process"), [([(42, 1), (42, 2)], 42), ([(42, 1), (43, 1)], -1)])
def test_kernels_without_a_process_belong_to_the_only_one(
    callers: list[tuple[int, int]], process: int, tmp_path: Path
) -> None:
    """A cut-down export without globalPid: theirs is the one process that made CUDA calls, unknown among two."""
    rows = made.without([made.kernel(0, 1)], "globalPid")
    profile = made.read(
        tmp_path, {made.KERNEL: rows, made.RUNTIME: [made.call(0, 1, pid=p, tid=t) for p, t in callers]}
    )
    assert [process] == profile.table("KERNELS")["process"].tolist()
    assert profile.notes[0].startswith("kernels carry no process")


def test_processes_may_share_correlation_ids(tmp_path: Path) -> None:
    """Correlation ids are unique per process: both tables carry the process to join on."""
    rows = {
        made.KERNEL: [made.kernel(i, i + 1, pid=i) for i in (1, 2)],
        made.RUNTIME: [made.call(0, 1, pid=i) for i in (1, 2)],
    }
    profile = made.read(tmp_path, rows)
    joined = profile.table("KERNELS").merge(profile.table("API_CALLS"), on=["process", "correlation"])
    assert [1, 2] == joined["process"].tolist()


@every_form
def test_kernels_of_a_graph_share_the_correlation_of_its_launch(write: Write, tmp_path: Path) -> None:
    """Nodes of a graph, of whatever id, are marked; NULL is no graph."""
    nodes = (0, 5, 1 << 62, None)
    rows = [made.kernel(i, i + 1, graphNodeId=node, correlationId=9) for i, node in enumerate(nodes)]
    frame = nsys.read(write(tmp_path / "run", {made.KERNEL: rows})).table("KERNELS")
    assert [True, True, True, False] == frame["in_graph"].tolist()
    assert [9] == frame["correlation"].unique().tolist()


def test_an_unsigned_graph_node_is_a_graph_node(tmp_path: Path) -> None:
    """SQLite stores ids from 2**63 on as negative numbers."""
    assert (
        made.read(tmp_path, {made.KERNEL: [made.kernel(0, 1, graphNodeId=-(1 << 63))]})
        .table("KERNELS")["in_graph"]
        .item()
    )


def test_graphs_recorded_as_a_whole_are_noted(tmp_path: Path) -> None:
    """With --cuda-graph-trace=graph the kernels of graphs are not recorded: a note says how to."""
    profile = made.read(
        tmp_path, {"CUPTI_ACTIVITY_KIND_GRAPH_TRACE": [{"start": 0, "end": 5}], made.KERNEL: [made.kernel(0, 1)]}
    )
    assert any("--cuda-graph-trace=node" in note for note in profile.notes)


TABLES = {"KERNELS": made.KERNEL, "COPIES": made.MEMCPY, "API_CALLS": made.RUNTIME, "OS_CALLS": made.SYSTEM}


@every_form
@pytest.mark.parametrize("table", TABLES)
def test_a_row_without_its_times_has_an_impossible_length(write: Write, table: str, tmp_path: Path) -> None:
    """A row whose start or end is NULL gets -1 ns, and no start of the capture's: it is never taken for a short one."""
    work = {"KERNELS": made.kernel, "COPIES": made.copy, "API_CALLS": made.call, "OS_CALLS": made.system_call}[table]
    rows = [work(50, 60), {**work(50, 60), "end": None}, {**work(50, 60), "start": None}]
    frame = nsys.read(write(tmp_path / "run", {TABLES[table]: rows})).loaders[table]()
    assert [(-(2**63), -1), (50, -1), (50, 10)] == sorted(zip(frame["start_ns"], frame["dur_ns"], strict=True))


@every_form
def test_lengths_do_not_wrap_around(write: Write, tmp_path: Path) -> None:
    """An absurd end is handed on as it is; a difference beyond 64 bits is -1 ns, never a plausible time."""
    rows = [made.kernel(100, 2**62), made.kernel(-(2**62), 2**62 + 7), made.kernel(2**63 - 1, 0), made.kernel(5, 9)]
    frame = nsys.read(write(tmp_path / "run", {made.KERNEL: rows})).loaders["KERNELS"]()
    lengths = dict(zip(frame["start_ns"], frame["dur_ns"], strict=True))
    assert {100: 2**62 - 100, -(2**62): -1, 2**63 - 1: 1 - 2**63, 5: 4} == lengths


@every_form
def test_sizes_do_not_wrap_around(write: Write, tmp_path: Path) -> None:
    """A product beyond 64 bits is -1, as is one of negative factors, and so is such a sum."""
    shapes = (
        {"gridX": 2**31, "gridY": 2**31, "gridZ": 2**31, "blockX": 2**40, "blockY": 2**24},
        {"gridX": -2, "gridY": -3, "staticSharedMemory": -100},
        {"gridX": None, "staticSharedMemory": 2**62, "dynamicSharedMemory": 2**62},
    )
    rows = [made.kernel(i, i + 1, **shape) for i, shape in enumerate(shapes)]
    frame = nsys.read(write(tmp_path / "run", {made.KERNEL: rows})).loaders["KERNELS"]()
    sizes = frame[["grid_blocks", "block_threads", "shared_bytes"]].astype(object).where(frame.notna(), None)
    assert [[-1, -1, 1040], [-1, 64, -1], [None, 64, -1]] == sizes.to_numpy().tolist()


@every_form
def test_a_device_that_no_node_has_is_no_device(write: Write, tmp_path: Path) -> None:
    """Device numbers beyond 32 bits, or negative, become one that cannot be; what is not recorded stays -1."""
    numbers = (0, None, 2**31, -7, -(2**63))
    rows = [made.kernel(i, i + 1, deviceId=number) for i, number in enumerate(numbers)]
    frame = nsys.read(write(tmp_path / "run", {made.KERNEL: rows})).loaders["KERNELS"]()
    by_start = frame.sort_values("start_ns")["gpu"].tolist()
    assert [0, -1, *[-(2**31)] * 3] == by_start


@pytest.mark.parametrize("table", ["TARGET_INFO_GPU", "TARGET_INFO_CUDA_GPU"])
@pytest.mark.parametrize(
    "rows",
    [
        made.without([made.gpu(1, deviceId=1), made.gpu(0, deviceId=0)], "id", "cuDevice"),
        [made.gpu(0, cuDevice=0), made.gpu(1, cuDevice=0)],
    ],
    ids=["as up to 2021", "ordinals that repeat"],
)
def test_gpus_without_ordinals_are_numbered_by_id(tmp_path: Path, table: str, rows: list[made.Row]) -> None:
    """Up to 2021 the table is TARGET_INFO_CUDA_GPU or has deviceId instead of id, and no cuDevice.

    Two GPUs cannot both be device 0 of the node: then their ids number them, too.
    """
    assert [0, 1] == made.read(tmp_path, {table: rows}).table("DEVICES")["gpu"].tolist()


@every_form
def test_devices_are_described(write: Write, tmp_path: Path) -> None:
    """Name, compute capability, SMs, memory, bandwidth and clock are the driver's."""
    device = nsys.read(write(tmp_path / "run", {"TARGET_INFO_GPU": [made.gpu()]})).table("DEVICES").iloc[0]
    assert ("NVIDIA A100-SXM4-80GB", "8.0", 108) == (device["name"], device["compute_capability"], device["sm_count"])
    assert (85 * 10**9, 2.039e12, 1.41e9) == (device["memory_bytes"], device["memory_bytes_per_s"], device["clock_hz"])


def test_a_gpu_that_is_not_described_has_missing_values(tmp_path: Path) -> None:
    """Exports of old V100 reports know the name alone: no peak is made up."""
    nothing = dict.fromkeys(
        ("cuDevice", "smCount", "totalMemory", "memoryBandwidth", "clockRate", "computeMajor", "computeMinor")
    )
    device = made.read(
        tmp_path, {"TARGET_INFO_GPU": [made.gpu(i, name="Tesla V100", **nothing) for i in (1, 0)]}
    ).table("DEVICES")
    assert [0, 1] == device["gpu"].tolist()
    assert device[["sm_count", "memory_bytes", "memory_bytes_per_s", "clock_hz"]].isna().all(axis=None)
    assert {""} == set(device["compute_capability"])


def test_the_ordinal_is_cu_device_not_the_id(tmp_path: Path) -> None:
    """On a node that lists GPU id 0 as CUDA device 1, the kernels of device 1 ran on the one named so."""
    gpus = [made.gpu(0, cuDevice=1, name="A40"), made.gpu(1, cuDevice=0, name="A100")]
    profile = made.read(tmp_path, {"TARGET_INFO_GPU": gpus, made.KERNEL: [made.kernel(0, 1, deviceId=1)]})
    assert ["A100", "A40"] == profile.table("DEVICES")["name"].tolist()
    assert [1] == profile.table("KERNELS")["gpu"].tolist()


def test_each_process_may_number_devices_for_itself(tmp_path: Path) -> None:
    """Two processes that each see one GPU as device 0 ran on the two that TARGET_INFO_CUDA_DEVICE names."""
    tables = {
        "TARGET_INFO_GPU": [made.gpu(0, cuDevice=1), made.gpu(1, cuDevice=0)],
        "TARGET_INFO_CUDA_DEVICE": [{"gpuId": g, "cudaId": 0, "pid": p} for g, p in ((1, 7), (0, 8))],
        made.KERNEL: [made.kernel(0, 1, pid=7), made.kernel(1, 2, pid=8)],
        made.MEMCPY: [made.copy(5, 6, kind=10, pid=8, srcDeviceId=0, dstDeviceId=3)],
    }
    profile = made.read(tmp_path, tables)
    assert {7: 0, 8: 1} == dict(profile.table("KERNELS")[["process", "gpu"]].to_numpy().tolist())
    assert [[1, 3]] == profile.table("COPIES")[["gpu", "peer_gpu"]].to_numpy().tolist()


def test_adapters_without_multiprocessors_are_left_out(tmp_path: Path) -> None:
    """Graphics adapters of other vendors are listed with 0 SMs and device number 0."""
    rows = [made.gpu(0), made.gpu(1, name="Intel(R) HD Graphics 630", smCount=0, cuDevice=0)]
    assert ["NVIDIA A100-SXM4-80GB"] == made.read(tmp_path, {"TARGET_INFO_GPU": rows}).table("DEVICES")["name"].tolist()


def test_a_listing_that_does_not_say_which_is_which_is_noted(tmp_path: Path) -> None:
    """Different GPUs without CUDA numbers: their order is used, and a note says so; equal ones need none."""
    rows = [made.gpu(i, cuDevice=None, name=name) for i, name in enumerate(("A40", "A100"))]
    assert any("which listed GPU is which" in note for note in made.read(tmp_path, {"TARGET_INFO_GPU": rows}).notes)


KINDS = ["unknown", "H2D", "D2H", "H2D", "D2H", "D2D", "D2D", "D2D", "D2D", "H2H", "P2P", "H2D", "D2H", "D2D"]
MEMORIES = ["pageable", "pinned", "device", "array", "managed", "device static", "managed static", "unknown", "unknown"]


def test_kinds_need_no_enum_table(tmp_path: Path) -> None:
    """CUPTI's copy kinds 0 to 13 (from 11 on of managed memory) and memory kinds 0 to 7 have names; NULL is missing."""
    rows = [made.copy(k, k + 1, kind=k) for k in range(15)]
    frame = nsys.read(made.sqlite(tmp_path / "copies", {made.MEMCPY: rows})).table("COPIES")
    assert [*KINDS, "unknown"] == frame["direction"].tolist()
    managed = frame["src_memory"].eq("managed") & frame["dst_memory"].eq("managed")
    assert [11, 12, 13] == frame.index[managed].tolist()
    rows = [made.copy(k, k + 1, srcKind=k, dstKind=None) for k in range(9)]
    frame = made.read(tmp_path, {made.MEMCPY: rows}).table("COPIES")
    assert MEMORIES == frame["src_memory"].tolist()
    assert frame["dst_memory"].isna().all()


@every_form
def test_memsets_stand_beside_copies(write: Write, tmp_path: Path) -> None:
    """A memset is a row of COPIES with the bytes set, the memory set, and no source, also without any copy."""
    tables = {made.MEMCPY: [made.copy(0, 8)], made.MEMSET: [made.memset(3, 5, bytes=64)]}
    frame = nsys.read(write(tmp_path / "run", tables)).table("COPIES")
    assert [["H2D", 4096, 8], ["memset", 64, 2]] == frame[["direction", "bytes", "dur_ns"]].to_numpy().tolist()
    assert [False, True] == frame["src_memory"].isna().tolist()
    assert ["device", "device"] == frame["dst_memory"].tolist()
    alone = nsys.read(write(tmp_path / "alone", {made.MEMSET: made.without([made.memset(0, 5)], "memKind")}))
    assert [("memset", True)] == [(r.direction, pd.isna(r.dst_memory)) for r in alone.table("COPIES").itertuples()]


@every_form
def test_kinds_that_cuda_does_not_have_are_unknown(write: Write, tmp_path: Path) -> None:
    """A negative or absurd kind of copy or memory is unknown: it is no memset, and no kind counted from the end."""
    odd = (-1, -3, 2**40, -(2**62))
    rows = [made.copy(i, i + 1, kind=5, srcKind=kind, dstKind=2) for i, kind in enumerate(odd)]
    signed = {made.MEMCPY: [{**row, "copyKind": kind} for row, kind in zip(rows, odd, strict=True)]}
    if write is not made.sqlite:  # these forms write kinds of copies unsigned
        signed = {
            made.MEMCPY: [{**row, "copyKind": 2**64 + k if k < 0 else k} for row, k in zip(rows, odd, strict=True)]
        }
    frame = nsys.read(write(tmp_path / "run", {**signed, made.MEMSET: [made.memset(90, 91, memKind=-9)]})).table(
        "COPIES"
    )
    assert ["unknown"] * 4 + ["memset"] == frame["direction"].tolist()
    assert ["unknown"] * 3 == frame["src_memory"].tolist()[1:4]
    assert "unknown" == frame["dst_memory"].tolist()[4]


def test_bytes_that_are_null_are_impossible(tmp_path: Path) -> None:
    """A copy whose bytes are NULL gets -1, not 0; an export that records no bytes has 0."""
    frame = made.read(tmp_path, {made.MEMCPY: [made.copy(0, 1, bytes=None)]}).loaders["COPIES"]()
    assert [-1] == frame["bytes"].tolist()


def test_a_peer_copy_names_the_other_gpu(tmp_path: Path) -> None:
    """Whichever side ran the copy, the peer is the other one; copies within a device have none."""
    sides = {"srcDeviceId": 0, "dstDeviceId": 3}
    rows = [made.copy(0, 1, kind=10, deviceId=0, **sides), made.copy(1, 2, kind=10, deviceId=3, **sides)]
    frame = made.read(tmp_path, {made.MEMCPY: [*rows, made.copy(2, 3, kind=8, **sides)]}).table("COPIES")
    assert {(0, 3), (3, 0), (0, -1)} == set(map(tuple, frame[["gpu", "peer_gpu"]].to_numpy().tolist()))


CAPTURE_END = 10**6  # ns, the duration of made.session()


def ranges(folder: Path, *events: made.Row) -> pd.DataFrame:
    """RANGES of a capture of these NVTX events."""
    return made.read(folder, {made.NVTX: list(events)}).table("RANGES")


def by_name(frame: pd.DataFrame, column: str) -> dict[str, object]:
    """A column of RANGES, by the name of the range."""
    return dict(zip(frame["name"], frame[column], strict=True))


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("cudaLaunchKernel_v7000", "cudaLaunchKernel"),
        ("cudaStreamIsCapturing_v10000", "cudaStreamIsCapturing"),
        ("cudaMemcpyAsync_ptsz_v7000", "cudaMemcpyAsync"),
        ("cudaMemcpy_ptds_v7000", "cudaMemcpy"),
        ("cuLaunchKernel", "cuLaunchKernel"),
        ("cuMemcpyDtoHAsync_v2_ptsz", "cuMemcpyDtoHAsync"),
        ("cuMemAlloc_v2", "cuMemAlloc"),
        ("my_v2_function", "my_v2_function"),
    ],
)
def test_calls_are_named_without_version_and_stream_mode(tmp_path: Path, stored: str, name: str) -> None:
    """_v7000, _v10000, _ptsz and _ptds say how a call was compiled, not which it is."""
    assert [name] == made.read(tmp_path, {made.RUNTIME: [made.call(0, 1, stored)]}).table("API_CALLS")["name"].tolist()


def test_versions_of_one_call_are_one_category(tmp_path: Path) -> None:
    """Calls compiled in two ways are counted together."""
    rows = [made.call(0, 1, "cudaLaunchKernel_v7000"), made.call(1, 2, "cudaLaunchKernel_ptsz_v7000")]
    names = made.read(tmp_path, {made.RUNTIME: rows}).table("API_CALLS")["name"]
    assert ["cudaLaunchKernel"] == names.cat.categories.tolist()
    assert [0, 0] == names.cat.codes.tolist()


def test_calls_of_the_operating_system_are_a_table_of_their_own(tmp_path: Path) -> None:
    """What --trace=osrt intercepted, without nsys's own marks."""
    rows = [
        made.system_call(0, 0, "OS runtime libraries profiling started"),
        made.system_call(50, 90, "fsync", tid=2),
        made.system_call(10, 40, "write"),
    ]
    profile = made.read(tmp_path, {made.SYSTEM: rows})
    found = profile.table("OS_CALLS")
    rows = found[["process", "thread", "start_ns", "dur_ns", "name"]].to_numpy().tolist()
    assert [[1, 1, 10, 30, "write"], [1, 2, 50, 40, "fsync"]] == rows
    assert [] == profile.table("API_CALLS")["name"].tolist()


@every_form
def test_calls_are_sorted_by_thread_and_start(write: Write, tmp_path: Path) -> None:
    """Calls of several threads come by process, thread and start, whatever the order in the export."""
    rows = [made.call(s, s + 2, pid=p, tid=t) for p, t, s in ((2, 1, 0), (1, 9, 7), (1, 8, 9), (1, 9, 3))]
    frame = nsys.read(write(tmp_path / "run", {made.RUNTIME: rows})).table("API_CALLS")
    assert [[1, 8, 9], [1, 9, 3], [1, 9, 7], [2, 1, 0]] == frame[["process", "thread", "start_ns"]].to_numpy().tolist()
    assert {2} == set(frame["dur_ns"])


def test_a_return_value_is_no_reason_to_drop_a_call(tmp_path: Path) -> None:
    """cudaErrorNotReady (600) answers an event query: it is no failure."""
    rows = [made.call(0, 1, "cudaEventQuery_v3020", returnValue=600), made.call(1, 2, "cudaEventQuery_v3020")]
    assert 2 == len(made.read(tmp_path, {made.RUNTIME: rows}).table("API_CALLS"))


@every_form
def test_text_is_inline_or_by_id(write: Write, tmp_path: Path) -> None:
    """A range is named by its text, else by the string of its textId; text wins; neither is unnamed."""
    rows = [
        made.event(0, 9, "inline"),
        made.event(1, 9, None, textId="registered"),
        made.event(2, 9, "both", textId="other"),
        made.event(3, 9, None),
        made.event(4, 9, "aten::mm, seq = 12, op_id = 3, sizes = [[2, 3], [3, 4]]"),  # PyTorch's, kept as written
    ]
    frame = nsys.read(write(tmp_path / "run", {made.NVTX: rows})).table("RANGES")
    assert ["inline", "registered", "both", "unnamed", rows[-1]["text"]] == frame["name"].tolist()


@pytest.mark.parametrize("column", ["text", "textId"])
def test_either_column_of_text_may_be_absent(tmp_path: Path, column: str) -> None:
    """Old exports have no textId, and all texts may be registered strings."""
    rows = made.without([made.event(0, 9, "step") | {"textId": "step"}], column)
    assert ["step"] == ranges(tmp_path, *rows)["name"].tolist()


@every_form
def test_ranges_and_marks_are_told_apart(write: Write, tmp_path: Path) -> None:
    """Event types 59, 60 and 34 are push_pop, start_end and mark; names of threads and categories are no ranges."""
    types = {made.PUSH_POP: "push_pop", made.START_END: "start_end", made.MARK: "mark"}
    rows = [made.event(t, None if t == made.MARK else t + 5, f"type {t}", eventType=t) for t in (*types, 33, 39, 75)]
    frame = nsys.read(write(tmp_path / "run", {made.NVTX: rows})).table("RANGES")
    assert {f"type {t}": kind for t, kind in types.items()} == by_name(frame, "kind")
    assert {"type 59": 5, "type 60": 5, "type 34": 0} == by_name(frame, "dur_ns")


def test_names_alone_are_no_ranges(tmp_path: Path) -> None:
    """A capture whose NVTX events only name threads and domains has no ranges recorded."""
    rows = [made.event(0, None, "main", eventType=39), made.event(0, None, "domain", eventType=made.DOMAIN)]
    profile = made.read(tmp_path, {made.NVTX: rows})
    assert "RANGES" not in profile.loaders
    assert "RANGES" in [m.table for m in profile.missing]


def test_ranges_never_closed_end_with_the_capture(tmp_path: Path) -> None:
    """An open range lasts to the end of the recording; one that opened after it has no length."""
    rows = [made.event(100, None, "open"), made.event(CAPTURE_END + 5, None, "late"), made.event(7, 9, "closed")]
    expected = {"open": CAPTURE_END - 100, "late": 0, "closed": 2}
    assert expected == by_name(ranges(tmp_path, *rows), "dur_ns")


@every_form
def test_mpi_calls_are_ranges(write: Write, tmp_path: Path) -> None:
    """Each table of MPI calls gives ranges of domain MPI with the function's name, with NVTX ranges or alone."""
    names = {"OTHER": "MPI_Init", "P2P": "MPI_Sendrecv", "COLLECTIVES": "MPI_Bcast", "START_WAIT": "MPI_Wait"}
    calls = {
        f"MPI_{kind}_EVENTS": [{"start": at, "end": at + 5, "globalTid": made.process(1) | 2, "textId": name}]
        for at, (kind, name) in enumerate(names.items())
    }
    alone = nsys.read(write(tmp_path / "alone", {**made.session(), **calls})).table("RANGES")
    assert sorted(names.values()) == sorted(alone["name"])
    assert ["MPI", "push_pop", 5, 2] * 4 == alone[["domain", "kind", "dur_ns", "thread"]].to_numpy().ravel().tolist()
    marked = {**made.session(), **calls, made.NVTX: [made.event(0, 90, "exchange")]}
    both = nsys.read(write(tmp_path / "both", marked)).table("RANGES")
    assert {**dict.fromkeys(names.values(), "MPI"), "exchange": ""} == by_name(both, "domain")


@every_form
def test_ranges_that_end_before_they_start_are_never_long(write: Write, tmp_path: Path) -> None:
    """A range whose end lies before its start, or whose start is absent, is handed on as impossible, not as open."""
    rows = [made.event(100, 90, "back"), made.event(5, 9, "fine"), {**made.event(5, 9, "lost"), "start": None}]
    tables = {**made.session(), made.NVTX: rows}
    frame = nsys.read(write(tmp_path / "run", tables)).loaders["RANGES"]()
    assert {"back": -10, "fine": 4, "lost": -1} == by_name(frame, "dur_ns")
    assert {"back": 0, "fine": 0, "lost": 0} == by_name(frame, "depth")


def test_a_range_of_an_impossible_length_encloses_nothing(tmp_path: Path) -> None:
    """A range that would last 146 years is no parent of those after it."""
    rows = [made.event(0, 2**62, "endless"), made.event(0, 100, "step"), made.event(5, 9, "inner")]
    frame = made.read(tmp_path, {made.NVTX: rows}).loaders["RANGES"]()
    depths = by_name(frame, "depth")
    assert (0, 1) == (depths["step"], depths["inner"])


def test_a_range_closed_on_another_thread_belongs_to_where_it_began(tmp_path: Path) -> None:
    """start_end ranges may end elsewhere (endGlobalTid)."""
    row = made.event(0, 9, tid=3, eventType=made.START_END, endGlobalTid=made.process(1) | 4)
    assert [3] == ranges(tmp_path, row)["thread"].tolist()


def test_domains_are_named_per_process(tmp_path: Path) -> None:
    """Domain 1 of one process is not domain 1 of another; 0 is the default; an unnamed one keeps its number."""
    rows = [
        made.event(0, None, "NCCL", pid=1, eventType=made.DOMAIN, domainId=1),
        made.event(0, None, "TorchOps", pid=2, eventType=made.DOMAIN, domainId=1),
        *(made.event(i, i + 1, f"{pid} {domain}", pid=pid, domainId=domain)
          for i, (pid, domain) in enumerate(((1, 1), (2, 1), (1, 0), (1, None), (2, 5)))),
    ]  # fmt: skip
    expected = {"1 1": "NCCL", "2 1": "TorchOps", "1 0": "", "1 None": "", "2 5": "domain 5"}
    assert expected == by_name(ranges(tmp_path, *rows), "domain")


def test_depth_is_per_thread_and_domain(tmp_path: Path) -> None:
    """Ranges of other threads, processes and domains enclose nothing, nor do start_end ranges and marks."""
    changes = ({"tid": 2}, {"pid": 2}, {"domainId": 3}, {"eventType": made.START_END}, {"eventType": made.MARK})
    outer = [made.event(0, 100, "outer", **change) for change in changes]
    frame = ranges(tmp_path, *outer, made.event(10, 20, "inner"))
    assert 6 == len(frame)
    assert {0} == set(frame["depth"])


@pytest.mark.parametrize(
    "spans",
    [  # start, end and expected depth of each range
        # The step holds one and two, which holds a and b; the next step nothing.
        [(0, 100, 0), (0, 40, 1), (40, 100, 1), (40, 41, 2), (90, 100, 2), (100, 101, 0)],
        # Two ranges of the same times enclose one the other, in the order of the export.
        [(0, 9, 0), (0, 9, 1)],
        # On a coarse clock short ranges have no length: that at 10 does not enclose [10, 20). Those at 20, when this
        # is over, lie in the outer range alone; that at 100 lies in none.
        [(0, 100, 0), (10, 10, 2), (10, 20, 1), (20, 20, 1), (20, 20, 1), (100, 100, 0)],
    ],
)
def test_depth_counts_the_enclosing_ranges(spans: list[tuple[int, int, int]], tmp_path: Path) -> None:
    """Steps, equal ranges and ranges without length, worked by hand."""
    rows = [made.event(start, end, f"{i}") for i, (start, end, _) in enumerate(spans)]
    assert {f"{i}": depth for i, (*_, depth) in enumerate(spans)} == by_name(ranges(tmp_path, *rows), "depth")


def nested(rng: np.random.Generator, start: int, end: int, depth: int) -> list[tuple[int, int]]:
    """Random ranges that nest inside [start, end), some adjacent and some without length."""
    spans, at = [], start
    while depth and at < end:
        first = int(rng.integers(at, end))
        last = int(rng.integers(first, end + 1))
        spans += [(first, last), *nested(rng, first, last, depth - 1)]
        at = max(last, at + 1)
    return spans


def test_depth_is_that_of_brute_force(tmp_path: Path) -> None:
    """On random nested ranges of 3 threads the depth is the number of ranges open at the start.

    Open at s are those with start < s < end or, of those that start at s, the longer ones and, of equal
    ones, those before in the export.
    """
    rng = np.random.default_rng(3)
    spans = [(tid, *span) for tid in (1, 2, 3) for span in nested(rng, 0, 300, 4)]
    order = rng.permutation(len(spans))
    frame = ranges(tmp_path, *(made.event(s, e, f"{i}", tid=t) for i, (t, s, e) in enumerate(spans[k] for k in order)))
    columns = frame[["name", "thread", "start_ns", "dur_ns"]]
    rows = [(int(n), t, s, s + d) for n, t, s, d in columns.itertuples(index=False)]
    expected = [
        sum(u == t and b > s and (a < s or (a == s and (b > e or (b == e and m < n)))) for m, u, a, b in rows)
        for n, t, s, e in rows
    ]
    assert expected == frame["depth"].tolist()
    assert max(expected) > 2


# A metric set of 2024, with one quantity in three units.
LISTED = (
    "GPC Clock Frequency [MHz]",
    "SYS Clock Frequency [MHz]",
    "GR Active [Throughput %]",
    "GR Active [Workloads]",
    "Compute Warps in Flight [Throughput %]",
    "Compute Warps in Flight [Avg]",
    "Compute Warps in Flight [Avg Warps per Cycle]",
    "PCIe RX Throughput [Throughput %]",
    "PCIe Read Requests to BAR1 [Requests]",
)


def samples(folder: Path, listed: list[made.Row], *rows: made.Row, **tables: list[made.Row]) -> pd.DataFrame:
    """SAMPLES of a capture of these metrics."""
    content = {"TARGET_INFO_GPU_METRICS": listed, "GPU_METRICS": list(rows), **tables}
    return made.read(folder, content).table("SAMPLES")


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("SM Active", "SMs Active [Throughput %]", "sm_active_frac"),
        ("DRAM Read Throughput", "DRAM Read Bandwidth [Throughput %]", "dram_read_frac"),
        ("DRAM Write Throughput", "DRAM Write Bandwidth [Throughput %]", "dram_write_frac"),
        ("Tensor Active", "Tensor Active [Throughput %]", "tensor_active_frac"),
        ("SM Issue", "SM Issue [Throughput %]", "sm_issue_frac"),
        ("PCIe RX Throughput", "PCIe RX Throughput [Throughput %]", "pcie_rx_frac"),
        ("Compute Warps In Flight", "Compute Warps in Flight [Throughput %]", "compute_warps_in_flight_frac"),
        ("Unallocated Warps in Active SMs", "Unallocated Warps in Active SMs [Throughput %]",
         "unallocated_warps_in_active_sms_frac"),
        ("GPC Clock Frequency", "GPC Clock Frequency [MHz]", "gpc_clock_hz"),
        ("SYS Clock Frequency", "SYS Clock Frequency [MHz]", "sys_clock_hz"),
    ],
)  # fmt: skip
def test_both_spellings_are_one_metric(old: str, new: str, name: str) -> None:
    """nsys renamed its metrics in 2023: both spellings have one canonical name."""
    assert (name, name) == (canonical(old), canonical(new))


def test_one_quantity_in_several_units_stays_several_metrics() -> None:
    """Avg, Avg Warps per Cycle and % of the same quantity are not mixed, and only % is a fraction."""
    names = [canonical(name) for name in LISTED]
    assert len(LISTED) == len(set(names))
    assert {True} == {name.endswith("_frac") == ("%" in listed) for name, listed in zip(names, LISTED, strict=True)}
    assert all(name.endswith(("_frac", "_hz", "_count")) for name in names)


@every_form
def test_percents_become_fractions(write: Write, tmp_path: Path) -> None:
    """7 % is 0.07, at the time it was read, which may lie before the start."""
    tables = {
        "TARGET_INFO_GPU_METRICS": [made.metric("SMs Active [Throughput %]")],
        "GPU_METRICS": [made.sample(100, 100), made.sample(-368_205, 7)],
    }
    frame = nsys.read(write(tmp_path / "run", tables)).table("SAMPLES")
    assert [[-368_205, 0.07], [100, 1.0]] == frame[["time_ns", "value"]].to_numpy().tolist()


CLOCKS = {2_154_414_000 - 2**32: 2_154_414_000.0, 1_410_000_000: 1.41e9, 1410: 1.41e9, 0: 0.0}  # stored: in Hz


@pytest.mark.parametrize(
    ("listed", "metric", "values"),
    [
        (made.metric("PCIe Read Requests to BAR1 [Requests]"), "pcie_read_requests_to_bar1_requests_count", {150: 150}),
        (made.metric("GPC Clock Frequency [MHz]"), "gpc_clock_hz", CLOCKS),  # the first wrapped around at 2**31
        (made.metric("SM Active", 9), "metric_1_unlisted_count", {300: 300}),
    ],
)
def test_counts_and_clocks_are_no_percents(
    listed: made.Row, metric: str, values: dict[int, float], tmp_path: Path
) -> None:
    """A metric in another unit than %, or that nobody lists, is not divided by 100."""
    frame = samples(tmp_path, [listed], *(made.sample(i, value) for i, value in enumerate(values)))
    assert {metric} == set(frame["metric"])
    assert [*values.values()] == frame["value"].tolist()


@every_form
def test_metrics_are_numbered_per_set(write: Write, tmp_path: Path) -> None:
    """Metric 1 of one GPU's set is not metric 1 of the other's: the join is on typeId and metricId."""
    listed = [
        made.metric("SM Active", 1, HOST),
        made.metric("DRAM Read Throughput", 2, HOST),
        made.metric("DRAM Read Throughput", 1, HOST | 1),
        made.metric("SM Active", 2, HOST | 1),
    ]
    rows = [made.sample(0, 10 * m + g, m, HOST | g) for g in (0, 1) for m in (1, 2)]
    tables = {"TARGET_INFO_GPU_METRICS": listed, "GPU_METRICS": rows}
    frame = nsys.read(write(tmp_path / "run", tables)).table("SAMPLES")
    values = dict(zip(zip(frame["gpu"], frame["metric"], strict=True), frame["value"], strict=True))
    expected = {"dram_read_frac": (0.20, 0.11), "sm_active_frac": (0.10, 0.21)}
    assert {(g, m): pair[g] for m, pair in expected.items() for g in (0, 1)} == values


def test_the_low_byte_of_the_set_is_the_gpu(tmp_path: Path) -> None:
    """GPU 1 of the listing is CUDA device 0 here, so its samples are GPU 0's; an unlisted GPU keeps its number."""
    gpus = [made.gpu(0, cuDevice=1), made.gpu(1, cuDevice=0)]
    listed = [made.metric("SM Active", 1, HOST | kind) for kind in (0x101, 0x202)]
    rows = [made.sample(0, 5, kind=HOST | kind) for kind in (0x101, 0x202)]
    frame = samples(tmp_path, listed, *rows, TARGET_INFO_GPU=gpus)
    assert [0, 2] == frame["gpu"].tolist()


def test_samples_are_those_of_brute_force(tmp_path: Path) -> None:
    """On random samples of two GPUs and three metrics every value is its own percent over 100, sorted."""
    rng = np.random.default_rng(2)
    names = ("SM Active", "GR Active", "SM Issue")
    listed = [made.metric(name, i, HOST | g) for i, name in enumerate(names) for g in (0, 1)]
    picks = [(*map(int, rng.integers(0, (2, 3, 101))), time) for time in range(500)]
    frame = samples(tmp_path, listed, *(made.sample(t, v, m, HOST | g) for g, m, v, t in picks))
    expected = sorted((g, canonical(names[m]), t, v / 100) for g, m, v, t in picks)
    assert expected == list(frame[["gpu", "metric", "time_ns", "value"]].itertuples(index=False, name=None))


@every_form
def test_a_reading_that_is_null_is_impossible(write: Write, tmp_path: Path) -> None:
    """A sample without a time, or without a value, is handed on as impossible, never as time or value 0."""
    rows = [made.sample(5, 50), {**made.sample(0, 50), "timestamp": None}, {**made.sample(7, 0), "value": None}]
    tables = {"TARGET_INFO_GPU_METRICS": [made.metric("SM Active")], "GPU_METRICS": rows}
    frame = nsys.read(write(tmp_path / "run", tables)).loaders["SAMPLES"]()
    assert [-(2**63), 5, 7] == frame["time_ns"].tolist()
    assert [0.5, 0.5, None] == frame["value"].astype(object).where(frame["value"].notna(), None).tolist()


@every_form
def test_absurd_numbers_of_metrics_are_metrics(write: Write, tmp_path: Path) -> None:
    """Numbers of metrics and sets beyond 32 bits, negative or NULL number metrics of their own, which none lists."""
    numbers = (2**62, -(2**63), -7, 2**32 + 1, 1)
    rows = [made.sample(i, 10, metric=number) for i, number in enumerate(numbers)]
    rows.append({**made.sample(9, 10), "typeId": None})
    tables = {"TARGET_INFO_GPU_METRICS": [made.metric("SM Active")], "GPU_METRICS": rows}
    frame = nsys.read(write(tmp_path / "run", tables)).table("SAMPLES").sort_values("time_ns")
    unlisted = [f"metric_{abs(number)}_unlisted_count" for number in numbers[:-1]]
    assert [*unlisted, "sm_active_frac", "metric_1_unlisted_count"] == frame["metric"].tolist()
    assert [0, 0, 0, 0, 0, -1] == frame["gpu"].tolist()


def test_metrics_of_as_many_kinds_as_samples_are_read(tmp_path: Path) -> None:
    """100,000 samples, each of a metric of its own, are read in one pass."""
    rows = [made.sample(i, 10, metric=i) for i in range(100_000)]
    frame = samples(tmp_path, [made.metric("SM Active", 7)], *rows)
    assert 100_000 == frame["metric"].nunique()
    assert [0.1] == frame["value"][frame["metric"] == "sm_active_frac"].tolist()


@pytest.mark.parametrize("name", [7, b"SM Active", None, "x" * 10**6])
def test_a_metric_of_an_odd_name_is_read(tmp_path: Path, name: object) -> None:
    """A name that is no text lists nothing; a very long one is cut."""
    frame = samples(tmp_path, [{**made.metric("", 1), "metricName": name}], made.sample(0, 30))
    (metric,) = frame["metric"]
    assert metric == ("metric_1_unlisted_count" if not isinstance(name, str) else "x" * 200 + "_frac")

"""Kernels, copies and devices of Nsight Systems exports, one quirk a test (made files)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from readers import nsys_files as made
from readers.nsys_files import Write, every_form

from perfkit.readers import nsys

# Kernels


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


def test_kernels_without_a_process_belong_to_the_only_one(tmp_path: Path) -> None:
    """A cut-down export without globalPid has one process that made CUDA calls; a note says so."""
    rows = made.without([made.kernel(0, 1)], "globalPid")
    profile = made.read(tmp_path, {made.KERNEL: rows, made.RUNTIME: [made.call(0, 1, pid=42, tid=t) for t in (1, 2)]})
    assert [42] == profile.table("KERNELS")["process"].tolist()
    assert profile.notes[0].startswith("kernels carry no process")


def test_kernels_without_a_process_are_not_guessed_among_two(tmp_path: Path) -> None:
    """With calls of two processes nobody knows whose kernel it is."""
    rows = made.without([made.kernel(0, 1)], "globalPid")
    profile = made.read(tmp_path, {made.KERNEL: rows, made.RUNTIME: [made.call(0, 1, pid=p) for p in (42, 43)]})
    assert [-1] == profile.table("KERNELS")["process"].tolist()


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


# Devices


@pytest.mark.parametrize("table", ["TARGET_INFO_GPU", "TARGET_INFO_CUDA_GPU"])
def test_old_exports_number_gpus_by_device_id(tmp_path: Path, table: str) -> None:
    """Up to 2021 the table is TARGET_INFO_CUDA_GPU or has deviceId instead of id, and no cuDevice."""
    rows = made.without([made.gpu(1, deviceId=1), made.gpu(0, deviceId=0)], "id", "cuDevice")
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


def test_ordinals_that_repeat_are_not_believed(tmp_path: Path) -> None:
    """Two GPUs cannot both be device 0 of the node: then their ids number them."""
    profile = made.read(tmp_path, {"TARGET_INFO_GPU": [made.gpu(0, cuDevice=0), made.gpu(1, cuDevice=0)]})
    assert [0, 1] == profile.table("DEVICES")["gpu"].tolist()


def test_adapters_without_multiprocessors_are_left_out(tmp_path: Path) -> None:
    """Graphics adapters of other vendors are listed with 0 SMs and device number 0."""
    rows = [made.gpu(0), made.gpu(1, name="Intel(R) HD Graphics 630", smCount=0, cuDevice=0)]
    assert ["NVIDIA A100-SXM4-80GB"] == made.read(tmp_path, {"TARGET_INFO_GPU": rows}).table("DEVICES")["name"].tolist()


def test_a_listing_that_does_not_say_which_is_which_is_noted(tmp_path: Path) -> None:
    """Different GPUs without CUDA numbers: their order is used, and a note says so; equal ones need none."""
    rows = [made.gpu(i, cuDevice=None, name=name) for i, name in enumerate(("A40", "A100"))]
    assert any("which listed GPU is which" in note for note in made.read(tmp_path, {"TARGET_INFO_GPU": rows}).notes)


# Copies

KINDS = [
    "unknown",
    "H2D",
    "D2H",
    "H2D",
    "D2H",
    "D2D",
    "D2D",
    "D2D",
    "D2D",
    "H2H",
    "P2P",
    "H2D",
    "D2H",
    "D2D",
    "unknown",
]
MEMORIES = ["pageable", "pinned", "device", "array", "managed", "device static", "managed static", "unknown", "unknown"]


def test_copy_kinds_need_no_enum_table(tmp_path: Path) -> None:
    """CUPTI's copy kinds 0 to 13 are directions, later ones unknown; 11 to 13 move managed memory."""
    frame = made.read(tmp_path, {made.MEMCPY: [made.copy(k, k + 1, kind=k) for k in range(15)]}).table("COPIES")
    assert KINDS == frame["direction"].tolist()
    managed = frame["src_memory"].eq("managed") & frame["dst_memory"].eq("managed")
    assert [11, 12, 13] == frame.index[managed].tolist()


def test_memory_kinds_need_no_enum_table(tmp_path: Path) -> None:
    """CUPTI's memory kinds 0 to 7 have names, later ones are unknown, NULL is missing."""
    rows = [made.copy(k, k + 1, srcKind=k, dstKind=None) for k in range(9)]
    frame = made.read(tmp_path, {made.MEMCPY: rows}).table("COPIES")
    assert MEMORIES == frame["src_memory"].tolist()
    assert frame["dst_memory"].isna().all()


@every_form
def test_memsets_stand_beside_copies(write: Write, tmp_path: Path) -> None:
    """A memset is a row of COPIES with the bytes set, the memory set, and no source."""
    tables = {made.MEMCPY: [made.copy(0, 8)], made.MEMSET: [made.memset(3, 5, bytes=64)]}
    frame = nsys.read(write(tmp_path / "run", tables)).table("COPIES")
    assert [["H2D", 4096, 8], ["memset", 64, 2]] == frame[["direction", "bytes", "dur_ns"]].to_numpy().tolist()
    assert [False, True] == frame["src_memory"].isna().tolist()
    assert ["device", "device"] == frame["dst_memory"].tolist()


def test_memsets_alone_are_copies(tmp_path: Path) -> None:
    """A capture without any memcpy table still has its memsets, exports without memKind too."""
    frame = made.read(tmp_path, {made.MEMSET: made.without([made.memset(0, 5)], "memKind")}).table("COPIES")
    assert ["memset"] == frame["direction"].tolist()
    assert frame["dst_memory"].isna().all()


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

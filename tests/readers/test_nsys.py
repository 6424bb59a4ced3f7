"""GPU tables, numbering and versions of Nsight Systems exports, one quirk a test (made files)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
from readers import nsys_files as made

from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers import nsys
from perfkit.readers.nsys import sqlite as sqlite_form
from perfkit.tables import TABLES

FORMS = {"sqlite": made.sqlite, "parquetdir": made.parquet, "arrowdir": made.arrow}
every_form = pytest.mark.parametrize("write", FORMS.values(), ids=FORMS.keys())


@pytest.fixture
def read(tmp_path: Path):  # noqa: ANN201
    """Write tables as an SQLite export and read them back."""

    def read(tables: made.Tables, **session: object) -> Profile:
        return nsys.read(made.sqlite(tmp_path / "run.sqlite", {**made.session(**session), **tables}))

    return read


# Versions (formats/nsys.md §2)


@pytest.mark.parametrize("table", ["EXPORT_META_DATA", "META_DATA_EXPORT"])
def test_the_version_is_found_under_either_name(table: str, tmp_path: Path) -> None:
    """Schemas before 3.4 keep the exporter's version in EXPORT_META_DATA, later ones in META_DATA_EXPORT."""
    rows = [{"name": "EXPORT_SCHEMA_VERSION", "value": "3"}, {"name": "EXPORT_PRODUCT_VERSION", "value": "2022.4.2.1"}]
    capture = nsys.read(made.sqlite(tmp_path / "a", {table: rows, made.KERNEL: [made.kernel(0, 1)]})).capture
    assert "2022.4.2.1" == capture["tool_version"].item()


def test_an_export_before_2_9_has_no_version(tmp_path: Path) -> None:
    """Without any version table, session or description of the node, the events are read all the same."""
    profile = nsys.read(
        made.sqlite(tmp_path / "a", {made.KERNEL: [made.kernel(0, 100)], made.MEMCPY: [made.copy(100, 150)]})
    )
    capture = profile.capture.iloc[0]
    assert ("", True, 150) == (capture["tool_version"], pd.isna(capture["t0_unix_ns"]), capture["dur_ns"])
    assert {"KERNELS", "COPIES"} == set(profile.loaders)


def test_a_session_without_its_length_lasts_to_the_last_event(tmp_path: Path) -> None:
    """ANALYSIS_DETAILS without a duration does not say how long the recording was."""
    tables = {"ANALYSIS_DETAILS": [{"globalVid": 1, "duration": None}], made.RUNTIME: [made.call(5, 70)]}
    assert [70] == nsys.read(made.sqlite(tmp_path / "a", tables)).capture["dur_ns"].tolist()


def test_repeated_names_of_capture_options_do_no_harm(read) -> None:  # noqa: ANN001
    """META_DATA_CAPTURE repeats CAPTURE_EVENT_TYPE."""
    options = [{"name": "CAPTURE_EVENT_TYPE", "value": kind} for kind in ("Cuda", "NvtxEvents")]
    profile = read({"META_DATA_CAPTURE": options, made.KERNEL: [made.kernel(0, 1)]})
    assert "2024.2.3.38" == profile.capture["tool_version"].item()


def test_the_clock_is_when_the_session_started(read) -> None:  # noqa: ANN001
    """CAPTURE holds the wall clock of time 0 and the length, exactly."""
    t0 = 1_785_519_316_261_388_313
    capture = read({made.KERNEL: [made.kernel(0, 1)]}, t0=t0, duration=77).capture
    assert (t0, 77) == (capture["t0_unix_ns"].item(), capture["dur_ns"].item())


def test_columns_an_export_lacks_are_missing_values(read) -> None:  # noqa: ANN001
    """A cut-down export without ids and launch shape gives -1 and NA, not an error."""
    lacking = ("globalPid", "streamId", "registersPerThread", "dynamicSharedMemory", "gridZ", "graphNodeId")
    frame = read({made.KERNEL: made.without([made.kernel(0, 9)], *lacking)}).table("KERNELS")
    kernel = frame.iloc[0]
    assert (-1, -1, False) == (kernel["process"], kernel["stream"], kernel["in_graph"])
    assert frame[["grid_blocks", "registers", "shared_bytes"]].isna().all(axis=None)
    assert 64 == kernel["block_threads"]


def test_columns_of_newer_versions_are_passed_over(read) -> None:  # noqa: ANN001
    """2026's kernels have columns no table of ours has."""
    frame = read({made.KERNEL: [made.kernel(0, 9, graphId=1, clusterX=2, qmdDone=None)]}).table("KERNELS")
    assert TABLES["KERNELS"].column_names == list(frame.columns)


@pytest.mark.parametrize("names", [[made.KERNEL + "_V2"], [made.KERNEL + "_V2", made.KERNEL + "_V10", made.KERNEL]])
def test_the_newest_form_of_a_table_is_read(read, names: list[str]) -> None:  # noqa: ANN001
    """2026.2 stores tables with a suffix: _V10 is newer than _V2, and both than none."""
    tables = {name: [made.kernel(0, len(name))] for name in names}
    assert [max(map(len, names))] == read(tables).table("KERNELS")["dur_ns"].tolist()


def test_a_table_of_a_longer_name_is_another_table(read) -> None:  # noqa: ANN001
    """CUPTI_ACTIVITY_KIND_KERNEL_EXTRA is no version of the kernels."""
    assert "KERNELS" not in read({made.KERNEL + "_EXTRA": [made.kernel(0, 1)]}).loaders


def test_a_table_without_rows_is_missing(tmp_path: Path) -> None:
    """Full exports create every table: only rows make it recorded."""
    path = made.sqlite(tmp_path / "a", made.capture())
    with closing(sqlite3.connect(path)) as database, database:
        for table in (made.KERNEL, "GPU_METRICS", made.NVTX):
            database.execute(f"DELETE FROM {table}")
    profile = nsys.read(path)
    assert ["KERNELS", "RANGES", "SAMPLES"] == [m.table for m in profile.missing]
    assert 0 == len(profile.table("KERNELS"))


def test_a_recording_of_the_processor_alone_says_what_it_lacks(read) -> None:  # noqa: ANN001
    """A capture without any GPU table is read; everything of the GPU is missing, with the option for it."""
    profile = read({"OSRT_API": [{"start": 1, "end": 2}]})
    assert {} == dict(profile.loaders)
    remedies = {m.table: m.record for m in profile.missing}
    assert set(remedies) == {"KERNELS", "COPIES", "API_CALLS", "RANGES", "SAMPLES", "DEVICES"}
    assert "nsys profile --gpu-metrics-devices=all" == remedies["SAMPLES"]


@every_form
def test_all_forms_of_one_capture_are_equal(write, tmp_path: Path) -> None:  # noqa: ANN001
    """SQLite, Parquet and Arrow exports of the same capture give the same tables."""
    expected = nsys.read(made.sqlite(tmp_path / "reference", made.capture()))
    profile = nsys.read(write(tmp_path / "run", made.capture()))
    for name in set(TABLES) - {"CAPTURE"}:
        pd.testing.assert_frame_equal(expected.table(name), profile.table(name), check_exact=True)


# Kernels


@every_form
def test_kernels_are_read_with_launch_shape(write, tmp_path: Path) -> None:  # noqa: ANN001
    """2 x 3 x 4 blocks of 32 x 2 x 1 threads, 16 + 1024 bytes of shared memory, 40 registers."""
    kernel = nsys.read(write(tmp_path / "run", {made.KERNEL: [made.kernel(-5, 20)]})).table("KERNELS").iloc[0]
    assert (-5, 25, 24, 64, 1040, 40) == tuple(
        kernel[["start_ns", "dur_ns", "grid_blocks", "block_threads", "shared_bytes", "registers"]]
    )


def test_kernels_of_one_short_name_stay_apart(read) -> None:  # noqa: ANN001
    """Every CUTLASS kernel has the short name Kernel: the demangled name tells them apart."""
    full = [
        f"void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_{t}_nn_align4>(T1::Params)" for t in ("64x64", "128x64")
    ]
    frame = read({made.KERNEL: [made.kernel(i, i + 1, n) for i, n in enumerate(full)]}).table("KERNELS")
    assert full == frame["full_name"].tolist()
    assert 2 == frame["name"].nunique()
    assert ["gemm", "gemm"] == frame["family"].tolist()


def test_a_kernel_without_a_demangled_name_has_its_short_one(read) -> None:  # noqa: ANN001
    """Where one name is NULL the other is taken."""
    frame = read({made.KERNEL: [made.kernel(0, 1, demangledName=None, shortName="plain")]}).table("KERNELS")
    assert ["plain"] == frame["full_name"].tolist()


def test_a_name_that_is_not_stored_keeps_its_row(read) -> None:  # noqa: ANN001
    """An id without text in StringIds loses no kernel: the name says which string is absent."""
    rows = [made.kernel(0, 1, demangledName=77), made.kernel(1, 2, demangledName=None, shortName=None)]
    frame = read({made.KERNEL: rows, "StringIds": [{"id": 77, "value": None}]}).table("KERNELS")
    assert ["unnamed (string 77)", "unnamed"] == frame["full_name"].tolist()


def test_two_ids_of_one_name_are_one_kernel(read) -> None:  # noqa: ANN001
    """StringIds may hold a text twice; rows are grouped by the text."""
    strings = [{"id": i, "value": "work"} for i in (1, 2)]
    rows = [made.kernel(i, i + 1, demangledName=i) for i in (1, 2)]
    frame = read({made.KERNEL: rows, "StringIds": strings}).table("KERNELS")
    assert ["work", "work"] == frame["name"].tolist()
    assert ["work"] == frame["full_name"].cat.categories.tolist()


def test_text_that_is_not_utf8_is_replaced(read) -> None:  # noqa: ANN001
    """User names in other encodings occur; the rest of the name is kept."""
    strings = [{"id": 1, "value": b"caf\xe9_kernel"}, {"id": 2, "value": "fine"}]
    path = read({made.KERNEL: [made.kernel(0, 1, demangledName=1)], "StringIds": strings}).path
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE StringIds SET value = CAST(value AS TEXT)")
    assert ["caf�_kernel"] == nsys.read(path).table("KERNELS")["full_name"].tolist()


@every_form
def test_process_and_thread_ids_are_exact(write, tmp_path: Path) -> None:  # noqa: ANN001
    """Global ids beyond 2**53, where float64 is not exact, give process and thread ids to the last bit."""
    high, pid, tid = 1 << 56, 0xFFFFFD, 0xFFFFFB
    rows = {
        made.KERNEL: [made.kernel(0, 1, globalPid=high | pid << 24), made.kernel(1, 2, globalPid=None)],
        made.RUNTIME: [made.call(0, 1, globalTid=high | pid << 24 | tid)],
    }
    profile = nsys.read(write(tmp_path / "run", rows))
    assert [pid, -1] == profile.table("KERNELS")["process"].tolist()
    assert [[pid, tid]] == profile.table("API_CALLS")[["process", "thread"]].to_numpy().tolist()


def test_kernels_without_a_process_belong_to_the_only_one(read) -> None:  # noqa: ANN001
    """A cut-down export without globalPid has one process that made CUDA calls; a note says so."""
    rows = made.without([made.kernel(0, 1)], "globalPid")
    profile = read({made.KERNEL: rows, made.RUNTIME: [made.call(0, 1, pid=42, tid=t) for t in (1, 2)]})
    assert [42] == profile.table("KERNELS")["process"].tolist()
    assert profile.notes[0].startswith("kernels carry no process")


def test_kernels_without_a_process_are_not_guessed_among_two(read) -> None:  # noqa: ANN001
    """With calls of two processes nobody knows whose kernel it is."""
    rows = made.without([made.kernel(0, 1)], "globalPid")
    profile = read({made.KERNEL: rows, made.RUNTIME: [made.call(0, 1, pid=p) for p in (42, 43)]})
    assert [-1] == profile.table("KERNELS")["process"].tolist()


def test_processes_may_share_correlation_ids(read) -> None:  # noqa: ANN001
    """Correlation ids are unique per process: both tables carry the process to join on."""
    rows = {
        made.KERNEL: [made.kernel(i, i + 1, pid=i) for i in (1, 2)],
        made.RUNTIME: [made.call(0, 1, pid=i) for i in (1, 2)],
    }
    profile = read(rows)
    joined = profile.table("KERNELS").merge(profile.table("API_CALLS"), on=["process", "correlation"])
    assert [1, 2] == joined["process"].tolist()


@every_form
def test_kernels_of_a_graph_share_the_correlation_of_its_launch(write, tmp_path: Path) -> None:  # noqa: ANN001
    """Nodes of a graph, of whatever id, are marked; NULL is no graph."""
    nodes = (0, 5, 1 << 62, None)
    rows = [made.kernel(i, i + 1, graphNodeId=node, correlationId=9) for i, node in enumerate(nodes)]
    frame = nsys.read(write(tmp_path / "run", {made.KERNEL: rows})).table("KERNELS")
    assert [True, True, True, False] == frame["in_graph"].tolist()
    assert [9] == frame["correlation"].unique().tolist()


def test_an_unsigned_graph_node_is_a_graph_node(read) -> None:  # noqa: ANN001
    """SQLite stores ids from 2**63 on as negative numbers."""
    assert read({made.KERNEL: [made.kernel(0, 1, graphNodeId=-(1 << 63))]}).table("KERNELS")["in_graph"].item()


def test_graphs_recorded_as_a_whole_are_noted(read) -> None:  # noqa: ANN001
    """With --cuda-graph-trace=graph the kernels of graphs are not recorded: a note says how to."""
    profile = read({"CUPTI_ACTIVITY_KIND_GRAPH_TRACE": [{"start": 0, "end": 5}], made.KERNEL: [made.kernel(0, 1)]})
    assert any("--cuda-graph-trace=node" in note for note in profile.notes)


def test_a_row_without_an_end_has_no_length(read) -> None:  # noqa: ANN001
    """A kernel or call that was running when the capture stopped gets duration 0, never a negative one."""
    profile = read({made.KERNEL: [made.kernel(50, None)], made.RUNTIME: [made.call(50, None)]})
    assert [0, 0] == [profile.table(t)["dur_ns"].item() for t in ("KERNELS", "API_CALLS")]


# Devices


@pytest.mark.parametrize("table", ["TARGET_INFO_GPU", "TARGET_INFO_CUDA_GPU"])
def test_old_exports_number_gpus_by_device_id(read, table: str) -> None:  # noqa: ANN001
    """Up to 2021 the table is TARGET_INFO_CUDA_GPU or has deviceId instead of id, and no cuDevice."""
    rows = made.without([made.gpu(1, deviceId=1), made.gpu(0, deviceId=0)], "id", "cuDevice")
    assert [0, 1] == read({table: rows}).table("DEVICES")["gpu"].tolist()


@every_form
def test_devices_are_described(write, tmp_path: Path) -> None:  # noqa: ANN001
    """Name, compute capability, SMs, memory, bandwidth and clock are the driver's."""
    device = nsys.read(write(tmp_path / "run", {"TARGET_INFO_GPU": [made.gpu()]})).table("DEVICES").iloc[0]
    assert ("NVIDIA A100-SXM4-80GB", "8.0", 108) == (device["name"], device["compute_capability"], device["sm_count"])
    assert (85 * 10**9, 2.039e12, 1.41e9) == (device["memory_bytes"], device["memory_bytes_per_s"], device["clock_hz"])


def test_a_gpu_that_is_not_described_has_missing_values(read) -> None:  # noqa: ANN001
    """Exports of old V100 reports know the name alone: no peak is made up."""
    nothing = dict.fromkeys(
        ("cuDevice", "smCount", "totalMemory", "memoryBandwidth", "clockRate", "computeMajor", "computeMinor")
    )
    device = read({"TARGET_INFO_GPU": [made.gpu(i, name="Tesla V100", **nothing) for i in (1, 0)]}).table("DEVICES")
    assert [0, 1] == device["gpu"].tolist()
    assert device[["sm_count", "memory_bytes", "memory_bytes_per_s", "clock_hz"]].isna().all(axis=None)
    assert {""} == set(device["compute_capability"])


def test_the_ordinal_is_cu_device_not_the_id(read) -> None:  # noqa: ANN001
    """On a node that lists GPU id 0 as CUDA device 1, the kernels of device 1 ran on the one named so."""
    gpus = [made.gpu(0, cuDevice=1, name="A40"), made.gpu(1, cuDevice=0, name="A100")]
    profile = read({"TARGET_INFO_GPU": gpus, made.KERNEL: [made.kernel(0, 1, deviceId=1)]})
    assert ["A100", "A40"] == profile.table("DEVICES")["name"].tolist()
    assert [1] == profile.table("KERNELS")["gpu"].tolist()


def test_each_process_may_number_devices_for_itself(read) -> None:  # noqa: ANN001
    """Two processes that each see one GPU as device 0 ran on the two that TARGET_INFO_CUDA_DEVICE names."""
    tables = {
        "TARGET_INFO_GPU": [made.gpu(0, cuDevice=1), made.gpu(1, cuDevice=0)],
        "TARGET_INFO_CUDA_DEVICE": [{"gpuId": g, "cudaId": 0, "pid": p} for g, p in ((1, 7), (0, 8))],
        made.KERNEL: [made.kernel(0, 1, pid=7), made.kernel(1, 2, pid=8)],
        made.MEMCPY: [made.copy(5, 6, kind=10, pid=8, srcDeviceId=0, dstDeviceId=3)],
    }
    profile = read(tables)
    assert {7: 0, 8: 1} == dict(profile.table("KERNELS")[["process", "gpu"]].to_numpy().tolist())
    assert [[1, 3]] == profile.table("COPIES")[["gpu", "peer_gpu"]].to_numpy().tolist()


def test_ordinals_that_repeat_are_not_believed(read) -> None:  # noqa: ANN001
    """Two GPUs cannot both be device 0 of the node: then their ids number them."""
    profile = read({"TARGET_INFO_GPU": [made.gpu(0, cuDevice=0), made.gpu(1, cuDevice=0)]})
    assert [0, 1] == profile.table("DEVICES")["gpu"].tolist()


def test_adapters_without_multiprocessors_are_left_out(read) -> None:  # noqa: ANN001
    """Graphics adapters of other vendors are listed with 0 SMs and device number 0."""
    rows = [made.gpu(0), made.gpu(1, name="Intel(R) HD Graphics 630", smCount=0, cuDevice=0)]
    assert ["NVIDIA A100-SXM4-80GB"] == read({"TARGET_INFO_GPU": rows}).table("DEVICES")["name"].tolist()


def test_a_listing_that_does_not_say_which_is_which_is_noted(read) -> None:  # noqa: ANN001
    """Different GPUs without CUDA numbers: their order is used, and a note says so; equal ones need none."""
    rows = [made.gpu(i, cuDevice=None, name=name) for i, name in enumerate(("A40", "A100"))]
    assert any("which listed GPU is which" in note for note in read({"TARGET_INFO_GPU": rows}).notes)


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


def test_copy_kinds_need_no_enum_table(read) -> None:  # noqa: ANN001
    """CUPTI's copy kinds 0 to 13 are directions, later ones unknown; 11 to 13 move managed memory."""
    frame = read({made.MEMCPY: [made.copy(k, k + 1, kind=k) for k in range(15)]}).table("COPIES")
    assert KINDS == frame["direction"].tolist()
    managed = frame["src_memory"].eq("managed") & frame["dst_memory"].eq("managed")
    assert [11, 12, 13] == frame.index[managed].tolist()


def test_memory_kinds_need_no_enum_table(read) -> None:  # noqa: ANN001
    """CUPTI's memory kinds 0 to 7 have names, later ones are unknown, NULL is missing."""
    rows = [made.copy(k, k + 1, srcKind=k, dstKind=None) for k in range(9)]
    frame = read({made.MEMCPY: rows}).table("COPIES")
    assert MEMORIES == frame["src_memory"].tolist()
    assert frame["dst_memory"].isna().all()


@every_form
def test_memsets_stand_beside_copies(write, tmp_path: Path) -> None:  # noqa: ANN001
    """A memset is a row of COPIES with the bytes set, the memory set, and no source."""
    tables = {made.MEMCPY: [made.copy(0, 8)], made.MEMSET: [made.memset(3, 5, bytes=64)]}
    frame = nsys.read(write(tmp_path / "run", tables)).table("COPIES")
    assert [["H2D", 4096, 8], ["memset", 64, 2]] == frame[["direction", "bytes", "dur_ns"]].to_numpy().tolist()
    assert [False, True] == frame["src_memory"].isna().tolist()
    assert ["device", "device"] == frame["dst_memory"].tolist()


def test_memsets_alone_are_copies(read) -> None:  # noqa: ANN001
    """A capture without any memcpy table still has its memsets, exports without memKind too."""
    frame = read({made.MEMSET: made.without([made.memset(0, 5)], "memKind")}).table("COPIES")
    assert ["memset"] == frame["direction"].tolist()
    assert frame["dst_memory"].isna().all()


def test_a_peer_copy_names_the_other_gpu(read) -> None:  # noqa: ANN001
    """Whichever side ran the copy, the peer is the other one; copies within a device have none."""
    sides = {"srcDeviceId": 0, "dstDeviceId": 3}
    rows = [made.copy(0, 1, kind=10, deviceId=0, **sides), made.copy(1, 2, kind=10, deviceId=3, **sides)]
    frame = read({made.MEMCPY: [*rows, made.copy(2, 3, kind=8, **sides)]}).table("COPIES")
    assert {(0, 3), (3, 0), (0, -1)} == set(map(tuple, frame[["gpu", "peer_gpu"]].to_numpy().tolist()))


# Reading


def test_columns_that_start_with_nulls_are_read(read) -> None:  # noqa: ANN001
    """Types are taken from the first batch of 65,536 rows: numbers after a batch of NULL are not lost."""
    null = sqlite_form.BATCH_ROWS
    rows = [made.kernel(i, i + 1, registersPerThread=None if i < null else 32) for i in range(null + 2)]
    registers = read({made.KERNEL: rows}).table("KERNELS")["registers"]
    assert (null, [32, 32]) == (registers.isna().sum(), registers.iloc[-2:].tolist())


def test_row_ranges_join_without_loss(read, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN001
    """Tables read in ranges of 3 rows, some of them empty after rows were deleted, are those read at once."""
    rows = [made.kernel(i * 10, i * 10 + 5, f"k{i}", correlationId=i) for i in range(20)]
    ranges = [made.event(i, i + 1, f"text {i}") for i in range(20)]
    path = read({made.KERNEL: rows, made.NVTX: ranges}).path
    with closing(sqlite3.connect(path)) as database, database:
        for table in (made.KERNEL, made.NVTX):
            database.execute(f"DELETE FROM {table} WHERE rowid BETWEEN 5 AND 11 OR rowid = 1")
    whole = nsys.read(path)
    monkeypatch.setattr(sqlite_form, "PART_ROWS", 3)
    assert [1, 2, 3, *range(11, 20)] == nsys.read(path).table("KERNELS")["correlation"].tolist()
    for table in ("KERNELS", "RANGES"):
        pd.testing.assert_frame_equal(whole.table(table), nsys.read(path).table(table))


@pytest.mark.parametrize(("row", "value"), [(0, "x"), (0, 1.5), (2, "x"), (2, 1.5)])
def test_a_number_that_is_none_is_damage(read, row: int, value: object, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN001
    """Text or fractions where whole numbers belong, in the first batch or later, raise ReadError with the path."""
    monkeypatch.setattr(sqlite_form, "BATCH_ROWS", 2)
    rows = [made.kernel(i, i + 1, registersPerThread=value if i == row else 32) for i in range(4)]
    profile = read({made.KERNEL: rows})
    with pytest.raises(ReadError, match=rf"{profile.path.name}: the database is damaged"):
        profile.table("KERNELS")


def test_a_damaged_page_is_an_error(read) -> None:  # noqa: ANN001
    """A page overwritten in the middle of the file is told, not read as fewer rows."""
    path = read({made.KERNEL: [made.kernel(i, i + 1) for i in range(3000)]}).path
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 4096] = bytes(4096)
    path.write_bytes(content)
    with pytest.raises(ReadError, match=r"run.sqlite: the database is damaged \(.*malformed"):
        nsys.read(path).table("KERNELS")


def test_ids_with_all_bits_set_are_none_in_parquet(tmp_path: Path) -> None:
    """Parquet exports write ids unsigned; the largest means not recorded."""
    rows = [made.kernel(0, 1, streamId=2**64 - 1), made.kernel(1, 2, streamId=7)]
    frame = nsys.read(made.parquet(tmp_path / "run", {made.KERNEL: rows})).table("KERNELS")
    assert [-1, 7] == frame["stream"].tolist()


def test_a_path_may_hold_any_character(tmp_path: Path) -> None:
    """Spaces, #, % and letters of other scripts are no part of SQLite's address syntax."""
    path = made.sqlite(tmp_path / "a b#c%41&é.sqlite", made.capture())
    assert 2 == len(nsys.read(path).table("KERNELS"))


def test_a_folder_that_cannot_be_written_needs_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a read-only folder the file is opened as immutable."""
    path = made.sqlite(tmp_path / "run.sqlite", made.capture())
    assert "immutable" not in sqlite_form.uri(path)
    monkeypatch.setattr("os.access", lambda *_: False)
    assert sqlite_form.uri(path).endswith("?mode=ro&immutable=1")
    assert 2 == len(nsys.read(path).table("KERNELS"))


def test_a_database_of_nvprof_is_not_claimed(tmp_path: Path) -> None:
    """nvprof's tables are called alike and have other columns: it keeps its texts in StringTable."""
    tables = {made.RUNTIME: [{"_id_": 1, "cbid": 2}], "StringTable": [{"_id_": 1, "value": "x"}]}
    assert not nsys.sniff(made.sqlite(tmp_path / "old.sqlite", tables))


def test_a_database_without_tables_cannot_be_read(tmp_path: Path) -> None:
    """An SQLite file from which everything is gone is told as such."""
    path = tmp_path / "run.sqlite"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE t (a)")
        database.execute("DROP TABLE t")
    with pytest.raises(ReadError, match=r"run.sqlite: the database has no tables"):
        nsys.read(path)

"""Tables of Nsight Systems exports, one quirk a test (made files)."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from readers import nsys_files as made
from readers.nsys_files import HOST, Write, every_form, values

from perfkit import tables
from perfkit.errors import SchemaError
from perfkit.readers import nsys
from perfkit.readers.nsys import sources
from perfkit.readers.nsys.tables import canonical
from perfkit.schema import Column

UNNAMED = "unnamed (string {})"


def test_a_column_of_a_table_that_no_map_reads_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = Column("local_bytes", "Int64", "local memory, bytes", optional=True)
    wider = replace(tables.KERNELS, columns=(*tables.KERNELS.columns, new))
    monkeypatch.setattr(tables, "KERNELS", wider)
    with pytest.raises(SchemaError, match=r"table 'KERNELS': .*\['local_bytes'\]"):
        made.table(tmp_path, "KERNELS", made.kernel(0, 1))


def test_a_column_of_a_map_that_the_table_lacks_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wider = {**nsys.tables.API_CALL_MAP, "status": sources.column("returnValue")}
    monkeypatch.setattr(nsys.tables, "API_CALL_MAP", wider)
    with pytest.raises(SchemaError, match=r"table 'API_CALLS' .*\n.*column 'status' is not of"):
        made.table(tmp_path, "API_CALLS", made.call(0, 1))


def test_a_line_in_the_table_and_one_in_the_map_make_a_new_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = Column("status", "Int64", "what the call returned", optional=True)
    wider = replace(tables.API_CALLS, columns=(*tables.API_CALLS.columns, new))
    monkeypatch.setattr(tables, "API_CALLS", wider)
    status = sources.column("returnValue", missing=sources.NEVER)
    monkeypatch.setitem(nsys.tables.API_CALL_MAP, "status", status)
    calls = [made.call(0, 1, returnValue=2), made.call(2, 3, returnValue=None)]
    path = made.sqlite(tmp_path / "run.sqlite", {made.RUNTIME: calls})
    frame = nsys.tables.api_calls(nsys.SqliteSource(path))
    assert [2, None] == values(frame, "status")


@every_form
def test_kernels_are_read(write: Write, tmp_path: Path) -> None:
    frame = made.table(tmp_path, "KERNELS", made.kernel(-5, 20), write=write)
    columns = ("start_ns", "dur_ns", "grid_blocks", "block_threads", "shared_bytes", "registers")
    # 2 x 3 x 4 blocks of 32 x 2 x 1 threads, 16 + 1024 bytes of shared memory.
    assert [[-5, 25, 24, 64, 1040, 40]] == values(frame, *columns)
    high, pid, tid = (
        1 << 56,
        0xFFFFFD,
        0xFFFFFB,
    )  # global ids beyond 2**53, where float64 is not exact
    rows = {
        made.KERNEL: [
            made.kernel(0, 1, globalPid=high | pid << 24),
            made.kernel(1, 2, globalPid=None),
        ],
        made.RUNTIME: [made.call(0, 1, globalTid=high | pid << 24 | tid)],
    }
    profile = made.read(tmp_path, rows, write)
    assert [pid, -1] == values(profile.table("KERNELS"), "process")
    assert [[pid, tid]] == values(profile.table("API_CALLS"), "process", "thread")
    # Nodes of a graph, of whatever id, are marked and share the correlation of its launch.
    # SQLite has no 2**63; NULL: no graph.
    nodes = 0, 5, 1 << 62, -(1 << 63) if write is made.sqlite else 1 << 63, None
    rows = [
        made.kernel(i, i + 1, graphNodeId=node, correlationId=9) for i, node in enumerate(nodes)
    ]
    frame = made.table(tmp_path, "KERNELS", *rows, write=write)
    assert [[True, 9]] * 4 + [[False, 9]] == values(frame, "in_graph", "correlation")


def test_names_and_processes_of_kernels(tmp_path: Path) -> None:
    # Every CUTLASS kernel has the short name Kernel; where the demangled name is NULL, the short one is taken.
    name = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_{}_nn_align4>(T1::Params)"
    full = [name.format(tile) for tile in ("64x64", "128x64")]
    rows = [
        *(made.kernel(i, i + 1, n) for i, n in enumerate(full)),
        made.kernel(5, 6, None, shortName="plain"),
    ]
    frame = made.table(tmp_path, "KERNELS", *rows)
    assert [*full, "plain"] == frame["full_name"].tolist()
    assert (3, ["gemm", "gemm"]) == (frame["name"].nunique(), frame["family"].tolist()[:2])
    # User names in other encodings occur; the rest of the name is kept.
    (tmp_path / "other").mkdir()
    strings = [{"id": 1, "value": b"caf\xe9_kernel"}, {"id": 2, "value": "fine"}]
    tables = {made.KERNEL: [made.kernel(0, 1, demangledName=1)], "StringIds": strings}
    path = made.read(tmp_path / "other", tables).path
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE StringIds SET value = CAST(value AS TEXT)")
    assert ["caf�_kernel"] == nsys.read(path).table("KERNELS")["full_name"].tolist()
    for callers, process in [([(42, 1), (42, 2)], 42), ([(42, 1), (43, 1)], -1)]:
        calls = [made.call(0, 1, pid=p, tid=t) for p, t in callers]
        tables = {made.KERNEL: made.without([made.kernel(0, 1)], "globalPid"), made.RUNTIME: calls}
        tables["CUPTI_ACTIVITY_KIND_GRAPH_TRACE"] = [{"start": 0, "end": 5}]
        profile = made.read(tmp_path, tables)
        assert [process] == values(profile.table("KERNELS"), "process")
        assert profile.notes[0].startswith("kernels carry no process")
        assert any(
            "--cuda-graph-trace=node" in note for note in profile.notes
        )  # these graphs were recorded as a whole


STRINGS = {  # the texts, ids that are asked for, their names, and whether a note says that StringIds holds no text
    # An id without text keeps its row: the name says which string is absent.
    "not stored": (
        [(77, None), (79, "other")],
        [77, 78, None],
        [*map(UNNAMED.format, (77, 78)), "unnamed"],
        False,
    ),
    # An id with two texts, or a negative one, names nothing certain; twice the same text is one name.
    "ambiguous": (
        [(1, "a"), (1, "b"), (2, "c"), (2, "c"), (None, "d"), (-5, "e")],
        *([1, 2, 4], [UNNAMED.format(1), "c", UNNAMED.format(4)], False),
    ),
    "stored twice": (
        [(1, "work"), (2, "work")],
        [1, 2],
        ["work", "work"],
        False,
    ),  # rows are grouped by the text
    **{
        f"{value!r}": ([(1, value)], [1], [UNNAMED.format(1)], True)
        for value in (7, 1.5, b"\xff\x00")
    },
}


@every_form
@pytest.mark.parametrize("case", STRINGS)
def test_names_are_the_texts_of_their_ids(write: Write, case: str, tmp_path: Path) -> None:
    strings, ids, names, told = STRINGS[case]
    tables = {
        made.KERNEL: [
            made.kernel(i, i + 1, demangledName=n, shortName=None) for i, n in enumerate(ids)
        ],
        made.RUNTIME: [made.call(i, i + 1, nameId=n) for i, n in enumerate(ids)],
        "StringIds": [{"id": number, "value": value} for number, value in strings],
    }
    profile = made.read(tmp_path, tables, write)
    for found in (profile.table("KERNELS")["full_name"], profile.table("API_CALLS")["name"]):
        assert names == found.tolist()
        assert sorted(set(names)) == sorted(found.cat.categories)
    assert told == any("StringIds" in note and "called unnamed" in note for note in profile.notes)


@every_form
def test_what_is_null_or_beyond_64_bits_is_impossible(write: Write, tmp_path: Path) -> None:
    # A row without a start or an end gets -1 ns, and no start of the capture's.
    writers = made.kernel, made.copy, made.call, made.system_call
    for table, work in zip(("KERNELS", "COPIES", "API_CALLS", "OS_CALLS"), writers, strict=True):
        rows = [work(50, 60), {**work(50, 60), "end": None}, {**work(50, 60), "start": None}]
        frame = made.handed_on(tmp_path, table, *rows, write=write)
        assert [[-(2**63), -1], [50, -1], [50, 10]] == sorted(values(frame, "start_ns", "dur_ns"))
    # An absurd end is handed on; differences, products and sums beyond 64 bits, and devices beyond 32, cannot be.
    huge = {"gridX": 2**31, "gridY": 2**31, "gridZ": 2**31, "blockX": 2**40, "blockY": 2**24}
    sums = {"gridX": None, "staticSharedMemory": 2**62, "dynamicSharedMemory": 2**62}
    rows = [
        made.kernel(100, 2**62, **huge, deviceId=None),
        made.kernel(
            -(2**62), 2**62 + 7, gridX=-2, gridY=-3, staticSharedMemory=-100, deviceId=2**31
        ),
        made.kernel(2**63 - 1, 0, **sums, deviceId=-7),
        made.kernel(5, 9, deviceId=-(2**63)),
    ]
    frame = made.handed_on(tmp_path, "KERNELS", *rows, write=write).sort_values("start_ns")
    assert [
        [-(2**62), -1, -(2**31), -1, 64, -1],
        [5, 4, -(2**31), 24, 64, 1040],
        [100, 2**62 - 100, -1, -1, -1, 1040],
        [2**63 - 1, 1 - 2**63, -(2**31), None, 64, -1],
    ] == values(frame, "start_ns", "dur_ns", "gpu", "grid_blocks", "block_threads", "shared_bytes")


def test_which_listed_gpu_a_device_is(tmp_path: Path) -> None:
    for table in ["TARGET_INFO_GPU", "TARGET_INFO_CUDA_GPU"]:
        for rows in [
            # Up to 2021 the table is TARGET_INFO_CUDA_GPU or has deviceId instead of id, and no cuDevice.
            made.without([made.gpu(1, deviceId=1), made.gpu(0, deviceId=0)], "id", "cuDevice"),
            [
                made.gpu(0, cuDevice=0),
                made.gpu(1, cuDevice=0),
            ],  # two GPUs cannot both be device 0 of the node
        ]:
            assert [0, 1] == values(made.read(tmp_path, {table: rows}).table("DEVICES"), "gpu")
    # On a node that lists GPU id 0 as CUDA device 1, the kernels of device 1 ran on the one named so.
    gpus = [made.gpu(0, cuDevice=1, name="A40"), made.gpu(1, cuDevice=0, name="A100")]
    tables = {"TARGET_INFO_GPU": gpus, made.KERNEL: [made.kernel(0, 1, deviceId=1)]}
    profile = nsys.read(made.sqlite(tmp_path / "a", tables))
    assert ["A100", "A40"] == values(profile.table("DEVICES"), "name")
    assert [1] == values(profile.table("KERNELS"), "gpu")
    # Two processes that each see one GPU as device 0 ran on the two that TARGET_INFO_CUDA_DEVICE names.
    tables |= {
        "TARGET_INFO_CUDA_DEVICE": [
            {"gpuId": g, "cudaId": 0, "pid": p} for g, p in ((1, 7), (0, 8))
        ],
        made.KERNEL: [made.kernel(0, 1, pid=7), made.kernel(1, 2, pid=8)],
        made.MEMCPY: [made.copy(5, 6, kind=10, pid=8, srcDeviceId=0, dstDeviceId=3)],
    }
    profile = nsys.read(made.sqlite(tmp_path / "b", tables))
    assert [[7, 0], [8, 1]] == sorted(values(profile.table("KERNELS"), "process", "gpu"))
    assert [[1, 3]] == values(profile.table("COPIES"), "gpu", "peer_gpu")
    # Different GPUs without CUDA numbers: their order is used, and a note says so; equal ones need none.
    rows = [made.gpu(i, cuDevice=None, name=name) for i, name in enumerate(("A40", "A100"))]
    (note,) = made.read(tmp_path, {"TARGET_INFO_GPU": rows}).notes
    assert "which listed GPU is which" in note


@every_form
def test_devices_are_described_as_far_as_they_are(write: Write, tmp_path: Path) -> None:
    # Exports of old V100 reports know the name alone: no peak is made up. Adapters with 0 SMs are no CUDA devices.
    stored = (
        "cuDevice",
        "smCount",
        "totalMemory",
        "memoryBandwidth",
        "clockRate",
        "computeMajor",
        "computeMinor",
    )
    adapter = made.gpu(2, name="Intel(R) HD Graphics 630", smCount=0, cuDevice=0)
    rows = (adapter, made.gpu(1, name="Tesla V100", **dict.fromkeys(stored)), made.gpu(0))
    frame = made.table(tmp_path, "DEVICES", *rows, write=write)
    columns = (
        "gpu",
        "name",
        "compute_capability",
        "sm_count",
        "memory_bytes",
        "memory_bytes_per_s",
        "clock_hz",
    )
    described = [0, "NVIDIA A100-SXM4-80GB", "8.0", 108, 85 * 10**9, 2.039e12, 1.41e9]
    assert [described, [1, "Tesla V100", "", None, None, None, None]] == values(frame, *columns)


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
]
MEMORIES = [
    "pageable",
    "pinned",
    "device",
    "array",
    "managed",
    "device static",
    "managed static",
    "unknown",
    "unknown",
]


def test_kinds_bytes_and_peers_of_copies(tmp_path: Path) -> None:
    # CUPTI's copy kinds 0 to 13 (from 11 on of managed memory) and memory kinds 0 to 7 have names; NULL is missing.
    copies = [made.copy(k, k + 1, kind=k) for k in range(15)]
    memories = [made.copy(k + 20, k + 21, srcKind=k, dstKind=None) for k in range(9)]
    frame = made.table(tmp_path, "COPIES", *copies, *memories)
    assert [*KINDS, "unknown"] == values(frame, "direction")[:15]
    managed = frame["src_memory"].eq("managed") & frame["dst_memory"].eq("managed")
    assert [11, 12, 13] == frame.index[managed].tolist()
    assert [[memory, None] for memory in MEMORIES] == values(frame, "src_memory", "dst_memory")[15:]
    # A copy whose bytes are NULL gets -1, not 0; an export that records no bytes has 0.
    assert [-1] == values(made.handed_on(tmp_path, "COPIES", made.copy(0, 1, bytes=None)), "bytes")
    path = made.sqlite(tmp_path / "none", {made.MEMCPY: made.without([made.copy(0, 1)], "bytes")})
    assert [0] == values(nsys.read(path).table("COPIES"), "bytes")
    # Whichever side ran the copy, the peer is the other one; copies within a device have none.
    sides = {"srcDeviceId": 0, "dstDeviceId": 3}
    on = enumerate([(10, 0), (10, 3), (8, 0)])
    rows = [made.copy(i, 9, kind=kind, deviceId=gpu, **sides) for i, (kind, gpu) in on]
    frame = nsys.read(made.sqlite(tmp_path / "peers", {made.MEMCPY: rows})).table("COPIES")
    assert [[0, -1], [0, 3], [3, 0]] == sorted(values(frame, "gpu", "peer_gpu"))


@every_form
def test_copies_and_memsets_are_read(write: Write, tmp_path: Path) -> None:
    # A memset is a row of COPIES with the bytes set, the memory set, and no source, also without any copy.
    frame = made.table(
        tmp_path,
        "COPIES",
        made.copy(0, 8),
        write=write,
        **{made.MEMSET: [made.memset(3, 5, bytes=64)]},
    )
    rows = values(frame, "direction", "bytes", "dur_ns", "src_memory", "dst_memory")
    assert [["H2D", 4096, 8, "pageable", "device"], ["memset", 64, 2, None, "device"]] == rows
    alone = nsys.read(
        write(tmp_path / "alone", {made.MEMSET: made.without([made.memset(0, 5)], "memKind")})
    )
    assert [["memset", None]] == values(alone.table("COPIES"), "direction", "dst_memory")
    odd = (-1, -3, 2**40, -(2**62))  # no memset, and no kind counted from the end
    # SQLite alone writes kinds of copies with a sign.
    kinds = [k + 2**64 if k < 0 and write is not made.sqlite else k for k in odd]
    rows = [
        made.copy(i, i + 1, kind=k, srcKind=s)
        for i, (k, s) in enumerate(zip(kinds, odd, strict=True))
    ]
    frame = made.table(
        tmp_path, "COPIES", *rows, write=write, **{made.MEMSET: [made.memset(90, 91, memKind=-9)]}
    )
    assert ["unknown"] * 4 + ["memset"] == values(frame, "direction")
    sides = [[None, "device"], *[["unknown", "device"]] * 3, [None, "unknown"]]
    assert sides == values(frame, "src_memory", "dst_memory")


CALLS = {  # _v7000, _ptsz and _ptds say how a call was compiled, not which it is
    **dict.fromkeys(("cudaLaunchKernel_v7000", "cudaLaunchKernel_ptsz_v7000"), "cudaLaunchKernel"),
    "cudaStreamIsCapturing_v10000": "cudaStreamIsCapturing",
    "cudaMemcpyAsync_ptsz_v7000": "cudaMemcpyAsync",
    "cudaMemcpy_ptds_v7000": "cudaMemcpy",
    "cuLaunchKernel": "cuLaunchKernel",
    "cuMemAlloc_v2": "cuMemAlloc",
    "cuMemcpyDtoHAsync_v2_ptsz": "cuMemcpyDtoHAsync",
    "my_v2_function": "my_v2_function",
}


def test_calls_of_cuda_and_of_the_operating_system(tmp_path: Path) -> None:
    names = made.table(
        tmp_path, "API_CALLS", *(made.call(i, i + 1, n) for i, n in enumerate(CALLS))
    )["name"]
    assert [*CALLS.values()] == names.tolist()
    assert sorted(set(CALLS.values())) == sorted(names.cat.categories)
    own = [(0, "started"), (99, "finished")]  # nsys's own marks are none
    marks = [made.system_call(at, at, f"OS runtime libraries profiling {what}") for at, what in own]
    rows = [
        marks[0],
        made.system_call(50, 90, "fsync", tid=2),
        made.system_call(10, 40, "write"),
        marks[1],
    ]
    profile = made.read(tmp_path, {made.SYSTEM: rows})
    found = values(profile.table("OS_CALLS"), "process", "thread", "start_ns", "dur_ns", "name")
    assert [[1, 1, 10, 30, "write"], [1, 2, 50, 40, "fsync"]] == found
    assert 0 == len(profile.table("API_CALLS"))


@every_form
def test_calls_are_sorted_by_thread_and_start(write: Write, tmp_path: Path) -> None:
    rows = [
        made.call(s, s + 2, pid=p, tid=t)
        for p, t, s in ((2, 1, 0), (1, 9, 7), (1, 8, 9), (1, 9, 3))
    ]
    frame = made.table(tmp_path, "API_CALLS", *rows, write=write)
    expected = [[1, 8, 9, 2], [1, 9, 3, 2], [1, 9, 7, 2], [2, 1, 0, 2]]
    assert expected == values(frame, "process", "thread", "start_ns", "dur_ns")


THROUGHPUT = " [Throughput %]"
SPELLINGS = {  # before and after nsys renamed its metrics in 2023
    "sm_active_frac": ("SM Active", "SMs Active [Throughput %]"),
    "dram_read_frac": ("DRAM Read Throughput", "DRAM Read Bandwidth [Throughput %]"),
    "dram_write_frac": ("DRAM Write Throughput", "DRAM Write Bandwidth [Throughput %]"),
    "tensor_active_frac": ("Tensor Active", "Tensor Active [Throughput %]"),
    "sm_issue_frac": ("SM Issue", "SM Issue [Throughput %]"),
    "pcie_rx_frac": ("PCIe RX Throughput", "PCIe RX Throughput [Throughput %]"),
    "compute_warps_in_flight_frac": (
        "Compute Warps In Flight",
        "Compute Warps in Flight [Throughput %]",
    ),
    "unallocated_warps_in_active_sms_frac": tuple(
        f"Unallocated Warps in Active SMs{of}" for of in ("", THROUGHPUT)
    ),
    "gpc_clock_hz": ("GPC Clock Frequency", "GPC Clock Frequency [MHz]"),
    "sys_clock_hz": ("SYS Clock Frequency", "SYS Clock Frequency [MHz]"),
    # One quantity in several units stays several metrics, of which only % is a fraction.
    "gr_active_frac": ("GR Active", "GR Active [Throughput %]"),
    "gr_active_workloads_count": ("GR Active [Workloads]",),
    "compute_warps_in_flight_avg_count": ("Compute Warps in Flight [Avg]",),
    "compute_warps_in_flight_avg_warps_per_cycle_count": (
        "Compute Warps in Flight [Avg Warps per Cycle]",
    ),
    "pcie_read_requests_to_bar1_requests_count": ("PCIe Read Requests to BAR1 [Requests]",),
}


def test_names_units_and_gpus_of_metrics(tmp_path: Path) -> None:
    assert SPELLINGS == {
        name: tuple(s for s in told if canonical(s) == name) for name, told in SPELLINGS.items()
    }
    assert len(SPELLINGS) == len({canonical(told[0]) for told in SPELLINGS.values()})
    for listed, metric, found in [
        (
            made.metric("PCIe Read Requests to BAR1 [Requests]"),
            "pcie_read_requests_to_bar1_requests_count",
            {150: 150},
        ),
        (
            made.metric("GPC Clock Frequency [MHz]"),
            "gpc_clock_hz",
            CLOCKS,
        ),  # the first wrapped around at 2**31
        (made.metric("SM Active", 9), "metric_1_unlisted_count", {300: 300}),
        # A name that is no text lists nothing; a very long one is cut.
        *(
            ({**made.metric(""), "metricName": n}, "metric_1_unlisted_count", {30: 30})
            for n in (7, b"SM Active", None)
        ),
        (made.metric("x" * 10**6), "x" * 200 + "_frac", {30: 0.3}),
    ]:
        frame = samples(
            tmp_path, [listed], *(made.sample(i, value) for i, value in enumerate(found))
        )
        assert [[metric, value] for value in found.values()] == values(frame, "metric", "value")
    gpus = [
        made.gpu(0, cuDevice=1),
        made.gpu(1, cuDevice=0),
    ]  # GPU 1 of the listing is CUDA device 0
    listed = [made.metric("SM Active", 1, HOST | kind) for kind in (0x101, 0x202)]
    rows = [made.sample(0, 5, kind=HOST | kind) for kind in (0x101, 0x202)]
    assert [0, 2] == values(samples(tmp_path, listed, *rows, TARGET_INFO_GPU=gpus), "gpu")
    rng = np.random.default_rng(2)
    names = ("SM Active", "GR Active", "SM Issue")
    listed = [made.metric(name, i, HOST | g) for i, name in enumerate(names) for g in (0, 1)]
    picks = [(*map(int, rng.integers(0, (2, 3, 101))), time) for time in range(500)]
    frame = samples(tmp_path, listed, *(made.sample(t, v, m, HOST | g) for g, m, v, t in picks))
    expected = sorted([g, canonical(names[m]), t, v / 100] for g, m, v, t in picks)
    assert expected == values(frame, "gpu", "metric", "time_ns", "value")
    frame = samples(
        tmp_path,
        [made.metric("SM Active", 7)],
        *(made.sample(i, 10, metric=i) for i in range(100_000)),
    )
    assert 100_000 == frame["metric"].nunique()
    assert [0.1] == frame["value"][frame["metric"] == "sm_active_frac"].tolist()


def samples(
    folder: Path, listed: list[made.Row], *rows: made.Row, **tables: list[made.Row]
) -> pd.DataFrame:
    return made.table(folder, "SAMPLES", *rows, TARGET_INFO_GPU_METRICS=listed, **tables)


CLOCKS = {
    2_154_414_000 - 2**32: 2_154_414_000.0,
    1_410_000_000: 1.41e9,
    1410: 1.41e9,
    0: 0.0,
}  # stored: in Hz


@every_form
def test_metrics_are_read(write: Write, tmp_path: Path) -> None:
    # Metric 1 of one GPU's set is not metric 1 of the other's: the join is on typeId and metricId.
    names = ("SM Active", "DRAM Read Throughput")
    listed = [
        made.metric(names[m - 1 if g == 0 else 2 - m], m, HOST | g) for g in (0, 1) for m in (1, 2)
    ]
    rows = [made.sample(0, 10 * m + g, m, HOST | g) for g in (0, 1) for m in (1, 2)]
    frame = made.table(tmp_path, "SAMPLES", *rows, write=write, TARGET_INFO_GPU_METRICS=listed)
    expected = {(0, "sm_active_frac"): 0.10, (0, "dram_read_frac"): 0.20}
    expected |= {(1, "dram_read_frac"): 0.11, (1, "sm_active_frac"): 0.21}
    assert expected == {
        (gpu, metric): value for gpu, metric, value in values(frame, "gpu", "metric", "value")
    }
    rows = [
        made.sample(5, 50),
        {**made.sample(0, 100), "timestamp": None},
        {**made.sample(7, 0), "value": None},
    ]
    listed = {"TARGET_INFO_GPU_METRICS": [made.metric("SMs Active [Throughput %]")]}
    frame = made.handed_on(
        tmp_path, "SAMPLES", *rows, made.sample(-368_205, 7), write=write, **listed
    )
    assert [[-(2**63), 1.0], [-368_205, 0.07], [5, 0.5], [7, None]] == values(
        frame, "time_ns", "value"
    )
    # Numbers beyond 32 bits, negative or NULL number metrics of their own, which none lists.
    numbers = (2**62, -(2**63), -7, 2**32 + 1, 1)
    rows = [
        *(made.sample(i, 10, metric=n) for i, n in enumerate(numbers)),
        {**made.sample(9, 10), "typeId": None},
    ]
    listed = [made.metric("SM Active")]
    frame = made.table(
        tmp_path, "SAMPLES", *rows, write=write, TARGET_INFO_GPU_METRICS=listed
    ).sort_values("time_ns")
    unlisted = [[0, f"metric_{abs(number)}_unlisted_count"] for number in numbers[:-1]]
    assert [*unlisted, [0, "sm_active_frac"], [-1, "metric_1_unlisted_count"]] == values(
        frame, "gpu", "metric"
    )

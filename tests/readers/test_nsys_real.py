"""Real Nsight Systems captures of 2021 to 2026 against totals computed from their own databases.

``golden/nsys/*.truth.json`` was made by SQL on the exports, independently of this reader.
"""

import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from real import HOST_ONLY, SQLITE, WITH_KERNELS, truth_of

import perfkit
from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers import nsys
from perfkit.readers.nsys.tables import canonical
from perfkit.tables import TABLES

CAPTURES = [*WITH_KERNELS, *HOST_ONLY]
BROKEN = {
    "MohanadOdema__DLProf__dlprof_dldb.sqlite": r"not an Nsight Systems export \(tables: aggregations, ",
    "MohanadOdema__DLProf__w_Relu_nsys_profile.TRUNCATED60.sqlite": "is cut, its header promises 409600 bytes .*245760",
    "koshiq__WikiText102-Optimizations-CUDA-vs-Mojo__report1_LFS_POINTER.sqlite": "a git-LFS pointer.*`git lfs pull`",
    "openhackathons-org__nways_accelerated_programming__jacobi_report.nsys-rep": "`nsys export -t sqlite -o .*.sqlite",
    "smile2game__nvidia-game__814-1.EMPTY.sqlite": r"the file is empty \(0 bytes\)",
}
ROWS = {"KERNELS": ("KERNEL",), "COPIES": ("MEMCPY", "MEMSET"), "API_CALLS": ("RUNTIME",)}

every_capture = pytest.mark.parametrize("name", CAPTURES)


read = cache(nsys.read)


@pytest.fixture
def capture(name: str, profiles: Path) -> Profile:
    return read(profiles / "nsys" / name)


@pytest.fixture
def truth(name: str, profiles: Path) -> dict[str, Any]:
    return truth_of(profiles, "nsys", name)


def per_gpu(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {str(gpu): rows for gpu, rows in frame.groupby("gpu")}


@every_capture
def test_rows_are_as_many_as_in_the_export(capture: Profile, truth: dict[str, Any]) -> None:
    for table in TABLES:
        assert capture.table(table) is TABLES[table].check(capture.table(table))
    if "tables" not in truth:
        pytest.skip("no row counts were taken of this form")
    for table, stored in ROWS.items():
        rows = sum(truth["tables"].get(f"CUPTI_ACTIVITY_KIND_{kind}") or 0 for kind in stored)
        assert rows == len(capture.table(table)), table
        assert (rows > 0) == (table in capture.loaders)


@every_capture
def test_tables_of_each_gpu_and_launches(capture: Profile, truth: dict[str, Any]) -> None:
    found = per_gpu(capture.table("KERNELS"))
    assert {gpu for gpu, told in truth["devices"].items() if told["kernel_count"]} == set(found)
    for gpu, rows in found.items():
        told, end = truth["devices"][gpu], rows["start_ns"] + rows["dur_ns"]
        assert (told["kernel_count"], told["kernel_time_sum"]) == (len(rows), rows["dur_ns"].sum())
        assert (told["first_kernel_start"], told["last_kernel_end"]) == (
            rows["start_ns"].min(),
            end.max(),
        )
        assert told["graph_kernels"] == rows["in_graph"].sum()
        assert set(rows["stream"]) <= set(told["streams"])
        assert set(told["pids"]) in (set(rows["process"]), set())
        by_name = rows.groupby("full_name", observed=True)["dur_ns"].agg(["sum", "size"])
        assert told["n_distinct_demangled"] == len(by_name) == rows["name"].nunique()
        for top in told["top5_demangled"]:
            assert (top["time"], top["count"]) == tuple(by_name.loc[top["name"]])
    for gpu, told in truth["devices"].items():
        rows = per_gpu(capture.table("COPIES")).get(gpu, TABLES["COPIES"].empty())
        expected = {d: (c["count"], c["bytes"], c["time_sum"]) for d, c in told["copies"].items()}
        if told["memset"]["count"]:
            expected["memset"] = (
                told["memset"]["count"],
                told["memset"]["bytes"],
                told["memset"]["time_sum"],
            )
        # A migration of unified memory is a copy from managed to managed memory.
        migrates = (rows["src_memory"] == "managed") & (rows["dst_memory"] == "managed")
        words = rows["direction"].astype(str)
        found = dict(list(rows.groupby(words.where(~migrates, "UM_" + words))))
        assert expected == {
            d: (len(part), part["bytes"].sum(), part["dur_ns"].sum()) for d, part in found.items()
        }
    told = truth.get("nvtx", {"closed_ranges": 0, "distinct": 0, "top5": []})
    frame = capture.table("RANGES")
    with_tables = "gpubootcamp__mpi" in str(
        capture.capture["path"].iloc[0]
    )  # elsewhere NVTX has a domain MPI
    frame = frame[
        (frame["kind"] != "mark") & (frame["domain"].ne("MPI").fillna(True) | (not with_tables))
    ]
    assert told["closed_ranges"] == len(frame)
    by_name = frame.groupby("name", observed=True)["dur_ns"].agg(["sum", "size"])
    assert told["distinct"] == len(by_name)
    for top in told.get("top5", []):
        assert (top["time"], top["count"]) == tuple(by_name.loc[top["name"]])
    sets = truth.get("gpu_metrics", {"sets": {}})["sets"]
    frame = capture.table("SAMPLES")
    assert sum(m["n"] for told in sets.values() for m in told["metrics"].values()) == len(frame)
    for kind, told in sets.items():
        own = frame[frame["gpu"] == int(kind) & 0xFF]
        # The means were taken of values as stored: clocks are wrapped to 32 bits again to compare.
        stored = own["value"].where(own["value"] < 2**31, own["value"] - 2**32)
        values = stored.groupby(own["metric"], observed=True).agg(["size", "mean"])
        assert len(told["metrics"]) == len(values)
        for spelled, metric in told["metrics"].items():
            size, mean = values.loc[canonical(spelled)]
            scale = 1 if spelled.endswith("Frequency") else 100
            assert metric["n"] == size
            assert pytest.approx(metric["mean_all"] / scale, rel=1e-12, abs=0) == mean
    listed = [g for g in truth.get("gpus", []) if g.get("smCount") != 0]
    # The node's CUDA devices, numbered by CUDA; without its number as listed.
    expected = {
        g.get("id", i) if g.get("cuDevice") is None else g["cuDevice"]: g
        for i, g in enumerate(listed)
    }
    frame = capture.table("DEVICES").set_index("gpu")
    assert sorted(expected) == frame.index.tolist()
    columns = {"smCount": "sm_count", "totalMemory": "memory_bytes", "clockRate": "clock_hz"}
    for gpu, told in expected.items():
        assert told["name"] == frame.loc[gpu, "name"]
        for stored, column in {**columns, "memoryBandwidth": "memory_bytes_per_s"}.items():
            value = frame.loc[gpu, column]
            assert told.get(stored) == (None if pd.isna(value) else value)
    row = capture.capture.iloc[0]
    assert truth.get("version", {}).get("EXPORT_PRODUCT_VERSION", "") == row["tool_version"]
    assert pd.isna(row["t0_unix_ns"]) or row["t0_unix_ns"] > 1_500_000_000 * 10**9
    frames = [capture.table(table) for table in ("KERNELS", "COPIES", "API_CALLS", "RANGES")]
    assert all((f["start_ns"] + f["dur_ns"]).max() <= row["dur_ns"] for f in frames if len(f))
    if "launch" not in truth:
        return  # the export has no process to join on
    calls = capture.table("API_CALLS")[["process", "correlation"]].drop_duplicates()
    found = capture.table("KERNELS").merge(
        calls, on=["process", "correlation"], how="left", indicator=True
    )
    assert truth["launch"]["kernels_with_api_row"] == (found["_merge"] == "both").sum()
    assert truth["launch"]["kernels_without"] == (found["_merge"] == "left_only").sum()


CALLS = (
    "SELECT value, COUNT(*), SUM(end - start) FROM {} JOIN StringIds s ON s.id = {} GROUP BY value"
)


@pytest.mark.parametrize(
    ("name", "stored", "text", "table"),
    [
        ("openhackathons-org__gpubootcamp__mpi_report1.sqlite", "MPI_%_EVENTS", "textId", "RANGES"),
        ("openhackathons-org__AI-Profiler__baseline_nvtx.sqlite", "OSRT_API", "nameId", "OS_CALLS"),
    ],
)
def test_calls_of_mpi_and_the_operating_system(
    name: str, stored: str, text: str, table: str, profiles: Path
) -> None:
    path = profiles / "nsys" / name
    with closing(sqlite3.connect(path)) as database:
        tables = database.execute(
            f"SELECT name FROM sqlite_master WHERE name LIKE '{stored}'"
        ).fetchall()
        rows = [row for (one,) in tables for row in database.execute(CALLS.format(one, text))]
    counted = {
        name: (calls, ns)
        for name, calls, ns in rows
        if name != "OS runtime libraries profiling started"
    }
    frame = read(path).table(table)
    calls = frame if table == "OS_CALLS" else frame[frame["domain"] == "MPI"]
    summed = calls.groupby("name", observed=True)["dur_ns"].agg(["count", "sum"])
    assert counted == {str(name): tuple(row) for name, row in summed.T.items()}
    assert {"MPI_Sendrecv", "poll"} & set(counted)


def test_real_exports_have_every_column_that_a_map_names(profiles: Path) -> None:
    unnumbered = nsys.tables.Ordinals({}, {})
    maps = {
        nsys.tables.KERNEL: nsys.tables.kernel_map(unnumbered),
        nsys.tables.MEMCPY: nsys.tables.copy_map(unnumbered),
        nsys.tables.MEMSET: nsys.tables.memset_map(unnumbered),
        nsys.tables.RUNTIME: nsys.tables.API_CALL_MAP,
        nsys.tables.NVTX: nsys.tables.range_map(0),
        "GPU_METRICS": nsys.tables.SAMPLE_MAP,
        nsys.schedule.SWITCHES: nsys.schedule.MAP,
        nsys.waits.WAIT: nsys.waits.MAP,
        nsys.collector.OWN: nsys.collector.OVERHEAD_MAP,
        nsys.collector.MESSAGES: nsys.collector.MESSAGE_MAP,
    }
    exports = [nsys.SqliteSource(profiles / "nsys" / name) for name in SQLITE]
    for table, reads in maps.items():
        stored = {column for export in exports for column in export.columns(table)}
        assert not {*nsys.sources.stored(nsys.sources.asked(reads))} - stored, table


def test_gpus_peers_correlations_and_depths_of_real_captures(profiles: Path) -> None:
    folder = profiles / "nsys"
    capture = read(folder / "hpcgroup__pipit__perlmutter-cloverleaf-cuda.sqlite")
    listed = nsys.tables.gpus(nsys.SqliteSource(capture.path), [])
    assert {0: 3, 1: 2, 2: 1, 3: 0} == {
        gpu.number: gpu.ordinal for gpu in listed
    }  # ids run against the ordinals
    assert {0} == set(capture.table("KERNELS")["gpu"])
    # GPUs 0 and 3 sent each other 2,002 blocks over NVLink; no other copy has a peer.
    frame = read(
        folder / "openhackathons-org__gpubootcamp__jacobi_memcpy_nvlink_report.sqlite"
    ).table("COPIES")
    peers = frame[frame["peer_gpu"] >= 0]
    assert {(0, 3): 2002, (3, 0): 2002} == peers.groupby(["gpu", "peer_gpu"]).size().to_dict()
    assert {"P2P"} == set(peers["direction"])
    # 78 ids belong to kernels of both processes, so a join needs the process.
    kernels = read(folder / "GindaChen__nsys-ai__mfu_2gpu_before.sqlite").table("KERNELS")
    assert [144, 145] == sorted(kernels["process"].unique())
    assert 78 == (kernels.groupby("correlation")["process"].nunique() == 2).sum()
    frame = read(profiles / "nsys" / "openhackathons-org__AI-Profiler__baseline_nvtx.sqlite").table(
        "RANGES"
    )
    depth = frame.groupby("name", observed=True)["depth"].agg(["min", "max"])
    expected = {"Epoch 2": [0, 0], "Train": [1, 1], "Test": [1, 1]}
    assert expected == {name: depth.loc[name].tolist() for name in expected}
    for _, rows in frame.groupby(["thread", "domain"], observed=True):
        assert set(range(rows["depth"].max() + 1)) == set(rows["depth"])


@pytest.mark.parametrize(("name", "words"), BROKEN.items())
def test_broken_files_say_what_they_are(
    name: str, words: str, profiles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ReadError, match=f"{name}: .*{words}"):
        perfkit.load(profiles / "nsys" / name)

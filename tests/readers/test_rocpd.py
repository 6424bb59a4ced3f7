"""rocpd: the databases of both schemas, by hand and against a real run."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from readers.rocpd_files import COUNTED, FINI, INIT, KERNELS, SUFFIX, pages, process, results, rocpd

import perfkit
from perfkit.analysis import timeline
from perfkit.errors import ReadError
from perfkit.readers import rocpd as reader

SCHEMAS = (3, 4)
RCCL = "ncclDevKernel_Generic_1"


def real(profiles: Path, schema: int) -> tuple[pd.DataFrame, dict[str, Any]]:
    path = profiles / "rocpd" / f"TraceLens__908_mi350x__schema{schema}.db"
    if not path.exists():
        pytest.skip(f"PERFKIT_PROFILES has no {path.name}")
    truth = profiles / "golden" / "rocpd" / "TraceLens__908_mi350x.truth.json"
    return reader.read(path).table("KERNELS"), json.loads(truth.read_text("utf-8"))


def rows(path: Path, table: str, *columns: str) -> list[list[Any]]:
    frame = reader.read(path).table(table)[[*columns]].astype(object)
    made: list[list[Any]] = frame.where(frame.notna(), None).to_numpy().tolist()
    return made


@pytest.mark.parametrize("schema", SCHEMAS)
def test_time_of_the_gpu_is_that_of_the_truth(schema: int, profiles: Path) -> None:
    kernels, truth = real(profiles, schema)
    (gpu,) = truth["agents"].values()
    (parts,) = timeline.breakdown(kernels, perfkit.tables.COPIES.empty()).to_dict("records")
    assert gpu["span_ns"] == parts["span_ns"]
    assert gpu["busy_ns"] == parts["span_ns"] - parts["idle_ns"]
    assert gpu["sum_ns"] == kernels["dur_ns"].sum()


@pytest.mark.parametrize("schema", SCHEMAS)
def test_kernels_of_each_stream_are_those_of_the_truth(schema: int, profiles: Path) -> None:
    kernels, truth = real(profiles, schema)
    sums = kernels.groupby("stream")["dur_ns"].agg(["size", "sum"])
    expected = {
        int(key): [one["dispatches"], one["sum_ns"]] for key, one in truth["streams"].items()
    }
    assert expected == {int(key): [*row] for key, row in sums.T.to_dict("list").items()}


@pytest.mark.parametrize("schema", SCHEMAS)
def test_names_with_most_time_are_those_of_the_truth(schema: int, profiles: Path) -> None:
    kernels, truth = real(profiles, schema)
    by_name = kernels.groupby("full_name", observed=True)["dur_ns"].agg(["size", "sum"])
    assert truth["kernel_names"] == len(by_name)
    for name, count, total in truth["top_by_time"]:
        assert [count, total] == by_name.loc[name.removesuffix(".kd")].tolist()


@pytest.mark.parametrize("schema", SCHEMAS)
def test_communication_is_exposed_as_the_format_page_says(schema: int, profiles: Path) -> None:
    kernels, _ = real(profiles, schema)
    (parts,) = timeline.breakdown(kernels, perfkit.tables.COPIES.empty()).to_dict("records")
    assert 111_263_177 == parts["exposed_communication_ns"]
    assert 20_103_377 == parts["computation_ns"]
    assert 127_878_745 == kernels.loc[kernels["full_name"].eq(RCCL), "dur_ns"].sum()


@pytest.mark.parametrize("schema", SCHEMAS)
def test_kernels_by_hand(schema: int, tmp_path: Path) -> None:
    """A grid of 1000 x 2 work-items in groups of 256 has 4 x 2 blocks."""
    path = rocpd(tmp_path / "run.db", schema)
    columns = ("start_ns", "dur_ns", "gpu", "stream", "grid_blocks", "block_threads", "registers")
    expected = [[200, 100, 0, 7, 8, 256, 128], [400, 300, 0, 7, 8, 256, 12]]
    assert expected == rows(path, "KERNELS", *columns)


def test_the_library_of_a_kernel_is_known_by_its_name(tmp_path: Path) -> None:
    path = rocpd(tmp_path / "run.db")
    assert [["gemm"], ["elementwise"]] == rows(path, "KERNELS", "family")


@pytest.mark.parametrize("schema", SCHEMAS)
def test_copies_by_hand(schema: int, tmp_path: Path) -> None:
    path = rocpd(tmp_path / "run.db", schema)
    columns = ("start_ns", "dur_ns", "gpu", "direction", "bytes", "peer_gpu", "src_memory")
    expected = [[50, 100, 0, "H2D", 4096, -1, None], [800, 100, 1, "P2P", 64, 0, "device"]]
    assert expected == rows(path, "COPIES", *columns)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_calls_share_the_correlation_of_their_kernels(schema: int, tmp_path: Path) -> None:
    path = rocpd(tmp_path / "run.db", schema)
    assert [["hipLaunchKernel", 11], ["hipLaunchKernel", 12]] == rows(
        path, "API_CALLS", "name", "correlation"
    )
    assert [[11], [12]] == rows(path, "KERNELS", "correlation")


@pytest.mark.parametrize("schema", SCHEMAS)
def test_ranges_by_hand(schema: int, tmp_path: Path) -> None:
    path = rocpd(tmp_path / "run.db", schema)
    columns = ("name", "start_ns", "dur_ns", "process", "thread", "depth")
    assert [["step", 10, 940, 42, 43, 0], ["forward", 90, 230, 42, 43, 1]] == rows(
        path, "RANGES", *columns
    )


def test_both_schemas_give_equal_tables(tmp_path: Path) -> None:
    old, new = (reader.read(rocpd(tmp_path / f"{n}.db", n)) for n in SCHEMAS)
    for name in TABLES:
        assert old.table(name).equals(new.table(name)), name


TABLES = ("KERNELS", "COPIES", "API_CALLS", "RANGES", "DEVICES")


@pytest.mark.parametrize("name", [*TABLES, "LAUNCHES", "COUNTERS"])
def test_json_gives_the_tables_of_the_database(name: str, tmp_path: Path) -> None:
    database = reader.read(rocpd(tmp_path / "run.db", counted=COUNTED))
    found = reader.read(results(tmp_path / "42_results.json"))
    pd.testing.assert_frame_equal(database.table(name), found.table(name))


@pytest.mark.parametrize("name", [*TABLES, "LAUNCHES", "COUNTERS"])
def test_csv_gives_the_tables_of_the_database(name: str, tmp_path: Path) -> None:
    """CSV has no time of the process, no sizes of copies, and numbers its dispatches from 1."""
    begin = 10  # of the first range, after INIT
    database = reader.read(rocpd(tmp_path / "run.db", counted=COUNTED)).table(name)
    found = reader.read(pages(tmp_path / "csv")).table(name)
    if "start_ns" in found:
        found = found.assign(start_ns=found["start_ns"] + begin)
    if name == "COPIES":
        database = database.assign(bytes=0)
    if "launch" in found:
        found = found.assign(launch=found["launch"] - 1)
    pd.testing.assert_frame_equal(database, found)


def test_counters_are_summed_over_the_units_that_counted(tmp_path: Path) -> None:
    path = rocpd(tmp_path / "run.db", counted=COUNTED)
    expected = [[0, "FETCH_SIZE", 3], [0, "SQ_WAVES", 16], [0, "WRITE_SIZE", 1], [1, "SQ_WAVES", 2]]
    assert expected == rows(path, "COUNTERS", "launch", "metric", "value")


def test_bytes_of_memory_are_those_of_both_counters(tmp_path: Path) -> None:
    """3 KiB are fetched and 1 KiB written; the second launch has neither counter."""
    path = rocpd(tmp_path / "run.db", counted=COUNTED)
    assert [[0, 4096, 100], [1, None, 300]] == rows(
        path, "LAUNCHES", "launch", "dram_bytes", "dur_ns"
    )


def test_processes_in_one_json_keep_their_own_launches(tmp_path: Path) -> None:
    path = results(tmp_path / "results.json", process(), process())
    assert [0, 1, 2, 3] == [launch for (launch,) in rows(path, "LAUNCHES", "launch")]


def test_a_folder_of_csv_files_is_one_recording_for_each_process(tmp_path: Path) -> None:
    for prefix in ("41", "42"):
        path = pages(tmp_path / "out", prefix=prefix)
    path.write_text(path.read_text().replace("Cijk", "Other"))
    run = perfkit.load(tmp_path / "out")
    assert [0, 0, 1, 1] == run.kernels["rank"].tolist()
    assert not any("left out" in note for note in run.notes)


def test_any_csv_file_stands_for_its_recording(tmp_path: Path) -> None:
    pages(tmp_path / "out")
    assert 2 == len(perfkit.load(tmp_path / "out" / "42_marker_api_trace.csv").kernels)


def test_one_recording_in_several_formats_is_read_once(tmp_path: Path) -> None:
    pages(tmp_path / "out")
    rocpd(tmp_path / "out" / "42_results.db")
    results(tmp_path / "out" / "42_results.json")
    assert 2 == len(perfkit.load(tmp_path / "out").kernels)


def test_gpus_without_agents_are_numbered_in_their_order(tmp_path: Path) -> None:
    profile = reader.read(pages(tmp_path / "out", "kernel_trace", "memory_copy_trace"))
    assert [0, 1] == profile.table("DEVICES")["gpu"].tolist()
    assert any("no agent_info.csv" in note for note in profile.notes)


def test_sizes_that_csv_lacks_are_missing(tmp_path: Path) -> None:
    missing = reader.read(pages(tmp_path / "out")).missing
    assert ["COPIES.bytes"] == [one.table for one in missing]


def test_a_csv_file_that_is_cut_loses_its_last_line(tmp_path: Path) -> None:
    path = pages(tmp_path / "out", "kernel_trace")
    path.write_bytes(path.read_bytes()[:-5])
    profile = reader.read(path)
    assert 1 == len(profile.table("KERNELS"))
    assert any("it may be cut" in note for note in profile.notes)


@pytest.mark.parametrize("value", ["x", "1.5", "12345678901234567890123"])
def test_a_wrong_value_in_csv_is_refused(value: str, tmp_path: Path) -> None:
    path = pages(tmp_path / "out", "kernel_trace")
    path.write_text(path.read_text().replace(str(INIT + 200), value))
    with pytest.raises(ReadError, match="wrong value"):
        reader.read(path)


def test_a_csv_file_with_a_million_columns_is_refused_at_once(tmp_path: Path) -> None:
    path = pages(tmp_path)
    agents = tmp_path / "42_agent_info.csv"
    agents.write_text(agents.read_text().replace('"Name"', '"' + '","' * 10**6 + '"', 1))
    with pytest.raises(ReadError, match="columns"):
        reader.read(path)


def test_a_negative_dispatch_of_a_counter_is_refused(tmp_path: Path) -> None:
    path = pages(tmp_path, "counter_collection")
    path.write_text(path.read_text().replace('"Agent 1",1,', '"Agent 1",-5,'))
    with pytest.raises(ReadError, match="number of a dispatch is negative"):
        reader.read(path).table("LAUNCHES")


def test_times_that_no_recording_spans_are_refused(tmp_path: Path) -> None:
    path = pages(tmp_path, "kernel_trace")
    path.write_text(path.read_text().replace(str(INIT + 200), "9" * 19))
    with pytest.raises(ReadError, match="which cannot be"):
        reader.read(path)


def test_calls_of_a_file_without_ends_are_left_out_beside_others(tmp_path: Path) -> None:
    path = pages(tmp_path, "hip_api_trace", "marker_api_trace")
    path.write_text(path.read_text().replace("End_Timestamp", "Ended"))
    profile = reader.read(path)
    assert profile.table("API_CALLS").empty
    assert 2 == len(profile.table("RANGES"))


@pytest.mark.parametrize(
    "change", [{"metadata": 1}, {"agents": 3}, {"buffer_records": {"hip_api": [{}]}}]
)
def test_wrong_json_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="cut or damaged"):
        reader.read(results(tmp_path / "results.json", process(**change)))


def test_the_length_is_that_of_the_process(tmp_path: Path) -> None:
    assert FINI - INIT == reader.read(rocpd(tmp_path / "run.db")).capture["dur_ns"].iloc[0]


def test_what_was_not_asked_for_is_missing_with_its_option(tmp_path: Path) -> None:
    profile = reader.read(rocpd(tmp_path / "run.db", copies=(), regions=()))
    assert {"COPIES", "API_CALLS"} == {missing.table for missing in profile.missing}


def test_a_database_without_views_is_read(tmp_path: Path) -> None:
    path = rocpd(tmp_path / "run.db")
    with closing(sqlite3.connect(path)) as database:
        database.execute("DROP VIEW rocpd_kernel_dispatch")
        database.commit()
    assert 2 == len(reader.read(path).table("KERNELS"))


def test_processes_in_one_file_keep_their_own_names(tmp_path: Path) -> None:
    """Ids of names are those of the process: the second one calls its kernel 1 by another name."""
    path = rocpd(tmp_path / "run.db", copies=(), regions=())
    other = SUFFIX.replace("bc4", "bc5")
    with closing(sqlite3.connect(path)) as database:
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in tables:
            copied = name.replace(SUFFIX, other)
            database.execute(f'CREATE TABLE "{copied}" AS SELECT * FROM "{name}"')
        database.execute(f'UPDATE "rocpd_info_kernel_symbol{other}" SET display_name = "mine"')
        database.commit()
    names = [name for (name,) in rows(path, "KERNELS", "full_name")]
    assert ["Cijk_Ailk_Bljk", "mine", "mine", "vectorized_elementwise_kernel"] == sorted(names)


def test_a_database_of_the_older_tool_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "run.rpd"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE rocpd_api (id)")
        database.commit()
    with pytest.raises(ReadError, match="rocmProfileData"):
        reader.read(path)


@pytest.mark.parametrize(
    "change",
    [{"kernel_id": 1, "start": 200, "end": 300, "stream_id": "x"}, {**KERNELS[0], "link": 2**62}],
)
def test_a_wrong_value_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    path = rocpd(tmp_path / "run.db", kernels=[change])
    with pytest.raises(ReadError, match="wrong value"):
        reader.read(path).table("KERNELS")


def test_a_cut_database_is_refused(tmp_path: Path) -> None:
    path = rocpd(tmp_path / "run.db")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ReadError, match="the database is cut"):
        reader.read(path)


def test_kernels_without_recorded_calls_are_not_lost(tmp_path: Path) -> None:
    assert [[-1], [-1]] == rows(rocpd(tmp_path / "run.db", regions=()), "KERNELS", "correlation")

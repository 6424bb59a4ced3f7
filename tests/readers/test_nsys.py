"""Versions, forms and damage of Nsight Systems exports and reports, one quirk a test (made files)."""

from __future__ import annotations

import os
import re
import sqlite3
import struct
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from readers import nsys_files as made
from readers.nsys_files import Write, every_form

import perfkit
from perfkit.errors import ReadError
from perfkit.readers import nsys
from perfkit.readers.nsys import sqlite as sqlite_form
from perfkit.tables import TABLES


@pytest.mark.parametrize("table", ["EXPORT_META_DATA", "META_DATA_EXPORT"])
def test_the_version_is_found_under_either_name(table: str, tmp_path: Path) -> None:
    """Schemas before 3.4 keep the exporter's version in EXPORT_META_DATA, later ones in META_DATA_EXPORT.

    META_DATA_CAPTURE repeats CAPTURE_EVENT_TYPE, which does no harm.
    """
    options = [{"name": "CAPTURE_EVENT_TYPE", "value": kind} for kind in ("Cuda", "NvtxEvents")]
    rows = [{"name": "EXPORT_SCHEMA_VERSION", "value": "3"}, {"name": "EXPORT_PRODUCT_VERSION", "value": "2022.4.2.1"}]
    tables = {table: rows, "META_DATA_CAPTURE": options, made.KERNEL: [made.kernel(0, 1)]}
    capture = nsys.read(made.sqlite(tmp_path / "a", tables)).capture
    assert "2022.4.2.1" == capture["tool_version"].item()


def test_an_export_before_2_9_has_no_version(tmp_path: Path) -> None:
    """Without any version table, session or description of the node, the events are read all the same."""
    profile = nsys.read(
        made.sqlite(tmp_path / "a", {made.KERNEL: [made.kernel(0, 100)], made.MEMCPY: [made.copy(100, 150)]})
    )
    capture = profile.capture.iloc[0]
    assert ("", True, 150) == (capture["tool_version"], pd.isna(capture["t0_unix_ns"]), capture["dur_ns"])
    assert {"KERNELS", "COPIES"} == set(profile.loaders)


@pytest.mark.parametrize("end", [[], [made.kernel(5, 2**62)]], ids=["usual", "an end of 146 years"])
def test_a_session_without_its_length_lasts_to_the_last_event(end: list[made.Row], tmp_path: Path) -> None:
    """ANALYSIS_DETAILS without a duration does not say how long the recording was, nor does an absurd end."""
    rows = {made.RUNTIME: [made.call(5, 70)], made.KERNEL: [made.kernel(0, 60), *end]}
    tables = {"ANALYSIS_DETAILS": [{"globalVid": 1, "duration": None}], **rows}
    assert [70] == nsys.read(made.sqlite(tmp_path / "a", tables)).capture["dur_ns"].tolist()


def test_the_clock_is_when_the_session_started(tmp_path: Path) -> None:
    """CAPTURE holds the wall clock of time 0 and the length, exactly."""
    t0 = 1_785_519_316_261_388_313
    capture = made.read(tmp_path, made.session(t0=t0, duration=77)).capture
    assert (t0, 77) == (capture["t0_unix_ns"].item(), capture["dur_ns"].item())


def test_columns_an_export_lacks_are_missing_values(tmp_path: Path) -> None:
    """A cut-down export without ids and launch shape gives -1 and NA, not an error."""
    lacking = ("globalPid", "streamId", "registersPerThread", "dynamicSharedMemory", "gridZ", "graphNodeId")
    frame = made.read(tmp_path, {made.KERNEL: made.without([made.kernel(0, 9)], *lacking)}).table("KERNELS")
    kernel = frame.iloc[0]
    assert (-1, -1, False) == (kernel["process"], kernel["stream"], kernel["in_graph"])
    assert frame[["grid_blocks", "registers", "shared_bytes"]].isna().all(axis=None)
    assert 64 == kernel["block_threads"]


def test_columns_of_newer_versions_are_passed_over(tmp_path: Path) -> None:
    """2026's kernels have columns no table of ours has."""
    frame = made.read(tmp_path, {made.KERNEL: [made.kernel(0, 9, graphId=1, clusterX=2, qmdDone=None)]}).table(
        "KERNELS"
    )
    assert TABLES["KERNELS"].column_names == list(frame.columns)


@pytest.mark.parametrize("names", [[made.KERNEL + "_V2"], [made.KERNEL + "_V2", made.KERNEL + "_V10", made.KERNEL]])
def test_the_newest_form_of_a_table_is_read(tmp_path: Path, names: list[str]) -> None:
    """2026.2 stores tables with a suffix: _V10 is newer than _V2, and both than none; any other is another table."""
    tables = {name: [made.kernel(0, len(name))] for name in (*names, made.KERNEL + "_EXTRA")}
    assert [max(map(len, names))] == made.read(tmp_path, tables).table("KERNELS")["dur_ns"].tolist()


def test_a_table_without_rows_is_missing(tmp_path: Path) -> None:
    """Full exports create every table: only rows make it recorded."""
    path = made.sqlite(tmp_path / "a", made.capture())
    with closing(sqlite3.connect(path)) as database, database:
        for table in (made.KERNEL, "GPU_METRICS", made.NVTX):
            database.execute(f"DELETE FROM {table}")
    profile = nsys.read(path)
    assert ["KERNELS", "RANGES", "SAMPLES"] == [m.table for m in profile.missing]
    assert 0 == len(profile.table("KERNELS"))


def test_a_recording_of_the_processor_alone_says_what_it_lacks(tmp_path: Path) -> None:
    """A capture without any GPU table is read; everything of the GPU is missing, with the option for it."""
    profile = made.read(tmp_path, {made.SYSTEM: [made.system_call(1, 2)]})
    assert {"OS_CALLS"} == set(profile.loaders)
    remedies = {m.table: m.record for m in profile.missing}
    assert set(remedies) == {"KERNELS", "COPIES", "API_CALLS", "RANGES", "SAMPLES", "DEVICES"}
    assert "nsys profile --gpu-metrics-devices=all" == remedies["SAMPLES"]


@every_form
def test_all_forms_of_one_capture_are_equal(write: Write, tmp_path: Path) -> None:
    """SQLite, Parquet and Arrow exports of the same capture give the same tables."""
    expected = nsys.read(made.sqlite(tmp_path / "reference", made.capture()))
    profile = nsys.read(write(tmp_path / "run", made.capture()))
    for name in set(TABLES) - {"CAPTURE"}:
        pd.testing.assert_frame_equal(expected.table(name), profile.table(name), check_exact=True)


def test_columns_that_start_with_nulls_are_read(tmp_path: Path) -> None:
    """Types are taken from the first batch of rows: numbers after a batch of NULL are not lost."""
    null = sqlite_form.BATCH_ROWS
    rows = [made.kernel(i, i + 1, registersPerThread=None if i < null else 32) for i in range(null + 2)]
    registers = made.read(tmp_path, {made.KERNEL: rows}).table("KERNELS")["registers"]
    assert (null, [32, 32]) == (registers.isna().sum(), registers.iloc[-2:].tolist())


def test_row_ranges_join_without_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables read in ranges of 3 rows, some of them empty after rows were deleted, are those read at once."""
    rows = [made.kernel(i * 10, i * 10 + 5, f"k{i}", correlationId=i) for i in range(20)]
    ranges = [made.event(i, i + 1, f"text {i}") for i in range(20)]
    path = made.read(tmp_path, {made.KERNEL: rows, made.NVTX: ranges}).path
    with closing(sqlite3.connect(path)) as database, database:
        for table in (made.KERNEL, made.NVTX):
            database.execute(f"DELETE FROM {table} WHERE rowid BETWEEN 5 AND 11 OR rowid = 1")
    whole = nsys.read(path)
    monkeypatch.setattr(sqlite_form, "PART_ROWS", 3)
    assert [1, 2, 3, *range(11, 20)] == nsys.read(path).table("KERNELS")["correlation"].tolist()
    for table in ("KERNELS", "RANGES"):
        pd.testing.assert_frame_equal(whole.table(table), nsys.read(path).table(table))


@pytest.mark.parametrize("row", [0, 2])
@pytest.mark.parametrize(
    ("value", "shown"), [("x", "'x' (text)"), (1.5, "1.5 (real)"), (b"\x00\xff", r"b'\x00\xff' (blob)")]
)
@pytest.mark.parametrize("column", ["registersPerThread", "gridX", "staticSharedMemory", "end", "deviceId"])
def test_a_number_that_is_none_is_damage(
    tmp_path: Path, column: str, value: object, shown: str, row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text, fractions or bytes where whole numbers belong, in the first batch or later, are refused with their cell."""
    monkeypatch.setattr(sqlite_form, "BATCH_ROWS", 2)
    rows = [{**made.kernel(i, i + 1), column: value if i == row else 32} for i in range(4)]
    profile = made.read(tmp_path, {made.KERNEL: rows})
    finding = f"the database is damaged ({made.KERNEL}.{column} holds {shown} in row {row + 1}, not a whole number)"
    with pytest.raises(ReadError, match=re.escape(f"{profile.path}: {finding}. Export")):
        profile.table("KERNELS")


def test_whole_numbers_that_are_stored_as_floats_are_read(tmp_path: Path) -> None:
    """A cut-down export made with pandas has columns of floats where some values were missing."""
    rows = [made.kernel(i, i + 1, registersPerThread=number) for i, number in enumerate((32.0, None, 40.0))]
    registers = made.read(tmp_path, {made.KERNEL: rows}).table("KERNELS")["registers"]
    assert [32, None, 40] == registers.astype(object).where(registers.notna(), None).tolist()


def test_a_float_that_is_not_exact_is_no_id(tmp_path: Path) -> None:
    """One float among ids beyond 2**53 makes floats of all, which are other ids: they are refused."""
    rows = [made.call(0, 1), {**made.call(1, 2), "globalTid": 1e300}]
    profile = made.read(tmp_path, {made.RUNTIME: rows})
    with pytest.raises(ReadError, match=r"RUNTIME.globalTid holds 1e\+300 \(real\) in row 2, not a whole number"):
        profile.table("API_CALLS")


@pytest.fixture(params=[made.parquet, made.arrow])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A capture as a folder of files; its suffix is that of the files."""
    return request.param(tmp_path / f"run.{request.param.__name__}", made.capture())


OTHER_TYPES = {
    "text": pa.array(["x", "7"]),
    "fractions": pa.array([1.5, 2.0]),
    "not a number": pa.array([float("nan"), 2.0]),
    "too large": pa.array([1e300, 2.0]),
    "bytes": pa.array([b"\xff", b""]),
    "truth": pa.array([True, False]),
    "lists": pa.array([[1], [2]]),
    "structures": pa.array([{"a": 1}, {"a": 2}]),
    "dates": pa.array([1, 2], pa.timestamp("ns")),
    "codes": pa.array(["x", "y"]).dictionary_encode(),
}


@pytest.mark.parametrize(
    ("stored", "column", "table"),
    [
        (made.KERNEL, "globalPid", "KERNELS"),
        (made.KERNEL, "end", "KERNELS"),
        (made.MEMCPY, "bytes", "COPIES"),
        ("GPU_METRICS", "value", "SAMPLES"),
        ("StringIds", "id", "KERNELS"),
    ],
)
@pytest.mark.parametrize("kind", OTHER_TYPES)
def test_columns_of_another_type_are_refused_by_name(
    folder: Path, kind: str, stored: str, column: str, table: str
) -> None:
    """A column of numbers that holds anything else is refused with file, column and what it holds."""
    file = folder / f"{stored}{folder.suffix}"
    rows = made.stored(file)
    values = OTHER_TYPES[kind].take([i % 2 for i in range(len(rows))])
    made.store(file, rows.set_column(rows.column_names.index(column), column, values))
    with pytest.raises(
        ReadError, match=rf"{file.name}: the file is damaged \({stored}.{column} holds .*, not .*whole n"
    ):
        nsys.read(folder).table(table)


def test_a_column_that_is_there_twice_is_refused(folder: Path) -> None:
    """Nobody knows which of two columns of one name holds the times."""
    file = folder / f"{made.KERNEL}{folder.suffix}"
    rows = made.stored(file)
    made.store(file, rows.append_column("start", rows.column("end")))
    with pytest.raises(ReadError, match=rf"{file.name}: the file is damaged \({made.KERNEL} has 2 columns 'start'\)"):
        nsys.read(folder).table("KERNELS")


@every_form
@pytest.mark.parametrize(
    ("stored", "column", "table"),
    [
        (made.KERNEL, "end", "KERNELS"),
        (made.MEMSET, "start", "COPIES"),
        (made.RUNTIME, "start", "API_CALLS"),
        (made.SYSTEM, "end", "OS_CALLS"),
        (made.NVTX, "start", "RANGES"),
        ("GPU_METRICS", "metricId", "SAMPLES"),
        ("StringIds", "value", "KERNELS"),
    ],
)
def test_a_column_that_every_version_has_is_missed(
    write: Write, tmp_path: Path, stored: str, column: str, table: str
) -> None:
    """A table of events without its times, or of texts without texts, is damage: nothing is made up for it."""
    strings = [{"id": i, "value": f"name {i}"} for i in range(9)]
    named = {**made.capture(), made.KERNEL: [made.kernel(0, 1, demangledName=1, shortName=2)], "StringIds": strings}
    tables = {t: made.without(rows, column) if t == stored else rows for t, rows in named.items()}
    with pytest.raises(ReadError, match=rf"is damaged \({stored} has no column '{column}'\)"):
        nsys.read(write(tmp_path / "run", tables)).table(table)


def test_a_damaged_page_is_an_error(tmp_path: Path) -> None:
    """A page overwritten in the middle of the file is told, not read as fewer rows."""
    path = made.read(tmp_path, {made.KERNEL: [made.kernel(i, i + 1) for i in range(3000)]}).path
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 4096] = bytes(4096)
    path.write_bytes(content)
    with pytest.raises(ReadError, match=r"run.sqlite: the database is damaged \(.*malformed"):
        nsys.read(path).table("KERNELS")


def test_a_description_that_is_no_text_is_damage(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 in the names of tables and columns are found when opening, and the file is claimed."""
    path = made.sqlite(tmp_path / "run.sqlite", made.capture())
    path.write_bytes(path.read_bytes().replace(b'CREATE TABLE "StringIds" ("id"', b'CREATE TABLE "StringIds" (\xe1id"'))
    assert nsys.sniff(path)
    with pytest.raises(ReadError, match=rf"{path}: the database is damaged"):
        nsys.read(path)


def test_names_of_columns_may_be_in_capitals(tmp_path: Path) -> None:
    """SQLite finds a column whatever its case; one that is spelled otherwise is not one of nsys's."""
    path = made.sqlite(tmp_path / "run.sqlite", made.capture())
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("ALTER TABLE StringIds RENAME COLUMN value TO VALUE")
    with pytest.raises(ReadError, match="StringIds has no column 'value'"):
        nsys.read(path).table("KERNELS")


@pytest.mark.parametrize("rows", [2, 100])
def test_row_ids_that_lie_far_apart_are_read(tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row ids may be any 64-bit numbers: their rows are read in ranges of rows, not of ids, and none is lost."""
    events = [made.kernel(i, i + 1, correlationId=i) for i in range(rows)]
    texts = [made.event(i, i + 1, f"text {i}") for i in range(rows)]
    path = made.read(tmp_path, {made.KERNEL: events, made.NVTX: texts}).path
    with closing(sqlite3.connect(path)) as database, database:
        for table in (made.KERNEL, made.NVTX):
            database.execute(f"UPDATE {table} SET rowid = -9223372036854775000 + rowid * {2**63 // 100 * 2 - 1000}")
    monkeypatch.setattr(sqlite_form, "PART_ROWS", 7)
    profile = nsys.read(path)
    assert list(range(rows)) == profile.table("KERNELS")["correlation"].tolist()
    assert [f"text {i}" for i in range(rows)] == profile.table("RANGES")["name"].tolist()


@pytest.mark.parametrize(
    ("name", "answer", "message"),
    [
        ("_fetched", [(5, 9)], "more rows than its row ids allow: 5 in one part"),
        ("_parts", [sqlite_form.Part(1, 3, 3), sqlite_form.Part(5, 9, 5)], "7 of the 8 rows .* found by their row ids"),
    ],
    ids=["before the first", "between two parts"],
)
def test_rows_that_their_ids_do_not_find_are_no_loss_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, answer: list[Any], message: str
) -> None:
    """In a damaged file row ids may be out of order: looked up by ids a table seems shorter than it is."""
    path = made.read(tmp_path, {made.KERNEL: [made.kernel(i, i + 1) for i in range(9)]}).path
    usual = getattr(sqlite_form.SqliteSource, name)

    def disordered(source: sqlite_form.SqliteSource, asked: str, *parameters: Any) -> Any:
        return answer if "min(rowid)" in asked or asked == made.KERNEL else usual(source, asked, *parameters)

    monkeypatch.setattr(sqlite_form.SqliteSource, name, disordered)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"DELETE FROM {made.KERNEL} WHERE rowid = 7")
    with pytest.raises(ReadError, match=message):
        nsys.read(path).table("KERNELS")


def test_a_table_without_row_ids_is_refused(tmp_path: Path) -> None:
    """nsys writes none: the ranges of rows to read are unknown."""
    path = made.sqlite(tmp_path / "run.sqlite", made.capture())
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"ALTER TABLE {made.KERNEL} RENAME TO old")
        database.execute(f"CREATE TABLE {made.KERNEL} (start, end, PRIMARY KEY (start)) WITHOUT ROWID")
        database.execute(f"INSERT INTO {made.KERNEL} SELECT start, end FROM old")
    with pytest.raises(ReadError, match=r"run.sqlite: the database is damaged .*rowid"):
        nsys.read(path).table("KERNELS")


@pytest.mark.parametrize("value", ["x", b"\xff", 1.5])
@every_form
def test_facts_that_cannot_be_read_are_not_recorded(write: Write, tmp_path: Path, value: object) -> None:
    """Epoch, length, clock rate and the like that are no numbers are missing, and a note names each with its value."""
    tables = {
        "META_DATA_EXPORT": [{"name": "EXPORT_SCHEMA_VERSION", "value": "three"}],
        "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": value}],
        "ANALYSIS_DETAILS": [{"duration": value}],
        "TARGET_INFO_GPU": [made.gpu(smCount=value, clockRate=value, cuDevice=value, computeMajor=value)],
        made.KERNEL: [made.kernel(0, 70)],
    }
    profile = nsys.read(write(tmp_path / "run", tables))
    assert (True, 70) == (pd.isna(profile.capture["t0_unix_ns"].item()), profile.capture["dur_ns"].item())
    device = profile.table("DEVICES").iloc[0]
    assert (0, "", True, True) == (
        *(device["gpu"], device["compute_capability"]),
        *(pd.isna(device["sm_count"]), pd.isna(device["clock_hz"])),
    )
    for fact in ("EXPORT_SCHEMA_VERSION", "utcEpochNs", "duration", "smCount", "clockRate", "cuDevice", "computeMajor"):
        assert 1 == sum(fact in note and "not recorded" in note for note in profile.notes), fact


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("TARGET_INFO_SESSION_START_TIME", "utcEpochNs", -5),
        ("TARGET_INFO_SESSION_START_TIME", "utcEpochNs", 2**62 * 2 - 1),
        ("ANALYSIS_DETAILS", "duration", -1),
        ("ANALYSIS_DETAILS", "duration", 2**62),
        ("TARGET_INFO_GPU", "clockRate", -(2**63)),
        ("TARGET_INFO_GPU", "smCount", 2**40),
        ("TARGET_INFO_GPU", "cuDevice", 2**31),
    ],
)
def test_facts_that_cannot_be_are_not_recorded(tmp_path: Path, table: str, column: str, value: int) -> None:
    """A number that no capture and no GPU has is missing, with a note; the length is then that of the events."""
    tables = made.capture()
    tables[table][0][column] = value
    profile = nsys.read(made.sqlite(tmp_path / "a", tables))
    (note,) = profile.notes
    assert note == f"{table}.{column}: {value} is not a whole number of this quantity: read as not recorded"
    assert 3000 == profile.capture["dur_ns"].item() or table != "ANALYSIS_DETAILS"
    assert 1 == len(profile.table("DEVICES"))


@pytest.mark.parametrize("value", ["three", "", "1e5", "3" * 5000, "3.x", None, b"3.1", 3, 2.5])
def test_a_version_that_is_none_is_read_as_none(tmp_path: Path, value: object) -> None:
    """Whatever stands where the schema's version belongs, the capture is read."""
    rows = [{"name": "EXPORT_SCHEMA_VERSION", "value": value}, {"name": "EXPORT_PRODUCT_VERSION", "value": value}]
    profile = nsys.read(made.sqlite(tmp_path / "a", {"META_DATA_EXPORT": rows, made.KERNEL: [made.kernel(0, 1)]}))
    assert 1 == len(profile.table("KERNELS"))
    assert (value in ("", None)) == (not any("EXPORT_SCHEMA_VERSION" in note for note in profile.notes))
    assert (value if isinstance(value, str) else "") == profile.capture["tool_version"].item()


@pytest.mark.parametrize("ends", [(0, 2, 2**31 - 1), (0, -5, 4), (3, 2, 4), (-(2**31), 0, 4), (0, 2**24, 4)])
@pytest.mark.parametrize(("stored", "number"), [("StringIds", "id"), ("META_DATA_EXPORT", "name")])
def test_offsets_beyond_the_file_are_found(tmp_path: Path, ends: tuple[int, ...], stored: str, number: str) -> None:
    """An Arrow file whose texts lie outside of it is refused before a text is looked at: pyarrow would read there."""
    folder = made.arrow(tmp_path / "run", {made.KERNEL: [made.kernel(0, 1, demangledName=1)]})
    file = folder / f"{stored}.arrow"
    made.store(file, pa.table({number: [1, 2] if number == "id" else ["x", "x"], "value": ["ab", "cdef"]}))
    content = file.read_bytes()
    assert 1 == content.count(struct.pack("<3i", 0, 2, 6))
    file.write_bytes(content.replace(struct.pack("<3i", 0, 2, 6), struct.pack("<3i", *ends)))
    with pytest.raises(ReadError, match=rf"{file.name}: the file is damaged \(.*[Oo]ffset"):
        nsys.read(folder).table("KERNELS")


@pytest.mark.parametrize("form", [".parquet", ".arrow"])
def test_text_of_a_folder_that_is_not_utf8_is_replaced(tmp_path: Path, form: str) -> None:
    """Names in other encodings occur: as in SQLite, the rest of the name is kept."""
    raw = pa.array([b"caf\xe9_kernel", b"fine"])
    text = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    tables = {made.KERNEL: [made.kernel(i, i + 1, demangledName=i + 1) for i in (0, 1)]}
    folder = (made.parquet if form == ".parquet" else made.arrow)(tmp_path / "run", tables)
    made.store(folder / f"StringIds{form}", pa.table({"id": pa.array([1, 2]), "value": text}))
    made.store(folder / f"TARGET_INFO_GPU{form}", pa.table({"id": pa.array([0, 1]), "name": text}))
    profile = nsys.read(folder)
    assert ["caf�_kernel", "fine"] == profile.table("KERNELS")["full_name"].tolist()
    assert ["caf�_kernel", "fine"] == profile.table("DEVICES")["name"].tolist()


def test_rows_that_a_file_cannot_hold_are_refused(tmp_path: Path) -> None:
    """A few hundred bytes state 10**9 rows of nothing: no memory is taken for them."""
    folder = made.arrow(tmp_path / "run", made.capture())
    made.store(folder / "TARGET_INFO_GPU.arrow", pa.table({"id": pa.nulls(10**9)}))
    with pytest.raises(ReadError, match=r"TARGET_INFO_GPU.arrow: the file is damaged \(it states 1000000000 rows in"):
        nsys.read(folder)


def test_a_description_of_millions_of_rows_is_refused(tmp_path: Path) -> None:
    """Two million GPUs fit into a small Parquet file: they are not made into as many objects."""
    folder = made.parquet(tmp_path / "run", made.capture())
    file = folder / "TARGET_INFO_GPU.parquet"
    made.store(file, pa.table({"id": pa.array(np.zeros(2_000_000, np.int64)), "uuid": pa.array(range(2_000_000))}))
    with pytest.raises(ReadError, match=rf"{file.name}: the file is damaged \(TARGET_INFO_GPU has 2000000 rows"):
        nsys.read(folder)


@pytest.mark.parametrize("content", [b"", b"x", b"ARROW1\0\0" + bytes(100), b"\xff" * 4 + b"\x7f" * 100, b"PAR1" * 9])
def test_a_file_of_another_kind_is_refused(folder: Path, content: bytes) -> None:
    """A file that is empty, cut or of another kind says so with its own name."""
    (folder / f"{made.KERNEL}{folder.suffix}").write_bytes(content)
    with pytest.raises(ReadError, match=rf"{made.KERNEL}{folder.suffix}: the file is damaged"):
        nsys.read(folder)


def test_a_table_is_not_changed_by_its_file(folder: Path) -> None:
    """A file that is overwritten after its table was read changes no number: it is not mapped into memory."""
    table = nsys.read(folder).table("KERNELS")
    before = table.copy(deep=True)
    file = folder / f"{made.KERNEL}{folder.suffix}"
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.write(b"\x55" * size)
    pd.testing.assert_frame_equal(before, table)


def test_a_pipe_among_the_tables_is_not_opened(tmp_path: Path) -> None:
    """A pipe called like a table has no writer: reading it would never end."""
    folder = made.parquet(tmp_path / "run", made.capture())
    os.mkfifo(folder / "NVTX_EVENTS_V2.parquet")
    assert 2 == len(nsys.read(folder).table("RANGES"))


def test_a_folder_of_ten_thousand_files_is_read(tmp_path: Path) -> None:
    """Only the tables that are asked for are opened."""
    folder = made.parquet(tmp_path / "run", made.capture())
    for number in range(10_000):
        (folder / f"OTHER_{number}.parquet").touch()
    assert nsys.sniff(folder)
    assert 2 == len(nsys.read(folder).table("KERNELS"))


@pytest.mark.parametrize("head", [b"SQLite format 3\0", None])
def test_a_file_of_200_gb_without_content_is_refused(tmp_path: Path, head: bytes | None) -> None:
    """A file with the start of a database and nothing but holes behind it takes neither time nor memory."""
    path = made.sqlite(tmp_path / "run.sqlite", made.capture())
    path.write_bytes(path.read_bytes()[:4096] if head is None else head)
    os.truncate(path, 200 * 2**30)
    assert nsys.sniff(path)
    with pytest.raises(ReadError, match=rf"{path}: the database is damaged"):
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


def test_a_newer_schema_is_named(tmp_path: Path) -> None:
    """Schema 4 is read, with a note that nobody has tried it."""
    rows = [{"name": "EXPORT_SCHEMA_VERSION", "value": "4.1.0"}]
    (note,) = nsys.read(made.sqlite(tmp_path / "a", {"META_DATA_EXPORT": rows, made.KERNEL: [made.kernel(0, 1)]})).notes
    assert "schema 4.1.0 is newer than those tried" in note


scripts = pytest.mark.skipif(sys.platform == "win32", reason="the fake nsys is a shell script")


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A report, and no nsys on PATH."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    path = tmp_path / "my run.nsys-rep"
    path.write_bytes(b"NVIDIA Tegra Profiler Report 1.20\n" + bytes(100))
    return path


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which temporary files are made."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def install(folder: Path, script: str) -> None:
    """Put a fake nsys on PATH: a script that finds its -o target in $target."""
    program = folder / "bin" / "nsys"
    program.write_text(f'#!/bin/sh\ntarget="$5"\n{script}\n')
    program.chmod(0o755)


def exporting(report: Path) -> str:
    """The script of an nsys that exports a small capture."""
    export = made.sqlite(report.with_name("answer"), made.capture())
    return f'test "$1 $2 $3 $4 $6" = "export -t sqlite -o {report}" && /bin/cp "{export}" "$target"'


@pytest.mark.parametrize("magic", [b"NVIDIA Tegra Profiler Report 1.20", b"NVIDIA Tegra Profiler Report 1."])
def test_a_report_is_recognised_by_its_content(tmp_path: Path, magic: bytes) -> None:
    """Old .qdrep and new .nsys-rep start alike; the suffix does not matter."""
    path = tmp_path / "report.bin"
    path.write_bytes(magic)
    assert nsys.sniff(path)


def test_without_nsys_the_error_is_the_command(report: Path) -> None:
    """Nobody else can open a report: the error says where and how to export it."""
    command = "`nsys export -t sqlite -o 'my run.sqlite' 'my run.nsys-rep'`"
    with pytest.raises(ReadError, match=rf"my run.nsys-rep: .*`nsys` is not on PATH.*{command}"):
        perfkit.load(report)


@scripts
def test_with_nsys_a_report_is_loaded(report: Path) -> None:
    """The report is exported, read, and named in CAPTURE; nothing is left beside it."""
    install(report.parent, exporting(report))
    before = sorted(report.parent.iterdir())
    run = perfkit.load(report)
    assert (2, 2, 2) == (len(run.kernels), len(run.ranges), len(run.api_calls))
    assert [str(report)] == run.capture["path"].tolist()
    assert before == sorted(report.parent.iterdir())


@scripts
def test_a_report_is_exported_once(report: Path) -> None:
    """Tables in the cache need no second export, nor nsys at all."""
    install(report.parent, exporting(report))
    first = perfkit.load(report).kernels
    (report.parent / "bin" / "nsys").unlink()
    assert first.equals(perfkit.load(report).kernels)


@scripts
def test_the_export_goes_away_with_the_profile(report: Path, temporary: Path) -> None:
    """The temporary export lives as long as tables may be read from it, and no longer."""
    install(report.parent, exporting(report))
    profile = nsys.read(report)
    assert 1 == len(list(temporary.iterdir()))
    assert 2 == len(profile.table("KERNELS"))
    del profile
    assert [] == list(temporary.iterdir())


@scripts
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo one >&2; echo 'unsupported version' >&2; exit 3", "status 3: unsupported version. A report newer"),
        ("echo 'on standard output'; exit 1", "status 1: on standard output"),
        ("exit 2", "status 2: no message"),
        ("exit 0", "status 0: no message"),
        ("read answer; echo 'no answer' >&2; exit 4", "status 4: no answer"),  # it asks, and reads the end of its input
        ("printf '\\033[31mred %01000d' 5 >&2; exit 1", r"status 1: \?\[31mred 0+\. A report"),
    ],
)
def test_a_failed_export_says_nsys_last_words(report: Path, temporary: Path, script: str, words: str) -> None:
    """When nsys fails, or says it did not and wrote nothing, the error holds its last line; nothing is left."""
    install(report.parent, script)
    with pytest.raises(ReadError, match=rf"my run.nsys-rep: `nsys export .*` failed with {words}") as error:
        perfkit.load(report)
    assert len(str(error.value)) < 1000
    assert [] == list(temporary.iterdir())


@scripts
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x7fELF" + bytes(100), r"`nsys export .*` cannot be run \("),
        (b'#!/bin/sh\nprintf "SQLite format 3" > "$5"\n', "the database is damaged"),
    ],
    ids=["no program", "half an export"],
)
def test_a_program_that_cannot_run_or_stops_is_an_error(
    report: Path, temporary: Path, content: bytes, words: str
) -> None:
    """An nsys that the system cannot start, or that stops half-way, is an error; nothing is left."""
    program = report.parent / "bin" / "nsys"
    program.write_bytes(content)
    program.chmod(0o755)
    with pytest.raises(ReadError, match=f"my run.nsys-rep: {words}"):
        perfkit.load(report)
    assert [] == list(temporary.iterdir())

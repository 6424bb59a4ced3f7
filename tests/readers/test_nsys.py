"""Versions, forms and damage of Nsight Systems exports, one quirk a test (made files)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
from readers import nsys_files as made
from readers.nsys_files import Write, every_form

from perfkit.errors import ReadError
from perfkit.readers import nsys
from perfkit.readers.nsys import sqlite as sqlite_form
from perfkit.tables import TABLES


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


def test_repeated_names_of_capture_options_do_no_harm(tmp_path: Path) -> None:
    """META_DATA_CAPTURE repeats CAPTURE_EVENT_TYPE."""
    options = [{"name": "CAPTURE_EVENT_TYPE", "value": kind} for kind in ("Cuda", "NvtxEvents")]
    profile = made.read(tmp_path, {"META_DATA_CAPTURE": options, made.KERNEL: [made.kernel(0, 1)]})
    assert "2024.2.3.38" == profile.capture["tool_version"].item()


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
    """2026.2 stores tables with a suffix: _V10 is newer than _V2, and both than none."""
    tables = {name: [made.kernel(0, len(name))] for name in names}
    assert [max(map(len, names))] == made.read(tmp_path, tables).table("KERNELS")["dur_ns"].tolist()


def test_a_table_of_a_longer_name_is_another_table(tmp_path: Path) -> None:
    """CUPTI_ACTIVITY_KIND_KERNEL_EXTRA is no version of the kernels."""
    assert "KERNELS" not in made.read(tmp_path, {made.KERNEL + "_EXTRA": [made.kernel(0, 1)]}).loaders


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
    """Types are taken from the first batch of 65,536 rows: numbers after a batch of NULL are not lost."""
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


@pytest.mark.parametrize(("row", "value"), [(0, "x"), (0, 1.5), (2, "x"), (2, 1.5)])
def test_a_number_that_is_none_is_damage(
    tmp_path: Path, row: int, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text or fractions where whole numbers belong, in the first batch or later, raise ReadError with the path."""
    monkeypatch.setattr(sqlite_form, "BATCH_ROWS", 2)
    rows = [made.kernel(i, i + 1, registersPerThread=value if i == row else 32) for i in range(4)]
    profile = made.read(tmp_path, {made.KERNEL: rows})
    with pytest.raises(ReadError, match=rf"{profile.path.name}: the database is damaged"):
        profile.table("KERNELS")


def test_a_damaged_page_is_an_error(tmp_path: Path) -> None:
    """A page overwritten in the middle of the file is told, not read as fewer rows."""
    path = made.read(tmp_path, {made.KERNEL: [made.kernel(i, i + 1) for i in range(3000)]}).path
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


def test_a_newer_schema_is_named(tmp_path: Path) -> None:
    """Schema 4 is read, with a note that nobody has tried it."""
    rows = [{"name": "EXPORT_SCHEMA_VERSION", "value": "4.1.0"}]
    (note,) = nsys.read(made.sqlite(tmp_path / "a", {"META_DATA_EXPORT": rows, made.KERNEL: [made.kernel(0, 1)]})).notes
    assert "schema 4.1.0 is newer than those tried" in note

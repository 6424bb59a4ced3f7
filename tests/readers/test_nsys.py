"""Versions, forms and damage of Nsight Systems exports, one quirk a test (made files)."""

import os
import re
import sqlite3
import struct
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from readers import nsys_files as made
from readers.nsys_files import Write, every_form, values

from perfkit.errors import ReadError
from perfkit.readers import nsys
from perfkit.readers.nsys import sqlite as sqlite_form
from perfkit.tables import TABLES

META = [
    {"name": "EXPORT_SCHEMA_VERSION", "value": "3"},
    {"name": "EXPORT_PRODUCT_VERSION", "value": "2022.4.2.1"},
]
NO_LENGTH = {
    "ANALYSIS_DETAILS": [{"globalVid": 1, "duration": None}],
    made.RUNTIME: [made.call(5, 70)],
}
OPTIONS = {
    "META_DATA_CAPTURE": [
        {"name": "CAPTURE_EVENT_TYPE", "value": kind} for kind in ("Cuda", "NvtxEvents")
    ]
}
OPTIONS |= {made.KERNEL: [made.kernel(0, 1)]}
T0 = 1_785_519_316_261_388_313


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        # Schemas before 3.4 keep the exporter's version in EXPORT_META_DATA; options that repeat do no harm.
        ({"EXPORT_META_DATA": META, **OPTIONS}, ["2022.4.2.1", None, 1]),
        ({"META_DATA_EXPORT": META, **OPTIONS}, ["2022.4.2.1", None, 1]),
        (
            {made.KERNEL: [made.kernel(0, 100)], made.MEMCPY: [made.copy(100, 150)]},
            ["", None, 150],
        ),  # before 2.9
        # Without a length the recording lasts to the last event, but not to an absurd end of 146 years.
        ({**NO_LENGTH, made.KERNEL: [made.kernel(0, 60)]}, ["", None, 70]),
        ({**NO_LENGTH, made.KERNEL: [made.kernel(0, 60), made.kernel(5, 2**62)]}, ["", None, 70]),
        (made.session(t0=T0, duration=77), ["2024.2.3.38", T0, 77]),
    ],
)
def test_a_capture_says_its_version_clock_and_length(
    tables: made.Tables, told: list[Any], tmp_path: Path
) -> None:
    profile = nsys.read(made.sqlite(tmp_path / "a", tables))
    assert [told] == values(profile.capture, "tool_version", "t0_unix_ns", "dur_ns")
    assert set(profile.loaders) == {
        name for name, stored in made.STORED.items() if stored in tables
    }


def test_columns_that_lack_or_begin_with_nulls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = (
        "globalPid",
        "streamId",
        "registersPerThread",
        "dynamicSharedMemory",
        "gridZ",
        "graphNodeId",
    )
    newer = made.kernel(0, 9, graphId=1, clusterX=2, qmdDone=None)
    frame = made.table(tmp_path, "KERNELS", *made.without([newer], *lacking))
    assert TABLES["KERNELS"].column_names == list(frame.columns)
    assert [[-1, -1, False]] == values(frame, "process", "stream", "in_graph")
    assert [[None, None, None, 64]] == values(
        frame, "grid_blocks", "registers", "shared_bytes", "block_threads"
    )
    rows = [
        made.kernel(0, 1, streamId=2**64 - 1),
        made.kernel(1, 2, streamId=7),
    ]  # it has ids unsigned
    assert [-1, 7] == values(made.table(tmp_path, "KERNELS", *rows, write=made.parquet), "stream")
    monkeypatch.setattr(
        sqlite_form, "BATCH_ROWS", 5
    )  # types are taken from the first batch of rows
    registers = [*[None] * 5, 32, 32]
    rows = [made.kernel(i, i + 1, registersPerThread=number) for i, number in enumerate(registers)]
    assert registers == values(made.table(tmp_path, "KERNELS", *rows), "registers")


def test_tables_and_forms_that_are_read(tmp_path: Path) -> None:
    # 2026.2 stores tables with a suffix: _V10 is newer than _V2, and both than none; any other is another table.
    for names in ([made.KERNEL + "_V2"], [made.KERNEL + "_V2", made.KERNEL + "_V10", made.KERNEL]):
        (folder := tmp_path / f"{len(names)}").mkdir()
        tables = {name: [made.kernel(0, len(name))] for name in (*names, made.KERNEL + "_EXTRA")}
        assert [max(map(len, names))] == values(
            made.read(folder, tables).table("KERNELS"), "dur_ns"
        )
    # Full exports create every table: only rows make it recorded.
    path = made.sqlite(tmp_path / "a", made.capture())
    change(path, *(f"DELETE FROM {table}" for table in (made.KERNEL, "GPU_METRICS", made.NVTX)))
    profile = nsys.read(path)
    assert ["KERNELS", "RANGES", "SAMPLES", "STACKS", "SCHEDULE"] == [
        m.table for m in profile.missing
    ]
    assert 0 == len(profile.table("KERNELS"))
    profile = made.read(tmp_path, {made.SYSTEM: [made.system_call(1, 2)]})
    remedies = {m.table: m.record for m in profile.missing}
    assert {"OS_CALLS"} == set(profile.loaders)
    assert {*remedies} == {
        "KERNELS",
        "COPIES",
        "API_CALLS",
        "RANGES",
        "SAMPLES",
        "DEVICES",
        "STACKS",
        "SCHEDULE",
    }
    assert "nsys profile --gpu-metrics-devices=all -o report PROGRAM" == remedies["SAMPLES"]
    # SQLite, Parquet and Arrow exports give the same tables.
    expected = nsys.read(made.sqlite(tmp_path / "reference", made.capture()))
    for write in (made.parquet, made.arrow):
        profile = nsys.read(write(tmp_path / write.__name__, made.capture()))
        for name in set(TABLES) - {"CAPTURE"}:
            pd.testing.assert_frame_equal(
                expected.table(name), profile.table(name), check_exact=True
            )
    # An export made with pandas has floats where some values were missing; 1e300 is no exact id.
    rows = [
        made.kernel(i, i + 1, registersPerThread=number)
        for i, number in enumerate((32.0, None, 40.0))
    ]
    calls = {made.RUNTIME: [made.call(0, 1), {**made.call(1, 2), "globalTid": 1e300}]}
    profile = made.read(tmp_path, {made.KERNEL: rows, **calls})
    assert [32, None, 40] == values(profile.table("KERNELS"), "registers")
    with pytest.raises(
        ReadError, match=r"RUNTIME.globalTid holds 1e\+300 \(real\) in row 2, not a whole number"
    ):
        profile.table("API_CALLS")


def numbered(folder: Path, rows: int, *statements: str) -> Path:
    """An export of kernels and ranges with a number each, changed by SQL in which TABLE stands for the two tables."""
    kernels = [made.kernel(i, i + 1, correlationId=i) for i in range(rows)]
    ranges = [made.event(i, i + 1, f"{i}") for i in range(rows)]
    path = made.read(folder, {made.KERNEL: kernels, made.NVTX: ranges}).path
    change(
        path, *(s.replace("TABLE", table) for s in statements for table in (made.KERNEL, made.NVTX))
    )
    return path


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)


@pytest.mark.parametrize(
    ("rows", "statement", "kept", "part"),
    [
        (
            20,
            "DELETE FROM TABLE WHERE rowid BETWEEN 5 AND 11 OR rowid = 1",
            [1, 2, 3, *range(11, 20)],
            3,
        ),
        # Row ids may be any 64-bit numbers: none is lost.
        *(
            (
                n,
                f"UPDATE TABLE SET rowid = -{2**63 - 808} + rowid * {2**63 // 50 - 1000}",
                range(n),
                7,
            )
            for n in (2, 100)
        ),
    ],
    ids=["rows deleted", "2 far apart", "100 far apart"],
)
def test_row_ranges_join_without_loss(
    rows: int,
    statement: str,
    kept: Sequence[int],
    part: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = numbered(tmp_path, rows, statement)
    whole = nsys.read(path)
    monkeypatch.setattr(sqlite_form, "BATCH_ROWS", part)
    profile = nsys.read(path)
    assert [*kept] == values(profile.table("KERNELS"), "correlation")
    assert [*map(str, kept)] == values(profile.table("RANGES"), "name")
    for table in ("KERNELS", "RANGES"):
        pd.testing.assert_frame_equal(whole.table(table), profile.table(table))


@pytest.mark.parametrize("row", [0, 2])  # in the first batch or later
@pytest.mark.parametrize(
    ("value", "shown"),
    [("x", "'x' (text)"), (1.5, "1.5 (real)"), (b"\x00\xff", r"b'\x00\xff' (blob)")],
)
@pytest.mark.parametrize(
    "column", ["registersPerThread", "gridX", "staticSharedMemory", "end", "deviceId"]
)
def test_a_number_that_is_none_is_damage(
    tmp_path: Path,
    column: str,
    value: object,
    shown: str,
    row: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sqlite_form, "BATCH_ROWS", 2)
    rows = [{**made.kernel(i, i + 1), column: value if i == row else 32} for i in range(4)]
    finding = f"the database is damaged ({made.KERNEL}.{column} holds {shown} in row {row + 1}, not a whole number)"
    with pytest.raises(ReadError, match=re.escape(f"{tmp_path / 'run.sqlite'}: {finding}. Export")):
        made.table(tmp_path, "KERNELS", *rows)


@pytest.fixture(params=[made.parquet, made.arrow])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return request.param(tmp_path / f"run.{request.param.__name__}", made.capture())


OTHER_TYPES = {
    "text": pa.array(["x", "7"]),
    "bytes": pa.array([b"\xff", b""]),
    "truth": pa.array([True, False]),
    "fractions": pa.array([1.5, 2.0]),
    "not a number": pa.array([float("nan"), 2.0]),
    "too large": pa.array([1e300, 2.0]),
    "lists": pa.array([[1], [2]]),
    "structures": pa.array([{"a": 1}, {"a": 2}]),
    "dates": pa.array([1, 2], pa.timestamp("ns")),
    "codes": pa.array(["x", "y"]).dictionary_encode(),
}


@pytest.mark.parametrize(
    ("stored", "column", "table"),
    [
        *(
            (made.KERNEL, "globalPid", "KERNELS"),
            (made.KERNEL, "end", "KERNELS"),
            (made.MEMCPY, "bytes", "COPIES"),
        ),
        *(("GPU_METRICS", "value", "SAMPLES"), ("StringIds", "id", "KERNELS")),
    ],
)
def test_columns_of_another_type_or_there_twice_are_named(
    folder: Path, stored: str, column: str, table: str
) -> None:
    file = folder / f"{stored}{folder.suffix}"
    rows = made.stored(file)
    for other in OTHER_TYPES.values():
        changed = other.take([i % 2 for i in range(len(rows))])
        made.store(file, rows.set_column(rows.column_names.index(column), column, changed))
        finding = rf"the file is damaged \({stored}.{column} holds .*, not .*whole n"
        with pytest.raises(ReadError, match=f"{file.name}: {finding}"):
            nsys.read(folder).table(table)
    # Nobody knows which of two columns of one name holds the values.
    made.store(file, rows.append_column(column, rows.column(column)))
    with pytest.raises(
        ReadError, match=rf"{file.name}: the file is damaged \({stored} has 2 columns '{column}'\)"
    ):
        nsys.read(folder).table(table)


@every_form
@pytest.mark.parametrize(
    ("stored", "column", "table"),
    [
        *(
            (made.KERNEL, "end", "KERNELS"),
            (made.MEMSET, "start", "COPIES"),
            (made.RUNTIME, "start", "API_CALLS"),
        ),
        *(
            (made.SYSTEM, "end", "OS_CALLS"),
            (made.NVTX, "start", "RANGES"),
            ("GPU_METRICS", "metricId", "SAMPLES"),
        ),
        ("StringIds", "value", "KERNELS"),
    ],
)
def test_a_column_that_every_version_has_is_missed(
    write: Write, tmp_path: Path, stored: str, column: str, table: str
) -> None:
    strings = [{"id": i, "value": f"name {i}"} for i in range(9)]
    named = {
        **made.capture(),
        made.KERNEL: [made.kernel(0, 1, demangledName=1, shortName=2)],
        "StringIds": strings,
    }
    tables = {t: made.without(rows, column) if t == stored else rows for t, rows in named.items()}
    with pytest.raises(ReadError, match=rf"is damaged \({stored} has no column '{column}'\)"):
        nsys.read(write(tmp_path / "run", tables)).table(table)


def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    path = made.read(tmp_path, {made.KERNEL: [made.kernel(i, i + 1) for i in range(3000)]}).path
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 4096] = bytes(4096)
    path.write_bytes(content)
    with pytest.raises(ReadError, match=r"run.sqlite: the database is damaged \(.*malformed"):
        nsys.read(path).table("KERNELS")
    path = made.sqlite(tmp_path / "names.sqlite", made.capture())
    path.write_bytes(
        path.read_bytes().replace(
            b'CREATE TABLE "StringIds" ("id"', b'CREATE TABLE "StringIds" (\xe1id"'
        )
    )
    assert nsys.sniff(path)
    with pytest.raises(ReadError, match=rf"{path}: the database is damaged"):
        nsys.read(path)
    # The start of a database and nothing but holes behind it takes neither time nor memory.
    for head in [b"SQLite format 3\0", None]:
        path = made.sqlite(tmp_path / "run.sqlite", made.capture())
        path.write_bytes(path.read_bytes()[:4096] if head is None else head)
        os.truncate(path, 200 * 2**30)
        assert nsys.sniff(path)
        with pytest.raises(ReadError, match=rf"{path}: the database is damaged"):
            nsys.read(path).table("KERNELS")
    for statements, finding in [
        # SQLite finds a column whatever its case; one that is spelled otherwise is not one of nsys's.
        (
            ["ALTER TABLE StringIds RENAME COLUMN value TO VALUE"],
            "is damaged .StringIds has no column 'value'",
        ),
        (WITHOUT_ROW_IDS, "is damaged .*rowid"),  # nsys writes none
        ([f"DROP TABLE {table}" for table in ("StringIds", *made.capture())], "has no tables"),
    ]:
        path = made.sqlite(tmp_path / "run.sqlite", made.capture())
        change(path, *statements)
        with pytest.raises(ReadError, match=f"run.sqlite: the database {finding}"):
            nsys.read(path).table("KERNELS")


WITHOUT_ROW_IDS = (
    f"ALTER TABLE {made.KERNEL} RENAME TO old",
    f"CREATE TABLE {made.KERNEL} (start, end, PRIMARY KEY (start)) WITHOUT ROWID",
    f"INSERT INTO {made.KERNEL} SELECT start, end FROM old",
)


@pytest.mark.parametrize("value", ["x", b"\xff", 1.5])
@every_form
def test_facts_that_cannot_be_read_are_not_recorded(
    write: Write, tmp_path: Path, value: object
) -> None:
    tables = {
        "META_DATA_EXPORT": [{"name": "EXPORT_SCHEMA_VERSION", "value": "three"}],
        "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": value}],
        "ANALYSIS_DETAILS": [{"duration": value}],
        "TARGET_INFO_GPU": [
            made.gpu(smCount=value, clockRate=value, cuDevice=value, computeMajor=value)
        ],
        made.KERNEL: [made.kernel(0, 70)],
    }
    profile = nsys.read(write(tmp_path / "run", tables))
    assert [[None, 70]] == values(profile.capture, "t0_unix_ns", "dur_ns")
    device = values(profile.table("DEVICES"), "gpu", "compute_capability", "sm_count", "clock_hz")
    assert [[0, "", None, None]] == device
    for fact in (
        "EXPORT_SCHEMA_VERSION",
        "utcEpochNs",
        "duration",
        "smCount",
        "clockRate",
        "cuDevice",
        "computeMajor",
    ):
        assert 1 == sum(fact in note and "not recorded" in note for note in profile.notes), fact


def test_facts_that_cannot_be_are_not_recorded(tmp_path: Path) -> None:
    for table, column, value in [
        *(("TARGET_INFO_SESSION_START_TIME", "utcEpochNs", value) for value in (-5, 2**62 * 2 - 1)),
        *(("ANALYSIS_DETAILS", "duration", -1), ("ANALYSIS_DETAILS", "duration", 2**62)),
        *(
            ("TARGET_INFO_GPU", c, n)
            for c, n in (("clockRate", -(2**63)), ("smCount", 2**40), ("cuDevice", 2**31))
        ),
    ]:
        tables = made.capture()
        tables[table][0][column] = value
        profile = nsys.read(made.sqlite(tmp_path / "a", tables))
        (note,) = profile.notes
        assert (
            note
            == f"{table}.{column}: {value} is not a whole number of this quantity: read as not recorded"
        )
        assert (
            3000 == profile.capture["dur_ns"].item() or table != "ANALYSIS_DETAILS"
        )  # that of the events
        assert 1 == len(profile.table("DEVICES"))
    for value, note in [
        *(
            (value, "EXPORT_SCHEMA_VERSION: ")
            for value in ("three", "1e5", "3" * 5000, "3.x", b"3.1", 3, 2.5)
        ),
        *(("", None), (None, None), ("4.1.0", "schema 4.1.0 is newer than those tried")),
    ]:
        rows = [
            {"name": f"EXPORT_{kind}_VERSION", "value": value} for kind in ("SCHEMA", "PRODUCT")
        ]
        profile = nsys.read(
            made.sqlite(
                tmp_path / "a", {"META_DATA_EXPORT": rows, made.KERNEL: [made.kernel(0, 1)]}
            )
        )
        assert 1 == len(profile.table("KERNELS"))
        told = [told[: len(note or "")] for told in profile.notes if "PRODUCT" not in told]
        assert ([note] == told) if note else not profile.notes
        assert (value if isinstance(value, str) else "") == profile.capture["tool_version"].item()


@pytest.mark.parametrize(
    "ends", [(0, 2, 2**31 - 1), (0, -5, 4), (3, 2, 4), (-(2**31), 0, 4), (0, 2**24, 4)]
)
@pytest.mark.parametrize(("stored", "number"), [("StringIds", "id"), ("META_DATA_EXPORT", "name")])
def test_offsets_beyond_the_file_are_found(
    tmp_path: Path, ends: tuple[int, ...], stored: str, number: str
) -> None:
    """Texts outside of their Arrow file are refused before a text is looked at: pyarrow would read there."""
    folder = made.arrow(tmp_path / "run", {made.KERNEL: [made.kernel(0, 1, demangledName=1)]})
    file = folder / f"{stored}.arrow"
    made.store(
        file, pa.table({number: [1, 2] if number == "id" else ["x", "x"], "value": ["ab", "cdef"]})
    )
    content = file.read_bytes()
    assert 1 == content.count(struct.pack("<3i", 0, 2, 6))
    file.write_bytes(content.replace(struct.pack("<3i", 0, 2, 6), struct.pack("<3i", *ends)))
    with pytest.raises(ReadError, match=rf"{file.name}: the file is damaged \(.*[Oo]ffset"):
        nsys.read(folder).table("KERNELS")


@pytest.mark.parametrize("write", [made.parquet, made.arrow])
def test_text_of_a_folder_that_is_not_utf8_is_replaced(tmp_path: Path, write: Write) -> None:
    text = pa.Array.from_buffers(pa.string(), 2, pa.array([b"caf\xe9_kernel", b"fine"]).buffers())
    folder = write(
        tmp_path / "run",
        {made.KERNEL: [made.kernel(i, i + 1, demangledName=i + 1) for i in (0, 1)]},
    )
    for number, table, name in ((1, "StringIds", "value"), (0, "TARGET_INFO_GPU", "name")):
        stored = pa.table({"id": pa.array([number, number + 1]), name: text})
        made.store(folder / f"{table}.{write.__name__}", stored)
    profile = nsys.read(folder)
    for found in (profile.table("KERNELS")["full_name"], profile.table("DEVICES")["name"]):
        assert ["caf�_kernel", "fine"] == found.tolist()


def test_what_is_opened_of_a_folder(tmp_path: Path) -> None:
    # 10**9 rows of nothing in some bytes, and 2 million GPUs: no memory is taken.
    many = {"id": np.zeros(2_000_000), "uuid": range(2_000_000)}
    for write, content, finding in (
        (made.arrow, {"id": pa.nulls(10**9)}, "it states 1000000000 rows in"),
        (made.parquet, many, "TARGET_INFO_GPU has 2000000 rows"),
    ):
        folder = write(tmp_path / write.__name__, made.capture())
        file = folder / f"TARGET_INFO_GPU.{write.__name__}"
        made.store(file, pa.table(content))
        with pytest.raises(ReadError, match=rf"{file.name}: the file is damaged \({finding}"):
            nsys.read(folder)
    folder = made.parquet(tmp_path / "run", made.capture())
    for number in range(100):
        (folder / f"OTHER_{number}.parquet").touch()
    os.mkfifo(
        folder / "NVTX_EVENTS_V2.parquet"
    )  # a pipe called like a table: reading it would never end
    assert nsys.sniff(folder)
    assert (2, 2) == tuple(len(nsys.read(folder).table(name)) for name in ("KERNELS", "RANGES"))


def test_a_table_is_not_changed_by_its_file(folder: Path) -> None:
    """A file that is overwritten after its table was read changes no number: it is not mapped into memory."""
    table = nsys.read(folder).table("KERNELS")
    before = table.copy(deep=True)
    file = folder / f"{made.KERNEL}{folder.suffix}"
    with file.open("r+b") as opened:
        opened.write(b"\x55" * file.stat().st_size)
    pd.testing.assert_frame_equal(before, table)
    # Now empty, cut or of another kind.
    for content in (
        b"",
        b"x",
        b"ARROW1\0\0" + bytes(100),
        b"\xff" * 4 + b"\x7f" * 100,
        b"PAR1" * 9,
    ):
        file.write_bytes(content)
        with pytest.raises(ReadError, match=rf"{file.name}: the file is damaged"):
            nsys.read(folder)


def test_a_path_may_hold_any_character_and_need_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made.sqlite(
        tmp_path / "a b#c%41&é.sqlite", made.capture()
    )  # no part of SQLite's address syntax
    assert "immutable" not in sqlite_form.uri(path)
    assert 2 == len(nsys.read(path).table("KERNELS"))
    monkeypatch.setattr("os.access", lambda *_: False)  # a folder that is read-only
    assert sqlite_form.uri(path).endswith("?mode=ro&immutable=1")
    assert 2 == len(nsys.read(path).table("KERNELS"))

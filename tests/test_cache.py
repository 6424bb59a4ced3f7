"""The cache: a capture is read once, and a copy that is old, damaged or unwritable does no harm."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import NoReturn

import pandas as pd
import pytest
from frames import copies
from readers import nsys_files as nsys

import perfkit
from perfkit.cache import fetch, folder, state, store
from perfkit.errors import ReadError
from perfkit.readers.nsys.sqlite import SqliteSource
from perfkit.schema import Table
from perfkit.tables import TABLES


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """A small capture with a row or two of everything."""
    return nsys.sqlite(tmp_path / "run.sqlite", nsys.capture())


def unreadable(*_: object) -> NoReturn:
    """Stand in for opening the source."""
    raise ReadError("the source was opened")


def every_table(path: Path) -> dict[str, pd.DataFrame]:
    """All tables of a run."""
    run = perfkit.load(path)
    return {name: run.table(name) for name in TABLES}


def copies_in(place: Path) -> list[Path]:
    """Every file in the cache."""
    return sorted(f for f in place.rglob("*") if f.is_file())


def assert_same(expected: dict[str, pd.DataFrame], actual: dict[str, pd.DataFrame]) -> None:
    """Every table is the same to the last bit."""
    for name in TABLES:
        pd.testing.assert_frame_equal(expected[name], actual[name], check_exact=True)


def test_a_second_load_reads_only_copies(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the source unreadable the second load gives the same tables, missing and notes."""
    first, told = every_table(capture), perfkit.load(capture)
    monkeypatch.setattr(SqliteSource, "__init__", unreadable)
    assert_same(first, every_table(capture))
    again = perfkit.load(capture)
    assert (told.missing, told.notes) == (again.missing, again.notes)


def test_a_table_not_asked_for_yet_is_read_later(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the tables that were asked for have copies; the source is opened for the others."""
    perfkit.load(capture).kernels  # noqa: B018
    monkeypatch.setattr(SqliteSource, "__init__", unreadable)
    assert 2 == len(perfkit.load(capture).kernels)
    with pytest.raises(ReadError, match="the source was opened"):
        perfkit.load(capture).copies  # noqa: B018


def test_a_category_without_values_has_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture that only set memory knows no source memory; its copies come from the cache all the same."""
    path = nsys.sqlite(tmp_path / "set.sqlite", {**nsys.session(), nsys.MEMSET: [nsys.memset(0, 5)]})
    first = every_table(path)
    assert first["COPIES"]["src_memory"].isna().all()
    monkeypatch.setattr(SqliteSource, "__init__", unreadable)
    assert_same(first, every_table(path))


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_every_table_can_be_kept(table: Table, tmp_path: Path) -> None:
    """An empty table of every kind comes back with its dtypes, and so does the note."""
    store(tmp_path / "a" / "b", table.name, table.empty(), "note ü")
    found = fetch(tmp_path / "a" / "b", table.name)
    assert found is not None
    pd.testing.assert_frame_equal(table.empty(), found[0], check_categorical=False)
    assert "note ü" == found[1]


def test_a_cut_copy_is_made_anew(capture: Path, cache: Path) -> None:
    """A copy cut in the middle, at 64 bytes or to nothing is replaced by a whole one."""
    first = every_table(capture)
    whole = {f: f.read_bytes() for f in copies_in(cache)}
    for size in (2, 8, 10**9):
        for file, content in whole.items():
            file.write_bytes(content[: min(64, len(content) // size)])
        assert_same(first, every_table(capture))
        assert whole == {f: f.read_bytes() for f in copies_in(cache)}


def test_a_flipped_bit_anywhere_is_noticed(tmp_path: Path) -> None:
    """One bit changed in a page, a header or the footer of a copy: it is no longer taken for whole."""
    place = tmp_path / "a" / "b"
    store(place, "COPIES", copies(*({"start_ns": i, "dur_ns": i % 3} for i in range(300))), "{}")
    (file,) = place.iterdir()
    content = file.read_bytes()
    for at in range(0, len(content), 7):
        file.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
        assert fetch(place, "COPIES") is None, f"bit {at % 8} of byte {at}"
    file.write_bytes(content)
    assert fetch(place, "COPIES") is not None


def test_a_damaged_copy_gives_the_right_table(capture: Path, cache: Path) -> None:
    """After bits were flipped in every copy a load gives what the source says."""
    first = every_table(capture)
    for file in copies_in(cache):
        content = bytearray(file.read_bytes())
        content[len(content) // 3] ^= 16
        file.write_bytes(content)
    assert_same(first, every_table(capture))


def test_a_copy_of_another_shape_is_not_used(capture: Path, cache: Path) -> None:
    """A whole file that holds another table under this name is no copy of it."""
    perfkit.load(capture).kernels  # noqa: B018
    place = next(f for f in copies_in(cache) if f.name.startswith("KERNELS")).parent
    (kept,) = place.glob("CAPTURE.*")
    for file in place.glob("KERNELS.*"):
        file.unlink()
    (place / kept.name.replace("CAPTURE", "KERNELS")).write_bytes(kept.read_bytes())
    assert 2 == len(perfkit.load(capture).kernels)


@pytest.mark.parametrize("how", ["size", "mtime"])
def test_a_changed_source_is_read_again(tmp_path: Path, cache: Path, how: str) -> None:
    """A source of another size or modification time has no copy; the old copies are removed."""
    path = tmp_path / "run.sqlite"
    one, two = ([nsys.kernel(0, 5, "work")], [nsys.kernel(0, 9, "work")])
    for kernels, expected, time in ((one, 5, 10**18), (two, 9, 10**18 + 1)):
        path.unlink(missing_ok=True)
        extra = {f"EXTRA_{expected}": [{"a": "x" * 9999 * expected}]} if how == "size" else {}
        nsys.sqlite(path, {**nsys.session(), nsys.KERNEL: kernels, **extra})
        os.utime(path, ns=(time, time) if how == "mtime" else (10**18, 10**18))
        assert [expected] == perfkit.load(path).kernels["dur_ns"].tolist()
    assert 1 == len({f.parent for f in copies_in(cache)})


def test_a_changed_file_of_a_folder_is_read_again(tmp_path: Path) -> None:
    """A parquetdir is keyed by all of its files."""
    export = nsys.parquet(tmp_path / "run_pqtdir", nsys.capture())
    assert 2 == len(perfkit.load(export).kernels)
    other = nsys.parquet(tmp_path / "other", {nsys.KERNEL: [nsys.kernel(0, 1)]})
    (other / f"{nsys.KERNEL}.parquet").replace(export / f"{nsys.KERNEL}.parquet")
    assert 1 == len(perfkit.load(export).kernels)


def test_off_keeps_nothing(capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PERFKIT_CACHE=off reads the source each time and writes no file."""
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setenv("PERFKIT_CACHE", "off")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert_same(every_table(capture), every_table(capture))
    assert before == sorted(tmp_path.rglob("*"))
    assert folder(capture, "nsys", "0") is None


def test_a_cache_that_cannot_be_made_is_no_error(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the cache's path is a file, loading works without it."""
    monkeypatch.setenv("PERFKIT_CACHE", str(capture / "cache"))
    assert 2 == len(perfkit.load(capture).kernels)


def test_a_full_disk_leaves_nothing_behind(capture: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a copy cannot be finished the table is right and no partial file stays."""

    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert 2 == len(perfkit.load(capture).kernels)
    assert [] == copies_in(cache)


def test_a_copy_lives_under_path_and_state(capture: Path, cache: Path) -> None:
    """Below the cache: one folder per path, in it one per state, version of the reader and shape of tables."""
    place = folder(capture, "nsys", state(capture, "nsys", 1))
    assert place is not None
    again = capture.parent / ".." / capture.parent.name / capture.name
    assert place == folder(again, "nsys", state(again, "nsys", 1))
    assert cache == place.parents[1]
    assert [5 + 16, 16] == [len(place.name), len(place.parent.name)]
    beside = nsys.sqlite(capture.with_name("b.sqlite"), nsys.capture())
    newer, other = folder(capture, "nsys", state(capture, "nsys", 2)), folder(beside, "nsys", "0")
    assert newer is not None
    assert other is not None
    assert newer.parent == place.parent
    assert newer != place
    assert other.parent != place.parent


@pytest.mark.parametrize(
    ("platform", "variable", "expected"),
    [
        ("linux", "XDG_CACHE_HOME", "perfkit"),
        ("linux", "HOME", ".cache/perfkit"),
        ("darwin", "HOME", "Library/Caches/perfkit"),
        ("win32", "LOCALAPPDATA", "perfkit/cache"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="the home folder is not named by HOME there")
def test_the_cache_is_where_the_system_keeps_caches(
    platform: str, variable: str, expected: str, capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without PERFKIT_CACHE the copies lie in the user's cache folder of the platform."""
    for name in ("PERFKIT_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv(variable, str(tmp_path / "home"))
    place = folder(capture, "nsys", "0")
    assert place is not None
    assert tmp_path / "home" / expected == place.parents[1]


def test_the_path_is_told_as_it_was_given(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CAPTURE names the path of this load, though the copy was made under another name of it."""
    monkeypatch.chdir(capture.parent)
    for given in (capture, Path(capture.name), capture):
        run = perfkit.load(given)
        assert [str(given)] == run.capture["path"].tolist()
        assert given == run.profiles[0].path


@pytest.mark.parametrize("rows", [3, 300_000])
def test_a_copy_can_be_changed_like_what_was_read(cache: Path, rows: int) -> None:
    """Columns of a table from the cache, short or long, take other values; the copy on disk keeps its own."""
    samples = TABLES["SAMPLES"].make(
        pd.DataFrame({"rank": 0, "gpu": 0, "time_ns": range(rows), "metric": "power_w", "value": 1.0})
    )
    store(cache / "of" / "one", "SAMPLES", samples)
    for _ in range(2):
        found = fetch(cache / "of" / "one", "SAMPLES")
        assert found is not None
        frame, _note = found
        pd.testing.assert_frame_equal(samples, frame, check_exact=True)
        frame["time_ns"] += 1
        frame.loc[0, "value"] = 2.0
        assert [1, 2.0] == frame.loc[0, ["time_ns", "value"]].tolist()


def test_the_copy_of_one_reader_leaves_that_of_another(capture: Path, cache: Path) -> None:
    """A log that nccl and deepspeed both read is stored once for each, and each goes only for its own later state."""
    for reader, table in (("nccl", "LINKS"), ("deepspeed", "SAMPLES"), ("nccl", "LINKS")):
        store(folder(capture, reader, "a"), table, TABLES[table].empty())
    assert ["deepspeed-a", "nccl-a"] == sorted(f.parent.name for f in copies_in(cache))
    store(folder(capture, "nccl", "b"), "LINKS", TABLES["LINKS"].empty())
    assert ["deepspeed-a", "nccl-b"] == sorted(f.parent.name for f in copies_in(cache))


def replaced(path: Path, dur_ns: int, *, like: os.stat_result) -> None:
    """Put another capture of the same size and times in the place of a file."""
    nsys.sqlite(path.with_suffix(".new"), {**nsys.session(), nsys.KERNEL: [nsys.kernel(0, dur_ns, "work")]})
    path.with_suffix(".new").replace(path)
    os.utime(path, ns=(like.st_atime_ns, like.st_mtime_ns))
    assert like.st_size == path.stat().st_size


@pytest.mark.parametrize("setting", ["", "off"])
def test_a_file_replaced_after_load_is_an_error(
    tmp_path: Path, setting: str, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    """CAPTURE of one recording is never joined with KERNELS of another, with a cache and without; nothing is kept."""
    if setting:
        monkeypatch.setenv("PERFKIT_CACHE", setting)
    path = nsys.sqlite(tmp_path / "run.sqlite", {**nsys.session(), nsys.KERNEL: [nsys.kernel(0, 5, "work")]})
    run = perfkit.load(path)
    replaced(path, 9, like=path.stat())
    with pytest.raises(ReadError, match=r"run.sqlite: the file changed after it was loaded. Load it again."):
        run.kernels  # noqa: B018
    assert not [f for f in copies_in(cache) if f.name.startswith("KERNELS")]
    assert [9] == perfkit.load(path).kernels["dur_ns"].tolist()
    path.unlink()
    with pytest.raises(ReadError, match="the file is gone since it was loaded"):
        run.kernels  # noqa: B018


def test_other_content_of_the_same_size_and_time_is_noticed(tmp_path: Path) -> None:
    """A file whose bytes were changed in place, its times set back: the copy of before is not used."""
    path = nsys.sqlite(tmp_path / "run.sqlite", {**nsys.session(), nsys.KERNEL: [nsys.kernel(0, 5, "work")]})
    assert [5] == perfkit.load(path).kernels["dur_ns"].tolist()
    replaced(path, 9, like=path.stat())
    assert [9] == perfkit.load(path).kernels["dur_ns"].tolist()


def test_samples_of_the_content_tell_files_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where sizes and times agree to the ns, as on file systems without change times, the first and last byte count."""
    path = tmp_path / "big"
    path.write_bytes(bytes(10**6))
    like = path.stat()
    monkeypatch.setattr(Path, "stat", lambda *_, **__: like)
    before = state(path, "nsys", 1)
    for at in (0, 10**6 - 1):
        content = bytearray(10**6)
        content[at] = 1
        path.write_bytes(content)
        assert before != state(path, "nsys", 1)


BAD_NOTES = ["", "{", "[3]", '{"tables": 3}', '{"tables": [], "missing": [{"a": 1}]}', "[" * 10**5]


@pytest.mark.parametrize("note", BAD_NOTES)
def test_a_copy_with_a_bad_note_is_made_anew(capture: Path, cache: Path, note: str) -> None:
    """A whole copy whose note is no description of a profile, or no list of notes, is not used, and replaced."""
    first = every_table(capture)
    for file in copies_in(cache):
        table = file.name.split(".")[0]
        stored = fetch(file.parent, table)
        assert stored is not None
        file.unlink()
        store(file.parent, table, stored[0].iloc[:0] if table != "CAPTURE" else stored[0], note)
    assert_same(first, every_table(capture))


def test_notes_on_values_that_cannot_be_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The note that counts what was left out comes with the copy, and is told before the table is asked for."""
    kernels = [nsys.kernel(0, 5, "work"), nsys.kernel(9, 2, "work")]
    path = nsys.sqlite(tmp_path / "run.sqlite", {**nsys.session(), nsys.KERNEL: kernels})
    expected = ("run.sqlite: KERNELS: 1 of 2 rows left out: dur_ns is -7, which cannot be (legal: 0 to 3.15576e+17)",)
    assert expected == perfkit.load(path).notes
    monkeypatch.setattr(SqliteSource, "__init__", unreadable)
    again = perfkit.load(path)
    assert expected == again.notes
    assert [5] == again.kernels["dur_ns"].tolist()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file away")
def test_a_copy_of_another_user_is_not_used(capture: Path, cache: Path) -> None:
    """In a cache that users of a machine share, each reads what its own loads wrote."""
    first = every_table(capture)
    planted = [f for f in copies_in(cache) if f.name.startswith("KERNELS")]
    for file in planted:
        table, note = fetch(file.parent, "KERNELS") or (None, "")
        assert table is not None
        file.unlink()
        store(file.parent, "KERNELS", table.iloc[:1], note)
    assert 1 == len(perfkit.load(capture).kernels)
    for file in copies_in(cache):
        os.chown(file, 12345, 12345)
    assert_same(first, every_table(capture))

"""The cache: a capture is read once, and a copy that is old, damaged or unwritable does no harm."""

import io
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import pandas as pd
import pyarrow.parquet as pq
import pytest
from frames import copies, kernels
from readers import nsys_files as nsys
from sampled import samples

import perfkit
from perfkit.cache import fetch, folder, from_parquet, state, store
from perfkit.errors import ReadError
from perfkit.readers.nsys.sqlite import SqliteSource
from perfkit.schema import Table
from perfkit.tables import TABLES


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """A small capture with a row or two of everything."""
    return nsys.sqlite(tmp_path / "run.sqlite", nsys.capture())


def work(path: Path, dur_ns: int, **more: list[dict[str, str]]) -> Path:
    return nsys.sqlite(
        path, {**nsys.session(), nsys.KERNEL: [nsys.kernel(0, dur_ns, "work")], **more}
    )


def unreadable(*_: object) -> NoReturn:
    """Stand in for opening the source."""
    raise ReadError("the source was opened")


def every_table(path: Path) -> dict[str, pd.DataFrame]:
    run = perfkit.load(path)
    return {name: run.table(name) for name in TABLES}


def copies_in(place: Path) -> list[Path]:
    return sorted(f for f in place.rglob("*") if f.is_file())


def assert_same(expected: dict[str, pd.DataFrame], actual: dict[str, pd.DataFrame]) -> None:
    for name in TABLES:
        pd.testing.assert_frame_equal(expected[name], actual[name], check_exact=True)


def test_a_second_load_reads_only_copies(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    perfkit.load(capture).kernels  # noqa: B018
    with monkeypatch.context() as patch:
        patch.setattr(SqliteSource, "__init__", unreadable)
        assert 2 == len(perfkit.load(capture).kernels)
        with pytest.raises(ReadError, match="the source was opened"):
            perfkit.load(capture).copies  # noqa: B018
    # A capture that only set memory knows no source memory.
    memset = {**nsys.session(), nsys.MEMSET: [nsys.memset(0, 5)]}
    paths = capture, nsys.sqlite(capture.with_name("set.sqlite"), memset)
    first, told = [every_table(path) for path in paths], perfkit.load(capture)
    assert first[1]["COPIES"]["src_memory"].isna().all()
    monkeypatch.setattr(SqliteSource, "__init__", unreadable)
    for expected, path in zip(first, paths, strict=True):
        assert_same(expected, every_table(path))
    again = perfkit.load(capture)
    assert (told.missing, told.notes) == (again.missing, again.notes)


def kept(place: Path, table: str) -> tuple[pd.DataFrame, str]:
    found = fetch(place, table)
    assert found is not None
    return found


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_every_table_can_be_kept(table: Table, tmp_path: Path) -> None:
    store(tmp_path / "a" / "b", table.name, table.empty(), "note ü")
    frame, note = kept(tmp_path / "a" / "b", table.name)
    pd.testing.assert_frame_equal(table.empty(), frame, check_categorical=False)
    assert "note ü" == note


def test_columns_say_whether_they_lack_values(tmp_path: Path) -> None:
    frame = kernels(
        {"start_ns": 1, "dur_ns": 2, "registers": 3},
        {"start_ns": 5, "dur_ns": 2, "registers": None},
    )
    store(tmp_path / "a" / "b", "KERNELS", frame)
    ((file,), (kept_frame, _)) = copies_in(tmp_path), kept(tmp_path / "a" / "b", "KERNELS")
    schema = pq.read_schema(file)
    assert (False, False, True) == tuple(
        schema.field(n).nullable for n in ("start_ns", "name", "registers")
    )
    pd.testing.assert_frame_equal(frame, kept_frame, check_exact=True)
    kept_frame["start_ns"] += 1  # what was read may be written to, and the copy stays as it is
    pd.testing.assert_frame_equal(frame, kept(tmp_path / "a" / "b", "KERNELS")[0], check_exact=True)


def test_damaged_copies_are_made_anew(capture: Path, cache: Path) -> None:
    first = every_table(capture)
    whole = {f: f.read_bytes() for f in copies_in(cache)}
    for size in (2, 8, 10**9):
        for file, content in whole.items():
            file.write_bytes(content[: min(64, len(content) // size)])
        assert_same(first, every_table(capture))
        assert whole == {f: f.read_bytes() for f in copies_in(cache)}
    for file, content in whole.items():
        at = len(content) // 3
        file.write_bytes(content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :])
    assert_same(first, every_table(capture))
    # A whole file that holds another table under this name is no copy of it.
    (place,) = {file.parent for file in whole}
    (capture_copy,), (kernels_copy,) = (place.glob(f"{name}.*") for name in ("CAPTURE", "KERNELS"))
    kernels_copy.unlink()
    (place / capture_copy.name.replace("CAPTURE", "KERNELS")).write_bytes(capture_copy.read_bytes())
    assert 2 == len(perfkit.load(capture).kernels)


def test_a_flipped_bit_anywhere_is_noticed(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b"
    store(place, "COPIES", copies(*({"start_ns": i, "dur_ns": i % 3} for i in range(300))), "{}")
    (file,) = place.iterdir()
    content = file.read_bytes()
    for at in range(0, len(content), 7):
        file.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
        assert fetch(place, "COPIES") is None, f"bit {at % 8} of byte {at}"
    file.write_bytes(content)
    assert kept(place, "COPIES")


@pytest.mark.parametrize("how", ["size", "mtime"])
def test_a_changed_source_is_read_again(tmp_path: Path, cache: Path, how: str) -> None:
    path = tmp_path / "run.sqlite"
    for expected, time in ((5, 10**18), (9, 10**18 + 1)):
        path.unlink(missing_ok=True)
        extra = {f"EXTRA_{expected}": [{"a": "x" * 9999 * expected}]} if how == "size" else {}
        work(path, expected, **extra)
        os.utime(path, ns=(time, time) if how == "mtime" else (10**18, 10**18))
        assert [expected] == perfkit.load(path).kernels["dur_ns"].tolist()
    assert 1 == len({f.parent for f in copies_in(cache)})


def test_changed_files_are_read_again(tmp_path: Path) -> None:
    export = nsys.parquet(tmp_path / "run_pqtdir", nsys.capture())
    assert 2 == len(perfkit.load(export).kernels)
    other = nsys.parquet(tmp_path / "other", {nsys.KERNEL: [nsys.kernel(0, 1)]})
    (other / f"{nsys.KERNEL}.parquet").replace(export / f"{nsys.KERNEL}.parquet")
    assert 1 == len(perfkit.load(export).kernels)
    path = work(tmp_path / "run.sqlite", 5)
    assert [5] == perfkit.load(path).kernels["dur_ns"].tolist()
    replaced(path, 9, like=path.stat())
    assert [9] == perfkit.load(path).kernels["dur_ns"].tolist()


def test_loads_work_without_a_cache(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setenv("PERFKIT_CACHE", "off")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert_same(every_table(capture), every_table(capture))
    assert before == sorted(tmp_path.rglob("*"))
    assert folder(capture, "nsys", "0") is None
    monkeypatch.setenv("PERFKIT_CACHE", str(capture / "cache"))
    assert 2 == len(perfkit.load(capture).kernels)


def test_a_copy_lives_under_path_and_state(capture: Path, cache: Path) -> None:
    place = folder(capture, "nsys", state(capture, "nsys", 1))
    assert place is not None
    again = capture.parent / ".." / capture.parent.name / capture.name
    assert place == folder(again, "nsys", state(again, "nsys", 1))
    assert cache == place.parents[1]
    assert [5 + 16, 16] == [len(place.name), len(place.parent.name)]
    beside = nsys.sqlite(capture.with_name("b.sqlite"), nsys.capture())
    newer, other = folder(capture, "nsys", state(capture, "nsys", 2)), folder(beside, "nsys", "0")
    assert newer.parent == place.parent  # type: ignore[union-attr]
    assert newer != place
    assert other.parent != place.parent  # type: ignore[union-attr]


@pytest.mark.skipif(sys.platform == "win32", reason="the home folder is not named by HOME there")
def test_the_cache_is_where_the_system_keeps_caches(
    capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = capture.with_name("home")
    for platform, variable, expected in (
        ("linux", "XDG_CACHE_HOME", "perfkit"),
        ("linux", "HOME", ".cache/perfkit"),
        ("darwin", "HOME", "Library/Caches/perfkit"),
        ("win32", "LOCALAPPDATA", "perfkit/cache"),
    ):
        for name in ("PERFKIT_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.setenv(variable, str(home))
        place = folder(capture, "nsys", "0")
        assert place is not None
        assert home / expected == place.parents[1]


def test_the_path_is_told_as_it_was_given(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(capture.parent)
    for given in (capture, Path(capture.name), capture):
        run = perfkit.load(given)
        assert [str(given)] == run.capture["path"].tolist()
        assert given == run.profiles[0].path


@pytest.mark.parametrize("rows", [3, 300_000])
def test_a_copy_can_be_changed_like_what_was_read(cache: Path, rows: int) -> None:
    made = samples(power_w=[1.0] * rows, every=1)
    store(cache / "of" / "one", "SAMPLES", made)
    for _ in range(2):
        frame, _note = kept(cache / "of" / "one", "SAMPLES")
        pd.testing.assert_frame_equal(made, frame, check_exact=True)
        frame["time_ns"] += 1
        frame.loc[0, "value"] = 2.0
        assert [1, 2.0] == frame.loc[0, ["time_ns", "value"]].tolist()


def test_the_copy_of_one_reader_leaves_that_of_another(capture: Path, cache: Path) -> None:
    # A log that nccl and deepspeed both read is stored once for each.
    for reader, table in (("nccl", "LINKS"), ("deepspeed", "SAMPLES"), ("nccl", "LINKS")):
        store(folder(capture, reader, "a"), table, TABLES[table].empty())
    assert ["deepspeed-a", "nccl-a"] == sorted(f.parent.name for f in copies_in(cache))
    store(folder(capture, "nccl", "b"), "LINKS", TABLES["LINKS"].empty())
    assert ["deepspeed-a", "nccl-b"] == sorted(f.parent.name for f in copies_in(cache))


def replaced(path: Path, dur_ns: int, *, like: os.stat_result) -> None:
    """Put another capture of the same size and times in the place of a file."""
    work(path.with_suffix(".new"), dur_ns).replace(path)
    os.utime(path, ns=(like.st_atime_ns, like.st_mtime_ns))
    assert like.st_size == path.stat().st_size


@pytest.mark.parametrize("setting", ["", "off"])
def test_a_file_replaced_after_load_is_refused(
    tmp_path: Path, setting: str, monkeypatch: Any, cache: Path
) -> None:
    monkeypatch.setenv("PERFKIT_CACHE", setting or str(cache))
    path = work(tmp_path / "run.sqlite", 5)
    run = perfkit.load(path)
    replaced(path, 9, like=path.stat())
    with pytest.raises(
        ReadError, match=r"run.sqlite: the file changed after it was loaded. Load it again."
    ):
        run.kernels  # noqa: B018
    assert not [f for f in copies_in(cache) if f.name.startswith("KERNELS")]
    assert [9] == perfkit.load(path).kernels["dur_ns"].tolist()
    path.unlink()
    with pytest.raises(ReadError, match="the file is gone since it was loaded"):
        run.kernels  # noqa: B018


def test_samples_of_the_content_tell_files_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on file systems without change times, where sizes and times agree to the ns.
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


@pytest.mark.parametrize(
    "note", ["", "{", "[3]", '{"tables": 3}', '{"tables": [], "missing": [{"a": 1}]}', "[" * 10**5]
)
def test_a_copy_with_a_bad_note_is_made_anew(capture: Path, cache: Path, note: str) -> None:
    first = every_table(capture)
    for file in copies_in(cache):
        table = file.name.split(".")[0]
        stored, _ = kept(file.parent, table)
        file.unlink()
        store(file.parent, table, stored.iloc[:0] if table != "CAPTURE" else stored, note)
    assert_same(first, every_table(capture))


def test_notes_on_values_that_cannot_be_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = [nsys.kernel(0, 5, "work"), nsys.kernel(9, 2, "work")]
    path = nsys.sqlite(tmp_path / "run.sqlite", {**nsys.session(), nsys.KERNEL: kernels})
    expected = (
        "run.sqlite: KERNELS: 1 of 2 rows left out: dur_ns is -7, which cannot be (legal: 0 to 3.15576e+17)",
    )
    assert expected == perfkit.load(path).notes
    monkeypatch.setattr(SqliteSource, "__init__", unreadable)
    again = perfkit.load(path)
    assert expected == again.notes
    assert [5] == again.kernels["dur_ns"].tolist()


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file away"
)
def test_a_copy_of_another_user_is_not_used(capture: Path, cache: Path) -> None:
    # In a cache that users of a machine share, each reads what its own loads wrote.
    first = every_table(capture)
    (file,) = (f for f in copies_in(cache) if f.name.startswith("KERNELS"))
    table, note = kept(file.parent, "KERNELS")
    file.unlink()
    store(file.parent, "KERNELS", table.iloc[:1], note)
    assert 1 == len(perfkit.load(capture).kernels)
    for file in copies_in(cache):
        os.chown(file, 12345, 12345)
    assert_same(first, every_table(capture))


def test_a_text_column_without_any_value_is_read_from_a_report() -> None:
    """A recording that has memsets alone has no source of a copy: Parquet keeps no kind of such a column."""
    frame = copies({"start_ns": 0, "dur_ns": 1}).astype({"src_memory": object})
    written = io.BytesIO()
    frame.assign(src_memory=None).to_parquet(written)
    assert "category" == from_parquet(written.getvalue(), "COPIES")[0]["src_memory"].dtype

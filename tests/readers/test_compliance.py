"""What every reader keeps: it claims its own files only, its tables match, and damage is an error."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from readers import dcgm_files as dcgm
from readers import deepspeed_files as deepspeed
from readers import experiment_files as experiment
from readers import hpctoolkit_files as hpctoolkit
from readers import nccl_files as nccl
from readers import ncu_files as ncu
from readers import nsys_files as nsys
from readers import smi_files as smi
from readers import torch_files as torch

import perfkit
from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers import READERS, reader, recognise
from perfkit.tables import TABLES

Make = Callable[[Path], Path]

# Per reader: files of its own, one per form it reads. A new reader adds a line.
OWN: dict[str, dict[str, Make]] = {
    "nsys": {
        "sqlite": lambda folder: nsys.sqlite(folder / "run.sqlite", nsys.capture()),
        "parquetdir": lambda folder: nsys.parquet(folder / "run_pqtdir", nsys.capture()),
        "arrowdir": lambda folder: nsys.arrow(folder / "run_arwdir", nsys.capture()),
        "arrowdir of streams": lambda folder: nsys.arrow(folder / "run_arwdir", nsys.capture(), "stream"),
    },
    "ncu": {
        "raw page": lambda folder: ncu.raw(folder / "run.csv", ncu.full(0), ncu.full(1)),
        "details page": lambda folder: ncu.details(folder / "run.csv", ncu.full(0), ncu.full(1)),
    },
    "hpctoolkit": {
        "database": lambda folder: hpctoolkit.sample(folder / "hpctoolkit-app-database"),
        "old database": lambda folder: experiment.sample(folder / "hpctoolkit-app-database"),
    },
    "torch_trace": {
        "printed": lambda folder: torch.printed(folder / "trace.json", torch.sample()),
        "minified": lambda folder: torch.minified(folder / "trace.json", torch.sample()),
        "gzip": lambda folder: torch.packed(folder / "trace.json.gz", torch.sample()),
    },
    "dcgm": {
        "dmon": lambda folder: dcgm.dmon(folder / "dmon.txt", *dcgm.ticks()),
        "scrape": lambda folder: dcgm.scrape(folder / "scrape.prom", *dcgm.page()),
        "answer": lambda folder: dcgm.stored(folder / "gpus.json"),
    },
    "nvidia_smi": {
        "dmon": lambda folder: smi.dmon(folder / "gpu.log", *smi.ticks(7, gpus=1)),
        "query": lambda folder: smi.query(folder / "gpu.csv", *smi.moments()),
        "text": lambda folder: smi.text(folder / "gpu.txt"),
        "xml": lambda folder: smi.xml(folder / "gpu.xml", *[smi.gpu()] * 3),
    },
    "rocm_smi": {"json": lambda folder: smi.rocm(folder / "gpu.json", smi.card(), smi.card())},
    "nccl": {
        "table": lambda folder: nccl.written(folder / "all_reduce.txt", nccl.table(inner=nccl.rows() * 4, ranks=2)),
        "report": lambda folder: nccl.reported(folder / "all_reduce.json", nccl.report()),
        "log": lambda folder: nccl.sample(folder / "train.log"),
    },
    "deepspeed": {
        "report": lambda folder: deepspeed.written(folder / "profile.txt", deepspeed.report()),
        "iterations": lambda folder: deepspeed.written(folder / "train.log", deepspeed.training()),
    },
}
# Readers, or one form of theirs, of what a killed program leaves behind: cut within its data a file is read, and a note
# says so.
UNFINISHED = {
    "torch_trace": "the file ends before its trace does",
    "dcgm dmon": "the last line is cut",
    "dcgm scrape": "the last line is cut",
    "nvidia_smi": "the last line is cut",
    "nvidia_smi xml": "the end is cut",
    "nccl": "the last line is cut",
    "nccl report": "the file ends in the middle of a result",
    "deepspeed": "the last line is cut",
}
FOREIGN: dict[str, bytes] = {
    "empty": b"",
    "text": b"hello\nworld\n",
    "zero bytes": bytes(4096),
    "not utf-8": bytes(range(128, 256)) * 8,
    "sqlite magic alone": b"SQLite format 3\0"[:15],
    "json": b'{"traceEvents": []',
    "gzip magic": b"\x1f\x8b\x08\x00",
    "zip magic": b"PK\x03\x04",
}
# Families of the folders with mutated inputs: each crashed a reader, or gave it a value that cannot be.
MUTATED = (
    *("dcgm_dmon", "dcgm_prom", "prom_answer", "smi_dmon", "smi_q_text", "smi_query", "smi_xml", "rocm"),
    *("nccl_json", "nccl_tests", "megatron", "hpct_old"),
)
CASES = [pytest.param(name, make, id=f"{name} {form}") for name, forms in OWN.items() for form, make in forms.items()]
CUTS = [
    pytest.param(make, UNFINISHED.get(f"{name} {form}", UNFINISHED.get(name)), id=f"{name} {form}")
    for name, forms in OWN.items()
    for form, make in forms.items()
]

own_files = pytest.mark.parametrize(("name", "make"), CASES)
every_reader = pytest.mark.parametrize("name", READERS)


def files(path: Path) -> list[Path]:
    """The file, or the files of the folder, that make up a profile."""
    return sorted(path.iterdir()) if path.is_dir() else [path]


def contents(path: Path) -> dict[str, str]:
    """A hash of every file beside and in a profile."""
    beside = [f for f in path.parent.rglob("*") if f.is_file()]
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in beside}


def frames(profile: Profile) -> dict[str, pd.DataFrame]:
    """Every table of a profile."""
    return {name: profile.table(name) for name in TABLES}


def test_every_reader_has_files_of_its_own() -> None:
    """No reader goes untested: the samples name the readers of the list, in its order."""
    assert list(READERS) == list(OWN)


@own_files
def test_a_file_is_claimed_by_its_reader_alone(name: str, make: Make, tmp_path: Path) -> None:
    """Its own reader claims a file, and no other does."""
    path = make(tmp_path)
    assert [name] == [other for other in READERS if reader(other).sniff(path)]
    assert name == recognise(path)


def test_foreign_files_are_not_claimed(tmp_path: Path) -> None:
    """Content decides, not the suffix; looking never raises."""
    claimed = []
    for content, suffix in itertools.product(FOREIGN, [".sqlite", ".json", ".csv", ""]):
        path = tmp_path / f"{content}{suffix}"
        path.write_bytes(FOREIGN[content])
        claimed += [(name, path.name) for name in READERS if reader(name).sniff(path) is not False]
    assert [] == claimed


@every_reader
def test_what_cannot_be_opened_is_not_claimed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty folders, folders of text, missing and unreadable files are no profile; looking never raises."""
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "folder" / "readme.md").write_text("hello")
    for path in ("folder", "folder/inner", "gone"):
        assert reader(name).sniff(tmp_path / path) is False

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    monkeypatch.setattr(Path, "iterdir", denied)
    for path in ("folder", "folder/readme.md"):
        assert reader(name).sniff(tmp_path / path) is False


@own_files
def test_tables_match_their_schema(name: str, make: Make, tmp_path: Path) -> None:
    """Every table, filled or not, has its columns and dtypes and is in its order."""
    profile = reader(name).read(make(tmp_path))
    assert name == profile.reader
    assert set(profile.loaders) <= set(TABLES) - {"CAPTURE"}
    for table, frame in frames(profile).items():
        assert frame is TABLES[table].check(frame)
        assert TABLES[table].column_names == list(frame.columns)
        pd.testing.assert_frame_equal(frame, TABLES[table].make(frame))


@own_files
def test_loaders_are_for_tables_with_rows(name: str, make: Make, tmp_path: Path) -> None:
    """A table is either there, with rows, or named as missing."""
    profile = reader(name).read(make(tmp_path))
    assert profile.loaders
    assert all(len(profile.table(table)) for table in profile.loaders)
    assert not {m.table for m in profile.missing} & set(profile.loaders)


@own_files
def test_reading_twice_is_equal_and_leaves_the_input(name: str, make: Make, tmp_path: Path) -> None:
    """Two readings give the same tables; the files are as before and no file is left beside them."""
    path = make(tmp_path)
    before = contents(path)
    first, second = (frames(reader(name).read(path)) for _ in range(2))
    for table in TABLES:
        pd.testing.assert_frame_equal(first[table], second[table], check_exact=True)
    assert before == contents(path)


@pytest.mark.parametrize(("make", "said"), CUTS)
@pytest.mark.parametrize("part", ["64 bytes", "the first half", "all but one byte"])
def test_a_cut_file_is_an_error_that_names_it(make: Make, said: str | None, part: str, tmp_path: Path) -> None:
    """Damaged is not absent: whichever file is cut, reading all of the profile raises ReadError with its path.

    Or its notes say so, where a file that ends early is no damage.
    """
    path = make(tmp_path)
    for file in files(path):
        whole = file.read_bytes()
        size = {"64 bytes": 64, "the first half": len(whole) // 2, "all but one byte": len(whole) - 1}[part]
        file.write_bytes(whole[:size])
        if said and part != "64 bytes":
            assert any(said in note for note in perfkit.load(path).notes)
            continue
        with pytest.raises(ReadError) as caught:
            frames(perfkit.load(path).profiles[0])
        assert str(file) in str(caught.value)
        file.write_bytes(whole)


@own_files
def test_times_are_whole_and_durations_are_not_negative(name: str, make: Make, tmp_path: Path) -> None:
    """No interval ends before it starts, and every profile starts with rank 0."""
    for frame in frames(reader(name).read(make(tmp_path))).values():
        assert "dur_ns" not in frame or not (frame["dur_ns"] < 0).any()
        assert (frame["rank"] == 0).all()


@pytest.mark.parametrize("family", MUTATED)
def test_a_mutated_input_is_read_or_refused_by_name(family: str, profiles: Path) -> None:
    """Whatever is in a file, its tables match their schema, or an error begins with its path; a loss is noted."""
    folders = sorted((profiles / "broken").glob(f"{family}--*"))
    assert folders
    for folder in folders:
        (path,) = (item for item in folder.iterdir() if item.name != "INFO.txt")
        notes, refusal = _read_whole(path)
        assert not refusal or refusal.startswith(str(path))
        assert notes or refusal or "oracle" not in folder.name


def _read_whole(path: Path) -> tuple[tuple[str, ...], str]:
    """Read every table of a run and return its notes, or the message with which it is refused."""
    try:
        run = perfkit.load(path)
        for name, table in TABLES.items():
            table.check(run.table(name))
    except ReadError as e:
        return (), str(e)
    return run.notes, ""

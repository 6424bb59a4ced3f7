"""Reports (.nsys-rep): exported by the user's own nsys, which here is a script."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest
from readers import nsys_files as made

import perfkit
from perfkit.errors import ReadError
from perfkit.readers import nsys

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
    ],
)
def test_a_failed_export_says_nsys_last_words(report: Path, temporary: Path, script: str, words: str) -> None:
    """When nsys fails, or says it did not and wrote nothing, the error holds its last line; nothing is left."""
    install(report.parent, script)
    with pytest.raises(ReadError, match=rf"my run.nsys-rep: `nsys export .*` failed with {words}"):
        perfkit.load(report)
    assert [] == list(temporary.iterdir())


@scripts
def test_an_export_that_is_cut_is_damage(report: Path, temporary: Path) -> None:
    """An nsys that stops half-way leaves a file that is refused."""
    install(report.parent, 'printf "SQLite format 3" > "$target"')
    with pytest.raises(ReadError, match=r"my run.nsys-rep: the database is damaged"):
        perfkit.load(report)
    assert [] == list(temporary.iterdir())


@scripts
def test_a_program_that_cannot_run_is_an_error(report: Path, temporary: Path) -> None:
    """A file called nsys that the system cannot start is named with its error; nothing is left."""
    program = report.parent / "bin" / "nsys"
    program.write_bytes(b"\x7fELF" + bytes(100))
    program.chmod(0o755)
    with pytest.raises(ReadError, match=r"my run.nsys-rep: `nsys export .*` cannot be run \("):
        perfkit.load(report)
    assert [] == list(temporary.iterdir())


@scripts
def test_nsys_gets_no_answer_to_a_question(report: Path) -> None:
    """An nsys that waits for an answer reads the end of its input instead."""
    install(report.parent, "read answer; echo 'no answer' >&2; exit 4")
    with pytest.raises(ReadError, match="status 4: no answer"):
        perfkit.load(report)


@scripts
def test_last_words_are_one_short_line(report: Path) -> None:
    """What nsys prints is shown without control characters, and not at any length."""
    install(report.parent, "printf '\\033[31mred %01000d' 5 >&2; exit 1")
    with pytest.raises(ReadError, match=r"status 1: \?\[31mred 0+\. A report") as error:
        perfkit.load(report)
    assert len(str(error.value)) < 1000

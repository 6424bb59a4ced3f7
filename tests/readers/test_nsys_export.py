"""Reports of Nsight Systems, which `nsys` exports where it is installed."""

import os
import subprocess
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
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    path = tmp_path / "my run.nsys-rep"
    path.write_bytes(b"NVIDIA Tegra Profiler Report 1.20\n" + bytes(100))
    return path


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


def install(folder: Path, content: str) -> None:
    """Put a fake nsys on PATH: a program, or a script that finds its -o target in $5."""
    program = content if content.startswith("\x7f") else f"#!/bin/sh\n{content}\n"
    (folder / "bin" / "nsys").write_text(program)
    (folder / "bin" / "nsys").chmod(0o755)


def exporting(report: Path) -> str:
    export = made.sqlite(report.with_name("answer"), made.capture())
    return f'test "$1 $2 $3 $4 $6" = "export -t sqlite -o {report}" && /bin/cp "{export}" "$5"'


def test_files_are_claimed_by_their_content(tmp_path: Path) -> None:
    path = tmp_path / "report.bin"
    for magic in (
        b"NVIDIA Tegra Profiler Report 1.20",
        b"NVIDIA Tegra Profiler Report 1.",
    ):  # .nsys-rep and old .qdrep
        path.write_bytes(magic)
        assert nsys.sniff(path)
    # nvprof's tables are called alike and have other columns: it keeps its texts in StringTable.
    tables = {made.RUNTIME: [{"_id_": 1, "cbid": 2}], "StringTable": [{"_id_": 1, "value": "x"}]}
    assert not nsys.sniff(made.sqlite(tmp_path / "old.sqlite", tables))


def test_without_nsys_the_error_is_the_command(report: Path) -> None:
    command = "`nsys export -t sqlite -o 'my run.sqlite' 'my run.nsys-rep'`"
    with pytest.raises(ReadError, match=rf"my run.nsys-rep: .*`nsys` is not on PATH.*{command}"):
        perfkit.load(report)


@scripts
def test_with_nsys_a_report_is_loaded_once_and_its_export_goes_away(
    report: Path, temporary: Path
) -> None:
    install(report.parent, exporting(report))
    profile = nsys.read(report)
    if not (pid := os.fork()):
        del profile  # in a process that was forked: this one still reads
        os._exit(0)
    os.waitpid(pid, 0)
    assert 1 == len(list(temporary.iterdir()))
    assert 2 == len(profile.table("KERNELS"))
    del profile
    assert [] == list(temporary.iterdir())
    before = sorted(report.parent.iterdir())
    run = perfkit.load(report)
    assert (2, 2, 2) == (len(run.kernels), len(run.ranges), len(run.api_calls))
    assert [str(report)] == run.capture["path"].tolist()
    assert before == sorted(report.parent.iterdir())
    (report.parent / "bin" / "nsys").unlink()
    assert run.kernels.equals(perfkit.load(report).kernels)  # the cache needs no nsys


@scripts
def test_the_command_exports_each_recording_of_a_report_once(report: Path, temporary: Path) -> None:
    (earlier := report.with_name("earlier.nsys-rep")).write_bytes(report.read_bytes())
    install(
        report.parent,
        f'echo "$6" >>log; /bin/cp "{made.sqlite(report.with_name("answer"), made.capture())}" "$5"',
    )
    command = [sys.executable, "-m", "perfkit", "report", report, "--baseline", earlier]
    own = {"TMPDIR": str(temporary), "PERFKIT_CACHE": "off"}
    subprocess.run(command, check=True, cwd=report.parent, env={**os.environ, **own})
    assert f"{report}\n{earlier}\n" == report.with_name("log").read_text()
    assert [] == list(temporary.iterdir())


FAILED = r"`nsys export .*` failed with status "


@scripts
@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            "echo one >&2; echo 'unsupported version' >&2; exit 3",
            FAILED + "3: unsupported version. A report newer",
        ),
        ("echo 'on standard output'; exit 1", FAILED + "1: on standard output"),
        ("exit 2", FAILED + "2: no message"),
        ("exit 0", FAILED + "0: no message"),
        (
            "read answer; echo 'no answer' >&2; exit 4",
            FAILED + "4: no answer",
        ),  # it asks, and its input ends
        ("printf '\\033[31mred %01000d' 5 >&2; exit 1", FAILED + r"1: \?\[31mred 0+\. A report"),
        ("\x7fELF" + "\0" * 100, r"`nsys export .*` cannot be run \("),
        ('printf "SQLite format 3" > "$5"', "the database is damaged"),  # half an export
    ],
)
def test_a_failed_export_says_nsys_last_words(
    report: Path, temporary: Path, script: str, words: str
) -> None:
    install(report.parent, script)
    with pytest.raises(ReadError, match=rf"my run.nsys-rep: {words}") as error:
        perfkit.load(report)
    assert len(str(error.value)) < 1000
    assert [] == list(temporary.iterdir())

"""The command: what it prints, what it refuses, and that a refusal leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import perfkit
from make import Shape, capture
from perfkit.cli import main
from perfkit.report.experiments import SAMPLES
from perfkit.report.notebooks import sample


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated capture of 400 kernels on two GPUs."""
    path = tmp_path_factory.mktemp("run") / "run.sqlite"
    capture(path, kernels=400, shape=Shape(gpus=2))
    return path


def perfkit_command(*arguments: object) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, [str(a) for a in arguments])


def test_inspect_says_what_is_there(run: Path) -> None:
    """Rows of each table, the tool and the GPUs."""
    result = perfkit_command("inspect", run)
    assert 0 == result.exit_code
    assert "400 kernels" in result.output
    assert "Nsight Systems 2023.4.4.54" in result.output


def test_inspect_says_what_is_missing(tmp_path: Path) -> None:
    """A capture without ranges and metrics says which options record them."""
    capture(tmp_path / "bare.sqlite", kernels=10, shape=Shape(nvtx=False, metrics=False))
    result = perfkit_command("inspect", tmp_path / "bare.sqlite")
    assert "--gpu-metrics-devices=all" in result.output
    assert "nvtx" in result.output


def test_inspect_json_holds_the_same(run: Path) -> None:
    """--json gives rows, devices, missing and notes to programs."""
    content = json.loads(perfkit_command("inspect", run, "--json").output)
    assert 400 == content["profiles"][0]["rows"]["kernels"]
    assert {"schema", "profiles", "devices", "missing", "notes"} == set(content)
    assert 1 == content["schema"]


BROKEN = [
    ("empty.sqlite", b"", "empty .0 bytes."),
    ("pointer.sqlite", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git-LFS pointer"),
    ("text.sqlite", b"hello", "no reader recognises"),
]


@pytest.mark.parametrize(("name", "content", "message"), BROKEN, ids=[b[0] for b in BROKEN])
def test_broken_input_is_one_line_and_status_2(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    """The error names the file, goes to standard error, and no report is begun."""
    path = tmp_path / name
    path.write_bytes(content)
    result = perfkit_command("report", path, "--out", tmp_path / "report")
    assert 2 == result.exit_code
    assert str(path) in result.stderr
    assert message.split(".")[0] in result.stderr
    assert [name] == [p.name for p in tmp_path.iterdir()]


def test_cut_file_is_refused(tmp_path: Path, run: Path) -> None:
    """Half of a capture says how much is missing."""
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(run.read_bytes()[: run.stat().st_size // 2])
    result = perfkit_command("report", cut, "--out", tmp_path / "report")
    assert 2 == result.exit_code
    assert "the file is cut" in result.stderr
    assert not (tmp_path / "report").exists()


def test_folder_with_nothing_known_is_refused(tmp_path: Path) -> None:
    """A folder of other files names what perfkit reads."""
    (tmp_path / "notes.txt").write_text("hello")
    result = perfkit_command("inspect", tmp_path)
    assert (2, True) == (result.exit_code, "nothing in this folder is a profile" in result.stderr)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--window", "100s:200s"], "reaches beyond the recording"),
        (["--gpus", "7"], "no activity on GPU 7. Choose from 0, 1"),
        (["--kernels", "nonesuch"], "kernel names contains 'nonesuch'"),
        (["--window", "5:7"], "no time with a unit"),
        (["--window", "5s"], "is not START:END"),
        (["--gpus", "one"], "is no list of numbers"),
    ],
)
def test_choice_that_does_not_fit_is_refused(tmp_path: Path, run: Path, options: list[str], message: str) -> None:
    """Window, GPUs and kernels are checked before anything is written."""
    result = perfkit_command("report", run, "--out", tmp_path / "report", *options)
    assert 2 == result.exit_code
    assert message in result.stderr
    assert [] == list(tmp_path.iterdir())


def test_report_replaces_only_a_report(tmp_path: Path, run: Path) -> None:
    """A folder of the user's own is never overwritten."""
    (tmp_path / "thesis.tex").write_text("years of work")
    result = perfkit_command("report", run, "--out", tmp_path)
    assert (2, True) == (result.exit_code, "holds files that perfkit did not write (thesis.tex)" in result.stderr)
    assert (tmp_path / "thesis.tex").exists()


def test_samples_are_listed() -> None:
    """Without a name, each sample of data/ has its line; the makers are no sample."""
    result = perfkit_command("sample")
    data = sample().parent
    folders = {
        each.name for each in data.iterdir() if each.is_dir() and any(file.is_file() for file in each.rglob("*"))
    }
    assert 0 == result.exit_code
    assert (folders - {"make", "grafana"}) | {"experiments"} == {line.split()[0] for line in result.stdout.splitlines()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonesuch"], "nonesuch: no such sample. Choose from mlp_a100, "),
        (["../data"], "../data: no such sample."),
        (["--out", "folder"], "--out: which sample? Choose from mlp_a100, "),
    ],
)
def test_unknown_samples_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    """The message names the samples, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    result = perfkit_command("sample", *arguments)
    assert (2, True) == (result.exit_code, message in result.stderr)
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("name", sorted(SAMPLES.keys() - {"experiments"}))
def test_a_sample_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The copy has the bytes of data/ in a folder of the sample's name."""
    monkeypatch.chdir(tmp_path)
    result = perfkit_command("sample", name)
    assert (0, f"{name}\n") == (result.exit_code, result.stdout)
    original = {file.relative_to(sample(name)): file for file in sample(name).rglob("*") if file.is_file()}
    made = {file.relative_to(tmp_path / name): file for file in (tmp_path / name).rglob("*") if file.is_file()}
    assert original.keys() == made.keys() - {Path(".perfkit.json")}
    assert all(file.read_bytes() == made[path].read_bytes() for path, file in original.items())


def test_a_copied_sample_loads_and_is_replaced(tmp_path: Path) -> None:
    """The sample has 14,245 kernels of 28 names, as Table 5 of the lab report; a changed file of a copy is kept."""
    for _ in range(2):
        result = perfkit_command("sample", "mlp_a100", "--out", tmp_path / "mlp")
        assert 0 == result.exit_code
        kernels = perfkit.load(tmp_path / "mlp").kernels
        assert (14_245, 28) == (len(kernels), kernels["full_name"].nunique())
        (tmp_path / "mlp" / "mlp_a100.truth.json").write_text("mine")
    assert "mine" == (tmp_path / "mlp" / "mlp_a100.truth.yours.json").read_text()


def test_command_is_installed() -> None:
    """`perfkit --version` runs as a program of its own."""
    program = Path(sys.executable).with_name("perfkit")
    done = subprocess.run([program, "--version"], capture_output=True, text=True, env=os.environ, check=True)
    assert "perfkit, version" in done.stdout

"""The command line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

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


@pytest.mark.parametrize(("command", "options"), [("inspect", []), ("report", ["--out", "report"])])
def test_broken_input_is_one_line_and_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, options: list[str]
) -> None:
    """The error names the file, goes to standard error, and no report is begun."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "empty.sqlite"
    path.write_bytes(b"")
    result = perfkit_command(command, path, *options)
    assert (2, 1) == (result.exit_code, result.stderr.count("\n"))
    assert f"{path}: the file is empty (0 bytes)" in result.stderr
    assert [path] == list(tmp_path.iterdir())


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


LABELS = "\x1b[31mbefore,<script>alert(1)</script>,a|b`c`"


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture of 20 steps of 28 kernels."""
    return _captured(tmp_path_factory.mktemp("fast") / "fast.sqlite", 28)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture of 20 steps of twice as many kernels."""
    return _captured(tmp_path_factory.mktemp("slow") / "slow.sqlite", 56)


def _captured(path: Path, kernels: int) -> Path:
    capture(path, kernels=20 * kernels, shape=Shape(kernels_per_step=kernels))
    return path


def test_compare_two_runs(fast: Path, slow: Path) -> None:
    """The verdict on the median step, kernel time by family, and the figures, the worse ones first."""
    result = perfkit_command("compare", fast, slow)
    lines = result.output.splitlines()
    assert 0 == result.exit_code
    assert ["fast.sqlite: fast.sqlite", "slow.sqlite: slow.sqlite", ""] == lines[:3]
    assert lines[3].startswith("The median step takes ")
    assert ": worse (ratio " in lines[3]
    assert "a step has 28 kernels before and 56 after: the work may differ" in lines[3]
    heads = [line.split("  ")[0] for line in lines]
    assert heads.index("kernel time per step") < heads.index("figure")
    assert lines[heads.index("figure") + 1].endswith("worse")


def test_compare_a_series_writes_a_page(fast: Path, slow: Path, tmp_path: Path) -> None:
    """Three runs are a ledger, in the text, the JSON and a page; labels that want to be code are text."""
    out = tmp_path / "ledger"
    result = perfkit_command("compare", fast, slow, fast, "--labels", LABELS, "--out", out)
    assert 0 == result.exit_code
    assert "against the run before" in result.output
    assert "\x1b" not in result.output
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "Step time, one change at a time" in page
    assert "<script>alert(1)" not in page
    assert "all changes together" in page
    content = json.loads((out / "comparison.json").read_text(encoding="utf-8"))
    assert LABELS.split(",") == content["labels"]
    assert [None, "worse", "better"] == [row["verdict"] for row in content["ledger"]]
    assert 1.0 == content["ledger"][2]["speedup"]
    assert 0 == perfkit_command("compare", fast, slow, "--out", out).exit_code


def test_a_page_of_a_comparison_holds_no_path(fast: Path, slow: Path, tmp_path: Path) -> None:
    """Two runs of one name are told apart without the folders they lie in on this machine."""
    given = [shutil.copytree(run.parent, tmp_path / f"home-of-{run.stem}" / "run") for run in (fast, slow)]
    out = tmp_path / "ledger"
    assert 0 == perfkit_command("compare", *given, "--out", out).exit_code
    text = "".join(file.read_text() for file in (out / "index.html", out / "comparison.json"))
    assert "home-of-" not in text
    assert str(tmp_path) not in text
    assert "run" in json.loads((out / "comparison.json").read_text())["labels"][0]


def test_compare_json(fast: Path) -> None:
    """--json prints nothing but JSON; of so few steps the interval allows both verdicts, even of a run and itself."""
    content = json.loads(perfkit_command("compare", fast, fast, "--json").output)
    assert {"cannot tell"} == {row["verdict"] for row in content["steps"]}
    assert all(row["ratio_low"] < 1 < row["ratio_high"] for row in content["steps"])
    assert ["1: fast.sqlite", "2: fast.sqlite"] == content["labels"]
    assert 1 == content["schema"]


def test_runs_of_one_label_are_repeats(fast: Path, slow: Path) -> None:
    """Three repeats on each side give every figure that all have an interval."""
    runs = [fast, fast, fast, slow, slow, slow]
    content = json.loads(perfkit_command("compare", *runs, "--labels", "a,a,a,b,b,b", "--json").output)
    assert ["a", "b"] == content["labels"]
    figures = {row["id"]: row for row in content["figures"]}
    assert figures["device_busy_frac"]["ratio_low"] is not None


def test_compare_refuses(fast: Path, tmp_path: Path) -> None:
    """One run, too few labels, one label for all, and a folder with other things are refused with status 2."""
    (tmp_path / "mine").write_text("mine")
    for arguments, message in (
        ([fast], "Give two, such as before and after."),
        ([fast, fast, "--labels", "a"], "1 labels for 2 runs. Give each run one."),
        ([fast, fast, "--labels", "a,a"], "there is one run or label, a."),
        ([fast, fast, "--out", tmp_path], "holds files that perfkit did not write (mine)."),
        ([fast, tmp_path / "none"], "no such file or folder"),
    ):
        result = perfkit_command("compare", *arguments)
        assert (2, True) == (result.exit_code, message in result.output), result.output
    assert ["mine"] == [path.name for path in tmp_path.iterdir()]


def test_check_passes(fast: Path) -> None:
    """A run against itself passes with status 0."""
    result = perfkit_command("check", fast, "--baseline", fast)
    assert (0, True) == (result.exit_code, result.output.startswith("PASS: baseline: of "))


def test_check_fails_and_writes_files(fast: Path, slow: Path, tmp_path: Path) -> None:
    """Longer steps give status 1; the JUnit file parses and counts the failures, the JSON says the same."""
    files = [tmp_path / name for name in ("check.xml", "check.json")]
    result = perfkit_command("check", slow, "--baseline", fast, "--junit", files[0], "--json", files[1])
    assert (1, True) == (result.exit_code, result.output.startswith("FAIL: "))
    suite = ElementTree.parse(files[0]).getroot()[0]
    verdicts = json.loads(files[1].read_text(encoding="utf-8"))["verdicts"]
    failed = [verdict["id"] for verdict in verdicts if verdict["outcome"] == "fail"]
    assert "step_median_ns" in failed
    assert str(len(failed)) == suite.attrib["failures"]


def test_check_against_a_budget(fast: Path, tmp_path: Path) -> None:
    """The README's form of a budget: without a baseline its limits alone decide; what the run lacks is status 2."""
    budget = tmp_path / "budget.toml"
    for text, status in (
        ("tolerance = 0.05\nfigures.step_median_ns = { tolerance = 0.02, max = 160e9 }\n", 0),
        ("figures.step_median_ns = { max = 1 }\nfigures.family_copy_ns = { ignore = true }\n", 1),
        ("figures.mfu_frac = { min = 0.4 }\n", 2),
        ("figures.mfu_frac = { minimum = 0.4 }\n", 2),
    ):
        budget.write_text(text)
        assert status == perfkit_command("check", fast, "--budget", budget).exit_code


def test_check_cannot_tell(fast: Path, tmp_path: Path) -> None:
    """No baseline, one that is not there, and a file that cannot be written give status 2, never 1."""
    for arguments in ([], ["--baseline", tmp_path / "none"], ["--baseline", fast, "--junit", tmp_path / "no" / "x"]):
        result = perfkit_command("check", fast, *arguments)
        assert (2, True) == (result.exit_code, "perfkit: " in result.output)


def test_real_runs(profiles: Path) -> None:
    """A database of HPCToolkit passes against itself; a loader without workers is worse than one with four."""
    database = profiles / "hpctoolkit/hpctoolkit-dlrm-gpu-database"
    loaders = [
        profiles / f"torch/kineto__resnet50_num_workers_{name}.pt.trace.json.gz"
        for name in ("0__worker0.1623143566756", "4__worker0.1623213129365")
    ]
    assert 0 == perfkit_command("check", database, "--baseline", database).exit_code
    assert 1 == perfkit_command("check", loaders[0], "--baseline", loaders[1]).exit_code
    assert "The runs share no steps" in perfkit_command("compare", database, database).output


def test_help_needs_no_pandas() -> None:
    """What prints its help imports neither pandas nor numpy, which take most of the time of a short command."""
    script = (
        "import sys; from perfkit.cli import main; main(['--help'], standalone_mode=False); "
        "print({'pandas', 'numpy', 'pyarrow'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "set()" == done.stdout.splitlines()[-1]

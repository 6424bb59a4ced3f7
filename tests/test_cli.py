"""The command line."""

import json
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
    return CliRunner().invoke(main, [str(a) for a in arguments])


def test_inspect_says_what_is_there_and_what_is_missing(run: Path, tmp_path: Path) -> None:
    result = perfkit_command("inspect", run)
    assert 0 == result.exit_code
    assert "400 kernels" in result.output
    assert "Nsight Systems 2023.4.4.54" in result.output
    capture(tmp_path / "bare.sqlite", kernels=10, shape=Shape(nvtx=False, metrics=False))
    result = perfkit_command("inspect", tmp_path / "bare.sqlite")
    assert "--gpu-metrics-devices=all" in result.output
    assert "nvtx" in result.output
    content = json.loads(perfkit_command("inspect", run, "--json").output)
    assert 400 == content["profiles"][0]["rows"]["kernels"]
    assert {"schema", "profiles", "devices", "missing", "doubts", "notes"} == set(content)
    assert 1 == content["schema"]


def test_inspect_says_what_makes_a_recording_doubtful(tmp_path: Path) -> None:
    capture(tmp_path / "few.sqlite", kernels=4)
    lines = perfkit_command("inspect", tmp_path / "few.sqlite").output.splitlines()
    (doubt,) = (line for line in lines if line.startswith("doubt: "))
    assert doubt.startswith("doubt: too little work to judge: The recording holds only")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "EMPTY"], "empty.sqlite: the file is empty (0 bytes)"),
        (["report", "EMPTY", "--out", "report"], "empty.sqlite: the file is empty (0 bytes)"),
        (
            ["report", "RUN", "--out", "report", "--window", "100s:200s"],
            "reaches beyond the recording",
        ),
        (
            ["report", "RUN", "--out", "report", "--gpus", "7"],
            "no activity on GPU 7. Choose from 0, 1",
        ),
        (
            ["report", "RUN", "--out", "report", "--kernels", "nonesuch"],
            "kernel names contains 'nonesuch'",
        ),
        (
            ["report", "RUN", "--out", "report", "--window", "2s:1s"],
            "window: 2.00 s to 1.00 s does not end after its start. Give the start first.",
        ),
        (["report", "RUN", "--out", "report", "--window", "5:7"], "no time with a unit"),
        (["report", "RUN", "--out", "report", "--window", "5s"], "is not a start and a later end"),
        (["report", "RUN", "--out", "report", "--gpus", "one"], "is no list of numbers"),
        (["sample", "nonesuch"], "nonesuch: no such sample. Choose from h100_copies, "),
        (["sample", "../data"], "../data: no such sample."),
        (["sample", "--out", "folder"], "--out: which sample? Choose from h100_copies, "),
        (["compare", "RUN"], "Give two, such as before and after."),
        (["compare", "RUN", "RUN", "--labels", "a"], "1 labels for 2 runs. Give each run one."),
        (["compare", "RUN", "RUN", "--labels", "a,a"], "there is one run or label, a."),
        (
            ["compare", "RUN", "RUN", "--out", "mine"],
            "holds files that perfkit did not write (empty.sqlite).",
        ),
        (["compare", "RUN", "none"], "no such file or folder"),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Path, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    empty = tmp_path / "mine" / "empty.sqlite"
    empty.parent.mkdir()
    empty.write_bytes(b"")
    places = {"RUN": run, "EMPTY": empty}
    result = perfkit_command(*(places.get(argument, argument) for argument in arguments))
    assert (2, True) == (result.exit_code, message in result.stderr), result.stderr
    assert "EMPTY" not in arguments or 1 == result.stderr.count("\n")
    assert [empty.parent, empty] == sorted(tmp_path.rglob("*"))


def test_samples_are_listed() -> None:
    result = perfkit_command("sample")
    data = sample().parent
    folders = {file.relative_to(data).parts[0] for file in data.rglob("*/*") if file.is_file()}
    assert 0 == result.exit_code
    assert (folders - {"make", "grafana"}) | {"experiments"} == {
        line.split()[0] for line in result.stdout.splitlines()
    }


def test_measured_samples_are_listed_before_simulated_ones() -> None:
    kinds = [what.partition(":")[0] for what in SAMPLES.values()]
    assert ["measured", "simulated"] == list(dict.fromkeys(kinds))
    assert sorted(kinds) == kinds


@pytest.mark.parametrize("name", sorted(name for name in SAMPLES if name != "experiments"))
def test_a_sample_says_whether_it_was_measured(name: str) -> None:
    """Of a folder of runs the first one is looked at."""
    folder = sample(name)
    inner = [each for each in sorted(folder.iterdir()) if each.is_dir()]
    is_of_runs = not any(each.is_file() for each in folder.iterdir())
    run = perfkit.load(inner[0] if is_of_runs else folder)
    assert SAMPLES[name].startswith("simulated") == run.is_simulated


@pytest.mark.parametrize("name", sorted(SAMPLES.keys() - {"experiments"}))
def test_a_sample_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    result = perfkit_command("sample", name)
    assert (0, f"{name}\n") == (result.exit_code, result.stdout)
    original = {
        file.relative_to(sample(name)): file for file in sample(name).rglob("*") if file.is_file()
    }
    made = {
        file.relative_to(tmp_path / name): file
        for file in (tmp_path / name).rglob("*")
        if file.is_file()
    }
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


LABELS = "\x1b[31mbefore,<script>alert(1)</script>,a|b`c`"


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture of 20 steps of 28 kernels."""
    path = tmp_path_factory.mktemp("fast") / "fast.sqlite"
    capture(path, kernels=20 * 28, shape=Shape(kernels_per_step=28))
    return path


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture of 20 steps of twice as many kernels."""
    path = tmp_path_factory.mktemp("slow") / "slow.sqlite"
    capture(path, kernels=20 * 56, shape=Shape(kernels_per_step=56))
    return path


def test_compare_two_runs(fast: Path, slow: Path) -> None:
    result = perfkit_command("compare", fast, slow)
    lines = result.output.splitlines()
    assert 0 == result.exit_code
    assert ["fast.sqlite", "slow.sqlite", ""] == lines[:3]
    assert lines[3].startswith("The median step takes ")
    assert ": worse (ratio " in lines[3]
    assert "a step has 28 kernels before and 56 after: the work may differ" in lines[3]
    heads = [line.split("  ")[0] for line in lines]
    assert heads.index("kernel time per step") < heads.index("figure")
    assert lines[heads.index("figure") + 1].endswith("worse")


def test_compare_writes_markdown(fast: Path, slow: Path, tmp_path: Path) -> None:
    file = tmp_path / "comment.md"
    assert 0 == perfkit_command("compare", fast, slow, "--markdown", file).exit_code
    head = file.read_text(encoding="utf-8").splitlines()[:2]
    assert [
        "<!-- perfkit compare -->",
        "### perfkit compare: slow.sqlite against fast.sqlite",
    ] == head


def test_compare_a_series_writes_a_page(fast: Path, slow: Path, tmp_path: Path) -> None:
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
    given = [
        shutil.copytree(run.parent, tmp_path / f"home-of-{run.stem}" / "run")
        for run in (fast, slow)
    ]
    out = tmp_path / "ledger"
    assert 0 == perfkit_command("compare", *given, "--out", out).exit_code
    text = "".join(file.read_text() for file in (out / "index.html", out / "comparison.json"))
    assert "home-of-" not in text
    assert str(tmp_path) not in text
    assert "run" in json.loads((out / "comparison.json").read_text())["labels"][0]


def test_compare_json_and_repeats(fast: Path, slow: Path) -> None:
    content = json.loads(perfkit_command("compare", fast, fast, "--json").output)
    assert {"cannot tell"} == {row["verdict"] for row in content["steps"]}
    assert all(row["ratio_low"] < 1 < row["ratio_high"] for row in content["steps"])
    assert ["1: fast.sqlite", "2: fast.sqlite"] == content["labels"]
    assert 1 == content["schema"]
    runs = [fast, fast, fast, slow, slow, slow]
    content = json.loads(
        perfkit_command("compare", *runs, "--labels", "a,a,a,b,b,b", "--json").output
    )
    assert ["a", "b"] == content["labels"]
    figures = {row["id"]: row for row in content["figures"]}
    assert figures["device_busy_frac"]["ratio_low"] is not None


def test_check_passes_fails_and_writes_files(fast: Path, slow: Path, tmp_path: Path) -> None:
    result = perfkit_command("check", fast, "--baseline", fast)
    assert (0, True) == (result.exit_code, result.output.startswith("PASS: baseline: of "))
    files = [tmp_path / name for name in ("check.xml", "check.json")]
    result = perfkit_command(
        "check", slow, "--baseline", fast, "--junit", files[0], "--json", files[1]
    )
    assert (1, True) == (result.exit_code, result.output.startswith("FAIL: "))
    suite = ElementTree.parse(files[0]).getroot()[0]
    verdicts = json.loads(files[1].read_text(encoding="utf-8"))["verdicts"]
    failed = [verdict["id"] for verdict in verdicts if verdict["outcome"] == "fail"]
    assert "step_median_ns" in failed
    assert str(len(failed)) == suite.attrib["failures"]


def test_check_against_a_budget_or_nothing(fast: Path, tmp_path: Path) -> None:
    budget = tmp_path / "budget.toml"
    for text, status in (
        ("tolerance = 0.05\nfigures.step_median_ns = { tolerance = 0.02, max = 160e9 }\n", 0),
        ("figures.step_median_ns = { max = 1 }\nfigures.family_copy_ns = { ignore = true }\n", 1),
        *(("figures.mfu_frac = { min = 0.4 }\n", 2), ("figures.mfu_frac = { minimum = 0.4 }\n", 2)),
    ):
        budget.write_text(text)
        assert status == perfkit_command("check", fast, "--budget", budget).exit_code
    for arguments in (
        [],
        ["--baseline", tmp_path / "none"],
        ["--baseline", fast, "--junit", tmp_path / "no" / "x"],
    ):
        result = perfkit_command("check", fast, *arguments)
        assert (2, True) == (result.exit_code, "perfkit: " in result.output)


def test_real_runs(profiles: Path) -> None:
    database = profiles / "hpctoolkit/hpctoolkit-dlrm-gpu-database"
    names = ("0__worker0.1623143566756", "4__worker0.1623213129365")
    loaders = [
        profiles / f"torch/kineto__resnet50_num_workers_{name}.pt.trace.json.gz" for name in names
    ]
    assert 0 == perfkit_command("check", database, "--baseline", database).exit_code
    assert 1 == perfkit_command("check", loaders[0], "--baseline", loaders[1]).exit_code
    assert "The runs share no steps" in perfkit_command("compare", database, database).output


def test_command_is_installed_and_its_help_needs_no_pandas() -> None:
    script = "import sys; from perfkit.cli import main; main(['--help'], standalone_mode=False); "
    script += "print({'pandas', 'numpy', 'pyarrow'} & {*sys.modules})"
    commands = (
        [Path(sys.executable).with_name("perfkit"), "--version"],
        [sys.executable, "-c", script],
    )
    version, needed = (
        subprocess.run(each, capture_output=True, text=True, check=True).stdout for each in commands
    )
    assert "perfkit, version" in version
    assert "set()" == needed.splitlines()[-1]


def test_a_wrong_path_is_refused_before_pandas_is_imported() -> None:
    script = """
import sys
from perfkit.cli import main
try:
    main(["report", "WRONG"])
except SystemExit as end:
    print(end.code, {"pandas", "numpy", "pyarrow", "altair"} & {*sys.modules})
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "perfkit: WRONG: no such file or folder. Check the path.\n" == done.stderr
    assert "2 set()\n" == done.stdout


def test_help_of_a_command_is_no_fault_of_perfkit() -> None:
    answer = CliRunner().invoke(main, ["report", "--help"])
    assert answer.exit_code == 0
    assert "a fault of perfkit" not in answer.output

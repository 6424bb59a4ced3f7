"""`perfkit compare` and `perfkit check`: what they print and write, and their exit status."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from make import Shape, capture
from perfkit.cli import main

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


def perfkit_command(*arguments: object) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, [str(a) for a in arguments])


def test_compare_two_runs(fast: Path, slow: Path) -> None:
    """The verdict on the median step, kernel time by family, and the figures, the worse ones first."""
    result = perfkit_command("compare", fast, slow)
    lines = result.output.splitlines()
    assert 0 == result.exit_code
    assert ["fast.sqlite: fast.sqlite", "slow.sqlite: slow.sqlite", ""] == lines[:3]
    assert lines[3].startswith("The median step takes ")
    assert ": worse (ratio " in lines[3]
    assert "a step has 28 kernels before and 56 after: is it the same work?" in lines[3]
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
    """--json prints nothing but JSON; a run and itself show no difference."""
    content = json.loads(perfkit_command("compare", fast, fast, "--json").output)
    assert {"no difference seen"} == {row["verdict"] for row in content["steps"]}
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
    assert (0, True) == (result.exit_code, result.output.startswith("PASS: none of "))


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
    assert "No step times compare" in perfkit_command("compare", database, database).output

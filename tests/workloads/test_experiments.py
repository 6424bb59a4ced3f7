"""Experiments: what their runs differ in, the commands, and a pair that is recorded and compared."""

import os
import re
import shlex
import statistics
import sys
from contextlib import redirect_stderr
from dataclasses import asdict
from io import StringIO
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

import perfkit
from make import simulate as simulated
from perfkit.analysis import compare, steps
from perfkit.cli import main as perfkit_command
from perfkit.errors import PerfkitError
from perfkit.report.experiments import compared, trials
from perfkit.workloads import DEVICES, Loader, Plan, experiments
from perfkit.workloads.__main__ import _parser, _plan, main
from perfkit.workloads.experiments import EXPERIMENTS, find
from perfkit.workloads.running import TIMINGS

TINY = Plan("mlp", batches=(4,), steps=3, warm_up=1, traced=8, loader=Loader(resident=True))


@pytest.fixture
def tiny(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a few milliseconds."""
    monkeypatch.setattr(experiments, "BASES", {"cpu": TINY})


def test_topics_are_those_that_are_simulated() -> None:
    """Whoever has no GPU does the same experiments, and the series has as many changes."""
    assert [*simulated.PAIRS, "case"] == list(EXPERIMENTS)
    assert list(simulated.SERIES) == list(find("case").plans("cuda"))
    assert all(
        each.topic and each.question.endswith("?") and each.claim and each.look
        for each in EXPERIMENTS.values()
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_each_run_differs_from_the_one_before_in_one_thing(name: str, device: str) -> None:
    """Two changes at once could not be told apart; what is printed is what is run, in folders of their own.

    Traces have the steps without which runs cannot be compared.
    """
    lines, plans = EXPERIMENTS[name].lines(device, "my runs"), EXPERIMENTS[name].plans(device)
    for before, after in pairwise(map(asdict, plans.values())):
        assert [1] == [sum(before[key] != after[key] for key in before)]
    assert {device} == {plan.device for plan in plans.values()}
    assert min(plan.traced for plan in plans.values()) > 2 * compare.FEWEST
    given = [_parser().parse_args(shlex.split(line)[3:]) for line in lines.values()]
    assert list(plans.values()) == list(map(_plan, given))
    assert [Path("my runs", name, label) for label in plans] == [each.record for each in given]


def test_repeats_alternate() -> None:
    """All runs once, then all again, so that a machine that slows down slows both."""
    lines = EXPERIMENTS["case"].lines("cpu", "here", 3)
    labels = list(EXPERIMENTS["case"].plans("cpu"))
    assert [(label, repeat) for repeat in (1, 2, 3) for label in labels] == list(lines)
    folders = [Path(shlex.split(line)[-1]).name for line in lines.values()]
    assert [f"{label}-{repeat}" for repeat in (1, 2, 3) for label in labels] == folders


def test_repeats_are_found_in_their_order(tmp_path: Path) -> None:
    for name in ("batch 8-10", "batch 8-9", "batch 8-1", "batch 8-1-old", "batch 80-1", "before-1"):
        (tmp_path / name).mkdir()
    (tmp_path / "batch 8-2").write_text("a file")
    found = experiments.repeats_of("batch 8", tmp_path)
    assert ["batch 8-1", "batch 8-9", "batch 8-10"] == [path.name for path in found]
    assert [] == experiments.repeats_of("after", tmp_path)


def test_what_is_not_known_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for call, message in (
        (lambda: find("luck"), "experiment: 'luck' is not one of measuring, tensor"),
        (lambda: find("sync").plans("mps"), "device: 'mps' is not one of"),
        (lambda: find("sync").lines("cpu", "here", 0), "repeats: 0 is below 1"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(SystemExit):
        main(["experiment", "luck", "--print-commands"])
    assert "'luck' is not one of" in capsys.readouterr().err


def test_commands_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(
        ["experiment", "sync", "fusion", "--device", "cuda", "--out", "here", "--print-commands"]
    )
    said = capsys.readouterr().out.splitlines()
    assert [*EXPERIMENTS["sync"].lines("cuda", "here", experiments.REPEATS).values()] == said[1:7]
    assert "# Kernel fusion: " in said[7]


@pytest.fixture
def without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in the test's own process: importing PyTorch takes most of the time of a small one."""

    def run(argv: list[str], **_: Any) -> SimpleNamespace:
        assert [sys.executable, "-m", "perfkit.workloads"] == argv[:3]
        with redirect_stderr(StringIO()) as told:
            return SimpleNamespace(returncode=main(argv[3:]), stderr=told.getvalue())

    monkeypatch.setattr(experiments, "subprocess", SimpleNamespace(run=run))


@pytest.mark.usefixtures("without_processes")
def test_a_pair_with_repeats(
    tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Recorded in turn, compared as two groups: each value is the mean of three medians, the interval between runs.

    On a busy machine steps of 1 ms may differ so much that perfkit refuses to compare them; it names both then.
    """
    assert 0 == main(["experiment", "measuring", "--out", str(tmp_path), "--repeats", "3"])
    command = shlex.split(capsys.readouterr().out.splitlines()[-1])
    told = CliRunner().invoke(perfkit_command, command[1:])
    assert 0 == told.exit_code, told.output
    assert re.search(r"(The|A) median step (takes|took) ", told.output)
    assert "not between runs of one program" not in told.output
    found = trials("measuring", tmp_path)
    assert [3, 3] == [len(trial.every) for trial in found.values()]
    pairs = zip(*(trial.every for trial in found.values()), strict=True)
    recorded = [os.stat(each.path / TIMINGS).st_mtime_ns for pair in pairs for each in pair]
    assert sorted(recorded) == recorded
    medians = [[_median(each.steps) for each in trial.every] for trial in found.values()]
    row = compared(found).steps.iloc[0]
    assert [statistics.mean(side) for side in medians] == pytest.approx(
        [row["before_ns"], row["after_ns"]]
    )


def _median(found: pd.DataFrame) -> float:
    return float(statistics.median(steps.last_phase(steps.steady(found))["dur_ns"]))


@pytest.mark.usefixtures("without_processes")
def test_a_run_that_fails_is_told(tiny: None, tmp_path: Path) -> None:
    """The folder of the second run is taken: the message says which run, why, and what was called."""
    taken = tmp_path / "measuring" / "after-1"
    taken.mkdir(parents=True)
    (taken / "notes.txt").write_text("mine")
    with pytest.raises(
        PerfkitError,
        match=r"measuring, after-1: the run failed: .*not empty.*Its command: .*--seed 1",
    ):
        experiments.record(find("measuring"), "cpu", tmp_path)
    assert len(perfkit.load(tmp_path / "measuring" / "before-1").ranges)

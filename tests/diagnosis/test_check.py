"""Verdicts for continuous integration: against a baseline and against a budget."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from frames import kernels, ranges
from sampled import devices

import perfkit
from perfkit.diagnosis.check import Checked, check, load_budget
from perfkit.errors import PerfkitError, ReadError
from perfkit.profile import Profile
from perfkit.tables import CAPTURE

MS = 1_000_000
ABOUT = {"rank": [0], "tool": ["t"], "tool_version": [""], "path": ["p"], "t0_unix_ns": [None], "dur_ns": [10**9]}


def training(length: float = 10.0, *, copy: float = 1.0, count: int = 20, seed: int = 0) -> perfkit.Run:
    """Steps of so many ms with a GEMM of 4 ms, a copy kernel and a tiny softmax, all 1 % off by chance."""
    random, rows, spans, at = np.random.default_rng(seed), [], [], 0
    for step in range(count):
        wobble = random.normal(1, 0.01)
        whole = round(length * MS * wobble)
        for place, (family, dur) in enumerate((("gemm", 4.0), ("copy", copy), ("softmax", 0.001 * copy))):
            start = at + place * 4 * MS
            rows += [{"name": family, "family": family, "start_ns": start, "dur_ns": round(dur * MS * wobble)}]
        spans += [{"name": f"step {step}", "start_ns": at, "dur_ns": whole}]
        at += whole
    tables = {"KERNELS": kernels(*rows), "RANGES": ranges(*spans), "DEVICES": devices("A100")}
    loaders = {name: (lambda frame=frame: frame) for name, frame in tables.items()}
    return perfkit.Run([Profile("nsys", Path("p"), CAPTURE.make(pd.DataFrame(ABOUT)), loaders, ())])


def outcomes(found: Checked) -> dict[str, str]:
    """The outcome of each figure."""
    return {verdict.id: verdict.outcome for verdict in found.verdicts}


@pytest.fixture
def budget(tmp_path: Path) -> Path:
    """Where a budget lies."""
    return tmp_path / "budget.toml"


def test_an_equal_run_passes() -> None:
    """Another run of the program: step times and the two larger families are judged, and pass."""
    found = check(training(seed=1), training())
    assert {"step_median_ns", "step_mean_ns", "family_gemm_ns", "family_copy_ns"} == set(outcomes(found))
    assert ("pass", 0, "high") == (found.outcome, found.exit_code, found.confidence)


def test_a_slower_run_fails() -> None:
    """20 % longer steps fail, and come first; kernels that take as long pass."""
    found = check(training(12, seed=1), training())
    assert ["fail", "fail", "pass", "pass"] == [verdict.outcome for verdict in found.verdicts]
    assert ("fail", 1) == (found.outcome, found.exit_code)
    first = found.verdicts[0]
    assert "worse by more than 5.0 %" in first.reason
    assert "at most 1.05 times the baseline" == first.limit
    assert 1.05 < first.low < first.ratio < first.high


def test_within_the_tolerance() -> None:
    """4 % longer steps pass, and fail where the budget allows 2 %."""
    assert 0 == check(training(10.4, seed=1), training()).exit_code


def test_a_slower_family_fails() -> None:
    """Copy kernels twice as long fail, though no step gets longer; the softmax, under 1 %, is not judged."""
    found = check(training(copy=2.0, seed=1), training())
    assert {"family_copy_ns"} == {verdict.id for verdict in found.verdicts if verdict.outcome == "fail"}


def test_a_faster_run_passes() -> None:
    """Better is no failure: a share of busy time that falls with it neither."""
    assert 0 == check(training(copy=0.2, seed=1), training()).exit_code


def test_few_steps_are_judged_by_their_values() -> None:
    """Four steps have no interval: their values decide, and the reason says so."""
    found = check(training(12, count=4), training(count=4))
    assert "fail" == outcomes(found)["step_median_ns"]
    assert "no interval" in next(verdict for verdict in found.verdicts if verdict.id == "step_median_ns").reason


def test_a_budget(budget: Path) -> None:
    """A tolerance for all, one of a figure's own, a largest and a smallest value, and one that is ignored."""
    budget.write_text(
        "tolerance = 0.5\n[figures.step_median_ns]\ntolerance = 0.02\n[figures.family_copy_ns]\nignore = true\n"
        "[figures.step_mean_ns]\nmax = 10e6\n[figures.device_busy_frac]\nmin = 0.3\n"
    )
    found = check(training(10.6, copy=3.0, seed=1), training(), budget)
    said = [(verdict.id, verdict.limit, verdict.outcome) for verdict in found.verdicts]
    assert [("step_median_ns", "at most 1.02 times the baseline", "fail"), ("step_mean_ns", "max 10.0 ms", "fail")] == (
        said[:2]
    )
    assert ("device_busy_frac", "min 30.0 %", "pass") in said
    assert ("step_mean_ns", "at most 1.50 times the baseline", "pass") in said
    assert "family_copy_ns" not in outcomes(found)


def test_a_budget_without_a_baseline(budget: Path) -> None:
    """Limits alone are judged without a baseline, and no value before is shown."""
    budget.write_text("[figures.step_median_ns]\nmax = 9e6\nmin = 1\n")
    found = check(training(), budget=budget)
    assert [("max 9.00 ms", "fail"), ("min 1 ns", "pass")] == [(v.limit, v.outcome) for v in found.verdicts]
    assert found.verdicts[0].values.startswith("none -> ")


def test_what_cannot_be_judged_is_an_error(budget: Path) -> None:
    """A figure the run has not, and a tolerance of one of which no way is better, give exit status 2."""
    budget.write_text(
        "[figures.mfu]\nmin = 0.4\n[figures.step_x]\ntolerance = 0.1\n[figures.kernel_count]\ntolerance = 0.1\n"
    )
    found = check(training(12), training(), budget)
    said = {verdict.id: verdict.reason for verdict in found.verdicts if verdict.outcome == "error"}
    assert {"mfu": "the run has no such figure", "step_x": "the run has no such figure"}.items() <= said.items()
    assert "neither way is better" in said["kernel_count"]
    assert 2 == found.exit_code


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tolerance = ", "the budget cannot be read"),
        ("tolerances = 1", "the key tolerances is unknown. Use tolerance, figures."),
        ("tolerance = -1", "tolerance is '-1'. Give a number of at least 0."),
        ("tolerance = true", "tolerance is 'True'. Give a number"),
        ("figures = 1", "figures is '1'. Give tables, one per figure."),
        ("[figures]\nmfu = 1", "figures.mfu is '1', no table. Give it tolerance, max, min, ignore."),
        ("[figures.mfu]\nmaximum = 1", "the key figures.mfu.maximum is unknown"),
        ("[figures.mfu]\nmax = 'x'", "figures.mfu.max is 'x'. Give a number."),
        ("[figures.mfu]\nmax = nan", "figures.mfu.max is 'nan'. Give a number."),
        ("[figures.mfu]\nignore = 1", "figures.mfu.ignore is '1'. Give true or false."),
    ],
)
def test_wrong_budgets(budget: Path, text: str, message: str) -> None:
    """The message names the file, the key and what it can be."""
    budget.write_text(text)
    with pytest.raises(ReadError) as raised:
        load_budget(budget)
    assert str(raised.value).startswith(f"{budget}: ")
    assert message in str(raised.value)


def test_a_budget_that_is_not_there(tmp_path: Path) -> None:
    """A missing file and one that is no text are refused."""
    (tmp_path / "b").write_bytes(b"\xff\xfe\x00")
    for name in ("none.toml", "b"):
        with pytest.raises(ReadError, match="the budget cannot be read"):
            load_budget(tmp_path / name)


def test_nothing_to_judge(budget: Path) -> None:
    """Neither baseline nor limits, and a budget that ignores what there is, are refused with what to do."""
    with pytest.raises(PerfkitError, match="Give --baseline or --budget"):
        check(training())
    names = ("step_median_ns", "step_mean_ns", "family_gemm_ns", "family_copy_ns")
    budget.write_text("".join(f"[figures.{name}]\nignore = true\n" for name in names))
    with pytest.raises(PerfkitError, match="nothing that both runs recorded can be judged"):
        check(training(), training(), budget)


def test_real_runs(profiles: Path) -> None:
    """A database of HPCToolkit, counters and a log pass against themselves."""
    for name in (
        "hpctoolkit/hpctoolkit-dlrm-gpu-database",
        "ncu/meinie0826__Roofline-Analysis__flashinfer_paged_decode__gqa_bf16_b1_ctx4k_p64.ncu.csv",
        "monitor/nvidia-smi__nvidia-h100-80gb-hbm3__590.48.01__load__dmon.txt",
    ):
        run = perfkit.load(profiles / name)
        assert 0 == check(run, run).exit_code


def test_a_log_that_gets_worse(profiles: Path) -> None:
    """An idle GPU against a loaded one: 100 % of the time without a kernel instead of none, worse."""
    idle, load = (
        perfkit.load(profiles / f"monitor/nvidia-smi__nvidia-h100-80gb-hbm3__590.48.01__{name}__dmon.txt")
        for name in ("idle", "load")
    )
    found = check(idle, load)
    assert {"log_idle_frac": "fail", "log_gpu_busy_frac": "fail"} == outcomes(found)

"""The runs under data/cpu_workloads: what PyTorch recorded of the four models on a CPU, and their timings."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import perfkit
from perfkit.analysis.flops import operators
from perfkit.cli import main
from perfkit.report.notebooks import sample
from perfkit.workloads import MODELS, Plan, flops

FOLDER = sample().parent / "cpu_workloads"
RUNS = {
    f"{model}_{word}": (model, mode)
    for word, mode in (("training", "train"), ("inference", "inference"))
    for model in MODELS
}
TRACE, TIMINGS = "rank-0.pt.trace.json.gz", "timings.json"
TRACED = 5  # steps of each trace
MOST_BYTES = 8e6
ABSOLUTE = re.compile(r"(?<![\w.])/(?:home|root|tmp|usr|work|opt|mnt|srv)/\S*")


@pytest.fixture(params=RUNS)
def run(request: pytest.FixtureRequest) -> str:
    """Each run by the name of its folder."""
    return str(request.param)


def timings(name: str) -> dict[str, Any]:
    """What a run's timings say."""
    content: dict[str, Any] = json.loads((FOLDER / name / TIMINGS).read_text(encoding="utf-8"))
    return content


def plan(name: str) -> Plan:
    """The workload of a run, in its full size."""
    model, mode = RUNS[name]
    return Plan(model, mode=mode)


def test_folder_holds_these_runs_and_is_small() -> None:
    """Four models in training and in inference, and no other file than traces and timings."""
    files = [path.relative_to(FOLDER) for path in FOLDER.rglob("*") if path.is_file()]
    assert {Path(name, file) for name in RUNS for file in (TRACE, TIMINGS)} == set(files)
    assert sum((FOLDER / file).stat().st_size for file in files) < MOST_BYTES


def test_run_is_what_its_name_says(run: str) -> None:
    """The timings name model and mode, FP32 on a CPU, and three batch sizes."""
    content, (model, mode) = timings(run), RUNS[run]
    said = (content["model"], content["mode"], content["precision"], content["device"]["kind"], content["size"])
    assert (model, mode, "fp32", "cpu", plan(run).dimensions) == said
    assert 3 == len({row["batch_count"] for row in content["rows"]})


def test_nothing_tells_of_the_machine(run: str) -> None:
    """Neither the host's name nor a folder outside the program is in the files."""
    text = gzip.decompress((FOLDER / run / TRACE).read_bytes()).decode()
    told = re.findall(r'"(?:host_name|traceName)": "([^"]*)"', text)
    assert ["host", "rank-0.pt.trace.json"] == told
    text += (FOLDER / run / TIMINGS).read_text(encoding="utf-8")
    assert [] == ABSOLUTE.findall(text)


def test_trace_holds_the_steps_that_were_recorded(run: str) -> None:
    """perfkit finds them, one after another, and no GPU."""
    loaded = perfkit.load(FOLDER / run)
    assert TRACED == (loaded.ranges["kind"] == "step").sum()
    assert loaded.devices.empty


def test_trace_has_the_operations_of_the_formula(run: str) -> None:
    """Products, counted from the operators' shapes, are those of the five steps at the last batch size.

    Fused attention computes its scores anew in the backward pass: 7 products of which the formula counts 6.
    """
    work = operators(perfkit.load(FOLDER / run).ops)
    found = work.loc[work["model"].astype(str).str.contains("gemm|convolution|attention"), "flops"].sum()
    batch = timings(run)["rows"][-1]["batch_count"]
    attention = [layer.flops for layer in flops.layers(plan(run), batch) if layer.name.endswith(".attention")]
    anew = sum(attention) // 2 if RUNS[run][1] == "train" else 0
    assert TRACED * (flops.step(plan(run), batch) + anew) == found


def test_rates_follow_from_times_and_formulas(run: str) -> None:
    """Operations by formula over the median of the steps, each of which was kept."""
    for row in timings(run)["rows"]:
        assert row["steps_count"] == len(row["step_ns"])
        assert flops.step(plan(run), row["batch_count"]) == row["step_flops"]
        assert row["step_flops"] / row["step_median_ns"] * 1e9 == pytest.approx(row["flops_per_s"], rel=1e-12)


def test_times_are_steady(run: str) -> None:
    """What data/README.md says of the spread: the upper quartile is at most 1.25 times the lower one."""
    assert [] == [row["batch_count"] for row in timings(run)["rows"] if row["step_p75_ns"] > 1.25 * row["step_p25_ns"]]


@pytest.mark.usefixtures("without_kernels")
def test_report_of_a_run(tmp_path: Path) -> None:
    """A report of a CPU's trace says how long a step is and how much of it waits for data, and has no GPU."""
    result = CliRunner().invoke(main, ["report", str(FOLDER / "mlp_training"), "--out", str(tmp_path)])
    assert 0 == result.exit_code, result.output
    summary = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert "- Step time: **[" in summary
    assert "- GPUs: not recorded" in summary
    figures = (tmp_path / "figures.md").read_text(encoding="utf-8")
    assert "| Median step |" in figures
    assert "| Waiting for input |" in figures

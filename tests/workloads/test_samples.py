"""The runs under data/cpu_workloads: what PyTorch recorded of the four models on a CPU, and their timings."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

import perfkit
from perfkit.analysis.flops import operators
from perfkit.report.notebooks import sample
from perfkit.workloads import MODELS, Plan, flops

FOLDER = sample().parent / "cpu_workloads"
WORDS = {"training": "train", "inference": "inference"}
RUNS = {f"{model}_{word}": (model, mode) for word, mode in WORDS.items() for model in MODELS}
TRACE, TIMINGS = "rank-0.pt.trace.json.gz", "timings.json"
TRACED = 5  # steps of each trace
MOST_BYTES = 8e6
ABSOLUTE = re.compile(r"(?<![\w.])/(?:home|root|tmp|usr|work|opt|mnt|srv)/\S*")


def test_folder_holds_these_runs_and_is_small() -> None:
    files = [path.relative_to(FOLDER) for path in FOLDER.rglob("*") if path.is_file()]
    assert {Path(name, file) for name in RUNS for file in (TRACE, TIMINGS)} == set(files)
    assert sum((FOLDER / file).stat().st_size for file in files) < MOST_BYTES


@pytest.mark.parametrize("run", RUNS)
def test_run_is_what_its_name_says_and_nothing_tells_of_the_machine(run: str) -> None:
    """Products, counted from the operators' shapes, are those of the five steps at the last batch size by formula.

    Fused attention computes its scores anew in the backward pass: 7 products of which the formula counts 6. What
    data/README.md says of the spread: the upper quartile is at most 1.25 times the lower one.
    """
    model, mode = RUNS[run]
    plan = Plan(model, mode=mode)
    words = (FOLDER / run / TIMINGS).read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(words)
    said = (content["model"], content["mode"], content["precision"], content["device"]["kind"], content["size"])
    assert (model, mode, "fp32", "cpu", plan.dimensions) == said
    assert 3 == len({row["batch_count"] for row in content["rows"]})
    for row in content["rows"]:
        assert row["steps_count"] == len(row["step_ns"])
        assert flops.step(plan, row["batch_count"]) == row["step_flops"]
        assert row["step_flops"] / row["step_median_ns"] * 1e9 == pytest.approx(row["flops_per_s"], rel=1e-12)
        assert row["step_p75_ns"] <= 1.25 * row["step_p25_ns"]
    text = gzip.decompress((FOLDER / run / TRACE).read_bytes()).decode()
    assert ["host", "rank-0.pt.trace.json"] == re.findall(r'"(?:host_name|traceName)": "([^"]*)"', text)
    assert [] == ABSOLUTE.findall(text + words)
    loaded = perfkit.load(FOLDER / run)
    assert TRACED == (loaded.ranges["kind"] == "step").sum()
    assert loaded.devices.empty
    work = operators(loaded.ops)
    found = work.loc[work["model"].astype(str).str.contains("gemm|convolution|attention"), "flops"].sum()
    batch = content["rows"][-1]["batch_count"]
    attention = [layer.flops for layer in flops.layers(plan, batch) if layer.name.endswith(".attention")]
    anew = sum(attention) // 2 if mode == "train" else 0
    assert TRACED * (flops.step(plan, batch) + anew) == found

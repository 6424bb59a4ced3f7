"""Two runs side by side: what both recorded, what makes it doubtful, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from callpaths import MAIN, call_metrics, calltree
from frames import kernels
from sampled import devices, samples
from trained import run, training

import perfkit
from perfkit.diagnosis.comparison import Comparison, compared
from perfkit.errors import PerfkitError
from perfkit.report.notebooks import sample
from perfkit.tables import LAUNCHES


def verdicts(found: Comparison) -> dict[str, str]:
    """The verdict on each figure."""
    return {str(key): str(value) for key, value in found.figures.set_index("id")["verdict"].items()}


def test_a_faster_program() -> None:
    """Steps of 8 instead of 10 ms: better, the GEMM and idleness too, the copies not; nothing lowers the confidence."""
    found = compared(training(), training(8, seed=1))
    said = verdicts(found)
    assert [*["better"] * 3, "no difference seen"] == [
        said[key] for key in ("step_median_ns", "family_gemm_ns", "part_idle_ns", "family_copy_ns")
    ]
    assert "changed, not tested" == said["device_busy_frac"]
    assert ["better"] * 2 == found.steps["verdict"].tolist()
    assert ("high", (), ()) == (found.confidence, found.cautions, found.refusals)


def test_a_run_and_itself() -> None:
    """A run compared with itself differs in nothing."""
    one = training()
    assert {"no difference seen"} == set(verdicts(compared(one, one)).values())


def test_matched_kernels_by_hand() -> None:
    """a runs 3 times 10 ns, then once 20; b is gone: matched, a takes 30 before and as often as before 60."""
    before = run(
        kernels=kernels(
            *({"name": "a", "start_ns": 100 * i, "dur_ns": 10} for i in range(3)),
            {"name": "b", "start_ns": 500, "dur_ns": 70},
        )
    )
    after = run(kernels=kernels({"name": "a", "start_ns": 0, "dur_ns": 20}))
    found = compared(before, after).figures.set_index("id").loc["matched_kernels_ns"]
    assert [30.0, 60.0, "changed, not tested"] == found[["before", "after", "verdict"]].tolist()


@pytest.mark.parametrize(
    ("after", "caution", "confidence"),
    [
        ({"gpu": "H100"}, "different GPUs: A100 before, H100 after", "low"),
        ({"gpu": ""}, "not every run names its GPU", "medium"),
        ({"reader": "torch_trace"}, "different profilers, with different overhead: nsys before, torch_trace", "low"),
    ],
)
def test_doubts_are_told(after: dict[str, Any], caution: str, confidence: str) -> None:
    """Another GPU, one that is not named and another profiler are compared, with a caution."""
    found = compared(training(), training(seed=1, **after))
    assert caution in found.cautions[0]
    assert confidence == found.confidence
    assert "no difference seen" == verdicts(found)["step_median_ns"]


def test_recordings_of_the_cpu_have_no_gpu_to_name() -> None:
    """Nothing is doubtful about a CPU's recording that names no GPU."""
    recorded = perfkit.load(sample("cpu_workloads") / "mlp_training")
    assert () == compared(recorded, recorded).cautions


def test_steps_that_are_not_the_same_thing() -> None:
    """Steps found another way, and three times the kernels in a step, are doubts."""
    one = training()
    thrice = kernels(
        *(
            {"name": f"k{k}", "start_ns": start + 1000 * k, "dur_ns": 500}
            for start in one.ranges["start_ns"]
            for k in range(6)
        )
    )
    found = compared(one, run(kernels=thrice, ranges=one.ranges, devices=one.devices))
    assert ("a step has 2 kernels before and 6 after: the work may differ",) == found.cautions
    unnamed = run(kernels=thrice, devices=one.devices)
    assert any("the steps in different ways: nvtx before, kernel" in text for text in compared(one, unnamed).cautions)


def test_without_steps() -> None:
    """Without steps kernels are compared run by run, step times are refused with what to record."""
    one = run(kernels=kernels({"start_ns": 0, "dur_ns": 10}), devices=devices("A100"))
    found = compared(one, one)
    assert found.steps.empty
    assert ["same"] == found.kernels["status"].tolist()
    assert ("Did the steps get faster?", True) == (
        found.refusals[0].question,
        "no steady steps were found" in found.refusals[0].reason,
    )
    assert "medium" == found.confidence


def test_too_few_steps() -> None:
    """Four steps are compared without an interval, and the refusal says how many are needed."""
    found = compared(training(count=4), training(20, count=4))
    assert "cannot tell" == verdicts(found)["step_median_ns"]
    assert "fewer than 6 steady steps" in found.refusals[0].reason


def test_repeats_give_every_figure_an_interval() -> None:
    """Of three repeats on each side every figure that all have gets an interval; values are means over the repeats."""
    groups = [[training(length, seed=10 * place + i) for i in range(3)] for place, length in enumerate((10, 12))]
    table = compared(*groups).figures.set_index("id")
    assert table.loc[["device_busy_frac", "span_ns", "step_median_ns"], "ratio_low"].notna().all()
    assert "worse" == table.loc["step_median_ns", "verdict"]
    single = [perfkit.diagnosis.figures(one)["span_ns"].value for one in groups[0]]
    assert np.mean(single) == pytest.approx(table.loc["span_ns", "before"])


def test_counters_and_call_paths_and_logs() -> None:
    """Runs of counters, of call paths and of logs are compared by what they have."""
    about = {"rank": 0, "gpu": 0, "launch": [0], "name": "a", "full_name": "a", "grid_blocks": 1, "block_threads": 32}

    def counted(dur_ns: float) -> pd.DataFrame:
        return LAUNCHES.make(pd.DataFrame({**about, "dur_ns": dur_ns}).reindex(columns=LAUNCHES.column_names))

    def paths(seconds: float) -> perfkit.Run:
        tree = calltree({"node": 1, "name": MAIN}, {"node": 2, "parent": 1, "name": "f"})
        metrics = call_metrics((1, "CPUTIME", "s", seconds, 0.0), (2, "CPUTIME", "s", seconds, seconds))
        return run("hpctoolkit", calltree=tree, call_metrics=metrics)

    counters = compared(*(run("ncu", launches=counted(ns)) for ns in (100, 50)))
    assert ("changed", "changed, not tested") == (
        counters.launches.loc[0, "status"],
        verdicts(counters)["matched_kernels_ns"],
    )
    trees = compared(paths(1), paths(3))
    assert ("CPUTIME", [2.0]) == (trees.paths_metric, trees.paths["difference"].tolist()[:1])
    assert "changed, not tested" == verdicts(trees)["paths_host_ns"]
    logs = compared(*(run("nvidia_smi", samples=samples(gpu_busy_frac=[share] * 3)) for share in (0.2, 0.9)))
    assert [0.2, 0.9] == pytest.approx(logs.samples.loc[0, ["before", "after"]].tolist())
    assert "changed, not tested" == verdicts(logs)["log_gpu_busy_frac"]


def test_what_one_run_alone_has_is_refused() -> None:
    """Samples of one run alone are a refusal that names the run and what to record."""
    one = training()
    both = run(kernels=one.kernels, ranges=one.ranges, devices=one.devices, samples=samples(sm_active_frac=[0.5, 0.5]))
    found = compared(one, both).refusals
    assert ["only the run after has sampled metrics"] == [refusal.reason for refusal in found]


def test_runs_that_share_nothing() -> None:
    """A timeline and a log cannot be compared; an empty group of repeats neither."""
    log = run("nvidia_smi", samples=samples(power_w=[1, 2]))
    with pytest.raises(PerfkitError, match="the first run has a timeline, the second has sampled metrics"):
        compared(training(), log)
    with pytest.raises(ValueError, match="after: there is no run"):
        compared(log, [])


def test_a_data_loader_with_workers(profiles: Path) -> None:
    """ResNet-50 with 0 and 4 loader workers: input wait falls from 29.9 to 1.0 %, five steps tell no step time."""
    pair = [
        perfkit.load(profiles / f"torch/kineto__resnet50_num_workers_{name}.pt.trace.json.gz")
        for name in ("0__worker0.1623143566756", "4__worker0.1623213129365")
    ]
    found = compared(*pair)
    said = verdicts(found)
    assert ["changed, not tested", "changed, not tested", "cannot tell"] == [
        said[key] for key in ("input_wait_frac", "idle_data_loading_frac", "step_median_ns")
    ]


def test_one_model_on_two_vendors(profiles: Path) -> None:
    """The same model on an H100 and an MI300X is compared with low confidence, and says why."""
    pair = [
        perfkit.load(profiles / f"torch/TraceLens__{gpu}__gaunernst_bert-small-uncased__1016001.json.gz")
        for gpu in ("h100", "mi300")
    ]
    found = compared(*pair)
    assert ("low", "different GPUs: NVIDIA H100 80GB HBM3 before, AMD Instinct MI300X VF after") == (
        found.confidence,
        found.cautions[0],
    )


def test_benchmarks_of_communication(profiles: Path) -> None:
    """NVLink switched off: the last rows of the logs print 216.6 and 28.55 GB/s out of place, a loss of 7.6 times."""
    logs = [perfkit.load(profiles / "monitor" / f"Timez-zx__nccl-tests__{name}.log") for name in ("nccl", "nccl-fault")]
    found = compared(*logs)
    row = found.figures.set_index("id").loc["baseline_all_reduce_bytes_per_s"]
    assert [216.6, 28.55] == pytest.approx([row["before"] / 1e9, row["after"] / 1e9], rel=5e-4)
    assert ["higher", "changed, not tested"] == row[["better", "verdict"]].tolist()
    assert () == found.refusals

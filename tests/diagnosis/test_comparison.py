"""Two runs side by side, in figures and in words: what both recorded, what makes it doubtful, what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from callpaths import MAIN, call_metrics, calltree
from counted import launches
from diagnosis.traces import all_of
from frames import kernels
from sampled import devices, samples
from trained import run, training

import perfkit
from perfkit.diagnosis import comparison, verdict
from perfkit.diagnosis.comparison import Comparison, compared
from perfkit.errors import PerfkitError
from perfkit.report.notebooks import sample
from perfkit.tables import KERNELS

ONE = run(kernels=kernels({"start_ns": 0, "dur_ns": 10}), devices=devices("A100"))  # without steps
UNTESTED = "changed, not tested"
RANKS = ["worse", "better", UNTESTED, "cannot tell", "new", "gone", "no difference seen"]
SECOND = "secondOptimization.window5.0-7.0s"


def verdicts(found: Comparison) -> dict[str, str]:
    return {str(key): str(value) for key, value in found.figures.set_index("id")["verdict"].items()}


def test_a_faster_program() -> None:
    found = compared(training(), training(8, seed=1))
    said = verdicts(found)
    assert {"better"} == {said[key] for key in ("step_median_ns", "family_gemm_ns", "part_idle_ns")}
    assert ("no difference seen", UNTESTED) == (said["family_copy_ns"], said["device_busy_frac"])
    assert ["better"] * 2 == found.steps["verdict"].tolist()
    assert ("medium", (), ()) == (found.confidence, found.cautions, found.refusals)
    one = training()
    assert {"no difference seen"} == set(verdicts(compared(one, one)).values())
    assert 0.02 == found.noise
    groups = [
        [training(length, seed=10 * place + i) for i in range(3)]
        for place, length in enumerate((10, 12))
    ]
    repeated = compared(*groups)
    assert ("high", 0.0) == (repeated.confidence, repeated.noise)
    table = repeated.figures.set_index("id")
    assert table.loc[["device_busy_frac", "span_ns", "step_median_ns"], "ratio_low"].notna().all()
    assert "worse" == table.loc["step_median_ns", "verdict"]
    single = [perfkit.diagnosis.figures(one)["span_ns"].value for one in groups[0]]
    assert np.mean(single) == pytest.approx(table.loc["span_ns", "before"])


def test_matched_kernels_by_hand() -> None:
    """a takes 30 before and as often as before 60; b is gone."""
    rows = [{"name": "a", "start_ns": 100 * i, "dur_ns": 10} for i in range(3)]
    before = run(kernels=kernels(*rows, {"name": "b", "start_ns": 500, "dur_ns": 70}))
    after = run(kernels=kernels({"name": "a", "start_ns": 0, "dur_ns": 20}))
    found = compared(before, after).figures.set_index("id").loc["matched_kernels_ns"]
    assert [30.0, 60.0, UNTESTED] == found[["before", "after", "verdict"]].tolist()


@pytest.mark.parametrize(
    ("after", "caution", "confidence"),
    [
        ({"gpu": "H100"}, "different GPUs: A100 before, H100 after", "low"),
        ({"gpu": ""}, "not every run names its GPU", "medium"),
        (
            {"reader": "torch_trace"},
            "different profilers, with different overhead: nsys before, torch_trace",
            "low",
        ),
    ],
)
def test_doubts_are_told(after: dict[str, Any], caution: str, confidence: str) -> None:
    found = compared(training(), training(seed=1, **after))
    assert caution in found.cautions[0]
    assert confidence == found.confidence
    assert "no difference seen" == verdicts(found)["step_median_ns"]
    recorded = perfkit.load(
        sample("cpu_workloads") / "mlp_training"
    )  # of the CPU, which has no GPU to name
    assert () == compared(recorded, recorded).cautions


def test_steps_that_are_not_the_same_thing() -> None:
    one = training()
    starts = [start + 1000 * k for start in one.ranges["start_ns"] for k in range(6)]
    thrice = kernels(
        *({"name": f"k{i % 6}", "start_ns": at, "dur_ns": 500} for i, at in enumerate(starts))
    )
    found = compared(one, run(kernels=thrice, ranges=one.ranges, devices=one.devices))
    assert ("a step has 2 kernels before and 6 after: the work may differ",) == found.cautions
    found = verdict.attempted(training(), training(8, seed=1, named=False))
    said = verdict.sentence(found)
    assert said.startswith("perfkit cannot tell whether the step got faster. A median step took 9.")
    assert (
        "Confidence in the comparison: low (perfkit found the steps in different ways: nvtx before, kernel"
        in said
    )
    assert {"cannot tell"} == {*found.steps["verdict"], *found.families["verdict"]}
    rows = verdict.side_rows(found).set_index("id")["verdict"]
    assert {"cannot tell"} == set(rows[rows.index.str.match("step_|part_|family_")])


def test_without_steps_and_with_too_few() -> None:
    found = compared(ONE, ONE)
    assert (True, ["same"], "medium") == (
        found.steps.empty,
        found.kernels["status"].tolist(),
        found.confidence,
    )
    assert "Did the steps get faster?" == found.refusals[0].question
    assert "no steady steps were found" in found.refusals[0].reason
    said = verdict.sentence(verdict.attempted(ONE, ONE))
    assert "The runs share no steps. Of " in said
    assert " figures, 0 are better, 0 are worse and 0 changed without a test. " in said
    shorter = verdict.attempted(
        ONE, run(kernels=kernels({"start_ns": 0, "dur_ns": 5}), devices=devices("A100"))
    )
    changed = shorter.figures["verdict"].eq(UNTESTED).sum()
    assert changed
    assert f" {changed} changed without a test. " in verdict.sentence(shorter)
    found = compared(training(count=4), training(20, count=4))
    assert "cannot tell" == verdicts(found)["step_median_ns"]
    assert "fewer than 6 steady steps" in found.refusals[0].reason


def test_counters_and_call_paths_and_logs() -> None:
    def paths(seconds: float) -> perfkit.Run:
        tree = calltree({"node": 1, "name": MAIN}, {"node": 2, "parent": 1, "name": "f"})
        metrics = call_metrics(
            (1, "CPUTIME", "s", seconds, 0.0), (2, "CPUTIME", "s", seconds, seconds)
        )
        return run("hpctoolkit", calltree=tree, call_metrics=metrics)

    counters = compared(*(run("ncu", launches=launches({"dur_ns": ns})) for ns in (100, 50)))
    assert ("changed", UNTESTED) == (
        counters.launches.loc[0, "status"],
        verdicts(counters)["matched_kernels_ns"],
    )
    trees = compared(paths(1), paths(3))
    assert ("CPUTIME", [2.0]) == (trees.paths_metric, trees.paths["difference"].tolist()[:1])
    assert UNTESTED == verdicts(trees)["paths_host_ns"]
    read = (samples(gpu_busy_frac=[share] * 3, power_w=[80] * 3) for share in (0.2, 0.9))
    logs = compared(*(run("nvidia_smi", samples=each) for each in read))
    busy = logs.samples.set_index("metric").loc["gpu_busy_frac"]
    assert [0.2, 0.9] == pytest.approx(busy[["before", "after"]].tolist())
    assert UNTESTED == verdicts(logs)["log_gpu_busy_frac"]
    rows = verdict.sample_rows(logs).set_index("metric")  # in their units
    assert ["20.0 %", "90.0 %"] == rows.loc["gpu busy", ["before", "after"]].tolist()
    assert "80.0 W" == rows.loc["power", "after"]


def test_what_one_run_alone_has_is_refused() -> None:
    one = training()
    both = run(
        kernels=one.kernels,
        ranges=one.ranges,
        devices=one.devices,
        samples=samples(sm_active_frac=[0.5, 0.5]),
    )
    assert ["only the run after has sampled metrics"] == [
        each.reason for each in compared(one, both).refusals
    ]
    log = run("nvidia_smi", samples=samples(power_w=[1, 2]))
    said = "the first run has a timeline, the second has sampled metrics"
    with pytest.raises(PerfkitError, match=said):
        compared(training(), log)
    with pytest.raises(ValueError, match="after: there is no run"):
        compared(log, [])
    found = verdict.attempted(training(), log)
    assert f"Unknown: {said}." in verdict.sentence(found)
    assert ["Did the change help?"] == [refusal.question for refusal in found.refusals]


def pair(profiles: Path, pattern: str, *names: str) -> list[perfkit.Run]:
    return [perfkit.load(profiles / pattern.format(name)) for name in names]


def test_real_pairs(profiles: Path) -> None:
    """ResNet-50 with 0 and 4 loader workers: input wait falls from 29.9 to 1.0 %, five steps tell no step time.

    One model on two vendors. NVLink switched off: the last rows of the logs print 216.6 and 28.55 GB/s out of place.
    """
    names = "0__worker0.1623143566756", "4__worker0.1623213129365"
    said = verdicts(
        compared(*pair(profiles, "torch/kineto__resnet50_num_workers_{}.pt.trace.json.gz", *names))
    )
    assert (UNTESTED, UNTESTED) == (said["input_wait_frac"], said["idle_data_loading_frac"])
    assert "cannot tell" == said["step_median_ns"]
    bert = "torch/TraceLens__{}__gaunernst_bert-small-uncased__1016001.json.gz"
    found = compared(*pair(profiles, bert, "h100", "mi300"))
    assert (
        found.cautions[0]
        == "different GPUs: NVIDIA H100 80GB HBM3 before, AMD Instinct MI300X VF after"
    )
    assert "low" == found.confidence
    found = compared(*pair(profiles, "monitor/Timez-zx__nccl-tests__{}.log", "nccl", "nccl-fault"))
    row = found.figures.set_index("id").loc["baseline_all_reduce_bytes_per_s"]
    assert [216.6, 28.55] == pytest.approx([row["before"] / 1e9, row["after"] / 1e9], rel=5e-4)
    assert ["higher", UNTESTED] == row[["better", "verdict"]].tolist()
    assert () == found.refusals
    optimised = pair(
        profiles, "nsys/openhackathons-org__AI-Profiler__{}.sqlite", "baseline_nvtx", SECOND
    )
    table = verdict.overview(*optimised).set_index("what")
    assert ["NVIDIA A100-SXM4-80GB"] * 2 == table.loc["GPUs"].tolist()
    assert "openhackathons-org__AI-Profiler__baseline_nvtx.sqlite" == table.loc["run", "before"]


def test_the_sentence_counts_the_rows(profiles: Path) -> None:
    databases = pair(profiles, "hpctoolkit/hpctoolkit-{}-database", "dlrm-gpu", "leo-nvidia")
    logs = pair(
        profiles,
        "monitor/nvidia-smi__nvidia-h100-80gb-hbm3__590.48.01__{}__dmon.txt",
        "idle",
        "load",
    )
    for runs in (databases, logs):
        found = verdict.attempted(*runs)
        rows = verdict.side_rows(found)["verdict"]
        count = [len(rows), *(int(rows.eq(word).sum()) for word in ("better", "worse", UNTESTED))]
        told = "The runs share no steps. Of {} figures, {} are better, {} are worse and {} changed without a test."
        assert verdict.sentence(found).startswith(told.format(*count))
        assert count[3] == next(
            f.value for f in verdict.facts(found) if f.id == "compare_untested_count"
        )


def test_sentences() -> None:
    found = verdict.attempted(None, training())
    said = "Did the change help? Unknown: no baseline was given. Record: perfkit report RUN --baseline EARLIER."
    assert said == verdict.sentence(found)
    assert {0} == {
        len(getattr(found, name)) for name in ("figures", "steps", "families", "kernels", "paths")
    }
    assert [] == verdict.facts(found)
    assert ["", ""] == verdict.overview(None, training())["before"].tolist()[:2]
    said = verdict.sentence(verdict.attempted(training(), training(8, gpu="H100", seed=1)))
    assert said.startswith("The median step takes 8.")
    assert ": better (ratio 0.8" in said
    assert said.endswith(
        "Confidence in the comparison: low (different GPUs: A100 before, H100 after)."
    )


def test_rows() -> None:
    """At the side worse before better, of one verdict those with an interval first, without what is 0 twice.

    In the main part step times and parts come first, whatever their verdict; then what is tested before the rest.
    """
    found = verdict.attempted(training(), training(12, seed=1))
    rows = verdict.side_rows(found)
    assert {"step_median_ns", "step_mean_ns"} == set(rows["id"][:2])
    assert rows["verdict"].map(RANKS.index).is_monotonic_increasing
    assert not set(rows["id"]) & {"span_ns", "exposed_copy_frac"}
    assert "lower is better" == rows["better"][0]
    rows = verdict.main_rows(found)
    first = [
        "step_median_ns",
        "step_mean_ns",
        "part_computation_ns",
        "part_idle_ns",
        "family_gemm_ns",
    ]
    assert first == rows["id"][:5].tolist()
    assert {"worse", UNTESTED} >= set(rows["verdict"][4:])
    assert (8, 4) == (len(rows), len(verdict.main_rows(found, most=0)))
    assert verdict.main_rows(verdict.attempted(ONE, ONE)).empty


def test_facts() -> None:
    before, after = training(), training(8, seed=1)
    extra = [
        {"name": "new", "start_ns": int(ns), "dur_ns": 10, "stream": 8}
        for ns in after.ranges["start_ns"]
    ]
    more = KERNELS.make(
        pd.concat([frame.astype({"name": object}) for frame in (after.kernels, kernels(*extra))])
    )
    changed = all_of(run(kernels=more, ranges=after.ranges, devices=after.devices))
    found = verdict.attempted(all_of(before), changed)
    known = {figure.id.removeprefix("compare_"): figure.value for figure in verdict.facts(found)}
    assert 0.8 == pytest.approx(known["step_frac"], abs=0.01)
    assert known["step_low_frac"] < known["step_frac"] < known["step_high_frac"]
    assert (1.0, 0.0) == (known["kernels_new_count"], known["kernels_gone_count"])
    assert 2e6 == pytest.approx(known["kernels_before_ns"], rel=0.01)  # 1 ms GEMM and 1 ms copy


@pytest.mark.parametrize(
    ("after", "means", "step"), [(8, "better", "Keep"), (12, "worse", "Undo"), (10, "no", "or")]
)
def test_decisions(after: float, means: str, step: str) -> None:
    found = verdict.attempted(training(), training(after, seed=1))
    table = verdict.decisions(found).set_index("question")
    faster = table.loc["Did the steps get faster?"]
    assert faster["figure"].startswith(f"{after / 10:.1f}"[:3] if after != 10 else ("0.99", "1.0"))
    assert faster["what it means"].startswith(means)
    assert step in faster["next step"]
    assert "not known" in table.loc["Is it more than noise between runs?", "what it means"]
    assert table["threshold"].str.contains(r"\(").all(), "each threshold has its source"
    assert verdict.decisions(comparison.nothing(verdict.NO_BASELINE)).empty

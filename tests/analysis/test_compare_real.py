"""Comparison of real captures: halves of one run do not differ, and a job before and after its optimisation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import perfkit
from perfkit.analysis import compare, steps
from perfkit.analysis.compare import series
from perfkit.analysis.compare.resampling import Resampling, ratio

BEFORE = "nsys/openhackathons-org__AI-Profiler__baseline_nvtx.sqlite"
AFTER = "nsys/openhackathons-org__AI-Profiler__secondOptimization.window5.0-7.0s.sqlite"
STEADY = [
    BEFORE,
    "nsys/GindaChen__nsys-ai__mfu_2gpu_before.sqlite",
    "nsys/Lianhang666__gpu4__report2.sqlite",
    "nsys/openhackathons-org__AI-Profiler__baseline.sqlite",
    "nsys/openhackathons-org__gpubootcamp__mpi_report1.sqlite",
    "nsys/openhackathons-org__nways_accelerated_programming__jacobi_report.sqlite",
    "torch/TraceLens__b200__eager_trace.json.gz",
    "torch/TraceLens__sglang_decode__sglang_Qwen3-8B_decode.json.gz",
    "torch/TraceLens__vllm_decode_full__graph_execution.json.gz",
]


@pytest.mark.parametrize("name", STEADY)
def test_random_halves_do_not_differ(name: str, profiles: Path) -> None:
    """Of 100 random splits of the steady steps into halves, at least 95 show no difference, in median and mean."""
    run = perfkit.load(profiles / name)
    (whole,) = series(steps.detect(run.ranges, run.kernels))
    random = np.random.default_rng(0)
    for statistic in ("median", "mean"):
        how, seen = Resampling(statistic, resamples=200), 0
        for _ in range(100):
            half = random.permuted(np.arange(len(whole)) < len(whole) // 2)
            found = ratio([whole[half]], [whole[~half]], how)
            seen += compare.of_interval(found.low, found.high) != "no difference seen"
        assert seen <= 5


def test_a_job_before_and_after(profiles: Path) -> None:
    """Every step has the same 155 launches, before and after: the optimisation changed the host, not the kernels.

    By the start of the kernels, 68 to 246 would lie in a step of the host: the GPU runs behind it. The step times
    after alternate between 7 and 338 ms in the 2 s that were kept: no difference can be told.
    """
    runs = [perfkit.load(profiles / name) for name in (BEFORE, AFTER)]
    found = [steps.detect(run.ranges, run.kernels) for run in runs]
    inside = [compare.in_steps(r.kernels, s, api_calls=r.api_calls) for r, s in zip(runs, found, strict=True)]
    assert [[155], [155]] == [frame.groupby("step").size().unique().tolist() for frame in inside]
    assert {"same"} == set(compare.kernels(*inside, by="order")["status"])
    assert {"no difference seen"} == set(compare.families(*inside)["verdict"])
    assert ["no difference seen"] * 2 == compare.steps(*found)["verdict"].tolist()


def test_a_planted_slowdown_of_a_family_is_found(profiles: Path) -> None:
    """With every convolution of the real job 5 % longer, convolution is worse and no other family is."""
    run = perfkit.load(profiles / BEFORE)
    found = steps.detect(run.ranges, run.kernels)
    inside = compare.in_steps(run.kernels, found, api_calls=run.api_calls)
    odd = inside["step"] % 2 == 1
    slower = inside[odd].copy()
    chosen = slower["family"] == "convolution"
    slower.loc[chosen, "dur_ns"] = (slower.loc[chosen, "dur_ns"] * 1.05).round().astype("int64")
    verdicts = compare.families(inside[~odd], slower).set_index("family")["verdict"]
    assert "worse" == verdicts.pop("convolution")
    assert {"no difference seen"} == set(verdicts)


def test_call_paths_add_up_to_the_profile(profiles: Path) -> None:
    """Over all paths a metric sums to what the roots of all entry points hold, as HPCToolkit defines the total."""
    for name, metric in (("cpu", "CPUTIME"), ("gpu", "GPUOP")):
        run = perfkit.load(profiles / f"hpctoolkit/hpctoolkit-dlrm-{name}-database")
        tree = run.calltree, run.call_metrics
        found = compare.paths(tree, tree, metric=metric)
        roots = run.calltree.loc[run.calltree["parent"].isna(), ["rank", "node"]]
        of_roots = run.call_metrics[run.call_metrics["metric"] == metric].merge(roots)
        assert of_roots["inclusive"].sum() == pytest.approx(found["before"].sum(), rel=1e-12)
        assert {"same"} == set(found["status"])

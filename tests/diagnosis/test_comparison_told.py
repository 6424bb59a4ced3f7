"""A comparison in words, and its own figures."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from frames import kernels
from sampled import devices, samples
from trained import run, training

import perfkit
from perfkit.diagnosis import comparison, verdict
from perfkit.diagnosis.finding import Figure
from perfkit.tables import KERNELS


def facts(found: comparison.Comparison) -> dict[str, Figure]:
    """The figures of a comparison by their ids."""
    return {figure.id: figure for figure in verdict.facts(found)}


def test_without_a_baseline() -> None:
    """No earlier run: a sentence with what would tell, empty frames and no figure."""
    found = verdict.attempted(None, training())
    assert (
        "Did the change help? Unknown: no baseline was given. Record: perfkit report RUN --baseline EARLIER."
        == verdict.sentence(found)
    )
    assert {0} == {len(getattr(found, name)) for name in ("figures", "steps", "families", "kernels", "paths")}
    assert [] == verdict.facts(found)
    assert ["", ""] == verdict.overview(None, training())["before"].tolist()[:2]


def test_nothing_shared() -> None:
    """A timeline and a log: the sentence says what each has."""
    log = run("nvidia_smi", samples=samples(power_w=[1, 2]))
    found = verdict.attempted(training(), log)
    assert "Unknown: the first run has a timeline, the second has sampled metrics." in verdict.sentence(found)
    assert ["Did the change help?"] == [refusal.question for refusal in found.refusals]


def test_a_sentence_with_doubts() -> None:
    """The verdict on the median step, its ratio and interval, and why the comparison is doubtful."""
    found = verdict.attempted(training(), training(8, gpu="H100", seed=1))
    said = verdict.sentence(found)
    assert said.startswith("The median step takes 8.")
    assert ": better (ratio 0.8" in said
    assert said.endswith("Confidence in the comparison: low (different GPUs: A100 before, H100 after).")


def test_without_steps_figures_are_counted() -> None:
    """A run without steps beside itself: no figure is better, worse or changed, and the sentence counts that."""
    one = run(kernels=kernels({"start_ns": 0, "dur_ns": 10}), devices=devices("A100"))
    said = verdict.sentence(verdict.attempted(one, one))
    assert "The runs share no steps. Of " in said
    assert " figures, 0 are better, 0 are worse and 0 changed without a test. " in said
    shorter = run(kernels=kernels({"start_ns": 0, "dur_ns": 5}), devices=devices("A100"))
    (changed,) = (1 for v in verdict.attempted(one, shorter).figures["verdict"] if v == "changed, not tested")
    assert f" {changed} changed without a test. " in verdict.sentence(verdict.attempted(one, shorter))


def test_side_rows() -> None:
    """Worse before better; of one verdict those with an interval first; totals and what is 0 twice are left out."""
    rows = verdict.side_rows(verdict.attempted(training(), training(12, seed=1)))
    assert {"step_median_ns", "step_mean_ns"} == set(rows["id"][:2])
    ranks = rows["verdict"].map(
        ["worse", "better", "changed, not tested", "cannot tell", "new", "gone", "no difference seen"].index
    )
    assert ranks.is_monotonic_increasing
    assert not set(rows["id"]) & {"span_ns", "exposed_copy_frac"}
    assert "lower is better" == rows["better"][0]


def test_main_rows() -> None:
    """Step times and parts come first, whatever their verdict; the rest differs, and what is tested comes before."""
    found = verdict.attempted(training(), training(12, seed=1))
    rows = verdict.main_rows(found)
    assert ["step_median_ns", "step_mean_ns", "part_computation_ns", "part_idle_ns"] == rows["id"][:4].tolist()
    assert {"worse", "changed, not tested"} >= set(rows["verdict"][4:])
    assert "family_gemm_ns" == rows["id"][4]
    assert (8, 4) == (len(rows), len(verdict.main_rows(found, most=0)))
    alone = run(kernels=kernels({"start_ns": 0, "dur_ns": 10}), devices=devices("A100"))
    assert verdict.main_rows(verdict.attempted(alone, alone)).empty


def test_facts() -> None:
    """Steps of 10 and 8 ms: 80 % of before, within the interval; a kernel that is new is counted."""
    before, after = training(), training(8, seed=1)
    extra = [{"name": "new", "start_ns": int(ns), "dur_ns": 10} for ns in after.ranges["start_ns"]]
    more = KERNELS.make(pd.concat([frame.astype({"name": object}) for frame in (after.kernels, kernels(*extra))]))
    found = verdict.attempted(before, run(kernels=more, ranges=after.ranges, devices=after.devices))
    known = facts(found)
    assert 0.8 == pytest.approx(known["compare_step_frac"].value, abs=0.01)
    assert known["compare_step_low_frac"].value < known["compare_step_frac"].value
    assert known["compare_step_frac"].value < known["compare_step_high_frac"].value
    assert (1.0, 0.0) == (known["compare_kernels_new_count"].value, known["compare_kernels_gone_count"].value)
    assert 2e6 == pytest.approx(known["compare_kernels_before_ns"].value, rel=0.01)  # 1 ms GEMM and 1 ms copy
    assert all(figure.id.startswith("compare_") and figure.definition and figure.source for figure in known.values())


def test_alike_keeps_the_choice_but_the_window() -> None:
    """Another run is seen with the same kernels, whole, also where it has none of them."""
    view = perfkit.select(training(), window=(0, 50_000_000), families=["gemm"])
    earlier = verdict.alike(run(kernels=kernels({"start_ns": 0, "dur_ns": 10})), view)
    assert (None, ("gemm",), 0) == (earlier.window, earlier.families, len(earlier.kernels))


def test_sample_rows() -> None:
    """Metrics in their units; those that are 0 twice are left out."""
    logs = [run("nvidia_smi", samples=samples(gpu_busy_frac=[share] * 3, power_w=[80] * 3)) for share in (0.2, 0.9)]
    rows = verdict.sample_rows(verdict.attempted(*logs)).set_index("metric")
    assert ["20.0 %", "90.0 %"] == rows.loc["gpu busy", ["before", "after"]].tolist()
    assert "80.0 W" == rows.loc["power", "after"]


def test_overview_of_real_runs(profiles: Path) -> None:
    """Before and after of a training on an A100: files, tool, GPU and length."""
    pair = [
        perfkit.load(profiles / f"nsys/openhackathons-org__AI-Profiler__{name}.sqlite")
        for name in ("baseline_nvtx", "secondOptimization.window5.0-7.0s")
    ]
    told = verdict.overview(*pair).set_index("what")
    assert ["NVIDIA A100-SXM4-80GB"] * 2 == told.loc["GPUs"].tolist()
    assert "openhackathons-org__AI-Profiler__baseline_nvtx.sqlite" == told.loc["run", "before"]


def test_steps_that_are_not_the_same_thing_are_not_told() -> None:
    """Steps from ranges and from kernels: both times, no better or worse, in the sentence, the rows and the frames."""
    found = verdict.attempted(training(), training(8, seed=1, named=False))
    said = verdict.sentence(found)
    assert said.startswith("perfkit cannot tell whether the step got faster. A median step took 9.")
    assert "Confidence in the comparison: low (perfkit found the steps in different ways: nvtx before, kernel" in said
    assert {"cannot tell"} == {*found.steps["verdict"], *found.families["verdict"]}
    rows = verdict.side_rows(found).set_index("id")["verdict"]
    assert {"cannot tell"} == set(rows[rows.index.str.match("step_|part_|family_")])


def test_the_sentence_counts_the_rows(profiles: Path) -> None:
    """Two databases' and two logs' figures: as many are listed as the sentence counts, by every verdict."""
    pairs = [("hpctoolkit/hpctoolkit-dlrm-gpu-database", "hpctoolkit/hpctoolkit-leo-nvidia-database")]
    log = "monitor/nvidia-smi__nvidia-h100-80gb-hbm3__590.48.01__{}__dmon.txt"
    pairs += [(log.format("idle"), log.format("load"))]
    for pair in pairs:
        found = verdict.attempted(*(perfkit.load(profiles / name) for name in pair))
        rows = verdict.side_rows(found)["verdict"]
        count = [len(rows), *(int(rows.eq(word).sum()) for word in ("better", "worse", "changed, not tested"))]
        told = "The runs share no steps. Of {} figures, {} are better, {} are worse and {} changed without a test."
        assert verdict.sentence(found).startswith(told.format(*count))
        assert count[3] == facts(found)["compare_untested_count"].value


@pytest.mark.parametrize(("after", "means", "step"), [(8, "better", "Keep"), (12, "worse", "Undo"), (10, "no", "or")])
def test_decisions(after: float, means: str, step: str) -> None:
    """The ratio and verdict are those of the steps' table; one run of each leaves the noise between runs open."""
    found = verdict.attempted(training(), training(after, seed=1))
    table = verdict.decisions(found).set_index("question")
    faster = table.loc["Did the steps get faster?"]
    assert faster["figure"].startswith(f"{after / 10:.1f}"[:3] if after != 10 else ("0.99", "1.0"))
    assert faster["what it means"].startswith(means)
    assert step in faster["next step"]
    assert "not known" in table.loc["Is it more than noise between runs?", "what it means"]
    assert table["threshold"].str.contains(r"\(").all(), "each threshold has its source"
    assert verdict.decisions(comparison.nothing(verdict.NO_BASELINE)).empty

"""What the first page of a report says, how long it is, and that it answers for every kind of recording."""

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from cells import built, outputs, sharing

import perfkit
from perfkit import diagnosis, report
from perfkit.diagnosis.finding import Figure, Finding, Gain
from perfkit.diagnosis.headline import (
    FAILED,
    achievable,
    headline,
    leading,
    ranked,
    saved,
    speaking,
)
from perfkit.diagnosis.tiles import FEWEST_TILES, MOST_TILES, readings
from perfkit.diagnosis.timeline import STEADY
from perfkit.report import pages
from perfkit.report.blocks import FIRST, plan, slowed
from perfkit.report.notebooks import recorded, sample
from perfkit.report.pages import presentable

WORDS = 900
# A capture of each kind, words of its verdict by hand from its figures, and the labels of its first tiles.
KINDS = {
    "nsys/GindaChen__nsys-ai__h100_2gpu_1s.sqlite": (
        "95.0 % of the time",
        ("GPU busy", "Step time", "Kernels"),
    ),
    "torch/kineto__resnet50_autograd_api_num_workers_0__worker0.pt.trace.json.gz": (
        "21.7 % because the CPU was loading data",
        ("GPU busy", "Step time"),
    ),
    "ncu/Olajide-Badejo__GPU-Roofline-Profiler__gemm_tiled.csv": (
        "Work of the SMs limits",
        ("Kernels measured", "Occupancy", "DRAM traffic"),
    ),
    "hpctoolkit/hpctoolkit-dlrm-gpu-database": (
        "0.17 % of the 80.6 s wall time",
        ("GPU busy", "Copies", "Main stall"),
    ),
    "monitor/smi_query__rtx4090_training_run.csv": ("GPU 0", ("GPU utilisation", "Highest power")),
    "monitor/nccl_debug_info_h20_issue1189.txt": (
        "NCCL connected 4 ranks",
        ("Ranks", "Connections"),
    ),
    "monitor/nccl_log__alcf_resnet50_results_2025-06-26-13-13-06_with_aws.log": (
        f"{FAILED}: Watchdog",
        ("Ranks",),
    ),
    "torch/HTA__cpu_only__rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz": (
        "no work of a GPU",
        ("Step time", "Operators"),
    ),
    "monitor/lessizzmore__create-a3mega__nccl_test_2node_h100.txt": ("337 GB/s", ("All-reduce",)),
    "monitor/deepspeed_flops_profiler_bert_large.txt": ("185 ms", ("Step time", "Throughput")),
}


def words(page: Path) -> list[str]:
    """The words that a person can see on a page: without scripts, styles, and code behind the toggle."""
    soup = BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")
    for hidden in [*soup(["title"]), *soup.select("div.code")]:
        hidden.decompose()
    return soup.get_text(" ").split()


def test_the_first_page_of_the_sample_is_short_and_says_what_its_markdown_says(
    tmp_path: Path,
) -> None:
    with sharing():
        made = built(sample(), tmp_path)
        view = perfkit.select(perfkit.load(sample()))
    shown, markdown = words(made / "index.html"), (made / "summary.md").read_text(encoding="utf-8")
    assert 200 < len(shown) <= WORDS  # what is folded counted too
    assert 200 < len(markdown.split()) <= WORDS
    findings = diagnosis.findings(view)
    found = headline(view, diagnosis.figures(view), findings)
    told = [found.verdict, *(t.value for t in found.tiles)]
    told += [s.text for horizon, steps in plan(findings).items() for s in steps[: FIRST[horizon]]]
    assert [] == [text for text in told if text not in " ".join(shown)]
    assert [] == [text for text in told if text not in markdown.replace("\\", "")]
    behind = " ".join(words(made / "3_system.html"))
    assert [] == [
        s.text for steps in plan(findings).values() for s in steps if s.text not in behind
    ]


def selected(profiles: Path, name: str) -> perfkit.selection.Selection:
    return perfkit.select(perfkit.load(profiles / name))


@pytest.mark.parametrize("path", KINDS)
@pytest.mark.sampled(3)
def test_every_kind_of_recording_has_a_verdict_of_its_own(path: str, profiles: Path) -> None:
    verdict, labels = KINDS[path]
    name = "0_executive_summary"
    with sharing():
        executed = outputs([name], {"profile": str(profiles / path)}, done=lambda *_: None)[name]
        view = selected(profiles, path)
    figures, findings = diagnosis.figures(view), diagnosis.findings(view)
    found = headline(view, figures, findings)
    assert verdict in found.verdict
    assert re.search(r"\d.*\.$", found.verdict)
    shown = tuple(tile.label for tile in found.tiles)
    assert labels == shown[: len(labels)]
    assert FEWEST_TILES <= len(found.tiles) <= MOST_TILES
    assert "nothing can be said" not in found.verdict
    content = {
        "inputs": pages.summary_inputs(view, {"profile": path}),
        "summary": report.summary(view, figures, findings),
        "refusals": list(map(diagnosis.plain, diagnosis.refusals(view))),
        "figures": {},
        "findings": findings,
        "failures": [],
    }
    markdown = pages.markdown(content)
    assert 100 < len(markdown.split()) <= WORDS
    assert found.verdict.startswith(FAILED) == ("Find the rank that stopped first" in markdown)
    kept = presentable(executed, recorded(view.run))
    drawn = [output.data for cell in kept.cells for output in cell.get("outputs", [])]
    assert any("vega" in mime for data in drawn for mime in data)


def finding(rule: str, low: float, high: float, confidence: str = "high", *steps: str) -> Finding:
    gain = Gain(low, high, "")
    advice = {"immediate": steps} if steps else {}
    return Finding(rule, rule, "high", "", (), "", gain, advice, confidence=confidence)


def test_findings_rank_by_the_time_they_save() -> None:
    """2x saves 50 % of the time, so 1 to 2x 25 %, 1.5 to 1.6x 35 %; what is doubted comes last, unknown saves none."""
    given = [
        finding("a", 1, 2),
        finding("b", 1.5, 1.6),
        finding("c", 5, 6, "low"),
        finding("d", 1, math.inf),
    ]
    assert ["b", "a", "d", "c"] == [f.rule for f in ranked(given)]
    told = report.blocks.gains([*given, finding("e", 1, 19.8)], {})
    assert ["b", "a", "c"] == told["finding"].tolist(), "a bound of 19.8x is not known either"
    step = Figure("step_median_ns", "", 3e6, "ns", "", "")
    mixed = report.blocks.gains(
        [given[1], replace(given[0], gain=Gain(1.5, 1.5, "", whole=STEADY))], {step.id: step}
    )
    assert ["b", "a (gain of the steady steps)"] == mixed["finding"].tolist()
    assert ["1.00 ms to 1.12 ms per step", "1.00 ms per step"] == mixed["time saved"].tolist()
    assert achievable(Gain(1.5, 1.6, "")) == pytest.approx((1 / 3 + 0.375) / 2)


def idle_cause(rule: str, share: float, confidence: str) -> Finding:
    """A cause of idle time with this share, of which a replay says that it gains 1.3 to 1.4x."""
    gain = Gain(1.3, 1.4, "", share) if rule == "small_operators" else Gain(1.1, 1.2, "", share)
    return replace(finding(rule, 1, 2, confidence), gain=gain)


@pytest.mark.parametrize(
    ("share", "confidence", "first"),
    [
        (0.19, "high", "idle_data_loading"),
        (0.10, "high", "small_operators"),
        (0.19, "low", "small_operators"),
        (0.30, "low", "idle_data_loading"),
    ],
)
def test_the_largest_cause_of_idle_time_leads(share: float, confidence: str, first: str) -> None:
    """Launching takes 0.11 of the time; what is less sure must take more than twice as much."""
    launching = idle_cause("small_operators", 0.11, "medium")
    loading = idle_cause("idle_data_loading", share, confidence)
    assert first == leading([launching, loading])[0].rule


IDLE_LOGS = {
    "nvidia-smi__nvidia-h100-80gb-hbm3__590.48.01__idle__query-gpu.csv": "No kernel ran on the GPU",
    "nvidia-smi__nvidia-geforce-rtx-2080-super__610.57.04__idle__dmon.txt": "No kernel ran on the GPU",
    "dcgm_exporter_t4_k8s.prom": "No kernel ran on any of the 2 GPUs",
}


@pytest.mark.parametrize("name", IDLE_LOGS)
def test_a_log_of_idle_gpus_says_that_no_kernel_ran(name: str, profiles: Path) -> None:
    """Utilisation is 0 in each reading, or no SM is ever active: little power and low utilisation follow from it."""
    view = selected(profiles, f"monitor/{name}")
    found = diagnosis.findings(view)
    assert ["log_no_work"] == [f.rule for f in found]
    assert IDLE_LOGS[name] in headline(view, diagnosis.figures(view), found).verdict


def test_a_step_of_two_findings_is_told_once_with_the_larger_gain() -> None:
    # What gains less than 1 % asks for nothing; a gain that is unknown or none keeps its advice.
    given = [
        finding("idle_sync", 1, 1.2, "high", "x"),
        finding("idle_launch", 2, 3, "high", "x", "y"),
    ]
    warm_up = replace(finding("warm_up", 1, 1, "high", "w"), severity="medium")
    given += [finding("precision", 1, 1.004, "high", "z"), warm_up]
    told = [(s.text, s.reason) for s in plan(given)["immediate"]]
    assert [("x", "launch, 2.0x to 3.0x"), ("y", "launch, 2.0x to 3.0x"), ("w", "warm up")] == told


def test_two_short_kernels_judge_no_program(profiles: Path) -> None:
    # A graph is captured in 33.7 ms and two kernels run for 11 us.
    view = selected(profiles, "torch/TraceLens__sglang_decode__CAPTURE_bs_32_rank0.json.gz")
    found = diagnosis.findings(view)
    said = headline(view, diagnosis.figures(view), found)
    assert said.verdict.startswith("The recording holds only 2 operations of the GPU.")
    assert "Possible gain" not in {tile.label for tile in said.tiles}
    assert {"low"} == {finding.confidence for finding in found}


FAILURE = "monitor/nccl_log__alcf_resnet50_results_2025-06-26-13-13-06_with_aws.log"


def test_a_failed_run_says_so_first_whatever_else_is_found(profiles: Path) -> None:
    view = selected(profiles, FAILURE)
    slow = [finding("idle", 2, 3)]
    assert headline(view, {}, slow).verdict.startswith(
        "The run failed: Watchdog caught collective operation timeout"
    )
    alone, beside = (report.first_steps(found, {}, view).text for found in ([], slow))
    assert alone.startswith("Find the rank that stopped first")
    assert beside.startswith("Find the rank that stopped first")
    assert "no problem" not in alone
    assert "idle" in beside
    ended = selected(profiles, "monitor/nccl_debug_info_h20_issue1189.txt")
    assert "no problem" in report.first_steps([], {}, ended).text


def test_what_half_of_the_time_is_no_median_step_is_saved_per_run() -> None:
    """Ten median steps of 100 ms in 2 s: what fills the other second happens in few steps."""
    step = Figure("step_median_ns", "Median step", 100e6, "ns", "", "")
    count = Figure("step_count", "Steps", 10, "count", "", "")
    span = Figure("span_ns", "Span", 2e9, "ns", "", "")
    known = {figure.id: figure for figure in (step, count, span)}
    assert "1.00 s per run" == saved(Gain(2, 2, ""), known)


def test_gains_in_time_and_words() -> None:
    # Of a step of 100 ms: 2x saves 50 ms, 4x 75 ms; without steps it is that of the run.
    step = Figure("step_median_ns", "Median step", 100e6, "ns", "", "")
    span = Figure("span_ns", "Span", 2e9, "ns", "", "")
    assert "50.0 ms to 75.0 ms per step" == saved(
        Gain(2, 4, ""), {"step_median_ns": step, "span_ns": span}
    )
    assert "1.50 s per run" == saved(Gain(1, 4, ""), {"span_ns": span})
    assert "" == saved(Gain(1, 1.005, ""), {"span_ns": span})
    # What saves less than 1 % is no first step, even where it is all there is.
    much, unknown, little = (finding("idle", *gain) for gain in ((2, 3), (1, math.inf), (1, 1.005)))
    assert [much, unknown] == leading([little, unknown, much])
    assert [] == leading([little, replace(little, title="another")])
    # A narrow range is one number; a bound above 10x without a replay is no promise.
    said = {
        (2.0, 2.1): "about 2.0 times faster",
        (1.05, 1.3): "1.05 to 1.3 times faster",
        (1.0, 1.0): "",
    }
    said |= {(1.0, 1.03): "at most 3.0 % faster", (1.0, 1.001): "saves less than 1 %"}
    said |= dict.fromkeys([(1.0, 50.0), (1.0, math.inf)], "does not show how much faster")
    for gain, words in said.items():
        assert words in speaking(Gain(*gain, ""))
        assert bool(words) == bool(speaking(Gain(*gain, "")))


def test_readings_are_those_of_the_log() -> None:
    """nvidia-smi wrote 100 lines; the trace beside them notes PyTorch's memory at 1,614 more moments."""
    run = sample("gpu_workloads/resnet18_training")
    lines = (run / "nvidia-smi.csv").read_text().splitlines()
    assert len(lines) - 1 == readings(perfkit.select(perfkit.load(run))) == 100


def test_a_profiler_that_slows_the_steps_is_told(tmp_path: Path) -> None:
    """Without it 64.62 ms for 50 steps; in the trace the median steady step. Below 1.25 times nothing is said."""
    run = sample("gpu_workloads/resnet18_inference")
    row = json.loads((run / "timings.json").read_text(encoding="utf-8"))["rows"][-1]
    view = perfkit.select(perfkit.load(run))
    step = {"step_median_ns": diagnosis.figures(view)["step_median_ns"]}
    told = report.first_screen(view, step, []).text
    assert 1.29 == round(row["wall_ns"] / row["steps_count"] / 1e6, 2)
    assert 2.8 == round(step["step_median_ns"].value / 1e6, 2)
    assert told.endswith(
        "A step takes 1.29 ms without the profiler (timings.json), and 2.80 ms here. "
        "So the GPU waits less for the CPU than this page says."
    )
    even = {
        "step_median_ns": replace(
            step["step_median_ns"], value=1.24 * row["wall_ns"] / row["steps_count"]
        )
    }
    assert "" == slowed(view, even) == slowed(view, {})
    shutil.copy(run / "rank-0.pt.trace.json.gz", tmp_path)
    copied = perfkit.select(perfkit.load(tmp_path))
    for rows in (
        "{",
        "[]",
        '{"rows": []}',
        '{"rows": [{"wall_ns": 1, "steps_count": 0}]}',
        '{"rows": [{"wall_ns": []}]}',
    ):
        (tmp_path / "timings.json").write_text(rows)
        assert "" == slowed(copied, step)


def test_a_page_without_further_steps_says_so() -> None:
    assert "No finding has a further step." in report.recommendations([]).html

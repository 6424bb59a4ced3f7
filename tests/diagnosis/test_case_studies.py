"""The four case studies of the course, healthy and hostile traces, and what is said of real ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from diagnosis.traces import (
    MS,
    US,
    healthy,
    micro_kernels,
    of_tables,
    reading_values,
    run,
    tokenising,
    unfused_attention,
    waiting_for_input,
    work,
)
from frames import ranges
from ops import op, python_calls

import perfkit
from perfkit import diagnosis, report
from perfkit.diagnosis.finding import Finding
from perfkit.run import Run

CASES: dict[str, Callable[[], Run]] = {
    "idle_data_loading": waiting_for_input,
    "small_operators": micro_kernels,
    "attention": unfused_attention,
    "preparation": tokenising,
}
RULES = {*CASES, "input", "synchronisation", "precision", "ranks"}


def found(of: Run | perfkit.Selection) -> dict[str, Finding]:
    """The findings by their rule."""
    return {finding.rule: finding for finding in diagnosis.findings(of)}


@pytest.mark.parametrize("rule", CASES)
def test_each_case_study_is_found_in_its_own_trace_alone(rule: str) -> None:
    """Each trace has one planted cause: that of its rule is severe, and none of the others fires."""
    causes = found(CASES[rule]())
    assert {rule} == RULES & set(causes)
    assert "high" == causes[rule].severity


def test_a_healthy_trace_has_no_severe_finding() -> None:
    """A GPU that computes 99.9 % of the time in bf16 with fused attention: only that it is busy is told."""
    assert [("computation", "low")] == [(f.rule, f.severity) for f in diagnosis.findings(healthy())]


@pytest.mark.parametrize("name", ["aten::<script>alert(1)</script>", "a\x00\x1b[31m\u202e\nb", "tokenize" * 1250])
def test_names_from_outside_stay_names(name: str) -> None:
    """Names of operators, ranges, kernels and functions cannot break out of a finding, nor fill a page."""
    micro = [work(name, i * 20 * US + US, i * 20 * US + 4 * US, 3 * US, kernel=name) for i in range(100)]
    tokens = op(f"{name} tokenize"[-9000:], 3 * MS, 9 * MS)
    late = work(name, 10 * MS, 10 * MS + 5 * US, 3 * US, kernel=name)
    calls = [{"start_ns": i * 20 * US + 8 * US, "dur_ns": 12 * US, "name": "cudaDeviceSynchronize"} for i in range(99)]
    one = run(*micro, late, calls=calls, ranges=ranges(tokens), python_calls=python_calls(op(name, 0, 2 * MS)))
    told = diagnosis.findings(one)
    assert told
    for finding in told:
        figures = [text for figure in finding.evidence for text in (figure.label, figure.definition)]
        texts = [finding.title, finding.explanation, finding.gain.reason, *figures]
        assert all(text.isprintable() and len(text) <= 400 for text in texts)
    assert "<script>" not in report.key_findings(told, diagnosis.figures(one)).html


@pytest.mark.parametrize("made", [*CASES.values(), healthy, lambda: reading_values(58)])
def test_gains_never_exceed_the_part_they_name(made: Callable[[], Run]) -> None:
    """What the CPU does wrong costs at most the idle time, what the GPU does the time of its kernels; all by Amdahl."""
    planted = made()
    figures = diagnosis.figures(planted)
    for finding in found(planted).values():
        if finding.rule in RULES and finding.gain.share is not None:
            part = "kernel_busy_frac" if finding.rule in ("attention", "precision", "ranks") else "idle_frac"
            assert finding.gain.share <= figures[part].value
            # The host that is not held up gets ahead, so that other idle time may go as well, but never computation.
            assert 1.0 <= finding.gain.high <= 1.03 / max(1 - figures[part].value, 1e-9)


def test_findings_in_a_window() -> None:
    """In a window without any wait nothing is told of it: from 140 to 200 ms the GPU computes."""
    view = perfkit.select(waiting_for_input(), window=(141 * MS, 199 * MS))
    assert {"computation"} == set(found(view))


def test_operators_without_a_gpu_have_no_finding() -> None:
    """Where no GPU was recorded, operators alone cost nothing that is known."""
    assert {} == found(of_tables(OPS=micro_kernels().ops))


@pytest.mark.parametrize(
    ("trace", "told"),
    [
        ("HTA__alexnet__benchmark_result_2869224_1695835535_trace.json.gz", {"precision"}),
        ("HTA__negative_queue_length_values_check__rank0.json.gz", {"precision"}),
        ("HTA__ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz", {"precision"}),
        ("TraceLens__b200__eager_trace.json.gz", {"small_operators"}),
        ("TraceLens__h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", set()),
        ("TraceLens__h100__gaunernst_bert-small-uncased__1016001.json.gz", {"small_operators"}),
        ("TraceLens__perf_model__normalization__normalization_layer_test.json.gz", set()),
        ("TraceLens__sglang_decode__sglang_Qwen3-8B_decode.json.gz", set()),
        ("TraceLens__vllm_decode_full__graph_execution.json.gz", set()),
        ("TraceLens__xdit_sd_3.5__profile_trace_rank_0.json.gz", set()),
        ("kineto__resnet50_num_workers_0__worker0.1623143566756.pt.trace.json.gz", {"precision", "small_operators"}),
    ],
)
def test_real_traces(profiles: Path, trace: str, told: set[str]) -> None:
    """What the framework's rules say of traces that others published: nothing of graphs, of start-up or of tests."""
    causes = found(perfkit.load(profiles / "torch" / trace))
    assert told == (RULES - {"idle_data_loading"}) & set(causes)
    assert all(f.gain.share is None or 0 <= f.gain.share <= 1 for f in causes.values())


def test_the_parts_of_pauses_between_launches_add_up_to_the_title() -> None:
    """What the GPU waits for between small kernels is divided into parts, none larger than the whole."""
    finding = found(micro_kernels())["small_operators"]
    parts = re.findall(r"([\d.]+) % (?:while|between)", finding.explanation.partition("In these gaps")[2])
    assert parts
    assert sum(map(float, parts)) == pytest.approx(100 * finding.evidence[0].value, abs=0.05 * len(parts))

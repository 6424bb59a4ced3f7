"""What students read who made a plausible mistake: an explanation before they hand in, and never an empty error."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest
from labs.submissions import NOTEBOOKS, kind, points, read, released

from perfkit.report.lab import form

# Notebook: a student's wrong function by the test that meets it, and what the student reads.
WRONG = {
    "lab1_the_gpu": {
        "test_peak": ("def peak_flops_per_s(fma, sms, hz): return fma * sms * hz", "two operations"),
        "test_dense": ("def dense_peak(claimed, fma, sms, hz): return claimed", "with sparsity"),
        "test_ridge": ("def ridges(flops, bandwidth): return 161.2", "a dictionary, not a float"),
        "test_lost": ("def is_lost(weight, update, bits): update < 2.0**-bits", "`return`"),
    },
    "lab2_mlp_cnn": {
        "test_window": (
            "def gpu_window(k, c): return int(k.start_ns.min()), int((k.start_ns + k.dur_ns).max())",
            "one window. The group had two",
        ),
        "test_busy": (
            "def kernel_busy_frac(k, window): return k.dur_ns.sum() / (k.start_ns + k.dur_ns).max()",
            "describes the whole capture",
        ),
        "test_active": (
            "def sm_active_frac(s, window): return s[s.metric == 'sm_active_frac'].value.mean()",
            "the mean of the whole capture",
        ),
        "test_occupancy": ("def mean_occupancy_frac(n): return n.achieved_occupancy_frac.mean()", "plain mean"),
        "test_inside": (
            "def bandwidth_in_kernels(n): return (n.dram_bytes / n.dur_ns).sum() * 1e9",
            "added or averaged",
        ),
        "test_added": ("def may_be_added(metric, unit): return unit != '%'", "not one at 2 GHz"),
        "test_elapsed": (
            "def elapsed_s(cycles, hz): return cycles.sum() / hz.sum()",
            "Cycles add up, clock rates do not",
        ),
        "test_point": (
            "def roofline_point(n): f = n.fp32_flops.sum(); return 4.5e12 * f / 32504064, f / n.dram_bytes.sum()",
            "added clocks",
        ),
        "test_bound": ("def bound(rate, ai, peak, bw): return 'memory'", "neither roof limits them"),
    },
    "lab4_experiments": {
        "test_mfu_ratio": (
            "def mfu_ratio(speedup, before, after): return speedup * after / before",
            "turned the peaks",
        ),
        "test_after": ("def busy_after(busy, factor): return 1 - (1 - busy) / factor", "cannot raise the share"),
        "test_implied": (
            "def implied_peak_ratio(speedup, before, after): return after / before",
            "how much the MFU grew",
        ),
    },
    "lab5_choices": {
        "test_time_to": ("def time_to(history, target): return float(history.time_s.max())", "not the moment"),
        "test_accumulate": (
            "def accumulated_rate(b, n, micro, update): return b / (micro + update)",
            "every micro-batch",
        ),
        "test_enough": ("def enough_workers(s, t=0): return int(s.workers[s.step_ns.idxmin()])", "nearly as fast"),
    },
    "lab5_cases": {
        "test_waiting": ("def waiting_frac(k, c, calls, ranges): return 0.87", "works on the step before"),
        "test_cause": ("def main_cause(k, c, calls, ranges): return 'launch'", "in the gaps"),
        "test_idle": ("def idle_frac(k, c): return 0.98", "while the CPU waits"),
        "test_hidden": (
            "def exposed_communication_frac(k): return float(analysis.communication.overlap(k).overlap_frac.iloc[0])",
            "the hidden share",
        ),
        "test_late": (
            "def late_rank(k): return int(k[k.family == 'communication'].groupby('rank').dur_ns.sum().idxmax())",
            "the victim",
        ),
        "test_seven": (
            "def copy_frac(k, c): return c.dur_ns.sum() / (c.dur_ns.sum() + k.dur_ns.sum())",
            "impossible durations are still",
        ),
        "test_tree": ("def tree_total(m, metric): return m[m.metric == metric].inclusive.sum()", "once per caller"),
        "test_combined": (
            "def combined(p, r): return math.prod(1 / (1 - a * b) for a, b in zip(p, r))",
            "the same time twice",
        ),
        "test_dcgm": ("def tensor_activity(reading): return reading[1003]", "off by one"),
        "test_mfu": ("def mfu_after(mfu, speedup): return 0.58, True", "does not fit the speed-up"),
    },
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_meets_its_explanation_before_handing_in(name: str) -> None:
    """The visible tests of the released lab name the mistake; all other tasks are solved."""
    space: dict[str, Any] = {"__name__": "__main__"}
    met = set()
    for cell, shown in zip(read(name).cells, released(read(name)).cells, strict=True):
        test = cell.metadata.get("nbgrader", {}).get("grade_id")
        if cell.cell_type == "code" and test in WRONG[name]:
            source, words = WRONG[name][test]
            mine = dict(space)
            exec(source, mine)
            with pytest.raises(AssertionError, match=re.escape(words)):
                exec(compile(shown.source, "cell", "exec"), mine)
            met.add(test)
        if cell.cell_type == "code":
            exec(compile(cell.source, "cell", "exec"), space)
    assert met == set(WRONG[name])


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_check_explains_itself(name: str) -> None:
    """Each assertion has a message; each test checks the form of the answer first, where students see it."""
    for cell in read(name).cells:
        if kind(cell) == (True, False):
            empty = [node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Assert) and not node.msg]
            assert [] == [ast.unparse(node) for node in empty]
            assert "form(" in cell.source.partition("### BEGIN HIDDEN TESTS")[0]
    assert points(read(name))


@pytest.mark.parametrize(
    ("answer", "example", "words"),
    [
        (None, 1.0, "returned None"),
        (True, 1.0, "a number, not a bool"),
        ("1", 1.0, "a number, not a str"),
        (1.0, (1.0, 1.0), "2 values"),
        ((1.0, "a"), (1.0, 1.0), "a number, not a str"),
        ([1], {}, "a dictionary, not a list"),
    ],
)
def test_form_says_what_is_wrong(answer: object, example: object, words: str) -> None:
    """Nothing, another type, or another number of values."""
    with pytest.raises(AssertionError, match=words):
        form(answer, example)

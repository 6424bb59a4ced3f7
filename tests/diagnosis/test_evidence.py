"""Advice is left out where the recording disproves it, and commands name what this run shows."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest
from diagnosis.test_diagnosis import _view
from frames import copies, kernels

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis import evidence
from perfkit.diagnosis.rules import Step

# Capture, finding, what its advice must not say, and the fact of the recording that disproves it.
DISPROVED = {
    "ncu/AlpriElse__cs599k__rms-norm-pytorch.ncu-rep": ("compute_bound", r"\{ncu\}|ncu --set", "counters"),
}
MS = 1_000_000


def _steps(view: perfkit.Selection) -> dict[str, str]:
    return {f.rule: "; ".join(s for texts in f.advice.values() for s in texts) for f in diagnosis.findings(view)}


@pytest.mark.parametrize("capture", DISPROVED)
def test_advice_that_the_recording_disproves_is_left_out(capture: str, profiles: Path) -> None:
    """The fact holds by the raw tables, and nothing that it disproves is said of any finding."""
    rule, banned, fact = DISPROVED[capture]
    view = perfkit.select(perfkit.load(profiles / capture))
    assert evidence.holds(view, fact=fact)
    said = _steps(view)
    assert rule in said
    assert [] == [step for step in said.values() if re.search(banned, step)]


@pytest.mark.parametrize(("memory", "size", "present"), [("pinned", 183_000_000, False), ("pageable", 100_000, True)])
def test_copies_decide_on_pinning_and_merging(memory: str, size: int, present: bool) -> None:
    """Pinned copies of 183 MB are not to be pinned, and no copy above 64 KB is to be merged with others."""
    copied = [
        {"start_ns": i * 10 * MS, "dur_ns": 8 * MS, "bytes": size, "direction": "H2D", "src_memory": memory}
        for i in range(10)
    ]
    ran = [{"start_ns": i * 10 * MS + 8 * MS, "dur_ns": 2 * MS} for i in range(10)]
    view = _view(kernels=kernels(*ran), copies=copies(*copied))
    merging, pinning = Step("immediate", "Merge", only=("small_copies",)), Step("immediate", "Pin", unless=("pinned",))
    assert ({"immediate": ("Pin",)} if present else {}) == evidence.advice(view, (merging, pinning))
    assert present is bool(re.search("pinned|cudaHostAlloc", str(_steps(view))) is not None)


def test_ncu_is_told_the_longest_kernels_past_the_warm_up() -> None:
    """Of two kernels in ten steps the command names both, the longer first; hostile names stay out of a shell."""
    rows = []
    for step in range(10):
        at = step * 10 * MS
        rows += [
            {"start_ns": at, "dur_ns": 2 * MS, "name": "short", "full_name": "void app::short_one<float>(int)"},
            {"start_ns": at + 3 * MS, "dur_ns": 5 * MS, "name": "long", "full_name": "long_one(float*)"},
            {"start_ns": at + 9 * MS, "dur_ns": 5000, "name": "x", "full_name": "x'; rm -rf $HOME #"},
        ]
    command = evidence.commands(_view(kernels=kernels(*rows)), "{ncu}")
    assert "--kernel-name 'regex:^(long_one|short_one)$'" in command
    assert "rm -rf" not in command


def test_ranks_get_a_file_each() -> None:
    """A command for several ranks does not let them overwrite one report."""
    view = _view(kernels=pd.concat([kernels({"rank": rank, "start_ns": 0, "dur_ns": MS}) for rank in (0, 1)]))
    assert "-o report.%q{RANK} PROGRAM" in evidence.commands(view, "{nsys}")

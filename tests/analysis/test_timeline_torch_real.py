"""Launch delays, gaps and idle time of real PyTorch traces, against truth.json and a brute-force loop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from readers.torch_real import TRACES, as_in_the_truth, read

from perfkit.analysis import gaps, launches, timeline
from perfkit.tables import API_CALLS, COPIES, KERNELS

every_trace = pytest.mark.parametrize("name", TRACES)
LIMITS = {"gt_10us": 10_000, "gt_100us": 100_000, "gt_1ms": 1_000_000}


def opened(profiles: Path, name: str) -> tuple[dict[str, Any], pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The truth, kernels, copies and calls of a trace on the truth's clock."""
    truth: dict[str, Any] = json.loads((profiles / "golden" / "torch" / f"{name}.truth.json").read_text("utf-8"))
    capture = read(profiles / "torch" / name)
    tables = (as_in_the_truth(capture, table.name, truth) for table in (KERNELS, COPIES, API_CALLS))
    return truth, *tables


@every_trace
def test_launch_delays(name: str, profiles: Path) -> None:
    """From the start, and from the end, of the call to the start of its kernel: mean, median, largest, negative."""
    truth, kernels, _, calls = opened(profiles, name)
    for gpu, told in truth["devices"].items():
        known = told.get("launch", {"kernels_linked": 0})
        found = launches.latency(KERNELS.make(kernels[kernels["gpu"] == int(gpu)]), API_CALLS.make(calls))
        assert known["kernels_linked"] == len(found)
        if len(found):
            delay, after = found["delay_ns"], found["delay_ns"] - found["api_ns"]
            began, ended = known["from_launch_start"], known["from_launch_end"]
            assert pytest.approx([began["mean"], began["median"], began["max"]], rel=1e-9) == [
                *(delay.mean(), delay.median(), delay.max())
            ]
            assert pytest.approx([ended["mean"], ended["median"]], rel=1e-9) == [after.mean(), after.median()]
            assert ended["negative"] == (after < 0).sum() == found["queue_ns"].isna().sum()


@every_trace
def test_gaps(name: str, profiles: Path) -> None:
    """Stretches of each GPU without any operation, longer than 10 us, 100 us and 1 ms: how many and how long in all."""
    truth, kernels, copies, calls = opened(profiles, name)
    operations = KERNELS.make(kernels), COPIES.make(copies)
    found = gaps.idle_gaps(*operations, API_CALLS.make(calls))
    for gpu, told in truth["devices"].items():
        own = found.loc[found["gpu"] == int(gpu), "dur_ns"]
        for limit, least in LIMITS.items():
            long = own[own > least]
            assert told.get("gaps", {}).get(limit) in (None, {"count": len(long), "total": int(long.sum())}), limit


@pytest.mark.parametrize("name", [name for name in TRACES if name.startswith("HTA")])
def test_idle_and_breakdown_by_brute_force(name: str, profiles: Path) -> None:
    """On HTA's own traces a sweep over the sorted edges, ns by ns exact, gives our parts; HTA rounds to whole us."""
    capture = read(profiles / "torch" / name)
    kernels, copies = capture.table("KERNELS"), capture.table("COPIES")
    for row in timeline.breakdown(kernels, copies).to_dict("records"):
        assert row["span_ns"] == sum(row[f"{part}_ns"] for part in PARTS)
        expected = swept(kernels[kernels["gpu"] == row["gpu"]], copies[copies["gpu"] == row["gpu"]])
        assert expected == {part: row[f"{part}_ns"] for part in PARTS}


PARTS = ("computation", "exposed_communication", "exposed_copy", "idle")


def swept(kernels: pd.DataFrame, copies: pd.DataFrame) -> dict[str, int]:
    """The four parts by walking over all edges with a count of what runs of each kind."""
    is_set = (copies["direction"] == "memset").to_numpy(bool)
    talks = (kernels["family"] == "communication").to_numpy(bool)
    kinds = [kernels[~talks], kernels[talks], copies[~is_set], copies[is_set]]
    edges: list[tuple[int, int, int]] = []
    for kind, frame in enumerate(kinds):
        place = 0 if kind == 3 else kind
        for start, dur in zip(frame["start_ns"].tolist(), frame["dur_ns"].tolist(), strict=True):
            edges += [(start, 1, place), (start + dur, -1, place)]
    running, parts, before = [0, 0, 0], dict.fromkeys(PARTS, 0), min(edges)[0]
    for time, change, kind in sorted(edges):
        part = next((name for name, count in zip(PARTS, running, strict=False) if count), "idle")
        parts[part] += time - before
        running[kind] += change
        before = time
    return parts

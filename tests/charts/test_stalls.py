"""The stall charts: one bar a launch or kernel, in shares that fill it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import pytest

import perfkit
from perfkit.charts import kernels
from perfkit.errors import SchemaError

GPU = "hpctoolkit/hpctoolkit-dlrm-gpu-database"
LAUNCHES = pd.DataFrame({"rank": [0, 0], "launch": [0, 1], "name": ["short", "long"], "dur_ns": [10.0, 90.0]})


def shares(*rows: tuple[int, str, float]) -> pd.DataFrame:
    """Shares as `analysis.warps.stall_shares` returns them."""
    return pd.DataFrame([(0, *row) for row in rows], columns=["rank", "launch", "reason", "share_frac"])


def of_kernels(**kernels: dict[str, float]) -> pd.DataFrame:
    """Values of each kernel's reasons, with their shares."""
    rows = [(name, reason, value) for name, reasons in kernels.items() for reason, value in reasons.items()]
    frame = pd.DataFrame(rows, columns=["name", "reason", "value"])
    return frame.assign(share_frac=frame["value"] / frame.groupby("name")["value"].transform("sum"))


Checked = Callable[[alt.TopLevelMixin], dict[str, Any]]


def test_longest_launch_comes_first_and_names_its_stall(checked: Checked) -> None:
    """'long' takes 90 ns of 100: it is bar 1, and its largest stall, not what issued, is the title."""
    chart = kernels.stalls(shares((1, "selected", 0.7), (1, "long_scoreboard", 0.3), (0, "wait", 1.0)), LAUNCHES)
    spec = checked(chart)
    assert "1. long: long scoreboard is 30.0 % of warp time" == spec["title"]["text"]
    assert ["1. long", "1. long", "2. short"] == [row["label"] for row in spec["layer"][0]["rows"]]


def test_segments_lie_end_to_end(checked: Checked) -> None:
    """0.3 and 0.7 are drawn from 0 to 0.3 and from 0.3 to 1."""
    rows = checked(kernels.stalls(shares((1, "wait", 0.3), (1, "selected", 0.7)), LAUNCHES))["layer"][0]["rows"]
    assert [(0.0, 0.3), (0.3, 1.0)] == [(round(r["begin"], 9), round(r["end"], 9)) for r in rows]


def test_rare_reasons_become_one(checked: Checked) -> None:
    """Of ten reasons six are drawn by name, the other four together."""
    ten = shares(*((1, f"reason_{n}", 0.1) for n in range(10)))
    reasons = [row["reason"] for row in checked(kernels.stalls(ten, LAUNCHES))["layer"][0]["rows"]]
    assert (7, "other reasons") == (len(reasons), reasons[-1])


def test_launches_without_stalls_are_a_sentence() -> None:
    """Nothing measured draws nothing and says which section measures it."""
    assert "WarpStateStats" in kernels.stalls(shares(), LAUNCHES).to_dict()["description"]


def test_missing_column_and_wrong_share_are_refused() -> None:
    """A frame that is not of the analysis, or a share above 1, is an error."""
    with pytest.raises(SchemaError, match="share_frac"):
        kernels.stalls(shares().drop(columns="share_frac"), LAUNCHES)
    with pytest.raises(ValueError, match="is not a fraction"):
        kernels.stalls(shares((1, "wait", 1.5)), LAUNCHES)


def test_a_launch_that_only_issued_is_drawn(checked: Checked) -> None:
    """Where nothing stalled, the title says how much was issued."""
    spec = checked(kernels.stalls(shares((1, "selected", 1.0)), LAUNCHES))
    assert "1. long: selected is 100 % of warp time" == spec["title"]["text"]


def test_all_kernels_together_come_first(checked: Checked) -> None:
    """a waits 60 for gmem and 20 for sync, b 20 for idep: together gmem is 60 of 100, though it is 75 % of a's."""
    spec = checked(kernels.stalled_kernels(of_kernels(b={"idep": 20.0}, a={"gmem": 60.0, "sync": 20.0})))
    assert "All 2 kernels: global memory (gmem) is 60.0 % of stalls" == spec["title"]["text"]
    assert {
        ("All 2 kernels", "global memory (gmem)", "60.0 %"),
        ("All 2 kernels", "input dependence (idep)", "20.0 %"),
        ("All 2 kernels", "synchronisation (sync)", "20.0 %"),
        ("1. a", "global memory (gmem)", "75.0 %"),
        ("1. a", "synchronisation (sync)", "25.0 %"),
        ("2. b", "input dependence (idep)", "100 %"),
    } == {(row["label"], row["reason"], row["share"]) for row in spec["layer"][0]["rows"]}
    assert ["All 2 kernels", "1. a", "2. b"] == spec["layer"][0]["encoding"]["y"]["sort"]


def test_kernels_beyond_the_first_count_in_the_whole(checked: Checked) -> None:
    """With one bar, b's 40 of 100 have no bar of their own and are in the first one."""
    rows = checked(kernels.stalled_kernels(of_kernels(a={"gmem": 60.0}, b={"sync": 40.0}), top=1))["layer"][0]["rows"]
    assert {("All 2 kernels", "60.0 %"), ("All 2 kernels", "40.0 %"), ("1. a", "100 %")} == {
        (row["label"], row["share"]) for row in rows
    }


def test_one_kernel_is_no_crowd(checked: Checked) -> None:
    """A single kernel has one bar; a reason nobody described keeps its name."""
    spec = checked(kernels.stalled_kernels(of_kernels(a={"zzz": 1.0})))
    assert "1. a: zzz is 100 % of stalls" == spec["title"]["text"]
    assert ["1. a"] == [row["label"] for row in spec["layer"][0]["rows"]]


def test_kernels_without_samples_are_a_sentence() -> None:
    """Nothing sampled draws nothing and says which option samples."""
    assert "gpu=nvidia,pc" in kernels.stalled_kernels(of_kernels()).to_dict()["description"]


def test_wrong_values_of_kernels_are_refused() -> None:
    """A negative value, no bar, and a missing column are errors."""
    with pytest.raises(ValueError, match=r"value: -1\.0 is negative"):
        kernels.stalled_kernels(of_kernels(a={"gmem": 1.0}).assign(value=-1.0))
    with pytest.raises(ValueError, match="top: 0 is not at least 1"):
        kernels.stalled_kernels(of_kernels(a={"gmem": 1.0}), top=0)
    with pytest.raises(SchemaError, match="value"):
        kernels.stalled_kernels(of_kernels(a={"gmem": 1.0}).drop(columns="value"))


def test_the_real_stalls_are_nearly_half_memory(profiles: Path, checked: Checked) -> None:
    """DLRM on a GPU: gmem is 1,651,113,984 of 3,770,793,984 stalled instructions, 43.79 %, by truth.json."""
    run = perfkit.load(profiles / GPU)
    total = json.loads((profiles / "golden" / f"{GPU}.truth.json").read_text())["total"]
    stall = run.stalls.groupby("reason", observed=True, as_index=False)["value"].sum().assign(name="all")
    frame = stall.assign(share_frac=stall["value"] / stall["value"].sum())
    title = checked(kernels.stalled_kernels(frame))["title"]["text"]
    share = total["GINS:STL_GMEM"] / total["GINS:STL_ANY"]
    assert f"1. all: global memory (gmem) is {100 * share:.1f} % of stalls" == title

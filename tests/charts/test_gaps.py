"""Pictures of idle time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import altair as alt
import pandas as pd
import pytest

from perfkit.charts.timeline import causes, histogram
from perfkit.errors import SchemaError

Check = Callable[[alt.TopLevelMixin], dict[str, Any]]


def _hist(*rows: tuple[int, int, str, int, int]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["lower_ns", "upper_ns", "cause", "count", "total_ns"])


def _causes(*rows: tuple[int, str, str | None, int]) -> pd.DataFrame:
    """Idle time from gpu, cause, detail and total."""
    frame = pd.DataFrame(rows, columns=["gpu", "cause", "detail", "total_ns"]).assign(rank=0, count=1)
    return frame.assign(share_frac=frame["total_ns"] / frame.groupby("gpu")["total_ns"].transform("sum"))


def test_causes_of_a_bin_stand_on_one_another(checked: Check) -> None:
    """30 µs of host wait and 10 µs of kernel wait in one bin: the second lies from 30 to 40 µs."""
    spec = checked(histogram(_hist((5_000, 10_000, "kernel_wait", 2, 10_000), (5_000, 10_000, "host_wait", 5, 30_000))))
    rows = spec["layer"][0]["rows"]
    assert [(0, 30), (30, 40)] == [(row["bottom"], row["top"]) for row in rows]
    assert "Gaps of 5 µs to 10 µs hold 100 % of the idle time" == spec["title"]["text"]
    assert ["All devices together: 40.0 µs in 7 gaps."] == spec["title"]["subtitle"]


def test_the_title_names_the_bin_with_most_idle_time(checked: Check) -> None:
    """One gap of 90 µs outweighs ten of 1 µs."""
    spec = checked(histogram(_hist((1_000, 2_000, "edge", 10, 10_000), (50_000, 100_000, "edge", 1, 90_000))))
    assert "Gaps of 50 µs to 100 µs hold 90.0 % of the idle time" == spec["title"]["text"]


def test_empty_bins_are_not_drawn(checked: Check) -> None:
    """Bins without gaps, which fill the histogram between others, make no mark."""
    spec = checked(histogram(_hist((1_000, 2_000, "edge", 0, 0), (2_000, 5_000, "edge", 1, 3_000))))
    assert [2_000] == [row["lower"] for row in spec["layer"][0]["rows"]]


def test_a_bin_at_zero_is_refused() -> None:
    """A logarithmic axis has no place for 0."""
    with pytest.raises(ValueError, match="lower_ns: 0 is not above 0"):
        histogram(_hist((0, 1_000, "edge", 1, 10)))


def test_details_take_the_place_of_host_wait(checked: Check) -> None:
    """A host wait is named by what the CPU did; the other causes by themselves; the longest comes first."""
    spec = checked(causes(_causes((0, "kernel_wait", None, 10), (0, "host_wait", "sync", 30))))
    rows = spec["layer"][0]["rows"]
    assert ["host wait: the CPU sat in a synchronising call", "kernel wait: launched, began within 30 µs"] == [
        row["cause"] for row in rows
    ]
    assert "75.0 % of GPU 0's idle time is host wait: the CPU sat in a synchronising call" == spec["title"]


def test_each_device_has_its_panel(checked: Check) -> None:
    """Two GPUs make two panels with one length of axis."""
    spec = checked(causes(_causes((0, "edge", None, 10), (1, "edge", None, 40))))
    assert ["GPU 0", "GPU 1"] == [panel["title"]["text"] for panel in spec["vconcat"]]
    assert 1 == len({str(panel["layer"][0]["encoding"]["x"]["scale"]) for panel in spec["vconcat"]})


@pytest.mark.parametrize("chart", [lambda: histogram(_hist()), lambda: causes(_causes())])
def test_without_gaps_the_chart_says_so(chart: Callable[[], alt.TopLevelMixin], checked: Check) -> None:
    """A device that was never idle is a sentence, not an empty picture."""
    assert ["No device was idle in this window."] == checked(chart())["title"]["subtitle"]


def test_wrong_frames_are_refused() -> None:
    """Unknown causes and details, impossible shares and missing columns are errors that say so."""
    with pytest.raises(ValueError, match=r"cause: \['rain'\] are not among"):
        histogram(_hist((1, 2, "rain", 1, 1)))
    with pytest.raises(ValueError, match=r"detail: \['rain'\] are not among"):
        causes(_causes((0, "host_wait", "rain", 10)))
    with pytest.raises(ValueError, match=r"share_frac: 1\.5 is not a fraction"):
        causes(_causes((0, "edge", None, 10)).assign(share_frac=1.5))
    with pytest.raises(SchemaError, match="detail"):
        causes(_causes((0, "edge", None, 10)).drop(columns="detail"))

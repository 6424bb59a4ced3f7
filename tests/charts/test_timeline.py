"""The timeline and the split of each device's time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import altair as alt
import pandas as pd
import pytest

from perfkit.charts.shares import parts
from perfkit.charts.timeline import lanes
from perfkit.errors import SchemaError

Check = Callable[[alt.TopLevelMixin], dict[str, Any]]
BINS = ["rank", "gpu", "stream", "kind", "start_ns", "dur_ns", "busy_ns", "busy_frac"]
PARTS = ["rank", "gpu", "span_ns", "computation_ns", "exposed_communication_ns", "other_kernels_ns"]
PARTS += ["exposed_copy_ns", "idle_ns"]


def _bins(*rows: tuple[int, int, int, str, int, int, float]) -> pd.DataFrame:
    """Bins from rank, gpu, stream, kind, start and length in ms, and busy share."""
    full = [(*row[:4], row[4] * 10**6, row[5] * 10**6, int(row[5] * row[6] * 10**6), row[6]) for row in rows]
    return pd.DataFrame(full, columns=BINS)


def _breakdown(*rows: tuple[int, ...]) -> pd.DataFrame:
    return pd.DataFrame([(*row[:2], sum(row[2:]), *row[2:]) for row in rows], columns=PARTS)


def _fills(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return spec["layer"][1]["rows"]


def test_kinds_of_a_bin_stand_on_one_another(checked: Check) -> None:
    """0.5 computation and 0.25 copy of one bin: a lane's fill is 0.86 high, so the copy lies between 0.43 and 0.645."""
    rows = _fills(checked(lanes(_bins((0, 0, 7, "copy", 0, 10, 0.25), (0, 0, 7, "computation", 0, 10, 0.5)))))
    heights = {row["kind"]: (round(0.93 - row["low"], 4), round(0.93 - row["high"], 4)) for row in rows}
    assert {"computation": (0, 0.43), "copy": (0.43, 0.645)} == heights


def test_lanes_are_named_and_sorted(checked: Check) -> None:
    """One lane per GPU and stream; the rank is named where there are several, and -1 is unknown."""
    spec = checked(
        lanes(_bins((1, 0, 7, "copy", 0, 1, 0.5), (0, 0, -1, "copy", 0, 1, 0.5), (0, 0, 7, "copy", 0, 1, 0.5)))
    )
    labels = spec["layer"][0]["encoding"]["y"]["axis"]["labelExpr"]
    names = ["rank 0 · GPU 0 · unknown stream", "rank 0 · GPU 0 · stream 7", "rank 1 · GPU 0 · stream 7"]
    assert sorted(names, key=lambda name: labels.index(name.replace("·", "\\u00b7"))) == names


@pytest.mark.parametrize(("length", "symbol"), [(5000, "(s)"), (5, "(ms)")])
def test_the_axis_unit_follows_the_span(length: int, symbol: str, checked: Check) -> None:
    """5 s are shown in seconds, 5 ms in milliseconds."""
    spec = checked(lanes(_bins((0, 0, 7, "copy", 0, length, 0.5))))
    assert spec["layer"][1]["encoding"]["x"]["title"].endswith(symbol)


def test_the_axis_spans_the_window(checked: Check) -> None:
    """Idle time before the first and after the last bin is part of the picture when the window says so."""
    chart = lanes(_bins((0, 0, 7, "copy", 20, 1, 0.5)), window=(0, 100_000_000))
    assert [0, 100] == checked(chart)["layer"][1]["encoding"]["x"]["scale"]["domain"]


def test_overlap_on_one_stream_keeps_to_its_lane(checked: Check) -> None:
    """Kinds that add up to 1.6 of a bin share the lane, and the chart says what a full lane means."""
    spec = checked(lanes(_bins((0, 0, 7, "copy", 0, 10, 0.8), (0, 0, 7, "computation", 0, 10, 0.8))))
    assert pytest.approx(0.07) == min(row["high"] for row in _fills(spec))
    assert "busy 160.0 % of the bin's time" in spec["title"]["subtitle"][0]


def test_steps_inside_the_span_are_ruled(checked: Check) -> None:
    """Steps starting at 0, 5 and 50 ms: the last lies outside of 0..10 ms."""
    steps = pd.DataFrame({"step": [0, 1, 2], "start_ns": [0, 5_000_000, 50_000_000]})
    spec = checked(lanes(_bins((0, 0, 7, "copy", 0, 10, 0.5)), steps=steps))
    assert [0, 5] == [row["start"] for row in spec["layer"][2]["rows"]]


def test_too_many_steps_are_left_out(checked: Check) -> None:
    """101 rules would hide what they divide."""
    steps = pd.DataFrame({"step": range(101), "start_ns": range(101)})
    assert 2 == len(checked(lanes(_bins((0, 0, 7, "copy", 0, 10, 0.5)), steps=steps))["layer"])


def test_of_many_streams_the_busiest_are_drawn(checked: Check) -> None:
    """41 streams, the first the least busy: 40 are drawn, and the chart says so."""
    spec = checked(lanes(_bins(*((0, 0, stream, "copy", 0, 10, 0.1 + stream / 100) for stream in range(41)))))
    assert set(range(1, 41)) == {int(row["lane"].split()[-1]) for row in _fills(spec)}
    assert "These are the busiest 40 of 41 streams." in spec["title"]["subtitle"][0]


def test_an_empty_window_says_so(checked: Check) -> None:
    """Without bins there is no picture but a sentence."""
    assert "No kernel or copy ran" in checked(lanes(_bins()))["title"]["subtitle"][0]


def test_lanes_refuse_unknown_kinds_and_impossible_shares() -> None:
    """A kind without colour or a share of 1.2 is an error of the caller; so is a missing column."""
    with pytest.raises(ValueError, match=r"kind: \['idle'\] are not among"):
        lanes(_bins((0, 0, 7, "idle", 0, 10, 0.5)))
    with pytest.raises(ValueError, match=r"busy_frac: 1\.2 is not a fraction"):
        lanes(_bins((0, 0, 7, "copy", 0, 10, 1.2)))
    with pytest.raises(SchemaError, match="busy_frac"):
        lanes(_bins().drop(columns="busy_frac"))


def test_parts_lie_end_to_end(checked: Check) -> None:
    """400 + 200 + 0 + 150 + 250 of 1000: four bars from 0 over 0.4, 0.6 and 0.75 to 1; the empty part has none."""
    spec = checked(parts(_breakdown((0, 0, 400, 200, 0, 150, 250))))
    bars = [(row["part"], row["begin"], row["end"]) for row in spec["layer"][0]["rows"]]
    assert [
        ("computation", 0, pytest.approx(0.4)),
        ("communication", pytest.approx(0.4), pytest.approx(0.6)),
        ("copy", pytest.approx(0.6), pytest.approx(0.75)),
        ("idle", pytest.approx(0.75), pytest.approx(1)),
    ] == bars
    assert "The GPU is idle 25.0 % of 1.00 µs" == spec["title"]["text"]


def test_narrow_parts_carry_no_figure(checked: Check) -> None:
    """A part of 2 % has no room for its figure; its tooltip has it."""
    rows = checked(parts(_breakdown((0, 0, 20, 0, 0, 0, 980), (0, 1, 0, 0, 0, 0, 1000))))["layer"][0]["rows"]
    assert ("", "2.0 %", "20 ns") == tuple(rows[0][key] for key in ("figure", "share", "time"))


def test_parts_that_do_not_add_up_are_refused() -> None:
    """The parts of a device sum to its span, or the picture would lie."""
    with pytest.raises(ValueError, match="do not sum to span_ns"):
        parts(_breakdown((0, 0, 1, 2, 3, 4, 5)).assign(span_ns=16))


def test_devices_without_a_span_say_so(checked: Check) -> None:
    """A device with span 0 has no shares."""
    assert "No kernel or copy ran" in checked(parts(_breakdown((0, 0, 0, 0, 0, 0, 0))))["title"]["subtitle"][0]

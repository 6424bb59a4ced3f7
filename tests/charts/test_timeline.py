"""When the streams of each GPU are busy, the overview under a brush, and why a GPU is idle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import altair as alt
import pandas as pd
import pytest
from frames import copies, kernels

from perfkit.analysis.timeline import bins
from perfkit.charts import timeline
from perfkit.charts.shares import parts
from perfkit.charts.timeline import causes, histogram, lanes
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
    """25 streams, the first the least busy: 24 are drawn, and the chart says so."""
    spec = checked(lanes(_bins(*((0, 0, stream, "copy", 0, 10, 0.1 + stream / 100) for stream in range(25)))))
    assert set(range(1, 25)) == {int(row["lane"].split()[-1]) for row in _fills(spec)}
    assert "These are the busiest 24 of 25 streams." in spec["title"]["subtitle"][0]


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


Spec = dict[str, Any]


def spans(*rows: dict[str, Any]) -> pd.DataFrame:
    """Bins of 10 ns of [0, 100) with these kernels."""
    return bins(kernels(*rows), copies(), bins=10, window=(0, 100))


def rows(chart: Any) -> list[Spec]:
    """What is drawn."""
    (found,) = chart.to_dict()["datasets"].values()
    return list(found)


def test_a_strip_is_as_strong_as_the_busiest_stream() -> None:
    """In [0, 10) stream 7 works 4 ns and stream 8 works 6 ns: 0.6; in [10, 20) only stream 7, all of it."""
    drawn = spans(
        {"start_ns": 0, "dur_ns": 4}, {"start_ns": 2, "dur_ns": 6, "stream": 8}, {"start_ns": 10, "dur_ns": 10}
    )
    chart = timeline.activity(drawn, span=(0, 100))
    assert [(0, 10, 0.6), (10, 20, 1)] == [(row["start"], row["end"], row["busy"]) for row in rows(chart)]
    title = chart.to_dict()["title"]
    assert "When GPU 0 worked, over 100 ns" == title["text"]
    assert title["subtitle"][0].startswith("Full colour: busy 100 % of the time.")


def test_kinds_of_a_stream_add_up_to_all_of_it() -> None:
    """7 ns of computation and 7 ns of communication that overlap on one stream fill the bin, once."""
    both = spans({"start_ns": 0, "dur_ns": 7}, {"start_ns": 3, "dur_ns": 7, "family": "communication"})
    assert [1] == [row["busy"] for row in rows(timeline.activity(both, span=(0, 100)))]


def test_the_busiest_gpus_are_drawn_and_the_rest_named() -> None:
    """Of 30 GPUs, GPU n working n + 1 ns, 24 are left: 6 to 29, in their order."""
    many = spans(*({"start_ns": 0, "dur_ns": n + 1, "gpu": n} for n in range(30)))
    chart = timeline.activity(many, span=(0, 100))
    assert [f"GPU {n}" for n in range(6, 30)] == [*dict.fromkeys(row["gpu"] for row in rows(chart))]
    assert "These are the busiest 24 of 30 GPUs." in chart.to_dict()["description"]


def test_the_brush_is_where_the_window_is() -> None:
    """Without a window there is none, and the axis spans what was asked for."""
    drawn = spans({"start_ns": 0, "dur_ns": 4})
    spec = timeline.activity(drawn, span=(0, 200), shown=(20, 40)).to_dict()
    assert ["brush", {"x": [20, 40]}] == [spec["params"][0][key] for key in ("name", "value")]
    assert [0, 200] == spec["encoding"]["x"]["scale"]["domain"]
    assert "value" not in timeline.activity(drawn, span=(0, 100)).to_dict()["params"][0]


def test_obeys_the_rules_for_charts(checked: Callable[[Any], Spec]) -> None:
    """Valid, described, with units on its axes."""
    checked(timeline.activity(spans({"start_ns": 0, "dur_ns": 4}), span=(0, 100)))


def test_nothing_to_draw_and_wrong_frames() -> None:
    """An empty frame is a sentence; one without its columns, or with impossible shares, is refused."""
    empty = timeline.activity(spans(), span=(0, 1000), title="Nothing")
    assert "Nothing" == empty.to_dict()["title"]["text"]
    with pytest.raises(SchemaError, match="'busy_ns'"):
        timeline.activity(spans().drop(columns="busy_ns"), span=(0, 100))
    with pytest.raises(ValueError, match="busy_frac: 2"):
        timeline.activity(spans({"start_ns": 0, "dur_ns": 5}).assign(busy_frac=2.0), span=(0, 100))


def test_a_brush_reaches_python() -> None:
    """The widget knows the selection, and takes the page's colour."""
    chart = timeline.brushed(timeline.activity(spans({"start_ns": 0, "dur_ns": 4}), span=(0, 100)))
    seen: list[Any] = []
    chart.selections.observe(lambda change: seen.append(change["new"].value), ["brush"])
    chart._vl_selections = {"brush": {"value": {"start": [2.5, 7]}, "store": []}}
    assert [{"start": [2.5, 7]}] == seen
    assert "currentColor" == chart.embed_options["config"]["axis"]["labelColor"]


def test_a_program_is_used_or_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was made before is taken as it is; else Altair makes one that loads nothing from the network."""
    chart = alt.JupyterChart
    monkeypatch.setattr(chart, "_esm", chart._esm)
    monkeypatch.setattr(chart, "_is_offline", False)
    made = timeline.enable()
    assert "https://esm.sh" not in made
    assert 500_000 < len(made)
    assert 1 == made.count(timeline.COUNTED)
    monkeypatch.setattr(chart, "_is_offline", False)
    assert "kept" == timeline.enable("kept") == timeline.enable()


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
    assert ["host wait: inside a synchronising call", "kernel wait: launched, began within 30 µs"] == [
        row["cause"] for row in rows
    ]
    assert "75.0 % of GPU 0's idle time is host wait: inside a synchronising call" == spec["title"]


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


def test_of_many_gpus_the_idlest_have_a_panel(checked: Check) -> None:
    """Of 1,000 GPUs eight are drawn, those of the last ranks here, and the chart says so."""
    rows = _causes(*((rank, "host_wait", "sync", 1_000 * (rank + 1)) for rank in range(1_000)))
    rows = rows.assign(rank=range(1_000), gpu=0)
    spec = checked(causes(rows))
    drawn = [panel["title"]["text"] for panel in spec["vconcat"]]
    assert [f"rank {rank}" for rank in range(992, 1_000)] == [title[:8] for title in drawn]
    assert "The 8 of 1,000 GPUs that are idle longest." == spec["title"]["subtitle"]

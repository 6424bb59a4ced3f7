"""Kernels by time, number formats of the matrix work, and stall reasons."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import pytest
from frames import kernels

import perfkit
from perfkit.analysis import kernels as analysis_kernels
from perfkit.charts import kernels as charts_kernels
from perfkit.charts.kernels import bars, formats, of_peak, stalled_kernels, stalls
from perfkit.errors import SchemaError
from perfkit.tables import API_CALLS, KERNELS, OPS

Check = Callable[[alt.TopLevelMixin], dict[str, Any]]


def _summary(**totals: int) -> pd.DataFrame:
    names = pd.Series(list(totals), dtype="category")
    total = pd.Series(totals.values(), dtype="int64")
    return pd.DataFrame(
        {"name": names, "family": "gemm", "count": 2, "total_ns": total, "share_frac": total / max(total.sum(), 1)}
    )


def _rows(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return spec["layer"][0]["rows"]


def test_longest_first_and_the_rest_in_one_bar(checked: Check) -> None:
    """60, 25, 10 and 5 µs with two bars: the rest are 15 µs, 15 % and 4 launches."""
    spec = checked(bars(_summary(d=5_000, a=60_000, c=10_000, b=25_000), top=2))
    drawn = [(row["label"], row["time"], row["share"], row["count"]) for row in _rows(spec)]
    assert [("a", 60, "60.0 %", 2), ("b", 25, "25.0 %", 2), ("2 other kernels", 15, "15.0 %", 4)] == drawn
    assert "a takes 60.0 % of GPU kernel time" == spec["title"]["text"]
    assert "GPU time (µs)" == spec["layer"][0]["encoding"]["x"]["title"]


def test_throughput_of_a_kernel_is_the_mean_over_its_time(checked: Check) -> None:
    """Launches of 30 and 10 µs at 20 and 60 % of the compute peak reach 30 % together; what was not measured is not."""
    nan = float("nan")
    rows = [
        ("gemm", 30_000, 0.2, 0.5),
        ("gemm", 10_000, 0.6, 0.5),
        ("copy<", 50_000, nan, 0.9),
        ("none", 9e9, nan, nan),
    ]
    spec = checked(of_peak(pd.DataFrame(rows, columns=["name", "dur_ns", "sm_frac", "memory_frac"]), top=2))
    drawn = [(row["label"], row["unit"], row["told"], row["time"]) for row in _rows(spec)]
    assert [("gemm", "compute", "30.0 %", "40.0 µs")] == drawn[:1]
    assert {("copy<", "memory", "90.0 %", "50.0 µs"), ("gemm", "memory", "50.0 %", "40.0 µs")} == set(drawn[1:])
    assert "copy< reaches 90.0 % of the memory peak" == spec["title"]["text"]


def test_one_kernel_left_over(checked: Check) -> None:
    """A single remaining kernel is not called kernels."""
    assert "1 other kernel" == _rows(checked(bars(_summary(a=2, b=1), top=1)))[-1]["label"]


def test_no_bar_for_nothing(checked: Check) -> None:
    """With as many bars as kernels there is no bar for others."""
    assert ["a", "b"] == [row["label"] for row in _rows(checked(bars(_summary(a=2, b=1))))]


def test_hostile_names_stay_text(checked: Check) -> None:
    """Markup, line breaks and 10,000 characters come from a profile: they are data, on one line and cut."""
    names = {"<script>alert(1)</script>": 3, "x" * 10_000: 2, "line\nbreak\u202e": 1}
    rows = _rows(checked(bars(_summary(**names))))
    assert "<script>alert(1)</script>" == rows[0]["label"]
    assert (62, 400) == (len(rows[1]["label"]), len(rows[1]["name"]))
    assert "line break�" == rows[2]["label"]


def test_names_that_become_equal_keep_their_bars(checked: Check) -> None:
    """Two names of 10,000 characters that differ in the middle get two bars."""
    names = {"x" * 5_000 + middle + "x" * 5_000: 1 for middle in "ab"}
    assert 2 == len({row["label"] for row in _rows(checked(bars(_summary(**names))))})


def test_colours_belong_to_families(checked: Check) -> None:
    """The legend lists the families that are drawn, in their fixed colours; a missing family counts as other."""
    summary = _summary(a=3, b=2).assign(family=pd.Categorical(["communication", None]))
    scale = checked(bars(summary))["layer"][0]["encoding"]["color"]["scale"]
    assert {"domain": ["communication", "other"], "range": ["#D55E00", "#9A9A9A"]} == scale


def test_kernels_of_no_duration(checked: Check) -> None:
    """Kernels that took no time are drawn as such."""
    assert [0] == [row["time"] for row in _rows(checked(bars(_summary(a=0))))]


def test_without_kernels_the_chart_says_so(checked: Check) -> None:
    """An empty summary is a sentence, not an empty picture."""
    assert "No kernel ran" in checked(bars(_summary()))["title"]["subtitle"][0]


def test_wrong_arguments_are_refused() -> None:
    """No bars, a family without colour and a missing column are errors that say so."""
    with pytest.raises(ValueError, match="top: 0 is not at least 1"):
        bars(_summary(a=1), top=0)
    with pytest.raises(ValueError, match=r"family: \['magic'\] are not among"):
        bars(_summary(a=1).assign(family="magic"))
    with pytest.raises(SchemaError, match="total_ns"):
        bars(_summary(a=1).drop(columns="total_ns"))


QWEN = "TraceLens__h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"


def shares(*rows: tuple[str, str, str, int]) -> pd.DataFrame:
    """Matrix work from family, format, tensor cores and time in µs."""
    frame = pd.DataFrame(rows, columns=["family", "format", "tensor_cores", "total_ns"]).astype({"total_ns": "int64"})
    frame = frame.assign(source="name", count=1, total_ns=frame["total_ns"] * 1000)
    return frame.assign(share_frac=frame["total_ns"] / (frame["total_ns"].sum() or np.nan))


def drawn(view: dict[str, Any], *fields: str) -> list[tuple[Any, ...]]:
    """The given fields of a view's rows."""
    return [tuple(row[field] for field in fields) for row in view["rows"]]


def test_formats_lie_end_to_end_in_their_family(checked: Check) -> None:
    """GEMM 20 µs in FP32 and 60 in BF16, convolutions 20: the longest family first, formats in the palette's order."""
    frame = shares(("convolution", "tf32", "yes", 20), ("gemm", "bf16", "yes", 60), ("gemm", "fp32", "no", 20))
    spec = checked(formats(frame))
    assert [
        ("GEMM", "FP32", 0.0, 20.0, "20.0 %"),
        ("GEMM", "BF16", 20.0, 80.0, "60.0 %"),
        ("convolution", "TF32", 0.0, 20.0, "20.0 %"),
    ] == drawn(spec["layer"][0], "family", "format", "begin", "end", "share")
    assert "60.0 % of the time of the matrix work is in BF16" == spec["title"]["text"]
    assert (
        "Tensor cores: 80.0 % yes (filled), 20.0 % no (pale); of 100 µs in 3 kernels." == spec["title"]["subtitle"][0]
    )
    assert "time (µs)" == spec["layer"][0]["encoding"]["x"]["title"]


def test_tensor_cores_are_told_without_colour(checked: Check) -> None:
    """Yes, no and unknown differ in how much they are filled, unknown in its outline; words say the same."""
    answers = ("yes", "no", "unknown")
    spec = checked(formats(shares(*(("gemm", "fp16", answer, 10) for answer in answers))))
    assert [("on tensor cores", 1.0), ("not on tensor cores", 0.55), ("tensor cores unknown", 0.2)] == drawn(
        spec["layer"][0], "cores", "filled"
    )
    dashes = spec["layer"][0]["encoding"]["strokeDash"]["scale"]
    assert [[1, 0], [1, 0], [4, 3]] == dashes["range"]
    words = {row["second"] for view in spec["layer"][1:] for row in view["rows"]}
    assert set(dashes["domain"]) == words


def test_words_read_on_their_ground(checked: Check) -> None:
    """White on filled dark formats, black on filled light ones, the page's ink where the page shines through."""
    frame = shares(("gemm", "bf16", "yes", 10), ("gemm", "fp16", "yes", 10), ("gemm", "fp32", "no", 10))
    views = checked(formats(frame))["layer"][1:]
    inks = {row["format"]: view["mark"].get("color", "page") for view in views for row in view["rows"]}
    assert {"BF16": "#FFFFFF", "FP16": "#000000", "FP32": "page"} == inks


def test_words_shrink_with_the_room(checked: Check) -> None:
    """Of 100 µs, 80 hold all words, 15 the format and its share, 5 none."""
    frame = shares(("gemm", "bf16", "yes", 80), ("gemm", "fp8", "yes", 15), ("gemm", "int8", "yes", 5))
    words = {pair for view in checked(formats(frame))["layer"][1:] for pair in drawn(view, "first", "second")}
    assert {("BF16 · 80.0 %", "on tensor cores"), ("FP8", "15.0 %")} == words


def test_what_is_unknown_is_said(checked: Check) -> None:
    """Where most time has no known format the title says that, and invents none."""
    spec = checked(formats(shares(("gemm", "unknown", "unknown", 3), ("gemm", "fp32", "no", 1))))
    assert "The number format of 75.0 % of the matrix work is unknown" == spec["title"]["text"]


def test_without_matrix_work_the_chart_says_so(checked: Check) -> None:
    """No such kernel, or none that took time, is a sentence."""
    for frame in (shares(), shares(("gemm", "fp32", "no", 0))):
        assert "No GEMM, convolution or attention kernel" in checked(formats(frame))["title"]["subtitle"][0]


@pytest.mark.parametrize("column", ["family", "format", "tensor_cores", "source"])
def test_unknown_values_are_refused(column: str) -> None:
    """A family, format, answer or source that the picture cannot show is an error."""
    with pytest.raises(ValueError, match=rf"{column}: \['magic'\] are not among"):
        formats(shares(("gemm", "fp32", "no", 1)).assign(**{column: "magic"}))


def test_wrong_frames_are_refused() -> None:
    """A missing column and a share above 1 are errors that say so."""
    with pytest.raises(SchemaError, match="tensor_cores"):
        formats(shares().drop(columns="tensor_cores"))
    with pytest.raises(ValueError, match=r"share_frac: 1\.5 is not a fraction"):
        formats(shares(("gemm", "fp32", "no", 1)).assign(share_frac=1.5))


def test_the_values_are_those_of_the_analysis() -> None:
    """Every family, format, answer and source that the analysis knows has words, and no other."""
    known = {
        "family": analysis_kernels.MATRIX_FAMILIES,
        "format": analysis_kernels.FORMATS,
        "tensor_cores": analysis_kernels.ANSWERS,
        "source": analysis_kernels.SOURCES,
    }
    assert {column: set(values) for column, values in known.items()} == {
        column: set(values) for column, values in charts_kernels.LEGAL.items()
    }


def test_the_chart_takes_what_the_analysis_returns(checked: Check) -> None:
    """A GEMM on tensor cores, by its name; and nothing at all."""
    name = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas"
    gemm = kernels({"start_ns": 0, "dur_ns": 400, "family": "gemm", "name": name})
    spec = checked(formats(analysis_kernels.precision(OPS.empty(), gemm, API_CALLS.empty())))
    assert "100 % of the time of the matrix work is in BF16" == spec["title"]["text"]
    empty = analysis_kernels.precision(OPS.empty(), KERNELS.empty(), API_CALLS.empty())
    assert "Nothing to draw" in checked(formats(empty))["description"]


def test_the_real_capture(profiles: Path, checked: Check) -> None:
    """A language model on an H100: the two longest matrix kernels of the trace's truth are in BF16 on tensor cores."""
    device = json.loads((profiles / "golden" / "torch" / f"{QWEN}.truth.json").read_text())["devices"]["0"]
    longest = {k["time"] for k in device["top5"] if k["name"].startswith(("sm90_xmma_gemm_bf16", "void pytorch_flash"))}
    run = perfkit.load(profiles / "torch" / QWEN)
    spec = checked(formats(analysis_kernels.precision(run.ops, run.kernels, run.api_calls)))
    rows = [row for row in spec["layer"][0]["rows"] if row["format"] == "BF16"]
    assert longest == {round((row["end"] - row["begin"]) * 1e6) for row in rows}
    assert {"on tensor cores"} == {row["cores"] for row in rows}
    assert "> 99.9 % of the time of the matrix work is in BF16" == spec["title"]["text"]


GPU = "hpctoolkit/hpctoolkit-dlrm-gpu-database"
LAUNCHES = pd.DataFrame({"rank": [0, 0], "launch": [0, 1], "name": ["short", "long"], "dur_ns": [10.0, 90.0]})


def launch_shares(*rows: tuple[int, str, float]) -> pd.DataFrame:
    """Shares as `analysis.warps.stall_shares` returns them."""
    return pd.DataFrame([(0, *row) for row in rows], columns=["rank", "launch", "reason", "share_frac"])


def of_kernels(**kernels: dict[str, float]) -> pd.DataFrame:
    """Values of each kernel's reasons, with their shares."""
    rows = [(name, reason, value) for name, reasons in kernels.items() for reason, value in reasons.items()]
    frame = pd.DataFrame(rows, columns=["name", "reason", "value"])
    return frame.assign(share_frac=frame["value"] / frame.groupby("name")["value"].transform("sum"))


def test_longest_launch_comes_first_and_names_its_stall(checked: Check) -> None:
    """'long' takes 90 ns of 100: it is bar 1, and its largest stall, not what issued, is the title."""
    chart = stalls(launch_shares((1, "selected", 0.7), (1, "long_scoreboard", 0.3), (0, "wait", 1.0)), LAUNCHES)
    spec = checked(chart)
    assert "1. long: long scoreboard is 30.0 % of warp time" == spec["title"]["text"]
    assert ["1. long", "1. long", "2. short"] == [row["label"] for row in spec["layer"][0]["rows"]]


def test_segments_lie_end_to_end(checked: Check) -> None:
    """0.3 and 0.7 are drawn from 0 to 0.3 and from 0.3 to 1."""
    rows = checked(stalls(launch_shares((1, "wait", 0.3), (1, "selected", 0.7)), LAUNCHES))["layer"][0]["rows"]
    assert [(0.0, 0.3), (0.3, 1.0)] == [(round(r["begin"], 9), round(r["end"], 9)) for r in rows]


def test_rare_reasons_become_one(checked: Check) -> None:
    """Of ten reasons six are drawn by name, the other four together."""
    ten = launch_shares(*((1, f"reason_{n}", 0.1) for n in range(10)))
    reasons = [row["reason"] for row in checked(stalls(ten, LAUNCHES))["layer"][0]["rows"]]
    assert (7, "other reasons") == (len(reasons), reasons[-1])


def test_launches_without_stalls_are_a_sentence() -> None:
    """Nothing measured draws nothing and says which section measures it."""
    assert "WarpStateStats" in stalls(launch_shares(), LAUNCHES).to_dict()["description"]


def test_missing_column_and_wrong_share_are_refused() -> None:
    """A frame that is not of the analysis, or a share above 1, is an error."""
    with pytest.raises(SchemaError, match="share_frac"):
        stalls(launch_shares().drop(columns="share_frac"), LAUNCHES)
    with pytest.raises(ValueError, match="is not a fraction"):
        stalls(launch_shares((1, "wait", 1.5)), LAUNCHES)


def test_a_launch_that_only_issued_is_drawn(checked: Check) -> None:
    """Where nothing stalled, the title says how much was issued."""
    spec = checked(stalls(launch_shares((1, "selected", 1.0)), LAUNCHES))
    assert "1. long: selected is 100 % of warp time" == spec["title"]["text"]


def test_all_kernels_together_come_first(checked: Check) -> None:
    """a waits 60 for gmem and 20 for sync, b 20 for idep: together gmem is 60 of 100, though it is 75 % of a's."""
    spec = checked(stalled_kernels(of_kernels(b={"idep": 20.0}, a={"gmem": 60.0, "sync": 20.0})))
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


def test_kernels_beyond_the_first_count_in_the_whole(checked: Check) -> None:
    """With one bar, b's 40 of 100 have no bar of their own and are in the first one."""
    rows = checked(stalled_kernels(of_kernels(a={"gmem": 60.0}, b={"sync": 40.0}), top=1))["layer"][0]["rows"]
    assert {("All 2 kernels", "60.0 %"), ("All 2 kernels", "40.0 %"), ("1. a", "100 %")} == {
        (row["label"], row["share"]) for row in rows
    }


def test_one_kernel_is_no_crowd(checked: Check) -> None:
    """A single kernel has one bar; a reason nobody described keeps its name."""
    spec = checked(stalled_kernels(of_kernels(a={"zzz": 1.0})))
    assert "1. a: zzz is 100 % of stalls" == spec["title"]["text"]
    assert ["1. a"] == [row["label"] for row in spec["layer"][0]["rows"]]


def test_kernels_without_samples_are_a_sentence() -> None:
    """Nothing sampled draws nothing and says which option samples."""
    assert "gpu=nvidia,pc" in stalled_kernels(of_kernels()).to_dict()["description"]


def test_wrong_values_of_kernels_are_refused() -> None:
    """A negative value, no bar, and a missing column are errors."""
    with pytest.raises(ValueError, match=r"value: -1\.0 is negative"):
        stalled_kernels(of_kernels(a={"gmem": 1.0}).assign(value=-1.0))
    with pytest.raises(ValueError, match="top: 0 is not at least 1"):
        stalled_kernels(of_kernels(a={"gmem": 1.0}), top=0)
    with pytest.raises(SchemaError, match="value"):
        stalled_kernels(of_kernels(a={"gmem": 1.0}).drop(columns="value"))


def test_the_real_stalls_are_nearly_half_memory(profiles: Path, checked: Check) -> None:
    """DLRM on a GPU: gmem is 1,651,113,984 of 3,770,793,984 stalled instructions, 43.79 %, by truth.json."""
    run = perfkit.load(profiles / GPU)
    total = json.loads((profiles / "golden" / f"{GPU}.truth.json").read_text())["total"]
    stall = run.stalls.groupby("reason", observed=True, as_index=False)["value"].sum().assign(name="all")
    frame = stall.assign(share_frac=stall["value"] / stall["value"].sum())
    title = checked(stalled_kernels(frame))["title"]["text"]
    share = total["GINS:STL_GMEM"] / total["GINS:STL_ANY"]
    assert f"1. all: global memory (gmem) is {100 * share:.1f} % of stalls" == title

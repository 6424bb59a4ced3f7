"""The number formats of the matrix work."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import pytest
from charts.test_theme import SIGHT, _contrast, _lab, _linear
from frames import kernels

import perfkit
from perfkit.analysis import kernels as analysis_kernels
from perfkit.charts import kernels as charts_kernels
from perfkit.charts.kernels import formats
from perfkit.errors import SchemaError
from perfkit.tables import API_CALLS, KERNELS, OPS

Check = Callable[[alt.TopLevelMixin], dict[str, Any]]
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


def test_formats_stay_apart() -> None:
    """Any two colours differ by 15 or more for every sight and show on light and dark pages."""
    palette = list(charts_kernels.FORMAT_COLOURS.values())
    for sight in SIGHT.values():
        seen = [_lab(np.array(sight) @ _linear(colour)) for colour in palette]
        assert min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2)) >= 15
    assert min(_contrast(colour, page) for colour in palette for page in ("#FFFFFF", "#16181C")) >= 1.6


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

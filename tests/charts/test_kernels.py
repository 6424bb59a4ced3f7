"""Kernels by time, number formats of the matrix work, and stall reasons."""

import numpy as np
import pandas as pd
from charts.checking import checked, drawn, subtitle, title

from perfkit.analysis import kernels as analysis_kernels
from perfkit.charts import kernels as charts_kernels
from perfkit.charts.kernels import bars, durations, formats, stalled_kernels, stalls
from perfkit.tables import API_CALLS, KERNELS, OPS

LAUNCHES = pd.DataFrame(
    {"rank": [0, 0], "launch": [0, 1], "name": ["short", "long"], "dur_ns": [10.0, 90.0]}
)


def launched(**lengths: list[int]) -> pd.DataFrame:
    """Launches by the name of their kernel, in ns."""
    rows = [(name, length) for name, every in lengths.items() for length in every]
    return pd.DataFrame(rows, columns=["name", "dur_ns"]).astype({"name": "category"})


def test_durations_are_those_of_the_kernel_with_the_most_time() -> None:
    chart = durations(launched(often=[1000] * 5, long=[4000, 8000]))
    assert "long: half of its 2 launches take up to 4.00 µs, the longest 8.00 µs" == title(chart)


def test_each_launch_is_in_one_column_of_the_durations() -> None:
    chart = checked(durations(launched(gemm=[1000, 2000, 2000, 9000])))
    assert 4 == sum(launches for (launches,) in drawn(chart, "launches"))


def test_columns_of_durations_stand_on_the_axis() -> None:
    columns = checked(durations(launched(gemm=[1000, 2000])))["layer"][0]
    assert ("rect", 0) == (columns["mark"]["type"], columns["encoding"]["y2"]["datum"])


def test_durations_of_no_kernel_are_a_sentence() -> None:
    assert "No kernel ran" in subtitle(durations(launched()))[0]


def summary(**totals: int) -> pd.DataFrame:
    total = pd.Series(totals.values(), dtype="int64")
    columns = {
        "name": pd.Series(list(totals), dtype="category"),
        "family": "gemm",
        "count": 2,
        "total_ns": total,
    }
    return pd.DataFrame({**columns, "share_frac": total / max(total.sum(), 1)})


def shares(*rows: tuple[str, str, str, int]) -> pd.DataFrame:
    """Matrix work from family, format, tensor cores and time in µs."""
    frame = pd.DataFrame(rows, columns=["family", "format", "tensor_cores", "total_ns"]).astype(
        {"total_ns": "int64"}
    )
    frame = frame.assign(source="name", count=1, total_ns=frame["total_ns"] * 1000)
    return frame.assign(share_frac=frame["total_ns"] / (frame["total_ns"].sum() or np.nan))


def launch_shares(*rows: tuple[int, str, float]) -> pd.DataFrame:
    """Shares as `analysis.warps.stall_shares` returns them."""
    return pd.DataFrame(
        [(0, *row) for row in rows], columns=["rank", "launch", "reason", "share_frac"]
    )


def of_kernels(**kernels: dict[str, float]) -> pd.DataFrame:
    rows = [
        (name, reason, value)
        for name, reasons in kernels.items()
        for reason, value in reasons.items()
    ]
    frame = pd.DataFrame(rows, columns=["name", "reason", "value"])
    return frame.assign(share_frac=frame["value"] / frame.groupby("name")["value"].transform("sum"))


def test_longest_first_and_the_rest_in_one_bar() -> None:
    spec = checked(bars(summary(d=5_000, a=60_000, c=10_000, b=25_000), top=2))
    rows = drawn(spec, "label", "time", "share", "count")
    assert [
        ("a", 60, "60.0 %", 2),
        ("b", 25, "25.0 %", 2),
        ("2 other kernels", 15, "15.0 %", 4),
    ] == rows
    assert "a takes 60.0 % of GPU kernel time" == title(spec)


def test_kernels_without_a_family_are_others() -> None:
    families = pd.Categorical(["communication", None])
    spec = checked(bars(summary(a=3, b=2).assign(family=families)))
    assert ["communication", "other"] == spec["layer"][0]["encoding"]["color"]["scale"]["domain"]


def test_one_kernel_more_is_one_other_kernel() -> None:
    assert [("a",), ("1 other kernel",)] == drawn(checked(bars(summary(a=2, b=1), top=1)), "label")
    assert [("a",), ("b",)] == drawn(checked(bars(summary(a=2, b=1))), "label")
    assert [(0,)] == drawn(checked(bars(summary(a=0))), "time")


def test_hostile_names_stay_text_and_keep_their_bars() -> None:
    names = {"<script>alert(1)</script>": 3, "x" * 10_000: 2, "line\nbreak\u202e": 1}
    first, second, third = checked(bars(summary(**names)))["layer"][0]["rows"]
    assert ("<script>alert(1)</script>", "line break�") == (first["label"], third["label"])
    assert (62, 400) == (len(second["label"]), len(second["name"]))
    alike = {"x" * 5_000 + middle + "x" * 5_000: 1 for middle in "ab"}
    assert 2 == len({*drawn(checked(bars(summary(**alike))), "label")})


def test_formats_lie_end_to_end_in_their_family() -> None:
    frame = shares(
        ("convolution", "tf32", "yes", 20), ("gemm", "bf16", "yes", 60), ("gemm", "fp32", "no", 20)
    )
    spec = checked(formats(frame))
    assert [
        ("GEMM", "FP32", 0.0, 20.0, "20.0 %"),
        ("GEMM", "BF16", 20.0, 80.0, "60.0 %"),
        ("convolution", "TF32", 0.0, 20.0, "20.0 %"),
    ] == drawn(spec, "family", "format", "begin", "end", "share")
    assert "60.0 % of the time of the matrix work is in BF16" == title(spec)
    words = "Tensor cores: 80.0 % yes (filled), 20.0 % no (pale); of 100 µs in 3 kernels."
    assert words == subtitle(spec)[0]
    unknown = formats(shares(("gemm", "unknown", "unknown", 3), ("gemm", "fp32", "no", 1)))
    assert "The number format of 75.0 % of the matrix work is unknown" == title(unknown)


def test_without_data_the_charts_say_so() -> None:
    assert "No kernel ran" in subtitle(bars(summary()))[0]
    empty = analysis_kernels.precision(OPS.empty(), KERNELS.empty(), API_CALLS.empty())
    for frame in (shares(), shares(("gemm", "fp32", "no", 0)), empty):
        assert "No GEMM, convolution or attention kernel" in subtitle(formats(frame))[0]
    assert "WarpStateStats" in stalls(launch_shares(), LAUNCHES).to_dict()["description"]
    assert "gpu=nvidia,pc" in stalled_kernels(of_kernels()).to_dict()["description"]


def test_the_values_are_those_of_the_analysis() -> None:
    known = {"family": analysis_kernels.MATRIX_FAMILIES, "format": analysis_kernels.FORMATS}
    known |= {"tensor_cores": analysis_kernels.ANSWERS, "source": analysis_kernels.SOURCES}
    legal = {column: set(values) for column, values in charts_kernels.LEGAL.items()}
    assert {column: set(values) for column, values in known.items()} == legal


def test_the_longest_launch_comes_first_and_names_its_stall() -> None:
    spec = checked(
        stalls(
            launch_shares((1, "selected", 0.7), (1, "long_scoreboard", 0.3), (0, "wait", 1.0)),
            LAUNCHES,
        )
    )
    assert "1. long: long scoreboard is 30.0 % of warp time" == title(spec)
    assert [("1. long", 0.0, 0.3), ("1. long", 0.3, 1.0), ("2. short", 0.0, 1.0)] == [
        (label, round(begin, 9), round(end, 9))
        for label, begin, end in drawn(spec, "label", "begin", "end")
    ]


def test_all_kernels_together_come_first() -> None:
    """a waits 60 for gmem and 20 for sync, b 20 for idep: together gmem is 60 of 100, though it is 75 % of a's."""
    spec = checked(stalled_kernels(of_kernels(b={"idep": 20.0}, a={"gmem": 60.0, "sync": 20.0})))
    assert "All 2 kernels: global memory (gmem) is 60.0 % of stalls" == title(spec)
    assert {
        ("All 2 kernels", "global memory (gmem)", "60.0 %"),
        ("All 2 kernels", "input dependence (idep)", "20.0 %"),
        ("All 2 kernels", "synchronisation (sync)", "20.0 %"),
        ("1. a", "global memory (gmem)", "75.0 %"),
        ("1. a", "synchronisation (sync)", "25.0 %"),
        ("2. b", "input dependence (idep)", "100 %"),
    } == {*drawn(spec, "label", "reason", "share")}
    assert ["All 2 kernels", "1. a", "2. b"] == spec["layer"][0]["encoding"]["y"]["sort"]

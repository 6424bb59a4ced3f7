"""What the GPU's time is made of, beside the CPU's, and what launches are worth."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import pytest
from callpaths import toy_metrics, toy_tree

import perfkit
from perfkit.analysis import calltree
from perfkit.charts import shares
from perfkit.charts.kernels import launch_efficiency
from perfkit.charts.shares import PART_OF, gpu_time, host_and_gpu, parts
from perfkit.errors import SchemaError
from perfkit.tables import CALL_METRICS, CALLTREE

Check = Callable[[alt.TopLevelMixin], dict[str, Any]]
GPU = "hpctoolkit/hpctoolkit-dlrm-gpu-database"
NAN = float("nan")


def summary(**columns: list[float]) -> pd.DataFrame:
    """Rows of `calltree.gpu_summary` by entry; what is not given was not recorded."""
    count = len(next(iter(columns.values())))
    times = [column for column in shares.PARTS if column != "other_ns"] + ["operation_ns", "host_ns"]
    frame = pd.DataFrame({"rank": 0, **{column: columns.get(column, [NAN] * count) for column in times}})
    return frame.assign(entry=[f"entry {n}" for n in range(count)])


def kernels(**rows: tuple[str, float, float]) -> pd.DataFrame:
    """Kernels from family, launches and mean duration, ns."""
    frame = pd.DataFrame(list(rows.values()), columns=["family", "launch_count", "mean_ns"])
    return frame.assign(name=list(rows), total_ns=frame["launch_count"] * frame["mean_ns"])


def drawn(spec: dict[str, Any], *fields: str) -> list[tuple[Any, ...]]:
    """The given fields of the first layer's rows."""
    return [tuple(row[field] for field in fields) for row in spec["layer"][0]["rows"]]


def test_cpu_and_gpu_stand_in_one_unit(checked: Check) -> None:
    """3 s of CPU and 2 ms of kernels are bars of 3 and 0.002 s; each bears its own time."""
    frame = summary(host_ns=[3e9, 1e9], kernel_ns=[2e6, NAN], copy_ns=[0.0, NAN], operation_ns=[2e6, NAN])
    spec = checked(host_and_gpu(frame))
    bars = drawn(spec, "label", "series", "time", "told")
    assert [
        ("entry 0", "CPU threads", 3.0, "3.00 s"),
        ("entry 1", "CPU threads", 1.0, "1.00 s"),
        ("entry 0", "kernels", 0.002, "2.00 ms"),
    ] == bars
    assert "4.00 s of CPU time and 2.00 ms of GPU operations" == spec["title"]["text"]
    assert "their ratio is no utilisation" in spec["title"]["subtitle"][0]


def test_other_operations_are_what_is_left(checked: Check) -> None:
    """Of 10 ms, 4 ms of kernels and 5 ms of copies leave 1 ms; the row with most time comes first."""
    frame = summary(kernel_ns=[0.0, 4e6], copy_ns=[1e6, 5e6], operation_ns=[1e6, 10e6])
    spec = checked(host_and_gpu(frame))
    assert [
        ("entry 1", "kernels", 4.0),
        ("entry 1", "copies", 5.0),
        ("entry 0", "copies", 1.0),
        ("entry 1", "other operations", 1.0),
    ] == drawn(spec, "label", "series", "time")
    assert "CPU time was not recorded; 11.0 ms of GPU operations" == spec["title"]["text"]


def test_without_gpu_the_cpu_is_drawn(checked: Check) -> None:
    """A capture of the CPU alone says that no GPU operation was recorded."""
    spec = checked(host_and_gpu(summary(host_ns=[3e9])))
    assert "3.00 s of CPU time, no GPU operation recorded" == spec["title"]["text"]


def test_parts_fill_their_bar(checked: Check) -> None:
    """Kernels 3 ms, copies 5 ms, memset 1 ms of 10 ms: the last tenth is other; all together are the same row."""
    frame = summary(kernel_ns=[3e6], copy_ns=[5e6], memset_ns=[1e6], operation_ns=[10e6])
    spec = checked(gpu_time(frame))
    rounded = [(p, round(b, 9), round(e, 9), s) for p, b, e, s in drawn(spec, "part", "begin", "end", "share")]
    assert [
        ("kernels", 0.0, 0.3, "30.0 %"),
        ("copies", 0.3, 0.8, "50.0 %"),
        ("memset", 0.8, 0.9, "10.0 %"),
        ("other operations", 0.9, 1.0, "10.0 %"),
    ] == rounded
    assert "Copies take 50.0 % of the GPU's time" == spec["title"]["text"]


def test_all_rows_together_come_first(checked: Check) -> None:
    """9 ms of kernels below one entry and 1 ms of copies below the other: together 90 % are kernels."""
    frame = summary(kernel_ns=[9e6, 0.0], copy_ns=[0.0, 1e6], operation_ns=[9e6, 1e6])
    spec = checked(gpu_time(frame))
    assert [
        ("all", "kernels", "90.0 %"),
        ("all", "copies", "10.0 %"),
        ("entry 0", "kernels", "100 %"),
        ("entry 1", "copies", "100 %"),
    ] == drawn(spec, "label", "part", "share")
    assert "Kernels take 90.0 % of the GPU's time" == spec["title"]["text"]


def test_a_single_noun_takes(checked: Check) -> None:
    """Synchronisation takes, it does not take plural."""
    spec = checked(gpu_time(summary(synchronisation_ns=[3e6], operation_ns=[3e6])))
    assert "Synchronisation takes 100 % of the GPU's time" == spec["title"]["text"]


def test_figures_stand_where_there_is_room(checked: Check) -> None:
    """A share of 5 % has no room for its figure, 95 % has, in its middle."""
    spec = checked(gpu_time(summary(kernel_ns=[95.0], copy_ns=[5.0], operation_ns=[100.0])))
    assert [("95.0 %", 0.475)] == [(row["share"], row["middle"]) for row in spec["layer"][1]["rows"]]


def test_rows_are_named_by_rank_and_entry(checked: Check) -> None:
    """Several ranks name each row; without entries the rank alone does."""
    two = pd.concat([summary(kernel_ns=[1.0], operation_ns=[1.0]).assign(rank=r) for r in (0, 1)], ignore_index=True)
    assert {"all", "rank 0 · entry 0", "rank 1 · entry 0"} == {
        label for (label,) in drawn(checked(gpu_time(two)), "label")
    }
    ranks = two.drop(columns="entry")
    assert {"all", "rank 0", "rank 1"} == {label for (label,) in drawn(checked(gpu_time(ranks)), "label")}


def test_impossible_times_are_refused() -> None:
    """A negative time, and parts that exceed the whole, are errors that say so; neither is cut."""
    with pytest.raises(ValueError, match=r"summary: a time is -1\.0 ns, below 0"):
        host_and_gpu(summary(host_ns=[-1.0]))
    wrong = summary(kernel_ns=[6.0], copy_ns=[5.0], operation_ns=[10.0])
    for chart in (host_and_gpu, gpu_time):
        with pytest.raises(ValueError, match=r"'operation_ns': 10\.0}: the parts exceed operation_ns"):
            chart(wrong)


def test_launches_are_judged_by_the_mean_of_their_kernel(checked: Check) -> None:
    """300 launches of 4 µs, 100 of 9 µs, 100 of 20 µs: 400 of 500 are shorter than 10 µs."""
    frame = kernels(short=("copy", 300, 4e3), middle=("gemm", 100, 9e3), long=("gemm", 100, 20e3))
    spec = checked(launch_efficiency(frame))
    assert "400 of 500 launches (80.0 %) are of kernels shorter than 10 µs on average" == spec["title"]["text"]
    assert [("long", 2e6), ("short", 1.2e6), ("middle", 9e5)] == [
        (row["label"], row["time"]) for row in spec["layer"][2]["rows"]
    ]
    band = spec["layer"][0]["rows"][0]
    assert (5_000, 10_000) == (band["mean"], band["end"])


def test_long_kernels_only(checked: Check) -> None:
    """Where no kernel is short the title says that; the band stays in the picture."""
    spec = checked(launch_efficiency(kernels(a=("gemm", 10, 1e6))))
    assert "All 10 launches are of kernels that run 10 µs or longer on average" == spec["title"]["text"]
    assert [2_500, 2e6] == spec["layer"][2]["encoding"]["x"]["scale"]["domain"]


def test_the_largest_kernels_bear_their_names(checked: Check) -> None:
    """Four of six kernels are named: those of most time; a name left of the middle runs to the right."""
    frame = kernels(**{f"k{n}": ("gemm", 10, 1e3 * 4**n) for n in range(6)})
    names = [(row["label"], row["side"]) for row in checked(launch_efficiency(frame))["layer"][3]["rows"]]
    assert [("k5", "right"), ("k4", "right"), ("k3", "right"), ("k2", "left")] == names


def test_kernels_that_were_not_timed_are_left_out(checked: Check) -> None:
    """A kernel without launches or mean has no place on logarithmic axes."""
    frame = kernels(a=("gemm", 10, 1e3), b=("gemm", 0, NAN), c=("gemm", NAN, NAN))
    assert ["a"] == [row["name"] for row in checked(launch_efficiency(frame))["layer"][2]["rows"]]


@pytest.mark.parametrize("chart", [host_and_gpu, gpu_time, launch_efficiency])
def test_without_data_the_chart_says_so(chart: Callable[[pd.DataFrame], alt.LayerChart], checked: Check) -> None:
    """Nothing recorded is a sentence that says what records it."""
    frame = kernels(a=("gemm", 0, NAN)) if chart is launch_efficiency else summary(host_ns=[NAN])
    for empty in (frame, frame.iloc[:0]):
        spec = checked(chart(empty))
        assert "Nothing to draw" in spec["description"]
        assert "hpcrun -e gpu=nvidia" in spec["title"]["subtitle"][0]


def test_wrong_frames_are_refused() -> None:
    """A missing column and a family without a colour are errors that say so."""
    with pytest.raises(SchemaError, match="host_ns"):
        host_and_gpu(summary(kernel_ns=[1.0]).drop(columns="host_ns"))
    with pytest.raises(SchemaError, match="memset_ns"):
        gpu_time(summary(kernel_ns=[1.0]).drop(columns="memset_ns"))
    with pytest.raises(ValueError, match=r"family: \['magic'\] are not among"):
        launch_efficiency(kernels(a=("magic", 1, 1.0)))


def test_hostile_names_stay_text(checked: Check) -> None:
    """Line breaks, markup and 10,000 characters are data on one line."""
    spec = checked(launch_efficiency(kernels(**{"<b>\n" + "x" * 10_000: ("gemm", 1, 1e3)})))
    row = spec["layer"][2]["rows"][0]
    assert (34, 400) == (len(row["label"]), len(row["name"]))
    assert row["name"].startswith("<b> x")


def test_the_charts_take_what_the_analyses_return(checked: Check) -> None:
    """The toy program, whole and empty: 3 ms of GPU operations, a third of them copies."""
    for tree, metrics in ((toy_tree(), toy_metrics()), (CALLTREE.empty(), CALL_METRICS.empty())):
        for by in ("rank", "entry"):
            frame = calltree.gpu_summary(tree, metrics, by=by)
            host, gpu = checked(host_and_gpu(frame)), checked(gpu_time(frame))
        checked(launch_efficiency(calltree.kernels(tree, metrics)))
        if len(tree):
            assert "4.00 s of CPU time and 3.00 ms of GPU operations" == host["title"]["text"]
            assert "Kernels take 66.7 % of the GPU's time" == gpu["title"]["text"]


def test_the_real_capture(profiles: Path, checked: Check) -> None:
    """DLRM on a GPU: copies are 52.87 % of GKER + GXCOPY, all that GPUOP holds, and 7,400 kernels were launched."""
    run = perfkit.load(profiles / GPU)
    total = json.loads((profiles / "golden" / f"{GPU}.truth.json").read_text())["total"]
    share = total["GXCOPY (sec)"] / (total["GKER (sec)"] + total["GXCOPY (sec)"])
    spec = checked(gpu_time(calltree.gpu_summary(run.calltree, run.call_metrics, by="entry")))
    assert f"Copies take {100 * share:.1f} % of the GPU's time" == spec["title"]["text"]
    said = checked(launch_efficiency(calltree.kernels(run.calltree, run.call_metrics)))["title"]["text"]
    assert "6,100 of 7,400 launches (82.4 %) are of kernels shorter than 10 µs on average" == said


def test_of_many_gpus_the_idlest_have_a_bar(checked: Check) -> None:
    """Of 1,000 GPUs 24 are drawn, in the order of their ranks; the title is of all."""
    part = dict.fromkeys(PART_OF, 0)
    rows = [
        {"rank": r, "gpu": 0, "span_ns": 2_000, **part, "computation_ns": 2_000 - r, "idle_ns": r} for r in range(1_000)
    ]
    spec = checked(parts(pd.DataFrame(rows)))
    drawn = list(dict.fromkeys(row["device"] for row in spec["layer"][0]["rows"]))
    assert (24, "rank 976", "rank 999") == (len(drawn), drawn[0][:8], drawn[-1][:8])
    assert "The 1000 GPUs are idle 0 % to 50.0 % of the time" == spec["title"]["text"]
    assert "The 24 GPUs with the largest idle share of 1,000." in spec["title"]["subtitle"][0]

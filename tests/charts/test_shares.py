"""What the GPU's time is made of, beside the CPU's, and what launches are worth."""

import pandas as pd
from charts.checking import checked, drawn, subtitle, title

from perfkit.charts import shares
from perfkit.charts.kernels import launch_efficiency
from perfkit.charts.shares import PART_OF, gpu_time, host_and_gpu, parts, time

NAN = float("nan")


def summary(**columns: list[float]) -> pd.DataFrame:
    """Rows of `calltree.gpu_summary` by entry; what is not given was not recorded."""
    count = len(next(iter(columns.values())))
    times = [column for column in shares.PARTS if column != "other_ns"] + [
        "operation_ns",
        "host_ns",
    ]
    frame = pd.DataFrame(
        {"rank": 0, **{column: columns.get(column, [NAN] * count) for column in times}}
    )
    return frame.assign(entry=[f"entry {n}" for n in range(count)])


def kernels(**rows: tuple[str, float, float]) -> pd.DataFrame:
    frame = pd.DataFrame(list(rows.values()), columns=["family", "launch_count", "mean_ns"])
    return frame.assign(name=list(rows), total_ns=frame["launch_count"] * frame["mean_ns"])


def test_cpu_and_gpu_stand_in_one_unit() -> None:
    frame = summary(
        host_ns=[3e9, 1e9], kernel_ns=[2e6, NAN], copy_ns=[0.0, NAN], operation_ns=[2e6, NAN]
    )
    spec = checked(host_and_gpu(frame))
    assert [
        ("entry 0", "CPU threads", 3.0, "3.00 s"),
        ("entry 1", "CPU threads", 1.0, "1.00 s"),
        ("entry 0", "kernels", 0.002, "2.00 ms"),
    ] == drawn(spec, "label", "series", "time", "told")
    assert "4.00 s of CPU time and 2.00 ms of GPU operations" == title(spec)
    assert "their ratio is no utilisation" in subtitle(spec)[0]


def test_of_a_gpu_without_operations_the_cpu_time_is_told() -> None:
    picture = host_and_gpu(summary(host_ns=[3e9]))
    assert "3.00 s of CPU time, no GPU operation recorded" == title(picture)


def test_other_operations_are_what_is_left() -> None:
    spec = checked(
        host_and_gpu(summary(kernel_ns=[0.0, 4e6], copy_ns=[1e6, 5e6], operation_ns=[1e6, 10e6]))
    )
    assert [
        ("entry 1", "kernels", 4.0),
        ("entry 1", "copies", 5.0),
        ("entry 0", "copies", 1.0),
        ("entry 1", "other operations", 1.0),
    ] == drawn(spec, "label", "series", "time")
    assert "CPU time was not recorded; 11.0 ms of GPU operations" == title(spec)


def test_parts_fill_their_bar() -> None:
    frame = summary(kernel_ns=[3e6], copy_ns=[5e6], memset_ns=[1e6], operation_ns=[10e6])
    spec = checked(gpu_time(frame))
    assert [
        ("kernels", 0.0, 0.3, "30.0 %"),
        ("copies", 0.3, 0.8, "50.0 %"),
        ("memset", 0.8, 0.9, "10.0 %"),
        ("other operations", 0.9, 1.0, "10.0 %"),
    ] == [
        (part, round(b, 9), round(e, 9), share)
        for part, b, e, share in drawn(spec, "part", "begin", "end", "share")
    ]
    assert "Copies take 50.0 % of the GPU's time" == title(spec)
    one = gpu_time(summary(synchronisation_ns=[3e6], operation_ns=[3e6]))
    assert "Synchronisation takes 100 % of the GPU's time" == title(one)
    narrow = checked(gpu_time(summary(kernel_ns=[95.0], copy_ns=[5.0], operation_ns=[100.0])))
    assert [("95.0 %", 0.475)] == drawn(narrow["layer"][1], "share", "middle")


def test_launches_are_judged_by_the_mean_of_their_kernel() -> None:
    frame = kernels(short=("copy", 300, 4e3), middle=("gemm", 100, 9e3), long=("gemm", 100, 20e3))
    spec = checked(launch_efficiency(frame))
    assert "400 of 500 launches (80.0 %) are of kernels shorter than 10 µs on average" == title(
        spec
    )
    assert [("long", 2e6), ("short", 1.2e6), ("middle", 9e5)] == drawn(
        spec["layer"][2], "label", "time"
    )
    assert (5_000, 10_000) == drawn(spec, "mean", "end")[0]


def test_long_kernels_are_well_launched() -> None:
    spec = checked(launch_efficiency(kernels(a=("gemm", 10, 1e6))))
    assert "All 10 launches are of kernels that run 10 µs or longer on average" == title(spec)
    assert [2_500, 2e6] == spec["layer"][2]["encoding"]["x"]["scale"]["domain"]


def test_the_kernels_with_most_time_are_named() -> None:
    spec = checked(
        launch_efficiency(kernels(**{f"k{n}": ("gemm", 10, 1e3 * 4**n) for n in range(6)}))
    )
    names = [("k5", "right"), ("k4", "right"), ("k3", "right"), ("k2", "left")]
    assert names == drawn(spec["layer"][3], "label", "side")


def test_kernels_that_were_not_timed_are_not_drawn() -> None:
    timed, others = ("gemm", 10, 1e3), {"b": ("gemm", 0, NAN), "c": ("gemm", NAN, NAN)}
    spec = checked(launch_efficiency(kernels(a=timed, **others)))
    assert [("a",)] == drawn(spec["layer"][2], "name")


def test_a_hostile_name_of_a_kernel_is_cut_and_stays_text() -> None:
    spec = checked(launch_efficiency(kernels(**{"<b>\n" + "x" * 10_000: ("gemm", 1, 1e3)})))
    ((label, name),) = drawn(spec["layer"][2], "label", "name")
    assert (34, 400, "<b> x") == (len(label), len(name), name[:5])


def test_without_data_the_charts_say_so() -> None:
    nothing = summary(host_ns=[NAN])
    for chart in (host_and_gpu, gpu_time, launch_efficiency):
        frame = kernels(a=("gemm", 0, NAN)) if chart is launch_efficiency else nothing
        for empty in (frame, frame.iloc[:0]):
            spec = checked(chart(empty))
            assert "Nothing to draw" in spec["description"]
            assert "hpcrun -e gpu=nvidia" in subtitle(spec)[0]


def test_of_many_gpus_the_idlest_have_a_bar() -> None:
    part = {"gpu": 0, "span_ns": 2_000, **dict.fromkeys(PART_OF, 0)}
    rows = [{"rank": r, **part, "computation_ns": 2_000 - r, "idle_ns": r} for r in range(1_000)]
    spec = checked(parts(pd.DataFrame(rows)))
    devices = [device for (device,) in dict.fromkeys(drawn(spec, "device"))]
    assert (24, "rank 976", "rank 999") == (len(devices), devices[0][:8], devices[-1][:8])
    assert "The 1000 GPUs are idle 0 % to 50.0 % of the time" == title(spec)
    assert "The 24 GPUs with the largest idle share of 1,000." in subtitle(spec)[0]


def lines(*rows: tuple[str, str, str | None, int]) -> pd.DataFrame:
    """LEDGER of one GPU: kind, cause, owner, ns."""
    frame = pd.DataFrame(rows, columns=["kind", "cause", "owner", "ns"])
    return frame.assign(rank=0, gpu=0, phase="loop")


def test_a_part_of_the_time_names_who_has_most_of_it() -> None:
    computing = [("computation", "gemm", "sgemm", 60), ("computation", "gemm", "add", 20)]
    spec = checked(time(lines(*computing, ("idle", "system", "pwrite64", 20))))

    assert drawn(spec, "part", "share", "most") == [
        ("computation", "80.0 %", "sgemm (75.0 %)"),
        ("idle: operating system", "20.0 %", "pwrite64 (100 %)"),
    ]


def test_parts_under_a_hundredth_of_the_time_are_one() -> None:
    waiting = [("idle", "sync", None, 5), ("idle", "launch", None, 5)]
    spec = checked(time(lines(("computation", "gemm", "sgemm", 990), *waiting)))

    assert drawn(spec, "part") == [("computation",), ("small parts",)]


def test_shares_are_those_of_the_known_time() -> None:
    recorded = [("computation", "gemm", "sgemm", 25), ("idle", "sync", None, 25)]
    untold = [("unknown", "lost", None, 40), ("collector", "profiler", None, 10)]
    spec = checked(time(lines(*recorded, *untold)))

    assert title(spec) == "The GPU is idle 50.0 % of the known 50 ns"
    assert drawn(spec, "part", "share") == [
        ("computation", "50.0 %"),
        ("idle: CPU waits for GPU", "50.0 %"),
    ]
    assert subtitle(spec)[1:] == [
        "Not shown: the profiler's own time, 10 ns (10.0 %), and unknown time, 40 ns (40.0 %)."
    ]


def test_of_a_recording_that_tells_nothing_the_picture_says_so() -> None:
    spec = time(lines(("unknown", "lost", None, 40)))
    assert "Not shown: unknown time, 40 ns (100 %)." in str(spec.to_dict())

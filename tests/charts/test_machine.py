"""Typical operations on the roof of a machine, iterations of a training, and throughput by the number of GPUs."""

from itertools import pairwise

import pandas as pd
from charts.checking import Spec, checked, drawn, subtitle, title

from perfkit.analysis import llm_operations
from perfkit.analysis.scaling import scaling
from perfkit.charts.machine import LINE, iterations, phases, roofline, scaling_efficiency
from perfkit.charts.roofline import HEIGHT
from perfkit.hardware import Peaks

GPU = Peaks("made up", {"bf16_tensor": 100e12}, memory_bytes_per_s=1e12)
OWN = Peaks("made up", {"bf16_tensor": 80e12}, memory_bytes_per_s=9e11)
MS, SECOND = 1e6, 1_000_000_000


def placed(peaks: Peaks = GPU) -> pd.DataFrame:
    return llm_operations.attainable(llm_operations.work(), peaks=peaks, precision="bf16_tensor")


def picture(sheet: Peaks | None = GPU, own: Peaks | None = None) -> Spec:
    """The typical operations; on the measured roof where there is one."""
    peaks = own or sheet
    assert peaks is not None
    return checked(
        roofline(
            placed(peaks), llm_operations.ceilings(peaks=sheet, measured=own), roof="bf16_tensor"
        )
    )


def view(spec: Spec, mark: str) -> Spec:
    return [view for view in spec["layer"] if view["mark"]["type"] == mark][-1]


def test_operations_lie_on_the_roof_and_words_below_each_other() -> None:
    spec = picture()
    points = view(spec, "point")["rows"]
    assert 8 == len(points)
    assert [min(100e12, p["intensity"] * 1e12) for p in points] == [
        p["performance"] for p in points
    ]
    assert "Memory limits 6 of 8 typical operations" == title(spec)
    assert "computes nothing: embedding." in subtitle(spec)[0]
    low, high = spec["layer"][-1]["encoding"]["y"]["scale"]["domain"]
    lines = [point["word_y"] for point in points]
    step = (high / low) ** (LINE / HEIGHT)
    assert all(above / below >= step * (1 - 1e-9) for above, below in pairwise(lines))
    assert all(p["word_x"] > p["intensity"] and p["word_y"] < p["performance"] for p in points)
    assert min(lines) > low


def test_measured_roofs_are_dashed() -> None:
    spec = picture(own=OWN)
    dash = spec["layer"][0]["encoding"]["strokeDash"]
    assert {"data sheet": [1, 0], "measured": [5, 4]} == dict(
        zip(*dash["scale"].values(), strict=True)
    )
    assert {("data sheet",), ("measured",)} == {*drawn(spec, "source")}
    assert {("memory 1.00 TB/s",), ("BF16 tensor 100 TFLOP/s",)} == {
        *drawn(spec["layer"][1], "label")
    }
    assert (80e12,) == max(drawn(view(spec, "point"), "performance"))
    for sheet, own in ((GPU, None), (None, OWN)):  # a single roof is solid and needs no legend
        dash = picture(sheet, own)["layer"][0]["encoding"]["strokeDash"]
        assert ([[1, 0]], None) == (dash["scale"]["range"], dash["legend"])


def log(*lengths: float, rank: int = 0, chosen: int = 0, count: int = 1) -> pd.DataFrame:
    """Iterations of so many ms, a line each second, chosen from the one of this number on."""
    rows = [
        {"rank": rank, "time_ns": n * SECOND, "count": count, "chosen": n >= chosen}
        | {
            "median_ns": ms * MS,
            "least_ns": (ms - count + 1) * MS,
            "most_ns": (ms + count - 1) * MS,
        }
        for n, ms in enumerate(lengths)
    ]
    return pd.DataFrame(rows)


def test_iterations_are_points_in_time() -> None:
    spec = checked(iterations(log(900, 300, 310)))
    assert [(0, 900), (1, 300), (2, 310)] == drawn(view(spec, "point"), "time", "median")
    assert title(spec) == "The median iteration takes 310 ms, the first 900 ms"


def test_iterations_outside_the_window_are_pale() -> None:
    spec = checked(iterations(log(900, 300, 320, chosen=1)))
    assert [(0.3,), (1.0,), (1.0,)] == drawn(view(spec, "point"), "shade")
    assert title(spec) == "The median iteration takes 310 ms, the first 900 ms"
    assert "1 of 3 iterations lie outside the window" in subtitle(spec)[1]


def test_neighbouring_iterations_are_their_median_from_least_to_most() -> None:
    spec = checked(iterations(log(300, 310, count=3)))
    assert [(298, 302), (308, 312)] == drawn(view(spec, "point"), "least", "most")
    words = "Points: medians of neighbouring iterations; bars: from the least to the most."
    assert subtitle(spec) == [words]


def test_of_many_logs_eight_are_drawn() -> None:
    logs = pd.concat([log(100 + rank, 100 + rank, rank=rank) for rank in range(10)])
    spec = checked(iterations(logs))
    scale = view(spec, "point")["encoding"]["color"]["scale"]
    assert [f"log {rank}" for rank in range(8)] == scale["domain"]
    assert 8 == len({*scale["range"]})
    assert title(spec) == "The median iteration takes 100 ms to 107 ms, by log"
    assert "These are the first 8 of 10 logs." in subtitle(spec)


def test_phases_share_an_iteration() -> None:
    frame = pd.DataFrame({"rank": 0, "phase": ["forward pass", "backward pass", "optimizer step"]})
    spec = checked(phases(frame.assign(median_ns=[100 * MS, 300 * MS, 0.0])))
    parts = [("forward pass", 0, 0.25, "100 ms"), ("backward pass", 0.25, 1, "300 ms")]
    assert parts == drawn(spec, "phase", "begin", "end", "told")
    assert "The backward pass takes 75.0 % of the iteration" == title(spec)
    two = pd.concat([frame.assign(median_ns=1.0), frame.assign(rank=1, median_ns=[1.0, 1.0, 8.0])])
    assert "The optimizer step takes 80.0 % of the iteration of log 1" == title(phases(two))


def table(*runs: tuple[int, float]) -> pd.DataFrame:
    """What the analysis says of runs of (GPUs, throughput)."""
    return scaling(pd.DataFrame(runs, columns=["gpus", "throughput_per_s"]))


GUIDE = table((1, 1000.0), (8, 7200.0), (64, 48000.0), (512, 320000.0))


def test_runs_beside_the_ideal() -> None:
    spec = checked(scaling_efficiency(GUIDE, work="tokens"))
    ideal, _, line, point, words = spec["layer"]
    assert [(1000,), (8000,), (64000,), (512000,)] == drawn(ideal, "ideal")
    assert [(1000,), (7200,), (48000,), (320000,)] == drawn(line, "throughput")
    assert [("100 %",), ("90.0 %",), ("75.0 %",), ("62.5 %",)] == drawn(words, "words")
    across, up = (point["encoding"][axis] for axis in ("x", "y"))
    assert [1, 8, 64, 512] == across["axis"]["values"]
    assert "throughput (tokens/s, logarithmic)" == up["title"]
    assert "512 GPUs reach 62.5 % of the ideal throughput" == title(spec)
    assert "Dashed: the ideal, 1,000 tokens/s for each GPU as on 1 GPU" in subtitle(spec)[0]
    (left, right), (low, high) = across["scale"]["domain"], up["scale"]["domain"]
    assert left < 1 < 512 * 1.5 < right  # room for the last figure
    assert low < 1000 < 512000 < high
    several = scaling_efficiency(table((8, 800.0), (16, 1200.0)), work="samples")
    assert "16 GPUs reach 75.0 % of the ideal throughput" == title(several)
    assert "100 samples/s for each GPU as on 8 GPUs" in subtitle(several)[0]


def test_several_runs_on_one_number_of_gpus_and_above_the_ideal() -> None:
    spec = checked(scaling_efficiency(table((4, 300.0), (1, 100.0), (4, 200.0))))
    rows = drawn(spec["layer"][-1], "gpus", "throughput", "words")
    assert [(1, 100, "100 %"), (4, 200, "50.0 % to 75.0 %"), (4, 300, "")] == rows
    assert "4 GPUs reach 50.0 % to 75.0 % of the ideal throughput" == title(spec)
    spec = checked(scaling_efficiency(table((1, 100.0), (2, 220.0))))
    assert "Above 100 %: check that all runs do the same work per step" in subtitle(spec)[1]
    assert spec["layer"][3]["encoding"]["y"]["scale"]["domain"][1] > 220
    assert 1 == len(subtitle(scaling_efficiency(GUIDE)))


def test_without_data_the_charts_say_so() -> None:
    flat, roofs = (
        llm_operations.ceilings(peaks=Peaks("made up", {"bf16_tensor": 1e12})),
        llm_operations.ceilings(peaks=GPU),
    )
    for operations, ceilings, roof in (
        (placed(), flat, "bf16_tensor"),
        (placed(), roofs, "fp32"),
        (placed().iloc[:0], roofs, "bf16_tensor"),
    ):
        assert "perfkit baseline gemm" in subtitle(roofline(operations, ceilings, roof=roof))[0]
    assert "No iterations" == iterations(log(1).iloc[:0]).to_dict()["title"]["text"]
    for frame in (GUIDE.iloc[:0], table((8, 1.0), (8, 2.0))):
        assert "at least two" in subtitle(scaling_efficiency(frame))[0]

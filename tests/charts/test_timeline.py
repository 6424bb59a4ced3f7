"""When the streams of each GPU are busy, the overview under a brush, and why a GPU is idle."""

from typing import Any

import pandas as pd
import pytest
from charts.checking import Spec, checked, drawn, refuses, subtitle, title
from frames import copies, kernels, lasting

from perfkit.analysis.timeline import PARTS, bins
from perfkit.charts import timeline
from perfkit.charts.shares import parts
from perfkit.charts.timeline import causes, histogram, lanes

BINS = ["rank", "gpu", "stream", "kind", "start_ns", "dur_ns", "busy_ns", "busy_frac"]


def _bins(*rows: tuple[int, int, int, str, int, int, float]) -> pd.DataFrame:
    """Bins from rank, gpu, stream, kind, start and length in ms, and busy share."""
    full = [
        (*row[:4], row[4] * 10**6, row[5] * 10**6, int(row[5] * row[6] * 10**6), row[6])
        for row in rows
    ]
    return pd.DataFrame(full, columns=BINS)


def _copy(
    dur: int = 10, busy: float = 0.5, *, rank: int = 0, stream: int = 7, start: int = 0
) -> pd.DataFrame:
    return _bins((rank, 0, stream, "copy", start, dur, busy))


def _breakdown(*rows: tuple[int, ...]) -> pd.DataFrame:
    whole = [(*row[:2], sum(row[2:]), *row[2:]) for row in rows]
    return pd.DataFrame(whole, columns=["rank", "gpu", "span_ns", *PARTS])


def _fills(spec: Spec) -> list[Spec]:
    return list(spec["layer"][1]["rows"])


def test_kinds_of_a_bin_stand_on_one_another() -> None:
    """0.5 computation and 0.25 copy of one bin: a lane's fill is 0.86 high, so the copy lies between 0.43 and 0.645."""
    rows = _fills(
        checked(lanes(_bins((0, 0, 7, "copy", 0, 10, 0.25), (0, 0, 7, "computation", 0, 10, 0.5))))
    )
    heights = {
        row["kind"]: (round(0.93 - row["low"], 4), round(0.93 - row["high"], 4)) for row in rows
    }
    assert {"computation": (0, 0.43), "copy": (0.43, 0.645)} == heights
    spec = checked(
        lanes(_bins((0, 0, 7, "copy", 0, 10, 0.8), (0, 0, 7, "computation", 0, 10, 0.8)))
    )
    assert pytest.approx(0.07) == min(
        row["high"] for row in _fills(spec)
    )  # overlap keeps to its lane
    assert "busy 160.0 % of the bin's time" in subtitle(spec)[0]


def test_lanes_are_named_and_sorted() -> None:
    spec = checked(lanes(pd.concat([_copy(rank=1), _copy(stream=-1), _copy()])))
    labels = spec["layer"][0]["encoding"]["y"]["axis"]["labelExpr"]
    names = [
        "rank 0 · GPU 0 · unknown stream",
        "rank 0 · GPU 0 · stream 7",
        "rank 1 · GPU 0 · stream 7",
    ]
    assert sorted(names, key=lambda name: labels.index(name.replace("·", "\\u00b7"))) == names
    spec = checked(
        lanes(pd.concat([_copy(busy=0.1 + stream / 100, stream=stream) for stream in range(25)]))
    )
    assert set(range(1, 25)) == {int(row["lane"].split()[-1]) for row in _fills(spec)}
    assert "These are the busiest 24 of 25 streams." in subtitle(spec)[0]


def test_the_axis_spans_the_window_and_rules_its_steps() -> None:
    for length, symbol in ((5000, "(s)"), (5, "(ms)")):
        assert checked(lanes(_copy(length)))["layer"][1]["encoding"]["x"]["title"].endswith(symbol)
    chart = lanes(_copy(1, start=20), window=(0, 100_000_000))
    assert [0, 100] == checked(chart)["layer"][1]["encoding"]["x"]["scale"]["domain"]
    steps = pd.DataFrame({"step": [0, 1, 2], "start_ns": [0, 5_000_000, 50_000_000]})
    assert [(0,), (5,)] == drawn(checked(lanes(_copy(), steps=steps))["layer"][2], "start")
    many = pd.DataFrame({"step": range(101), "start_ns": range(101)})  # would hide what they divide
    assert 2 == len(checked(lanes(_copy(), steps=many))["layer"])


def test_parts_lie_end_to_end() -> None:
    spec = checked(parts(_breakdown((0, 0, 400, 200, 0, 150, 250))))
    assert [
        ("computation", 0, pytest.approx(0.4)),
        ("communication", pytest.approx(0.4), pytest.approx(0.6)),
        ("copy", pytest.approx(0.6), pytest.approx(0.75)),
        ("idle", pytest.approx(0.75), pytest.approx(1)),
    ] == drawn(spec, "part", "begin", "end")
    assert "The GPU is idle 25.0 % of 1.00 µs" == title(spec)
    narrow = checked(parts(_breakdown((0, 0, 20, 0, 0, 0, 980), (0, 1, 0, 0, 0, 0, 1000))))
    assert ("", "2.0 %", "20 ns") == drawn(narrow, "figure", "share", "time")[0]


def spans(*rows: dict[str, Any]) -> pd.DataFrame:
    """Bins of 10 ns of [0, 100) with these kernels."""
    return bins(kernels(*rows), copies(), bins=10, window=(0, 100))


def activity(*rows: dict[str, Any], span: tuple[int, int] = (0, 100), **options: Any) -> Spec:
    return timeline.activity(spans(*rows), span=span, **options).to_dict()


def strips(spec: Spec, *fields: str) -> list[tuple[Any, ...]]:
    (rows,) = spec["datasets"].values()
    return drawn({"rows": rows}, *fields)


ONE = lasting(0, 4)


def test_a_strip_is_as_strong_as_the_busiest_stream() -> None:
    spec = activity(ONE, lasting(2, 6, stream=8), lasting(10, 10))
    assert [(0, 10, 0.6), (10, 20, 1)] == strips(spec, "start", "end", "busy")
    assert "When GPU 0 worked, over 100 ns" == title(spec)
    assert subtitle(spec)[0].startswith("Full colour: busy 100 % of the time.")
    both = lasting(0, 7), lasting(3, 7, family="communication")
    assert [(1,)] == strips(activity(*both), "busy")  # overlap on one stream fills the bin, once
    many = activity(*(lasting(0, n + 1, gpu=n) for n in range(30)))
    assert [(f"GPU {n}",) for n in range(6, 30)] == [*dict.fromkeys(strips(many, "gpu"))]
    assert "These are the busiest 24 of 30 GPUs." in many["description"]
    checked(timeline.activity(spans(ONE), span=(0, 100)))


def _hist(*rows: tuple[int, int, str, int, int]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["lower_ns", "upper_ns", "cause", "count", "total_ns"])


def _causes(*rows: tuple[int, str, str | None, int]) -> pd.DataFrame:
    """Idle time from gpu, cause, detail and total."""
    frame = pd.DataFrame(rows, columns=["gpu", "cause", "detail", "total_ns"]).assign(
        rank=0, count=1
    )
    return frame.assign(
        share_frac=frame["total_ns"] / frame.groupby("gpu")["total_ns"].transform("sum")
    )


def test_causes_of_a_bin_stand_on_one_another() -> None:
    spec = checked(
        histogram(
            _hist(
                (5_000, 10_000, "kernel_wait", 2, 10_000), (5_000, 10_000, "host_wait", 5, 30_000)
            )
        )
    )
    assert [(0, 30), (30, 40)] == drawn(spec, "bottom", "top")
    assert "Gaps of 5 µs to 10 µs hold 100 % of the idle time" == title(spec)
    assert ["All devices together: 40.0 µs in 7 gaps."] == subtitle(spec)
    outweighed = _hist((1_000, 2_000, "edge", 10, 10_000), (50_000, 100_000, "edge", 1, 90_000))
    assert "Gaps of 50 µs to 100 µs hold 90.0 % of the idle time" == title(histogram(outweighed))
    empty = _hist((1_000, 2_000, "edge", 0, 0), (2_000, 5_000, "edge", 1, 3_000))
    assert [(2_000,)] == drawn(checked(histogram(empty)), "lower")


def test_each_device_has_its_panel() -> None:
    spec = checked(causes(_causes((0, "edge", None, 10), (1, "edge", None, 40))))
    assert ["GPU 0", "GPU 1"] == [title(panel) for panel in spec["vconcat"]]
    assert 1 == len({str(panel["layer"][0]["encoding"]["x"]["scale"]) for panel in spec["vconcat"]})
    rows = _causes(*((rank, "host_wait", "sync", 1_000 * (rank + 1)) for rank in range(1_000)))
    spec = checked(causes(rows.assign(rank=range(1_000), gpu=0)))
    assert [f"rank {rank}" for rank in range(992, 1_000)] == [
        title(panel)[:8] for panel in spec["vconcat"]
    ]
    assert ["The 8 of 1,000 GPUs that are idle longest."] == spec["title"]["subtitle"]


def test_without_work_or_gaps_the_charts_say_so() -> None:
    for chart in (lanes(_bins()), parts(_breakdown((0, 0, 0, 0, 0, 0, 0)))):
        assert "No kernel or copy ran" in subtitle(chart)[0]
    assert "No activity in 1.00 µs" == activity(span=(0, 1000))["title"]["text"]
    for chart in (histogram(_hist()), causes(_causes())):
        assert ["No device was idle in this window."] == subtitle(chart)


def phases(*rows: tuple[int, str, int, int]) -> pd.DataFrame:
    """PHASES: rank, phase, start and length in ns; a loop has ten repetitions."""
    frame = pd.DataFrame(rows, columns=["rank", "phase", "start_ns", "dur_ns"])
    repetitions = frame["phase"].eq("loop").map({True: 10, False: None}).astype("Int64")
    return frame.assign(repetitions=repetitions, kind=None, name=None, busy_ns=frame["dur_ns"] // 2)


def test_phases_lie_end_to_end() -> None:
    chart = timeline.phases(
        phases((0, "start_up", 0, 200), (0, "loop", 200, 700), (0, "end", 900, 100))
    )
    strip = drawn(checked(chart), "rank", "phase", "start", "end", "repetitions")
    assert strip == [  # in µs
        ("rank 0", "start-up", 0, 0.2, "n/a"),
        ("rank 0", "loop", 0.2, 0.9, "10"),
        ("rank 0", "end", 0.9, 1, "n/a"),
    ]


def test_phases_are_named_after_the_longest() -> None:
    assert (
        title(timeline.phases(phases((0, "start_up", 0, 200), (0, "loop", 200, 600))))
        == "Loop: 75.0 % of the time"
    )


def test_what_no_rank_repeats_is_one_step_and_no_loop() -> None:
    once = phases((0, "loop", 0, 900), (1, "start_up", 0, 100), (1, "loop", 100, 800))
    once["repetitions"] = once["repetitions"].clip(upper=1)
    assert title(timeline.phases(once)) == "One step: 94.4 % of the time"


def test_each_rank_has_a_lane_of_phases() -> None:
    chart = timeline.phases(phases((1, "loop", 5000, 10_000), (0, "loop", 0, 10_000)))
    assert drawn(checked(chart), "rank", "start") == [("rank 0", 0), ("rank 1", 5)]


def test_without_phases_the_strip_says_so() -> None:
    assert title(timeline.phases(phases())) == "No phases"


def test_an_unknown_phase_is_refused() -> None:
    refuses(ValueError, "phase", timeline.phases, phases((0, "middle", 0, 1)))

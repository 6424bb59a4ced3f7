"""The timeline of an explorer without a browser, also of a run whose tables take seconds to read."""

import asyncio
import random
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import api_calls, kernels, lasting, ranges, unpacked
from sampled import samples, together
from widgets.explored import HOSTILE, MS, run_of
from widgets.zoomed import Chooser, gesture, labels, looked, opened, operations, rows, table, title

import perfkit
from perfkit.analysis import dossier
from perfkit.analysis.lanes import Lanes, Launching
from perfkit.charts.detail import CLICKED, FILTER, FIND, SEARCH
from perfkit.charts.theme import MOST_ROWS
from perfkit.errors import PerfkitError
from perfkit.selection import select
from perfkit.tables import OVERHEAD, SCHEDULE
from perfkit.widgets import timeline, timeline_search
from perfkit.widgets.choice import Explorer
from perfkit.widgets.timeline import MOST, ON_GPU, Zoomable
from perfkit.widgets.timeline_data import projected
from perfkit.widgets.timeline_search import Dossiers

ON_THREAD = {"rank": 0, "process": 1, "thread": 1}


def test_few_operations_are_drawn_one_by_one(tmp_path: Path) -> None:
    _, view = opened(tmp_path, table())
    assert "GPU 0: 4 operations in 24.0 ms" == title(view)
    found = {(row["name"], row["call"]) for row in operations(view)}
    assert {
        ("k0", "cudaLaunchKernel"),
        ("k1", "cudaLaunchKernel"),
        ("k2", "cudaLaunchKernel"),
        ("H2D 4.00 kB", None),
    } == found


def test_at_the_start_the_threads_that_launch_and_the_phases_are_seen(tmp_path: Path) -> None:
    chooser = Chooser(run_of(tmp_path, table()))
    chooser.arranged = {}
    assert ["phases", "GPU 0 · stream 7", "GPU 0 · stream 9"] == labels(Zoomable(chooser))[:3]
    assert {"CUDA calls", "NVTX"} == {
        label.split(" · ")[0] for label in labels(Zoomable(chooser))[3:]
    }


def test_time_of_the_profiler_is_hatched(tmp_path: Path) -> None:
    flush = lasting(3 * MS, MS, "flush", kind="flush", correlation=-1, **ON_THREAD)
    taken = OVERHEAD.make(pd.DataFrame([flush]))
    _, view = opened(tmp_path, table() | {"OVERHEAD": taken})
    view.beside["profiler"].value = True
    assert ["the profiler's own time"] == view.picture.drawing["hatched"]


def test_a_thread_on_a_core_has_a_lane_of_its_turns(tmp_path: Path) -> None:
    turn = lasting(0, 5 * MS, cpu=3, stopped=None, **ON_THREAD)
    turns = SCHEDULE.make(pd.DataFrame([turn]))
    _, view = opened(tmp_path, table() | {"SCHEDULE": turns})
    view.beside["scheduling"].value = True
    assert "on core 3" in {row["name"] for row in rows(view, "spans")}


def test_many_are_drawn_as_bins(tmp_path: Path) -> None:
    chooser, view = opened(tmp_path, table(MOST))
    assert ([], True) == (operations(view), len(rows(view, "bins")) > 300)
    chooser.window = (0, 100 * MS)
    assert (11, 0) == (len(operations(view)), len(rows(view, "bins")))


@pytest.mark.parametrize(("ranks", "gpus"), [(1, 8), (16, 1)])
def test_many_busy_streams_have_fewer_bins(tmp_path: Path, ranks: int, gpus: int) -> None:
    """GEMMs and collectives alternate on five streams of each GPU: 40 lanes of 320 bins are more than 20,000 rows.

    Switched-on lanes share the room. However coarse the bins, a lane's busy time is that of its kernels: 0.8. Of 80
    streams those of a GPU share a lane, unless it is opened; there each lies on a level of its own.
    """
    places = [
        {"rank": r, "gpu": g, "stream": s}
        for r in range(ranks)
        for g in range(gpus)
        for s in range(5)
    ]
    alternating = [
        lasting(n * 1000, 800, family=("gemm", "communication")[n % 2]) for n in range(700)
    ]
    frame = kernels(*(place | kernel for place in places for kernel in alternating))
    calls = [lasting(n * 1000, 800, rank=rank) for rank in range(ranks) for n in range(700)]
    _, view = opened(tmp_path, {"KERNELS": frame, "API_CALLS": api_calls(*calls)})
    for is_beside in (False, True):
        view.beside["API calls"].value = is_beside
        bins = rows(view, "bins")
        lanes = {label: n for n, label in enumerate(labels(view))}
        assert len(bins) <= MOST_ROWS
        assert (40 if ranks == 1 else 16) == len([label for label in lanes if "stream" in label])
        first = [row for row in bins if 0 == row["lane"]]
        busy = sum(row["busy"] * row["d"] for row in first) / 1000
        assert 700 * 800 == pytest.approx(busy, rel=0.01)
    if ranks > 1:
        shared = "rank 3 · GPU 0 · 5 streams"
        assert "group" == next(
            lane["type"] for lane in view.picture.drawing["lanes"] if lane["label"] == shared
        )
        view.picture.arranged = {"opened": [shared]}
        at = labels(view).index(shared)
        assert [f"rank 3 · GPU 0 · stream {s}" for s in range(5)] == labels(view)[at + 1 : at + 6]
        looked(view, 10_000, 12_000)
        spans = [row for row in rows(view, "spans") if row["label"] == shared]
        assert {(n, 5) for n in range(5)} == {
            (s["level"], view.picture.drawing["lanes"][at]["levels"]) for s in spans
        }


def test_what_lies_in_a_range_is_what_a_loop_finds(tmp_path: Path) -> None:
    """Calls of three threads, ranges that overlap; a kernel lies where its call does, or nowhere without one."""
    drawn = random.Random(0)
    calls = [lasting(drawn.randrange(4000), 5, thread=n % 3, correlation=n) for n in range(300)]
    work = [lasting(5000 + n, 1, correlation=drawn.randrange(320)) for n in range(400)]
    named = [
        lasting(drawn.randrange(4000), drawn.randrange(300), f"{'ab'[n % 2]}", thread=n % 4)
        for n in range(30)
    ]
    tables = {"API_CALLS": api_calls(*calls), "KERNELS": kernels(*work), "RANGES": ranges(*named)}
    run = run_of(tmp_path, tables)
    inside = {
        call["correlation"]
        for call in calls
        for one in named
        if one["name"] == "a" and one["thread"] == call["thread"]
        if one["start_ns"] <= call["start_ns"] < one["start_ns"] + one["dur_ns"]
    }
    found = timeline_search.matches(run, timeline_search.query("in a"), select(run))
    for name in ("API_CALLS", "KERNELS"):
        ids = run.table(name)["correlation"]
        assert np.flatnonzero(ids.isin(inside)).tolist() == found.rows[name].tolist()
    assert 20 < len(inside) < 280
    middles, at = [-1], -1
    while (step := found.step(at, 1)) and sum(step[1]) // 2 > at:
        at = sum(step[1]) // 2
        middles.append(at)
    assert sorted({-1, *(found.start + found.dur // 2)}) == middles


def test_a_gesture_sets_the_window(tmp_path: Path) -> None:
    """Operations last from 2 ms to 26 ms: a window to the nanosecond; what is beyond is left out; all is no choice."""
    chooser, view = opened(tmp_path, table())
    looked(view, 5_000_001, 12_500_000)
    assert (5_000_001, 12_500_000) == chooser.window
    assert ["k0", "k1"] == [row["name"] for row in operations(view) if row["call"]]
    assert ["2000000", [3_000_001, 10_500_000]] == [
        view.picture.drawing[name] for name in ("origin", "window")
    ]
    looked(view, -5 * MS, 10 * MS)
    assert (2 * MS, 10 * MS) == chooser.window
    looked(view, 9 * MS, 9 * MS)
    assert (9 * MS, 9 * MS + 1) == chooser.window
    looked(view, 0, 99 * MS)
    assert () == chooser.window


def test_lanes_can_be_switched_on(tmp_path: Path) -> None:
    """Ranges of the GPU above the streams, the others below: copies by direction, calls and ranges by thread.

    `outer` launched all three kernels, 2 ms to 26 ms, and `inner`, 1 ms to 10 ms, none. Operators are not recorded.
    """
    _, view = opened(tmp_path, table())
    for name in (ON_GPU, "copies", "API calls", "NVTX ranges"):
        assert view.beside[name].layout.display is None
        view.beside[name].value = True
    assert "none" == view.beside["operators"].layout.display
    streams = ["GPU 0 · stream 7", "GPU 0 · stream 9"]
    threads = ["CUDA calls · thread 1", "NVTX · thread 1"]
    assert ["GPU 0 · ranges", *streams, "GPU 0 · H2D", *threads] == labels(view)
    found = {(row["label"], row["name"]): row for row in rows(view, "spans")}
    (place,) = [
        [row[c] for c in ("name", "s", "d")]
        for (label, _), row in found.items()
        if label == "GPU 0 · ranges"
    ]
    assert ["outer", 0, 24 * MS] == place
    assert [0, 1] == [found["NVTX · thread 1", name]["level"] for name in ("outer", "inner")]
    view.beside["API calls"].value = False
    assert "CUDA calls · thread 1" not in labels(view)
    # start/end ranges have no depth, and those that overlap must not hide each other
    each = [(0, 10), (5, 15), (12, 20), (30, 40)]
    lone = [lasting(a * MS, (b - a) * MS, str(a), kind="start_end") for a, b in each]
    _, view = opened(tmp_path, {**table(9), "RANGES": ranges(*lone)})
    view.beside["NVTX ranges"].value = True
    levels = {row["name"]: row["level"] for row in rows(view, "spans") if "NVTX" in row["label"]}
    assert {"0": 0, "5": 1, "12": 2, "30": 0} == levels


def test_ranges_of_a_graph_are_on_the_gpu(tmp_path: Path) -> None:
    """Two kernels of one graph launch, at 50 and 90 ns, belong to the range around the launch, and not to the next."""
    found = {
        "KERNELS": kernels(*(lasting(start, 10, correlation=5) for start in (50, 90))),
        "API_CALLS": api_calls(lasting(3, 2, "cudaGraphLaunch", correlation=5)),
        "RANGES": ranges(
            lasting(0, 9, "step"),
            lasting(10, 90, "later"),
        ),
    }
    (row,) = projected(found["RANGES"], found["KERNELS"], found["API_CALLS"]).to_dict("records")
    assert ("step", 50, 50, 0) == tuple(row[c] for c in ("name", "start_ns", "dur_ns", "row"))


def test_metrics_are_lines_on_the_same_axis(tmp_path: Path) -> None:
    """SMs active for 0.5 and 1 from 2 ms on; the lane says how high it reaches, and other metrics stay out."""
    active = samples(at=[2 * MS, 14 * MS], sm_active_frac=[0.5, 1.0])
    read = together(active, samples(at=[2 * MS], fan_frac=[7.0]))
    _, view = opened(tmp_path, {**table(), "SAMPLES": read})
    view.beside["GPU metrics"].value = True
    assert "GPU 0 · SMs active ≤ 100 %" == labels(view)[-1]
    (line,) = view.picture.drawing["lines"]
    points = unpacked(line["points"])
    assert [(0, 0.5), (12 * MS, 1.0)] == [*zip(points["s"], points["mean"], strict=True)]


def test_search_marks_counts_and_jumps(tmp_path: Path) -> None:
    """Kernels k0, k1 and k2 of 4 ms at 2, 12 and 22 ms: by expression, duration and range; a filter is another act."""
    chooser, view = opened(tmp_path, table())
    gesture(view, SEARCH, text="k[12] > 1 ms")
    assert "2 matches (2 kernels), 8.00 ms added up" == view.picture.found["said"]
    spans = rows(view, "spans")
    assert ["k1", "k2"] == [spans[hit]["name"] for hit in view.picture.found["hit"]]
    assert ["k1", "k2", "k1"] == [_jumped(view, 1) for _ in range(3)]
    assert "k2" == _jumped(view, -1)
    for text, said in (
        ("k1 < 1 ms", "no match"),
        ("k0|k1 in outer", "2 matches (2 kernels)"),
        ("k in inner", "no match"),
        ("(", "no regular"),
    ):
        gesture(view, SEARCH, text=text)
        assert said in view.picture.found["said"]
    assert "" == chooser.kernels
    gesture(view, FILTER, text="k1")
    assert "k1" == chooser.kernels


def _jumped(view: Zoomable, by: int) -> str:
    at = (view.window[0] + view.window[1]) // 2 if view.explorer.window else view.whole[0]
    gesture(view, FIND, step=by, at=at - view.whole[0])
    start = view.picture.chosen["start"] + view.whole[0]
    return {2: "k0", 12: "k1", 22: "k2"}[start // MS]


def test_a_click_shows_launch_and_dossier(tmp_path: Path) -> None:
    """The second kernel: called at 10 ms for 1 ms, started at 12 ms: queued for 1 ms; 4 of 12 ms are its share."""
    _, view = opened(tmp_path, table())
    view.beside["API calls"].value = True
    gesture(view, CLICKED, lane="GPU 0 · stream 7", id=1)
    text = view.known.value
    assert all(
        part in text
        for part in ("This launch", "0.012000000 s", "cudaLaunchKernel", "queue (ms)", "33.3")
    )
    line = {"start": 8 * MS, "took": MS, "text": "queued 1.00 ms", "lane": "CUDA calls · thread 1"}
    assert line == view.picture.chosen["arrow"]
    gesture(
        view, CLICKED, lane="GPU 0 · stream 9", id=-1
    )  # 4,000 bytes in 1 ms; no call is recorded
    assert all(
        part in view.known.value for part in ("This copy", "H2D", "bandwidth (MB/s)", "4.00", "n/a")
    )
    _, view = opened(tmp_path, {"KERNELS": kernels(lasting(0, 5, HOSTILE))})
    gesture(view, CLICKED, lane="GPU 0 · stream 7", id=0)
    assert HOSTILE not in view.known.value
    assert HOSTILE in view.picture.drawing["names"]


def test_a_click_on_a_range_shows_its_kernels(tmp_path: Path) -> None:
    _, view = opened(tmp_path, table())
    view.beside["API calls"].value = view.beside["NVTX ranges"].value = True
    owned = {}
    for row in rows(view, "spans"):
        gesture(view, CLICKED, lane=row["label"], id=row["id"])
        owned[row["name"]] = view.picture.chosen.get("owned")
    assert ([0, 1, 2], []) == (owned["outer"], owned["inner"])
    assert [2] == owned["cudaLaunchKernel"]
    assert "What it launched on the GPU" in view.known.value


def test_nothing_to_draw_is_a_sentence(tmp_path: Path) -> None:
    chooser, view = opened(tmp_path, table())
    chooser.window = (7 * MS, 7 * MS + 5)
    assert ("none", True) == (
        view.picture.layout.display,
        "No kernel or copy ran" in view.said.value,
    )
    chooser.kernels = HOSTILE
    assert "none of the 3 kernel names" in view.said.value
    assert HOSTILE not in view.said.value
    chooser.kernels, chooser.window = "", ()
    assert (None, "") == (view.picture.layout.display, view.said.value)
    drawn: list[Any] = []
    view.picture.observe(drawn.append, "drawing")
    chooser.kernels = "nothing of this name"
    chooser.kernels = "k1"  # selection and problem change together: one picture
    assert 1 == len(drawn)
    chooser.window = (12 * MS, 13 * MS)  # stream 9 has nothing to do, and a lane all the same
    assert ["GPU 0 · stream 7", "GPU 0 · stream 9"] == labels(view)
    _, view = opened(tmp_path, {"RANGES": table()["RANGES"]})
    assert "No kernel or copy ran" in view.said.value
    view.beside["NVTX ranges"].value = True
    assert ("", ["NVTX · thread 1"]) == (view.said.value, labels(view))


def test_a_large_run_is_drawn_before_its_calls_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was clicked is shown before all launches of its kernel are summed up."""
    monkeypatch.setattr(timeline, "MANY", 0)
    read, summed, sums = Event(), Event(), Dossiers.of
    monkeypatch.setattr(Dossiers, "of", lambda *given: summed.wait(60) and sums(*given))
    found = run_of(tmp_path, table())
    whole = type(found).table
    monkeypatch.setattr(
        type(found),
        "table",
        lambda run, name: (name != "API_CALLS" or read.wait(60)) and whole(run, name),
    )

    async def looked() -> list[Any]:
        view = Zoomable(Chooser(found))
        first = [{row["call"] for row in operations(view)}, view.picture.drawing["explanation"][0]]
        gesture(view, CLICKED, lane="GPU 0 · stream 7", id=1)
        first.append(view.known.value)
        for event, words in ((read, "This launch"), (summed, "All launches of k1")):
            assert words not in view.known.value
            event.set()
            for _ in range(600):
                if words in view.known.value:
                    break
                await asyncio.sleep(0.1)
        return [*first, {row["call"] for row in operations(view)}, view.known.value]

    before, said, waiting, after, card = asyncio.run(looked())
    assert ({None}, "The calls that launched these operations are still being read.") == (
        before,
        said,
    )
    assert "still being read" in waiting
    assert {"cudaLaunchKernel", None} == after
    assert all(
        words in card for words in ("cudaLaunchKernel", "This launch", "All launches of k1", "33.3")
    )


def test_calls_that_cannot_be_read_are_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run_of(tmp_path, table())
    whole = type(found).table

    def refused(run: perfkit.Run, name: str) -> pd.DataFrame:
        if name == "API_CALLS":
            raise PerfkitError("a.sqlite: cut off. Copy it again.")
        return whole(run, name)

    monkeypatch.setattr(type(found), "table", refused)
    view = Zoomable(Chooser(found))
    assert 4 == len(operations(view))
    assert "a.sqlite: cut off. Copy it again." in view.picture.drawing["explanation"]
    gesture(view, CLICKED, lane="GPU 0 · stream 9", id=-1)
    assert "This copy" in view.known.value


SAMPLE = Path(__file__).parents[2] / "data" / "mlp_a100"


def test_dossiers_agree_with_the_analysis() -> None:
    run = perfkit.load(SAMPLE)
    seen, lanes = select(run), Lanes(run.kernels, run.copies)
    traced = seen.framework
    whole = dossier.kernels(
        *(seen.kernels, seen.launches, seen.stalls, traced.ops, run.calltree, run.call_metrics),
        devices=seen.devices,
        traced=traced.kernels,
        api_calls=traced.api_calls,
        python_calls=traced.python_calls,
    )
    names = whole["name"].tolist()[::6]
    one = Dossiers(run, lanes, Launching(run.api_calls))
    found = [one.of(name, seen, lanes.span) for name in names]
    kept = whole[whole["name"].isin(names)].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, pd.concat(found, ignore_index=True))


def test_lanes_are_kept(
    run: perfkit.Run, watched: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PERFKIT_CACHE", str(tmp_path / "cache"))
    explorer = Explorer(run, show="")
    view = Zoomable(explorer)
    view.beside["steps"].value = True
    view.picture.arranged = {"hidden": ["GPU 1 · stream 7"], "closed": [], "pinned": []}
    again = Zoomable(Explorer(run, show=""))
    assert (True, ["GPU 1 · stream 7"]) == (
        again.beside["steps"].value,
        again.picture.arranged["hidden"],
    )
    (stored,) = (tmp_path / "cache").rglob("*.lanes")
    stored.write_text('{"hidden": 3}')
    assert {} == Explorer(run, show="").arranged

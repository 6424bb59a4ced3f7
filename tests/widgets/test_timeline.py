"""The timeline of an explorer without a browser, also of a run whose tables take seconds to read."""

from __future__ import annotations

import asyncio
from pathlib import Path
from threading import Event
from typing import Any

import altair as alt
import pandas as pd
import pytest
from frames import kernels, ranges
from widgets.explored import HOSTILE, MS, run_of
from widgets.zoomed import Chooser, gesture, labels, opened, rows, table, title

import perfkit
from perfkit.analysis import dossier
from perfkit.analysis.lanes import Lanes, Launching
from perfkit.charts.detail import CHOSEN, CLICKED, RESET
from perfkit.errors import PerfkitError
from perfkit.selection import select
from perfkit.widgets import timeline
from perfkit.widgets.timeline import MOST, zoomable
from perfkit.widgets.timeline_data import Dossiers


@pytest.fixture(autouse=True)
def no_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """The browser's part of the picture takes seconds to put together, and nobody looks."""
    monkeypatch.setattr(alt.JupyterChart, "enable_offline", lambda: None)


def test_few_operations_are_drawn_one_by_one(tmp_path: Path) -> None:
    """Three kernels and a copy; each with its call, the copy with its size."""
    _, view = opened(tmp_path, table())
    assert "GPU 0: 4 operations in 24.0 ms" == title(view)
    found = {(row["name"], row["call"]) for row in rows(view, "operations")}
    assert {
        ("k0", "cudaLaunchKernel"),
        ("k1", "cudaLaunchKernel"),
        ("k2", "cudaLaunchKernel"),
        ("H2D 4.00 kB", None),
    } == found


def test_many_are_drawn_as_bins(tmp_path: Path) -> None:
    """One operation more than can be told apart: bins, and not one interval."""
    chooser, view = opened(tmp_path, table(MOST))
    assert ([], True) == (rows(view, "operations"), len(rows(view, "bins")) > 300)
    chooser.window = (0, 100 * MS)
    assert (11, 0) == (len(rows(view, "operations")), len(rows(view, "bins")))


def test_a_drag_sets_the_window(tmp_path: Path) -> None:
    """From 12.5 ms back to 5 ms on an axis in ms: 5,000,000 ns to 12,500,000 ns, with two of the kernels."""
    chooser, view = opened(tmp_path, table())
    gesture(view, CHOSEN, [12.5, 5.0])
    assert (5_000_000, 12_500_000) == chooser.window
    assert ["k0", "k1"] == [row["name"] for row in rows(view, "operations") if row["call"]]


def test_the_axis_unit_of_the_picture_counts(tmp_path: Path) -> None:
    """Once the picture is one of microseconds, so is what is dragged."""
    chooser, view = opened(tmp_path, table())
    chooser.window = (2_000_000, 2_500_000)
    gesture(view, CHOSEN, [2100.0, 2200.25])
    assert (2_100_000, 2_200_250) == chooser.window


def test_a_drag_has_a_length_and_stays_inside(tmp_path: Path) -> None:
    """Operations last from 2 ms to 26 ms: what is beyond is left out; two edges on one ns are 1 ns apart."""
    chooser, view = opened(tmp_path, table())
    gesture(view, CHOSEN, [-5.0, 10.0])
    assert (2 * MS, 10 * MS) == chooser.window
    gesture(view, CHOSEN, [9.0, 9.0])
    assert (9 * MS, 9 * MS + 1) == chooser.window


def test_buttons_move_the_window(tmp_path: Path) -> None:
    """10 to 14 ms: left by 2 ms, out to twice 4 ms; the right end keeps the length; a double click shows all."""
    chooser, view = opened(tmp_path, table())
    seen = []
    chooser.window = (10 * MS, 14 * MS)
    for name in ("left", "zoom out", "right", "right", "right"):
        view.moves[name].click()
        seen.append(tuple(edge // MS for edge in chooser.window))
    assert [(8, 12), (6, 14), (10, 18), (14, 22), (18, 26)] == seen
    gesture(view, RESET, 1)
    assert () == chooser.window


def test_lanes_can_be_switched_on(tmp_path: Path) -> None:
    """Copies by direction, calls and ranges by thread; ranges nest; no step is found."""
    _, view = opened(tmp_path, table())
    for toggle in view.beside.values():
        toggle.value = True
    assert [
        "GPU 0 · stream 7",
        "GPU 0 · stream 9",
        "GPU 0 · H2D",
        "CUDA calls · thread 1",
        "NVTX · thread 1",
    ] == labels(view)
    found = {row["name"]: (row["high"], row["low"]) for row in rows(view, "others")}
    assert {"outer": ("4070", "4500"), "inner": ("4500", "4930")} == {name: found[name] for name in ("outer", "inner")}
    assert "1 copy or memset; 2 CUDA calls; 2 NVTX ranges." == view.picture.spec["title"]["subtitle"][0]
    view.beside["API calls"].value = False
    assert "CUDA calls · thread 1" not in labels(view)


def test_lanes_keep_their_place_where_they_rest(tmp_path: Path) -> None:
    """At the second kernel stream 9 has nothing to do, and a lane all the same."""
    chooser, view = opened(tmp_path, table())
    chooser.window = (12 * MS, 13 * MS)
    assert ["GPU 0 · stream 7", "GPU 0 · stream 9"] == labels(view)


def test_many_calls_are_bins_and_of_many_ranges_the_longest_are_seen(tmp_path: Path) -> None:
    """From 2 ms on: the 999 calls fill bins; of 599 ranges all but one are shorter than a pixel."""
    found = table(1000)
    short = [{"start_ns": n * MS, "dur_ns": 10, "depth": 1} for n in range(600)]
    found["RANGES"] = ranges({"start_ns": 0, "dur_ns": 5_000 * MS, "name": "outer"}, *short)
    _, view = opened(tmp_path, found)
    view.beside["API calls"].value = view.beside["NVTX ranges"].value = True
    assert ["outer"] == [row["name"] for row in rows(view, "others")]
    calls = labels(view).index("CUDA calls · thread 1")
    assert calls in {int(row["high"]) // 1000 for row in rows(view, "bins")}
    assert "Of 599 NVTX ranges, only the longest is drawn." in view.picture.spec["title"]["subtitle"]


def test_a_click_shows_launch_and_dossier(tmp_path: Path) -> None:
    """The second kernel: called at 10 ms for 1 ms, started at 12 ms: queued for 1 ms; 4 of 12 ms are its share."""
    _, view = opened(tmp_path, table())
    gesture(view, CLICKED, "1")
    text = view.known.value
    assert all(part in text for part in ("This launch", "0.012000000 s", "cudaLaunchKernel", "queue (ms)", "33.3"))


def test_a_click_on_a_copy_shows_it(tmp_path: Path) -> None:
    """4,000 bytes in 1 ms are 4 MB/s; no call is recorded."""
    _, view = opened(tmp_path, table())
    gesture(view, CLICKED, "-1")
    assert all(part in view.known.value for part in ("This copy", "H2D", "bandwidth (MB/s)", "4.00", "n/a"))


def test_nothing_to_draw_is_a_sentence(tmp_path: Path) -> None:
    """No operation in the window, and a choice that leaves nothing: said in place of the picture, escaped."""
    chooser, view = opened(tmp_path, table())
    chooser.window = (7 * MS, 7 * MS + 5)
    assert ("none", True) == (view.picture.layout.display, "No kernel or copy ran" in view.said.value)
    chooser.kernels = HOSTILE
    assert "none of the 3 kernel names" in view.said.value
    assert HOSTILE not in view.said.value
    chooser.kernels, chooser.window = "", ()
    assert (None, "") == (view.picture.layout.display, view.said.value)


def test_a_run_without_operations_says_so(tmp_path: Path) -> None:
    """Ranges alone: a sentence, and the ranges once they are switched on."""
    _, view = opened(tmp_path, {"RANGES": table()["RANGES"]})
    assert "No kernel or copy ran" in view.said.value
    view.beside["NVTX ranges"].value = True
    assert ("", ["NVTX · thread 1"]) == (view.said.value, labels(view))


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    """In the cards as text; in the picture they are data."""
    _, view = opened(tmp_path, {"KERNELS": kernels({"start_ns": 0, "dur_ns": 5, "name": HOSTILE})})
    gesture(view, CLICKED, "0")
    assert HOSTILE not in view.known.value
    assert HOSTILE in [one["text"] for one in view.picture.spec["datasets"]["names"]]


def test_a_choice_is_drawn_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Selection and problem change together: one picture."""
    chooser, view = opened(tmp_path, table())
    drawn: list[Any] = []
    monkeypatch.setattr(type(view.picture), "draw", lambda _, spec: drawn.append(spec))
    chooser.kernels = "nothing of this name"
    chooser.kernels = "k1"
    assert 1 == len(drawn)


def test_a_large_run_is_drawn_before_its_calls_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bars at once, and a click is answered once the calls are there: then the bars have them too."""
    monkeypatch.setattr(timeline, "MANY", 0)
    read = Event()
    found = run_of(tmp_path, table())
    whole = type(found).table
    monkeypatch.setattr(
        type(found), "table", lambda run, name: (name != "API_CALLS" or read.wait(60)) and whole(run, name)
    )

    async def looked() -> list[Any]:
        view = zoomable(Chooser(found))
        first = [{row["call"] for row in rows(view, "operations")}, view.picture.spec["title"]["subtitle"][0]]
        gesture(view, CLICKED, "1")
        first.append(view.known.value)
        read.set()
        for _ in range(600):
            if "This launch" in view.known.value:
                break
            await asyncio.sleep(0.1)
        return [*first, {row["call"] for row in rows(view, "operations")}, view.known.value]

    before, said, waiting, after, card = asyncio.run(looked())
    assert ({None}, "The calls that launched these operations are still being read.") == (before, said)
    assert "still being read" in waiting
    assert {"cudaLaunchKernel", None} == after
    assert "cudaLaunchKernel" in card


def test_calls_that_cannot_be_read_are_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bars are there without them."""
    found = run_of(tmp_path, table())
    whole = type(found).table

    def refused(run: perfkit.Run, name: str) -> pd.DataFrame:
        if name == "API_CALLS":
            raise PerfkitError("a.sqlite: cut off. Copy it again.")
        return whole(run, name)

    monkeypatch.setattr(type(found), "table", refused)
    view = zoomable(Chooser(found))
    assert 4 == len(rows(view, "operations"))
    assert "a.sqlite: cut off. Copy it again." in view.picture.spec["title"]["subtitle"]
    gesture(view, CLICKED, "-1")
    assert "This copy" in view.known.value


SAMPLE = Path(__file__).parents[2] / "data" / "mlp_a100"


def test_dossiers_agree_with_the_analysis() -> None:
    """Every sixth kernel of the sample alone, counters, operator and all: its row of the dossier of all kernels."""
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

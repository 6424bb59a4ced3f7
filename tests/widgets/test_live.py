"""The view of a log that moves on, without a browser: its ticks are set as Play would."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import altair as alt
import ipywidgets
import pandas as pd
import pytest
from readers.smi_files import moments, query
from sampled import SECOND, samples

import perfkit
from perfkit.charts.theme import MIME
from perfkit.errors import ReadError, SchemaError
from perfkit.tables import SAMPLES
from perfkit.widgets import live_monitor, logs, showing
from perfkit.widgets.live import LiveMonitor

TEN = [n / 10 for n in range(10)]  # readings at 0 s, 1 s, ... 9 s


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook in front of a person."""
    asked = {"content": {"allow_stdin": True}}
    monkeypatch.setattr(showing, "get_ipython", lambda: SimpleNamespace(get_parent=lambda: asked))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that grows is read again without a rest."""
    monkeypatch.setattr(logs, "REST", 0)


def opened(source: Any, speed: float = 1.0) -> LiveMonitor:
    """The view of a log."""
    view = live_monitor(source, speed=speed)
    assert isinstance(view, LiveMonitor)
    return view


def picture(view: LiveMonitor) -> dict[str, Any]:
    """The specification that is seen."""
    (output,) = view.picture.outputs
    json.dumps(output)
    return dict(output["data"][MIME])


def seen(view: LiveMonitor) -> list[float]:
    """The levels of GPU 0's utilisation that are seen, in percent; the last one is there twice."""
    return [row["value"] for row in picture(view)["datasets"]["gpu_busy_frac"] if row["gpu"] == "GPU 0"][:-1]


def aged(path: Path) -> Path:
    """A file that was changed an hour ago."""
    os.utime(path, (time.time() - 3600,) * 2)
    return path


def test_plays_at_speed_to_the_end(watched: None) -> None:
    """At twice the speed each tick is 2 s; three ticks that come at once count as three; the end stops Play."""
    view = opened(samples(gpu_busy_frac=TEN), speed=2)
    view.play.playing = True
    played = []
    for tick in (1, 4, 5):
        view.play.value = tick
        played.append((view.slider.value, view.play.playing))
    assert [(2, True), (8, True), (9, False)] == played


def test_shows_what_was_read_until_then(watched: None) -> None:
    """At 2 s the readings of 0 s, 1 s and 2 s are seen."""
    view = opened(samples(gpu_busy_frac=TEN))
    assert [0] == seen(view)
    view.play.value = 2
    assert [0, 10, 20] == seen(view)
    assert "samples: 2.00 s of 9.00 s" == view.status.value


def test_plays_again_from_the_beginning(watched: None) -> None:
    """Play at the end begins anew; elsewhere it goes on."""
    view = opened(samples(gpu_busy_frac=TEN), speed=100)
    view.play.value = 1
    assert 9 == view.slider.value
    view.play.playing = True
    assert 0 == view.slider.value
    view.speed.value = 3
    view.play.value = 2
    view.play.playing = False
    view.play.playing = True
    assert 3 == view.slider.value


def test_stop_goes_back(watched: None) -> None:
    """The button to stop sets Play's ticks to 0: the log is at its beginning."""
    view = opened(samples(gpu_busy_frac=TEN))
    view.play.value = 4
    view.play.value = 0
    assert (0, [0]) == (view.slider.value, seen(view))


def test_slider_and_span_choose_what_is_seen(watched: None) -> None:
    """Of 200 s the last minute before 150 s is seen: 91 s to 150 s, and the time between 90 s and its end."""
    view = opened(samples(gpu_busy_frac=[n / 1000 for n in range(200)]))
    view.slider.value = 150
    view.span.value = "last min"
    domain = picture(view)["vconcat"][0]["encoding"]["x"]["scale"]["domain"]
    assert [90, 150] == [round(edge, 6) for edge in domain]
    assert (9.0, 15.0) == (seen(view)[0], seen(view)[-1])


def test_a_log_that_begins_later(watched: None) -> None:
    """Readings from 5 s on play from there."""
    view = opened(samples(gpu_busy_frac=[0.5, 0.6], at=[5 * SECOND, 7 * SECOND]))
    assert (5, 5, 7) == (view.slider.value, view.slider.min, view.slider.max)
    view.step()
    assert 6 == view.slider.value


@pytest.mark.parametrize("table", [SAMPLES.empty(), samples(memory_allocated_bytes=[1.0, 2.0])])
def test_an_empty_log(watched: None, table: pd.DataFrame) -> None:
    """Without a reading of a GPU the picture says so, and a tick changes nothing."""
    view = opened(table)
    view.play.value = 1
    assert "No readings" == picture(view)["title"]["text"]
    assert (0, 0) == (view.slider.value, view.slider.max)


def test_a_single_reading(watched: None) -> None:
    """It is seen, and there is nothing to play."""
    view = opened(samples(gpu_busy_frac=[0.5]))
    view.play.value = 1
    assert ([50], 0, False) == (seen(view), view.slider.value, view.play.playing)


def test_plays_a_run_and_a_file(watched: None, tmp_path: Path) -> None:
    """A file that nobody writes any more is played from its beginning, as its run is."""
    log = aged(query(tmp_path / "gpu.csv", *moments(4)))
    for source in (log, str(log), perfkit.load(log)):
        view = opened(source)
        assert (0, 3, True) == (view.slider.value, view.slider.max, view.follow.disabled)
        assert view.status.value.startswith("gpu.csv: ")


def test_follows_a_log_that_is_written(watched: None, tmp_path: Path, cache: Path) -> None:
    """It begins at the end and stays there as lines are added; no copy of it is kept."""
    log = query(tmp_path / "gpu.csv", *moments(2))
    view = opened(log)
    assert (1, True) == (view.slider.value, view.follow.value)
    assert "gpu.csv: 1.00 s of 1.00 s; press Play to follow it" == view.status.value
    view.play.playing = True
    assert "gpu.csv: 1.00 s of 1.00 s" == view.status.value
    query(log, *moments(4))
    view.play.value = 1
    assert (3, [90, 91, 92, 93]) == (view.slider.value, seen(view))
    assert view.play.playing
    assert [] == list(cache.iterdir())


def test_looks_back_while_a_log_is_written(watched: None, tmp_path: Path) -> None:
    """Who moves the slider back stays there at the speed of Play, until he follows again."""
    log = query(tmp_path / "gpu.csv", *moments(4))
    view = opened(log)
    view.slider.value = 0
    assert not view.follow.value
    query(log, *moments(6))
    view.play.value = 1
    assert (1, 5) == (view.slider.value, view.slider.max)
    view.follow.value = True
    assert 5 == view.slider.value


def test_draws_what_is_new_at_the_same_place(watched: None, tmp_path: Path) -> None:
    """A second GPU whose line comes late is seen though the end is where it was."""
    rows = moments(2)
    log = query(tmp_path / "gpu.csv", *rows[:3])
    view = opened(log)
    before = len(picture(view)["datasets"]["power_w"])
    query(log, *rows)
    view.play.value = 1
    assert 1 == view.slider.value
    assert before < len(picture(view)["datasets"]["power_w"])


def test_waits_for_the_first_line(watched: None, tmp_path: Path) -> None:
    """A log with a header only says so until a line comes."""
    log = query(tmp_path / "gpu.csv")
    view = opened(log)
    assert "the log has a header and no whole row" in view.status.value
    query(log, *moments(1))
    view.play.value = 1
    assert ([90], False) == (seen(view), "no whole row" in view.status.value)


def test_a_log_that_vanishes_is_still_seen(watched: None, tmp_path: Path) -> None:
    """What was read stays, with a word on why there is nothing new."""
    log = query(tmp_path / "gpu.csv", *moments(2))
    view = opened(log)
    log.unlink()
    view.play.value = 1
    assert [90, 91] == seen(view)
    assert "cannot be read (No such file or directory)" in view.status.value


def test_a_long_log_is_read_less_often(watched: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a reading the file rests for a multiple of the time that it took."""
    monkeypatch.setattr(logs, "REST", 1e9)
    log = query(tmp_path / "gpu.csv", *moments(2))
    view = opened(log)
    query(log, *moments(4))
    view.play.value = 1
    assert 1 == view.slider.max


def test_nothing_new_is_not_drawn(watched: None, tmp_path: Path) -> None:
    """A tick in which the log did not grow leaves the picture as it is."""
    view = opened(query(tmp_path / "gpu.csv", *moments(2)))
    before = view.picture.outputs
    view.play.value = 1
    assert before is view.picture.outputs


def test_names_are_shown_as_text(watched: None, tmp_path: Path) -> None:
    """A file's name can be hostile."""
    view = opened(aged(query(tmp_path / "<img src=x>.csv", *moments(2))))
    assert view.status.value.startswith("&lt;img src=x&gt;.csv: ")


def test_is_shown_as_a_widget(watched: None) -> None:
    """A notebook shows the controls above the picture."""
    view = opened(samples(gpu_busy_frac=TEN))
    shown = view._repr_mimebundle_()
    assert view.view.model_id == shown["application/vnd.jupyter.widget-view+json"]["model_id"]
    assert isinstance(view.view.children[0], ipywidgets.HBox)


@pytest.mark.parametrize("shell", [None, SimpleNamespace(), SimpleNamespace(get_parent=dict)])
def test_is_a_still_picture_where_nobody_watches(monkeypatch: pytest.MonkeyPatch, shell: Any) -> None:
    """A program, a shell without notebook, or papermill, which answers no questions, gets the chart of all of it."""
    monkeypatch.setattr(showing, "get_ipython", lambda: shell)
    chart = live_monitor(samples(gpu_busy_frac=TEN))
    assert isinstance(chart, alt.VConcatChart)
    assert MIME in chart._repr_mimebundle_()


def test_other_sources_are_refused(tmp_path: Path) -> None:
    """A frame that is no SAMPLES, a path where nothing is, and a fresh file of another kind are named."""
    with pytest.raises(SchemaError, match="SAMPLES"):
        live_monitor(pd.DataFrame({"time_ns": [0]}))
    with pytest.raises(ReadError, match=r"none\.csv: no such file"):
        live_monitor(tmp_path / "none.csv")
    (tmp_path / "letter.txt").write_text("Dear reader")
    with pytest.raises(ReadError, match=r"letter\.txt: no reader recognises"):
        live_monitor(tmp_path / "letter.txt")


@pytest.mark.parametrize("speed", [0, -1, 1e5, float("nan")])
def test_speed_is_in_its_range(speed: float) -> None:
    """Time stands still for no one, nor runs back."""
    with pytest.raises(ValueError, match=r"speed: .* is not between 0.01 and 10000"):
        live_monitor(samples(gpu_busy_frac=TEN), speed=speed)

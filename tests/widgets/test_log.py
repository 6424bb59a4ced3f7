"""The view of a log that grows, without a browser: its ticks are set as Play would."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import altair as alt
import ipywidgets
import pytest
from readers.smi_files import moments, query

from perfkit.charts.vega import MIME
from perfkit.errors import ReadError
from perfkit.logs import live
from perfkit.logs.live import LiveMonitor, live_monitor


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "REST", 0)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of two GPUs at 0 s and 1 s, just written."""
    return query(tmp_path / "gpu.csv", *moments(2))


def opened(source: str | Path) -> LiveMonitor:
    view = live_monitor(source)
    assert isinstance(view, LiveMonitor)
    return view


def picture(view: LiveMonitor) -> dict[str, Any]:
    (output,) = view.picture.outputs
    json.dumps(output)
    return dict(output["data"][MIME])


def seen(view: LiveMonitor) -> list[float]:
    """The levels of GPU 0's utilisation that are seen, in percent; the last one is there twice."""
    return [
        row["value"] for row in picture(view)["datasets"]["gpu_busy_frac"] if row["gpu"] == "GPU 0"
    ][:-1]


def aged(path: Path) -> Path:
    os.utime(path, (time.time() - 3600,) * 2)
    return path


def test_follows_a_log_that_is_written(
    watched: None, log: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = opened(str(log))
    assert (1, [90, 91]) == (view.slider.value, seen(view))
    assert "gpu.csv: 1.00 s of 1.00 s; press Play to follow it" == view.status.value
    view.play.playing = True
    assert "gpu.csv: 1.00 s of 1.00 s" == view.status.value
    query(log, *moments(4))
    view.play.value = 1
    assert (3, [90, 91, 92, 93]) == (view.slider.value, seen(view))
    before = view.picture.outputs
    view.play.value = 2  # nothing new
    query(log, *moments(6))
    view.play.value = 0  # Stop, which is no step
    assert before is view.picture.outputs
    monkeypatch.setattr(live, "REST", 1e9)
    view.play.value = 3
    query(log, *moments(8))
    view.play.value = 4  # after a reading the file rests for a multiple of the time that it took
    assert 5 == view.slider.max
    bundle = view._repr_mimebundle_()
    assert view.view.model_id == bundle["application/vnd.jupyter.widget-view+json"]["model_id"]
    assert isinstance(view.view.children[0], ipywidgets.HBox)
    assert [] == list(cache.iterdir())


def test_slider_and_span_choose_what_is_seen(watched: None, tmp_path: Path) -> None:
    (row,) = moments(1, gpus=1)
    minutes = [(f"2026/01/01 00:0{minute}:00.000", *row[1:]) for minute in range(5)]
    view = opened(query(tmp_path / "gpu.csv", *minutes))
    view.slider.value = 150
    view.span.value = "last min"
    domain = picture(view)["vconcat"][0]["encoding"]["x"]["scale"]["domain"]
    assert [90, 150] == [round(edge, 6) for edge in domain]


def test_waits_for_the_first_line(watched: None, log: Path) -> None:
    query(log)
    view = opened(log)
    assert ["No readings"] == picture(view)["title"]["text"]
    assert "the log has a header and no whole row" in view.status.value
    query(log, *moments(1))
    view.play.value = 1
    assert ([90], False) == (seen(view), "no whole row" in view.status.value)


def test_a_log_that_vanishes_is_still_seen(watched: None, log: Path) -> None:
    view = opened(log)
    log.unlink()
    view.play.value = 1
    assert [90, 91] == seen(view)
    assert "cannot be read (No such file or directory)" in view.status.value


def test_names_are_shown_as_text(watched: None, tmp_path: Path) -> None:
    view = opened(query(tmp_path / "<img src=x>.csv", *moments(2)))
    assert view.status.value.startswith("&lt;img src=x&gt;.csv: ")


def test_a_log_that_does_not_grow_is_a_chart(watched: None, log: Path) -> None:
    aged(log)
    for source in (log, log.parent):
        assert isinstance(live_monitor(source), alt.VConcatChart)


@pytest.mark.parametrize("shell", [None, SimpleNamespace(), SimpleNamespace(get_parent=dict)])
def test_is_a_still_picture_where_nobody_watches(
    log: Path, monkeypatch: pytest.MonkeyPatch, shell: Any
) -> None:
    monkeypatch.setattr("perfkit.widgets.live.get_ipython", lambda: shell)
    chart = live_monitor(log)
    assert isinstance(chart, alt.VConcatChart)
    assert MIME in chart._repr_mimebundle_()


def test_other_files_are_refused(watched: None, tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"none\.csv: no such file"):
        live_monitor(tmp_path / "none.csv")
    (tmp_path / "letter.txt").write_text("Dear reader")
    with pytest.raises(ReadError, match=r"letter\.txt: no reader recognises"):
        live_monitor(tmp_path / "letter.txt")

"""The overview draws when each GPU was busy, under a brush."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import altair as alt
import pandas as pd
import pytest
from frames import copies, kernels

from perfkit.analysis.timeline import bins
from perfkit.charts import timeline
from perfkit.errors import SchemaError

Spec = dict[str, Any]


def spans(*rows: dict[str, Any]) -> pd.DataFrame:
    """Bins of 10 ns of [0, 100) with these kernels."""
    return bins(kernels(*rows), copies(), bins=10, window=(0, 100))


def rows(chart: Any) -> list[Spec]:
    """What is drawn."""
    (found,) = chart.to_dict()["datasets"].values()
    return list(found)


def test_a_strip_is_as_strong_as_the_busiest_stream() -> None:
    """In [0, 10) stream 7 works 4 ns and stream 8 works 6 ns: 0.6; in [10, 20) only stream 7, all of it."""
    drawn = spans(
        {"start_ns": 0, "dur_ns": 4}, {"start_ns": 2, "dur_ns": 6, "stream": 8}, {"start_ns": 10, "dur_ns": 10}
    )
    chart = timeline.activity(drawn, span=(0, 100))
    assert [(0, 10, 0.6), (10, 20, 1)] == [(row["start"], row["end"], row["busy"]) for row in rows(chart)]
    title = chart.to_dict()["title"]
    assert "When GPU 0 worked, over 100 ns" == title["text"]
    assert title["subtitle"][0].startswith("Full colour: busy 100 % of the time.")


def test_kinds_of_a_stream_add_up_to_all_of_it() -> None:
    """7 ns of computation and 7 ns of communication that overlap on one stream fill the bin, once."""
    both = spans({"start_ns": 0, "dur_ns": 7}, {"start_ns": 3, "dur_ns": 7, "family": "communication"})
    assert [1] == [row["busy"] for row in rows(timeline.activity(both, span=(0, 100)))]


def test_the_busiest_gpus_are_drawn_and_the_rest_named() -> None:
    """Of 30 GPUs, GPU n working n + 1 ns, 24 are left: 6 to 29, in their order."""
    many = spans(*({"start_ns": 0, "dur_ns": n + 1, "gpu": n} for n in range(30)))
    chart = timeline.activity(many, span=(0, 100))
    assert [f"GPU {n}" for n in range(6, 30)] == [*dict.fromkeys(row["gpu"] for row in rows(chart))]
    assert "These are the busiest 24 of 30 GPUs." in chart.to_dict()["description"]


def test_the_brush_is_where_the_window_is() -> None:
    """Without a window there is none, and the axis spans what was asked for."""
    drawn = spans({"start_ns": 0, "dur_ns": 4})
    spec = timeline.activity(drawn, span=(0, 200), shown=(20, 40)).to_dict()
    assert ["brush", {"x": [20, 40]}] == [spec["params"][0][key] for key in ("name", "value")]
    assert [0, 200] == spec["encoding"]["x"]["scale"]["domain"]
    assert "value" not in timeline.activity(drawn, span=(0, 100)).to_dict()["params"][0]


def test_obeys_the_rules_for_charts(checked: Callable[[Any], Spec]) -> None:
    """Valid, described, with units on its axes."""
    checked(timeline.activity(spans({"start_ns": 0, "dur_ns": 4}), span=(0, 100)))


def test_nothing_to_draw_and_wrong_frames() -> None:
    """An empty frame is a sentence; one without its columns, or with impossible shares, is refused."""
    empty = timeline.activity(spans(), span=(0, 1000), title="Nothing")
    assert "Nothing" == empty.to_dict()["title"]["text"]
    with pytest.raises(SchemaError, match="'busy_ns'"):
        timeline.activity(spans().drop(columns="busy_ns"), span=(0, 100))
    with pytest.raises(ValueError, match="busy_frac: 2"):
        timeline.activity(spans({"start_ns": 0, "dur_ns": 5}).assign(busy_frac=2.0), span=(0, 100))


def test_a_brush_reaches_python() -> None:
    """The widget knows the selection, and takes the page's colour."""
    chart = timeline.brushed(timeline.activity(spans({"start_ns": 0, "dur_ns": 4}), span=(0, 100)))
    seen: list[Any] = []
    chart.selections.observe(lambda change: seen.append(change["new"].value), ["brush"])
    chart._vl_selections = {"brush": {"value": {"start": [2.5, 7]}, "store": []}}
    assert [{"start": [2.5, 7]}] == seen
    assert "currentColor" == chart.embed_options["config"]["axis"]["labelColor"]


def test_a_program_is_used_or_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was made before is taken as it is; else Altair makes one that loads nothing from the network."""
    chart = alt.JupyterChart
    monkeypatch.setattr(chart, "_esm", chart._esm)
    monkeypatch.setattr(chart, "_is_offline", False)
    made = timeline.enable()
    assert "https://esm.sh" not in made
    assert 500_000 < len(made)
    assert 1 == made.count(timeline.COUNTED)
    monkeypatch.setattr(chart, "_is_offline", False)
    assert "kept" == timeline.enable("kept") == timeline.enable()

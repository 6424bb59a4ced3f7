"""Colours, renderer and theme, and that every chart takes what the analyses return."""

from collections.abc import Callable
from itertools import combinations

import altair as alt
import numpy as np
import pandas as pd
import pytest
import vl_convert
from charts.checking import refuses

from perfkit.analysis import causes
from perfkit.charts import icicle, kernels, ranks, shares, theme
from perfkit.charts.checks import fraction, known, need
from perfkit.charts.theme import inline
from perfkit.errors import SchemaError
from perfkit.logs.charts import monitor
from perfkit.logs.monitoring import states
from perfkit.names import parts
from perfkit.names.families import FAMILIES

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
SIGHT = {
    "normal": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.3039],
    ],
}
TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.072175],
        [0.0193339, 0.119192, 0.9503041],
    ]
)
WHITE = np.array([0.95047, 1.0, 1.08883])


def _linear(colour: str) -> np.ndarray:
    value = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def _lab(linear: np.ndarray) -> np.ndarray:
    xyz = TO_XYZ @ np.clip(linear, 0, 1) / WHITE
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def _contrast(colour: str, page: str) -> float:
    light = sorted(_linear(c) @ TO_XYZ[1] + 0.05 for c in (colour, page))
    return float(light[1] / light[0])


# Parts of a GPU's time that one bar shows; the colours of calls on the timeline are among them.
OF_TIME = {**theme.KIND_COLOURS, **theme.DETAIL_COLOURS} | {
    cause: theme.CAUSE_COLOURS[cause] for cause in ("kernel_wait", "other")
}
PALETTES = {
    "kinds": theme.KIND_COLOURS,
    "parts of the time": OF_TIME,
    "families": theme.FAMILY_COLOURS,
    "causes": theme.CAUSE_COLOURS,
    "phases": theme.PHASE_COLOURS,
    "states": theme.STATE_COLOURS,
    "formats": kernels.FORMAT_COLOURS,
    "parts": shares.PART_COLOURS,
    "series": {
        key: shares.SERIES_COLOURS[key] for key in shares.SERIES_COLOURS if key in shares.SERIES
    },
    "operations": ranks.OPERATION_COLOURS,
    "contexts": {
        colour: colour for colour in icicle.COLOURS.values()
    },  # kinds of two pictures share colours
    "lowered clocks": monitor.THROTTLED_COLOURS,
}


@pytest.mark.parametrize("sight", SIGHT)
def test_colours_stay_apart(sight: str) -> None:
    """Any two colours of a palette differ by 15 or more (CIE 1976) for normal sight and each colour blindness."""
    for palette, colours in PALETTES.items():
        seen = [_lab(np.array(SIGHT[sight]) @ _linear(colour)) for colour in colours.values()]
        assert min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2)) >= 15, palette


@pytest.mark.parametrize("sight", SIGHT)
def test_phases_stay_apart_from_what_their_timeline_shows(sight: str) -> None:
    matrix = np.array(SIGHT[sight])
    kinds = {key: colour for key, colour in theme.KIND_COLOURS.items() if key != "idle"}
    works = [_lab(matrix @ _linear(colour)) for colour in kinds.values()]
    phases = [_lab(matrix @ _linear(colour)) for colour in theme.PHASE_COLOURS.values()]
    assert min(float(np.linalg.norm(a - b)) for a in phases for b in works) >= 15


def test_colours_show_on_light_and_dark_and_under_dark_text() -> None:
    for palette, colours in PALETTES.items():
        assert (
            min(_contrast(c, page) for c in colours.values() for page in ("#FFFFFF", "#16181C"))
            >= 1.6
        ), palette
    assert min(_contrast(colour, icicle.INK) for colour in icicle.COLOURS.values()) >= 4.5


def test_a_cause_of_idle_time_has_one_name_on_all_pages() -> None:
    names = {**theme.CAUSE_NAMES, **theme.DETAIL_NAMES}
    del names["host_wait"]  # all causes on the CPU, which the parts of the time tell apart
    assert names == {key: parts.TIME[key] for key in names}
    assert "Idle: other CUDA calls" == f"Idle: {parts.IDLE['cuda_call']}"


def test_every_key_has_a_name_and_a_colour() -> None:
    assert list(theme.KIND_COLOURS) == list(theme.KIND_NAMES)
    assert list(theme.CAUSE_COLOURS) == list(theme.CAUSE_NAMES)
    assert list(theme.DETAIL_COLOURS) == list(theme.DETAIL_NAMES)
    assert set(causes.CAUSES) == set(theme.CAUSE_COLOURS)
    assert {"start_up", "loop", "pause", "end", "whole"} == set(theme.PHASE_COLOURS)
    assert set(states.STATES) == set(theme.STATE_COLOURS)
    assert set(causes.DETAILS) == set(theme.DETAIL_COLOURS)
    assert set(FAMILIES) == set(theme.FAMILY_COLOURS)
    assert set(theme.LINE_COLOURS) <= set(ranks.OPERATION_COLOURS.values())


@pytest.mark.parametrize("again", [theme.register, theme.follow_cells])
def test_a_renderer_of_the_user_stays(again: Callable[[], object]) -> None:
    theme.register()
    with alt.renderers.enable("svg"):
        again()
        assert "svg" == alt.renderers.active


def test_a_chart_is_shown_under_the_type_jupyterlab_draws_offline() -> None:
    chart = theme.nothing("No kernels", "The window is empty.")
    with alt.renderers.enable("perfkit"):
        bundle = chart._repr_mimebundle_()
    assert {"application/vnd.vegalite.v5+json", "text/plain"} == set(bundle)
    assert "chart: No kernels. Nothing to draw. The window is empty." == bundle["text/plain"]


def test_the_theme_sets_no_colour_of_text() -> None:
    """JupyterLab's dark theme and the report set the ink; a colour in the specification would win over them."""
    theme.register()
    with alt.theme.enable("default"):
        plain = theme.nothing("a", "b").to_dict()["config"]
    with alt.theme.enable("perfkit"):
        themed = theme.nothing("a", "b").to_dict()["config"]
    assert "title" not in plain
    assert not [
        key
        for part in themed.values()
        if isinstance(part, dict)
        for key in part
        if "color" in key.lower()
    ]


def test_wrong_frames_are_refused() -> None:
    refuses(
        SchemaError,
        r"columns \['b', 'c'\] are missing. It has \['a'\]",
        need,
        pd.DataFrame({"a": [1]}),
        *"abc",
    )
    causes = pd.DataFrame({"cause": ["edge", None, "rain"]})
    refuses(
        ValueError, r"cause: \['rain'\] are not among \['edge'\]", known, causes, "cause", ["edge"]
    )
    for share in (-0.1, 1.001):  # never clipped: an error in what computed it
        words = f"share_frac: {share} is not a fraction between 0 and 1"
        refuses(
            ValueError, words, fraction, pd.DataFrame({"share_frac": [0.5, share]}), "share_frac"
        )
    refuses(
        ValueError, "20001 rows are more than 20000", inline, pd.DataFrame({"a": range(20_001)})
    )
    missing = pd.DataFrame({"a": [1.5, float("nan")], "b": pd.array([1, None], "Int64")})  # no JSON
    assert [{"a": 1.5, "b": 1}, {"a": None, "b": None}] == inline(missing).to_dict()["values"]


def test_a_chart_that_follows_its_cell_compiles_to_the_signal_that_is_replaced() -> None:
    """By Vega-Lite's own compiler, with a height of steps, too; facets and panels of several widths keep theirs."""
    rows = pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "a" * 40], "c": ["host wait", "kernel wait"]})
    chart = (
        alt.Chart(theme.inline(rows))
        .mark_bar()
        .encode(x="a:Q", y="b:N", color="c:N")
        .properties(width=640)
    )
    chosen = chart.add_params(alt.param(name="first", value=1, bind=alt.binding_range(max=5)))
    wide = theme.following(chosen.properties(height=alt.Step(20), title="word " * 30).to_dict())
    patch, seen = wide["usermeta"]["embedOptions"]["patch"]
    assert {"events": {"signal": seen["value"]["name"]}, "update": seen["value"]["name"]} == patch[
        "value"
    ]["on"][0]
    assert (
        "width"
        == vl_convert.vegalite_to_vega(wide)["signals"][int(patch["path"].rpartition("/")[2])][
            "name"
        ]
    )
    assert 1 < len(wide["title"]["text"])
    own = alt.Chart(rows, width=640).mark_bar().encode(x="a:Q")
    for field, columns in (("b:N", 1), ("c:N", 4)):  # as many names in a row as fit
        assert (
            columns
            == theme.following(own.encode(color=field).to_dict())["config"]["legend"]["columns"]
        )
    other = {
        "datasets": {"a": [1], "b": "x"},
        "encoding": {"color": {"field": {"repeat": "layer"}, "type": "nominal"}},
    }
    assert 5 == theme.following({"mark": "bar", **other})["config"]["legend"]["columns"]
    narrow = chart.properties(width=200)
    for kept in (
        chart & narrow,
        chart | chart,
        chart.facet("c:N"),
        chart.encode(row="c:N"),
        narrow,
    ):
        assert theme.following(spec := kept.to_dict()) == spec


@pytest.mark.parametrize(("axis", "labels"), [("b:N", theme.NAMES), ("a:Q", theme.NUMBERS)])
def test_panels_that_follow_their_cell_share_the_width_that_is_added(
    axis: str, labels: int
) -> None:
    rows = pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]})
    panel = (
        alt.Chart(theme.inline(rows), title="word " * 30)
        .mark_bar()
        .encode(y=axis)
        .properties(width=640)
    )
    wide = theme.following((panel & panel).to_dict())
    made = vl_convert.vegalite_to_vega(wide)
    assert 640 == made["width"], "a signal of this name adds to it"
    assert [{"signal": "width"}] * 2 == [
        group["encode"]["update"]["width"] for group in made["marks"]
    ]
    assert "width" not in [signal["name"] for signal in made["signals"]]
    patch = wide["usermeta"]["embedOptions"]["patch"]
    assert ["/signals/-"] * 2 == [step["path"] for step in patch]
    assert f"max(container_width - {labels}, 120)" == patch[0]["value"]["on"][0]["update"]
    assert all(len(one["title"]["text"]) > 1 for one in wide["vconcat"])


def test_a_tooltip_reads_na_where_a_name_is_missing() -> None:
    rows = pd.DataFrame({"x": [1, 2], "name": ["gemm", None]})
    chart = theme.marked(rows, "point", alt.X("x:Q"), theme.hover("name"))
    (data,) = chart.to_dict()["datasets"].values()
    assert ["gemm", "n/a"] == [row["name"] for row in data]

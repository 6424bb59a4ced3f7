"""Colours, renderer and theme, and that every chart takes what the analyses return."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import combinations
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import pytest
from frames import api_calls, copies
from frames import kernels as kernels_table

from perfkit import analysis
from perfkit.charts import icicle, kernels, monitor, monitor_lines, ranks, shares, theme, timeline
from perfkit.charts.theme import DETAIL_COLOURS, fraction, inline, known, need
from perfkit.errors import SchemaError

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
SIGHT = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
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


PALETTES = {
    "kinds": theme.KIND_COLOURS,
    "families": theme.FAMILY_COLOURS,
    "causes": theme.CAUSE_COLOURS,
    "formats": kernels.FORMAT_COLOURS,
    "parts": shares.PART_COLOURS,
    "series": {key: shares.SERIES_COLOURS[key] for key in shares.SERIES_COLOURS if key in shares.SERIES},
    "operations": ranks.OPERATION_COLOURS,
    "contexts": {colour: colour for colour in icicle.COLOURS.values()},  # kinds of two pictures share colours
    "lowered clocks": monitor.THROTTLED_COLOURS,
}


@pytest.mark.parametrize("palette", PALETTES)
@pytest.mark.parametrize("sight", SIGHT)
def test_colours_stay_apart(palette: str, sight: str) -> None:
    """Any two colours of a palette differ by 15 or more (CIE 1976) for normal sight and each colour blindness."""
    seen = [_lab(np.array(SIGHT[sight]) @ _linear(colour)) for colour in PALETTES[palette].values()]
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2)) >= 15


@pytest.mark.parametrize("palette", [*PALETTES, "details"])
@pytest.mark.parametrize("page", ["#FFFFFF", "#16181C"])
def test_colours_show_on_light_and_dark(palette: str, page: str) -> None:
    """Every colour has a contrast of at least 1.6 to a white and to a dark page."""
    assert min(_contrast(colour, page) for colour in {**PALETTES, "details": DETAIL_COLOURS}[palette].values()) >= 1.6


def test_dark_text_reads_on_an_icicle() -> None:
    """The ink of its names has a contrast of 4.5 to every bar."""
    assert min(_contrast(colour, icicle.INK) for colour in icicle.COLOURS.values()) >= 4.5


def test_gpus_have_colours_of_a_tested_palette() -> None:
    """The lines of the monitor take those of the collectives' operations."""
    assert set(monitor_lines.COLOURS) <= set(ranks.OPERATION_COLOURS.values())


def test_every_key_has_a_name_and_a_colour() -> None:
    """Kinds, causes and details have names for people for all of their colours."""
    assert list(theme.KIND_COLOURS) == list(theme.KIND_NAMES)
    assert list(theme.CAUSE_COLOURS) == list(theme.CAUSE_NAMES)
    assert list(theme.DETAIL_COLOURS) == list(theme.DETAIL_NAMES)


def test_causes_are_those_of_the_analysis() -> None:
    """The analysis of gaps knows the same causes and details as the charts."""
    from perfkit.analysis import causes

    assert set(causes.CAUSES) == set(theme.CAUSE_COLOURS)
    assert set(causes.DETAILS) == set(theme.DETAIL_COLOURS)


def test_families_are_those_of_the_names() -> None:
    """Every family that a kernel's name can tell has a colour, and no other."""
    from perfkit.names.families import FAMILIES

    assert set(FAMILIES) == set(theme.FAMILY_COLOURS)


def test_importing_the_charts_changes_nothing_in_altair() -> None:
    """Theme and renderer are registered by the first chart, not by an import."""
    code = "import altair, perfkit.charts.timeline; print(altair.renderers.active, altair.theme.active)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ["default", "default"] == done.stdout.split()


def test_registering_again_leaves_the_users_renderer() -> None:
    """Who enables another renderer after the first chart keeps it."""
    theme.register()
    with alt.renderers.enable("svg"):
        theme.register()
        assert "svg" == alt.renderers.active


def test_a_chart_is_shown_under_the_type_jupyterlab_draws_offline() -> None:
    """The display bundle holds the specification, and words for where no chart can be drawn."""
    chart = theme.nothing("No kernels", "The window is empty.")
    with alt.renderers.enable("perfkit"):
        bundle = chart._repr_mimebundle_()
    assert {"application/vnd.vegalite.v5+json", "text/plain"} == set(bundle)
    assert "chart: No kernels. Nothing to draw. The window is empty." == bundle["text/plain"]


def test_the_theme_sets_no_colour_of_text() -> None:
    """JupyterLab's dark theme and the report set the ink; a colour in the specification would win over them."""
    with alt.theme.enable("default"):
        plain = theme.nothing("a", "b").to_dict()["config"]
    with alt.theme.enable("perfkit"):
        themed = theme.nothing("a", "b").to_dict()["config"]
    assert "title" not in plain
    assert not [key for part in themed.values() if isinstance(part, dict) for key in part if "color" in key.lower()]


def test_a_missing_column_is_named() -> None:
    """All columns that a chart lacks are named at once."""
    with pytest.raises(SchemaError, match=r"columns \['b', 'c'\] are missing. It has \['a'\]"):
        need(pd.DataFrame({"a": [1]}), "a", "b", "c")


def test_unknown_values_are_named_with_the_legal_ones() -> None:
    """A value without name and colour is refused; a missing one passes."""
    with pytest.raises(ValueError, match=r"cause: \['rain'\] are not among \['edge'\]"):
        known(pd.DataFrame({"cause": ["edge", None, "rain"]}), "cause", ["edge"])


@pytest.mark.parametrize("share", [-0.1, 1.001])
def test_a_share_outside_its_range_is_refused(share: float) -> None:
    """Shares are never clipped: one outside 0..1 is an error in what computed it."""
    with pytest.raises(ValueError, match=f"share_frac: {share} is not a fraction between 0 and 1"):
        fraction(pd.DataFrame({"share_frac": [0.5, share]}), "share_frac")


def test_missing_values_become_null() -> None:
    """NaN and NA are no JSON; in a chart's data they are null."""
    frame = pd.DataFrame({"a": [1.5, float("nan")], "b": pd.array([1, None], "Int64")})
    assert [{"a": 1.5, "b": 1}, {"a": None, "b": None}] == inline(frame).to_dict()["values"]


def test_more_rows_than_a_browser_draws_are_refused() -> None:
    """20,001 rows are an error that says what to do."""
    with pytest.raises(ValueError, match="20001 rows are more than 20000"):
        inline(pd.DataFrame({"a": range(20_001)}))


Check = Callable[[alt.TopLevelMixin], dict[str, Any]]
KERNELS = kernels_table(
    {"start_ns": 0, "dur_ns": 400, "correlation": 1, "family": "gemm"},
    {"start_ns": 700, "dur_ns": 200, "correlation": 2, "family": "communication", "name": "ncclDevKernel_AllReduce"},
)
COPIES = copies({"start_ns": 950, "dur_ns": 50, "bytes": 64})
CALLS = api_calls({"start_ns": 0, "dur_ns": 5, "correlation": 1}, {"start_ns": 600, "dur_ns": 5, "correlation": 2})


def _idle(k: pd.DataFrame, c: pd.DataFrame) -> pd.DataFrame:
    return analysis.gaps.idle_gaps(k, c, CALLS)


CHARTS: dict[str, Callable[[pd.DataFrame, pd.DataFrame], alt.TopLevelMixin]] = {
    "lanes": lambda k, c: timeline.lanes(analysis.timeline.bins(k, c, bins=10)),
    "parts": lambda k, c: shares.parts(analysis.timeline.breakdown(k, c)),
    "bars": lambda k, c: kernels.bars(analysis.kernels.summary(k)),
    "histogram": lambda k, c: timeline.histogram(analysis.gaps.histogram(_idle(k, c))),
    "causes": lambda k, c: timeline.causes(analysis.gaps.idle_by_cause(_idle(k, c))),
}


@pytest.mark.parametrize("name", CHARTS)
def test_charts_take_what_the_analyses_return(name: str, checked: Check) -> None:
    """Two kernels, a copy and the gaps between them are drawn by every chart."""
    assert checked(CHARTS[name](KERNELS, COPIES))["config"]


@pytest.mark.parametrize("name", CHARTS)
def test_charts_take_what_the_analyses_return_for_nothing(name: str, checked: Check) -> None:
    """An empty capture is a sentence in every chart."""
    spec = checked(CHARTS[name](KERNELS.iloc[:0], COPIES.iloc[:0]))
    assert "Nothing to draw" in spec["description"]


def test_a_chart_that_follows_its_cell_compiles_to_the_signal_that_is_replaced() -> None:
    """By Vega-Lite's own compiler, with a height of steps, too; several pictures and facets keep their widths."""
    vl_convert = pytest.importorskip("vl_convert")
    rows = pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "a" * 40], "c": ["host wait", "kernel wait"]})
    chart = alt.Chart(theme.inline(rows)).mark_bar().encode(x="a:Q", y="b:N", color="c:N")
    chosen = chart.add_params(alt.param(name="first", value=1, bind=alt.binding_range(max=5)))
    wide = theme.following(chosen.properties(height=alt.Step(20), title="word " * 30).to_dict())
    (patch,) = wide["usermeta"]["embedOptions"]["patch"]
    assert "width" == vl_convert.vegalite_to_vega(wide)["signals"][int(patch["path"].rpartition("/")[2])]["name"]
    assert 1 < len(wide["title"]["text"])
    for kept in (chart & chart, chart.facet("c:N"), chart.encode(row="c:N"), chart.properties(width=200)):
        assert theme.following(spec := kept.to_dict()) == spec


def test_a_renderer_of_the_user_stays() -> None:
    """One that was enabled after perfkit's draws the charts, also where they could follow their cells."""
    theme.register()
    with alt.renderers.enable("json"):
        theme.follow_cells()
        assert "json" == alt.renderers.active

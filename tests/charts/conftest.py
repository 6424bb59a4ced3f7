"""What every chart must satisfy, whatever it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import altair as alt
import pytest

Spec = dict[str, Any]
POSITIONS = ("x", "y")


def _filled(spec: Spec, datasets: Spec, data: Spec | None = None) -> None:
    """Give every view that draws marks its rows: Altair keeps equal data once, at the top."""
    data = spec.pop("data", data)
    if "mark" in spec:
        assert data is not None
        spec["rows"] = datasets[data["name"]]
    for child in [child for key in ("layer", "vconcat") for child in spec.get(key, [])]:
        _filled(child, datasets, data)


def _views(spec: Spec) -> Iterator[Spec]:
    """Every view that draws marks."""
    if "mark" in spec:
        yield spec
    for child in [child for key in ("layer", "vconcat") for child in spec.get(key, [])]:
        yield from _views(child)


def _channels(view: Spec) -> Iterator[tuple[str, Spec]]:
    for channel, encoding in view.get("encoding", {}).items():
        for one in encoding if isinstance(encoding, list) else [encoding]:
            yield channel, one


def _axes(spec: Spec) -> Iterator[list[tuple[str, Spec]]]:
    """The position encodings of each set of layers that share axes."""
    for group in spec.get("vconcat", [spec]):
        yield [(name, one) for view in _views(group) for name, one in _channels(view) if name in POSITIONS]


@pytest.fixture
def checked() -> Callable[[alt.TopLevelMixin], Spec]:
    """Return a chart's specification, each view with its `rows`, after checking what all charts have in common."""

    def check(chart: alt.TopLevelMixin) -> Spec:
        spec: Spec = chart.to_dict()  # raises if it does not match the Vega-Lite schema
        assert spec["title"]
        assert spec["description"]
        _filled(spec, spec["datasets"])
        for view in _views(spec):
            _encoded_fields_exist(view)
            assert view["mark"].get("tooltip") is False or "tooltip" in view["encoding"]
        for axes in _axes(spec):
            _numbers_have_units(axes)
        return spec

    return check


def _encoded_fields_exist(view: Spec) -> None:
    for channel, one in _channels(view):
        for field in filter(None, [one.get("field"), one.get("condition", {}).get("test", {}).get("field")]):
            assert all(field in row for row in view["rows"]), f"{channel} draws {field}, which the data lack"


def _numbers_have_units(axes: list[tuple[str, Spec]]) -> None:
    for name in POSITIONS:
        drawn = [one for channel, one in axes if channel == name and one.get("type") == "quantitative"]
        if drawn:
            told = [str(one.get("title")) for one in drawn] + [
                "(own)" for one in drawn if (one.get("axis") or {}).get("labelExpr")
            ]
            assert any("(" in text for text in told), f"the {name} axis names no unit: {told}"

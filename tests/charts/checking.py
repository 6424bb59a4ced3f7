"""What every chart must satisfy, whatever it shows, and what the tests of charts share."""

from collections.abc import Callable, Iterator
from typing import Any

import altair as alt
import pytest

Spec = dict[str, Any]


def checked(chart: alt.TopLevelMixin) -> Spec:
    """A chart's specification, each view with its `rows`, after checking what all charts have in common."""
    spec: Spec = chart.to_dict()  # raises if it does not match the Vega-Lite schema
    assert spec["title"]
    assert spec["description"]
    _filled(spec, spec["datasets"])
    for view in _views(spec):
        _encoded_fields_exist(view)
        assert view["mark"].get("tooltip") is False or "tooltip" in view["encoding"]
    for group in spec.get("vconcat", [spec]):  # layers share axes
        _numbers_have_units(
            [(name, one) for view in _views(group) for name, one in _channels(view)]
        )
    return spec


def title(chart: alt.TopLevelMixin | Spec) -> str:
    """The title of a chart, or of a panel of its specification."""
    spec = chart if isinstance(chart, dict) else checked(chart)
    return str(spec["title"]["text"])


def subtitle(chart: alt.TopLevelMixin | Spec) -> list[str]:
    spec = chart if isinstance(chart, dict) else checked(chart)
    return list(spec["title"]["subtitle"])


def drawn(view: Spec, *fields: str) -> list[tuple[Any, ...]]:
    """The given fields of a view's rows; of a whole chart those of its first layer."""
    view = view["layer"][0] if "layer" in view else view
    return [tuple(row[field] for field in fields) for row in view["rows"]]


def refuses(
    error: type[Exception], words: str, draw: Callable[..., object], *frames: object, **how: object
) -> None:
    """A chart of these frames is an error that says so."""
    with pytest.raises(error, match=words):
        draw(*frames, **how)


def _filled(spec: Spec, datasets: Spec, data: Spec | None = None) -> None:
    """Give every view that draws marks its rows: Altair keeps equal data once, at the top."""
    data = spec.pop("data", data)
    if "mark" in spec:
        assert data is not None
        spec["rows"] = datasets[data["name"]]
    for child in [child for key in ("layer", "vconcat") for child in spec.get(key, [])]:
        _filled(child, datasets, data)


def _views(spec: Spec) -> Iterator[Spec]:
    if "mark" in spec:
        yield spec
    for child in [child for key in ("layer", "vconcat") for child in spec.get(key, [])]:
        yield from _views(child)


def _channels(view: Spec) -> Iterator[tuple[str, Spec]]:
    for channel, encoding in view.get("encoding", {}).items():
        for one in encoding if isinstance(encoding, list) else [encoding]:
            yield channel, one


def _encoded_fields_exist(view: Spec) -> None:
    for channel, one in _channels(view):
        for field in filter(
            None, [one.get("field"), one.get("condition", {}).get("test", {}).get("field")]
        ):
            assert all(field in row for row in view["rows"]), (
                f"{channel} draws {field}, which the data lack"
            )


def _numbers_have_units(axes: list[tuple[str, Spec]]) -> None:
    for name in ("x", "y"):
        numbers = [
            one for channel, one in axes if channel == name and one.get("type") == "quantitative"
        ]
        told = [str(one.get("title")) for one in numbers]
        told += ["(own)" for one in numbers if (one.get("axis") or {}).get("labelExpr")]
        assert not numbers or any("(" in text for text in told), (
            f"the {name} axis names no unit: {told}"
        )

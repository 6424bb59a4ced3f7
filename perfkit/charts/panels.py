"""Several pictures below each other that read as one.

Functions
---------
panel      layers as one picture of several, under its own small title
together   panels under one title; a single one without a small title
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import altair as alt

from perfkit.charts.theme import layered


def panel(layers: Iterable[alt.Chart], name: str, *, picture: str, size: tuple[int, int | alt.Step]) -> alt.LayerChart:
    """Return the layers as one picture of several, named above it; the other arguments are those of `layered`."""
    chart = layered(layers, name, "", picture=picture, size=size)
    chart.title = alt.TitleParams(text=name, fontSize=12)
    return chart


def together(
    panels: Sequence[alt.LayerChart], title: str, explanation: Sequence[str], *, picture: str
) -> alt.LayerChart | alt.VConcatChart:
    """Return the panels below each other under title and explanation, one line each.

    Parameters
    ----------
    panels
        At least one; a single one loses its small title.
    title, explanation
        What is seen, and under it how to read it.
    picture
        What kind of picture a panel is, for the description that screen readers speak.
    """
    several = f"{picture}, {len(panels)} panels" if len(panels) > 1 else picture
    said = {
        "title": alt.TitleParams(text=title, subtitle=list(explanation)),
        "description": " ".join([f"{text.rstrip('.')}." for text in (title, several, *explanation)]),
    }
    if len(panels) == 1:
        return panels[0].properties(**said)
    whole: alt.VConcatChart = alt.VConcatChart(vconcat=list(panels), spacing=10).properties(**said)
    return whole

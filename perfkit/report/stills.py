"""Charts as pictures, for pages that nbconvert makes without perfkit's: nbgrader's feedback is one.

Conventions
-----------
A chart stays in the notebook as data for those who can draw it; its picture stands beside it, with its description
for those who do not see it. Nothing is fetched.

Functions
---------
drawn    a notebook with a picture beside each chart, as a step of nbconvert
"""

from __future__ import annotations

from base64 import b64encode
from html import escape
from typing import Any

import nbformat

from perfkit.charts.theme import MIME
from perfkit.report.html import VEGA_LITE

PADDING = 16  # pixels: where the picture is looked at, its letters may be wider than where it was made
PICTURES = {"text/html", "image/svg+xml", "image/png"}


def drawn(notebook: nbformat.NotebookNode, resources: dict[str, Any]) -> tuple[nbformat.NotebookNode, dict[str, Any]]:
    """Return the notebook with a picture (SVG, as HTML) beside each chart that has none.

    Parameters
    ----------
    notebook
        An executed notebook; it is changed.
    resources
        nbconvert's, handed on.

    Raises
    ------
    ValueError
        If a chart's data lie elsewhere: they are not fetched.

    Notes
    -----
    For nbconvert, and so for nbgrader's feedback: ``c.HTMLExporter.preprocessors = ["perfkit.report.stills.drawn"]``.
    """
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if MIME in data and not PICTURES & set(data):
                data["text/html"] = _picture(data[MIME])
    return notebook, resources


def _picture(spec: dict[str, Any]) -> str:
    from vl_convert import vegalite_to_svg

    drawing = vegalite_to_svg({**spec, "padding": PADDING}, vl_version=VEGA_LITE, allowed_base_urls=[])
    said = escape(str(spec.get("description", "a chart without description")))
    return f'<img alt="{said}" src="data:image/svg+xml;base64,{b64encode(drawing.encode()).decode()}">'

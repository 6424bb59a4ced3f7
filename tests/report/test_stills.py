"""Charts as pictures in pages that nbconvert makes."""

from __future__ import annotations

import re
from base64 import b64decode
from typing import Any

import nbformat
import pytest
from nbconvert import HTMLExporter
from traitlets.config import Config

from perfkit.charts.theme import MIME
from perfkit.report.html import drawn

SPEC = {
    "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
    "title": "Bars of <b>two</b> kernels",
    "description": 'Two bars "a" and <b>',
    "data": {"values": [{"kernel": "a_long_kernel_name", "ms": 3}, {"kernel": "b", "ms": 5}]},
    "mark": "bar",
    "encoding": {"x": {"field": "ms", "type": "quantitative"}, "y": {"field": "kernel", "type": "nominal"}},
}
PICTURE = re.compile(r'<img alt="([^"]*)" src="data:image/svg\+xml;base64,([^"]*)"/?>')


def notebook(*data: dict[str, Any]) -> nbformat.NotebookNode:
    """A notebook of one cell with these outputs."""
    made = nbformat.v4
    outputs = [made.new_output("display_data", data=each) for each in data]
    return made.new_notebook(cells=[made.new_markdown_cell("# Text"), made.new_code_cell("show()", outputs=outputs)])


def test_chart_gets_a_picture_and_keeps_its_data() -> None:
    """The picture has the axis's names and both bars; its title and its description are text."""
    made, resources = drawn(notebook({MIME: SPEC, "text/plain": "chart"}), {"a": 1})
    data = made.cells[1].outputs[0].data
    assert (SPEC, {"a": 1}) == (data[MIME], resources)
    said, drawing = PICTURE.fullmatch(data["text/html"]).groups()  # type: ignore[union-attr]
    picture = b64decode(drawing).decode()
    assert "Two bars &quot;a&quot; and &lt;b&gt;" == said
    assert {"a_long_kernel_name", "b"} <= set(re.findall(r">([^<>]+)</text>", picture))
    assert 2 == len(re.findall(r'aria-roledescription="bar"', picture))
    assert "&lt;b&gt;two&lt;/b&gt;" in picture


def test_nothing_else_is_touched() -> None:
    """Tables, text and a picture that is there already stay as they are."""
    given = notebook({"text/html": "<table></table>"}, {MIME: SPEC, "image/svg+xml": "<svg/>"})
    before = nbformat.writes(given)
    assert before == nbformat.writes(drawn(given, {})[0])


def test_data_from_elsewhere_are_not_fetched() -> None:
    """A chart that names an address is refused before anything is asked for."""
    with pytest.raises(ValueError, match="External data url not allowed"):
        drawn(notebook({MIME: {**SPEC, "data": {"url": "http://127.0.0.1:9/data.json"}}}), {})


def test_nbconvert_takes_it_by_name() -> None:
    """The line of the instructor's page, without nbgrader: the page holds a picture in place of the description."""
    config = Config()
    config.HTMLExporter.preprocessors = ["perfkit.report.html.drawn"]
    page, _ = HTMLExporter(config=config).from_notebook_node(notebook({MIME: SPEC, "text/plain": "chart: bars"}))
    assert 1 == len(re.findall(r"<img alt=[^>]+ src=.data:image/svg\+xml;base64,", page))
    assert "chart: bars" not in page

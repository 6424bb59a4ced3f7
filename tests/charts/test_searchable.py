"""Long tables: cells as in short ones, what they are sorted and searched by, the CSV, and the scripts."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from base64 import b64decode
from gzip import decompress
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import itables.utils
import numpy as np
import pandas as pd
import pytest

from perfkit.charts import tables
from perfkit.charts.tables import again, library, loader, script, searchable
from perfkit.errors import SchemaError

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>&amp;",
    '"><svg onload=alert(1)>',
    "=cmd|' /C calc'!A0",
]


class _Table(HTMLParser):
    """What a browser would make of a table: elements, and cells with their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[dict[str, str]] = []
        self.cells: list[tuple[str, dict[str, str]]] = []
        self._open = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.append({name: value or "" for name, value in attrs})
        if tag in ("td", "th"):
            self.cells.append(("", self.attributes[-1]))
            self._open = True

    def handle_endtag(self, tag: str) -> None:
        self._open = self._open and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._open:
            self.cells[-1] = (self.cells[-1][0] + data, self.cells[-1][1])


def csv(html: str) -> str:
    """What the link downloads."""
    return b64decode(re.findall(r'href="data:text/csv;charset=utf-8;base64,([^"]+)"', html)[0]).decode()


def test_cells_are_those_of_short_tables() -> None:
    """Header with unit and formatted values; a number keeps its exact value to be sorted by."""
    frame = pd.DataFrame({"total_ns": [2_500_001.0, np.nan], "count": [12_345, 1], "in_graph": [True, False]})
    short, long = _Table(tables.show(frame).html), _Table(searchable(frame).html)
    assert [text for text, _ in short.cells] == [text for text, _ in long.cells]
    keys = [attributes.get("data-order") for _, attributes in long.cells]
    assert [None, None, None, "2500001.0", "12345", None, "", "1", None] == keys


def test_large_integers_keep_their_order() -> None:
    """Times in ns since 1970 are integers above 2**53: no digit of them is lost on the way to the page or the CSV."""
    frame = pd.DataFrame({"start_ns": pd.array([1_750_075_200_000_000_001, None], dtype="Int64")})
    html = searchable(frame).html
    assert 'data-order="1750075200000000001"' in html
    assert "start_ns\n1750075200000000001\n" in csv(html)


def test_hostile_names_are_text() -> None:
    """No element and no attribute begins in a cell, a header, a caption or the name of the file."""
    frame = pd.DataFrame({"name": HOSTILE, "<b>_ns": range(4)})
    html = searchable(frame, caption=HOSTILE[0] + '"x').html
    parsed = _Table(html)
    assert not {"script", "img", "svg", "b"} & set(parsed.tags)
    assert not [a for a in parsed.attributes if {"onerror", "onload"} & set(a)]
    assert HOSTILE == [text for text, attributes in parsed.cells if "data-search" in attributes]
    (link,) = [a for a in parsed.attributes if "download" in a]
    assert "script_alert_1_script_x.csv" == link["download"]


def test_what_is_searched_is_escaped_twice() -> None:
    """DataTables takes it for HTML and reads the text of that: the attribute's value must still be harmless then."""
    frame = pd.DataFrame({"name": HOSTILE})
    values = [
        attributes["data-search"]
        for _, attributes in _Table(searchable(frame).html).cells
        if "data-search" in attributes
    ]
    assert HOSTILE == [unescape(value) for value in values]
    assert not [value for value in values if "<" in value]


def test_the_search_finds_what_a_cell_elides() -> None:
    """A long name is cut in its cell and whole in what is searched."""
    name = "gemm_" + "x" * 200 + "_needle_" + "y" * 100
    (_, (cell, attributes)) = _Table(searchable(pd.DataFrame({"name": [name]})).html).cells
    assert "needle" not in cell
    assert name == attributes["data-search"]


def test_csv_holds_all_digits_under_the_names_with_units() -> None:
    """What was shown as 0.333 s is read back exactly."""
    frame = pd.DataFrame({"name": ["a,b\n", None], "total_ns": [1e9 / 3, np.nan], "count": [1, 2]})
    read = pd.read_csv(io.StringIO(csv(searchable(frame, columns={"total_ns": "time", "name": "who"}).html)))
    assert ["total_ns", "name"] == list(read)
    assert frame["total_ns"][0] == read["total_ns"][0]
    assert "a,b\n" == read["name"][0]
    assert read.loc[1].isna().all()


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx"])
def test_csv_holds_no_formula(text: str) -> None:
    """A spreadsheet would run it; a negative number is left alone."""
    for names in (pd.Series([text]), pd.Series([text], dtype="category"), pd.Series([text], dtype="string")):
        html = searchable(pd.DataFrame({"name": names, "gain_frac": [-0.5]})).html
        assert {"name": "'" + text, "gain_frac": -0.5} == pd.read_csv(io.StringIO(csv(html)), lineterminator="\n").iloc[
            0
        ].to_dict()


def test_rows_beyond_the_limit_are_counted() -> None:
    """Neither the page nor the CSV holds them, and the line below says so."""
    html = searchable(pd.DataFrame({"count": range(7)}), rows=3).html
    assert 3 == html.count("<td")
    assert "4 more rows are neither in the table nor in the CSV" in html
    assert "count\n0\n1\n2\n" == csv(html)
    assert "more rows" not in searchable(pd.DataFrame({"count": range(7)})).html


def test_an_empty_table_has_its_header() -> None:
    """Nothing to show is no mistake."""
    made = searchable(
        pd.DataFrame({"name": pd.Series(dtype="category"), "total_ns": pd.Series(dtype="int64")}), caption="K"
    )
    assert ["name", "total (ns)"] == [text for text, _ in _Table(made.html).cells]
    assert "K: 0 rows of name, total (ns)" == repr(made)
    assert "name,total_ns\n" == csv(made.html)


def test_wrong_arguments() -> None:
    """A column that is not there, and no rows, are refused."""
    with pytest.raises(SchemaError, match="name"):
        searchable(pd.DataFrame({"count": [1]}), columns=["name"])
    with pytest.raises(ValueError, match="rows: 0 is not at least 1"):
        searchable(pd.DataFrame({"count": [1]}), rows=0)


def test_the_table_can_be_read_without_its_scripts() -> None:
    """The HTML holds all rows and no script, and is what a notebook shows by itself."""
    made = searchable(pd.DataFrame({"count": range(50)}))
    assert 50 == made.html.count("<td")
    assert "<script" not in made.html
    assert made.html == made._repr_html_()


def test_scripts_fit_into_a_page() -> None:
    """None of them ends the element around it, and none names another host to load from."""
    for text in (library(), script(), loader().removeprefix("<script>").removesuffix("</script>")):
        assert "</script" not in text.lower()
        assert "<!--" not in text
        assert not re.findall(r"(?:import|fetch|src=|href=)\s*\(?\s*[\"'`]https?:", text)
    assert again().count("script") == 2


def test_the_loader_holds_the_library() -> None:
    """What it unpacks is the library, in less than half of the size."""
    packed = re.findall(r'atob\("([^"]+)"\)', loader())
    assert library() == decompress(b64decode(packed[0])).decode()
    assert len(loader()) < len(library()) / 2


def test_the_library_is_a_plain_script(tmp_path: Path) -> None:
    """It parses as a script, which exports nothing: a page may hold it beside others."""
    assert not re.search(r"\bexport\s*\{", library())
    assert "window.perfkitTables=" in library()
    node = shutil.which("node")
    if node:
        file = tmp_path / "library.js"
        file.write_text(library(), "utf-8")
        subprocess.run([node, "--check", str(file)], check=True)


def test_a_library_that_exports_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle of another kind is named with its remedy, not put into a page."""
    for source in ("var a=1;export{a as Other};", "var a=1;"):
        monkeypatch.setattr(itables.utils, "read_package_file", lambda *_, source=source: source)
        with pytest.raises(RuntimeError, match=r"itables: its bundle exports no ITable\. Install"):
            tables.library.__wrapped__()


def test_rows_that_were_left_out_before_are_counted() -> None:
    """Two rows of a table of 5,000: the line under it says how many more there are."""
    table = tables.searchable(pd.DataFrame({"name": ["a", "b"]}), caption="Longest", total=5000)
    assert "Longest: 5,000 rows of name" == str(table)
    assert "4,998 more rows" in table.html

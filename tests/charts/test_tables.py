"""Tables for people, plain and searchable."""

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
from perfkit.charts.tables import again, card, library, loader, script, searchable, show
from perfkit.errors import SchemaError


class _Table(HTMLParser):
    """Collects the rows of cells and every tag of a table."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self._in_cell = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = self._in_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.rows[-1][-1] += data


@pytest.mark.parametrize(
    ("name", "values", "header", "cells"),
    [
        ("total_ns", [1_500_000, 20_000_000], "total (ms)", ["1.50", "20.0"]),
        ("share_frac", [0.251, 1.0], "share (%)", ["25.1", "100"]),
        ("bytes", [16_384, 2_000_000], "size (MB)", ["0.0164", "2.00"]),
        ("dram_bytes", [16_384, 2_000_000], "DRAM (MB)", ["0.0164", "2.00"]),
        ("bytes_per_s", [1.5e9, 3e9], "bandwidth (GB/s)", ["1.50", "3.00"]),
        ("peak_bytes_per_s", [1.5e9, 3e12], "peak (TB/s)", ["0.00150", "3.00"]),
        ("tensor_flops", [1e9, 2e12], "tensor (TFLOP)", ["0.00100", "2.00"]),
        ("clock_hz", [1.41e9], "clock (GHz)", ["1.41"]),
        ("power_w", [250.0], "power (W)", ["250"]),
        ("temperature_c", [61.5], "temperature (°C)", ["61.5"]),
        ("count", [1_453], "count", ["1,453"]),
        ("thread", [123_456, -1], "thread", ["123456", "-1"]),
        ("ratio", [1.8882], "ratio", ["1.89"]),
        ("in_graph", [True, False], "in graph", ["yes", "no"]),
        ("name", ["a", None], "name", ["a", "n/a"]),
    ],
)
def test_units_come_from_the_column_name(name: str, values: list[object], header: str, cells: list[str]) -> None:
    """A column is shown in one unit that its largest value fills, and its header says which."""
    rows = _Table(show(pd.DataFrame({name: values})).html).rows
    assert [[header], *([cell] for cell in cells)] == rows


def test_missing_numbers_are_not_zero() -> None:
    """NaN and NA are n/a, also in a column that holds nothing else."""
    frame = pd.DataFrame({"a_ns": [np.nan, 1e9], "b_ns": [np.nan, np.nan], "c": pd.array([None, 2], "Int64")})
    assert [["a (s)", "b (ns)", "c"], ["n/a", "n/a", "n/a"], ["1.00", "n/a", "2"]] == _Table(show(frame).html).rows


def test_text_from_a_profile_cannot_become_markup() -> None:
    """Names, column names and the caption are escaped wherever they stand."""
    hostile = "<script>alert('1')</script>"
    html = show(pd.DataFrame({hostile: [hostile, '" onmouseover="x']}), caption=hostile).html
    table = _Table(html)
    assert {"div", "style", "table", "caption", "thead", "tbody", "tr", "th", "td"} == table.tags
    assert [[hostile], [hostile], ['" onmouseover="x']] == table.rows


def test_long_names_are_cut_and_kept_in_the_tooltip() -> None:
    """A name of 10,000 characters takes 70 in its cell and 400 in its tooltip."""
    html = show(pd.DataFrame({"name": ["<" * 10_000]})).html
    assert (70, True) == (len(_Table(html).rows[1][0]), len(html) < 4_000)
    assert 'title="&lt;&lt;' in html


def test_sentences_are_wrapped_and_not_cut() -> None:
    """A reason of 180 characters stands in its cell in full; a kernel's name of that length is cut."""
    sentence = "at most everything but the computation disappears, " * 4
    rows = _Table(show(pd.DataFrame({"why": [sentence, "void kernel<" + "float, " * 3 + "x" * 150 + ">"]})).html).rows
    assert sentence.strip() == rows[1][0]
    assert 70 == len(rows[2][0])
    short = "Warps wait for data from global, local or texture memory."
    assert f'<div class="t">{short}</div>' in show(pd.DataFrame({"means": [short]})).html
    kernel = pd.DataFrame({"name": ["reduce_kernel<float, float, uint, 1, 4, bool, int>"]})
    assert '<div class="t">' not in show(kernel).html


def test_columns_are_chosen_ordered_and_renamed() -> None:
    """A list chooses and orders columns; a mapping gives them headers besides."""
    frame = pd.DataFrame({"a": [1], "b_ns": [2]})
    assert [["b (ns)"], ["2.00"]] == _Table(show(frame, columns=["b_ns"]).html).rows
    assert ["time (ns)", "first"] == _Table(show(frame, columns={"b_ns": "time", "a": "first"}).html).rows[0]


def test_rows_beyond_the_limit_are_counted() -> None:
    """Of 1,002 rows two are shown, and the table says what it leaves out."""
    html = show(pd.DataFrame({"a": range(1_002)}), rows=2).html
    assert 3 == len(_Table(html).rows)
    assert "1,000 more rows are not shown." in html


def test_moments_are_told_apart() -> None:
    """Steps of 12 ms that begin 7,800 s into the recording; lengths keep three digits."""
    rows = pd.DataFrame({"start_ns": [7_800_060_000_000, 7_800_072_400_000], "dur_ns": [12_400_000, 12_000_000]})
    assert [["7,800.06", "12.4"], ["7,800.07", "12.0"]] == _Table(show(rows).html).rows[1:]
    assert "7,800" == _Table(show(rows.head(1)).html).rows[1][0]
    close = pd.DataFrame({"start_ns": [10**9, 10**9 + 1, None]})
    assert [["1.000000"], ["1.000000"], ["n/a"]] == _Table(show(close).html).rows[1:]


def test_commands_are_not_cut() -> None:
    """What records the missing is one long word between backquotes, and wrapped; a kernel's name is cut as before."""
    query = "nvidia-smi --query-gpu=timestamp,index,power.draw,enforced.power.limit --format=csv"
    command = f"power is not recorded: `{query}`"
    name = "`anonymous namespace'::kernel<" + "float, " * 10 + "x" * 50 + ">"
    rows = _Table(show(pd.DataFrame({"why": [command, name]})).html).rows
    assert command == rows[1][0]
    assert "…" in rows[2][0]


def test_an_empty_frame_says_so() -> None:
    """No rows is an answer, not an empty box."""
    assert "<p>Table: no rows.</p>" == show(pd.DataFrame({"a_ns": pd.Series([], dtype="int64")})).html


def test_the_table_has_a_name_for_screen_readers() -> None:
    """The caption names the scrolling region, which the keyboard can reach."""
    assert 'role="region" aria-label="Copies" tabindex="0"' in show(pd.DataFrame({"a": [1]}), caption="Copies").html


def test_the_text_form_is_short() -> None:
    """Where no HTML is shown, a line says what the table holds."""
    assert "Copies: 2 rows of a" == repr(show(pd.DataFrame({"a": [1, 2]}), caption="Copies"))


def test_wrong_arguments_are_refused() -> None:
    """An unknown column and a limit of 0 rows are errors that say so, of both kinds of table."""
    for table in (show, searchable):
        with pytest.raises(SchemaError, match=r"columns \['b'\] are missing"):
            table(pd.DataFrame({"a": [1]}), columns=["b"])
        with pytest.raises(ValueError, match="rows: 0 is not at least 1"):
            table(pd.DataFrame({"a": [1]}), rows=0)


def test_a_card_shows_the_first_row_with_units() -> None:
    """A row of name and time becomes two lines; text is escaped, an empty frame has no lines."""
    frame = pd.DataFrame({"name": ["<b>", "c"], "total_ns": [2_500_000, 1]})
    html = card(frame, caption="Kernel").html
    assert "<td>name</td><td>&lt;b&gt;</td>" in html
    assert "<td>total (ms)</td><td>2.50</td>" in html
    assert "<p>Table: no rows.</p>" == card(frame.head(0)).html


HOSTILE = ["<script>alert(1)</script>", "<img src=x onerror=alert(1)>&amp;", '"><svg onload=alert(1)>']
HOSTILE += ["=cmd|' /C calc'!A0"]


class _Page(HTMLParser):
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
    short, long = _Page(tables.show(frame).html), _Page(searchable(frame).html)
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
    parsed = _Page(html)
    assert not {"script", "img", "svg", "b"} & set(parsed.tags)
    assert not [a for a in parsed.attributes if {"onerror", "onload"} & set(a)]
    assert HOSTILE == [text for text, attributes in parsed.cells if "data-search" in attributes]
    (link,) = [a for a in parsed.attributes if "download" in a]
    assert "script_alert_1_script_x.csv" == link["download"]


def test_what_is_searched_is_escaped_twice() -> None:
    """DataTables takes it for HTML and reads the text of that: the attribute's value must still be harmless then."""
    frame = pd.DataFrame({"name": HOSTILE})
    cells = _Page(searchable(frame).html).cells
    values = [attributes["data-search"] for _, attributes in cells if "data-search" in attributes]
    assert HOSTILE == [unescape(value) for value in values]
    assert not [value for value in values if "<" in value]


def test_the_search_finds_what_a_cell_elides() -> None:
    """A long name is cut in its cell and whole in what is searched."""
    name = "gemm_" + "x" * 200 + "_needle_" + "y" * 100
    (_, (cell, attributes)) = _Page(searchable(pd.DataFrame({"name": [name]})).html).cells
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
        (row,) = pd.read_csv(io.StringIO(csv(html)), lineterminator="\n").to_dict("records")
        assert {"name": "'" + text, "gain_frac": -0.5} == row


def test_rows_beyond_the_limit_of_a_searchable_table_are_counted() -> None:
    """Neither the page nor the CSV holds them, and the line below says so."""
    html = searchable(pd.DataFrame({"count": range(7)}), rows=3).html
    assert 3 == html.count("<td")
    assert "4 more rows are neither in the table nor in the CSV" in html
    assert "count\n0\n1\n2\n" == csv(html)
    assert "more rows" not in searchable(pd.DataFrame({"count": range(7)})).html


def test_an_empty_table_is_a_sentence() -> None:
    """Nothing to show is no mistake, and no box of headers."""
    empty = pd.DataFrame({"name": pd.Series(dtype="category"), "total_ns": pd.Series(dtype="int64")})
    made = searchable(empty, caption="K")
    assert "<p>K: no rows.</p>" == made.html
    assert "K: 0 rows of name, total (ns)" == repr(made)
    assert made.data is empty


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

"""Tables for people, plain and searchable."""

import io
import re
import shutil
import subprocess
from base64 import b64decode
from gzip import decompress
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from charts.checking import refuses

from perfkit.charts.tables import again, card, library, loader, script, searchable, show
from perfkit.errors import SchemaError
from perfkit.format import verbatim


class _Page(HTMLParser):
    """What a browser would make of a table: elements, their attributes, and the cells of each row."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[dict[str, str]] = []
        self.rows: list[list[str]] = []
        self.cells: list[tuple[str, dict[str, str]]] = []
        self._open = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.append({name: value or "" for name, value in attrs})
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.cells.append(("", self.attributes[-1]))
            self._open = True

    def handle_endtag(self, tag: str) -> None:
        self._open = self._open and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._open:
            self.rows[-1][-1] += data
            self.cells[-1] = (self.cells[-1][0] + data, self.cells[-1][1])


def shown(**columns: Any) -> list[list[str]]:
    return _Page(show(pd.DataFrame(columns)).html).rows


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
        ("size_bytes", [1_080, 20_000_000_000, 0], "size (GB)", ["1.08 kB", "20.0", "0"]),
        ("work_flops", [2e3, 5_760_281_775_040], "work (TFLOP)", ["2.00 kFLOP", "5.76"]),
        ("clock_hz", [1.41e9], "clock (GHz)", ["1.41"]),
        ("power_w", [250.0], "power (W)", ["250"]),
        ("temperature_c", [61.5], "temperature (°C)", ["61.5"]),
        ("count", [1_453], "count", ["1,453"]),
        ("thread", [123_456, -1], "thread", ["123456", "n/a"]),
        ("ratio", [1.8882], "ratio", ["1.89"]),
        ("in_graph", [True, False], "in graph", ["yes", "no"]),
        ("name", ["a_b", None], "name", ["a_b", "n/a"]),
        ("main_stall", ["long_scoreboard", None], "main stall", ["long scoreboard", "n/a"]),
        ("check", ["l2_hit_frac", "sm_throughput"], "check", ["L2 hit", "SM throughput"]),
        (
            "reason",
            ["load_sectors", "the_kernel (a name)"],
            "reason",
            ["load_sectors", "the_kernel (a name)"],
        ),
        ("total_ns", [np.nan, 1e9], "total (s)", ["n/a", "1.00"]),
        ("total_ns", [np.nan, np.nan], "total (ns)", ["n/a", "n/a"]),
        ("count", pd.array([None, 2], "Int64"), "count", ["n/a", "2"]),
        ("dur_ns", [12_400_000, 12_000_000], "duration (ms)", ["12.4", "12.0"]),
        # Moments have as many digits as tell them apart.
        ("start_ns", [7_800_060_000_000], "start (s)", ["7,800"]),
        ("start_ns", [7_800_060_000_000, 7_800_072_400_000], "start (s)", ["7,800.06", "7,800.07"]),
        ("start_ns", [10**9, 10**9 + 1, None], "start (s)", ["1.000000", "1.000000", "n/a"]),
    ],
)
def test_units_come_from_the_column_name(
    name: str, values: Any, header: str, cells: list[str]
) -> None:
    assert [[header], *([cell] for cell in cells)] == shown(**{name: values})


def test_the_numbers_of_a_metric_have_its_unit() -> None:
    metrics = {
        "metric": ["sm_clock_hz", "sm_active_frac", "bytes", "power_w"],
        "missing_frac": [0.0, 0.5, 0, 0],
    }
    rows = shown(
        **metrics, p50=[2.1e8, 0.25, 3.0, np.nan], max=[1.41e9, 1.0, 12.0, np.nan], ratio=[2.0] * 4
    )
    assert rows[0] == ["metric", "missing (%)", "median", "max", "ratio"]
    medians = ["0.210 GHz", "25.0 %", "3.00", "n/a"]
    most = ["1.41 GHz", "100 %", "12.0", "n/a"]
    assert [medians, most, ["2.00"] * 4] == [[row[at] for row in rows[1:]] for at in (2, 3, 4)]
    assert ["0", "50.0", "0", "0"] == [row[1] for row in rows[1:]]


def test_text_from_a_profile_cannot_become_markup() -> None:
    hostile = "<script>alert('1')</script>"
    table = _Page(
        show(pd.DataFrame({hostile: [hostile, '" onmouseover="x']}), caption=hostile).html
    )
    assert {"div", "style", "table", "caption", "thead", "tbody", "tr", "th", "td"} == table.tags
    assert [[hostile], [hostile], ['" onmouseover="x']] == table.rows


def test_long_names_are_cut_and_sentences_and_commands_are_wrapped() -> None:
    html = show(pd.DataFrame({"name": ["<" * 10_000]})).html
    short = [one["data-short"] for one in _Page(html).attributes if "data-short" in one]
    assert ([70], True) == ([len(name) for name in short], len(html) < 6_000)
    sentence = ("at most everything but the computation disappears, " * 4).strip()
    query = "nvidia-smi --query-gpu=timestamp,index,power.draw,enforced.power.limit --format=csv"
    whole = [sentence, f"power is not recorded: `{query}`"]
    cut = ["void kernel<" + "float, " * 3 + "x" * 150 + ">"]
    cut += ["`anonymous namespace'::kernel<" + "float, " * 10 + "x" * 50 + ">"]
    cells = [row[0] for row in shown(why=[*whole, *cut])[1:]]
    assert whole == [cells[0], cells[1].replace(query, f"`{query}`")]
    for text in (whole[1], f"`{query}`", f"<b> `{query}`"):  # of any length
        assert f"<code>{query}</code>" in show(pd.DataFrame({"why": [text]})).html
    html = show(pd.DataFrame({"why": cut})).html
    short = [one["data-short"] for one in _Page(html).attributes if "data-short" in one]
    assert [(70, 1)] * 2 == [(len(name), name.count("…")) for name in short]
    for short in (
        "Warps wait for data from global, local or texture memory.",
        "Does the GPU wait for other CUDA calls of the CPU?",
    ):
        assert f'<div class="t">{short}</div>' in show(pd.DataFrame({"means": [short]})).html
    names = [
        "reduce_kernel<float, float, uint, 1, 4, bool, int>",
        "void scale(float, float, uint, int, int, bool, int)",
    ]
    assert '<div class="t">' not in show(pd.DataFrame({"name": names})).html


def test_a_long_name_is_whole_on_hover_and_on_copy() -> None:
    name = "gemm_" + "x" * 100
    parsed = _Page(show(pd.DataFrame({"name": [name]})).html)
    assert [[name]] == parsed.rows[1:]
    assert [name] == [one["title"] for one in parsed.attributes if "title" in one]


def test_a_column_that_is_missing_in_every_row_is_hidden() -> None:
    frame = pd.DataFrame({"count": [1, 2], "api": [None, None], "stream": [-1, -1]})
    assert [["count"], ["1"], ["2"]] == _Page(show(frame).html).rows


def test_a_column_that_is_missing_in_one_row_is_shown() -> None:
    assert ["count", "range"] == shown(count=[1, 2], range=[None, "step"])[0]


def test_a_table_of_numbers_has_names_of_two_lines_at_most() -> None:
    assert 'class="perfkit-table two"' in show(pd.DataFrame({"name": ["a"], "count": [1]})).html


def test_a_table_of_sentences_shows_them_whole() -> None:
    assert 'class="perfkit-table"' in show(pd.DataFrame({"question": ["a"], "step": ["b"]})).html


def test_columns_and_rows_are_chosen() -> None:
    frame = pd.DataFrame({"a": [1], "b_ns": [2]})
    assert [["b (ns)"], ["2.00"]] == _Page(show(frame, columns=["b_ns"]).html).rows
    assert ["time (ns)", "first"] == _Page(
        show(frame, columns={"b_ns": "time", "a": "first"}).html
    ).rows[0]
    html = show(pd.DataFrame({"a": range(1_002)}), rows=2).html
    assert 3 == len(_Page(html).rows)
    assert "1,000 more rows are not shown." in html
    assert (
        "<p>Table: no rows.</p>" == show(pd.DataFrame({"a_ns": pd.Series([], dtype="int64")})).html
    )
    copies = show(pd.DataFrame({"a": [1, 2]}), caption="Copies")
    assert (
        'role="region" aria-label="Copies" tabindex="0"' in copies.html
    )  # for screen readers and the keyboard
    assert "Copies: 2 rows of a" == repr(copies)


def test_wrong_arguments_are_refused() -> None:
    for table in (show, searchable):
        refuses(
            SchemaError,
            r"columns \['b'\] are missing",
            table,
            pd.DataFrame({"a": [1]}),
            columns=["b"],
        )
        refuses(ValueError, "rows: 0 is not at least 1", table, pd.DataFrame({"a": [1]}), rows=0)


def test_a_card_shows_the_first_row_with_units() -> None:
    frame = pd.DataFrame({"name": ["<b>", "c"], "total_ns": [2_500_000, 1]})
    html = card(frame, caption="Kernel").html
    row = '<td data-head="what">name</td><td data-head="value">&lt;b&gt;</td>'
    assert row in html
    assert row.replace("name", "total (ms)").replace("&lt;b&gt;", "2.50") in html
    assert "<p>Table: no rows.</p>" == card(frame.head(0)).html


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>&amp;",
    '"><svg onload=alert(1)>',
]
HOSTILE += ["=cmd|' /C calc'!A0"]


def csv(html: str) -> str:
    """What the link downloads."""
    return b64decode(
        re.findall(r'href="data:text/csv;charset=utf-8;base64,([^"]+)"', html)[0]
    ).decode()


def test_cells_are_those_of_short_tables_and_sorted_by_exact_values() -> None:
    frame = pd.DataFrame(
        {"total_ns": [2_500_001.0, np.nan], "count": [12_345, 1], "in_graph": [True, False]}
    )
    short, long = _Page(show(frame).html), _Page(searchable(frame).html)
    assert short.rows == long.rows
    keys = [attributes.get("data-order") for _, attributes in long.cells]
    assert [None, None, None, "2500001.0", "12345", None, "", "1", None] == keys
    # Times in ns since 1970 are integers above 2**53: no digit of them is lost.
    html = searchable(
        pd.DataFrame({"start_ns": pd.array([1_750_075_200_000_000_001, None], dtype="Int64")})
    ).html
    assert 'data-order="1750075200000000001"' in html
    assert "start_ns\n1750075200000000001\n" in csv(html)


def test_hostile_names_are_text_and_elided_ones_are_found() -> None:
    frame = pd.DataFrame({"name": HOSTILE, "<b>_ns": range(4)})
    parsed = _Page(searchable(frame, caption=HOSTILE[0] + '"x').html)
    assert not {"script", "img", "svg", "b"} & parsed.tags
    assert not [a for a in parsed.attributes if {"onerror", "onload"} & set(a)]
    names = {
        text: attributes["data-search"]
        for text, attributes in parsed.cells
        if "data-search" in attributes
    }
    assert HOSTILE == list(names)
    (link,) = [a for a in parsed.attributes if "download" in a]
    assert "script_alert_1_script_x.csv" == link["download"]
    # DataTables takes what is searched for HTML and reads the text of that: it must still be harmless then.
    assert HOSTILE == [unescape(value) for value in names.values()]
    assert not [value for value in names.values() if "<" in value]
    name = "gemm_" + "x" * 200 + "_needle_" + "y" * 100
    (_, (_, attributes)) = _Page(searchable(pd.DataFrame({"name": [name]})).html).cells
    assert "needle" not in attributes.get("data-short", "")
    assert name == attributes["data-search"]


def test_csv_holds_all_digits_under_the_names_with_units() -> None:
    frame = pd.DataFrame({"name": ["a,b\n", None], "total_ns": [1e9 / 3, np.nan], "count": [1, 2]})
    read = pd.read_csv(
        io.StringIO(csv(searchable(frame, columns={"total_ns": "time", "name": "who"}).html))
    )
    assert ["total_ns", "name"] == list(read)
    assert (frame["total_ns"][0], "a,b\n") == (read["total_ns"][0], read["name"][0])
    assert read.loc[1].isna().all()


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx"])
def test_csv_holds_no_formula(text: str) -> None:
    """A spreadsheet would run it; a negative number is left alone."""
    for kind in ("object", "category", "string"):
        html = searchable(
            pd.DataFrame({"name": pd.Series([text], dtype=kind), "gain_frac": [-0.5]})
        ).html
        (row,) = pd.read_csv(io.StringIO(csv(html)), lineterminator="\n").to_dict("records")
        assert {"name": "'" + text, "gain_frac": -0.5} == row


@pytest.mark.parametrize("text", ["a\x1b[2Jb", "a\x9b2Jb", "a\u202eb", "a\x07b"])
def test_csv_holds_nothing_that_a_terminal_obeys(text: str) -> None:
    table = pd.DataFrame({"name": [text]})
    (row,) = pd.read_csv(io.StringIO(csv(searchable(table).html)))["name"]
    assert text.replace(text[1], "�") == row


def test_rows_that_were_left_out_are_counted() -> None:
    html = searchable(pd.DataFrame({"count": range(7)}), rows=3).html
    assert 3 == html.count("<td")
    assert "4 more rows are neither in the table nor in the CSV" in html
    assert "count\n0\n1\n2\n" == csv(html)
    before = searchable(pd.DataFrame({"name": ["a", "b"]}), caption="Longest", total=5000)
    assert "Longest: 5,000 rows of name" == str(before)
    assert "4,998 more rows" in before.html


def test_a_searchable_table_can_be_read_without_its_scripts() -> None:
    made = searchable(pd.DataFrame({"count": range(50)}))
    assert (50, made._repr_html_()) == (made.html.count("<td"), verbatim(made.html))
    assert "<script" not in made.html
    assert "more rows" not in made.html
    empty = pd.DataFrame(
        {"name": pd.Series(dtype="category"), "total_ns": pd.Series(dtype="int64")}
    )
    made = searchable(empty, caption="K")
    assert ("<p>K: no rows.</p>", "K: 0 rows of name, total (ns)") == (made.html, repr(made))
    assert made.data is empty


def test_scripts_fit_into_a_page(tmp_path: Path) -> None:
    for text in (library(), script(), loader().removeprefix("<script>").removesuffix("</script>")):
        assert "</script" not in text.lower()
        assert "<!--" not in text
        assert not re.findall(r"(?:import|fetch|src=|href=)\s*\(?\s*[\"'`]https?:", text)
    assert again().count("script") == 2
    packed = re.findall(r'atob\("([^"]+)"\)', loader())
    assert library() == decompress(b64decode(packed[0])).decode()
    assert len(loader()) < len(library()) / 2
    assert not re.search(r"\bexport\s*\{", library())
    assert "window.perfkitTables=" in library()
    if node := shutil.which("node"):
        file = tmp_path / "library.js"
        file.write_text(library(), "utf-8")
        subprocess.run([node, "--check", str(file)], check=True)

"""Frames as HTML for people."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from perfkit.charts.tables import card, show
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
        ("dram_bytes", [16_384, 2_000_000], "dram (MB)", ["0.0164", "2.00"]),
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
    assert (
        '<div class="t">'
        not in show(pd.DataFrame({"name": ["reduce_kernel<float, float, uint, 1, 4, bool, int>"]})).html
    )


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
    command = (
        "power is not recorded: `nvidia-smi --query-gpu=timestamp,index,power.draw,enforced.power.limit --format=csv`"
    )
    name = "`anonymous namespace'::kernel<" + "float, " * 10 + "x" * 50 + ">"
    rows = _Table(show(pd.DataFrame({"why": [command, name]})).html).rows
    assert command == rows[1][0]
    assert "…" in rows[2][0]


def test_an_empty_frame_says_so() -> None:
    """No rows is an answer, not an empty box."""
    assert "No rows." in show(pd.DataFrame({"a_ns": pd.Series([], dtype="int64")})).html


def test_the_table_has_a_name_for_screen_readers() -> None:
    """The caption names the scrolling region, which the keyboard can reach."""
    assert 'role="region" aria-label="Copies" tabindex="0"' in show(pd.DataFrame({"a": [1]}), caption="Copies").html


def test_the_text_form_is_short() -> None:
    """Where no HTML is shown, a line says what the table holds."""
    assert "Copies: 2 rows of a" == repr(show(pd.DataFrame({"a": [1, 2]}), caption="Copies"))


def test_wrong_arguments_are_refused() -> None:
    """An unknown column and a limit of 0 rows are errors that say so."""
    with pytest.raises(SchemaError, match=r"columns \['b'\] are missing"):
        show(pd.DataFrame({"a": [1]}), columns=["b"])
    with pytest.raises(ValueError, match="rows: 0 is not at least 1"):
        show(pd.DataFrame({"a": [1]}), rows=0)


def test_a_card_shows_the_first_row_with_units() -> None:
    """A row of name and time becomes two lines; text is escaped, an empty frame has no lines."""
    frame = pd.DataFrame({"name": ["<b>", "c"], "total_ns": [2_500_000, 1]})
    html = card(frame, caption="Kernel").html
    assert "<td>name</td><td>&lt;b&gt;</td>" in html
    assert "<td>total (ms)</td><td>2.50</td>" in html
    assert "No rows." in card(frame.head(0)).html

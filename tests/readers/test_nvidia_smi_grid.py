"""Rows of dmon whose words stand below each other are read by column: every value as if read word by word."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from readers import smi_files as smi

from perfkit.errors import ReadError
from perfkit.readers.nvidia_smi import lines
from perfkit.readers.nvidia_smi.grid import grid
from perfkit.readers.nvidia_smi.log import Column

EVERY = ("Date", "Time", "gpu", "pwr", "gtemp", "pclk", "fb", "rxpci", "txpci")
LAYOUTS = {
    "right": lambda words: " " + "".join(f"{word:>9}" for word in words),
    "left": lambda words: "".join(f"{word:<9} " for word in words),
    "both": lambda words: "".join(f"{word:>9}  {'' if i % 2 else ' '}" for i, word in enumerate(words)),
}


def cells(column: Column) -> list[str]:
    """The text of each row."""
    return [column.texts[code] for code in column.codes]


def rows(count: int) -> list[Sequence[str]]:
    """Made-up rows of four GPUs of 1 to 5 digits a word, some of them dashes, over more than one block of rows."""
    random = np.random.default_rng(0)
    numbers = [[str(n) for n in random.integers(0, most, count)] for most in (10, 900, 100, 90_000, 50_000, 50_000)]
    numbers[2] = ["-" if i % 7 == 0 else text for i, text in enumerate(numbers[2])]
    clock = [f"{i // 3600 % 24:02d}:{i // 60 % 60:02d}:{i % 60:02d}" for i in range(count)]
    return [("20260101", clock[i // 4], str(i % 4), *words[1:]) for i, words in enumerate(zip(*numbers, strict=True))]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_cell_is_the_word_that_stands_there(layout: str) -> None:
    """5,000 rows of words padded left, right or both: each cell is the word that was written."""
    words = [row[:8] for row in rows(5000)]
    text = "".join(LAYOUTS[layout](row) + "\n" for row in words).encode()
    found = grid(text, EVERY[:8], EVERY[:8])
    assert found is not None
    assert words == list(zip(*(cells(found[name]) for name in EVERY[:8]), strict=True))


def test_a_grid_reads_as_its_words_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of every kind of column is the same table with and without the grid."""
    path = smi.dmon(tmp_path / "gpu.log", *rows(3000), columns=EVERY[:-1], every=100)
    plain = smi.read(path)
    assert 3000 * 5 - len(range(0, 3000, 7)) == len(plain.table("SAMPLES"))
    monkeypatch.setattr(lines, "grid", lambda *_: None)
    by_words = smi.read(path)
    pd.testing.assert_frame_equal(plain.table("SAMPLES"), by_words.table("SAMPLES"))
    pd.testing.assert_frame_equal(plain.capture, by_words.capture)
    assert plain.notes == by_words.notes


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"   0   35\n   1  1400\n", "rows of two lengths"),
        (b"   0   35\n  1      \n", "a word is lost"),
        (b"   0   35\n 1 2     \n", "two words in one place"),
        (b"   0   35\n   1\n 140\n", "a line ends inside a row"),
        (b"   0   35\n   1 2 40\n", "a word between the places of two"),
        (b"0 35\n1 40\n", "rows shorter than a word of the machine"),
        (b"   0   123456789\n   1   123456780\n", "words longer than that"),
        (b"   0   35\n   1   40", "no end"),
        (b"", "no rows"),
    ],
)
def test_what_is_no_grid_is_left_to_the_reading_of_words(text: bytes, why: str) -> None:
    """Anything but one word per row and place is no grid."""
    assert grid(text, ("gpu", "pwr"), ("gpu", "pwr")) is None, why


def test_a_grid_of_another_number_of_columns_is_none() -> None:
    """Three columns under two names are left to the reading of words, which says in which line."""
    assert grid(b"   0   35   40\n", ("gpu", "pwr"), ("gpu",)) is None


def test_only_the_columns_that_are_asked_for_are_returned() -> None:
    """Of two columns one is wanted; the other must be whole nevertheless."""
    found = grid(b"   0   35\n   1   40\n", ("gpu", "pwr"), ("pwr",))
    assert found is not None
    assert {"pwr": ["35", "40"]} == {name: cells(column) for name, column in found.items()}


def test_a_line_that_is_no_row_is_found_however_far_it_is_indented(tmp_path: Path) -> None:
    """A message after 40 spaces and a blank line of 10,000 are no rows; the values around them stay."""
    path = smi.dmon(tmp_path / "gpu.log", *smi.ticks())
    plain = smi.read(path).table("SAMPLES")
    text = path.read_text().splitlines()
    path.write_text("\n".join([*text[:4], " " * 40 + "Failed to get utilization", " " * 10_000, *text[4:], ""]))
    profile = smi.read(path)
    pd.testing.assert_frame_equal(plain, profile.table("SAMPLES"))
    assert "nvidia-smi said 'Failed to get utilization'" in profile.notes


@pytest.mark.parametrize("wrong", ["12:61:00", "24:00:00", "12-30-00", "1a:00:00"])
def test_a_time_of_day_that_is_none_is_an_error_in_a_grid(wrong: str, tmp_path: Path) -> None:
    """Eight characters that are no time are named with their line."""
    stamps = [("20260101", "12:00:00"), ("20260101", wrong)]
    path = smi.dmon(
        tmp_path / "gpu.log", *[(*s, *smi.ticks(1)[0]) for s in stamps], columns=("Date", "Time", *smi.COLUMNS)
    )
    with pytest.raises(ReadError, match=f"line 4: Time is '{wrong}'"):
        smi.read(path)


def test_a_leap_second_is_a_time(tmp_path: Path) -> None:
    """23:59:60 is a second after 23:59:59."""
    rows = [("20161231", clock, *smi.ticks(1)[0]) for clock in ("23:59:59", "23:59:60")]
    path = smi.dmon(tmp_path / "gpu.log", *rows, columns=("Date", "Time", *smi.COLUMNS))
    assert 10**9 == smi.read(path).capture["dur_ns"].item()

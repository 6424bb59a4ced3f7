"""Outputs of nccl-tests that are not whole, not right or failed: notes and errors, never a wrong number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from readers import nccl_files as files

from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers import nccl, unrecognised

NS = [12340.0, 12300.0, 613300.0, 614000.0, 31533000.0, 31441000.0]
ERROR = ("time", "algbw", "busbw", "error")
NO_ROOT = ("size", "count", "type", "redop")


def read(path: Path, lines: list[str]) -> Profile:
    """The profile of a log with these lines."""
    return nccl.read(files.written(path / "all_reduce.txt", lines))


def collectives(path: Path, lines: list[str]) -> pd.DataFrame:
    """Its collectives."""
    return read(path, lines).table("COLLECTIVES")


def notes(path: Path, lines: list[str]) -> str:
    """Its notes as one text."""
    return "\n".join(read(path, lines).notes)


def test_wrong_results_are_told(tmp_path: Path) -> None:
    """A row with wrong elements in either half is corrupt."""
    bad = files.start(8, 2) + files.half(("1.00", "0.00", "0.00", 0)) + files.half(("1.00", "0.00", "0.00", 12))
    lines = files.table(inner=[bad, *files.rows()[1:]])
    lines[lines.index(files.FOOTER[0])] = "# Out of bounds values : 12 FAILED"
    assert "all_reduce_perf: data corrupt in 1 rows (12 values out of bounds)" in notes(tmp_path, lines)
    assert "corrupt" not in notes(tmp_path, files.table())


def test_errors_of_old_versions_are_wrong_with_an_asterisk(tmp_path: Path) -> None:
    """Up to 2.12 an error is printed, 2e-07; one beyond the threshold ends in an asterisk."""
    above = files.header(NO_ROOT, ERROR)
    fine, bad = (
        files.start(8, 2, root=None) + files.half(("1.00", "0.00", "0.00", e)) * 2 for e in ("2e-07", "3e+01*")
    )
    assert "corrupt" not in notes(tmp_path, files.old_table([fine], above=above))
    assert "data corrupt in 1 rows" in notes(tmp_path, files.old_table([fine, bad], above=above))


def test_results_that_were_not_checked_are_told(tmp_path: Path) -> None:
    """N/A everywhere is validation off; in place alone it is not."""
    off = [row.replace("      0", "    N/A") for row in files.rows()]
    assert "not checked (validation off)" in notes(tmp_path, files.table(inner=off))
    half = [
        files.start(8, 8, redop="none")
        + files.half(("1.00", "0.00", "0.00", 0))
        + files.half(("1.00", "0", "0", "N/A"))
    ]
    assert "not checked" not in notes(tmp_path, files.table("alltoall_perf", inner=half))


def test_a_shortened_sweep_is_told(tmp_path: Path) -> None:
    """The largest size asked for may not have been run; tables that say the same are named together."""
    lines = ["# Reducing maxBytes to 26549638485 due to memory limitation"]
    both = [line for name in ("all_reduce_perf", "all_gather_perf") for line in files.table(name)]
    at = [i for i, line in enumerate(both) if line.startswith("# Using")]
    for i in reversed(at):
        both[i:i] = lines
    assert "all_reduce_perf, all_gather_perf: sizes end below 26549638485 bytes, for lack of memory" in notes(
        tmp_path, both
    )


def test_without_devices_the_ranks_are_unknown(tmp_path: Path) -> None:
    """A table that was cut out of its log has times and no ranks."""
    lines = [*files.header(), *files.rows(), *files.FOOTER]
    assert collectives(tmp_path, lines)["ranks"].isna().all()
    assert "the number of ranks is unknown" in notes(tmp_path, lines)


def failed(lines: list[str]) -> list[str]:
    """A test that ends with what NCCL could not do."""
    said = "node3: Test NCCL failure common.cu:1005 'remote process exited or there was a network error / '"
    return [*lines[: lines.index(files.FOOTER[0])], said, " .. node3 pid 1234: Test failure common.cu:891"]


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    """A table of a run that failed has no rows: nothing is made up, and the note quotes what went wrong."""
    lines = failed(files.table(inner=[files.said("Bootstrap : Using eth0")]))
    profile = read(tmp_path, lines)
    assert "COLLECTIVES" not in profile.loaders
    assert ["COLLECTIVES", "LINKS"] == [m.table for m in profile.missing]
    expected = "Test NCCL failure common.cu:1005 'remote process exited or there was a network error / '"
    assert f"the run failed: {expected}" in profile.notes
    assert "all_reduce_perf: no rows: the run ended before its first result" in profile.notes


def test_a_run_that_fails_later_keeps_its_rows(tmp_path: Path) -> None:
    """What was measured before the failure stays, with the note that the table has no summary."""
    lines = failed(files.table())
    assert NS == collectives(tmp_path, lines)["dur_ns"].tolist()
    assert "ends after 3 rows without a summary" in notes(tmp_path, lines)
    assert "the run failed: Test NCCL failure" in notes(tmp_path, lines)


def test_headers_alone_are_an_error(tmp_path: Path) -> None:
    """A table without a row and without a reason is nothing to load."""
    path = files.written(tmp_path / "a.txt", files.table()[:17])
    with pytest.raises(ReadError, match=r"a\.txt: a header of nccl-tests and no rows: the run ended before its first"):
        nccl.read(path)


def test_a_table_with_another_delimiter_is_no_table(tmp_path: Path) -> None:
    """Commas for blanks are not what the test printed: the file is refused, not half read."""
    path = files.written(tmp_path / "a.csv", [",".join(line.split()) for line in [*files.header(), *files.rows()]])
    assert not nccl.sniff(path)
    assert "a.csv: no reader recognises this file" in str(unrecognised(path))
    path = files.written(tmp_path / "b.csv", [*files.table()[:3], *(",".join(line.split()) for line in files.rows())])
    with pytest.raises(ReadError, match=r"b\.csv: neither results of nccl-tests nor rings, connections or calls"):
        nccl.read(path)


def test_a_cut_last_line_is_left_out(tmp_path: Path) -> None:
    """A number that is cut is still a number: a line without its end is not read."""
    path = files.written(tmp_path / "a.txt", files.table())
    text = path.read_text()
    path.write_text(text[: text.index("478.11") + 4])
    profile = nccl.read(path)
    assert NS[:4] == profile.table("COLLECTIVES")["dur_ns"].tolist()
    assert "the last line is cut and left out" in profile.notes


def test_rows_that_are_not_whole_are_left_out(tmp_path: Path) -> None:
    """A row with a cell too few or a word for a number is left out and counted."""
    first, second, third = files.rows()
    lines = files.table(inner=[first, second.replace("218.85", ""), third.replace("31533", "315x3")])
    assert NS[:2] == collectives(tmp_path, lines)["dur_ns"].tolist()
    assert "2 rows that are not whole are left out (line 19 first)" in notes(tmp_path, lines)


@pytest.mark.parametrize("garbage", [b"\0\0\0", b"\xff\xfe\x81", b"\x01\x02"], ids=["zeros", "not utf-8", "control"])
def test_binary_data_among_rows_is_an_error(garbage: bytes, tmp_path: Path) -> None:
    """Rows that binary data cuts into cannot be told from whole ones."""
    path = files.written(tmp_path / "a.txt", files.table())
    path.write_bytes(path.read_bytes().replace(b"613.3", b"61" + garbage + b"3"))
    with pytest.raises(ReadError, match=r"a.txt: binary data .*line 19"):
        nccl.read(path)


@pytest.mark.parametrize(
    "cells",
    [("9" * 400, 2), (8, "9" * 400), (8, 2)],
    ids=["size", "count", "root"],
)
def test_numbers_beyond_all_bounds_are_no_rows(cells: tuple[object, object], tmp_path: Path) -> None:
    """Numbers that no test prints do not stop the reading of the others."""
    size, count = cells
    root = "-1" if isinstance(count, str) or isinstance(size, str) else "9" * 400
    bad = f"{size} {count} float sum {root}" + files.half(files.ROWS[0][2]) * 2
    assert NS == collectives(tmp_path, files.table(inner=[bad, *files.rows()]))["dur_ns"].tolist()


@pytest.mark.parametrize("time", ["1e999999999", "-5.00", "0x12", "1_0", "inf*"])
def test_times_that_are_none_are_no_rows(time: str, tmp_path: Path) -> None:
    """Neither negative times nor words nor endless powers are read."""
    bad = files.start(8, 2) + files.half((time, "0.00", "0.00", 0)) * 2
    frame = collectives(tmp_path, files.table(inner=[bad, *files.rows()]))
    assert NS == frame["dur_ns"].tolist()


def test_a_time_that_is_not_known_is_missing(tmp_path: Path) -> None:
    """N/A and nan are no time."""
    bad = files.start(8, 2) + files.half(("N/A", "0.00", "0.00", 0)) + files.half(("-nan", "0.00", "0.00", 0))
    assert np.isnan(collectives(tmp_path, files.table(inner=[bad]))["dur_ns"]).all()


@pytest.mark.parametrize("cells", [3, 4, 5, 6, 7, 8])
def test_a_row_that_ends_early_is_counted(cells: int, tmp_path: Path) -> None:
    """A row with its size, count and type and little more is no row; the others are read."""
    short = "    ".join(files.rows()[0].split()[:cells])
    lines = files.table(inner=[short, *files.rows()[1:]])
    assert len(files.rows()[1:]) * 2 == len(collectives(tmp_path, lines))
    assert "1 rows that are not whole are left out" in notes(tmp_path, lines)


def test_a_table_may_lack_the_column_of_the_checks(tmp_path: Path) -> None:
    """Time and both bandwidths are a measurement; what was not checked is not wrong."""
    above = files.header(NO_ROOT, ("time", "algbw", "busbw"))
    row = files.start(8, 2, root=None) + "  1.00  0.00  0.00" * 2
    lines = files.old_table([row], above=above)
    assert [1000.0, 1000.0] == collectives(tmp_path, lines)["dur_ns"].tolist()
    assert "not checked (validation off)" in notes(tmp_path, lines)


def test_a_header_with_a_measurement_of_one_column_announces_no_table(tmp_path: Path) -> None:
    """Where two times stand next to each other, no row could be read."""
    lines = [line.replace("algbw", "time", 1) if "algbw" in line else line for line in files.table()]
    with pytest.raises(ReadError, match=r"all_reduce\.txt: "):
        read(tmp_path, lines)


def test_bytes_that_are_no_text_are_noted_with_their_line(tmp_path: Path) -> None:
    """An unreadable stretch outside the rows: nothing can be read of it, and a note says where it is."""
    path = files.written(tmp_path / "all_reduce.txt", ["hello", *files.table()])
    path.write_bytes(path.read_bytes().replace(b"hello", b"he\xff\x01o"))
    assert "lines hold bytes that are no text (1, first in line 1)" in nccl.read(path).notes


@pytest.mark.parametrize(
    ("cell", "wrong"), [(cell, wrong) for cell in (0, 1) for wrong in ("9223372036854775808", "nan", "?")] + [(2, "7")]
)
def test_a_row_whose_beginning_is_damaged_is_counted(cell: int, wrong: str, tmp_path: Path) -> None:
    """What has as many numbers as a row is one, though its size, count or type is none."""
    cells = files.rows()[0].split()
    cells[cell] = wrong
    lines = files.table(inner=["  ".join(cells), *files.rows()[1:]])
    assert len(files.rows()[1:]) * 2 == len(collectives(tmp_path, lines)), "the others are read"
    assert "1 rows that are not whole are left out" in notes(tmp_path, lines)


def test_rows_without_a_header_are_counted(tmp_path: Path) -> None:
    """The header of the second of two tables is damaged: a note says how many rows of it nobody can read."""
    second = files.table("all_gather_perf")
    at = next(i for i, line in enumerate(second) if "algbw" in line)
    lines = [*files.table(), *second[:at], second[at].replace("algbw", "alg"), *second[at + 1 :]]
    assert len(files.rows()) * 2 == len(collectives(tmp_path, lines))
    count, line = len(files.rows()), 1 + lines.index(files.rows()[0], len(files.table()))
    assert f"all_gather_perf: {count} rows without a header are left out (line {line} first)" in notes(tmp_path, lines)

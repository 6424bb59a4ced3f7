"""The tables of nccl-tests and rccl-tests and their reports: every layout, and what is damaged, wrong or failed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from readers import nccl_files as files

from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers import nccl, recognise, unrecognised
from perfkit.readers.nccl.benchmark import implied_ranks
from perfkit.readers.nccl.log import Row, Timing

NS = [12340.0, 12300.0, 613300.0, 614000.0, 31533000.0, 31441000.0]
ERROR = ("time", "algbw", "busbw", "error")
NO_ROOT = ("size", "count", "type", "redop")


def read(path: Path, lines: list[str], prefix: str = "") -> Profile:
    """The profile of a log with these lines."""
    return nccl.read(files.written(path / "all_reduce.txt", lines, prefix))


def collectives(path: Path, lines: list[str], prefix: str = "") -> pd.DataFrame:
    """Its collectives."""
    return read(path, lines, prefix).table("COLLECTIVES")


def notes(path: Path, lines: list[str], prefix: str = "") -> str:
    """Its notes as one text."""
    return "\n".join(read(path, lines, prefix).notes)


def with_halves(*rest: object) -> list[str]:
    """The usual rows with these cells after time, algbw and busbw of each half."""
    made = []
    for size, count, out, into in files.ROWS:
        made.append(files.start(size, count) + files.half((*out[:3], *rest)) + files.half((*into[:3], *rest)))
    return made


def with_old_halves(start: str) -> list[str]:
    """The usual rows as old versions print them, with an error instead of a count."""
    return [
        start.format(size=size, count=count) + files.half((*out[:3], "2e-07")) + files.half((*into[:3], "2e-07"))
        for size, count, out, into in files.ROWS
    ]


def test_durations_are_as_printed(tmp_path: Path) -> None:
    """12.34 us are 12,340 ns and 613.3 us 613,300 ns, not one bit beside; sizes are bytes, ranks from the list."""
    frame = collectives(tmp_path, files.table())
    assert NS == frame["dur_ns"].tolist()
    assert [8, 8, 134217728, 134217728, 8589934592, 8589934592] == frame["bytes"].tolist()
    assert ["out_of_place", "in_place"] * 3 == frame["placement"].tolist()
    assert [("all_reduce", "float", 8, -1, "benchmark")] * 6 == list(
        frame[["operation", "dtype", "ranks", "gpu", "source"]].itertuples(index=False, name=None)
    )
    assert frame[["start_ns", "algorithm", "protocol", "group"]].isna().all(axis=None)


def test_times_in_powers_of_ten_are_read(tmp_path: Path) -> None:
    """A time above 10 s is printed as 1.2e+08 us: 120 s."""
    row = files.start(8589934592, 2147483648) + files.half(("1.2e+08", "0.07", "0.13", 0)) * 2
    assert [1.2e11] * 2 == collectives(tmp_path, files.table(inner=[row]))["dur_ns"].tolist()


@pytest.mark.parametrize(
    "lines",
    [
        files.old_table(with_old_halves("{size:>12}  {count:>12}   float     sum"), above=files.header(NO_ROOT, ERROR)),
        files.old_table(files.rows()),
        files.table(),
        files.old_table(
            with_halves(0, "1.00", "2.00", "1.9", "3.1"),
            above=files.header(measured=(*files.MEASURED, *files.PER_ITERATION)),
        ),
        files.old_table(files.rows(after="  2025-01-31 12:00:00"), above=files.header(after="          timestamp")),
        files.old_table(files.rows(after="   ")),
    ],
    ids=["2.10", "2.13", "2.17", "-I 1", "-S 1", "trailing blanks"],
)
def test_every_layout_says_the_same(lines: list[str], tmp_path: Path) -> None:
    """Whatever stands before and after the measurements, sizes and times are the same."""
    frame = collectives(tmp_path, lines)
    assert NS == frame["dur_ns"].tolist()
    assert {"all_reduce"} == set(frame["operation"])


def test_rccl_says_algorithm_and_protocol(tmp_path: Path) -> None:
    """rccl-tests -A 1 ends rows with algorithm, protocol and channels, N/A where it does not know them."""
    known, unknown = files.rows(after="    RING    SIMPLE          32")[:1], files.rows(after="  N/A  N/A  N/A")[1:2]
    frame = collectives(tmp_path, files.table(inner=[*known, *unknown]))
    assert ["ring", "ring"] == frame["algorithm"].dropna().tolist()
    assert ["Simple", "Simple"] == frame["protocol"].dropna().tolist()
    assert NS[:4] == frame["dur_ns"].tolist()


@pytest.mark.parametrize(
    "prefix", ["[1,0]<stdout>:", " 0: ", "0: ", "[0] ", "node-7: ", "Thu Jan 30 10:11:12 2025[1,0]<stdout>:", "> "]
)
def test_launchers_may_stand_before_lines(prefix: str, tmp_path: Path) -> None:
    """mpirun, srun, torchrun, pdsh and quoting put text before each line; the table is the same."""
    frame = collectives(tmp_path, files.table(), prefix)
    assert NS == frame["dur_ns"].tolist()
    assert {8} == set(frame["ranks"])


def test_a_tag_may_stand_before_each_piece_of_a_row(tmp_path: Path) -> None:
    """mpirun --tag-output repeats its tag wherever the test flushed its output: after the root and after a half."""
    tag = "[1,0]<stdout>:"
    torn = [files.start(n, c) + tag + files.half(out) + tag + files.half(into) for n, c, out, into in files.ROWS]
    lines = files.table(inner=torn)
    assert NS == collectives(tmp_path, lines, tag)["dur_ns"].tolist()
    assert "left out" not in notes(tmp_path, lines, tag)


def test_damaged_rows_are_not_an_early_end(tmp_path: Path) -> None:
    """A log whose rows are all damaged is refused for that, not for a run that ended too early."""
    path = files.written(tmp_path / "a.txt", files.table(inner=[row.rsplit(None, 2)[0] for row in files.rows()]))
    with pytest.raises(ReadError, match=r"a\.txt: 3 rows of nccl-tests and none that is whole \(line 18 first\)") as e:
        nccl.read(path)
    assert "ended before" not in str(e.value)


def test_the_time_before_a_line_may_change(tmp_path: Path) -> None:
    """Digits in a launcher's prefix may be others in every line."""
    lines = [f"10:11:{second:02d} [1,0]: {line}" for second, line in enumerate(files.table())]
    assert NS == collectives(tmp_path, lines)["dur_ns"].tolist()


@pytest.mark.parametrize("host", ["node0", "ip-10-0-0-1", "x3006c0s1b1n0"])
@pytest.mark.parametrize("prefix", ["", "[1,0]<stdout>:"])
def test_rows_that_nccl_cuts_in_pieces_are_joined(host: str, prefix: str, tmp_path: Path) -> None:
    """NCCL connects when the first collective runs and writes into the row that the test has begun to print."""
    (size, count, out, into), *_ = files.ROWS
    whole = files.said("Channel 00/0 : 0[0] -> 1[1] via P2P/IPC", host=host)
    pieces = [
        whole,
        files.start(size, count) + whole,
        whole,
        files.half(out) + whole,
        files.half(into),
        *files.rows()[1:2],
        whole,
        *files.rows()[2:],
    ]
    profile = read(tmp_path, files.table(inner=pieces), prefix)
    assert NS == profile.table("COLLECTIVES")["dur_ns"].tolist()
    assert ["P2P/IPC"] == profile.table("LINKS")["transport"].tolist()


def test_numbers_run_into_the_same_host_in_every_row(tmp_path: Path) -> None:
    """Each row of a log is torn behind its root and its first half, so ``-1node0`` and ``0node0`` are there often."""
    whole = files.said("Channel 00/0 : 0[0] -> 1[1] via P2P/IPC", host="node0")
    torn = []
    for size, count, out, into in files.ROWS:
        torn += [files.start(size, count) + whole, whole, files.half(out) + whole, whole, files.half(into)]
    profile = read(tmp_path, files.table(inner=[whole, *torn]))
    assert NS == profile.table("COLLECTIVES")["dur_ns"].tolist()
    assert ["P2P/IPC"] == profile.table("LINKS")["transport"].tolist()


def test_other_lines_between_rows_are_skipped(tmp_path: Path) -> None:
    """Warnings of the program and of MPI do not end a table."""
    first, *others = files.rows()
    noise = ["", "UCX  WARN  something", "12 of 13 things", "   --------", "[1234567.89] error"]
    assert NS == collectives(tmp_path, files.table(inner=[first, *noise, *others]))["dur_ns"].tolist()


def test_a_row_may_have_one_half(tmp_path: Path) -> None:
    """A replay is in place only, under its own columns; rccl-tests can leave out the half in place."""
    size, count, out, into = files.ROWS[1]
    blank = " " * len(files.half(out))
    inner = [files.start(size, count) + blank + files.half(into), files.start(size, count) + files.half(out)]
    frame = collectives(tmp_path, files.table(inner=inner))
    assert [("in_place", 614000.0), ("out_of_place", 613300.0)] == list(
        zip(frame["placement"], frame["dur_ns"], strict=True)
    )


def test_times_of_the_cpu_are_no_durations(tmp_path: Path) -> None:
    """With -C 1 the test prints how long the calls took: rows without a duration, and a note."""
    lines = files.old_table(files.rows(), above=files.header(measured=("cputime", *files.MEASURED[1:])))
    frame = collectives(tmp_path, lines)
    assert 6 == len(frame)
    assert frame["dur_ns"].isna().all()
    assert "times of the CPU (-C 1) are no durations" in notes(tmp_path, lines)


def test_a_file_can_hold_several_tables(tmp_path: Path) -> None:
    """Each table has its own collective and ranks."""
    lines = files.table() + files.table("reduce_scatter_perf", ranks=16) + files.table("sendrecv_perf", ranks=2)
    frame = collectives(tmp_path, lines)
    assert {("all_reduce", 8): 6, ("reduce_scatter", 16): 6, ("send_recv", 2): 6} == frame.groupby(
        ["operation", "ranks"], observed=True
    ).size().to_dict()


def test_ranks_are_those_of_one_group(tmp_path: Path) -> None:
    """With NCCL_TESTS_SPLIT several groups run at once: a collective has the ranks of its own."""
    split = [*files.devices(4, group="Group  0 "), *files.devices(4, group="Group  1 ")]
    row = files.start(8, 2) + files.half(("613.3", "218.85", "328.27", 0)) * 2  # busbw = 1.5 algbw, of four ranks
    lines = ["# Using devices", *split, *files.header(), row, *files.FOOTER]
    frame = collectives(tmp_path, ["# nThread 1 nGpus 1 ", *lines])
    assert {4} == set(frame["ranks"])


def test_devices_are_those_of_the_first_node(tmp_path: Path) -> None:
    """The GPUs of rank 0's node by their number, without the names of hosts, which no table and no note shows."""
    profile = read(tmp_path, files.table(ranks=8, per_node=4))
    devices = profile.table("DEVICES")
    assert [0, 1, 2, 3] == devices["gpu"].tolist()
    assert {files.H100} == set(devices["name"])
    assert "NCCL 2.29.2; 8 GPUs on 2 nodes" == profile.notes[0]
    shown = "".join(frame.to_csv() for frame in map(profile.table, profile.loaders)) + "".join(profile.notes)
    assert "node0" not in shown
    assert "nccl-tests" == profile.capture["tool"].item()
    assert "2.17.8" == profile.capture["tool_version"].item()


COLUMNS = {"redop": "sum", "root": -1}


@pytest.mark.parametrize(
    ("expected", "size", "columns", "busbw", "in_place"),
    [
        ("all_reduce", 4096, {}, "17.50", 0),
        ("all_reduce", 4096, {}, "17.50", "N/A"),
        ("send_recv", 4096, {}, "10.00", "N/A"),
        ("reduce_scatter", 32768, {}, "8.75", 0),
        ("all_gather", 32768, {"redop": "none"}, "8.75", 0),
        ("all_to_all", 32768, {"redop": "none"}, "8.75", "N/A"),
        ("broadcast", 4096, {"redop": "none", "root": 0}, "10.00", 0),
        ("reduce", 4096, {"root": 3}, "10.00", 0),
    ],
)
def test_the_rows_tell_the_collective(
    expected: str, size: int, columns: dict[str, object], busbw: str, in_place: object, tmp_path: Path
) -> None:
    """Without a name the collective follows from reduction, root, size over elements (1024 floats) and checks.

    Send-receive and all-to-all do not check in place; an all-reduce of 8 ranks has 1.75 times the bandwidth on the bus.
    """
    checked = "N/A" if (expected, in_place) == ("all_reduce", "N/A") else 0
    told: dict[str, object] = {**COLUMNS, **columns}
    halves = (files.half(("500.0", "10.00", busbw, wrong)) for wrong in (checked, in_place))
    row = files.start(size, 1024, redop=str(told["redop"]), root=int(str(told["root"]))) + "".join(halves)
    path = files.written(tmp_path / "run.txt", files.old_table([row]))
    assert {expected} == set(nccl.read(path).table("COLLECTIVES")["operation"])


def gathering(row: str = "") -> list[str]:
    """A table that may be of all-gather or of all-to-all: results not checked."""
    measured = files.half(("500.0", "10.00", "8.75", "N/A")) * 2
    return files.old_table([row or files.start(32768, 1024, redop="none") + measured])


@pytest.mark.parametrize(
    ("name", "above", "expected"),
    [
        ("nccl_alltoall.log", [], {"all_to_all"}),
        ("run.txt", ["+ mpirun -np 8 ./build/all_gather_perf -b 8 -e 8G"], {"all_gather"}),
        ("alltoall.txt", ["+ ./build/all_gather_perf"], {"all_gather"}),
        ("all_reduce.txt", [], set()),
        ("run.txt", [], set()),
    ],
)
def test_names_decide_between_what_rows_allow(name: str, above: list[str], expected: set[str], tmp_path: Path) -> None:
    """The command, else the file's name, chooses among the collectives that the rows can be of, and no other."""
    profile = nccl.read(files.written(tmp_path / name, [*above, *gathering()]))
    assert expected == set(profile.table("COLLECTIVES")["operation"].dropna())
    assert bool(expected) != any("does not say which collective it is" in note for note in profile.notes)


@pytest.mark.parametrize("row", [files.start(0, 0), files.start(4096, 1024, "int7")], ids=["no bytes", "unknown type"])
def test_nothing_is_told_by_rows_without_sizes(row: str, tmp_path: Path) -> None:
    """Messages of 0 bytes or of an unknown element type do not tell a collective."""
    path = files.written(tmp_path / "run.txt", gathering(row + files.half(("5.00", "0.00", "0.00", 0)) * 2))
    assert nccl.read(path).table("COLLECTIVES")["operation"].isna().all()


def test_an_unknown_program_is_no_other_collective(tmp_path: Path) -> None:
    """A program that is none of the collectives of the table leaves the operation open, whatever its rows look like."""
    assert collectives(tmp_path, files.table("hypercube_perf"))["operation"].isna().all()


def test_files_are_claimed_by_what_they_say(tmp_path: Path) -> None:
    """The name of a file does not matter; a text about nccl-tests is none of its tables."""
    assert "nccl" == recognise(files.written(tmp_path / "x", ["text"] * 100 + files.table()))
    assert "nccl" == recognise(files.written(tmp_path / "y", [*files.header(), *files.rows()], "[1,0]<stdout>:"))
    about = ["NCCL INFO lines look so:", "algbw and busbw are explained in PERFORMANCE.md", "# size count type time"]
    assert not nccl.sniff(files.written(tmp_path / "z", about))


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


def test_without_devices_the_bandwidths_give_the_ranks(tmp_path: Path) -> None:
    """478.11 over 273.20 GB/s is 1.75, and 2 (n - 1) / n is that for n = 8 only; 0.00 GB/s tell nothing."""
    lines = [*files.header(), *files.rows(), *files.FOOTER]
    assert {8} == set(collectives(tmp_path, lines)["ranks"])
    assert "the number of ranks is unknown" not in notes(tmp_path, lines)
    lines = [*files.header(), *files.rows()[:1], *files.FOOTER]
    assert collectives(tmp_path, lines)["ranks"].isna().all()
    assert "the number of ranks is unknown" in notes(tmp_path, lines)


@pytest.mark.parametrize("lost", [0, 3, 7], ids=["first", "middle", "last"])
def test_a_lost_line_of_the_list_costs_no_rank(lost: int, tmp_path: Path) -> None:
    """The highest rank, or bus over algorithm bandwidth (1.75), tell that eight took part, whichever line is lost."""
    lines = files.table()
    del lines[lines.index(files.devices()[lost])]
    assert {8} == set(collectives(tmp_path, lines)["ranks"])
    assert ("its list of devices has 7 ranks, its bandwidths are those of 8" in notes(tmp_path, lines)) == (lost == 7)


def test_a_pasted_list_may_lack_its_hash(tmp_path: Path) -> None:
    """Markdown takes a ``#`` for a heading: the line of rank 0 and its GPU are read without it."""
    lines = [line.removeprefix("# ").removeprefix("#") if i < 7 else line for i, line in enumerate(files.table())]
    assert any(line.lstrip().startswith("Rank  0") for line in lines)
    profile = read(tmp_path, lines)
    assert {8} == set(profile.table("COLLECTIVES")["ranks"])
    assert list(range(8)) == profile.table("DEVICES")["gpu"].tolist()


@pytest.mark.parametrize(
    ("collective", "halves", "ranks"),
    [
        ("all_reduce", [("180.71", "338.82")], 16),  # 1.87494 to two digits each: between 15.99 and 16.00
        ("all_gather", [("100.00", "87.50")], 8),
        ("all_reduce", [("0.01", "0.02")], None),  # anything from 2 on
        ("all_reduce", [("10.00", "19.96")], None),  # between about 400 and 700
        ("all_reduce", [("100.00", "175.00"), ("100.00", "150.00")], None),  # 8 and 4: a contradiction
        ("send_recv", [("100.00", "100.00")], None),
        (None, [("100.00", "175.00")], None),
    ],
)
def test_ranks_by_the_bandwidths(collective: str | None, halves: list[tuple[str, str]], ranks: int | None) -> None:
    """The formula of nccl-tests turned round, with half of the last printed digit as doubt."""
    timings = tuple(Timing("in_place", 1.0, float(algbw), float(busbw), 0.0) for algbw, busbw in halves)
    assert ranks == implied_ranks([Row(8, 2, "float", "sum", -1, timings)], collective)


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


@pytest.mark.parametrize("cells", [("9" * 400, 2), (8, "9" * 400), (8, 2)], ids=["size", "count", "root"])
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


FIRST = files.rows()[0].split()
DAMAGED = [  # the first row: ended early, and with another size, count or type
    *(FIRST[:cells] for cells in (3, 4, 5, 6, 7, 8)),
    *([wrong, *FIRST[1:]] for wrong in ("9223372036854775808", "nan", "?")),
    *([FIRST[0], wrong, *FIRST[2:]] for wrong in ("9223372036854775808", "nan", "?")),
    [*FIRST[:2], "7", *FIRST[3:]],
]


@pytest.mark.parametrize("cells", DAMAGED, ids=" ".join)
def test_a_row_that_is_damaged_is_counted(cells: list[str], tmp_path: Path) -> None:
    """What begins like a row or has as many numbers is one, though it is no whole one; the others are read."""
    lines = files.table(inner=["  ".join(cells), *files.rows()[1:]])
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


def test_rows_without_a_header_are_counted(tmp_path: Path) -> None:
    """The header of the second of two tables is damaged: a note says how many rows of it nobody can read."""
    second = files.table("all_gather_perf")
    at = next(i for i, line in enumerate(second) if "algbw" in line)
    lines = [*files.table(), *second[:at], second[at].replace("algbw", "alg"), *second[at + 1 :]]
    assert len(files.rows()) * 2 == len(collectives(tmp_path, lines))
    count, line = len(files.rows()), 1 + lines.index(files.rows()[0], len(files.table()))
    assert f"all_gather_perf: {count} rows without a header are left out (line {line} first)" in notes(tmp_path, lines)


HALF = (1.234567, 0.1, 0.2, 0.0)


def read_report(path: Path, **more: Any) -> Profile:
    """The profile of a report with these entries."""
    return nccl.read(files.reported(path / "out.json", files.report(**more)))


def test_a_report_says_what_the_table_says(tmp_path: Path) -> None:
    """Sizes, times, collective, ranks (two processes of four GPUs), devices and versions."""
    assert "nccl" == recognise(files.reported(tmp_path / "out.json", files.report()))
    profile = read_report(tmp_path, results=[files.result(*row) for row in files.ROWS])
    printed = nccl.read(files.written(tmp_path / "out.txt", files.table(per_node=4)))
    assert profile.table("COLLECTIVES").equals(printed.table("COLLECTIVES"))
    assert [0] == profile.table("DEVICES")["gpu"].tolist()
    assert "NCCL 2.29.2; 8 GPUs on 2 nodes" == profile.notes[0]


def test_times_are_exact(tmp_path: Path) -> None:
    """1.234567 us are 1,234.567 ns, read as text and not as a sum of powers of two."""
    frame = read_report(tmp_path, results=[files.result(8, 2, HALF, HALF)]).table("COLLECTIVES")
    assert [1234.567, 1234.567] == frame["dur_ns"].tolist()


def test_the_start_is_wall_clock_time(tmp_path: Path) -> None:
    """2025-01-31 12:00:00 is 1,738,324,800 s after 1970, if local time is UTC, which a note says."""
    profile = read_report(tmp_path)
    assert 1_738_324_800 * 10**9 == profile.capture["t0_unix_ns"].item()
    assert "its start is local time without a zone, taken as UTC" in profile.notes
    assert read_report(tmp_path, start_time="noon").capture["t0_unix_ns"].isna().all()


def test_the_environment_stays_where_it_is(tmp_path: Path) -> None:
    """A report holds the environment, which may hold secrets: none of it is in a table or a note."""
    profile = read_report(tmp_path)
    shown = "".join(frame.to_csv() for frame in map(profile.table, profile.loaders)) + "".join(profile.notes)
    assert "secret" not in shown + str(profile.missing)
    assert "node0" not in shown


def test_a_replay_has_no_half_out_of_place(tmp_path: Path) -> None:
    """null is no measurement."""
    assert ["in_place"] == read_report(tmp_path, results=[files.result(8, 2, None, HALF)]).table("COLLECTIVES")[
        "placement"
    ].tolist()


def test_times_of_the_cpu_in_a_report_are_no_durations(tmp_path: Path) -> None:
    """With -C 1 the key is cpu_time."""
    result = files.result(8, 2, HALF, HALF)
    for half in ("out_of_place", "in_place"):
        result[half]["cpu_time"] = result[half].pop("time")
    profile = read_report(tmp_path, results=[result])
    assert profile.table("COLLECTIVES")["dur_ns"].isna().all()
    assert any("times of the CPU" in note for note in profile.notes)


def test_nan_is_missing(tmp_path: Path) -> None:
    """The test writes what is no number as the word nan."""
    result = files.result(8, 2, HALF, HALF)
    result["in_place"]["time"] = "nan"
    assert 1 == read_report(tmp_path, results=[result]).table("COLLECTIVES")["dur_ns"].isna().sum()


def test_wrong_and_unchecked_results_are_told(tmp_path: Path) -> None:
    """nwrong counts wrong elements, null is validation off."""
    wrong = files.result(8, 2, (*HALF[:3], 5.0), HALF)
    assert any("data corrupt in 1 rows" in note for note in read_report(tmp_path, results=[wrong]).notes)
    unchecked = files.result(8, 2, (*HALF[:3], None), (*HALF[:3], None))
    assert any("validation off" in note for note in read_report(tmp_path, results=[unchecked]).notes)


def test_the_report_of_a_failed_run_says_why(tmp_path: Path) -> None:
    """Without results the report's own error is the note; without that there is nothing to load."""
    profile = read_report(tmp_path, results=[], errors=["remote process exited"])
    assert not {"COLLECTIVES"} & set(profile.loaders)
    assert "the run failed: remote process exited" in profile.notes
    with pytest.raises(ReadError, match=r"out\.json: the report of nccl-tests holds no results"):
        read_report(tmp_path, results=[])


@pytest.mark.parametrize("part", [0.5, 0.7, 0.9, 0.97])
def test_a_cut_report_has_its_whole_results(part: float, tmp_path: Path) -> None:
    """A killed test leaves a report that ends anywhere: the results before that are read, each with both halves."""
    path = files.reported(tmp_path / "out.json", files.report())
    whole = nccl.read(path).table("COLLECTIVES")
    text = path.read_text()
    path.write_text(text[: int(len(text) * part)])
    profile = nccl.read(path)
    kept = profile.table("COLLECTIVES")
    assert 0 < len(kept) <= len(whole)
    assert len(kept) % 2 == 0
    assert kept["dur_ns"].isin(whole["dur_ns"]).all()
    assert "the file ends in the middle of a result, which is left out" in profile.notes


def test_a_report_cut_before_its_results_is_an_error(tmp_path: Path) -> None:
    """The settings of a test are no result."""
    path = files.reported(tmp_path / "out.json", files.report())
    text = path.read_text()
    path.write_text(text[: text.index('"results"')])
    with pytest.raises(ReadError, match=r"out\.json: the report of nccl-tests ends before its results"):
        nccl.read(path)


@pytest.mark.parametrize(
    "more",
    [
        {"results": [{"size": 8}]},
        {"results": ["text"]},
        {"results": [files.result(2**70, 2, HALF, HALF)]},
        {"results": [files.result(-8, 2, HALF, HALF)]},
        {"results": [files.result(8, 2, HALF, HALF, root="first")]},
        {"results": [files.result(8, 2, HALF, HALF, out_of_place={"time": "1e99999999"})]},
        {"config": {"devices": [{"hostname": "a", "device": 2**40, "device_info": "x"}]}},
        {"config": "text"},
        {"nccl_version": None},
    ],
)
def test_what_is_no_report_is_an_error(more: dict[str, Any], tmp_path: Path) -> None:
    """Keys that lack and numbers beyond all bounds name the file, not a line of this program."""
    with pytest.raises(ReadError, match=r"out\.json: not as nccl-tests writes a report \("):
        read_report(tmp_path, **more)


def test_keys_that_are_there_twice_are_noted(tmp_path: Path) -> None:
    """The last value of two is read, as every parser of JSON does."""
    path = files.reported(tmp_path / "r.json", files.report())
    path.write_text(path.read_text().replace('"size":', '"size": 1, "size":', 1))
    noted = "keys are there twice in one object, the last value of each is read (1, such as size)"
    assert noted in nccl.read(path).notes


@pytest.mark.parametrize("value", ["1e400", "-1e400", "Infinity", "9e18"])
def test_a_duration_that_cannot_be_is_handed_on(value: str, tmp_path: Path) -> None:
    """The reader judges no value, and none wraps round into one that could be; the schema takes it out."""
    path = files.reported(tmp_path / "r.json", files.report())
    path.write_text(re.sub(r'"time":[\d.]+', f'"time":{value}', path.read_text(), count=1))
    profile = nccl.read(path)
    handed_on = profile.loaders["COLLECTIVES"]()
    assert isinstance(handed_on, pd.DataFrame)
    assert handed_on["dur_ns"].abs().max() == abs(float(value)) * 1000
    assert 1 == profile.table("COLLECTIVES")["dur_ns"].isna().sum()
    assert any("COLLECTIVES" in note for note in profile.doubts)


@pytest.mark.parametrize("half", [0, "", [], {}, False])
def test_a_half_that_is_no_measurement_is_refused(half: Any, tmp_path: Path) -> None:
    """Only null stands for a half that was not measured."""
    with pytest.raises(ReadError, match=r"out\.json: not as nccl-tests writes a report"):
        read_report(tmp_path, results=[files.result(8, 2, HALF, HALF, in_place=half)])

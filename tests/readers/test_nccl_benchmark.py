"""The tables of nccl-tests and rccl-tests and their reports: every layout, and what is damaged, wrong or failed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from readers import nccl_files as files
from readers.nccl_files import half, start

from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers import nccl, recognise, unrecognised
from perfkit.readers.nccl.benchmark import implied_ranks
from perfkit.readers.nccl.log import Row, Timing

NS = [12340.0, 12300.0, 613300.0, 614000.0, 31533000.0, 31441000.0]
BYTES = [8, 8, 134217728, 134217728, 8589934592, 8589934592]
ROWS = files.rows()
TAG = "[1,0]<stdout>:"
FINE = half(("1.00", "0.00", "0.00", 0))


def read(path: Path, lines: list[str], prefix: str = "") -> Profile:
    """The profile of a log with these lines."""
    return nccl.read(files.written(path / "all_reduce.txt", lines, prefix))


def collectives(path: Path, lines: list[str]) -> pd.DataFrame:
    """Its collectives."""
    return read(path, lines).table("COLLECTIVES")


def inside(*rows: str) -> list[str]:
    """A table with these rows."""
    return files.table(inner=rows)


def old(measured: tuple[str, ...], *rows: str) -> list[str]:
    """A table of an old version, without the column of roots."""
    return files.old_table(rows, above=files.header(("size", "count", "type", "redop"), measured))


def halves(first: str, *rest: object) -> list[str]:
    """The usual rows with these cells after time, algbw and busbw of each half."""
    return [
        first.format(size=size, count=count) + half((*out[:3], *rest)) + half((*into[:3], *rest))
        for size, count, out, into in files.ROWS
    ]


def torn(after_root: str, after_half: str, rows: int = 3) -> list[str]:
    """The usual rows, the first of them with other text behind the root and behind the first half."""
    cut = [start(n, c) + after_root + half(out) + after_half + half(into) for n, c, out, into in files.ROWS]
    return [line for row in (*cut[:rows], *ROWS[rows:]) for line in row.split("\n")]


def connects(host: str, rows: int = 3) -> list[str]:
    """A table into whose rows NCCL writes that it connects, as it does when the first collective runs."""
    told = files.said("Channel 00/0 : 0[0] -> 1[1] via P2P/IPC", host=host)
    return inside(told, *torn(f"{told}\n{told}\n", f"{told}\n", rows))


def test_a_table_is_read_as_printed(tmp_path: Path) -> None:
    """12.34 us are 12,340 ns and 613.3 us 613,300 ns, not one bit beside; sizes are bytes, ranks from the list."""
    frame = collectives(tmp_path, files.table())
    assert NS == frame["dur_ns"].tolist()
    assert BYTES == frame["bytes"].tolist()
    assert ["out_of_place", "in_place"] * 3 == frame["placement"].tolist()
    assert [["all_reduce", "float", 8, -1, "benchmark"]] * 6 == list(
        map(list, frame[["operation", "dtype", "ranks", "gpu", "source"]].itertuples(index=False))
    )
    assert frame[["start_ns", "algorithm", "protocol", "group"]].isna().all(axis=None)


NO_ROOT, ROOT = "{size:>12}  {count:>12}   float     sum", "{size:>12}  {count:>12}     float     sum      -1"
NOISE = ["", "UCX  WARN  something", "12 of 13 things", "   --------", "[1234567.89] error"]
LAYOUTS = {
    "2.10": old(("time", "algbw", "busbw", "error"), *halves(NO_ROOT, "2e-07")),
    "2.13": files.old_table(ROWS),
    "-I 1": files.old_table(
        halves(ROOT, 0, "1.00", "2.00", "1.9", "3.1"),
        above=files.header(measured=(*files.MEASURED, *files.PER_ITERATION)),
    ),
    "-S 1": files.old_table(files.rows(after="  2025-01-31 12:00:00"), above=files.header(after="          timestamp")),
    "trailing blanks": files.old_table(files.rows(after="   ")),
    "clock before lines": [f"10:11:{second:02d} [1,0]: {line}" for second, line in enumerate(files.table())],
    "noise between rows": inside(ROWS[0], *NOISE, *ROWS[1:]),
}
PREFIXES = (TAG, " 0: ", "0: ", "[0] ", "node-7: ", "Thu Jan 30 10:11:12 2025[1,0]<stdout>:", "> ")
HOSTS = ("node0", "ip-10-0-0-1", "x3006c0s1b1n0")


@pytest.mark.parametrize(
    ("lines", "prefix", "links"),
    [
        *(pytest.param(lines, "", [], id=name) for name, lines in LAYOUTS.items()),
        # mpirun, srun, torchrun, pdsh and quoting put text before each line.
        *(pytest.param(files.table(), prefix, [], id=prefix) for prefix in PREFIXES),
        # mpirun --tag-output repeats its tag wherever the test flushed its output: after the root and after a half.
        pytest.param(inside(*torn(TAG, TAG)), TAG, [], id="tags within"),
        *(
            pytest.param(connects(host, 1), prefix, ["P2P/IPC"], id=f"{host} {prefix}")
            for host in HOSTS
            for prefix in ("", TAG)
        ),
        # In every row, so ``-1node0`` and ``0node0`` are there often: numbers run into the same host.
        pytest.param(connects("node0"), "", ["P2P/IPC"], id="every row torn"),
    ],
)
def test_what_stands_around_the_measurements_changes_nothing(
    lines: list[str], prefix: str, links: list[str], tmp_path: Path
) -> None:
    """Every version's layout, whatever a launcher or NCCL writes between, is the same table, of which none is lost."""
    profile = read(tmp_path, lines, prefix)
    assert profile.table("COLLECTIVES").equals(collectives(tmp_path, files.table()))
    assert links == profile.table("LINKS")["transport"].tolist()
    assert not any("left out" in note for note in profile.notes)


def test_times_in_powers_of_ten_are_read(tmp_path: Path) -> None:
    """A time above 10 s is printed as 1.2e+08 us: 120 s."""
    row = start(8589934592, 2147483648) + half(("1.2e+08", "0.07", "0.13", 0)) * 2
    assert [1.2e11] * 2 == collectives(tmp_path, inside(row))["dur_ns"].tolist()


def test_rccl_says_algorithm_and_protocol(tmp_path: Path) -> None:
    """rccl-tests -A 1 ends rows with algorithm, protocol and channels, N/A where it does not know them."""
    known, unknown = files.rows(after="    RING    SIMPLE          32")[0], files.rows(after="  N/A  N/A  N/A")[1]
    frame = collectives(tmp_path, inside(known, unknown))
    assert ["ring", "ring"] == frame["algorithm"].dropna().tolist()
    assert ["Simple", "Simple"] == frame["protocol"].dropna().tolist()
    assert NS[:4] == frame["dur_ns"].tolist()


def test_a_row_may_have_one_half(tmp_path: Path) -> None:
    """A replay is in place only, under its own columns; rccl-tests can leave out the half in place."""
    size, count, out, into = files.ROWS[1]
    first = start(size, count)
    frame = collectives(tmp_path, inside(first + " " * len(half(out)) + half(into), first + half(out)))
    assert [("in_place", 614000.0), ("out_of_place", 613300.0)] == list(
        zip(frame["placement"], frame["dur_ns"], strict=True)
    )


@pytest.mark.parametrize("time", ["N/A", "-nan"])
def test_a_time_that_is_not_known_is_missing(time: str, tmp_path: Path) -> None:
    """N/A and nan are no time; with -C 1 the test prints how long the calls took, which is no duration."""
    row = start(8, 2) + half((time, "0.00", "0.00", 0)) * 2
    assert np.isnan(collectives(tmp_path, inside(row))["dur_ns"]).tolist() == [True] * 2
    above = files.header(measured=("cputime", *files.MEASURED[1:]))
    profile = read(tmp_path, files.old_table(ROWS, above=above))
    assert np.isnan(profile.table("COLLECTIVES")["dur_ns"]).tolist() == [True] * 6
    assert any("times of the CPU (-C 1) are no durations" in note for note in profile.notes)


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
    row = start(8, 2) + half(("613.3", "218.85", "328.27", 0)) * 2  # busbw = 1.5 algbw, of four ranks
    lines = ["# nThread 1 nGpus 1 ", "# Using devices", *split, *files.header(), row, *files.FOOTER]
    assert {4} == set(collectives(tmp_path, lines)["ranks"])


def test_devices_are_those_of_the_first_node(tmp_path: Path) -> None:
    """The GPUs of rank 0's node by their number, without the names of hosts, which no table and no note shows."""
    profile = read(tmp_path, files.table(ranks=8, per_node=4))
    devices = profile.table("DEVICES")
    assert [[gpu, files.H100] for gpu in range(4)] == devices[["gpu", "name"]].to_numpy().tolist()
    assert "NCCL 2.29.2; 8 GPUs on 2 nodes" == profile.notes[0]
    assert "node0" not in shown(profile)
    assert [["nccl-tests", "2.17.8"]] == profile.capture[["tool", "tool_version"]].to_numpy().tolist()


def shown(profile: Profile) -> str:
    """Everything that a profile shows."""
    frames = "".join(frame.to_csv() for frame in map(profile.table, profile.loaders))
    return frames + "".join(profile.notes) + str(profile.missing)


NO_REDUCTION = {"redop": "none"}


@pytest.mark.parametrize(
    ("expected", "size", "columns", "busbw", "in_place"),
    [
        ("all_reduce", 4096, {}, "17.50", 0),
        ("all_reduce", 4096, {}, "17.50", "N/A"),
        ("send_recv", 4096, {}, "10.00", "N/A"),
        ("reduce_scatter", 32768, {}, "8.75", 0),
        ("all_gather", 32768, NO_REDUCTION, "8.75", 0),
        ("all_to_all", 32768, NO_REDUCTION, "8.75", "N/A"),
        ("broadcast", 4096, {**NO_REDUCTION, "root": 0}, "10.00", 0),
        ("reduce", 4096, {"root": 3}, "10.00", 0),
    ],
)
def test_the_rows_tell_the_collective(
    expected: str, size: int, columns: dict[str, Any], busbw: str, in_place: object, tmp_path: Path
) -> None:
    """Without a name the collective follows from reduction, root, size over elements (1024 floats) and checks.

    Send-receive and all-to-all do not check in place; an all-reduce of 8 ranks has 1.75 times the bandwidth on the bus.
    """
    checked = "N/A" if (expected, in_place) == ("all_reduce", "N/A") else 0
    row = start(size, 1024, **columns) + "".join(
        half(("500.0", "10.00", busbw, wrong)) for wrong in (checked, in_place)
    )
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


FIRST = ROWS[0].split()
DAMAGED = [  # the first row: ended early, and with another size, count or type
    *(FIRST[:cells] for cells in (3, 4, 5, 6, 7, 8)),
    *([wrong, *FIRST[1:]] for wrong in ("9223372036854775808", "nan", "?", "9" * 400)),
    *([FIRST[0], wrong, *FIRST[2:]] for wrong in ("9223372036854775808", "nan", "?", "9" * 400)),
    [*FIRST[:2], "7", *FIRST[3:]],
    [*FIRST[:4], "9" * 400, *FIRST[5:]],
    # Neither negative times nor words nor endless powers are read.
    *([*FIRST[:5], wrong, *FIRST[6:]] for wrong in ("1e999999999", "-5.00", "0x12", "1_0", "inf*")),
]


@pytest.mark.parametrize("cells", DAMAGED, ids=lambda cells: " ".join(cells)[:60])
def test_a_row_that_is_damaged_is_counted(cells: list[str], tmp_path: Path) -> None:
    """What begins like a row or has as many numbers is one, though it is no whole one; the others are read."""
    profile = read(tmp_path, inside("  ".join(cells), *ROWS[1:]))
    assert NS[2:] == profile.table("COLLECTIVES")["dur_ns"].tolist()
    assert any("1 rows that are not whole are left out (line 18 first)" in note for note in profile.notes)


def failed(lines: list[str]) -> list[str]:
    """A test that ends with what NCCL could not do."""
    said = "node3: Test NCCL failure common.cu:1005 'remote process exited or there was a network error / '"
    return [*lines[: lines.index(files.FOOTER[0])], said, " .. node3 pid 1234: Test failure common.cu:891"]


def replaced(lines: list[str], old: str, new: str) -> list[str]:
    """The lines with another text in them."""
    return [line.replace(old, new) for line in lines]


# Both say that the largest size asked for may not have been run: they are named together.
SHORT = [
    line
    for name in ("all_reduce_perf", "all_gather_perf")
    for part in files.table(name)
    for line in (["# Reducing maxBytes to 26549638485 due to memory limitation"] * (part == "# Using devices") + [part])
]
WRONG = start(8, 2) + FINE + half(("1.00", "0.00", "0.00", 12))
OLD_ERRORS = [start(8, 2, root=None) + half(("1.00", "0.00", "0.00", error)) * 2 for error in ("2e-07", "3e+01*")]
ERROR = ("time", "algbw", "busbw", "error")
UNCHECKED_IN_PLACE = start(8, 8, redop="none") + FINE + half(("1.00", "0", "0", "N/A"))
NO_LIST = [*files.header(), ROWS[0], *files.FOOTER]
SECOND = replaced(files.table("all_gather_perf"), "algbw", "alg")  # its header is damaged: nobody can read its rows
UNCHECKED, CORRUPT = "not checked (validation off)", "data corrupt in"


@pytest.mark.parametrize(
    ("lines", "rows", "notes", "others"),
    [
        (
            replaced(inside(WRONG, *ROWS[1:]), "values : 0 OK", "values : 12 FAILED"),
            6,
            ["all_reduce_perf: data corrupt in 1 rows (12 values out of bounds)"],
            [],
        ),
        (files.table(), 6, [], [CORRUPT, UNCHECKED, "ranks"]),
        # Up to 2.12 an error is printed, 2e-07; one beyond the threshold ends in an asterisk.
        (old(ERROR, OLD_ERRORS[0]), 2, [], [CORRUPT]),
        (old(ERROR, *OLD_ERRORS), 4, ["data corrupt in 1 rows"], []),
        # N/A everywhere is validation off; in place alone it is not. So is a table without the column of the checks.
        (inside(*replaced(ROWS, "      0", "    N/A")), 6, [UNCHECKED], []),
        (files.table("alltoall_perf", inner=[UNCHECKED_IN_PLACE]), 2, [], ["not checked"]),
        (old(ERROR[:3], start(8, 2, root=None) + "  1.00  0.00  0.00" * 2), 2, [UNCHECKED], []),
        (SHORT, 12, ["all_reduce_perf, all_gather_perf: sizes end below 26549638485 bytes, for lack of memory"], []),
        (
            inside(ROWS[0], ROWS[1].replace("218.85", ""), ROWS[2].replace("31533", "315x3")),
            2,
            ["2 rows that are not whole are left out (line 19 first)"],
            [],
        ),
        (
            [*files.table(), *SECOND],
            6,
            [f"all_gather_perf: 3 rows without a header are left out (line {len(files.table()) + 18} first)"],
            [],
        ),
        (NO_LIST, 2, ["the number of ranks is unknown"], []),
        # What was measured before a failure stays, with the note that the table has no summary.
        (failed(files.table()), 6, ["ends after 3 rows without a summary", "the run failed: Test NCCL failure"], []),
    ],
    ids=[
        *("wrong", "plain", "old", "old and wrong", "off", "off in place", "no checks", "short sweep"),
        *("not whole", "no header", "no list", "failed"),
    ],
)
def test_what_a_table_lacks_is_noted(
    lines: list[str], rows: int, notes: list[str], others: list[str], tmp_path: Path
) -> None:
    """Wrong and unchecked results, short sweeps, rows and lists that are lost, and failures each have a note."""
    profile = read(tmp_path, lines)
    told = "\n".join(profile.notes)
    assert rows == len(profile.table("COLLECTIVES"))
    assert notes == [note for note in notes if note in told]
    assert [] == [note for note in others if note in told]


ALL = list(range(8))


@pytest.mark.parametrize(
    ("lines", "gpus"),
    [
        ([*files.header(), *ROWS, *files.FOOTER], []),  # 478.11 / 273.20 = 1.75 = 2 (n - 1) / n for n = 8 only
        *(([line for line in files.table() if line != files.devices()[r]], ALL[:r] + ALL[r + 1 :]) for r in (0, 3, 7)),
        # Markdown takes a # for a heading: the line of rank 0 and its GPU are read without it.
        ([line.removeprefix("# ").removeprefix("#") for line in files.table()[:7]] + files.table()[7:], ALL),
    ],
    ids=["no list", "first lost", "middle lost", "last lost", "no hashes"],
)
def test_the_list_or_the_bandwidths_give_the_ranks(lines: list[str], gpus: list[int], tmp_path: Path) -> None:
    """The highest rank, or bus over algorithm bandwidth, tell that eight took part, whichever line is lost."""
    profile = read(tmp_path, lines)
    assert {8} == set(profile.table("COLLECTIVES")["ranks"])
    assert gpus == profile.table("DEVICES")["gpu"].tolist()
    told = "\n".join(profile.notes)
    assert ("its list of devices has 7 ranks, its bandwidths are those of 8" in told) == (gpus == ALL[:7])
    assert "the number of ranks is unknown" not in told


def test_ranks_that_nothing_tells_are_missing(tmp_path: Path) -> None:
    """0.00 GB/s tell nothing."""
    assert collectives(tmp_path, NO_LIST)["ranks"].isna().all()


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


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    """A table of a run that failed has no rows: nothing is made up, and the note quotes what went wrong."""
    profile = read(tmp_path, failed(inside(files.said("Bootstrap : Using eth0"))))
    assert "COLLECTIVES" not in profile.loaders
    assert ["COLLECTIVES", "LINKS"] == [m.table for m in profile.missing]
    expected = "Test NCCL failure common.cu:1005 'remote process exited or there was a network error / '"
    assert f"the run failed: {expected}" in profile.notes
    assert "all_reduce_perf: no rows: the run ended before its first result" in profile.notes


COMMAS = [*files.table()[:3], *(",".join(row.split()) for row in ROWS)]  # are not what the test printed
DAMAGED_ALL = inside(*(row.rsplit(None, 2)[0] for row in ROWS))


@pytest.mark.parametrize(
    ("lines", "damage", "finding"),
    [
        # Not a run that ended too early.
        (DAMAGED_ALL, b"613.3", r"3 rows of nccl-tests and none that is whole \(line 18 first\)(?!.*ended before)"),
        (files.table()[:17], b"", "a header of nccl-tests and no rows: the run ended before its first"),
        (COMMAS, b"", "neither results of nccl-tests nor rings, connections or calls"),
        # Where two times stand next to each other, no row could be read.
        ([line.replace("algbw", "time", 1) for line in files.table()], b"", ""),
        # Rows that binary data cuts into cannot be told from whole ones.
        *(
            (files.table(), b"61" + g + b"3", "binary data .*line 19")
            for g in (b"\0\0\0", b"\xff\xfe\x81", b"\x01\x02")
        ),
    ],
    ids=["damaged rows", "header alone", "commas", "two times", "zeros", "not utf-8", "control"],
)
def test_what_is_no_table_is_an_error(lines: list[str], damage: bytes, finding: str, tmp_path: Path) -> None:
    """The file is refused, not half read, with what is wrong and where."""
    path = files.written(tmp_path / "a.txt", lines)
    path.write_bytes(path.read_bytes().replace(b"613.3", damage or b"613.3"))
    with pytest.raises(ReadError, match=rf"a\.txt: {finding}"):
        nccl.read(path)


def test_a_table_with_another_delimiter_is_not_claimed(tmp_path: Path) -> None:
    """Without a line that the test prints as it is, nothing says what the file is."""
    path = files.written(tmp_path / "a.csv", [",".join(line.split()) for line in [*files.header(), *ROWS]])
    assert not nccl.sniff(path)
    assert "a.csv: no reader recognises this file" in str(unrecognised(path))


def test_a_cut_last_line_is_left_out(tmp_path: Path) -> None:
    """A number that is cut is still a number: a line without its end is not read."""
    path = files.written(tmp_path / "a.txt", files.table())
    text = path.read_text()
    path.write_text(text[: text.index("478.11") + 4])
    profile = nccl.read(path)
    assert NS[:4] == profile.table("COLLECTIVES")["dur_ns"].tolist()
    assert "the last line is cut and left out" in profile.notes


def test_bytes_that_are_no_text_are_noted_with_their_line(tmp_path: Path) -> None:
    """An unreadable stretch outside the rows: nothing can be read of it, and a note says where it is."""
    path = files.written(tmp_path / "all_reduce.txt", ["hello", *files.table()])
    path.write_bytes(path.read_bytes().replace(b"hello", b"he\xff\x01o"))
    assert "lines hold bytes that are no text (1, first in line 1)" in nccl.read(path).notes


HALF = (1.234567, 0.1, 0.2, 0.0)


def read_report(path: Path, **more: Any) -> Profile:
    """The profile of a report with these entries."""
    return nccl.read(files.reported(path / "out.json", files.report(**more)))


def test_a_report_says_what_the_table_says(tmp_path: Path) -> None:
    """Sizes, times, collective, ranks (two processes of four GPUs), devices and versions.

    A report holds the environment, which may hold secrets: none of it is in a table or a note.
    """
    assert "nccl" == recognise(files.reported(tmp_path / "out.json", files.report()))
    profile = read_report(tmp_path, results=[files.result(*row) for row in files.ROWS])
    printed = nccl.read(files.written(tmp_path / "out.txt", files.table(per_node=4)))
    assert profile.table("COLLECTIVES").equals(printed.table("COLLECTIVES"))
    assert [0] == profile.table("DEVICES")["gpu"].tolist()
    assert "NCCL 2.29.2; 8 GPUs on 2 nodes" == profile.notes[0]
    assert not {word for word in ("secret", "node0") if word in shown(profile)}


def test_the_start_is_wall_clock_time(tmp_path: Path) -> None:
    """2025-01-31 12:00:00 is 1,738,324,800 s after 1970, if local time is UTC, which a note says."""
    profile = read_report(tmp_path)
    assert 1_738_324_800 * 10**9 == profile.capture["t0_unix_ns"].item()
    assert "its start is local time without a zone, taken as UTC" in profile.notes
    assert read_report(tmp_path, start_time="noon").capture["t0_unix_ns"].isna().all()


CPU = {"cpu_time": 1.0, "alg_bw": 0.1, "bus_bw": 0.2, "nwrong": 0.0}  # with -C 1


@pytest.mark.parametrize(
    ("result", "times", "note"),
    [
        # 1.234567 us are 1,234.567 ns, read as text and not as a sum of powers of two.
        (files.result(8, 2, HALF, HALF), {"out_of_place": 1234.567, "in_place": 1234.567}, ""),
        (files.result(8, 2, None, HALF), {"in_place": 1234.567}, ""),  # a replay has no half out of place
        (files.result(8, 2, None, ("nan", *HALF[1:])), {"in_place": None}, ""),
        (files.result(8, 2, None, None, in_place=CPU), {"in_place": None}, "times of the CPU"),
        (files.result(8, 2, None, (*HALF[:3], 5.0)), {"in_place": 1234.567}, "data corrupt in 1 rows"),
        (files.result(8, 2, None, (*HALF[:3], None)), {"in_place": 1234.567}, "validation off"),
    ],
    ids=["exact", "replay", "nan", "cpu", "wrong", "not checked"],
)
def test_a_result_has_the_halves_that_were_measured(
    result: dict[str, Any], times: dict[str, float | None], note: str, tmp_path: Path
) -> None:
    """null is no measurement, nan and times of the CPU no duration; wrong and unchecked elements have a note."""
    profile = read_report(tmp_path, results=[result])
    frame = profile.table("COLLECTIVES")
    found = frame["dur_ns"].astype(object).where(frame["dur_ns"].notna(), None)
    assert times == dict(zip(frame["placement"], found, strict=True))
    words = ("times of the CPU", "data corrupt in 1 rows", "validation off")
    assert [note] * bool(note) == [word for word in words if any(word in told for told in profile.notes)]


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
        # Only null stands for a half that was not measured.
        *({"results": [files.result(8, 2, HALF, HALF, in_place=nothing)]} for nothing in (0, "", [], {}, False)),
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

"""The tables of nccl-tests and rccl-tests: every layout, among launchers' prefixes, lines of NCCL and failures."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from readers import nccl_files as files

from perfkit.profile import Profile
from perfkit.readers import nccl, recognise

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
    lines = ["# Using devices", *split, *files.header(), *files.rows(), *files.FOOTER]
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

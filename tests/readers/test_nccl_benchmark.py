"""The tables of nccl-tests and rccl-tests and their reports: every layout, and what is damaged, wrong or failed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from readers import nccl_files as files
from readers.nccl_files import half, start
from readers.nsys_files import values

from perfkit.errors import ReadError
from perfkit.logs import nccl
from perfkit.logs.nccl.benchmark import implied_ranks
from perfkit.logs.nccl.log import Row, Timing
from perfkit.profile import Profile
from perfkit.readers import recognise, unrecognised

NS = [12340.0, 12300.0, 613300.0, 614000.0, 31533000.0, 31441000.0]
ROWS = files.rows()
TAG = "[1,0]<stdout>:"
FINE = half(("1.00", "0.00", "0.00", 0))


def read(path: Path, lines: list[str], prefix: str = "") -> Profile:
    return nccl.read(files.written(path / "all_reduce.txt", lines, prefix))


def inside(*rows: str) -> list[str]:
    return files.table(inner=rows)


def gathering(row: str = "") -> list[str]:
    return files.old_table(
        [row or start(32768, 1024, redop="none") + half(("500.0", "10.00", "8.75", "N/A")) * 2]
    )


def old(measured: tuple[str, ...], *rows: str) -> list[str]:
    return files.old_table(rows, above=files.header(("size", "count", "type", "redop"), measured))


def halves(first: str, *rest: object) -> list[str]:
    return [
        first.format(size=size, count=count) + half((*out[:3], *rest)) + half((*into[:3], *rest))
        for size, count, out, into in files.ROWS
    ]


def torn(after_root: str, after_half: str, rows: int = 3) -> list[str]:
    cut = [
        start(n, c) + after_root + half(out) + after_half + half(into)
        for n, c, out, into in files.ROWS
    ]
    return [line for row in (*cut[:rows], *ROWS[rows:]) for line in row.split("\n")]


def connects(host: str, rows: int = 3) -> list[str]:
    told = files.said("Channel 00/0 : 0[0] -> 1[1] via P2P/IPC", host=host)
    return inside(told, *torn(f"{told}\n{told}\n", f"{told}\n", rows))


ALL_REDUCE = {
    "dur_ns": NS,  # 12.34 us are 12,340 ns and 613.3 us 613,300 ns, not one bit beside
    "bytes": [8, 8, 134217728, 134217728, 8589934592, 8589934592],
    "placement": ["out_of_place", "in_place"] * 3,
    **{
        column: [value] * 6
        for column, value in (("operation", "all_reduce"), ("dtype", "float"), ("ranks", 8))
    },
    **{column: [value] * 6 for column, value in (("gpu", -1), ("source", "benchmark"))},
    **dict.fromkeys(("start_ns", "algorithm", "protocol", "group"), [None] * 6),
}
LONG = start(8589934592, 2147483648) + half(("1.2e+08", "0.07", "0.13", 0)) * 2
RCCL = (
    files.rows(after="    RING    SIMPLE          32")[0],
    files.rows(after="  N/A  N/A  N/A")[1],
)
SIZE, COUNT, OUT, IN = files.ROWS[1]
ONE_HALF = (start(SIZE, COUNT) + " " * len(half(OUT)) + half(IN), start(SIZE, COUNT) + half(OUT))
TABLES = (
    files.table()
    + files.table("reduce_scatter_perf", ranks=16)
    + files.table("sendrecv_perf", ranks=2)
)
DEVICES = [*files.devices(4, group="Group  0 "), *files.devices(4, group="Group  1 ")]
SPLIT = ["# nThread 1 nGpus 1 ", "# Using devices", *DEVICES, *files.header()]
SPLIT += [
    start(8, 2) + half(("613.3", "218.85", "328.27", 0)) * 2,
    *files.FOOTER,
]  # busbw = 1.5 algbw, of four ranks
NO_LIST, FIVE = [*files.header(), ROWS[0], *files.FOOTER], half(("5.00", "0.00", "0.00", 0))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(files.table(), ALL_REDUCE, id="as printed"),
        pytest.param(
            inside(LONG),
            {"dur_ns": [1.2e11] * 2},
            id="a time above 10 s is printed as 1.2e+08 us: 120 s",
        ),
        pytest.param(
            inside(*RCCL),
            {
                "algorithm": ["ring"] * 2 + [None] * 2,
                "protocol": ["Simple"] * 2 + [None] * 2,
                "dur_ns": NS[:4],
            },
            id="rccl-tests -A 1 ends rows with algorithm, protocol and channels, N/A where it does not know them",
        ),
        pytest.param(
            inside(*ONE_HALF),
            {"placement": ["in_place", "out_of_place"], "dur_ns": [614000.0, 613300.0]},
            id="a replay is in place only, under its own columns; rccl-tests can leave out the half in place",
        ),
        pytest.param(
            TABLES,
            {"operation": ["all_reduce"] * 6 + ["reduce_scatter"] * 6 + ["send_recv"] * 6}
            | {"ranks": [8] * 6 + [16] * 6 + [2] * 6},
            id="several tables, each with its own collective and ranks",
        ),
        pytest.param(
            SPLIT,
            {"ranks": [4] * 2},
            id="NCCL_TESTS_SPLIT runs groups at once: the ranks of its own",
        ),
        pytest.param(NO_LIST, {"ranks": [None] * 2}, id="0.00 GB/s tell no ranks"),
        *(
            (inside(start(8, 2) + half((time, "0", "0", 0)) * 2), {"dur_ns": [None] * 2})
            for time in ("N/A", "-nan")
        ),
        pytest.param(
            files.table("hypercube_perf"), {"operation": [None] * 6}, id="a program nobody knows"
        ),
        # Messages of 0 bytes or of an unknown element type do not tell a collective.
        *(
            (gathering(row + FIVE * 2), {"operation": [None] * 2})
            for row in (start(0, 0), start(4096, 1024, "int7"))
        ),
    ],
)
def test_a_table_says(lines: list[str], expected: dict[str, list[Any]], tmp_path: Path) -> None:
    frame = nccl.read(files.written(tmp_path / "run.txt", lines)).table("COLLECTIVES")
    assert expected == {column: values(frame, column) for column in expected}


NO_ROOT, ROOT = (
    "{size:>12}  {count:>12}   float     sum",
    "{size:>12}  {count:>12}     float     sum      -1",
)
PREFIXES = (TAG, " 0: ", "[0] ", "node-7: ", "Thu Jan 30 10:11:12 2025[1,0]<stdout>:")
EACH = (*files.MEASURED, *files.PER_ITERATION)
LAYOUTS = {
    "2.10": old(("time", "algbw", "busbw", "error"), *halves(NO_ROOT, "2e-07")),
    "2.13": files.old_table(ROWS),
    "-I 1": files.old_table(
        halves(ROOT, 0, "1.00", "2.00", "1.9", "3.1"), above=files.header(measured=EACH)
    ),
    "-S 1": files.old_table(
        files.rows(after="  2025-01-31 12:00:00"), above=files.header(after="          timestamp")
    ),
    "clock before lines": [
        f"10:11:{second:02d} [1,0]: {line}" for second, line in enumerate(files.table())
    ],
    "noise between rows": inside(ROWS[0], "", "UCX  WARN  something", "12 of 13 things", *ROWS[1:]),
}
AROUND = [
    *((name, lines, "", []) for name, lines in LAYOUTS.items()),
    # mpirun, srun, torchrun, pdsh and quoting put text before each line.
    *((prefix, files.table(), prefix, []) for prefix in PREFIXES),
    # mpirun --tag-output repeats its tag wherever the test flushed its output: after the root and after a half.
    ("tags within", inside(*torn(TAG, TAG)), TAG, []),
    ("a host's name", connects("ip-10-0-0-1", 1), TAG, ["P2P/IPC"]),
    # In every row, so ``-1node0`` and ``0node0`` are there often: numbers run into the same host.
    ("every row torn", connects("node0"), "", ["P2P/IPC"]),
]


@pytest.mark.parametrize(
    ("lines", "prefix", "links"), [row[1:] for row in AROUND], ids=[row[0] for row in AROUND]
)
def test_what_stands_around_changes_nothing(
    lines: list[str], prefix: str, links: list[str], tmp_path: Path
) -> None:
    profile = read(tmp_path, lines, prefix)
    assert profile.table("COLLECTIVES").equals(read(tmp_path, files.table()).table("COLLECTIVES"))
    assert links == profile.table("LINKS")["transport"].tolist()
    assert not any("left out" in note for note in profile.notes)


def shown(profile: Profile) -> str:
    frames = "".join(frame.to_csv() for frame in map(profile.table, profile.loaders))
    return frames + "".join(profile.notes) + str(profile.missing)


def test_devices_of_the_first_node_and_failed_runs(tmp_path: Path) -> None:
    profile = read(tmp_path, files.table(ranks=8, per_node=4))
    assert [[gpu, files.H100] for gpu in range(4)] == values(
        profile.table("DEVICES"), "gpu", "name"
    )
    assert "NCCL 2.29.2; 8 GPUs on 2 nodes" == profile.notes[0]
    assert "node0" not in shown(profile)
    assert [["nccl-tests", "2.17.8"]] == values(profile.capture, "tool", "tool_version")
    profile = read(tmp_path, failed(inside(files.said("Bootstrap : Using eth0"))))
    assert ["COLLECTIVES", "LINKS"] == [m.table for m in profile.missing]
    error = (
        "Test NCCL failure common.cu:1005 'remote process exited or there was a network error / '"
    )
    ended = "all_reduce_perf: no rows: the run ended before its first result"
    assert {f"the run failed: {error}", ended} <= {*profile.notes}
    reported = read_report(tmp_path, results=[], errors=["remote process exited"])
    assert "COLLECTIVES" not in reported.loaders
    assert "the run failed: remote process exited" in reported.notes
    with pytest.raises(ReadError, match=r"out\.json: the report of nccl-tests holds no results"):
        read_report(tmp_path, results=[])


NO_REDUCTION = {"redop": "none"}


def test_rows_and_names_tell_the_collective(tmp_path: Path) -> None:
    # By reduction, root, size over elements (1024 floats) and checks: send-receive and all-to-all have none in place.
    for expected, size, columns, busbw, in_place in [
        ("all_reduce", 4096, {}, "17.50", 0),
        ("send_recv", 4096, {}, "10.00", "N/A"),
        ("reduce_scatter", 32768, {}, "8.75", 0),
        ("all_gather", 32768, NO_REDUCTION, "8.75", 0),
        ("all_to_all", 32768, NO_REDUCTION, "8.75", "N/A"),
        ("broadcast", 4096, {**NO_REDUCTION, "root": 0}, "10.00", 0),
        ("reduce", 4096, {"root": 3}, "10.00", 0),
    ]:
        halves = "".join(half(("500.0", "10.00", busbw, wrong)) for wrong in (0, in_place))
        row = start(size, 1024, **columns) + halves
        path = files.written(tmp_path / "run.txt", files.old_table([row]))
        assert {expected} == set(nccl.read(path).table("COLLECTIVES")["operation"])
    # The command, else the file's name, chooses among the collectives that the rows can be of, and no other.
    for name, above, expected in [
        ("nccl_alltoall.log", [], {"all_to_all"}),
        ("run.txt", ["+ mpirun -np 8 ./build/all_gather_perf -b 8 -e 8G"], {"all_gather"}),
        ("all_reduce.txt", [], set()),
        ("run.txt", [], set()),
    ]:
        profile = nccl.read(files.written(tmp_path / name, [*above, *gathering()]))
        assert expected == set(profile.table("COLLECTIVES")["operation"].dropna())
        assert bool(expected) != any(
            "does not say which collective it is" in note for note in profile.notes
        )
    assert "nccl" == recognise(files.written(tmp_path / "x", ["text"] * 100 + files.table()))
    assert "nccl" == recognise(
        files.written(tmp_path / "y", [*files.header(), *files.rows()], "[1,0]<stdout>:")
    )
    about = [
        "NCCL INFO lines look so:",
        "algbw and busbw are explained in PERFORMANCE.md",
        "# size count type time",
    ]
    assert not nccl.sniff(files.written(tmp_path / "z", about))
    # Without a line that the test prints as it is, nothing says what the file is.
    path = files.written(
        tmp_path / "a.csv", [",".join(line.split()) for line in [*files.header(), *ROWS]]
    )
    assert not nccl.sniff(path)
    assert "a.csv: no reader recognises this file" in str(unrecognised(path))


FIRST = ROWS[0].split()
DAMAGED = [  # the first row: ended early, and with another size, count or type
    *(FIRST[:cells] for cells in (3, 5, 8)),
    *([wrong, *FIRST[1:]] for wrong in ("9223372036854775808", "nan")),
    [FIRST[0], "9" * 400, *FIRST[2:]],
    [*FIRST[:2], "7", *FIRST[3:]],
    [*FIRST[:4], "9" * 400, *FIRST[5:]],
    # Neither negative times nor words nor endless powers are read.
    *([*FIRST[:5], wrong, *FIRST[6:]] for wrong in ("1e999999999", "-5.00", "0x12", "1_0")),
]


def test_what_is_damaged_or_cut_is_left_out(tmp_path: Path) -> None:
    # What begins like a row or has as many numbers is one, though it is no whole one; the others are read.
    for cells in DAMAGED:
        profile = read(tmp_path, inside("  ".join(cells), *ROWS[1:]))
        assert NS[2:] == profile.table("COLLECTIVES")["dur_ns"].tolist()
        assert any(
            "1 rows that are not whole are left out (line 18 first)" in note
            for note in profile.notes
        )
    # A number that is cut is still a number: a line without its end is not read.
    path = files.written(tmp_path / "a.txt", files.table())
    text = path.read_text()
    path.write_text(text[: text.index("478.11") + 4])
    profile = nccl.read(path)
    assert NS[:4] == profile.table("COLLECTIVES")["dur_ns"].tolist()
    assert "the last line has no line break: it may be cut, and is left out" in profile.notes
    above = files.header(
        measured=("cputime", *files.MEASURED[1:])
    )  # with -C 1: how long the calls took
    profile = read(tmp_path, files.old_table(ROWS, above=above))
    assert np.isnan(profile.table("COLLECTIVES")["dur_ns"]).tolist() == [True] * 6
    assert any("times of the CPU (-C 1) are no durations" in note for note in profile.notes)


def failed(lines: list[str]) -> list[str]:
    error = "node3: Test NCCL failure common.cu:1005 'remote process exited or there was a network error / '"
    return [
        *lines[: lines.index(files.FOOTER[0])],
        error,
        " .. node3 pid 1234: Test failure common.cu:891",
    ]


def replaced(lines: list[str], old: str, new: str) -> list[str]:
    return [line.replace(old, new) for line in lines]


# Both say that the largest size asked for may not have been run: they are named together.
SHORT = [
    line
    for name in ("all_reduce_perf", "all_gather_perf")
    for part in files.table(name)
    for line in (
        ["# Reducing maxBytes to 26549638485 due to memory limitation"]
        * (part == "# Using devices")
        + [part]
    )
]
WRONG = start(8, 2) + FINE + half(("1.00", "0.00", "0.00", 12))
OLD_ERRORS = [
    start(8, 2, root=None) + half(("1.00", "0.00", "0.00", error)) * 2
    for error in ("2e-07", "3e+01*")
]
ERROR = ("time", "algbw", "busbw", "error")
UNCHECKED, CORRUPT = "not checked (validation off)", "data corrupt in"


CORRUPT_ROWS = replaced(inside(WRONG, *ROWS[1:]), "values : 0 OK", "values : 12 FAILED")
TORN = inside(ROWS[0], ROWS[1].replace("218.85", ""), ROWS[2].replace("31533", "315x3"))
LACKING = {
    "plain": (files.table(), 6, ()),
    "wrong": (
        CORRUPT_ROWS,
        6,
        ("all_reduce_perf: data corrupt in 1 rows (12 values out of bounds)",),
    ),
    # Up to 2.12 an error is printed, 2e-07; one beyond the threshold ends in an asterisk.
    "old": (old(ERROR, OLD_ERRORS[0]), 2, ()),
    "old and wrong": (old(ERROR, *OLD_ERRORS), 4, ("data corrupt in 1 rows",)),
    "off": (inside(*replaced(ROWS, "      0", "    N/A")), 6, (UNCHECKED,)),
    "short": (
        SHORT,
        12,
        (
            "all_reduce_perf, all_gather_perf: sizes end below 26549638485 bytes, for lack of memory",
        ),
    ),
    "not whole": (TORN, 2, ("2 rows that are not whole are left out (line 19 first)",)),
    "no list": (NO_LIST, 2, ("the number of ranks is unknown",)),
    # What was measured before a failure stays, with the note that the table has no summary.
    "failed": (
        failed(files.table()),
        6,
        ("ends after 3 rows without a summary", "the run failed: Test NCCL failure"),
    ),
}
SAID = (CORRUPT, "not checked", "memory", "left out", "unknown", "without a summary", "failed")


@pytest.mark.parametrize(("lines", "rows", "notes"), LACKING.values(), ids=LACKING)
def test_what_a_table_lacks_is_noted(
    lines: list[str], rows: int, notes: tuple[str, ...], tmp_path: Path
) -> None:
    profile = read(tmp_path, lines)
    told = "\n".join(profile.notes)
    assert rows == len(profile.table("COLLECTIVES"))
    assert notes == tuple(note for note in notes if note in told)
    assert [word for word in SAID if word in "".join(notes)] == [
        word for word in SAID if word in told
    ]


ALL = list(range(8))


def test_the_list_or_the_bandwidths_give_the_ranks(tmp_path: Path) -> None:
    # The highest rank, or bus over algorithm bandwidth, tell that eight took part, whichever line is lost.
    for lines, gpus in [
        (
            [*files.header(), *ROWS, *files.FOOTER],
            [],
        ),  # 478.11 / 273.20 = 1.75 = 2 (n - 1) / n for n = 8 only
        *(
            ([line for line in files.table() if line != files.devices()[r]], ALL[:r] + ALL[r + 1 :])
            for r in (0, 3, 7)
        ),
        # Markdown takes a # for a heading: the line of rank 0 and its GPU are read without it.
        (
            [line.removeprefix("# ").removeprefix("#") for line in files.table()[:7]]
            + files.table()[7:],
            ALL,
        ),
    ]:
        profile = read(tmp_path, lines)
        assert {8} == set(profile.table("COLLECTIVES")["ranks"])
        assert gpus == profile.table("DEVICES")["gpu"].tolist()
        told = "\n".join(profile.notes)
        assert ("its list of devices has 7 ranks, its bandwidths are those of 8" in told) == (
            gpus == ALL[:7]
        )
        assert "the number of ranks is unknown" not in told
    # The formula of nccl-tests turned round, with half of the last printed digit as doubt.
    for collective, halves, ranks in [
        (
            "all_reduce",
            [("180.71", "338.82")],
            16,
        ),  # 1.87494 to two digits each: between 15.99 and 16.00
        ("all_reduce", [("0.01", "0.02")], None),  # anything from 2 on
        (
            "all_reduce",
            [("100.00", "175.00"), ("100.00", "150.00")],
            None,
        ),  # 8 and 4: a contradiction
        ("send_recv", [("100.00", "100.00")], None),
        (None, [("100.00", "175.00")], None),
    ]:
        timings = tuple(
            Timing("in_place", 1.0, float(algbw), float(busbw), 0.0) for algbw, busbw in halves
        )
        assert ranks == implied_ranks([Row(8, 2, "float", "sum", -1, timings)], collective)


COMMAS = [
    *files.table()[:3],
    *(",".join(row.split()) for row in ROWS),
]  # are not what the test printed
DAMAGED_ALL = inside(*(row.rsplit(None, 2)[0] for row in ROWS))


REFUSED = {
    "damaged rows": (
        DAMAGED_ALL,
        r"3 rows of nccl-tests and none that is whole \(line 18 first\)(?!.*ended before)",
    ),
    "header alone": (
        files.table()[:17],
        "a header of nccl-tests and no rows: the run ended before its first",
    ),
    "commas": (COMMAS, "neither results of nccl-tests nor rings, connections or calls"),
}


def test_what_is_no_table_is_an_error(tmp_path: Path) -> None:
    for lines, finding in REFUSED.values():
        with pytest.raises(ReadError, match=rf"a\.txt: {finding}"):
            nccl.read(files.written(tmp_path / "a.txt", lines))
    path = files.written(tmp_path / "all_reduce.txt", ["hello", *files.table()])
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"hello", b"he\xff\x01o"))
    assert "lines hold bytes that are no text (1, first in line 1)" in nccl.read(path).notes
    for garbage in (
        b"\0\0\0",
        b"\xff\xfe\x81",
        b"\x01\x02",
    ):  # such rows cannot be told from whole ones
        path.write_bytes(whole.replace(b"613.3", b"61" + garbage + b"3"))
        with pytest.raises(ReadError, match=r"all_reduce\.txt: binary data .*line 20"):
            nccl.read(path)


HALF = (1.234567, 0.1, 0.2, 0.0)


def read_report(path: Path, **more: Any) -> Profile:
    return nccl.read(files.reported(path / "out.json", files.report(**more)))


def test_a_report_says_what_the_table_says(tmp_path: Path) -> None:
    assert "nccl" == recognise(files.reported(tmp_path / "out.json", files.report()))
    profile = read_report(tmp_path, results=[files.result(*row) for row in files.ROWS])
    printed = nccl.read(files.written(tmp_path / "out.txt", files.table(per_node=4)))
    assert profile.table("COLLECTIVES").equals(printed.table("COLLECTIVES"))
    assert [0] == profile.table("DEVICES")["gpu"].tolist()
    assert "NCCL 2.29.2; 8 GPUs on 2 nodes" == profile.notes[0]
    assert not {
        word for word in ("secret", "node0") if word in shown(profile)
    }  # it holds the whole environment
    # 2025-01-31 12:00:00 is 1,738,324,800 s after 1970, if local time is UTC.
    assert 1_738_324_800 * 10**9 == profile.capture["t0_unix_ns"].item()
    assert "its start is local time without a zone, taken as UTC" in profile.notes
    assert read_report(tmp_path, start_time="noon").capture["t0_unix_ns"].isna().all()


CPU = {"cpu_time": 1.0, "alg_bw": 0.1, "bus_bw": 0.2, "nwrong": 0.0}  # with -C 1


@pytest.mark.parametrize(
    ("result", "times", "note"),
    [
        # 1.234567 us are 1,234.567 ns, read as text and not as a sum of powers of two.
        (files.result(8, 2, HALF, HALF), {"out_of_place": 1234.567, "in_place": 1234.567}, ""),
        (files.result(8, 2, None, ("nan", *HALF[1:])), {"in_place": None}, ""),
        (files.result(8, 2, None, None, in_place=CPU), {"in_place": None}, "times of the CPU"),
        (
            files.result(8, 2, None, (*HALF[:3], 5.0)),
            {"in_place": 1234.567},
            "data corrupt in 1 rows",
        ),
    ],
    ids=["exact", "nan", "cpu", "wrong"],
)
def test_a_result_has_the_halves_that_were_measured(
    result: dict[str, Any], times: dict[str, float | None], note: str, tmp_path: Path
) -> None:
    profile = read_report(tmp_path, results=[result])
    assert times == dict(values(profile.table("COLLECTIVES"), "placement", "dur_ns"))
    words = ("times of the CPU", "data corrupt in 1 rows", "validation off")
    assert [note] * bool(note) == [
        word for word in words if any(word in told for told in profile.notes)
    ]


def test_reports_that_are_cut_or_none(tmp_path: Path) -> None:
    path = files.reported(tmp_path / "out.json", files.report())
    whole = nccl.read(path).table("COLLECTIVES")
    text = path.read_text()
    for part in (0.5, 0.7, 0.9, 0.97):
        path.write_text(text[: int(len(text) * part)])
        profile = nccl.read(path)
        kept = profile.table("COLLECTIVES")
        assert 0 < len(kept) <= len(whole)
        assert len(kept) % 2 == 0
        assert kept["dur_ns"].isin(whole["dur_ns"]).all()
        assert "the file ends in the middle of a result, which is left out" in profile.notes
    path.write_text(text[: text.index('"results"')])
    with pytest.raises(
        ReadError, match=r"out\.json: the report of nccl-tests ends before its results"
    ):
        nccl.read(path)
    for more in [
        *({"results": [result]} for result in ({"size": 8}, "text")),
        *({"results": [files.result(size, 2, HALF, HALF)]} for size in (2**70, -8)),
        # Only null stands for a half that was not measured.
        {"results": [files.result(8, 2, HALF, HALF, in_place=0)]},
        {"results": [files.result(8, 2, HALF, HALF, out_of_place={"time": "1e99999999"})]},
        {"config": {"devices": [{"hostname": "a", "device": 2**40, "device_info": "x"}]}},
        {"config": "text"},
    ]:
        with pytest.raises(ReadError, match=r"out\.json: not as nccl-tests writes a report \("):
            read_report(tmp_path, **more)


PREFIXED = "reports/nccl_tests_rank_prefix/nccl.txt"
UNPREFIXED = "monitor/nccl_tests__cluster01_nccl_N1_G8_cnode3-002.log"


def test_a_rank_that_is_printed_again_inside_a_row_is_no_part_of_it(tmp_path: Path) -> None:
    """mpiexec -prepend-rank writes [0] before each piece of a line that is printed apart."""
    rows = [f"[0] {line}" for line in files.table(inner=torn("[0]", "[0]"))]
    table = nccl.read(files.written(tmp_path / "all_reduce.txt", rows)).table("COLLECTIVES")
    assert NS == table["dur_ns"].tolist()


def test_a_real_log_with_ranks_inside_rows_has_the_rows_of_the_log_without(profiles: Path) -> None:
    columns = ["operation", "bytes", "dur_ns", "ranks"]
    tables = [
        nccl.read(profiles / name).table("COLLECTIVES")[columns] for name in (PREFIXED, UNPREFIXED)
    ]
    assert len(tables[0]) == 100  # 50 rows, out of place and in place
    assert tables[0].to_numpy().tolist() == tables[1].to_numpy().tolist()

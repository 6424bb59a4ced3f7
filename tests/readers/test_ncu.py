"""The pages of Nsight Compute: which files are claimed, and every quirk of what surrounds the rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from readers import ncu_files as files

from perfkit.errors import ReadError
from perfkit.readers import ncu, recognise
from perfkit.readers.ncu import log
from perfkit.readers.ncu.log import base, notation, numbers
from perfkit.readers.ncu.pages import blocks

WRITERS = pytest.mark.parametrize("write", [files.raw, files.details], ids=["raw", "details"])
OUTPUT = ("step 1 of 2", '"quoted" output', "==WARNING== something")
SAXPY = "saxpy(int, float, float *, float *)"


def everything(path: Path) -> dict[str, pd.DataFrame]:
    profile = files.read(path)
    return {name: profile.table(name) for name in profile.loaders}


def counters(path: Path) -> tuple[list[tuple[str, float]], str]:
    """Metrics and values of COUNTERS, and the one note, if any."""
    profile = files.read(path)
    (note,) = profile.notes or ("",)
    table = profile.table("COUNTERS")
    return list(zip(table["metric"], table["value"], strict=True)), note


def joined(write, folder: Path, *launches: files.Measured) -> Path:
    content = b"".join(write(folder / "one.csv", launch).read_bytes() for launch in launches)
    (folder / "both.csv").write_bytes(content)
    return folder / "both.csv"


def metrics(*texts: str, **units: str) -> files.Metrics:
    return {
        f"{name}.sum": (units.get(name, ""), text)
        for name, text in zip("abcdefghij", texts, strict=False)
    }


LAYOUTS = [
    {"bom": True},
    {"newline": "\r\n"},
    {"end": True},
    {"log": ()},
    {"log": (*files.LOG, *OUTPUT)},
]
LAYOUTS += [{"log": (*files.LOG, '"5","looks like a row"')}, {"between": OUTPUT}]
LAYOUTS += [{"bom": True, "encoding": "utf-16-le"}]  # as PowerShell redirects


@WRITERS
def test_what_surrounds_the_rows_changes_nothing(write, tmp_path: Path) -> None:
    plain = everything(write(tmp_path / "plain.csv", files.full(0), files.full(1)))
    for layout in LAYOUTS:
        other = everything(write(tmp_path / "other.csv", files.full(0), files.full(1), **layout))
        assert list(plain) == list(other), layout
        for name, frame in plain.items():
            pd.testing.assert_frame_equal(frame, other[name])
    # A launch reads the same from the wide and from the long page; only the long one has rules.
    wide = everything(files.raw(tmp_path / "raw.csv", files.full(0), files.full(1)))
    assert set(wide) == set(plain) - {"RULES"}
    for name in ("LAUNCHES", "COUNTERS", "STALLS"):
        pd.testing.assert_frame_equal(wide[name], plain[name])
    # Ids start again with every process: two processes with ids 0 and 1 are four launches.
    two = [replace(files.full(i), process=p, device=str(p)) for p in (0, 1) for i in (0, 1)]
    launches = files.read(write(tmp_path / "page.csv", *two)).table("LAUNCHES")
    columns = ["launch", "gpu", "full_name", "grid_blocks", "block_threads"]
    assert [[i, i // 2, SAXPY, 8, 128] for i in range(4)] == launches[columns].to_numpy().tolist()
    assert launches["name"].iloc[0].startswith("saxpy")
    # Two runs appended to one log with their headers: the launches of the second follow, with their rules.
    tables = everything(
        joined(write, tmp_path, files.full(0), replace(files.full(0), name="later"))
    )
    assert [SAXPY, "later"] == tables["LAUNCHES"]["full_name"].tolist()
    assert {0, 1} == set(tables["STALLS"]["launch"])
    assert write is files.raw or [0, 1] == tables["RULES"]["launch"].tolist()
    # Up to 2022 the sizes stand among the metrics, the device nowhere or among them; sizes nowhere are not zero.
    sizes = {
        "launch__grid_size": ("", "1,024"),
        "launch__block_size": ("", "256"),
        "x.sum": ("", "1"),
    }
    rows = []
    for shown in (sizes, {**sizes, "launch__device_id": ("", "3")}, {"x.sum": ("", "1")}):
        path = write(tmp_path / "old.csv", files.Measured(shown), lead=files.LEAD)
        rows += (
            files.read(path)
            .table("LAUNCHES")[["gpu", "grid_blocks", "block_threads"]]
            .to_numpy()
            .tolist()
        )
    assert [[-1, 1024, 256], [3, 1024, 256], [-1, pd.NA, pd.NA]] == rows


def test_columns_names_and_labels(tmp_path: Path) -> None:
    # The columns of NVTX ranges before the kernel's name are left out of the counters.
    column = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
    path = files.raw(tmp_path / "nvtx.csv", files.Measured({column: ("", "3"), "x.sum": ("", "1")}))
    assert ([("x.sum", 1.0)], "") == counters(path)
    # ncu prints `unnamed>::k` for `<unnamed>::k`; a name that is whole stays.
    names = ["void unnamed>::k<a::<unnamed>::b>(int)", "n::<unnamed>::k(int)"]
    path = files.raw(
        tmp_path / "n.csv", *(replace(files.full(i), name=n) for i, n in enumerate(names))
    )
    mended = files.read(path).table("LAUNCHES")["full_name"].tolist()
    assert ["void <unnamed>::k<a::<unnamed>::b>(int)", names[1]] == mended
    # A raw page in Kbyte loses digits of small launches.
    found, note = counters(
        files.raw(tmp_path / "a.csv", files.Measured({"x.sum": ("Kbyte", "1.5")}))
    )
    assert [("x.sum", 1500.0)] == found
    assert "--print-units base" in note
    # A row that is there again, equal in every cell, is no second launch.
    profile = files.read(
        files.raw(tmp_path / "page.csv", files.full(0), files.full(1), files.full(0))
    )
    assert 2 == len(profile.table("LAUNCHES"))
    assert 1 == sum(
        "stand twice in the page, equal in every cell, and count once: 1" in n
        for n in profile.notes
    )

    def found(metrics: files.Metrics) -> list[tuple[str, float]]:
        return counters(files.details(tmp_path / "a.csv", files.Measured(metrics)))[0]

    shown = {"Duration": ("us", "336.70"), "SOL SM": ("%", "49.01"), "No such label": ("", "7")}
    assert {
        "gpu__time_duration.sum": 336_700.0,
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": 49.01,
        "dram__bytes.sum.per_second": 2e9,  # the unit tells two throughputs apart
        "No such label": 7.0,
    } == pytest.approx(dict(found({**shown, "Memory Throughput": ("Gbyte/s", "2")})))
    two = files.details(tmp_path / "b.csv", files.Measured({"Memory Throughput": ("%", "53.42")}))
    assert 0.5342 == pytest.approx(files.read(two).table("LAUNCHES")["memory_frac"].iloc[0])
    # Two sections show one metric: it counts once, as in the first row.
    cycles = {"SM Active Cycles": ("cycle", "10"), "Average SM Active Cycles": ("cycle", "11")}
    assert [("sm__cycles_active.avg", 10.0)] == found(cycles)


UNITS = {
    **dict.fromkeys(("ms", "msecond"), ("ns", 1e6)),
    **dict.fromkeys(("Gbyte", "GB"), ("byte", 1e9)),
    **dict.fromkeys(("Ghz", "cycle/nsecond"), ("hz", 1e9)),
    **dict.fromkeys(("Tbyte/s", "Tbyte/second", "TB/s"), ("byte/s", 1e12)),
    "%/Kbyte": ("%/byte", 1e3),
    # What is no amount of time, bytes or cycles stays.
    **{
        unit: (unit, 1.0)
        for unit in ("%", "", "inst/cycle", "register/thread", "byte/cycle", "warp")
    },
}


DECIDED, COUNTED = (
    {"launch__grid_size": ("", grid), "a.sum": ("", text)}
    for grid, text in (("2,048", "1,234"), ("2.048", "1.234"))
)


@WRITERS
@pytest.mark.parametrize(
    ("shown", "values", "noted"),
    [
        (metrics("54,207", "5.40", "1,054,207.5"), [54207.0, 5.4, 1054207.5], ""),
        # Where a page also writes 5,40, its commas are decimal points.
        (metrics("54.207", "5,40", "1.054.207,5"), [54207.0, 5.4, 1054207.5], ""),
        # Nothing else tells; a metric that is a whole number does.
        (
            metrics("1,234"),
            [1234.0],
            "whether a comma or a point begins the decimals ('1,234' of 'a.sum')",
        ),
        *((DECIDED, [1234.0, 2048.0], ""), (COUNTED, [1234.0, 2048.0], "")),
        # ncu writes two decimals or six: 1.234 may be 1234 of a page that somebody changed.
        (
            metrics("5.40", "1.234"),
            [5.4, 1.234],
            "three decimals, which ncu does not write ('1.234' of 'b.sum')",
        ),
        # What is no number is not measured: words, empty cells and infinities are no rows.
        (
            metrics("n/a", "no data", "", "CachePreferNone", "inf", "nan", "791 (50; 50)"),
            [791.0],
            "",
        ),
        # What begins as a number or has a unit should be one.
        (
            metrics("8x6", "x7", "n/a", "all", "1", b="inst", c="inst"),
            [1.0],
            "left out: 2 (first: ",
        ),
        ({"a.sum": ("byte", "1500")}, [1500.0], ""),  # in base units there is nothing to say
    ],
    ids=[
        "points",
        "commas",
        "either",
        "whole",
        "whole dotted",
        "three",
        "words",
        "unreadable",
        "base",
    ],
)
def test_numbers_are_read_as_their_page_writes_them(
    write, shown: files.Metrics, values: list[float], noted: str, tmp_path: Path
) -> None:
    found, note = counters(write(tmp_path / "page.csv", files.Measured(shown)))
    assert values == [value for _, value in found]
    assert noted in note
    assert bool(noted) == bool(note)


def test_numbers_of_pages(tmp_path: Path) -> None:
    for text, value in [
        *(
            ("5,40", 5.4),
            ("1.234,5", 1234.5),
            ("1.234.567", 1234567.0),
            ("0,123", 0.123),
            ("12345,678", 12345.678),
        ),
        *(("1\u202f234,56", 1234.56), ("8,6 (1; 2)", 8.6), ("1,5e5", 150_000.0)),
    ]:
        exchanged = text.translate(
            str.maketrans(".,", ",.")
        )  # decides for points, with the same value
        comma, point = notation([("a", [text])]), notation([("a", [exchanged])])
        assert (None, ("a", text)) == (comma.point, comma.comma)
        assert (("a", exchanged), None) == (point.point, point.comma)
        assert (
            [value]
            == numbers([text], decimal_commas=True).tolist()
            == numbers([exchanged]).tolist()
        )
    for text in ["1,234", "1.234", "1234", "1 234", "", "all", "1.2.3", "12,34,567", "(1, 2, 3)"]:
        shown = notation([("a", [text])])
        assert (None, None) == (shown.point, shown.comma)
    assert [np.inf, np.inf] == numbers(
        ["1e400", "1,000e400"]
    ).tolist()  # for the ranges of the tables to find
    # inf is how ncu writes what it has not.
    assert np.isnan(numbers(["inf", "-inf", "nan", "n/a", "no data", "", "CachePreferNone"])).all()
    occupancy = {
        "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "104.70")
    }  # as the vendor itself writes
    launch = files.Measured({"gpu__time_duration.sum": ("ns", "1e400"), **occupancy})
    row = files.read(files.raw(tmp_path / "a.csv", launch)).loaders["LAUNCHES"]().iloc[0]
    assert (np.inf, 1.047) == pytest.approx((row["dur_ns"], row["achieved_occupancy_frac"]))
    assert UNITS == {unit: base(unit) for unit in UNITS}


@WRITERS
def test_how_numbers_are_written_is_told_by_values_alone(write, tmp_path: Path) -> None:
    rule = ("Rule", "OPT", "5,40 of 1,5", "global", "18.52")
    launch = replace(
        files.Measured({"gpu__time_duration.sum": ("us", "84.48")}),
        cc="8,6",
        rules=(rule,),
        name="5,40",
    )
    profile = files.read(write(tmp_path / "page.csv", launch))
    assert [84_480.0] == profile.table("LAUNCHES")["dur_ns"].tolist()
    assert () == profile.notes
    # 1,234 alone is read as the other page of the file tells.
    path = joined(
        write, tmp_path, *(files.Measured({"a.sum": ("", text)}) for text in ("1,234", "5,40"))
    )
    assert [1.234, 5.4] == files.read(path).table("COUNTERS")["value"].tolist()
    # What is no whole number, or too large, is counted with the cells that are left out.
    launch = replace(
        files.Measured(metrics("1")),
        device=str(2**64),
        grid="(1, x, 1)",
        block=f"({'9' * 5000}, 1, 1)",
    )
    profile = files.read(write(tmp_path / "page.csv", launch))
    columns = ["gpu", "grid_blocks", "block_threads"]
    assert [[-1, pd.NA, pd.NA]] == profile.table("LAUNCHES")[columns].to_numpy().tolist()
    (note,) = profile.notes
    assert "left out: 3 (first: " in note
    assert [None] * 4 == [blocks(text) for text in ("", "()", "(1, x, 1)", "-1")]
    # Both cells are named, however many rows stand between them.
    between = [files.Measured({"b.sum": ("", "7")}, number=1 + i) for i in range(300)]
    first, last = (
        files.Measured({"a.sum": ("", "49.01")}),
        files.Measured({"c.sum": ("", "8,6")}, number=301),
    )
    path = write(tmp_path / "page.csv", first, *between, last)
    with pytest.raises(
        ReadError, match=r"page\.csv: the page mixes .*'49\.01' of 'a\.sum'.*'8,6' of 'c\.sum'"
    ):
        ncu.read(path)
    # A time in tsecond would be off by thousands: it is not measured, with a note.
    for metric, unit in [
        ("gpu__time_duration.sum", "tsecond"),
        ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "percent"),
    ]:
        found, note = counters(
            write(tmp_path / "page.csv", files.Measured({metric: (unit, "5"), "x.sum": ("", "1")}))
        )
        assert [("x.sum", 1.0)] == found
        assert f"(first: '{unit}' of 'unit of {metric}')" in note


def test_what_is_claimed_and_why_a_log_without_kernels_is_refused(tmp_path: Path) -> None:
    for content in [
        'Metric Name,Metric Unit,Minimum,Maximum\n"Duration","us","1","2"\n',
        '"Metric Name","k1","k2"\n"Duration","1","2"\n',
        "# Notes\n\n==PROF== Connected to process 7\n",
        '"ID","Name"\n"0","Process ID"\n',
    ]:
        (tmp_path / "other.csv").write_text(content)
        assert ncu.sniff(tmp_path / "other.csv") is False
    for content, said in [
        (
            "==PROF== Connected\n==ERROR== No access to counters.\n",
            "ncu said: No access to counters. Mend",
        ),
        ("==PROF== Connected\r\n==ERROR== one.\r\n==ERROR== two.\r\n", "ncu said: one. two. Mend"),
        # Quoted without what a terminal would obey, and cut.
        (f"==PROF== Connected\n==ERROR== \x1b[31mred{'x' * 5000}\n", "ncu said: ?[31mredxxx"),
        (
            "==WARNING== No kernels were profiled.\n",
            "no kernels were profiled. Check that the program launches",
        ),
        (
            '==PROF== Profiling "k" - 0: 0%....100% - 8 passes\n',
            "lists 1 profiled kernels and no CSV page",
        ),
        ('"ID","Process ID","Kernel Name","Metric Name"\n', "a header and no rows"),
    ]:
        path = tmp_path / "run.log"
        path.write_bytes(content.encode())
        assert "ncu" == recognise(path)
        with pytest.raises(ReadError) as caught:
            ncu.read(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert said in str(caught.value)
        assert len(str(caught.value)) < 1000


@WRITERS
def test_what_is_cut_or_damaged(write, tmp_path: Path) -> None:
    path = write(tmp_path / "page.csv", files.full(0), files.full(1), end=False)
    whole = path.read_bytes()
    for size in range(whole.rindex(b"\n") + 2, len(whole), 3):
        path.write_bytes(whole[:size])
        with pytest.raises(ReadError, match=r"page\.csv: "):
            ncu.read(path)
    # A row within the page that is too short.
    lines = whole.decode().splitlines()
    lines[-2] = ",".join(lines[-2].split(",")[:3])
    path.write_text("\n".join(lines))
    with pytest.raises(ReadError, match=r"row \d+ has 3 fields, the header has \d+"):
        ncu.read(path)
    for first in ['"-5"', '"1e300"', '"1",x"1"']:
        path = write(tmp_path / "page.csv", files.full(0), files.full(1), files.full(2))
        lines = path.read_text().splitlines()
        at = next(i for i, line in enumerate(lines) if line.startswith('"1",'))
        lines[at] = first + lines[at].removeprefix('"1"')
        path.write_text("\n".join(lines) + "\n")
        profile = files.read(path)
        assert (2 if write is files.raw else 3) == len(profile.table("LAUNCHES"))
        assert 1 == sum(f"(first: line {at + 1}, " in note for note in profile.notes)
    for cell, finding in [
        ('"a"p"p"', "cannot be divided into cells"),
        (f'"{"x" * 200_000}"', r"cannot be divided into cells \(field larger"),
        ('"app', "a quote in it is never closed"),
    ]:
        path = write(tmp_path / "page.csv", files.full(0), files.full(1))
        content = path.read_bytes().decode()
        at = content.index('\n"1",') + 1
        path.write_bytes((content[:at] + content[at:].replace('"app"', cell, 1)).encode())
        line = content[:at].count("\n") + 1
        with pytest.raises(
            ReadError, match=rf"page\.csv: the row that begins in line {line} .*{finding}"
        ):
            ncu.read(path)
    log = (*files.LOG, "==ERROR== The application returned an error code (1).")
    profile = files.read(write(tmp_path / "page.csv", files.full(), log=log))
    assert 1 == len(profile.table("LAUNCHES"))
    assert "ncu reported: The application returned an error code (1)." in profile.notes
    log = ("==WARNING== Simulated: two launches; no GPU ran", *files.LOG)
    simulated = files.read(write(tmp_path / "page.csv", files.full(), log=log))
    assert "simulated, not measured: two launches; no GPU ran" in simulated.notes


@WRITERS
@pytest.mark.parametrize("is_ended", [True, False])
def test_a_page_that_ends_after_a_quote_may_have_lost_rows(
    write, is_ended: bool, tmp_path: Path
) -> None:
    page = write(tmp_path / "page.csv", files.full(0), files.full(1), end=is_ended)
    told = "the last row has no line break, which ncu writes: rows after it may be lost"
    assert is_ended == (told not in files.read(page).notes)


def test_details_and_raw_pages_that_are_not_whole(tmp_path: Path) -> None:
    path = files.details(
        tmp_path / "page.csv", replace(files.full(0), rules=()), replace(files.full(1), rules=())
    )
    assert () == files.read(path).notes
    lines, count = path.read_text().splitlines(), len(files.full().metrics)
    path.write_text("\n".join([*lines[:-5], ""]))  # cut between two rows
    (note,) = files.read(path).notes
    assert (
        f"the last launch has only the first {count - 5} of the {count} metrics of the one before it"
        in note
    )
    # Sorted by metric by somebody, or with one changed number of a launch.
    path.write_text("\n".join([*lines[:4], lines[4].replace('"0"', '"1"', 1), *lines[5:], ""]))
    (note,) = files.read(path).notes
    assert "(places: 2)" in note
    path = files.raw(tmp_path / "page.csv", files.full(0), files.full(1))
    lines = path.read_text().splitlines()
    units = next(i for i, line in enumerate(lines) if line.startswith('"",'))
    for changed, finding in (
        ([*lines[:units], *lines[units + 1 :]], "has no row of units"),
        ([*lines[: units + 1], *lines[units:]], "row 2 has no number of a launch"),
        ([*lines[:-1], '""' + lines[-1].removeprefix('"1"')], "row 3 has no number of a launch"),
    ):
        path.write_text("\n".join(changed))
        with pytest.raises(ReadError, match=rf"page\.csv: .*{finding}"):
            ncu.read(path)
    for column, other, words in [
        ("Kernel Name", "Other", "no column 'Kernel Name'"),
        ("Metric Value", "Other", "no column 'Metric Value'"),
        (
            "Process Name",
            "Kernel Name",
            "two columns 'Kernel Name'",
        ),  # which of the two would hold nobody knows
    ]:
        for write in (files.raw, files.details)[column.startswith("Metric") :]:
            path = write(tmp_path / "page.csv", files.full())
            path.write_text(path.read_text().replace(f'"{column}"', f'"{other}"'))
            with pytest.raises(ReadError, match=f"the page has {words}"):
                ncu.read(path)
    rule = ("SOLBottleneck", "OPT", 'first line,\nsecond "line"', "local", "50")
    launch = replace(files.full(), rules=(rule,), metrics={})
    profile = files.read(files.details(tmp_path / "page.csv", launch))
    assert {"LAUNCHES": 1, "RULES": 1} == {
        name: len(profile.table(name)) for name in profile.loaders
    }
    assert ['first line,\nsecond "line"'] == profile.table("RULES")["message"].tolist()


def test_what_is_endless_or_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "LONGEST", 5000)
    path = files.raw(tmp_path / "page.csv", *map(files.full, range(40)))
    whole = path.read_text()
    path.write_text(whole + "\0" * 10_000)
    with pytest.raises(ReadError, match=r"page\.csv: a line is longer than 5,000 characters"):
        ncu.read(path)
    path.write_text(whole.replace('"7","app"', '"7","app', 1))
    with pytest.raises(
        ReadError, match=r"page\.csv: the row that begins in line 5 goes on for more than 5,000"
    ):
        ncu.read(path)
    # Launches that have no metric in common would make a table of their product.
    monkeypatch.setattr(ncu.pages, "LARGEST", 50)
    launches = [files.Measured({f"m{i}.sum": ("", "1")}, number=i) for i in range(8)]
    with pytest.raises(
        ReadError, match=r"page\.csv: the page has 8 launches and 8 different metrics"
    ):
        ncu.read(files.details(tmp_path / "page.csv", *launches))


def duration_of(text: str) -> files.Measured:
    return files.Measured({"gpu__time_duration.sum": ("ns", text)})


@WRITERS
def test_a_launch_whose_duration_is_nan_is_counted_in_a_note(write, tmp_path: Path) -> None:
    path = joined(write, tmp_path, *(duration_of(text) for text in ("1000", "nan", "3000")))
    assert any(
        "1 of 3 launches have no duration (number 1, from 0)" in note
        for note in files.read(path).notes
    )


@WRITERS
def test_launches_that_all_have_a_duration_need_no_note(write, tmp_path: Path) -> None:
    path = joined(write, tmp_path, *(duration_of(text) for text in ("1000", "2000")))
    assert () == files.read(path).notes

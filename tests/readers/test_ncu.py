"""The pages of Nsight Compute: which files are claimed, and every quirk of what surrounds the rows."""

from __future__ import annotations

from collections.abc import Callable
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
    """All tables of a file."""
    profile = files.read(path)
    return {name: profile.table(name) for name in profile.loaders}


def counters(path: Path) -> tuple[list[tuple[str, float]], str]:
    """Metrics and values of COUNTERS, and the one note, if any."""
    profile = files.read(path)
    (note,) = profile.notes or ("",)
    table = profile.table("COUNTERS")
    return list(zip(table["metric"], table["value"], strict=True)), note


def metrics(*texts: str, **units: str) -> files.Metrics:
    """Metrics a.sum, b.sum, ... with these texts, and without a unit where none is given."""
    return {f"{name}.sum": (units.get(name, ""), text) for name, text in zip("abcdefghij", texts, strict=False)}


@WRITERS
@pytest.mark.parametrize(
    "layout",
    [
        {"bom": True},
        {"newline": "\r\n"},
        {"end": True},
        {"log": ()},
        {"log": (*files.LOG, *OUTPUT)},
        {"log": (*files.LOG, '"5","looks like a row"')},
        {"between": OUTPUT},
        {"bom": True, "encoding": "utf-16-le"},
    ],
    ids=["bom", "crlf", "final newline", "no log", "output before", "row before", "output between", "powershell"],
)
def test_what_surrounds_the_rows_changes_nothing(write, layout, tmp_path: Path) -> None:
    """A byte order mark, line ends, log lines and the program's output leave the tables as they are."""
    plain = everything(write(tmp_path / "plain.csv", files.full(0), files.full(1)))
    other = everything(write(tmp_path / "other.csv", files.full(0), files.full(1), **layout))
    assert list(plain) == list(other)
    for name, frame in plain.items():
        pd.testing.assert_frame_equal(frame, other[name])


def test_both_pages_say_the_same(tmp_path: Path) -> None:
    """A launch reads the same from the wide and from the long page; only the long one has rules."""
    wide = everything(files.raw(tmp_path / "raw.csv", files.full(0), files.full(1)))
    long = everything(files.details(tmp_path / "details.csv", files.full(0), files.full(1)))
    assert {"RULES"} == set(long) - set(wide)
    for name in ("LAUNCHES", "COUNTERS", "STALLS"):
        pd.testing.assert_frame_equal(wide[name], long[name])


@WRITERS
def test_launches_are_numbered_by_position(write, tmp_path: Path) -> None:
    """Ids start again with every process: two processes with ids 0 and 1 are four launches.

    Grid (4, 2, 1) is 8 blocks, block (128, 1, 1) 128 threads; the name is kept and shortened.
    """
    two = [replace(files.full(i), process=p, device=str(p)) for p in (0, 1) for i in (0, 1)]
    launches = files.read(write(tmp_path / "page.csv", *two)).table("LAUNCHES")
    columns = ["launch", "gpu", "full_name", "grid_blocks", "block_threads"]
    assert [[i, i // 2, SAXPY, 8, 128] for i in range(4)] == launches[columns].to_numpy().tolist()
    assert launches["name"].iloc[0].startswith("saxpy")


@WRITERS
def test_pages_printed_one_after_the_other_are_one_report(write, tmp_path: Path) -> None:
    """Two runs appended to one log with their headers: the launches of the second follow, with their rules."""
    first = write(tmp_path / "a.csv", files.full(0), files.full(1), end=True)
    second = write(tmp_path / "b.csv", replace(files.full(0), name="later"), end=True)
    both = tmp_path / "both.csv"
    both.write_bytes(first.read_bytes() + second.read_bytes())
    tables = everything(both)
    assert [SAXPY] * 2 + ["later"] == tables["LAUNCHES"]["full_name"].tolist()
    assert {0, 1, 2} == set(tables["STALLS"]["launch"])
    assert write is files.raw or [0, 1, 2] == tables["RULES"]["launch"].tolist()


@WRITERS
def test_old_pages_have_no_device_and_no_sizes(write, tmp_path: Path) -> None:
    """Up to 2022 the sizes stand among the metrics, the device nowhere or among them; sizes nowhere are not zero."""
    sizes = {"launch__grid_size": ("", "1,024"), "launch__block_size": ("", "256"), "x.sum": ("", "1")}
    rows = []
    for shown in (sizes, {**sizes, "launch__device_id": ("", "3")}, {"x.sum": ("", "1")}):
        path = write(tmp_path / "old.csv", files.Measured(shown), lead=files.LEAD)
        rows += files.read(path).table("LAUNCHES")[["gpu", "grid_blocks", "block_threads"]].to_numpy().tolist()
    assert [[-1, 1024, 256], [3, 1024, 256], [-1, pd.NA, pd.NA]] == rows


def test_nvtx_columns_are_no_metrics(tmp_path: Path) -> None:
    """The columns of NVTX ranges before the kernel's name are left out of the counters."""
    column = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
    path = files.raw(tmp_path / "nvtx.csv", files.Measured({column: ("", "3"), "x.sum": ("", "1")}))
    assert ([("x.sum", 1.0)], "") == counters(path)


def test_a_name_gets_its_lost_bracket_back(tmp_path: Path) -> None:
    """ncu prints `unnamed>::k` for `<unnamed>::k`; a name that is whole stays."""
    names = ["void unnamed>::k<a::<unnamed>::b>(int)", "n::<unnamed>::k(int)"]
    path = files.raw(tmp_path / "n.csv", *(replace(files.full(i), name=n) for i, n in enumerate(names)))
    expected = ["void <unnamed>::k<a::<unnamed>::b>(int)", "n::<unnamed>::k(int)"]
    assert expected == files.read(path).table("LAUNCHES")["full_name"].tolist()


def test_labels_of_the_details_page_are_metrics(tmp_path: Path) -> None:
    """Labels of any version become the metrics' names; the unit tells two throughputs apart."""
    shown = {"Duration": ("us", "336.70"), "SOL SM": ("%", "49.01"), "No such label": ("", "7")}
    found, _ = counters(
        files.details(tmp_path / "a.csv", files.Measured({**shown, "Memory Throughput": ("Gbyte/s", "2")}))
    )
    assert {
        "gpu__time_duration.sum": 336_700.0,
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": 49.01,
        "dram__bytes.sum.per_second": 2e9,
        "No such label": 7.0,
    } == pytest.approx(dict(found))
    two = files.details(tmp_path / "b.csv", files.Measured({"Memory Throughput": ("%", "53.42")}))
    assert 0.5342 == pytest.approx(files.read(two).table("LAUNCHES")["memory_frac"].iloc[0])
    # Two sections show one metric: it counts once, as in the first row.
    cycles = {"SM Active Cycles": ("cycle", "10"), "Average SM Active Cycles": ("cycle", "11")}
    assert [("sm__cycles_active.avg", 10.0)] == counters(files.details(tmp_path / "c.csv", files.Measured(cycles)))[0]


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        *((u, ("ns", 1.0)) for u in ("ns", "nsecond")),
        *((u, ("ns", 1e6)) for u in ("ms", "msecond")),
        *((u, ("ns", 1e9)) for u in ("s", "second")),
        *((u, ("byte", 1e9)) for u in ("Gbyte", "GB")),
        *((u, ("hz", 1e9)) for u in ("Ghz", "GHz", "cycle/ns", "cycle/nsecond")),
        *((u, ("hz", 1e6)) for u in ("Mhz", "cycle/us", "cycle/usecond")),
        *((u, ("hz", 1.0)) for u in ("hz", "cycle/second")),
        *((u, ("byte/s", 1e12)) for u in ("Tbyte/s", "Tbyte/second", "TB/s")),
        *((u, (u, 1.0)) for u in ("%", "", "inst/cycle", "register/thread", "byte/cycle", "warp")),
        ("%/Kbyte", ("%/byte", 1e3)),
    ],
)
def test_units_of_all_versions(unit: str, expected: tuple[str, float]) -> None:
    """Both spellings come to the base unit; what is no amount of time, bytes or cycles stays."""
    assert expected == base(unit)


DECIDED, COUNTED = (
    {"launch__grid_size": ("", grid), "a.sum": ("", text)} for grid, text in (("2,048", "1,234"), ("2.048", "1.234"))
)


@WRITERS
@pytest.mark.parametrize(
    ("shown", "values", "noted"),
    [
        (metrics("54,207", "5.40", "1,054,207.5"), [54207.0, 5.4, 1054207.5], ""),
        # Where a page also writes 5,40, its commas are decimal points.
        (metrics("54.207", "5,40", "1.054.207,5"), [54207.0, 5.4, 1054207.5], ""),
        # Nothing else tells; a metric that is a whole number does.
        (metrics("1,234"), [1234.0], "whether a comma or a point begins the decimals ('1,234' of 'a.sum')"),
        (DECIDED, [1234.0, 2048.0], ""),
        (COUNTED, [1234.0, 2048.0], ""),
        # ncu writes two decimals or six: 1.234 may be 1234 of a page that somebody changed.
        (metrics("5.40", "1.234"), [5.4, 1.234], "three decimals, which ncu does not write ('1.234' of 'b.sum')"),
        # What is no number is not measured: words, empty cells and infinities are no rows.
        (metrics("n/a", "no data", "", "CachePreferNone", "inf", "nan", "791 (50; 50)"), [791.0], ""),
        # What begins as a number or has a unit should be one.
        (metrics("8x6", "x7", "n/a", "all", "1", b="inst", c="inst"), [1.0], "left out: 2 (first: "),
        # In base units there is nothing to say.
        ({"a.sum": ("byte", "1500")}, [1500.0], ""),
    ],
    ids=["points", "commas", "either", "whole", "whole dotted", "three", "words", "unreadable", "base"],
)
def test_numbers_are_read_as_their_page_writes_them(
    write, shown: files.Metrics, values: list[float], noted: str, tmp_path: Path
) -> None:
    """54,207 is a number of five digits; what a page leaves open has a note."""
    found, note = counters(write(tmp_path / "page.csv", files.Measured(shown)))
    assert values == [value for _, value in found]
    assert noted in note
    assert bool(noted) == bool(note)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("5,40", 5.4), ("1.234,5", 1234.5), ("1.234.567", 1234567.0), ("0,123", 0.123), ("12345,678", 12345.678)),
        *(("1\u202f234,56", 1234.56), ("8,6 (1; 2)", 8.6), ("1,5e5", 150_000.0)),
    ],
)
def test_numbers_that_only_a_page_with_decimal_commas_holds(text: str, value: float) -> None:
    """Each decides for decimal commas; with points and commas exchanged it decides for points, with the same value."""
    exchanged = text.translate(str.maketrans(".,", ",."))
    comma, point = notation([("a", [text])]), notation([("a", [exchanged])])
    assert (None, ("a", text)) == (comma.point, comma.comma)
    assert (("a", exchanged), None) == (point.point, point.comma)
    assert [value] == numbers([text], decimal_commas=True).tolist() == numbers([exchanged]).tolist()


@pytest.mark.parametrize("text", ["1,234", "1.234", "1234", "1 234", "", "all", "1.2.3", "12,34,567", "(1, 2, 3)"])
def test_numbers_that_decide_nothing(text: str) -> None:
    """Three digits after a point or a comma may be thousands; what is no number is no sign of anything."""
    shown = notation([("a", [text])])
    assert (None, None) == (shown.point, shown.comma)


@WRITERS
def test_only_values_of_metrics_tell_how_numbers_are_written(write, tmp_path: Path) -> None:
    """A compute capability of 8,6, a rule and a process with commas leave 84,480 ns what it is."""
    rule = ("Rule", "OPT", "5,40 of 1,5", "global", "18.52")
    launch = replace(files.Measured({"gpu__time_duration.sum": ("us", "84.48")}), cc="8,6", rules=(rule,), name="5,40")
    profile = files.read(write(tmp_path / "page.csv", launch))
    assert [84_480.0] == profile.table("LAUNCHES")["dur_ns"].tolist()
    assert () == profile.notes


@WRITERS
@pytest.mark.parametrize("far", [0, 3000], ids=["next", "far"])
def test_a_page_that_mixes_points_and_commas_is_refused(write, far: int, tmp_path: Path) -> None:
    """Both cells are named, however many rows stand between them."""
    between = [files.Measured({"b.sum": ("", "7")}, number=1 + i) for i in range(far)]
    first, last = files.Measured({"a.sum": ("", "49.01")}), files.Measured({"c.sum": ("", "8,6")}, number=far + 1)
    path = write(tmp_path / "page.csv", first, *between, last)
    with pytest.raises(ReadError, match=r"page\.csv: the page mixes .*'49\.01' of 'a\.sum'.*'8,6' of 'c\.sum'"):
        ncu.read(path)


@WRITERS
def test_pages_of_one_file_write_numbers_alike(write, tmp_path: Path) -> None:
    """1,234 alone is read as the other page of the file tells."""
    first = write(tmp_path / "a.csv", files.Measured({"a.sum": ("", "1,234")}), end=True)
    second = write(tmp_path / "b.csv", files.Measured({"a.sum": ("", "5,40")}), end=True)
    both = tmp_path / "both.csv"
    both.write_bytes(first.read_bytes() + second.read_bytes())
    assert [1.234, 5.4] == files.read(both).table("COUNTERS")["value"].tolist()


@WRITERS
def test_sizes_and_devices_that_cannot_be_read_are_missing(write, tmp_path: Path) -> None:
    """What is no whole number, or too large, is counted with the cells that are left out."""
    launch = replace(files.Measured(metrics("1")), device=str(2**64), grid="(1, x, 1)", block=f"({'9' * 5000}, 1, 1)")
    profile = files.read(write(tmp_path / "page.csv", launch))
    columns = ["gpu", "grid_blocks", "block_threads"]
    assert [[-1, pd.NA, pd.NA]] == profile.table("LAUNCHES")[columns].to_numpy().tolist()
    (note,) = profile.notes
    assert "left out: 3 (first: " in note


@WRITERS
@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        ("gpu__time_duration.sum", "tsecond"),
        ("dram__bytes_read.sum", "Qbyte"),
        ("sm__cycles_elapsed.avg.per_second", "cycle/tsecond"),
        ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "percent"),
    ],
)
def test_a_unit_that_a_metric_cannot_have(write, metric: str, unit: str, tmp_path: Path) -> None:
    """A time in tsecond would be off by thousands: it is not measured, with a note."""
    found, note = counters(write(tmp_path / "page.csv", files.Measured({metric: (unit, "5"), "x.sum": ("", "1")})))
    assert [("x.sum", 1.0)] == found
    assert f"(first: '{unit}' of 'unit of {metric}')" in note


def test_numbers_that_cannot_be_are_handed_on(tmp_path: Path) -> None:
    """1e400 ns stays impossible, for the ranges of the tables to find; inf is how ncu writes what it has not."""
    assert [np.inf, np.inf] == numbers(["1e400", "1,000e400"]).tolist()
    assert np.isnan(numbers(["inf", "-inf", "nan", "n/a", "no data", "", "CachePreferNone"])).all()
    occupancy = {"sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "104.70")}  # as the vendor itself writes
    launch = files.Measured({"gpu__time_duration.sum": ("ns", "1e400"), **occupancy})
    row = files.read(files.raw(tmp_path / "a.csv", launch)).loaders["LAUNCHES"]().iloc[0]
    assert (np.inf, 1.047) == pytest.approx((row["dur_ns"], row["achieved_occupancy_frac"]))


@pytest.mark.parametrize("text", ["", "()", "(1, x, 1)", "-1"])
def test_sizes_that_are_none(text: str) -> None:
    """What is not made of whole numbers is no size."""
    assert blocks(text) is None


@pytest.mark.parametrize(
    "content",
    [
        'Metric Name,Metric Unit,Minimum,Maximum\n"Duration","us","1","2"\n',
        '"Metric Name","k1","k2"\n"Duration","1","2"\n',
        "# Notes\n\n==PROF== Connected to process 7\n",
        '"ID","Name"\n"0","Process ID"\n',
    ],
)
def test_what_only_looks_like_a_page_is_not_claimed(content: str, tmp_path: Path) -> None:
    """Pivots made from a page, notes that quote a log and other tables are no pages."""
    path = tmp_path / "other.csv"
    path.write_text(content)
    assert ncu.sniff(path) is False


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("==PROF== Connected\n==ERROR== No access to counters.\n", "ncu said: No access to counters. Mend"),
        ("==PROF== Connected\r\n==ERROR== one.\r\n==ERROR== two.\r\n", "ncu said: one. two. Mend"),
        ("==WARNING== No kernels were profiled.\n", "no kernels were profiled. Check that the program launches"),
        ('==PROF== Profiling "k" - 0: 0%....100% - 8 passes\n', "lists 1 profiled kernels and no CSV page"),
        ('"ID","Process ID","Kernel Name","Metric Name"\n', "a header and no rows"),
    ],
)
def test_a_log_without_kernels_is_an_error_that_says_why(content: str, said: str, tmp_path: Path) -> None:
    """A log alone is recognised, and refused with what ncu said or what is lacking."""
    path = tmp_path / "run.log"
    path.write_bytes(content.encode())
    assert "ncu" == recognise(path)
    with pytest.raises(ReadError) as caught:
        ncu.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)


@WRITERS
def test_an_error_beside_kernels_is_a_note(write, tmp_path: Path) -> None:
    """A run that failed after some launches keeps them and tells what ncu said."""
    log = (*files.LOG, "==ERROR== The application returned an error code (1).")
    profile = files.read(write(tmp_path / "page.csv", files.full(), log=log))
    assert 1 == len(profile.table("LAUNCHES"))
    assert "ncu reported: The application returned an error code (1)." in profile.notes


@WRITERS
def test_every_cut_is_noticed(write, tmp_path: Path) -> None:
    """A page cut at any byte of its last row is an error that names the file."""
    path = write(tmp_path / "page.csv", files.full(0), files.full(1))
    whole = path.read_bytes()
    last = whole.rindex(b"\n") + 1
    for size in range(last + 1, len(whole), 3):
        path.write_bytes(whole[:size])
        with pytest.raises(ReadError, match=r"page\.csv: "):
            ncu.read(path)
    short = write(tmp_path / "short.csv", files.Measured({"a.sum": ("", "1"), "b.sum": ("", "2")}))
    short.write_text(short.read_text().removesuffix('"2"'))  # in the comma before the last value
    with pytest.raises(ReadError, match=r"short\.csv: the row that begins in line \d+ is cut"):
        ncu.read(short)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        # Cut between two rows.
        (
            lambda lines: lines[:-5],
            f"the last launch has only the first {len(files.full().metrics) - 5} of the {len(files.full().metrics)} "
            "metrics of the one before it",
        ),
        # Sorted by metric by somebody, or with one changed number of a launch.
        (lambda lines: [*lines[:4], lines[4].replace('"0"', '"1"', 1), *lines[5:]], "(places: 2)"),
    ],
    ids=["cut", "apart"],
)
def test_launches_of_a_details_page_that_are_not_whole_are_a_note(
    change: Callable[[list[str]], list[str]], expected: str, tmp_path: Path
) -> None:
    """A last launch with fewer metrics than the one before it, or rows of a launch that stand apart."""
    path = files.details(tmp_path / "page.csv", replace(files.full(0), rules=()), replace(files.full(1), rules=()))
    assert () == files.read(path).notes
    path.write_text("\n".join(change(path.read_text().splitlines())))
    (note,) = files.read(path).notes
    assert expected in note


@WRITERS
@pytest.mark.parametrize("first", ['"-5"', '"x0"', '""0"', "0", '"1e300"', '"1",x"1"'])
def test_a_row_without_a_number_is_left_out_with_a_note(write, first: str, tmp_path: Path) -> None:
    """What looks like a row and does not begin with a number is no row, and not passed over in silence."""
    path = write(tmp_path / "page.csv", files.full(0), files.full(1), files.full(2), end=True)
    lines = path.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith('"1",'))
    lines[at] = first + lines[at].removeprefix('"1"')
    path.write_text("\n".join(lines) + "\n")
    profile = files.read(path)
    assert (2 if write is files.raw else 3) == len(profile.table("LAUNCHES"))
    assert 1 == sum(f"(first: line {at + 1}, " in note for note in profile.notes)


def test_a_raw_page_needs_its_units(tmp_path: Path) -> None:
    """Without the row of units, or with a second row that has no number, nothing has a scale: an error."""
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


def test_a_launch_that_stands_twice_counts_once(tmp_path: Path) -> None:
    """A row of a raw page that is there again, equal in every cell, is no second launch."""
    profile = files.read(files.raw(tmp_path / "page.csv", files.full(0), files.full(1), files.full(0)))
    assert 2 == len(profile.table("LAUNCHES"))
    assert 1 == sum("stand twice in the page, equal in every cell, and count once: 1" in n for n in profile.notes)


def test_metrics_of_one_name_are_a_note(tmp_path: Path) -> None:
    """Of two columns with a metric's name the first counts; one without a name is no metric."""
    path = files.raw(tmp_path / "page.csv", files.Measured(metrics("1", "2", "3")))
    path.write_text(path.read_text().replace('"b.sum"', '"a.sum"').replace('"c.sum"', '""'))
    found, note = counters(path)
    assert [("a.sum", 1.0)] == found
    assert "without a name of their own, which were left out: 2" in note


@WRITERS
@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (('"app"', '"a"p"p"'), "cannot be divided into cells"),
        (('"app"', '"app"x'), "cannot be divided into cells"),
        (('"app"', '"app"\r'), "cannot be divided into cells"),
        (('"app"', f'"{"x" * 200_000}"'), r"cannot be divided into cells \(field larger"),
        (('"app"', '"app'), "a quote in it is never closed"),
    ],
)
def test_quotes_and_cells_that_are_wrong(write, change: tuple[str, str], finding: str, tmp_path: Path) -> None:
    """A page with a stray quote, a line break outside quotes or an endless cell is refused with its line."""
    path = write(tmp_path / "page.csv", files.full(0), files.full(1), end=True)
    content = path.read_bytes().decode()
    at = content.index('\n"1",') + 1
    path.write_bytes((content[:at] + content[at:].replace(*change, 1)).encode())
    line = content[:at].count("\n") + 1
    with pytest.raises(ReadError, match=rf"page\.csv: the row that begins in line {line} .*{finding}"):
        ncu.read(path)


class Line(str):
    """A text that counts how many characters are searched in it and in what is joined from it."""

    searched = 0

    def count(self, *sought: str) -> int:  # type: ignore[override]
        """Count, and add up how much was looked at."""
        Line.searched += len(self)
        return super().count(*sought)

    def __add__(self, other: str) -> Line:
        return Line(str(self) + other)

    def __radd__(self, other: str) -> Line:
        return Line(other + str(self))

    def rstrip(self, *characters: str) -> Line:  # type: ignore[override]
        """Strip, and go on counting."""
        return Line(super().rstrip(*characters))


def test_an_open_quote_costs_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The quote of the first row is open to the end: what is searched grows as the file does, not as its square."""
    plain_lines = log._lines
    monkeypatch.setattr(log, "_lines", lambda path: map(Line, plain_lines(path)))
    searched = []
    for launches in (20, 40, 80):
        path = files.details(tmp_path / "page.csv", *(replace(files.full(i), rules=()) for i in range(launches)))
        path.write_text(path.read_text().replace('"10.5"', '"10.5', 1))
        Line.searched = 0
        with pytest.raises(ReadError, match="a quote in it is never closed"):
            ncu.read(path)
        searched.append(Line.searched / path.stat().st_size)
    assert max(searched) < 2


def test_an_endless_row_and_an_endless_line_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hole of zeros behind a page and a row that never ends are given up after a limit."""
    monkeypatch.setattr(log, "LONGEST", 5000)
    path = files.raw(tmp_path / "page.csv", *map(files.full, range(40)), end=True)
    whole = path.read_text()
    path.write_text(whole + "\0" * 10_000)
    with pytest.raises(ReadError, match=r"page\.csv: a line is longer than 5,000 characters"):
        ncu.read(path)
    path.write_text(whole.replace('"7","app"', '"7","app', 1))
    with pytest.raises(ReadError, match=r"page\.csv: the row that begins in line 5 goes on for more than 5,000"):
        ncu.read(path)


def test_what_ncu_says_is_shown_without_its_escapes(tmp_path: Path) -> None:
    """An error of the log is quoted without what a terminal would obey, and cut."""
    path = tmp_path / "run.log"
    path.write_text(f"==PROF== Connected\n==ERROR== \x1b[31mred{'x' * 5000}\n")
    with pytest.raises(ReadError) as caught:
        ncu.read(path)
    assert "ncu said: ?[31mredxxx" in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_table_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches that have no metric in common would make a table of their product."""
    monkeypatch.setattr(ncu.pages, "LARGEST", 50)
    launches = [files.Measured({f"m{i}.sum": ("", "1")}, number=i) for i in range(8)]
    with pytest.raises(ReadError, match=r"page\.csv: the page has 8 launches and 8 different metrics"):
        ncu.read(files.details(tmp_path / "page.csv", *launches))


@WRITERS
def test_a_row_that_lacks_cells_is_an_error(write, tmp_path: Path) -> None:
    """A row within the page that is too short says which."""
    path = write(tmp_path / "page.csv", files.full(0), files.full(1))
    lines = path.read_text().splitlines()
    lines[-2] = ",".join(lines[-2].split(",")[:3])
    path.write_text("\n".join(lines))
    with pytest.raises(ReadError, match=r"row \d+ has 3 fields, the header has \d+"):
        ncu.read(path)


@pytest.mark.parametrize(
    ("column", "other", "words"),
    [
        *((name, "Other", f"no column '{name}'") for name in ("Kernel Name", "Metric Unit", "Metric Value")),
        ("Process Name", "Kernel Name", "two columns 'Kernel Name'"),  # which of the two would hold nobody knows
    ],
)
def test_a_column_that_lacks_or_repeats_is_an_error(column: str, other: str, words: str, tmp_path: Path) -> None:
    """A page of which somebody renamed a column says which."""
    for write in (files.raw, files.details)[column.startswith("Metric") :]:
        path = write(tmp_path / "page.csv", files.full())
        path.write_text(path.read_text().replace(f'"{column}"', f'"{other}"'))
        with pytest.raises(ReadError, match=f"the page has {words}"):
            ncu.read(path)


def test_a_page_of_rules_alone(tmp_path: Path) -> None:
    """A launch with rules and no metric is a launch."""
    profile = files.read(files.details(tmp_path / "page.csv", replace(files.full(), metrics={})))
    assert {"LAUNCHES": 1, "RULES": 1} == {name: len(profile.table(name)) for name in profile.loaders}


def test_text_with_line_breaks_stays_one_row(tmp_path: Path) -> None:
    """A rule's text over two lines is one message."""
    rule = ("SOLBottleneck", "OPT", 'first line,\nsecond "line"', "local", "50")
    launch = replace(files.full(), rules=(rule,))
    rules = files.read(files.details(tmp_path / "page.csv", launch)).table("RULES")
    assert ['first line,\nsecond "line"'] == rules["message"].tolist()


def test_a_scaled_page_is_a_note(tmp_path: Path) -> None:
    """A raw page in Kbyte loses digits of small launches."""
    found, note = counters(files.raw(tmp_path / "a.csv", files.Measured({"x.sum": ("Kbyte", "1.5")})))
    assert [("x.sum", 1500.0)] == found
    assert "--print-units base" in note


def test_a_simulated_page_says_so(tmp_path: Path) -> None:
    """A page that no GPU made carries a note."""
    log = ("==WARNING== Simulated: two launches; no GPU ran", *files.LOG)
    profile = files.read(files.details(tmp_path / "page.csv", files.full(), log=log))
    assert ("simulated, not measured: two launches; no GPU ran",) == profile.notes

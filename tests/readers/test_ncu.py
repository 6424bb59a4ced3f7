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
from perfkit.readers.ncu.report import blocks
from perfkit.readers.ncu.units import base, numbers

WRITERS = pytest.mark.parametrize("write", [files.raw, files.details], ids=["raw", "details"])
OUTPUT = ("step 1 of 2", '"quoted" output', "==WARNING== something")


def everything(path: Path) -> dict[str, pd.DataFrame]:
    """All tables of a file."""
    profile = files.read(path)
    return {name: profile.table(name) for name in profile.loaders}


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
def test_a_launch_has_its_name_and_sizes(write, tmp_path: Path) -> None:
    """Grid (4, 2, 1) is 8 blocks, block (128, 1, 1) 128 threads; the name is kept and shortened."""
    launches = files.read(write(tmp_path / "page.csv", files.full())).table("LAUNCHES")
    row = launches.iloc[0]
    assert "saxpy(int, float, float *, float *)" == row["full_name"]
    assert row["name"].startswith("saxpy")
    assert (0, 0, 8, 128) == (row["gpu"], row["launch"], row["grid_blocks"], row["block_threads"])


@WRITERS
def test_launches_are_numbered_by_position(write, tmp_path: Path) -> None:
    """Ids start again with every process: two processes with ids 0 and 1 are four launches."""
    two = [replace(files.full(i), process=p, device=str(p)) for p in (0, 1) for i in (0, 1)]
    launches = files.read(write(tmp_path / "page.csv", *two)).table("LAUNCHES")
    assert [0, 1, 2, 3] == launches["launch"].tolist()
    assert [0, 0, 1, 1] == launches["gpu"].tolist()


@WRITERS
def test_pages_printed_one_after_the_other_are_one_report(write, tmp_path: Path) -> None:
    """Two runs appended to one log with their headers: the launches of the second follow, with their rules."""
    first = write(tmp_path / "a.csv", files.full(0), files.full(1), end=True)
    second = write(tmp_path / "b.csv", replace(files.full(0), name="later"), end=True)
    both = tmp_path / "both.csv"
    both.write_bytes(first.read_bytes() + second.read_bytes())
    tables = everything(both)
    assert ["saxpy(int, float, float *, float *)"] * 2 + ["later"] == tables["LAUNCHES"]["full_name"].tolist()
    assert {0, 1, 2} == set(tables["STALLS"]["launch"])
    assert write is files.raw or [0, 1, 2] == tables["RULES"]["launch"].tolist()


@WRITERS
def test_old_pages_have_no_device_and_no_sizes(write, tmp_path: Path) -> None:
    """Up to 2022 the sizes stand among the metrics, and the device nowhere or among them."""
    metrics = {"launch__grid_size": ("", "1,024"), "launch__block_size": ("", "256"), "x.sum": ("", "1")}
    path = write(tmp_path / "old.csv", files.Measured(metrics), lead=files.LEAD)
    row = files.read(path).table("LAUNCHES").iloc[0]
    assert (-1, 1024, 256) == (row["gpu"], row["grid_blocks"], row["block_threads"])
    told = write(tmp_path / "told.csv", files.Measured({**metrics, "launch__device_id": ("", "3")}), lead=files.LEAD)
    assert 3 == files.read(told).table("LAUNCHES")["gpu"].iloc[0]


@WRITERS
def test_sizes_that_nothing_tells_are_missing(write, tmp_path: Path) -> None:
    """A launch without grid and block anywhere has no sizes, not zero."""
    row = files.read(write(tmp_path / "p.csv", files.Measured({"x.sum": ("", "1")}), lead=files.LEAD)).table("LAUNCHES")
    assert row[["grid_blocks", "block_threads"]].isna().all(axis=None)


def test_nvtx_columns_are_no_metrics(tmp_path: Path) -> None:
    """The columns of NVTX ranges before the kernel's name are left out of the counters."""
    column = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
    path = files.raw(tmp_path / "nvtx.csv", files.Measured({column: ("", "3"), "x.sum": ("", "1")}))
    assert ["x.sum"] == files.read(path).table("COUNTERS")["metric"].tolist()


def test_a_name_gets_its_lost_bracket_back(tmp_path: Path) -> None:
    """ncu prints `unnamed>::k` for `<unnamed>::k`; a name that is whole stays."""
    names = ["void unnamed>::k<a::<unnamed>::b>(int)", "n::<unnamed>::k(int)"]
    path = files.raw(tmp_path / "n.csv", *(replace(files.full(i), name=n) for i, n in enumerate(names)))
    expected = ["void <unnamed>::k<a::<unnamed>::b>(int)", "n::<unnamed>::k(int)"]
    assert expected == files.read(path).table("LAUNCHES")["full_name"].tolist()


def test_labels_of_the_details_page_are_metrics(tmp_path: Path) -> None:
    """Labels of any version become the metrics' names; the unit tells two throughputs apart."""
    shown = {"Duration": ("us", "336.70"), "SOL SM": ("%", "49.01"), "No such label": ("", "7")}
    one = files.details(tmp_path / "a.csv", files.Measured({**shown, "Memory Throughput": ("Gbyte/s", "2")}))
    counters = files.read(one).table("COUNTERS").set_index("metric")["value"].to_dict()
    assert {
        "gpu__time_duration.sum": 336_700.0,
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": 49.01,
        "dram__bytes.sum.per_second": 2e9,
        "No such label": 7.0,
    } == pytest.approx(counters)
    two = files.details(tmp_path / "b.csv", files.Measured({"Memory Throughput": ("%", "53.42")}))
    assert 0.5342 == pytest.approx(files.read(two).table("LAUNCHES")["memory_frac"].iloc[0])


def test_a_metric_of_two_sections_counts_once(tmp_path: Path) -> None:
    """SM Active Cycles and Average SM Active Cycles are one metric, taken from the first row."""
    shown = {"SM Active Cycles": ("cycle", "10"), "Average SM Active Cycles": ("cycle", "11")}
    counters = files.read(files.details(tmp_path / "a.csv", files.Measured(shown))).table("COUNTERS")
    assert [("sm__cycles_active.avg", 10.0)] == list(zip(counters["metric"], counters["value"], strict=True))


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


def test_thousands_and_decimal_commas(tmp_path: Path) -> None:
    """54,207 is a number of five digits; where a page also writes 5,40, its commas are decimal points."""
    usual = {"a.sum": ("", "54,207"), "b.sum": ("", "5.40"), "c.sum": ("", "1,054,207.5")}
    comma = {"a.sum": ("", "54.207"), "b.sum": ("", "5,40"), "c.sum": ("", "1.054.207,5")}
    for metrics in (usual, comma):
        path = files.raw(tmp_path / "page.csv", files.Measured(metrics))
        assert [54207.0, 5.4, 1054207.5] == files.read(path).table("COUNTERS")["value"].tolist()


def test_what_is_no_number_is_not_measured(tmp_path: Path) -> None:
    """Words, n/a, empty cells and infinities are NaN, and no row of COUNTERS."""
    texts = ["n/a", "no data", "", "CachePreferNone", "inf", "nan"]
    assert np.isnan(numbers(texts)).all()
    metrics = {f"m{i}.sum": ("", text) for i, text in enumerate(texts)}
    path = files.raw(tmp_path / "page.csv", files.Measured({**metrics, "z.sum": ("", "791 (50; 50)")}))
    assert [791.0] == files.read(path).table("COUNTERS")["value"].tolist()


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


@WRITERS
def test_a_row_that_lacks_cells_is_an_error(write, tmp_path: Path) -> None:
    """A row within the page that is too short says which."""
    path = write(tmp_path / "page.csv", files.full(0), files.full(1))
    lines = path.read_text().splitlines()
    lines[-2] = ",".join(lines[-2].split(",")[:3])
    path.write_text("\n".join(lines))
    with pytest.raises(ReadError, match=r"row \d+ has 3 fields, the header has \d+"):
        ncu.read(path)


@pytest.mark.parametrize("column", ["Kernel Name", "Metric Unit", "Metric Value"])
def test_a_column_that_lacks_is_an_error(column: str, tmp_path: Path) -> None:
    """A page somebody took a column from says which."""
    path = files.details(tmp_path / "page.csv", files.full())
    path.write_text(path.read_text().replace(f'"{column}"', '"Other"'))
    with pytest.raises(ReadError, match=f"the page has no column '{column}'"):
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
    """A raw page in Kbyte loses digits of small launches; in base units there is nothing to say."""
    scaled = files.read(files.raw(tmp_path / "a.csv", files.Measured({"x.sum": ("Kbyte", "1.5")})))
    based = files.read(files.raw(tmp_path / "b.csv", files.Measured({"x.sum": ("byte", "1500")})))
    assert ["--print-units base" in note for note in scaled.notes] == [True]
    assert () == based.notes


def test_a_simulated_page_says_so(tmp_path: Path) -> None:
    """A page that no GPU made carries a note."""
    log = ("==WARNING== Simulated: two launches; no GPU ran", *files.LOG)
    profile = files.read(files.details(tmp_path / "page.csv", files.full(), log=log))
    assert ("simulated, not measured: two launches; no GPU ran",) == profile.notes

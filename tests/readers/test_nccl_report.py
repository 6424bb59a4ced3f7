"""What nccl-tests writes with -J: exact figures, several processes, cut reports, and what is no report."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from readers import nccl_files as files

from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers import nccl, recognise

HALF = (1.234567, 0.1, 0.2, 0.0)


def read(path: Path, **more: Any) -> Profile:
    """The profile of a report with these entries."""
    return nccl.read(files.reported(path / "out.json", files.report(**more)))


def test_a_report_says_what_the_table_says(tmp_path: Path) -> None:
    """Sizes, times, collective, ranks (two processes of four GPUs), devices and versions."""
    assert "nccl" == recognise(files.reported(tmp_path / "out.json", files.report()))
    profile = read(tmp_path, results=[files.result(*row) for row in files.ROWS])
    printed = nccl.read(files.written(tmp_path / "out.txt", files.table(per_node=4)))
    assert profile.table("COLLECTIVES").equals(printed.table("COLLECTIVES"))
    assert [0] == profile.table("DEVICES")["gpu"].tolist()
    assert "NCCL 2.29.2; 8 GPUs on 2 nodes" == profile.notes[0]


def test_times_are_exact(tmp_path: Path) -> None:
    """1.234567 us are 1,234.567 ns, read as text and not as a sum of powers of two."""
    frame = read(tmp_path, results=[files.result(8, 2, HALF, HALF)]).table("COLLECTIVES")
    assert [1234.567, 1234.567] == frame["dur_ns"].tolist()


def test_the_start_is_wall_clock_time(tmp_path: Path) -> None:
    """2025-01-31 12:00:00 is 1,738,324,800 s after 1970, if local time is UTC, which a note says."""
    profile = read(tmp_path)
    assert 1_738_324_800 * 10**9 == profile.capture["t0_unix_ns"].item()
    assert "its start is local time without a zone, taken as UTC" in profile.notes
    assert read(tmp_path, start_time="noon").capture["t0_unix_ns"].isna().all()


def test_the_environment_stays_where_it_is(tmp_path: Path) -> None:
    """A report holds the environment, which may hold secrets: none of it is in a table or a note."""
    profile = read(tmp_path)
    shown = "".join(frame.to_csv() for frame in map(profile.table, profile.loaders)) + "".join(profile.notes)
    assert "secret" not in shown + str(profile.missing)
    assert "node0" not in shown


def test_a_replay_has_no_half_out_of_place(tmp_path: Path) -> None:
    """null is no measurement."""
    assert ["in_place"] == read(tmp_path, results=[files.result(8, 2, None, HALF)]).table("COLLECTIVES")[
        "placement"
    ].tolist()


def test_times_of_the_cpu_are_no_durations(tmp_path: Path) -> None:
    """With -C 1 the key is cpu_time."""
    result = files.result(8, 2, HALF, HALF)
    for half in ("out_of_place", "in_place"):
        result[half]["cpu_time"] = result[half].pop("time")
    profile = read(tmp_path, results=[result])
    assert profile.table("COLLECTIVES")["dur_ns"].isna().all()
    assert any("times of the CPU" in note for note in profile.notes)


def test_nan_is_missing(tmp_path: Path) -> None:
    """The test writes what is no number as the word nan."""
    result = files.result(8, 2, HALF, HALF)
    result["in_place"]["time"] = "nan"
    assert 1 == read(tmp_path, results=[result]).table("COLLECTIVES")["dur_ns"].isna().sum()


def test_wrong_and_unchecked_results_are_told(tmp_path: Path) -> None:
    """nwrong counts wrong elements, null is validation off."""
    wrong = files.result(8, 2, (*HALF[:3], 5.0), HALF)
    assert any("data corrupt in 1 rows" in note for note in read(tmp_path, results=[wrong]).notes)
    unchecked = files.result(8, 2, (*HALF[:3], None), (*HALF[:3], None))
    assert any("validation off" in note for note in read(tmp_path, results=[unchecked]).notes)


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    """Without results the report's own error is the note; without that there is nothing to load."""
    profile = read(tmp_path, results=[], errors=["remote process exited"])
    assert not {"COLLECTIVES"} & set(profile.loaders)
    assert "the run failed: remote process exited" in profile.notes
    with pytest.raises(ReadError, match=r"out\.json: the report of nccl-tests holds no results"):
        read(tmp_path, results=[])


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
        read(tmp_path, **more)


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
        read(tmp_path, results=[files.result(8, 2, HALF, HALF, in_place=half)])

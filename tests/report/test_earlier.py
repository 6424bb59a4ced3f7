"""A report stands for the recording that it was made of, in a comparison."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from pairs.cases import SAME
from pairs.program import NVTX, Change, write
from pandas.testing import assert_frame_equal

import perfkit
from perfkit.cli import main
from perfkit.diagnosis.check import check
from perfkit.errors import PerfkitError, ReadError
from perfkit.report import earlier, pages
from perfkit.report.links import FOLDER, Report
from perfkit.report.machine import Machine
from perfkit.run import Run

CHOICE = {"ranks": [], "gpus": [], "window": [], "kernels": "", "families": []}


def report_of(run: Run, folder: Path, **choice: object) -> Path:
    """Write what a report keeps of a run, without its notebooks."""
    view = perfkit.select(run, **choice)  # type: ignore[arg-type]
    pages._write_tables(view, None, folder / FOLDER, Machine({}))
    about = pages.summary_inputs(view, {"profile": "run", **CHOICE, **choice})
    pages.write_summary(folder, about, pages.Recorded(), Report(()))
    return folder


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("before") / "before.sqlite"
    return write(path, SAME, form=NVTX, noise=0.005, seed=0)


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("after") / "after.sqlite"
    return write(path, Change(pause=0.3), form=NVTX, noise=0.005, seed=1)


@pytest.fixture
def report(before: Path, tmp_path: Path) -> Path:
    return report_of(perfkit.load(before), tmp_path)


def test_a_report_gets_the_verdicts_of_its_recording(
    before: Path, slower: Path, report: Path
) -> None:
    run = perfkit.load(slower)
    of_recording = check(run, perfkit.load(before))
    assert 1 == of_recording.exit_code
    assert of_recording == check(run, earlier.given(report))


def test_check_takes_a_report_for_the_baseline(slower: Path, report: Path) -> None:
    result = CliRunner().invoke(main, ["check", str(slower), "--baseline", str(report)])
    assert 1 == result.exit_code
    assert "FAIL        Median step" in result.output


def test_compare_takes_a_report_for_a_run(slower: Path, report: Path) -> None:
    result = CliRunner().invoke(main, ["compare", str(report), str(slower)])
    assert 0 == result.exit_code
    assert "The median step takes " in result.output


def test_ranks_of_several_files_stay_apart(before: Path, slower: Path, tmp_path: Path) -> None:
    run = perfkit.load([before, slower])
    theirs = earlier.of_report(report_of(run, tmp_path)).run
    assert_frame_equal(run.kernels, theirs.kernels, check_categorical=False)
    assert {0, 1} == set(theirs.kernels["rank"])


def test_a_report_of_a_window_stands_for_that_window(before: Path, tmp_path: Path) -> None:
    run = perfkit.load(before)
    half_ns = int(run.kernels["start_ns"].max()) // 2
    given = earlier.of_report(report_of(run, tmp_path, window=(0, half_ns)))
    assert (0, half_ns) == given.window


@pytest.mark.parametrize(
    "name",
    [
        "nsys/GindaChen__nsys-ai__mfu_2gpu_before.sqlite",
        "nsys/openhackathons-org__gpubootcamp__mpi_report1.sqlite",
        "monitor/dcgm_exporter_a100_mig.prom",
        "hpctoolkit/hpctoolkit-leo-nvidia-database",
    ],
)
def test_every_table_of_a_real_recording_comes_back(
    name: str, profiles: Path, tmp_path: Path
) -> None:
    run = perfkit.load(profiles / name)
    theirs = earlier.of_report(report_of(run, tmp_path)).run
    filled = [table for table in run._names() if table != "capture" and len(getattr(run, table))]
    assert filled
    for table in filled:
        assert_frame_equal(getattr(run, table), getattr(theirs, table), check_categorical=False)


def test_a_report_without_a_table_is_refused_by_its_name(report: Path, slower: Path) -> None:
    (report / FOLDER / "kernels.parquet").unlink()
    with pytest.raises(ReadError, match=r"kernels\.parquet: the report lacks this table"):
        check(perfkit.load(slower), earlier.given(report))


def test_a_damaged_table_is_refused(report: Path, slower: Path) -> None:
    (report / FOLDER / "kernels.parquet").write_bytes(b"PAR1")
    with pytest.raises(ReadError, match=r"kernels\.parquet: damaged"):
        check(perfkit.load(slower), earlier.given(report))


def changed(report: Path, **inputs: object) -> Path:
    """A report whose summary says something else of its recording; None takes a key out."""
    file = report / earlier.SUMMARY
    content = json.loads(file.read_text(encoding="utf-8"))
    content["inputs"].update(inputs)
    content["inputs"] = {key: one for key, one in content["inputs"].items() if one is not None}
    file.write_text(json.dumps(content), encoding="utf-8")
    return report


def test_a_report_of_an_earlier_perfkit_is_refused(report: Path) -> None:
    with pytest.raises(ReadError, match="an earlier perfkit made it"):
        earlier.given(changed(report, readers=None))


def test_a_report_that_names_no_reader_is_refused(report: Path) -> None:
    with pytest.raises(ReadError, match="damaged"):
        earlier.given(changed(report, readers=[{"tables": []}]))


@pytest.mark.parametrize("table", ["../../secret", "nothing"])
def test_a_report_cannot_name_a_file_that_is_no_table(table: str, report: Path) -> None:
    readers = json.loads((report / earlier.SUMMARY).read_text(encoding="utf-8"))["inputs"]
    of_first = {**readers["readers"][0], "tables": [table]}
    with pytest.raises(ReadError, match="unknown to this perfkit"):
        earlier.given(changed(report, readers=[of_first]))


def test_a_report_of_a_recording_with_impossible_times_is_refused(report: Path) -> None:
    readers = json.loads((report / earlier.SUMMARY).read_text(encoding="utf-8"))["inputs"]
    of_first = {**readers["readers"][0], "left_out": 3}
    with pytest.raises(PerfkitError, match="3 rows of the recording had times that cannot be"):
        earlier.given(changed(report, readers=[of_first]))


def test_what_is_no_summary_is_refused(tmp_path: Path) -> None:
    (tmp_path / earlier.SUMMARY).write_text("[]", encoding="utf-8")
    with pytest.raises(ReadError, match="not the summary of a report"):
        earlier.given(tmp_path)

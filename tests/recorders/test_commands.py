"""`perfkit record TOOL -- PROGRAM` with a small program in the place of Nsight Systems."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from perfkit.cli import main
from perfkit.recorders import commands, tools

# It runs what follows -o FILE, and writes FILE as Nsight Systems would.
NSYS = """#!/bin/sh
case "$1 $2" in
  "profile --help") echo "--delay= --duration= 'cuda' 'nvtx'"; exit 0 ;;
  export*) echo made > "$(echo "$3" | cut -d= -f2)"; exit 0 ;;
esac
while [ "$1" != "-o" ]; do shift; done
file="$2"; shift 2
"$@"; status=$?
echo made > "$file.nsys-rep"
exit $status
"""


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with nsys on PATH and no other profiler."""
    for names in tools.torch_launcher.RANKS:
        for name in names:
            monkeypatch.delenv(name, raising=False)
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "nsys").write_text(NSYS, encoding="utf-8")
    (programs / "nsys").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    tools.answer.cache_clear()
    return tmp_path


def record(*words: str) -> Result:
    return CliRunner().invoke(main, ["record", *words])


def test_a_recording_is_exported_and_has_the_status_of_the_program(nsys: Path) -> None:
    result = record("nsys", "-o", "out", "--no-report", "--", "sh", "-c", "exit 3")
    assert 3 == result.exit_code
    assert ["run.nsys-rep", "run.sqlite"] == sorted(file.name for file in (nsys / "out").iterdir())


def test_the_report_lies_in_the_folder_of_the_recording(
    nsys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Path]] = []
    monkeypatch.setattr(main.commands["report"], "callback", lambda **given: made.append(given))
    assert 0 == record("nsys", "-o", "out", "--", "true").exit_code
    assert [(Path("out"), Path("out/report"))] == [(given["path"], given["out"]) for given in made]


def test_repeats_lie_in_a_folder_each_and_are_compared_together(nsys: Path) -> None:
    result = record("nsys", "--repeats", "3", "-o", "out", "--no-report", "--", "true")
    assert 0 == result.exit_code
    files = sorted(path.relative_to(nsys).as_posix() for path in nsys.glob("out/*/*.sqlite"))
    assert ["out/run-1/run.sqlite", "out/run-2/run.sqlite", "out/run-3/run.sqlite"] == files
    assert "perfkit check out/run-1 out/run-2 out/run-3 --baseline EARLIER" in result.output


def test_no_repeat_follows_a_run_that_failed(nsys: Path) -> None:
    result = record(
        "nsys", "--repeats", "3", "-o", "out", "--no-report", "--", "sh", "-c", "exit 3"
    )
    assert 3 == result.exit_code
    assert ["run-1"] == [path.name for path in (nsys / "out").iterdir()]


def test_a_folder_that_holds_something_is_refused(nsys: Path) -> None:
    (nsys / "out").mkdir()
    (nsys / "out" / "notes.txt").touch()
    result = record("nsys", "-o", "out", "--", "true")
    assert (2, True) == (result.exit_code, "out: is not empty" in result.output)


def test_the_ranks_of_a_job_share_a_folder(nsys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        result = record("nsys", "-o", "out", "--", "true")
        assert "perfkit report out" in result.output
    assert ["rank-0.sqlite", "rank-1.sqlite"] == sorted(
        file.name for file in (nsys / "out").glob("*.sqlite")
    )


def test_a_rank_does_not_replace_its_file(nsys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    record("nsys", "-o", "out", "--", "true")
    result = record("nsys", "-o", "out", "--", "true")
    assert "out: holds rank-1.nsys-rep of rank 1 already" in result.output


def test_without_the_tool_its_commands_are_printed(nsys: Path) -> None:
    result = record("ncu", "-o", "/out", "--", "./a.out", "--size", "9")
    assert 127 == result.exit_code
    expected = (
        "ncu --set full --target-processes all --launch-count 50 -o /out/run ./a.out --size 9"
    )
    assert expected in result.output.splitlines()
    assert "https://developer.nvidia.com/nsight-compute" in result.output


def test_an_option_of_another_tool_is_refused(nsys: Path) -> None:
    result = record("ncu", "--delay", "5", "--", "./a.out")
    assert (2, True) == (result.exit_code, "--delay" in result.output)


def test_all_is_a_command_and_an_option(nsys: Path) -> None:
    ways = [record("--all", "--help"), record("all", "--help")]
    assert ways[0].output == ways[1].output
    assert "one after the other" in ways[0].output


def test_a_profiler_that_writes_nothing_is_told(nsys: Path) -> None:
    (nsys / "programs" / "nsys").write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
    result = record("nsys", "-o", "out", "--no-report", "--", "true")
    assert (commands.FAILED, True) == (
        result.exit_code,
        "run.nsys-rep: the profiler has not written it" in result.output,
    )


def test_no_further_tool_runs_after_a_signal(nsys: Path) -> None:
    result = record("all", "-o", "out", "--no-report", "--", "sh", "-c", "kill -TERM $$")
    assert 143 == result.exit_code
    assert "torch_launcher" not in result.output


def test_a_program_without_python_is_not_recorded_by_pytorch(
    nsys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(commands, "_one", lambda tool, *more: ran.append(tool) or 0)
    assert 0 == record("all", "-o", "out", "--no-report", "--", "./a.out").exit_code
    assert ["nsys"] == ran


def test_all_measures_with_each_tool_there_is(nsys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(commands, "_one", lambda tool, *more: ran.append(tool) or 0)
    result = record("all", "-o", "out", "--no-report", "--", "python", "train.py")
    assert (0, ["nsys", "torch"]) == (result.exit_code, ran)
    assert "left out: ncu is not on PATH" in result.output

"""Files beside a run that end in an exception of Python's are refused in one line, with status 2."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from readers import nsys_files

from perfkit import cli
from perfkit.diagnosis import check
from perfkit.errors import ReadError
from perfkit.job import known
from perfkit.settings import toml

DEEP = "a = " + 5000 * "[" + 5000 * "]"


def run(folder: Path) -> Path:
    return nsys_files.sqlite(
        folder / "run.sqlite", {"CUPTI_ACTIVITY_KIND_KERNEL": [nsys_files.kernel(0, 10)]}
    )


def refused(*arguments: object) -> str:
    """Run a command that must be refused, and return its one line."""
    answer: Result = CliRunner().invoke(cli.main, [str(argument) for argument in arguments])
    assert answer.exit_code == 2
    (line,) = answer.output.splitlines()
    return line


def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(DEEP)
    with pytest.raises(
        ReadError, match=r"a\.toml: cannot be read: its tables or lists are nested too deeply"
    ):
        toml(tmp_path / "a.toml")


def test_a_file_that_no_person_wrote_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("a = 1\n" + "#" * (1 << 20))
    with pytest.raises(ReadError, match=r"a\.toml: larger than 1\.05 MB"):
        toml(tmp_path / "a.toml")


def test_a_number_of_400_digits_in_a_budget_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text(f"figures.idle_frac = {{ max = 1{400 * '0'} }}")
    with pytest.raises(ReadError, match=r"figures\.idle_frac\.max is '1000.*Give"):
        check.load_budget(tmp_path / "b.toml")


def test_a_number_of_400_digits_in_a_job_is_refused(tmp_path: Path) -> None:
    (tmp_path / "perfkit.toml").write_text(f"[job]\nparameters = 1{400 * '0'}")
    with pytest.raises(
        Exception, match=r"perfkit\.toml: job: parameters = 1000.* is no number above 0"
    ):
        known({}, tmp_path)


def test_a_fault_of_perfkit_ends_a_check_with_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: object) -> None:
        raise KeyError("no_such_name")

    monkeypatch.setattr(check, "load_budget", broken)
    (tmp_path / "b.toml").write_text("")
    arguments = ["check", str(run(tmp_path)), "--budget", str(tmp_path / "b.toml")]
    answer = CliRunner().invoke(cli.main, arguments)
    assert answer.exit_code == 2
    assert answer.output.splitlines()[-1].startswith(
        "perfkit: a fault of perfkit (KeyError: 'no_such_name')."
    )


def _asked(folder: Path, tmp_path: Path) -> list[Path | str]:
    """Return the command that fails on a damaged side input, which lies in a folder."""
    if (budget := folder / "b.toml").exists():
        return ["check", run(tmp_path), "--budget", budget]
    return ["inspect", folder / "st" if (folder / "st").exists() else folder / "x.sqlite"]


def test_every_known_damage_of_a_side_input_is_refused_in_one_line(
    profiles: Path, tmp_path: Path
) -> None:
    folders = sorted((profiles / "broken").glob("side-*"))
    assert folders
    for folder in folders:
        assert refused(*_asked(folder, tmp_path)).startswith("perfkit: ")

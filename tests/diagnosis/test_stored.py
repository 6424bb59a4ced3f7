"""Answers of a diagnosis in the cache: read by the next process, and never believed where something changed."""

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis import stored
from perfkit.diagnosis.stored import kept
from perfkit.run import Run
from perfkit.selection import Selection

SAMPLE = Path("data/mlp_a100")
asked: list[object] = []


@kept
def counted(view: Run | Selection, *, of: object = "") -> Any:
    """A made answer, which says how often it was worked out."""
    asked.append(of)
    return {"of": of, "view": view, "count": view.kernels["dur_ns"].sum()}


@pytest.fixture(autouse=True)
def everything_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(stored, "LONG", 0.0)
    asked.clear()


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SAMPLE, tmp_path / "run"))


def opened(path: Path) -> Selection:
    """A run as another process opens it: nothing of it is in memory."""
    return perfkit.select(perfkit.load(path))


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").rglob(f"*.{stored.KIND}"))


def test_an_answer_is_worked_out_once_for_all_processes(capture: Path) -> None:
    first, second = (counted(view := opened(capture)) | {"view": view.choice} for _ in range(2))
    assert first == second
    assert len(asked) == 1


def test_an_answer_speaks_of_the_run_that_asks(capture: Path) -> None:
    counted(opened(capture))
    view = opened(capture)
    assert counted(view)["view"] is view


def test_figures_and_findings_are_the_same(capture: Path) -> None:
    view = opened(capture)
    new = diagnosis.figures(view), diagnosis.findings(view)
    again = opened(capture)
    assert (diagnosis.figures(again), diagnosis.findings(again)) == new


def test_another_choice_or_option_is_another_answer(capture: Path) -> None:
    counted(opened(capture))
    run = perfkit.load(capture)
    counted(perfkit.select(run, gpus=[0]))
    counted(opened(capture), of=1)
    counted(perfkit.select(perfkit.load(capture, job={"hours": 2})))
    assert len(asked) == 4


@pytest.mark.parametrize("of", [lambda: 0, open])
def test_what_no_file_can_hold_is_worked_out_each_time(capture: Path, of: object) -> None:
    for _ in range(2):
        counted(opened(capture), of=of)
    assert len(asked) == 2


def test_a_changed_file_has_new_answers(capture: Path) -> None:
    counted(opened(capture))
    trace = next(capture.glob("*.json.gz"))
    os.utime(trace, ns=(0, 0))
    counted(opened(capture))
    assert len(asked) == 2


def test_changed_code_has_new_answers_and_the_old_ones_go(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted(opened(capture))
    monkeypatch.setattr(stored, "_code", lambda: "newer")
    counted(opened(capture))
    assert len(asked) == 2
    assert {file.parent.name for file in files(tmp_path)} == {"answers-newer"}


def test_a_damaged_answer_is_worked_out_again(capture: Path, tmp_path: Path) -> None:
    counted(opened(capture))
    for file in files(tmp_path):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    counted(opened(capture))
    assert len(asked) == 2


def test_an_answer_that_would_run_code_is_not_read(capture: Path, tmp_path: Path) -> None:
    """A file with a right name, as somebody could write it who knows how names are made."""
    counted(opened(capture))
    (file,) = files(tmp_path)
    planted = pickle.dumps(Planted())
    name = file.name.partition(".")[0]
    file.unlink()
    (file.parent / stored.file_name(name, planted, stored.KIND)).write_bytes(planted)
    assert counted(opened(capture))["count"] > 0
    assert len(asked) == 2


class Planted:
    """An object that makes a folder when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("/nowhere/at/all",)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_an_answer_that_others_can_write_is_not_read(capture: Path, tmp_path: Path) -> None:
    counted(opened(capture))
    files(tmp_path)[0].chmod(0o666)
    counted(opened(capture))
    assert len(asked) == 2


def test_without_a_cache_nothing_is_stored(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFKIT_CACHE", "off")
    counted(opened(capture))
    assert not files(tmp_path)


def test_a_large_answer_is_not_stored(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "LARGE", 10)
    counted(opened(capture))
    assert not files(tmp_path)

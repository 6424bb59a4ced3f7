"""`%%perfkit` in a session of IPython, without a page."""

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import perfkit
from perfkit.errors import PerfkitError
from perfkit.recorders import cells
from perfkit.recorders.cells import Cells, side_by_side, without_magic
from perfkit.recorders.sampling import Sampler

BUSY = """
def busy():
    return sum(i * i for i in range(2_000_000))
answer = busy()
answer
"""


@pytest.fixture
def displayed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What appears below cells."""
    parts: list[Any] = []
    monkeypatch.setattr(cells, "display", parts.append)
    return parts


@pytest.fixture
def shell(displayed: list[Any]) -> Iterator[InteractiveShell]:
    """A session that has loaded the extension."""
    made = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    perfkit.load_ipython_extension(made)
    yield made
    made.reset()


def test_a_cell_keeps_its_variables_and_value(
    shell: InteractiveShell, displayed: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    result = shell.run_cell(f"%%perfkit --cpu --name one{BUSY}")
    assert result.result == shell.user_ns["answer"] == sum(i * i for i in range(2_000_000))
    assert "The longest Python function is cell(3): <genexpr>" in displayed[0].text
    table = displayed[1].text
    assert table.startswith("Python functions by their own time")


def test_an_exception_is_that_of_the_cell(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    result = shell.run_cell("%%perfkit --cpu\n\n1 / 0")
    *_, last = traceback.extract_tb(result.error_in_exec.__traceback__)
    assert 3 == last.lineno
    shown = capsys.readouterr().out
    assert "ZeroDivisionError" in shown
    assert "perfkit" not in shown


@pytest.mark.parametrize("line", ["--compare none", "--colour red", "--out ."])
def test_a_wrong_line_is_told_and_the_cell_runs(
    line: str, shell: InteractiveShell, displayed: list[Any]
) -> None:
    shell.run_cell(f"%%perfkit {line}\nvalue = 7")
    assert 7 == shell.user_ns["value"]
    assert line.split()[0] in displayed[0].text


def test_a_cell_without_the_magic_is_not_recorded(
    shell: InteractiveShell, displayed: list[Any]
) -> None:
    shell.run_cell("value = 8")
    assert [] == displayed


def test_only_recorded_cells_can_be_opened(shell: InteractiveShell) -> None:
    with pytest.raises(PerfkitError, match=r"no such cell\. Recorded cells: none yet"):
        Cells(shell).line("last")


def test_the_magic_leaves_an_empty_line() -> None:
    assert ["\n", "a = 1\n"] == without_magic(["%%perfkit --cpu\n", "a = 1\n"])
    assert ["%%time\n", "a = 1\n"] == without_magic(["%%time\n", "a = 1\n"])


def test_samples_become_calls(tmp_path: Path) -> None:
    """At 0, 5 and 9 ms: main, main > f, main > g. So f lasts 4 ms, and g until the end, 12 ms."""
    sampler = Sampler()
    for stack, at_ms in ((["a(1): main"], 0), (["a(1): main", "a(2): f"], 5)):
        sampler._take(stack, at_ms * 1_000_000)
    sampler._take(["a(1): main", "a(3): g"], 9_000_000)
    sampler._take([], 12_000_000)
    sampler.write(tmp_path / "cell.pt.trace.json.gz")
    run = perfkit.load(tmp_path)
    lasted = dict(zip(run.python_calls["name"], run.python_calls["dur_ns"] // 10**6, strict=True))
    assert {"a(1): main": 12, "a(2): f": 4, "a(3): g": 3} == lasted
    assert ["perfkit's sampling of Python"] == list(run.capture["tool"])


def test_the_largest_difference_comes_first() -> None:
    names = [{"name": "f", "own_ns": 5}, {"name": "g", "own_ns": 9}]
    before, after = cells.pd.DataFrame(names), cells.pd.DataFrame(names[:1])
    rows = side_by_side(before, after)
    assert [("g", -9), ("f", 0)] == list(zip(rows["name"], rows["difference_ns"], strict=True))

"""A script that runs under PyTorch's profiler, in this process."""

import sys
from pathlib import Path
from typing import Any

import pytest

import perfkit
from perfkit.workloads import torch_launcher

ONE = """
import sys
import torch
assert __name__ == "__main__"
torch.ones(8).add(1)
raise SystemExit(int(sys.argv[1]))
"""
# It rests between its steps: the profiler takes a minute to write a second of them without.
ENDLESS = """
import time
import torch
while True:
    torch.ones(8).add(1)
    time.sleep(0.01)
"""


@pytest.fixture
def own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words and the path of this process, which the launcher changes, come back."""
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(torch_launcher.signal, "signal", torch_launcher.signal.signal)
    before = torch_launcher.signal.getsignal(torch_launcher.signal.SIGTERM)
    yield
    torch_launcher.signal.signal(torch_launcher.signal.SIGTERM, before)


def launched(script: str, folder: Path, *options: str) -> Any:
    """The code with which a script ends."""
    file = folder / "script.py"
    file.write_text(script, encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        torch_launcher.main([str(folder), *options, str(file), "3"])
    return ended.value.code


@pytest.mark.usefixtures("own_words")
def test_a_script_is_recorded_and_ends_as_without(torch: Any, tmp_path: Path) -> None:
    assert 3 == launched(ONE, tmp_path, "0", "0", "go")
    run = perfkit.load(tmp_path / "run.pt.trace.json.gz")
    assert "aten::add" in set(run.ops["name"])


@pytest.mark.usefixtures("own_words")
def test_a_script_ends_with_its_recording(torch: Any, tmp_path: Path) -> None:
    assert 0 == launched(ENDLESS, tmp_path, "0", "1", "stop")
    assert (tmp_path / "run.pt.trace.json.gz").is_file()


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({}, (0, 1)),
        ({"RANK": "2", "WORLD_SIZE": "4"}, (2, 4)),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}, (3, 8)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2)),
        ({"RANK": "x", "WORLD_SIZE": "4"}, (0, 1)),
    ],
)
def test_the_rank_is_that_of_the_environment(
    variables: dict[str, str], rank: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (name for names in torch_launcher.RANKS for name in names):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert rank == torch_launcher.rank()

"""The choice as text: what is copied makes the same choice again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner
from explored import run_of, tables
from readers.smi_files import moments, query

from perfkit.cli import main
from perfkit.run import Run, load
from perfkit.widgets.choice import arguments, place, texts

NOTHING: dict[str, Any] = {"ranks": [], "gpus": [], "window": [], "kernels": "", "families": []}
CHOICES: list[dict[str, Any]] = [
    NOTHING,
    {"ranks": [0, 8], "gpus": [1], "window": [1000, 2**53 - 1], "kernels": "gemm*", "families": ["gemm", "softmax"]},
    {"ranks": [], "gpus": [-1], "window": [-5, 10], "kernels": "--out x", "families": []},
    {**NOTHING, "baseline": "/an earlier/run.sqlite", "peaks": "/p'$x.csv"},
    {"ranks": [], "gpus": [], "window": [], "kernels": "a'b\"c\\d\n\u2028\x00\u202e\U000e0001é$(rm)`", "families": []},
]


@pytest.mark.parametrize("chosen", CHOICES)
def test_texts_make_the_choice_again(chosen: dict[str, Any]) -> None:
    """The lines for a cell as Python, those for papermill as YAML."""
    _, cell, file = texts(chosen, Path("/a b/run")).split("\n\n")
    found: dict[str, Any] = {}
    exec(cell, {}, found)
    assert {"profile": "/a b/run", **chosen} == found == yaml.safe_load(file)


@pytest.mark.parametrize("chosen", CHOICES[:4])
def test_the_command_makes_the_choice_again(chosen: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As the command itself reads it."""
    read: dict[str, Any] = {}
    monkeypatch.setattr(main.commands["report"], "callback", lambda **options: read.update(options))
    command = texts(chosen, Path("/a b/run")).splitlines()[1]
    done = CliRunner().invoke(main, shlex.split(command)[1:])
    assert (0, Path("/a b/run")) == (done.exit_code, read["path"])
    lists = {name for name, value in chosen.items() if isinstance(value, list)}
    assert chosen == {name: [*(read[name] or ())] if name in lists else str(read[name]) for name in chosen}


def test_what_is_not_chosen_is_no_option() -> None:
    """The shortest command that does it."""
    assert [] == arguments(CHOICES[0])
    assert texts(CHOICES[0], None).startswith("# in a terminal\nperfkit report PATH\n")
    assert isinstance(main, click.Group)


def test_the_path_that_reads_a_run_again(tmp_path: Path) -> None:
    """A file; a folder that holds the same profiles; none where the folder holds more, or nothing is there."""
    logs = [query(tmp_path / f"{name}.csv", *moments(2)) for name in "ab"]
    assert logs[0] == place(load(logs[0]))
    assert tmp_path == place(load(tmp_path)) == place(load(logs))
    query(tmp_path / "c.csv", *moments(2))
    assert place(load(logs)) is None
    assert place(run_of(tmp_path / "absent", tables())) is None
    assert place(Run([])) is None


def test_a_folder_with_something_strange_is_the_run_without_it(tmp_path: Path) -> None:
    """What cannot be read is left out when the folder is loaded, so that the folder stands for what was read before."""
    logs = [query(tmp_path / f"{name}.csv", *moments(2)) for name in "ab"]
    run = load(logs)
    (tmp_path / "letter.sqlite").write_text("Dear reader")
    assert tmp_path == place(run)
    assert [p.path for p in run.profiles] == [p.path for p in load(tmp_path).profiles]

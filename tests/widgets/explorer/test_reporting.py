"""The button that makes a report, with a small program in the place of the command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from explored import MS, run_of, tables

from perfkit.run import Run
from perfkit.widgets import page
from perfkit.widgets.choice import Explorer


def command(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Run this program instead."""
    monkeypatch.setattr(page, "COMMAND", (sys.executable, "-c", program))


def pressed(explorer: Explorer) -> Any:
    """The button's part, after a press and the end of what it began."""
    part = explorer.view.reporting
    part.button.click()
    thread = part.thread
    if thread:
        thread.join(60)
    return part


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The notebook's folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_runs_the_command_of_the_choice(run: Run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the parameters that would be copied; the same choice goes to the same folder."""
    command(monkeypatch, "import json, sys; json.dump(sys.argv[1:], open('said', 'w'))")
    live = Explorer(run)
    live.choose(gpus=[1], window=[0, 50 * MS], families=["gemm"])
    part = pressed(live)
    path, out, folder, *options = json.loads((here / "said").read_text())
    assert (str(run.profiles[0].path), "--out", here) == (path, out, Path(folder).parent)
    assert ["--gpus", "1", "--window", "0ns:50000000ns", "--families", "gemm"] == options
    assert "The report is ready" in part.status.value
    page = f"{Path(folder).name}/index.html"
    assert f'<a href="{page}" target="_blank">{page}</a>' in part.link.outputs[0]["data"]["text/html"]
    pressed(live)
    assert folder == json.loads((here / "said").read_text())[2]


def test_reports_with_what_the_notebook_was_given(run: Run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier run and peaks, named beside the notebook, are whole paths in the command; the folder is another."""
    command(monkeypatch, "import json, sys; json.dump(sys.argv[1:], open('said', 'w'))")
    pressed(Explorer(run))
    _, _, alone = json.loads((here / "said").read_text())
    pressed(Explorer(run, baseline="before.sqlite", peaks=Path("a/../peaks.csv")))
    _, _, folder, *options = json.loads((here / "said").read_text())
    assert ["--baseline", f"{here}/before.sqlite", "--peaks", f"{here}/peaks.csv"] == options
    assert alone != folder


def test_says_what_went_wrong(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line that the command said, as text; a command that says nothing has its status."""
    command(monkeypatch, "import sys; print('report\\nperfkit: <script>: no', file=sys.stderr); sys.exit(2)")
    part = pressed(Explorer(run))
    assert "could not be made: perfkit: &lt;script&gt;: no" in part.status.value
    assert (False, ()) == (part.button.disabled, part.link.outputs)
    command(monkeypatch, "import sys; sys.exit(3)")
    assert "it ended with status 3" in pressed(Explorer(run)).status.value
    monkeypatch.setattr(page, "COMMAND", ("/no/such/program",))
    assert "No such file" in pressed(Explorer(run)).status.value


def test_a_pattern_that_no_command_can_carry(run: Run) -> None:
    """A zero byte is refused by the system, in words."""
    live = Explorer(run)
    live.choose(kernels="*")
    live.kernels = "?*"
    part = live.view.reporting
    part._make(["\0"], Path("out"))
    assert "embedded null byte" in part.status.value


def test_one_report_at_a_time(run: Run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The button is disabled meanwhile, choices or not; the kernel is free, and time passes."""
    monkeypatch.setattr(page, "TICK", 0.05)
    command(monkeypatch, "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)")
    live = Explorer(run)
    part = live.view.reporting
    part.button.click()
    live.gpus = [1]
    assert part.button.disabled
    first = part.thread
    part.start()
    assert first is part.thread
    (here / "go").touch()
    first.join(60)
    assert not part.button.disabled


def test_nothing_to_report(run: Run, tmp_path: Path) -> None:
    """A choice that leaves nothing disables the button; tables that lie in no file are refused in words."""
    live = Explorer(run)
    live.kernels = "nothing"
    assert live.view.reporting.button.disabled
    live.kernels = ""
    assert not live.view.reporting.button.disabled
    loose = pressed(Explorer(run_of(tmp_path / "absent", tables())))
    assert "not read from one file or folder" in loose.status.value


def test_python_m_perfkit_is_the_command() -> None:
    """The button's command exists."""
    done = subprocess.run([*page.COMMAND, "--help"], capture_output=True, text=True, check=True)
    assert "Usage: perfkit report" in done.stdout

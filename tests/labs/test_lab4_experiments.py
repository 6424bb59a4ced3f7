"""Lab 4's experiments on a student's own runs, and what the case shows."""

from __future__ import annotations

import copy
import re
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
from labs.submissions import points, read

from perfkit import simulate
from perfkit.report.experiments import overview, trials
from perfkit.report.notebooks import sample

NAME = "lab4_experiments"


def on_runs(folder: Path) -> nbformat.NotebookNode:
    """Return the instructor's version whose one parameter names recorded experiments."""
    made = copy.deepcopy(read(NAME))
    cell = next(cell for cell in made.cells if "parameters" in cell.metadata.get("tags", []))
    cell.source, count = re.subn(r'^runs: str = ""', f"runs: str = {str(folder)!r}", cell.source, flags=re.M)
    assert count == 1
    return made


def run(notebook: nbformat.NotebookNode) -> dict[str, Any]:
    """Run all code cells, tests among them, which raise where they fail; return what they defined."""
    space: dict[str, Any] = {"__name__": "__main__"}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, "cell", "exec"), space)
    return space


def test_every_topic_has_a_part() -> None:
    """A heading, a card, the runs and a task for each of the eight."""
    notebook = read(NAME)
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    for name in simulate.NAMES:
        assert f'experiments.card("{name}")' in code
        assert f'{name} = experiments.trials("{name}", runs)' in code
    headings = re.findall(r"^## (\d)\.", "\n".join(cell.source for cell in notebook.cells), re.M)
    assert list("12345678") == headings
    assert len(points(notebook)) >= len(headings)


def test_own_runs_of_a_gpu(tmp_path: Path) -> None:
    """Other captures than those of the lab in the folders of two experiments: the tests are right for them too."""
    for name, other in (("sync", "loading"), ("fusion", "precision")):
        for label, path in simulate.write(other, tmp_path / name).items():
            timings = '{"rows": [{"batch_count": 3, "step_flops": 1000000}]}'
            (path / "timings.json").write_text(timings)
            (path / f"{label}.truth.json").unlink()
    space = run(on_runs(tmp_path))
    assert [3, 3] == [trial.batch_count for trial in space["sync"].values()]


def test_own_runs_of_a_cpu(tmp_path: Path) -> None:
    """Recordings without a kernel, of every pair: every cell runs, and the tests are right."""
    cpu = sample().parent / "cpu_workloads"
    for name in simulate.PAIRS:
        for label, made in (("before", "mlp_training"), ("after", "cnn_training")):
            shutil.copytree(cpu / made, tmp_path / name / label)
    space = run(on_runs(tmp_path))
    assert not any(len(trial.run.kernels) for name in simulate.PAIRS for trial in space[name].values())


@pytest.mark.parametrize(("stage", "share"), [("before", 0.65), ("BF16", 0.78), ("torch.compile", 0.95)])
def test_the_case_is_what_the_text_says(stage: str, share: float) -> None:
    """The overview that the student sees has the utilisation of the notes, to half a point."""
    rows = overview(trials("case")).set_index("run")
    assert rows.loc[stage, "kernel_busy_frac"] == pytest.approx(share, abs=0.005)
    rate = rows["samples_per_s"]
    assert rate["torch.compile"] / rate["before"] == pytest.approx(3.75, rel=0.01)

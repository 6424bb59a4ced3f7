"""The workflows of `docs/pipeline.md` do what they say: their shell lines run with a profiler that copies a file."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pairs.cases import SAME
from pairs.program import NVTX, Change, write

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "pipeline.md"
pytestmark = [
    pytest.mark.skipif(not PAGE.is_file(), reason="no docs beside the tests"),
    pytest.mark.skipif(os.name == "nt", reason="the lines are for bash"),
]
STUBS = {
    "nsys": 'cp "$RECORDED" run.sqlite',
    "gh": 'test "$1 $2 $3 $4" = "pr comment 7 --body-file" && cp "$5" comment.md',
    "perfkit": f'exec "{sys.executable}" -m perfkit "$@"',
}
INSTALL = "python -m pip install"


def workflows() -> list[dict[str, Any]]:
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    return [yaml.safe_load(block) for block in blocks]


def github(event: str) -> str:
    """The lines that GitHub runs for an event."""
    steps = workflows()[0]["jobs"]["check"]["steps"]
    chosen = [
        step["run"] for step in steps if "run" in step and event in step.get("if", f"== '{event}'")
    ]
    return "\n".join(chosen)


def gitlab(job: str) -> str:
    return "\n".join(workflows()[1][job]["script"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with the programs that the lines call, in which the main branch left its baseline."""
    made = tmp_path_factory.mktemp("pipeline")
    (made / "bin").mkdir()
    for name, line in STUBS.items():
        stub = made / "bin" / name
        stub.write_text(f"#!/bin/bash\n{line}\n", encoding="utf-8")
        stub.chmod(0o755)
    write(made / "before.sqlite", SAME, form=NVTX, noise=0.005, seed=0)
    write(made / "equal.sqlite", SAME, form=NVTX, noise=0.005, seed=1)
    write(made / "slow.sqlite", Change(pause=0.3), form=NVTX, noise=0.005, seed=1)
    assert 0 == run(github("push"), made, "before")
    return made


def run(lines: str, folder: Path, recorded: str) -> int:
    """Run lines as both services do: bash ends at the first that fails."""
    kept = [line for line in lines.splitlines() if not line.startswith(INSTALL)]
    place = {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "RECORDED": str(folder / f"{recorded}.sqlite"),
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "PULL_REQUEST": "7",
    }
    return subprocess.run(
        ["bash", "-e", "-c", "\n".join(kept)],
        cwd=folder,
        env={**os.environ, **place},
        check=False,
        timeout=600,
    ).returncode


def test_the_push_makes_the_same_baseline_on_both_services() -> None:
    assert github("push").splitlines() == gitlab("perfkit-baseline").splitlines()


def test_an_equal_run_passes_on_github(folder: Path) -> None:
    assert 0 == run(github("pull_request"), folder, "equal")


def test_a_slower_run_fails_on_github_and_comments(folder: Path) -> None:
    assert 1 == run(github("pull_request"), folder, "slow")
    comment = (folder / "comment.md").read_text(encoding="utf-8")
    assert "### perfkit check: fail" in comment
    assert comment in (folder / "summary.md").read_text(encoding="utf-8")


def test_a_recording_that_cannot_be_read_fails_on_github(folder: Path) -> None:
    (folder / "perfkit.md").unlink(missing_ok=True)
    (folder / "broken.sqlite").write_bytes(b"")
    assert 0 != run(github("pull_request"), folder, "broken")


def test_a_slower_run_fails_on_gitlab(folder: Path) -> None:
    assert 1 == run(gitlab("perfkit-check"), folder, "slow")


def test_gitlab_allows_only_the_status_of_cannot_tell() -> None:
    assert {"exit_codes": 2} == workflows()[1]["perfkit-check"]["allow_failure"]

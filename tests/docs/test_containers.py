"""The files of containers install perfkit's wheel; no image is built, for which a registry would be needed."""

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "containers"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="no docs beside the tests")


@pytest.fixture(params=["Dockerfile", "perfkit.def"])
def file(request: pytest.FixtureRequest) -> str:
    return (FOLDER / request.param).read_text(encoding="utf-8")


def commands(file: str) -> str:
    """The commands that make a container, as a script."""
    told = re.findall(r"^RUN ([^\n]*)$|^%post\n(.*?)^%", file, flags=re.M | re.S)
    return "\n".join(text for pair in told for text in pair if text)


def project() -> dict[str, object]:
    content: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return dict(content["project"])  # type: ignore[call-overload]


def test_the_image_has_a_python_that_perfkit_supports(file: str) -> None:
    (version,) = re.findall(r"^(?:FROM|From:) python:([\d.]+)-slim$", file, flags=re.M)
    assert version in SpecifierSet(str(project()["requires-python"]))


def test_the_container_starts_a_command_of_perfkit(file: str) -> None:
    (command,) = re.findall(r'^ENTRYPOINT \["(\w+)"\]$|^    exec (\w+) "\$@"$', file, flags=re.M)
    assert set(command) - {""} <= set(project()["scripts"])  # type: ignore[call-overload]


def test_binder_installs_perfkit_and_prepares_notebooks_and_labs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binder = ROOT / "binder"
    version = (binder / "runtime.txt").read_text("utf-8").strip().removeprefix("python-")
    assert version in SpecifierSet(str(project()["requires-python"]))
    assert (binder / "requirements.txt").read_text("utf-8").split() == ["."]
    assert os.access(binder / "postBuild", os.X_OK)  # repo2docker runs no other
    monkeypatch.chdir(tmp_path)
    exec((binder / "postBuild").read_text("utf-8"))
    assert "start.ipynb" in {path.name for path in tmp_path.rglob("*.ipynb")}
    labs = [path.read_text("utf-8") for path in (tmp_path / "perfkit-lab" / "labs").iterdir()]
    assert labs
    assert not any("BEGIN SOLUTION" in text for text in labs)


@pytest.mark.matrix
def test_the_commands_install_the_wheel(file: str, tmp_path: Path) -> None:
    """In an environment with only Python; what perfkit needs is taken from this one instead of a registry."""
    wheels = tmp_path / "wheels"
    environment = tmp_path / "environment"
    build = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--wheel-dir", str(wheels)]
    subprocess.run([*build, "--quiet", "--no-deps", "--no-build-isolation"], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    script = commands(file).replace("/wheels", str(wheels))
    assert "pip install" in script
    path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    known = {**os.environ, "PATH": path, "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1"}
    known.pop("PYTHONPATH", None)
    subprocess.run(["sh", "-ec", script], check=True, env=known)
    assert not wheels.exists()
    known["PYTHONPATH"] = sysconfig.get_path("purelib")
    shown = subprocess.run(
        [environment / "bin" / "perfkit", "--version"],
        env=known,
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert str(project()["version"]) in shown.stdout

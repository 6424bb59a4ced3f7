"""Packages with readers from outside, as pip installs them: a module and a folder of metadata, nothing more."""

import re
from pathlib import Path
from types import ModuleType

import pytest

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"


def shown() -> str:
    """The source of the reader that CONTRIBUTING.md shows."""
    if not CONTRIBUTING.exists():
        pytest.skip("no CONTRIBUTING.md beside the tests")
    (first, *_) = re.findall(
        r"^```python\n(.*?)^```$", CONTRIBUTING.read_text(encoding="utf-8"), re.DOTALL | re.M
    )
    return str(first)


def contributed() -> ModuleType:
    module = ModuleType("power_log")
    exec(compile(shown(), str(CONTRIBUTING), "exec"), module.__dict__)
    return module


def power_log(path: Path, rows: int = 20) -> Path:
    path.write_text("# power log\n" + "".join(f"{n}.5 {100 + n % 7}.25\n" for n in range(rows)))
    return path


def package(site: Path, name: str, source: str, *, points: dict[str, str] | None = None) -> None:
    """Write a distribution of one module, as an installer leaves it; `points` are its readers by their names."""
    site.mkdir(exist_ok=True)
    module = name.replace("-", "_")
    (site / f"{module}.py").write_text(source, encoding="utf-8")
    metadata = site / f"{module}-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    lines = "".join(f"{point} = {value}\n" for point, value in (points or {module: module}).items())
    (metadata / "entry_points.txt").write_text(f"[perfkit.readers]\n{lines}")

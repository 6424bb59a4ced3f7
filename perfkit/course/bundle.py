"""Write a folder from which a class installs perfkit and its labs without a network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from perfkit.errors import PerfkitError
from perfkit.report.lab import prepare_course
from perfkit.report.notebooks import sample

GUIDE = """Install perfkit without a network, on the system and with the Python ({version}) of this bundle:

    python -m venv venv
    venv/bin/python -m pip install --no-index --find-links wheels perfkit
    venv/bin/perfkit lab --labs --folder labs

The folder labs holds the students' versions. The sample captures travel inside perfkit's wheel.
"""


def write(out: Path) -> Path:
    """Write the wheels of perfkit and of all that it needs, the labs, and a guide; return the guide.

    Raises PerfkitError where perfkit's source is not there, or pip cannot get a wheel.
    """
    root = sample().parent.parent
    if not (root / "pyproject.toml").is_file():
        raise PerfkitError(
            "perfkit's source is not there, from which a bundle is built. Install perfkit from it: pip install -e ."
        )
    command = [sys.executable, "-m", "pip", "wheel", "--wheel-dir", str(out / "wheels"), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        raise PerfkitError(f"{out}: pip cannot make the wheels: {' '.join(last)}")
    prepare_course(out / "labs")
    guide = out / "INSTALL.txt"
    guide.write_text(GUIDE.format(version=sys.version.split()[0]), encoding="utf-8")
    return guide

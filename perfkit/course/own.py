"""Give each student data of their own, whose right answers follow from the seed of the course and the student's name.

`data/make` in perfkit's source makes the captures, so an instructor needs the source, and students do not.
"""

from __future__ import annotations

import csv
import json
import re
import secrets
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from perfkit.errors import PerfkitError
from perfkit.report.lab import prepare_course
from perfkit.report.notebooks import sample

PARAMETER = "programs"  # of a lab whose answers are a student's own
TRUTH = "truth.json"
LEAST_SEED = 16  # characters; a student can try all words as seeds, and compare captures
NAME = re.compile(r"[\w.@+-]{1,80}")
SET = re.compile(rf'{PARAMETER}: str = \\"\\"')


def check_seed(seed: str) -> None:
    """Raise PerfkitError if a student could guess the seed, and with it all right answers."""
    if len(seed) < LEAST_SEED:
        raise PerfkitError(
            f"the seed has {len(seed)} characters, and needs {LEAST_SEED} that nobody can guess, "
            f"for example --seed {secrets.token_hex(LEAST_SEED // 2)}. Note it down: grading needs it."
        )


def students(roster: Path) -> list[str]:
    """Return the names in the column `student` of a CSV file. Raises PerfkitError if one cannot name a folder."""
    try:
        with roster.open(encoding="utf-8-sig", newline="") as file:
            names = [(row.get("student") or "").strip() for row in csv.DictReader(file)]
    except OSError as e:
        raise PerfkitError(f"{roster}: cannot be read ({e.strerror}).") from e
    for name in names:
        if not NAME.fullmatch(name) or name.startswith("."):
            raise PerfkitError(
                f"{roster}: {name!r} in the column `student` cannot name a folder. Use letters, digits and _.@+- only."
            )
    if not names or len(set(names)) < len(names):
        raise PerfkitError(f"{roster}: needs a column `student` with each student once.")
    return names


def hand_out(seed: str, student: str, folder: Path) -> None:
    """Write the labs of a student: the students' versions, and captures of the student's own."""
    place = prepare_course(folder / student)
    maker().write(seed, student, place / PARAMETER)
    for path in place.glob("lab*.ipynb"):
        text = path.read_text(encoding="utf-8")
        path.write_text(SET.sub(rf'{PARAMETER}: str = \\"{PARAMETER}\\"', text), encoding="utf-8")


def prepare(seed: str, student: str, box: Path) -> str:
    """Write a student's captures for the student's process and for the tests; return the folder for the tests.

    The right answers lie beside the captures of the tests alone.
    """
    made, place = maker(), box / "own"
    made.write(seed, student, place)
    shown = box / "files" / PARAMETER
    if shown.exists():  # what the student handed in under this name does not count
        shown.rename(box / "handed in")
    shutil.copytree(place, shown)
    right = {name: made.answers(each) for name, each in made.programs(seed, student).items()}
    (place / TRUTH).write_text(json.dumps(right), encoding="utf-8")
    return str(place)


def maker() -> Any:
    """Return the module that makes the captures. Raises PerfkitError where perfkit's source is not there."""
    data = sample().parent
    if not (data / "make" / "own.py").is_file():
        raise PerfkitError(
            "data/make is not there, which makes captures. Install perfkit from its source: pip install -e ."
        )
    if str(data) not in sys.path:
        sys.path.insert(0, str(data))  # before a make.py where the instructor works
    return import_module("make.own")

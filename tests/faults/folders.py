"""Small folders in the place of reports: what `perfkit report` writes goes through the same door."""

import hashlib
import json
from pathlib import Path
from typing import Any

from perfkit.report import output

MADE_BY = "perfkit report"


LIMIT = 240  # s for a command on a busy machine


def make(out: Path, text: str, **options: Any) -> list[str]:
    """Make a folder of three files and return what the user is told."""
    notes: list[str] = []
    with output.replacing(out, MADE_BY, note=notes.append, **options) as made:
        for name in ("index.html", "notebooks/3_system.ipynb", "tables/kernels.parquet"):
            (made / name).parent.mkdir(exist_ok=True)
            (made / name).write_text(f"{text} {name}")
    return notes


def text_of(out: Path) -> str:
    """The text of a folder that is whole: all files of its marker, each as it was written, from one run."""
    files = json.loads((out / output.MARKER).read_text())["files"]
    assert {"index.html", "notebooks/3_system.ipynb", "tables/kernels.parquet"} == set(files)
    for name, about in files.items():
        content = (out / name).read_bytes()
        assert (about["bytes"], about["sha256"]) == (
            len(content),
            hashlib.sha256(content).hexdigest(),
        )
    (text,) = {(out / name).read_text().split()[0] for name in files}
    return text


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }

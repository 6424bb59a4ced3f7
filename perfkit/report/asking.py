"""What a report asks of its kernel: a function of `perfkit.report.pages`, and what it takes and answers.

Both travel as JSON in files of a folder, so that no text needs quoting. What the function raises,
the process that asked raises again.
"""

from __future__ import annotations

import base64
import json
import pickle
from importlib import import_module
from pathlib import Path
from typing import Any

QUESTION, ANSWER = "question.json", "answer.json"
ANSWERS = "perfkit.report.pages"  # the module of the functions that a kernel is asked for


def ask(folder: Path, name: str, given: dict[str, Any]) -> str:
    """Write a question and return the code that answers it."""
    (folder / ANSWER).unlink(missing_ok=True)
    (folder / QUESTION).write_text(json.dumps({"name": name, "given": given}), encoding="ascii")
    return (
        f"from pathlib import Path; from perfkit.report import asking; "
        f"asking.answer(Path({str(folder)!r}))"
    )


def answer(folder: Path) -> None:
    """Call the function that was asked for, and write what it returns or raises."""
    question = json.loads((folder / QUESTION).read_text(encoding="ascii"))
    try:
        function = getattr(import_module(ANSWERS), question["name"])
        content = {"returned": function(**question["given"])}
    except Exception as e:  # noqa: BLE001  whatever it is, whoever asked gets it
        content = {"raised": base64.b64encode(pickle.dumps(e)).decode("ascii")}
    (folder / ANSWER).write_text(json.dumps(content), encoding="ascii")


def answered(folder: Path) -> Any:
    """Return the answer to the last question, or raise it; OSError if there is none."""
    content = json.loads((folder / ANSWER).read_text(encoding="ascii"))
    if "raised" in content:
        raise pickle.loads(base64.b64decode(content["raised"]))
    return content["returned"]

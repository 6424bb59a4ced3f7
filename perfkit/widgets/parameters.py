"""A choice as text to copy: for the command line, a notebook's parameters, and papermill."""

import shlex
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from perfkit.discovery import discovered
from perfkit.errors import ReadError
from perfkit.run import Run

# What a choice consists of, and of what each part is a list; `kernels` is one text.
FIELDS: dict[str, type] = {
    "ranks": int,
    "gpus": int,
    "window": int,
    "kernels": str,
    "families": str,
}
CHOICES = list(FIELDS)
MOST_LOOKED, MOST_NAMED = 20, 5  # paths beside a run


def place(run: Run) -> Path | None:
    """Return the path that `perfkit.load` takes to read the same run; None if there is none."""
    paths = [profile.path for profile in run.profiles]
    if not paths or not all(path.exists() for path in paths):
        return None
    if len(paths) == 1:
        return paths[0].resolve()
    folder = paths[0].resolve().parent
    try:
        profiles, _ = discovered([folder])
    except ReadError:
        return None
    return (
        folder
        if {file.path.resolve() for file in profiles} == {path.resolve() for path in paths}
        else None
    )


def neighbours(run: Run) -> list[Path]:
    """Return the first few paths beside a run that perfkit can read, too."""
    here = place(run)
    if here is None:
        return []
    beside = (path for path in sorted(here.parent.iterdir()) if path != here)
    found = []
    for path in islice(beside, MOST_LOOKED):
        with suppress(ReadError):
            if discovered([path])[0]:
                found.append(path)
    return found[:MOST_NAMED]


def arguments(chosen: Mapping[str, Any]) -> list[str]:
    """Return the options of ``perfkit report`` that make this choice; what is not chosen or given has none.

    >>> arguments({"ranks": [], "gpus": [0, 2], "window": [1000, 2000], "kernels": "gemm", "families": []})
    ['--gpus', '0,2', '--window', '1000ns:2000ns', '--kernels', 'gemm']
    """
    listed = {name: ",".join(map(str, chosen[name])) for name in ("ranks", "gpus")}
    listed["window"] = ":".join(f"{edge}ns" for edge in chosen["window"])
    listed |= {"kernels": chosen["kernels"], "families": ",".join(chosen["families"])}
    listed |= {name: chosen.get(name, "") for name in ("baseline", "peaks")}
    return [part for name, value in listed.items() if value for part in (f"--{name}", value)]


def texts(chosen: Mapping[str, Any], path: Path | None) -> str:
    """Return two commands, and between them the lines of a notebook's parameters."""
    place = str(path or "PATH")
    options = arguments(chosen)
    named = {"profile": str(path), **chosen} if path else dict(chosen)
    lines = [f"{name} = {_literal(value)}" for name, value in named.items()]
    # -r passes a text as it is: -p would make a number of a kernel's name such as 1e5.
    given = ["-r", "profile", place]
    for option, value in zip(options[::2], options[1::2], strict=True):
        given += ["-r", option.removeprefix("--"), value]
    return "\n".join(
        [
            "# in a terminal",
            shlex.join(["perfkit", "report", place, *options]),
            "",
            "# in the first cell of a notebook",
            *lines,
            "",
            "# to run a notebook without a person",
            shlex.join(["papermill", "NOTEBOOK", "OUT", *given]),
        ]
    )


def _literal(value: object) -> str:
    """Return a text, number or list as Python writes it; a text without a sign that is not seen."""
    if isinstance(value, str):
        signs = (
            f"\\{c}" if c in '"\\' else c if c.isprintable() else f"\\U{ord(c):08x}" for c in value
        )
        return f'"{"".join(signs)}"'
    return f"[{', '.join(map(_literal, value))}]" if isinstance(value, list) else str(value)

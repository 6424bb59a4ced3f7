"""A choice as text to copy: for the command line, a notebook's cell, and a file that papermill reads.

Functions
---------
place       the path by which a run is read again
arguments   what follows ``perfkit report``
texts       the three texts as one
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfkit.discovery import discovered
from perfkit.errors import ReadError
from perfkit.run import Run


def place(run: Run) -> Path | None:
    """Return the path that `perfkit.load` takes to read the same run; None if there is none.

    Examples
    --------
    >>> place(Run([])) is None
    True
    """
    paths = [profile.path for profile in run.profiles]
    if not paths or not all(path.exists() for path in paths):
        return None
    if len(paths) == 1:
        return paths[0].resolve()
    folder = paths[0].resolve().parent
    try:
        found, _ = discovered([folder])
    except ReadError:
        return None
    return folder if {each.path.resolve() for each in found} == {path.resolve() for path in paths} else None


def arguments(chosen: Mapping[str, Any]) -> list[str]:
    """Return the options of ``perfkit report`` that make this choice; what is not chosen or given has none.

    Examples
    --------
    >>> arguments({"ranks": [], "gpus": [0, 2], "window": [1000, 2000], "kernels": "gemm", "families": []})
    ['--gpus', '0,2', '--window', '1000ns:2000ns', '--kernels', 'gemm']
    """
    listed = {name: ",".join(map(str, chosen[name])) for name in ("ranks", "gpus")}
    listed["window"] = ":".join(f"{edge}ns" for edge in chosen["window"])
    listed |= {"kernels": chosen["kernels"], "families": ",".join(chosen["families"])}
    listed |= {name: chosen.get(name, "") for name in ("baseline", "peaks")}
    return [part for name, value in listed.items() if value for part in (f"--{name}", value)]


def texts(chosen: Mapping[str, Any], path: Path | None) -> str:
    """Return a command, the lines of a notebook's parameters, and a file for ``papermill -f``."""
    named = {"profile": str(path), **chosen} if path else dict(chosen)
    values = {name: _literal(value) for name, value in named.items()}
    command = shlex.join(["perfkit", "report", str(path or "PATH"), *arguments(chosen)])
    return "\n".join(
        [
            "# in a terminal",
            command,
            "",
            "# in the first cell of a notebook",
            *(f"{name} = {value}" for name, value in values.items()),
            "",
            "# in a file FILE.yaml, for: papermill NOTEBOOK OUT -f FILE.yaml",
            *(f"{name}: {value}" for name, value in values.items()),
        ]
    )


def _literal(value: object) -> str:
    """Return a text, number or list as Python and YAML both write it."""
    if isinstance(value, str):
        return '"' + "".join(_character(c) for c in value) + '"'
    return f"[{', '.join(map(_literal, value))}]" if isinstance(value, list) else str(value)


def _character(c: str) -> str:
    if c in '"\\':
        return f"\\{c}"
    return c if c.isprintable() else f"\\U{ord(c):08x}"

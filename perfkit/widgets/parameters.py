"""A choice as text to copy: for the command line, a notebook's parameters, and papermill."""

import shlex
from collections.abc import Mapping
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
    """Return a command, the lines of a notebook's parameters, and a file for ``papermill -f``."""
    named = {"profile": str(path), **chosen} if path else dict(chosen)
    values = {name: _literal(value) for name, value in named.items()}
    lines = [
        "# in a terminal",
        shlex.join(["perfkit", "report", str(path or "PATH"), *arguments(chosen)]),
    ]
    lines += [
        "",
        "# in the first cell of a notebook",
        *(f"{name} = {value}" for name, value in values.items()),
    ]
    lines += ["", "# in a file FILE.yaml, for: papermill NOTEBOOK OUT -f FILE.yaml"]
    return "\n".join([*lines, *(f"{name}: {value}" for name, value in values.items())])


def _literal(value: object) -> str:
    """Return a text, number or list as Python and YAML both write it."""
    if isinstance(value, str):
        signs = (
            f"\\{c}" if c in '"\\' else c if c.isprintable() else f"\\U{ord(c):08x}" for c in value
        )
        return f'"{"".join(signs)}"'
    return f"[{', '.join(map(_literal, value))}]" if isinstance(value, list) else str(value)

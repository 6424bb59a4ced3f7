"""A report without names of the machine that made it, and of recorded machines.

A report names files by the run, not by where they lie: `/home/ann/runs/mlp/nsys.sqlite` becomes `mlp/nsys.sqlite`.
Folders of the machine become a word: `~` (home), `.` (working folder), `python`. All that a report writes goes through
a `Machine` before. Of other machines the home folders become `~`, their users `user0`, and the hosts that a profile
names `host0`.
"""

from __future__ import annotations

import html
import json
import os
import platform
import re
import sys
import sysconfig
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
from nbformat import NotebookNode

from perfkit import cache
from perfkit.report.output import TEXT

PARAMETERS = (
    "injected-parameters"  # papermill's tag of the cell with the parameters that it was given
)
SET_IT = "  # a name: set it to the path of yours before you run this notebook"
SHARED = {
    "/usr",
    "/usr/local",
    "/opt",
    "/tmp",
    "/var/tmp",
    "/home",
    "/mnt",
}  # folders of every machine
# A home folder of any system, with one backslash or, in JSON and in Python, two.
HOME = re.compile(
    r"(?<![\w.~-])(?:/home/|/Users/|[A-Za-z]:(?:/|\\\\?)Users(?:/|\\\\?))"
    r"(?!Shared\b|Public\b|linuxbrew\b)(?P<user>\w(?:[\w.-]{0,62}\w)?)(?!\w)"
)
NO_USERS = {"root", "user"}
LEAST_USER, LEAST_HOST = 4, 8  # characters: a shorter name can be a word of the report
# A path ends before a separator (two backslashes in JSON), or where no further character can be part of its last name.
_END = r"(?:(?P<separator>\\\\|[/\\])|(?![\w-]|\.\w))"
# A folder below the root may be a part of another path: it begins where no name ends, or after a terminal's colour.
_BEGIN = r"(?:(?<![\w.~])|(?<=\x1b\[0m)|(?<=\x1b\[\d\dm)|(?<=\x1b\[\d;\d\dm))"
_RELATIVE = r"(?<![\w.~/\\-])"
_DATA = re.compile(r"(data:text/[\w.+-]+(?:;[\w=-]+)*;base64,)([A-Za-z0-9+/]+={0,2})")


class Machine:
    """The names of this machine, in every form in which they stand in a file."""

    def __init__(self, names: Mapping[str, str], own: Iterable[tuple[str, str, str]] = ()) -> None:
        self._users: dict[str, tuple[re.Pattern[str], str]] = {}
        self._words: dict[str, str] = {}
        patterns = []
        for path in sorted(names, key=len, reverse=True):
            parts = Path(path).parts
            if len(parts) < 2 or path in SHARED:
                continue
            short = _BEGIN if len(parts) == 2 else ""
            begin = short if Path(path).is_absolute() else _RELATIVE
            for form, word in zip(_forms(path), _forms(names[path]), strict=True):
                if form not in self._words:
                    self._words[form] = word
                    patterns.append(begin + re.escape(form))
        firsts = re.escape(
            "".join({form[0] for form in self._words})
        )  # most characters begin no path: they go first
        self._paths = (
            re.compile(f"(?=[{firsts}])(?P<path>{'|'.join(patterns)}){_END}") if patterns else None
        )
        self._own = [(name, re.compile(pattern), word) for name, pattern, word in own]

    def text(self, text: str) -> str:
        """Return a text without names of this machine, also in the tables that it holds as data."""
        made = text  # most texts hold none: looking for the names is faster than a pattern
        if (
            self._paths
            and ("/" in text or "\\" in text)
            and any(name in text for name in self._words)
        ):
            made = self._paths.sub(self._named, text)
        for name, pattern, word in self._own:
            made = pattern.sub(word, made) if name in made else made
        if self._paths:
            made = self._without_homes(made)
        return _DATA.sub(self._data, made) if "data:text/" in made else made

    def _without_homes(self, text: str) -> str:
        """Return a text without home folders of other machines, and without the names of their users in paths."""
        made = HOME.sub(self._home, text) if "/home/" in text or "Users" in text else text
        for user, (pattern, word) in self._users.items():
            made = pattern.sub(word, made) if user in made else made
        return made

    def _home(self, found: re.Match[str]) -> str:
        user = found["user"]
        if len(user) >= LEAST_USER and user not in NO_USERS and user not in self._users:
            pattern = re.compile(rf"(?<=[/\\]){re.escape(user)}(?=[/\\])")
            self._users[user] = (pattern, f"user{len(self._users)}")
        return "~"

    def value(self, value: Any) -> Any:
        """Return a value of JSON, such as a notebook, without names of this machine."""
        if isinstance(value, dict):
            return type(value)({self.text(name): self.value(one) for name, one in value.items()})
        if isinstance(value, list):
            return [self.value(one) for one in value]
        return self.text(value) if isinstance(value, str) else value

    def notebook(self, notebook: NotebookNode, inputs: Iterable[str]) -> NotebookNode:
        """Return an executed notebook without where it lay; its parameters `inputs` say that they are names only."""
        made: NotebookNode = self.value(notebook)
        papermill = made.metadata.get("papermill", {})
        for name in ("input_path", "output_path", "environment_variables"):
            papermill.pop(name, None)
        named = tuple(f"{parameter} = " for parameter in inputs)
        for cell in made.cells:
            if PARAMETERS in cell.metadata.get("tags", ()):
                lines = cell.source.split("\n")
                cell.source = "\n".join(
                    f"{line}{SET_IT}" if line.startswith(named) else line for line in lines
                )
        return made

    def frame(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return a table in whose texts, and in what is noted of it, no name of this machine stands."""
        made = frame.copy(deep=False)
        made.attrs = self.value(frame.attrs)
        for name in made:
            changes = self._changes(_texts(made[name]))
            if changes:
                made[name] = _replaced(made[name], changes)
        return made

    def _changes(self, texts: Iterable[object]) -> dict[str, str]:
        """Return texts that hold a name, and what they become."""
        cleaned = {text: self.text(text) for text in texts if isinstance(text, str)}
        return {text: made for text, made in cleaned.items() if made != text}

    def _named(self, found: re.Match[str]) -> str:
        word, separator = self._words[found["path"]], found["separator"]
        return f"{word}{separator}" if word and separator else word or ("" if separator else ".")

    def _data(self, found: re.Match[str]) -> str:
        try:
            before = b64decode(found[2], validate=True).decode("utf-8")
        except ValueError:
            return found[0]  # it is no text
        after = self.text(before)
        return found[0] if after == before else found[1] + b64encode(after.encode(**TEXT)).decode()


def named(
    report: Path, inputs: Mapping[str, str | Path | None], hosts: Iterable[str] = ()
) -> Machine:
    """Return this machine, for a report that is written to a folder, and the `hosts` that were recorded.

    `inputs` are the paths that it is made from, by their parameters: of two with one name the second is `baseline/mlp`.
    """
    own = [*_own_names()]
    others = sorted(set(hosts) - {name for name, *_ in own})
    recorded = [_host(host, f"host{number}") for number, host in enumerate(others) if _tells(host)]
    return Machine({**_folders(report), **_names(inputs)}, [*own, *recorded])


def _texts(values: pd.Series) -> Iterable[object]:
    """Return the different values of a column that may hold texts."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        return values.cat.categories
    is_text = pd.api.types.is_string_dtype(values) or pd.api.types.is_object_dtype(values)
    return values.dropna().unique() if is_text else ()


def _replaced(values: pd.Series, changes: Mapping[str, str]) -> pd.Series:
    """Return a column with other texts, of its own type; two categories may become one."""
    made = values.astype("string").replace(dict(changes))
    if isinstance(values.dtype, pd.CategoricalDtype):
        return made.astype(object).astype("category")
    return made.astype(values.dtype)


def _names(inputs: Mapping[str, str | Path | None]) -> dict[str, str]:
    """Return the name of each input by its path, as given and whole, and none for the folders that inputs lie in."""
    names: dict[str, str] = {}
    parents: dict[str, str] = {}
    for parameter, given in inputs.items():
        path = Path(given or "").absolute()
        if given and path.name:
            name = f"{parameter}/{path.name}" if path.name in names.values() else path.name
            for form in (path, path.resolve()):
                names[str(form)] = name if form.name == path.name else form.name
                parents[str(form.parent)] = ""
            if len(Path(given).parts) > 1 and Path(given).name != "..":
                names[str(Path(given))] = name
    return parents | names


def _folders(report: Path) -> dict[str, str]:
    """Return the word for each folder of this machine that a text may name; a later one goes before."""
    installed = sysconfig.get_paths()
    folders = {
        tempfile.gettempdir(): "tmp",
        str(cache.root() or ""): "cache",
        **dict.fromkeys((sys.base_prefix, sys.prefix), "python"),
        **{installed[name]: "python" for name in ("stdlib", "platstdlib", "purelib", "platlib")},
        str(Path(__file__).parents[2]): "",
        str(Path.home()): "~",
        os.environ.get("HOME", ""): "~",
        **{str(path): "." for path in (report.parent, report, Path.cwd())},
    }
    return {
        form: word
        for path, word in folders.items()
        if path
        for form in (path, os.path.realpath(path))
    }


def _forms(text: str) -> tuple[str, ...]:
    """Return a text as it stands in prose, HTML, JSON, JSON in a script, Python, and an address."""
    escaped = json.dumps(text)[1:-1]
    in_script = escaped.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    in_json = json.dumps(text, ensure_ascii=False)[1:-1]
    return (
        text,
        html.escape(text),
        escaped,
        in_json,
        in_script,
        repr(text)[1:-1],
        quote(os.fsencode(text)),
    )


def _own_names() -> Iterable[tuple[str, str, str]]:
    """Yield the user (as a folder) and the host (alone), unless they are words, as patterns, and what replaces them."""
    for user in {os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME")} - NO_USERS:
        if len(user) >= LEAST_USER:
            yield user, rf"(?<=[/\\]){re.escape(user)}(?=[/\\])", "USER"
    for host in dict.fromkeys((platform.node(), platform.node().partition(".")[0])):
        if _tells(host):
            yield _host(host, "HOST")


def _tells(host: str) -> bool:
    """Say whether a name is that of a host, and no word."""
    return len(host) >= LEAST_HOST and re.search(r"[\d.-]", host) is not None


def _host(host: str, word: str) -> tuple[str, str, str]:
    return host, rf"(?<![\w.-]){re.escape(host)}(?![\w-])", word

"""What leaves the machine: a report names files by the run, not by where they lie on the machine that made it.

A path to an input becomes the input's name: `/home/ann/runs/mlp/nsys.sqlite` becomes `mlp/nsys.sqlite`. Folders of the
machine become a word: `~` (home), `.` (working folder), `python`. Names that a profile recorded stay as they are,
except for such a path in them.
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
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from perfkit import cache
from perfkit.report.output import TEXT

TEXTS = {".html", ".ipynb", ".json", ".md", ".csv", ".txt", ".svg"}
PARAMETERS = "injected-parameters"  # papermill's tag of the cell with the parameters that it was given
SET_IT = "  # a name: set it to the path of yours before you run this notebook"
SHARED = {"/usr", "/usr/local", "/opt", "/tmp", "/var/tmp", "/home", "/mnt"}  # folders of every machine
COMMON_USERS = {"root", "user"}
LEAST_USER, LEAST_HOST = 4, 8  # characters: a shorter name can be a word of the report

# A path ends before a separator (two backslashes in JSON), or where no further character can be part of its last name.
_END = r"(?:(?P<separator>\\\\|[/\\])|(?![\w-]|\.\w))"
# A folder below the root may be a part of another path: it begins where no name ends, or after a terminal's colour.
_BEGIN = r"(?:(?<![\w.~])|(?<=\x1b\[0m)|(?<=\x1b\[\d\dm)|(?<=\x1b\[\d;\d\dm))"
_RELATIVE = r"(?<![\w.~/\\-])"
_PROGRAM = re.compile(r"(<script\b(?![^>]*application/json)[^>]*>.*?</script>)", re.DOTALL | re.IGNORECASE)
_DATA = re.compile(r"(data:text/[\w.+-]+(?:;[\w=-]+)*;base64,)([A-Za-z0-9+/]+={0,2})")


def clean(folder: Path, inputs: Mapping[str, str | Path | None]) -> None:
    """Take absolute paths, user name and host name of this machine out of the files of a report.

    `folder` holds the report with all its files; a PDF is made of them afterwards. `inputs` are the paths that the
    report
    was made from, as given, by the names of their parameters. Of two inputs with one name the second is called by its
    parameter too: `baseline/mlp`.
    """
    machine = _Machine({**_folders(folder), **_names(inputs)})
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        if file.suffix == ".parquet":
            _clean_table(file, machine)
        elif file.suffix in TEXTS:
            before = file.read_bytes().decode("utf-8")
            after = _cleaned(file.suffix, before, machine, inputs)
            if after != before:
                file.write_text(after, newline="", **TEXT)


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
    return {form: word for path, word in folders.items() if path for form in (path, os.path.realpath(path))}


class _Machine:
    """The names of this machine, in every form in which they stand in a file."""

    def __init__(self, names: Mapping[str, str]) -> None:
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
        self._paths = re.compile(f"(?P<path>{'|'.join(patterns)}){_END}") if patterns else None
        self._own = {re.compile(pattern): word for pattern, word in _own_names()}

    def text(self, text: str) -> str:
        """Return a text without names of this machine, also in the tables that it holds as data."""
        made = self._paths.sub(self._named, text) if self._paths else text
        for pattern, word in self._own.items():
            made = pattern.sub(word, made)
        return _DATA.sub(self._data, made)

    def value(self, value: Any) -> Any:
        """Return a value of JSON without names of this machine."""
        if isinstance(value, dict):
            return {self.text(name): self.value(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self.value(one) for one in value]
        return self.text(value) if isinstance(value, str) else value

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


def _forms(text: str) -> tuple[str, ...]:
    """Return a text as it stands in prose, HTML, JSON, JSON in a script, Python, and an address."""
    escaped = json.dumps(text)[1:-1]
    in_script = escaped.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    in_json = json.dumps(text, ensure_ascii=False)[1:-1]
    return (text, html.escape(text), escaped, in_json, in_script, repr(text)[1:-1], quote(os.fsencode(text)))


def _own_names() -> Iterable[tuple[str, str]]:
    """Yield a pattern for the user (as a folder) and the host (alone), if they are no words, and what stands for
    them.
    """
    for user in {os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME")} - COMMON_USERS:
        if len(user) >= LEAST_USER:
            yield rf"(?<=[/\\]){re.escape(user)}(?=[/\\])", "USER"
    for host in dict.fromkeys((platform.node(), platform.node().partition(".")[0])):
        if len(host) >= LEAST_HOST and re.search(r"[\d.-]", host):
            yield rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "HOST"


def _cleaned(suffix: str, text: str, machine: _Machine, inputs: Mapping[str, str | Path | None]) -> str:
    """Return the text of a file without names of this machine."""
    if suffix == ".html":
        # The policy of a page names its own programs by their hash.
        parts = _PROGRAM.split(text)
        return "".join(part if number % 2 else machine.text(part) for number, part in enumerate(parts))
    if suffix not in (".ipynb", ".json"):
        return machine.text(text)
    before = json.loads(text)
    after = machine.value(_without_places(before, inputs) if suffix == ".ipynb" else before)
    return text if after == before else json.dumps(after, indent=1, ensure_ascii=False) + "\n"


def _without_places(notebook: dict[str, Any], inputs: Mapping[str, str | Path | None]) -> dict[str, Any]:
    """Return an executed notebook without where it lay; its parameters say which of them are names only."""
    metadata = dict(notebook.get("metadata", {}))
    if "papermill" in metadata:
        places = {"input_path", "output_path", "environment_variables"}
        metadata["papermill"] = {name: one for name, one in metadata["papermill"].items() if name not in places}
    named = tuple(f"{parameter} = " for parameter, path in inputs.items() if path)
    cells = list(notebook["cells"])
    for number, cell in enumerate(cells):
        if PARAMETERS in cell["metadata"].get("tags", ()):
            lines = "".join(cell["source"]).split("\n")
            source = "\n".join(f"{line}{SET_IT}" if line.startswith(named) else line for line in lines)
            cells[number] = cell | {"source": source.splitlines(keepends=True)}
    return notebook | {"metadata": metadata, "cells": cells}


def _clean_table(file: Path, machine: _Machine) -> None:
    """Clean the texts of a Parquet file and what is noted in it; most tables hold no path and stay as they are."""
    with file.open("rb") as opened:  # pyarrow opens no path that is not UTF-8
        parquet = pq.ParquetFile(opened)
        schema = parquet.schema_arrow
        notes = repr([schema.metadata, *(field.metadata for field in schema)])
        stored = parquet.read(columns=[field.name for field in schema if _is_text(field.type)])
    changes = {name: made for name in stored.column_names if (made := _changes(stored.column(name), machine))}
    if not changes and machine.text(notes) == notes:
        return
    with file.open("rb") as opened:
        frame = pq.ParquetFile(opened).read().to_pandas()
    frame.attrs = {}
    for name, made in changes.items():
        is_category = isinstance(frame[name].dtype, pd.CategoricalDtype)
        values = frame[name].astype("string").replace(made)
        frame[name] = values.astype(object).astype("category") if is_category else values.astype(frame[name].dtype)
    with file.open("wb") as written:
        pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), written, compression="zstd")


def _is_text(type: pa.DataType) -> bool:
    values = type.value_type if pa.types.is_dictionary(type) else type
    return bool(pa.types.is_string(values) or pa.types.is_large_string(values))


def _changes(column: pa.ChunkedArray, machine: _Machine) -> dict[str, str]:
    """Return the new text of each text of a column that names this machine."""
    is_dictionary = pa.types.is_dictionary(column.type)
    values = (chunk.dictionary for chunk in column.chunks) if is_dictionary else [pc.unique(column)]
    texts = {text for each in values for text in each.to_pylist() if text is not None}
    return {text: made for text in texts if (made := machine.text(text)) != text}

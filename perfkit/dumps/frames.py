"""Frames of a call stack, as PyTorch writes them: which line of the program is the innermost one?"""

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

import pandas as pd

# Files that are no part of the program: libraries, the standard library, generated code, and C++.
LIBRARY = re.compile(r"site-packages|dist-packages|lib/python3|torchinductor|^<|/torch/")


class Frame(NamedTuple):
    """A line of a program; all parts are None where none is known."""

    function: str | None = None
    file: str | None = None
    line: int | None = None


def innermost(frames: Iterable[Mapping[str, Any]]) -> Frame:
    """Return the innermost line of the program's own Python, else of a library's Python; frames come leaf first.

    >>> leaf = {"name": "linear", "filename": "/usr/lib/python3.11/site-packages/torch/nn.py", "line": 5}
    >>> innermost([leaf, {"name": "forward", "filename": "/home/me/train.py", "line": 7}])
    Frame(function='forward', file='/home/me/train.py', line=7)
    """
    python = [frame for frame in frames if str(frame.get("filename", "")).endswith(".py")]
    own = [frame for frame in python if not LIBRARY.search(str(frame["filename"]))]
    chosen = own or python
    if not chosen:
        return Frame()
    line = chosen[0].get("line")
    number = line if isinstance(line, int) and 0 <= line < 1 << 31 else None
    return Frame(str(chosen[0].get("name", "")), str(chosen[0]["filename"]), number)


def place(row: Any) -> str:
    """Return file and line of a row of a table; empty where they were not recorded."""
    return "" if pd.isna(row.file) else f"{row.file}:{row.line}"


BUILD = re.compile(r"^(?:_apply|convert|__init__|reset_parameters)$")
MODULE = re.compile(r"(?:^|/)nn/modules/module\.py$")
BELOW = " > "  # between a module and one that it calls
CALLS = ("_call_impl", "_wrapped_call_impl")
ENGINE = re.compile(r"torch::autograd::(?:Engine|Node)")


def stage(frames: Iterable[Mapping[str, Any]]) -> str:
    """Return what the program did when it asked for memory: build, forward, backward, optimizer or other.

    Autograd's threads show in frames of C++ alone. "build" is the making or moving of a module.

    >>> stage([{"name": "torch::autograd::Engine::thread_main()", "filename": "??", "line": 0}])
    'backward'
    >>> stage([{"name": "step", "filename": "/home/me/my_optim/sgd.py", "line": 3}])
    'optimizer'
    """
    found = "other"
    for frame in frames:
        name, file = str(frame.get("name", "")), str(frame.get("filename", ""))
        if name == "optimizer_step" or (name == "step" and "optim" in file):
            return "optimizer"
        if ENGINE.search(name):
            return "backward"
        if MODULE.search(file) and name in CALLS:
            found = "forward"
        elif found == "other" and MODULE.search(file) and BUILD.match(name):
            found = "build"
    return found


def modules(frames: Iterable[Mapping[str, Any]]) -> str:
    """Return the forward passes of the modules around an allocation, the outermost first; empty for none.

    Stacks have no names of classes: a module is the line that its forward pass has reached.

    >>> call = {"name": "_call_impl", "filename": "/opt/torch/nn/modules/module.py", "line": 1750}
    >>> inner = {"name": "forward", "filename": "/home/me/block.py", "line": 4}
    >>> outer = {"name": "forward", "filename": "/home/me/model.py", "line": 9}
    >>> modules([inner, call, outer, call])
    'model.py:9 > block.py:4'
    """
    path: list[str] = []
    reached = ""
    for frame in frames:
        name, file = str(frame.get("name", "")), str(frame.get("filename", ""))
        if name == "forward" and file.endswith(".py"):
            reached = f"{PurePath(file).name}:{frame.get('line')}"
        elif reached and name in CALLS and MODULE.search(file):
            path.append(reached)
            reached = ""
    return BELOW.join(reversed(path))

"""Which line of the program was a thread in?

Conventions
-----------
PyTorch names a frame ``file(line): function``, where the line is that of the function's beginning, a built-in
``<built-in ...>`` and a module's forward ``nn.Module: class``. The program's frames are those that are not built
in, not PyTorch's own and not the standard library's.

Functions
---------
lines    the innermost frame of the program at each moment

References
----------
PyTorch, ``torch/csrc/autograd/profiler_python.cpp``, ``CodeLocation``: the line of the frame as it is entered.
"""

from __future__ import annotations

import re
import sys

import numpy as np
import pandas as pd

from perfkit.analysis.calls import numbered_together, where
from perfkit.analysis.intervals import Int
from perfkit.analysis.operators.nesting import THREAD_KEYS
from perfkit.analysis.waits import Axis, innermost, placed

_NOT_A_LINE = re.compile(r"<(?:built-in|frozen|string)\b|nn\.Module: |(?:.*/)?torch/")
_MODULE = re.compile(r"(\w+)(?:/|\.py\()")


def lines(python_calls: pd.DataFrame, moments: pd.DataFrame) -> pd.Categorical:
    """Return the innermost frame of the program on the thread at each moment, else the innermost of all.

    Parameters
    ----------
    python_calls
        PYTHON_CALLS; may be empty.
    moments
        A frame with rank, process, thread and start_ns, the moment; may be empty.

    Returns
    -------
    pandas.Categorical
        A name per moment, missing where no Python function runs.

    Examples
    --------
    >>> calls = pd.DataFrame({"rank": 0, "process": 1, "thread": 1, "start_ns": [0, 2, 3], "dur_ns": [9, 5, 2]})
    >>> names = ["train.py(3): step", "torch/_tensor.py(5): f", "<built-in method item>"]
    >>> lines(calls.assign(name=pd.Categorical(names)), calls.assign(start_ns=[4, 5, 9])).tolist()
    ['train.py(3): step', 'train.py(3): step', nan]
    """
    own = np.flatnonzero(where(python_calls["name"], _of_program))
    place = _innermost(python_calls.take(own), moments)
    row = np.where(place >= 0, np.append(own, -1)[place], _innermost(python_calls, moments))
    codes = np.append(python_calls["name"].cat.codes.to_numpy(), -1)
    return pd.Categorical.from_codes(codes[row], python_calls["name"].cat.categories)


def _of_program(name: str) -> bool:
    module = _MODULE.match(name)
    standard = module is not None and module.group(1) in sys.stdlib_module_names
    return not standard and _NOT_A_LINE.match(name) is None


def _innermost(python_calls: pd.DataFrame, moments: pd.DataFrame) -> Int:
    """Return the row of the innermost call around each moment of its thread, -1 where there is none."""
    of_call, of_moment = numbered_together([python_calls, moments], THREAD_KEYS)
    start, at = python_calls["start_ns"].to_numpy(), moments["start_ns"].to_numpy()
    threads = 1 + int(max(of_call.max(initial=0), of_moment.max(initial=0)))
    axis = Axis.over(threads, start, start + python_calls["dur_ns"].to_numpy(), at)
    first = axis.at(of_moment, at)
    return innermost(placed(python_calls, of_call, axis), first, first + 1)

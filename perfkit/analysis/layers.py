"""Is what repeats a step of the program, or a layer of one step?

A step passes through the model once. What repeats inside one pass is a layer: ten equal blocks of
one forward pass are no ten steps. Three things show where a pass begins and ends:

- the outermost call of a module (PYTHON_CALLS: ``nn.Module: Transformer_0``),
- a range whose name says that it is one step or one pass (`PASS`), but not one around all of them (`LOOP`),
- operators of autograd (``aten::mm, seq = 12``) without a backward pass: their graph grows until a backward pass uses
  it, so all of them belong to one forward pass.
"""

import re

import numpy as np
import pandas as pd

from perfkit.analysis.causes import started_by, where
from perfkit.analysis.grouping import numbered
from perfkit.analysis.intervals import Bool, Int
from perfkit.tables import PYTHON_CALLS, RANGES

MODULE = "nn.Module: "
# The name of one step or one pass. vLLM and SGLang name a step
# execute_context_1(888)_generation_0(0).
PASS = re.compile(
    r"(?<![a-z])(?:time_?step|step|iter|iteration|(?:micro_?)?batch|forward|fwd|backward|bwd"
    r"|prefill|request)(?![a-z])"
    r"|execute(?:_\d+)?_context_\d",
    re.IGNORECASE,
)
LOOP = re.compile(r"(?<![a-z])(?:loop|epoch|all|every)(?![a-z])", re.IGNORECASE)
# What PyTorch writes after the name of an operator (torch.autograd.profiler.emit_nvtx).
OPERATOR = re.compile(r", (?:seq|op_id) = \d")
SEQUENCE = re.compile(r", seq = \d")
# MulBackward0, FlashAttnFuncBackward; RegisterPostBackwardFunction of FSDP belongs to the forward
# pass.
BACKWARD = re.compile(r"Backward\d*(?:,|$)|autograd::engine")
# A layer by its own name.
LAYER = re.compile(
    r"(?<![a-z])layers?(?![a-z])|(?:transformer|encoder|decoder|residual)[ _-]?(?:layer|block)",
    re.IGNORECASE,
)
SEVERAL = 2  # steps in a call, on average, from which on they are its layers


def modules(python_calls: pd.DataFrame | None) -> pd.DataFrame:
    """Return the rows of PYTHON_CALLS that are calls of modules; none where there is no table."""
    if python_calls is None:
        return PYTHON_CALLS.empty()
    calls = PYTHON_CALLS.check(python_calls)
    return calls[where(calls["name"], lambda name: name.startswith(MODULE))]


def passes(ranges: pd.DataFrame, modules: pd.DataFrame) -> pd.DataFrame:
    """Return the spans each of which is at most one pass through the model: no pass lies inside another.

    Columns `process`, `thread`, `start_ns` and `dur_ns` (ns), by thread and start.
    """
    columns = ["process", "thread", "start_ns", "dur_ns"]
    named = RANGES.check(ranges)
    is_pass = where(named["name"], _is_pass) & (named["kind"] != "mark").to_numpy()
    spans = pd.concat([named.loc[is_pass, columns], modules[columns]]).sort_values(
        columns[:3], kind="stable", ignore_index=True
    )
    return spans[_outermost(spans)].reset_index(drop=True)


def are_layers(moments: Int, spans: pd.DataFrame) -> bool:
    """Tell whether most of the steps that begin at `moments` (ns, on the CPU) are layers of a few passes.

    `spans` is what `passes` returned. A thread whose passes hold two steps or more on average, and
    most of the steps, says so.

    >>> one = pd.DataFrame({"process": [1], "thread": [1], "start_ns": [0], "dur_ns": [100]})
    >>> are_layers(np.array([10, 40, 70]), one)
    True
    """
    for _, mine in spans.groupby(["process", "thread"], sort=False):
        start = mine["start_ns"].to_numpy()
        end = start + mine["dur_ns"].to_numpy()
        place = np.searchsorted(start, moments, side="right") - 1
        inside = (place >= 0) & (moments < end[place])
        calls = len(np.unique(place[inside]))
        if 2 * inside.sum() > len(moments) and inside.sum() >= SEVERAL * calls:
            return True
    return False


def launched(kernels: pd.DataFrame, api_calls: pd.DataFrame | None) -> Int:
    """Return when the CPU launched each kernel, ns; its own start where no call is recorded."""
    start = kernels["start_ns"].to_numpy()
    if api_calls is None or api_calls.empty:
        return start
    call = started_by(kernels, api_calls)
    return np.where(call >= 0, api_calls["start_ns"].to_numpy()[call], start)


def is_one_forward(moments: Int, ranges: pd.DataFrame) -> bool:
    """Tell whether most of `moments` (ns) lie in one forward pass: autograd's operators without a backward pass."""
    is_sequence = where(ranges["name"], SEQUENCE.search)
    operators = ranges[is_sequence]
    if operators.empty or where(operators["name"], BACKWARD.search).any():
        return False
    first = int(operators["start_ns"].min())
    last = int((operators["start_ns"] + operators["dur_ns"]).max())
    inside = (moments >= first) & (moments < last)
    return bool(2 * inside.sum() > len(moments))


def _is_pass(name: str) -> bool:
    told = PASS.search(name) is not None
    return told and LOOP.search(name) is None and OPERATOR.search(name) is None


def _outermost(spans: pd.DataFrame) -> Bool:
    """Tell which spans, by thread and start, lie in no earlier one of their thread."""
    _, thread = numbered(spans, ["process", "thread"])
    end = spans["start_ns"] + spans["dur_ns"]
    reached = end.groupby(thread).cummax().groupby(thread).shift(fill_value=np.iinfo(np.int64).min)
    outermost: Bool = (spans["start_ns"] >= reached).to_numpy(bool)
    return outermost

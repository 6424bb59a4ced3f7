"""Small HPCToolkit databases and what is in them.

`database` writes the four files of a tree made by `entry`, `function`, `loop`, `line` and `instruction`; values are
inclusive, per thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from readers import hpctoolkit_bytes as bytewise
from readers.hpctoolkit_bytes import FUNCTION, INSTRUCTION, LINE, LOOP, T0, Context, Thread, Values

from perfkit.profile import Profile
from perfkit.readers import hpctoolkit

__all__ = ["T0", "Context", "Thread", "Values"]


def entry(node: int, name: str, *children: Context, point: int = 1) -> Context:
    """An entry point."""
    return Context(node, name=name, children=children, at_entry=point)


def function(node: int, name: str, *children: Context, **where: Any) -> Context:
    """A function that is called."""
    return Context(node, FUNCTION, name, children=children, relation=1, **where)


def line(node: int, file: str, number: int, *children: Context, **where: Any) -> Context:
    """A source line."""
    return Context(node, LINE, file=file, line=number, children=children, **where)


def loop(node: int, file: str, number: int, *children: Context, **where: Any) -> Context:
    """A loop."""
    return Context(node, LOOP, file=file, line=number, children=children, **where)


def instruction(node: int, module: str, offset: int, *children: Context) -> Context:
    """An instruction."""
    return Context(node, INSTRUCTION, module=module, offset=offset, children=children)


def database(
    folder: Path,
    roots: Sequence[Context],
    metrics: Sequence[str] = ("CPUTIME (sec)",),
    threads: Sequence[Thread] = (Thread(),),
    *,
    summary: Values | None = None,
    description: str = "a made database",
    combine: Sequence[tuple[int, str]] = ((0, "$$"),),
    minor: int = 0,
    pad: int = 0,
) -> Path:
    """Write a database; `pad` bytes follow each entry of an array, as later minor versions may append fields."""
    folder.mkdir(parents=True, exist_ok=True)
    bytewise.meta(folder / "meta.db", roots, metrics, combine, description, minor, pad)
    totals = dict(summary) if summary is not None else _summed(threads)
    bytewise.profiles(
        folder / "profile.db",
        [_with_whole(v, roots) for v in (totals, *(t.values for t in threads))],
        [t.identity for t in threads],
        metrics,
        len(combine),
        minor,
        pad,
    )
    bytewise.cct(folder / "cct.db", [_with_whole(t.values, roots) for t in threads], metrics, minor, pad)
    if any(t.trace for t in threads):
        bytewise.traces(folder / "trace.db", [t.trace for t in threads], minor, pad)
    return folder


def _summed(threads: Sequence[Thread]) -> dict[tuple[int, str], float]:
    totals: dict[tuple[int, str], float] = {}
    for thread in threads:
        for key, value in thread.values.items():
            totals[key] = totals.get(key, 0.0) + value
    return totals


def _with_whole(values: Values, roots: Sequence[Context]) -> Values:
    """Add the values above all entry points unless they are given."""
    nodes = {root.node for root in roots}
    whole: dict[tuple[int, str], float] = {}
    for (node, metric), value in values.items():
        if node in nodes:
            whole[0, metric] = whole.get((0, metric), 0.0) + value
    return {**whole, **values}


def toy() -> tuple[Context, ...]:
    """Main thread: train.py:12 calls mm, which runs a kernel and copies; a worker runs the same kernel."""
    mm = function(
        4,
        "at::mm(at::Tensor)",
        function(5, "<gpu kernel>", function(6, "sgemm(float*)", module="gpubins/a.gpubin")),
        function(7, "<gpu copyin>"),
        module="/lib/libtorch.so",
    )
    step = line(3, "src/job/train.py", 12, mm, copied=True)
    train = function(2, "train", step, module="<logical python>", file="src/job/train.py", line=10, copied=True)
    kernel = function(12, "<gpu kernel>", function(13, "sgemm(float*)", module="gpubins/a.gpubin"))
    backward = function(11, "backward()", kernel, module="/lib/libtorch.so")
    return entry(1, "main thread", train), entry(10, "application thread", backward, point=2)


TOY_METRICS = ("CPUTIME (sec)", "GKER (sec)", "GINS:STL_GMEM", "GINS:STL_ANY", "GXCOPY:H2D (B)")


def toy_threads() -> tuple[Thread, ...]:
    """The main thread, the worker, and a stream that has a trace only."""
    cpu, gker, gmem, any_stall, h2d = TOY_METRICS
    path, back = (1, 2, 3, 4), (10, 11)
    main = {(node, cpu): 3.0 for node in path}
    main |= {(node, metric): v for node in (*path, 5) for metric, v in ((gker, 0.001), (gmem, 8.0), (any_stall, 8.0))}
    main |= {(6, gmem): 8.0, (6, any_stall): 8.0} | {(node, h2d): 8e6 for node in (*path, 7)}
    worker = {(node, cpu): 1.0 for node in back}
    worker |= {(n, metric): v for n in (*back, 12) for metric, v in ((gker, 0.001), (gmem, 4.0), (any_stall, 4.0))}
    worker |= {(13, gmem): 4.0, (13, any_stall): 4.0}
    return (
        Thread((("NODE", 7), ("THREAD", 0)), main, ((0, 3), (1000, 4), (3000, 0), (4000, 4))),
        Thread((("NODE", 7), ("THREAD", 1)), worker, ((500, 11), (2500, 0))),
        Thread((("NODE", 7), ("GPUCONTEXT", 1), ("GPUSTREAM", 7)), {}, ((1500, 5), (2500, 0))),
    )


def sample(folder: Path, **changes: Any) -> Path:
    """Write the toy program's database, with something for every table."""
    return database(folder, toy(), TOY_METRICS, changes.pop("threads", toy_threads()), **changes)


def chain(levels: int) -> Context:
    """An entry point with `levels` functions, each called by the one before."""
    below: tuple[Context, ...] = ()
    for node in range(levels + 1, 1, -1):
        below = (function(node, f"f{node}", *below),)
    return replace(entry(1, "main thread"), children=below)


def read(folder: Path, *roots: Context, **rest: Any) -> Profile:
    """Write a database and read it."""
    path = database(folder, roots, **rest)
    assert hpctoolkit.sniff(path)
    return hpctoolkit.read(path)


def rows(frame: pd.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """The rows of a table as tuples, None for what is missing."""
    told = frame[list(columns)].astype(object)
    return list(told.where(told.notna(), None).itertuples(index=False, name=None))

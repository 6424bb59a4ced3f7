"""CALL_METRICS, STALLS, THREADS and THREAD_METRICS: stored values by the name of their metric."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit import tables
from perfkit.readers.columns import category
from perfkit.readers.hpctoolkit.contexts import Entry, Metric
from perfkit.readers.hpctoolkit.files import Ints, Profiles, Values

Floats = NDArray[np.float64]
# Of samples of the GPU's program counter: GINS:STL_GMEM, GCYCLES:STL:GMEM. ANY is their sum, NONE is not stalled.
STALL = re.compile(r"(?:GINS:STL_|GCYCLES:STL:)(?!ANY$|NONE$)(\w+)", re.IGNORECASE)
ROUNDING = 1e-12  # what is left of a sum of doubles that is 0, relative to its parts
NUMBERS = 2**16  # of metrics in profile.db
WORDS = {"GPUDEVICE": "GPU", "GPUCONTEXT": "context", "GPUSTREAM": "stream"}


def named(values: Values, numbers: Sequence[int]) -> tuple[Ints, NDArray[np.int16], Floats]:
    """Return context, position of the metric in `numbers` and value of the values that are of these metrics."""
    position = np.full(NUMBERS, -1, np.int16)
    position[list(numbers)] = np.arange(len(numbers))
    metric = position[values.metric]
    kept = np.flatnonzero(metric >= 0)
    return values.context[kept], metric[kept], values.value[kept]


def call_metrics(profiles: Profiles, metrics: Sequence[Metric], tree: pd.DataFrame) -> pd.DataFrame:
    """Return CALL_METRICS of the contexts of CALLTREE.

    profile.db also has values of contexts that the tree leaves out, such as the instructions of a line. What a
    context has beside its children in the tree is therefore what it has alone.
    """
    node = tree["node"].to_numpy()
    parent = np.searchsorted(node, tree["parent"].fillna(node[0]).to_numpy(np.int64))
    is_root = tree["parent"].isna().to_numpy(bool)
    context, metric, value = named(profiles.all(), [m.summary for m in metrics])
    place = np.searchsorted(node, context)
    place[place == len(node)] = 0
    by_metric = np.argsort(metric, kind="stable")
    by_metric = by_metric[(node[place] == context)[by_metric]]
    starts = np.searchsorted(metric[by_metric], np.arange(len(metrics) + 1))
    parts = []
    for i, one in enumerate(metrics):
        rows = by_metric[starts[i] : starts[i + 1]]
        if len(rows):
            parts.append((i, *_exclusive(place[rows], value[rows] * one.factor, parent, is_root)))
    return _call_metrics(parts, metrics, node)


def _exclusive(place: Ints, value: Floats, parent: Ints, is_root: NDArray[np.bool_]) -> tuple[Ints, Floats, Floats]:
    """Return the contexts that have one metric, and its value with and without what is called from them."""
    inclusive = np.zeros(len(parent))
    inclusive[place] = value
    below = place[~is_root[place]]
    exclusive = inclusive - np.bincount(parent[below], inclusive[below], len(parent))
    exclusive[np.abs(exclusive) <= ROUNDING * np.abs(inclusive)] = 0.0
    there = exclusive != 0
    there[place] = True
    rows = np.flatnonzero(there)
    return rows, inclusive[rows], exclusive[rows]


def _call_metrics(parts: list[tuple[int, Ints, Floats, Floats]], metrics: Sequence[Metric], node: Ints) -> pd.DataFrame:
    metric = np.repeat([i for i, *_ in parts], [len(place) for _, place, *_ in parts]).astype(np.int16)
    place, inclusive, exclusive = (np.concatenate([p[i] for p in parts]) for i in (1, 2, 3))
    order = np.argsort(place * len(metrics) + metric, kind="stable")
    frame = {
        "rank": np.zeros(len(order), np.int32),
        "node": node[place[order]],
        **labels(metric[order], metrics),
        "inclusive": inclusive[order],
        "exclusive": exclusive[order],
    }
    return tables.CALL_METRICS.make(pd.DataFrame(frame, copy=False))


def labels(metric: NDArray[np.int16], metrics: Sequence[Metric]) -> dict[str, pd.Categorical]:
    """Return the columns metric and unit."""
    return {"metric": category(metric, [m.name for m in metrics]), "unit": category(metric, [m.unit for m in metrics])}


def stalls(call_metrics: pd.DataFrame) -> pd.DataFrame:
    """Return STALLS: what each context alone has of each reason to wait."""
    of_metric = [reason(name) for name in call_metrics["metric"].cat.categories]
    is_stall = np.array([name is not None for name in of_metric], bool)
    kept = call_metrics[is_stall[call_metrics["metric"].cat.codes] & (call_metrics["exclusive"] != 0)]
    frame = {
        "rank": kept["rank"],
        "launch": np.full(len(kept), -1, np.int64),
        "node": kept["node"],
        "reason": category(kept["metric"].cat.codes.to_numpy(), [name or "" for name in of_metric]),
        "value": kept["exclusive"],
    }
    return tables.STALLS.make(pd.DataFrame(frame))


def reason(metric: str) -> str | None:
    """Return the reason to wait that a metric counts, None if it is another metric.

    >>> reason("GINS:STL_GMEM"), reason("GCYCLES:STL:IDEP"), reason("GINS:STL_ANY"), reason("GCYCLES:STL")
    ('gmem', 'idep', None, None)
    """
    found = STALL.fullmatch(metric)
    return found[1].lower() if found else None


def threads(profiles: Profiles, kinds: Sequence[str]) -> pd.DataFrame:
    """Return THREADS: the CPU threads and GPU streams."""
    told = [_identity(profiles, position, kinds) for position in profiles.threads]
    nodes = {number for identity in told for kind, number in identity if kind == "NODE"}
    on_gpu = [any(kind in WORDS for kind, _ in identity) for identity in told]
    frame = {
        "rank": np.zeros(len(told), np.int32),
        "thread": np.array(profiles.threads, np.int64),
        "kind": pd.Categorical(np.where(on_gpu, "gpu", "cpu")),
        "name": pd.Categorical([_name(identity, len(nodes) > 1) for identity in told]),
        "mpi_rank": pd.array([dict(identity).get("RANK") for identity in told], dtype="Int64"),
    }
    return tables.THREADS.make(pd.DataFrame(frame))


def _identity(profiles: Profiles, position: int, kinds: Sequence[str]) -> list[tuple[str, int]]:
    return [
        (kinds[kind] if kind < len(kinds) else f"identity {kind}", number)
        for kind, number in profiles.identity(position)
    ]


def _name(identity: Sequence[tuple[str, int]], several_nodes: bool) -> str:
    """Return what a thread is called; the node only if there are several."""
    known = [(kind, number) for kind, number in identity if several_nodes or kind != "NODE"]
    words = [f"{WORDS.get(kind, kind.lower())} {number}" for kind, number in known]
    first = next((i for i, (kind, _) in enumerate(known) if kind in WORDS), None)
    if first is not None and known[first][0] != "GPUDEVICE":
        words[first] = f"GPU {words[first]}"
    return " ".join(words) or "unnamed"


def thread_metrics(profiles: Profiles, metrics: Sequence[Metric], entries: Sequence[Entry]) -> pd.DataFrame:
    """Return THREAD_METRICS: the values of every thread at the entry points."""
    nodes, order = np.unique([e.node for e in entries], return_index=True)
    numbers = [m.thread for m in metrics]
    found = [(position, *named(profiles.of(nodes, position), numbers)) for position in profiles.threads]
    context, metric, value = (np.concatenate([part[i] for part in found]) for i in (1, 2, 3))
    frame = {
        "rank": np.zeros(len(context), np.int32),
        "thread": np.repeat([part[0] for part in found], [len(part[1]) for part in found]).astype(np.int64),
        "entry": category(np.searchsorted(nodes, context), [entries[i].name for i in order]),
        **labels(metric, metrics),
        "inclusive": value * np.array([m.factor for m in metrics])[metric],
    }
    return tables.THREAD_METRICS.make(pd.DataFrame(frame))

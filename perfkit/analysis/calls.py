"""What does a CUDA call do, and which call started an operation on the GPU?

Conventions
-----------
Names are those of API_CALLS; the suffixes ``_v2``, ``_ptsz`` and ``_ptds`` do not change what a
call does. Runtime (cuda), driver (cu) and HIP (hip) calls count alike. A correlation id is unique
within a (rank, process) only; -1 never matches.

Functions
---------
is_launch, is_graph_launch   calls that put work on the GPU
is_sync, is_memory           calls that wait for the GPU, that reserve or release memory
where                        rows whose name fulfils one of these
numbered_together            small integers for the distinct combinations of columns
started_by                   the call that started each operation
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.intervals import Int

GRAPH_LAUNCH_CALLS = frozenset({"cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch"})

# Runtime, driver and HIP functions that put kernels on the GPU; memory copies and memsets are told by COPY_CALL.
LAUNCH_CALLS = GRAPH_LAUNCH_CALLS | {
    "cudaLaunch",
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cudaLaunchCooperativeKernel",
    "cudaLaunchCooperativeKernelMultiDevice",
    "cuLaunch",
    "cuLaunchGrid",
    "cuLaunchGridAsync",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuLaunchCooperativeKernel",
    "cuLaunchCooperativeKernelMultiDevice",
    "hipLaunchByPtr",
    "hipLaunchKernel",
    "hipLaunchKernelExC",
    "hipLaunchCooperativeKernel",
    "hipLaunchCooperativeKernelMultiDevice",
    "hipExtLaunchKernel",
    "hipExtLaunchMultiKernelMultiDevice",
    "hipModuleLaunchKernel",
    "hipModuleLaunchCooperativeKernel",
    "hipExtModuleLaunchKernel",
    "hipHccModuleLaunchKernel",
    "hipDrvLaunchKernelEx",
}
COPY_CALL = re.compile(r"(?:cuda|cu|hip)Mem(?:cpy|set)")
SYNC_CALL = re.compile(r"(?:cuda|cu|hip)(?:(?:Device|Thread|Ctx|Stream|Event)Synchronize$|Memcpy(?!.*Async))")
MEMORY_CALL = re.compile(
    r"(?:cuda|hip)(?:Malloc|Free|Host(?:Alloc|Malloc|Free|Register|Unregister))"
    r"|(?:cu|hip)Mem(?:Alloc|Free|Create|Release|Map|Unmap|Address|SetAccess|Host(?:Alloc|Register|Unregister))"
)
_VARIANT = re.compile(r"(?:_v\d+|_ptsz|_ptds)+$")


def is_launch(name: str) -> bool:
    """Tell whether a call puts a kernel, graph, copy or memset on the GPU.

    Examples
    --------
    >>> [is_launch(name) for name in ("cuLaunchKernelEx", "cudaMemsetAsync_ptsz", "cudaEventQuery")]
    [True, True, False]
    """
    return _VARIANT.sub("", name) in LAUNCH_CALLS or COPY_CALL.match(name) is not None


def is_graph_launch(name: str) -> bool:
    """Tell whether a call launches a graph, which starts many operations at once."""
    return _VARIANT.sub("", name) in GRAPH_LAUNCH_CALLS


def is_sync(name: str) -> bool:
    """Tell whether a call waits for the GPU: a synchronisation or a copy that is not asynchronous.

    Examples
    --------
    >>> [is_sync(name) for name in ("cuCtxSynchronize", "cudaMemcpy", "cudaMemcpyAsync", "cudaEventQuery")]
    [True, True, False, False]
    """
    return SYNC_CALL.match(_VARIANT.sub("", name)) is not None


def is_memory(name: str) -> bool:
    """Tell whether a call reserves, maps or releases device or pinned memory."""
    return MEMORY_CALL.match(name) is not None


def where(names: pd.Series, fulfils: Callable[[str], object]) -> NDArray[np.bool_]:
    """Return which rows of a category column fulfil a condition, asked once per category."""
    answers = np.array([bool(fulfils(str(name))) for name in names.cat.categories] + [False])
    return np.asarray(answers[names.cat.codes.to_numpy()], np.bool_)


def numbered_together(frames: Sequence[pd.DataFrame], columns: Sequence[str]) -> list[Int]:
    """Number the combinations of integer columns that occur in the frames, in ascending order.

    Returns
    -------
    list of int64 arrays
        The number, 0 and up, of each row of each frame.
    """
    codes = [np.zeros(len(frame), np.int64) for frame in frames]
    for column in columns:
        values = [frame[column].to_numpy(np.int64) for frame in frames]
        distinct = _distinct(values)
        if len(distinct) > 1:
            places = (np.searchsorted(distinct, v) for v in values)
            codes = [code * len(distinct) + place for code, place in zip(codes, places, strict=True)]
    present = _distinct(codes)
    return codes if len(present) <= 1 else [np.searchsorted(present, code).astype(np.int64) for code in codes]


def _distinct(arrays: Sequence[Int]) -> Int:
    """Return the distinct values, ascending; cheap where equal values follow each other, as in sorted tables."""
    changes = (array[np.r_[len(array) > 0, array[1:] != array[:-1]][: len(array)]] for array in arrays)
    return np.unique(np.concatenate([pd.unique(change) for change in changes]))


def started_by(operations: pd.DataFrame, api_calls: pd.DataFrame) -> Int:
    """Return the row (int64 position) of the call that started each operation, -1 where none is recorded.

    Joined on (rank, process, correlation). Many operations may share a call: the nodes of a graph
    do. Of several calls with one id the first row counts.
    """
    ids = operations["correlation"].to_numpy(), api_calls["correlation"].to_numpy()
    if not len(ids[0]) or not len(ids[1]):
        return np.full(len(ids[0]), -1, np.int64)
    groups = numbered_together([operations, api_calls], ["rank", "process"])
    span = int(max(i.max() for i in ids)) + 2
    if span * (int(max(g.max() for g in groups)) + 1) >= 2**62:  # the product below would not fit int64
        wanted, keys = numbered_together([operations, api_calls], ["rank", "process", "correlation"])
        return _places(wanted, keys, ids)
    return _places(groups[0] * span + ids[0], groups[1] * span + ids[1], ids)


def _places(wanted: Int, keys: Int, ids: tuple[Int, Int]) -> Int:
    """Return the first row of each wanted key among the keys; rows whose id is negative have none."""
    rows = np.flatnonzero(ids[1] >= 0)
    keys = keys[rows]
    if not (keys[1:] >= keys[:-1]).all():
        order = np.argsort(keys, kind="stable")
        rows, keys = rows[order], keys[order]
    place = np.searchsorted(keys, wanted)
    found = (np.append(keys, -1)[place] == wanted) & (ids[0] >= 0)
    return np.where(found, np.append(rows, -1)[place], -1).astype(np.int64)

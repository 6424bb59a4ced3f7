"""CPU seconds for any window of ten million kernels, against `timeline.bins` and pandas on the same tables.

The kernels are of two GPUs with three streams each, under 3,000 names; the copies are as many as a hundredth of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd

from perfkit.analysis import timeline
from perfkit.analysis.lanes import Lanes
from perfkit.tables import COPIES, KERNELS
from tests.bench import fresh
from tests.bench.table import Row

TIMES = 7
GPUS = 2
STREAMS = np.array([7, 13, 20])
NAMES = 3_000
FAMILIES = ["gemm", "elementwise", "reduction", "communication"]
BUILD_S = 1.2
MOST_S = 0.1
MOST_BYTES = 4e9
BINS = "timeline.bins"
Answer = Callable[[], object]


def rows(kernels: int) -> Iterator[Row]:
    """Measure; yields a row of the table per question."""
    measured = fresh.call(seconds, kernels)
    for work, (ours_s, peer, peer_s) in measured.answer.items():
        most_s = BUILD_S if work == "build" else MOST_S
        bar = f"under {most_s} s, {MOST_BYTES / 1e9:g} GB"
        name = f"lanes, {work}, {kernels:,} kernels, CPU"
        limits = {"most_seconds": most_s, "most_bytes": MOST_BYTES, "peak_bytes": measured.peak_bytes}
        yield Row(name, ours_s, peer, peer_s, bar=bar, **limits)


def seconds(count: str) -> dict[str, tuple[float, str, float]]:
    """Return the CPU seconds of each question, its peer and the peer's seconds."""
    kernels, copies = tables(int(count))
    lanes = Lanes(kernels, copies)
    start, end = lanes.span
    part, moment = (start + (end - start) * 2 // 5, start + (end - start) * 3 // 5), (end // 2, end // 2 + 2_000_000)
    half = np.arange(NAMES) % 2 == 0
    codes = kernels["name"].cat.codes.to_numpy()
    questions: dict[str, tuple[Answer, str, Answer]] = {
        "build": (lambda: Lanes(kernels, copies), BINS, lambda: timeline.bins(kernels, copies)),
        "busy": (lanes.busy, BINS, lambda: timeline.bins(kernels, copies)),
        "busy of a fifth": (lambda: lanes.busy(window=part), BINS, lambda: timeline.bins(kernels, copies, window=part)),
        "busy of half the kernels": (
            lambda: lanes.busy(names=half),
            BINS,
            lambda: timeline.bins(kernels[half[codes]], copies),
        ),
        "totals": (lanes.totals, "pandas groupby, sum", lambda: kernels.groupby("name", observed=True)["dur_ns"].sum()),
        "intervals of 2 ms": (
            lambda: lanes.intervals(window=moment),
            "pandas boolean index",
            lambda: _between(kernels, *moment),
        ),
    }
    return {work: (_least(ours, TIMES), peer, _least(theirs, 1)) for work, (ours, peer, theirs) in questions.items()}


def _between(kernels: pd.DataFrame, first: int, last: int) -> pd.DataFrame:
    start, dur = kernels["start_ns"], kernels["dur_ns"]
    return kernels[(start < last) & (start + dur > first)]


def _least(question: Answer, times: int) -> float:
    """Return the CPU seconds of a question, the least of some times."""
    taken = []
    for _ in range(times):
        began = time.process_time()
        question()
        taken.append(time.process_time() - began)
    return min(taken)


def tables(count: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return KERNELS of so many rows and COPIES of a hundredth, each stream working one after the other."""
    random = np.random.default_rng(0)
    kernels = _operations(count, 1, random)
    code = random.zipf(1.3, len(kernels)) % NAMES
    names = [f"kernel_{number:04d}" for number in range(NAMES)]
    for column in ("name", "full_name"):
        kernels[column] = pd.Categorical.from_codes(code, names)
    kernels["family"] = pd.Categorical.from_codes(code % len(FAMILIES), FAMILIES)
    for column in ("grid_blocks", "block_threads", "registers", "shared_bytes"):
        kernels[column] = pd.array(np.full(len(kernels), 128), "Int64")
    copies = _operations(count // 100, 100, random)
    texts = {"src_memory": "pinned", "dst_memory": "device", "direction": "H2D"}
    copies = copies.assign(
        bytes=4096, peer_gpu=np.int32(-1), **{c: pd.Categorical([t])[[0] * len(copies)] for c, t in texts.items()}
    )
    return KERNELS.make(kernels.assign(in_graph=False)), COPIES.make(copies)


def _operations(count: int, slower: int, random: np.random.Generator) -> pd.DataFrame:
    """Return operations of every stream, by GPU and start."""
    each = count // (GPUS * len(STREAMS))
    place = np.repeat(np.arange(GPUS * len(STREAMS)), each)
    dur, gap = (random.integers(1, most, (GPUS * len(STREAMS), each)) for most in (30_000, 20_000 * slower))
    start = (np.cumsum(dur + gap, axis=1) - dur).ravel()
    order = np.lexsort([start, place // len(STREAMS)])
    place = place[order]
    columns = {"gpu": place // len(STREAMS), "stream": STREAMS[place % len(STREAMS)], "start_ns": start[order]}
    columns |= {"dur_ns": dur.ravel()[order], "correlation": np.arange(len(order)), "process": np.ones_like(order)}
    return pd.DataFrame(columns | {"rank": np.zeros(len(order), np.int32)}).astype({"gpu": "int32"})

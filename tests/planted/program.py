"""What would be recorded of a small training program, step by step, if one thing in it were different?

It runs on `make.simulate.program`, event by event. Kernels and the CPU's work have the same random lengths whatever
else is different, so that two programs that differ in one field differ in nothing else but the machine's delays.
Times are int64 ns. A step loads a batch, copies it to the GPU, launches kernels, of which some reduce over the ranks,
reads the loss back and waits for the GPU; after some steps it writes a checkpoint.
"""

from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import NamedTuple

import numpy as np
import pandas as pd

from make.simulate.program import Line, Machine, Thread, Work
from perfkit.tables import API_CALLS, COPIES, KERNELS, OS_CALLS, RANGES

# Least and mean excess of what no program sets: return of a wait, and a call.
RETURN_NS, CALL_NS = (3_000, 2_000), (2_500, 800)
_COMPUTE, _COPY, _COMMUNICATION = 7, 8, 9
PAGEABLE_BYTES_PER_S = 8_000_000_000
WRITING = ("open64", *("write",) * 18, "fsync")  # calls that write a checkpoint


@dataclass(frozen=True)
class Settings:
    """What the program does; times in ns, kernels and CPU work are means."""

    steps: int = 20
    layers: int = 40  # kernels per step
    ranks: int = 1
    seed: int = 0  # of all random lengths
    kernel_ns: int = 30_000
    cpu_ns: int = 10_000  # before a launch
    loading_ns: int = 0  # a batch
    workers: int = 0  # processes that load in the background, none with 0
    input_ns: int = 200_000  # the copy of a batch
    pageable: bool = True  # its memory, so that the thread waits for the copy
    prefetched: bool = False  # it runs beside the kernels of the step before
    waited: bool = False  # the thread waits for it although its memory is pinned
    small_copies: int = 0  # of 4 KiB before each kernel
    small_ns: int = 4_000
    sync_every: int = (
        0  # kernels between two synchronisations of the stream, 0 for none within the step
    )
    synchronises: bool = True  # at all
    fused: int = 1  # kernels that are one
    graph: bool = False  # a step is one graph
    reduce_every: int = 0  # kernels between two reductions, 0 for none
    reduce_ns: int = 100_000
    beside: bool = False  # reductions have a stream of their own
    slow_rank_frac: float = 0.0  # how much longer the kernels of the last rank take
    save_every: int = 0  # steps between two checkpoints, 0 for none
    saved_bytes: int = 1 << 30  # what one copies to the host
    saving_ns: int = 400_000_000  # writing it, after the copy
    all_save: bool = True  # or the first rank alone


class Simulated(NamedTuple):
    """Tables of a run, and its true length: from the first operation's start to the last one's end, ns."""

    kernels: pd.DataFrame
    copies: pd.DataFrame
    api_calls: pd.DataFrame
    ranges: pd.DataFrame
    span_ns: int
    os_calls: pd.DataFrame


class _Rank:
    """The threads of one rank, and what it has put on its GPU."""

    def __init__(
        self, machine: Machine, settings: Settings, rank: int, meetings: dict[int, list[Line]]
    ) -> None:
        self.machine, self.settings, self.rank, self.meetings = machine, settings, rank, meetings
        rng = np.random.default_rng((settings.seed, rank))
        shape = settings.steps, settings.layers
        slower = 1 + settings.slow_rank_frac * (rank == settings.ranks - 1)
        self.kernel_ns = (rng.gamma(4, settings.kernel_ns / 4 * slower, shape) + 1_000).astype(int)
        self.cpu_ns = (rng.gamma(4, settings.cpu_ns / 4, shape)).astype(int)
        self.correlation = count(1)
        self.unfinished: list[Work] = []
        self.batches = [Work() for _ in range(settings.steps)]
        self.arrived: tuple[Work, ...] = ()  # the copy that this step's kernels need
        self.coming: tuple[Work, ...] = ()

    def loader(self, worker: int) -> Thread:
        """Load every so many-th batch, one after another."""
        for batch in self.batches[worker :: self.settings.workers]:
            yield self.settings.loading_ns
            self.machine.finish(batch)

    def main(self) -> Thread:
        for step in range(self.settings.steps):
            yield from self._load(step)
            yield from self._copy_in()
            yield from self._kernels(step)
            loss = Work(
                2_000,
                {"direction": "D2H", "bytes": 4, "src_memory": "device", "dst_memory": "pinned"},
            )
            yield from self._call("cudaMemcpyAsync", (_COMPUTE, loss))
            if self.settings.synchronises:
                yield from self._call("cudaDeviceSynchronize", wait=list(self.unfinished))
                self.unfinished.clear()
            yield from self._save(step)

    def _call(self, name: str, *works: tuple[int, Work], wait: list[Work] | None = None) -> Thread:
        """Make a call that puts work into streams, and returns when what it waits for is done."""
        start = self.machine.now
        row = {"rank": self.rank, "correlation": next(self.correlation)}
        for stream, work in works:
            work.row |= {**row, "gpu": self.rank, "stream": stream}
            self.machine.submit(self.rank, stream, work)
            self.unfinished.append(work)
        yield self.machine.some(CALL_NS)
        if wait is not None:
            yield wait
            yield self.machine.some(RETURN_NS)
        self.machine.rows["calls"].append(
            {**row, "name": name, "start_ns": start, "dur_ns": self.machine.now - start}
        )

    def _load(self, step: int) -> Thread:
        if self.settings.workers:
            yield [self.batches[step]]
            return
        span = {"rank": self.rank, "name": "data loading", "start_ns": self.machine.now}
        yield self.settings.loading_ns
        self.machine.rows["ranges"].append({**span, "dur_ns": self.settings.loading_ns})

    def _copy_in(self) -> Thread:
        settings = self.settings
        row = {"direction": "H2D", "bytes": 1 << 20, "dst_memory": "device"}
        work = Work(
            settings.input_ns, row | {"src_memory": "pageable" if settings.pageable else "pinned"}
        )
        if not settings.prefetched:
            waits, name = (
                settings.pageable or settings.waited,
                "cudaMemcpy" if settings.waited else "cudaMemcpyAsync",
            )
            yield from self._call(name, (_COMPUTE, work), wait=[work] if waits else None)
            return
        self.arrived, self.coming = self.coming, (work,)
        yield from self._call("cudaMemcpyAsync", (_COPY, work))

    def _copy_small(self) -> Thread:
        for _ in range(self.settings.small_copies):
            row = {
                "direction": "H2D",
                "bytes": 4_096,
                "src_memory": "pinned",
                "dst_memory": "device",
            }
            yield from self._call("cudaMemcpyAsync", (_COMPUTE, Work(self.settings.small_ns, row)))

    def _save(self, step: int) -> Thread:
        """Copy the weights to the host and write them into a file after every so many-th step."""
        settings = self.settings
        saves = settings.save_every and (settings.all_save or not self.rank)
        if not saves or (step + 1) % settings.save_every or step + 1 == settings.steps:
            return
        start = self.machine.now
        row = {
            "direction": "D2H",
            "bytes": settings.saved_bytes,
            "src_memory": "device",
            "dst_memory": "pageable",
        }
        weights = Work(settings.saved_bytes * 1_000_000_000 // PAGEABLE_BYTES_PER_S, row)
        yield from self._call("cudaMemcpyAsync", (_COMPUTE, weights), wait=[weights])
        piece = settings.saving_ns // len(WRITING)
        for name in WRITING:
            call = {"rank": self.rank, "name": name, "start_ns": self.machine.now, "dur_ns": piece}
            yield piece
            self.machine.rows["os_calls"].append(call)
        whole = {
            "rank": self.rank,
            "name": "save_checkpoint",
            "start_ns": start,
            "dur_ns": self.machine.now - start,
        }
        self.machine.rows["ranges"].append(whole)

    def _kernels(self, step: int) -> Thread:
        settings, works = self.settings, []
        for layer in range(0, settings.layers, settings.fused):
            dur = int(self.kernel_ns[step, layer : layer + settings.fused].sum())
            works.append(
                (_COMPUTE, Work(dur, {"name": f"layer_{layer}", "family": "gemm"}, self.arrived))
            )
            if not settings.graph:
                yield from self._copy_small()
                yield int(self.cpu_ns[step, layer])
                yield from self._call("cudaLaunchKernel", works[-1])
                yield from self._reduce(step * settings.layers + layer, works[-1][1])
                if (
                    settings.sync_every
                    and settings.synchronises
                    and (layer + 1) % settings.sync_every == 0
                ):
                    yield from self._call("cudaStreamSynchronize", wait=[works[-1][1]])
        if settings.graph:
            yield int(self.cpu_ns[step, 0])
            yield from self._call("cudaGraphLaunch", *works)

    def _reduce(self, layer: int, made: Work) -> Thread:
        settings = self.settings
        if settings.reduce_every and (layer + 1) % settings.reduce_every == 0:
            row = {"name": "ncclDevKernel_AllReduce", "family": "communication"}
            work = Work(settings.reduce_ns, row, (made,), self.meetings.setdefault(layer, []))
            yield from self._call(
                "cudaLaunchKernel", (_COMMUNICATION if settings.beside else _COMPUTE, work)
            )


def simulated(settings: Settings) -> Simulated:
    """Return the tables of a program, and how long it truly took."""
    machine = Machine(settings.ranks, settings.seed)
    meetings: dict[int, list[Line]] = {}
    for number in range(settings.ranks):
        rank = _Rank(machine, settings, number, meetings)
        for thread in (rank.main(), *(rank.loader(worker) for worker in range(settings.workers))):
            machine.at(0, partial(machine.resume, thread))
    machine.run()
    return _tables(machine)


def _tables(machine: Machine) -> Simulated:
    graphs = {
        (row["rank"], row["correlation"])
        for row in machine.rows["calls"]
        if row["name"] == "cudaGraphLaunch"
    }
    kernel = {
        "grid_blocks": 108,
        "block_threads": 256,
        "registers": 32,
        "shared_bytes": 0,
        "process": 1,
    }
    kernels = [
        {
            **row,
            **kernel,
            "full_name": row["name"],
            "in_graph": (row["rank"], row["correlation"]) in graphs,
        }
        for row in machine.rows["kernels"]
    ]
    copies = [{**row, "process": 1, "peer_gpu": -1} for row in machine.rows["copies"]]
    plain = {"process": 1, "thread": 1}
    calls, os_calls = (
        [{**row, **plain} for row in machine.rows[name]] for name in ("calls", "os_calls")
    )
    more = {**plain, "domain": "", "kind": "push_pop", "depth": 0}
    ranges = [{**row, **more} for row in machine.rows["ranges"]]
    first = min(row["start_ns"] for row in kernels + copies)
    last = max(row["start_ns"] + row["dur_ns"] for row in kernels + copies)
    rows = {KERNELS: kernels, COPIES: copies, API_CALLS: calls, RANGES: ranges, OS_CALLS: os_calls}
    found = {
        table.name.lower(): table.make(pd.DataFrame(of, columns=table.column_names))
        for table, of in rows.items()
    }
    return Simulated(**found, span_ns=last - first)

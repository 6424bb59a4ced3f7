"""The cases: a program with causes planted, what would be right to tell, and the machine run again without each cause."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from adversary import writing
from adversary.machine import Machine
from adversary.programs import Chunks, Server, Solver, Training

Program = Training | Chunks | Solver | Server
LOADING = {"idle_data_loading", "input"}
HOST = {"idle_host_code"}
LAUNCH = {"launch_overhead", "idle_launch"}
SYNC = {"synchronisation", "idle_sync"}
MEMORY = {"idle_memory"}
COPIES = {"copies_serial", "exposed_copy", "copies_pageable", "copies_sync"}
COMM = {"exposed_communication"}
RANKS = {"ranks"}
SAVING = {"checkpointing"}
WARM = {"warm_up"}


@dataclass(frozen=True)
class Cause:
    """What costs time, the findings that say so, and what of the program changes when it is mended."""

    words: str
    names: set[str]
    mended: dict[str, object]


@dataclass(frozen=True)
class Plan:
    """A program, its causes by weight, what else may be said of it strongly, and how it is recorded."""

    program: Program
    causes: tuple[Cause, ...] = ()
    also: set[str] = field(default_factory=set)
    form: str = "nsys"  # or "ranks": an export per process; or "kineto": a trace per process
    without: tuple[str, ...] = ()
    metrics: int = 0
    quiet: bool = False  # nothing is wrong with this run

    def gain(self, cause: Cause) -> float:
        """How much faster the same machine is without the cause."""
        return self.program.run().span() / replace(self.program, **cause.mended).run().span()

    def write(self, machine: Machine, folder: Path) -> Path:
        """Write what was recorded of a run of the program."""
        pids = sorted({thread.pid for thread in machine.threads})
        if self.form == "nsys":
            return writing.nsys(machine, folder / "run.sqlite", without=self.without, metrics=self.metrics)
        for rank, pid in enumerate(pids):
            if self.form == "ranks":
                path = folder / f"rank{rank}.sqlite"
                writing.nsys(machine, path, pids={pid}, without=self.without, metrics=self.metrics)
            else:
                writing.kineto(machine, folder / f"rank{rank}.pt.trace.json", pid=pid, rank=rank, ranks=len(pids))
        return folder


CASES: dict[str, Callable[[random.Random], Plan]] = {}


def case(make: Callable[[random.Random], Plan]) -> Callable[[random.Random], Plan]:
    """Add a case by the name of its function."""
    CASES[make.__name__] = make
    return make


def plan(name: str, seed: int) -> Plan:
    """The plan of a case with the magnitudes of a seed."""
    return CASES[name](random.Random(f"{name} {seed}"))


def training(r: random.Random, **more: object) -> Training:
    """A training that keeps its GPU busy: the host is ahead, copies are hidden."""
    base = {"seed": r.randrange(10**6), "kernel_us": r.uniform(100, 250), "kernels": r.randint(25, 50)}
    base |= {"steps": r.randint(9, 14), "host_us": r.uniform(1, 8), "launch_us": r.uniform(4, 7)}
    return Training(**(base | more))


def step_ms(program: Training) -> float:
    """The time that the kernels of a step take."""
    return program.kernels * program.kernel_us / 1000


# --- one cause


def _loading(r: random.Random, **more: object) -> tuple[Training, Cause]:
    base = training(r, **more)
    base = replace(base, loader_ms=step_ms(base) * r.uniform(1.7, 4))
    return base, Cause("the loader's thread starves the GPU", LOADING, {"loader_ms": 0.1})


@case
def loader_thread(r: random.Random) -> Plan:
    """The loop waits in a call of the system for the loader's thread; a range names it."""
    wait = r.choice(("poll", "pthread_cond_timedwait", "sem_timedwait", "read"))
    base, cause = _loading(r, loader=wait, load_range=r.choice(("dataloader", "load_batch", "data_loading")))
    return Plan(base, (cause,))


@case
def loader_pytorch(r: random.Random) -> Plan:
    """The same with the range that PyTorch itself gives."""
    base, cause = _loading(r, load_range="enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__")
    return Plan(base, (cause,))


@case
def loader_inline(r: random.Random) -> Plan:
    """The loop itself reads and decodes."""
    base, cause = _loading(r, loader="", load_range="enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
    return Plan(base, (cause,))


@case
def loader_no_ranges(r: random.Random) -> Plan:
    """No range names it: the host waits, for what nobody can know."""
    base, cause = _loading(r)
    cause = replace(cause, names=LOADING | HOST | {"idle"})
    return Plan(base, (cause,), without=("nvtx",))


@case
def loader_kineto(r: random.Random) -> Plan:
    """In a PyTorch trace."""
    base, cause = _loading(r, torch=True, load_range="enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__")
    return Plan(base, (cause,), form="kineto")


@case
def python_between_launches(r: random.Random) -> Plan:
    """The Python between two launches takes longer than the kernel."""
    base = training(r, kernel_us=r.uniform(40, 90), steps=8)
    base = replace(base, host_us=base.kernel_us * r.uniform(2, 4))
    return Plan(base, (Cause("Python between launches", HOST, {"host_us": 2.0}),))


@case
def python_between_steps(r: random.Random) -> Plan:
    """Logging between two steps, after a wait for the loss."""
    base = training(r, sync="item")
    base = replace(base, between_ms=step_ms(base) * r.uniform(0.8, 2))
    return Plan(base, (Cause("Python between steps", HOST, {"between_ms": 0.1}),))


@case
def small_kernels(r: random.Random) -> Plan:
    """Kernels of a few microseconds, each by a launch that takes longer."""
    base = training(r, kernel_us=r.uniform(2, 3.5), kernels=150, steps=8, host_us=0.4, launch_us=r.uniform(6, 9))
    base = replace(base, prefetch=True, batch_mb=0.2, between_ms=0.02, loader_ms=0.02)
    return Plan(base, (Cause("launches of small kernels", LAUNCH, {"graph": True}),))


@case
def small_kernels_solver(r: random.Random) -> Plan:
    """The same in a solver in C++."""
    base = Solver(r.randrange(999), steps=60, kernels=20, kernel_us=r.uniform(1.5, 2.5), check_every=0, host_us=0.3)
    base = replace(base, launch_us=r.uniform(5, 8))
    return Plan(base, (Cause("launches of small kernels", LAUNCH, {"graph": True}),))


@case
def small_kernels_kineto(r: random.Random) -> Plan:
    """The same in a PyTorch trace: the dispatcher's time lies between the launches."""
    base = training(r, kernel_us=r.uniform(2, 3.5), kernels=120, steps=6, host_us=4, launch_us=r.uniform(6, 9), torch=True)
    base = replace(base, batch_mb=0.2, between_ms=0.02, loader_ms=0.02)
    cause = Cause("launches of small kernels", LAUNCH | HOST | {"small_operators"}, {"graph": True})
    return Plan(base, (cause,), form="kineto")


@case
def waits_in_step(r: random.Random) -> Plan:
    """The loop waits for the GPU many times a step, so that launches never run ahead."""
    base = training(r, kernel_us=r.uniform(15, 25), kernels=60, steps=8, syncs=30, host_us=r.uniform(5, 9))
    return Plan(base, (Cause("waits for the GPU within the step", SYNC, {"syncs": 0}),))


@case
def waits_each_iteration(r: random.Random) -> Plan:
    """A solver reads its residual after each short iteration."""
    base = Solver(r.randrange(999), kernels=2, kernel_us=r.uniform(8, 14), host_us=1.0)
    return Plan(base, (Cause("a wait for the residual each iteration", SYNC | {"copies_sync"}, {"check_every": 50}),))


@case
def malloc_in_loop(r: random.Random) -> Plan:
    """cudaMalloc and cudaFree in the step."""
    base = training(r, kernel_us=r.uniform(60, 120), allocs=r.randint(6, 10), alloc_us=r.uniform(250, 600))
    return Plan(base, (Cause("cudaMalloc and cudaFree in the step", MEMORY, {"allocs": 0}),))


@case
def pageable_copies(r: random.Random) -> Plan:
    """Chunks from pageable memory, one stream: the GPU computes or copies, never both."""
    base = Chunks(r.randrange(999), streams=1, pinned=False, size_mb=r.uniform(6, 12), kernel_us=r.uniform(300, 600))
    return Plan(base, (Cause("pageable copies on one stream", COPIES, {"pinned": True, "streams": 3}),))


@case
def pinned_serial(r: random.Random) -> Plan:
    """Pinned copies that could run beside the kernels but share their stream."""
    base = Chunks(r.randrange(999), streams=1, size_mb=r.uniform(20, 30), back_mb=20, kernel_us=r.uniform(300, 500))
    return Plan(base, (Cause("copies on the stream of the kernels", COPIES, {"streams": 3}),))


@case
def blocking_copies(r: random.Random) -> Plan:
    """cudaMemcpy from pinned memory."""
    base = Chunks(r.randrange(999), streams=1, wait=True, size_mb=r.uniform(20, 30), kernel_us=r.uniform(250, 400))
    return Plan(base, (Cause("copies that block", COPIES | SYNC, {"streams": 3, "wait": False}),))


@case
def small_pieces(r: random.Random) -> Plan:
    """A chunk sent in hundreds of small copies."""
    base = Chunks(r.randrange(999), chunks=12, streams=1, size_mb=1.5, back_mb=1.5, pieces=150, kernel_us=100)
    return Plan(base, (Cause("many small copies", COPIES | {"copies_small"}, {"pieces": 1}),))


@case
def slow_gpu(r: random.Random) -> Plan:
    """One of four GPUs is slower; all meet in an all-reduce each step."""
    speeds = (1.0, 1.0, r.uniform(0.45, 0.65), 1.0)
    base = training(r, kernels=20, steps=6, speeds=speeds, reduce_ms=0.5)
    cause = Cause("one GPU is slower than the others", RANKS | COMM, {"speeds": (1.0,) * 4})
    return Plan(base, (cause,), form=r.choice(("nsys", "ranks")))


@case
def more_work_on_a_rank(r: random.Random) -> Plan:
    """One of two ranks computes more."""
    extra = r.uniform(1.6, 2.4)
    base = training(r, kernels=20, steps=8, speeds=(1.0, 1.0), work=(1.0, extra), reduce_ms=0.4)
    cause = Cause("work is unevenly spread", RANKS | COMM, {"work": ((1 + extra) / 2,) * 2})
    return Plan(base, (cause,), form="ranks")


@case
def late_rank(r: random.Random) -> Plan:
    """One of two ranks is late each step, because of Python."""
    base = training(r, kernels=20, steps=8, speeds=(1.0, 1.0), reduce_ms=0.4, sync="cudaStreamSynchronize")
    base = replace(base, late_ms=(0.0, step_ms(base) * r.uniform(1, 2)))
    cause = Cause("a rank is late", RANKS | HOST | COMM, {"late_ms": (0.0, 0.0)})
    return Plan(base, (cause,), form="ranks")


@case
def exposed_reduce(r: random.Random) -> Plan:
    """All-reduces on the stream of the kernels."""
    base = training(r, kernels=20, steps=8, speeds=(1.0, 1.0), overlap=False)
    base = replace(base, reduce_ms=step_ms(base) * r.uniform(0.5, 0.9))
    return Plan(base, (Cause("all-reduces that nothing hides", COMM, {"overlap": True}),), form=r.choice(("nsys", "ranks")))


@case
def exposed_reduce_kineto(r: random.Random) -> Plan:
    """The same in PyTorch traces."""
    return replace(exposed_reduce(r), form="kineto")


@case
def checkpoints(r: random.Random) -> Plan:
    """A checkpoint is written every few steps, in the loop."""
    base = training(r, save_every=r.randint(2, 3))
    base = replace(base, save_ms=step_ms(base) * base.save_every * r.uniform(0.8, 1.6))
    return Plan(base, (Cause("checkpoints in the loop", SAVING, {"save_every": 0}),))


@case
def checkpoints_no_ranges(r: random.Random) -> Plan:
    """The same without ranges: calls of write tell it."""
    base = checkpoints(r)
    cause = replace(base.causes[0], names=SAVING | HOST | {"idle"})
    return replace(base, causes=(cause,), without=("nvtx",))


@case
def lazy_loading(r: random.Random) -> Plan:
    """Modules are loaded at the first launches."""
    base = training(r, load_us=r.uniform(20_000, 50_000))
    return Plan(base, (Cause("lazy loading at the first launches", WARM, {"load_us": 0.0}),))


@case
def throttled(r: random.Random) -> Plan:
    """The clock falls to half after a quarter of the run; samples show it."""
    base = training(r)
    at = base.steps * step_ms(base) / 4
    base = replace(base, clocks=((at, r.uniform(0.45, 0.6)),))
    cause = Cause("the clock falls", {"throttling", "log_throttling", "clocks", "clock"}, {"clocks": ()})
    return Plan(base, (cause,), metrics=500_000)


@case
def lock(r: random.Random) -> Plan:
    """Another thread keeps a lock that each step needs."""
    base = training(r)
    base = replace(base, lock_ms=step_ms(base) * r.uniform(1.5, 3))
    return Plan(base, (Cause("a lock that another thread keeps", HOST | {"idle"}, {"lock_ms": 0.01}),))


@case
def host_optimizer(r: random.Random) -> Plan:
    """The optimizer runs on the host."""
    base = training(r)
    base = replace(base, update_ms=step_ms(base) * r.uniform(0.8, 2))
    return Plan(base, (Cause("the optimizer runs on the host", HOST, {"update_ms": 0.02}),))


@case
def low_occupancy(r: random.Random) -> Plan:
    """One kernel of eight blocks takes most of the time of a GPU of 108 SMs."""
    base = training(r, dominant=r.uniform(0.7, 0.85))
    few = {"low_occupancy", "computation", "latency_bound", "small_grid", "dominant_kernel", "idle_sms"}
    cause = Cause("a kernel of few blocks dominates", few, {"dominant": 0.1, "kernel_us": base.kernel_us * 0.4})
    return Plan(base, (cause,), metrics=500_000)


@case
def idle_neighbour(r: random.Random) -> Plan:
    """A second GPU did three kernels and then nothing."""
    base = Solver(r.randrange(999), steps=60, kernel_us=r.uniform(200, 400), check_every=0, idle_gpu=True)
    names = {"idle_gpu", "idle_gpus", "ranks", "balance", "idle"}
    cause = Cause("a second GPU does nothing", names, {"gpus": 2, "work": (0.5, 0.5), "halo_mb": 0.2})
    return Plan(base, (cause,))


@case
def uneven_gpus(r: random.Random) -> Plan:
    """Two GPUs of one process, one has three times the work of the other."""
    base = Solver(r.randrange(999), steps=60, gpus=2, kernel_us=r.uniform(200, 300), work=(1.5, 0.5), halo_mb=0.5)
    names = {"ranks", "balance", "idle_gpu", "idle_gpus"}
    cause = Cause("work is unevenly spread over two GPUs", names, {"work": (1.0, 1.0)})
    return Plan(base, (cause,))


# --- healthy


@case
def full_queue(r: random.Random) -> Plan:
    """Launches run ahead until the queue is full; one long wait at the end."""
    return Plan(training(r, kernels=120, steps=14, kernel_us=r.uniform(60, 90), ranges=r.random() < 0.5), quiet=True)


@case
def busy(r: random.Random) -> Plan:
    """A training that keeps its GPU busy, with a wait for the loss each step."""
    return Plan(training(r, kernel_us=r.uniform(200, 400), sync=r.choice(("item", "cudaStreamSynchronize"))), quiet=True)


@case
def overlapped(r: random.Random) -> Plan:
    """Chunks on three streams: copies run beside kernels."""
    return Plan(Chunks(r.randrange(999), kernel_us=r.uniform(300, 500), size_mb=r.uniform(4, 9)), quiet=True)


@case
def overlapped_reduce(r: random.Random) -> Plan:
    """All-reduces hidden behind the backward pass."""
    base = training(r, speeds=(1.0, 1.0), steps=8, kernels=24)
    return Plan(replace(base, reduce_ms=step_ms(base) * 0.4), quiet=True, form="ranks")


@case
def graph_steps(r: random.Random) -> Plan:
    """Small kernels, a graph a step."""
    base = training(r, kernel_us=r.uniform(4, 6), kernels=300, graph=True, host_us=1, between_ms=0.02, loader_ms=0.02)
    return Plan(replace(base, batch_mb=0.1), quiet=True)

"""The cases: programs with causes planted, what is right to tell, and the machine run again without each cause."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from adversary import writing
from adversary.machine import Machine
from adversary.programs import Chunks, Server, Solver, Training

Program = Training | Chunks | Solver | Server


@dataclass(frozen=True)
class Cause:
    """What costs time, the findings that say so, and what of the program changes when it is mended.

    `even` says that this cause is as good an answer as the one before it.
    """

    words: str
    names: frozenset[str] | set[str]
    mended: dict[str, object]
    even: bool = False


@dataclass(frozen=True)
class Plan:
    """A program, its causes by weight, what else may be said of it strongly, and how it is recorded."""

    program: Program
    causes: tuple[Cause, ...] = ()
    also: frozenset[str] | set[str] = frozenset()
    form: str = "nsys"  # or "ranks": an export per process; or "kineto": a trace per process
    without: tuple[str, ...] = ()
    metrics: int = 0
    quiet: bool = False  # nothing is wrong with this run
    words: str = ""

    def first(self) -> list[Cause]:
        """The causes that are right to tell first."""
        later = [number for number, cause in enumerate(self.causes) if number and not cause.even]
        return list(self.causes[: later[0] if later else None])

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


@dataclass(frozen=True)
class Steps:
    """A time between so many and so many times that of the kernels of a step."""

    low: float
    high: float
    per: str = field(default="")  # times this field too


def training(r: random.Random, **more: object) -> Training:
    """A training that keeps its GPU busy, the host ahead and copies hidden, but for what is given."""
    base = {"seed": r.randrange(10**6), "kernel_us": r.uniform(100, 250), "kernels": r.randint(25, 50)}
    base |= {"steps": r.choice((9, 11, 13)), "host_us": r.uniform(1, 8), "launch_us": r.uniform(4, 7)}
    if len(more.get("speeds", ())) > 1:
        base |= {"steps": 7, "kernels": 20}
    made = base | {name: value for name, value in more.items() if not isinstance(value, Steps)}
    step = made["kernels"] * made["kernel_us"] / 1000
    for name, value in more.items():
        if isinstance(value, Steps):
            made[name] = r.uniform(value.low, value.high) * step * (made[value.per] if value.per else 1)
    if made.get("late_ms"):
        made["late_ms"] = (0.0, made["late_ms"])
    return Training(**made)


def chunks(r: random.Random, **more: object) -> Chunks:
    """Chunks through the GPU."""
    return Chunks(r.randrange(10**6), **more)


def solver(r: random.Random, **more: object) -> Solver:
    """A solver."""
    return Solver(r.randrange(10**6), **more)


TWO, FOUR = (1.0, 1.0), (1.0, 1.0, 1.0, 1.0)
NEXT = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
INLINE = NEXT.replace("Multi", "Single")
TINY = {"batch_mb": 0.2, "between_ms": 0.02, "loader_ms": 0.02}  # a step of small kernels
LOADING = {"idle_data_loading", "input"}
HOSTLY = {"idle_host_code"}
LAUNCHING = {"launch_overhead", "idle_launch", "small_operators"}
WAITING = {"synchronisation", "idle_sync"}
COPYING = {"copies_serial", "exposed_copy"}
UNEVEN = {"ranks", "balance", "idle_gpu", "idle_gpus"}

LOADER = Cause("the loader starves the GPU", LOADING, {"loader_ms": 0.1})
LOADER_UNNAMED = replace(LOADER, names=LOADING | HOSTLY | {"idle"})
PYTHON = Cause("Python between launches", HOSTLY, {"host_us": 2.0})
LOGGING = Cause("Python between steps", HOSTLY, {"between_ms": 0.1})
LAUNCHES = Cause("launches of small kernels", LAUNCHING, {"graph": True})
WAITS = Cause("waits for the GPU within the step", WAITING, {"syncs": 0})
STEP_WAIT = Cause("a wait after each step", WAITING, {"sync": ""})
RESIDUAL = Cause("a wait in each iteration", WAITING | {"copies_synchronous"}, {"check_every": 50})
ALLOCATION = Cause("cudaMalloc and cudaFree in the step", {"idle_memory"}, {"allocs": 0})
PAGEABLE = Cause("pageable copies", {"copies_pageable"}, {"pinned": True})
SERIAL = Cause("copies on the stream of the kernels", COPYING, {"streams": 3})
BLOCKING = Cause("copies that block", {"copies_synchronous"} | WAITING, {"streams": 3, "wait": False})
PIECES = Cause("many small copies", {"copies_small"}, {"pieces": 1})
REDUCE = Cause("all-reduces that nothing hides", {"exposed_communication"}, {"overlap": True})
SAVING = Cause("checkpoints in the loop", {"checkpointing"}, {"save_every": 0})
LAZY = Cause("lazy loading at the first launches", {"warm_up"}, {"load_us": 0.0})
LOCK = Cause("a lock that another thread keeps", HOSTLY | {"idle"}, {"lock_ms": 0.01})
UPDATE = Cause("the optimizer runs on the host", HOSTLY, {"update_ms": 0.02})
SLOW = Cause("one GPU is slower than the others", UNEVEN, {"speeds": FOUR})
LATE = Cause("a rank is late", UNEVEN | HOSTLY, {"late_ms": (0.0, 0.0)})
THROTTLED = Cause("the clock falls", {"throttling", "log_throttling", "clocks"}, {"clocks": ()})
FEW_BLOCKS = Cause("a kernel of few blocks dominates", {"low_occupancy", "latency_bound", "small_grid"}, {})
SPARE = Cause("a second GPU does nothing", UNEVEN, {"gpus": 2, "work": (0.5, 0.5), "halo_mb": 0.2})
SPREAD = Cause("work is unevenly spread over two GPUs", UNEVEN, {"work": TWO})
HALO = Cause("copies between GPUs, beside no kernel", COPYING, {"halo_mb": 0.01})


def _small(r: random.Random, **more: object) -> Training:
    """A training of small kernels; the launches take longer than they."""
    small = {"kernel_us": r.uniform(2, 3.5), "kernels": 120, "steps": 7, "host_us": 0.4, "launch_us": r.uniform(6, 9)}
    return training(r, **(TINY | small | more))


def _work(r: random.Random) -> Plan:
    more = r.uniform(1.6, 2.4)
    cause = Cause("a rank computes more than the other", UNEVEN, {"work": ((1 + more) / 2,) * 2})
    return Plan(training(r, speeds=TWO, work=(1.0, more), reduce_ms=0.4), (cause,), form="ranks")


def _throttled(r: random.Random) -> Plan:
    base = training(r)
    at = base.steps * base.kernels * base.kernel_us / 4000
    return Plan(replace(base, clocks=((at, r.uniform(0.45, 0.6)),)), (THROTTLED,), metrics=500_000)


def _few_blocks(r: random.Random) -> Plan:
    base = training(r, dominant=r.uniform(0.7, 0.85))
    mended = {"dominant": 0.1, "kernel_us": base.kernel_us * (1 - base.dominant) / 0.9}
    return Plan(base, (replace(FEW_BLOCKS, mended=mended),), metrics=500_000)


def _slow(r: random.Random) -> Training:
    return training(r, speeds=(1.0, 1.0, r.uniform(0.45, 0.65), 1.0), reduce_ms=0.5)


def _exposed(r: random.Random, form: str) -> Plan:
    return Plan(training(r, speeds=TWO, overlap=False, reduce_ms=Steps(0.5, 0.9), torch=True), (REDUCE,), form=form)


def _reduced(r: random.Random, **more: object) -> Training:
    return training(r, speeds=TWO, overlap=False, reduce_ms=Steps(0.6, 0.9), **more)


def _saved(r: random.Random, low: float, high: float, **more: object) -> Training:
    return training(r, save_every=2, save_ms=Steps(low, high, "save_every"), **more)


def _quiet(program: Program, words: str, **more: object) -> Plan:
    return Plan(program, quiet=True, words=words, **more)


SINGLE: dict[str, Callable[[random.Random], Plan]] = {
    "loader_thread": lambda r: Plan(
        training(r, loader_ms=Steps(1.7, 4), loader=r.choice(("poll", "pthread_cond_timedwait", "sem_timedwait"))),
        (LOADER,),
    ),
    "loader_named": lambda r: Plan(
        training(r, loader_ms=Steps(1.7, 4), load_range=r.choice(("dataloader", "load_batch", "fetch data"))), (LOADER,)
    ),
    "loader_pytorch": lambda r: Plan(training(r, loader_ms=Steps(1.7, 4), load_range=NEXT), (LOADER,)),
    "loader_inline": lambda r: Plan(training(r, loader_ms=Steps(0.9, 2), loader="", load_range=INLINE), (LOADER,)),
    "loader_mild": lambda r: Plan(training(r, loader_ms=Steps(1.15, 1.3), load_range=NEXT), (LOADER,)),
    "loader_no_ranges": lambda r: Plan(training(r, loader_ms=Steps(1.7, 4)), (LOADER_UNNAMED,), without=("nvtx",)),
    "loader_no_os": lambda r: Plan(training(r, loader_ms=Steps(1.7, 4), load_range=NEXT), (LOADER,), without=("os",)),
    "loader_kineto": lambda r: Plan(
        training(r, loader_ms=Steps(1.7, 4), torch=True, load_range=NEXT), (LOADER,), form="kineto"
    ),
    "python_between_launches": lambda r: Plan(
        training(r, kernel_us=50, steps=8, host_us=r.uniform(100, 200)), (PYTHON,), also=LAUNCHING
    ),
    "python_kineto": lambda r: Plan(
        training(r, kernel_us=50, steps=8, host_us=r.uniform(100, 200), torch=True), (PYTHON,), form="kineto"
    ),
    "python_after_wait": lambda r: Plan(
        training(r, sync="item", between_ms=Steps(0.8, 2)), (LOGGING, replace(STEP_WAIT, even=True))
    ),
    "python_between_steps": lambda r: Plan(training(r, between_ms=Steps(1.8, 3)), (LOGGING,)),
    "host_part_of_solver": lambda r: Plan(
        solver(r, steps=50, kernel_us=200, host_ms=r.uniform(0.9, 2)),
        (
            Cause("the host's part of an iteration", HOSTLY, {"host_ms": 0.02}),
            replace(RESIDUAL, mended={"check_every": 0}, even=True),
        ),
    ),
    "tokenising_server": lambda r: Plan(
        Server(r.randrange(999), every_ms=0.1, tokenise_ms=r.uniform(4, 8)),
        (Cause("Python before each request", HOSTLY, {"tokenise_ms": 0.02}),),
        also=LAUNCHING,
    ),
    "small_kernels": lambda r: Plan(_small(r), (LAUNCHES,)),
    "small_kernels_solver": lambda r: Plan(
        solver(r, steps=50, kernels=20, kernel_us=r.uniform(1.5, 2.5), check_every=0, host_us=0.3, launch_us=6),
        (LAUNCHES,),
    ),
    "small_kernels_kineto": lambda r: Plan(_small(r, host_us=4, torch=True), (LAUNCHES,), also=HOSTLY, form="kineto"),
    "waits_in_step": lambda r: Plan(
        training(r, kernel_us=r.uniform(15, 25), kernels=60, steps=8, syncs=30, host_us=r.uniform(5, 9)), (WAITS,)
    ),
    "waits_each_iteration": lambda r: Plan(solver(r, kernels=2, kernel_us=r.uniform(8, 14), host_us=1.0), (RESIDUAL,)),
    "wait_each_short_step": lambda r: Plan(
        training(r, kernels=25, kernel_us=r.uniform(25, 40), steps=14, sync="cudaDeviceSynchronize", between_ms=0.5),
        (STEP_WAIT, replace(LOGGING, even=True)),
    ),
    "malloc_in_loop": lambda r: Plan(
        training(r, kernel_us=r.uniform(60, 120), allocs=r.randint(6, 10), alloc_us=r.uniform(250, 600)), (ALLOCATION,)
    ),
    "malloc_mild": lambda r: Plan(
        training(r, kernel_us=r.uniform(150, 200), allocs=2, alloc_us=r.uniform(250, 400)), (ALLOCATION,)
    ),
    "pageable_chunks": lambda r: Plan(
        chunks(r, streams=1, pinned=False, size_mb=r.uniform(6, 12), kernel_us=r.uniform(300, 600)), (PAGEABLE,)
    ),
    "pageable_batches": lambda r: Plan(
        training(r, pinned=False, prefetch=False, batch_mb=r.uniform(30, 60), sync="item"),
        (replace(PAGEABLE, mended={"pinned": True, "prefetch": True}),),
    ),
    "pinned_serial": lambda r: Plan(
        chunks(r, streams=1, size_mb=r.uniform(20, 30), back_mb=20, kernel_us=r.uniform(300, 500)), (SERIAL,)
    ),
    "blocking_copies": lambda r: Plan(
        chunks(r, streams=1, wait=True, size_mb=r.uniform(20, 30), kernel_us=r.uniform(250, 400)), (BLOCKING,)
    ),
    "small_pieces": lambda r: Plan(
        chunks(r, chunks=12, streams=1, size_mb=1.5, back_mb=1.5, pieces=r.randint(100, 200), kernel_us=100), (PIECES,)
    ),
    "halo_exposed": lambda r: Plan(
        solver(r, steps=40, gpus=2, work=TWO, kernel_us=r.uniform(80, 120), halo_mb=r.uniform(40, 60)), (HALO,)
    ),
    "slow_gpu_one_file": lambda r: Plan(_slow(r), (SLOW,)),
    "slow_gpu_ranks": lambda r: Plan(_slow(r), (SLOW,), form="ranks"),
    "slow_gpu_kineto": lambda r: Plan(replace(_slow(r), torch=True), (SLOW,), form="kineto"),
    "more_work_on_a_rank": _work,
    "late_rank": lambda r: Plan(
        training(r, speeds=TWO, reduce_ms=0.4, sync="cudaStreamSynchronize", late_ms=Steps(1, 2)),
        (LATE,),
        form="ranks",
    ),
    "exposed_reduce_one_file": lambda r: _exposed(r, "nsys"),
    "exposed_reduce_ranks": lambda r: _exposed(r, "ranks"),
    "exposed_reduce_kineto": lambda r: _exposed(r, "kineto"),
    "checkpoints": lambda r: Plan(_saved(r, 0.8, 1.6), (SAVING,)),
    "checkpoints_no_ranges": lambda r: Plan(
        _saved(r, 0.8, 1.6), (replace(SAVING, names={"checkpointing", "idle_host_code", "idle"}),), without=("nvtx",)
    ),
    "checkpoints_mild": lambda r: Plan(_saved(r, 0.15, 0.25, save_mb=5), (SAVING,)),
    "lazy_loading": lambda r: Plan(training(r, load_us=r.uniform(20_000, 50_000)), (LAZY,), also={"idle_launch"}),
    "throttled": _throttled,
    "lock_of_another_thread": lambda r: Plan(training(r, lock_ms=Steps(1.5, 3)), (LOCK,)),
    "lock_without_os_calls": lambda r: Plan(training(r, lock_ms=Steps(1.5, 3)), (LOCK,), without=("os", "nvtx")),
    "host_optimizer": lambda r: Plan(training(r, update_ms=Steps(0.8, 2)), (UPDATE,)),
    "few_blocks": _few_blocks,
    "idle_neighbour": lambda r: Plan(
        solver(r, steps=60, kernel_us=r.uniform(200, 400), check_every=0, idle_gpu=True), (SPARE,)
    ),
    "uneven_gpus": lambda r: Plan(
        solver(r, steps=60, gpus=2, kernel_us=r.uniform(200, 300), work=(1.5, 0.5), halo_mb=0.5), (SPREAD,)
    ),
}
MIXED: dict[str, Callable[[random.Random], Plan]] = {
    "loader_over_checkpoints": lambda r: Plan(
        _saved(r, 0.3, 0.5, save_mb=5, loader="", loader_ms=Steps(1.5, 2), load_range=INLINE), (LOADER, SAVING)
    ),
    "checkpoints_over_loader": lambda r: Plan(
        _saved(r, 1.8, 2.2, save_mb=5, loader="", loader_ms=Steps(0.4, 0.6), load_range=INLINE), (SAVING, LOADER)
    ),
    "loader_over_malloc": lambda r: Plan(
        training(r, loader="", loader_ms=Steps(1.5, 2), load_range=INLINE, allocs=2, alloc_us=r.uniform(200, 300)),
        (LOADER, ALLOCATION),
    ),
    "malloc_over_loader": lambda r: Plan(
        training(r, allocs=10, alloc_us=r.uniform(400, 600), loader="", loader_ms=Steps(0.2, 0.3), load_range=INLINE),
        (ALLOCATION, LOADER),
    ),
    "optimizer_over_checkpoints": lambda r: Plan(
        _saved(r, 0.2, 0.3, save_mb=5, update_ms=Steps(1.5, 2)), (UPDATE, SAVING)
    ),
    "reduce_over_loader": lambda r: Plan(
        _reduced(r, loader="", loader_ms=Steps(0.2, 0.3), load_range=INLINE, sync="item"),
        (REDUCE, LOADER),
        form="ranks",
    ),
    "loader_over_reduce": lambda r: Plan(
        training(
            r, speeds=TWO, overlap=False, reduce_ms=Steps(0.2, 0.3), loader_ms=Steps(3, 4), load_range=NEXT, torch=True
        ),
        (LOADER, REDUCE),
        form="kineto",
    ),
    "lock_over_malloc": lambda r: Plan(training(r, lock_ms=Steps(2, 3), allocs=1, alloc_us=150), (LOCK, ALLOCATION)),
    "pageable_over_loader": lambda r: Plan(
        training(
            r,
            pinned=False,
            prefetch=False,
            batch_mb=80,
            loader="",
            loader_ms=Steps(0.3, 0.4),
            load_range=INLINE,
            sync="item",
        ),
        (replace(PAGEABLE, mended={"pinned": True, "prefetch": True}), LOADER),
    ),
    "launches_over_loader": lambda r: Plan(
        _small(r, loader="", loader_ms=Steps(0.3, 0.5), load_range=INLINE, sync="item"), (LAUNCHES, LOADER)
    ),
    "work_over_logging": lambda r: replace(_work(r), program=replace(_work(r).program, between_ms=0.3)),
}
HEALTHY: dict[str, Callable[[random.Random], Plan]] = {
    "full_queue": lambda r: _quiet(
        training(r, kernels=120, steps=14, kernel_us=70), "launch calls wait: the queue is full"
    ),
    "busy": lambda r: _quiet(
        training(r, kernel_us=r.uniform(200, 400), sync=r.choice(("item", "cudaStreamSynchronize"))), "a busy GPU"
    ),
    "busy_kineto": lambda r: _quiet(training(r, torch=True, load_range=NEXT), "a busy GPU", form="kineto"),
    "overlapped_chunks": lambda r: _quiet(
        chunks(r, kernel_us=r.uniform(300, 500), size_mb=r.uniform(4, 9)), "copies run beside kernels"
    ),
    "overlapped_reduce": lambda r: _quiet(training(r, speeds=TWO, reduce_ms=Steps(0.3, 0.5)), "hidden", form="ranks"),
    "graph_steps": lambda r: _quiet(
        training(r, kernel_us=r.uniform(14, 18), kernels=150, graph=True, **TINY), "a graph a step"
    ),
    "solver_alone": lambda r: _quiet(solver(r, steps=60, kernel_us=r.uniform(300, 500)), "a busy solver"),
    "even_gpus": lambda r: _quiet(
        solver(r, steps=60, gpus=2, work=TWO, kernel_us=250, halo_mb=0.5, check_every=10), "two GPUs, evenly busy"
    ),
}
TRAPS: dict[str, Callable[[random.Random], Plan]] = {
    "honest_wait": lambda r: _quiet(
        training(r, kernel_us=300, sync="cudaDeviceSynchronize"), "a wait of 95 % of the time, for kernels"
    ),
    "hidden_pageable": lambda r: _quiet(
        training(r, pinned=False, batch_mb=r.uniform(15, 20)), "pageable copies that kernels hide"
    ),
    "hidden_loader": lambda r: _quiet(
        training(r, loader_ms=Steps(0.85, 0.93), load_range=NEXT), "the loop waits for data, the GPU never does"
    ),
    "hidden_writer": lambda r: _quiet(
        _saved(r, 0.3, 0.45, save_beside=True, save_mb=1), "another thread writes checkpoints"
    ),
    "little_loading": lambda r: _quiet(
        training(r, sync="item", between_ms=0.01, loader="", loader_ms=Steps(0.01, 0.02), load_range=INLINE),
        "below 3 %",
    ),
    "little_saving": lambda r: _quiet(_saved(r, 0.005, 0.01, save_mb=1), "a checkpoint below 3 %"),
    "little_reduce": lambda r: _quiet(
        training(r, speeds=TWO, overlap=False, reduce_ms=Steps(0.01, 0.02)), "collectives below 3 %", form="ranks"
    ),
    "idle_helper": lambda r: _quiet(
        training(r, helper=r.choice(("pthread_mutex_lock", "poll", "pthread_cond_wait")), helper_ms=60),
        "another thread waits for a lock all the time",
    ),
    "name_of_checkpointing": lambda r: Plan(
        training(r, kernel_us=50, steps=8, host_us=r.uniform(100, 200), decoy="torch.utils.checkpoint"), (PYTHON,)
    ),
    "name_of_loading": lambda r: Plan(
        training(r, kernel_us=r.uniform(60, 120), allocs=8, alloc_us=400, decoy="DataParallel.forward"), (ALLOCATION,)
    ),
    "slow_first_step": lambda r: Plan(
        training(r, first_ms=Steps(4, 8)),
        (Cause("the first step is slow", {"warm_up"}, {"first_ms": 0.0}),),
        also={"idle_host_code"},
    ),
    "rare_requests": lambda r: Plan(
        Server(r.randrange(999), every_ms=r.uniform(10, 15)), words="no requests", also=HOSTLY | {"idle"}
    ),
    "few_large_waits": lambda r: Plan(
        training(r, loader_ms=Steps(1.7, 3), load_range=NEXT, sync="cudaDeviceSynchronize"), (LOADER,)
    ),
}
CASES = SINGLE | MIXED | HEALTHY | TRAPS


def plan(name: str, seed: int) -> Plan:
    """The plan of a case with the magnitudes of a seed."""
    return CASES[name](random.Random(f"{name} {seed}"))

"""The cases: programs with causes planted, what is right to tell, and the machine run again without each cause."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from adversary import writing
from adversary.machine import Machine
from adversary.programs import Chunks, Server, Solver, Training

Program = Training | Chunks | Solver | Server
PROFILED = 1.4, 2.1  # times as long PyTorch's profiler makes launching (data/README.md, H200)
OPERATORS_US = 5.0  # of a launch, in the operators that lead to it


@dataclass(frozen=True)
class Cause:
    """What costs time, the findings that say so, and what of the program changes when it is mended."""

    words: str
    names: frozenset[str] | set[str]
    mended: dict[str, object]
    even: bool = False  # it is as good an answer as the one before it


@dataclass(frozen=True)
class Plan:
    """A program, its causes by weight, what else may be said of it strongly, and how it is recorded."""

    program: Program
    causes: tuple[Cause, ...] = ()
    also: frozenset[str] | set[str] = frozenset()
    form: str = "nsys"  # or "ranks": an export per process; or "kineto": a trace per process
    without: tuple[str, ...] = ()
    metrics: int = 0
    quiet: str = ""  # why nothing is wrong with this run

    def first(self) -> list[Cause]:
        """The causes that are right to tell first."""
        later = [number for number, cause in enumerate(self.causes) if number and not cause.even]
        return list(self.causes[: later[0] if later else None])

    def run(self) -> Machine:
        """The run that is recorded: PyTorch's profiler pays for each operator and each launch, as measured."""
        if self.form != "kineto":
            return self.program.run()
        slow = random.Random(f"profiler {self.program.seed}").uniform(*PROFILED)
        launch_us = self.program.launch_us * slow
        host_us = self.program.host_us + OPERATORS_US * (slow - 1)
        return replace(self.program, launch_us=launch_us, host_us=host_us).run()

    def gain(self, cause: Cause, *, is_loop: bool = False) -> float:
        """How much faster than the program, without a profiler, the same machine is without the cause.

        The loop of a program is judged from its first kernel on.
        """
        values = {
            name: value(self.program) if callable(value) else value
            for name, value in cause.mended.items()
        }
        before, after = self.program.run(), replace(self.program, **values).run()
        if is_loop:
            return before.span_of_kernels() / after.span_of_kernels()
        return before.span() / after.span()

    def write(self, machine: Machine, folder: Path) -> Path:
        """Write what was recorded of a run of the program."""
        pids = sorted({thread.pid for thread in machine.threads})
        if self.form == "nsys":
            return writing.nsys(
                machine, folder / "run.sqlite", without=self.without, metrics=self.metrics
            )
        for rank, pid in enumerate(pids):
            if self.form == "ranks":
                path = folder / f"rank{rank}.sqlite"
                writing.nsys(machine, path, pids={pid}, without=self.without, metrics=self.metrics)
            else:
                writing.kineto(
                    machine,
                    folder / f"rank{rank}.pt.trace.json",
                    pid=pid,
                    rank=rank,
                    ranks=len(pids),
                )
        return folder


@dataclass(frozen=True)
class U:
    """A magnitude between two bounds; `steps`: times what the kernels of a step take, `whole`: an integer."""

    low: float
    high: float
    steps: float = 0.0
    whole: bool = False

    def draw(self, r: random.Random, step_ms: float) -> float:
        value = r.uniform(self.low, self.high) * (step_ms * self.steps if self.steps else 1)
        return round(value) if self.whole else value


def steps(low: float, high: float, times: float = 1.0) -> U:
    """A time, by that of the kernels of a step."""
    return U(low, high, times)


Make = Callable[[random.Random], Plan]
USUAL: dict[type, dict] = {  # programs that keep their GPU busy, the host ahead and copies hidden
    Training: {
        "kernel_us": U(100, 250),
        "kernels": U(25, 50, whole=True),
        "steps": [9, 11, 13],
        "host_us": U(1, 8),
    },
    Chunks: {"kernel_us": U(300, 500)},
}


def of(kind: type, *causes: Cause, **given: object) -> Make:
    """A case: a kind of program, its causes, its fields; a list is a choice, a function is called with the others."""

    def make(r: random.Random) -> Plan:
        plan = {
            name: given[name]
            for name in ("also", "form", "without", "metrics", "quiet")
            if name in given
        }
        fields = USUAL.get(kind, {}) | ({"steps": 7, "kernels": 20} if "speeds" in given else {})
        fields |= {name: value for name, value in given.items() if name not in plan}
        made: dict = {"seed": r.randrange(10**6)}
        step = 0.0
        for late in (False, True):
            for name, value in fields.items():
                if late == (callable(value) or (isinstance(value, U) and value.steps > 0)):
                    value = r.choice(value) if isinstance(value, list) else value
                    value = value.draw(r, step) if isinstance(value, U) else value
                    made[name] = value(r, made) if callable(value) else value
            step = made.get("kernels", 1) * made.get("kernel_us", 1) / 1000
        return Plan(kind(**made), causes, **plan)

    return make


train = partial(of, Training)
TWO = (1.0, 1.0)
NEXT = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
LOADING = {"idle_data_loading", "input"}
HOSTLY = {
    "idle_host_code",
    "idle_system",
}  # the second where the call of the system that blocks is recorded
LAUNCHING = {"launch_overhead", "idle_launch", "small_operators"}
WAITING = {"synchronisation", "idle_sync"}
COPYING = {"copies_serial", "exposed_copy"}
UNEVEN = {"ranks"}

LOADER = Cause("the loader starves the GPU", LOADING, {"loader_ms": 0.1})
UNNAMED = replace(LOADER, names=LOADING | HOSTLY | {"idle"})
PYTHON = Cause("Python between launches", HOSTLY, {"host_us": 2.0})
LOGGING = Cause("Python between steps", HOSTLY, {"between_ms": 0.1})
LAUNCHES = Cause("launches of small kernels", LAUNCHING, {"graph": True})
WAITS = Cause("waits for the GPU within the step", WAITING, {"syncs": 0})
STEP_WAIT = Cause("a wait after each step", WAITING, {"sync": ""})
RESIDUAL = Cause(
    "a wait in each iteration", WAITING | {"copies_synchronous"}, {"check_wait": False}
)
HOST_PART = Cause("the host's part of an iteration", HOSTLY, {"host_ms": 0.02})
TOKENS = Cause("Python before each request", HOSTLY, {"tokenise_ms": 0.02})
ALLOCATION = Cause(
    "cudaMalloc and cudaFree in the step", {"idle_memory", "allocator_off"}, {"allocs": 0}
)
PAGEABLE = Cause("pageable copies", {"copies_pageable"}, {"pinned": True})
SERIAL = Cause("copies on the stream of the kernels", COPYING, {"streams": 3})
BLOCKING = Cause(
    "copies that block", {"copies_synchronous"} | WAITING, {"streams": 3, "wait": False}
)
PIECES = Cause("many small copies", {"copies_small"}, {"pieces": 1})
REDUCE = Cause("all-reduces that nothing hides", {"exposed_communication"}, {"overlap": True})
SAVING = Cause("checkpoints in the loop", {"checkpointing"}, {"save_every": 0})
SAVING_UNNAMED = replace(SAVING, names={"checkpointing", "idle_host_code", "idle"})
LAZY = Cause("lazy loading at the first launches", {"warm_up"}, {"load_us": 0.0})
FIRST = Cause("the first step is slow", {"warm_up"}, {"first_ms": 0.0})
LOCK = Cause("a lock that another thread keeps", HOSTLY | {"idle"}, {"lock_ms": 0.01})
UPDATE = Cause("the optimizer runs on the host", HOSTLY, {"update_ms": 0.02})
SLOW = Cause("one GPU is slower than the others", {"slow_gpu"}, {"speeds": TWO * 2})
WORK = Cause(
    "a rank computes more than the other", UNEVEN, {"work": lambda p: (sum(p.work) / 2,) * 2}
)
LATE = Cause("a rank is late", HOSTLY | {"late_gpu"}, {"late_ms": (0.0, 0.0)})
THROTTLED = Cause("the clock falls", {"clock_lowered"}, {"clocks": ()})
FEW_BLOCKS = Cause("a kernel of few blocks dominates", {"few_blocks"}, {"dominant_blocks": 108})
SPARE = Cause("a second GPU does nothing", {"gpu_unused"}, {"work": (0.5, 0.5), "halo_mb": 0.2})
SPREAD = Cause("work is unevenly spread over two GPUs", UNEVEN, {"work": TWO})
HALO = Cause("copies between GPUs, beside no kernel", COPYING, {"halo_beside": True})

TINY = {"batch_mb": 0.2, "between_ms": 0.02, "loader_ms": 0.02}  # a step of small kernels
SMALL = {"kernel_us": U(2, 3.5), "kernels": 120, "steps": 7, "host_us": 0.4, "launch_us": U(6, 9)}
SLOW_HOST = {"kernel_us": 50, "steps": 8, "host_us": U(100, 200)}
INLINE = {"loader": "", "load_range": NEXT.replace("Multi", "Single")}
FOUR = {"speeds": lambda r, made: (1.0, 1.0, r.uniform(0.45, 0.65), 1.0), "reduce_ms": 0.5}
BLOCKED = {"speeds": TWO, "overlap": False, "torch": True}
RANKED = {"form": "ranks", "sync": "item"}
SHORT = {"kernel_us": U(25, 40), "kernels": 25, "steps": 14, "between_ms": 0.5}
SAVES = {"save_every": 2, "save_mb": 5}
UNPINNED = {"pinned": False, "prefetch": False, "sync": "item"}
UNEVENLY = {
    "speeds": TWO,
    "work": lambda r, made: (1.0, r.uniform(1.6, 2.4)),
    "reduce_ms": 0.4,
    "form": "ranks",
}
LATELY = {
    "speeds": TWO,
    "late_ms": lambda r, made: (0.0, r.uniform(1, 2) * made["kernel_us"] * 0.02),
}
SLEEPS = ["poll", "pthread_cond_timedwait", "sem_timedwait"]


def _halved(r: random.Random, made: dict) -> tuple:
    """A clock that falls after a quarter of the run."""
    return ((made["steps"] * made["kernels"] * made["kernel_us"] / 4000, r.uniform(0.45, 0.6)),)


SINGLE: dict[str, Make] = {
    "loader_thread": train(UNNAMED, loader_ms=steps(1.7, 4), loader=SLEEPS),
    "loader_named": train(LOADER, loader_ms=steps(1.7, 4), load_range=["dataloader", "load_batch"]),
    "loader_pytorch": train(LOADER, loader_ms=steps(1.7, 4), load_range=NEXT),
    "loader_inline": train(LOADER, loader_ms=steps(1.4, 2.4), **INLINE),
    "loader_mild": train(LOADER, loader_ms=steps(1.4, 1.5), load_range=NEXT),
    "loader_no_ranges": train(UNNAMED, loader_ms=steps(1.7, 4), without=("nvtx",)),
    "loader_no_os": train(LOADER, loader_ms=steps(1.7, 4), load_range=NEXT, without=("os",)),
    "loader_kineto": train(
        LOADER, loader_ms=steps(1.7, 4), load_range=NEXT, torch=True, form="kineto"
    ),
    "python_between_launches": train(PYTHON, also=LAUNCHING, **SLOW_HOST),
    "python_kineto": train(PYTHON, torch=True, form="kineto", **SLOW_HOST),
    "python_after_wait": train(
        LOGGING, replace(STEP_WAIT, even=True), sync="item", between_ms=steps(0.8, 2)
    ),
    "python_between_steps": train(LOGGING, between_ms=steps(1.8, 3)),
    "host_part_of_solver": of(
        Solver, HOST_PART, replace(RESIDUAL, even=True), steps=50, kernel_us=200, host_ms=U(0.9, 2)
    ),
    "tokenising_server": of(Server, TOKENS, every_ms=0.1, tokenise_ms=U(4, 8), also=LAUNCHING),
    "small_kernels": train(LAUNCHES, **SMALL, **TINY),
    "small_kernels_solver": of(
        Solver,
        LAUNCHES,
        steps=50,
        kernels=20,
        kernel_us=U(1.5, 2.5),
        check_every=0,
        host_us=0.3,
        launch_us=6.0,
    ),
    "small_kernels_kineto": train(
        LAUNCHES, also=HOSTLY, form="kineto", torch=True, **(SMALL | TINY | {"host_us": 4})
    ),
    "waits_in_step": train(
        WAITS, kernel_us=U(15, 25), kernels=60, steps=8, syncs=30, host_us=U(5, 9)
    ),
    "waits_each_iteration": of(Solver, RESIDUAL, kernels=2, kernel_us=U(8, 14), host_us=1.0),
    "wait_each_short_step": train(
        STEP_WAIT, replace(LOGGING, even=True), sync="cudaDeviceSynchronize", **SHORT
    ),
    "malloc_in_loop": train(
        ALLOCATION, kernel_us=U(60, 120), allocs=U(6, 10, whole=True), alloc_us=U(250, 600)
    ),
    "malloc_mild": train(
        ALLOCATION, kernel_us=U(150, 200), kernels=25, allocs=2, alloc_us=U(250, 400)
    ),
    "pageable_chunks": of(
        Chunks, PAGEABLE, streams=1, pinned=False, size_mb=U(6, 12), kernel_us=U(300, 600)
    ),
    "pageable_batches": train(PAGEABLE, batch_mb=U(30, 60), **UNPINNED),
    "pinned_serial": of(Chunks, SERIAL, streams=1, size_mb=U(20, 30), back_mb=20),
    "blocking_copies": of(
        Chunks, BLOCKING, streams=1, wait=True, size_mb=U(20, 30), kernel_us=U(250, 400)
    ),
    "small_pieces": of(
        Chunks,
        PIECES,
        chunks=12,
        streams=1,
        size_mb=1.5,
        back_mb=1.5,
        pieces=U(100, 200, whole=True),
        kernel_us=100,
    ),
    "halo_exposed": of(
        Solver, HALO, steps=40, gpus=2, work=TWO, kernel_us=U(80, 120), halo_mb=U(40, 60)
    ),
    "slow_gpu_one_file": train(SLOW, **FOUR),
    "slow_gpu_ranks": train(SLOW, form="ranks", **FOUR),
    "slow_gpu_kineto": train(SLOW, form="kineto", torch=True, **FOUR),
    "more_work_on_a_rank": train(WORK, **UNEVENLY),
    "late_rank": train(LATE, reduce_ms=0.4, sync="cudaStreamSynchronize", form="ranks", **LATELY),
    "exposed_reduce_one_file": train(REDUCE, reduce_ms=steps(0.5, 0.9), **BLOCKED),
    "exposed_reduce_ranks": train(REDUCE, reduce_ms=steps(0.5, 0.9), form="ranks", **BLOCKED),
    "exposed_reduce_kineto": train(REDUCE, reduce_ms=steps(0.5, 0.9), form="kineto", **BLOCKED),
    "checkpoints": train(SAVING, save_every=2, save_ms=steps(0.8, 1.6, 2)),
    "checkpoints_no_ranges": train(
        SAVING_UNNAMED, save_every=2, save_ms=steps(0.8, 1.6, 2), without=("nvtx",)
    ),
    "checkpoints_mild": train(SAVING, save_every=2, save_ms=steps(0.15, 0.25, 2), save_mb=5),
    "lazy_loading": train(LAZY, load_us=U(20_000, 50_000), also={"idle_launch"}),
    "throttled": train(THROTTLED, clocks=_halved, metrics=500_000),
    "lock_of_another_thread": train(LOCK, lock_ms=steps(1.5, 3)),
    "lock_without_os_calls": train(LOCK, lock_ms=steps(1.5, 3), without=("os", "nvtx")),
    "host_optimizer": train(UPDATE, update_ms=steps(0.8, 2)),
    "few_blocks": train(FEW_BLOCKS, dominant=U(0.7, 0.85), metrics=500_000),
    "idle_neighbour": of(Solver, SPARE, steps=60, kernel_us=U(200, 400), check_every=0, gpus=2),
    "uneven_gpus": of(
        Solver, SPREAD, steps=60, gpus=2, kernel_us=U(200, 300), work=(1.5, 0.5), halo_mb=0.5
    ),
}
MIXED: dict[str, Make] = {
    "loader_over_checkpoints": train(
        LOADER, SAVING, save_ms=steps(0.3, 0.5, 2), loader_ms=steps(1.5, 2), **SAVES, **INLINE
    ),
    "checkpoints_over_loader": train(
        SAVING, LOADER, save_ms=steps(1.8, 2.2, 2), loader_ms=steps(0.4, 0.6), **SAVES, **INLINE
    ),
    "loader_over_malloc": train(
        LOADER, ALLOCATION, loader_ms=steps(1.5, 2), allocs=2, alloc_us=250, **INLINE
    ),
    "malloc_over_loader": train(
        ALLOCATION, LOADER, loader_ms=steps(0.2, 0.3), allocs=10, alloc_us=500, **INLINE
    ),
    "optimizer_over_checkpoints": train(
        UPDATE, SAVING, save_ms=steps(0.2, 0.3, 2), update_ms=steps(1.5, 2), **SAVES
    ),
    "reduce_over_loader": train(
        REDUCE,
        LOADER,
        reduce_ms=steps(0.6, 0.9),
        loader_ms=steps(0.2, 0.3),
        **BLOCKED,
        **RANKED,
        **INLINE,
    ),
    "loader_over_reduce": train(
        LOADER,
        REDUCE,
        reduce_ms=steps(0.2, 0.3),
        loader_ms=steps(3, 4),
        load_range=NEXT,
        form="kineto",
        **BLOCKED,
    ),
    "lock_over_malloc": train(LOCK, ALLOCATION, lock_ms=steps(2, 3), allocs=1, alloc_us=150),
    "pageable_over_loader": train(
        PAGEABLE, LOADER, batch_mb=80, loader_ms=steps(0.3, 0.4), **UNPINNED, **INLINE
    ),
    "launches_over_loader": train(
        LAUNCHES, LOADER, sync="item", **(SMALL | TINY | INLINE | {"loader_ms": steps(0.3, 0.5)})
    ),
    "work_over_logging": train(WORK, LOGGING, between_ms=0.3, **UNEVENLY),
}
HEALTHY: dict[str, Make] = {
    "full_queue": train(
        quiet="launch calls wait: the queue is full", kernels=120, steps=14, kernel_us=70
    ),
    "busy": train(
        quiet="a busy GPU", kernel_us=U(200, 400), sync=["item", "cudaStreamSynchronize"]
    ),
    "busy_kineto": train(quiet="a busy GPU", torch=True, load_range=NEXT, form="kineto"),
    "overlapped_chunks": of(Chunks, quiet="copies run beside kernels", size_mb=U(4, 9)),
    "overlapped_reduce": train(quiet="hidden", speeds=TWO, reduce_ms=steps(0.3, 0.5), form="ranks"),
    "graph_steps": train(
        quiet="a graph a step", kernel_us=U(14, 18), kernels=150, graph=True, **TINY
    ),
    "solver_alone": of(Solver, quiet="a busy solver", steps=60, kernel_us=U(300, 500)),
    "even_gpus": of(
        Solver,
        quiet="evenly busy",
        steps=60,
        gpus=2,
        work=TWO,
        kernel_us=250,
        halo_mb=0.5,
        check_every=10,
    ),
}
TRAPS: dict[str, Make] = {
    "honest_wait": train(quiet="waits, for kernels", kernel_us=300, sync="cudaDeviceSynchronize"),
    "hidden_pageable": train(
        quiet="pageable copies that kernels hide", pinned=False, batch_mb=steps(1, 2)
    ),
    "hidden_loader": train(
        quiet="only the host waits", loader_ms=steps(0.85, 0.93), load_range=NEXT
    ),
    "hidden_writer": train(
        quiet="another thread writes",
        save_every=2,
        save_ms=steps(0.3, 0.45, 2),
        save_beside=True,
        save_mb=1,
    ),
    "little_loading": train(
        quiet="below 3 %", sync="item", between_ms=0.01, loader_ms=steps(0.01, 0.02), **INLINE
    ),
    "little_saving": train(
        quiet="below 3 %", save_every=2, save_ms=steps(0.005, 0.01, 2), save_mb=1
    ),
    "little_reduce": train(quiet="below 3 %", reduce_ms=steps(0.01, 0.02), form="ranks", **BLOCKED),
    "idle_helper": train(
        quiet="another thread sleeps", helper=["pthread_mutex_lock", "poll", "pthread_cond_wait"]
    ),
    "name_of_checkpointing": train(PYTHON, decoy="torch.utils.checkpoint", **SLOW_HOST),
    "name_of_loading": train(
        ALLOCATION, kernel_us=U(60, 120), allocs=8, alloc_us=400, decoy="DataParallel.forward"
    ),
    "slow_first_step": train(FIRST, first_ms=steps(4, 8), also={"idle_host_code"}),
    "rare_requests": of(Server, every_ms=U(10, 15), also=HOSTLY | {"idle"}),
    "few_large_waits": train(
        LOADER, loader_ms=steps(1.7, 3), load_range=NEXT, sync="cudaDeviceSynchronize"
    ),
}
CASES = SINGLE | MIXED | HEALTHY | TRAPS


def plan(name: str, seed: int) -> Plan:
    return CASES[name](random.Random(f"{name} {seed}"))

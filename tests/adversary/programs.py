"""Programs for the machine: a training loop, a pipeline of chunks, a solver, a server."""

import random
from contextlib import nullcontext
from dataclasses import dataclass

from adversary.machine import MS, US, Kernel, Machine, Meeting, Signal, Steps, Stream, Thread

NAMES = (
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int, Array<char*, 3>)",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(at::native::ReduceOp<float>)",
    "void cutlass::Kernel<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8>(Params)",
    "void softmax_warp_forward<float, float, float, 8, false, false>(float*, float const*, int)",
    "void at::native::vectorized_layer_norm_kernel<float, float>(int, float, float const*, float*)",
)
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ADAM = "void at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata<4>, AdamFunctor>(AdamFunctor)"


@dataclass(frozen=True)
class Training:
    """A training loop: load, copy, compute, reduce, update, on each rank."""

    seed: int
    steps: int = 12
    kernels: int = 40
    kernel_us: float = 150.0
    launch_us: float = 5.0
    host_us: float = 2.0  # Python between two launches
    between_ms: float = 0.2  # Python between two steps
    loader_ms: float = 0.1  # to make a batch
    loader: str = "poll"  # the call in which the loop waits for the loader's thread; "" loads in the loop itself
    load_range: str = "next(batch)"
    batch_mb: float = 2.0
    pinned: bool = True
    prefetch: bool = True  # copy the next batch while this one is computed
    sync: str = ""  # a call after each step; "item" copies the loss
    syncs: int = 0  # waits for the GPU within a step
    allocs: int = 0
    alloc_us: float = 300.0
    save_every: int = 0
    save_ms: float = 0.0
    save_mb: float = 100.0
    save_beside: bool = False  # another thread writes
    load_us: float = 0.0  # to load the module of a kernel when first launched
    lock_ms: float = 0.0  # how long another thread keeps a lock that each step needs
    update_ms: float = 0.0  # an optimizer on the host
    graph: bool = False
    reduce_ms: float = 0.0
    overlap: bool = True
    speeds: tuple[float, ...] = (1.0,)  # one rank each
    work: tuple[float, ...] = ()  # how much more each rank computes
    late_ms: tuple[float, ...] = ()  # time that a rank spends in Python each step
    clocks: tuple[tuple[float, float], ...] = ()
    torch: bool = False  # steps are named as PyTorch's profiler does
    dominant: float = 0.0  # share of one kernel of few blocks
    dominant_blocks: int = 8
    first_ms: float = 0.0  # what the first step takes longer, in Python
    decoy: str = ""  # a range around the launches of a step
    helper: str = "sem_timedwait"  # where another thread waits

    def run(self) -> Machine:
        machine = Machine(f"training {self.seed}", gpus=len(self.speeds), launch_us=self.launch_us)
        for rank, speed in enumerate(self.speeds):
            machine.gpus[rank].speed = speed
            machine.gpus[rank].clocks = [(round(at * MS), share) for at, share in self.clocks]
            thread = Thread(machine, 4000 + rank, 4000 + rank, "python3")
            machine.spawn(self._loop(machine, thread, rank), at=rank * 40 * US)
        helper = Thread(machine, 4000, 4900, "CUPTI worker thread")
        machine.spawn(helper.spend(60 * MS, self.helper, "os"))
        return machine.run()

    def _work(self, rank: int) -> list[Kernel]:
        draw = random.Random(self.seed)
        factor = self.work[rank] if self.work else 1.0
        all_us = self.kernel_us * self.kernels
        kernels = []
        for number in range(self.kernels):
            ns = self.kernel_us * draw.uniform(0.4, 1.6) * factor * (1 - self.dominant) * US
            plain = {
                "grid": round(1024 * factor),
                "load_ns": self.load_us * US,
            }  # more work, more blocks
            kernels.append(
                Kernel(NAMES[number % len(NAMES)], ns, registers=32 + 8 * (number % 9), **plain)
            )
        if self.dominant:
            ns = (
                self.dominant * all_us * US * 8 / self.dominant_blocks
            )  # the same work over more SMs
            scan = Kernel(
                "void lstm_scan_kernel<float>(float*, int)", ns, grid=self.dominant_blocks, block=64
            )
            kernels.insert(len(kernels) // 2, scan)
        return kernels

    def _produce(
        self, machine: Machine, thread: Thread, made: list[Signal], taken: list[Signal]
    ) -> Steps:
        """The loader's thread: two batches ahead."""
        for number in range(self.steps):
            if number >= 2:
                yield from thread.os_wait("pthread_cond_wait", taken[number - 2])
            yield from thread.spend(self.loader_ms * MS * 0.2, "read", "os")
            yield from thread.spend(self.loader_ms * MS * 0.8)
            made[number].fire()

    def _hold(
        self, machine: Machine, thread: Thread, asked: list[Signal], given: list[Signal]
    ) -> Steps:
        """A thread that keeps a lock for a while whenever the loop asks for it."""
        for ask, give in zip(asked, given, strict=True):
            yield from thread.os_wait("pthread_cond_wait", ask)
            yield from thread.spend(self.lock_ms * MS)
            give.fire()

    def _loop(self, machine: Machine, thread: Thread, rank: int) -> Steps:
        gpu = machine.gpus[rank]
        main, side, link = Stream(gpu, 7), Stream(gpu, 14), Stream(gpu, 20)
        made, taken, asked, given = ([Signal(machine) for _ in range(self.steps)] for _ in range(4))
        work = self._work(rank)
        if self.loader:
            worker = Thread(machine, thread.pid, thread.tid + 100, "pt_data_worker")
            machine.spawn(self._produce(machine, worker, made, taken))
        if self.lock_ms:
            holder = Thread(machine, thread.pid, thread.tid + 200, "metrics")
            machine.spawn(self._hold(machine, holder, asked, given))
        for step in range(self.steps):
            start = machine.now
            with thread.range(self.load_range):
                if self.loader:
                    yield from thread.os_wait(self.loader, made[step])
                    yield 20 * US
                    taken[step].fire()
                else:
                    yield from thread.spend(self.loader_ms * MS * 0.3, "read", "os")
                    yield from thread.spend(self.loader_ms * MS * 0.7)
            onto = side if self.prefetch else main
            yield from thread.copy(onto, "h2d", round(self.batch_mb * 1e6), pinned=self.pinned)
            copied = (onto.last,) if self.prefetch else ()
            if self.late_ms:
                yield from thread.spend(self.late_ms[rank] * MS)
            if self.lock_ms:
                asked[step].fire()
                yield from thread.os_wait("pthread_mutex_lock", given[step])
            if step == 0 and self.first_ms:
                yield from thread.spend(self.first_ms * MS)
            with thread.range(self.decoy) if self.decoy else nullcontext():
                yield from self._compute(machine, thread, rank, step, work, (main, link), copied)
            if self.update_ms:
                yield from thread.copy(main, "d2h", 20_000_000, wait=True)
                yield from thread.spend(self.update_ms * MS, "optimizer.step")
                yield from thread.copy(main, "h2d", 20_000_000)
            yield from self._end(thread, main, link, step)
            thread.record("nvtx", f"ProfilerStep#{step}" if self.torch else "step", start)
        yield from thread.synchronise(main, side, link, name="cudaDeviceSynchronize")

    def _compute(
        self,
        machine: Machine,
        thread: Thread,
        rank: int,
        step: int,
        work: list[Kernel],
        streams: tuple,
        after: tuple,
    ) -> Steps:
        """The kernels of a step, its collectives and its update."""
        main, link = streams
        reduced = []
        if self.graph:
            yield from thread.graph(main, work)
        for number, kernel in enumerate(() if self.graph else work):
            yield from thread.spend(self.host_us * US)
            yield from thread.launch(main, kernel, after=after if number == 0 else ())
            if self.syncs and (number + 1) % max(len(work) // self.syncs, 1) == 0:
                yield from thread.synchronise(main)
            if self.allocs and (number + 1) % max(len(work) // self.allocs, 1) == 0:
                yield from thread.call("cudaMalloc", self.alloc_us)
                yield from thread.synchronise(main, name="cudaFree", drag=self.alloc_us * US)
            if self.reduce_ms and (number + 1) % (len(work) // 4) == 0 and len(reduced) < 4:
                meet = machine.meetings.setdefault(
                    (step, number), Meeting(machine, len(self.speeds))
                )
                nccl = Kernel(NCCL, self.reduce_ms * MS / 4, 0.0, grid=24, block=544)
                onto = link if self.overlap else main
                yield from thread.launch(
                    onto, nccl, meet=meet, after=(main.last,) if self.overlap else ()
                )
                reduced.append(onto.last)
        after = tuple(reduced) if self.overlap else ()
        if not self.graph:
            for _ in range(2):
                yield from thread.launch(
                    main, Kernel(ADAM, self.kernel_us * US, grid=2048, block=512), after=after
                )

    def _write(self, thread: Thread) -> Steps:
        for _ in range(4):
            yield from thread.spend(self.save_ms * MS / 4, "write", "os")

    def _end(self, thread: Thread, main: Stream, link: Stream, step: int) -> Steps:
        """What comes after the kernels of a step."""
        if self.sync == "item":
            yield from thread.copy(main, "d2h", 4, pinned=False)
        elif self.sync:
            yield from thread.synchronise(main, link, name=self.sync)
        if self.save_every and (step + 1) % self.save_every == 0:
            with thread.range("save_checkpoint"):
                yield from thread.copy(main, "d2h", round(self.save_mb * 1e6), pinned=False)
                if not self.save_beside:
                    yield from self._write(thread)
            if self.save_beside:
                writer = Thread(thread.machine, thread.pid, thread.tid + 300 + step, "writer")
                thread.machine.spawn(self._write(writer))
        yield from thread.spend(self.between_ms * MS)


class _Alone:
    """A program of one thread and one process."""

    def run(self) -> Machine:
        machine = Machine(
            f"{type(self).__name__} {self.seed}", getattr(self, "gpus", 1), self.launch_us
        )
        machine.spawn(self._loop(machine, Thread(machine, 7000, 7000, "main")))
        return machine.run()


@dataclass(frozen=True)
class Chunks(_Alone):
    """A stream of data in chunks: to the GPU, a kernel or some, and back."""

    seed: int
    chunks: int = 40
    size_mb: float = 8.0
    back_mb: float = 8.0
    kernel_us: float = 400.0
    kernels: int = 3
    pinned: bool = True
    streams: int = 3
    wait: bool = False  # cudaMemcpy instead of cudaMemcpyAsync
    pieces: int = 1  # in how many copies a chunk is sent
    host_us: float = 3.0
    launch_us: float = 5.0

    def _loop(self, machine: Machine, thread: Thread) -> Steps:
        streams = [Stream(machine.gpus[0], 13 + number) for number in range(self.streams)]
        ends: list = []
        for chunk in range(self.chunks):
            stream = streams[chunk % self.streams]
            if chunk >= 2 * self.streams:
                yield from thread.synchronise(
                    stream, name="cudaEventSynchronize", until=ends[chunk - 2 * self.streams]
                )
            yield from thread.spend(self.host_us * US)
            for _ in range(self.pieces):
                size = round(self.size_mb * 1e6 / self.pieces)
                yield from thread.copy(stream, "h2d", size, pinned=self.pinned, wait=self.wait)
            for number in range(self.kernels):
                kernel = Kernel(f"filter_{number}(float const*, float*, int)", self.kernel_us * US)
                yield from thread.launch(stream, kernel)
            yield from thread.copy(
                stream, "d2h", round(self.back_mb * 1e6), pinned=self.pinned, wait=self.wait
            )
            ends.append(stream.last)
        yield from thread.synchronise(*streams, name="cudaDeviceSynchronize")


@dataclass(frozen=True)
class Solver(_Alone):
    """An iterative solver on one or more GPUs of one process: sweeps, a halo, a residual."""

    seed: int
    steps: int = 150
    kernels: int = 4
    kernel_us: float = 120.0
    check_every: int = 1  # iterations between two reads of the residual; 0: never
    check_wait: bool = True
    gpus: int = 1
    work: tuple[float, ...] = (1.0,)  # a share for each GPU that does some
    halo_mb: float = 0.0
    halo_beside: bool = False  # the halo travels on streams of its own, beside the kernels
    host_us: float = 2.0
    host_ms: float = 0.0  # the host's own part of an iteration
    launch_us: float = 4.0
    graph: bool = False

    def _loop(self, machine: Machine, thread: Thread) -> Steps:
        every = [Stream(gpu, 7) for gpu in machine.gpus]
        for stream in every if self.gpus > 1 else ():
            yield from thread.launch(stream, Kernel("fill(float*, float, int)", 30 * US))
        streams = every[: len(self.work)]
        links = [Stream(stream.gpu, 14) for stream in streams] if self.halo_beside else streams
        sweeps = [
            Kernel(f"sweep_{number}(double*, int)", self.kernel_us * US)
            for number in range(self.kernels)
        ]
        for step in range(self.steps):
            halos: list = []
            for stream, share in zip(streams, self.work, strict=True):
                mine = [
                    Kernel(kernel.name, kernel.ns * share, grid=round(1024 * share))
                    for kernel in sweeps
                ]
                if self.graph:
                    yield from thread.graph(stream, mine)
                for kernel in () if self.graph else mine:
                    yield from thread.spend(self.host_us * US)
                    yield from thread.launch(stream, kernel)
            after = () if self.halo_beside else tuple(other.last for other in streams)
            for number, stream in enumerate(links if self.halo_mb else ()):
                size, peer = round(self.halo_mb * 1e6), (number + 1) % len(streams)
                yield from thread.copy(stream, "p2p", size, after=after, peer=peer)
                halos.append(stream.last)
            for stream in streams if halos else ():
                yield from thread.launch(
                    stream, Kernel("boundary(double*, int)", 8 * US, grid=16), after=tuple(halos)
                )
            if self.check_every and (step + 1) % self.check_every == 0:
                yield from thread.copy(streams[0], "d2h", 8, wait=self.check_wait)
                for stream in streams[1:]:
                    yield from thread.synchronise(stream)
            if self.host_ms:
                yield from thread.spend(self.host_ms * MS)
        yield from thread.synchronise(*streams, name="cudaDeviceSynchronize")


@dataclass(frozen=True)
class Server(_Alone):
    """A server of a model: requests come, each is a few kernels, the answer goes back."""

    seed: int
    requests: int = 30
    every_ms: float = 5.0
    kernels: int = 30
    kernel_us: float = 60.0
    tokenise_ms: float = 0.0
    launch_us: float = 5.0

    def _loop(self, machine: Machine, thread: Thread) -> Steps:
        stream = Stream(machine.gpus[0], 7)
        coming = random.Random(self.seed)
        due = 0.0
        for _ in range(self.requests):
            due += coming.uniform(0.6, 1.4) * self.every_ms * MS
            if machine.now < due:
                yield from thread.spend(due - machine.now, "epoll_wait", "os")
            with thread.range("request"):
                if self.tokenise_ms:
                    yield from thread.spend(self.tokenise_ms * MS, "tokenise")
                yield from thread.copy(stream, "h2d", 16_384, pinned=False)
                for number in range(self.kernels):
                    yield from thread.spend(2 * US)
                    yield from thread.launch(stream, Kernel(NAMES[number % 6], self.kernel_us * US))
                yield from thread.copy(stream, "d2h", 200_000, pinned=True)
                yield from thread.synchronise(stream)

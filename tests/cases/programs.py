"""Programs with one cause of lost time each, or without it, for the machine of `adversary.machine`.

Each function takes whether the program has its cause, and returns the machine after the run.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

from adversary.machine import MS, US, Kernel, Machine, Meeting, Op, Steps, Stream, Thread
from adversary.programs import ADAM, NAMES, NCCL, Server, Training

GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
GEMM = NAMES[0]
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
Loop = Callable[[Machine, Thread, int], Steps]


def alone(
    loop: Callable[[Machine, Thread], Steps], *, gpus: int = 1, launch_us: float = 5.0
) -> Machine:
    """Run a program of one thread."""
    machine = Machine("cases", gpus, launch_us)
    machine.spawn(loop(machine, Thread(machine, 7000, 7000, "main")))
    return machine.run()


def stepping(count: int, step: Callable[[Thread, Stream, int], Steps], **more: Any) -> Machine:
    """Run a program of one thread and one stream, with a range around each of so many steps."""
    return alone(_loop(count, step), **more)


def stepping_ranks(
    count: int, number: int, step: Callable[[Thread, Stream, int, int], Steps]
) -> Machine:
    """Run the same on so many ranks: a step is told its number and its rank."""
    return ranks(_loop(count, step), number)


def _loop(count: int, step: Callable[..., Steps]) -> Callable[..., Steps]:
    def loop(machine: Machine, thread: Thread, *rank: int) -> Steps:
        stream = Stream(machine.gpus[sum(rank)], 7)
        for number in range(count):
            with thread.range("step"):
                yield from step(thread, stream, number, *rank)

    return loop


def ranks(loop: Loop, count: int) -> Machine:
    """Run a program of one process for each GPU."""
    machine = Machine("cases", count)
    for rank in range(count):
        thread = Thread(machine, 4000 + rank, 4000 + rank, "python3")
        machine.spawn(loop(machine, thread, rank), at=rank * 40 * US)
    return machine.run()


def computing(
    thread: Thread,
    stream: Stream,
    kernels: int,
    kernel_us: float,
    names: Sequence[str] = NAMES,
    after: tuple[Op, ...] = (),
) -> Steps:
    """Launch kernels one after another, with a little Python between them; the first waits for other streams."""
    for number in range(kernels):
        yield from thread.spend(2 * US)
        kernel = Kernel(names[number % len(names)], kernel_us * US)
        yield from thread.launch(stream, kernel, after=() if number else after)


def collective(
    thread: Thread,
    stream: Stream,
    name: str,
    ms: float,
    key: object,
    count: int,
    after: tuple[Op, ...] = (),
) -> Steps:
    """Launch a kernel that ends on all ranks `ms` after the last of them has reached it."""
    machine = thread.machine
    meeting = machine.meetings.setdefault(key, Meeting(machine, count))
    kernel = Kernel(name, ms * MS, 0.0, grid=24, block=544)
    yield from thread.launch(stream, kernel, meet=meeting, after=after)


def allocating_at_first(has_cause: bool) -> Machine:
    """70 steps of 2 ms, of which the first 10 allocate memory for 3.6 ms each (a10)."""

    def step(thread: Thread, stream: Stream, number: int) -> Steps:
        for _ in range(6 if has_cause and number < 10 else 0):
            yield from thread.call("cudaMalloc", 600)
        yield from computing(thread, stream, 20, 100)
        yield from thread.copy(stream, "d2h", 4, pinned=False)

    return stepping(70, step)


def uploading_weights(has_cause: bool) -> Machine:
    """300 pageable copies of 4 MB before the first of 30 steps of 6 ms, in which nothing is copied (a11)."""

    def loop(machine: Machine, thread: Thread) -> Steps:
        stream = Stream(machine.gpus[0], 7)
        for _ in range(300 if has_cause else 0):
            yield from thread.spend(0.4 * MS)
            yield from thread.copy(stream, "h2d", 4_000_000, pinned=False)
        for _ in range(30):
            with thread.range("step"):
                yield from computing(thread, stream, 20, 300)
                yield from thread.synchronise(stream)

    return alone(loop)


def prefilling(has_cause: bool) -> Machine:
    """A prefill of 90 ms by large kernels, then 40 equal decode steps of 3 ms by other kernels (a12)."""
    large = ("void flash_fwd_kernel<Kernel_traits<128, 128>>(Params)", GEMM)
    small = (
        "void flash_fwd_splitkv_kernel<Kernel_traits<64>>(Params)",
        "void gemvx::kernel<float, 64>(Params)",
    )

    def loop(machine: Machine, thread: Thread) -> Steps:
        stream = Stream(machine.gpus[0], 7)
        if has_cause:
            with thread.range("execute_model"):
                yield from computing(thread, stream, 60, 1500, large)
                yield from thread.synchronise(stream)
        for _ in range(40):
            with thread.range("execute_model"):
                yield from computing(thread, stream, 30, 100, small)
                yield from thread.synchronise(stream)

    return alone(loop)


def saving_at_the_end(has_cause: bool) -> Machine:
    """9 steps of 4.5 ms; after each third, the last one too, 60 MB are copied to the host and written (a13)."""
    saving = {"save_every": 3, "save_ms": 12.0, "save_mb": 120.0} if has_cause else {}
    return Training(3, steps=9, kernels=30, kernel_us=150, **saving).run()


def busy_for_seconds(has_cause: bool) -> Machine:
    """2.4 s of kernels one after another; whatever the log beside it says (a14)."""

    def step(thread: Thread, stream: Stream, _: int) -> Steps:
        yield from computing(thread, stream, 20, 2000)
        yield from thread.synchronise(stream)

    return stepping(60, step)


def freeing_in_some_steps(has_cause: bool) -> Machine:
    """6 steps of 12 ms and 9 of 105 ms with the same kernels; the long ones free memory 90 times (a15)."""

    def step(thread: Thread, stream: Stream, number: int) -> Steps:
        yield from computing(thread, stream, 40, 280)
        for _ in range(90 if has_cause and number % 5 > 1 else 0):
            yield from thread.synchronise(stream, name="cudaFree", drag=1 * MS)
        yield from thread.synchronise(stream, name="cudaDeviceSynchronize")

    return stepping(15, step)


def reducing_each_micro_batch(has_cause: bool) -> Machine:
    """Steps of 4 micro-batches of 1.5 ms; gradients are reduced for 5 ms after each, or after the last only (c12)."""

    def step(thread: Thread, stream: Stream, number: int, rank: int) -> Steps:
        for part in range(4):
            yield from computing(thread, stream, 10, 150)
            if has_cause or part == 3:
                yield from collective(thread, stream, NCCL, 5, (number, part), 2)
        yield from thread.launch(stream, Kernel(ADAM, 150 * US))
        yield from thread.synchronise(stream)

    return stepping_ranks(12, 2, step)


def pipelining(has_cause: bool) -> Machine:
    """Two stages of 8 ms forward and 8 ms back; one micro-batch at a time, or eight small ones (c12, e14)."""
    parts = 1 if has_cause else 8
    kernel_us = 800 / parts

    def first(thread: Thread, step: int, streams: tuple[Stream, Stream, Stream]) -> Steps:
        stream, forward, backward = streams
        for part in range(parts):
            yield from computing(thread, stream, 10, kernel_us)
            yield from collective(thread, forward, SEND, 0.1, (step, part, "to"), 2, (stream.last,))
        for part in range(parts):
            yield from collective(thread, backward, SEND, 0.1, (step, part, "back"), 2)
            yield from computing(thread, stream, 10, kernel_us, after=(backward.last,))

    def last(thread: Thread, step: int, streams: tuple[Stream, Stream, Stream]) -> Steps:
        stream, forward, backward = streams
        for part in range(parts):
            yield from collective(thread, forward, SEND, 0.1, (step, part, "to"), 2)
            yield from computing(thread, stream, 20, kernel_us, after=(forward.last,))
            yield from collective(
                thread, backward, SEND, 0.1, (step, part, "back"), 2, (stream.last,)
            )

    def loop(machine: Machine, thread: Thread, rank: int) -> Steps:
        gpu = machine.gpus[rank]
        streams = (Stream(gpu, 7), Stream(gpu, 20), Stream(gpu, 21))
        stage = last if rank else first
        for step in range(10):
            with thread.range("step"):
                yield from stage(thread, step, streams)
                yield from thread.synchronise(*streams)

    return ranks(loop, 2)


def optimizing_by_many_kernels(has_cause: bool) -> Machine:
    """Steps of 2 ms, then an update by 400 kernels of 3 µs, or by 10 of 30 µs (c12)."""
    update = (400, 3.0) if has_cause else (10, 30.0)

    def step(thread: Thread, stream: Stream, _: int) -> Steps:
        yield from computing(thread, stream, 10, 200)
        yield from computing(thread, stream, *update, [ADAM])
        yield from thread.synchronise(stream)

    return stepping(15, step, launch_us=9.0)


def many_small_causes(has_cause: bool) -> Machine:
    """Steps of 6 ms of kernels, and 0.9 ms each of allocating, a copy, Python and reading of a batch (c13)."""

    def step(thread: Thread, stream: Stream, _: int) -> Steps:
        if has_cause:
            yield from thread.call("cudaMalloc", 900)
            yield from thread.spend(0.9 * MS, LOADER)
            yield from thread.spend(0.9 * MS)
            yield from thread.copy(stream, "h2d", 21_000_000, wait=True)
        yield from computing(thread, stream, 20, 300)
        yield from thread.synchronise(stream)

    return stepping(20, step)


def loading_on_one_rank(has_cause: bool) -> Machine:
    """Two ranks compute for 5 ms a step and reduce for 1 ms; rank 1 first loads its batch for 5 ms (c14)."""

    def step(thread: Thread, stream: Stream, number: int, rank: int) -> Steps:
        with thread.range(LOADER):
            yield from thread.spend((5 if has_cause and rank == 1 else 0.05) * MS, "read", "os")
        yield from computing(thread, stream, 25, 200)
        yield from collective(thread, stream, NCCL, 1, number, 2)
        yield from thread.synchronise(stream)

    return stepping_ranks(15, 2, step)


def waiting_for_short_kernels(has_cause: bool) -> Machine:
    """Steps of 200 kernels of 6 µs, with a wait of the CPU after each of them (c15)."""

    def step(thread: Thread, stream: Stream, _: int) -> Steps:
        for number in range(200):
            yield from thread.launch(stream, Kernel(NAMES[number % 6], 6 * US))
            if has_cause:
                yield from thread.synchronise(stream)
        yield from thread.synchronise(stream)

    return stepping(12, step, launch_us=3.0)


def slowed_by_communication(has_cause: bool) -> Machine:
    """Two ranks: 30 GEMMs of 200 µs, then 12 beside an all-reduce, which take 270 µs or 200 µs (d15)."""
    beside_us = 270 if has_cause else 200

    def loop(machine: Machine, thread: Thread, rank: int) -> Steps:
        stream, link = Stream(machine.gpus[rank], 7), Stream(machine.gpus[rank], 20)
        for step in range(12):
            with thread.range("step"):
                yield from computing(thread, stream, 30, 200, [GEMM])
                meeting = machine.meetings.setdefault(step, Meeting(machine, 2))
                reduce = Kernel(NCCL, 12 * beside_us * US, 0.0, grid=24, block=544)
                yield from thread.launch(link, reduce, meet=meeting, after=(stream.last,))
                yield from computing(thread, stream, 12, beside_us, [GEMM])
                yield from thread.synchronise(stream, link)

    return ranks(loop, 2)


def allocating_each_tensor(has_cause: bool) -> Machine:
    """Steps of 30 kernels of PyTorch; 18 of them allocate their output, and 17 free it (e4)."""

    def step(thread: Thread, stream: Stream, _: int) -> Steps:
        for number in range(30):
            if has_cause and number < 18:
                yield from thread.call("cudaMalloc", 90)
            yield from computing(thread, stream, 1, 120, [NAMES[number % 6]])
            if has_cause and number < 17:
                yield from thread.synchronise(stream, name="cudaFree", drag=120 * US)
        yield from thread.synchronise(stream)

    return stepping(14, step)


def gathering(
    name: str, per_layer_ms: float, layer_us: float, *, backward: bool = False
) -> Callable[[bool], Machine]:
    """A program of 12 layers that each begin with a collective that nothing hides, or with none (e14)."""
    layer = (
        (GEMM, "void layer_norm_backward_kernel<float>(Params)") if backward else (GEMM, NAMES[4])
    )

    def program(has_cause: bool) -> Machine:
        def step(thread: Thread, stream: Stream, number: int, rank: int) -> Steps:
            for layer_number in range(12):
                if has_cause:
                    key = (number, layer_number)
                    yield from collective(thread, stream, name, per_layer_ms, key, 2)
                yield from computing(thread, stream, 4, layer_us, layer)
            yield from thread.synchronise(stream)

        return stepping_ranks(10, 2, step)

    return program


def losing_its_core(has_cause: bool) -> Machine:
    """Before each fifth launch the thread does nothing for 2 ms: it has lost its core, or it computes (e15).

    Where it has lost its core, six other threads of the process have the two that there are.
    """

    def step(thread: Thread, stream: Stream, _: int) -> Steps:
        for number in range(20):
            if number % 5 == 0:
                yield from thread.spend(
                    2 * MS, "off its core" if has_cause else "computing", "scheduled"
                )
            yield from computing(thread, stream, 1, 200, [NAMES[number % 6]])
        yield from thread.copy(stream, "d2h", 4, pinned=False)

    return stepping(12, step)


def sharing_a_gpu(has_cause: bool) -> Machine:
    """Two processes use one GPU at the same time, or one process alone (f7)."""

    def loop(machine: Machine, thread: Thread, number: int) -> Steps:
        stream = Stream(machine.gpus[0], 7 + number)
        for _ in range(15):
            with thread.range("step"):
                yield from computing(thread, stream, 30, 200)
                yield from thread.synchronise(stream)

    machine = Machine("cases")
    for number in range(2 if has_cause else 1):
        thread = Thread(machine, 5000 + number, 5000 + number, "python3")
        machine.spawn(loop(machine, thread, number), at=number * 35 * US)
    return machine.run()


def routing_to_one_expert(has_cause: bool) -> Machine:
    """4 ranks exchange tokens by all-to-all; in each step another rank has three times the work (f8)."""
    draw = (2, 0, 3, 1, 1, 3, 0, 2, 3, 1, 2, 0)

    def loop(machine: Machine, thread: Thread, rank: int) -> Steps:
        stream = Stream(machine.gpus[rank], 7)
        for step, busiest in enumerate(draw):
            with thread.range("step"):
                yield from computing(thread, stream, 10, 200)
                yield from collective(thread, stream, SEND, 0.4, (step, "to"), 4)
                share = (2.0 if rank == busiest else 2 / 3) if has_cause else 1.0
                yield from computing(thread, stream, 12, 250 * share)
                yield from collective(thread, stream, SEND, 0.4, (step, "back"), 4)
                yield from thread.synchronise(stream)

    return ranks(loop, 4)


def throttled(has_cause: bool) -> Machine:
    """3 s of kernels, each 1.24 times as long once the clock has fallen, after a tenth of the time (f9)."""
    clocks = ((240.0, 1 / 1.24),) if has_cause else ()
    return Training(5, steps=60, kernels=20, kernel_us=2000, clocks=clocks, sync="item").run()


def copying_pieces(has_cause: bool) -> Machine:
    """30 steps of 4 ms, before each 400 copies of 4 KB, or a single one of 1.6 MB (f10)."""
    pieces = 400 if has_cause else 1

    def step(thread: Thread, stream: Stream, _: int) -> Steps:
        for _ in range(pieces):
            yield from thread.copy(stream, "h2d", 1_638_400 // pieces)
        yield from computing(thread, stream, 20, 200)
        yield from thread.synchronise(stream)

    return stepping(30, step)


def waiting_for_requests(has_cause: bool) -> Machine:
    """A server that has a request each 12 ms, or always one; each takes 2 ms of kernels (f11)."""
    return Server(4, every_ms=12.0 if has_cause else 0.1).run()


def using_one_of_two_gpus(has_cause: bool) -> Machine:
    """A machine with two GPUs, or with one; the program uses one, and Python takes half of the time (f12)."""

    def step(thread: Thread, stream: Stream, _: int) -> Steps:
        yield from computing(thread, stream, 20, 200)
        yield from thread.copy(stream, "d2h", 4, pinned=False)
        yield from thread.spend(4 * MS)

    return stepping(20, step, gpus=2 if has_cause else 1)


def pausing_after_a_wait(has_cause: bool) -> Machine:
    """120 steps of 4 ms that each wait for their loss; after each fortieth the CPU pauses for 160 ms (h1).

    A queue takes 1,022 launches, 66 ms of kernels: without the waits most of a pause would keep the GPU idle too.
    """
    return _pausing(has_cause, is_pinned=True)


def pausing_after_a_copy(has_cause: bool) -> Machine:
    """The same, but the loss is copied to pageable memory, so that the copy waits (h1)."""
    return _pausing(has_cause, is_pinned=False)


def _pausing(has_cause: bool, *, is_pinned: bool) -> Machine:
    def step(thread: Thread, stream: Stream, number: int) -> Steps:
        yield from computing(thread, stream, 60, 65)
        yield from thread.copy(stream, "d2h", 4, pinned=is_pinned)
        yield from thread.synchronise(stream)
        if has_cause and number % 40 == 39:
            yield from thread.spend(160 * MS)

    return stepping(121, step)


def loading_behind_the_gpu(has_cause: bool) -> Machine:
    """Steps of 6 ms that queue their kernels and then load for 3 ms: the GPU never waits; or load for 12 ms (h2)."""
    loading_ms = 3.0 if has_cause else 12.0

    def loop(machine: Machine, thread: Thread) -> Steps:
        stream = Stream(machine.gpus[0], 7)
        for step in range(15):
            with thread.range(f"ProfilerStep#{step}"):
                yield from thread.spend(loading_ms * MS, LOADER)
                yield from computing(thread, stream, 30, 200)

        yield from thread.synchronise(stream, name="cudaDeviceSynchronize")

    return alone(loop)


def optimizing_on_the_cpu(has_cause: bool) -> Machine:
    """Steps of 4 ms; gradients of 40 MB go to the CPU, whose optimizer takes 5 ms, and weights come back (h3)."""

    def loop(machine: Machine, thread: Thread) -> Steps:
        stream = Stream(machine.gpus[0], 7)
        for step in range(15):
            with thread.range(f"ProfilerStep#{step}"):
                yield from computing(thread, stream, 20, 200)
                if has_cause:
                    yield from thread.copy(stream, "d2h", 40_000_000, wait=True)
                    yield from thread.spend(5 * MS, "Optimizer.step#AdamW.step")
                    yield from thread.copy(stream, "h2d", 40_000_000, wait=True)
                else:
                    yield from thread.launch(stream, Kernel(ADAM, 200 * US))

    return alone(loop)


def launching_without_a_pattern(pauses: bool, first_us: float = 150) -> Machine:
    """400 kernels in no order that repeats; after each tenth the CPU may pause for 3 ms (c16).

    The first 60 kernels take `first_us`, the others 150 µs.
    """
    draw = random.Random(16)
    names = [draw.choice(NAMES) for _ in range(400)]

    def loop(machine: Machine, thread: Thread) -> Steps:
        stream = Stream(machine.gpus[0], 7)
        for number, name in enumerate(names):
            kernel_us = first_us if number < 60 else 150
            yield from computing(thread, stream, 1, kernel_us, [name])
            if number % 10 == 9:
                yield from thread.copy(stream, "d2h", 4, pinned=False)
                yield from thread.spend((3 if pauses else 0.02) * MS)

    return alone(loop)

"""A small discrete-event machine: threads that call CUDA, queues, streams, GPUs, copy engines, links between ranks.

Host threads are generators: they yield a time to spend or a `Signal` to wait for. Costs are those of real captures
(cloverleaf, mfu_2gpu, AI-Profiler): a launch call of 3 to 9 us, 1 to 3 us from its end to the kernel, 1 us between
queued kernels, 2 us from the last kernel to the return of a call that waits for it.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Steps = Generator["int | float | Signal", None, None]
US, MS = 1_000, 1_000_000
DEPTH = 1022  # operations that a stream takes before a launch call has to wait


class Signal:
    """Something that happens once."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.fired, self.waiting = machine, False, []

    def fire(self) -> None:
        self.fired, waiting, self.waiting = True, self.waiting, []
        for resume in waiting:
            self.machine.at(self.machine.now, resume)


@dataclass(frozen=True)
class Kernel:
    """What a kernel is: `demand` is the share of the SMs it fills, `load_ns` what loading its module costs once."""

    name: str
    ns: float
    demand: float = 1.0
    grid: int = 1024
    block: int = 256
    registers: int = 40
    load_ns: float = 0.0


@dataclass
class Op:
    """A kernel or a copy on its way through a stream."""

    kind: str  # kernel, h2d, d2h, p2p
    name: str
    ns: float
    corr: int
    pid: int
    stream: Stream
    done: Signal
    kernel: Kernel | None = None
    bytes: int = 0
    pinned: bool = True
    peer: int | None = None
    graph: bool = False
    arrival: int = 0
    after: list[Op] = field(default_factory=list)
    meet: Meeting | None = None
    start: int = -1
    end: int = -1


class Meeting:
    """One collective: it ends at once on all ranks, a transfer's time after the last has come."""

    def __init__(self, machine: Machine, ranks: int) -> None:
        self.machine, self.ranks, self.ops = machine, ranks, []

    def join(self, op: Op) -> None:
        self.ops.append(op)
        if len(self.ops) == self.ranks:
            end = self.machine.now + round(op.ns)
            for each in self.ops:
                self.machine.at(end, each.stream.finisher(each))


class Gpu:
    """A GPU: its SMs are a capacity of 1 that kernels share, its copy engines take one copy each."""

    def __init__(self, machine: Machine, index: int, speed: float = 1.0) -> None:
        self.machine, self.index, self.speed = machine, index, speed
        self.clocks: list[tuple[int, float]] = []  # from when on which share of the clock
        self.free, self.engines = 1.0, {"h2d": True, "d2h": True, "p2p": True}
        self.streams: list[Stream] = []

    def clock(self, time: int) -> float:
        return ([1.0] + [share for since, share in self.clocks if since <= time])[-1]


class Stream:
    """A first-in, first-out queue of a GPU."""

    def __init__(self, gpu: Gpu, number: int) -> None:
        self.gpu, self.number, self.machine = gpu, number, gpu.machine
        self.queue: deque[Op] = deque()
        self.running: Op | None = None
        self.ready = 0
        self.slot: Signal | None = None
        self.last: Op | None = None
        gpu.streams.append(self)

    def push(self, op: Op) -> None:
        self.queue.append(op)
        self.last = op
        self.machine.at(op.arrival, self.pump)
        for other in op.after:
            if not other.done.fired:
                other.done.waiting.append(self.pump)

    def pump(self) -> None:
        """Start the first operation of the queue if the stream, its dependencies and the GPU let it."""
        if self.running or not self.queue:
            return
        op, gpu, now = self.queue[0], self.gpu, self.machine.now
        if now < op.arrival or any(not other.done.fired for other in op.after):
            return
        if now < self.ready:
            self.machine.at(self.ready, self.pump)
            return
        if (gpu.free < op.kernel.demand - 1e-9) if op.kernel else not gpu.engines[op.kind]:
            return
        self._occupy(op, -1)
        self.queue.popleft()
        if self.slot:
            slot, self.slot = self.slot, None
            slot.fire()
        self.running, op.start = op, now
        if op.meet:
            op.meet.join(op)
        else:
            slow = gpu.clock(now) * gpu.speed if op.kernel else 1.0
            self.machine.at(now + max(round(op.ns / slow), 500), self.finisher(op))

    def _occupy(self, op: Op, sign: int) -> None:
        """Take (-1) or give back (1) what an operation needs of the GPU."""
        if op.kernel:
            self.gpu.free += sign * op.kernel.demand
        else:
            self.gpu.engines[op.kind] = sign > 0

    def finisher(self, op: Op) -> Callable[[], None]:
        def finish() -> None:
            op.end = self.machine.now
            self._occupy(op, 1)
            self.running, self.ready = (
                None,
                op.end + (700 if op.graph else round(self.machine.near(1.15 * US))),
            )
            self.machine.ops.append(op)
            op.done.fire()
            self.machine.at(self.ready, self.pump)
            waiting = [each for each in self.gpu.streams if each.queue]
            for stream in sorted(waiting, key=lambda each: each.queue[0].arrival):
                stream.pump()

        return finish


class Thread:
    """A host thread of a process; its methods are steps of the program it runs."""

    def __init__(self, machine: Machine, pid: int, tid: int, name: str) -> None:
        self.machine, self.pid, self.tid, self.name, self.launch_us = (
            machine,
            pid,
            tid,
            name,
            machine.launch_us,
        )
        machine.threads.append(self)

    def record(self, table: str, name: str, start: int, **more: object) -> None:
        row = {
            "name": name,
            "start": start,
            "end": self.machine.now,
            "pid": self.pid,
            "tid": self.tid,
            **more,
        }
        self.machine.rows[table].append(row)

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        start = self.machine.now
        yield
        self.record("nvtx", name, start)

    def spend(self, ns: float, name: str = "", table: str = "nvtx", **more: object) -> Steps:
        """Spend time on the CPU ("nvtx": in a range, if it has a name), in a call of the system or of CUDA."""
        start = self.machine.now
        yield self.machine.near(ns)
        if name:
            self.record(table, name, start, **more)

    def os_wait(self, name: str, signal: Signal) -> Steps:
        start = self.machine.now
        if not signal.fired:
            yield signal
            yield self.machine.near(4 * US)
        if self.machine.now - start > 1000:
            self.record("os", name, start)

    def call(self, name: str, us: float) -> Steps:
        return self.spend(us * US, name, "api", corr=self.machine.correlation())

    def _op(self, stream: Stream, kind: str, name: str, ns: float, **more: object) -> Op:
        machine = self.machine
        corr = more.pop("corr", None) or machine.correlation()
        return Op(
            kind, name, ns, corr, self.pid, stream, Signal(machine), arrival=machine.now, **more
        )

    def _order(self, stream: Stream, after: tuple) -> Steps:
        """Let a stream wait for operations of others: an event recorded, and a wait for it."""
        for other in after:
            if other.stream is not stream:
                yield from self.call("cudaEventRecord", 1.2)
                yield from self.call("cudaStreamWaitEvent", 1)

    def launch(
        self, stream: Stream, kernel: Kernel, *, meet: Meeting | None = None, after: tuple = ()
    ) -> Steps:
        """Launch a kernel: the call takes its time, and waits while the queue is full."""
        machine = self.machine
        yield from self._order(stream, after)
        start = machine.now
        yield machine.near(self.launch_us * US, 0.25)
        if kernel.load_ns and (self.pid, kernel.name) not in machine.loaded:
            machine.loaded.add((self.pid, kernel.name))
            yield kernel.load_ns
        while len(stream.queue) >= DEPTH:
            stream.slot = stream.slot or Signal(machine)
            yield stream.slot
        op = self._op(stream, "kernel", kernel.name, machine.near(kernel.ns, 0.04), kernel=kernel)
        op.meet, op.after, op.arrival = (
            meet,
            list(after),
            machine.now + round(machine.near(1.8 * US, 0.4)),
        )
        stream.push(op)
        self.record("api", "cudaLaunchKernel", start, corr=op.corr)

    def graph(self, stream: Stream, kernels: list[Kernel]) -> Steps:
        """Launch many kernels by one call."""
        machine, start = self.machine, self.machine.now
        yield machine.near(9 * US + 30 * len(kernels))
        corr = machine.correlation()
        for kernel in kernels:
            op = self._op(
                stream,
                "kernel",
                kernel.name,
                machine.near(kernel.ns, 0.04),
                kernel=kernel,
                corr=corr,
            )
            op.graph, op.arrival = True, machine.now + 3 * US
            stream.push(op)
        self.record("api", "cudaGraphLaunch", start, corr=corr)

    def copy(
        self, stream: Stream, kind: str, size: int, *, after: tuple = (), **how: object
    ) -> Steps:
        """Copy: calls for pageable memory return when the copy is over, as does `cudaMemcpy` (`wait`)."""
        machine, pinned, wait = self.machine, how.get("pinned", True), how.get("wait", False)
        yield from self._order(stream, after)
        start = machine.now
        yield machine.near(5 * US, 0.25)
        rate = 90.0 if kind == "p2p" else 24.0 if pinned else 5.0  # GB/s
        names = {"h2d": "Host-to-Device", "d2h": "Device-to-Host", "p2p": "Peer-to-Peer"}
        op = self._op(
            stream,
            kind,
            names[kind],
            machine.near(1.2 * US + size / rate, 0.03),
            bytes=size,
            pinned=pinned,
        )
        op.after, op.peer, op.arrival = (
            list(after),
            how.get("peer"),
            machine.now + round(machine.near(1.2 * US, 0.3)),
        )
        stream.push(op)
        blocks = wait or (not pinned and (kind == "d2h" or size > 65536))
        if blocks:
            yield op.done
            yield machine.near(2.2 * US, 0.3)
        name = "cudaMemcpyPeer" if kind == "p2p" else "cudaMemcpy"
        self.record("api", name + ("" if wait else "Async"), start, corr=op.corr)

    def synchronise(
        self,
        *streams: Stream,
        name: str = "cudaStreamSynchronize",
        drag: float = 0,
        until: Op | None = None,
    ) -> Steps:
        """Wait for all that is in these streams, or `until` an operation; `drag` is what the call does after that."""
        machine, start = self.machine, self.machine.now
        yield machine.near(1.2 * US)
        for op in [until] if until else [stream.last for stream in streams]:
            if op and not op.done.fired:
                yield op.done
        yield machine.near(2 * US, 0.3)
        if drag:
            yield machine.near(drag)
        corr = machine.correlation()
        self.record("api", name, start, corr=corr)
        if not drag:
            kind = {"cudaEventSynchronize": 1, "cudaStreamSynchronize": 3}.get(name, 4)
            gpu, number = streams[0].gpu.index, streams[0].number
            self.record("sync", name, start + 500, corr=corr, kind=kind, gpu=gpu, stream=number)


class Machine:
    """Time, threads, GPUs, and what a profiler would have written down of them."""

    def __init__(self, seed: str, gpus: int = 1, launch_us: float = 5.0) -> None:
        self.seed, self.random = seed, random.Random(seed)
        self.now, self.heap, self.count, self.corr, self.spawned = 0, [], 0, 100, 0
        self.launch_us, self.gpus = launch_us, [Gpu(self, index) for index in range(gpus)]
        self.threads: list[Thread] = []
        self.ops: list[Op] = []
        self.rows: defaultdict[str, list[dict]] = defaultdict(list)
        self.loaded: set[tuple[int, str]] = set()
        self.meetings: dict[object, Meeting] = {}

    def near(self, ns: float, spread: float = 0.06) -> float:
        """A time about this long."""
        return max(ns * self.random.uniform(1 - spread, 1 + spread), 50)

    def at(self, time: float, what: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.heap, (round(time), self.count, what))

    def correlation(self) -> int:
        self.corr += self.random.choice((1, 1, 1, 4))
        return self.corr

    def spawn(self, steps: Steps, at: int = 0) -> None:
        """Let a thread take these steps. It draws its own times: a profiler that slows it changes no other's."""
        self.spawned += 1
        own = random.Random(f"{self.seed} {self.spawned}")

        def resume() -> None:
            self.random = own
            command = next(steps, None)
            if isinstance(command, Signal) and not command.fired:
                command.waiting.append(resume)
            elif command is not None:
                self.at(self.now + (0 if isinstance(command, Signal) else command), resume)

        self.at(at, resume)

    def run(self) -> Machine:
        while self.heap:
            self.now, _, what = heapq.heappop(self.heap)
            what()
        return self

    def span(self) -> int:
        return max(op.end for op in self.ops) - min(op.start for op in self.ops)

    def span_of_kernels(self) -> int:
        """The time from the first kernel to the end of the last operation."""
        return max(op.end for op in self.ops) - min(op.start for op in self.ops if op.kernel)

    def busy(self, gpu: int) -> int:
        mine = [op for op in self.ops if op.stream.gpu.index == gpu]
        edges = sorted([(op.start, 1) for op in mine] + [(op.end, -1) for op in mine])
        busy = depth = last = 0
        for time, step in edges:
            busy, depth, last = busy + (time - last if depth else 0), depth + step, time
        return busy

"""What a training program does with the GPU, step after step, simulated event by event; times are int64 ns.

The program trains a transformer: encoder layers as BERT's with their backward pass, a small head, cross entropy, AdamW.
Autocast casts weights anew in every step. A compiler fuses neighbours between the matrix products.

A kernel takes what the slower of two roofs of an A100 allows, and a little for its start; the shares of the peaks are
plausible, not measured. Matrix products are cut into tiles: a last round that does not fill all multiprocessors is
lost. The host launches kernels ahead of the GPU until the driver's queue is full.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import ceil, log2
from typing import Any, NamedTuple

import numpy as np

from perfkit import hardware

# Least and mean excess of what no program sets: launch latency, and distance in a stream.
LAUNCH_LATENCY_NS, SPACE_NS = (4_000, 2_000), (800, 300)


@dataclass(eq=False)
class Work:
    """Something that will be done: an operation of a stream, or a batch. What meets ends at one time on all ranks."""

    dur: int = 0
    row: dict[str, Any] = field(default_factory=dict)
    needs: tuple[Work, ...] = ()
    meeting: list[Line] | None = None
    released: bool = False
    start: int = -1
    done: bool = False
    wakes: list[Callable[[], None]] = field(default_factory=list)


Line = deque[Work]
Thread = Generator["int | list[Work]", None, None]


class Machine:
    """Clock, streams and sleeping threads."""

    def __init__(self, ranks: int, seed: int) -> None:
        self.now = 0
        self.ranks = ranks
        self._rng = np.random.default_rng(seed)
        kinds = ("kernels", "copies", "calls", "ranges", "os_calls")
        self.rows: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
        self._moments: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self._lines: dict[tuple[int, int], Line] = {}

    def some(self, least_and_excess: tuple[int, int]) -> int:
        """Return a random length, ns."""
        least, excess = least_and_excess
        return least + int(self._rng.exponential(excess))

    def at(self, delay: int, action: Callable[[], None]) -> None:
        """Do something when the delay has passed."""
        heapq.heappush(self._moments, (self.now + delay, next(self._numbers), action))

    def run(self) -> None:
        """Let time pass until nothing is left to do."""
        while self._moments:
            self.now, _, action = heapq.heappop(self._moments)
            action()

    def resume(self, thread: Thread) -> None:
        """Let a thread go on until it sleeps for some time or waits for work."""
        asked = next(thread, None)
        if isinstance(asked, int):
            self.at(asked, partial(self.resume, thread))
        elif asked is not None:
            self._when_done(asked, partial(self.resume, thread))

    def _when_done(self, works: list[Work], action: Callable[[], None]) -> None:
        left = [work for work in works if not work.done]
        if left:
            left[0].wakes.append(partial(self._when_done, left, action))
        else:
            self.at(0, action)

    def finish(self, work: Work) -> None:
        """Wake whatever waits for this work."""
        work.done = True
        for wake in work.wakes:
            wake()

    def submit(self, rank: int, stream: int, work: Work) -> None:
        """Put work at the end of a stream; it can start when the latency has passed."""
        line = self._lines.setdefault((rank, stream), deque())
        line.append(work)
        self.at(self.some(LAUNCH_LATENCY_NS), partial(self._release, work, line))

    def _release(self, work: Work, line: Line) -> None:
        work.released = True
        self._advance(line)

    def _advance(self, line: Line) -> None:
        """Start the first work of a stream, if that has not started yet and can."""
        if not line or line[0].start >= 0 or not line[0].released:
            return
        work = line[0]
        if waiting := [need for need in work.needs if not need.done]:
            waiting[0].wakes.append(partial(self._advance, line))
            return
        work.start = self.now
        lines = [line]
        if work.meeting is not None:
            work.meeting.append(line)
            lines = work.meeting if len(work.meeting) == self.ranks else []
        for ready in lines:
            self.at(work.dur, partial(self._end, ready))

    def _end(self, line: Line) -> None:
        work = line.popleft()
        table = "copies" if "direction" in work.row else "kernels"
        self.rows[table].append(
            {**work.row, "start_ns": work.start, "dur_ns": self.now - work.start}
        )
        self.finish(work)
        self.at(self.some(SPACE_NS), partial(self._advance, line))


PRECISIONS = ("fp32", "tf32", "bf16")
GPU = "NVIDIA A100 80GB PCIe"
THREADS, TILE = 256, (128, 64)
START_NS = 2_000
REACHED = {
    "fp32": 0.9,
    "tf32": 0.7,
    "bf16": 0.65,
}  # share of the peak that a product reaches when the tiles fit
STREAMED = 0.8  # share of the bandwidth that other kernels reach
PEAK = {"fp32": "fp32", "tf32": "tf32_tensor", "bf16": "bf16_tensor"}
PRODUCTS = {
    "fp32": "ampere_sgemm_128x64_{}",
    "tf32": "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64_32x6_{}_align4>(T1::Params)",
    "bf16": "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x6_{}",
}
WORDS = {4: "float", 2: "c10::BFloat16"}
CAST_BYTES, ADAM_BYTES = (
    6,
    28,
)  # of a weight: read 4, write 2; read weight, gradient and two moments, write three
MASKED = 2.25  # arrays of four bytes that dropout reads and writes, with a mask of one byte
STREAM = 7
CPU_NS = 5_000  # mean work of the host for one launch, in PyTorch and Python
CALL_NS, RETURN_NS = (2_500, 800), (3_000, 2_000)  # least and mean excess
AHEAD = 1_000  # launches that the driver's queue holds
LOSS_BYTES, TOKEN_BYTES = 4, 8
LATENCY_NS, BYTES_PER_NS = 1_500, 20.0  # of copies over PCIe
HANDED_NS = (60_000, 20_000)  # of a batch, from a worker to the program
SPREAD = 0.01  # of a kernel's time, relative standard deviation
Rows = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Setup:
    """A training program; times in ns.

    `batch` sequences per step in one of PRECISIONS (bf16 by autocast); `fused`: a compiler fused what lies between the
    matrix products. The loss is read every `read_loss` steps, 0 for none before the end. `loading_ns` prepares one
    sequence on the CPU, 0 if the batch stays on the GPU, in `workers` processes, 0 for the program itself; batches are
    copied `pinned`, so that the host does not wait. `host_ns` is what the host does else from one step to the next.
    `sequence`, `hidden`, `layers` and `heads` are the transformer's; `gpu` is a GPU of the Ampere generation.
    `product_frac` and `other_frac` are the times of the matrix products and of all other kernels over what the
    roofline model gives.
    """

    batch: int = 16
    precision: str = "fp32"
    fused: bool = False
    read_loss: int = 0
    loading_ns: int = 0
    workers: int = 0
    pinned: bool = True
    host_ns: int = 1_000_000
    steps: int = 24
    seed: int = 0
    sequence: int = 128
    hidden: int = 768
    layers: int = 4
    heads: int = 12
    gpu: str = GPU
    product_frac: float = 1.0
    other_frac: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what cannot be simulated."""
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision: {self.precision!r} is not one of {list(PRECISIONS)}")
        if min(self.batch, self.steps, self.sequence, self.layers) < 1:
            raise ValueError("batch, steps, sequence and layers: at least 1 each")
        if self.workers and not self.loading_ns:
            raise ValueError("workers: there is nothing to load; give loading_ns")


class _Program:
    """The threads, and what they have put on the GPU."""

    def __init__(self, machine: Machine, setup: Setup) -> None:
        self.machine, self.setup = machine, setup
        self.kernels = step(setup)
        rng = np.random.default_rng(setup.seed)
        shape = setup.steps, len(self.kernels)
        self.lengths = 1 + SPREAD * rng.standard_normal(shape).clip(-3, 3)
        self.cpu_ns = (CPU_NS / 4 * rng.standard_gamma(4, shape)).astype(int)
        self.batches = [Work() for _ in range(setup.steps)]
        self.numbers = count(1)
        self.submitted: list[Work] = []

    def worker(self, number: int) -> Thread:
        """Load every so many-th batch, one after another."""
        for batch in self.batches[number :: self.setup.workers]:
            yield self.setup.loading_ns * self.setup.batch
            self.machine.finish(batch)

    def main(self) -> Thread:
        """Run all steps, and wait for the GPU at the end."""
        setup = self.setup
        for number in range(setup.steps):
            if setup.loading_ns:
                yield from self.load(number)
                yield from self.copy(
                    "H2D", TOKEN_BYTES * setup.batch * setup.sequence, pinned=setup.pinned
                )
                if not setup.pinned:
                    yield from self.call("cudaStreamSynchronize", wait=self.submitted[-1:])
            for at, kernel in enumerate(self.kernels):
                yield from self.launch(kernel, number, at)
            if setup.read_loss and (number + 1) % setup.read_loss == 0:
                yield from self.copy("D2H", LOSS_BYTES, pinned=False)
                yield from self.call("cudaStreamSynchronize", wait=self.submitted[-1:])
            yield setup.host_ns
        yield from self.call("cudaDeviceSynchronize", wait=self.submitted[-1:])

    def load(self, number: int) -> Thread:
        """Load a batch, or wait for the worker that does."""
        start = self.machine.now
        if self.setup.workers:
            yield [self.batches[number]]
            yield self.machine.some(HANDED_NS)
        else:
            yield self.setup.loading_ns * self.setup.batch
        span = {"name": "data loading", "start_ns": start, "dur_ns": self.machine.now - start}
        self.machine.rows["ranges"].append(span)

    def copy(self, direction: str, size: int, *, pinned: bool) -> Thread:
        row = {"direction": direction, "bytes": size, "pinned": pinned}
        yield from self.call("cudaMemcpyAsync", Work(LATENCY_NS + round(size / BYTES_PER_NS), row))

    def launch(self, kernel: Kernel, number: int, at: int) -> Thread:
        """Launch a kernel, when the queue has room for it."""
        if len(self.submitted) > AHEAD:
            yield [self.submitted[-AHEAD]]
        yield int(self.cpu_ns[number, at])
        work = Work(round(kernel.dur_ns * self.lengths[number, at]), {"kernel": kernel})
        yield from self.call("cudaLaunchKernel", work)

    def call(self, name: str, work: Work | None = None, wait: list[Work] | None = None) -> Thread:
        """Make a call that puts work into the stream, or returns when what it waits for is done."""
        start, number = self.machine.now, next(self.numbers)
        if work is not None:
            work.row["correlation"] = number
            self.machine.submit(0, STREAM, work)
            self.submitted.append(work)
        yield self.machine.some(CALL_NS)
        if wait is not None:
            yield wait
            yield self.machine.some(RETURN_NS)
        row = {
            "name": name,
            "correlation": number,
            "start_ns": start,
            "dur_ns": self.machine.now - start,
        }
        self.machine.rows["calls"].append(row)


class _Step:
    """Makes the kernels of a setup."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.maker = Maker(setup.precision, setup.gpu)
        self.product, self.other = self.maker.product, self.maker.other
        self.rows = setup.batch * setup.sequence
        self.states = self.rows * setup.hidden
        self.weights = setup.batch * setup.heads * setup.sequence**2  # of attention
        self.power = ceil(log2(setup.sequence))

    def all(self) -> Iterator[Kernel]:
        """Yield the step: embedding, layers, head and loss, the same backwards, optimiser."""
        hidden, batch, layers = self.setup.hidden, self.setup.batch, self.setup.layers
        yield self.other(
            native("<unnamed>::indexSelectLargeIndex<{0}, long, unsigned int>"), self.states
        )
        for _ in range(layers):
            yield from self.forward()
        yield from (self.product(batch, hidden, hidden, "tn"), self.product(batch, 2, hidden, "tn"))
        yield from self.loss()
        for outputs in (2, hidden):
            yield from self.gradients(batch, outputs, hidden)
        for _ in range(layers):
            yield from self.backward()
        yield self.other(native("<unnamed>::embedding_backward_feature_kernel<{0}>"), self.states)
        yield self.other(ADAM, 12 * hidden**2 * layers, ADAM_BYTES / 4, word=4)

    def linear(self, inputs: int, outputs: int) -> Iterator[Kernel]:
        """Yield a linear layer; with autocast its weights are cast first."""
        if self.setup.precision == "bf16":
            yield self.other(CAST, inputs * outputs, CAST_BYTES / self.maker.word)
        yield self.product(self.rows, outputs, inputs, "tn")

    def gradients(self, rows: int, outputs: int, inputs: int) -> Iterator[Kernel]:
        """Yield the gradients of a linear layer's input, weights and bias."""
        yield self.product(rows, inputs, outputs, "nn")
        yield self.product(outputs, inputs, rows, "nt")
        yield self.other(SUM, rows * outputs, 1)

    def attention(self, layout: str) -> Kernel:
        """Return one of the products of attention: queries and keys, or weights and values, or a gradient."""
        setup, inner = self.setup, self.setup.hidden // self.setup.heads
        return self.product(
            setup.sequence, setup.sequence, inner, layout, setup.batch * setup.heads
        )

    def forward(self) -> Iterator[Kernel]:
        """Yield the forward pass of a layer."""
        hidden = self.setup.hidden
        for _ in range(3):
            yield from self.linear(hidden, hidden)
        yield self.attention("tn")
        yield from self.softmax()
        yield self.attention("nn")
        yield from self.linear(hidden, hidden)
        yield from self.residual()
        yield from self.linear(hidden, 4 * hidden)
        yield self.between("GeluCUDAKernelImpl", "triton_poi_fused_gelu_5", 2)
        yield from self.linear(4 * hidden, hidden)
        yield from self.residual()

    def between(self, functor: str, fused: str, arrays: int) -> Kernel:
        """Return the activation between the two large products, or its gradient."""
        name = fused if self.setup.fused else elementwise(f"{functor}<{{0}}>", arrays)
        return self.other(name, 4 * self.states, arrays)

    def softmax(self) -> Iterator[Kernel]:
        """Yield softmax and dropout of the attention weights."""
        if self.setup.fused:
            yield self.other("triton_per_fused__softmax_native_dropout_0", self.weights, MASKED)
            return
        yield self.other(softmax("forward", self.power), self.weights, 2, word=4)
        yield self.other(DROPOUT, self.weights, MASKED)

    def residual(self) -> Iterator[Kernel]:
        """Yield dropout, addition of the residual, and normalisation."""
        if self.setup.fused:
            yield self.other(
                "triton_per_fused_add_native_dropout_native_layer_norm_1", self.states, 2 + MASKED
            )
            return
        yield self.other(DROPOUT, self.states, MASKED)
        yield self.other(ADD, self.states, 3)
        yield self.other(
            native("<unnamed>::vectorized_layer_norm_kernel<{0}, float>"), self.states, 2, word=4
        )

    def backward(self) -> Iterator[Kernel]:
        """Yield the backward pass of a layer."""
        hidden = self.setup.hidden
        yield from self.residual_back()
        yield from self.gradients(self.rows, hidden, 4 * hidden)
        yield self.between("GeluBackwardCUDAKernelImpl", "triton_poi_fused_gelu_backward_6", 3)
        yield from self.gradients(self.rows, 4 * hidden, hidden)
        yield from self.residual_back()
        yield from self.gradients(self.rows, hidden, hidden)
        yield from (self.attention("nt"), self.attention("tn"))
        yield from self.softmax_back()
        yield from (self.attention("nn"), self.attention("nt"))
        for _ in range(3):
            yield from self.gradients(self.rows, hidden, hidden)
        yield from self.accumulated(3)

    def residual_back(self) -> Iterator[Kernel]:
        """Yield the gradients of normalisation, addition and dropout."""
        if self.setup.fused:
            name = "triton_per_fused_add_native_dropout_backward_native_layer_norm_backward_2"
            yield self.other(name, self.states, 2 + MASKED)
            return
        yield from self.accumulated(1)
        for what in ("layer_norm_grad_input_kernel", "GammaBetaBackwardCUDAKernelTemplate"):
            yield self.other(native(f"<unnamed>::{what}<{{0}}, float>"), self.states, 2.5, word=4)
        yield self.other(SCALE, self.states, MASKED)

    def softmax_back(self) -> Iterator[Kernel]:
        """Yield the gradients of dropout and softmax."""
        if self.setup.fused:
            name = "triton_per_fused__softmax_backward_data_native_dropout_backward_3"
            yield self.other(name, self.weights, 1 + MASKED)
            return
        yield self.other(SCALE, self.weights, MASKED)
        yield self.other(softmax("backward", self.power), self.weights, 3, word=4)

    def accumulated(self, times: int) -> Iterator[Kernel]:
        """Yield additions of gradients, which a compiler makes one."""
        if self.setup.fused and times > 1:
            yield self.other("triton_poi_fused_add_4", self.states, times + 2)
            return
        for _ in range(times):
            yield self.other(ADD, self.states, 3)

    def loss(self) -> Iterator[Kernel]:
        """Yield the loss and its gradient."""
        for way in ("forward", "backward"):
            for name in (
                softmax(way, 1),
                native(f"nll_loss_{way}_reduce_cuda_kernel_2d<{{0}}, float, long>"),
            ):
                yield self.other(name, 2 * self.setup.batch, word=4)


class Kernel(NamedTuple):
    """A kernel: its time, its grid, its operations and bytes, and the peak (FLOP/s) of the unit that does them."""

    full_name: str
    dur_ns: float
    grid_blocks: int
    flops: int
    bytes: int
    peak_flops_per_s: float

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix product."""
        return self.flops > 0


class Maker:
    """Makes kernels of a precision: fp32, tf32 or bf16."""

    def __init__(self, precision: str, gpu: str = GPU) -> None:
        sheet = peaks(gpu)
        self.precision = precision
        self.sm_count = sheet.sm_count
        self.peak = sheet.flops(PEAK[precision])
        self.bandwidth = sheet.bandwidth()
        self.word = 2 if precision == "bf16" else 4

    def product(self, rows: int, columns: int, inner: int, layout: str, count: int = 1) -> Kernel:
        """Return a product of matrices, or a batch of `count`; `layout` says which are transposed."""
        tiles = count * ceil(rows / TILE[0]) * ceil(columns / TILE[1])
        filled = tiles / (self.sm_count * ceil(tiles / self.sm_count))
        flops = 2 * count * rows * columns * inner
        size = count * self.word * (rows * inner + inner * columns + rows * columns)
        rate = REACHED[self.precision] * filled * self.peak
        dur = START_NS + 1e9 * max(flops / rate, size / (STREAMED * self.bandwidth))
        return Kernel(PRODUCTS[self.precision].format(layout), dur, tiles, flops, size, self.peak)

    def other(self, name: str, elements: int, arrays: float = 2, word: int | None = None) -> Kernel:
        """Return a kernel that reads and writes `arrays` of so many elements, each of `word` bytes."""
        word = word or self.word
        size = round(elements * arrays * word)
        dur = START_NS + 1e9 * size / (STREAMED * self.bandwidth)
        return Kernel(
            name.format(WORDS[word]), dur, ceil(elements / (4 * THREADS)), 0, size, self.peak
        )


def peaks(gpu: str) -> hardware.Peaks:
    """Return the data sheet of a GPU."""
    sheet = hardware.peaks(gpu)
    if sheet is None:
        raise ValueError(f"gpu: no peaks of {gpu}")
    return sheet


def native(kernel: str) -> str:
    """Return the full name of a kernel of PyTorch's; {0} in it is its number format."""
    return f"void at::native::{kernel}(T1)"


def elementwise(functor: str, arrays: int = 3) -> str:
    """Return the name of an elementwise kernel of PyTorch's."""
    return native(
        f"vectorized_elementwise_kernel<4, at::native::{functor}, std::array<char *, {arrays}>>"
    )


ADD = elementwise("CUDAFunctor_add<{0}>")
SCALE = elementwise("MaskedScaleFunctor<{0}>")
CAST = native(
    "unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda<{0}>, std::array<char *, 2>, 4>"
)
DROPOUT = native("<unnamed>::fused_dropout_kernel_vec<{0}, float, unsigned int, 1, 4, bool>")
SUM = native(
    "reduce_kernel<128, 4, at::native::ReduceOp<{0}, at::native::sum_functor<{0}, float>, 4>>"
)
ADAM = native(
    "<unnamed>::multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>"
)


def executed(setup: Setup) -> Rows:
    """Return kernels, copies, calls and ranges of a program as rows: start_ns, dur_ns, and what there is to say."""
    machine = Machine(1, setup.seed)
    program = _Program(machine, setup)
    for thread in (program.main(), *map(program.worker, range(setup.workers))):
        machine.at(0, partial(machine.resume, thread))
    machine.run()
    return machine.rows


def step(setup: Setup) -> list[Kernel]:
    """Return the kernels of a training step: forward, backward, optimiser.

    >>> len(step(Setup(layers=1))), len(step(Setup(layers=1, fused=True)))
    (68, 54)
    """
    scales = {True: setup.product_frac, False: setup.other_frac}
    return [
        kernel._replace(dur_ns=kernel.dur_ns * scales[kernel.is_product])
        for kernel in _Step(setup).all()
    ]


def softmax(way: str, power: int) -> str:
    """Return the name of PyTorch's softmax, forward or backward, over rows of up to 2 to this power."""
    return f"void <unnamed>::softmax_warp_{way}<{{0}}, {{0}}, float, {power}, 0, 0>(T2 *, const T1 *, int, int, int)"

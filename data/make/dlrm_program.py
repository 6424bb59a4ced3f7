"""What happens when, in 100 steps of training a DLRM, on the CPU's threads and on the GPU, and along which call paths?

All frames stand in `dlrm_places.csv`. A frame is ``library|function``, with ``@loop`` and an offset if what follows is
in a loop of it; a Python frame is ``function@file:first line>line`` and a frame of the interpreter's C code a bare
name; files are PyTorch's, or the job's own where they begin with a dot. HPCToolkit has a function and a line for each
frame, and knows neither file nor line of code that was built without debugging information: `[library]:0`.

Names are the public ones of PyTorch, CUTLASS and cuBLAS. Durations are what a launch takes on average, ns; stalls are
per mille of the samples, in the order of STALLS. All figures are invented.

A line of `dlrm_steps.csv` names a place of `dlrm_places.csv` and what is asked for there: kernels by their keys, other
operations as ``kind:bytes``. A memset is made by the call of the kernel behind it. The batch has 2,048 samples of 480
dense features and 10 rows of each of four embedding tables; it comes from pageable memory.

One list of operations, in integer ns since the program's start, says everything: stretches in which a thread runs in a
context, and kernels, copies, memsets, allocations and synchronisations with the context that asked for them. The GPU
has one stream; a thread that is in no stretch waits. A copy from or to pageable memory holds the thread until it is
done. The main thread sleeps while the autograd engine's thread runs the backward pass.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple
from zlib import crc32

import numpy as np

from make.hpctoolkit import Paths
from make.kernels import table

PACKAGES = "/job/venv/lib/python3.11/site-packages/"

LIBRARIES = {
    "python": f"{PACKAGES}torch/lib/libtorch_python.so",
    "cpu": f"{PACKAGES}torch/lib/libtorch_cpu.so",
    "cuda": f"{PACKAGES}torch/lib/libtorch_cuda.so",
    "torch": f"{PACKAGES}torch/lib/libtorch.so",
    "cublas": f"{PACKAGES}nvidia/cublas/lib/libcublas.so.12",
    "cublasLt": f"{PACKAGES}nvidia/cublas/lib/libcublasLt.so.12",
    "cudart": f"{PACKAGES}nvidia/cuda_runtime/lib/libcudart.so.12",
    "driver": "/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15",
    "gomp": f"{PACKAGES}torch/lib/libgomp-a34b3233.so.1",
    "numpy": f"{PACKAGES}numpy/random/mtrand.cpython-311-x86_64-linux-gnu.so",
    "interpreter": "/usr/bin/python3.11",
}

PYTHON = "<logical python>"
SCRIPT = "src/job/dlrm/dlrm_s_pytorch.py"
JOB = "src/job/dlrm/dlrm_"
TORCH = f"src{PACKAGES}torch/"


class Place(NamedTuple):
    """A line of the script that reaches the GPU: its Python frames, and the native frames below them."""

    line: int
    python: str
    native: tuple[str, ...]


def _places(kind: str) -> dict[str, Place]:
    """Return the places of one kind: gpu, backward (which another thread runs) or host (busy by itself)."""
    return {
        row["place"]: Place(
            int(row["line"] or 0), row["python"], tuple(filter(None, row["native"].split("; ")))
        )
        for row in table("dlrm_places")
        if row["kind"] == kind
    }


SITES, HOST = _places("gpu"), _places("host")
NODES = {name: place.native for name, place in _places("backward").items()}

# right below entry points
EXIT = ("interpreter|Py_BytesMain", "interpreter|Py_RunMain", "interpreter|Py_FinalizeEx")
WORKER = ("cpu|at::native::(anonymous namespace)::uniform_kernel() [clone ._omp_fn.0]",)
SPINNING = ("gomp|<unknown procedure> 0x1d8b0",)


MULTIPROCESSORS, CLOCK_MHZ, PERIOD_CYCLES = 132, 1_755, 4_096
MOST_WARPS = 64

STALLS = ("IFET", "IDEP", "GMEM", "SYNC", "CMEM", "PIPE", "MTHR", "OTHR")

Mix = tuple[int, ...]


class Kernel(NamedTuple):
    """A kernel, and a launch of it: blocks, threads in each, registers per thread, bytes of shared memory per block.

    `sampled` is how many of 1000 expected samples are taken; `loop` says whether its code has one.
    """

    name: str
    mean_ns: int
    blocks: int
    threads: int
    registers: int
    stalls: Mix
    sampled: int
    static_bytes: int = 0
    dynamic_bytes: int = 0
    loop: bool = False

    @property
    def warps(self) -> int:
        """Warps of a multiprocessor that registers and shared memory leave room for."""
        by_registers = 65_536 // (self.registers * 32)
        by_shared = self.threads // 32 * (233_472 // max(self.static_bytes + self.dynamic_bytes, 1))
        return min(MOST_WARPS, by_registers, by_shared)

    @property
    def module(self) -> str:
        """GPU binary it comes from; all kernels of a source file are in one."""
        family = self.name.removeprefix("(anonymous namespace)::").split("<")[0].split("(")[0]
        return f"gpubins/{hashlib.md5(family.encode(), usedforsecurity=False).hexdigest()}.gpubin"


def _kernel(row: dict[str, str]) -> Kernel:
    numbers = (
        "mean_ns",
        "blocks",
        "threads",
        "registers",
        "sampled",
        "static_bytes",
        "dynamic_bytes",
    )
    stalls = tuple(int(row[reason.lower()]) for reason in STALLS)
    return Kernel(
        row["name"],
        stalls=stalls,
        loop=row["loop"] == "1",
        **{name: int(row[name]) for name in numbers},
    )


KERNELS = {row["key"]: _kernel(row) for row in table("dlrm_kernels")}

MAIN, ENGINE, WORKERS = "main thread", "application thread", "unknown entry"
OPERATIONS = {"H2D": "<gpu copyin>", "D2H": "<gpu copyout>", "D2D": "<gpu copy>"}

_INSTRUCTIONS = 3  # of a kernel, that samples fall on


class Mark(NamedTuple):
    """Context that values are booked on, and context that a trace shows."""

    context: int
    seen: int


class Spot(NamedTuple):
    """A place in the program: where its Python code runs, its native code, the CUDA call; and that code's line."""

    python: Mark
    native: Mark
    call: Mark
    line: int


class Launched(NamedTuple):
    """A kernel below a place: its own marks and the instructions that samples fall on."""

    mark: Mark
    instructions: tuple[int, ...]


class Sites:
    """The tree of calling contexts; asked twice for a place it gives the same one."""

    def __init__(self) -> None:
        self.paths = Paths()
        self._entries = {name: self.paths.entry(name) for name in (ENGINE, MAIN, WORKERS)}
        self.spot, self.kernel, self.operation = (
            cache(self._spot),
            cache(self._kernel),
            cache(self._operation),
        )
        self.native = cache(self._native)

    def _spot(self, name: str) -> Spot:
        """A place of SITES, HOST or NODES."""
        if name in NODES:
            line = self._below(self._entries[ENGINE], NODES[name])
            own = self._instruction(line)
            return Spot(own, own, self._call(line), line)
        place = SITES.get(name) or HOST[name]
        python = self._python(place)
        own = Mark(python, python)
        if not place.native:
            return Spot(own, own, own, python)
        line = self._below(python, place.native)
        return Spot(own, self._instruction(line), self._call(line), line)

    def _native(self, entry: str, frames: tuple[str, ...]) -> Mark:
        """Native code right below an entry point."""
        return self._instruction(self._below(self._entries[entry], frames))

    def _kernel(self, name: str, key: str) -> Launched:
        """A kernel that a place launches."""
        kernel, file = KERNELS[key], f"[{KERNELS[key].module.removeprefix('gpubins/')}]"
        offset = 0x1_0000 * (1 + list(KERNELS).index(key))
        found = []
        for again in (True, False):
            above = self.paths.function(self.spot(name).line, "<gpu kernel>", again=again)
            own = self.paths.function(above, kernel.name, kernel.module, offset=offset, file=file)
            found.append((own, self.paths.line(own, file)))
        (seen, _), (own, line) = found
        if kernel.loop:
            line = self.paths.line(
                self.paths.loop(own, file, 0, kernel.module, offset + 0x80), file
            )
        places = [
            self.paths.instruction(line, kernel.module, offset + 16 * i, hidden=True)
            for i in range(_INSTRUCTIONS)
        ]
        return Launched(Mark(own, seen), tuple(places))

    def _operation(self, name: str, what: str) -> Mark:
        """A copy's direction, or the name of another operation of the GPU, below a place."""
        own = self.paths.function(self.spot(name).line, OPERATIONS.get(what, f"<gpu {what}>"))
        return Mark(own, own)

    def _python(self, place: Place) -> int:
        at = self.paths.line(self._entries[MAIN], SCRIPT, place.line, called=True)
        for frame in place.python.split():
            name, _, where = frame.partition("@")
            if not where:
                at = self.paths.function(at, name, PYTHON)
                continue
            file, _, lines = where.partition(":")
            path = JOB + file[1:] if file.startswith(".") else TORCH + file
            first, _, line = lines.partition(">")
            at = self.paths.function(at, name, PYTHON, file=path, line=int(first))
            at = self.paths.line(at, path, int(line))
        return at

    def _below(self, at: int, frames: tuple[str, ...]) -> int:
        """The line in the last of native frames."""
        for frame in frames:
            library, _, told = frame.partition("|")
            name, _, loop = told.partition(" @loop ")
            path = LIBRARIES[library]
            short = path.rpartition("/")[2]
            offset = (
                int(name.split()[-1], 16)
                if name.startswith("<unknown")
                else 16 * crc32(name.encode())
            )
            at = self.paths.function(
                at, f"{name} [{short}]", path, offset=offset, file=f"[{short}]"
            )
            if loop:
                at = self.paths.loop(at, f"[{short}]", 0, path, int(loop, 16))
            at = self.paths.line(at, f"[{short}]")
        return at

    def _call(self, line: int) -> Mark:
        return self._instruction(
            self._below(line, ("cudart|cudaLaunchKernel", "driver|<unknown procedure> 0x1f9d60"))
        )

    def _instruction(self, line: int) -> Mark:
        """An instruction below a line, which is the one that is listed."""
        return Mark(self.paths.instruction(line, "", 0, hidden=True), line)


Line = tuple[str, list[str]]


def _lines(phase: str) -> list[Line]:
    """Return places and what is asked for there in a phase of a step."""
    return [
        (row["place"], row["work"].split()) for row in table("dlrm_steps") if row["phase"] == phase
    ]


FORWARD, BACKWARD, OPTIMISER = map(_lines, ("forward", "backward", "optimiser"))
# weights and biases of 480-512-256-64 and 100-256-128-1, then four tables of 20,000 rows of 64
PARAMETERS = (
    983_040,
    2_048,
    524_288,
    1_024,
    65_536,
    256,
    102_400,
    1_024,
    131_072,
    512,
    512,
    4,
    *[5_120_000] * 4,
)
BLOCKS = (
    2_097_152,
    20_971_520,
    20_971_520,
    2_097_152,
)  # what the caching allocator asks the driver for


STEPS = 100
MAIN_THREAD, FIRST_WORKER, WORKER_COUNT, ENGINE_THREAD, CPU_THREADS = 0, 1, 8, 29, 31
MS = 1_000_000

ON_DEVICE = ("kernel", "copy", "memset")  # what the GPU's stream does; the others are the driver's

_KB_PER_S = {
    "H2D": 6_100_000,
    "D2H": 6_100_000,
    "D2D": 1_100_000_000,
}  # pageable memory of the host
_SHORTEST_NS = {
    "H2D": 780,
    "D2H": 1_650,
    "D2D": 2_900,
    "memset": 1_150,
    "alloc": 38_000,
    "sync": 2_300,
}
_DELAY_NS = 1_900
_HOST_SPREAD = 0.4
_BEFORE_MEMSET_NS = 800_000  # after the kernel's call, which waits for it


class Op(NamedTuple):
    """Something with a start and a duration; `what` is a kernel's key, a copy's direction or another operation's kind.

    `kind` is cpu, kernel, copy, memset, alloc or sync, `thread` who runs or asks. `samples` is the context on which a
    kernel's samples fall.
    """

    kind: str
    thread: int
    mark: Mark
    start: int
    dur: int
    what: str = ""
    size: int = 0
    samples: int = -1


@dataclass
class _Recorder:
    """Threads' and the GPU's clocks, and what has happened so far."""

    rng: np.random.Generator
    sites: Sites = field(default_factory=Sites)
    ops: list[Op] = field(default_factory=list)
    clock: dict[int, int] = field(default_factory=dict)
    free: int = 0
    launches: dict[tuple[str, str], int] = field(default_factory=dict)

    def runs(self, thread: int, mark: Mark, dur: int) -> None:
        """A thread runs in a context."""
        start = self.clock.get(thread, 0)
        self.ops.append(Op("cpu", thread, mark, start, dur))
        self.clock[thread] = start + dur

    def about(self, mean: int, spread: float = 0.06) -> int:
        """A duration near a mean."""
        return int(self.rng.integers(int(mean * (1 - spread)), int(mean * (1 + spread)) + 1))

    def step(self, plan: Sequence[Line], thread: int) -> None:
        """A thread works through the lines of a plan."""
        for name, works in plan:
            spot, to_set = self.sites.spot(name), 0
            for work in works:
                what, colon, size = work.partition(":")
                if what == "memset":
                    to_set = int(size)
                    continue
                self.runs(thread, spot.python, self.about(900_000, _HOST_SPREAD))
                self.runs(thread, spot.native, self.about(600_000, _HOST_SPREAD))
                if to_set:
                    self._sets(name, thread, to_set)
                    to_set = 0
                self.asks(name, thread, what, int(size) if colon else None)

    def asks(self, name: str, thread: int, what: str, size: int | None) -> None:
        """A thread calls CUDA for an operation: a kernel if it has no size."""
        called = self.about(700_000, _HOST_SPREAD)
        start = max(self.clock[thread] + called // 2 + _DELAY_NS, self.free)
        op = (
            self._kernel(name, thread, what, start)
            if size is None
            else self._other(name, thread, what, size, start)
        )
        self.ops.append(op)
        if op.kind in ON_DEVICE:
            self.free = op.start + op.dur
        until = op.start + op.dur if what in ("H2D", "D2H", "alloc", "sync") else 0
        self.runs(thread, self.sites.spot(name).call, max(called, until - self.clock[thread]))

    def _sets(self, name: str, thread: int, size: int) -> None:
        """A memset that the next kernel's own call makes first: that kernel starts when it ends."""
        ready = self.clock[thread] + _BEFORE_MEMSET_NS
        op = self._other(name, thread, "memset", size, max(ready, self.free))
        self.ops.append(op)
        self.free = op.start + op.dur

    def _kernel(self, name: str, thread: int, key: str, start: int) -> Op:
        launched = self.sites.kernel(name, key)
        number = self.launches[name, key] = self.launches.get((name, key), -1) + 1
        samples = launched.instructions[number % len(launched.instructions)]
        return Op(
            "kernel",
            thread,
            launched.mark,
            start,
            self.about(KERNELS[key].mean_ns),
            key,
            0,
            samples,
        )

    def _other(self, name: str, thread: int, what: str, size: int, start: int) -> Op:
        mark, copied = self.sites.operation(name, what), what in _KB_PER_S
        dur = self.about(_SHORTEST_NS[what]) + (size * MS // _KB_PER_S[what] if copied else 0)
        return Op("copy" if copied else what, thread, mark, start, dur, what, size)


def run(rng: np.random.Generator) -> tuple[list[Op], Sites, int]:
    """Return the operations of the whole program, its calling contexts, and when it ends, ns."""
    recorder = _Recorder(rng)
    _starts(recorder)
    for number in range(STEPS):
        _loads(recorder)
        recorder.step(FORWARD, MAIN_THREAD)
        _backward(recorder, first=number == 0)
        recorder.step(OPTIMISER, MAIN_THREAD)
        recorder.runs(MAIN_THREAD, recorder.sites.spot("print").python, recorder.about(2 * MS, 0.5))
    recorder.runs(MAIN_THREAD, recorder.sites.native(MAIN, EXIT), recorder.about(390 * MS))
    return recorder.ops, recorder.sites, recorder.clock[MAIN_THREAD]


def _starts(recorder: _Recorder) -> None:
    """Imports, the model, CUDA, and the model's way to the GPU."""
    spot = recorder.sites.spot
    for name, dur in (
        ("import torch", 3_900),
        ("import dynamo", 1_250),
        ("tables", 2_300),
        ("layers", 140),
    ):
        recorder.runs(MAIN_THREAD, spot(name).python, recorder.about(dur * MS // 5))
        recorder.runs(MAIN_THREAD, spot(name).native, recorder.about(dur * MS * 4 // 5))
    recorder.runs(MAIN_THREAD, spot("cuda").native, recorder.about(2_700 * MS))
    for size in BLOCKS:
        recorder.asks("model.to", MAIN_THREAD, "alloc", size)
    recorder.step([("model.to", [f"H2D:{size}" for size in PARAMETERS])], MAIN_THREAD)


def _loads(recorder: _Recorder) -> None:
    """The main thread draws a batch; OpenMP workers help and then spin for a while."""
    spot = recorder.sites.spot("batch")
    recorder.runs(MAIN_THREAD, spot.python, recorder.about(17 * MS, 0.3))
    start = recorder.clock[MAIN_THREAD]
    recorder.runs(MAIN_THREAD, spot.native, recorder.about(31 * MS, 0.3))
    for worker in range(FIRST_WORKER, FIRST_WORKER + WORKER_COUNT):
        recorder.clock[worker] = start + recorder.about(40_000)
        recorder.runs(worker, recorder.sites.native(WORKERS, WORKER), recorder.about(9 * MS, 0.3))
        recorder.runs(
            worker, recorder.sites.native(WORKERS, SPINNING), recorder.about(13 * MS, 0.3)
        )


def _backward(recorder: _Recorder, *, first: bool) -> None:
    """The engine's thread runs it; the main thread wakes it, sleeps, and is woken."""
    recorder.runs(MAIN_THREAD, recorder.sites.spot("engine").native, recorder.about(300_000))
    recorder.clock[ENGINE_THREAD] = recorder.clock[MAIN_THREAD] + recorder.about(55_000)
    if first:
        recorder.runs(
            ENGINE_THREAD, recorder.sites.spot("grad.addmm").native, recorder.about(260 * MS)
        )
        for size in BLOCKS[:2]:
            recorder.asks("grad.addmm", ENGINE_THREAD, "alloc", size)
    recorder.step(BACKWARD, ENGINE_THREAD)
    recorder.clock[MAIN_THREAD] = recorder.clock[ENGINE_THREAD] + recorder.about(60_000)

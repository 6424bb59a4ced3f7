"""Along which call paths does a DLRM's training reach the GPU, and which kernels does it launch there?

Conventions
-----------
A frame is ``library|function``, with ``@loop`` and an offset if what follows is in a loop of it; several in one text
are separated by semicolons.

Written as short texts. A Python frame is ``function@file:first line>line`` and a frame of the interpreter's C code a
bare name; files are PyTorch's, or the job's own where they begin with a dot. Native frames are those of `dlrm_sites`.
HPCToolkit has a function and a line for each frame, and knows neither file nor line of code that was built without
debugging information: `[library]:0`.

Names are the public ones of PyTorch, CUTLASS and cuBLAS. Durations are what a launch takes on average, ns; samples are
taken every PERIOD_CYCLES on each multiprocessor, and stalls are per mille of the samples, in the order of STALLS; the
rest of the samples are instructions that were issued. All figures are invented.

A context that values are booked on need not be one that a trace can show: an instruction below a line is measured and
not listed, and a kernel has a second context for traces. `Mark` names both.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import NamedTuple
from zlib import crc32

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
        row["place"]: Place(int(row["line"] or 0), row["python"], tuple(filter(None, row["native"].split("; "))))
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
    numbers = ("mean_ns", "blocks", "threads", "registers", "sampled", "static_bytes", "dynamic_bytes")
    stalls = tuple(int(row[reason.lower()]) for reason in STALLS)
    return Kernel(row["name"], stalls=stalls, loop=row["loop"] == "1", **{name: int(row[name]) for name in numbers})


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
        self.spot, self.kernel, self.operation = cache(self._spot), cache(self._kernel), cache(self._operation)
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
            line = self.paths.line(self.paths.loop(own, file, 0, kernel.module, offset + 0x80), file)
        places = [
            self.paths.instruction(line, kernel.module, offset + 16 * i, hidden=True) for i in range(_INSTRUCTIONS)
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
            offset = int(name.split()[-1], 16) if name.startswith("<unknown") else 16 * crc32(name.encode())
            at = self.paths.function(at, f"{name} [{short}]", path, offset=offset, file=f"[{short}]")
            if loop:
                at = self.paths.loop(at, f"[{short}]", 0, path, int(loop, 16))
            at = self.paths.line(at, f"[{short}]")
        return at

    def _call(self, line: int) -> Mark:
        return self._instruction(self._below(line, ("cudart|cudaLaunchKernel", "driver|<unknown procedure> 0x1f9d60")))

    def _instruction(self, line: int) -> Mark:
        """An instruction below a line, which is the one that is listed."""
        return Mark(self.paths.instruction(line, "", 0, hidden=True), line)

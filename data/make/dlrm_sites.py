"""Which calling contexts does the simulated DLRM have, and where does each kind of work book its values?

Conventions
-----------
A context that values are booked on need not be one that a trace can show: an instruction below a line is measured and
not listed, and a kernel has a second context for traces. `Mark` names both.

Functions
---------
Sites    the tree, which grows as places are asked for
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple
from zlib import crc32

from make.dlrm_frames import LIBRARIES
from make.dlrm_kernels import KERNELS
from make.dlrm_paths import HOST, JOB, NODES, PYTHON, SCRIPT, SITES, TORCH, Place
from make.hpctoolkit import Paths

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

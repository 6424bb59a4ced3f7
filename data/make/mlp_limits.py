"""How many blocks of the lab's kernels does an SM of its A100 hold, and what does ncu print of that?

Conventions
-----------
The CUDA occupancy rules, on this one GPU: warps of 32 threads, registers given out per warp in units of 256 from
quarters of the SM, 1 KiB of shared memory per block kept for the system.

Functions
---------
limits     the limits of each kernel
device     the tool's device__attribute_ metrics
launch     its launch__ and occupancy metrics
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np

from make.table5 import Kernel
from perfkit.simulate.export import CARD

SMS, WARPS, BLOCKS, REGISTERS, SHARED = (
    int(CARD[name]) for name in ("smCount", "maxWarpsPerSm", "maxBlocksPerSm", "maxRegistersPerSm", "maxShmemPerSm")
)


class Limits(NamedTuple):
    """Blocks per SM by each limit, as the tool names it."""

    warps_per_block: int
    warps: int
    registers: int
    shared_mem: int
    blocks: int

    @property
    def resident(self) -> int:
        """Blocks that an SM holds at once."""
        return min(self[1:])

    @property
    def occupancy(self) -> float:
        """Theoretical occupancy, 0..1."""
        return self.resident * self.warps_per_block / WARPS

    @property
    def limiter(self) -> list[str]:
        """The fields that are smallest."""
        return [name for name in self._fields[1:] if getattr(self, name) == self.resident]


def limits(kernels: Sequence[Kernel]) -> list[Limits]:
    """Return the limits of each kernel."""
    return [_limits(kernel) for kernel in kernels]


def _limits(kernel: Kernel) -> Limits:
    warps = ceil(kernel.block / 32)
    per_warp = ceil(kernel.registers * 32 / 256) * 256
    at_once = REGISTERS // 4 // per_warp * 4
    shared = kernel.shared_bytes + kernel.dynamic_shared_bytes + 1024
    return Limits(warps, WARPS // warps, at_once // warps, SHARED // shared, BLOCKS)


def device() -> Iterator[tuple[str, int | str]]:
    """Yield what the tool says of the GPU."""
    yield "device__attribute_display_name", CARD["name"]
    yield "device__attribute_clock_rate", int(CARD["clockRate"]) // 1000
    yield "device__attribute_max_gpu_frequency_khz", int(CARD["clockRate"]) // 1000
    yield "device__attribute_multiprocessor_count", CARD["smCount"]
    yield "device__attribute_compute_capability_major", CARD["computeMajor"]
    yield "device__attribute_compute_capability_minor", CARD["computeMinor"]
    yield "device__attribute_max_warps_per_multiprocessor", CARD["maxWarpsPerSm"]
    yield "device__attribute_max_blocks_per_multiprocessor", CARD["maxBlocksPerSm"]
    yield "device__attribute_max_registers_per_multiprocessor", CARD["maxRegistersPerSm"]
    yield "device__attribute_max_shared_memory_per_multiprocessor", CARD["maxShmemPerSm"]
    yield "device__attribute_max_threads_per_multiprocessor", 2_048
    yield "device__attribute_warp_size", CARD["threadsPerWarp"]


def launch(kernels: Sequence[Kernel], slots: Sequence[int]) -> Iterator[tuple[str, Any]]:
    """Yield the metrics of launch and occupancy: name, and a value per launch or one for all."""
    grids = np.array([prod(kernel.grids[slot]) for kernel, slot in zip(kernels, slots, strict=True)])
    blocks = np.array([kernel.block for kernel in kernels])
    static = np.array([kernel.shared_bytes for kernel in kernels])
    dynamic = np.array([kernel.dynamic_shared_bytes for kernel in kernels])
    found = limits(kernels)
    yield "launch__block_size", blocks
    yield "launch__grid_size", grids
    yield "launch__thread_count", grids * blocks
    yield "launch__registers_per_thread", np.array([kernel.registers for kernel in kernels])
    yield "launch__shared_mem_per_block_driver", 1024
    yield "launch__shared_mem_per_block_dynamic", dynamic
    yield "launch__shared_mem_per_block_static", static
    yield "launch__shared_mem_per_block", static + dynamic + 1024
    yield "launch__sm_count", SMS
    for name in ("blocks", "registers", "shared_mem", "warps"):
        yield f"launch__occupancy_limit_{name}", np.array([getattr(each, name) for each in found])
    resident = np.array([each.resident for each in found])
    yield "launch__waves_per_multiprocessor", grids / (resident * SMS)
    theoretical = np.array([100 * each.occupancy for each in found])
    yield "sm__maximum_warps_per_active_cycle_pct", theoretical
    # A grid smaller than the GPU leaves an SM with one block, however many would fit.
    warps = np.minimum(np.ceil(grids / SMS), resident) * np.ceil(blocks / 32)
    yield "sm__warps_active.avg.pct_of_peak_sustained_active", np.minimum(97.3 * warps / WARPS, theoretical)

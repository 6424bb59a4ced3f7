"""What does Nsight Compute count in the launches of a run, and what does it say of their occupancy?

A maker gives values by their names in `ncu_metrics.csv`; a metric whose value is not given is left out. Further values
follow from them: sums, what goes through the caches in sectors of 32 bytes, and the peaks of an A100. Warp cycles per
issued instruction are those of `ncu_stalls.csv`, by run and kind of kernel.

Occupancy follows from CUDA's rules on this one GPU: warps of 32 threads, registers given out per warp in units of 256
from quarters of the SM, 1 KiB of shared memory per block kept for the system.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from make import ncu
from make.kernels import Kernel, table
from make.simulate.export import CARD
from make.timeline import Float

SMS, WARPS, BLOCKS, REGISTERS, SHARED = (
    int(CARD[name])
    for name in ("smCount", "maxWarpsPerSm", "maxBlocksPerSm", "maxRegistersPerSm", "maxShmemPerSm")
)
SECTOR, DRAM_PEAK, CHANNELS = 32, 1_280, 40  # bytes, bytes per cycle, and channels of the memory
SUMS = ("dur_ns", "fp32_flops", "tensor_flops", "dram_bytes")


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


def limits(kernel: Kernel) -> Limits:
    """Return the limits of a kernel."""
    warps = ceil(kernel.block / 32)
    per_warp = ceil(kernel.registers * 32 / 256) * 256
    at_once = REGISTERS // 4 // per_warp * 4
    shared = kernel.shared_bytes + kernel.dynamic_shared_bytes + 1024
    return Limits(warps, WARPS // warps, at_once // warps, SHARED // shared, BLOCKS)


def write(
    path: Path,
    run: str,
    launches: Sequence[tuple[Kernel, int]],
    kinds: Sequence[str],
    values: Mapping[str, Any],
    *,
    label: str,
    output: Sequence[str],
) -> None:
    """Write the raw page of launches, each a kernel and its slot, with their kinds and values, to `path`."""
    loaded, stored = values["loaded"], values["stored"]
    flops = values["fadd"] + values["fmul"] + 2 * values["ffma"]
    derived = {
        "zero": 0,
        "flops": flops,
        "fma_peak": 64 * SMS,
        "dram_peak": DRAM_PEAK,
        "dram_bytes": values["read"] + values["written"],
        "sectors": loaded + stored,
        "cache_bytes": SECTOR * (loaded + stored),
    }
    given = {**derived, **values}
    metrics = {
        **{row["metric"]: _number(row["value"]) for row in table("ncu_device")},
        **dict(_launched(launches)),
        **{
            row["metric"]: given[row["value"]]
            for row in table("ncu_metrics")
            if row["value"] in given
        },
        **dict(_stalls(run, kinds)),
    }
    printed = [
        ncu.Launch(k.full_name, (*k.grids[slot], 1), (k.block, 1, 1)) for k, slot in launches
    ]
    ncu.write(path, printed, ncu.columns(metrics, len(printed)), label=label, output=output)


def truth(launches: Sequence[tuple[Kernel, int]], **columns: Sequence[Any]) -> dict[str, Any]:
    """Return what is true of each launch, and the sums of its times, operations and bytes."""
    listed = {
        "name": [kernel.full_name for kernel, _ in launches],
        "grid_blocks": [prod(kernel.grids[slot]) for kernel, slot in launches],
        "block_threads": [kernel.block for kernel, _ in launches],
        **columns,
    }
    rows = [dict(zip(listed, row, strict=True)) for row in zip(*listed.values(), strict=True)]
    return {
        "launches": rows,
        "totals": {name: sum(values) for name, values in columns.items() if name in SUMS},
    }


def _number(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def _launched(launches: Sequence[tuple[Kernel, int]]) -> Iterator[tuple[str, Any]]:
    """Yield the metrics of launch and occupancy: name, and a value per launch or one for all."""
    grids = np.array([prod(kernel.grids[slot]) for kernel, slot in launches])
    blocks, registers, static, dynamic = (
        np.array([getattr(kernel, name) for kernel, _ in launches])
        for name in ("block", "registers", "shared_bytes", "dynamic_shared_bytes")
    )
    found = [limits(kernel) for kernel, _ in launches]
    yield "launch__block_size", blocks
    yield "launch__grid_size", grids
    yield "launch__thread_count", grids * blocks
    yield "launch__registers_per_thread", registers
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
    yield (
        "sm__warps_active.avg.pct_of_peak_sustained_active",
        np.minimum(97.3 * warps / WARPS, theoretical),
    )


def _stalls(run: str, kinds: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the warp cycles per issued instruction by reason, and their sum."""
    rows = {row.pop("kind"): row for row in table("ncu_stalls") if row.pop("run") == run}
    latency: Float = np.zeros(len(kinds))
    for reason in (name for name, value in next(iter(rows.values())).items() if value):
        value = np.array([float(rows[kind][reason]) for kind in kinds])
        latency = latency + value
        yield f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio", value
    yield "smsp__average_warp_latency_per_inst_issued.ratio", latency
    yield "smsp__issue_active.avg.per_cycle_active", 1 / latency

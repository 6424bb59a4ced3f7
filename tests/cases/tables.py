"""Situations that are made of tables: with their cause, or without."""

from callpaths import call_metrics, calltree, thread_metrics, threads
from counted import counters, launches
from frames import profile
from sampled import devices

from perfkit.run import Run

THREADS = 135
BUSY_S, WAITING_S = 0.713, 0.287  # of each second of a thread's time


def a_last_wave_of_one_block(has_cause: bool) -> Run:
    """Ten launches of blocks of which an SM holds one; 133 of them, or 132, on 132 SMs (d14).

    Two waves take twice the time of one, and in the second 131 of 132 SMs have no work.
    """
    blocks = 133 if has_cause else 132
    half = 2 if has_cause else 1
    measured = {
        "name": "attention",
        "grid_blocks": blocks,
        "block_threads": 1024,
        "dur_ns": 1_000_000.0 * half,
        "clock_hz": 1.6e9,
        "sm_frac": 0.92 / half,
        "memory_frac": 0.4 / half,
        "dram_frac": 0.2 / half,
        "achieved_occupancy_frac": 0.49,
        "theoretical_occupancy_frac": 0.5,
    }
    counted = {
        "launch__waves_per_multiprocessor": blocks / 132,
        "launch__occupancy_limit_registers": 1.0,
        "launch__occupancy_limit_shared_mem": 1.0,
        "launch__occupancy_limit_warps": 2.0,
        "launch__occupancy_limit_blocks": 32.0,
        "launch__registers_per_thread": 64.0,
    }
    tables = {
        "LAUNCHES": launches(*[measured] * 10),
        "COUNTERS": counters(*[counted] * 10),
        "DEVICES": devices("NVIDIA H100 80GB HBM3", compute_capability="9.0", sm_count=132),
    }
    return Run([profile("ncu", "run.ncu-rep", None, 0, **tables)])


def waiting_at_an_openmp_barrier(has_cause: bool) -> Run:
    """A CPU program whose 135 threads wait at the barrier of one region for 28.7 % of their time (f5)."""
    waiting = WAITING_S if has_cause else 0.002
    total, busy = float(THREADS), THREADS * (BUSY_S if has_cause else 1 - waiting)
    tree = calltree(
        {"node": 1, "name": "main thread"},
        {"node": 2, "parent": 1, "name": "main", "module": "/app/relax"},
        {"node": 3, "parent": 2, "name": "relax_cells (parallel region)", "module": "/app/relax"},
        {"node": 4, "parent": 3, "name": "update_cell", "module": "/app/relax"},
        {"node": 5, "parent": 3, "name": "<omp barrier wait>", "module": "/lib/libomp.so"},
    )
    spent = (
        (1, total, 0.0),
        (2, total, 0.0),
        (3, total, 0.0),
        (4, busy, busy),
        (5, total - busy, total - busy),
    )
    metrics = call_metrics(
        *((node, "CPUTIME", "s", inclusive, own) for node, inclusive, own in spent)
    )
    numbers = range(1, THREADS + 1)
    tables = {
        "CALLTREE": tree,
        "CALL_METRICS": metrics,
        "THREADS": threads(*((number, "cpu", f"thread {number}") for number in numbers)),
        "THREAD_METRICS": thread_metrics(
            *((number, "main thread", "CPUTIME", "s", 1.0) for number in numbers)
        ),
    }
    return Run([profile("hpctoolkit", "database", 0, 10**9, **tables)])

"""Small logs as nccl-tests (its printf formats), its option -J and NCCL_DEBUG=INFO write them."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

H100 = "NVIDIA H100 80GB HBM3"
Half = tuple[object, ...]  # time in us, algbw, busbw, #wrong, ...

# Size, elements, out of place, in place: an all-reduce of 8 ranks (busbw = 1.75 algbw).
ROWS = (
    (8, 2, ("12.34", "0.00", "0.00", 0), ("12.30", "0.00", "0.00", 0)),
    (134217728, 33554432, ("613.3", "218.85", "382.99", 0), ("614.0", "218.60", "382.54", 0)),
    (8589934592, 2147483648, ("31533", "272.41", "476.72", 0), ("31441", "273.20", "478.11", 0)),
)
BEFORE = ("size", "count", "type", "redop", "root")
MEASURED = ("time", "algbw", "busbw", "#wrong")
PER_ITERATION = ("i_min", "i_max", "i_p99", "i_cv%")


def devices(ranks: int = 8, per_node: int = 8, group: str = "Group  0 ") -> list[str]:
    return [
        f"#  Rank {r:2d} {group}Pid {4000 + r:6d} on      node{r // per_node} "
        f"device {r % per_node:2d} [0000:{r % per_node:02x}:00] {H100}"
        for r in range(ranks)
    ]


def header(
    before: Sequence[str] = BEFORE, measured: Sequence[str] = MEASURED, after: str = ""
) -> list[str]:
    width = dict(zip(BEFORE, (10, 12, 8, 6, 6), strict=True))
    names = "  ".join(f"{name:>{width[name]}}" for name in before)
    half = "  ".join(
        f"{name:>{7 if name in ('time', 'cputime', *PER_ITERATION) else 6}}" for name in measured
    )
    units = "".join(f"{'(us)' if name == 'time' else '':>8}" for name in measured)
    return [
        f"# {' ' * len(names)}           out-of-place                       in-place          ",
        f"# {names}  {half}  {half} {after}",
        f"# {'(B)':>10}  {'(elements)':>12}{units}{units}",
    ]


def start(
    size: int, count: int, dtype: str = "float", redop: str | None = "sum", root: int | None = -1
) -> str:
    rest = (f"  {redop:>6}" if redop is not None else "") + (
        f"  {root:>6}" if root is not None else ""
    )
    return f"{size:>12}  {count:>12}  {dtype:>8}{rest}"


def half(cells: Half) -> str:
    time, algbw, busbw, *rest = cells
    return f"  {time:>7}  {algbw:>6}  {busbw:>6}" + "".join(f"  {cell!s:>6}" for cell in rest)


def rows(
    dtype: str = "float", redop: str | None = "sum", root: int | None = -1, after: str = ""
) -> list[str]:
    return [
        start(size, count, dtype, redop, root) + half(out) + half(into) + after
        for size, count, out, into in ROWS
    ]


FOOTER = ("# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 286.728 ", "#")


def table(
    program: str = "all_reduce_perf", inner: Sequence[str] = (), ranks: int = 8, per_node: int = 8
) -> list[str]:
    """The output of a test of version 2.17 and later."""
    return [
        "# nccl-tests version 2.17.8 nccl-headers=22902 nccl-library=22902",
        f"# Collective test starting: {program}",
        *old_table(inner or rows(), ranks, per_node),
        f"# Collective test concluded: {program}",
    ]


def old_table(
    inner: Sequence[str], ranks: int = 8, per_node: int = 8, above: Sequence[str] = ()
) -> list[str]:
    """The output of a test of before 2.17, which does not say which it is."""
    return [
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 validation: 1",
        "#",
        "# Using devices",
        *devices(ranks, per_node),
        "#",
        *(above or header()),
        *inner,
        *FOOTER,
    ]


def written(path: Path, lines: Iterable[str], prefix: str = "") -> Path:
    path.write_text("".join(f"{prefix}{line}\n" for line in lines))
    return path


def result(
    size: int, count: int, out: Half | None, into: Half | None, **more: Any
) -> dict[str, Any]:
    def measured(cells: Half) -> dict[str, Any]:
        time, algbw, busbw, wrong = cells
        return {
            "time": float(str(time)),
            "alg_bw": float(str(algbw)),
            "bus_bw": float(str(busbw)),
            "nwrong": wrong,
        }

    halves = {"out_of_place": out and measured(out), "in_place": into and measured(into)}
    told = {
        "size": size,
        "count": count,
        "type": "float",
        "redop": "sum",
        "root": "    -1",
        **halves,
        **more,
    }
    return {**told, "actual_iterations": 20, "experiment_name": ""}


def report(**more: Any) -> dict[str, Any]:
    named = {"group": 0, "pid": 1, "device": 0, "device_hex": "0000:00:00", "device_info": H100}
    config = {
        "nthreads": 1,
        "ngpus": 4,
        "minimum_bytes": 8,
        "maximum_bytes": 8589934592,
        "step_factor": 2,
    }
    listed = [{"rank": 4 * node, "hostname": f"node{node}", **named} for node in (0, 1)]
    told = {
        "version": 2,
        "start_time": "2025-01-31 12:00:00",
        "args": ["./build/all_reduce_perf", "-g", "4"],
    }
    told |= {
        "env": ["TOKEN=secret"],
        "nccl_version": 22902,
        "config": {**config, "devices": listed},
    }
    told |= {"results": [result(*row) for row in (*ROWS, *ROWS, *ROWS)]}
    told |= {"out_of_bounds": {"count": 0, "okay": "true"}}
    told |= {"average_bus_bandwidth": {"bandwidth": 286.728, "okay": "unchecked"}, "errors": [""]}
    return {**told, "end_time": "2025-01-31 12:01:00", **more}


def reported(path: Path, told: dict[str, Any]) -> Path:
    path.write_text(json.dumps(told, separators=(",", ":")))
    return path


def said(text: str, rank: int = 0, level: str = "INFO", host: str = "node0") -> str:
    return f"{host}:{1000 + rank}:{2000 + rank} [{rank}] NCCL {level} {text}"


def init(rank: int, ranks: int, nodes: int = 1, comm: str = "0xaaa") -> list[str]:
    told = f"nRanks {ranks} nNodes {nodes} localRanks {ranks // nodes} localRank 0 MNNVL 0"
    device = f"cudaDev {rank} nvmlDev {rank} busId {rank}000 commId 0x123"
    done = f"ncclCommInitRank comm {comm} rank {rank} nranks {ranks} {device} - Init COMPLETE"
    return [said(f"comm {comm} rank {rank} {told}", rank), said(done, rank)]


def call(
    name: str, count: int, dtype: int = 7, ranks: int = 2, rank: int = 0, number: int = 0
) -> str:
    """A call of a rank; NCCL counts the calls in hexadecimal."""
    told = f"sendbuff 0x7f0000000000 recvbuff (nil) count {count} datatype {dtype} op 0 root 0 comm 0xaaa"
    return said(f"{name}: opCount {number:x} {told} [nranks={ranks}] stream 0x55e29067e430", rank)


def sample(path: Path) -> Path:
    """The log of rank 0 of two: its ring, tree, connection and calls."""
    lines = [
        "NCCL version 2.20.5+cuda12.4",
        said("Bootstrap : Using eth0:10.0.0.1<0>"),
        said("Using network IB"),
        *init(0, 2),
        said("Channel 00/02 :    0   1"),
        said("Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->1"),
        said("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"),
        *(call("AllReduce", 1024, number=n) for n in range(9, 12)),
    ]
    return written(path, lines)

"""How fast this machine multiplies matrices and copies memory, measured with PyTorch on its GPU, else its CPU.

Work is warmed up and repeated; on a GPU events in its stream take the time of a repeat. Rates are of the median. A
product of two square matrices of n rows is 2 n^3 FLOP (Golub, Van Loan: Matrix Computations, 1.1), on random numbers:
with zeros a GPU draws less power and clocks higher. A copy inside one memory reads and writes every byte; one over a
link moves it once. A rate above 110 % of the data sheet's peak is refused with a PerfkitError: something else was
timed.
"""

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TextIO

import pandas as pd

from perfkit import hardware
from perfkit.errors import PerfkitError
from perfkit.format import number, percent
from perfkit.schema import Column, Table
from perfkit.workloads import pytorch

TIMES = (
    Column("count", "int64", "repeats"),
    Column("median_ns", "float64", "time of the median repeat"),
    Column("min_ns", "float64", "time of the fastest repeat"),
    Column("max_ns", "float64", "time of the slowest repeat"),
)
BEYOND = 1.1  # of a peak: more than boost clocks and the rounding of data sheets explain
Work = Callable[[], object]
WARM_UP, LEAST, MOST = 3, 5, 100  # repeats
CALLS = WARM_UP + 2 + LEAST  # at least, for the times of one work
CPU_INFO = Path("/proc/cpuinfo")


class Device(NamedTuple):
    """PyTorch and what it computes on; `kind` is cuda or cpu, `capability` the compute capability of a GPU."""

    torch: Any
    kind: str
    name: str
    capability: tuple[int, int] | None = None

    def times(self, work: Work, seconds: float) -> list[float]:
        """Return the times of repeats of `work`, ns: as many as fit into `seconds`, but at least 5 and at most 100."""
        clock = _on_cpu if self.capability is None else self._on_gpu
        clock(work, WARM_UP)
        fit = seconds * 1e9 / max(min(clock(work, 2)), 1)
        return clock(work, int(min(max(fit, LEAST), MOST)))

    def fits(self, size_bytes: int) -> bool:
        """Say whether half of the GPU's free memory holds so much; the memory of a CPU is left to the system."""
        return self.capability is None or 2 * size_bytes <= self.torch.cuda.mem_get_info()[0]

    def _on_gpu(self, work: Work, repeats: int) -> list[float]:
        marks = [self.torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
        marks[0].record()
        for mark in marks[1:]:
            work()
            mark.record()
        self.torch.cuda.synchronize()
        return [first.elapsed_time(then) * 1e6 for first, then in pairwise(marks)]  # ms


COPY_RATES = Table(
    "COPY_RATES",
    "a direction of copies and a kind of memory",
    (
        Column("direction", "category", "H2D, D2H, D2D; H2H on a CPU"),
        Column("memory", "category", "of the host: pinned, pageable; device for D2D"),
        Column("bytes", "int64", "size of what is copied"),
        *TIMES,
        Column(
            "bytes_per_s",
            "float64",
            "bytes moved (twice the size inside one memory) over the median time",
        ),
        Column(
            "peak_frac",
            "float64",
            "of the data sheet's memory bandwidth; NaN where not known, and over a link",
        ),
    ),
    ("direction", "memory"),
)
INSIDE = ("D2D", "H2H")  # one memory, which is read and written
GPU_BYTES, CPU_BYTES = 2**28, 2**29  # more than the caches hold
GEMMS = Table(
    "GEMMS",
    "a size of matrices in a precision",
    (
        Column(
            "precision",
            "category",
            "fp32, tf32_tensor, ... as in `hardware.PRECISIONS`; bf16 on a CPU",
        ),
        Column("rows_count", "int64", "rows of each of the square matrices"),
        Column("flops", "int64", "FLOP of a product, 2 rows^3"),
        *TIMES,
        Column("flops_per_s", "float64", "FLOP over the median time"),
        Column(
            "peak_frac", "float64", "of the data sheet's dense peak; NaN where that is not known"
        ),
    ),
    ("precision", "rows_count"),
)
CEILINGS = Table(
    "MEASURED_CEILINGS",
    "a precision",
    (
        Column("precision", "category", "as in GEMMS"),
        Column("flops_per_s", "float64", "the highest rate of its sizes"),
        Column(
            "is_plateau",
            "bool",
            "the largest size is less than 2 % faster than the best of the smaller ones",
        ),
    ),
    ("precision",),
)
FIRST = 256  # rows
SIZES = 8  # about as many sizes share the time of a precision
RISE = 1.02  # a rate that grows by less from size to size has reached its plateau
KIND = "perfkit baseline"
TABLES = {"gemm": GEMMS, "copy": COPY_RATES}
UNITS = {
    "_ns": "nanoseconds",
    "_flops": "floating-point operations",
    "_bytes": "bytes",
    "_count": "a number of things",
    "_frac": "a fraction of 1",
    "_per_s": "per second",
}


def copy(*, seconds: float = 1.0, size_bytes: int | None = None) -> pd.DataFrame:
    """Return the bandwidth of copies: of a GPU with the host's pinned and pageable memory, and inside its own.

    Without a GPU it is that of copies inside the memory of the CPU, every byte of which has been written before. Each
    direction and memory takes about `seconds`, above 0. What is copied has `size_bytes`; 256 MiB when omitted, 512 MiB
    on a CPU: more than the caches hold. Returns COPY_RATES, one row per direction and memory. Raises PerfkitError if
    the GPU lacks the memory.
    """
    above_zero(seconds)
    if size_bytes is not None and size_bytes <= 0:
        raise ValueError(f"size_bytes: {size_bytes} is not above 0")
    used = device()
    size = size_bytes or (CPU_BYTES if used.capability is None else GPU_BYTES)
    sheet = hardware.peaks(used.name)
    rows = []
    for direction, memory, work in _copies(used, size):
        inside = direction in INSIDE
        row = timed(used.times(work, seconds), "bytes_per_s", size * (2 if inside else 1))
        peak = sheet.memory_bytes_per_s if sheet and inside else None
        frac = peak_frac(used.name, f"copies {direction}", row["bytes_per_s"], peak, "B/s")
        rows.append(
            {"direction": direction, "memory": memory, "bytes": size, **row, "peak_frac": frac}
        )
    return COPY_RATES.make(pd.DataFrame(rows))


def _copies(used: Device, size: int) -> Iterator[tuple[str, str, Work]]:
    """Yield direction, memory and work of the copies."""
    torch = used.torch

    def there(**where: Any) -> Any:
        return torch.ones(size, dtype=torch.uint8, **where)

    if used.capability is None:
        source, target = there(), there()
        yield "H2H", "pageable", partial(target.copy_, source)
        return
    if not used.fits(2 * size):
        raise PerfkitError(
            f"GPU memory: less than {4 * size} bytes are free. End what else runs on {used.name}."
        )
    near, other = there(device="cuda"), there(device="cuda")
    yield "D2D", "device", partial(other.copy_, near)
    for memory in ("pinned", "pageable"):
        host = there().pin_memory() if memory == "pinned" else there()
        yield "H2D", memory, partial(near.copy_, host, non_blocking=True)
        yield "D2H", memory, partial(host.copy_, near, non_blocking=True)


def gemm(*, seconds: float = 2.0, most_rows: int = 16384) -> pd.DataFrame:
    """Return the rate of matrix products of this machine in each precision, from small sizes up to the plateau.

    Sizes double until two in succession are less than 2 % faster than the best before, or the next one exceeds
    `most_rows` (256 or more), half of the free memory of the GPU, or what is left of `seconds`, the time for each
    precision, about, above 0. Clocks fall with heat and power: more of it shows a rate that lasts. FP32 is computed as
    such, TF32 with PyTorch's ``set_float32_matmul_precision("high")``, which is set back afterwards. Returns GEMMS, one
    row per precision and size.
    """
    above_zero(seconds)
    if most_rows < FIRST:
        raise ValueError(f"most_rows: {most_rows} is below {FIRST}")
    used = device()
    rows = [
        row
        for precision, dtype in _precisions(used)
        for row in _sizes(used, precision, dtype, seconds, most_rows)
    ]
    return GEMMS.make(pd.DataFrame(rows))


def ceilings(gemms: pd.DataFrame) -> pd.DataFrame:
    """Return MEASURED_CEILINGS: the highest rate of each precision in GEMMS, and whether that is a plateau."""
    rows = []
    for precision, sizes in GEMMS.check(gemms).groupby("precision", observed=True):
        *smaller, last = sizes.sort_values("rows_count", kind="stable")["flops_per_s"]
        is_plateau = bool(smaller) and last < RISE * max(smaller)
        rows.append(
            {
                "precision": precision,
                "flops_per_s": max(*smaller, last, 0),
                "is_plateau": is_plateau,
            }
        )
    return CEILINGS.make(pd.DataFrame(rows, columns=CEILINGS.column_names))


def _precisions(used: Device) -> list[tuple[str, Any]]:
    """Return the precisions that the device computes in, as in `hardware.PRECISIONS`, with PyTorch's types.

    Tensor cores know FP16 since compute capability 7.0, BF16 and TF32 since 8.0 (CUDA C++ Programming Guide).
    """
    torch, capability = used.torch, used.capability
    if capability is None:
        return [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
    precisions = [
        ("fp32", torch.float32),
        ("fp16_tensor" if capability >= (7, 0) else "fp16", torch.float16),
    ]
    if capability >= (8, 0):
        precisions.append(("bf16_tensor", torch.bfloat16))
        if not torch.version.hip:
            precisions.append(("tf32_tensor", torch.float32))
    return precisions


def _sizes(
    used: Device, precision: str, dtype: Any, seconds: float, most_rows: int
) -> Iterator[dict[str, Any]]:
    """Yield what was measured of each size, up to the plateau."""
    sheet = hardware.peaks(used.name)
    peak = sheet.flops_per_s.get(precision) if sheet else None
    rows, best, level = FIRST, 0.0, 0
    end = time.monotonic() + seconds
    while True:
        flops = 2 * rows**3
        row = timed(_products(used, precision, dtype, rows, seconds / SIZES), "flops_per_s", flops)
        rate = row["flops_per_s"]
        frac = peak_frac(used.name, precision, rate, peak, "FLOP/s")
        yield {"precision": precision, "rows_count": rows, "flops": flops, **row, "peak_frac": frac}
        level = level + 1 if rate < RISE * best else 0
        best, rows = max(best, rate), 2 * rows
        is_late = (
            time.monotonic() + CALLS * 8 * row["min_ns"] / 1e9 > end
        )  # twice the rows are eight times the FLOP
        if level == 2 or rows > most_rows or is_late or not used.fits(3 * rows**2 * dtype.itemsize):
            return


def _products(used: Device, precision: str, dtype: Any, rows: int, seconds: float) -> list[float]:
    torch = used.torch
    random = torch.Generator(used.kind).manual_seed(0)
    first, second = (
        torch.randn(rows, rows, generator=random, device=used.kind).to(dtype) for _ in range(2)
    )
    product = torch.empty_like(first)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32_tensor" else "highest")
    try:
        return used.times(lambda: torch.mm(first, second, out=product), seconds)
    finally:
        torch.set_float32_matmul_precision(before)


def above_zero(seconds: float) -> None:
    """Raise ValueError if a time is not above 0."""
    if not seconds > 0:
        raise ValueError(f"seconds: {seconds} is not above 0")


def timed(times: list[float], rate: str, amount: int) -> dict[str, Any]:
    """Return what `TIMES` says of repeats (ns), and under the name `rate` the amount per second of the median one."""
    spread = {"median_ns": median(times), "min_ns": min(times), "max_ns": max(times)}
    return {"count": len(times), **spread, rate: amount / (spread["median_ns"] / 1e9)}


def peak_frac(name: str, what: str, rate: float, peak: float | None, unit: str) -> float:
    """Return the rate's share of the peak, NaN if none is known; above 110 % it is refused."""
    if peak is None:
        return float("nan")
    if rate > BEYOND * peak:
        raise PerfkitError(
            f"{what} on {name}: measured {number(rate / 1e12)} T{unit}, {percent(rate / peak)} of the peak, so another "
            "work was timed. Unset NVIDIA_TF32_OVERRIDE, compare the name with `nvidia-smi -L`, and measure again."
        )
    return rate / peak


def device() -> Device:
    """Return what PyTorch computes on."""
    torch = pytorch()
    if torch.cuda.is_available():
        return Device(
            torch, "cuda", torch.cuda.get_device_name(), torch.cuda.get_device_capability()
        )
    return Device(torch, "cpu", cpu_name())


def _on_cpu(work: Work, repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        start = time.perf_counter_ns()
        work()
        times.append(float(time.perf_counter_ns() - start))
    return times


def cpu_name() -> str:
    """Return what the processor calls itself."""
    try:
        lines = CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def saved(
    out: str | Path, *, gemm: pd.DataFrame | None = None, copy: pd.DataFrame | None = None
) -> tuple[Path, Path]:
    """Save what was measured on this machine, beside what the file already holds of it.

    `out` is a JSON file, made or completed, with device, PyTorch's version, date, units and rows, NaN as null; what it
    says of the same kind of work is replaced. Beside it, the second path returned, lies a CSV file that
    `hardware.load_peaks` reads: the highest rate of each precision, and the bandwidth of copies inside the device's
    memory. `gemm` and `copy` are GEMMS and COPY_RATES, at least one. Raises ValueError if there is nothing to save, or
    `out` does not end in .json; PerfkitError if it holds something else or the baseline of another device, or a file
    cannot be written.
    """
    out = Path(out)
    content = held(out)
    measured = {
        kind: frame for kind, frame in (("gemm", gemm), ("copy", copy)) if frame is not None
    }
    if not measured:
        raise ValueError("gemm, copy: neither is given")
    stamp = {
        "date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "torch": str(device().torch.__version__),
    }
    for kind, frame in measured.items():
        rows = (
            TABLES[kind].check(frame).astype(object).where(frame.notna(), None).to_dict("records")
        )
        content[kind] = {**stamp, "rows": rows}
    row = _peaks(content)
    _replace(
        out, lambda file: json.dump(content, file, indent=1, ensure_ascii=False, allow_nan=False)
    )
    _replace(
        out.with_suffix(".csv"),
        lambda file: pd.DataFrame([row]).to_csv(file, index=False, lineterminator="\n"),
    )
    return out, out.with_suffix(".csv")


def held(out: str | Path) -> dict[str, Any]:
    """Return what a file says of this device, or the beginning of a new one; refused as by `saved`."""
    out = Path(out)
    if out.suffix != ".json":
        raise ValueError(f"out: {out} does not end in .json")
    used = device()
    described: dict[str, Any] = {"name": used.name, "kind": used.kind}
    if used.capability is None:
        described["threads_count"] = used.torch.get_num_threads()
    else:
        gpu = used.torch.cuda.get_device_properties(used.torch.cuda.current_device())
        described["compute_capability"] = ".".join(map(str, used.capability))
        described["sm_count"] = gpu.multi_processor_count
    fresh = {"kind": KIND, "perfkit": version("perfkit"), "device": described, "units": UNITS}
    if not out.exists():
        if out.with_suffix(".csv").exists():
            raise PerfkitError(
                f"{out.with_suffix('.csv')}: the file is there already. Choose another name, or remove it."
            )
        return fresh
    try:
        content = json.loads(out.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise PerfkitError(
            f"{out}: cannot be read as JSON ({e}). Choose another name, or remove it."
        ) from e
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise PerfkitError(f"{out}: holds something else than a baseline. Choose another name.")
    if content.get("device") != described:
        raise PerfkitError(
            f"{out}: holds the baseline of another device than {used.name}. Choose another name."
        )
    return {**fresh, **{kind: content[kind] for kind in TABLES if kind in content}}


def _peaks(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of gpus.csv: what was measured, in its units."""
    limits = {
        name: str(content["device"].get(name, "")) for name in ("compute_capability", "sm_count")
    }
    row = {"name_nvidia_smi": content["device"]["name"], **limits}
    for product in content.get("gemm", {}).get("rows", []):
        column = hardware.PRECISIONS.get(product["precision"])
        if column:
            row[column] = max(row.get(column, 0.0), product["flops_per_s"] / 1e12)
    for copies in content.get("copy", {}).get("rows", []):
        if copies["direction"] in INSIDE:
            row["mem_bw_gbs"] = copies["bytes_per_s"] / 1e9
    stamps = [content[kind] for kind in TABLES if kind in content]
    source = f"measured by perfkit baseline with PyTorch {', '.join(sorted({stamp['torch'] for stamp in stamps}))}"
    return {**row, "source": source, "as_of": max(stamp["date"] for stamp in stamps)[:10]}


def _replace(path: Path, write: Callable[[TextIO], object]) -> None:
    """Write a file under another name, and rename it when it is whole."""
    part = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        with part.open("w", encoding="utf-8", newline="") as file:
            write(file)
        os.replace(part, path)
    except OSError as e:
        raise PerfkitError(
            f"{path}: cannot be written ({e.strerror}). Choose another place."
        ) from e
    finally:
        part.unlink(missing_ok=True)

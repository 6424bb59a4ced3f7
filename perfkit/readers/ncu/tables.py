"""A report of Nsight Compute, its tables (LAUNCHES, COUNTERS, STALLS, RULES, DEVICES, CAPTURE), and what is missing.

COUNTERS holds every number of the report but the attributes of the device, also those LAUNCHES and
STALLS are made of, so that each figure can be traced. STALLS holds one form per launch, never a
mixture: average warps per issued instruction where measured, else warp cycles, else samples; the
other forms stay in COUNTERS. Reasons are named as in the metrics (`long_scoreboard`); `selected` is
the state of issuing, not a stall.
Bytes are those of `dram__bytes`, `lts__t_bytes` and `l1tex__t_bytes`, or 32 per sector; the L1 ones
pass its tag stage (global, local, surface, texture), shared memory does not.
An addition or multiplication is 1 FLOP, a fused multiply-add 2. Half-precision instructions on CUDA
cores work on two packed values: 2 and 4, as in NVIDIA's own half-precision roofline. NaN is not
measured, never zero.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit import names, tables
from perfkit.profile import Missing
from perfkit.readers.text import category

Values = NDArray[np.float64]
_EXACT = 2**53  # above, float64 leaves whole numbers out
_WHOLE = {  # metrics that become integers, and the largest that fits
    **dict.fromkeys(("launch__grid_size", "launch__block_size"), _EXACT),
    **dict.fromkeys(("launch__device_id", "device__attribute_device_index"), 2**31 - 1),
    **dict.fromkeys(
        ("device__attribute_multiprocessor_count", "device__attribute_total_memory"), _EXACT
    ),
}
OPS = ("add", "mul", "fma")
FLOPS = {"fp64": ("d", (1, 1, 2)), "fp32": ("f", (1, 1, 2)), "fp16": ("h", (2, 2, 4))}
V100_FLOP_PER_INSTRUCTION = (
    512  # one HMMA.884 step; no other GPU has one number for all its tensor instructions
)
# Tensor operations are counted per type of operand, some also per instruction (hgmma, hmma) and by
# sparsity.
TENSOR = re.compile(
    r"(?:sm|smsp)__(?P<name>ops_path_tensor(?:_op_(?P<op>[a-z]+))?(?P<types>_src_\w+?)"
    r"(?P<sparsity>_sparsity_(?:on|off))?)"
    r"\.sum(?:\.per_second|\.per_cycle_elapsed)?"
)
_PIPES = (
    "pipe_(tensor|tc)_cycles_active",
    r"pipe_tensor_\w+_cycles_active",
    r"inst_executed_pipe_tensor\w*",
)
TENSOR_PIPES = [
    re.compile(rf"sm__{pipe}\.avg\.pct_of_peak_sustained_{over}")
    for pipe in _PIPES
    for over in ("elapsed", "active")
]
SECTOR_BYTES = 32
DRAM_BYTES = (
    ("dram__bytes_read", "dram__bytes_write"),
    ("dram__bytes_op_read", "dram__bytes_op_write"),
)
L1_SECTORS = [f"lsu_mem_{space}_op_{op}" for space in ("global", "local") for op in ("ld", "st")]
L1_RARE_SECTORS = [  # absent where the chip or the collected set has none
    *(f"lsu_mem_global_op_{op}" for op in ("atom", "red")),
    *(f"tex_mem_surface_op_{op}" for op in ("ld", "st", "atom", "red")),
    "tex_mem_texture",
]
FRACTIONS = {
    "achieved_occupancy_frac": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
    "theoretical_occupancy_frac": ("sm__maximum_warps_per_active_cycle_pct",),
    "sm_frac": ("sm__throughput.avg.pct_of_peak_sustained_elapsed",),
    "memory_frac": ("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",),
    "dram_frac": (
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    ),
}
ATTRIBUTE = "device__attribute_"
# The attributes from which the limits of an SM are computed; there are hundreds of others.
LIMITS = {
    f"{ATTRIBUTE}{name}"
    for name in (
        "max_warps_per_multiprocessor",
        "max_registers_per_multiprocessor",
        "max_shared_memory_per_multiprocessor",
        "max_blocks_per_multiprocessor",
        "multiprocessor_count",
        "compute_capability_major",
    )
}
# the whole of a reason, not its parts
_STALLED = r"issue_stalled_(?!\w*(?:_pipe_(?!throttle)|_not_issued))(\w+?)"
STALL_FORMS = [
    re.compile(form)
    for form in (
        rf"smsp__average_warps_{_STALLED}_per_issue_active\.ratio",
        rf"smsp__average_warp_latency_{_STALLED}\.ratio",
        rf"smsp__pcsamp_warps_{_STALLED}",
        r"smsp__pcsamp_warps_issue_stalled_(\w+)_not_issued",
        rf"smsp__warp_{_STALLED}_per_warp_active\.pct",
    )
]
SPELLINGS = {"no_instructions": "no_instruction"}  # the sampled counters use the plural
CORE = "sm__sass_thread_inst_executed_op_"
OUT = " -o report PROGRAM"
REMEDIES = {
    "dur_ns": ("How long did each launch take?", f"ncu --metrics gpu__time_duration.sum{OUT}"),
    "fp32_flops": (
        "How many floating-point operations ran on CUDA cores?",
        "ncu --set full --metrics "
        + ",".join(f"{CORE}{p}{op}_pred_on.sum" for p in "dfh" for op in ("add", "mul", "fma"))
        + OUT,
    ),
    "tensor_flops": (
        "How many operations ran on tensor cores?",
        f"ncu --set full --metrics 'regex:sm__ops_path_tensor_.*sum$'{OUT}",
    ),
    "dram_bytes": (
        "How many bytes did the kernels read and write in GPU memory?",
        f"ncu --metrics dram__bytes_read.sum,dram__bytes_write.sum{OUT} "
        "(GeForce RTX 50: dram__bytes_op_read.sum,dram__bytes_op_write.sum)",
    ),
    "sm_frac": ("Which share of their peak did the SMs reach?", f"ncu --section SpeedOfLight{OUT}"),
    "memory_frac": (
        "Which share of its peak did the memory reach?",
        f"ncu --section SpeedOfLight{OUT}",
    ),
}


@dataclass(frozen=True)
class Launch:
    """Who was measured: what is not a counter. Unknown is -1 for ids, None for sizes, empty for text."""

    full_name: str
    gpu: int = -1
    grid_blocks: int | None = None
    block_threads: int | None = None
    capability: str = ""
    device_name: str = ""


@dataclass(frozen=True)
class Rule:
    """One message of the guided analysis; `speedup_frac` is NaN and `scope` None when it gives no estimate."""

    launch: int
    rule: str
    message: str
    speedup_frac: float = float("nan")
    scope: str | None = None


@dataclass(frozen=True)
class Report:
    """Launches by position (ids start again with each process), and their metrics in base units; NaN: not measured."""

    launches: Sequence[Launch]
    values: pd.DataFrame
    units: dict[str, str]
    rules: Sequence[Rule] = ()
    version: str = ""
    notes: tuple[str, ...] = field(default=())
    is_simulated: bool = False

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics that any launch may have."""
        return [str(metric) for metric in self.values.columns]

    def column(self, *metrics: str) -> NDArray[np.float64]:
        """Return the first of these metrics that a launch has; NaN where it has none."""
        columns = [self.values[metric].to_numpy() for metric in metrics if metric in self.values]
        return first(np.full(len(self.launches), np.nan), *columns)


TABLE_REMEDIES = {
    "STALLS": (
        "Why did the warps wait (stall reasons)?",
        f"ncu --section WarpStateStats --section SourceCounters{OUT}",
    ),
    "RULES": (
        "Which advice does Nsight Compute give?",
        "ncu --set full --csv --page details PROGRAM > report.csv",
    ),
    "DEVICES": (
        "Which GPU was used, and what are its limits?",
        "ncu --import REPORT --csv --page raw",
    ),
}


def has_counters(report: Report) -> bool:
    """Say whether COUNTERS has a row."""
    return bool(report.values[_counters(report)].notna().any(axis=None))


def _counters(report: Report) -> list[str]:
    return sorted(
        metric for metric in report.metrics if metric in LIMITS or not metric.startswith(ATTRIBUTE)
    )


def counters(report: Report) -> pd.DataFrame:
    """Return COUNTERS: one row per number of a launch."""
    metrics = _counters(report)
    values = report.values[metrics].to_numpy()
    launch, metric = np.nonzero(~np.isnan(values))
    frame = {
        "rank": 0,
        "launch": launch,
        "metric": category(metric, metrics),
        "unit": category(metric, [report.units.get(name, "") for name in metrics]),
        "value": values[launch, metric],
    }
    return tables.COUNTERS.make(pd.DataFrame(frame))


def stalls(report: Report) -> pd.DataFrame:
    """Return STALLS: one row per reason of a launch, in the first form the launch has."""
    without = np.ones(len(report.launches), bool)
    parts = []
    for form in STALL_FORMS:
        reasons = {
            metric: found[1] for metric in report.metrics if (found := form.fullmatch(metric))
        }
        values = report.values[list(reasons)].to_numpy()
        launch, reason = np.nonzero(~np.isnan(values) & without[:, None])
        spelled = [SPELLINGS.get(name, name) for name in reasons.values()]
        found_values = values[launch, reason]
        parts.append(
            pd.DataFrame(
                {"launch": launch, "reason": [spelled[i] for i in reason], "value": found_values}
            )
        )
        without[launch] = False
    frame = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    return tables.STALLS.make(frame.assign(rank=0))


def rules(report: Report) -> pd.DataFrame:
    """Return RULES: one row per message of the guided analysis."""
    frame = pd.DataFrame(
        report.rules, columns=["launch", "rule", "message", "speedup_frac", "scope"]
    )
    return tables.RULES.make(frame.assign(rank=0))


def devices(report: Report) -> pd.DataFrame:
    """Return DEVICES: one row per GPU whose attributes the report holds."""

    def attribute(name: str) -> pd.Series:
        return pd.Series(report.column(ATTRIBUTE + name))

    memory_clock_hz, bus_bits = (
        attribute("memory_clock_rate") * 1e3,
        attribute("global_memory_bus_width"),
    )
    columns = {
        "rank": 0,
        "gpu": gpus(report),
        "name": [launch.device_name for launch in report.launches],
        "compute_capability": [launch.capability for launch in report.launches],
        "sm_count": attribute("multiprocessor_count").astype("Int64"),
        "memory_bytes": attribute("total_memory").astype("Int64"),
        "memory_bytes_per_s": 2
        * memory_clock_hz
        * bus_bits
        / 8,  # two transfers a cycle, as CUDA's deviceQuery
        "clock_hz": attribute("clock_rate") * 1e3,
    }
    frame = pd.DataFrame(columns)
    return tables.DEVICES.make(frame[frame["sm_count"].notna()].drop_duplicates("gpu"))


def missing(launches: pd.DataFrame, present: set[str]) -> tuple[Missing, ...]:
    """Return what the report cannot answer, with the options of ncu that record it."""
    columns = {
        **{column: [column] for column in REMEDIES},
        "fp32_flops": [f"{p}_flops" for p in FLOPS],
    }
    lacking = [column for column, group in columns.items() if launches[group].isna().all(axis=None)]
    return (
        *(Missing(f"LAUNCHES.{column}", *REMEDIES[column]) for column in lacking),
        *(
            Missing(table, *remedy)
            for table, remedy in TABLE_REMEDIES.items()
            if table not in present
        ),
    )


def table(report: Report) -> pd.DataFrame:
    """Return LAUNCHES: one row per launch, numbered by its position in the file."""
    full_names = [launch.full_name for launch in report.launches]
    short = {name: names.short(name) for name in set(full_names)}
    frame = {
        "rank": 0,
        "gpu": gpus(report),
        "launch": np.arange(len(report.launches)),
        "name": pd.Categorical([short[name] for name in full_names]),
        "full_name": pd.Categorical(full_names),
        "grid_blocks": _sizes(
            [launch.grid_blocks for launch in report.launches], report, "launch__grid_size"
        ),
        "block_threads": _sizes(
            [launch.block_threads for launch in report.launches], report, "launch__block_size"
        ),
        "dur_ns": durations(report),
        "clock_hz": report.column(
            *(f"{unit}__cycles_elapsed.avg.per_second" for unit in ("sm", "gpc", "smsp"))
        ),
        **{f"{precision}_flops": flops(report, precision) for precision in FLOPS},
        "tensor_flops": tensor_flops(report),
        "dram_bytes": dram_bytes(report),
        "l2_bytes": first(
            count(report, "lts__t_bytes"), SECTOR_BYTES * count(report, "lts__t_sectors")
        ),
        "l1_bytes": l1_bytes(report),
        **{column: report.column(*metrics) / 100 for column, metrics in FRACTIONS.items()},
        "tensor_frac": tensor_activity(report),
    }
    return tables.LAUNCHES.make(pd.DataFrame(frame))


def gpus(report: Report) -> NDArray[np.int64]:
    """Return the device ordinal of each launch, -1 where the file does not say."""
    measured = np.nan_to_num(
        report.column("launch__device_id", "device__attribute_device_index"), nan=-1
    )
    listed = np.array([launch.gpu for launch in report.launches], np.int64)
    return np.where(listed < 0, measured.astype(np.int64), listed)


def dram_bytes(report: Report) -> Values:
    """Return the bytes read from and written to device memory."""
    pairs = [count(report, read) + count(report, write) for read, write in DRAM_BYTES]
    sectors = count(report, "dram__sectors_read") + count(report, "dram__sectors_write")
    return first(*pairs, count(report, "dram__bytes"), SECTOR_BYTES * sectors)


def l1_bytes(report: Report) -> Values:
    """Return the bytes through the tag stage of the L1 cache."""
    parts = [count(report, f"l1tex__t_sectors_pipe_{part}") for part in L1_SECTORS]
    rare = [
        np.nan_to_num(count(report, f"l1tex__t_sectors_pipe_{part}")) for part in L1_RARE_SECTORS
    ]
    sectors = first(
        count(report, "l1tex__t_sectors"), np.sum([*parts, *rare], axis=0, dtype=np.float64)
    )
    return first(count(report, "l1tex__t_bytes"), SECTOR_BYTES * sectors)


def _sizes(listed: list[int | None], report: Report, metric: str) -> pd.Series:
    """Return sizes as listed beside the name, else as counted."""
    return pd.Series(listed, dtype="Int64").fillna(pd.Series(report.column(metric)).astype("Int64"))


def flops(report: Report, precision: str) -> Values:
    """Return the operations of one precision on CUDA cores."""
    letter, factors = FLOPS[precision]
    forms = []
    for unit in ("sm", "smsp"):  # both count every instruction once
        counts = [
            count(report, f"{unit}__sass_thread_inst_executed_op_{letter}{op}_pred_on")
            for op in OPS
        ]
        weighted = [factor * counted for factor, counted in zip(factors, counts, strict=True)]
        forms.append(weighted[0] + weighted[1] + weighted[2])
        if (
            precision != "fp16"
        ):  # these count a fused multiply-add as 2; for packed halves that is not documented
            together = "_".join(f"{letter}{op}" for op in OPS)
            forms.append(count(report, f"{unit}__sass_thread_inst_executed_ops_{together}_pred_on"))
    return first(*forms)


def tensor_flops(report: Report) -> Values:
    """Return the operations on tensor cores, of all types; sparse ones as the counter counts them.

    Of hierarchical counters (total, by sparsity, by instruction) the highest measured counts;
    without any the number of instructions, where one factor holds: 512 on V100 (capability 7.0),
    and 0 where none ran, up to Hopper.
    """
    unknown = np.full(len(report.launches), np.nan)
    # What is known is added up; unknown only where all types are.
    types = np.array([unknown, *_per_type(report)])
    counted = np.where(np.isnan(types).all(axis=0), np.nan, np.nansum(types, axis=0))
    instructions = report.column("sm__inst_executed_pipe_tensor.sum")
    capability = np.array([launch.capability for launch in report.launches], str)
    volta = np.where(capability == "7.0", instructions * V100_FLOP_PER_INSTRUCTION, np.nan)
    one_pipe = np.array([text[:2] in ("7.", "8.", "9.") for text in capability], bool)
    return first(counted, volta, np.where(one_pipe & (instructions == 0), 0.0, np.nan))


def _per_type(report: Report) -> list[Values]:
    """Return the operations of each type, from the highest level of its counters."""
    levels: dict[str, dict[tuple[bool, bool], set[str]]] = {}
    for metric in report.metrics:
        if found := TENSOR.fullmatch(metric):
            level = (found["op"] is not None, found["sparsity"] is not None)
            levels.setdefault(found["types"], {}).setdefault(level, set()).add(found["name"])
    # Operands without a result are the sum over their results.
    whole = [
        types for types in levels if not any(types.startswith(f"{other}_dst_") for other in levels)
    ]
    return [
        first(*(_summed(report, levels[types][level]) for level in sorted(levels[types])))
        for types in whole
    ]


def _summed(report: Report, names: set[str]) -> Values:
    """Return the sum of counters of one level; sm and smsp count the same."""
    counts = [
        first(count(report, f"sm__{name}"), count(report, f"smsp__{name}"))
        for name in sorted(names)
    ]
    return reduce(np.add, counts)


def untimed(launches: pd.DataFrame) -> tuple[str, ...]:
    """Return a note on the launches of LAUNCHES that have no duration where others have one."""
    lacking = launches.loc[launches["dur_ns"].isna(), "launch"].tolist()
    if not lacking or len(lacking) == len(launches):
        return ()
    listed = ", ".join(map(str, lacking[:10])) + (" and more" if len(lacking) > 10 else "")
    return (
        f"{len(lacking):,} of {len(launches):,} launches have no duration (number {listed}, from "
        "0): no figure of time counts them",
    )


def sparse(report: Report) -> tuple[str, ...]:
    """Return a note on the launches that ran structured-sparse tensor operations, which have a peak of their own."""
    metrics = [
        m
        for m in report.metrics
        if (found := TENSOR.fullmatch(m)) and found["sparsity"] == "_sparsity_on"
    ]
    launches = np.flatnonzero((report.values[metrics].to_numpy() > 0).any(axis=1)).tolist()
    if not launches:
        return ()
    listed = ", ".join(map(str, launches[:10])) + (" and more" if len(launches) > 10 else "")
    return (
        f"launches {listed} ran structured-sparse tensor operations, which tensor_flops counts "
        "too: compare them with the sparse peak",
    )


def tensor_activity(report: Report) -> Values:
    """Return how busy the tensor pipe was over its peak: over all cycles if measured, else while the SM was active.

    The pipe as a whole, else the busiest of its parts, else by instructions issued.
    """
    levels = [
        [metric for metric in report.metrics if pattern.fullmatch(metric)]
        for pattern in TENSOR_PIPES
    ]
    busiest = [report.values[metrics].max(axis=1).to_numpy() / 100 for metrics in levels if metrics]
    return first(np.full(len(report.launches), np.nan), *busiest)


def durations(report: Report) -> Values:
    """Return the time of each launch, ns: as measured, else its own cycles over its own clock."""
    times = [report.column(*(f"gpu__time_duration.{form}" for form in ("sum", "max", "avg")))]
    for unit in ("sm", "smsp", "gpc"):
        cycles = report.column(f"{unit}__cycles_elapsed.avg", f"{unit}__cycles_elapsed.max")
        clock = report.column(f"{unit}__cycles_elapsed.avg.per_second")
        times.append(cycles / np.where(clock > 0, clock, np.nan) * 1e9)
    return first(*times)


def count(report: Report, metric: str) -> Values:
    """Return how often something happened: the sum, else a rate times the launch's own time or cycles."""
    seconds = durations(report) / 1e9
    cycles = report.column(f"{metric.partition('__')[0]}__cycles_elapsed.avg.per_second") * seconds
    return first(
        report.column(f"{metric}.sum"),
        report.column(f"{metric}.sum.per_second") * seconds,
        report.column(f"{metric}.sum.per_cycle_elapsed") * cycles,
    )


def first(*choices: Values) -> Values:
    """Return the first of several figures that is known, launch by launch."""
    return reduce(lambda figure, other: np.where(np.isnan(figure), other, figure), choices)


def whole(report: Report) -> Report:
    """Return a report without ids and sizes that are no whole numbers or too large for one, counted in notes."""
    values, notes = report.values.copy(deep=False), []
    for metric, most in _WHOLE.items():
        if metric not in values:
            continue
        numbers = values[metric].to_numpy()
        wrong = ~np.isnan(numbers) & ~((numbers >= 0) & (numbers <= most) & (numbers % 1 == 0))
        if wrong.any():
            values[metric] = np.where(wrong, np.nan, numbers)
            notes.append(
                f"values of {metric} that are no whole number from 0 to {most:,} and were left "
                f"out: {np.count_nonzero(wrong):,} (first: {numbers[wrong][0]:g})"
            )
    return replace(report, values=values, notes=(*report.notes, *notes)) if notes else report

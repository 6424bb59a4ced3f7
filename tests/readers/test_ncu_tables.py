"""Tables of Nsight Compute: each formula worked by hand, and what is named as missing."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from readers import ncu_files as files

from make.ncu import cases

TENSOR = "sm__ops_path_tensor_"


def sums(**counts: int) -> files.Metrics:
    """Counters of additions, multiplications and fused multiply-adds, by the name of the instruction."""
    return {f"{files.CORE}{op}_pred_on.sum": ("inst", str(count)) for op, count in counts.items()}


def tensor(**counts: int) -> files.Metrics:
    return {f"{TENSOR}{name}.sum": ("", str(count)) for name, count in counts.items()}


def percents(**shares: float) -> files.Metrics:
    return {name: ("%", str(share)) for name, share in shares.items()}


def active(**shares: int) -> files.Metrics:
    return percents(
        **{f"sm__{name}.avg.pct_of_peak_sustained_active": share for name, share in shares.items()}
    )


OF_PEAK = "avg.pct_of_peak_sustained_elapsed"
ACCESSES = ("global_op_ld", "global_op_st", "local_op_ld", "local_op_st", "global_op_red")
SECTORS = {
    f"l1tex__t_sectors_pipe_lsu_mem_{kind}.sum": ("sector", str(i))
    for i, kind in enumerate(ACCESSES, 1)
}
TOGETHER = "sm__sass_thread_inst_executed_ops_{0}add_{0}mul_{0}fma_pred_on.sum"
RATE = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum.per_cycle_elapsed"
NAN = math.nan
RATES = {
    RATE.format(op): ("inst/cycle", rate)
    for op, rate in (("fadd", "1"), ("fmul", "2"), ("ffma", "3"))
}
RATES["smsp__cycles_elapsed.avg.per_second"] = ("Ghz", "1.5")
BF16 = {
    "src_bf16_dst_fp32": 100,
    "src_bf16_dst_fp32_sparsity_off": 100,
    "src_bf16_dst_fp32_sparsity_on": 0,
}
BF16 |= {
    "op_hgmma_src_bf16_dst_fp32_sparsity_off": 80,
    "op_hmma_src_bf16_dst_fp32_sparsity_off": 20,
}
MIXED = {
    "op_hgmma_src_fp16_dst_fp32": 80,
    "op_hmma_src_fp16_dst_fp32": 20,
    "src_fp8": 9,
    "src_fp8_dst_fp32": 8,
}
MIXED |= {"src_bf16_dst_fp32_sparsity_off": 5, "src_bf16_dst_fp32_sparsity_on": 7}
SHARES = {  # each is the vendor's percent over 100
    "achieved_occupancy_frac": ("sm__warps_active.avg.pct_of_peak_sustained_active", 50),
    "theoretical_occupancy_frac": ("sm__maximum_warps_per_active_cycle_pct", 62.5),
    "sm_frac": (f"sm__throughput.{OF_PEAK}", 70),
    "memory_frac": (f"gpu__compute_memory_throughput.{OF_PEAK}", 22),
    "dram_frac": (f"gpu__dram_throughput.{OF_PEAK}", 5),
    "tensor_frac": (f"sm__pipe_tensor_cycles_active.{OF_PEAK}", 80),
}


def dram(form: str, read: tuple[str, str], write: tuple[str, str]) -> files.Metrics:
    return {f"dram__{form}_read.sum": read, f"dram__{form}_write.sum": write}


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({}, {"dur_ns": 1000.0}),
        # 100 additions + 20 multiplications + 2 * 3 fused = 126 FLOP; in double precision 1 + 2 + 2 * 4 = 11.
        (
            sums(fadd=100, fmul=20, ffma=3),
            {"fp32_flops": 126.0, "fp64_flops": NAN, "fp16_flops": NAN},
        ),
        (sums(dadd=1, dmul=2, dfma=4), {"fp64_flops": 11.0}),
        # An instruction on packed halves works on two values: 2 * 10 + 2 * 20 + 4 * 30 = 180.
        (sums(hadd=10, hmul=20, hfma=30), {"fp16_flops": 180.0}),
        # Without the fused multiply-adds nobody knows the operations, nor the traffic without the writes.
        (sums(fadd=100, fmul=20), {"fp32_flops": NAN}),
        ({"dram__bytes_read.sum": ("byte", "1500")}, {"dram_bytes": NAN}),
        # The combined counter counts operations already; for halves it is not used.
        ({TOGETHER.format("f"): ("inst", "32,504,064")}, {"fp32_flops": 32_504_064.0}),
        ({TOGETHER.format("h"): ("inst", "7")}, {"fp16_flops": NAN}),
        (RATES, {"fp32_flops": 13_500.0}),  # (1 + 2 + 2 * 3) per cycle * 1.5 GHz * 1000 ns
        (
            tensor(**BF16),
            {"tensor_flops": 100.0},
        ),  # the total holds its split by sparsity and by instruction: not 300
        # fp16 by instruction 80 + 20, bf16 by sparsity 5 + 7, fp8 by its operands 9 (not its result): 121.
        (tensor(**MIXED), {"tensor_flops": 121.0}),
        # A type counted under both units is counted once.
        (
            {f"{unit}__ops_path_tensor_src_fp64.sum": ("", "50") for unit in ("sm", "smsp")},
            {"tensor_flops": 50.0},
        ),
        # Traffic under any name: 1500 + 500 bytes, also on Blackwell; 2 GB/s for 1000 ns; 62.5 sectors of 32 bytes.
        (dram("bytes", ("Kbyte", "1.5"), ("byte", "500")), {"dram_bytes": 2000.0}),
        (dram("bytes_op", ("byte", "1,500"), ("byte", "500")), {"dram_bytes": 2000.0}),
        ({"dram__bytes.sum": ("byte", "2000")}, {"dram_bytes": 2000.0}),
        ({"dram__bytes.sum.per_second": ("Gbyte/s", "2")}, {"dram_bytes": 2000.0}),
        (dram("sectors", ("sector", "60.5"), ("sector", "2")), {"dram_bytes": 2000.0}),
        # Cache bytes as counted, else 32 a sector: 10 * 32 in L2, and in L1 all kinds of access, (1+2+3+4+5) * 32.
        (
            {f"{c}__t_bytes.sum": ("byte", n) for c, n in (("lts", "7"), ("l1tex", "9"))},
            {"l2_bytes": 7, "l1_bytes": 9},
        ),
        (
            {**SECTORS, "lts__t_sectors.sum": ("sector", "10")},
            {"l2_bytes": 320.0, "l1_bytes": 480.0},
        ),
        (
            {name: shown for name, shown in SECTORS.items() if "local_op_st" not in name},
            {"l1_bytes": NAN},
        ),
        (
            percents(**dict(SHARES.values())),
            {name: share / 100 for name, (_, share) in SHARES.items()},
        ),
        # The tensor pipe as a whole comes before its busiest part, activity before instructions issued.
        (
            active(
                pipe_tensor_cycles_active=10,
                pipe_tc_cycles_active=60,
                pipe_tensor_op_hmma_cycles_active=90,
            ),
            {"tensor_frac": 0.6},
        ),
        (
            active(pipe_tensor_op_hmma_cycles_active=40, pipe_tensor_op_imma_cycles_active=5),
            {"tensor_frac": 0.4},
        ),
        (active(inst_executed_pipe_tensor=30, inst_executed_pipe_alu=99), {"tensor_frac": 0.3}),
    ],
)
def test_quantities_are_worked_out(
    metrics: files.Metrics, expected: dict[str, float], tmp_path: Path
) -> None:
    row = files.one(tmp_path, metrics)
    assert list(expected.values()) == pytest.approx(
        [row[column] for column in expected], rel=1e-12, nan_ok=True
    )
    told = {"rank", "gpu", "launch", "name", "full_name", "grid_blocks", "block_threads", "dur_ns"}
    assert metrics or all(
        math.isnan(value) for name, value in row.items() if name not in told
    )  # NaN, never zero


def test_time_and_operations_of_the_tensor_pipe(tmp_path: Path) -> None:
    def cycles(count: str, unit: str, rate: str) -> files.Metrics:
        return {
            "sm__cycles_elapsed.avg": ("cycle", count),
            "sm__cycles_elapsed.avg.per_second": (unit, rate),
        }

    # 72,581 cycles at 1.26047 GHz are 57,582 ns; each kernel has its own clock, rates are never added.
    timed = [
        cycles("72,581", "cycle/second", "1,260,470,000"),
        cycles("1000", "cycle/second", "500000000"),
    ]
    launches = [files.Measured(metrics, number=i) for i, metrics in enumerate(timed)]
    table = files.read(files.details(tmp_path / "page.csv", *launches)).table("LAUNCHES")
    assert [72_581 / 1.26047, 2000.0] == pytest.approx(table["dur_ns"].tolist(), rel=1e-12)
    assert [1.26047e9, 5e8] == table["clock_hz"].tolist()
    stopped = cycles("10", "hz", "0")
    assert 1000.0 == files.one(tmp_path, stopped)["dur_ns"]
    path = files.raw(tmp_path / "none.csv", files.Measured(stopped))
    assert files.read(path).table("LAUNCHES")["dur_ns"].isna().all()
    # 512 FLOP an instruction on V100; elsewhere only none is known, up to Hopper.
    known = (
        ("7.0", 10, 5120.0),
        ("8.0", 10, NAN),
        ("8.0", 0, 0.0),
        ("9.0", 0, 0.0),
        ("10.0", 0, NAN),
    )
    for cc, instructions, expected in known:
        metrics = {"sm__inst_executed_pipe_tensor.sum": ("inst", str(instructions))}
        assert expected == pytest.approx(
            files.one(tmp_path, metrics, cc=cc)["tensor_flops"], nan_ok=True
        )
    counts = [
        tensor(src_fp16_dst_fp32_sparsity_off=5, src_fp16_dst_fp32_sparsity_on=on) for on in (0, 7)
    ]
    launches = [files.Measured(metrics, number=i) for i, metrics in enumerate(counts)]
    profile = files.read(files.raw(tmp_path / "page.csv", *launches))
    assert [5.0, 12.0] == profile.table("LAUNCHES")["tensor_flops"].tolist()
    assert ["launches 1 ran structured-sparse" in note for note in profile.notes] == [
        True
    ]  # with a peak of its own


def test_simulated_cases_of_every_precision(tmp_path: Path) -> None:
    truth = cases(tmp_path / "cases.csv")
    table = files.read(tmp_path / "cases.csv").table("LAUNCHES").set_index("full_name")
    columns = ["fp64_flops", "fp32_flops", "fp16_flops", "tensor_flops"]
    expected = [truth[name].get(column, math.nan) for name in table.index for column in columns]
    assert expected == pytest.approx(
        table[columns].to_numpy().ravel().tolist(), nan_ok=True, rel=1e-12
    )


def stalls(folder: Path, *launches: files.Metrics) -> dict[tuple[int, str], float]:
    written = [
        files.Measured({"x.sum": ("", "1"), **metrics}, number=i)
        for i, metrics in enumerate(launches)
    ]
    table = files.read(files.raw(folder / "stalls.csv", *written)).table("STALLS")
    assert (table["node"] == -1).all()
    return dict(
        zip(zip(table["launch"], table["reason"], strict=True), table["value"], strict=True)
    )


def test_counters_hold_every_number_but_most_device_attributes(tmp_path: Path) -> None:
    # Also what LAUNCHES is made of, in base units; texts are left out, and attributes that limit no SM.
    metrics = {
        **files.DEVICE,
        "a.sum": ("Kbyte", "1.5"),
        "b.avg.per_second": ("cycle/us", "2"),
        "c": ("", "all"),
    }
    table = files.read(files.raw(tmp_path / "page.csv", files.Measured(metrics))).table("COUNTERS")
    rows = list(zip(table["metric"], table["unit"], table["value"], strict=True))
    limit = ("device__attribute_multiprocessor_count", "", 108.0)
    assert [("a.sum", "byte", 1500.0), ("b.avg.per_second", "hz", 2e6), limit] == rows
    # Launches of one page may have different metrics: a row only where there is a value.
    launches = [
        files.Measured({name: ("", "1")}, number=i) for i, name in enumerate(("a.sum", "b.sum"))
    ]
    table = files.read(files.details(tmp_path / "page.csv", *launches)).table("COUNTERS")
    assert [(0, "a.sum"), (1, "b.sum")] == list(zip(table["launch"], table["metric"], strict=True))


def ratio(reason: str, value: str) -> files.Metrics:
    return {files.ISSUE.format(reason): ("inst", value)}


def sampled(**values: int) -> files.Metrics:
    return {files.SAMPLED.format(reason): ("warp", str(value)) for reason, value in values.items()}


PARTS = sampled(
    math_pipe_throttle=9, math_pipe_throttle_not_issued=4, math_pipe_throttle_pipe_fma=3
)
LATENCY = "smsp__average_warp_latency_issue_stalled_wait.ratio"


@pytest.mark.parametrize(
    ("launches", "expected"),
    [
        # Ratios for one launch, samples for another: no launch mixes them, and ratios come first.
        (
            [
                ratio("wait", "2"),
                sampled(wait=7, drain=8),
                {**ratio("wait", "2"), **sampled(drain=9)},
            ],
            {(0, "wait"): 2.0, (1, "wait"): 7.0, (1, "drain"): 8.0, (2, "wait"): 2.0},
        ),
        ([{**ratio("barrier", "20.5"), **sampled(barrier=13326)}], {(0, "barrier"): 20.5}),
        # The sampled form says no_instructions, the other no_instruction.
        (
            [sampled(no_instructions=155), ratio("no_instruction", "0.5")],
            {(0, "no_instruction"): 155.0, (1, "no_instruction"): 0.5},
        ),
        # Samples of warps that could not issue, and reasons by pipe, are parts; math_pipe_throttle is a whole.
        ([PARTS | sampled(long_scoreboard_pipe_l1tex=2)], {(0, "math_pipe_throttle"): 9.0}),
        # Warp cycles, samples that did not issue and shares are used where nothing else was collected.
        *(
            ([{metric: ("", "3")}], {(0, "wait"): 3.0})
            for metric in (
                *(LATENCY, "smsp__pcsamp_warps_issue_stalled_wait_not_issued"),
                "smsp__warp_issue_stalled_wait_per_warp_active.pct",
            )
        ),
    ],
    ids=["one form each", "both forms", "spelling", "parts", "latency", "not issued", "shares"],
)
def test_stalls_of_each_launch_are_of_one_form(
    launches: list[files.Metrics], expected: dict[tuple[int, str], float], tmp_path: Path
) -> None:
    assert expected == stalls(tmp_path, *launches)
    counters = files.read(tmp_path / "stalls.csv").table("COUNTERS")
    assert {name for metrics in launches for name in metrics} <= set(counters["metric"])


def test_rules_devices_and_capture(tmp_path: Path) -> None:
    # 18.52 % local is 0.1852 of the kernel, 50 % global half of the workload; none is NaN without a scope.
    given = [
        ("AchievedOccupancy", "OPT", "theory and practice", "local", "18.52"),
        ("LaunchConfiguration", "OPT", "a partial wave", "global", "50"),
        ("SOLBottleneck", "WRN", "small grid", "", ""),
    ]
    profile = files.read(
        files.details(tmp_path / "page.csv", replace(files.full(), rules=tuple(given)))
    )
    rules = profile.table("RULES")
    assert [(name, text) for name, _, text, *_ in given] == list(
        zip(rules["rule"], rules["message"], strict=True)
    )
    assert [0.1852, 0.5, math.nan] == pytest.approx(rules["speedup_frac"].tolist(), nan_ok=True)
    assert ["kernel", "workload", None] == [None if s != s else s for s in rules["scope"].tolist()]
    launches = [replace(files.full(i), device=str(i % 2)) for i in range(4)]
    path = files.raw(tmp_path / "page.csv", *launches)
    devices = files.read(path).table("DEVICES")
    assert [0, 1] == devices["gpu"].tolist()  # one row per GPU, however many launches
    row = devices.iloc[0]
    assert ("NVIDIA A100-SXM4-40GB", "8.0", 108) == (
        row["name"],
        row["compute_capability"],
        row["sm_count"],
    )
    # 1215 MHz * 2 transfers * 5120 bits / 8 = 1,555.2 GB/s.
    assert (42_505_273_344, 1_555_200_000_000.0, 1.41e9) == tuple(row.iloc[-3:])
    row = files.read(path).capture.iloc[0]  # launches are measured one by one: no start, no length
    assert ("Nsight Compute", "", str(path), 0) == (
        row["tool"],
        row["tool_version"],
        row["path"],
        row["dur_ns"],
    )
    assert row[["t0_unix_ns"]].isna().all()


def test_what_is_missing_says_how_to_record_it(tmp_path: Path) -> None:
    path = files.details(
        tmp_path / "page.csv", files.Measured({"gpu__time_duration.sum": ("ns", "5")})
    )
    missing = {m.table: m.record for m in files.read(path).missing}
    quantities = ("fp32_flops", "tensor_flops", "dram_bytes", "sm_frac", "memory_frac")
    assert [*(f"LAUNCHES.{column}" for column in quantities), "STALLS", "RULES", "DEVICES"] == list(
        missing
    )
    assert "sm__sass_thread_inst_executed_op_ffma_pred_on.sum" in missing["LAUNCHES.fp32_flops"]
    assert all(record.startswith("ncu ") for record in missing.values())
    # A page with double-precision counters alone is not told to record operations.
    path = files.raw(tmp_path / "double.csv", files.Measured(sums(dadd=1, dmul=1, dfma=1)))
    tables = [m.table for m in files.read(path).missing]
    assert "LAUNCHES.fp32_flops" not in tables
    assert "LAUNCHES.dur_ns" in tables

"""Peaks of GPUs: each row of gpus.csv against an independent calculation, the rule of matching, tables of one's own."""

import csv
from contextlib import suppress
from pathlib import Path

import extras
import pandas as pd
import pytest

import perfkit
from perfkit.errors import PerfkitError, ReadError
from perfkit.hardware import COLUMNS, PRECISIONS, Peaks, load_peaks, peaks, why_unknown

OWN = Path(perfkit.__file__).with_name("gpus.csv")
with OWN.open(encoding="utf-8", newline="") as file:
    ROWS = {row["key"]: row for row in csv.DictReader(file)}

# Operations per multiprocessor and clock cycle, in the order of PRECISIONS; 0 where it has none: a fused multiply-add
# is two. CUDA cores of FP32 per SM: 64 (Volta, Turing, GA100), else 128; FP64: half as many where it is for computing,
# else 2. Tensor cores: 1024 operations of FP16 per SM (Volta), 2048 (GA100), 4096 (GH100), 8192 (GB100); elsewhere
# 1024, of GeForce half with FP32 accumulate.
PER_CYCLE = {
    "Pascal": (64, 128, 256, 0, 0, 0, 0, 0, 0, 0, 0),
    "Volta": (64, 128, 256, 0, 0, 1024, 0, 0, 0, 0, 0),
    "Turing": (4, 128, 256, 0, 0, 1024, 0, 0, 2048, 4096, 0),
    "Ampere GA100": (64, 128, 512, 128, 1024, 2048, 2048, 0, 4096, 8192, 0),
    "Ampere": (4, 256, 256, 0, 512, 1024, 1024, 0, 2048, 4096, 0),
    "Ada": (4, 256, 256, 0, 512, 1024, 1024, 2048, 2048, 0, 0),
    "Hopper": (128, 256, 512, 256, 2048, 4096, 4096, 8192, 8192, 0, 0),
    "Blackwell GB100": (128, 256, 0, 128, 4096, 8192, 8192, 16384, 16384, 0, 32768),
    "Blackwell Ultra": (4, 256, 0, 4, 4096, 8192, 8192, 16384, 0, 0, 0),
    "Blackwell": (4, 256, 256, 0, 512, 1024, 1024, 2048, 2048, 0, 4096),
    "CDNA": (64, 128, 0, 0, 0, 1024, 512, 0, 1024, 0, 0),
    "CDNA2": (128, 128, 0, 256, 0, 1024, 1024, 0, 1024, 0, 0),
    "CDNA3": (128, 256, 0, 256, 1024, 2048, 2048, 4096, 4096, 0, 0),
    "CDNA4": (128, 256, 0, 128, 0, 4096, 4096, 8192, 8192, 0, 16384),
}
GEFORCE = {"tf32_tensor": 256, "fp16_tensor": 512, "bf16_tensor": 512, "fp8_tensor": 1024}
AT_HALF = {
    "l20": "tensor cores at half the rate (export rules)",
    "l40": "tensor cores at half the rate, as its white paper prints",
    "a10g": "tensor cores at half the rate, as its data sheet prints",
}
# Where a peak is not that of the boost clock: the clock (MHz) that it is of, and why.
TENSOR = [name for name in PRECISIONS if name.endswith("_tensor") and name != "fp64_tensor"]
OTHER_CLOCK = {
    "h100-pcie": (1620, "tensor peaks of a lower clock: 756.5 TFLOPS = 114 SMs x 4096 x 1620 MHz"),
    "h100-sxm5-80": (1830, "tensor peaks of a lower clock, which the H100 white paper names"),
    "h100-nvl": (1545, "tensor peaks of a lower clock: 835.5 TFLOPS = 132 SMs x 4096 x 1545 MHz"),
    "h200-sxm": (1830, "the chip of the H100 SXM"),
    "h200-nvl": (1545, "the chip of the H100 NVL"),
    "h800-sxm5": (1830, "the chip of the H100 SXM"),
    "gh200-96": (1830, "the chip of the H100 SXM"),
    "gh200-144": (1830, "the chip of the H100 SXM"),
    "b200-sxm": (1850, "tensor peaks of a lower clock: 2250 TFLOPS = 148 SMs x 8192 x 1856 MHz"),
    "b300-sxm": (1850, "as the B200"),
}
NO_CALCULATION = {
    ("l40s", "int4_tensor"): "the data sheet prints the rate of INT8",
    ("h800-sxm5", "fp64"): "cut to 1 TFLOPS (export rules)",
    ("b300-sxm", "fp64"): "sources round it to 1.2, 1.25 or 1.3 TFLOPS; the calculation has 1.203",
    ("b300-sxm", "fp64_tensor"): "as FP64",
    ("b300-sxm", "int8_tensor"): "INT8 was cut to a thirtieth of FP8",
    ("b300-sxm", "fp4_tensor"): "FP4 runs at 1.5 times the B200's rate",
}
# AMD prints a rounded 8 TB/s, where 8192 bits at 8 Gbit/s are 8.192.
ROUNDED = {"mi350x", "mi355x"}
# SMs or boost clock are not known, so that nothing can be calculated.
UNKNOWN_CLOCK = {"h20", "gb200", "gb300"}
# Bus width or data rate are not known (HBM3e and Blackwell), or cards with different memory bear one name.
UNKNOWN_MEMORY = {
    *(
        "h200-sxm",
        "h200-nvl",
        "h20",
        "gh200-96",
        "gh200-144",
        "b200-sxm",
        "gb200",
        "b300-sxm",
        "gb300",
    ),
    *(
        "rtx3060",
        "rtx3060ti",
        "rtx3080",
        "rtx4070",
        "rtx-5880-ada",
        "rtx-pro-6000-max-q",
        "mi300a",
        "mi325x",
    ),
}


def per_cycle(key: str) -> dict[str, int]:
    """Operations per multiprocessor and cycle of a row, by the most exact name of its architecture."""
    arch, name = ROWS[key]["arch"], ROWS[key]["name_nvidia_smi"]
    rates = next(PER_CYCLE[known] for known in (arch, arch.split()[0]) if known in PER_CYCLE)
    family = {k: v for k, v in zip(PRECISIONS, rates, strict=True) if v}
    if "GeForce" in name:
        family |= {k: v for k, v in GEFORCE.items() if k in family}
        family |= {"int4_tensor": 4096} if arch.startswith("Ada") else {}
    return {k: v // 2 if key in AT_HALF and k.endswith("_tensor") else v for k, v in family.items()}


def known(name: str) -> Peaks:
    found = peaks(name)
    assert found is not None, f"{name}: {why_unknown(name)}"
    return found


def test_each_exception_is_of_a_row() -> None:
    # No exception outlives its row, or the gap that it excuses.
    named = {
        *AT_HALF,
        *OTHER_CLOCK,
        *ROUNDED,
        *UNKNOWN_CLOCK,
        *UNKNOWN_MEMORY,
        *(key for key, _ in NO_CALCULATION),
    }
    assert named <= set(ROWS)
    assert {
        key for key, row in ROWS.items() if not (row["sm_count"] and row["boost_mhz"])
    } == UNKNOWN_CLOCK
    incomplete = {
        k
        for k, r in ROWS.items()
        if not (r["mem_bus_bits"] and r["mem_gbps_pin"] and r["mem_bw_gbs"])
    }
    assert incomplete == UNKNOWN_MEMORY


@pytest.mark.parametrize("key", [key for key in ROWS if key not in UNKNOWN_CLOCK])
def test_peaks_are_multiprocessors_times_operations_times_clock(key: str) -> None:
    row, each = ROWS[key], per_cycle(key)
    for precision, column in PRECISIONS.items():
        if row[column] and (key, precision) not in NO_CALCULATION:
            clock = (
                OTHER_CLOCK[key][0]
                if key in OTHER_CLOCK and precision in TENSOR
                else float(row["boost_mhz"])
            )
            expected = int(row["sm_count"]) * each[precision] * clock / 1e6
            assert expected == pytest.approx(float(row[column]), rel=0.03), precision


@pytest.mark.parametrize("key", [key for key in ROWS if key not in UNKNOWN_MEMORY])
def test_bandwidth_is_bus_times_rate(key: str) -> None:
    row = ROWS[key]
    expected = int(row["mem_bus_bits"]) * float(row["mem_gbps_pin"]) / 8
    assert expected == pytest.approx(
        float(row["mem_bw_gbs"]), rel=0.025 if key in ROUNDED else 0.02
    )


def test_a_computed_peak_says_so() -> None:
    found = [(key, precision) for key, row in ROWS.items() for precision in row["computed"].split()]
    assert len(found) > 200
    for key, column in found:
        precision = next(name for name, of in PRECISIONS.items() if of == column)
        product = (
            int(ROWS[key]["sm_count"])
            * per_cycle(key)[precision]
            * float(ROWS[key]["boost_mhz"])
            / 1e6
        )
        assert f"{product:.4g}" == f"{float(ROWS[key][column]):.4g}", (key, column)
        assert "comput" in ROWS[key]["source"], key
    computed = {row.key: row.computed for row in load_peaks(OWN)}
    assert ("fp64", "fp16", "tf32_tensor", "int8_tensor", "int4_tensor") == computed["rtx-a5000"]


def test_rows_that_were_wrong() -> None:
    # A B200 is no GB200; A30 and A10 are whole; tools report one of the two dies of an MI250X, half of its 383 TFLOP/s.
    l4, b200, gb200 = (known(f"NVIDIA {name}") for name in ("L4", "B200", "GB200"))
    assert (58, 30.3e12) == (l4.sm_count, l4.flops("fp32"))
    assert (37e12, 37e12, 75e12) == tuple(b200.flops(p) for p in ("fp64", "fp64_tensor", "fp32"))
    assert (40e12, 40e12, 80e12) == tuple(gb200.flops(p) for p in ("fp64", "fp64_tensor", "fp32"))
    assert (7.7e12, 8e12) == (b200.bandwidth(), gb200.bandwidth())
    assert 191.5e12 == known("AMD Instinct MI250X").flops("fp16_tensor")
    for name, count in (("NVIDIA A30", 56), ("NVIDIA A10", 72)):
        row = known(name)
        assert count == row.sm_count
        assert {"fp32", "fp16", "tf32_tensor", "fp16_tensor", "bf16_tensor", "int8_tensor"} <= set(
            row.flops_per_s
        )


@pytest.mark.parametrize(
    ("name", "count", "tera"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 42, 312 * 42 / 108),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb+me", 14, 312 * 14 / 108),
        ("NVIDIA H100 80GB HBM3 MIG 1g.20gb", 26, 989.4 * 26 / 132),
    ],
)
def test_a_slice_has_the_peaks_of_its_multiprocessors(name: str, count: int, tera: float) -> None:
    found = known(name)
    assert (count, None, name) == (found.sm_count, found.tdp_w, found.name)
    assert tera * 1e12 == pytest.approx(found.flops("fp16_tensor"))
    assert set(found.computed) == set(found.flops_per_s)
    with pytest.raises(PerfkitError, match=r"MIG .+: memory bandwidth is not known"):
        found.bandwidth()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *(
            ("NVIDIA A100-SXM4-40GB MIG 2c.3g.20gb", "this slice"),
            ("NVIDIA B200 MIG 3g.90gb", "this slice"),
        ),
        ("NVIDIA H100", "several boards"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "maker of a laptop"),
        ("NVIDIA GeForce RTX 2060", "different numbers of multiprocessors"),
        ("AMD Instinct MI250X / MI250", "two GPUs"),
        ("Intel(R) HD Graphics 630", "not a GPU of NVIDIA or AMD"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "contradict each other"),
        *(
            ("NVIDIA Rubin", "no row"),
            ("A100", "several boards"),
            ("NVIDIA A100-PG509-200", "number of a board"),
        ),
        *(("0x6861", "driver did not know"), ("AMD Instinct MI300X VF", "virtual function")),
        *(
            ("Quadro GP100", "older than Volta"),
            ("Navi 22 [Radeon RX 6700/6700 XT / 6800M]", "Instinct only"),
        ),
    ],
)
def test_a_name_is_refused_for_a_reason(name: str, reason: str) -> None:
    assert peaks(name) is None
    assert reason in why_unknown(name)


@pytest.fixture(scope="module")
def recorded(profiles: Path) -> pd.DataFrame:
    """The devices of all timelines, counters and logs that can be read."""
    extras.require("ncu_report")
    frames = []
    for path in (
        path for folder in ("nsys", "ncu", "monitor") for path in (profiles / folder).iterdir()
    ):
        with suppress(PerfkitError):
            frames.append(perfkit.load(path).devices)
    return pd.concat(frames)


# The maker of this board clocks it above NVIDIA's data sheet, which says 2617 MHz.
FACTORY_CLOCKS_HZ = {"rtx5080": 2.67e9}


def test_rows_are_what_the_devices_of_captures_report(recorded: pd.DataFrame) -> None:
    # Clock and bandwidth are near: the H200 tells 4917 GB/s, its data sheet prints 4800.
    compared = set()
    for device in recorded.dropna(subset=["sm_count", "clock_hz", "memory_bytes_per_s"]).to_dict(
        "records"
    ):
        if row := peaks(str(device["name"])):
            assert row.sm_count == device["sm_count"], row.name
            clock_hz = FACTORY_CLOCKS_HZ.get(row.key, row.clock_hz)
            assert clock_hz == pytest.approx(device["clock_hz"], rel=0.015), row.name
            if row.memory_bytes_per_s is not None:  # two cards of one name differ
                assert row.memory_bytes_per_s == pytest.approx(
                    device["memory_bytes_per_s"], rel=0.025
                ), row.name
            compared.add(row.key)
    assert {
        "a100-pcie-80",
        "a40",
        "b200-sxm",
        "gh200-96",
        "h200-sxm",
        "h800-sxm5",
        "rtx3070",
        "t4",
    } <= compared
    assert len(compared) == 20


def test_the_a100_of_the_lab() -> None:
    a100 = known("NVIDIA A100 80GB PCIe")
    assert (108, 1.41e9, 1.935e12, 300) == (
        a100.sm_count,
        a100.clock_hz,
        a100.memory_bytes_per_s,
        a100.tdp_w,
    )
    assert (64, 65_536, 164 * 1024) == (a100.max_warps_sm, a100.max_regs_sm, a100.max_smem_sm_bytes)
    tera = {
        "fp64": 9.7,
        "fp64_tensor": 19.5,
        "fp32": 19.5,
        "tf32_tensor": 156,
        "fp16_tensor": 312,
        "fp16": 78,
    }
    tera |= {"bf16_tensor": 312, "int8_tensor": 624, "int4_tensor": 1248}
    assert {name: value * 1e12 for name, value in tera.items()} == dict(a100.flops_per_s)
    assert (10.08, 80.62, 161.24) == tuple(
        round(a100.ridge(p), 2) for p in ("fp32", "tf32_tensor", "fp16_tensor")
    )
    # On H100 SXM 989.4 TFLOP/s / 3350 GB/s = 295.3 FLOP/byte.
    ridges = {
        "NVIDIA A100-SXM4-80GB": 153.0,
        "NVIDIA H100 80GB HBM3": 295.3,
        "NVIDIA H100 PCIe": 378.2,
    }
    ridges |= {
        "NVIDIA H200": 206.0,
        "NVIDIA L40S": 419.0,
        "Tesla V100-SXM2-16GB": 138.9,
        "AMD Instinct MI300X": 246.7,
    }
    assert ridges == {name: round(known(name).ridge("fp16_tensor"), 1) for name in ridges}


def test_every_row_has_source_date_and_dense_peaks() -> None:
    rows = load_peaks(OWN)
    assert (
        101
        == len(rows)
        == len({row.key for row in rows})
        == len({row.name.casefold() for row in rows})
    )
    assert all(
        row.source and row.as_of == "2026-11" and row.flops_per_s and row.max_smem_sm_bytes
        for row in rows
    )

    # A sparse figure among them would be 2 or 4 times. The MI100 multiplies BF16 at half the rate of FP16.
    for row in rows:
        flops = row.flops_per_s
        if "bf16_tensor" in flops and "fp16_tensor" in flops and row.key != "mi100":
            assert flops["bf16_tensor"] == flops["fp16_tensor"]
        if "fp8_tensor" in flops:
            assert 2 == pytest.approx(flops["fp8_tensor"] / flops["fp16_tensor"], rel=0.025)


def test_rows_are_found_by_name_or_key_and_an_empty_cell_is_refused() -> None:
    assert known("NVIDIA H200") is known(" nvidia h200\n") is known("h200-sxm")
    ada = known("NVIDIA RTX 5880 Ada Generation")
    assert ada.memory_bytes_per_s is None
    with pytest.raises(
        PerfkitError, match=r"RTX 5880 Ada Generation: memory bandwidth is not known.*'mem_bw_gbs'"
    ):
        ada.ridge("fp32")
    with pytest.raises(
        PerfkitError, match=r"Tesla T4: bf16_tensor is not known.*'bf16_tensor_tflops'"
    ):
        known("Tesla T4").flops("bf16_tensor")
    with pytest.raises(ValueError, match=r"precision: 'half' is not one of \['fp64'"):
        ada.flops("half")


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_peaks_of_ones_own(tmp_path: Path) -> None:
    path = written(
        tmp_path, "\ufeffname_nvidia_smi,mem_bw_gbs,fp32_tflops\nMy GPU,448,20.3\nOther,,1\n"
    )
    table = load_peaks(path)
    mine = peaks("my gpu", table=table)
    assert mine is not None
    assert (448e9, {"fp32": 20.3e12}, str(path)) == (
        mine.memory_bytes_per_s,
        dict(mine.flops_per_s),
        mine.source,
    )
    assert table[1].memory_bytes_per_s is None
    assert peaks("NVIDIA H200", table=table) is None
    copy = written(tmp_path, OWN.read_text(encoding="utf-8"))
    assert load_peaks(OWN) == load_peaks(copy)
    with OWN.open(encoding="utf-8") as file:
        assert set(PRECISIONS.values()) <= set(next(csv.reader(file))) <= set(COLUMNS)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        *(
            ("", "column 'name_nvidia_smi' is missing"),
            ("name,fp32_tflops\nA,1\n", "column 'name' is not one of"),
        ),
        (
            "name_nvidia_smi,fp32_tflops,fp32_tflops\nA,1,1\n",
            "'fp32_tflops' is there more than once",
        ),
        ("name_nvidia_smi,fp32_tflops\nA,-1\nB,inf\nC,nan\n", "line 4: fp32_tflops 'nan'"),
        (
            "name_nvidia_smi,fp32_tflops\nA,fast\n",
            "line 2: fp32_tflops 'fast' is not a number above 0",
        ),
        ("name_nvidia_smi,sm_count\nA,1.5\n", "sm_count '1.5' is not a whole number"),
        ("name_nvidia_smi,fp32_tflops\nA\n", "line 2 has not as many cells"),
        ("name_nvidia_smi,fp32_tflops\nA,1\na,2\n", "GPU 'a' is there more than once"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ReadError, match=complaint):
        load_peaks(written(tmp_path, text))
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x81")
    for name in ("absent.csv", "binary.csv"):
        with pytest.raises(ReadError, match=f"{name}: cannot be read as CSV"):
            load_peaks(tmp_path / name)

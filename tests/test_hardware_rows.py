"""Each row of gpus.csv against an independent calculation, and the names of GPUs that real captures hold."""

from __future__ import annotations

import csv
import gzip
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import perfkit
from perfkit.errors import PerfkitError
from perfkit.hardware import PRECISIONS, load_peaks, peaks, why_unknown

OWN = Path(perfkit.__file__).with_name("gpus.csv")
with OWN.open(encoding="utf-8", newline="") as file:
    ROWS = {row["key"]: row for row in csv.DictReader(file)}

# Operations per multiprocessor and clock cycle: a fused multiply-add is two. CUDA cores of FP32 per SM: 64 (Volta,
# Turing, GA100), else 128; FP64: half as many where it is for computing, else 2. Tensor cores: 1024 operations of FP16
# per SM (Volta), 2048 (GA100), 4096 (GH100), 8192 (GB100); elsewhere 1024, of GeForce half with FP32 accumulate.
GRAPHICS = {"fp64": 4, "fp32": 256, "fp16": 256, "tf32_tensor": 512, "fp16_tensor": 1024, "bf16_tensor": 1024}
AMPERE = {**GRAPHICS, "int8_tensor": 2048, "int4_tensor": 4096}
ADA = {**GRAPHICS, "fp8_tensor": 2048, "int8_tensor": 2048}
BLACKWELL = {**ADA, "fp4_tensor": 4096}
GEFORCE = {"tf32_tensor": 256, "fp16_tensor": 512, "bf16_tensor": 512}
TURING = {"fp64": 4, "fp32": 128, "fp16": 256, "fp16_tensor": 1024, "int8_tensor": 2048, "int4_tensor": 4096}
HOPPER = {"fp64": 128, "fp64_tensor": 256, "fp32": 256, "fp16": 512, "tf32_tensor": 2048, "fp16_tensor": 4096}
VOLTA = {"fp64": 64, "fp32": 128, "fp16": 256, "fp16_tensor": 1024}
GA100 = {"fp64": 64, "fp64_tensor": 128, "fp32": 128, "fp16": 512, "tf32_tensor": 1024, "fp16_tensor": 2048}
CDNA = {"fp64": 64, "fp32": 128, "fp16_tensor": 1024, "bf16_tensor": 512, "int8_tensor": 1024}
PER_CYCLE: dict[str, dict[str, int]] = {
    "Pascal": {"fp64": 64, "fp32": 128, "fp16": 256},
    "Volta": VOLTA,
    "Turing": TURING,
    "Ampere GA100": {**GA100, "bf16_tensor": 2048, "int8_tensor": 4096, "int4_tensor": 8192},
    "Ampere": AMPERE,
    "Ada": ADA,
    "Hopper": {**HOPPER, "bf16_tensor": 4096, "fp8_tensor": 8192, "int8_tensor": 8192},
    "Blackwell GB100": {
        "fp64": 128,
        "fp64_tensor": 128,
        "fp32": 256,
        "tf32_tensor": 4096,
        "fp16_tensor": 8192,
        "bf16_tensor": 8192,
        "fp8_tensor": 16384,
        "int8_tensor": 16384,
        "fp4_tensor": 32768,
    },
    "Blackwell Ultra": {"fp64": 4, "fp64_tensor": 4, "fp32": 256, "tf32_tensor": 4096, "fp16_tensor": 8192}
    | {"bf16_tensor": 8192, "fp8_tensor": 16384},
    "Blackwell": BLACKWELL,
    "CDNA": CDNA,
    "CDNA2": {**CDNA, "fp64": 128, "fp64_tensor": 256, "bf16_tensor": 1024},
    "CDNA3": {
        "fp64": 128,
        "fp64_tensor": 256,
        "fp32": 256,
        "tf32_tensor": 1024,
        "fp16_tensor": 2048,
        "bf16_tensor": 2048,
        "fp8_tensor": 4096,
        "int8_tensor": 4096,
    },
    "CDNA4": {
        "fp64": 128,
        "fp64_tensor": 128,
        "fp32": 256,
        "fp16_tensor": 4096,
        "bf16_tensor": 4096,
        "fp8_tensor": 8192,
        "int8_tensor": 8192,
        "fp4_tensor": 16384,
    },
}
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
    *("h200-sxm", "h200-nvl", "h20", "gh200-96", "gh200-144", "b200-sxm", "gb200", "b300-sxm", "gb300"),
    *("rtx3060", "rtx3060ti", "rtx3080", "rtx4070", "rtx-5880-ada", "rtx-pro-6000-max-q", "mi300a", "mi325x"),
}


def per_cycle(key: str) -> dict[str, int]:
    """Operations per multiprocessor and cycle of a row, by the most exact name of its architecture."""
    arch, name = ROWS[key]["arch"], ROWS[key]["name_nvidia_smi"]
    family = next(PER_CYCLE[known] for known in (arch, arch.split()[0]) if known in PER_CYCLE)
    if "GeForce" in name:
        family = family | {k: v for k, v in GEFORCE.items() if k in family}
        family = family | ({"fp8_tensor": 1024} if "fp8_tensor" in family else {})
        family = family | ({"int4_tensor": 4096} if arch.startswith("Ada") else {})
    return {k: v // 2 if key in AT_HALF and k.endswith("_tensor") else v for k, v in family.items()}


def test_each_exception_is_of_a_row() -> None:
    """No exception outlives its row, or the gap that it excuses."""
    named = {*AT_HALF, *OTHER_CLOCK, *ROUNDED, *UNKNOWN_CLOCK, *UNKNOWN_MEMORY, *(key for key, _ in NO_CALCULATION)}
    assert named <= set(ROWS)
    assert {key for key, row in ROWS.items() if not (row["sm_count"] and row["boost_mhz"])} == UNKNOWN_CLOCK
    incomplete = {k for k, r in ROWS.items() if not (r["mem_bus_bits"] and r["mem_gbps_pin"] and r["mem_bw_gbs"])}
    assert incomplete == UNKNOWN_MEMORY


@pytest.mark.parametrize("key", [key for key in ROWS if key not in UNKNOWN_CLOCK])
def test_peaks_are_multiprocessors_times_operations_times_clock(key: str) -> None:
    """Within 3 % of SMs x operations per SM and cycle x boost clock; other clocks and rates are named with reasons."""
    row, each = ROWS[key], per_cycle(key)
    for precision, column in PRECISIONS.items():
        if row[column] and (key, precision) not in NO_CALCULATION:
            clock = OTHER_CLOCK[key][0] if key in OTHER_CLOCK and precision in TENSOR else float(row["boost_mhz"])
            expected = int(row["sm_count"]) * each[precision] * clock / 1e6
            assert expected == pytest.approx(float(row[column]), rel=0.03), precision


@pytest.mark.parametrize("key", [key for key in ROWS if key not in UNKNOWN_MEMORY])
def test_bandwidth_is_bus_times_rate(key: str) -> None:
    """Within 2 % of bits of the bus x Gbit/s of a pin / 8."""
    row = ROWS[key]
    expected = int(row["mem_bus_bits"]) * float(row["mem_gbps_pin"]) / 8
    assert expected == pytest.approx(float(row["mem_bw_gbs"]), rel=0.025 if key in ROUNDED else 0.02)


def test_a_computed_peak_says_so() -> None:
    """A column named in computed holds exactly the product, to four digits; its source tells the calculation."""
    found = [(key, precision) for key, row in ROWS.items() for precision in row["computed"].split()]
    assert len(found) > 200
    for key, column in found:
        precision = next(name for name, of in PRECISIONS.items() if of == column)
        product = int(ROWS[key]["sm_count"]) * per_cycle(key)[precision] * float(ROWS[key]["boost_mhz"]) / 1e6
        assert f"{product:.4g}" == f"{float(ROWS[key][column]):.4g}", (key, column)
        assert "comput" in ROWS[key]["source"], key
    computed = {row.key: row.computed for row in load_peaks(OWN)}
    assert ("fp64", "fp16", "tf32_tensor", "int8_tensor", "int4_tensor") == computed["rtx-a5000"]


def test_rows_that_were_wrong() -> None:
    """The L4 has 58 SMs; a B200 is no GB200: 37 and 75 TFLOPS of FP64 and FP32, and 7.7 TB/s; A30 and A10 are whole."""
    l4, b200, gb200 = (peaks(name) for name in ("NVIDIA L4", "NVIDIA B200", "NVIDIA GB200"))
    assert l4
    assert b200
    assert gb200
    assert (58, 30.3e12) == (l4.sm_count, l4.flops("fp32"))
    assert (37e12, 37e12, 75e12) == tuple(b200.flops(p) for p in ("fp64", "fp64_tensor", "fp32"))
    assert (40e12, 40e12, 80e12) == tuple(gb200.flops(p) for p in ("fp64", "fp64_tensor", "fp32"))
    assert (7.7e12, 8e12) == (b200.bandwidth(), gb200.bandwidth())
    for name, count in (("NVIDIA A30", 56), ("NVIDIA A10", 72)):
        row = peaks(name)
        assert row
        assert count == row.sm_count
        assert {"fp32", "fp16", "tf32_tensor", "fp16_tensor", "bf16_tensor", "int8_tensor"} <= set(row.flops_per_s)


@pytest.mark.parametrize(
    ("name", "count", "tera"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 42, 312 * 42 / 108),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb+me", 14, 312 * 14 / 108),
        ("NVIDIA H100 80GB HBM3 MIG 1g.20gb", 26, 989.4 * 26 / 132),
    ],
)
def test_a_slice_has_the_peaks_of_its_multiprocessors(name: str, count: int, tera: float) -> None:
    """A slice (MIG) has so many of the SMs, at the same clock; what it shares with others is refused."""
    found = peaks(name)
    assert found
    assert (count, None, name) == (found.sm_count, found.tdp_w, found.name)
    assert tera * 1e12 == pytest.approx(found.flops("fp16_tensor"))
    assert set(found.computed) == set(found.flops_per_s)
    with pytest.raises(PerfkitError, match=r"MIG .+: memory bandwidth is not known"):
        found.bandwidth()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 2c.3g.20gb", "this slice"),
        ("NVIDIA B200 MIG 3g.90gb", "this slice"),
        ("NVIDIA H100", "several boards"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "maker of a laptop"),
        ("NVIDIA GeForce RTX 2060", "different numbers of multiprocessors"),
        ("AMD Instinct MI250X / MI250", "two GPUs"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "contradict each other"),
        ("NVIDIA Rubin", "no row"),
        ("", "no row"),
    ],
)
def test_a_name_is_refused_for_a_reason(name: str, reason: str) -> None:
    """What has no peaks says why."""
    assert peaks(name) is None
    assert reason in why_unknown(name)


# What the captures name, and a part of the reason for which it is refused; empty where its peaks are known.
NAMED = {
    "0x6861": "driver did not know",
    "0x73df": "driver did not know",
    "A100-PCIE-40GB": "",
    "A100-SXM4-40GB": "",
    "AMD Instinct MI300X": "",
    "AMD Instinct MI300X VF": "virtual function",
    "AMD Radeon Graphics": "driver did not know",
    "Arcturus GL-XL [Instinct MI100]": "",
    "GeForce GTX 1060 with Max-Q Design": "laptop",
    "GeForce GTX 1070 Ti": "older than Volta",
    "Intel(R) HD Graphics 630": "not a GPU of NVIDIA or AMD",
    "Microsoft Basic Render Driver": "not a GPU of NVIDIA or AMD",
    "NVIDIA A100 80GB PCIe": "",
    "NVIDIA A100-PG509-200": "number of a board",
    "NVIDIA A100-SXM4-40GB": "",
    "NVIDIA A100-SXM4-80GB": "",
    "NVIDIA A40": "",
    "NVIDIA B200": "",
    "NVIDIA GH200 120GB": "",
    "NVIDIA GH200 480GB": "",
    "NVIDIA GeForce RTX 2060 SUPER": "",
    "NVIDIA GeForce RTX 2060 with Max-Q Design": "laptop",
    "NVIDIA GeForce RTX 2070 SUPER": "",
    "NVIDIA GeForce RTX 2080 SUPER": "",
    "NVIDIA GeForce RTX 3060": "",
    "NVIDIA GeForce RTX 3070": "",
    "NVIDIA GeForce RTX 3080": "",
    "NVIDIA GeForce RTX 4070 SUPER": "",
    "NVIDIA GeForce RTX 4080 SUPER": "",
    "NVIDIA GeForce RTX 4090": "",
    "NVIDIA H100": "several boards",
    "NVIDIA H100 80GB HBM3": "",
    "NVIDIA H200": "",
    "NVIDIA H800": "",
    "NVIDIA RTX 4000 SFF Ada Generation": "",
    "Navi 22 [Radeon RX 6700/6700 XT / 6800M]": "Instinct only",
    "Quadro GP100": "older than Volta",
    "Quadro P2000": "older than Volta",
    "Tesla T4": "",
    "Tesla V100-DGXS-32GB": "",
    "Tesla V100-SXM2-16GB": "",
    "Tesla V100-SXM2-32GB": "",
}


def of_exports(folder: Path) -> set[str]:
    """Names in TARGET_INFO_GPU of the SQLite exports of Nsight Systems."""
    found = set()
    for path in folder.glob("*.sqlite"):
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            try:
                found |= {name for (name,) in database.execute("SELECT name FROM TARGET_INFO_GPU")}
            except sqlite3.DatabaseError:  # a file that is damaged, or has no such table
                continue
    return found


def of_traces(folder: Path) -> set[str]:
    """Names in deviceProperties, which stand at the head or at the end of the traces of PyTorch."""
    found = set()
    for path in [*folder.glob("*.json"), *folder.glob("*.json.gz")]:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            try:
                text = file.read(1 << 16)
                text += b"" if b'"deviceProperties"' in text else file.read()
            except (EOFError, OSError):
                continue
        properties = text.partition(b'"deviceProperties"')[2].partition(b"]")[0].decode("utf-8", "replace")
        found |= set(re.findall(r'"name": "([^"]+)"', properties))
    return found


def of_others(*folders: Path) -> set[str]:
    """Names that perfkit reads from reports of Nsight Compute and from logs."""
    found: set[str] = set()
    for path in (path for folder in folders for path in folder.iterdir()):
        try:
            found |= set(perfkit.load(path).devices["name"].dropna().astype(str))
        except PerfkitError:
            continue
    return found - {""}


def test_rows_are_what_the_devices_of_captures_report(profiles: Path) -> None:
    """Multiprocessors are equal, clock and bandwidth near: the H200 tells 4917 GB/s, its data sheet prints 4800."""
    compared = set()
    for path in (path for folder in ("nsys", "ncu") for path in (profiles / folder).iterdir()):
        try:
            devices = perfkit.load(path).devices.dropna(subset=["sm_count", "clock_hz", "memory_bytes_per_s"])
        except PerfkitError:
            continue
        for device in devices.to_dict("records"):
            if row := peaks(str(device["name"])):
                assert row.sm_count == device["sm_count"], row.name
                assert row.clock_hz == pytest.approx(device["clock_hz"], rel=0.015), row.name
                assert row.memory_bytes_per_s == pytest.approx(device["memory_bytes_per_s"], rel=0.025), row.name
                compared.add(row.key)
    assert {"a100-pcie-80", "a40", "b200-sxm", "gh200-96", "h200-sxm", "h800-sxm5", "rtx3070", "t4"} <= compared
    assert len(compared) == 14


def test_each_name_of_the_captures_is_known_or_refused(profiles: Path) -> None:
    """All names of GPUs that the captures hold, read without perfkit where that is easy."""
    found = of_exports(profiles / "nsys") | of_traces(profiles / "torch")
    found |= of_others(profiles / "ncu", profiles / "monitor")
    assert set(NAMED) == found
    for name, reason in NAMED.items():
        assert (peaks(name) is None) == bool(reason), name
        assert reason in why_unknown(name)
        assert bool(reason) == bool(why_unknown(name))


@pytest.mark.parametrize(
    "name",
    [
        *("Tesla V100-PCIE-32GB", "NVIDIA A10G", "NVIDIA A800-SXM4-80GB", "NVIDIA H800", "NVIDIA H200 NVL"),
        *("NVIDIA GH200 144G HBM3e", "NVIDIA L40", "NVIDIA L20", "NVIDIA B300 SXM6 AC", "NVIDIA GB300", "NVIDIA L4"),
        *("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "NVIDIA GeForce RTX 2080", "NVIDIA GeForce RTX 3080"),
        *("NVIDIA GeForce RTX 4070", "NVIDIA GeForce RTX 4080", "NVIDIA GeForce RTX 5080", "NVIDIA RTX A5000"),
        *("AMD Instinct MI100", "AMD Instinct MI210", "AMD Instinct MI300A", "AMD Instinct MI325X"),
        *("AMD Instinct MI355X", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"),
    ],
)
def test_gpus_since_volta_are_known(name: str) -> None:
    """As nvidia-smi and the driver write them."""
    assert peaks(name) is not None, why_unknown(name)

"""Peaks of GPUs: the table that comes along, the rule of matching, and tables of one's own."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import perfkit
from perfkit.errors import PerfkitError, ReadError
from perfkit.hardware import COLUMNS, PRECISIONS, Peaks, load_peaks, peaks

OWN = Path(perfkit.__file__).with_name("gpus.csv")


def known(name: str) -> Peaks:
    """The peaks of a GPU that the table has."""
    found = peaks(name)
    assert found is not None, f"{name} is not in gpus.csv"
    return found


def written(folder: Path, text: str) -> Path:
    """A CSV file with this text."""
    path = folder / "mine.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "ridge"),
    [
        ("NVIDIA A100 80GB PCIe", 161.2),
        ("NVIDIA A100-SXM4-80GB", 153.0),
        ("NVIDIA H100 80GB HBM3", 295.3),
        ("NVIDIA H100 PCIe", 378.2),
        ("NVIDIA H200", 206.0),
        ("NVIDIA L40S", 419.0),
        ("Tesla V100-SXM2-16GB", 138.9),
        ("AMD Instinct MI300X", 246.7),
    ],
)
def test_ridge_points_of_fp16_tensor(name: str, ridge: float) -> None:
    """Dense FP16 tensor peak over bandwidth: on H100 SXM 989.4 TFLOP/s / 3350 GB/s = 295.3 FLOP/byte."""
    assert ridge == round(known(name).ridge("fp16_tensor"), 1)


def test_the_a100_of_the_lab() -> None:
    """The lab's anchors: 108 SMs, 1410 MHz, 1935 GB/s, 300 W and ten peaks, in base units."""
    a100 = known("NVIDIA A100 80GB PCIe")
    assert (108, 1.41e9, 1.935e12, 300) == (a100.sm_count, a100.clock_hz, a100.memory_bytes_per_s, a100.tdp_w)
    assert (64, 65_536, 164 * 1024) == (a100.max_warps_sm, a100.max_regs_sm, a100.max_smem_sm_bytes)
    tera = {"fp64": 9.7, "fp64_tensor": 19.5, "fp32": 19.5, "tf32_tensor": 156, "fp16_tensor": 312, "fp16": 78}
    tera |= {"bf16_tensor": 312, "int8_tensor": 624, "int4_tensor": 1248}
    assert {name: value * 1e12 for name, value in tera.items()} == dict(a100.flops_per_s)
    assert (10.08, 80.62, 161.24) == tuple(round(a100.ridge(p), 2) for p in ("fp32", "tf32_tensor", "fp16_tensor"))


def test_every_row_has_source_date_and_a_dense_peak() -> None:
    """101 GPUs, each with a unique key and name, a source, a date and at least one peak."""
    rows = load_peaks(OWN)
    assert 101 == len(rows) == len({row.key for row in rows}) == len({row.name.casefold() for row in rows})
    assert all(row.source and row.as_of == "2026-11" and row.flops_per_s and row.max_smem_sm_bytes for row in rows)


def test_tensor_peaks_are_dense() -> None:
    """BF16 equals FP16, and FP8 is twice FP16 within 2.5 %: a sparse figure among them would be 2 or 4 times.

    The MI100 multiplies BF16 at half the rate of FP16.
    """
    for row in load_peaks(OWN):
        flops = row.flops_per_s
        if "bf16_tensor" in flops and "fp16_tensor" in flops and row.key != "mi100":
            assert flops["bf16_tensor"] == flops["fp16_tensor"]
        if "fp8_tensor" in flops:
            assert 2 == pytest.approx(flops["fp8_tensor"] / flops["fp16_tensor"], rel=0.025)


def test_one_die_of_a_package_is_one_device() -> None:
    """Tools report one of the two dies of an MI250X: half of the package's 383 TFLOP/s."""
    assert 191.5e12 == known("AMD Instinct MI250X").flops("fp16_tensor")


def test_found_by_name_then_by_key() -> None:
    """Case and surrounding blanks do not matter; the short key finds the same row."""
    assert known("NVIDIA H200") is known(" nvidia h200\n") is known("h200-sxm")


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 2060", "NVIDIA H100", "A100", "", "NVIDIA A10 G"])
def test_no_match_is_no_peak(name: str) -> None:
    """A GPU that is not in the table, or is only named in part, has no peaks: never those of a similar one."""
    assert peaks(name) is None


def test_what_is_not_known_is_refused_by_name() -> None:
    """An empty cell stays empty: asking for it says which column is missing; an unknown precision lists the legal."""
    ada = known("NVIDIA RTX 5880 Ada Generation")
    assert ada.memory_bytes_per_s is None
    with pytest.raises(PerfkitError, match=r"RTX 5880 Ada Generation: memory bandwidth is not known.*'mem_bw_gbs'"):
        ada.ridge("fp32")
    with pytest.raises(PerfkitError, match=r"Tesla T4: bf16_tensor is not known.*'bf16_tensor_tflops'"):
        known("Tesla T4").flops("bf16_tensor")
    with pytest.raises(ValueError, match=r"precision: 'half' is not one of \['fp64'"):
        ada.flops("half")


def test_peaks_of_ones_own(tmp_path: Path) -> None:
    """A file of three columns is enough; only its rows are looked in, and it is their source."""
    path = written(tmp_path, "\ufeffname_nvidia_smi,mem_bw_gbs,fp32_tflops\nMy GPU,448,20.3\nOther,,1\n")
    table = load_peaks(path)
    mine = peaks("my gpu", table=table)
    assert mine is not None
    assert (448e9, {"fp32": 20.3e12}, str(path)) == (mine.memory_bytes_per_s, dict(mine.flops_per_s), mine.source)
    assert table[1].memory_bytes_per_s is None
    assert peaks("NVIDIA H200", table=table) is None


def test_own_table_can_be_copied_and_changed(tmp_path: Path) -> None:
    """The table that comes along is itself a legal file of one's own."""
    copy = written(tmp_path, OWN.read_text(encoding="utf-8"))
    assert load_peaks(OWN) == load_peaks(copy)
    with OWN.open(encoding="utf-8") as file:
        assert set(PRECISIONS.values()) <= set(next(csv.reader(file))) <= set(COLUMNS)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "column 'name_nvidia_smi' is missing"),
        ("name,fp32_tflops\nA,1\n", "column 'name' is not one of"),
        ("name_nvidia_smi,fp32_tflops,fp32_tflops\nA,1,1\n", "'fp32_tflops' is there more than once"),
        ("name_nvidia_smi,fp32_tflops\nA,fast\n", "line 2: fp32_tflops 'fast' is not a number above 0"),
        ("name_nvidia_smi,fp32_tflops\nA,-1\nB,inf\nC,nan\n", "line 4: fp32_tflops 'nan'"),
        ("name_nvidia_smi,sm_count\nA,1.5\n", "sm_count '1.5' is not a whole number"),
        ("name_nvidia_smi,fp32_tflops\nA\n", "line 2 has not as many cells"),
        ("name_nvidia_smi,fp32_tflops\nA,1,2\n", "line 2 has not as many cells"),
        ("name_nvidia_smi,fp32_tflops\n ,1\n", "line 2 names no GPU"),
        ("name_nvidia_smi,fp32_tflops\nA,1\na,2\n", "GPU 'a' is there more than once"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    """What is wrong is named with its line and column."""
    with pytest.raises(ReadError, match=complaint):
        load_peaks(written(tmp_path, text))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """A missing and a binary file are named."""
    with pytest.raises(ReadError, match=r"absent.csv: cannot be read as CSV"):
        load_peaks(tmp_path / "absent.csv")
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(ReadError, match=r"binary.csv: cannot be read as CSV"):
        load_peaks(binary)


@pytest.mark.parametrize("name", ["A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB", "nvidia Tesla T4", "GeForce RTX 3090"])
def test_the_makers_name_may_be_there_or_not(name: str) -> None:
    """Drivers before 2021 print A100-SXM4-40GB for what later ones call NVIDIA A100-SXM4-40GB."""
    assert peaks(name) is not None

"""The table that nvidia-smi prints without an option."""

from pathlib import Path

import pytest
from readers import smi_files as smi

import perfkit
from perfkit.errors import ReadError

MINUTE = ("Thu Jan  1 00:00:02 2026", "Thu Jan  1 00:01:02 2026")
SECOND = 1_000_000_000
REAL = "monitor/nvidia-smi_table_loop__X-yang03_mixed_gpus.txt"


def test_the_readings_of_a_gpu_are_those_of_its_second_line(tmp_path: Path) -> None:
    samples = smi.read(smi.plain(tmp_path / "gpu.txt")).table("SAMPLES")
    of_second = samples[samples["gpu"] == 1]
    assert {
        "temperature_c": 31.0,
        "power_w": 69.0,
        "power_limit_w": 400.0,
        "memory_used_bytes": 17706 * 2.0**20,
        "memory_total_bytes": 81920 * 2.0**20,
        "gpu_busy_frac": 0.48,
    } == dict(zip(of_second["metric"], of_second["value"], strict=True))


def test_a_gpu_has_the_index_that_the_table_prints(tmp_path: Path) -> None:
    samples = smi.read(smi.plain(tmp_path / "gpu.txt", gpus=(2, 5))).table("SAMPLES")
    assert [2, 5] == sorted(samples["gpu"].unique())


def test_repeated_tables_are_as_far_apart_as_the_times_above_them(tmp_path: Path) -> None:
    samples = smi.read(smi.plain(tmp_path / "gpu.txt", times=MINUTE)).table("SAMPLES")
    assert [0, 60 * SECOND] == sorted(samples["time_ns"].unique())


def test_a_table_without_a_time_is_of_one_moment(tmp_path: Path) -> None:
    path = smi.plain(tmp_path / "gpu.txt")
    path.write_text(path.read_text().split("\n", 1)[1])
    notes = smi.read(path).notes
    assert any("the wall clock is not known" in note for note in notes)


def test_a_reading_that_failed_is_missing(tmp_path: Path) -> None:
    path = smi.plain(tmp_path / "gpu.txt", gpus=(0,))
    path.write_text(path.read_text().replace("     48%", "    ERR!"))
    samples = smi.read(path).table("SAMPLES")
    assert "gpu_busy_frac" not in set(samples["metric"])
    assert "power_w" in set(samples["metric"])


def test_a_table_without_a_gpu_is_refused(tmp_path: Path) -> None:
    path = smi.plain(tmp_path / "gpu.txt", gpus=())
    with pytest.raises(ReadError, match="no GPU is described to its end"):
        perfkit.load(path)


def test_a_real_log_of_tables(profiles: Path) -> None:
    """Its five tables of six GPUs were read by eye: GPU 3 was busy for 83, 81, 80, 30 and 16 %."""
    if not (profiles / REAL).exists():
        pytest.skip(f"PERFKIT_PROFILES has no {REAL}")
    samples = perfkit.load(profiles / REAL).samples
    busy = samples[samples["metric"].eq("gpu_busy_frac")]
    assert 30 == len(busy)
    assert [0.83, 0.81, 0.8, 0.3, 0.16] == busy.loc[busy["gpu"].eq(3), "value"].tolist()

"""Iteration lines of Megatron: throughput over time, of every form of line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from readers import deepspeed_files as files

from perfkit.profile import Profile
from perfkit.readers import deepspeed

MEGATRON = "superbench__megatron_deepspeed.log"
SECOND = 10**9


def read(path: Path, lines: list[str]) -> Profile:
    """The profile of a file with these lines."""
    return deepspeed.read(files.written(path / "train.log", lines))


def series(profile: Profile, metric: str) -> list[tuple[int, float]]:
    """Time and value of a metric."""
    samples = profile.table("SAMPLES")
    rows = samples[samples["metric"] == metric]
    return list(zip(rows["time_ns"], rows["value"], strict=True))


def test_iterations_follow_each_other(tmp_path: Path) -> None:
    """The first line is at 0, the next one 0.5 s and the last another 0.25 s later; 16 samples of 1024 tokens each."""
    profile = read(tmp_path, files.training())
    at = [0, SECOND // 2, SECOND * 3 // 4]
    assert list(zip(at, [1e9, 5e8, 2.5e8], strict=True)) == series(profile, "iteration_ns")
    assert list(zip(at, [16.0, 32.0, 64.0], strict=True)) == series(profile, "samples_per_s")
    assert list(zip(at, [16384.0, 32768.0, 65536.0], strict=True)) == series(profile, "tokens_per_s")
    assert list(zip(at, [1e14, 2e14, 4e14], strict=True)) == series(profile, "training_flops_per_s")
    assert [(0, 4.0)] == series(profile, "world_size_count")
    assert ("Megatron", at[-1]) == tuple(profile.capture[["tool", "dur_ns"]].iloc[0])
    assert profile.capture["t0_unix_ns"].isna().all()


def test_lines_of_megatron_lm_have_other_fields(tmp_path: Path) -> None:
    """No samples per second: 16 samples in 0.5 s are 32; tokens from the settings; the rate is per GPU."""
    settings = ["  seq_length ...................................... 4096"]
    lines = [files.timed(n, 500.0, **{"throughput_per_GPU_(TFLOP/s/GPU)": 300.1}) for n in (10, 20)]
    profile = read(tmp_path, [*settings, *lines])
    assert [(0, 32.0), (5 * SECOND, 32.0)] == series(profile, "samples_per_s")
    assert [32.0 * 4096] * 2 == [value for _, value in series(profile, "tokens_per_s")]
    assert [300.1e12] * 2 == [value for _, value in series(profile, "training_flops_per_s")]


def test_time_stamps_are_wall_clock_time(tmp_path: Path) -> None:
    """With a stamp in every line times are its own: between the lines a checkpoint may have been written."""
    stamps = ("[2025-01-31 12:00:00]", "[2025-01-31 12:00:07.5]")
    lines = [f" {stamp}{files.timed(n, 500.0)}" for n, stamp in enumerate(stamps)]
    profile = read(tmp_path, lines)
    assert [0, 7_500_000_000] == [time for time, _ in series(profile, "iteration_ns")]
    assert 1_738_324_800 * SECOND == profile.capture["t0_unix_ns"].item()
    assert "its time stamps are local time without a zone, taken as UTC" in profile.notes
    mixed = read(tmp_path, [lines[0], files.timed(2, 500.0), lines[0].replace("-31", "-99").replace(" 0/", " 3/")])
    assert mixed.capture["t0_unix_ns"].isna().all()


def test_a_line_of_several_ranks_is_one(tmp_path: Path) -> None:
    """What several ranks print alike is one iteration; a restart begins again and does not go back in time."""
    lines = [files.timed(1, 500.0), files.timed(1, 500.0), files.timed(2, 500.0), files.timed(1, 400.0)]
    assert [0, SECOND // 2, SECOND * 9 // 10] == [t for t, _ in series(read(tmp_path, lines), "iteration_ns")]


@pytest.mark.parametrize("ms", ["0.0", "-5.0", "1e99", "nan", "9" * 30])
def test_impossible_times_are_no_iteration(ms: str, tmp_path: Path) -> None:
    """A time that no iteration takes is not read; the others are."""
    lines = [files.iteration(1, **{"elapsed_time_per_iteration_(ms)": ms}), files.timed(2, 500.0)]
    assert [(0, 5e8)] == series(read(tmp_path, lines), "iteration_ns")


def test_the_training_of_megatron_is_its_truth(profiles: Path) -> None:
    """Five iterations of 16 GPUs: mean, least and most of times, rates and samples are those of the truth."""
    told: dict[str, Any] = json.loads((profiles / "golden" / "monitor" / f"{MEGATRON}.truth.json").read_text("utf-8"))
    profile = deepspeed.read(profiles / "monitor" / MEGATRON)
    samples = profile.table("SAMPLES")
    units = {"iteration_ns": ("ms_per_iteration", 1e6), "samples_per_s": ("samples_per_second", 1)}
    units |= {"training_flops_per_s": ("tflops", 1e12)}
    for metric, (key, unit) in units.items():
        values = samples[samples["metric"] == metric]["value"] / unit
        stated = pd.Series(told[key])
        assert told["iterations"] == len(values) == stated["n"]
        assert values.mean() == pytest.approx(stated["mean"], rel=1e-12)
        assert (values.min(), values.max()) == pytest.approx((stated["min"], stated["max"]), rel=1e-12)
    assert [(0, 16.0)] == series(profile, "world_size_count")
    seconds = 1e-9 * samples[samples["metric"] == "iteration_ns"]["value"].to_numpy()
    tokens = samples[samples["metric"] == "tokens_per_s"]["value"].to_numpy()
    assert (tokens * seconds) == pytest.approx([2048 * 2048] * 5, rel=1e-4)  # the global batch, from rounded rates

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


def test_a_training_that_ends_early_says_so(tmp_path: Path) -> None:
    """Iteration 2 of 100 is the last: the log was cut, or the program still runs. One that is finished says nothing."""
    lines = [files.timed(n, 500.0) for n in (1, 2)]
    assert "the log ends at iteration 2 of 100" in read(tmp_path, lines).notes
    finished = [files.timed(n, 500.0) for n in (80, 90, 100)]
    assert () == read(tmp_path, finished).notes
    assert () == read(tmp_path, [line.replace("100 |", "105 |", 1) for line in finished]).notes  # printed every 10th


def test_iterations_that_are_missing_are_counted(tmp_path: Path) -> None:
    """Lines of 10, 20, 50, 60 ... come every 10th iteration: two are missing before the third line."""
    lines = [files.timed(n, 500.0) for n in (10, 20, 50, 60, 70, 80, 90, 100)]
    assert ("lines of iterations are missing (2, first between 20 and 50, line 3)",) == read(tmp_path, lines).notes


@pytest.mark.parametrize(
    "wrong",
    [
        files.timed(2, 500.0).replace("500.0", "1e-9"),
        files.timed(2, 500.0).replace("500.0", "none"),
        files.timed(2, 500.0).replace("elapsed time per iteration", "elapsed t"),
        files.timed(2, 500.0).replace("/     100", "/       1"),
        files.timed(2, 500.0).replace("iteration ", "itera", 1),
    ],
)
def test_a_damaged_line_is_counted_with_its_number(wrong: str, tmp_path: Path) -> None:
    """No time, a time of no length, or iteration 2 of 1: the line is left out, and the note names it."""
    profile = read(tmp_path, ["training ...", files.timed(1, 500.0), wrong, files.timed(3, 500.0)])
    assert [5e8, 5e8] == [value for _, value in series(profile, "iteration_ns")]
    expected = "iteration lines that are not whole, or whose numbers cannot be, are left out (1, first in line 3)"
    assert expected in profile.notes


@pytest.mark.parametrize("wrong", ["1970-01-01 00:00:05", "9999-12-31 23:59:59", "2025-13-41 00:00:00"])
def test_a_stamp_that_cannot_be_is_noted(wrong: str, tmp_path: Path) -> None:
    """Without one stamp the clock is not known; the iterations follow each other by the time they took."""
    stamps = ("2025-01-31 12:00:00", wrong, "2025-01-31 12:00:09")
    profile = read(tmp_path, [f" [{stamp}]{files.timed(n, 500.0)}" for n, stamp in enumerate(stamps, 98)])
    assert [0, SECOND // 2, SECOND] == [time for time, _ in series(profile, "iteration_ns")]
    assert profile.capture["t0_unix_ns"].isna().all()
    assert (
        "time stamps that cannot be (1, first in line 2): times are the sums of the iterations instead" in profile.notes
    )


def test_a_number_that_cannot_be_moves_no_time_beyond_int64(tmp_path: Path) -> None:
    """A trillion iterations in between would last 15,000 years: the line counts as the next one."""
    lines = [line.replace("/     100", "/ many") for line in (files.timed(n, 500.0) for n in (1, 10**12 - 1))]
    assert [0, SECOND // 2] == [time for time, _ in series(read(tmp_path, lines), "iteration_ns")]


def test_bytes_that_are_no_text_are_noted_with_their_line(tmp_path: Path) -> None:
    """An unreadable stretch of a log: its lines are counted; the blanks of a progress bar are text."""
    path = files.written(tmp_path / "train.log", ["a bar\b\b\x1b[0m", "X", *files.training()])
    path.write_bytes(path.read_bytes().replace(b"X\n", b"\xff\x10\xfe\n"))
    assert "lines hold bytes that are no text (1, first in line 2)" in deepspeed.read(path).notes


def test_long_words_take_no_time(tmp_path: Path) -> None:
    """A word of a million letters between the fields is passed over once, not once per letter."""
    line = files.timed(1, 500.0, TFLOPs=100.0)
    profile = read(tmp_path, [line.replace(" | learning", f" | {'y' * 1_000_000} | learning")])
    assert [(0, 1e14)] == series(profile, "training_flops_per_s")

"""``nvidia-smi dmon``: every layout of its header, units, clocks and GPUs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from readers import smi_files as smi

from perfkit.errors import ReadError
from perfkit.readers.nvidia_smi.fields import DMON, METRICS, UNITS

SECOND = 1_000_000_000


def times(path: Path) -> list[int]:
    """The times of one metric of GPU 0."""
    samples = smi.read(path).table("SAMPLES")
    found: pd.Series = samples.loc[(samples["metric"] == "power_w") & (samples["gpu"] == 0), "time_ns"]
    return found.tolist()


def test_units_are_those_of_the_metrics(tmp_path: Path) -> None:
    """57 % is 0.57, 1980 MHz 1.98e9 Hz, 2 MB 2 MiB = 2097152 bytes, 3 MB/s 3e6 bytes/s; a flag stays 1."""
    columns = ("gpu", "pwr", "gtemp", "sm", "pclk", "pviol", "tviol", "fb", "bar1", "rxpci", "txpci", "pci", "sbecc")
    row = ("0", "631", "63", "57", "1980", "29", "1", "2", "1", "3", "4", "5", "6")
    samples = smi.read(smi.dmon(tmp_path / "gpu.log", row, columns=columns)).table("SAMPLES")
    assert {
        "power_w": 631.0,
        "temperature_c": 63.0,
        "gpu_busy_frac": 0.57,
        "sm_clock_hz": 1.98e9,
        "power_violation_frac": 0.29,
        "thermal_violation_frac": 1.0,
        "memory_used_bytes": 2097152.0,
        "bar1_used_bytes": 1048576.0,
        "pcie_rx_bytes_per_s": 3e6,
        "pcie_tx_bytes_per_s": 4e6,
        "pcie_replay_count": 5.0,
        "ecc_corrected_lifetime_count": 6.0,
    } == dict(zip(samples["metric"], samples["value"], strict=True))


def test_the_usual_unit_of_each_column_is_one_of_its_metric() -> None:
    """A log that lost its row of units is read with dmon's own, all of which are known."""
    for field, unit in DMON.values():
        assert any(METRICS[field].endswith(suffix) and unit in units for suffix, units in UNITS.items()), field


def test_gpus_and_ticks_stay_apart(tmp_path: Path) -> None:
    """Two GPUs of six ticks: 600 to 605 W and 500 to 505 W, a second apart, over the header that comes again."""
    profile = smi.read(smi.dmon(tmp_path / "gpu.log", *smi.ticks()))
    samples = profile.table("SAMPLES")
    power = samples[samples["metric"] == "power_w"]
    assert [0] * 6 + [1] * 6 == power["gpu"].tolist()
    assert [*range(600, 606), *range(500, 506)] == power["value"].tolist()
    assert [tick * SECOND for tick in range(6)] * 2 == power["time_ns"].tolist()
    capture = profile.capture.iloc[0]
    assert ("nvidia-smi dmon", 5 * SECOND, True) == (capture["tool"], capture["dur_ns"], pd.isna(capture["t0_unix_ns"]))
    assert any("record with `-o DT`" in note for note in profile.notes)


def test_the_order_of_the_gpus_changes_nothing(tmp_path: Path) -> None:
    """GPUs printed in descending order, as `-i 1,0` may, are the same samples."""
    rows = smi.ticks()
    turned = [rows[i ^ 1] for i in range(len(rows))]
    ascending = smi.read(smi.dmon(tmp_path / "a.log", *rows)).table("SAMPLES")
    descending = smi.read(smi.dmon(tmp_path / "b.log", *turned)).table("SAMPLES")
    pd.testing.assert_frame_equal(ascending, descending)


def test_columns_are_read_by_their_names(tmp_path: Path) -> None:
    """Any columns in any order say the same."""
    order = [0, 4, 7, 2, 6, 1, 5, 3]
    plain = smi.read(smi.dmon(tmp_path / "a.log", *smi.ticks())).table("SAMPLES")
    rows = [[row[i] for i in order] for row in smi.ticks()]
    moved = smi.read(smi.dmon(tmp_path / "b.log", *rows, columns=[smi.COLUMNS[i] for i in order])).table("SAMPLES")
    pd.testing.assert_frame_equal(plain, moved)


@pytest.mark.parametrize("change", ["no hash", "no units", "commas", "tabs", "one space", "header once"])
def test_every_layout_reads_the_same(change: str, tmp_path: Path) -> None:
    """Lost hashes, a lost row of units, `--format csv` and other white space change nothing."""
    path = smi.dmon(tmp_path / "gpu.log", *smi.ticks())
    plain = smi.read(path).table("SAMPLES")
    text = path.read_text()
    lines = text.splitlines()
    path.write_text(
        {
            "no hash": text.replace("# ", ""),
            "no units": "\n".join(line for line in lines if "Idx" not in line) + "\n",
            "commas": "\n".join(", ".join(line.split()).replace("#, ", "# ") for line in lines) + "\n",
            "tabs": "\n".join("\t".join(line.split()).replace("#\t", "# ") for line in lines) + "\n",
            "one space": "\n".join(" ".join(line.split()) for line in lines) + "\n",
            "header once": "\n".join([*lines[:2], *(line for line in lines if "#" not in line)]) + "\n",
        }[change]
    )
    pd.testing.assert_frame_equal(plain, smi.read(path).table("SAMPLES"))


STAMPS = [("20251231", "23:59:58"), ("20251231", "23:59:59"), ("20260101", "00:00:01")]


@pytest.mark.parametrize("order", [("Date", "Time"), ("Time", "Date")])
def test_date_and_time_are_the_clock(order: tuple[str, str], tmp_path: Path) -> None:
    """2025-12-31 23:59:58 is 1767225598 s after 1970; the rows are 1 s and 3 s later, over midnight; `-o TD` too."""
    stamps = STAMPS if order[0] == "Date" else [stamp[::-1] for stamp in STAMPS]
    rows = [(*stamp, *smi.ticks(1)[0]) for stamp in stamps]
    path = smi.dmon(tmp_path / "gpu.log", *rows, columns=(*order, *smi.COLUMNS))
    assert path.read_text().startswith(f"#{order[0]}")
    assert [0, SECOND, 3 * SECOND] == times(path)
    profile = smi.read(path)
    assert 1767225598 * SECOND == profile.capture["t0_unix_ns"].iloc[0]
    assert "the times are local ones without a zone, taken as UTC" in profile.notes


def test_a_time_without_date_goes_on_after_midnight(tmp_path: Path) -> None:
    """With `-o T` 00:00:01 follows 23:59:59 by 2 s; when that was is not known."""
    rows = [(time, *smi.ticks(1)[0]) for _, time in STAMPS]
    path = smi.dmon(tmp_path / "gpu.log", *rows, columns=("Time", *smi.COLUMNS))
    assert [0, SECOND, 3 * SECOND] == times(path)
    assert smi.read(path).capture["t0_unix_ns"].isna().all()


def test_a_date_without_time_is_no_clock(tmp_path: Path) -> None:
    """With `-o D` rows are a second apart, as without."""
    rows = [(date, *smi.ticks(1)[0]) for date, _ in STAMPS]
    path = smi.dmon(tmp_path / "gpu.log", *rows, columns=("Date", *smi.COLUMNS))
    assert [0, SECOND, 2 * SECOND] == times(path)


def test_a_clock_that_was_set_back_is_noted(tmp_path: Path) -> None:
    """Rows are put in the order of their times, the earliest at 0, and a note says what happened."""
    rows = [("20260101", time, *smi.ticks(1)[0]) for time in ("03:00:00", "02:00:00", "02:00:01")]
    path = smi.dmon(tmp_path / "gpu.log", *rows, columns=("Date", "Time", *smi.COLUMNS))
    assert [0, SECOND, 3600 * SECOND] == times(path)
    assert "the clock was set back while the log was written" in smi.read(path).notes


@pytest.mark.parametrize(("name", "wrong"), [("Time", "24:00:00"), ("Time", "12:00"), ("Date", "20260230")])
def test_a_time_that_is_none_is_an_error(name: str, wrong: str, tmp_path: Path) -> None:
    """There is no hour 24 and no 30 February."""
    stamp = {"Date": "20260101", "Time": "00:00:00", name: wrong}
    rows = [("20260101", "00:00:00", *smi.ticks(1)[0]), (stamp["Date"], stamp["Time"], *smi.ticks(1)[0])]
    path = smi.dmon(tmp_path / "gpu.log", *rows, columns=("Date", "Time", *smi.COLUMNS))
    with pytest.raises(ReadError, match=f"line 4: {name} is '{wrong}'"):
        smi.read(path)


def test_dashes_are_counted_and_no_samples(tmp_path: Path) -> None:
    """In MIG mode sm and mem are dashes: the metrics are absent, the note counts them, missing names DCGM."""
    rows = [(*row[:4], "-", "-", *row[6:]) for row in smi.ticks(2)]
    profile = smi.read(smi.dmon(tmp_path / "gpu.log", *rows))
    assert {"power_w", "temperature_c", "sm_clock_hz", "memory_clock_hz"} == set(profile.table("SAMPLES")["metric"])
    assert "not available: sm 4 of 4, mem 4 of 4, mtemp 4 of 4" in profile.notes
    assert any(m.table == "SAMPLES.gpu_busy_frac" and "dcgmi dmon" in m.record for m in profile.missing)


def test_a_value_that_is_there_only_at_times_has_rows_only_then(tmp_path: Path) -> None:
    """Of three ticks one has a memory temperature: one sample, at its own time."""
    rows = [(*row[:3], mtemp, *row[4:]) for row, mtemp in zip(smi.ticks(3, gpus=1), ("-", "57", "N/A"), strict=True)]
    samples = smi.read(smi.dmon(tmp_path / "gpu.log", *rows)).table("SAMPLES")
    found = samples[samples["metric"] == "memory_temperature_c"]
    assert [(SECOND, 57.0)] == list(zip(found["time_ns"], found["value"], strict=True))


def test_columns_that_are_no_metric_are_named_in_a_note(tmp_path: Path) -> None:
    """ccpm, an unknown column and a known one in an unknown unit are left out, whatever stands in them."""
    path = smi.dmon(
        tmp_path / "gpu.log",
        *[(*row, "0", "-", "what") for row in smi.ticks(2)],
        columns=(*smi.COLUMNS, "ccpm", "rxpci", "new"),
    )
    path.write_text(path.read_text().replace("MB/s", "Gb/s"))
    profile = smi.read(path)
    assert "columns that are no metric: ccpm, rxpci, new" in profile.notes
    assert "pcie_rx_bytes_per_s" not in set(profile.table("SAMPLES")["metric"])


def test_the_metrics_of_hopper_are_read(tmp_path: Path) -> None:
    """`--gpm-metrics=2,3` adds the activity of the SMs and their occupancy, which are no utilisation."""
    path = smi.dmon(tmp_path / "gpu.log", ("0", "87", "45"), columns=("gpu", "pwr", "smutil"))
    path.write_text(path.read_text().replace("     %", " GPM:%"))
    assert [0.45] == smi.values(smi.read(path), "sm_active_frac")


@pytest.mark.parametrize("day", ["99991231", "00010101", "22000101"])
def test_a_date_that_int64_does_not_hold_is_an_error_with_its_line(day: str, tmp_path: Path) -> None:
    """Nanoseconds since 1970 end in 2262."""
    rows = [("20260101", "00:00:01", "0", "300"), (day, "00:00:02", "0", "300")]
    path = smi.dmon(tmp_path / "gpu.log", *rows, columns=("Date", "Time", "gpu", "pwr"))
    with pytest.raises(ReadError, match=f"line 4: Date is '{day}'"):
        smi.read(path)


def test_a_long_header_makes_no_long_message(tmp_path: Path) -> None:
    """A damaged header may be of any length; the message shows its beginning."""
    path = smi.dmon(tmp_path / "gpu.log", ("0", "300"), columns=("gpu", "pwr"))
    path.write_text(path.read_text().replace("pwr", "pwr" + " x" * 100_000, 1))
    with pytest.raises(ReadError, match=r"a column is there twice \(gpu pwr x") as caught:
        smi.read(path)
    assert len(str(caught.value)) < 500


LAYOUTS = {
    "right": lambda words: " " + "".join(f"{word:>9}" for word in words),
    "left": lambda words: "".join(f"{word:<9} " for word in words),
    "both": lambda words: "".join(f"{word:>9}  {'' if i % 2 else ' '}" for i, word in enumerate(words)),
    "single": lambda words: " ".join(words),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_cell_is_the_word_that_stands_there(layout: str, tmp_path: Path) -> None:
    """Words of 1 to 5 digits, padded left, right, both or not at all, are the values that were written."""
    random = np.random.default_rng(0)
    power, memory = random.integers(0, 900, 500), random.integers(0, 90_000, 500)
    rows = [
        (str(i % 4), str(p), "-" if i % 7 == 0 else str(m)) for i, (p, m) in enumerate(zip(power, memory, strict=True))
    ]
    text = ["# gpu   pwr   fb", "# Idx   W    MB", *(LAYOUTS[layout](row) for row in rows), ""]
    path = tmp_path / "gpu.log"
    path.write_text("\n".join(text))
    samples = smi.read(path).table("SAMPLES")
    for gpu in range(4):
        own = samples[samples["gpu"] == gpu]
        assert power[gpu::4].tolist() == own.loc[own["metric"] == "power_w", "value"].tolist()
        there = [m * 2**20 for i, m in enumerate(memory) if i % 4 == gpu and i % 7]
        assert there == own.loc[own["metric"] == "memory_used_bytes", "value"].tolist()


def test_a_line_that_is_no_row_is_found_however_far_it_is_indented(tmp_path: Path) -> None:
    """A message after 40 spaces and a blank line of 10,000 are no rows; the values around them stay."""
    path = smi.dmon(tmp_path / "gpu.log", *smi.ticks())
    plain = smi.read(path).table("SAMPLES")
    text = path.read_text().splitlines()
    path.write_text("\n".join([*text[:4], " " * 40 + "Failed to get utilization", " " * 10_000, *text[4:], ""]))
    profile = smi.read(path)
    pd.testing.assert_frame_equal(plain, profile.table("SAMPLES"))
    assert "nvidia-smi said 'Failed to get utilization'" in profile.notes


@pytest.mark.parametrize("wrong", ["12:61:00", "24:00:00", "12-30-00", "1a:00:00"])
def test_a_time_of_day_that_is_none_is_an_error(wrong: str, tmp_path: Path) -> None:
    """Eight characters that are no time are named with their line."""
    stamps = [("20260101", "12:00:00"), ("20260101", wrong)]
    path = smi.dmon(
        tmp_path / "gpu.log", *[(*s, *smi.ticks(1)[0]) for s in stamps], columns=("Date", "Time", *smi.COLUMNS)
    )
    with pytest.raises(ReadError, match=f"line 4: Time is '{wrong}'"):
        smi.read(path)


def test_a_leap_second_is_a_time(tmp_path: Path) -> None:
    """23:59:60 is a second after 23:59:59."""
    rows = [("20161231", clock, *smi.ticks(1)[0]) for clock in ("23:59:59", "23:59:60")]
    path = smi.dmon(tmp_path / "gpu.log", *rows, columns=("Date", "Time", *smi.COLUMNS))
    assert 10**9 == smi.read(path).capture["dur_ns"].item()

"""Logs of `nvidia-smi dmon` and `--query-gpu`."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from readers import smi_files as smi

from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers.nvidia_smi.fields import BITS, DMON, METRICS, QUERY, UNITS
from perfkit.readers.nvidia_smi.logs import KNOWN

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


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(("Time", wrong) for wrong in ("24:00:00", "12:00", "12:61:00", "12-30-00", "1a:00:00")),
        *(("Date", wrong) for wrong in ("20260230", "99991231", "00010101", "22000101")),
    ],
)
def test_a_time_that_is_none_is_an_error_with_its_line(name: str, wrong: str, tmp_path: Path) -> None:
    """There is no hour 24 and no 30 February, and int64 holds no nanoseconds since 1970 beyond 2262."""
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


def test_a_leap_second_is_a_time(tmp_path: Path) -> None:
    """23:59:60 is a second after 23:59:59."""
    rows = [("20161231", clock, *smi.ticks(1)[0]) for clock in ("23:59:59", "23:59:60")]
    path = smi.dmon(tmp_path / "gpu.log", *rows, columns=("Date", "Time", *smi.COLUMNS))
    assert 10**9 == smi.read(path).capture["dur_ns"].item()


def stamp(second: float) -> str:
    """A time of 2026-01-01 as nvidia-smi prints it."""
    return f"2026/01/01 00:{int(second) // 60:02d}:{second % 60:06.3f}"


def asked(path: Path, **columns: str | list[str]) -> Profile:
    """Read a query of GPU 0 with these columns (`__` stands for a dot), a row per second."""
    count = max((len(cells) for cells in columns.values() if isinstance(cells, list)), default=1)
    each = {name: cells if isinstance(cells, list) else [cells] * count for name, cells in columns.items()}
    named = {name.replace("__", "."): cells for name, cells in each.items()}
    rows = [(stamp(i), "0", *(cells[i] for cells in named.values())) for i in range(count)]
    return smi.read(smi.query(path, *rows, columns=("timestamp", "index", *named)))


def test_values_times_and_devices(tmp_path: Path) -> None:
    """Four seconds of two GPUs: 90 to 93 %, 1024 MiB = 2^30 bytes, 300.5 W; the first row is at 1767225600.25 s."""
    profile = smi.read(smi.query(tmp_path / "gpu.csv", *smi.moments()))
    for gpu in (0, 1):
        assert [0.9, 0.91, 0.92, 0.93] == smi.values(profile, "gpu_busy_frac", gpu)
        assert [2.0**30] * 4 == smi.values(profile, "memory_used_bytes", gpu)
        assert [300.5] * 4 == smi.values(profile, "power_w", gpu)
    samples = profile.table("SAMPLES")
    assert [0, SECOND, 2 * SECOND, 3 * SECOND] == sorted(set(samples["time_ns"]))
    capture = profile.capture.iloc[0]
    assert (1_767_225_600_250_000_000, 3 * SECOND) == (capture["t0_unix_ns"], capture["dur_ns"])
    assert ["NVIDIA A100"] * 2 == profile.table("DEVICES")["name"].tolist()


@pytest.mark.parametrize("header", [True, False], ids=["nounits", "no unit anywhere"])
def test_values_without_units_are_in_those_of_the_header(header: bool, tmp_path: Path) -> None:
    """`nounits` leaves the header as it is; without a unit anywhere nvidia-smi's own holds."""
    plain = smi.query(tmp_path / "a.csv", *smi.moments())
    names = smi.FIELDS if header else [name.split(" [")[0] for name in smi.FIELDS]
    rows = [(*row[:3], *(cell.split()[0] for cell in row[3:])) for row in smi.moments()]
    bare = smi.query(tmp_path / "b.csv", *rows, columns=names)
    pd.testing.assert_frame_equal(smi.read(plain).table("SAMPLES"), smi.read(bare).table("SAMPLES"))


def test_a_unit_in_a_value_goes_before_that_of_the_header(tmp_path: Path) -> None:
    """2 GiB under a header of MiB are 2^31 bytes."""
    profile = smi.read(smi.query(tmp_path / "g.csv", ("0", "2 GiB"), columns=("index", "memory.used [MiB]")))
    assert [2.0**31] == smi.values(profile, "memory_used_bytes")


def test_columns_in_any_order_say_the_same(tmp_path: Path) -> None:
    """The header decides what a cell is."""
    order = [3, 0, 6, 2, 1, 5, 4]
    plain = smi.read(smi.query(tmp_path / "a.csv", *smi.moments())).table("SAMPLES")
    rows = [[row[i] for i in order] for row in smi.moments()]
    moved = smi.read(smi.query(tmp_path / "b.csv", *rows, columns=[smi.FIELDS[i] for i in order])).table("SAMPLES")
    pd.testing.assert_frame_equal(plain, moved)


def test_a_header_that_comes_again_is_no_row(tmp_path: Path) -> None:
    """A loop in the shell appends the header each time: the samples are those of one log."""
    path = smi.query(tmp_path / "a.csv", *smi.moments())
    plain = smi.read(path).table("SAMPLES")
    head, *rows = path.read_text().splitlines()
    path.write_text("\n".join(line for row in rows for line in (head, row)) + "\n")
    pd.testing.assert_frame_equal(plain, smi.read(path).table("SAMPLES"))


@pytest.mark.parametrize(
    "spelling",
    [
        *("[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "[Function Not Found]", "[Insufficient Permissions]"),
        *("[Requested functionality has been deprecated]", "[GPU requires reset]"),
    ],
)
def test_every_spelling_of_nothing_is_no_sample(spelling: str, tmp_path: Path) -> None:
    """One of three values is not available: two samples, and a note that counts."""
    profile = asked(tmp_path / "gpu.csv", temperature__gpu=["60", spelling, "62"])
    assert [60.0, 62.0] == smi.values(profile, "temperature_c")
    assert "not available: temperature.gpu 1 of 3" in profile.notes


POWER = {"power.draw": "1 W", "power.draw.instant": "2 W", "power.draw.average": "3 W"}


@pytest.mark.parametrize(
    ("lacking", "power"), [((), 1), (("power.draw",), 2), (("power.draw", "power.draw.instant"), 3)]
)
def test_of_several_readings_of_power_one_counts(lacking: tuple[str, ...], power: float, tmp_path: Path) -> None:
    """power.draw, else .instant, else .average, whether a column is absent or never has a value."""
    for name in ("absent", "empty"):
        cells = {k: "[N/A]" if k in lacking else v for k, v in POWER.items() if name == "empty" or k not in lacking}
        path = smi.query(tmp_path / name, ("0", *cells.values()), columns=("index", *(f"{k} [W]" for k in cells)))
        assert [power] == smi.values(smi.read(path), "power_w")


def test_the_limit_is_the_enforced_one(tmp_path: Path) -> None:
    """What is enforced may be less than what was set."""
    profile = asked(tmp_path / "gpu.csv", power__limit="700.00 W", enforced__power__limit="650.00 W")
    assert [650.0] == smi.values(profile, "power_limit_w")


def test_names_describe_the_devices(tmp_path: Path) -> None:
    """Memory, capability and highest clock are those of the columns; a capability that is none is empty."""
    cells = {"name": "NVIDIA H100", "compute_cap": "9.0", "memory__total": "81559 MiB", "clocks__max__sm": "1980 MHz"}
    devices = asked(tmp_path / "a.csv", driver_version="590.48", temperature__gpu="60", **cells).table("DEVICES")
    row = devices.iloc[0]
    assert ("NVIDIA H100", "9.0", 81559 * 2**20, 1.98e9) == tuple(
        row[["name", "compute_capability", "memory_bytes", "clock_hz"]]
    )
    cells |= {"compute_cap": "[N/A]"}
    profile = asked(tmp_path / "b.csv", driver_version="590.48", temperature__gpu="60", **cells)
    assert "" == profile.table("DEVICES")["compute_capability"].iloc[0]
    assert "590.48" == profile.capture["tool_version"].iloc[0]


def test_command_asks_for_what_is_read() -> None:
    """Every column of the command that perfkit proposes is a metric, a reason or says which GPU it is."""
    found = re.search(r"--query-gpu=(\S+)", QUERY)
    assert found
    names = set(found[1].split(",")) - {"timestamp", "clocks_event_reasons.active"}
    assert names <= KNOWN


@pytest.mark.parametrize(
    ("mask", "power", "thermal", "other", "idle"),
    [
        (0x0, 0, 0, 0, 0),
        (0x1, 0, 0, 0, 1),
        (0x2, 0, 0, 1, 0),  # application clocks
        (0x4, 1, 0, 0, 0),  # software power cap
        (0x8, 0, 0, 1, 0),  # hardware slowdown, neither cause set
        (0x10, 0, 0, 1, 0),  # sync boost
        (0x20, 0, 1, 0, 0),  # software thermal slowdown
        (0x48, 0, 1, 0, 0),  # hardware slowdown because of heat
        (0x88, 1, 0, 0, 0),  # hardware slowdown because of the power brake
        (0x100, 0, 0, 1, 0),  # display clocks
        (0x10000, 0, 0, 1, 0),  # a reason of the future
        (0x1FF, 1, 1, 1, 1),
    ],
)
@pytest.mark.parametrize("word", ["event", "throttle"])
def test_reasons_are_told_by_nvmls_bits(
    word: str, mask: int, power: int, thermal: int, other: int, idle: int, tmp_path: Path
) -> None:
    """The mask of reasons, under the name before driver 535 and after."""
    profile = asked(tmp_path / "gpu.csv", **{f"clocks_{word}_reasons__active": f"0x{mask:016X}"})
    found = [
        smi.values(profile, f"{name}_frac")
        for name in ("throttled_power", "throttled_thermal", "throttled_other", "idle")
    ]
    assert [[power], [thermal], [other], [idle]] == found


@pytest.mark.parametrize("mask", [0x0, 0x4, 0x8, 0x48, 0x88, 0x21, 0x112])
def test_single_reasons_say_what_the_mask_says(mask: int, tmp_path: Path) -> None:
    """A column per reason, all of them, is the same as the mask, without a note."""
    bits = {reason: bit for reason, bit in BITS.items() if reason != "display_clocks_setting"}
    single = asked(
        tmp_path / "a.csv",
        **{f"clocks_event_reasons__{reason}": "Active" if mask & bit else "Not Active" for reason, bit in bits.items()},
    )
    whole = asked(tmp_path / "b.csv", clocks_event_reasons__active=hex(mask))
    pd.testing.assert_frame_equal(whole.table("SAMPLES"), single.table("SAMPLES"))
    assert not any("query clocks_event_reasons.active" in note for note in single.notes)


def test_a_part_of_the_reasons_is_noted(tmp_path: Path) -> None:
    """The power cap alone decides throttled_power_frac, and a note says what it does not know; heat is not told."""
    profile = asked(tmp_path / "gpu.csv", clocks_event_reasons__sw_power_cap=["Active", "Not Active", "[N/A]"])
    assert [1.0, 0.0] == smi.values(profile, "throttled_power_frac")
    assert {"throttled_power_frac"} == set(profile.table("SAMPLES")["metric"])
    assert (
        "throttled_power_frac knows nothing of hw_power_brake_slowdown: query clocks_event_reasons.active"
        in profile.notes
    )


def test_a_hardware_slowdown_without_its_cause_denies_neither(tmp_path: Path) -> None:
    """Inactive it rules both hardware causes out; active, either may be the cause: no sample of power, one of other."""
    profile = asked(
        tmp_path / "gpu.csv",
        clocks_event_reasons__sw_power_cap=["Not Active", "Not Active", "Active"],
        clocks_event_reasons__hw_slowdown=["Not Active", "Active", "Active"],
    )
    samples = profile.table("SAMPLES").set_index(["metric", "time_ns"])["value"]
    assert {0: 0.0, 2 * SECOND: 1.0} == samples["throttled_power_frac"].to_dict()
    assert {0: 0.0, SECOND: 1.0, 2 * SECOND: 1.0} == samples["throttled_other_frac"].to_dict()
    assert {0: 0.0} == samples["throttled_thermal_frac"].to_dict()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("active", "what"), ("sw_power_cap", "what"), ("active", "0x10000000000000000"), ("active", "-1")],
)
def test_a_reason_that_is_none_is_an_error(name: str, wrong: str, tmp_path: Path) -> None:
    """Neither a mask of 64 bits without a sign nor Active or Not Active."""
    with pytest.raises(ReadError, match=f"line 2: clocks_event_reasons.{name} is '{wrong}'"):
        asked(tmp_path / "gpu.csv", **{f"clocks_event_reasons__{name}": wrong})


def power(path: Path, rows: list[tuple[float, str, float]], *, name: str = "name") -> Profile:
    """Read a query of time, a name and power."""
    cells = [(stamp(time), said, f"{watts:.2f} W") for time, said, watts in rows]
    return smi.read(smi.query(path, *cells, columns=("timestamp", name, "power.draw [W]")))


def test_uuids_number_the_gpus_in_their_order(tmp_path: Path) -> None:
    """Without an index the first uuid is GPU 0, the second GPU 1, and a note says so."""
    profile = power(tmp_path / "g.csv", [(t, u, w) for t in range(3) for u, w in (("B", 1), ("A", 2))], name="uuid")
    assert ([1.0] * 3, [2.0] * 3) == (smi.values(profile, "power_w", 0), smi.values(profile, "power_w", 1))
    assert any("numbered in the order in which they appear" in note for note in profile.notes)


def test_names_that_differ_are_gpus(tmp_path: Path) -> None:
    """A T4 beside an A100, nothing but names: two GPUs, and a note that the index is better."""
    profile = power(tmp_path / "gpu.csv", [(t, n, w) for t in range(3) for n, w in (("A100", 1), ("T4", 2))])
    assert ([1.0] * 3, [2.0] * 3) == (smi.values(profile, "power_w", 0), smi.values(profile, "power_w", 1))
    assert ["A100", "T4"] == profile.table("DEVICES")["name"].tolist()
    assert any("taken to be of 2 GPUs" in note for note in profile.notes)


@pytest.mark.parametrize("step", [0.0, 0.004], ids=["same time", "milliseconds apart"])
@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_equal_names_in_bursts_are_as_many_gpus(gpus: int, step: float, tmp_path: Path) -> None:
    """Rows of one name come in bursts, a second apart: the k-th of a burst is GPU k, also in a cut last burst."""
    rows = [(t + k * step, "A100", float(k)) for t in range(4) for k in range(gpus)]
    profile = power(tmp_path / "gpu.csv", rows[:-1])
    assert [[float(k)] * (4 - (k == gpus - 1)) for k in range(gpus)] == [
        smi.values(profile, "power_w", k) for k in range(gpus)
    ]
    assert any(f"taken to be of {gpus} GPUs" in note for note in profile.notes)


def test_rows_at_irregular_steps_are_of_one_gpu(tmp_path: Path) -> None:
    """A log that stalls for four seconds is no burst: the samples of one GPU stay together."""
    rng = np.random.default_rng(0)
    seconds = np.cumsum(rng.choice([1.0, 1.002, 4.0], 40))
    for times in (seconds, [0, 1, 4], [0, 0.3, 1, 1.3]):
        profile = power(tmp_path / "gpu.csv", [(float(s), "RTX 4090", 1.0) for s in times])
        assert len(times) == len(smi.values(profile, "power_w", 0))
        assert any("taken to be of 1 GPU," in note for note in profile.notes)


@pytest.mark.parametrize("times", [[0, 0, 1, 2, 2, 3], [0, 0.001, 0.002, 0.003], [0, 0, 0.5, 0.5, 0.5, 1]])
def test_rows_of_several_gpus_that_nothing_tells_apart_are_an_error(times: list[float], tmp_path: Path) -> None:
    """One name, rows closer than nvidia-smi samples one GPU, and no burst like the other: nothing is guessed."""
    with pytest.raises(ReadError, match="rows of several GPUs, which nothing tells apart"):
        power(tmp_path / "gpu.csv", [(t, "A100", 1.0) for t in times])


def test_one_run_of_a_query_is_one_sample(tmp_path: Path) -> None:
    """A single row of a single GPU has time 0 and no duration."""
    profile = power(tmp_path / "gpu.csv", [(5, "A100", 1.0)])
    assert [1.0] == smi.values(profile, "power_w")
    assert 0 == profile.capture["dur_ns"].iloc[0]


def test_rows_without_times_are_a_second_apart(tmp_path: Path) -> None:
    """Without timestamp the n-th row of each GPU is at second n, the wall clock is unknown, and a note says so."""
    rows = [(str(gpu), f"{60 + tick}") for tick in range(3) for gpu in (0, 1)]
    profile = smi.read(smi.query(tmp_path / "gpu.csv", *rows, columns=("index", "temperature.gpu")))
    samples = profile.table("SAMPLES")
    assert [0, SECOND, 2 * SECOND] * 2 == samples["time_ns"].tolist()
    assert [60.0, 61.0, 62.0] * 2 == samples["value"].tolist()
    assert profile.capture["t0_unix_ns"].isna().all()
    assert any("add `timestamp`" in note for note in profile.notes)


def test_columns_that_are_no_metric_are_counted(tmp_path: Path) -> None:
    """A long query names the first five that are left out and counts the others, whatever stands in them."""
    profile = asked(tmp_path / "gpu.csv", temperature__gpu="60", **{f"new__field{i}": "\t?" for i in range(7)})
    listed = ", ".join(f"new.field{i}" for i in range(5))
    assert f"columns that are no metric: {listed} and 2 more" in profile.notes


def test_names_from_outside_stay_text(tmp_path: Path) -> None:
    """Markup and formulas in a name are the name."""
    name = '=cmd()<script>alert("x")</script>'
    assert name == asked(tmp_path / "g.csv", name=name, temperature__gpu="1").table("DEVICES")["name"].iloc[0]


def test_a_hole_in_a_log_is_noted(tmp_path: Path) -> None:
    """Twenty rows a second apart, but 28 s before line 12: rows of the middle may be lost."""
    times = [*range(10), *range(37, 47)]
    rows = [(stamp(second), str(gpu), f"{second} %") for second in times for gpu in range(2)]
    profile = smi.read(smi.query(tmp_path / "gpu.csv", *rows, columns=("timestamp", "index", "utilization.gpu [%]")))
    expected = "a row usually follows after 1.00 s, 1 after up to 28.0 s (the first is line 22): rows may be missing"
    assert expected in profile.notes
    whole = smi.read(smi.query(tmp_path / "whole.csv", *smi.moments(20)))
    assert not any("rows may be missing" in note for note in whole.notes)


@pytest.mark.parametrize("wrong", ["1970/01/01 00:00:05.000", "2099/01/01 00:00:00.000"])
def test_a_row_of_another_decade_is_an_error_with_its_line(wrong: str, tmp_path: Path) -> None:
    """One row of a clock that was not set yet would make the recording last 56 years."""
    rows = [(stamp(i), "0", "90 %") for i in range(4)]
    rows[2] = (wrong, "0", "90 %")
    path = smi.query(tmp_path / "gpu.csv", *rows, columns=("timestamp", "index", "utilization.gpu [%]"))
    with pytest.raises(ReadError, match=r"gpu.csv: line 4 was written (56|73) years (before|after) most others"):
        smi.read(path)


@pytest.mark.parametrize("wrong", ["9999/12/31 23:59:59.000", "0001/01/01 00:00:00.000", "2200/01/01 00:00:00.000"])
def test_a_time_that_int64_does_not_hold_is_an_error_with_its_line(wrong: str, tmp_path: Path) -> None:
    """Nanoseconds since 1970 reach from 1678 to 2262; differences from 1824 to 2115."""
    rows = [(stamp(0), "0", "90 %"), (wrong, "0", "90 %")]
    path = smi.query(tmp_path / "gpu.csv", *rows, columns=("timestamp", "index", "utilization.gpu [%]"))
    with pytest.raises(ReadError, match=f"gpu.csv: line 3: timestamp is '{wrong[:4]}"):
        smi.read(path)


def test_a_header_that_is_cut_behind_a_comma_is_an_error(tmp_path: Path) -> None:
    """The line is the header still, though a blank follows it; it has fewer columns than the rows."""
    path = smi.query(tmp_path / "gpu.csv", *smi.moments())
    path.write_text(path.read_text().replace(", temperature.gpu", " ", 1))
    with pytest.raises(ReadError, match="line 2 has 7 fields, the header has 6"):
        smi.read(path)


@pytest.mark.parametrize(("total", "size"), [("0.1 MiB", 104858), ("999999999999999 MiB", None), ("-5 MiB", None)])
def test_the_memory_of_a_gpu_is_whole_bytes(total: str, size: int | None, tmp_path: Path) -> None:
    """What is no whole number is rounded, what is beyond 2**53 bytes or negative is missing."""
    devices = asked(tmp_path / "gpu.csv", **{"name": "A100", "memory.total": total}).table("DEVICES")
    assert [size] == [None if pd.isna(m) else m for m in devices["memory_bytes"]]

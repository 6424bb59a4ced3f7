"""`dcgmi dmon` logs: columns, entities, ticks, cells without a value, and what stands around the rows."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from readers.dcgm_files import COLUMNS, dmon, ticks

from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers import dcgm
from perfkit.readers.dcgm.fields import BY_COLUMN, DCGM, EXPORTED, REASONS
from perfkit.tables import METRICS


def values(profile: Profile, metric: str, gpu: int = 0, rank: int = 0) -> list[float]:
    """The values of one metric of one GPU in the order of time."""
    samples = profile.table("SAMPLES")
    chosen = (samples["metric"] == metric) & (samples["gpu"] == gpu) & (samples["rank"] == rank)
    return samples.loc[chosen, "value"].tolist()


def test_rows_become_samples(tmp_path: Path) -> None:
    """Two GPUs, four ticks of which the first is N/A: 91, 92, 93 % at 1, 2, 3 s; power of GPU 1 is 301.5 W."""
    profile = dcgm.read(dmon(tmp_path / "dmon.txt", *ticks()))
    assert [0.91, 0.92, 0.93] == values(profile, "gpu_busy_frac")
    assert [301.5] * 3 == values(profile, "power_w", gpu=1)
    assert [0.75] * 3 == values(profile, "sm_active_frac")
    assert [0.5] * 3 == values(profile, "tensor_active_frac")
    samples = profile.table("SAMPLES")
    assert [1_000_000_000, 2_000_000_000, 3_000_000_000] == samples["time_ns"].drop_duplicates().tolist()
    assert 24 == len(samples)
    assert "8 of 32 values are missing (N/A, blank or impossible)" in profile.notes


def test_the_capture_has_no_wall_clock(tmp_path: Path) -> None:
    """dcgmi prints no time: t0 is NA, ticks are 1 s, and a note says so."""
    profile = dcgm.read(dmon(tmp_path / "dmon.txt", *ticks()))
    capture = profile.capture.iloc[0]
    assert ("dcgmi dmon", "", 3_000_000_000) == (capture["tool"], capture["tool_version"], capture["dur_ns"])
    assert pd.isna(capture["t0_unix_ns"])
    assert any("no time stamps" in note for note in profile.notes)


def test_field_ids_are_nvidias_not_the_guides(tmp_path: Path) -> None:
    """1002 is SM activity, 1003 occupancy, 1004 tensor cores, 1005 device memory, 1011 and 1012 NVLink (facts §1)."""
    by_id = {field.number: (field.short, field.metric) for field in DCGM}
    assert ("GRACT", "graphics_active_frac") == by_id[1001]
    assert ("SMACT", "sm_active_frac") == by_id[1002]
    assert ("SMOCC", "sm_occupancy_frac") == by_id[1003]
    assert ("TENSO", "tensor_active_frac") == by_id[1004]
    assert ("DRAMA", "dram_active_frac") == by_id[1005]
    assert ("NVLTX", "nvlink_tx_bytes_per_s") == by_id[1011]
    assert ("NVLRX", "nvlink_rx_bytes_per_s") == by_id[1012]
    assert len({field.number for field in DCGM}) == len(DCGM)


def test_every_field_is_a_metric_of_samples() -> None:
    """Canonical names only."""
    assert {field.metric for field in (*DCGM, *EXPORTED)} - {REASONS} <= set(METRICS)


@pytest.mark.parametrize(
    ("column", "cell", "metric", "expected"),
    [
        ("SMCLK", "1980", "sm_clock_hz", 1.98e9),
        ("MMTMP", "54", "memory_temperature_c", 54),
        ("TOTEC", "319159391", "energy_j", 319159.391),
        ("FBUSD", "4845", "memory_used_bytes", 4845 * 2**20),
        ("GPUTL", "100", "gpu_busy_frac", 1),
        ("DRAMA", "1.000", "dram_active_frac", 1),
        ("PCITX", "33011804.000", "pcie_tx_bytes_per_s", 33011804),
        ("TXTPT", "33011", "pcie_tx_bytes_per_s", 33011000),
        ("NBWLT", "200", "nvlink_bytes_per_s", 200 * 1000 * 1024),
        ("EPLMT", "700.000", "power_limit_w", 700),
        ("XIDER", "0", "xid_count", 0),
        ("PVIOL", "1500000000", "power_violation_ns", 1.5e9),
    ],
)
def test_units(column: str, cell: str, metric: str, expected: float, tmp_path: Path) -> None:
    """A column in DCGM's unit becomes its metric in base units."""
    profile = dcgm.read(dmon(tmp_path / "dmon.txt", ("GPU 0", [cell]), columns=[column]))
    assert [pytest.approx(expected)] == values(profile, metric)
    assert metric == BY_COLUMN[column].metric


@pytest.mark.parametrize(
    ("mask", "active"),
    [
        (0, set()),
        (0x1, {"idle_frac"}),
        (0x4, {"throttled_power_frac"}),
        (0x20, {"throttled_thermal_frac"}),
        (0x48, {"throttled_thermal_frac"}),
        (0x88, {"throttled_power_frac"}),
        (0x8, {"throttled_other_frac"}),
        (0x28, {"throttled_thermal_frac", "throttled_other_frac"}),
        (0x112, {"throttled_other_frac"}),
    ],
)
def test_event_reasons(mask: int, active: set[str], tmp_path: Path) -> None:
    """Field 112 is a mask; a hardware slowdown (0x8) is another reason unless a hardware cause (0x40, 0x80) is set."""
    profile = dcgm.read(dmon(tmp_path / "dmon.txt", ("GPU 0", [mask]), columns=["DVCCTR"]))
    samples = profile.table("SAMPLES")
    assert active == set(samples.loc[samples["value"] == 1, "metric"])
    assert 4 == len(samples)


def test_text_around_the_rows_is_left_out(tmp_path: Path) -> None:
    """Prompts, blank lines and the line about the signal are no rows; what dcgmi complains of is passed on."""
    rows = ticks(20, 1)
    path = dmon(tmp_path / "dmon.txt", *rows, around=["[me@host ~]$ dcgmi dmon -e 203,155,1002,1004", ""])
    path.write_text(path.read_text() + "\nError: lost connection\n\ndmon was stopped due to receiving a signal\n")
    profile = dcgm.read(path)
    assert 19 == len(values(profile, "power_w"))
    assert "lines that are neither header nor row are left out (3, first in line 1)" in profile.notes
    assert "dcgmi said: Error: lost connection" in profile.notes
    assert not any("me@host" in note for note in profile.notes)


def test_header_before_version_2_4(tmp_path: Path) -> None:
    """`# Entity` and ` Id` of DCGM 1.7 to 2.3, right-aligned, with N/W for what is not watched."""
    path = tmp_path / "dmon.txt"
    path.write_text(
        "# Entity  GPUTL  POWER\n      Id              W\n    GPU 0    N/W    N/A\n    GPU 0     42   61.5\n"
    )
    assert dcgm.sniff(path)
    profile = dcgm.read(path)
    assert ([0.42], [61.5]) == (values(profile, "gpu_busy_frac"), values(profile, "power_w"))


def test_columns_may_change_within_a_log(tmp_path: Path) -> None:
    """Two recordings in one file, the second with other columns: its ticks follow."""
    path = dmon(tmp_path / "dmon.txt", ("GPU 0", [40]), columns=["GPUTL"])
    more = dmon(tmp_path / "more.txt", ("GPU 0", ["0.5", 41]), columns=["TIMMA", "GPUTL"])
    path.write_text(path.read_text() + more.read_text())
    profile = dcgm.read(path)
    assert [0.4, 0.41] == values(profile, "gpu_busy_frac")
    assert "columns that no metric is known for are left out (TIMMA)" in profile.notes


def test_gpus_may_come_in_any_order(tmp_path: Path) -> None:
    """Some versions print GPUs descending, and a tick may lack one: a tick begins where an entity comes again."""
    rows = [("GPU 1", [10]), ("GPU 0", [20]), ("GPU 1", [11]), ("GPU 1", [12]), ("GPU 0", [22])]
    samples = dcgm.read(dmon(tmp_path / "dmon.txt", *rows, columns=["GPUTL"])).table("SAMPLES")
    assert [0, 2_000_000_000] == samples.query("gpu == 0")["time_ns"].tolist()
    assert [0, 1_000_000_000, 2_000_000_000] == samples.query("gpu == 1")["time_ns"].tolist()


def test_instances_beside_gpus_are_left_out(tmp_path: Path) -> None:
    """Values of MIG instances are relative to the instance, so they do not mix with those of the GPU."""
    rows = [("GPU 0", ["0.100"]), ("GPU-I 0", ["0.700"]), ("GPU-CI 0", ["0.700"]), ("Switch 0", ["N/A"])]
    profile = dcgm.read(dmon(tmp_path / "dmon.txt", *rows, columns=["SMACT"]))
    assert [0.1] == values(profile, "sm_active_frac")
    assert (
        "values of MIG instances are left out (2): they are relative to the instance, not to the GPU" in profile.notes
    )
    assert "rows of what is no GPU are left out (1)" in profile.notes


def test_instances_alone_are_read_as_gpus(tmp_path: Path) -> None:
    """Who has an instance only sees that: instances are numbered, and a note says what the numbers are."""
    rows = [("GPU-I 7", ["0.300"]), ("GPU-I 10", ["0.700"])]
    profile = dcgm.read(dmon(tmp_path / "dmon.txt", *rows, columns=["SMACT"]))
    assert ([0.3], [0.7]) == (values(profile, "sm_active_frac", 0), values(profile, "sm_active_frac", 1))
    assert any("gpu numbers the instances" in note for note in profile.notes)


def test_what_is_not_recorded_is_missing(tmp_path: Path) -> None:
    """A log of power alone says what else `dcgmi dmon` could have recorded, by the right field ids."""
    profile = dcgm.read(dmon(tmp_path / "dmon.txt", ("GPU 0", ["300.000"]), columns=["POWER"]))
    missing = {m.table: m.record for m in profile.missing}
    assert {"SAMPLES.sm_active_frac", "SAMPLES.tensor_active_frac", "SAMPLES.power_limit_w", "DEVICES"} <= set(missing)
    assert "SAMPLES.power_w" not in missing
    assert "1002,1003,1004,1005" in missing["SAMPLES.tensor_active_frac"]


def test_shortened_cells_are_missing(tmp_path: Path) -> None:
    """dcgmi ends what its column cannot hold in three dots: half a number is none."""
    profile = dcgm.read(dmon(tmp_path / "dmon.txt", ("GPU 0", ["12345...", "1.000"]), columns=["TOTEC", "POWER"]))
    assert ([], [1]) == (values(profile, "energy_j"), values(profile, "power_w"))


REFUSED = [
    ((), "the log has headers and no values. Record again"),
    ((("GPU 0", ["N/A"] * 4),), "none of its values is there"),
    ((("GPU 0", [1, 2, "\x01\x02", 4]),), "line 3 is not text"),
    ((("GPU 0", [1, 2, "what", 4]),), "line 3 has 'what' in column SMACT, which is no number"),
    ((("GPU 0", [1, 2]),), "no row has as many cells as its header .line 3."),
    ((("GPU 0,", ["1,", "2,", "3,", 4]),), "the log has headers and no values"),
]


@pytest.mark.parametrize(("rows", "message"), REFUSED, ids=[message[:30] for _, message in REFUSED])
def test_unusable_logs_are_refused(rows: tuple, message: str, tmp_path: Path) -> None:
    """Headers only, nothing but N/A, garbage, a wrong delimiter: an error that names the file, never a number."""
    path = dmon(tmp_path / "dmon.txt", *rows)
    with pytest.raises(ReadError, match=message) as caught:
        dcgm.read(path)
    assert str(path) in str(caught.value)


def test_dcgmis_own_error_is_passed_on(tmp_path: Path) -> None:
    """A header, then dcgmi's complaint: that is what the reader says."""
    path = dmon(tmp_path / "dmon.txt")
    path.write_text(path.read_text() + "Error setting watches. Result: -37: The third-party Profiling module\n")
    with pytest.raises(ReadError, match=r"dcgmi said 'Error setting watches. Result: -37"):
        dcgm.read(path)


def test_single_ragged_rows_are_left_out(tmp_path: Path) -> None:
    """A row that lost a cell in the middle of a log is counted, not guessed at."""
    path = dmon(tmp_path / "dmon.txt", ("GPU 0", [1, 2, 0, 0]), ("GPU 0", [1, 2, 0]), ("GPU 0", [3, 2, 0, 0]))
    profile = dcgm.read(path)
    assert [0.01, 0.03] == values(profile, "gpu_busy_frac")
    assert "rows with more or fewer cells than their header are left out (1, first in line 4)" in profile.notes


def test_other_logs_are_not_claimed(tmp_path: Path) -> None:
    """nvidia-smi's dmon, and a heading that begins with the same word, are somebody else's."""
    for text in ("# gpu   pwr\n# Idx     W\n    0    61\n", "# Entity Framework\n\nID mapping\n", ",".join(COLUMNS)):
        path = tmp_path / "other.txt"
        path.write_text(text)
        assert not dcgm.sniff(path)


def test_what_is_no_number_of_a_gpu_is_counted_with_its_line(tmp_path: Path) -> None:
    """No node has GPU 99999999999: its row is left out, the first such line is line 5, and the others are read."""
    path = dmon(tmp_path / "dmon.txt", *ticks(4, 1))
    path.write_text(path.read_text().replace("GPU 0 ", "GPU 99999999999 ", 3).replace("GPU 99999999999 ", "GPU 0 ", 2))
    profile = dcgm.read(path)
    assert 2 == len(values(profile, "power_w"))
    assert "lines that are neither header nor row are left out (1, first in line 5)" in profile.notes


@pytest.mark.parametrize("cell", ["1_000", "٣", "12\u20285"])
def test_what_only_python_takes_for_a_number_is_refused(cell: str, tmp_path: Path) -> None:
    """Neither underscores nor foreign digits nor foreign blanks stand in a number that dcgmi prints."""
    path = dmon(tmp_path / "dmon.txt", ("GPU 0", [50, cell, 0.5, 0.5]), ("GPU 0", [50, 300, 0.5, 0.5]))
    if "\u2028" in cell:
        assert (
            "rows with more or fewer cells than their header are left out (1, first in line 3)" in dcgm.read(path).notes
        )
        return
    with pytest.raises(ReadError, match=r"line 3 has .* in column POWER, which is no number"):
        dcgm.read(path)

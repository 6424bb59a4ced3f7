"""``nvidia-smi --query-gpu``: columns, units and names of every age, GPUs with and without an index, and reasons."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from readers import smi_files as smi

from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers.nvidia_smi.fields import BITS, QUERY
from perfkit.readers.nvidia_smi.logs import KNOWN

SECOND = 1_000_000_000


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
    ("name", "wrong"), [("active", "what"), ("sw_power_cap", "what"), ("active", "0x10000000000000000")]
)
def test_a_reason_that_is_none_is_an_error(name: str, wrong: str, tmp_path: Path) -> None:
    """Neither a mask of 64 bits nor Active or Not Active."""
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


def test_a_negative_mask_is_an_error(tmp_path: Path) -> None:
    """A mask of reasons has no sign: -1 would set every bit."""
    with pytest.raises(ReadError, match=r"clocks_event_reasons.active is '-1'"):
        asked(tmp_path / "gpu.csv", **{"clocks_event_reasons.active": "-1"})

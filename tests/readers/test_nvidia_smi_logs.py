"""Logs of `nvidia-smi dmon` and `--query-gpu`."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from readers import smi_files as smi

from perfkit.errors import ReadError
from perfkit.logs.nvidia_smi.fields import BITS, DMON, METRICS, QUERY, UNITS
from perfkit.logs.nvidia_smi.logs import KNOWN
from perfkit.profile import Profile

SECOND = 1_000_000_000


def times(path: Path) -> list[int]:
    samples = smi.read(path).table("SAMPLES")
    found: pd.Series = samples.loc[
        (samples["metric"] == "power_w") & (samples["gpu"] == 0), "time_ns"
    ]
    return found.tolist()


def same(first: Path, *others: Path) -> None:
    for other in others:
        pd.testing.assert_frame_equal(
            smi.read(first).table("SAMPLES"), smi.read(other).table("SAMPLES")
        )


def copied(path: Path, name: str, text: str) -> Path:
    path.with_name(name).write_text(text)
    return path.with_name(name)


def test_units_gpus_and_ticks(tmp_path: Path) -> None:
    columns = (
        "gpu",
        "pwr",
        "gtemp",
        "sm",
        "pclk",
        "pviol",
        "tviol",
        "fb",
        "bar1",
        "rxpci",
        "txpci",
        "pci",
        "sbecc",
    )
    row = ("0", "631", "63", "57", "1980", "29", "1", "2", "1", "3", "4", "5", "6")
    samples = smi.read(smi.dmon(tmp_path / "gpu.log", row, columns=columns)).table("SAMPLES")
    expected = {
        "power_w": 631.0,
        "temperature_c": 63.0,
        "gpu_busy_frac": 0.57,
        "sm_clock_hz": 1.98e9,
    }
    # A flag stays 1, and MB are MiB.
    expected |= {
        "power_violation_frac": 0.29,
        "thermal_violation_frac": 1.0,
        "memory_used_bytes": 2097152.0,
    }
    expected |= {
        "bar1_used_bytes": 1048576.0,
        "pcie_rx_bytes_per_s": 3e6,
        "pcie_tx_bytes_per_s": 4e6,
    }
    expected |= {"pcie_replay_count": 5.0, "ecc_corrected_lifetime_count": 6.0}
    assert expected == dict(zip(samples["metric"], samples["value"], strict=True))
    # A log that lost its row of units is read with dmon's own, all of which are known.
    for field, unit in DMON.values():
        assert any(
            METRICS[field].endswith(suffix) and unit in units for suffix, units in UNITS.items()
        ), field
    profile = smi.read(smi.dmon(tmp_path / "gpu.log", *smi.ticks()))
    samples = profile.table("SAMPLES")
    power = samples[samples["metric"] == "power_w"]
    assert [0] * 6 + [1] * 6 == power["gpu"].tolist()
    assert [*range(600, 606), *range(500, 506)] == power["value"].tolist()
    assert [tick * SECOND for tick in range(6)] * 2 == power["time_ns"].tolist()
    capture = profile.capture.iloc[0]
    assert ("nvidia-smi dmon", 5 * SECOND, True) == (
        capture["tool"],
        capture["dur_ns"],
        pd.isna(capture["t0_unix_ns"]),
    )
    assert any("record with `-o DT`" in note for note in profile.notes)


def test_every_order_and_layout_reads_the_same(tmp_path: Path) -> None:
    rows = smi.ticks()
    path = smi.dmon(tmp_path / "gpu.log", *rows)
    # GPUs in descending order, as `-i 1,0` may print them, and any columns in any order.
    turned = smi.dmon(tmp_path / "turned.log", *(rows[i ^ 1] for i in range(len(rows))))
    order = [0, 4, 7, 2, 6, 1, 5, 3]
    moved = [[row[i] for i in order] for row in rows]
    same(
        path,
        turned,
        smi.dmon(tmp_path / "moved.log", *moved, columns=[smi.COLUMNS[i] for i in order]),
    )
    text = path.read_text()
    lines = text.splitlines()
    for name, changed in {
        "no hash": [text.replace("# ", "")[:-1]],
        "no units": [line for line in lines if "Idx" not in line],
        "--format csv": [", ".join(line.split()).replace("#, ", "# ") for line in lines],
        "tabs": ["\t".join(line.split()).replace("#\t", "# ") for line in lines],
        "one space": [" ".join(line.split()) for line in lines],
        "header once": [*lines[:2], *(line for line in lines if "#" not in line)],
    }.items():
        same(path, copied(path, name, "\n".join(changed) + "\n"))
    path = smi.dmon(tmp_path / "gpu.log", *smi.ticks())
    text = path.read_text().splitlines()
    lines = [*text[:4], " " * 40 + "Failed to get utilization", " " * 10_000, *text[4:], ""]
    other = copied(path, "other.log", "\n".join(lines))
    same(path, other)
    assert "nvidia-smi said 'Failed to get utilization'" in smi.read(other).notes


STAMPS = [("20251231", "23:59:58"), ("20251231", "23:59:59"), ("20260101", "00:00:01")]


def stamped(path: Path, columns: tuple[str, ...], *stamps: tuple[str, ...]) -> Path:
    """A log of dmon with these columns of dates and times before the others."""
    return smi.dmon(
        path, *((*told, *smi.ticks(1)[0]) for told in stamps), columns=(*columns, *smi.COLUMNS)
    )


def test_dates_and_times(tmp_path: Path) -> None:
    for order, stamps in (
        (("Date", "Time"), STAMPS),
        (("Time", "Date"), [stamp[::-1] for stamp in STAMPS]),
    ):
        path = stamped(tmp_path / "gpu.log", order, *stamps)
        assert path.read_text().startswith(f"#{order[0]}")
        assert [0, SECOND, 3 * SECOND] == times(path)
        profile = smi.read(path)
        assert 1767225598 * SECOND == profile.capture["t0_unix_ns"].iloc[0]
        assert "the times are local ones without a zone, taken as UTC" in profile.notes
    # A time without a date goes on after midnight; a date without a time is no clock.
    path = stamped(tmp_path / "time.log", ("Time",), *((time,) for _, time in STAMPS))
    assert [0, SECOND, 3 * SECOND] == times(path)
    assert smi.read(path).capture["t0_unix_ns"].isna().all()
    assert [0, SECOND, 2 * SECOND] == times(
        stamped(tmp_path / "date.log", ("Date",), *((d,) for d, _ in STAMPS))
    )
    # Rows are put in the order of their times, the earliest at 0, and a note says what happened.
    back = [("20260101", time) for time in ("03:00:00", "02:00:00", "02:00:01")]
    path = stamped(tmp_path / "back.log", ("Date", "Time"), *back)
    assert [0, SECOND, 3600 * SECOND] == times(path)
    assert "the clock was set back while the log was written" in smi.read(path).notes
    path = stamped(
        tmp_path / "leap.log", ("Date", "Time"), ("20161231", "23:59:59"), ("20161231", "23:59:60")
    )
    assert SECOND == smi.read(path).capture["dur_ns"].item()  # a leap second
    for name, wrong in [
        *(("Time", wrong) for wrong in ("24:00:00", "12:00", "12:61:00", "12-30-00", "1a:00:00")),
        # int64 holds no nanoseconds since 1970 beyond 2262.
        *(("Date", wrong) for wrong in ("20260230", "99991231", "00010101", "22000101")),
    ]:
        right = {"Date": "20260101", "Time": "00:00:00"}
        rows = [tuple(told.values()) for told in (right, {**right, name: wrong})]
        with pytest.raises(ReadError, match=f"line 4: {name} is '{wrong}'"):
            smi.read(stamped(tmp_path / "gpu.log", ("Date", "Time"), *rows))


def test_columns_and_dashes_of_dmon(tmp_path: Path) -> None:
    # ccpm, an unknown column and a known one in an unknown unit are left out, whatever stands in them.
    rows = [(*row, "0", "-", "what") for row in smi.ticks(2)]
    path = smi.dmon(tmp_path / "gpu.log", *rows, columns=(*smi.COLUMNS, "ccpm", "rxpci", "new"))
    profile = smi.read(copied(path, "other.log", path.read_text().replace("MB/s", "Gb/s")))
    assert "columns that are no metric: ccpm, rxpci, new" in profile.notes
    assert "pcie_rx_bytes_per_s" not in set(profile.table("SAMPLES")["metric"])
    # `--gpm-metrics=2,3` adds the activity of the SMs and their occupancy, which are no utilisation.
    path = smi.dmon(tmp_path / "gpu.log", ("0", "87", "45"), columns=("gpu", "pwr", "smutil"))
    hopper = copied(path, "other.log", path.read_text().replace("     %", " GPM:%"))
    assert [0.45] == smi.values(smi.read(hopper), "sm_active_frac")
    rows = [(*row[:4], "-", "-", *row[6:]) for row in smi.ticks(2)]  # as in MIG mode
    profile = smi.read(smi.dmon(tmp_path / "gpu.log", *rows))
    assert {"power_w", "temperature_c", "sm_clock_hz", "memory_clock_hz"} == set(
        profile.table("SAMPLES")["metric"]
    )
    assert "not available: sm 4 of 4, mem 4 of 4, mtemp 4 of 4" in profile.notes
    assert any(
        m.table == "SAMPLES.gpu_busy_frac" and "dcgmi dmon" in m.record for m in profile.missing
    )
    # Of three ticks one has a memory temperature: one sample, at its own time.
    rows = [
        (*row[:3], mtemp, *row[4:])
        for row, mtemp in zip(smi.ticks(3, gpus=1), ("-", "57", "N/A"), strict=True)
    ]
    samples = smi.read(smi.dmon(tmp_path / "gpu.log", *rows)).table("SAMPLES")
    found = samples[samples["metric"] == "memory_temperature_c"]
    assert [(SECOND, 57.0)] == list(zip(found["time_ns"], found["value"], strict=True))


def stamp(second: float) -> str:
    return f"2026/01/01 00:{int(second) // 60:02d}:{second % 60:06.3f}"


def asked(path: Path, **columns: str | list[str]) -> Profile:
    count = max((len(cells) for cells in columns.values() if isinstance(cells, list)), default=1)
    each = {
        name: cells if isinstance(cells, list) else [cells] * count
        for name, cells in columns.items()
    }
    named = {name.replace("__", "."): cells for name, cells in each.items()}
    rows = [(stamp(i), "0", *(cells[i] for cells in named.values())) for i in range(count)]
    return smi.read(smi.query(path, *rows, columns=("timestamp", "index", *named)))


def test_values_and_headers_of_a_query(tmp_path: Path) -> None:
    profile = smi.read(smi.query(tmp_path / "gpu.csv", *smi.moments()))
    for gpu in (0, 1):
        assert [0.9, 0.91, 0.92, 0.93] == smi.values(profile, "gpu_busy_frac", gpu)
        assert [2.0**30] * 4 == smi.values(profile, "memory_used_bytes", gpu)  # 1024 MiB
        assert [300.5] * 4 == smi.values(profile, "power_w", gpu)
    samples = profile.table("SAMPLES")
    assert [0, SECOND, 2 * SECOND, 3 * SECOND] == sorted(set(samples["time_ns"]))
    capture = profile.capture.iloc[0]
    assert (1_767_225_600_250_000_000, 3 * SECOND) == (capture["t0_unix_ns"], capture["dur_ns"])
    assert ["NVIDIA A100"] * 2 == profile.table("DEVICES")["name"].tolist()
    plain, rows = smi.query(tmp_path / "plain.csv", *smi.moments()), smi.moments()
    # `nounits` leaves the header as it is; without a unit anywhere nvidia-smi's own holds.
    bare = [(*row[:3], *(cell.split()[0] for cell in row[3:])) for row in rows]
    same(plain, smi.query(tmp_path / "nounits.csv", *bare, columns=smi.FIELDS))
    same(
        plain,
        smi.query(
            tmp_path / "bare.csv", *bare, columns=[name.split(" [")[0] for name in smi.FIELDS]
        ),
    )
    order = [3, 0, 6, 2, 1, 5, 4]
    moved = [[row[i] for i in order] for row in rows]
    same(plain, smi.query(tmp_path / "moved.csv", *moved, columns=[smi.FIELDS[i] for i in order]))
    # A loop in the shell appends the header each time: the samples are those of one log.
    head, *lines = plain.read_text().splitlines()
    same(plain, copied(plain, "loop.csv", "\n".join(f"{head}\n{line}" for line in lines) + "\n"))
    # A unit in a value goes before that of the header.
    profile = smi.read(
        smi.query(tmp_path / "g.csv", ("0", "2 GiB"), columns=("index", "memory.used [MiB]"))
    )
    assert [2.0**31] == smi.values(profile, "memory_used_bytes")
    rows = [(str(gpu), f"{60 + tick}") for tick in range(3) for gpu in (0, 1)]
    profile = smi.read(smi.query(tmp_path / "gpu.csv", *rows, columns=("index", "temperature.gpu")))
    samples = profile.table("SAMPLES")
    assert [0, SECOND, 2 * SECOND] * 2 == samples["time_ns"].tolist()
    assert [60.0, 61.0, 62.0] * 2 == samples["value"].tolist()
    assert profile.capture["t0_unix_ns"].isna().all()
    assert any("add `timestamp`" in note for note in profile.notes)


NOTHING = (
    "[N/A]",
    "[Not Supported]",
    "[Unknown Error]",
    "[Requested functionality has been deprecated]",
)


def test_power_devices_and_the_proposed_command(tmp_path: Path) -> None:
    for spelling in NOTHING:
        profile = asked(tmp_path / "gpu.csv", temperature__gpu=["60", spelling, "62"])
        assert [60.0, 62.0] == smi.values(profile, "temperature_c")
        assert "not available: temperature.gpu 1 of 3" in profile.notes
    for lacking, power in (
        ((), 1),
        (("power.draw",), 2),
        (("power.draw", "power.draw.instant"), 3),
    ):
        for name in ("absent", "empty"):
            cells = {
                k: "[N/A]" if k in lacking else v
                for k, v in POWER.items()
                if name == "empty" or k not in lacking
            }
            path = smi.query(
                tmp_path / name,
                ("0", *cells.values()),
                columns=("index", *(f"{k} [W]" for k in cells)),
            )
            assert [power] == smi.values(smi.read(path), "power_w")
    # What is enforced may be less than what was set.
    limits = asked(tmp_path / "gpu.csv", power__limit="700.00 W", enforced__power__limit="650.00 W")
    assert [650.0] == smi.values(limits, "power_limit_w")
    cells = {
        "name": "NVIDIA H100",
        "compute_cap": "9.0",
        "memory__total": "81559 MiB",
        "clocks__max__sm": "1980 MHz",
    }
    cells |= {"driver_version": "590.48", "temperature__gpu": "60"}
    profile = asked(tmp_path / "a.csv", **cells)
    columns = ["name", "compute_capability", "memory_bytes", "clock_hz"]
    assert ["NVIDIA H100", "9.0", 81559 * 2**20, 1.98e9] == profile.table("DEVICES").iloc[0][
        columns
    ].tolist()
    assert "590.48" == profile.capture["tool_version"].iloc[0]
    # Markup and formulas in a name are the name; a capability that is none is empty.
    cells |= {"compute_cap": "[N/A]", "name": '=cmd()<script>alert("x")</script>'}
    assert [cells["name"], ""] == asked(tmp_path / "b.csv", **cells).table("DEVICES").iloc[0][
        columns[:2]
    ].tolist()
    # Memory that is no whole number is rounded, what is beyond 2**53 bytes or negative is missing.
    for total, size in (("0.1 MiB", 104858), ("999999999999999 MiB", None), ("-5 MiB", None)):
        devices = asked(tmp_path / "c.csv", **{"name": "A100", "memory.total": total}).table(
            "DEVICES"
        )
        assert [size] == [None if pd.isna(m) else m for m in devices["memory_bytes"]]
    found = re.search(r"--query-gpu=(\S+)", QUERY)
    assert found
    assert set(found[1].split(",")) - {"timestamp", "clocks_event_reasons.active"} <= KNOWN


POWER = {"power.draw": "1 W", "power.draw.instant": "2 W", "power.draw.average": "3 W"}


MASKS = {  # of reasons: power, thermal, other, idle
    0x0: (0, 0, 0, 0),
    0x1: (0, 0, 0, 1),
    0x4: (1, 0, 0, 0),  # software power cap
    0x8: (0, 0, 1, 0),  # hardware slowdown, neither cause set
    0x20: (0, 1, 0, 0),  # software thermal slowdown
    0x48: (0, 1, 0, 0),  # hardware slowdown because of heat
    0x88: (1, 0, 0, 0),  # hardware slowdown because of the power brake
    0x100: (0, 0, 1, 0),  # display clocks
    0x10000: (0, 0, 1, 0),  # a reason of the future
    0x1FF: (1, 1, 1, 1),
}


def test_reasons(tmp_path: Path) -> None:
    for mask in MASKS:
        names = ("throttled_power", "throttled_thermal", "throttled_other", "idle")
        for word in ("event", "throttle"):  # the name since driver 535, and before
            whole = asked(
                tmp_path / "a.csv", **{f"clocks_{word}_reasons__active": f"0x{mask:016X}"}
            )
            assert MASKS[mask] == tuple(
                v for name in names for v in smi.values(whole, f"{name}_frac")
            )
        bits = {reason: bit for reason, bit in BITS.items() if reason != "display_clocks_setting"}
        told = {reason: "Active" if mask & bit else "Not Active" for reason, bit in bits.items()}
        single = asked(
            tmp_path / "b.csv",
            **{f"clocks_event_reasons__{reason}": said for reason, said in told.items()},
        )
        assert not any("query clocks_event_reasons.active" in note for note in single.notes)
        if mask not in (0x100, 0x10000):  # these have no column
            pd.testing.assert_frame_equal(whole.table("SAMPLES"), single.table("SAMPLES"))
    # The power cap alone decides throttled_power_frac, and a note says what it does not know; heat is not told.
    profile = asked(
        tmp_path / "gpu.csv", clocks_event_reasons__sw_power_cap=["Active", "Not Active", "[N/A]"]
    )
    assert [1.0, 0.0] == smi.values(profile, "throttled_power_frac")
    assert {"throttled_power_frac"} == set(profile.table("SAMPLES")["metric"])
    unknown = "throttled_power_frac knows nothing of hw_power_brake_slowdown: query clocks_event_reasons.active"
    assert unknown in profile.notes
    # A hardware slowdown that is inactive rules both its causes out; active, either may be the cause: no sample of
    # power, one of other.
    profile = asked(
        tmp_path / "gpu.csv",
        clocks_event_reasons__sw_power_cap=["Not Active", "Not Active", "Active"],
        clocks_event_reasons__hw_slowdown=["Not Active", "Active", "Active"],
    )
    samples = profile.table("SAMPLES").set_index(["metric", "time_ns"])["value"]
    assert {0: 0.0, 2 * SECOND: 1.0} == samples["throttled_power_frac"].to_dict()
    assert {0: 0.0, SECOND: 1.0, 2 * SECOND: 1.0} == samples["throttled_other_frac"].to_dict()
    assert {0: 0.0} == samples["throttled_thermal_frac"].to_dict()
    # Neither a mask of 64 bits without a sign nor Active or Not Active.
    for name, wrong in (
        ("active", "what"),
        ("sw_power_cap", "what"),
        ("active", f"0x1{'0' * 16}"),
        ("active", "-1"),
    ):
        with pytest.raises(ReadError, match=f"line 2: clocks_event_reasons.{name} is '{wrong}'"):
            asked(tmp_path / "gpu.csv", **{f"clocks_event_reasons__{name}": wrong})


def power(path: Path, rows: list[tuple[float, str, float]], *, name: str = "name") -> Profile:
    cells = [(stamp(time), said, f"{watts:.2f} W") for time, said, watts in rows]
    return smi.read(smi.query(path, *cells, columns=("timestamp", name, "power.draw [W]")))


def test_which_gpu_a_row_is_of(tmp_path: Path) -> None:
    of_uuids = "uuid", "B", "A", "numbered in the order in which they appear"
    for name, first, second, said in (of_uuids, ("name", "A100", "T4", "taken to be of 2 GPUs")):
        rows = [(t, told, w) for t in range(3) for told, w in ((first, 1), (second, 2))]
        profile = power(tmp_path / "g.csv", rows, name=name)
        assert ([1.0] * 3, [2.0] * 3) == (
            smi.values(profile, "power_w", 0),
            smi.values(profile, "power_w", 1),
        )
        assert any(said in note for note in profile.notes)
    assert ["A100", "T4"] == profile.table("DEVICES")["name"].tolist()
    # Rows of one name come in bursts, a second apart: the k-th of a burst is GPU k.
    for step in [0.0, 0.004]:
        rows = [(t + k * step, "A100", float(k)) for t in range(4) for k in range(8)]
        profile = power(tmp_path / "gpu.csv", rows[:-1])  # the last burst is cut
        assert [[float(k)] * (4 - (k == 7)) for k in range(8)] == [
            smi.values(profile, "power_w", k) for k in range(8)
        ]
        assert any("taken to be of 8 GPUs" in note for note in profile.notes)
    # A log that stalls for four seconds is no burst.
    seconds = np.cumsum(np.random.default_rng(0).choice([1.0, 1.002, 4.0], 40))
    for times in (seconds, [0, 1, 4], [0, 0.3, 1, 1.3], [5]):
        profile = power(tmp_path / "gpu.csv", [(float(s), "RTX 4090", 1.0) for s in times])
        assert len(times) == len(smi.values(profile, "power_w", 0))
        assert len(times) == 1 or any("taken to be of 1 GPU," in note for note in profile.notes)
    assert 0 == profile.capture["dur_ns"].iloc[0]
    # Rows closer than nvidia-smi samples one GPU, and no burst like the other: nothing is guessed.
    for times in ([0, 0, 1, 2, 2, 3], [0, 0.001, 0.002, 0.003], [0, 0, 0.5, 0.5, 0.5, 1]):
        with pytest.raises(ReadError, match="rows of several GPUs, which nothing tells apart"):
            power(tmp_path / "gpu.csv", [(t, "A100", 1.0) for t in times])


def test_a_hole_and_a_row_of_another_age(tmp_path: Path) -> None:
    times = [*range(10), *range(37, 47)]
    rows = [(stamp(second), str(gpu), f"{second} %") for second in times for gpu in range(2)]
    profile = smi.read(
        smi.query(
            tmp_path / "gpu.csv", *rows, columns=("timestamp", "index", "utilization.gpu [%]")
        )
    )
    expected = "a row usually follows after 1.00 s, 1 after up to 28.0 s (the first is line 22): rows may be missing"
    assert expected in profile.notes
    whole = smi.read(smi.query(tmp_path / "whole.csv", *smi.moments(20)))
    assert not any("rows may be missing" in note for note in whole.notes)
    for wrong, finding in [
        # One row of a clock that was not set yet would make the recording last 56 years.
        *(
            (f"{year} 00:00:05.000", r"line 4 was written (56|73) years")
            for year in ("1970/01/01", "2099/01/01")
        ),
        # Nanoseconds since 1970 reach from 1678 to 2262; differences from 1824 to 2115.
        ("9999/01/01 00:00:00.000", "line 4: timestamp is '9999"),
    ]:
        rows = [(wrong if i == 2 else stamp(i), "0", "90 %") for i in range(4)]
        path = smi.query(
            tmp_path / "gpu.csv", *rows, columns=("timestamp", "index", "utilization.gpu [%]")
        )
        with pytest.raises(ReadError, match=f"gpu.csv: {finding}"):
            smi.read(path)

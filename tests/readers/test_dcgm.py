"""Logs of `dcgmi dmon`: what they become, what is refused, and real ones by their truth."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from readers.dcgm_files import (
    dmon,
    ticks,
)
from readers.smi_files import values
from readers.test_dcgm_prometheus import SCRAPES
from real import truth_of

from perfkit.errors import ReadError
from perfkit.logs import dcgm
from perfkit.logs.dcgm import forms, scaled, without_blanks
from perfkit.logs.dcgm.fields import BY_COLUMN, FIELDS, REASONS, Field
from perfkit.tables import METRICS


def test_rows_fields_units_and_reasons(tmp_path: Path) -> None:
    profile = dcgm.read(dmon(tmp_path / "dmon.txt", *ticks()))
    assert [0.91, 0.92, 0.93] == values(profile, "gpu_busy_frac")
    assert [301.5] * 3 == values(profile, "power_w", gpu=1)
    assert [0.75] * 3 == values(profile, "sm_active_frac")
    assert [0.5] * 3 == values(profile, "tensor_active_frac")
    samples = profile.table("SAMPLES")
    assert [1_000_000_000, 2_000_000_000, 3_000_000_000] == samples[
        "time_ns"
    ].drop_duplicates().tolist()
    assert 24 == len(samples)
    assert "8 of 32 values are missing (N/A, blank or impossible)" in profile.notes
    # dcgmi prints no time: t0 is NA, ticks are 1 s, and a note says so.
    capture = profile.capture.iloc[0]
    assert ("dcgmi dmon", "", 3_000_000_000) == (
        capture["tool"],
        capture["tool_version"],
        capture["dur_ns"],
    )
    assert pd.isna(capture["t0_unix_ns"])
    assert any("no time stamps" in note for note in profile.notes)
    # Names and numbers of fields are NVIDIA's (facts §1).
    by_id = {field.number: (field.short, field.metric) for field in FIELDS if field.number}
    known = {1001: ("GRACT", "graphics_active_frac"), 1002: ("SMACT", "sm_active_frac")}
    known |= {
        1003: ("SMOCC", "sm_occupancy_frac"),
        1004: ("TENSO", "tensor_active_frac"),
        1005: ("DRAMA", "dram_active_frac"),
    }
    known |= {1011: ("NVLTX", "nvlink_tx_bytes_per_s"), 1012: ("NVLRX", "nvlink_rx_bytes_per_s")}
    assert known.items() <= by_id.items()
    assert len({field.number for field in FIELDS if field.number}) == sum(
        field.number > 0 for field in FIELDS
    )
    assert {field.metric for field in FIELDS} - {REASONS} <= set(METRICS)
    for column, cell, metric, expected in [
        *(("SMCLK", "1980", "sm_clock_hz", 1.98e9), ("MMTMP", "54", "memory_temperature_c", 54)),
        *(
            ("TOTEC", "319159391", "energy_j", 319159.391),
            ("FBUSD", "4845", "memory_used_bytes", 4845 * 2**20),
        ),
        *(("GPUTL", "100", "gpu_busy_frac", 1), ("DRAMA", "1.000", "dram_active_frac", 1)),
        ("PCITX", "33011804.000", "pcie_tx_bytes_per_s", 33011804),
        ("TXTPT", "33011", "pcie_tx_bytes_per_s", 33011000),
        ("NBWLT", "200", "nvlink_bytes_per_s", 200 * 1000 * 1024),
        *(("EPLMT", "700.000", "power_limit_w", 700), ("XIDER", "0", "xid_count", 0)),
        ("PVIOL", "1500000000", "power_violation_ns", 1.5e9),
    ]:
        profile = dcgm.read(dmon(tmp_path / "dmon.txt", ("GPU 0", [cell]), columns=[column]))
        assert [pytest.approx(expected)] == values(profile, metric)
        assert metric == BY_COLUMN[column].metric
    for mask, active in [
        *((0, ()), (0x1, ("idle",)), (0x4, ("throttled_power",)), (0x20, ("throttled_thermal",))),
        *(
            (0x48, ("throttled_thermal",)),
            (0x88, ("throttled_power",)),
            (0x8, ("throttled_other",)),
        ),
        *((0x28, ("throttled_thermal", "throttled_other")), (0x112, ("throttled_other",))),
    ]:
        profile = dcgm.read(dmon(tmp_path / "dmon.txt", ("GPU 0", [mask]), columns=["DVCCTR"]))
        samples = profile.table("SAMPLES")
        assert {f"{name}_frac" for name in active} == set(
            samples.loc[samples["value"] == 1, "metric"]
        )
        assert 4 == len(samples)


def test_headers_rows_and_lines_that_are_none(tmp_path: Path) -> None:
    # Prompts, blank lines and the line about the signal; what dcgmi complains of is passed on.
    path = dmon(
        tmp_path / "dmon.txt",
        *ticks(20, 1),
        around=["[me@host ~]$ dcgmi dmon -e 203,155,1002,1004", ""],
    )
    path.write_text(
        path.read_text()
        + "\nError: lost connection\n\ndmon was stopped due to receiving a signal\n"
    )
    profile = dcgm.read(path)
    assert 19 == len(values(profile, "power_w"))
    assert (
        "lines that are neither header nor row are left out (3, first in line 1)" in profile.notes
    )
    assert "dcgmi said: Error: lost connection" in profile.notes
    assert not any("me@host" in note for note in profile.notes)
    # A row that lost a cell in the middle of a log is not guessed at.
    ragged = dmon(
        tmp_path / "dmon.txt",
        ("GPU 0", [1, 2, 0, 0]),
        ("GPU 0", [1, 2, 0]),
        ("GPU 0", [3, 2, 0, 0]),
    )
    profile = dcgm.read(ragged)
    assert [0.01, 0.03] == values(profile, "gpu_busy_frac")
    assert (
        "rows with more or fewer cells than their header are left out (1, first in line 4)"
        in profile.notes
    )
    # `# Entity` and ` Id` of DCGM 1.7 to 2.3, right-aligned, with N/W for what is not watched.
    path, rows = tmp_path / "dmon.txt", "    GPU 0    N/W    N/A\n    GPU 0     42   61.5\n"
    path.write_text(f"# Entity  GPUTL  POWER\n      Id              W\n{rows}")
    assert dcgm.sniff(path)
    profile = dcgm.read(path)
    assert ([0.42], [61.5]) == (values(profile, "gpu_busy_frac"), values(profile, "power_w"))
    # Two recordings in one file, the second with other columns: its ticks follow.
    more = dmon(
        tmp_path / "more.txt", ("GPU 0", ["0.5", 41]), columns=["TIMMA", "GPUTL"]
    ).read_text()
    path.write_text(dmon(path, ("GPU 0", [40]), columns=["GPUTL"]).read_text() + more)
    profile = dcgm.read(path)
    assert [0.4, 0.41] == values(profile, "gpu_busy_frac")
    assert "columns that no metric is known for are left out (TIMMA)" in profile.notes
    # Some versions print GPUs descending, and a tick may lack one: a tick begins where an entity comes again.
    rows = [("GPU 1", [10]), ("GPU 0", [20]), ("GPU 1", [11]), ("GPU 1", [12]), ("GPU 0", [22])]
    samples = dcgm.read(dmon(path, *rows, columns=["GPUTL"])).table("SAMPLES")
    assert [0, 2_000_000_000] == samples.query("gpu == 0")["time_ns"].tolist()
    assert [0, 1_000_000_000, 2_000_000_000] == samples.query("gpu == 1")["time_ns"].tolist()


def test_instances_and_what_is_missing(tmp_path: Path) -> None:
    # A MIG instance has metrics of its own; where several GPUs could be its own, its values are left out.
    rows = [
        ("GPU 0", ["0.100"]),
        ("GPU-I 0", ["0.700"]),
        ("GPU-CI 0", ["0.700"]),
        ("Switch 0", ["N/A"]),
    ]
    profile = dcgm.read(dmon(tmp_path / "dmon.txt", *rows, columns=["SMACT"]))
    assert [0.1] == values(profile, "sm_active_frac")
    assert (
        [0.7]
        == values(profile, "mig_gi_0_sm_active_frac")
        == values(profile, "mig_ci_0_sm_active_frac")
    )
    assert any(
        note.startswith("values of MIG instances (2) are metrics of their own")
        for note in profile.notes
    )
    assert "rows of what is no GPU are left out (1)" in profile.notes
    two = dcgm.read(dmon(tmp_path / "two.txt", ("GPU 1", ["0.2"]), *rows, columns=["SMACT"]))
    assert ["sm_active_frac"] == two.table("SAMPLES")["metric"].unique().tolist()
    assert any(note.startswith("values of MIG instances are left out (2)") for note in two.notes)
    # Who has an instance only sees that: instances are numbered, and a note says what the numbers are.
    alone = [("GPU-I 7", ["0.300"]), ("GPU-I 10", ["0.700"])]
    profile = dcgm.read(dmon(tmp_path / "dmon.txt", *alone, columns=["SMACT"]))
    assert ([0.3], [0.7]) == (
        values(profile, "sm_active_frac", 0),
        values(profile, "sm_active_frac", 1),
    )
    assert any("gpu numbers the instances" in note for note in profile.notes)
    profile = dcgm.read(dmon(tmp_path / "dmon.txt", ("GPU 0", ["300.000"]), columns=["POWER"]))
    missing = {m.table: m.record for m in profile.missing}
    assert {
        "SAMPLES.sm_active_frac",
        "SAMPLES.tensor_active_frac",
        "SAMPLES.power_limit_w",
        "DEVICES",
    } <= set(missing)
    assert "SAMPLES.power_w" not in missing
    assert "1002,1003,1004,1005" in missing["SAMPLES.tensor_active_frac"]
    # dcgmi ends what its column cannot hold in three dots: half a number is none.
    profile = dcgm.read(
        dmon(tmp_path / "dmon.txt", ("GPU 0", ["12345...", "1.000"]), columns=["TOTEC", "POWER"])
    )
    assert ([], [1]) == (values(profile, "energy_j"), values(profile, "power_w"))


REFUSED = [
    ((), "", "the log has headers and no values. Record again"),
    ((("GPU 0", ["N/A"] * 4),), "", "none of its values is there"),
    ((("GPU 0", [1, 2, "\x01\x02", 4]),), "", "line 3 is not text"),
    ((("GPU 0", [1, 2, "what", 4]),), "", "line 3 has 'what' in column SMACT, which is no number"),
    # What only Python takes for a number.
    ((("GPU 0", [1, "1_000", 3, 4]),), "", "line 3 has .* in column POWER, which is no number"),
    ((("GPU 0", [1, 2]),), "", "no row has as many cells as its header .line 3."),
    (
        (),
        "Error setting watches. Result: -37: The module\n",
        "dcgmi said 'Error setting watches. Result: -37",
    ),
]


def test_unusable_logs(tmp_path: Path) -> None:
    for rows, after, message in REFUSED:
        path = dmon(tmp_path / "dmon.txt", *rows)
        path.write_text(path.read_text() + after)
        with pytest.raises(ReadError, match=message) as caught:
            dcgm.read(path)
        assert str(path) in str(caught.value)


FIELD = {field.number: field for field in FIELDS if field.number}


def test_blanks_and_scales() -> None:
    # Every blank of dcgm_structs.h: not found, not supported and no permission lie just above it.
    blanks = [n + i for n in (2147483632, 140737488355328, 9223372036854775792) for i in range(4)]
    assert np.isnan(without_blanks(np.array([*map(float, blanks), float("inf")]))).all()
    # 2,147,483,636 mJ is energy; only the four blanks of 32 bits are none.
    values = np.array([0.0, 2147483631.0, 2147483636.0, 140737488355332.0])
    assert values.tolist() == without_blanks(values).tolist()
    for number, values, expected, note in [
        (1004, [0, 0.5, 1], [0, 0.5, 1], ""),
        (
            1004,
            [0, 85.5, 12],
            [0, 0.855, 0.12],
            "tensor_active_frac: written as percent (up to 85.5)",
        ),
        (
            1004,
            [0.5, 0.4, 1.05],
            [0.5, 0.4, None],
            "values that cannot be are left out (1, such as 1.05)",
        ),
        (1004, [0.5, 0.4, 50], [None] * 3, "left out, it should be at most 1 and is up to 50.0"),
        (
            1004,
            [0.5, 0.4, 5e9],
            [0.5, 0.4, None],
            "values that cannot be are left out (1, such as 5,000,000,000)",
        ),
        (203, [0, 99, 100], [0, 0.99, 1], ""),
        (203, [50, 4294967295], [0.5, None], "values that cannot be are left out (1"),
        *(
            (191, [110], [1.1], ""),
            (155, [651.3], [651.3], ""),
            (1002, [], [], ""),
            (1002, [None] * 3, [None] * 3, ""),
        ),
    ]:
        made, said = scaled(np.array(values, dtype=float), FIELD[number])
        assert np.array(expected, dtype=float) == pytest.approx(made, nan_ok=True)
        assert note in said
        assert bool(note) == bool(said)
        # Only DCGM's ratios are checked for percent: another exporter's ratio above 1 stays as it is.
        made, said = scaled(np.array([1.5]), Field(0, "", ("fan_speed_ratio",), "fan_frac"))
        assert ([1.5], "") == (made.tolist(), said)


DMON = [
    f"dcgmi_dmon_{name}.txt"
    for name in ("DCGM_issue244_8gpu_NA", "h100nvl_dcgm339", "mig_old_header")
]


def test_every_file_of_dcgm_and_no_other_is_claimed(profiles: Path) -> None:
    assert sorted([*DMON, *SCRAPES]) == sorted(
        f.name for f in (profiles / "monitor").iterdir() if dcgm.sniff(f)
    )


@pytest.mark.parametrize("name", DMON)
def test_dmon_equals_the_truth(profiles: Path, name: str) -> None:
    known = truth_of(profiles, "monitor", name)
    path = profiles / "monitor" / name
    profile = dcgm.read(path)
    expected = {}
    for entity, columns in known["per_entity"].items():
        kind, number = entity.split()[0], int(entity.split()[1])
        for column, figures in columns.items():  # instances have metrics of their own
            metric = f"mig_gi_{number}_" * (kind != "GPU") + BY_COLUMN[column].metric
            expected[number if kind == "GPU" else 0, metric] = figures
    grouped = profile.table("SAMPLES").groupby(["gpu", "metric"], observed=True)["value"]
    found = {
        key: {"n": len(v), "mean": v.mean(), "min": v.min(), "max": v.max()} for key, v in grouped
    }
    assert expected == found
    absent: dict[str, int] = {}
    rows: dict[str, int] = {}
    for one in forms.read_dmon(path).series:
        absent[one.field.short] = absent.get(one.field.short, 0) + sum(
            math.isnan(v) for v in one.values
        )
        rows[f"GPU {one.gpu}"] = len(one.values)
    whole = {
        entity: count
        for entity, count in known["rows_per_entity"].items()
        if entity.startswith("GPU ")
    }
    assert (known["not_available"], whole) == (
        {column: n for column, n in absent.items() if n},
        rows,
    )
    parts = len(known["columns"]) * sum(
        known["rows_per_entity"][e] for e in known["rows_per_entity"].keys() - whole
    )
    assert (parts > 0) == any(f"MIG instances ({parts})" in note for note in profile.notes)

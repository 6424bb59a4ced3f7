"""Logs of DCGM, pages of exporters and stored answers: what they become, what is refused; real ones by their truth."""

import json
import math
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from readers.dcgm_files import (
    COLUMNS,
    START_S,
    answer,
    dmon,
    labels,
    line,
    page,
    scrape,
    series,
    stored,
    ticks,
)
from real import truth_of

from perfkit.errors import ReadError
from perfkit.logs import dcgm
from perfkit.logs.dcgm import fields, forms, scaled, without_blanks
from perfkit.logs.dcgm.fields import BY_COLUMN, FIELDS, REASONS, Field
from perfkit.logs.dcgm.forms import read_answer
from perfkit.profile import Profile
from perfkit.tables import METRICS


def values(profile: Profile, metric: str, gpu: int = 0, rank: int = 0) -> list[float]:
    samples = profile.table("SAMPLES")
    chosen = (samples["metric"] == metric) & (samples["gpu"] == gpu) & (samples["rank"] == rank)
    return samples.loc[chosen, "value"].tolist()


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


EXPORTER = "nvidia_gpu_exporter__linux-x86_64__nvidia-h100-{}__590.48.01__load.metrics"
DMON = [
    f"dcgmi_dmon_{name}.txt"
    for name in ("DCGM_issue244_8gpu_NA", "h100nvl_dcgm339", "mig_old_header")
]
SCRAPES = [
    "dcgm_exporter_a100_mig.prom",
    "dcgm_exporter_t4_k8s.prom",
    *map(EXPORTER.format, ("80gb-hbm3", "mig")),
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


@pytest.mark.parametrize("name", SCRAPES)
def test_scrapes_equal_the_truth(profiles: Path, name: str) -> None:
    known = truth_of(profiles, "monitor", name)
    path = profiles / "monitor" / name
    lines = list(forms.parsed(path, path.read_text().split("\n")))
    assert (known["samples"], known["per_metric"]) == (
        len(lines),
        Counter(one.name for one in lines),
    )
    profile = dcgm.read(path)
    compared = 0
    for metric, by_gpu in known["main_values"].items():
        if metric in fields.METRICS:
            field = fields.METRICS[metric]
            whole = {gpu: value for gpu, value in by_gpu.items() if "/" not in gpu}
            for i, value in enumerate(whole.values()):
                assert [pytest.approx(value * field.scale)] == values(profile, field.metric, gpu=i)
                compared += 1
    assert compared >= 2


def scraped(path: Path, *text: str) -> Profile:
    return dcgm.read(scrape(path / "scrape.prom", *text))


def test_a_scrape_becomes_samples(tmp_path: Path) -> None:
    profile = scraped(tmp_path, *page())
    assert [0.5] == values(profile, "gpu_busy_frac")
    assert ([250.25], [400]) == (
        values(profile, "power_w", gpu=1),
        values(profile, "power_limit_w", gpu=1),
    )
    assert [2**30] == values(profile, "memory_used_bytes")
    assert [2**29] == values(profile, "driver_reserved_bytes")
    assert 2 * 10 == len(profile.table("SAMPLES"))
    assert ["NVIDIA A100-SXM4-80GB"] * 2 == profile.table("DEVICES")["name"].tolist()
    assert {0} == set(profile.table("SAMPLES")["time_ns"])
    assert pd.isna(profile.capture["t0_unix_ns"].iloc[0])
    assert "one scrape without time stamp: its time is 0" in profile.notes
    # Prometheus's own text carries ms since 1970, exactly kept.
    stamps = [
        line("DCGM_FI_DEV_GPU_TEMP", labels(), 60 + i, 1_700_000_000_123 + 500 * i)
        for i in range(3)
    ]
    profile = scraped(tmp_path, *stamps)
    assert 1_700_000_000_123_000_000 == profile.capture["t0_unix_ns"].iloc[0]
    assert [0, 500_000_000, 1_000_000_000] == profile.table("SAMPLES")["time_ns"].tolist()
    assert [60, 61, 62] == values(profile, "temperature_c")
    # OpenMetrics ends in # EOF, with or without an end of line, and counts in s.
    for end in ("# EOF\n", "# EOF"):
        (tmp_path / "open.prom").write_text(
            f"{line('DCGM_FI_DEV_GPU_TEMP', labels(), 60, '1700000000.125')}\n{end}"
        )
        assert (
            1_700_000_000_125_000_000
            == dcgm.read(tmp_path / "open.prom").capture["t0_unix_ns"].iloc[0]
        )
    # A scrape begins where a series comes again; without time stamps they are 1 s apart, and a note says so.
    profile = scraped(tmp_path, *page(), *page(i=1), *page(i=2))
    assert [0.5, 0.51, 0.52] == values(profile, "gpu_busy_frac", gpu=1)
    assert {0, 1_000_000_000, 2_000_000_000} == set(profile.table("SAMPLES")["time_ns"])
    assert any(note.startswith("3 scrapes without time stamps") for note in profile.notes)
    for blank in ["9223372036854775794", "2147483634", "140737488355329.0"]:
        text = [
            line("DCGM_FI_DEV_GPU_TEMP", labels(), 60),
            line("DCGM_FI_DEV_MEMORY_TEMP", labels(), blank),
        ]
        profile = scraped(tmp_path, *text)
        assert [] == values(profile, "memory_temperature_c")
        assert "1 of 2 values are missing (N/A, blank or impossible)" in profile.notes


def test_names_fields_and_labels(tmp_path: Path) -> None:
    for old, new in [
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO"),
        ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS"),
        ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"),
        ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO"),
        *(
            ("DCGM_FI_DEV_GPU_UTIL", "dcgm_gpu_utilization"),
            ("DCGM_FI_DEV_FB_USED", "dcgm_fb_used"),
        ),  # version 1
    ]:
        first, second = (
            scraped(tmp_path, line(name, labels(), 1)).table("SAMPLES") for name in (old, new)
        )
        pd.testing.assert_frame_equal(first, second)
    limits = {"DCGM_FI_DEV_POWER_MGMT_LIMIT": 400, "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": 350}
    profile = scraped(tmp_path, *(line(name, labels(), watts) for name, watts in limits.items()))
    assert [350] == values(profile, "power_limit_w")
    assert "second values of one metric at one time are left out (1)" in profile.notes
    name = 'DCGM_FI_DEV_GPU_TEMP{gpu="1", modelName="a \\"b\\" } , c=\\\\", Hostname="h"} 61'
    profile = scraped(tmp_path, name, "nvidia_smi_temperature_gpu 60", "go_goroutines 8")
    assert [61] == values(profile, "temperature_c", gpu=1, rank=1)
    assert [60] == values(profile, "temperature_c", gpu=0, rank=0)
    assert ['a "b" } , c=\\'] == profile.table("DEVICES")["name"].tolist()


def test_hosts_instances_and_uuids(tmp_path: Path) -> None:
    profile = scraped(
        tmp_path, *page(host="node10"), *page(host="node2", i=7)
    )  # node2 comes before node10
    assert ([0.57], [0.5]) == (
        values(profile, "gpu_busy_frac", rank=0),
        values(profile, "gpu_busy_frac", rank=1),
    )
    assert "2 hosts, which are ranks in the order of their names" in profile.notes
    every = " ".join(
        [*profile.notes, *(profile.table(t).to_string() for t in ("SAMPLES", "DEVICES", "CAPTURE"))]
    )
    assert "node" not in every.replace(str(tmp_path), "")
    part = labels(GPU_I_PROFILE="1g.5gb", GPU_I_ID="13")  # it has the labels of its GPU, too
    text = [
        line("DCGM_FI_PROF_DRAM_ACTIVE", told, value)
        for told, value in ((labels(), 0.5), (part, 0.75))
    ]
    assert [0.5] == values(scraped(tmp_path, *text), "dram_active_frac")
    # Two instances of GPU 0 and one of GPU 1 are 0, 1, 2; what their GPUs are called does not name them.
    parts = [(1, "3"), (0, "10"), (0, "9")]
    text = [
        line("DCGM_FI_PROF_DRAM_ACTIVE", labels(gpu, GPU_I_ID=i), int(i) / 100) for gpu, i in parts
    ]
    profile = scraped(tmp_path, *text)
    assert [[0.09], [0.1], [0.03]] == [values(profile, "dram_active_frac", gpu=i) for i in range(3)]
    assert "DEVICES" not in profile.loaders
    # nvidia_gpu_exporter says which GPU a UUID is; where it does not, they are numbered as they come.
    uuids = [f"0000000{i}" for i in range(2)]
    told = [f'nvidia_smi_index{{uuid="{uuid}"}} {1 - i}' for i, uuid in enumerate(uuids)]
    text = [f'nvidia_smi_temperature_gpu{{uuid="{uuid}"}} {60 + i}' for i, uuid in enumerate(uuids)]
    without, indexed = scraped(tmp_path, *text), scraped(tmp_path, *told, *text)
    assert ([60], [61]) == (
        values(without, "temperature_c", 0),
        values(without, "temperature_c", 1),
    )
    assert ([61], [60]) == (
        values(indexed, "temperature_c", 0),
        values(indexed, "temperature_c", 1),
    )
    assert "nvidia_gpu_exporter" == indexed.capture["tool"].iloc[0]


UNUSABLE = [
    ("DCGM_FI_DEV_GPU_TEMP{gpu=0} 60\nwhat is this\n", "line 1 is not Prometheus text"),
    ('DCGM_FI_DEV_GPU_TEMP{gpu="0"} 60\n<html>\n', "line 2 is not Prometheus text .'<html>'."),
    ('DCGM_FI_DEV_GPU_TEMP{gpu="0"} 60\n\udcff\udcfe\udcfd\n', "line 2 is not text"),
    (
        'DCGM_FI_DEV_VGPU_LICENSE_STATUS{gpu="0"} 0\n',
        "no metric of a GPU .*found: DCGM_FI_DEV_VGPU_LICENSE_STATUS",
    ),
    ("# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n", "no metric of a GPU .*found: no values"),
    ('DCGM_FI_DEV_GPU_TEMP{gpu="0"} 9223372036854775794\n', "none of its values is there"),
]


@pytest.mark.parametrize(("text", "message"), UNUSABLE, ids=[message for _, message in UNUSABLE])
def test_unusable_text_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "scrape.prom"
    path.write_bytes(os.fsencode(text))
    with pytest.raises(ReadError, match=message) as caught:
        dcgm.read(path)
    assert str(path) in str(caught.value)


def test_other_logs_and_lists_of_counters_are_not_claimed(tmp_path: Path) -> None:
    # The CSV that tells dcgm-exporter what to collect, a page without GPUs, and logs of other tools.
    csv = "# Format\nDCGM_FI_DEV_SM_CLOCK, gauge, SM clock.\n"
    logs = (
        "# gpu   pwr\n# Idx     W\n    0    61\n",
        "# Entity Framework\n\nID mapping\n",
        ",".join(COLUMNS),
    )
    for text in (csv, "# TYPE up gauge\nup 1\n", '{"status": "DCGM_"}', *logs):
        (tmp_path / "other").write_text(text)
        assert not dcgm.sniff(tmp_path / "other"), text


def test_numbers_times_and_sizes_that_cannot_be(tmp_path: Path) -> None:
    for number in ["4294967296", "-1", "nan"]:
        text = [
            line("DCGM_FI_DEV_GPU_TEMP", {**labels(), "gpu": gpu, "UUID": ""}, 60)
            for gpu in ("0", number)
        ]
        profile = scraped(tmp_path, *text)
        assert [60] == values(profile, "temperature_c")
        words = "series of GPUs with a number that cannot be are left out (1"
        assert any(note.startswith(words) for note in profile.notes)
    # Such times would move the start of the whole recording.
    for time in ["1e30", "5", "1e999999999"]:
        times = [1_700_000_000_000, 1_700_000_001_000, time]
        profile = scraped(
            tmp_path,
            *(line("DCGM_FI_DEV_GPU_TEMP", labels(), 60 + i, at) for i, at in enumerate(times)),
        )
        assert ([60, 61], 10**9) == (
            values(profile, "temperature_c"),
            profile.capture["dur_ns"].iloc[0],
        )
        note = "values without a time, or more than ten years before or after most others, are left out (1)"
        assert note in profile.notes
    # A mask is a whole number that is not negative; another has no reasons and is counted.
    for mask in ("-1", "0.5"):
        told = {"GPU-0": "4", "GPU-1": mask}
        text = [
            line("nvidia_smi_clocks_event_reasons_active", {"uuid": uuid}, m)
            for uuid, m in told.items()
        ]
        profile = scraped(tmp_path, *text)
        assert ([1.0], []) == tuple(
            values(profile, "throttled_power_frac", gpu=gpu) for gpu in (0, 1)
        )
        assert "4 of 8 values are missing (N/A, blank or impossible)" in profile.notes


def test_an_answer_becomes_samples(tmp_path: Path) -> None:
    profile = dcgm.read(stored(tmp_path / "gpus.json"))
    assert [0.5, 0.6, 0.7] == values(profile, "gpu_busy_frac", gpu=1)
    capture = profile.capture.iloc[0]
    assert (int(START_S * 1000) * 1_000_000, 2_000_000_000) == (
        capture["t0_unix_ns"],
        capture["dur_ns"],
    )
    assert "Prometheus" == capture["tool"]
    # The driver's version is a label; what a store of several servers warns of is a note.
    said, points = series("DCGM_FI_DEV_GPU_TEMP", 60, "NaN", 62, 63)
    versioned = ({**said, "DCGM_FI_DRIVER_VERSION": "590.48.01"}, points[:2])
    profile = dcgm.read(answer(tmp_path / "gpus.json", versioned, warnings=["store 2 is down"]))
    assert "590.48.01" == profile.capture["tool_version"].iloc[0]
    assert "Prometheus warned: store 2 is down" in profile.notes
    assert [60] == values(profile, "temperature_c")
    # The answer to a query of now is a vector, with one point per series.
    data = {"resultType": "vector", "result": [{"metric": said, "value": points[0]}]}
    (tmp_path / "now.json").write_text(json.dumps({"status": "success", "data": data}))
    assert [60] == values(dcgm.read(tmp_path / "now.json"), "temperature_c")
    # A new pod makes a new series of the same GPU: in the order of time, and each time once.
    later, earlier = (
        ({**said, "pod": "b"}, points[2:]),
        ({**said, "pod": "a"}, [points[0], points[2]]),
    )
    profile = dcgm.read(answer(tmp_path / "gpus.json", later, earlier))
    assert [60, 62, 63] == values(profile, "temperature_c")
    assert not any("second values" in note for note in profile.notes)


ANSWERS = [
    (
        '{"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {"',
        "not the whole answer",
    ),
    (
        '{"status": "error", "error": "query timed out", "x": "resultType"}',
        "answered with an error .query timed out.",
    ),
    (
        '{"status": "success", "data": {"resultType": "scalar", "result": []}}',
        "the answer is a scalar",
    ),
    ('{"status": "success", "data": {"resultType": "matrix", "result": []}}', "no metric of a GPU"),
]
NOT_WHOLE = "not the whole answer of a Prometheus server"


def test_unusable_answers_are_refused(tmp_path: Path) -> None:
    for text, message in ANSWERS:
        path = tmp_path / "gpus.json"
        path.write_text(text)
        with pytest.raises(ReadError, match=message) as caught:
            read_answer(path)
        assert str(path) in str(caught.value)
    for old, new, finding in [
        # Deeper than the parser follows, no UTF-8, halves of characters.
        *(
            (b'"1"', b"[" * 100_000, NOT_WHOLE),
            (b"A100", b"A\xff\xfe", NOT_WHOLE),
            (b'"1"', b'"\\ud800"', NOT_WHOLE),
        ),
        # JSON's parsers take the last of two: the points of the first would be lost without a word.
        (b'"values"', b'"values": [], "values"', "an object has the key 'values' twice"),
        # Values are text in an answer, and text may be anything, also what only Python takes for a number.
        *(
            (b'"50"', f'"{value}"'.encode(), "a value of a series is no number")
            for value in ("hot", "1_000")
        ),
    ]:
        path = stored(tmp_path / "gpus.json")
        path.write_bytes(path.read_bytes().replace(old, new, 1))
        with pytest.raises(ReadError, match=f"gpus.json: .*{finding}"):
            dcgm.read(path)


def test_times_and_gpus_of_an_answer(tmp_path: Path) -> None:
    for time in [1e300, -1e300, 9.3e9, 0]:
        said, points = series("DCGM_FI_DEV_GPU_TEMP", 60, 61, 62)
        profile = dcgm.read(answer(tmp_path / "gpus.json", (said, [*points, (time, "63")])))
        assert ([60, 61, 62], 2 * 10**9) == (
            values(profile, "temperature_c"),
            profile.capture["dur_ns"].iloc[0],
        )
        assert any("are left out (1)" in note for note in profile.notes)
    # The power of GPU 1 lost the labels `gpu` and `device`: its UUID, which another series has with them, says 1.
    busy, (said, points) = (
        series("DCGM_FI_DEV_GPU_UTIL", 50, gpu=1),
        series("DCGM_FI_DEV_POWER_USAGE", 70, gpu=1),
    )
    lost = {name: text for name, text in said.items() if name not in ("gpu", "device")}
    other = series("DCGM_FI_DEV_POWER_USAGE", 60)
    power = dcgm.read(answer(tmp_path / "gpus.json", busy, other, (lost, points)))
    assert ([60.0], [70.0]) == tuple(values(power, "power_w", gpu) for gpu in (0, 1))
    # Equal values of two UUIDs that both claim to be GPU 1 become one row a time: the rows of one GPU are gone.
    said, points = series("DCGM_FI_DEV_POWER_USAGE", 70, 70, gpu=1)
    second = {**said, "UUID": "GPU-another"}
    profile = dcgm.read(answer(tmp_path / "gpus.json", (said, points), (second, points)))
    assert 2 == len(profile.table("SAMPLES"))
    note = "two GPUs are numbered 1 on one host: their values are read as those of one GPU"
    assert [note] == [note for note in profile.notes if "numbered" in note]
    apart = dcgm.read(
        answer(tmp_path / "apart.json", (said, points), ({**second, "Hostname": "node2"}, points))
    )
    assert not any("numbered" in note for note in apart.notes)

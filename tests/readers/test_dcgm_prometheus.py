"""DCGM by Prometheus: scrapes of its exporter, and answers of a server."""

import json
import os
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from readers.dcgm_files import (
    COLUMNS,
    START_S,
    answer,
    labels,
    line,
    page,
    scrape,
    series,
    stored,
)
from readers.smi_files import values
from real import truth_of

from perfkit.errors import ReadError
from perfkit.logs import dcgm
from perfkit.logs.dcgm import fields, forms
from perfkit.logs.dcgm.forms import read_answer
from perfkit.profile import Profile

EXPORTER = "nvidia_gpu_exporter__linux-x86_64__nvidia-h100-{}__590.48.01__load.metrics"
SCRAPES = [
    "dcgm_exporter_a100_mig.prom",
    "dcgm_exporter_t4_k8s.prom",
    *map(EXPORTER.format, ("80gb-hbm3", "mig")),
]


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

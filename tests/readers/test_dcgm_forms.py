"""Prometheus text of the exporters, and stored answers of a Prometheus server."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pandas as pd
import pytest
from readers.dcgm_files import START_S, answer, labels, line, page, scrape, series, stored
from readers.test_dcgm import values

import perfkit
from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers import dcgm
from perfkit.readers.dcgm.forms import read_answer


def scraped(path: Path, *text: str) -> Profile:
    return dcgm.read(scrape(path / "scrape.prom", *text))


def test_a_scrape_becomes_samples(tmp_path: Path) -> None:
    profile = scraped(tmp_path, *page())
    assert [0.5] == values(profile, "gpu_busy_frac")
    assert ([250.25], [400]) == (values(profile, "power_w", gpu=1), values(profile, "power_limit_w", gpu=1))
    assert [2**30] == values(profile, "memory_used_bytes")
    assert [2**29] == values(profile, "driver_reserved_bytes")
    assert 2 * 10 == len(profile.table("SAMPLES"))
    assert ["NVIDIA A100-SXM4-80GB"] * 2 == profile.table("DEVICES")["name"].tolist()
    assert {0} == set(profile.table("SAMPLES")["time_ns"])
    assert pd.isna(profile.capture["t0_unix_ns"].iloc[0])
    assert "one scrape without time stamp: its time is 0" in profile.notes


def test_times_of_scrapes(tmp_path: Path) -> None:
    # Prometheus's own text carries ms since 1970, exactly kept.
    stamps = [line("DCGM_FI_DEV_GPU_TEMP", labels(), 60 + i, 1_700_000_000_123 + 500 * i) for i in range(3)]
    profile = scraped(tmp_path, *stamps)
    assert 1_700_000_000_123_000_000 == profile.capture["t0_unix_ns"].iloc[0]
    assert [0, 500_000_000, 1_000_000_000] == profile.table("SAMPLES")["time_ns"].tolist()
    assert [60, 61, 62] == values(profile, "temperature_c")
    # OpenMetrics ends in # EOF, with or without an end of line, and counts in s.
    for end in ("# EOF\n", "# EOF"):
        (tmp_path / "open.prom").write_text(f"{line('DCGM_FI_DEV_GPU_TEMP', labels(), 60, '1700000000.125')}\n{end}")
        assert 1_700_000_000_125_000_000 == dcgm.read(tmp_path / "open.prom").capture["t0_unix_ns"].iloc[0]
    # A scrape begins where a series comes again; without time stamps they are 1 s apart, and a note says so.
    profile = scraped(tmp_path, *page(), *page(i=1), *page(i=2))
    assert [0.5, 0.51, 0.52] == values(profile, "gpu_busy_frac", gpu=1)
    assert {0, 1_000_000_000, 2_000_000_000} == set(profile.table("SAMPLES")["time_ns"])
    assert any(note.startswith("3 scrapes without time stamps") for note in profile.notes)


@pytest.mark.parametrize("blank", ["9223372036854775794", "2147483634", "140737488355329.0"])
def test_blank_values_give_no_row(blank: str, tmp_path: Path) -> None:
    text = [line("DCGM_FI_DEV_GPU_TEMP", labels(), 60), line("DCGM_FI_DEV_MEMORY_TEMP", labels(), blank)]
    profile = scraped(tmp_path, *text)
    assert [] == values(profile, "memory_temperature_c")
    assert "1 of 2 values are missing (N/A, blank or impossible)" in profile.notes


@pytest.mark.parametrize(
    ("old", "new"),  # DCGM 4.6 renamed fields and kept their units: GPU_UTIL_RATIO is still percent
    [
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO"),
        ("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO"),
        ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS"),
        ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS"),
        ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"),
        ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO"),
        *(("DCGM_FI_DEV_GPU_UTIL", "dcgm_gpu_utilization"), ("DCGM_FI_DEV_FB_USED", "dcgm_fb_used")),  # version 1
    ],
)
def test_old_and_new_names_mean_the_same(old: str, new: str, tmp_path: Path) -> None:
    first, second = (scraped(tmp_path, line(name, labels(), 1)).table("SAMPLES") for name in (old, new))
    pd.testing.assert_frame_equal(first, second)


def test_the_preferred_of_two_fields_is_read(tmp_path: Path) -> None:
    limits = {"DCGM_FI_DEV_POWER_MGMT_LIMIT": 400, "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": 350}
    profile = scraped(tmp_path, *(line(name, labels(), watts) for name, watts in limits.items()))
    assert [350] == values(profile, "power_limit_w")
    assert "second values of one metric at one time are left out (1)" in profile.notes


def test_hosts_are_ranks_and_stay_private(tmp_path: Path) -> None:
    profile = scraped(tmp_path, *page(host="node10"), *page(host="node2", i=7))  # node2 comes before node10
    assert ([0.57], [0.5]) == (values(profile, "gpu_busy_frac", rank=0), values(profile, "gpu_busy_frac", rank=1))
    assert "2 hosts, which are ranks in the order of their names" in profile.notes
    every = " ".join([*profile.notes, *(profile.table(t).to_string() for t in ("SAMPLES", "DEVICES", "CAPTURE"))])
    assert "node" not in every.replace(str(tmp_path), "")
    # Two scrapes in a folder are two ranks, as every other profile.
    (tmp_path / "run").mkdir()
    for i in range(2):
        scrape(tmp_path / "run" / f"node{i}.prom", *page(i=i))
    busy = perfkit.load(tmp_path / "run").samples.query("metric == 'gpu_busy_frac' and gpu == 0")
    assert {0: 0.5, 1: 0.51} == dict(zip(busy["rank"], busy["value"], strict=True))


def test_instances_beside_gpus_are_left_out_and_alone_are_numbered(tmp_path: Path) -> None:
    part = labels(GPU_I_PROFILE="1g.5gb", GPU_I_ID="13")  # it has the labels of its GPU, too
    text = [line("DCGM_FI_PROF_DRAM_ACTIVE", told, value) for told, value in ((labels(), 0.5), (part, 0.75))]
    assert [0.5] == values(scraped(tmp_path, *text), "dram_active_frac")
    # Two instances of GPU 0 and one of GPU 1 are 0, 1, 2; what their GPUs are called does not name them.
    parts = [(1, "3"), (0, "10"), (0, "9")]
    text = [line("DCGM_FI_PROF_DRAM_ACTIVE", labels(gpu, GPU_I_ID=i), int(i) / 100) for gpu, i in parts]
    profile = scraped(tmp_path, *text)
    assert [[0.09], [0.1], [0.03]] == [values(profile, "dram_active_frac", gpu=i) for i in range(3)]
    assert "DEVICES" not in profile.loaders


def test_labels_may_hold_anything(tmp_path: Path) -> None:
    name = 'DCGM_FI_DEV_GPU_TEMP{gpu="1", modelName="a \\"b\\" } , c=\\\\", Hostname="h"} 61'
    profile = scraped(tmp_path, name, "nvidia_smi_temperature_gpu 60", "go_goroutines 8")
    assert [61] == values(profile, "temperature_c", gpu=1, rank=1)
    assert [60] == values(profile, "temperature_c", gpu=0, rank=0)
    assert ['a "b" } , c=\\'] == profile.table("DEVICES")["name"].tolist()


def test_gpus_known_by_uuid_are_numbered_by_their_index(tmp_path: Path) -> None:
    """nvidia_gpu_exporter says which GPU a UUID is; where it does not, they are numbered as they come."""
    uuids = [f"0000000{i}" for i in range(2)]
    told = [f'nvidia_smi_index{{uuid="{uuid}"}} {1 - i}' for i, uuid in enumerate(uuids)]
    text = [f'nvidia_smi_temperature_gpu{{uuid="{uuid}"}} {60 + i}' for i, uuid in enumerate(uuids)]
    without, indexed = scraped(tmp_path, *text), scraped(tmp_path, *told, *text)
    assert ([60], [61]) == (values(without, "temperature_c", 0), values(without, "temperature_c", 1))
    assert ([61], [60]) == (values(indexed, "temperature_c", 0), values(indexed, "temperature_c", 1))
    assert "nvidia_gpu_exporter" == indexed.capture["tool"].iloc[0]
    for index in ("inf", "1e300", "-1", "99999"):  # that cannot be
        assert [60] == values(scraped(tmp_path, told[0][:-1] + index, text[0]), "temperature_c", gpu=0)


REFUSED = [
    ("DCGM_FI_DEV_GPU_TEMP{gpu=0} 60\nwhat is this\n", "line 1 is not Prometheus text"),
    ('DCGM_FI_DEV_GPU_TEMP{gpu="0"} 60\n<html>\n', "line 2 is not Prometheus text .'<html>'."),
    ('DCGM_FI_DEV_GPU_TEMP{gpu="0"} sixty\n', "line 1 is not Prometheus text"),
    ('DCGM_FI_DEV_GPU_TEMP{gpu="0"} 60\n\x00\x01\n', "line 2 is not text"),
    ('DCGM_FI_DEV_GPU_TEMP{gpu="0"} 60\n\udcff\udcfe\udcfd\n', "line 2 is not text"),
    ('DCGM_FI_DEV_VGPU_LICENSE_STATUS{gpu="0"} 0\n', "no metric of a GPU .*found: DCGM_FI_DEV_VGPU_LICENSE_STATUS"),
    ("# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n", "no metric of a GPU .*found: no values"),
    ('DCGM_FI_DEV_GPU_TEMP{gpu="0"} 9223372036854775794\n', "none of its values is there"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_unusable_text_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "scrape.prom"
    path.write_bytes(os.fsencode(text))
    with pytest.raises(ReadError, match=message) as caught:
        dcgm.read(path)
    assert str(path) in str(caught.value)


def test_lists_of_counters_are_not_scrapes(tmp_path: Path) -> None:
    # The CSV that tells dcgm-exporter what to collect, and a page without GPUs.
    csv = "# Format\nDCGM_FI_DEV_SM_CLOCK, gauge, SM clock.\n"
    for text in (csv, "# TYPE up gauge\nup 1\n", '{"status": "DCGM_"}'):
        (tmp_path / "other").write_text(text)
        assert not dcgm.sniff(tmp_path / "other")


@pytest.mark.parametrize("number", ["4294967296", "9" * 5000, "-1", "nan", "1["])
def test_a_number_that_no_gpu_has_is_left_out_and_counted(number: str, tmp_path: Path) -> None:
    text = [line("DCGM_FI_DEV_GPU_TEMP", {**labels(), "gpu": gpu, "UUID": ""}, 60) for gpu in ("0", number)]
    profile = scraped(tmp_path, *text)
    assert [60] == values(profile, "temperature_c")
    assert any(note.startswith("series of GPUs with a number that cannot be are left out (1") for note in profile.notes)


@pytest.mark.parametrize("time", ["1e30", "1" + "0" * 40, "-1e18", "5", "1e999999999"])
def test_a_time_that_cannot_be_is_left_out_and_counted(time: str, tmp_path: Path) -> None:
    """Times beyond int64 ns, and one of 1970 among those of 2023, would move the start of the whole recording."""
    times = [1_700_000_000_000, 1_700_000_001_000, time]
    profile = scraped(tmp_path, *(line("DCGM_FI_DEV_GPU_TEMP", labels(), 60 + i, at) for i, at in enumerate(times)))
    assert ([60, 61], 10**9) == (values(profile, "temperature_c"), profile.capture["dur_ns"].iloc[0])
    note = "values without a time, or more than ten years before or after most others, are left out (1)"
    assert note in profile.notes


def test_sizes_and_masks_that_cannot_be(tmp_path: Path) -> None:
    # 0.1 MiB are 104,858 bytes; what no float64 holds exactly is no size, nor is what is negative.
    for value, size in (("0.1", 104858), ("1e300", None), ("-5", None)):
        text = [line("DCGM_FI_DEV_FB_TOTAL", labels(), value), line("DCGM_FI_DEV_GPU_TEMP", labels(), 60)]
        memory = scraped(tmp_path, *text).table("DEVICES")["memory_bytes"].iloc[0]
        assert size == (None if pd.isna(memory) else memory)
    # A mask is a whole number that is not negative; another has no reasons and is counted.
    for mask in ("1e300", "-1", "0.5", "inf"):
        told = {"GPU-0": "4", "GPU-1": mask}
        text = [line("nvidia_smi_clocks_event_reasons_active", {"uuid": uuid}, m) for uuid, m in told.items()]
        profile = scraped(tmp_path, *text)
        assert ([1.0], []) == tuple(values(profile, "throttled_power_frac", gpu=gpu) for gpu in (0, 1))
        assert "4 of 8 values are missing (N/A, blank or impossible)" in profile.notes


def test_an_answer_becomes_samples(tmp_path: Path) -> None:
    profile = dcgm.read(stored(tmp_path / "gpus.json"))
    assert [0.5, 0.6, 0.7] == values(profile, "gpu_busy_frac", gpu=1)
    capture = profile.capture.iloc[0]
    assert (int(START_S * 1000) * 1_000_000, 2_000_000_000) == (capture["t0_unix_ns"], capture["dur_ns"])
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
    later, earlier = ({**said, "pod": "b"}, points[2:]), ({**said, "pod": "a"}, [points[0], points[2]])
    profile = dcgm.read(answer(tmp_path / "gpus.json", later, earlier))
    assert [60, 62, 63] == values(profile, "temperature_c")
    assert not any("second values" in note for note in profile.notes)


ANSWERS = [
    ('{"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {"', "not the whole answer"),
    ('{"status": "error", "error": "query timed out", "x": "resultType"}', "answered with an error .query timed out."),
    ('{"status": "success", "data": {"resultType": "scalar", "result": []}}', "the answer is a scalar"),
    ('{"status": "success", "data": {"resultType": "matrix", "result": []}}', "no metric of a GPU"),
]
NOT_WHOLE = "not the whole answer of a Prometheus server"


@pytest.mark.parametrize(("text", "message"), ANSWERS)
def test_unusable_answers_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "gpus.json"
    path.write_text(text)
    with pytest.raises(ReadError, match=message) as caught:
        read_answer(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        # Deeper than the parser follows, no UTF-8, halves of characters.
        *((b'"1"', b"[" * 100_000, NOT_WHOLE), (b"A100", b"A\xff\xfe", NOT_WHOLE), (b'"1"', b'"\\ud800"', NOT_WHOLE)),
        (b'"matrix"', b'"matrix", "resultType": 5', NOT_WHOLE),
        # JSON's parsers take the last of two: the points of the first would be lost without a word.
        (b'"values"', b'"values": [], "values"', "an object has the key 'values' twice"),
        # Values are text in an answer, and text may be anything, also what only Python takes for a number.
        *((b'"50"', f'"{value}"'.encode(), "a value of a series is no number") for value in ("hot", "1_000", "٣")),
    ],
)
def test_damage_of_an_answer_is_refused(old: bytes, new: bytes, finding: str, tmp_path: Path) -> None:
    path = stored(tmp_path / "gpus.json")
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    with pytest.raises(ReadError, match=f"gpus.json: .*{finding}"):
        dcgm.read(path)
    labelled = {"__name__": "DCGM_FI_DEV_GPU_TEMP", "gpu": "0", "metric": "values", "result": "value"}
    assert [60] == values(dcgm.read(answer(tmp_path / "labels.json", (labelled, [(START_S, "60")]))), "temperature_c")


@pytest.mark.parametrize("time", [1e300, -1e300, 9.3e9, 0])
def test_a_time_that_cannot_be_is_left_out(time: float, tmp_path: Path) -> None:
    said, points = series("DCGM_FI_DEV_GPU_TEMP", 60, 61, 62)
    profile = dcgm.read(answer(tmp_path / "gpus.json", (said, [*points, (time, "63")])))
    assert ([60, 61, 62], 2 * 10**9) == (values(profile, "temperature_c"), profile.capture["dur_ns"].iloc[0])
    assert any("are left out (1)" in note for note in profile.notes)


def test_gpus_of_series_without_a_number_or_with_the_same(tmp_path: Path) -> None:
    # The power of GPU 1 lost the labels `gpu` and `device`: its UUID, which another series has with them, says 1.
    busy, (said, points) = series("DCGM_FI_DEV_GPU_UTIL", 50, gpu=1), series("DCGM_FI_DEV_POWER_USAGE", 70, gpu=1)
    lost = {name: text for name, text in said.items() if name not in ("gpu", "device")}
    other = series("DCGM_FI_DEV_POWER_USAGE", 60)
    power = dcgm.read(answer(tmp_path / "gpus.json", busy, other, (lost, points)))
    assert ([60.0], [70.0]) == tuple(values(power, "power_w", gpu) for gpu in (0, 1))
    # Without that series the UUID has a number of its own.
    assert [0, 1] == sorted(dcgm.read(answer(tmp_path / "gpus.json", (lost, points), other)).table("SAMPLES")["gpu"])
    # Equal values of two UUIDs that both claim to be GPU 1 become one row a time: the rows of one GPU are gone.
    said, points = series("DCGM_FI_DEV_POWER_USAGE", 70, 70, gpu=1)
    second = {**said, "UUID": "GPU-another"}
    profile = dcgm.read(answer(tmp_path / "gpus.json", (said, points), (second, points)))
    assert 2 == len(profile.table("SAMPLES"))
    note = "two GPUs are numbered 1 on one host: their values are read as those of one GPU"
    assert [note] == [note for note in profile.notes if "numbered" in note]
    apart = dcgm.read(answer(tmp_path / "apart.json", (said, points), ({**second, "Hostname": "node2"}, points)))
    assert not any("numbered" in note for note in apart.notes)

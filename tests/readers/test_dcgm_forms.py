"""Prometheus text of the exporters, and stored answers of a Prometheus server."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from readers.dcgm_files import START_S, answer, labels, line, page, scrape, series, stored
from readers.test_dcgm import values

import perfkit
from perfkit.errors import ReadError
from perfkit.readers import dcgm
from perfkit.readers.dcgm.forms import read_answer

BLANKS = ("9223372036854775794", "2147483634", "140737488355329.0")


def test_a_scrape_becomes_samples(tmp_path: Path) -> None:
    """Two GPUs: 50 %, 250.25 W of 400 W, 1024 MiB used; names of the GPUs are DEVICES."""
    profile = dcgm.read(scrape(tmp_path / "scrape.prom", *page()))
    assert [0.5] == values(profile, "gpu_busy_frac")
    assert ([250.25], [400]) == (values(profile, "power_w", gpu=1), values(profile, "power_limit_w", gpu=1))
    assert [2**30] == values(profile, "memory_used_bytes")
    assert [2**29] == values(profile, "driver_reserved_bytes")
    assert 2 * 10 == len(profile.table("SAMPLES"))
    assert ["NVIDIA A100-SXM4-80GB"] * 2 == profile.table("DEVICES")["name"].tolist()


def test_one_scrape_without_time_is_time_0(tmp_path: Path) -> None:
    """No time stamp: time 0, no wall clock, and a note."""
    profile = dcgm.read(scrape(tmp_path / "scrape.prom", *page()))
    assert {0} == set(profile.table("SAMPLES")["time_ns"])
    assert pd.isna(profile.capture["t0_unix_ns"].iloc[0])
    assert "one scrape without time stamp: its time is 0" in profile.notes


def test_time_stamps_are_milliseconds(tmp_path: Path) -> None:
    """Prometheus's own text carries ms since 1970, exactly kept."""
    text = [line("DCGM_FI_DEV_GPU_TEMP", labels(), 60 + i, 1_700_000_000_123 + 500 * i) for i in range(3)]
    profile = dcgm.read(scrape(tmp_path / "scrape.prom", *text))
    assert 1_700_000_000_123_000_000 == profile.capture["t0_unix_ns"].iloc[0]
    assert [0, 500_000_000, 1_000_000_000] == profile.table("SAMPLES")["time_ns"].tolist()
    assert [60, 61, 62] == values(profile, "temperature_c")


@pytest.mark.parametrize("end", ["# EOF\n", "# EOF"])
def test_time_stamps_of_openmetrics_are_seconds(end: str, tmp_path: Path) -> None:
    """OpenMetrics ends in # EOF, with or without an end of line, and counts in s."""
    path = tmp_path / "scrape.prom"
    path.write_text(line("DCGM_FI_DEV_GPU_TEMP", labels(), 60, "1700000000.125") + "\n" + end)
    profile = dcgm.read(path)
    assert 1_700_000_000_125_000_000 == profile.capture["t0_unix_ns"].iloc[0]


def test_several_scrapes_follow_each_other(tmp_path: Path) -> None:
    """A scrape begins where a series comes again; without time stamps they are 1 s apart, and a note says so."""
    profile = dcgm.read(scrape(tmp_path / "scrape.prom", *page(), *page(i=1), *page(i=2)))
    assert [0.5, 0.51, 0.52] == values(profile, "gpu_busy_frac", gpu=1)
    assert {0, 1_000_000_000, 2_000_000_000} == set(profile.table("SAMPLES")["time_ns"])
    assert any(note.startswith("3 scrapes without time stamps") for note in profile.notes)


@pytest.mark.parametrize("blank", BLANKS)
def test_blank_values_give_no_row(blank: str, tmp_path: Path) -> None:
    """What DCGM writes for not found and not supported is counted, not read."""
    text = [line("DCGM_FI_DEV_GPU_TEMP", labels(), 60), line("DCGM_FI_DEV_MEMORY_TEMP", labels(), blank)]
    profile = dcgm.read(scrape(tmp_path / "scrape.prom", *text))
    assert [] == values(profile, "memory_temperature_c")
    assert "1 of 2 values are missing (N/A, blank or impossible)" in profile.notes


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO"),
        ("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO"),
        ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS"),
        ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS"),
        ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"),
        ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO"),
        ("DCGM_FI_DEV_GPU_UTIL", "dcgm_gpu_utilization"),
        ("DCGM_FI_DEV_FB_USED", "dcgm_fb_used"),
    ],
)
def test_old_and_new_names_mean_the_same(old: str, new: str, tmp_path: Path) -> None:
    """DCGM 4.6 renamed fields and kept their units: GPU_UTIL_RATIO is still percent. Version 1 had other names."""
    first, second = (dcgm.read(scrape(tmp_path / name, line(name, labels(), 1))) for name in (old, new))
    pd.testing.assert_frame_equal(first.table("SAMPLES"), second.table("SAMPLES"))


def test_the_preferred_of_two_fields_is_read(tmp_path: Path) -> None:
    """Enforced limit 350 W and requested limit 400 W: the enforced one, and a note on the other."""
    names = ("DCGM_FI_DEV_POWER_MGMT_LIMIT", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT")
    text = [line(name, labels(), watts) for name, watts in zip(names, (400, 350), strict=True)]
    profile = dcgm.read(scrape(tmp_path / "scrape.prom", *text))
    assert [350] == values(profile, "power_limit_w")
    assert "second values of one metric at one time are left out (1)" in profile.notes


def test_hosts_are_ranks_and_stay_private(tmp_path: Path) -> None:
    """node2 is rank 0, node10 rank 1; no table or note holds a host or pod name."""
    profile = dcgm.read(scrape(tmp_path / "scrape.prom", *page(host="node10"), *page(host="node2", i=7)))
    assert ([0.57], [0.5]) == (values(profile, "gpu_busy_frac", rank=0), values(profile, "gpu_busy_frac", rank=1))
    assert "2 hosts, which are ranks in the order of their names" in profile.notes
    every = " ".join([*profile.notes, *(profile.table(t).to_string() for t in ("SAMPLES", "DEVICES", "CAPTURE"))])
    assert "node" not in every.replace(str(tmp_path), "")


def test_instances_beside_gpus_are_left_out(tmp_path: Path) -> None:
    """A MIG instance has the labels of its GPU and GPU_I_ID."""
    part = labels(GPU_I_PROFILE="1g.5gb", GPU_I_ID="13")
    text = [line("DCGM_FI_PROF_DRAM_ACTIVE", labels(), 0.5), line("DCGM_FI_PROF_DRAM_ACTIVE", part, 0.75)]
    assert [0.5] == values(dcgm.read(scrape(tmp_path / "scrape.prom", *text)), "dram_active_frac")


def test_instances_alone_are_numbered(tmp_path: Path) -> None:
    """Two instances of GPU 0 and one of GPU 1 are 0, 1, 2; what their GPUs are called does not name them."""
    parts = [(1, "3"), (0, "10"), (0, "9")]
    text = [line("DCGM_FI_PROF_DRAM_ACTIVE", labels(gpu, GPU_I_ID=i), gpu + int(i) / 100) for gpu, i in parts]
    text = [t.replace(" 1.03", " 0.03") for t in text]
    profile = dcgm.read(scrape(tmp_path / "scrape.prom", *text))
    assert [[0.09], [0.1], [0.03]] == [values(profile, "dram_active_frac", gpu=i) for i in range(3)]
    assert "DEVICES" not in profile.loaders


def test_labels_may_hold_anything(tmp_path: Path) -> None:
    """Quotes, braces, commas and backslashes in a label, spaces after commas, none of the labels at all."""
    text = [
        'DCGM_FI_DEV_GPU_TEMP{gpu="1", modelName="a \\"b\\" } , c=\\\\", Hostname="h"} 61',
        "nvidia_smi_temperature_gpu 60",
        "go_goroutines 8",
    ]
    profile = dcgm.read(scrape(tmp_path / "scrape.prom", *text))
    assert [61] == values(profile, "temperature_c", gpu=1, rank=1)
    assert [60] == values(profile, "temperature_c", gpu=0, rank=0)
    assert ['a "b" } , c=\\'] == profile.table("DEVICES")["name"].tolist()


def test_gpus_known_by_uuid_are_numbered_by_their_index(tmp_path: Path) -> None:
    """nvidia_gpu_exporter says which GPU a UUID is; where it does not, they are numbered as they come."""
    uuids = [f"0000000{i}" for i in range(2)]
    told = [f'nvidia_smi_index{{uuid="{uuid}"}} {1 - i}' for i, uuid in enumerate(uuids)]
    text = [f'nvidia_smi_temperature_gpu{{uuid="{uuid}"}} {60 + i}' for i, uuid in enumerate(uuids)]
    without, indexed = (dcgm.read(scrape(tmp_path / "scrape.prom", *t)) for t in (text, [*told, *text]))
    assert ([60], [61]) == (values(without, "temperature_c", 0), values(without, "temperature_c", 1))
    assert ([61], [60]) == (values(indexed, "temperature_c", 0), values(indexed, "temperature_c", 1))
    assert "nvidia_gpu_exporter" == indexed.capture["tool"].iloc[0]


REFUSED = [
    ("DCGM_FI_DEV_GPU_TEMP{gpu=0} 60\nwhat is this\n", "line 1 is not Prometheus text"),
    ('DCGM_FI_DEV_GPU_TEMP{gpu="0"} 60\n<html>\n', "line 2 is not Prometheus text .'<html>'."),
    ('DCGM_FI_DEV_GPU_TEMP{gpu="0"} sixty\n', "line 1 is not Prometheus text"),
    ('DCGM_FI_DEV_GPU_TEMP{gpu="0"} 60\n\x00\x01\n', "line 2 is not text"),
    ('DCGM_FI_DEV_VGPU_LICENSE_STATUS{gpu="0"} 0\n', "no metric of a GPU .*found: DCGM_FI_DEV_VGPU_LICENSE_STATUS"),
    ("# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n", "no metric of a GPU .*found: no values"),
    ('DCGM_FI_DEV_GPU_TEMP{gpu="0"} 9223372036854775794\n', "none of its values is there"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_unusable_text_is_refused(text: str, message: str, tmp_path: Path) -> None:
    """Damage and emptiness are errors that name the file and the line."""
    path = tmp_path / "scrape.prom"
    path.write_text(text)
    with pytest.raises(ReadError, match=message) as caught:
        dcgm.read(path)
    assert str(path) in str(caught.value)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    """Garbage in the middle of a scrape is named by its line."""
    path = scrape(tmp_path / "scrape.prom", *page())
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:4], b"\xff\xfe\xfd", *lines[4:]]))
    with pytest.raises(ReadError, match="line 5 is not text"):
        dcgm.read(path)


def test_lists_of_counters_are_not_scrapes(tmp_path: Path) -> None:
    """The CSV that tells dcgm-exporter what to collect, and a page without GPUs, are not claimed."""
    for text in (
        "# Format\nDCGM_FI_DEV_SM_CLOCK, gauge, SM clock.\n",
        "# TYPE up gauge\nup 1\n",
        '{"status": "DCGM_"}',
    ):
        path = tmp_path / "other"
        path.write_text(text)
        assert not dcgm.sniff(path)


def test_two_scrapes_in_a_folder_are_ranks(tmp_path: Path) -> None:
    """Two scrapes in a folder are two ranks, as every other profile."""
    for i in range(2):
        scrape(tmp_path / f"node{i}.prom", *page(i=i))
    run = perfkit.load(tmp_path)
    assert {0: 0.5, 1: 0.51} == dict(
        run.samples.query("metric == 'gpu_busy_frac' and gpu == 0")[["rank", "value"]].values
    )


@pytest.mark.parametrize("number", ["4294967296", "9" * 5000, "-1", "nan", "1["])
def test_a_number_that_no_gpu_has_is_left_out_and_counted(number: str, tmp_path: Path) -> None:
    """A label may be anything: the series of one such GPU is left out, the other GPU's are read."""
    text = [line("DCGM_FI_DEV_GPU_TEMP", {**labels(), "gpu": gpu, "UUID": ""}, 60) for gpu in ("0", number)]
    profile = dcgm.read(scrape(tmp_path / "scrape.prom", *text))
    assert [60] == values(profile, "temperature_c")
    assert any(note.startswith("series of GPUs with a number that cannot be are left out (1") for note in profile.notes)


@pytest.mark.parametrize("time", ["1e30", "1" + "0" * 40, "-1e18", "5", "1e999999999"])
def test_a_time_that_cannot_be_is_left_out_and_counted(time: str, tmp_path: Path) -> None:
    """Times beyond int64 ns, and one of 1970 among those of 2023, would move the start of the whole recording."""
    times = [1_700_000_000_000, 1_700_000_001_000, time]
    text = [line("DCGM_FI_DEV_GPU_TEMP", labels(), 60 + i, at) for i, at in enumerate(times)]
    profile = dcgm.read(scrape(tmp_path / "scrape.prom", *text))
    assert ([60, 61], 10**9) == (values(profile, "temperature_c"), profile.capture["dur_ns"].iloc[0])
    assert (
        "values without a time, or more than ten years before or after most others, are left out (1)" in profile.notes
    )


def test_a_size_that_is_no_whole_number_of_bytes_is_rounded_or_missing(tmp_path: Path) -> None:
    """0.1 MiB are 104,858 bytes; what no float64 holds exactly is no size, nor is what is negative."""
    for value, size in (("0.1", 104858), ("1e300", pd.NA), ("-5", pd.NA)):
        text = [line("DCGM_FI_DEV_FB_TOTAL", labels(), value), line("DCGM_FI_DEV_GPU_TEMP", labels(), 60)]
        memory = dcgm.read(scrape(tmp_path / "scrape.prom", *text)).table("DEVICES")["memory_bytes"].iloc[0]
        assert pd.isna(memory) if pd.isna(size) else size == memory


@pytest.mark.parametrize("mask", ["1e300", "-1", "0.5", "inf"])
def test_what_is_no_mask_of_reasons_says_nothing(mask: str, tmp_path: Path) -> None:
    """A mask is a whole number that is not negative; another has no reasons and is counted."""
    text = [line("nvidia_smi_clocks_event_reasons_active", {"uuid": f"GPU-{i}"}, m) for i, m in enumerate(("4", mask))]
    profile = dcgm.read(scrape(tmp_path / "scrape.prom", *text))
    assert [1.0] == values(profile, "throttled_power_frac")
    assert [] == values(profile, "throttled_power_frac", gpu=1)
    assert "4 of 8 values are missing (N/A, blank or impossible)" in profile.notes


@pytest.mark.parametrize("index", ["inf", "1e300", "-1", "99999"])
def test_an_index_that_cannot_be_numbers_no_gpu(index: str, tmp_path: Path) -> None:
    """The GPU then has its number by its place, as without an index."""
    text = [
        line("nvidia_smi_index", {"uuid": "GPU-a"}, index),
        line("nvidia_smi_temperature_gpu", {"uuid": "GPU-a"}, 60),
    ]
    assert [60] == values(dcgm.read(scrape(tmp_path / "scrape.prom", *text)), "temperature_c", gpu=0)


def test_an_answer_becomes_samples(tmp_path: Path) -> None:
    """Three points a second apart from 1,700,000,000.5 s on: the wall clock is known to the ms."""
    profile = dcgm.read(stored(tmp_path / "gpus.json"))
    assert [0.5, 0.6, 0.7] == values(profile, "gpu_busy_frac", gpu=1)
    capture = profile.capture.iloc[0]
    assert (int(START_S * 1000) * 1_000_000, 2_000_000_000) == (capture["t0_unix_ns"], capture["dur_ns"])
    assert "Prometheus" == capture["tool"]


def test_an_answer_has_the_drivers_version_and_warnings(tmp_path: Path) -> None:
    """The version is a label; what a store of several servers warns of is a note."""
    said, points = series("DCGM_FI_DEV_GPU_TEMP", 60, "NaN")
    path = answer(
        tmp_path / "gpus.json", ({**said, "DCGM_FI_DRIVER_VERSION": "590.48.01"}, points), warnings=["store 2 is down"]
    )
    profile = dcgm.read(path)
    assert "590.48.01" == profile.capture["tool_version"].iloc[0]
    assert "Prometheus warned: store 2 is down" in profile.notes
    assert [60] == values(profile, "temperature_c")


def test_an_answer_to_a_query_of_now(tmp_path: Path) -> None:
    """A vector holds one point per series."""
    said, points = series("DCGM_FI_DEV_GPU_TEMP", 60)
    data = {"resultType": "vector", "result": [{"metric": said, "value": points[0]}]}
    (tmp_path / "now.json").write_text(json.dumps({"status": "success", "data": data}))
    assert [60] == values(dcgm.read(tmp_path / "now.json"), "temperature_c")


def test_series_of_one_gpu_that_follow_each_other_are_one(tmp_path: Path) -> None:
    """A new pod makes a new series of the same GPU: in the order of time, and each time once."""
    said, points = series("DCGM_FI_DEV_GPU_TEMP", 60, 61, 62, 63)
    later, earlier = ({**said, "pod": "b"}, points[2:]), ({**said, "pod": "a"}, points[:3])
    profile = dcgm.read(answer(tmp_path / "gpus.json", later, earlier))
    assert [60, 61, 62, 63] == values(profile, "temperature_c")
    assert not any("second values" in note for note in profile.notes)


ANSWERS = [
    (
        '{"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {"__name__"',
        "not the whole answer",
    ),
    ('{"status": "error", "error": "query timed out", "x": "resultType"}', "answered with an error .query timed out."),
    ('{"status": "success", "data": {"resultType": "scalar", "result": []}}', "the answer is a scalar"),
    ('{"status": "success", "data": {"resultType": "matrix", "result": []}}', "no metric of a GPU"),
]


@pytest.mark.parametrize(("text", "message"), ANSWERS)
def test_unusable_answers_are_refused(text: str, message: str, tmp_path: Path) -> None:
    """Cut, an error, no time series, none of a GPU: the message names the file and the remedy."""
    path = tmp_path / "gpus.json"
    path.write_text(text)
    with pytest.raises(ReadError, match=message) as caught:
        read_answer(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("value", ["hot", "1_000", "٣"])
def test_a_value_that_is_no_number_is_refused(value: str, tmp_path: Path) -> None:
    """Values are text in an answer, and text may be anything, also what only Python takes for a number."""
    path = answer(tmp_path / "gpus.json", series("DCGM_FI_DEV_GPU_TEMP", value))
    with pytest.raises(ReadError, match="a value of a series is no number"):
        dcgm.read(path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"1"', b"[" * 100_000),
        (b"A100", b"A\xff\xfe"),
        (b'"1"', b'"\\ud800"'),
        (b'"matrix"', b'"matrix", "resultType": 5'),
    ],
)
def test_json_that_the_parser_does_not_take_is_refused(old: bytes, new: bytes, tmp_path: Path) -> None:
    """Deeper than it follows, no UTF-8, halves of characters: an error that names the file."""
    path = stored(tmp_path / "gpus.json")
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    with pytest.raises(ReadError, match=r"gpus.json: not the whole answer of a Prometheus server"):
        dcgm.read(path)


def test_a_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    """JSON's parsers take the last of two: the points of the first would be lost without a word."""
    path = stored(tmp_path / "gpus.json")
    path.write_text(path.read_text().replace('"values"', '"values": [], "values"', 1))
    with pytest.raises(ReadError, match="an object has the key 'values' twice"):
        dcgm.read(path)
    labelled = {"__name__": "DCGM_FI_DEV_GPU_TEMP", "gpu": "0", "metric": "values", "result": "value"}
    assert [60] == values(dcgm.read(answer(tmp_path / "labels.json", (labelled, [(START_S, "60")]))), "temperature_c")


@pytest.mark.parametrize("time", [1e300, -1e300, 9.3e9, 0])
def test_a_time_that_cannot_be_is_left_out(time: float, tmp_path: Path) -> None:
    """Beyond int64 ns, or 50 years before the other points: the point is left out, with a note."""
    said, points = series("DCGM_FI_DEV_GPU_TEMP", 60, 61, 62)
    profile = dcgm.read(answer(tmp_path / "gpus.json", (said, [*points, (time, "63")])))
    assert ([60, 61, 62], 2 * 10**9) == (values(profile, "temperature_c"), profile.capture["dur_ns"].iloc[0])
    assert any("are left out (1)" in note for note in profile.notes)


def test_a_series_without_its_number_belongs_to_its_uuid(tmp_path: Path) -> None:
    """The power of GPU 1 lost the labels `gpu` and `device`: its UUID, which another series has with them, says 1."""
    busy, (said, points) = series("DCGM_FI_DEV_GPU_UTIL", 50, gpu=1), series("DCGM_FI_DEV_POWER_USAGE", 70, gpu=1)
    lost = {name: text for name, text in said.items() if name not in ("gpu", "device")}
    other = series("DCGM_FI_DEV_POWER_USAGE", 60)
    samples = dcgm.read(answer(tmp_path / "gpus.json", busy, other, (lost, points))).table("SAMPLES")
    power = samples[samples["metric"] == "power_w"]
    assert {0: 60.0, 1: 70.0} == dict(zip(power["gpu"], power["value"], strict=True))


def test_a_uuid_that_no_series_numbers_has_a_number_of_its_own(tmp_path: Path) -> None:
    """Beside GPU 0 a GPU of which only the UUID is known is GPU 1."""
    said, points = series("DCGM_FI_DEV_POWER_USAGE", 70, gpu=5)
    lost = {name: text for name, text in said.items() if name not in ("gpu", "device")}
    path = answer(tmp_path / "gpus.json", (lost, points), series("DCGM_FI_DEV_POWER_USAGE", 60))
    assert [0, 1] == sorted(dcgm.read(path).table("SAMPLES")["gpu"])


def test_two_gpus_with_one_number_are_in_a_note(tmp_path: Path) -> None:
    """Equal values of two UUIDs that both claim to be GPU 1 become one row a time: the rows of one GPU are gone."""
    said, points = series("DCGM_FI_DEV_POWER_USAGE", 70, 70, gpu=1)
    other = {**said, "UUID": "GPU-another"}
    profile = dcgm.read(answer(tmp_path / "gpus.json", (said, points), (other, points)))
    assert 2 == len(profile.table("SAMPLES"))
    note = "two GPUs are numbered 1 on one host: their values are read as those of one GPU"
    assert [note] == [note for note in profile.notes if "numbered" in note]
    elsewhere = {**other, "Hostname": "node2"}
    apart = dcgm.read(answer(tmp_path / "apart.json", (said, points), (elsewhere, points)))
    assert not any("numbered" in note for note in apart.notes)

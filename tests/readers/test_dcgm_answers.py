"""Stored answers of a Prometheus server: matrices, vectors, warnings, and what is no whole answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from readers.dcgm_files import START_S, answer, series, stored
from readers.test_dcgm import values

from perfkit.errors import ReadError
from perfkit.readers import dcgm
from perfkit.readers.dcgm.forms import read_answer


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


def test_a_value_that_is_no_number_is_refused(tmp_path: Path) -> None:
    """Values are text in an answer, and text may be anything."""
    path = answer(tmp_path / "gpus.json", series("DCGM_FI_DEV_GPU_TEMP", "hot"))
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


@pytest.mark.parametrize("number", ["1_000", "٣"])
def test_what_only_python_takes_for_a_number_is_refused(number: str, tmp_path: Path) -> None:
    """Prometheus writes neither underscores nor foreign digits."""
    with pytest.raises(ReadError, match="a value of a series is no number"):
        dcgm.read(answer(tmp_path / "gpus.json", series("DCGM_FI_DEV_GPU_TEMP", number)))


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

"""Stored answers of a Prometheus server: matrices, vectors, warnings, and what is no whole answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from readers.dcgm_files import START_S, answer, series, stored
from readers.test_dcgm import values

from perfkit.errors import ReadError
from perfkit.readers import dcgm
from perfkit.readers.dcgm.answer import reading


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
        reading(path)
    assert str(path) in str(caught.value)


def test_a_value_that_is_no_number_is_refused(tmp_path: Path) -> None:
    """Values are text in an answer, and text may be anything."""
    path = answer(tmp_path / "gpus.json", series("DCGM_FI_DEV_GPU_TEMP", "hot"))
    with pytest.raises(ReadError, match="a value of a series is no number"):
        dcgm.read(path)

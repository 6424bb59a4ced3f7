"""rocm-smi: the JSON of several ROCm versions, what surrounds it, and what cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from readers import smi_files as smi

import perfkit
from perfkit.errors import ReadError
from perfkit.readers import rocm_smi

SECOND = 1_000_000_000
WARNING = "WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status\n\n"
REAL = ["mi100_rocm571", "rx6700xt_rocm430", "rx6700xt_rocm602", "vega-10-XT"]


def said(path: Path, gpu: int = 0) -> dict[str, float]:
    """Every metric of a card."""
    samples = rocm_smi.read(path).table("SAMPLES")
    samples = samples[samples["gpu"] == gpu]
    return dict(zip(samples["metric"], samples["value"], strict=True))


def test_values_have_the_units_of_the_metrics(tmp_path: Path) -> None:
    """57 % is 0.57, (500Mhz) 5e8 Hz; power, temperature and bytes are as printed."""
    path = smi.rocm(tmp_path / "gpu.json", smi.card(), smi.card({"GPU use (%)": "29"}))
    assert {
        "gpu_busy_frac": 0.57,
        "power_w": 250.5,
        "power_limit_w": 290.0,
        "temperature_c": 45.0,
        "sm_clock_hz": 5e8,
        "memory_total_bytes": 34342961152.0,
        "memory_used_bytes": 6782976.0,
    } == said(path)
    assert 0.29 == said(path, 1)["gpu_busy_frac"]


def test_devices_and_capture(tmp_path: Path) -> None:
    """A card has its name and memory, the capture the driver and no clock."""
    profile = rocm_smi.read(smi.rocm(tmp_path / "gpu.json", smi.card(), smi.card()))
    devices = profile.table("DEVICES")
    assert [(0, "Instinct MI100", 34342961152), (1, "Instinct MI100", 34342961152)] == list(
        zip(devices["gpu"], devices["name"], devices["memory_bytes"], strict=True)
    )
    capture = profile.capture.iloc[0]
    assert ("rocm-smi", "6.3.6", 0) == tuple(capture[["tool", "tool_version", "dur_ns"]])
    assert pd.isna(capture["t0_unix_ns"])


def test_a_newer_version_has_other_keys_and_numbers(tmp_path: Path) -> None:
    """An MI300X has a socket, no edge sensor, and prints numbers as numbers."""
    new = {
        "Device Name": "AMD Instinct MI300X",
        "Temperature (Sensor junction) (C)": 72,
        "Current Socket Graphics Package Power (W)": 550,
        "GPU use (%)": 88,
        "VRAM Total Memory (B)": 205520896000,
    }
    path = smi.rocm(tmp_path / "gpu.json", new)
    assert {"temperature_c": 72.0, "power_w": 550.0, "gpu_busy_frac": 0.88} == {
        name: value for name, value in said(path).items() if name != "memory_total_bytes"
    }
    assert "AMD Instinct MI300X" == rocm_smi.read(path).table("DEVICES")["name"].iloc[0]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"Card series": "0x1002", "GPU ID": "0x73df"}, "0x73df"),
        ({"Card series": "0x1002", "Card model": "Navi 22"}, "Navi 22"),
        ({"Card series": "N/A", "Device ID": "0x744c"}, "0x744c"),
        ({"Card series": "N/A"}, ""),
    ],
)
def test_a_card_without_a_name_has_its_number(names: dict[str, str], expected: str, tmp_path: Path) -> None:
    """Some versions print identifiers in the place of names."""
    path = smi.rocm(tmp_path / "gpu.json", smi.card(names))
    assert expected == rocm_smi.read(path).table("DEVICES")["name"].iloc[0]


@pytest.mark.parametrize("nothing", ["N/A", "N/A (Secondary die)", "Not supported", ""])
def test_what_is_no_number_is_counted_and_no_sample(nothing: str, tmp_path: Path) -> None:
    """One of two cards has no power: one sample, one of two not available; with none, power is missing."""
    lacking = smi.card({"Average Graphics Package Power (W)": nothing})
    profile = rocm_smi.read(smi.rocm(tmp_path / "a.json", smi.card(), lacking))
    assert {0} == set(profile.table("SAMPLES").query("metric == 'power_w'")["gpu"])
    assert "not available: Average Graphics Package Power (W) 1 of 2" in profile.notes
    assert "SAMPLES.power_w" in {m.table for m in rocm_smi.read(smi.rocm(tmp_path / "b.json", lacking)).missing}


def test_documents_after_each_other_are_ticks(tmp_path: Path) -> None:
    """A loop appends documents, with a warning before each: samples a second apart, and a note that says so."""
    path = smi.rocm(tmp_path / "gpu.json", smi.card(), before=WARNING, times=3)
    assert rocm_smi.sniff(path)
    profile = rocm_smi.read(path)
    power = profile.table("SAMPLES").query("metric == 'power_w'")
    assert [0, SECOND, 2 * SECOND] == power["time_ns"].tolist()
    assert 2 * SECOND == profile.capture["dur_ns"].iloc[0]
    assert any("taken to be 1 s apart" in note for note in profile.notes)


def test_a_card_that_comes_later_is_a_device(tmp_path: Path) -> None:
    """The devices are those of all documents, each as it was first."""
    path = tmp_path / "gpu.json"
    first = smi.rocm(tmp_path / "a", smi.card()).read_text()
    second = smi.rocm(tmp_path / "b", smi.card({"Card series": "other"}), smi.card()).read_text()
    path.write_text(f"{first}\n{second}")
    devices = rocm_smi.read(path).table("DEVICES")
    assert [(0, "Instinct MI100"), (1, "Instinct MI100")] == list(zip(devices["gpu"], devices["name"], strict=True))


@pytest.mark.parametrize(
    "text",
    [
        '{"card0": 1}',
        '{"card0": {"king": "hearts"}}',
        '{"cards": {"card0": {"GPU use (%)": "1"}}}',
        '[{"gpu": 0, "usage": {"gfx_activity": {"value": 1}}}]',
        "card0 GPU use (%)",
    ],
)
def test_other_json_is_not_claimed(text: str, tmp_path: Path) -> None:
    """A card at the first level with a key of rocm-smi: anything else is another program's."""
    path = tmp_path / "file.json"
    path.write_text(text)
    assert rocm_smi.sniff(path) is False


@pytest.mark.parametrize("part", [0.5, 0.99])
def test_a_cut_document_is_an_error_with_its_line(part: float, tmp_path: Path) -> None:
    """The second of two documents is cut: the line in which it begins is named."""
    path = smi.rocm(tmp_path / "gpu.json", smi.card(), before=WARNING, times=2)
    text = path.read_text()
    begin = text.rindex('{\n    "card0"')
    line = text.count("\n", 0, begin) + 1
    path.write_text(text[: begin + int(part * (len(text) - begin))])
    with pytest.raises(ReadError, match=f"{path}: the JSON that begins in line {line} is cut or damaged"):
        rocm_smi.read(path)


@pytest.mark.parametrize("inside", ['"a": \0', '"a": ' + "[" * 100_000])
def test_damage_is_an_error(inside: str, tmp_path: Path) -> None:
    """Bytes that are no JSON, and nesting without end, are no crash."""
    path = tmp_path / "gpu.json"
    path.write_text('{"card0": {"GPU use (%)": "1", ' + inside)
    with pytest.raises(ReadError, match="cut or damaged"):
        rocm_smi.read(path)


def test_cards_without_a_known_number_are_an_error(tmp_path: Path) -> None:
    """A name alone is no sample."""
    path = smi.rocm(tmp_path / "gpu.json", {"Card series": "Instinct MI100"})
    with pytest.raises(ReadError, match="no card has a number that is known"):
        rocm_smi.read(path)


@pytest.mark.parametrize("name", REAL)
def test_a_real_document_equals_its_truth(name: str, profiles: Path) -> None:
    """Every card has the values that were counted without perfkit; N/A is no sample."""
    name = f"rocm-smi_json__{name}.json"
    told = json.loads((profiles / "golden" / "monitor" / f"{name}.truth.json").read_text())
    path = profiles / "monitor" / name
    assert rocm_smi.sniff(path)
    assert len(told["cards"]) == len(rocm_smi.read(path).table("DEVICES"))
    places = {
        "Temperature (Sensor edge) (C)": ("temperature_c", 1),
        "Temperature (Sensor memory) (C)": ("memory_temperature_c", 1),
        "Max Graphics Package Power (W)": ("power_limit_w", 1),
        "Average Graphics Package Power (W)": ("power_w", 1),
        "GPU use (%)": ("gpu_busy_frac", 0.01),
        "VRAM Total Memory (B)": ("memory_total_bytes", 1),
        "VRAM Total Used Memory (B)": ("memory_used_bytes", 1),
    }
    for card, values in told["cards"].items():
        found = said(path, int(card.removeprefix("card")))
        for key, (metric, scale) in places.items():
            expected = None if values[key].startswith("N/A") else pytest.approx(float(values[key]) * scale, rel=1e-12)
            assert expected == found.get(metric), key


def test_no_other_log_is_claimed(profiles: Path) -> None:
    """Of all monitoring logs only those of rocm-smi are claimed."""
    claimed = {path.name for path in (profiles / "monitor").iterdir() if rocm_smi.sniff(path)}
    assert {f"rocm-smi_json__{name}.json" for name in REAL} == claimed


def test_a_card_that_is_there_twice_is_an_error(tmp_path: Path) -> None:
    """Python's json takes the last of two: the values of the first would be lost without a word."""
    path = smi.rocm(tmp_path / "gpu.json", smi.card(), smi.card({"GPU use (%)": "3"}))
    path.write_text(path.read_text().replace('"card1"', '"card0"'))
    with pytest.raises(ReadError, match=r"gpu.json: the JSON that begins in line 1 .*the key 'card0' is there twice"):
        rocm_smi.read(path)


def test_an_object_that_begins_with_no_card_is_noted(tmp_path: Path) -> None:
    """Of three documents the second is damaged where it begins: two samples, and the line of what is left out."""
    path = smi.rocm(tmp_path / "gpu.json", smi.card(), times=3)
    first, _, rest = path.read_text().partition("}\n{")
    path.write_text(first + "}\n{" + rest.replace('"card0"', '"cord0"', 1))
    profile = rocm_smi.read(path)
    assert 2 == len(profile.table("SAMPLES").query("metric == 'power_w'"))
    line = 1 + (first + "}\n").count("\n")
    assert f"objects that do not begin with a card are left out (1, first in line {line})" in profile.notes


@pytest.mark.parametrize("value", ["1e400", "-1e400", "NaN", "Infinity", "9" * 400])
def test_a_number_that_is_none_is_no_sample(value: str, tmp_path: Path) -> None:
    """JSON of other programs may hold such numbers; they are counted as not available."""
    path = smi.rocm(tmp_path / "gpu.json", smi.card())
    path.write_text(path.read_text().replace('"57"', value))
    assert "not available: GPU use (%) 1 of 1" in rocm_smi.read(path).notes


def test_half_of_a_character_does_not_stop_a_table(tmp_path: Path) -> None:
    """JSON can name half of a surrogate pair, which no file can hold."""
    path = smi.rocm(tmp_path / "gpu.json", smi.card({"Card series": "MI\ud800"}))
    assert ["MI?"] == perfkit.load(path).devices["name"].tolist()


@pytest.mark.parametrize("name", ["card2147483648", "card-1", "card"])
def test_a_card_without_a_number_is_noted(name: str, tmp_path: Path) -> None:
    """No node has that card: it is left out, the other one is read."""
    path = smi.rocm(tmp_path / "gpu.json", smi.card(), smi.card())
    path.write_text(path.read_text().replace("card1", name))
    profile = rocm_smi.read(path)
    assert [0] == profile.table("DEVICES")["gpu"].tolist()
    assert f"cards with a number or values that cannot be are left out (1, such as {name})" in profile.notes

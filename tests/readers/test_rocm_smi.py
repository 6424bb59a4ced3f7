"""rocm-smi: the JSON of several ROCm versions, what surrounds it, and what cannot be read."""

from pathlib import Path

import pandas as pd
import pytest
from readers import smi_files as smi
from real import truth_of

import perfkit
from perfkit.errors import ReadError
from perfkit.logs import rocm_smi

SECOND = 1_000_000_000
WARNING = (
    "WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status\n\n"
)
REAL = ["mi100_rocm571", "rx6700xt_rocm430", "rx6700xt_rocm602", "vega-10-XT"]


def said(path: Path, gpu: int = 0) -> dict[str, float]:
    samples = rocm_smi.read(path).table("SAMPLES")
    samples = samples[samples["gpu"] == gpu]
    return dict(zip(samples["metric"], samples["value"], strict=True))


def devices(path: Path, *columns: str) -> list[list[object]]:
    return rocm_smi.read(path).table("DEVICES")[["gpu", *columns]].to_numpy().tolist()


def test_values_names_and_what_is_no_number(tmp_path: Path) -> None:
    path = smi.rocm(tmp_path / "gpu.json", smi.card(), smi.card({"GPU use (%)": "29"}))
    told = {
        "gpu_busy_frac": 0.57,
        "power_w": 250.5,
        "power_limit_w": 290.0,
        "temperature_c": 45.0,
        "sm_clock_hz": 5e8,
    }
    assert {**told, "memory_total_bytes": 34342961152.0, "memory_used_bytes": 6782976.0} == said(
        path
    )
    assert 0.29 == said(path, 1)["gpu_busy_frac"]
    assert [[gpu, "Instinct MI100", 34342961152] for gpu in (0, 1)] == devices(
        path, "name", "memory_bytes"
    )
    capture = rocm_smi.read(path).capture.iloc[0]
    assert ("rocm-smi", "6.3.6", 0) == tuple(capture[["tool", "tool_version", "dur_ns"]])
    assert pd.isna(capture["t0_unix_ns"])
    # An MI300X has a socket, no edge sensor, and prints numbers as numbers.
    new = {
        "Device Name": "AMD Instinct MI300X",
        "Temperature (Sensor junction) (C)": 72,
        "GPU use (%)": 88,
    }
    path = smi.rocm(
        path,
        {**new, "Current Socket Graphics Package Power (W)": 550, "VRAM Total Memory (B)": 2**37},
    )
    expected = {
        "temperature_c": 72.0,
        "power_w": 550.0,
        "gpu_busy_frac": 0.88,
        "memory_total_bytes": 2.0**37,
    }
    assert expected == said(path)
    assert [[0, "AMD Instinct MI300X"]] == devices(path, "name")
    for names, expected in [
        ({"Card series": "0x1002", "Card model": "Navi 22"}, "Navi 22"),
        ({"Card series": "N/A", "Device ID": "0x744c"}, "0x744c"),
        ({"Card series": "N/A"}, ""),
        (
            {"Card series": "MI\ud800"},
            "MI?",
        ),  # JSON can name half of a surrogate pair, which no file can hold
    ]:
        path = smi.rocm(tmp_path / "gpu.json", smi.card(names))
        assert [expected] == perfkit.load(path).devices["name"].tolist()
    for nothing in ["N/A (Secondary die)", "Not supported"]:
        lacking = smi.card({"Average Graphics Package Power (W)": nothing})
        profile = rocm_smi.read(smi.rocm(tmp_path / "a.json", smi.card(), lacking))
        assert {0} == set(profile.table("SAMPLES").query("metric == 'power_w'")["gpu"])
        assert "not available: Average Graphics Package Power (W) 1 of 2" in profile.notes
        path = smi.rocm(tmp_path / "b.json", lacking)
        assert "SAMPLES.power_w" in {m.table for m in rocm_smi.read(path).missing}
        # JSON of other programs may hold such numbers.
        for value in ("1e400", "NaN"):
            path.write_text(
                smi.rocm(tmp_path / "c.json", smi.card()).read_text().replace('"57"', value)
            )
            assert "not available: GPU use (%) 1 of 1" in rocm_smi.read(path).notes


def test_documents_and_objects(tmp_path: Path) -> None:
    path = smi.rocm(tmp_path / "gpu.json", smi.card(), before=WARNING, times=3)
    assert rocm_smi.sniff(path)
    profile = rocm_smi.read(path)
    power = profile.table("SAMPLES").query("metric == 'power_w'")
    assert [0, SECOND, 2 * SECOND] == power["time_ns"].tolist()
    assert 2 * SECOND == profile.capture["dur_ns"].iloc[0]
    assert any("taken to be 1 s apart" in note for note in profile.notes)
    # The devices are those of all documents, each as it was first.
    second = smi.rocm(tmp_path / "b", smi.card({"Card series": "other"}), smi.card()).read_text()
    path.write_text(smi.rocm(tmp_path / "a", smi.card()).read_text() + "\n" + second)
    assert [[0, "Instinct MI100"], [1, "Instinct MI100"]] == devices(path, "name")
    # Of three documents the second is damaged where it begins: two samples, and the line of what is left out.
    path = smi.rocm(tmp_path / "gpu.json", smi.card(), times=3)
    first, _, rest = path.read_text().partition("}\n{")
    path.write_text(first + "}\n{" + rest.replace('"card0"', '"cord0"', 1))
    profile = rocm_smi.read(path)
    assert 2 == len(profile.table("SAMPLES").query("metric == 'power_w'"))
    line = 1 + (first + "}\n").count("\n")
    assert (
        f"objects that do not begin with a card are left out (1, first in line {line})"
        in profile.notes
    )
    whole = smi.rocm(path, smi.card(), smi.card()).read_text()
    path.write_text(whole.replace("card1", "card2147483648"))
    assert [[0]] == devices(path)
    note = "cards with a number or values that cannot be are left out (1, such as card2147483648)"
    assert note in rocm_smi.read(path).notes


def test_other_and_damaged_json(tmp_path: Path) -> None:
    # A card at the first level with a key of rocm-smi: anything else is another program's.
    for text in [
        *(
            '{"card0": 1}',
            '{"card0": {"king": "hearts"}}',
            '{"cards": {"card0": {"GPU use (%)": "1"}}}',
        ),
        *('[{"gpu": 0, "price": {"value": 1}}]', "card0 GPU use (%)"),
    ]:
        path = tmp_path / "file.json"
        path.write_text(text)
        assert rocm_smi.sniff(path) is False
    path = smi.rocm(tmp_path / "gpu.json", smi.card(), before=WARNING, times=2)
    text = path.read_text()
    begin = text.rindex('{\n    "card0"')
    line = text.count("\n", 0, begin) + 1
    for part in (0.5, 0.99):
        path.write_text(text[: begin + int(part * (len(text) - begin))])
        with pytest.raises(
            ReadError, match=f"{path}: the JSON that begins in line {line} is cut or damaged"
        ):
            rocm_smi.read(path)
    with pytest.raises(ReadError, match="no card has a number that is known"):
        rocm_smi.read(smi.rocm(path, {"Card series": "Instinct MI100"}))
    # Python's json takes the last of two: the values of the first would be lost without a word.
    smi.rocm(path, smi.card(), smi.card({"GPU use (%)": "3"}))
    path.write_text(path.read_text().replace('"card1"', '"card0"'))
    with pytest.raises(
        ReadError,
        match=r"gpu.json: the JSON that begins in line 1 .*the key 'card0' is there twice",
    ):
        rocm_smi.read(path)


PLACES = {
    "Temperature (Sensor edge) (C)": ("temperature_c", 1),
    "Temperature (Sensor memory) (C)": ("memory_temperature_c", 1),
    "Max Graphics Package Power (W)": ("power_limit_w", 1),
    "Average Graphics Package Power (W)": ("power_w", 1),
    "GPU use (%)": ("gpu_busy_frac", 0.01),
    "VRAM Total Memory (B)": ("memory_total_bytes", 1),
    "VRAM Total Used Memory (B)": ("memory_used_bytes", 1),
}


def test_a_real_document_equals_its_truth_and_no_other_log_is_claimed(profiles: Path) -> None:
    for name in REAL:
        name = f"rocm-smi_json__{name}.json"
        told = truth_of(profiles, "monitor", name)
        path = profiles / "monitor" / name
        assert len(told["cards"]) == len(rocm_smi.read(path).table("DEVICES"))
        for card, values in told["cards"].items():
            found = said(path, int(card.removeprefix("card")))
            for key, (metric, scale) in PLACES.items():
                none = values[key].startswith("N/A")
                expected = None if none else pytest.approx(float(values[key]) * scale, rel=1e-12)
                assert expected == found.get(metric), key
    claimed = {path.name for path in (profiles / "monitor").iterdir() if rocm_smi.sniff(path)}
    assert {f"rocm-smi_json__{name}.json" for name in REAL} == claimed

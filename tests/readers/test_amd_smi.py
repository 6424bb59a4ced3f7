"""amd-smi: JSON and CSV of its versions, with and without times, and what cannot be read."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from readers import smi_files as smi

import perfkit
from perfkit.errors import ReadError
from perfkit.logs import rocm_smi as reader

MIB = 1 << 20
SECOND = 1_000_000_000
GPU = {
    "gpu_busy_frac": 0.57,
    "memory_busy_frac": 0.2,
    "power_w": 550.0,
    "sm_clock_hz": 2.1e9,
    "memory_clock_hz": 9e8,
    "temperature_c": 45.0,
    "memory_temperature_c": 40.0,
}
MEMORY = {"memory_total_bytes": 196592 * MIB, "memory_used_bytes": 283 * MIB, "energy_j": 1000.5}


def said(path: Path, gpu: int = 0) -> dict[str, float]:
    samples = reader.read(path).table("SAMPLES")
    samples = samples[samples["gpu"].eq(gpu)]
    return dict(zip(samples["metric"], samples["value"], strict=True))


@pytest.mark.parametrize("below", [True, False])
def test_json_by_hand(below: bool, tmp_path: Path) -> None:
    gpus = [smi.metric(0), smi.metric(1, {"usage": {"gfx_activity": smi.quantity(3, "%")}})]
    path = smi.amd(tmp_path / "gpus.json", {"gpu_data": gpus} if below else gpus)
    assert GPU | MEMORY == said(path)
    assert 0.03 == said(path, 1)["gpu_busy_frac"]


def test_numbers_without_a_unit_are_in_that_of_their_metric(tmp_path: Path) -> None:
    gpu = {"gpu": 0, "usage": {"gfx_activity": 57}, "mem_usage": {"used_vram": 283}}
    expected = {"gpu_busy_frac": 0.57, "memory_used_bytes": 283 * MIB}
    assert expected == said(smi.amd(tmp_path / "gpus.json", [gpu]))


def test_csv_of_metric_by_hand(tmp_path: Path) -> None:
    """Of CSV of `metric`, `mem` is the temperature of the memory."""
    path = smi.amd_csv(tmp_path / "gpus.csv", "1772939616,0,57,20,550,2100,900,N/A,45,40")
    assert GPU == said(path)


def test_csv_of_monitor_by_hand(tmp_path: Path) -> None:
    """Of CSV of `monitor`, `mem` is how busy the memory is."""
    line = "1772939616,0,550,750,45,40,2100,57,20,900,283,196592"
    path = smi.amd_csv(tmp_path / "gpus.csv", line, header=smi.MONITOR_CSV)
    memory = {name: MEMORY[name] for name in ("memory_total_bytes", "memory_used_bytes")}
    assert GPU | memory | {"power_limit_w": 750.0} == said(path)


def test_times_of_csv_are_those_of_the_clock(tmp_path: Path) -> None:
    rows = [f"{1772939616 + second},0,57,20,550,2100,900,38,45,40" for second in (0, 2)]
    profile = reader.read(smi.amd_csv(tmp_path / "gpus.csv", *rows))
    power = profile.table("SAMPLES").query("metric == 'power_w'")
    assert [0, 2 * SECOND] == power["time_ns"].tolist()
    assert 1772939616 * SECOND == profile.capture["t0_unix_ns"].iloc[0]


def test_csv_again_and_again_without_times_is_1_s_apart(tmp_path: Path) -> None:
    header = "gpu,gfx_activity"
    path = smi.amd_csv(tmp_path / "gpus.csv", "0,5", "1,6", header, "0,7", "1,8", header=header)
    samples = reader.read(path).table("SAMPLES")
    assert [0, SECOND, 0, SECOND] == samples["time_ns"].tolist()
    assert any("taken to be 1 s apart" in note for note in reader.read(path).notes)


def test_static_adds_the_names(tmp_path: Path) -> None:
    static = {
        "gpu": 0,
        "asic": {"market_name": "AMD Instinct MI300X"},
        "limit": {"ppt0": {"socket_power_limit": smi.quantity(750, "W")}},
    }
    path = smi.amd(tmp_path / "gpus.json", {"gpu_data": [smi.metric(0)]}, {"gpu_data": [static]})
    assert ["AMD Instinct MI300X"] == perfkit.load(path).devices["name"].tolist()
    assert 750 == said(path)["power_limit_w"]


def test_what_is_no_number_is_counted(tmp_path: Path) -> None:
    gpu = smi.metric(0, {"power": {"socket_power": "N/A"}})
    notes = reader.read(smi.amd(tmp_path / "gpus.json", [gpu])).notes
    assert "not available: temperature.edge 1 of 1, power.socket_power 1 of 1" in notes


def test_a_cut_last_line_is_left_out(tmp_path: Path) -> None:
    path = smi.amd_csv(tmp_path / "gpus.csv", *["1772939616,0,57,20,550,2100,900,38,45,40"] * 2)
    path.write_bytes(path.read_bytes()[:-4])
    profile = reader.read(path)
    assert 1 == len(profile.table("SAMPLES").query("metric == 'power_w'"))
    assert any("it may be cut" in note for note in profile.notes)


def test_cut_json_is_refused_with_its_line(tmp_path: Path) -> None:
    path = smi.amd(tmp_path / "gpus.json", [smi.metric(0)], [smi.metric(0)])
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ReadError, match=r"the JSON that begins in line [0-9]+ is cut or damaged"):
        reader.read(path)


@pytest.mark.parametrize("row", ["1772939616,0,57", "1772939616,x,57,20,550,2100,900,38,45,40"])
def test_a_row_that_is_none_is_refused(row: str, tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="line 2 is no row of the header"):
        reader.read(smi.amd_csv(tmp_path / "gpus.csv", row))


@pytest.mark.parametrize(
    "text",
    [
        "gpu,memory\n0,5\n",
        "timestamp,gpu,temp_c\n1,0,5\n",
        '[{"gpu": 0, "price": 3}]',
        '{"gpu_data": []}',
        "timestamp, index, power.draw [W]\n2026/03/07 00:20:37.071, 0, 76.78 W\n",
    ],
)
def test_other_files_are_not_claimed(text: str, tmp_path: Path) -> None:
    path = tmp_path / "gpus.csv"
    path.write_text(text)
    assert reader.sniff(path) is False


def test_a_time_that_cannot_be_is_no_time(tmp_path: Path) -> None:
    path = smi.amd_csv(tmp_path / "gpus.csv", "9" * 18 + ",0,57,20,550,2100,900,38,45,40")
    assert pd.isna(reader.read(path).capture["t0_unix_ns"].iloc[0])


def hostile() -> list[Any]:
    deep: dict[str, Any] = {"value": 1}
    for _ in range(50):
        deep = {"usage": deep}
    return [{"gpu": 0, **deep}, {"gpu": -1}, {"gpu": True}, 3]


def test_strange_json_is_skipped(tmp_path: Path) -> None:
    path = smi.amd(tmp_path / "gpus.json", [smi.metric(0), *hostile()])
    assert GPU | MEMORY == said(path)

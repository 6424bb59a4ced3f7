"""Sampling GPUs through a stand-in for NVML, and reading what was sampled."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_nvml
import pytest
from click.testing import CliRunner
from fake_nvml import MIB, FunctionNotFound, NotSupported, NVMLError, failing

from perfkit.cli import main
from perfkit.errors import PerfkitError
from perfkit.readers import nvidia_smi
from perfkit.workloads import nvml
from perfkit.workloads.monitor import gpu_log

SECOND, MS = 10**9, 10**6
LOST = NVMLError("GPU is lost, reset it")


Install = Callable[..., SimpleNamespace]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a stand-in with these GPUs and functions in the place of pynvml."""

    def put(gpus: int = 1, **others: Callable[..., Any]) -> SimpleNamespace:
        made = fake_nvml.module(gpus, **others)
        monkeypatch.setitem(sys.modules, "pynvml", made)
        return made

    return put


def cells(path: Path) -> dict[str, str]:
    """The only line of a log by the names of its columns."""
    header, line = (text.split(", ") for text in path.read_text(encoding="utf-8").splitlines())
    return dict(zip(header, line, strict=True))


def once(path: Path, **options: Any) -> int:
    """Sample one moment."""
    return gpu_log(path, interval_ns=SECOND, dur_ns=1, **options)


def test_has_the_layout_of_nvidia_smi(tmp_path: Path, install: Install, profiles: Path) -> None:
    """Every column that nvidia-smi has too is printed in the same form as in a real log of an H100."""
    install()
    once(tmp_path / "gpu.csv")
    real = cells(profiles / "monitor" / "nvidia-smi__nvidia-h100-80gb-hbm3__590.48.01__load__query-gpu.csv")
    made = {name.replace("timestamp [UTC]", "timestamp"): cell for name, cell in cells(tmp_path / "gpu.csv").items()}

    def form(text: str) -> str:
        return re.sub(r"[0-9A-F]+(?![a-z])", "9", text.removeprefix("Not "))

    assert {"energy [J]", "pcie.rx [KB/s]", "pcie.tx [KB/s]", "temperature.slowdown"} == made.keys() - real.keys()
    shared = made.keys() & real.keys()
    assert {name: form(real[name]) for name in shared} == {name: form(made[name]) for name in shared}


def test_its_times_are_known_to_be_utc(tmp_path: Path, install: Install) -> None:
    """The header says it, so that the reader does not call them local, as it does without the mark."""
    install()
    once(tmp_path / "gpu.csv")
    profile = nvidia_smi.read(tmp_path / "gpu.csv")
    assert not any("UTC" in note or "local" in note for note in profile.notes)
    assert abs(time.time_ns() - int(profile.capture["t0_unix_ns"].iloc[0])) < 60 * SECOND
    path = tmp_path / "unmarked.csv"
    path.write_text((tmp_path / "gpu.csv").read_text().replace("timestamp [UTC]", "timestamp"))
    assert "the times are local ones without a zone, taken as UTC" in nvidia_smi.read(path).notes


def test_is_read_as_a_log_of_nvidia_smi(tmp_path: Path, install: Install) -> None:
    """The reader finds every value in the unit of its metric: 631,950 mW are 631.95 W, 2500 KB/s 2.5e6 bytes/s."""
    install()
    once(tmp_path / "gpu.csv")
    assert nvidia_smi.sniff(tmp_path / "gpu.csv")
    samples = nvidia_smi.read(tmp_path / "gpu.csv").table("SAMPLES")
    expected = {
        "gpu_busy_frac": 0.97,
        "memory_busy_frac": 0.11,
        "memory_total_bytes": 81559 * MIB,
        "driver_reserved_bytes": 479 * MIB,
        "memory_used_bytes": 19818 * MIB,
        "memory_free_bytes": 61262 * MIB,
        "power_w": 631.95,
        "power_limit_w": 700,
        "temperature_c": 59,
        "memory_temperature_c": 54,
        "temperature_slowdown_c": 89,
        "temperature_margin_c": 26,
        "sm_clock_hz": 1755e6,
        "sm_max_clock_hz": 1980e6,
        "memory_clock_hz": 2619e6,
        "throttled_power_frac": 1,
        "throttled_thermal_frac": 0,
        "throttled_other_frac": 0,
        "idle_frac": 0,
        "ecc_corrected_count": 7,
        "ecc_uncorrected_count": 1,
        "pcie_rx_bytes_per_s": 2.5e6,
        "pcie_tx_bytes_per_s": 0.4e6,
    }
    read = dict(zip(samples["metric"], samples["value"], strict=True))
    assert expected == {metric: read[metric] for metric in expected}
    assert {"energy_j": 123456.789}.items() >= {m: v for m, v in read.items() if m not in expected}.items()


def test_names_the_device_and_the_driver(tmp_path: Path, install: Install) -> None:
    """The reader has name, compute capability, memory and clock of each GPU, and the driver's version."""
    install(2)
    once(tmp_path / "gpu.csv")
    profile = nvidia_smi.read(tmp_path / "gpu.csv")
    devices = profile.table("DEVICES")[["gpu", "name", "compute_capability", "memory_bytes", "clock_hz"]]
    h100 = "NVIDIA H100 80GB HBM3", "9.0", 81559 * MIB, 1980e6
    assert [(0, *h100), (1, *h100)] == list(devices.itertuples(index=False, name=None))
    assert ["590.48.01"] == profile.capture["tool_version"].tolist()


def test_times_are_utc(tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read as UTC, as the reader does, the log begins now, in whatever zone the machine is."""
    install()
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    time.tzset()
    try:
        before = time.time_ns()
        once(tmp_path / "gpu.csv")
        after = time.time_ns()
    finally:
        monkeypatch.undo()
        time.tzset()
    (start,) = nvidia_smi.read(tmp_path / "gpu.csv").capture["t0_unix_ns"]
    assert before // MS <= start // MS <= after // MS


def test_samples_every_gpu_at_every_moment(tmp_path: Path, install: Install) -> None:
    """Three moments, 20 ms apart, of two GPUs are six lines."""
    install(2)
    assert 6 == gpu_log(tmp_path / "gpu.csv", interval_ns=20 * MS, dur_ns=60 * MS)
    samples = nvidia_smi.read(tmp_path / "gpu.csv").table("SAMPLES")
    busy = samples[samples["metric"] == "gpu_busy_frac"]
    assert {0: [0.97] * 3, 1: [0.96] * 3} == busy.groupby("gpu")["value"].apply(list).to_dict()
    assert 20 * MS <= busy["time_ns"].max()


def test_samples_the_chosen_gpus_under_their_index(tmp_path: Path, install: Install) -> None:
    """GPU 2 of four keeps its number."""
    install(4)
    assert 2 == once(tmp_path / "gpu.csv", gpus=(2, 0, 2))
    assert [0, 2] == sorted(nvidia_smi.read(tmp_path / "gpu.csv").table("SAMPLES")["gpu"].unique())


def test_late_moments_are_left_out(tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample that takes 1.5 intervals is followed by that at 2 intervals, not by two at once."""
    install()
    clock = [0]
    monkeypatch.setattr(time, "monotonic_ns", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + round(seconds * SECOND)))
    taken: list[int] = []

    def cells(*_: object) -> list[str]:
        taken.append(clock[0])
        clock[0] += 3 * SECOND // 2
        return ["0"] * len(nvml.NAMES)

    monkeypatch.setattr(nvml, "cells", cells)
    gpu_log(tmp_path / "gpu.csv", interval_ns=SECOND, dur_ns=5 * SECOND)
    assert [0, 2 * SECOND, 4 * SECOND] == taken


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_log_with_a_whole_moment(tmp_path: Path, install: Install, number: signal.Signals) -> None:
    """A signal within the second moment of two GPUs leaves four whole lines, and the signals as they were."""
    earlier = signal.getsignal(number)
    calls: list[int] = []

    def rates(gpu: int) -> SimpleNamespace:
        calls.append(gpu)
        if len(calls) == 3:
            signal.raise_signal(number)
        return SimpleNamespace(gpu=50, memory=1)

    install(2, DeviceGetUtilizationRates=rates)
    assert 4 == gpu_log(tmp_path / "gpu.csv", interval_ns=MS)
    assert [0, 1, 0, 1] == calls
    assert 5 == (tmp_path / "gpu.csv").read_text().count("\n")
    assert earlier == signal.getsignal(number)


def test_a_signal_ends_the_wait(tmp_path: Path, install: Install) -> None:
    """A signal between two moments an hour apart is answered within seconds."""
    install()
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    assert 1 == gpu_log(tmp_path / "gpu.csv", interval_ns=3600 * SECOND)
    assert time.monotonic() - start < 60


def test_samples_outside_the_main_thread(tmp_path: Path, install: Install) -> None:
    """Python lets only the main thread handle signals: another one samples without."""
    install()
    lines: list[int] = []
    thread = threading.Thread(target=lambda: lines.append(once(tmp_path / "gpu.csv")))
    thread.start()
    thread.join()
    assert [1] == lines


def test_a_line_is_in_the_file_at_once(tmp_path: Path, install: Install) -> None:
    """While the first GPU is read the file has its header, while the second is read also the line of the first."""
    seen: list[int] = []

    def name(gpu: int) -> str:
        seen.append((tmp_path / "gpu.csv").read_text().count("\n"))
        return "H100"

    install(2, DeviceGetName=name)
    once(tmp_path / "gpu.csv")
    assert [1, 2] == seen


@pytest.mark.parametrize(
    ("function", "columns", "metric"),
    [
        ("DeviceGetUtilizationRates", ["utilization.gpu [%]", "utilization.memory [%]"], "gpu_busy_frac"),
        ("DeviceGetMarginTemperature", ["temperature.gpu.tlimit"], "temperature_margin_c"),
        ("DeviceGetTemperatureThreshold", ["temperature.slowdown"], "temperature_slowdown_c"),
        ("DeviceGetTotalEnergyConsumption", ["energy [J]"], "energy_j"),
        ("DeviceGetEnforcedPowerLimit", ["enforced.power.limit [W]"], "power_limit_w"),
        ("DeviceGetPcieThroughput", ["pcie.rx [KB/s]", "pcie.tx [KB/s]"], "pcie_rx_bytes_per_s"),
        (
            "DeviceGetTotalEccErrors",
            [f"ecc.errors.{k}orrected.volatile.total" for k in ("c", "unc")],
            "ecc_corrected_count",
        ),
    ],
)
def test_what_is_not_supported_is_not_available(
    tmp_path: Path, install: Install, function: str, columns: list[str], metric: str
) -> None:
    """A GPU that lacks a value has [N/A] in its cells and nowhere else, and the reader has no row of the metric."""
    install(**{function: failing(NotSupported("Not Supported"))})
    once(tmp_path / "gpu.csv")
    assert columns == [name for name, cell in cells(tmp_path / "gpu.csv").items() if cell == "[N/A]"]
    assert metric not in set(nvidia_smi.read(tmp_path / "gpu.csv").table("SAMPLES")["metric"])


def test_another_failure_of_a_cell_names_its_reason(tmp_path: Path, install: Install) -> None:
    """NVML's words stand in brackets, without the comma that would end the cell; the reader counts them as missing."""
    install(DeviceGetPowerUsage=failing(LOST))
    once(tmp_path / "gpu.csv")
    assert "[GPU is lost reset it]" == cells(tmp_path / "gpu.csv")["power.draw [W]"]
    assert "power_w" not in set(nvidia_smi.read(tmp_path / "gpu.csv").table("SAMPLES")["metric"])


def test_memory_temperature_fails_by_its_code(tmp_path: Path, install: Install) -> None:
    """The failure of a field is a code beside its value, not raised."""
    install(DeviceGetFieldValues=lambda gpu, fields: [SimpleNamespace(nvmlReturn=3)])
    once(tmp_path / "gpu.csv")
    assert "[3]" == cells(tmp_path / "gpu.csv")["temperature.memory"]


def test_old_drivers_answer_with_what_they_have(tmp_path: Path, install: Install) -> None:
    """Before driver 510 used memory holds what is reserved, before 535 event reasons are throttle reasons."""

    def memory(gpu: int, version: int | None = None) -> SimpleNamespace:
        if version:
            raise FunctionNotFound
        return fake_nvml.memory(gpu)

    install(DeviceGetCurrentClocksEventReasons=failing(FunctionNotFound()), DeviceGetMemoryInfo=memory)
    once(tmp_path / "gpu.csv")
    found = cells(tmp_path / "gpu.csv")
    assert ["81559 MiB", "[N/A]"] == [found["memory.total [MiB]"], found["memory.reserved [MiB]"]]
    assert "0x0000000000000004" == found["clocks_event_reasons.active"]


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        (0, set()),
        (0x1, {"gpu_idle"}),
        (0x48, {"hw_slowdown", "hw_thermal_slowdown"}),
        (0xFF, set(nvml.REASONS)),
    ],
)
def test_reasons_are_decoded(tmp_path: Path, install: Install, bits: int, reasons: set[str]) -> None:
    """Each bit that is set is Active under its name."""
    install(DeviceGetCurrentClocksEventReasons=lambda gpu: bits)
    once(tmp_path / "gpu.csv")
    active = {name for name, cell in cells(tmp_path / "gpu.csv").items() if cell == "Active"}
    assert {f"clocks_event_reasons.{reason}" for reason in reasons} == active


def test_a_name_ends_no_cell(tmp_path: Path, install: Install) -> None:
    """A comma or a line break in the name of a GPU would shift the columns after it."""
    install(DeviceGetName=lambda gpu: "H100,\n80GB")
    once(tmp_path / "gpu.csv")
    assert "H100 80GB" == cells(tmp_path / "gpu.csv")["name"]


def test_without_the_module_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia-ml-py is an extra; no file is made without it."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(PerfkitError, match=r"pip install 'perfkit\[live\]'"):
        once(tmp_path / "gpu.csv")
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("gpus", "fails", "wanted", "message"),
    [
        (1, {"Init": NVMLError("Driver Not Loaded")}, (), r"no NVIDIA driver answers on this machine \(Driver Not"),
        (0, {}, (), "the driver shows no GPU"),
        (2, {}, (0, 2), "there is no GPU 2; this machine has 0 to 1"),
        (2, {}, (-1,), "there is no GPU -1"),
        (2, {"DeviceGetHandleByIndex": LOST}, (), "GPU 0: NVML says 'GPU is lost"),
        (2, {"DeviceGetCount": NVMLError("Unknown Error")}, (), r"it fails \(Unknown Error\)"),
    ],
)
def test_machine_without_such_gpus_is_refused(
    tmp_path: Path, install: Install, gpus: int, fails: dict[str, NVMLError], wanted: tuple[int, ...], message: str
) -> None:
    """The error says what NVML found, no file is made, and NVML is shut down if it was initialised."""
    ended: list[bool] = []
    install(gpus, Shutdown=lambda: ended.append(True), **{name: failing(error) for name, error in fails.items()})
    with pytest.raises(PerfkitError, match=message):
        once(tmp_path / "gpu.csv", gpus=wanted)
    assert ([], [True] * ("Init" not in fails)) == (list(tmp_path.iterdir()), ended)


def test_an_earlier_log_is_kept(tmp_path: Path, install: Install) -> None:
    """A file that is there is not overwritten."""
    install()
    (tmp_path / "gpu.csv").write_text("hours of work")
    with pytest.raises(PerfkitError, match=r"gpu.csv: the file is there already"):
        once(tmp_path / "gpu.csv")
    assert "hours of work" == (tmp_path / "gpu.csv").read_text()


def test_place_that_cannot_be_written_is_refused(tmp_path: Path, install: Install) -> None:
    """A folder that does not exist is named."""
    install()
    with pytest.raises(PerfkitError, match=r"cannot be written \(No such file or directory\)"):
        once(tmp_path / "none" / "gpu.csv")


@pytest.mark.parametrize("times", [{"interval_ns": 0}, {"interval_ns": -1}, {"dur_ns": 0}])
def test_times_are_above_zero(tmp_path: Path, times: dict[str, int]) -> None:
    """Neither a pause nor a time of nothing makes sense."""
    (name,) = times
    with pytest.raises(ValueError, match=f"{name}: .* is not above 0"):
        gpu_log(tmp_path / "gpu.csv", **times)  # type: ignore[arg-type]


def test_command_samples(tmp_path: Path, install: Install) -> None:
    """`perfkit record monitor` writes the log and says how long it is."""
    install(2)
    out = tmp_path / "gpu.csv"
    options = ["--interval", "10ms", "--for", "20ms", "--gpus", "1", "--out", str(out)]
    result = CliRunner().invoke(main, ["record", "monitor", *options])
    assert (0, f"{out}: 2 lines\n") == (result.exit_code, result.output)


def test_command_refuses_a_time_without_unit(tmp_path: Path) -> None:
    """60 could be seconds or milliseconds."""
    result = CliRunner().invoke(main, ["record", "monitor", "--for", "60", "--out", str(tmp_path / "gpu.csv")])
    assert (2, True) == (result.exit_code, "'60' is no time with a unit" in result.output)


def test_nvidia_has_the_functions() -> None:
    """What the stand-in offers is what nvidia-ml-py offers."""
    if importlib.util.find_spec("pynvml") is None:
        pytest.skip("nvidia-ml-py is not installed (pip install 'perfkit[live]')")
    import pynvml

    used = {name for name in vars(fake_nvml.module()) if name.startswith(("nvml", "NVML"))}
    assert set() == {name for name in used if not hasattr(pynvml, name)}

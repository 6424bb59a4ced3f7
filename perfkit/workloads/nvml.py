"""What NVML says of a GPU, as nvidia-smi prints it.

Conventions
-----------
Columns have the names, units and words of ``nvidia-smi --query-gpu``; what that lacks (the slowdown threshold, PCIe
traffic, energy) has a name of the same form. A cell that NVML cannot fill is ``[N/A]`` where that is not supported,
otherwise NVML's reason in brackets.

Functions
---------
opened   NVML's Python module, while it is initialised
chosen   handles of GPUs
cells    one line about a GPU
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from perfkit.errors import PerfkitError

MIB = 2**20
# Bits of nvmlClocksEventReasons (NVML API reference) under the names that nvidia-smi gives them.
REASONS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "sw_thermal_slowdown": 0x20,
    "sync_boost": 0x10,
}


@contextmanager
def opened() -> Iterator[Any]:
    """Yield the module pynvml, initialised.

    Raises
    ------
    PerfkitError
        If it is not installed, no driver answers, or NVML fails while it is used.
    """
    try:
        import pynvml as nvml
    except ImportError as e:
        raise PerfkitError(
            f"nvidia-ml-py: cannot be imported ({e}). Install it, for example with `pip install 'perfkit[live]'`."
        ) from e
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as e:
        raise PerfkitError(
            f"NVML: no NVIDIA driver answers on this machine ({e}). Record where the GPUs are, in a container that "
            "was started with `--gpus all`; GPUs of AMD with `rocm-smi --json`."
        ) from e
    try:
        yield nvml
    except nvml.NVMLError as e:
        raise PerfkitError(f"NVML: it fails ({e}). Look at what `nvidia-smi` says.") from e
    finally:
        nvml.nvmlShutdown()


def chosen(nvml: Any, gpus: Sequence[int]) -> dict[int, Any]:
    """Return the handles of GPUs by their index, of all if none is named.

    Raises
    ------
    PerfkitError
        If there is no GPU, none of an index, or one does not answer.
    """
    count = nvml.nvmlDeviceGetCount()
    if not count:
        raise PerfkitError(
            "NVML: the driver shows no GPU. Compare with `nvidia-smi -L`; start a container with `--gpus all`."
        )
    foreign = sorted({gpu for gpu in gpus if not 0 <= gpu < count})
    if foreign:
        raise PerfkitError(f"gpus: there is no GPU {foreign[0]}; this machine has 0 to {count - 1}. Choose from these.")
    return {gpu: _handle(nvml, gpu) for gpu in sorted(set(gpus)) or range(count)}


def _handle(nvml: Any, gpu: int) -> Any:
    try:
        return nvml.nvmlDeviceGetHandleByIndex(gpu)
    except nvml.NVMLError as e:
        raise PerfkitError(f"GPU {gpu}: NVML says {str(e)!r}. Choose others with --gpus, or reset it.") from e


def cells(nvml: Any, handle: Any) -> list[str]:
    """Return what stands under `NAMES` for a GPU, now."""
    made: list[str] = []
    for names, reading in READINGS.items():
        try:
            made += reading(nvml, handle)
        except nvml.NVMLError as e:
            why = "N/A" if isinstance(e, nvml.NVMLError_NotSupported) else _plain(e)
            made += [f"[{why}]"] * len(names)
    return made


def _plain(text: object) -> str:
    """Return text that ends no cell and no line."""
    return " ".join(str(text).replace(",", " ").split())


def _either(nvml: Any, call: Callable[[], Any], before: Callable[[], Any]) -> Any:
    """Return what a function says, or the one before it where the driver is too old to have it."""
    try:
        return call()
    except nvml.NVMLError_FunctionNotFound:
        return before()


def _driver(nvml: Any, _: Any) -> Sequence[str]:
    return [_plain(nvml.nvmlSystemGetDriverVersion())]


def _name(nvml: Any, gpu: Any) -> Sequence[str]:
    return [_plain(nvml.nvmlDeviceGetName(gpu))]


def _capability(nvml: Any, gpu: Any) -> Sequence[str]:
    return [".".join(str(part) for part in nvml.nvmlDeviceGetCudaComputeCapability(gpu))]


def _utilisation(nvml: Any, gpu: Any) -> Sequence[str]:
    rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
    return [f"{rates.gpu} %", f"{rates.memory} %"]


def _memory(nvml: Any, gpu: Any) -> Sequence[str]:
    """Return total, reserved, used and free memory; before driver 510 what the driver reserves is counted as used."""
    told = nvml.nvmlDeviceGetMemoryInfo
    info = _either(nvml, lambda: told(gpu, version=nvml.nvmlMemory_v2), lambda: told(gpu))
    reserved = f"{round(info.reserved / MIB)} MiB" if hasattr(info, "reserved") else "[N/A]"
    total, used, free = (f"{round(part / MIB)} MiB" for part in (info.total, info.used, info.free))
    return [total, reserved, used, free]


def _power(nvml: Any, gpu: Any) -> Sequence[str]:
    return [f"{nvml.nvmlDeviceGetPowerUsage(gpu) / 1000:.2f} W"]


def _power_limit(nvml: Any, gpu: Any) -> Sequence[str]:
    return [f"{nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000:.2f} W"]


def _temperature(nvml: Any, gpu: Any) -> Sequence[str]:
    return [str(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))]


def _memory_temperature(nvml: Any, gpu: Any) -> Sequence[str]:
    (value,) = nvml.nvmlDeviceGetFieldValues(gpu, [nvml.NVML_FI_DEV_MEMORY_TEMP])
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(value.nvmlReturn)
    return [str(value.value.uiVal)]


def _slowdown(nvml: Any, gpu: Any) -> Sequence[str]:
    return [str(nvml.nvmlDeviceGetTemperatureThreshold(gpu, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN))]


def _margin(nvml: Any, gpu: Any) -> Sequence[str]:
    return [str(nvml.nvmlDeviceGetMarginTemperature(gpu))]


def _sm_clock(nvml: Any, gpu: Any) -> Sequence[str]:
    return [f"{nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)} MHz"]


def _sm_max_clock(nvml: Any, gpu: Any) -> Sequence[str]:
    return [f"{nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM)} MHz"]


def _memory_clock(nvml: Any, gpu: Any) -> Sequence[str]:
    return [f"{nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM)} MHz"]


def _reasons(nvml: Any, gpu: Any) -> Sequence[str]:
    active = _either(
        nvml,
        lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu),
        lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu),
    )
    return [f"0x{active:016X}", *("Active" if active & bit else "Not Active" for bit in REASONS.values())]


def _corrected(nvml: Any, gpu: Any) -> Sequence[str]:
    kind = nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
    return [str(nvml.nvmlDeviceGetTotalEccErrors(gpu, kind, nvml.NVML_VOLATILE_ECC))]


def _uncorrected(nvml: Any, gpu: Any) -> Sequence[str]:
    kind = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    return [str(nvml.nvmlDeviceGetTotalEccErrors(gpu, kind, nvml.NVML_VOLATILE_ECC))]


def _energy(nvml: Any, gpu: Any) -> Sequence[str]:
    return [f"{nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000:.3f} J"]


def _received(nvml: Any, gpu: Any) -> Sequence[str]:
    return [f"{nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_RX_BYTES)} KB/s"]


def _sent(nvml: Any, gpu: Any) -> Sequence[str]:
    return [f"{nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_TX_BYTES)} KB/s"]


# PCIe comes last: NVML counts its traffic for 20 ms, and the time on the line is that of the other values.
READINGS: Mapping[tuple[str, ...], Callable[[Any, Any], Sequence[str]]] = {
    ("driver_version",): _driver,
    ("name",): _name,
    ("compute_cap",): _capability,
    ("utilization.gpu [%]", "utilization.memory [%]"): _utilisation,
    ("memory.total [MiB]", "memory.reserved [MiB]", "memory.used [MiB]", "memory.free [MiB]"): _memory,
    ("power.draw [W]",): _power,
    ("enforced.power.limit [W]",): _power_limit,
    ("temperature.gpu",): _temperature,
    ("temperature.memory",): _memory_temperature,
    ("temperature.slowdown",): _slowdown,
    ("temperature.gpu.tlimit",): _margin,
    ("clocks.current.sm [MHz]",): _sm_clock,
    ("clocks.max.sm [MHz]",): _sm_max_clock,
    ("clocks.current.memory [MHz]",): _memory_clock,
    ("clocks_event_reasons.active", *(f"clocks_event_reasons.{reason}" for reason in REASONS)): _reasons,
    ("ecc.errors.corrected.volatile.total",): _corrected,
    ("ecc.errors.uncorrected.volatile.total",): _uncorrected,
    ("energy [J]",): _energy,
    ("pcie.rx [KB/s]",): _received,
    ("pcie.tx [KB/s]",): _sent,
}
NAMES = tuple(name for names in READINGS for name in names)

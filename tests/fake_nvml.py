"""A stand-in for nvidia-ml-py's module pynvml: the functions that perfkit uses, for GPUs such as an H100."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

MIB = 2**20
CONSTANTS = {
    "NVML_SUCCESS": 0,
    "NVML_TEMPERATURE_GPU": 0,
    "NVML_FI_DEV_MEMORY_TEMP": 82,
    "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN": 1,
    "NVML_CLOCK_SM": 1,
    "NVML_CLOCK_MEM": 2,
    "NVML_MEMORY_ERROR_TYPE_CORRECTED": 0,
    "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
    "NVML_VOLATILE_ECC": 0,
    "NVML_PCIE_UTIL_TX_BYTES": 0,
    "NVML_PCIE_UTIL_RX_BYTES": 1,
    "nvmlMemory_v2": 0x2000028,
}
MEMORY = {"total": 81559 * MIB, "used": 19818 * MIB, "free": 61262 * MIB}


class NVMLError(Exception):
    """What a function of NVML raises; the text is NVML's."""


class NotSupported(NVMLError):
    """The GPU lacks what is asked for."""


class FunctionNotFound(NVMLError):
    """The driver is too old to have the function."""


ERRORS = {
    "NVMLError": NVMLError,
    "NVMLError_NotSupported": NotSupported,
    "NVMLError_FunctionNotFound": FunctionNotFound,
}


def failing(error: Exception) -> Callable[..., Any]:
    """A function that raises."""

    def fail(*args: object, **options: object) -> Any:
        raise error

    return fail


def memory(gpu: int, version: int | None = None) -> SimpleNamespace:
    """Memory of an H100; only the second version of the function says what is reserved."""
    return SimpleNamespace(**MEMORY, **({"reserved": 479 * MIB} if version else {}))


def module(gpus: int = 1, **others: Callable[..., Any]) -> SimpleNamespace:
    """The module, with functions in place of those named, without their prefix nvml; a handle is the GPU's index."""
    functions: dict[str, Callable[..., Any]] = {
        "Init": lambda: None,
        "Shutdown": lambda: None,
        "SystemGetDriverVersion": lambda: "590.48.01",
        "DeviceGetCount": lambda: gpus,
        "DeviceGetHandleByIndex": lambda index: index,
        "DeviceGetName": lambda gpu: "NVIDIA H100 80GB HBM3",
        "DeviceGetCudaComputeCapability": lambda gpu: (9, 0),
        "DeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=97 - gpu, memory=11),
        "DeviceGetMemoryInfo": memory,
        "DeviceGetPowerUsage": lambda gpu: 631_950,
        "DeviceGetEnforcedPowerLimit": lambda gpu: 700_000,
        "DeviceGetTotalEnergyConsumption": lambda gpu: 123_456_789,
        "DeviceGetTemperature": lambda gpu, sensor: {0: 59}[sensor],
        "DeviceGetFieldValues": lambda gpu, fields: [
            SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal={82: 54}[field])) for field in fields
        ],
        "DeviceGetTemperatureThreshold": lambda gpu, threshold: {0: 92, 1: 89}[threshold],
        "DeviceGetMarginTemperature": lambda gpu: 26,
        "DeviceGetClockInfo": lambda gpu, clock: {1: 1755, 2: 2619}[clock],
        "DeviceGetMaxClockInfo": lambda gpu, clock: {1: 1980, 2: 2619}[clock],
        "DeviceGetCurrentClocksEventReasons": lambda gpu: 0x4,
        "DeviceGetCurrentClocksThrottleReasons": lambda gpu: 0x4,
        "DeviceGetTotalEccErrors": lambda gpu, kind, counter: {(0, 0): 7, (1, 0): 1}[kind, counter],
        "DeviceGetPcieThroughput": lambda gpu, counter: {0: 400, 1: 2500}[counter],
    }
    named = {f"nvml{name}": function for name, function in {**functions, **others}.items()}
    return SimpleNamespace(**CONSTANTS, **ERRORS, **named)

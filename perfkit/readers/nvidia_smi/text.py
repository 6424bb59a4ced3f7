"""``nvidia-smi -q``: an indented text, also of some sections (``-d TEMPERATURE,POWER``) and repeated (``-l``)."""

from __future__ import annotations

import re
from pathlib import Path
from types import MappingProxyType

from perfkit.errors import ReadError
from perfkit.readers.nvidia_smi import snapshot
from perfkit.readers.nvidia_smi.fields import COUNTERS
from perfkit.readers.nvidia_smi.forms import content
from perfkit.readers.nvidia_smi.lines import CUT
from perfkit.readers.nvidia_smi.log import Log

TITLE = re.compile(r"=+NVSMI LOG=+")
GPU = re.compile(r"GPU [0-9A-Fa-f]+:[0-9A-Fa-f]+:[0-9A-Fa-f.]+")
SEPARATOR = re.compile(r" :(?: |$)")
NAMES = MappingProxyType(
    {
        "product name": "name",
        "gpu uuid": "uuid",
        "utilization/gpu": "utilization.gpu",
        "utilization/memory": "utilization.memory",
        "utilization/encoder": "utilization.encoder",
        "utilization/decoder": "utilization.decoder",
        "utilization/jpeg": "utilization.jpeg",
        "utilization/ofa": "utilization.ofa",
        "fan speed": "fan.speed",
        "fb memory usage/total": "memory.total",
        "fb memory usage/reserved": "memory.reserved",
        "fb memory usage/used": "memory.used",
        "fb memory usage/free": "memory.free",
        "bar1 memory usage/used": "bar1.used",
        "temperature/gpu current temp": "temperature.gpu",
        "temperature/memory current temp": "temperature.memory",
        "temperature/gpu t.limit temp": "temperature.gpu.tlimit",
        "temperature/gpu current t.limit temp": "temperature.gpu.tlimit",
        "temperature/gpu shutdown temp": "temperature.shutdown",
        "temperature/gpu slowdown temp": "temperature.slowdown",
        "temperature/gpu max operating temp": "temperature.max",
        "temperature/gpu slowdown t.limit temp": "temperature.slowdown.tlimit",
        "power readings/power draw": "power.draw",
        "gpu power readings/power draw": "power.draw",
        "gpu power readings/instantaneous power draw": "power.draw.instant",
        "gpu power readings/average power draw": "power.draw.average",
        "power readings/enforced power limit": "enforced.power.limit",
        "gpu power readings/current power limit": "enforced.power.limit",
        "power readings/power limit": "power.limit",
        "clocks/sm": "clocks.current.sm",
        "clocks/memory": "clocks.current.memory",
        "max clocks/sm": "clocks.max.sm",
        "pci/rx throughput": "pcie.rx",
        "pci/tx throughput": "pcie.tx",
        "pci/replays since reset": "pcie.replays",
        **{
            f"clocks event reasons counters/{place}": f"{COUNTERS}{reason}"
            for place, reason in {
                "sw power capping": "sw_power_cap",
                "hw power braking": "hw_power_brake_slowdown",
                "sw thermal slowdown": "sw_thermal_slowdown",
                "hw thermal slowdown": "hw_thermal_slowdown",
                "sync boost": "sync_boost",
            }.items()
        },
        **{
            f"clocks {kind} reasons/{place}": f"clocks_event_reasons.{reason}"
            for kind in ("event", "throttle")
            for place, reason in {
                "idle": "gpu_idle",
                "applications clocks setting": "applications_clocks_setting",
                "sw power cap": "sw_power_cap",
                "hw slowdown": "hw_slowdown",
                "hw slowdown/hw thermal slowdown": "hw_thermal_slowdown",
                "hw slowdown/hw power brake slowdown": "hw_power_brake_slowdown",
                "sync boost": "sync_boost",
                "sw thermal slowdown": "sw_thermal_slowdown",
                "display clock setting": "display_clock_setting",
            }.items()
        },
    }
)


def log(path: Path) -> Log:
    """Read an inventory.

    Raises
    ------
    ReadError
        If it describes no GPU, or one twice in one listing.
    """
    *whole, rest = content(path).decode(errors="replace").split("\n")
    inventories: list[snapshot.Inventory] = []
    said: dict[str, str] = {}
    gpus: list[dict[str, str]] = []
    stack: list[tuple[int, str]] = []
    there: set[str] = set()
    for number, line in enumerate(whole, 1):
        text = line.strip()
        if TITLE.fullmatch(text):
            said, gpus, there = {}, [], set()
            inventories.append(snapshot.Inventory(said, gpus))
        elif GPU.fullmatch(text):
            if text in there:
                raise ReadError(
                    f"{path}: line {number} describes {text} again, without a title above. {snapshot.AGAIN}."
                )
            there.add(text)
            said, stack = {}, []
            gpus.append(said)
        else:
            _entered(line, said, stack)
    return snapshot.log(path, inventories, NAMES, [CUT] if rest.strip() else [])


def _entered(line: str, said: dict[str, str], stack: list[tuple[int, str]]) -> None:
    """Enter a line under its path: a line belongs to the last one above it that is less indented."""
    text = line.expandtabs().rstrip()
    if not text:
        return
    indent = len(text) - len(text.lstrip())
    found = SEPARATOR.search(text, indent)
    name = text[indent : found.start()] if found else text[indent:]
    while stack and stack[-1][0] >= indent:
        stack.pop()
    stack.append((indent, name.rstrip().lower().removesuffix(" specification")))
    if found:
        said.setdefault("/".join(above for _, above in stack), text[found.end() :].strip())

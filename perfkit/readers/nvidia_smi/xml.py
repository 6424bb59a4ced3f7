"""``nvidia-smi -q -x``: XML with a DOCTYPE that names NVIDIA's DTD, which is neither needed nor fetched.

Entities are not expanded: a document that declares or uses one is refused. Documents of ``-l`` follow each other.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import MappingProxyType
from xml.parsers import expat

from perfkit.errors import ReadError
from perfkit.readers.nvidia_smi import snapshot
from perfkit.readers.nvidia_smi.fields import COUNTERS
from perfkit.readers.nvidia_smi.forms import content
from perfkit.readers.nvidia_smi.log import Log
from perfkit.readers.nvidia_smi.reasons import BITS

CUT = "the end is cut: what is not whole is left out"
DEEPEST = 8  # elements that may enclose one that is read
ENDS = (
    *(expat.errors.XML_ERROR_NO_ELEMENTS, expat.errors.XML_ERROR_UNCLOSED_TOKEN, expat.errors.XML_ERROR_PARTIAL_CHAR),
)
# Paths below <gpu> and the column of --query-gpu that they are; "max" is the threshold that the text calls shutdown.
NAMES = MappingProxyType(
    {
        "product_name": "name",
        "uuid": "uuid",
        "utilization/gpu_util": "utilization.gpu",
        "utilization/memory_util": "utilization.memory",
        "utilization/encoder_util": "utilization.encoder",
        "utilization/decoder_util": "utilization.decoder",
        "utilization/jpeg_util": "utilization.jpeg",
        "utilization/ofa_util": "utilization.ofa",
        "fan_speed": "fan.speed",
        "fb_memory_usage/total": "memory.total",
        "fb_memory_usage/reserved": "memory.reserved",
        "fb_memory_usage/used": "memory.used",
        "fb_memory_usage/free": "memory.free",
        "bar1_memory_usage/used": "bar1.used",
        "temperature/gpu_temp": "temperature.gpu",
        "temperature/memory_temp": "temperature.memory",
        "temperature/gpu_temp_tlimit": "temperature.gpu.tlimit",
        "temperature/gpu_temp_max_threshold": "temperature.shutdown",
        "temperature/gpu_temp_slow_threshold": "temperature.slowdown",
        "temperature/gpu_temp_max_gpu_threshold": "temperature.max",
        "temperature/gpu_temp_slow_tlimit_threshold": "temperature.slowdown.tlimit",
        "power_readings/power_draw": "power.draw",
        "gpu_power_readings/power_draw": "power.draw",
        "gpu_power_readings/instant_power_draw": "power.draw.instant",
        "gpu_power_readings/average_power_draw": "power.draw.average",
        "power_readings/enforced_power_limit": "enforced.power.limit",
        "gpu_power_readings/current_power_limit": "enforced.power.limit",
        "power_readings/power_limit": "power.limit",
        "clocks/sm_clock": "clocks.current.sm",
        "clocks/mem_clock": "clocks.current.memory",
        "max_clocks/sm_clock": "clocks.max.sm",
        "pci/rx_util": "pcie.rx",
        "pci/tx_util": "pcie.tx",
        "pci/replay_counter": "pcie.replays",
        **{
            f"clocks_event_reasons_counters/clocks_event_reasons_counters_{place}": f"{COUNTERS}{reason}"
            for place, reason in {
                "sw_power_cap": "sw_power_cap",
                "hw_power_brake": "hw_power_brake_slowdown",
                "sw_therm_slowdown": "sw_thermal_slowdown",
                "hw_therm_slowdown": "hw_thermal_slowdown",
                "sync_boost": "sync_boost",
            }.items()
        },
        **{
            f"clocks_{kind}_reasons/clocks_{kind}_reason_{reason}": f"clocks_event_reasons.{reason}"
            for kind in ("event", "throttle")
            for reason in BITS
        },
    }
)


def log(path: Path) -> Log:
    """Read an inventory.

    Raises
    ------
    ReadError
        If it is damaged before its end, has entities, or describes no GPU whole.
    """
    parts = [part for part in re.split(rb"(?=<\?xml\b)", content(path)) if part.strip()]
    documents = [_Document(path, part) for part in parts]
    if any(document.cut for document in documents[:-1]):
        raise ReadError(f"{path}: a document ends before the next begins. {snapshot.AGAIN}.")
    notes = [CUT] if documents[-1].cut else []
    return snapshot.log(path, [document.inventory for document in documents], NAMES, notes)


class _Document:
    """Reads one document; a GPU counts once its element is closed."""

    def __init__(self, path: Path, data: bytes) -> None:
        self._path = path
        self._stack: list[str] = []
        self._text: list[str] = []
        self._gpu: dict[str, str] = {}
        self._places: set[str] = set()
        self.head: dict[str, str] = {}
        self.gpus: list[dict[str, str]] = []
        self.cut = False
        self._parse(data)
        self.inventory = snapshot.Inventory(self.head, self.gpus)

    def _parse(self, data: bytes) -> None:
        parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text.append
        parser.EntityDeclHandler = parser.SkippedEntityHandler = self._entity
        try:
            parser.Parse(data, False)
            parser.Parse(b"", True)
        except expat.ExpatError as e:
            if expat.ErrorString(e.code) not in ENDS:
                raise ReadError(f"{self._path}: line {e.lineno} is damaged ({e}). {snapshot.AGAIN}.") from e
            self.cut = True
        except LookupError as e:
            raise ReadError(
                f"{self._path}: the encoding that the document names is unknown ({e}). {snapshot.AGAIN}."
            ) from e

    def _entity(self, name: str, *_: object) -> None:
        raise ReadError(f"{self._path}: the document has an entity {name[:40]!r}, nvidia-smi none. {snapshot.AGAIN}.")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._stack.append(tag)
        self._text.clear()
        if len(self._stack) == 2 and tag == "gpu":
            self._gpu = {}
            place = attributes.get("id", "")
            if place and place in self._places:
                raise ReadError(f"{self._path}: GPU {place[:40]!r} is described twice. {snapshot.AGAIN}.")
            self._places.add(place)

    def _end(self, tag: str) -> None:
        depth = len(self._stack)
        if depth == 2 and tag == "gpu":
            self.gpus.append(self._gpu)
        elif 2 <= depth <= DEEPEST:
            text = "".join(self._text).strip()
            if self._stack[1] == "gpu":
                self._gpu.setdefault("/".join(self._stack[2:]), text)
            else:
                self.head.setdefault("/".join(self._stack[1:]), text)
        self._text.clear()
        self._stack.pop()

"""The text of a trace, decompressed as it is read and cut between events; its events in blocks, and its header."""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfkit.errors import ReadError
from perfkit.readers.torch_trace.events import Small, decoded

GZIP = b"\x1f\x8b"
BLOCK = 1 << 20
PACKED = 1 << 20
# Bytes of text that any packed file may hold, and how many times its own size beyond: real traces
# reach 35 times.
MOST, TIMES = 256 << 20, 50
ESCAPED = re.compile(rb'\\+"')
MARK = np.zeros(256, bool)
MARK[list(b'"{}[]')] = True
STEP = np.zeros(256, np.int8)
STEP[list(b"{[")] = 1
STEP[list(b"}]")] = -1


class Text:
    """A file's text in chunks, unpacked if its first bytes are gzip's; `cut` once it ended within a gzip member."""

    def __init__(self, path: Path, size: int = BLOCK) -> None:
        self.path = path
        self.cut = False
        self._size = size

    def __iter__(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                packed = file.read(len(GZIP)) == GZIP
                file.seek(0)
                yield from (
                    self._unpacked(file) if packed else iter(partial(file.read, self._size), b"")
                )
        except OSError as e:
            raise ReadError(
                f"{self.path}: the file cannot be read ({e}). Check its permissions and the disk."
            ) from e

    def _unpacked(self, file: BinaryIO) -> Iterator[bytes]:
        from isal import igzip_lib

        size, unpacked = self.path.stat().st_size, 0
        packed = file.read(PACKED)
        while packed.startswith(GZIP):
            member = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
            while not member.eof:
                if member.needs_input and not packed:
                    self.cut = True
                    return
                try:
                    text = member.decompress(packed, self._size)
                # The stub of IsalError declares an instance of it.
                except igzip_lib.IsalError as e:  # type: ignore[misc]
                    raise ReadError(
                        f"{self.path}: the gzip stream is damaged ({e}). Copy the file again."
                    ) from e
                unpacked += len(text)
                if unpacked > max(MOST, TIMES * size):
                    raise ReadError(
                        f"{self.path}: its {size} bytes unpack to more than {unpacked}, as no "
                        "trace does. If you trust the file, unpack it with `gunzip` and load that."
                    )
                if text:
                    yield text
                packed = file.read(PACKED) if member.needs_input else b""
            packed = member.unused_data or file.read(PACKED)


RECORD = "Record with torch.profiler.profile and export_chrome_trace or tensorboard_trace_handler."
LONGEST = 128 << 20  # bytes; no event and no header is longer, so more without an end is damage
NEAR_END = 1 << 14
TRIED = 100  # places at which the events may begin: a key before them may hold the same words
EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
BETWEEN = re.compile(rb'(?<=\})\s*,\s*(?=\{\s*"(?:ph|cat|name|pid|tid|ts|dur|args|id|s|bp)"\s*:)')
LEADING = re.compile(rb"\[\s*,")
# What is written for a quotient without a value, by Kineto and by Python; neither is JSON.
NO_NUMBER = re.compile(rb'("\s*:\s*)(?:-?nan|-?inf(?:inity)?|N/A)(?=\s*[,}])', re.IGNORECASE)
OPENING, CLOSING = bytearray(b"["), ord("]")
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
Large = Annotated[int, msgspec.Meta(ge=0, le=2**62 - 1)]
AMD_WARP = 64  # threads; NVIDIA's is 32


class Device(msgspec.Struct):
    """An entry of deviceProperties, or of computeProperties in traces of early 2021."""

    id: Small = 0
    name: str = ""
    memory: Large | None = msgspec.field(default=None, name="totalGlobalMem")
    major: int | None = msgspec.field(default=None, name="computeMajor")
    minor: int | None = msgspec.field(default=None, name="computeMinor")
    old_major: int | None = msgspec.field(default=None, name="major")
    old_minor: int | None = msgspec.field(default=None, name="minor")
    sms: Small | None = msgspec.field(default=None, name="numSms")
    old_sms: Small | None = msgspec.field(default=None, name="multiProcessorCount")
    warp: int | None = msgspec.field(default=None, name="warpSize")


class Distributed(msgspec.Struct):
    """Where the process stood among those of its job."""

    rank: Small | None = None
    world_size: Any = None


class Header(msgspec.Struct):
    """The keys of a trace that are used."""

    tool: str = msgspec.field(default="PyTorch profiler", name="recordedBy")
    base: Large = msgspec.field(default=0, name="baseTimeNanoseconds")
    distributed: Distributed = msgspec.field(default_factory=Distributed, name="distributedInfo")
    devices: list[Device] = msgspec.field(default_factory=list, name="deviceProperties")
    old_devices: list[Device] = msgspec.field(default_factory=list, name="computeProperties")
    cuda: int | None = msgspec.field(default=None, name="cuda_runtime_version")
    hip: int | None = msgspec.field(default=None, name="hip_runtime_version")

    @property
    def rank(self) -> int | None:
        """The rank of the process, None if the trace has none or one that cannot be."""
        stated = self.distributed.rank
        return None if stated is None or stated < 0 else stated

    @property
    def world_size(self) -> int | None:
        """The number of processes of the job, None if the trace does not state it."""
        stated = self.distributed.world_size
        return stated if isinstance(stated, int) and stated > 0 else None

    @property
    def gpus(self) -> list[str]:
        """The names of the GPUs that the process could see."""
        return [device.name for device in self.devices or self.old_devices]

    @property
    def version(self) -> str:
        """The version of the GPU's runtime, empty if not recorded: the trace does not hold that of PyTorch."""
        if self.cuda:
            return f"CUDA {self.cuda // 1000}.{self.cuda % 1000 // 10}"
        return f"HIP {self.hip // 10**7}.{self.hip // 10**5 % 100}" if self.hip else ""

    @property
    def amd(self) -> bool:
        """Whether the GPUs are AMD's."""
        return self.hip is not None or any(device.warp == AMD_WARP for device in self.devices)


def keys_before_events(path: Path, most: int) -> Header:
    """Return what the first `most` bytes of a trace's text say before its events; little of the file is read."""
    found, _, _ = _before_events(islice(Text(path, 1 << 16), max(1, most >> 16)))
    with suppress(*UNREADABLE):
        return msgspec.convert(
            {key: value for key, value in (found or {}).items() if value is not None}, Header
        )
    return Header()


def _before_events(chunks: Iterable[bytes]) -> tuple[dict[str, Any] | None, bytearray, int]:
    """Return the keys before the events, None if these are not found; the text, and where the bracket opens them."""
    text = bytearray()
    for chunk in chunks:
        text += chunk
        if text.startswith(b"\xef\xbb\xbf"):
            del text[:3]
        for events in islice(
            EVENTS.finditer(text, max(len(text) - len(chunk) - NEAR_END, 0)), TRIED
        ):
            found = _object(text[: events.start()] + b'"traceEvents": null}')
            if found is not None:
                return found, text, events.end() - 1
        if len(text) > LONGEST:
            break
    return None, text, 0


class Source:
    """A trace's events in blocks, then its other keys; ``dropped`` counts the bytes of what a cut end leaves."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: dict[str, Any] = {}
        self.finished = False
        self.dropped = 0
        self.text = Text(path)
        self._at = 0

    def blocks(self) -> Iterator[list[Any]]:
        """Decode the events, about `text.BLOCK` bytes at a time."""
        chunks = iter(self.text)
        header, text, self._at = _before_events(chunks)
        if header is None:
            raise ReadError(f"{self.path}: {_without_events(text)}. {RECORD}")
        self.header, rest, closed = header, text[self._at :], False
        del text
        enough = 0
        for chunk in chain((b"",), chunks, (b"", b"")):
            rest += chunk
            if chunk and len(rest) < enough:
                continue
            events, rest, closed = self._taken(_without_comma(rest))
            # So that a long event is not looked through for each chunk
            enough = 0 if events else 2 * len(rest)
            if events:
                yield events
            if closed:
                break
        if closed:
            for chunk in chunks:
                rest += chunk
                if len(rest) > LONGEST:
                    raise self._damaged(rest, f"more than {LONGEST} bytes follow the events")
            self._tail(bytes(rest))
        else:
            end = bytes(_without_comma(rest))
            if not _ends_early(end):
                raise self._damaged(end, "an event is not JSON")
            self.dropped = len(end.strip()) - 1

    def _taken(self, text: bytearray) -> tuple[list[Any], bytearray, bool]:
        """Return the whole events at the start of `text`, the text after them, and whether the array ended.

        The last place that looks like one between two events is tried: decoding fails unless it is
        one.
        """
        likely = list(BETWEEN.finditer(text, max(len(text) - NEAR_END, 0)))
        if likely:
            place = likely[-1]
            with suppress(*UNREADABLE):
                events = _decoded(text, place.start())
                self._at += place.end() - 1
                return events, OPENING + text[place.end() :], False
        end, closed = ends(text)
        if end < 0:
            if len(text) > LONGEST:
                raise self._damaged(text, f"no event ends within {LONGEST} bytes")
            return [], text, False
        rest = text[end + 1 :] if closed else OPENING + text[end:]
        try:
            events = _decoded(text, end)
        except UNREADABLE as e:
            events = self._with_gaps(text, end, str(e))
        self._at += end + closed
        return events, rest, closed

    def _with_gaps(self, text: bytearray, end: int, why: str) -> list[Any]:
        """Decode events among which there are numbers without a value, which are not JSON."""
        filled = bytearray(NO_NUMBER.sub(rb"\1null", text[:end]))
        try:
            return _decoded(filled, len(filled))
        except UNREADABLE:
            raise self._damaged(text, why) from None

    def _tail(self, text: bytes) -> None:
        """Read the keys after the events; what is cut off there is lost, the events are not."""
        for end in (b"", b"}"):
            header = _object(b'{"traceEvents": null' + text + end)
            if header is not None:
                if header.pop("traceEvents") is not None:
                    raise self._damaged(text, "it has traceEvents twice")
                self.header |= header
                self.finished = not end
                return
        if not _ends_early(b'{"traceEvents": null' + text):
            raise self._damaged(text, "what follows the events is not JSON")
        self.dropped = len(text.strip())

    def _damaged(self, text: bytes | bytearray, why: str) -> ReadError:
        return ReadError(
            f"{self.path}: the trace is damaged between bytes {self._at} and "
            f"{self._at + len(text)} of its text ({why}). Copy it again, or record it again."
        )


def ends(text: bytes | bytearray) -> tuple[int, bool]:
    """Find where the whole events of the array that begins `text` end (-1 if none), and whether the array does."""
    marks, depth = depths(text)
    closing = np.flatnonzero(depth == 0)[:1]
    if closing.size:
        return int(marks[closing[0]]), True
    whole = marks[depth == 1]
    return (int(whole[-1]) + 1 if len(whole) > 1 else -1), False


def depths(text: bytes | bytearray) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions of the brackets outside strings, and how many are open after each."""
    characters = np.frombuffer(text, np.uint8)
    marked = MARK[characters]
    if b"\\" in text:
        within = [m.end() - 1 for m in ESCAPED.finditer(text) if (m.end() - m.start()) % 2 == 0]
        marked[within] = False
    marks = np.flatnonzero(marked)
    quotes = characters[marks] == ord('"')
    marks = marks[~quotes & (np.cumsum(quotes) % 2 == 0)]
    return marks, np.cumsum(STEP[characters[marks]], dtype=np.int64)


def _without_comma(text: bytearray) -> bytearray:
    """Blank the comma between events already read and those of `text`, which may come with a later chunk."""
    if comma := LEADING.match(text):
        text[comma.end() - 1] = ord(" ")
    return text


def _decoded(text: bytearray, end: int) -> list[Any]:
    """Decode the array that begins `text` as if it ended at `end`, without a copy: `text` may be longer afterwards."""
    if end == len(text):
        text.append(CLOSING)
    after, text[end] = text[end], CLOSING
    try:
        return decoded(memoryview(text)[: end + 1])
    finally:
        text[end] = after


def _object(text: bytes | bytearray) -> dict[str, Any] | None:
    with suppress(*UNREADABLE):
        value = msgspec.json.decode(text)
        return value if isinstance(value, dict) else None
    return None


def _ends_early(text: bytes) -> bool:
    """Say whether `text` is JSON that just stops."""
    try:
        msgspec.json.decode(text.rstrip(b"0123456789+-.eE"))  # a cut number need not be one
    except UNREADABLE as e:
        return "truncated" in str(e)
    return True


def _without_events(text: bytearray) -> str:
    keys = _object(text)
    if keys is None:
        return "the file is cut or damaged before the events of the trace"
    if "nodes" in keys:
        return (
            "a PyTorch execution trace (it has nodes, no traceEvents), which says nothing about "
            "time"
        )
    return f"a JSON object without traceEvents (its keys: {', '.join(map(repr, list(keys)[:5]))})"

"""Nsight Compute: the CSV pages raw and details, or a report when NVIDIA's module `ncu_report` is installed.

Export with ``ncu --import REPORT.ncu-rep --csv --page raw --print-units base > REPORT.csv`` (or
``--page details``, which has the rules but not the attributes of the GPU, rounds, and leaves
counters out), or install
``perfkit[ncu]`` and read the .ncu-rep. Tried with 2020.3 to 2026.2: what ncu and the program print
around and between the rows is skipped, and every unit is brought to its base unit.

The module takes what is there of a cut report without a word, so the container is checked first:
after the magic and a header, blocks of a header and a payload, each preceded or announced by its
length, to the end.
On some damaged reports NVIDIA's library ends its process: `vendor` is that process, and its end an
error here.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
import pandas as pd

from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers import text
from perfkit.readers.ncu import log, pages, tables
from perfkit.readers.ncu.log import base, clean
from perfkit.readers.ncu.pages import DEVICE_NAME, SCOPES
from perfkit.readers.ncu.tables import Launch, Report, Rule, whole
from perfkit.readers.text import capture_table

VERSION = 4
KIND = "counters"
LOOKED_AT = 200_000  # bytes; before its page a log holds what the program prints
MAGIC = b"NVR\0"
CAPABILITY = "device__attribute_compute_capability"
PAYLOAD_SIZE = 5  # fields of a block's header: the size of what follows,
RESULTS = (2, 7, 8, 9)  # and how many launches, ranges, command lists and graphs it holds
HEADER_BYTES = 1 << 26  # far more than any block's header has
VARINT_BYTES = 10  # the longest integer of a protobuf message
SECONDS, SECONDS_PER_MB = (
    120,
    4,
)  # how long NVIDIA's library may take; real reports take less than 0.1 s per MB
_VERSION = re.compile(rb"(20\d\d\.\d+\.\d+\.\d+) \(build \d+\)")
_LINK = re.compile(r"@url:([^:@]*):(.*?)@")
_MARKUP = re.compile(r"@\w+:[^:@]*:(.*?)@")
_AGAIN = "Copy it again from where it was recorded"
_TYPES = {1: "local", 2: "global"}


def sniff(path: Path) -> bool:
    """Say whether `path` is a report or a log of Nsight Compute, by its magic, a page's header or ncu's own lines."""
    head = text.head(path, LOOKED_AT)
    return head.startswith(MAGIC) or log.is_log(log.decode(head))


def read(path: Path) -> Profile:
    """Open a report or a page; launches are numbered by position, also where ids start again."""
    with path.open("rb") as file:
        is_report = file.read(len(MAGIC)) == MAGIC
    # A number that is too large becomes infinite, which the schema's ranges find.
    with np.errstate(over="ignore", invalid="ignore"):
        report = whole(_read_report(path) if is_report else pages.read(path))
        rows = tables.table(report)
    parts = {
        "STALLS": tables.stalls(report),
        "RULES": tables.rules(report),
        "DEVICES": tables.devices(report),
    }
    frames = {"LAUNCHES": rows, **{name: frame for name, frame in parts.items() if len(frame)}}
    loaders: dict[str, Callable[[], pd.DataFrame]] = {
        name: partial(frames.__getitem__, name) for name in frames
    }
    if tables.has_counters(report):
        loaders["COUNTERS"] = partial(tables.counters, report)
    return Profile(
        reader="ncu",
        path=path,
        capture=capture_table(
            path, "Nsight Compute", report.version
        ),  # no clock: launches are measured one by one
        loaders=loaders,
        missing=tables.missing(rows, set(loaders)),
        notes=(*report.notes, *tables.untimed(rows), *tables.sparse(report)),
        is_simulated=report.is_simulated,
    )


class _LaunchAnswer(msgspec.Struct):
    """A launch as `vendor` writes it: places in ``metrics`` and their values, and the metrics that are texts."""

    name: str
    metrics: list[int]
    values: list[float]
    texts: dict[str, str]


class _RuleAnswer(msgspec.Struct):
    """A message of the guided analysis; without an estimate ``percent`` is None."""

    launch: int
    rule: str
    message: str
    percent: float | None
    scope: int


class _Answer(msgspec.Struct):
    """What `vendor` writes: a problem with its text, or what the report holds."""

    problem: str = ""
    text: str = ""
    metrics: list[tuple[str, str]] = []
    launches: list[_LaunchAnswer] = []
    rules: list[_RuleAnswer] = []
    unreadable: int = 0
    example: str = ""


def _read_report(path: Path) -> Report:
    version, announced = _container(path)
    answer = _answer(path)
    if answer.problem == "module":
        raise ReadError(
            f"{path}: reading a report needs NVIDIA's module ncu_report, which does not load "
            f"({clean(answer.text)}). "
            f'Install it with `pip install "perfkit[ncu]"`, or {_export(path)}.'
        )
    if answer.problem:
        raise ReadError(
            f"{path}: ncu_report cannot read this report ({clean(answer.text)}). "
            "Update it: `pip install -U ncu-report`."
        )
    if not answer.launches and (announced or answer.unreadable):
        raise ReadError(
            f"{path}: the report is damaged: NVIDIA's library reads none of its launches "
            f"({announced:,} announced). {_AGAIN}."
        )
    if not answer.launches:
        raise ReadError(
            f"{path}: the report holds no kernel launch. Check the kernel filter (`-k`, `-c`) of "
            "ncu."
        )
    return _report(answer, version, announced)


def plain(message: str) -> str:
    """Return the text of a rule as the details page prints it, without the markup of links."""
    return _MARKUP.sub(r"\1", _LINK.sub(r"\1 (\2)", message))


def _answer(path: Path) -> _Answer:
    """Run `vendor` on a report; however it ends, the process is gone when this returns."""
    seconds = SECONDS + SECONDS_PER_MB * path.stat().st_size // 1_000_000
    try:
        name = str(path)
        name.encode()
    except UnicodeEncodeError:
        name = "/dev/stdin"  # the library takes names in UTF-8 only
    # Without the site's start-up files, which the child's path has been through here.
    command = [
        sys.executable,
        "-S",
        "-P",
        "-W",
        "ignore",
        str(Path(__file__).with_name("vendor.py")),
        name,
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with (
        path.open("rb") as file,
        subprocess.Popen(
            [*command, str(seconds)],
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        ) as process,
    ):
        try:
            answer, messages = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as e:
            raise ReadError(_failure(path, f"did not finish within {seconds} s")) from e
        finally:  # also when the user interrupts
            process.kill()
            process.wait()
    if process.returncode:
        raise ReadError(_failure(path, _end(process.returncode, messages)))
    try:
        return msgspec.json.decode(answer, type=_Answer)
    except msgspec.DecodeError as e:
        raise ReadError(_failure(path, f"ended without an answer ({e})")) from e


def _failure(path: Path, end: str) -> str:
    return (
        f"{path}: NVIDIA's library ncu_report {end} on this report. It is damaged, or newer than "
        "the library: copy it again, update the library (`pip install -U ncu-report`), or "
        f"{_export(path)}."
    )


def _end(code: int, messages: bytes) -> str:
    """Say how a process ended: by which signal, else with which error."""
    if code < 0:
        names = {number.value: f" ({number.name})" for number in signal.Signals}
        return f"ended with signal {-code}{names.get(-code, '')}"
    last = messages.decode(errors="replace").rstrip().rpartition("\n")[2]
    return f"failed ({last[:200]!r})"


def _export(path: Path) -> str:
    return (
        f"export the report with `ncu --import {path.name} --csv --page raw --print-units base > "
        f"{path.stem}.csv` and read that"
    )


def _report(answer: _Answer, version: str, announced: int) -> Report:
    bases = [base(unit) for _, unit in answer.metrics]
    units: dict[str, str] = {}
    for (name, _), (unit, _) in zip(answer.metrics, bases, strict=True):
        units.setdefault(name, unit)
    order = {name: i for i, name in enumerate(units)}
    column = np.array([order[name] for name, _ in answer.metrics], np.int64)
    factor = np.array([factor for _, factor in bases])
    unknown = np.full(len(answer.launches), np.nan)
    matrix = np.full((len(answer.launches), len(order)), np.nan)
    for row, launch in zip(matrix, answer.launches, strict=True):
        row[column[launch.metrics]] = np.array(launch.values) * factor[launch.metrics]
    values = pd.DataFrame(matrix, columns=list(order))
    capabilities = zip(
        *(values.get(f"{CAPABILITY}_{part}", unknown) for part in ("major", "minor")), strict=True
    )
    launches = [
        Launch(
            launch.name,
            capability=f"{major:.0f}.{minor:.0f}" if 0 <= major < 100 and 0 <= minor < 100 else "",
            device_name=launch.texts.get(DEVICE_NAME, ""),
        )
        for launch, (major, minor) in zip(answer.launches, capabilities, strict=True)
    ]
    rules = []
    for rule in answer.rules:
        share, scope = (
            (np.nan if rule.percent is None else rule.percent) / 100,
            SCOPES.get(_TYPES.get(rule.scope, "")),
        )
        rules.append(Rule(rule.launch, rule.rule, plain(rule.message), share, scope))
    lacks = []  # how much of a damaged report is not there
    if len(answer.launches) < announced:
        lacks.append(f"NVIDIA's library reads {len(answer.launches):,} of {announced:,} launches")
    if answer.unreadable:
        lacks.append(
            f"values that cannot be read and were left out: {answer.unreadable:,} (first: "
            f"{answer.example})"
        )
    notes = (
        f"the report is damaged: {what}; copy it again from where it was recorded" for what in lacks
    )
    return Report(launches, values, units, rules, version, tuple(notes))


def _container(path: Path) -> tuple[str, int]:
    """Return version and announced launches of a report, whose lengths must lead exactly to the end of the file."""
    size = path.stat().st_size
    announced = 0
    with path.open("rb") as file:
        header, at = _header(file, len(MAGIC))
        version = _VERSION.search(header)
        while at < size:
            header, end = _header(file, at)
            fields = _fields(header)
            if fields is None:
                raise ReadError(
                    f"{path}: the report is cut or damaged: no block begins at byte {at:,}. "
                    f"{_AGAIN}."
                )
            version = version or _VERSION.search(header)
            announced += sum(fields.get(field, 0) for field in RESULTS)
            at = end + fields.get(PAYLOAD_SIZE, 0)
    if at != size:
        raise ReadError(
            f"{path}: the report is cut or damaged: it has {size:,} bytes, its own lengths lead to "
            f"{at:,}. {_AGAIN}."
        )
    return version[1].decode() if version else "", announced


def _header(file: BinaryIO, at: int) -> tuple[bytes, int]:
    """Return the header that begins at a byte, and where it ends."""
    file.seek(at)
    length = int.from_bytes(file.read(4), "little")
    return file.read(min(length, HEADER_BYTES)), at + 4 + length


def _fields(header: bytes) -> dict[int, int] | None:
    """Return the integer fields of a block's header, a protobuf message; None if it is none."""
    at = 0
    fields: dict[int, int] = {}
    while at < len(header):
        key, at = _varint(header, at)
        kind, field = key & 7, key >> 3
        if kind not in (0, 1, 2, 5) or not field:
            return None
        if kind in (1, 5):  # of 8 and 4 bytes
            at += 8 if kind == 1 else 4
            continue
        value, at = _varint(header, at)
        if kind == 0:
            fields[field] = value
        else:
            at += value
    return fields if header else None


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(message[at : at + VARINT_BYTES]):
        at += 1
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    return value, at

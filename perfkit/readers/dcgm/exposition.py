"""Prometheus text, as dcgm-exporter and nvidia_gpu_exporter answer a scrape with it (``curl HOST:9400/metrics``).

``NAME{label="value",...} VALUE [TIMESTAMP]``; the time is in ms, in OpenMetrics (which ends in ``# EOF``) in seconds.
Several scrapes may follow each other in a file: one begins where a series comes again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import numpy as np

from perfkit.errors import ReadError
from perfkit.format import printable
from perfkit.readers.dcgm.fields import INDEX, INFO, METRICS
from perfkit.readers.dcgm.labels import Raw, driver, gathered, unknown
from perfkit.readers.dcgm.series import LATEST_NS, NEVER, Reading
from perfkit.readers.dcgm.text import EOF, lines
from perfkit.readers.dcgm.values import decimal

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
PAIR = r'[a-zA-Z_][a-zA-Z0-9_]*\s*=\s*"(?:[^"\\]|\\.)*"'
BRACES = rf"\{{\s*(?P<labels>(?:{PAIR}\s*(?:,\s*{PAIR}\s*)*(?:,\s*)?)?)\}}"
TIME = r"-?\d+(?:\.\d*)?(?:[eE]\+?\d+)?"
SAMPLE = re.compile(rf"\s*(?P<name>{NAME})(?:\s*{BRACES})?\s+(?P<value>\S+)(?:\s+(?P<time>{TIME}))?\s*$")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
ESCAPED = re.compile(r"\\(.)")
FIRST = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:# ?(?:HELP|TYPE|EOF|UNIT)\b|[a-zA-Z_:][\w:]*(?:\s*\{| ))")
KNOWN = re.compile(rb"^(?:# TYPE )?(?:DCGM_FI_|dcgm_|nvidia_smi_)\w+(?:\s*\{| +[^\s,])", re.MULTILINE)
TICK_NS = 1_000_000_000
MS_NS, S_NS = 1_000_000, 1_000_000_000


class Found(NamedTuple):
    """A line with a value: the labels and the time as written, and the number of its scrape."""

    name: str
    labels: str
    value: float
    time: str
    scrape: int


def is_exposition(head: bytes) -> bool:
    """Say whether the beginning of a file is Prometheus text with metrics of GPUs."""
    return FIRST.match(head) is not None and KNOWN.search(head) is not None


def reading(path: Path) -> Reading:
    """Read the scrapes in a file.

    Raises
    ------
    ReadError
        If a line is none of Prometheus's, or there is no metric of a GPU.
    """
    notes: list[str] = []
    text = lines(path, notes)
    found = list(parsed(path, text))
    known = [f for f in found if f.name in METRICS or f.name in (INFO, INDEX)]
    left_out = unknown(f.name for f in found)
    if not any(f.name in METRICS for f in known):
        raise ReadError(
            f"{path}: no metric of a GPU that perfkit knows (found: {left_out or 'no values'}). "
            "Save what dcgm-exporter answers: `curl HOST:9400/metrics`."
        )
    timed = all(f.time for f in known)
    notes += [] if timed else [_untimed(1 + known[-1].scrape)]
    notes += [f"metrics that none of perfkit's stands for are left out ({left_out})"] if left_out else []
    in_seconds = any(line.strip() == EOF for line in text)
    raw = _raw(known, (S_NS if in_seconds else MS_NS) if timed else 0)
    series, devices = gathered(raw, notes)
    of_dcgm = any(METRICS[f.name].number for f in known if f.name in METRICS)
    tool = "dcgm-exporter" if of_dcgm else "nvidia_gpu_exporter"
    return Reading(tool, series, timed, driver(raw), devices, notes)


def parsed(path: Path, text: Sequence[str]) -> Iterator[Found]:
    """Yield every line with a value; ReadError at the first line that is none of Prometheus's."""
    heads: dict[str, tuple[str, str]] = {}
    seen: set[tuple[str, str]] = set()
    scrape = 0
    for number, line in enumerate(text, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        split = _split(line, heads)
        value = decimal(split[1]) if split else None
        if split is None or value is None:
            raise ReadError(
                f"{path}: line {number} is not Prometheus text ({printable(line, 40)!r}). "
                "The file is damaged: save what the exporter answers again."
            )
        key, _, time = split
        if key in seen:
            scrape, seen = scrape + 1, set()
        seen.add(key)
        yield Found(*key, value, time, scrape)


def _split(line: str, heads: dict[str, tuple[str, str]]) -> tuple[tuple[str, str], str, str] | None:
    """Return the name and labels, value and time of a line; `heads` holds what came before, as it comes again."""
    end = line.rfind("}") + 1
    known, rest = heads.get(line[:end]), line[end:].split()
    if known and len(rest) == 1:
        return known, rest[0], ""
    sample = SAMPLE.match(line)
    if sample is None:
        return None
    key = sample["name"], sample["labels"] or ""
    if end:
        heads[line[:end]] = key
    return key, sample["value"], sample["time"] or ""


def _raw(found: Sequence[Found], unit: int) -> list[Raw]:
    """Return the values by series; the times are those written, in `unit` ns, or 1 s per scrape if `unit` is 0."""
    groups: dict[tuple[str, str], list[Found]] = {}
    for one in found:
        groups.setdefault((one.name, one.labels), []).append(one)
    return [
        Raw(
            name,
            {key: ESCAPED.sub(_unescaped, value) for key, value in LABEL.findall(labels)},
            np.array([_nanoseconds(f.time, unit) if unit else f.scrape * TICK_NS for f in group], np.int64),
            np.array([f.value for f in group]),
        )
        for (name, labels), group in groups.items()
    ]


def _nanoseconds(time: str, unit: int) -> int:
    """Return a time exactly as written, `NEVER` for one that is no wall clock."""
    return int(Decimal(time) * unit) if abs(float(time)) * unit < LATEST_NS else NEVER


def _unescaped(escape: re.Match[str]) -> str:
    return "\n" if escape[1] == "n" else escape[1]


def _untimed(scrapes: int) -> str:
    if scrapes == 1:
        return "one scrape without time stamp: its time is 0"
    return (
        f"{scrapes} scrapes without time stamps: they are taken to be 1 s apart. "
        "A Prometheus server knows the times (`perfkit record prometheus`)"
    )

"""rocm-smi and amd-smi: what ``rocm-smi --json`` and ``amd-smi metric``, ``monitor`` or ``static`` say of AMD GPUs.

Record with ``amd-smi metric --csv --watch 1 --file gpus.csv``, with older versions of ROCm with
``rocm-smi -a --json > gpus.json``, also again and again into one file. rocm-smi: tried with ROCm
4.3 to 6.0, whose keys differ; what it prints before the JSON is skipped, and there are no times:
documents are taken to be 1 s apart. amd-smi: JSON and CSV of versions 24 to 26, as public outputs
show them; perfkit was not tried with a recording of its own. What ``amd-smi static --json`` says,
appended to such JSON, adds the names of the GPUs.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from perfkit import tables
from perfkit.errors import ReadError
from perfkit.format import printable
from perfkit.logs import amd_smi
from perfkit.logs.text import Asked, line_of, unanswered, writable
from perfkit.profile import Profile
from perfkit.readers.text import capture_table, content, csv_rows, head

VERSION = 3
KIND = "monitor"
LARGEST = 4 * 10**9
READS = "what `rocm-smi --json` says, and `amd-smi` as JSON or CSV"
DIAGNOSIS = "perfkit.logs.diagnosis"
HEAD = 1 << 16
CARD = re.compile(r"card(\d{1,4})", re.ASCII)
BEGIN = re.compile(r'^\{\s*"card\d{1,4}"\s*:\s*\{', re.ASCII | re.MULTILINE)
SECOND = 1_000_000_000
# Keys of a metric, the first that has a number wins, and what its number is multiplied with. The
# edge sensor is the one that older GPUs have too; an MI300 has only the junction. `memory use` is a
# share of time, not of memory (rsmi_dev_memory_busy_percent_get in ROCm's rocm_smi.py).
KEYS = {
    row["metric"]: (row["names"].split("; "), float(row["scale"]))
    for row in csv_rows(__file__, "rocm_smi.csv")
}
NAMES = (
    "Device Name",
    "Card Series",
    "Card series",
    "Card Model",
    "Card model",
    "Device ID",
    "GPU ID",
)
NUMBER = re.compile(r"\(?(-?\d{1,18}(?:\.\d{1,15})?)(?:Mhz\))?", re.ASCII)
NO_TIMES = "no times: documents are taken to be 1 s apart, the wall clock is not known"
RECORD = "rocm-smi -a --json"
AGAIN = f"Run `{RECORD}` again"
ASKED = (
    Asked(("gpu_busy_frac",), "How busy was each GPU?", RECORD),
    Asked(("power_w",), "How much power did each GPU draw?", RECORD),
    Asked(("power_limit_w",), "Which power limit did each GPU have?", RECORD),
    Asked(("memory_used_bytes",), "How much GPU memory was in use?", RECORD),
)

Cards = dict[int, dict[str, str]]


def sniff(path: Path) -> bool:
    """Say whether `path` is of amd-smi, or the JSON of rocm-smi: the first card's key and another key that is known."""
    if amd_smi.sniff(path):
        return True
    start = head(path, HEAD).decode(errors="replace")
    keys_read = (key for keys, _ in KEYS.values() for key in keys)
    return BEGIN.search(start) is not None and any(
        f'"{key}"' in start for key in (*keys_read, *NAMES)
    )


def read(path: Path) -> Profile:
    """Read the documents: SAMPLES, CAPTURE and DEVICES. A GPU has the number of its card."""
    if amd_smi.sniff(path):
        return amd_smi.read(path)
    outside: list[str] = []
    documents = list(_documents(path, outside))
    taken = [_cards(document) for document in documents]
    rows, absent = _rows(taken)
    if not rows:
        raise ReadError(f"{path}: no card has a number that is known. {AGAIN}.")
    samples = tables.SAMPLES.make(
        pd.DataFrame(rows, columns=["gpu", "time_ns", "metric", "value"]).assign(rank=0)
    )
    cards = {gpu: values for one in reversed(taken) for gpu, values in one.items()}
    memory = [
        NUMBER.fullmatch(values.get("VRAM Total Memory (B)", "")) for values in cards.values()
    ]
    sizes = pd.array([int(float(size[1])) if size else None for size in memory], dtype="Int64")
    names = []
    for values in (
        cards.values()
    ):  # some versions print a number in place of a name, which is better than nothing
        told = [values[key] for key in NAMES if values.get(key, "N/A") != "N/A"]
        names.append(
            next((name for name in told if not name.startswith("0x")), told[-1] if told else "")
        )
    columns = {"rank": 0, "gpu": list(cards), "name": names, "memory_bytes": sizes}
    devices = tables.DEVICES.make(pd.DataFrame(columns))
    frames = {"SAMPLES": samples, "DEVICES": devices}
    notes = [
        NO_TIMES,
        *outside,
        *_unknown(documents),
        *([f"not available: {', '.join(absent)}"] if absent else []),
    ]
    metrics = set(samples["metric"].cat.categories)
    system = documents[0].get("system")
    driver = writable(system.get("Driver version", "")).strip() if isinstance(system, dict) else ""
    return Profile(
        reader="rocm_smi",
        path=path,
        capture=capture_table(path, "rocm-smi", driver, dur_ns=(len(documents) - 1) * SECOND),
        loaders={name: partial(frames.__getitem__, name) for name in frames},
        missing=tuple(unanswered(ASKED, metrics)),
        notes=tuple(notes),
    )


def _documents(path: Path, notes: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the objects with cards, wherever they begin; note objects between them that begin with no card."""
    text = content(path).decode(errors="replace")
    decoder = json.JSONDecoder(object_pairs_hook=_once)
    others: list[int] = []
    at = 0
    while begin := BEGIN.search(text, at):
        others.append(text.find("{", at, begin.start()))
        try:
            document, at = decoder.raw_decode(text, begin.start())
        except (ValueError, RecursionError) as e:
            line = line_of(text, begin.start())
            raise ReadError(
                f"{path}: the JSON that begins in line {line} is cut or damaged ({e}). {AGAIN}."
            ) from e
        yield document
    others = [brace for brace in (*others, text.find("{", at)) if brace >= 0]
    if others:
        where = f"{len(others)}, first in line {line_of(text, others[0])}"
        notes.append(f"objects that do not begin with a card are left out ({where})")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; ValueError if a key is there twice, which Python's json would not say."""
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {printable(twice, 40)!r} is there twice in one object")
    return made


def _cards(document: Mapping[str, Any]) -> Cards:
    """Return the readings of each card; newer versions print some numbers as such, others as text."""
    return {
        int(card[1]): {
            k: writable(v).strip() for k, v in values.items() if not isinstance(v, dict | list)
        }
        for name, values in document.items()
        if (card := CARD.fullmatch(name)) and isinstance(values, dict)
    }


def _unknown(documents: list[dict[str, Any]]) -> list[str]:
    """Note cards of which nothing is read: their number is none, or their entry is no object."""
    names = [
        name
        for document in documents
        for name, values in document.items()
        if name.startswith("card") and not (CARD.fullmatch(name) and isinstance(values, dict))
    ]
    where = f"{len(names)}, such as {printable(names[0], 30)}" if names else ""
    return [f"cards with a number or values that cannot be are left out ({where})"] if names else []


def _rows(taken: list[Cards]) -> tuple[list[tuple[int, int, str, float]], list[str]]:
    """Return the rows of SAMPLES, and which keys have no number in how many cards."""
    rows: list[tuple[int, int, str, float]] = []
    absent: dict[str, int] = {}
    for tick, cards in enumerate(taken):
        for gpu, values in cards.items():
            for metric, (keys, factor) in KEYS.items():
                for key in (key for key in keys if key in values):
                    number = NUMBER.fullmatch(values[key])
                    if number:
                        value = float(number[1])
                        # Dividing is exact
                        exact = value / round(1 / factor) if factor < 1 else value * factor
                        rows.append((gpu, tick * SECOND, metric, exact))
                        break
                    absent[key] = absent.get(key, 0) + 1
    count = sum(len(cards) for cards in taken)
    return rows, [f"{key} {lacking} of {count}" for key, lacking in absent.items()]

"""Hashes of what perfkit says of a run, the same on every machine and with every version of the libraries.

Nothing here depends on where the code of perfkit lies: tables are named by the run, figures and findings by their ids,
charts by the notebook and the cell that show them. Floats count with nine significant digits, so that another
processor, which adds in another order, gives the same hash. Paths are replaced by the names of their folders.
"""

import base64
import hashlib
import json
import math
import os
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from altair.utils import schemapi
from cells import Executed, execute, sharing, unlinked
from golden.runs import Golden, folders

import perfkit
from perfkit import diagnosis
from perfkit.report.notebooks import answering
from perfkit.tables import TABLES

DIGITS = ".9g"
MADE = (
    r"\d{4}-\d\d-\d\d \d\d:\d\d by perfkit [\w.+]+"  # when, and by which version, a page was made
)
Frozen = dict[str, dict[str, Any]]


def freeze(golden: Golden) -> Frozen:
    """Return what perfkit says of a run: per kind (tables, figures, ...) and name a text or hashes.

    The cells of all notebooks that answer the run are executed once for it, and checked as `cells.Executed.check` does.
    Each figure must lead to a cell of them and to a table.
    """
    path, baseline = golden.path(), golden.baseline()
    with sharing(), schemapi.debug_mode(False):  # a chart whose hash stays is as valid as it was
        run = perfkit.load(path)
        names = answering(run, perfkit.load(baseline) if baseline else None)
        executed = {
            name: execute(name, profile=str(path), baseline=str(baseline or "")) for name in names
        }
        for one in executed.values():
            one.check()
    view = executed[names[0]].space["view"]  # has kept what the diagnosis costs
    assert [] == unlinked(view)
    return {
        "tables": {name: _table(run.table(name)) for name in TABLES if len(run.table(name))},
        "figures": {figure.id: _figure(figure) for figure in diagnosis.figures(view).values()},
        "findings": _numbered(
            (finding.rule, _finding(finding)) for finding in diagnosis.findings(view)
        ),
        "refusals": _numbered(
            (refusal.question, _hash(_plain(refusal))) for refusal in diagnosis.refusals(view)
        ),
        "notes": {text(note): _hash(text(note)) for note in run.notes},
        "theme": _theme(executed.values()),
        "charts": {name: _shown(one, are_charts=True) for name, one in executed.items()},
        "cells": {name: _shown(one, are_charts=False) for name, one in executed.items()},
    }


def _theme(executed: Iterable[Executed]) -> dict[str, str]:
    specs = [shown for one in executed for _, shown in one.shown if isinstance(shown, dict)]
    return _numbered(
        ("config", each) for each in sorted({_hash(_rounded(spec["config"])) for spec in specs})
    )


def _table(frame: pd.DataFrame) -> dict[str, Any]:
    return {"rows": len(frame), **{str(name): column(str(name), frame[name]) for name in frame}}


def column(name: str, values: pd.Series) -> str:
    """Return the hash of a column: of its values in their order, however pandas holds them."""
    if values.dtype.kind in "iub" and not pd.api.types.is_extension_array_dtype(values.dtype):
        return _digest(np.ascontiguousarray(values.to_numpy(), "<i8").tobytes())
    # Codes in the order of appearance, and what they stand for: however pandas stores them, both are the same.
    codes, uniques = pd.factorize(values.astype(object).where(values.notna(), None))
    texts = [_cell(name, value) for value in uniques]
    return _digest(np.ascontiguousarray(codes, "<i8").tobytes(), json.dumps(texts).encode())


def _cell(name: str, value: Any) -> str:
    if isinstance(value, (float, np.floating)):
        return format(float(value), DIGITS)
    return Path(str(value)).name if name == "path" else str(value)


def _figure(figure: Any) -> str:
    plain = _plain(figure)
    value, unit, read, source = (plain.pop(key) for key in ("value", "unit", "text", "source"))
    return f"{value} {unit} ({read}) words {_hash(plain)} source {_hash(source)}"


def _finding(finding: Any) -> dict[str, Any]:
    plain = _plain(finding)
    gain = plain.pop("gain")
    return {
        "severity": plain.pop("severity"),
        "confidence": plain.pop("confidence"),
        "low": gain["low"],
        "high": gain["high"],
        "evidence": _hash(plain.pop("evidence")),
        "words": _hash([plain, gain]),
    }


def _shown(executed: Executed, *, are_charts: bool) -> dict[str, str]:
    made = chart if are_charts else _page
    return _numbered(
        (cell, made(shown))
        for cell, shown in executed.shown
        if isinstance(shown, dict) == are_charts
    )


def chart(spec: dict[str, Any]) -> str:
    """Return the hash of a chart's form and words, and that of its data."""
    spec = {key: value for key, value in spec.items() if key not in ("config", "$schema")}
    data: list[Any] = []
    form = json.dumps(_rounded(_without_data(spec, spec.pop("datasets", {}), data)), sort_keys=True)
    return f"form {_hash(_renumbered(form))} data {_hash(_rounded(data))}"


def _without_data(part: Any, datasets: dict[str, Any], data: list[Any]) -> Any:
    if isinstance(part, list):
        return [_without_data(each, datasets, data) for each in part]
    if not isinstance(part, dict):
        return part
    made = {}
    for key in sorted(part):
        if key == "data" and isinstance(part[key], dict) and {"name", "values"} & set(part[key]):
            values = part[key].get("values", datasets.get(part[key].get("name")))
            if values not in data:
                data.append(values)
            made[key] = data.index(values)
        else:
            made[key] = _without_data(part[key], datasets, data)
    return made


def _renumbered(text: str) -> str:
    """Number the names that Altair counts through a process from 0 in each chart."""
    seen: dict[str, str] = {}

    def name(match: re.Match[str]) -> str:
        return seen.setdefault(match[0], f"{match[1]}_number{len(seen)}")

    return re.sub(r"\b(view|param|concat)_\d+", name, text)


def _page(html: str) -> str:
    """The hash of a table or sentence, as its HTML holds it; the CSV in a link is looked into."""
    html = re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)
    html = re.sub(MADE, "now by perfkit", html)
    html = re.sub(r"(?<=base64,)[\w+/=]+", lambda match: base64.b64decode(match[0]).decode(), html)
    return _hash(
        text(re.sub(r"\d+\.\d+(?:e[-+]?\d+)?", lambda match: _number(float(match[0])), html))
    )


def _plain(item: Any) -> dict[str, Any]:
    return _rounded(diagnosis.plain(item))


def _rounded(item: Any) -> Any:
    if isinstance(item, dict):
        return {text(str(key)): _rounded(value) for key, value in item.items()}
    if isinstance(item, (list, tuple)):
        return [_rounded(each) for each in item]
    if isinstance(item, str):
        return text(item)
    return item if item is None or isinstance(item, bool) else _number(item)


def _number(value: float) -> str:
    if math.isfinite(value) and value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return format(float(value), DIGITS)


def text(written: str) -> str:
    """Return a text with the names of the folders of runs in place of their paths."""
    for path, name in _names(os.environ.get("PERFKIT_PROFILES")):
        written = written.replace(path, name)
    return written


@cache
def _names(profiles: str | None) -> list[tuple[str, str]]:
    return [
        (str(path), name)
        for name, folder in folders().items()
        for path in (folder, folder.resolve())
    ]


def _numbered(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return items by their names; the second of a name, and those after it, with a number."""
    made: dict[str, Any] = {}
    for name, item in items:
        key, number = name, 1
        while key in made:
            number += 1
            key = f"{name} #{number}"
        made[key] = item
    return made


def _hash(item: Any) -> str:
    return _digest(json.dumps(item, sort_keys=True, ensure_ascii=True).encode())


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:10]

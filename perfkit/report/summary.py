"""`summary.json` (a contract: inputs, figures, findings, refusals, failures) and `summary.md` made from it."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from perfkit.diagnosis.finding import HORIZONS
from perfkit.format import printable
from perfkit.report.blocks import nothing_found, remarks
from perfkit.report.links import Report
from perfkit.report.notebooks import Recorded
from perfkit.report.output import TEXT
from perfkit.selection import Selection

SCHEMA = 1  # of summary.json, which summary.schema.json describes: goes up when a key goes, or means something else


def inputs(view: Selection, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return what the report was made from: files, tools, devices, choice and remarks."""
    captures = view.run.capture.astype(object).where(view.run.capture.notna(), None)
    return {
        "perfkit_version": version("perfkit"),
        "parameters": parameters,
        "selection": view.description,
        "captures": captures.to_dict("records"),
        "devices": [str(name) for name in view.devices["name"]],
        "notes": list(view.run.notes),
    }


def write(
    folder: Path, about: dict[str, Any], found: Recorded, linked: Report, failures: Mapping[str, str] | None = None
) -> None:
    """Write `summary.json` and `summary.md` to `folder`.

    `linked` says what shows figures and what they rest on, `failures` why a notebook is missing.
    """
    content = {
        "schema": SCHEMA,
        "inputs": about,
        "figures": {i: _figure(i, figure, linked) for i, figure in found.figures.items()},
        "findings": found.findings,
        "refusals": found.refusals,
        "failures": [{"notebook": name, "error": error} for name, error in (failures or {}).items()],
    }
    text = json.dumps(_finite(content), indent=1, ensure_ascii=False, allow_nan=False)
    (folder / "summary.json").write_text(text + "\n", **TEXT)
    (folder / "summary.md").write_text(markdown(content), **TEXT)


def _figure(id: str, figure: dict[str, Any], linked: Report) -> dict[str, Any]:
    """Return a figure with the cell that shows it (null where none does) and the files of the tables it rests on."""
    cell = linked.cell(id, figure["source"])
    place = {"notebook": cell.notebook, "id": cell.id} if cell else None
    files = list(linked.files(id, figure["source"]).values())
    return {**{k: v for k, v in figure.items() if k != "id"}, "cell": place, "tables": files}


def _finite(value: Any) -> Any:
    """Replace numbers that JSON does not know by null."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def markdown(content: dict[str, Any]) -> str:
    """Return the executive summary as Markdown, from the content of `summary.json`."""
    about, figures, findings = content["inputs"], content["figures"], content["findings"]
    failures = "\n".join(
        f"- The notebook {_safe(f['notebook'])} failed: {_safe(f['error'])}" for f in content.get("failures") or ()
    )
    refusals = (
        f"- **{_safe(r['question'])}**: {_safe(r['reason'])}. Record: `{r['record']}`" for r in content["refusals"]
    )
    blocks = [
        "# GPU performance: executive summary",
        _about(about),
        *(["## What is missing", failures] if failures else []),
        "## Key findings",
        "\n".join(_finding(f, figures) for f in findings) or nothing_found(figures),
        "## Figures",
        _table(("figure", "value", "definition", "source"), [_row(f) for f in figures.values()]),
        "## Improvement opportunities",
        "Gains are ranges and overlap: they are not to be multiplied or added.",
        _table(("direction", "current", "target", "gain", "why a range"), [_opportunity(f, figures) for f in findings]),
        "## Recommendations",
        *(block for horizon in HORIZONS for block in _recommendations(horizon, findings)),
        "## What was not answered",
        "\n".join(refusals),
        f"*Made by perfkit {about['perfkit_version']}.*",
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _about(about: dict[str, Any]) -> str:
    tools = sorted({f"{c['tool']} {c['tool_version']}".strip() for c in about["captures"]})
    lines = {
        "Run": Path(about["parameters"]["profile"]).name,
        "Recorded with": ", ".join(tools),
        "GPUs": ", ".join(about["devices"]) or "not recorded",
        "Seen": about["selection"],
    }
    said = [*lines.items(), *(("Note", note) for note in remarks(about["notes"]))]
    return "\n".join(f"- **{term}**: {_safe(text)}" for term, text in said)


def _finding(finding: dict[str, Any], figures: dict[str, Any]) -> str:
    doubts = f" Against it: {_safe('; '.join(finding['against']))}." if finding["against"] else ""
    sure = f"{finding['severity']}, {finding['confidence']} confidence"
    told = ", ".join(f"{_safe(figures[id]['label'])} {_value(figures[id])}" for id in finding["evidence"])
    evidence = f" Evidence: {told}." if told else ""
    return f"- **{_safe(finding['title'])}** ({sure}). {_safe(finding['explanation'])}{evidence}{doubts}"


def _value(figure: dict[str, Any]) -> str:
    """Return a figure's text as a link to the cell of the page that shows it."""
    cell, text = figure.get("cell"), _safe(figure["text"])
    return f"[{text}](index.html#{cell['notebook']}-{cell['id']})" if cell else text


def _row(figure: dict[str, Any]) -> tuple[str, ...]:
    files = (f"[{_safe(Path(path).stem)}]({path})" for path in figure.get("tables", ()))
    source = ", ".join([_safe(figure["source"]), *files])
    return _safe(figure["label"]), _value(figure), _safe(figure["definition"]), source


def _opportunity(finding: dict[str, Any], figures: dict[str, Any]) -> tuple[str, ...]:
    now = _value(figures[finding["evidence"][0]]) if finding["evidence"] else ""
    gain = finding["gain"]
    return _safe(finding["title"]), now, _safe(finding["target"]), _safe(gain["text"]), _safe(gain["reason"])


def _recommendations(horizon: str, findings: list[dict[str, Any]]) -> list[str]:
    steps = dict.fromkeys(step for f in findings for step in f["advice"].get(horizon, ()))
    return [f"### {horizon.capitalize()}", "\n".join(f"- {_safe(step)}" for step in steps)] if steps else []


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    if not rows:
        return "None."
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _safe(text: str) -> str:
    """Return foreign text so that Markdown shows it as it is: no tag, table or emphasis of its own."""
    escaped = html.escape(printable(text, 2000), quote=False)
    for mark in "\\`*_[]|#":
        escaped = escaped.replace(mark, f"\\{mark}")
    return escaped

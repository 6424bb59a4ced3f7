"""`summary.json` (a contract: inputs, figures, findings, refusals) and `summary.md` made from it."""

from __future__ import annotations

import html
import json
import math
from importlib.metadata import version
from pathlib import Path
from typing import Any

from perfkit.diagnosis import HORIZONS
from perfkit.format import printable
from perfkit.report.record import Recorded
from perfkit.selection import Selection


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


def write(folder: Path, about: dict[str, Any], found: Recorded) -> None:
    """Write `summary.json` and `summary.md` to `folder`."""
    content = {
        "inputs": about,
        "figures": {i: {k: v for k, v in f.items() if k != "id"} for i, f in found.figures.items()},
        "findings": found.findings,
        "refusals": found.refusals,
    }
    text = json.dumps(_finite(content), indent=1, ensure_ascii=False, allow_nan=False)
    (folder / "summary.json").write_text(text + "\n", encoding="utf-8")
    (folder / "summary.md").write_text(markdown(content), encoding="utf-8")


def _finite(value: Any) -> Any:
    """Replace numbers that JSON does not know by null."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def markdown(content: dict[str, Any]) -> str:
    """Return the executive summary as Markdown, from the content of `summary.json`."""
    about, figures = content["inputs"], content["figures"]
    tools = ", ".join(sorted({f"{c['tool']} {c['tool_version']}".strip() for c in about["captures"]}))
    lines = [
        "# GPU performance: executive summary",
        "",
        f"**Run**: {_safe(Path(about['parameters']['profile']).name)}  ",
        f"**Recorded with**: {_safe(tools)}  ",
        f"**GPUs**: {_safe(', '.join(about['devices']) or 'not recorded')}  ",
        f"**Seen**: {_safe(about['selection'])}",
        "",
        "## Key findings",
        "",
        *(_finding(f) for f in content["findings"]),
        *(
            ["No finding: nothing recorded here costs more than a tenth of the time."]
            if not content["findings"]
            else []
        ),
        "",
        "## Figures",
        "",
        "| figure | value | definition | source |",
        "|---|---:|---|---|",
        *(
            f"| {_safe(f['label'])} | {f['text']} | {_safe(f['definition'])} | {_safe(f['source'])} |"
            for f in figures.values()
        ),
        "",
        "## Improvement opportunities",
        "",
        "Gains are ranges and overlap: they are not to be multiplied or added.",
        "",
        "| direction | target | gain | why a range |",
        "|---|---|---|---|",
        *(
            f"| {_safe(f['title'])} | {f['target']} | {f['gain']['text']} | {f['gain']['reason']} |"
            for f in content["findings"]
        ),
        "",
        "## Recommendations",
        *(line for horizon in HORIZONS for line in _recommendations(horizon, content["findings"])),
        "",
        "## Not answered",
        "",
        *(f"- **{_safe(r['question'])}** {_safe(r['reason'])}. Record: `{r['record']}`" for r in content["refusals"]),
        "",
        f"*Made by perfkit {about['perfkit_version']}; every figure's definition and source are above.*",
        "",
    ]
    return "\n".join(lines)


def _finding(finding: dict[str, Any]) -> str:
    return f"- **{_safe(finding['title'])}** ({finding['severity']}). {_safe(finding['explanation'])}"


def _recommendations(horizon: str, findings: list[dict[str, Any]]) -> list[str]:
    steps = [step for f in findings for step in f["advice"].get(horizon, ())]
    return (
        ["", f"### {horizon.capitalize()}", "", *(f"- {_safe(step)}" for step in dict.fromkeys(steps))] if steps else []
    )


def _safe(text: str) -> str:
    """Return foreign text so that Markdown shows it as it is: no tag, table or emphasis of its own."""
    escaped = html.escape(printable(text, 2000), quote=False)
    for mark in "\\`*_[]|#":
        escaped = escaped.replace(mark, f"\\{mark}")
    return escaped

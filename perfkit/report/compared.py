"""A comparison of runs as text, JSON and a page.

Functions
---------
text        for a terminal
as_json     for a program
write       a folder with the page and the JSON
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from perfkit import charts
from perfkit.analysis import compare, steps
from perfkit.diagnosis import comparison, figures
from perfkit.diagnosis.comparison import Comparison
from perfkit.errors import PerfkitError
from perfkit.format import Shown, duration, elided, number, printable
from perfkit.report import html, output, privacy
from perfkit.report.output import TEXT
from perfkit.report.shown import note, refusals
from perfkit.run import Run
from perfkit.selection import Selection, select

LONGEST = 60  # characters of a label or figure's name in a terminal
CONTENT = "comparison.json"
SCHEMA = 1  # of its content: goes up when a key goes, or means something else
MADE_BY = "perfkit compare"  # in the marker of the folder
LEDGER_HEAD = ("run", "steps", "median step", "interval", "against the run before", "times as fast as the first")
TITLE = "Did the changes help?"

Note = Callable[[str], None]


@dataclass(frozen=True)
class Series:
    """Runs by their labels in the order of the changes, their ledger, and the last compared with the first."""

    runs: Mapping[str, Sequence[Selection]]
    ledger: pd.DataFrame
    whole: Comparison


def series(runs: Mapping[str, Sequence[Run]], *, peaks: str = "") -> Series:
    """Compare runs, each with one more change than the one before it.

    Parameters
    ----------
    runs
        Label -> the run or its repeats, in the order of the changes; at least two labels.
    peaks
        As in `diagnosis.figures`.

    Raises
    ------
    PerfkitError
        If there are fewer than two labels, or the first and the last share nothing.
    """
    if len(runs) < 2:
        raise PerfkitError(
            f"compare: there is one run or label, {', '.join(map(_safe, runs))}. Give two, such as before and after."
        )
    views = {label: [select(run) for run in repeats] for label, repeats in runs.items()}
    found = {
        label: [steps.detect(view.ranges, view.all_kernels) for view in repeats] for label, repeats in views.items()
    }
    every = list(views.values())
    whole = comparison.compared(every[0], every[-1], peaks=peaks)
    used = {label: share for label, repeats in views.items() if (share := _busy(repeats)) is not None}
    return Series(views, compare.ledger(found, utilisation=used), whole)


def _busy(repeats: Sequence[Selection]) -> float | None:
    """Return the mean share of time in which the GPU was busy, None where it is not known of every repeat."""
    found = [figures(view).get("device_busy_frac") for view in repeats]
    values = [figure.value for figure in found if figure]
    return sum(values) / len(values) if len(values) == len(found) else None


def text(told: Series) -> str:
    """Return a comparison for people: the verdict, the ledger of more than two runs, families and figures."""
    lines = [f"{_safe(label)}: {', '.join(_names(views))}" for label, views in told.runs.items()]
    lines += ["", printable(comparison.sentence(told.whole), 1000)]
    if len(told.runs) > 2:
        lines += ["", *_aligned(LEDGER_HEAD, map(_ledger_row, told.ledger.to_dict("records")))]
        first, last = (list(told.runs)[at] for at in (0, -1))
        lines += ["", f"{_safe(last)} against {_safe(first)}:"]
    moved = [_family_row(row) for row in told.whole.families.to_dict("records")]
    unit = "per step" if len(told.whole.steps) else "in all"
    lines += ["", *_aligned((f"kernel time {unit}", "before", "after", "ratio", "verdict"), moved)] if moved else []
    rows = comparison.side_rows(told.whole)[["figure", "before", "after", "ratio", "verdict"]]
    lines += ["", *_aligned(tuple(rows.columns), rows.itertuples(index=False))] if len(rows) else []
    missing = [f"not told: {r.question} {r.reason}; record: {r.record}" for r in told.whole.refusals]
    return "\n".join([*lines, "", *(printable(line, 500) for line in missing)]).rstrip()


def _names(views: Sequence[Selection]) -> Iterator[str]:
    for view in views:
        yield ", ".join(_safe(str(path).rpartition("/")[2]) for path in view.run.capture["path"])


def _ledger_row(row: Mapping[Any, Any]) -> tuple[str, ...]:
    against = f"{number(row['ratio'])} {row['verdict']}" if pd.notna(row["ratio"]) else ""
    ends = [row["step_low_ns"], row["step_high_ns"]]
    told = " to ".join(map(duration, ends)) if pd.notna(ends[0]) else "none"
    return row["label"], f"{row['count']:,}", duration(row["step_ns"]), told, against, number(row["speedup"])


def _family_row(row: Mapping[Any, Any]) -> tuple[str, ...]:
    ends = comparison.spoken_ratio(row["ratio"], row["ratio_low"], row["ratio_high"])
    return str(row["family"]), duration(row["before_ns"]), duration(row["after_ns"]), ends, str(row["verdict"])


def _aligned(head: tuple[str, ...], rows: Iterator[Any] | Sequence[Any]) -> list[str]:
    """Return rows of text under their head, in columns."""
    lines = [head, *(tuple(map(_safe, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def as_json(told: Series) -> str:
    """Return labels, verdict, ledger and all frames of the comparison as JSON; numbers that are none are null."""
    whole = told.whole
    frames = {name: getattr(whole, name) for name in ("steps", "families", "kernels", "launches", "paths", "samples")}
    content = {
        "schema": SCHEMA,
        "labels": list(told.runs),
        "verdict": comparison.sentence(whole),
        "confidence": whole.confidence,
        "cautions": list(whole.cautions),
        "refusals": [asdict(refusal) for refusal in whole.refusals],
        "ledger": _records(told.ledger),
        "figures": _records(whole.figures),
        **{name: _records(frame) for name, frame in frames.items()},
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def _records(frame: pd.DataFrame) -> Any:
    return json.loads(frame.to_json(orient="records", double_precision=15))


def write(told: Series, out: Path, *, inputs: Iterable[Path] = (), note: Note = warnings.warn) -> Path:
    """Write a page that needs no network, and the JSON beside it, and return the page.

    Parameters
    ----------
    told
        The comparison.
    out
        Folder that is made, or replaced if it is an earlier comparison; see `perfkit.report.output`.
    inputs
        Files that must not lie in it, beside the profiles of the runs.
    note
        Called with a sentence for the user.

    Raises
    ------
    PerfkitError
        If the folder holds something else, or cannot be written.
    """
    runs = [view.run for views in told.runs.values() for view in views]
    every = [*inputs, *(each.path for run in runs for each in run.profiles)]
    with output.replacing(out, MADE_BY, inputs=every, note=note) as made:
        (made / CONTENT).write_text(as_json(told), **TEXT)
        (made / "index.html").write_text(_page(told), **TEXT)
        privacy.clean(made, {str(number): path for number, path in enumerate(every, start=1)})
    return out / "index.html"


def _page(told: Series) -> str:
    from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

    cells = [new_markdown_cell(f"# {TITLE}")]
    for heading, shown in _parts(told):
        cells += [new_markdown_cell(f"## {heading}")] if heading else []
        cells += [new_code_cell("", outputs=[new_output("display_data", data=_bundle(shown))])]
    return html.page(new_notebook(cells=cells), title=" against ".join(_ends(told)))


def _bundle(shown: Any) -> dict[str, Any]:
    """Return what a notebook would store of a chart, or of something that is HTML."""
    if not hasattr(shown, "_repr_mimebundle_"):
        return {"text/html": shown._repr_html_()}
    bundle = shown._repr_mimebundle_()
    return dict(bundle[0] if isinstance(bundle, tuple) else bundle)


def _ends(told: Series) -> list[str]:
    first, *_, last = told.runs
    return [_safe(last), _safe(first)]


def _parts(told: Series) -> Iterator[tuple[str, Shown | Any]]:
    """Yield what is on the page, under a heading where a new part begins."""
    whole, ledger = told.whole, told.ledger
    runs = pd.DataFrame([(label, ", ".join(_names(views))) for label, views in told.runs.items()])
    yield "", note(comparison.sentence(whole))
    yield "", charts.tables.show(runs.set_axis(["label", "run"], axis=1), caption="The runs")
    if ledger["step_ns"].notna().any():
        yield "Step time, one change at a time", charts.waterfall.steps(ledger)
        columns = ["label", "count", "step_ns", "change_ns", "ratio", "verdict", "speedup"]
        yield "", charts.tables.show(ledger, columns=columns, caption="The ledger: each run against the one before it")
    if ledger["utilisation_frac"].notna().any():
        yield "GPU busy, one change at a time", charts.waterfall.utilisation(ledger, of="GPU busy")
    if len(whole.families):
        per = "step" if len(whole.steps) else "run"
        yield "Where kernel time moved, from the first to the last", charts.comparison.families(whole.families, per=per)
        yield "", charts.comparison.intervals(whole.families, label="family")
    columns = ["figure", "before", "after", "ratio", "better", "verdict"]
    rows = comparison.side_rows(whole)
    yield "Figures of the first and the last", charts.tables.show(rows, columns=columns, rows=100, caption="Figures")
    yield "What was not answered", refusals(whole.refusals)


def _safe(label: object) -> str:
    """Return foreign text on one line, without characters that a terminal cannot take."""
    return elided(label, LONGEST)

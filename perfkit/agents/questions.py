"""The questions that an agent may ask of a run, and their answers.

The docstrings of `Questions` are what an agent reads of each tool.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import pandas as pd

from perfkit import diagnosis
from perfkit.agents.folders import Folders, Stamp
from perfkit.agents.query import Condition, Query, answer, rows_of, table_of
from perfkit.agents.values import plain, records
from perfkit.analysis.ranks import to_open
from perfkit.diagnosis import (
    counter_ledger,
    headline,
    ledger,
    outside,
    path_ledger,
    recording,
    repeating,
)
from perfkit.diagnosis.finding import Figure, Finding
from perfkit.errors import PerfkitError
from perfkit.run import load
from perfkit.selection import Selection, select
from perfkit.tables import TABLES

MOST_RUNS = 200  # that are listed
MOST_NOTES = 20
MOST_LINES = 100  # of a ledger
MOST_FIGURES = 400  # whose values are listed
ROWS_OF_FIGURE = 3  # of each table that a figure rests on
KEPT_RUNS = 4  # in memory
KEPT_PARTS = 16
Answer = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A part of a run; what is left out keeps all: ranks, GPUs, a window in ns, kernels by name or family."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  pydantic reads it as it stands

    ranks: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    window_ns: tuple[int, ...] = ()
    kernels: str = ""
    families: tuple[str, ...] = ()


WHOLE = Part()


class Questions:
    """Questions about the runs in some folders; a run stays in memory until its files change."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = Folders(folders)
        self._load = lru_cache(maxsize=KEPT_RUNS)(_loaded)
        self._select = lru_cache(maxsize=KEPT_PARTS)(self._selected)
        self._lock = Lock()

    def tools(self) -> list[Callable[..., Answer]]:
        """Return the questions as functions, in the order in which to ask."""
        return [
            self.list_runs,
            self.doubts,
            self.verdict,
            self.phases,
            self.ledger,
            self.findings,
            self.figures,
            self.figure,
            self.tables,
            self.query_table,
            self.open_questions,
        ]

    def list_runs(self, folder: str = "") -> Answer:
        """List the runs, in one folder if it is named: the names that the other tools take, and the profiles.

        A folder is read as one run, its files as tools or ranks of one program. If they are of
        different programs, name one file instead.
        """
        runs = self._folders.runs(folder)
        listed = [{"run": run, "profiles": files} for run, files in list(runs.items())[:MOST_RUNS]]
        return {"runs_count": len(runs), "runs": listed}

    def doubts(self, run: str, part: Part = WHOLE) -> Answer:
        """Ask first: can the recording be believed? Each doubt says what it touches and what to do.

        A doubt that leads touches a tenth of the time or more: say it before any number.
        """
        view = self._view(run, part)
        return {
            "doubts": [_doubt(doubt) for doubt in recording.doubts(view)],
            "notes": list(view.run.notes[:MOST_NOTES]),
        }

    def verdict(self, run: str, part: Part = WHOLE) -> Answer:
        """Return why the program is slow, in a sentence, with the part that is judged and its main numbers.

        `rests_on` is the finding behind the sentence. Without one, no cause was found.
        """
        view = self._view(run, part)
        found = diagnosis.findings(view)
        said = headline.headline(view, diagnosis.figures(view), found)
        first = headline.named(diagnosis.judged(view), found)
        return {
            "verdict": said.verdict,
            "is_simulated": view.run.is_simulated,
            "doubts_that_lead": [doubt.text for doubt in recording.leading(view)],
            "judged": _judged(view),
            "numbers": [tile.told() for tile in said.tiles],
            "rests_on": _short(first) if first else None,
        }

    def phases(self, run: str, part: Part = WHOLE) -> Answer:
        """Return the phases of each rank (start-up, loop, pauses, end), and which part is judged.

        Numbers of the verdict, the findings and the figures are of the judged part.
        """
        view = self._view(run, part)
        found = repeating.phases(view)
        if found.empty:
            return self._cannot_tell(view, "the run has no timeline, so it has no phases")
        return {"judged": _judged(view), "phases": records(found)}

    def ledger(self, run: str, part: Part = WHOLE) -> Answer:
        """Return where the time went: each nanosecond of each GPU in one line, the longest first.

        Of a timeline a line is computation, communication, a copy, idle time with cause and owner,
        or unknown time, in its phase. Of call paths it is wall time, of counters the time of the
        measured launches by what limits them. Lines add up; findings may not.
        """
        view = self._view(run, part)
        of = "each GPU's time"
        lines = ledger.ledger(view)
        if lines.empty:
            of = "wall time"
            lines = path_ledger.ledger(view)
        if lines.empty and len(view.launches):
            of = "the time of the measured launches"
            lines = counter_ledger.ledger(view)
        if lines.empty:
            return self._cannot_tell(view, "the run has no record of what its GPUs did when")
        of_gpu_ns = lines.groupby(["rank", "gpu"])["ns"].transform("sum")
        longest = lines.assign(share_of_gpu_frac=lines["ns"] / of_gpu_ns).sort_values(
            "ns", ascending=False, kind="stable"
        )
        return {
            "of": of,
            "all_lines_ns": int(lines["ns"].sum()),
            "lines_count": len(lines),
            "lines": records(longest.head(MOST_LINES)),
        }

    def findings(self, run: str, part: Part = WHOLE) -> Answer:
        """Return what costs time: gain as a range, confidence, what speaks against it, figures, advice.

        `reported_from` is the condition. Gains overlap: never add or multiply them.
        """
        view = self._view(run, part)
        found = headline.ranked(diagnosis.findings(view))
        return {"judged": _judged(view), "findings": [_finding(one) for one in found]}

    def figures(self, run: str, contains: str = "", part: Part = WHOLE) -> Answer:
        """List the numbers that the run can tell, by id, with value and unit; `contains` is a part of id or label.

        What was not recorded is absent, never 0.
        """
        view = self._view(run, part)
        known = diagnosis.figures(view)
        asked = contains.casefold()
        chosen = [
            figure
            for figure in known.values()
            if asked in figure.id.casefold() or asked in figure.label.casefold()
        ]
        if not chosen:
            return self._cannot_tell(view, f"the run has no figure like {contains!r}")
        listed = [
            {"id": each.id, "label": each.label, "value": each.value, "text": each.marked}
            for each in chosen
        ]
        return {"figures_count": len(listed), "figures": listed[:MOST_FIGURES]}

    def figure(self, run: str, id: str, part: Part = WHOLE) -> Answer:
        """Return a number with unit, definition, source, doubt, and the first rows of the tables behind it.

        Cite the id with every number that you say.
        """
        view = self._view(run, part)
        known = diagnosis.figures(view)
        for finding in diagnosis.findings(view):
            known |= {figure.id: figure for figure in finding.evidence}
        if id in known:
            return {"judged": _judged(view), **_figure(view, known[id])}
        refused = self._cannot_tell(view, f"the run has no figure {id!r}")
        return {**refused, "similar_ids": get_close_matches(id[:100], known, n=5, cutoff=0.5)}

    def tables(self, run: str, part: Part = WHOLE) -> Answer:
        """List the tables that the run recorded, with rows and columns, and which tables it did not record."""
        view = self._view(run, part)
        sizes = {name: len(view.run.table(name)) for name in TABLES}
        recorded = [
            {
                "table": name,
                "one_row_is": TABLES[name].row,
                "rows_count": count,
                "columns": {column.name: column.meaning for column in TABLES[name].columns},
            }
            for name, count in sizes.items()
            if count
        ]
        absent = [name for name, count in sizes.items() if not count]
        return {"tables": recorded, "not_recorded": absent}

    def query_table(
        self,
        run: str,
        table: str,
        columns: tuple[str, ...] = (),
        where: tuple[Condition, ...] = (),
        order: tuple[str, ...] = (),
        limit: int = 20,
        part: Part = WHOLE,
    ) -> Answer:
        """Return rows of a table that meet all conditions.

        They are ordered by columns of numbers, `-` before one: downwards. At most 500 rows. null is
        what was not recorded. A table without any row was not recorded: the answer is then
        `cannot_tell`, not 0. Times are ns since the start of the run.
        """
        view = self._view(run, part)
        name = table_of(table).name
        if view.run.table(name).empty:
            return self._cannot_tell(view, f"the run recorded no rows of {name}", name)
        return answer(view, Query(name, columns, where, order, limit))

    def open_questions(self, run: str, part: Part = WHOLE) -> Answer:
        """Return what the run cannot answer, why, and what to record so that it can."""
        view = self._view(run, part)
        return {"open_questions": _refusals(view)}

    def asked(self, tool: Callable[..., Answer], **given: Any) -> Answer:
        """Return the answer of a tool as values of JSON; one question is answered at a time.

        PerfkitError if the question does not fit the run.
        """
        with self._lock:
            try:
                return dict(self._named(plain(tool(**given))))
            except PerfkitError as error:
                raise PerfkitError(self._folders.shown(plain(str(error)))) from error

    def _named(self, value: Any) -> Any:
        """Return a value in which the folders have their names in place of their paths."""
        if isinstance(value, dict):
            return {name: self._named(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self._named(one) for one in value]
        return self._folders.shown(value) if isinstance(value, str) else value

    def _view(self, run: str, part: Part) -> Selection:
        path = self._folders.find(run)
        return self._select(path, self._folders.stamps(path), part)

    def _selected(self, path: Path, stamps: tuple[Stamp, ...], part: Part) -> Selection:
        run = self._load(path, stamps)
        ranks = part.ranks
        if not ranks and run.is_large:
            ranks = tuple(to_open(run.reduced.by_device()))
        return select(
            run,
            ranks=ranks,
            gpus=part.gpus,
            window=part.window_ns,
            kernels=part.kernels,
            families=part.families,
        )

    def _cannot_tell(self, view: Selection, why: str, table: str = "") -> Answer:
        """Return that a run does not hold the answer, with what to record; of a table what records it."""
        of_table = [one for one in recording.missing(view) if one.table == table]
        record = [{"what": one.what, "record": one.record} for one in of_table]
        return {
            "cannot_tell": why,
            "record": record,
            "open_questions": [] if record else _refusals(view),
        }


def _loaded(path: Path, stamps: tuple[Stamp, ...]) -> Any:
    """Return a run; the stamps only tell one state of its files from another."""
    return load(path)


def _judged(view: Selection) -> Answer:
    """Return what the numbers are about."""
    judged = diagnosis.judged(view)
    return {
        "part": judged.description,
        "window_ns": judged.window,
        "outside": outside.sentences(judged),
    }


def _doubt(doubt: recording.Doubt) -> Answer:
    return {
        "kind": doubt.kind.value,
        "seen": doubt.seen,
        "consequence": doubt.consequence,
        "remedy": doubt.remedy,
        "count": doubt.count,
        "total": doubt.total,
        "unit": doubt.unit,
        "touched_frac": doubt.touched_frac,
        "unknown_frac": doubt.unknown_frac,
        "leads": doubt.is_leading,
    }


def _short(finding: Finding) -> Answer:
    return {
        "finding": finding.rule,
        "title": finding.title,
        "confidence": finding.confidence,
        "gain": finding.gain.text,
    }


def _finding(finding: Finding) -> Answer:
    """Return a finding as in summary.json, its figures with their values."""
    told = diagnosis.plain(finding)
    told["reported_from"] = told.pop("threshold")
    told["evidence"] = [
        {"figure_id": figure.id, "label": figure.label, "text": figure.marked}
        for figure in finding.evidence
    ]
    return told


def _figure(view: Selection, figure: Figure) -> Answer:
    """Return a figure as in summary.json, with its tables."""
    return {
        **diagnosis.plain(figure),
        "analysis": figure.analysis,
        "tables": {name: _first_rows(view, name) for name in figure.tables},
    }


def _first_rows(view: Selection, name: str) -> Answer:
    """Return how many rows a table has in the judged part, and the first ones."""
    judged = diagnosis.judged(view)
    of_framework, _, table = name.rpartition("/")
    rows = rows_of(judged.framework if of_framework else judged, table)
    return {"rows_count": len(rows), "rows": records(pd.DataFrame(rows.head(ROWS_OF_FIGURE)))}


def _refusals(view: Selection) -> list[Answer]:
    return [diagnosis.plain(refusal) for refusal in diagnosis.refusals(view)]

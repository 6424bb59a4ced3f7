"""Make a report: a kernel opens the run, runs the notebooks and writes the pages; what is here asks it to.

This process imports no pandas and loads no run: two processes would hold it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from perfkit.errors import PerfkitError
from perfkit.format import elided
from perfkit.report import notebooks, output
from perfkit.report.notebooks import Executed, Failure
from perfkit.report.printing import browser, print_report

MADE_BY = "perfkit report"  # in the marker of the folder
LONGEST = 300  # characters of a failure in a message


def build(
    profile: str | Path,
    out: str | Path,
    *,
    baseline: str | Path | None = None,
    ranks: tuple[int, ...] = (),
    gpus: tuple[int, ...] = (),
    window: tuple[int, ...] = (),
    kernels: str = "",
    families: tuple[str, ...] = (),
    peaks: str | Path | None = None,
    published: str | Path | None = None,
    pdf: str = "",
    keep_paths: bool = False,
    job: Mapping[str, Any] = MappingProxyType({}),
    progress: Callable[[int, int, str], None] = lambda done, of, what: None,
    note: Callable[[str], None] = warnings.warn,
    first_page: Callable[[dict[str, Any]], None] = lambda summary: None,
) -> Path:
    """Write a report of a run to a folder and return its first page, ``index.html``.

    `profile`, `baseline`: what `perfkit.load` takes; a baseline is an earlier run to compare with. `out`: a folder that
    is made, or replaced if it is an earlier report; files you put there stay. `ranks`, `gpus`, `window`, `kernels`,
    `families`: as in `perfkit.select`. `peaks`, `published`: files of `perfkit.hardware.load_peaks` and
    `perfkit.report.against_published`. `pdf`: what to print to ``report.pdf``, which
    needs Chromium: "summary" (the first page), "all" (the steps behind it as well), or nothing. `keep_paths`:
    whether absolute paths, user name and host name of this machine stay, see `perfkit.report.machine`. `job`: what
    only you know, see `perfkit.load`. `progress`:
    called with the number of finished steps, their total and the name of what just ended; `note` with a sentence for
    you; `first_page` with the verdict and findings, `summary` of ``summary.json``, and whether the run `is_simulated`,
    as soon as they are known.

    Raises PerfkitError if the input cannot be read, the choice does not fit it, `out` must not be replaced or cannot be
    written, or all notebooks fail: `out` is then as it was. If some notebooks or the PDF fail, the report is written
    without them.
    """
    out = Path(out).absolute()
    own = {"profile": profile, "baseline": baseline, "peaks": peaks, "published": published}
    given = [Path(path) for path in own.values() if path]
    output.check(out, MADE_BY, inputs=given, note=note)
    parameters = {
        **{name: str(Path(path).absolute()) if path else "" for name, path in own.items()},
        "ranks": list(ranks),
        "gpus": list(gpus),
        "window": list(window),
        "kernels": kernels,
        "families": list(families),
        "job": {name: value for name, value in job.items() if value},
    }
    with notebooks.Session() as session:
        about = session.ask("opened", parameters=parameters)
        for text in about["notes"]:
            note(text)
        if pdf:
            browser()
        parameters["ranks"] = about["ranks"]
        texts = {name: str(path) if path else None for name, path in own.items()}
        machine = {"report": str(out), "own": texts, "nodes": about["nodes"]}
        making = _Making(
            session,
            about,
            parameters,
            machine=None if keep_paths else machine,
            pdf=pdf,
            progress=progress,
            first_page=first_page,
        )
        inputs = [*given, *map(Path, about["paths"])]
        with output.replacing(out, MADE_BY, inputs=inputs, note=note) as made:
            missing = making.write(made, Path(profile).name)
    if missing:
        listed = "; ".join(f"{name} ({elided(why, LONGEST)})" for name, why in missing.items())
        raise PerfkitError(
            f"{out / 'index.html'}: the report is written without {listed}. Mend it and make it again."
        )
    return out / "index.html"


@dataclass
class _Making:
    """A report that is being made: what was opened, the notebooks' parameters, and whom to tell of each step."""

    session: notebooks.Session
    about: Mapping[str, Any]
    parameters: dict[str, Any]
    machine: Mapping[str, Any] | None
    pdf: str
    progress: Callable[[int, int, str], None]
    first_page: Callable[[dict[str, Any]], None]
    steps: int = 0

    def write(self, folder: Path, run: str) -> dict[str, str]:
        """Write tables, pages and the PDF; returns why what is missing could not be made, by its name."""
        results = self.session.execute(self.about["names"], self.parameters, done=self._ran)
        failures = _failures(results, run)
        where = {"parameters": self.parameters, "folder": str(folder), "machine": self.machine}
        tables = self.session.ask("write_tables", **where)
        self._done("tables")
        executed = {
            name: notebooks.stored(name) if isinstance(each, Failure) else each
            for name, each in results.items()
        }
        failed = {name: asdict(failure) for name, failure in failures.items()}
        self.session.ask(
            "write_pages", executed=executed, failures=failed, tables=tables, pdf=self.pdf, **where
        )
        self._done("pages")
        missing = {name: str(failure) for name, failure in failures.items()}
        if self.pdf:
            missing |= print_report(folder)
            self._done("PDF")
        return missing

    def _done(self, what: str) -> None:
        self.steps += 1
        self.progress(self.steps, len(self.about["names"]) + 2 + bool(self.pdf), what)

    def _ran(self, name: str, executed: Executed) -> None:
        self._done(name)
        if name == notebooks.SUMMARY and not isinstance(executed, Failure):
            summary = notebooks.summary(executed)
            self.first_page({**summary, "is_simulated": self.about["is_simulated"]})


def _failures(results: Mapping[str, Executed], run: str) -> dict[str, Failure]:
    """Return the notebooks that failed; PerfkitError if all did."""
    failures = {name: each for name, each in results.items() if isinstance(each, Failure)}
    if len(failures) == len(results):
        name, failure = next(iter(failures.items()))
        raise PerfkitError(f"{run}: all notebooks failed; {name}: {failure}.")
    return failures

"""Build a report: run the notebooks, then write the page, the summaries and the tables."""

from __future__ import annotations

import html
import json
import math
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Mapping
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

import nbformat
import pyarrow as pa
import pyarrow.parquet as pq

from perfkit.diagnosis.finding import HORIZONS
from perfkit.errors import PerfkitError
from perfkit.format import elided, printable
from perfkit.hardware import load_peaks
from perfkit.report import html as report_html
from perfkit.report import links, notebooks, output
from perfkit.report.blocks import nothing_found, remarks
from perfkit.report.blocks import published as published_figures
from perfkit.report.links import Report, presented
from perfkit.report.notebooks import Failure, Recorded, collect, end, presentable
from perfkit.report.output import TEXT
from perfkit.run import Run, load
from perfkit.selection import Selection, select
from perfkit.tables import TABLES

SCHEMA = 1  # of summary.json, which summary.schema.json describes: goes up when a key goes, or means something else
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
LIMIT = 180  # s
DRAWING = 20_000  # ms of the page's own clock that its charts have to be drawn
QUIET = ("--headless", "--disable-gpu", "--disable-background-networking", "--no-first-run", "--no-pdf-header-footer")
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
    pdf: bool = False,
    keep_paths: bool = False,
    progress: Callable[[int, int, str], None] = lambda done, of, what: None,
    note: Callable[[str], None] = warnings.warn,
) -> Path:
    """Write a report of a run to a folder and return its page, ``index.html``.

    `profile`, `baseline`: what `perfkit.load` takes; a baseline is an earlier run to compare with. `out`: a folder that
    is made, or replaced if it is an earlier report; files you put there stay. `ranks`, `gpus`, `window`, `kernels`,
    `families`: as in `perfkit.select`. `peaks`, `published`: files of `perfkit.hardware.load_peaks` and
    `perfkit.report.against_published`. `pdf`: whether to print ``report.pdf`` too, which needs Chromium. `keep_paths`:
    whether absolute paths, user name and host name of this machine stay, see `perfkit.report.html.clean`. `progress`:
    called with the number of finished steps, their total and the name of what just ended; `note` with a sentence for
    you.

    Raises PerfkitError if the input cannot be read, the choice does not fit it, `out` must not be replaced or cannot be
    written, or all notebooks fail: `out` is then as it was. If some notebooks or the PDF fail, the report is written
    without them.
    """
    out = Path(out).absolute()
    given = [Path(path) for path in (profile, baseline, peaks, published) if path]
    output.check(out, MADE_BY, inputs=given, note=note)
    view = select(load(profile), ranks=ranks, gpus=gpus, window=window, kernels=kernels, families=families)
    earlier = load(baseline) if baseline else None
    if peaks:
        load_peaks(peaks)
    if published:
        published_figures(Path(published))
    if pdf:
        browser()
    names = notebooks.answering(view.run, earlier)
    parameters = {
        "profile": str(Path(profile).absolute()),
        "baseline": str(Path(baseline).absolute()) if baseline else "",
        "ranks": list(ranks),
        "gpus": list(gpus),
        "window": list(window),
        "kernels": kernels,
        "families": list(families),
        "peaks": str(Path(peaks).absolute()) if peaks else "",
        "published": str(Path(published).absolute()) if published else "",
    }
    inputs = [*given, *(each.path for run in (view.run, earlier) if run for each in run.profiles)]
    steps = count(1)

    def done(what: str) -> None:
        progress(next(steps), len(names) + 2 + pdf, what)

    with output.replacing(out, MADE_BY, inputs=inputs, note=note) as made:
        missing = {name: str(failure) for name, failure in _write(view, earlier, names, parameters, made, done).items()}
        if not keep_paths:
            report_html.clean(made, {"profile": profile, "baseline": baseline, "peaks": peaks, "published": published})
        if pdf:
            missing |= _print(made)
            done("PDF")
    if missing:
        listed = "; ".join(f"{name} ({elided(why, LONGEST)})" for name, why in missing.items())
        raise PerfkitError(
            f"{out / 'index.html'}: the report is written without {listed}. Mend that and make it again."
        )
    return out / "index.html"


def _write(
    view: Selection,
    earlier: Run | None,
    names: list[str],
    parameters: dict[str, Any],
    made: Path,
    done: Callable[[str], None],
) -> dict[str, Failure]:
    """Write the report to a folder and return the notebooks that failed; if all did, raise PerfkitError."""
    results = notebooks.execute(names, parameters, done=done)
    failures = {name: each for name, each in results.items() if isinstance(each, Failure)}
    executed = {name: each for name, each in results.items() if not isinstance(each, Failure)}
    if not executed:
        name, failure = next(iter(failures.items()))
        raise PerfkitError(f"{Path(parameters['profile']).name}: all notebooks failed; {name}: {failure}.")
    tables = _write_tables(view, earlier, made / links.FOLDER)
    done("tables")
    kept = {name: presentable(n, _told(name, view.run, earlier)) for name, n in executed.items()}
    linked = links.Report(presented(executed, kept), frozenset(tables))
    (made / "notebooks").mkdir()
    for name, notebook in executed.items():
        content = nbformat.writes(links.beside(notebook, linked)) + "\n"
        (made / "notebooks" / f"{name}.ipynb").write_text(content, **TEXT)
    found = collect(executed.items())
    why = {name: str(failure) for name, failure in failures.items()}
    write_summary(made, summary_inputs(view, parameters), found, linked, why)
    parts = links.page(kept, linked, ((id, figure["source"]) for id, figure in found.figures.items()))
    parts |= {name: notebooks.failed(name, failure) for name, failure in failures.items()}
    shown = [(notebooks.title(parts[name]), parts[name]) for name in names]
    title = f"perfkit: {Path(parameters['profile']).name}"
    (made / "index.html").write_text(report_html.pages(shown, title=title), **TEXT)
    done("page")
    return failures


def _print(made: Path) -> dict[str, str]:
    """Print the page without links to files, which a PDF would keep; return what went wrong, if anything, by name."""
    page = made / "print.html"
    page.write_text(links.without_files((made / "index.html").read_text(encoding="utf-8")), **TEXT)
    try:
        printed(page, made / "report.pdf")
    except PerfkitError as e:
        return {"report.pdf": str(e)}
    finally:
        page.unlink()
    return {}


def _told(name: str, run: Run, earlier: Run | None) -> set[str]:
    """Return what was recorded for a notebook to tell: by both runs, where it compares them; and that there are two."""
    if earlier is None:
        return notebooks.recorded(run)
    compares = notebooks.BASELINE in notebooks.NOTEBOOKS[name]
    told = notebooks.recorded(run) & notebooks.recorded(earlier) if compares else notebooks.recorded(run)
    return told | {notebooks.BASELINE}


def _write_tables(view: Selection, earlier: Run | None, folder: Path) -> list[str]:
    """Write the tables that figures rest on (own, framework's, baseline's) whole as Parquet, and return their names."""
    traced = view.framework.run
    runs = {"": view.run, "framework": None if traced is view.run else traced, "baseline": earlier}
    written = []
    for place, run in runs.items():
        for name in TABLES if run else ():
            frame = run.table(name) if run else None
            path = f"{place}/{name}".lstrip("/")
            if frame is None or not len(frame) or (place == "framework" and frame.equals(view.run.table(name))):
                continue
            (folder / place).mkdir(parents=True, exist_ok=True)
            with (folder / f"{path.lower()}.parquet").open("wb") as file:  # pyarrow opens no path that is not UTF-8
                pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), file, compression="zstd")
            written.append(path)
    return written


def browser() -> str:
    """Return the browser that prints; PerfkitError if there is none on the PATH."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise PerfkitError(
            f"pdf: no browser on the PATH ({', '.join(BROWSERS)}). Install Chromium, or print index.html yourself."
        )
    return found


def printed(page: Path, target: Path) -> Path:
    """Print an HTML page to a PDF file and return that; PerfkitError, and nothing left, if no browser writes one."""
    program = browser()
    with tempfile.TemporaryDirectory(prefix="perfkit-pdf-") as folder:
        made = Path(folder, "page.pdf")
        # In containers the browser's own sandbox is not available; the page holds no scripts but perfkit's.
        options = [*QUIET, "--no-sandbox", f"--user-data-dir={folder}", f"--virtual-time-budget={DRAWING}"]
        command = [program, *options, f"--print-to-pdf={made}", page.absolute().as_uri()]
        said = (_run(command).strip().splitlines() or ["nothing"])[-1]
        if not made.is_file() or made.read_bytes()[:5] != b"%PDF-":
            raise PerfkitError(f"pdf: {program} wrote no PDF and said: {said}. Print index.html yourself.")
        shutil.copyfile(made, target)
    return target


def _run(command: list[str]) -> str:
    """Run a browser and return what it printed; its own processes end with it, however this function ends."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            return process.communicate(timeout=LIMIT)[1]
        except subprocess.TimeoutExpired as e:
            raise PerfkitError(f"pdf: {command[0]} took more than {LIMIT} s. Print index.html yourself.") from e
        finally:
            end(process)


def summary_inputs(view: Selection, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return what the report was made from: files, tools, devices, choice and remarks."""
    return {
        "perfkit_version": version("perfkit"),
        "parameters": parameters,
        "selection": view.description,
        "captures": view.run.capture.astype(object).where(view.run.capture.notna(), None).to_dict("records"),
        "devices": [str(name) for name in view.devices["name"]],
        "notes": list(view.run.notes),
    }


def write_summary(
    folder: Path, about: dict[str, Any], found: Recorded, linked: Report, failures: Mapping[str, str] | None = None
) -> None:
    """Write `summary.json` and `summary.md` to `folder`; `failures` say why a notebook is missing."""
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
        _markdown_table(("figure", "value", "definition", "source"), [_row(f) for f in figures.values()]),
        "## Improvement opportunities",
        "Gains are ranges and overlap: they are not to be multiplied or added.",
        _markdown_table(
            ("direction", "current", "target", "gain", "why a range"), [_opportunity(f, figures) for f in findings]
        ),
        "## Recommendations",
        *(block for horizon in HORIZONS for block in _recommendations(horizon, findings)),
        "## What was not answered",
        "\n".join(refusals),
        f"*Made by perfkit {about['perfkit_version']}.*",
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _about(about: dict[str, Any]) -> str:
    lines = {
        "Run": Path(about["parameters"]["profile"]).name,
        "Recorded with": ", ".join(sorted({f"{c['tool']} {c['tool_version']}".strip() for c in about["captures"]})),
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


def _markdown_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    if not rows:
        return "None."
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ("---",) * len(header), *rows])


def _safe(text: str) -> str:
    """Return foreign text so that Markdown shows it as it is: no tag, table or emphasis of its own."""
    escaped = html.escape(printable(text, 2000), quote=False)
    for mark in "\\`*_[]|#":
        escaped = escaped.replace(mark, f"\\{mark}")
    return escaped

"""Build a report: run the notebooks, then write the page, the summaries and the tables."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from importlib.metadata import version
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import nbformat
import pyarrow as pa
import pyarrow.parquet as pq

from perfkit.analysis.ranks import to_open
from perfkit.diagnosis import recording
from perfkit.diagnosis.finding import finite
from perfkit.diagnosis.headline import AFTER_A_FAILURE, FAILED, nothing_found
from perfkit.errors import PerfkitError
from perfkit.format import CODE, elided, printable
from perfkit.hardware import load_peaks
from perfkit.profile import Profile
from perfkit.report import earlier as earlier_runs
from perfkit.report import html as report_html
from perfkit.report import links, notebooks, output, paper
from perfkit.report.blocks import WEEKS, by_command, remarks
from perfkit.report.comparison import published as published_figures
from perfkit.report.first_page import CHECK, LISTS, steps_left
from perfkit.report.html import Lead
from perfkit.report.links import Report, presented
from perfkit.report.machine import Machine, named
from perfkit.report.notebooks import LIVE, MIME, NEEDS, OPTIONAL, Failure
from perfkit.report.output import TEXT
from perfkit.report.processes import end
from perfkit.run import Run, load
from perfkit.selection import Selection, select
from perfkit.tables import TABLES

if TYPE_CHECKING:
    from jinja2 import Template

SCHEMA = 1  # of summary.json, which summary.schema.json describes: goes up when a key goes, or means something else
BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "msedge",
)
LIMIT = 180  # s
DRAWING = 20_000  # ms of the page's own clock that its charts have to be drawn
ALL = "all"  # pages are printed, not only the first one
QUIET = (
    "--headless",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--no-pdf-header-footer",
)
INPUTS = ("profile", "baseline", "peaks", "published")  # parameters that are paths
MADE_BY = "perfkit report"  # in the marker of the folder
PRINTED = "print.html"  # all pages in one, until a browser has printed them
LONGEST = 300  # characters of a failure in a message
SMALL = 16 << 20  # bytes of captures, whose tables two processes may hold at once (convention)
NUMBERED = re.compile(r"\A## \d+\. ")  # the heading of a section


@dataclass
class Recorded:
    """What the notebooks of a report recorded; of two with one id or title the first is kept."""

    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    findings: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)


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
) -> Path:
    """Write a report of a run to a folder and return its first page, ``index.html``.

    `profile`, `baseline`: what `perfkit.load` takes; a baseline is an earlier run to compare with. `out`: a folder that
    is made, or replaced if it is an earlier report; files you put there stay. `ranks`, `gpus`, `window`, `kernels`,
    `families`: as in `perfkit.select`. `peaks`, `published`: files of `perfkit.hardware.load_peaks` and
    `perfkit.report.against_published`. `pdf`: what to print to ``report.pdf``, which
    needs Chromium: "summary" (the first page), ALL (the steps behind it as well), or nothing. `keep_paths`:
    whether absolute paths, user name and host name of this machine stay, see `perfkit.report.machine`. `job`: what
    only you know, see `perfkit.load`. `progress`:
    called with the number of finished steps, their total and the name of what just ended; `note` with a sentence for
    you.

    Raises PerfkitError if the input cannot be read, the choice does not fit it, `out` must not be replaced or cannot be
    written, or all notebooks fail: `out` is then as it was. If some notebooks or the PDF fail, the report is written
    without them.
    """
    out = Path(out).absolute()
    given = [Path(path) for path in (profile, baseline, peaks, published) if path]
    output.check(out, MADE_BY, inputs=given, note=note)
    run = load(profile, job=job)
    if not ranks and run.is_large:
        ranks = tuple(to_open(run.reduced.by_device()))
        note(
            f"{run.reduced.by_device()['rank'].nunique():,} ranks are too many to open: the report looks at {ranks}."
        )
    view = select(run, ranks=ranks, gpus=gpus, window=window, kernels=kernels, families=families)
    earlier = load(baseline) if baseline else None
    if peaks:
        load_peaks(peaks)
    if published:
        published_figures(Path(published))
    if pdf:
        browser()
    names = notebooks.answering(view.run, earlier)
    known = {name: value for name, value in job.items() if value}
    parameters = {
        "profile": str(Path(profile).absolute()),
        "baseline": str(Path(baseline).absolute()) if baseline else "",
        "ranks": list(ranks),
        "gpus": list(gpus),
        "window": list(window),
        "kernels": kernels,
        "families": list(families),
        "job": known,
        "peaks": str(Path(peaks).absolute()) if peaks else "",
        "published": str(Path(published).absolute()) if published else "",
    }
    inputs = [*given, *(each.path for run in (view.run, earlier) if run for each in run.profiles)]
    steps = count(1)

    def done(what: str) -> None:
        progress(next(steps), len(names) + 2 + bool(pdf), what)

    with output.replacing(out, MADE_BY, inputs=inputs, note=note) as made:
        own = {"profile": profile, "baseline": baseline, "peaks": peaks, "published": published}
        hosts = {
            each.node for run in (view.run, earlier) if run for each in run.profiles if each.node
        }
        this = Machine({}) if keep_paths else named(out, own, hosts)
        failures = _write(view, earlier, names, parameters, made, done, pdf=pdf, machine=this)
        missing = {name: str(failure) for name, failure in failures.items()}
        if pdf:
            missing |= _print(made)
            done("PDF")
    if missing:
        listed = "; ".join(f"{name} ({elided(why, LONGEST)})" for name, why in missing.items())
        raise PerfkitError(
            f"{out / 'index.html'}: the report is written without {listed}. Mend it and make it again."
        )
    return out / "index.html"


def _write(
    view: Selection,
    earlier: Run | None,
    names: list[str],
    parameters: dict[str, Any],
    made: Path,
    done: Callable[[str], None],
    *,
    pdf: str,
    machine: Machine,
) -> dict[str, Failure]:
    """Write the report to a folder and return the notebooks that failed; if all did, raise PerfkitError.

    All that is written goes through `machine`, which takes out the names of this machine.
    """
    tables: list[str] = []

    def write() -> None:
        report_html.prepare()
        _page()
        tables[:] = _write_tables(view, earlier, made / links.FOLDER, machine)

    is_small = sum(map(_size, view.run.profiles + (earlier.profiles if earlier else ()))) <= SMALL
    results = notebooks.execute(
        names, parameters, done=done, meanwhile=write if is_small else lambda: None
    )
    failures = {name: each for name, each in results.items() if isinstance(each, Failure)}
    inputs = [name for name in INPUTS if parameters[name]]
    executed = {
        name: machine.notebook(each, inputs)
        for name, each in results.items()
        if not isinstance(each, Failure)
    }
    if not executed:
        name, failure = next(iter(failures.items()))
        raise PerfkitError(
            f"{Path(parameters['profile']).name}: all notebooks failed; {name}: {failure}."
        )
    if not is_small:
        write()
    done("tables")
    kept = {name: presentable(n, _told(name, view.run, earlier)) for name, n in executed.items()}
    linked = links.Report(presented(executed, kept), frozenset(tables))
    (made / "notebooks").mkdir()
    found = collect(executed.items())
    if found.summary:
        found.summary["pictures"] = pictures(kept[notebooks.SUMMARY])
    told = {name: failure.cleaned(machine.text) for name, failure in failures.items()}
    why = {name: str(failure) for name, failure in told.items()}
    write_summary(made, machine.value(summary_inputs(view, parameters)), found, linked, why)
    known = [(id, figure["source"]) for id, figure in found.figures.items()]
    broken = {name: failed(name, failure) for name, failure in told.items()}
    parts = links.pages(kept, linked, known) | broken
    shown = {name: (notebooks.title(parts[name]), parts[name]) for name in names}
    run = Path(parameters["profile"]).name
    label = f"perfkit: {run}{', simulated, not measured' * view.run.is_simulated}"  # on each page
    for name in names:
        title, part = shown[name]
        leads = [
            Lead(links.address(n), _short(n), shown[n][0], n == name, n in failures) for n in names
        ]
        page = report_html.page(part, title=f"{run}: {title}", run=label, leads=leads)
        (made / links.address(name)).write_text(page, **TEXT)
    for name, notebook in executed.items():
        text = json.dumps(links.beside(notebook, linked), ensure_ascii=False)
        (made / "notebooks" / f"{name}.ipynb").write_text(f"{text}\n", **TEXT)
    if pdf:
        chosen = names if pdf == ALL else names[:1]
        printed_cells = Report([cell for cell in linked.cells if cell.notebook in chosen])
        on_paper = (
            links.pages(
                {n: kept[n] for n in chosen if n in kept}, printed_cells, known, is_one=True
            )
            | broken
        )
        whole = report_html.pages([(shown[n][0], on_paper[n]) for n in chosen], title=label)
        foot = {"name": printable(run, 80), "date": f"{datetime.now():%Y-%m-%d}"}
        (made / PRINTED).write_text(paper.footed(whole, is_compact=pdf != ALL, **foot), **TEXT)
    done("pages")
    return failures


def _size(profile: Profile) -> int:
    """Return the bytes of a capture, which is a file or a folder."""
    return sum(
        file.stat().st_size for file in (profile.path, *profile.path.rglob("*")) if file.is_file()
    )


def _short(notebook: str) -> str:
    """Return a notebook's name as a link between pages.

    >>> _short("0_executive_summary"), _short("3_call_paths")
    ('Summary', '3 Call paths')
    """
    number, _, words = notebook.partition("_")
    return (
        "Summary"
        if notebook == notebooks.SUMMARY
        else f"{number} {words.replace('_', ' ').capitalize()}"
    )


def _print(made: Path) -> dict[str, str]:
    """Print the chosen pages to a PDF and delete what was printed; return what went wrong, if anything, by name."""
    page = made / PRINTED
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
    told = (
        notebooks.recorded(run) & notebooks.recorded(earlier)
        if compares
        else notebooks.recorded(run)
    )
    return told | {notebooks.BASELINE}


def _write_tables(
    view: Selection, earlier: Run | None, folder: Path, machine: Machine
) -> list[str]:
    """Write the tables that figures rest on (own, framework's, baseline's) whole as Parquet, and return their names."""
    traced = view.framework.run
    runs = {"": view.run, "framework": None if traced is view.run else traced, "baseline": earlier}
    written = []
    for place, run in runs.items():
        for name in TABLES if run else ():
            frame = run.table(name) if run else None
            path = f"{place}/{name}".lstrip("/")
            if (
                frame is None
                or not len(frame)
                or (place == "framework" and frame.equals(view.run.table(name)))
            ):
                continue
            (folder / place).mkdir(parents=True, exist_ok=True)
            table = pa.Table.from_pandas(machine.frame(frame), preserve_index=False)
            with (folder / f"{path.lower()}.parquet").open(
                "wb"
            ) as file:  # pyarrow opens no path that is not UTF-8
                pq.write_table(table, file, compression="zstd")
            written.append(path)
    return written


def collect(notebooks: Iterable[tuple[str, nbformat.NotebookNode]]) -> Recorded:
    """Return what executed notebooks, given with their names, recorded."""
    recorded = Recorded()
    outputs = (
        (name, o)
        for name, notebook in notebooks
        for cell in notebook.cells
        for o in cell.get("outputs", [])
    )
    for name, content in (
        (name, o["data"][MIME]) for name, o in outputs if MIME in o.get("data", {})
    ):
        for figure in content["figures"]:
            recorded.figures.setdefault(figure["id"], {**figure, "notebook": name})
        present = {(f["rule"], f["title"]) for f in recorded.findings}
        new = [f for f in content["findings"] if (f["rule"], f["title"]) not in present]
        recorded.findings += [{**f, "notebook": name} for f in new]
        recorded.refusals += [r for r in content["refusals"] if r not in recorded.refusals]
        recorded.summary |= content.get("summary", {})
    return recorded


def pictures(notebook: nbformat.NotebookNode) -> list[str]:
    """Return what the charts of a notebook show, in words."""
    outputs = [o.get("data", {}) for cell in notebook.cells for o in cell.get("outputs", [])]
    return [
        data["text/plain"].removeprefix("chart: ")
        for data in outputs
        if any("vegalite" in kind for kind in data)
    ]


def presentable(notebook: nbformat.NotebookNode, tables: Collection[str]) -> nbformat.NotebookNode:
    """Return the notebook as a reader wants it: without cells that only record, ``live``, or lack their tables."""
    cells, silent = [], []
    for cell in map(nbformat.NotebookNode, notebook.cells):
        tags = cell.metadata.get("tags", [])
        needs = [tag.removeprefix(NEEDS).split("|") for tag in tags if tag.startswith(NEEDS)]
        is_answered = all(set(names) & set(tables) for names in needs)
        if not is_answered or any(MIME in o.get("data", {}) for o in cell.get("outputs", [])):
            continue
        is_code, is_live = cell.cell_type == "code", LIVE in tags
        if is_code and (is_live or not cell.outputs):
            silent.append(cell.source)
        elif not is_live:
            if is_code:
                cell.source = "\n\n".join([*silent, cell.source])
                silent.clear()
            cells.append(cell)
    following = [*cells[1:], None]
    kept = [  # without headings that may go where nothing is below them: what follows is prose or the end
        cell
        for cell, after in zip(cells, following, strict=True)
        if (after and after.cell_type != "markdown")
        or OPTIONAL not in cell.metadata.get("tags", [])
    ]
    numbers = count(1)  # of the sections that are left
    for cell in kept:
        cell.source = NUMBERED.sub(lambda _: f"## {next(numbers)}. ", cell.source)
    return nbformat.NotebookNode(notebook, cells=kept)


def failed(name: str, failure: Failure) -> nbformat.NotebookNode:
    """Return what stands on the page for a notebook that failed: its title, and the error."""
    stored = notebooks.stored(name)
    error = nbformat.v4.new_output(
        "error", ename=failure.error, evalue=failure.message, traceback=[]
    )
    cells = [
        nbformat.v4.new_markdown_cell(f"# {notebooks.title(stored)}"),
        nbformat.v4.new_code_cell(failure.code, outputs=[error]),
    ]
    made: nbformat.NotebookNode = nbformat.v4.new_notebook(cells=cells, metadata=stored.metadata)
    return made


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
        options = [
            *QUIET,
            "--no-sandbox",
            f"--user-data-dir={folder}",
            f"--virtual-time-budget={DRAWING}",
        ]
        command = [program, *options, f"--print-to-pdf={made}", page.absolute().as_uri()]
        said = (_run(command).strip().splitlines() or ["nothing"])[-1]
        if not made.is_file() or made.read_bytes()[:5] != b"%PDF-":
            raise PerfkitError(
                f"pdf: {program} wrote no PDF and said: {said}. Print index.html yourself."
            )
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
            raise PerfkitError(
                f"pdf: {command[0]} took more than {LIMIT} s. Print index.html yourself."
            ) from e
        finally:
            end(process)


def summary_inputs(view: Selection, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return what the report was made from: files, tools, devices, choice and remarks."""
    return {
        "made_at": f"{datetime.now():%Y-%m-%d %H:%M}",
        "perfkit_version": version("perfkit"),
        "parameters": parameters,
        "selection": view.description,
        "captures": view.run.capture.astype(object)
        .where(view.run.capture.notna(), None)
        .to_dict("records"),
        "readers": earlier_runs.readers(view.run),
        "devices": [str(name) for name in view.devices["name"]],
        "notes": list(recording.notes(view)),
    }


NOTHING: dict[str, Any] = {
    "verdict": "",
    "remark": "",
    **{name: [] for name in LISTS},
}  # a first page that failed


def write_summary(
    folder: Path,
    about: dict[str, Any],
    found: Recorded,
    linked: Report,
    failures: Mapping[str, str] | None = None,
) -> None:
    """Write `summary.json`, `summary.md` and `figures.md` to `folder`; `failures` say why a notebook is missing."""
    figures = {}
    for (
        id,
        figure,
    ) in (
        found.figures.items()
    ):  # with the cell that shows it, null where none does, and its tables' files
        cell = linked.cell(id, figure["source"])
        place = {"notebook": cell.notebook, "id": cell.id} if cell else None
        files = list(linked.files(figure["source"]).values())
        figures[id] = {
            **{k: v for k, v in figure.items() if k != "id"},
            "cell": place,
            "tables": files,
        }
    content = {
        "schema": SCHEMA,
        "inputs": about,
        "summary": found.summary or NOTHING,
        "figures": figures,
        "findings": found.findings,
        "refusals": found.refusals,
        "failures": [
            {"notebook": name, "error": error} for name, error in (failures or {}).items()
        ],
    }
    text = json.dumps(finite(content), indent=1, ensure_ascii=False, allow_nan=False)
    (folder / "summary.json").write_text(text + "\n", **TEXT)
    (folder / "summary.md").write_text(markdown(content), **TEXT)
    (folder / "figures.md").write_text(figures_markdown(content), **TEXT)


@cache
def _page() -> Template:
    return report_html.template("summary.md.j2", {"text": _safe, "link": _value}, trim_blocks=True)


def markdown(content: dict[str, Any]) -> str:
    """Return the first page as Markdown, from the content of `summary.json`."""
    nothing = "" if content["findings"] else nothing_found(content["figures"])
    return _page().render(
        **{**content, "figures": _with_ids(content["figures"])},
        weeks=WEEKS,
        questions=by_command(
            (r["question"], r["reason"], r["record"]) for r in content["summary"]["questions"]
        ),
        more=steps_left(content["summary"]),
        check=CHECK,
        notes=remarks(content["inputs"]["notes"]),
        before=AFTER_A_FAILURE if content["summary"]["verdict"].startswith(FAILED) else nothing,
        run=Path(content["inputs"]["parameters"]["profile"]).name,
    )


def figures_markdown(content: dict[str, Any]) -> str:
    """Return all figures as a table in Markdown, from the content of `summary.json`."""
    about = content["inputs"]
    lines = [("figure", "value", "definition", "source"), ("---",) * 4]
    for figure in _with_ids(content["figures"]).values():
        files = (f"[{_safe(Path(path).stem)}]({path})" for path in figure.get("tables", ()))
        source = ", ".join([_safe(figure["source"]), *files])
        lines.append((_safe(figure["label"]), _value(figure), _safe(figure["definition"]), source))
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines) if len(lines) > 2 else "None."
    made = f"Made {about['made_at']} by perfkit {about['perfkit_version']}. Selection: {_safe(about['selection'])}."
    return f"# All figures of {_safe(Path(about['parameters']['profile']).name)}\n\n{made}\n\n{table}\n"


def _with_ids(figures: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return figures that know their ids."""
    return {id: {**figure, "id": id} for id, figure in figures.items()}


def _value(figure: dict[str, Any], text: str = "") -> str:
    """Return a figure's text, or another, as a link to the cell that shows it."""
    cell, text = figure.get("cell"), _safe(text or figure["text"])
    if not cell:
        return text
    return f"[{text}]({links.address(cell['notebook'])}#{links.anchor(figure['id'])})"


def _safe(text: str) -> str:
    """Return foreign text so that Markdown shows it as it is, but what stands between backquotes as code.

    No tag, table or emphasis of its own is left.
    """
    parts = CODE.split(printable(text, 2000))
    return "".join(
        f"<code>{_plain(part)}</code>" if at % 2 else _plain(part) for at, part in enumerate(parts)
    )


def _plain(text: str) -> str:
    escaped = html.escape(text, quote=False)
    for mark in "\\`*_[]|#":
        escaped = escaped.replace(mark, f"\\{mark}")
    return escaped
